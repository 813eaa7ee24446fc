//! What is patched, and what launches give to patches.
//!
//! A module's thread waits for the tracer's answer; launches look their function up without a lock. The API wants patching done
//! by one thread at a time: that is what `at_a_time` is for. And a context ends once the worker does not use it (`in_use`).

use super::arguments::{self, Slots};
use super::clock::{ContextClock, CreatedClock, FirstMeasurement, write_word};
use super::functions::{Functions, LaunchData, ModuleData, NodeLaunchData, SUCCESS, instruction};
use super::launches::{self, Launching, RecordTiming, context_of};
use super::places::Places;
use super::times::{Awaited, NodeId, Timing};
use crate::cupti::Handle;
use crate::cupti::driver::Driver;
use crate::cupti::twins::choosing::{AskLaunch, KernelNumber, Kernels, Off, count_unprobed};
use crate::cupti::twins::table::{New, TwinKey, TwinTable};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::sleep;
use std::time::Instant;
use xputrace_agent::clock::realtime_now;
use xputrace_agent::device::{CodeAt, DeviceRegion, LAST_COPY_WITHIN, LOOKS_EVERY, TWIN_WITHIN};
use xputrace_agent::launch;
use xputrace_agent::{Agent, Context};
use xputrace_unwind::Pushed;
use xputrace_wire::device::{
    CHOICES, Choice, CopyExtent, ENABLED, ImageOutcome, MOST_CONTEXTS, Parameters, PatchedKernel, Patches, Unprobed,
    kernel_words, twin_symbol,
};
use xputrace_wire::message::demand;
use xputrace_wire::record::UNKNOWN;
use xputrace_wire::times;

/// Places for words of a context's kernels.
const MOST_PLACES: usize = 1 << 16;

/// All that is patched in a process.
#[derive(Debug)]
pub(super) struct Patching {
    is_off: AtomicBool,
    /// Whether launches wait for timers.
    pub(super) has_new_clocks: AtomicBool,
    at_a_time: Mutex<()>,
    /// Held by whoever uses a context from another thread than those of its launches, or ends it. Taken before `state`.
    pub(super) in_use: Mutex<()>,
    state: Mutex<PatchingState>,
    /// The kernels that were launched, by `CUfunction`: addresses of [`Kernel`]s, which are never freed.
    launched: TwinTable,
    /// What launches of kernels are counted in whose handlers have conditions.
    kernels: Kernels,
}

/// A context that is there.
#[derive(Debug)]
struct Created {
    device: u32,
    clock: CreatedClock,
}

#[derive(Debug, Default)]
pub(super) struct PatchingState {
    /// In the order of their slots.
    pub(super) contexts: Vec<Patched>,
    /// Contexts that are there, patched or not.
    created: HashMap<usize, Created>,
    /// Patched modules.
    modules: HashMap<usize, PatchedModule>,
    /// Modules of the functions in the table.
    functions: HashMap<usize, usize>,
    /// Numbers of kernels with conditions whose modules are gone.
    free_numbers: Vec<KernelNumber>,
    /// Texts that are kept, and kernels: a module that is loaded again has the same ones.
    names: HashMap<String, &'static CStr>,
    known: HashMap<KernelId, &'static Kernel>,
}

/// What tells a [`Kernel`] from others: its slot, device and words, what it has but for the place that its words say, and its symbol.
type KernelId = (Option<usize>, u32, u64, WithHandlers, &'static CStr);

/// A patched module.
#[derive(Debug)]
struct PatchedModule {
    slot: usize,
    /// Those with handlers.
    kernels: HashMap<String, WithHandlers>,
    places: Range<usize>,
}

/// What a kernel with handlers has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct WithHandlers {
    /// Its first place.
    place: usize,
    conditions: Choice,
    number: KernelNumber,
    /// A bit for each choice that lets handlers run.
    running: u8,
    /// String id of its name.
    name: u64,
    /// By choice: a bit for each handler that runs.
    handlers: [u64; CHOICES],
    /// Those that handlers read.
    parameters: Parameters,
    /// A bit for each choice whose handlers read any.
    reading: u8,
}

impl WithHandlers {
    /// What a kernel has that has none.
    fn none(place: usize) -> Self {
        WithHandlers::of(&PatchedKernel::default(), place, 0)
    }

    fn of(kernel: &PatchedKernel, place: usize, number: KernelNumber) -> Self {
        let PatchedKernel { name, conditions, handlers, parameters, reading, .. } = *kernel;
        let running = (0..n_choices(conditions)).filter(|of| handlers[*of] != 0);
        let running = running.fold(0, |all, it| all | 1 << it);
        WithHandlers { place, conditions, number, running, name, handlers, parameters, reading }
    }

    fn reads_arguments(&self) -> bool {
        self.parameters.iter().any(|it| it.bytes > 0)
    }
}

/// A kernel that was launched.
#[derive(Debug)]
struct Kernel {
    /// The slot of its context, if that has patched modules.
    slot: Option<usize>,
    device: u32,
    /// The address of its words, a place for each [`Taking`] and choice; 0 if it is not patched.
    words: u64,
    /// That of its context's block.
    block: u64,
    with: WithHandlers,
    /// Where its launches put parameters that handlers read, if they read any.
    arguments: Option<&'static Slots>,
    /// Where its times go, if it takes any.
    timing: Option<&'static Timing>,
    /// What its first launches wait for, if its times are read.
    clock: Option<Arc<FirstMeasurement>>,
    /// What records call it where its handlers run, and where none does.
    twin: &'static CStr,
    symbol: &'static CStr,
}

