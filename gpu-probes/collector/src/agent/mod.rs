//! The vendor-neutral part: an armed run, reachable from a backend's callbacks and from a
//! process-wide pointer. Agents are never freed, because a callback may still look at one; there are as many as
//! runs that armed this process. What they hold is given back ([`presence`]).
//!
//! ```text
//! backend ─▶ launch (per thread) ─┐
//! backend ─▶ delivery ────────────┼─▶ output: the thread's ring ─▶ tracer
//! control thread: flush, mappings ┘
//! ```

pub mod backend;
pub(crate) mod clock;
pub mod control;
pub mod delivery;
pub mod device;
pub(crate) mod external;
mod flushing;
pub mod host_call;
pub(crate) mod intern;
pub mod launch;
mod leaving;
mod mappings;
mod nodes;
pub(crate) mod output;
mod phase;
pub(crate) mod presence;
mod python;
pub(crate) mod ranges;
pub mod region;
pub mod resources;
mod selection;
pub mod stack;
pub mod switching;
pub mod this_thread;
pub(crate) mod window;
mod yielding;
pub(crate) mod zeroed;

pub use backend::{Backend, Context, Layer, Refusal, Stream, StreamKind};
pub use flushing::Flushing;
pub use selection::Selection;
pub use switching::Order;
pub use yielding::Conflict;

use crate::rendezvous::Socket;
use device::{Device, DeviceRegion};
use intern::{Names, ObjectIds, StackIds};
use launch::{CallNames, Counters};
use mappings::Mappings;
use nodes::Nodes;
use output::{Patience, Role};
use phase::{Phase, SharedPhase};
use presence::Held;
use region::{Region, Tags};
use stack::Stacks;
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use switching::Switching;
use this_thread::{ThisThread, this_thread};
use window::Window;
use xputrace_wire::cuda_calls::Functions;
use xputrace_wire::events::{HostEvent, HostEvents};
use xputrace_wire::message::demand;
use xputrace_wire::record::{Gpu, Thread, UNKNOWN, kind};
use xputrace_wire::region::Lost;
use yielding::Yielding;

/// What a run asks of this process, and what it provides.
#[derive(Debug)]
pub struct Setup {
    pub backend: Box<dyn Backend>,
    /// Everything that may be asked for during the run.
    pub most: Order,
    /// What is recorded at first.
    pub first: Order,
    pub flush_period: Duration,
    /// Bits of `message::window`.
    pub window: u64,
    pub conflict: Conflict,
    /// The GPUs whose launches are recorded.
    pub selection: Selection,
    pub region: Region,
    pub tags: Option<Tags>,
    pub device: Option<DeviceRegion>,
    pub socket: Socket,
}

/// An armed run.
#[derive(Debug)]
pub struct Agent {
    pub(crate) backend: &'static dyn Backend,
    /// Of everything that may be asked for during the run.
    demand: u64,
    api: Functions,
    switching: Switching,
    pub(crate) flush_period: Duration,
    life: Life,
    window: Window,
    conflict: Conflict,
    selection: Selection,
    yielding: Yielding,
    pub(crate) memory: Held<Memory>,
    pub(crate) socket: Socket,
    device: Device,
    pub(crate) tables: Held<Tables>,
    code: Held<Code>,
    /// Number of streams created so far; 0 if the backend does not report them.
    stream_epoch: AtomicU64,
    /// Whether the tracer knows the process's GPUs.
    gpus_told: AtomicBool,
    /// Whether the record of a call was lost that recorded an event.
    lacks_event_records: AtomicBool,
}

/// The lifetime of an agent.
#[derive(Debug)]
struct Life {
    phase: SharedPhase,
    /// Value of [`FORKS`] at its creation: a different value means that we are in a forked child.
    forks: u32,
    pid: u32,
    flushing: AtomicBool,
    tracer_gone: AtomicBool,
    exiting: AtomicBool,
    /// Whether the run is over: the tracer said so, or is gone.
    disarmed: AtomicBool,
    /// Whether the last flush is done; nothing is touched afterwards.
    gone: AtomicBool,
    /// Whether the tracer was told that the run is over.
    told: AtomicBool,
    /// Whether nobody may come in any more ([`presence`]), and how many without a slot are inside.
    is_closed: AtomicBool,
    visitors: AtomicU32,
    /// Why the run ended before the tracer said so.
    refusal: OnceLock<Refusal>,
    /// What stays behind in the program, for BYE.
    left_behind: OnceLock<&'static str>,
    /// Further notes for BYE.
    notes: Mutex<Vec<String>>,
    /// The thread to wake when the run is over.
    control: OnceLock<std::thread::Thread>,
}

