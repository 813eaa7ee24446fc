//! Stream operations: run now, or recorded in a graph and run at each launch of it.

use std::sync::{Arc, Mutex, PoisonError};

use crate::abi::{GraphTrace2, Memset4, error, kind};
use crate::activity::{self, Moment, Ticket};
use crate::context_switch;
use crate::copy::Copy;
use crate::device;
use crate::graph::Exec;
use crate::kernel::Launch;
use crate::memory::MEMORY;
use crate::stream::{Mark, Stream};
use crate::unified;

/// One operation of a stream.
#[derive(Clone)]
pub(crate) enum Operation {
    Kernel(Arc<Launch>),
    Copy(Copy),
    Set(Set),
    Host { function: extern "C" fn(*mut std::ffi::c_void), data: usize },
}

/// Rows of memory filled with a pattern of `width` bytes.
#[derive(Clone)]
pub(crate) struct Set {
    pub(crate) to: usize,
    pub(crate) value: u32,
    pub(crate) width: usize,
    /// Patterns per row.
    pub(crate) count: usize,
    pub(crate) rows: usize,
    /// Bytes from the start of one row to the start of the next.
    pub(crate) pitch: usize,
    pub(crate) is_async: bool,
}

/// Value, memory kind and flags of the last set outside of graphs: CUPTI reports them for every set
/// inside a graph.
static LAST_SET: Mutex<(u32, u16, u16)> = Mutex::new((0, 0, 0));

/// The graph that an operation runs in; zeros outside of graphs.
#[derive(Clone, Copy, Default)]
pub(crate) struct GraphPosition {
    pub(crate) graph: u32,
    pub(crate) node: u64,
}

/// Queues work, or adds it to the graph that the stream is capturing.
pub(crate) fn submit(stream: &Arc<Stream>, operation: Operation, correlation: u32) -> Option<Mark> {
    if let Some(capture) = stream.capture() {
        capture.add(operation);
        return None;
    }
    Some(queue(stream, operation, correlation, GraphPosition::default(), true))
}

/// Queues all nodes of a graph under one correlation id. It cannot be captured.
pub(crate) fn submit_graph(stream: &Arc<Stream>, exec: &Exec, correlation: u32) -> Result<(), i32> {
    if let Some(capture) = stream.capture() {
        capture.invalidate();
        return Err(error::STREAM_CAPTURE_UNSUPPORTED);
    }
    exec.crash_if_unprepared();
    let whole = activity::enabled(kind::GRAPH_TRACE);
    let mut trace = whole.then(|| GraphTrace::begin(stream, exec, correlation));
    if let Some(first) = trace.as_mut().map(GraphTrace::first) {
        stream.submit(&device::streams_of(stream.context), first);
    }
    for task in exec.enabled() {
        let place = GraphPosition { graph: exec.id, node: exec.node_id(task.index) };
        queue(stream, task.operation, correlation, place, !whole);
    }
    if let Some(trace) = trace {
        stream.submit(&device::streams_of(stream.context), trace.last());
    }
    Ok(())
}

fn queue(stream: &Arc<Stream>, operation: Operation, correlation: u32, place: GraphPosition, recorded: bool) -> Mark {
    let mut ticket = if recorded { operation.ticket(stream, correlation, place) } else { None };
    let (device, context) = (stream.device, stream.context);
    stream.submit(&device::streams_of(stream.context), move || {
        context_switch::runs(device, context);
        if matches!(operation, Operation::Kernel(_)) {
            unified::touched_by_gpu(device);
        }
        let start = Moment::now();
        activity::started(&mut ticket, start);
        operation.run(activity::now());
        activity::finish(ticket, start, Moment::now());
    })
}

impl Operation {
    /// `CUgraphNodeType`.
    pub(crate) fn node_type(&self) -> u32 {
        match self {
            Self::Kernel(_) => 0,
            Self::Copy(_) => 1,
            Self::Set(_) => 2,
            Self::Host { .. } => 3,
        }
    }

