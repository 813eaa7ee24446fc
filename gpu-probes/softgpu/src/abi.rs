//! Structures and constants of CUDA and CUPTI 13.0 on x86-64, written from their public headers.
//! The tests compare them with a dump from a real installation.

use std::ffi::{c_char, c_void};

/// `CUresult` and `cudaError_t`: CUDA 10.1 and later share the numbers used here.
pub(crate) type CuResult = i32;
/// Result of a CUDA call; the error is its code.
pub(crate) type Status = Result<(), CuResult>;
/// `CUcontext`, `CUstream` and so on: opaque to programs, so plain numbers here.
pub(crate) type Handle = usize;

pub(crate) mod error {
    use std::ffi::CStr;

    /// Lists errors once, with their texts.
    macro_rules! errors {
        ($($NAME:ident = $code:literal $text:literal;)*) => {
            $(pub(crate) const $NAME: i32 = $code;)*

            /// Code, `CUresult` name, text.
            pub(crate) const TEXTS: &[(i32, &CStr, &CStr)] = &[
                (0, c"CUDA_SUCCESS", c"no error"),
                (719, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
                (999, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
                $(($code, with_nul(concat!("CUDA_ERROR_", stringify!($NAME), "\0")), $text),)*
            ];
        };
    }

    const fn with_nul(text: &str) -> &CStr {
        match CStr::from_bytes_with_nul(text.as_bytes()) {
            Ok(text) => text,
            Err(_) => panic!("one NUL, at the end"),
        }
    }

    errors! {
        INVALID_VALUE = 1 c"invalid argument";
        OUT_OF_MEMORY = 2 c"out of memory";
        NOT_INITIALIZED = 3 c"initialization error";
        INVALID_DEVICE_FUNCTION = 98 c"invalid device function";
        NO_DEVICE = 100 c"no CUDA-capable device is detected";
        INVALID_DEVICE = 101 c"invalid device ordinal";
        INVALID_IMAGE = 200 c"device kernel image is invalid";
        INVALID_CONTEXT = 201 c"invalid device context";
        FILE_NOT_FOUND = 301 c"file not found";
        INVALID_HANDLE = 400 c"invalid resource handle";
        ILLEGAL_STATE = 401 c"the operation cannot be performed in the present state";
        NOT_FOUND = 500 c"named symbol not found";
        NOT_READY = 600 c"device not ready";
        LAUNCH_OUT_OF_RESOURCES = 701 c"too many resources requested for launch";
        HOST_MEMORY_ALREADY_REGISTERED = 712 c"part or all of the requested memory range is already mapped";
        HOST_MEMORY_NOT_REGISTERED = 713 c"pointer does not correspond to a registered memory region";
        NOT_SUPPORTED = 801 c"operation not supported";
        STREAM_CAPTURE_UNSUPPORTED = 900 c"operation not permitted when stream is capturing";
        STREAM_CAPTURE_INVALIDATED = 901 c"operation failed due to a previous error during capture";
        GRAPH_EXEC_UPDATE_FAILURE = 910
            c"the graph update was not performed because it included changes which violated constraints \
              specific to instantiated graph update";
    }
}

/// Describes the block that a kernel function runs.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SoftLaunch {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// This block's index.
    pub block_idx: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// Zeroed dynamic shared memory for this block alone; null if `shared_bytes` is 0.
    pub shared: *mut c_void,
}

impl SoftLaunch {
    /// Returns the number of threads in a block.
    pub fn threads(&self) -> u64 {
        self.block.iter().map(|&n| u64::from(n)).product()
    }
}

/// `cudaPitchedPtr`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct PitchedPtr {
    pub ptr: usize,
    /// Bytes from the start of one row to the start of the next.
    pub pitch: usize,
    pub xsize: usize,
    /// Rows in a slice.
    pub ysize: usize,
}

/// `cudaExtent`: bytes per row, number of rows, number of slices.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Extent {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

/// `dim3`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dim3 {
    pub x: u32,
    pub y: u32,
    pub z: u32,
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CuLaunchConfig {
    pub grid_dim: Dim3,
    pub block_dim: Dim3,
    pub shared_mem_bytes: u32,
    pub stream: Handle,
    pub attrs: *mut c_void,
    pub num_attrs: u32,
}

