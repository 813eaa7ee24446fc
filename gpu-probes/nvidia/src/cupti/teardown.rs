//! Whether CUPTI is being unloaded, and by whom.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How long one thread must have been the only one to make calls until it may unload CUPTI; nanoseconds.
const ALONE_FOR: u64 = 10_000_000;

/// Who unloads CUPTI, and whether that is done.
///
/// CUPTI 13.0 frees what its part of another thread's call still uses, which ends the program (docs/GUEST.md). So only a
/// thread that has been alone for a while unloads it.
#[derive(Debug, Default)]
pub(super) struct Teardown {
    step: AtomicU32,
    /// The thread that returned last from a call, and since when no other has; CLOCK_MONOTONIC nanoseconds.
    caller: AtomicU32,
    alone_since: AtomicU64,
    /// When the last call returned; 0 if none has.
    last: AtomicU64,
}

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
        self.step.load(Ordering::Acquire) == step
    }

    pub(super) fn set(&self, step: u32) {
        self.step.store(step, Ordering::Release);
    }

    /// Whether the caller made this step.
    pub(super) fn step(&self, from: u32, to: u32) -> bool {
        self.step.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Notes that a thread has returned from a call; returns whether it has been alone for a while. `is_other_in_call` says
    /// whether another is in one, which is asked only where none has returned from one since.
    pub(super) fn returned(&self, thread: u32, now: u64, is_other_in_call: impl FnOnce() -> bool) -> bool {
        self.last.store(now, Ordering::Release);
        if self.caller.swap(thread, Ordering::AcqRel) != thread || is_other_in_call() {
            self.alone_since.store(now, Ordering::Release);
            return false;
        }
        now.saturating_sub(self.alone_since.load(Ordering::Acquire)) >= ALONE_FOR
    }

    /// Whether no thread has returned from a call for a while.
    pub(super) fn is_quiet(&self, now: u64) -> bool {
        now.saturating_sub(self.last.load(Ordering::Acquire)) >= ALONE_FOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_alone_once_no_other_has_returned_or_is_in_a_call_for_a_while() {
        let it = Teardown::default();
        let returned = |thread, now, is_other_in_call| it.returned(thread, now, || is_other_in_call);
        assert!(!returned(1, 1, false) && !returned(1, ALONE_FOR, false) && returned(1, ALONE_FOR + 1, false));
        assert!(!returned(2, ALONE_FOR + 2, false) && !returned(1, ALONE_FOR + 3, false));
        assert!(!returned(1, 2 * ALONE_FOR + 2, false) && !returned(1, 2 * ALONE_FOR + 3, true));
        assert!(!returned(1, 3 * ALONE_FOR, false) && returned(1, 3 * ALONE_FOR + 3, false));
        assert!(!it.is_quiet(4 * ALONE_FOR) && it.is_quiet(4 * ALONE_FOR + 3));
    }
}
