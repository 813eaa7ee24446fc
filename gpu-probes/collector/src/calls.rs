//! The API calls that the collector listens to, by CUPTI's callback ids, and where their
//! parameters lie. Ids are stable from 11.8 to 13.5; `layouts.txt` has them by name.

use crate::cupti::domain;
use std::ffi::c_void;

/// What a call means to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Call {
    /// A runtime launch, whose parameters are those of the driver call inside it.
    RuntimeLaunch,
    RuntimeGraph,
    /// `cuLaunchKernel` or `cuLaunchCooperativeKernel`: their parameters begin alike.
    DriverLaunch,
    DriverLaunchPtsz,
    DriverLaunchEx,
    DriverLaunchExPtsz,
    /// A launch whose parameters are not read (calls of old, and multi-device launches).
    DriverLaunchOther,
    DriverGraph,
    DriverGraphPtsz,
    BeginCapture,
    EndCapture,
}

impl Call {
    /// Whether the call submits a graph.
    pub fn is_graph(self) -> bool {
        matches!(self, Call::RuntimeGraph | Call::DriverGraph | Call::DriverGraphPtsz)
    }
}

/// A callback id that is enabled while launches are recorded.
#[derive(Clone, Copy, Debug)]
pub struct Id {
    pub domain: u32,
    pub id: u32,
    /// As in `layouts.txt`.
    pub name: &'static str,
    pub call: Call,
}

const fn driver(id: u32, name: &'static str, call: Call) -> Id {
    Id { domain: domain::DRIVER, id, name, call }
}

const fn runtime(id: u32, name: &'static str, call: Call) -> Id {
    Id { domain: domain::RUNTIME, id, name, call }
}

/// Every id that is enabled. Begin and end of a capture are watched in the driver only, where
/// the runtime's calls arrive too.
pub const IDS: &[Id] = &[
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
];

/// Ids without which launches would be missed; all others may be unknown to a CUPTI.
pub const REQUIRED: [(u32, u32); 2] = [(domain::DRIVER, 307), (domain::RUNTIME, 211)];

const TABLE_SIZE: usize = 1024;
/// Index into [`IDS`] by id.
static TABLES: [[u8; TABLE_SIZE]; 2] = [table(domain::DRIVER), table(domain::RUNTIME)];
const NOT_OURS: u8 = u8::MAX;

const fn table(domain: u32) -> [u8; TABLE_SIZE] {
    let mut table = [NOT_OURS; TABLE_SIZE];
    let mut n = 0;
    while n < IDS.len() {
        if IDS[n].domain == domain {
            table[IDS[n].id as usize] = n as u8;
        }
        n += 1;
    }
    table
}

/// Index into [`IDS`] of a callback id, if it is one of them.
#[inline]
pub fn index_of(domain: u32, id: u32) -> Option<usize> {
    let index = *TABLES.get((domain as usize).wrapping_sub(1))?.get(id as usize)?;
    (index != NOT_OURS).then_some(usize::from(index))
}

/// What a driver launch call says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared_bytes: u32,
    /// `CUstream` as a number; 0 is the default stream.
    pub stream: usize,
    /// The call's default stream is the thread's own.
    pub per_thread_stream: bool,
}

/// Reads the parameters of a driver launch; `None` where this call's are not known.
///
/// # Safety
/// `params` is null or points at the parameter structure of `call`.
#[inline]
pub unsafe fn params(call: Call, params: *const c_void) -> Option<Params> {
    let at = params.cast::<u8>();
    if at.is_null() {
        return None;
    }
    let per_thread_stream = matches!(call, Call::DriverLaunchPtsz | Call::DriverLaunchExPtsz | Call::DriverGraphPtsz);
    // SAFETY: the caller's promise, and the offsets of `layouts.txt`.
    unsafe {
        match call {
            Call::DriverLaunch | Call::DriverLaunchPtsz => Some(Params {
                grid: read(at, 8),
                block: read(at, 20),
                dynamic_shared_bytes: read(at, 32),
                stream: read(at, 40),
                per_thread_stream,
            }),
            Call::DriverLaunchEx | Call::DriverLaunchExPtsz => {
                let config: *const u8 = read(at, 0);
                (!config.is_null()).then(|| Params {
                    grid: read(config, 0),
                    block: read(config, 12),
                    dynamic_shared_bytes: read(config, 24),
                    stream: read(config, 32),
                    per_thread_stream,
                })
            }
            Call::DriverGraph | Call::DriverGraphPtsz => Some(Params {
                grid: [0; 3],
                block: [0; 3],
                dynamic_shared_bytes: 0,
                stream: read(at, 8),
                per_thread_stream,
            }),
            _ => None,
        }
    }
}

/// # Safety
/// `size_of::<T>()` bytes at `base + offset` are readable and any bytes are a `T`.
#[inline]
unsafe fn read<T: Copy>(base: *const u8, offset: usize) -> T {
    // SAFETY: the caller's promise.
    unsafe { base.add(offset).cast::<T>().read_unaligned() }
}
