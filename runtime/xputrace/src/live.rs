//! A live run: the script onto a command, processes, or the whole machine, until it ends.
//!
//! ```text
//! compile ─▶ spawn stopped ─▶ load ─▶ begin ─▶ attach ─▶ resume ─▶ loop ─▶ detach ─▶ end ─▶ results
//! ```

use crate::cli::Run;
use crate::collectors::Collectors;
use crate::compiled::{Compiled, compile_script};
use crate::console::say;
use crate::engines;
use crate::interrupts;
use crate::machine::{self, deadline};
use crate::open_files;
use crate::printer::Printer;
use crate::recording::Tape;
use crate::report::Report;
use crate::results::Results;
use crate::running::{Running, check_stack_files};
use crate::stacks::Stacks;
use crate::status::{Ending, FAILED};
use crate::target::Launch;
use crate::timers::Timers;
use crate::watched::{self, Watched};
use anyhow::{Result, bail};
use std::collections::BTreeSet;
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};
use xputrace_linux::{AttachError, Linux, News, Outcome as Attachment, ProbeReport, Scope, StoppedChild};
use xputrace_model::loss::Loss;
use xputrace_model::output::Output;
use xputrace_model::plan::{Place, Plan, Probe, ProbeScope};
use xputrace_model::schema::Event;
use xputrace_tracer::Sink;

/// How often the rings are read while a target records.
const DRAIN_INTERVAL: Duration = Duration::from_millis(2);
/// How long an idle loop sleeps at most.
const IDLE_INTERVAL: Duration = Duration::from_millis(20);
/// How long collectors have for their last flush.
const FAREWELL: Duration = Duration::from_millis(2000);
/// How long a command has to end after an interrupt, which a terminal sends to it too.
const GRACE: Duration = Duration::from_millis(500);
/// How often the end of a command is asked for while nothing else is left to do.
const GLANCE_MILLIS: libc::c_int = 50;
/// Said once, beside the count.
const UNFOLLOWED: &str = "some new processes are not traced, and counted as unprobed_process: too many ran at once, or \
                          they have a pid namespace of their own within ours";

/// `xputrace [run] SCRIPT -- CMD`.
pub fn run(run: &Run) -> Result<ExitCode> {
    let compiled = match compile_script(run, &machine::catalog(run))?.ready_or(FAILED) {
        Ok(compiled) => compiled,
        Err(status) => return Ok(status),
    };
    compiled.refuse_empty()?;
    trace(run, compiled, None)
}

/// Runs a compiled script, and records what happens where a tape is given.
pub fn trace(run: &Run, compiled: Compiled, tape: Option<Tape>) -> Result<ExitCode> {
    refuse_impossible(run, &compiled.plan)?;
    let named = Watched::named(&run.options.pids)?;
    interrupts::install()?;
    let mut session = Session::start(run, compiled, named, tape)?;
    session.watch()?;
    session.end()
}

/// What this version cannot do is said before anything is attached.
fn refuse_impossible(run: &Run, plan: &Plan) -> Result<()> {
    let elsewhere = run.options.all_processes || !run.options.pids.is_empty();
    if elsewhere && !run.command.is_empty() {
        bail!("-p and -a trace processes that run already; they do not go together with a command");
    }
    if elsewhere && plan.demand.gpu() {
        bail!(
            "GPU hooks on a running process are not there yet (CPU probes are): start the program under xputrace, with -- CMD"
        );
    }
    let needs_target = |it: &Probe| it.event.is_gpu() || (it.place == Place::Linux && it.scope != ProbeScope::System);
    if plan.probes.iter().any(needs_target) && !elsewhere && run.command.is_empty() {
        let hint = if run.script.is_none() { "; `xputrace --help` tells what there is" } else { "" };
        bail!("nothing to trace: give a command (-- CMD), a process (-p PID), or -a for all processes{hint}");
    }
    Ok(())
}

/// A run in progress.
struct Session {
    running: Running,
    collectors: Option<Collectors>,
    child: Option<StoppedChild>,
    status: Option<ExitStatus>,
    timers: Timers,
    began: Instant,
    stop_at: Option<Instant>,
    tape: Option<Tape>,
    folded: Vec<String>,
    flamegraphs: Vec<String>,
    /// The command, or the processes that -p names; none of them where all are probed.
    watched: Option<Watched>,
    /// Probes whose file nobody has mapped yet.
    pending: BTreeSet<usize>,
}

