//! The readers of device memory: they find what was put there, and accept any bytes.

mod common;

use std::collections::BTreeMap;

use common::map;
use proptest::prelude::*;
use xputrace_device::arena::{Arena, ArenaError, HashBytes, MapBytes, Needs, RingBytes, RingReader};
use xputrace_device::layout::ring;
use xputrace_device::{DeviceMap, Scope, Storage};

fn any_map() -> impl Strategy<Value = DeviceMap> {
    let kind =
        prop_oneof![Just(Storage::Array), Just(Storage::PerThreadArray), Just(Storage::Hash), Just(Storage::Ring)];
    (kind, 0u32..20, 0u32..40, 0u32..20, 1u32..4).prop_map(|(kind, key_bytes, value_bytes, max_entries, parts)| {
        let parts = if kind == Storage::PerThreadArray { 1 } else { parts };
        DeviceMap { kind, key_bytes, value_bytes, max_entries, parts, scope: Scope::Device }
    })
}

fn elements(map: &DeviceMap, states: &[u8], keys: &[u8], values: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut elements = Vec::new();
    let bytes = MapBytes { map, states, keys, values };
    bytes.for_each(|key, value| elements.push((key.to_vec(), value.to_vec())));
    elements
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_hash_has_what_was_inserted(
        key_bytes in 1u32..20,
        value_bytes in 1u32..20,
        parts in 1u32..4,
        inserted in prop::collection::vec((0u8..30, any::<u8>()), 0..60),
        deleted in 0usize..60,
    ) {
        let map = DeviceMap { parts, ..map(Storage::Hash, key_bytes, value_bytes, 30) };
        let arena = Arena::new(Needs { maps: vec![map], n_sites: 0, ring_slots: 0, n_threads: 1 }).unwrap();
        let place = arena.parts(0).unwrap();
        let zeros = |range: &std::ops::Range<u64>| vec![0; (range.end - range.start) as usize];
        let (mut states, mut keys, mut values) = (zeros(&place.states), zeros(&place.keys), zeros(&place.values));
        let mut expected = BTreeMap::new();
        for (key, value) in inserted {
            let (key, value) = (vec![key; key_bytes as usize], vec![value; (value_bytes * parts) as usize]);
            let mut bytes = HashBytes { map: &map, states: &mut states, keys: &mut keys, values: &mut values };
            prop_assert!(bytes.insert(&key, &value));
            expected.insert(key, value);
        }
        let found: BTreeMap<_, _> = elements(&map, &states, &keys, &values).into_iter().collect();
        prop_assert_eq!(&found, &expected);

        // A deleted element is gone, also after its slot was given back.
        let full: Vec<usize> = (0..states.len() / 4).filter(|it| states[it * 4] & 3 == 2).collect();
        if let Some(slot) = full.get(deleted) {
            states[slot * 4] |= 1;
            let gone = &keys[slot * map.key_stride() as usize..][..key_bytes as usize];
            expected.remove(gone);
        }
        let mut bytes = HashBytes { map: &map, states: &mut states, keys: &mut keys, values: &mut values };
        prop_assert_eq!(bytes.compact(), expected.len() as u64);
        prop_assert!(states.chunks(4).all(|it| it[0] & 3 == 2 || it == [0; 4]));
        let found: BTreeMap<_, _> = elements(&map, &states, &keys, &values).into_iter().collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn any_bytes_are_read(
        map in any_map(),
        states in prop::collection::vec(any::<u8>(), 0..300),
        keys in prop::collection::vec(any::<u8>(), 0..600),
        values in prop::collection::vec(any::<u8>(), 0..900),
    ) {
        let n = elements(&map, &states, &keys, &values).len();
        prop_assert!(n <= map.n_slots() as usize);
        let (mut states, mut keys, mut values) = (states, keys, values);
        let mut bytes = HashBytes { map: &map, states: &mut states, keys: &mut keys, values: &mut values };
        let value = vec![1; (map.value_bytes * map.parts) as usize];
        if map.kind == Storage::Hash {
            bytes.insert(&vec![1; map.key_bytes as usize], &value);
            bytes.compact();
        }
    }

    #[test]
    fn any_ring_is_read(
        slots in prop::collection::vec(any::<u8>(), 0..1000),
        marks in prop::collection::vec(0u8..12, 0..200),
        heads in prop::collection::vec(prop_oneof![0u64..40, any::<u64>(), Just(u64::MAX)], 1..6),
        ring_slots in prop_oneof![Just(0u32), Just(1), Just(8), Just(7), Just(16)],
        at_end in any::<bool>(),
    ) {
        let mut reader = RingReader::new(ring_slots);
        for head in heads {
            let before = reader.position();
            let mut n = 0;
            reader.read(RingBytes { marks: &marks, slots: &slots, head }, at_end, |_| n += 1);
            prop_assert!(n <= ring_slots as usize);
            prop_assert!(reader.position() >= before);
            prop_assert!(!at_end || reader.position() >= head);
        }
    }

    #[test]
    fn nothing_overlaps(maps in prop::collection::vec(any_map(), 0..5), n_sites in 0u32..50, n_threads in 0u64..50) {
        let n_maps = maps.len();
        let arena = Arena::new(Needs { maps, n_sites, ring_slots: 16, n_threads }).unwrap();
        let (head, tail) = arena.ring_words();
        let (slots, marks) = arena.ring_parts();
        let mut ranges = vec![0..arena.table().len() as u64, arena.loss(0)..arena.loss(n_sites), slots, marks];
        ranges.extend([head..head + 8, tail..tail + 8]);
        for map in 0..n_maps {
            let parts = arena.parts(map).unwrap();
            ranges.extend([parts.states.clone(), parts.keys.clone(), parts.values.clone()]);
        }
        ranges.retain(|it| !it.is_empty());
        ranges.sort_by_key(|it| it.start);
        for pair in ranges.windows(2) {
            prop_assert!(pair[0].end <= pair[1].start, "{:?}", pair);
        }
        prop_assert!(ranges.iter().all(|it| it.end <= arena.n_bytes() && it.start.is_multiple_of(8)));
    }
}

#[test]
fn memory_that_cannot_be_is_refused() {
    let needs = |ring_slots, n_threads| Needs {
        maps: vec![map(Storage::PerThreadArray, 4, 1 << 20, 1 << 20)],
        n_sites: 0,
        ring_slots,
        n_threads,
    };
    assert_eq!(Arena::new(needs(3, 1)), Err(ArenaError::RingSlots(3)));
    assert_eq!(Arena::new(needs(0, u64::MAX)), Err(ArenaError::TooLarge));
    assert_eq!(Arena::new(needs(0, 1 << 40)), Err(ArenaError::TooLarge));
}

#[test]
fn a_record_at_the_last_position_there_is_ends_the_reading() {
    const RING_SLOTS: u64 = 16;
    let last = u64::MAX - 1;
    let index = (last % RING_SLOTS) as usize;
    let mut slots = vec![0; 64 * ring::SLOT_BYTES as usize];
    let mut marks = vec![0; RING_SLOTS as usize * ring::MARK_BYTES as usize];
    let mut reader = RingReader::new(RING_SLOTS as u32);
    reader.read(RingBytes { marks: &marks, slots: &slots, head: last }, true, |_| panic!("nothing is written"));
    assert_eq!(reader.position(), last);
    let put = |bytes: &mut [u8], at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    let (slot, len) = (index * ring::SLOT_BYTES as usize, 200);
    put(&mut slots, slot + ring::SITE as usize, len << 32);
    put(&mut slots, slot + ring::POSITION as usize, last);
    put(&mut marks, index * ring::MARK_BYTES as usize + ring::WRITTEN as usize, last + 1);
    let mut n = 0;
    reader.read(RingBytes { marks: &marks, slots: &slots, head: u64::MAX }, true, |_| n += 1);
    assert_eq!((n, reader.position()), (1, u64::MAX));
}
