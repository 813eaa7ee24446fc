//! Releases CUPTI while the program continues.

use super::calls::IDS;
use super::others::{OTHER, OURS};
use super::{CuptiBackend, FINALIZE_TESTED, POOL};
use crate::agent::Agent;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long to wait for a CUDA call on whose return CUPTI can be unloaded. Shorter than the tracer
/// waits for our final message.
const FINALIZE_PATIENCE: Duration = Duration::from_millis(700);

const STAYS_LOADED: &str =
    "CUPTI stays loaded in the process: each launch may cost about 0.4 us more until the process exits";
const NO_CALL_CAME: &str = "no CUDA call returned in time to unload CUPTI: each launch may cost about \
                            0.4 us more until the process exits";

/// Who unloads CUPTI, and whether that is done.
#[derive(Debug, Default)]
pub(super) struct Teardown(AtomicU32);

/// Steps of unloading.
const NOT_WANTED: u32 = 0;
/// The next callback that returns may do it.
const WANTED: u32 = 1;
/// A callback is doing it.
const RUNNING: u32 = 2;
const DONE: u32 = 3;

impl Teardown {
    #[inline]
    fn is(&self, step: u32) -> bool {
        self.0.load(Ordering::Acquire) == step
    }

    fn set(&self, step: u32) {
        self.0.store(step, Ordering::Release);
    }

    /// Whether the caller made this step.
    fn step(&self, from: u32, to: u32) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

impl CuptiBackend {
    /// Unloads CUPTI if that is safe, else unsubscribes; returns what stays behind. Callbacks alone leave nothing
    /// behind after unsubscribing.
    pub(super) fn let_go(&'static self, agent: &'static Agent) -> Option<&'static str> {
        let left_behind = if !self.has_activities(agent) {
            None
        } else if !self.may_finalize(agent) {
            Some(STAYS_LOADED)
        } else if self.wait_for_finalize(agent) {
            return None;
        } else {
            Some(NO_CALL_CAME)
        };
        self.give_up_teardown(agent);
        left_behind
    }

    /// Waits for a callback to unload CUPTI.
    fn wait_for_finalize(&'static self, agent: &'static Agent) -> bool {
        if !self.enable_callbacks_to_finalize() {
            return false;
        }
        self.teardown.set(WANTED);
        let until = Instant::now() + FINALIZE_PATIENCE;
        while !self.teardown.is(DONE) {
            if self.teardown.is(WANTED) && (Instant::now() >= until || agent.is_exiting()) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Any call's return will do. Without our own subscription there is none.
    fn enable_callbacks_to_finalize(&self) -> bool {
        !self.subscriber.load(Ordering::Acquire).is_null()
            && IDS.iter().all(|it| self.enable_callback(it.domain, it.id, true).is_ok())
    }

    /// Unsubscribes without unloading, unless a callback is just unloading.
    fn give_up_teardown(&self, agent: &Agent) {
        if self.teardown.step(NOT_WANTED, DONE) || self.teardown.step(WANTED, DONE) {
            self.give_subscription_up();
        }
        while self.teardown.is(RUNNING) && !agent.is_exiting() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends our use of the subscription. It stays, without our ids, where another user needs it.
    pub(super) fn give_subscription_up(&self) {
        if !OTHER.needs_subscription() {
            return self.unsubscribe();
        }
        OURS.drain(|domain, id| {
            let _ = self.enable_callback(domain, id, false);
        });
        OTHER.keep(self.subscriber.swap(std::ptr::null_mut(), Ordering::AcqRel));
    }

    pub(super) fn unsubscribe(&self) {
        OURS.drain(|_, _| ());
        let handle = self.subscriber.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if let (Some(unsubscribe), false) = (self.cupti.unsubscribe, handle.is_null()) {
            // SAFETY: our own subscription, given up once.
            unsafe { unsubscribe(handle) };
        }
    }

    /// Handles the return of an outermost call, where CUPTI may be unloaded.
    #[inline]
    pub(super) fn on_outermost_exit(&self, agent: &Agent) {
        if self.teardown.is(WANTED) {
            self.finalize_here(agent);
        }
    }

    #[cold]
    fn finalize_here(&self, agent: &Agent) {
        if !agent.is_ours() || !self.may_finalize(agent) || !self.teardown.step(WANTED, RUNNING) {
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
        self.teardown.set(DONE);
    }

    /// Whether this CUPTI is known to survive it and nobody else seems to use it: nobody claimed it, no other
    /// injected tool runs, and our buffers were not taken away (a profiler that registers its own buffers
    /// receives the records instead of us).
    fn may_finalize(&self, agent: &Agent) -> bool {
        let taken_away =
            self.has_activities(agent) && agent.calls_made() > 0 && !self.saw_records.load(Ordering::Relaxed);
        self.cupti.finalize.is_some()
            && FINALIZE_TESTED.contains(&self.cupti.version())
            && !self.is_chained
            && !OTHER.was_seen()
            && !taken_away
    }
}
