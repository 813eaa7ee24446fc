//! Runs twins in place of kernels: what happens in the program's calls.
//!
//! ```text
//! module load, EXIT ─▶ image ─▶ tracer ─▶ twin ─▶ worker: loads it, prepares the context     (waits)
//! launch, ENTER ─▶ context prepared? ─▶ handle known there? ─▶ its twin fits? ─▶ `f` is the twin
//! unload, ENTER ─▶ the image's handles are forgotten
//! launch of a kernel that was loaded before we came ─▶ its name ─▶ tracer ─▶ twin ─▶ worker      (nobody waits: [`early`])
//! ```
//! A context is prepared on its first launch, or where a module is loaded: it gets a block, and the twins of all images
//! that are loaded by then. Only that waits; other launches take no lock. What the worker does is in [`work`].

pub mod arguments;
mod calls;
pub(crate) mod choosing;
mod clocks;
mod code;
mod contexts;
mod early;
mod image;
mod lease;
mod modules;
mod nodes;
mod programs;
mod streams;
pub(crate) mod table;
mod timer;
mod work;

pub use calls::{NodeLayout, Origin, Role, TWIN_IDS, offset};
pub(crate) use image::find_code;
pub(crate) use timer::{Calls, GpuTimer, guess};

use super::calls::read;
use super::driver::function_attribute;
use super::launches::{context, result};
use super::{
    CallbackData, CuptiBackend, Handle, RESOURCE_CONTEXT_CREATED, RESOURCE_CONTEXT_DESTROYING, ResourceData, Run,
    SITE_ENTER, SITE_EXIT, domain,
};
use calls::{Extents, Kernel, role_of};
use choosing::{AskLaunch, CHOICES, Kernels, SharedOff, Wanted};
use code::{Answer, KernelHandle};
use contexts::Contexts;
use early::{Early, EarlyKernel};
use lease::InUse;
use modules::OwnModules;
use programs::OwnPrograms;
use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use streams::Launching;
use table::{Entry, Key, Table};
use work::{EarlyTwins, Image, ImageEntry, Loaded, Switch};
use xputrace_agent::device::{CodeAt, Job, LOOKS_EVERY, TWIN_WITHIN};
use xputrace_agent::untraced;
use xputrace_agent::{Agent, Context};
use xputrace_wire::device::{Choice, Control, Extent, MOST_CONTEXTS, Unprobed};

/// How long the end of a context waits for the worker to let go of it, and that of code where the run or the program ends.
const LETS_GO_WITHIN: Duration = Duration::from_secs(2);

/// The twins of a run. Never freed: the worker may be in a call of the driver when the run ends.
#[derive(Debug)]
pub(super) struct Twins {
    is_on: AtomicBool,
    /// The number of the newest image with a twin; 0 without one.
    newest: AtomicU32,
    /// How many were loaded, or were to be.
    n_loaded: AtomicU32,
    /// Whether some image could not be prepared in some context.
    has_unprepared: AtomicBool,
    /// Whether some twin could not be loaded.
    has_unloaded: AtomicBool,
    /// From originals to twins, and from twins to originals.
    twins: Table,
    originals: Table,
    contexts: Contexts,
    modules: OwnModules,
    programs: OwnPrograms,
    kernels: Kernels,
    /// Kernels that were loaded before we came, where there may be any.
    early: Option<Early>,
    /// What the switches of twins are set to.
    off: SharedOff,
    images: Mutex<Images>,
    /// The worker has let go of something.
    released: Condvar,
}

#[derive(Debug, Default)]
struct Images {
    all: Vec<Image>,
    /// The switches of all twins that contexts have, also of images that are forgotten: graphs may have them.
    switches: Vec<Switch>,
    /// Kernels of code that was loaded before we came, as far as they were launched.
    early: Vec<EarlyKernel>,
    /// Numbers of such that were forgotten, for others.
    free: Vec<u32>,
    early_twins: Vec<EarlyTwins>,
    /// Code that was loaded since then, where that matters.
    loaded: HashSet<(Origin, usize)>,
    wanted: Wanted,
    in_use: InUse,
    /// Nobody tells any more what the program ends: the worker uses nothing of it.
    is_over: bool,
    /// What prepares each context.
    jobs: [Option<Job>; MOST_CONTEXTS],
}

