//! The collector's own counts, live and in recordings.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use xputrace_model::plan::{Activity, Call, Calls, HostEvent};
use xputrace_wire::region::{Control, Lost, Totals};

/// The collector's own counts: what it wrote, and what it lost ([`Lost`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct CollectorTotals {
    /// By [`Activity::index`].
    pub activities: [Records; Activity::COUNT],
    /// By [`Call::index`].
    pub calls: [Made; Call::COUNT],
    /// Host events, by [`HostEvent::index`].
    pub host_events: [u64; HostEvent::COUNT],
    pub window: WindowTotals,
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
pub struct WindowTotals {
    pub openings: u64,
    pub nanos: u64,
    /// When it was opened, in CLOCK_MONOTONIC nanoseconds; 0 while it is closed.
    pub open_since: u64,
    /// NVTX ranges of any name that were opened.
    pub ranges: u64,
}

/// Number and total duration of one kind of activity records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Records {
    pub records: u64,
    pub nanos: u64,
}

/// Calls of one kind that returned, including captured ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Made {
    pub made: u64,
    pub failed: u64,
    pub captured: u64,
}

impl CollectorTotals {
    /// Reads the current counts from the first page of a region.
    pub(crate) fn of(control: &Control, broken_rings: u64) -> Self {
        let now = |it: &AtomicU64| it.load(Ordering::Relaxed);
        let Totals { activities, calls, host_events, callback_nanos, stacks, flushes } = &control.totals;
        CollectorTotals {
            activities: activities.each_ref().map(|it| Records { records: now(&it.records), nanos: now(&it.nanos) }),
            calls: calls.each_ref().map(|it| Made {
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
    pub fn activity(&self, kind: Activity) -> Records {
        self.activities[kind.index()]
    }

    /// Returns the calls of one kind.
    pub fn call(&self, kind: Call) -> Made {
        self.calls[kind.index()]
    }

    /// Replaces the counts of one kind of activity.
    #[must_use]
    pub fn with_activity(mut self, kind: Activity, records: u64, nanos: u64) -> Self {
        self.activities[kind.index()] = Records { records, nanos };
        self
    }

    /// Replaces the counts of one kind of call.
    #[must_use]
    pub fn with_call(mut self, kind: Call, counts: Made) -> Self {
        self.calls[kind.index()] = counts;
        self
    }

    /// Returns the calls that submit a kernel or a graph.
    pub fn launches(&self) -> u64 {
        Calls::LAUNCHES.iter().fold(0, |sum, it| sum.saturating_add(self.call(it).made))
    }
}

/// The form in recordings: kinds by name. Older recordings have the members after `broken_rings`
/// instead, which do not tell failed or captured graphs from kernels.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Stored {
    activities: Vec<(String, u64, u64)>,
    calls: Vec<(String, u64, u64, u64)>,
    host_events: Vec<(String, u64)>,
    callback_nanos: u64,
    stacks: u64,
    flushes: u64,
    lost: Vec<u64>,
    broken_rings: u64,
    #[serde(skip_serializing)]
    kernels: u64,
    #[serde(skip_serializing)]
    kernel_nanos: u64,
    #[serde(skip_serializing)]
    launches: u64,
    #[serde(skip_serializing)]
    graph_launches: u64,
    #[serde(skip_serializing)]
    failed_launches: u64,
    #[serde(skip_serializing)]
    captured_launches: u64,
}

impl From<CollectorTotals> for Stored {
    fn from(it: CollectorTotals) -> Self {
        let activity = |kind: &Activity| (kind.name().to_owned(), it.activity(*kind).records, it.activity(*kind).nanos);
        let call = |kind: &Call| {
            let Made { made, failed, captured } = it.call(*kind);
            (kind.name().to_owned(), made, failed, captured)
        };
        Stored {
            activities: Activity::ALL.iter().map(activity).collect(),
            calls: Call::ALL.iter().map(call).collect(),
            host_events: HostEvent::ALL
                .iter()
                .map(|kind| (kind.name().to_owned(), it.host_events[kind.index()]))
                .collect(),
            callback_nanos: it.callback_nanos,
            stacks: it.stacks,
            flushes: it.flushes,
            lost: it.lost.to_vec(),
            broken_rings: it.broken_rings,
            ..Stored::default()
        }
    }
}

impl From<Stored> for CollectorTotals {
    fn from(it: Stored) -> Self {
        let mut lost = [0; Lost::COUNT];
        lost.iter_mut().zip(&it.lost).for_each(|(to, from)| *to = *from);
        let (callback_nanos, stacks) = (it.callback_nanos, it.stacks);
        let (flushes, broken_rings) = (it.flushes, it.broken_rings);
        let mut totals = CollectorTotals { callback_nanos, stacks, flushes, lost, broken_rings, ..earlier(&it) };
        for (name, records, nanos) in &it.activities {
            if let Some(kind) = Activity::ALL.iter().find(|kind| kind.name() == name) {
                totals = totals.with_activity(*kind, *records, *nanos);
            }
        }
        for (name, made, failed, captured) in &it.calls {
            if let Some(kind) = Call::ALL.iter().find(|kind| kind.name() == name) {
                totals = totals.with_call(*kind, Made { made: *made, failed: *failed, captured: *captured });
            }
        }
        for (name, made) in &it.host_events {
            if let Some(kind) = HostEvent::ALL.iter().find(|kind| kind.name() == name) {
                totals.host_events[kind.index()] = *made;
            }
        }
        totals
    }
}

/// Converts an older recording's counts: failed and captured calls are taken for kernels'.
fn earlier(it: &Stored) -> CollectorTotals {
    let kernels = it.launches.saturating_sub(it.graph_launches);
    let captured = it.captured_launches.min(kernels);
    let graphs = Made { made: it.graph_launches, failed: 0, captured: it.captured_launches - captured };
    CollectorTotals::default()
        .with_activity(Activity::Kernel, it.kernels, it.kernel_nanos)
        .with_call(Call::Kernel, Made { made: kernels, failed: it.failed_launches, captured })
        .with_call(Call::Graph, graphs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_of_an_earlier_recording_are_read() {
        let json = r#"{"kernels":5,"kernel_nanos":70,"launches":9,"graph_launches":2,"failed_launches":1,
            "captured_launches":3,"callback_nanos":4,"flushes":6,"lost":[1,0,2],"broken_rings":0}"#;
        let it: CollectorTotals = serde_json::from_str(json).unwrap();
        assert_eq!(it.activity(Activity::Kernel), Records { records: 5, nanos: 70 });
        assert_eq!(it.call(Call::Kernel), Made { made: 7, failed: 1, captured: 3 });
        assert_eq!((it.call(Call::Graph).made, it.launches(), it.lost[2], it.flushes), (2, 9, 2, 6));
    }

    #[test]
    fn totals_round_trip_and_kinds_of_later_versions_are_left_out() {
        let it = CollectorTotals { lost: [7; Lost::COUNT], stacks: 5, flushes: 1, ..CollectorTotals::default() }
            .with_activity(Activity::Memset, 2, 3)
            .with_call(Call::Memset, Made { made: 4, failed: 1, captured: 2 });
        let json = serde_json::to_string(&it).unwrap();
        assert_eq!(serde_json::from_str::<CollectorTotals>(&json).unwrap(), it);
        let later = json.replace("\"memset\"", "\"teleport\"");
        let read: CollectorTotals = serde_json::from_str(&later).unwrap();
        assert_eq!(read.call(Call::Memset), Made::default());
    }
}
