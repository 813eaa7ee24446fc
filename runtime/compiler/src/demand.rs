//! What a script makes the collector record: it follows from the fields that its handlers read.

use super::device;
use super::reads::Reads;
use super::unit::Unit;
use super::wishes::Wishes;
use xputrace_model::context::word;
use xputrace_model::plan::{
    Activities, Activity, Demand, Detail, Details, DeviceWays, HostEvent, HostEvents, Place, ProbePlace, Switch,
};
use xputrace_model::schema::{self, Event};
use xputrace_script::handler::{DeclaredProbe, Staged};
use xputrace_script::words;

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
    if let ProbePlace::Api(functions) = &unit.handler.target {
        demand.api = demand.api.with(functions);
    }
    // The words of others are not a call's.
    if HostEvents::OF_CALLS.with(HostEvents::OF_RESOURCES).contains(kind) {
        demand.details = demand.details.with(details_read(reads, Detail::is_of_calls));
    }
    let waits = kind == HostEvent::Wait && schema::WAITED_FOR.iter().any(|it| reads.has(it));
    demand.details.add_if(waits, Detail::WaitedFor);
}

/// What a plan demands of the collector.
pub(super) struct Demands {
    /// All that it may be asked for.
    pub(super) whole: Demand,
    /// What of it does not depend on switches, if there are any.
    pub(super) always: Demand,
    pub(super) switches: Vec<Switch>,
}

impl Demands {
    pub(super) fn of(staged: &Staged, units: &[Unit], ways: &DeviceWays, wishes: Wishes) -> Demands {
        let switches = switches(staged, units, wishes);
        let is_always = |it: &&Unit| !switches.iter().any(|switch| switch.declared == it.handler.declared);
        let always = match &switches[..] {
            [] => Demand::default(),
            _ => demand(units.iter().filter(is_always), wishes),
        };
        // What the GPU did belongs to a probe that was on at its launch, whatever its handlers read.
        let is_switched = |it| switches.iter().any(|switch| switch.demand.activities.contains(it));
        let whole = demand(units.iter(), wishes).joining(is_switched);
        match device::has_patched_kernels(staged, ways) {
            true => Demands { whole: device::patched(whole), always: device::patched(always), switches },
            false => Demands { whole, always, switches },
        }
    }
}

/// Returns the probes that begin off, or that a handler can switch.
fn switches(staged: &Staged, units: &[Unit], wishes: Wishes) -> Vec<Switch> {
    let is_held = |probe: u32| staged.handlers.iter().any(|it| it.holds.contains(&probe));
    let declared = (0u32..).zip(&staged.probes).filter(|(_, it)| words::can_be_switched(it.event));
    let switched = declared.filter(|(probe, it)| !it.begins_on || is_held(*probe));
    let is_turned_elsewhere =
        |probe| units.iter().any(|it| it.place != Place::Linux && it.handler.holds.contains(&probe));
    let switch = |(declared, it): (u32, &DeclaredProbe)| {
        let of_it = units.iter().filter(|it| it.handler.declared == declared);
        let site = units.iter().find(|it| it.handler.declared == declared).map(|it| it.handler.site);
        Switch {
            declared,
            name: it.name.clone(),
            begins_on: it.begins_on,
            is_turned_elsewhere: is_turned_elsewhere(declared),
            demand: demand(of_it, wishes),
            site: site.unwrap_or_default(),
        }
    };
    switched.map(switch).collect()
}

/// Returns what the collector must record: it follows from the fields that the handlers read.
fn demand<'a, 's: 'a>(units: impl Iterator<Item = &'a Unit<'s>>, wishes: Wishes) -> Demand {
    let mut demand = Demand::default();
    for unit in units {
        let mut reads = unit.scan.reads.of_kernel(unit.handler.event);
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
