//! A simulated driver that loads code: PTX texts with entries and variables, in any number of contexts. The GPU's memory is
//! this process's.
//!
//! A handle tells what it is: `LIBRARY + 0x10 * n` is a library's n-th kernel, and in a context the function
//! `context << 32` beyond it.

use crate::cupti::{self, DRIVER, Event, LaunchParams};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicUsize, Ordering::SeqCst};
use xputrace_nvidia::cupti::Handle;
use xputrace_nvidia::cupti::driver::{Code, Devices, Driver, Handles};

const NOT_FOUND: u32 = 500;
const FIRST_LIBRARY: u64 = 0x10_0000;
const LIBRARY_BYTES: u64 = 0x1000;
/// Dynamic shared memory that a kernel can have at most.
pub const MOST_SHARED: i32 = 100_000;
/// Multiprocessors of each GPU, and registers of one.
pub const SMS: i32 = 2;
const REGISTERS_PER_SM: i32 = 65_536;
/// `CU_FUNC_ATTRIBUTE_NUM_REGS`.
pub const REGISTERS: u32 = 4;

/// While set, loading blocks, as behind a kernel that waits for the program.
pub static IS_BLOCKED: AtomicBool = AtomicBool::new(false);
/// Functions of the driver in which a call blocks while they are here.
pub static BLOCKS_IN: Mutex<Vec<&str>> = Mutex::new(Vec::new());
/// Functions of the driver that fail while they are here.
pub static FAILS_IN: Mutex<Vec<&str>> = Mutex::new(Vec::new());
/// How many calls do at this moment.
pub static BLOCKED: AtomicUsize = AtomicUsize::new(0);
/// Calls that began with a context or library of the program's that it had ended.
pub static MISUSES: AtomicUsize = AtomicUsize::new(0);
/// Libraries that were loaded by calls.
pub static LOADS: AtomicUsize = AtomicUsize::new(0);
/// While set, copies from the GPU fail, as in a context after an error.
pub static COPIES_FAIL: AtomicBool = AtomicBool::new(false);
/// How often it was asked how many blocks fit.
pub static OCCUPANCY_QUESTIONS: AtomicUsize = AtomicUsize::new(0);
/// How often a stream's context was asked for.
pub static CONTEXT_QUESTIONS: AtomicUsize = AtomicUsize::new(0);

thread_local!(static CURRENT: Cell<u64> = const { Cell::new(0) });

static STATE: Mutex<Option<State>> = Mutex::new(None);

#[derive(Default)]
struct State {
    /// Texts of libraries, in their order.
    libraries: Vec<String>,
    attributes: HashMap<(u64, u32), i32>,
    /// Addresses of variables by library, context and name.
    variables: HashMap<(u64, u64, String), u64>,
    /// Libraries in contexts.
    loaded: HashSet<(u64, u64)>,
    /// Libraries and contexts that the program has ended.
    ended: HashSet<u64>,
    /// Contexts of streams, where it is not the current one.
    streams: HashMap<u64, u64>,
    /// Contexts that have our stream.
    has_stream: HashSet<u64>,
    /// Contexts and addresses of what was allocated.
    pub blocks: Vec<(u64, u64)>,
    /// Addresses of the process's memory that the GPU may use.
    registered: HashSet<u64>,
    /// `CUDA_KERNEL_NODE_PARAMS_v2` and clusters of graphs' nodes.
    nodes: HashMap<u64, ([u64; 9], [u32; 3])>,
}

fn with<R>(run: impl FnOnce(&mut State) -> R) -> R {
    run(STATE.lock().unwrap().get_or_insert_default())
}

