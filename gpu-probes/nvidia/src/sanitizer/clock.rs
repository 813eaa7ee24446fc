//! The timers of the GPUs, for patches: measured by the worker as a context is made, and as its block is copied.

use super::functions::{Functions, SUCCESS};
use super::patching::{Patched, Patching, locked};
use crate::cupti::Handle;
use crate::cupti::driver::Driver;
use crate::cupti::twins::{Calls, GpuTimer, guess};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};
use xputrace_agent::Agent;
use xputrace_wire::device::MOST_CONTEXTS;

/// How long launches of a context wait for its first measurement. It may have to wait for them: what a callback holds isn't known.
const FIRST_WITHIN: Duration = Duration::from_millis(50);
const LOOKS_EVERY: Duration = Duration::from_micros(100);

/// Timers that were loaded as contexts were made: what they need stays for ever.
static LOADED: AtomicUsize = AtomicUsize::new(0);

/// The timer of a context, patched or not.
#[derive(Clone, Debug, Default)]
pub(super) struct CreatedClock {
    pub(super) timer: Arc<Mutex<GpuTimer>>,
    /// Whether it was measured as the context was made, or can't be.
    pub(super) measured: Arc<FirstMeasurement>,
}

/// The timer of a patched context.
#[derive(Clone, Debug)]
pub(super) struct ContextClock {
    /// Only the worker keeps it locked.
    timer: Arc<Mutex<GpuTimer>>,
    /// What handlers add: the word of the block.
    written_nanos: i64,
    /// `None` where nobody reads it, or what handlers add was measured before.
    first: Option<Arc<FirstMeasurement>>,
}

/// Whether launches of a context no longer need to wait for its timer.
#[derive(Debug, Default)]
pub(super) struct FirstMeasurement {
    is_settled: AtomicBool,
}

impl FirstMeasurement {
    fn settle(&self) {
        self.is_settled.store(true, Ordering::Release);
    }

    fn is_settled(&self) -> bool {
        self.is_settled.load(Ordering::Acquire)
    }

    /// Waits until handlers add what was measured, once for all launches of the context, and not for long.
    #[inline]
    pub(super) fn wait(&self) {
        if !self.is_settled() {
            self.wait_for_it();
        }
    }

    #[cold]
    fn wait_for_it(&self) {
        let until = Instant::now() + FIRST_WITHIN;
        while !self.is_settled() && Instant::now() < until {
            sleep(LOOKS_EVERY);
        }
        self.settle();
    }
}

/// Calls of the driver while a context is in use, and so stays.
struct InUse;

impl Calls for InUse {
    fn call<T>(&self, call: impl FnOnce() -> Result<T, u32>) -> Result<T, u32> {
        call()
    }
}

impl ContextClock {
    /// Of a context with this timer, if it has one; what handlers add at first, and by how much that may be wrong. The worker may hold
    /// the timer's lock, and wait for one of the driver's that this thread holds: then it is the guess.
    pub(super) fn new(timer: Option<Arc<Mutex<GpuTimer>>>, is_read: bool) -> (Self, u64) {
        let timer = timer.unwrap_or_else(|| Arc::new(Mutex::new(GpuTimer::new())));
        let first = timer.try_lock().ok().map(|mut it| (it.first(), it.is_settled()));
        let ((written_nanos, error_nanos), is_measured) = first.unwrap_or_else(|| ((guess(), 0), false));
        let first = (is_read && !is_measured).then(Arc::default);
        (ContextClock { timer, written_nanos, first }, error_nanos)
    }

    /// Returns what launches of the context wait for.
    pub(super) fn first(&self) -> Option<Arc<FirstMeasurement>> {
        self.first.clone()
    }

    pub(super) fn written_nanos(&self) -> i64 {
        self.written_nanos
    }
}

