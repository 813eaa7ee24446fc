//! What can be probed on a machine, as `xputrace list` shows it.

use crate::schema::Event;

/// A probe, or an event that needs none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub event: Event,
    /// In the notation of patterns: `kernel`, `tracepoint:sched:sched_switch`, `uprobe:PATH:NAME`.
    pub name: String,
    /// Names and types of what is its own beside the fields of its event: a tracepoint's record, a call's parameters.
    pub own: Vec<(String, String)>,
    /// Why it cannot be probed.
    pub refused: Option<&'static str>,
}

impl Listed {
    pub fn new(event: Event, name: impl Into<String>) -> Listed {
        Listed { event, name: name.into(), own: Vec::new(), refused: None }
    }

    /// Whether it is one of many with this event, which `name` tells apart.
    pub fn has_place(&self) -> bool {
        self.name != self.event.name()
    }
}
