//! What a process is asked for, and why it is refused.

use std::path::PathBuf;

/// What a process is made to do: `dlopen(library)`, then `symbol(argument)`.
#[derive(Clone, Debug)]
pub struct Request {
    /// As the process sees it.
    pub library: PathBuf,
    /// A function that takes a C string and returns an `int`.
    pub symbol: &'static str,
    pub argument: String,
}

/// Why nothing was loaded. The process goes on as before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InjectRefusal(String);

impl InjectRefusal {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        InjectRefusal(text.into())
    }
}
