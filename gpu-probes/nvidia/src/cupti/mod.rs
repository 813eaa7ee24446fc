//! The backend for NVIDIA's GPUs: CUPTI, accessed through a table of functions from dlopen.
//!
//! ```text
//! launch ─▶ CUPTI ─▶ entry ─▶ launches ─▶ agent::launch
//! buffer ─▶ CUPTI ─▶ entry ─▶ delivery (records) ─▶ agent::delivery
//! ```
//!
//! Two kinds of CUPTI's launch calls are recorded without parameters: those of CUDA 4 and earlier,
//! and multi-device cooperative launches (one record, the kernels of all devices).

mod arming;
pub mod calls;
mod delivery;
pub mod driver;
mod entry;
pub mod functions;
mod graphs;
pub mod host_calls;
mod launches;
mod leaving;
pub(crate) mod locate;
mod others;
mod pool;
pub mod records;
mod subscription;
pub mod twins;
mod unified;
mod yielding;

pub use functions::*;

use driver::Driver;
use graphs::Graphs;
use host_calls::Watched;
use leaving::Teardown;
use pool::Pool;
use records::Recorded;
use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use twins::Twins;
use xputrace_agent::Held;
use xputrace_agent::device::ImageCode;
use xputrace_agent::resources::ContextIds;
use xputrace_agent::{
    Agent, Backend, Context, Flushing, KernelCode, Layer, Library, Order, Refusal, Stream, StreamKind, untraced,
};
use xputrace_wire::device::{ComputeCapabilities, Extent, ImageOutcome};
use xputrace_wire::events::{Activities, Activity, Calls, HostEvent, HostEvents};
use xputrace_wire::fatbin::Memory;
use xputrace_wire::message::demand;
use xputrace_wire::record::{Gpu, GpuLimits};
use yielding::Sharing;

/// CUPTI in this process, for one run.
#[derive(Debug)]
pub struct CuptiBackend {
    cupti: Cupti,
    driver: Driver,
    /// Whether another injected tool runs in this process: CUPTI is then not unloaded on leaving.
    is_chained: bool,
    /// Whether others may have used it before we came.
    may_be_used: bool,
    /// Whether we came before any graph could be made.
    is_first: bool,
    /// Whether the program may have loaded code before we came.
    is_late: bool,
    /// Whether graphs are recorded as a whole.
    whole_graphs: AtomicBool,
    subscriber: AtomicPtr<c_void>,
    open_captures: AtomicU32,
    graphs: Held<Graphs>,
    /// Number of buffer completions in progress.
    completing: AtomicU32,
    /// Number of buffers completed so far.
    completed: AtomicU32,
    /// Whether records were ever enabled.
    has_recorded: AtomicBool,
    /// Whether CUDA has started: unified memory can be recorded only then.
    has_started: AtomicBool,
    /// Whether any record has arrived.
    saw_records: AtomicBool,
    /// Size of this CUPTI's kernel records; 0 until two adjacent ones were seen.
    kernel_bytes: AtomicUsize,
    teardown: Teardown,
    sharing: Sharing,
    /// In a run that has them.
    twins: OnceLock<Twins>,
}

/// A backend that records for an agent.
#[derive(Debug)]
struct Run {
    agent: &'static Agent,
    backend: &'static CuptiBackend,
    watched: Watched,
    /// Whether anything is watched: all that a launch looks at.
    has_host_calls: bool,
    /// Whether kernels have twins, so that some calls are ours.
    has_twins: bool,
    /// Whether a launch's tag decides if it runs one.
    twins_need_tags: bool,
}

/// The run that callbacks are for.
static RUN: AtomicPtr<Run> = AtomicPtr::new(std::ptr::null_mut());
static POOL: OnceLock<Pool> = OnceLock::new();

/// What needs the ids of nodes.
const CAPTURES: u64 = demand::CAPTURES | demand::CAPTURES_PYTHON;

