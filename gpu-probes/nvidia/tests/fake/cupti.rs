//! A simulated CUPTI: the test fires callbacks, and a flush delivers kernels in buffers.

use crate::machine::{Machine, framed, left};
use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_void};
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use xputrace_agent::World;
use xputrace_nvidia::cupti::driver::Driver;
use xputrace_nvidia::cupti::records::{memcpy_offset, memset_offset, offset};
use xputrace_nvidia::cupti::{
    CallbackData, CallbackFunction, CompleteFunction, Cupti, CuptiBackend, Handle, ModuleData, RequestFunction,
    ResourceData,
};

pub const RECORD_BYTES: usize = 216;
pub const DRIVER: u32 = 1;
pub const RUNTIME: u32 = 2;

pub static SUBSCRIBE_ANSWER: AtomicU32 = AtomicU32::new(0);
pub static VERSION: AtomicU32 = AtomicU32::new(130_001);
pub static UNSUBSCRIBED: AtomicUsize = AtomicUsize::new(0);
pub static FINALIZED: AtomicUsize = AtomicUsize::new(0);
pub static DROPPED: AtomicUsize = AtomicUsize::new(0);
pub static CAPTURING: AtomicU64 = AtomicU64::new(0);
pub static CAPTURE_QUESTIONS: AtomicUsize = AtomicUsize::new(0);
pub static STREAM_QUESTIONS: AtomicUsize = AtomicUsize::new(0);
pub static ACTIVITY_ON: AtomicBool = AtomicBool::new(false);
pub static MEMSETS_ON: AtomicBool = AtomicBool::new(false);
pub static FORCED_FLUSHES: AtomicUsize = AtomicUsize::new(0);
static CORRELATION: AtomicU32 = AtomicU32::new(1);

static STATE: Mutex<State> = Mutex::new(State { callback: None, enabled: None, buffers: None, kernels: Vec::new() });

struct State {
    callback: Option<(CallbackFunction, usize)>,
    enabled: Option<HashSet<(u32, u32)>>,
    buffers: Option<(RequestFunction, CompleteFunction)>,
    kernels: Vec<[u8; RECORD_BYTES]>,
}

/// Restores the initial state.
pub fn reset() {
    *STATE.lock().unwrap() = State { callback: None, enabled: None, buffers: None, kernels: Vec::new() };
    SUBSCRIBE_ANSWER.store(0, SeqCst);
    VERSION.store(130_001, SeqCst);
    for it in [&UNSUBSCRIBED, &FINALIZED, &DROPPED, &CAPTURE_QUESTIONS, &STREAM_QUESTIONS, &FORCED_FLUSHES] {
        it.store(0, SeqCst);
    }
    CAPTURING.store(0, SeqCst);
    ACTIVITY_ON.store(false, SeqCst);
    MEMSETS_ON.store(false, SeqCst);
}

pub fn table() -> Cupti {
    Cupti {
        get_version: Some(get_version),
        get_result_string: Some(result_string),
        subscribe: Some(subscribe),
        unsubscribe: Some(unsubscribe),
        enable_callback: Some(enable_callback),
        register_callbacks: Some(register),
        enable: Some(enable),
        disable: Some(disable),
        flush_all: Some(flush_all),
        next_record: Some(next_record),
        dropped_records: Some(dropped),
        get_device_id: Some(device_id),
        get_stream_id: Some(stream_id),
        get_graph_node_id: Some(node_id),
        finalize: Some(finalize),
        ..Cupti::default()
    }
}

/// A node's id is its handle.
unsafe extern "C" fn node_id(node: Handle, id: *mut u64) -> u32 {
    unsafe { *id = node as u64 };
    0
}

pub unsafe extern "C" fn is_capturing(stream: Handle, status: *mut u32) -> u32 {
    CAPTURE_QUESTIONS.fetch_add(1, SeqCst);
    unsafe { *status = u32::from(stream as u64 == CAPTURING.load(SeqCst)) };
    0
}

unsafe extern "C" fn get_version(version: *mut u32) -> u32 {
    unsafe { *version = VERSION.load(SeqCst) };
    0
}

unsafe extern "C" fn result_string(result: u32, text: *mut *const c_char) -> u32 {
    let name = if result == 39 { c"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" } else { c"CUPTI_ERROR_UNKNOWN" };
    unsafe { *text = name.as_ptr() };
    0
}

