//! Launches that wait for their activities, found by correlation id.
//!
//! A process's correlation ids grow, with gaps. So a launch is stored in the slot of its id modulo
//! the table's size and found without hashing; collisions go to a separate map. A kernel consumes
//! its launch; that of a graph stays for the rest of the graph, that of a copy for its other parts. A launch that was
//! consumed keeps its place in the slab until the kernel's event was handled, so it is stored once.

use crate::slab::Slab;
use rustc_hash::FxHashMap;
use std::cell::Cell;
use std::collections::VecDeque;
use xputrace_wire::record::Launch;

/// Start of slab entries that are free.
const GONE: u64 = u64::MAX;
/// Start of those that do not hold back the watermark. Launches that do begin earlier.
const NOT_WAITING: u64 = GONE - 1;
const FIRST_SLOTS: usize = 1 << 10;
const MOST_SLOTS: usize = 1 << 18;
const EMPTY: u32 = u32::MAX;

/// The place of a launch that an event holds, alone, until [`Pending::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldLaunch(u32);

/// A launch that an activity was caused by, for [`Pending::hold`] or [`Pending::decline`] to take.
#[must_use]
#[derive(Debug)]
pub(crate) struct Cause {
    place: u32,
    /// Whether this is the first activity that was waited for.
    pub(crate) is_first: bool,
    /// Whether no other activity has this launch, which is no longer among those that are found.
    is_alone: bool,
}

/// Where a launch with this correlation id is.
#[derive(Clone, Copy, Debug)]
struct LaunchPlace {
    correlation: u32,
    /// In the slab; [`EMPTY`] if there is none.
    index: u32,
}

impl LaunchPlace {
    const NONE: LaunchPlace = LaunchPlace { correlation: 0, index: EMPTY };
}

/// Launches by correlation id.
#[derive(Debug)]
pub(crate) struct Pending {
    /// By correlation id modulo the length.
    slots: Vec<LaunchPlace>,
    overflow: FxHashMap<u32, Vec<u32>>,
    slab: Slab<Launch>,
    waiting_since: Starts,
    /// Launches that are no longer waited for, oldest first: slab index and start. Those that are not single stay
    /// until they are here at the front; the index of another one that has gone may be another launch's by then.
    retained: VecDeque<(u32, u64)>,
    /// The same for copies: their number leaves graphs alone.
    retained_copies: VecDeque<(u32, u64)>,
    retained_limit: usize,
    n_waiting: usize,
}

impl Pending {
    pub(crate) fn new(retained_limit: usize) -> Self {
        Pending {
            slots: vec![LaunchPlace::NONE; FIRST_SLOTS],
            overflow: FxHashMap::default(),
            slab: Slab::default(),
            waiting_since: Starts::default(),
            retained: VecDeque::new(),
            retained_copies: VecDeque::new(),
            retained_limit,
            n_waiting: 0,
        }
    }

    /// Returns the number of launches without any activity so far.
    pub(crate) fn n_waiting(&self) -> usize {
        self.n_waiting
    }

    /// Inserts a launch, with these flags. One that is not `expected` may have no recorded activity, so nothing waits for it.
    #[inline(always)]
    pub(crate) fn insert(&mut self, launch: &Launch, flags: u32, expected: bool) {
        let index = self.slab.insert(|| *launch);
        if flags != launch.flags {
            self.slab[index].flags = flags;
        }
        self.waiting_since.set(index, launch.start.min(NOT_WAITING - 1));
        self.n_waiting += 1;
        self.place(launch.correlation, index);
        if !expected {
            self.retain(index, launch.start);
        }
        if self.overflow.len() * 8 > self.slots.len() && self.slots.len() < MOST_SLOTS {
            self.grow();
        }
    }

    /// Finds the launch that caused an activity. [`Pending::hold`] or [`Pending::decline`] must follow.
    #[inline]
    pub(crate) fn join(&mut self, correlation: u32, context: u32) -> Option<(&mut Launch, Cause)> {
        let place = self.find(correlation, context)?;
        let is_first = self.waiting_since.of(place) < NOT_WAITING;
        let is_alone = self.slab[place].is_single();
        if is_alone {
            self.forget(place, correlation);
        } else if is_first {
            self.retain(place, self.slab[place].start);
        }
        Some((&mut self.slab[place], Cause { place, is_first, is_alone }))
    }

    /// Keeps the launch, as it is now, for the activity's event.
    #[inline]
    pub(crate) fn hold(&mut self, cause: Cause) -> HeldLaunch {
        if cause.is_alone { HeldLaunch(cause.place) } else { self.hold_copy(cause.place) }
    }

