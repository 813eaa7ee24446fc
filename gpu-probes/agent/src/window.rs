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
use super::{Agent, ArmRefusal, Order, current};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use xputrace_wire::message::window;

/// How long a thread waits for another one that is opening the window.
const PATIENCE: Duration = Duration::from_millis(20);

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
    pub(crate) fn record(&self) {
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
    pub(crate) fn settle(&'static self) -> Result<(), ArmRefusal> {
        while self.is_recording() && self.is_window_to_change() {
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

    /// Whether the window is open and should be closed, or the reverse.
    pub(crate) fn is_window_to_change(&self) -> bool {
        self.window.is_due() != self.window.is_open()
    }

    /// Runs something while no thread opens or closes the window; it is told whether the backend records. `None` if
    /// another thread takes too long to do so.
    pub(crate) fn while_window_stays<R>(&self, run: impl FnOnce(bool) -> R) -> Option<R> {
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

    fn open(&'static self) -> Result<(), ArmRefusal> {
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
    pub(crate) fn pause_if_idle(&'static self) {
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
    pub(crate) fn close_for_good(&self) {
        if self.window.conditions != 0 {
            self.window.is_due.store(false, Ordering::SeqCst);
            self.close();
        }
    }

    /// Ends the run.
    pub(crate) fn disarm(&self) {
        self.life.disarmed.store(true, Ordering::Release);
        self.wake();
    }
}

/// Opens or closes the window of the armed run, if there is one.
pub fn ranges_changed() {
    if let Some(agent) = current().filter(|it| it.window.conditions & window::RANGES != 0 && it.is_ours()) {
        agent.guarded(|| agent.settle_or_leave());
    }
}
