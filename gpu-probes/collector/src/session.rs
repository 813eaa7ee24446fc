//! One armed run: everything that callbacks need, reachable from CUPTI's user data and from one
//! process-wide pointer. Sessions are never freed, because a callback may still be running in
//! one; there are as many as there were runs that armed this process.

use crate::activity::{self, Origin, Pool};
use crate::calls::{IDS, Params, REQUIRED};
use crate::cupti::{
    self, ATTRIBUTE_PER_THREAD_BUFFER, ATTRIBUTE_ZEROED_BUFFERS, CallbackFunction, Cupti, FLUSH_FORCED, Handle,
    KIND_CONCURRENT_KERNEL, SUCCESS,
};
use crate::intern::{Names, NoId, Stacks, Text};
use crate::launch::Counters;
use crate::mappings::Mappings;
use crate::output::{self, Output, Patience, Role};
use crate::region::{Region, Tags};
use crate::rendezvous::Socket;
use crate::stack::Modules;
use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use xputrace_wire::message::{BYE, Message, demand};
use xputrace_wire::record::{Clock, Flush, Thread, kind};
use xputrace_wire::region::Lost;

/// What CUPTI left in a driver library: how to ask whether a stream is being captured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Driver {
    /// `cuStreamIsCapturing(stream, &status)`.
    pub is_capturing: Option<unsafe extern "C" fn(Handle, *mut u32) -> u32>,
    /// The same for the variant whose default stream is the thread's own.
    pub is_capturing_ptsz: Option<unsafe extern "C" fn(Handle, *mut u32) -> u32>,
}

impl Driver {
    /// Whether a launch with these parameters would be recorded into a graph.
    pub(crate) fn is_capturing(&self, params: &Params) -> bool {
        let ask =
            if params.per_thread_stream { self.is_capturing_ptsz.or(self.is_capturing) } else { self.is_capturing };
        let mut status = 0;
        // SAFETY: the stream of the launch that is being made, and a live u32.
        ask.is_some_and(|ask| unsafe { ask(params.stream as Handle, &mut status) == 0 } && status != 0)
    }
}

/// What a run asks of this process, and what it is given to work with.
#[derive(Debug)]
pub struct Setup {
    pub cupti: Cupti,
    pub driver: Driver,
    /// Bits of `message::demand`.
    pub demand: u64,
    pub flush_period: Duration,
    pub region: Region,
    pub tags: Option<Tags>,
    pub socket: Socket,
    /// Another injected tool runs in this process: CUPTI is not torn down on leaving.
    pub chained: bool,
}

/// States of a session, in order.
mod state {
    pub(super) const ARMING: u32 = 0;
    pub(super) const ARMED: u32 = 1;
    /// Recording is over; the last flush is being made.
    pub(super) const ENDING: u32 = 2;
    /// All is flushed and disabled: the next callback that returns may tear CUPTI down.
    pub(super) const LEAVING: u32 = 3;
    /// A callback has taken that on itself.
    pub(super) const FINALIZING: u32 = 4;
    pub(super) const LEFT: u32 = 5;
}

/// An armed run.
#[derive(Debug)]
pub struct Session {
    state: AtomicU32,
    /// [`FORKS`] when it was made: another number means we are in a forked child.
    forks: u32,
    pub(crate) pid: u32,
    pub(crate) cupti: Cupti,
    pub(crate) driver: Driver,
    demand: u64,
    pub(crate) flush_period: Duration,
    pub(crate) region: Region,
    pub(crate) tags: Option<Tags>,
    pub(crate) socket: Socket,
    chained: bool,
    subscriber: AtomicPtr<c_void>,
    pub(crate) names: Names,
    pub(crate) stacks: Stacks,
    pub(crate) modules: Modules,
    mappings: Mappings,
    counters: Vec<Counters>,
    /// Rings given back so far.
    pub(crate) released: AtomicU64,
    pub(crate) open_captures: AtomicU32,
    /// Streams created so far; 0 where CUPTI does not tell.
    pub(crate) stream_epoch: AtomicU64,
    /// Completions of buffers that are running.
    completing: AtomicU32,
    flushing: AtomicBool,
    pub(crate) tracer_gone: AtomicBool,
    pub(crate) exiting: AtomicBool,
    kernels_seen: AtomicU64,
    /// BYE was said.
    gone: AtomicBool,
}

