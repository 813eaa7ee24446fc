//! How far the events of a process may be handled: no outstanding event ends earlier (docs/JOIN.md,
//! "Order").

use crate::buffers::Buffers;
use crate::join::Pending;
use crate::orphans::Orphans;
use crate::wanted::WantedRecords;
use xputrace_wire::record::Launch;

/// Maximum number of contexts remembered per process.
const MOST_CONTEXTS: usize = 64;

/// What a process's records say about outstanding events.
#[derive(Default)]
pub(crate) struct Watermark {
    /// Start of the last completed flush.
    flushed_until: u64,
    /// By context: start of the newest joined launch, now and one and two flushes ago.
    horizons: Vec<(u32, [u64; 3])>,
    /// What CUPTI's buffers say, for activities that launches do not announce.
    pub(crate) buffers: Buffers,
}

impl Watermark {
    /// Handles the first activity of a launch.
    #[inline]
    pub(crate) fn joined(&mut self, launch: &Launch) {
        if let Some((_, [newest, ..])) = self.horizons.iter_mut().find(|(context, _)| *context == launch.context) {
            *newest = (*newest).max(launch.start);
        } else if self.horizons.len() < MOST_CONTEXTS {
            self.horizons.push((launch.context, [launch.start, 0, 0]));
        }
    }

    pub(crate) fn flush(&mut self, ring: usize, began: u64) {
        self.flushed_until = self.flushed_until.max(began);
        for (_, [now, one_ago, two_ago]) in &mut self.horizons {
            (*two_ago, *one_ago) = (*one_ago, *now);
        }
        self.buffers.flush(ring, began);
    }

    /// Returns the start of the last completed flush. Calls and other host events may be handled up to there.
    pub(crate) fn flushed_until(&self) -> u64 {
        self.flushed_until
    }

    /// Returns the time up to which activities may be handled.
    pub(crate) fn activities_until(&self, wanted: &WantedRecords, launches: &Pending, orphans: &Orphans) -> u64 {
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

    /// Returns the launch that holds back later events: the oldest without an activity. If
    /// activities of later launches in its context arrived two flushes ago, CUPTI has lost its
    /// records (it delivers them in launch order), and it no longer holds back.
    pub(crate) fn oldest_withholding<'a>(&self, launches: &'a Pending) -> Option<&'a Launch> {
        // Those outside the window may have no activity, which is handled by nobody anyway.
        launches.oldest(|it| it.flags & Launch::OUTSIDE == 0 && !self.is_overtaken(it))
    }

    /// Returns when the launches began whose records CUPTI has lost, as far as that is known.
    pub(crate) fn overtaken(&self, launches: &Pending) -> Vec<u64> {
        launches.all_waiting().filter(|it| self.is_overtaken(it)).map(|it| it.start).collect()
    }

    fn is_overtaken(&self, launch: &Launch) -> bool {
        self.horizons.iter().any(|(context, [_, _, two_ago])| *context == launch.context && launch.start < *two_ago)
    }
}
