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
pub enum Call {
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

impl Call {
    /// Returns what the call submits; `None` for calls about captures, graphs or the profiler.
    #[inline]
    pub const fn submits(self) -> Option<events::Call> {
        Some(match self {
            Call::RuntimeLaunch
            | Call::DriverLaunch
            | Call::DriverLaunchPtsz
            | Call::DriverLaunchEx
            | Call::DriverLaunchExPtsz
            | Call::DriverLaunchOther => events::Call::Kernel,
            Call::RuntimeGraph | Call::DriverGraph | Call::DriverGraphPtsz => events::Call::Graph,
            Call::RuntimeMemset
            | Call::DriverMemset
            | Call::DriverMemsetPtds
            | Call::DriverMemsetAsync
            | Call::DriverMemsetAsyncPtsz
            | Call::DriverMemset2DAsync
            | Call::DriverMemset2DAsyncPtsz
            | Call::DriverMemsetOther => events::Call::Memset,
            Call::RuntimeCopy | Call::DriverCopy(_) | Call::DriverCopyOther => events::Call::Memcpy,
            Call::BeginCapture | Call::EndCapture | Call::InstantiateGraph | Call::DestroyGraph | Call::SwitchNode => {
                return None;
            }
            Call::StartProfiler | Call::StopProfiler => return None,
        })
    }

    /// Whether the call submits work or prepares it, for these calls. Captures affect all of them.
    fn is_among(self, calls: events::Calls) -> bool {
        match self {
            Call::InstantiateGraph | Call::DestroyGraph | Call::SwitchNode => calls.contains(events::Call::Graph),
            Call::BeginCapture | Call::EndCapture => !calls.is_empty(),
            Call::StartProfiler | Call::StopProfiler => false,
            _ => self.submits().is_some_and(|it| calls.contains(it)),
        }
    }

