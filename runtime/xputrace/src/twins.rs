//! Code inside kernels of real GPUs: makes the twins that collectors ask for, and reads what they leave in device memory.
//!
//! ```text
//! image ──begin──▶ threads: weave, find a ptxas or a kept cubin ──finished──▶ answer
//! ```

#[cfg(test)]
pub mod bundled;
mod clocks;
pub mod files;
mod making;
mod objects;
mod prepared;
mod tally;
mod toolkit;
mod triton;
mod workshop;

pub use making::{Asker, Done, no_compiler};
pub use toolkit::cache;

use crate::run::Running;
use crate::run::report::counted;
use anyhow::{Context, Result};
use making::{Code, Made, MadeTwins, Making, Outcome, Patched, Task, in_kernel};
use prepared::{Prepared, prepared, too_many_for_patches};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tally::Tally;
use workshop::Workshop;
use xputrace_bytecode::BpfMapId;
use xputrace_linux::Linux;
use xputrace_model::loss::Loss;
use xputrace_model::object::Object;
use xputrace_model::plan::{Condition, DeviceWay, DeviceWays, Plan};
use xputrace_pipeline::{DeviceLayout, ProcessIndex, Turned};
use xputrace_rendezvous::{Clocks, ConditionCounts, DeviceBlock, DeviceCounts, DeviceRegion, LoadedImage};
use xputrace_wire::device::Woven;
use xputrace_wire::device::{ArrayPlace, Extent, ImageOutcome, MOST_PATCH_HANDLERS, PatchedKernel, Patches, Unprobed};

/// Kernels of an image of which a note says why they have no twin.
const MOST_REFUSED_SAID: usize = 8;

/// What is made of a script's device handlers.
pub struct Twins {
    making: Arc<Making>,
    workshop: Workshop<Task, Done>,
    layout: Arc<DeviceLayout>,
    conditions: Vec<Condition>,
    tally: Tally,
    clocks: Clocks,
    /// Whether a process had times of the GPU's read.
    reads_clock: bool,
    object: Option<Arc<Object>>,
    caution: Option<String>,
}

impl Twins {
    /// Prepares a script's device handlers for real GPUs; `None` if it has none, or a compiled object that can run on the
    /// software GPU alone: [`why_not`] says why.
    ///
    /// # Errors
    /// A handler does what kernels of a real GPU can't, or a thread can't be started.
    pub fn of(plan: &Plan) -> Result<Option<Self>> {
        prepared(plan)?.map(|it| Twins::start(it, plan)).transpose()
    }

    /// Starts the threads that make them.
    fn start(Prepared { maker, layout, kernels, launches }: Prepared, plan: &Plan) -> Result<Self> {
        let making = Arc::new(Making::new(maker, plan, kernels, launches));
        let of_threads = making.clone();
        let workshop = Workshop::new(move |task| of_threads.make(task));
        Ok(Twins {
            making,
            workshop: workshop.context("cannot start the threads that make twins of kernels")?,
            layout: Arc::new(layout),
            conditions: plan.conditions(),
            tally: Tally::default(),
            clocks: Clocks::default(),
            reads_clock: false,
            object: plan.object.clone(),
            caution: plan.object.as_ref().and_then(|it| objects::changed_on_both_sides(it, plan)),
        })
    }

    /// Says to a process which handlers are enabled now.
    pub fn switch(&self, region: &DeviceRegion, switches: &Turned, running: &mut Running) {
        if let Err(error) = region.switch(&self.conditions, |it| switches.is_on(it)) {
            running.report().note_about_process(&format!("device handlers could not be enabled and disabled: {error}"));
        }
    }

    /// Returns how the script's maps lie in device memory.
    pub fn layout(&self) -> Arc<DeviceLayout> {
        self.layout.clone()
    }

