//! An activity with its launch.

use crate::clock::Span;
use crate::join::{HeldLaunch, Pending};
use xputrace_wire::record::{ActivityRecord, Launch};

/// An activity that waits for its turn, and which launch it has, if that is known.
#[derive(Clone, Copy)]
pub(crate) struct QueuedActivity {
    pub(crate) span: Span,
    pub(crate) activity: ActivityRecord,
    pub(crate) launch: Option<HeldLaunch>,
}

impl QueuedActivity {
    #[inline]
    pub(crate) fn with_launch<'a>(&'a self, launches: &'a Pending) -> Joined<'a> {
        let launch = self.launch.map(|it| launches.held(it));
        Joined { span: self.span, activity: &self.activity, launch }
    }
}

/// An activity, with its launch if known.
pub(crate) struct Joined<'a> {
    pub(crate) span: Span,
    pub(crate) activity: &'a ActivityRecord,
    pub(crate) launch: Option<&'a Launch>,
}
