//! When patched kernels ran: which launches take their times, and the records that they leave in device memory
//! ([`xputrace_wire::times`]).
//!
//! ```text
//! launch ─▶ awaited, by its group ──────────────┐
//! kernel ─▶ record in device memory ─▶ read ─▶ the kernel's record, with its times
//! ```

use super::functions::{Functions, SUCCESS};
use crate::cupti::Handle;
use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use xputrace_agent::Agent;
use xputrace_agent::clock::read_clocks;
use xputrace_wire::events::Realtime;
use xputrace_wire::record::{Clock, Kernel};
use xputrace_wire::times::{HEAD, MOST_GROUPS, MOST_RECORDS, RECORDS, Times, group_of, record};

/// Nodes of graphs that are awaited at a time.
const MOST_NODES: usize = 1 << 17;
/// Launches after which it is time to read.
const MOST_UNREAD: usize = MOST_GROUPS / 4;
/// Records that are copied at once.
const MOST_AT_ONCE: usize = 1 << 12;
/// Launches after which one in the same stream has ended too: two threads that launch there at a time may come in another order than
/// their numbers, and kernels that are launched so may overlap with the one before.
const SURELY_BEFORE: i32 = 1 << 10;
/// Streams whose last record is known.
const MOST_STREAMS: usize = 1 << 12;
/// More blocks or threads than this are not counted ([`xputrace_wire::times`]).
const MOST_BLOCKS: u64 = 1 << 31;
const MOST_THREADS: u64 = 1 << 34;

/// A kernel whose times are not known yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    pub(super) kernel: Kernel,
    /// What its record calls it; never freed.
    pub(super) symbol: &'static CStr,
    /// When its launch had begun: it starts later.
    pub(super) since: Realtime,
    /// The API's own handle of its stream.
    pub(super) stream: usize,
}

/// The times of a context's kernels.
#[derive(Debug)]
pub(super) struct Timing {
    /// Of the memory where kernels leave them.
    address: u64,
    /// Launches, by group.
    launches: Box<[Mutex<Option<Awaited>>]>,
    /// The launch of each stream that was recorded last, by its correlation.
    ended: Mutex<HashMap<usize, u32>>,
    /// Launches of each node, in their order: one graph does not run twice at a time.
    nodes: Mutex<Nodes>,
    /// Records that were read.
    read: Mutex<u64>,
    /// Launches that were awaited since then.
    unread: AtomicUsize,
}

/// A node of a graph that can be launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeId {
    pub(super) grid_id: u64,
    /// Handles.
    pub(super) executable: usize,
    pub(super) node: usize,
}

/// Launches of nodes of graphs that are awaited.
#[derive(Debug, Default)]
struct Nodes {
    /// By their group, which one has that awaits none until another one takes it.
    by_group: HashMap<usize, TimedNode>,
    /// How many launches they are together.
    n: usize,
}

/// A node leaves times at each of its launches, and they are told apart by their order alone: so after one that was not awaited,
/// none is. Nor is any where two nodes were in one group at a time.
#[derive(Debug)]
struct TimedNode {
    of: NodeId,
    awaited: VecDeque<Awaited>,
    is_lost: bool,
}

impl Nodes {
    /// Awaits a launch; returns what can't have times.
    fn add(&mut self, of: NodeId, awaited: Option<Awaited>) -> Vec<Awaited> {
        let has_room = self.n < MOST_NODES;
        let new = || TimedNode { of, awaited: VecDeque::new(), is_lost: false };
        let node = self.by_group.entry(group_of(of.grid_id)).or_insert_with(new);
        if node.awaited.is_empty() {
            node.of = of;
        }
        match awaited.filter(|it| has_room && !node.is_lost && node.of == of && is_countable(&it.kernel)) {
            Some(it) => {
                node.awaited.push_back(it);
                self.n += 1;
                Vec::new()
            }
            None => self.lose(group_of(of.grid_id)).into_iter().chain(awaited).collect(),
        }
    }

