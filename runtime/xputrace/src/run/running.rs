//! A running script, live or over a recording: its state, its interpreted handlers, and what
//! engines queued for it.
//!
//! Engines must not be re-entered from their own events. So the actions of handlers are queued and
//! carried out in order once the engines are free: prints, then interpreted handlers.

use super::builtins;
use super::files::ResultFiles;
use super::objects;
use super::observer::Observer;
use super::report::Report;
use super::state::RunState;
use crate::console;
use crate::interrupts;
use crate::status::FAILED;
use anyhow::Result;
use std::cell::{RefCell, RefMut};
use std::collections::{BTreeSet, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use xputrace_linux::monotonic_nanos;
use xputrace_model::context::{GpuContext, word};
use xputrace_model::diagnostic::Diagnostic;
use xputrace_model::gpu::GpuKind;
use xputrace_model::loss::{Account, Loss};
use xputrace_model::output::Output;
use xputrace_model::plan::{ClosureId, Condition, Detail, MapAction, Plan, ProbeId};
use xputrace_model::schema::Event;
use xputrace_model::stack::StackKey;
use xputrace_model::table::TableId;
use xputrace_nvidia_tracer::programs::Turn;
use xputrace_nvidia_tracer::twins::why_not;
use xputrace_pipeline::{HandlerState, Outputs, ProcessIndex, ProcessInfo, Sink};
use xputrace_render::counted;
use xputrace_replay::ReplaySink;
use xputrace_script::{EventView, Host, Interpreter};
use xputrace_wire::device::Sampled;
use xputrace_wire::totals::CollectorTotals;

/// A running script.
///
/// It owns the [`RunState`]. The interpreter holds it too, because its handlers read and change it. So
/// no borrow of it may outlive a step: everything here borrows it, does one thing, and releases it
/// before a handler runs.
pub struct Running {
    state: Rc<RefCell<RunState>>,
    plan: Arc<Plan>,
    report: Report,
    interpreter: Interpreter,
    observer: Option<Box<dyn Observer>>,
    /// Files written at the end.
    files: ResultFiles,
    /// Who runs the programs of an object that run by themselves.
    programs: Turn,
}

/// Follows from a script with device handlers where the program's driver or CUPTI lacks what they need.
const NO_DEVICE_CODE: &str = "device handlers did not run: this CUDA driver or CUPTI lacks what putting code into kernels takes \
     (`xputrace doctor` shows both). The kernels that they match are counted as device_unprobed";
/// Precedes every number from the software GPU.
const SOFTWARE_GPU: &str = "GPU numbers below come from the software GPU: its times mean nothing.";
/// Maximum number of names of lost launches listed.
const MOST_LOST_NAMES: usize = 10;
/// Maximum number of processes named as still running.
const MOST_LEFT_BEHIND: usize = 5;
/// How long a kernel may hold back the output before the user is told.
const LONG_WAIT_NANOS: u64 = 2_000_000_000;

/// What handlers did while an engine was busy, in order.
#[derive(Default)]
pub struct WishQueue {
    wishes: Vec<Wish>,
    /// Whether a handler has called `exit`.
    is_over: bool,
    /// Whether it is over also when the user wants the run to end.
    is_interruptible: bool,
}

/// An action that a handler requested.
enum Wish {
    Output(Output),
    Interpret(ProbeId, Box<GpuContext>),
    Map(TableId, MapAction),
    Exit(i64),
}

impl Running {
    pub fn new(state: RunState, mut interpreter: Interpreter, report: Report) -> Self {
        let plan = state.plan.clone();
        let state = Rc::new(RefCell::new(state));
        interpreter.bind(state.clone());
        interpreter.end_if(interrupts::are_unhandled);
        Running {
            state,
            plan,
            report,
            interpreter,
            observer: None,
            files: ResultFiles::default(),
            programs: Turn::Over,
        }
    }

    /// Sets an observer that sees everything the run receives.
    pub fn watched_by(mut self, observer: Option<Box<dyn Observer>>) -> Self {
        self.observer = observer;
        self
    }

    /// Sets the files to write at the end.
    pub fn writing(mut self, files: ResultFiles) -> Self {
        self.files = files;
        self
    }

    /// Sets who runs the programs of an object that run by themselves.
    pub fn with_programs(mut self, turn: Turn) -> Self {
        self.programs = turn;
        self
    }

    /// Returns whose turn it is to run them.
    pub fn programs(&mut self) -> &mut Turn {
        &mut self.programs
    }

    /// Returns the script.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Returns the report.
    pub fn report(&mut self) -> &mut Report {
        &mut self.report
    }

    /// Borrows the state for one step: no handler may run meanwhile.
    pub fn state(&self) -> RefMut<'_, RunState> {
        self.state.borrow_mut()
    }

    /// Borrows state and report for one step.
    pub fn parts(&mut self) -> (RefMut<'_, RunState>, &mut Report) {
        (self.state.borrow_mut(), &mut self.report)
    }

    /// Whether a collector was armed in a process.
    pub fn has_traced(&self, pid: u32) -> bool {
        let state = self.state.borrow();
        let mut processes = (0..state.pipeline.n_processes() as u32).map(ProcessIndex);
        processes.any(|it| state.pipeline.state().process(it).is_some_and(|it| it.pid == pid))
    }

    /// Adds a process whose collector was armed. `threads` maps thread ids in its own pid namespace
    /// to ours.
    pub fn add_process(&mut self, info: ProcessInfo, threads: Vec<(u32, u32)>) {
        let mut state = self.state.borrow_mut();
        let process = ProcessIndex(state.pipeline.n_processes() as u32);
        state.pipeline.add_process(info.clone());
        state.pipeline.translate_threads(process, threads);
        drop(state);
        self.observe(|it| it.process(process, &info));
    }

    /// Passes a process's rings to the engine, and does what its handlers request.
    pub fn feed(&mut self, process: ProcessIndex, rings: &[Vec<u8>]) {
        self.observe(|it| it.rings(process, rings));
        let mut queue = self.queue();
        let mut state = self.state.borrow_mut();
        let now = &mut *state;
        now.pipeline.feed(process, rings, &mut queue);
        now.stacks.take_mappings(now.pipeline.state(), process);
        drop(state);
        self.settle(queue);
    }

    /// Handles the end of a process.
    pub fn end_process(&mut self, process: ProcessIndex, totals: CollectorTotals) {
        self.observe(|it| it.end_process(process, &totals));
        let mut queue = self.queue();
        self.state.borrow_mut().pipeline.end_process(process, totals, &mut queue);
        self.settle(queue);
        let state = &mut *self.state.borrow_mut();
        state.stacks.left(state.pipeline.state(), process);
    }

    /// Handles what the engine still holds back.
    pub fn drain_pipeline(&mut self) {
        let mut queue = self.queue();
        self.state.borrow_mut().pipeline.finish(&mut queue);
        self.settle(queue);
    }

    /// Passes a record of Linux that no handler reads to the observer.
    pub fn observe_hit(&mut self, record: &[u8]) {
        let Running { state, observer, report, .. } = self;
        if let Some(observer) = observer {
            report.tape_result(observer.hit(record, &state.borrow()));
        }
    }

    /// Forgets ended programs, once there are many; their stacks in maps are named first. No queued
    /// print and no unread record of Linux may have a stack of theirs.
    pub fn forget_programs(&mut self) {
        let state = &mut *self.state.borrow_mut();
        if !state.stacks.are_many_over() {
            return;
        }
        let mut used: HashSet<StackKey> = self.observer.iter().flat_map(|it| it.stacks()).copied().collect();
        let found = state.maps().for_each_stack(&mut |it| _ = used.insert(it));
        match found {
            Ok(()) => state.stacks.forget_over(&used, state.linux.as_ref(), state.pipeline.state_mut()),
            Err(_) => state.stacks.keep_all(),
        }
    }

    fn observe(&mut self, hear: impl FnOnce(&mut dyn Observer) -> Result<()>) {
        if let Some(observer) = &mut self.observer {
            self.report.tape_result(hear(&mut **observer));
        }
    }

    /// Detaches the probes, so that printing and counting end at the same moment.
    pub fn detach(&mut self) {
        if let Some(linux) = &mut self.state.borrow_mut().linux {
            linux.detach();
        }
    }

    /// Counts processes that the program left running, and reports them with the results.
    pub fn left_behind(&mut self, pids: &[u32]) {
        if pids.is_empty() {
            return;
        }
        let name = |pid: &u32| match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
            Ok(comm) => format!("{pid} ({})", comm.trim_end()),
            Err(_) => pid.to_string(),
        };
        let named: Vec<String> = pids.iter().take(MOST_LEFT_BEHIND).map(name).collect();
        let more = match pids.len().saturating_sub(MOST_LEFT_BEHIND) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let text = format!("still running when tracing ended: {}{more}", named.join(", "));
        self.state.borrow_mut().losses.add(Loss::StillRunning, pids.len() as u64);
        self.report.left_behind = Some(text);
    }

    /// Releases everything in Linux.
    pub fn unload(&mut self) {
        self.state.borrow_mut().linux = None;
    }

    /// Whether nothing that this run still finds would reach anyone.
    pub fn is_unread(&self) -> bool {
        self.observer.is_none() && self.files.is_empty() && self.state.borrow().is_closed()
    }

    /// Whether the output is closed, so that the run continues for nobody.
    pub fn has_lost_its_reader(&self) -> bool {
        !self.is_over() && self.state.borrow().is_closed()
    }

    /// Returns the code that a handler passed to `exit(code)`.
    pub fn exit_code(&self) -> Option<i64> {
        self.state.borrow().exit
    }

    /// Whether a handler has called `exit`: nothing later is handled or shown.
    pub fn is_over(&self) -> bool {
        self.state.borrow().exit.is_some()
    }

    /// Returns an empty queue; after `exit`, one that handles no further event.
    pub fn queue(&self) -> WishQueue {
        WishQueue { is_over: self.is_over(), ..WishQueue::default() }
    }

    /// Sends what was written to the reader, and reports failures of maps and output.
    pub fn flush(&mut self) {
        let mut state = self.state.borrow_mut();
        state.take_failures().iter().for_each(|it| self.report.fail(it));
        state.take_omissions().iter().for_each(|it| self.report.note_about_process(&it.to_string()));
        state.take_notes().iter().for_each(|it| self.report.note(it));
        self.report.output_result(state.flush());
    }

    /// Carries out what handlers queued, up to an `exit`.
    pub fn settle(&mut self, queue: WishQueue) {
        for wish in queue.wishes {
            if self.is_over() {
                break;
            }
            match wish {
                Wish::Output(output) => self.state.borrow_mut().emit(&output),
                Wish::Map(map, action) => self.state.borrow_mut().act_on(map, action),
                Wish::Exit(code) => self.state.borrow_mut().exit(code),
                Wish::Interpret(probe, words) => self.interpret(probe, &words),
            }
        }
    }

    fn interpret(&mut self, probe: ProbeId, words: &GpuContext) {
        let probe = self.plan.probes.get(probe.index());
        let Some((probe, closure)) = probe.and_then(|it| Some((it, it.closure?))) else { return };
        let event = probe.event;
        // As a compiled handler does before its first statement.
        if words[word::JOINED] == 0 && !probe.sees_unjoined {
            return self.state.borrow_mut().losses.add_at(Loss::SkippedUnjoined, probe.site, 1);
        }
        let state = self.state.clone();
        // The interpreter borrows the state itself, so texts are looked up between its borrows.
        let strings = move |id: u64| state.try_borrow().ok()?.pipeline.state().names().get(id).cloned();
        let view = EventView { event, words, strings: &strings, arguments: &probe.arguments };
        let outcome = self.interpreter.run(closure, Some(&view));
        match outcome.as_ref().err().and_then(|it| self.interpreter.as_loss(it)) {
            Some((loss, site)) => self.state.borrow_mut().losses.add_at(loss, site, 1),
            None => self.note_failure(outcome),
        }
    }

    /// Runs the `end` handlers, even after `exit`; returns whether all completed.
    fn run_end(&mut self) -> bool {
        let plan = self.plan.clone();
        let mut well = true;
        for closure in closures(&plan, Event::End) {
            well &= self.run_closure(closure);
        }
        well
    }

    /// Runs interpreted handlers without an event, up to one that calls `exit`.
    pub fn run_closures(&mut self, closures: impl IntoIterator<Item = ClosureId>) {
        for closure in closures {
            if self.is_over() {
                break;
            }
            self.run_closure(closure);
        }
    }

    fn run_closure(&mut self, closure: ClosureId) -> bool {
        let outcome = self.interpreter.run(closure, None);
        let well = outcome.is_ok();
        self.note_failure(outcome);
        well
    }

    /// Runs the `begin` handlers.
    pub fn begin(&mut self) {
        let plan = self.plan.clone();
        objects::note_of_returns(&plan).iter().for_each(|it| self.report.note(it));
        self.run_closures(closures(&plan, Event::Begin));
        self.begin_programs();
    }

    /// Runs the programs that a compiled object launches by itself.
    pub(super) fn run_launches(&mut self) {
        let mut queue = WishQueue { is_interruptible: true, ..self.queue() };
        self.state.borrow_mut().pipeline.run_launches(std::process::id(), monotonic_nanos(), &mut queue);
        self.settle(queue);
    }

    /// Updates the numbers about the run that scripts can read.
    pub fn refresh_builtins(&self, totals: &[CollectorTotals], elapsed: Duration) {
        builtins::refresh(&mut self.state.borrow_mut(), totals, elapsed);
    }

    /// Says so before the first number from the software GPU, and if a GPU cannot run device code.
    pub fn say_of_gpu(&mut self, gpu: GpuKind, has_device_code: bool) {
        match gpu {
            GpuKind::None => {}
            GpuKind::Real if !has_device_code && self.plan.device_handlers().next().is_some() => {
                self.report.fail(&why_not(&self.plan).unwrap_or_else(|| NO_DEVICE_CODE.to_owned()));
            }
            GpuKind::Real => {}
            GpuKind::Software if self.report.is_first_software() => {
                self.state.borrow_mut().emit(&Output::Note(SOFTWARE_GPU.into()));
            }
            GpuKind::Software => {}
        }
    }

    /// Says what live output is waiting for, once it has waited long.
    pub fn say_what_is_waited_for(&mut self) {
        let Some(waiting) = self.state.borrow().pipeline.waiting() else { return };
        if xputrace_linux::monotonic_nanos().saturating_sub(waiting.since_nanos) > LONG_WAIT_NANOS {
            self.report.note(&format!(
                "waiting for the kernel {}, which was launched more than 2 s ago: CUPTI delivers nothing until it ends",
                waiting.name
            ));
        }
    }

    fn note_failure(&mut self, outcome: Result<(), Diagnostic>) {
        if let Err(diagnostic) = outcome
            && self.report.handler_failed(&diagnostic)
        {
            console::diagnose(&[diagnostic], &self.plan.sources, true);
        }
    }

    /// Whether the run makes a recording.
    pub fn is_recording(&self) -> bool {
        self.observer.is_some()
    }

    /// Ends the run. A recording only reports its losses; its maps belong to replays.
    pub fn finish(&mut self) {
        if let Some(code) = self.exit_code().filter(|it| u8::try_from(*it).is_err()) {
            let text = format!("exit({code}): an exit status is from 0 to 255; this run ends with {FAILED}");
            self.report.fail(&text);
        }
        match self.observer.take() {
            Some(observer) => {
                let ended = observer.end(&mut self.state.borrow_mut());
                self.report.tape_result(ended);
                self.print_losses();
            }
            None => self.print_results(),
        }
        self.flush();
    }

    /// Runs `end` handlers, then prints or writes files, every map not yet shown, and losses.
    fn print_results(&mut self) {
        self.state.borrow_mut().begin_end();
        let all_said = self.run_end();
        if self.plan.demand.gpu() {
            self.explain_silence();
        }
        let mut state = self.state.borrow_mut();
        for error in self.files.write(&mut state) {
            self.report.fail(&error);
        }
        for (name, n) in state.pipeline.lost_by_name().into_iter().take(MOST_LOST_NAMES) {
            state.emit(&Output::Note(format!("lost: {n} launches of {name}")));
        }
        emit_unmatched(&mut state);
        emit_sampled(&mut state);
        emit_extent(&mut self.report, &mut state);
        state.dump_object().iter().for_each(|it| self.report.fail(it));
        let account = account(&state);
        state.finish(account, all_said);
    }

    fn print_losses(&mut self) {
        let mut state = self.state.borrow_mut();
        emit_extent(&mut self.report, &mut state);
        let (losses, account) = (state.all_losses(), account(&state).and_then(Account::seen));
        state.emit(&Output::End { losses, account: account.map(Box::new) });
    }

    /// If nothing requested was seen, says which step was missing and what to do.
    fn explain_silence(&mut self) {
        let account = self.state.borrow().pipeline.account();
        let are_switched = !self.plan.demand_while(|_| false).gpu();
        let tells_kernels = self.plan.demand.has(Detail::PatchedKernels);
        if account.is_silent()
            && let Some(text) = self.report.silence(&account, are_switched, tells_kernels)
        {
            self.state.borrow_mut().emit(&Output::Note(text));
        }
    }
}

