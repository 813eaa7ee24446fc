//! The launch path: what happens on the application's thread at each launch call.
//!
//! ```text
//! runtime ENTER ─ driver ENTER ─────────── driver EXIT ─ runtime EXIT
//! start, stack    parameters, marker       (nothing)     Launch record
//! ```
//! A driver call on its own does all of it. No lock, and no allocation after a thread's first
//! launch.
//!
//! Between two launches, CUDA runs so much code of its own that ours is in none of the nearer caches. So what every launch
//! runs is inlined into its callback, and what is rare is out of its way (docs/BENCHMARKS.md).

use super::Agent;
use super::clock::now;
use super::external::{self, External};
use super::intern::{NoId, TextKind};
use super::library::{Context, Layer, Stream, StreamKind};
use super::marker::xputrace_launch_marker;
use super::output::{self, RingRole};
use super::presence;
use super::stack::StackTaken;
use super::state::launch::{LaunchState, NO_LAUNCH, Open, STREAM_SLOTS, StreamSlot, TIMED_EVERY};
use super::state::selection::LastContext;
use super::state::this_thread::{ThisThread, this_thread};
use super::surroundings::{counted, current_ranges, find_name, name, stack_of_call};
use std::ffi::c_char;
use std::hint::cold_path;
use xputrace_unwind::Pushed;
use xputrace_wire::message::demand;
use xputrace_wire::record::{Launch, UNKNOWN, kind};
use xputrace_wire::region::Lost;
use xputrace_wire::{events, marker};

pub use super::intern::MOST_CALLS;

/// A launch call on entry.
#[derive(Clone, Copy, Debug)]
pub struct Entered<'a> {
    /// The backend's number for the call, below [`MOST_CALLS`].
    pub call: usize,
    /// [`Layer::Runtime`] or [`Layer::Driver`].
    pub layer: Layer,
    /// What it submits.
    pub submits: events::Call,
    /// Shared by a runtime call and the driver calls inside it.
    pub correlation: u32,
    /// A C string or null; like the two below, valid until the call returns.
    pub name: *const c_char,
    /// The kernel's mangled name, if the call has one.
    pub symbol: *const c_char,
    /// Registers at the call of the backend.
    pub registers: &'a Pushed,
}

/// The parameters of the work that a call submits.
#[derive(Clone, Copy, Debug)]
pub struct Submission {
    pub context: Option<Context>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared: u32,
    /// Present if the call's parameters are known.
    pub stream: Option<Stream>,
    /// Whether it is captured into a graph and submits nothing now.
    pub is_captured: bool,
    pub records: Records,
}

/// Whether a call produces a record to wait for: of a graph, that of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Records {
    #[default]
    Certain,
    None,
    /// Unknown, or decided while the work runs.
    Possible,
}

impl Records {
    /// What is known of a call without its parameters.
    #[inline]
    pub fn of_any(call: events::Call) -> Records {
        match call {
            events::Call::Graph | events::Call::Memcpy => Records::Possible,
            events::Call::Kernel | events::Call::Memset => Records::Certain,
        }
    }

    /// What is known of a call that has not reached the driver. A copy that never does has nothing to copy.
    #[inline]
    fn so_far(call: events::Call) -> Records {
        match call {
            events::Call::Memcpy => Records::None,
            other => Records::of_any(other),
        }
    }

    const fn flag(self) -> u32 {
        match self {
            Records::Certain => 0,
            Records::None => Launch::NO_RECORD,
            Records::Possible => Launch::MAYBE_NO_RECORD,
        }
    }
}

/// A launch call on return.
#[derive(Clone, Copy, Debug)]
pub struct Returned {
    pub call: usize,
    /// What it submitted.
    pub submits: events::Call,
    pub correlation: u32,
    /// 0 is success.
    pub result: i32,
    pub context: Option<Context>,
}

/// Handles a call on entry. `submission` is called once per launch, at the driver's call.
///
/// # Safety
/// The pointers in `entered` are null or C strings, valid until the call returns; its registers are those of the
/// calling thread at the call of the backend, which has not returned.
#[inline(always)]
pub unsafe fn enter(
    thread: &'static ThisThread,
    agent: &'static Agent,
    entered: &Entered<'_>,
    submission: impl FnOnce() -> Submission,
) {
    match thread.launch.try_borrow_mut() {
        Ok(mut local) => {
            local.bind(agent);
            local.enter(thread, agent, entered, submission);
        }
        Err(_) => agent.count_unexpected(),
    }
}

