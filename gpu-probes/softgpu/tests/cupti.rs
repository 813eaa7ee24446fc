//! What a tool sees of a program, compared call by call and record by record with a real CUPTI.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use xputrace_softgpu::{
    Extent, Memcpy3DParms, PitchedPtr, SoftLaunch, cupti::*, driver::*, runtime::*, softgpu_register_kernel,
};

const LAYOUTS: &str = include_str!("../../layouts/cupti-13.0/layouts.txt");
const PTX: &CStr = c".version 7.0\n.target sm_52\n.visible .entry add(.param .u64 p, .param .u32 by) { ret; }\n\
    .visible .entry twin(.param .u64 p, .param .u32 by) { ret; }\n.visible .entry wait() { ret; }\n.visible .entry missing() { ret; }\n";
const RUNTIME: u32 = 2;
const DRIVER: u32 = 1;
const KERNELS: u32 = 10;

/// The library's state is per process, so tests take turns.
fn turn() -> MutexGuard<'static, Program> {
    static PROGRAM: Mutex<Option<()>> = Mutex::new(None);
    static STATE: Mutex<Program> = Mutex::new(Program { module: 0 });
    let mut started = PROGRAM.lock().unwrap_or_else(PoisonError::into_inner);
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if started.is_none() {
        *started = Some(());
        state.module = start();
    }
    // SAFETY: no pointers.
    unsafe {
        assert_eq!(cudaSetDevice(0), 0, "every test is a thread of its own");
        cuptiFinalize();
    }
    GATE.store(true, Ordering::SeqCst);
    SEEN.lock().unwrap_or_else(PoisonError::into_inner).clear();
    RECORDS.lock().unwrap_or_else(PoisonError::into_inner).clear();
    state
}

struct Program {
    module: usize,
}

static GATE: AtomicBool = AtomicBool::new(true);
static SEEN: Mutex<Vec<Call>> = Mutex::new(Vec::new());
static RECORDS: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
static TWIN: AtomicU32 = AtomicU32::new(0);

#[derive(Debug, Clone, PartialEq)]
struct Call {
    domain: u32,
    id: u32,
    exit: bool,
    name: String,
    correlation: u32,
    symbol: String,
    /// `gridDimY` of `cuLaunchKernel`.
    grid_y: u32,
    slot: u64,
    result: i32,
}

extern "C" fn add(_: *const SoftLaunch, args: *mut *mut c_void) {
    // SAFETY: called with the arguments that the PTX declares.
    unsafe { *(*(*args).cast::<*mut u32>()) += *(*args.add(1)).cast::<u32>() };
}

extern "C" fn twin(_: *const SoftLaunch, args: *mut *mut c_void) {
    // SAFETY: called with the arguments that the PTX declares.
    unsafe { *(*(*args).cast::<*mut u32>()) += 1000 };
}

extern "C" fn wait(_: *const SoftLaunch, _: *mut *mut c_void) {
    while !GATE.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
}

fn start() -> usize {
    let mut module = 0;
    // SAFETY: the pointers are valid.
    unsafe {
        softgpu_register_kernel(c"add".as_ptr(), add);
        softgpu_register_kernel(c"twin".as_ptr(), twin);
        softgpu_register_kernel(c"wait".as_ptr(), wait);
        let binary = __cudaRegisterFatBinary(PTX.as_ptr().cast_mut().cast());
        for (host, name) in [(1, c"add"), (2, c"wait"), (3, c"missing")] {
            let none = std::ptr::null_mut();
            let name = name.as_ptr().cast_mut();
            __cudaRegisterFunction(binary, host as *const c_char, name, name, -1, none, none, none, none, none.cast());
        }
        assert_eq!(cudaSetDevice(0), 0);
        assert_eq!(cuModuleLoadData(&mut module, PTX.as_ptr().cast()), 0);
    }
    module
}

impl Program {
    fn function(&self, name: &CStr) -> usize {
        let mut function = 0;
        assert_eq!(
            // SAFETY: the pointers are valid.
            unsafe { cuModuleGetFunction(&mut function, self.module, name.as_ptr()) },
            0
        );
        function
    }
}

