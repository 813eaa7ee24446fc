//! The GPU's events, defined once: [`table`] has one row per activity, [`host`] one per kind of CUDA call.
//!
//! ```text
//!              ┌─▶ wire: the record that travels through a ring, the demand's bits
//! table: a row ┼─▶ model: the fields that scripts read, and the words where handlers find them
//!              ├─▶ tracer: join, order, account, columns of recordings
//!              └─▶ docs/LANGUAGE.md: the tables of fields
//! ```
//! A new event is a row here, and a decoder in each collector backend that reports it. Where a
//! vendor's records keep a value is the backend's business and not in the table.
#![forbid(unsafe_code)]

#[macro_use]
mod texts;

pub mod about;
pub mod clock;
pub mod column;
pub mod detail;
pub mod device;
pub mod field;
pub mod host;
pub mod kinds;
pub mod table;
pub mod word;

pub use about::{About, CostClass, MeasuredCost};
pub use clock::Realtime;
pub use column::{Column, Prediction, Texts};
pub use detail::{Detail, Details};
pub use device::DeviceEvent;
pub use field::{Field, FieldType, From, Unit};
pub use host::{
    ContextChangeKind, EventSource, HostEvent, HostEventRecord, MigrationCause, MigrationKind, ModuleKind,
    OverheadKind, PayloadFloat, RangeKind,
};
pub use kinds::{Activities, Calls, HostEvents};
pub use table::{
    Activity, ActivityRecord, Call, Choice, CopyDirection, ExternalKind, Graph, Kernel, Launch, Memcpy, MemoryKind,
    Memset, OfActivity, Visitor, in_place,
};
pub use word::{GpuContext, WORDS};
