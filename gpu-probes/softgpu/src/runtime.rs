//! The runtime API. Each call makes its driver call inside, so a tool sees the runtime's ENTER, the
//! driver's ENTER and EXIT, and the runtime's EXIT, all with one correlation id.
#![allow(non_snake_case, reason = "the names are CUDA's")]
#![allow(clippy::too_many_arguments, reason = "the signatures are CUDA's")]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::sync::{Mutex, PoisonError};

use crate::abi::{
    CuLaunchConfig, CuMemcpy2D, CuMemcpy3D, CudaLaunchConfig, Dim3, ExecUpdateInfo, Extent, Handle, HostNodeParams,
    KernelNodeParams, Memcpy3DParms, MemsetNodeParams, PitchedPtr, Status, error,
};
use crate::callback::{RUNTIME, calls, text};
use crate::contexts;
use crate::device;
use crate::devices;
use crate::driver;
use crate::forks;
use crate::kernel::symbol;
use crate::memory::{self, MEMORY};

thread_local! {
    static LAST_ERROR: Cell<c_int> = const { Cell::new(0) };
    /// Pushed by `<<<…>>>` and not yet popped by the kernel's stub. Has no destructor, as `atexit` needs it.
    static CONFIGURATIONS: RefCell<ManuallyDrop<Vec<Configuration>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

#[derive(Clone, Copy)]
struct Configuration {
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: Handle,
}

/// What a program's start-up code registered: fat binaries, and the host function of each kernel.
struct RegisteredProgram {
    /// Modules by number, loaded on first use.
    binaries: Vec<Binary>,
    functions: HashMap<usize, Stub>,
    variables: HashMap<usize, Variable>,
}

struct Binary {
    wrapper: usize,
    module: Handle,
}

#[derive(Clone)]
struct Stub {
    binary: usize,
    name: CString,
    kernel: Handle,
}

#[derive(Clone, Copy)]
struct Variable {
    address: usize,
    size: usize,
}

static PROGRAM: Mutex<Option<RegisteredProgram>> = Mutex::new(None);

/// The `CUDART_VERSION` that this library implements.
const VERSION: c_int = 13_000;

calls! { RUNTIME, TABLE;
    1 fn cudaDriverGetVersion(driverVersion: *mut c_int) { done(driver::cuDriverGetVersion(driverVersion)) }
    2 fn cudaRuntimeGetVersion(runtimeVersion: *mut c_int) { put(runtimeVersion, VERSION) }
    3 fn cudaGetDeviceCount(count: *mut c_int) { start()?; done(driver::cuDeviceGetCount(count)) }
    /// Fills the fields that all versions of the structure have at the same offset: name, memory,
    /// limits, capability.
    440 fn cudaGetDeviceProperties(prop: *mut u8, device: c_int) { properties(prop, device) }
    200 fn cudaDeviceGetAttribute(value: *mut c_int, attr: c_int, device: c_int) { start()?; done(driver::cuDeviceGetAttribute(value, attr, device)) }
    16 fn cudaSetDevice(device: c_int) { select(device) }
    17 fn cudaGetDevice(device: *mut c_int) { put(device, DEVICE.get()) }
    165 fn cudaDeviceSynchronize() { synchronize() }
    126 fn cudaThreadSynchronize() { synchronize() }
    171 fn cudaProfilerStart() { start()?; done(driver::cuProfilerStart()) }
    172 fn cudaProfilerStop() { start()?; done(driver::cuProfilerStop()) }
    164 fn cudaDeviceReset() { start()?; done(driver::cuCtxSynchronize()) }
    205 fn cudaDeviceGetStreamPriorityRange(leastPriority: *mut c_int, greatestPriority: *mut c_int) {
        done(driver::cuCtxGetStreamPriorityRange(leastPriority, greatestPriority))
    }
    444 fn cudaInitDevice(device: c_int, deviceFlags: c_uint, flags: c_uint) {
        let _ = (deviceFlags, flags);
        select(device)
    }

    20 fn cudaMalloc(devPtr: *mut usize, size: usize) { start()?; done(driver::cuMemAlloc_v2(devPtr, size)) }
    21 fn cudaMallocPitch(devPtr: *mut usize, pitch: *mut usize, width: usize, height: usize) { start()?; done(driver::cuMemAllocPitch_v2(devPtr, pitch, width, height, 4)) }
    140 fn cudaMalloc3D(pitchedDevPtr: *mut PitchedPtr, extent: Extent) {
        start()?;
        let (mut ptr, mut pitch) = (0, 0);
        let rows = extent.height.saturating_mul(extent.depth);
        done(driver::cuMemAllocPitch_v2(&mut ptr, &mut pitch, extent.width, rows, 4))?;
        put(pitchedDevPtr, PitchedPtr { ptr, pitch, xsize: extent.width, ysize: extent.height })
    }
    206 fn cudaMallocManaged(devPtr: *mut usize, size: usize, flags: c_uint) { start()?; done(driver::cuMemAllocManaged(devPtr, size, flags)) }
    22 fn cudaFree(devPtr: usize) { start()?; if devPtr == 0 { Ok(()) } else { done(driver::cuMemFree_v2(devPtr)) } }
    373 fn cudaMallocAsync(devPtr: *mut usize, size: usize, hStream: Handle) { start()?; done(driver::cuMemAllocAsync(devPtr, size, hStream)) }
    374 fn cudaMallocAsync_ptsz(devPtr: *mut usize, size: usize, hStream: Handle) { start()?; done(driver::cuMemAllocAsync_ptsz(devPtr, size, hStream)) }
    391 fn cudaMallocFromPoolAsync(ptr: *mut usize, size: usize, memPool: Handle, stream: Handle) { start()?; done(driver::cuMemAllocFromPoolAsync(ptr, size, memPool, stream)) }
    392 fn cudaMallocFromPoolAsync_ptsz(ptr: *mut usize, size: usize, memPool: Handle, stream: Handle) { start()?; done(driver::cuMemAllocFromPoolAsync_ptsz(ptr, size, memPool, stream)) }
    375 fn cudaFreeAsync(devPtr: usize, hStream: Handle) { start()?; done(driver::cuMemFreeAsync(devPtr, hStream)) }
    376 fn cudaFreeAsync_ptsz(devPtr: usize, hStream: Handle) { start()?; done(driver::cuMemFreeAsync_ptsz(devPtr, hStream)) }
    152 fn cudaHostRegister(ptr: usize, size: usize, flags: c_uint) { start()?; done(driver::cuMemHostRegister_v2(ptr, size, flags)) }
    153 fn cudaHostUnregister(ptr: usize) { start()?; done(driver::cuMemHostUnregister(ptr)) }
    25 fn cudaMallocHost(ptr: *mut usize, size: usize) { start()?; done(driver::cuMemAllocHost_v2(ptr, size)) }
    27 fn cudaHostAlloc(pHost: *mut usize, size: usize, flags: c_uint) { start()?; done(driver::cuMemHostAlloc(pHost, size, flags)) }
    26 fn cudaFreeHost(ptr: usize) { start()?; done(driver::cuMemFreeHost(ptr)) }
    30 fn cudaMemGetInfo(free: *mut usize, total: *mut usize) { start()?; done(driver::cuMemGetInfo_v2(free, total)) }

    31, 215 cudaMemcpy_ptds fn cudaMemcpy(dst: usize, src: usize, count: usize, kind: c_int) |own| { start()?; copy(dst, src, count, kind, own) }
    41, 225 cudaMemcpyAsync_ptsz fn cudaMemcpyAsync(dst: usize, src: usize, count: usize, kind: c_int, stream: Handle) |own| { start()?; copy_async(dst, src, count, kind, stream, own) }
    160 fn cudaMemcpyPeer(dst: usize, dstDevice: c_int, src: usize, srcDevice: c_int, count: usize) {
        start()?;
        done(driver::cuMemcpyPeer(dst, device::retain_primary(dstDevice), src, device::retain_primary(srcDevice), count))
    }
    161 fn cudaMemcpyPeerAsync(dst: usize, dstDevice: c_int, src: usize, srcDevice: c_int, count: usize, stream: Handle) {
        start()?;
        done(driver::cuMemcpyPeerAsync(dst, device::retain_primary(dstDevice), src, device::retain_primary(srcDevice), count, stream))
    }
    32 fn cudaMemcpy2D(dst: usize, dpitch: usize, src: usize, spitch: usize, width: usize, height: usize, kind: c_int) {
        start()?;
        done(driver::cuMemcpy2DUnaligned_v2(&CuMemcpy2D::of((dst, dpitch), (src, spitch), (width, height), kind)))
    }
    216 fn cudaMemcpy2D_ptds(dst: usize, dpitch: usize, src: usize, spitch: usize, width: usize, height: usize, kind: c_int) {
        start()?;
        done(driver::cuMemcpy2DUnaligned_v2_ptds(&CuMemcpy2D::of((dst, dpitch), (src, spitch), (width, height), kind)))
    }
    44 fn cudaMemcpy2DAsync(dst: usize, dpitch: usize, src: usize, spitch: usize, width: usize, height: usize, kind: c_int, stream: Handle) {
        start()?;
        done(driver::cuMemcpy2DAsync_v2(&CuMemcpy2D::of((dst, dpitch), (src, spitch), (width, height), kind), stream))
    }
    144 fn cudaMemcpy3D(p: *const Memcpy3DParms) { start()?; done(driver::cuMemcpy3D_v2(&CuMemcpy3D::of(&*p))) }
    245 fn cudaMemcpy3D_ptds(p: *const Memcpy3DParms) { start()?; done(driver::cuMemcpy3D_v2_ptds(&CuMemcpy3D::of(&*p))) }
    145 fn cudaMemcpy3DAsync(p: *const Memcpy3DParms, stream: Handle) { start()?; done(driver::cuMemcpy3DAsync_v2(&CuMemcpy3D::of(&*p), stream)) }
    509 fn cudaMemcpyBatchAsync(dsts: *const usize, srcs: *const usize, sizes: *const usize, count: usize, attrs: *mut c_void, attrsIdxs: *mut usize, numAttrs: usize, stream: Handle) {
        start()?;
        done(driver::cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, stream))
    }
    286 fn cudaGraphCreate(pGraph: *mut Handle, flags: c_uint) { start()?; done(driver::cuGraphCreate(pGraph, flags)) }
    352 fn cudaGraphAddMemcpyNode1D(pGraphNode: *mut Handle, graph: Handle, pDependencies: *const Handle, numDependencies: usize, dst: usize, src: usize, count: usize, kind: c_int) {
        start()?;
        let copy = CuMemcpy3D::from(CuMemcpy2D::of((dst, count), (src, count), (count, 1), kind));
        done(driver::cuGraphAddMemcpyNode(pGraphNode, graph, pDependencies, numDependencies, &copy, contexts::current_handle()))
    }
    289 fn cudaGraphAddKernelNode(pGraphNode: *mut Handle, graph: Handle, pDependencies: *const Handle, numDependencies: usize, pNodeParams: *const KernelNodeParams) {
        start()?;
        done(driver::cuGraphAddKernelNode_v2(pGraphNode, graph, pDependencies, numDependencies, &kernel_params(pNodeParams)?))
    }
    288 fn cudaGraphKernelNodeSetParams(node: Handle, pNodeParams: *const KernelNodeParams) { start()?; done(driver::cuGraphKernelNodeSetParams_v2(node, &kernel_params(pNodeParams)?)) }
    326 fn cudaGraphExecKernelNodeSetParams(hGraphExec: Handle, node: Handle, pNodeParams: *const KernelNodeParams) { start()?; done(driver::cuGraphExecKernelNodeSetParams_v2(hGraphExec, node, &kernel_params(pNodeParams)?)) }
    293 fn cudaGraphAddMemsetNode(pGraphNode: *mut Handle, graph: Handle, pDependencies: *const Handle, numDependencies: usize, pMemsetParams: *const MemsetNodeParams) {
        start()?;
        done(driver::cuGraphAddMemsetNode(pGraphNode, graph, pDependencies, numDependencies, pMemsetParams, contexts::current_handle()))
    }
    296 fn cudaGraphAddHostNode(pGraphNode: *mut Handle, graph: Handle, pDependencies: *const Handle, numDependencies: usize, pNodeParams: *const HostNodeParams) { start()?; done(driver::cuGraphAddHostNode(pGraphNode, graph, pDependencies, numDependencies, pNodeParams)) }
    300 fn cudaGraphAddEmptyNode(pGraphNode: *mut Handle, graph: Handle, pDependencies: *const Handle, numDependencies: usize) { start()?; done(driver::cuGraphAddEmptyNode(pGraphNode, graph, pDependencies, numDependencies)) }
    298 fn cudaGraphAddChildGraphNode(pGraphNode: *mut Handle, graph: Handle, pDependencies: *const Handle, numDependencies: usize, childGraph: Handle) { start()?; done(driver::cuGraphAddChildGraphNode(pGraphNode, graph, pDependencies, numDependencies, childGraph)) }
    299 fn cudaGraphChildGraphNodeGetGraph(node: Handle, pGraph: *mut Handle) { start()?; done(driver::cuGraphChildGraphNodeGetGraph(node, pGraph)) }
    303 fn cudaGraphNodeGetType(node: Handle, pType: *mut c_uint) { start()?; done(driver::cuGraphNodeGetType(node, pType)) }
    335 fn cudaGraphExecUpdate(hGraphExec: Handle, hGraph: Handle, resultInfo: *mut ExecUpdateInfo) { start()?; done(driver::cuGraphExecUpdate_v2(hGraphExec, hGraph, resultInfo)) }
    49 fn cudaMemset(devPtr: usize, value: c_int, count: usize) { start()?; done(driver::cuMemsetD8_v2(devPtr, value as u8, count)) }
    233 fn cudaMemset_ptds(devPtr: usize, value: c_int, count: usize) { start()?; done(driver::cuMemsetD8_v2_ptds(devPtr, value as u8, count)) }
    51 fn cudaMemsetAsync(devPtr: usize, value: c_int, count: usize, stream: Handle) { start()?; done(driver::cuMemsetD8Async(devPtr, value as u8, count, stream)) }
    235 fn cudaMemsetAsync_ptsz(devPtr: usize, value: c_int, count: usize, stream: Handle) { start()?; done(driver::cuMemsetD8Async_ptsz(devPtr, value as u8, count, stream)) }
    50 fn cudaMemset2D(devPtr: usize, pitch: usize, value: c_int, width: usize, height: usize) { start()?; done(driver::cuMemsetD2D8_v2(devPtr, pitch, value as u8, width, height)) }
    234 fn cudaMemset2D_ptds(devPtr: usize, pitch: usize, value: c_int, width: usize, height: usize) { start()?; done(driver::cuMemsetD2D8_v2_ptds(devPtr, pitch, value as u8, width, height)) }
    52 fn cudaMemset2DAsync(devPtr: usize, pitch: usize, value: c_int, width: usize, height: usize, stream: Handle) { start()?; done(driver::cuMemsetD2D8Async(devPtr, pitch, value as u8, width, height, stream)) }
    236 fn cudaMemset2DAsync_ptsz(devPtr: usize, pitch: usize, value: c_int, width: usize, height: usize, stream: Handle) { start()?; done(driver::cuMemsetD2D8Async_ptsz(devPtr, pitch, value as u8, width, height, stream)) }
    142 fn cudaMemset3D(pitchedDevPtr: PitchedPtr, value: c_int, extent: Extent) {
        start()?;
        slices(&pitchedDevPtr, &extent, |at, rows| done(driver::cuMemsetD2D8_v2(at, pitchedDevPtr.pitch, value as u8, extent.width, rows)))
    }
    243 fn cudaMemset3D_ptds(pitchedDevPtr: PitchedPtr, value: c_int, extent: Extent) {
        start()?;
        slices(&pitchedDevPtr, &extent, |at, rows| done(driver::cuMemsetD2D8_v2_ptds(at, pitchedDevPtr.pitch, value as u8, extent.width, rows)))
    }
    143 fn cudaMemset3DAsync(pitchedDevPtr: PitchedPtr, value: c_int, extent: Extent, stream: Handle) {
        start()?;
        slices(&pitchedDevPtr, &extent, |at, rows| done(driver::cuMemsetD2D8Async(at, pitchedDevPtr.pitch, value as u8, extent.width, rows, stream)))
    }
    244 fn cudaMemset3DAsync_ptsz(pitchedDevPtr: PitchedPtr, value: c_int, extent: Extent, stream: Handle) {
        start()?;
        slices(&pitchedDevPtr, &extent, |at, rows| done(driver::cuMemsetD2D8Async_ptsz(at, pitchedDevPtr.pitch, value as u8, extent.width, rows, stream)))
    }
    53 fn cudaGetSymbolAddress(devPtr: *mut usize, symbol: usize) { start()?; put(devPtr, variable(symbol)?.address) }
    54 fn cudaGetSymbolSize(size: *mut usize, symbol: usize) { start()?; put(size, variable(symbol)?.size) }
    39 fn cudaMemcpyToSymbol(symbol: usize, src: usize, count: usize, offset: usize, kind: c_int) {
        start()?;
        copy(variable(symbol)?.address + offset, src, count, kind, false)
    }
    40 fn cudaMemcpyFromSymbol(dst: usize, symbol: usize, count: usize, offset: usize, kind: c_int) {
        start()?;
        copy(dst, variable(symbol)?.address + offset, count, kind, false)
    }

    129 fn cudaStreamCreate(pStream: *mut Handle) { start()?; done(driver::cuStreamCreate(pStream, 0)) }
    198 fn cudaStreamCreateWithFlags(pStream: *mut Handle, flags: c_uint) { start()?; done(driver::cuStreamCreate(pStream, flags)) }
    202 fn cudaStreamCreateWithPriority(pStream: *mut Handle, flags: c_uint, priority: c_int) { start()?; done(driver::cuStreamCreateWithPriority(pStream, flags, priority)) }
    201 fn cudaStreamDestroy(stream: Handle) { start()?; done(driver::cuStreamDestroy_v2(stream)) }
    131 fn cudaStreamSynchronize(stream: Handle) { start()?; done(driver::cuStreamSynchronize(stream)) }
    239 fn cudaStreamSynchronize_ptsz(stream: Handle) { start()?; done(driver::cuStreamSynchronize_ptsz(stream)) }
    132 fn cudaStreamQuery(stream: Handle) { start()?; done(driver::cuStreamQuery(stream)) }
    240 fn cudaStreamQuery_ptsz(stream: Handle) { start()?; done(driver::cuStreamQuery_ptsz(stream)) }
    147 fn cudaStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) { start()?; done(driver::cuStreamWaitEvent(stream, event, flags)) }
    247 fn cudaStreamWaitEvent_ptsz(stream: Handle, event: Handle, flags: c_uint) { start()?; done(driver::cuStreamWaitEvent_ptsz(stream, event, flags)) }
    203 fn cudaStreamGetPriority(hStream: Handle, priority: *mut c_int) { start()?; done(driver::cuStreamGetPriority(hStream, priority)) }
    204 fn cudaStreamGetFlags(hStream: Handle, flags: *mut c_uint) { start()?; done(driver::cuStreamGetFlags(hStream, flags)) }
    284 fn cudaLaunchHostFunc(stream: Handle, f: extern "C" fn(*mut c_void), userData: *mut c_void) { start()?; done(driver::cuLaunchHostFunc(stream, f, userData)) }
    285 fn cudaLaunchHostFunc_ptsz(stream: Handle, f: extern "C" fn(*mut c_void), userData: *mut c_void) { start()?; done(driver::cuLaunchHostFunc_ptsz(stream, f, userData)) }

    133 fn cudaEventCreate(event: *mut Handle) { start()?; done(driver::cuEventCreate(event, 0)) }
    134 fn cudaEventCreateWithFlags(event: *mut Handle, flags: c_uint) { start()?; done(driver::cuEventCreate(event, flags)) }
    136 fn cudaEventDestroy(event: Handle) { start()?; done(driver::cuEventDestroy_v2(event)) }
    135 fn cudaEventRecord(event: Handle, stream: Handle) { start()?; done(driver::cuEventRecord(event, stream)) }
    242 fn cudaEventRecord_ptsz(event: Handle, stream: Handle) { start()?; done(driver::cuEventRecord_ptsz(event, stream)) }
    138 fn cudaEventQuery(event: Handle) { start()?; done(driver::cuEventQuery(event)) }
    137 fn cudaEventSynchronize(event: Handle) { start()?; done(driver::cuEventSynchronize(event)) }
    370 fn cudaEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint) { start()?; done(driver::cuEventRecordWithFlags(event, stream, flags)) }
    371 fn cudaEventRecordWithFlags_ptsz(event: Handle, stream: Handle, flags: c_uint) { start()?; done(driver::cuEventRecordWithFlags_ptsz(event, stream, flags)) }
    139 fn cudaEventElapsedTime(ms: *mut f32, start_event: Handle, end: Handle) { start()?; done(driver::cuEventElapsedTime(ms, start_event, end)) }

    211 fn cudaLaunchKernel(func: usize, gridDim: Dim3, blockDim: Dim3, args: *mut *mut c_void, sharedMem: usize, stream: Handle) symbol symbol(lookup(func)) => {
        launch(kernel(func)?, gridDim, blockDim, args, sharedMem, stream, false)
    }
    214 fn cudaLaunchKernel_ptsz(func: usize, gridDim: Dim3, blockDim: Dim3, args: *mut *mut c_void, sharedMem: usize, stream: Handle) symbol symbol(lookup(func)) => {
        launch(kernel(func)?, gridDim, blockDim, args, sharedMem, stream, true)
    }
    505 fn __cudaLaunchKernel(kernel: Handle, gridDim: Dim3, blockDim: Dim3, args: *mut *mut c_void, sharedMem: usize, stream: Handle) symbol symbol(kernel) => {
        start()?;
        launch(kernel, gridDim, blockDim, args, sharedMem, stream, false)
    }
    506 fn __cudaLaunchKernel_ptsz(kernel: Handle, gridDim: Dim3, blockDim: Dim3, args: *mut *mut c_void, sharedMem: usize, stream: Handle) symbol symbol(kernel) => {
        start()?;
        launch(kernel, gridDim, blockDim, args, sharedMem, stream, true)
    }
    430 fn cudaLaunchKernelExC(config: *const CudaLaunchConfig, func: usize, args: *mut *mut c_void) symbol symbol(lookup(func)) => {
        let config = driver_config(config)?;
        done(driver::cuLaunchKernelEx(&config, kernel(func)?, args, std::ptr::null_mut()))
    }
    431 fn cudaLaunchKernelExC_ptsz(config: *const CudaLaunchConfig, func: usize, args: *mut *mut c_void) symbol symbol(lookup(func)) => {
        let config = driver_config(config)?;
        done(driver::cuLaunchKernelEx_ptsz(&config, kernel(func)?, args, std::ptr::null_mut()))
    }
    269 fn cudaLaunchCooperativeKernel(func: usize, gridDim: Dim3, blockDim: Dim3, args: *mut *mut c_void, sharedMem: usize, stream: Handle) symbol symbol(lookup(func)) => {
        let Dim3 { x, y, z } = blockDim;
        done(driver::cuLaunchCooperativeKernel(kernel(func)?, gridDim.x, gridDim.y, gridDim.z, x, y, z, sharedMem as u32, stream, args))
    }
    270 fn cudaLaunchCooperativeKernel_ptsz(func: usize, gridDim: Dim3, blockDim: Dim3, args: *mut *mut c_void, sharedMem: usize, stream: Handle) symbol symbol(lookup(func)) => {
        let Dim3 { x, y, z } = blockDim;
        done(driver::cuLaunchCooperativeKernel_ptsz(kernel(func)?, gridDim.x, gridDim.y, gridDim.z, x, y, z, sharedMem as u32, stream, args))
    }

    315 fn cudaStreamBeginCapture(stream: Handle, mode: c_int) { start()?; done(driver::cuStreamBeginCapture_v2(stream, mode)) }
    316 fn cudaStreamBeginCapture_ptsz(stream: Handle, mode: c_int) { start()?; done(driver::cuStreamBeginCapture_v2_ptsz(stream, mode)) }
    319 fn cudaStreamEndCapture(stream: Handle, pGraph: *mut Handle) { start()?; done(driver::cuStreamEndCapture(stream, pGraph)) }
    320 fn cudaStreamEndCapture_ptsz(stream: Handle, pGraph: *mut Handle) { start()?; done(driver::cuStreamEndCapture_ptsz(stream, pGraph)) }
    317 fn cudaStreamIsCapturing(stream: Handle, pCaptureStatus: *mut c_int) { start()?; done(driver::cuStreamIsCapturing(stream, pCaptureStatus)) }
    301 fn cudaGraphClone(pGraphClone: *mut Handle, originalGraph: Handle) { start()?; done(driver::cuGraphClone(pGraphClone, originalGraph)) }
    443 fn cudaGraphInstantiate(pGraphExec: *mut Handle, graph: Handle, flags: u64) { start()?; done(driver::cuGraphInstantiateWithFlags(pGraphExec, graph, flags)) }
    418 fn cudaGraphInstantiateWithFlags(pGraphExec: *mut Handle, graph: Handle, flags: u64) { start()?; done(driver::cuGraphInstantiateWithFlags(pGraphExec, graph, flags)) }
    311 fn cudaGraphLaunch(graphExec: Handle, stream: Handle) { start()?; done(driver::cuGraphLaunch(graphExec, stream)) }
    312 fn cudaGraphLaunch_ptsz(graphExec: Handle, stream: Handle) { start()?; done(driver::cuGraphLaunch_ptsz(graphExec, stream)) }
    313 fn cudaGraphExecDestroy(graphExec: Handle) { start()?; done(driver::cuGraphExecDestroy(graphExec)) }
    314 fn cudaGraphDestroy(graph: Handle) { start()?; done(driver::cuGraphDestroy(graph)) }
    322 fn cudaGraphGetNodes(graph: Handle, nodes: *mut Handle, numNodes: *mut usize) { start()?; done(driver::cuGraphGetNodes(graph, nodes, numNodes)) }
    504 fn __cudaGetKernel(kernelPtr: *mut Handle, entryFuncAddr: usize) { put(kernelPtr, kernel(entryFuncAddr)?) }
}