    fn run(&self, start: u64) {
        match self {
            Self::Kernel(launch) => launch.run(start),
            Self::Copy(copy) => copy.run(),
            Self::Set(set) => set.run(),
            Self::Host { function, data } => function(*data as *mut _),
        }
    }

    fn ticket(&self, stream: &Stream, correlation: u32, place: GraphPosition) -> Option<Ticket> {
        match self {
            Self::Kernel(launch) => {
                let kind = activity::kernel_kind()?;
                activity::begin(&launch.record(kind, stream, correlation, place.graph, place.node))
            }
            Self::Copy(copy) => copy.ticket(stream, correlation, place),
            Self::Set(set) if activity::enabled(kind::MEMSET) => {
                activity::begin(&set.record(stream, correlation, place))
            }
            _ => None,
        }
    }
}

impl Set {
    /// Fills contiguous memory.
    pub(crate) fn flat(to: usize, value: u32, width: usize, count: usize) -> Self {
        Self::rows(to, 0, value, width, count, 1)
    }

    /// Fills `rows` rows, `pitch` bytes apart.
    pub(crate) fn rows(to: usize, pitch: usize, value: u32, width: usize, count: usize, rows: usize) -> Self {
        Self { to, value, width, count, rows, pitch, is_async: false }
    }

    fn run(&self) {
        let pattern = &self.value.to_ne_bytes()[..self.width];
        for row in 0..self.rows {
            let at = (self.to + row * self.pitch) as *mut u8;
            // SAFETY: the call checked that all rows belong to one allocation.
            let memory = unsafe { std::slice::from_raw_parts_mut(at, self.count * self.width) };
            memory.chunks_exact_mut(self.width).for_each(|chunk| chunk.copy_from_slice(pattern));
        }
    }

    /// Returns what CUPTI's record shows of this set outside of graphs.
    fn said(&self) -> (u32, u16, u16) {
        (self.value, u16::from(MEMORY.kind(self.to)), u16::from(self.is_async))
    }

    /// Remembers this as the last set outside of graphs.
    pub(crate) fn remember(&self) {
        *LAST_SET.lock().unwrap_or_else(PoisonError::into_inner) = self.said();
    }

    fn record(&self, stream: &Stream, correlation_id: u32, place: GraphPosition) -> Memset4 {
        let in_graph = place.graph != 0;
        let (value, memory_kind, flags) =
            if in_graph { *LAST_SET.lock().unwrap_or_else(PoisonError::into_inner) } else { self.said() };
        Memset4 {
            kind: kind::MEMSET,
            value,
            bytes: (self.count * self.width * self.rows) as u64,
            device_id: stream.device as u32,
            context_id: stream.context,
            stream_id: stream.id,
            correlation_id,
            flags,
            memory_kind,
            graph_node_id: place.node,
            graph_id: place.graph,
            channel_type: 1,
            ..Memset4::default()
        }
    }
}

/// The single record of a whole graph launch: starts with its first task, ends with its last.
struct GraphTrace {
    ticket: Arc<Mutex<(Option<Ticket>, Moment)>>,
}

impl GraphTrace {
    fn begin(stream: &Stream, exec: &Exec, correlation_id: u32) -> Self {
        let record = GraphTrace2 {
            kind: kind::GRAPH_TRACE,
            correlation_id,
            device_id: stream.device as u32,
            graph_id: exec.id,
            context_id: stream.context,
            stream_id: stream.id,
            end_device_id: stream.device as u32,
            end_context_id: stream.context,
            ..GraphTrace2::default()
        };
        Self { ticket: Arc::new(Mutex::new((activity::begin(&record), Moment::default()))) }
    }

    fn first(&mut self) -> impl FnOnce() + Send + 'static {
        let shared = self.ticket.clone();
        move || {
            if let Ok(mut shared) = shared.lock() {
                shared.1 = Moment::now();
                let start = shared.1;
                activity::started(&mut shared.0, start);
            }
        }
    }

    fn last(self) -> impl FnOnce() + Send + 'static {
        move || {
            if let Ok(mut shared) = self.ticket.lock() {
                let start = shared.1;
                activity::finish(shared.0.take(), start, Moment::now());
            }
        }
    }
}
