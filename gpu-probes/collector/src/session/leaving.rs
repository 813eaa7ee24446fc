//! Leaving: at the end of a run or of the program, everything that was asked of CUPTI is undone.

use super::{CURRENT, Flushing, POOL, Phase, Refusal, Session};
use crate::calls::IDS;
use crate::cupti::{self, KIND_CONCURRENT_KERNEL};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use xputrace_wire::message::{BYE, Message, demand};

/// Waiting for a CUDA call from whose return CUPTI can be torn down.
/// Shorter than the tracer waits for our last word.
const FINALIZE_PATIENCE: Duration = Duration::from_millis(700);

impl Session {
    /// Ends the run: last flush, CUPTI let go of, BYE. Called by the control thread.
    pub(crate) fn leave(&'static self) {
        let mut notes = Vec::new();
        // Launches are recorded until kernels are not, so that no kernel lacks its launch. Flushed
        // once while records are on, for what has finished; once more for what the end sets free.
        if self.phase.is(Phase::Armed) {
            self.flush(Flushing::Regular);
            self.disable_activity();
        }
        if !self.phase.step(Phase::Armed, Phase::Ending) {
            return;
        }
        self.flush(Flushing::Leaving);
        if !self.may_finalize() {
            self.let_go();
            if self.wants(demand::KERNELS) {
                notes.push("CUPTI stays loaded in the process: each launch may cost about 0.4 us more until it exits");
            }
        } else if !self.wait_for_finalize() {
            self.let_go();
            if self.wants(demand::KERNELS) {
                notes.push(
                    "no CUDA call came from whose return CUPTI could be torn down: each launch may cost about 0.4 us more until the process exits",
                );
            }
        }
        self.publish_totals();
        // In this order: who hears BYE may arm again at once.
        self.forget();
        self.bye(&notes.join("\n"));
    }

    /// Waits for a callback to tear CUPTI down.
    fn wait_for_finalize(&'static self) -> bool {
        if !self.wants(demand::KERNELS) {
            // Callbacks alone leave nothing behind that unsubscribing does not take away.
            return false;
        }
        if self.subscriber.load(Ordering::Acquire).is_null() && self.subscribe_to_finalize().is_err() {
            return false;
        }
        self.phase.set(Phase::Leaving);
        let until = Instant::now() + FINALIZE_PATIENCE;
        while !self.phase.is(Phase::Left) {
            if self.phase.is(Phase::Leaving) && (Instant::now() >= until || self.exiting.load(Ordering::Acquire)) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    fn subscribe_to_finalize(&'static self) -> Result<(), Refusal> {
        self.subscribe()?;
        for it in IDS {
            self.enable_callback(it.domain, it.id, true)?;
        }
        Ok(())
    }

    /// Unsubscribes without tearing down, unless a callback is just doing more.
    fn let_go(&self) {
        if self.phase.step(Phase::Ending, Phase::Left) || self.phase.step(Phase::Leaving, Phase::Left) {
            self.unsubscribe();
        }
        while self.phase.is(Phase::Finalizing) && !self.exiting.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn unsubscribe(&self) {
        let handle = self.subscriber.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if let (Some(unsubscribe), false) = (self.cupti.unsubscribe, handle.is_null()) {
            // SAFETY: our own subscription, given up once.
            unsafe { unsubscribe(handle) };
        }
    }

    pub(super) fn disable_activity(&self) {
        if let (Some(disable), true) = (self.cupti.disable, self.wants(demand::KERNELS)) {
            // SAFETY: no pointers.
            unsafe { disable(KIND_CONCURRENT_KERNEL) };
        }
    }

    /// The last flush, forced: kernels that are still running come without an end.
    pub(super) fn leave_at_exit(&'static self) {
        if !self.is_surely_ours() {
            return;
        }
        self.exiting.store(true, Ordering::Release);
        if !self.phase.step(Phase::Armed, Phase::Left) {
            // The control thread is at it: it hurries now.
            self.wait_while(|it| !it.gone.load(Ordering::Acquire));
            return;
        }
        self.wait_while(|it| it.flushing.load(Ordering::Acquire));
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
        self.gone.store(true, Ordering::Release);
    }

    pub(super) fn forget(&self) {
        let this = std::ptr::from_ref(self).cast_mut();
        let _ = CURRENT.compare_exchange(this, std::ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed);
    }

    #[cold]
    pub(super) fn finalize_here(&self) {
        if !self.is_ours() || !self.may_finalize() || !self.phase.step(Phase::Leaving, Phase::Finalizing) {
            return;
        }
        self.unsubscribe();
        if let Some(finalize) = self.cupti.finalize {
            // SAFETY: in the EXIT of an API callback, nothing of ours enabled any more.
            unsafe { finalize() };
            if let Some(pool) = POOL.get() {
                pool.take_all_back();
            }
        }
        self.phase.set(Phase::Left);
    }

    /// Whether this CUPTI is known to survive it and nobody else seems to use it: no other
    /// injected tool, and our buffers were not taken away (a profiler that registers its own
    /// buffers receives the records in our place).
    fn may_finalize(&self) -> bool {
        let launched: u64 =
            self.counters.iter().flat_map(|it| &it.calls).map(|it| it.made.load(Ordering::Relaxed)).sum();
        let taken_away = self.wants(demand::KERNELS) && launched > 0 && self.kernels_seen.load(Ordering::Relaxed) == 0;
        self.cupti.finalize.is_some()
            && cupti::FINALIZE_TESTED.contains(&self.cupti.version())
            && !self.chained
            && !taken_away
    }
}