pub fn reset() {
    *STATE.lock().unwrap() = None;
    IS_BLOCKED.store(false, SeqCst);
    COPIES_FAIL.store(false, SeqCst);
    MISUSES.store(0, SeqCst);
    BLOCKS_IN.lock().unwrap().clear();
    FAILS_IN.lock().unwrap().clear();
    IS_BUSY.store(false, SeqCst);
    WAITING.lock().unwrap().clear();
    KERNELS_RUN.store(0, SeqCst);
    LOADS.store(0, SeqCst);
    OCCUPANCY_QUESTIONS.store(0, SeqCst);
    CONTEXT_QUESTIONS.store(0, SeqCst);
    LAUNCHED.lock().unwrap().clear();
    PROGRAMS_ANSWER.store(0, SeqCst);
    HAS_PROGRAMS.store(false, SeqCst);
}

/// Ends a context or a library: whoever uses it from now on does so wrongly.
pub fn end(handle: u64) {
    with(|state| state.ended.insert(handle));
}

/// Begins a call with these handles, and the current context.
fn begin(function: &'static str, handles: &[u64]) {
    let is_ended = with(|state| handles.iter().chain([&CURRENT.get()]).any(|it| state.ended.contains(it)));
    MISUSES.fetch_add(usize::from(is_ended), SeqCst);
    let blocks = || BLOCKS_IN.lock().unwrap().contains(&function);
    if blocks() {
        BLOCKED.fetch_add(1, SeqCst);
        while blocks() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        BLOCKED.fetch_sub(1, SeqCst);
    }
}

/// What a function answers that fails while it is to.
fn answer(function: &str) -> u32 {
    if FAILS_IN.lock().unwrap().contains(&function) { 999 } else { 0 }
}

/// The library of a kernel.
fn library_of(kernel: u64) -> u64 {
    kernel as u32 as u64 / LIBRARY_BYTES * LIBRARY_BYTES
}

/// The module that the driver makes of a library in a context, as CUPTI numbers it.
pub fn module_of(library: u64, context: u64) -> u32 {
    (library / LIBRARY_BYTES * 0x100 + context % 0x100) as u32
}

/// Loads a library in a context when a kernel of it is first asked for there, and tells the collector.
fn load_lazily(library: u64, context: u64) {
    let text = with(|state| {
        let is_first = state.loaded.insert((library, context));
        is_first.then(|| state.libraries[((library - FIRST_LIBRARY) / LIBRARY_BYTES) as usize].clone())
    });
    if let Some(text) = text {
        cupti::fire_module(6, module_of(library, context), text.as_bytes());
    }
}

/// Loads a library or module of the program.
pub fn load(text: &str) -> u64 {
    with(|state| {
        state.libraries.push(text.to_owned());
        FIRST_LIBRARY + (state.libraries.len() as u64 - 1) * LIBRARY_BYTES
    })
}

/// Returns a kernel of a library.
pub fn kernel(library: u64, name: &str) -> Option<u64> {
    with(|state| {
        let text = state.libraries.get(((library - FIRST_LIBRARY) / LIBRARY_BYTES) as usize)?;
        let mut entries = text.split(".entry ").skip(1).map(|it| it.split('(').next().unwrap());
        entries.position(|it| it == name).map(|it| library + 0x10 * (it as u64 + 1))
    })
}

/// Returns a kernel's function in a context.
pub fn function(kernel: u64, context: u64) -> u64 {
    kernel + (context << 32)
}

/// Returns the address of a variable.
pub fn variable(library: u64, context: u64, name: &str) -> Option<u64> {
    with(|state| {
        let text = state.libraries.get(((library - FIRST_LIBRARY) / LIBRARY_BYTES) as usize)?;
        let is_there = text.lines().any(|it| it.starts_with(".global") && it.contains(&format!(" {name}")));
        let new = || Box::leak(Box::new([0u64; 8])).as_ptr() as u64;
        is_there.then(|| *state.variables.entry((library, context, name.to_owned())).or_insert_with(new))
    })
}

pub fn word(address: u64, index: usize) -> u64 {
    unsafe { (address as *const u64).add(index).read_volatile() }
}