    /// Returns what device memory is like at first; `linux` has the maps that programs there share.
    ///
    /// # Errors
    /// An array that is shared is not there, or the system gives no descriptor.
    pub fn block(&self, linux: Option<&Linux>) -> Result<DeviceBlock> {
        let maker = &self.making.maker;
        let mut initial = maker.initial();
        self.object.iter().for_each(|it| objects::fill(it, &self.layout, &mut initial));
        let array = |(map, place): (BpfMapId, ArrayPlace)| {
            let map = linux.and_then(|it| it.map(map)).context("an array that a GPU shares with Linux is not there")?;
            Ok((place, map.try_clone_fd()?))
        };
        let arrays = maker.arrays().into_iter().map(array).collect::<Result<Vec<_>>>()?;
        let (reads_clock, reads_arguments) = (maker.reads_clock(), maker.reads_arguments());
        let (ring, conditions) = (maker.ring(), self.conditions.clone());
        let has_programs = !self.making.launches.is_empty();
        Ok(DeviceBlock { initial, ring, arrays, reads_clock, reads_arguments, conditions, has_programs })
    }

    /// Returns what the user should know of what runs in kernels, if anything.
    pub fn caution(&self) -> Option<&str> {
        self.caution.as_deref()
    }

    /// Has the twin of an image made that a process has loaded.
    pub fn begin(&self, image: LoadedImage, asker: Asker) {
        let is_long = image.is_kernel();
        let task = Task { image, asker };
        // Nobody waits for it, but for the others.
        if is_long { self.workshop.begin_long(task) } else { self.workshop.begin(task) }
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
        match made {
            Ok(Outcome::Made(twins)) => self.answer_twins(twins, asker, running),
            Ok(Outcome::Patched(patched)) => {
                note_all(&refusals(&patched.refused, asker.pid), running);
                note_all(&self.tally.add_patches(&patched.code, self.making.takes_times), running);
                let kernels = patched.kernels.iter().map(|it| it.symbol.as_str());
                running.state().pipeline.has_twins(asker.process, kernels);
                Woven::Patches(patches_of(patched, running))
            }
            Ok(Outcome::Programs(made)) => {
                note_all(&self.tally.add_programs(&made.code), running);
                Woven::Programs(self.making.sent(made))
            }
            Ok(Outcome::NoPrograms(why)) => {
                running.take_programs_back(why);
                Woven::Failed
            }
            Ok(Outcome::Nothing) => Woven::Nothing,
            Ok(Outcome::NoPtx) => Woven::NoPtx,
            Ok(Outcome::OlderPtx) => Woven::OlderPtx,
            Ok(Outcome::Ambiguous) => Woven::Ambiguous,
            Ok(Outcome::NotInFiles) => Woven::NotInFiles,
            Err(error) => {
                let text = format!("process {}: device handlers do not run in some kernels: {error:#}", asker.pid);
                running.report().note_about_process(&text);
                Woven::Failed
            }
        }
    }

    fn answer_twins(&mut self, MadeTwins { made, refused }: MadeTwins, asker: Asker, running: &mut Running) -> Woven {
        note_all(&refusals(&refused, asker.pid), running);
        if made.is_empty() {
            return Woven::Failed;
        }
        made.iter().for_each(|it| note_all(&self.tally.add(&it.code, &it.text.kernels), running));
        let kernels = made.iter().flat_map(|it| &it.text.kernels).map(String::as_str);
        running.state().pipeline.has_twins(asker.process, kernels);
        let twin = |Made { text, code }: Made| {
            let code = match code {
                Code::Cubin(it) => it.cubin.code,
                Code::Text(_) => text.as_code(),
            };
            text.with_code(code, |symbol| name_of(symbol, running))
        };
        Woven::Twins(made.into_iter().map(twin).collect())
    }

    /// Returns how many texts are compiled now. A compiler may go on behind the end of a run.
    pub fn n_compiling(&self) -> usize {
        self.making.n_compiling()
    }

