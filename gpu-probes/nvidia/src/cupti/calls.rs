//! The API calls that the collector watches, by CUPTI's callback ids, and the layout of their
//! parameters. Ids are stable from 11.8 to 13.5; `layouts.txt` lists them by name.

pub mod copies;

use super::domain;
use copies::CopyCall;
use std::ffi::c_void;
use xputrace_agent::Stream;
use xputrace_agent::launch::Records;
use xputrace_wire::api::MOST_IDS;
use xputrace_wire::events;

/// The role of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallRole {
    /// A runtime launch, whose parameters are those of the driver call inside it.
    RuntimeLaunch,
    RuntimeGraph,
    /// `cuLaunchKernel` or `cuLaunchCooperativeKernel`, whose parameters start alike.
    DriverLaunch,
    DriverLaunchPtsz,
    DriverLaunchEx,
    DriverLaunchExPtsz,
    /// A launch whose parameters are not read (legacy and multi-device launches).
    DriverLaunchOther,
    DriverGraph,
    DriverGraphPtsz,
    /// A runtime memset, whose parameters are those of the driver call inside it.
    RuntimeMemset,
    /// A driver memset in the default stream.
    DriverMemset,
    DriverMemsetPtds,
    /// A driver memset of consecutive bytes in a stream.
    DriverMemsetAsync,
    DriverMemsetAsyncPtsz,
    /// A driver memset of rows in a stream.
    DriverMemset2DAsync,
    DriverMemset2DAsyncPtsz,
    /// A memset whose parameters are not read (legacy calls).
    DriverMemsetOther,
    /// A runtime copy, whose parameters are those of the driver calls inside it.
    RuntimeCopy,
    DriverCopy(CopyCall),
    /// A copy whose parameters are not read (legacy calls).
    DriverCopyOther,
    BeginCapture,
    EndCapture,
    /// Instantiates a graph.
    InstantiateGraph,
    /// Destroys an executable graph.
    DestroyGraph,
    /// Enables or disables a node of an executable graph.
    SwitchNode,
    /// The program starts its profiler, which itself has no effect.
    StartProfiler,
    StopProfiler,
}

impl CallRole {
    /// Returns what the call submits; `None` for calls about captures, graphs or the profiler.
    #[inline]
    pub const fn submits(self) -> Option<events::Call> {
        Some(match self {
            CallRole::RuntimeLaunch
            | CallRole::DriverLaunch
            | CallRole::DriverLaunchPtsz
            | CallRole::DriverLaunchEx
            | CallRole::DriverLaunchExPtsz
            | CallRole::DriverLaunchOther => events::Call::Kernel,
            CallRole::RuntimeGraph | CallRole::DriverGraph | CallRole::DriverGraphPtsz => events::Call::Graph,
            CallRole::RuntimeMemset
            | CallRole::DriverMemset
            | CallRole::DriverMemsetPtds
            | CallRole::DriverMemsetAsync
            | CallRole::DriverMemsetAsyncPtsz
            | CallRole::DriverMemset2DAsync
            | CallRole::DriverMemset2DAsyncPtsz
            | CallRole::DriverMemsetOther => events::Call::Memset,
            CallRole::RuntimeCopy | CallRole::DriverCopy(_) | CallRole::DriverCopyOther => events::Call::Memcpy,
            CallRole::BeginCapture
            | CallRole::EndCapture
            | CallRole::InstantiateGraph
            | CallRole::DestroyGraph
            | CallRole::SwitchNode => {
                return None;
            }
            CallRole::StartProfiler | CallRole::StopProfiler => return None,
        })
    }

    /// Whether the call submits work or prepares it, for these calls. Captures affect all of them.
    fn is_among(self, calls: events::Calls) -> bool {
        match self {
            CallRole::InstantiateGraph | CallRole::DestroyGraph | CallRole::SwitchNode => {
                calls.contains(events::Call::Graph)
            }
            CallRole::BeginCapture | CallRole::EndCapture => !calls.is_empty(),
            CallRole::StartProfiler | CallRole::StopProfiler => false,
            _ => self.submits().is_some_and(|it| calls.contains(it)),
        }
    }

