//! What the memory of real GPUs holds of the script's maps: copies of it, which the store reads as further parts.

use crate::device_launches::{DeviceLaunches, Owner};
use crate::device_layout::DeviceLayout;
use crate::device_records::DeviceRecords;
use crate::process_info::ProcessIndex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use xputrace_bytecode::BpfMapId;
use xputrace_device::Storage;
use xputrace_device::arena::MapBytes;
use xputrace_device::layout::descriptor;
use xputrace_model::loss::{Loss, Losses};
use xputrace_model::plan::Plan;
use xputrace_wire::device::DeviceCopy;

/// The last copies of device memory, of each process and context.
#[derive(Debug, Default)]
pub(crate) struct DeviceMemory {
    layout: Option<Arc<DeviceLayout>>,
    /// What keys say of launches.
    pub(crate) launches: DeviceLaunches,
    /// Of processes whose kernels may still change it, by the context's place.
    copies: BTreeMap<ProcessIndex, BTreeMap<usize, DeviceCopy>>,
    records: DeviceRecords,
    /// Whether there was ever a copy.
    is_used: bool,
    /// What is left of those of processes that have ended: they may be many.
    left: BTreeMap<ProcessIndex, Left>,
}

/// What the device memory of an ended process has: elements, without the room for those that there are not.
#[derive(Debug, Default)]
struct Left {
    /// By map, and the id of the context.
    elements: BTreeMap<(usize, u32), Packed>,
    counts: Counts,
}

/// What device code has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// By site.
    of_sites: Vec<u64>,
    /// Look-ups by threads that arrays per thread have no room for.
    n_beyond: u64,
}

impl Counts {
    /// Reads those in a copy.
    fn of(layout: &DeviceLayout, copy: &[u8]) -> Self {
        let arena = &layout.arena;
        let at = |offset: u64| copy.get(offset as usize..).and_then(|it| it.first_chunk());
        let word = |offset| at(offset).map_or(0, |it| u64::from_le_bytes(*it));
        let beyond = (0..layout.maps.len()).map(|map| word(arena.counter(map, descriptor::BEYOND)));
        Counts {
            of_sites: (0..layout.sites.len() as u32).map(|site| word(arena.loss(site))).collect(),
            n_beyond: beyond.fold(0, u64::saturating_add),
        }
    }

    fn add(&mut self, other: &Counts) {
        self.of_sites.resize(self.of_sites.len().max(other.of_sites.len()), 0);
        let sites = self.of_sites.iter_mut().zip(&other.of_sites);
        sites.for_each(|(sum, it)| *sum = sum.saturating_add(*it));
        self.n_beyond = self.n_beyond.saturating_add(other.n_beyond);
    }
}

/// Keys and values of one map, one behind the other.
#[derive(Debug, Default)]
struct Packed {
    key_bytes: usize,
    value_bytes: usize,
    bytes: Vec<u8>,
}

impl Packed {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        (self.key_bytes, self.value_bytes) = (key.len(), value.len());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
    }

    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        for element in self.bytes.chunks_exact((self.key_bytes + self.value_bytes).max(1)) {
            let (key, value) = element.split_at(self.key_bytes);
            f(key, value);
        }
    }
}

const STILL_RUNS: &str = "handlers in kernels have changed it in the memory of a GPU, where it cannot be cleared while programs run. \
                          Clear it in an `end` handler";

impl DeviceMemory {
    pub(crate) fn of(plan: &Plan) -> Self {
        DeviceMemory { launches: DeviceLaunches::new(plan.launch_parts.clone()), ..DeviceMemory::default() }
    }

    pub(crate) fn set_layout(&mut self, layout: Arc<DeviceLayout>) {
        self.layout = Some(layout);
    }