    /// Adds what is known of the clocks of a process with such handlers.
    pub fn add_clocks(&mut self, clocks: Clocks, way: DeviceWay) {
        self.clocks = self.clocks.and(clocks);
        let takes_times = way == DeviceWay::Patch && self.making.takes_times;
        self.reads_clock |= takes_times || self.making.maker.reads_clock();
    }

    /// Says how twins were compiled, and how right the times are that they have read.
    pub fn account_for_all(&self, running: &mut Running) {
        let clocks = if self.reads_clock { self.clocks } else { Clocks::default() };
        let of_clocks = clocks::notes(clocks, self.object.is_some());
        self.tally.notes().iter().chain(&of_clocks).for_each(|it| running.report().note(it));
    }
}

impl Drop for Twins {
    fn drop(&mut self) {
        self.making.is_over.store(true, Ordering::Release);
    }
}

fn note_all<'t>(texts: impl IntoIterator<Item = &'t String>, running: &mut Running) {
    texts.into_iter().for_each(|it| running.report().note_about_process(it));
}

/// Says why kernels of an image have no handlers.
fn refusals(refused: &BTreeMap<String, anyhow::Error>, pid: u32) -> Vec<String> {
    let no_handlers = |kernels: &str| format!("process {pid}: device handlers do not run in {kernels}");
    let said = refused.iter().take(MOST_REFUSED_SAID);
    let said = said.map(|(kernel, why)| format!("{}: {why:#}", no_handlers(&in_kernel(kernel))));
    let n_more = refused.len().saturating_sub(MOST_REFUSED_SAID);
    let more = (n_more > 0).then(|| counted(n_more as u64, "kernel more", "kernels more"));
    said.chain(more.map(|it| no_handlers(&format!("{it} of that image")))).collect()
}

/// Returns the string id of a function's name.
fn name_of(symbol: &str, running: &mut Running) -> u64 {
    running.state().pipeline.state_mut().names_mut().intern(&xputrace_symbols::demangle(symbol).name).into()
}

fn patches_of(Patched { code, points, kernels, .. }: Patched, running: &mut Running) -> Patches {
    let kernel = |it: PatchedKernel| PatchedKernel { name: name_of(&it.symbol, running), ..it };
    Patches { code: code.cubin.code, points, kernels: kernels.into_iter().map(kernel).collect() }
}

/// Returns what a script needs that patches of machine code can't do, if anything; nothing of one that says the way itself.
pub fn unpatchable(plan: &Plan) -> Option<String> {
    let DeviceWays::Either { unpatchable } = &plan.device_ways else { return None };
    let n_handlers = plan.device_handlers().count();
    let too_many = (n_handlers > MOST_PATCH_HANDLERS).then(|| too_many_for_patches(n_handlers));
    let of_object = plan.object.as_ref().and_then(|it| objects::unpatchable(it, plan));
    unpatchable.clone().or(too_many).or(of_object)
}

/// Checks that a GPU could run a script's device handlers.
///
/// # Errors
/// As [`Twins::of`].
pub fn check(plan: &Plan) -> Result<()> {
    prepared(plan).map(drop)
}

/// Returns why a compiled object can't run on real GPUs, and does not.
pub fn why_not(plan: &Plan) -> Option<String> {
    obstacle(plan).map(|(file, what)| format!("{file} did not run: on a real GPU it can't so far: {what:#}"))
}

/// Returns a compiled object that can't run on real GPUs, with what is in the way.
pub fn refusal(plan: &Plan) -> Option<String> {
    obstacle(plan).map(|(file, what)| format!("{file} so far: {what:#}"))
}

fn obstacle(plan: &Plan) -> Option<(&str, anyhow::Error)> {
    let file = &plan.object.as_ref()?.file;
    Prepared::of(plan).err().map(|it| (file.as_str(), it))
}

