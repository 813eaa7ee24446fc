//! What fails between tracer and collectors.

use std::io;
use xputrace_wire::limits::advice;

/// What failed between tracer and collectors.
#[derive(Debug, thiserror::Error)]
#[error("{attempted}: {answer}{}", advice(answer))]
pub struct RendezvousError {
    /// What was attempted, on what.
    pub attempted: String,
    /// What the system answered.
    pub answer: io::Error,
}

pub(super) fn failed(attempted: impl Into<String>, answer: io::Error) -> RendezvousError {
    RendezvousError { attempted: attempted.into(), answer }
}
