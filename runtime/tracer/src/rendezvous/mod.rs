//! The tracer's side of `wire::message`: accepts collectors, arms them, reads their rings.
//!
//! ```text
//!           thread "xputrace-accept"              whoever drains
//! Listener ─accept─▶ Connection ─HELLO─▶ Target ─arm─▶ Arrival ─▶ Region ─take─▶ bytes for the pipeline
//! ```
//! A program waits in its first CUDA call until it is armed, so arming has a thread of its own
//! ([`Acceptor`]) that neither output nor a silent peer can hold up.
//!
//! The one module with sockets, shared memory and `unsafe`. What comes from a target is untrusted.
#![allow(unsafe_code, reason = "sockets and shared memory are system calls on raw memory")]

mod acceptor;
mod choosing;
mod device;
mod dormant;
mod listener;
mod network;
mod region;
mod socket;
mod target;

pub use acceptor::{Acceptor, Armed, Arrival, Missed, Order, TagArrays, Why, comm_of};
pub use choosing::{ChooseWay, Chosen, Newcomer, Ways};
pub use device::{
    Clocks, ConditionCounts, Cubin, DeviceBlock, DeviceCounts, DeviceRegion, Image, Loaded, ProgramsOutcome,
};
pub use dormant::call_dormant;
pub use listener::{Connection, Heard, Listener};
pub use region::{Marks, Region};
pub use socket::Peer;
pub(crate) use target::told;
pub use target::{Arming, Notice, Shared, Target, Window, Woven};

use std::io;
use xputrace_wire::limits::advice;
use xputrace_wire::region::Shape;

/// What failed between tracer and collectors.
#[derive(Debug, thiserror::Error)]
#[error("{attempted}: {answer}{}", advice(answer))]
pub struct RendezvousError {
    /// What was attempted, on what.
    pub attempted: String,
    /// What the system answered.
    pub answer: io::Error,
}

/// How often an armed collector flushes CUPTI's buffers.
pub const FLUSH_MILLIS: u64 = 100;

/// Rings and bytes a ring of a target: 512 threads that launch at the same time, 1 MiB each, touched as they fill.
pub const DEFAULT_SHAPE: Shape = Shape { rings: 512, ring_bytes: 1 << 20 };

fn failed(attempted: impl Into<String>, answer: io::Error) -> RendezvousError {
    RendezvousError { attempted: attempted.into(), answer }
}