/// Returns a field's offset from the dump.
fn offset(field: &str) -> usize {
    let line = LAYOUTS.lines().find(|line| line.starts_with(&format!("field {field} "))).unwrap();
    line.split_whitespace().nth(2).unwrap().parse().unwrap()
}

unsafe fn read<T: Copy>(base: *const c_void, field: &str) -> T {
    // SAFETY: the caller's contract.
    unsafe { base.cast::<u8>().add(offset(field)).cast::<T>().read_unaligned() }
}

unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null, and ends with a NUL.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
}

unsafe extern "C" fn seen(user: *mut c_void, domain: u32, id: u32, data: *const c_void) {
    assert_eq!(user as usize, 77);
    // SAFETY: the data is laid out as the dump says.
    unsafe {
        let exit = read::<u32>(data, "CUpti_CallbackData.callbackSite") == 1;
        let params: *mut c_void = read(data, "CUpti_CallbackData.functionParams");
        let slot: *mut u64 = read(data, "CUpti_CallbackData.correlationData");
        let result: *const i32 = read(data, "CUpti_CallbackData.functionReturnValue");
        let correlation = read(data, "CUpti_CallbackData.correlationId");
        if !exit {
            *slot = u64::from(correlation) << 8 | u64::from(domain);
            if (domain, id) == (DRIVER, 307) && TWIN.load(Ordering::SeqCst) != 0 {
                let at = params.cast::<u8>().add(offset("cuLaunchKernel_params.f")).cast::<usize>();
                *at = 0x5000_0000_0000 | TWIN.load(Ordering::SeqCst) as usize;
            }
        }
        let is_launch = (domain, id) == (DRIVER, 307);
        SEEN.lock().unwrap().push(Call {
            domain,
            id,
            exit,
            name: text(read(data, "CUpti_CallbackData.functionName")),
            correlation,
            symbol: text(read(data, "CUpti_CallbackData.symbolName")),
            grid_y: if is_launch { read(params, "cuLaunchKernel_params.gridDimY") } else { 0 },
            slot: *slot,
            result: if exit { *result } else { 0 },
        });
    }
}

fn subscribe(domains: &[u32]) -> usize {
    let mut subscriber = 0;
    // SAFETY: the pointers are valid.
    unsafe {
        assert_eq!(cuptiSubscribe(&mut subscriber, Some(seen), 77 as *mut c_void), 0);
        for &domain in domains {
            assert_eq!(cuptiEnableDomain(1, subscriber, domain), 0);
        }
    }
    subscriber
}

unsafe extern "C" fn request(buffer: *mut *mut u8, size: *mut usize, records: *mut usize) {
    let memory = vec![0u64; 1024].into_boxed_slice();
    // SAFETY: the pointers are valid.
    unsafe {
        *buffer = Box::into_raw(memory).cast();
        *size = 8192;
        *records = 0;
    }
}

unsafe extern "C" fn complete(_: usize, _: u32, buffer: *mut u8, size: usize, valid: usize) {
    assert_eq!(size, 8192);
    let mut record = std::ptr::null_mut();
    // SAFETY: the buffer is one that `request` made.
    unsafe {
        while cuptiActivityGetNextRecord(buffer, valid, &mut record) == 0 {
            let left = valid - (record as usize - buffer as usize);
            let bytes = std::slice::from_raw_parts(record, left.min(216));
            RECORDS.lock().unwrap().push(bytes.to_vec());
        }
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(buffer.cast::<u64>(), 1024)));
    }
}

fn record_kernels() {
    // SAFETY: the functions are CUPTI's.
    unsafe {
        assert_eq!(cuptiActivityRegisterCallbacks(Some(request), Some(complete)), 0);
        assert_eq!(cuptiActivityEnable(KERNELS), 0);
    }
}

fn flush(flags: u32) -> usize {
    // SAFETY: no pointers.
    assert_eq!(unsafe { cuptiActivityFlushAll(flags) }, 0);
    RECORDS.lock().unwrap().len()
}

fn field<T: Copy>(record: &[u8], name: &str) -> T {
    // SAFETY: a whole kernel record.
    unsafe { read(record.as_ptr().cast(), &format!("Kernel.{name}")) }
}