/// `cudaLaunchConfig_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CudaLaunchConfig {
    pub grid_dim: Dim3,
    pub block_dim: Dim3,
    pub dynamic_smem_bytes: usize,
    pub stream: Handle,
    pub attrs: *mut c_void,
    pub num_attrs: u32,
}

/// `CUmemorytype`.
mod memory_type {
    pub(super) const HOST: u32 = 1;
    pub(super) const DEVICE: u32 = 2;
    pub(super) const UNIFIED: u32 = 4;
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CuMemcpy2D {
    pub src: CuMemcpy2DSide,
    pub dst: CuMemcpy2DSide,
    pub width_in_bytes: usize,
    pub height: usize,
}

/// One side of a `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CuMemcpy2DSide {
    pub x_in_bytes: usize,
    pub y: usize,
    pub memory_type: u32,
    pub host: usize,
    pub device: usize,
    pub array: Handle,
    pub pitch: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CuMemcpy3D {
    pub src: CuMemcpy3DSide,
    pub dst: CuMemcpy3DSide,
    pub width_in_bytes: usize,
    pub height: usize,
    pub depth: usize,
}

/// One side of a `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CuMemcpy3DSide {
    pub x_in_bytes: usize,
    pub y: usize,
    pub z: usize,
    pub lod: usize,
    pub memory_type: u32,
    pub host: usize,
    pub device: usize,
    pub array: Handle,
    pub reserved: usize,
    pub pitch: usize,
    pub height: usize,
}

/// `cudaMemcpy3DParms`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Memcpy3DParms {
    pub src_array: Handle,
    pub src_pos: [usize; 3],
    pub src_ptr: PitchedPtr,
    pub dst_array: Handle,
    pub dst_pos: [usize; 3],
    pub dst_ptr: PitchedPtr,
    pub extent: Extent,
    pub kind: i32,
}

impl CuMemcpy3DSide {
    /// Returns its address, and whether that is on the device; `None` if the address tells.
    pub(crate) fn place(&self) -> Result<(usize, Option<bool>), CuResult> {
        match self.memory_type {
            memory_type::HOST => Ok((self.host, Some(false))),
            memory_type::DEVICE => Ok((self.device, Some(true))),
            memory_type::UNIFIED => Ok((self.device, None)),
            _ => Err(error::NOT_SUPPORTED),
        }
    }
}

impl From<CuMemcpy2D> for CuMemcpy3D {
    fn from(it: CuMemcpy2D) -> Self {
        let side = |side: CuMemcpy2DSide| CuMemcpy3DSide {
            x_in_bytes: side.x_in_bytes,
            y: side.y,
            memory_type: side.memory_type,
            host: side.host,
            device: side.device,
            array: side.array,
            pitch: side.pitch,
            height: it.height,
            ..CuMemcpy3DSide::default()
        };
        CuMemcpy3D {
            src: side(it.src),
            dst: side(it.dst),
            width_in_bytes: it.width_in_bytes,
            height: it.height,
            depth: 1,
        }
    }
}

impl CuMemcpy2D {
    /// Rows of addresses with pitches, in a direction of the runtime (`cudaMemcpyKind`).
    pub(crate) fn of(dst: (usize, usize), src: (usize, usize), (width, height): (usize, usize), kind: i32) -> Self {
        let [to, from] = types_of(kind);
        let side = |(address, pitch): (usize, usize), memory_type| CuMemcpy2DSide {
            memory_type,
            host: address,
            device: address,
            pitch,
            ..CuMemcpy2DSide::default()
        };
        CuMemcpy2D { src: side(src, from), dst: side(dst, to), width_in_bytes: width, height }
    }
}

impl CuMemcpy3D {
    /// What the runtime's structure describes, without arrays.
    pub(crate) fn of(it: &Memcpy3DParms) -> Self {
        let [to, from] = types_of(it.kind);
        let side = |at: &PitchedPtr, [x_in_bytes, y, z]: [usize; 3], memory_type| CuMemcpy3DSide {
            x_in_bytes,
            y,
            z,
            memory_type,
            host: at.ptr,
            device: at.ptr,
            pitch: at.pitch,
            height: at.ysize,
            ..CuMemcpy3DSide::default()
        };
        let Extent { width, height, depth } = it.extent;
        let (src, dst) = (side(&it.src_ptr, it.src_pos, from), side(&it.dst_ptr, it.dst_pos, to));
        CuMemcpy3D { src, dst, width_in_bytes: width, height, depth }
    }
}

