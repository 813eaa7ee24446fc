//! Decides where each handler runs, and why: `explain` prints the reasons.

use super::Wishes;
use super::scan::{How, Scan};
use super::unit::Unit;
use crate::handler::{Handler, Staged};
use rustc_hash::FxHashSet;
use std::sync::Arc;
use xputrace_model::context::word;
use xputrace_model::diagnostic::Diagnostic;
use xputrace_model::plan::{Activities, Activity, Demand, Place, Plan, ProbeScope, ReturnWay};
use xputrace_model::schema::Event;
use xputrace_model::table::{Storage, TableDef};

/// Returns a handler's place and the reasons; `cpu_maps` are the maps that CPU probes store into.
pub(super) fn place(handler: &Handler, scan: &Scan, cpu_maps: &FxHashSet<String>) -> (Place, Vec<String>) {
    let (place, mut why) = match handler.event {
        _ if handler.interpreted.is_some() => (Place::Interpreter, interpreted(handler)),
        Event::Interval | Event::Begin | Event::End => (Place::Interpreter, interpreted(handler)),
        Event::Uprobe | Event::Uretprobe | Event::Tracepoint | Event::Profile => {
            (Place::Linux, vec!["CPU probe: runs in linux, at the event".into()])
        }
        // Whether it is joined with its launch is known once all handlers are.
        Event::Activity(_) => (Place::Tracer, Vec::new()),
        Event::Launch => launch(scan, cpu_maps),
    };
    if handler.event == Event::Uretprobe && place == Place::Linux {
        why.push(returns(handler.options.returns).into());
    }
    if handler.options.scope() == ProbeScope::System {
        why.push("system scope: slows every process that runs the probed code".into());
    }
    (place, why)
}

/// Adds the reasons known only once the plan exists: which events are joined, and which maps need a
/// system call.
pub(super) fn explain(units: &[Unit], plan: &mut Plan) {
    let Plan { probes, tables, demand, .. } = plan;
    for (unit, probe) in units.iter().zip(probes).filter(|it| it.0.place == Place::Tracer) {
        if let Event::Activity(activity) = probe.event {
            probe.why.insert(0, joined(activity, demand));
        }
        probe.why.extend(reached_in_linux(&unit.scan, tables));
    }
}

fn returns(way: ReturnWay) -> &'static str {
    match way {
        ReturnWay::AtReturn => {
            "returns are probed at the function's `ret` instructions, without touching the stack: 3 to 12 us per return, \
             because Linux single-steps them"
        }
        ReturnWay::Trampoline => {
            "returns are probed by Linux's trampoline, as `return: \"trampoline\"` says: about 1 us per return, but a program \
             that unwinds, moves or switches its stack meanwhile, in a signal handler too, is killed, and one that \
             reads its return address gets a wrong one"
        }
    }
}

fn joined(activity: Activity, demand: &Demand) -> String {
    let record = format!("a {}'s record reaches the tracer", activity.name());
    match demand.joins(activity) {
        true => format!("{record} and is joined with its launch"),
        false => format!("{record}; no handler reads its launch, so launches are not recorded"),
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

fn interpreted(handler: &Handler) -> Vec<String> {
    vec![match handler.event {
        Event::Interval | Event::Begin | Event::End => {
            format!("`{}` handlers run in the interpreter and can use all of Rhai", handler.event.name())
        }
        _ => "wrapped in `interpret(…)`: about 1 us per event".into(),
    }]
}

fn launch(scan: &Scan, cpu_maps: &FxHashSet<String>) -> (Place, Vec<String>) {
    let marker = "at the collector's marker function, about 1 us per launch";
    if scan.sets_tag.is_some() {
        return (Place::Linux, vec![format!("sets `tag`: runs during the launch, {marker}")]);
    }
    match reads(scan).find(|it| cpu_maps.contains(*it)) {
        Some(map) => {
            (Place::Linux, vec![format!("reads `{map}`, which a CPU probe writes: runs during the launch, {marker}")])
        }
        None => (Place::Tracer, vec!["read-only: runs after the launch returns".into()]),
    }
}

/// Returns the maps whose plain values a handler reads.
fn reads<'s>(scan: &'s Scan) -> impl Iterator<Item = &'s str> {
    scan.uses.iter().filter(|it| matches!(it.how, How::Read | How::Contains)).map(|it| it.map.as_str())
}