    /// Stops awaiting a group; returns what it has awaited.
    fn lose(&mut self, group: usize) -> VecDeque<Awaited> {
        let Some(node) = self.by_group.get_mut(&group) else { return VecDeque::new() };
        node.is_lost = true;
        self.n -= node.awaited.len();
        std::mem::take(&mut node.awaited)
    }

    /// Likewise of all groups of which it awaits any.
    fn lose_all(&mut self) -> Vec<Awaited> {
        let groups: Vec<usize> = self.by_group.iter().filter(|it| !it.1.awaited.is_empty()).map(|it| *it.0).collect();
        groups.into_iter().flat_map(|it| self.lose(it)).collect()
    }

    /// Returns the launch that left these times, which is awaited no longer.
    fn take(&mut self, grid_id: u64) -> Option<Awaited> {
        let node = self.by_group.get_mut(&group_of(grid_id)).filter(|it| it.of.grid_id == grid_id)?;
        let first = node.awaited.pop_front()?;
        self.n -= 1;
        Some(first)
    }

    /// Takes back what was awaited of the launch of a graph that has failed.
    fn forget_launch(&mut self, correlation: u32) {
        for node in self.by_group.values_mut() {
            let before = node.awaited.len();
            node.awaited.retain(|it| it.kernel.correlation != correlation);
            self.n -= before - node.awaited.len();
        }
    }
}

