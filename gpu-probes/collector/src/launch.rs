//! The launch path: what happens on the application's thread at each call that launches.
//!
//! ```text
//! runtime ENTER ─ driver ENTER ─────────── driver EXIT ─ runtime EXIT
//! start, stack    parameters, marker       (nothing)     Launch record
//! ```
//! A driver call that stands alone does all of it. No lock, no allocation once a thread has
//! made its first launch.

use crate::calls::{self, Call, IDS};
use crate::clock::now;
use crate::cupti::{CallbackData, SITE_ENTER, SITE_EXIT, SUCCESS, domain};
use crate::intern::{NoId, Text};
use crate::output::{self, Output, Role};
use crate::session::Session;
use crate::stack::{Bounds, Frame, WALK_FRAMES, bounds, walk};
use std::cell::RefCell;
use std::ffi::c_char;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use xputrace_wire::message::demand;
use xputrace_wire::record::{Launch, UNKNOWN, kind};
use xputrace_wire::region::{CallTotals, Lost};
use xputrace_wire::{events, marker};

/// One launch in this many is timed for `Totals::callback_nanos`.
const TIMED_EVERY: u32 = 64;
const STREAM_SLOTS: usize = 16;

/// What a thread remembers between its callbacks.
struct Local {
    session: *const Session,
    /// The outermost launch call that has not returned.
    open: Option<Open>,
    launch: Launch,
    symbol: *const c_char,
    api_name: *const c_char,
    /// The driver call has been seen: its parameters are those of the launch.
    submitted: bool,
    /// Nanoseconds of the launch's callbacks so far, where it is a timed one.
    timed: Option<u64>,
    countdown: u32,
    bounds: Option<Bounds>,
    /// Context and device as last asked.
    device: (u32, u32),
    streams: [StreamSlot; STREAM_SLOTS],
    frames: [u64; WALK_FRAMES],
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Open {
    /// Of the call, in [`IDS`].
    index: usize,
    correlation: u32,
    /// Recording was on at ENTER.
    recorded: bool,
}

#[derive(Clone, Copy)]
struct StreamSlot {
    epoch: u64,
    context: u32,
    stream: usize,
    per_thread: bool,
    id: u32,
}

thread_local! {
    /// Without a destructor: callbacks come while threads end.
    static LOCAL: RefCell<Local> = const { RefCell::new(Local::new()) };
}

/// The collector's callback for API calls.
///
/// # Safety
/// `data` is CUPTI's for this call, `frame` the registers with which CUPTI called.
#[inline]
pub(crate) unsafe fn on_call(session: &'static Session, domain: u32, id: u32, data: &CallbackData, frame: Frame) {
    let Some(index) = calls::index_of(domain, id) else { return session.count_unexpected() };
    let call = IDS[index].call;
    match call {
        Call::BeginCapture | Call::EndCapture => on_capture(session, call, data),
        _ => LOCAL.with(|local| {
            let Ok(mut local) = local.try_borrow_mut() else { return session.count_unexpected() };
            local.bind(session);
            match data.site {
                // SAFETY: the caller's promise.
                SITE_ENTER => unsafe { local.enter(session, index, data, frame) },
                SITE_EXIT => local.exit(session, index, data),
                _ => session.count_unexpected(),
            }
        }),
    }
}

/// Keeps the number of open captures, which decides whether launches ask about theirs.
#[cold]
fn on_capture(session: &Session, call: Call, data: &CallbackData) {
    if data.site != SITE_EXIT {
        return;
    }
    if call == Call::BeginCapture && result(data) == 0 {
        session.open_captures.fetch_add(1, Ordering::AcqRel);
    } else if call == Call::EndCapture {
        let less = |it: u32| it.checked_sub(1);
        let _ = session.open_captures.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }
}

impl Local {
    const fn new() -> Self {
        const NO_STREAM: StreamSlot = StreamSlot { epoch: 0, context: 0, stream: 0, per_thread: false, id: 0 };
        Local {
            session: std::ptr::null(),
            open: None,
            launch: NO_LAUNCH,
            symbol: std::ptr::null(),
            api_name: std::ptr::null(),
            submitted: false,
            timed: None,
            // A thread's first launches fill tables, and stand for no others.
            countdown: TIMED_EVERY / 2,
            bounds: None,
            device: (UNKNOWN, UNKNOWN),
            streams: [NO_STREAM; STREAM_SLOTS],
            frames: [0; WALK_FRAMES],
        }
    }

