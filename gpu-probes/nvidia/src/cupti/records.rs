//! Reads CUPTI's activity records at fixed offsets.
//!
//! A record's offsets are the same in all versions from CUPTI 11.7 to 13.5 (structures only grow at
//! the end), so no record type is needed; CUPTI, which knows the sizes, steps through them. A new
//! kind needs an offset table and a function here, which `tests/layouts.rs` compares with the dump.

use super::{
    KIND_CONCURRENT_KERNEL, KIND_GRAPH_TRACE, KIND_KERNEL, KIND_MEMCPY, KIND_MEMCPY_PEER, KIND_MEMSET, KIND_OVERHEAD,
    KIND_UNIFIED_MEMORY,
};
use std::ffi::c_char;
use xputrace_wire::events::host::{ContextSwitch, ContextSwitchKind, Migration, Overhead};
use xputrace_wire::events::{
    Activities, Activity, CopyDirection, HostEvent, HostEventRecord, HostEvents, MigrationCause, MigrationKind,
    OverheadKind, Realtime,
};
use xputrace_wire::message::demand;
use xputrace_wire::record::{Graph, Kernel, Memcpy, Memset, UNKNOWN};

/// A decoded record.
#[derive(Clone, Copy, Debug)]
pub enum CuptiRecord {
    /// With the address of its mangled name; `symbol` is 0.
    Kernel(Kernel, *const c_char),
    Memset(Memset),
    Memcpy(Memcpy),
    Graph(Graph),
    /// An event of the CPU, with the thread that it names, as pthreads calls it; its own is 0.
    Event(HostEventRecord, Option<u32>),
    /// A kind that is not decoded.
    Other(u32),
}

/// Records of an event of the CPU.
pub struct EventRecords {
    pub event: HostEvent,
    /// CUPTI's kind of them.
    pub kind: u32,
    /// Size of one in the newest CUPTI, to count discarded ones.
    pub bytes: usize,
    /// The first CUPTI that has them; `None` if all have.
    pub since: Option<&'static str>,
    /// Decodes one; the caller promises a record of this kind.
    read: unsafe fn(*const u8) -> (HostEventRecord, Option<u32>),
}

/// The events of the CPU that CUPTI makes records of.
pub const EVENT_RECORDS: &[EventRecords] = &[
    // Of 48 bytes before 12.9.
    EventRecords { event: HostEvent::Overhead, kind: KIND_OVERHEAD, bytes: 56, since: None, read: overhead },
    // Of 64 bytes before 13.0.
    EventRecords { event: HostEvent::Migration, kind: KIND_UNIFIED_MEMORY, bytes: 104, since: None, read: migration },
    EventRecords {
        event: HostEvent::ContextSwitch,
        kind: KIND_CONTEXT_SWITCH,
        bytes: 24,
        since: Some("13.1"),
        read: context_switch,
    },
];

const _: () = {
    // Each such event is in the list above.
    let (mut listed, mut at) = (HostEvents::NONE, 0);
    while at < EVENT_RECORDS.len() {
        listed = listed.with(HostEvents::of(&[EVENT_RECORDS[at].event]));
        at += 1;
    }
    assert!(listed.contains_all(HostEvents::OF_RECORDS));
};

/// `CUPTI_ACTIVITY_KIND_COMPUTE_ENGINE_CTX_SWITCH`.
pub const KIND_CONTEXT_SWITCH: u32 = 57;

/// Byte offsets in a record of a switch of contexts.
pub mod context_switch_offset {
    pub const CONTEXT: usize = 4;
    pub const TIME: usize = 8;
    pub const OPERATION: usize = 16;
}

/// Returns a record of a switch of contexts.
///
/// # Safety
/// `record` points to a record of kind [`KIND_CONTEXT_SWITCH`].
unsafe fn context_switch(record: *const u8) -> (HostEventRecord, Option<u32>) {
    use context_switch_offset as at;
    // SAFETY: the caller promises a record of kind [`KIND_CONTEXT_SWITCH`], which has these fields at the same offsets in every
    // version.
    let (context, start, operation) =
        unsafe { (field(record, at::CONTEXT), field(record, at::TIME), field::<u32>(record, at::OPERATION)) };
    let known = [ContextSwitchKind::Start, ContextSwitchKind::End].into_iter().find(|it| *it as u32 == operation);
    let kind = known.unwrap_or(ContextSwitchKind::Other) as u32;
    (ContextSwitch { start, end: start, kind, context, tid: 0, unused: 0 }.into(), None)
}

/// What CUPTI makes records of: activities, and events of the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordedKinds {
    pub activities: Activities,
    pub events: HostEvents,
}

impl RecordedKinds {
    /// Returns what a demand asks for.
    pub fn of(demand: u64) -> Self {
        let events = demand::host_events_of(demand).and(HostEvents::OF_RECORDS);
        RecordedKinds { activities: demand::activities_of(demand), events }
    }

