//! A bound on what a recording may become in memory: a file is untrusted, and both zstd and our
//! own columns can make gigabytes of a few bytes.

/// What any file may become.
const LEAST: usize = 64 << 20;
/// Bytes in memory for each byte of the file. Recordings take 70 to 250 by this count, the more
/// the more alike their events are; each launch, kernel and hit has at least its time.
const MOST_GROWTH: usize = 1000;

/// How many more bytes a recording may take.
#[derive(Debug)]
pub(super) struct Budget {
    left: usize,
}

impl Budget {
    /// For a file of so many bytes.
    pub(super) fn of_file(bytes: usize) -> Self {
        Budget { left: bytes.saturating_mul(MOST_GROWTH).saturating_add(LEAST) }
    }

    /// Before so many bytes are allocated: `None` where that would be too many.
    #[inline]
    pub(super) fn take(&mut self, bytes: usize) -> Option<()> {
        self.left = self.left.checked_sub(bytes)?;
        Some(())
    }

    /// The same for `n` values of a type.
    #[inline]
    pub(super) fn take_values<T>(&mut self, n: usize) -> Option<()> {
        self.take(n.checked_mul(size_of::<T>())?)
    }

    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.left
    }
}
