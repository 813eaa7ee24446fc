//! A run whose probes are attached: it watches until something ends it, then collects the rest.

use super::running::Running;
use super::sources::command::Parting;
use super::sources::keyboard::EndedBy;
use super::sources::{EventSource, Progress, RunTarget, Sources};
use crate::collectors::Collectors;
use crate::console::say;
use crate::interrupts;
use crate::machine::deadline;
use crate::status::Ended;
use crate::unfinished::let_end;
use anyhow::Result;
use std::collections::HashSet;
use std::time::{Duration, Instant};
use xputrace_linux::Linux;
use xputrace_model::plan::{Probe, ProbeId};
use xputrace_model::schema::Event;

/// How long collectors have for their last flush, while nothing comes of them.
const FAREWELL: Duration = Duration::from_millis(2000);
/// How long they have in all: what they have sent before may take longer to read.
const FAREWELL_AT_MOST: Duration = Duration::from_secs(30);

/// Probes are attached, and the command runs.
pub struct Attached {
    running: Running,
    sources: Sources,
    began: Instant,
}

impl Attached {
    /// Resumes the command.
    ///
    /// # Errors
    /// The command cannot be run.
    pub fn begin(running: Running, mut sources: Sources) -> Result<Self> {
        let began = Instant::now();
        sources.target.resume()?;
        Ok(Attached { running, sources, began })
    }

    /// Creates a run that a `begin` handler ended: the command never runs.
    pub fn over_before_it_began(running: Running, target: RunTarget) -> Self {
        drop(target);
        Attached { running, sources: Sources::none(), began: Instant::now() }
    }

    /// Runs until the command ends, time is up, a handler exits, the user interrupts, or the output
    /// closes.
    pub fn watch(&mut self) -> Result<()> {
        loop {
            self.running.flush();
            if self.running.is_over() || self.running.is_unread() {
                return Ok(());
            }
            match self.step()? {
                Progress::Stop | Progress::Done => return Ok(()),
                Progress::Idle if self.has_nothing_to_wait_for() => return Ok(()),
                Progress::Idle | Progress::Busy => {}
            }
        }
    }

    /// Sleeps until something may have happened, and handles it.
    fn step(&mut self) -> Result<Progress> {
        self.sources.wait(&self.running);
        let progress = self.sources.step(&mut self.running, self.began)?;
        self.running.say_what_is_waited_for();
        Ok(progress)
    }

    /// Whether there is nothing to wait for: a script with only `begin` and `end`, without a
    /// command.
    fn has_nothing_to_wait_for(&self) -> bool {
        let waits = |it: &Probe| !matches!(it.event, Event::Begin | Event::End);
        !self.sources.target.is_command() && !self.running.plan().probes.iter().any(waits)
    }

    /// Disarms, reads what is left, runs `end` handlers, prints, and leaves the command.
    pub fn end(mut self) -> Result<Ended> {
        if self.running.is_over() {
            self.running.detach();
        }
        self.part_with_collectors()?;
        self.report_left_behind()?;
        self.running.detach();
        // Contents of Linux's rings at the time when the probes were detached.
        self.sources.linux.step(&mut self.running)?;
        self.running.drain_pipeline();
        self.running.run_programs_here(self.sources.target.why_no_context());
        let totals = self.sources.totals();
        self.running.refresh_builtins(&totals, self.sources.recorded_time(self.began));
        if let Some(summary) = self.sources.window.summary(&totals) {
            self.running.report().recorded_part(summary);
        }
        if let Some(reason) = self.unknown_gpus() {
            self.running.report().recorded_part(Err(reason));
        }
        let unhit = self.unhit();
        self.running.finish();
        interrupts::results_are_printed();
        unhit.iter().for_each(|it| self.running.report().note(it));
        self.report_pending();
        self.running.report().note_children();
        // Programs that the command starts from now on must neither wait for us nor be followed.
        let unfinished = self.sources.collectors.take().map(Collectors::into_unfinished);
        self.running.unload();
        let (why, left_by) = (self.parting(), self.left_by());
        let has_ended = self.sources.target.has_ended();
        let command = self.sources.target.part(why, self.running.report())?;
        if let Some(unfinished) = unfinished.filter(|_| has_ended) {
            let_end(&unfinished, interrupts::are_pending, self.running.report());
        }
        Ok(Ended { exit: self.running.exit_code(), command, left_by, failed: self.running.report().has_failed() })
    }

