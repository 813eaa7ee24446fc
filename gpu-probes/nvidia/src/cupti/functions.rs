//! CUPTI as the collector uses it: a table of optional functions, looked up by name in the
//! program's libcupti, and the few constants and structures that they need.
//!
//! Numbers are those of CUPTI 11.8 to 13.5. The tests compare them with
//! `layouts/cupti-13.0/layouts.txt`, printed by a program compiled against the real headers.

use std::ffi::{CStr, c_char, c_void};
use xputrace_agent::Context;

/// `CUptiResult`.
pub type CuptiResult = u32;
/// `CUcontext`, `CUstream` and `CUpti_SubscriberHandle` are opaque pointers.
pub type Handle = *mut c_void;
/// A callback: its domain, and its number there.
pub type CallbackId = (u32, u32);
/// `CUpti_CallbackFunc`.
pub type CallbackFunction = unsafe extern "C" fn(*mut c_void, u32, u32, *const CallbackData);
/// `CUpti_BuffersCallbackRequestFunc`.
pub type RequestFunction = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
/// `CUpti_BuffersCallbackCompleteFunc`.
pub type CompleteFunction = unsafe extern "C" fn(Handle, u32, *mut u8, usize, usize);

/// `CUpti_BuffersCallbackRequestFunc_v2`; the last argument is not read.
pub type ScopedRequestFunction = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize, *const c_void);
/// `CUpti_BuffersCallbackCompleteFunc_v2`; the last argument is not read.
pub type ScopedCompleteFunction = unsafe extern "C" fn(*mut u8, usize, usize, *const c_void);

pub const SUCCESS: CuptiResult = 0;
pub const ERROR_NOT_COMPATIBLE: CuptiResult = 14;
pub const ERROR_NOT_INITIALIZED: CuptiResult = 15;
pub const ERROR_HARDWARE_BUSY: CuptiResult = 26;
pub const ERROR_NOT_SUPPORTED: CuptiResult = 27;
pub const ERROR_VIRTUALIZED_DEVICE: CuptiResult = 33;
pub const ERROR_INSUFFICIENT_PRIVILEGES: CuptiResult = 35;
pub const ERROR_MULTIPLE_SUBSCRIBERS: CuptiResult = 39;

/// `CUpti_CallbackDomain`.
pub mod domain {
    pub const DRIVER: u32 = 1;
    pub const RUNTIME: u32 = 2;
    pub const RESOURCE: u32 = 3;
}

/// `CUpti_CallbackIdResource`: a context was created, or is about to be destroyed; CUDA has started; a stream was created; a module was loaded, or is about to be unloaded; a node of a graph was
/// created; a graph was instantiated; a node was copied; a node of an executable graph became what another one is.
pub const RESOURCE_CONTEXT_CREATED: u32 = 1;
pub const RESOURCE_CONTEXT_DESTROYING: u32 = 2;
pub const RESOURCE_STREAM_CREATED: u32 = 3;
pub const RESOURCE_CUDA_STARTED: u32 = 5;
pub const RESOURCE_MODULE_LOADED: u32 = 6;
pub const RESOURCE_MODULE_UNLOADING: u32 = 7;
pub const RESOURCE_NODE_CREATED: u32 = 13;
pub const RESOURCE_EXECUTABLE_CREATED: u32 = 18;
pub const RESOURCE_NODE_CLONED: u32 = 20;
pub const RESOURCE_NODE_UPDATED: u32 = 22;

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`.
pub const STREAM_LEGACY: usize = 1;
pub const STREAM_PER_THREAD: usize = 2;

/// `CUpti_ApiCallbackSite`.
pub const SITE_ENTER: u32 = 0;
pub const SITE_EXIT: u32 = 1;

/// `CUpti_ActivityKind`.
pub const KIND_MEMCPY: u32 = 1;
pub const KIND_MEMSET: u32 = 2;
pub const KIND_KERNEL: u32 = 3;
pub const KIND_CONCURRENT_KERNEL: u32 = 10;
/// `CUPTI_ACTIVITY_KIND_MEMCPY2`: copies between devices.
pub const KIND_MEMCPY_PEER: u32 = 22;
/// What CUPTI takes time for.
pub const KIND_OVERHEAD: u32 = 17;
/// What happens to unified memory.
pub const KIND_UNIFIED_MEMORY: u32 = 25;
/// A graph's launch as a whole, instead of its nodes.
pub const KIND_GRAPH_TRACE: u32 = 51;

/// `CUpti_ActivityAttribute`; both values are one byte.
pub const ATTRIBUTE_ZEROED_BUFFERS: u32 = 5;
pub const ATTRIBUTE_PER_THREAD_BUFFER: u32 = 9;

/// `CUpti_ActivityAttribute` of a subscriber, in place of a function that names none: one byte each.
pub const ATTRIBUTE_ALLOCATION_SOURCE: u32 = 14;
pub const ATTRIBUTE_LATENCY_TIMESTAMPS: u32 = 15;
pub const ATTRIBUTE_ALL_SYNCHRONIZATIONS: u32 = 16;
pub const ATTRIBUTE_EVENT_TIMESTAMPS: u32 = 17;
pub const ATTRIBUTE_LAUNCH_ATTRIBUTES: u32 = 18;
pub const ATTRIBUTE_DEVICE_GRAPHS: u32 = 19;
/// Whether graphs are recorded as a whole, for all subscribers: one byte. Set before anyone enables a kind, for good.
pub const ATTRIBUTE_WHOLE_GRAPHS: u32 = 20;
/// `CUpti_ActivityThreadIdType`, four bytes.
pub const ATTRIBUTE_THREAD_ID_TYPE: u32 = 21;
/// The function that gives the times of a subscriber's records. Set while nobody has enabled a kind.
pub const ATTRIBUTE_TIMESTAMP_CALLBACK: u32 = 22;

/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`.
pub const FLUSH_FORCED: u32 = 1;

