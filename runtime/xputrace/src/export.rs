//! `xputrace export`: writes the events of a recording in one of [`EVENT_FORMATS`], without a script.
//!
//! ```text
//! recording ─replay─▶ every joined event, and every hit of a CPU probe ─▶ Exporting ─▶ EventExporter ─▶ file
//! ```

mod hits;

use crate::cli::ExportOptions;
use crate::console::{self, Outlet, say};
use crate::creator::creator;
use crate::recording::describe;
use crate::stacks::{self, Naming, Stacks};
use crate::status::INCOMPLETE;
use anyhow::{Context, Result};
use hits::HitReader;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use xputrace_model::context::GpuContext;
use xputrace_model::loss::{Loss, Losses};
use xputrace_model::output::{Output, StackNames};
use xputrace_model::plan::{MapAction, Plan, Probe, ProbeId, ProbePlace};
use xputrace_model::stack::{Frame, Frames, StackKey};
use xputrace_model::table::TableId;
use xputrace_pipeline::{HandlerState, Outputs, Pipeline, Sink};
use xputrace_recording::{Damage, Hit, Meta, RecordingReader};
use xputrace_render::{AboutRecording, EventExporter, EventNames, Exported, ExportedArgument};
use xputrace_replay::{Opened, ReplayOutcome, ReplaySink, every_event, open};

const SOFTWARE_GPU: &str = "the GPU times of this recording come from the software GPU: they mean nothing";

/// Writes the events of a recording, or what their rows are made of.
///
/// # Errors
/// The recording cannot be read, or the output not be written.
pub fn export(options: &ExportOptions) -> Result<ExitCode> {
    if options.schema {
        write_schema(options)?;
        return Ok(ExitCode::SUCCESS);
    }
    let path = options.recording.as_deref().context("no recording was given")?;
    let reader = RecordingReader::open(path).with_context(|| format!("{} cannot be exported", path.display()))?;
    let damage = export_all(reader, options)?;
    Ok(damage.map_or(ExitCode::SUCCESS, |it| {
        say(describe(&it));
        ExitCode::from(INCOMPLETE)
    }))
}

/// Returns the unreadable parts of the recording.
fn export_all(reader: RecordingReader, options: &ExportOptions) -> Result<Option<Damage>> {
    let plan = Arc::new(every_event(reader.meta()));
    let (mut pipeline, mut opened) = open(plan.clone(), reader, stacks::demangle)?;
    if opened.is_of_software_gpu() {
        say(SOFTWARE_GPU);
    }
    let mut exporting = Exporting::begin(options, &plan, &mut opened)?;
    let outcome = opened.run(&mut pipeline, &mut exporting);
    exporting.finish(&pipeline, &outcome)?;
    Ok(outcome.damage)
}

fn write_schema(options: &ExportOptions) -> Result<()> {
    let schema = (options.format.schema)();
    match options.file() {
        None => console::print(schema)?,
        Some(path) => outlet(Some(path))?.write_all(schema.as_bytes()).with_context(|| cannot_write(path))?,
    }
    Ok(())
}

fn outlet(file: Option<&Path>) -> Result<Outlet> {
    let Some(path) = file else { return Outlet::stdout().context("cannot write to standard output") };
    let destination = creator().destination(path).with_context(|| cannot_write(path))?;
    let misplaced = |error: io::Error| say(format_args!("cannot replace what the output should: {error}"));
    Outlet::begin(destination, misplaced).with_context(|| cannot_write(path))
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write to {}", path.display())
}

/// Passes events to an exporter, up to its first failure.
struct Exporting {
    exporter: Box<dyn EventExporter>,
    out: Outlet,
    failure: Option<io::Error>,
    stacks: Stacks,
    hits: HitReader,
    /// Whether stacks have Python's frames; otherwise that they have none says nothing.
    has_python: bool,
    losses: Losses,
}