fn launch(function: usize, stream: usize, args: &mut [*mut c_void]) -> i32 {
    // SAFETY: the arguments are the kernel's.
    unsafe { cuLaunchKernel(function, 3, 2, 1, 4, 1, 1, 0, stream, args.as_mut_ptr(), std::ptr::null_mut()) }
}

/// `CU_STREAM_DEFAULT`: ordered with the default stream; the host does not wait for memory calls in
/// it.
const BLOCKING: u32 = 0;
/// `CU_STREAM_NON_BLOCKING`: not ordered with the default stream.
const NON_BLOCKING: u32 = 1;

fn stream(flags: u32) -> usize {
    let mut stream = 0;
    // SAFETY: the pointer is valid.
    assert_eq!(unsafe { cuStreamCreate(&mut stream, flags) }, 0);
    stream
}

fn synchronize() {
    // SAFETY: no arguments.
    assert_eq!(unsafe { cuCtxSynchronize() }, 0);
}

fn memory() -> usize {
    let mut address = 0;
    // SAFETY: the pointer is valid.
    unsafe {
        assert_eq!(cuMemAlloc_v2(&mut address, 4), 0);
        assert_eq!(cuMemsetD32_v2(address, 0, 1), 0);
        // Neither the host nor non-blocking streams wait for a memset.
        assert_eq!(cuCtxSynchronize(), 0);
    }
    address
}

fn value(address: usize) -> u32 {
    let mut value = 0u32;
    assert_eq!(
        // SAFETY: the pointer is valid.
        unsafe { cuMemcpyDtoH_v2(&raw mut value as usize, address, 4) },
        0
    );
    value
}

fn dim(x: u32) -> xputrace_softgpu::Dim3 {
    xputrace_softgpu::Dim3 { x, y: 1, z: 1 }
}

#[test]
fn a_runtime_launch_is_four_callbacks_with_one_id() {
    let _turn = turn();
    let (mut address, mut by) = (memory(), 5u32);
    let mut args = [(&raw mut address).cast(), (&raw mut by).cast()];
    subscribe(&[RUNTIME, DRIVER]);
    // The first launch also loads the module, in separate calls before it.
    for _ in 0..2 {
        SEEN.lock().unwrap().clear();
        assert_eq!(
            // SAFETY: the arguments are the kernel's.
            unsafe { cudaLaunchKernel(1, dim(2), dim(1), args.as_mut_ptr(), 0, 0) },
            0
        );
    }
    let calls = SEEN.lock().unwrap().clone();
    let shape: Vec<_> = calls.iter().map(|c| (c.domain, c.id, c.exit, c.name.as_str(), c.symbol.as_str())).collect();
    assert_eq!(
        shape,
        [
            (RUNTIME, 211, false, "cudaLaunchKernel", "add"),
            (DRIVER, 307, false, "cuLaunchKernel", "add"),
            (DRIVER, 307, true, "cuLaunchKernel", "add"),
            (RUNTIME, 211, true, "cudaLaunchKernel", "add"),
        ]
    );
    assert!(calls.iter().all(|call| call.correlation == calls[0].correlation && call.correlation != 0));
    assert!(calls.iter().all(|call| call.slot == u64::from(call.correlation) << 8 | u64::from(call.domain)));
    assert!(LAYOUTS.contains(
        "call runtime 211 cudaLaunchKernel correlation 3 symbol _Z3nopv\ncall driver 307 cuLaunchKernel correlation 3"
    ));
    assert_eq!(value(address), 20, "two launches of two blocks");
}

