//! What the worker does for twins: it loads them, prepares contexts, and copies blocks. It holds no lock in a call of the
//! driver.

use super::calls::{Origin, watched};
use super::choosing::{KernelNumber, Off};
use super::code::{DriverResult, Failure, GONE, INVALID, KernelHandle};
use super::contexts::ContextState;
use super::lease::Lease;
use super::loaded::{Contents, EarlyTwins, Fingerprint, ImageEntry, LoadedCode, Pair, Switch, TwinnedCode};
use super::state::Twins;
use super::table::{New, TwinKey};
use crate::cupti::driver::function_attribute as attribute;
use crate::cupti::functions::{Handle, RESOURCE_CONTEXT_CREATED, SUCCESS, domain};
use crate::cupti::others::{OTHER, OURS, TWINS};
use crate::cupti::run::{CuptiBackend, Run};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use xputrace_agent::device::{CodeAt, TWIN_WITHIN};
use xputrace_agent::{Agent, ArmRefusal, Context, Library, Stream};
use xputrace_wire::device::{
    BLOCK_VARIABLE, CopyExtent, GLOBALS_VARIABLE, ImageOutcome, MOST_CONTEXTS, NAMES_VARIABLE, Twin, twin_symbol,
};
use xputrace_wire::message::demand;
use xputrace_wire::record::UNKNOWN;

/// `CUDA_ERROR_OUT_OF_MEMORY`: of our tables.
const TABLE_FULL: Failure = 2;
/// `CUDA_ERROR_INVALID_HANDLE`: the kernel is not the one that the twin was made of.
const UNLIKE: Failure = 400;

/// An image that is being prepared.
struct Woven {
    origin: Origin,
    /// `CUmodule` or `CUlibrary` of the program.
    code: usize,
    contents: Arc<[Contents]>,
}

/// An entry to be.
#[derive(Clone, Copy, Debug)]
struct Swap {
    original: u64,
    /// As in [`Choice`].
    holding: u8,
    new: New,
}

/// Adds entries for launches at which no condition holds, where there is no twin for those: they run the original.
fn with_originals(mut swaps: Vec<Swap>) -> Vec<Swap> {
    for Swap { original, new, .. } in swaps.clone() {
        if !swaps.iter().any(|it| it.original == original && it.holding == 0) {
            let new = New { other: 0, kernel: new.kernel, ..New::default() };
            swaps.push(Swap { original, holding: 0, new });
        }
    }
    swaps
}

impl Run {
    /// Handles code that the program has loaded from there: asks for its twin, and waits until that can run.
    #[cold]
    pub(super) fn on_load(&self, twins: &'static Twins, loaded: LoadedCode, from: CodeAt) {
        if twins.early.is_some() {
            twins.images().loaded.insert((loaded.origin, loaded.code));
        }
        let outcome = match self.load_twin(twins, loaded, from) {
            Ok(()) => ImageOutcome::Twinned,
            Err(outcome) => outcome,
        };
        self.agent.count_image(outcome);
    }

    fn load_twin(&self, twins: &'static Twins, loaded: LoadedCode, from: CodeAt) -> Result<(), ImageOutcome> {
        let (backend, agent) = (self.backend, self.agent);
        let until = Instant::now() + TWIN_WITHIN;
        let made = agent.ask_for_twins(from, until)?;
        let result = Arc::new(OnceLock::new());
        let (of_worker, work) = (Arc::clone(&result), Work { backend, agent, loaded });
        let is_done = agent.work_in_time(until, move |is_given_up| {
            let _ = of_worker.set(twins.load(work, &made, is_given_up));
        });
        result.get().copied().filter(|_| is_done).unwrap_or(Err(ImageOutcome::NotLoaded))
    }
}

/// Twins that a run loads at most into a process: what a program loads and unloads again and again takes no end of memory.
const MOST_TWINS: u32 = 4096;

/// What a job of loading needs.
#[derive(Clone, Copy)]
pub(super) struct Work {
    pub(super) backend: &'static CuptiBackend,
    pub(super) agent: &'static Agent,
    pub(super) loaded: LoadedCode,
}

