//! Activities that arrived before their launch, whose record is written when the call returns.

use crate::clock::Span;
use xputrace_wire::record::ActivityRecord;

/// Flushes for which an activity waits for its launch.
const MOST_FLUSHES: u64 = 2;

/// Activities that wait for their launch, in order of arrival.
#[derive(Default)]
pub(crate) struct Orphans {
    waiting: Vec<Orphan>,
}

pub(crate) struct Orphan {
    pub(crate) activity: ActivityRecord,
    /// `None` if its times were not collected.
    pub(crate) span: Option<Span>,
    flushes_seen: u64,
}

impl Orphans {
    pub(crate) fn push(&mut self, activity: ActivityRecord, span: Option<Span>) {
        self.waiting.push(Orphan { activity, span, flushes_seen: 0 });
    }

    /// Removes those whose launch `join` finds.
    pub(crate) fn retry(&mut self, mut join: impl FnMut(&Orphan) -> bool) {
        self.waiting.retain(|it| !join(it));
    }

    /// Handles a completed flush: gives up those that have waited for too many.
    pub(crate) fn expire(&mut self) -> impl Iterator<Item = Orphan> {
        self.waiting.iter_mut().for_each(|it| it.flushes_seen += 1);
        self.waiting.extract_if(.., |it| it.flushes_seen >= MOST_FLUSHES)
    }

    /// Gives up the oldest ones beyond `limit`.
    pub(crate) fn shrink_to(&mut self, limit: usize) -> impl Iterator<Item = Orphan> {
        self.waiting.drain(..self.waiting.len().saturating_sub(limit))
    }

    /// Returns the earliest end; `u64::MAX` if none waits.
    pub(crate) fn oldest_end(&self) -> u64 {
        self.waiting.iter().filter_map(|it| it.span).map(|it| it.end).min().unwrap_or(u64::MAX)
    }
}
