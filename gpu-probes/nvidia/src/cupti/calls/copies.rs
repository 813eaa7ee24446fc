//! The calls that copy memory. Ids and offsets are those of `layouts.txt`.
//!
//! Moving managed memory (`cuMemPrefetchAsync`) is no copy: CUPTI has other records for it.

use super::{CallRole, Id, Params, of_stream, read};
use CopyShape::{Anywhere, Batch, Bytes, Rows, Slices};
use xputrace_agent::Stream;
use xputrace_agent::launch::Records;

/// The parameters of a driver call that copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyCall {
    shape: CopyShape,
    /// Offset of the stream; `None` for the default stream.
    stream_at: Option<u8>,
    /// Whether the default stream is the thread's own.
    is_per_thread: bool,
}

/// What a call copies. Offsets are in its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyShape {
    /// To or from a device or an array; the number of bytes is at this offset.
    Bytes(u8),
    /// Between any two addresses, so maybe within the host's memory; likewise.
    Anywhere(u8),
    /// A pointer to a `CUDA_MEMCPY2D`.
    Rows,
    /// A pointer to a `CUDA_MEMCPY3D` or `CUDA_MEMCPY3D_PEER`, which are alike.
    Slices,
    /// Several copies, which are not read.
    Batch,
}

/// Offsets in `CUDA_MEMCPY2D` and `CUDA_MEMCPY3D`.
pub mod rows {
    /// Memory types of source and destination, in two dimensions and in three.
    pub const TYPES: [[usize; 2]; 2] = [[16, 72], [32, 120]];
    /// Extents, likewise: bytes in a row, rows, slices.
    pub const EXTENTS: [&[usize]; 2] = [&[112, 120], &[176, 184, 192]];
}

/// `CUmemorytype`: the host's memory, and any that its address tells.
pub const TYPE_HOST: u32 = 1;
pub const TYPE_UNIFIED: u32 = 4;

/// Reads the parameters of such a call.
///
/// # Safety
/// `params` points at its parameter structure.
#[inline(never)]
pub(super) unsafe fn params(copy: CopyCall, params: *const u8) -> Params {
    // SAFETY: the caller promises that `params` points at the copy's parameter structure.
    let (handle, records) =
        unsafe { (copy.stream_at.map_or(0, |at| read(params, at.into())), records(copy.shape, params)) };
    Params { records, ..of_stream(Stream { handle, per_thread: copy.is_per_thread }) }
}

/// Whether the copy has a record: none of 0 bytes has, and one within the host's memory may have none.
///
/// # Safety
/// As for [`params`].
unsafe fn records(shape: CopyShape, params: *const u8) -> Records {
    // SAFETY: the caller promises that `params` points at the copy's parameters; what these point to is the call's too.
    let (is_empty, may_be_host) = unsafe {
        match shape {
            Bytes(at) => (read::<usize>(params, at.into()) == 0, false),
            Anywhere(at) => (read::<usize>(params, at.into()) == 0, true),
            Rows => pitched(read(params, 0), 0),
            Slices => pitched(read(params, 0), 1),
            Batch => (false, true),
        }
    };
    match (is_empty, may_be_host) {
        (true, _) => Records::None,
        (false, true) => Records::Possible,
        (false, false) => Records::Certain,
    }
}

/// Whether a copy of rows (0) or slices (1) is empty, and whether it may be within the host's memory.
///
/// # Safety
/// `copy` is null or points at such a structure.
unsafe fn pitched(copy: *const u8, dimensions: usize) -> (bool, bool) {
    if copy.is_null() {
        return (false, true);
    }
    // SAFETY: the caller promises that `copy`, which is not null here, points at such a structure.
    unsafe {
        let is_empty = rows::EXTENTS[dimensions].iter().any(|at| read::<usize>(copy, *at) == 0);
        let may_be_host = |at: usize| matches!(read(copy, at), TYPE_HOST | TYPE_UNIFIED);
        (is_empty, rows::TYPES[dimensions].into_iter().all(may_be_host))
    }
}

