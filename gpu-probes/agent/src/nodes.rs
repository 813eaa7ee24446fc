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
use super::output::{self, RingRole};
use super::surroundings::stack_of_driver_call;
use xputrace_unwind::Pushed;
use xputrace_wire::record::{Node, NodeUpdate, kind};
use xputrace_wire::region::Lost;
use zerocopy::{Immutable, IntoBytes};

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
        if let Some(stack) = unsafe { stack_of_driver_call(self, registers) }.id() {
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
        let is_told = output::with(self, RingRole::Launch, |out| out.write(kind, record, &[]));
        if !is_kept || is_told == Some(false) {
            self.count_lost(Lost::StackTableFull, 1);
        }
        if is_told.is_none() {
            output::count_no_ring(self, 1);
        }
    }
}
