//! Code inside kernels of real GPUs: makes the twins that collectors ask for, and reads what they leave in device memory.
//!
//! ```text
//! image ──begin──▶ threads: weave, find a ptxas or a kept cubin ──finished──▶ answer
//! ```

mod making;
mod objects;
mod tally;
#[cfg(test)]
mod tests;
mod toolkit;
mod triton;
mod workshop;

pub use making::{Asker, Done};

use crate::run::Running;
use anyhow::{Context, Result, anyhow};
use making::{Code, Made, Making, Outcome, Task};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tally::Tally;
use workshop::Workshop;
use xputrace_bytecode::{BpfMapId, Home};
use xputrace_linux::monotonic_nanos;
use xputrace_model::loss::Loss;
use xputrace_model::object::Object;
use xputrace_model::plan::Plan;
use xputrace_tracer::rendezvous::{DeviceCounts, DeviceRegion, Image, Woven};
use xputrace_tracer::{DeviceLayout, ProcessIndex};
use xputrace_twins::{GpuMap, Handler, Maker, MakerError, Origin};
use xputrace_wire::device::{ImageOutcome, Unprobed};

/// What is made of a script's device handlers.
pub struct Twins {
    making: Arc<Making>,
    workshop: Workshop<Task, Done>,
    layout: Arc<DeviceLayout>,
    tally: Tally,
    object: Option<Arc<Object>>,
}

impl Twins {
    /// Prepares a script's device handlers for real GPUs; `None` if it has none.
    ///
    /// # Errors
    /// A handler does what kernels of a real GPU can't. A compiled object that does so may still run on the software GPU:
    /// then there are none, and [`why_not`] says why.
    pub fn of(plan: &Plan) -> Result<Option<Self>> {
        match Self::made(plan) {
            Err(_) if plan.object.is_some() => Ok(None),
            made => made,
        }
    }

    fn made(plan: &Plan) -> Result<Option<Self>> {
        let (mut handlers, mut kernels, mut sites, mut programs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for it in plan.device_handlers() {
            let Some(program) = it.program else { continue };
            handlers.push(Handler { place: it.place, program: plan.image.programs[program].clone() });
            kernels.push(it.kernels.clone());
            sites.push(it.site);
            programs.push(program);
        }
        // What is woven into a kernel runs as long as the run lasts.
        if handlers.is_empty() || is_switched(plan) {
            return Ok(None);
        }
        plan.object.iter().try_for_each(|it| objects::check(it, plan))?;
        let allows_exit = plan.object.as_ref().map(|it| it.allows_exit);
        let is_of_script =
            plan.object.as_ref().is_some_and(|it| programs.iter().all(|at| it.with_context.contains(at)));
        let origin = match allows_exit {
            Some(allows_exit) if !is_of_script => Origin::Object { allows_exit },
            _ => Origin::Script,
        };
        let named = |handler: usize| plan.image.programs[programs[handler]].name.clone();
        let maker =
            Maker::new(origin, handlers, &maps(plan), &|text| string_id(plan, text)).map_err(|error| match error {
                MakerError::Handler { handler, refusal } if plan.object.is_some() => {
                    anyhow!("program `{}`, instruction {}: {}", named(handler), refusal.insn, refusal.what)
                }
                MakerError::Handler { handler, refusal } => {
                    anyhow!("the device handler at {} can't run on a GPU: {}", sites[handler].line, refusal.what)
                }
                other => anyhow!("the script's device handlers can't run on a GPU: {other}"),
            })?;
        let layout =
            DeviceLayout { maps: maker.maps().to_vec(), arena: maker.arena().clone(), n_sites: maker.n_sites() };
        let making = Arc::new(Making::new(maker, kernels));
        let of_threads = making.clone();
        let workshop = Workshop::new(move |task| of_threads.make(task));
        let workshop = workshop.context("cannot start the threads that make twins of kernels")?;
        let object = plan.object.clone();
        Ok(Some(Twins { making, workshop, layout: Arc::new(layout), tally: Tally::default(), object }))
    }

    /// Returns how the script's maps lie in device memory.
    pub fn layout(&self) -> Arc<DeviceLayout> {
        self.layout.clone()
    }

    /// Returns what device memory begins with.
    pub fn initial(&self) -> Vec<u8> {
        let mut memory = self.making.maker.initial(clock_offset());
        self.object.iter().for_each(|it| objects::fill(it, &self.layout, &mut memory));
        memory
    }

    /// Has the twin of an image made that a process has loaded.
    pub fn begin(&self, image: Image, asker: Asker) {
        self.workshop.begin(Task { image, asker });
    }

    /// Returns what was made since the last call, if anything.
    pub fn finished(&mut self) -> Option<Done> {
        self.workshop.finished()
    }

    /// Returns a descriptor that is readable when something was made.
    pub fn fd(&self) -> RawFd {
        self.workshop.fd()
    }

    /// Returns the answer to the process that waits for a twin; notes what went wrong.
    pub fn answer(&mut self, Done { asker, made, .. }: Done, running: &mut Running) -> Woven {
        let mut note = |text: &str| running.report().note(text);
        let Made { text, code } = match made {
            Ok(Outcome::Made(made)) => made,
            Ok(Outcome::Nothing) => return Woven::Nothing,
            Ok(Outcome::NoPtx) => return Woven::NoPtx,
            Err(error) => {
                note(&format!("process {}: device handlers do not run in some kernels: {error:#}", asker.pid));
                return Woven::Failed;
            }
        };
        self.tally.add(&code, &text.kernels).iter().for_each(|it| note(it));
        let code = match code {
            Code::Cubin(it) => it.cubin.code,
            Code::Text(_) => text.as_code(),
        };
        let mut state = running.state();
        let names = state.pipeline.state_mut().names_mut();
        let name_of = |symbol: &str| names.intern(&xputrace_symbols::demangle(symbol).name).into();
        Woven::Twin(text.with_code(code, name_of))
    }

    /// Says how twins were compiled.
    pub fn account_for_compiling(&self, running: &mut Running) {
        self.tally.notes().iter().for_each(|it| running.report().note(it));
    }
}

impl Drop for Twins {
    fn drop(&mut self) {
        self.making.is_over.store(true, Ordering::Release);
    }
}

/// Returns why a compiled object can't run on real GPUs.
pub fn why_not(plan: &Plan) -> Option<String> {
    let file = &plan.object.as_ref()?.file;
    Twins::made(plan).err().map(|it| format!("{file} did not run: on a real GPU it can't so far: {it:#}"))
}

/// Whether a device handler is enabled and disabled during the run.
pub fn is_switched(plan: &Plan) -> bool {
    plan.device_handlers().any(|it| plan.probes[it.probe.index()].switch.is_some())
}

/// Returns the id that a text of the script has in the run.
fn string_id(plan: &Plan, text: &str) -> Option<u64> {
    plan.strings.iter().position(|it| &**it == text).map(|it| it as u64)
}

/// Returns the maps of the script that are on the GPU.
fn maps(plan: &Plan) -> Vec<Option<GpuMap<'_>>> {
    // What readers merge: aggregations, and counters of losses.
    let is_merged = |map| {
        let mut tables = plan.tables.iter().filter(|it| it.storage.gpu() == Some(map));
        tables.any(|it| it.kind.is_aggregation()) || plan.gpu_losses == Some(map)
    };
    let of = |(at, spec)| GpuMap { spec, has_parts: is_merged(BpfMapId::at(at)) };
    let maps = plan.image.maps.iter().enumerate();
    maps.map(|it| (it.1.home == Home::Gpu).then(|| of(it))).collect()
}