    /// Whether the call's default stream is the thread's own.
    const fn is_per_thread(self) -> bool {
        matches!(
            self,
            CallRole::DriverLaunchPtsz
                | CallRole::DriverLaunchExPtsz
                | CallRole::DriverGraphPtsz
                | CallRole::DriverMemsetPtds
                | CallRole::DriverMemsetAsyncPtsz
                | CallRole::DriverMemset2DAsyncPtsz
        )
    }
}

/// A callback id that is enabled while such calls are recorded.
#[derive(Clone, Copy, Debug)]
pub struct Id<C = CallRole> {
    pub domain: u32,
    pub id: u32,
    /// The name in `layouts.txt`.
    pub name: &'static str,
    pub call: C,
}

impl Id {
    /// Whether it is enabled while these calls are recorded. `outermost` says whether the runtime's calls are.
    pub fn submits_for(&self, calls: events::Calls, outermost: bool) -> bool {
        self.call.submits().is_some() && self.call.is_among(calls) && (outermost || self.domain == domain::DRIVER)
    }

    /// Whether it is enabled for the whole run if these calls are recorded at times: what is captured and what graphs
    /// contain must be known by then.
    pub fn prepares_for(&self, calls: events::Calls, profiler: bool) -> bool {
        let switches = matches!(self.call, CallRole::StartProfiler | CallRole::StopProfiler);
        self.call.submits().is_none() && (self.call.is_among(calls) || switches && profiler)
    }
}

pub(super) const fn driver<C>(id: u32, name: &'static str, call: C) -> Id<C> {
    Id { domain: domain::DRIVER, id, name, call }
}

pub(super) const fn runtime<C>(id: u32, name: &'static str, call: C) -> Id<C> {
    Id { domain: domain::RUNTIME, id, name, call }
}

/// Every id that may be enabled.
pub const IDS: &[Id] = &joined::<{ OTHERS.len() + copies::IDS.len() }>(&[OTHERS, copies::IDS]);

/// Returns the ids of all lists, `N` in all.
const fn joined<const N: usize>(lists: &[&[Id]]) -> [Id; N] {
    let (mut all, mut n, mut list) = ([lists[0][0]; N], 0, 0);
    while list < lists.len() {
        let mut at = 0;
        while at < lists[list].len() {
            all[n] = lists[list][at];
            (n, at) = (n + 1, at + 1);
        }
        list += 1;
    }
    assert!(n == N);
    all
}

