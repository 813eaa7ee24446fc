//! When a process's device memory is read.

use std::time::{Duration, Instant};
use xputrace_wire::device::CopyExtent;

/// How often all of it is.
const INTERVAL: Duration = Duration::from_millis(100);
/// How often its ring is, while it has records.
const RING_INTERVAL: Duration = Duration::from_millis(10);

/// What was asked of a collector.
#[derive(Debug, Default)]
pub struct Reading {
    /// The number of the last request.
    n_asked: u64,
    /// What that was for, until its answer is read.
    open: Option<CopyExtent>,
    /// When it was made, and the last one for all memory.
    asked: Option<Instant>,
    asked_whole: Option<Instant>,
    /// Whether there were records in the ring when it was last read: more may follow.
    pub has_records: bool,
}

impl Reading {
    /// Returns what can be read now; `answered` gives the number of the last request that is done.
    pub fn answered(&mut self, answered: impl FnOnce() -> u64) -> Option<CopyExtent> {
        self.open.take_if(|_| answered() == self.n_asked)
    }

    /// Returns what to ask for next, with the number of that request, if it is time.
    pub fn next(&mut self, now: Instant) -> Option<(u64, CopyExtent)> {
        let is_due = |last: Option<Instant>, after| last.is_none_or(|it| now.saturating_duration_since(it) >= after);
        let extent = match self.open {
            Some(_) => return None,
            None if is_due(self.asked_whole, INTERVAL) => CopyExtent::Whole,
            None if self.has_records && is_due(self.asked, RING_INTERVAL) => CopyExtent::Ring,
            None => return None,
        };
        self.n_asked += 1;
        self.open = Some(extent);
        self.asked = Some(now);
        if extent == CopyExtent::Whole {
            self.asked_whole = Some(now);
        }
        Some((self.n_asked, extent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_read_more_often_while_it_has_records() {
        let (start, mut reading) = (Instant::now(), Reading::default());
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(reading.answered(|| 0), None, "nothing was asked for");
        assert_eq!(reading.next(at(0)), Some((1, CopyExtent::Whole)));
        assert_eq!((reading.answered(|| 0), reading.next(at(500))), (None, None), "one at a time");
        assert_eq!(reading.answered(|| 1), Some(CopyExtent::Whole));
        assert_eq!(reading.next(at(50)), None);
        reading.has_records = true;
        assert_eq!(reading.next(at(50)), Some((2, CopyExtent::Ring)));
        assert_eq!((reading.answered(|| 2), reading.next(at(55))), (Some(CopyExtent::Ring), None));
        assert_eq!(reading.next(at(60)), Some((3, CopyExtent::Ring)));
        assert_eq!(reading.answered(|| 3), Some(CopyExtent::Ring));
        assert_eq!(reading.next(at(100)), Some((4, CopyExtent::Whole)));
    }
}
