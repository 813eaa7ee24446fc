//! Threads of a warp that run a block at the same time, in random orders and with random divergence: nothing is lost or
//! counted twice, and nobody waits for ever.

mod common;

use std::collections::BTreeMap;

use common::generate::word;
use common::programs::{self, ARRAY, HASH};
use common::ptx::{Code, Warp};
use common::{map, program};
use proptest::prelude::*;
use xputrace_bytecode::insn::Size;
use xputrace_bytecode::{Assembler, BpfMapId};
use xputrace_device::arena::{Arena, MapBytes, Needs, RingBytes, RingReader};
use xputrace_device::layout::descriptor;
use xputrace_device::{DeviceMap, Options, PtxBlock, Request, Storage, Word, translate};

const RING_SLOTS: u32 = 8;

/// A random order, repeatable by its seed.
struct Schedule(u64);

impl Schedule {
    fn next(&mut self) -> u64 {
        // Marsaglia's xorshift.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Picks one of `n` threads; three times of four those beside it go along.
    fn choose(&mut self, n: usize) -> (usize, bool) {
        let number = self.next();
        ((number >> 8) as usize % n, number & 3 != 0)
    }
}

fn schedule() -> impl Strategy<Value = Schedule> {
    (1..u64::MAX).prop_map(Schedule)
}

impl std::fmt::Debug for Schedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Schedule({})", self.0)
    }
}

/// A block, and the memory that it runs over.
struct Setup {
    maps: Vec<DeviceMap>,
    arena: Arena,
    block: PtxBlock,
}

impl Setup {
    fn new(hash: DeviceMap, write: impl FnOnce(&mut Assembler)) -> Setup {
        let array = DeviceMap { parts: 4, ..map(Storage::Array, 4, 8, 1) };
        let maps = vec![hash, map(Storage::Ring, 0, 0, 0), array];
        let options = Options { architecture: 90, result: Some("%result".into()), ..Options::default() };
        let context = [Word::Narrow("%tid.x".into())];
        let program = program(write);
        let request = Request { program: &program, maps: &maps, context: &context, options: &options };
        let block = translate(request).expect("is translated");
        let needs =
            Needs { maps: maps.clone(), n_sites: block.sites.len() as u32, ring_slots: RING_SLOTS, n_threads: 1 };
        Setup { maps, arena: Arena::new(needs).expect("fits"), block }
    }

