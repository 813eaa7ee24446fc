//! Compares the numbers in this crate with those printed by a program on a real machine.

use std::collections::HashMap;
use std::mem::offset_of;
use xputrace_agent::Stream;
use xputrace_agent::launch::Records;
use xputrace_nvidia::cupti::calls::{CallRole, IDS, copies, index_of, params};
use xputrace_nvidia::cupti::driver::{attribute, function_attribute};
use xputrace_nvidia::cupti::host_calls::{HOST_IDS, HostCallRole};
use xputrace_nvidia::cupti::records::{
    self, CuptiRecord, RecordExtent, context_switch_offset, memcpy_offset, memcpy_peer_offset, memset_offset, offset,
    overhead_offset, unified_offset,
};
use xputrace_nvidia::cupti::twins::arguments::{self, Arguments};
use xputrace_nvidia::cupti::twins::{self, NodeLayout, TWIN_IDS, offset as place};
use xputrace_nvidia::cupti::{
    self, CallbackData, GraphData, ModuleData, ResourceData, SubscriberParameters, UnifiedMemoryCounter,
};
use xputrace_wire::api::{FunctionId, ParameterKind};
use xputrace_wire::events::host::ContextSwitchKind;
use xputrace_wire::events::{
    self, CopyDirection, ExternalKind, HostEvent, HostEventRecord, MemoryKind, MigrationCause,
};

const LAYOUTS: &str = include_str!("../../layouts/cupti-13.0/layouts.txt");
/// Those of a CUPTI whose subscribers share it.
const SEVERAL_SUBSCRIBERS: &str = include_str!("../../layouts/cupti-13.5/layouts.txt");
/// Raw buffers of activity records, and how the headers' own structures decode them.
const BUFFERS: [(&[u8], &str); 2] = [
    (
        include_bytes!("../../layouts/cupti-13.0/activity-0.bin"),
        include_str!("../../layouts/cupti-13.0/activity-0.txt"),
    ),
    (
        include_bytes!("../../layouts/cupti-13.0/activity-1.bin"),
        include_str!("../../layouts/cupti-13.0/activity-1.txt"),
    ),
];

/// Where kernel records have their fields, in every version.
const KERNEL_FIELDS: [(&str, usize); 16] = [
    ("Kernel.kind", offset::KIND),
    ("Kernel.registersPerThread", offset::REGISTERS),
    ("Kernel.start", offset::START),
    ("Kernel.end", offset::END),
    ("Kernel.deviceId", offset::DEVICE),
    ("Kernel.contextId", offset::CONTEXT),
    ("Kernel.streamId", offset::STREAM),
    ("Kernel.gridX", offset::GRID),
    ("Kernel.blockX", offset::BLOCK),
    ("Kernel.staticSharedMemory", offset::STATIC_SHARED),
    ("Kernel.dynamicSharedMemory", offset::DYNAMIC_SHARED),
    ("Kernel.localMemoryPerThread", offset::LOCAL_MEMORY),
    ("Kernel.correlationId", offset::CORRELATION),
    ("Kernel.name", offset::NAME),
    ("Kernel.graphNodeId", offset::GRAPH_NODE),
    ("Kernel.graphId", offset::GRAPH),
];

/// Parses the `field NAME offset size`, `struct` and `value` lines, by name.
fn facts() -> HashMap<&'static str, usize> {
    facts_of(LAYOUTS)
}

/// Compares our numbers, and those of kernel records, with the headers'.
fn assert_agree(facts: &HashMap<&str, usize>, ours: &[(&str, usize)]) {
    for (name, number) in ours.iter().chain(&KERNEL_FIELDS) {
        assert_eq!(facts.get(name), Some(number), "{name}");
    }
}

