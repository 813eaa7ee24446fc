//! Graphs: what a stream capture recorded or a program added, and what an executable graph launches.
//!
//! ```text
//! capture, add ─▶ Graph: nodes, some of which are child graphs ─ instantiate: copy, flatten ─▶ Exec: tasks
//! ```
//! As on a GPU, CUPTI tells of every node that is made or copied, those of child graphs too. The tasks that a child
//! graph's nodes become have numbers of their own, of which it does not tell (seen with 13.0).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::abi::{GraphData, Handle, error, kind};
use crate::activity;
use crate::callback;
use crate::capture::Capture;
use crate::forks::say;
use crate::kernel::Launch;
use crate::operation::Operation;
use crate::registry::{HANDLES, Registry};

pub(crate) static GRAPHS: Registry<Graph> = Registry::new();
pub(crate) static EXECS: Registry<Exec> = Registry::new();
static NEXT_GRAPH: AtomicU32 = AtomicU32::new(1);

// `CUpti_CallbackIdResource`.
const GRAPH_CREATED: u32 = 9;
const GRAPH_CLONED: u32 = 11;
const GRAPH_NODE_CREATED: u32 = 13;
const GRAPH_EXEC_CREATED: u32 = 18;
const GRAPH_NODE_CLONED: u32 = 20;
const GRAPH_NODE_UPDATED: u32 = 22;
const GRAPH_NODE_SET_PARAMS: u32 = 23;
// `CUgraphNodeType`.
const TYPE_KERNEL: u32 = 0;
const TYPE_CHILD: u32 = 4;
const TYPE_EMPTY: u32 = 5;
// `CUgraphExecUpdateResult`.
const TOPOLOGY_CHANGED: u32 = 2;
const NODE_TYPE_CHANGED: u32 = 3;
/// A node's handle is its graph's handle, shifted by this many bits, plus the node's number.
const NODE_BITS: u32 = 24;

/// A graph.
pub(crate) struct Graph {
    pub(crate) id: u32,
    nodes: Mutex<Vec<Node>>,
}

#[derive(Clone)]
pub(crate) enum Node {
    Operation(Operation),
    /// A graph that belongs to this node.
    Child(Handle),
    Empty,
}

/// An executable graph. Its id is the graph id in kernel records.
pub(crate) struct Exec {
    pub(crate) id: u32,
    /// The graph that it was instantiated from.
    graph: Handle,
    /// Types of all nodes, in order; an update must have the same.
    shape: Vec<u32>,
    tasks: Mutex<Vec<Task>>,
    /// Disabled nodes by number; a launch skips them.
    off: Vec<AtomicBool>,
    /// Whether CUPTI was recording whole graphs when it was instantiated.
    is_whole: bool,
}

/// What a launch runs.
#[derive(Clone)]
pub(crate) struct Task {
    /// Its number in the executable graph.
    pub(crate) index: usize,
    /// The number of the graph's node that it is, or that it is a part of.
    node: usize,
    pub(crate) operation: Operation,
}

impl Node {
    /// `CUgraphNodeType`.
    fn node_type(&self) -> u32 {
        match self {
            Self::Operation(it) => it.node_type(),
            Self::Child(_) => TYPE_CHILD,
            Self::Empty => TYPE_EMPTY,
        }
    }
}

impl Graph {
    fn new(nodes: Vec<Node>) -> Self {
        Self { id: next_id(), nodes: Mutex::new(nodes) }
    }

    pub(crate) fn nodes(&self) -> MutexGuard<'_, Vec<Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exec {
    /// Returns CUPTI's node id: graph id in the upper half, the task's number in the lower.
    pub(crate) fn node_id(&self, index: usize) -> u64 {
        u64::from(self.id) << 32 | index as u64
    }

    /// Returns what a launch runs.
    pub(crate) fn enabled(&self) -> Vec<Task> {
        let is_on = |it: &&Task| !self.off[it.node].load(Ordering::Relaxed);
        self.tasks().iter().filter(is_on).cloned().collect()
    }

    /// Returns the disabled flag of a node, given the node's handle in the graph.
    pub(crate) fn off(&self, node: Handle) -> Option<&AtomicBool> {
        self.off.get(node_index(node)?)
    }

    /// CUPTI 13.0 crashes a process that launches a graph which was instantiated before whole graphs were recorded.
    pub(crate) fn crash_if_unprepared(&self) {
        if !self.is_whole && activity::enabled(kind::GRAPH_TRACE) {
            say(format_args!(
                "this graph was instantiated before CUPTI_ACTIVITY_KIND_GRAPH_TRACE was enabled: CUPTI 13.0 crashes"
            ));
            // SAFETY: no memory is touched.
            unsafe { libc::raise(libc::SIGSEGV) };
        }
    }

    fn tasks(&self) -> MutexGuard<'_, Vec<Task>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Capture {
    pub(crate) fn begin() -> Arc<Self> {
        let graph = create();
        let id = GRAPHS.get(graph).map_or(0, |it| it.id.into());
        Arc::new(Self::of(graph, id))
    }

