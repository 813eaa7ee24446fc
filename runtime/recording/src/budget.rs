//! A limit on a recording's size in memory: files are untrusted, and both zstd and our own columns
//! can turn a few bytes into gigabytes.

/// Allowed for any file.
const LEAST: usize = 64 << 20;
/// Bytes in memory per byte of the file. Real recordings take 70 to 250, more if their events are
/// similar; each launch, kernel and hit has at least its time.
const MOST_GROWTH: usize = 1000;

/// How many more bytes a recording may take.
#[derive(Debug)]
pub(super) struct Budget {
    left: usize,
}

impl Budget {
    /// Creates the budget of a file of this size.
    pub(super) fn of_file(bytes: usize) -> Self {
        Budget { left: bytes.saturating_mul(MOST_GROWTH).saturating_add(LEAST) }
    }

    /// Takes bytes before they are allocated; returns `None` if they exceed the budget.
    #[inline]
    pub(super) fn take(&mut self, bytes: usize) -> Option<()> {
        self.left = self.left.checked_sub(bytes)?;
        Some(())
    }

    /// Takes room for `n` values of a type.
    #[inline]
    pub(super) fn take_values<T>(&mut self, n: usize) -> Option<()> {
        self.take(n.checked_mul(size_of::<T>())?)
    }

    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.left
    }
}
