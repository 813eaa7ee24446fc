//! The few CUDA driver functions that are called directly.

use super::Handle;
use std::ffi::{CStr, c_char, c_void};
use xputrace_agent::Stream;
use xputrace_wire::device::ComputeCapabilities;
use xputrace_wire::record::{Gpu, GpuLimits};

/// A query of one handle that returns a number.
pub type AskNumber = unsafe extern "C" fn(Handle, *mut u32) -> u32;
/// A query of one handle that returns another.
pub type AskHandle = unsafe extern "C" fn(Handle, *mut Handle) -> u32;
/// A query of one handle that returns a list: room for handles, or null; and their number.
pub type AskHandles = unsafe extern "C" fn(Handle, *mut Handle, *mut usize) -> u32;

/// Driver functions about captured streams and graphs; a missing function is `None`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Driver {
    /// `cuStreamIsCapturing(stream, &status)`.
    pub is_capturing: Option<AskNumber>,
    /// The variant whose default stream is the thread's own.
    pub is_capturing_ptsz: Option<AskNumber>,
    /// `cuStreamGetPriority(stream, &priority)`.
    pub priority: Option<AskNumber>,
    /// The variant whose default stream is the thread's own.
    pub priority_ptsz: Option<AskNumber>,
    /// `cuGraphGetNodes(graph, nodes, &count)`.
    pub graph_nodes: Option<AskHandles>,
    /// `cuGraphNodeGetType(node, &type)`.
    pub node_type: Option<AskNumber>,
    /// `cuGraphChildGraphNodeGetGraph(node, &graph)`.
    pub child_graph: Option<AskHandle>,
    pub devices: Devices,
    pub code: Code,
    pub handles: Handles,
}

/// Driver functions about the GPUs of a process, which need no context; a missing function is `None`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Devices {
    /// `cuDeviceGetCount(&count)`.
    pub count: Option<unsafe extern "C" fn(*mut i32) -> u32>,
    /// `cuDeviceGet(&device, ordinal)`.
    pub device: Option<unsafe extern "C" fn(*mut i32, i32) -> u32>,
    /// `cuDeviceGetUuid_v2(&uuid, device)`: of a MIG device, that of its instance.
    pub uuid: Option<unsafe extern "C" fn(*mut [u8; 16], i32) -> u32>,
    /// `cuDeviceGetName(name, room, device)`.
    pub name: Option<unsafe extern "C" fn(*mut c_char, i32, i32) -> u32>,
    /// `cuDeviceGetAttribute(&value, attribute, device)`.
    pub attribute: Option<unsafe extern "C" fn(*mut i32, i32, i32) -> u32>,
    /// `cuDeviceTotalMem_v2(&bytes, device)`.
    pub memory: Option<unsafe extern "C" fn(*mut usize, i32) -> u32>,
}

