//! Compiled objects (`xputrace run FILE.bpf.o`): reads one to a plan, and prints its maps at the end.

use super::State;
use crate::cli::{ObjectOptions, Run, Script};
use anyhow::{Context, Result, anyhow, bail};
use std::sync::Arc;
use xputrace_bytecode::BpfMapId;
use xputrace_bytecode::vm::Fault;
use xputrace_model::object::Object;
use xputrace_model::output::Output;
use xputrace_model::plan::{Plan, ProbeId};
use xputrace_objects::Wishes;

/// Returns the object that a run names in the script's place.
pub fn named(run: &Run) -> Option<&str> {
    match &run.script {
        Some(Script::Named(name)) if xputrace_objects::is_object(name) => Some(name),
        _ => None,
    }
}

/// Reads an object.
///
/// # Errors
/// It can't be read, or does what is not supported.
pub fn plan(run: &Run, file: &str) -> Result<Plan> {
    if let Some(word) = run.script_arguments.first() {
        bail!("{file} is a compiled object, which takes no arguments: leave out `{word}`");
    }
    if let Some(wish) = run.options.files.first() {
        bail!("--{} is for scripts: the maps of {file} have no stacks", wish.output.option);
    }
    let bytes = std::fs::read(file).with_context(|| format!("cannot read {file}"))?;
    let read = |name: &str| std::fs::read(name);
    xputrace_objects::plan(file, &bytes, &wishes(run), &read).map_err(|it| anyhow!("{file}: {it}"))
}

fn wishes(run: &Run) -> Wishes {
    let ObjectOptions { dump, poll, set, attach, on_gpu, allows_exit } = run.options.object.clone();
    let joins = run.options.window.is_limited() || !run.options.gpus.is_empty();
    Wishes { dump, poll, set, attach, on_gpu, allows_exit, joins }
}

impl State {
    /// Prints the maps of an object that are to be shown. Returns what its programs did that they may not.
    pub(super) fn dump_object(&mut self) -> Vec<String> {
        let Some(object) = self.plan.object.clone() else { return Vec::new() };
        for (id, map) in BpfMapId::each(&object.maps) {
            if map.is_shown && !map.is_ring() {
                self.dump_map(&object, id);
            }
        }
        let faults = self.pipeline.state().faults().into_iter();
        faults.map(|(probe, fault, n)| faulty(&self.plan, &object, probe, fault, n)).collect()
    }

    fn dump_map(&mut self, object: &Arc<Object>, id: BpfMapId) {
        let mut elements = Vec::new();
        self.pipeline.state().for_each_element(id, &mut |key, value| elements.push((key.to_vec(), value.to_vec())));
        if let Some(dump) = object.dump(id, &elements) {
            self.emit(&Output::Dump(dump));
        }
    }
}

/// Says what a program did that ended it.
fn faulty(plan: &Plan, object: &Object, probe: ProbeId, fault: Fault, n: u64) -> String {
    let of = plan.probes.get(probe.index()).and_then(|it| Some((it, &plan.image.programs[it.program?])));
    let Some((probe, program)) = of else { return format!("{}: {fault}", object.file) };
    let place = program.line_of(fault.insn).and_then(|it| Some((&plan.image.sources.get(it.file)?.0, it.line)));
    let place = place.map_or_else(String::new, |(file, line)| format!(" ({file}:{line})"));
    format!(
        "{}: section `{}`, program `{}`, instruction {}{place}: {}. {} there",
        object.file,
        probe.name,
        program.name,
        fault.insn,
        fault.reason,
        if n == 1 { "1 run ended".to_owned() } else { format!("{n} runs ended") }
    )
}