    #[inline]
    fn bind(&mut self, session: &'static Session) {
        if !std::ptr::eq(self.session, session) {
            let bounds = self.bounds;
            *self = Local { session, bounds, ..Local::new() };
        }
    }

    #[inline]
    unsafe fn enter(&mut self, session: &'static Session, index: usize, data: &CallbackData, frame: Frame) {
        let (domain, call) = (IDS[index].domain, IDS[index].call);
        let nested = match self.open {
            Some(open) if is_nested(open, domain, data) => true,
            // The EXIT of the open call never came.
            Some(_) => {
                session.count_unexpected();
                false
            }
            None => false,
        };
        // The clock is read once a launch, but for those whose callbacks are timed.
        let start = if !nested || self.timed.is_some() { now() } else { 0 };
        if !nested {
            let open = Open { index, correlation: data.correlation_id, recorded: session.is_recording() };
            self.open = Some(open);
            if open.recorded {
                self.begin(session, start, call, data, frame);
            }
        }
        let recorded = self.open.is_some_and(|it| it.recorded);
        if recorded && domain == domain::DRIVER && !self.submitted {
            // SAFETY: the caller's promise.
            unsafe { self.submit(session, call, data) };
        }
        if let Some(nanos) = &mut self.timed {
            *nanos += now().saturating_sub(start);
        }
    }

    #[inline]
    fn begin(&mut self, session: &'static Session, start: u64, call: Call, data: &CallbackData, frame: Frame) {
        self.timed = match self.countdown {
            0 => Some(0),
            _ => None,
        };
        self.countdown = self.countdown.checked_sub(1).unwrap_or(TIMED_EVERY - 1);
        self.submitted = false;
        self.symbol = data.symbol_name;
        self.api_name = data.function_name;
        self.launch = Launch {
            start,
            correlation: data.correlation_id,
            tid: output::tid(),
            launch_kind: if call.is_graph() { Launch::GRAPH } else { Launch::KERNEL },
            ..NO_LAUNCH
        };
        if session.wants(demand::STACKS) {
            let is_runtime_call = matches!(call, Call::RuntimeLaunch | Call::RuntimeGraph);
            self.take_stack(session, frame, is_runtime_call);
        }
    }

    #[inline(never)]
    fn take_stack(&mut self, session: &'static Session, frame: Frame, is_runtime_call: bool) {
        self.launch.stack = 0;
        if self.bounds.is_none() {
            self.bounds = bounds();
        }
        if let Some(bounds) = self.bounds {
            // SAFETY: the thread's own stack, from where CUPTI called us to its end.
            let n = unsafe { walk(frame, bounds, &mut self.frames) };
            let frames = session.modules.from_api(&self.frames[..n], is_runtime_call);
            if !frames.is_empty() {
                let told = output::with(session, Role::Launch, |out| {
                    session.stacks.intern(frames, |id, frames| out.write_stack(id, frames))
                });
                match told {
                    Some(Ok(id)) => self.launch.stack = id,
                    Some(Err(NoId::TableFull)) => session.region.count_lost(Lost::StackTableFull, 1),
                    Some(Err(NoId::NotTold)) | None => {}
                }
            }
        }
        if self.launch.stack == 0 {
            self.launch.flags |= Launch::NO_STACK;
        }
    }

    /// Reads the driver call's parameters; runs the handlers at the marker.
    #[inline]
    unsafe fn submit(&mut self, session: &'static Session, call: Call, data: &CallbackData) {
        self.submitted = true;
        if self.symbol.is_null() {
            self.symbol = data.symbol_name;
        }
        self.set_context(session, data);
        // SAFETY: the caller's promise: CUPTI's parameters of this very call.
        if let Some(params) = unsafe { calls::params(call, data.function_params) } {
            self.launch.grid = params.grid;
            self.launch.block = params.block;
            self.launch.dynamic_shared = params.dynamic_shared_bytes;
            if session.open_captures.load(Ordering::Relaxed) != 0 {
                self.mark_captured(session, &params);
            }
            if session.wants(demand::STREAMS) {
                self.launch.stream = self.stream_id(session, data, &params);
            }
        }
        if session.wants(demand::MARKER) {
            self.mark(session);
        }
    }

