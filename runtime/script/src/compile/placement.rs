//! Decides where each handler runs, and why: `explain` prints the reasons.

use super::Wishes;
use super::check::unknown_at_launch;
use super::reads::Reads;
use super::scan::{How, Scan, Use};
use super::unit::Unit;
use crate::handler::{Handler, Per, Staged};
use rustc_hash::FxHashSet;
use std::sync::Arc;
use xputrace_model::context::word;
use xputrace_model::diagnostic::Diagnostic;
use xputrace_model::plan::{
    Activities, Activity, Demand, Detail, Details, DeviceWay, DeviceWays, HostEvent, HostEvents, LaunchFilter, Place,
    Plan, ProbeScope, ReturnWay, Switch, Target,
};
use xputrace_model::schema::{self, DeviceEvent, Event, Field};
use xputrace_model::table::{Storage, TableDef};

/// The maps whose plain values CPU probes exchange with other handlers.
#[derive(Debug, Default)]
pub(super) struct CpuMaps {
    written: FxHashSet<String>,
    read: FxHashSet<String>,
}

impl CpuMaps {
    pub(super) fn of(units: &[Unit]) -> CpuMaps {
        let mut maps = CpuMaps::default();
        for it in units.iter().filter(|it| is_cpu_probe(it.handler)).flat_map(|it| &it.scan.uses) {
            match it.how {
                How::Assign(_) => _ = maps.written.insert(it.map.clone()),
                How::Read | How::Contains => _ = maps.read.insert(it.map.clone()),
                How::Method(_) | How::Passed => {}
            }
        }
        maps
    }
}

fn is_cpu_probe(handler: &Handler) -> bool {
    handler.interpreted.is_none() && handler.event.is_of_cpu()
}

/// Returns a handler's place and the reasons.
pub(super) fn place(handler: &Handler, scan: &Scan, cpu_maps: &CpuMaps) -> (Place, Vec<String>) {
    let (place, mut why) = match handler.event {
        _ if handler.interpreted.is_some() => (Place::Interpreter, interpreted(handler)),
        Event::Interval | Event::Begin | Event::End => (Place::Interpreter, interpreted(handler)),
        Event::Uprobe | Event::Uretprobe | Event::Usdt | Event::Tracepoint | Event::Profile => {
            (Place::Linux, vec!["CPU probe: runs in linux, at the event".into()])
        }
        // Whether it is joined with its launch is known once all handlers are.
        Event::Activity(_) => (Place::Tracer, Vec::new()),
        Event::Launch => launch(scan, cpu_maps),
        Event::Host(_) => (Place::Tracer, vec![format!("recorded {}", handler.event.about().recorded)]),
        Event::Device(_) => (Place::Gpu, device_code(handler)),
    };
    if handler.event == Event::Uretprobe && place == Place::Linux {
        why.push(returns(handler.options.returns).into());
    }
    if handler.options.scope() == ProbeScope::System {
        why.push("system scope: slows every process that runs the probed code".into());
    }
    (place, why)
}

fn device_code(handler: &Handler) -> Vec<String> {
    let way = match handler.options.via {
        Some(DeviceWay::Patch) => {
            Some("their machine code is patched: CUPTI is not used in the process meanwhile".to_owned())
        }
        Some(DeviceWay::Twin) | None => None,
    };
    let launches = handler.options.launches();
    let which =
        |it: LaunchFilter| format!("at launches that it chooses ({}): others run the kernel as it is", it.text());
    let chosen = (launches != LaunchFilter::ALL).then(|| which(launches));
    [Some(device_threads(handler).to_owned()), way, chosen].into_iter().flatten().collect()
}

fn device_threads(handler: &Handler) -> &'static str {
    match handler.options.per {
        _ if handler.event == Event::Device(DeviceEvent::BlockEnd) => {
            "device code: runs in the last thread of each block that ends, in the kernels that match"
        }
        Per::Thread => "device code: runs in each thread of the kernels that match",
        Per::Warp => {
            "device code: runs once for the threads of a warp that are there together, in the kernels that match"
        }
        Per::Block => "device code: runs in the first thread of each block, in the kernels that match",
    }
}

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

fn interpreted(handler: &Handler) -> Vec<String> {
    vec![match handler.event {
        Event::Interval | Event::Begin | Event::End => {
            format!("`{}` handlers run in the interpreter and can use all of Rhai", handler.event.name())
        }
        _ => "wrapped in `interpret(…)`: about 1 us per event".into(),
    }]
}

