//! The maps of a script, as they are on the GPU.

use crate::refusal::MakerError;
use xputrace_bytecode::{MapKind, MapSpec};
use xputrace_device::layout::LINE_BYTES;
use xputrace_device::{DeviceMap, Scope, Storage};

/// Takes no memory.
pub(crate) const NOWHERE: DeviceMap =
    DeviceMap { kind: Storage::Ring, key_bytes: 0, value_bytes: 0, max_entries: 0, parts: 1, scope: Scope::Device };

/// A map of the script that is on the GPU.
#[derive(Clone, Copy, Debug)]
pub struct GpuMap<'a> {
    pub spec: &'a MapSpec,
    /// Whether its values may be in parts, which readers merge.
    pub has_parts: bool,
    /// Whether it is an array of Linux, which the GPU uses where it is.
    pub is_outer: bool,
}

/// Slots of the ring: 4 MiB, and the marks of 1 MiB. They are copied as often as the maps, or more.
pub(crate) const RING_SLOTS: u32 = 1 << 16;

/// Arrays per thread take at most this much memory, all together: it is copied as often as the maps.
const MOST_THREADS_BYTES: u64 = 32 << 20;

/// Returns for how many threads there is room in arrays per thread.
pub(crate) fn threads_with_room(maps: &[DeviceMap]) -> u64 {
    let of_threads = maps.iter().filter(|it| it.kind == Storage::PerThreadArray);
    let bytes = of_threads.fold(0, |all, it| it.value_bytes_in_all().saturating_add(all));
    MOST_THREADS_BYTES.checked_div(bytes).unwrap_or(0)
}

/// The values of a map take at most this much memory because they are in parts.
const MOST_PARTS_BYTES: u64 = 4 << 20;
/// More than multiprocessors have to share parts.
const MOST_PARTS: u64 = 128;

pub(crate) fn device_map(GpuMap { spec, has_parts, is_outer }: GpuMap<'_>) -> Result<DeviceMap, MakerError> {
    let kind = match spec.kind {
        MapKind::Hash if !is_outer => Storage::Hash,
        MapKind::Array if is_outer => Storage::OuterArray,
        MapKind::Array => Storage::Array,
        MapKind::PerThreadArray => Storage::PerThreadArray,
        MapKind::Ringbuf | MapKind::EventRing => Storage::Ring,
        _ => return Err(MakerError::Map(spec.name.clone())),
    };
    let map = DeviceMap {
        kind,
        key_bytes: spec.key_size,
        value_bytes: spec.value_size,
        max_entries: spec.max_entries,
        parts: 1,
        scope: if is_outer { Scope::System } else { Scope::Device },
    };
    let parts = if has_parts { MOST_PARTS_BYTES / map.part_bytes().max(LINE_BYTES) } else { 1 };
    Ok(DeviceMap { parts: parts.clamp(1, MOST_PARTS) as u32, ..map })
}
