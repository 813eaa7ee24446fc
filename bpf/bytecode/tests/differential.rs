//! Compares the engine with Linux: random programs that the verifier accepts by construction run in
//! both, and must leave the same contents in maps, ring buffer and result.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use common::{can_load, image, map};
use libbpf_rs::{MapCore as _, MapFlags, ObjectBuilder, ProgramInput};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use xputrace_bytecode::image::{Home, Image, MapKind, MapSpec, Program, ProgramKind};
use xputrace_bytecode::insn::{Insn, Size, atomic, class, mode};
use xputrace_bytecode::vm::{Engine, Env};
use xputrace_bytecode::{BpfMapId, ProgramId, helper, object};

const N_CASES: u32 = 400;
const N_CTX_WORDS: usize = 8;

// Indices of every test image's maps, after a hash.
const ARRAY: BpfMapId = BpfMapId(1);
const PERCPU: BpfMapId = BpfMapId(2);
const LRU: BpfMapId = BpfMapId(3);
const RING: BpfMapId = BpfMapId(4);
const OUT: BpfMapId = BpfMapId(5);

/// Size of the stack area, below the frame pointer, that programs access at random.
const STACK: i16 = 64;
/// Where the key and value for map helpers are stored, and the registers at the end.
const KEY_AT: i16 = -72;
const VALUE_AT: i16 = -88;
const OUT_AT: i16 = -160;
const CTX_REG: u8 = 9;
const COUNTER_REG: u8 = 8;

/// Generates a register for scalars.
fn reg() -> impl Strategy<Value = u8> {
    prop_oneof![Just(0u8), 1u8..8]
}

#[derive(Clone, Copy, Debug)]
enum Operand {
    Reg(u8),
    Imm(i32),
}

#[derive(Clone, Debug)]
enum Step {
    Const { dst: u8, value: u64 },
    Alu { op: u8, signed: bool, wide: bool, dst: u8, operand: Operand },
    Extend { bits: i16, wide: bool, dst: u8, src: u8 },
    ByteOrder { bits: i32, kind: u8, dst: u8 },
    If { cond: u8, wide: bool, dst: u8, operand: Operand, then: Vec<Step>, otherwise: Vec<Step>, long: bool },
    Loop { n: i32, body: Vec<Step> },
    LoadCtx { size: Size, signed: bool, dst: u8, at: i16 },
    LoadStack { size: Size, signed: bool, dst: u8, at: i16 },
    StoreStack { size: Size, at: i16, operand: Operand },
    Atomic { op: i32, wide: bool, at: i16, src: u8 },
    Lookup { map: BpfMapId, key: u8, change: Option<(i32, bool)>, percpu: bool },
    Update { map: BpfMapId, key: u8, value: u8, flags: i32 },
    Delete { map: BpfMapId, key: u8 },
    Plain { helper: i32 },
    Comm,
    NsPid,
    Read { helper: i32, good: bool, len: u8 },
    Output { value: u8 },
    Record { value: u8, submit: bool },
}

fn number() -> impl Strategy<Value = i32> {
    prop_oneof![-3i32..4, Just(i32::MIN), Just(i32::MAX), any::<i32>()]
}

fn operand() -> impl Strategy<Value = Operand> {
    prop_oneof![reg().prop_map(Operand::Reg), number().prop_map(Operand::Imm)]
}

fn wide_number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..4, Just(u64::MAX), Just(1 << 63), Just(1 << 31), any::<u64>()]
}

fn size() -> impl Strategy<Value = Size> {
    prop::sample::select(vec![Size::B, Size::H, Size::W, Size::Dw])
}

const ALU_OPS: [u8; 13] = [0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0];
const CONDS: [u8; 11] = [0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xa0, 0xb0, 0xc0, 0xd0];
const ATOMICS: [i32; 10] = [
    atomic::ADD,
    atomic::OR,
    atomic::AND,
    atomic::XOR,
    atomic::ADD | 1,
    atomic::OR | 1,
    atomic::AND | 1,
    atomic::XOR | 1,
    atomic::XCHG,
    atomic::CMPXCHG,
];
const PLAIN: [i32; 2] = [helper::GET_CURRENT_PID_TGID, helper::GET_CURRENT_UID_GID];
const READS: [i32; 4] =
    [helper::PROBE_READ_USER, helper::PROBE_READ_KERNEL, helper::PROBE_READ_USER_STR, helper::PROBE_READ_KERNEL_STR];

