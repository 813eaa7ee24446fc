//! CUPTI's activity records: which kinds are enabled, the buffers that hold them, and when buffers
//! are delivered.
//!
//! A record reserves its place in a buffer when its work is submitted, and is filled in when the
//! work completes. A plain flush delivers buffers in order and stops at the first one with
//! unfinished work: on a real GPU, one long kernel holds back even later buffers. A forced flush
//! delivers everything; work that was unfinished has end = 0 and is not reported again.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::{self, kind};
use crate::callback;
use crate::device;
use crate::faults::faults;

/// `CUpti_BuffersCallbackRequestFunc`.
pub(crate) type RequestFunction = unsafe extern "C" fn(buffer: *mut *mut u8, size: *mut usize, max_records: *mut usize);
/// `CUpti_BuffersCallbackCompleteFunc`.
pub(crate) type CompleteFunction =
    unsafe extern "C" fn(context: usize, stream: u32, buffer: *mut u8, size: usize, valid_size: usize);

/// `CUpti_TimestampCallbackFunc`.
pub(crate) type TimestampFunction = unsafe extern "C" fn() -> u64;

const KINDS: usize = 64;

static ENABLED: [AtomicBool; KINDS] = [const { AtomicBool::new(false) }; KINDS];
static REQUEST: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static COMPLETE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static TIMESTAMP: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static DROPPED: AtomicU64 = AtomicU64::new(0);
static TELLS_LATENCIES: AtomicBool = AtomicBool::new(false);
static SYSTEM_THREAD_IDS: AtomicBool = AtomicBool::new(false);
static GRID: AtomicU64 = AtomicU64::new(0);
static BUFFERS: Mutex<Buffers> = Mutex::new(Buffers { list: VecDeque::new(), next: 0 });
static WORKER: Worker =
    Worker { queue: Mutex::new(Queue { due: VecDeque::new(), busy: false, started: false }), changed: Condvar::new() };

/// A reserved place in a buffer for work that has not finished.
pub(crate) struct Ticket {
    buffer: u64,
    offset: usize,
    start_at: usize,
    bytes: Vec<u8>,
}

/// A record with a duration. `START_AT` is the offset of its start time; the end time follows it.
pub(crate) trait Timed: Copy {
    const START_AT: usize;
}

impl Timed for abi::Kernel10 {
    const START_AT: usize = std::mem::offset_of!(abi::Kernel10, start);
}
impl Timed for abi::Memcpy6 {
    const START_AT: usize = std::mem::offset_of!(abi::Memcpy6, start);
}
impl Timed for abi::MemcpyPtoP4 {
    const START_AT: usize = std::mem::offset_of!(abi::MemcpyPtoP4, start);
}
impl Timed for abi::Memset4 {
    const START_AT: usize = std::mem::offset_of!(abi::Memset4, start);
}
impl Timed for abi::GraphTrace2 {
    const START_AT: usize = std::mem::offset_of!(abi::GraphTrace2, start);
}

/// Reads the clock of CUPTI's times: CLOCK_REALTIME in nanoseconds, or the function that a tool registered.
pub(crate) fn stamp() -> u64 {
    let function = TIMESTAMP.load(Ordering::Acquire);
    if function.is_null() {
        return now();
    }
    // SAFETY: only `use_timestamps_of` stores it, from a function of this very type.
    let function: TimestampFunction = unsafe { std::mem::transmute(function) };
    // SAFETY: the tool's contract.
    unsafe { function() }
}

/// Takes times from this function from now on, or from CLOCK_REALTIME.
pub(crate) fn use_timestamps_of(function: Option<TimestampFunction>) {
    TIMESTAMP.store(function.map_or(null_mut(), |it| it as *mut c_void), Ordering::Release);
}

pub(crate) fn tell_latencies(on: bool) {
    TELLS_LATENCIES.store(on, Ordering::Relaxed);
}

