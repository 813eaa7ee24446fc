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
use crate::contexts;
use crate::faults::faults;
use crate::forks;
use crate::users::{MOST_USERS, UserId};

/// `CUpti_BuffersCallbackRequestFunc`.
pub(crate) type RequestFunction = unsafe extern "C" fn(buffer: *mut *mut u8, size: *mut usize, max_records: *mut usize);
/// `CUpti_BuffersCallbackCompleteFunc`.
pub(crate) type CompleteFunction =
    unsafe extern "C" fn(context: usize, stream: u32, buffer: *mut u8, size: usize, valid_size: usize);

/// `CUpti_BuffersCallbackRequestFunc_v2`; the last argument is a structure that begins with its size.
pub(crate) type ScopedRequestFunction =
    unsafe extern "C" fn(buffer: *mut *mut u8, size: *mut usize, max_records: *mut usize, info: *const usize);
/// `CUpti_BuffersCallbackCompleteFunc_v2`.
pub(crate) type ScopedCompleteFunction =
    unsafe extern "C" fn(buffer: *mut u8, size: usize, valid_size: usize, info: *const CompleteInfo);

/// `CUpti_BufferCallbackCompleteInfo`.
#[repr(C)]
pub struct CompleteInfo {
    struct_size: usize,
    thread_id: u64,
    layouts: *const c_void,
    n_layouts: usize,
}

/// Functions that provide and take buffers.
#[derive(Clone, Copy)]
pub(crate) enum BufferFunctions {
    Global(RequestFunction, CompleteFunction),
    Scoped(ScopedRequestFunction, ScopedCompleteFunction),
}

/// `CUpti_TimestampCallbackFunc`.
pub(crate) type TimestampFunction = unsafe extern "C" fn() -> u64;

const KINDS: usize = 64;

static USERS: [User; MOST_USERS] = [const { User::new() }; MOST_USERS];
static TELLS_LATENCIES: AtomicBool = AtomicBool::new(false);
static SYSTEM_THREAD_IDS: AtomicBool = AtomicBool::new(false);
static GRID: AtomicU64 = AtomicU64::new(0);
static WORKER: Worker =
    Worker { queue: Mutex::new(Queue { due: VecDeque::new(), busy: false, started: false }), changed: Condvar::new() };

/// What one user of CUPTI records.
struct User {
    enabled: [AtomicBool; KINDS],
    dropped: AtomicU64,
    /// The function that gives the times of its records; null for CLOCK_REALTIME.
    clock: AtomicPtr<c_void>,
    functions: Mutex<Option<BufferFunctions>>,
    buffers: Mutex<Buffers>,
}

impl User {
    const fn new() -> Self {
        Self {
            enabled: [const { AtomicBool::new(false) }; KINDS],
            dropped: AtomicU64::new(0),
            clock: AtomicPtr::new(null_mut()),
            functions: Mutex::new(None),
            buffers: Mutex::new(Buffers { list: VecDeque::new(), next: 0 }),
        }
    }

    /// Reads its own clock, if it has one.
    fn time(&self) -> Option<u64> {
        let function = self.clock.load(Ordering::Acquire);
        // SAFETY: only `use_timestamps_of` stores it, from a function of this very type; null is none.
        let function = unsafe { std::mem::transmute::<*mut c_void, Option<TimestampFunction>>(function) };
        // SAFETY: the tool's contract.
        function.map(|it| unsafe { it() })
    }