/// The session that CUPTI's buffers, exit and fork belong to.
static CURRENT: AtomicPtr<Session> = AtomicPtr::new(std::ptr::null_mut());
/// Forks between the loading of this library and this process.
static FORKS: AtomicU32 = AtomicU32::new(0);
static POOL: OnceLock<Pool> = OnceLock::new();

/// Waiting for room in a ring, for one buffer of kernels.
const BUFFER_PATIENCE: Duration = Duration::from_millis(250);
/// Waiting for a CUDA call from whose return CUPTI can be torn down.
/// Shorter than the tracer waits for our last word.
const FINALIZE_PATIENCE: Duration = Duration::from_millis(700);

/// The session that is armed or leaving, if any.
pub(crate) fn current() -> Option<&'static Session> {
    // SAFETY: null, or a leaked session.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// Whether this process is a child, by fork, of the one that loaded this library.
pub(crate) fn is_forked() -> bool {
    FORKS.load(Ordering::Relaxed) != 0
}

/// First of all in a forked child: nothing of the parent's session is touched again.
pub(crate) unsafe extern "C" fn in_forked_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    let session = CURRENT.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // The parent's connection ends with the parent, not with its last child.
    // SAFETY: null, or a leaked session; `close` may be called between fork and exec.
    if let Some(session) = unsafe { session.as_ref() } {
        // SAFETY: the child's copy of the descriptor, which it does not use.
        unsafe { libc::close(session.socket.raw()) };
    }
}

/// At exit of the process.
pub(crate) extern "C" fn at_process_exit() {
    let _ = std::panic::catch_unwind(|| {
        if let Some(session) = current() {
            session.leave_at_exit();
        }
    });
}

/// CLOCK_MONOTONIC in nanoseconds.
#[inline]
pub(crate) fn now() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