fn facts_of(layouts: &'static str) -> HashMap<&'static str, usize> {
    let lines = layouts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    lines
        .filter(|words| ["field", "struct", "value"].contains(&words[0]))
        .map(|words| (words[1], words[2].parse().unwrap()))
        .collect()
}

#[test]
fn subscribers_that_share_cupti_are_those_of_the_headers() {
    let facts = facts_of(SEVERAL_SUBSCRIBERS);
    let ours = [
        ("SubscriberParams", size_of::<SubscriberParameters>()),
        ("SubscriberParams.structSize", offset_of!(SubscriberParameters, struct_size)),
        ("SubscriberParams.subscriberName", offset_of!(SubscriberParameters, name)),
        ("SubscriberParams.oldSubscriberName", offset_of!(SubscriberParameters, earlier_name)),
        ("SubscriberParams.oldSubscriberSize", offset_of!(SubscriberParameters, earlier_name_bytes)),
        ("SubscriberParams.allowMultipleSubscribers", offset_of!(SubscriberParameters, allows_others)),
        ("CUPTI_ERROR_NOT_COMPATIBLE", cupti::ERROR_NOT_COMPATIBLE as usize),
        ("CUPTI_ERROR_NOT_SUPPORTED", cupti::ERROR_NOT_SUPPORTED as usize),
        ("CUpti_SubscriberParams_STRUCT_SIZE", size_of::<SubscriberParameters>()),
        ("CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN", cupti::EARLIER_NAME_BYTES),
        ("CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER", cupti::ATTRIBUTE_ZEROED_BUFFERS as usize),
        ("CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER", cupti::ATTRIBUTE_PER_THREAD_BUFFER as usize),
        ("CUPTI_ACTIVITY_ATTR_ENABLE_ALLOCATION_SOURCE_TRACKING", cupti::ATTRIBUTE_ALLOCATION_SOURCE as usize),
        ("CUPTI_ACTIVITY_ATTR_ENABLE_KERNEL_LATENCY_TIMESTAMPS", cupti::ATTRIBUTE_LATENCY_TIMESTAMPS as usize),
        ("CUPTI_ACTIVITY_ATTR_ENABLE_ALL_SYNC_RECORDS", cupti::ATTRIBUTE_ALL_SYNCHRONIZATIONS as usize),
        ("CUPTI_ACTIVITY_ATTR_ENABLE_CUDA_EVENT_DEVICE_TIMESTAMPS", cupti::ATTRIBUTE_EVENT_TIMESTAMPS as usize),
        ("CUPTI_ACTIVITY_ATTR_ENABLE_KERNEL_LAUNCH_ATTRIBUTES", cupti::ATTRIBUTE_LAUNCH_ATTRIBUTES as usize),
        ("CUPTI_ACTIVITY_ATTR_ENABLE_DEVICE_GRAPH_TRACE", cupti::ATTRIBUTE_DEVICE_GRAPHS as usize),
        ("CUPTI_ACTIVITY_ATTR_ENABLE_MULTI_SUBSCRIBER_GRAPH_TRACE", cupti::ATTRIBUTE_WHOLE_GRAPHS as usize),
        ("CUPTI_ACTIVITY_ATTR_THREAD_ID_TYPE", cupti::ATTRIBUTE_THREAD_ID_TYPE as usize),
        ("CUPTI_ACTIVITY_ATTR_TIMESTAMP_CALLBACK", cupti::ATTRIBUTE_TIMESTAMP_CALLBACK as usize),
        ("ContextSwitch", record_bytes(HostEvent::ContextSwitch)),
        ("ContextSwitch.kind", offset::KIND),
        ("ContextSwitch.contextId", context_switch_offset::CONTEXT),
        ("ContextSwitch.timestamp", context_switch_offset::TIME),
        ("ContextSwitch.operationType", context_switch_offset::OPERATION),
        ("CUPTI_ACTIVITY_KIND_COMPUTE_ENGINE_CTX_SWITCH", records::KIND_CONTEXT_SWITCH as usize),
        ("CUPTI_COMPUTE_ENGINE_CTX_SWITCH_OPERATION_START", ContextSwitchKind::Start as usize),
        ("CUPTI_COMPUTE_ENGINE_CTX_SWITCH_OPERATION_END", ContextSwitchKind::End as usize),
        ("Memset", records::memset_record_bytes(130_500)),
        ("GraphTrace", records::GRAPH_RECORD_BYTES),
    ];
    assert_agree(&facts, &ours);
    assert!(
        facts["Kernel"] <= records::MOST_KERNEL_RECORD_BYTES && facts["Memcpy"] <= records::MOST_MEMCPY_RECORD_BYTES
    );
}

#[test]
fn times_are_where_the_headers_have_them() {
    let kinds = SEVERAL_SUBSCRIBERS.lines().filter_map(|it| it.strip_prefix("times "));
    let mut n = 0;
    for line in kinds {
        let numbers: Vec<usize> = line.split(' ').skip(1).map(|it| it.parse().unwrap()).collect();
        assert_eq!(records::time_offsets(numbers[0] as u32), &numbers[1..], "{line}");
        n += 1;
    }
    let known = (0..64).filter(|it| !records::time_offsets(*it).is_empty()).count();
    assert_eq!(known, n, "every kind that is converted has a line");
}

#[test]
fn offsets_are_those_of_the_headers() {
    let facts = facts();
    let ours = [
        ("CUpti_CallbackData", size_of::<CallbackData>()),
        ("CUpti_CallbackData.callbackSite", offset_of!(CallbackData, site)),
        ("CUpti_CallbackData.functionName", offset_of!(CallbackData, function_name)),
        ("CUpti_CallbackData.functionParams", offset_of!(CallbackData, function_params)),
        ("CUpti_CallbackData.functionReturnValue", offset_of!(CallbackData, return_value)),
        ("CUpti_CallbackData.symbolName", offset_of!(CallbackData, symbol_name)),
        ("CUpti_CallbackData.context", offset_of!(CallbackData, context)),
        ("CUpti_CallbackData.contextUid", offset_of!(CallbackData, context_uid)),
        ("CUpti_CallbackData.correlationId", offset_of!(CallbackData, correlation_id)),
        ("CUpti_ResourceData", size_of::<ResourceData>()),
        ("CUpti_ResourceData.resourceHandle", offset_of!(ResourceData, handle)),
        ("CUpti_ResourceData.resourceDescriptor", offset_of!(ResourceData, descriptor)),
        ("CUpti_GraphData", size_of::<GraphData>()),
        ("CUpti_GraphData.originalGraph", offset_of!(GraphData, original_graph)),
        ("CUpti_GraphData.node", offset_of!(GraphData, node)),
        ("CUpti_GraphData.originalNode", offset_of!(GraphData, original_node)),
        ("CUpti_GraphData.nodeType", offset_of!(GraphData, node_type)),
        ("CUpti_GraphData.dependency", offset_of!(GraphData, dependency)),
        ("CUpti_GraphData.graphExec", offset_of!(GraphData, executable)),
        ("CUPTI_CBID_RESOURCE_STREAM_CREATED", cupti::RESOURCE_STREAM_CREATED as usize),
        ("UnifiedMemory", record_bytes(HostEvent::Migration)),
        ("UnifiedMemory.kind", offset::KIND),
        ("UnifiedMemory.counterKind", unified_offset::COUNTER),
        ("UnifiedMemory.value", unified_offset::VALUE),
        ("UnifiedMemory.start", unified_offset::START),
        ("UnifiedMemory.end", unified_offset::END),
        ("UnifiedMemory.address", unified_offset::ADDRESS),
        ("UnifiedMemory.srcId", unified_offset::SRC),
        ("UnifiedMemory.dstId", unified_offset::DST),
        ("UnifiedMemory.flags", unified_offset::FLAGS),
        ("CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER", cupti::KIND_UNIFIED_MEMORY as usize),
        ("CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_ALL_DEVICES", cupti::SCOPE_ALL_DEVICES as usize),
        ("CUpti_ActivityUnifiedMemoryCounterConfig", size_of::<UnifiedMemoryCounter>()),
        ("CUpti_ActivityUnifiedMemoryCounterConfig.scope", offset_of!(UnifiedMemoryCounter, scope)),
        ("CUpti_ActivityUnifiedMemoryCounterConfig.kind", offset_of!(UnifiedMemoryCounter, kind)),
        ("CUpti_ActivityUnifiedMemoryCounterConfig.deviceId", offset_of!(UnifiedMemoryCounter, device)),
        ("CUpti_ActivityUnifiedMemoryCounterConfig.enable", offset_of!(UnifiedMemoryCounter, enable)),
        ("CUPTI_EXTERNAL_CORRELATION_KIND_UNKNOWN", ExternalKind::Unknown as usize),
        ("CUPTI_EXTERNAL_CORRELATION_KIND_OPENACC", ExternalKind::OpenAcc as usize),
        ("CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0", ExternalKind::Custom0 as usize),
        ("CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1", ExternalKind::Custom1 as usize),
        ("CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2", ExternalKind::Custom2 as usize),
        ("CUPTI_EXTERNAL_CORRELATION_KIND_SIZE", ExternalKind::NAMES.len()),
        ("CUPTI_CBID_RESOURCE_CONTEXT_CREATED", cupti::RESOURCE_CONTEXT_CREATED as usize),
        ("CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING", cupti::RESOURCE_CONTEXT_DESTROYING as usize),
        ("CUPTI_CBID_RESOURCE_MODULE_LOADED", cupti::RESOURCE_MODULE_LOADED as usize),
        ("CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING", cupti::RESOURCE_MODULE_UNLOADING as usize),
        ("CUpti_ModuleResourceData", size_of::<ModuleData>()),
        ("CUpti_ModuleResourceData.moduleId", offset_of!(ModuleData, id)),
        ("CUpti_ModuleResourceData.cubinSize", offset_of!(ModuleData, cubin_size)),
        ("CUpti_ModuleResourceData.pCubin", offset_of!(ModuleData, cubin)),
        ("Overhead", record_bytes(HostEvent::Overhead)),
        ("Overhead.kind", offset::KIND),
        ("Overhead.overheadKind", overhead_offset::OVERHEAD_KIND),
        ("Overhead.objectKind", overhead_offset::OBJECT_KIND),
        ("Overhead.objectId.pt.threadId", overhead_offset::THREAD),
        ("Overhead.start", overhead_offset::START),
        ("Overhead.end", overhead_offset::END),
        ("CUPTI_ACTIVITY_KIND_OVERHEAD", cupti::KIND_OVERHEAD as usize),
        ("CUPTI_ACTIVITY_OBJECT_THREAD", records::OBJECT_THREAD as usize),
        ("CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED", cupti::RESOURCE_NODE_CREATED as usize),
        ("CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED", cupti::RESOURCE_NODE_CLONED as usize),
        ("CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED", cupti::RESOURCE_EXECUTABLE_CREATED as usize),
        ("CUPTI_CBID_RESOURCE_GRAPH_NODE_UPDATED", cupti::RESOURCE_NODE_UPDATED as usize),
        ("CU_STREAM_LEGACY", cupti::STREAM_LEGACY),
        ("CU_STREAM_PER_THREAD", cupti::STREAM_PER_THREAD),
        ("CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT", attribute::MULTIPROCESSORS as usize),
        ("CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR", attribute::THREADS_PER_SM as usize),
        ("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR", attribute::CAPABILITY_MAJOR as usize),
        ("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR", attribute::CAPABILITY_MINOR as usize),
        ("CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR", attribute::SHARED_PER_SM as usize),
        ("CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR", attribute::REGISTERS_PER_SM as usize),
        ("CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR", attribute::BLOCKS_PER_SM as usize),
        ("CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK", attribute::RESERVED_SHARED_PER_BLOCK as usize),
        ("Kernel.queued", offset::QUEUED),
        ("Kernel.submitted", offset::SUBMITTED),
        ("CUPTI_TIMESTAMP_UNKNOWN", 0),
        ("CU_EVENT_RECORD_EXTERNAL", cupti::host_calls::EVENT_RECORD_EXTERNAL as usize),
        ("Memset.kind", offset::KIND),
        ("Memset.value", memset_offset::VALUE),
        ("Memset.bytes", memset_offset::BYTES),
        ("Memset.start", offset::START),
        ("Memset.end", offset::END),
        ("Memset.deviceId", memset_offset::DEVICE),
        ("Memset.contextId", memset_offset::CONTEXT),
        ("Memset.streamId", memset_offset::STREAM),
        ("Memset.correlationId", memset_offset::CORRELATION),
        ("Memset.memoryKind", memset_offset::MEMORY_KIND),
        ("Memset.graphNodeId", memset_offset::GRAPH_NODE),
        ("Memset.graphId", memset_offset::GRAPH),
        ("Memset", records::memset_record_bytes(130_001)),
        ("CUPTI_ACTIVITY_KIND_MEMSET", cupti::KIND_MEMSET as usize),
        ("Memcpy.kind", offset::KIND),
        ("Memcpy.copyKind", memcpy_offset::DIRECTION),
        ("Memcpy.srcKind", memcpy_offset::SRC),
        ("Memcpy.dstKind", memcpy_offset::DST),
        ("Memcpy.flags", memcpy_offset::FLAGS),
        ("Memcpy.bytes", memcpy_offset::BYTES),
        ("Memcpy.start", offset::START),
        ("Memcpy.end", offset::END),
        ("Memcpy.deviceId", memcpy_offset::DEVICE),
        ("Memcpy.contextId", memcpy_offset::CONTEXT),
        ("Memcpy.streamId", memcpy_offset::STREAM),
        ("Memcpy.correlationId", memcpy_offset::CORRELATION),
        ("Memcpy.graphNodeId", memcpy_offset::GRAPH_NODE),
        ("Memcpy.graphId", memcpy_offset::GRAPH),
        ("Memcpy.copyCount", memcpy_offset::COPIES),
        ("MemcpyPtoP.kind", offset::KIND),
        ("MemcpyPtoP.srcKind", memcpy_offset::SRC),
        ("MemcpyPtoP.dstKind", memcpy_offset::DST),
        ("MemcpyPtoP.flags", memcpy_offset::FLAGS),
        ("MemcpyPtoP.bytes", memcpy_offset::BYTES),
        ("MemcpyPtoP.start", offset::START),
        ("MemcpyPtoP.end", offset::END),
        ("MemcpyPtoP.deviceId", memcpy_offset::DEVICE),
        ("MemcpyPtoP.contextId", memcpy_offset::CONTEXT),
        ("MemcpyPtoP.streamId", memcpy_offset::STREAM),
        ("MemcpyPtoP.srcDeviceId", memcpy_peer_offset::SRC_DEVICE),
        ("MemcpyPtoP.dstDeviceId", memcpy_peer_offset::DST_DEVICE),
        ("MemcpyPtoP.correlationId", memcpy_peer_offset::CORRELATION),
        ("MemcpyPtoP.graphNodeId", memcpy_peer_offset::GRAPH_NODE),
        ("MemcpyPtoP.graphId", memcpy_peer_offset::GRAPH),
        ("CUPTI_ACTIVITY_KIND_MEMCPY", cupti::KIND_MEMCPY as usize),
        ("CUPTI_ACTIVITY_KIND_MEMCPY2", cupti::KIND_MEMCPY_PEER as usize),
        ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", cupti::KIND_GRAPH_TRACE as usize),
        ("CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC", records::FLAG_MEMCPY_ASYNC as usize),
        ("CUPTI_ACTIVITY_MEMCPY_KIND_HTOD", CopyDirection::HostToDevice as usize),
        ("CUPTI_ACTIVITY_MEMCPY_KIND_DTOH", CopyDirection::DeviceToHost as usize),
        ("CUPTI_ACTIVITY_MEMCPY_KIND_HTOA", CopyDirection::HostToArray as usize),
        ("CUPTI_ACTIVITY_MEMCPY_KIND_ATOH", CopyDirection::ArrayToHost as usize),
        ("CUPTI_ACTIVITY_MEMCPY_KIND_ATOA", CopyDirection::ArrayToArray as usize),
        ("CUPTI_ACTIVITY_MEMCPY_KIND_ATOD", CopyDirection::ArrayToDevice as usize),
        ("CUPTI_ACTIVITY_MEMCPY_KIND_DTOA", CopyDirection::DeviceToArray as usize),
        ("CUPTI_ACTIVITY_MEMCPY_KIND_DTOD", CopyDirection::DeviceToDevice as usize),
        ("CUPTI_ACTIVITY_MEMCPY_KIND_HTOH", CopyDirection::HostToHost as usize),
        ("CUPTI_ACTIVITY_MEMCPY_KIND_PTOP", CopyDirection::PeerToPeer as usize),
        ("CUDA_MEMCPY2D_v2.srcMemoryType", copies::rows::TYPES[0][0]),
        ("CUDA_MEMCPY2D_v2.dstMemoryType", copies::rows::TYPES[0][1]),
        ("CUDA_MEMCPY2D_v2.WidthInBytes", copies::rows::EXTENTS[0][0]),
        ("CUDA_MEMCPY2D_v2.Height", copies::rows::EXTENTS[0][1]),
        ("CUDA_MEMCPY3D_v2.srcMemoryType", copies::rows::TYPES[1][0]),
        ("CUDA_MEMCPY3D_v2.dstMemoryType", copies::rows::TYPES[1][1]),
        ("CUDA_MEMCPY3D_v2.WidthInBytes", copies::rows::EXTENTS[1][0]),
        ("CUDA_MEMCPY3D_v2.Height", copies::rows::EXTENTS[1][1]),
        ("CUDA_MEMCPY3D_v2.Depth", copies::rows::EXTENTS[1][2]),
        ("CUDA_MEMCPY3D_PEER_v1.srcMemoryType", copies::rows::TYPES[1][0]),
        ("CUDA_MEMCPY3D_PEER_v1.dstMemoryType", copies::rows::TYPES[1][1]),
        ("CUDA_MEMCPY3D_PEER_v1.WidthInBytes", copies::rows::EXTENTS[1][0]),
        ("CUDA_MEMCPY3D_PEER_v1.Height", copies::rows::EXTENTS[1][1]),
        ("CUDA_MEMCPY3D_PEER_v1.Depth", copies::rows::EXTENTS[1][2]),
        ("CU_MEMORYTYPE_HOST", copies::TYPE_HOST as usize),
        ("CU_MEMORYTYPE_UNIFIED", copies::TYPE_UNIFIED as usize),
        ("CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE", MemoryKind::Pageable as usize),
        ("CUPTI_ACTIVITY_MEMORY_KIND_PINNED", MemoryKind::Pinned as usize),
        ("CUPTI_ACTIVITY_MEMORY_KIND_DEVICE", MemoryKind::Device as usize),
        ("CUPTI_ACTIVITY_MEMORY_KIND_ARRAY", MemoryKind::Array as usize),
        ("CUPTI_ACTIVITY_MEMORY_KIND_MANAGED", MemoryKind::Managed as usize),
        ("CUPTI_ACTIVITY_MEMORY_KIND_DEVICE_STATIC", MemoryKind::DeviceStatic as usize),
        ("CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC", MemoryKind::ManagedStatic as usize),
        ("CUPTI_CB_DOMAIN_DRIVER_API", cupti::domain::DRIVER as usize),
        ("CUPTI_CB_DOMAIN_RUNTIME_API", cupti::domain::RUNTIME as usize),
        ("CUPTI_CB_DOMAIN_RESOURCE", cupti::domain::RESOURCE as usize),
        ("CUPTI_API_ENTER", cupti::SITE_ENTER as usize),
        ("CUPTI_API_EXIT", cupti::SITE_EXIT as usize),
        ("CUPTI_ACTIVITY_KIND_KERNEL", cupti::KIND_KERNEL as usize),
        ("CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL", cupti::KIND_CONCURRENT_KERNEL as usize),
        ("CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER", cupti::ATTRIBUTE_ZEROED_BUFFERS as usize),
        ("CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER", cupti::ATTRIBUTE_PER_THREAD_BUFFER as usize),
        ("CUPTI_ACTIVITY_FLAG_FLUSH_FORCED", cupti::FLUSH_FORCED as usize),
        ("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", cupti::ERROR_MULTIPLE_SUBSCRIBERS as usize),
        ("CUPTI_ERROR_NOT_INITIALIZED", cupti::ERROR_NOT_INITIALIZED as usize),
        ("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES", cupti::ERROR_INSUFFICIENT_PRIVILEGES as usize),
        ("CUPTI_ERROR_HARDWARE_BUSY", cupti::ERROR_HARDWARE_BUSY as usize),
    ];
    assert_agree(&facts, &ours);
}

/// Each kind of overhead of the headers has a name, and the names are in the order of the kinds.
#[test]
fn overhead_has_the_kinds_of_the_headers() {
    let facts = facts();
    let names = [
        "DRIVER_COMPILER",
        "CUPTI_BUFFER_FLUSH",
        "CUPTI_INSTRUMENTATION",
        "CUPTI_RESOURCE",
        "RUNTIME_TRIGGERED_MODULE_LOADING",
        "LAZY_FUNCTION_LOADING",
        "COMMAND_BUFFER_FULL",
        "ACTIVITY_BUFFER_REQUEST",
        "UVM_ACTIVITY_INIT",
    ];
    assert_eq!(facts.keys().filter(|it| it.starts_with("CUPTI_ACTIVITY_OVERHEAD_")).count(), names.len());
    for (name, (number, kind)) in names.into_iter().zip(records::OVERHEAD_KINDS) {
        let fact = facts.get(format!("CUPTI_ACTIVITY_OVERHEAD_{name}").as_str());
        assert_eq!(fact, Some(&(number as usize)), "{name}: {kind:?}");
    }
}

/// Each thing that is counted of unified memory, and each reason for it, has a name, by the numbers of the headers.
#[test]
fn unified_memory_has_the_kinds_and_causes_of_the_headers() {
    let facts = facts();
    let check = |prefix: &str, names: &[&str], numbers: Vec<usize>| {
        let of_prefix = facts.keys().filter(|it| it.starts_with(prefix) && !it.ends_with("_COUNTER_KIND_COUNT"));
        assert_eq!((of_prefix.count(), names.len()), (names.len(), numbers.len()), "{prefix}");
        for (name, number) in names.iter().zip(numbers) {
            assert_eq!(facts.get(format!("{prefix}{name}").as_str()), Some(&number), "{prefix}{name}");
        }
    };
    let counters = [
        "BYTES_TRANSFER_HTOD",
        "BYTES_TRANSFER_DTOH",
        "CPU_PAGE_FAULT_COUNT",
        "GPU_PAGE_FAULT",
        "THRASHING",
        "THROTTLING",
        "REMOTE_MAP",
        "BYTES_TRANSFER_DTOD",
    ];
    let numbers = records::UNIFIED_MEMORY_KINDS.map(|it| it as usize).to_vec();
    check("CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_", &counters, numbers);
    let places = |list: &[MigrationCause]| (1..=list.len()).collect();
    let causes = ["USER", "COHERENCE", "PREFETCH", "EVICTION", "ACCESS_COUNTERS"];
    check("CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_", &causes, places(records::MIGRATION_CAUSES));
    let accesses = ["READ", "WRITE", "ATOMIC", "PREFETCH"];
    check("CUPTI_ACTIVITY_UNIFIED_MEMORY_ACCESS_TYPE_", &accesses, places(records::ACCESS_TYPES));
    let maps = ["COHERENCE", "THRASHING", "POLICY", "OUT_OF_MEMORY", "EVICTION"];
    check("CUPTI_ACTIVITY_UNIFIED_MEMORY_REMOTE_MAP_CAUSE_", &maps, places(records::REMOTE_MAP_CAUSES));
    for (list, names) in [
        (records::MIGRATION_CAUSES, &causes[..]),
        (records::ACCESS_TYPES, &accesses[..]),
        (records::REMOTE_MAP_CAUSES, &maps[..]),
    ] {
        let ours: Vec<String> = list.iter().map(|it| MigrationCause::NAMES[*it as usize].to_uppercase()).collect();
        assert_eq!(ours, names);
    }
}

fn record_bytes(event: HostEvent) -> usize {
    records::EVENT_RECORDS.iter().find(|it| it.event == event).expect("CUPTI has records of it").bytes
}

/// Of each thing that is counted, only what CUPTI says that it fills is read.
#[test]
fn a_record_of_unified_memory_is_read_by_its_kind() {
    let read = |counter: u32, flags: u32| {
        let mut record = vec![0_u8; record_bytes(HostEvent::Migration)];
        let mut put = |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
        put(offset::KIND, &cupti::KIND_UNIFIED_MEMORY.to_ne_bytes());
        put(unified_offset::COUNTER, &counter.to_ne_bytes());
        put(unified_offset::VALUE, &4096_u64.to_ne_bytes());
        put(unified_offset::START, &100_u64.to_ne_bytes());
        put(unified_offset::END, &130_u64.to_ne_bytes());
        put(unified_offset::ADDRESS, &0x7000_u64.to_ne_bytes());
        put(unified_offset::SRC, &1_u32.to_ne_bytes());
        put(unified_offset::DST, &2_u32.to_ne_bytes());
        put(unified_offset::FLAGS, &flags.to_ne_bytes());
        // SAFETY: a complete record.
        let read = unsafe { records::read(record.as_ptr(), extent()) };
        let CuptiRecord::Event(HostEventRecord::Migration(it), None) = read else { panic!("{counter}") };
        assert_eq!((it.address, it.start, it.tid), (0x7000, 100, 0));
        let only = |has: u32, it: u32| (has != 0).then_some(it);
        let (src, dst) = (only(it.has_src_device, it.src_device), only(it.has_dst_device, it.dst_device));
        let names = (events::MigrationKind::NAMES[it.kind as usize], MigrationCause::NAMES[it.cause as usize]);
        (names, (it.has_bytes != 0).then_some(it.bytes), it.instruction, it.count, it.end, src, dst)
    };
    assert_eq!(read(1, 3), (("HtoD", "prefetch"), Some(4096), 0, 0, 130, None, Some(2)));
    assert_eq!(read(2, 2), (("DtoH", "coherence"), Some(4096), 0, 0, 130, Some(1), None));
    assert_eq!(read(8, 1), (("DtoD", "user"), Some(4096), 0, 0, 130, Some(1), Some(2)));
    assert_eq!(read(3, 0), (("cpu_fault", ""), None, 4096, 0, 100, None, None));
    assert_eq!(read(4, 2), (("gpu_fault", "write"), None, 0, 4096, 130, Some(1), None));
    assert_eq!(read(5, 1), (("thrashing", ""), Some(4096), 0, 0, 100, None, None));
    assert_eq!(read(6, 0), (("throttling", ""), None, 0, 0, 130, Some(1), None));
    assert_eq!(read(6, 1), (("throttling", ""), None, 0, 0, 130, None, None), "in the CPU");
    assert_eq!(read(7, 4), (("remote_map", "out_of_memory"), Some(4096), 0, 0, 100, None, None));
    assert_eq!(read(77, 1), (("other", ""), None, 0, 0, 130, None, None), "of a later CUPTI");
    assert_eq!(read(1, 99).0, ("HtoD", ""));
}

/// Returns ids by domain and name.
fn ids() -> HashMap<(&'static str, &'static str), u32> {
    let lines = LAYOUTS.lines().filter_map(|it| it.strip_prefix("cbid "));
    lines
        .map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            ((words[0], words[2]), words[1].parse().unwrap())
        })
        .collect()
}

