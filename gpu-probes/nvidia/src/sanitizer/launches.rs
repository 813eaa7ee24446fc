//! Launches of kernels and graphs, as the API tells of them, and a record of each kernel.
//!
//! A kernel that takes its times has its record when these are known ([`super::times`]). Where nobody asks for kernels but for
//! their launches, a record says which launch a kernel's number is, and has the time at which that returned.

use super::functions::{GraphLaunchData, LaunchData};
use crate::cupti::Handle;
use std::cell::Cell;
use std::ffi::c_char;
use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering};
use xputrace_agent::clock::realtime_now;
use xputrace_agent::launch::{self, Entered, Records, Returned, Submission};
use xputrace_agent::this_thread;
use xputrace_agent::{Agent, Context, Layer, Stream};
use xputrace_unwind::Pushed;
use xputrace_wire::events::{self, Realtime};
use xputrace_wire::message::demand;
use xputrace_wire::record::{Kernel, UNKNOWN};

/// The only call: which of CUDA's functions the program has called isn't told.
const CALL: usize = 0;

/// Ids of launches; 0 is none.
static NEXT: AtomicU32 = AtomicU32::new(1);

thread_local! {
    /// The launch of a kernel that the thread is in, if it is recorded.
    static OPEN: Cell<Option<Launching>> = const { Cell::new(None) };
    /// Likewise of a graph.
    static GRAPH: Cell<Option<OpenGraph>> = const { Cell::new(None) };
    /// The correlation of the last one, until the program's call returns.
    static LAST_GRAPH: Cell<Option<u32>> = const { Cell::new(None) };
}

/// A kernel that is being launched, of which a record is to be.
#[derive(Clone, Copy)]
pub(super) struct Launching {
    pub(super) kernel: Kernel,
    pub(super) context: Context,
    /// What its record calls it: a C string that stays until the launch returns.
    pub(super) symbol: *const c_char,
    pub(super) recorded: RecordTiming,
}

/// When a kernel's record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordTiming {
    /// When its times are known.
    Later,
    /// When the launch returns, with that time: nobody asks for the kernel's.
    AtReturn,
    /// Likewise, without times: it takes none.
    WithoutTimes,
}

#[derive(Clone, Copy)]
struct OpenGraph {
    context: Context,
    correlation: u32,
    /// What records call the executable graph.
    id: u32,
}

/// Returns the id of a new launch.
pub(super) fn new_correlation() -> u32 {
    NEXT.fetch_add(1, Ordering::Relaxed).max(1)
}

/// Returns a kernel's record, as far as its launch tells.
pub(super) fn kernel_of(data: &LaunchData, correlation: u32, device: u32, context: Context) -> Kernel {
    let LaunchData { grid_id, grid, block, .. } = *data;
    let context = context.id;
    Kernel { grid_id, correlation, device, context, stream: UNKNOWN, grid, block, ..Kernel::default() }
}

/// Begins a launch, with its stack if that is wanted.
///
/// # Safety
/// `data` is the API's for this launch, which the calling thread makes; the registers are those at the API's call.
pub(super) unsafe fn begin(
    agent: &'static Agent,
    data: &LaunchData,
    correlation: u32,
    context: Context,
    registers: &Pushed,
) {
    let submission = || Submission {
        context: Some(context),
        grid: data.grid,
        block: data.block,
        dynamic_shared: 0,
        stream: Some(Stream { handle: data.stream as usize, per_thread: false }),
        is_captured: false,
        records: Records::Certain,
    };
    let entered = entered(events::Call::Kernel, correlation, data.function_name, registers);
    // SAFETY: the caller promises that `data` is the API's for this launch, with a name that is null or a C string
    // until it ends, and the registers at the API's call.
    unsafe { launch::enter(this_thread(), agent, &entered, submission) };
}

/// Has the kernel recorded whose launch the calling thread has begun.
pub(super) fn record(launching: Launching) {
    OPEN.set(Some(launching));
}

/// Ends the launch that the calling thread has begun, if it is recorded.
pub(super) fn end(agent: &'static Agent) {
    let Some(Launching { kernel, context, symbol, recorded }) = OPEN.take() else { return };
    leave(agent, events::Call::Kernel, kernel.correlation, context);
    let at = match recorded {
        RecordTiming::Later => return,
        RecordTiming::AtReturn => realtime_now(),
        RecordTiming::WithoutTimes => Realtime(0),
    };
    let kernel = Kernel { start: at, end: at, ..kernel };
    // SAFETY: a C string that stays.
    agent.deliver(1, 1, |delivery| unsafe { delivery.kernel(kernel, symbol) });
}

/// Begins the launch of a graph.
///
/// # Safety
/// As for [`begin`].
pub(super) unsafe fn begin_graph(agent: &'static Agent, data: &GraphLaunchData, context: Context, registers: &Pushed) {
    if !agent.wants(demand::PATCHED_KERNELS) {
        return;
    }
    let correlation = new_correlation();
    let submission = || Submission {
        context: Some(context),
        grid: [0; 3],
        block: [0; 3],
        dynamic_shared: 0,
        stream: Some(Stream { handle: data.stream as usize, per_thread: false }),
        is_captured: false,
        records: Records::Possible,
    };
    // SAFETY: the caller promises the registers at the API's call; there is no name.
    unsafe {
        launch::enter(this_thread(), agent, &entered(events::Call::Graph, correlation, null(), registers), submission)
    };
    // Handles are addresses of structures, of which no two are within 16 bytes.
    let id = (data.executable as usize >> 4) as u32 | 1;
    GRAPH.set(Some(OpenGraph { context, correlation, id }));
    LAST_GRAPH.set(Some(correlation));
}

/// Returns the correlation of the graph's launch that the thread's call was to do, if it is recorded.
pub(super) fn take_last_graph() -> Option<u32> {
    LAST_GRAPH.take()
}

/// Ends the launch of a graph that the calling thread has begun, if it is recorded.
pub(super) fn end_graph(agent: &'static Agent) {
    if let Some(OpenGraph { context, correlation, .. }) = GRAPH.take() {
        leave(agent, events::Call::Graph, correlation, context);
    }
}

/// Returns the record of a node of the graph that the calling thread is launching, as far as that tells.
pub(super) fn node_of(data: &LaunchData, node: Handle, device: u32, context: Context) -> Option<Kernel> {
    let OpenGraph { correlation, id, .. } = GRAPH.get()?;
    Some(Kernel { graph: id, graph_node: node as u64, ..kernel_of(data, correlation, device, context) })
}

fn entered<'a>(submits: events::Call, correlation: u32, symbol: *const c_char, registers: &'a Pushed) -> Entered<'a> {
    Entered { call: CALL, layer: Layer::Driver, submits, correlation, name: null(), symbol, registers }
}

fn leave(agent: &'static Agent, submits: events::Call, correlation: u32, context: Context) {
    let returned = Returned { call: CALL, submits, correlation, result: 0, context: Some(context) };
    // SAFETY: the names stay until the call returns.
    unsafe { launch::exit(this_thread(), agent, &returned) };
}

/// Returns a context by its slot: nobody names contexts here.
pub(super) fn context_of(slot: usize, handle: Handle) -> Context {
    Context { id: slot as u32 + 1, handle }
}
