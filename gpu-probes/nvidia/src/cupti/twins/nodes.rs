//! Kernel nodes of graphs: made of twins, and shown to the program as it made them.
//!
//! A node may get its clusters after its kernel. So where its attributes change, a twin that no longer fits is taken out.

use super::callbacks::FoundTwin;
use super::calls::{self, Extents, Kernel, MOST_NODE_BYTES, NodeLayout};
use super::choosing::CHOICES;
use super::state::Twins;
use super::table::TwinKey;
use crate::cupti::functions::{CallbackData, context};
use crate::cupti::run::Run;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use xputrace_agent::untraced;
use xputrace_wire::device::Unprobed;

thread_local! {
    /// What a kernel node is to be, in place of the program's own structure; used until the call returns.
    static NODE: UnsafeCell<[u64; MOST_NODE_BYTES / 8]> = const { UnsafeCell::new([0; MOST_NODE_BYTES / 8]) };
}

impl Run {
    /// Has a kernel node be made of the twin.
    ///
    /// # Safety
    /// `data` is CUPTI's for a call that has a pointer to a structure of this layout there, and before it, if the call changes a
    /// node, that one.
    #[cold]
    pub(super) unsafe fn on_node(
        &self,
        twins: &'static Twins,
        data: &CallbackData,
        at: usize,
        layout: NodeLayout,
        changes: bool,
    ) {
        // SAFETY: the caller promises that this call's parameters have such a pointer there, null or to a structure of
        // this layout, and a node before it if the call changes one.
        unsafe {
            let pointer = data.function_params.cast::<u8>().add(at).cast_mut().cast::<*const u8>();
            let description = pointer.read_unaligned();
            if description.is_null() {
                return;
            }
            let Some((mut kernel, place)) = calls::node_kernel(layout, description) else { return };
            if changes {
                kernel.node = pointer.sub(1).cast::<u64>().read_unaligned();
            }
            let Some(twin) = self.twin_of(twins, context(data), &kernel) else { return };
            NODE.with(|copy| {
                let copy = copy.get().cast::<u8>();
                description.copy_to_nonoverlapping(copy, layout.size());
                copy.add(place).cast::<u64>().write_unaligned(twin);
                pointer.write_unaligned(copy);
            });
        }
    }

    /// Has a node whose attributes have changed be made of the original again, if its twin can't run so.
    ///
    /// # Safety
    /// `data` is CUPTI's for a call that has set attributes of this kernel node, which is alive.
    #[cold]
    pub(super) unsafe fn on_node_attributes(&self, twins: &Twins, data: &CallbackData, node: u64) {
        let code = &self.backend.driver.code;
        // SAFETY: the caller promises that the call has set attributes of this kernel node, which is alive.
        let Ok(mut params) = untraced(|| unsafe { code.node(node) }) else { return };
        let at = params.as_mut_ptr().cast::<u8>();
        // SAFETY: a structure of this layout, which the driver has written.
        let Some((made_of, place)) = (unsafe { calls::node_kernel(NodeLayout::Kernel, at) }) else { return };
        let Some((original, _)) = TwinKey::anywhere(made_of.handle).and_then(|it| twins.originals.find(it)) else {
            return;
        };
        let current = context(data);
        let slot = match made_of.context {
            0 => current.and_then(|it| twins.contexts.find(it.id)),
            named => twins.contexts.find_handle(named as _),
        };
        let Some(slot) = slot else { return };
        let with_holding = |it: u8| Some((it, twins.twins.find(TwinKey::new(original, slot)?.holding(it))?));
        let found = (0..CHOICES).filter_map(with_holding).find(|it| it.1.0 == made_of.handle);
        let Some((holding, (twin, entry))) = found else { return };
        let is_current = current.is_some_and(|it| twins.contexts.find(it.id) == Some(slot));
        let found = FoundTwin { twin, entry, slot, is_current };
        let Err(why) = self.check(twins, &found, &Kernel { handle: original, node, ..made_of }) else { return };
        // SAFETY: where the structure has its handle.
        unsafe { at.add(place).cast::<u64>().write_unaligned(original) };
        // SAFETY: the caller promises that this kernel node is alive; the structure is the driver's but for the kernel,
        // which is the original.
        if untraced(|| unsafe { code.set_node(node, &params) }).is_ok() {
            self.count_original_again(twins, &found, holding, why);
        }
    }

    /// Counts a node that is made of the original again: it counted as one of the twin, for which these conditions held.
    fn count_original_again(&self, twins: &Twins, found: &FoundTwin<'_>, holding: u8, why: Option<Unprobed>) {
        let Some(region) = self.agent.device_region() else { return };
        let (control, kernel) = (region.control(), found.entry.kernel.load(Ordering::Relaxed));
        // A clone of a node was not counted.
        let less = |n: u64| n.checked_sub(1);
        let _ = control.slots[found.slot].swapped.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        let choice = twins.kernels.choice(kernel, holding);
        why.into_iter().for_each(|it| self.count_unprobed(control, choice, it));
    }

    /// Returns how the node that a call changes groups its blocks into clusters.
    pub(super) fn cluster_of_node(&self, kernel: &Kernel) -> Option<Extents> {
        if kernel.node == 0 {
            return None;
        }
        // SAFETY: a node in the program's call.
        untraced(|| unsafe { self.backend.driver.code.cluster_of_node(kernel.node) }).ok().flatten()
    }
}

impl Twins {
    /// Has a description of a node that the program asked for name the original.
    ///
    /// # Safety
    /// `node` is null or points at a structure of this layout, which the driver has written.
    pub(super) unsafe fn show_original(&self, node: *mut c_void, layout: NodeLayout) {
        for place in calls::node_handles(layout).iter().filter(|_| !node.is_null()) {
            // SAFETY: the caller promises that `node`, which is not null here, points at a structure of this layout,
            // which has a handle there.
            let place = unsafe { node.byte_add(*place).cast::<u64>() };
            // SAFETY: as above.
            let handle = unsafe { place.read_unaligned() };
            if let Some((original, _)) = TwinKey::anywhere(handle).and_then(|it| self.originals.find(it)) {
                // SAFETY: as above.
                unsafe { place.write_unaligned(original) };
            }
        }
    }
}
