//! xputrace: bpftrace for programs that use a CPU and a GPU.
//!
//! This crate wires the others together: it reads the command line, owns the session, and is the
//! only one that prints, exits, or reads the tracer's environment. Printing goes through [`console`]
//! alone, exit statuses are decided in [`status`].

mod builtins;
mod cli;
mod collectors;
mod compiled;
mod console;
mod demo;
mod doctor;
mod interrupts;
mod live;
mod machine;
mod payload;
mod printer;
mod recording;
mod report;
mod results;
mod running;
mod stacks;
mod status;
mod target;
mod timers;
mod watched;

use cli::Invocation;
use status::{FAILED, MISTAKE};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::process::ExitCode;

fn main() -> ExitCode {
    panic::set_hook(Box::new(ask_for_report));
    // A command that runs goes on, and with the panic's end the kernel takes our probes out.
    panic::catch_unwind(AssertUnwindSafe(answer)).unwrap_or(ExitCode::from(FAILED))
}

/// Says that a panic is our mistake. Its own message comes first, in case that is all that gets out.
fn ask_for_report(info: &PanicHookInfo<'_>) {
    console::say(format_args!(
        "this is a bug in xputrace, and the run ends here ({info}). Please report it, with the command line and the \
         output of `xputrace doctor`; what was traced goes on and comes to no harm"
    ));
}

fn answer() -> ExitCode {
    let invocation = match cli::parse(std::env::args_os().collect()) {
        Ok(invocation) => invocation,
        Err(error) => return usage(&error),
    };
    let runs_something = matches!(invocation, Invocation::Run(_) | Invocation::Record(_) | Invocation::Demo);
    match dispatch(invocation) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            console::say(format_args!("{error:#}"));
            ExitCode::from(if runs_something { FAILED } else { MISTAKE })
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
        _ => FAILED,
    })
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|it| it.downcast_ref::<std::io::Error>().is_some_and(|it| it.kind() == std::io::ErrorKind::BrokenPipe))
}