/// Returns the time for a kernel that is being queued or submitted; 0 unless the tool asked for such times.
pub(crate) fn latency_stamp() -> u64 {
    if TELLS_LATENCIES.load(Ordering::Relaxed) { stamp() } else { 0 }
}

/// Reads CLOCK_REALTIME in nanoseconds.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the write.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub(crate) fn enabled(kind: u32) -> bool {
    ENABLED.get(kind as usize).is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Enables or disables a kind; returns false if there is no such kind.
pub(crate) fn enable(kind: u32, on: bool) -> bool {
    if on {
        callback::on_kind_enabled();
    }
    ENABLED.get(kind as usize).map(|flag| flag.store(on, Ordering::Relaxed)).is_some()
}

/// Returns the kind under which kernels are recorded, if any is enabled.
pub(crate) fn kernel_kind() -> Option<u32> {
    [kind::CONCURRENT_KERNEL, kind::KERNEL].into_iter().find(|&kind| enabled(kind))
}

/// Returns the next kernel's grid id.
pub(crate) fn next_grid_id() -> i64 {
    GRID.fetch_add(1, Ordering::Relaxed) as i64 + 1
}

/// Whether a kind is enabled, for programs that wait for a tool.
#[unsafe(no_mangle)]
pub extern "C" fn softgpu_records_kind(kind: u32) -> bool {
    enabled(kind)
}

/// Forgets the functions for buffers.
pub(crate) fn unregister() {
    REQUEST.store(null_mut(), Ordering::Release);
    COMPLETE.store(null_mut(), Ordering::Release);
}

pub(crate) fn register(request: RequestFunction, complete: CompleteFunction) {
    REQUEST.store(request as *mut c_void, Ordering::Release);
    COMPLETE.store(complete as *mut c_void, Ordering::Release);
}

/// Reserves a place for work that is being submitted.
pub(crate) fn begin<R: Timed>(record: &R) -> Option<Ticket> {
    let bytes = bytes_of(record).to_vec();
    let (buffer, offset) = buffers().reserve(&bytes, true)?;
    Some(Ticket { buffer, offset, start_at: R::START_AT, bytes })
}

/// Records the start time, which a forced flush then shows.
pub(crate) fn started(ticket: &mut Option<Ticket>, start: u64) {
    let Some(ticket) = ticket else { return };
    write_time(&mut ticket.bytes, ticket.start_at, start);
    buffers().write(ticket, false);
}

/// Writes the finished record into its place.
pub(crate) fn finish(ticket: Option<Ticket>, start: u64, end: u64) {
    let Some(mut ticket) = ticket else { return };
    let (start, end) = if faults().hides_times() { (0, 0) } else { (start, end) };
    let kind = u32::from_ne_bytes([ticket.bytes[0], ticket.bytes[1], ticket.bytes[2], ticket.bytes[3]]);
    write_time(&mut ticket.bytes, ticket.start_at, start);
    write_time(&mut ticket.bytes, ticket.start_at + 8, end);
    if matches!(kind, kind::KERNEL | kind::CONCURRENT_KERNEL) {
        write_time(&mut ticket.bytes, ticket.start_at + 16, end);
    }
    let full = {
        let mut buffers = buffers();
        buffers.write(&ticket, true);
        buffers.take_full()
    };
    WORKER.add(full);
}

/// Writes a complete record, if its kind is enabled.
pub(crate) fn emit<R: Copy>(kind: u32, record: &R) {
    if enabled(kind) {
        buffers().reserve(bytes_of(record), false);
    }
}

/// Runs something of the driver's that CUPTI calls overhead, and records it.
pub(crate) fn with_overhead<R>(overhead_kind: u32, run: impl FnOnce() -> R) -> R {
    const OBJECT_THREAD: u32 = 2;
    let start = enabled(kind::OVERHEAD).then(stamp);
    let result = run();
    if let Some(start) = start {
        let (process_id, thread_id) = (std::process::id(), thread_id());
        let record = abi::Overhead3 {
            kind: kind::OVERHEAD,
            overhead_kind,
            object_kind: OBJECT_THREAD,
            process_id,
            thread_id,
            padding: 0,
            start,
            end: stamp(),
            correlation_id: callback::correlation(),
            reserved: 0,
            data: std::ptr::null(),
        };
        emit(kind::OVERHEAD, &record);
    }
    result
}