#[test]
fn every_call_of_the_dump_has_the_same_name_and_place_here() {
    let _turn = turn();
    subscribe(&[RUNTIME, DRIVER]);
    let (mut made, mut graph, mut exec) = (0, 0, 0);
    // SAFETY: the pointers are valid.
    unsafe {
        cudaStreamCreate(&mut made);
        cudaStreamBeginCapture(made, 0);
        cudaLaunchKernel(2, dim(1), dim(1), std::ptr::null_mut(), 0, made);
        cudaStreamEndCapture(made, &mut graph);
        cudaGraphInstantiate(&mut exec, graph, 0);
        cudaGraphLaunch(exec, made);
        cudaLaunchCooperativeKernel(2, dim(1), dim(1), std::ptr::null_mut(), 0, 0);
        cudaDeviceSynchronize();
    }
    let enters: Vec<String> = SEEN.lock().unwrap().iter().filter(|call| !call.exit).map(line).collect();
    let theirs: Vec<String> = LAYOUTS
        .lines()
        .filter_map(|line| Some(line.strip_prefix("call ")?.split(" correlation").next()?.to_owned()))
        .collect();
    let wanted = [
        "cudaStreamCreate",
        "cudaStreamBeginCapture",
        "cudaGraphInstantiate",
        "cudaGraphLaunch",
        "cudaLaunchCooperativeKernel",
        "cudaDeviceSynchronize",
    ];
    for name in wanted {
        assert_eq!(nest(&enters, name), nest(&theirs, name), "{name}");
    }
}

fn line(call: &Call) -> String {
    format!("{} {} {}", if call.domain == DRIVER { "driver" } else { "runtime" }, call.id, call.name)
}

/// Returns a runtime call and the driver calls after it.
fn nest(lines: &[String], name: &str) -> Vec<String> {
    let start = lines
        .iter()
        .position(|line| line.ends_with(&format!(" {name}")))
        .unwrap_or_else(|| panic!("{name} in {lines:?}"));
    let next =
        lines[start + 1..].iter().position(|line| line.starts_with("runtime")).map_or(lines.len(), |at| start + 1 + at);
    // Lookups of modules and kernels in between are separate calls.
    let lookups = ["cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetName"];
    lines[start..next].iter().filter(|line| !lookups.iter().any(|lookup| line.ends_with(lookup))).cloned().collect()
}

#[test]
fn a_tool_can_swap_the_kernel_of_a_launch() {
    let program = turn();
    let (mut address, mut by) = (memory(), 5u32);
    let mut args = [(&raw mut address).cast(), (&raw mut by).cast()];
    subscribe(&[DRIVER]);
    let add = program.function(c"add");
    TWIN.store((program.function(c"twin") & 0xffff_ffff) as u32, Ordering::SeqCst);
    assert_eq!(launch(add, 0, &mut args), 0);
    TWIN.store(0, Ordering::SeqCst);
    assert_eq!(value(address), 6000, "six blocks of the twin");
    assert_eq!(SEEN.lock().unwrap().iter().find(|call| call.id == 307).unwrap().grid_y, 2);
}

#[test]
fn records_are_a_real_ones_bytes() {
    let program = turn();
    let (mut address, mut by) = (memory(), 5u32);
    let mut args = [(&raw mut address).cast(), (&raw mut by).cast()];
    record_kernels();
    assert_eq!(launch(program.function(c"add"), 0, &mut args), 0);
    synchronize();
    assert_eq!(flush(0), 1);
    let ours = RECORDS.lock().unwrap()[0].clone();
    let theirs = &include_bytes!("../../layouts/cupti-13.0/activity-0.bin")[..216];
    let own = ["start", "end", "completed", "contextId", "gridX", "gridY", "blockX", "correlationId", "gridId", "name"];
    let mask = |record: &[u8]| {
        let mut masked = record.to_vec();
        for name in own {
            let size: usize = LAYOUTS
                .lines()
                .find(|l| l.starts_with(&format!("field Kernel.{name} ")))
                .unwrap()
                .rsplit(' ')
                .next()
                .unwrap()
                .parse()
                .unwrap();
            masked[offset(&format!("Kernel.{name}"))..][..size].fill(0);
        }
        masked
    };
    assert_eq!(mask(&ours), mask(theirs));
    assert_eq!(field::<[i32; 6]>(&ours, "gridX"), [3, 2, 1, 4, 1, 1]);
    assert!(field::<u64>(&ours, "start") > 0 && field::<u64>(&ours, "end") > field::<u64>(&ours, "start"));
    // SAFETY: records keep their names.
    assert_eq!(unsafe { text(field(&ours, "name")) }, "add");
}