    fn warp<'a>(&self, code: &'a Code, n_threads: usize) -> Warp<'a> {
        let mut memory = vec![0; self.arena.n_bytes() as usize];
        let table = self.arena.table();
        memory[..table.len()].copy_from_slice(&table);
        let mut warp = Warp::new(code, n_threads, memory);
        for (lane, thread) in warp.threads.iter_mut().enumerate() {
            thread.special.insert("%tid.x".into(), lane as u64);
            thread.special.insert("%smid".into(), lane as u64 / 8);
        }
        warp
    }

    fn elements(&self, memory: &[u8], map: BpfMapId) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let parts = self.arena.parts(map.index()).expect("is there");
        let part = |range: &std::ops::Range<u64>| &memory[range.start as usize..range.end as usize];
        let map = &self.maps[map.index()];
        let bytes = MapBytes { map, states: part(&parts.states), keys: part(&parts.keys), values: part(&parts.values) };
        let mut elements = BTreeMap::new();
        bytes.for_each(|key, value| {
            assert!(elements.insert(key.to_vec(), value.to_vec()).is_none(), "a key is there twice");
        });
        elements
    }

    fn counter(&self, memory: &[u8], counter: i64) -> u64 {
        word(memory, self.arena.counter(HASH.index(), counter))
    }

    fn losses(&self, memory: &[u8]) -> u64 {
        (0..self.block.sites.len()).map(|it| word(memory, self.arena.loss(it as u32))).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_thread_is_counted_once(mut schedule in schedule(), n_keys in 1..20, n_threads in 1..32usize) {
        let setup = Setup::new(map(Storage::Hash, 16, 8, 20), |asm| programs::count(asm, n_keys));
        let code = Code::parse(&setup.block.text);
        let mut warp = setup.warp(&code, n_threads);
        warp.run(|n| schedule.choose(n));
        let elements = setup.elements(&warp.global, HASH);
        prop_assert_eq!(elements.len(), n_threads.min(n_keys as usize));
        for (key, value) in elements {
            let key = word(&key, 0) as usize;
            let expected = (0..n_threads).filter(|it| it % n_keys as usize == key).count();
            prop_assert_eq!(word(&value, 0), expected as u64);
        }
        prop_assert_eq!(setup.counter(&warp.global, descriptor::LIVE), n_threads.min(n_keys as usize) as u64);
        prop_assert_eq!(setup.counter(&warp.global, descriptor::FULL), 0);
    }

    #[test]
    fn what_a_full_map_refuses_is_counted(mut schedule in schedule(), n_keys in 4..32, n_threads in 1..32usize) {
        let setup = Setup::new(map(Storage::Hash, 16, 8, 3), |asm| programs::count(asm, n_keys));
        let code = Code::parse(&setup.block.text);
        let mut warp = setup.warp(&code, n_threads);
        warp.run(|n| schedule.choose(n));
        let elements = setup.elements(&warp.global, HASH);
        prop_assert!(elements.len() <= 3);
        let counted: u64 = elements.values().map(|it| word(it, 0)).sum();
        let refused = setup.counter(&warp.global, descriptor::FULL);
        prop_assert_eq!(counted + refused, n_threads as u64);
        prop_assert_eq!(setup.counter(&warp.global, descriptor::LIVE), elements.len() as u64);
    }

    #[test]
    fn elements_come_and_go(mut schedule in schedule(), n_keys in 1..6, n_threads in 1..24usize) {
        let setup = Setup::new(map(Storage::Hash, 16, 8, 6), |asm| {
            programs::come_and_go(asm, n_keys);
        });
        let code = Code::parse(&setup.block.text);
        let mut warp = setup.warp(&code, n_threads);
        warp.run(|n| schedule.choose(n));
        let elements = setup.elements(&warp.global, HASH);
        for (key, value) in &elements {
            prop_assert_eq!(word(key, 0), word(value, 0));
        }
        prop_assert_eq!(setup.counter(&warp.global, descriptor::LIVE), elements.len() as u64);
        prop_assert!(!elements.is_empty() || n_threads > 1, "a thread alone leaves its element");
    }

    #[test]
    fn sums_of_a_warp_are_exact(mut schedule in schedule(), n_threads in 1..32usize, wide in any::<bool>()) {
        let size = if wide { Size::Dw } else { Size::W };
        let setup = Setup::new(map(Storage::Hash, 16, 8, 6), |asm| {
            programs::sum(asm, size);
        });
        let code = Code::parse(&setup.block.text);
        let mut warp = setup.warp(&code, n_threads);
        warp.run(|n| schedule.choose(n));
        let parts = setup.elements(&warp.global, ARRAY).remove(&vec![0; 4]).expect("is there");
        for (part, found) in parts.as_chunks::<8>().0.iter().enumerate() {
            let threads = (0..n_threads as u64).filter(|it| it / 8 == part as u64);
            let sum = threads.fold(0u64, |sum, it| sum.wrapping_add(it.wrapping_mul(programs::FACTOR)));
            let expected = if wide { sum } else { u64::from(sum as u32) };
            prop_assert_eq!(u64::from_le_bytes(*found), expected);
        }
    }

    #[test]
    fn every_record_is_read_or_counted_as_dropped(
        mut schedule in schedule(),
        n_threads in 1..32usize,
        n_bytes in 9..150i32,
        reads in 0..100u64,
    ) {
        const N_RECORDS: u64 = 3;
        let setup = Setup::new(map(Storage::Hash, 16, 8, 6), |asm| {
            programs::record(asm, n_bytes, N_RECORDS as i32);
        });
        let code = Code::parse(&setup.block.text);
        let mut warp = setup.warp(&code, n_threads);
        let mut reader = RingReader::new(RING_SLOTS);
        let mut records: Vec<(u64, u8)> = Vec::new();
        let (head, tail) = setup.arena.ring_words();
        let (slots, marks) = setup.arena.ring_parts();
        let mut read = |warp: &mut Warp<'_>, at_end: bool, reader: &mut RingReader| {
            let memory = &warp.global;
            let part = |range: &std::ops::Range<u64>| &memory[range.start as usize..range.end as usize];
            let ring = RingBytes { marks: part(&marks), slots: part(&slots), head: word(memory, head) };
            reader.read(ring, at_end, |it| {
                assert_eq!(it.data.len(), n_bytes as usize);
                records.push((word(it.data, 0), it.data[8]));
            });
            warp.global[tail as usize..][..8].copy_from_slice(&reader.position().to_le_bytes());
        };
        loop {
            if schedule.next() % 1000 < reads {
                read(&mut warp, false, &mut reader);
            }
            if !warp.advance(&mut |n| schedule.choose(n)) {
                break;
            }
        }
        while reader.position() < word(&warp.global, head) {
            read(&mut warp, true, &mut reader);
        }
        let n_slots = (16 + n_bytes as u64).div_ceil(64);
        let dropped = setup.losses(&warp.global);
        prop_assert_eq!(records.len() as u64 + dropped, n_threads as u64 * N_RECORDS);
        prop_assert_eq!((reader.dropped_slots, reader.unwritten_slots), (dropped * n_slots, 0));
        for thread in 0..n_threads as u64 {
            let own: Vec<u8> = records.iter().filter(|it| it.0 == thread).map(|it| it.1).collect();
            prop_assert!(own.is_sorted() && own.windows(2).all(|it| it[0] != it[1]), "{:?}", own);
        }
    }
}