/// Delivers complete buffers, or all buffers if `forced`.
pub(crate) fn flush(forced: bool) {
    if device::is_forked_child() {
        // After fork the buffers belong to the parent, and their lock may have been held at the
        // time.
        return;
    }
    let ready = buffers().take_ready(forced);
    if faults().late_ms != 0 {
        WORKER.add(ready);
        return;
    }
    WORKER.wait_idle();
    ready.iter().for_each(Filled::deliver);
}

/// Returns the number of records dropped since the last call.
pub(crate) fn take_dropped() -> u64 {
    DROPPED.swap(0, Ordering::Relaxed)
}

pub(crate) fn use_system_thread_ids(on: bool) {
    SYSTEM_THREAD_IDS.store(on, Ordering::Relaxed);
}

pub(crate) fn uses_system_thread_ids() -> bool {
    SYSTEM_THREAD_IDS.load(Ordering::Relaxed)
}

/// Returns the thread id for API records: `pthread_self` cut to 32 bits, or Linux's tid if the tool
/// asked for it.
pub(crate) fn thread_id() -> u32 {
    if uses_system_thread_ids() {
        // SAFETY: no arguments, cannot fail.
        return unsafe { libc::gettid() } as u32;
    }
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::pthread_self() as u32 }
}

fn bytes_of<R: Copy>(record: &R) -> &[u8] {
    // SAFETY: records are plain data, their padding spelled out as fields.
    unsafe { std::slice::from_raw_parts((&raw const *record).cast(), size_of::<R>()) }
}

fn write_time(bytes: &mut [u8], at: usize, time: u64) {
    bytes[at..at + 8].copy_from_slice(&time.to_ne_bytes());
}

fn buffers() -> MutexGuard<'static, Buffers> {
    BUFFERS.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Buffers {
    list: VecDeque<Buffer>,
    next: u64,
}

/// Memory lent by the tool while records are written to it.
struct Buffer {
    number: u64,
    memory: *mut u8,
    size: usize,
    used: usize,
    room: usize,
    unfinished: usize,
    full: bool,
}

// SAFETY: the memory was handed to this library by the tool until it is delivered.
unsafe impl Send for Buffer {}