fn simple() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (reg(), wide_number()).prop_map(|(dst, value)| Step::Const { dst, value }),
        10 => (prop::sample::select(ALU_OPS.to_vec()), any::<bool>(), any::<bool>(), reg(), operand())
            .prop_map(|(op, signed, wide, dst, operand)| Step::Alu { op, signed, wide, dst, operand }),
        2 => (prop::sample::select(vec![8i16, 16, 32]), any::<bool>(), reg(), reg())
            .prop_map(|(bits, wide, dst, src)| Step::Extend { bits, wide, dst, src }),
        2 => (prop::sample::select(vec![16, 32, 64]), 0u8..3, reg())
            .prop_map(|(bits, kind, dst)| Step::ByteOrder { bits, kind, dst }),
        2 => (size(), any::<bool>(), reg(), 0..8i16)
            .prop_map(|(size, signed, dst, at)| Step::LoadCtx { size, signed, dst, at }),
        2 => (size(), any::<bool>(), reg(), 0..8i16)
            .prop_map(|(size, signed, dst, at)| Step::LoadStack { size, signed, dst, at }),
        2 => (size(), 0..8i16, operand())
            .prop_map(|(size, at, operand)| Step::StoreStack { size, at, operand }),
        3 => (prop::sample::select(ATOMICS.to_vec()), any::<bool>(), 0..8i16, reg())
            .prop_map(|(op, wide, at, src)| Step::Atomic { op, wide, at, src }),
        4 => map_step(),
        2 => surroundings_step(),
    ]
}

fn map_step() -> impl Strategy<Value = Step> {
    let change = prop::option::of((prop::sample::select(ATOMICS.to_vec()), any::<bool>()));
    prop_oneof![
        2 => ((0..5u32).prop_map(BpfMapId), reg(), change, any::<bool>()).prop_map(|(map, key, change, percpu)| {
            Step::Lookup { map: map.min(LRU), key, change, percpu }
        }),
        3 => ((0..=LRU.0).prop_map(BpfMapId), reg(), reg(), 0..4).prop_map(|(map, key, value, flags)| {
            Step::Update { map, key, value, flags }
        }),
        1 => ((0..=LRU.0).prop_map(BpfMapId), reg()).prop_map(|(map, key)| Step::Delete { map, key }),
    ]
}

fn surroundings_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        prop::sample::select(PLAIN.to_vec()).prop_map(|helper| Step::Plain { helper }),
        Just(Step::Comm),
        Just(Step::NsPid),
        (prop::sample::select(READS.to_vec()), any::<bool>(), 1u8..=16).prop_map(|(helper, good, len)| Step::Read {
            helper,
            good,
            len
        }),
        reg().prop_map(|value| Step::Output { value }),
        (reg(), any::<bool>()).prop_map(|(value, submit)| Step::Record { value, submit }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let few = || prop::collection::vec(simple(), 1..4);
    prop_oneof![
        8 => simple(),
        3 => (prop::sample::select(CONDS.to_vec()), any::<bool>(), reg(), operand(), few(), few(), any::<bool>())
            .prop_map(|(cond, wide, dst, operand, then, otherwise, long)| {
                Step::If { cond, wide, dst, operand, then, otherwise, long }
            }),
        1 => (1..4, few()).prop_map(|(n, body)| Step::Loop { n, body }),
    ]
}

/// Emits raw instructions, because the assembler only has those that the compiler needs.
#[derive(Default)]
struct Emitter {
    insns: Vec<Insn>,
    map_refs: Vec<(usize, BpfMapId)>,
    readable: u64,
    pid_namespace: (u64, u64),
}

impl Emitter {
    fn raw(&mut self, code: u8, dst: u8, src: u8, off: i16, imm: i32) {
        self.insns.push(Insn { code, dst, src, off, imm });
    }

    fn mov(&mut self, dst: u8, src: u8) {
        self.raw(0xbf, dst, src, 0, 0);
    }

    fn mov_imm(&mut self, dst: u8, imm: i32) {
        self.raw(0xb7, dst, 0, 0, imm);
    }