/// Takes over what a process's kernels have left in device memory, as far as it was copied. Returns whether they have
/// written records since the last time.
pub fn read(region: &DeviceRegion, extent: Extent, process: ProcessIndex, running: &mut Running) -> bool {
    match take(region, extent, process, running) {
        Ok(has_records) => has_records,
        Err(error) => {
            running.report().note_about_process(&format!("device memory could not be read: {error}"));
            false
        }
    }
}

fn take(region: &DeviceRegion, extent: Extent, process: ProcessIndex, running: &mut Running) -> io::Result<bool> {
    let copies = region.copies(extent)?;
    let (mut has_records, mut queue) = (false, running.queue());
    if region.has_ring() {
        let read = running.state().pipeline.state_mut().ingest_device_records(process, &copies, &mut queue);
        read.iter().try_for_each(|it| region.set_read(*it))?;
        has_records = read.iter().any(|it| it.found_any);
    }
    if extent == Extent::Whole {
        running.state().pipeline.state_mut().set_device_memory(process, copies);
    }
    // Maps that records ask to print have what was copied with them.
    running.settle(queue);
    Ok(has_records)
}

/// Says what became of a process's images and launches, where handlers could not run, and counts contexts of which the end
/// was not read. Returns what is known of its clocks.
pub fn account(
    region: &DeviceRegion,
    way: DeviceWay,
    (process, pid): (ProcessIndex, u32),
    running: &mut Running,
) -> Clocks {
    let has_handlers = running.plan().device_handlers().next().is_some();
    let Ok(counts) = region.counts() else { return Clocks::default() };
    let DeviceCounts { swapped, n_unfinished, failures, unprobed, images, clocks, conditions, programs, .. } = counts;
    let without_arguments = counts.without_arguments;
    running.end_programs(process, programs);
    running.state().losses.add(Loss::DeviceCopyMissing, n_unfinished);
    running.state().losses.add(Loss::DeviceArgumentsUnknown, without_arguments);
    for (condition, ConditionCounts { sampled, unprobed }) in conditions.into_iter().enumerate() {
        running.state().pipeline.add_sampled(condition, sampled, unprobed);
    }
    let hint = patches_hint(running.plan());
    let mut note = |text: String| running.report().note_about_process(&format!("process {pid}: {text}"));
    for (outcome, n) in ImageOutcome::ALL.iter().zip(images).filter(|it| it.1 > 0) {
        missed(*outcome).into_iter().for_each(|what| note(format!("{n} of its images {what}")));
    }
    for code in failures {
        note(match kernel_failure(code) {
            Some(what) => format!(
                "a kernel of the program failed: {what} (CUDA's error {code}). Handlers only access memory of their own, within \
                 bounds that are tested; without them it should fail as well"
            ),
            None => format!("what handlers did could not be read: CUDA's error {code}"),
        });
    }
    // What follows says it of kernels that were loaded before, and the above of other images.
    let has_reasons = unprobed.iter().any(|it| *it > 0) || !has_handlers || has_others(&images);
    if swapped <= programs.launched && !has_reasons {
        note(none_probed(way, images[ImageOutcome::NoPtx as usize], &hint));
    }
    for (why, n) in Unprobed::ALL.iter().zip(unprobed).filter(|it| it.1 > 0) {
        note(format!("{n} launches ran without handlers: {}", ran_original(*why)));
    }
    clocks
}

/// Says what to do for kernels without PTX, if anything can be done.
fn patches_hint(plan: &Plan) -> String {
    match unpatchable(plan) {
        Some(why) => format!(". Others are not patched: {why}"),
        None if plan.object.is_some() => ". --via patch reaches others".into(),
        None => ". For other kernels, let the handlers have #{via: \"patch\"}".into(),
    }
}

/// Whether there are images with kernels that device handlers name: with a twin, or without one for a reason that is said.
fn has_others(images: &[u64]) -> bool {
    let others = |it: &ImageOutcome| !matches!(it, ImageOutcome::NothingToProbe | ImageOutcome::NoPtx);
    ImageOutcome::ALL.iter().zip(images).any(|(outcome, n)| others(outcome) && *n > 0)
}

