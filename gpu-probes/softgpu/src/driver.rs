//! The driver API: every function and its CUPTI callback id.
#![allow(non_snake_case, reason = "the names are CUDA's")]
#![allow(clippy::too_many_arguments, reason = "the signatures are CUDA's")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use crate::abi::{
    CuLaunchConfig, CuMemcpy2D, CuMemcpy3D, Dim3, ExecUpdateInfo, Handle, HostNodeParams, KernelNodeParams, Memory4,
    MemsetNodeParams, Status, Synchronization2, error, kind, memory_kind,
};
use crate::activity;
use crate::callback::{self, DRIVER, calls, text};
use crate::capture::Capture;
use crate::contexts::{self, CONTEXTS};
use crate::copy::{self, Copy, Direction};
use crate::device::{self, EVENTS, FUNCTIONS, MODULES, STREAMS};
use crate::devices;
use crate::graph::{self, EXECS, GRAPHS, Node};
use crate::kernel::{self, Request, symbol};
use crate::memory::{self, MEMORY};
use crate::operation::{self, Operation, Set};
use crate::stream::Stream;
use crate::unified;
use crate::users::UserId;

type DevicePtr = usize;
/// Bytes that rows of pitched memory begin at a multiple of.
const PITCH: usize = 512;
/// The device's only memory pool.
const DEFAULT_POOL: Handle = 0x900;
/// `CUhostFn`.
type HostFunction = extern "C" fn(*mut c_void);

/// The driver API version that this library implements.
pub(crate) const VERSION: c_int = 13_000;

