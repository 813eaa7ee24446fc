//! A recording that a plan can run over.

use crate::check::{ReplayError, again, check, check_threads, few};
use crate::linux_handlers::LinuxHandlers;
use crate::playing::{Playing, ReplayOutcome, ReplaySink};
use crate::tape::Tape;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use xputrace_model::gpu::GpuKind;
use xputrace_model::plan::{Detail, HostEvent, HostEvents, Plan};
use xputrace_model::schema::Event;
use xputrace_model::stack::StackKey;
use xputrace_pipeline::{Demangle, Pipeline};
use xputrace_recording::{FrameInfo, Meta, RecordingReader};

/// A recording that a plan can run over.
pub struct Opened {
    plan: Arc<Plan>,
    meta: Meta,
    tape: Tape,
}

/// Creates a pipeline for a plan over a recording. Runs nothing yet, so that `begin` handlers can
/// run first.
///
/// # Errors
/// The plan needs a probe that was not recorded, or cannot be loaded into the engine.
pub fn open(
    plan: Arc<Plan>,
    recording: RecordingReader,
    demangle: Demangle,
) -> Result<(Pipeline, Opened), ReplayError> {
    let meta = recording.meta().clone();
    check(&plan, &meta)?;
    let tape = Tape::load(recording);
    check_threads(&plan, &tape.gpus)?;
    let mut pipeline = Pipeline::all_native(plan.clone(), demangle)?;
    let missing: Vec<HostEvent> = meta.missing_kinds(plan.demand.host_events).collect();
    pipeline.has_no_account_of(HostEvents::of(&missing));
    Ok((pipeline, Opened { plan, meta, tape }))
}

impl Opened {
    /// Takes out the names of frames, by stack: handlers may print them.
    pub fn drain_frames(&mut self) -> FxHashMap<StackKey, Vec<FrameInfo>> {
        std::mem::take(&mut self.tape.frames)
    }

    /// Whether any process used the software GPU, whose times are meaningless.
    pub fn is_of_software_gpu(&self) -> bool {
        self.tape.gpus.contains(&GpuKind::Software) || self.meta.gpu == GpuKind::Software
    }

    /// What the recording says of itself.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// What the recording lacks, if that may matter.
    pub fn notes(&self) -> Vec<String> {
        self.lacked_python().into_iter().chain(self.lacked_events()).collect()
    }

    /// Names the events of handlers that are left out.
    fn lacked_events(&self) -> Option<String> {
        let handled =
            self.plan.probes.iter().filter_map(|it| if let Event::Host(kind) = it.event { Some(kind) } else { None });
        let handled = handled.fold(HostEvents::NONE, |all, it| all.with(HostEvents::of(&[it])));
        let missing: Vec<String> = self.meta.missing_kinds(handled).map(|it| it.name().to_owned()).collect();
        let record = self.plan.sources.record_command();
        let text =
            || format!("the recording has no {} events: what the script shows of them is missing", few(&missing));
        (!missing.is_empty()).then(|| format!("{}. {}", text(), again(&record)))
    }

    /// A program without Python has no Python frames anyway.
    fn lacked_python(&self) -> Option<String> {
        let lacks_python = self.plan.demand.has(Detail::Python) && !self.meta.launch_python;
        let is_python = self.meta.command.iter().any(|it| it.contains("python"));
        let record = self.plan.sources.record_command();
        (lacks_python && is_python).then(|| format!("the recording has no Python frames. {}", again(&record)))
    }

    /// Runs the plan over the whole recording. The caller runs `begin` and `end`.
    pub fn run(self, pipeline: &mut Pipeline, sink: &mut dyn ReplaySink) -> ReplayOutcome {
        let mut playing = self.play();
        while playing.step(pipeline, sink) {}
        playing.finish(pipeline, sink)
    }

    /// Begins to run the plan over the recording, step by step: interpreted handlers run between two steps.
    pub fn play(self) -> Playing {
        let handlers = LinuxHandlers::of(&self.plan, &self.meta);
        Playing::new(self.tape, handlers, self.meta.monotonic_nanos)
    }
}