    /// Whether handlers have run, or could have, on a real GPU.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used
    }

    /// Replaces the copies of a process, of the contexts that have a new one: a copy that was cut off by the process's end
    /// leaves the one before.
    pub(crate) fn replace(&mut self, process: ProcessIndex, copies: Vec<DeviceCopy>) {
        self.left.remove(&process);
        self.is_used |= !copies.is_empty();
        self.copies.entry(process).or_default().extend(copies.into_iter().map(|it| (it.slot, it)));
    }

    /// Says that a process's copies were the last ones, and keeps of them what they have.
    pub(crate) fn end(&mut self, process: ProcessIndex) {
        self.records.end(process);
        let (Some(layout), Some(copies)) = (self.layout.clone(), self.copies.remove(&process)) else { return };
        let mut left = Left::default();
        for DeviceCopy { context, block, .. } in copies.values() {
            left.counts.add(&Counts::of(&layout, block));
            for map in 0..layout.maps.len() {
                let mut packed = left.elements.remove(&(map, *context)).unwrap_or_default();
                pack(&layout, map, block, &mut packed);
                if !packed.bytes.is_empty() {
                    left.elements.insert((map, *context), packed);
                }
            }
        }
        left.elements.values_mut().for_each(|it| it.bytes.shrink_to_fit());
        self.left.insert(process, left);
    }

    /// Forgets what a map holds.
    ///
    /// # Errors
    /// A process may go on changing it.
    pub(crate) fn clear(&mut self, map: BpfMapId) -> Result<(), String> {
        let mut is_there = false;
        self.for_each(map, &mut |_, _| is_there = true);
        if is_there && !self.copies.is_empty() {
            return Err(STILL_RUNS.into());
        }
        self.left.values_mut().for_each(|left| left.elements.retain(|(it, _), _| *it != map.index()));
        Ok(())
    }

    /// Passes all elements of a map to `f`, with what their launches are in their keys. A key comes as often as there are
    /// contexts, parts and launches with it.
    pub(crate) fn for_each(&self, map: BpfMapId, f: &mut dyn FnMut(&[u8], &[u8])) {
        let Some(layout) = &self.layout else { return };
        let copies = self.copies.iter().flat_map(|(process, it)| it.values().map(|copy| (*process, copy)));
        for (process, DeviceCopy { context, block, .. }) in copies {
            for_each_in(layout, map.index(), block, &mut |key, values| {
                let key = self.launches.told(map, Owner { process, context: *context }, key);
                values.for_each(|value| f(&key, value));
            });
        }
        let of_map = (map.index(), 0)..=(map.index(), u32::MAX);
        for (process, left) in &self.left {
            for ((_, context), packed) in left.elements.range(of_map.clone()) {
                let owner = Owner { process: *process, context: *context };
                packed.for_each(&mut |key, value| f(&self.launches.told(map, owner, key), value));
            }
        }
    }

    /// Returns the value of a map's element, the first there is.
    pub(crate) fn lookup(&self, map: BpfMapId, key: &[u8]) -> Option<Vec<u8>> {
        let mut found = None;
        self.for_each(map, &mut |it, value| {
            if it == key && found.is_none() {
                found = Some(value.to_vec());
            }
        });
        found
    }

    /// Adds what device code lost and did not count in a map.
    pub(crate) fn add_losses(&self, losses: &mut Losses) {
        let Some(layout) = &self.layout else { return };
        let mut counts = Counts::default();
        let copies = self.copies.values().flat_map(BTreeMap::values);
        copies.for_each(|it| counts.add(&Counts::of(layout, &it.block)));
        self.left.values().for_each(|it| counts.add(&it.counts));
        for (site, n) in layout.sites.iter().zip(counts.of_sites) {
            match site.loss {
                Some(Loss::DeviceRingFull) => losses.add_at(Loss::DeviceRingFull, site.at, n),
                Some(loss) => losses.add(loss, n),
                None => {}
            }
        }
        losses.add(Loss::DeviceThreadBeyond, counts.n_beyond);
        losses.add(Loss::DeviceRingFull, self.records.n_unfinished());
        losses.add(Loss::DeviceLaunchUnknown, self.launches.n_unknown());
    }

    /// Returns how the script's maps lie in device memory, and how far its rings were read; `None` without device code.
    pub(crate) fn records_mut(&mut self) -> Option<(Arc<DeviceLayout>, &mut DeviceRecords)> {
        Some((self.layout.clone()?, &mut self.records))
    }
}

