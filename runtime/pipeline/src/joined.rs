//! An activity with its launch.

use crate::clock::Span;
use xputrace_wire::record::{ActivityRecord, Launch};

/// An activity, with its launch if known.
pub(crate) struct Joined {
    pub(crate) span: Span,
    pub(crate) activity: ActivityRecord,
    pub(crate) launch: Option<Launch>,
}