/// Returns the memory types of destination and source.
fn types_of(kind: i32) -> [u32; 2] {
    use memory_type::{DEVICE, HOST, UNIFIED};
    match kind {
        0 => [HOST, HOST],
        1 => [DEVICE, HOST],
        2 => [HOST, DEVICE],
        3 => [DEVICE, DEVICE],
        _ => [UNIFIED, UNIFIED],
    }
}

/// `CUpti_CallbackData`.
#[repr(C)]
pub(crate) struct CallbackData {
    pub(crate) callback_site: u32,
    pub(crate) function_name: *const c_char,
    pub(crate) function_params: *const c_void,
    pub(crate) function_return_value: *mut c_void,
    pub(crate) symbol_name: *const c_char,
    pub(crate) context: Handle,
    pub(crate) context_uid: u32,
    pub(crate) correlation_data: *mut u64,
    pub(crate) correlation_id: u32,
}

/// `CUpti_ResourceData`.
#[repr(C)]
pub(crate) struct ResourceData {
    pub(crate) context: Handle,
    pub(crate) resource_handle: Handle,
    pub(crate) resource_descriptor: *const c_void,
}

/// `CUpti_ModuleResourceData`.
#[repr(C)]
pub(crate) struct ModuleResourceData {
    pub(crate) module_id: u32,
    pub(crate) cubin_size: usize,
    pub(crate) cubin: *const c_char,
}

/// `CUDA_KERNEL_NODE_PARAMS` as far as all versions of it go, and `cudaKernelNodeParams`, whose function is the host's.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelNodeParams {
    pub(crate) function: Handle,
    pub(crate) grid: Dim3,
    pub(crate) block: Dim3,
    pub(crate) shared_bytes: u32,
    pub(crate) params: *mut *mut c_void,
    pub(crate) extra: *mut *mut c_void,
}

/// `CUDA_MEMSET_NODE_PARAMS`, `cudaMemsetParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemsetNodeParams {
    pub(crate) to: usize,
    pub(crate) pitch: usize,
    pub(crate) value: u32,
    pub(crate) width: u32,
    pub(crate) count: usize,
    pub(crate) rows: usize,
}

/// `CUDA_HOST_NODE_PARAMS`, `cudaHostNodeParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HostNodeParams {
    pub(crate) function: extern "C" fn(*mut c_void),
    pub(crate) data: *mut c_void,
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ExecUpdateInfo {
    pub(crate) result: u32,
    pub(crate) error_node: Handle,
    pub(crate) error_from_node: Handle,
}

/// `CUpti_GraphData`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct GraphData {
    pub(crate) graph: Handle,
    pub(crate) original_graph: Handle,
    pub(crate) node: Handle,
    pub(crate) original_node: Handle,
    pub(crate) node_type: u32,
    pub(crate) dependency: Handle,
    pub(crate) graph_exec: Handle,
}

// The other records that this library emits, made from the facts: their fields, and what is between them.
include!(concat!(env!("OUT_DIR"), "/records.rs"));

/// `CUpti_ActivityMemory4`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Memory4 {
    pub(crate) kind: u32,
    pub(crate) operation: u32,
    pub(crate) memory_kind: u32,
    pub(crate) correlation_id: u32,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) timestamp: u64,
    pub(crate) pc: u64,
    pub(crate) process_id: u32,
    pub(crate) device_id: u32,
    pub(crate) context_id: u32,
    pub(crate) stream_id: u32,
    pub(crate) name: *const c_char,
    pub(crate) is_async: u32,
    pub(crate) pad: u32,
    pub(crate) pool: [u64; 5],
    pub(crate) source: *const c_char,
}

/// `CUpti_ActivitySynchronization2`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Synchronization2 {
    pub(crate) kind: u32,
    pub(crate) sync_type: u32,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) correlation_id: u32,
    pub(crate) context_id: u32,
    pub(crate) stream_id: u32,
    pub(crate) event_id: u32,
    pub(crate) event_sync_id: u64,
    pub(crate) return_value: u32,
    pub(crate) pad: u32,
}