unsafe extern "C" fn subscribe(handle: *mut Handle, callback: CallbackFunction, data: *mut c_void) -> u32 {
    let answer = SUBSCRIBE_ANSWER.load(SeqCst);
    if answer == 0 {
        unsafe { *handle = 0x5ab as Handle };
        STATE.lock().unwrap().callback = Some((callback, data as usize));
    }
    answer
}

unsafe extern "C" fn unsubscribe(handle: Handle) -> u32 {
    assert_eq!(handle as usize, 0x5ab);
    let mut state = STATE.lock().unwrap();
    state.callback = None;
    state.enabled = None;
    UNSUBSCRIBED.fetch_add(1, SeqCst);
    0
}

/// Knows no runtime id above 504, like CUPTI before 13.0.
unsafe extern "C" fn enable_callback(on: u32, _: Handle, domain: u32, id: u32) -> u32 {
    if domain == RUNTIME && id > 504 {
        return 1;
    }
    let mut state = STATE.lock().unwrap();
    let enabled = state.enabled.get_or_insert_default();
    if on != 0 {
        enabled.insert((domain, id))
    } else {
        enabled.remove(&(domain, id))
    };
    0
}

unsafe extern "C" fn register(request: RequestFunction, complete: CompleteFunction) -> u32 {
    STATE.lock().unwrap().buffers = Some((request, complete));
    0
}

unsafe extern "C" fn enable(kind: u32) -> u32 {
    assert!([1, 2, 10, 22].contains(&kind));
    MEMSETS_ON.fetch_or(kind == 2, SeqCst);
    ACTIVITY_ON.store(true, SeqCst);
    0
}

unsafe extern "C" fn disable(_: u32) -> u32 {
    ACTIVITY_ON.store(false, SeqCst);
    0
}

unsafe extern "C" fn flush_all(flags: u32) -> u32 {
    FORCED_FLUSHES.fetch_add(flags as usize, SeqCst);
    let (buffers, kernels) = {
        let mut state = STATE.lock().unwrap();
        (state.buffers, std::mem::take(&mut state.kernels))
    };
    let Some((request, complete)) = buffers else { return 0 };
    let mut rest = &kernels[..];
    while !rest.is_empty() {
        let (mut buffer, mut size, mut records) = (std::ptr::null_mut(), 0, 7);
        unsafe { request(&mut buffer, &mut size, &mut records) };
        assert!(!buffer.is_null() && records == 0);
        let (now, later) = rest.split_at(rest.len().min(size / RECORD_BYTES));
        for (n, record) in now.iter().enumerate() {
            unsafe { buffer.add(n * RECORD_BYTES).copy_from(record.as_ptr(), RECORD_BYTES) };
        }
        unsafe { complete(std::ptr::null_mut(), 0, buffer, size, now.len() * RECORD_BYTES) };
        rest = later;
    }
    0
}

/// Fills `bytes` of the buffer that is used when all others are in use.
pub fn overrun(bytes: usize) {
    let Some((request, complete)) = STATE.lock().unwrap().buffers else { return };
    let ask = || {
        let (mut buffer, mut size, mut records) = (std::ptr::null_mut(), 0, 7);
        unsafe { request(&mut buffer, &mut size, &mut records) };
        (buffer, size)
    };
    let mut taken = vec![ask()];
    while taken.last().is_some_and(|it| it.1 == taken[0].1) {
        taken.push(ask());
    }
    let (discarded, size) = taken.pop().unwrap();
    unsafe { complete(std::ptr::null_mut(), 0, discarded, size, bytes) };
    for (buffer, size) in taken {
        unsafe { complete(std::ptr::null_mut(), 0, buffer, size, 0) };
    }
}

unsafe extern "C" fn next_record(buffer: *mut u8, valid: usize, record: *mut *mut u8) -> u32 {
    let next = unsafe { if (*record).is_null() { buffer } else { (*record).add(RECORD_BYTES) } };
    if next as usize >= buffer as usize + valid {
        return 12;
    }
    unsafe { *record = next };
    0
}