calls! { DRIVER, TABLE;

    /// Initializes the driver and loads the tool named in `CUDA_INJECTION64_PATH`.
    1 fn cuInit(Flags: c_uint) {
        if Flags != 0 { return Err(error::INVALID_VALUE); }
        if devices::count() == 0 { return Err(error::NO_DEVICE); }
        device::initialize();
        Ok(())
    }
    2 fn cuDriverGetVersion(driverVersion: *mut c_int) { put(driverVersion, VERSION) }

    3 fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        contexts::require_initialized()?;
        check_device(ordinal)?;
        put(device, ordinal)
    }
    4 fn cuDeviceGetCount(count: *mut c_int) { contexts::require_initialized()?; put(count, devices::count() as c_int) }
    5 fn cuDeviceGetName(name: *mut c_char, len: c_int, dev: c_int) {
        check_device(dev)?;
        copy_text(name, len as usize, crate::DEVICE_NAME)
    }
    9 fn cuDeviceGetAttribute(pi: *mut c_int, attrib: c_int, dev: c_int) {
        check_device(dev)?;
        put(pi, attribute(attrib))
    }
    259 fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: c_int) { check_device(dev)?; put(bytes, memory::TOTAL_MEMORY) }
    482 fn cuDeviceGetUuid(uuid: *mut [u8; 16], dev: c_int) { check_device(dev)?; put(uuid, devices::uuid(dev)) }
    647 fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], dev: c_int) { check_device(dev)?; put(uuid, devices::uuid(dev)) }

    386 fn cuDevicePrimaryCtxRetain(pctx: *mut Handle, dev: c_int) {
        contexts::require_initialized()?;
        check_device(dev)?;
        put(pctx, device::retain_primary(dev))
    }
    544 fn cuDevicePrimaryCtxRelease_v2(dev: c_int) { check_device(dev)?; contexts::release_primary(dev) }
    392 fn cuDevicePrimaryCtxGetState(dev: c_int, flags: *mut c_uint, active: *mut c_int) {
        check_device(dev)?;
        put(flags, 0)?;
        put(active, c_int::from(contexts::primary_is_active(dev)))
    }
    546 fn cuDevicePrimaryCtxSetFlags_v2(dev: c_int, flags: c_uint) { let _ = flags; check_device(dev) }
    235 fn cuCtxCreate_v2(pctx: *mut Handle, flags: c_uint, dev: c_int) { let _ = flags; create_context(pctx, dev) }
    757 fn cuCtxCreate_v4(pctx: *mut Handle, ctxCreateParams: *mut c_void, flags: c_uint, dev: c_int) {
        let _ = (ctxCreateParams, flags);
        create_context(pctx, dev)
    }
    322 fn cuCtxDestroy_v2(ctx: Handle) { device::destroy_context(ctx) }
    303 fn cuCtxSetCurrent(ctx: Handle) { contexts::require_initialized()?; contexts::set_current(ctx) }
    304 fn cuCtxGetCurrent(pctx: *mut Handle) { contexts::require_initialized()?; put(pctx, contexts::current_handle()) }
    323 fn cuCtxPushCurrent_v2(ctx: Handle) { contexts::push_current(ctx) }
    324 fn cuCtxPopCurrent_v2(pctx: *mut Handle) {
        let popped = contexts::pop_current()?;
        if pctx.is_null() { Ok(()) } else { put(pctx, popped) }
    }
    16 fn cuCtxGetDevice(device: *mut c_int) { put(device, contexts::current()?.device) }
    296 fn cuCtxGetApiVersion(ctx: Handle, version: *mut c_uint) { let _ = ctx; put(version, VERSION as c_uint) }
    695 fn cuCtxGetId(ctx: Handle, ctxId: *mut u64) {
        let handle = if ctx == 0 { contexts::current_handle() } else { ctx };
        put(ctxId, u64::from(CONTEXTS.find(handle).map_err(|_| error::INVALID_CONTEXT)?.uid))
    }
    391 fn cuCtxGetFlags(flags: *mut c_uint) { contexts::current()?; put(flags, 0) }
    705 fn cuCtxSetFlags(flags: c_uint) { let _ = flags; contexts::current().map(drop) }
    370 fn cuCtxGetStreamPriorityRange(leastPriority: *mut c_int, greatestPriority: *mut c_int) {
        put(leastPriority, 0)?;
        put(greatestPriority, -5)
    }
    // There is nothing to switch: a tool may act on the calls.
    308 fn cuProfilerStart() { contexts::current().map(drop) }
    309 fn cuProfilerStop() { contexts::current().map(drop) }
    17 fn cuCtxSynchronize() { synchronize_context(0) }
    800 fn cuCtxSynchronize_v2(ctx: Handle) { synchronize_context(ctx) }

    19 fn cuModuleLoadData(module: *mut Handle, image: *const c_void) {
        contexts::current()?;
        put(module, device::load_module(image)?)
    }
    20 fn cuModuleLoadDataEx(module: *mut Handle, image: *const c_void, numOptions: c_uint, options: *mut c_int, optionValues: *mut *mut c_void) {
        let _ = (numOptions, options, optionValues);
        contexts::current()?;
        put(module, device::load_module(image)?)
    }
    21 fn cuModuleLoadFatBinary(module: *mut Handle, fatCubin: *const c_void) {
        contexts::current()?;
        put(module, device::load_module(fatCubin)?)
    }
    18 fn cuModuleLoad(module: *mut Handle, fname: *const c_char) {
        contexts::current()?;
        let bytes = std::fs::read(text(fname)).map_err(|_| error::FILE_NOT_FOUND)?;
        let image = terminated(bytes);
        put(module, device::load_module(image.as_ptr().cast())?)
    }
    22 fn cuModuleUnload(hmod: Handle) { device::unload_module(hmod) }
    23 fn cuModuleGetFunction(hfunc: *mut Handle, hmod: Handle, name: *const c_char) {
        put(hfunc, device::function(hmod, text(name))?)
    }
    241 fn cuModuleGetGlobal_v2(dptr: *mut DevicePtr, bytes: *mut usize, hmod: Handle, name: *const c_char) {
        let (address, size) = device::global(hmod, text(name))?;
        if !dptr.is_null() { put(dptr, address)?; }
        if bytes.is_null() { Ok(()) } else { put(bytes, size) }
    }
    678 fn cuLibraryLoadData(library: *mut Handle, code: *const c_void, jitOptions: *mut c_int, jitOptionsValues: *mut *mut c_void, numJitOptions: c_uint, libraryOptions: *mut c_int, libraryOptionValues: *mut *mut c_void, numLibraryOptions: c_uint) {
        let _ = (jitOptions, jitOptionsValues, numJitOptions, libraryOptions, libraryOptionValues, numLibraryOptions);
        contexts::require_initialized()?;
        put(library, device::load_module(code)?)
    }
    680 fn cuLibraryUnload(library: Handle) { device::unload_module(library) }
    681 fn cuLibraryGetKernel(pKernel: *mut Handle, library: Handle, name: *const c_char) {
        put(pKernel, device::function(library, text(name))?)
    }
    682 fn cuLibraryGetModule(pMod: *mut Handle, library: Handle) { MODULES.find(library)?; put(pMod, library) }
    683 fn cuKernelGetFunction(pFunc: *mut Handle, kernel: Handle) { FUNCTIONS.find(kernel)?; put(pFunc, kernel) }
    754 fn cuKernelGetLibrary(pLib: *mut Handle, kernel: Handle) { put(pLib, FUNCTIONS.find(kernel)?.module) }
    718 fn cuFuncGetName(name: *mut *const c_char, hfunc: Handle) { put(name, kernel::interned(&FUNCTIONS.find(hfunc)?.name)) }
    719 fn cuKernelGetName(name: *mut *const c_char, hfunc: Handle) { put(name, kernel::interned(&FUNCTIONS.find(hfunc)?.name)) }
    566 fn cuFuncGetModule(hmod: *mut Handle, hfunc: Handle) { put(hmod, FUNCTIONS.find(hfunc)?.module) }
    85 fn cuFuncGetAttribute(pi: *mut c_int, attrib: c_int, hfunc: Handle) {
        const MAX_THREADS_PER_BLOCK: c_int = 0;
        const NUM_REGS: c_int = 4;
        FUNCTIONS.find(hfunc)?;
        put(pi, match attrib { MAX_THREADS_PER_BLOCK => 1024, NUM_REGS => 16, _ => 0 })
    }
    733 fn cuFuncGetParamInfo(func: Handle, paramIndex: usize, paramOffset: *mut usize, paramSize: *mut usize) {
        parameter(func, paramIndex, paramOffset, paramSize)
    }
    734 fn cuKernelGetParamInfo(kernel: Handle, paramIndex: usize, paramOffset: *mut usize, paramSize: *mut usize) {
        parameter(kernel, paramIndex, paramOffset, paramSize)
    }

    242 fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        contexts::current()?;
        put(free, memory::TOTAL_MEMORY - MEMORY.used())?;
        put(total, memory::TOTAL_MEMORY)
    }
    243 fn cuMemAlloc_v2(dptr: *mut DevicePtr, bytesize: usize) { contexts::current()?; allocate(dptr, bytesize, None) }
    244 fn cuMemAllocPitch_v2(dptr: *mut DevicePtr, pPitch: *mut usize, WidthInBytes: usize, Height: usize, ElementSizeBytes: c_uint) {
        let _ = ElementSizeBytes;
        contexts::current()?;
        let pitch = WidthInBytes.checked_next_multiple_of(PITCH).ok_or(error::INVALID_VALUE)?;
        put(pPitch, pitch)?;
        allocate(dptr, pitch.checked_mul(Height).ok_or(error::OUT_OF_MEMORY)?, None)
    }
    371 fn cuMemAllocManaged(dptr: *mut DevicePtr, bytesize: usize, flags: c_uint) {
        let _ = flags;
        contexts::current()?;
        let address = MEMORY.allocate_managed(bytesize)?;
        record_memory(ALLOCATION, address, bytesize, None);
        put(dptr, address)
    }
    245 fn cuMemFree_v2(dptr: DevicePtr) {
        device::synchronize(contexts::current()?.uid)?;
        release(dptr, None)
    }
    598, 599 cuMemAllocAsync_ptsz fn cuMemAllocAsync(dptr: *mut DevicePtr, bytesize: usize, hStream: Handle) |own| {
        allocate(dptr, bytesize, Some(&*device::stream(hStream, own)?))
    }
    606 fn cuDeviceGetDefaultMemPool(pool_out: *mut Handle, dev: c_int) { check_device(dev)?; put(pool_out, DEFAULT_POOL) }
    611, 612 cuMemAllocFromPoolAsync_ptsz fn cuMemAllocFromPoolAsync(dptr: *mut DevicePtr, bytesize: usize, pool: Handle, hStream: Handle) |own| {
        if pool != DEFAULT_POOL { return Err(error::INVALID_VALUE); }
        allocate(dptr, bytesize, Some(&*device::stream(hStream, own)?))
    }
    600, 601 cuMemFreeAsync_ptsz fn cuMemFreeAsync(dptr: DevicePtr, hStream: Handle) |own| { release_later(dptr, device::stream(hStream, own)?) }
    246 fn cuMemGetAddressRange_v2(pbase: *mut DevicePtr, psize: *mut usize, dptr: DevicePtr) {
        let (base, size) = MEMORY.range(dptr).ok_or(error::NOT_FOUND)?;
        if !pbase.is_null() { put(pbase, base)?; }
        if psize.is_null() { Ok(()) } else { put(psize, size) }
    }
    294 fn cuMemAllocHost_v2(pp: *mut usize, bytesize: usize) { put(pp, MEMORY.allocate_pinned(bytesize)?) }
    39 fn cuMemHostAlloc(pp: *mut usize, bytesize: usize, Flags: c_uint) {
        let _ = Flags;
        put(pp, MEMORY.allocate_pinned(bytesize)?)
    }
    38 fn cuMemFreeHost(p: usize) { MEMORY.free_pinned(p) }
    379 fn cuMemHostRegister_v2(p: usize, bytesize: usize, Flags: c_uint) {
        let _ = Flags;
        contexts::current()?;
        MEMORY.register(p, bytesize)
    }
    302 fn cuMemHostUnregister(p: usize) { MEMORY.unregister(p) }
    549 fn cuMemCreate(handle: *mut u64, size: usize, prop: *const c_void, flags: u64) {
        let _ = (prop, flags);
        contexts::current()?;
        put(handle, MEMORY.create(size)? as u64)
    }
    550 fn cuMemRelease(handle: u64) { MEMORY.release(handle as usize) }
    547 fn cuMemAddressReserve(ptr: *mut DevicePtr, size: usize, alignment: usize, addr: DevicePtr, flags: u64) {
        let _ = (alignment, addr, flags);
        put(ptr, MEMORY.reserve(size)?)
    }
    548 fn cuMemAddressFree(ptr: DevicePtr, size: usize) { MEMORY.unreserve(ptr, size) }
    551 fn cuMemMap(ptr: DevicePtr, size: usize, offset: usize, handle: u64, flags: u64) {
        let _ = (offset, flags);
        MEMORY.map(ptr, size, handle as usize)
    }
    552 fn cuMemUnmap(ptr: DevicePtr, size: usize) { MEMORY.unmap(ptr, size) }
    247 fn cuMemHostGetDevicePointer_v2(pdptr: *mut DevicePtr, p: usize, Flags: c_uint) { let _ = Flags; put(pdptr, p) }

    276, 397 cuMemcpyHtoD_v2_ptds fn cuMemcpyHtoD_v2(dstDevice: DevicePtr, srcHost: usize, ByteCount: usize) |own| { Copy::flat(dstDevice, srcHost, ByteCount, Direction::HostToDevice)?.now(own) }
    278, 398 cuMemcpyDtoH_v2_ptds fn cuMemcpyDtoH_v2(dstHost: usize, srcDevice: DevicePtr, ByteCount: usize) |own| { Copy::flat(dstHost, srcDevice, ByteCount, Direction::DeviceToHost)?.now(own) }
    280, 399 cuMemcpyDtoD_v2_ptds fn cuMemcpyDtoD_v2(dstDevice: DevicePtr, srcDevice: DevicePtr, ByteCount: usize) |own| { Copy::flat(dstDevice, srcDevice, ByteCount, Direction::DeviceToDevice)?.now(own) }
    305, 408 cuMemcpy_ptds fn cuMemcpy(dst: DevicePtr, src: DevicePtr, ByteCount: usize) |own| { Copy::anywhere(dst, src, ByteCount)?.now(own) }
    277, 421 cuMemcpyHtoDAsync_v2_ptsz fn cuMemcpyHtoDAsync_v2(dstDevice: DevicePtr, srcHost: usize, ByteCount: usize, hStream: Handle) |own| { Copy::flat(dstDevice, srcHost, ByteCount, Direction::HostToDevice)?.later(&device::stream(hStream, own)?) }
    279, 422 cuMemcpyDtoHAsync_v2_ptsz fn cuMemcpyDtoHAsync_v2(dstHost: usize, srcDevice: DevicePtr, ByteCount: usize, hStream: Handle) |own| { Copy::flat(dstHost, srcDevice, ByteCount, Direction::DeviceToHost)?.later(&device::stream(hStream, own)?) }
    281, 423 cuMemcpyDtoDAsync_v2_ptsz fn cuMemcpyDtoDAsync_v2(dstDevice: DevicePtr, srcDevice: DevicePtr, ByteCount: usize, hStream: Handle) |own| { Copy::flat(dstDevice, srcDevice, ByteCount, Direction::DeviceToDevice)?.later(&device::stream(hStream, own)?) }
    306, 418 cuMemcpyAsync_ptsz fn cuMemcpyAsync(dst: DevicePtr, src: DevicePtr, ByteCount: usize, hStream: Handle) |own| { Copy::anywhere(dst, src, ByteCount)?.later(&device::stream(hStream, own)?) }

    287, 405 cuMemcpy2D_v2_ptds fn cuMemcpy2D_v2(pCopy: *const CuMemcpy2D) |own| { Copy::described(pCopy)?.now(own) }
    288, 406 cuMemcpy2DUnaligned_v2_ptds fn cuMemcpy2DUnaligned_v2(pCopy: *const CuMemcpy2D) |own| { Copy::described(pCopy)?.now(own) }
    289, 424 cuMemcpy2DAsync_v2_ptsz fn cuMemcpy2DAsync_v2(pCopy: *const CuMemcpy2D, hStream: Handle) |own| { Copy::described(pCopy)?.later(&device::stream(hStream, own)?) }
    290, 407 cuMemcpy3D_v2_ptds fn cuMemcpy3D_v2(pCopy: *const CuMemcpy3D) |own| { Copy::described(pCopy)?.now(own) }
    291, 425 cuMemcpy3DAsync_v2_ptsz fn cuMemcpy3DAsync_v2(pCopy: *const CuMemcpy3D, hStream: Handle) |own| { Copy::described(pCopy)?.later(&device::stream(hStream, own)?) }
    318, 409 cuMemcpyPeer_ptds fn cuMemcpyPeer(dstDevice: DevicePtr, dstContext: Handle, srcDevice: DevicePtr, srcContext: Handle, ByteCount: usize) |own| { Copy::between((dstDevice, dstContext), (srcDevice, srcContext), ByteCount)?.now(own) }
    319, 426 cuMemcpyPeerAsync_ptsz fn cuMemcpyPeerAsync(dstDevice: DevicePtr, dstContext: Handle, srcDevice: DevicePtr, srcContext: Handle, ByteCount: usize, hStream: Handle) |own| { Copy::between((dstDevice, dstContext), (srcDevice, srcContext), ByteCount)?.later(&device::stream(hStream, own)?) }
    796, 797 cuMemcpyBatchAsync_v2_ptsz fn cuMemcpyBatchAsync_v2(dsts: *const DevicePtr, srcs: *const DevicePtr, sizes: *const usize, count: usize, attrs: *mut c_void, attrsIdxs: *mut usize, numAttrs: usize, hStream: Handle) |own| {
        let _ = (attrs, attrsIdxs, numAttrs);
        copy::batch((0..count).map(|at| Copy::anywhere(*dsts.add(at), *srcs.add(at), *sizes.add(at))), &device::stream(hStream, own)?)
    }

    249, 411 cuMemsetD8_v2_ptds fn cuMemsetD8_v2(dstDevice: DevicePtr, uc: u8, N: usize) |own| { set_now(&Set::flat(dstDevice, u32::from(uc), 1, N), own) }
    250, 412 cuMemsetD16_v2_ptds fn cuMemsetD16_v2(dstDevice: DevicePtr, us: u16, N: usize) |own| { set_now(&Set::flat(dstDevice, u32::from(us), 2, N), own) }
    251, 413 cuMemsetD32_v2_ptds fn cuMemsetD32_v2(dstDevice: DevicePtr, ui: u32, N: usize) |own| { set_now(&Set::flat(dstDevice, ui, 4, N), own) }
    252, 414 cuMemsetD2D8_v2_ptds fn cuMemsetD2D8_v2(dstDevice: DevicePtr, dstPitch: usize, uc: u8, Width: usize, Height: usize) |own| { set_now(&Set::rows(dstDevice, dstPitch, u32::from(uc), 1, Width, Height), own) }
    253, 415 cuMemsetD2D16_v2_ptds fn cuMemsetD2D16_v2(dstDevice: DevicePtr, dstPitch: usize, us: u16, Width: usize, Height: usize) |own| { set_now(&Set::rows(dstDevice, dstPitch, u32::from(us), 2, Width, Height), own) }
    254, 416 cuMemsetD2D32_v2_ptds fn cuMemsetD2D32_v2(dstDevice: DevicePtr, dstPitch: usize, ui: u32, Width: usize, Height: usize) |own| { set_now(&Set::rows(dstDevice, dstPitch, ui, 4, Width, Height), own) }
    216, 428 cuMemsetD8Async_ptsz fn cuMemsetD8Async(dstDevice: DevicePtr, uc: u8, N: usize, hStream: Handle) |own| { set_later(&Set::flat(dstDevice, u32::from(uc), 1, N), &device::stream(hStream, own)?) }
    218, 429 cuMemsetD16Async_ptsz fn cuMemsetD16Async(dstDevice: DevicePtr, us: u16, N: usize, hStream: Handle) |own| { set_later(&Set::flat(dstDevice, u32::from(us), 2, N), &device::stream(hStream, own)?) }
    220, 430 cuMemsetD32Async_ptsz fn cuMemsetD32Async(dstDevice: DevicePtr, ui: u32, N: usize, hStream: Handle) |own| { set_later(&Set::flat(dstDevice, ui, 4, N), &device::stream(hStream, own)?) }
    222, 431 cuMemsetD2D8Async_ptsz fn cuMemsetD2D8Async(dstDevice: DevicePtr, dstPitch: usize, uc: u8, Width: usize, Height: usize, hStream: Handle) |own| { set_later(&Set::rows(dstDevice, dstPitch, u32::from(uc), 1, Width, Height), &device::stream(hStream, own)?) }
    224, 432 cuMemsetD2D16Async_ptsz fn cuMemsetD2D16Async(dstDevice: DevicePtr, dstPitch: usize, us: u16, Width: usize, Height: usize, hStream: Handle) |own| { set_later(&Set::rows(dstDevice, dstPitch, u32::from(us), 2, Width, Height), &device::stream(hStream, own)?) }
    226, 433 cuMemsetD2D32Async_ptsz fn cuMemsetD2D32Async(dstDevice: DevicePtr, dstPitch: usize, ui: u32, Width: usize, Height: usize, hStream: Handle) |own| { set_later(&Set::rows(dstDevice, dstPitch, ui, 4, Width, Height), &device::stream(hStream, own)?) }

    124 fn cuStreamCreate(phStream: *mut Handle, Flags: c_uint) { put(phStream, device::create_stream(Flags, 0)?) }
    367 fn cuStreamCreateWithPriority(phStream: *mut Handle, flags: c_uint, priority: c_int) {
        put(phStream, device::create_stream(flags, priority)?)
    }
    326 fn cuStreamDestroy_v2(hStream: Handle) {
        let stream = STREAMS.remove(hStream)?;
        stream.close();
        Ok(())
    }
    126, 440 cuStreamSynchronize_ptsz fn cuStreamSynchronize(hStream: Handle) |own| { synchronize_stream(&device::stream(hStream, own)?) }
    125, 439 cuStreamQuery_ptsz fn cuStreamQuery(hStream: Handle) |own| { query(&device::stream(hStream, own)?) }
    295, 436 cuStreamWaitEvent_ptsz fn cuStreamWaitEvent(hStream: Handle, hEvent: Handle, Flags: c_uint) |own| { let _ = Flags; wait_event(&device::stream(hStream, own)?, hEvent) }
    368, 434 cuStreamGetPriority_ptsz fn cuStreamGetPriority(hStream: Handle, priority: *mut c_int) |own| { put(priority, device::stream(hStream, own)?.priority) }
    369 fn cuStreamGetFlags(hStream: Handle, flags: *mut c_uint) { put(flags, device::stream(hStream, false)?.flags) }
    693 fn cuStreamGetId(hStream: Handle, streamId: *mut u64) { put(streamId, u64::from(device::stream(hStream, false)?.id)) }
    483 fn cuStreamGetCtx(hStream: Handle, pctx: *mut Handle) { device::stream(hStream, false)?; put(pctx, contexts::current_handle()) }
    527, 528 cuLaunchHostFunc_ptsz fn cuLaunchHostFunc(hStream: Handle, f: HostFunction, userData: *mut c_void) |own| { host(&device::stream(hStream, own)?, f, userData) }

    118 fn cuEventCreate(phEvent: *mut Handle, Flags: c_uint) { contexts::current()?; put(phEvent, device::create_event(Flags)) }
    325 fn cuEventDestroy_v2(hEvent: Handle) { EVENTS.remove(hEvent).map(drop) }
    119, 441 cuEventRecord_ptsz fn cuEventRecord(hEvent: Handle, hStream: Handle) |own| { EVENTS.find(hEvent)?.record(&device::stream(hStream, own)?); Ok(()) }
    587, 588 cuEventRecordWithFlags_ptsz fn cuEventRecordWithFlags(hEvent: Handle, hStream: Handle, flags: c_uint) |own| {
        let _ = flags;
        EVENTS.find(hEvent)?.record(&device::stream(hStream, own)?);
        Ok(())
    }
    120 fn cuEventQuery(hEvent: Handle) {
        let recorded = EVENTS.find(hEvent)?.recorded();
        if recorded.mark.is_none_or(|mark| mark.is_reached()) { Ok(()) } else { Err(error::NOT_READY) }
    }
    121 fn cuEventSynchronize(hEvent: Handle) { synchronize_event(hEvent) }
    123 fn cuEventElapsedTime(pMilliseconds: *mut f32, hStart: Handle, hEnd: Handle) { elapsed(pMilliseconds, hStart, hEnd) }
    780 fn cuEventElapsedTime_v2(pMilliseconds: *mut f32, hStart: Handle, hEnd: Handle) { elapsed(pMilliseconds, hStart, hEnd) }

    307 fn cuLaunchKernel(f: Handle, gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint, blockDimX: c_uint, blockDimY: c_uint, blockDimZ: c_uint, sharedMemBytes: c_uint, hStream: Handle, kernelParams: *mut *mut c_void, extra: *mut *mut c_void) symbol symbol(f) => {
        let request = Request { function: f, grid: Dim3 { x: gridDimX, y: gridDimY, z: gridDimZ }, block: Dim3 { x: blockDimX, y: blockDimY, z: blockDimZ }, shared_bytes: sharedMemBytes, params: kernelParams, extra, cooperative: false };
        launch(&request, hStream, false)
    }
    442 fn cuLaunchKernel_ptsz(f: Handle, gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint, blockDimX: c_uint, blockDimY: c_uint, blockDimZ: c_uint, sharedMemBytes: c_uint, hStream: Handle, kernelParams: *mut *mut c_void, extra: *mut *mut c_void) symbol symbol(f) => {
        let request = Request { function: f, grid: Dim3 { x: gridDimX, y: gridDimY, z: gridDimZ }, block: Dim3 { x: blockDimX, y: blockDimY, z: blockDimZ }, shared_bytes: sharedMemBytes, params: kernelParams, extra, cooperative: false };
        launch(&request, hStream, true)
    }
    652 fn cuLaunchKernelEx(config: *const CuLaunchConfig, f: Handle, kernelParams: *mut *mut c_void, extra: *mut *mut c_void) symbol symbol(f) => {
        launch_ex(config, f, kernelParams, extra, false)
    }
    653 fn cuLaunchKernelEx_ptsz(config: *const CuLaunchConfig, f: Handle, kernelParams: *mut *mut c_void, extra: *mut *mut c_void) symbol symbol(f) => {
        launch_ex(config, f, kernelParams, extra, true)
    }
    477 fn cuLaunchCooperativeKernel(f: Handle, gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint, blockDimX: c_uint, blockDimY: c_uint, blockDimZ: c_uint, sharedMemBytes: c_uint, hStream: Handle, kernelParams: *mut *mut c_void) symbol symbol(f) => {
        let request = Request { function: f, grid: Dim3 { x: gridDimX, y: gridDimY, z: gridDimZ }, block: Dim3 { x: blockDimX, y: blockDimY, z: blockDimZ }, shared_bytes: sharedMemBytes, params: kernelParams, extra: std::ptr::null_mut(), cooperative: true };
        launch(&request, hStream, false)
    }
    478 fn cuLaunchCooperativeKernel_ptsz(f: Handle, gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint, blockDimX: c_uint, blockDimY: c_uint, blockDimZ: c_uint, sharedMemBytes: c_uint, hStream: Handle, kernelParams: *mut *mut c_void) symbol symbol(f) => {
        let request = Request { function: f, grid: Dim3 { x: gridDimX, y: gridDimY, z: gridDimZ }, block: Dim3 { x: blockDimX, y: blockDimY, z: blockDimZ }, shared_bytes: sharedMemBytes, params: kernelParams, extra: std::ptr::null_mut(), cooperative: true };
        launch(&request, hStream, true)
    }

    539, 540 cuStreamBeginCapture_v2_ptsz fn cuStreamBeginCapture_v2(hStream: Handle, mode: c_int) |own| { let _ = mode; begin_capture(hStream, own) }
    497, 498 cuStreamEndCapture_ptsz fn cuStreamEndCapture(hStream: Handle, phGraph: *mut Handle) |own| { end_capture(hStream, own, phGraph) }
    499, 500 cuStreamIsCapturing_ptsz fn cuStreamIsCapturing(hStream: Handle, captureStatus: *mut c_int) |own| { put(captureStatus, c_int::from(device::stream(hStream, own)?.capture().is_some())) }
    629 fn cuStreamGetCaptureInfo_v2(hStream: Handle, captureStatus_out: *mut c_int, id_out: *mut u64, graph_out: *mut Handle, dependencies_out: *mut *const Handle, numDependencies_out: *mut usize) {
        let capture = device::stream(hStream, false)?.capture();
        put(captureStatus_out, c_int::from(capture.is_some()))?;
        let Some(capture) = capture else { return Ok(()) };
        if !id_out.is_null() { put(id_out, capture.id)?; }
        if !graph_out.is_null() { put(graph_out, capture.graph)?; }
        if !dependencies_out.is_null() { put(dependencies_out, std::ptr::null())?; }
        if numDependencies_out.is_null() { Ok(()) } else { put(numDependencies_out, 0) }
    }
    501 fn cuGraphCreate(phGraph: *mut Handle, flags: c_uint) { let _ = flags; put(phGraph, graph::create()) }
    504 fn cuGraphAddMemcpyNode(phGraphNode: *mut Handle, hGraph: Handle, dependencies: *const Handle, numDependencies: usize, copyParams: *const CuMemcpy3D, ctx: Handle) {
        let _ = (dependencies, numDependencies, ctx);
        put(phGraphNode, graph::add(hGraph, Node::Operation(Operation::Copy(Copy::described(copyParams)?)))?)
    }
    502 fn cuGraphAddKernelNode(phGraphNode: *mut Handle, hGraph: Handle, dependencies: *const Handle, numDependencies: usize, nodeParams: *const KernelNodeParams) {
        let _ = (dependencies, numDependencies);
        put(phGraphNode, graph::add(hGraph, kernel_node(nodeParams)?)?)
    }
    689 fn cuGraphAddKernelNode_v2(phGraphNode: *mut Handle, hGraph: Handle, dependencies: *const Handle, numDependencies: usize, nodeParams: *const KernelNodeParams) {
        let _ = (dependencies, numDependencies);
        put(phGraphNode, graph::add(hGraph, kernel_node(nodeParams)?)?)
    }
    521 fn cuGraphKernelNodeSetParams(hNode: Handle, nodeParams: *const KernelNodeParams) { graph::set_kernel(hNode, prepared(nodeParams)?) }
    691 fn cuGraphKernelNodeSetParams_v2(hNode: Handle, nodeParams: *const KernelNodeParams) { graph::set_kernel(hNode, prepared(nodeParams)?) }
    538 fn cuGraphExecKernelNodeSetParams(hGraphExec: Handle, hNode: Handle, nodeParams: *const KernelNodeParams) { graph::set_kernel_in_exec(hGraphExec, hNode, prepared(nodeParams)?) }
    692 fn cuGraphExecKernelNodeSetParams_v2(hGraphExec: Handle, hNode: Handle, nodeParams: *const KernelNodeParams) { graph::set_kernel_in_exec(hGraphExec, hNode, prepared(nodeParams)?) }
    506 fn cuGraphAddMemsetNode(phGraphNode: *mut Handle, hGraph: Handle, dependencies: *const Handle, numDependencies: usize, memsetParams: *const MemsetNodeParams, ctx: Handle) {
        let _ = (dependencies, numDependencies, ctx);
        let it = memsetParams.as_ref().ok_or(error::INVALID_VALUE)?;
        let set = Set::rows(it.to, it.pitch, it.value, it.width as usize, it.count, it.rows);
        put(phGraphNode, graph::add(hGraph, Node::Operation(checked(&set, true)?))?)
    }
    530 fn cuGraphAddHostNode(phGraphNode: *mut Handle, hGraph: Handle, dependencies: *const Handle, numDependencies: usize, nodeParams: *const HostNodeParams) {
        let _ = (dependencies, numDependencies);
        let HostNodeParams { function, data } = *nodeParams.as_ref().ok_or(error::INVALID_VALUE)?;
        put(phGraphNode, graph::add(hGraph, Node::Operation(Operation::Host { function, data: data as usize }))?)
    }
    526 fn cuGraphAddEmptyNode(phGraphNode: *mut Handle, hGraph: Handle, dependencies: *const Handle, numDependencies: usize) {
        let _ = (dependencies, numDependencies);
        put(phGraphNode, graph::add(hGraph, Node::Empty)?)
    }
    525 fn cuGraphAddChildGraphNode(phGraphNode: *mut Handle, hGraph: Handle, dependencies: *const Handle, numDependencies: usize, childGraph: Handle) {
        let _ = (dependencies, numDependencies);
        put(phGraphNode, graph::add_child(hGraph, childGraph)?)
    }
    529 fn cuGraphChildGraphNodeGetGraph(hNode: Handle, phGraph: *mut Handle) {
        let Some(Node::Child(child)) = graph::node(hNode) else { return Err(error::INVALID_VALUE) };
        put(phGraph, child)
    }
    696 fn cuGraphExecUpdate_v2(hGraphExec: Handle, hGraph: Handle, resultInfo: *mut ExecUpdateInfo) {
        let answer = graph::update(hGraphExec, hGraph)?;
        put(resultInfo, ExecUpdateInfo { result: answer.err().unwrap_or(0), error_node: 0, error_from_node: 0 })?;
        answer.map_err(|_| error::GRAPH_EXEC_UPDATE_FAILURE)
    }
    561 fn cuGraphExecUpdate(hGraphExec: Handle, hGraph: Handle, hErrorNode_out: *mut Handle, updateResult_out: *mut c_uint) {
        let answer = graph::update(hGraphExec, hGraph)?;
        put(hErrorNode_out, 0)?;
        put(updateResult_out, answer.err().unwrap_or(0))?;
        answer.map_err(|_| error::GRAPH_EXEC_UPDATE_FAILURE)
    }
    523 fn cuGraphClone(phGraphClone: *mut Handle, originalGraph: Handle) { put(phGraphClone, graph::clone(originalGraph)?) }
    643 fn cuGraphInstantiateWithFlags(phGraphExec: *mut Handle, hGraph: Handle, flags: u64) {
        let _ = flags;
        put(phGraphExec, graph::instantiate(hGraph)?)
    }
    578 fn cuGraphInstantiate_v2(phGraphExec: *mut Handle, hGraph: Handle, phErrorNode: *mut Handle, logBuffer: *mut c_char, bufferSize: usize) {
        let _ = (phErrorNode, logBuffer, bufferSize);
        put(phGraphExec, graph::instantiate(hGraph)?)
    }
    514, 515 cuGraphLaunch_ptsz fn cuGraphLaunch(hGraph: Handle, hStream: Handle) |own| { launch_graph(hGraph, &device::stream(hStream, own)?) }
    516 fn cuGraphExecDestroy(hGraphExec: Handle) { EXECS.remove(hGraphExec).map(drop) }
    517 fn cuGraphDestroy(hGraph: Handle) { graph::destroy(hGraph) }
    534 fn cuGraphGetNodes(hGraph: Handle, nodes: *mut Handle, numNodes: *mut usize) {
        let graph = GRAPHS.find(hGraph)?;
        let count = graph.nodes().len();
        let room = if nodes.is_null() || numNodes.is_null() { 0 } else { *numNodes };
        for index in 0..count.min(room) { *nodes.add(index) = graph::node_handle(hGraph, index); }
        put(numNodes, if nodes.is_null() { count } else { count.min(room) })
    }
    509 fn cuGraphNodeGetType(hNode: Handle, r#type: *mut c_uint) {
        put(r#type, graph::node_type(hNode).ok_or(error::INVALID_VALUE)?)
    }
    650 fn cuGraphNodeSetEnabled(hGraphExec: Handle, hNode: Handle, isEnabled: c_uint) {
        let exec = EXECS.find(hGraphExec)?;
        exec.off(hNode).ok_or(error::INVALID_VALUE)?.store(isEnabled == 0, Ordering::Relaxed);
        Ok(())
    }
    651 fn cuGraphNodeGetEnabled(hGraphExec: Handle, hNode: Handle, isEnabled: *mut c_uint) {
        let exec = EXECS.find(hGraphExec)?;
        let off = exec.off(hNode).ok_or(error::INVALID_VALUE)?.load(Ordering::Relaxed);
        put(isEnabled, c_uint::from(!off))
    }

    372 fn cuGetErrorString(error: c_int, pStr: *mut *const c_char) { put(pStr, error_text(error).ok_or(error::INVALID_VALUE)?.1.as_ptr()) }
    373 fn cuGetErrorName(error: c_int, pStr: *mut *const c_char) { put(pStr, error_text(error).ok_or(error::INVALID_VALUE)?.0.as_ptr()) }
    626 fn cuGetProcAddress(symbol: *const c_char, pfn: *mut *const (), cudaVersion: c_int, flags: u64) {
        let _ = cudaVersion;
        put(pfn, address(text(symbol), flags).ok_or(error::NOT_FOUND)?)
    }
    677 fn cuGetProcAddress_v2(symbol: *const c_char, pfn: *mut *const (), cudaVersion: c_int, flags: u64, symbolStatus: *mut c_int) {
        const FOUND: c_int = 0;
        const SYMBOL_NOT_FOUND: c_int = 1;
        let _ = cudaVersion;
        let found = address(text(symbol), flags);
        if !symbolStatus.is_null() { put(symbolStatus, if found.is_some() { FOUND } else { SYMBOL_NOT_FOUND })?; }
        put(pfn, found.unwrap_or(std::ptr::null()))?;
        found.map(drop).ok_or(error::NOT_FOUND)
    }
    135 fn cuGetExportTable(ppExportTable: *mut *const c_void, pExportTableId: *const c_void) {
        let _ = (ppExportTable, pExportTableId);
        Err(error::NOT_SUPPORTED)
    }
}

