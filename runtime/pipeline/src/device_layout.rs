//! How the script's maps lie in the memory of real GPUs.

use std::collections::{BTreeMap, BTreeSet};
use xputrace_bytecode::BpfMapId;
use xputrace_device::arena::{Arena, HashBytes};
use xputrace_device::layout::descriptor;
use xputrace_device::{DeviceMap, RecordKind, Storage};
use xputrace_model::diagnostic::Site;
use xputrace_model::loss::Loss;
use xputrace_model::object::Element;

/// How the script's maps lie in a piece of device memory.
#[derive(Clone, Debug)]
pub struct DeviceLayout {
    /// By id.
    pub maps: Vec<DeviceMap>,
    pub arena: Arena,
    /// The sites of all handlers, by number.
    pub sites: Vec<DeviceSite>,
}

/// A place in a handler that counts losses, or writes records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSite {
    /// What is counted there; `None` for what the handler counts itself.
    pub loss: Option<Loss>,
    /// What the data of its records are, if it writes any.
    pub record: Option<RecordKind>,
    /// Where the handler is in the source.
    pub at: Site,
}

impl DeviceLayout {
    /// Stores elements that maps have from the start in memory that no kernel uses yet. What there is no room for is left out.
    pub fn fill<'a>(&self, elements: impl IntoIterator<Item = &'a Element>, memory: &mut [u8]) {
        let mut live: BTreeMap<BpfMapId, BTreeSet<&[u8]>> = BTreeMap::new();
        for Element { map, key, value } in elements {
            let shape = self.maps.get(map.index());
            match shape.map(|it| it.kind) {
                Some(Storage::Array) => self.store(*map, key, value, memory),
                Some(Storage::Hash) if self.insert(*map, key, value, memory) => {
                    live.entry(*map).or_default().insert(key);
                }
                _ => {}
            }
        }
        for (map, keys) in live {
            let at = self.arena.counter(map.index(), descriptor::LIVE) as usize;
            memory[at..][..8].copy_from_slice(&(keys.len() as u64).to_le_bytes());
        }
    }

    fn store(&self, map: BpfMapId, key: &[u8], value: &[u8], memory: &mut [u8]) {
        let (Some(shape), Some(parts)) = (self.maps.get(map.index()), self.arena.parts(map.index())) else { return };
        let index = key.first_chunk().map_or(0, |it| u32::from_le_bytes(*it));
        let start = parts.values.start + u64::from(index) * u64::from(shape.value_stride());
        let place = memory.get_mut(start as usize..).and_then(|it| it.get_mut(..value.len()));
        place.into_iter().for_each(|it| it.copy_from_slice(value));
    }

    fn insert(&self, map: BpfMapId, key: &[u8], value: &[u8], memory: &mut [u8]) -> bool {
        let (Some(shape), Some(parts)) = (self.maps.get(map.index()), self.arena.parts(map.index())) else {
            return false;
        };
        let ranges = [&parts.states, &parts.keys, &parts.values].map(|it| it.start as usize..it.end as usize);
        let Ok([states, keys, values]) = memory.get_disjoint_mut(ranges) else { return false };
        HashBytes { map: shape, states, keys, values }.insert(key, value)
    }
}
