//! CUPTI in this process, and the run that it records for.

use super::driver::Driver;
use super::functions::{Cupti, Handle, SUCCESS};
use super::graphs::Graphs;
use super::host_calls::Watched;
use super::pool::Pool;
use super::records::RecordedKinds;
use super::sharing::Sharing;
use super::teardown::Teardown;
use super::twins::Twins;
use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use xputrace_agent::resources::ContextIds;
use xputrace_agent::{Agent, Context, Held, Library, Stream};
use xputrace_wire::events::{Activities, Activity};
use xputrace_wire::message::demand;

/// CUPTI in this process, for one run.
#[derive(Debug)]
pub struct CuptiBackend {
    pub(super) cupti: Cupti,
    pub(super) driver: Driver,
    /// Whether another injected tool runs in this process: CUPTI is then not unloaded on leaving.
    pub(super) is_chained: bool,
    /// Whether others may have used it before we came.
    pub(super) may_be_used: bool,
    /// Whether we came before any graph could be made.
    pub(super) is_first: bool,
    /// Whether the program may have loaded code before we came.
    pub(super) is_late: bool,
    /// Whether graphs are recorded as a whole.
    pub(super) whole_graphs: AtomicBool,
    pub(super) subscriber: AtomicPtr<c_void>,
    pub(super) open_captures: AtomicU32,
    pub(super) graphs: Held<Graphs>,
    /// Number of buffer completions in progress.
    pub(super) completing: AtomicU32,
    /// Number of buffers completed so far.
    pub(super) completed: AtomicU32,
    /// Whether records were ever enabled.
    pub(super) has_recorded: AtomicBool,
    /// Whether CUDA has started: unified memory can be recorded only then.
    pub(super) has_started: AtomicBool,
    /// Whether any record has arrived.
    pub(super) saw_records: AtomicBool,
    /// Size of this CUPTI's kernel records; 0 until two adjacent ones were seen.
    pub(super) kernel_bytes: AtomicUsize,
    pub(super) teardown: Teardown,
    pub(super) sharing: Sharing,
    /// In a run that has them.
    pub(super) twins: OnceLock<Twins>,
}

/// A backend that records for an agent.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) agent: &'static Agent,
    pub(super) backend: &'static CuptiBackend,
    pub(super) watched: Watched,
    /// Whether anything is watched: all that a launch looks at.
    pub(super) has_host_calls: bool,
    /// Whether kernels have twins, so that some calls are ours.
    pub(super) has_twins: bool,
    /// Whether a launch's tag decides if it runs one.
    pub(super) twins_need_tags: bool,
}

/// The run that callbacks are for.
pub(super) static RUN: AtomicPtr<Run> = AtomicPtr::new(std::ptr::null_mut());
pub(super) static POOL: OnceLock<Pool> = OnceLock::new();

/// What needs the ids of nodes.
pub(super) const CAPTURES: u64 = demand::CAPTURES | demand::CAPTURES_PYTHON;

/// Returns the run that buffers belong to; `None` once it is over.
pub(super) fn current_run() -> Option<&'static Run> {
    // SAFETY: null, or a leaked run.
    unsafe { RUN.load(Ordering::Acquire).as_ref() }.filter(|it| it.agent.is_current())
}

impl CuptiBackend {
    /// Uses this CUPTI and driver. `is_chained` says whether another injected tool runs in this
    /// process.
    pub fn new(cupti: Cupti, driver: Driver, is_chained: bool) -> Self {
        CuptiBackend {
            cupti,
            driver,
            is_chained,
            may_be_used: false,
            is_first: false,
            is_late: false,
            whole_graphs: AtomicBool::new(false),
            subscriber: AtomicPtr::default(),
            open_captures: AtomicU32::new(0),
            graphs: Held::new(Graphs::new()),
            completing: AtomicU32::new(0),
            completed: AtomicU32::new(0),
            has_recorded: AtomicBool::new(false),
            has_started: AtomicBool::new(true),
            saw_records: AtomicBool::new(false),
            kernel_bytes: AtomicUsize::new(0),
            teardown: Teardown::default(),
            sharing: Sharing::default(),
            twins: OnceLock::new(),
        }
    }

    /// Says that the program runs CUDA already; `it` says that it had loaded CUPTI before we came.
    #[must_use]
    pub fn may_be_used(self, it: bool) -> Self {
        CuptiBackend { may_be_used: it, is_late: true, ..self }
    }

    /// Says that we came before the program could make a graph.
    #[must_use]
    pub fn is_first(self) -> Self {
        CuptiBackend { is_first: true, has_started: AtomicBool::new(false), ..self }
    }

    /// Returns the records that CUPTI is asked for. Graphs are recorded as a whole or by their nodes.
    ///
    /// As a whole only if they alone are wanted, since CUPTI then has no records of their nodes, and if that is on
    /// from before the first graph is made: launching one that was instantiated while it was off crashes the program
    /// inside CUPTI (seen with 13.0).
    pub(super) fn recorded(&self, wanted: RecordedKinds) -> RecordedKinds {
        let graphs = Activities::of(&[Activity::Graph]);
        match wanted.activities.contains(Activity::Graph) && !self.records_whole_graphs() {
            true => RecordedKinds { activities: wanted.activities.without(graphs).with(Activities::NODES), ..wanted },
            false => wanted,
        }
    }

    #[inline]
    pub(super) fn records_whole_graphs(&self) -> bool {
        self.whole_graphs.load(Ordering::Relaxed)
    }

    /// Returns what CUPTI says of a context that it tells of in this callback; `None` if it does not say it. Of one that is
    /// about to be destroyed, no stream is asked for.
    pub(super) fn ids_of_context(&self, handle: Handle, is_created: bool) -> Option<ContextIds> {
        let context = Context { id: self.id_of_context(handle)?, handle };
        let null_stream = is_created.then(|| self.stream_of(context, Stream::default())).flatten();
        Some(ContextIds { context: context.id, device: self.device_of(context)?, null_stream })
    }

    /// Returns the id by which records name a context.
    pub(super) fn id_of_context(&self, handle: Handle) -> Option<u32> {
        let (mut id, get) = (0, self.cupti.get_context_id?);
        // SAFETY: a context that CUPTI, the driver or the program told of in this callback, and a live u32.
        (!handle.is_null() && unsafe { get(handle, &mut id) } == SUCCESS).then_some(id)
    }

    /// Returns the id by which records name an executable graph.
    pub(super) fn id_of_graph(&self, executable: Handle) -> Option<u32> {
        let (mut id, get) = (0, self.cupti.get_graph_exec_id?);
        // SAFETY: a graph that CUPTI told of in this callback, and a live u32.
        (!executable.is_null() && unsafe { get(executable, &mut id) } == SUCCESS).then_some(id)
    }

    /// Returns the id by which records name a node of a graph.
    pub(super) fn id_of_node(&self, node: Handle) -> Option<u64> {
        let (mut id, get) = (0, self.cupti.get_graph_node_id?);
        // SAFETY: a node that CUPTI told of in this callback, and a live u64.
        (!node.is_null() && unsafe { get(node, &mut id) } == SUCCESS).then_some(id)
    }

    /// Whether CUPTI makes records for us, or did.
    pub(super) fn has_records_on(&self, agent: &Agent) -> bool {
        self.has_recorded.load(Ordering::Acquire) && self.wants_records(agent)
    }
}