    pub fn is_empty(self) -> bool {
        self.bits() == 0
    }

    /// Returns what is not in `other`.
    #[must_use]
    pub fn without(self, other: RecordedKinds) -> Self {
        RecordedKinds::from_bits(self.bits() & !other.bits())
    }

    /// Returns one bit for each.
    pub fn bits(self) -> u32 {
        u32::from(self.activities.bits()) | u32::from(self.events.bits()) << 16
    }

    /// The inverse of `bits`.
    pub fn from_bits(bits: u32) -> Self {
        RecordedKinds {
            activities: Activities::from_bits(bits as u16),
            events: HostEvents::from_bits((bits >> 16) as u16),
        }
    }

    /// Returns how records of its events look.
    pub fn event_records(self) -> impl Iterator<Item = &'static EventRecords> {
        EVENT_RECORDS.iter().filter(move |it| self.events.contains(it.event))
    }

    /// Returns CUPTI's kinds, and the names of the events that they are.
    pub fn kinds(self) -> impl Iterator<Item = (u32, &'static str)> {
        let of = |it: Activity| kinds_of(it).iter().map(move |kind| (*kind, it.name()));
        let activities = Activity::ALL.iter().copied().filter(move |it| self.activities.contains(*it)).flat_map(of);
        activities.chain(self.event_records().map(|it| (it.kind, it.event.name())))
    }
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
pub struct RecordExtent {
    /// Whether records of copies count them.
    pub counts_copies: bool,
}

impl RecordExtent {
    /// Of the CUPTI with this version.
    pub fn of(version: u32) -> Self {
        RecordExtent { counts_copies: version >= FIRST_COUNTING_COPIES }
    }
}

/// `cuptiGetVersion` of CUDA 12.9. The field came with 12.8, whose number others have too.
const FIRST_COUNTING_COPIES: u32 = 27;

/// Reads a record.
///
/// # Safety
/// `record` points to an activity record of CUPTI's, of this extent.
pub unsafe fn read(record: *const u8, extent: RecordExtent) -> CuptiRecord {
    // SAFETY: the caller promises an activity record of CUPTI's, of this extent; each kind's reader gets its own kind.
    unsafe {
        match kind(record) {
            KIND_CONCURRENT_KERNEL | KIND_KERNEL => {
                let (kernel, name) = kernel(record);
                CuptiRecord::Kernel(kernel, name)
            }
            KIND_MEMSET => CuptiRecord::Memset(memset(record)),
            KIND_MEMCPY => CuptiRecord::Memcpy(memcpy(record, extent)),
            KIND_MEMCPY_PEER => CuptiRecord::Memcpy(memcpy_peer(record)),
            KIND_GRAPH_TRACE => CuptiRecord::Graph(graph(record)),
            other => match EVENT_RECORDS.iter().find(|it| it.kind == other) {
                Some(it) => {
                    let (event, thread) = (it.read)(record);
                    CuptiRecord::Event(event, thread)
                }
                None => CuptiRecord::Other(other),
            },
        }
    }
}