#[test]
fn a_flush_withholds_all_while_an_older_kernel_runs() {
    let program = turn();
    let (slow, quick) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
    let (mut address, mut by) = (memory(), 1u32);
    let mut args = [(&raw mut address).cast(), (&raw mut by).cast()];
    record_kernels();
    GATE.store(false, Ordering::SeqCst);
    assert_eq!(launch(program.function(c"add"), quick, &mut args), 0);
    assert_eq!(launch(program.function(c"wait"), slow, &mut []), 0);
    // Finish more than one buffer of records behind it.
    for _ in 0..50 {
        assert_eq!(launch(program.function(c"add"), quick, &mut args), 0);
    }
    // SAFETY: a valid stream.
    assert_eq!(unsafe { cuStreamSynchronize(quick) }, 0);
    assert_eq!(flush(0), 0);
    GATE.store(true, Ordering::SeqCst);
    synchronize();
    assert_eq!(flush(0), 52);
    assert_eq!(flush(0), 52);
}

#[test]
fn a_forced_flush_gives_unfinished_kernels_without_an_end() {
    let program = turn();
    let slow = stream(NON_BLOCKING);
    record_kernels();
    GATE.store(false, Ordering::SeqCst);
    assert_eq!(launch(program.function(c"wait"), slow, &mut []), 0);
    assert_eq!(flush(1), 1);
    assert_eq!(field::<u64>(&RECORDS.lock().unwrap()[0], "end"), 0);
    GATE.store(true, Ordering::SeqCst);
    synchronize();
    assert_eq!(flush(0), 1, "its record never comes again");
}

#[test]
fn a_graph_launch_is_one_call_and_many_kernels() {
    let program = turn();
    let (mut address, mut by) = (memory(), 1u32);
    let mut args = [(&raw mut address).cast(), (&raw mut by).cast()];
    let stream = stream(NON_BLOCKING);
    subscribe(&[DRIVER]);
    record_kernels();
    let (mut graph, mut exec) = (0, 0);
    // SAFETY: the pointers are valid.
    unsafe {
        assert_eq!(cuStreamBeginCapture_v2(stream, 0), 0);
        assert_eq!(cuStreamSynchronize(stream), 900, "a capturing stream cannot be waited for");
        for _ in 0..3 {
            assert_eq!(launch(program.function(c"add"), stream, &mut args), 0);
        }
        assert_eq!(cuStreamEndCapture(stream, &mut graph), 0);
        assert_eq!(cuGraphInstantiateWithFlags(&mut exec, graph, 0), 0);
    }
    assert_eq!(SEEN.lock().unwrap().iter().filter(|call| call.id == 307 && !call.exit).count(), 3);
    synchronize();
    assert_eq!(flush(0), 0, "captured launches run nothing");
    // SAFETY: valid handles.
    unsafe {
        assert_eq!(cuGraphLaunch(exec, stream), 0);
        assert_eq!(cuGraphLaunch(exec, stream), 0);
    }
    synchronize();
    assert_eq!(flush(0), 6);
    let mut by_call: HashMap<u32, Vec<u64>> = HashMap::new();
    for record in RECORDS.lock().unwrap().iter() {
        let node: u64 = field(record, "graphNodeId");
        assert_eq!(node >> 32, u64::from(field::<u32>(record, "graphId")));
        by_call.entry(field(record, "correlationId")).or_default().push(node & 0xffff_ffff);
    }
    assert!(by_call.len() == 2 && by_call.values().all(|nodes| nodes == &[0, 1, 2]), "{by_call:?}");
    assert_eq!(value(address), 36, "two launches, three kernels, six blocks");
}

#[test]
fn failures_are_answered() {
    let program = turn();
    subscribe(&[DRIVER]);
    let mut second = 0;
    // SAFETY: the pointers are valid.
    unsafe {
        assert_eq!(cuptiSubscribe(&mut second, Some(seen), std::ptr::null_mut()), 39);
        assert_eq!(cudaLaunchKernel(99, dim(1), dim(1), std::ptr::null_mut(), 0, 0), 98);
        assert_eq!((cudaGetLastError(), cudaGetLastError()), (98, 0));
        assert_eq!(cuMemcpyDtoH_v2(&raw mut second as usize, 16, 4), 1);
        assert_eq!(cuStreamSynchronize(4242), 400);
        assert_eq!(cuModuleGetFunction(&mut second, program.module, c"nowhere".as_ptr()), 500);
    }
    assert_eq!(launch(program.function(c"missing"), 0, &mut []), 500, "no host function of that name");
    let exit = SEEN.lock().unwrap().iter().rfind(|call| call.id == 307 && call.exit).cloned().unwrap();
    assert_eq!((exit.symbol.as_str(), exit.result), ("missing", 500));
}