pub fn set_word(address: u64, index: usize, value: u64) {
    unsafe { (address as *mut u64).add(index).write_volatile(value) };
}

/// Returns what was allocated in a context.
pub fn block(context: u64) -> Option<u64> {
    with(|state| state.blocks.iter().find(|it| it.0 == context).map(|it| it.1))
}

pub fn attribute(handle: u64, attribute: u32) -> i32 {
    let default = match attribute {
        0 => 1024,
        REGISTERS => 16,
        8 => 48 << 10,
        _ => 0,
    };
    with(|state| state.attributes.get(&(handle, attribute)).copied().unwrap_or(default))
}

pub fn set(handle: u64, attribute: u32, value: i32) {
    with(|state| state.attributes.insert((handle, attribute), value));
}

/// Makes a stream be of this context, as if it was created there.
pub fn set_stream_context(stream: u64, context: u64) {
    with(|state| state.streams.insert(stream, context));
    cupti::fire_resource(3, context);
}

pub fn driver() -> Driver {
    Driver {
        is_capturing: Some(cupti::is_capturing),
        devices: Devices { attribute: Some(device_attribute), ..Devices::default() },
        code: Code {
            set_context: Some(set_context),
            context_device: Some(context_device),
            stream_context: Some(stream_context),
            exchange_capture_mode: Some(exchange_capture_mode),
            load_library: Some(load_library),
            library_kernel: Some(library_kernel),
            library_global: Some(library_global),
            library_managed: Some(library_managed),
            module_function: Some(module_function),
            module_global: Some(library_global),
            kernel_function: Some(kernel_function),
            function_attribute: Some(function_attribute),
            set_function_attribute: Some(set_function_attribute),
            kernel_attribute: Some(kernel_attribute),
            set_kernel_attribute: Some(set_kernel_attribute),
            occupancy: Some(occupancy),
            active_clusters: Some(active_clusters),
            node_attribute: Some(node_attribute),
            node_params: Some(node_params),
            set_node_params: Some(set_node_params),
            alloc: Some(alloc),
            register_memory: Some(register_memory),
            registered_address: Some(registered_address),
            create_stream: Some(create_stream),
            create_urgent_stream: Some(create_urgent_stream),
            launch_kernel: Some(launch_kernel),
            copy_to_device: Some(copy_to_device),
            copy_to_host: Some(copy_to_host),
            wait_for_stream: Some(wait_for_stream),
            query_stream: Some(query_stream),
        },
        handles: Handles {
            kernel_library: Some(kernel_library),
            kernel_name: Some(name_of),
            kernel_parameter: Some(parameter),
            function_module: Some(function_module),
            function_name: Some(name_of),
            function_parameter: Some(parameter),
        },
        ..Driver::default()
    }
}

/// Tells the collector of a call, as CUPTI does of its own calls too.
fn told<R>(id: u32, name: &CStr, params: *const u64, call: impl FnOnce() -> R) -> R {
    let params = params.cast();
    let correlation = cupti::next_correlation();
    let event = Event { domain: DRIVER, id, name, symbol: None, params, correlation, result: 0 };
    cupti::fire(event, 0);
    let result = call();
    cupti::fire(event, 1);
    result
}

fn current() -> u64 {
    let context = CURRENT.get();
    assert_ne!(context, 0, "a context is current");
    context
}

unsafe extern "C" fn set_context(context: Handle) -> u32 {
    CURRENT.set(0);
    begin("set_context", &[context as u64]);
    CURRENT.set(context as u64);
    0
}

unsafe extern "C" fn context_device(device: *mut i32) -> u32 {
    begin("context_device", &[]);
    if answer("context_device") != 0 {
        return answer("context_device");
    }
    *device = (current() - 0x1000) as i32;
    0
}

