//! Where each handler runs, and why: `explain` prints the sentences.

use super::scan::{How, Scan};
use super::tables::Shapes;
use crate::handler::{Handler, Staged};
use rustc_hash::FxHashSet;
use xputrace_bytecode::insn::{Insn, Reg, Size, class, mode};
use xputrace_model::context::word;
use xputrace_model::diagnostic::Diagnostic;
use xputrace_model::plan::{Demand, Place, Plan, ProbeScope};
use xputrace_model::schema::Event;

/// Where a handler runs.
pub(super) struct Placed {
    pub(super) place: Place,
    pub(super) why: Vec<String>,
    pub(super) sees_unjoined: bool,
}

pub(super) fn place(handler: &Handler, scan: &Scan, cpu_maps: &FxHashSet<String>) -> Placed {
    let (place, mut why) = match handler.event {
        _ if handler.interpreted.is_some() => (Place::Interpreter, interpreted(handler)),
        Event::Interval | Event::Begin | Event::End => (Place::Interpreter, interpreted(handler)),
        Event::Uprobe | Event::Uretprobe | Event::Tracepoint | Event::Profile => {
            (Place::Linux, vec!["a CPU probe runs in the kernel, where its event happens".into()])
        }
        Event::Kernel => {
            (Place::Tracer, vec!["a kernel's record reaches the tracer, which joins it with its launch".into()])
        }
        Event::Launch => launch(scan, cpu_maps),
    };
    if handler.options.scope() == ProbeScope::System {
        why.push("its scope is the system: every process that runs the probed code pays for it".into());
    }
    Placed { place, why, sees_unjoined: scan.tests_launch || !scan.reads("launch") }
}

fn interpreted(handler: &Handler) -> Vec<String> {
    vec![match handler.event {
        Event::Interval | Event::Begin | Event::End => {
            format!("`{}` handlers are run by the interpreter, which has all of Rhai", handler.event.name())
        }
        _ => "it is wrapped in `interpret(…)`: about 1 us an event".into(),
    }]
}

fn launch(scan: &Scan, cpu_maps: &FxHashSet<String>) -> (Place, Vec<String>) {
    let marker = "at the collector's marker function, about 1 us a launch";
    if scan.sets_tag.is_some() {
        return (Place::Linux, vec![format!("it sets `tag`, so it runs while the kernel is launched: {marker}")]);
    }
    match reads(scan).find(|it| cpu_maps.contains(*it)) {
        Some(map) => (
            Place::Linux,
            vec![format!(
                "it reads `{map}`, which a CPU probe writes, so it runs while the kernel is launched: {marker}"
            )],
        ),
        None => (Place::Tracer, vec!["it only looks, so it runs on the completed record".into()]),
    }
}

/// Maps whose plain values a handler reads.
fn reads<'s>(scan: &'s Scan) -> impl Iterator<Item = &'s str> {
    scan.uses.iter().filter(|it| matches!(it.how, How::Read | How::Contains)).map(|it| it.map.as_str())
}

/// Maps that CPU probes store into.
pub(super) fn written_by_cpu_probes(staged: &Staged, scans: &[Scan]) -> FxHashSet<String> {
    let cpu = |handler: &Handler| {
        handler.interpreted.is_none()
            && matches!(handler.event, Event::Uprobe | Event::Uretprobe | Event::Tracepoint | Event::Profile)
    };
    staged
        .handlers
        .iter()
        .zip(scans)
        .filter(|it| cpu(it.0))
        .flat_map(|it| &it.1.uses)
        .filter(|it| matches!(it.how, How::Assign(_)))
        .map(|it| it.map.clone())
        .collect()
}

/// A GPU event comes late: what it reads of a CPU probe's map is of now, not of the launch.
pub(super) fn warn_of_late_reads(
    staged: &Staged,
    handler: &Handler,
    placed: &Placed,
    scan: &Scan,
    cpu_maps: &FxHashSet<String>,
) -> Vec<Diagnostic> {
    if handler.event != Event::Kernel || placed.place == Place::Linux {
        return Vec::new();
    }
    scan.uses
        .iter()
        .filter(|it| matches!(it.how, How::Read | How::Contains) && cpu_maps.contains(&it.map))
        .map(|it| {
            Diagnostic::warning(
                "late-read",
                format!("`{}` is read when the kernel's record arrives, long after its launch", it.map),
                staged.label(it.file, it.at),
            )
            .help(format!("to read it as of the launch: `launch(|l| l.tag = {}[…])`, and `k.launch.tag` here", it.map))
        })
        .collect()
}

/// Adds what is known only when the maps are: which of them cost a system call.
pub(super) fn explain_maps(placed: &mut Placed, scan: &Scan, shapes: &Shapes) {
    if placed.place != Place::Tracer {
        return;
    }
    let mut seen = FxHashSet::default();
    for map in scan.uses.iter().map(|it| &it.map).filter(|it| seen.insert(*it)) {
        let Some(id) = shapes.get(map) else { continue };
        let plain = !shapes.def(id).kind.is_aggregation();
        if plain && shapes.list[id].in_linux {
            placed.why.push(format!("`{map}` lives in the kernel, where CPU probes use it: about 0.7 us an access"));
        }
    }
}

/// What the collector must record for these handlers.
pub(super) fn demand(staged: &Staged, placed: &[Placed], scans: &[Scan]) -> Demand {
    let mut demand = Demand::default();
    for ((handler, placed), scan) in staged.handlers.iter().zip(placed).zip(scans) {
        let reads_launch = scan.reads("launch") || scan.tests_launch || scan.reads("tid");
        match handler.event {
            Event::Kernel => {
                demand.kernels = true;
                demand.launches |= reads_launch;
                demand.launch_stacks |= scan.reads("launch") && scan.reads("ustack");
            }
            Event::Launch => {
                demand.launches = true;
                demand.launch_stacks |= scan.reads("ustack");
                demand.launch_streams |= scan.reads("stream");
                demand.launch_marker |= placed.place == Place::Linux;
            }
            _ => {}
        }
    }
    demand
}

/// Whether it matters when launch calls returned: the tracer puts launches in order by it, and
/// handlers may read it. Programs are asked themselves: `duration` in a handler may be the kernel's.
pub(super) fn reads_launch_ends(plan: &Plan, scans: &[Scan]) -> bool {
    plan.probes.iter().zip(scans).any(|(probe, scan)| match (probe.event, probe.place, probe.program) {
        (Event::Launch, place, _) => place != Place::Linux,
        (Event::Kernel, _, Some(program)) => plan.image.programs[program].insns.iter().any(loads_launch_end),
        (Event::Kernel, _, None) => scan.reads("launch"),
        _ => false,
    })
}

/// R6 is the context in every program of ours.
fn loads_launch_end(insn: &Insn) -> bool {
    const LOAD: u8 = class::LDX | mode::MEM | Size::Dw as u8;
    let word = (insn.off / 8) as usize;
    (insn.code, insn.src) == (LOAD, Reg::R6.0) && [word::LAUNCH_END, word::LAUNCH_DURATION].contains(&word)
}
