//! The few CUDA driver functions that are called directly.

use super::Handle;
use crate::agent::Stream;
use std::ffi::{CStr, c_void};

/// A query of one handle that returns a number.
pub type AskNumber = unsafe extern "C" fn(Handle, *mut u32) -> u32;
/// A query of one handle that returns another.
pub type AskHandle = unsafe extern "C" fn(Handle, *mut Handle) -> u32;
/// A query of one handle that returns a list: room for handles, or null; and their number.
pub type AskHandles = unsafe extern "C" fn(Handle, *mut Handle, *mut usize) -> u32;

/// Driver functions about captured streams and graphs; a missing function is `None`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Driver {
    /// `cuStreamIsCapturing(stream, &status)`.
    pub is_capturing: Option<AskNumber>,
    /// The variant whose default stream is the thread's own.
    pub is_capturing_ptsz: Option<AskNumber>,
    /// `cuGraphGetNodes(graph, nodes, &count)`.
    pub graph_nodes: Option<AskHandles>,
    /// `cuGraphNodeGetType(node, &type)`.
    pub node_type: Option<AskNumber>,
    /// `cuGraphChildGraphNodeGetGraph(node, &graph)`.
    pub child_graph: Option<AskHandle>,
}

impl Driver {
    /// Whether work in this stream would be captured into a graph.
    pub(crate) fn is_capturing(&self, stream: Stream) -> bool {
        let ask = if stream.per_thread { self.is_capturing_ptsz.or(self.is_capturing) } else { self.is_capturing };
        let mut status = 0;
        // SAFETY: the stream of the launch that is being made, and a live u32.
        ask.is_some_and(|ask| unsafe { ask(stream.handle as Handle, &mut status) == 0 } && status != 0)
    }

    /// Returns the nodes of a graph, if available. The graph must not change meanwhile.
    pub(crate) fn nodes_of(&self, graph: Handle) -> Option<Vec<Handle>> {
        let ask = self.graph_nodes?;
        let mut count = 0;
        // SAFETY: a graph of the program; null asks for the number alone.
        if unsafe { ask(graph, std::ptr::null_mut(), &mut count) } != 0 {
            return None;
        }
        let mut nodes = Vec::new();
        nodes.try_reserve_exact(count).ok()?;
        nodes.resize(count, std::ptr::null_mut());
        // SAFETY: room for `count` handles.
        let answer = if count == 0 { 0 } else { unsafe { ask(graph, nodes.as_mut_ptr(), &mut count) } };
        (answer == 0 && count >= nodes.len()).then_some(nodes)
    }

    /// Returns the `CUgraphNodeType` of a node.
    pub(crate) fn type_of_node(&self, node: Handle) -> Option<u32> {
        let mut kind = 0;
        // SAFETY: a node of a graph of the program, and a live u32.
        (unsafe { (self.node_type?)(node, &mut kind) } == 0).then_some(kind)
    }

    /// Returns the graph inside a child graph node.
    pub(crate) fn child_graph(&self, node: Handle) -> Option<Handle> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: a node of a graph of the program, and a live handle.
        (unsafe { (self.child_graph?)(node, &mut graph) } == 0).then_some(graph)
    }
}

/// Finds the functions of the mapped driver; all are missing without one.
pub(crate) fn find_driver() -> Driver {
    // SAFETY: only looks at what is mapped.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return Driver::default();
    }
    // SAFETY: the driver's own functions by their names; null becomes `None`.
    unsafe {
        Driver {
            is_capturing: std::mem::transmute::<*mut c_void, Option<AskNumber>>(find(library, c"cuStreamIsCapturing")),
            is_capturing_ptsz: std::mem::transmute::<*mut c_void, Option<AskNumber>>(find(
                library,
                c"cuStreamIsCapturing_ptsz",
            )),
            graph_nodes: std::mem::transmute::<*mut c_void, Option<AskHandles>>(find(library, c"cuGraphGetNodes")),
            node_type: std::mem::transmute::<*mut c_void, Option<AskNumber>>(find(library, c"cuGraphNodeGetType")),
            child_graph: std::mem::transmute::<*mut c_void, Option<AskHandle>>(find(
                library,
                c"cuGraphChildGraphNodeGetGraph",
            )),
        }
    }
}

fn find(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: a library that is open, and a C string.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}