/// Returns the run that buffers belong to; `None` once it is over.
fn current_run() -> Option<&'static Run> {
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
    fn recorded(&self, wanted: Recorded) -> Recorded {
        let graphs = Activities::of(&[Activity::Graph]);
        match wanted.activities.contains(Activity::Graph) && !self.records_whole_graphs() {
            true => Recorded { activities: wanted.activities.without(graphs).with(Activities::NODES), ..wanted },
            false => wanted,
        }
    }

    #[inline]
    fn records_whole_graphs(&self) -> bool {
        self.whole_graphs.load(Ordering::Relaxed)
    }

    /// Returns what CUPTI says of a context that it tells of in this callback; `None` if it does not say it. Of one that is
    /// about to be destroyed, no stream is asked for.
    fn ids_of_context(&self, handle: Handle, is_created: bool) -> Option<ContextIds> {
        let context = Context { id: self.id_of_context(handle)?, handle };
        let null_stream = is_created.then(|| self.stream_of(context, Stream::default())).flatten();
        Some(ContextIds { context: context.id, device: self.device_of(context)?, null_stream })
    }

    /// Returns the id by which records name a context.
    fn id_of_context(&self, handle: Handle) -> Option<u32> {
        let (mut id, get) = (0, self.cupti.get_context_id?);
        // SAFETY: a context that CUPTI, the driver or the program told of in this callback, and a live u32.
        (!handle.is_null() && unsafe { get(handle, &mut id) } == SUCCESS).then_some(id)
    }

    /// Returns the id by which records name an executable graph.
    fn id_of_graph(&self, executable: Handle) -> Option<u32> {
        let (mut id, get) = (0, self.cupti.get_graph_exec_id?);
        // SAFETY: a graph that CUPTI told of in this callback, and a live u32.
        (!executable.is_null() && unsafe { get(executable, &mut id) } == SUCCESS).then_some(id)
    }

    /// Returns the id by which records name a node of a graph.
    fn id_of_node(&self, node: Handle) -> Option<u64> {
        let (mut id, get) = (0, self.cupti.get_graph_node_id?);
        // SAFETY: a node that CUPTI told of in this callback, and a live u64.
        (!node.is_null() && unsafe { get(node, &mut id) } == SUCCESS).then_some(id)
    }

    /// Whether CUPTI makes records for us, or did.
    fn has_records_on(&self, agent: &Agent) -> bool {
        self.has_recorded.load(Ordering::Acquire) && self.wants_records(agent)
    }
}

impl Library for CuptiBackend {
    fn version(&self) -> u32 {
        self.cupti.version()
    }

    fn capabilities(&self) -> u64 {
        let captures = if self.cupti.get_graph_node_id.is_some() { CAPTURES } else { 0 };
        let latencies = if self.cupti.enable_latency_timestamps.is_some() { demand::LATENCIES } else { 0 };
        let host = demand::HOST_STREAMS
            | demand::HOST_RANGES
            | demand::HOST_NESTED
            | demand::host_events(HostEvents::ALL.without(HostEvents::of(&[HostEvent::Nvtx])));
        let twins = if self.driver.code.is_complete() { demand::DEVICE } else { 0 };
        captures
            | latencies
            | twins
            | demand::STREAMS
            | demand::PRIORITIES
            | demand::EXTERNAL
            | demand::calls(Calls::ALL)
            | demand::activities(Activities::ALL)
            | host
    }

    fn layer_of(&self, file_name: &[u8]) -> Option<Layer> {
        layer_of(file_name)
    }

    fn each_gpu(&self, each: &mut dyn FnMut(&Gpu, &GpuLimits, &[u8])) -> bool {
        untraced(|| self.driver.devices.each(each))
    }

    fn device_of(&self, context: Context) -> Option<u32> {
        let mut device = 0;
        let get = self.cupti.get_device_id?;
        // SAFETY: CUPTI's own context and a live u32.
        (unsafe { get(context.handle, &mut device) } == SUCCESS).then_some(device)
    }

    fn stream_of(&self, context: Context, stream: Stream) -> Option<u32> {
        let mut id = 0;
        let get = self.cupti.get_stream_id?;
        // SAFETY: the call's own context and stream, and a live u32.
        let answer = unsafe { get(context.handle, stream.handle as *mut _, u8::from(stream.per_thread), &mut id) };
        (answer == SUCCESS).then_some(id)
    }