impl Session {
    /// Everything up to the moment in which the command runs.
    fn start(run: &Run, compiled: Compiled, named: Watched, tape: Option<Tape>) -> Result<Session> {
        let plan = Arc::new(compiled.plan);
        let mut launch = Launch::new(run.options.as_root);
        let collectors = match plan.demand.gpu() && !run.command.is_empty() {
            true => Some(Collectors::new(&mut launch)?),
            false => None,
        };
        let child = match run.command.is_empty() {
            true => None,
            false => Some(StoppedChild::spawn(&run.command, &launch.environment, launch.identity.as_ref())?),
        };
        open_files::raise();
        let linux = engines::kernel(&plan)?;
        let pipeline = engines::pipeline(&plan, linux.as_ref())?;
        let results = Results::new(plan, linux, pipeline, Stacks::default(), Printer::new(&run.options)?);
        check_stack_files(&results, &run.options)?;
        let mut report = Report::new(run.options.quiet);
        launch.notes.iter().for_each(|it| report.note(it));
        let mut session = Session {
            running: Running::new(results, compiled.interpreter, report),
            collectors,
            watched: match &child {
                Some(child) => Some(Watched::command(child.pid())),
                None => (!run.options.pids.is_empty()).then_some(named),
            },
            child,
            status: None,
            timers: Timers::default(),
            began: Instant::now(),
            stop_at: None,
            tape,
            folded: run.options.folded.clone(),
            flamegraphs: run.options.flamegraph.clone(),
            pending: BTreeSet::new(),
        };
        session.running.begin();
        if session.running.is_over() {
            // Without having run anything.
            session.child = None;
            return Ok(session);
        }
        session.attach(&scope(run, session.child.as_ref()))?;
        session.timers = Timers::new(&session.running.plan);
        session.stop_at = run.options.run_for.map(deadline);
        // What `begin` printed stands above what the command prints.
        session.running.flush();
        if let Some(child) = &mut session.child {
            child.resume()?;
        }
        Ok(session)
    }

    fn attach(&mut self, scope: &Scope) -> Result<()> {
        let plan = self.running.plan.clone();
        let mut results = self.running.results.borrow_mut();
        let results = &mut *results;
        let mut attached = plan.probes.iter().filter(|it| it.place != Place::Linux || it.event.is_gpu()).count();
        if let Some(linux) = &mut results.linux {
            scope.pids().into_iter().for_each(|pid| results.stacks.add_process(pid));
            let names = results.pipeline.state_mut().names_mut();
            let outcome = linux.lending(names, |it| it.attach(&plan, scope));
            attached += outcome.places();
            outcome.warnings.iter().for_each(|it| self.running.report.note(&it.text));
            let failures: Vec<String> = outcome.probes.iter().filter_map(|it| failure(&plan, it)).collect();
            if !failures.is_empty() {
                bail!(failures.join("\n"));
            }
            let waits = |it: &&ProbeReport| matches!(it.outcome, Attachment::Pending);
            self.pending = outcome.probes.iter().filter(waits).map(|it| it.probe).collect();
        }
        if !self.running.report.is_quiet() {
            results.emit(&Output::Attached { probes: attached });
        }
        Ok(())
    }

    /// Until the command ends, time is up, a handler exits, the user interrupts, or nobody reads.
    fn watch(&mut self) -> Result<()> {
        loop {
            self.running.flush();
            let time_is_up = self.stop_at.is_some_and(|it| Instant::now() >= it);
            if self.running.is_over() || interrupts::count() > 0 || time_is_up || self.is_unread() {
                return Ok(());
            }
            let busy = self.step()?;
            if self.status.is_some() && !busy {
                return Ok(());
            }
            if self.child.is_none() && (self.nothing_left_to_happen() || self.all_are_gone()) {
                return Ok(());
            }
        }
    }

    /// Whether nothing that this run still finds would reach anybody.
    fn is_unread(&self) -> bool {
        let writes_files = self.tape.is_some() || !self.folded.is_empty() || !self.flamegraphs.is_empty();
        !writes_files && self.running.results.borrow().is_closed()
    }

    /// Sleeps until something may have happened, and takes what has; whether targets were busy.
    fn step(&mut self) -> Result<bool> {
        self.wait();
        let busy = match &mut self.collectors {
            Some(collectors) => collectors.step(&mut self.running, &mut self.tape),
            None => false,
        };
        self.take_linux_records()?;
        self.follow_processes();
        self.fire_timers();
        self.running.say_what_is_waited_for();
        if let Some(child) = &mut self.child
            && self.status.is_none()
        {
            self.status = child.try_wait()?;
        }
        Ok(busy)
    }