impl Twins {
    /// Loads the twins of an image, and prepares the context in which that was loaded.
    pub(super) fn load(&self, work: Work, twins: &[Twin], is_given_up: &AtomicBool) -> Result<(), ImageOutcome> {
        let Work { backend, agent, loaded } = work;
        let contents = match Fingerprint::of(loaded, twins) {
            Some(of) => self.early_contents(work, of, twins, is_given_up),
            None => self.load_all(work, twins, is_given_up),
        }?;
        let number = self.newest.load(Ordering::Acquire) + 1;
        let context = loaded.context.filter(|_| loaded.origin == Origin::Module);
        let swap = |it: &Pair| {
            let new = New { other: it.twin, kernel: it.kernel, ..New::default() };
            Swap { original: it.original, holding: it.choice.holding, new }
        };
        let swaps = with_originals(contents.iter().flat_map(|it| &it.kernels).map(swap).collect());
        let mut image = TwinnedCode {
            number,
            origin: loaded.origin,
            code: loaded.code,
            context,
            is_early: loaded.kernel.is_some(),
            contents,
            entries: vec![],
        };
        let slot = {
            let mut images = self.images();
            // Whoever waited goes on, and may unload the code.
            if is_given_up.load(Ordering::Acquire) {
                return Err(ImageOutcome::NotLoaded);
            }
            // Whether a launch has a twin at all is known by the entry for no condition.
            for Swap { original, new, .. } in swaps.into_iter().filter(|it| it.holding == 0) {
                let key = TwinKey::anywhere(original).ok_or(ImageOutcome::NotLoaded)?;
                if !self.twins.insert(key, new) {
                    image.entries.iter().for_each(|it| self.twins.remove(it.key));
                    return Err(ImageOutcome::TableFull);
                }
                image.entries.push(ImageEntry { slot: MOST_CONTEXTS, key, back: None });
            }
            images.all.push(image);
            loaded.context.and_then(|it| self.contexts.claim(it.id, it.handle))
        };
        // No launch is to wait for what was loaded long before.
        let has_context = |it: &usize| self.contexts.state(*it).handle().is_some();
        let others = (0..MOST_CONTEXTS).filter(|it| loaded.kernel.is_some() && Some(*it) != slot && has_context(it));
        slot.into_iter().chain(others).for_each(|it| self.prepare(backend, agent, it, number));
        // From here on, launches in other contexts wait until those are prepared, too.
        self.newest.store(number, Ordering::Release);
        Ok(())
    }

    /// Loads twins, which stay loaded, whatever becomes of their originals: graphs may have them.
    fn load_all(&self, work: Work, twins: &[Twin], is_given_up: &AtomicBool) -> Result<Arc<[Contents]>, ImageOutcome> {
        if self.n_loaded.fetch_add(twins.len() as u32, Ordering::Relaxed) >= MOST_TWINS {
            return Err(ImageOutcome::TableFull);
        }
        let contents =
            twins.iter().map(|it| self.load_contents(work, it, is_given_up)).collect::<DriverResult<Vec<Contents>>>();
        let contents = contents.map_err(|it| self.not_loaded(work.agent, it))?;
        self.numbered(contents).map(Arc::from).ok_or(ImageOutcome::TableFull)
    }

    /// Returns what became of an image whose twin was not loaded, and tells what CUDA answered.
    fn not_loaded(&self, agent: &Agent, failure: Failure) -> ImageOutcome {
        match failure {
            UNLIKE => return ImageOutcome::Unlike,
            GONE => {}
            _ => tell_once(&self.has_unloaded, agent, "was not loaded", failure),
        }
        ImageOutcome::NotLoaded
    }

    /// Loads twins of a kernel that was loaded before we came, once.
    fn early_contents(
        &self,
        work: Work,
        of: Fingerprint,
        twins: &[Twin],
        is_given_up: &AtomicBool,
    ) -> Result<Arc<[Contents]>, ImageOutcome> {
        let known = self.images().early_twins.iter().find(|it| it.of == of).map(|it| Arc::clone(&it.contents));
        if let Some(contents) = known {
            self.check_again(work, &contents, is_given_up).map_err(|it| self.not_loaded(work.agent, it))?;
            return Ok(contents);
        }
        let contents = self.load_all(work, twins, is_given_up)?;
        self.images().early_twins.push(EarlyTwins { of, contents: Arc::clone(&contents) });
        Ok(contents)
    }