/// Returns what CLOCK_MONOTONIC is more than CLOCK_REALTIME, in nanoseconds. The GPU's timer is close to the latter.
fn clock_offset() -> i64 {
    monotonic_nanos() as i64 - crate::machine::realtime_nanos()
}

/// Takes over what a process's kernels have left in device memory.
pub fn read(region: &DeviceRegion, process: ProcessIndex, running: &mut Running) {
    match region.copies() {
        Ok(copies) => running.state().pipeline.state_mut().set_device_memory(process, copies),
        Err(error) => running.report().note(&format!("device memory could not be read: {error}")),
    }
}

/// Says what became of a process's images and launches, where handlers could not run, and counts contexts of which the end
/// was not read.
pub fn account(region: &DeviceRegion, pid: u32, running: &mut Running) {
    let Ok(DeviceCounts { swapped, n_unfinished, unprobed, images, .. }) = region.counts() else { return };
    running.state().losses.add(Loss::DeviceCopyMissing, n_unfinished);
    let mut note = |text: String| running.report().note(&format!("process {pid}: {text}"));
    for (outcome, n) in ImageOutcome::ALL.iter().zip(images).filter(|it| it.1 > 0) {
        missed(*outcome).into_iter().for_each(|what| note(format!("{n} of its images {what}")));
    }
    if swapped == 0 && images[ImageOutcome::Twinned as usize] == 0 {
        let n = images[ImageOutcome::NoPtx as usize];
        note(format!(
            "none of its images has PTX of a kernel that a device handler names ({n} have no PTX at all): only kernels with \
             PTX can be given handlers so far, such as those that nvcc compiles with -arch=sm_90, and Triton's whose cache \
             has it"
        ));
    }
    for (why, n) in Unprobed::ALL.iter().zip(unprobed).filter(|it| it.1 > 0) {
        note(format!("{n} launches ran without handlers: {}", ran_original(*why)));
    }
}

/// Says why images have no twin; `None` where none was missed, or where that is said of all of them together.
fn missed(outcome: ImageOutcome) -> Option<&'static str> {
    Some(match outcome {
        ImageOutcome::Twinned | ImageOutcome::NothingToProbe | ImageOutcome::NoPtx => return None,
        ImageOutcome::TooLarge => "had more PTX than is read",
        ImageOutcome::Unreadable => "could not be read",
        ImageOutcome::NotWoven => "could not be given handlers",
        ImageOutcome::NoAnswer => "waited in vain for their twin",
        ImageOutcome::NotLoaded => "have a twin that the driver did not load",
        ImageOutcome::File => "were loaded from files that could not be read",
        ImageOutcome::OlderPtx => "have PTX, but not that of their code for this GPU, which may do other things",
        ImageOutcome::TableFull => "are more, or have more kernels, than can be replaced",
    })
}

/// Says why launches ran the original.
fn ran_original(why: Unprobed) -> &'static str {
    match why {
        Unprobed::NotReady => "before their twin was ready",
        Unprobed::Cooperative => "cooperatively",
        Unprobed::NoContext => "in contexts beyond the first 16, or in green ones",
        Unprobed::AttributeRefused => "with an attribute that their twin did not take",
        Unprobed::BlockTooLarge => "with more threads a block than their twin has registers for",
        Unprobed::MayNotFit => "with a grid that the GPU runs all at once, as it may not run their twin's",
    }
}