unsafe extern "C" fn dropped(_: Handle, _: u32, n: *mut usize) -> u32 {
    unsafe { *n = DROPPED.swap(0, SeqCst) };
    0
}

unsafe extern "C" fn device_id(context: Handle, device: *mut u32) -> u32 {
    unsafe { *device = context as u32 - 0x1000 };
    0
}

unsafe extern "C" fn stream_id(_: Handle, stream: Handle, _: u8, id: *mut u32) -> u32 {
    STREAM_QUESTIONS.fetch_add(1, SeqCst);
    unsafe { *id = stream as u32 + 100 };
    0
}

unsafe extern "C" fn finalize() -> u32 {
    FINALIZED.fetch_add(1, SeqCst);
    0
}

/// A call as CUPTI reports it.
#[derive(Clone, Copy)]
pub struct Event<'a> {
    pub domain: u32,
    pub id: u32,
    pub name: &'a CStr,
    pub symbol: Option<&'a CStr>,
    pub params: *const c_void,
    pub correlation: u32,
    pub result: i32,
}

thread_local!(static CONTEXT: Cell<u64> = const { Cell::new(0x1003) });

/// Runs something in another context than the usual one, which is 0x1003 and whose id is 5.
pub fn in_context(context: u64, run: impl FnOnce()) {
    let before = CONTEXT.replace(context);
    run();
    CONTEXT.set(before);
}

/// Returns the context that CUPTI reports for calls of this thread.
pub fn current_context() -> u64 {
    CONTEXT.get()
}

/// `cuptiGetContextId`: of contexts that there may be.
pub unsafe extern "C" fn context_id(context: Handle, id: *mut u32) -> u32 {
    let number = (context as u64).wrapping_sub(0x1003);
    unsafe { *id = number as u32 + 5 };
    u32::from(number >= 256)
}

/// Fires a callback about a resource of a context, if that id is enabled.
pub fn fire_resource(id: u32, context: u64) {
    const RESOURCE: u32 = 3;
    let callback = if is_enabled(RESOURCE, id) { STATE.lock().unwrap().callback } else { None };
    let Some((callback, user_data)) = callback else { return };
    let data = ResourceData { context: context as Handle, handle: std::ptr::null_mut(), descriptor: std::ptr::null() };
    unsafe { callback(user_data as *mut c_void, RESOURCE, id, (&raw const data).cast()) };
}

/// Fires a callback about a module with this code, if that id is enabled.
pub fn fire_module(id: u32, module: u32, cubin: &[u8]) {
    const RESOURCE: u32 = 3;
    let callback = if is_enabled(RESOURCE, id) { STATE.lock().unwrap().callback } else { None };
    let Some((callback, user_data)) = callback else { return };
    let module = ModuleData { id: module, cubin_size: cubin.len(), cubin: cubin.as_ptr().cast() };
    let data = ResourceData {
        context: CONTEXT.get() as Handle,
        handle: std::ptr::null_mut(),
        descriptor: (&raw const module).cast(),
    };
    unsafe { callback(user_data as *mut c_void, RESOURCE, id, (&raw const data).cast()) };
}

/// Fires the callback at ENTER (0) or EXIT (1), if that id is enabled.
pub fn fire(event: Event<'_>, site: u32) {
    let callback = {
        let state = STATE.lock().unwrap();
        let on = state.enabled.as_ref().is_some_and(|it| it.contains(&(event.domain, event.id)));
        if on { state.callback } else { None }
    };
    let Some((callback, user_data)) = callback else { return };
    let mut slot = 0u64;
    let data = CallbackData {
        site,
        function_name: event.name.as_ptr(),
        function_params: event.params,
        return_value: (&raw const event.result).cast(),
        symbol_name: event.symbol.map_or(std::ptr::null(), CStr::as_ptr),
        context: CONTEXT.get() as Handle,
        context_uid: (CONTEXT.get() - 0x1003) as u32 + 5,
        correlation_data: &mut slot,
        correlation_id: event.correlation,
    };
    unsafe { framed(callback as *const c_void, user_data, event.domain, event.id, (&raw const data).cast()) };
}

pub fn next_correlation() -> u32 {
    CORRELATION.fetch_add(1, SeqCst)
}

/// `cuLaunchKernel`'s parameters.
#[repr(C)]
pub struct LaunchParams {
    pub function: u64,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub stream: u64,
    pub rest: [u64; 2],
}

