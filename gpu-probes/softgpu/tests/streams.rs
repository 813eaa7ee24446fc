//! Ordering within and between streams, and guarantees of copies. A separate process, so that no
//! tool is attached.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use xputrace_softgpu::{SoftLaunch, driver::*, runtime::*, softgpu_register_kernel};

const PTX: &CStr = c".version 7.0\n.target sm_52\n.visible .entry wait() { ret; }\n.visible .entry put(.param .u64 p, .param .u32 v) { ret; }\n";
const NOT_READY: i32 = 600;
const BLOCKING: u32 = 0;
const NON_BLOCKING: u32 = 1;

static GATE: AtomicBool = AtomicBool::new(false);

extern "C" fn wait(_: *const SoftLaunch, _: *mut *mut c_void) {
    while !GATE.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
}

extern "C" fn put(_: *const SoftLaunch, args: *mut *mut c_void) {
    // SAFETY: called with the arguments that the PTX declares.
    unsafe { *(*(*args).cast::<*mut u32>()) = *(*args.add(1)).cast::<u32>() };
}

/// All tests share the gate, so they take turns.
struct Turn {
    wait: usize,
    put: usize,
    _lock: MutexGuard<'static, ()>,
}

fn turn() -> Turn {
    static LOCK: Mutex<()> = Mutex::new(());
    let lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    GATE.store(false, Ordering::SeqCst);
    let (mut module, mut functions) = (0, [0; 2]);
    // SAFETY: the pointers are valid.
    unsafe {
        softgpu_register_kernel(c"wait".as_ptr(), wait);
        softgpu_register_kernel(c"put".as_ptr(), put);
        assert_eq!(cudaSetDevice(0), 0);
        assert_eq!(cuModuleLoadData(&mut module, PTX.as_ptr().cast()), 0);
        for (function, name) in functions.iter_mut().zip([c"wait", c"put"]) {
            assert_eq!(cuModuleGetFunction(function, module, name.as_ptr()), 0);
        }
    }
    Turn { wait: functions[0], put: functions[1], _lock: lock }
}

impl Turn {
    fn hold(&self, stream: usize) {
        launch(self.wait, stream, &mut []);
    }

    fn put(&self, stream: usize, mut address: usize, mut value: u32) {
        launch(self.put, stream, &mut [(&raw mut address).cast(), (&raw mut value).cast()]);
    }

    fn release(&self) {
        GATE.store(true, Ordering::SeqCst);
    }
}

fn launch(function: usize, stream: usize, args: &mut [*mut c_void]) {
    // SAFETY: the arguments are the kernel's.
    let result =
        unsafe { cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, args.as_mut_ptr(), std::ptr::null_mut()) };
    assert_eq!(result, 0);
}

fn stream(flags: u32) -> usize {
    let mut stream = 0;
    // SAFETY: the pointer is valid.
    assert_eq!(unsafe { cuStreamCreate(&mut stream, flags) }, 0);
    stream
}

fn event() -> usize {
    let mut event = 0;
    // SAFETY: the pointer is valid.
    assert_eq!(unsafe { cuEventCreate(&mut event, 0) }, 0);
    event
}

fn memory() -> usize {
    let mut address = 0;
    // SAFETY: the pointer is valid.
    assert_eq!(unsafe { cuMemAlloc_v2(&mut address, 4) }, 0);
    address
}

/// Reads a word through a non-blocking stream.
fn value(address: usize) -> u32 {
    let mut value = 0u32;
    assert_eq!(
        // SAFETY: the pointer is valid.
        unsafe { cuMemcpyDtoHAsync_v2(&raw mut value as usize, address, 4, stream(NON_BLOCKING)) },
        0
    );
    value
}

fn synchronize(stream: usize) {
    // SAFETY: no pointers.
    assert_eq!(unsafe { cuStreamSynchronize(stream) }, 0);
}

fn query(stream: usize) -> i32 {
    // SAFETY: no pointers.
    unsafe { cuStreamQuery(stream) }
}