impl Patching {
    /// Measures the timer of a context's GPU before any kernel of it runs, if that is soon enough.
    pub(super) fn begin_clock(&self, driver: &Driver, context: usize) {
        let _in_use = locked(&self.in_use);
        let Some(CreatedClock { timer, measured }) = self.state().clock_of(context) else { return };
        if LOADED.fetch_add(1, Ordering::Relaxed) < MOST_CONTEXTS {
            let mut timer = locked(&timer);
            // SAFETY: a context that is alive, and does not end meanwhile.
            unsafe {
                if driver.code.enter(context as Handle).is_ok() {
                    timer.load(&driver.code, &InUse, || driver.code.urgent_stream());
                    if timer.is_due() {
                        // Without an answer it is measured later.
                        let _ = timer.measure(&driver.code, &InUse, false);
                    }
                }
                driver.code.leave();
            }
        }
        measured.settle();
    }

    /// Has the calling thread wait, as a call begins that launches, until the timers of new contexts were measured, and not for long.
    /// Behind this the driver has locks that the worker needs for that.
    #[inline]
    pub(super) fn wait_for_clocks(&self) {
        if self.has_new_clocks.load(Ordering::Acquire) {
            self.wait_for_new_clocks();
        }
    }

    #[cold]
    fn wait_for_new_clocks(&self) {
        let all = self.state().first_measurements();
        all.iter().for_each(|it| it.wait());
        // A context that was made meanwhile is waited for by the next call, so it must not be forgotten.
        let state = self.state();
        if state.first_measurements().iter().all(|it| it.is_settled()) {
            self.has_new_clocks.store(false, Ordering::Release);
        }
    }

    /// Measures the GPU's timer in the current context, if it is time to, and tells handlers and the tracer what isn't told yet. The
    /// kernel that reads it is loaded by the worker: a callback about a module can't load another.
    pub(super) fn set_clock(&self, functions: &Functions, driver: &Driver, agent: &Agent, slot: usize, stream: usize) {
        let Some(region) = agent.device_region() else { return };
        let Some(at) = region.place_of_clock_offset() else { return };
        let Patched { block, clock, timing, .. } = self.state().contexts[slot].clone();
        let mut timer = locked(&clock.timer);
        // SAFETY: the context is current.
        timer.load(&driver.code, &InUse, || unsafe { driver.code.urgent_stream() });
        let has_run = region.control().slots[slot].swapped.load(Ordering::Relaxed) > 0;
        let was_read = has_run || timing.is_some_and(|it| it.was_read());
        timer.set_written(clock.written_nanos);
        // SAFETY: a word of the block.
        let write = |word| unsafe { write_word(functions, block + at, word, stream) };
        timer.bring_up_to_date(&driver.code, &InUse, was_read, write);
        self.state().contexts[slot].clock.written_nanos = timer.written_nanos();
        region.tell_clock(slot, timer.written_nanos(), timer.error_nanos());
        if timer.is_settled() || timer.has_failed() {
            clock.first.iter().for_each(|it| it.settle());
        }
    }

    /// Measures the timers of the GPUs of all contexts, where it is time to.
    pub(super) fn set_clocks(&self, functions: &Functions, driver: &Driver, agent: &Agent) {
        self.each_alive(|slot, context| {
            self.in_context(functions, driver, agent, slot, context, |stream| {
                self.set_clock(functions, driver, agent, slot, stream.api);
            });
        });
    }
}

/// Writes a word of device memory; returns whether it could.
///
/// # Safety
/// `at` is the address of such a word in a context that is alive, `stream` a stream of it.
pub(super) unsafe fn write_word(functions: &Functions, at: u64, word: [u8; 8], stream: usize) -> bool {
    // SAFETY: the caller promises a word in a context that is alive and a stream of it; the bytes outlive the copy.
    unsafe {
        let is_begun =
            (functions.copy_to_device)(at as *mut c_void, word.as_ptr().cast(), word.len(), stream as Handle)
                == SUCCESS;
        is_begun && (functions.wait_for_stream)(stream as Handle) == SUCCESS
    }
}
