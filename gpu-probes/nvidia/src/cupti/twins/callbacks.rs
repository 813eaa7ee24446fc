//! What happens in the program's calls: which of them load and unload code, and which launch what has a twin.

use super::calls::{self, Extents, Kernel, TwinCallRole, role_of};
use super::choosing::{CHOICES, count_unprobed};
use super::code::DriverResult;
use super::loaded::LoadedCode;
use super::state::Twins;
use super::streams::Launching;
use super::table::{TwinEntry, TwinKey};
use crate::cupti::calls::read;
use crate::cupti::driver::function_attribute;
use crate::cupti::functions::{
    CallbackData, Handle, RESOURCE_CONTEXT_CREATED, RESOURCE_CONTEXT_DESTROYING, ResourceData, SITE_ENTER, SITE_EXIT,
    context, domain, result,
};
use crate::cupti::run::{CuptiBackend, Run};
use std::sync::atomic::Ordering;
use xputrace_agent::device::CodeAt;
use xputrace_agent::{Context, untraced};
use xputrace_wire::device::{Choice, Control, CopyExtent, MOST_CONTEXTS, Unprobed};

/// A kernel's twin, in the context in which a launch runs.
pub(super) struct FoundTwin<'a> {
    pub(super) twin: u64,
    pub(super) entry: &'a TwinEntry,
    pub(super) slot: usize,
    /// Whether that context is the calling thread's.
    pub(super) is_current: bool,
}