    fn constant(&mut self, dst: u8, value: u64) {
        self.raw(0x18, dst, 0, 0, value as i32);
        self.raw(0, 0, 0, 0, (value >> 32) as i32);
    }

    fn ld_map(&mut self, dst: u8, map: BpfMapId) {
        self.map_refs.push((self.insns.len(), map));
        self.raw(0x18, dst, 1, 0, 0);
        self.raw(0, 0, 0, 0, 0);
    }

    fn address(&mut self, dst: u8, off: i16) {
        self.mov(dst, 10);
        self.raw(0x07, dst, 0, 0, off.into());
    }

    fn store(&mut self, off: i16, src: u8) {
        self.raw(0x7b, 10, src, off, 0);
    }

    /// Emits a call; afterwards R1 to R5 are scalars again.
    fn call(&mut self, helper: i32) {
        self.raw(0x85, 0, 0, 0, helper);
        (1..6).for_each(|it| self.mov_imm(it, 7 * i32::from(it)));
    }

    fn begin(&mut self) {
        self.mov(CTX_REG, 1);
        for at in (8..=-OUT_AT).step_by(8) {
            self.raw(0x7a, 10, 0, -at, i32::from(at));
        }
        for reg in 0..CTX_REG {
            self.raw(0x79, reg, CTX_REG, i16::from(reg % N_CTX_WORDS as u8) * 8, 0);
        }
    }

    /// Stores all registers in the map `OUT`.
    fn end(&mut self) {
        (0..CTX_REG).for_each(|it| self.store(OUT_AT + i16::from(it) * 8, it));
        self.mov_imm(1, 0);
        self.raw(0x63, 10, 1, KEY_AT, 0);
        self.ld_map(1, OUT);
        self.address(2, KEY_AT);
        self.address(3, OUT_AT);
        self.mov_imm(4, 0);
        self.raw(0x85, 0, 0, 0, helper::MAP_UPDATE_ELEM);
        self.raw(0x79, 0, 10, OUT_AT, 0);
        self.raw(0x95, 0, 0, 0, 0);
    }

    /// Stores a key for helpers, from a small range so that lookups often succeed.
    fn key(&mut self, map: BpfMapId, from: u8) {
        self.store(KEY_AT, from);
        self.raw(0x79, 1, 10, KEY_AT, 0);
        // Includes one key beyond the end.
        self.raw(0x57, 1, 0, 0, if map == ARRAY { 7 } else { 15 });
        self.store(KEY_AT, 1);
        self.ld_map(1, map);
        self.address(2, KEY_AT);
    }

    fn steps(&mut self, steps: &[Step]) {
        steps.iter().for_each(|it| self.step(it));
    }

    /// Emits the body, and makes the jump at `from` skip it.
    fn over(&mut self, from: usize, long: bool, body: impl FnOnce(&mut Self)) {
        body(self);
        let distance = self.insns.len() - from - 1;
        if long {
            self.insns[from].imm = distance as i32;
        } else {
            self.insns[from].off = distance as i16;
        }
    }

    fn here(&self) -> usize {
        self.insns.len()
    }