/// Lists driver functions once, with the symbols that have these signatures.
macro_rules! functions {
    ($(#[$of:meta])* struct $Name:ident; $($(#[$doc:meta])* $field:ident = $symbol:literal ($($argument:ty),*);)*) => {
        $(#[$of])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $Name {
            $($(#[$doc])* pub $field: Option<unsafe extern "C" fn($($argument),*) -> u32>,)*
        }

        impl $Name {
            /// Whether there are all of them.
            pub fn is_complete(&self) -> bool {
                $(self.$field.is_some())&&*
            }

            /// # Safety
            /// The library is the driver, and stays open.
            unsafe fn of(library: *mut c_void) -> Self {
                // SAFETY: the caller promises that the library is the driver and stays open; the signatures are the
                // driver's own.
                unsafe { $Name { $($field: find(library, $symbol),)* } }
            }
        }
    };
}

functions! {
    /// Driver functions that say what code a kernel is of; a missing function is `None`.
    struct Handles;

    kernel_library = c"cuKernelGetLibrary" (*mut Handle, Handle);
    kernel_name = c"cuKernelGetName" (*mut *const c_char, Handle);
    /// A parameter's offset and size, by its index.
    kernel_parameter = c"cuKernelGetParamInfo" (Handle, usize, *mut usize, *mut usize);
    function_module = c"cuFuncGetModule" (*mut Handle, Handle);
    function_name = c"cuFuncGetName" (*mut *const c_char, Handle);
    function_parameter = c"cuFuncGetParamInfo" (Handle, usize, *mut usize, *mut usize);
}

functions! {
    /// Driver functions that twins need; a missing function is `None`.
    struct Code;

    /// Of the calling thread.
    set_context = c"cuCtxSetCurrent" (Handle);
    /// Of the current context.
    context_device = c"cuCtxGetDevice" (*mut i32);
    /// In which the stream was created.
    stream_context = c"cuStreamGetCtx" (Handle, *mut Handle);
    exchange_capture_mode = c"cuThreadExchangeStreamCaptureMode" (*mut u32);
    /// The code, then options and their values and number, of the compiler and of the library.
    load_library = c"cuLibraryLoadData"
        (*mut Handle, *const c_void, *const c_void, *const c_void, u32, *const c_void, *const c_void, u32);
    library_kernel = c"cuLibraryGetKernel" (*mut Handle, Handle, *const c_char);
    /// Address and size in the current context.
    library_global = c"cuLibraryGetGlobal" (*mut u64, *mut usize, Handle, *const c_char);
    library_managed = c"cuLibraryGetManaged" (*mut u64, *mut usize, Handle, *const c_char);
    module_function = c"cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    module_global = c"cuModuleGetGlobal_v2" (*mut u64, *mut usize, Handle, *const c_char);
    /// In the current context; loads the kernel there.
    kernel_function = c"cuKernelGetFunction" (*mut Handle, Handle);
    function_attribute = c"cuFuncGetAttribute" (*mut i32, u32, Handle);
    set_function_attribute = c"cuFuncSetAttribute" (Handle, u32, i32);
    kernel_attribute = c"cuKernelGetAttribute" (*mut i32, u32, Handle, i32);
    set_kernel_attribute = c"cuKernelSetAttribute" (u32, i32, Handle, i32);
    /// Blocks of a multiprocessor, for a kernel, threads of a block, and bytes of dynamic shared memory.
    occupancy = c"cuOccupancyMaxActiveBlocksPerMultiprocessor" (*mut i32, Handle, i32, usize);
    /// Clusters of a GPU, for a kernel and a launch of it (`CUlaunchConfig`).
    active_clusters = c"cuOccupancyMaxActiveClusters" (*mut i32, Handle, *const c_void);
    /// A node, which attribute, and where its value goes: as of a launch.
    node_attribute = c"cuGraphKernelNodeGetAttribute" (Handle, u32, *mut c_void);
    /// `CUDA_KERNEL_NODE_PARAMS_v2`.
    node_params = c"cuGraphKernelNodeGetParams_v2" (Handle, *mut c_void);
    set_node_params = c"cuGraphKernelNodeSetParams_v2" (Handle, *const c_void);
    alloc = c"cuMemAlloc_v2" (*mut u64, usize);
    /// Address, size, flags: memory of the process that the GPU may use from then on.
    register_memory = c"cuMemHostRegister_v2" (*mut c_void, usize, u32);
    /// Where the current context has it.
    registered_address = c"cuMemHostGetDevicePointer_v2" (*mut u64, *mut c_void, u32);
    create_stream = c"cuStreamCreate" (*mut Handle, u32);
    /// Flags and priority: the lower the number, the sooner its work begins.
    create_urgent_stream = c"cuStreamCreateWithPriority" (*mut Handle, u32, i32);
    /// Kernel, grid, block, dynamic shared memory, stream, pointers to the parameters, and other options.
    launch_kernel = c"cuLaunchKernel"
        (Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut *mut c_void, *mut *mut c_void);
    copy_to_device = c"cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Handle);
    copy_to_host = c"cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Handle);
    wait_for_stream = c"cuStreamSynchronize" (Handle);
    /// Whether all that was begun in it has ended.
    query_stream = c"cuStreamQuery" (Handle);
}

/// `CUdevice_attribute`.
pub mod attribute {
    pub const MULTIPROCESSORS: i32 = 16;
    pub const THREADS_PER_SM: i32 = 39;
    pub const CAPABILITY_MAJOR: i32 = 75;
    pub const CAPABILITY_MINOR: i32 = 76;
    pub const SHARED_PER_SM: i32 = 81;
    pub const REGISTERS_PER_SM: i32 = 82;
    pub const BLOCKS_PER_SM: i32 = 106;
    pub const RESERVED_SHARED_PER_BLOCK: i32 = 111;
}

/// `CUfunction_attribute`.
pub mod function_attribute {
    pub const MOST_THREADS: u32 = 0;
    pub const MOST_DYNAMIC_SHARED: u32 = 8;
    /// Width, height and depth of the clusters that a kernel requires, in blocks; 0 without.
    pub const CLUSTER: [u32; 3] = [11, 12, 13];
    /// What blocks take of a multiprocessor: static shared memory, local memory and registers.
    pub const TAKEN: [u32; 3] = [1, 3, 4];
    /// Those that a program can set, beside the dynamic shared memory: the carveout, a cluster's size, whether it may be
    /// larger than portable, and how clusters are scheduled.
    pub const SETTABLE: [u32; 6] = [9, 11, 12, 13, 14, 15];
}

/// Room for a GPU's name.
const NAME_BYTES: usize = 256;

impl Devices {
    /// Calls `each` with every GPU that the process can use, what a multiprocessor of it has, and its name.
    /// Returns false, having called nothing, while the driver is not initialized.
    pub(crate) fn each(&self, each: &mut dyn FnMut(&Gpu, &GpuLimits, &[u8])) -> bool {
        let mut count = 0;
        // SAFETY: a live integer.
        if self.count.is_none_or(|ask| unsafe { ask(&mut count) } != 0) {
            return false;
        }
        for ordinal in 0..count {
            if let Some((device, gpu, name)) = self.gpu(ordinal) {
                each(&gpu, &self.limits(device).unwrap_or_default(), until_nul(&name));
            }
        }
        true
    }

    /// Returns what the process's GPUs are; 0 if they are not known.
    pub(crate) fn compute_capabilities(&self) -> ComputeCapabilities {
        let (mut least, mut greatest) = (u32::MAX, 0);
        let is_known = self.each(&mut |_, limits, _| {
            let capability = limits.capability as u32;
            (least, greatest) = (least.min(capability), greatest.max(capability));
        });
        if is_known && greatest != 0 { ComputeCapabilities { least, greatest } } else { ComputeCapabilities::default() }
    }

    /// Returns a GPU, with its handle and name; `None` if the driver does not tell its identity.
    fn gpu(&self, ordinal: i32) -> Option<(i32, Gpu, [u8; NAME_BYTES])> {
        let (mut device, mut uuid, mut name) = (0, [0; 16], [0u8; NAME_BYTES]);
        // SAFETY: a live integer, and 16 bytes.
        if unsafe { (self.device?)(&mut device, ordinal) != 0 || (self.uuid?)(&mut uuid, device) != 0 } {
            return None;
        }
        // SAFETY: room for that many bytes, the last of which stays 0.
        let named = self.name.map(|ask| unsafe { ask(name.as_mut_ptr().cast(), NAME_BYTES as i32 - 1, device) });
        if named != Some(0) {
            name = [0; NAME_BYTES];
        }
        let mut memory = 0;
        // SAFETY: a live integer.
        let has_memory = self.memory.map(|ask| unsafe { ask(&mut memory, device) });
        let name_len = until_nul(&name).len() as u64;
        Some((
            device,
            Gpu {
                device: ordinal as u32,
                sms: self.sms(device),
                memory: if has_memory == Some(0) { memory as u64 } else { 0 },
                uuid,
                name_len,
            },
            name,
        ))
    }

    /// Returns what a multiprocessor has; `None` if the driver does not tell all of it.
    fn limits(&self, device: i32) -> Option<GpuLimits> {
        let ask = |attribute| self.attribute_of(device, attribute);
        Some(GpuLimits {
            capability: ask(attribute::CAPABILITY_MAJOR)? * 10 + ask(attribute::CAPABILITY_MINOR)?,
            threads_per_sm: ask(attribute::THREADS_PER_SM)?,
            blocks_per_sm: ask(attribute::BLOCKS_PER_SM)?,
            registers_per_sm: ask(attribute::REGISTERS_PER_SM)?,
            shared_per_sm: ask(attribute::SHARED_PER_SM)?,
            // Before CUDA 11 there was no such attribute, nor a GPU for which CUDA takes any.
            reserved_shared: ask(attribute::RESERVED_SHARED_PER_BLOCK).unwrap_or(0),
        })
    }

    /// Returns how many multiprocessors a GPU has; 0 if the driver does not tell.
    pub(crate) fn sms(&self, device: i32) -> u32 {
        self.attribute_of(device, attribute::MULTIPROCESSORS).unwrap_or(0) as u32
    }

    fn attribute_of(&self, device: i32, attribute: i32) -> Option<u64> {
        let mut value = 0;
        // SAFETY: a live integer, and a handle from the driver.
        let answer = unsafe { (self.attribute?)(&mut value, attribute, device) };
        u64::try_from(value).ok().filter(|_| answer == 0)
    }
}

fn until_nul(text: &[u8]) -> &[u8] {
    text.split(|it| *it == 0).next().unwrap_or_default()
}

impl Driver {
    /// Whether work in this stream would be captured into a graph.
    pub(crate) fn is_capturing(&self, stream: Stream) -> bool {
        let ask = if stream.per_thread { self.is_capturing_ptsz.or(self.is_capturing) } else { self.is_capturing };
        let mut status = 0;
        // SAFETY: the stream of the launch that is being made, and a live u32.
        ask.is_some_and(|ask| unsafe { ask(stream.handle as Handle, &mut status) == 0 } && status != 0)
    }

    /// Returns a stream's priority, if available. Safe in a callback about a launch in it (seen with 13.0).
    pub(crate) fn priority_of(&self, stream: Stream) -> Option<i32> {
        let ask = if stream.per_thread { self.priority_ptsz.or(self.priority) } else { self.priority };
        let mut priority = 0;
        // SAFETY: the stream of the launch that is being made, and a live integer of 32 bits.
        ask.is_some_and(|ask| unsafe { ask(stream.handle as Handle, &mut priority) == 0 }).then_some(priority as i32)
    }

    /// Returns the nodes of a graph, if available. The graph must not change meanwhile.
    pub(crate) fn nodes_of(&self, graph: Handle) -> Option<Vec<Handle>> {
        let ask = self.graph_nodes?;
        let mut count = 0;
        // SAFETY: a graph of the program; null asks for the number alone.
        if unsafe { ask(graph, std::ptr::null_mut(), &mut count) } != 0 {
            return None;
        }
        let mut nodes = Vec::new();
        nodes.try_reserve_exact(count).ok()?;
        nodes.resize(count, std::ptr::null_mut());
        // SAFETY: room for `count` handles.
        let answer = if count == 0 { 0 } else { unsafe { ask(graph, nodes.as_mut_ptr(), &mut count) } };
        (answer == 0 && count >= nodes.len()).then_some(nodes)
    }

    /// Returns the `CUgraphNodeType` of a node.
    pub(crate) fn type_of_node(&self, node: Handle) -> Option<u32> {
        let mut kind = 0;
        // SAFETY: a node of a graph of the program, and a live u32.
        (unsafe { (self.node_type?)(node, &mut kind) } == 0).then_some(kind)
    }

    /// Returns the graph inside a child graph node.
    pub(crate) fn child_graph(&self, node: Handle) -> Option<Handle> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: a node of a graph of the program, and a live handle.
        (unsafe { (self.child_graph?)(node, &mut graph) } == 0).then_some(graph)
    }
}

/// Finds the functions of the mapped driver; all are missing without one.
pub(crate) fn find_driver() -> Driver {
    // SAFETY: only looks at what is mapped.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return Driver::default();
    }
    // SAFETY: the driver's own functions by their names, with the signatures above.
    unsafe {
        Driver {
            is_capturing: find(library, c"cuStreamIsCapturing"),
            is_capturing_ptsz: find(library, c"cuStreamIsCapturing_ptsz"),
            priority: find(library, c"cuStreamGetPriority"),
            priority_ptsz: find(library, c"cuStreamGetPriority_ptsz"),
            graph_nodes: find(library, c"cuGraphGetNodes"),
            node_type: find(library, c"cuGraphNodeGetType"),
            child_graph: find(library, c"cuGraphChildGraphNodeGetGraph"),
            devices: Devices {
                count: find(library, c"cuDeviceGetCount"),
                device: find(library, c"cuDeviceGet"),
                uuid: find(library, c"cuDeviceGetUuid_v2"),
                name: find(library, c"cuDeviceGetName"),
                attribute: find(library, c"cuDeviceGetAttribute"),
                memory: find(library, c"cuDeviceTotalMem_v2"),
            },
            code: Code::of(library),
            handles: Handles::of(library),
        }
    }
}

/// Returns a function of a library, if it has it.
///
/// # Safety
/// The library is open and stays so; `F` is the type of its function of that name, a function pointer.
unsafe fn find<F: Copy>(library: *mut c_void, name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the caller promises that the library is open and stays so; the name is a C string.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    // SAFETY: not null, so the caller's function pointer.
    (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
}
