//! Reads CUPTI's activity records at fixed offsets.
//!
//! A record's offsets are the same in all versions from CUPTI 11.7 to 13.5 (structures only grow at
//! the end), so no record type is needed; CUPTI, which knows the sizes, steps through them. A new
//! kind needs an offset table and a function here, which `tests/layouts.rs` compares with the dump.

use super::{KIND_CONCURRENT_KERNEL, KIND_GRAPH_TRACE, KIND_KERNEL, KIND_MEMCPY, KIND_MEMCPY_PEER, KIND_MEMSET};
use std::ffi::c_char;
use xputrace_wire::events::{Activity, CopyDirection, Realtime};
use xputrace_wire::record::{Graph, Kernel, Memcpy, Memset, UNKNOWN};

/// A decoded record.
#[derive(Clone, Copy, Debug)]
pub enum Record {
    /// With the address of its mangled name; `symbol` is 0.
    Kernel(Kernel, *const c_char),
    Memset(Memset),
    Memcpy(Memcpy),
    Graph(Graph),
    /// A kind that is not decoded.
    Other(u32),
}

/// Returns CUPTI's kinds of the records of this activity.
pub fn kinds_of(activity: Activity) -> &'static [u32] {
    match activity {
        Activity::Kernel => &[KIND_CONCURRENT_KERNEL],
        Activity::Memset => &[KIND_MEMSET],
        Activity::Memcpy => &[KIND_MEMCPY, KIND_MEMCPY_PEER],
        Activity::Graph => &[KIND_GRAPH_TRACE],
    }
}

/// What the records of a CUPTI hold at their end.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Whether records of copies count them.
    pub counts_copies: bool,
}

impl Extent {
    /// Of the CUPTI with this version.
    pub fn of(version: u32) -> Self {
        Extent { counts_copies: version >= FIRST_COUNTING_COPIES }
    }
}

/// `cuptiGetVersion` of CUDA 12.9. The field came with 12.8, whose number others have too.
const FIRST_COUNTING_COPIES: u32 = 27;

/// Reads a record.
///
/// # Safety
/// `record` points to an activity record of CUPTI's, of this extent.
pub unsafe fn read(record: *const u8, extent: Extent) -> Record {
    // SAFETY: the caller's promise; each kind's reader gets its own kind.
    unsafe {
        match kind(record) {
            KIND_CONCURRENT_KERNEL | KIND_KERNEL => {
                let (kernel, name) = kernel(record);
                Record::Kernel(kernel, name)
            }
            KIND_MEMSET => Record::Memset(memset(record)),
            KIND_MEMCPY => Record::Memcpy(memcpy(record, extent)),
            KIND_MEMCPY_PEER => Record::Memcpy(memcpy_peer(record)),
            KIND_GRAPH_TRACE => Record::Graph(graph(record)),
            other => Record::Other(other),
        }
    }
}

/// Byte offsets in a kernel record.
pub mod offset {
    pub const KIND: usize = 0;
    pub const REGISTERS: usize = 6;
    pub const START: usize = 16;
    pub const END: usize = 24;
    pub const DEVICE: usize = 40;
    pub const CONTEXT: usize = 44;
    pub const STREAM: usize = 48;
    pub const GRID: usize = 52;
    pub const BLOCK: usize = 64;
    pub const STATIC_SHARED: usize = 76;
    pub const DYNAMIC_SHARED: usize = 80;
    pub const LOCAL_MEMORY: usize = 84;
    pub const CORRELATION: usize = 92;
    pub const NAME: usize = 104;
    pub const GRAPH_NODE: usize = 144;
    pub const GRAPH: usize = 156;
}

/// Returns the kind of the record at `record`.
///
/// # Safety
/// `record` points to an activity record of CUPTI's.
pub unsafe fn kind(record: *const u8) -> u32 {
    // SAFETY: every record begins with its kind.
    unsafe { field(record, offset::KIND) }
}

/// Whether [`kernel`] reads records of this kind.
pub fn is_kernel(kind: u32) -> bool {
    kind == KIND_CONCURRENT_KERNEL || kind == KIND_KERNEL
}

