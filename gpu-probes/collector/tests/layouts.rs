//! Compares the numbers in this crate with those printed by a program on a real machine.

use std::collections::HashMap;
use std::mem::offset_of;
use xputrace_collector::agent::Stream;
use xputrace_collector::cupti::calls::{Call, IDS, index_of, params};
use xputrace_collector::cupti::records::{self, Record, memset_offset, offset};
use xputrace_collector::cupti::{self, CallbackData};
use xputrace_wire::events::{self, MemoryKind};

const LAYOUTS: &str = include_str!("../../layouts/cupti-13.0/layouts.txt");
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

/// Parses the `field NAME offset size`, `struct` and `value` lines, by name.
fn facts() -> HashMap<&'static str, usize> {
    let lines = LAYOUTS.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    lines
        .filter(|words| ["field", "struct", "value"].contains(&words[0]))
        .map(|words| (words[1], words[2].parse().unwrap()))
        .collect()
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
        ("Memset", records::MEMSET_RECORD_BYTES),
        ("CUPTI_ACTIVITY_KIND_MEMSET", cupti::KIND_MEMSET as usize),
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
    for (name, ours) in ours {
        assert_eq!(facts.get(name), Some(&ours), "{name}");
    }
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

/// Host functions are not GPU work; all other launches are watched.
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
            assert_eq!(call.and_then(Call::submits), Some(events::Call::Memset), "{name} {id}");
            sets += 1;
        }
    }
    assert_eq!(sets, 54);
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
        (Call::DriverLaunch, "cuLaunchKernel_params"),
        (Call::DriverLaunchPtsz, "cuLaunchCooperativeKernel_params"),
        (Call::DriverLaunchEx, "CUlaunchConfig"),
    ] {
        let mut bytes = vec![0u8; facts[structure]];
        put(&mut bytes, &format!("{structure}.gridDimX"), &[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
        put(&mut bytes, &format!("{structure}.blockDimX"), &[4, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0]);
        put(&mut bytes, &format!("{structure}.sharedMemBytes"), &7u32.to_le_bytes());
        put(&mut bytes, &format!("{structure}.hStream"), &8u64.to_le_bytes());
        let mut outer = vec![0u8; facts["cuLaunchKernelEx_params"]];
        if call == Call::DriverLaunchEx {
            config = bytes;
            put(&mut outer, "cuLaunchKernelEx_params.config", &(config.as_ptr() as u64).to_le_bytes());
            bytes = outer;
        }
        // SAFETY: structures laid out as in the headers.
        let read = unsafe { params(call, bytes.as_ptr().cast()) }.unwrap();
        assert_eq!((read.grid, read.block), ([1, 2, 3], [4, 5, 6]), "{structure}");
        let stream = Stream { handle: 8, per_thread: call == Call::DriverLaunchPtsz };
        assert_eq!((read.dynamic_shared_bytes, read.stream), (7, stream), "{structure}");
    }
    drop(config);
    let mut graph = vec![0u8; facts["cuGraphLaunch_params"]];
    put(&mut graph, "cuGraphLaunch_params.hStream", &8u64.to_le_bytes());
    // SAFETY: as above.
    assert_eq!(unsafe { params(Call::DriverGraph, graph.as_ptr().cast()) }.unwrap().stream.handle, 8);
    // SAFETY: null is allowed.
    assert_eq!(unsafe { params(Call::DriverLaunch, std::ptr::null()) }, None);
}

#[test]
fn the_stream_of_a_memset_is_where_the_headers_have_it() {
    let facts = facts();
    for (call, structure) in [
        (Call::DriverMemsetAsync, "cuMemsetD8Async_params"),
        (Call::DriverMemsetAsyncPtsz, "cuMemsetD16Async_params"),
        (Call::DriverMemsetAsync, "cuMemsetD32Async_params"),
        (Call::DriverMemset2DAsync, "cuMemsetD2D8Async_params"),
        (Call::DriverMemset2DAsyncPtsz, "cuMemsetD2D32Async_params"),
    ] {
        let mut bytes = vec![0u8; facts[structure]];
        let at = facts[&*format!("{structure}.hStream")];
        bytes[at..at + 8].copy_from_slice(&8u64.to_le_bytes());
        // SAFETY: structures laid out as in the headers.
        let read = unsafe { params(call, bytes.as_ptr().cast()) }.unwrap();
        let per_thread = matches!(call, Call::DriverMemsetAsyncPtsz | Call::DriverMemset2DAsyncPtsz);
        assert_eq!(read.stream, Stream { handle: 8, per_thread }, "{structure}");
    }
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
    let (kind, record) = unsafe { (records::kind(bytes.as_ptr()), records::read(bytes.as_ptr())) };
    let three = |it: [u32; 3]| format!("{} {} {}", it[0], it[1], it[2]);
    match record {
        Record::Kernel(k, name) => {
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
        Record::Memset(m) => {
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
        Record::Other(kind) => panic!("kind {kind}"),
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