    fn priority_of(&self, stream: Stream) -> Option<i32> {
        self.driver.priority_of(stream)
    }

    fn kind_of_stream(&self, stream: Stream) -> StreamKind {
        kind_of_stream(stream)
    }
}

impl Backend for CuptiBackend {
    fn give_back(&self) {
        // SAFETY: the agent's promise: no callback of this run comes any more.
        unsafe { self.graphs.empty() };
    }

    fn start(&'static self, agent: &'static Agent) -> Result<(), Refusal> {
        let only_graphs = demand::activities_of(agent.demand()) == Activities::of(&[Activity::Graph]);
        self.whole_graphs.store(self.is_first && only_graphs && agent.records_throughout(), Ordering::Relaxed);
        // By an attribute of our subscription, where it is one of several.
        let is_scoped = self.cupti.has_several_subscribers();
        if !is_scoped {
            self.tell_latencies(agent);
        }
        self.prepare(agent)?;
        if is_scoped {
            self.tell_latencies(agent);
            self.tell_of_whole_graphs(agent);
        }
        Ok(())
    }

    fn switch(&'static self, agent: &'static Agent, from: &Order, to: &Order) -> Result<(), Refusal> {
        self.switch_records(agent, from, to)
    }

    fn abandon(&self, agent: &'static Agent) {
        self.want_no_activities(agent);
        self.give_subscription_up();
        others::undo();
    }

    fn flush(&self, agent: &'static Agent, how: Flushing) -> bool {
        // While another user has the records, a flush would deliver its own.
        !self.has_records_on(agent) || self.is_yielding() || self.flush_activities(agent, how)
    }

    fn tend(&'static self, agent: &'static Agent) {
        self.tend_to_other(agent);
    }

    fn stop_activities(&self, agent: &'static Agent) {
        self.want_no_activities(agent);
    }

    fn leave(&'static self, agent: &'static Agent) -> Option<&'static str> {
        let left_behind = self.let_go(agent);
        others::undo();
        left_behind
    }

    fn kernel_code(&'static self) -> Option<&'static dyn KernelCode> {
        Some(self)
    }
}

impl KernelCode for CuptiBackend {
    fn code_in(&self, image: u64, memory: &mut dyn Memory) -> Result<ImageCode, ImageOutcome> {
        twins::find_code(image, self.compute_capabilities().least, memory)
    }

    fn stop_twins(&self) {
        self.twins.get().into_iter().for_each(Twins::stop);
    }

    fn close_twins(&self) {
        self.twins.get().into_iter().for_each(Twins::close);
    }

    fn compute_capabilities(&self) -> ComputeCapabilities {
        self.driver.devices.compute_capabilities()
    }

    fn copy_blocks(&'static self, agent: &'static Agent, extent: Extent) {
        self.twins.get().into_iter().for_each(|it| it.copy_blocks(self, agent, extent));
    }

    fn poll_programs(&'static self, agent: &'static Agent) -> bool {
        self.twins.get().is_none_or(|it| it.poll_programs(self, agent))
    }

    fn leave_blocks(&'static self, agent: &'static Agent, disables: bool) {
        self.twins.get().into_iter().for_each(|it| it.leave_blocks(self, agent, disables));
    }
}

/// Returns the layer of one of CUDA's libraries.
pub(crate) fn layer_of(file_name: &[u8]) -> Option<Layer> {
    match file_name {
        it if it.starts_with(b"libcupti.so") => Some(Layer::Tracing),
        it if it.starts_with(b"libcuda.so") => Some(Layer::Driver),
        it if it.starts_with(b"libcudart") => Some(Layer::Runtime),
        _ => None,
    }
}

/// Returns what a stream of CUDA's is.
pub(crate) fn kind_of_stream(stream: Stream) -> StreamKind {
    match (stream.handle, stream.per_thread) {
        (STREAM_LEGACY, _) | (0, false) => StreamKind::Null,
        (STREAM_PER_THREAD, _) | (0, true) => StreamKind::OfThread,
        _ => StreamKind::Created,
    }
}
