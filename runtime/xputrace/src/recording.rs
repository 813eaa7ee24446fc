//! `xputrace record` and `--replay`.

use crate::cli::{Options, Run};
use crate::compiled::{Compiled, compile_script};
use crate::console::say;
use crate::creator::creator;
use crate::machine;
use crate::printer::Printer;
use crate::run::files::ResultFiles;
use crate::run::observer::Observer;
use crate::run::report::{Collectors, Report};
use crate::run::{self, RunState, Running, objects};
use crate::stacks::{self, Naming, Stacks};
use crate::status::Ended;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use xputrace_boundary::create::{Draft, FileAccess};
use xputrace_model::gpu::GpuKind;
use xputrace_model::plan::Plan;
use xputrace_model::plan::cookie;
use xputrace_model::schema::Event;
use xputrace_model::stack::{Frame, StackKey};
use xputrace_nvidia_tracer::programs::Turn;
use xputrace_pipeline::{ProcessIndex, ProcessInfo};
use xputrace_recording::{
    BackgroundWriter, Damage, FrameInfo, Meta, RecordedMachine, RecordingEntry, RecordingError, RecordingReader,
    UserString, hits,
};
use xputrace_replay::open;
use xputrace_wire::totals::CollectorTotals;

/// `xputrace record [SCRIPT] -o T.xpt -- CMD`: records the whole GPU side, and the hits of the
/// script's CPU probes.
pub fn record(run: &Run) -> Result<ExitCode> {
    let path = run.options.output.clone().unwrap_or_else(|| PathBuf::from("recording.xpt"));
    if run.command.is_empty() {
        bail!("nothing to record: give a command, as in `xputrace record -o {} -- CMD`", path.display());
    }
    if let Some(file) = objects::named(run) {
        bail!(
            "{file} is a compiled object, and what its programs read is not recorded. `xputrace record -o {path} -- CMD` \
             records all GPU events; `xputrace run {file} --replay {path}` runs its programs for the GPU over them",
            path = path.display()
        );
    }
    let naming = Naming { lines: false, ..run.options.naming };
    let lines = run.options.naming.lines;
    let run = Run { options: Options { output: None, naming, ..run.options.clone() }, ..run.clone() };
    let compiled = match &run.script {
        Some(_) => compile_script(&run, &machine::catalog(&run))?,
        None => Compiled::of_no_script(),
    };
    let plan = hits::recorder(&compiled.plan, &machine::catalog(&run))?;
    let tape = Tape::create(&path, &run, &plan, lines || compiled.plan.reads_lines)?;
    run::trace(&run, Compiled { plan: plan.plan, interpreter: compiled.interpreter }, Some(Box::new(tape)))
}

/// A recording being written.
pub struct Tape {
    writer: BackgroundWriter<BufWriter<File>>,
    draft: Draft,
    is_quiet: bool,
    /// Every stack once, in the order in which they are named at the end.
    stacks: BTreeSet<StackKey>,
    layouts: hits::Layouts,
    /// Whether stacks are recorded with lines too.
    lines: bool,
}

/// Says where a recording is as far as it was written.
fn wrote<T>(draft: &Draft, result: Result<T, RecordingError>) -> Result<T> {
    result.with_context(|| format!("what could be written until then is in {}", draft.path().display()))
}

impl Tape {
    fn create(path: &Path, run: &Run, recorder: &hits::Recorder, lines: bool) -> Result<Self> {
        // An earlier recording of that name stays until this one is complete. It has the program's arguments, and what
        // the script reads of its memory: nobody else's business.
        let draft = creator().place(path).and_then(|it| it.draft(FileAccess::Private));
        let draft = draft.with_context(|| format!("cannot record into {}", path.display()))?;
        let meta = Meta {
            command: run.command.iter().map(|it| it.to_string_lossy().into_owned()).collect(),
            machine: machine::name(),
            unix_seconds: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            monotonic_nanos: xputrace_linux::monotonic_nanos(),
            gpu: GpuKind::None,
            program: concat!("xputrace ", env!("CARGO_PKG_VERSION")).into(),
            probes: recorder.probes.clone(),
            launch_stacks: true,
            launch_python: true,
            launch_ranges: true,
            lines,
            tells_losses: true,
            ..Meta::default()
        };
        let meta = meta.with_host_events(&recorder.plan.demand);
        let writer = BackgroundWriter::new(BufWriter::new(draft.file()?), &meta)?;
        let (stacks, layouts) = (BTreeSet::new(), recorder.layouts.clone());
        Ok(Tape { writer, draft, stacks, layouts, lines, is_quiet: run.options.quiet })
    }

