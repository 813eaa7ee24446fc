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
mod tally;
mod toolkit;
mod triton;
mod workshop;

pub use making::{Asker, Done, no_compiler};
pub use toolkit::cache;

use crate::run::Running;
use crate::run::report::counted;
use anyhow::{Context, Result, anyhow, bail};
use making::{Code, Made, MadeTwins, Making, Outcome, OwnLaunch, Patched, Task, in_kernel};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tally::Tally;
use workshop::Workshop;
use xputrace_bytecode::{BpfMapId, Home, MapKind};
use xputrace_linux::Linux;
use xputrace_model::diagnostic::Site;
use xputrace_model::loss::Loss;
use xputrace_model::object::{DirectLaunch, Object, ObjectHome};
use xputrace_model::plan::{Condition, DeviceEvent, DeviceHandler, DeviceWay, DeviceWays, Plan};
use xputrace_model::schema::Unit;
use xputrace_render::human;
use xputrace_tracer::rendezvous::{Clocks, ConditionCounts, DeviceBlock, DeviceCounts, DeviceRegion, Image, Woven};
use xputrace_tracer::{DeviceLayout, DeviceSite, ProcessIndex, Turned};
use xputrace_twins::{GpuMap, Handler, HandlerSite, Maker, MakerError, Origin};
use xputrace_wire::device::{
    ArrayPlace, Extent, ImageOutcome, MOST_ARRAYS, MOST_BLOCK_BYTES, MOST_PATCH_HANDLERS, PatchedKernel, Patches,
    Unprobed,
};

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
        let conditions = plan.conditions();
        for it in plan.device_handlers() {
            let Some(program) = it.program else { continue };
            let condition = conditions.iter().position(|known| Some(*known) == it.condition).map(|it| it as u8);
            handlers.push(Handler { place: it.place, program: plan.image.programs[program].clone(), condition });
            kernels.push(it.kernels.clone());
            sites.push(it.site);
            programs.push(program);
        }
        let mut launches = Vec::new();
        for DirectLaunch { probe, program, shape } in plan.object.iter().flat_map(|it| &it.launches) {
            launches.push(OwnLaunch { handler: handlers.len(), shape: *shape });
            // A place that no kernel is asked about: it has no pattern.
            let program_of_it = plan.image.programs[*program].clone();
            handlers.push(Handler { place: DeviceEvent::Entry, program: program_of_it, condition: None });
            sites.push(plan.probes[probe.index()].site);
            programs.push(*program);
        }
        if handlers.is_empty() {
            return Ok(None);
        }
        if plan.device_ways == DeviceWays::One(DeviceWay::Patch) && handlers.len() > MOST_PATCH_HANDLERS {
            bail!(too_many_for_patches(handlers.len()));
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
        refuse_oversized(plan, &maker)?;
        let n_shared = maker.arrays().len();
        if n_shared > MOST_ARRAYS {
            bail!("{n_shared} arrays are shared by a GPU and Linux: {MOST_ARRAYS} can be");
        }
        let place = |handler: usize, insn| match &plan.object {
            Some(_) => objects::line(&plan.image.programs[programs[handler]], insn),
            None => sites[handler],
        };
        let site = |it: &HandlerSite| device_site(it, origin, place(it.handler, it.insn));
        let layout = DeviceLayout {
            maps: maker.maps().to_vec(),
            arena: maker.arena().clone(),
            sites: maker.sites().iter().map(site).collect(),
        };
        let making = Arc::new(Making::new(maker, plan, kernels, launches));
        let of_threads = making.clone();
        let workshop = Workshop::new(move |task| of_threads.make(task));
        let workshop = workshop.context("cannot start the threads that make twins of kernels")?;
        let object = plan.object.clone();
        let caution = object.as_ref().and_then(|it| objects::changed_on_both_sides(it, plan));
        let layout = Arc::new(layout);
        Ok(Some(Twins {
            making,
            workshop,
            layout,
            conditions,
            tally: Tally::default(),
            clocks: Clocks::default(),
            reads_clock: false,
            object,
            caution,
        }))
    }

    /// Says to a process which handlers are enabled now.
    pub fn switch(&self, region: &DeviceRegion, switches: &Turned, running: &mut Running) {
        if let Err(error) = region.switch(&self.conditions, |it| switches.is_on(it)) {
            running.report().note(&format!("device handlers could not be enabled and disabled: {error}"));
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
        let (ring, reads_clock, conditions) = (maker.ring(), maker.reads_clock(), self.conditions.clone());
        let has_programs = !self.making.launches.is_empty();
        Ok(DeviceBlock { initial, ring, arrays, reads_clock, conditions, has_programs })
    }

    /// Returns what the user should know of what runs in kernels, if anything.
    pub fn caution(&self) -> Option<&str> {
        self.caution.as_deref()
    }

    /// Has the twin of an image made that a process has loaded.
    pub fn begin(&self, image: Image, asker: Asker) {
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
        let mut note = |text: &str| running.report().note(text);
        let MadeTwins { made, refused } = match made {
            Ok(Outcome::Made(twins)) => twins,
            Ok(Outcome::Patched(patched)) => {
                self.tally.add_patches(&patched.code, self.making.takes_times).iter().for_each(|it| note(it));
                let kernels = patched.kernels.iter().map(|it| it.symbol.as_str());
                running.state().pipeline.has_twins(asker.process, kernels);
                return Woven::Patches(patches_of(patched, running));
            }
            Ok(Outcome::Programs(made)) => {
                self.tally.add_programs(&made.code).iter().for_each(|it| note(it));
                return Woven::Programs(self.making.sent(made));
            }
            Ok(Outcome::NoPrograms(why)) => {
                running.take_programs_back(why);
                return Woven::Failed;
            }
            Ok(Outcome::Nothing) => return Woven::Nothing,
            Ok(Outcome::NoPtx) => return Woven::NoPtx,
            Ok(Outcome::OlderPtx) => return Woven::OlderPtx,
            Ok(Outcome::Ambiguous) => return Woven::Ambiguous,
            Ok(Outcome::NotInFiles) => return Woven::NotInFiles,
            Err(error) => {
                note(&format!("process {}: device handlers do not run in some kernels: {error:#}", asker.pid));
                return Woven::Failed;
            }
        };
        for (kernel, why) in refused.iter().take(MOST_REFUSED_SAID) {
            note(&format!("process {}: device handlers do not run in {}: {why:#}", asker.pid, in_kernel(kernel)));
        }
        if let Some(n_more @ 1..) = refused.len().checked_sub(MOST_REFUSED_SAID) {
            let kernels = counted(n_more as u64, "kernel more", "kernels more");
            note(&format!("process {}: device handlers do not run in {kernels} of that image", asker.pid));
        }
        if made.is_empty() {
            return Woven::Failed;
        }
        let said: Vec<String> = made.iter().flat_map(|it| self.tally.add(&it.code, &it.text.kernels)).collect();
        said.iter().for_each(|it| note(it));
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

/// Returns the string id of a function's name.
fn name_of(symbol: &str, running: &mut Running) -> u64 {
    running.state().pipeline.state_mut().names_mut().intern(&xputrace_symbols::demangle(symbol).name).into()
}

fn patches_of(Patched { code, points, kernels }: Patched, running: &mut Running) -> Patches {
    let kernel = |it: PatchedKernel| PatchedKernel { name: name_of(&it.symbol, running), ..it };
    Patches { code: code.cubin.code, points, kernels: kernels.into_iter().map(kernel).collect() }
}

fn too_many_for_patches(n_handlers: usize) -> String {
    format!("patches of machine code can have {MOST_PATCH_HANDLERS} handlers, and the script has {n_handlers}")
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
    Twins::of(plan).map(drop)
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
    Twins::made(plan).err().map(|it| (file.as_str(), it))
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
    let is_outer = |at: usize| {
        let map = plan.object.as_ref().and_then(|it| it.maps.get(at));
        map.is_some_and(|it| it.home == ObjectHome::Shared && it.kind == MapKind::Array)
    };
    let of = |(at, spec)| GpuMap { spec, has_parts: is_merged(BpfMapId::at(at)), is_outer: is_outer(at) };
    let maps = plan.image.maps.iter().enumerate();
    maps.map(|it| (it.1.home == Home::Gpu || is_outer(it.0)).then(|| of(it))).collect()
}

/// Refuses maps that no GPU is given memory for.
fn refuse_oversized(plan: &Plan, maker: &Maker) -> Result<()> {
    let n_bytes = maker.arena().n_bytes();
    if n_bytes <= MOST_BLOCK_BYTES {
        return Ok(());
    }
    let bytes_of = |map: usize| {
        let parts = maker.arena().parts(map).into_iter().flat_map(|it| [&it.states, &it.keys, &it.values]);
        parts.map(|it| it.end - it.start).sum::<u64>()
    };
    let largest = (0..maker.maps().len()).max_by_key(|map| bytes_of(*map)).unwrap_or_default();
    let name = plan.tables.iter().find(|it| it.storage.gpu() == Some(BpfMapId::at(largest))).map(|it| &it.name);
    let name = name.unwrap_or(&plan.image.maps[largest].name);
    let line = user_of(plan, BpfMapId::at(largest)).map_or_else(String::new, |it| format!("{it}: "));
    bail!(
        "{line}the maps on the GPU need {}, and at most {} can be had. The largest is `{name}` with {}: give it fewer elements, \
         map(#{{name: \"{}\", size: …}})",
        bytes(n_bytes),
        bytes(MOST_BLOCK_BYTES),
        bytes(bytes_of(largest)),
        name.trim_start_matches('@')
    )
}

fn bytes(n: u64) -> String {
    human(i64::try_from(n).unwrap_or(i64::MAX), Unit::Bytes)
}

/// Says which handler uses a map: `script.rhai:3`.
fn user_of(plan: &Plan, map: BpfMapId) -> Option<String> {
    let uses = |it: &DeviceHandler<'_>| {
        it.program.is_some_and(|at| plan.image.programs[at].map_refs.iter().any(|used| used.1 == map))
    };
    let site = plan.device_handlers().find(uses)?.site;
    Some(format!("{}:{}", plan.sources.files.get(site.file.0 as usize)?.name, site.line))
}

/// What a site counts and writes. Handlers of scripts count in a map what their ring had no room for.
fn device_site(site: &HandlerSite, origin: Origin, at: Site) -> DeviceSite {
    let loss = match (site.record, origin) {
        (None, _) => Some(Loss::InstructionLimit),
        (Some(_), Origin::Object { .. }) => Some(Loss::DeviceRingFull),
        (Some(_), Origin::Script) => None,
    };
    DeviceSite { loss, record: site.record, at }
}

/// Takes over what a process's kernels have left in device memory, as far as it was copied. Returns whether they have
/// written records since the last time.
pub fn read(region: &DeviceRegion, extent: Extent, process: ProcessIndex, running: &mut Running) -> bool {
    match take(region, extent, process, running) {
        Ok(has_records) => has_records,
        Err(error) => {
            running.report().note(&format!("device memory could not be read: {error}"));
            false
        }
    }
}

fn take(region: &DeviceRegion, extent: Extent, process: ProcessIndex, running: &mut Running) -> io::Result<bool> {
    let copies = region.copies(extent)?;
    let (mut has_records, mut queue) = (false, running.queue());
    if region.has_ring() {
        let read = running.state().pipeline.state_mut().take_device_records(process, &copies, &mut queue);
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
    running.end_programs(process, programs);
    running.state().losses.add(Loss::DeviceCopyMissing, n_unfinished);
    for (condition, ConditionCounts { sampled, unprobed }) in conditions.into_iter().enumerate() {
        running.state().pipeline.add_sampled(condition, sampled, unprobed);
    }
    let hint = patches_hint(running.plan());
    let mut note = |text: String| running.report().note(&format!("process {pid}: {text}"));
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
