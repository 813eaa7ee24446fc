//! What is patched, and what launches give to patches.
//!
//! A module's thread waits for the tracer's answer; launches look their function up, and take no lock that is held in a call
//! of the API. The API wants patching done by one thread at a time: that is what `at_a_time` is for. And a context ends once the
//! worker does not use it (`in_use`).

use super::functions::{Functions, LaunchData, ModuleData, SUCCESS, instruction};
use super::launches::{Launching, context_of};
use crate::agent::Agent;
use crate::agent::device::{CodeAt, LAST_COPY_WITHIN, LOOKS_EVERY, TWIN_WITHIN};
use crate::cupti::Handle;
use crate::cupti::driver::Driver;
use crate::cupti::twins::{Calls, GpuTimer};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};
use std::thread::sleep;
use std::time::Instant;
use xputrace_wire::device::{
    ENABLED, Extent, ImageOutcome, MOST_CONTEXTS, PatchedKernel, Patches, Unprobed, kernel_words, twin_symbol,
};
use xputrace_wire::record::UNKNOWN;

/// Kernels of a context that can be patched.
const MOST_KERNELS: usize = 16_384;

/// All that is patched in a process.
#[derive(Debug, Default)]
pub(super) struct Patching {
    is_off: AtomicBool,
    at_a_time: Mutex<()>,
    /// Held by whoever uses a context from another thread than those of its launches, or ends it. Taken before `state`.
    in_use: Mutex<()>,
    state: Mutex<State>,
    /// The kernels that were launched, by `CUfunction`.
    launched: RwLock<HashMap<usize, Kernel>>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order of their slots.
    contexts: Vec<Patched>,
    /// GPUs of contexts, patched or not.
    devices: HashMap<usize, u32>,
    /// Kernels of patched modules, by module; those that get nothing are not there.
    modules: HashMap<usize, HashMap<String, Kernel>>,
}

/// A kernel of a patched module.
#[derive(Clone, Copy, Debug)]
struct Kernel {
    slot: usize,
    /// The address of its words; 0 if it has no handlers.
    words: u64,
    module: usize,
    device: u32,
    /// What records call it, as a kernel with handlers; never freed. `None` if it has no handlers.
    twin: Option<&'static CStr>,
}

/// How a kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Launched {
    Alone,
    /// The nodes of a graph's launch are one launch to the API, which can have one address: kernels have their own there.
    InGraph,
}

/// A context with patched modules.
#[derive(Clone, Debug)]
struct Patched {
    /// Null once it has ended.
    context: usize,
    block: u64,
    /// Where the words of kernels are, and how many kernels have some.
    words: u64,
    n_kernels: usize,
    /// Of the context's default stream, as the API calls it.
    default_stream: usize,
    /// Likewise ours, made by the worker.
    own_stream: Option<usize>,
    /// Of its GPU; only the worker uses it.
    timer: Arc<Mutex<GpuTimer>>,
}

impl Patched {
    fn is_alive(&self) -> bool {
        self.context != 0
    }
}

/// Calls of the driver while a context is in use, and so stays.
struct InUse;

impl Calls for InUse {
    fn call<T>(&self, call: impl FnOnce() -> Result<T, u32>) -> Result<T, u32> {
        call()
    }
}

fn checked(answer: u32) -> Result<(), ImageOutcome> {
    if answer == SUCCESS { Ok(()) } else { Err(ImageOutcome::NotLoaded) }
}

/// Writes a word of device memory.
///
/// # Safety
/// It is of a context that is alive, as the stream is.
unsafe fn write_word(functions: &Functions, at: u64, word: [u8; 8], stream: usize) {
    // SAFETY: the caller's promise; the bytes live until the copy is done.
    unsafe {
        (functions.copy_to_device)(at as *mut c_void, word.as_ptr().cast(), word.len(), stream as Handle);
        (functions.wait_for_stream)(stream as Handle);
    }
}

impl Patching {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has patches do nothing in launches that begin from now on.
    pub(super) fn stop(&self) {
        self.is_off.store(true, Ordering::Release);
    }

    pub(super) fn context_created(&self, context: Handle, device: u32) {
        self.state().devices.insert(context as usize, device);
    }

    pub(super) fn device_of(&self, context: Handle) -> Option<u32> {
        self.state().devices.get(&(context as usize)).copied()
    }