    fn unless_null(&mut self, body: impl FnOnce(&mut Self)) {
        let from = self.here();
        self.raw(0x15, 0, 0, 0, 0);
        self.over(from, false, body);
        self.mov_imm(0, 5);
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Const { dst, value } => self.constant(*dst, *value),
            Step::Alu { op, signed, wide, dst, operand } => {
                self.alu(*op, *signed, *wide, *dst, *operand);
            }
            Step::Extend { bits: 32, wide: false, dst, src } => self.raw(0xbf, *dst, *src, 32, 0),
            Step::Extend { bits, wide, dst, src } => {
                self.raw(if *wide { 0xbf } else { 0xbc }, *dst, *src, *bits, 0);
            }
            Step::ByteOrder { bits, kind, dst } => {
                self.raw([0xd4, 0xdc, 0xd7][usize::from(*kind)], *dst, 0, 0, *bits);
            }
            Step::If { cond, wide, dst, operand, then, otherwise, long } => {
                let class = if *wide { class::JMP } else { class::JMP32 };
                let from = self.here();
                match operand {
                    Operand::Reg(src) => self.raw(class | 8 | cond, *dst, *src, 0, 0),
                    Operand::Imm(imm) => self.raw(class | cond, *dst, 0, 0, *imm),
                }
                let mut skip = 0;
                self.over(from, false, |it| {
                    it.steps(then);
                    skip = it.here();
                    it.raw(if *long { class::JMP32 } else { class::JMP }, 0, 0, 0, 0);
                });
                self.over(skip, *long, |it| it.steps(otherwise));
            }
            Step::Loop { n, body } => {
                self.mov_imm(COUNTER_REG, 0);
                let top = self.here();
                self.steps(body);
                self.raw(0x07, COUNTER_REG, 0, 0, 1);
                let distance = top as i64 - self.here() as i64 - 1;
                self.raw(0xa5, COUNTER_REG, 0, distance as i16, *n);
            }
            Step::LoadCtx { size, signed, dst, at } => {
                self.raw(load(*size, *signed), *dst, CTX_REG, at * 8, 0);
            }
            Step::LoadStack { size, signed, dst, at } => {
                self.raw(load(*size, *signed), *dst, 10, at * 8 - STACK, 0);
            }
            Step::StoreStack { size, at, operand } => match operand {
                Operand::Reg(src) => self.raw(0x63 | *size as u8, 10, *src, at * 8 - STACK, 0),
                Operand::Imm(imm) => self.raw(0x62 | *size as u8, 10, 0, at * 8 - STACK, *imm),
            },
            Step::Atomic { op, wide, at, src } => {
                self.raw(if *wide { 0xdb } else { 0xc3 }, 10, *src, at * 8 - STACK, *op);
                match *op {
                    atomic::CMPXCHG => self.blur(0),
                    op if op & atomic::FETCH != 0 => self.blur(*src),
                    _ => {}
                }
            }
            Step::Lookup { map, key, change, percpu } => self.lookup(*map, *key, *change, *percpu),
            Step::Update { map, key, value, flags } => {
                self.store(VALUE_AT, *value);
                self.key(*map, *key);
                self.address(3, VALUE_AT);
                self.mov_imm(4, *flags);
                self.call(helper::MAP_UPDATE_ELEM);
            }
            Step::Delete { map, key } => {
                self.key(*map, *key);
                self.call(helper::MAP_DELETE_ELEM);
            }
            Step::Plain { helper } => self.call(*helper),
            Step::Comm => {
                self.address(1, -STACK);
                self.mov_imm(2, 16);
                self.call(helper::GET_CURRENT_COMM);
            }
            Step::NsPid => {
                let (dev, ino) = self.pid_namespace;
                self.constant(1, dev);
                self.constant(2, ino);
                self.address(3, -STACK);
                self.mov_imm(4, 8);
                self.call(helper::GET_NS_CURRENT_PID_TGID);
            }
            Step::Read { helper, good, len } => {
                self.address(1, -STACK);
                self.mov_imm(2, (*len).into());
                let address = match (is_user(*helper), good) {
                    (true, true) => self.readable,
                    (true, false) => 16,
                    // An unmapped address in Linux's half; other addresses would fail with -ERANGE.
                    (false, _) => 0xffff_ffff_ffff_f000,
                };
                self.constant(3, address);
                self.call(*helper);
            }
            Step::Output { value } => {
                self.store(VALUE_AT, *value);
                self.ld_map(1, RING);
                self.address(2, VALUE_AT);
                self.mov_imm(3, 16);
                self.mov_imm(4, 0);
                self.call(helper::RINGBUF_OUTPUT);
            }
            Step::Record { value, submit } => {
                self.store(VALUE_AT, *value);
                self.ld_map(1, RING);
                self.mov_imm(2, 24);
                self.mov_imm(3, 0);
                self.call(helper::RINGBUF_RESERVE);
                self.unless_null(|it| {
                    it.raw(0x79, 1, 10, VALUE_AT, 0);
                    (0..3).for_each(|word| it.raw(0x7b, 0, 1, word * 8, 0));
                    it.mov(1, 0);
                    it.mov_imm(2, 0);
                    it.call(if *submit { helper::RINGBUF_SUBMIT } else { helper::RINGBUF_DISCARD });
                });
            }
        }
    }

    fn alu(&mut self, op: u8, signed: bool, wide: bool, dst: u8, operand: Operand) {
        let class = if wide { class::ALU64 } else { class::ALU };
        let off = i16::from(signed && matches!(op, 0x30 | 0x90));
        match operand {
            _ if op == 0x80 => self.raw(class | op, dst, 0, 0, 0),
            Operand::Reg(src) => self.raw(class | 8 | op, dst, src, off, 0),
            // The verifier requires shifts in range and divisors other than 0.
            Operand::Imm(imm) if matches!(op, 0x60 | 0x70 | 0xc0) => {
                self.raw(class | op, dst, 0, off, imm & 31);
            }
            Operand::Imm(0) if matches!(op, 0x30 | 0x90) => self.raw(class | op, dst, 0, off, -1),
            Operand::Imm(imm) => self.raw(class | op, dst, 0, off, imm),
        }
    }

    /// Mixes in a number that the verifier does not know. Linux 6.18 assumes that it knows what an
    /// atomic operation fetches from the stack, even if that differs between paths, and then
    /// removes branches that are taken. This is the only known difference between the engine and
    /// Linux.
    fn blur(&mut self, reg: u8) {
        let other = if reg == 5 { 4 } else { 5 };
        self.raw(0x79, other, CTX_REG, 0, 0);
        self.raw(0xaf, reg, other, 0, 0);
    }

    fn lookup(&mut self, map: BpfMapId, key: u8, change: Option<(i32, bool)>, percpu: bool) {
        self.key(map, key);
        if percpu && map == PERCPU {
            self.mov_imm(3, 0);
            self.call(helper::MAP_LOOKUP_PERCPU_ELEM);
        } else {
            self.call(helper::MAP_LOOKUP_ELEM);
        }
        self.unless_null(|it| {
            it.raw(0x79, 6, 0, 8, 0);
            match change {
                // R0 is the pointer here, and compare-and-swap would compare with it.
                Some((op, wide)) if op != atomic::CMPXCHG => {
                    it.raw(if wide { 0xdb } else { 0xc3 }, 0, 6, 8, op);
                    it.raw(0x63, 0, 7, 0, 0);
                    it.raw(0x72, 0, 0, 5, 17);
                }
                _ => it.raw(0x81, 7, 0, 0, 0),
            }
        });
    }
}

