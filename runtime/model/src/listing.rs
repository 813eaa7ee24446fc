//! What can be probed on a machine, as `xputrace list` shows it.

use crate::catalog::TracepointField;
use crate::schema::Event;

/// A probe, or an event that needs none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub event: Event,
    /// In the notation of patterns: `kernel`, `tracepoint:sched:sched_switch`, `uprobe:PATH:NAME`.
    pub name: String,
    /// Fields of a tracepoint's own record.
    pub record: Vec<TracepointField>,
    /// Why it cannot be probed.
    pub refused: Option<&'static str>,
}

impl Listed {
    pub fn new(event: Event, name: impl Into<String>) -> Listed {
        Listed { event, name: name.into(), record: Vec::new(), refused: None }
    }
}