/// Handles a call on return; returns whether it was an outermost one.
///
/// # Safety
/// The pointers passed to [`enter`] are still valid.
#[inline(always)]
pub unsafe fn exit(thread: &'static ThisThread, agent: &'static Agent, returned: &Returned) -> bool {
    match thread.launch.try_borrow_mut() {
        Ok(mut local) => {
            local.bind(agent);
            local.exit(thread, agent, returned)
        }
        Err(_) => {
            agent.count_unexpected();
            false
        }
    }
}

/// Returns the tag of the launch that the calling thread is making, if it has one so far.
pub fn tag() -> Option<i64> {
    let local = this_thread().launch.try_borrow().ok()?;
    let is_recorded = local.open.is_some_and(|it| it.recorded) && local.launch.flags & Launch::TAGGED != 0;
    is_recorded.then_some(local.launch.tag)
}

impl LaunchState {
    #[inline(always)]
    fn enter(
        &mut self,
        thread: &'static ThisThread,
        agent: &'static Agent,
        entered: &Entered<'_>,
        submission: impl FnOnce() -> Submission,
    ) {
        let nested = match self.open {
            Some(open) if is_nested(open, entered) => true,
            Some(open) if open.pauses != agent.window.pauses() => false,
            // The open call's EXIT never came.
            Some(_) => {
                agent.count_unexpected();
                false
            }
            None => false,
        };
        // Read the clock once per launch, except for timed ones.
        let start = if !nested || self.timed.is_some() { now() } else { 0 };
        if !nested {
            let Entered { call, layer, correlation, .. } = *entered;
            let pauses = agent.window.pauses();
            let open = Open { call, layer, correlation, recorded: agent.is_recording(), pauses };
            self.open = Some(open);
            if open.recorded {
                self.begin(thread, agent, start, entered);
            } else {
                cold_path();
                presence::begin_call(thread, agent, presence::UNRECORDED);
            }
        }
        let recorded = self.open.is_some_and(|it| it.recorded);
        if recorded && entered.layer == Layer::Driver && !self.submitted {
            self.submit(agent, entered, submission());
        }
        if let Some(nanos) = &mut self.timed {
            cold_path();
            *nanos += now().saturating_sub(start);
        }
    }

    #[inline(always)]
    fn begin(&mut self, thread: &'static ThisThread, agent: &'static Agent, start: u64, entered: &Entered<'_>) {
        self.timed = match self.countdown {
            0 => Some(0),
            _ => None,
        };
        self.countdown = self.countdown.checked_sub(1).unwrap_or(TIMED_EVERY - 1);
        self.submitted = false;
        self.has_no_slot = false;
        self.symbol = entered.symbol;
        self.name = entered.name;
        presence::begin_call(thread, agent, start);
        self.demand = agent.demand_now();
        let is_inside = agent.window.contains_now() && is_asked_for(agent, self.demand, entered.submits);
        self.launch = Launch {
            start,
            correlation: entered.correlation,
            tid: thread.id(),
            launch_kind: entered.submits.number(),
            demanded: self.demanded(agent, entered.layer),
            flags: Records::so_far(entered.submits).flag()
                | agent.yielding.flag()
                | if is_inside { 0 } else { Launch::OUTSIDE },
            ..NO_LAUNCH
        };
        if is_inside && self.wants(demand::STACKS | demand::PYTHON | demand::RANGES | demand::EXTERNAL) {
            self.take_surroundings(agent, entered);
        }
    }

    #[inline]
    fn wants(&self, bits: u64) -> bool {
        self.demand & bits != 0
    }

    /// Returns what the launch says of its demand. If the runtime's calls have begun to be watched since the thread's
    /// last launch, this one may be inside a call of the runtime that was not seen.
    #[inline]
    fn demanded(&mut self, agent: &Agent, layer: Layer) -> u32 {
        let layers_added = agent.switching.layers_added();
        let is_surely_outermost = layer == Layer::Runtime || self.layers_added == layers_added;
        self.layers_added = layers_added;
        demand::recorded_under(if is_surely_outermost { self.demand } else { self.demand & !demand::OUTERMOST })
    }

