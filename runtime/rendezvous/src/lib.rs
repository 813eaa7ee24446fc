//! The tracer's side of `wire::message`: accepts collectors, arms them, reads their rings.
//!
//! ```text
//!           thread "xputrace-accept"              whoever drains
//! Listener ─accept─▶ Connection ─HELLO─▶ Collector ─arm─▶ Arrival ─▶ Region ─drain─▶ bytes for the pipeline
//! ```
//! A program waits in its first CUDA call until it is armed, so arming has a thread of its own
//! ([`Acceptor`]) that neither output nor a silent peer can hold up.
//!
//! What records mean, it doesn't know. What comes from a target is untrusted.

mod acceptor;
mod choosing;
mod collector;
mod device;
mod dormant;
mod error;
mod listener;
mod network;
mod region;
mod socket;

pub use acceptor::{Acceptor, Armed, Arrival, Missed, Order, TagArrays, Why, comm_of};
pub use choosing::{ChooseWay, Chosen, Newcomer, Ways};
pub use collector::{Arming, Collector, FLUSH_MILLIS, Notice, RunOrder, SharedMemory, Window};
pub use device::{Clocks, ConditionCounts, DeviceBlock, DeviceCounts, DeviceRegion, LoadedImage, ProgramsOutcome};
pub use dormant::call_dormant;
pub use error::RendezvousError;
pub use listener::{Connection, Heard, Listener};
pub use region::{DEFAULT_SHAPE, Marks, Region};
pub use socket::Peer;