    pub(crate) fn add(&self, operation: Operation) {
        let _ = add(self.graph, Node::Operation(operation));
    }

    /// Returns the finished graph.
    pub(crate) fn end(&self) -> Result<Handle, i32> {
        if self.is_invalid() {
            let _ = destroy(self.graph);
            return Err(error::STREAM_CAPTURE_INVALIDATED);
        }
        Ok(self.graph)
    }
}

fn next_id() -> u32 {
    NEXT_GRAPH.fetch_add(1, Ordering::Relaxed)
}

/// Creates an empty graph.
pub(crate) fn create() -> Handle {
    let graph = GRAPHS.insert(Graph::new(Vec::new()));
    announce(GRAPH_CREATED, GraphData { graph, ..GraphData::default() });
    graph
}

/// Destroys a graph, with its child graphs.
pub(crate) fn destroy(handle: Handle) -> Result<(), i32> {
    let graph = GRAPHS.remove(handle)?;
    destroy_children(&graph.nodes());
    Ok(())
}

fn destroy_children(nodes: &[Node]) {
    for node in nodes {
        if let Node::Child(graph) = node {
            let _ = destroy(*graph);
        }
    }
}

/// Adds a node to a graph, and returns it.
pub(crate) fn add(handle: Handle, node: Node) -> Result<Handle, i32> {
    let node_type = node.node_type();
    let index = {
        let graph = GRAPHS.find(handle)?;
        let mut nodes = graph.nodes();
        nodes.push(node);
        nodes.len() - 1
    };
    let node = node_handle(handle, index);
    announce(GRAPH_NODE_CREATED, GraphData { graph: handle, node, node_type, ..GraphData::default() });
    Ok(node)
}

/// Adds a copy of `child` as a node.
pub(crate) fn add_child(handle: Handle, child: Handle) -> Result<Handle, i32> {
    let child = copy(child)?;
    add(handle, Node::Child(child))
}

/// Copies a graph, with its child graphs.
fn copy(handle: Handle) -> Result<Handle, i32> {
    let nodes = GRAPHS.find(handle)?.nodes().clone();
    let copy = create();
    let nodes = copy_nodes(copy, handle, &nodes)?;
    *GRAPHS.find(copy)?.nodes() = nodes;
    Ok(copy)
}

/// Tells of the nodes of a graph that is a copy, and copies its child graphs: each node is made, and is the copy of
/// another one.
fn copy_nodes(graph: Handle, original_graph: Handle, nodes: &[Node]) -> Result<Vec<Node>, i32> {
    let mut copies = Vec::new();
    for (index, it) in nodes.iter().enumerate() {
        let it_copied = match it {
            Node::Child(child) => Node::Child(copy(*child)?),
            other => other.clone(),
        };
        let (node, original_node) = (node_handle(graph, index), node_handle(original_graph, index));
        let node_type = it.node_type();
        announce(GRAPH_NODE_CREATED, GraphData { graph, node, node_type, ..GraphData::default() });
        let copy = GraphData { graph, original_graph, node, original_node, node_type, ..GraphData::default() };
        announce(GRAPH_NODE_CLONED, copy);
        copies.push(it_copied);
    }
    Ok(copies)
}

/// Copies a graph for the program.
pub(crate) fn clone(handle: Handle) -> Result<Handle, i32> {
    let copy = copy(handle)?;
    announce(GRAPH_CLONED, GraphData { graph: copy, original_graph: handle, ..GraphData::default() });
    Ok(copy)
}

/// Instantiates a graph.
pub(crate) fn instantiate(handle: Handle) -> Result<Handle, i32> {
    let nodes = GRAPHS.find(handle)?.nodes().clone();
    let exec = Arc::new(Exec {
        id: next_id(),
        graph: handle,
        shape: shape(&nodes)?,
        tasks: Mutex::default(),
        off: nodes.iter().map(|_| AtomicBool::new(false)).collect(),
        is_whole: activity::enabled(kind::GRAPH_TRACE),
    });
    let executable = EXECS.insert_shared(exec.clone());
    let copies = copy_nodes(executable, handle, &nodes)?;
    *exec.tasks() = flattened(&copies)?;
    destroy_children(&copies);
    announce(GRAPH_EXEC_CREATED, GraphData { graph: handle, graph_exec: executable, ..GraphData::default() });
    Ok(executable)
}

/// Makes an executable graph do what another graph does; returns the `CUgraphExecUpdateResult` if it cannot.
pub(crate) fn update(executable: Handle, graph: Handle) -> Result<Result<(), u32>, i32> {
    let exec = EXECS.find(executable)?;
    let nodes = GRAPHS.find(graph)?.nodes().clone();
    let shape = shape(&nodes)?;
    if shape.len() != exec.shape.len() {
        return Ok(Err(TOPOLOGY_CHANGED));
    }
    if shape != exec.shape {
        return Ok(Err(NODE_TYPE_CHANGED));
    }
    for (index, it) in nodes.iter().enumerate() {
        let (node, original_node) = (node_handle(graph, index), node_handle(executable, index));
        let data = GraphData { node, original_node, node_type: it.node_type(), ..GraphData::default() };
        announce(GRAPH_NODE_UPDATED, data);
        announce_params(executable, &exec, index, it.node_type());
    }
    *exec.tasks() = flattened(&nodes)?;
    Ok(Ok(()))
}