fn domain_name(domain: u32) -> &'static str {
    if domain == cupti::domain::DRIVER { "driver" } else { "runtime" }
}

#[test]
fn callback_ids_have_the_names_of_the_headers() {
    let ids = ids();
    for it in IDS {
        assert_eq!(ids.get(&(domain_name(it.domain), it.name)), Some(&it.id), "{}", it.name);
        let known = index_of(it.domain, it.id).map(|index| IDS[index].name);
        assert_eq!(known, Some(it.name));
    }
    assert_eq!(index_of(cupti::domain::DRIVER, 1), None);
    assert_eq!(index_of(0, 307), None);
    assert_eq!(index_of(7, u32::MAX), None);
}

/// What twins depend on.
#[test]
fn code_launches_and_nodes_have_the_places_of_the_headers() {
    let (ids, facts) = (ids(), facts());
    for it in TWIN_IDS {
        assert_eq!(ids.get(&("driver", it.name)), Some(&it.id), "{}", it.name);
        let function = FunctionId::of_callback(it.domain, it.id).unwrap().function().unwrap();
        let has = |places: &[(usize, &str)]| {
            for (at, name) in places {
                let parameter = function.parameters.iter().find(|it| it.offset == *at);
                assert!(parameter.is_some_and(|it| it.name == *name), "{}: {:?}", it.name, function.parameters);
            }
        };
        let is_library = it.name.starts_with("cuLibrary");
        match it.call {
            twins::TwinCallRole::Load(_) if is_library => has(&[(0, "library"), (8, "code")]),
            twins::TwinCallRole::Load(_) if it.name.ends_with("FatBinary") => has(&[(0, "module"), (8, "fatCubin")]),
            twins::TwinCallRole::Load(_) => has(&[(0, "module"), (8, "image")]),
            twins::TwinCallRole::LoadFile(_) if is_library => has(&[(0, "library"), (8, "fileName")]),
            twins::TwinCallRole::LoadFile(_) => has(&[(0, "module"), (8, "fname")]),
            twins::TwinCallRole::Unload(_) => has(&[(0, if is_library { "library" } else { "hmod" })]),
            twins::TwinCallRole::Launch { .. } | twins::TwinCallRole::Cooperative { .. } => has(&[
                (place::launch::KERNEL, "f"),
                (place::launch::GRID, "gridDimX"),
                (place::launch::BLOCK, "blockDimX"),
                (place::launch::SHARED, "sharedMemBytes"),
                (place::launch::STREAM, "hStream"),
                (place::launch::VALUES, "kernelParams"),
            ]),
            twins::TwinCallRole::LaunchEx { .. } => has(&[
                (place::launch_ex::CONFIG, "config"),
                (place::launch_ex::KERNEL, "f"),
                (place::launch_ex::VALUES, "kernelParams"),
                (place::launch_ex::EXTRA, "extra"),
            ]),
            twins::TwinCallRole::Node { at, changes: false, .. } => has(&[(at, "nodeParams")]),
            twins::TwinCallRole::Node { at, changes: true, .. } => has(&[(at - 8, "hNode"), (at, "nodeParams")]),
            twins::TwinCallRole::NodeAttributes if it.name.ends_with("CopyAttributes") => has(&[(0, "dst")]),
            twins::TwinCallRole::NodeAttributes => has(&[(0, "hNode")]),
            twins::TwinCallRole::GetNode(_) => has(&[(8, "nodeParams")]),
            twins::TwinCallRole::SetFunctionAttribute => has(&[(0, "hfunc"), (8, "attrib"), (12, "value")]),
            twins::TwinCallRole::SetKernelAttribute => has(&[(0, "attrib"), (4, "val"), (8, "kernel"), (16, "dev")]),
            twins::TwinCallRole::DestroyContext => has(&[(0, "ctx")]),
            twins::TwinCallRole::EndPrimary => has(&[(0, "dev")]),
        }
    }
    let any = place::any_node::KERNEL_NODE;
    let ours = [
        ("CUlaunchConfig", place::config::BYTES),
        ("CUlaunchConfig.gridDimX", place::config::GRID),
        ("CUlaunchConfig.blockDimX", place::config::BLOCK),
        ("CUlaunchConfig.sharedMemBytes", place::config::SHARED),
        ("CUlaunchConfig.hStream", place::config::STREAM),
        ("CUlaunchConfig.attrs", place::config::ATTRIBUTES),
        ("CUlaunchConfig.numAttrs", place::config::ATTRIBUTES_LEN),
        ("CUlaunchAttribute", place::attribute::BYTES),
        ("CUlaunchAttribute.id", place::attribute::ID),
        ("CUlaunchAttribute.value", place::attribute::VALUE),
        ("CU_LAUNCH_ATTRIBUTE_COOPERATIVE", 2),
        ("CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION", 4),
        ("CUDA_KERNEL_NODE_PARAMS_v1", NodeLayout::Function.size()),
        ("CUDA_KERNEL_NODE_PARAMS_v1.func", place::node::FUNCTION),
        ("CUDA_KERNEL_NODE_PARAMS_v1.gridDimX", place::node::GRID),
        ("CUDA_KERNEL_NODE_PARAMS_v1.blockDimX", place::node::BLOCK),
        ("CUDA_KERNEL_NODE_PARAMS_v1.sharedMemBytes", place::node::SHARED),
        ("CUDA_KERNEL_NODE_PARAMS_v2", NodeLayout::Kernel.size()),
        ("CUDA_KERNEL_NODE_PARAMS_v2.func", place::node::FUNCTION),
        ("CUDA_KERNEL_NODE_PARAMS_v2.gridDimX", place::node::GRID),
        ("CUDA_KERNEL_NODE_PARAMS_v2.blockDimX", place::node::BLOCK),
        ("CUDA_KERNEL_NODE_PARAMS_v2.sharedMemBytes", place::node::SHARED),
        ("CUDA_KERNEL_NODE_PARAMS_v2.kern", place::node::KERNEL),
        ("CUDA_KERNEL_NODE_PARAMS_v2.ctx", place::node::CONTEXT),
        ("CUgraphNodeParams", NodeLayout::Any.size()),
        ("CUgraphNodeParams.type", place::any_node::TYPE),
        ("CUgraphNodeParams.kernel.func", any + place::node::FUNCTION),
        ("CUgraphNodeParams.kernel.gridDimX", any + place::node::GRID),
        ("CUgraphNodeParams.kernel.blockDimX", any + place::node::BLOCK),
        ("CUgraphNodeParams.kernel.sharedMemBytes", any + place::node::SHARED),
        ("CUgraphNodeParams.kernel.kern", any + place::node::KERNEL),
        ("CUgraphNodeParams.kernel.ctx", any + place::node::CONTEXT),
        ("CU_GRAPH_NODE_TYPE_KERNEL", 0),
        ("CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK", function_attribute::MOST_THREADS as usize),
        ("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", function_attribute::MOST_DYNAMIC_SHARED as usize),
        ("CU_STREAM_CAPTURE_MODE_RELAXED", 2),
        ("CU_STREAM_NON_BLOCKING", cupti::host_calls::STREAM_NON_BLOCKING as usize),
    ];
    assert_agree(&facts, &ours);
    let settable = [
        "PREFERRED_SHARED_MEMORY_CARVEOUT",
        "REQUIRED_CLUSTER_WIDTH",
        "REQUIRED_CLUSTER_HEIGHT",
        "REQUIRED_CLUSTER_DEPTH",
        "NON_PORTABLE_CLUSTER_SIZE_ALLOWED",
        "CLUSTER_SCHEDULING_POLICY_PREFERENCE",
    ];
    let settable = settable.map(|it| facts[format!("CU_FUNC_ATTRIBUTE_{it}").as_str()] as u32);
    assert_eq!(settable, function_attribute::SETTABLE);
    assert_eq!(settable[1..4], function_attribute::CLUSTER);
    let taken = ["SHARED_SIZE_BYTES", "LOCAL_SIZE_BYTES", "NUM_REGS"];
    let taken = taken.map(|it| facts[format!("CU_FUNC_ATTRIBUTE_{it}").as_str()] as u32);
    assert_eq!(taken, function_attribute::TAKEN);
}