/// What times a launch takes, by the place of its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taking {
    None,
    OfLaunch,
    OfNode,
}

impl Taking {
    const ALL: [Taking; 3] = [Taking::None, Taking::OfLaunch, Taking::OfNode];
}

impl Kernel {
    /// Whether handlers run where these conditions hold.
    fn runs(&self, choice: Choice) -> bool {
        self.with.running >> choice.holding & 1 == 1
    }

    /// Returns the address of its words for a launch; 0 if patches are to do nothing.
    fn address(&self, taking: Taking, choice: Choice) -> u64 {
        if self.words == 0 || taking == Taking::None && !self.runs(choice) {
            return 0;
        }
        let place = taking as usize * n_choices(self.with.conditions) + usize::from(choice.holding);
        self.words + (place * kernel_words::BYTES) as u64
    }

    /// Whether handlers that run where these conditions hold are to have parameters.
    fn has_arguments(&self, choice: Choice) -> bool {
        self.arguments.is_some() && self.with.reading >> choice.holding & 1 == 1
    }

    /// Has patches find the parameters of a launch; returns the address of its own words. `None` if they can't.
    ///
    /// # Safety
    /// The calling thread launches the kernel, in this stream as the API calls it.
    unsafe fn give_arguments(
        &self,
        functions: &Functions,
        taking: Taking,
        choice: Choice,
        stream: Handle,
    ) -> Option<u64> {
        let WithHandlers { name, handlers, parameters, .. } = &self.with;
        let words = words(self.block, *name, handlers[usize::from(choice.holding)], taking, self.timing);
        // SAFETY: the caller promises that the calling thread launches this kernel, in this stream; the tracer promises
        // that the parameters are those that the kernel's code has.
        unsafe { self.arguments?.give(functions, &words, parameters, stream) }
    }

    /// Returns a launch of it whose times are to come, by the API's own handle of the stream: all threads may call theirs the same.
    fn awaited(&self, kernel: xputrace_wire::record::Kernel, stream: Handle, choice: Choice) -> Awaited {
        Awaited { kernel, symbol: self.called(choice), since: realtime_now(), stream: stream as usize }
    }

    /// Returns what its record calls it.
    fn called(&self, choice: Choice) -> &'static CStr {
        if self.runs(choice) { self.twin } else { self.symbol }
    }
}

/// What patches were told of a launch.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// The address of their words; 0 if they do nothing.
    words: u64,
    /// The conditions that hold.
    choice: Choice,
    /// Whether they take the kernel's times.
    is_timed: bool,
}

impl Told {
    fn is_told(&self) -> bool {
        self.words != 0
    }
}

/// A context with patched modules.
#[derive(Clone, Debug)]
pub(super) struct Patched {
    /// Null once it has ended.
    context: usize,
    pub(super) block: u64,
    /// Where the words of kernels are. The first places are those of kernels that have no handlers.
    words: u64,
    places: Places,
    /// Where times go, if any are taken.
    pub(super) timing: Option<&'static Timing>,
    /// Where launches put parameters, if handlers read any.
    arguments: Option<&'static Slots>,
    /// Of the context's default stream, as the API calls it.
    default_stream: usize,
    /// Likewise ours, made by the worker.
    own_stream: Option<OwnStream>,
    /// Whether what [`Patching::prepare`] writes by the default stream is surely there.
    is_prepared: bool,
    pub(super) clock: ContextClock,
}

/// A stream of ours, which waits for no other.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnStream {
    /// As the API calls it.
    pub(super) api: usize,
    /// As the driver does.
    driver: usize,
}

impl Patched {
    fn is_alive(&self) -> bool {
        self.context != 0
    }

    /// Returns the stream for a module's words. Ours waits for nothing. A module that comes before the context is prepared waits
    /// for that, too.
    fn stream(&self) -> usize {
        self.own_stream.filter(|_| self.is_prepared).map_or(self.default_stream, |it| it.api)
    }

    fn address(&self, place: usize) -> u64 {
        self.words + (place * kernel_words::BYTES) as u64
    }

    /// Returns a kernel's words, one place after another.
    fn words_of(&self, kernel: &PatchedKernel) -> Vec<u8> {
        let choices = &kernel.handlers[..n_choices(kernel.conditions)];
        let all = Taking::ALL.into_iter().take(self.n_takings()).flat_map(|it| choices.iter().map(move |of| (it, *of)));
        all.flat_map(|(taking, handlers)| words(self.block, kernel.name, handlers, taking, self.timing)).collect()
    }

    fn n_takings(&self) -> usize {
        if self.timing.is_some() { Taking::ALL.len() } else { 1 }
    }

    /// Returns how many places a kernel has.
    fn places_of(&self, kernel: &PatchedKernel) -> usize {
        self.n_takings() * n_choices(kernel.conditions)
    }
}

/// The memory that a context gets, by offsets: its block is first.
#[derive(Clone, Copy, Debug)]
struct BlockMemory {
    /// The words of kernels.
    words_at: usize,
    /// Their times, if any are taken.
    times_at: Option<usize>,
    /// What launches give, if handlers read parameters.
    arguments_at: Option<usize>,
    bytes: usize,
}

impl BlockMemory {
    fn of(region: &DeviceRegion, agent: &Agent) -> Self {
        let words_at = region.block_bytes();
        let mut bytes = words_at + MOST_PLACES * kernel_words::BYTES;
        let mut part = |demanded: u64, part_bytes: usize| {
            let at = agent.wants(demanded).then(|| bytes.next_multiple_of(times::group::LINE_BYTES));
            bytes = at.map_or(bytes, |it| it + part_bytes);
            at
        };
        let times_at = part(demand::PATCHED_KERNELS, times::BYTES);
        let arguments_at = part(demand::ARGUMENTS, arguments::BYTES);
        BlockMemory { words_at, times_at, arguments_at, bytes }
    }