    /// Takes what the thread is doing: its stack, its NVTX ranges, and the id that it has pushed.
    #[inline(never)]
    fn take_surroundings(&mut self, agent: &'static Agent, entered: &Entered<'_>) {
        if self.wants(demand::STACKS | demand::PYTHON) {
            self.take_stack(agent, entered);
        }
        if self.wants(demand::RANGES) {
            self.launch.ranges = current_ranges(agent);
        }
        if let Some(External { kind, id }) = external::innermost().filter(|_| self.wants(demand::EXTERNAL)) {
            (self.launch.external_kind, self.launch.external) = (kind, id);
        }
    }

    fn take_stack(&mut self, agent: &'static Agent, entered: &Entered<'_>) {
        self.launch.stack = 0;
        let Entered { registers, layer, .. } = *entered;
        let called = entered.symbol as u64 ^ entered.call as u64;
        // SAFETY: the registers are those at the call that this thread is in.
        match unsafe { stack_of_call(agent, &mut self.bounds, registers, layer, called) } {
            StackTaken::Id(id) => self.launch.stack = id,
            StackTaken::Empty => {}
            StackTaken::Lost => self.launch.flags |= Launch::NO_STACK,
        }
    }

    /// Takes the driver call's parameters, and runs the handlers at the marker.
    #[inline(always)]
    fn submit(&mut self, agent: &'static Agent, entered: &Entered<'_>, submission: Submission) {
        self.submitted = true;
        if self.symbol.is_null() {
            self.symbol = entered.symbol;
        }
        self.set_context(agent, submission.context);
        self.launch.grid = submission.grid;
        self.launch.block = submission.block;
        self.launch.dynamic_shared = submission.dynamic_shared;
        if submission.is_captured {
            self.launch.flags |= Launch::CAPTURED;
        }
        self.launch.flags =
            self.launch.flags & !(Launch::NO_RECORD | Launch::MAYBE_NO_RECORD) | submission.records.flag();
        if let (true, Some(context), Some(stream)) =
            (self.wants(demand::STREAMS), submission.context, submission.stream)
        {
            (self.launch.stream, self.launch.stream_priority) = self.stream_id(agent, context, stream);
            self.launch.flags |= flag_of(agent.backend.kind_of_stream(stream));
        }
        // A captured call launches nothing: no `launch` handler runs for it, here or in the tracer.
        let has_no_handler = Launch::CAPTURED | Launch::OUTSIDE;
        if self.wants(demand::MARKER) && self.launch.flags & has_no_handler == 0 {
            self.mark(agent);
        }
    }

    #[inline(always)]
    fn set_context(&mut self, agent: &Agent, context: Option<Context>) {
        let Some(context) = context else { return };
        self.launch.context = context.id;
        let LastContext { device, is_selected, .. } = self.context.set(agent.backend, &agent.selection, context);
        self.launch.device = device;
        self.launch.flags |= if is_selected { 0 } else { Launch::OUTSIDE };
    }

    /// Returns a stream's id, cached until any stream is created (handles are reused).
    #[inline(never)]
    fn stream_id(&mut self, agent: &Agent, context: Context, stream: Stream) -> (u32, u32) {
        let epoch = agent.stream_epoch();
        let slot = (stream.handle >> 4 ^ stream.handle ^ context.id as usize) % STREAM_SLOTS;
        let cached = self.streams[slot];
        if epoch != 0 && cached.epoch == epoch && cached.context == context.id && cached.stream == stream {
            return (cached.id, cached.priority);
        }
        let Some(id) = agent.backend.stream_of(context, stream) else { return (UNKNOWN, 0) };
        let asked = if agent.wants(demand::PRIORITIES) { agent.backend.priority_of(stream) } else { None };
        let priority = asked.map_or(0, |it| Launch::PRIORITY_0.wrapping_add_signed(it));
        self.streams[slot] = StreamSlot { epoch, context: context.id, stream, id, priority };
        (id, priority)
    }

    /// Calls the marker, which handlers in Linux probe, and takes the tag that they set.
    #[cold]
    fn mark(&mut self, agent: &'static Agent) {
        let Some(tags) = &agent.memory.tags else { return };
        let Some(slot) = output::with(agent, RingRole::Launch, |out| out.ring()) else {
            // Its handlers have no slot for a tag and do not run, though its record may find a ring later.
            self.has_no_slot = true;
            return agent.memory.region.count_lost(Lost::NoRing, 1);
        };
        let words = marker::words(&self.launch, agent.life.pid, self.symbol as u64);
        tags.clear(slot);
        xputrace_launch_marker(words.as_ptr(), u64::from(slot));
        if let Some(tag) = tags.tag(slot) {
            self.launch.tag = tag;
            self.launch.flags |= Launch::TAGGED;
        }
    }