/// Changes what a kernel node of an executable graph launches; `node` is that of the graph it was instantiated from.
pub(crate) fn set_kernel_in_exec(executable: Handle, node: Handle, launch: Arc<Launch>) -> Result<(), i32> {
    let exec = EXECS.find(executable)?;
    let index = node_index(node).filter(|_| graph_of(node) == exec.graph).ok_or(error::INVALID_VALUE)?;
    let mut tasks = exec.tasks();
    let task = tasks.iter_mut().find(|it| it.index == index && it.operation.node_type() == TYPE_KERNEL);
    task.ok_or(error::INVALID_VALUE)?.operation = Operation::Kernel(launch);
    drop(tasks);
    announce_params(executable, &exec, index, TYPE_KERNEL);
    Ok(())
}

/// Changes what a kernel node of a graph launches.
pub(crate) fn set_kernel(node: Handle, launch: Arc<Launch>) -> Result<(), i32> {
    let graph = GRAPHS.get(graph_of(node)).ok_or(error::INVALID_VALUE)?;
    let mut nodes = graph.nodes();
    match node_index(node).and_then(|it| nodes.get_mut(it)) {
        Some(Node::Operation(it)) if it.node_type() == TYPE_KERNEL => *it = Operation::Kernel(launch),
        _ => return Err(error::INVALID_VALUE),
    }
    Ok(())
}

fn announce_params(executable: Handle, exec: &Exec, index: usize, node_type: u32) {
    let (node, original_node) = (node_handle(executable, index), node_handle(exec.graph, index));
    let original_graph = exec.graph;
    announce(
        GRAPH_NODE_SET_PARAMS,
        GraphData { original_graph, node, original_node, node_type, ..GraphData::default() },
    );
}

/// Returns the types of all nodes, each child graph's behind its own.
fn shape(nodes: &[Node]) -> Result<Vec<u32>, i32> {
    let mut types = Vec::new();
    for node in nodes {
        types.push(node.node_type());
        if let Node::Child(child) = node {
            types.extend(shape(&GRAPHS.find(*child)?.nodes())?);
        }
    }
    Ok(types)
}

/// Returns what a launch of these nodes runs.
fn flattened(nodes: &[Node]) -> Result<Vec<Task>, i32> {
    let (mut tasks, mut next) = (Vec::new(), nodes.len());
    for (index, it) in nodes.iter().enumerate() {
        match it {
            Node::Operation(operation) => tasks.push(Task { index, node: index, operation: operation.clone() }),
            Node::Child(child) => flatten_child(*child, index, &mut next, &mut tasks)?,
            Node::Empty => {}
        }
    }
    Ok(tasks)
}

fn flatten_child(child: Handle, node: usize, next: &mut usize, tasks: &mut Vec<Task>) -> Result<(), i32> {
    let nodes = GRAPHS.find(child)?.nodes().clone();
    for it in &nodes {
        match it {
            Node::Operation(operation) => {
                tasks.push(Task { index: *next, node, operation: operation.clone() });
                *next += 1;
            }
            Node::Child(child) => flatten_child(*child, node, next, tasks)?,
            Node::Empty => {}
        }
    }
    Ok(())
}

/// Returns CUPTI's id of a node: that of its graph in the upper half, its number in the lower.
pub(crate) fn node_id(node: Handle) -> Option<u64> {
    let graph = graph_of(node);
    let id = GRAPHS.get(graph).map(|it| it.id).or_else(|| EXECS.get(graph).map(|it| it.id))?;
    Some(u64::from(id) << 32 | node_index(node)? as u64)
}

/// Returns the `CUgraphNode` at `index`.
pub(crate) fn node_handle(graph: Handle, index: usize) -> Handle {
    (graph & !HANDLES) << NODE_BITS | (index + 1)
}

fn graph_of(node: Handle) -> Handle {
    HANDLES | node >> NODE_BITS
}

/// Returns a node's number within its graph.
fn node_index(node: Handle) -> Option<usize> {
    (node & ((1 << NODE_BITS) - 1)).checked_sub(1)
}

/// Returns a node.
pub(crate) fn node(node: Handle) -> Option<Node> {
    let graph = GRAPHS.get(graph_of(node))?;
    let nodes = graph.nodes();
    nodes.get(node_index(node)?).cloned()
}

/// Returns the `CUgraphNodeType` of a node.
pub(crate) fn node_type(handle: Handle) -> Option<u32> {
    node(handle).map(|it| it.node_type())
}

fn announce(id: u32, data: GraphData) {
    callback::resource(id, data.graph, (&raw const data).cast());
}
