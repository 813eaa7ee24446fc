//! Which threads are inside a run, so that its memory can be given back once none is.
//!
//! A callback may begin just before the run ends, and be held up for any time. So each thread notes in a slot of its
//! own which run it is inside of, and then looks whether that run is closed. At a run's end, the control thread closes
//! it, and then looks at all slots. Both write before they read, which processors may swap. The barrier that prevents
//! it is not on the launch path: the control thread asks Linux to run one on every thread (membarrier(2)).

use super::Agent;
use super::clock::now;
use super::state::this_thread::{SLOT_UNKNOWN, ThisThread, this_thread};
use std::hint::cold_path;
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, compiler_fence};
use std::time::{Duration, Instant};

/// Threads with a slot of their own; any further ones share a counter.
const SLOTS: usize = 512;
/// How long to wait for threads that are inside. Nothing that they do there takes that long.
const LEAVES_WITHIN: Duration = Duration::from_secs(1);
/// How long a flush waits for threads to be seen outside, which they are most of the time.
const STEPS_OUT_WITHIN: Duration = Duration::from_millis(1);
/// How long to wait for launch calls to return, which block where a stream is full.
const RETURNS_WITHIN: Duration = Duration::from_millis(500);

/// A thread's slot, in a cache line of its own.
#[repr(align(64))]
struct Slot {
    is_taken: AtomicBool,
    /// The run that the thread is inside of; null outside.
    run: AtomicPtr<Agent>,
    /// The run that is told of the launch call which the thread is in; null outside.
    call: AtomicPtr<Agent>,
    /// When the last of those began; CLOCK_MONOTONIC nanoseconds, or [`UNRECORDED`].
    call_began: AtomicU64,
    /// Until then, the thread is known to have written the records of all that it was inside for; CLOCK_MONOTONIC
    /// nanoseconds.
    settled_until: AtomicU64,
}

static ALL: [Slot; SLOTS] = [const {
    Slot {
        is_taken: AtomicBool::new(false),
        run: AtomicPtr::new(null_mut()),
        call: AtomicPtr::new(null_mut()),
        call_began: AtomicU64::new(0),
        settled_until: AtomicU64::new(0),
    }
}; SLOTS];

/// The number in [`ThisThread::slot`] of a thread that has none.
const NONE: usize = usize::MAX - 1;

thread_local! {
    static GUARD: Guard = const { Guard };
}

/// Frees the slot when the thread ends.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(slot) = ALL.get(this_thread().slot.replace(NONE)) {
            slot.call.store(null_mut(), Ordering::Release);
            slot.is_taken.store(false, Ordering::Release);
        }
    }
}

#[inline]
fn slot_of(thread: &ThisThread) -> Option<&'static Slot> {
    match thread.slot.get() {
        SLOT_UNKNOWN => take_slot(thread),
        number => ALL.get(number),
    }
}

#[cold]
fn take_slot(thread: &ThisThread) -> Option<&'static Slot> {
    // A thread that ends already would not free it.
    let ends = GUARD.try_with(|_| ()).is_err();
    let free = || ALL.iter().position(|it| !it.is_taken.swap(true, Ordering::AcqRel));
    let number = if ends { None } else { free() };
    thread.slot.set(number.unwrap_or(NONE));
    number.and_then(|it| ALL.get(it))
}

/// In place of the time when a launch call began that is not recorded: nobody waits for its record.
pub(crate) const UNRECORDED: u64 = u64::MAX;

/// Notes that the thread begins a launch call, which looks only then whether it is recorded.
#[inline]
pub(crate) fn begin_call(thread: &ThisThread, agent: &Agent, began: u64) {
    if let Some(slot) = slot_of(thread) {
        slot.call_began.store(began, Ordering::Relaxed);
        slot.call.store(std::ptr::from_ref(agent).cast_mut(), Ordering::Release);
        compiler_fence(Ordering::SeqCst);
    }
}

/// Notes that the launch call has returned.
#[inline]
pub(crate) fn end_call(thread: &ThisThread) {
    if let Some(slot) = slot_of(thread) {
        slot.call.store(null_mut(), Ordering::Release);
    }
}

/// Keeps a run's memory while it lives.
pub struct Inside<'a> {
    how: How<'a>,
}

enum How<'a> {
    Slot(&'static Slot),
    Counted(&'a Agent),
    /// Further out in this thread there is another.
    Again,
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        match self.how {
            How::Slot(slot) => slot.run.store(null_mut(), Ordering::Release),
            How::Counted(agent) => {
                cold_path();
                agent.life.visitors.fetch_sub(1, Ordering::Release);
            }
            How::Again => cold_path(),
        }
    }
}