/// Says that no kernel of a process has handlers; `n_without_ptx` of its images have no PTX.
fn none_probed(way: DeviceWay, n_without_ptx: u64, hint: &str) -> String {
    match way {
        DeviceWay::Twin => format!(
            "none of its images has PTX of a kernel that a device handler names ({n_without_ptx} have no PTX at all): a twin \
             needs it, and kernels have it that nvcc compiles with -arch=sm_90, and Triton's whose cache has it{hint}"
        ),
        DeviceWay::Patch => {
            "none of the modules that it has loaded since then has a kernel that a device handler names: \
             modules that were loaded before can't be patched"
                .to_owned()
        }
    }
}

/// Says why images have no twin; `None` where none was missed, or where that is said of all of them together.
fn missed(outcome: ImageOutcome) -> Option<&'static str> {
    Some(match outcome {
        ImageOutcome::Twinned | ImageOutcome::NothingToProbe | ImageOutcome::NoPtx => return None,
        // Of a kernel alone, which is said of its launches.
        ImageOutcome::NotInFiles | ImageOutcome::Ambiguous | ImageOutcome::Unlike => return None,
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

/// Says what a kernel did after which its context can't be used; `None` for other errors (`CUresult` in CUDA's `cuda.h`).
fn kernel_failure(code: u32) -> Option<&'static str> {
    Some(match code {
        700 => "it accessed an address that isn't there",
        702 => "it took longer than the GPU's driver allows",
        710 => "an assertion did not hold",
        714 => "its call stack was corrupted or too deep",
        715 => "it came to an instruction that is none",
        716 => "it accessed an address that isn't aligned",
        717 => "it accessed an address of the wrong memory space",
        718 => "it jumped to an address that isn't code",
        719 => "it came to a trap, or failed for another reason",
        _ => return None,
    })
}

/// Says why launches ran the original.
fn ran_original(why: Unprobed) -> &'static str {
    match why {
        Unprobed::NotReady => "before their twin was ready",
        Unprobed::Cooperative => "cooperatively, with a grid that their twin may not fit the GPU with",
        Unprobed::NoContext => "in contexts beyond the first 16, or in green ones",
        Unprobed::AttributeRefused => "with an attribute that their twin did not take",
        Unprobed::BlockTooLarge => "with more threads a block than their twin has registers for",
        Unprobed::InGraph => "in graphs, where handlers of patches with `every` or `tag` do not run",
        Unprobed::MayNotFit => "with a grid that the GPU runs all at once, as it may not run their twin's",
        Unprobed::NotInFiles => {
            "their kernels were loaded before xputrace attached, and no file that the process has mapped has them: they were \
             compiled while it ran, as Triton's are. Start the program under xputrace"
        }
        Unprobed::NoPtx => {
            "their kernels were loaded before xputrace attached, and their file has no PTX of them: start the program under \
             xputrace, and let the handlers have #{via: \"patch\"}"
        }
        Unprobed::OlderPtx => {
            "their kernels were loaded before xputrace attached, and the PTX in their file is not that of their code, which may \
             do other things"
        }
        Unprobed::Ambiguous => {
            "their kernels were loaded before xputrace attached, and files of the process have different kernels of their name: \
             start the program under xputrace"
        }
        Unprobed::Unlike => {
            "their kernels were loaded before xputrace attached, and take other parameters than those of their name in the \
             process's files: start the program under xputrace"
        }
        Unprobed::NoTwin => {
            "their kernels were loaded before xputrace attached, and their twin could not be made or loaded"
        }
        Unprobed::NotKnown => {
            "their kernels were loaded before xputrace attached, and the process's files were still searched for them"
        }
        Unprobed::TooManyKernels => "their kernels are more than xputrace can look for in the process's files",
    }
}