/// The program's streams are in the context that CUPTI reports, unless a test says otherwise.
unsafe extern "C" fn stream_context(stream: Handle, context: *mut Handle) -> u32 {
    CONTEXT_QUESTIONS.fetch_add(1, SeqCst);
    let known = with(|state| state.streams.get(&(stream as u64)).copied());
    *context = known.unwrap_or(cupti::current_context()) as Handle;
    0
}

unsafe extern "C" fn exchange_capture_mode(mode: *mut u32) -> u32 {
    assert_eq!(*mode, 2, "relaxed");
    0
}

unsafe extern "C" fn load_library(
    library: *mut Handle,
    code: *const c_void,
    _: *const c_void,
    _: *const c_void,
    _: u32,
    _: *const c_void,
    _: *const c_void,
    _: u32,
) -> u32 {
    told(678, c"cuLibraryLoadData", [library as u64, code as u64].as_ptr(), || {
        while IS_BLOCKED.load(SeqCst) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let text = CStr::from_ptr(code.cast()).to_str().unwrap();
        if text.contains(".broken") {
            return 218;
        }
        LOADS.fetch_add(1, SeqCst);
        *library = load(text) as Handle;
        0
    })
}

unsafe fn text_of(name: *const c_char) -> &'static str {
    CStr::from_ptr(name).to_str().unwrap()
}

unsafe extern "C" fn library_kernel(out: *mut Handle, library: Handle, name: *const c_char) -> u32 {
    begin("library_kernel", &[library as u64]);
    let found = kernel(library as u64, text_of(name));
    found.map_or(NOT_FOUND, |it| {
        *out = it as Handle;
        0
    })
}

unsafe extern "C" fn module_function(out: *mut Handle, module: Handle, name: *const c_char) -> u32 {
    begin("module_function", &[module as u64]);
    let found = kernel(module as u64, text_of(name));
    found.map_or(NOT_FOUND, |it| {
        *out = function(it, current()) as Handle;
        0
    })
}

unsafe extern "C" fn kernel_function(out: *mut Handle, kernel: Handle) -> u32 {
    begin("kernel_function", &[library_of(kernel as u64)]);
    load_lazily(library_of(kernel as u64), current());
    *out = function(kernel as u64, current()) as Handle;
    0
}

/// A function is of a context.
fn is_function(handle: u64) -> bool {
    handle >> 32 != 0
}

unsafe extern "C" fn kernel_library(out: *mut Handle, kernel: Handle) -> u32 {
    if is_function(kernel as u64) {
        return 400;
    }
    *out = library_of(kernel as u64) as Handle;
    0
}

unsafe extern "C" fn function_module(out: *mut Handle, function: Handle) -> u32 {
    *out = library_of(function as u64) as Handle;
    if is_function(function as u64) { 0 } else { 400 }
}

/// Returns what a kernel is declared as: its name, then its parameters.
fn declaration(handle: u64) -> Option<String> {
    let library = library_of(handle);
    with(|state| {
        let text = state.libraries.get((library.checked_sub(FIRST_LIBRARY)? / LIBRARY_BYTES) as usize)?;
        let at = (handle as u32 as u64 - library) / 0x10;
        text.split(".entry ").nth(at as usize).filter(|_| at > 0).map(str::to_owned)
    })
}

unsafe extern "C" fn name_of(out: *mut *const c_char, handle: Handle) -> u32 {
    let Some(text) = declaration(handle as u64) else { return NOT_FOUND };
    *out = CString::new(text.split('(').next().unwrap()).unwrap().into_raw();
    0
}

/// Each has 8 bytes.
unsafe extern "C" fn parameter(handle: Handle, index: usize, offset: *mut usize, bytes: *mut usize) -> u32 {
    begin("parameter", &[library_of(handle as u64)]);
    let n = declaration(handle as u64).map_or(0, |it| it.matches(".param").count());
    (*offset, *bytes) = (index * 8, 8);
    if index < n { 0 } else { 1 }
}

