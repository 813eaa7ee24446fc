//! Which run something belongs to.

/// The address of a run, by which one is told from another: none is ever freed. It says nothing else of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunAddress(*const ());

impl RunAddress {
    pub(crate) const NONE: RunAddress = RunAddress(std::ptr::null());

    #[inline(always)]
    pub(crate) fn of<Run>(run: &Run) -> Self {
        RunAddress(std::ptr::from_ref(run).cast())
    }

    /// Whether it is this run's.
    #[inline(always)]
    pub(crate) fn is_of<Run>(self, run: &Run) -> bool {
        std::ptr::eq(self.0, std::ptr::from_ref(run).cast())
    }

    /// Returns where the run is; null for [`RunAddress::NONE`].
    pub(crate) fn pointer<Run>(self) -> *const Run {
        self.0.cast()
    }
}