    /// With -p: whether none of the processes is left.
    fn all_are_gone(&mut self) -> bool {
        self.watched.as_mut().is_some_and(Watched::are_gone)
    }

    /// Without a command, a script of `begin` and `end` alone has nothing to wait for.
    fn nothing_left_to_happen(&self) -> bool {
        self.running.plan.probes.iter().all(|it| matches!(it.event, Event::Begin | Event::End))
    }

    fn wait(&self) {
        let records = self.collectors.as_ref().is_some_and(Collectors::is_recording);
        let limit = if records { DRAIN_INTERVAL } else { IDLE_INTERVAL };
        let limit = self.timers.next_in().map_or(limit, |it| it.min(limit));
        let results = self.running.results.borrow();
        let collectors = self.collectors.iter().flat_map(Collectors::fds);
        let kernels = results.linux.iter().flat_map(Linux::fds);
        // The end of a command that has ended is no news any more.
        let watched = self.watched.iter().filter(|_| self.status.is_none()).flat_map(Watched::fds);
        watched::poll(collectors.chain(kernels).chain(watched), limit.as_millis().clamp(1, 1000) as libc::c_int);
    }

    /// Prints and other records of handlers in the kernel.
    fn take_linux_records(&mut self) -> Result<()> {
        let mut records: Vec<Vec<u8>> = Vec::new();
        let mut results = self.running.results.borrow_mut();
        let Results { linux, pipeline, .. } = &mut *results;
        if let Some(linux) = linux {
            let names = pipeline.state_mut().names_mut();
            linux.lending(names, |it| it.poll(Duration::ZERO, &mut |record| records.push(record.to_vec())))?;
        }
        drop(results);
        let mut queue = self.running.queue();
        for record in &records {
            // What comes behind an `exit` has happened after the end.
            if queue.is_over() {
                break;
            }
            let handled = self.running.results.borrow().pipeline.state().record(record, &mut queue);
            if let (false, Some(tape)) = (handled, &mut self.tape) {
                let written = tape.hit(record, &self.running.results.borrow());
                self.running.report.tape_result(written);
            }
        }
        self.running.settle(queue);
        Ok(())
    }

    /// Children, mappings, and files that were seen only now.
    fn follow_processes(&mut self) {
        let mut results = self.running.results.borrow_mut();
        let results = &mut *results;
        let Some(linux) = &mut results.linux else { return };
        let names = results.pipeline.state_mut().names_mut();
        for event in linux.lending(names, Linux::processes) {
            results.stacks.heard(&event);
        }
        for news in linux.news() {
            match news {
                News::Warning(it) => self.running.report.note(&it.text),
                News::Probe(it) => {
                    self.pending.remove(&it.probe);
                    failure(&self.running.plan, &it).iter().for_each(|it| self.running.report.note(it));
                }
                News::LateFile(it) => {
                    results.losses.add(Loss::UnprobedProcess, 1);
                    self.running.report.late_file(it.file, it.micros);
                }
                News::Unfollowed(n) => {
                    results.losses.add(Loss::UnprobedProcess, n);
                    self.running.report.note(UNFOLLOWED);
                }
                News::Child(it) => {
                    self.running.report.children += 1;
                    self.running.report.unprobed_micros += it.micros;
                    results.losses.add(Loss::UnprobedProcess, u64::from(it.failed.is_some() || it.micros > 0));
                    if let Some(reason) = it.failed {
                        // That it has ended already is what the loss says.
                        if !matches!(reason, AttachError::NoSuchProcess(_)) {
                            self.running.report.note(&format!("process {} ran without uprobes: {reason}", it.pid));
                        }
                    }
                }
            }
        }
    }

    fn fire_timers(&mut self) {
        let due = self.timers.due();
        if !due.is_empty() {
            self.refresh_builtins();
        }
        self.running.run_closures(due);
    }

    fn refresh_builtins(&self) {
        let totals = self.collectors.as_ref().map(Collectors::totals).unwrap_or_default();
        self.running.refresh_builtins(&totals, self.began.elapsed());
    }