/// Says which device probes have a pattern that no kernel matched.
fn emit_unmatched(state: &mut RunState) {
    let probes = state.pipeline.unmatched_device_probes();
    let names: BTreeSet<String> = probes.iter().map(|it| state.plan.probes[it.index()].name.clone()).collect();
    for name in names {
        state.emit(&Output::Note(format!(
            "no kernel matched {name}: -e 'kernel(|k| @kernels[k.name].count())' shows their names"
        )));
    }
}

/// Says at how many launches device handlers ran that a script has run at some of them.
fn emit_sampled(state: &mut RunState) {
    let sampled: Vec<(Condition, Sampled)> = state.pipeline.sampled().filter(|it| it.0.launches.every > 1).collect();
    for (Condition { launches, .. }, Sampled { met, chosen }) in sampled {
        state.emit(&Output::Note(format!(
            "#{{{}}}: device handlers ran at {chosen} of {} of their kernels",
            launches.text(),
            counted(met, "launch", "launches")
        )));
    }
}

/// Says which part of the run was recorded, in which times another tool had CUPTI, and what went on after it.
fn emit_extent(report: &mut Report, state: &mut RunState) {
    report.recorded_part.iter().for_each(|it| state.emit(&Output::Note(it.clone())));
    for gap in state.pipeline.gaps().to_vec() {
        state.emit(&Output::Gap(gap));
    }
    report.left_behind.take().into_iter().for_each(|it| state.emit(&Output::Note(it)));
}