impl Buffers {
    /// Reserves room and writes `bytes` there. Returns `None` and counts a drop if there is no
    /// room.
    fn reserve(&mut self, bytes: &[u8], unfinished: bool) -> Option<(u64, usize)> {
        let place = if faults().drops_record() { None } else { self.place(bytes.len()) };
        let Some((number, offset, memory)) = place else {
            DROPPED.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        // SAFETY: `place` found that many bytes free at `memory`.
        unsafe { memory.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        if unfinished && let Some(last) = self.list.back_mut() {
            last.unfinished += 1;
        }
        Some((number, offset))
    }

    fn place(&mut self, len: usize) -> Option<(u64, usize, *mut u8)> {
        let fits = |buffer: &Buffer| !buffer.full && buffer.size - buffer.used >= len && buffer.room > 0;
        if !self.list.back().is_some_and(fits) {
            if let Some(last) = self.list.back_mut() {
                last.full = true;
            }
            let buffer = self.request().filter(fits)?;
            self.list.push_back(buffer);
        }
        let last = self.list.back_mut()?;
        let offset = last.used;
        last.used += len;
        last.room -= 1;
        // SAFETY: `offset + len` is within `size`.
        Some((last.number, offset, unsafe { last.memory.add(offset) }))
    }

    fn request(&mut self) -> Option<Buffer> {
        let function = REQUEST.load(Ordering::Acquire);
        if function.is_null() {
            return None;
        }
        // SAFETY: only `register` stores it, from a function of this very type.
        let function: RequestFunction = unsafe { std::mem::transmute(function) };
        let (mut memory, mut size, mut max_records) = (null_mut(), 0, 0);
        // SAFETY: the tool's contract.
        unsafe { function(&mut memory, &mut size, &mut max_records) };
        if memory.is_null() {
            return None;
        }
        self.next += 1;
        let room = if max_records == 0 { usize::MAX } else { max_records };
        Some(Buffer { number: self.next, memory, size, used: 0, room, unfinished: 0, full: false })
    }

    /// Does nothing if the buffer was already delivered by a forced flush.
    fn write(&mut self, ticket: &Ticket, done: bool) {
        let Some(buffer) = self.list.iter_mut().find(|buffer| buffer.number == ticket.buffer) else {
            return;
        };
        // SAFETY: `reserve` gave this place to the ticket alone, and the buffer was not handed over.
        unsafe { buffer.memory.add(ticket.offset).copy_from_nonoverlapping(ticket.bytes.as_ptr(), ticket.bytes.len()) };
        buffer.unfinished -= usize::from(done);
    }

    fn take_full(&mut self) -> Vec<Filled> {
        self.take(|buffer| buffer.full && buffer.unfinished == 0)
    }

    fn take_ready(&mut self, forced: bool) -> Vec<Filled> {
        self.take(|buffer| forced || buffer.unfinished == 0)
    }

    fn take(&mut self, ready: impl Fn(&Buffer) -> bool) -> Vec<Filled> {
        let count = self.list.iter().take_while(|buffer| ready(buffer)).count();
        let context = device::primary_handle(0);
        let filled = |b: Buffer| Filled { context, memory: b.memory, size: b.size, used: b.used };
        self.list.drain(..count).map(filled).collect()
    }
}

/// A buffer ready to be returned to the tool.
struct Filled {
    context: usize,
    memory: *mut u8,
    size: usize,
    used: usize,
}

// SAFETY: as for `Buffer`.
unsafe impl Send for Filled {}

impl Filled {
    fn deliver(&self) {
        let function = COMPLETE.load(Ordering::Acquire);
        if function.is_null() {
            return;
        }
        // SAFETY: only `register` stores it, from a function of this very type.
        let function: CompleteFunction = unsafe { std::mem::transmute(function) };
        // SAFETY: the tool's contract; the memory is its own and no longer used here.
        unsafe { function(self.context, 0, self.memory, self.size, self.used) };
    }
}

/// The thread that delivers full (and late) buffers.
struct Worker {
    queue: Mutex<Queue>,
    changed: Condvar,
}

struct Queue {
    due: VecDeque<(Instant, Filled)>,
    busy: bool,
    started: bool,
}

impl Worker {
    fn add(&'static self, filled: Vec<Filled>) {
        if filled.is_empty() {
            return;
        }
        let when = Instant::now() + Duration::from_millis(faults().late_ms);
        let mut queue = self.lock();
        queue.due.extend(filled.into_iter().map(|filled| (when, filled)));
        if !queue.started {
            queue.started = crate::stream::spawn("softgpu-cupti", move || self.run());
        }
        self.changed.notify_all();
    }

    fn run(&self) {
        let mut queue = self.lock();
        loop {
            queue = match queue.due.front().map(|(when, _)| when.saturating_duration_since(Instant::now())) {
                None => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(early) if !early.is_zero() => {
                    self.changed.wait_timeout(queue, early).unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => self.deliver_first(queue),
            };
        }
    }

    /// Delivers without holding the lock: the tool may flush from its callback.
    fn deliver_first<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        let first = queue.due.pop_front();
        queue.busy = true;
        drop(queue);
        if let Some((_, filled)) = first {
            filled.deliver();
        }
        let mut queue = self.lock();
        queue.busy = false;
        self.changed.notify_all();
        queue
    }

    fn wait_idle(&self) {
        let mut queue = self.lock();
        while queue.busy || !queue.due.is_empty() {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