    fn records(&self, kind: u32) -> bool {
        self.enabled.get(kind as usize).is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// Whether it gets records of this kind. Kernels have two, and one record for both.
    fn gets(&self, kind: u32) -> bool {
        match kind {
            kind::KERNEL | kind::CONCURRENT_KERNEL => {
                self.records(kind::KERNEL) || self.records(kind::CONCURRENT_KERNEL)
            }
            kind => self.records(kind),
        }
    }

    fn functions(&self) -> Option<BufferFunctions> {
        *self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn buffers(&self) -> MutexGuard<'_, Buffers> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves room for a record and writes it there. Returns `None` and counts a drop if there is no room.
    fn reserve(&'static self, id: UserId, bytes: &[u8], unfinished: bool) -> Option<BufferPlace> {
        let place = match faults().drops_record() {
            true => None,
            false => self.buffers().reserve(bytes, unfinished, || self.functions().and_then(BufferFunctions::request)),
        };
        if place.is_none() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        place.map(|(buffer, offset)| BufferPlace { id, buffer, offset })
    }

    fn filled(&'static self, buffers: Vec<Buffer>) -> Vec<Filled> {
        let context = contexts::primary_handle(0);
        let filled = |b: Buffer| Filled { user: self, context, memory: b.memory, size: b.size, used: b.used };
        buffers.into_iter().map(filled).collect()
    }
}

impl BufferFunctions {
    /// Requests a buffer: its address, its size, and how many records it may have.
    fn request(self) -> Option<(*mut u8, usize, usize)> {
        let (mut memory, mut size, mut max_records) = (null_mut(), 0, 0);
        // SAFETY: the tool's contract.
        unsafe {
            match self {
                Self::Global(request, _) => request(&mut memory, &mut size, &mut max_records),
                Self::Scoped(request, _) => {
                    request(&mut memory, &mut size, &mut max_records, &size_of::<usize>());
                }
            }
        }
        (!memory.is_null()).then_some((memory, size, max_records))
    }
}

/// A place in a buffer.
struct BufferPlace {
    id: UserId,
    buffer: u64,
    offset: usize,
}

impl BufferPlace {
    fn user(&self) -> &'static User {
        &USERS[self.id.index()]
    }
}

/// Reserved places, one for each user, for work that has not finished.
pub(crate) struct Ticket {
    places: Vec<BufferPlace>,
    start_at: usize,
    bytes: Vec<u8>,
}

/// A record with a duration. `START_AT` is the offset of its start time; the end time follows it.
pub(crate) trait Timed: Copy {
    const START_AT: usize;
}

macro_rules! timed {
    ($($Record:ident),*) => {$(
        impl Timed for abi::$Record {
            const START_AT: usize = std::mem::offset_of!(abi::$Record, start);
        }
    )*};
}

timed!(Kernel10, Memcpy6, MemcpyPtoP4, Memset4, GraphTrace2);

/// A moment on each user's clock.
#[derive(Clone, Copy, Default)]
pub(crate) struct Moment([u64; MOST_USERS]);

impl Moment {
    pub(crate) fn now() -> Self {
        let realtime = now();
        Self(std::array::from_fn(|at| USERS[at].time().unwrap_or(realtime)))
    }

    /// Returns this moment, at least a nanosecond after another.
    fn after(self, other: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at].max(other.0[at] + 1)))
    }
}

/// Reads the clock of a user's times.
pub(crate) fn stamp(user: UserId) -> u64 {
    USERS[user.index()].time().unwrap_or_else(now)
}

/// Takes a user's times from this function from now on, or from CLOCK_REALTIME.
pub(crate) fn use_timestamps_of(user: UserId, function: Option<TimestampFunction>) {
    USERS[user.index()].clock.store(function.map_or(null_mut(), |it| it as *mut c_void), Ordering::Release);
}

pub(crate) fn tell_latencies(on: bool) {
    TELLS_LATENCIES.store(on, Ordering::Relaxed);
}

/// Returns the time for a kernel that is being queued or submitted; 0 unless the tool asked for such times.
pub(crate) fn latency_stamp() -> u64 {
    if TELLS_LATENCIES.load(Ordering::Relaxed) { stamp(UserId::GLOBAL) } else { 0 }
}

/// Reads CLOCK_REALTIME in nanoseconds.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the write.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Whether any user records a kind.
pub(crate) fn enabled(kind: u32) -> bool {
    USERS.iter().any(|it| it.records(kind))
}

/// Enables or disables a kind for a user; returns false if there is no such kind.
pub(crate) fn enable(user: UserId, kind: u32, on: bool) -> bool {
    if on {
        callback::on_kind_enabled();
    }
    USERS[user.index()].enabled.get(kind as usize).map(|flag| flag.store(on, Ordering::Relaxed)).is_some()
}

/// Whether a user records anything.
pub(crate) fn records_anything(user: UserId) -> bool {
    (0..KINDS as u32).any(|it| USERS[user.index()].records(it))
}

/// Returns the kind under which kernels are recorded, if any is enabled.
pub(crate) fn kernel_kind() -> Option<u32> {
    [kind::CONCURRENT_KERNEL, kind::KERNEL].into_iter().find(|&kind| enabled(kind))
}