fn locked<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Timing {
    /// For memory at this address, which is all 0.
    pub(super) fn new(address: u64) -> Self {
        Timing {
            address,
            launches: (0..MOST_GROUPS).map(|_| Mutex::new(None)).collect(),
            ended: Mutex::default(),
            nodes: Mutex::default(),
            read: Mutex::new(0),
            unread: AtomicUsize::new(0),
        }
    }

    /// Returns the address of the memory.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Whether so many launches are awaited that their groups may run out.
    pub(super) fn is_reading_due(&self) -> bool {
        self.unread.load(Ordering::Relaxed) >= MOST_UNREAD
    }

    /// Whether any kernel has left times that were read.
    pub(super) fn was_read(&self) -> bool {
        *locked(&self.read) > 0
    }

    fn count_unread(&self, agent: &Agent) {
        if self.unread.fetch_add(1, Ordering::Relaxed) + 1 == MOST_UNREAD {
            agent.wake();
        }
    }

    /// Awaits the times of a launch; returns false if it can't have any: its group is in use, or it is too large.
    pub(super) fn await_launch(&self, agent: &'static Agent, awaited: Awaited) -> bool {
        self.count_unread(agent);
        let Ok(before) = self.occupy(awaited) else { return false };
        before.into_iter().for_each(|it| deliver(agent, &[it]));
        true
    }

    /// Returns what had the group, if that left no times.
    fn occupy(&self, awaited: Awaited) -> Result<Option<Awaited>, InUse> {
        if !is_countable(&awaited.kernel) {
            return Err(InUse);
        }
        let mut group = locked(&self.launches[group_of(awaited.kernel.grid_id)]);
        if group.as_ref().is_some_and(|it| !self.has_ended(it)) {
            return Err(InUse);
        }
        Ok(group.replace(awaited))
    }

    /// Whether a launch that is still awaited will leave no times: it has failed, or its record was overwritten.
    fn has_ended(&self, awaited: &Awaited) -> bool {
        let last = locked(&self.ended).get(&awaited.stream).copied();
        last.is_some_and(|it| it.wrapping_sub(awaited.kernel.correlation) as i32 >= SURELY_BEFORE)
    }

    /// Takes back what [`Timing::await_launch`] has accepted.
    pub(super) fn forget_launch(&self, grid_id: u64) {
        locked(&self.launches[group_of(grid_id)]).take_if(|it| it.kernel.grid_id == grid_id);
    }

    /// Awaits the times of a launch of a graph's node, if it is to be recorded. Delivers those that can't have any, as where its
    /// patches were not told to take them.
    pub(super) fn await_node(&self, agent: &'static Agent, of: NodeId, launched: Option<Awaited>, is_told: bool) {
        self.count_unread(agent);
        let mut without_times = locked(&self.nodes).add(of, launched.filter(|_| is_told));
        without_times.extend(launched.filter(|_| !is_told));
        deliver(agent, &without_times);
    }

    /// Takes back what nodes await of the launch of a graph that has failed.
    pub(super) fn forget_graph(&self, correlation: u32) {
        locked(&self.nodes).forget_launch(correlation);
    }

    /// Delivers the kernels that have left their times, by a stream of ours.
    pub(super) fn read(&self, functions: &Functions, agent: &'static Agent, slot: usize, stream: Handle) {
        let mut read = locked(&self.read);
        self.unread.store(0, Ordering::Relaxed);
        let Some(taken) = self.head(functions, stream) else { return };
        self.skip(agent, &mut read, taken);
        let mut bytes = Vec::new();
        while *read < taken {
            let first = *read as usize % MOST_RECORDS;
            let n = (taken - *read).min((MOST_RECORDS - first).min(MOST_AT_ONCE) as u64) as usize;
            bytes.resize(n * record::BYTES, 0);
            if !self.copy(functions, RECORDS + first * record::BYTES, &mut bytes, stream) {
                return;
            }
            // Meanwhile the first of them may have been overwritten, and be parts of two.
            let Some(now_taken) = self.head(functions, stream) else { return };
            if self.skip(agent, &mut read, now_taken) {
                continue;
            }
            let times = times_of(&bytes, *read);
            *read += times.len() as u64;
            let is_whole = times.len() == n;
            self.deliver(agent, slot, &times);
            // What is being written is read the next time.
            if !is_whole {
                return;
            }
        }
    }

    /// Returns how many records were taken.
    fn head(&self, functions: &Functions, stream: Handle) -> Option<u64> {
        let mut word = [0; 8];
        self.copy(functions, HEAD, &mut word, stream).then(|| u64::from_le_bytes(word))
    }

    /// Skips records that were overwritten; returns whether there are any. Which nodes they were of isn't known.
    fn skip(&self, agent: &'static Agent, read: &mut u64, taken: u64) -> bool {
        let least = taken.saturating_sub(MOST_RECORDS as u64);
        let is_skipped = *read < least;
        if is_skipped {
            *read = least;
            let nodes = locked(&self.nodes).lose_all();
            deliver(agent, &nodes);
        }
        is_skipped
    }

    fn copy(&self, functions: &Functions, from: usize, to: &mut [u8], stream: Handle) -> bool {
        let from = (self.address + from as u64) as *const c_void;
        // SAFETY: within the memory; room for as many bytes; a context that is alive, and a stream of it.
        unsafe { (functions.copy_to_host)(to.as_mut_ptr().cast(), from, to.len(), stream) == SUCCESS }
    }

    fn deliver(&self, agent: &'static Agent, slot: usize, all: &[Times]) {
        let clock = HostClock::of(agent, slot);
        let kernels: Vec<Awaited> = all.iter().flat_map(|it| self.ended(it, clock)).collect();
        deliver(agent, &kernels);
    }

    /// Returns the launch that left these times, with them. Times before their launch are not its own: so neither are the next ones of
    /// that node.
    fn ended(&self, times: &Times, clock: HostClock) -> Vec<Awaited> {
        let Some(awaited) = self.take(times) else { return Vec::new() };
        match clock.kernel(&awaited, times) {
            Some(kernel) => vec![Awaited { kernel, ..awaited }],
            None if times.is_node => {
                let next = locked(&self.nodes).lose(group_of(times.grid_id));
                std::iter::once(awaited).chain(next).collect()
            }
            None => vec![awaited],
        }
    }

    /// Returns the launch that left these times, which is awaited no longer.
    fn take(&self, times: &Times) -> Option<Awaited> {
        if times.is_node {
            return locked(&self.nodes).take(times.grid_id);
        }
        let is_it = |it: &mut Awaited| it.kernel.grid_id == times.grid_id;
        let awaited = locked(&self.launches[group_of(times.grid_id)]).take_if(is_it)?;
        let mut ended = locked(&self.ended);
        // Streams come and go.
        if ended.len() >= MOST_STREAMS {
            ended.clear();
        }
        ended.insert(awaited.stream, awaited.kernel.correlation);
        Some(awaited)
    }

    /// Delivers what is still awaited, without times.
    pub(super) fn give_up(&self, agent: &'static Agent) {
        let nodes = std::mem::take(&mut *locked(&self.nodes)).by_group.into_values().flat_map(|it| it.awaited);
        let rest: Vec<Awaited> = self.launches.iter().filter_map(|it| locked(it).take()).chain(nodes).collect();
        deliver(agent, &rest);
    }
}

