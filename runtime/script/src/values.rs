//! Values that declaring functions give to scripts.

use rhai::{FnPtr, ImmutableString};

/// A declared probe, as scripts hold it; with several targets it has the first one's name.
#[derive(Clone, Debug)]
pub(crate) struct ProbeRef {
    pub(crate) name: ImmutableString,
    /// Its position in [`crate::session::Session::probes`]; beyond them after a mistake.
    pub(crate) declared: u32,
}

impl ProbeRef {
    /// Returned after a mistake, which has been reported.
    pub(crate) fn none(name: &str) -> Self {
        ProbeRef { name: name.into(), declared: u32::MAX }
    }
}

/// Returned by `interpret` after misuse, which has been reported.
#[derive(Clone, Debug)]
pub(crate) struct Reported;

/// A handler wrapped in `interpret(…)`.
#[derive(Clone, Debug)]
pub(crate) struct Interpreted(pub(crate) FnPtr);