    fn hold_copy(&mut self, place: u32) -> HeldLaunch {
        let launch = self.slab[place];
        let copy = self.slab.insert(|| launch);
        self.waiting_since.set(copy, GONE);
        HeldLaunch(copy)
    }

    /// Gives up the launch of an activity that has no event.
    pub(crate) fn decline(&mut self, cause: Cause) {
        if cause.is_alone {
            self.slab.remove(cause.place);
        }
    }

    #[inline]
    pub(crate) fn held(&self, launch: HeldLaunch) -> &Launch {
        &self.slab[launch.0]
    }

    /// Gives up the launch of an event that was handled.
    #[inline]
    pub(crate) fn release(&mut self, launch: HeldLaunch) {
        self.slab.remove(launch.0);
    }

    /// Returns the oldest waiting launch that `withholds` accepts.
    pub(crate) fn oldest(&self, mut withholds: impl FnMut(&Launch) -> bool) -> Option<&Launch> {
        self.waiting_since.oldest(|index| withholds(&self.slab[index])).map(|index| &self.slab[index])
    }

    /// Removes the `n` oldest waiting launches.
    pub(crate) fn evict(&mut self, n: usize) -> Vec<Launch> {
        let mut starts: Vec<(u64, u32)> = self.waiting().collect();
        starts.sort_unstable();
        starts[..n.min(starts.len())].iter().map(|(_, index)| self.take(*index)).collect()
    }

    /// Stops waiting for launches that began before this time, and returns them. Their activities are still joined.
    pub(crate) fn give_up_before(&mut self, time: u64, mark: u32) -> Vec<Launch> {
        let old: Vec<(u64, u32)> = self.waiting().filter(|it| it.0 < time).collect();
        let give_up = |(start, index): (u64, u32)| {
            self.slab[index].flags |= mark;
            let launch = self.slab[index];
            self.retain(index, start);
            launch
        };
        old.into_iter().map(give_up).collect()
    }

    /// Iterates over the launches that wait for their first activity.
    pub(crate) fn all_waiting(&self) -> impl Iterator<Item = &Launch> {
        self.waiting().map(|(_, index)| &self.slab[index])
    }

    /// Iterates over start and slab index of the waiting launches.
    fn waiting(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.waiting_since.iter().filter(|(start, _)| *start < NOT_WAITING)
    }

    fn take(&mut self, index: u32) -> Launch {
        let launch = self.slab[index];
        self.remove(index, launch.correlation);
        launch
    }

    #[inline]
    fn place(&mut self, correlation: u32, index: u32) {
        let mask = self.slots.len() - 1;
        let slot = &mut self.slots[correlation as usize & mask];
        if slot.index == EMPTY {
            *slot = LaunchPlace { correlation, index };
        } else {
            self.place_elsewhere(correlation, index);
        }
    }

    #[cold]
    fn place_elsewhere(&mut self, correlation: u32, index: u32) {
        self.overflow.entry(correlation).or_default().push(index);
    }

    #[inline]
    fn find(&self, correlation: u32, context: u32) -> Option<u32> {
        let slot = self.slots[correlation as usize & (self.slots.len() - 1)];
        let direct = (slot.index != EMPTY && slot.correlation == correlation).then_some(slot.index);
        if self.overflow.is_empty() {
            return direct;
        }
        let others = self.overflow.get(&correlation).map(Vec::as_slice).unwrap_or_default();
        let all = direct.into_iter().chain(others.iter().copied());
        // Ids start over after 2³²: a launch that is kept may have the id of a new one.
        all.max_by_key(|it| {
            let launch = &self.slab[*it];
            (launch.context == context, launch.start)
        })
    }

    fn remove(&mut self, index: u32, correlation: u32) {
        self.forget(index, correlation);
        self.slab.remove(index);
    }

    /// Makes a launch one that is not found; it stays in its place.
    #[inline]
    fn forget(&mut self, index: u32, correlation: u32) {
        let mask = self.slots.len() - 1;
        let slot = &mut self.slots[correlation as usize & mask];
        if slot.index == index {
            *slot = LaunchPlace::NONE;
        } else {
            self.remove_elsewhere(correlation, index);
        }
        if self.waiting_since.end(index, GONE) {
            self.n_waiting -= 1;
        }
    }

    #[cold]
    fn remove_elsewhere(&mut self, correlation: u32, index: u32) {
        let Some(others) = self.overflow.get_mut(&correlation) else { return };
        others.retain(|it| *it != index);
        if others.is_empty() {
            self.overflow.remove(&correlation);
        }
    }