#[test]
fn names_are_cuptis() {
    let name = |domain, id| {
        let mut name = std::ptr::null();
        // SAFETY: the pointer is valid.
        unsafe { if cuptiGetCallbackName(domain, id, &mut name) == 0 { text(name) } else { "none".into() } }
    };
    assert_eq!(name(RUNTIME, 211), "cudaLaunchKernel_v7000");
    assert_eq!(name(DRIVER, 652), "cuLaunchKernelEx");
    assert_eq!(name(DRIVER, 5000), "none");
}

/// The offsets come from CUPTI 13.0's header; the dump has none of these.
#[test]
fn copies_sets_waits_and_calls_are_recorded() {
    let _turn = turn();
    let own = stream(NON_BLOCKING);
    record_kernels();
    // SAFETY: the functions are CUDA's and CUPTI's, the pointers are valid.
    unsafe {
        for kind in [1, 2, 5, 38, 49] {
            assert_eq!(cuptiActivityEnable(kind), 0);
        }
        let (mut address, bytes) = (0, [9u8; 12]);
        assert_eq!(cudaMalloc(&mut address, 64), 0);
        assert_eq!(cudaMemsetAsync(address, 3, 64, own), 0);
        assert_eq!(cudaMemcpyAsync(address, bytes.as_ptr() as usize, 12, 1, own), 0);
        assert_eq!(cudaStreamSynchronize(own), 0);
    }
    flush(0);
    let records = RECORDS.lock().unwrap();
    let of = |kind: u32| -> Vec<&Vec<u8>> { records.iter().filter(|r| word(r, 0) == kind).collect() };
    let calls: Vec<u32> = of(5).iter().map(|record| word(record, 4)).collect();
    assert_eq!(calls, [20, 51, 41, 131], "runtime calls by id");
    let id_of = |call: usize| word(of(5)[call], 32);
    let (alloc, set, copy, wait) = (of(49)[0], of(2)[0], of(1)[0], of(38)[0]);
    assert_eq!((word(alloc, 4), word(alloc, 24), word(alloc, 12)), (1, 64, id_of(0)));
    assert_eq!((word(set, 8), word(set, 44)), (64, id_of(1)));
    assert_eq!((copy[4], copy[5], copy[6], word(copy, 8), word(copy, 44)), (1, 1, 3, 12, id_of(2)));
    assert_eq!((word(wait, 4), word(wait, 24)), (3, id_of(3)), "a stream was waited for");
    assert_eq!((word(set, 40), word(copy, 40)), (word(wait, 32), word(wait, 32)), "one stream");
}