impl Images {
    /// Adds a switch, if it is not known: twins are prepared again for a kernel that was forgotten.
    fn add_switch(&mut self, switch: Switch) {
        if !self.switches.iter().any(|it| (it.slot, it.address) == (switch.slot, switch.address)) {
            self.switches.push(switch);
        }
    }
}

/// A kernel's twin, in the context in which a launch runs.
struct Found<'a> {
    twin: u64,
    entry: &'a Entry,
    slot: usize,
    /// Whether that context is the calling thread's.
    is_current: bool,
}

impl Twins {
    /// `is_late` says that the program may have loaded code before we came.
    pub(super) fn new(is_late: bool) -> io::Result<Self> {
        Ok(Twins {
            is_on: AtomicBool::new(true),
            newest: AtomicU32::new(0),
            n_loaded: AtomicU32::new(0),
            has_unprepared: AtomicBool::new(false),
            has_unloaded: AtomicBool::new(false),
            twins: Table::new()?,
            originals: Table::new()?,
            contexts: Contexts::new(),
            modules: OwnModules::default(),
            programs: OwnPrograms::default(),
            kernels: Kernels::new()?,
            early: is_late.then(Early::new).transpose()?,
            off: SharedOff::default(),
            images: Mutex::default(),
            released: Condvar::new(),
        })
    }

    /// Runs originals from now on.
    pub(super) fn stop(&self) {
        self.is_on.store(false, Ordering::Release);
    }

    /// Whether this stream, by the ids in records, is ours.
    pub(super) fn has_stream(&self, context: u32, stream: u32) -> bool {
        self.contexts.has_stream(context, stream)
    }

