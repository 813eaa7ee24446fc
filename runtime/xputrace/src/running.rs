//! A script while it runs, live or over a recording: its results, its interpreted handlers, and
//! what engines queued for it.
//!
//! Engines must not be re-entered from their own events, so what handlers do there is queued and
//! carried out when the engines are free: prints, then interpreted handlers, in order.

use crate::builtins;
use crate::compiled::report;
use crate::report::Report;
use crate::results::Results;
use anyhow::{Result, anyhow};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use xputrace_model::context::GpuContext;
use xputrace_model::diagnostic::Diagnostic;
use xputrace_model::loss::Account;
use xputrace_model::output::Output;
use xputrace_model::plan::Plan;
use xputrace_model::schema::Event;
use xputrace_script::{EventView, Host, Interpreter};
use xputrace_tracer::{CollectorTotals, Sink, State};

/// A script that runs.
pub struct Running {
    pub results: Rc<RefCell<Results>>,
    pub plan: Arc<Plan>,
    pub report: Report,
    interpreter: Interpreter,
}

/// Stands above every number that comes from the software GPU.
const SOFTWARE_GPU: &str = "GPU numbers below come from the software GPU: its times mean nothing.";
/// Names of lost launches that are listed.
const MOST_LOST_NAMES: usize = 10;
/// How long a kernel may hold the output back before the user is told.
const LONG_WAIT_NANOS: u64 = 2_000_000_000;

/// What handlers did while an engine was busy, in order.
#[derive(Default)]
pub struct Queue {
    done: Vec<Done>,
    /// A handler has called `exit`.
    is_over: bool,
}

enum Done {
    Output(Output),
    Interpret(usize, Box<GpuContext>),
    Exit(i64),
}

impl Running {
    pub fn new(results: Results, mut interpreter: Interpreter, report: Report) -> Self {
        let plan = results.plan.clone();
        let results = Rc::new(RefCell::new(results));
        interpreter.bind(results.clone());
        Running { results, plan, report, interpreter }
    }

    /// Whether a handler has called `exit`: nothing later is handled or shown.
    pub fn is_over(&self) -> bool {
        self.results.borrow().exit.is_some()
    }

    /// An empty queue; of a run that is over, one that lets no further event be handled.
    pub fn queue(&self) -> Queue {
        Queue { done: Vec::new(), is_over: self.is_over() }
    }

    /// Hands the reader what was written, and reports what went wrong with maps and output.
    pub fn flush(&mut self) {
        let mut results = self.results.borrow_mut();
        results.take_failures().iter().for_each(|it| self.report.fail(it));
        results.take_notes().iter().for_each(|it| self.report.note(it));
        self.report.output_result(results.flush());
    }

    /// Carries out what handlers queued, up to the `exit` of one of them.
    pub fn settle(&mut self, queue: Queue) {
        for done in queue.done {
            if self.is_over() {
                break;
            }
            match done {
                Done::Output(output) => self.results.borrow_mut().emit(&output),
                Done::Exit(code) => self.results.borrow_mut().exit(code),
                Done::Interpret(probe, words) => self.interpret(probe, &words),
            }
        }
    }

    fn interpret(&mut self, probe: usize, words: &GpuContext) {
        let probe = self.plan.probes.get(probe);
        let Some((event, closure)) = probe.and_then(|it| Some((it.event, it.closure?))) else { return };
        let results = self.results.clone();
        // The interpreter borrows the results itself: texts are looked up between its borrows.
        let strings = move |id: u64| results.try_borrow().ok()?.pipeline.names().get(id).cloned();
        let outcome = self.interpreter.run(closure, Some(&EventView { event, words, strings: &strings }));
        self.note_failure(outcome);
    }

    /// The `end` handlers, also where a handler has called `exit`; whether all came to their end.
    fn run_end(&mut self) -> bool {
        let plan = self.plan.clone();
        let mut well = true;
        for closure in closures(&plan, Event::End) {
            well &= self.run_closure(closure);
        }
        well
    }

    /// Runs interpreted handlers that have no event, up to one that calls `exit`.
    pub fn run_closures(&mut self, closures: impl IntoIterator<Item = usize>) {
        for closure in closures {
            if self.is_over() {
                break;
            }
            self.run_closure(closure);
        }
    }

    fn run_closure(&mut self, closure: usize) -> bool {
        let outcome = self.interpreter.run(closure, None);
        let well = outcome.is_ok();
        self.note_failure(outcome);
        well
    }

    /// The `begin` handlers.
    pub fn begin(&mut self) {
        let plan = self.plan.clone();
        self.run_closures(closures(&plan, Event::Begin));
    }

    /// Numbers of the run itself, as scripts may read them.
    pub fn refresh_builtins(&self, totals: &[CollectorTotals], elapsed: Duration) {
        builtins::refresh(&mut self.results.borrow_mut(), totals, elapsed);
    }

    /// Numbers of the software GPU are never shown without saying so above them.
    pub fn say_if_software(&mut self, software: bool) {
        if software && self.report.is_first_software() {
            self.results.borrow_mut().emit(&Output::Note(SOFTWARE_GPU.into()));
        }
    }