unsafe extern "C" fn library_global(address: *mut u64, bytes: *mut usize, library: Handle, name: *const c_char) -> u32 {
    begin("library_global", &[library as u64]);
    let found = variable(library as u64, current(), text_of(name));
    found.map_or(NOT_FOUND, |it| {
        (*address, *bytes) = (it, 64);
        0
    })
}

unsafe extern "C" fn library_managed(_: *mut u64, _: *mut usize, _: Handle, _: *const c_char) -> u32 {
    NOT_FOUND
}

unsafe extern "C" fn function_attribute(value: *mut i32, number: u32, handle: Handle) -> u32 {
    begin("function_attribute", &[library_of(handle as u64)]);
    *value = attribute(handle as u64, number);
    0
}

unsafe extern "C" fn kernel_attribute(value: *mut i32, number: u32, handle: Handle, _: i32) -> u32 {
    begin("kernel_attribute", &[library_of(handle as u64)]);
    *value = attribute(handle as u64, number);
    0
}

unsafe extern "C" fn set_function_attribute(handle: Handle, number: u32, value: i32) -> u32 {
    if value > MOST_SHARED {
        return 1;
    }
    set(handle as u64, number, value);
    0
}

unsafe extern "C" fn set_kernel_attribute(number: u32, value: i32, handle: Handle, _: i32) -> u32 {
    unsafe { set_function_attribute(handle, number, value) }
}

unsafe extern "C" fn device_attribute(value: *mut i32, number: i32, _: i32) -> u32 {
    *value = if number == 16 { SMS } else { 0 };
    0
}

/// Registers alone limit how many blocks run at once.
unsafe extern "C" fn occupancy(blocks: *mut i32, kernel: Handle, threads: i32, _: usize) -> u32 {
    OCCUPANCY_QUESTIONS.fetch_add(1, SeqCst);
    *blocks = REGISTERS_PER_SM / (attribute(kernel as u64, REGISTERS) * threads);
    0
}

/// How a launch groups its blocks, by its only attribute.
unsafe fn cluster_of(config: *const c_void) -> Option<[u32; 3]> {
    let words = config.cast::<u64>();
    let (attributes, n) = (words.add(5).read() as *const u32, words.add(6).read() as u32);
    assert!(n < 2 && words.add(4).read() == 0, "in the current context");
    (n == 1).then(|| {
        assert_eq!(attributes.read(), 4, "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION");
        attributes.add(2).cast::<[u32; 3]>().read()
    })
}

/// A cluster's blocks are on multiprocessors that all have room for as many of them, here on all of the GPU.
unsafe extern "C" fn active_clusters(clusters: *mut i32, kernel: Handle, config: *const c_void) -> u32 {
    let threads: i32 = config.cast::<[u32; 6]>().read()[3..].iter().product::<u32>() as i32;
    let of_kernel = [11, 12, 13].map(|it| attribute(kernel as u64, it) as u32);
    let cluster = cluster_of(config).unwrap_or(of_kernel);
    occupancy(clusters, kernel, threads, 0);
    *clusters = *clusters * SMS / cluster.iter().product::<u32>() as i32;
    answer("active_clusters")
}

/// Sets what a node of the program is.
pub fn set_node(node: u64, params: [u64; 9], cluster: [u32; 3]) {
    with(|state| state.nodes.insert(node, (params, cluster)));
}

/// Returns what a node is made of.
pub fn node(node: u64) -> [u64; 9] {
    with(|state| state.nodes[&node].0)
}

unsafe extern "C" fn node_attribute(node: Handle, attribute: u32, value: *mut c_void) -> u32 {
    assert_eq!(attribute, 4, "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION");
    let Some((_, cluster)) = with(|state| state.nodes.get(&(node as u64)).copied()) else { return 1 };
    value.cast::<[u32; 3]>().write(cluster);
    0
}