/// Returns the next kernel's grid id.
pub(crate) fn next_grid_id() -> u64 {
    GRID.fetch_add(1, Ordering::Relaxed) + 1
}

/// Whether a kind is enabled, for programs that wait for a tool.
#[unsafe(no_mangle)]
pub extern "C" fn softgpu_records_kind(kind: u32) -> bool {
    enabled(kind)
}

/// Stops recording for a user, and forgets its functions for buffers.
pub(crate) fn forget(user: UserId) {
    (0..KINDS as u32).for_each(|kind| _ = enable(user, kind, false));
    use_timestamps_of(user, None);
    let user = &USERS[user.index()];
    *user.functions.lock().unwrap_or_else(PoisonError::into_inner) = None;
    user.buffers().list.clear();
}

pub(crate) fn register(user: UserId, functions: BufferFunctions) {
    *USERS[user.index()].functions.lock().unwrap_or_else(PoisonError::into_inner) = Some(functions);
}

/// Reserves places for work that is being submitted.
pub(crate) fn begin<R: Timed>(record: &R) -> Option<Ticket> {
    let bytes = bytes_of(record).to_vec();
    let places: Vec<BufferPlace> =
        users_of(kind_of(&bytes)).filter_map(|(id, it)| it.reserve(id, &bytes, true)).collect();
    (!places.is_empty()).then_some(Ticket { places, start_at: R::START_AT, bytes })
}

fn users_of(kind: u32) -> impl Iterator<Item = (UserId, &'static User)> {
    UserId::all().zip(&USERS).filter(move |it| it.1.gets(kind))
}

fn kind_of(record: &[u8]) -> u32 {
    u32::from_ne_bytes([record[0], record[1], record[2], record[3]])
}

/// Records the start time, which a forced flush then shows.
pub(crate) fn started(ticket: &mut Option<Ticket>, start: Moment) {
    if let Some(ticket) = ticket {
        ticket.write(start, None);
    }
}

/// Writes the finished record into its places.
pub(crate) fn finish(ticket: Option<Ticket>, start: Moment, end: Moment) {
    let Some(mut ticket) = ticket else { return };
    match faults().hides_times() {
        true => ticket.write(Moment::default(), Some(Moment::default())),
        false => ticket.write(start, Some(end.after(start))),
    }
    for place in &ticket.places {
        let full = place.user().buffers().take_full();
        WORKER.add(place.user().filled(full));
    }
}

/// Writes a complete record for each user that enabled its kind.
pub(crate) fn emit<R: Copy>(kind: u32, record: &R) {
    users_of(kind).for_each(|(id, it)| _ = it.reserve(id, bytes_of(record), false));
}

/// Runs something of the driver's that CUPTI calls overhead, and records it.
pub(crate) fn with_overhead<R>(overhead_kind: u32, run: impl FnOnce() -> R) -> R {
    const OBJECT_THREAD: u32 = 2;
    let start = enabled(kind::OVERHEAD).then(|| stamp(UserId::GLOBAL));
    let result = run();
    if let Some(start) = start {
        let (process_id, thread_id) = (std::process::id(), thread_id());
        let record = abi::Overhead3 {
            kind: kind::OVERHEAD,
            overhead_kind,
            object_kind: OBJECT_THREAD,
            process_id,
            thread_id,
            start,
            end: stamp(UserId::GLOBAL),
            correlation_id: callback::correlation(),
            ..abi::Overhead3::default()
        };
        emit(kind::OVERHEAD, &record);
    }
    result
}

/// Delivers complete buffers of all users, or all buffers if `forced`.
pub(crate) fn flush(forced: bool) {
    if forks::is_forked_child() {
        // After fork the buffers belong to the parent, and their lock may have been held at the
        // time.
        return;
    }
    let ready_of = |it: &'static User| it.filled(it.buffers().take_ready(forced));
    let ready: Vec<Filled> = USERS.iter().flat_map(ready_of).collect();
    if faults().late_ms != 0 {
        WORKER.add(ready);
        return;
    }
    WORKER.wait_idle();
    ready.iter().for_each(Filled::deliver);
}

