//! A run: applies the script to a command, processes, or the whole machine, until it ends.
//!
//! ```text
//! compile ─▶ Prepared ── begin, attach, resume ──▶ Attached ── disarm, detach, results ──▶ Ended ─▶ status
//!            stopped command, programs loaded       one list of sources: collectors, Linux,
//!                                                   timers, command or processes, keyboard
//! ```
//! [`Running`] is the script in all of these phases, and over a recording too. It alone holds the
//! [`RunState`] shared by handlers, sources and output; anyone who changes it borrows it for one step.

mod attached;
mod builtins;
mod engines;
pub mod files;
mod host;
mod maps;
pub mod objects;
pub mod observer;
mod prepared;
mod programs;
pub mod report;
pub mod running;
pub mod sources;
pub mod state;

use crate::cli::{Range, Run};
use crate::compiled::{Compiled, compile_script};
use crate::interrupts;
use crate::machine;
use crate::status::Ended;
use anyhow::{Result, bail};
use observer::Observer;
use prepared::Prepared;
use sources::processes::Processes;
use std::process::ExitCode;
use xputrace_model::plan::{Place, Plan, Probe, ProbeScope};
use xputrace_nvidia_tracer::own_process;

pub use running::Running;
pub use state::RunState;

/// `xputrace [run] SCRIPT -- CMD`, or with a compiled object in the script's place.
pub fn run(run: &Run) -> Result<ExitCode> {
    if let Some(file) = objects::named(run) {
        return trace(run, Compiled::of_object(objects::plan(run, file)?), None);
    }
    let compiled = compile_script(run, &machine::catalog(run))?;
    compiled.refuse_empty()?;
    trace(run, compiled, None)
}

/// Runs a compiled script; `observer` sees everything that the run receives.
pub fn trace(run: &Run, compiled: Compiled, observer: Option<Box<dyn Observer>>) -> Result<ExitCode> {
    Ok(traced(run, compiled, observer)?.code())
}

/// As [`trace`]; returns how the run ended.
pub fn traced(run: &Run, compiled: Compiled, observer: Option<Box<dyn Observer>>) -> Result<Ended> {
    refuse_impossible(run, &compiled.plan)?;
    let own = if run.has_target() { None } else { own_process::command(&compiled.plan)? };
    let own = own.map(|command| Run { command, ..run.clone() });
    let run = own.as_ref().unwrap_or(run);
    let processes = Processes::named(&run.options.pids)?;
    interrupts::install()?;
    let mut attached = Prepared::new(run, compiled, processes, observer)?.attach()?;
    attached.watch()?;
    attached.end()
}

/// Reports what this version cannot do, before anything is attached.
fn refuse_impossible(run: &Run, plan: &Plan) -> Result<()> {
    let elsewhere = run.options.all_processes || !run.options.pids.is_empty();
    if elsewhere && !run.command.is_empty() {
        bail!("-p, -a and --comm trace running processes and cannot be combined with a command");
    }
    if run.command.is_empty()
        && let Some(range) = &run.options.window.range
    {
        if !elsewhere {
            bail!("--range {range} needs a program: give a command (-- CMD) or a process (-p PID)");
        }
        if let Range::Named(_) = range {
            bail!(
                "--range {range} needs a command (-- CMD): NVTX asks for a tool only at the first NVTX call of a program"
            );
        }
    }
    let needs_target = |it: &Probe| it.event.is_gpu() || (it.place == Place::Linux && it.scope != ProbeScope::System);
    if plan.probes.iter().any(needs_target) && !elsewhere && run.command.is_empty() {
        let hint = if run.script.is_none() { "; see `xputrace --help`" } else { "" };
        bail!("nothing to trace: give a command (-- CMD), a process (-p PID), or -a for all processes{hint}");
    }
    Ok(())
}
