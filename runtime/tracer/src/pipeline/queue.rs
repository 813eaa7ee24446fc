//! Events of one process that wait for their turn, in order of their end.

use xputrace_wire::record::{Kernel, Launch};

/// A kernel with its launch, a kernel without, or a launch on its own.
pub(super) struct Joined {
    pub(super) kernel: Kernel,
    pub(super) launch: Launch,
    pub(super) kind: JoinedKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum JoinedKind {
    Launch,
    Kernel,
    Unjoined,
}

impl Joined {
    #[inline]
    pub(super) fn of_kernel(kernel: &Kernel, launch: Option<&Launch>) -> Self {
        match launch {
            Some(launch) => Joined { kernel: *kernel, launch: *launch, kind: JoinedKind::Kernel },
            None => Joined { kernel: *kernel, launch: Launch::default(), kind: JoinedKind::Unjoined },
        }
    }

    pub(super) fn of_launch(launch: &Launch) -> Self {
        Joined { kernel: Kernel::default(), launch: *launch, kind: JoinedKind::Launch }
    }

    fn end(&self) -> u64 {
        if self.kind == JoinedKind::Launch { self.launch.end } else { self.kernel.end }
    }

    /// Decides between events that end together, whichever way they arrived.
    fn tie(&self) -> (JoinedKind, u64, u32, u64, u32) {
        (
            self.kind,
            self.kernel.start,
            self.kernel.correlation | self.launch.correlation,
            self.kernel.graph_node,
            self.launch.tid,
        )
    }
}

/// The events that wait.
#[derive(Default)]
pub(super) struct Queue {
    events: Vec<Joined>,
    /// End and index of the events that are in order, and of those that came since.
    order: Vec<(u64, u32)>,
    unsorted: Vec<(u64, u32)>,
}

/// All events of a queue in order, of which the first may be handled.
pub(super) struct Batch {
    events: Vec<Joined>,
    order: Vec<(u64, u32)>,
    n_ready: usize,
}

impl Queue {
    #[inline]
    pub(super) fn push(&mut self, event: Joined) {
        self.unsorted.push((event.end(), self.events.len() as u32));
        self.events.push(event);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// The events, those ready that end by `until`; where more than `limit` wait, the first of
    /// them are ready whenever they end. [`Queue::put_back`] takes what was not handled.
    pub(super) fn take(&mut self, until: u64, limit: usize) -> Batch {
        self.sort();
        let excess = self.order.len().saturating_sub(limit);
        let forced = if excess > 0 { (excess + limit / 2).min(self.order.len()) } else { 0 };
        let until = forced.checked_sub(1).map_or(until, |last| until.max(self.order[last].0));
        let n_ready = self.order.partition_point(|(end, _)| *end <= until);
        Batch { events: std::mem::take(&mut self.events), order: std::mem::take(&mut self.order), n_ready }
    }

    fn sort(&mut self) {
        self.order.append(&mut self.unsorted);
        let events = &self.events;
        let tie = |index: u32| events[index as usize].tie();
        self.order.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| tie(a.1).cmp(&tie(b.1))));
    }

    /// Keeps all but the first `n_handled` events, and the buffers' room.
    pub(super) fn put_back(&mut self, batch: Batch, n_handled: usize) {
        let Batch { mut events, mut order, .. } = batch;
        if n_handled == order.len() {
            order.clear();
            events.clear();
        } else if n_handled > 0 {
            order.drain(..n_handled);
            keep_only(&mut events, &mut order);
        }
        self.order = order;
        self.events = events;
    }
}

impl Batch {
    /// End and event of those that may be handled, in order.
    pub(super) fn ready(&self) -> impl Iterator<Item = (u64, &Joined)> {
        self.order[..self.n_ready].iter().map(|(end, index)| (*end, &self.events[*index as usize]))
    }
}

/// Drops the events that are not in `order`, and renumbers those that are.
fn keep_only(events: &mut Vec<Joined>, order: &mut [(u64, u32)]) {
    const GONE: u32 = u32::MAX;
    let mut numbers = vec![GONE; events.len()];
    order.iter().for_each(|(_, index)| numbers[*index as usize] = 0);
    let (mut at, mut n_kept) = (0, 0);
    events.retain(|_| {
        let keep = numbers[at] != GONE;
        if keep {
            numbers[at] = n_kept;
            n_kept += 1;
        }
        at += 1;
        keep
    });
    order.iter_mut().for_each(|(_, index)| *index = numbers[*index as usize]);
}
