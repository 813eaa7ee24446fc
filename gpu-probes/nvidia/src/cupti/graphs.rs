//! Which graphs contain a kernel: launching any other produces no kernel record to wait for.
//!
//! A graph is examined once, when the program instantiates it, and only up to its first kernel. So
//! a program with huge graphs pays for all of their nodes only if none is a kernel.

use super::Handle;
use super::driver::Driver;
use std::sync::atomic::{AtomicU64, Ordering};
use xputrace_agent::launch::Records;
use xputrace_agent::zeroed::Zeroed;

/// Handles are stored in sets of this size, so that a launch touches one cache line.
const SET: usize = 8;
const SETS: usize = 1 << 12;
/// Maximum nesting of child graphs that is examined.
const MOST_DEPTH: u32 = 16;
/// The upper bits of a word say what the graph contains; the rest is its handle, an address in the
/// program.
const HANDLE_BITS: u32 = 62;
const HANDLE: u64 = (1 << HANDLE_BITS) - 1;

/// `CUgraphNodeType`.
mod node_type {
    pub(super) const KERNEL: u32 = 0;
    pub(super) const CHILD_GRAPH: u32 = 4;
    /// The highest type that never launches a kernel: copies, events, memory and the like.
    pub(super) const LAST_WITHOUT_KERNEL: u32 = 12;
}

/// What is known of the executable graphs (`CUgraphExec`) of this process. It is
/// [`Records::Possible`] for graphs instantiated earlier, for those beyond the table's capacity,
/// and for those with a node that may be disabled or skipped.
#[derive(Debug)]
pub(super) struct Graphs(Option<Zeroed<AtomicU64>>);

impl Graphs {
    /// Creates an empty table. Without memory it stays empty.
    pub(super) fn new() -> Self {
        Graphs(Zeroed::new(SET * SETS).ok())
    }

    /// Returns what a launch of this graph produces.
    #[inline]
    pub(super) fn kernels_of(&self, exec: usize) -> Records {
        let known = self.set(exec).iter().map(|it| it.load(Ordering::Acquire)).find(|it| is_of(*it, exec));
        match known.map(|it| it >> HANDLE_BITS) {
            Some(CERTAIN) => Records::Certain,
            Some(NONE) => Records::None,
            _ => Records::Possible,
        }
    }

    /// Examines `graph`, from which `exec` was instantiated; it must not change meanwhile.
    pub(super) fn made(&self, exec: usize, graph: Handle, driver: &Driver) {
        self.remember(exec, kernels_in(graph, driver, MOST_DEPTH));
    }

    /// Handles a node that was enabled or disabled. A graph without kernels stays without.
    pub(super) fn switched(&self, exec: usize) {
        if self.kernels_of(exec) == Records::Certain {
            self.forget(exec);
        }
    }

    /// Forgets a graph before it is destroyed: its handle may be reused.
    pub(super) fn forget(&self, exec: usize) {
        for it in self.set(exec) {
            let _ = it.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| is_of(word, exec).then_some(0));
        }
    }

    fn remember(&self, exec: usize, kernels: Records) {
        self.forget(exec);
        let holds = match kernels {
            Records::Certain => CERTAIN,
            Records::None => NONE,
            Records::Possible => return,
        };
        if exec as u64 & !HANDLE == 0 {
            let word = holds << HANDLE_BITS | exec as u64;
            let free = |it: &&AtomicU64| it.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            let _ = self.set(exec).iter().find(free);
        }
    }

    #[inline]
    fn set(&self, exec: usize) -> &[AtomicU64] {
        let Some(table) = &self.0 else { return &[] };
        let first = ((exec >> 4 ^ exec >> 16) % SETS) * SET;
        &table[first..first + SET]
    }
}

const CERTAIN: u64 = 1;
const NONE: u64 = 2;

#[inline]
fn is_of(word: u64, exec: usize) -> bool {
    word != 0 && word & HANDLE == exec as u64
}

/// Whether launching this graph produces a kernel, examining `depth` levels of child graphs.
fn kernels_in(graph: Handle, driver: &Driver, depth: u32) -> Records {
    let Some(nodes) = driver.nodes_of(graph) else { return Records::Possible };
    let mut all = Records::None;
    for node in nodes {
        match kernels_of_node(node, driver, depth) {
            Records::Certain => return Records::Certain,
            Records::Possible => all = Records::Possible,
            Records::None => {}
        }
    }
    all
}