fn is_user(helper: i32) -> bool {
    matches!(helper, helper::PROBE_READ_USER | helper::PROBE_READ_USER_STR)
}

fn load(size: Size, signed: bool) -> u8 {
    let sign = if signed && size != Size::Dw { mode::MEMSX } else { mode::MEM };
    class::LDX | sign | size as u8
}

fn maps() -> Vec<MapSpec> {
    vec![
        map("hash", MapKind::Hash, 8, 16, 10),
        map("array", MapKind::Array, 8, 16, 6),
        map("percpu", MapKind::PercpuHash, 8, 16, 64),
        map("lru", MapKind::LruHash, 8, 16, 4096),
        map("ring", MapKind::Ringbuf, 0, 0, 1 << 16),
        map("out", MapKind::Array, 4, 72, 1),
    ]
    .into_iter()
    .map(|it| if it.name == "array" { MapSpec { key_size: 4, ..it } } else { it })
    // The engine also holds maps of this home that no program uses.
    .map(|it| MapSpec { home: Home::Tracer, ..it })
    .collect()
}

/// What a run leaves behind.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    result: u32,
    maps: BTreeMap<(BpfMapId, Vec<u8>), Vec<u8>>,
    records: Vec<Vec<u8>>,
}

/// A string that programs may read, and the ids of the thread that runs them.
struct Thread {
    text: [u8; 16],
    records: Vec<Vec<u8>>,
}

impl Env for Thread {
    fn pid_tgid(&mut self) -> u64 {
        // SAFETY: neither call has preconditions.
        let (pid, tid) = unsafe { (libc::getpid(), libc::gettid()) };
        (pid as u64) << 32 | tid as u64
    }
    fn uid_gid(&mut self) -> u64 {
        // SAFETY: neither call has preconditions.
        let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
        u64::from(gid) << 32 | u64::from(uid)
    }
    fn comm(&mut self, out: &mut [u8]) {
        let name = std::fs::read("/proc/thread-self/comm").expect("is there");
        let name = name.trim_ascii_end();
        out[..name.len()].copy_from_slice(name);
    }
    fn read_memory(&mut self, user: bool, address: u64, out: &mut [u8]) -> bool {
        let readable = user && address == self.text.as_ptr() as u64;
        if readable {
            out.copy_from_slice(&self.text[..out.len()]);
        }
        readable
    }
    fn read_str(&mut self, user: bool, address: u64, out: &mut [u8]) -> i64 {
        if !(user && address == self.text.as_ptr() as u64) {
            return -14;
        }
        let end = self.text.iter().position(|it| *it == 0).expect("has an end");
        let n_bytes = end.min(out.len() - 1);
        out[..n_bytes].copy_from_slice(&self.text[..n_bytes]);
        out[n_bytes] = 0;
        n_bytes as i64 + 1
    }
    fn output(&mut self, _: BpfMapId, data: &[u8]) -> bool {
        self.records.push(data.to_vec());
        true
    }
}

