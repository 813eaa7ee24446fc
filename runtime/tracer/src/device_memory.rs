//! What the memory of real GPUs holds of the script's maps: copies of it, which the store reads as further parts.

use crate::ProcessIndex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use xputrace_bytecode::BpfMapId;
use xputrace_device::DeviceMap;
use xputrace_device::arena::{Arena, MapBytes};
use xputrace_model::loss::{Loss, Losses};

/// How the script's maps lie in a piece of device memory.
#[derive(Clone, Debug)]
pub struct DeviceLayout {
    /// By id.
    pub maps: Vec<DeviceMap>,
    pub arena: Arena,
    /// How many sites count losses.
    pub n_sites: u32,
}

/// The last copies of device memory, of each process and context.
#[derive(Debug, Default)]
pub(crate) struct DeviceMemory {
    layout: Option<Arc<DeviceLayout>>,
    /// By the context's place.
    copies: BTreeMap<ProcessIndex, BTreeMap<usize, Vec<u8>>>,
    /// Processes whose kernels may still change it.
    running: BTreeSet<ProcessIndex>,
    /// Maps that were cleared, and the processes of whose copies.
    cleared: BTreeSet<(BpfMapId, ProcessIndex)>,
}

const STILL_RUNS: &str = "handlers in kernels have changed it in the memory of a GPU, where it cannot be cleared while programs run. \
                          Clear it in an `end` handler";

impl DeviceMemory {
    pub(crate) fn set_layout(&mut self, layout: Arc<DeviceLayout>) {
        self.layout = Some(layout);
    }

    /// Replaces the copies of a process, of the contexts that have a new one: a copy that was cut off by the process's end
    /// leaves the one before.
    pub(crate) fn replace(&mut self, process: ProcessIndex, copies: Vec<(usize, Vec<u8>)>) {
        self.running.insert(process);
        self.copies.entry(process).or_default().extend(copies);
    }

    /// Says that a process's copies were the last ones.
    pub(crate) fn end(&mut self, process: ProcessIndex) {
        self.running.remove(&process);
    }

    /// Forgets what a map holds.
    ///
    /// # Errors
    /// A process may go on changing it.
    pub(crate) fn clear(&mut self, map: BpfMapId) -> Result<(), String> {
        let mut is_there = false;
        self.for_each(map, &mut |_, _| is_there = true);
        if is_there && !self.running.is_empty() {
            return Err(STILL_RUNS.into());
        }
        self.cleared.extend(self.copies.keys().map(|it| (map, *it)));
        Ok(())
    }

    /// Passes all elements of a map to `f`. A key comes as often as there are contexts and parts with it.
    pub(crate) fn for_each(&self, map: BpfMapId, f: &mut dyn FnMut(&[u8], &[u8])) {
        let Some(layout) = &self.layout else { return };
        let (Some(shape), Some(parts)) = (layout.maps.get(map.index()), layout.arena.parts(map.index())) else {
            return;
        };
        let copies = self.copies.iter().filter(|(process, _)| !self.cleared.contains(&(map, **process)));
        for copy in copies.flat_map(|it| it.1.values()) {
            let bytes = |range: &Range<u64>| copy.get(range.start as usize..range.end as usize).unwrap_or_default();
            let map = MapBytes {
                map: shape,
                states: bytes(&parts.states),
                keys: bytes(&parts.keys),
                values: bytes(&parts.values),
            };
            map.for_each(|key, values| {
                values.chunks_exact((shape.value_bytes as usize).max(1)).for_each(|value| f(key, value));
            });
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

    /// Adds the runs of handlers that were ended: by their length, or by an access that is not theirs. What maps refused,
    /// handlers count themselves.
    pub(crate) fn add_losses(&self, losses: &mut Losses) {
        let Some(layout) = &self.layout else { return };
        for copy in self.copies.values().flat_map(BTreeMap::values) {
            let ended = (0..layout.n_sites).map(|site| {
                let offset = layout.arena.loss(site) as usize;
                let bytes = copy.get(offset..offset + 8).and_then(|it| it.try_into().ok());
                bytes.map_or(0, u64::from_le_bytes)
            });
            losses.add(Loss::InstructionLimit, ended.fold(0, u64::saturating_add));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_device::arena::Needs;
    use xputrace_device::{Kind, Scope};

    const MAP: BpfMapId = BpfMapId(0);

    /// An array of two counters, each in three parts.
    fn layout() -> Arc<DeviceLayout> {
        let map = DeviceMap {
            kind: Kind::Array,
            key_bytes: 4,
            value_bytes: 8,
            max_entries: 2,
            parts: 3,
            scope: Scope::Device,
        };
        let maps = vec![map];
        let arena = Arena::new(Needs { maps: maps.clone(), n_sites: 2, ring_slots: 0, n_threads: 0 }).unwrap();
        Arc::new(DeviceLayout { maps, arena, n_sites: 2 })
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
        memory.replace(ProcessIndex(0), vec![(0, of([9; 6], [9, 9]))]);
        memory
            .replace(ProcessIndex(0), vec![(0, of([1, 2, 3, 4, 5, 6], [7, 0])), (2, of([10, 0, 0, 0, 0, 0], [0, 2]))]);
        memory.replace(ProcessIndex(1), vec![(0, of([0, 0, 100, 0, 0, 0], [1, 1]))]);
        assert_eq!(sums(&memory), [116, 15], "the last copies of each");
        let mut losses = Losses::default();
        memory.add_losses(&mut losses);
        assert_eq!(losses.of(Loss::InstructionLimit), 11);
        memory.replace(ProcessIndex(0), vec![(2, of([0; 6], [0; 2]))]);
        assert_eq!(sums(&memory), [106, 15], "a context without a new copy keeps its last");
    }

    #[test]
    fn a_map_is_cleared_when_nothing_changes_it_any_more() {
        let (layout, mut memory) = (layout(), DeviceMemory::default());
        memory.set_layout(layout.clone());
        assert_eq!(memory.clear(MAP), Ok(()), "nothing is there");
        memory.replace(ProcessIndex(0), vec![(0, copy(&layout, [1; 6], [0; 2]))]);
        assert!(memory.clear(MAP).is_err());
        memory.end(ProcessIndex(0));
        assert_eq!((memory.clear(MAP), sums(&memory)), (Ok(()), [0, 0]));
        memory.replace(ProcessIndex(1), vec![(0, copy(&layout, [2; 6], [0; 2]))]);
        assert_eq!(sums(&memory), [6, 6], "a later process");
    }

    #[test]
    fn a_copy_that_is_too_short_has_nothing() {
        let (layout, mut memory) = (layout(), DeviceMemory::default());
        memory.set_layout(layout);
        memory.replace(ProcessIndex(0), vec![(0, vec![1; 64])]);
        assert_eq!(sums(&memory), [0, 0]);
        memory.add_losses(&mut Losses::default());
    }
}
