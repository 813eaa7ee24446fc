//! The CUDA calls that are events of the CPU: waits, allocations, frees and records of CUDA events by CUPTI's callback
//! ids, and how their parameters are read. `api` events may be any calls.
//!
//! Ids and parameters are those of `gpu-probes/layouts`.

use super::calls::{Id, Index, driver, runtime};
use xputrace_agent::Order;
use xputrace_wire::api::{FunctionId, Functions, MOST_IDS};
use xputrace_wire::events::host::{AllocKind, WaitKind};
use xputrace_wire::events::{HostEvent, HostEvents};
use xputrace_wire::message::demand;

/// What a call does, and where its parameters are, in bytes.
#[derive(Clone, Copy, Debug)]
pub enum HostCallRole {
    /// Waits; its only parameter is the stream, if it has one.
    Wait { kind: WaitKind, stream: Option<InStream> },
    /// Stores an address where its first parameter points to; the second is the size.
    Alloc { kind: AllocKind, stream: Option<InStream> },
    /// Stores an address and a row's length where its first two parameters point to; two more are a row's bytes and
    /// the number of rows.
    AllocPitch,
    /// Stores a `cudaPitchedPtr` where its first parameter points to; a `cudaExtent` follows.
    AllocPitched,
    /// Its first two parameters are the address and the size.
    Claim { kind: AllocKind },
    /// Records the event at `event` among its parameters, in a stream or, without one, where a context or a graph
    /// does. With flags, a graph may do it too.
    Record { event: usize, stream: Option<InStream>, flags: Option<usize> },
    /// Stores a stream where its first parameter points to; flags and priority are parameters, or 0.
    CreateStream { flags: Option<usize>, priority: Option<usize> },
    /// Its first parameter is the stream.
    DestroyStream,
    /// Its first parameter is the address.
    Free { kind: AllocKind, stream: Option<InStream> },
}

/// A stream among the parameters.
#[derive(Clone, Copy, Debug)]
pub struct InStream {
    pub(super) at: usize,
    pub(super) per_thread: bool,
}

impl InStream {
    /// Returns its place in the parameters.
    pub const fn at(self) -> usize {
        self.at
    }
}

impl HostCallRole {
    /// Returns the event that such a call is.
    pub const fn event(self) -> HostEvent {
        match self {
            HostCallRole::Wait { .. } => HostEvent::Wait,
            HostCallRole::Alloc { .. }
            | HostCallRole::AllocPitch
            | HostCallRole::AllocPitched
            | HostCallRole::Claim { .. } => HostEvent::Alloc,
            HostCallRole::Free { .. } => HostEvent::Free,
            HostCallRole::Record { .. } => HostEvent::EventRecord,
            HostCallRole::CreateStream { .. } | HostCallRole::DestroyStream => HostEvent::StreamChange,
        }
    }
}

const fn wait(kind: WaitKind) -> HostCallRole {
    HostCallRole::Wait { kind, stream: None }
}

const fn wait_in(per_thread: bool) -> HostCallRole {
    HostCallRole::Wait { kind: WaitKind::Stream, stream: Some(InStream { at: 0, per_thread }) }
}

const fn record_in(per_thread: bool) -> HostCallRole {
    HostCallRole::Record { event: 0, stream: Some(InStream { at: 8, per_thread }), flags: None }
}

const fn record_with_flags_in(per_thread: bool) -> HostCallRole {
    HostCallRole::Record { event: 0, stream: Some(InStream { at: 8, per_thread }), flags: Some(16) }
}

const fn record_elsewhere(event: usize) -> HostCallRole {
    HostCallRole::Record { event, stream: None, flags: None }
}

/// `CU_EVENT_RECORD_EXTERNAL`: in a capture, the event becomes a node of the graph, which records it at each launch.
pub const EVENT_RECORD_EXTERNAL: u32 = 1;