/// Ids of all calls but copies. Captures and graph instantiation are watched only in the driver, which the runtime's
/// calls reach too.
const OTHERS: &[Id] = &[
    driver(115, "cuLaunch", CallRole::DriverLaunchOther),
    driver(116, "cuLaunchGrid", CallRole::DriverLaunchOther),
    driver(117, "cuLaunchGridAsync", CallRole::DriverLaunchOther),
    driver(307, "cuLaunchKernel", CallRole::DriverLaunch),
    driver(442, "cuLaunchKernel_ptsz", CallRole::DriverLaunchPtsz),
    driver(477, "cuLaunchCooperativeKernel", CallRole::DriverLaunch),
    driver(478, "cuLaunchCooperativeKernel_ptsz", CallRole::DriverLaunchPtsz),
    driver(480, "cuLaunchCooperativeKernelMultiDevice", CallRole::DriverLaunchOther),
    driver(652, "cuLaunchKernelEx", CallRole::DriverLaunchEx),
    driver(653, "cuLaunchKernelEx_ptsz", CallRole::DriverLaunchExPtsz),
    driver(514, "cuGraphLaunch", CallRole::DriverGraph),
    driver(515, "cuGraphLaunch_ptsz", CallRole::DriverGraphPtsz),
    driver(495, "cuStreamBeginCapture", CallRole::BeginCapture),
    driver(496, "cuStreamBeginCapture_ptsz", CallRole::BeginCapture),
    driver(539, "cuStreamBeginCapture_v2", CallRole::BeginCapture),
    driver(540, "cuStreamBeginCapture_v2_ptsz", CallRole::BeginCapture),
    driver(720, "cuStreamBeginCaptureToGraph", CallRole::BeginCapture),
    driver(721, "cuStreamBeginCaptureToGraph_ptsz", CallRole::BeginCapture),
    driver(497, "cuStreamEndCapture", CallRole::EndCapture),
    driver(498, "cuStreamEndCapture_ptsz", CallRole::EndCapture),
    driver(513, "cuGraphInstantiate", CallRole::InstantiateGraph),
    driver(578, "cuGraphInstantiate_v2", CallRole::InstantiateGraph),
    driver(643, "cuGraphInstantiateWithFlags", CallRole::InstantiateGraph),
    driver(656, "cuGraphInstantiateWithParams", CallRole::InstantiateGraph),
    driver(657, "cuGraphInstantiateWithParams_ptsz", CallRole::InstantiateGraph),
    driver(516, "cuGraphExecDestroy", CallRole::DestroyGraph),
    driver(650, "cuGraphNodeSetEnabled", CallRole::SwitchNode),
    driver(308, "cuProfilerStart", CallRole::StartProfiler),
    driver(309, "cuProfilerStop", CallRole::StopProfiler),
    runtime(13, "cudaLaunch_v3020", CallRole::RuntimeLaunch),
    runtime(211, "cudaLaunchKernel_v7000", CallRole::RuntimeLaunch),
    runtime(213, "cudaLaunch_ptsz_v7000", CallRole::RuntimeLaunch),
    runtime(214, "cudaLaunchKernel_ptsz_v7000", CallRole::RuntimeLaunch),
    runtime(269, "cudaLaunchCooperativeKernel_v9000", CallRole::RuntimeLaunch),
    runtime(270, "cudaLaunchCooperativeKernel_ptsz_v9000", CallRole::RuntimeLaunch),
    runtime(272, "cudaLaunchCooperativeKernelMultiDevice_v9000", CallRole::RuntimeLaunch),
    runtime(430, "cudaLaunchKernelExC_v11060", CallRole::RuntimeLaunch),
    runtime(431, "cudaLaunchKernelExC_ptsz_v11060", CallRole::RuntimeLaunch),
    runtime(505, "__cudaLaunchKernel_v13000", CallRole::RuntimeLaunch),
    runtime(506, "__cudaLaunchKernel_ptsz_v13000", CallRole::RuntimeLaunch),
    runtime(311, "cudaGraphLaunch_v10000", CallRole::RuntimeGraph),
    runtime(312, "cudaGraphLaunch_ptsz_v10000", CallRole::RuntimeGraph),
    driver(71, "cuMemsetD8", CallRole::DriverMemsetOther),
    driver(72, "cu64MemsetD8", CallRole::DriverMemsetOther),
    driver(73, "cuMemsetD16", CallRole::DriverMemsetOther),
    driver(74, "cu64MemsetD16", CallRole::DriverMemsetOther),
    driver(75, "cuMemsetD32", CallRole::DriverMemsetOther),
    driver(76, "cu64MemsetD32", CallRole::DriverMemsetOther),
    driver(77, "cuMemsetD2D8", CallRole::DriverMemsetOther),
    driver(78, "cu64MemsetD2D8", CallRole::DriverMemsetOther),
    driver(79, "cuMemsetD2D16", CallRole::DriverMemsetOther),
    driver(80, "cu64MemsetD2D16", CallRole::DriverMemsetOther),
    driver(81, "cuMemsetD2D32", CallRole::DriverMemsetOther),
    driver(82, "cu64MemsetD2D32", CallRole::DriverMemsetOther),
    driver(216, "cuMemsetD8Async", CallRole::DriverMemsetAsync),
    driver(217, "cu64MemsetD8Async", CallRole::DriverMemsetOther),
    driver(218, "cuMemsetD16Async", CallRole::DriverMemsetAsync),
    driver(219, "cu64MemsetD16Async", CallRole::DriverMemsetOther),
    driver(220, "cuMemsetD32Async", CallRole::DriverMemsetAsync),
    driver(221, "cu64MemsetD32Async", CallRole::DriverMemsetOther),
    driver(222, "cuMemsetD2D8Async", CallRole::DriverMemset2DAsync),
    driver(223, "cu64MemsetD2D8Async", CallRole::DriverMemsetOther),
    driver(224, "cuMemsetD2D16Async", CallRole::DriverMemset2DAsync),
    driver(225, "cu64MemsetD2D16Async", CallRole::DriverMemsetOther),
    driver(226, "cuMemsetD2D32Async", CallRole::DriverMemset2DAsync),
    driver(227, "cu64MemsetD2D32Async", CallRole::DriverMemsetOther),
    driver(249, "cuMemsetD8_v2", CallRole::DriverMemset),
    driver(250, "cuMemsetD16_v2", CallRole::DriverMemset),
    driver(251, "cuMemsetD32_v2", CallRole::DriverMemset),
    driver(252, "cuMemsetD2D8_v2", CallRole::DriverMemset),
    driver(253, "cuMemsetD2D16_v2", CallRole::DriverMemset),
    driver(254, "cuMemsetD2D32_v2", CallRole::DriverMemset),
    driver(411, "cuMemsetD8_v2_ptds", CallRole::DriverMemsetPtds),
    driver(412, "cuMemsetD16_v2_ptds", CallRole::DriverMemsetPtds),
    driver(413, "cuMemsetD32_v2_ptds", CallRole::DriverMemsetPtds),
    driver(414, "cuMemsetD2D8_v2_ptds", CallRole::DriverMemsetPtds),
    driver(415, "cuMemsetD2D16_v2_ptds", CallRole::DriverMemsetPtds),
    driver(416, "cuMemsetD2D32_v2_ptds", CallRole::DriverMemsetPtds),
    driver(428, "cuMemsetD8Async_ptsz", CallRole::DriverMemsetAsyncPtsz),
    driver(429, "cuMemsetD16Async_ptsz", CallRole::DriverMemsetAsyncPtsz),
    driver(430, "cuMemsetD32Async_ptsz", CallRole::DriverMemsetAsyncPtsz),
    driver(431, "cuMemsetD2D8Async_ptsz", CallRole::DriverMemset2DAsyncPtsz),
    driver(432, "cuMemsetD2D16Async_ptsz", CallRole::DriverMemset2DAsyncPtsz),
    driver(433, "cuMemsetD2D32Async_ptsz", CallRole::DriverMemset2DAsyncPtsz),
    runtime(49, "cudaMemset_v3020", CallRole::RuntimeMemset),
    runtime(50, "cudaMemset2D_v3020", CallRole::RuntimeMemset),
    runtime(51, "cudaMemsetAsync_v3020", CallRole::RuntimeMemset),
    runtime(52, "cudaMemset2DAsync_v3020", CallRole::RuntimeMemset),
    runtime(142, "cudaMemset3D_v3020", CallRole::RuntimeMemset),
    runtime(143, "cudaMemset3DAsync_v3020", CallRole::RuntimeMemset),
    runtime(233, "cudaMemset_ptds_v7000", CallRole::RuntimeMemset),
    runtime(234, "cudaMemset2D_ptds_v7000", CallRole::RuntimeMemset),
    runtime(235, "cudaMemsetAsync_ptsz_v7000", CallRole::RuntimeMemset),
    runtime(236, "cudaMemset2DAsync_ptsz_v7000", CallRole::RuntimeMemset),
    runtime(243, "cudaMemset3D_ptds_v7000", CallRole::RuntimeMemset),
    runtime(244, "cudaMemset3DAsync_ptsz_v7000", CallRole::RuntimeMemset),
];

