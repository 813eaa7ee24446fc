//! Values by the ids that another process gives them.

/// Maximum number per process, so that a target cannot grow the tracer's memory further. A collector issues up to 16,384 name
/// ids and 65,536 stack ids.
const MOST_IDS: usize = 1 << 17;

/// Values indexed by small ids that another process chose.
#[derive(Debug)]
pub(crate) struct IdMap<T> {
    values: Vec<Option<T>>,
    /// Every id before it, other than 0, has a value.
    first_gap: u32,
}

impl<T> Default for IdMap<T> {
    fn default() -> Self {
        IdMap { values: Vec::new(), first_gap: 1 }
    }
}

impl<T> IdMap<T> {
    /// Returns false if the id is out of range.
    pub(crate) fn insert(&mut self, id: u32, value: T) -> bool {
        let at = id as usize;
        if at >= MOST_IDS {
            return false;
        }
        if at >= self.values.len() {
            self.values.resize_with(at + 1, || None);
        }
        self.values[at] = Some(value);
        while self.get(self.first_gap).is_some() {
            self.first_gap += 1;
        }
        true
    }

    /// Returns the first id, other than 0, that may have no value.
    #[inline]
    pub(crate) fn first_gap(&self) -> u32 {
        self.first_gap
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Releases capacity for further ids.
    pub(crate) fn shrink(&mut self) {
        self.values.shrink_to_fit();
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        self.values.get(id as usize)?.as_ref()
    }
}