    fn retain(&mut self, index: u32, start: u64) {
        self.waiting_since.end(index, NOT_WAITING);
        self.n_waiting -= 1;
        let is_copy = self.slab[index].launch_kind == Launch::MEMCPY;
        let retained = if is_copy { &mut self.retained_copies } else { &mut self.retained };
        retained.push_back((index, start));
        if retained.len() > self.retained_limit
            && let Some((oldest, start)) = retained.pop_front()
            && self.is_retained(oldest, start)
        {
            self.remove(oldest, self.slab[oldest].correlation);
        }
    }

    /// Whether this entry is still the launch that began then, and not waited for.
    fn is_retained(&self, index: u32, start: u64) -> bool {
        self.waiting_since.of(index) == NOT_WAITING && self.slab[index].start == start
    }

    #[cold]
    fn grow(&mut self) {
        let slots = self.slots.len() * 4;
        let mut live: Vec<u32> = self.slots.iter().map(|it| it.index).filter(|it| *it != EMPTY).collect();
        live.extend(self.overflow.drain().flat_map(|(_, indices)| indices));
        self.slots = vec![LaunchPlace::NONE; slots];
        for index in live {
            self.place(self.slab[index].correlation, index);
        }
    }
}

/// Start of each slab entry that waits for its first activity; [`NOT_WAITING`] or [`GONE`] for others.
#[derive(Debug, Default)]
struct Starts {
    all: Vec<u64>,
    /// By block: none of its entries has an earlier start. A search makes it exact.
    blocks: Vec<Cell<u64>>,
    /// The block in which [`Starts::oldest`] found the last.
    oldest: Cell<usize>,
}

/// Entries of a block of [`Starts`].
const BLOCK: usize = 16;

impl Starts {
    #[inline]
    fn of(&self, index: u32) -> u64 {
        self.all[index as usize]
    }

    /// Sets the start of an entry, of which at most the last is new.
    #[inline]
    fn set(&mut self, index: u32, start: u64) {
        let at = index as usize;
        if at == self.all.len() {
            self.all.push(NOT_WAITING);
            self.blocks.resize(at / BLOCK + 1, Cell::new(NOT_WAITING));
        }
        self.all[at] = start;
        let block = self.blocks[at / BLOCK].get_mut();
        *block = start.min(*block);
    }

    /// Ends the wait of an entry, which becomes [`NOT_WAITING`] or [`GONE`]; returns whether it did wait.
    #[inline]
    fn end(&mut self, index: u32, start: u64) -> bool {
        std::mem::replace(&mut self.all[index as usize], start) < NOT_WAITING
    }

    fn iter(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.all.iter().zip(0..).map(|(start, index)| (*start, index))
    }

