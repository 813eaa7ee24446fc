//! A capture: a graph that streams record their work in, in place of running it. [`crate::graph`] adds to it and ends it.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::abi::Handle;

/// A graph under construction, shared by the streams that joined the capture.
pub(crate) struct Capture {
    pub(crate) graph: Handle,
    pub(crate) id: u64,
    /// Whether a call that cannot be captured has ended it.
    is_invalid: AtomicBool,
}

impl Capture {
    pub(crate) fn of(graph: Handle, id: u64) -> Self {
        Self { graph, id, is_invalid: AtomicBool::new(false) }
    }

    /// Ends it without a graph.
    pub(crate) fn invalidate(&self) {
        self.is_invalid.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_invalid(&self) -> bool {
        self.is_invalid.load(Ordering::Relaxed)
    }
}
