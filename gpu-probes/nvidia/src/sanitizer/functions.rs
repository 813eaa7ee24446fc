//! The part of NVIDIA's Sanitizer API that is used: functions, structures and numbers, as the headers of CUDA 13.0 have them
//! (`sanitizer_callbacks.h`, `sanitizer_patching.h`, `sanitizer_memory.h`, `sanitizer_stream.h`).

use crate::cupti::Handle;
use std::ffi::{CStr, c_char, c_void};
use xputrace_wire::device::PatchPoint;

pub(super) const SUCCESS: u32 = 0;

/// A function that is called back: the subscriber's own word, domain, id, and data by these.
pub(super) type Callback = unsafe extern "C" fn(*mut c_void, u32, u32, *const c_void);

/// Lists functions once, with their symbols.
macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The functions of a libsanitizer-public.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Functions {
            $($(#[$doc])* pub(super) $field: unsafe extern "C" fn($($argument),*) -> u32,)*
        }

        impl Functions {
            /// Finds them by their symbols.
            ///
            /// # Errors
            /// The symbol that is missing.
            ///
            /// # Safety
            /// `find` returns null, or a function with the signature of the API's of this name, which stays loaded.
            pub(super) unsafe fn from_symbols(find: impl Fn(&CStr) -> *mut c_void) -> Result<Self, &'static CStr> {
                Ok(Functions {
                    $($field: {
                        let address = find($symbol);
                        if address.is_null() {
                            return Err($symbol);
                        }
                        // SAFETY: the caller promises a function with the signature of the API's of this name; it is
                        // not null here.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> u32>(address) }
                    },)*
                })
            }
        }
    };
}

functions! {
    subscribe = c"sanitizerSubscribe" (*mut Handle, Callback, *mut c_void);
    unsubscribe = c"sanitizerUnsubscribe" (Handle);
    /// On or off, the subscription, domain and id.
    enable_callback = c"sanitizerEnableCallback" (u32, Handle, u32, u32);
    /// Device memory in a context.
    alloc = c"sanitizerAlloc" (Handle, *mut *mut c_void, usize);
    /// Of a context and a stream; null is its default stream.
    stream_handle = c"sanitizerGetStreamHandle" (Handle, Handle, *mut Handle);
    /// Fills device memory with a byte.
    fill = c"sanitizerMemset" (*mut c_void, i32, usize, Handle);
    copy_to_device = c"sanitizerMemcpyHostToDeviceAsync" (*mut c_void, *const c_void, usize, Handle);
    copy_to_host = c"sanitizerMemcpyDeviceToHost" (*mut c_void, *const c_void, usize, Handle);
    wait_for_stream = c"sanitizerStreamSynchronize" (Handle);
    /// Code, and the context that it is for.
    add_patches = c"sanitizerAddPatches" (*const c_void, Handle);
    /// What is patched, the module, and the function that is called there.
    patch_instructions = c"sanitizerPatchInstructions" (u32, Handle, *const c_char);
    patch_module = c"sanitizerPatchModule" (Handle);
    /// Of a function, the address that patches get at its launches.
    set_data = c"sanitizerSetCallbackData" (Handle, *const c_void);
    /// Of one launch: launch, function, stream, and the address.
    set_launch_data = c"sanitizerSetLaunchCallbackData" (Handle, Handle, Handle, *const c_void);
    /// The text of a result.
    result_text = c"sanitizerGetResultString" (u32, *mut *const c_char);
}

impl Functions {
    /// Returns what a result means.
    pub(super) fn explain(&self, result: u32) -> String {
        let mut text = std::ptr::null();
        // SAFETY: a live pointer, which the API sets to a constant C string.
        let answer = unsafe { (self.result_text)(result, &mut text) };
        if answer != SUCCESS || text.is_null() {
            return format!("error {result}");
        }
        // SAFETY: as above.
        format!("{} ({result})", unsafe { CStr::from_ptr(text) }.to_string_lossy())
    }
}

/// `Sanitizer_CallbackDomain`.
pub(super) mod domain {
    pub(in super::super) const DRIVER_API: u32 = 1;
    pub(in super::super) const RESOURCE: u32 = 3;
    pub(in super::super) const LAUNCH: u32 = 5;
    pub(in super::super) const GRAPHS: u32 = 10;
}

