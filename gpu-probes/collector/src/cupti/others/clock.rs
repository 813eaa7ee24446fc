//! The clock of CUPTI's times, once another user has replaced it.
//!
//! `cuptiActivityRegisterTimestampCallback` makes CUPTI use a function of the program for all times,
//! from then on and for every user; it can't be taken back (torch.profiler registers the processor's
//! time stamp counter). So our records' times are converted: the function and CLOCK_REALTIME are read
//! together when it is registered and with each buffer, and times in between lie on a line. The line
//! begins at a recent reading, since the wall clock's rate is adjusted now and then.

use super::calls::TimestampFunction;
use std::sync::{Mutex, MutexGuard, PoisonError};
use xputrace_wire::events::Realtime;

/// How long a reading is used: a line begins between one and two of these ago.
const RENEWED_AFTER_NANOS: u64 = 5_000_000_000;

static CLOCK: Mutex<Option<Clock>> = Mutex::new(None);

#[derive(Clone, Copy)]
struct Clock {
    function: TimestampFunction,
    /// The last two readings that lines begin at.
    readings: [Reading; 2],
}

/// Times of two clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reading {
    theirs: u64,
    realtime: u64,
}

/// Converts the other user's times; made anew for each buffer.
#[derive(Clone, Copy, Debug)]
pub(in crate::cupti) struct Scale {
    first: Reading,
    last: Reading,
}

/// Notes that CUPTI's times come from this function now.
pub(super) fn changed(function: TimestampFunction) {
    let readings = [read(function); 2];
    *clock() = Some(Clock { function, readings });
}

/// Notes that CUPTI has its own clock again.
pub(super) fn forget() {
    *clock() = None;
}

/// Returns how to convert CUPTI's times now; `None` if they need no conversion.
pub(in crate::cupti) fn scale() -> Option<Scale> {
    let mut clock = clock();
    let clock = clock.as_mut()?;
    let last = read(clock.function);
    let [first, newer] = clock.readings;
    if last.realtime.saturating_sub(newer.realtime) > RENEWED_AFTER_NANOS {
        clock.readings = [newer, last];
    }
    Some(Scale { first, last })
}

fn clock() -> MutexGuard<'static, Option<Clock>> {
    CLOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads both clocks; keeps the tightest of a few attempts.
fn read(function: TimestampFunction) -> Reading {
    let once = || {
        let before = realtime();
        // SAFETY: what CUPTI itself calls for each of its times, on any thread.
        let theirs = unsafe { function() };
        let after = realtime();
        (after.saturating_sub(before), Reading { theirs, realtime: before.midpoint(after) })
    };
    (0..8).map(|_| once()).min_by_key(|it| it.0).map_or(Reading { theirs: 0, realtime: 0 }, |it| it.1)
}

fn realtime() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Scale {
    /// Returns a time of CUPTI's in CLOCK_REALTIME. One that is nearer to CLOCK_REALTIME than to the
    /// function's times is returned as it is; 0 stays 0: it was not collected.
    pub(in crate::cupti) fn realtime(&self, time: Realtime) -> Realtime {
        let Scale { first, last } = *self;
        let elapsed = last.theirs.saturating_sub(first.theirs);
        if time.0 == 0 || elapsed == 0 || time.0.abs_diff(last.realtime) < time.0.abs_diff(last.theirs) {
            return time;
        }
        let nanos = i128::from(last.realtime) - i128::from(first.realtime);
        let distance = i128::from(time.0) - i128::from(last.theirs);
        Realtime((i128::from(last.realtime) + distance * nanos / i128::from(elapsed)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_another_clock_lie_between_its_readings() {
        let first = Reading { theirs: 1_000, realtime: 5_000_000_000 };
        let last = Reading { theirs: 3_001_000, realtime: 5_001_000_000 };
        let scale = Scale { first, last };
        let converted = |it| scale.realtime(Realtime(it)).0;
        assert_eq!(converted(1_000), 5_000_000_000);
        assert_eq!(converted(1_501_000), 5_000_500_000);
        assert_eq!(converted(1_501_300) - converted(1_501_000), 100, "three ticks are a nanosecond");
        assert_eq!((converted(0), converted(5_000_900_000)), (0, 5_000_900_000));
    }

    #[test]
    fn a_clock_without_readings_changes_nothing() {
        let same = Reading { theirs: 7, realtime: 9 };
        assert_eq!(Scale { first: same, last: same }.realtime(Realtime(8)), Realtime(8));
    }
}