unsafe extern "C" fn node_params(node: Handle, params: *mut c_void) -> u32 {
    params.cast::<[u64; 9]>().write(self::node(node as u64));
    0
}

unsafe extern "C" fn set_node_params(node: Handle, params: *const c_void) -> u32 {
    let params = params.cast::<[u64; 9]>().read();
    with(|state| state.nodes.get_mut(&(node as u64)).unwrap().0 = params);
    0
}

unsafe extern "C" fn alloc(address: *mut u64, bytes: usize) -> u32 {
    let context = current();
    begin("alloc", &[]);
    told(243, c"cuMemAlloc_v2", [address as u64, bytes as u64].as_ptr(), || {
        *address = Vec::leak(vec![0u64; bytes / 8]).as_ptr() as u64;
        with(|state| state.blocks.push((context, *address)));
        0
    })
}

/// The handle of our stream in a context.
pub fn stream(context: u64) -> u64 {
    0x5000 + context
}

unsafe extern "C" fn create_stream(out: *mut Handle, flags: u32) -> u32 {
    assert_eq!(flags, 1, "it waits for no other");
    begin("create_stream", &[]);
    let is_of_programs = with(|state| !state.has_stream.insert(current())) && HAS_PROGRAMS.load(SeqCst);
    *out = if is_of_programs { programs_stream(current()) } else { stream(current()) } as Handle;
    0
}

/// The handle of the stream in a context in which programs run in kernels of their own.
pub fn programs_stream(context: u64) -> u64 {
    0x7000 + context
}

/// The handle of the stream in a context in which we read the GPU's timer.
pub fn timer_stream(context: u64) -> u64 {
    0x6000 + context
}

unsafe extern "C" fn create_urgent_stream(out: *mut Handle, flags: u32, priority: i32) -> u32 {
    assert!(flags == 1 && priority < 0, "it waits for no other, and others wait for it");
    begin("create_urgent_stream", &[]);
    *out = timer_stream(current()) as Handle;
    answer("create_urgent_stream")
}

/// What the GPU's timer is behind CLOCK_MONOTONIC.
pub static TIMER_BEHIND: AtomicI64 = AtomicI64::new(0);
/// While set, kernels that are launched wait for a place on the GPU.
pub static IS_BUSY: AtomicBool = AtomicBool::new(false);
/// Kernels that were launched, and have run.
pub static KERNELS_RUN: AtomicUsize = AtomicUsize::new(0);
/// Addresses that kernels which wait store the timer to.
static WAITING: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Lets kernels run that waited for a place on the GPU.
pub fn end_of_busyness() {
    IS_BUSY.store(false, SeqCst);
    WAITING.lock().unwrap().drain(..).for_each(store_timer);
}

fn store_timer(address: u64) {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    let timer = now.tv_sec * 1_000_000_000 + now.tv_nsec - TIMER_BEHIND.load(SeqCst);
    set_word(address - ELSEWHERE, 0, timer as u64);
    KERNELS_RUN.fetch_add(1, SeqCst);
}

/// A program that was launched in a kernel of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    pub context: u64,
    pub symbol: String,
    pub shape: [u32; 6],
    /// What its variable for the block's address had.
    pub block: u64,
}

/// Whether the second stream of a context is for programs.
pub static HAS_PROGRAMS: AtomicBool = AtomicBool::new(false);
/// Those that were, in their order.
pub static LAUNCHED: Mutex<Vec<Launched>> = Mutex::new(Vec::new());
/// What it is answered whether all have ended.
pub static PROGRAMS_ANSWER: AtomicU32 = AtomicU32::new(0);

fn launch_program(function: u64, shape: [u32; 6]) -> u32 {
    let context = current();
    let symbol = declaration(function).unwrap().split('(').next().unwrap().to_owned();
    let block = word(variable(library_of(function), context, "xpt_device").unwrap(), 0);
    if shape[3] > 1024 {
        return 1;
    }
    LAUNCHED.lock().unwrap().push(Launched { context, symbol, shape, block });
    0
}