    #[cold]
    fn mark_captured(&mut self, session: &Session, params: &calls::Params) {
        if session.driver.is_capturing(params) {
            self.launch.flags |= Launch::CAPTURED;
        }
    }

    #[inline]
    fn set_context(&mut self, session: &Session, data: &CallbackData) {
        if data.context.is_null() {
            return;
        }
        self.launch.context = data.context_uid;
        if self.device.0 != data.context_uid {
            self.device = (data.context_uid, device_of(session, data));
        }
        self.launch.device = self.device.1;
    }

    /// CUPTI's id of a stream, remembered until any stream is created (handles are used again).
    #[inline(never)]
    fn stream_id(&mut self, session: &Session, data: &CallbackData, params: &calls::Params) -> u32 {
        let epoch = session.stream_epoch.load(Ordering::Acquire);
        let slot = (params.stream >> 4 ^ params.stream ^ data.context_uid as usize) % STREAM_SLOTS;
        let cached = self.streams[slot];
        let same = cached.context == data.context_uid
            && cached.stream == params.stream
            && cached.per_thread == params.per_thread_stream;
        if epoch != 0 && cached.epoch == epoch && same {
            return cached.id;
        }
        let mut id = UNKNOWN;
        let answered = session.cupti.get_stream_id.is_some_and(|get| {
            let per_thread = u8::from(params.per_thread_stream);
            // SAFETY: the call's own context and stream, and a live u32.
            unsafe { get(data.context, params.stream as *mut _, per_thread, &mut id) == SUCCESS }
        });
        if !answered {
            return UNKNOWN;
        }
        self.streams[slot] = StreamSlot {
            epoch,
            context: data.context_uid,
            stream: params.stream,
            per_thread: params.per_thread_stream,
            id,
        };
        id
    }

    /// Calls the marker, where handlers of the kernel's eBPF sit, and takes the tag they set.
    #[cold]
    fn mark(&mut self, session: &'static Session) {
        let Some(tags) = &session.tags else { return };
        let Some(slot) = output::with(session, Role::Launch, |out| out.ring()) else { return };
        let words = marker::words(&self.launch, session.pid, self.symbol as u64);
        tags.clear(slot);
        crate::xputrace_launch_marker(words.as_ptr(), u64::from(slot));
        if let Some(tag) = tags.tag(slot) {
            self.launch.tag = tag;
            self.launch.flags |= Launch::TAGGED;
        }
    }

    #[inline]
    fn exit(&mut self, session: &'static Session, index: usize, data: &CallbackData) {
        match self.open {
            Some(open) if (open.index, open.correlation) == (index, data.correlation_id) => {
                self.open = None;
                if open.recorded && session.is_ours() {
                    self.finish(session, index, data);
                }
                session.on_outermost_exit();
            }
            // A driver call inside the open one.
            Some(_) => {}
            // Entered before we were armed.
            None => session.on_outermost_exit(),
        }
    }