pub(super) const CONTEXT_CREATED: u32 = 3;
pub(super) const CONTEXT_DESTROYING: u32 = 4;
pub(super) const STREAM_DESTROYING: u32 = 7;
pub(super) const MODULE_LOADED: u32 = 9;
pub(super) const MODULE_UNLOADING: u32 = 10;
pub(super) const LAUNCH_BEGIN: u32 = 1;
pub(super) const LAUNCH_END: u32 = 3;
pub(super) const NODE_LAUNCH_BEGIN: u32 = 4;
pub(super) const GRAPH_LAUNCH_BEGIN: u32 = 6;
pub(super) const GRAPH_LAUNCH_END: u32 = 7;

/// `cuGraphLaunch` in [`domain::DRIVER_API`], and its variant whose default stream is the thread's own.
pub(super) const LAUNCH_GRAPH: u32 = 514;
pub(super) const LAUNCH_GRAPH_PTSZ: u32 = 515;
/// `Sanitizer_ApiCallbackSite`.
pub(super) const API_ENTER: u32 = 0;
pub(super) const API_EXIT: u32 = 1;

/// `CU_GRAPH_NODE_TYPE_KERNEL`.
pub(super) const NODE_IS_KERNEL: u32 = 0;

/// Returns the `Sanitizer_InstructionId` of a place.
pub(super) fn instruction(point: PatchPoint) -> u32 {
    match point {
        PatchPoint::Entry => 1,
        PatchPoint::Exit => 2,
        PatchPoint::Global => 3,
        PatchPoint::Shared => 4,
        PatchPoint::Local => 5,
        PatchPoint::Barrier => 6,
        PatchPoint::Call => 9,
    }
}

/// `Sanitizer_CallbackData`, as far as it is read.
#[repr(C)]
#[derive(Debug)]
pub(super) struct CallData {
    pub(super) site: u32,
    pub(super) name: *const c_char,
    pub(super) parameters: *const c_void,
    /// At the exit, a `CUresult`.
    pub(super) result: *const u32,
}

/// `Sanitizer_ResourceContextData`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct ContextData {
    pub(super) context: Handle,
    pub(super) device: i32,
}

/// `Sanitizer_ResourceStreamData`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct StreamData {
    pub(super) context: Handle,
    pub(super) stream: Handle,
    /// The API's own handle of it.
    pub(super) stream_handle: Handle,
}

/// `Sanitizer_ResourceModuleData`, as far as it is read.
#[repr(C)]
#[derive(Debug)]
pub(super) struct ModuleData {
    pub(super) context: Handle,
    pub(super) module: Handle,
    pub(super) cubin_size: usize,
    pub(super) cubin: *const u8,
}

/// `Sanitizer_LaunchData`, as far as it is read.
#[repr(C)]
#[derive(Debug)]
pub(super) struct LaunchData {
    pub(super) context: Handle,
    pub(super) stream: Handle,
    /// The API's own handle of it.
    pub(super) stream_handle: Handle,
    pub(super) module: Handle,
    pub(super) function: Handle,
    pub(super) function_name: *const c_char,
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) cluster: [u32; 3],
    pub(super) grid_id: u64,
    pub(super) launch: Handle,
}

/// `Sanitizer_GraphNodeLaunchData`, as far as it is read.
#[repr(C)]
#[derive(Debug)]
pub(super) struct NodeLaunchData {
    pub(super) executable: Handle,
    pub(super) launch_id: u32,
    pub(super) node: Handle,
    pub(super) node_type: u32,
    /// Of a kernel.
    pub(super) launch: LaunchData,
}

/// `Sanitizer_GraphLaunchData`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct GraphLaunchData {
    pub(super) context: Handle,
    pub(super) stream: Handle,
    pub(super) stream_handle: Handle,
    pub(super) executable: Handle,
    /// 1 if the graph is only brought to the GPU.
    pub(super) is_upload: u32,
}

// The headers' structures, as a compiler lays them out.
const _: () = assert!(std::mem::offset_of!(LaunchData, grid_id) == 88);
const _: () = assert!(std::mem::offset_of!(LaunchData, launch) == 96);
const _: () = assert!(std::mem::offset_of!(NodeLaunchData, launch) == 32);
const _: () = assert!(std::mem::offset_of!(GraphLaunchData, is_upload) == 32);