    fn add_stack(&mut self, stack: StackKey) {
        self.stacks.insert(stack);
        if self.lines {
            self.stacks.insert(stack.with_lines());
        }
    }

    fn write(&mut self, entry: RecordingEntry) -> Result<()> {
        self.draft.keep();
        wrote(&self.draft, self.writer.write(entry))
    }
}

impl Observer for Tape {
    fn process(&mut self, process: ProcessIndex, info: &ProcessInfo) -> Result<()> {
        let entry = RecordingEntry::ProcessStart {
            process: process.0,
            pid: info.pid,
            pid_in_target: info.pid_in_target,
            comm: info.comm.clone(),
            generation: info.generation,
            time_nanos: xputrace_linux::monotonic_nanos(),
            gpu: info.gpu,
        };
        self.write(entry)
    }

    fn rings(&mut self, process: ProcessIndex, rings: &[Vec<u8>]) -> Result<()> {
        for record in rings.iter().flat_map(|it| xputrace_wire::record::records(it)) {
            if let Ok(xputrace_wire::record::Record::Stack { id, .. }) = record {
                self.add_stack(StackKey::Collector { process: process.0, id });
            }
        }
        self.draft.keep();
        let (process, time_nanos) = (process.0, xputrace_linux::monotonic_nanos());
        self.write(RecordingEntry::Wire { process, time_nanos, rings: rings.to_vec() })
    }

    fn end_process(&mut self, process: ProcessIndex, totals: &CollectorTotals) -> Result<()> {
        let entry = RecordingEntry::ProcessEnd {
            process: process.0,
            time_nanos: xputrace_linux::monotonic_nanos(),
            totals: (*totals).into(),
        };
        self.write(entry)
    }

    /// Records the hit's cookie, an id of this run's string table, as the function's name.
    fn hit(&mut self, record: &[u8], state: &RunState) -> Result<()> {
        let Some(mut hit) = self.layouts.decode(record) else { return Ok(()) };
        [hit.ustack, hit.kstack].map(StackKey::from_word).into_iter().for_each(|it| self.add_stack(it));
        if let Some(name) = state.pipeline.state().names().get(cookie::name(hit.cookie).into()) {
            hit.strings.push(UserString {
                address: hits::FUNCTION_NAME,
                text: xputrace_model::text::to_bytes(name).into_owned(),
            });
        }
        self.write(RecordingEntry::Hit(hit))
    }

    fn stacks(&self) -> &BTreeSet<StackKey> {
        &self.stacks
    }

    /// Names every stack while the files of its process are still known, writes the losses, and
    /// closes the file.
    fn end(mut self: Box<Self>, state: &mut RunState) -> Result<()> {
        let mut symbols = Vec::new();
        for stack in self.stacks.iter().copied() {
            if let Some(frames) = state.frames(stack) {
                symbols.push((stack, frames.iter().map(FrameInfo::from).collect()));
            }
        }
        self.write(RecordingEntry::Symbols(symbols))?;
        self.write(RecordingEntry::Losses(state.cpu_losses()))?;
        let Tape { writer, draft, is_quiet, .. } = *self;
        let path = draft.target().to_owned();
        let flushed = |it: BufWriter<File>| {
            it.into_inner().map_err(|it| RecordingError::Io { attempted: "write", answer: it.into_error() })
        };
        let file = wrote(&draft, writer.finish().and_then(flushed))?;
        let size = file.metadata().map_or(0, |it| it.len());
        draft.finish().with_context(|| format!("cannot put the recording in its place {}", path.display()))?;
        let size = xputrace_render::human(size as i64, xputrace_model::schema::Unit::Bytes);
        if !is_quiet {
            say(format_args!("wrote {} ({size})", path.display()));
        }
        Ok(())
    }
}

