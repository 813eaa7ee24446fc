//! Waiting events of one process, in order of their end.
//!
//! Activities and calls have separate queues: neither waits for the other.

use crate::join::Pending;
use crate::joined::QueuedActivity;
use crate::slab::Slab;
use xputrace_wire::events::HostEvents;
use xputrace_wire::record::{ActivityRecord, HostEventRecord, Launch};

/// An element of a queue.
pub(crate) trait Queued: Copy {
    fn end(&self) -> u64;
    /// Orders events that end at the same time, independently of their arrival.
    fn tie(&self) -> Tie;
    /// The number of its GPU.
    fn device(&self) -> u32;
    /// Whether it is handled in order: not if it is put together from others, and then comes after what ended later.
    fn is_in_order(&self) -> bool {
        true
    }
    /// Returns the ids of names that it and its launch refer to; 0 is none.
    fn names(&self, launches: &Pending) -> [u32; 3];
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tie {
    unjoined: bool,
    start: u64,
    correlation: u32,
    graph_node: u64,
    tid: u32,
}

impl Queued for QueuedActivity {
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

    #[inline]
    fn names(&self, launches: &Pending) -> [u32; 3] {
        let [api, ranges] = self.launch.map(|it| launches.held(it)).map_or([0; 2], |it| [it.api, it.ranges]);
        [self.activity.symbol(), api, ranges]
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

    fn names(&self, _: &Pending) -> [u32; 3] {
        match self {
            HostEventRecord::Range(it) => [it.path, it.domain, 0],
            _ => [self.common().ranges, 0, 0],
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

    #[inline]
    fn names(&self, _: &Pending) -> [u32; 3] {
        [self.api, self.symbol, self.ranges]
    }
}

/// How far the events of a queue may be handled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Until {
    /// Nothing that arrives later precedes what ends by then.
    pub(crate) in_order: u64,
    /// Everything has been heard of that switches probes for what ends by then: not even what is handled out of order may
    /// end later.
    pub(crate) heard: u64,
}

impl Until {
    pub(crate) fn end(self) -> u64 {
        self.in_order.min(self.heard)
    }
}

/// The events that wait.
pub(crate) struct EventQueue<E> {
    events: Slab<E>,
    /// End and place of the events in order, and of those that arrived since.
    order: Vec<(u64, u32)>,
    unsorted: Vec<(u64, u32)>,
    /// No event ends before.
    first_end: u64,
    /// End of the last handled event.
    pub(crate) handled_until: u64,
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        EventQueue {
            events: Slab::default(),
            order: Vec::new(),
            unsorted: Vec::new(),
            first_end: u64::MAX,
            handled_until: 0,
        }
    }
}

/// All events of a queue in order; the first ones may be handled.
pub(crate) struct Batch<E> {
    events: Slab<E>,
    order: Vec<(u64, u32)>,
    n_ready: usize,
    /// Whether the first ones are ready because too many wait.
    pub(crate) is_forced: bool,
}

impl<E: Queued> EventQueue<E> {
    /// Adds the event that `make` returns, which ends at this time.
    #[inline(always)]
    pub(crate) fn push(&mut self, end: u64, make: impl FnOnce() -> E) {
        self.first_end = self.first_end.min(end);
        self.unsorted.push((end, self.events.insert(make)));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len() + self.unsorted.len()
    }

    /// Whether [`EventQueue::take_batch`] would find events that are ready.
    pub(crate) fn has_ready(&self, until: Until, limit: usize) -> bool {
        self.first_end <= until.end() || self.len() > limit
    }

    /// Takes the events; those that end by `until` are ready. If more than `limit` wait, the first
    /// ones are ready even if that is not in order. [`EventQueue::put_back`] returns those not handled.
    pub(crate) fn take_batch(&mut self, until: Until, limit: usize) -> Batch<E> {
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
    pub(crate) fn put_back(&mut self, batch: Batch<E>, n_handled: usize) {
        let Batch { mut events, mut order, .. } = batch;
        order.drain(..n_handled).for_each(|(_, place)| events.remove(place));
        self.first_end = order.first().map_or(u64::MAX, |it| it.0);
        self.order = order;
        self.events = events;
    }
}

impl<E> Batch<E> {
    /// Iterates over end and event of those that may be handled, in order.
    pub(crate) fn ready(&self) -> impl Iterator<Item = (u64, &E)> {
        self.order[..self.n_ready].iter().map(|(end, place)| (*end, &self.events[*place]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_for_events_grows_no_further_than_by_a_quarter() {
        let mut queue = EventQueue::default();
        for n in 0..50_000u64 {
            queue.push(n, || Launch { start: n, end: n, ..Launch::default() });
            let (len, room) = (queue.len(), queue.events.room());
            assert!(room <= len + len / 4 + 1024, "room for {room} where there are {len}");
        }
    }
}
