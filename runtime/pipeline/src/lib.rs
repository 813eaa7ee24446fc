//! From the bytes of the rings to handled events and tables.
//!
//! ```text
//! live rings ─┐                                       ┌─▶ Sink (prints, interpreted handlers)
//!             ├─ bytes ─▶ decode ─▶ join ─▶ order ─▶ handlers ─▶ tables
//! recording ──┘             └─ clock: everything after it uses CLOCK_MONOTONIC
//! ```
//!
//! [`Pipeline`] cannot tell live rings from recordings: both are bytes in the wire format.
#![forbid(unsafe_code)]

mod account;
mod allocations;
mod buffers;
mod busy;
mod clock;
mod context;
mod device_handlers;
mod device_launches;
mod device_layout;
mod device_memory;
mod device_records;
mod engine_maps;
mod fields_read;
mod gaps;
mod gpus;
mod graphs;
mod handler;
mod handlers;
mod handling;
mod id_map;
mod idle;
mod intake;
mod join;
mod joined;
mod known_process;
mod object;
mod orphans;
mod outputs;
mod pipeline;
mod previous;
mod prints;
mod process;
mod process_facts;
mod process_info;
mod queue;
mod sink;
mod slab;
mod state;
mod streams;
mod strings;
mod switches;
mod waits;
mod wanted;
mod watermark;

pub use device_layout::{DeviceLayout, DeviceSite};
pub use engine_maps::EngineMaps;
pub use gpus::SeenGpu;
pub use known_process::{MappingInfo, ObjectInfo, TakenStack};
pub use outputs::Outputs;
pub use pipeline::{Pipeline, PipelineError, RemoteMaps, Waiting};
pub use prints::Prints;
pub use process_info::{Limits, ProcessIndex, ProcessInfo};
pub use sink::Sink;
pub use state::HandlerState;
pub use strings::Demangle;
pub use switches::{Switches, Turned};