const fn copy(id: u32, name: &'static str, shape: CopyShape, stream_at: Option<u8>) -> Id {
    let is_per_thread = matches!(name.as_bytes(), [.., b'_', b'p', b't', b'd' | b's', b's' | b'z']);
    super::driver(id, name, CallRole::DriverCopy(CopyCall { shape, stream_at, is_per_thread }))
}

/// In the default stream.
const fn driver(id: u32, name: &'static str, shape: CopyShape) -> Id {
    copy(id, name, shape, None)
}

/// In the stream at this offset.
const fn driver_async(id: u32, name: &'static str, shape: CopyShape, stream_at: u8) -> Id {
    copy(id, name, shape, Some(stream_at))
}

/// Of CUDA 3 and before: parameters are not read.
const fn legacy(id: u32, name: &'static str) -> Id {
    super::driver(id, name, CallRole::DriverCopyOther)
}

const fn runtime(id: u32, name: &'static str) -> Id {
    super::runtime(id, name, CallRole::RuntimeCopy)
}

/// Every id. Adding a copy to a graph submits nothing, and is not among them.
pub(super) const IDS: &[Id] = &[
    legacy(43, "cuMemcpyHtoD"),
    legacy(44, "cu64MemcpyHtoD"),
    legacy(45, "cuMemcpyDtoH"),
    legacy(46, "cu64MemcpyDtoH"),
    legacy(47, "cuMemcpyDtoD"),
    legacy(48, "cu64MemcpyDtoD"),
    legacy(49, "cuMemcpyDtoA"),
    legacy(50, "cu64MemcpyDtoA"),
    legacy(51, "cuMemcpyAtoD"),
    legacy(52, "cu64MemcpyAtoD"),
    legacy(53, "cuMemcpyHtoA"),
    legacy(54, "cuMemcpyAtoH"),
    legacy(55, "cuMemcpyAtoA"),
    legacy(56, "cuMemcpy2D"),
    legacy(57, "cuMemcpy2DUnaligned"),
    legacy(58, "cuMemcpy3D"),
    legacy(59, "cu64Memcpy3D"),
    legacy(60, "cuMemcpyHtoDAsync"),
    legacy(61, "cu64MemcpyHtoDAsync"),
    legacy(62, "cuMemcpyDtoHAsync"),
    legacy(63, "cu64MemcpyDtoHAsync"),
    legacy(64, "cuMemcpyDtoDAsync"),
    legacy(65, "cu64MemcpyDtoDAsync"),
    legacy(66, "cuMemcpyHtoAAsync"),
    legacy(67, "cuMemcpyAtoHAsync"),
    legacy(68, "cuMemcpy2DAsync"),
    legacy(69, "cuMemcpy3DAsync"),
    legacy(70, "cu64Memcpy3DAsync"),
    legacy(232, "cu64Memcpy2D"),
    legacy(233, "cu64Memcpy2DUnaligned"),
    legacy(234, "cu64Memcpy2DAsync"),
    legacy(248, "cuMemcpy_v2"),
    driver(276, "cuMemcpyHtoD_v2", Bytes(16)),
    driver_async(277, "cuMemcpyHtoDAsync_v2", Bytes(16), 24),
    driver(278, "cuMemcpyDtoH_v2", Bytes(16)),
    driver_async(279, "cuMemcpyDtoHAsync_v2", Bytes(16), 24),
    driver(280, "cuMemcpyDtoD_v2", Bytes(16)),
    driver_async(281, "cuMemcpyDtoDAsync_v2", Bytes(16), 24),
    driver(282, "cuMemcpyAtoH_v2", Bytes(24)),
    driver_async(283, "cuMemcpyAtoHAsync_v2", Bytes(24), 32),
    driver(284, "cuMemcpyAtoD_v2", Bytes(24)),
    driver(285, "cuMemcpyDtoA_v2", Bytes(24)),
    driver(286, "cuMemcpyAtoA_v2", Bytes(32)),
    driver(287, "cuMemcpy2D_v2", Rows),
    driver(288, "cuMemcpy2DUnaligned_v2", Rows),
    driver_async(289, "cuMemcpy2DAsync_v2", Rows, 8),
    driver(290, "cuMemcpy3D_v2", Slices),
    driver_async(291, "cuMemcpy3DAsync_v2", Slices, 8),
    driver(292, "cuMemcpyHtoA_v2", Bytes(24)),
    driver_async(293, "cuMemcpyHtoAAsync_v2", Bytes(24), 32),
    driver(305, "cuMemcpy", Anywhere(16)),
    driver_async(306, "cuMemcpyAsync", Anywhere(16), 24),
    driver(318, "cuMemcpyPeer", Bytes(32)),
    driver_async(319, "cuMemcpyPeerAsync", Bytes(32), 40),
    driver(320, "cuMemcpy3DPeer", Slices),
    driver_async(321, "cuMemcpy3DPeerAsync", Slices, 8),
    driver(397, "cuMemcpyHtoD_v2_ptds", Bytes(16)),
    driver(398, "cuMemcpyDtoH_v2_ptds", Bytes(16)),
    driver(399, "cuMemcpyDtoD_v2_ptds", Bytes(16)),
    driver(400, "cuMemcpyDtoA_v2_ptds", Bytes(24)),
    driver(401, "cuMemcpyAtoD_v2_ptds", Bytes(24)),
    driver(402, "cuMemcpyHtoA_v2_ptds", Bytes(24)),
    driver(403, "cuMemcpyAtoH_v2_ptds", Bytes(24)),
    driver(404, "cuMemcpyAtoA_v2_ptds", Bytes(32)),
    driver(405, "cuMemcpy2D_v2_ptds", Rows),
    driver(406, "cuMemcpy2DUnaligned_v2_ptds", Rows),
    driver(407, "cuMemcpy3D_v2_ptds", Slices),
    driver(408, "cuMemcpy_ptds", Anywhere(16)),
    driver(409, "cuMemcpyPeer_ptds", Bytes(32)),
    driver(410, "cuMemcpy3DPeer_ptds", Slices),
    driver_async(418, "cuMemcpyAsync_ptsz", Anywhere(16), 24),
    driver_async(419, "cuMemcpyHtoAAsync_v2_ptsz", Bytes(24), 32),
    driver_async(420, "cuMemcpyAtoHAsync_v2_ptsz", Bytes(24), 32),
    driver_async(421, "cuMemcpyHtoDAsync_v2_ptsz", Bytes(16), 24),
    driver_async(422, "cuMemcpyDtoHAsync_v2_ptsz", Bytes(16), 24),
    driver_async(423, "cuMemcpyDtoDAsync_v2_ptsz", Bytes(16), 24),
    driver_async(424, "cuMemcpy2DAsync_v2_ptsz", Rows, 8),
    driver_async(425, "cuMemcpy3DAsync_v2_ptsz", Slices, 8),
    driver_async(426, "cuMemcpyPeerAsync_ptsz", Bytes(32), 40),
    driver_async(427, "cuMemcpy3DPeerAsync_ptsz", Slices, 8),
    driver_async(776, "cuMemcpyBatchAsync", Batch, 64),
    driver_async(777, "cuMemcpyBatchAsync_ptsz", Batch, 64),
    driver_async(778, "cuMemcpy3DBatchAsync", Batch, 32),
    driver_async(779, "cuMemcpy3DBatchAsync_ptsz", Batch, 32),
    driver_async(796, "cuMemcpyBatchAsync_v2", Batch, 56),
    driver_async(797, "cuMemcpyBatchAsync_v2_ptsz", Batch, 56),
    driver_async(798, "cuMemcpy3DBatchAsync_v2", Batch, 24),
    driver_async(799, "cuMemcpy3DBatchAsync_v2_ptsz", Batch, 24),
    runtime(31, "cudaMemcpy_v3020"),
    runtime(32, "cudaMemcpy2D_v3020"),
    runtime(33, "cudaMemcpyToArray_v3020"),
    runtime(34, "cudaMemcpy2DToArray_v3020"),
    runtime(35, "cudaMemcpyFromArray_v3020"),
    runtime(36, "cudaMemcpy2DFromArray_v3020"),
    runtime(37, "cudaMemcpyArrayToArray_v3020"),
    runtime(38, "cudaMemcpy2DArrayToArray_v3020"),
    runtime(39, "cudaMemcpyToSymbol_v3020"),
    runtime(40, "cudaMemcpyFromSymbol_v3020"),
    runtime(41, "cudaMemcpyAsync_v3020"),
    runtime(42, "cudaMemcpyToArrayAsync_v3020"),
    runtime(43, "cudaMemcpyFromArrayAsync_v3020"),
    runtime(44, "cudaMemcpy2DAsync_v3020"),
    runtime(45, "cudaMemcpy2DToArrayAsync_v3020"),
    runtime(46, "cudaMemcpy2DFromArrayAsync_v3020"),
    runtime(47, "cudaMemcpyToSymbolAsync_v3020"),
    runtime(48, "cudaMemcpyFromSymbolAsync_v3020"),
    runtime(144, "cudaMemcpy3D_v3020"),
    runtime(145, "cudaMemcpy3DAsync_v3020"),
    runtime(160, "cudaMemcpyPeer_v4000"),
    runtime(161, "cudaMemcpyPeerAsync_v4000"),
    runtime(162, "cudaMemcpy3DPeer_v4000"),
    runtime(163, "cudaMemcpy3DPeerAsync_v4000"),
    runtime(215, "cudaMemcpy_ptds_v7000"),
    runtime(216, "cudaMemcpy2D_ptds_v7000"),
    runtime(217, "cudaMemcpyToArray_ptds_v7000"),
    runtime(218, "cudaMemcpy2DToArray_ptds_v7000"),
    runtime(219, "cudaMemcpyFromArray_ptds_v7000"),
    runtime(220, "cudaMemcpy2DFromArray_ptds_v7000"),
    runtime(221, "cudaMemcpyArrayToArray_ptds_v7000"),
    runtime(222, "cudaMemcpy2DArrayToArray_ptds_v7000"),
    runtime(223, "cudaMemcpyToSymbol_ptds_v7000"),
    runtime(224, "cudaMemcpyFromSymbol_ptds_v7000"),
    runtime(225, "cudaMemcpyAsync_ptsz_v7000"),
    runtime(226, "cudaMemcpyToArrayAsync_ptsz_v7000"),
    runtime(227, "cudaMemcpyFromArrayAsync_ptsz_v7000"),
    runtime(228, "cudaMemcpy2DAsync_ptsz_v7000"),
    runtime(229, "cudaMemcpy2DToArrayAsync_ptsz_v7000"),
    runtime(230, "cudaMemcpy2DFromArrayAsync_ptsz_v7000"),
    runtime(231, "cudaMemcpyToSymbolAsync_ptsz_v7000"),
    runtime(232, "cudaMemcpyFromSymbolAsync_ptsz_v7000"),
    runtime(245, "cudaMemcpy3D_ptds_v7000"),
    runtime(246, "cudaMemcpy3DAsync_ptsz_v7000"),
    runtime(249, "cudaMemcpy3DPeer_ptds_v7000"),
    runtime(250, "cudaMemcpy3DPeerAsync_ptsz_v7000"),
    runtime(482, "cudaMemcpyBatchAsync_v12080"),
    runtime(483, "cudaMemcpyBatchAsync_ptsz_v12080"),
    runtime(484, "cudaMemcpy3DBatchAsync_v12080"),
    runtime(485, "cudaMemcpy3DBatchAsync_ptsz_v12080"),
    runtime(509, "cudaMemcpyBatchAsync_v13000"),
    runtime(510, "cudaMemcpyBatchAsync_ptsz_v13000"),
    runtime(511, "cudaMemcpy3DBatchAsync_v13000"),
    runtime(512, "cudaMemcpy3DBatchAsync_ptsz_v13000"),
];