/// Returns the interpreted handlers of `begin` or `end`.
fn closures(plan: &Plan, event: Event) -> impl Iterator<Item = ClosureId> + '_ {
    plan.probes.iter().filter(move |it| it.event == event).filter_map(|it| it.closure)
}

/// Returns the outcome of the launches, if any were requested.
fn account(state: &RunState) -> Option<Account> {
    let demand = &state.plan.demand;
    let mut account = state.pipeline.account();
    // After `exit` nothing more is handled, so the parts would not add up.
    if state.exit.is_some() {
        account.believe();
    }
    demand.gpu().then_some(account)
}

impl Outputs for WishQueue {
    fn output(&mut self, output: Output) {
        self.wishes.push(Wish::Output(output));
    }

    fn map(&mut self, map: TableId, action: MapAction) {
        self.wishes.push(Wish::Map(map, action));
    }

    fn exit(&mut self, code: i64) {
        self.is_over = true;
        self.wishes.push(Wish::Exit(code));
    }

    fn is_over(&self) -> bool {
        self.is_over || (self.is_interruptible && interrupts::are_unhandled())
    }
}

impl Sink for WishQueue {
    fn interpret(&mut self, probe: ProbeId, event: &GpuContext, _state: &mut HandlerState) {
        self.wishes.push(Wish::Interpret(probe, Box::new(*event)));
    }
}

impl ReplaySink for WishQueue {}