    /// Disarms, reads what is left, lets `end` handlers speak, prints, and gives the status.
    fn end(mut self) -> Result<ExitCode> {
        if self.running.is_over() {
            self.detach();
        }
        self.farewell()?;
        self.detach();
        self.take_linux_records()?;
        self.follow_processes();
        let mut queue = self.running.queue();
        self.running.results.borrow_mut().pipeline.finish(&mut queue);
        self.running.settle(queue);
        self.refresh_builtins();
        if let Some(tape) = self.tape.take() {
            let finished = tape.finish(&mut self.running.results.borrow_mut());
            self.running.report.tape_result(finished);
            self.running.print_losses();
        } else {
            self.running.finish(&self.folded, &self.flamegraphs);
        }
        self.report_pending();
        self.running.report.note_children();
        self.part_with_command()?;
        let exit = self.running.results.borrow().exit;
        Ok(Ending { exit, command: self.status, failed: self.running.report.has_failed() }.code())
    }

    /// A probe that never attached counted nothing: that is said, also where notes are not wanted. A run in
    /// which none did has failed.
    fn report_pending(&mut self) {
        let plan = self.running.plan.clone();
        let reason = |it: &Probe| format!("{} never attached: no process mapped such a file", it.name);
        let reasons: Vec<String> = self.pending.iter().filter_map(|it| plan.probes.get(*it)).map(reason).collect();
        let traced = |it: &&Probe| !matches!(it.event, Event::Begin | Event::End | Event::Interval);
        match reasons.len() == plan.probes.iter().filter(traced).count() {
            true => reasons.iter().for_each(|it| self.running.report.fail(it)),
            false => reasons.iter().for_each(say),
        }
    }

    /// Takes the probes out: what is printed and what is counted end at the same moment.
    fn detach(&mut self) {
        if let Some(linux) = &mut self.running.results.borrow_mut().linux {
            linux.detach();
        }
    }

    /// Asks the collectors for their last flush and waits for it, within bounds.
    fn farewell(&mut self) -> Result<()> {
        let asked = interrupts::count();
        if let Some(collectors) = &mut self.collectors {
            collectors.disarm();
        }
        let until = deadline(FAREWELL);
        while self.collectors.as_ref().is_some_and(Collectors::is_recording)
            && Instant::now() < until
            && interrupts::count() == asked
        {
            self.step()?;
        }
        if let Some(collectors) = &mut self.collectors {
            collectors.part_with_all(&mut self.running, &mut self.tape);
        }
        Ok(())
    }

    /// What becomes of a command that still runs: it goes on alone; but where only a reader was missing,
    /// it is waited for, since whoever started this run started the command.
    fn part_with_command(&mut self) -> Result<()> {
        // Programs that the command starts from now on must not wait for us, nor be followed.
        self.collectors = None;
        self.running.results.borrow_mut().linux = None;
        let Some(child) = self.child.as_mut().filter(|_| self.status.is_none()) else { return Ok(()) };
        let mut interrupts_seen = interrupts::count();
        let mut until = match (interrupts_seen > 0, self.running.is_over(), self.running.results.borrow().is_closed()) {
            (true, _, _) => Some(deadline(GRACE)),
            (false, false, true) => self.stop_at,
            _ => Some(Instant::now()),
        };
        loop {
            self.status = child.try_wait()?;
            if self.status.is_some() {
                return Ok(());
            }
            if until.is_some_and(|it| Instant::now() >= it) {
                say(format_args!("the command goes on (process {}); it is no longer traced", child.pid()));
                return Ok(());
            }
            if interrupts::count() > interrupts_seen {
                interrupts_seen = interrupts::count();
                until = Some(deadline(GRACE));
            }
            self.watched.iter().for_each(|it| it.wait(GLANCE_MILLIS));
        }
    }
}

fn scope(run: &Run, child: Option<&StoppedChild>) -> Scope {
    match child {
        Some(child) => child.scope(),
        None if run.options.pids.is_empty() => Scope::System,
        None => Scope::Processes(run.options.pids.clone()),
    }
}

/// Why a probe could not be attached, with its place in the script.
fn failure(plan: &Plan, report: &ProbeReport) -> Option<String> {
    let Attachment::Failed(error) = &report.outcome else { return None };
    let probe = plan.probes.get(report.probe)?;
    let file = plan.sources.files.get(probe.site.file.0 as usize).map_or("", |it| it.name.as_str());
    Some(format!("{file}:{}: cannot attach {}: {error}", probe.site.line, probe.name))
}