/// Memory shared with the tracer, and the counters summed into it.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) region: Region,
    pub(crate) tags: Option<Tags>,
    device: Option<DeviceRegion>,
    counters: Vec<Counters>,
    /// Number of rings released so far.
    pub(crate) released: AtomicU64,
    /// Of each ring, the thread that has it: as pthreads calls it in the upper half, its id in the lower one.
    pub(crate) threads: Vec<AtomicU64>,
}

/// What the tracer is told once.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) names: Names,
    pub(crate) call_names: CallNames,
    pub(crate) stacks: StackIds,
    pub(crate) objects: ObjectIds,
    /// Where nodes of graphs were asked for.
    nodes: Option<Nodes>,
}

/// What is mapped into the process.
#[derive(Debug)]
struct Code {
    /// Where stacks were asked for.
    stacks: Option<Stacks>,
    mappings: Mappings,
    /// The directory that the process was in when it was armed.
    directory: Vec<u8>,
}

/// The run that exit and fork handlers refer to.
static CURRENT: AtomicPtr<Agent> = AtomicPtr::new(std::ptr::null_mut());
/// Forks between loading this library and this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How long to wait for room in a ring that the tracer does not read, per buffer of activities.
const BUFFER_PATIENCE: Duration = Duration::from_millis(250);

/// Returns the agent that is armed or leaving, if any.
pub(crate) fn current() -> Option<&'static Agent> {
    // SAFETY: null, or a leaked agent.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// Whether this process is a child, by fork, of the one that loaded this library.
pub(crate) fn is_forked() -> bool {
    FORKS.load(Ordering::Relaxed) != 0
}

/// Returns the bits of the demand that can be recorded: the backend's, and those that the agent serves itself.
pub(crate) fn recordable(backend: &dyn Backend) -> u64 {
    let of_launches = demand::STACKS | demand::PYTHON | demand::RANGES | demand::ENDS | demand::OUTERMOST;
    let of_calls = demand::HOST_STACKS | demand::HOST_PYTHON;
    let ranges = demand::host_events(HostEvents::of(&[HostEvent::Nvtx]));
    demand::SWITCHED | of_launches | of_calls | ranges | demand::MARKER | demand::MAPPINGS | backend.capabilities()
}

/// Runs first in a forked child: nothing of the parent's agent is touched again.
pub(crate) fn in_forked_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    let agent = CURRENT.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // The parent's connection must end with the parent, not with its last child.
    // SAFETY: null, or a leaked agent.
    if let Some(agent) = unsafe { agent.as_ref() } {
        agent.socket.close_number();
    }
}

/// Runs when the process exits.
pub(crate) extern "C" fn at_process_exit() {
    let _ = std::panic::catch_unwind(|| {
        if let Some(agent) = current() {
            agent.leave_at_exit();
        }
    });
}

impl Agent {
    fn new(setup: Setup) -> Result<Self, Refusal> {
        let memory = |error: std::io::Error| Refusal::from(format!("reserving memory for tables: {error}"));
        let rings = setup.region.shape().rings;
        let mut counters: Vec<Counters> = (0..rings).map(|_| Counters::default()).collect();
        counters.push(Counters { shared: true, ..Counters::default() });
        let directory = std::env::current_dir().map_or(Vec::new(), |it| it.into_os_string().into_vec());
        let stacks = Stacks::of(setup.most.demand, rings).map_err(memory)?;
        Ok(Agent {
            backend: Box::leak(setup.backend),
            demand: setup.most.demand,
            api: setup.most.api,
            switching: Switching::new(setup.first),
            flush_period: setup.flush_period,
            life: Life {
                phase: SharedPhase::new(Phase::Arming),
                forks: FORKS.load(Ordering::Relaxed),
                pid: std::process::id(),
                flushing: AtomicBool::new(false),
                tracer_gone: AtomicBool::new(false),
                exiting: AtomicBool::new(false),
                disarmed: AtomicBool::new(false),
                gone: AtomicBool::new(false),
                told: AtomicBool::new(false),
                is_closed: AtomicBool::new(false),
                visitors: AtomicU32::new(0),
                refusal: OnceLock::new(),
                left_behind: OnceLock::new(),
                notes: Mutex::new(Vec::new()),
                control: OnceLock::new(),
            },
            window: Window::new(setup.window),
            conflict: setup.conflict,
            selection: setup.selection,
            yielding: Yielding::new(),
            memory: Held::new(Memory {
                region: setup.region,
                tags: setup.tags,
                device: setup.device,
                counters,
                released: AtomicU64::new(0),
                threads: (0..rings).map(|_| AtomicU64::new(0)).collect(),
            }),
            socket: setup.socket,
            device: Device::default(),
            tables: Held::new(Tables {
                names: Names::new().map_err(memory)?,
                call_names: CallNames::new(),
                stacks: StackIds::new().map_err(memory)?,
                objects: ObjectIds::new().map_err(memory)?,
                nodes: (setup.most.demand & demand::CAPTURES != 0).then(Nodes::new).transpose().map_err(memory)?,
            }),
            code: Held::new(Code { stacks, mappings: Mappings::default(), directory }),
            stream_epoch: AtomicU64::new(0),
            gpus_told: AtomicBool::new(false),
            lacks_event_records: AtomicBool::new(false),
        })
    }