fn launch(scan: &Scan, cpu_maps: &CpuMaps) -> (Place, Vec<String>) {
    let during = |why: String| {
        (
            Place::Linux,
            vec![format!("{why}: runs during the launch, at the collector's marker function, about 1 us per launch")],
        )
    };
    let after = |why: &str| (Place::Tracer, vec![format!("{why}: runs after the launch returns")]);
    if scan.sets_tag.is_some() {
        return during("sets `tag`".into());
    }
    if let Some(it) = scan.uses.iter().find(|it| is_read(it) && cpu_maps.written.contains(&it.map)) {
        return during(format!("reads `{}`, which a CPU probe writes", it.map));
    }
    match (scan.uses.iter().find(|it| is_changed(it) && cpu_maps.read.contains(&it.map)), later_field(scan)) {
        (Some(it), None) => during(format!("changes `{}`, which a CPU probe reads", it.map)),
        (Some(_), Some(field)) => after(&format!("reads `{field}`, which is not known during the launch")),
        (None, _) => after("neither sets `tag` nor exchanges values with CPU probes"),
    }
}

/// Returns a field that a launch handler reads and that is known only after the launch.
fn later_field(scan: &Scan) -> Option<&'static str> {
    let is_later = |it: &&Field| unknown_at_launch(it.name).is_some() && scan.reads.has(it);
    schema::LAUNCH.iter().find(is_later).map(|it| it.name)
}

/// Whether a plain value of the map is read.
fn is_read(of: &Use) -> bool {
    matches!(of.how, How::Read | How::Contains)
}

/// Whether a plain value of the map is stored or removed.
fn is_changed(of: &Use) -> bool {
    match of.how {
        How::Assign(_) => true,
        How::Method(call) => matches!(&*call.name, "remove" | "clear"),
        How::Read | How::Contains | How::Passed => false,
    }
}

/// Warns that GPU events arrive late: their handlers see a CPU probe's map, and CPU probes see theirs,
/// as of then and not as of the launch.
pub(super) fn warn_of_late_exchanges(staged: &Staged, units: &[Unit]) -> Vec<Diagnostic> {
    let cpu_maps = CpuMaps::of(units);
    let late = |it: &&Unit| it.handler.event.is_gpu() && !matches!(it.place, Place::Linux | Place::Gpu);
    let mut found = Vec::new();
    for unit in units.iter().filter(late) {
        // With the tag, a handler reads what was stored for that launch.
        let is_exact = unit.handler.event == Event::Launch || unit.reads().any(&[word::LAUNCH_TAG]);
        for it in &unit.scan.uses {
            if !is_exact && is_read(it) && cpu_maps.written.contains(&it.map) {
                found.push(late_read(staged, it));
            }
            if is_changed(it) && cpu_maps.read.contains(&it.map) {
                found.push(late_write(staged, unit, it));
            }
        }
    }
    found
}

fn late_read(staged: &Staged, of: &Use) -> Diagnostic {
    let message = format!("`{}` is read when the GPU's record arrives, long after the launch", of.map);
    Diagnostic::warning("late-read", message, staged.label(of.file, of.at)).help(format!(
        "to read its value at the launch, write `launch(|l| l.tag = {}[…])`, and `k.launch.tag` here",
        of.map
    ))
}

fn late_write(staged: &Staged, unit: &Unit, of: &Use) -> Diagnostic {
    let about = unit.handler.event.about();
    let message =
        format!("`{}` is changed {}: the CPU probe that reads it sees that late, or never", of.map, about.changed);
    let help = match (unit.handler.event, later_field(&unit.scan)) {
        (Event::Launch, _) if unit.place == Place::Interpreter => {
            "to run the handler during the launch, leave out `interpret`".into()
        }
        (Event::Launch, Some(field)) => {
            format!("to run the handler during the launch, leave out `{field}`, which is not known by then")
        }
        _ => about.in_time.into(),
    };
    Diagnostic::warning("late-write", message, staged.label(of.file, of.at)).help(help)
}

/// Words of an activity that only its launch tells: the thread, and what its stream is. By launches it is known, too,
/// whether a kernel is missing between two.
/// And which code had made a node of a graph by then, since graphs can be updated.
const NEED_LAUNCHES: [usize; 10] = [
    word::JOINED,
    word::TID,
    word::STREAM_KIND,
    word::STREAM_HAS_PRIORITY,
    word::STREAM_PRIORITY,
    word::PREVIOUS_NAME,
    word::PREVIOUS_END,
    word::CAPTURED,
    word::CAPTURE_USTACK,
    word::CAPTURE_PYSTACK,
];

/// Returns the host events that tell what a handler of one of them reads.
fn needed_kinds(kind: HostEvent, reads: &Reads) -> HostEvents {
    // What is freed is known from its allocation.
    let needs_alloc = kind == HostEvent::Free && reads.any(&[word::call::BYTES, word::call::KIND]);
    if needs_alloc { HostEvents::of(&[kind, HostEvent::Alloc]) } else { HostEvents::of(&[kind]) }
}