/// Host functions are not GPU work; all other launches are watched.
#[test]
fn waits_allocations_and_frees_have_the_names_and_parameters_of_the_headers() {
    let ids = ids();
    for it in HOST_IDS {
        assert_eq!(ids.get(&(domain_name(it.domain), it.name)), Some(&it.id), "{}", it.name);
        let function = FunctionId::of_callback(it.domain, it.id).unwrap().function().unwrap();
        let has = |at: usize, kind: ParameterKind, names: &[&str]| {
            let it = function.parameters.iter().find(|it| it.offset == at);
            let fits = it.is_some_and(|it| it.kind == kind && names.iter().any(|name| it.name.contains(name)));
            assert!(fits, "{} at {at}: {:?}", function.name(), function.parameters);
        };
        let stores = |at: usize| has(at, ParameterKind::Pointer, &["ptr", "Ptr", "pp", "handle", "pHost", "itch"]);
        let size = |at: usize| has(at, ParameterKind::Unsigned(8), &["size", "idth", "eight"]);
        let stream_of = |stream: Option<cupti::host_calls::InStream>| {
            let in_stream = |at: usize| has(at, ParameterKind::Pointer, &["tream"]);
            stream.into_iter().for_each(|it| in_stream(it.at()));
        };
        match it.call {
            HostCallRole::Wait { stream, .. } => stream_of(stream),
            HostCallRole::Alloc { stream, .. } => {
                stores(0);
                size(8);
                stream_of(stream);
            }
            HostCallRole::AllocPitch => _ = (stores(0), stores(8), size(16), size(24)),
            HostCallRole::AllocPitched => {
                stores(0);
                has(8, ParameterKind::Structure, &["extent"]);
            }
            HostCallRole::Claim { .. } => {
                let first = function.parameters[0];
                let is_address = matches!(first.kind, ParameterKind::Pointer | ParameterKind::Unsigned(8));
                assert!(first.offset == 0 && is_address, "{first:?}");
                size(8);
            }
            HostCallRole::CreateStream { flags, priority } => {
                has(0, ParameterKind::Pointer, &["Stream"]);
                flags.into_iter().for_each(|it| has(it, ParameterKind::Unsigned(4), &["flags", "Flags"]));
                priority.into_iter().for_each(|it| has(it, ParameterKind::Signed(4), &["priority"]));
            }
            HostCallRole::DestroyStream => has(0, ParameterKind::Pointer, &["tream"]),
            HostCallRole::Record { event, stream, flags } => {
                has(event, ParameterKind::Pointer, &["event", "Event"]);
                flags.into_iter().for_each(|it| has(it, ParameterKind::Unsigned(4), &["flags"]));
                assert_eq!(flags.is_some(), function.name().contains("WithFlags"), "{}", function.name());
                stream_of(stream);
            }
            HostCallRole::Free { stream, .. } => {
                let first = function.parameters[0];
                let is_address = matches!(first.kind, ParameterKind::Pointer | ParameterKind::Unsigned(8));
                assert!(first.offset == 0 && is_address, "{first:?}");
                stream_of(stream);
            }
        }
    }
}

