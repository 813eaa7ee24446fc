//! Leaving: at the end of a run or of the program, undoes everything requested of the backend.

use super::agent::CURRENT;
use super::phase::Phase;
use super::{Agent, ArmRefusal, Flushing};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use xputrace_wire::message::{BYE, Message, REFUSED};

impl Agent {
    /// Ends the run: last flush, release of the backend, BYE. Called by the control thread.
    pub(crate) fn leave(&'static self) {
        // Launches are recorded until activities are not, so that none lacks its launch. Flushed
        // once while records are on, for what has finished; once more for what the end sets free.
        // Launches that begin from here on are outside, and those before submit their work first.
        self.close_for_good();
        self.window.end();
        self.stop_twins();
        if self.life.phase.is(Phase::Armed) {
            self.wait_for_calls();
            self.flush(Flushing::Regular);
            self.backend.stop_activities(self);
        }
        if !self.life.phase.step(Phase::Armed, Phase::Ending) {
            return;
        }
        self.end_gap();
        self.flush(Flushing::Leaving);
        self.leave_twins();
        if let Some(left_behind) = self.backend.leave(self) {
            let _ = self.life.left_behind.set(left_behind);
        }
        self.life.phase.set(Phase::Left);
        self.publish_totals();
        // The order matters: whoever receives BYE, which the listener sends now, may arm again at
        // once.
        self.forget();
        self.life.gone.store(true, Ordering::Release);
    }

    /// Makes the last, forced flush: activities still running are delivered without an end.
    pub(crate) fn leave_at_exit(&'static self) {
        if !self.is_surely_ours() {
            return;
        }
        self.life.exiting.store(true, Ordering::Release);
        if !self.life.phase.step(Phase::Armed, Phase::Left) {
            // The control thread is doing it, and now hurries.
            self.wait_while(|it| !it.life.gone.load(Ordering::Acquire));
            return;
        }
        self.close_for_good();
        self.wait_while(|it| it.life.flushing.load(Ordering::Acquire));
        self.end_gap();
        self.stop_twins();
        self.leave_twins();
        self.flush(Flushing::AtExit);
        self.forget();
        // The listener sends BYE, or the process ends first.
        self.life.gone.store(true, Ordering::Release);
    }

    fn wait_while(&self, condition: impl Fn(&Self) -> bool) {
        let until = Instant::now() + Duration::from_millis(500);
        while condition(self) && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Whether the last flush is done.
    pub(crate) fn is_gone(&self) -> bool {
        self.life.gone.load(Ordering::Acquire)
    }

    /// Ends the connection. Called by the listener.
    pub(crate) fn end_connection(&self) {
        let left_behind = self.life.left_behind.get().map(|it| it.to_string());
        let notes: Vec<String> =
            left_behind.into_iter().chain(self.take_notes()).chain(self.newly_unsupported_python()).collect();
        if let Some(ArmRefusal { result, text }) = self.life.refusal.get() {
            self.socket.send(&Message::new(REFUSED, &[u64::from(*result)], text.clone()));
        }
        self.socket.send(&Message::new(BYE, &[], notes.join("\n")));
        self.socket.shut_down();
        self.device.close();
        self.life.told.store(true, Ordering::Release);
    }

    /// Whether the tracer was told that the run is over.
    pub fn has_said_bye(&self) -> bool {
        self.life.told.load(Ordering::Acquire)
    }

    pub(crate) fn forget(&self) {
        let this = std::ptr::from_ref(self).cast_mut();
        let _ = CURRENT.compare_exchange(this, std::ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed);
    }
}