    /// Arms what the demand says, and makes the agent the current one.
    ///
    /// # Errors
    /// The backend refused; everything done so far is undone.
    pub(crate) fn arm(setup: Setup) -> Result<&'static Agent, Refusal> {
        let agent: &'static Agent = Box::leak(Box::new(Agent::new(setup)?));
        agent.refresh_code();
        CURRENT.store(std::ptr::from_ref(agent).cast_mut(), Ordering::Release);
        // Start recording before the backend does, so that nothing it delivers is rejected.
        agent.life.phase.set(Phase::Armed);
        if let Err(refusal) = agent.backend.start(agent).and_then(|()| agent.settle()) {
            agent.abandon();
            agent.give_back();
            return Err(refusal);
        }
        agent.write_first_records();
        Ok(agent)
    }

    /// Undoes arming if it cannot continue.
    pub(crate) fn abandon(&'static self) {
        self.life.phase.set(Phase::Left);
        self.device.close();
        self.backend.abandon(self);
        self.forget();
        self.life.gone.store(true, Ordering::Release);
    }

    /// Reads what is mapped now, as far as launches need it.
    fn refresh_code(&self) {
        self.code.stacks.iter().for_each(Stacks::refresh);
    }

    fn write_first_records(&'static self) {
        let mut comm = [0u8; 16];
        if let Ok(text) = std::fs::read("/proc/self/comm") {
            let text = text.strip_suffix(b"\n").unwrap_or(&text);
            let len = text.len().min(comm.len() - 1);
            comm[..len].copy_from_slice(&text[..len]);
        }
        let thread = Thread { tid: self.life.pid, reserved: 0, comm };
        self.write_waiting(kind::THREAD, &thread, &[]);
        self.write_waiting(kind::GPU, &Gpu { device: UNKNOWN, ..Gpu::default() }, &[]);
        self.code.mappings.changed();
        self.send_mappings();
    }

    /// Why the Python frames of this process can't be read, if it has such an interpreter and that was not
    /// returned before.
    pub(crate) fn newly_unsupported_python(&self) -> Option<String> {
        Some(self.code.stacks.as_ref()?.python.as_ref()?.newly_unsupported()?.to_string())
    }

    /// Says that the record of a call was lost that recorded an event: which one a wait is for is not known any more.
    pub(crate) fn lost_event_record(&self) {
        self.lacks_event_records.store(true, Ordering::Release);
    }

    pub(crate) fn lacks_event_records(&self) -> bool {
        self.lacks_event_records.load(Ordering::Acquire)
    }

    /// Wakes the control thread, which tends the backend.
    pub fn wake(&self) {
        self.life.control.get().inspect(|it| it.unpark());
    }

    /// Keeps a note for the user, sent when the process is armed, or when the run ends.
    pub fn note(&self, text: String) {
        self.life.notes.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }

    /// Takes the notes, to send them.
    pub(crate) fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut *self.life.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the run because of this.
    pub fn end_with(&self, refusal: Refusal) {
        let _ = self.life.refusal.set(refusal);
        self.disarm();
    }

    /// Whether everything that is recorded is recorded from the beginning to the end.
    pub fn records_throughout(&self) -> bool {
        self.window.is_throughout() && !self.wants(demand::SWITCHED)
    }

    /// Returns the bits of `message::demand` of everything that may be asked for during the run.
    pub fn demand(&self) -> u64 {
        self.demand
    }

    /// Returns the bits under which what begins now is recorded.
    #[inline]
    pub fn demand_now(&self) -> u64 {
        self.switching.demand()
    }

    /// Returns what the backend records while it is resumed.
    pub fn armed(&self) -> Order {
        self.switching.armed()
    }

    /// Returns the functions whose calls may be `api` events.
    pub fn api(&self) -> &Functions {
        &self.api
    }

    /// Whether this is the run that is armed, or ending.
    pub fn is_current(&self) -> bool {
        std::ptr::eq(CURRENT.load(Ordering::Acquire), self)
    }

    /// Whether the process is exiting: don't wait for anyone.
    pub fn is_exiting(&self) -> bool {
        self.life.exiting.load(Ordering::Acquire)
    }

    /// Returns the number of launch calls that have returned.
    pub fn calls_made(&self) -> u64 {
        let calls = self.memory.counters.iter().flat_map(|it| &it.calls);
        calls.map(|it| it.made.load(Ordering::Relaxed)).sum()
    }

    /// Counts a loss.
    pub fn count_lost(&self, what: Lost, n: u64) {
        self.memory.region.count_lost(what, n);
    }

    /// Runs a callback's work, unless the run is over; returns whether it did. Catches and counts panics, which must
    /// not reach C.
    #[inline(always)]
    pub fn guarded(&self, run: impl FnOnce()) -> bool {
        self.guarded_on(this_thread(), run)
    }

    /// Like [`Agent::guarded`], for a caller that has looked up its thread.
    #[inline(always)]
    pub fn guarded_on(&self, thread: &'static ThisThread, run: impl FnOnce()) -> bool {
        let inside = self.come_in(thread);
        if inside.is_some() {
            self.caught(run);
        }
        inside.is_some()
    }

    /// Runs something of ours. Catches and counts panics.
    #[inline(always)]
    pub(super) fn caught(&self, run: impl FnOnce()) {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err() && self.is_ours() {
            self.count_lost(Lost::Panics, 1);
        }
    }

    /// Notes that the backend reports new streams, so that ids may be cached until then.
    pub fn tells_of_streams(&self) {
        self.stream_epoch.fetch_max(1, Ordering::AcqRel);
    }

    /// Returns a number that grows with each new stream: what is known of a handle holds as long as it stays. 0 where the
    /// backend does not report new streams.
    #[inline]
    pub fn stream_epoch(&self) -> u64 {
        self.stream_epoch.load(Ordering::Acquire)
    }

    /// Whether any of these bits may be asked for during the run.
    #[inline]
    pub fn wants(&self, bit: u64) -> bool {
        self.demand & bit != 0
    }

    /// Whether the region is mapped in this process: not in a forked child.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.life.forks == FORKS.load(Ordering::Relaxed)
    }

    /// Like [`Agent::is_ours`], but also detects a child created by a bare `clone`, in which no
    /// fork handler ran. Makes a system call, so use it only when threads or processes end.
    pub(crate) fn is_surely_ours(&self) -> bool {
        self.is_ours() && std::process::id() == self.life.pid
    }

    #[inline]
    pub(crate) fn is_recording(&self) -> bool {
        self.life.phase.is(Phase::Armed) && self.is_ours()
    }

    #[cold]
    pub fn count_unexpected(&self) {
        if self.is_ours() {
            self.memory.region.count_lost(Lost::Unexpected, 1);
        }
    }

    #[inline]
    pub(crate) fn counters_of(&self, ring: Option<u32>) -> &Counters {
        let shared = self.memory.counters.len() - 1;
        &self.memory.counters[ring.map_or(shared, |it| it as usize).min(shared)]
    }

    /// Handles a new stream: its handle may have been an earlier one's.
    pub fn on_stream_created(&self) {
        self.stream_epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Sums the rings' counters into the control page.
    pub(crate) fn publish_totals(&self) {
        self.memory.region.control().window.ranges.store(crate::nvtx::seen(), Ordering::Relaxed);
        ranges::publish(self);
        let totals = &self.memory.region.control().totals;
        let publish = |to: &AtomicU64, of: &dyn Fn(&Counters) -> &AtomicU64| {
            to.store(self.memory.counters.iter().map(|it| of(it).load(Ordering::Relaxed)).sum(), Ordering::Relaxed);
        };
        for (at, calls) in totals.calls.iter().enumerate() {
            publish(&calls.made, &|it| &it.calls[at].made);
            publish(&calls.failed, &|it| &it.calls[at].failed);
            publish(&calls.captured, &|it| &it.calls[at].captured);
        }
        for (at, made) in totals.host_events.iter().enumerate() {
            publish(made, &|it| &it.host_events[at]);
        }
        publish(&totals.callback_nanos, &|it| &it.callback_nanos);
        publish(&totals.stacks, &|it| &it.stacks);
    }

    fn send_mappings(&'static self) {
        if self.wants(demand::MAPPINGS) {
            self.code.mappings.send(|mapping, path| self.write_waiting(kind::MAPPING, mapping, path));
        }
    }

    fn write_waiting<T: zerocopy::IntoBytes + zerocopy::Immutable>(&'static self, kind: u16, body: &T, tail: &[u8]) {
        let mut patience = Patience::new(self, BUFFER_PATIENCE);
        match output::with(self, Role::Service, |out| out.write_waiting(&mut patience, kind, body, tail)) {
            Some(true) => {}
            Some(false) => self.memory.region.count_lost(Lost::ActivityRingFull, 1),
            None => output::count_no_ring(self, 1),
        }
    }
}
