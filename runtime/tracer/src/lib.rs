//! From the bytes of the rings to handled events and tables.
//!
//! ```text
//! rendezvous ─┐                                       ┌─▶ Sink (prints, interpreted handlers)
//!             ├─ bytes ─▶ decode ─▶ join ─▶ order ─▶ handlers ─▶ tables
//! recording ──┘             └─ clock: everything after it uses CLOCK_MONOTONIC
//! ```
//!
//! [`Pipeline`] cannot tell live rings from recordings: both are bytes in the wire format. Only
//! [`rendezvous`] uses sockets and shared memory, and only it contains `unsafe`.
#![deny(unsafe_code)]

mod busy;
mod clock;
mod context;
mod device_launches;
mod device_memory;
mod device_records;
mod join;
pub mod names;
mod object;
pub mod pipeline;
mod prints;
pub mod recording;
pub mod rendezvous;
pub mod replay;
mod slab;
pub mod state;
pub mod switches;

pub use device_memory::{DeviceCopy, DeviceLayout, DeviceSite};
pub use device_records::RingRead;
pub use names::{Demangle, Names};
pub use pipeline::{
    CollectorTotals, Error, Limits, Made, Pipeline, ProcessIndex, ProcessInfo, Records, Sampled, SeenGpu, Sink,
    Waiting, WindowTotals,
};
pub use state::{EngineMaps, MappingInfo, ObjectInfo, State, TakenStack};
pub use switches::{Switches, Turned};
pub use xputrace_bytecode::vm::RemoteMap;
