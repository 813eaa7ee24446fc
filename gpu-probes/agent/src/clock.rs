//! The two clocks: CLOCK_MONOTONIC, used for all times here, and CUPTI's.

use xputrace_wire::events::Realtime;
use xputrace_wire::record::Clock;

/// Returns CLOCK_MONOTONIC in nanoseconds.
#[inline]
pub fn now() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Returns CUPTI's clock.
pub fn realtime_now() -> Realtime {
    Realtime(clock(libc::CLOCK_REALTIME))
}

#[inline]
fn clock(which: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live timespec; the call cannot fail for these clocks.
    unsafe { libc::clock_gettime(which, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Reads both clocks close together; keeps the tightest of a few attempts.
pub fn read_clocks() -> Clock {
    let read = || {
        let monotonic_before = now();
        let realtime = realtime_now();
        Clock { monotonic_before, realtime, monotonic_after: now(), ..Clock::default() }
    };
    let width = |it: &Clock| it.monotonic_after - it.monotonic_before;
    let mut best = read();
    for _ in 0..4 {
        let next = read();
        if width(&next) < width(&best) {
            best = next;
        }
    }
    best
}