/// `CUpti_ActivityAPI`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Api {
    pub(crate) kind: u32,
    pub(crate) cbid: u32,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) process_id: u32,
    pub(crate) thread_id: u32,
    pub(crate) correlation_id: u32,
    pub(crate) return_value: u32,
}

/// `CUpti_ActivityComputeEngineCtxSwitch`, since CUPTI 13.1.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ContextSwitch {
    pub(crate) kind: u32,
    pub(crate) context: u32,
    pub(crate) timestamp: u64,
    pub(crate) operation: u32,
    pub(crate) padding: u32,
}

/// `CUpti_ActivityUnifiedMemoryCounterConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UnifiedMemoryCounter {
    pub scope: u32,
    pub kind: u32,
    pub device_id: u32,
    pub enable: u32,
}

/// `CUpti_ActivityOverheadKind`, as far as this library has any.
pub(crate) mod overhead {
    pub(crate) const MODULE_LOADING: u32 = 4 << 16;
    pub(crate) const LAZY_FUNCTION_LOADING: u32 = 5 << 16;
}

/// Activity kinds that this library emits.
pub(crate) mod kind {
    pub(crate) const MEMCPY: u32 = 1;
    pub(crate) const MEMSET: u32 = 2;
    pub(crate) const KERNEL: u32 = 3;
    pub(crate) const DRIVER: u32 = 4;
    pub(crate) const RUNTIME: u32 = 5;
    pub(crate) const CONCURRENT_KERNEL: u32 = 10;
    pub(crate) const OVERHEAD: u32 = 17;
    pub(crate) const MEMCPY2: u32 = 22;
    pub(crate) const UNIFIED_MEMORY_COUNTER: u32 = 25;
    pub(crate) const SYNCHRONIZATION: u32 = 38;
    pub(crate) const MEMORY2: u32 = 49;
    pub(crate) const GRAPH_TRACE: u32 = 51;
    pub(crate) const CONTEXT_SWITCH: u32 = 57;
}

/// Memory kinds of copy and memory records (`CUpti_ActivityMemoryKind`).
pub(crate) mod memory_kind {
    pub(crate) const PAGEABLE: u8 = 1;
    pub(crate) const PINNED: u8 = 2;
    pub(crate) const DEVICE: u8 = 3;
    pub(crate) const MANAGED: u8 = 5;
}

