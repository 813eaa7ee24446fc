//! An armed run, reachable from a backend's callbacks and from a process-wide pointer. Agents are never freed, because a
//! callback may still look at one; there are as many as runs that armed this process. What they hold is given back
//! ([`crate::presence`]).

use crate::backend::{ArmRefusal, Backend};
use crate::device::{Device, DeviceRegion};
use crate::intern::{CallNames, NameTable, ObjectIds, StackIds};
use crate::mappings::Mappings;
use crate::phase::{Phase, SharedPhase};
use crate::region::{Region, Tags};
use crate::rendezvous::Socket;
use crate::stack::Stacks;
use crate::state::counters::Counters;
use crate::state::forks;
use crate::state::held::Held;
use crate::state::nodes::Nodes;
use crate::state::selection::Selection;
use crate::state::switching::{Order, Switching};
use crate::state::this_thread::{ThisThread, this_thread};
use crate::state::window::Window;
use crate::state::yielding::{Conflict, Yielding};
use crate::vendor::Ranges;
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use xputrace_wire::api::Functions;
use xputrace_wire::message::demand;
use xputrace_wire::region::Lost;

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
    /// The ranges that the program marks itself.
    pub ranges: Option<&'static dyn Ranges>,
}

/// An armed run.
#[derive(Debug)]
pub struct Agent {
    pub(crate) backend: &'static dyn Backend,
    /// Of everything that may be asked for during the run.
    pub(crate) demand: u64,
    pub(crate) api: Functions,
    pub(crate) switching: Switching,
    pub(crate) flush_period: Duration,
    pub(crate) life: Life,
    pub(crate) ranges: Option<&'static dyn Ranges>,
    pub(crate) window: Window,
    pub(crate) conflict: Conflict,
    pub(crate) selection: Selection,
    pub(crate) yielding: Yielding,
    pub(crate) memory: Held<SharedMemory>,
    pub(crate) socket: Socket,
    pub(crate) device: Device,
    pub(crate) tables: Held<InternTables>,
    pub(crate) code: Held<MappedCode>,
    /// Number of streams created so far; 0 if the backend does not report them.
    pub(crate) stream_epoch: AtomicU64,
    /// Whether the tracer knows the process's GPUs.
    pub(crate) gpus_told: AtomicBool,
    /// Whether the record of a call was lost that recorded an event.
    pub(crate) lacks_event_records: AtomicBool,
}

/// The lifetime of an agent.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) phase: SharedPhase,
    /// Value of [`forks::count`] at its creation: a different value means that we are in a forked child.
    pub(crate) forks: u32,
    pub(crate) pid: u32,
    pub(crate) flushing: AtomicBool,
    pub(crate) tracer_gone: AtomicBool,
    pub(crate) exiting: AtomicBool,
    /// Whether the run is over: the tracer said so, or is gone.
    pub(crate) disarmed: AtomicBool,
    /// Whether the last flush is done; nothing is touched afterwards.
    pub(crate) gone: AtomicBool,
    /// Whether the tracer was told that the run is over.
    pub(crate) told: AtomicBool,
    /// Whether nobody may come in any more ([`presence`]), and how many without a slot are inside.
    pub(crate) is_closed: AtomicBool,
    pub(crate) visitors: AtomicU32,
    /// Why the run ended before the tracer said so.
    pub(crate) refusal: OnceLock<ArmRefusal>,
    /// What stays behind in the program, for BYE.
    pub(crate) left_behind: OnceLock<&'static str>,
    /// Further notes for BYE.
    pub(crate) notes: Mutex<Vec<String>>,
    /// The thread to wake when the run is over.
    pub(crate) control: OnceLock<std::thread::Thread>,
}

/// Memory shared with the tracer, and the counters summed into it.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    pub(crate) region: Region,
    pub(crate) tags: Option<Tags>,
    pub(crate) device: Option<DeviceRegion>,
    pub(crate) counters: Vec<Counters>,
    /// Number of rings released so far.
    pub(crate) released: AtomicU64,
    /// Of each ring, the thread that has it: as pthreads calls it in the upper half, its id in the lower one.
    pub(crate) threads: Vec<AtomicU64>,
}

