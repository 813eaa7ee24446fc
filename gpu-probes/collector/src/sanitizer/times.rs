//! When patched kernels ran: which launches take their times, and the records that they leave in device memory
//! ([`xputrace_wire::times`]).
//!
//! ```text
//! launch ─▶ awaited, by its group ──────────────┐
//! kernel ─▶ record in device memory ─▶ read ─▶ the kernel's record, with its times
//! ```

use super::functions::{Functions, SUCCESS};
use crate::agent::Agent;
use crate::agent::clock::{now, realtime_now};
use crate::cupti::Handle;
use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use xputrace_wire::events::Realtime;
use xputrace_wire::record::Kernel;
use xputrace_wire::times::{HEAD, MOST_GROUPS, MOST_RECORDS, RECORDS, Times, group_of, record};

/// Nodes of graphs that are awaited at a time.
const MOST_NODES: usize = 1 << 17;
/// Launches after which it is time to read.
const MOST_UNREAD: usize = MOST_GROUPS / 4;
/// Records that are copied at once.
const MOST_AT_ONCE: usize = 1 << 12;
/// More blocks or threads than this are not counted ([`xputrace_wire::times`]).
const MOST_BLOCKS: u64 = 1 << 31;
const MOST_THREADS: u64 = 1 << 34;

/// A kernel whose times are not known yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    pub(super) kernel: Kernel,
    /// What its record calls it; never freed.
    pub(super) symbol: &'static CStr,
}

/// The times of a context's kernels.
#[derive(Debug)]
pub(super) struct Timing {
    /// Of the memory where kernels leave them.
    address: u64,
    /// Launches, by group.
    launches: Box<[Mutex<Option<Awaited>>]>,
    /// Launches of each node, in their order: one graph does not run twice at a time.
    nodes: Mutex<Nodes>,
    /// Records that were read.
    read: Mutex<u64>,
    /// Launches that were awaited since then.
    unread: AtomicUsize,
}

/// Launches of nodes of graphs that are awaited.
#[derive(Debug, Default)]
struct Nodes {
    by_grid: HashMap<u64, Node>,
    /// How many they are together.
    n: usize,
}

/// A node leaves times at each of its launches, and they are told apart by their order alone: so after one that was not awaited,
/// none is.
#[derive(Debug, Default)]
struct Node {
    awaited: VecDeque<Awaited>,
    is_lost: bool,
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

    /// Awaits the times of a launch; returns false if it can't have any: its group is in use, or it is too large.
    pub(super) fn await_launch(&self, agent: &Agent, awaited: Awaited) -> bool {
        if self.unread.fetch_add(1, Ordering::Relaxed) + 1 == MOST_UNREAD {
            agent.wake();
        }
        self.occupy(awaited)
    }

    fn occupy(&self, awaited: Awaited) -> bool {
        if !is_countable(&awaited.kernel) {
            return false;
        }
        let mut group = locked(&self.launches[group_of(awaited.kernel.grid_id)]);
        let is_free = group.is_none();
        if is_free {
            *group = Some(awaited);
        }
        is_free
    }

    /// Takes back what [`Timing::await_launch`] has accepted.
    pub(super) fn forget_launch(&self, grid_id: u64) {
        *locked(&self.launches[group_of(grid_id)]) = None;
    }

    /// Awaits the times of a launch of a graph's node, if it is to be recorded. Delivers those that can't have any.
    pub(super) fn await_node(&self, agent: &'static Agent, grid_id: u64, awaited: Option<Awaited>) {
        let without_times = self.add_node(grid_id, awaited);
        deliver(agent, &without_times);
    }

    /// Returns what can't have times.
    fn add_node(&self, grid_id: u64, awaited: Option<Awaited>) -> Vec<Awaited> {
        let mut nodes = locked(&self.nodes);
        let has_room = nodes.n < MOST_NODES;
        let node = nodes.by_grid.entry(grid_id).or_default();
        match awaited.filter(|it| has_room && !node.is_lost && is_countable(&it.kernel)) {
            Some(it) => {
                node.awaited.push_back(it);
                nodes.n += 1;
                Vec::new()
            }
            None => {
                node.is_lost = true;
                let before = std::mem::take(&mut node.awaited);
                nodes.n -= before.len();
                before.into_iter().chain(awaited).collect()
            }
        }
    }