#[test]
fn every_launch_of_the_headers_is_listened_to() {
    for ((domain, name), id) in ids() {
        let launches = name.contains("Launch") && !name.contains("HostFunc");
        // Excludes calls that prepare or query a launch.
        let about = ["cuLaunchGridAsync"].contains(&name) || !name.contains("Attribute");
        if launches && about && !name.contains("SetupArgument") && !name.contains("Dim") && !name.contains("Size") {
            let domain = if domain == "driver" { cupti::domain::DRIVER } else { cupti::domain::RUNTIME };
            assert!(index_of(domain, id).is_some(), "{name} {id}");
        }
    }
}

/// Adding a memset node to a graph submits nothing; all other memsets are watched.
#[test]
fn every_memset_of_the_headers_is_listened_to() {
    let mut sets = 0;
    for ((domain, name), id) in ids() {
        if name.contains("emset") && !name.contains("Node") {
            let domain = if domain == "driver" { cupti::domain::DRIVER } else { cupti::domain::RUNTIME };
            let call = index_of(domain, id).map(|index| IDS[index].call);
            assert_eq!(call.and_then(CallRole::submits), Some(events::Call::Memset), "{name} {id}");
            sets += 1;
        }
    }
    assert_eq!(sets, 54);
}

/// Adding a copy to a graph submits nothing; all other copies are watched.
#[test]
fn every_copy_of_the_headers_is_listened_to() {
    let mut copies = 0;
    for ((domain, name), id) in ids() {
        if name.contains("emcpy") && !name.contains("Node") {
            let domain = if domain == "driver" { cupti::domain::DRIVER } else { cupti::domain::RUNTIME };
            let call = index_of(domain, id).map(|index| IDS[index].call);
            assert_eq!(call.and_then(CallRole::submits), Some(events::Call::Memcpy), "{name} {id}");
            copies += 1;
        }
    }
    assert_eq!(copies, 142);
}

