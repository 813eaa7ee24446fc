//! The part of a run that is recorded.
//!
//! ```text
//! gate      open ──────────────┐        ┌──── open        whether a launch belongs to the window: one load
//!                              └ closed ┘
//! backend   ── resumed ────────────┐  ┌─────── resumed    whether anything is recorded: slow to change
//!                                  └──┘ paused
//! ```
//! The backend is resumed before the gate opens, on the thread that opens it, and paused by the
//! control thread once the gate has been closed for a while. In between, launches are recorded as
//! [`Launch::OUTSIDE`]: so the tracer can tell their activities from those of the window. A window
//! that opens and closes often costs two atomic stores each time.
//!
//! [`Launch::OUTSIDE`]: xputrace_wire::record::Launch::OUTSIDE

use super::clock::now;
use super::{Agent, Order, Refusal};
use crate::nvtx;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use xputrace_wire::message::window;
use xputrace_wire::record::Opened;

/// How long a thread waits for another one that is opening the window.
const PATIENCE: Duration = Duration::from_millis(20);

/// When to record, and whether it is so now.
#[derive(Debug)]
pub(crate) struct Window {
    /// Bits of [`window`].
    conditions: u64,
    /// Whether the tracer wants records already.
    is_due: AtomicBool,
    /// Whether the program has started its profiler.
    is_profiling: AtomicBool,
    is_open: AtomicBool,
    is_changing: AtomicBool,
    /// Whether the backend records; changed only by who is changing the window.
    is_resumed: AtomicBool,
    /// Whether the run ends.
    has_ended: AtomicBool,
    closed_at: AtomicU64,
    /// When it was opened since [`Window::take_openings`]: first (0: never), and last.
    opened_first: AtomicU64,
    opened_last: AtomicU64,
    pauses: AtomicU32,
}

impl Window {
    pub(super) fn new(conditions: u64) -> Self {
        Window {
            conditions,
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
    pub(super) fn contains_now(&self) -> bool {
        !self.has_ended.load(Ordering::Relaxed) && self.is_open()
    }

    /// Whether it is the whole run.
    pub(super) fn is_throughout(&self) -> bool {
        self.conditions == 0
    }

    /// Notes that it is about to open; without conditions it always is.
    fn note_opening(&self, at: u64) {
        if self.conditions != 0 {
            self.note_switch(at);
        }
    }

    /// Notes that something was not recorded before that later events are told by.
    pub(super) fn note_switch(&self, at: u64) {
        self.opened_last.store(at, Ordering::SeqCst);
        let _ = self.opened_first.compare_exchange(0, at, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Notes that returns of some calls may not have been reported.
    pub(super) fn note_pause(&self) {
        self.pauses.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns when it was opened since the last call. One that is being opened may be in two answers.
    pub(super) fn take_openings(&self) -> Option<Opened> {
        let first = self.opened_first.swap(0, Ordering::SeqCst);
        (first != 0).then(|| Opened { first, last: self.opened_last.load(Ordering::SeqCst).max(first) })
    }

    /// Contains no launch from now on, whatever its conditions.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
    }

    #[inline]
    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Returns how often the backend was paused.
    #[inline]
    pub(super) fn pauses(&self) -> u32 {
        self.pauses.load(Ordering::Relaxed)
    }

    fn is_due(&self) -> bool {
        let of_profiler = self.conditions & window::PROFILER == 0 || self.is_profiling.load(Ordering::SeqCst);
        let of_ranges = self.conditions & window::NVTX == 0 || nvtx::is_inside();
        self.is_due.load(Ordering::SeqCst) && of_profiler && of_ranges
    }

    /// Takes the right to change it; `None` if another thread is doing so.
    fn change(&self) -> Option<Change<'_>> {
        (!self.is_changing.swap(true, Ordering::SeqCst)).then(|| Change(self))
    }
}

/// The right to change the window. No lock: whoever finds it taken goes on, and its holder looks
/// again before it is done.
struct Change<'a>(&'a Window);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.is_changing.store(false, Ordering::SeqCst);
    }
}

impl Agent {
    /// Whether the program's profiler switches the window.
    pub fn follows_profiler(&self) -> bool {
        self.window.conditions & window::PROFILER != 0
    }

    /// Handles the program's own start or stop of its profiler.
    pub fn profiler_switched(&'static self, on: bool) {
        self.window.is_profiling.store(on, Ordering::SeqCst);
        self.settle_or_leave();
    }

