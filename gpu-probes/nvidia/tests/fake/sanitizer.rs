//! A simulated Sanitizer API. The GPU's memory is this process's. A launch runs its kernel at once, as patches would: it leaves its
//! times where its words say.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use xputrace_nvidia::cupti::Handle;
use xputrace_nvidia::cupti::driver::{Code, Driver};
use xputrace_wire::device::kernel_words;
use xputrace_wire::times::{self, Times, record};

type Callback = unsafe extern "C" fn(*mut c_void, u32, u32, *const c_void);

const DRIVER_API: u32 = 1;
const RESOURCE: u32 = 3;
const LAUNCH: u32 = 5;
const GRAPHS: u32 = 10;

static CALLBACK: Mutex<Option<Callback>> = Mutex::new(None);
/// What functions get at launches of which nothing else is said, and what that is.
static DATA: Mutex<Option<HashMap<u64, u64>>> = Mutex::new(None);
thread_local!(static LAUNCH_DATA: Cell<Option<u64>> = const { Cell::new(None) });
/// Functions that were patched in.
pub static PATCHED: AtomicUsize = AtomicUsize::new(0);
/// While set, patching waits.
pub static WAITS: AtomicBool = AtomicBool::new(false);
/// While set, copies from the GPU fail.
pub static COPIES_FAIL: AtomicBool = AtomicBool::new(false);
/// While set, the driver loads no code.
pub static LOADS_WAIT: AtomicBool = AtomicBool::new(false);
/// By how much the GPU's clock is behind CLOCK_MONOTONIC.
pub static BEHIND: AtomicU64 = AtomicU64::new(0);
/// What calls of the driver answer that wait.
pub static ANSWER: AtomicU32 = AtomicU32::new(0);

pub fn reset() {
    *CALLBACK.lock().unwrap() = None;
    *DATA.lock().unwrap() = None;
    PATCHED.store(0, SeqCst);
    WAITS.store(false, SeqCst);
    COPIES_FAIL.store(false, SeqCst);
    ANSWER.store(0, SeqCst);
    LOADS_WAIT.store(false, SeqCst);
    BEHIND.store(0, SeqCst);
}

pub fn symbol(name: &CStr) -> *mut c_void {
    match name.to_bytes() {
        b"sanitizerSubscribe" => subscribe as *mut c_void,
        b"sanitizerUnsubscribe" => unsubscribe as *mut c_void,
        b"sanitizerAlloc" => alloc as *mut c_void,
        b"sanitizerGetStreamHandle" => stream_handle as *mut c_void,
        b"sanitizerMemset" => fill as *mut c_void,
        b"sanitizerMemcpyHostToDeviceAsync" | b"sanitizerMemcpyDeviceToHost" => copy as *mut c_void,
        b"sanitizerStreamSynchronize" => wait as *mut c_void,
        b"sanitizerPatchInstructions" => patch_instructions as *mut c_void,
        b"sanitizerSetCallbackData" => set_data as *mut c_void,
        b"sanitizerSetLaunchCallbackData" => set_launch_data as *mut c_void,
        // Those whose arguments don't matter.
        _ => accept as *mut c_void,
    }
}

pub fn driver() -> Driver {
    let code = Code {
        set_context: Some(set_context),
        exchange_capture_mode: Some(exchange_capture_mode),
        create_stream: Some(create_stream),
        wait_for_stream: Some(wait_for_stream),
        load_library: Some(load_library),
        library_kernel: Some(library_kernel),
        kernel_function: Some(kernel_function),
        register_memory: Some(register_memory),
        registered_address: Some(registered_address),
        create_urgent_stream: Some(create_urgent_stream),
        launch_kernel: Some(launch_kernel),
        ..Code::default()
    };
    Driver { code, ..Driver::default() }
}

extern "C" fn accept() -> u32 {
    0
}

unsafe extern "C" fn set_context(_: Handle) -> u32 {
    0
}

unsafe extern "C" fn exchange_capture_mode(_: *mut u32) -> u32 {
    0
}

unsafe extern "C" fn create_stream(out: *mut Handle, _: u32) -> u32 {
    *out = 0x5000 as Handle;
    0
}

unsafe extern "C" fn wait_for_stream(_: Handle) -> u32 {
    ANSWER.load(SeqCst)
}

type Pointer = *const c_void;

unsafe extern "C" fn load_library(
    out: *mut Handle,
    _: Pointer,
    _: Pointer,
    _: Pointer,
    _: u32,
    _: Pointer,
    _: Pointer,
    _: u32,
) -> u32 {
    while LOADS_WAIT.load(SeqCst) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    *out = 0x6000 as Handle;
    0
}