    /// Allocates it, and has it filled with what it begins with; returns its address.
    ///
    /// # Safety
    /// `context` is alive, `stream` one of its streams.
    unsafe fn make(
        self,
        functions: &Functions,
        region: &DeviceRegion,
        context: Handle,
        stream: Handle,
    ) -> Result<u64, ImageOutcome> {
        let mut block: Handle = null_mut();
        // SAFETY: the caller promises a context that is alive and a stream of it; a live pointer, and initial bytes
        // that are as long as the block.
        unsafe {
            checked((functions.alloc)(context, &mut block, self.bytes))?;
            checked((functions.copy_to_device)(block, region.initial().cast(), region.block_bytes(), stream))?;
            if let Some(at) = self.times_at {
                checked((functions.fill)(block.byte_add(at), 0, times::BYTES, stream))?;
            }
        }
        Ok(block as u64)
    }
}

/// The launch that the calling thread makes, of which its tag alone is known.
struct Tagged;

impl AskLaunch for Tagged {
    fn tag(&self) -> Option<i64> {
        launch::tag()
    }

    fn stream(&self) -> Option<u32> {
        None
    }
}

/// Returns how many choices conditions leave.
fn n_choices(conditions: Choice) -> usize {
    1 << conditions.conditions.iter().flatten().count()
}

fn checked(answer: u32) -> Result<(), ImageOutcome> {
    if answer == SUCCESS { Ok(()) } else { Err(ImageOutcome::NotLoaded) }
}