    /// Counts and reports the processes still running: tracing ends with the command, or with the
    /// processes named by `-p`.
    fn report_left_behind(&mut self) -> Result<()> {
        if self.sources.target.has_ended() {
            self.sources.linux.step(&mut self.running)?;
            let of_linux = self.running.state().linux.as_ref().map(Linux::running);
            let of_drivers = || {
                let mut state = self.running.state();
                state.drivers.take();
                state.drivers.running()
            };
            let left = of_linux.unwrap_or_else(of_drivers);
            self.running.left_behind(&left);
        }
        Ok(())
    }

    /// Says which of the GPUs that `--device` names no process had, and which there were.
    fn unknown_gpus(&self) -> Option<String> {
        let state = self.running.state();
        self.sources.collectors.as_ref()?.unknown_gpus(state.pipeline.state().gpus())
    }

    /// Returns how long to wait for a command that is still running.
    fn parting(&self) -> Parting {
        match self.sources.keyboard.ended_by() {
            Some(EndedBy::Signal(_)) => Parting::Interrupted,
            Some(EndedBy::TracingAlone) => Parting::InTerminal,
            None if interrupts::are_pending() => Parting::Interrupted,
            None if self.running.has_lost_its_reader() => Parting::Unread(self.sources.time_limit.at()),
            None => Parting::AtOnce,
        }
    }

    /// Returns the signal, other than Ctrl-C, that makes us leave a running command.
    fn left_by(&self) -> Option<i32> {
        match self.sources.keyboard.ended_by() {
            Some(EndedBy::Signal(signal)) if signal != libc::SIGINT && self.sources.target.is_command() => Some(signal),
            _ => None,
        }
    }

    /// Asks the collectors for their last flush and waits for it, within limits.
    fn part_with_collectors(&mut self) -> Result<()> {
        let Some(collectors) = &mut self.sources.collectors else { return Ok(()) };
        collectors.disarm(&mut self.running);
        let ended_by = self.sources.keyboard.ended_by();
        let (last, mut until) = (deadline(FAREWELL_AT_MOST), deadline(FAREWELL));
        while self.sources.is_recording() && self.sources.keyboard.ended_by() == ended_by {
            match Instant::now() {
                now if now >= until.min(last) => break,
                _ if self.step()? == Progress::Busy => until = deadline(FAREWELL),
                _ => {}
            }
        }
        // What Linux has told of processes decides which of them are missing, and what was switched.
        self.sources.linux.take_all_records(&mut self.running)?;
        if let Some(collectors) = &mut self.sources.collectors {
            collectors.part_with_all(&mut self.running);
        }
        Ok(())
    }

    /// Returns the line that names the probes whose handlers never ran. A recording runs none.
    fn unhit(&self) -> Option<String> {
        let pending: HashSet<ProbeId> = self.sources.linux.pending().map(|it| it.0).collect();
        let names = if self.running.is_recording() { Vec::new() } else { self.running.state().unhit(&pending) };
        named(&names)
    }

    /// Reports probes that never attached and so counted nothing, even with notes suppressed. A run
    /// in which none attached has failed.
    fn report_pending(&mut self) {
        let plan = self.running.plan().clone();
        let named = |(probe, reason): (ProbeId, &str)| {
            let probe = plan.probes.get(probe.index())?;
            Some(format!("{} never attached: {reason}", probe.name))
        };
        let reasons: Vec<String> = self.sources.linux.pending().filter_map(named).collect();
        let traced = |it: &&Probe| !matches!(it.event, Event::Begin | Event::End | Event::Interval);
        match reasons.len() == plan.probes.iter().filter(traced).count() {
            true => reasons.iter().for_each(|it| self.running.report().fail(it)),
            false => reasons.iter().for_each(say),
        }
    }
}

/// Most probes that a line names.
const MOST_UNHIT: usize = 8;

/// Returns the line that names probes without a hit; `None` if there are none.
fn named(names: &[String]) -> Option<String> {
    let shown = names.get(..MOST_UNHIT).unwrap_or(names).join(", ");
    match names.len().saturating_sub(MOST_UNHIT) {
        _ if names.is_empty() => None,
        0 => Some(format!("never hit: {shown}")),
        more => Some(format!("never hit: {shown} and {more} more")),
    }
}
