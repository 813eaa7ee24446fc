//! One process of a run: what has arrived of it and waits.

use crate::account::Counts;
use crate::allocations::Allocations;
use crate::clock::ClockOffset;
use crate::gaps::Gaps;
use crate::graphs::Graphs;
use crate::idle::Idle;
use crate::join::Pending;
use crate::joined::QueuedActivity;
use crate::orphans::Orphans;
use crate::previous::Previous;
use crate::process_facts::ProcessFacts;
use crate::process_info::{Limits, ProcessIndex, ProcessInfo};
use crate::queue::{EventQueue, Queued};
use crate::streams::StreamIds;
use crate::waits::Waits;
use crate::watermark::Watermark;
use xputrace_model::loss::Loss;
use xputrace_wire::record::{ActivityRecord, HostEventRecord, Launch};

/// Drains for which an event waits for a name: another thread's ring may bring it in the next one.
const MOST_NAME_WAITS: u32 = 2;

/// One process of a run.
pub(crate) struct TracedProcess {
    pub(crate) facts: ProcessFacts,
    pub(crate) clock: ClockOffset,
    /// Launches in flight.
    pub(crate) launches: Pending,
    pub(crate) orphans: Orphans,
    pub(crate) watermark: Watermark,
    /// GPU activities, and the CPU calls that handlers want to see.
    pub(crate) activities: EventQueue<QueuedActivity>,
    pub(crate) calls: EventQueue<Launch>,
    pub(crate) host_events: EventQueue<HostEventRecord>,
    pub(crate) counts: Counts,
    pub(crate) gaps: Gaps,
    pub(crate) previous: Previous,
    pub(crate) waits: Waits,
    pub(crate) graphs: Graphs,
    pub(crate) idle: Idle,
    pub(crate) allocations: Allocations,
    pub(crate) stream_ids: StreamIds,
    /// Whether its collector's last flush has arrived.
    pub(crate) is_complete: bool,
    /// Whether it had launched before it was traced.
    is_attached: bool,
    /// The correlation id of the first launch that was seen.
    first_correlation: Option<u32>,
    name_waits: u32,
}

impl TracedProcess {
    pub(crate) fn new(index: ProcessIndex, info: &ProcessInfo, limits: Limits) -> Self {
        TracedProcess {
            facts: ProcessFacts::new(index, info),
            clock: ClockOffset::default(),
            launches: Pending::new(limits.graph_launches),
            orphans: Orphans::default(),
            watermark: Watermark::default(),
            activities: EventQueue::default(),
            calls: EventQueue::default(),
            host_events: EventQueue::default(),
            counts: Counts::default(),
            gaps: Gaps::default(),
            previous: Previous::default(),
            waits: Waits::default(),
            graphs: Graphs::default(),
            idle: Idle::default(),
            allocations: Allocations::default(),
            stream_ids: StreamIds::default(),
            is_complete: false,
            is_attached: info.is_attached,
            first_correlation: None,
            name_waits: 0,
        }
    }

    /// Notes a launch's correlation id.
    #[inline]
    pub(crate) fn launched(&mut self, correlation: u32) {
        if self.is_attached && self.first_correlation.is_none_or(|first| is_shortly_before(correlation, first)) {
            self.first_correlation = Some(correlation);
        }
    }

    /// Returns the loss that an activity without its launch is. A process's correlation ids grow: one below that
    /// of the first launch seen belongs to an earlier launch.
    pub(crate) fn loss_of(&self, activity: &ActivityRecord) -> Loss {
        match self.first_correlation {
            Some(first) if is_shortly_before(activity.correlation(), first) => Loss::BeforeAttach,
            _ => Loss::Unjoined,
        }
    }

    /// Prepares to tell which kernel ran before another one in the next batch.
    pub(crate) fn prepare_previous(&mut self, is_forced: bool) {
        self.previous.begin(self.watermark.overtaken(&self.launches), is_forced);
    }

    /// Whether an event should wait for its GPU: the flush that it ended before says which it is.
    #[inline]
    pub(crate) fn waits_for_gpu(&self, event: &impl Queued) -> bool {
        self.facts.gpus.awaits(event.device()) && event.end() > self.watermark.flushed_until()
    }

    /// Whether an event should wait for a name that has not arrived.
    #[inline]
    pub(crate) fn waits_for_names(&mut self, event: &impl Queued) -> bool {
        let mut names = event.names(&self.launches).into_iter();
        let waits = self.name_waits < MOST_NAME_WAITS && names.any(|it| self.facts.lacks_name(it));
        self.name_waits = if waits { self.name_waits + 1 } else { 0 };
        waits
    }

    /// Returns the launch that holds back waiting events, if any.
    pub(crate) fn waits_for(&self) -> Option<&Launch> {
        match self.activities.is_empty() {
            true => None,
            false => self.watermark.oldest_withholding(&self.launches),
        }
    }
}

/// Whether a correlation id is one of the last before another one: ids start over after 2³², so that those of launches
/// long after the first one come close to it again.
fn is_shortly_before(id: u32, other: u32) -> bool {
    const MOST_IN_FLIGHT: u32 = 1 << 20;
    (1..MOST_IN_FLIGHT).contains(&other.wrapping_sub(id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_wire::record::Kernel;

    #[test]
    fn a_kernel_launched_before_attaching_is_told_from_one_whose_launch_is_lost() {
        let losses = |is_attached, launches: &[u32]| {
            let info = ProcessInfo { is_attached, ..ProcessInfo::default() };
            let mut process = TracedProcess::new(ProcessIndex(0), &info, Limits::default());
            launches.iter().for_each(|it| process.launched(*it));
            let kernel = |correlation| ActivityRecord::Kernel(Kernel { correlation, ..Kernel::default() });
            [49, 50, 51].map(|it| process.loss_of(&kernel(it)))
        };
        assert_eq!(losses(true, &[60, 50, 70]), [Loss::BeforeAttach, Loss::Unjoined, Loss::Unjoined]);
        assert_eq!(losses(true, &[u32::MAX - 3, 60]), [Loss::Unjoined; 3], "ids have started over");
        assert_eq!(losses(true, &[]), [Loss::Unjoined; 3], "nothing tells");
        assert_eq!(losses(false, &[60, 50, 70]), [Loss::Unjoined; 3]);
    }
}