/// The first version whose subscribers were seen to share CUPTI exactly. 13.3 and 13.4 were not tried; in 13.2, a preview,
/// one that comes later gets records of launches before it.
pub const SEVERAL_SUBSCRIBERS_SINCE: u32 = 130_500;

/// Versions for which launches were measured to be as fast as before after `cuptiFinalize`, and
/// subscribing again works.
pub const FINALIZE_TESTED: std::ops::RangeInclusive<u32> = 130_000..=130_001;

/// `CUpti_CallbackData`.
#[repr(C)]
#[derive(Debug)]
pub struct CallbackData {
    pub site: u32,
    pub function_name: *const c_char,
    pub function_params: *const c_void,
    /// Points to the call's result; meaningful only at EXIT.
    pub return_value: *const c_void,
    /// Mangled name of the kernel, null for other calls.
    pub symbol_name: *const c_char,
    pub context: Handle,
    pub context_uid: u32,
    pub correlation_data: *mut u64,
    pub correlation_id: u32,
}

/// `CUpti_ResourceData`.
#[repr(C)]
#[derive(Debug)]
pub struct ResourceData {
    pub context: Handle,
    pub handle: Handle,
    /// For nodes a [`GraphData`], for modules a [`ModuleData`].
    pub descriptor: *const c_void,
}

/// `CUpti_ModuleResourceData`.
#[repr(C)]
#[derive(Debug)]
pub struct ModuleData {
    pub id: u32,
    pub cubin_size: usize,
    pub cubin: *const c_char,
}

/// `CUpti_GraphData`.
#[repr(C)]
#[derive(Debug)]
pub struct GraphData {
    pub graph: Handle,
    pub original_graph: Handle,
    pub node: Handle,
    /// Only of a node that was copied; of an update, the node of the executable graph.
    pub original_node: Handle,
    pub node_type: u32,
    pub dependency: Handle,
    pub executable: Handle,
}

/// `CUpti_ActivityUnifiedMemoryCounterConfig`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UnifiedMemoryCounter {
    pub scope: u32,
    /// [`crate::cupti::records::UNIFIED_MEMORY_KINDS`].
    pub kind: u32,
    pub device: u32,
    pub enable: u32,
}

/// `CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_ALL_DEVICES`.
pub const SCOPE_ALL_DEVICES: u32 = 2;

/// `CUpti_SubscriberParams`.
#[repr(C)]
#[derive(Debug)]
pub struct SubscriberParameters {
    pub struct_size: usize,
    /// Of the tool that subscribes, or null.
    pub name: *const c_char,
    /// Where the name of a tool that has subscribed before is written, or null.
    pub earlier_name: *mut c_char,
    pub earlier_name_bytes: usize,
    pub allows_others: u8,
    pub padding: [u8; 7],
}