#[test]
fn every_launch_that_the_real_machine_made_is_listened_to() {
    let (mut launches, mut sets) = (0, 0);
    for line in LAYOUTS.lines().filter_map(|it| it.strip_prefix("call ")) {
        let words: Vec<_> = line.split(' ').collect();
        let domain = if words[0] == "driver" { cupti::domain::DRIVER } else { cupti::domain::RUNTIME };
        let submits = index_of(domain, words[1].parse().unwrap()).and_then(|index| IDS[index].call.submits());
        let expected = match words[2] {
            it if it.contains("GraphLaunch") => Some(events::Call::Graph),
            it if it.contains("Launch") => Some(events::Call::Kernel),
            it if it.contains("emset") => Some(events::Call::Memset),
            _ => None,
        };
        assert_eq!(submits, expected, "{line}");
        launches += usize::from(words[2].contains("Launch"));
        sets += usize::from(words[2].contains("emset"));
    }
    assert_eq!((launches, sets), (30, 22));
}

#[test]
fn parameters_are_read_where_the_headers_have_them() {
    let facts = facts();
    let put = |bytes: &mut Vec<u8>, field: &str, value: &[u8]| {
        let at = facts[field];
        bytes[at..at + value.len()].copy_from_slice(value);
    };
    let mut config = vec![0u8; facts["CUlaunchConfig"]];
    for (call, structure) in [
        (CallRole::DriverLaunch, "cuLaunchKernel_params"),
        (CallRole::DriverLaunchPtsz, "cuLaunchCooperativeKernel_params"),
        (CallRole::DriverLaunchEx, "CUlaunchConfig"),
    ] {
        let mut bytes = vec![0u8; facts[structure]];
        put(&mut bytes, &format!("{structure}.gridDimX"), &[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
        put(&mut bytes, &format!("{structure}.blockDimX"), &[4, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0]);
        put(&mut bytes, &format!("{structure}.sharedMemBytes"), &7u32.to_le_bytes());
        put(&mut bytes, &format!("{structure}.hStream"), &8u64.to_le_bytes());
        let mut outer = vec![0u8; facts["cuLaunchKernelEx_params"]];
        if call == CallRole::DriverLaunchEx {
            config = bytes;
            put(&mut outer, "cuLaunchKernelEx_params.config", &(config.as_ptr() as u64).to_le_bytes());
            bytes = outer;
        }
        // SAFETY: structures laid out as in the headers.
        let read = unsafe { params(call, bytes.as_ptr().cast()) }.unwrap();
        assert_eq!((read.grid, read.block), ([1, 2, 3], [4, 5, 6]), "{structure}");
        let stream = Stream { handle: 8, per_thread: call == CallRole::DriverLaunchPtsz };
        assert_eq!((read.dynamic_shared_bytes, read.stream), (7, stream), "{structure}");
    }
    drop(config);
    let mut graph = vec![0u8; facts["cuGraphLaunch_params"]];
    put(&mut graph, "cuGraphLaunch_params.hStream", &8u64.to_le_bytes());
    // SAFETY: as above.
    assert_eq!(unsafe { params(CallRole::DriverGraph, graph.as_ptr().cast()) }.unwrap().stream.handle, 8);
    // SAFETY: null is allowed.
    assert_eq!(unsafe { params(CallRole::DriverLaunch, std::ptr::null()) }, None);
}

#[test]
fn the_values_of_a_kernels_parameters_are_where_the_headers_have_them() {
    let facts = facts();
    assert_eq!(facts["cuLaunchKernel_params.extra"], place::launch::EXTRA);
    assert!(facts["cuLaunchCooperativeKernel_params"] <= place::launch::EXTRA, "it has none");
    assert_eq!(arguments::launches().collect::<Vec<_>>(), [307, 442, 652, 653, 477, 478]);

    let (first, second) = (0xffff_fff0_1234_5678_u64, 0x55u64);
    let values = [std::ptr::from_ref(&first), std::ptr::from_ref(&second), std::ptr::null()];
    let packed = [first, second];
    let size = 12usize;
    let extra = [1, packed.as_ptr() as usize, 2, std::ptr::from_ref(&size) as usize, 0];
    let of = |id, at: usize, pointer: usize| {
        let mut params = [0usize; 8];
        params[at / 8] = pointer;
        // SAFETY: structures laid out as in the headers, which live as long.
        unsafe { Arguments::of(id, params.as_ptr().cast()) }
    };
    // SAFETY: what the structures above point at is here until the test ends.
    let value = |of: Option<Arguments>, number: usize, bytes| unsafe { of.unwrap().value(number, 8 * number, bytes) };
    for (id, values_at, extra_at) in [(307, 48, Some(56)), (478, 48, None), (653, 16, Some(24))] {
        let separate = of(id, values_at, values.as_ptr() as usize);
        let read = [(0, 8), (0, 4), (1, 1), (1, 3), (2, 4), (0, 9)].map(|(n, bytes)| value(separate, n, bytes));
        assert_eq!(read, [Some(first), Some(0x1234_5678), Some(0x55), Some(0x55), None, None], "{id}");
        assert!(of(id, 0, 1).is_none(), "a kernel without parameters");
        let Some(at) = extra_at else { continue };
        let packed = of(id, at, extra.as_ptr() as usize);
        assert_eq!([(0, 8), (1, 4), (1, 8)].map(|(n, bytes)| value(packed, n, bytes)), [Some(first), Some(0x55), None]);
        assert!(of(id, at, [2usize, 0, 0].as_ptr() as usize).is_none(), "no buffer");
        assert!(of(id, at, [3usize, 0, 0].as_ptr() as usize).is_none(), "a name that there isn't");
    }
    assert!(of(480, 0, 1).is_none(), "launches of several kernels");
    // SAFETY: null is allowed.
    assert!(unsafe { Arguments::of(307, std::ptr::null()) }.is_none());
}

#[test]
fn the_stream_of_a_memset_is_where_the_headers_have_it() {
    let facts = facts();
    for (call, structure) in [
        (CallRole::DriverMemsetAsync, "cuMemsetD8Async_params"),
        (CallRole::DriverMemsetAsyncPtsz, "cuMemsetD16Async_params"),
        (CallRole::DriverMemsetAsync, "cuMemsetD32Async_params"),
        (CallRole::DriverMemset2DAsync, "cuMemsetD2D8Async_params"),
        (CallRole::DriverMemset2DAsyncPtsz, "cuMemsetD2D32Async_params"),
    ] {
        let mut bytes = vec![0u8; facts[structure]];
        let at = facts[&*format!("{structure}.hStream")];
        bytes[at..at + 8].copy_from_slice(&8u64.to_le_bytes());
        // SAFETY: structures laid out as in the headers.
        let read = unsafe { params(call, bytes.as_ptr().cast()) }.unwrap();
        let per_thread = matches!(call, CallRole::DriverMemsetAsyncPtsz | CallRole::DriverMemset2DAsyncPtsz);
        assert_eq!(read.stream, Stream { handle: 8, per_thread }, "{structure}");
    }
}

/// The parameters of one copy call, as bytes laid out like the headers' structures.
struct CopyParams {
    facts: HashMap<&'static str, usize>,
    structure: String,
    params: Vec<u8>,
    /// What `pCopy` points to.
    rows: Vec<u8>,
}

impl CopyParams {
    /// Of a call by its name in the dump; 64 bytes or rows, from a device.
    fn of(name: &str) -> Self {
        let facts = facts();
        let structure = format!("{}_params", name.trim_end_matches("_ptds").trim_end_matches("_ptsz"));
        let params = vec![0; facts[&*structure]];
        let mut it = CopyParams { facts, structure, params, rows: vec![0; 256] };
        it.put("ByteCount", 64);
        it.put("hStream", 0x77);
        for field in ["WidthInBytes", "Height", "Depth", "srcMemoryType", "dstMemoryType"] {
            it.put_rows(field, if field.ends_with("Type") { 2 } else { 64 });
        }
        it
    }

    fn put(&mut self, field: &str, value: u64) {
        if let Some(at) = self.facts.get(&*format!("{}.{field}", self.structure)) {
            self.params[*at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
    }

    fn has(&self, field: &str) -> bool {
        self.facts.contains_key(&*format!("{}.{field}", self.structure))
    }

    fn put_rows(&mut self, field: &str, value: u64) {
        let structure = if self.structure.contains("3D") { "CUDA_MEMCPY3D_v2" } else { "CUDA_MEMCPY2D_v2" };
        if let Some(at) = self.facts.get(&*format!("{structure}.{field}")) {
            let bytes = if field.ends_with("Type") { 4 } else { 8 };
            self.rows[*at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
        }
    }

    fn read(&mut self, call: CallRole) -> (Stream, Records) {
        if self.has("pCopy") {
            self.put("pCopy", self.rows.as_ptr() as u64);
        }
        // SAFETY: structures laid out as in the headers.
        let read = unsafe { params(call, self.params.as_ptr().cast()) }.unwrap();
        (read.stream, read.records)
    }
}

/// Of every copy whose parameters are read: the stream, and whether a record will come.
#[test]
fn the_parameters_of_copies_are_where_the_headers_have_them() {
    let copies = IDS.iter().filter(|it| matches!(it.call, CallRole::DriverCopy(_)));
    let mut n = 0;
    for it in copies {
        let (name, call) = (it.name, it.call);
        let mut params = CopyParams::of(name);
        let handle = if params.has("hStream") { 0x77 } else { 0 };
        let stream = Stream { handle, per_thread: name.ends_with("_ptds") || name.ends_with("_ptsz") };
        let anywhere =
            name.contains("Batch") || ["cuMemcpy", "cuMemcpyAsync"].contains(&name.split("_pt").next().unwrap());
        let whole = if anywhere { Records::Possible } else { Records::Certain };
        assert_eq!(params.read(call), (stream, whole), "{name}");
        params.put("ByteCount", 0);
        for field in ["WidthInBytes", "Height"] {
            params.put_rows(field, 0);
            let empty = if name.contains("Batch") { Records::Possible } else { Records::None };
            assert_eq!(params.read(call), (stream, empty), "{name} without {field}");
            params.put_rows(field, 64);
        }
        n += 1;
    }
    assert_eq!(n, 56);
}

/// Rows from host memory to host memory may have no record.
#[test]
fn rows_within_the_hosts_memory_may_have_no_record() {
    for name in ["cuMemcpy2D_v2", "cuMemcpy3D_v2", "cuMemcpy2DAsync_v2_ptsz"] {
        let call = IDS.iter().find(|it| it.name == name).unwrap().call;
        for (types, expected) in [
            ([copies::TYPE_HOST, 2], Records::Certain),
            ([3, copies::TYPE_UNIFIED], Records::Certain),
            ([copies::TYPE_HOST, copies::TYPE_UNIFIED], Records::Possible),
        ] {
            let mut params = CopyParams::of(name);
            params.put_rows("srcMemoryType", types[0].into());
            params.put_rows("dstMemoryType", types[1].into());
            assert_eq!(params.read(call).1, expected, "{name} {types:?}");
        }
    }
}

/// A record laid out as in the headers, with these values in its fields.
fn bytes_of(structure: &str, fields: &[(&str, u64)]) -> Vec<u8> {
    let mut bytes = vec![0u8; facts()[structure]];
    for (field, value) in fields {
        let line = format!("field {structure}.{field} ");
        let line = LAYOUTS.lines().find(|it| it.starts_with(&line)).unwrap();
        let words: Vec<usize> = line.split(' ').skip(2).map(|it| it.parse().unwrap()).collect();
        bytes[words[0]..words[0] + words[1]].copy_from_slice(&value.to_le_bytes()[..words[1]]);
    }
    bytes
}

#[test]
fn a_record_of_a_graph_is_read_field_by_field() {
    let fields = [
        ("kind", 51),
        ("correlationId", 7),
        ("start", 1 << 60 | 100),
        ("end", 1 << 60 | 200),
        ("deviceId", 4),
        ("graphId", 9),
        ("contextId", 5),
        ("streamId", 6),
        ("endDeviceId", 11),
        ("endContextId", 12),
    ];
    let bytes = bytes_of("GraphTrace", &fields);
    // SAFETY: a complete record.
    let CuptiRecord::Graph(it) = (unsafe { records::read(bytes.as_ptr(), extent()) }) else { panic!("no graph") };
    assert_eq!((it.start.0, it.end.0, it.correlation, it.graph), (1 << 60 | 100, 1 << 60 | 200, 7, 9));
    assert_eq!((it.device, it.context, it.stream, it.graph_node, it.nodes, it.is_derived), (4, 5, 6, 0, 0, 0));
    assert_eq!(bytes.len(), records::GRAPH_RECORD_BYTES);
}

/// Records of copies, laid out as in the headers, field by field.
#[test]
fn records_of_copies_are_read_field_by_field() {
    let facts = facts();
    let common = [
        ("copyKind", 8),
        ("srcKind", 2),
        ("dstKind", 3),
        ("flags", 1),
        ("bytes", 1 << 40),
        ("start", 100),
        ("end", 200),
        ("deviceId", 4),
        ("contextId", 5),
        ("streamId", 6),
        ("correlationId", 7),
        ("graphNodeId", 8),
        ("graphId", 9),
    ];
    let with = |more: &[(&'static str, u64)]| [&common[..], more].concat();
    let read = |bytes: &[u8], extent| match unsafe {
        // SAFETY: a complete record.
        records::read(bytes.as_ptr(), extent)
    } {
        CuptiRecord::Memcpy(it) => it,
        other => panic!("{other:?}"),
    };
    let copy = bytes_of("Memcpy", &with(&[("kind", 1), ("copyCount", 3)]));
    let it = read(&copy, extent());
    assert_eq!((it.direction, it.src, it.dst, it.is_async, it.bytes), (8, 2, 3, 1, 1 << 40));
    assert_eq!((it.start.0, it.end.0, it.device, it.context, it.stream), (100, 200, 4, 5, 6));
    assert_eq!((it.correlation, it.graph_node, it.graph, it.copies, it.is_peer), (7, 8, 9, 3, 0));
    // Before CUDA 12.8 the record ends there.
    assert_eq!(read(&copy[..memcpy_offset::COPIES], RecordExtent::of(24)).copies, 0);
    let peer = bytes_of("MemcpyPtoP", &with(&[("kind", 22), ("srcDeviceId", 11), ("dstDeviceId", 12)]));
    let it = read(&peer, extent());
    assert_eq!((it.direction, it.src, it.dst, it.is_async, it.bytes), (10, 2, 3, 1, 1 << 40));
    assert_eq!((it.start.0, it.end.0, it.device, it.context, it.stream), (100, 200, 4, 5, 6));
    assert_eq!((it.correlation, it.graph_node, it.graph, it.copies), (7, 8, 9, 0));
    assert_eq!((it.is_peer, it.src_device, it.dst_device), (1, 11, 12));
    assert!(facts["Memcpy"].max(facts["MemcpyPtoP"]) <= records::MOST_MEMCPY_RECORD_BYTES);
}

/// What the records of this dump hold.
fn extent() -> RecordExtent {
    let version = LAYOUTS.lines().find_map(|it| it.strip_prefix("cupti ")).unwrap();
    RecordExtent::of(version.parse().unwrap())
}

/// A raw buffer from a real machine decodes to what the headers gave there. (Names are pointers
/// into a process that is gone; all other words must agree.)
#[test]
fn a_real_activity_buffer_is_decoded_as_the_headers_do() {
    for (buffer, expected) in BUFFERS {
        let (mut at, mut text) = (0, String::new());
        while at < buffer.len() {
            let (line, size) = decoded(&buffer[at..]);
            text += &format!("at {at} {line}\n");
            at += size;
        }
        assert_eq!(text, expected.lines().map(as_we_read).collect::<String>());
    }
}

/// Formats a record; returns its size too.
fn decoded(bytes: &[u8]) -> (String, usize) {
    let facts = facts();
    // SAFETY: a complete record.
    let (kind, record) = unsafe { (records::kind(bytes.as_ptr()), records::read(bytes.as_ptr(), extent())) };
    let three = |it: [u32; 3]| format!("{} {} {}", it[0], it[1], it[2]);
    match record {
        CuptiRecord::Kernel(k, name) => {
            assert!(records::is_kernel(kind) && !name.is_null());
            assert!(facts["Kernel"] <= records::MOST_KERNEL_RECORD_BYTES);
            let text = format!(
                "kind {kind} start {} end {} device {} context {} stream {} grid {} block {} registers {} static {} dynamic {} local {} correlation {} graph {} node {}",
                k.start.0,
                k.end.0,
                k.device,
                k.context,
                k.stream,
                three(k.grid),
                three(k.block),
                k.registers,
                k.static_shared,
                k.dynamic_shared,
                k.local_memory,
                k.correlation,
                k.graph,
                k.graph_node,
            );
            (text, facts["Kernel"])
        }
        CuptiRecord::Memset(m) => {
            let text = format!(
                "kind {kind} start {} end {} device {} context {} stream {} bytes {} value {} memory {} correlation {} graph {} node {}",
                m.start.0,
                m.end.0,
                m.device,
                m.context,
                m.stream,
                m.bytes,
                m.value,
                m.memory_kind,
                m.correlation,
                m.graph,
                m.graph_node,
            );
            assert_eq!(m.known, u32::from(m.graph_node == 0));
            (text, facts["Memset"])
        }
        CuptiRecord::Memcpy(_) | CuptiRecord::Graph(_) | CuptiRecord::Event(..) | CuptiRecord::Other(_) => {
            panic!("kind {kind}")
        }
    }
}

/// Removes what we don't read from a line of the dump: names, which are pointers into a process
/// that is gone; flags; in graphs, the values of an earlier memset.
fn as_we_read(line: &str) -> String {
    let words: Vec<&str> = line.split(" name ").next().unwrap().split(' ').collect();
    if words[3] != "2" {
        return words.join(" ") + "\n";
    }
    let in_graph = words[words.len() - 1] != "0";
    let mut out: Vec<&str> = Vec::new();
    for pair in words.chunks(2).filter(|it| it[0] != "flags") {
        let stale = in_graph && ["value", "memory"].contains(&pair[0]);
        out.push(pair[0]);
        out.extend(if stale { &["0"] } else { &pair[1..] });
    }
    out.join(" ") + "\n"
}