fn in_engine(image: &Image, ctx: &[u64], thread: &mut Thread) -> Outcome {
    let mut engine = Engine::new(image, &[ProgramId(0)], &mut |_, _| None).expect("loads");
    let result = engine.run_words(ProgramId(0), ctx, thread).expect("runs") as u32;
    let mut maps = BTreeMap::new();
    for map in (0..image.maps.len()).map(BpfMapId::at).filter(|it| *it != RING) {
        engine.for_each(map, &mut |key, value| {
            maps.insert((map, key.to_vec()), value.to_vec());
        });
    }
    Outcome { result, maps, records: std::mem::take(&mut thread.records) }
}

fn in_linux(image: &Image, ctx: &[u64]) -> Outcome {
    let bytes = object::write(image).expect("writes");
    let open = ObjectBuilder::default().open_memory(&bytes).expect("opens");
    let object = open.load().expect("loads");
    let program = object.progs_mut().next().expect("has one");
    let mut ctx: Vec<u8> = ctx.iter().flat_map(|it| it.to_le_bytes()).collect();
    let input = ProgramInput { context_in: Some(&mut ctx), ..ProgramInput::default() };
    let result = program.test_run(input).expect("runs").return_value;
    let mut maps = BTreeMap::new();
    let mut records = Vec::new();
    for (at, map) in BpfMapId::each(object.maps()) {
        match at {
            RING => {
                let mut ring = libbpf_rs::RingBufferBuilder::new();
                ring.add(&map, |it| {
                    records.push(it.to_vec());
                    0
                })
                .expect("is a ring buffer");
                let _ = ring.build().expect("maps it").poll(Duration::ZERO);
            }
            _ => map.keys().for_each(|key| {
                let value = match at {
                    PERCPU => used_copy(map.lookup_percpu(&key, MapFlags::ANY).expect("looks up")),
                    _ => map.lookup(&key, MapFlags::ANY).expect("looks up"),
                };
                maps.insert((at, key), value.expect("is there"));
            }),
        }
    }
    Outcome { result, maps, records }
}

/// Returns the copy of the CPU that ran the program; the test is pinned to CPU 0.
fn used_copy(copies: Option<Vec<Vec<u8>>>) -> Option<Vec<u8>> {
    copies?.into_iter().next()
}

/// Collects the names of instructions and helpers that programs used.
fn coverage(insns: &[Insn], seen: &mut BTreeSet<String>) {
    let mut at = 0;
    while let Some(insn) = insns.get(at) {
        seen.insert(kind(insn));
        at += if insn.code == 0x18 { 2 } else { 1 };
    }
}

fn kind(insn: &Insn) -> String {
    let Insn { code, src, off, imm, .. } = *insn;
    match (code & 7, code & 0xf0) {
        (class::JMP, 0x80) => format!("helper {imm}"),
        (class::LD, _) => format!("{code:02x} src {src}"),
        (class::STX, _) if code & 0xe0 == mode::ATOMIC => format!("{code:02x} op {imm:02x}"),
        (class::ALU | class::ALU64, 0xd0) => format!("{code:02x} bits {imm}"),
        (class::ALU | class::ALU64, 0x30 | 0x90 | 0xb0) => format!("{code:02x} off {off}"),
        _ => format!("{code:02x}"),
    }
}