    /// Copies the block of a context that is about to end, unless the worker is stuck with it.
    pub(super) fn context_ends(&self, functions: &Functions, agent: &Agent, context: Handle) {
        let slot = self.state().contexts.iter().position(|it| it.context == context as usize);
        self.state().devices.remove(&(context as usize));
        let Some(slot) = slot else { return };
        let in_use = self.wait_until_unused();
        let stream = self.state().contexts[slot].default_stream;
        if in_use.is_some() && self.copy(functions, agent, slot, stream, Extent::Whole) {
            agent.has_last_copy(slot);
        }
        let mut state = self.state();
        state.contexts[slot].context = 0;
        // Modules that load later may have the handles of those that were in it.
        state.modules.retain(|_, kernels| kernels.values().all(|it| it.slot != slot));
        drop(state);
        self.forget(|it| it.slot == slot);
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
        let module = module as usize;
        if self.state().modules.remove(&module).is_some() {
            self.forget(|it| it.module == module);
        }
    }

    fn forget(&self, is_it: impl Fn(&Kernel) -> bool) {
        self.launched.write().unwrap_or_else(PoisonError::into_inner).retain(|_, it| !is_it(it));
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
            return Err(ImageOutcome::NoPtx);
        }
        let device = self.device_of(module.context).unwrap_or(UNKNOWN);
        if device != UNKNOWN && !agent.is_device_selected(device) {
            return Err(ImageOutcome::NothingToProbe);
        }
        let patches = agent.ask_for_patches(CodeAt::Memory(module.cubin as u64), Instant::now() + TWIN_WITHIN)?;
        let _one_at_a_time = self.at_a_time.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = self.prepare(functions, agent, module.context, device, &patches)?;
        for point in &patches.points {
            let name = CString::new(point.symbol()).map_err(|_| ImageOutcome::NotLoaded)?;
            // SAFETY: a module that is loaded, and a C string.
            checked(unsafe { (functions.patch_instructions)(instruction(*point), module.module, name.as_ptr()) })?;
        }
        // SAFETY: as above.
        checked(unsafe { (functions.patch_module)(module.module) })?;
        let kernels = self.write_words(functions, (slot, device), module.module as usize, &patches.kernels)?;
        self.state().modules.insert(module.module as usize, kernels);
        Ok(())
    }

    /// Gives a context its block and its patches, once; returns its slot.
    fn prepare(
        &self,
        functions: &Functions,
        agent: &Agent,
        context: Handle,
        device: u32,
        patches: &Patches,
    ) -> Result<usize, ImageOutcome> {
        let (slot, n_slots) = {
            let state = self.state();
            (state.contexts.iter().position(|it| it.context == context as usize), state.contexts.len())
        };
        if let Some(slot) = slot {
            return Ok(slot);
        }
        if n_slots == MOST_CONTEXTS {
            agent.count_unprobed(Unprobed::NoContext, 1);
            return Err(ImageOutcome::TableFull);
        }
        let region = agent.device_region().ok_or(ImageOutcome::NotLoaded)?;
        let (mut stream, mut block): (Handle, Handle) = (null_mut(), null_mut());
        // The kernels' words are behind the block.
        let n_bytes = region.block_bytes() + MOST_KERNELS * kernel_words::BYTES;
        // SAFETY: a context that is alive, and live pointers; the initial bytes are as long as the block.
        unsafe {
            // The code is copied: it comes again with each module. First, since a context that refuses it is tried again with the
            // next module, and nothing frees its memory.
            checked((functions.add_patches)(patches.code.as_ptr().cast(), context))?;
            checked((functions.stream_handle)(context, null_mut(), &mut stream))?;
            checked((functions.alloc)(context, &mut block, n_bytes))?;
            checked((functions.copy_to_device)(block, region.initial().cast(), region.block_bytes(), stream))?;
            checked((functions.wait_for_stream)(stream))?;
        }
        let mut timer = GpuTimer::new();
        if let Some(at) = region.place_of_clock_offset() {
            // SAFETY: a word of the block.
            unsafe { write_word(functions, block as u64 + at, timer.guess().to_le_bytes(), stream as usize) };
        }
        let told = &region.control().slots[n_slots];
        told.context.store(context_of(n_slots, context).id, Ordering::Release);
        told.device.store(device, Ordering::Release);
        region.control().contexts.fetch_max(n_slots as u32 + 1, Ordering::AcqRel);
        self.state().contexts.push(Patched {
            context: context as usize,
            block: block as u64,
            words: block as u64 + region.block_bytes() as u64,
            n_kernels: 0,
            default_stream: stream as usize,
            own_stream: None,
            timer: Arc::new(Mutex::new(timer)),
        });
        Ok(n_slots)
    }

    /// Writes the words of a module's kernels; returns where they are.
    fn write_words(
        &self,
        functions: &Functions,
        (slot, device): (usize, u32),
        module: usize,
        kernels: &[PatchedKernel],
    ) -> Result<HashMap<String, Kernel>, ImageOutcome> {
        let Patched { block, words, n_kernels, default_stream, .. } = self.state().contexts[slot].clone();
        if n_kernels + kernels.len() > MOST_KERNELS {
            return Err(ImageOutcome::TableFull);
        }
        let at = words + (n_kernels * kernel_words::BYTES) as u64;
        let bytes: Vec<u8> = kernels.iter().flat_map(|it| words_of(block, it)).collect();
        // SAFETY: within the memory that was allocated for them.
        unsafe {
            let stream = default_stream as Handle;
            checked((functions.copy_to_device)(at as *mut c_void, bytes.as_ptr().cast(), bytes.len(), stream))?;
            checked((functions.wait_for_stream)(stream))?;
        }
        self.state().contexts[slot].n_kernels += kernels.len();
        let place = |index: usize| at + (index * kernel_words::BYTES) as u64;
        let found = kernels.iter().enumerate().map(|(index, it)| {
            let twin = symbol_in_records(&it.symbol);
            (it.symbol.clone(), Kernel { slot, words: place(index), module, device, twin })
        });
        Ok(found.collect())
    }

    /// Tells the patches of a launch which kernel they are in, or that they do nothing. Returns the kernel if it has handlers
    /// that run.
    ///
    /// # Safety
    /// `launch` is the API's in a callback about this launch.
    pub(super) unsafe fn launched(
        &self,
        functions: &Functions,
        agent: &Agent,
        launch: &LaunchData,
        of: Launched,
    ) -> Option<Launching> {
        // SAFETY: the caller's promise.
        let kernel = unsafe { self.kernel_of(functions, launch) }?;
        let runs = !self.is_off.load(Ordering::Acquire) && agent.runs_twins_now() && kernel.words != 0;
        let data: *const c_void = if runs { kernel.words as *const c_void } else { null() };
        // SAFETY: the caller's promise; the address is of device memory that stays.
        let answer = unsafe {
            match of {
                Launched::Alone => {
                    (functions.set_launch_data)(launch.launch, launch.function, launch.stream_handle, data)
                }
                Launched::InGraph => (functions.set_data)(launch.function, data),
            }
        };
        if !runs {
            return None;
        }
        if answer != SUCCESS {
            agent.count_unprobed(Unprobed::AttributeRefused, 1);
            return None;
        }
        agent.device_region()?.control().slots[kernel.slot].swapped.fetch_add(1, Ordering::Relaxed);
        let context = context_of(kernel.slot, launch.context);
        Some(Launching { context, device: kernel.device, symbol: kernel.twin?.as_ptr() })
    }

    /// Returns the kernel of a launch; `None` if its module is not patched.
    ///
    /// # Safety
    /// As for [`Patching::launched`].
    unsafe fn kernel_of(&self, functions: &Functions, launch: &LaunchData) -> Option<Kernel> {
        let function = launch.function as usize;
        if let Some(known) = self.launched.read().unwrap_or_else(PoisonError::into_inner).get(&function) {
            return Some(*known);
        }
        let module = launch.module as usize;
        let kernel = {
            let state = self.state();
            let kernels = state.modules.get(&module)?;
            let name = Some(launch.function_name).filter(|it| !it.is_null());
            // SAFETY: the caller's promise: a C string.
            let name = name.map_or(c"", |it| unsafe { CStr::from_ptr(it) });
            let nothing = Kernel { slot: 0, words: 0, module, device: UNKNOWN, twin: None };
            name.to_str().ok().and_then(|it| kernels.get(it)).copied().unwrap_or(nothing)
        };
        // What it gets where no callback of ours says: after the run. The block says then that it does nothing.
        // SAFETY: the caller's promise; the address is of device memory that stays, or null.
        unsafe { (functions.set_data)(launch.function, kernel.words as *const c_void) };
        self.launched.write().unwrap_or_else(PoisonError::into_inner).insert(function, kernel);
        Some(kernel)
    }

    /// Copies so much of a context's block into the device region, and tells the patches how much of its ring was read; returns
    /// whether it could.
    fn copy(&self, functions: &Functions, agent: &Agent, slot: usize, stream: usize, extent: Extent) -> bool {
        let Some(region) = agent.device_region() else { return false };
        let block = self.state().contexts[slot].block;
        region.write_copy(slot, |to| {
            if let Some((at, read)) = region.read_of_ring(slot) {
                // SAFETY: a word of the block.
                unsafe { write_word(functions, block + at, read, stream) };
            }
            region.shape().pieces(extent).all(|piece| {
                let from = (block + piece.start as u64) as *const c_void;
                // SAFETY: a piece of the block, for which the copy has room; a context that is alive.
                let answer = unsafe {
                    (functions.copy_to_host)(to.add(piece.start).cast(), from, piece.len(), stream as Handle)
                };
                answer == SUCCESS
            })
        })
    }

    pub(super) fn copy_blocks(&self, functions: &Functions, driver: &Driver, agent: &Agent, extent: Extent) {
        self.each_alive(|slot, context| {
            self.in_context(functions, driver, slot, context, |stream| {
                if extent == Extent::Whole {
                    self.set_clock(functions, driver, agent, slot, stream);
                }
                self.copy(functions, agent, slot, stream, extent);
            });
        });
    }

    /// Measures the GPU's timer in the current context, if it is time to, and tells handlers and the tracer. The kernel that reads
    /// it is loaded by the worker: a callback about a module can't load another.
    fn set_clock(&self, functions: &Functions, driver: &Driver, agent: &Agent, slot: usize, stream: usize) {
        let Some(region) = agent.device_region() else { return };
        let Some(at) = region.place_of_clock_offset() else { return };
        let Patched { block, timer, .. } = self.state().contexts[slot].clone();
        let mut timer = timer.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the context is current.
        timer.load(&driver.code, &InUse, || unsafe { driver.code.urgent_stream() });
        if !timer.is_due() {
            return;
        }
        let was_read = region.control().slots[slot].swapped.load(Ordering::Relaxed) > 0;
        if let Ok(Some(offset)) = timer.measure(&driver.code, &InUse, was_read) {
            // SAFETY: a word of the block.
            unsafe { write_word(functions, block + at, offset.to_le_bytes(), stream) };
        }
        region.tell_clock(slot, timer.offset_nanos(), timer.error_nanos());
    }

    /// Measures the timers of the GPUs of all contexts, where it is time to.
    pub(super) fn set_clocks(&self, functions: &Functions, driver: &Driver, agent: &Agent) {
        self.each_alive(|slot, context| {
            let set = |stream| self.set_clock(functions, driver, agent, slot, stream);
            self.in_context(functions, driver, slot, context, set);
        });
    }

    /// Copies all blocks for the last time.
    pub(super) fn leave_blocks(&self, functions: &Functions, driver: &Driver, agent: &Agent, disables: bool) {
        self.each_alive(|slot, context| {
            self.in_context(functions, driver, slot, context, |stream| {
                if disables {
                    self.disable(functions, slot, stream);
                }
                if self.copy(functions, agent, slot, stream, Extent::Whole) {
                    agent.has_last_copy(slot);
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

    fn each_alive(&self, mut each: impl FnMut(usize, usize)) {
        let contexts: Vec<usize> = self.state().contexts.iter().map(|it| it.context).collect();
        contexts.into_iter().enumerate().filter(|it| it.1 != 0).for_each(|(slot, context)| each(slot, context));
    }

    /// Runs something of the worker's with a stream of ours, which waits for no other.
    fn in_context(&self, functions: &Functions, driver: &Driver, slot: usize, context: usize, run: impl FnOnce(usize)) {
        let _in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.state().contexts.get(slot).filter(|it| it.is_alive()).map(|it| it.own_stream);
        let Some(own_stream) = known else { return };
        // SAFETY: a context that is alive, and does not end meanwhile.
        if unsafe { driver.code.enter(context as Handle) }.is_err() {
            return;
        }
        let stream = own_stream.or_else(|| self.make_stream(functions, driver, slot, context));
        if let Some(stream) = stream {
            run(stream);
        }
        // SAFETY: no context.
        unsafe { driver.code.leave() };
    }

    fn make_stream(&self, functions: &Functions, driver: &Driver, slot: usize, context: usize) -> Option<usize> {
        let mut handle: Handle = null_mut();
        // SAFETY: in the context.
        let stream = unsafe { driver.code.stream() }.ok()?;
        // SAFETY: a stream of this context, and a live handle.
        checked(unsafe { (functions.stream_handle)(context as Handle, stream, &mut handle) }).ok()?;
        self.state().contexts[slot].own_stream = Some(handle as usize);
        Some(handle as usize)
    }
}

/// Returns what records call a kernel with handlers. Kept for ever: a launch may be using it when its module is unloaded.
fn symbol_in_records(symbol: &str) -> Option<&'static CStr> {
    Some(&*Box::leak(CString::new(twin_symbol(symbol)).ok()?.into_boxed_c_str()))
}

/// Returns the words that a kernel has in device memory.
fn words_of(block: u64, kernel: &PatchedKernel) -> [u8; kernel_words::BYTES] {
    let mut words = [0; kernel_words::BYTES];
    for (at, word) in
        [(kernel_words::BLOCK, block), (kernel_words::NAME, kernel.name), (kernel_words::HANDLERS, kernel.handlers)]
    {
        words[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    words
}