    /// Checks that twins are like their kernel still: its handle may be another's.
    fn check_again(&self, work: Work, contents: &[Contents], is_given_up: &AtomicBool) -> DriverResult<()> {
        let mut pairs = contents.iter().flat_map(|it| &it.kernels);
        self.with_kernels(work, is_given_up, |lease| {
            pairs.try_for_each(|it| self.early_kernel(work, lease, it.original, it.twin).map(drop))
        })
    }

    /// Returns a kernel that was loaded before we came, if it is like its twin.
    fn early_kernel(&self, work: Work, lease: Lease<'_>, kernel: u64, twin: u64) -> DriverResult<u64> {
        // SAFETY: a kernel of the lease's code, and our own.
        lease.call(|| unsafe { alike(work.backend, work.loaded.origin, kernel, twin) })
    }

    /// Does something with kernels of code that is not unloaded meanwhile; in its context if that is needed.
    fn with_kernels<T>(
        &self,
        Work { backend, loaded, .. }: Work,
        is_given_up: &AtomicBool,
        run: impl FnOnce(Lease<'_>) -> DriverResult<T>,
    ) -> DriverResult<T> {
        let lease = Lease::new(self).of_loading(loaded.code, is_given_up);
        // The driver may have to load a kernel before it tells its parameters.
        match (loaded.origin, loaded.kernel) {
            (Origin::Library, None) => run(lease),
            _ => {
                let lease = lease.in_context(self.slot_of(loaded.context).ok_or(INVALID)?);
                lease.run(backend, || run(lease))
            }
        }
    }

    /// Numbers the kernels whose handlers have conditions; `None` if they are too many.
    fn numbered(&self, mut contents: Vec<Contents>) -> Option<Vec<Contents>> {
        let mut numbers: Vec<(u64, KernelNumber)> = Vec::new();
        for pair in contents.iter_mut().flat_map(|it| &mut it.kernels) {
            let known = numbers.iter().find(|it| it.0 == pair.original).map(|it| it.1);
            pair.kernel = known.or_else(|| self.kernels.add(pair.choice))?;
            numbers.push((pair.original, pair.kernel));
        }
        Some(contents)
    }

    /// Loads a twin and finds its kernels and their originals.
    fn load_contents(&self, work: Work, twin: &Twin, is_given_up: &AtomicBool) -> DriverResult<Contents> {
        let Work { backend, loaded, .. } = work;
        let code = &backend.driver.code;
        let name = |it: &str| CString::new(it).map_err(|_| INVALID);
        if is_given_up.load(Ordering::Acquire) {
            return Err(INVALID);
        }
        // PTX ends with a 0; behind a cubin it does no harm.
        let text = [&twin.code[..], &[0]].concat();
        // SAFETY: the code lives during the call.
        let library = unsafe { code.load(&text)? };
        let variables = twin.variables.iter().map(|it| name(it)).collect::<DriverResult<Vec<CString>>>()?;
        let kernels = self.with_kernels(work, is_given_up, |lease| {
            let mut kernels = Vec::new();
            for (symbol, choice) in twin.kernels.iter().zip(&twin.choices) {
                // SAFETY: the library just loaded.
                let twin = unsafe { code.kernel(library, &name(&twin_symbol(symbol))?)? };
                let original = name(symbol)?;
                let original = match (loaded.kernel, loaded.origin) {
                    (Some(kernel), _) => Ok(self.early_kernel(work, lease, kernel, twin)?),
                    // SAFETY: code that is not unloaded meanwhile.
                    (None, Origin::Library) => lease.call(|| unsafe { code.kernel(loaded.code as Handle, &original) }),
                    (None, Origin::Module) => {
                        // SAFETY: as above, in its context.
                        lease.call(|| unsafe { code.module_kernel(loaded.code as Handle, &original) })
                    }
                };
                match original {
                    Ok(original) => kernels.push(Pair { original, twin, choice: *choice, kernel: 0 }),
                    Err(GONE) => return Err(GONE),
                    // One that the original lacks is never launched.
                    Err(_) => {}
                }
            }
            Ok(kernels)
        });
        Ok(Contents { library: library as usize, kernels: kernels?, variables, names: twin.names.clone() })
    }

    /// Returns the slot of a context, or gives it one.
    pub(super) fn slot_of(&self, context: Option<Context>) -> Option<usize> {
        let _one_at_a_time = self.images();
        context.and_then(|it| self.contexts.claim(it.id, it.handle))
    }

    /// Prepares a context as a job of its own.
    pub(super) fn prepare_alone(&self, backend: &CuptiBackend, agent: &Agent, slot: usize) {
        self.prepare(backend, agent, slot, self.newest.load(Ordering::Acquire));
        self.images().jobs[slot] = None;
        self.released.notify_all();
    }

    /// Prepares a context for all twins that are loaded, of which this is the newest.
    pub(super) fn prepare(&self, backend: &CuptiBackend, agent: &Agent, slot: usize, newest: u32) {
        let prepare = || {
            self.give_block(backend, agent, slot)?;
            let before = self.contexts.state(slot).prepared.load(Ordering::Acquire);
            let numbers: Vec<u32> = self.images().all.iter().map(|it| it.number).filter(|it| *it > before).collect();
            let mut all = Ok(());
            for number in numbers {
                all = all.and(self.prepare_image(backend, slot, number));
            }
            all
        };
        let prepared = Lease::new(self).in_context(slot).run(backend, prepare);
        // Without the context, nothing is launched there.
        if let Some(failure) = prepared.err().filter(|it| *it != GONE) {
            tell_once(&self.has_unprepared, agent, "could not be prepared in a context", failure);
        }
        self.contexts.state(slot).prepared.fetch_max(newest, Ordering::AcqRel);
        self.begin_clock(backend, agent, slot);
    }

    /// Gives the current context its stream and its block, once.
    fn give_block(&self, backend: &CuptiBackend, agent: &Agent, slot: usize) -> DriverResult<()> {
        let (code, state) = (&backend.driver.code, self.contexts.state(slot));
        if state.block.load(Ordering::Acquire) != 0 {
            return Ok(());
        }
        let region = agent.device_region().ok_or(INVALID)?;
        let lease = Lease::new(self).in_context(slot);
        // SAFETY: in the context, here and below.
        let device = lease.call(|| unsafe { code.device() })? as u32;
        state.device.store(device, Ordering::Release);
        state.sms.store(backend.driver.devices.sms(device as i32), Ordering::Release);
        if !agent.is_device_selected(device) {
            // Its launches are none of the run's.
            state.prepared.store(u32::MAX, Ordering::Release);
            return Ok(());
        }
        let stream = self.own_stream(backend, slot, lease)?;
        // What an attempt left that failed later is used again.
        if state.allocated.load(Ordering::Acquire) == 0 {
            // SAFETY: as above.
            state.allocated.store(lease.call(|| unsafe { code.allocate(region.block_bytes()) })?, Ordering::Release);
        }
        let block = state.allocated.load(Ordering::Acquire);
        // SAFETY: as above; the initial bytes are as long as the block.
        lease.call(|| unsafe { code.write(block, region.initial(), region.block_bytes(), stream) })?;
        if let Some(at) = region.place_of_clock_offset() {
            let guess = state.timer().first().0.to_le_bytes();
            // SAFETY: a word of the block, and bytes that live until the copy is done.
            lease.call(|| unsafe { code.write(block + at, guess.as_ptr(), guess.len(), stream) })?;
            // SAFETY: our own stream.
            lease.call(|| unsafe { code.wait_for(stream) })?;
        }
        for array in region.arrays() {
            // SAFETY: memory that stays mapped.
            let address = lease.call(|| unsafe { code.register(array.address, array.bytes) })?;
            let offset = address.wrapping_sub(block).to_le_bytes();
            // SAFETY: a word of the block, and one of ours that lives until the copy is done.
            lease.call(|| unsafe {
                code.write(block + array.at, offset.as_ptr(), offset.len(), stream)?;
                code.wait_for(stream)
            })?;
        }
        // SAFETY: as above.
        lease.call(|| unsafe { code.wait_for(stream) })?;
        let told = &region.control().slots[slot];
        told.context.store(self.contexts.id(slot), Ordering::Release);
        told.device.store(device, Ordering::Release);
        region.control().contexts.fetch_max(slot as u32 + 1, Ordering::AcqRel);
        state.block.store(block, Ordering::Release);
        Ok(())
    }

    /// Returns the current context's stream, which is made once.
    fn own_stream(&self, backend: &CuptiBackend, slot: usize, lease: Lease<'_>) -> DriverResult<Handle> {
        let state = self.contexts.state(slot);
        let made = state.stream.load(Ordering::Acquire);
        if !made.is_null() {
            return Ok(made);
        }
        // SAFETY: in the context.
        let (stream, id) = self.stream_with_id(backend, slot, lease, || unsafe { backend.driver.code.stream() })?;
        state.stream_id.store(id, Ordering::Release);
        state.stream.store(stream, Ordering::Release);
        Ok(stream)
    }

    /// Makes a stream in the current context, and returns its id in records too, as far as that is known.
    pub(super) fn stream_with_id(
        &self,
        backend: &CuptiBackend,
        slot: usize,
        lease: Lease<'_>,
        make: impl FnOnce() -> DriverResult<Handle>,
    ) -> DriverResult<(Handle, u32)> {
        let stream = lease.call(make)?;
        let context = Context { id: self.contexts.id(slot), handle: self.contexts.state(slot).handle().ok_or(GONE)? };
        let id =
            lease.call(|| Ok(backend.stream_of(context, Stream { handle: stream as usize, per_thread: false })))?;
        Ok((stream, id.unwrap_or(UNKNOWN)))
    }

    /// Makes an image's twins run in the current context, if its kernels can.
    fn prepare_image(&self, backend: &CuptiBackend, slot: usize, number: u32) -> DriverResult<()> {
        let woven = {
            let images = self.images();
            let Some(image) = images.all.iter().find(|it| it.number == number) else { return Ok(()) };
            let is_elsewhere = image.context.is_some_and(|it| it.id != self.contexts.id(slot));
            if is_elsewhere || self.contexts.state(slot).block.load(Ordering::Acquire) == 0 {
                return Ok(());
            }
            Woven { origin: image.origin, code: image.code, contents: Arc::clone(&image.contents) }
        };
        let lease = Lease::new(self).in_context(slot).of_image(woven.code, number);
        let of_twins = woven.contents.iter().map(|it| {
            // SAFETY: in the context.
            unsafe { self.swaps(backend, lease, slot, &woven, it) }
        });
        let swaps = of_twins.collect::<DriverResult<Vec<Vec<Swap>>>>().map(|it| with_originals(it.concat()));
        let mut images = self.images();
        // It may have been unloaded, or the context ended, where the program did not wait.
        let image = images.all.iter_mut().find(|it| it.number == number);
        let Some(image) = image.filter(|_| self.contexts.state(slot).handle().is_some()) else { return Ok(()) };
        for Swap { original, holding, new } in swaps? {
            let Some(key) = TwinKey::new(original, slot).map(|it| it.holding(holding)) else { continue };
            if !self.twins.insert(key, new) {
                return Err(TABLE_FULL);
            }
            let back = TwinKey::anywhere(new.other);
            image.entries.push(ImageEntry { slot, key, back: back.filter(|_| !new.is_kernel) });
            // Only for the program's questions: without room, it gets the twin.
            back.iter().for_each(|it| _ = self.originals.insert(*it, New { other: original, ..New::default() }));
        }
        Ok(())
    }

    /// Sets a twin's variables in the current context, and returns which handles stand for its kernels there.
    ///
    /// # Safety
    /// The lease is of the code and of the current context, of this slot.
    unsafe fn swaps(
        &self,
        backend: &CuptiBackend,
        lease: Lease<'_>,
        slot: usize,
        of: &Woven,
        contents: &Contents,
    ) -> DriverResult<Vec<Swap>> {
        let (code, state) = (&backend.driver.code, self.contexts.state(slot));
        let (library, stream) = (contents.library as Handle, state.stream.load(Ordering::Acquire));
        let device = state.device.load(Ordering::Acquire) as i32;
        // First what is asked of the program's code: our own may take longer to load.
        // SAFETY: the lease's code.
        let address = |it: &CString| lease.call(|| unsafe { code.variable(of.origin, of.code as Handle, it) });
        let addresses =
            contents.variables.iter().map(|it| address(it).map(|it| it.0)).collect::<DriverResult<Vec<u64>>>()?;
        // SAFETY: a kernel of the lease's code, or our own.
        let function = |kernel| lease.call(|| unsafe { code.function(kernel) }).map(KernelHandle::Function);
        let originals = match of.origin {
            Origin::Module => contents.kernels.iter().map(|it| Ok(KernelHandle::Function(it.original))).collect(),
            Origin::Library => {
                contents.kernels.iter().map(|it| function(it.original)).collect::<DriverResult<Vec<_>>>()
            }
        };
        let set = |name: &str, values: &[u64]| {
            let name = CString::new(name).map_err(|_| INVALID)?;
            // SAFETY: our library.
            let (address, room) = lease.call(|| unsafe { code.variable(Origin::Library, library, &name) })?;
            let bytes = size_of_val(values);
            if room < bytes {
                return Err(INVALID);
            }
            // SAFETY: as many bytes as the variable has room for.
            lease.call(|| unsafe { code.write(address, values.as_ptr().cast(), bytes, stream) })?;
            // SAFETY: our own stream.
            lease.call(|| unsafe { code.wait_for(stream) })
        };
        self.switch_on(backend, lease, slot, library)?;
        if !addresses.is_empty() {
            set(GLOBALS_VARIABLE, &addresses)?;
        }
        if !contents.names.is_empty() {
            set(NAMES_VARIABLE, &contents.names)?;
        }
        let mut swaps = Vec::new();
        for (Pair { original, twin, choice, kernel }, of_context) in contents.kernels.iter().copied().zip(originals?) {
            let function = function(twin)?;
            let for_choice = |new: Swap| Swap { holding: choice.holding, new: New { kernel, ..new.new }, ..new };
            if of.origin == Origin::Library {
                let handle = |it| KernelHandle::Kernel(it, device);
                // SAFETY: handles of loaded code.
                swaps.push(for_choice(unsafe { swap(backend, lease, handle(original), handle(twin)) }));
            }
            // Of a library, the program may have asked for it.
            // SAFETY: as above.
            swaps.push(for_choice(unsafe { swap(backend, lease, of_context, function) }));
        }
        Ok(swaps)
    }

    /// Says to a library of ours where the current context's block is, and switches it from then on.
    pub(super) fn switch_on(
        &self,
        backend: &CuptiBackend,
        lease: Lease<'_>,
        slot: usize,
        library: Handle,
    ) -> DriverResult<()> {
        let name = CString::new(BLOCK_VARIABLE).map_err(|_| INVALID)?;
        // SAFETY: our library.
        let variable = || unsafe { backend.driver.code.variable(Origin::Library, library, &name) };
        let (address, bytes) = lease.call(variable)?;
        let switch = Switch { slot, address, bytes };
        switch.set(backend, lease, self.contexts.state(slot), self.off.get())?;
        self.images().add_switch(switch);
        Ok(())
    }

    /// Copies a context's block into the device region, and tells the twins how much of its ring was read.
    ///
    /// # Errors
    /// The driver could not, or the context is gone.
    pub(super) fn copy_block(
        &self,
        backend: &CuptiBackend,
        agent: &Agent,
        slot: usize,
        extent: CopyExtent,
    ) -> DriverResult<()> {
        let (code, state) = (&backend.driver.code, self.contexts.state(slot));
        let (block, stream) = (state.block.load(Ordering::Acquire), state.stream.load(Ordering::Acquire));
        let region = agent.device_region().filter(|_| self.has_block(slot)).ok_or(INVALID)?;
        let lease = Lease::new(self).in_context(slot);
        let copied = lease.run(backend, || {
            region.write_copy(slot, |to| {
                if let Some((at, read)) = region.read_of_ring(slot) {
                    // SAFETY: a word of the block, and bytes that live until the copy is done; in the context.
                    lease.call(|| unsafe { code.write(block + at, read.as_ptr(), read.len(), stream) })?;
                    // SAFETY: our own stream.
                    lease.call(|| unsafe { code.wait_for(stream) })?;
                }
                for piece in region.shape().pieces(extent) {
                    let (from, n_bytes) = (block + piece.start as u64, piece.len());
                    // SAFETY: a piece of the block, for which the copy has room; in the context.
                    lease.call(|| unsafe { code.read(to.add(piece.start), from, n_bytes, stream) })?;
                }
                // SAFETY: our own stream.
                lease.call(|| unsafe { code.wait_for(stream) })
            })
        });
        copied.inspect_err(|it| agent.copy_failed(slot, *it))
    }

    /// Copies so much of the blocks of all contexts. As often as it copies all, it switches what twins do in the program's graphs.
    pub(in super::super) fn copy_blocks(
        &'static self,
        backend: &'static CuptiBackend,
        agent: &'static Agent,
        extent: CopyExtent,
    ) {
        self.poll_programs(backend, agent);
        if let (CopyExtent::Whole, Some(region)) = (extent, agent.device_region()) {
            let wanted = self.images().wanted.look(region.control());
            self.switch(backend, wanted);
            (0..MOST_CONTEXTS).for_each(|slot| self.set_clock(backend, agent, slot));
        }
        (0..MOST_CONTEXTS).for_each(|slot| _ = self.copy_block(backend, agent, slot, extent));
    }

    /// Copies all blocks for the last time.
    pub(in super::super) fn leave_blocks(&self, backend: &CuptiBackend, agent: &Agent, disables: bool) {
        self.leave_programs(backend, agent);
        if disables {
            self.switch(backend, Off::ALL);
        }
        for slot in (0..MOST_CONTEXTS).filter(|it| self.has_block(*it)) {
            if self.copy_block(backend, agent, slot, CopyExtent::Whole).is_ok() {
                agent.note_last_copy(slot);
            }
        }
    }

    /// Sets the switches of all twins.
    fn switch(&self, backend: &CuptiBackend, off: Off) {
        if self.off.get() == off {
            return;
        }
        let switches = self.images().switches.clone();
        for slot in 0..MOST_CONTEXTS {
            let here: Vec<&Switch> = switches.iter().filter(|it| it.slot == slot).collect();
            if here.is_empty() {
                continue;
            }
            let (lease, state) = (Lease::new(self).in_context(slot), self.contexts.state(slot));
            // A context that is gone has no twins.
            let _ = lease.run(backend, || here.iter().try_for_each(|it| it.set(backend, lease, state, off)));
        }
        // Launches run twins again once those do something.
        self.off.set(off);
    }
}

impl Switch {
    /// Sets it, in its context, which is current.
    fn set(&self, backend: &CuptiBackend, lease: Lease<'_>, state: &ContextState, off: Off) -> DriverResult<()> {
        let (code, stream) = (&backend.driver.code, state.stream.load(Ordering::Acquire));
        let words = off.words(state.block.load(Ordering::Acquire));
        let bytes = self.bytes.min(size_of_val(&words));
        // SAFETY: a variable of ours with so many bytes.
        lease.call(|| unsafe { code.write(self.address, words.as_ptr().cast(), bytes, stream) })?;
        // SAFETY: our own stream.
        lease.call(|| unsafe { code.wait_for(stream) })
    }
}

/// Returns a kernel that was loaded before we came, if its twin takes the same parameters: all that is known of the kernel is
/// its name.
///
/// # Safety
/// Both kernels are alive, the first one of this origin, the twin a `CUkernel`.
unsafe fn alike(backend: &CuptiBackend, origin: Origin, kernel: u64, twin: u64) -> DriverResult<u64> {
    let handles = &backend.driver.handles;
    // SAFETY: the caller promises that both kernels are alive, the twin as a `CUkernel`.
    let (kernels, twins) = unsafe { (handles.parameters(origin, kernel)?, handles.parameters(Origin::Library, twin)?) };
    if kernels == twins { Ok(kernel) } else { Err(UNLIKE) }
}

/// Tells the first failure of a kind.
fn tell_once(was_told: &AtomicBool, agent: &Agent, what: &str, failure: Failure) {
    if !was_told.swap(true, Ordering::AcqRel) {
        agent.note(format!("a kernel's twin {what}: CUDA answered {failure}"));
    }
}

/// Makes a twin like its original, as far as the program can change that, and says when it stands for it.
///
/// # Safety
/// Both are kernels of code that the lease keeps loaded, in the current context.
unsafe fn swap(backend: &CuptiBackend, lease: Lease<'_>, original: KernelHandle, twin: KernelHandle) -> Swap {
    let code = &backend.driver.code;
    // SAFETY: the caller promises that both are kernels of code that the lease keeps loaded, in the current context.
    let get = |kernel, attribute| lease.call(|| unsafe { code.attribute(kernel, attribute) });
    // SAFETY: as above.
    let set = |attribute, value| lease.call(|| unsafe { code.set_attribute(twin, attribute, value) });
    let differs =
        |it: &u32| get(original, *it).ok().filter(|value| get(twin, *it) != Ok(*value)).map(|value| (*it, value));
    let is_refused =
        attribute::SETTABLE.iter().filter_map(differs).any(|(attribute, value)| set(attribute, value).is_err());
    if let Some((attribute, value)) = differs(&attribute::MOST_DYNAMIC_SHARED) {
        // If the twin takes no more, launches will show whether they need it.
        let _ = set(attribute, value);
    }
    let takes_more = attribute::TAKEN.iter().any(|it| match (get(original, *it), get(twin, *it)) {
        (Ok(originals), Ok(twins)) => twins > originals,
        _ => true,
    });
    let most = |it| u32::try_from(get(twin, it).unwrap_or(0)).unwrap_or(0);
    Swap {
        original: original.raw(),
        holding: 0,
        new: New {
            other: twin.raw(),
            most_shared: most(attribute::MOST_DYNAMIC_SHARED),
            most_threads: most(attribute::MOST_THREADS),
            is_refused,
            takes_more,
            is_kernel: matches!(twin, KernelHandle::Kernel(..)),
            ..New::default()
        },
    }
}

impl CuptiBackend {
    /// Watches the calls that twins depend on.
    pub(in super::super) fn watch_twins(&self, agent: &Agent) -> Result<(), ArmRefusal> {
        if !agent.wants(demand::DEVICE) {
            return Ok(());
        }
        let knows_handles = self.driver.handles.is_complete();
        if self.is_late && !knows_handles {
            agent.note(
                "device handlers run only in kernels that are loaded from now on: this driver, older than that of CUDA 12.5, \
                 does not tell which code a kernel is of"
                    .to_owned(),
            );
        }
        if self.twins.get().is_none() {
            let twins = Twins::new(self.is_late && knows_handles)
                .map_err(|it| ArmRefusal::from(format!("reserving memory for twins of kernels: {it}")))?;
            let _ = self.twins.set(twins);
        }
        let of_programs = agent.has_programs().then_some((domain::RESOURCE, RESOURCE_CONTEXT_CREATED));
        for (domain, id) in watched().chain(of_programs) {
            // A CUPTI that lacks one belongs to a CUDA that lacks it too.
            TWINS.set(domain, id, self.switch_callback(domain, id, true)? == SUCCESS);
        }
        Ok(())
    }

    /// Watches them no more.
    pub(in super::super) fn unwatch_twins(&self) {
        TWINS.drain(|domain, id| {
            if !OURS.has(domain, id) && !OTHER.wants(domain, id) {
                let _ = self.switch_callback(domain, id, false);
            }
        });
    }
}