pub fn launch_params(stream: u64) -> LaunchParams {
    LaunchParams { function: 1, grid: [4, 2, 1], block: [64, 1, 1], shared: 128, stream, rest: [0; 2] }
}

/// Simulates `kernel<<<…>>>` through the runtime; returns its correlation id.
pub fn launch(symbol: &CStr, stream: u64, result: i32) -> u32 {
    let correlation = next_correlation();
    let params = launch_params(stream);
    let params = (&raw const params).cast();
    let runtime = Event {
        domain: RUNTIME,
        id: 211,
        name: c"cudaLaunchKernel",
        symbol: Some(symbol),
        params: std::ptr::null(),
        correlation,
        result,
    };
    let driver = Event { domain: DRIVER, id: 307, name: c"cuLaunchKernel", params, ..runtime };
    fire(runtime, 0);
    fire(driver, 0);
    fire(driver, 1);
    fire(runtime, 1);
    if result == 0 && CAPTURING.load(SeqCst) != stream.max(1) {
        push_kernel(correlation, symbol, 0);
    }
    correlation
}

/// Simulates `cudaMemsetAsync` in a stream; returns its correlation id.
pub fn memset_async(stream: u64) -> u32 {
    let params = [0x1000u64, 42, 4096, stream];
    let (params, correlation) = (params.as_ptr().cast(), next_correlation());
    let runtime =
        Event { domain: RUNTIME, id: 51, name: c"cudaMemsetAsync_v3020", symbol: None, params, correlation, result: 0 };
    let driver = Event { domain: DRIVER, id: 216, name: c"cuMemsetD8Async", ..runtime };
    fire(runtime, 0);
    fire(driver, 0);
    fire(driver, 1);
    fire(runtime, 1);
    correlation
}

/// Simulates `cudaMemcpyAsync`, with this call of the driver inside if any; returns its correlation id.
pub fn memcpy_async(driver: Option<(u32, &CStr)>, bytes: u64) -> u32 {
    let params = [0x1000u64, 0x2000, bytes, 9];
    let (params, correlation) = (params.as_ptr().cast(), next_correlation());
    let runtime =
        Event { domain: RUNTIME, id: 41, name: c"cudaMemcpyAsync_v3020", symbol: None, params, correlation, result: 0 };
    fire(runtime, 0);
    if let Some((id, name)) = driver {
        let driver = Event { domain: DRIVER, id, name, ..runtime };
        fire(driver, 0);
        fire(driver, 1);
    }
    fire(runtime, 1);
    correlation
}

/// Simulates another call, both sites; returns its correlation id.
pub fn call(domain: u32, id: u32, name: &CStr, stream: u64) -> u32 {
    let correlation = next_correlation();
    let params = [0u64, stream];
    let event = Event { domain, id, name, symbol: None, params: params.as_ptr().cast(), correlation, result: 0 };
    fire(event, 0);
    fire(event, 1);
    correlation
}

/// Adds a kernel for the next flush to deliver.
/// Simulates `cudaMalloc` through the runtime, as `during` within it; it stores this address if it succeeds.
pub fn malloc(address: u64, bytes: u64, result: i32, during: impl FnOnce()) {
    let correlation = next_correlation();
    let mut stored = 0u64;
    let params = [(&raw mut stored) as u64, bytes];
    let params = params.as_ptr().cast();
    let runtime = Event { domain: RUNTIME, id: 20, name: c"cudaMalloc", symbol: None, params, correlation, result };
    let driver = Event { domain: DRIVER, id: 243, name: c"cuMemAlloc_v2", ..runtime };
    fire(runtime, 0);
    during();
    fire(driver, 0);
    if result == 0 {
        // SAFETY: it lives here, as the program's variable.
        unsafe { (&raw mut stored).write_volatile(address) };
    }
    fire(driver, 1);
    fire(runtime, 1);
}