/// Returns this thread's last error and clears it.
#[unsafe(no_mangle)]
pub extern "C" fn cudaGetLastError() -> c_int {
    LAST_ERROR.replace(0)
}

/// Returns this thread's last error.
#[unsafe(no_mangle)]
pub extern "C" fn cudaPeekAtLastError() -> c_int {
    LAST_ERROR.get()
}

/// Returns an error's text.
#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorString(error: c_int) -> *const c_char {
    driver::error_text(error).map_or(c"unrecognized error code", |(_, text)| text).as_ptr()
}

/// Returns an error's name in the driver's spelling; the runtime's spelling differs for some.
#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorName(error: c_int) -> *const c_char {
    driver::error_text(error).map_or(c"cudaErrorUnknown", |(name, _)| name).as_ptr()
}

/// Registers a fat binary (called by nvcc's start-up code). Kernels are found by name alone.
///
/// # Safety
/// `fatCubin` points to a fat binary's wrapper or to PTX text, which stays valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __cudaRegisterFatBinary(fatCubin: *mut c_void) -> *mut *mut c_void {
    let number = with_program(|program| {
        program.binaries.push(Binary { wrapper: fatCubin as usize, module: 0 });
        program.binaries.len()
    });
    // The handle is the binary's number and is never dereferenced.
    number as *mut *mut c_void
}