/// Returns the number of a user's records dropped since the last call.
pub(crate) fn take_dropped(user: UserId) -> u64 {
    USERS[user.index()].dropped.swap(0, Ordering::Relaxed)
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

impl Ticket {
    /// Writes the record with these times into its places; with an end, it is done.
    fn write(&mut self, start: Moment, end: Option<Moment>) {
        let is_kernel = matches!(kind_of(&self.bytes), kind::KERNEL | kind::CONCURRENT_KERNEL);
        for place in &self.places {
            let at = place.id.index();
            write_time(&mut self.bytes, self.start_at, start.0[at]);
            if let Some(end) = end {
                write_time(&mut self.bytes, self.start_at + 8, end.0[at]);
                if is_kernel {
                    write_time(&mut self.bytes, self.start_at + 16, end.0[at]);
                }
            }
            place.user().buffers().write(place, &self.bytes, end.is_some());
        }
    }
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
    /// Reserves room and writes `bytes` there; `request` provides another buffer.
    fn reserve(
        &mut self,
        bytes: &[u8],
        unfinished: bool,
        request: impl FnOnce() -> Option<(*mut u8, usize, usize)>,
    ) -> Option<(u64, usize)> {
        let (number, offset, memory) = self.place(bytes.len(), request)?;
        // SAFETY: `place` found that many bytes free at `memory`.
        unsafe { memory.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        if unfinished && let Some(last) = self.list.back_mut() {
            last.unfinished += 1;
        }
        Some((number, offset))
    }

    fn place(
        &mut self,
        len: usize,
        request: impl FnOnce() -> Option<(*mut u8, usize, usize)>,
    ) -> Option<(u64, usize, *mut u8)> {
        let fits = |buffer: &Buffer| !buffer.full && buffer.size - buffer.used >= len && buffer.room > 0;
        if !self.list.back().is_some_and(fits) {
            if let Some(last) = self.list.back_mut() {
                last.full = true;
            }
            let (memory, size, max_records) = request()?;
            self.next += 1;
            let room = if max_records == 0 { usize::MAX } else { max_records };
            let buffer = Buffer { number: self.next, memory, size, used: 0, room, unfinished: 0, full: false };
            self.list.push_back(Some(buffer).filter(fits)?);
        }
        let last = self.list.back_mut()?;
        let offset = last.used;
        last.used += len;
        last.room -= 1;
        // SAFETY: `offset + len` is within `size`.
        Some((last.number, offset, unsafe { last.memory.add(offset) }))
    }

    /// Does nothing if the buffer was already delivered by a forced flush.
    fn write(&mut self, place: &BufferPlace, bytes: &[u8], done: bool) {
        let Some(buffer) = self.list.iter_mut().find(|buffer| buffer.number == place.buffer) else {
            return;
        };
        // SAFETY: `reserve` gave this place to the ticket alone, and the buffer was not handed over.
        unsafe { buffer.memory.add(place.offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        buffer.unfinished -= usize::from(done);
    }

    fn take_full(&mut self) -> Vec<Buffer> {
        self.take(|buffer| buffer.full && buffer.unfinished == 0)
    }

    fn take_ready(&mut self, forced: bool) -> Vec<Buffer> {
        self.take(|buffer| forced || buffer.unfinished == 0)
    }

    fn take(&mut self, ready: impl Fn(&Buffer) -> bool) -> Vec<Buffer> {
        let count = self.list.iter().take_while(|buffer| ready(buffer)).count();
        self.list.drain(..count).collect()
    }
}

/// A buffer ready to be returned to the tool.
struct Filled {
    user: &'static User,
    context: usize,
    memory: *mut u8,
    size: usize,
    used: usize,
}

// SAFETY: as for `Buffer`.
unsafe impl Send for Filled {}

impl Filled {
    fn deliver(&self) {
        let &Filled { user, context, memory, size, used } = self;
        // SAFETY: the tool's contract; the memory is its own and no longer used here.
        unsafe {
            match user.functions() {
                Some(BufferFunctions::Global(_, complete)) => complete(context, 0, memory, size, used),
                Some(BufferFunctions::Scoped(_, complete)) => complete(memory, size, used, &CompleteInfo::here()),
                None => {}
            }
        }
    }
}

impl CompleteInfo {
    fn here() -> Self {
        let struct_size = size_of::<Self>();
        Self { struct_size, thread_id: u64::from(thread_id()), layouts: std::ptr::null(), n_layouts: 0 }
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
            queue.started = crate::threads::spawn("softgpu-cupti", move || self.run());
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
