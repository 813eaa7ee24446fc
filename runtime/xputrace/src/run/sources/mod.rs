//! The event sources of a run. A run sleeps until one of them has something, then steps each in
//! turn.

pub mod command;
pub mod keyboard;
pub mod linux;
pub mod processes;
mod source;
pub mod switching;
pub mod timers;
pub mod window;

pub use source::{EventSource, Progress};

use super::report::Report;
use super::running::Running;
use crate::collectors::Collectors;
use anyhow::Result;
use command::{Command, Parting};
use keyboard::Keyboard;
use linux::LinuxEvents;
use processes::{Processes, poll};
use std::os::fd::RawFd;
use std::process::ExitStatus;
use std::time::{Duration, Instant};
use switching::Switching;
use timers::{TimeLimit, Timers};
use window::Window;
use xputrace_linux::StoppedChild;
use xputrace_nvidia_tracer::programs::Why;
use xputrace_wire::totals::CollectorTotals;

/// Maximum time that a run sleeps while nothing happens.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);

/// The sources of a run.
pub struct Sources {
    pub collectors: Option<Collectors>,
    pub linux: LinuxEvents,
    pub timers: Timers,
    pub time_limit: TimeLimit,
    pub window: Window,
    pub switching: Switching,
    pub keyboard: Keyboard,
    pub target: RunTarget,
}

/// What a run traces.
pub enum RunTarget {
    /// `-- CMD`.
    Command(Command),
    /// `-p`; without a process, all of them.
    Processes(Processes),
}

impl Sources {
    /// Returns the target of a run that is over.
    pub fn none() -> Self {
        Sources {
            collectors: None,
            linux: LinuxEvents::new(Vec::new()),
            timers: Timers::default(),
            time_limit: TimeLimit::default(),
            window: Window::default(),
            switching: Switching::default(),
            keyboard: Keyboard::default(),
            target: RunTarget::Processes(Processes::default()),
        }
    }

    fn all(&self) -> impl Iterator<Item = &dyn EventSource> {
        let collectors = self.collectors.iter().map(|it| it as &dyn EventSource);
        collectors.chain([
            &self.linux as &dyn EventSource,
            &self.timers,
            &self.time_limit,
            &self.keyboard,
            &self.target,
        ])
    }

    /// Sleeps until a source may have something.
    pub fn wait(&self, running: &Running) {
        let sleep =
            self.all().filter_map(EventSource::due_in).chain(self.window.due_in()).fold(LONGEST_SLEEP, Duration::min);
        let descriptors: Vec<RawFd> = self.all().flat_map(|it| it.descriptors(running)).collect();
        poll(descriptors.into_iter(), sleep.as_millis().max(1) as libc::c_int);
    }

    /// Steps each source once.
    ///
    /// # Errors
    /// Errors of a source.
    pub fn step(&mut self, running: &mut Running, began: Instant) -> Result<Progress> {
        // Before what may be the probes' that it switches.
        self.switching.hear(running, &mut self.linux)?;
        let mut progress = match &mut self.collectors {
            Some(collectors) => EventSource::step(collectors, running)?,
            None => Progress::Idle,
        };
        self.part_with_collectors_that_are_over(running)?;
        self.window.step(running, self.collectors.as_mut(), &mut self.time_limit)?;
        progress = progress.max(self.linux.step(running)?);
        if self.timers.are_due() {
            running.refresh_builtins(&self.totals(), self.recorded_time(began));
            progress = progress.max(self.timers.step(running)?);
        }
        // After everything that may have run a handler.
        self.switching.step(running, self.collectors.as_mut())?;
        progress = progress.max(self.time_limit.step(running)?);
        progress = progress.max(self.keyboard.step(running)?);
        let of_target = self.target.step(running)?;
        if of_target >= Progress::Done {
            self.keyboard.forget_command();
        }
        Ok(progress.max(of_target))
    }

    /// Closes the accounts of processes that have ended, or been left: after Linux's records, which tell what was
    /// switched before.
    fn part_with_collectors_that_are_over(&mut self, running: &mut Running) -> Result<()> {
        if let Some(collectors) = self.collectors.as_mut().filter(|it| it.has_any_over()) {
            self.linux.take_all_records(running)?;
            collectors.part_with_those_over(running);
        }
        Ok(())
    }

    /// Whether collectors record, or have left something to read.
    pub fn is_recording(&self) -> bool {
        self.collectors.as_ref().is_some_and(Collectors::is_recording)
    }

    /// Returns how long events were recorded, in a run that began then.
    pub fn recorded_time(&self, began: Instant) -> Duration {
        match self.window.is_limited() {
            true => self.window.elapsed(&self.totals()),
            false => began.elapsed(),
        }
    }

    /// Returns the collectors' own totals.
    pub fn totals(&self) -> Vec<CollectorTotals> {
        self.collectors.as_ref().map(Collectors::totals).unwrap_or_default()
    }
}

impl RunTarget {
    /// Whether it is a command.
    pub fn is_command(&self) -> bool {
        matches!(self, RunTarget::Command(_))
    }

    /// Returns the command's process, if there is one.
    pub fn child(&self) -> Option<&StoppedChild> {
        match self {
            RunTarget::Command(command) => Some(command.child()),
            RunTarget::Processes(_) => None,
        }
    }

    /// Whether the command, or every named process, has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        match self {
            RunTarget::Command(command) => command.has_ended(),
            RunTarget::Processes(processes) => processes.are_gone(),
        }
    }

    /// Says why programs that were to run in a context of it have not.
    pub fn why_no_context(&self) -> Why {
        match self {
            RunTarget::Command(command) => command.why_no_context(),
            RunTarget::Processes(_) => Why::NoContext,
        }
    }

    /// Resumes a command.
    ///
    /// # Errors
    /// It cannot be run.
    pub fn resume(&mut self) -> Result<()> {
        match self {
            RunTarget::Command(command) => command.resume(),
            RunTarget::Processes(_) => Ok(()),
        }
    }

    /// Leaves the target; returns the status of a command that has ended.
    ///
    /// # Errors
    /// The command cannot be waited for.
    pub fn part(self, why: Parting, report: &mut Report) -> Result<Option<ExitStatus>> {
        match self {
            RunTarget::Command(command) => command.part(why, report),
            RunTarget::Processes(_) => Ok(None),
        }
    }

    fn source(&mut self) -> &mut dyn EventSource {
        match self {
            RunTarget::Command(command) => command,
            RunTarget::Processes(processes) => processes,
        }
    }
}

impl EventSource for RunTarget {
    fn descriptors(&self, running: &Running) -> Vec<RawFd> {
        match self {
            RunTarget::Command(command) => command.descriptors(running),
            RunTarget::Processes(processes) => processes.descriptors(running),
        }
    }

    fn step(&mut self, running: &mut Running) -> Result<Progress> {
        self.source().step(running)
    }
}