/// Ends a fat binary's registrations.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinaryEnd(fatCubinHandle: *mut *mut c_void) {
    let _ = fatCubinHandle;
}

/// Called at exit; registrations last until the process ends.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaUnregisterFatBinary(fatCubinHandle: *mut *mut c_void) {
    let _ = fatCubinHandle;
}

/// Does nothing; modules load on first use.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaInitModule(fatCubinHandle: *mut *mut c_void) -> c_char {
    let _ = fatCubinHandle;
    1
}

/// Registers the host function of a kernel.
///
/// # Safety
/// `deviceFun` is NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __cudaRegisterFunction(
    fatCubinHandle: *mut *mut c_void,
    hostFun: *const c_char,
    deviceFun: *mut c_char,
    deviceName: *const c_char,
    thread_limit: c_int,
    tid: *mut c_void,
    bid: *mut c_void,
    bDim: *mut c_void,
    gDim: *mut c_void,
    wSize: *mut c_int,
) {
    let _ = (deviceName, thread_limit, tid, bid, bDim, gDim, wSize);
    // SAFETY: the caller's contract.
    let Ok(name) = driver::c_string(unsafe { text(deviceFun) }) else {
        return;
    };
    let stub = Stub { binary: fatCubinHandle as usize, name, kernel: 0 };
    with_program(|program| program.functions.insert(hostFun as usize, stub));
}

