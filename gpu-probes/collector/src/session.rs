//! One armed run: everything that callbacks need, reachable from CUPTI's user data and from one
//! process-wide pointer. Sessions are never freed, because a callback may still be running in
//! one; there are as many as there were runs that armed this process.

mod arming;
mod delivery;
mod flushing;
mod leaving;

pub use arming::Refusal;
pub(crate) use flushing::Flushing;

use crate::activity::{KERNEL_RECORD_BYTES, Origin, Pool};
use crate::cupti::Cupti;
use crate::driver::Driver;
use crate::intern::{Names, Stacks};
use crate::launch::{ApiNames, Counters};
use crate::mappings::Mappings;
use crate::output::{self, Patience, Role};
use crate::region::{Region, Tags};
use crate::rendezvous::Socket;
use crate::stack::Modules;
use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use xputrace_wire::message::demand;
use xputrace_wire::record::kind;
use xputrace_wire::region::Lost;

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

/// How far a session is, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Phase {
    Arming,
    Armed,
    /// Recording is over; the last flush is being made.
    Ending,
    /// All is flushed and disabled: the next callback that returns may tear CUPTI down.
    Leaving,
    /// A callback has taken that on itself.
    Finalizing,
    Left,
}

/// A phase that several threads move on.
#[derive(Debug)]
struct SharedPhase(AtomicU32);

impl SharedPhase {
    fn new(phase: Phase) -> Self {
        SharedPhase(AtomicU32::new(phase as u32))
    }

    #[inline]
    fn is(&self, phase: Phase) -> bool {
        self.0.load(Ordering::Acquire) == phase as u32
    }

    fn set(&self, phase: Phase) {
        self.0.store(phase as u32, Ordering::Release);
    }

    /// Whether the caller is the one that made this step.
    fn step(&self, from: Phase, to: Phase) -> bool {
        self.0.compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// An armed run.
#[derive(Debug)]
pub struct Session {
    phase: SharedPhase,
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
    pub(crate) api_names: ApiNames,
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
    /// Bytes of a kernel record of this CUPTI, as last seen.
    record_bytes: AtomicUsize,
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

impl Session {
    fn new(setup: Setup) -> Result<Self, Refusal> {
        let memory = |error: std::io::Error| Refusal::from(format!("reserving memory for tables: {error}"));
        if POOL.get().is_none() {
            let _ = POOL.set(Pool::new().map_err(memory)?);
        }
        let rings = setup.region.shape().rings;
        let mut counters: Vec<Counters> = (0..rings).map(|_| Counters::default()).collect();
        counters.push(Counters { shared: true, ..Counters::default() });
        Ok(Session {
            phase: SharedPhase::new(Phase::Arming),
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
            api_names: ApiNames::new(),
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
            record_bytes: AtomicUsize::new(KERNEL_RECORD_BYTES),
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

    /// The same, also in a child that a bare `clone` made: no fork handler ran in it. Asks the
    /// system, so it is for the ends of threads and processes.
    pub(crate) fn is_surely_ours(&self) -> bool {
        self.is_ours() && std::process::id() == self.pid
    }

    #[inline]
    pub(crate) fn is_recording(&self) -> bool {
        self.phase.is(Phase::Armed) && self.is_ours()
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

    /// A stream was created: its handle may be that of an earlier one.
    pub(crate) fn on_stream_created(&self) {
        self.stream_epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// An outermost launch call returns: the place where CUPTI may be torn down.
    #[inline]
    pub(crate) fn on_outermost_exit(&self) {
        if self.phase.is(Phase::Leaving) {
            self.finalize_here();
        }
    }

    /// Sums the rings' counters into the control page.
    pub(crate) fn publish_totals(&self) {
        let totals = &self.region.control().totals;
        let publish = |to: &AtomicU64, of: &dyn Fn(&Counters) -> &AtomicU64| {
            to.store(self.counters.iter().map(|it| of(it).load(Ordering::Relaxed)).sum(), Ordering::Relaxed);
        };
        for (at, calls) in totals.calls.iter().enumerate() {
            publish(&calls.made, &|it| &it.calls[at].made);
            publish(&calls.failed, &|it| &it.calls[at].failed);
            publish(&calls.captured, &|it| &it.calls[at].captured);
        }
        publish(&totals.callback_nanos, &|it| &it.callback_nanos);
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