    fn images(&self) -> MutexGuard<'_, Images> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the worker's call of the driver does not use this any more. The program has no time limit of its own, so
    /// there is one: shorter where the run or the program ends, since the tracer wants no twin then.
    fn wait_while(&self, agent: &Agent, most: Duration, is_used: impl Fn(&InUse) -> bool) {
        let began = Instant::now();
        let mut images = self.images();
        while is_used(&images.in_use) {
            let within = if agent.may_wait() { most } else { LETS_GO_WITHIN };
            if began.elapsed() >= within {
                return;
            }
            images = self.released.wait_timeout(images, LOOKS_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Has the worker use nothing of the program's any more.
    pub(super) fn close(&self) {
        self.images().is_over = true;
    }

    /// Forgets code that is about to be unloaded: its handles may be others' then.
    fn forget_code(&self, agent: &Agent, origin: Origin, code: usize) {
        let mut images = self.images();
        images.loaded.remove(&(origin, code));
        let ends = |it: (Origin, usize), is_early| it == (origin, code) || is_early && may_be_of(it.0, origin);
        let mut codes = self.forget_early(&mut images, |it| ends((it.origin, it.code), true));
        codes.push(code);
        images.all.retain(|image| {
            let is_it = ends((image.origin, image.code), image.is_early);
            if is_it {
                self.forget(image, |_| true);
            }
            !is_it
        });
        drop(images);
        self.wait_while(agent, TWIN_WITHIN, |it| it.code.is_some_and(|it| codes.contains(&it)));
    }

    /// Forgets a context that is about to end.
    fn forget_context(&self, agent: &Agent, handle: Handle) {
        let Some(slot) = self.contexts.find_handle(handle) else { return };
        let mut images = self.images();
        self.contexts.state(slot).end();
        let id = self.contexts.id(slot);
        images.all.retain(|image| {
            let ends = image.origin == Origin::Module && image.context.is_some_and(|it| it.id == id);
            self.forget(image, |it| ends || it == slot);
            !ends
        });
        images.switches.retain(|it| it.slot != slot);
        self.forget_early(&mut images, |it| it.origin == Origin::Module && it.context == id);
        drop(images);
        self.wait_while(agent, LETS_GO_WITHIN, |it| it.slot == Some(slot));
        if self.contexts.state(slot).is_copied.load(Ordering::Acquire) {
            agent.has_last_copy(slot);
        }
    }

    /// Removes the entries of an image in these slots; those of any context are beyond the slots.
    fn forget(&self, image: &Image, mut is_in: impl FnMut(usize) -> bool) {
        for ImageEntry { key, back, .. } in image.entries.iter().filter(|it| is_in(it.slot)) {
            self.twins.remove(*key);
            back.iter().for_each(|it| self.originals.remove(*it));
        }
    }
}

impl Run {
    /// Handles a callback that twins depend on. At ENTER before others do: what waits is no part of a call.
    ///
    /// # Safety
    /// `data` is CUPTI's for this callback, null or valid while it runs.
    pub(super) unsafe fn on_twin_callback(&self, domain: u32, id: u32, data: *const CallbackData) {
        let Some(twins) = self.backend.twins() else { return };
        if domain == domain::RESOURCE {
            // SAFETY: the caller promises that `data` is CUPTI's for this callback, null or valid while it runs; this
            // domain has another structure.
            let data = unsafe { data.cast::<ResourceData>().as_ref() };
            match (id, data) {
                (RESOURCE_CONTEXT_CREATED, Some(data)) => self.offer_context(twins, data.context),
                (RESOURCE_CONTEXT_DESTROYING, Some(data)) => twins.forget_context(self.agent, data.context),
                _ => {}
            }
            return;
        }
        // SAFETY: the caller promises that `data` is CUPTI's for this callback, null or valid while it runs.
        let (Some(role), Some(data)) = (role_of(domain, id), unsafe { data.as_ref() }) else { return };
        match data.site {
            // SAFETY: the caller's promise: the parameters are those of a call with this role.
            SITE_ENTER => unsafe { self.on_twin_enter(twins, role, data) },
            // SAFETY: as above.
            SITE_EXIT if result(data) == 0 => unsafe { self.on_twin_exit(twins, role, data) },
            _ => {}
        }
    }

    /// # Safety
    /// `data` is CUPTI's for a call with this role.
    #[inline]
    unsafe fn on_twin_enter(&self, twins: &'static Twins, role: Role, data: &CallbackData) {
        let params = data.function_params.cast::<u8>();
        if params.is_null() {
            return;
        }
        // SAFETY: the caller promises that `data` is CUPTI's for a call with this role, whose parameters, not null
        // here, have these fields at the offsets of its layout.
        unsafe {
            match role {
                Role::Launch { .. } | Role::LaunchEx { .. } | Role::Cooperative { .. } => {
                    let kernel = calls::launch(role, data.function_params);
                    if let Some(twin) = kernel.and_then(|it| self.twin_of(twins, context(data), &it)) {
                        params.add(calls::place_of_kernel(role)).cast_mut().cast::<u64>().write_unaligned(twin);
                    }
                }
                Role::Node { at, layout, changes } => self.on_node(twins, data, at, layout, changes),
                Role::Unload(origin) => twins.forget_code(self.agent, origin, read(params, 0)),
                Role::DestroyContext => {
                    let handle: usize = read(params, 0);
                    self.copy_before_end(twins, |slot| twins.contexts.find_handle(handle as Handle) == Some(slot));
                }
                Role::EndPrimary => {
                    let device: u32 = read(params, 0);
                    let is_on = |slot: usize| twins.contexts.state(slot).device.load(Ordering::Acquire) == device;
                    self.copy_before_end(twins, is_on);
                }
                _ => {}
            }
        }
    }

    /// # Safety
    /// `data` is CUPTI's for a call with this role, which has succeeded.
    #[cold]
    unsafe fn on_twin_exit(&self, twins: &'static Twins, role: Role, data: &CallbackData) {
        let params = data.function_params.cast::<u8>();
        if params.is_null() {
            return;
        }
        // SAFETY: the caller promises that `data` is CUPTI's for a call with this role that has succeeded; its
        // parameters, not null here, have these fields at the offsets of its layout.
        unsafe {
            match role {
                Role::Load(origin) | Role::LoadFile(origin) => {
                    let code: *const usize = read(params, 0);
                    if let Some(code) = code.as_ref().copied().filter(|it| *it != 0) {
                        let at = read(params, 8);
                        let from = if let Role::Load(_) = role { CodeAt::Memory(at) } else { CodeAt::Path(at) };
                        self.on_load(twins, Loaded { origin, code, context: context(data), kernel: None }, from);
                    }
                }
                Role::NodeAttributes => self.on_node_attributes(twins, data, read(params, 0)),
                Role::GetNode(layout) => twins.show_original(read(params, 8), layout),
                Role::SetFunctionAttribute => {
                    let slot = context(data).and_then(|it| twins.contexts.find(it.id));
                    let (handle, attribute, value) = (read(params, 0), read(params, 8), read(params, 12));
                    slot.iter().for_each(|slot| self.follow_attribute(twins, *slot, handle, attribute, value));
                }
                Role::SetKernelAttribute => {
                    let (attribute, value, handle) = (read(params, 0), read(params, 4), read(params, 8));
                    let device: u32 = read(params, 16);
                    for slot in 0..MOST_CONTEXTS {
                        if twins.contexts.state(slot).device.load(Ordering::Acquire) == device {
                            self.follow_attribute(twins, slot, handle, attribute, value);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns the handle to launch in place of a kernel's, if it has a twin and that can run where the launch does, which
    /// is made while a context is current.
    #[inline]
    fn twin_of(&self, twins: &'static Twins, current: Option<Context>, kernel: &Kernel) -> Option<u64> {
        let newest = twins.newest.load(Ordering::Acquire);
        let has_none = newest == 0 && twins.early.is_none();
        if has_none || !twins.is_on.load(Ordering::Acquire) || !self.agent.runs_twins_now() {
            return None;
        }
        let context = self.context_of(twins, current, kernel);
        let launching = Launching { run: self, kernel, context };
        if newest == 0 {
            self.look_at_early(twins, context, kernel);
            return None;
        }
        let slot = match context.and_then(|it| twins.contexts.find(it.id)) {
            Some(slot) if twins.contexts.state(slot).prepared.load(Ordering::Acquire) >= newest => slot,
            _ => match self.prepare_now(twins, context, newest) {
                Ok(slot) => slot,
                Err(why) => {
                    self.count_if_known(twins, &launching, why);
                    return None;
                }
            },
        };
        let key = Key::new(kernel.handle, slot)?;
        let Some((plain, entry)) = twins.twins.find(key) else {
            if twins.has_unprepared.load(Ordering::Acquire) {
                self.count_if_known(twins, &launching, Unprobed::NotReady);
            }
            self.look_at_early(twins, context, kernel);
            return None;
        };
        let control = self.agent.device_region()?.control();
        let choice = twins.choose(control, entry, &launching);
        let (twin, entry) = match choice.holding {
            0 => (plain, entry),
            holding => match twins.twins.find(key.holding(holding)) {
                Some(found) => found,
                None => {
                    self.count_unprobed(control, choice, Unprobed::NotReady);
                    return None;
                }
            },
        };
        if twin == 0 {
            return None;
        }
        let found = Found { twin, entry, slot, is_current: context == current };
        if let Err(why) = self.check(twins, &found, kernel) {
            why.into_iter().for_each(|it| self.count_unprobed(control, choice, it));
            return None;
        }
        control.slots[slot].swapped.fetch_add(1, Ordering::Relaxed);
        Some(twin)
    }

    /// Whether a twin can run as its original would. Else why not, or nothing where CUDA refuses to launch the original.
    #[inline]
    fn check(&self, twins: &Twins, found: &Found<'_>, kernel: &Kernel) -> Result<(), Option<Unprobed>> {
        let entry = found.entry;
        if entry.is_refused.load(Ordering::Relaxed) != 0 {
            return Err(Some(Unprobed::AttributeRefused));
        }
        if kernel.block.volume() > entry.most_threads.load(Ordering::Relaxed).into() {
            return Err(Some(Unprobed::BlockTooLarge));
        }
        if kernel.shared > entry.most_shared.load(Ordering::Relaxed) {
            self.grow(twins, found, kernel)?;
        }
        if entry.takes_more.load(Ordering::Relaxed) != 0 && !self.fits(twins, found, kernel) {
            // The driver refuses a cooperative launch that does not fit.
            return Err(Some(if kernel.is_cooperative { Unprobed::Cooperative } else { Unprobed::MayNotFit }));
        }
        Ok(())
    }

    /// Whether a twin that takes more than its original fits on the GPU where that fits as a whole: blocks may wait for each
    /// other then, and would for ever.
    #[inline(never)]
    fn fits(&self, twins: &Twins, found: &Found<'_>, kernel: &Kernel) -> bool {
        let Some((of_twin, of_original)) = self.blocks_at_once(twins, found, kernel) else { return false };
        let blocks = kernel.grid.volume();
        of_twin >= of_original || of_twin != 0 && (blocks <= of_twin || blocks > of_original)
    }

    /// Returns how many blocks of a twin and of its original the GPU runs at once, or others as it runs no fewer of the twin;
    /// `None` if the driver does not tell.
    fn blocks_at_once(&self, twins: &Twins, found: &Found<'_>, kernel: &Kernel) -> Option<(u64, u64)> {
        // Elsewhere, the driver would answer for another GPU.
        let (code, handles) = (&self.backend.driver.code, found.is_current.then_some([found.twin, kernel.handle])?);
        let ask = |one: &dyn Fn(u64) -> Answer<u64>| {
            let [twin, original] = untraced(|| handles.map(one));
            Some((twin.ok()?, original.ok()?))
        };
        // SAFETY: the handles of the launch, and of a twin in its context, which is current.
        let of_sm = ask(&|it| unsafe { code.blocks_per_sm(it, kernel.block.volume(), kernel.shared) })?;
        if of_sm.0 >= of_sm.1 {
            // No fewer clusters fit either; and their number takes the driver longer to tell.
            return Some(of_sm);
        }
        let kernel = &Kernel { cluster: kernel.cluster.or_else(|| self.cluster_of_node(kernel)), ..*kernel };
        let (each, times) = match kernel.cluster.or_else(|| self.cluster_of_kernel(twins, found, kernel)) {
            // SAFETY: as above.
            Some(cluster) => (ask(&|it| unsafe { code.clusters_at_once(it, kernel) })?, cluster.volume()),
            None => (of_sm, twins.contexts.state(found.slot).sms.load(Ordering::Acquire).into()),
        };
        let all = |n: u64| n.saturating_mul(times);
        (times != 0).then(|| (all(each.0), all(each.1)))
    }

    /// Returns how a kernel itself groups its blocks into clusters, by its code or its attributes.
    fn cluster_of_kernel(&self, twins: &Twins, found: &Found<'_>, kernel: &Kernel) -> Option<Extents> {
        let handle = twins.kernel_handle(found.slot, kernel.handle, found.entry);
        let [x, y, z] = function_attribute::CLUSTER.map(|attribute| {
            // SAFETY: the handle of the launch, of the same kind as its twin's.
            let set = untraced(|| unsafe { self.backend.driver.code.attribute(handle, attribute) });
            set.ok().and_then(|it| u32::try_from(it).ok()).filter(|it| *it != 0)
        });
        Some(Extents([x?, y?, z?]))
    }

    /// Lets a twin have more dynamic shared memory, where its original may have so much.
    #[cold]
    fn grow(&self, twins: &Twins, found: &Found<'_>, kernel: &Kernel) -> Result<(), Option<Unprobed>> {
        const MOST: u32 = function_attribute::MOST_DYNAMIC_SHARED;
        let Found { twin, entry, slot, .. } = *found;
        let Ok(bytes) = i32::try_from(kernel.shared) else { return Err(None) };
        let code = &self.backend.driver.code;
        let [original, twin] = [kernel.handle, twin].map(|it| twins.kernel_handle(slot, it, entry));
        // SAFETY: the handles of the launch and of a twin, in the context that the calling thread launches in.
        if untraced(|| unsafe { code.attribute(original, MOST) }).is_ok_and(|it| it < bytes) {
            return Err(None);
        }
        // SAFETY: as above.
        untraced(|| unsafe { code.set_attribute(twin, MOST, bytes) }).map_err(|_| Some(Unprobed::AttributeRefused))?;
        entry.most_shared.fetch_max(kernel.shared, Ordering::Relaxed);
        Ok(())
    }

    /// Sets an attribute of a kernel's twin as the program has set that of the kernel. Its dynamic shared memory grows
    /// with launches, which ask where it isn't known to be enough.
    fn follow_attribute(&self, twins: &Twins, slot: usize, handle: u64, attribute: u32, value: i32) {
        let Some(key) = Key::new(handle, slot) else { return };
        let found = (0..CHOICES).filter_map(|it| twins.twins.find(key.holding(it)));
        for (twin, entry) in found.filter(|it| it.0 != 0) {
            if attribute == function_attribute::MOST_DYNAMIC_SHARED {
                entry.most_shared.fetch_min(u32::try_from(value).unwrap_or(0), Ordering::Relaxed);
                continue;
            }
            let handle = twins.kernel_handle(slot, twin, entry);
            // SAFETY: a twin's handle, in the context of the program's call.
            if untraced(|| unsafe { self.backend.driver.code.set_attribute(handle, attribute, value) }).is_err() {
                entry.is_refused.store(1, Ordering::Relaxed);
            }
        }
    }

    /// Counts a launch if its kernel has a twin anywhere that is for it.
    #[cold]
    fn count_if_known(&self, twins: &Twins, launching: &Launching<'_>, why: Unprobed) {
        let found = Key::anywhere(launching.kernel.handle).and_then(|it| twins.twins.find(it));
        let (Some((plain, entry)), Some(region)) = (found, self.agent.device_region()) else { return };
        let choice = twins.choose(region.control(), entry, launching);
        if plain != 0 || choice.holding != 0 {
            self.count_unprobed(region.control(), choice, why);
        }
    }

    /// Counts a launch that runs the original although these conditions hold.
    #[cold]
    fn count_unprobed(&self, control: &Control, choice: Choice, why: Unprobed) {
        self.agent.count_unprobed(why, 1);
        choosing::count_unprobed(control, choice);
    }

    /// Has a context prepared for the twins that are loaded, and waits for it; returns its slot.
    #[cold]
    fn prepare_now(&self, twins: &'static Twins, context: Option<Context>, newest: u32) -> Result<usize, Unprobed> {
        let context = context.ok_or(Unprobed::NoContext)?;
        let (backend, agent) = (self.backend, self.agent);
        let mut images = twins.images();
        let slot = twins.contexts.claim(context.id, context.handle).ok_or(Unprobed::NoContext)?;
        let prepare = || agent.work_later(move || twins.prepare_alone(backend, agent, slot));
        let job = *images.jobs[slot].get_or_insert_with(prepare);
        drop(images);
        agent.wait_for_work(job);
        let is_ready = twins.contexts.state(slot).prepared.load(Ordering::Acquire) >= newest;
        if is_ready { Ok(slot) } else { Err(Unprobed::NotReady) }
    }

    /// Copies the blocks of contexts that a call may end, before it does.
    #[cold]
    fn copy_before_end(&self, twins: &'static Twins, ends: impl Fn(usize) -> bool) {
        let (backend, agent) = (self.backend, self.agent);
        let slots: Vec<usize> = (0..MOST_CONTEXTS).filter(|it| twins.has_block(*it) && ends(*it)).collect();
        if !slots.is_empty() {
            let is_copied = |slot: &usize| &twins.contexts.state(*slot).is_copied;
            slots.iter().for_each(|it| is_copied(it).store(false, Ordering::Release));
            let copy = move || {
                twins.finish_programs(backend, agent, |it| slots.contains(&it));
                for slot in slots {
                    let copied = twins.copy_block(backend, agent, slot, Extent::Whole);
                    twins.contexts.state(slot).is_copied.store(copied.is_ok(), Ordering::Release);
                }
            };
            agent.wait_for_last_work(agent.work_later(copy));
        }
    }
}

impl Twins {
    /// Decides which conditions of a kernel hold for the launch that the calling thread is making.
    #[inline]
    fn choose(&self, control: &Control, entry: &Entry, launch: &impl AskLaunch) -> Choice {
        self.kernels.choose(entry.kernel.load(Ordering::Relaxed), control, self.off.get(), launch)
    }

    fn has_block(&self, slot: usize) -> bool {
        let state = self.contexts.state(slot);
        state.block.load(Ordering::Acquire) != 0 && state.handle().is_some()
    }

    fn kernel_handle(&self, slot: usize, handle: u64, entry: &Entry) -> KernelHandle {
        match entry.is_kernel.load(Ordering::Relaxed) {
            0 => KernelHandle::Function(handle),
            _ => KernelHandle::Kernel(handle, self.contexts.state(slot).device.load(Ordering::Acquire) as i32),
        }
    }
}

/// Whether early code of this origin may be what is unloaded as the other: a library's functions in a context are those of a
/// module, and the driver does not tell of which library that is.
fn may_be_of(origin: Origin, unloaded: Origin) -> bool {
    (origin, unloaded) == (Origin::Module, Origin::Library)
}

impl CuptiBackend {
    /// Returns the twins of a run that has them.
    #[inline]
    pub(super) fn twins(&self) -> Option<&Twins> {
        self.twins.get()
    }
}
