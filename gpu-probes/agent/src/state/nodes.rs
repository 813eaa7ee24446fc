//! The stacks of the nodes of graphs, by the nodes' ids.

use crate::zeroed::{ZeroIsValid, Zeroed};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of nodes per process, 16 bytes each.
const NODES: usize = 128 << 10;
/// Entries that are searched for a node.
const PROBES: usize = 64;

/// The stacks of nodes. Fixed capacity, no lock, no allocation.
#[derive(Debug)]
pub(crate) struct Nodes(Zeroed<NodeEntry>);

#[derive(Debug)]
#[repr(C)]
struct NodeEntry {
    /// The node's id, plus 1; 0 if the entry is free.
    key: AtomicU64,
    /// Stack id.
    stack: AtomicU64,
}

// SAFETY: atomics.
unsafe impl ZeroIsValid for NodeEntry {}

impl Nodes {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Nodes(Zeroed::new(NODES)?))
    }

    /// Returns the stack of a node, if it has one.
    pub(crate) fn stack(&self, node: u64) -> Option<u32> {
        let at = self.entries(node).find(|it| matches!(it.key.load(Ordering::Acquire), 0) || it.is_of(node))?;
        Some(at.stack.load(Ordering::Acquire) as u32).filter(|it| at.is_of(node) && *it != 0)
    }

    /// Keeps a node's stack; returns false if there is no room.
    pub(crate) fn keep(&self, node: u64, stack: u32) -> bool {
        let free = |it: &NodeEntry| {
            it.key.compare_exchange(0, node.wrapping_add(1), Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        let Some(entry) = self.entries(node).find(|it| it.is_of(node) || free(it) || it.is_of(node)) else {
            return false;
        };
        entry.stack.store(stack.into(), Ordering::Release);
        true
    }

    fn entries(&self, node: u64) -> impl Iterator<Item = &NodeEntry> {
        let hash = node.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (0..PROBES).map(move |probe| &self.0[(hash as usize + probe) % NODES])
    }
}

impl NodeEntry {
    fn is_of(&self, node: u64) -> bool {
        self.key.load(Ordering::Acquire) == node.wrapping_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_keep_their_last_stack_and_the_table_is_bounded() {
        let nodes = Nodes::new().unwrap();
        assert_eq!(nodes.stack(7), None);
        assert!(nodes.keep(7, 3) && nodes.keep(0, 4) && nodes.keep(7, 5));
        assert_eq!((nodes.stack(7), nodes.stack(0), nodes.stack(8)), (Some(5), Some(4), None));
        let kept = (0..2 * NODES as u64).filter(|it| nodes.keep(*it << 32, 9)).count();
        assert!((NODES / 2..=NODES).contains(&kept), "{kept}");
    }
}
