//! The `.xpt` format: what a run saw, for scripts to run over later (docs/RECORDING.md).
//!
//! ```text
//! file    magic, version, length and crc of the header, header (JSON)
//! block   magic, kind, lengths, crc of this head, crc of the payload, payload (zstd)
//! block   …
//! ```
//! Each block can be read independently. A damaged or truncated file yields what is readable.
#![forbid(unsafe_code)]

mod background;
mod block;
mod budget;
mod catalog;
mod columns;
mod entry;
mod format;
pub mod hits;
mod reader;
mod schema;
mod totals;
mod writer;

pub use background::BackgroundWriter;
pub use catalog::{EXEC_ID_OFFSET, RecordedMachine};
pub use entry::{FrameInfo, Hit, Meta, ProbeInfo, RecordedText, RecordingEntry, TracepointFieldInfo, UserString};
pub use format::{MAGIC, RecordingError, VERSION};
pub use reader::{Damage, RecordingReader};
pub use writer::RecordingWriter;