/// A launch's group is another one's, or can't count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InUse;

/// Whether its blocks and threads can be counted.
fn is_countable(kernel: &Kernel) -> bool {
    let product = |of: [u32; 3]| of.iter().fold(1u64, |all, it| all.saturating_mul((*it).into()));
    let blocks = product(kernel.grid);
    blocks > 0 && blocks < MOST_BLOCKS && blocks.saturating_mul(product(kernel.block)) < MOST_THREADS
}

/// Reads records of these numbers, from the first on, up to one that is not whole.
fn times_of(bytes: &[u8], first: u64) -> Vec<Times> {
    let (records, _) = bytes.as_chunks::<{ record::BYTES }>();
    records.iter().zip(first..).map_while(|(it, number)| Times::of_record(it, number)).collect()
}

/// How the GPU's clock becomes the one that records have.
#[derive(Clone, Copy, Debug)]
struct HostClock {
    /// What is to be added, in nanoseconds.
    offset: i64,
    /// By how much that may be wrong, as far as is known.
    error_nanos: u64,
}

impl HostClock {
    fn of(agent: &Agent, slot: usize) -> Self {
        let (of_gpu, error_nanos) = agent.device_region().map_or((0, 0), |it| it.clock(slot));
        let Clock { monotonic_before, realtime, monotonic_after, .. } = read_clocks();
        let between = (monotonic_after - monotonic_before).div_ceil(2);
        let offset = of_gpu + realtime.0.wrapping_sub(monotonic_before + between) as i64;
        HostClock { offset, error_nanos: error_nanos + between }
    }

    fn time(self, of_gpu: u64) -> Realtime {
        Realtime(of_gpu.wrapping_add_signed(self.offset))
    }

    /// Returns a kernel with its times; `None` if they are wrong: a kernel starts after its launch.
    fn kernel(self, awaited: &Awaited, times: &Times) -> Option<Kernel> {
        let Awaited { kernel, since, .. } = *awaited;
        let (start, end) = (self.time(times.start), self.time(times.end));
        let is_right = times.start <= times.end && start.0.saturating_add(self.error_nanos) >= since.0;
        is_right.then(|| Kernel { start: start.max(since), end: end.max(since), ..kernel })
    }
}