pub(super) fn locked<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Patching {
    /// # Errors
    /// There is no memory.
    pub(super) fn new() -> std::io::Result<Self> {
        let (launched, kernels) = (TwinTable::new()?, Kernels::new()?);
        Ok(Patching {
            is_off: AtomicBool::new(false),
            has_new_clocks: AtomicBool::new(false),
            at_a_time: Mutex::default(),
            in_use: Mutex::default(),
            state: Mutex::default(),
            launched,
            kernels,
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, PatchingState> {
        locked(&self.state)
    }

    /// Has patches do nothing in launches that begin from now on.
    pub(super) fn stop(&self) {
        self.is_off.store(true, Ordering::Release);
    }

    /// `is_timed` says that its timer is about to be measured.
    pub(super) fn context_created(&self, context: Handle, device: u32, is_timed: bool) {
        self.state().created.insert(context as usize, Created { device, clock: CreatedClock::default() });
        if is_timed {
            self.has_new_clocks.store(true, Ordering::Release);
        }
    }

    /// Returns a context by its handle.
    pub(super) fn context_of(&self, context: Handle) -> Context {
        let slot = self.state().contexts.iter().position(|it| it.context == context as usize);
        context_of(slot.unwrap_or(MOST_CONTEXTS), context)
    }

    pub(super) fn device_of(&self, context: Handle) -> Option<u32> {
        self.state().created.get(&(context as usize)).map(|it| it.device)
    }

    /// Copies the block of a context that is about to end, unless the worker is stuck with it.
    pub(super) fn context_ends(&self, functions: &Functions, agent: &'static Agent, context: Handle) {
        let slot = self.state().contexts.iter().position(|it| it.context == context as usize);
        self.state().created.remove(&(context as usize));
        let in_use = self.wait_until_unused();
        let Some(slot) = slot else { return };
        let Patched { default_stream: stream, timing, .. } = self.state().contexts[slot].clone();
        if in_use.is_some() {
            if self.copy(functions, agent, slot, stream, CopyExtent::Whole) {
                agent.note_last_copy(slot);
            }
            timing.into_iter().for_each(|it| it.read(functions, agent, slot, stream as Handle));
        }
        timing.into_iter().for_each(|it| it.give_up(agent));
        let mut state = self.state();
        state.contexts[slot].context = 0;
        // Modules that load later may have the handles of those that were in it.
        let ended: Vec<usize> = state.modules.iter().filter(|it| it.1.slot == slot).map(|it| *it.0).collect();
        ended.into_iter().for_each(|it| self.forget(&mut state, it));
    }

    /// Waits until the worker uses no context; `None` if it does not stop to. The program has no time limit of its own.
    fn wait_until_unused(&self) -> Option<MutexGuard<'_, ()>> {
        let until = Instant::now() + LAST_COPY_WITHIN;
        loop {
            match self.in_use.try_lock() {
                Ok(unused) => return Some(unused),
                Err(TryLockError::Poisoned(unused)) => return Some(unused.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
                Err(TryLockError::WouldBlock) => sleep(LOOKS_EVERY),
            }
        }
    }

    pub(super) fn module_ends(&self, module: Handle) {
        self.forget(&mut self.state(), module as usize);
    }

    /// Forgets a module, whose kernels run no more.
    fn forget(&self, state: &mut PatchingState, module: usize) {
        if let Some(PatchedModule { slot, places, kernels }) = state.modules.remove(&module) {
            state.contexts[slot].places.give_back(places);
            state.give_back(kernels.into_values().map(|it| it.number));
        }
        state.functions.retain(|function, of| {
            let is_kept = *of != module;
            if let Some(key) = TwinKey::new(*function as u64, 0).filter(|_| !is_kept) {
                self.launched.remove(key);
            }
            is_kept
        });
    }

    /// Patches a module that was just loaded, if it has kernels with handlers.
    ///
    /// # Errors
    /// Why it is not patched.
    pub(super) fn patch(
        &self,
        functions: &Functions,
        agent: &'static Agent,
        module: &ModuleData,
    ) -> Result<(), ImageOutcome> {
        if module.cubin.is_null() || module.cubin_size == 0 {
            return Err(ImageOutcome::NoPortableCode);
        }
        let device = self.device_of(module.context).unwrap_or(UNKNOWN);
        if device != UNKNOWN && !agent.is_device_selected(device) {
            return Err(ImageOutcome::NothingToProbe);
        }
        let patches = agent.ask_for_patches(CodeAt::Memory(module.cubin as u64), Instant::now() + TWIN_WITHIN)?;
        let slot = {
            let _one_at_a_time = locked(&self.at_a_time);
            let slot = self.prepare(functions, agent, module.context, device, &patches)?;
            for point in &patches.points {
                let name = CString::new(point.symbol()).map_err(|_| ImageOutcome::NotLoaded)?;
                // SAFETY: a module that is loaded, and a C string.
                checked(unsafe { (functions.patch_instructions)(instruction(*point), module.module, name.as_ptr()) })?;
            }
            // SAFETY: as above.
            checked(unsafe { (functions.patch_module)(module.module) })?;
            slot
        };
        self.write_words(functions, slot, module.module as usize, &patches.kernels)
    }

    /// Gives a context its block and its patches, once; returns its slot. What it writes is there when [`Patching::write_words`] has
    /// waited.
    fn prepare(
        &self,
        functions: &Functions,
        agent: &Agent,
        context: Handle,
        device: u32,
        patches: &Patches,
    ) -> Result<usize, ImageOutcome> {
        let (known, slot) = {
            let state = self.state();
            (state.contexts.iter().position(|it| it.context == context as usize), state.contexts.len())
        };
        if let Some(known) = known {
            return Ok(known);
        }
        if slot == MOST_CONTEXTS {
            agent.count_unprobed(Unprobed::NoContext, 1);
            return Err(ImageOutcome::TableFull);
        }
        let region = agent.device_region().ok_or(ImageOutcome::NotLoaded)?;
        let memory = BlockMemory::of(region, agent);
        let mut stream: Handle = null_mut();
        // SAFETY: a context that is alive, and a live pointer.
        unsafe {
            // The code is copied: it comes again with each module. First, since a context that refuses it is tried again with the
            // next module, and nothing frees its memory.
            checked((functions.add_patches)(patches.code.as_ptr().cast(), context))?;
            checked((functions.stream_handle)(context, null_mut(), &mut stream))?;
        }
        // SAFETY: as above, and a stream of it.
        let block = unsafe { memory.make(functions, region, context, stream) }?;
        let clock_at = region.place_of_clock_offset();
        let (clock, error_nanos) =
            ContextClock::new(self.state().clock_of(context as usize).map(|it| it.timer), clock_at.is_some());
        if clock.first().is_some() {
            self.has_new_clocks.store(true, Ordering::Release);
        }
        if let Some(at) = clock_at {
            let (to, offset) = ((block + at) as *mut c_void, clock.written_nanos());
            // SAFETY: a word of the block; the bytes are copied before this returns.
            checked(unsafe { (functions.copy_to_device)(to, offset.to_le_bytes().as_ptr().cast(), 8, stream) })?;
            region.tell_clock(slot, offset, error_nanos);
        }
        let told = &region.control().slots[slot];
        told.context.store(context_of(slot, context).id, Ordering::Release);
        told.device.store(device, Ordering::Release);
        region.control().contexts.fetch_max(slot as u32 + 1, Ordering::AcqRel);
        self.state().contexts.push(Patched {
            context: context as usize,
            block,
            words: block + memory.words_at as u64,
            places: Places::default(),
            timing: memory.times_at.map(|at| &*Box::leak(Box::new(Timing::new(block + at as u64)))),
            arguments: memory.arguments_at.map(|at| &*Box::leak(Box::new(Slots::new(block + at as u64)))),
            default_stream: stream as usize,
            own_stream: None,
            is_prepared: false,
            clock,
        });
        Ok(slot)
    }

    /// Writes the words of a module's kernels that have handlers, waits until they are there, and notes the module.
    fn write_words(
        &self,
        functions: &Functions,
        slot: usize,
        module: usize,
        kernels: &[PatchedKernel],
    ) -> Result<(), ImageOutcome> {
        // Those of kernels without handlers come first, with each module again: they are the same.
        let all: Vec<PatchedKernel> =
            std::iter::once(PatchedKernel::default()).chain(kernels.iter().cloned()).collect();
        let (context, module_of) = self.take_places(slot, &all).ok_or(ImageOutcome::TableFull)?;
        let bytes: Vec<u8> = all.iter().flat_map(|it| context.words_of(it)).collect();
        let (at, stream) = (context.address(module_of.places.start), context.stream() as Handle);
        // SAFETY: within the memory that was allocated for them.
        let is_written = checked(unsafe {
            match (functions.copy_to_device)(at as *mut c_void, bytes.as_ptr().cast(), bytes.len(), stream) {
                SUCCESS => (functions.wait_for_stream)(stream),
                refused => refused,
            }
        });
        let mut state = self.state();
        // Whatever had this handle is gone.
        self.forget(&mut state, module);
        state.modules.insert(module, module_of);
        match is_written {
            Ok(()) => state.contexts[slot].is_prepared = true,
            Err(_) => self.forget(&mut state, module),
        }
        is_written
    }

    /// Takes places and numbers for a module's kernels; returns the context, too. `None` if there are not so many.
    fn take_places(&self, slot: usize, kernels: &[PatchedKernel]) -> Option<(Patched, PatchedModule)> {
        let mut state = self.state();
        let conditions: Vec<Choice> = kernels.iter().map(|it| it.conditions).collect();
        let numbers = state.number(&self.kernels, &conditions)?;
        let context = &mut state.contexts[slot];
        let n = kernels.iter().map(|it| context.places_of(it)).sum();
        let Some(first) = context.places.take(n, MOST_PLACES) else {
            state.give_back(numbers);
            return None;
        };
        let mut place = first;
        let mut of_kernel = |kernel: &PatchedKernel, number| {
            let found = WithHandlers::of(kernel, place, number);
            place += context.places_of(kernel);
            (kernel.symbol.clone(), found)
        };
        let kernels = kernels.iter().zip(numbers).map(|(kernel, number)| of_kernel(kernel, number)).collect();
        Some((context.clone(), PatchedModule { slot, kernels, places: first..first + n }))
    }

    /// Decides which of a kernel's conditions hold for the launch that the calling thread makes.
    fn choose(&self, agent: &Agent, kernel: &Kernel) -> Choice {
        let control = agent.device_region().map(|it| it.control());
        control.map_or(Choice::default(), |it| self.kernels.choose(kernel.with.number, it, Off::default(), &Tagged))
    }

    /// Likewise for a node of a graph. All nodes of a kernel have the same words, so what holds for some launches holds for none.
    fn choose_for_node(&self, agent: &Agent, kernel: &Kernel) -> Choice {
        let Some(control) = agent.device_region().map(|it| it.control()) else { return Choice::default() };
        let (always, sometimes) = self.kernels.always(kernel.with.number, control);
        if sometimes.holding != 0 {
            agent.count_unprobed(Unprobed::InGraph, 1);
            count_unprobed(control, sometimes);
        }
        always
    }

    /// Tells the patches of a launch which kernel they are in, or that they do nothing, and begins to record the launch, if that
    /// is to be.
    ///
    /// # Safety
    /// `launch` is the API's in a callback about this launch, which the calling thread makes; the registers are those at the
    /// API's call.
    pub(super) unsafe fn launched(
        &self,
        functions: &Functions,
        agent: &'static Agent,
        launch: &LaunchData,
        registers: &Pushed,
    ) {
        let are_all_recorded = agent.wants(demand::PATCHED_KERNELS);
        // SAFETY: the caller promises that `launch` is the API's in a callback about this launch.
        let Some(kernel) = (unsafe { self.kernel_of(functions, launch) }) else { return };
        if kernel.words == 0 && !are_all_recorded {
            return;
        }
        let is_inside = agent.runs_twins_now() && agent.is_device_selected(kernel.device);
        let runs = is_inside && kernel.words != 0 && !self.is_off.load(Ordering::Acquire);
        if runs {
            kernel.clock.iter().for_each(|it| it.wait());
        }
        let context = kernel.context(launch.context);
        let record = launches::kernel_of(launch, launches::new_correlation(), kernel.device, context);
        let begin = || {
            // SAFETY: the caller promises that `launch` is the API's for this launch, which the calling thread makes,
            // and the registers at the API's call.
            unsafe { launches::begin(agent, launch, record.correlation, context, registers) };
        };
        // First, since handlers at the launch set its tag.
        let is_begun = is_inside && are_all_recorded;
        if is_begun {
            begin();
        }
        // SAFETY: the caller promises that `launch` is the API's for this launch, which the calling thread makes.
        let told = unsafe { self.tell(functions, agent, kernel, launch, record, runs) };
        if !is_begun && told.is_told() && agent.wants(demand::LAUNCHES) {
            begin();
        } else if !is_begun {
            return;
        }
        let recorded = match (are_all_recorded, told.is_timed) {
            (true, true) => RecordTiming::Later,
            (true, false) => RecordTiming::WithoutTimes,
            (false, _) => RecordTiming::AtReturn,
        };
        let symbol = if told.is_told() { kernel.called(told.choice).as_ptr() } else { launch.function_name };
        launches::record(Launching { kernel: record, context, symbol, recorded });
    }

    /// Tells the patches of a launch their words, or that they do nothing, and counts it.
    ///
    /// # Safety
    /// As for [`Patching::launched`].
    unsafe fn tell(
        &self,
        functions: &Functions,
        agent: &'static Agent,
        kernel: &Kernel,
        launch: &LaunchData,
        record: xputrace_wire::record::Kernel,
        runs: bool,
    ) -> Told {
        let mut told = Told::default();
        if runs {
            told.choice = self.choose(agent, kernel);
            let awaited = kernel.awaited(record, launch.stream_handle, told.choice);
            told.is_timed = kernel.timing.is_some_and(|it| it.await_launch(agent, awaited));
            let taking = if told.is_timed { Taking::OfLaunch } else { Taking::None };
            told.words = kernel.address(taking, told.choice);
            if kernel.has_arguments(told.choice) {
                // SAFETY: the caller promises that the calling thread launches this kernel in this stream.
                let own = unsafe { kernel.give_arguments(functions, taking, told.choice, launch.stream_handle) };
                told.words = own.unwrap_or(told.words);
                if own.is_none() {
                    agent.count_without_arguments();
                }
            }
        }
        if kernel.words != 0 {
            let words = told.words as *const c_void;
            // SAFETY: the caller promises that `launch` is the API's for this launch; the address is of device memory
            // that stays.
            let answer =
                unsafe { (functions.set_launch_data)(launch.launch, launch.function, launch.stream_handle, words) };
            if answer != SUCCESS {
                kernel.timing.filter(|_| told.is_timed).into_iter().for_each(|it| it.forget_launch(record.grid_id));
                told = Told { choice: told.choice, ..Told::default() };
            }
        }
        let has_handlers = runs && kernel.runs(told.choice);
        self.count(agent, kernel, has_handlers, told.is_told());
        if has_handlers && !told.is_told() {
            agent.device_region().into_iter().for_each(|it| count_unprobed(it.control(), told.choice));
        }
        told
    }

    /// Likewise for a node of a graph. The nodes of a graph's launch are one launch to the API, which can have one address: kernels
    /// have their own there.
    ///
    /// # Safety
    /// As for [`Patching::launched`].
    pub(super) unsafe fn node_launched(&self, functions: &Functions, agent: &'static Agent, node: &NodeLaunchData) {
        let launch = &node.launch;
        // SAFETY: the caller promises that `node` is the API's in a callback about this launch.
        let kernel = unsafe { self.kernel_of(functions, launch) };
        let Some(kernel) = kernel.filter(|it| it.words != 0) else { return };
        let runs = agent.runs_twins_now() && !self.is_off.load(Ordering::Acquire);
        if runs {
            kernel.clock.iter().for_each(|it| it.wait());
        }
        let taking = if kernel.timing.is_some() { Taking::OfNode } else { Taking::None };
        let choice = if runs { self.choose_for_node(agent, kernel) } else { Choice::default() };
        let data = if runs { kernel.address(taking, choice) } else { 0 };
        // SAFETY: the caller promises that `node` is the API's for this launch; the address is of device memory that
        // stays, or null.
        let is_told = unsafe { (functions.set_data)(launch.function, data as *const c_void) } == SUCCESS;
        if let Some(timing) = kernel.timing {
            let record = launches::node_of(launch, node.node, kernel.device, kernel.context(launch.context));
            let awaited = record.filter(|_| runs).map(|it| kernel.awaited(it, launch.stream_handle, choice));
            let (executable, of_graph) = (node.executable as usize, node.node as usize);
            let of = NodeId { grid_id: launch.grid_id, executable, node: of_graph };
            timing.await_node(agent, of, awaited, runs && is_told);
        }
        self.count(agent, kernel, runs && kernel.runs(choice), is_told);
        // They are in the graph, and its launch doesn't tell them.
        if runs && is_told && kernel.has_arguments(choice) {
            agent.count_without_arguments();
        }
    }

    /// Notes that a stream is about to end.
    pub(super) fn stream_ends(&self, context: Handle, stream: Handle) {
        let of_context = |it: &&Patched| it.context == context as usize;
        let slots = self.state().contexts.iter().find(of_context).and_then(|it| it.arguments);
        slots.into_iter().for_each(|it| it.stream_ends(stream));
    }

    /// Forgets what nodes were to leave of the launch of a graph, which has failed.
    pub(super) fn graph_failed(&self, correlation: u32) {
        let all: Vec<&Timing> = self.state().contexts.iter().filter_map(|it| it.timing).collect();
        all.into_iter().for_each(|it| it.forget_graph(correlation));
    }

    /// Counts a launch with handlers that were to run; `is_told` says that they do.
    fn count(&self, agent: &Agent, kernel: &Kernel, has_handlers: bool, is_told: bool) {
        let (Some(slot), Some(region)) = (kernel.slot, agent.device_region()) else { return };
        match has_handlers {
            true if is_told => _ = region.control().slots[slot].swapped.fetch_add(1, Ordering::Relaxed),
            true => agent.count_unprobed(Unprobed::AttributeRefused, 1),
            false => {}
        }
    }

    /// Returns the kernel of a launch.
    ///
    /// # Safety
    /// As for [`Patching::launched`].
    #[inline]
    unsafe fn kernel_of(&self, functions: &Functions, launch: &LaunchData) -> Option<&'static Kernel> {
        let key = TwinKey::new(launch.function as u64, 0)?;
        match self.launched.find(key) {
            // SAFETY: what `learn` has put there, which is never freed.
            Some((known, _)) => Some(unsafe { &*(known as *const Kernel) }),
            // SAFETY: the caller promises that `launch` is the API's in a callback about this launch.
            None => Some(unsafe { self.learn(functions, launch, key) }),
        }
    }

    /// Notes a kernel at its first launch.
    ///
    /// # Safety
    /// As for [`Patching::launched`].
    #[cold]
    unsafe fn learn(&self, functions: &Functions, launch: &LaunchData, key: TwinKey) -> &'static Kernel {
        let name = Some(launch.function_name).filter(|it| !it.is_null());
        // SAFETY: the caller's promise: a C string.
        let name = name.map_or(c"", |it| unsafe { CStr::from_ptr(it) });
        let mut state = self.state();
        let kernel = state.kernel(launch, name);
        if self.launched.insert(key, New { other: std::ptr::from_ref(kernel) as u64, ..New::default() }) {
            state.functions.insert(launch.function as usize, launch.module as usize);
        }
        drop(state);
        if kernel.words != 0 {
            // What it gets where no callback of ours says: after the run. The block says then that it does nothing.
            let data = kernel.address(Taking::None, Choice::default()) as *const c_void;
            // SAFETY: the caller promises that `launch` is the API's for this launch; the address is of device memory
            // that stays, or null.
            unsafe { (functions.set_data)(launch.function, data) };
        }
        kernel
    }

    /// Copies so much of a context's block into the device region, and tells the patches how much of its ring was read; returns
    /// whether it could. Readers see all of it, or the copy before. The last copy stays: behind it the process may end amid another
    /// one, and CUDA, which ends, may answer with anything.
    fn copy(&self, functions: &Functions, agent: &Agent, slot: usize, stream: usize, extent: CopyExtent) -> bool {
        let Some(region) = agent.device_region() else { return false };
        if region.has_last_copy(slot) {
            return true;
        }
        let block = self.state().contexts[slot].block;
        if let Some((at, read)) = region.read_of_ring(slot) {
            // SAFETY: a word of the block.
            unsafe { write_word(functions, block + at, read, stream) };
        }
        let mut whole = vec![0u8; region.shape().bytes_of(extent)];
        let is_whole = region.shape().pieces(extent).all(|piece| {
            let (from, to) = ((block + piece.start as u64) as *const c_void, &mut whole[piece]);
            // SAFETY: a piece of the block, and room for it; a context that is alive.
            unsafe { (functions.copy_to_host)(to.as_mut_ptr().cast(), from, to.len(), stream as Handle) == SUCCESS }
        });
        if is_whole {
            // SAFETY: the copy has room for as much of a block.
            region.write_copy(slot, |to| unsafe { to.copy_from_nonoverlapping(whole.as_ptr(), whole.len()) });
        }
        is_whole
    }

    /// Delivers the kernels that have left their times. The clock comes first: before it is measured their times are a guess.
    pub(super) fn read_times(&self, functions: &Functions, driver: &Driver, agent: &'static Agent) {
        self.each_alive(|slot, context| {
            let timing = self.state().contexts[slot].timing;
            timing.into_iter().for_each(|it| {
                self.in_context(functions, driver, agent, slot, context, |stream| {
                    self.set_clock(functions, driver, agent, slot, stream.api);
                    it.read(functions, agent, slot, stream.api as Handle);
                });
            });
        });
    }

    /// Whether there is so much to read that it can't wait.
    pub(super) fn is_reading_due(&self) -> bool {
        self.state().contexts.iter().filter_map(|it| it.timing).any(Timing::is_reading_due)
    }

    /// Delivers the kernels whose times have not come.
    pub(super) fn give_up_times(&self, agent: &'static Agent) {
        let all: Vec<&Timing> = self.state().contexts.iter().filter_map(|it| it.timing).collect();
        all.into_iter().for_each(|it| it.give_up(agent));
    }

    pub(super) fn copy_blocks(&self, functions: &Functions, driver: &Driver, agent: &Agent, extent: CopyExtent) {
        self.each_alive(|slot, context| {
            self.in_context(functions, driver, agent, slot, context, |stream| {
                if extent == CopyExtent::Whole {
                    self.set_clock(functions, driver, agent, slot, stream.api);
                }
                self.copy_in_context(functions, driver, agent, slot, stream, extent);
            });
        });
    }

    /// Copies so much of the block of the current context; returns whether it could. Where that is since the context has failed, as
    /// after a kernel's fault, it tells: each call of the driver says so then, and ours waits for nothing, as our stream is idle.
    fn copy_in_context(
        &self,
        functions: &Functions,
        driver: &Driver,
        agent: &Agent,
        slot: usize,
        stream: OwnStream,
        extent: CopyExtent,
    ) -> bool {
        let is_copied = self.copy(functions, agent, slot, stream.api, extent);
        if !is_copied {
            // SAFETY: a stream of the current context.
            let answer = unsafe { driver.code.wait_for(stream.driver as Handle) };
            let _ = answer.inspect_err(|it| agent.copy_failed(slot, *it));
        }
        is_copied
    }

    /// Copies all blocks for the last time.
    pub(super) fn leave_blocks(&self, functions: &Functions, driver: &Driver, agent: &'static Agent, disables: bool) {
        self.read_times(functions, driver, agent);
        self.each_alive(|slot, context| {
            self.in_context(functions, driver, agent, slot, context, |stream| {
                if disables {
                    self.disable(functions, slot, stream.api);
                }
                if self.copy_in_context(functions, driver, agent, slot, stream, CopyExtent::Whole) {
                    agent.note_last_copy(slot);
                }
            });
        });
    }

    /// Has patches do nothing, which stay in the program.
    fn disable(&self, functions: &Functions, slot: usize, stream: usize) {
        let enabled = self.state().contexts[slot].block + ENABLED as u64;
        // SAFETY: a word of the block.
        unsafe { write_word(functions, enabled, [0; 8], stream) };
    }

    pub(super) fn each_alive(&self, mut each: impl FnMut(usize, usize)) {
        let contexts: Vec<usize> = self.state().contexts.iter().map(|it| it.context).collect();
        contexts.into_iter().enumerate().filter(|it| it.1 != 0).for_each(|(slot, context)| each(slot, context));
    }

    /// Runs something of the worker's with a stream of ours, which waits for no other.
    pub(super) fn in_context(
        &self,
        functions: &Functions,
        driver: &Driver,
        agent: &Agent,
        slot: usize,
        context: usize,
        run: impl FnOnce(OwnStream),
    ) {
        let _in_use = locked(&self.in_use);
        let known = self.state().contexts.get(slot).filter(|it| it.is_alive()).map(|it| it.own_stream);
        let Some(own_stream) = known else { return };
        // SAFETY: a context that is alive, and does not end meanwhile.
        if let Err(answer) = unsafe { driver.code.enter(context as Handle) } {
            return agent.copy_failed(slot, answer);
        }
        match own_stream.map_or_else(|| self.make_stream(functions, driver, slot, context), Ok) {
            Ok(stream) => run(stream),
            Err(answer) => agent.copy_failed(slot, answer),
        }
        // SAFETY: no context.
        unsafe { driver.code.leave() };
    }

    /// Makes a stream in the current context.
    fn make_stream(
        &self,
        functions: &Functions,
        driver: &Driver,
        slot: usize,
        context: usize,
    ) -> Result<OwnStream, u32> {
        let mut handle: Handle = null_mut();
        // SAFETY: in the context.
        let stream = unsafe { driver.code.stream() }?;
        // SAFETY: a stream of this context, and a live handle.
        let answer = unsafe { (functions.stream_handle)(context as Handle, stream, &mut handle) };
        if answer != SUCCESS {
            return Err(answer);
        }
        let made = OwnStream { api: handle as usize, driver: stream as usize };
        self.state().contexts[slot].own_stream = Some(made);
        Ok(made)
    }
}

impl PatchingState {
    /// Returns the timer of a context that is there.
    pub(super) fn clock_of(&self, context: usize) -> Option<CreatedClock> {
        self.created.get(&context).map(|it| it.clock.clone())
    }

    /// Returns what launches wait for.
    pub(super) fn first_measurements(&self) -> Vec<Arc<FirstMeasurement>> {
        let created = self.created.values().map(|it| it.clock.measured.clone());
        created.chain(self.contexts.iter().filter_map(|it| it.clock.first())).collect()
    }

    /// Returns what is known of a kernel that is launched for the first time.
    fn kernel(&mut self, launch: &LaunchData, name: &CStr) -> &'static Kernel {
        let kernel = self.describe(launch, name);
        let Kernel { slot, device, words, with, symbol, .. } = kernel;
        let id = (slot, device, words, WithHandlers { place: 0, ..with }, symbol);
        self.known.entry(id).or_insert_with(|| Box::leak(Box::new(kernel)))
    }

    fn describe(&mut self, launch: &LaunchData, name: &CStr) -> Kernel {
        let slot = self.contexts.iter().position(|it| it.context == launch.context as usize);
        let device = self.created.get(&(launch.context as usize)).map_or(UNKNOWN, |it| it.device);
        let Some(module) = self.modules.get(&(launch.module as usize)) else {
            let with = WithHandlers::none(0);
            let (words, block, arguments, timing, clock) = (0, 0, None, None, None);
            return Kernel { slot, device, words, block, with, arguments, timing, clock, twin: c"", symbol: c"" };
        };
        let (context, name) = (&self.contexts[module.slot], name.to_string_lossy());
        let found = module.kernels.get(&*name).copied();
        let with = found.unwrap_or(WithHandlers::none(module.places.start));
        Kernel {
            slot: Some(module.slot),
            device,
            words: if found.is_some() || context.timing.is_some() { context.address(with.place) } else { 0 },
            block: context.block,
            with,
            arguments: context.arguments.filter(|_| with.reads_arguments()),
            timing: context.timing,
            clock: context.clock.first(),
            twin: kept(&mut self.names, twin_symbol(&name)),
            symbol: kept(&mut self.names, name.into_owned()),
        }
    }

    /// Numbers kernels for their conditions; `None` if they are too many.
    fn number(&mut self, kernels: &Kernels, conditions: &[Choice]) -> Option<Vec<KernelNumber>> {
        let mut numbers = Vec::new();
        for conditions in conditions {
            let Some(number) = self.number_one(kernels, *conditions) else {
                self.give_back(numbers);
                return None;
            };
            numbers.push(number);
        }
        Some(numbers)
    }

    fn number_one(&mut self, kernels: &Kernels, conditions: Choice) -> Option<KernelNumber> {
        if conditions.conditions == Choice::default().conditions {
            return kernels.add(conditions);
        }
        let free = self.free_numbers.pop();
        free.inspect(|it| kernels.reuse(*it, conditions)).or_else(|| kernels.add(conditions))
    }

    fn give_back(&mut self, numbers: impl IntoIterator<Item = KernelNumber>) {
        self.free_numbers.extend(numbers.into_iter().filter(|it| *it != 0));
    }
}

