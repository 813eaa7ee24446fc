//! Graphs put together from the records of their nodes, where the GPU does not record them as a whole.
//!
//! Nothing says how many nodes a launch runs. It is complete when nothing of it can be outstanding: CUPTI found all
//! work done, or records of later launches have arrived two flushes ago (it delivers them in order of launch).

use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use xputrace_wire::record::{ActivityRecord, Graph};

/// Maximum number of completed launches that late nodes are told by.
const MOST_COMPLETED: usize = 8192;

/// The launches of graphs of a process of which nodes have arrived.
#[derive(Default)]
pub(crate) struct Graphs {
    /// By correlation id.
    open: FxHashMap<u32, OpenGraph>,
    completed: FxHashSet<u32>,
    /// The same, oldest first.
    completed_in_order: VecDeque<u32>,
    /// The newest correlation id of a record, now and one and two flushes ago.
    newest: [Option<u32>; 3],
}

struct OpenGraph {
    graph: Graph,
    /// The number of the node that `graph` has its place from.
    first_node: u64,
    flushes_since: u32,
}

/// What became of a node's record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NodeFate {
    Part,
    /// It belongs to no launch, or to one that is complete.
    Missed,
}

impl Graphs {
    /// Notes a record: later launches have not been submitted before it.
    #[inline]
    pub(crate) fn arrived(&mut self, record: &ActivityRecord) {
        let id = record.correlation();
        if self.newest[0].is_none_or(|newest| is_before(newest, id)) {
            self.newest[0] = Some(id);
        }
    }

    /// Takes the record of a node of `graph`.
    pub(crate) fn add_node(&mut self, graph: u32, node: &ActivityRecord) -> NodeFate {
        let correlation = node.correlation();
        if correlation == 0 || node.end().0 == 0 || self.completed.contains(&correlation) {
            return NodeFate::Missed;
        }
        let open = self.open.entry(correlation).or_insert_with(|| OpenGraph::new(graph, node));
        open.add(node);
        NodeFate::Part
    }

    /// Ends a flush, and returns the launches that are complete by now. `all_was_done` says whether CUPTI found all
    /// work done.
    pub(crate) fn flush(&mut self, all_was_done: bool) -> Vec<Graph> {
        self.newest = [self.newest[0], self.newest[0], self.newest[1]];
        let overtaken = self.newest[2];
        let is_complete = |it: &OpenGraph| {
            let was_overtaken = overtaken.is_some_and(|newer| is_before(it.graph.correlation, newer));
            it.flushes_since > 0 && (all_was_done || was_overtaken)
        };
        let complete = self.open.values().filter(|it| is_complete(it)).map(|it| it.graph.correlation).collect();
        self.open.values_mut().for_each(|it| it.flushes_since += 1);
        self.complete(complete)
    }

    /// Completes the oldest launches beyond `limit`; all of them with 0.
    pub(crate) fn shrink_to(&mut self, limit: usize) -> Vec<Graph> {
        if self.open.len() <= limit {
            return Vec::new();
        }
        let mut all: Vec<u32> = self.open.keys().copied().collect();
        self.sort(&mut all);
        all.truncate(all.len() - limit / 2);
        self.complete(all)
    }

    /// Puts the ids of launches in order, the oldest first.
    fn sort(&self, launches: &mut [u32]) {
        let newest = self.newest[0].unwrap_or(0);
        launches.sort_unstable_by_key(|it| it.wrapping_sub(newest) as i32);
    }

    fn complete(&mut self, mut launches: Vec<u32>) -> Vec<Graph> {
        self.sort(&mut launches);
        for launch in &launches {
            if self.completed_in_order.len() >= MOST_COMPLETED
                && let Some(oldest) = self.completed_in_order.pop_front()
            {
                self.completed.remove(&oldest);
            }
            self.completed.insert(*launch);
            self.completed_in_order.push_back(*launch);
        }
        launches.iter().filter_map(|it| self.open.remove(it)).map(|it| it.graph).collect()
    }
}

/// Whether a launch has an earlier correlation id than another: they grow, and start over after 2³².
fn is_before(id: u32, other: u32) -> bool {
    (other.wrapping_sub(id) as i32) > 0
}

impl OpenGraph {
    fn new(graph: u32, node: &ActivityRecord) -> Self {
        let (start, end) = (node.start(), node.end());
        let graph = Graph { graph, start, end, correlation: node.correlation(), is_derived: 1, ..Graph::default() };
        OpenGraph { graph, first_node: u64::MAX, flushes_since: 0 }
    }

