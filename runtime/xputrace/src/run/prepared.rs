//! A run before anything is attached: its command is stopped, its programs are loaded.

use super::attached::Attached;
use super::engines;
use super::files::ResultFiles;
use super::observer::Observer;
use super::report::Report;
use super::running::Running;
use super::sources::command::Command;
use super::sources::keyboard::Keyboard;
use super::sources::linux::{LinuxEvents, failure};
use super::sources::processes::Processes;
use super::sources::switching::Switching;
use super::sources::timers::{TimeLimit, Timers};
use super::sources::window::Window;
use super::sources::{RunTarget, Sources};
use super::state::RunState;
use crate::cli::Run;
use crate::collectors::Collectors;
use crate::compiled::Compiled;
use crate::machine;
use crate::open_files;
use crate::printer::Printer;
use crate::stacks::Stacks;
use crate::target::Launch;
use anyhow::{Result, bail};
use std::sync::Arc;
use xputrace_linux::{Outcome, ProbeReport, Scope, StoppedChild};
use xputrace_model::output::Output;
use xputrace_model::plan::{Detail, Place};
use xputrace_nvidia_tracer::own_process;
use xputrace_nvidia_tracer::programs::Turn;

const RANGES_UNKNOWN: &str = "the NVTX ranges of a running process are unknown, so there are no `nvtx` events and the fields `nvtx` and `nvtx_path` are `()`: NVTX asks \
                              for a tool only at a program's first NVTX call. Start the program under xputrace (-- CMD)";

const LATENCIES_REFUSED: &str = "cannot read `queued` and `submitted` of the kernels of a running process: CUPTI tells \
                                 them only if it is asked before CUDA starts. Start the program under xputrace \
                                 (-- CMD), or leave the two fields out";

/// Everything up to the `begin` handlers.
pub struct Prepared {
    running: Running,
    collectors: Option<Collectors>,
    target: RunTarget,
    scope: Scope,
    time_limit: TimeLimit,
    window: Window,
}

impl Prepared {
    /// Stops the command before its `exec` and loads the programs.
    ///
    /// # Errors
    /// The command cannot be started, Linux refuses a program, or the output cannot be opened.
    pub fn new(
        run: &Run,
        compiled: Compiled,
        processes: Processes,
        observer: Option<Box<dyn Observer>>,
    ) -> Result<Self> {
        let plan = Arc::new(compiled.plan);
        if plan.demand.has(Detail::Latencies) && run.command.is_empty() {
            bail!(LATENCIES_REFUSED);
        }
        open_files::make_room(&plan)?;
        let is_own = own_process::is_own(&run.command);
        // The user who calls sudo may not reach xputrace's own file.
        let mut launch = Launch::new(run.options.as_root || is_own)?;
        let turn = Turn::first(&plan, !run.command.is_empty());
        let is_wanted = plan.demand.gpu() || run.options.window.range.is_some() || turn == Turn::Awaited;
        let collectors = match (is_wanted, run.command.is_empty()) {
            (false, _) => None,
            (true, false) => Some(Collectors::of_command(&mut launch, &run.options, &plan)?),
            (true, true) => Some(Collectors::of_running(run.options.chosen(), &run.options)?),
        };
        if plan.demand.ranges() && run.command.is_empty() {
            launch.notes.push(RANGES_UNKNOWN.into());
        }
        let target = match run.command.is_empty() {
            true => RunTarget::Processes(processes),
            false => {
                let child = StoppedChild::spawn(&run.command, &launch.environment, launch.identity.as_ref())?;
                RunTarget::Command(Command::new(child, is_own))
            }
        };
        let scope = match &target {
            RunTarget::Command(command) => command.scope(),
            RunTarget::Processes(_) => machine::running(&run.options),
        };
        let linux = engines::linux(&plan)?;
        let pipeline = engines::pipeline(&plan, linux.as_ref())?;
        let files = ResultFiles::new(&run.options.files, &plan.tables)?;
        let printer = Printer::new(run.options.format, run.options.output.as_deref())?;
        let stacks = Stacks::of(&plan, run.options.naming);
        let state = RunState::new(plan, linux, pipeline, stacks, printer);
        let mut report = Report::new(run.options.quiet);
        launch.notes.iter().for_each(|it| report.note(it));
        let running = Running::new(state, compiled.interpreter, report).watched_by(observer).writing(files);
        let running = running.with_programs(turn);
        let (time_limit, window) = (TimeLimit::of(run.options.run_for), Window::new(&run.options.window));
        Ok(Prepared { running, collectors, target, scope, time_limit, window })
    }

    /// Runs the `begin` handlers, attaches the probes, and resumes the command.
    ///
    /// # Errors
    /// A probe cannot be attached, or the command cannot be run.
    pub fn attach(mut self) -> Result<Attached> {
        self.running.begin();
        if self.running.is_over() {
            return Ok(Attached::over_before_it_began(self.running, self.target));
        }
        let (linux, switching, n_attached) = self.attach_probes()?;
        self.let_collectors_in()?;
        self.say_attached(n_attached);
        // The output of `begin` must precede the command's.
        self.running.flush();
        if !self.window.is_limited() {
            self.time_limit.start();
        }
        let sources = Sources {
            collectors: self.collectors,
            linux,
            timers: Timers::new(self.running.plan()),
            time_limit: self.time_limit,
            window: self.window,
            switching,
            keyboard: Keyboard::new(self.target.child()),
            target: self.target,
        };
        Attached::begin(self.running, sources)
    }

    fn let_collectors_in(&mut self) -> Result<()> {
        let Some(collectors) = &mut self.collectors else { return Ok(()) };
        let plan = self.running.plan().clone();
        {
            let state = &mut *self.running.state();
            let switches = state.pipeline.state().switches().now();
            state.drivers = collectors.open(&plan, &switches, state.linux.as_mut(), self.scope.pids())?;
        }
        self.running.report().attaches = !self.target.is_command();
        collectors.attach(&mut self.running)
    }

    /// Returns also at how many places there are probes.
    fn attach_probes(&mut self) -> Result<(LinuxEvents, Switching, usize)> {
        let plan = self.running.plan().clone();
        let (mut state, report) = self.running.parts();
        let state = &mut *state;
        state.write_linux_switches()?;
        let mut attached = plan.probes.iter().filter(|it| it.place != Place::Linux || it.event.is_gpu()).count();
        let mut pending = Vec::new();
        if let Some(linux) = &mut state.linux {
            self.scope.pids().into_iter().for_each(|pid| state.stacks.add_process(pid));
            let names = state.pipeline.state_mut().names_mut();
            let outcome = linux.lending(names, |it| it.attach(&plan, &self.scope))?;
            attached += outcome.places();
            outcome.warnings.iter().for_each(|it| report.note(&it.text));
            let failures: Vec<String> = outcome.probes.iter().filter_map(|it| failure(&plan, it)).collect();
            if !failures.is_empty() {
                bail!(failures.join("\n"));
            }
            let waits = |it: &&ProbeReport| matches!(it.outcome, Outcome::Pending);
            pending.extend(outcome.probes.iter().filter(waits).map(|it| it.probe));
        }
        let switching = Switching::begin(&plan, state);
        Ok((LinuxEvents::new(pending), switching, attached))
    }

    fn say_attached(&mut self, probes: usize) {
        // A recording without a script has no probes, which is fine.
        if !self.running.report().is_quiet() && !self.running.plan().probes.is_empty() {
            self.running.state().emit(&Output::Attached { probes });
        }
    }
}