    /// Whether the call's default stream is the thread's own.
    const fn is_per_thread(self) -> bool {
        matches!(
            self,
            Call::DriverLaunchPtsz
                | Call::DriverLaunchExPtsz
                | Call::DriverGraphPtsz
                | Call::DriverMemsetPtds
                | Call::DriverMemsetAsyncPtsz
                | Call::DriverMemset2DAsyncPtsz
        )
    }
}

/// A callback id that is enabled while such calls are recorded.
#[derive(Clone, Copy, Debug)]
pub struct Id<C = Call> {
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
        let switches = matches!(self.call, Call::StartProfiler | Call::StopProfiler);
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
    driver(115, "cuLaunch", Call::DriverLaunchOther),
    driver(116, "cuLaunchGrid", Call::DriverLaunchOther),
    driver(117, "cuLaunchGridAsync", Call::DriverLaunchOther),
    driver(307, "cuLaunchKernel", Call::DriverLaunch),
    driver(442, "cuLaunchKernel_ptsz", Call::DriverLaunchPtsz),
    driver(477, "cuLaunchCooperativeKernel", Call::DriverLaunch),
    driver(478, "cuLaunchCooperativeKernel_ptsz", Call::DriverLaunchPtsz),
    driver(480, "cuLaunchCooperativeKernelMultiDevice", Call::DriverLaunchOther),
    driver(652, "cuLaunchKernelEx", Call::DriverLaunchEx),
    driver(653, "cuLaunchKernelEx_ptsz", Call::DriverLaunchExPtsz),
    driver(514, "cuGraphLaunch", Call::DriverGraph),
    driver(515, "cuGraphLaunch_ptsz", Call::DriverGraphPtsz),
    driver(495, "cuStreamBeginCapture", Call::BeginCapture),
    driver(496, "cuStreamBeginCapture_ptsz", Call::BeginCapture),
    driver(539, "cuStreamBeginCapture_v2", Call::BeginCapture),
    driver(540, "cuStreamBeginCapture_v2_ptsz", Call::BeginCapture),
    driver(720, "cuStreamBeginCaptureToGraph", Call::BeginCapture),
    driver(721, "cuStreamBeginCaptureToGraph_ptsz", Call::BeginCapture),
    driver(497, "cuStreamEndCapture", Call::EndCapture),
    driver(498, "cuStreamEndCapture_ptsz", Call::EndCapture),
    driver(513, "cuGraphInstantiate", Call::InstantiateGraph),
    driver(578, "cuGraphInstantiate_v2", Call::InstantiateGraph),
    driver(643, "cuGraphInstantiateWithFlags", Call::InstantiateGraph),
    driver(656, "cuGraphInstantiateWithParams", Call::InstantiateGraph),
    driver(657, "cuGraphInstantiateWithParams_ptsz", Call::InstantiateGraph),
    driver(516, "cuGraphExecDestroy", Call::DestroyGraph),
    driver(650, "cuGraphNodeSetEnabled", Call::SwitchNode),
    driver(308, "cuProfilerStart", Call::StartProfiler),
    driver(309, "cuProfilerStop", Call::StopProfiler),
    runtime(13, "cudaLaunch_v3020", Call::RuntimeLaunch),
    runtime(211, "cudaLaunchKernel_v7000", Call::RuntimeLaunch),
    runtime(213, "cudaLaunch_ptsz_v7000", Call::RuntimeLaunch),
    runtime(214, "cudaLaunchKernel_ptsz_v7000", Call::RuntimeLaunch),
    runtime(269, "cudaLaunchCooperativeKernel_v9000", Call::RuntimeLaunch),
    runtime(270, "cudaLaunchCooperativeKernel_ptsz_v9000", Call::RuntimeLaunch),
    runtime(272, "cudaLaunchCooperativeKernelMultiDevice_v9000", Call::RuntimeLaunch),
    runtime(430, "cudaLaunchKernelExC_v11060", Call::RuntimeLaunch),
    runtime(431, "cudaLaunchKernelExC_ptsz_v11060", Call::RuntimeLaunch),
    runtime(505, "__cudaLaunchKernel_v13000", Call::RuntimeLaunch),
    runtime(506, "__cudaLaunchKernel_ptsz_v13000", Call::RuntimeLaunch),
    runtime(311, "cudaGraphLaunch_v10000", Call::RuntimeGraph),
    runtime(312, "cudaGraphLaunch_ptsz_v10000", Call::RuntimeGraph),
    driver(71, "cuMemsetD8", Call::DriverMemsetOther),
    driver(72, "cu64MemsetD8", Call::DriverMemsetOther),
    driver(73, "cuMemsetD16", Call::DriverMemsetOther),
    driver(74, "cu64MemsetD16", Call::DriverMemsetOther),
    driver(75, "cuMemsetD32", Call::DriverMemsetOther),
    driver(76, "cu64MemsetD32", Call::DriverMemsetOther),
    driver(77, "cuMemsetD2D8", Call::DriverMemsetOther),
    driver(78, "cu64MemsetD2D8", Call::DriverMemsetOther),
    driver(79, "cuMemsetD2D16", Call::DriverMemsetOther),
    driver(80, "cu64MemsetD2D16", Call::DriverMemsetOther),
    driver(81, "cuMemsetD2D32", Call::DriverMemsetOther),
    driver(82, "cu64MemsetD2D32", Call::DriverMemsetOther),
    driver(216, "cuMemsetD8Async", Call::DriverMemsetAsync),
    driver(217, "cu64MemsetD8Async", Call::DriverMemsetOther),
    driver(218, "cuMemsetD16Async", Call::DriverMemsetAsync),
    driver(219, "cu64MemsetD16Async", Call::DriverMemsetOther),
    driver(220, "cuMemsetD32Async", Call::DriverMemsetAsync),
    driver(221, "cu64MemsetD32Async", Call::DriverMemsetOther),
    driver(222, "cuMemsetD2D8Async", Call::DriverMemset2DAsync),
    driver(223, "cu64MemsetD2D8Async", Call::DriverMemsetOther),
    driver(224, "cuMemsetD2D16Async", Call::DriverMemset2DAsync),
    driver(225, "cu64MemsetD2D16Async", Call::DriverMemsetOther),
    driver(226, "cuMemsetD2D32Async", Call::DriverMemset2DAsync),
    driver(227, "cu64MemsetD2D32Async", Call::DriverMemsetOther),
    driver(249, "cuMemsetD8_v2", Call::DriverMemset),
    driver(250, "cuMemsetD16_v2", Call::DriverMemset),
    driver(251, "cuMemsetD32_v2", Call::DriverMemset),
    driver(252, "cuMemsetD2D8_v2", Call::DriverMemset),
    driver(253, "cuMemsetD2D16_v2", Call::DriverMemset),
    driver(254, "cuMemsetD2D32_v2", Call::DriverMemset),
    driver(411, "cuMemsetD8_v2_ptds", Call::DriverMemsetPtds),
    driver(412, "cuMemsetD16_v2_ptds", Call::DriverMemsetPtds),
    driver(413, "cuMemsetD32_v2_ptds", Call::DriverMemsetPtds),
    driver(414, "cuMemsetD2D8_v2_ptds", Call::DriverMemsetPtds),
    driver(415, "cuMemsetD2D16_v2_ptds", Call::DriverMemsetPtds),
    driver(416, "cuMemsetD2D32_v2_ptds", Call::DriverMemsetPtds),
    driver(428, "cuMemsetD8Async_ptsz", Call::DriverMemsetAsyncPtsz),
    driver(429, "cuMemsetD16Async_ptsz", Call::DriverMemsetAsyncPtsz),
    driver(430, "cuMemsetD32Async_ptsz", Call::DriverMemsetAsyncPtsz),
    driver(431, "cuMemsetD2D8Async_ptsz", Call::DriverMemset2DAsyncPtsz),
    driver(432, "cuMemsetD2D16Async_ptsz", Call::DriverMemset2DAsyncPtsz),
    driver(433, "cuMemsetD2D32Async_ptsz", Call::DriverMemset2DAsyncPtsz),
    runtime(49, "cudaMemset_v3020", Call::RuntimeMemset),
    runtime(50, "cudaMemset2D_v3020", Call::RuntimeMemset),
    runtime(51, "cudaMemsetAsync_v3020", Call::RuntimeMemset),
    runtime(52, "cudaMemset2DAsync_v3020", Call::RuntimeMemset),
    runtime(142, "cudaMemset3D_v3020", Call::RuntimeMemset),
    runtime(143, "cudaMemset3DAsync_v3020", Call::RuntimeMemset),
    runtime(233, "cudaMemset_ptds_v7000", Call::RuntimeMemset),
    runtime(234, "cudaMemset2D_ptds_v7000", Call::RuntimeMemset),
    runtime(235, "cudaMemsetAsync_ptsz_v7000", Call::RuntimeMemset),
    runtime(236, "cudaMemset2DAsync_ptsz_v7000", Call::RuntimeMemset),
    runtime(243, "cudaMemset3D_ptds_v7000", Call::RuntimeMemset),
    runtime(244, "cudaMemset3DAsync_ptsz_v7000", Call::RuntimeMemset),
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

/// Returns what the call at this index of [`IDS`] submits. A table, because [`Call::submits`] branches.
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
pub unsafe fn params(call: Call, params: *const c_void) -> Option<Params> {
    let at = params.cast::<u8>();
    if at.is_null() {
        return None;
    }
    let in_stream = |handle: usize| Stream { handle, per_thread: call.is_per_thread() };
    // SAFETY: the caller promises that `params`, which is not null here, points at the parameter structure of `call`,
    // which has these fields at the offsets of `layouts.txt`.
    unsafe {
        // By far the most frequent ones.
        if matches!(call, Call::DriverLaunch | Call::DriverLaunchPtsz) {
            return Some(Params {
                grid: read(at, 8),
                block: read(at, 20),
                dynamic_shared_bytes: read(at, 32),
                stream: in_stream(read(at, 40)),
                ..Params::default()
            });
        }
        Some(match call {
            Call::DriverLaunchEx | Call::DriverLaunchExPtsz => {
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
            Call::DriverGraph | Call::DriverGraphPtsz => {
                Params { graph: read(at, 0), ..of_stream(in_stream(read(at, 8))) }
            }
            Call::DriverMemset | Call::DriverMemsetPtds => of_stream(in_stream(0)),
            Call::DriverMemsetAsync | Call::DriverMemsetAsyncPtsz => of_stream(in_stream(read(at, 24))),
            Call::DriverMemset2DAsync | Call::DriverMemset2DAsyncPtsz => of_stream(in_stream(read(at, 40))),
            Call::DriverCopy(copy) => copies::params(copy, at),
            _ => return None,
        })
    }
}

fn of_stream(stream: Stream) -> Params {
    Params { stream, ..Params::default() }
}

/// Returns the executable graph created by a [`Call::InstantiateGraph`], and its graph (`CUgraph`).
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

/// Returns the graph (`CUgraphExec`) of a [`Call::DestroyGraph`] or [`Call::SwitchNode`]: its first
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