/// Ids without which launches would be missed; a CUPTI may lack any of the others.
pub const REQUIRED: [(u32, u32); 2] = [(domain::DRIVER, 307), (domain::RUNTIME, 211)];

/// Where ids are in a list.
#[derive(Debug)]
pub(super) struct Index([[u16; MOST_IDS]; 2]);
const NOT_LISTED: u16 = u16::MAX;

impl Index {
    pub(super) const fn of<C>(ids: &[Id<C>]) -> Self {
        assert!(ids.len() < NOT_LISTED as usize);
        let mut index = [[NOT_LISTED; MOST_IDS]; 2];
        let mut n = 0;
        while n < ids.len() {
            index[ids[n].domain as usize - 1][ids[n].id as usize] = n as u16;
            n += 1;
        }
        Index(index)
    }

    #[inline]
    pub(super) fn get(&self, domain: u32, id: u32) -> Option<usize> {
        let at = *self.0.get((domain as usize).wrapping_sub(1))?.get(id as usize)?;
        (at != NOT_LISTED).then_some(usize::from(at))
    }
}

/// Returns the index in [`IDS`] of a callback id, if it is one of them.
#[inline]
pub fn index_of(domain: u32, id: u32) -> Option<usize> {
    static INDEX: Index = Index::of(IDS);
    INDEX.get(domain, id)
}

