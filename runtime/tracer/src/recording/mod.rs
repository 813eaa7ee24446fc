//! The `.xpt` format: what a run saw, for scripts to run over later (docs/RECORDING.md).
//!
//! ```text
//! file    magic, version, length and crc of the header, header (JSON)
//! block   magic, kind, lengths, crc of this head, crc of the payload, payload (zstd)
//! block   …
//! ```
//! Each block can be read independently. A damaged or truncated file yields what is readable.

mod background;
mod block;
mod budget;
mod catalog;
mod columns;
mod entry;
mod everything;
pub mod hits;
mod reader;
mod schema;
mod writer;

pub use background::BackgroundWriter;
pub use catalog::RecordedMachine;
pub use entry::{Entry, FrameInfo, GpuKind, Hit, Meta, ProbeInfo, RecordedText, TracepointFieldInfo, UserString};
pub use everything::every_event;
pub use reader::{Damage, Reader};
pub use writer::Writer;

use xputrace_wire::limits::advice;

/// First bytes of a recording.
pub const MAGIC: &[u8; 8] = b"XPUTRACE";
/// Version of the format; readers refuse others.
pub const VERSION: u32 = 1;

/// Why a recording cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("not a recording: it does not start with {:?}", String::from_utf8_lossy(MAGIC))]
    NotARecording,
    #[error("the recording has format version {0}; this program reads version {VERSION}")]
    Version(u32),
    #[error("the header of the recording is damaged at byte {0}")]
    Header(usize),
    #[error("cannot {attempted} the recording: {answer}{}", advice(answer))]
    Io { attempted: &'static str, answer: std::io::Error },
    #[error("cannot encode the recording")]
    Encode(#[from] serde_json::Error),
}