pub fn push_kernel(correlation: u32, symbol: &CStr, graph_node: u64) {
    let mut record = [0u8; RECORD_BYTES];
    let mut put = |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
    put(offset::KIND, &10u32.to_le_bytes());
    put(offset::START, &1_000_000u64.to_le_bytes());
    put(offset::END, &1_000_500u64.to_le_bytes());
    put(offset::CORRELATION, &correlation.to_le_bytes());
    put(offset::NAME, &(symbol.as_ptr() as u64).to_le_bytes());
    put(offset::GRAPH_NODE, &graph_node.to_le_bytes());
    if ACTIVITY_ON.load(SeqCst) {
        STATE.lock().unwrap().kernels.push(record);
    }
}

/// Puts the newest kernel into a context's stream, by their ids.
pub fn put_last_kernel_in(context: u32, stream: u32) {
    let mut state = STATE.lock().unwrap();
    let record = state.kernels.last_mut().unwrap();
    let mut put = |at: usize, word: u32| record[at..at + 4].copy_from_slice(&word.to_le_bytes());
    put(offset::CONTEXT, context);
    put(offset::STREAM, stream);
}

/// Adds a memset for the next flush to deliver, in newer CUPTI's larger records.
pub fn push_memset(correlation: u32, bytes: u64, graph_node: u64) {
    let mut record = [0u8; RECORD_BYTES];
    let mut put = |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
    put(offset::KIND, &2u32.to_le_bytes());
    put(offset::START, &2_000_000u64.to_le_bytes());
    put(offset::END, &2_000_300u64.to_le_bytes());
    put(memset_offset::VALUE, &42u32.to_le_bytes());
    put(memset_offset::BYTES, &bytes.to_le_bytes());
    put(memset_offset::CORRELATION, &correlation.to_le_bytes());
    put(memset_offset::MEMORY_KIND, &3u16.to_le_bytes());
    put(memset_offset::GRAPH_NODE, &graph_node.to_le_bytes());
    if MEMSETS_ON.load(SeqCst) {
        STATE.lock().unwrap().kernels.push(record);
    }
}

/// Adds a copy for the next flush to deliver.
pub fn push_memcpy(context: u32, stream: u32) {
    let mut record = [0u8; RECORD_BYTES];
    let mut put = |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
    put(offset::KIND, &1u32.to_le_bytes());
    put(offset::START, &3_000_000u64.to_le_bytes());
    put(offset::END, &3_000_300u64.to_le_bytes());
    put(memcpy_offset::CONTEXT, &context.to_le_bytes());
    put(memcpy_offset::STREAM, &stream.to_le_bytes());
    STATE.lock().unwrap().kernels.push(record);
}

/// Removes the end of the newest kernel.
pub fn spoil_last_kernel() {
    let mut state = STATE.lock().unwrap();
    state.kernels.last_mut().unwrap()[offset::END..offset::END + 8].fill(0);
}

pub fn is_enabled(domain: u32, id: u32) -> bool {
    STATE.lock().unwrap().enabled.as_ref().is_some_and(|it| it.contains(&(domain, id)))
}

/// Calls the callback below `n` frames that keep frame pointers.
#[unsafe(naked)]
unsafe extern "C" fn deep(n: u64, callback: CallbackFunction, user: usize, domain: u32, id: u32, data: &CallbackData) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp", ".cfi_def_cfa_offset 16", ".cfi_offset rbp, -16", "mov rbp, rsp", ".cfi_def_cfa_register rbp",
        "dec rdi", "jz 2f", "call {}", "jmp 3f",
        "2:", "mov rax, rsi", "mov rdi, rdx", "mov esi, ecx", "mov edx, r8d", "mov rcx, r9", "call rax",
        "3:", "pop rbp", ".cfi_def_cfa rsp, 8", "ret",
        ".cfi_endproc",
        sym deep
    )
}

unsafe extern "C" fn nothing(_: *mut c_void, _: u32, _: u32, _: *const CallbackData) {}

/// Where the launches that are timed come from.
#[derive(Clone, Copy)]
pub struct Program {
    /// How many stacks it launches from, one after another. If there is more than one, the inner 30 frames differ.
    pub stacks: u64,
    /// Kernels that it launches: one from each stack, if there are fewer from several.
    pub kernels: usize,
    /// Bytes that it reads before each launch.
    pub bytes: usize,
}

