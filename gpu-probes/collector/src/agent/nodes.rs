//! Who captured or added the nodes of graphs.
//!
//! ```text
//! a node is made ─▶ its stack ─▶ table ─▶ Node record
//! it is copied, as into an executable graph ─▶ the original's stack ─▶ table ─▶ Node record
//! its graph is updated ─▶ the stack of the node that it becomes ─▶ table ─▶ NodeUpdate record
//! ```
//! An executable graph is in the table as well, by the stack that instantiated it.
//! CUPTI's records name the node that ran. Copies of copies have a stack, because each is in the table.

use super::Agent;
use super::clock::now;
use super::launch;
use super::output::{self, Role};
use super::zeroed::{ZeroIsValid, Zeroed};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use xputrace_unwind::Pushed;
use xputrace_wire::record::{Node, NodeUpdate, kind};
use xputrace_wire::region::Lost;
use zerocopy::{Immutable, IntoBytes};

/// Maximum number of nodes per process, 16 bytes each.
const NODES: usize = 128 << 10;
/// Entries that are searched for a node.
const PROBES: usize = 64;

/// The stacks of nodes. Fixed capacity, no lock, no allocation.
#[derive(Debug)]
pub(super) struct Nodes(Zeroed<Entry>);

#[derive(Debug)]
#[repr(C)]
struct Entry {
    /// The node's id, plus 1; 0 if the entry is free.
    key: AtomicU64,
    /// Stack id.
    stack: AtomicU64,
}

// SAFETY: atomics.
unsafe impl ZeroIsValid for Entry {}

impl Nodes {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Nodes(Zeroed::new(NODES)?))
    }

    /// Returns the stack of a node, if it has one.
    fn stack(&self, node: u64) -> Option<u32> {
        let at = self.entries(node).find(|it| matches!(it.key.load(Ordering::Acquire), 0) || it.is_of(node))?;
        Some(at.stack.load(Ordering::Acquire) as u32).filter(|it| at.is_of(node) && *it != 0)
    }

    /// Keeps a node's stack; returns false if there is no room.
    fn keep(&self, node: u64, stack: u32) -> bool {
        let free =
            |it: &Entry| it.key.compare_exchange(0, node.wrapping_add(1), Ordering::AcqRel, Ordering::Acquire).is_ok();
        let Some(entry) = self.entries(node).find(|it| it.is_of(node) || free(it) || it.is_of(node)) else {
            return false;
        };
        entry.stack.store(stack.into(), Ordering::Release);
        true
    }

    fn entries(&self, node: u64) -> impl Iterator<Item = &Entry> {
        let hash = node.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (0..PROBES).map(move |probe| &self.0[(hash as usize + probe) % NODES])
    }
}

impl Entry {
    fn is_of(&self, node: u64) -> bool {
        self.key.load(Ordering::Acquire) == node.wrapping_add(1)
    }
}

impl Agent {
    /// Handles a node that the program made, by capturing a call or by adding it. One that is a copy may be made
    /// and copied in either order: its original tells.
    ///
    /// # Safety
    /// The registers are those of the calling thread at the call of the backend, which has not returned.
    pub unsafe fn node_created(&'static self, node: u64, registers: &Pushed) {
        let Some(nodes) = &self.tables.nodes else { return };
        if nodes.stack(node).is_some() || !self.is_recording() {
            return;
        }
        // SAFETY: the caller promises the registers of the calling thread at the call of the backend.
        if let Some(stack) = unsafe { launch::stack_of_driver_call(self, registers) }.id() {
            self.keep_node(node, stack);
        }
    }

    /// Handles a node of an executable graph that has become what `model`, a node of another graph, is.
    pub fn node_updated(&'static self, node: u64, model: u64) {
        let Some(nodes) = self.tables.nodes.as_ref().filter(|_| self.is_recording()) else { return };
        let stack = nodes.stack(model).unwrap_or(0);
        let is_kept = nodes.keep(node, stack);
        let update = NodeUpdate { since: now(), node, stack, reserved: 0 };
        self.tell_of_node(is_kept, kind::NODE_UPDATE, &update);
    }

    /// Handles a node that is a copy.
    pub fn node_cloned(&'static self, node: u64, original: u64) {
        let stack = self.tables.nodes.as_ref().and_then(|it| it.stack(original));
        if let Some(stack) = stack.filter(|_| self.is_recording()) {
            self.keep_node(node, stack);
        }
    }

    fn keep_node(&'static self, node: u64, stack: u32) {
        let is_kept = self.tables.nodes.as_ref().is_some_and(|it| it.keep(node, stack));
        self.tell_of_node(is_kept, kind::NODE, &Node { node, stack, reserved: 0 });
    }

    fn tell_of_node(&'static self, is_kept: bool, kind: u16, record: &(impl IntoBytes + Immutable)) {
        let is_told = output::with(self, Role::Launch, |out| out.write(kind, record, &[]));
        if !is_kept || is_told == Some(false) {
            self.count_lost(Lost::StackTableFull, 1);
        }
        if is_told.is_none() {
            output::count_no_ring(self, 1);
        }
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