#[test]
fn streams_run_side_by_side_and_each_in_order() {
    let turn = turn();
    let (held, free, word) = (stream(NON_BLOCKING), stream(NON_BLOCKING), memory());
    turn.hold(held);
    turn.put(held, word, 1);
    turn.put(free, word, 2);
    synchronize(free);
    assert_eq!((value(word), query(held)), (2, NOT_READY));
    turn.release();
    synchronize(held);
    assert_eq!((value(word), query(held)), (1, 0));
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_alone() {
    let turn = turn();
    let (blocking, other, apart) = (stream(BLOCKING), stream(BLOCKING), stream(NON_BLOCKING));
    turn.hold(blocking);
    turn.put(0, memory(), 1);
    turn.put(other, memory(), 1);
    turn.put(apart, memory(), 1);
    synchronize(apart);
    assert_eq!(
        (query(0), query(other)),
        (NOT_READY, NOT_READY),
        "the legacy stream waits, and blocking streams for it"
    );
    turn.release();
    synchronize(other);
    assert_eq!((query(0), query(blocking)), (0, 0));
}

#[test]
fn an_event_orders_two_streams() {
    let turn = turn();
    let (first, second, word, done) = (stream(NON_BLOCKING), stream(NON_BLOCKING), memory(), event());
    turn.hold(first);
    turn.put(first, word, 1);
    // SAFETY: valid handles.
    unsafe {
        assert_eq!(cuEventRecord(done, first), 0);
        assert_eq!(cuStreamWaitEvent(second, done, 0), 0);
        turn.put(second, word, 2);
        assert_eq!(cuEventQuery(done), NOT_READY);
        turn.release();
        assert_eq!(cuEventSynchronize(done), 0);
    }
    synchronize(second);
    assert_eq!(value(word), 2);
}

#[test]
fn every_way_to_record_an_event_orders_two_streams() {
    type Record = unsafe extern "C" fn(usize, usize, u32) -> i32;
    let ways: [Record; 4] =
        [cudaEventRecordWithFlags, cudaEventRecordWithFlags_ptsz, cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz];
    for record in ways {
        let turn = turn();
        let (first, second, word, done) = (stream(NON_BLOCKING), stream(NON_BLOCKING), memory(), event());
        turn.hold(first);
        turn.put(first, word, 1);
        // SAFETY: valid handles.
        unsafe {
            assert_eq!(record(done, first, 0), 0);
            assert_eq!((cuStreamWaitEvent(second, done, 0), cuEventQuery(done)), (0, NOT_READY));
            turn.put(second, word, 2);
            turn.release();
            assert_eq!(cudaThreadSynchronize(), 0);
        }
        assert_eq!((query(second), value(word)), (0, 2));
    }
}

#[test]
fn memory_comes_from_a_pool_in_every_default_stream() {
    type Allocate = unsafe extern "C" fn(*mut usize, usize, usize, usize) -> i32;
    let ways: [Allocate; 4] =
        [cudaMallocFromPoolAsync, cudaMallocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz];
    let _turn = turn();
    let mut pool = 0;
    // SAFETY: the pointer is valid.
    assert_eq!(unsafe { cuDeviceGetDefaultMemPool(&mut pool, 0) }, 0);
    for allocate in ways {
        let mut address = 0;
        // SAFETY: the pointer is valid.
        unsafe {
            assert_eq!(allocate(&mut address, 4, pool, 0), 0);
            assert_eq!((cuMemsetD8_v2(address, 1, 4), cuMemsetD8_v2(address, 1, 5)), (0, 1));
            assert_eq!(cuMemFree_v2(address), 0);
        }
    }
}

#[test]
fn pageable_memory_is_read_at_the_call_and_arguments_too() {
    let turn = turn();
    let (held, word, copied) = (stream(NON_BLOCKING), memory(), memory());
    turn.hold(held);
    let mut source = 7u32;
    assert_eq!(
        // SAFETY: the pointer is valid.
        unsafe { cuMemcpyHtoDAsync_v2(copied, &raw const source as usize, 4, held) },
        0
    );
    source += 1;
    turn.put(held, word, source);
    turn.release();
    synchronize(held);
    assert_eq!((value(copied), value(word)), (7, 8));
}

#[test]
fn memory_is_checked() {
    let _turn = turn();
    let word = memory();
    // SAFETY: no pointers that are read.
    unsafe {
        assert_eq!(cuMemsetD8_v2(word, 0, 5), 1, "beyond its end");
        assert_eq!(cuMemFree_v2(word + 1), 1);
        GATE.store(true, Ordering::SeqCst);
        assert_eq!(cuMemFree_v2(word), 0);
        assert_eq!(cuMemFree_v2(word), 1, "twice");
    }
}

#[test]
fn functions_are_found_by_their_plain_names() {
    let _turn = turn();
    let find = |name: &CStr, flags| {
        let (mut found, mut status) = (std::ptr::null(), -1);
        // SAFETY: the pointers are valid.
        let result = unsafe { cuGetProcAddress_v2(name.as_ptr(), &mut found, 13_000, flags, &mut status) };
        (result, status, found)
    };
    assert_eq!(find(c"cuMemAlloc", 0), (0, 0, cuMemAlloc_v2 as *const ()));
    assert_eq!(find(c"cuLaunchKernel", 0), (0, 0, cuLaunchKernel as *const ()));
    assert_eq!(find(c"cuLaunchKernel", 2), (0, 0, cuLaunchKernel_ptsz as *const ()));
    assert_eq!(find(c"cuNothing", 0), (500, 1, std::ptr::null()));
}