    /// Returns whether it was an outermost call.
    #[inline(always)]
    fn exit(&mut self, thread: &'static ThisThread, agent: &'static Agent, returned: &Returned) -> bool {
        match self.open {
            Some(open) if (open.call, open.correlation) == (returned.call, returned.correlation) => {
                self.open = None;
                if open.recorded && agent.is_ours() {
                    self.finish(thread, agent, returned);
                }
                presence::end_call(thread);
                true
            }
            // A driver call inside the open one.
            Some(_) => false,
            // It was entered before we were armed.
            None => {
                self.note_earlier(agent, returned);
                true
            }
        }
    }

    /// Records a launch that was under way when recording began, so that an activity of it is known for what it is. A
    /// call of the runtime returns after the driver's inside it.
    #[cold]
    fn note_earlier(&mut self, agent: &'static Agent, returned: &Returned) {
        // Of a runtime's call, the driver's inside may have been seen.
        if !agent.is_recording() || self.launch.correlation == returned.correlation {
            return;
        }
        let at = now();
        self.launch = Launch {
            start: at,
            end: at,
            correlation: returned.correlation,
            tid: this_thread().id(),
            launch_kind: returned.submits.number(),
            result: returned.result,
            flags: Launch::OUTSIDE,
            ..NO_LAUNCH
        };
        self.set_context(agent, returned.context);
        if output::with(agent, RingRole::Launch, |out| out.write(kind::LAUNCH, &self.launch, &[])) == Some(false) {
            agent.count_lost(Lost::LaunchRingFull, 1);
        }
    }

    #[inline(always)]
    fn finish(&mut self, thread: &'static ThisThread, agent: &'static Agent, returned: &Returned) {
        let wants_end = self.wants(demand::ENDS);
        let end = if wants_end || self.timed.is_some() { now() } else { 0 };
        self.launch.end = if wants_end { end } else { self.launch.start };
        self.launch.result = returned.result;
        if self.launch.context == UNKNOWN {
            self.set_context(agent, returned.context);
        }
        if self.launch.flags & Launch::YIELDED != 0 {
            agent.yielding.count(&self.launch);
        }
        let (call_name, symbol, launch) = (self.name, self.symbol, &mut self.launch);
        let mut ring = None;
        if let Some(mut out) = output::of(thread, agent, RingRole::Launch) {
            ring = Some(out.ring());
            // SAFETY: the backend's C string, valid while its call is open.
            let told = || unsafe { name(agent, &mut out, call_name, TextKind::Call) };
            launch.api = agent.tables.call_names.id(returned.call, told);
            // SAFETY: as above.
            let is_named = match unsafe { find_name(agent, &mut out, symbol, TextKind::Symbol) } {
                // A launch without its kernel's name would pass for one of another kernel.
                Err(NoId::NotTold) => false,
                id => {
                    launch.symbol = counted(agent, id);
                    true
                }
            };
            if !is_named || !out.write(kind::LAUNCH, launch, &[]) {
                cold_path();
                agent.count_lost(Lost::LaunchRingFull, 1);
            }
        } else if !self.has_no_slot {
            // Otherwise it was counted at its marker.
            output::count_no_ring(agent, 1);
        }
        let nanos = self.timed.take().map_or(0, |before| (before + now() - end) * u64::from(TIMED_EVERY));
        agent.counters_of(ring).add(&self.launch, nanos);
    }
}

/// Whether a call that begins under this demand is asked for. Others are recorded during a switch, to tell what they
/// cause; or in a gap, to be counted, though nothing of the run asks for them.
#[inline]
fn is_asked_for(agent: &Agent, now: u64, submits: events::Call) -> bool {
    now == agent.demand || demand::calls_of(now).contains(submits) || !demand::calls_of(agent.demand).contains(submits)
}

const fn flag_of(stream: StreamKind) -> u32 {
    match stream {
        StreamKind::Null => Launch::NULL_STREAM,
        StreamKind::OfThread => Launch::THREAD_STREAM,
        StreamKind::Created => 0,
    }
}

/// A runtime call and the driver calls inside it are one launch.
#[inline]
fn is_nested(open: Open, entered: &Entered<'_>) -> bool {
    entered.correlation == open.correlation || entered.layer == Layer::Driver && open.layer == Layer::Runtime
}
