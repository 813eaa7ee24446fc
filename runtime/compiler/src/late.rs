//! Warns of handlers that exchange values with CPU probes too late.

use super::placement::{CpuMaps, later_field};
use super::scan::Use;
use super::unit::Unit;
use xputrace_model::context::word;
use xputrace_model::diagnostic::Diagnostic;
use xputrace_model::plan::Place;
use xputrace_model::schema::Event;
use xputrace_script::handler::Staged;

/// Warns that GPU events arrive late: their handlers see a CPU probe's map, and CPU probes see theirs,
/// as of then and not as of the launch.
pub(super) fn warn_of_exchanges(staged: &Staged, units: &[Unit]) -> Vec<Diagnostic> {
    let cpu_maps = CpuMaps::of(units.iter().map(|it| (it.handler, &it.scan)));
    let late = |it: &&Unit| it.handler.event.is_gpu() && !matches!(it.place, Place::Linux | Place::Gpu);
    let mut found = Vec::new();
    for unit in units.iter().filter(late) {
        // With the tag, a handler reads what was stored for that launch.
        let is_exact = unit.handler.event == Event::Launch || unit.scan.reads.any(&[word::LAUNCH_TAG]);
        for it in &unit.scan.uses {
            if !is_exact && it.how.reads() && cpu_maps.written.contains(&it.map) {
                found.push(late_read(staged, it));
            }
            if it.how.changes() && cpu_maps.read.contains(&it.map) {
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