    /// Says what live output waits for, once it has waited for long.
    pub fn say_what_is_waited_for(&mut self) {
        let Some(waiting) = self.results.borrow().pipeline.waiting() else { return };
        if xputrace_linux::monotonic_nanos().saturating_sub(waiting.since_nanos) > LONG_WAIT_NANOS {
            self.report.note(&format!(
                "waiting for the kernel {}, which was launched more than 2 s ago: CUPTI hands nothing over until it ends",
                waiting.name
            ));
        }
    }

    fn note_failure(&mut self, outcome: Result<(), Diagnostic>) {
        if let Err(diagnostic) = outcome
            && self.report.handler_failed(&diagnostic)
        {
            report(&[diagnostic], &self.plan.sources, true);
        }
    }

    /// The end: `end` handlers, files of stacks, every map that was not shown, losses.
    pub fn finish(&mut self, folded: &[String], flamegraphs: &[String]) {
        self.results.borrow_mut().begin_end();
        let all_said = self.run_end();
        if self.plan.demand.gpu() {
            self.explain_silence();
        }
        let mut results = self.results.borrow_mut();
        for error in write_stack_files(&mut results, folded, flamegraphs) {
            self.report.fail(&format!("{error:#}"));
        }
        for (name, n) in results.pipeline.lost_by_name().into_iter().take(MOST_LOST_NAMES) {
            results.emit(&Output::Note(format!("lost: {n} launches of {name}")));
        }
        let account = account(&results);
        results.finish(account, all_said);
        drop(results);
        self.flush();
    }

    /// What was lost, alone: a recording has no maps of its own.
    pub fn print_losses(&mut self) {
        let mut results = self.results.borrow_mut();
        let (losses, account) = (results.all_losses(), account(&results));
        results.emit(&Output::End { losses, account });
        drop(results);
        self.flush();
    }

    /// When nothing that was asked for was seen: which step was missing, and what to do.
    fn explain_silence(&mut self) {
        let account = self.results.borrow().pipeline.account();
        let seen = if self.plan.demand.kernels { account.kernels } else { account.launches };
        if seen == 0
            && let Some(text) = self.report.silence(&account)
        {
            self.results.borrow_mut().emit(&Output::Note(text));
        }
    }
}

/// Interpreted handlers of `begin` or `end`.
fn closures(plan: &Plan, event: Event) -> impl Iterator<Item = usize> + '_ {
    plan.probes.iter().filter(move |it| it.event == event).filter_map(|it| it.closure)
}

/// What became of the launches, where any were asked for.
fn account(results: &Results) -> Option<Account> {
    let demand = &results.plan.demand;
    let mut account =
        Account { kernels_only: !demand.launches, launches_only: !demand.kernels, ..results.pipeline.account() };
    // After `exit` nothing more is handled: there is no whole to hold the parts against.
    if results.exit.is_some() {
        account.collector_kernels = account.kernels;
        account.collector_kernel_nanos = account.kernel_nanos;
    }
    demand.gpu().then_some(account)
}

/// Whether every file of stacks that was asked for has a map to come from: said before anything is run.
pub fn check_stack_files(results: &Results, options: &crate::cli::Options) -> Result<()> {
    options.folded.iter().try_for_each(|it| results.stack_file(it, "--folded").map(drop))?;
    options.flamegraph.iter().try_for_each(|it| results.stack_file(it, "--flamegraph").map(drop))
}

/// Writes all that can be written; what could not.
fn write_stack_files(results: &mut Results, folded: &[String], flamegraphs: &[String]) -> Vec<anyhow::Error> {
    let folded = folded.iter().map(|wish| write_folded(results, wish).err()).collect::<Vec<_>>();
    let drawn = flamegraphs.iter().map(|wish| write_flamegraph(results, wish).err());
    folded.into_iter().chain(drawn).flatten().collect()
}

fn write_folded(results: &mut Results, wish: &str) -> Result<()> {
    let (id, path) = results.stack_file(wish, "--folded")?;
    results.write_folded(&path, id).map_err(|it| anyhow!("--folded: {it}"))
}

fn write_flamegraph(results: &mut Results, wish: &str) -> Result<()> {
    let (id, path) = results.stack_file(wish, "--flamegraph")?;
    let name = results.plan.tables[id.0 as usize].name.clone();
    results.flamegraph(&path, &name).map_err(|it| anyhow!("--flamegraph: {it}"))
}

impl Sink for Queue {
    fn output(&mut self, output: Output) {
        self.done.push(Done::Output(output));
    }

    fn interpret(&mut self, probe: usize, event: &GpuContext, _state: &mut State) {
        self.done.push(Done::Interpret(probe, Box::new(*event)));
    }

    fn exit(&mut self, code: i64) {
        self.is_over = true;
        self.done.push(Done::Exit(code));
    }

    fn is_over(&self) -> bool {
        self.is_over
    }
}
