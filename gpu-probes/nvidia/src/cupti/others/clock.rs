//! The clock of CUPTI's times, once another user has replaced it.
//!
//! `cuptiActivityRegisterTimestampCallback` makes CUPTI use a function of the program for all times,
//! from then on and for every user; it can't be taken back (torch.profiler registers the processor's
//! time stamp counter). So our records' times are converted: the function and CLOCK_REALTIME are read
//! together when it is registered and with each buffer, and times in between lie on a line. The line
//! begins at a recent reading, since the wall clock's rate is adjusted now and then.

use crate::cupti::functions::TimestampFunction;
use std::sync::{Mutex, MutexGuard, PoisonError};
use xputrace_wire::events::Realtime;

/// How long a reading is used: a line begins between one and two of these ago.
const RENEWED_AFTER_NANOS: u64 = 5_000_000_000;

/// CUPTI's own clock.
pub(in crate::cupti) static CLOCK: Replaceable = Replaceable::new();

/// A clock that another user may replace by a function of its own.
pub(in crate::cupti) struct Replaceable(Mutex<Option<Clock>>);

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

impl Replaceable {
    pub(super) const fn new() -> Self {
        Replaceable(Mutex::new(None))
    }

    /// Notes that its times come from this function now.
    pub(super) fn changed(&self, function: TimestampFunction) {
        let readings = [read(function); 2];
        *self.clock() = Some(Clock { function, readings });
    }

    /// Notes that it is as it was.
    pub(super) fn forget(&self) {
        *self.clock() = None;
    }

    /// Returns the function that gives its times, if it was replaced.
    pub(super) fn function(&self) -> Option<TimestampFunction> {
        self.clock().map(|it| it.function)
    }

    /// Returns how to convert its times now; `None` if they need no conversion.
    pub(in crate::cupti) fn scale(&self) -> Option<Scale> {
        let mut clock = self.clock();
        let clock = clock.as_mut()?;
        let last = read(clock.function);
        let [first, newer] = clock.readings;
        if last.realtime.saturating_sub(newer.realtime) > RENEWED_AFTER_NANOS {
            clock.readings = [newer, last];
        }
        Some(Scale { first, last })
    }

    fn clock(&self) -> MutexGuard<'_, Option<Clock>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
    /// Returns a time of CLOCK_REALTIME in the other user's; 0 stays 0.
    pub(super) fn theirs(&self, time: Realtime) -> u64 {
        let Scale { first, last } = *self;
        let nanos = last.realtime.saturating_sub(first.realtime);
        if time.0 == 0 || nanos == 0 {
            return time.0;
        }
        let elapsed = i128::from(last.theirs) - i128::from(first.theirs);
        let distance = i128::from(time.0) - i128::from(last.realtime);
        (i128::from(last.theirs) + distance * elapsed / i128::from(nanos)) as u64
    }

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
        let theirs = |it| scale.theirs(Realtime(it));
        assert_eq!((theirs(5_000_500_000), theirs(5_001_000_100), theirs(0)), (1_501_000, 3_001_300, 0));
    }

    #[test]
    fn a_clock_without_readings_changes_nothing() {
        let same = Reading { theirs: 7, realtime: 9 };
        assert_eq!(Scale { first: same, last: same }.realtime(Realtime(8)), Realtime(8));
    }
}