/// Registers a device variable, which gets memory of its own.
///
/// # Safety
/// As for CUDA's function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __cudaRegisterVar(
    fatCubinHandle: *mut *mut c_void,
    hostVar: *mut c_char,
    deviceAddress: *mut c_char,
    deviceName: *const c_char,
    ext: c_int,
    size: usize,
    constant: c_int,
    global: c_int,
) {
    let _ = (fatCubinHandle, deviceAddress, deviceName, ext, constant, global);
    if let Ok(address) = MEMORY.allocate(size) {
        with_program(|program| program.variables.insert(hostVar as usize, Variable { address, size }));
    }
}

/// Runs the first half of `<<<…>>>`.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaPushCallConfiguration(
    gridDim: Dim3,
    blockDim: Dim3,
    sharedMem: usize,
    stream: Handle,
) -> c_uint {
    let configuration = Configuration { grid: gridDim, block: blockDim, shared: sharedMem, stream };
    CONFIGURATIONS.with(|stack| stack.borrow_mut().push(configuration));
    0
}

/// Runs the second half of `<<<…>>>`, from the kernel's stub.
///
/// # Safety
/// All pointers are valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __cudaPopCallConfiguration(
    gridDim: *mut Dim3,
    blockDim: *mut Dim3,
    sharedMem: *mut usize,
    stream: *mut Handle,
) -> c_int {
    let Some(top) = CONFIGURATIONS.with(|stack| stack.borrow_mut().pop()) else {
        return error::INVALID_VALUE;
    };
    // SAFETY: the caller's contract.
    unsafe {
        gridDim.write(top.grid);
        blockDim.write(top.block);
        sharedMem.write(top.shared);
        stream.write(top.stream);
    }
    0
}