impl Kernel {
    /// Returns the context that it is launched in.
    fn context(&self, handle: Handle) -> Context {
        context_of(self.slot.unwrap_or(MOST_CONTEXTS), handle)
    }
}

/// Returns a text for ever: a launch may be using it when its module is unloaded.
fn kept(names: &mut HashMap<String, &'static CStr>, text: String) -> &'static CStr {
    let leak = |it: &String| CString::new(it.as_str()).map_or(c"", |it| Box::leak(it.into_boxed_c_str()));
    names.entry(text).or_insert_with_key(leak)
}

/// Returns the words that a kernel of this name has in device memory for launches of a kind.
fn words(block: u64, name: u64, handlers: u64, taking: Taking, timing: Option<&Timing>) -> [u8; kernel_words::BYTES] {
    let times = timing.filter(|_| taking != Taking::None).map_or(0, Timing::address);
    let groups = if taking == Taking::OfNode { times::NODES } else { times::LAUNCHES };
    let mut words = [0; kernel_words::BYTES];
    for (at, word) in [
        (kernel_words::BLOCK, block),
        (kernel_words::NAME, name),
        (kernel_words::HANDLERS, handlers),
        (kernel_words::TIMES, times),
        (kernel_words::GROUPS, times + groups as u64),
        (kernel_words::IS_NODE, (taking == Taking::OfNode).into()),
    ] {
        words[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    words
}