/// What the tracer is told once.
#[derive(Debug)]
pub(crate) struct InternTables {
    pub(crate) names: NameTable,
    pub(crate) call_names: CallNames,
    pub(crate) stacks: StackIds,
    pub(crate) objects: ObjectIds,
    /// Where nodes of graphs were asked for.
    pub(crate) nodes: Option<Nodes>,
}

/// What is mapped into the process.
#[derive(Debug)]
pub(crate) struct MappedCode {
    /// Where stacks were asked for.
    pub(crate) stacks: Option<Stacks>,
    pub(crate) mappings: Mappings,
    /// The directory that the process was in when it was armed.
    pub(crate) directory: Vec<u8>,
}

/// The run that exit and fork handlers refer to.
pub(crate) static CURRENT: AtomicPtr<Agent> = AtomicPtr::new(std::ptr::null_mut());

/// Returns the agent that is armed or leaving, if any.
pub fn current() -> Option<&'static Agent> {
    // SAFETY: null, or a leaked agent.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// Runs first in a forked child: nothing of the parent's agent is touched again.
pub(crate) fn in_forked_child() {
    forks::in_forked_child();
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
        current().into_iter().for_each(Agent::leave_at_exit);
    });
}

impl Agent {
    pub(crate) fn new(setup: Setup) -> Result<Self, ArmRefusal> {
        let memory = |error: std::io::Error| ArmRefusal::from(format!("reserving memory for tables: {error}"));
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
                forks: forks::count(),
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
            ranges: setup.ranges,
            window: Window::new(setup.window, setup.ranges),
            conflict: setup.conflict,
            selection: setup.selection,
            yielding: Yielding::new(),
            memory: Held::new(SharedMemory {
                region: setup.region,
                tags: setup.tags,
                device: setup.device,
                counters,
                released: AtomicU64::new(0),
                threads: (0..rings).map(|_| AtomicU64::new(0)).collect(),
            }),
            socket: setup.socket,
            device: Device::default(),
            tables: Held::new(InternTables {
                names: NameTable::new().map_err(memory)?,
                call_names: CallNames::new(),
                stacks: StackIds::new().map_err(memory)?,
                objects: ObjectIds::new().map_err(memory)?,
                nodes: (setup.most.demand & demand::CAPTURES != 0).then(Nodes::new).transpose().map_err(memory)?,
            }),
            code: Held::new(MappedCode { stacks, mappings: Mappings::default(), directory }),
            stream_epoch: AtomicU64::new(0),
            gpus_told: AtomicBool::new(false),
            lacks_event_records: AtomicBool::new(false),
        })
    }

    /// Why the Python frames of this process can't be read, if it has such an interpreter and that was not
    /// returned before.
    pub(crate) fn newly_unsupported_python(&self) -> Option<String> {
        Some(self.code.stacks.as_ref()?.python.as_ref()?.newly_unsupported()?.to_string())
    }

    /// Says that the record of a call was lost that recorded an event: which one a wait is for is no longer known.
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
    pub fn end_with(&self, refusal: ArmRefusal) {
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
        let inside = self.enter(thread);
        if inside.is_some() {
            self.caught(run);
        }
        inside.is_some()
    }

    /// Runs something of ours. Catches and counts panics.
    #[inline(always)]
    pub(crate) fn caught(&self, run: impl FnOnce()) {
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
        self.life.forks == forks::count()
    }

    /// Like [`Agent::is_ours`], but also detects a child created by a bare `clone`, in which no
    /// fork handler ran. Makes a system call, so use it only when threads or processes end.
    pub(crate) fn is_surely_ours(&self) -> bool {
        self.is_ours() && std::process::id() == self.life.pid
    }

    #[inline]
    pub fn is_recording(&self) -> bool {
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
}
