//! Graphs: what a stream capture recorded, and what an executable graph launches.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::abi::{GraphData, Handle};
use crate::callback;
use crate::device::{self, Registry};
use crate::operation::Operation;

pub(crate) static GRAPHS: Registry<Graph> = Registry::new();
pub(crate) static EXECS: Registry<Exec> = Registry::new();

// `CUpti_CallbackIdResource`.
const GRAPH_CREATED: u32 = 9;
const GRAPH_CLONED: u32 = 11;
const GRAPH_NODE_CREATED: u32 = 13;
const GRAPH_EXEC_CREATED: u32 = 18;
const GRAPH_NODE_CLONED: u32 = 20;
/// A node's handle is its graph's handle, shifted by this many bits, plus the node's number.
const NODE_BITS: u32 = 24;

/// A graph under construction, shared by the streams that joined the capture.
pub(crate) struct Capture {
    pub(crate) graph: Handle,
    pub(crate) id: u64,
    operations: Mutex<Vec<Operation>>,
}

/// A finished graph.
pub(crate) struct Graph {
    pub(crate) id: u32,
    pub(crate) operations: Mutex<Vec<Operation>>,
}

/// An executable graph. Its id is the graph id in kernel records.
pub(crate) struct Exec {
    pub(crate) id: u32,
    pub(crate) operations: Vec<Operation>,
    /// Disabled nodes by number; a launch skips them.
    off: Vec<AtomicBool>,
}

impl Exec {
    /// Returns CUPTI's node id: graph id in the upper half, node index in the lower.
    pub(crate) fn node_id(&self, index: usize) -> u64 {
        u64::from(self.id) << 32 | index as u64
    }

    /// Returns the nodes that a launch runs, with their numbers.
    pub(crate) fn enabled(&self) -> impl Iterator<Item = (usize, &Operation)> {
        let all = self.operations.iter().enumerate();
        all.filter(|(index, _)| !self.off[*index].load(Ordering::Relaxed))
    }

    /// Returns the disabled flag of a node, given the node's handle in the graph.
    pub(crate) fn off(&self, node: Handle) -> Option<&AtomicBool> {
        self.off.get(node_index(node)?)
    }
}

impl Capture {
    pub(crate) fn begin() -> Arc<Self> {
        let graph = Graph { id: device::next_graph_id(), operations: Mutex::default() };
        let id = u64::from(graph.id);
        let graph = GRAPHS.insert(graph);
        announce(GRAPH_CREATED, GraphData { graph, ..GraphData::default() });
        Arc::new(Self { graph, id, operations: Mutex::default() })
    }

    pub(crate) fn add(&self, operation: Operation) {
        let node_type = operation.node_type();
        let index = {
            let mut operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
            operations.push(operation);
            operations.len()
        };
        announce(
            GRAPH_NODE_CREATED,
            GraphData {
                graph: self.graph,
                node: node_handle(self.graph, index - 1),
                node_type,
                ..GraphData::default()
            },
        );
    }

    /// Ends the capture and returns the finished graph.
    pub(crate) fn end(&self) -> Handle {
        let operations = std::mem::take(&mut *self.operations.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(graph) = GRAPHS.get(self.graph) {
            *graph.operations.lock().unwrap_or_else(PoisonError::into_inner) = operations;
        }
        self.graph
    }
}

/// Creates an empty graph.
pub(crate) fn create() -> Handle {
    Capture::begin().graph
}

/// Adds an operation to a graph that is not being captured, and returns its node.
pub(crate) fn add(handle: Handle, operation: Operation) -> Result<Handle, i32> {
    let node_type = operation.node_type();
    let index = {
        let graph = GRAPHS.find(handle)?;
        let mut operations = graph.operations.lock().unwrap_or_else(PoisonError::into_inner);
        operations.push(operation);
        operations.len() - 1
    };
    let node = node_handle(handle, index);
    announce(GRAPH_NODE_CREATED, GraphData { graph: handle, node, node_type, ..GraphData::default() });
    Ok(node)
}

/// Instantiates a graph.
pub(crate) fn instantiate(handle: Handle, graph: &Graph) -> Handle {
    let operations = graph.operations.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let types = operations.iter().map(Operation::node_type).collect::<Vec<_>>();
    let off = operations.iter().map(|_| AtomicBool::new(false)).collect();
    let exec = EXECS.insert(Exec { id: device::next_graph_id(), operations, off });
    announce_copies(exec, handle, &types);
    announce(GRAPH_EXEC_CREATED, GraphData { graph: handle, graph_exec: exec, ..GraphData::default() });
    exec
}

/// Copies a graph.
pub(crate) fn clone(handle: Handle) -> Result<Handle, i32> {
    let operations = GRAPHS.find(handle)?.operations.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let types = operations.iter().map(Operation::node_type).collect::<Vec<_>>();
    let copy = GRAPHS.insert(Graph { id: device::next_graph_id(), operations: Mutex::new(operations) });
    announce_copies(copy, handle, &types);
    announce(GRAPH_CLONED, GraphData { graph: copy, original_graph: handle, ..GraphData::default() });
    Ok(copy)
}

/// Tells of the nodes of a graph that is a copy: each is made, and is the copy of another one.
fn announce_copies(graph: Handle, original_graph: Handle, types: &[u32]) {
    for (index, node_type) in types.iter().copied().enumerate() {
        let (node, original_node) = (node_handle(graph, index), node_handle(original_graph, index));
        announce(GRAPH_NODE_CREATED, GraphData { graph, node, node_type, ..GraphData::default() });
        let copy = GraphData { graph, original_graph, node, original_node, node_type, ..GraphData::default() };
        announce(GRAPH_NODE_CLONED, copy);
    }
}

/// Returns CUPTI's id of a node: that of its graph in the upper half, its number in the lower.
pub(crate) fn node_id(node: Handle) -> Option<u64> {
    let graph = device::HANDLES | node >> NODE_BITS;
    let id = GRAPHS.get(graph).map(|it| it.id).or_else(|| EXECS.get(graph).map(|it| it.id))?;
    Some(u64::from(id) << 32 | node_index(node)? as u64)
}

/// Returns the `CUgraphNode` at `index`.
pub(crate) fn node_handle(graph: Handle, index: usize) -> Handle {
    (graph & !device::HANDLES) << NODE_BITS | (index + 1)
}

/// Returns a node's number within its graph.
fn node_index(node: Handle) -> Option<usize> {
    (node & ((1 << NODE_BITS) - 1)).checked_sub(1)
}

/// Returns the `CUgraphNodeType` of a node.
pub(crate) fn node_type(node: Handle) -> Option<u32> {
    let graph = GRAPHS.get(device::HANDLES | node >> NODE_BITS)?;
    let operations = graph.operations.lock().unwrap_or_else(PoisonError::into_inner);
    operations.get(node_index(node)?).map(Operation::node_type)
}

fn announce(id: u32, data: GraphData) {
    callback::resource(id, data.graph, (&raw const data).cast());
}