const fn create_stream(flags: Option<usize>, priority: Option<usize>) -> HostCallRole {
    HostCallRole::CreateStream { flags, priority }
}

/// `CU_STREAM_NON_BLOCKING`, `cudaStreamNonBlocking`.
pub const STREAM_NON_BLOCKING: u32 = 1;

const fn alloc(kind: AllocKind) -> HostCallRole {
    HostCallRole::Alloc { kind, stream: None }
}

const fn alloc_in(at: usize, per_thread: bool) -> HostCallRole {
    HostCallRole::Alloc { kind: AllocKind::Pool, stream: Some(InStream { at, per_thread }) }
}

const fn claim(kind: AllocKind) -> HostCallRole {
    HostCallRole::Claim { kind }
}

const fn free(kind: AllocKind) -> HostCallRole {
    HostCallRole::Free { kind, stream: None }
}

const fn free_in(at: usize, per_thread: bool) -> HostCallRole {
    HostCallRole::Free { kind: AllocKind::Pool, stream: Some(InStream { at, per_thread }) }
}

/// The calls with a role. Not among them: what belongs to CUDA 3 (`cuMemAlloc` with addresses of 32 bits), arrays,
/// which have no address, and reserved addresses without memory.
#[rustfmt::skip]
pub const HOST_IDS: &[Id<HostCallRole>] = &[
    driver(17, "cuCtxSynchronize", wait(WaitKind::Context)),
    driver(800, "cuCtxSynchronize_v2", wait(WaitKind::Context)),
    driver(38, "cuMemFreeHost", free(AllocKind::Pinned)),
    driver(39, "cuMemHostAlloc", alloc(AllocKind::Pinned)),
    driver(43, "cuMemcpyHtoD", wait(WaitKind::Copy)),
    driver(45, "cuMemcpyDtoH", wait(WaitKind::Copy)),
    driver(47, "cuMemcpyDtoD", wait(WaitKind::Copy)),
    driver(49, "cuMemcpyDtoA", wait(WaitKind::Copy)),
    driver(51, "cuMemcpyAtoD", wait(WaitKind::Copy)),
    driver(53, "cuMemcpyHtoA", wait(WaitKind::Copy)),
    driver(54, "cuMemcpyAtoH", wait(WaitKind::Copy)),
    driver(55, "cuMemcpyAtoA", wait(WaitKind::Copy)),
    driver(56, "cuMemcpy2D", wait(WaitKind::Copy)),
    driver(57, "cuMemcpy2DUnaligned", wait(WaitKind::Copy)),
    driver(58, "cuMemcpy3D", wait(WaitKind::Copy)),
    driver(119, "cuEventRecord", record_in(false)),
    driver(121, "cuEventSynchronize", wait(WaitKind::Event)),
    driver(124, "cuStreamCreate", create_stream(Some(8), None)),
    driver(126, "cuStreamSynchronize", wait_in(false)),
    driver(127, "cuStreamDestroy", HostCallRole::DestroyStream),
    driver(243, "cuMemAlloc_v2", alloc(AllocKind::Device)),
    driver(244, "cuMemAllocPitch_v2", HostCallRole::AllocPitch),
    driver(245, "cuMemFree_v2", free(AllocKind::Device)),
    driver(248, "cuMemcpy_v2", wait(WaitKind::Copy)),
    driver(276, "cuMemcpyHtoD_v2", wait(WaitKind::Copy)),
    driver(278, "cuMemcpyDtoH_v2", wait(WaitKind::Copy)),
    driver(280, "cuMemcpyDtoD_v2", wait(WaitKind::Copy)),
    driver(282, "cuMemcpyAtoH_v2", wait(WaitKind::Copy)),
    driver(284, "cuMemcpyAtoD_v2", wait(WaitKind::Copy)),
    driver(285, "cuMemcpyDtoA_v2", wait(WaitKind::Copy)),
    driver(286, "cuMemcpyAtoA_v2", wait(WaitKind::Copy)),
    driver(287, "cuMemcpy2D_v2", wait(WaitKind::Copy)),
    driver(288, "cuMemcpy2DUnaligned_v2", wait(WaitKind::Copy)),
    driver(290, "cuMemcpy3D_v2", wait(WaitKind::Copy)),
    driver(292, "cuMemcpyHtoA_v2", wait(WaitKind::Copy)),
    driver(294, "cuMemAllocHost_v2", alloc(AllocKind::Pinned)),
    driver(301, "cuMemHostRegister", claim(AllocKind::Registered)),
    driver(302, "cuMemHostUnregister", free(AllocKind::Registered)),
    driver(305, "cuMemcpy", wait(WaitKind::Copy)),
    driver(318, "cuMemcpyPeer", wait(WaitKind::Copy)),
    driver(320, "cuMemcpy3DPeer", wait(WaitKind::Copy)),
    driver(326, "cuStreamDestroy_v2", HostCallRole::DestroyStream),
    driver(367, "cuStreamCreateWithPriority", create_stream(Some(8), Some(12))),
    driver(371, "cuMemAllocManaged", alloc(AllocKind::Managed)),
    driver(379, "cuMemHostRegister_v2", claim(AllocKind::Registered)),
    driver(397, "cuMemcpyHtoD_v2_ptds", wait(WaitKind::Copy)),
    driver(398, "cuMemcpyDtoH_v2_ptds", wait(WaitKind::Copy)),
    driver(399, "cuMemcpyDtoD_v2_ptds", wait(WaitKind::Copy)),
    driver(400, "cuMemcpyDtoA_v2_ptds", wait(WaitKind::Copy)),
    driver(401, "cuMemcpyAtoD_v2_ptds", wait(WaitKind::Copy)),
    driver(402, "cuMemcpyHtoA_v2_ptds", wait(WaitKind::Copy)),
    driver(403, "cuMemcpyAtoH_v2_ptds", wait(WaitKind::Copy)),
    driver(404, "cuMemcpyAtoA_v2_ptds", wait(WaitKind::Copy)),
    driver(405, "cuMemcpy2D_v2_ptds", wait(WaitKind::Copy)),
    driver(406, "cuMemcpy2DUnaligned_v2_ptds", wait(WaitKind::Copy)),
    driver(407, "cuMemcpy3D_v2_ptds", wait(WaitKind::Copy)),
    driver(408, "cuMemcpy_ptds", wait(WaitKind::Copy)),
    driver(409, "cuMemcpyPeer_ptds", wait(WaitKind::Copy)),
    driver(410, "cuMemcpy3DPeer_ptds", wait(WaitKind::Copy)),
    driver(440, "cuStreamSynchronize_ptsz", wait_in(true)),
    driver(441, "cuEventRecord_ptsz", record_in(true)),
    driver(549, "cuMemCreate", alloc(AllocKind::Virtual)),
    driver(550, "cuMemRelease", free(AllocKind::Virtual)),
    driver(551, "cuMemMap", claim(AllocKind::Mapped)),
    driver(552, "cuMemUnmap", free(AllocKind::Mapped)),
    driver(587, "cuEventRecordWithFlags", record_with_flags_in(false)),
    driver(588, "cuEventRecordWithFlags_ptsz", record_with_flags_in(true)),
    driver(589, "cuGraphAddEventRecordNode", record_elsewhere(32)),
    driver(593, "cuGraphEventRecordNodeSetEvent", record_elsewhere(8)),
    driver(595, "cuGraphExecEventRecordNodeSetEvent", record_elsewhere(16)),
    driver(598, "cuMemAllocAsync", alloc_in(16, false)),
    driver(599, "cuMemAllocAsync_ptsz", alloc_in(16, true)),
    driver(600, "cuMemFreeAsync", free_in(8, false)),
    driver(601, "cuMemFreeAsync_ptsz", free_in(8, true)),
    driver(611, "cuMemAllocFromPoolAsync", alloc_in(24, false)),
    driver(612, "cuMemAllocFromPoolAsync_ptsz", alloc_in(24, true)),
    driver(749, "cuGreenCtxRecordEvent", record_elsewhere(8)),
    driver(755, "cuCtxRecordEvent", record_elsewhere(8)),
    driver(758, "cuGreenCtxStreamCreate", create_stream(Some(16), Some(20))),
    runtime(20, "cudaMalloc_v3020", alloc(AllocKind::Device)),
    runtime(21, "cudaMallocPitch_v3020", HostCallRole::AllocPitch),
    runtime(22, "cudaFree_v3020", free(AllocKind::Device)),
    runtime(25, "cudaMallocHost_v3020", alloc(AllocKind::Pinned)),
    runtime(26, "cudaFreeHost_v3020", free(AllocKind::Pinned)),
    runtime(27, "cudaHostAlloc_v3020", alloc(AllocKind::Pinned)),
    runtime(31, "cudaMemcpy_v3020", wait(WaitKind::Copy)),
    runtime(32, "cudaMemcpy2D_v3020", wait(WaitKind::Copy)),
    runtime(33, "cudaMemcpyToArray_v3020", wait(WaitKind::Copy)),
    runtime(34, "cudaMemcpy2DToArray_v3020", wait(WaitKind::Copy)),
    runtime(35, "cudaMemcpyFromArray_v3020", wait(WaitKind::Copy)),
    runtime(36, "cudaMemcpy2DFromArray_v3020", wait(WaitKind::Copy)),
    runtime(37, "cudaMemcpyArrayToArray_v3020", wait(WaitKind::Copy)),
    runtime(38, "cudaMemcpy2DArrayToArray_v3020", wait(WaitKind::Copy)),
    runtime(39, "cudaMemcpyToSymbol_v3020", wait(WaitKind::Copy)),
    runtime(40, "cudaMemcpyFromSymbol_v3020", wait(WaitKind::Copy)),
    runtime(126, "cudaThreadSynchronize_v3020", wait(WaitKind::Device)),
    runtime(129, "cudaStreamCreate_v3020", create_stream(None, None)),
    runtime(131, "cudaStreamSynchronize_v3020", wait_in(false)),
    runtime(135, "cudaEventRecord_v3020", record_in(false)),
    runtime(137, "cudaEventSynchronize_v3020", wait(WaitKind::Event)),
    runtime(140, "cudaMalloc3D_v3020", HostCallRole::AllocPitched),
    runtime(144, "cudaMemcpy3D_v3020", wait(WaitKind::Copy)),
    runtime(152, "cudaHostRegister_v4000", claim(AllocKind::Registered)),
    runtime(153, "cudaHostUnregister_v4000", free(AllocKind::Registered)),
    runtime(160, "cudaMemcpyPeer_v4000", wait(WaitKind::Copy)),
    runtime(162, "cudaMemcpy3DPeer_v4000", wait(WaitKind::Copy)),
    runtime(165, "cudaDeviceSynchronize_v3020", wait(WaitKind::Device)),
    runtime(198, "cudaStreamCreateWithFlags_v5000", create_stream(Some(8), None)),
    runtime(201, "cudaStreamDestroy_v5050", HostCallRole::DestroyStream),
    runtime(202, "cudaStreamCreateWithPriority_v5050", create_stream(Some(8), Some(12))),
    runtime(206, "cudaMallocManaged_v6000", alloc(AllocKind::Managed)),
    runtime(215, "cudaMemcpy_ptds_v7000", wait(WaitKind::Copy)),
    runtime(216, "cudaMemcpy2D_ptds_v7000", wait(WaitKind::Copy)),
    runtime(217, "cudaMemcpyToArray_ptds_v7000", wait(WaitKind::Copy)),
    runtime(218, "cudaMemcpy2DToArray_ptds_v7000", wait(WaitKind::Copy)),
    runtime(219, "cudaMemcpyFromArray_ptds_v7000", wait(WaitKind::Copy)),
    runtime(220, "cudaMemcpy2DFromArray_ptds_v7000", wait(WaitKind::Copy)),
    runtime(221, "cudaMemcpyArrayToArray_ptds_v7000", wait(WaitKind::Copy)),
    runtime(222, "cudaMemcpy2DArrayToArray_ptds_v7000", wait(WaitKind::Copy)),
    runtime(223, "cudaMemcpyToSymbol_ptds_v7000", wait(WaitKind::Copy)),
    runtime(224, "cudaMemcpyFromSymbol_ptds_v7000", wait(WaitKind::Copy)),
    runtime(239, "cudaStreamSynchronize_ptsz_v7000", wait_in(true)),
    runtime(242, "cudaEventRecord_ptsz_v7000", record_in(true)),
    runtime(245, "cudaMemcpy3D_ptds_v7000", wait(WaitKind::Copy)),
    runtime(249, "cudaMemcpy3DPeer_ptds_v7000", wait(WaitKind::Copy)),
    runtime(362, "cudaGraphAddEventRecordNode_v11010", record_elsewhere(32)),
    runtime(364, "cudaGraphEventRecordNodeSetEvent_v11010", record_elsewhere(8)),
    runtime(368, "cudaGraphExecEventRecordNodeSetEvent_v11010", record_elsewhere(16)),
    runtime(370, "cudaEventRecordWithFlags_v11010", record_with_flags_in(false)),
    runtime(371, "cudaEventRecordWithFlags_ptsz_v11010", record_with_flags_in(true)),
    runtime(373, "cudaMallocAsync_v11020", alloc_in(16, false)),
    runtime(374, "cudaMallocAsync_ptsz_v11020", alloc_in(16, true)),
    runtime(375, "cudaFreeAsync_v11020", free_in(8, false)),
    runtime(376, "cudaFreeAsync_ptsz_v11020", free_in(8, true)),
    runtime(391, "cudaMallocFromPoolAsync_v11020", alloc_in(24, false)),
    runtime(392, "cudaMallocFromPoolAsync_ptsz_v11020", alloc_in(24, true)),
];