/// Calls `each` with the address and row count of each block of rows: a single block if slices are
/// contiguous, as in a real driver.
fn slices(memory: &PitchedPtr, extent: &Extent, mut each: impl FnMut(usize, usize) -> Status) -> Status {
    if extent.height == memory.ysize {
        return each(memory.ptr, extent.height * extent.depth);
    }
    (0..extent.depth).try_for_each(|slice| each(memory.ptr + slice * memory.pitch * memory.ysize, extent.height))
}

/// Waits for the thread's device.
fn synchronize() -> Status {
    start()?;
    let mut context = 0;
    // SAFETY: the pointer is valid.
    done(unsafe { driver::cuCtxGetCurrent(&mut context) })?;
    // SAFETY: the context is the current one.
    done(unsafe { driver::cuCtxSynchronize_v2(context) })
}

/// Turns a result code into a `Status` and remembers a failure as the thread's last error.
fn done(result: c_int) -> Status {
    match result {
        0 => Ok(()),
        error::NOT_READY => Err(error::NOT_READY),
        code => fail(code),
    }
}

fn fail<T>(code: c_int) -> Result<T, c_int> {
    LAST_ERROR.set(code);
    Err(code)
}

unsafe fn put<T>(to: *mut T, value: T) -> Status {
    if to.is_null() {
        return fail(error::INVALID_VALUE);
    }
    // SAFETY: the caller of the CUDA function promises a valid pointer.
    unsafe { to.write(value) };
    Ok(())
}

