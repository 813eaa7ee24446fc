//! How a recording begins, and why one cannot be read.

use xputrace_wire::limits::advice;

/// First bytes of a recording.
pub const MAGIC: &[u8; 8] = b"XPUTRACE";
/// Version of the format; readers refuse others.
pub const VERSION: u32 = 1;

/// Why a recording cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
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
