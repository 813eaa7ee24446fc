//! Whether a recording has what a plan needs.

use xputrace_model::gpu::GpuKind;
use xputrace_model::plan::{Detail, Plan, Probe, TextRead};
use xputrace_model::schema::Event;
use xputrace_pipeline::PipelineError;
use xputrace_recording::{Meta, ProbeInfo, RecordedText, hits};

/// Why a plan cannot run over a recording.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("the recording has no hits of {}; it has {}. {}", missing.join(", "), listed(recorded), again(record))]
    NotRecorded { missing: Vec<String>, recorded: Vec<String>, record: String },
    #[error("the script's handler of {probe} cannot run over a recording: hits of USDT probes are not recorded yet")]
    Usdt { probe: String },
    #[error("line {line} of the script reads a text at {probe} that was not recorded. {}", again(record))]
    TextNotRecorded { probe: String, line: u32, record: String },
    #[error(
        "line {line} of the script asks for the hits of {probe} in {}, but the recording has those in {}. {}, or {}",
        processes(*everywhere), processes(!*everywhere), again(record),
        if *everywhere { "leave `scope: \"system\"` out" } else { "add `scope: \"system\"`" }
    )]
    OtherScope { probe: String, line: u32, everywhere: bool, record: String },
    #[error("the script reads launch stacks, but the recording has none. {}", again(record))]
    NoLaunchStacks { record: String },
    #[error("of host events and CUDA calls, the recording lacks {}. {}", few(missing), again(record))]
    NoHostEvents { missing: Vec<String>, record: String },
    #[error("the recording has no lines of stacks. Add `--lines` before the `--` of `{record}`")]
    NoLines { record: String },
    #[error(
        "the script's device handlers ({}) cannot run over this recording: it is of a real GPU, whose threads it does \
         not have. They run over recordings of the software GPU, and on it",
        few(handlers)
    )]
    NoThreads { handlers: Vec<String> },
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
}

pub(crate) fn again(record: &str) -> String {
    format!("Record what the script reads: `{record}`")
}

/// Lists names: the first ones, and how many more there are. A pattern of calls may match a thousand.
pub(crate) fn few(names: &[String]) -> String {
    const MOST: usize = 5;
    match names.len().checked_sub(MOST) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..MOST].join(", ")),
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "no CPU probes".into() } else { names.join(", ") }
}

fn processes(everywhere: bool) -> &'static str {
    if everywhere { "all processes" } else { "the traced processes alone" }
}

/// Checks that every CPU probe of the plan was recorded, in its scope.
pub(crate) fn check(plan: &Plan, meta: &Meta) -> Result<(), ReplayError> {
    let record = plan.sources.record_command();
    if let Some(it) = plan.probes.iter().find(|it| it.event == Event::Usdt) {
        return Err(ReplayError::Usdt { probe: it.name.clone() });
    }
    let is_cpu = |it: &&Probe| it.event.is_of_cpu();
    let mut recorded: Vec<String> = meta.probes.iter().map(|it| it.name.clone()).collect();
    recorded.dedup();
    let wanted = || plan.probes.iter().filter(is_cpu);
    let mut missing: Vec<String> = wanted().map(|it| it.name.clone()).filter(|it| !recorded.contains(it)).collect();
    missing.dedup();
    if !missing.is_empty() {
        return Err(ReplayError::NotRecorded { missing, recorded, record });
    }
    if let Some(it) = wanted().find(|it| recorded_as(it, meta).is_none()) {
        let everywhere = hits::is_everywhere(it);
        return Err(ReplayError::OtherScope { probe: it.name.clone(), line: it.site.line, everywhere, record });
    }
    if let Some((probe, text)) = first_unrecorded_text(plan, meta) {
        return Err(ReplayError::TextNotRecorded { probe: probe.name.clone(), line: text.site.line, record });
    }
    if plan.demand.has(Detail::Stacks) && !meta.launch_stacks && meta.gpu != GpuKind::None {
        return Err(ReplayError::NoLaunchStacks { record });
    }
    let missing = meta.missing_host_events(&plan.demand);
    if !missing.is_empty() {
        return Err(ReplayError::NoHostEvents { missing, record });
    }
    if plan.reads_lines && !meta.lines {
        return Err(ReplayError::NoLines { record });
    }
    Ok(())
}

/// Returns the number under which a probe's hits were recorded, if they were recorded in its scope.
pub(crate) fn recorded_as(probe: &Probe, meta: &Meta) -> Option<usize> {
    let mut of_name = meta.probes.iter().enumerate().filter(|(_, it)| it.name == probe.name);
    let is_alike = |it: &ProbeInfo| it.everywhere.is_none_or(|it| it == hits::is_everywhere(probe));
    // Some recordings contain each hit once per handler of the probe; use the first.
    of_name.find(|(_, it)| is_alike(it)).map(|it| it.0)
}

/// Returns the first text that a handler reads at a fixed location and that no hit carries.
fn first_unrecorded_text<'p>(plan: &'p Plan, meta: &Meta) -> Option<(&'p Probe, &'p TextRead)> {
    let is_recorded = |probe: &Probe, word: RecordedText| {
        meta.probes.iter().any(|it| it.name == probe.name && it.texts.contains(&word))
    };
    let texts = plan.probes.iter().flat_map(|probe| probe.texts.iter().map(move |it| (probe, it)));
    let mut unrecorded = texts.filter(|(probe, text)| text.address.is_some_and(|it| !is_recorded(probe, it.into())));
    unrecorded.next()
}

/// Checks that the threads of kernels are known, if device handlers run in them.
pub(crate) fn check_threads(plan: &Plan, gpus: &[GpuKind]) -> Result<(), ReplayError> {
    let handlers: Vec<String> = plan.device_handlers().map(|it| plan.probes[it.probe.index()].name.clone()).collect();
    // Recordings of earlier versions don't say of which GPU they are: they were made on real ones.
    match gpus.iter().any(|it| *it != GpuKind::Software) && !handlers.is_empty() {
        true => Err(ReplayError::NoThreads { handlers }),
        false => Ok(()),
    }
}