    /// Returns the entry with the earliest start that `accepts` it. Looks only into blocks that may have an earlier one
    /// than was found so far, and first into the one where it was last.
    fn oldest(&self, mut accepts: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut best = (NOT_WAITING, None);
        let n_blocks = self.blocks.len();
        let begin = self.oldest.get().min(n_blocks);
        for at in (begin..n_blocks).chain(0..begin) {
            if self.blocks[at].get() >= best.0 {
                continue;
            }
            let first = at * BLOCK;
            let starts = &self.all[first..self.all.len().min(first + BLOCK)];
            let earliest = starts.iter().copied().min().unwrap_or(NOT_WAITING);
            self.blocks[at].set(earliest);
            if earliest >= best.0 {
                continue;
            }
            for (start, index) in starts.iter().zip(first as u32..) {
                if *start < best.0 && accepts(index) {
                    best = (*start, Some(index));
                }
            }
        }
        self.oldest.set(best.1.map_or(0, |it| it as usize / BLOCK));
        best.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(correlation: u32, context: u32, start: u64) -> Launch {
        Launch { correlation, context, start, launch_kind: Launch::KERNEL, ..Default::default() }
    }

    impl Pending {
        fn add(&mut self, launch: &Launch, expected: bool) {
            self.insert(launch, launch.flags, expected);
        }

        /// Joins an activity whose event is handled at once; returns its launch, and whether it is the first one.
        fn joined(&mut self, correlation: u32, context: u32) -> Option<(Launch, bool)> {
            let (_, cause) = self.join(correlation, context)?;
            let is_first = cause.is_first;
            let held = self.hold(cause);
            let launch = *self.held(held);
            self.release(held);
            Some((launch, is_first))
        }
    }

    #[test]
    fn the_context_decides_between_equal_ids() {
        let mut pending = Pending::new(8);
        pending.add(&launch(7, 1, 10), true);
        pending.add(&launch(7, 2, 20), true);
        assert_eq!(pending.joined(7, 2).map(|(it, _)| it.start), Some(20));
        assert_eq!(pending.joined(7, 9).map(|(it, _)| it.start), Some(10), "one candidate: no context needed");
        assert_eq!(pending.joined(7, 1), None);
    }

    #[test]
    fn an_id_that_is_used_again_is_that_of_the_newer_launch() {
        let mut pending = Pending::new(8);
        pending.add(&Launch { launch_kind: Launch::GRAPH, ..launch(7, 1, 10) }, true);
        assert_eq!(pending.joined(7, 1).map(|(it, _)| it.start), Some(10), "a graph is kept for its other nodes");
        pending.add(&launch(7, 1, 1000), true);
        assert_eq!(pending.joined(7, 1).map(|(it, _)| it.start), Some(1000));
        pending.add(&launch(7, 1, 2000), true);
        pending.add(&launch(7, 1, 3000), true);
        assert_eq!(pending.joined(7, 1).map(|(it, _)| it.start), Some(3000), "the one before was lost");
    }

    #[test]
    fn colliding_slots_are_told_apart_and_the_table_grows() {
        let mut pending = Pending::new(8);
        let ids: Vec<u32> = (0..3000).map(|n| n * FIRST_SLOTS as u32).collect();
        ids.iter().for_each(|id| pending.add(&launch(*id, 1, u64::from(*id)), true));
        assert_eq!(pending.n_waiting(), 3000);
        for id in ids.iter().rev() {
            assert_eq!(pending.joined(*id, 1).map(|(it, first)| (it.correlation, first)), Some((*id, true)));
        }
        assert_eq!(pending.n_waiting(), 0);
    }

    #[test]
    fn graphs_stay_until_newer_ones_need_their_room() {
        let mut pending = Pending::new(2);
        for id in 1..=3 {
            pending.add(&Launch { launch_kind: Launch::GRAPH, ..launch(id, 1, u64::from(id)) }, true);
        }
        assert_eq!(pending.joined(1, 1).map(|it| it.1), Some(true));
        assert_eq!(pending.joined(1, 1).map(|it| it.1), Some(false));
        pending.joined(2, 1);
        pending.joined(3, 1);
        assert_eq!(pending.joined(1, 1), None);
        assert_eq!(pending.joined(3, 1).map(|it| it.1), Some(false));
    }

    #[test]
    fn launches_that_nothing_waits_for_do_not_take_later_ones_with_them() {
        let mut pending = Pending::new(2);
        pending.add(&launch(1, 1, 10), false);
        assert!(pending.joined(1, 1).is_some());
        pending.add(&launch(2, 1, 20), true);
        (3..=5).for_each(|id| pending.add(&launch(id, 1, 10 * u64::from(id)), false));
        assert_eq!(pending.joined(2, 1).map(|it| it.1), Some(true), "it has the entry that the first one had");
        pending.add(&launch(6, 1, 60), true);
        pending.add(&launch(7, 1, 70), true);
        assert_eq!([6, 7].map(|id| pending.joined(id, 1).map(|it| it.0.correlation)), [Some(6), Some(7)]);
    }

    #[test]
    fn the_oldest_is_found_by_blocks_as_among_all() {
        let mut pending = Pending::new(8);
        for id in 1..2000u32 {
            // Starts that jump back and forth.
            pending.add(&launch(id, 1, u64::from(id ^ 0x155)), true);
            if id % 3 != 0 {
                pending.joined(id.wrapping_mul(7) % id.max(1) + 1, 1);
            }
            let is_even = |it: &Launch| it.correlation.is_multiple_of(2);
            let oldest = pending.all_waiting().filter(|it| is_even(it)).min_by_key(|it| it.start).copied();
            assert_eq!(pending.oldest(is_even).copied(), oldest);
        }
        assert!(pending.n_waiting() > 500);
    }

    #[test]
    fn the_oldest_are_evicted_first() {
        let mut pending = Pending::new(8);
        (1..=10).for_each(|id| pending.add(&launch(id, 1, 100 - u64::from(id)), true));
        assert_eq!(pending.oldest(|_| true).map(|it| it.correlation), Some(10));
        let gone: Vec<u32> = pending.evict(3).iter().map(|it| it.correlation).collect();
        assert_eq!(gone, [10, 9, 8]);
        assert_eq!(pending.n_waiting(), 7);
    }
}