pub(super) fn role_of(function: FunctionId) -> Option<HostCallRole> {
    static INDEX: Index = Index::of(HOST_IDS);
    INDEX.get(function.domain(), function.callback()).map(|at| HOST_IDS[at].call)
}

/// The calls that are events of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watched {
    kinds: HostEvents,
    api: Functions,
}

impl Watched {
    pub(super) fn of(order: &Order) -> Self {
        Watched { kinds: demand::host_events_of(order.demand).and(HostEvents::OF_CALLS), api: order.api }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// Returns the events that a call is.
    pub(super) fn events_of(&self, function: FunctionId) -> HostEvents {
        let of_role = role_of(function).map_or(HostEvents::NONE, |it| HostEvents::of(&[it.event()]));
        let of_api = if self.api.contains(function) { HostEvents::of(&[HostEvent::Api]) } else { HostEvents::NONE };
        of_role.with(of_api).and(self.kinds)
    }

    /// Returns the callbacks to enable. To know which call of the runtime made one of the driver's, all of the
    /// runtime's are.
    pub(super) fn ids(&self, order: &Order) -> Functions {
        let with_role = HOST_IDS.iter().filter(|it| self.kinds.contains(it.call.event()));
        let mut all: Functions = with_role.filter_map(|it| FunctionId::of_callback(it.domain, it.id)).collect();
        if self.kinds.contains(HostEvent::Api) {
            all = all.with(&self.api);
        }
        if order.demand & demand::HOST_NESTED != 0 {
            let of_runtime = (1..MOST_IDS as u32).filter_map(|it| FunctionId::of_callback(super::domain::RUNTIME, it));
            all = all.with(&of_runtime.filter(|it| it.exists()).collect());
        }
        all
    }
}
