//! Whether CUPTI is being unloaded, and by whom.

use std::sync::atomic::{AtomicU32, Ordering};

/// Who unloads CUPTI, and whether that is done.
#[derive(Debug, Default)]
pub(super) struct Teardown(AtomicU32);

/// Steps of unloading.
pub(super) const NOT_WANTED: u32 = 0;
/// The next callback that returns may do it.
pub(super) const WANTED: u32 = 1;
/// A callback is doing it.
pub(super) const RUNNING: u32 = 2;
pub(super) const DONE: u32 = 3;

impl Teardown {
    #[inline]
    pub(super) fn is(&self, step: u32) -> bool {
        self.0.load(Ordering::Acquire) == step
    }

    pub(super) fn set(&self, step: u32) {
        self.0.store(step, Ordering::Release);
    }

    /// Whether the caller made this step.
    pub(super) fn step(&self, from: u32, to: u32) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