/// What is done with an element: its key, and the values of all its parts.
type OfElement<'a> = dyn FnMut(&[u8], &mut dyn Iterator<Item = &[u8]>) + 'a;

/// Passes the elements of a copy's map to `f`, each with the values of all its parts. In an array per thread, a key is the index and the
/// thread, and there are as many elements as threads have changed.
fn for_each_in(layout: &DeviceLayout, map: usize, copy: &[u8], f: &mut OfElement<'_>) {
    let (Some(shape), Some(parts)) = (layout.maps.get(map), layout.arena.parts(map)) else { return };
    let bytes = |range: &Range<u64>| copy.get(range.start as usize..range.end as usize).unwrap_or_default();
    let map =
        MapBytes { map: shape, states: bytes(&parts.states), keys: bytes(&parts.keys), values: bytes(&parts.values) };
    map.for_each(|key, values| {
        let mut values = values.chunks_exact((shape.value_bytes as usize).max(1));
        match shape.kind {
            Storage::PerThreadArray => {
                (0u32..).zip(values).filter(|it| !is_untouched(it.1)).for_each(|(thread, value)| {
                    f(&[key, &thread.to_le_bytes()].concat(), &mut std::iter::once(value));
                })
            }
            _ => f(key, &mut values),
        }
    });
}

/// Whether nobody has changed a value of an array, or of a part.
fn is_untouched(value: &[u8]) -> bool {
    value.iter().all(|byte| *byte == 0)
}

