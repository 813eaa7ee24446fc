//! Releases CUPTI while the program continues.
//!
//! CUPTI may be unloaded where a CUDA call returns: of the program, if one thread alone makes calls, or of ours if none does.

use super::calls::IDS;
use super::functions::{CallbackData, FINALIZE_TESTED, SITE_EXIT, SUCCESS};
use super::others::{OTHER, OURS, TWINS};
use super::records::RecordedKinds;
use super::run::{CuptiBackend, POOL};
use super::teardown::{DONE, NOT_WANTED, RUNNING, WANTED};
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use xputrace_agent::clock::now;
use xputrace_agent::{Agent, this_thread};
use xputrace_wire::api::functions;

/// How long to wait for a call of the program on whose return CUPTI can be unloaded, made by the only thread that makes any.
const FINALIZE_PATIENCE: Duration = Duration::from_millis(200);
/// A call that needs no context, and waits for nothing.
const OWN_CALL: &str = "cuDeviceGetCount";

const STAYS_LOADED: &str =
    "CUPTI stays loaded in the process: traced calls may cost about 0.4 us more until the process exits";

thread_local! {
    /// The run on whose behalf this thread calls [`OWN_CALL`].
    static CALLER: Cell<Option<(&'static CuptiBackend, &'static Agent)>> = const { Cell::new(None) };
}

/// Handles a callback that nobody asked for, but perhaps [`CuptiBackend::finalize_by_own_call`].
///
/// # Safety
/// `data` is CUPTI's for a call of the driver or the runtime, null or valid while it runs.
#[cold]
pub(super) unsafe fn on_other_call(data: *const CallbackData) {
    // SAFETY: the caller promises that `data` is CUPTI's for such a call, null or valid while the callback runs.
    if let (Some((backend, agent)), Some(SITE_EXIT)) = (CALLER.get(), unsafe { data.as_ref() }.map(|it| it.site)) {
        agent.guarded(|| backend.finalize_here(agent));
    }
}

impl CuptiBackend {
    /// Unloads CUPTI if that is safe, else unsubscribes; returns what stays behind.
    ///
    /// Without that, calls that were watched take 0.1 to 0.5 us more from then on (seen with 13.0), also those of a run with
    /// callbacks alone.
    pub(super) fn let_go(&'static self, agent: &'static Agent) -> Option<&'static str> {
        self.unwatch_twins();
        let was_used = self.has_records_on(agent) || !self.subscriber.load(Ordering::Acquire).is_null();
        if was_used && self.may_finalize(agent) && self.finalize(agent) {
            return None;
        }
        self.give_up_teardown(agent);
        was_used.then_some(STAYS_LOADED)
    }

    /// Unloads CUPTI; returns whether it could.
    fn finalize(&'static self, agent: &'static Agent) -> bool {
        if !self.enable_callbacks_to_finalize() {
            return false;
        }
        self.teardown.set(WANTED);
        let until = Instant::now() + FINALIZE_PATIENCE;
        while Instant::now() < until && self.teardown.is(WANTED) && !agent.is_exiting() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let is_quiet = || self.teardown.is_quiet(now()) && !agent.is_any_thread_in_call();
        if self.teardown.is(WANTED) && !agent.is_exiting() && is_quiet() {
            self.finalize_by_own_call(agent);
        }
        self.wait_while_finalizing(agent);
        self.teardown.is(DONE)
    }

    /// Makes a CUDA call, on whose return CUPTI is unloaded.
    fn finalize_by_own_call(&'static self, agent: &'static Agent) {
        let id = functions().iter().find(|it| it.name() == OWN_CALL).map(|it| it.id);
        let (Some(id), Some(call)) = (id, self.driver.devices.count) else { return };
        if self.enable_callback(id.domain(), id.callback(), true) != Ok(SUCCESS) {
            return;
        }
        // To us it is none of those that the run watches.
        OURS.set(id.domain(), id.callback(), false);
        CALLER.set(Some((self, agent)));
        let mut count = 0;
        // SAFETY: a live integer.
        unsafe { call(&mut count) };
        CALLER.set(None);
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
        self.wait_while_finalizing(agent);
    }

    /// Waits where a call of the program is just unloading CUPTI.
    fn wait_while_finalizing(&self, agent: &Agent) {
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
        TWINS.drain(|_, _| ());
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
            self.finalize_if_alone(agent);
        }
    }

    #[cold]
    fn finalize_if_alone(&self, agent: &Agent) {
        if self.teardown.returned(this_thread().id(), now(), || agent.is_any_thread_in_call()) {
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
        let taken_away = !RecordedKinds::of(agent.demand()).activities.is_empty()
            && self.has_records_on(agent)
            && agent.calls_made() > 0
            && !self.saw_records.load(Ordering::Relaxed);
        self.cupti.finalize.is_some()
            && FINALIZE_TESTED.contains(&self.cupti.version())
            && !self.is_chained
            && !OTHER.was_seen()
            && !taken_away
    }
}
