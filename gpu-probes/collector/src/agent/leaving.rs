//! Leaving: at the end of a run or of the program, everything that was asked of the backend is undone.

use super::phase::Phase;
use super::{Agent, CURRENT, Flushing};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use xputrace_wire::message::{BYE, Message};

impl Agent {
    /// Ends the run: last flush, the backend let go of, BYE. Called by the control thread.
    pub(crate) fn leave(&'static self) {
        // Launches are recorded until activities are not, so that none lacks its launch. Flushed
        // once while records are on, for what has finished; once more for what the end sets free.
        if self.life.phase.is(Phase::Armed) {
            self.flush(Flushing::Regular);
            self.backend.stop_activities(self);
        }
        if !self.life.phase.step(Phase::Armed, Phase::Ending) {
            return;
        }
        self.flush(Flushing::Leaving);
        let left_behind = self.backend.leave(self);
        self.life.phase.set(Phase::Left);
        self.publish_totals();
        // In this order: who hears BYE may arm again at once.
        self.forget();
        self.bye(left_behind.unwrap_or_default());
    }

    /// The last flush, forced: what is still running comes without an end.
    pub(super) fn leave_at_exit(&'static self) {
        if !self.is_surely_ours() {
            return;
        }
        self.life.exiting.store(true, Ordering::Release);
        if !self.life.phase.step(Phase::Armed, Phase::Left) {
            // The control thread is at it: it hurries now.
            self.wait_while(|it| !it.life.gone.load(Ordering::Acquire));
            return;
        }
        self.wait_while(|it| it.life.flushing.load(Ordering::Acquire));
        self.flush(Flushing::AtExit);
        self.bye("");
        self.forget();
    }

    fn wait_while(&self, condition: impl Fn(&Self) -> bool) {
        let until = Instant::now() + Duration::from_millis(500);
        while condition(self) && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn bye(&self, notes: &str) {
        self.socket.send(&Message::new(BYE, &[], notes));
        self.socket.shut_down();
        self.life.gone.store(true, Ordering::Release);
    }

    pub(super) fn forget(&self) {
        let this = std::ptr::from_ref(self).cast_mut();
        let _ = CURRENT.compare_exchange(this, std::ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed);
    }
}