/// Returns the maps that CPU probes store into.
pub(super) fn written_by_cpu_probes(units: &[Unit]) -> FxHashSet<String> {
    let cpu = |handler: &Handler| {
        handler.interpreted.is_none()
            && matches!(handler.event, Event::Uprobe | Event::Uretprobe | Event::Tracepoint | Event::Profile)
    };
    let uses = units.iter().filter(|it| cpu(it.handler)).flat_map(|it| &it.scan.uses);
    uses.filter(|it| matches!(it.how, How::Assign(_))).map(|it| it.map.clone()).collect()
}

/// Warns that GPU events arrive late: they read a CPU probe's map as of now, not as of the launch.
pub(super) fn warn_of_late_reads(staged: &Staged, units: &[Unit]) -> Vec<Diagnostic> {
    let cpu_maps = written_by_cpu_probes(units);
    let late = units.iter().filter(|it| matches!(it.handler.event, Event::Activity(_)) && it.place != Place::Linux);
    late.flat_map(|it| &it.scan.uses)
        .filter(|it| matches!(it.how, How::Read | How::Contains) && cpu_maps.contains(&it.map))
        .map(|it| {
            Diagnostic::warning(
                "late-read",
                format!("`{}` is read when the GPU's record arrives, long after the launch", it.map),
                staged.label(it.file, it.at),
            )
            .help(format!(
                "to read its value at the launch, write `launch(|l| l.tag = {}[…])`, and `k.launch.tag` here",
                it.map
            ))
        })
        .collect()
}

/// What only the outermost call tells. The name of a launch that submits no single kernel is the call's.
const OF_OUTERMOST: [usize; 7] = [
    word::LAUNCH_START,
    word::LAUNCH_END,
    word::LAUNCH_DURATION,
    word::LAUNCH_API,
    word::LAUNCH_RESULT,
    word::LAUNCH_NAME,
    word::LAUNCH_SHORT_NAME,
];

/// Returns what the collector must record: it follows from the fields that the handlers read.
pub(super) fn demand(units: &[Unit], wishes: Wishes) -> Demand {
    let mut demand = Demand::default();
    for unit in units {
        let reads = unit.reads();
        match unit.handler.event {
            Event::Activity(activity) => {
                demand.activities = demand.activities.with(Activities::of(&[activity]));
                // Only the launch has the thread.
                if reads.of_launch() || reads.any(&[word::JOINED, word::TID]) {
                    demand.calls = demand.calls.with(activity.causes());
                }
            }
            Event::Launch => {
                demand.calls = demand.calls.with(unit.handler.options.calls());
                demand.launch_marker |= unit.place == Place::Linux;
                // In the tracer, the event is the completed call. At the marker it is the driver's.
                demand.launch_outermost |= unit.place != Place::Linux;
                demand.launch_ends |= unit.place != Place::Linux;
                // A kernel's stream is in its own record.
                demand.launch_streams |= reads.any(&[word::LAUNCH_STREAM]);
            }
            _ => {}
        }
        demand.launch_outermost |= reads.any(&OF_OUTERMOST);
        demand.launch_stacks |= reads.any(&[word::LAUNCH_USTACK]);
        demand.launch_python |= reads.any(&[word::LAUNCH_PYSTACK]);
        demand.launch_ends |= reads.any(&[word::LAUNCH_END, word::LAUNCH_DURATION]);
    }
    demand.launch_python |= wishes.python && demand.launch_stacks;
    if wishes.window {
        demand.calls = demand.activities.iter().fold(demand.calls, |all, it| all.with(it.causes()));
    }
    demand
}