/// Makes the calls of the dump program's `sets`, in order; the records must match a real GPU's.
#[test]
fn every_memset_is_recorded_as_a_real_gpu_does() {
    let program = turn();
    let own = stream(BLOCKING);
    record_kernels();
    let nop = || assert_eq!(launch(program.function(c"wait"), own, &mut []), 0);
    // SAFETY: the functions are CUDA's and CUPTI's, the pointers are valid.
    unsafe {
        assert_eq!(cuptiActivityEnable(2), 0);
        let (mut p, mut managed, mut pinned) = (0, 0, 0);
        assert_eq!(cudaMalloc(&mut p, 1 << 20), 0);
        assert_eq!(cudaMemset(p, 7, 4096), 0);
        assert_eq!(cudaMemsetAsync(p, 1, 8192, own), 0);
        assert_eq!(cudaMemset2D(p, 512, 3, 128, 4), 0);
        assert_eq!(cudaMemset2DAsync(p, 512, 3, 128, 4, own), 0);
        let pitched = PitchedPtr { ptr: p, pitch: 256, xsize: 256, ysize: 4 };
        assert_eq!(cudaMemset3D(pitched, 5, Extent { width: 64, height: 4, depth: 2 }), 0);
        assert_eq!(cuMemsetD8_v2(p, 9, 1000), 0);
        assert_eq!(cuMemsetD16Async(p, 0x1234, 500, own), 0);
        assert_eq!(cuMemsetD32Async(p, 0x1234_5678, 250, own), 0);
        assert_eq!(cuMemsetD2D32_v2(p, 1024, 0xabcd_ef01, 16, 4), 0);
        assert_eq!(cuMemAllocManaged(&mut managed, 4096, 1), 0);
        assert_eq!(cudaMemset(managed, 0, 4096), 0);
        assert_eq!(cudaMallocHost(&mut pinned, 4096), 0);
        assert_eq!(cudaMemset(pinned, 2, 4096), 0);
        assert_eq!(cuStreamBeginCapture_v2(own, 0), 0);
        assert_eq!(cudaMemsetAsync(p, 4, 2048, own), 0);
        nop();
        assert_eq!(cudaMemsetAsync(p, 6, 1024, own), 0);
        let (mut graph, mut exec) = (0, 0);
        assert_eq!(cuStreamEndCapture(own, &mut graph), 0);
        assert_eq!(cuGraphInstantiateWithFlags(&mut exec, graph, 0), 0);
        assert_eq!((cuGraphLaunch(exec, own), cuGraphLaunch(exec, own)), (0, 0));
        assert_eq!(cudaStreamSynchronize(own), 0);
        assert_eq!(cuCtxSynchronize(), 0);
        // All rows were set, and nothing between them.
        let memory = std::slice::from_raw_parts(p as *const u8, 8192);
        assert_eq!((memory[1023], memory[1024], memory[2047], memory[2048]), (6, 4, 4, 1));
    }
    flush(0);
    let records = RECORDS.lock().unwrap();
    let sets = records.iter().filter(|it| word(it, 0) == 2);
    let half = |record: &[u8], at: usize| word(record, at) & 0xffff;
    let ours: Vec<_> = sets
        .map(|it| [word(it, 8), word(it, 4), half(it, 50), half(it, 48), u32::from(word(it, 72) != 0), word(it, 64)])
        .collect();
    let real: Vec<_> = include_str!("../../layouts/cupti-13.0/activity-1.txt")
        .lines()
        .filter(|it| it.contains(" kind 2 "))
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let of = |name: &str| words[words.iter().position(|it| *it == name).unwrap() + 1].parse::<u64>().unwrap();
            let in_graph = u64::from(of("graph") != 0);
            [of("bytes"), of("value"), of("memory"), of("flags"), in_graph, of("node") & 0xffff_ffff]
                .map(|it| it as u32)
        })
        .collect();
    assert_eq!(ours, real);
}

const HOST_TO_DEVICE: i32 = 1;
const DEVICE_TO_HOST: i32 = 2;
const DEFAULT: i32 = 4;

/// Slices and rows arrive where they belong, and nothing around them changes.
#[test]
fn rows_and_slices_are_copied_between_pitches() {
    let _turn = turn();
    let from: Vec<u8> = (0..4096).map(|it| (it % 251) as u8).collect();
    let mut back = vec![0u8; 4096];
    // SAFETY: the functions are CUDA's, the pointers are valid.
    unsafe {
        let mut p = 0;
        assert_eq!(cudaMalloc(&mut p, 4096), 0);
        assert_eq!(cudaMemset(p, 0xee, 4096), 0);
        let at = |ptr, pitch, ysize| PitchedPtr { ptr, pitch, xsize: pitch, ysize };
        let copy = Memcpy3DParms {
            src_array: 0,
            src_pos: [3, 1, 0],
            src_ptr: at(from.as_ptr() as usize, 32, 8),
            dst_array: 0,
            dst_pos: [0, 0, 1],
            dst_ptr: at(p, 64, 4),
            extent: Extent { width: 10, height: 4, depth: 3 },
            kind: HOST_TO_DEVICE,
        };
        assert_eq!(cudaMemcpy3D(&copy), 0);
        assert_eq!(cudaMemcpy2D(back.as_mut_ptr() as usize, 100, p + 256, 64, 64, 12, DEVICE_TO_HOST), 0);
        // Rows that overlap, an array, and rows beyond the memory's end.
        assert_eq!(cudaMemcpy2D(p, 8, p + 64, 64, 10, 2, DEFAULT), 1);
        assert_eq!(cudaMemcpy3D(&Memcpy3DParms { dst_pos: [0, 0, 100], ..copy }), 1);
    }
    for (row, bytes) in back.chunks(100).take(12).enumerate() {
        let (slice, y) = (row / 4, row % 4);
        let start = slice * 32 * 8 + (y + 1) * 32 + 3;
        assert_eq!(bytes[..10], from[start..start + 10], "{row}");
        assert!(bytes[10..64].iter().all(|it| *it == 0xee) && bytes[64..].iter().all(|it| *it == 0), "{row}");
    }
}

