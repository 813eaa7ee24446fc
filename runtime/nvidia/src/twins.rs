//! Code inside kernels of real GPUs: makes the twins and patches that collectors ask for, and says what became of them ([`outcome`]).
//!
//! ```text
//! image ──begin──▶ threads: weave, find a ptxas or a kept cubin ──finished──▶ answer
//! ```

#[cfg(test)]
pub mod bundled;
mod clocks;
pub mod files;
mod made;
mod making;
mod objects;
pub mod outcome;
mod prepared;
mod tally;
mod toolkit;
mod triton;
mod workshop;

pub use made::{Requester, TwinResult};
pub use making::no_compiler;
pub use toolkit::cache;

use anyhow::{Context, Result};
use made::{CompiledPatches, CompiledTwin, CompiledTwins, TwinCode, TwinOutcome, TwinRequest};
use making::{Making, in_kernel};
use prepared::{Prepared, prepared, too_many_for_patches};
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tally::Tally;
use workshop::Workshop;
use xputrace_bytecode::BpfMapId;
use xputrace_linux::Linux;
use xputrace_model::object::Object;
use xputrace_model::plan::{Condition, DeviceWay, DeviceWays, Plan};
use xputrace_pipeline::{DeviceLayout, Turned};
use xputrace_render::counted;
use xputrace_rendezvous::{Clocks, DeviceBlock, DeviceRegion, LoadedImage};
use xputrace_wire::device::{ArrayPlace, DeviceCode, MOST_PATCH_HANDLERS, PatchedKernel, Patches, Woven};

/// Kernels of an image of which a note says why they have no twin.
const MOST_REFUSED_SAID: usize = 8;

/// What is made of a script's device handlers.
pub struct Twins {
    making: Arc<Making>,
    workshop: Workshop<TwinRequest, TwinResult>,
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
    ///
    /// # Errors
    /// A note that says what failed.
    pub fn switch(&self, region: &DeviceRegion, switches: &Turned) -> Result<(), String> {
        let switched = region.switch(&self.conditions, |it| switches.is_on(it));
        switched.map_err(|error| format!("device handlers could not be enabled and disabled: {error}"))
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
    pub fn begin(&self, image: LoadedImage, requester: Requester) {
        let is_long = image.is_kernel();
        let request = TwinRequest { image, requester };
        // Nobody waits for it, but for the others.
        if is_long { self.workshop.begin_long(request) } else { self.workshop.begin(request) }
    }

    /// Returns what was made since the last call, if anything.
    pub fn finished(&mut self) -> Option<TwinResult> {
        self.workshop.finished()
    }

    /// Returns a descriptor that is readable when something was made.
    pub fn fd(&self) -> RawFd {
        self.workshop.fd()
    }

    /// Returns the answer to the process that waits for a twin; `name` gives the string id of a kernel's name.
    pub fn answer(&mut self, result: TwinResult, name: &mut dyn FnMut(&str) -> u64) -> TwinAnswer {
        let TwinResult { requester: Requester { pid, .. }, outcome, .. } = result;
        match outcome {
            Ok(TwinOutcome::Twins(twins)) => self.answer_twins(twins, pid, name),
            Ok(TwinOutcome::Patches(patches)) => {
                let mut notes = refusals(&patches.refused, pid);
                notes.extend(self.tally.add_patches(&patches.code, self.making.takes_times));
                let probed = patches.kernels.iter().map(|it| it.symbol.clone()).collect();
                TwinAnswer {
                    notes,
                    probed,
                    ..TwinAnswer::of(Woven::Code(DeviceCode::Patches(patches_of(patches, name))))
                }
            }
            Ok(TwinOutcome::Programs(programs)) => {
                let notes = self.tally.add_programs(&programs.code);
                TwinAnswer { notes, ..TwinAnswer::of(Woven::Code(DeviceCode::Programs(self.making.sent(programs)))) }
            }
            Ok(TwinOutcome::NoPrograms(why)) => {
                TwinAnswer { why_no_programs: Some(why), ..TwinAnswer::of(Woven::Failed) }
            }
            Ok(TwinOutcome::Not(woven)) => TwinAnswer::of(woven),
            Err(error) => {
                let notes = vec![format!("process {pid}: device handlers do not run in some kernels: {error:#}")];
                TwinAnswer { notes, ..TwinAnswer::of(Woven::Failed) }
            }
        }
    }

    fn answer_twins(
        &mut self,
        CompiledTwins { twins, refused }: CompiledTwins,
        pid: u32,
        name: &mut dyn FnMut(&str) -> u64,
    ) -> TwinAnswer {
        let mut notes = refusals(&refused, pid);
        if twins.is_empty() {
            return TwinAnswer { notes, ..TwinAnswer::of(Woven::Failed) };
        }
        notes.extend(twins.iter().flat_map(|it| self.tally.add(&it.code, &it.text.kernels)));
        let probed = twins.iter().flat_map(|it| &it.text.kernels).cloned().collect();
        let twin = |CompiledTwin { text, code }: CompiledTwin| {
            let code = match code {
                TwinCode::Cubin(it) => it.cubin.code,
                TwinCode::Text(_) => text.as_code(),
            };
            text.with_code(code, |symbol| name_of(symbol, name))
        };
        let code = DeviceCode::Twins(twins.into_iter().map(twin).collect());
        TwinAnswer { notes, probed, ..TwinAnswer::of(Woven::Code(code)) }
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
    pub fn notes(&self) -> Vec<String> {
        let clocks = if self.reads_clock { self.clocks } else { Clocks::default() };
        self.tally.notes().into_iter().chain(clocks::notes(clocks, self.object.is_some())).collect()
    }
}

/// What a process gets that waits for a twin, and what comes of that.
#[derive(Debug)]
pub struct TwinAnswer {
    pub woven: Woven,
    /// What the user should know.
    pub notes: Vec<String>,
    /// Symbols of the kernels that have handlers now.
    pub probed: Vec<String>,
    /// Why the programs can't run there that were given to the process.
    pub why_no_programs: Option<String>,
}

impl TwinAnswer {
    /// Returns an answer of which nothing is to be said.
    fn of(woven: Woven) -> Self {
        TwinAnswer { woven, notes: Vec::new(), probed: Vec::new(), why_no_programs: None }
    }
}

impl Drop for Twins {
    fn drop(&mut self) {
        self.making.is_over.store(true, Ordering::Release);
    }
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
fn name_of(symbol: &str, name: &mut dyn FnMut(&str) -> u64) -> u64 {
    name(&xputrace_symbols::demangle(symbol).name)
}

fn patches_of(
    CompiledPatches { code, points, kernels, .. }: CompiledPatches,
    name: &mut dyn FnMut(&str) -> u64,
) -> Patches {
    let kernel = |it: PatchedKernel| PatchedKernel { name: name_of(&it.symbol, name), ..it };
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