/// Stores a result through the caller's pointer.
unsafe fn put<T>(to: *mut T, value: T) -> Status {
    if to.is_null() {
        return Err(error::INVALID_VALUE);
    }
    // SAFETY: the caller of the CUDA function promises a valid pointer.
    unsafe { to.write(value) };
    Ok(())
}

/// Stores a text with a 0 at its end, cut to what fits.
///
/// # Safety
/// `to` is null or has room for `len` bytes.
pub(crate) unsafe fn copy_text(to: *mut c_char, len: usize, text: &str) -> Status {
    let Some(room) = len.checked_sub(1).filter(|_| !to.is_null()) else {
        return Err(error::INVALID_VALUE);
    };
    let length = text.len().min(room);
    // SAFETY: the caller promises that `to`, not null here, has `len` bytes, of which `length + 1` are written.
    unsafe {
        to.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), length);
        to.add(length).write(0);
    }
    Ok(())
}

/// Returns a result code's name and text.
pub(crate) fn error_text(code: c_int) -> Option<(&'static CStr, &'static CStr)> {
    error::TEXTS.iter().find(|(known, ..)| *known == code).map(|(_, name, text)| (*name, *text))
}

/// Fails where the process has no GPU of this number.
pub(crate) fn check_device(device: c_int) -> Status {
    devices::check(device)
}