/// Returns where records of a kind have their times, in CUPTI 13.5: byte offsets of nanoseconds, 8 bytes each.
pub fn time_offsets(kind: u32) -> &'static [usize] {
    match kind {
        KIND_CONCURRENT_KERNEL | KIND_KERNEL => &[16, 24, 32, 120, 128],
        KIND_MEMCPY | KIND_MEMSET | KIND_MEMCPY_PEER => &[16, 24],
        // Calls of the driver and the runtime, launches of the driver itself, synchronizations, graphs.
        4 | 5 | 48 | 38 | KIND_GRAPH_TRACE => &[8, 16],
        KIND_OVERHEAD => &[24, 32],
        // Unified memory's counters, code made at run time.
        25 | 52 => &[16, 24],
        // Allocations: all of one, a call about one, a pool.
        45 => &[24, 32],
        49 => &[32],
        50 => &[56],
        // Graphs that the GPU launches.
        53 => &[8, 16],
        // NVTX marks, the state of the GPU, switches of contexts.
        12 | 20 | KIND_CONTEXT_SWITCH => &[8],
        _ => &[],
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
    pub const GRID_ID: usize = 96;
    pub const NAME: usize = 104;
    pub const QUEUED: usize = 120;
    pub const SUBMITTED: usize = 128;
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
    // SAFETY: the caller promises a record of a kind that [`is_kernel`], which has these fields at the same offsets in
    // every version.
    unsafe {
        let (start, end) = times(record);
        let kernel = Kernel {
            start,
            end,
            graph_node: field(record, offset::GRAPH_NODE),
            queued: Realtime(field(record, offset::QUEUED)),
            submitted: Realtime(field(record, offset::SUBMITTED)),
            grid_id: field(record, offset::GRID_ID),
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
    // SAFETY: the caller promises a record of kind [`KIND_MEMSET`], which has these fields at the same offsets in every
    // version.
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
pub unsafe fn memcpy(record: *const u8, extent: RecordExtent) -> Memcpy {
    use memcpy_offset as at;
    // SAFETY: the caller promises a record of kind [`KIND_MEMCPY`] and of this extent, which has these fields at the
    // same offsets in every version that has them.
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
    // SAFETY: the caller promises a record of kind [`KIND_MEMCPY_PEER`], which has these fields at the same offsets in
    // every version.
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
    // SAFETY: the caller promises a record of either kind; both have these fields at the same offsets in every version.
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
    // SAFETY: the caller promises a record of kind [`KIND_GRAPH_TRACE`], which has these fields at the same offsets in
    // every version.
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
    // SAFETY: the caller promises a record of such a kind, which has start and end there.
    unsafe { times_at(record, offset::START, offset::END) }
}

/// Returns start and end. If either is missing, both are 0: "not collected".
///
/// # Safety
/// `record` points to a record that has them there.
unsafe fn times_at(record: *const u8, start: usize, end: usize) -> (Realtime, Realtime) {
    // SAFETY: the caller promises a record that has start and end at these offsets.
    let (start, end): (u64, u64) = unsafe { (field(record, start), field(record, end)) };
    if start != 0 && end != 0 { (Realtime(start), Realtime(end)) } else { (Realtime(0), Realtime(0)) }
}

/// # Safety
/// `size_of::<T>()` bytes at `base + offset` are readable and any bytes are a `T`.
unsafe fn field<T: Copy>(base: *const u8, offset: usize) -> T {
    // SAFETY: the caller promises that that many bytes are readable there and that any bytes are a `T`.
    unsafe { base.add(offset).cast::<T>().read_unaligned() }
}

/// An upper bound of a kernel record's size in all supported CUPTI versions (216 bytes in 13.0).
/// Gives a lower bound of discarded records before any record was seen.
pub const MOST_KERNEL_RECORD_BYTES: usize = 256;

/// Returns the size of a memset record of the CUPTI with this version, to count discarded ones.
pub fn memset_record_bytes(version: u32) -> usize {
    if version < FIRST_WITH_SOURCE_NODES { 88 } else { 104 }
}

/// `cuptiGetVersion` of CUDA 13.4, whose records also name the node that a node of a graph was made from.
const FIRST_WITH_SOURCE_NODES: u32 = 130_400;

/// Size of a graph's record, likewise.
pub const GRAPH_RECORD_BYTES: usize = 56;

/// An upper bound of the size of a copy's record, likewise (96 bytes in 13.0, 112 in 13.4).
pub const MOST_MEMCPY_RECORD_BYTES: usize = 128;

/// Byte offsets in an overhead record.
pub mod overhead_offset {
    pub const OVERHEAD_KIND: usize = 4;
    pub const OBJECT_KIND: usize = 8;
    pub const THREAD: usize = 16;
    pub const START: usize = 24;
    pub const END: usize = 32;
}

/// `CUPTI_ACTIVITY_OBJECT_THREAD`.
pub const OBJECT_THREAD: u32 = 2;

/// CUPTI's kinds of overhead.
pub const OVERHEAD_KINDS: [(u32, OverheadKind); 9] = [
    (1, OverheadKind::Compiler),
    (1 << 16, OverheadKind::BufferFlush),
    (2 << 16, OverheadKind::Instrumentation),
    (3 << 16, OverheadKind::Resource),
    (4 << 16, OverheadKind::ModuleLoading),
    (5 << 16, OverheadKind::LazyLoading),
    (6 << 16, OverheadKind::CommandBufferFull),
    (7 << 16, OverheadKind::BufferRequest),
    (8 << 16, OverheadKind::UvmInit),
];

/// Returns an overhead record, and the thread that it names, as pthreads calls it.
///
/// # Safety
/// `record` points to a record of kind [`KIND_OVERHEAD`].
pub unsafe fn overhead(record: *const u8) -> (HostEventRecord, Option<u32>) {
    use overhead_offset as at;
    // SAFETY: the caller promises a record of kind [`KIND_OVERHEAD`], which has these fields at the same offsets in
    // every version.
    unsafe {
        let number: u32 = field(record, at::OVERHEAD_KIND);
        let kind = OVERHEAD_KINDS.iter().find(|it| it.0 == number).map_or(OverheadKind::Other, |it| it.1);
        let is_of_thread = field::<u32>(record, at::OBJECT_KIND) == OBJECT_THREAD;
        let (start, end) = (field(record, at::START), field(record, at::END));
        let overhead = Overhead { start, end, kind: kind as u32, tid: 0 };
        (overhead.into(), is_of_thread.then(|| field(record, at::THREAD)))
    }
}

/// Byte offsets in a record of unified memory.
pub mod unified_offset {
    pub const COUNTER: usize = 4;
    pub const VALUE: usize = 8;
    pub const START: usize = 16;
    pub const END: usize = 24;
    pub const ADDRESS: usize = 32;
    pub const SRC: usize = 40;
    pub const DST: usize = 44;
    pub const FLAGS: usize = 56;
}

/// CUPTI's counters of unified memory (`CUpti_ActivityUnifiedMemoryCounterKind`), of which each has our number.
pub const UNIFIED_MEMORY_KINDS: [MigrationKind; 8] = [
    MigrationKind::HostToDevice,
    MigrationKind::DeviceToHost,
    MigrationKind::CpuFault,
    MigrationKind::GpuFault,
    MigrationKind::Thrashing,
    MigrationKind::Throttling,
    MigrationKind::RemoteMap,
    MigrationKind::DeviceToDevice,
];

/// Why memory moves, how a GPU touches it, and why it is mapped: by CUPTI's number, less 1
/// (`CUpti_ActivityUnifiedMemoryMigrationCause`, `…AccessType`, `…RemoteMapCause`).
pub const MIGRATION_CAUSES: &[MigrationCause] = &[
    MigrationCause::User,
    MigrationCause::Coherence,
    MigrationCause::Prefetch,
    MigrationCause::Eviction,
    MigrationCause::AccessCounters,
];
pub const ACCESS_TYPES: &[MigrationCause] =
    &[MigrationCause::Read, MigrationCause::Write, MigrationCause::Atomic, MigrationCause::Prefetch];
pub const REMOTE_MAP_CAUSES: &[MigrationCause] = &[
    MigrationCause::Coherence,
    MigrationCause::Thrashing,
    MigrationCause::Policy,
    MigrationCause::OutOfMemory,
    MigrationCause::Eviction,
];

/// `CUPTI_ACTIVITY_FLAG_THROTTLING_IN_CPU`.
const THROTTLING_IN_CPU: u32 = 1;

/// Returns a record of unified memory. Where a field means nothing for a counter, CUPTI may leave anything in it.
///
/// # Safety
/// `record` points to a record of kind [`KIND_UNIFIED_MEMORY`].
pub unsafe fn migration(record: *const u8) -> (HostEventRecord, Option<u32>) {
    use MigrationKind::*;
    use unified_offset as at;
    // SAFETY: the caller promises a record of kind [`KIND_UNIFIED_MEMORY`], which has these fields at the same offsets
    // in every version.
    let (counter, value, flags, start, end, address, src, dst) = unsafe {
        (
            field::<u32>(record, at::COUNTER),
            field::<u64>(record, at::VALUE),
            field::<u32>(record, at::FLAGS),
            field::<u64>(record, at::START),
            field::<u64>(record, at::END),
            field(record, at::ADDRESS),
            field::<u32>(record, at::SRC),
            field::<u32>(record, at::DST),
        )
    };
    let kind = UNIFIED_MEMORY_KINDS.into_iter().find(|it| *it as u32 == counter).unwrap_or(Other);
    let causes = match kind {
        HostToDevice | DeviceToHost | DeviceToDevice => MIGRATION_CAUSES,
        GpuFault => ACCESS_TYPES,
        RemoteMap => REMOTE_MAP_CAUSES,
        CpuFault | Thrashing | Throttling | Other => &[],
    };
    let cause = causes.get((flags as usize).wrapping_sub(1)).map_or(0, |it| *it as u32);
    let has_bytes = matches!(kind, HostToDevice | DeviceToHost | DeviceToDevice | Thrashing | RemoteMap);
    // Of a remote map, an id may be the CPU's.
    let has_src = matches!(kind, DeviceToHost | DeviceToDevice | GpuFault)
        || kind == Throttling && flags & THROTTLING_IN_CPU == 0;
    let has_dst = matches!(kind, HostToDevice | DeviceToDevice);
    let record = Migration {
        start,
        end: if matches!(kind, CpuFault | Thrashing | RemoteMap) { start } else { end },
        address,
        bytes: if has_bytes { value } else { 0 },
        instruction: if kind == CpuFault { value } else { 0 },
        has_bytes: has_bytes.into(),
        kind: kind as u32,
        cause,
        count: if kind == GpuFault { value.min(u32::MAX.into()) as u32 } else { 0 },
        src_device: if has_src { src } else { 0 },
        has_src_device: has_src.into(),
        dst_device: if has_dst { dst } else { 0 },
        has_dst_device: has_dst.into(),
        tid: 0,
        unused: 0,
    };
    (record.into(), None)
}
