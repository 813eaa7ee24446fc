//! When launches belong to what is recorded, and whether they do now.

use crate::vendor::Ranges;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use xputrace_wire::message::window;
use xputrace_wire::record::Opened;

/// When to record, and whether it is so now.
#[derive(Debug)]
pub(crate) struct Window {
    /// Bits of [`window`].
    pub(crate) conditions: u64,
    /// The ranges that open it, where they do.
    ranges: Option<&'static dyn Ranges>,
    /// Whether the tracer wants records already.
    pub(crate) is_due: AtomicBool,
    /// Whether the program has started its profiler.
    pub(crate) is_profiling: AtomicBool,
    pub(crate) is_open: AtomicBool,
    pub(crate) is_changing: AtomicBool,
    /// Whether the backend records; changed only by who is changing the window.
    pub(crate) is_resumed: AtomicBool,
    /// Whether the run ends.
    pub(crate) has_ended: AtomicBool,
    pub(crate) closed_at: AtomicU64,
    /// When it was opened since [`Window::take_openings`]: first (0: never), and last.
    opened_first: AtomicU64,
    opened_last: AtomicU64,
    pub(crate) pauses: AtomicU32,
}

impl Window {
    pub(crate) fn new(conditions: u64, ranges: Option<&'static dyn Ranges>) -> Self {
        Window {
            conditions,
            ranges,
            is_due: AtomicBool::new(conditions & window::LATER == 0),
            is_profiling: AtomicBool::new(false),
            is_open: AtomicBool::new(false),
            is_changing: AtomicBool::new(false),
            is_resumed: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            closed_at: AtomicU64::new(0),
            opened_first: AtomicU64::new(0),
            opened_last: AtomicU64::new(0),
            pauses: AtomicU32::new(0),
        }
    }

    /// Whether launches that begin now belong to it: where there are no conditions, from when all that is asked for is
    /// recorded until the end.
    #[inline]
    pub(crate) fn contains_now(&self) -> bool {
        !self.has_ended.load(Ordering::Relaxed) && self.is_open()
    }

    /// Whether it is the whole run.
    pub(crate) fn is_throughout(&self) -> bool {
        self.conditions == 0
    }

    /// Notes that it is about to open; without conditions it always is.
    pub(crate) fn note_opening(&self, at: u64) {
        if self.conditions != 0 {
            self.note_switch(at);
        }
    }

    /// Notes that something was not recorded before that later events are told by.
    pub(crate) fn note_switch(&self, at: u64) {
        self.opened_last.store(at, Ordering::SeqCst);
        let _ = self.opened_first.compare_exchange(0, at, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Notes that returns of some calls may not have been reported.
    pub(crate) fn note_pause(&self) {
        self.pauses.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns when it was opened since the last call. One that is being opened may be in two answers.
    pub(crate) fn take_openings(&self) -> Option<Opened> {
        let first = self.opened_first.swap(0, Ordering::SeqCst);
        (first != 0).then(|| Opened { first, last: self.opened_last.load(Ordering::SeqCst).max(first) })
    }

    /// Contains no launch from now on, whatever its conditions.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Returns how often the backend was paused.
    #[inline]
    pub(crate) fn pauses(&self) -> u32 {
        self.pauses.load(Ordering::Relaxed)
    }

    pub(crate) fn is_due(&self) -> bool {
        let of_profiler = self.conditions & window::PROFILER == 0 || self.is_profiling.load(Ordering::SeqCst);
        let of_ranges = self.conditions & window::RANGES == 0 || self.ranges.is_some_and(|it| it.is_inside());
        self.is_due.load(Ordering::SeqCst) && of_profiler && of_ranges
    }

    /// Takes the right to change it; `None` if another thread is doing so.
    pub(crate) fn change(&self) -> Option<WindowChange<'_>> {
        (!self.is_changing.swap(true, Ordering::SeqCst)).then(|| WindowChange(self))
    }
}

/// The right to change the window. No lock: whoever finds it taken goes on, and its holder looks
/// again before it is done.
pub(crate) struct WindowChange<'a>(&'a Window);

impl Drop for WindowChange<'_> {
    fn drop(&mut self) {
        self.0.is_changing.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_get_the_right_to_change_it_takes_it_from_nobody() {
        let window = Window::new(window::PROFILER, None);
        let holder = window.change();
        assert!(holder.is_some());
        assert!(window.change().is_none());
        assert!(window.change().is_none(), "the first attempt has released the holder's right");
        drop(holder);
        assert!(window.change().is_some());
    }
}