/// `CUdevice_attribute`: the attributes that programs check before choosing a code path; 0 for all
/// others.
pub(crate) fn attribute(attribute: c_int) -> c_int {
    match attribute {
        1..=3 => 1024,           // threads per block; block size in x and y
        4 => 64,                 // block size in z
        5 => c_int::MAX,         // grid size in x
        6 | 7 => 65_535,         // grid size in y and z
        8 => 48 << 10,           // shared memory per block
        9 => 64 << 10,           // constant memory
        10 => 32,                // warp size
        12 | 82 => 64 << 10,     // registers per block, per multiprocessor
        13 | 36 => 1_000_000,    // clocks in kHz
        16 => 4,                 // multiprocessors
        31 | 40 | 41 => 1,       // concurrent kernels, copy engines, unified addresses
        38 => 1 << 20,           // L2 cache size
        39 => 2048,              // threads per multiprocessor
        75 => 9,                 // compute capability
        78 | 83 | 95 | 115 => 1, // priorities, managed memory, cooperative launch, memory pools
        81 => 228 << 10,         // shared memory per multiprocessor
        97 => 227 << 10,         // shared memory per block, opt-in
        106 => 32,               // blocks per multiprocessor
        111 => 1 << 10,          // shared memory that CUDA takes for each block
        _ => 0,
    }
}

