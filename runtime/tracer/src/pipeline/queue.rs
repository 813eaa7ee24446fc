//! Waiting events of one process, in order of their end.
//!
//! Activities and calls have separate queues: neither waits for the other.

use super::Until;
use super::process::{Facts, Process};
use crate::clock::Span;
use crate::slab::Slab;
use xputrace_wire::events::HostEvents;
use xputrace_wire::record::{ActivityRecord, HostEventRecord, Launch};

/// An activity, with its launch if known.
pub(super) struct Joined {
    pub(super) span: Span,
    pub(super) activity: ActivityRecord,
    pub(super) launch: Option<Launch>,
}

/// An element of a queue.
pub(super) trait Queued: Sized {
    fn end(&self) -> u64;
    /// Orders events that end at the same time, independently of their arrival.
    fn tie(&self) -> Tie;
    /// The number of its GPU.
    fn device(&self) -> u32;
    /// Whether it is handled in order: not if it is put together from others, and then comes after what ended later.
    fn is_in_order(&self) -> bool {
        true
    }
    fn queue_of(process: &mut Process) -> &mut Queue<Self>;
    /// Whether a name that it refers to has not arrived.
    fn lacks_names(&self, facts: &Facts) -> bool;
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tie {
    unjoined: bool,
    start: u64,
    correlation: u32,
    graph_node: u64,
    tid: u32,
}

impl Queued for Joined {
    #[inline]
    fn end(&self) -> u64 {
        self.span.end
    }

    #[inline]
    fn is_in_order(&self) -> bool {
        !matches!(&self.activity, ActivityRecord::Graph(it) if it.is_derived != 0)
    }

    #[inline]
    fn device(&self) -> u32 {
        self.activity.device()
    }

    fn tie(&self) -> Tie {
        Tie {
            unjoined: self.launch.is_none(),
            start: self.span.start,
            correlation: self.activity.correlation(),
            graph_node: self.activity.graph_node(),
            tid: 0,
        }
    }

    fn queue_of(process: &mut Process) -> &mut Queue<Self> {
        &mut process.activities
    }

    fn lacks_names(&self, facts: &Facts) -> bool {
        facts.lacks_name(self.activity.symbol())
            || self.launch.as_ref().is_some_and(|it| facts.lacks_name(it.api) || facts.lacks_name(it.ranges))
    }
}

impl Queued for HostEventRecord {
    #[inline]
    fn end(&self) -> u64 {
        self.common().end
    }

    /// CUPTI's records arrive long after what they tell of.
    fn is_in_order(&self) -> bool {
        !HostEvents::OF_RECORDS.contains(self.kind())
    }

    fn tie(&self) -> Tie {
        let it = self.common();
        Tie { unjoined: false, start: it.start, correlation: it.function, graph_node: 0, tid: it.tid }
    }

    fn queue_of(process: &mut Process) -> &mut Queue<Self> {
        &mut process.host_events
    }

    fn lacks_names(&self, facts: &Facts) -> bool {
        match self {
            HostEventRecord::Nvtx(it) => facts.lacks_name(it.path) || facts.lacks_name(it.domain),
            _ => facts.lacks_name(self.common().ranges),
        }
    }

    #[inline]
    fn device(&self) -> u32 {
        self.common().device
    }
}

impl Queued for Launch {
    #[inline]
    fn end(&self) -> u64 {
        self.end
    }

    #[inline]
    fn device(&self) -> u32 {
        self.device
    }

    fn tie(&self) -> Tie {
        Tie { unjoined: false, start: self.start, correlation: self.correlation, graph_node: 0, tid: self.tid }
    }

    fn queue_of(process: &mut Process) -> &mut Queue<Self> {
        &mut process.calls
    }

    fn lacks_names(&self, facts: &Facts) -> bool {
        [self.api, self.symbol, self.ranges].into_iter().any(|it| facts.lacks_name(it))
    }
}

/// The events that wait.
pub(super) struct Queue<E> {
    events: Slab<E>,
    /// End and place of the events in order, and of those that arrived since.
    order: Vec<(u64, u32)>,
    unsorted: Vec<(u64, u32)>,
    /// No event ends before.
    first_end: u64,
    /// End of the last handled event.
    pub(super) handled_until: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Queue {
            events: Slab::default(),
            order: Vec::new(),
            unsorted: Vec::new(),
            first_end: u64::MAX,
            handled_until: 0,
        }
    }
}

/// All events of a queue in order; the first ones may be handled.
pub(super) struct Batch<E> {
    events: Slab<E>,
    order: Vec<(u64, u32)>,
    n_ready: usize,
    /// Whether the first ones are ready because too many wait.
    pub(super) is_forced: bool,
}

impl<E: Queued> Queue<E> {
    /// Adds the event that `make` returns, which ends at this time.
    #[inline(always)]
    pub(super) fn push(&mut self, end: u64, make: impl FnOnce() -> E) {
        self.first_end = self.first_end.min(end);
        self.unsorted.push((end, self.events.insert(make)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.order.len() + self.unsorted.len()
    }

    /// Whether [`Queue::take`] would find events that are ready.
    pub(super) fn has_ready(&self, until: Until, limit: usize) -> bool {
        self.first_end <= until.end() || self.len() > limit
    }

    /// Takes the events; those that end by `until` are ready. If more than `limit` wait, the first
    /// ones are ready even if that is not in order. [`Queue::put_back`] returns those not handled.
    pub(super) fn take(&mut self, until: Until, limit: usize) -> Batch<E> {
        self.sort();
        let excess = self.order.len().saturating_sub(limit);
        let forced = if excess > 0 { (excess + limit / 2).min(self.order.len()) } else { 0 };
        let last_forced = forced.checked_sub(1).map_or(0, |last| self.order[last].0);
        let until = until.end().max(last_forced.min(until.heard));
        let n_ready = self.order.partition_point(|(end, _)| *end <= until);
        Batch {
            events: std::mem::take(&mut self.events),
            order: std::mem::take(&mut self.order),
            n_ready,
            is_forced: forced > 0,
        }
    }

    fn sort(&mut self) {
        self.order.append(&mut self.unsorted);
        let events = &self.events;
        let tie = |place: u32| events[place].tie();
        self.order.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| tie(a.1).cmp(&tie(b.1))));
    }

    /// Keeps all but the first `n_handled` events.
    pub(super) fn put_back(&mut self, batch: Batch<E>, n_handled: usize) {
        let Batch { mut events, mut order, .. } = batch;
        order.drain(..n_handled).for_each(|(_, place)| events.remove(place));
        self.first_end = order.first().map_or(u64::MAX, |it| it.0);
        self.order = order;
        self.events = events;
    }
}

impl<E> Batch<E> {
    /// Iterates over end and event of those that may be handled, in order.
    pub(super) fn ready(&self) -> impl Iterator<Item = (u64, &E)> {
        self.order[..self.n_ready].iter().map(|(end, place)| (*end, &self.events[*place]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_for_events_grows_no_further_than_by_a_quarter() {
        let mut queue = Queue::default();
        for n in 0..50_000u64 {
            queue.push(n, || Launch { start: n, end: n, ..Launch::default() });
            let (len, room) = (queue.len(), queue.events.room());
            assert!(room <= len + len / 4 + 1024, "room for {room} where there are {len}");
        }
    }
}
