//! The collector's own counts in recordings.

use serde::{Deserialize, Serialize};
use xputrace_model::plan::{Activity, Call, HostEvent};
use xputrace_wire::region::{CallTotals, Lost};
use xputrace_wire::totals::CollectorTotals;

/// What is stored of [`CollectorTotals`]: kinds by name. Older recordings have the members after `broken_rings`
/// instead, which do not tell failed or captured graphs from kernels.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct StoredTotals {
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

impl From<CollectorTotals> for StoredTotals {
    fn from(it: CollectorTotals) -> Self {
        let activity = |kind: &Activity| (kind.name().to_owned(), it.activity(*kind).records, it.activity(*kind).nanos);
        let call = |kind: &Call| {
            let CallTotals { made, failed, captured } = it.call(*kind);
            (kind.name().to_owned(), made, failed, captured)
        };
        StoredTotals {
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
            ..StoredTotals::default()
        }
    }
}

impl From<StoredTotals> for CollectorTotals {
    fn from(it: StoredTotals) -> Self {
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
                totals = totals.with_call(*kind, CallTotals { made: *made, failed: *failed, captured: *captured });
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
fn earlier(it: &StoredTotals) -> CollectorTotals {
    let kernels = it.launches.saturating_sub(it.graph_launches);
    let captured = it.captured_launches.min(kernels);
    let graphs = CallTotals { made: it.graph_launches, failed: 0, captured: it.captured_launches - captured };
    CollectorTotals::default()
        .with_activity(Activity::Kernel, it.kernels, it.kernel_nanos)
        .with_call(Call::Kernel, CallTotals { made: kernels, failed: it.failed_launches, captured })
        .with_call(Call::Graph, graphs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_wire::region::ActivityTotals;

    fn read(json: &str) -> CollectorTotals {
        serde_json::from_str::<StoredTotals>(json).unwrap().into()
    }

    #[test]
    fn totals_of_an_earlier_recording_are_read() {
        let json = r#"{"kernels":5,"kernel_nanos":70,"launches":9,"graph_launches":2,"failed_launches":1,
            "captured_launches":3,"callback_nanos":4,"flushes":6,"lost":[1,0,2],"broken_rings":0}"#;
        let it = read(json);
        assert_eq!(it.activity(Activity::Kernel), ActivityTotals { records: 5, nanos: 70 });
        assert_eq!(it.call(Call::Kernel), CallTotals { made: 7, failed: 1, captured: 3 });
        assert_eq!((it.call(Call::Graph).made, it.launches(), it.lost[2], it.flushes), (2, 9, 2, 6));
    }

    #[test]
    fn totals_round_trip_and_kinds_of_later_versions_are_left_out() {
        let it = CollectorTotals { lost: [7; Lost::COUNT], stacks: 5, flushes: 1, ..CollectorTotals::default() }
            .with_activity(Activity::Memset, 2, 3)
            .with_call(Call::Memset, CallTotals { made: 4, failed: 1, captured: 2 });
        let json = serde_json::to_string(&StoredTotals::from(it)).unwrap();
        assert_eq!(read(&json), it);
        let later = json.replace("\"memset\"", "\"teleport\"");
        assert_eq!(read(&later).call(Call::Memset), CallTotals::default());
    }
}
