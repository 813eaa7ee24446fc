//! `k.idle`: how long nothing of its process had run on a GPU when an activity began.
//!
//! Activities are handled in order of their end, so one that began earlier may be handled later. That is why all that have
//! arrived are kept as spans, by their start. When an activity is handled, no launch is outstanding that began before it
//! ended (the watermark), so everything that ran before it has arrived.

use crate::clock::Span;
use crate::joined::Joined;
use crate::previous::Previous;
use std::collections::VecDeque;
use xputrace_model::context::{GpuContext, word};
use xputrace_model::plan::Activity;

/// Limits per process; the numbers come from the target.
const MOST_DEVICES: usize = 64;
const MOST_SPANS: usize = 1 << 17;

/// Times without a break in which a GPU ran something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Busy {
    start: u64,
    end: u64,
    /// Whether what began it was handled: another activity may have begun at the same time.
    is_told: bool,
}

/// What is known of a GPU.
#[derive(Debug, Default)]
struct OfDevice {
    number: u32,
    /// Disjoint and ascending. Older ones than the one before the last handled activity are gone.
    busy: VecDeque<Busy>,
    /// When the last launch began of those whose activities were handled.
    launched: u64,
}

/// The GPUs of a process.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    devices: Vec<OfDevice>,
}

impl Idle {
    /// Takes an activity that has arrived.
    pub(crate) fn arrived(&mut self, device: u32, span: Span) {
        let known = self.devices.iter().position(|it| it.number == device);
        let at = match known {
            Some(at) => at,
            None if self.devices.len() == MOST_DEVICES => return,
            None => {
                self.devices.push(OfDevice { number: device, ..OfDevice::default() });
                self.devices.len() - 1
            }
        };
        self.devices[at].add(span);
    }

    /// Fills the words of an activity that is handled; where something may be missing before it, nothing is said.
    pub(crate) fn fill(&mut self, ctx: &mut GpuContext, event: &Joined<'_>, previous: &Previous) {
        let launched = event.launch.map(|it| it.start);
        // A graph begins with one of its nodes, which may be handled, too.
        let is_whole = event.activity.activity() == Activity::Graph;
        let idle = self.before(event.activity.device(), (event.span, is_whole), launched, previous);
        ctx[word::IDLE] = idle.unwrap_or(0);
        ctx[word::HAS_IDLE] = idle.is_some().into();
    }

    fn before(
        &mut self,
        device: u32,
        (span, is_whole): (Span, bool),
        launched: Option<u64>,
        previous: &Previous,
    ) -> Option<u64> {
        let of_device = self.devices.iter_mut().find(|it| it.number == device)?;
        let idle = of_device.idle_before(span, is_whole);
        let launched = launched?;
        let last = of_device.launched;
        of_device.launched = last.max(launched);
        idle.filter(|_| !previous.is_missing(last, launched))
    }
}

impl OfDevice {
    fn add(&mut self, span: Span) {
        let mut new = Busy { start: span.start, end: span.end, is_told: false };
        let from = self.busy.partition_point(|it| it.end < new.start);
        let to = self.busy.partition_point(|it| it.start <= new.end);
        for it in self.busy.range(from..to.max(from)) {
            if it.start <= new.start {
                (new.start, new.is_told) = (it.start, it.is_told);
            }
            new.end = new.end.max(it.end);
        }
        if from < to {
            self.busy.drain(from + 1..to);
            self.busy[from] = new;
        } else {
            self.busy.insert(from, new);
        }
        if self.busy.len() > MOST_SPANS {
            self.busy.pop_front();
        }
    }

    /// Returns how long nothing had run when this began; `None` if that is not known. Of several that begin at the same
    /// time, the first one that is handled has the time, and so has a whole graph.
    fn idle_before(&mut self, span: Span, is_whole: bool) -> Option<u64> {
        let at = self.busy.partition_point(|it| it.start <= span.start).checked_sub(1)?;
        // What is handled later ends later.
        self.busy.drain(..at.saturating_sub(1));
        let at = at.min(1);
        let busy = &mut self.busy[at];
        if busy.start != span.start || busy.is_told && !is_whole {
            return Some(0);
        }
        busy.is_told |= !is_whole;
        let start = busy.start;
        Some(start - self.busy.get(at.checked_sub(1)?)?.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of activities, given as launch, start and end, in order of their end, all of which have arrived.
    fn idle(activities: &[(u64, u64, u64)]) -> Vec<Option<u64>> {
        let (mut idle, previous) = (Idle::default(), Previous::default());
        let span = |it: &(u64, u64, u64)| Span { start: it.1, end: it.2 };
        activities.iter().rev().for_each(|it| idle.arrived(3, span(it)));
        let mut sorted = activities.to_vec();
        sorted.sort_by_key(|it| it.2);
        sorted.iter().map(|it| idle.before(3, (span(it), false), Some(it.0), &previous)).collect()
    }

    #[test]
    fn it_is_the_time_since_the_last_end_of_all() {
        let unknown = None;
        assert_eq!(idle(&[(1, 10, 20), (2, 30, 40), (3, 40, 50)]), [unknown, Some(10), Some(0)]);
        // The one that ends last covers the time before the second.
        assert_eq!(idle(&[(1, 10, 20), (3, 30, 40), (2, 15, 50), (4, 60, 61)]), [unknown, Some(0), Some(0), Some(10)]);
        // The gap is before the one that starts first, though it ends last.
        assert_eq!(idle(&[(1, 10, 20), (3, 35, 40), (2, 30, 50)]), [unknown, Some(0), Some(10)]);
    }

    #[test]
    fn of_two_that_begin_at_the_same_time_one_has_the_gap() {
        assert_eq!(idle(&[(1, 10, 20), (2, 30, 40), (3, 30, 50)]), [None, Some(10), Some(0)]);
    }

    #[test]
    fn nothing_is_said_where_something_may_be_missing() {
        let (mut idle, mut previous) = (Idle::default(), Previous::default());
        previous.missing(25, 25);
        let mut next = |start: u64, launched| {
            let span = Span { start, end: start + 5 };
            idle.arrived(0, span);
            idle.before(0, (span, false), launched, &previous)
        };
        assert_eq!(next(10, Some(9)), None);
        assert_eq!(next(20, Some(19)), Some(5));
        assert_eq!(next(30, Some(29)), None, "something was launched at 25");
        assert_eq!(next(40, Some(39)), Some(5));
        assert_eq!(next(50, None), None, "its launch is not known");
    }

    #[test]
    fn memory_is_bounded() {
        let mut idle = Idle::default();
        (0..200_000)
            .for_each(|it| idle.arrived(it % 100, Span { start: u64::from(it) * 10, end: u64::from(it) * 10 + 1 }));
        assert_eq!(idle.devices.len(), MOST_DEVICES);
        let mut of_device = OfDevice::default();
        (0..200_000).for_each(|it| of_device.add(Span { start: it * 10, end: it * 10 + 1 }));
        assert_eq!(of_device.busy.len(), MOST_SPANS);
        of_device.idle_before(Span { start: 199_999 * 10, end: 199_999 * 10 + 1 }, false);
        assert_eq!(of_device.busy.len(), 2);
    }
}
