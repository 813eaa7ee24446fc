//! xputrace: bpftrace for programs that use a CPU and a GPU.
//!
//! This crate wires the others together. It reads the command line, owns the run, and is the only
//! one that prints, exits, or reads the tracer's environment. All printing goes through
//! [`console`]; [`status`] decides exit statuses.

mod attach;
mod building;
mod cli;
mod collectors;
mod compiled;
mod completions;
mod console;
mod creator;
mod definitions;
mod demo;
mod doctor;
mod export;
mod interrupts;
mod list;
mod machine;
mod manual;
mod open_files;
mod payload;
mod printer;
mod recording;
mod run;
mod stacks;
mod status;
mod target;
mod translate;
mod unfinished;

use cli::Invocation;
use status::{FAILED, MISTAKE, Said};
use std::ffi::OsString;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::process::ExitCode;
use xputrace_nvidia_tracer::own_process;

// The linker calls what is in here (`build.rs`).
core::arch::global_asm!(include_str!(concat!(env!("OUT_DIR"), "/old_glibc.s")));

fn main() -> ExitCode {
    panic::set_hook(Box::new(ask_for_report));
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match own_process::is_asked(&arguments) {
        true => own_process::run(),
        false => guarded(|| answer(arguments)),
    }
}

/// Reports a panic as a failure. Unwinding drops the run: probes are removed, and the command keeps
/// running.
fn guarded(answer: impl FnOnce() -> ExitCode) -> ExitCode {
    panic::catch_unwind(AssertUnwindSafe(answer)).unwrap_or(ExitCode::from(FAILED))
}

/// Prints that a panic is a bug, and what to do.
fn ask_for_report(info: &PanicHookInfo<'_>) {
    if xputrace_symbols::may_panic() {
        return;
    }
    let what = info.payload_as_str().unwrap_or("a panic without a message");
    let place = info.location().map(|it| format!(" ({}:{})", it.file(), it.line())).unwrap_or_default();
    console::say(format_args!(
        "this is a bug in xputrace: {what}{place}; please report it, with the command line and the output of \
         `xputrace doctor`. The program keeps running untraced"
    ));
}

fn answer(arguments: Vec<OsString>) -> ExitCode {
    let invocation = match cli::parse(arguments) {
        Ok(invocation) => invocation,
        Err(it) => return usage(&it),
    };
    let runs_something = matches!(invocation, Invocation::Run(_) | Invocation::Record(_) | Invocation::Demo);
    match dispatch(invocation) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if error.downcast_ref() == Some(&Said::Help) => ExitCode::SUCCESS,
        Err(error) => {
            if !error.is::<Said>() {
                console::say(format_args!("{error:#}"));
            }
            ExitCode::from(if runs_something { FAILED } else { MISTAKE })
        }
    }
}

fn dispatch(invocation: Invocation) -> anyhow::Result<ExitCode> {
    if let Some(as_root) = invocation.writes_as_root() {
        creator::decide(as_root)?;
    }
    match invocation {
        Invocation::Run(run) if run.options.replay.is_some() => recording::replay(&run),
        Invocation::Run(run) => run::run(&run),
        Invocation::Record(run) => recording::record(&run),
        Invocation::List(options) => list::list(&options),
        Invocation::Check(run) => compiled::check(&run),
        Invocation::Explain(run) => compiled::explain(&run),
        Invocation::Build(run) => building::build(&run),
        Invocation::Export(options) => export::export(&options),
        Invocation::Translate(options) => translate::translate(&options),
        Invocation::Doctor(options) => doctor::doctor(&options),
        Invocation::Scripts => compiled::scripts(),
        Invocation::Demo => demo::demo(),
        Invocation::Help(options) => manual::explain_topic(&options),
        Invocation::Completions(options) => completions::print(&options),
        Invocation::Definitions => definitions::print(),
        Invocation::Man(options) => manual::page(&options),
    }
}

fn usage(it: &cli::Misunderstood) -> ExitCode {
    let _ = it.error.print();
    ExitCode::from(match (it.error.exit_code(), it.runs_something) {
        (0, _) => 0,
        (_, true) => FAILED,
        (_, false) => MISTAKE,
    })
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|it| it.downcast_ref::<std::io::Error>().is_some_and(|it| it.kind() == std::io::ErrorKind::BrokenPipe))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_failure() {
        assert_eq!(guarded(|| panic!("on purpose")), ExitCode::from(FAILED));
        assert_eq!(guarded(|| ExitCode::from(7)), ExitCode::from(7));
    }
}