fn kernels_of_node(node: Handle, driver: &Driver, depth: u32) -> Records {
    match driver.type_of_node(node) {
        Some(node_type::KERNEL) => Records::Certain,
        Some(node_type::CHILD_GRAPH) if depth > 0 => match driver.child_graph(node) {
            Some(child) => kernels_in(child, driver, depth - 1),
            None => Records::Possible,
        },
        Some(node_type::CHILD_GRAPH) => Records::Possible,
        Some(other) if other <= node_type::LAST_WITHOUT_KERNEL => Records::None,
        // A conditional node, whose body may or may not run, or a node of a later version.
        Some(_) | None => Records::Possible,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_void;

    /// Nodes by graph: a node's handle is its graph's and its place, so that the driver below knows it.
    const GRAPHS: &[(usize, &[u32])] = &[
        (0x100, &[1, 2, 3, 5]),
        (0x200, &[1, 2, 0]),
        (0x300, &[2, 4]),
        (0x400, &[2, 13]),
        (0x500, &[4, 13]),
        (0x600, &[]),
    ];

    fn nodes(graph: Handle) -> &'static [u32] {
        GRAPHS.iter().find(|it| it.0 == graph as usize).map_or(&[], |it| it.1)
    }

    unsafe extern "C" fn get_nodes(graph: Handle, out: *mut Handle, count: *mut usize) -> u32 {
        let all = nodes(graph);
        // SAFETY: the caller's pointers, as in CUDA.
        unsafe {
            if !out.is_null() {
                (0..all.len().min(*count)).for_each(|it| *out.add(it) = (graph as usize + it) as *mut c_void);
            }
            *count = all.len();
        }
        0
    }

    unsafe extern "C" fn get_type(node: Handle, out: *mut u32) -> u32 {
        let (graph, at) = (node as usize & !0xff, node as usize & 0xff);
        // SAFETY: the caller's pointer.
        unsafe { *out = nodes(graph as Handle)[at] };
        0
    }

    /// The child of graph 0x300 has a kernel, that of 0x500 is itself.
    unsafe extern "C" fn get_child(node: Handle, out: *mut Handle) -> u32 {
        let graph = node as usize & !0xff;
        // SAFETY: the caller's pointer.
        unsafe { *out = if graph == 0x300 { 0x200 } else { graph } as Handle };
        0
    }

    fn driver() -> Driver {
        Driver {
            graph_nodes: Some(get_nodes),
            node_type: Some(get_type),
            child_graph: Some(get_child),
            ..Driver::default()
        }
    }

    #[test]
    fn a_graph_is_known_by_its_nodes_and_those_of_its_children() {
        let graphs = Graphs::new();
        let expected = [
            (0x100, Records::None),
            (0x200, Records::Certain),
            (0x300, Records::Certain),
            (0x400, Records::Possible),
            (0x500, Records::Possible),
            (0x600, Records::None),
        ];
        for (graph, kernels) in expected {
            let exec = 0x7f00_0000_0000 + graph;
            assert_eq!(graphs.kernels_of(exec), Records::Possible, "{graph:x} is not known yet");
            graphs.made(exec, graph as Handle, &driver());
            assert_eq!(graphs.kernels_of(exec), kernels, "{graph:x}");
        }
        graphs.made(0x10, 0x100 as Handle, &Driver::default());
        assert_eq!(graphs.kernels_of(0x10), Records::Possible, "a driver that tells nothing");
    }

    #[test]
    fn a_handle_is_known_until_its_graph_ends_or_loses_a_node() {
        let graphs = Graphs::new();
        graphs.made(0x10, 0x100 as Handle, &driver());
        graphs.made(0x10, 0x200 as Handle, &driver());
        assert_eq!(graphs.kernels_of(0x10), Records::Certain, "the handle was used again");
        graphs.switched(0x10);
        assert_eq!(graphs.kernels_of(0x10), Records::Possible);
        graphs.made(0x20, 0x100 as Handle, &driver());
        graphs.switched(0x20);
        assert_eq!(graphs.kernels_of(0x20), Records::None);
        graphs.forget(0x20);
        assert_eq!(graphs.kernels_of(0x20), Records::Possible);
    }

    #[test]
    fn graphs_beyond_the_table_are_not_known() {
        let graphs = Graphs::new();
        let execs = (1..=3 * SET * SETS).map(|it| it << 4);
        execs.clone().for_each(|it| graphs.made(it, 0x100 as Handle, &driver()));
        let known = execs.filter(|it| graphs.kernels_of(*it) == Records::None).count();
        assert!((SET..=SET * SETS).contains(&known), "{known}");
    }
}