/// Returns all instructions and helpers that the engine knows.
fn everything() -> BTreeSet<String> {
    let mut all = BTreeSet::from(["18 src 0".to_string(), "18 src 1".into(), "95".into()]);
    for (class, moves) in [(class::ALU, 2), (class::ALU64, 3)] {
        for op in ALU_OPS {
            let sources: &[u8] = if op == 0x80 { &[0] } else { &[0, 8] };
            for code in sources.iter().map(|it| class | it | op) {
                match op {
                    0x30 | 0x90 => all.extend([0, 1].map(|off| format!("{code:02x} off {off}"))),
                    0xb0 => {
                        all.insert(format!("{code:02x} off 0"));
                        let bits = [8, 16, 32].into_iter().take(moves).filter(|_| code & 8 != 0);
                        all.extend(bits.map(|off| format!("{code:02x} off {off}")));
                    }
                    _ => {
                        all.insert(format!("{code:02x}"));
                    }
                }
            }
        }
    }
    for code in ["d4", "dc", "d7"] {
        all.extend([16, 32, 64].map(|bits| format!("{code} bits {bits}")));
    }
    for code in CONDS.iter().flat_map(|it| [5 | it, 13 | it, 6 | it, 14 | it]).chain([5, 6]) {
        all.insert(format!("{code:02x}"));
    }
    let accesses = [0x71, 0x69, 0x61, 0x79, 0x91, 0x89, 0x81, 0x72, 0x6a, 0x62, 0x7a, 0x73, 0x6b, 0x63, 0x7b];
    all.extend(accesses.map(|code| format!("{code:02x}")));
    for op in ATOMICS {
        all.extend([0xc3, 0xdb].map(|code| format!("{code:02x} op {op:02x}")));
    }
    let maps = [
        helper::MAP_LOOKUP_ELEM,
        helper::MAP_LOOKUP_PERCPU_ELEM,
        helper::MAP_UPDATE_ELEM,
        helper::MAP_DELETE_ELEM,
        helper::GET_CURRENT_COMM,
        helper::GET_NS_CURRENT_PID_TGID,
        helper::RINGBUF_OUTPUT,
        helper::RINGBUF_RESERVE,
        helper::RINGBUF_SUBMIT,
        helper::RINGBUF_DISCARD,
    ];
    all.extend(maps.iter().chain(&PLAIN).chain(&READS).map(|it| format!("helper {it}")));
    all
}

fn stay_on_processor_0() {
    // SAFETY: the set is a plain bit mask that lives through the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

fn build(steps: &[Step], readable: u64) -> Image {
    let namespace = std::fs::metadata("/proc/self/ns/pid").expect("is there");
    let pid_namespace = (namespace.dev(), namespace.ino());
    let mut emitter = Emitter { readable, pid_namespace, ..Emitter::default() };
    emitter.begin();
    emitter.steps(steps);
    emitter.end();
    let Emitter { insns, map_refs, .. } = emitter;
    let name = "random".into();
    image(maps(), vec![Program { name, kind: ProgramKind::Syscall, insns, map_refs, lines: vec![] }])
}

#[test]
fn the_engine_does_what_linux_does() {
    if !can_load("the_engine_does_what_linux_does") {
        return;
    }
    stay_on_processor_0();
    let mut thread = Box::new(Thread { text: *b"a text to read\0\0", records: Vec::new() });
    let readable = thread.text.as_ptr() as u64;
    let mut seen = BTreeSet::new();
    let inputs = (prop::collection::vec(step(), 10..40), prop::collection::vec(wide_number(), N_CTX_WORDS));
    let thread = std::cell::RefCell::new(&mut thread);
    let covered = std::cell::RefCell::new(&mut seen);
    let config = Config { cases: N_CASES, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&inputs, |(steps, ctx)| {
        let image = build(&steps, readable);
        coverage(&image.programs[0].insns, &mut covered.borrow_mut());
        let expected = in_linux(&image, &ctx);
        let actual = in_engine(&image, &ctx, &mut thread.borrow_mut());
        let text = xputrace_bytecode::disasm::text(&image.programs[0], &image);
        prop_assert_eq!(actual, expected, "{}", text);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let all = everything();
    let missed: Vec<&String> = all.difference(&seen).collect();
    println!("covered {} of {} instructions and helpers", all.len() - missed.len(), all.len());
    assert!(missed.is_empty(), "never covered: {missed:?}");
    let unlisted: Vec<&String> = seen.difference(&all).collect();
    assert!(unlisted.is_empty(), "missing in the list: {unlisted:?}");
}
