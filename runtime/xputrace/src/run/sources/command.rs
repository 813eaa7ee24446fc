//! The command of a run.

use super::processes::{Processes, poll};
use super::source::{EventSource, Progress};
use crate::interrupts;
use crate::machine::deadline;
use crate::run::report::Report;
use crate::run::running::Running;
use anyhow::Result;
use std::os::fd::RawFd;
use std::process::ExitStatus;
use std::time::{Duration, Instant};
use xputrace_linux::{Scope, StoppedChild};
use xputrace_nvidia_tracer::own_process;
use xputrace_nvidia_tracer::programs::Why;

/// How long a command has to end after an interrupt, which a terminal sends to it too.
const GRACE: Duration = Duration::from_millis(500);
/// How often to check for the command's end when nothing else is left to do.
const GLANCE_MILLIS: libc::c_int = 50;

/// `-- CMD`.
pub struct Command {
    child: StoppedChild,
    /// Whether it is xputrace itself, whose status is not the run's.
    is_own: bool,
    /// Empty if Linux provides no descriptor for it; its end is then polled.
    watched: Processes,
    status: Option<ExitStatus>,
}

/// How long to wait for a command that is still running after the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    /// Not at all: a handler called `exit`, or time is up.
    AtOnce,
    /// Briefly: it was interrupted too.
    Interrupted,
    /// Until it ends, or until this moment: the output is closed, but whoever started the run
    /// started the command.
    Unread(Option<Instant>),
    /// Until it ends: it has the terminal, and its user ended only the tracing.
    InTerminal,
}

impl Command {
    pub fn new(child: StoppedChild, is_own: bool) -> Self {
        Command { watched: Processes::of_command(child.pid()), child, is_own, status: None }
    }

    /// Says why programs that were to run in a context of it have not.
    pub fn why_no_context(&self) -> Why {
        let failure = self.status.filter(|_| self.is_own).and_then(|it| own_process::failure(it.code()?));
        failure.map_or(Why::NoContext, |it| Why::Said(it.to_owned()))
    }

    /// Returns its process and the files it will load.
    pub fn scope(&self) -> Scope {
        self.child.scope()
    }

    /// Resumes it.
    ///
    /// # Errors
    /// It cannot be run.
    pub fn resume(&mut self) -> Result<()> {
        Ok(self.child.resume()?)
    }

    /// Whether its end was seen.
    pub fn has_ended(&self) -> bool {
        self.status.is_some()
    }

    /// Returns its process.
    pub fn child(&self) -> &StoppedChild {
        &self.child
    }

    /// Leaves it running unless there is a reason to wait for it.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn part(mut self, why: Parting, report: &mut Report) -> Result<Option<ExitStatus>> {
        let mut until = match why {
            Parting::AtOnce => Some(Instant::now()),
            Parting::Interrupted => Some(deadline(GRACE)),
            Parting::Unread(limit) => limit,
            Parting::InTerminal => None,
        };
        if why == Parting::InTerminal {
            interrupts::leave_to_command()?;
        }
        loop {
            if self.status.is_none() {
                self.status = self.child.try_wait()?;
            }
            if self.status.is_some() {
                return Ok(self.status.filter(|_| !self.is_own));
            }
            if until.is_some_and(|it| Instant::now() >= it) {
                let pid = self.child.pid();
                report.note(&format!("the command keeps running, untraced (process {pid}); `kill {pid}` ends it"));
                return Ok(None);
            }
            if !interrupts::take().is_empty() {
                until = Some(deadline(GRACE));
            }
            poll(self.watched.fds(), GLANCE_MILLIS);
        }
    }
}

impl EventSource for Command {
    fn descriptors(&self, _running: &Running) -> Vec<RawFd> {
        // The end of a command that has already ended is no news.
        self.watched.fds().filter(|_| self.status.is_none()).collect()
    }

    fn step(&mut self, _running: &mut Running) -> Result<Progress> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(if self.status.is_some() { Progress::Done } else { Progress::Idle })
    }
}