thread_local! {
    /// The device that the thread selected.
    static DEVICE: Cell<c_int> = const { Cell::new(0) };
}

/// Does what cudart does on a thread's first call: initializes the driver and makes the primary
/// context current.
fn start() -> Status {
    if contexts::current_handle() != 0 {
        return Ok(());
    }
    initialize()?;
    contexts::push_current(primary(DEVICE.get()))
}

/// Makes the primary context of a device the thread's current one.
fn select(ordinal: c_int) -> Status {
    initialize()?;
    if driver::check_device(ordinal).is_err() {
        return fail(error::INVALID_DEVICE);
    }
    DEVICE.set(ordinal);
    contexts::set_current(primary(ordinal))
}

fn initialize() -> Status {
    if devices::count() == 0 {
        return fail(error::NO_DEVICE);
    }
    device::initialize();
    Ok(())
}

fn primary(ordinal: c_int) -> Handle {
    match contexts::primary_handle(ordinal) {
        0 => device::retain_primary(ordinal),
        handle => handle,
    }
}

fn with_program<R>(body: impl FnOnce(&mut RegisteredProgram) -> R) -> R {
    let mut program = PROGRAM.lock().unwrap_or_else(PoisonError::into_inner);
    body(program.get_or_insert_with(|| RegisteredProgram {
        binaries: Vec::new(),
        functions: HashMap::new(),
        variables: HashMap::new(),
    }))
}

