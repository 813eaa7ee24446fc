//! What the Linux side of a run reports: records of handlers, processes, files mapped late.

use super::source::{EventSource, Progress};
use crate::run::report::Report;
use crate::run::running::Running;
use crate::run::state::RunState;
use anyhow::Result;
use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::time::Duration;
use xputrace_linux::{AttachError, Linux, News, Outcome, ProbeReport, Unprobed, monotonic_nanos};
use xputrace_model::loss::{Loss, Losses};
use xputrace_model::plan::{Plan, ProbeId, record};
use xputrace_pipeline::Outputs;

/// Printed once, in addition to the count.
const UNFOLLOWED: &str = "some new threads and processes are not traced, because too many run at once; they are \
                          counted as unprobed_process";

/// How often all records are tried to be read, while a handler that was interrupted keeps one unfinished.
const MOST_ATTEMPTS: usize = 200;
const BETWEEN_ATTEMPTS: Duration = Duration::from_micros(500);

/// The probes in Linux, if a script has any.
#[derive(Debug, Default)]
pub struct LinuxEvents {
    /// Probes whose file no process has mapped yet.
    pending: BTreeSet<ProbeId>,
    /// Probes whose file was mapped only by processes that had ended before it could be probed.
    too_late: BTreeSet<ProbeId>,
}

impl LinuxEvents {
    /// `pending` are the probes whose file no process has mapped yet.
    pub fn new(pending: Vec<ProbeId>) -> Self {
        LinuxEvents { pending: pending.into_iter().collect(), too_late: BTreeSet::new() }
    }

    /// Returns the probes that are attached to no file so far, each with the reason.
    pub fn pending(&self) -> impl Iterator<Item = (ProbeId, &'static str)> + '_ {
        let reason = |it: &ProbeId| match self.too_late.contains(it) {
            true => "the processes that mapped such a file ended, or unmapped it, before it could be probed",
            false => "no process mapped such a file",
        };
        self.pending.iter().map(move |it| (*it, reason(it)))
    }

    /// Handles prints and other records of handlers. Returns whether none is left from before the call.
    ///
    /// # Errors
    /// The records are unreadable.
    pub fn take_records(&mut self, running: &mut Running) -> Result<bool> {
        let mut records: Vec<Vec<u8>> = Vec::new();
        let (switches, began) = (running.state().unconfirmed_switches(), monotonic_nanos());
        let mut are_all_read = {
            let state = &mut *running.state();
            let Some(linux) = &mut state.linux else { return Ok(true) };
            state.stacks.begin_to_read();
            let names = state.pipeline.state_mut().names_mut();
            linux.lending(names, |it| it.poll(Duration::ZERO, &mut |record| records.push(record.to_vec())))?
        };
        // The mappings that a record's stacks need precede the record.
        self.follow_processes(running);
        let mut queue = running.queue();
        are_all_read &= running.state().take_object_records(&mut queue)?;
        for record in &records {
            // Records after an `exit` are events after the end.
            if queue.is_over() {
                break;
            }
            let handled = running.state().pipeline.state_mut().record(record, &mut queue);
            if !handled {
                running.observe_hit(record);
            }
        }
        if are_all_read && !records.iter().any(|it| record::is_of(it, record::SWITCH)) {
            running.state().confirm_switches(&switches, began);
        }
        running.state().tell_linux_switches()?;
        running.settle(queue);
        if are_all_read {
            running.forget_programs();
        }
        Ok(are_all_read)
    }

    /// Handles all records from before the call. Returns whether none is left: a handler may take long to write one.
    ///
    /// # Errors
    /// The records are unreadable.
    pub fn take_all_records(&mut self, running: &mut Running) -> Result<bool> {
        for _ in 0..MOST_ATTEMPTS {
            if self.take_records(running)? {
                return Ok(true);
            }
            std::thread::sleep(BETWEEN_ATTEMPTS);
        }
        Ok(false)
    }

    /// Handles children, mappings, and files that appear late.
    fn follow_processes(&mut self, running: &mut Running) {
        let plan = running.plan().clone();
        let (mut state, report) = running.parts();
        let RunState { linux, pipeline, stacks, drivers, losses, .. } = &mut *state;
        let Some(linux) = linux else { return };
        let events = linux.lending(pipeline.state_mut().names_mut(), Linux::processes);
        events.iter().for_each(|it| stacks.heard(it));
        drivers.heard(&events);
        for news in linux.news() {
            match news {
                News::Warning(it) => report.note(&it.text),
                News::Probe(it) => {
                    self.pending.remove(&it.probe);
                    failure(&plan, &it).iter().for_each(|it| report.note(it));
                }
                News::UnprobedProgram => losses.add(Loss::UnprobedProcess, 1),
                News::LateFile(it) => {
                    losses.add(Loss::UnprobedProcess, 1);
                    self.too_late.extend(it.waiting);
                    report.late_file(it.file, it.micros);
                }
                News::Unfollowed(n) => {
                    losses.add(Loss::UnprobedProcess, n);
                    report.note(UNFOLLOWED);
                }
                News::Child(it) => child(it, losses, report),
            }
        }
    }
}

/// Returns why a probe could not be attached, with its place in the script.
pub fn failure(plan: &Plan, report: &ProbeReport) -> Option<String> {
    let Outcome::Failed(error) = &report.outcome else { return None };
    let probe = plan.probes.get(report.probe.index())?;
    let file = plan.sources.files.get(probe.site.file.0 as usize).map_or("", |it| it.name.as_str());
    Some(format!("{file}:{}: cannot attach {}: {error}", probe.site.line, probe.name))
}

/// Handles a new process that ran without uprobes for some time.
fn child(it: Unprobed, losses: &mut Losses, report: &mut Report) {
    report.children += 1;
    report.unprobed_micros += it.micros;
    losses.add(Loss::UnprobedProcess, u64::from(it.failed.is_some() || it.micros > 0));
    // The loss already says that it has ended.
    if let Some(reason) = it.failed.filter(|it| !matches!(it, AttachError::NoSuchProcess(_))) {
        report.note_about_process(&format!("process {} ran without uprobes: {reason}", it.pid));
    }
}

impl EventSource for LinuxEvents {
    fn descriptors(&self, running: &Running) -> Vec<RawFd> {
        running.state().linux.iter().flat_map(Linux::fds).collect()
    }

    fn step(&mut self, running: &mut Running) -> Result<Progress> {
        self.take_records(running)?;
        Ok(Progress::Idle)
    }
}