/// Finds a function by its public name: the newest version, or the one for per-thread streams.
fn address(name: &str, flags: u64) -> Option<*const ()> {
    const PER_THREAD_DEFAULT_STREAM: u64 = 2;
    let find = |wanted: String| TABLE.iter().find(|entry| entry.name == wanted).map(|entry| entry.address);
    let versions = ["_v4", "_v3", "_v2", ""];
    if flags & PER_THREAD_DEFAULT_STREAM != 0 {
        let per_thread = versions.iter().flat_map(|v| [format!("{name}{v}_ptsz"), format!("{name}{v}_ptds")]);
        if let Some(found) = per_thread.into_iter().find_map(find) {
            return Some(found);
        }
    }
    versions.iter().find_map(|version| find(format!("{name}{version}")))
}

/// Appends the NUL that PTX text needs.
fn terminated(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len() + 8, 0);
    bytes
}

unsafe fn create_context(pctx: *mut Handle, dev: c_int) -> Status {
    contexts::require_initialized()?;
    check_device(dev)?;
    let context = device::create_context(dev);
    contexts::push_current(context)?;
    device::announce_context(context);
    // SAFETY: the caller's contract.
    unsafe { put(pctx, context) }
}

unsafe fn parameter(function: Handle, index: usize, offset: *mut usize, size: *mut usize) -> Status {
    let sizes = FUNCTIONS.find(function)?.sizes().ok_or(error::NOT_SUPPORTED)?;
    let bytes = *sizes.get(index).ok_or(error::INVALID_VALUE)?;
    // SAFETY: the caller's contract.
    unsafe { put(offset, kernel::offsets(&sizes)[index]) }?;
    if size.is_null() {
        // The caller does not want it.
        return Ok(());
    }
    // SAFETY: the caller's contract.
    unsafe { put(size, bytes) }
}