fn variable(host: usize) -> Result<Variable, c_int> {
    match with_program(|program| program.variables.get(&host).copied()) {
        Some(variable) => Ok(variable),
        None => fail(error::NOT_FOUND),
    }
}

/// Returns the kernel of a host function, loading its module on first use; 0 if there is none.
///
/// The ENTER callback's symbol needs it already. As in cudart, the load is then a call of its own
/// before the launch.
fn lookup(host: usize) -> Handle {
    resolve(host).unwrap_or(0)
}

/// Returns what a kernel's node is to the driver.
///
/// # Safety
/// `params` is null or valid.
unsafe fn kernel_params(params: *const KernelNodeParams) -> Result<KernelNodeParams, c_int> {
    // SAFETY: the caller's contract.
    let it = unsafe { params.as_ref() }.ok_or(error::INVALID_VALUE)?;
    Ok(KernelNodeParams { function: kernel(it.function)?, ..*it })
}

fn kernel(host: usize) -> Result<Handle, c_int> {
    resolve(host).or_else(fail)
}

fn resolve(host: usize) -> Result<Handle, c_int> {
    if forks::is_forked_child() {
        return Err(error::NOT_INITIALIZED);
    }
    start()?;
    let stub = with_program(|program| program.functions.get(&host).cloned()).ok_or(error::INVALID_DEVICE_FUNCTION)?;
    if stub.kernel != 0 {
        return Ok(stub.kernel);
    }
    let module = module_of(stub.binary)?;
    let mut kernel = 0;
    // SAFETY: the name ends with a NUL.
    succeed(unsafe { driver::cuLibraryGetKernel(&mut kernel, module, stub.name.as_ptr()) })?;
    with_program(|program| program.functions.insert(host, Stub { kernel, ..stub }));
    Ok(kernel)
}

fn module_of(binary: usize) -> Result<Handle, c_int> {
    let known =
        |program: &mut RegisteredProgram| program.binaries.get(binary.wrapping_sub(1)).map(|b| (b.wrapper, b.module));
    let (wrapper, module) = with_program(known).ok_or(error::INVALID_HANDLE)?;
    if module != 0 {
        return Ok(module);
    }
    let (none, nothing) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mut module = 0;
    // SAFETY: the program registered the image and keeps it.
    succeed(unsafe {
        driver::cuLibraryLoadData(&mut module, wrapper as *const c_void, none, nothing, 0, none, nothing, 0)
    })?;
    with_program(|program| program.binaries[binary - 1].module = module);
    Ok(module)
}

fn succeed(result: c_int) -> Status {
    if result == 0 { Ok(()) } else { Err(result) }
}

unsafe fn launch(
    kernel: Handle,
    grid: Dim3,
    block: Dim3,
    args: *mut *mut c_void,
    shared: usize,
    stream: Handle,
    per_thread: bool,
) -> Status {
    let function = if per_thread { driver::cuLaunchKernel_ptsz } else { driver::cuLaunchKernel };
    let none = std::ptr::null_mut();
    // SAFETY: the caller's contract.
    done(unsafe {
        function(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared as u32, stream, args, none)
    })
}

