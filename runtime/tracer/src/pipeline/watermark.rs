//! How far the events of a process may be handled: nothing that is still to come ends before
//! (docs/JOIN.md, "Order").

use super::buffers::Buffers;
use super::handlers::Wanted;
use super::orphans::Orphans;
use crate::join::Pending;
use xputrace_wire::record::Launch;

/// Contexts remembered of one process.
const MOST_CONTEXTS: usize = 64;

/// What a process's records have told about what is still to come.
#[derive(Default)]
pub(super) struct Watermark {
    /// When the last completed flush began.
    flushed_until: u64,
    /// By context: start of the newest joined launch, now, one and two flushes ago.
    horizons: Vec<(u32, [u64; 3])>,
    /// End of the newest launch, and what it was when the last drain had been taken.
    newest_launch_end: u64,
    launch_end_of_last_drain: u64,
    /// For what launches do not tell of: what CUPTI's buffers do.
    pub(super) buffers: Buffers,
}

impl Watermark {
    #[inline]
    pub(super) fn launch(&mut self, launch: &Launch) {
        self.newest_launch_end = self.newest_launch_end.max(launch.end);
    }

    /// A launch's work has been recorded.
    #[inline]
    pub(super) fn joined(&mut self, launch: &Launch) {
        if let Some((_, [newest, ..])) = self.horizons.iter_mut().find(|(context, _)| *context == launch.context) {
            *newest = (*newest).max(launch.start);
        } else if self.horizons.len() < MOST_CONTEXTS {
            self.horizons.push((launch.context, [launch.start, 0, 0]));
        }
    }

    pub(super) fn flush(&mut self, ring: usize, began: u64) {
        self.flushed_until = self.flushed_until.max(began);
        for (_, [now, one_ago, two_ago]) in &mut self.horizons {
            (*two_ago, *one_ago) = (*one_ago, *now);
        }
        self.buffers.flush(ring, began);
    }

    /// All of a drain was taken, and what was ready is about to be handled.
    pub(super) fn end_drain(&mut self) {
        self.launch_end_of_last_drain = self.newest_launch_end;
    }

    /// Calls that end by this time may be handled: one drain late, or where what the GPU did by
    /// then is handled too.
    pub(super) fn calls_until(&self, wanted: &Wanted, activities_until: u64) -> u64 {
        let with_activities = if wanted.activities.is_empty() { 0 } else { activities_until };
        self.launch_end_of_last_drain.max(with_activities)
    }

    /// What the GPU did may be handled where it ended by this time.
    pub(super) fn activities_until(&self, wanted: &Wanted, launches: &Pending, orphans: &Orphans) -> u64 {
        let mut until = orphans.oldest_end();
        if !wanted.foretold.is_empty() {
            let launch = self.oldest_withholding(launches).map_or(u64::MAX, |it| it.start);
            until = until.min(self.flushed_until).min(launch);
        }
        if wanted.foretold != wanted.activities {
            until = until.min(self.buffers.complete_until());
        }
        until
    }

    /// The launch that holds later events back: the oldest whose work has not come. One that
    /// the work of later launches in its context overtook two flushes ago was lost by CUPTI
    /// (which hands records over in order of launch) and holds back no longer.
    pub(super) fn oldest_withholding<'a>(&self, launches: &'a Pending) -> Option<&'a Launch> {
        let overtaken = |it: &Launch| {
            self.horizons.iter().any(|(context, [_, _, two_ago])| *context == it.context && it.start < *two_ago)
        };
        launches.oldest(|it| !overtaken(it))
    }
}