impl Agent {
    /// Keeps this run's memory until the result is dropped; `None` if it may have been given back.
    #[inline]
    pub fn enter(&self, thread: &ThisThread) -> Option<Inside<'_>> {
        let Some(slot) = slot_of(thread) else { return self.enter_counted() };
        let this = std::ptr::from_ref(self).cast_mut();
        let before = slot.run.load(Ordering::Relaxed);
        if !before.is_null() {
            cold_path();
            return std::ptr::eq(before, this).then_some(Inside { how: How::Again });
        }
        slot.run.store(this, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let inside = Inside { how: How::Slot(slot) };
        if self.life.is_closed.load(Ordering::Acquire) {
            cold_path();
            return None;
        }
        Some(inside)
    }

    #[cold]
    fn enter_counted(&self) -> Option<Inside<'_>> {
        self.life.visitors.fetch_add(1, Ordering::SeqCst);
        let inside = Inside { how: How::Counted(self) };
        (!self.life.is_closed.load(Ordering::SeqCst)).then_some(inside)
    }

    fn is_empty(&self) -> bool {
        let this = std::ptr::from_ref(self).cast_mut();
        let is_here = |it: &Slot| std::ptr::eq(it.run.load(Ordering::Acquire), this);
        self.life.visitors.load(Ordering::Acquire) == 0 && !ALL.iter().any(is_here)
    }

    /// Returns a time up to `now`; whatever ended until then and is recorded by the thread that did it has been written. A
    /// thread reads the clock and writes the record while it is inside: so one that is seen outside has written all that
    /// ended before `now`. One that was held up inside holds the time back.
    pub(crate) fn settled_until(&self, now: u64) -> u64 {
        let this = std::ptr::from_ref(self).cast_mut();
        let give_up = Instant::now() + STEPS_OUT_WITHIN;
        let settled = |it: &Slot| {
            while std::ptr::eq(it.run.load(Ordering::Acquire), this) {
                if Instant::now() >= give_up {
                    return it.settled_until.load(Ordering::Relaxed).min(now);
                }
                std::thread::yield_now();
            }
            it.settled_until.store(now, Ordering::Relaxed);
            now
        };
        ALL.iter().map(settled).min().unwrap_or(now)
    }

    /// Returns the slots of threads that are in a launch call which this run is told of, recorded or not.
    fn calls_under_way(&self) -> impl Iterator<Item = &'static Slot> {
        ALL.iter().filter(|it| std::ptr::eq(it.call.load(Ordering::Acquire), self))
    }

    /// Whether any thread is in such a call.
    pub fn is_any_thread_in_call(&self) -> bool {
        self.calls_under_way().next().is_some()
    }

    /// Returns when the oldest of the launch calls began that are recorded and have not returned.
    pub(crate) fn oldest_call_began(&self) -> Option<u64> {
        let began = self.calls_under_way().map(|it| it.call_began.load(Ordering::Relaxed));
        began.min().filter(|it| *it != UNRECORDED)
    }

    /// Waits for none of the launch calls that are under way: their return may not be reported.
    pub(crate) fn forget_calls(&self) {
        let this = std::ptr::from_ref(self).cast_mut();
        for it in &ALL {
            let _ = it.call.compare_exchange(this, null_mut(), Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Waits a while until the launch calls that are recorded have returned. No other begins any more.
    pub(crate) fn wait_for_calls(&self) {
        self.wait_for_calls_begun_by(u64::MAX, RETURNS_WITHIN, || false);
    }

    /// Waits until the launch calls that are under way have returned, for a flush period at most. Others may begin meanwhile.
    /// Nobody who opens or closes the window waits for that.
    pub fn wait_for_calls_under_way(&self) {
        self.wait_for_calls_begun_by(now(), self.flush_period, || self.is_window_to_change());
    }

    /// Waits until the recorded launch calls have returned that began by a time (CLOCK_MONOTONIC nanoseconds): for `within` at
    /// most, until `gives_up` says so, or until the program exits.
    fn wait_for_calls_begun_by(&self, time: u64, within: Duration, gives_up: impl Fn() -> bool) {
        let until = Instant::now() + within;
        if barrier_on_all_threads().is_err() {
            return;
        }
        while self.oldest_call_began().is_some_and(|it| it <= time) {
            if Instant::now() >= until || self.is_exiting() || gives_up() {
                return;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Gives back this run's memory once no thread is inside. Called when the run is over, by the only thread of ours
    /// that is left of it.
    pub(crate) fn give_back(&self) {
        self.life.is_closed.store(true, Ordering::SeqCst);
        // Without the barrier, the memory stays; it has no pages behind it.
        if barrier_on_all_threads().is_err() {
            return;
        }
        let until = Instant::now() + LEAVES_WITHIN;
        while !self.is_empty() {
            if Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: nobody is inside, and nobody comes in any more.
        unsafe {
            self.memory.empty();
            self.tables.empty();
            self.code.empty();
        }
        self.backend.give_back();
    }
}

/// Runs a full barrier on each thread of this process.
fn barrier_on_all_threads() -> io::Result<()> {
    /// Source: `include/uapi/linux/membarrier.h`.
    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
    for command in [REGISTER_PRIVATE_EXPEDITED, PRIVATE_EXPEDITED] {
        // SAFETY: numbers only.
        if unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