unsafe extern "C" fn library_kernel(out: *mut Handle, _: Handle, _: *const c_char) -> u32 {
    *out = 0x6100 as Handle;
    0
}

unsafe extern "C" fn kernel_function(out: *mut Handle, _: Handle) -> u32 {
    *out = 0x6200 as Handle;
    0
}

unsafe extern "C" fn register_memory(_: *mut c_void, _: usize, _: u32) -> u32 {
    0
}

unsafe extern "C" fn registered_address(out: *mut u64, memory: *mut c_void, _: u32) -> u32 {
    *out = memory as u64;
    0
}

unsafe extern "C" fn create_urgent_stream(out: *mut Handle, _: u32, _: i32) -> u32 {
    *out = 0x5001 as Handle;
    0
}

/// Runs the kernel that reads the GPU's clock.
unsafe extern "C" fn launch_kernel(
    function: Handle,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: Handle,
    parameters: *mut *mut c_void,
    _: *mut *mut c_void,
) -> u32 {
    assert_eq!(function as u64, 0x6200);
    let to = (*parameters).cast::<u64>().read() as *const AtomicU64;
    (*to).store(now(), SeqCst);
    0
}

unsafe extern "C" fn subscribe(out: *mut Handle, callback: Callback, _: *mut c_void) -> u32 {
    *CALLBACK.lock().unwrap() = Some(callback);
    *out = 1 as Handle;
    0
}

extern "C" fn unsubscribe(_: Handle) -> u32 {
    *CALLBACK.lock().unwrap() = None;
    0
}

unsafe extern "C" fn alloc(_: Handle, out: *mut *mut c_void, bytes: usize) -> u32 {
    // Not zero, as a GPU's memory.
    *out = Vec::leak(vec![u64::MAX; bytes.div_ceil(8)]).as_mut_ptr().cast();
    0
}

unsafe extern "C" fn stream_handle(_: Handle, stream: Handle, out: *mut Handle) -> u32 {
    *out = (stream as usize + 1) as Handle;
    0
}

unsafe extern "C" fn fill(at: *mut u8, byte: i32, bytes: usize, _: Handle) -> u32 {
    at.write_bytes(byte as u8, bytes);
    0
}

unsafe extern "C" fn copy(to: *mut u8, from: *const u8, bytes: usize, _: Handle) -> u32 {
    if COPIES_FAIL.load(SeqCst) {
        return 1;
    }
    to.copy_from(from, bytes);
    0
}

extern "C" fn wait(_: Handle) -> u32 {
    while WAITS.load(SeqCst) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    0
}

extern "C" fn patch_instructions(_: u32, _: Handle, _: *const c_char) -> u32 {
    PATCHED.fetch_add(1, SeqCst);
    0
}

extern "C" fn set_data(function: Handle, data: *const c_void) -> u32 {
    DATA.lock().unwrap().get_or_insert_default().insert(function as u64, data as u64);
    0
}

extern "C" fn set_launch_data(_: Handle, _: Handle, _: Handle, data: *const c_void) -> u32 {
    LAUNCH_DATA.set(Some(data as u64));
    0
}

fn fire(domain: u32, id: u32, data: &[u64]) {
    let callback = *CALLBACK.lock().unwrap();
    if let Some(callback) = callback {
        unsafe { callback(std::ptr::null_mut(), domain, id, data.as_ptr().cast()) };
    }
}

pub fn create_context(context: u64) {
    fire(RESOURCE, 3, &[context, 0]);
}

pub fn end_context(context: u64) {
    fire(RESOURCE, 4, &[context, 0]);
}

pub fn end_stream(context: u64, stream: u64) {
    fire(RESOURCE, 7, &[context, stream, stream + 1]);
}

pub fn load(context: u64, module: u64, cubin: &[u8]) {
    fire(RESOURCE, 9, &[context, module, cubin.len() as u64, cubin.as_ptr() as u64]);
}

pub fn unload(context: u64, module: u64) {
    fire(RESOURCE, 10, &[context, module, 0, 0]);
    // What functions of other modules get is not asked for afterwards.
    *DATA.lock().unwrap() = None;
}

/// A kernel that is launched: four blocks of 32 threads.
#[derive(Clone, Copy)]
pub struct Kernel {
    pub context: u64,
    pub module: u64,
    pub function: u64,
    pub name: &'static CStr,
}