/// `xputrace run SCRIPT --replay T.xpt`: runs the script over a recording, without root and GPU.
pub fn replay(run: &Run) -> Result<ExitCode> {
    let path = run.options.replay.as_ref().context("no recording was given")?;
    if run.options.all_processes || !run.options.pids.is_empty() {
        bail!("--replay runs over {} and cannot be combined with -p or -a", path.display());
    }
    if run.options.run_for.is_some() {
        bail!("--replay runs over all of {} and cannot be combined with --for", path.display());
    }
    if !run.command.is_empty() {
        bail!("--replay runs over {}; a command would not be run", path.display());
    }
    let reader = RecordingReader::open(path).with_context(|| format!("{} cannot be replayed", path.display()))?;
    let catalog = RecordedMachine::new(reader.meta());
    if let Some(file) = objects::named(run) {
        return replay_compiled(run, Compiled::of_object(objects::plan_of_replay(run, file)?), reader);
    }
    let compiled = compile_script(run, &catalog)?;
    compiled.refuse_empty()?;
    replay_compiled(run, compiled, reader)
}

fn replay_compiled(run: &Run, compiled: Compiled, reader: RecordingReader) -> Result<ExitCode> {
    let mut plan = compiled.plan;
    plan.reads_lines |= run.options.naming.lines;
    let plan = Arc::new(plan);
    let mut report = Report::new(run.options.quiet);
    note_intervals(&plan, &mut report);
    let (pipeline, mut opened) = open(plan.clone(), reader, stacks::demangle)?;
    opened.notes().iter().for_each(|it| report.note(it));
    let files = ResultFiles::new(&run.options.files, &plan.tables)?;
    let printer = Printer::new(run.options.format, run.options.output.as_deref())?;
    let stacks = Stacks::of(&plan, run.options.naming);
    let turn = Turn::of_recording(&plan);
    let state = RunState::new(plan, None, pipeline, stacks, printer);
    let mut running = Running::new(state, compiled.interpreter, report).writing(files).with_programs(turn);
    if opened.is_of_software_gpu() {
        running.say_of_gpu(GpuKind::Software, true);
    }
    for (key, frames) in opened.drain_frames() {
        running.state().stacks.know(key, frames.into_iter().map(Frame::from).collect());
    }
    running.begin();
    let mut playing = opened.play();
    loop {
        let mut queue = running.queue();
        let goes_on = playing.step(&mut running.state().pipeline, &mut queue);
        running.settle(queue);
        if !goes_on {
            break;
        }
    }
    let mut queue = running.queue();
    let outcome = playing.finish(&mut running.state().pipeline, &mut queue);
    running.state().losses.merge(&outcome.losses);
    if let Some(damage) = &outcome.damage {
        running.report().fail(&describe(damage));
    }
    running.settle(queue);
    running.report().collectors = Collectors::Recorded(outcome.processes);
    running.refresh_builtins(&outcome.totals, Duration::from_nanos(outcome.span_nanos));
    running.finish();
    Ok(Ended { exit: running.exit_code(), failed: running.report().has_failed(), ..Ended::default() }.code())
}

/// Says what of a recording cannot be read.
pub fn describe(damage: &Damage) -> String {
    let end = if damage.cut { ", the end is missing" } else { "" };
    format!(
        "the recording is damaged from byte {} on ({} blocks lost{end}); the readable part follows",
        damage.offset, damage.blocks
    )
}

/// Notes that timers do not fire over a recording: no time passes.
fn note_intervals(plan: &Plan, report: &mut Report) {
    if plan.probes.iter().any(|it| it.event == Event::Interval) {
        report.note("interval handlers do not run over a recording; maps are shown as they are at the end");
    }
}
