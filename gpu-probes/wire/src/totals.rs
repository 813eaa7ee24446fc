//! The collector's own counts, as read from a region or a recording.

use crate::region::{ActivityTotals, CallTotals, Control, Lost, Totals, WindowTotals};
use std::sync::atomic::{AtomicU64, Ordering};
use xputrace_events::{Activity, Call, Calls, HostEvent};

/// The collector's own counts: what it wrote, and what it lost ([`Lost`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectorTotals {
    /// By [`Activity::index`].
    pub activities: [ActivityTotals<u64>; Activity::COUNT],
    /// By [`Call::index`].
    pub calls: [CallTotals<u64>; Call::COUNT],
    /// Host events, by [`HostEvent::index`].
    pub host_events: [u64; HostEvent::COUNT],
    pub window: WindowTotals<u64>,
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

impl CollectorTotals {
    /// Reads the current counts from the first page of a region.
    pub fn of(control: &Control, broken_rings: u64) -> Self {
        let now = |it: &AtomicU64| it.load(Ordering::Relaxed);
        let Totals { activities, calls, host_events, callback_nanos, stacks, flushes } = &control.totals;
        CollectorTotals {
            activities: activities
                .each_ref()
                .map(|it| ActivityTotals { records: now(&it.records), nanos: now(&it.nanos) }),
            calls: calls.each_ref().map(|it| CallTotals {
                made: now(&it.made),
                failed: now(&it.failed),
                captured: now(&it.captured),
            }),
            host_events: host_events.each_ref().map(now),
            window: WindowTotals {
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
    pub fn activity(&self, kind: Activity) -> ActivityTotals<u64> {
        self.activities[kind.index()]
    }

    /// Returns the calls of one kind.
    pub fn call(&self, kind: Call) -> CallTotals<u64> {
        self.calls[kind.index()]
    }

    /// Replaces the counts of one kind of activity.
    #[must_use]
    pub fn with_activity(mut self, kind: Activity, records: u64, nanos: u64) -> Self {
        self.activities[kind.index()] = ActivityTotals { records, nanos };
        self
    }

    /// Replaces the counts of one kind of call.
    #[must_use]
    pub fn with_call(mut self, kind: Call, counts: CallTotals<u64>) -> Self {
        self.calls[kind.index()] = counts;
        self
    }

    /// Returns the calls that submit a kernel or a graph.
    pub fn launches(&self) -> u64 {
        Calls::LAUNCHES.iter().fold(0, |sum, it| sum.saturating_add(self.call(it).made))
    }
}