unsafe fn launch(request: &Request, stream: Handle, per_thread: bool) -> Status {
    let stream = device::stream(stream, per_thread)?;
    // SAFETY: the caller's contract.
    let launch = unsafe { request.prepare() }?;
    operation::submit(&stream, Operation::Kernel(launch), callback::correlation());
    Ok(())
}

unsafe fn launch_ex(
    config: *const CuLaunchConfig,
    function: Handle,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
    per_thread: bool,
) -> Status {
    if config.is_null() {
        return Err(error::INVALID_VALUE);
    }
    // SAFETY: the caller's contract.
    let config = unsafe { *config };
    let request = Request {
        function,
        grid: config.grid_dim,
        block: config.block_dim,
        shared_bytes: config.shared_mem_bytes,
        params,
        extra,
        cooperative: false,
    };
    // SAFETY: the caller's contract.
    unsafe { launch(&request, config.stream, per_thread) }
}

fn launch_graph(exec: Handle, stream: &Arc<Stream>) -> Status {
    let exec = EXECS.find(exec)?;
    operation::submit_graph(stream, &exec, callback::correlation())
}

/// # Safety
/// `params` is null or valid.
unsafe fn prepared(params: *const KernelNodeParams) -> Result<Arc<kernel::Launch>, i32> {
    // SAFETY: the caller's contract.
    let it = unsafe { params.as_ref() }.ok_or(error::INVALID_VALUE)?;
    let KernelNodeParams { function, grid, block, shared_bytes, params, extra } = *it;
    let request = Request { function, grid, block, shared_bytes, params, extra, cooperative: false };
    // SAFETY: as above.
    unsafe { request.prepare() }
}

