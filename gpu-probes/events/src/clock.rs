//! Times of different clocks are different types.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Nanoseconds of CLOCK_REALTIME, the clock of CUPTI's records. Only the tracer can convert them to
/// CLOCK_MONOTONIC. Times that are plain integers are nanoseconds of that clock. 0 means "not
/// collected".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Realtime(pub u64);

impl Realtime {
    /// Returns the nanoseconds from `start` to this time; 0 if this is earlier.
    pub fn since(self, start: Realtime) -> u64 {
        self.0.saturating_sub(start.0)
    }
}