impl Run {
    /// Handles a callback that twins depend on. At ENTER before others do: what waits is no part of a call.
    ///
    /// # Safety
    /// `data` is CUPTI's for this callback, null or valid while it runs.
    pub(in crate::cupti) unsafe fn on_twin_callback(&self, domain: u32, id: u32, data: *const CallbackData) {
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
    unsafe fn on_twin_enter(&self, twins: &'static Twins, role: TwinCallRole, data: &CallbackData) {
        let params = data.function_params.cast::<u8>();
        if params.is_null() {
            return;
        }
        // SAFETY: the caller promises that `data` is CUPTI's for a call with this role, whose parameters, not null
        // here, have these fields at the offsets of its layout.
        unsafe {
            match role {
                TwinCallRole::Launch { .. } | TwinCallRole::LaunchEx { .. } | TwinCallRole::Cooperative { .. } => {
                    let kernel = calls::launch(role, data.function_params);
                    if let Some(twin) = kernel.and_then(|it| self.twin_of(twins, context(data), &it)) {
                        params.add(calls::place_of_kernel(role)).cast_mut().cast::<u64>().write_unaligned(twin);
                    }
                }
                TwinCallRole::Node { at, layout, changes } => self.on_node(twins, data, at, layout, changes),
                TwinCallRole::Unload(origin) => twins.forget_code(self.agent, origin, read(params, 0)),
                TwinCallRole::DestroyContext => {
                    let handle: usize = read(params, 0);
                    self.copy_before_end(twins, |slot| twins.contexts.find_handle(handle as Handle) == Some(slot));
                }
                TwinCallRole::EndPrimary => {
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
    unsafe fn on_twin_exit(&self, twins: &'static Twins, role: TwinCallRole, data: &CallbackData) {
        let params = data.function_params.cast::<u8>();
        if params.is_null() {
            return;
        }
        // SAFETY: the caller promises that `data` is CUPTI's for a call with this role that has succeeded; its
        // parameters, not null here, have these fields at the offsets of its layout.
        unsafe {
            match role {
                TwinCallRole::Load(origin) | TwinCallRole::LoadFile(origin) => {
                    let code: *const usize = read(params, 0);
                    if let Some(code) = code.as_ref().copied().filter(|it| *it != 0) {
                        let at = read(params, 8);
                        let from = if let TwinCallRole::Load(_) = role { CodeAt::Memory(at) } else { CodeAt::Path(at) };
                        self.on_load(twins, LoadedCode { origin, code, context: context(data), kernel: None }, from);
                    }
                }
                TwinCallRole::NodeAttributes => self.on_node_attributes(twins, data, read(params, 0)),
                TwinCallRole::GetNode(layout) => twins.show_original(read(params, 8), layout),
                TwinCallRole::SetFunctionAttribute => {
                    let slot = context(data).and_then(|it| twins.contexts.find(it.id));
                    let (handle, attribute, value) = (read(params, 0), read(params, 8), read(params, 12));
                    slot.iter().for_each(|slot| self.follow_attribute(twins, *slot, handle, attribute, value));
                }
                TwinCallRole::SetKernelAttribute => {
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
    pub(super) fn twin_of(&self, twins: &'static Twins, current: Option<Context>, kernel: &Kernel) -> Option<u64> {
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
        let key = TwinKey::new(kernel.handle, slot)?;
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
        let found = FoundTwin { twin, entry, slot, is_current: context == current };
        if let Err(why) = self.check(twins, &found, kernel) {
            why.into_iter().for_each(|it| self.count_unprobed(control, choice, it));
            return None;
        }
        control.slots[slot].swapped.fetch_add(1, Ordering::Relaxed);
        Some(twin)
    }

    /// Whether a twin can run as its original would. Else why not, or nothing where CUDA refuses to launch the original.
    #[inline]
    pub(super) fn check(&self, twins: &Twins, found: &FoundTwin<'_>, kernel: &Kernel) -> Result<(), Option<Unprobed>> {
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
    fn fits(&self, twins: &Twins, found: &FoundTwin<'_>, kernel: &Kernel) -> bool {
        let Some((of_twin, of_original)) = self.blocks_at_once(twins, found, kernel) else { return false };
        let blocks = kernel.grid.volume();
        of_twin >= of_original || of_twin != 0 && (blocks <= of_twin || blocks > of_original)
    }

    /// Returns how many blocks of a twin and of its original the GPU runs at once, or others as it runs no fewer of the twin;
    /// `None` if the driver does not tell.
    fn blocks_at_once(&self, twins: &Twins, found: &FoundTwin<'_>, kernel: &Kernel) -> Option<(u64, u64)> {
        // Elsewhere, the driver would answer for another GPU.
        let (code, handles) = (&self.backend.driver.code, found.is_current.then_some([found.twin, kernel.handle])?);
        let ask = |one: &dyn Fn(u64) -> DriverResult<u64>| {
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
    fn cluster_of_kernel(&self, twins: &Twins, found: &FoundTwin<'_>, kernel: &Kernel) -> Option<Extents> {
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
    fn grow(&self, twins: &Twins, found: &FoundTwin<'_>, kernel: &Kernel) -> Result<(), Option<Unprobed>> {
        const MOST: u32 = function_attribute::MOST_DYNAMIC_SHARED;
        let FoundTwin { twin, entry, slot, .. } = *found;
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
        let Some(key) = TwinKey::new(handle, slot) else { return };
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
        let found = TwinKey::anywhere(launching.kernel.handle).and_then(|it| twins.twins.find(it));
        let (Some((plain, entry)), Some(region)) = (found, self.agent.device_region()) else { return };
        let choice = twins.choose(region.control(), entry, launching);
        if plain != 0 || choice.holding != 0 {
            self.count_unprobed(region.control(), choice, why);
        }
    }

    /// Counts a launch that runs the original although these conditions hold.
    #[cold]
    pub(super) fn count_unprobed(&self, control: &Control, choice: Choice, why: Unprobed) {
        self.agent.count_unprobed(why, 1);
        count_unprobed(control, choice);
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
                    let copied = twins.copy_block(backend, agent, slot, CopyExtent::Whole);
                    twins.contexts.state(slot).is_copied.store(copied.is_ok(), Ordering::Release);
                }
            };
            agent.wait_for_last_work(agent.work_later(copy));
        }
    }
}

impl CuptiBackend {
    /// Returns the twins of a run that has them.
    #[inline]
    pub(in crate::cupti) fn twins(&self) -> Option<&Twins> {
        self.twins.get()
    }
}