    fn add(&mut self, node: &ActivityRecord) {
        let OpenGraph { graph, first_node, flushes_since } = self;
        *flushes_since = 0;
        graph.nodes = graph.nodes.saturating_add(1);
        graph.start = graph.start.min(node.start());
        graph.end = graph.end.max(node.end());
        // Branches run in streams of the driver's own, the first node in that of the launch.
        if node.graph_node() < *first_node {
            *first_node = node.graph_node();
            (graph.device, graph.context, graph.stream) = (node.device(), node.context(), node.stream());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_wire::events::Realtime;
    use xputrace_wire::record::{Kernel, Memset};

    fn node(correlation: u32, graph_node: u64, start: u64, end: u64) -> ActivityRecord {
        let (start, end) = (Realtime(start), Realtime(end));
        Kernel { correlation, graph_node, start, end, graph: 5, stream: graph_node as u32, ..Kernel::default() }.into()
    }

    fn take(graphs: &mut Graphs, nodes: &[ActivityRecord]) {
        for it in nodes {
            graphs.arrived(it);
            assert_eq!(graphs.add_node(5, it), NodeFate::Part);
        }
    }

    #[test]
    fn a_graph_is_from_its_first_start_to_its_last_end_in_the_stream_of_its_first_node() {
        let mut graphs = Graphs::default();
        take(&mut graphs, &[node(7, 3, 20, 30), node(7, 1, 25, 90)]);
        let memset =
            Memset { correlation: 7, graph_node: 2, start: Realtime(10), end: Realtime(15), ..Memset::default() };
        take(&mut graphs, &[memset.into()]);
        assert_eq!(graphs.flush(true), [], "its nodes may still be arriving");
        let [it] = graphs.flush(true)[..] else { panic!("one graph") };
        assert_eq!((it.start.0, it.end.0, it.nodes, it.stream, it.graph, it.is_derived), (10, 90, 3, 1, 5, 1));
    }

    #[test]
    fn a_graph_is_complete_when_all_is_done_or_later_launches_arrived_two_flushes_ago() {
        let mut graphs = Graphs::default();
        take(&mut graphs, &[node(7, 1, 20, 30)]);
        assert!((0..5).all(|_| graphs.flush(false).is_empty()), "nothing says that it has ended");
        graphs.arrived(&node(8, 0, 40, 50));
        assert_eq!([graphs.flush(false).len(), graphs.flush(false).len()], [0, 1]);
        assert_eq!(graphs.add_node(5, &node(7, 2, 60, 70)), NodeFate::Missed, "it comes too late");
        assert_eq!(graphs.add_node(5, &node(0, 2, 60, 70)), NodeFate::Missed, "its launch is unknown");
        assert_eq!(graphs.add_node(5, &node(9, 2, 60, 0)), NodeFate::Missed, "it did not end");
    }

    #[test]
    fn ids_that_are_high_or_start_over_are_in_order() {
        for first in [1 << 31, (1 << 31) + 50, u32::MAX - 1] {
            let mut graphs = Graphs::default();
            let [graph, next, last] = [first, first.wrapping_add(5), first.wrapping_add(9)];
            for id in [graph, next] {
                graphs.arrived(&node(id, 1, 20, 30));
                take(&mut graphs, &[node(id, 1, 20, 30)]);
            }
            graphs.arrived(&node(last, 0, 40, 50));
            assert_eq!(graphs.shrink_to(1).iter().map(|it| it.correlation).collect::<Vec<_>>(), [graph, next]);
            take(&mut graphs, &[node(first.wrapping_add(7), 1, 20, 30)]);
            assert_eq!([graphs.flush(false).len(), graphs.flush(false).len()], [0, 1], "from {first}");
        }
    }

    #[test]
    fn open_graphs_are_bounded_and_the_rest_is_completed_at_the_end() {
        let mut graphs = Graphs::default();
        (1..=10).for_each(|it| take(&mut graphs, &[node(it, 1, 20, 30)]));
        let oldest: Vec<u32> = graphs.shrink_to(8).iter().map(|it| it.correlation).collect();
        assert_eq!(oldest, [1, 2, 3, 4, 5, 6]);
        assert_eq!(graphs.shrink_to(8), []);
        assert_eq!(graphs.shrink_to(0).len(), 4);
    }
}