/// Adds the elements of a copy's map. A part that was never updated is all 0, and adds nothing to others; one of them stays,
/// so that the element does.
fn pack(layout: &DeviceLayout, map: usize, copy: &[u8], packed: &mut Packed) {
    for_each_in(layout, map, copy, &mut |key, values| {
        let (mut first, mut has_any) = (None, false);
        for value in values {
            first.get_or_insert(value);
            if !is_untouched(value) {
                packed.add(key, value);
                has_any = true;
            }
        }
        first.filter(|_| !has_any).into_iter().for_each(|value| packed.add(key, value));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_layout::DeviceSite;
    use xputrace_device::arena::{Arena, Needs};
    use xputrace_device::{DeviceMap, Scope};
    use xputrace_model::diagnostic::Site;

    const MAP: BpfMapId = BpfMapId(0);

    /// An array of two counters, each in three parts.
    fn layout() -> Arc<DeviceLayout> {
        let map = DeviceMap {
            kind: Storage::Array,
            key_bytes: 4,
            value_bytes: 8,
            max_entries: 2,
            parts: 3,
            scope: Scope::Device,
        };
        let maps = vec![map];
        let arena = Arena::new(Needs { maps: maps.clone(), n_sites: 2, ring_slots: 0, n_threads: 0 }).unwrap();
        let ended = DeviceSite { loss: Some(Loss::InstructionLimit), record: None, at: Site::default() };
        Arc::new(DeviceLayout { maps, arena, sites: vec![ended; 2] })
    }

    /// A copy whose counters have these numbers, those of all parts of the first before the second's, and whose sites these losses.
    fn copy(layout: &DeviceLayout, values: [u64; 6], losses: [u64; 2]) -> Vec<u8> {
        let mut copy = vec![0; layout.arena.n_bytes() as usize];
        let mut put = |at: u64, word: u64| copy[at as usize..at as usize + 8].copy_from_slice(&word.to_le_bytes());
        let start = layout.arena.parts(0).unwrap().values.start;
        let part_bytes = layout.maps[0].part_bytes();
        (0..).zip(values).for_each(|(n, it)| put(start + n % 3 * part_bytes + n / 3 * 8, it));
        (0..).zip(losses).for_each(|(site, it)| put(layout.arena.loss(site), it));
        copy
    }

    fn at(slot: usize, block: Vec<u8>) -> DeviceCopy {
        DeviceCopy { slot, context: slot as u32 + 1, is_last: false, block }
    }

    fn sums(memory: &DeviceMemory) -> [u64; 2] {
        let mut sums = [0; 2];
        memory.for_each(MAP, &mut |key, value| {
            sums[key[0] as usize] += u64::from_le_bytes(value.try_into().unwrap());
        });
        sums
    }

    #[test]
    fn parts_contexts_and_processes_are_read_together() {
        let (layout, mut memory) = (layout(), DeviceMemory::default());
        assert_eq!(sums(&memory), [0, 0], "without a layout");
        memory.set_layout(layout.clone());
        let of = |values, losses| copy(&layout, values, losses);
        memory.replace(ProcessIndex(0), vec![at(0, of([9; 6], [9, 9]))]);
        memory.replace(
            ProcessIndex(0),
            vec![at(0, of([1, 2, 3, 4, 5, 6], [7, 0])), at(2, of([10, 0, 0, 0, 0, 0], [0, 2]))],
        );
        memory.replace(ProcessIndex(1), vec![at(0, of([0, 0, 100, 0, 0, 0], [1, 1]))]);
        assert_eq!(sums(&memory), [116, 15], "the last copies of each");
        let mut losses = Losses::default();
        memory.add_losses(&mut losses);
        assert_eq!(losses.of(Loss::InstructionLimit), 11);
        memory.replace(ProcessIndex(0), vec![at(2, of([0; 6], [0; 2]))]);
        assert_eq!(sums(&memory), [106, 15], "a context without a new copy keeps its last");
    }

    #[test]
    fn a_map_is_cleared_when_nothing_changes_it_any_more() {
        let (layout, mut memory) = (layout(), DeviceMemory::default());
        memory.set_layout(layout.clone());
        assert_eq!(memory.clear(MAP), Ok(()), "nothing is there");
        memory.replace(ProcessIndex(0), vec![at(0, copy(&layout, [1; 6], [0; 2]))]);
        assert!(memory.clear(MAP).is_err());
        memory.end(ProcessIndex(0));
        assert_eq!((memory.clear(MAP), sums(&memory)), (Ok(()), [0, 0]));
        memory.replace(ProcessIndex(1), vec![at(0, copy(&layout, [2; 6], [0; 2]))]);
        assert_eq!(sums(&memory), [6, 6], "a later process");
    }

    #[test]
    fn an_ended_process_keeps_its_elements_and_no_room_for_others() {
        let (layout, mut memory) = (layout(), DeviceMemory::default());
        memory.set_layout(layout.clone());
        let of = |values, losses| copy(&layout, values, losses);
        for process in 0..100 {
            let process = ProcessIndex(process);
            memory.replace(process, vec![at(0, of([0, 7, 0, 0, 0, 0], [1, 2])), at(3, of([1, 0, 0, 0, 0, 0], [0, 0]))]);
            memory.end(process);
        }
        assert_eq!(sums(&memory), [800, 0]);
        let mut losses = Losses::default();
        memory.add_losses(&mut losses);
        assert_eq!(losses.of(Loss::InstructionLimit), 300);
        let mut zeros = 0;
        memory.for_each(MAP, &mut |key, value| zeros += usize::from(key[0] == 1 && value == [0; 8]));
        assert_eq!(zeros, 200, "an element that is 0 is one");
        let kept: usize = memory.left.values().flat_map(|it| it.elements.values()).map(|it| it.bytes.capacity()).sum();
        // Of each context, a key and a value of each of the two elements.
        assert_eq!((kept, memory.copies.len()), (100 * 2 * 2 * 12, 0));
    }

    #[test]
    fn a_copy_that_is_too_short_has_nothing() {
        let (layout, mut memory) = (layout(), DeviceMemory::default());
        memory.set_layout(layout);
        memory.replace(ProcessIndex(0), vec![at(0, vec![1; 64])]);
        assert_eq!(sums(&memory), [0, 0]);
        memory.add_losses(&mut Losses::default());
    }
}