impl Kernel {
    fn launch_data(self, grid_id: u64) -> Vec<u64> {
        let Kernel { context, module, function, name } = self;
        let three = |x: u64| [x | 1 << 32, 1];
        let ([g, gz], [b, bz]) = (three(4), three(32));
        // Three 32-bit numbers each: the second one's first is beside the first one's last.
        let shape = [g, gz | (b & 0xffff_ffff) << 32, b >> 32 | bz << 32, 1 | 1 << 32, 1];
        [&[context, 7, 8, module, function, name.as_ptr() as u64][..], &shape, &[grid_id, 0x77]].concat()
    }

    /// Launches the kernel, which runs at once; returns its words' address, 0 if its patches did nothing.
    pub fn launch(self, grid_id: u64) -> u64 {
        let words = self.begin(grid_id);
        run(words, grid_id);
        words
    }

    /// Launches it by a call of the driver with these parameters; returns its words' address.
    pub fn call(self, grid_id: u64, stream: u64, values: &[u64]) -> u64 {
        let pointers: Vec<*const u64> = values.iter().map(std::ptr::from_ref).collect();
        let params = [self.function, 0, 0, 0, 0, stream, pointers.as_ptr() as u64, 0];
        self.call_with(grid_id, stream, &params)
    }

    /// Likewise, of the call's parameters.
    pub fn call_with(self, grid_id: u64, stream: u64, params: &[u64; 8]) -> u64 {
        self.call_while(grid_id, stream, params, |words| words)
    }

    /// Likewise; looks at its words before the call returns.
    pub fn call_while<T>(self, grid_id: u64, stream: u64, params: &[u64; 8], look: impl Fn(u64) -> T) -> T {
        let call = |site: u64| fire(DRIVER_API, 307, &[site, 0, params.as_ptr() as u64, 0, 0, 0]);
        call(0);
        let seen = look(self.begin_in(grid_id, stream));
        call(1);
        seen
    }

    /// Likewise, but it has not run yet.
    pub fn begin(self, grid_id: u64) -> u64 {
        self.begin_in(grid_id, 7)
    }

    fn begin_in(self, grid_id: u64, stream: u64) -> u64 {
        LAUNCH_DATA.set(None);
        let mut data = self.launch_data(grid_id);
        (data[1], data[2]) = (stream, stream + 1);
        fire(LAUNCH, 1, &data);
        fire(LAUNCH, 3, &data);
        LAUNCH_DATA.get().unwrap_or_else(|| of_function(self.function))
    }

    fn node(self, grid_id: u64) {
        let data = self.launch_data(grid_id);
        fire(GRAPHS, 4, &[&[0x9000, 1, 0x9100 + grid_id, 0][..], &data].concat());
    }
}

/// Launches a graph with these kernels as nodes, and runs them.
pub fn launch_graph(nodes: &[(Kernel, u64)]) {
    begin_graph(nodes, 0);
    nodes.iter().for_each(|(kernel, grid_id)| run(of_function(kernel.function), *grid_id));
}

/// Likewise, but they have not run; the call returns this.
pub fn begin_graph(nodes: &[(Kernel, u64)], result: u32) {
    let data = [nodes[0].0.context, 7, 8, 0x9000, 0];
    let call = |site: u64| fire(DRIVER_API, 514, &[site, 0, 0, std::ptr::from_ref(&result) as u64, 0, 0]);
    call(0);
    fire(GRAPHS, 6, &data);
    nodes.iter().for_each(|(kernel, grid_id)| kernel.node(*grid_id));
    fire(GRAPHS, 7, &data);
    call(1);
}

fn of_function(function: u64) -> u64 {
    DATA.lock().unwrap().get_or_insert_default().get(&function).copied().unwrap_or(0)
}

pub fn word(address: u64, at: usize) -> u64 {
    unsafe { *((address + at as u64) as *const u64) }
}

/// The GPU's clock.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64 - BEHIND.load(SeqCst)
}

/// Runs a kernel whose patches have these words: it starts 100 ms after its launch, and takes 50 ns.
pub fn run(words: u64, grid_id: u64) {
    let times = if words == 0 { 0 } else { word(words, kernel_words::TIMES) };
    if times == 0 {
        return;
    }
    let is_node = word(words, kernel_words::IS_NODE) != 0;
    let groups = if is_node { times::NODES } else { times::LAUNCHES };
    assert_eq!(word(words, kernel_words::GROUPS), times + groups as u64);
    assert_eq!(word(times, groups + times::group_of(grid_id) * times::group::BYTES), 0, "it was filled with 0");
    let start = now() + 100_000_000;
    let bytes = |number| Times { grid_id, is_node, start, end: start + 50 }.record(number);
    unsafe {
        let head = times as *mut u64;
        let at = times as usize + times::RECORDS + *head as usize % times::MOST_RECORDS * record::BYTES;
        (at as *mut [u8; record::BYTES]).write(bytes(*head));
        *head += 1;
    }
}