    /// Delivers the kernels that have left their times, by a stream of ours.
    pub(super) fn read(&self, functions: &Functions, agent: &'static Agent, slot: usize, stream: Handle) {
        let mut read = locked(&self.read);
        self.unread.store(0, Ordering::Relaxed);
        let mut word = [0; 8];
        if !self.copy(functions, HEAD, &mut word, stream) {
            return;
        }
        let taken = u64::from_le_bytes(word);
        // Those before were overwritten.
        *read = (*read).max(taken.saturating_sub(MOST_RECORDS as u64));
        let mut bytes = Vec::new();
        while *read < taken {
            let first = *read as usize % MOST_RECORDS;
            let n = (taken - *read).min((MOST_RECORDS - first).min(MOST_AT_ONCE) as u64) as usize;
            bytes.resize(n * record::BYTES, 0);
            if !self.copy(functions, RECORDS + first * record::BYTES, &mut bytes, stream) {
                return;
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

    fn copy(&self, functions: &Functions, from: usize, to: &mut [u8], stream: Handle) -> bool {
        let from = (self.address + from as u64) as *const c_void;
        // SAFETY: within the memory; room for as many bytes; a context that is alive, and a stream of it.
        unsafe { (functions.copy_to_host)(to.as_mut_ptr().cast(), from, to.len(), stream) == SUCCESS }
    }

    fn deliver(&self, agent: &'static Agent, slot: usize, all: &[Times]) {
        let clock = HostClock::of(agent, slot);
        let kernels: Vec<Awaited> = all
            .iter()
            .filter_map(|times| {
                let awaited = self.take(times)?;
                Some(Awaited { kernel: with_times(awaited.kernel, times, clock), ..awaited })
            })
            .collect();
        deliver(agent, &kernels);
    }

    /// Returns the launch that left these times, which is awaited no longer.
    fn take(&self, times: &Times) -> Option<Awaited> {
        if times.is_node {
            let mut nodes = locked(&self.nodes);
            let first = nodes.by_grid.get_mut(&times.grid_id)?.awaited.pop_front()?;
            nodes.n -= 1;
            return Some(first);
        }
        locked(&self.launches[group_of(times.grid_id)]).take_if(|it| it.kernel.grid_id == times.grid_id)
    }

    /// Delivers what is still awaited, without times.
    pub(super) fn give_up(&self, agent: &'static Agent) {
        let nodes = std::mem::take(&mut *locked(&self.nodes)).by_grid.into_values().flat_map(|it| it.awaited);
        let rest: Vec<Awaited> = self.launches.iter().filter_map(|it| locked(it).take()).chain(nodes).collect();
        deliver(agent, &rest);
    }
}

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
}

impl HostClock {
    fn of(agent: &Agent, slot: usize) -> Self {
        let monotonic = agent.device_region().map_or(0, |it| it.clock_offset(slot));
        HostClock { offset: monotonic + realtime_now().0.wrapping_sub(now()) as i64 }
    }

    fn time(self, of_gpu: u64) -> Realtime {
        Realtime(of_gpu.wrapping_add_signed(self.offset))
    }
}

fn with_times(kernel: Kernel, times: &Times, clock: HostClock) -> Kernel {
    if times.start > times.end {
        return kernel;
    }
    Kernel { start: clock.time(times.start), end: clock.time(times.end), ..kernel }
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

    fn awaited(grid_id: u64, correlation: u32) -> Awaited {
        let kernel = Kernel { grid_id, correlation, grid: [4, 1, 1], block: [32, 1, 1], ..Kernel::default() };
        Awaited { kernel, symbol: c"k" }
    }

    fn times(grid_id: u64, is_node: bool) -> Times {
        Times { grid_id, is_node, start: 100, end: 200 }
    }

    fn taken(timing: &Timing, of: Times) -> Option<u32> {
        timing.take(&of).map(|it| it.kernel.correlation)
    }

    #[test]
    fn a_group_is_of_one_launch_until_its_times_are_there() {
        let timing = Timing::new(0);
        let later = 7 + MOST_GROUPS as u64;
        assert!(timing.occupy(awaited(7, 1)));
        assert!(!timing.occupy(awaited(later, 2)), "in use");
        assert_eq!(taken(&timing, times(later, false)), None);
        assert_eq!([times(7, true), times(7, false)].map(|it| taken(&timing, it)), [None, Some(1)]);
        assert!(timing.occupy(awaited(later, 2)));
        timing.forget_launch(later);
        assert_eq!(taken(&timing, times(later, false)), None);
    }

    #[test]
    fn launches_of_a_node_take_their_times_in_order() {
        let timing = Timing::new(0);
        for correlation in [1, 2, 3] {
            assert!(timing.add_node(9, Some(awaited(9, correlation))).is_empty());
        }
        assert!(timing.occupy(awaited(9, 4)));
        let found: Vec<_> = (0..4).map(|_| taken(&timing, times(9, true))).collect();
        assert_eq!(found, [Some(1), Some(2), Some(3), None]);
        assert_eq!(taken(&timing, times(9, false)), Some(4));
    }

    #[test]
    fn a_node_that_was_launched_unawaited_is_awaited_no_more() {
        let timing = Timing::new(0);
        let add = |awaited| timing.add_node(9, awaited).iter().map(|it| it.kernel.correlation).collect::<Vec<_>>();
        let rest = [add(Some(awaited(9, 1))), add(None), add(Some(awaited(9, 2)))];
        assert_eq!(rest, [vec![], vec![1], vec![2]]);
        assert_eq!((taken(&timing, times(9, true)), locked(&timing.nodes).n), (None, 0));
        assert!(timing.add_node(10, Some(awaited(10, 3))).is_empty());
    }

    #[test]
    fn what_can_not_be_counted_takes_no_times() {
        let with = |grid, block| {
            let it = awaited(1, 1);
            Timing::new(0).occupy(Awaited { kernel: Kernel { grid, block, ..it.kernel }, ..it })
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
    fn times_without_a_beginning_are_none() {
        let clock = HostClock { offset: -50 };
        let of = |start| with_times(Kernel::default(), &Times { start, ..times(1, false) }, clock);
        assert_eq!((of(100).start, of(100).end), (Realtime(50), Realtime(150)));
        assert_eq!((of(u64::MAX).start, of(u64::MAX).end), (Realtime(0), Realtime(0)));
    }
}