unsafe extern "C" fn query_stream(in_stream: Handle) -> u32 {
    assert_eq!(in_stream as u64, programs_stream(current()));
    begin("query_stream", &[]);
    PROGRAMS_ANSWER.load(SeqCst)
}

/// Runs the kernels of ours that we launch: programs, and that which reads the timer.
unsafe extern "C" fn launch_kernel(
    function: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    in_stream: Handle,
    parameters: *mut *mut c_void,
    _: *mut *mut c_void,
) -> u32 {
    if in_stream as u64 == programs_stream(current()) {
        let shape = [grid_x, grid_y, grid_z, block_x, block_y, block_z];
        let mut params = LaunchParams { function: function as u64, ..cupti::launch_params(in_stream as u64) };
        let launch = || launch_program(function as u64, shape);
        return told(307, c"cuLaunchKernel", (&raw mut params).cast::<u64>(), launch);
    }
    assert_eq!(in_stream as u64, timer_stream(current()));
    assert_eq!((grid_x, grid_y, grid_z, block_x, block_y, block_z, shared), (1, 1, 1, 1, 1, 1, 0));
    begin("launch_kernel", &[library_of(function as u64)]);
    if answer("launch_kernel") != 0 {
        return answer("launch_kernel");
    }
    let mut params = LaunchParams { function: function as u64, ..cupti::launch_params(in_stream as u64) };
    told(307, c"cuLaunchKernel", (&raw mut params).cast::<u64>(), || {
        assert_eq!(params.function, function as u64, "it has no twin");
        let address = (*parameters).cast::<u64>().read();
        if IS_BUSY.load(SeqCst) {
            WAITING.lock().unwrap().push(address)
        } else {
            store_timer(address)
        }
        0
    })
}

/// What the GPU adds to addresses of the process's memory.
pub const ELSEWHERE: u64 = 1 << 50;

unsafe extern "C" fn register_memory(memory: *mut c_void, bytes: usize, flags: u32) -> u32 {
    begin("register_memory", &[]);
    assert_eq!((bytes % 4096, flags), (0, 3), "in all contexts, and mapped");
    let is_new = with(|state| state.registered.insert(memory as u64));
    if is_new { answer("register_memory") } else { 712 }
}

unsafe extern "C" fn registered_address(out: *mut u64, memory: *mut c_void, flags: u32) -> u32 {
    begin("registered_address", &[]);
    assert!(flags == 0 && with(|state| state.registered.contains(&(memory as u64))));
    *out = memory as u64 + ELSEWHERE;
    0
}

unsafe extern "C" fn copy_to_device(to: u64, from: *const c_void, bytes: usize, in_stream: Handle) -> u32 {
    assert_eq!(in_stream as u64, stream(current()));
    begin("copy_to_device", &[]);
    told(277, c"cuMemcpyHtoDAsync_v2", [to, from as u64, bytes as u64, in_stream as u64].as_ptr(), || {
        (to as *mut u8).copy_from(from.cast(), bytes);
        0
    })
}

unsafe extern "C" fn copy_to_host(to: *mut c_void, from: u64, bytes: usize, in_stream: Handle) -> u32 {
    assert_eq!(in_stream as u64, stream(current()));
    begin("copy_to_host", &[]);
    told(279, c"cuMemcpyDtoHAsync_v2", [to as u64, from, bytes as u64, in_stream as u64].as_ptr(), || {
        if COPIES_FAIL.load(SeqCst) {
            return 700;
        }
        to.cast::<u8>().copy_from(from as *const u8, bytes);
        0
    })
}

unsafe extern "C" fn wait_for_stream(in_stream: Handle) -> u32 {
    assert_eq!(in_stream as u64, stream(current()));
    begin("wait_for_stream", &[]);
    0
}