#[inline]
fn clock(which: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live timespec; the call cannot fail for these clocks.
    unsafe { libc::clock_gettime(which, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Why arming failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// CUPTI's result, 0 where it was not CUPTI.
    pub result: u32,
    pub text: String,
}

impl From<String> for Refusal {
    fn from(text: String) -> Self {
        Refusal { result: 0, text }
    }
}

impl Session {
    /// Arms what the demand says, and makes the session the current one.
    ///
    /// # Errors
    /// What CUPTI refused, undone as far as it had been done.
    pub(crate) fn arm(setup: Setup) -> Result<&'static Session, Refusal> {
        let session: &'static Session = Box::leak(Box::new(Session::new(setup)?));
        session.modules.refresh();
        CURRENT.store(std::ptr::from_ref(session).cast_mut(), Ordering::Release);
        // Recording begins before CUPTI does, so that nothing it delivers is turned away.
        session.state.store(state::ARMED, Ordering::Release);
        if let Err(refusal) = session.arm_callbacks().and_then(|()| session.arm_activity()) {
            session.undo();
            return Err(refusal);
        }
        session.write_first_records();
        Ok(session)
    }

    fn new(setup: Setup) -> Result<Self, Refusal> {
        let memory = |error: std::io::Error| Refusal::from(format!("reserving memory for tables: {error}"));
        if POOL.get().is_none() {
            let _ = POOL.set(Pool::new().map_err(memory)?);
        }
        let rings = setup.region.shape().rings;
        let mut counters: Vec<Counters> = (0..rings).map(|_| Counters::default()).collect();
        counters.push(Counters { shared: true, ..Counters::default() });
        Ok(Session {
            state: AtomicU32::new(state::ARMING),
            forks: FORKS.load(Ordering::Relaxed),
            pid: std::process::id(),
            cupti: setup.cupti,
            driver: setup.driver,
            demand: setup.demand,
            flush_period: setup.flush_period,
            region: setup.region,
            tags: setup.tags,
            socket: setup.socket,
            chained: setup.chained,
            subscriber: AtomicPtr::default(),
            names: Names::new().map_err(memory)?,
            stacks: Stacks::new().map_err(memory)?,
            modules: Modules::default(),
            mappings: Mappings::default(),
            counters,
            released: AtomicU64::new(0),
            open_captures: AtomicU32::new(0),
            stream_epoch: AtomicU64::new(0),
            completing: AtomicU32::new(0),
            flushing: AtomicBool::new(false),
            tracer_gone: AtomicBool::new(false),
            exiting: AtomicBool::new(false),
            kernels_seen: AtomicU64::new(0),
            gone: AtomicBool::new(false),
        })
    }

    #[inline]
    pub(crate) fn wants(&self, bit: u64) -> bool {
        self.demand & bit != 0
    }

    /// Whether the region is mapped in this process: not in a forked child.
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.forks == FORKS.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn is_recording(&self) -> bool {
        self.state.load(Ordering::Relaxed) == state::ARMED && self.is_ours()
    }

    #[cold]
    pub(crate) fn count_unexpected(&self) {
        if self.is_ours() {
            self.region.count_lost(Lost::Unexpected, 1);
        }
    }

    #[inline]
    pub(crate) fn counters_of(&self, ring: Option<u32>) -> &Counters {
        let shared = self.counters.len() - 1;
        &self.counters[ring.map_or(shared, |it| it as usize).min(shared)]
    }

    // ── arming ──────────────────────────────────────────────────────────────────────────────

    fn arm_callbacks(&'static self) -> Result<(), Refusal> {
        if !self.wants(demand::LAUNCHES) {
            return Ok(());
        }
        self.subscribe()?;
        for it in IDS {
            let answer = self.enable_callback(it.domain, it.id, true)?;
            if answer != SUCCESS && REQUIRED.contains(&(it.domain, it.id)) {
                return Err(self.refusal(&format!("cuptiEnableCallback for {}", it.name), answer));
            }
        }
        if self.wants(demand::STREAMS) {
            let answer = self.enable_callback(cupti::domain::RESOURCE, cupti::RESOURCE_STREAM_CREATED, true)?;
            // Where CUPTI does not tell of new streams, ids are asked for at each launch.
            self.stream_epoch.store(u64::from(answer == SUCCESS), Ordering::Release);
        }
        Ok(())
    }

    fn subscribe(&'static self) -> Result<(), Refusal> {
        let subscribe = self.cupti.subscribe.ok_or_else(|| missing("cuptiSubscribe"))?;
        let mut handle: Handle = std::ptr::null_mut();
        let user_data = std::ptr::from_ref(self).cast_mut().cast();
        // SAFETY: a live pointer; the session and the callback stay for ever.
        let answer = unsafe { subscribe(&mut handle, crate::entry::CALLBACK as CallbackFunction, user_data) };
        if answer != SUCCESS {
            return Err(self.refusal("cuptiSubscribe", answer));
        }
        self.subscriber.store(handle, Ordering::Release);
        Ok(())
    }

    fn enable_callback(&self, domain: u32, id: u32, on: bool) -> Result<u32, Refusal> {
        let enable = self.cupti.enable_callback.ok_or_else(|| missing("cuptiEnableCallback"))?;
        // SAFETY: our own subscription.
        Ok(unsafe { enable(u32::from(on), self.subscriber.load(Ordering::Acquire), domain, id) })
    }

    fn arm_activity(&self) -> Result<(), Refusal> {
        if !self.wants(demand::KERNELS) {
            return Ok(());
        }
        let register = self.cupti.register_callbacks.ok_or_else(|| missing("cuptiActivityRegisterCallbacks"))?;
        let enable = self.cupti.enable.ok_or_else(|| missing("cuptiActivityEnable"))?;
        self.cupti.flush_all.ok_or_else(|| missing("cuptiActivityFlushAll"))?;
        self.cupti.next_record.ok_or_else(|| missing("cuptiActivityGetNextRecord"))?;
        // Neither is needed: without them CUPTI zeroes buffers itself, and takes one a thread.
        self.set_attribute(ATTRIBUTE_ZEROED_BUFFERS, 1);
        self.set_attribute(ATTRIBUTE_PER_THREAD_BUFFER, 0);
        // SAFETY: functions that stay for ever.
        let answer = unsafe { register(crate::entry::request_buffer, crate::entry::complete_buffer) };
        if answer != SUCCESS {
            return Err(self.refusal("cuptiActivityRegisterCallbacks", answer));
        }
        // SAFETY: no pointers.
        let answer = unsafe { enable(KIND_CONCURRENT_KERNEL) };
        if answer != SUCCESS {
            return Err(self.refusal("cuptiActivityEnable for kernels", answer));
        }
        Ok(())
    }

    fn set_attribute(&self, attribute: u32, value: u8) {
        let (mut value, mut size) = (value, 1usize);
        if let Some(set) = self.cupti.set_attribute {
            // SAFETY: one byte and its size, both live.
            unsafe { set(attribute, &mut size, (&raw mut value).cast()) };
        }
    }

    fn refusal(&self, attempted: &str, result: u32) -> Refusal {
        Refusal { result, text: format!("{attempted}: {}", self.cupti.explain(result)) }
    }

    /// Takes back what arming did, where it cannot go on.
    pub(crate) fn abandon(&self) {
        self.undo();
    }

    fn undo(&self) {
        self.state.store(state::LEFT, Ordering::Release);
        self.disable_activity();
        self.unsubscribe();
        self.forget();
    }

    fn write_first_records(&'static self) {
        let mut comm = [0u8; 16];
        if let Ok(text) = std::fs::read("/proc/self/comm") {
            let text = text.strip_suffix(b"\n").unwrap_or(&text);
            let len = text.len().min(comm.len() - 1);
            comm[..len].copy_from_slice(&text[..len]);
        }
        let thread = Thread { tid: self.pid, reserved: 0, comm };
        self.write_waiting(kind::THREAD, &thread, &[]);
        self.mappings.changed();
        self.send_mappings();
    }

    // ── at a launch ─────────────────────────────────────────────────────────────────────────

    /// A stream was created: its handle may be that of an earlier one.
    pub(crate) fn on_stream_created(&self) {
        self.stream_epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// An outermost launch call returns: the place where CUPTI may be torn down.
    #[inline]
    pub(crate) fn on_outermost_exit(&self) {
        if self.state.load(Ordering::Relaxed) == state::LEAVING {
            self.finalize_here();
        }
    }

    #[cold]
    fn finalize_here(&self) {
        let (leaving, finalizing) = (state::LEAVING, state::FINALIZING);
        if !self.is_ours()
            || !self.may_finalize()
            || self.state.compare_exchange(leaving, finalizing, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
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
        self.state.store(state::LEFT, Ordering::Release);
    }

    /// Whether this CUPTI is known to survive it and nobody else seems to use it: no other
    /// injected tool, and our buffers were not taken away (a profiler that registers its own
    /// buffers receives the records in our place).
    fn may_finalize(&self) -> bool {
        let launched: u64 = self.counters.iter().map(|it| it.launches.load(Ordering::Relaxed)).sum();
        let taken_away = self.wants(demand::KERNELS) && launched > 0 && self.kernels_seen.load(Ordering::Relaxed) == 0;
        self.cupti.finalize.is_some()
            && cupti::FINALIZE_TESTED.contains(&self.cupti.version())
            && !self.chained
            && !taken_away
    }

    // ── activity buffers ────────────────────────────────────────────────────────────────────

    /// Kernels of a completed buffer → the completing thread's ring.
    ///
    /// # Safety
    /// CUPTI filled `valid` bytes at `buffer` and does not use them any more.
    pub(crate) unsafe fn complete(&'static self, buffer: *mut u8, valid: usize) {
        let Some(pool) = POOL.get() else { return };
        match pool.origin(buffer) {
            Origin::Pool(n) => {
                self.completing.fetch_add(1, Ordering::AcqRel);
                // A panic in here must not leave the flush waiting, nor the buffer lost.
                let delivered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    // SAFETY: the caller's promise.
                    unsafe { self.deliver(buffer, valid) };
                }));
                self.completing.fetch_sub(1, Ordering::AcqRel);
                pool.give_back(n);
                if let Err(panic) = delivered {
                    std::panic::resume_unwind(panic);
                }
            }
            Origin::Discard => {
                let lost = valid / activity::KERNEL_RECORD_BYTES;
                self.region.count_lost(Lost::ActivityRingFull, lost as u64);
            }
            Origin::Foreign => self.count_unexpected(),
        }
    }

    unsafe fn deliver(&'static self, buffer: *mut u8, valid: usize) {
        let mut tally = Tally::default();
        let mut patience = Patience::new(self, BUFFER_PATIENCE);
        let wrote = output::with(self, Role::Service, |out| {
            out.write_waiting(&mut patience, kind::CLOCK, &read_clocks(), &[]);
            // SAFETY: the caller's promise.
            unsafe {
                self.for_each_record(buffer, valid, |it| self.deliver_record(it, Some(out), &mut patience, &mut tally))
            };
        });
        if wrote.is_none() {
            // SAFETY: as above.
            unsafe {
                self.for_each_record(buffer, valid, |it| self.deliver_record(it, None, &mut patience, &mut tally))
            };
        }
        tally.publish(self);
    }

    unsafe fn for_each_record(&self, buffer: *mut u8, valid: usize, mut each: impl FnMut(*const u8)) {
        let Some(next) = self.cupti.next_record else { return };
        let mut record: *mut u8 = std::ptr::null_mut();
        // SAFETY: the buffer that CUPTI filled, and its own cursor.
        while valid > 0 && unsafe { next(buffer, valid, &mut record) } == SUCCESS && !record.is_null() {
            each(record);
        }
    }

    fn deliver_record(&self, record: *const u8, out: Option<&mut Output>, patience: &mut Patience, tally: &mut Tally) {
        // SAFETY: a record that CUPTI stepped to.
        if !activity::is_kernel(unsafe { activity::kind(record) }) {
            tally.unexpected += 1;
            return;
        }
        // SAFETY: a kernel record.
        let (mut kernel, name) = unsafe { activity::kernel(record) };
        tally.kernels += 1;
        tally.kernel_nanos += kernel.end.saturating_sub(kernel.start);
        tally.no_timestamps += u64::from(kernel.end == 0);
        let Some(out) = out else {
            tally.no_ring += 1;
            return;
        };
        kernel.symbol = self.kernel_name(name, out, patience, tally);
        tally.ring_full += u64::from(!out.write_waiting(patience, kind::KERNEL, &kernel, &[]));
    }

    fn kernel_name(&self, name: *const c_char, out: &mut Output, patience: &mut Patience, tally: &mut Tally) -> u32 {
        if name.is_null() {
            return 0;
        }
        let tell = |id, text: &[u8]| {
            let body = xputrace_wire::record::Name { id, len: text.len() as u32 };
            out.write_waiting(patience, kind::NAME, &body, text)
        };
        // SAFETY: CUPTI's name of a kernel, a C string.
        match unsafe { self.names.intern(name, Text::Symbol, tell) } {
            Ok(id) => id,
            Err(NoId::TableFull) => {
                tally.name_table_full += 1;
                0
            }
            Err(NoId::NotTold) => 0,
        }
    }

    // ── flushing ────────────────────────────────────────────────────────────────────────────

    /// Asks CUPTI for finished kernels and writes a Flush record behind them.
    pub(crate) fn flush(&'static self, how: Flushing) {
        if !self.is_ours() {
            return;
        }
        self.flushing.store(true, Ordering::Release);
        let began = now();
        let flushed = !self.wants(demand::KERNELS) || self.flush_activity(how);
        self.publish_totals();
        if self.mappings.changed() {
            self.modules.refresh();
            self.send_mappings();
        }
        let last = how != Flushing::Regular;
        if flushed || last {
            self.write_waiting(kind::FLUSH, &Flush { began, last: u64::from(last) }, &[]);
            self.region.control().totals.flushes.fetch_add(1, Ordering::Relaxed);
        }
        self.flushing.store(false, Ordering::Release);
    }

    fn flush_activity(&self, how: Flushing) -> bool {
        let Some(flush) = self.cupti.flush_all else { return false };
        let flag = if how == Flushing::AtExit { FLUSH_FORCED } else { 0 };
        // SAFETY: from an ordinary thread of ours or from atexit, no lock held.
        let answer = unsafe { flush(flag) };
        let delivered = self.wait_for_completions(Duration::from_millis(300));
        self.count_dropped();
        if answer != SUCCESS {
            self.count_unexpected();
        }
        answer == SUCCESS && delivered
    }

    /// Buffers that CUPTI's own thread was completing meanwhile belong to the flush.
    fn wait_for_completions(&self, at_most: Duration) -> bool {
        let until = Instant::now() + at_most;
        while self.completing.load(Ordering::Acquire) != 0 {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        true
    }

    fn count_dropped(&self) {
        let Some(ask) = self.cupti.dropped_records else { return };
        let mut dropped = 0usize;
        // SAFETY: a live usize; context and stream are ignored by CUPTI.
        if unsafe { ask(std::ptr::null_mut(), 0, &mut dropped) } == SUCCESS && dropped > 0 {
            self.region.count_lost(Lost::CuptiDropped, dropped as u64);
        }
    }

    /// Sums the rings' counters into the control page.
    pub(crate) fn publish_totals(&self) {
        let totals = &self.region.control().totals;
        let publish = |to: &AtomicU64, of: fn(&Counters) -> &AtomicU64| {
            to.store(self.counters.iter().map(|it| of(it).load(Ordering::Relaxed)).sum(), Ordering::Relaxed);
        };
        publish(&totals.launches, |it| &it.launches);
        publish(&totals.graph_launches, |it| &it.graph_launches);
        publish(&totals.failed_launches, |it| &it.failed);
        publish(&totals.captured_launches, |it| &it.captured);
        publish(&totals.callback_nanos, |it| &it.callback_nanos);
    }

    fn send_mappings(&'static self) {
        if self.wants(demand::MAPPINGS) {
            self.mappings.send(|mapping, path| self.write_waiting(kind::MAPPING, mapping, path));
        }
    }

    fn write_waiting<T: zerocopy::IntoBytes + zerocopy::Immutable>(&'static self, kind: u16, body: &T, tail: &[u8]) {
        let mut patience = Patience::new(self, BUFFER_PATIENCE);
        match output::with(self, Role::Service, |out| out.write_waiting(&mut patience, kind, body, tail)) {
            Some(true) => {}
            Some(false) => self.region.count_lost(Lost::ActivityRingFull, 1),
            None => output::count_no_ring(self, 1),
        }
    }

    // ── leaving ─────────────────────────────────────────────────────────────────────────────

    /// Ends the run: last flush, CUPTI let go of, BYE. Called by the control thread.
    pub(crate) fn leave(&'static self) {
        let mut notes = Vec::new();
        // Launches are recorded until kernels are not, so that no kernel lacks its launch. Flushed
        // once while records are on, for what has finished; once more for what the end sets free.
        if self.state.load(Ordering::Acquire) == state::ARMED {
            self.flush(Flushing::Regular);
            self.disable_activity();
        }
        let (armed, ending) = (state::ARMED, state::ENDING);
        if self.state.compare_exchange(armed, ending, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        self.flush(Flushing::Leaving);
        if !self.may_finalize() {
            self.let_go();
            if self.wants(demand::KERNELS) {
                notes.push("CUPTI stays loaded in the process: each launch may cost about 0.4 µs more until it exits");
            }
        } else if !self.wait_for_finalize() {
            self.let_go();
            if self.wants(demand::KERNELS) {
                notes.push(
                    "no CUDA call came from whose return CUPTI could be torn down: each launch may cost about 0.4 µs more until the process exits",
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
        self.state.store(state::LEAVING, Ordering::Release);
        let until = Instant::now() + FINALIZE_PATIENCE;
        while self.state.load(Ordering::Acquire) != state::LEFT {
            let waiting = self.state.load(Ordering::Acquire) == state::LEAVING;
            if waiting && (Instant::now() >= until || self.exiting.load(Ordering::Acquire)) {
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
        let stop = |it: u32| (it == state::ENDING || it == state::LEAVING).then_some(state::LEFT);
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, stop).is_ok() {
            self.unsubscribe();
        }
        while self.state.load(Ordering::Acquire) == state::FINALIZING && !self.exiting.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn unsubscribe(&self) {
        let handle = self.subscriber.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if let (Some(unsubscribe), false) = (self.cupti.unsubscribe, handle.is_null()) {
            // SAFETY: our own subscription, given up once.
            unsafe { unsubscribe(handle) };
        }
    }

    fn disable_activity(&self) {
        if let (Some(disable), true) = (self.cupti.disable, self.wants(demand::KERNELS)) {
            // SAFETY: no pointers.
            unsafe { disable(KIND_CONCURRENT_KERNEL) };
        }
    }

    /// The last flush, forced: kernels that are still running come without an end.
    fn leave_at_exit(&'static self) {
        if !self.is_ours() {
            return;
        }
        self.exiting.store(true, Ordering::Release);
        let (armed, left) = (state::ARMED, state::LEFT);
        if self.state.compare_exchange(armed, left, Ordering::AcqRel, Ordering::Relaxed).is_err() {
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

    fn forget(&self) {
        let this = std::ptr::from_ref(self).cast_mut();
        let _ = CURRENT.compare_exchange(this, std::ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Why a flush is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushing {
    Regular,
    /// The run is over, the program goes on.
    Leaving,
    /// The program ends.
    AtExit,
}

/// A buffer that CUPTI may fill. Never null.
pub(crate) fn request_buffer() -> Option<(*mut u8, usize)> {
    POOL.get().map(Pool::request)
}

/// Takes back a buffer that came after its run was over.
pub(crate) fn drop_buffer(buffer: *const u8) {
    if let Some(pool) = POOL.get()
        && let Origin::Pool(n) = pool.origin(buffer)
    {
        pool.give_back(n);
    }
}

/// What one buffer held.
#[derive(Debug, Default)]
struct Tally {
    kernels: u64,
    kernel_nanos: u64,
    no_timestamps: u64,
    no_ring: u64,
    ring_full: u64,
    name_table_full: u64,
    unexpected: u64,
}

impl Tally {
    fn publish(&self, session: &Session) {
        session.kernels_seen.fetch_add(self.kernels, Ordering::Relaxed);
        let totals = &session.region.control().totals;
        totals.kernels.fetch_add(self.kernels, Ordering::Relaxed);
        totals.kernel_nanos.fetch_add(self.kernel_nanos, Ordering::Relaxed);
        for (what, n) in [
            (Lost::NoTimestamps, self.no_timestamps),
            (Lost::NoRing, self.no_ring),
            (Lost::ActivityRingFull, self.ring_full),
            (Lost::NameTableFull, self.name_table_full),
            (Lost::Unexpected, self.unexpected),
        ] {
            if n > 0 {
                session.region.count_lost(what, n);
            }
        }
    }
}

/// Both clocks, read close together: the tightest of a few tries.
fn read_clocks() -> Clock {
    let read = || {
        let monotonic_before = now();
        let realtime = clock(libc::CLOCK_REALTIME);
        Clock { monotonic_before, realtime, monotonic_after: now() }
    };
    let width = |it: &Clock| it.monotonic_after - it.monotonic_before;
    let mut best = read();
    for _ in 0..4 {
        let next = read();
        if width(&next) < width(&best) {
            best = next;
        }
    }
    best
}

fn missing(function: &str) -> Refusal {
    Refusal::from(format!("this libcupti has no {function}"))
}

/// The functions of the driver that is mapped; empty where there is none.
pub(crate) fn find_driver() -> Driver {
    // SAFETY: only looks at what is mapped; the driver's own functions by their names.
    unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        if library.is_null() {
            return Driver::default();
        }
        let find = |name: &CStr| {
            std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn(Handle, *mut u32) -> u32>>(libc::dlsym(
                library,
                name.as_ptr(),
            ))
        };
        Driver { is_capturing: find(c"cuStreamIsCapturing"), is_capturing_ptsz: find(c"cuStreamIsCapturing_ptsz") }
    }
}