/// Returns the size of a record of this kind, or `None` if this library never emits it.
pub(crate) fn record_size(kind: u32) -> Option<usize> {
    Some(match kind {
        kind::MEMCPY => size_of::<Memcpy6>(),
        kind::MEMCPY2 => size_of::<MemcpyPtoP4>(),
        kind::MEMSET => size_of::<Memset4>(),
        kind::KERNEL | kind::CONCURRENT_KERNEL => size_of::<Kernel10>(),
        kind::DRIVER | kind::RUNTIME => size_of::<Api>(),
        kind::SYNCHRONIZATION => size_of::<Synchronization2>(),
        kind::MEMORY2 => size_of::<Memory4>(),
        kind::GRAPH_TRACE => size_of::<GraphTrace2>(),
        kind::OVERHEAD => size_of::<Overhead3>(),
        kind::UNIFIED_MEMORY_COUNTER => size_of::<UnifiedMemoryCounter3>(),
        kind::CONTEXT_SWITCH => size_of::<ContextSwitch>(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// Sizes and offsets of a real CUPTI, by name.
    fn fact(line: &str) -> Vec<usize> {
        let found = crate::names::LAYOUTS.lines().find(|l| l.starts_with(&format!("{line} ")));
        let found = found.unwrap_or_else(|| panic!("the dump has no line {line:?}"));
        found[line.len()..].split_whitespace().map(|word| word.parse().unwrap()).collect()
    }

    macro_rules! same {
        ($ours:ty, $theirs:literal: $($field:ident $(. $n:literal)? = $name:literal),*) => {
            assert_eq!(fact(concat!("struct ", $theirs)), [size_of::<$ours>()], $theirs);
            $(assert_eq!(fact(concat!("field ", $theirs, ".", $name))[0], offset_of!($ours, $field) $(+ $n)?, concat!($theirs, ".", $name));)*
        };
    }

    #[test]
    fn callback_structures_are_cuptis() {
        same!(CallbackData, "CUpti_CallbackData": callback_site = "callbackSite", function_name = "functionName",
            function_params = "functionParams", function_return_value = "functionReturnValue", symbol_name = "symbolName",
            context = "context", context_uid = "contextUid", correlation_data = "correlationData", correlation_id = "correlationId");
        same!(ResourceData, "CUpti_ResourceData": context = "context", resource_handle = "resourceHandle",
            resource_descriptor = "resourceDescriptor");
        same!(ModuleResourceData, "CUpti_ModuleResourceData": module_id = "moduleId", cubin_size = "cubinSize", cubin = "pCubin");
        same!(KernelNodeParams, "cudaKernelNodeParams": function = "func", grid = "gridDim", block = "blockDim",
            shared_bytes = "sharedMemBytes", params = "kernelParams", extra = "extra");
        for (ours, theirs) in [
            (offset_of!(KernelNodeParams, function), "func"),
            (offset_of!(KernelNodeParams, grid), "gridDimX"),
            (offset_of!(KernelNodeParams, block), "blockDimX"),
            (offset_of!(KernelNodeParams, shared_bytes), "sharedMemBytes"),
            (offset_of!(KernelNodeParams, params), "kernelParams"),
            (offset_of!(KernelNodeParams, extra), "extra"),
        ] {
            assert_eq!(fact(&format!("field CUDA_KERNEL_NODE_PARAMS.{theirs}"))[0], ours, "{theirs}");
        }
        same!(MemsetNodeParams, "CUDA_MEMSET_NODE_PARAMS": to = "dst", pitch = "pitch", value = "value",
            width = "elementSize", count = "width", rows = "height");
        same!(ExecUpdateInfo, "CUgraphExecUpdateResultInfo": result = "result", error_node = "errorNode",
            error_from_node = "errorFromNode");
        same!(GraphData, "CUpti_GraphData": graph = "graph", original_graph = "originalGraph", node = "node",
            original_node = "originalNode", node_type = "nodeType", dependency = "dependency", graph_exec = "graphExec");
    }

    #[test]
    fn kernel_records_are_cuptis() {
        same!(Kernel10, "Kernel": kind = "kind", registers_per_thread = "registersPerThread", start = "start", end = "end",
            completed = "completed", device_id = "deviceId", context_id = "contextId", stream_id = "streamId",
            grid_x = "gridX", grid_y = "gridY", grid_z = "gridZ", block_x = "blockX", block_y = "blockY", block_z = "blockZ",
            static_shared_memory = "staticSharedMemory", dynamic_shared_memory = "dynamicSharedMemory",
            local_memory_per_thread = "localMemoryPerThread", local_memory_total = "localMemoryTotal",
            correlation_id = "correlationId", grid_id = "gridId", name = "name", queued = "queued", submitted = "submitted",
            launch_type = "launchType", graph_node_id = "graphNodeId", graph_id = "graphId", channel_id = "channelID");
    }

    #[test]
    fn copies_are_cuptis_and_the_drivers() {
        same!(Memcpy6, "Memcpy": kind = "kind", copy_kind = "copyKind", src_kind = "srcKind", dst_kind = "dstKind",
            flags = "flags", bytes = "bytes", start = "start", end = "end", device_id = "deviceId", context_id = "contextId",
            stream_id = "streamId", correlation_id = "correlationId", graph_node_id = "graphNodeId", graph_id = "graphId",
            channel_id = "channelID", channel_type = "channelType", copy_count = "copyCount");
        same!(MemcpyPtoP4, "MemcpyPtoP": kind = "kind", copy_kind = "copyKind", src_kind = "srcKind", dst_kind = "dstKind",
            flags = "flags", bytes = "bytes", start = "start", end = "end", device_id = "deviceId", context_id = "contextId",
            stream_id = "streamId", src_device_id = "srcDeviceId", src_context_id = "srcContextId",
            dst_device_id = "dstDeviceId", dst_context_id = "dstContextId", correlation_id = "correlationId",
            graph_node_id = "graphNodeId", graph_id = "graphId", channel_id = "channelID", channel_type = "channelType");
        same!(CuMemcpy2D, "CUDA_MEMCPY2D_v2": width_in_bytes = "WidthInBytes", height = "Height");
        same!(CuMemcpy3D, "CUDA_MEMCPY3D_v2": width_in_bytes = "WidthInBytes", height = "Height", depth = "Depth");
        let types = |it: &str| ["src", "dst"].map(|side| fact(&format!("field {it}.{side}MemoryType"))[0]);
        let flat = offset_of!(CuMemcpy2DSide, memory_type);
        assert_eq!(types("CUDA_MEMCPY2D_v2"), [flat, offset_of!(CuMemcpy2D, dst) + flat]);
        let deep = offset_of!(CuMemcpy3DSide, memory_type);
        assert_eq!(types("CUDA_MEMCPY3D_v2"), [deep, offset_of!(CuMemcpy3D, dst) + deep]);
    }

    #[test]
    fn launch_configuration_is_the_drivers() {
        same!(CuLaunchConfig, "CUlaunchConfig": grid_dim = "gridDimX", block_dim = "blockDimX",
            shared_mem_bytes = "sharedMemBytes", stream = "hStream", attrs = "attrs", num_attrs = "numAttrs");
    }

    #[test]
    fn overhead_is_cuptis() {
        same!(Overhead3, "Overhead": kind = "kind", overhead_kind = "overheadKind", object_kind = "objectKind",
            process_id = "objectId.pt.processId", thread_id = "objectId.pt.threadId", start = "start", end = "end",
            correlation_id = "correlationId", overhead_data = "overheadData");
        let value = |name: &str| fact(&format!("value CUPTI_ACTIVITY_{name}"))[0] as u32;
        assert_eq!(value("KIND_OVERHEAD"), kind::OVERHEAD);
        assert_eq!(value("OVERHEAD_RUNTIME_TRIGGERED_MODULE_LOADING"), overhead::MODULE_LOADING);
        assert_eq!(value("OVERHEAD_LAZY_FUNCTION_LOADING"), overhead::LAZY_FUNCTION_LOADING);
    }

    #[test]
    fn unified_memory_is_cuptis() {
        use crate::unified::counter;
        same!(UnifiedMemoryCounter3, "UnifiedMemory": kind = "kind", counter_kind = "counterKind", value = "value", start = "start",
            end = "end", address = "address", src_id = "srcId", dst_id = "dstId", stream_id = "streamId",
            process_id = "processId", flags = "flags", processors = "processors");
        same!(UnifiedMemoryCounter, "CUpti_ActivityUnifiedMemoryCounterConfig": scope = "scope", kind = "kind",
            device_id = "deviceId", enable = "enable");
        let value = |name: &str| fact(&format!("value CUPTI_ACTIVITY_{name}"))[0] as u32;
        assert_eq!(value("KIND_UNIFIED_MEMORY_COUNTER"), kind::UNIFIED_MEMORY_COUNTER);
        let counters = [
            ("BYTES_TRANSFER_HTOD", counter::HOST_TO_DEVICE),
            ("BYTES_TRANSFER_DTOH", counter::DEVICE_TO_HOST),
            ("CPU_PAGE_FAULT_COUNT", counter::CPU_FAULT),
            ("GPU_PAGE_FAULT", counter::GPU_FAULT),
            ("COUNT", counter::END),
        ];
        for (name, number) in counters {
            assert_eq!(value(&format!("UNIFIED_MEMORY_COUNTER_KIND_{name}")), number, "{name}");
        }
    }

    /// The dump lacks these structures; the offsets come from CUPTI 13.0's header.
    #[test]
    fn other_records_have_the_sizes_of_13_0() {
        let sizes = [1, 2, 3, 4, 5, 10, 38, 49, 51].map(|kind| record_size(kind).unwrap());
        assert_eq!(sizes, [96, 88, 216, 40, 40, 216, 56, 128, 56]);
        assert_eq!(offset_of!(Memcpy6, graph_node_id), 64);
        assert_eq!(offset_of!(Memset4, memory_kind), 50);
        assert_eq!(offset_of!(Memory4, name), 64);
        assert_eq!(offset_of!(Synchronization2, return_value), 48);
        assert_eq!(offset_of!(GraphTrace2, stream_id), 36);
    }
}