    /// Handles the tracer's wish to record from now on.
    pub(super) fn record(&self) {
        self.window.is_due.store(true, Ordering::SeqCst);
    }

    /// Opens or closes the window as its conditions say; ends the run if that fails.
    pub(crate) fn settle_or_leave(&'static self) {
        if let Err(refusal) = self.settle() {
            self.end_with(refusal);
        }
    }

    /// Opens or closes the window as its conditions say. If another thread is doing so, waits for it a while, and looks
    /// again: what the caller does next may belong to the window, which the other thread may only be about to open.
    ///
    /// # Errors
    /// The backend refuses to record.
    pub(super) fn settle(&'static self) -> Result<(), Refusal> {
        while self.is_recording() && self.window.is_due() != self.window.is_open() {
            let Some(_change) = self.window.change() else {
                if self.wait_for_change() {
                    continue;
                }
                return Ok(());
            };
            match self.window.is_due() {
                true => self.open()?,
                false => self.close(),
            }
        }
        Ok(())
    }

    /// Runs something while no thread opens or closes the window; it is told whether the backend records. `None` if
    /// another thread takes too long to do so.
    pub(super) fn while_window_stays<R>(&self, run: impl FnOnce(bool) -> R) -> Option<R> {
        self.wait_for_change();
        let _change = self.window.change()?;
        Some(run(self.window.is_resumed.load(Ordering::Acquire)))
    }

    /// Waits while another thread opens or closes the window; returns false if that takes too long.
    fn wait_for_change(&self) -> bool {
        let until = Instant::now() + PATIENCE;
        while self.window.is_changing.load(Ordering::SeqCst) {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        true
    }

    fn open(&'static self) -> Result<(), Refusal> {
        if !self.window.is_resumed.swap(true, Ordering::AcqRel) {
            self.backend.switch(self, &Order::NONE, &self.switching.armed())?;
        }
        if !self.window.is_open() {
            let told = &self.memory.region.control().window;
            let at = now();
            self.window.note_opening(at);
            told.open_since.store(at, Ordering::Relaxed);
            told.openings.fetch_add(1, Ordering::Release);
            self.window.is_open.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn close(&self) {
        if !self.window.is_open.swap(false, Ordering::AcqRel) {
            return;
        }
        let told = &self.memory.region.control().window;
        let closed_at = now();
        self.window.closed_at.store(closed_at, Ordering::Relaxed);
        let since = told.open_since.swap(0, Ordering::Relaxed);
        told.nanos.fetch_add(closed_at.saturating_sub(since), Ordering::Release);
    }

    /// Pauses the backend if the window has been closed for a while. Called by the control thread.
    pub(super) fn pause_if_idle(&'static self) {
        let window = &self.window;
        if window.is_open() || !window.is_resumed.load(Ordering::Acquire) || !self.has_been_closed_long() {
            return;
        }
        if let Some(_change) = window.change()
            && !window.is_open()
            && !window.is_due()
        {
            // It only takes back: nothing can be refused.
            let _ = self.backend.switch(self, &self.switching.armed(), &Order::NONE);
            window.note_pause();
            self.forget_calls();
            window.is_resumed.store(false, Ordering::Release);
        }
        // Whoever wanted to open it meanwhile has left that to us.
        self.settle_or_leave();
    }

    fn has_been_closed_long(&self) -> bool {
        let closed = now().saturating_sub(self.window.closed_at.load(Ordering::Relaxed));
        closed >= self.flush_period.as_nanos() as u64
    }

    /// Closes the window for good, as the run or the program ends.
    pub(super) fn close_for_good(&self) {
        if self.window.conditions != 0 {
            self.window.is_due.store(false, Ordering::SeqCst);
            self.close();
        }
    }

    /// Ends the run.
    pub(super) fn disarm(&self) {
        self.life.disarmed.store(true, Ordering::Release);
        self.wake();
    }
}

/// Opens or closes the window of the armed run, if there is one.
pub(crate) fn ranges_changed() {
    if let Some(agent) = super::current().filter(|it| it.window.conditions & window::NVTX != 0 && it.is_ours()) {
        agent.guarded(|| agent.settle_or_leave());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_get_the_right_to_change_it_takes_it_from_nobody() {
        let window = Window::new(window::PROFILER);
        let holder = window.change();
        assert!(holder.is_some());
        assert!(window.change().is_none());
        assert!(window.change().is_none(), "the first attempt has released the holder's right");
        drop(holder);
        assert!(window.change().is_some());
    }
}