/// What the records of copies tell: none without bytes, one of those in a batch that are alike, another kind between
/// devices, and the graph of a node.
#[test]
fn copies_are_recorded_by_what_they_copy() {
    let _turn = turn();
    let own = stream(NON_BLOCKING);
    record_kernels();
    // SAFETY: the functions are CUDA's and CUPTI's, the pointers are valid.
    unsafe {
        for kind in [1, 22] {
            assert_eq!(cuptiActivityEnable(kind), 0);
        }
        let (mut p, mut pinned, pageable) = (0, 0, [1u8; 64]);
        assert_eq!((cudaMalloc(&mut p, 4096), cudaMallocHost(&mut pinned, 4096)), (0, 0));
        let pageable = pageable.as_ptr() as usize;
        assert_eq!(cudaMemcpy(p, pageable, 0, HOST_TO_DEVICE), 0);
        assert_eq!(cudaMemcpy(pinned, pageable, 64, 0), 0);
        assert_eq!(cudaMemcpyAsync(pinned, pageable, 64, 0, own), 0);
        assert_eq!(cudaMemcpyPeerAsync(p, 0, p + 512, 0, 100, own), 0);
        let (to, from, sizes) = ([p, p + 64, pinned], [pinned, pinned + 64, p], [10, 20, 30]);
        let none = std::ptr::null_mut();
        let batch = cudaMemcpyBatchAsync(to.as_ptr(), from.as_ptr(), sizes.as_ptr(), 3, none, none.cast(), 0, own);
        assert_eq!(batch, 0);
        let (mut graph, mut node, mut exec) = (0, 0, 0);
        assert_eq!(cudaGraphCreate(&mut graph, 0), 0);
        assert_eq!(cudaGraphAddMemcpyNode1D(&mut node, graph, std::ptr::null(), 0, p, p + 64, 40, DEFAULT), 0);
        assert_eq!((cudaGraphInstantiate(&mut exec, graph, 0), cudaGraphLaunch(exec, own)), (0, 0));
        assert_eq!(cudaStreamSynchronize(own), 0);
        let mut node_type = 99;
        assert_eq!((cuGraphNodeGetType(node, &mut node_type), node_type), (0, 1));
    }
    flush(0);
    let records = RECORDS.lock().unwrap();
    let copies = records.iter().filter(|it| [1, 22].contains(&word(it, 0)));
    // Kind, direction, memory kinds, flags, bytes; copies; graph.
    let told = |it: &Vec<u8>| {
        let is_peer = word(it, 0) == 22;
        let (copies, graph) = if is_peer { (0, word(it, 80)) } else { (word(it, 88), word(it, 72)) };
        ([word(it, 0), it[4].into(), it[5].into(), it[6].into(), it[7].into(), word(it, 8)], copies, graph != 0)
    };
    assert_eq!(
        copies.map(told).collect::<Vec<_>>(),
        [
            ([1, 9, 1, 2, 0, 64], 1, false),
            ([1, 9, 1, 2, 1, 64], 1, false),
            ([1, 8, 3, 3, 1, 100], 1, false),
            ([1, 1, 2, 3, 1, 30], 2, false),
            ([1, 2, 3, 2, 1, 30], 1, false),
            ([1, 8, 3, 3, 0, 40], 1, true),
        ]
    );
}

fn word(record: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(record[at..at + 4].try_into().unwrap())
}
