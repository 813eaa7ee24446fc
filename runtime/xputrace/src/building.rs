//! `xputrace build`: a script as an object for other loaders.

use crate::cli::{Run, Script};
use crate::compiled::{Compiled, compile_named};
use crate::console;
use crate::creator::creator;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use xputrace_boundary::create::FileAccess;
use xputrace_bytecode::object::{self, AttachPlace, Loaders, LossSlot};
use xputrace_bytecode::{Image, ProgramId};
use xputrace_linux::place_for_libbpf;
use xputrace_model::plan::{LossSite, Plan, Probe, ProbePlace};
use xputrace_model::schema::Event;

/// Writes the compiled script, and says what is in the object.
pub fn build(run: &Run) -> Result<ExitCode> {
    let compiled = compile_named(run)?;
    refuse_switches(&compiled)?;
    refuse_usdt(&compiled.plan)?;
    let loaders = run.options.loaders.unwrap_or_default();
    let path = run.options.output.clone().unwrap_or_else(|| default_object(run.script.as_ref()));
    let image = &compiled.plan.image;
    let bytes = object::write_for(image, loaders, &places(&compiled.plan), &losses(&compiled.plan))?;
    let written = creator().write(&path, &bytes, FileAccess::Usual);
    written.with_context(|| format!("cannot write {}", path.display()))?;
    console::print(format_args!("{}: {}\n", path.display(), contents(image, loaders)))?;
    Ok(ExitCode::SUCCESS)
}

fn refuse_switches(compiled: &Compiled) -> Result<()> {
    let Some(switch) = compiled.plan.switches.first() else { return Ok(()) };
    bail!(
        "cannot build an object: the script enables or disables `{}` (line {}) while it runs, which other loaders cannot do",
        switch.name,
        switch.site.line
    );
}

fn refuse_usdt(plan: &Plan) -> Result<()> {
    let Some(probe) = plan.probes.iter().find(|it| it.event == Event::Usdt) else { return Ok(()) };
    bail!(
        "cannot build an object: other loaders do not tell a script's programs where `{}` (line {}) has its arguments; run the \
         script with `xputrace run`",
        probe.name,
        probe.site.line
    );
}

/// Returns where each program of the image is attached, if that is a function.
fn places(plan: &Plan) -> Vec<Option<AttachPlace>> {
    let mut places = vec![None; plan.image.programs.len()];
    for probe in &plan.probes {
        let place = place(probe);
        let programs = [probe.program, probe.entry_program].into_iter().flatten();
        programs.map(ProgramId::index).for_each(|it| places[it].clone_from(&place));
    }
    places
}

/// Returns what the slots of the loss maps count.
fn losses(plan: &Plan) -> Vec<LossSlot> {
    let slot = |it: &LossSite| LossSlot {
        kind: it.loss.name().into(),
        file: plan.sources.files.get(it.site.file.0 as usize).map_or_else(String::new, |it| it.name.clone()),
        line: it.site.line,
    };
    plan.loss_sites.iter().map(slot).collect()
}

fn place(probe: &Probe) -> Option<AttachPlace> {
    match &probe.target {
        ProbePlace::Function { object, function } => place_for_libbpf(object, function),
        _ => None,
    }
}

/// Counts what the object contains, and what of it no loader takes.
fn contents(image: &Image, loaders: Loaders) -> String {
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let (programs, maps) = (count(image.programs.len(), "program"), count(image.maps.len(), "map"));
    match image.programs.iter().filter(|it| !object::is_loaded(it, loaders)).count() {
        0 => format!("{programs}, {maps}"),
        skipped => format!("{programs} ({skipped} of them for xputrace alone), {maps}"),
    }
}

fn default_object(script: Option<&Script>) -> PathBuf {
    match script {
        Some(Script::Named(name)) => {
            PathBuf::from(Path::new(name).file_stem().unwrap_or_default()).with_extension("bpf.o")
        }
        _ => PathBuf::from("script.bpf.o"),
    }
}