/// Returns those of the details that a handler reads.
fn details_read(reads: &Reads, of: impl Fn(Detail) -> bool) -> Details {
    let mut details = Details::NONE;
    let all = Detail::ALL.iter().filter(|it| of(**it));
    all.for_each(|it| details.add_if(reads.any(it.words()), *it));
    details
}

/// Adds what a handler of a host event needs.
fn host_demand(kind: HostEvent, unit: &Unit, reads: &Reads, demand: &mut Demand) {
    let kinds = needed_kinds(kind, reads);
    demand.host_events = demand.host_events.with(kinds);
    if !unit.handler.options.optional {
        demand.required = demand.required.with(kinds);
    }
    if let Target::Api(functions) = &unit.handler.target {
        demand.api = demand.api.with(functions);
    }
    // The words of others are not a call's.
    if HostEvents::OF_CUDA.with(HostEvents::OF_RESOURCES).contains(kind) {
        demand.details = demand.details.with(details_read(reads, Detail::is_of_calls));
    }
    let waits = kind == HostEvent::Wait && schema::WAITED_FOR.iter().any(|it| reads.has(it));
    demand.details.add_if(waits, Detail::WaitedFor);
}

/// Returns what the collector must record: it follows from the fields that the handlers read.
pub(super) fn demand<'a, 's: 'a>(units: impl Iterator<Item = &'a Unit<'s>>, wishes: Wishes) -> Demand {
    let mut demand = Demand::default();
    for unit in units {
        let mut reads = unit.reads().of_kernel(unit.handler.event);
        if unit.handler.options.tag.is_some() {
            reads.add(word::LAUNCH_TAG);
        }
        let reads = &reads;
        match unit.handler.event {
            Event::Activity(activity) => {
                demand.activities = demand.activities.with(Activities::of(&[activity]));
                if reads.of_launch() || reads.any(&NEED_LAUNCHES) {
                    demand.calls = demand.calls.with(activity.causes());
                }
            }
            Event::Launch => launch_demand(unit, reads, &mut demand),
            Event::Device(_) => {
                // The software GPU runs it over the kernel's record, which tells of the launch on real ones, too.
                demand.activities = demand.activities.with(Activities::of(&[Activity::Kernel]));
                if reads.of_launch() {
                    demand.calls = demand.calls.with(Activity::Kernel.causes());
                }
            }
            Event::Host(kind) => {
                host_demand(kind, unit, reads, &mut demand);
                continue;
            }
            _ => {}
        }
        demand.details = demand.details.with(details_read(reads, Detail::is_of_launches));
    }
    completed(demand, wishes)
}

/// Adds what a handler of launches needs.
fn launch_demand(unit: &Unit, reads: &Reads, demand: &mut Demand) {
    demand.calls = demand.calls.with(unit.handler.options.calls());
    // In the tracer, the event is the completed call. At the marker it is the driver's.
    let is_at_marker = unit.place == Place::Linux;
    demand.details.add_if(is_at_marker, Detail::Marker);
    demand.details.add_if(!is_at_marker, Detail::Outermost);
    demand.details.add_if(!is_at_marker, Detail::Ends);
    // A kernel's stream is in its own record.
    demand.details.add_if(reads.any(&[word::LAUNCH_STREAM]), Detail::Streams);
}

/// Adds what follows from what is asked for.
fn completed(mut demand: Demand, wishes: Wishes) -> Demand {
    let follows_all = demand.has(Detail::WaitedFor) || demand.has(Detail::Idle);
    if demand.has(Detail::WaitedFor) {
        // Where an event was recorded decides what a wait for it was for. Recordings of earlier versions do not tell.
        demand.host_events = demand.host_events.with(HostEvents::of(&[HostEvent::EventRecord]));
        demand.details.add_if(true, Detail::CallStreams);
    }
    if follows_all {
        // A wait may be for any of them, and a GPU that runs any is not idle, whatever handlers see.
        let all = Activities::of(&[Activity::Kernel, Activity::Memcpy, Activity::Memset]);
        demand.activities = demand.activities.with(all);
    }
    demand.details.add_if(demand.has(Detail::StreamKinds) || demand.has(Detail::Priorities), Detail::Streams);
    for (stack, python) in [
        (Detail::Stacks, Detail::Python),
        (Detail::CallStacks, Detail::CallPython),
        (Detail::Captures, Detail::CapturesPython),
    ] {
        demand.details.add_if(wishes.python && demand.has(stack), python);
    }
    let joins_all = wishes.window || wishes.some_gpus || follows_all;
    demand.joining(|_| joins_all)
}