/// Returns what the call at this index of [`IDS`] submits. A table, because [`CallRole::submits`] branches.
#[inline]
pub fn submits(index: usize) -> Option<events::Call> {
    static SUBMITS: [Option<events::Call>; IDS.len()] = {
        let mut all = [None; IDS.len()];
        let mut n = 0;
        while n < all.len() {
            all[n] = IDS[n].call.submits();
            n += 1;
        }
        all
    };
    SUBMITS[index]
}

/// The parameters of a driver call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Params {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared_bytes: u32,
    pub stream: Stream,
    /// The executable graph (`CUgraphExec`), 0 for calls without one.
    pub graph: usize,
    /// Whether what is submitted has a record; for graphs, see there.
    pub records: Records,
}

/// Reads the parameters of a driver call; returns `None` if their layout is unknown.
///
/// # Safety
/// `params` is null or points at the parameter structure of `call`.
#[inline]
pub unsafe fn params(call: CallRole, params: *const c_void) -> Option<Params> {
    let at = params.cast::<u8>();
    if at.is_null() {
        return None;
    }
    let in_stream = |handle: usize| Stream { handle, per_thread: call.is_per_thread() };
    // SAFETY: the caller promises that `params`, which is not null here, points at the parameter structure of `call`,
    // which has these fields at the offsets of `layouts.txt`.
    unsafe {
        // By far the most frequent ones.
        if matches!(call, CallRole::DriverLaunch | CallRole::DriverLaunchPtsz) {
            return Some(Params {
                grid: read(at, 8),
                block: read(at, 20),
                dynamic_shared_bytes: read(at, 32),
                stream: in_stream(read(at, 40)),
                ..Params::default()
            });
        }
        Some(match call {
            CallRole::DriverLaunchEx | CallRole::DriverLaunchExPtsz => {
                let config: *const u8 = read(at, 0);
                if config.is_null() {
                    return None;
                }
                Params {
                    grid: read(config, 0),
                    block: read(config, 12),
                    dynamic_shared_bytes: read(config, 24),
                    stream: in_stream(read(config, 32)),
                    ..Params::default()
                }
            }
            CallRole::DriverGraph | CallRole::DriverGraphPtsz => {
                Params { graph: read(at, 0), ..of_stream(in_stream(read(at, 8))) }
            }
            CallRole::DriverMemset | CallRole::DriverMemsetPtds => of_stream(in_stream(0)),
            CallRole::DriverMemsetAsync | CallRole::DriverMemsetAsyncPtsz => of_stream(in_stream(read(at, 24))),
            CallRole::DriverMemset2DAsync | CallRole::DriverMemset2DAsyncPtsz => of_stream(in_stream(read(at, 40))),
            CallRole::DriverCopy(copy) => copies::params(copy, at),
            _ => return None,
        })
    }
}

fn of_stream(stream: Stream) -> Params {
    Params { stream, ..Params::default() }
}

/// Returns the executable graph created by a [`CallRole::InstantiateGraph`], and its graph (`CUgraph`).
/// All such calls start with these two; ask at EXIT of one that succeeded.
///
/// # Safety
/// `params` is null or points at the parameter structure of such a call.
pub unsafe fn instantiated(params: *const c_void) -> Option<(usize, *mut c_void)> {
    let at = params.cast::<u8>();
    if at.is_null() {
        return None;
    }
    // SAFETY: the caller's promise: where the call was told to store the handle, and its graph.
    unsafe {
        let exec: *const usize = read(at, 0);
        Some((exec.as_ref().copied()?, read(at, 8)))
    }
}

/// Returns the graph (`CUgraphExec`) of a [`CallRole::DestroyGraph`] or [`CallRole::SwitchNode`]: its first
/// parameter.
///
/// # Safety
/// `params` is null or points at the parameter structure of such a call.
pub unsafe fn graph_of(params: *const c_void) -> Option<usize> {
    // SAFETY: the caller promises that `params` is null or points at the parameter structure of such a call, which
    // begins with the graph.
    unsafe { params.cast::<usize>().as_ref().copied() }
}

/// # Safety
/// `size_of::<T>()` bytes at `base + offset` are readable and any bytes are a `T`.
#[inline]
pub(super) unsafe fn read<T: Copy>(base: *const u8, offset: usize) -> T {
    // SAFETY: the caller promises that that many bytes are readable there and that any bytes are a `T`.
    unsafe { base.add(offset).cast::<T>().read_unaligned() }
}
