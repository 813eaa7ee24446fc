//! The collector's own counts, as read from a region or a recording.

use crate::region::{Control, Lost, Totals};
use std::sync::atomic::{AtomicU64, Ordering};
use xputrace_events::{Activity, Call, Calls, HostEvent};

/// The collector's own counts: what it wrote, and what it lost ([`Lost`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectorTotals {
    /// By [`Activity::index`].
    pub activities: [ActivityCounts; Activity::COUNT],
    /// By [`Call::index`].
    pub calls: [CallCounts; Call::COUNT],
    /// Host events, by [`HostEvent::index`].
    pub host_events: [u64; HostEvent::COUNT],
    pub window: WindowCounts,
    /// Nanoseconds spent in the collector's callbacks.
    pub callback_nanos: u64,
    /// Stacks that it took.
    pub stacks: u64,
    pub flushes: u64,
    /// Indexed by [`Lost`].
    pub lost: [u64; Lost::COUNT],
    /// Impossible ring positions, whose bytes were skipped.
    pub broken_rings: u64,
}

/// How often and how long a process was in the part of the run that is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowCounts {
    pub openings: u64,
    pub nanos: u64,
    /// When it was opened, in CLOCK_MONOTONIC nanoseconds; 0 while it is closed.
    pub open_since: u64,
    /// NVTX ranges of any name that were opened.
    pub ranges: u64,
}

/// Number and total duration of one kind of activity records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActivityCounts {
    pub records: u64,
    pub nanos: u64,
}

/// Calls of one kind that returned, including captured ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    pub made: u64,
    pub failed: u64,
    pub captured: u64,
}

impl CollectorTotals {
    /// Reads the current counts from the first page of a region.
    pub fn of(control: &Control, broken_rings: u64) -> Self {
        let now = |it: &AtomicU64| it.load(Ordering::Relaxed);
        let Totals { activities, calls, host_events, callback_nanos, stacks, flushes } = &control.totals;
        CollectorTotals {
            activities: activities
                .each_ref()
                .map(|it| ActivityCounts { records: now(&it.records), nanos: now(&it.nanos) }),
            calls: calls.each_ref().map(|it| CallCounts {
                made: now(&it.made),
                failed: now(&it.failed),
                captured: now(&it.captured),
            }),
            host_events: host_events.each_ref().map(now),
            window: WindowCounts {
                openings: now(&control.window.openings),
                nanos: now(&control.window.nanos),
                open_since: now(&control.window.open_since),
                ranges: now(&control.window.ranges),
            },
            callback_nanos: now(callback_nanos),
            stacks: now(stacks),
            flushes: now(flushes),
            lost: control.lost.each_ref().map(now),
            broken_rings,
        }
    }

    /// Returns the records of one kind.
    pub fn activity(&self, kind: Activity) -> ActivityCounts {
        self.activities[kind.index()]
    }

    /// Returns the calls of one kind.
    pub fn call(&self, kind: Call) -> CallCounts {
        self.calls[kind.index()]
    }

    /// Replaces the counts of one kind of activity.
    #[must_use]
    pub fn with_activity(mut self, kind: Activity, records: u64, nanos: u64) -> Self {
        self.activities[kind.index()] = ActivityCounts { records, nanos };
        self
    }

    /// Replaces the counts of one kind of call.
    #[must_use]
    pub fn with_call(mut self, kind: Call, counts: CallCounts) -> Self {
        self.calls[kind.index()] = counts;
        self
    }

    /// Returns the calls that submit a kernel or a graph.
    pub fn launches(&self) -> u64 {
        Calls::LAUNCHES.iter().fold(0, |sum, it| sum.saturating_add(self.call(it).made))
    }
}
