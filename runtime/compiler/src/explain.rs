//! The reasons for a handler's place that are known only once the plan exists: which events are joined, and which maps need
//! a system call.

use super::scan::Scan;
use super::unit::Unit;
use rustc_hash::FxHashSet;
use std::sync::Arc;
use xputrace_model::plan::{Activity, Demand, Detail, DeviceWay, DeviceWays, Place, Plan, Switch};
use xputrace_model::schema::Event;
use xputrace_model::table::{Storage, TableDef};

/// Adds the reasons known only once the plan exists: which events are joined, and which maps need a
/// system call.
pub(super) fn explain(units: &[Unit], plan: &mut Plan) {
    let Plan { probes, tables, demand, switches, device_ways, .. } = plan;
    for (unit, probe) in units.iter().zip(&mut *probes).filter(|it| it.0.place == Place::Tracer) {
        if let Event::Activity(activity) = probe.event {
            probe.why.insert(0, joined(activity, demand, device_ways));
        }
        if probe.event == Event::Activity(Activity::Graph) {
            probe.why.insert(1, how_graphs_are_recorded(demand).into());
        }
        probe.why.extend(reached_in_linux(&unit.scan, tables));
    }
    for probe in probes {
        probe.why.extend(probe.switch.map(|it| switched(&switches[it.index()]).to_owned()));
    }
}

fn switched(switch: &Switch) -> &'static str {
    match switch.begins_on {
        true => "a handler can disable it",
        false => "begins disabled",
    }
}

fn joined(activity: Activity, demand: &Demand, ways: &DeviceWays) -> String {
    let from = match (demand.has(Detail::PatchedKernels), ways) {
        (false, _) | (_, DeviceWays::One(DeviceWay::Twin)) => "",
        (_, DeviceWays::One(DeviceWay::Patch)) => ", with the times that patches take,",
        (_, DeviceWays::Either { .. }) => ", with the times that patches take in a process that has them,",
    };
    let record = format!("a {}'s record{from} reaches the tracer", activity.name());
    match demand.joins(activity) {
        true => format!("{record} and is joined with its launch"),
        false => format!("{record}; no handler reads its launch, so launches are not recorded"),
    }
}

fn how_graphs_are_recorded(demand: &Demand) -> &'static str {
    match demand.only_whole_graphs() {
        true => {
            "the GPU records each graph as a whole; a process that is attached to, or is recorded in part, has the records \
             of its nodes"
        }
        false => {
            "put together from the records of its nodes: other handlers need these, and CUPTI has one or the other"
        }
    }
}

/// Returns the maps that live in Linux for CPU probes, and so cost the tracer a system call.
fn reached_in_linux(scan: &Scan, tables: &[Arc<TableDef>]) -> Vec<String> {
    let mut seen = FxHashSet::default();
    let maps = scan.uses.iter().map(|it| &it.map).filter(|it| seen.insert(*it));
    let is_in_linux = |map: &&String| {
        let table = tables.iter().find(|it| it.name == **map);
        table.is_some_and(|it| matches!(it.storage, Storage::Linux { .. }))
    };
    let sentence = |map| format!("`{map}` lives in linux, where CPU probes use it: about 0.7 us per access");
    maps.filter(is_in_linux).map(sentence).collect()
}