/// # Safety
/// `params` is null or valid.
unsafe fn kernel_node(params: *const KernelNodeParams) -> Result<Node, i32> {
    // SAFETY: the caller's contract.
    unsafe { prepared(params) }.map(|it| Node::Operation(Operation::Kernel(it)))
}

fn begin_capture(handle: Handle, per_thread: bool) -> Status {
    let stream = device::stream(handle, per_thread)?;
    let is_legacy = matches!(handle, 0 | 1) && !per_thread;
    if is_legacy {
        return Err(error::STREAM_CAPTURE_UNSUPPORTED);
    }
    if stream.capture().is_some() {
        return Err(error::ILLEGAL_STATE);
    }
    stream.set_capture(Some(Capture::begin()));
    Ok(())
}

unsafe fn end_capture(handle: Handle, per_thread: bool, graph: *mut Handle) -> Status {
    let stream = device::stream(handle, per_thread)?;
    let capture = stream.capture().ok_or(error::ILLEGAL_STATE)?;
    let joined = |other: &Arc<Stream>| other.capture().is_some_and(|its| Arc::ptr_eq(&its, &capture));
    STREAMS.all().into_iter().filter(joined).for_each(|other| other.set_capture(None));
    let ended = capture.end();
    // SAFETY: the caller's contract.
    unsafe { put(graph, ended.unwrap_or(0)) }?;
    ended.map(drop)
}

fn wait_event(stream: &Arc<Stream>, event: Handle) -> Status {
    let recorded = EVENTS.find(event)?.recorded();
    if let Some(capture) = recorded.capture {
        // The stream joins the event's capture.
        stream.set_capture(Some(capture));
    } else if let Some(mark) = recorded.mark.filter(|mark| !mark.is_reached()) {
        stream.refuse_capture()?;
        stream.submit(&[], move || mark.wait());
    }
    Ok(())
}

fn host(stream: &Arc<Stream>, function: HostFunction, data: *mut c_void) -> Status {
    operation::submit(stream, Operation::Host { function, data: data as usize }, callback::correlation());
    Ok(())
}

