//! xputrace: bpftrace for programs that use a CPU and a GPU.
//!
//! This crate wires the others together: it reads the command line, owns the session, and is the
//! only one that prints, exits, or reads the tracer's environment.

mod cli;
mod collectors;
mod compiled;
mod demo;
mod doctor;
mod live;
mod machine;
mod payload;
mod recording;
mod results;
mod run;
mod running;
mod stacks;
mod target;

use cli::Invocation;
use std::process::ExitCode;

/// We failed or refused: script error, usage, rights; nothing was run.
const REFUSED: u8 = 125;
/// A script or usage error in commands that run nothing.
const MISTAKE: u8 = 2;

fn main() -> ExitCode {
    let invocation = match cli::parse(std::env::args_os().collect()) {
        Ok(invocation) => invocation,
        Err(error) => return usage(&error),
    };
    let runs_something = matches!(invocation, Invocation::Run(_) | Invocation::Record(_) | Invocation::Demo);
    match dispatch(invocation) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xputrace: {error:#}");
            ExitCode::from(if runs_something { REFUSED } else { MISTAKE })
        }
    }
}

fn dispatch(invocation: Invocation) -> anyhow::Result<ExitCode> {
    match invocation {
        Invocation::Run(run) if run.options.replay.is_some() => recording::replay(&run),
        Invocation::Run(run) => live::run(&run),
        Invocation::Record(run) => recording::record(&run),
        Invocation::List { pattern } => machine::list(pattern.as_deref()),
        Invocation::Check(run) => compiled::check(&run),
        Invocation::Explain(run) => compiled::explain(&run),
        Invocation::Build(run) => compiled::build(&run),
        Invocation::Doctor(options) => doctor::doctor(&options),
        Invocation::Scripts => compiled::scripts(),
        Invocation::Demo => demo::demo(),
    }
}

fn usage(error: &cli::UsageError) -> ExitCode {
    let _ = error.print();
    ExitCode::from(match error.exit_code() {
        0 => 0,
        _ if std::env::args()
            .take_while(|it| it != "--")
            .any(|it| matches!(it.as_str(), "check" | "explain" | "build" | "list" | "doctor" | "scripts")) =>
        {
            MISTAKE
        }
        _ => REFUSED,
    })
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|it| it.downcast_ref::<std::io::Error>().is_some_and(|it| it.kind() == std::io::ErrorKind::BrokenPipe))
}