unsafe fn driver_config(config: *const CudaLaunchConfig) -> Result<CuLaunchConfig, c_int> {
    if config.is_null() {
        return fail(error::INVALID_VALUE);
    }
    // SAFETY: the caller's contract.
    let config = unsafe { *config };
    Ok(CuLaunchConfig {
        grid_dim: config.grid_dim,
        block_dim: config.block_dim,
        shared_mem_bytes: config.dynamic_smem_bytes as u32,
        stream: config.stream,
        attrs: config.attrs,
        num_attrs: config.num_attrs,
    })
}

// `cudaMemcpyKind`.
const HOST_TO_HOST: c_int = 0;
const HOST_TO_DEVICE: c_int = 1;
const DEVICE_TO_HOST: c_int = 2;
const DEVICE_TO_DEVICE: c_int = 3;
const DEFAULT: c_int = 4;

unsafe fn copy(to: usize, from: usize, bytes: usize, kind: c_int, per_thread: bool) -> Status {
    // SAFETY: the caller's contract.
    done(unsafe {
        match (kind, per_thread) {
            (HOST_TO_DEVICE, false) => driver::cuMemcpyHtoD_v2(to, from, bytes),
            (HOST_TO_DEVICE, true) => driver::cuMemcpyHtoD_v2_ptds(to, from, bytes),
            (DEVICE_TO_HOST, false) => driver::cuMemcpyDtoH_v2(to, from, bytes),
            (DEVICE_TO_HOST, true) => driver::cuMemcpyDtoH_v2_ptds(to, from, bytes),
            (DEVICE_TO_DEVICE, false) => driver::cuMemcpyDtoD_v2(to, from, bytes),
            (DEVICE_TO_DEVICE, true) => driver::cuMemcpyDtoD_v2_ptds(to, from, bytes),
            (HOST_TO_HOST | DEFAULT, _) => driver::cuMemcpy(to, from, bytes),
            _ => error::INVALID_VALUE,
        }
    })
}

unsafe fn copy_async(to: usize, from: usize, bytes: usize, kind: c_int, stream: Handle, per_thread: bool) -> Status {
    // SAFETY: the caller's contract.
    done(unsafe {
        match (kind, per_thread) {
            (HOST_TO_DEVICE, false) => driver::cuMemcpyHtoDAsync_v2(to, from, bytes, stream),
            (HOST_TO_DEVICE, true) => driver::cuMemcpyHtoDAsync_v2_ptsz(to, from, bytes, stream),
            (DEVICE_TO_HOST, false) => driver::cuMemcpyDtoHAsync_v2(to, from, bytes, stream),
            (DEVICE_TO_HOST, true) => driver::cuMemcpyDtoHAsync_v2_ptsz(to, from, bytes, stream),
            (DEVICE_TO_DEVICE, false) => driver::cuMemcpyDtoDAsync_v2(to, from, bytes, stream),
            (DEVICE_TO_DEVICE, true) => driver::cuMemcpyDtoDAsync_v2_ptsz(to, from, bytes, stream),
            (HOST_TO_HOST | DEFAULT, false) => driver::cuMemcpyAsync(to, from, bytes, stream),
            (HOST_TO_HOST | DEFAULT, true) => driver::cuMemcpyAsync_ptsz(to, from, bytes, stream),
            _ => error::INVALID_VALUE,
        }
    })
}

/// Fills `cudaDeviceProp` up to `minor`, which CUDA 12 and 13 share; leaves the rest as it was.
unsafe fn properties(to: *mut u8, dev: c_int) -> Status {
    start()?;
    if to.is_null() || driver::check_device(dev).is_err() {
        return fail(if to.is_null() { error::INVALID_VALUE } else { error::INVALID_DEVICE });
    }
    let ints = |numbers: &[c_int]| numbers.iter().flat_map(|n| n.to_ne_bytes()).collect::<Vec<u8>>();
    let size = |number: usize| number.to_ne_bytes().to_vec();
    let a = driver::attribute;
    let fields = [
        (256, devices::uuid(dev).to_vec()),
        (288, size(memory::TOTAL_MEMORY)),
        (296, size(a(8) as usize)),
        (304, ints(&[a(12), a(10)])),
        (312, size(c_int::MAX as usize)),
        (320, ints(&[a(1), a(2), a(3), a(4), a(5), a(6), a(7)])),
        (352, size(a(9) as usize)),
        (360, ints(&[a(75), a(76)])),
    ];
    // SAFETY: the structure is longer than all of these, in every version.
    unsafe {
        driver::copy_text(to.cast(), 256, crate::DEVICE_NAME)?;
        for (offset, bytes) in fields {
            to.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::callback::ExportedFunction;
    use crate::names;

    fn name_of(domain: u32, entry: &ExportedFunction) -> &'static str {
        names::callback(domain, entry.id).map_or("", |name| name.to_str().unwrap())
    }

    #[test]
    fn callback_ids_are_cuptis() {
        for entry in crate::driver::TABLE {
            assert_eq!(name_of(1, entry), entry.name, "driver {}", entry.id);
        }
        for entry in super::TABLE {
            let (name, _version) = name_of(2, entry).rsplit_once("_v").unwrap_or_default();
            assert_eq!(name, entry.name, "runtime {}", entry.id);
        }
    }
}