/// Measures this many launches through the runtime, in nanoseconds: with the collector's callback if armed, else an
/// empty one. Returns the median. Reading the clock costs as much as a third of a launch, so those that nothing comes
/// between are measured by groups.
pub fn time_launches(program: Program, launches: u32, correlation: u32, armed: bool) -> f64 {
    let (callback, user) = STATE.lock().unwrap().callback.unwrap();
    let callback = if armed { callback } else { nothing };
    let params = launch_params(7);
    let mut slot = 0u64;
    let result = 0i32;
    let name = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEEEEviT0_T1_";
    let symbols: Vec<_> =
        (0..program.kernels).map(|it| std::ffi::CString::new(format!("{name}{it}")).unwrap()).collect();
    let others = vec![1u64; program.bytes / 8];
    let mut data = CallbackData {
        site: 0,
        function_name: c"cudaLaunchKernel".as_ptr(),
        function_params: (&raw const params).cast(),
        return_value: (&raw const result).cast(),
        symbol_name: std::ptr::null(),
        context: 0x1003 as Handle,
        context_uid: 5,
        correlation_data: &mut slot,
        correlation_id: correlation,
    };
    // CUPTI calls nobody for what isn't enabled.
    let calls: Vec<_> = [(0, RUNTIME, 211), (0, DRIVER, 307), (1, DRIVER, 307), (1, RUNTIME, 211)]
        .into_iter()
        .filter(|(_, domain, id)| is_enabled(*domain, *id))
        .collect();
    let group = if program.stacks == 1 && program.bytes == 0 { 50 } else { 1 };
    let mut nanos = Vec::with_capacity(launches as usize);
    for launch in 0..launches / group {
        let stack = u64::from(launch) % program.stacks;
        data.symbol_name = symbols[stack as usize % program.kernels].as_ptr();
        black_box(others.iter().step_by(8).sum::<u64>());
        let mut run = || {
            let began = std::time::Instant::now();
            for _ in 0..group {
                data.correlation_id += 1;
                for (site, domain, id) in calls.iter().copied() {
                    data.site = site;
                    unsafe { deep(16, callback, user, domain, id, &data) };
                }
            }
            nanos.push(began.elapsed().as_nanos() as f64 / f64::from(group));
        };
        if program.stacks == 1 {
            run();
        } else {
            let path = stack.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40 << 1 | stack & 1;
            black_box(left(path, 29, &mut run));
        }
    }
    nanos.sort_unstable_by(f64::total_cmp);
    nanos[nanos.len() / 2]
}

/// A machine with this CUPTI, used by the CUPTI backend.
pub struct OverCupti;

impl Machine for OverCupti {
    fn reset() {
        reset();
    }

    fn world() -> World {
        let driver = Driver { is_capturing: Some(is_capturing), ..Driver::default() };
        let backend = CuptiBackend::new(table(), driver, false);
        World { backend: Some(Box::new(backend)), library: "/fake/libcupti.so.13".into(), ..World::default() }
    }

    fn launch(symbol: &CStr, stream: u64, result: i32) -> u32 {
        launch(symbol, stream, result)
    }

    fn launch_quietly() {
        let params = launch_params(7);
        let event = Event {
            domain: DRIVER,
            id: 307,
            name: c"cuLaunchKernel",
            symbol: Some(c"_Z1fv"),
            params: (&raw const params).cast(),
            correlation: next_correlation(),
            result: 0,
        };
        fire(event, 0);
        fire(event, 1);
    }

    fn launch_graph(kernels: u64) -> u32 {
        let graph = call(RUNTIME, 311, c"cudaGraphLaunch", 0);
        (0..kernels).for_each(|node| push_kernel(graph, c"_Z1fv", node + 1));
        graph
    }

    fn push_kernel(correlation: u32, symbol: &CStr) {
        push_kernel(correlation, symbol, 0);
    }

    fn spoil_last_kernel() {
        spoil_last_kernel();
    }

    fn create_stream() {
        call(3, 3, c"", 0);
    }

    fn stream_questions() -> usize {
        STREAM_QUESTIONS.load(SeqCst)
    }

    fn times_let_go() -> usize {
        UNSUBSCRIBED.load(SeqCst)
    }

    fn is_recording() -> bool {
        is_enabled(DRIVER, 307) || ACTIVITY_ON.load(SeqCst)
    }

    fn caller() -> u64 {
        framed as *const () as u64
    }
}
