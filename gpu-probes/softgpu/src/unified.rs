//! Unified memory: where managed memory is, and CUPTI's counters of what happens to it.
//!
//! A simple model, since nobody watches who touches what: a kernel touches all managed memory, and so does the CPU once it has
//! waited for a stream or a context. Each touch of memory that is elsewhere is a fault, and moves it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::abi::{UnifiedMemoryCounter3, kind};
use crate::activity;
use crate::memory::MEMORY;
use crate::users::UserId;

/// `CUpti_ActivityUnifiedMemoryCounterKind`, as far as this library has any.
pub(crate) mod counter {
    pub(crate) const HOST_TO_DEVICE: u32 = 1;
    pub(crate) const DEVICE_TO_HOST: u32 = 2;
    pub(crate) const CPU_FAULT: u32 = 3;
    pub(crate) const GPU_FAULT: u32 = 4;
    /// The number of kinds, and the first that is not one.
    pub(crate) const END: u32 = 9;
}

/// `CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_COHERENCE`: a fault.
const CAUSE_COHERENCE: u32 = 2;
/// `CUPTI_ACTIVITY_UNIFIED_MEMORY_ACCESS_TYPE_WRITE`.
const ACCESS_WRITE: u32 = 2;

/// Kinds that the tool has asked for, one bit each.
static COUNTED: AtomicU32 = AtomicU32::new(0);
/// Addresses of managed allocations that the GPU has touched last.
static ON_GPU: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// Counts a kind, or stops counting it; returns false if there is no such kind.
pub(crate) fn configure(counter: u32, on: bool) -> bool {
    let bit = 1_u32.checked_shl(counter).unwrap_or(0);
    if on {
        COUNTED.fetch_or(bit, Ordering::Relaxed)
    } else {
        COUNTED.fetch_and(!bit, Ordering::Relaxed)
    };
    (1..counter::END).contains(&counter)
}

/// Stops counting.
pub(crate) fn reset() {
    COUNTED.store(0, Ordering::Relaxed);
}

/// A kernel begins on this GPU.
pub(crate) fn touched_by_gpu(device: i32) {
    for (address, bytes) in moved(|on_gpu, address| on_gpu.insert(address)) {
        count(counter::GPU_FAULT, address, 1, ACCESS_WRITE, device);
        count(counter::HOST_TO_DEVICE, address, bytes as u64, CAUSE_COHERENCE, device);
    }
}

/// The CPU has waited.
pub(crate) fn touched_by_cpu(device: i32) {
    for (address, bytes) in moved(|on_gpu, address| on_gpu.remove(&address)) {
        count(counter::CPU_FAULT, address, touched_by_cpu as *const () as u64, 0, device);
        count(counter::DEVICE_TO_HOST, address, bytes as u64, CAUSE_COHERENCE, device);
    }
}

/// Returns the managed allocations, with their sizes, that were elsewhere.
fn moved(mut was_elsewhere: impl FnMut(&mut BTreeSet<usize>, usize) -> bool) -> Vec<(usize, usize)> {
    let managed = MEMORY.managed_allocations();
    if managed.is_empty() {
        return Vec::new();
    }
    let mut on_gpu = ON_GPU.lock().unwrap_or_else(PoisonError::into_inner);
    on_gpu.retain(|it| managed.iter().any(|(address, _)| address == it));
    managed.into_iter().filter(|(address, _)| was_elsewhere(&mut on_gpu, *address)).collect()
}

fn count(counter_kind: u32, address: usize, value: u64, flags: u32, device: i32) {
    let is_counted = COUNTED.load(Ordering::Relaxed) >> counter_kind & 1 != 0;
    if !is_counted || !activity::enabled(kind::UNIFIED_MEMORY_COUNTER) {
        return;
    }
    let start = activity::stamp(UserId::GLOBAL);
    let record = UnifiedMemoryCounter3 {
        kind: kind::UNIFIED_MEMORY_COUNTER,
        counter_kind,
        value,
        start,
        // CUPTI leaves it 0 where it means nothing.
        end: if counter_kind == counter::CPU_FAULT { 0 } else { start + 1 },
        address: address as u64,
        src_id: device as u32,
        dst_id: device as u32,
        process_id: std::process::id(),
        flags,
        ..UnifiedMemoryCounter3::default()
    };
    activity::emit(kind::UNIFIED_MEMORY_COUNTER, &record);
}