fn query(stream: &Arc<Stream>) -> Status {
    stream.refuse_capture()?;
    if stream.mark().is_reached() { Ok(()) } else { Err(error::NOT_READY) }
}

// `CUpti_ActivitySynchronizationType`.
const EVENT_SYNCHRONIZE: u32 = 1;
const STREAM_SYNCHRONIZE: u32 = 3;
const CONTEXT_SYNCHRONIZE: u32 = 4;
/// In records: no stream or event.
const NONE: u32 = u32::MAX;

fn synchronize_stream(stream: &Arc<Stream>) -> Status {
    stream.refuse_capture()?;
    waiting(STREAM_SYNCHRONIZE, stream.context, stream.id, NONE, || {
        stream.mark().wait();
        Ok(())
    })
}

fn synchronize_context(context: Handle) -> Status {
    let context =
        if context == 0 { contexts::current()? } else { CONTEXTS.find(context).map_err(|_| error::INVALID_CONTEXT)? };
    waiting(CONTEXT_SYNCHRONIZE, context.uid, NONE, NONE, || device::synchronize(context.uid))
}

fn synchronize_event(event: Handle) -> Status {
    let event = EVENTS.find(event)?;
    let (_, context) = contexts::current_ids();
    waiting(EVENT_SYNCHRONIZE, context, NONE, event.id, || {
        if let Some(mark) = event.recorded().mark {
            mark.wait();
        }
        Ok(())
    })
}

/// Waits, and emits the synchronization record.
fn waiting(sync_type: u32, context_id: u32, stream_id: u32, event_id: u32, wait: impl FnOnce() -> Status) -> Status {
    let start = activity::stamp(UserId::GLOBAL);
    let result = wait();
    if sync_type != EVENT_SYNCHRONIZE {
        unified::touched_by_cpu(contexts::current().map_or(0, |it| it.device));
    }
    if activity::enabled(kind::SYNCHRONIZATION) {
        let record = Synchronization2 {
            kind: kind::SYNCHRONIZATION,
            sync_type,
            start,
            end: activity::stamp(UserId::GLOBAL),
            correlation_id: callback::correlation(),
            context_id,
            stream_id,
            event_id,
            event_sync_id: 0,
            return_value: result.err().unwrap_or(0) as u32,
            pad: 0,
        };
        activity::emit(kind::SYNCHRONIZATION, &record);
    }
    result
}

unsafe fn elapsed(milliseconds: *mut f32, start: Handle, end: Handle) -> Status {
    let (start, end) = (EVENTS.find(start)?, EVENTS.find(end)?);
    if !start.timing || !end.timing {
        return Err(error::INVALID_HANDLE);
    }
    let time = |event: &device::Event| -> Result<u64, i32> {
        let recorded = event.recorded();
        let mark = recorded.mark.ok_or(error::INVALID_HANDLE)?;
        if !mark.is_reached() {
            return Err(error::NOT_READY);
        }
        let time = *recorded.time.lock().unwrap_or_else(PoisonError::into_inner);
        time.ok_or(error::NOT_READY)
    };
    let nanoseconds = time(&end)? as i64 - time(&start)? as i64;
    // SAFETY: the caller's contract.
    unsafe { put(milliseconds, nanoseconds as f32 / 1e6) }
}

/// Checks that the memory exists and that rows do not overlap.
fn checked(set: &Set, is_async: bool) -> Result<Operation, i32> {
    let row = set.count.checked_mul(set.width).ok_or(error::INVALID_VALUE)?;
    let before_the_last = set.rows.saturating_sub(1).checked_mul(set.pitch).ok_or(error::INVALID_VALUE)?;
    if set.rows > 1 && set.pitch < row {
        return Err(error::INVALID_VALUE);
    }
    MEMORY.check_writable(set.to, before_the_last.checked_add(row).ok_or(error::INVALID_VALUE)?)?;
    Ok(Operation::Set(Set { is_async, ..set.clone() }))
}

fn set_now(set: &Set, per_thread: bool) -> Status {
    set_in(set, false, &device::stream(0, per_thread)?)
}

fn set_later(set: &Set, stream: &Arc<Stream>) -> Status {
    set_in(set, true, stream)
}

fn set_in(set: &Set, is_async: bool, stream: &Arc<Stream>) -> Status {
    let mut set = checked(set, is_async)?;
    // In CUPTI's records, sets in a graph show the values of the last set outside of graphs.
    if let (None, Operation::Set(set)) = (stream.capture(), &mut set) {
        set.remember();
    }
    operation::submit(stream, set, callback::correlation());
    Ok(())
}

// `CUpti_ActivityMemoryOperationType`.
const ALLOCATION: u32 = 1;
const RELEASE: u32 = 2;

unsafe fn allocate(to: *mut DevicePtr, bytes: usize, stream: Option<&Stream>) -> Status {
    let address = MEMORY.allocate(bytes)?;
    record_memory(ALLOCATION, address, bytes, stream);
    // SAFETY: the caller's contract.
    unsafe { put(to, address) }
}

fn release(address: usize, stream: Option<&Stream>) -> Status {
    let bytes = MEMORY.range(address).map_or(0, |(_, size)| size);
    MEMORY.free(address)?;
    record_memory(RELEASE, address, bytes, stream);
    Ok(())
}

fn release_later(address: usize, stream: Arc<Stream>) -> Status {
    if address == 0 {
        return Err(error::INVALID_VALUE);
    }
    let (_, bytes) = MEMORY.range(address).filter(|(base, _)| *base == address).ok_or(error::INVALID_VALUE)?;
    record_memory(RELEASE, address, bytes, Some(&*stream));
    stream.submit(&device::streams_of(stream.context), move || {
        // A second free of the same memory finds nothing, as it should.
        let _ = MEMORY.free(address);
    });
    Ok(())
}

fn record_memory(operation: u32, address: usize, bytes: usize, stream: Option<&Stream>) {
    if !activity::enabled(kind::MEMORY2) {
        return;
    }
    let (_, context_id) = contexts::current_ids();
    let record = Memory4 {
        kind: kind::MEMORY2,
        operation,
        memory_kind: u32::from(memory_kind::DEVICE),
        correlation_id: callback::correlation(),
        address: address as u64,
        bytes: bytes as u64,
        timestamp: activity::stamp(UserId::GLOBAL),
        pc: 0,
        process_id: std::process::id(),
        device_id: contexts::current().map_or(0, |it| it.device as u32),
        context_id,
        stream_id: stream.map_or(NONE, |stream| stream.id),
        name: std::ptr::null(),
        is_async: u32::from(stream.is_some()),
        pad: 0,
        pool: [0; 5],
        source: std::ptr::null(),
    };
    activity::emit(kind::MEMORY2, &record);
}

/// Converts a name to a C string; a NUL inside is an error.
pub(crate) fn c_string(name: &str) -> Result<CString, i32> {
    CString::new(name).map_err(|_| error::INVALID_VALUE)
}