/// Returns a kernel record and the address of its name; `symbol` in it is 0.
///
/// # Safety
/// `record` points to a record of a kind that [`is_kernel`].
pub unsafe fn kernel(record: *const u8) -> (Kernel, *const c_char) {
    // SAFETY: the caller's promise, and offsets that hold in every version.
    unsafe {
        let (start, end) = times(record);
        let kernel = Kernel {
            start,
            end,
            graph_node: field(record, offset::GRAPH_NODE),
            graph: field(record, offset::GRAPH),
            correlation: field(record, offset::CORRELATION),
            device: field(record, offset::DEVICE),
            context: field(record, offset::CONTEXT),
            stream: field(record, offset::STREAM),
            symbol: 0,
            grid: field(record, offset::GRID),
            block: field(record, offset::BLOCK),
            registers: u32::from(field::<u16>(record, offset::REGISTERS)),
            static_shared: field(record, offset::STATIC_SHARED),
            dynamic_shared: field(record, offset::DYNAMIC_SHARED),
            local_memory: field(record, offset::LOCAL_MEMORY),
        };
        (kernel, field(record, offset::NAME))
    }
}

/// Byte offsets in a memset record, where they differ from a kernel's.
pub mod memset_offset {
    pub const VALUE: usize = 4;
    pub const BYTES: usize = 8;
    pub const DEVICE: usize = 32;
    pub const CONTEXT: usize = 36;
    pub const STREAM: usize = 40;
    pub const CORRELATION: usize = 44;
    pub const MEMORY_KIND: usize = 50;
    pub const GRAPH_NODE: usize = 64;
    pub const GRAPH: usize = 72;
}

/// Returns a memset record. In a graph, CUPTI leaves the value and memory kind of the last memset
/// outside graphs there (seen with 13.0), so they are unknown.
///
/// # Safety
/// `record` points to a record of kind [`KIND_MEMSET`].
pub unsafe fn memset(record: *const u8) -> Memset {
    use memset_offset as at;
    // SAFETY: the caller's promise, and offsets that hold in every version.
    unsafe {
        let (start, end) = times(record);
        let graph_node: u64 = field(record, at::GRAPH_NODE);
        let known = graph_node == 0;
        Memset {
            start,
            end,
            bytes: field(record, at::BYTES),
            graph_node,
            graph: field(record, at::GRAPH),
            correlation: field(record, at::CORRELATION),
            device: field(record, at::DEVICE),
            context: field(record, at::CONTEXT),
            stream: field(record, at::STREAM),
            value: if known { field(record, at::VALUE) } else { 0 },
            memory_kind: if known { u32::from(field::<u16>(record, at::MEMORY_KIND)) } else { 0 },
            known: u32::from(known),
        }
    }
}

/// Byte offsets in a record of a copy, where they differ from a kernel's.
pub mod memcpy_offset {
    pub const DIRECTION: usize = 4;
    pub const SRC: usize = 5;
    pub const DST: usize = 6;
    pub const FLAGS: usize = 7;
    pub const BYTES: usize = 8;
    pub const DEVICE: usize = 32;
    pub const CONTEXT: usize = 36;
    pub const STREAM: usize = 40;
    pub const CORRELATION: usize = 44;
    pub const GRAPH_NODE: usize = 64;
    pub const GRAPH: usize = 72;
    pub const COPIES: usize = 88;
}

/// Byte offsets in a record of a copy between devices, where they differ from another copy's.
pub mod memcpy_peer_offset {
    pub const SRC_DEVICE: usize = 44;
    pub const DST_DEVICE: usize = 52;
    pub const CORRELATION: usize = 60;
    pub const GRAPH_NODE: usize = 72;
    pub const GRAPH: usize = 80;
}

/// `CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC`.
pub const FLAG_MEMCPY_ASYNC: u8 = 1;

/// Returns a record of a copy.
///
/// # Safety
/// `record` points to a record of kind [`KIND_MEMCPY`] and of this extent.
pub unsafe fn memcpy(record: *const u8, extent: Extent) -> Memcpy {
    use memcpy_offset as at;
    // SAFETY: the caller's promise, and offsets that hold in every version.
    unsafe {
        Memcpy {
            graph_node: field(record, at::GRAPH_NODE),
            copies: if extent.counts_copies { field(record, at::COPIES) } else { 0 },
            graph: field(record, at::GRAPH),
            correlation: field(record, at::CORRELATION),
            direction: u32::from(field::<u8>(record, at::DIRECTION)),
            src_device: UNKNOWN,
            dst_device: UNKNOWN,
            is_peer: 0,
            ..any_memcpy(record)
        }
    }
}

