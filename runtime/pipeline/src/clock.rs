//! Converts CUPTI's clock (CLOCK_REALTIME) to the tracer's (CLOCK_MONOTONIC).
//!
//! Linux slews both clocks together, so their difference is constant except for steps. Each
//! bracketed reading bounds it from both sides, and the bounds of consecutive readings are
//! intersected, so a badly preempted reading does no harm. A reading that contradicts them is a
//! step, which starts over.

use xputrace_wire::events::Realtime;
use xputrace_wire::record::Clock;

/// Start and end in CLOCK_MONOTONIC nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// The known bounds of REALTIME − MONOTONIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClockOffset {
    bounds: Option<(i64, i64)>,
    /// The middle between them; 0 before the first reading.
    middle: i64,
}

impl ClockOffset {
    /// Adds the newest reading; returns true if the wall clock was stepped since the previous one.
    pub(crate) fn update(&mut self, pair: &Clock) -> bool {
        let difference = |monotonic: u64| pair.realtime.0.wrapping_sub(monotonic) as i64;
        let (low, high) = (difference(pair.monotonic_after), difference(pair.monotonic_before));
        if low > high {
            return false;
        }
        let (old_low, old_high) = self.bounds.unwrap_or((low, high));
        let (both_low, both_high) = (low.max(old_low), high.min(old_high));
        let stepped = both_low > both_high;
        let (low, high) = if stepped { (low, high) } else { (both_low, both_high) };
        self.bounds = Some((low, high));
        self.middle = low.wrapping_add(high.wrapping_sub(low) / 2);
        stepped
    }

    /// Converts start and end to CLOCK_MONOTONIC; returns `None` if the times were not collected.
    /// Both are shifted together, so the duration stays CUPTI's own. Unchanged before the first
    /// reading.
    #[inline]
    pub(crate) fn span(self, start: Realtime, end: Realtime) -> Option<Span> {
        let collected = start.0 != 0 && end >= start;
        collected.then(|| Span { start: self.to_monotonic(start), end: self.to_monotonic(end) })
    }

    #[inline]
    fn to_monotonic(self, Realtime(nanos): Realtime) -> u64 {
        nanos.wrapping_sub(self.middle as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(before: u64, realtime: u64, after: u64) -> Clock {
        Clock { monotonic_before: before, realtime: Realtime(realtime), monotonic_after: after, ..Clock::default() }
    }

    #[test]
    fn a_wide_bracket_does_not_spoil_a_narrow_one() {
        let mut offset = ClockOffset::default();
        assert!(!offset.update(&pair(1_000, 51_010, 1_020)));
        assert_eq!(offset.to_monotonic(Realtime(60_000)), 10_000);
        assert!(!offset.update(&pair(2_000, 52_900, 3_000)));
        assert_eq!(offset.to_monotonic(Realtime(60_000)), 10_000);
    }

    #[test]
    fn a_step_starts_anew_and_is_reported() {
        let mut offset = ClockOffset::default();
        offset.update(&pair(1_000, 51_000, 1_000));
        assert!(offset.update(&pair(2_000, 1_052_000, 2_000)));
        assert_eq!(offset.to_monotonic(Realtime(1_060_000)), 10_000);
    }

    #[test]
    fn impossible_pairs_are_ignored() {
        let mut offset = ClockOffset::default();
        assert!(!offset.update(&pair(2_000, 1, 1_000)));
        assert_eq!(offset, ClockOffset::default());
    }
}