    #[inline]
    fn finish(&mut self, session: &'static Session, index: usize, data: &CallbackData) {
        let wants_end = session.wants(demand::ENDS);
        let end = if wants_end || self.timed.is_some() { now() } else { 0 };
        self.launch.end = if wants_end { end } else { self.launch.start };
        self.launch.result = result(data);
        if self.launch.context == UNKNOWN {
            self.set_context(session, data);
        }
        let (api_name, symbol, launch) = (self.api_name, self.symbol, &mut self.launch);
        let wrote = output::with(session, Role::Launch, |out| {
            // SAFETY: CUPTI's C string, valid while its call is open.
            launch.api = session.api_names.id(index, || unsafe { name(session, out, api_name, Text::Call) });
            // SAFETY: as above.
            launch.symbol = unsafe { name(session, out, symbol, Text::Symbol) };
            (out.ring(), out.write(kind::LAUNCH, launch, &[]))
        });
        match wrote {
            Some((_, true)) => {}
            Some((_, false)) => session.region.count_lost(Lost::LaunchRingFull, 1),
            None => output::count_no_ring(session, 1),
        }
        let nanos = self.timed.take().map_or(0, |before| (before + now() - end) * u64::from(TIMED_EVERY));
        session.counters_of(wrote.map(|(ring, _)| ring)).add(&self.launch, nanos);
    }
}

/// CUPTI's id of the device of a call's context.
#[cold]
fn device_of(session: &Session, data: &CallbackData) -> u32 {
    let mut device = UNKNOWN;
    let answered = session.cupti.get_device_id.is_some_and(|get| {
        // SAFETY: CUPTI's own context and a live u32.
        unsafe { get(data.context, &mut device) == SUCCESS }
    });
    if answered { device } else { UNKNOWN }
}

const NO_LAUNCH: Launch = Launch {
    start: 0,
    end: 0,
    tag: 0,
    correlation: 0,
    tid: 0,
    api: 0,
    stack: 0,
    symbol: 0,
    result: 0,
    context: UNKNOWN,
    device: UNKNOWN,
    stream: UNKNOWN,
    grid: [0; 3],
    block: [0; 3],
    dynamic_shared: 0,
    launch_kind: 0,
    flags: 0,
};

/// A runtime call and the driver calls inside it are one launch.
#[inline]
fn is_nested(open: Open, domain: u32, data: &CallbackData) -> bool {
    data.correlation_id == open.correlation || domain == domain::DRIVER && IDS[open.index].domain == domain::RUNTIME
}

/// The ids of the calls' names once the tracer was told them: a call's name is one for each of
/// [`IDS`], so that it need not be compared at each launch.
#[derive(Debug)]
pub(crate) struct ApiNames([AtomicU32; IDS.len()]);

impl ApiNames {
    pub(crate) const fn new() -> Self {
        ApiNames([const { AtomicU32::new(0) }; IDS.len()])
    }

    /// The known id, or what `intern` finds; 0 is none.
    #[inline]
    fn id(&self, index: usize, intern: impl FnOnce() -> u32) -> u32 {
        match self.0[index].load(Ordering::Acquire) {
            0 => {
                let id = intern();
                self.0[index].store(id, Ordering::Release);
                id
            }
            known => known,
        }
    }
}

/// # Safety
/// `pointer` is null or a C string.
#[inline]
unsafe fn name(session: &Session, out: &mut Output, pointer: *const c_char, text: Text) -> u32 {
    if pointer.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    match unsafe { session.names.intern(pointer, text, |id, text| out.write_name(id, text)) } {
        Ok(id) => id,
        Err(NoId::TableFull) => {
            session.region.count_lost(Lost::NameTableFull, 1);
            0
        }
        Err(NoId::NotTold) => 0,
    }
}

/// The call's result; `CUresult` and `cudaError_t` are both 32 bits, 0 is success.
#[inline]
fn result(data: &CallbackData) -> i32 {
    if data.return_value.is_null() {
        return 0;
    }
    // SAFETY: at EXIT it points at the result.
    unsafe { data.return_value.cast::<i32>().read_unaligned() }
}

/// One ring's part of the totals: written by the ring's owner alone, summed at each flush, so
/// that launching threads do not fight for a cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    /// By [`events::Call::index`].
    pub(crate) calls: [CallTotals; events::Call::COUNT],
    pub(crate) callback_nanos: AtomicU64,
    /// Threads without a ring share one.
    pub(crate) shared: bool,
}

impl Counters {
    #[inline]
    fn add(&self, launch: &Launch, callback_nanos: u64) {
        if let Some(totals) = launch.call().map(|it| &self.calls[it.index()]) {
            self.bump(&totals.made, 1);
            if launch.result != 0 {
                self.bump(&totals.failed, 1);
            }
            if launch.flags & Launch::CAPTURED != 0 {
                self.bump(&totals.captured, 1);
            }
        }
        if callback_nanos != 0 {
            self.bump(&self.callback_nanos, callback_nanos);
        }
    }

    #[inline]
    fn bump(&self, counter: &AtomicU64, n: u64) {
        if self.shared {
            counter.fetch_add(n, Ordering::Relaxed);
        } else {
            counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        }
    }
}