/// Room for the name of a tool that has subscribed before.
pub const EARLIER_NAME_BYTES: usize = 64;

impl SubscriberParameters {
    /// Those of a subscriber that shares CUPTI with others.
    pub fn sharing(name: *const c_char, earlier_name: &mut [c_char; EARLIER_NAME_BYTES]) -> Self {
        SubscriberParameters {
            struct_size: size_of::<Self>(),
            name,
            earlier_name: earlier_name.as_mut_ptr(),
            earlier_name_bytes: earlier_name.len(),
            allows_others: 1,
            padding: [0; 7],
        }
    }
}

macro_rules! table {
    ($($(#[$doc:meta])* $field:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The functions of a libcupti; a missing one is `None`.
        #[derive(Clone, Copy, Debug, Default)]
        pub struct Cupti {
            $($(#[$doc])* pub $field: Option<unsafe extern "C" fn($($argument),*) -> CuptiResult>,)*
        }

        impl Cupti {
            /// Fills the table; `find` returns null for a missing name.
            ///
            /// # Safety
            /// `find` returns functions of these names with CUPTI's signatures, and they stay
            /// loaded.
            pub unsafe fn from_symbols(mut find: impl FnMut(&CStr) -> *mut c_void) -> Self {
                Cupti {
                    $($field: {
                        let address = find($symbol);
                        // SAFETY: the caller promises a function of this name with CUPTI's signature, which stays
                        // loaded; null becomes `None`.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                Option<unsafe extern "C" fn($($argument),*) -> CuptiResult>,
                            >(address)
                        }
                    },)*
                }
            }
        }
    };
}

table! {
    get_version = c"cuptiGetVersion" (*mut u32);
    get_result_string = c"cuptiGetResultString" (CuptiResult, *mut *const c_char);
    subscribe = c"cuptiSubscribe" (*mut Handle, CallbackFunction, *mut c_void);
    unsubscribe = c"cuptiUnsubscribe" (Handle);
    enable_callback = c"cuptiEnableCallback" (u32, Handle, u32, u32);
    register_callbacks = c"cuptiActivityRegisterCallbacks" (RequestFunction, CompleteFunction);
    enable = c"cuptiActivityEnable" (u32);
    disable = c"cuptiActivityDisable" (u32);
    flush_all = c"cuptiActivityFlushAll" (u32);
    configure_unified_memory = c"cuptiActivityConfigureUnifiedMemoryCounter" (*mut UnifiedMemoryCounter, u32);
    next_record = c"cuptiActivityGetNextRecord" (*mut u8, usize, *mut *mut u8);
    dropped_records = c"cuptiActivityGetNumDroppedRecords" (Handle, u32, *mut usize);
    get_attribute = c"cuptiActivityGetAttribute" (u32, *mut usize, *mut c_void);
    set_attribute = c"cuptiActivitySetAttribute" (u32, *mut usize, *mut c_void);
    get_device_id = c"cuptiGetDeviceId" (Handle, *mut u32);
    get_context_id = c"cuptiGetContextId" (Handle, *mut u32);
    /// The third argument says whether the default stream is per-thread.
    get_stream_id = c"cuptiGetStreamIdEx" (Handle, Handle, u8, *mut u32);
    get_graph_node_id = c"cuptiGetGraphNodeId" (Handle, *mut u64);
    get_graph_exec_id = c"cuptiGetGraphExecId" (Handle, *mut u32);
    enable_latency_timestamps = c"cuptiActivityEnableLatencyTimestamps" (u8);
    finalize = c"cuptiFinalize" ();
    subscribe_v2 = c"cuptiSubscribe_v2" (*mut Handle, CallbackFunction, *mut c_void, *mut SubscriberParameters);
    register_callbacks_v2 = c"cuptiActivityRegisterCallbacks_v2" (Handle, ScopedRequestFunction, ScopedCompleteFunction);
    /// The last argument selects fields; null for whole records.
    enable_v2 = c"cuptiActivityEnable_v2" (Handle, u32, *mut c_void);
    enable_and_dump_v2 = c"cuptiActivityEnableAndDump_v2" (Handle, u32, *mut c_void);
    disable_v2 = c"cuptiActivityDisable_v2" (Handle, u32, *mut c_void);
    next_record_v2 = c"cuptiActivityGetNextRecord_v2" (Handle, *mut u8, usize, *mut *mut u8);
    dropped_records_v2 = c"cuptiActivityGetNumDroppedRecords_v2" (Handle, Handle, u32, *mut usize);
    get_attribute_v2 = c"cuptiActivityGetAttribute_v2" (Handle, u32, *mut usize, *mut c_void);
    set_attribute_v2 = c"cuptiActivitySetAttribute_v2" (Handle, u32, *mut usize, *mut c_void);
    get_timestamp_v2 = c"cuptiGetTimestamp_v2" (Handle, *mut u64);
    push_external_v2 = c"cuptiActivityPushExternalCorrelationId_v2" (Handle, u32, u64);
    pop_external_v2 = c"cuptiActivityPopExternalCorrelationId_v2" (Handle, u32, *mut u64);
    enable_driver_api_v2 = c"cuptiActivityEnableDriverApi_v2" (Handle, u32, u8);
    enable_runtime_api_v2 = c"cuptiActivityEnableRuntimeApi_v2" (Handle, u32, u8);
}

impl Cupti {
    /// Returns `cuptiGetVersion`, 0 if it fails.
    pub fn version(&self) -> u32 {
        let mut version = 0;
        match self.get_version {
            // SAFETY: the pointer is to a live u32.
            Some(get) if unsafe { get(&mut version) } == SUCCESS => version,
            _ => 0,
        }
    }

    /// Whether its subscribers can share it, each with records and buffers of its own.
    pub fn has_several_subscribers(&self) -> bool {
        self.version() >= SEVERAL_SUBSCRIBERS_SINCE
            && self.subscribe_v2.is_some()
            && self.register_callbacks_v2.is_some()
            && self.enable_v2.is_some()
            && self.disable_v2.is_some()
            && self.next_record_v2.is_some()
            && self.dropped_records_v2.is_some()
            && self.get_attribute_v2.is_some()
            && self.set_attribute_v2.is_some()
    }

    /// Returns CUPTI's name of a result, followed by its usual cause and what to do.
    pub fn explain(&self, result: CuptiResult) -> String {
        let mut name = std::ptr::null();
        let named = self
            .get_result_string
            // SAFETY: the pointer is to a live pointer.
            .is_some_and(|get| unsafe { get(result, &mut name) } == SUCCESS && !name.is_null());
        let name = if named {
            // SAFETY: CUPTI answered with a static C string.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            format!("CUPTI result {result}")
        };
        match advice(result) {
            Some(advice) => format!("{name} ({advice})"),
            None => name,
        }
    }
}

fn advice(result: CuptiResult) -> Option<&'static str> {
    Some(match result {
        ERROR_MULTIPLE_SUBSCRIBERS => {
            "another tool in this process uses CUPTI, such as Nsight, torch.profiler or cuda-gdb; run without it"
        }
        ERROR_NOT_INITIALIZED => {
            "this libcupti is newer than the driver; use the libcupti of the driver's CUDA version"
        }
        ERROR_INSUFFICIENT_PRIVILEGES => {
            "the driver only lets administrators profile; run as root or set NVreg_RestrictProfilingToAdminUsers=0"
        }
        ERROR_HARDWARE_BUSY => "another process holds the profiling hardware",
        ERROR_VIRTUALIZED_DEVICE => "the virtual GPU does not allow profiling; enable it in the vGPU's settings",
        _ => return None,
    })
}

/// `CUpti_TimestampCallbackFunc`.
pub(super) type TimestampFunction = unsafe extern "C" fn() -> u64;

/// Returns the context that a call is made in.
#[inline]
pub(super) fn context(data: &CallbackData) -> Option<Context> {
    (!data.context.is_null()).then_some(Context { id: data.context_uid, handle: data.context })
}

/// Returns the call's result; `CUresult` and `cudaError_t` are both 32 bits, 0 is success.
#[inline]
pub(super) fn result(data: &CallbackData) -> i32 {
    if data.return_value.is_null() {
        return 0;
    }
    // SAFETY: at EXIT it points at the result.
    unsafe { data.return_value.cast::<i32>().read_unaligned() }
}