impl Exporting {
    fn begin(options: &ExportOptions, plan: &Plan, opened: &mut Opened) -> Result<Self> {
        let mut stacks = Stacks::of(plan, Naming { whole_names: true, ..Naming::default() });
        for (key, frames) in opened.drain_frames() {
            stacks.know(key, frames.into_iter().map(Frame::from).collect());
        }
        let meta = opened.meta();
        let hits = HitReader::of(meta);
        let about = about(meta, &hits, opened.is_of_software_gpu());
        let mut exporting = Exporting {
            exporter: (options.format.open)(),
            out: outlet(options.file())?,
            failure: None,
            stacks,
            hits,
            has_python: meta.launch_python,
            losses: Losses::default(),
        };
        let exported: Vec<Exported> = plan.probes.iter().map(exported).collect();
        exporting.exporter.begin(&mut exporting.out, &about, &exported)?;
        Ok(exporting)
    }

    fn finish(mut self, pipeline: &Pipeline, outcome: &ReplayOutcome) -> Result<()> {
        if let Some(failure) = self.failure {
            return Err(failure).context("cannot write the events");
        }
        let mut losses = pipeline.losses();
        losses.merge(&outcome.losses);
        losses.merge(&self.losses);
        losses.add(Loss::UnnamedStack, self.stacks.n_unnamed());
        self.exporter.finish(&mut self.out, &losses).context("cannot write the events")
    }
}

fn about(meta: &Meta, hits: &HitReader, is_of_software_gpu: bool) -> AboutRecording {
    AboutRecording {
        command: meta.command.clone(),
        machine: meta.machine.clone(),
        recorder: meta.program.clone(),
        unix_seconds: meta.unix_seconds,
        monotonic_nanos: meta.monotonic_nanos,
        is_of_software_gpu,
        probes: hits.described(),
    }
}

fn exported(probe: &Probe) -> Exported {
    let function = match &probe.target {
        ProbePlace::Api(functions) => functions.iter().next().and_then(|it| it.function()),
        _ => None,
    };
    let parameter = |name: &str| function?.parameter(name);
    let is_unsigned = |name: &str| parameter(name).is_some_and(|it| it.is_unsigned());
    let argument = |name: &String| ExportedArgument { name: name.clone(), is_unsigned: is_unsigned(name) };
    Exported { event: probe.event, arguments: probe.arguments.iter().map(argument).collect() }
}

impl Outputs for Exporting {
    fn is_over(&self) -> bool {
        self.failure.is_some()
    }

    // Nothing runs that would print, change maps or exit.
    fn output(&mut self, _: Output) {}
    fn map(&mut self, _: TableId, _: MapAction) {}
    fn exit(&mut self, _: i64) {}
}

impl Sink for Exporting {
    fn interpret(&mut self, probe: ProbeId, event: &GpuContext, state: &mut HandlerState) {
        let Exporting { exporter, out, stacks, has_python, .. } = self;
        let mut names = RecordingNames { stacks: stacks.names(None, state), state, has_python: *has_python };
        if let Err(failure) = exporter.event(out, probe.index(), event, &mut names) {
            self.failure = Some(failure);
        }
    }
}

impl ReplaySink for Exporting {
    fn hit(&mut self, hit: &Hit, state: &mut HandlerState) {
        let Exporting { exporter, out, stacks, hits, has_python, losses, .. } = self;
        hits.count_lost_stacks(hit, losses);
        let Some(row) = hits.row(hit) else { return losses.add(Loss::Malformed, 1) };
        let mut names = RecordingNames { stacks: stacks.names(None, state), state, has_python: *has_python };
        if let Err(failure) = exporter.hit(out, &row, &mut names) {
            self.failure = Some(failure);
        }
    }
}

/// The names of a recording at one moment.
struct RecordingNames<'a> {
    stacks: stacks::FrameNames<'a>,
    state: &'a HandlerState,
    has_python: bool,
}

impl StackNames for RecordingNames<'_> {
    fn frames(&mut self, stack: StackKey) -> Option<Frames> {
        let is_unknown = matches!(stack, StackKey::CollectorPython { .. }) && !self.has_python;
        if is_unknown { None } else { self.stacks.frames(stack) }
    }

    fn shows_whole_names(&self) -> bool {
        true
    }
}

impl EventNames for RecordingNames<'_> {
    fn text(&self, id: u64) -> Option<&str> {
        self.state.names().get(id).map(|it| &**it)
    }
}