/// Returns a record of a copy between devices.
///
/// # Safety
/// `record` points to a record of kind [`KIND_MEMCPY_PEER`].
pub unsafe fn memcpy_peer(record: *const u8) -> Memcpy {
    use memcpy_peer_offset as at;
    // SAFETY: the caller's promise, and offsets that hold in every version.
    unsafe {
        Memcpy {
            graph_node: field(record, at::GRAPH_NODE),
            copies: 0,
            graph: field(record, at::GRAPH),
            correlation: field(record, at::CORRELATION),
            direction: CopyDirection::PeerToPeer as u32,
            src_device: field(record, at::SRC_DEVICE),
            dst_device: field(record, at::DST_DEVICE),
            is_peer: 1,
            ..any_memcpy(record)
        }
    }
}

/// Returns what records of both kinds have at the same place.
///
/// # Safety
/// `record` points to a record of either kind.
unsafe fn any_memcpy(record: *const u8) -> Memcpy {
    use memcpy_offset as at;
    // SAFETY: the caller's promise, and offsets that hold in every version.
    unsafe {
        let (start, end) = times(record);
        Memcpy {
            start,
            end,
            bytes: field(record, at::BYTES),
            device: field(record, at::DEVICE),
            context: field(record, at::CONTEXT),
            stream: field(record, at::STREAM),
            src: u32::from(field::<u8>(record, at::SRC)),
            dst: u32::from(field::<u8>(record, at::DST)),
            is_async: u32::from(field::<u8>(record, at::FLAGS) & FLAG_MEMCPY_ASYNC != 0),
            ..Memcpy::default()
        }
    }
}

/// Byte offsets in a record of a graph.
pub mod graph_offset {
    pub const CORRELATION: usize = 4;
    pub const START: usize = 8;
    pub const END: usize = 16;
    pub const DEVICE: usize = 24;
    pub const GRAPH: usize = 28;
    pub const CONTEXT: usize = 32;
    pub const STREAM: usize = 36;
}

/// Returns a record of a graph that was launched.
///
/// # Safety
/// `record` points to a record of kind [`KIND_GRAPH_TRACE`].
pub unsafe fn graph(record: *const u8) -> Graph {
    use graph_offset as at;
    // SAFETY: the caller's promise, and offsets that hold in every version.
    unsafe {
        let (start, end) = times_at(record, at::START, at::END);
        Graph {
            start,
            end,
            graph: field(record, at::GRAPH),
            correlation: field(record, at::CORRELATION),
            device: field(record, at::DEVICE),
            context: field(record, at::CONTEXT),
            stream: field(record, at::STREAM),
            ..Graph::default()
        }
    }
}

/// Returns start and end, which have the same offset in every kind of node.
///
/// # Safety
/// `record` points to a record of such a kind.
unsafe fn times(record: *const u8) -> (Realtime, Realtime) {
    // SAFETY: the caller's promise.
    unsafe { times_at(record, offset::START, offset::END) }
}

/// Returns start and end. If either is missing, both are 0: "not collected".
///
/// # Safety
/// `record` points to a record that has them there.
unsafe fn times_at(record: *const u8, start: usize, end: usize) -> (Realtime, Realtime) {
    // SAFETY: the caller's promise.
    let (start, end): (u64, u64) = unsafe { (field(record, start), field(record, end)) };
    if start != 0 && end != 0 { (Realtime(start), Realtime(end)) } else { (Realtime(0), Realtime(0)) }
}

/// # Safety
/// `size_of::<T>()` bytes at `base + offset` are readable and any bytes are a `T`.
unsafe fn field<T: Copy>(base: *const u8, offset: usize) -> T {
    // SAFETY: the caller's promise.
    unsafe { base.add(offset).cast::<T>().read_unaligned() }
}

/// An upper bound of a kernel record's size in all supported CUPTI versions (216 bytes in 13.0).
/// Gives a lower bound of discarded records before any record was seen.
pub const MOST_KERNEL_RECORD_BYTES: usize = 256;

/// Size of a memset record, to count discarded ones.
pub const MEMSET_RECORD_BYTES: usize = 88;

/// Size of a graph's record, likewise.
pub const GRAPH_RECORD_BYTES: usize = 56;

/// An upper bound of the size of a copy's record, likewise (96 bytes in 13.0, 112 in 13.4).
pub const MOST_MEMCPY_RECORD_BYTES: usize = 128;