fn deliver(agent: &'static Agent, all: &[Awaited]) {
    if !all.is_empty() {
        // SAFETY: C strings that stay.
        agent.deliver(1, 1, |to| all.iter().for_each(|it| unsafe { to.kernel(it.kernel, it.symbol.as_ptr()) }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: usize = 7;

    fn awaited(grid_id: u64, correlation: u32) -> Awaited {
        let kernel = Kernel { grid_id, correlation, grid: [4, 1, 1], block: [32, 1, 1], ..Kernel::default() };
        Awaited { kernel, symbol: c"k", since: Realtime(0), stream: STREAM }
    }

    fn times(grid_id: u64, is_node: bool) -> Times {
        Times { grid_id, is_node, start: 100, end: 200 }
    }

    fn taken(timing: &Timing, of: Times) -> Option<u32> {
        timing.take(&of).map(|it| it.kernel.correlation)
    }

    fn node(grid_id: u64) -> NodeId {
        NodeId { grid_id, executable: 1, node: 2 }
    }

    fn add(timing: &Timing, of: NodeId, correlation: Option<u32>) -> Vec<u32> {
        let awaited = correlation.map(|it| awaited(of.grid_id, it));
        correlations(&locked(&timing.nodes).add(of, awaited))
    }

    fn correlations(all: &[Awaited]) -> Vec<u32> {
        all.iter().map(|it| it.kernel.correlation).collect()
    }

    #[test]
    fn a_group_is_of_one_launch_until_its_times_are_there() {
        let timing = Timing::new(0);
        let later = 7 + MOST_GROUPS as u64;
        assert!(timing.occupy(awaited(7, 1)).is_ok());
        assert!(timing.occupy(awaited(later, 2)).is_err(), "in use");
        assert_eq!(taken(&timing, times(later, false)), None);
        assert_eq!([times(7, true), times(7, false)].map(|it| taken(&timing, it)), [None, Some(1)]);
        assert!(timing.occupy(awaited(later, 2)).is_ok());
        timing.forget_launch(later);
        assert_eq!(taken(&timing, times(later, false)), None);
    }

    #[test]
    fn a_launch_that_failed_keeps_its_group_until_later_ones_of_its_stream_have_ended() {
        let timing = Timing::new(0);
        let occupied = |it| timing.occupy(it).map(|it| it.map(|it| it.kernel.correlation));
        let later = |correlation, stream| Awaited { stream, ..awaited(7 + MOST_GROUPS as u64, correlation) };
        assert_eq!(occupied(awaited(7, 1)), Ok(None));
        for (other, stream, is_ended) in [(2, STREAM, false), (2000, 8, false), (2000, STREAM, true)] {
            assert_eq!(occupied(Awaited { stream, ..awaited(9, other) }), Ok(None));
            assert_eq!(taken(&timing, times(9, false)), Some(other));
            assert_eq!(occupied(later(3000, STREAM)), if is_ended { Ok(Some(1)) } else { Err(InUse) });
        }
    }

    #[test]
    fn launches_of_a_node_take_their_times_in_order() {
        let timing = Timing::new(0);
        for correlation in [1, 2, 3] {
            assert_eq!(add(&timing, node(9), Some(correlation)), []);
        }
        assert!(timing.occupy(awaited(9, 4)).is_ok());
        let found: Vec<_> = (0..4).map(|_| taken(&timing, times(9, true))).collect();
        assert_eq!(found, [Some(1), Some(2), Some(3), None]);
        assert_eq!(taken(&timing, times(9, false)), Some(4));
    }

    #[test]
    fn a_node_that_was_launched_unawaited_is_awaited_no_more() {
        let timing = Timing::new(0);
        let rest = [Some(1), None, Some(2)].map(|it| add(&timing, node(9), it));
        assert_eq!(rest, [vec![], vec![1], vec![2]]);
        assert_eq!((taken(&timing, times(9, true)), locked(&timing.nodes).n), (None, 0));
        assert_eq!(add(&timing, node(10), Some(3)), []);
    }

    #[test]
    fn two_nodes_in_one_group_at_a_time_have_no_times() {
        let timing = Timing::new(0);
        let other = [node(9 + MOST_GROUPS as u64), NodeId { executable: 3, ..node(9) }];
        for other in other {
            locked(&timing.nodes).by_group.clear();
            assert_eq!(add(&timing, node(9), Some(1)), []);
            assert_eq!(taken(&timing, times(9, true)), Some(1));
            assert_eq!(add(&timing, other, Some(2)), [], "one after the other");
            assert_eq!(add(&timing, node(9), Some(3)), [2, 3]);
            assert_eq!(add(&timing, other, Some(4)), [4]);
            assert_eq!(taken(&timing, times(9, true)), None);
        }
    }

    #[test]
    fn what_awaits_times_that_were_overwritten_gets_none() {
        let timing = Timing::new(0);
        for (grid_id, correlation) in [(9, 1), (10, 2), (9, 3)] {
            assert_eq!(add(&timing, node(grid_id), Some(correlation)), []);
        }
        let mut lost = correlations(&locked(&timing.nodes).lose_all());
        lost.sort_unstable();
        assert_eq!(lost, [1, 2, 3]);
        assert_eq!((add(&timing, node(9), Some(4)), add(&timing, node(11), Some(5))), (vec![4], vec![]));
    }

    #[test]
    fn the_launch_of_a_graph_that_fails_takes_no_times() {
        let timing = Timing::new(0);
        for (grid_id, correlation) in [(9, 1), (9, 2), (10, 2)] {
            assert_eq!(add(&timing, node(grid_id), Some(correlation)), []);
        }
        timing.forget_graph(2);
        assert_eq!(add(&timing, node(9), Some(3)), []);
        let found: Vec<_> = [9, 9, 9, 10].map(|it| taken(&timing, times(it, true))).into();
        assert_eq!(found, [Some(1), Some(3), None, None]);
    }

    #[test]
    fn what_can_not_be_counted_takes_no_times() {
        let with = |grid, block| {
            let it = awaited(1, 1);
            Timing::new(0).occupy(Awaited { kernel: Kernel { grid, block, ..it.kernel }, ..it }).is_ok()
        };
        assert!(with([1 << 20, 1, 1], [1024, 1, 1]));
        let refused = [([1 << 31, 1, 1], [1, 1, 1]), ([1 << 28, 1, 1], [64, 1, 1]), ([0; 3], [1; 3])];
        assert!(refused.iter().all(|(grid, block)| !with(*grid, *block)));
        assert!(!with([u32::MAX; 3], [u32::MAX; 3]));
    }

    #[test]
    fn records_are_read_up_to_one_that_is_being_written() {
        let of = |it: u64| times(it, false);
        let mut bytes: Vec<u8> = (5..8u64).flat_map(|it| of(it).record(it)).collect();
        assert_eq!(times_of(&bytes, 5), [of(5), of(6), of(7)]);
        bytes[record::BYTES..2 * record::BYTES].fill(0);
        assert_eq!(times_of(&bytes, 5), [of(5)]);
    }

    #[test]
    fn times_before_the_launch_are_wrong_but_for_the_clocks_error() {
        let clock = HostClock { offset: -50, error_nanos: 10 };
        let of = |start, since| {
            let awaited = Awaited { since: Realtime(since), ..awaited(1, 1) };
            clock.kernel(&awaited, &Times { start, ..times(1, false) }).map(|it| (it.start.0, it.end.0))
        };
        assert_eq!((of(100, 0), of(100, 60)), (Some((50, 150)), Some((60, 150))));
        assert_eq!((of(100, 61), of(u64::MAX, 0)), (None, None), "later launch, no beginning");
    }

    #[test]
    fn a_node_with_times_before_its_launch_is_awaited_no_more() {
        let timing = Timing::new(0);
        let late = Awaited { since: Realtime(1000), ..awaited(9, 1) };
        assert!(locked(&timing.nodes).add(node(9), Some(late)).is_empty());
        assert_eq!(add(&timing, node(9), Some(2)), []);
        let clock = HostClock { offset: 0, error_nanos: 0 };
        let ended = timing.ended(&times(9, true), clock);
        assert_eq!((correlations(&ended), ended[0].kernel.end), (vec![1, 2], Realtime(0)));
        assert_eq!(add(&timing, node(9), Some(3)), [3]);
    }
}
