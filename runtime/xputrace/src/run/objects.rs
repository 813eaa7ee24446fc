//! Compiled objects (`xputrace run FILE.bpf.o`): reads one to a plan, and prints its maps at the end.

use super::RunState;
use crate::cli::{ObjectOptions, Run, Script};
use anyhow::{Context, Result, anyhow, bail};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use xputrace_boundary::read;
use xputrace_bytecode::BpfMapId;
use xputrace_bytecode::vm::Fault;
use xputrace_model::object::Object;
use xputrace_model::output::Output;
use xputrace_model::plan::{DeviceWays, Place, Plan, ProbeId, ReturnWay};
use xputrace_model::schema::Event;
use xputrace_objects::Wishes;
use xputrace_pipeline::Outputs;

/// Objects are some hundred KiB, with debug information some MiB.
const MOST_OBJECT_BYTES: u64 = 256 << 20;

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
    let bytes = read::named(Path::new(file), MOST_OBJECT_BYTES).with_context(|| format!("cannot read {file}"))?;
    let read = |name: &str, most: u64| {
        let mut bytes = Vec::new();
        read::open(Path::new(name))?.take(most).read_to_end(&mut bytes).map(|_| bytes)
    };
    let plan = xputrace_objects::plan(file, &bytes, &wishes(run), &read).map_err(|it| anyhow!("{file}: {it}"))?;
    refuse_in_linux(run, &plan)?;
    let ways = match run.options.object.via {
        Some(way) => DeviceWays::One(way),
        None if run.starts_programs() && plan.device_handlers().next().is_some() => {
            DeviceWays::Either { unpatchable: None }
        }
        None => DeviceWays::default(),
    };
    Ok(Plan { device_ways: ways, ..plan })
}

/// Reads an object whose programs run over a recording.
///
/// # Errors
/// As [`plan`]; or it has programs that run in Linux, of which a recording knows nothing.
pub fn plan_of_replay(run: &Run, file: &str) -> Result<Plan> {
    let plan = plan(run, file)?;
    if let Some(probe) = plan.probes.iter().find(|it| it.place == Place::Linux) {
        bail!(
            "{file}: the program in section `{}` runs in Linux, and a recording has nothing for it: run the object on the \
             program itself, `xputrace run {file} -- CMD`",
            probe.name
        );
    }
    Ok(plan)
}

fn wishes(run: &Run) -> Wishes {
    let ObjectOptions { dump, poll, set, attach, on_gpu, launch, allows_exit, .. } = run.options.object.clone();
    let joins = run.options.window.is_limited() || !run.options.gpus.is_empty();
    let in_processes = !run.options.pids.is_empty() || !run.command.is_empty();
    Wishes { dump, poll, set, attach, on_gpu, launch, allows_exit, in_processes, joins }
}

/// Refuses what the programs of an object that run in Linux can't do.
fn refuse_in_linux(run: &Run, plan: &Plan) -> Result<()> {
    let Some(probe) = plan.probes.iter().find(|it| it.place == Place::Linux) else { return Ok(()) };
    if run.options.window.is_limited() {
        bail!(
            "the programs of an object that run in Linux, such as that in section `{}`, run from start to end: leave out \
             --after and --range, or use a script",
            probe.name
        );
    }
    if run.options.name.is_some() {
        bail!(
            "the programs of an object that run in Linux, such as that in section `{}`, can't be chosen by a process's name: \
             leave out --comm and name the processes (-p PID), or compare `bpf_get_current_comm` in the program",
            probe.name
        );
    }
    Ok(())
}

/// Says of programs at returns what they may do to the processes, if there are any.
pub(super) fn note_of_returns(plan: &Plan) -> Option<String> {
    let probe = plan.probes.iter().find(|it| it.returns == ReturnWay::Trampoline && it.event == Event::Uretprobe)?;
    plan.object.as_ref()?;
    Some(format!(
        "`{}` is at Linux's trampoline, which replaces the function's return address: a C++ program that throws through the \
         function, a Rust one that panics and a Go program are killed by it. A script's `uretprobe` is at the function's \
         `ret` instead",
        probe.name
    ))
}

impl RunState {
    /// Prints the maps of an object that are to be shown. Returns what its programs did that they may not.
    pub(super) fn dump_object(&mut self) -> Vec<String> {
        let Some(object) = self.plan.object.clone() else { return Vec::new() };
        self.note_overwritten(&object);
        let refused = self.refused_atomics(&object);
        let shown = BpfMapId::each(&object.maps).filter(|(_, it)| it.is_shown && !it.is_ring());
        let mut errors: Vec<String> = shown.filter_map(|(id, _)| self.dump_map(&object, id).err()).collect();
        let faults = self.pipeline.state().faults().into_iter();
        errors.extend(faults.map(|(probe, fault, n)| faulty(&self.plan, &object, probe, fault, n)));
        errors.extend(refused);
        errors
    }

    /// Passes on the records that programs of an object have written in Linux. Returns whether none is left from before.
    ///
    /// # Errors
    /// They can't be read.
    pub(super) fn take_object_records(&mut self, sink: &mut dyn Outputs) -> Result<bool> {
        let (Some(object), Some(linux)) = (&self.plan.object, &mut self.linux) else { return Ok(true) };
        let on_record = &mut |map: BpfMapId, record: &[u8]| {
            if let Some(record) = object.maps.get(map.index()).and_then(|it| it.record(record)) {
                sink.output(record);
            }
        };
        Ok(linux.object_records(on_record)?)
    }

    /// Says where programs on the GPU may have undone what those in Linux did.
    fn note_overwritten(&mut self, object: &Object) {
        for (id, map) in BpfMapId::each(&object.maps) {
            if !self.pipeline.state().has_overwritten(id) {
                continue;
            }
            let text = format!(
                "programs on the GPU stored to values of `{}` without atomic instructions: what programs in Linux changed in \
                 the same values at that time may be lost",
                map.name
            );
            self.emit(&Output::Note(text));
        }
    }

    /// Says whose numbers may be wrong, because Linux didn't change them atomically.
    fn refused_atomics(&self, object: &Object) -> Vec<String> {
        let maps = BpfMapId::each(&object.maps).filter_map(|(id, _)| self.linux.as_ref()?.map(id)?.refused_atomic());
        maps.map(|it| format!("{}: {it}", object.file)).collect()
    }

    fn dump_map(&mut self, object: &Arc<Object>, id: BpfMapId) -> Result<(), String> {
        let mut elements = Vec::new();
        match self.linux.as_ref().and_then(|it| it.map(id)) {
            Some(map) => {
                let read = map.for_each(&mut |key, values| elements.push((key.to_vec(), values.concat())));
                read.map_err(|it| format!("{}: {it}", object.file))?;
            }
            None => {
                let on_element = &mut |key: &[u8], value: &[u8]| elements.push((key.to_vec(), value.to_vec()));
                self.pipeline.state().for_each_element(id, on_element);
            }
        }
        if let Some(dump) = object.dump(id, &elements) {
            self.emit(&Output::Dump(dump));
        }
        Ok(())
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
