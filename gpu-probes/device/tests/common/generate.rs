//! Random programs that Linux's verifier would accept, and what the tracer's engine does with them.
//!
//! Each program is built twice: for the device, and for the engine, which has other helpers. Where the device has a helper
//! of its own, the engine's program does the same by its own means.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use xputrace_bytecode::image::{Home, Image, MapKind, MapSpec, Program, ProgramKind};
use xputrace_bytecode::insn::{self, Insn, Size, atomic, class, mode};
use xputrace_bytecode::vm::{Engine, Env};
use xputrace_bytecode::{BpfMapId, ProgramId, helper};
use xputrace_device::arena::{Arena, MapBytes, Needs, RingBytes, RingReader};
use xputrace_device::layout::header;
use xputrace_device::{DeviceMap, Options, PtxBlock, Request, Scope, Storage, Word, translate};

pub(crate) const N_CTX_WORDS: usize = 8;
pub(crate) const PID_TGID: u64 = 0x1234_0000_5678;
/// Place of the thread that runs the program, as helpers 503 to 505 and 508 see it.
pub(crate) const AXES: [(i32, &str, [u64; 3]); 4] = [
    (helper::GET_BLOCK_IDX, "%ctaid", [0, 0, 0]),
    (helper::GET_BLOCK_DIM, "%ntid", [1, 1, 1]),
    (helper::GET_THREAD_IDX, "%tid", [0, 0, 0]),
    (helper::GET_GRID_DIM, "%nctaid", [1, 1, 1]),
];

/// Strings that programs ask about.
const NAMES: [(u64, &[u8]); 2] = [(5, b"a name of a kernel"), (6, b"kernel")];

const HASH: BpfMapId = BpfMapId(0);
const ARRAY: BpfMapId = BpfMapId(1);
const THREADS: BpfMapId = BpfMapId(2);
const ODD: BpfMapId = BpfMapId(3);
const RING: BpfMapId = BpfMapId(4);
const OUT: BpfMapId = BpfMapId(5);
/// Maps with elements that programs access at random.
const N_ELEMENT_MAPS: u32 = 4;

/// Size of the stack area, below the frame pointer, that programs access at random.
const STACK: i16 = 64;
/// Where arguments of helpers are stored, pointers kept, and the registers put at the end.
const KEY_AT: i16 = -80;
const VALUE_AT: i16 = -112;
const SPILL_AT: i16 = -120;
const TEXT_AT: i16 = -152;
const OUT_AT: i16 = -224;
const CTX_REG: u8 = 9;
const COUNTER_REG: u8 = 8;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand {
    Reg(u8),
    Imm(i32),
}

/// What a lookup does with the value it finds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use {
    Read,
    Change {
        op: i32,
        wide: bool,
    },
    /// Compares and exchanges, with a guess that is right or not.
    Exchange {
        wide: bool,
        right: bool,
    },
    /// Reads and writes bytes at an offset that is known at run time only.
    Within {
        size: Size,
    },
    /// Adds atomically at such an offset.
    ChangeWithin,
    /// Replaces a word if a number is larger.
    Raise,
    /// Reads and writes where nothing is aligned.
    Misaligned,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Modify {
        map: BpfMapId,
        key: u8,
        operand: u8,
        op: i32,
    },
    /// Asks for the text of a string, and whether one is in another.
    Name {
        room: i32,
        place: i32,
    },
    Const {
        dst: u8,
        value: u64,
    },
    Alu {
        op: u8,
        signed: bool,
        wide: bool,
        dst: u8,
        operand: Operand,
    },
    Extend {
        bits: i16,
        wide: bool,
        dst: u8,
        src: u8,
    },
    ByteOrder {
        bits: i32,
        kind: u8,
        dst: u8,
    },
    If {
        cond: u8,
        wide: bool,
        dst: u8,
        operand: Operand,
        then: Vec<Step>,
        otherwise: Vec<Step>,
        long: bool,
    },
    Loop {
        n: i32,
        body: Vec<Step>,
    },
    LoadCtx {
        size: Size,
        signed: bool,
        dst: u8,
        at: i16,
    },
    LoadStack {
        size: Size,
        signed: bool,
        dst: u8,
        at: i16,
    },
    StoreStack {
        size: Size,
        at: i16,
        operand: Operand,
    },
    /// Accesses the stack at a place that is known at run time only.
    StackAt {
        size: Size,
        index: u8,
        dst: u8,
    },
    Atomic {
        op: i32,
        wide: bool,
        at: i16,
        src: u8,
    },
    Lookup {
        map: BpfMapId,
        key: u8,
        usage: Use,
        spill: bool,
    },
    Update {
        map: BpfMapId,
        key: u8,
        value: u8,
        flags: i32,
        unknown_flags: bool,
    },
    Delete {
        map: BpfMapId,
        key: u8,
    },
    Plain {
        helper: i32,
    },
    Axes {
        which: usize,
    },
    Output {
        value: u8,
        perf: bool,
    },
    Print {
        value: u8,
    },
    Puts,
    Record {
        value: u8,
        submit: bool,
    },
    Call {
        function: usize,
    },
    ExitThread,
}

/// A program, its functions, and what it is run over.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) steps: Vec<Step>,
    /// The second one is also called by the first.
    pub(crate) functions: [Vec<Step>; 2],
    /// Whether programs may compute addresses in the stack, which then is in memory.
    pub(crate) stack_in_memory: bool,
    pub(crate) ctx: Vec<u64>,
}

fn reg() -> impl Strategy<Value = u8> {
    0u8..8
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
/// Helpers without arguments. Of all but the first, only that they can be called is tested: the result is cleared.
const PLAIN: [i32; 8] = [
    helper::GET_CURRENT_PID_TGID,
    helper::KTIME_GET_NS,
    helper::GET_GLOBALTIMER,
    helper::MEMBAR,
    helper::GET_SM_ID,
    helper::GET_WARP_ID,
    helper::GET_LANE_ID,
    helper::GET_SMP_PROCESSOR_ID,
];

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
        1 => (size(), reg(), reg()).prop_map(|(size, index, dst)| Step::StackAt { size, index, dst }),
        3 => (prop::sample::select(ATOMICS.to_vec()), any::<bool>(), 0..8i16, reg())
            .prop_map(|(op, wide, at, src)| Step::Atomic { op, wide, at, src }),
        5 => map_step(),
        3 => surroundings_step(),
    ]
}

fn map_step() -> impl Strategy<Value = Step> {
    let map = || (0..N_ELEMENT_MAPS).prop_map(BpfMapId);
    let usage = prop_oneof![
        Just(Use::Read),
        (prop::sample::select(ATOMICS.to_vec()), any::<bool>()).prop_map(|(op, wide)| Use::Change { op, wide }),
        (any::<bool>(), any::<bool>()).prop_map(|(wide, right)| Use::Exchange { wide, right }),
        size().prop_map(|size| Use::Within { size }),
        Just(Use::ChangeWithin),
        Just(Use::Raise),
        Just(Use::Misaligned),
    ];
    prop_oneof![
        3 => (map(), reg(), usage, any::<bool>())
            .prop_map(|(map, key, usage, spill)| Step::Lookup { map, key, usage, spill }),
        3 => (map(), reg(), reg(), 0..4, any::<bool>()).prop_map(|(map, key, value, flags, unknown_flags)| {
            Step::Update { map, key, value, flags, unknown_flags }
        }),
        1 => (map(), reg()).prop_map(|(map, key)| Step::Delete { map, key }),
        1 => (map(), reg(), reg(), prop::sample::select(ATOMICS[..4].to_vec()))
            .prop_map(|(map, key, operand, op)| Step::Modify { map, key, operand, op }),
        1 => (1..30, 0..3).prop_map(|(room, place)| Step::Name { room, place }),
    ]
}

fn surroundings_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => prop::sample::select(PLAIN.to_vec()).prop_map(|helper| Step::Plain { helper }),
        2 => (0..AXES.len()).prop_map(|which| Step::Axes { which }),
        2 => (reg(), any::<bool>()).prop_map(|(value, perf)| Step::Output { value, perf }),
        1 => reg().prop_map(|value| Step::Print { value }),
        1 => Just(Step::Puts),
        2 => (reg(), any::<bool>()).prop_map(|(value, submit)| Step::Record { value, submit }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let few = || prop::collection::vec(simple(), 1..4);
    prop_oneof![
        16 => simple(),
        6 => (prop::sample::select(CONDS.to_vec()), any::<bool>(), reg(), operand(), few(), few(), any::<bool>())
            .prop_map(|(cond, wide, dst, operand, then, otherwise, long)| {
                Step::If { cond, wide, dst, operand, then, otherwise, long }
            }),
        2 => (1..4, few()).prop_map(|(n, body)| Step::Loop { n, body }),
        2 => (0..2usize).prop_map(|function| Step::Call { function }),
        1 => (1..4, few(), 0..2usize).prop_map(|(n, mut body, function)| {
            body.push(Step::Call { function });
            Step::Loop { n, body }
        }),
        1 => (prop::sample::select(CONDS.to_vec()), reg(), number()).prop_map(|(cond, dst, imm)| Step::If {
            cond,
            wide: true,
            dst,
            operand: Operand::Imm(imm),
            then: vec![Step::ExitThread],
            otherwise: vec![],
            long: false,
        }),
    ]
}

pub(crate) fn case() -> impl Strategy<Value = Case> {
    let body = || prop::collection::vec(simple(), 1..6);
    let steps = prop::collection::vec(step(), 10..40);
    let ctx = prop::collection::vec(wide_number(), N_CTX_WORDS);
    (steps, body(), body(), any::<bool>(), ctx).prop_map(|(steps, first, second, stack_in_memory, ctx)| Case {
        steps,
        functions: [first, second],
        stack_in_memory,
        ctx,
    })
}

/// The maps of every program.
pub(crate) fn maps() -> Vec<DeviceMap> {
    let map = |kind, key_bytes, value_bytes, max_entries| DeviceMap {
        kind,
        key_bytes,
        value_bytes,
        max_entries,
        parts: 1,
        scope: Scope::Device,
    };
    vec![
        map(Storage::Hash, 8, 24, 10),
        map(Storage::Array, 4, 24, 6),
        map(Storage::PerThreadArray, 4, 24, 6),
        DeviceMap { scope: Scope::System, ..map(Storage::Hash, 13, 27, 100) },
        map(Storage::Ring, 0, 0, 0),
        map(Storage::Array, 4, 72, 1),
    ]
}

/// The same maps for the engine.
fn specs() -> Vec<MapSpec> {
    let spec = |map: DeviceMap| MapSpec {
        key_size: map.key_bytes,
        value_size: map.value_bytes,
        max_entries: if map.kind == Storage::Ring { 1 << 16 } else { map.max_entries },
        home: Home::Tracer,
        ..MapSpec::number(
            "map",
            match map.kind {
                Storage::Hash => MapKind::Hash,
                Storage::Array | Storage::OuterArray | Storage::PerThreadArray => MapKind::Array,
                Storage::Ring => MapKind::Ringbuf,
            },
        )
    };
    maps().into_iter().map(spec).collect()
}

/// The words of the context, in memory at `%ctx`.
pub(crate) fn context() -> Vec<Word> {
    (0..N_CTX_WORDS).map(|it| Word::Statements(format!("ld.global.u64 {{d}}, [%ctx+{}];", it * 8))).collect()
}

/// Emits raw instructions, because the assembler only has those that the compiler needs.
struct Emitter {
    insns: Vec<Insn>,
    map_refs: Vec<(usize, BpfMapId)>,
    /// Calls, with the function that each calls.
    calls: Vec<(usize, usize)>,
    for_device: bool,
    stack_in_memory: bool,
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
        self.scalars();
    }

    fn scalars(&mut self) {
        (1..6).for_each(|it| self.mov_imm(it, 7 * i32::from(it)));
    }

    fn begin(&mut self) {
        self.mov(CTX_REG, 1);
        self.fill_stack();
        for reg in 0..CTX_REG {
            self.raw(0x79, reg, CTX_REG, i16::from(reg % N_CTX_WORDS as u8) * 8, 0);
        }
    }

    fn fill_stack(&mut self) {
        for at in (8..=-OUT_AT).step_by(8) {
            self.raw(0x7a, 10, 0, -at, i32::from(at));
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

    /// Emits a function of two arguments, the context and an address in the caller's stack.
    fn function(&mut self, steps: &[Step], calls: Option<usize>) {
        self.mov(CTX_REG, 1);
        self.raw(0x79, 6, 2, 8, 0);
        self.raw(0x7b, 2, CTX_REG, -8, 0);
        self.raw(0x7b, 2, 6, 16, 0);
        self.raw(0x72, 2, 0, 3, 77);
        self.fill_stack();
        for reg in (0..CTX_REG).filter(|it| *it != 6) {
            self.raw(0x79, reg, CTX_REG, i16::from(reg % N_CTX_WORDS as u8) * 8, 0);
        }
        self.steps(steps);
        if let Some(function) = calls {
            self.call_function(function);
        }
        self.raw(0x0f, 0, 6, 0, 0);
        self.raw(0x95, 0, 0, 0, 0);
    }

    fn call_function(&mut self, function: usize) {
        self.mov(1, CTX_REG);
        // The word below holds the context's address now, which the stack's own words mustn't.
        self.address(2, SPILL_AT + 8);
        self.calls.push((self.insns.len(), function));
        self.raw(0x85, 0, insn::PSEUDO_CALL, 0, 0);
        self.scalars();
        self.raw(0x7a, 10, 0, SPILL_AT, 9);
        self.mov_imm(COUNTER_REG, 100);
    }

    /// Stores a key for helpers, from a small range so that lookups often succeed.
    fn key(&mut self, map: BpfMapId, from: u8) {
        self.store(KEY_AT, from);
        self.raw(0x7a, 10, 0, KEY_AT + 8, 3);
        self.raw(0x79, 1, 10, KEY_AT, 0);
        // Includes one key beyond the end.
        self.raw(0x57, 1, 0, 0, if matches!(map, ARRAY | THREADS) { 7 } else { 15 });
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

    fn unless_null(&mut self, tested: u8, body: impl FnOnce(&mut Self)) {
        let from = self.here();
        self.raw(0x15, tested, 0, 0, 0);
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
            Step::StackAt { size, index, dst } => self.stack_at(*size, *index, *dst),
            Step::Atomic { op, wide, at, src } => {
                self.raw(if *wide { 0xdb } else { 0xc3 }, 10, *src, at * 8 - STACK, *op);
            }
            Step::Lookup { map, key, usage, spill } => self.lookup(*map, *key, *usage, *spill),
            Step::Update { map, key, value, flags, unknown_flags } => {
                for word in 0..4 {
                    self.store(VALUE_AT + word * 8, *value);
                }
                self.key(*map, *key);
                self.address(3, VALUE_AT);
                match unknown_flags {
                    true => {
                        self.raw(0x79, 4, CTX_REG, 0, 0);
                        self.raw(0x57, 4, 0, 0, 3);
                    }
                    false => self.mov_imm(4, *flags),
                }
                self.call(helper::MAP_UPDATE_ELEM);
            }
            Step::Delete { map, key } => {
                self.key(*map, *key);
                self.call(helper::MAP_DELETE_ELEM);
            }
            Step::Modify { map, key, operand, op } => {
                self.store(VALUE_AT, *operand);
                self.key(*map, *key);
                self.raw(0x79, 3, 10, VALUE_AT, 0);
                self.mov_imm(4, *op);
                self.call(helper::MAP_MODIFY);
            }
            Step::Name { room, place } => {
                self.mov_imm(1, NAMES[0].0 as i32);
                self.address(2, -STACK);
                self.mov_imm(3, *room);
                self.call(helper::NAME_TEXT);
                self.mov(6, 0);
                self.mov_imm(1, NAMES[0].0 as i32);
                self.mov_imm(2, NAMES[1].0 as i32);
                self.mov_imm(3, *place);
                self.call(helper::NAME_MATCHES);
            }
            Step::Plain { helper } => self.plain(*helper),
            Step::Axes { which } => self.axes(*which),
            Step::Output { value, perf } => self.output(*value, *perf),
            Step::Print { value } => self.print(*value),
            Step::Puts => self.puts(),
            Step::Record { value, submit } => self.record(*value, *submit),
            Step::Call { function } => self.call_function(*function),
            Step::ExitThread if self.for_device => self.raw(0x85, 0, 0, 0, helper::EXIT_THREAD),
            Step::ExitThread => {
                self.mov_imm(0, 0);
                self.raw(0x95, 0, 0, 0, 0);
            }
        }
        if matches!(step, Step::ExitThread) && self.for_device {
            self.scalars();
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

    fn stack_at(&mut self, size: Size, index: u8, dst: u8) {
        if !self.stack_in_memory {
            return;
        }
        // R4 holds the address, which is not the same in both engines.
        let dst = if dst == 4 { 5 } else { dst };
        self.store(KEY_AT, index);
        self.raw(0x79, 3, 10, KEY_AT, 0);
        // Single bytes anywhere, others aligned.
        self.raw(0x57, 3, 0, 0, 63 & -(size.bytes() as i32));
        self.address(4, -STACK);
        self.raw(0x0f, 4, 3, 0, 0);
        self.raw(0x63 | size as u8, 4, dst, 0, 0);
        self.raw(load(size, false), dst, 4, 0, 0);
        self.mov_imm(4, 1);
    }

    fn lookup(&mut self, map: BpfMapId, key: u8, usage: Use, spill: bool) {
        self.key(map, key);
        self.call(helper::MAP_LOOKUP_ELEM);
        let tested = if spill { 6 } else { 0 };
        if spill {
            self.store(SPILL_AT, 0);
            self.mov(6, 0);
        }
        self.unless_null(tested, |it| {
            if spill {
                it.mov_imm(0, 0);
                it.raw(0x79, 0, 10, SPILL_AT, 0);
            }
            it.use_value(usage);
        });
        if spill {
            self.mov_imm(6, 3);
            self.raw(0x7a, 10, 0, SPILL_AT, 9);
        }
    }

    /// Emits accesses to the value that R0 points to.
    fn use_value(&mut self, usage: Use) {
        self.raw(0x79, 6, 0, 8, 0);
        match usage {
            // R0 is the pointer here, and compare-and-swap would compare with it.
            Use::Change { op: atomic::CMPXCHG, .. } | Use::Read => self.raw(0x81, 7, 0, 0, 0),
            Use::Change { op, wide } => {
                self.raw(if wide { 0xdb } else { 0xc3 }, 0, 6, 8, op);
                self.raw(0x63, 0, 7, 0, 0);
                self.raw(0x72, 0, 0, 5, 17);
            }
            Use::Exchange { wide, right } => {
                self.mov(5, 0);
                self.raw(0x79, 0, 5, 8, 0);
                self.raw(0x07, 0, 0, 0, i32::from(!right));
                self.raw(if wide { 0xdb } else { 0xc3 }, 5, 7, 8, atomic::CMPXCHG);
                self.mov(7, 0);
                self.mov_imm(5, 4);
            }
            Use::Within { size } => {
                self.raw(0x79, 3, CTX_REG, 0, 0);
                self.raw(0x57, 3, 0, 0, 15);
                self.raw(0x0f, 0, 3, 0, 0);
                self.raw(0x63 | size as u8, 0, 7, 0, 0);
                self.raw(load(size, true), 7, 0, 1, 0);
            }
            Use::ChangeWithin => {
                self.raw(0x79, 3, CTX_REG, 8, 0);
                self.raw(0x57, 3, 0, 0, 8);
                self.raw(0x0f, 0, 3, 0, 0);
                self.raw(0xdb, 0, 6, 8, atomic::ADD);
            }
            Use::Raise => {
                self.mov(1, 0);
                self.raw(0x07, 1, 0, 0, 8);
                self.mov(2, 7);
                self.call(helper::RAISE);
            }
            Use::Misaligned => {
                self.raw(0x7b, 0, 6, 3, 0);
                self.raw(0x63, 0, 7, 13, 0);
                self.raw(0x69, 6, 0, 7, 0);
                self.raw(0x79, 7, 0, 10, 0);
                self.raw(0x81, 3, 0, 6, 0);
            }
        }
    }

    fn plain(&mut self, helper: i32) {
        match (helper, self.for_device) {
            (helper::GET_CURRENT_PID_TGID, _) | (_, true) => self.call(helper),
            (_, false) => self.scalars(),
        }
        if helper != helper::GET_CURRENT_PID_TGID {
            self.mov_imm(0, 0);
        }
    }

    fn axes(&mut self, which: usize) {
        let (helper, _, values) = AXES[which];
        let places = [-8, -16, -24];
        if self.for_device {
            (1..).zip(places).for_each(|(arg, at)| self.address(arg, at));
            self.call(helper);
        } else {
            for (at, value) in places.into_iter().zip(values) {
                self.raw(0x7a, 10, 0, at, value as i32);
            }
            self.scalars();
        }
        self.mov_imm(0, 0);
    }

    fn output(&mut self, value: u8, perf: bool) {
        self.store(VALUE_AT, value);
        if perf && self.for_device {
            self.mov(1, CTX_REG);
            self.ld_map(2, RING);
            self.mov_imm(3, 0);
            self.address(4, VALUE_AT);
            self.mov_imm(5, 30);
            return self.call(helper::PERF_EVENT_OUTPUT);
        }
        self.ring_output(VALUE_AT, 30);
    }

    fn ring_output(&mut self, at: i16, n_bytes: i32) {
        self.ld_map(1, RING);
        self.address(2, at);
        self.mov_imm(3, n_bytes);
        self.mov_imm(4, 0);
        self.call(helper::RINGBUF_OUTPUT);
    }

    fn print(&mut self, value: u8) {
        self.store(TEXT_AT, value);
        self.raw(0x7a, 10, 0, TEXT_AT + 8, 2);
        self.raw(0x7a, 10, 0, TEXT_AT + 16, 3);
        self.raw(0x7a, 10, 0, TEXT_AT + 24, 0x6425);
        if !self.for_device {
            return self.ring_output(TEXT_AT, 32);
        }
        self.raw(0x79, 3, 10, TEXT_AT, 0);
        self.mov_imm(4, 2);
        self.mov_imm(5, 3);
        self.address(1, TEXT_AT + 24);
        self.mov_imm(2, 8);
        self.call(helper::TRACE_PRINTK);
    }

    fn puts(&mut self) {
        if !self.for_device {
            return self.ring_output(-STACK, STACK.into());
        }
        self.address(1, -STACK);
        self.call(helper::PUTS);
    }

    fn record(&mut self, value: u8, submit: bool) {
        self.store(VALUE_AT, value);
        self.ld_map(1, RING);
        self.mov_imm(2, 72);
        self.mov_imm(3, 0);
        self.call(helper::RINGBUF_RESERVE);
        self.unless_null(0, |it| {
            it.raw(0x79, 1, 10, VALUE_AT, 0);
            (0..9).for_each(|word| it.raw(0x7b, 0, 1, word * 8, 0));
            it.mov(1, 0);
            it.mov_imm(2, 0);
            it.call(if submit { helper::RINGBUF_SUBMIT } else { helper::RINGBUF_DISCARD });
        });
    }
}

fn load(size: Size, signed: bool) -> u8 {
    let sign = if signed && size != Size::Dw { mode::MEMSX } else { mode::MEM };
    class::LDX | sign | size as u8
}

/// Builds the program for the device, or for the engine.
pub(crate) fn build(case: &Case, for_device: bool) -> Program {
    let stack_in_memory = case.stack_in_memory;
    let mut emitter =
        Emitter { insns: Vec::new(), map_refs: Vec::new(), calls: Vec::new(), for_device, stack_in_memory };
    emitter.begin();
    emitter.steps(&case.steps);
    emitter.end();
    let starts: Vec<usize> = case
        .functions
        .iter()
        .enumerate()
        .map(|(at, steps)| {
            let start = emitter.here();
            emitter.function(steps, (at == 0).then_some(1));
            start
        })
        .collect();
    for (from, function) in std::mem::take(&mut emitter.calls) {
        emitter.insns[from].imm = (starts[function] as i64 - from as i64 - 1) as i32;
    }
    let Emitter { insns, map_refs, .. } = emitter;
    Program { name: "random".into(), kind: ProgramKind::Syscall, insns, map_refs, lines: vec![] }
}

/// What a run leaves behind.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) result: u64,
    pub(crate) maps: BTreeMap<(usize, Vec<u8>), Vec<u8>>,
    pub(crate) records: Vec<Vec<u8>>,
}

#[derive(Default)]
struct Surroundings {
    records: Vec<Vec<u8>>,
}

impl Env for Surroundings {
    fn pid_tgid(&mut self) -> u64 {
        PID_TGID
    }

    fn name(&mut self, id: u64) -> &[u8] {
        NAMES.iter().find(|it| it.0 == id).map_or(&[], |it| it.1)
    }

    fn output(&mut self, _: BpfMapId, data: &[u8]) -> bool {
        self.records.push(data.to_vec());
        true
    }
}

/// Runs the program in the tracer's engine.
pub(crate) fn expected(case: &Case) -> Outcome {
    let image = Image { maps: specs(), programs: vec![build(case, false)], sources: vec![] };
    let mut engine = Engine::new(&image, &[ProgramId(0)], &mut |_, _| None).expect("loads");
    let mut surroundings = Surroundings::default();
    let result = engine.run_words(ProgramId(0), &case.ctx, &mut surroundings).expect("runs");
    let mut maps = BTreeMap::new();
    for map in (0..image.maps.len()).filter(|it| *it != RING.index()) {
        engine.for_each(BpfMapId::at(map), &mut |key, value| {
            maps.insert((map, key.to_vec()), value.to_vec());
        });
    }
    Outcome { result, maps, records: surroundings.records }
}

/// Slots of the ring, enough for every record of a run.
const RING_SLOTS: u32 = 1024;

/// Translates a case for the device.
pub(crate) fn translated(case: &Case, first_site: u32) -> Result<PtxBlock, String> {
    let program = build(case, true);
    let result = Some("%result".into());
    let names = NAMES.iter().map(|(id, name)| (*id, name.to_vec())).collect();
    let options = Options { allow_exit: true, result, architecture: 90, first_site, names, ..Options::default() };
    let (maps, context) = (maps(), context());
    let request = Request { program: &program, maps: &maps, context: &context, options: &options };
    translate(request).map_err(|it| format!("{it}: {:?}", program.insns[it.insn]))
}

pub(crate) fn arena(n_sites: u32) -> Arena {
    Arena::new(Needs { maps: maps(), n_sites, ring_slots: RING_SLOTS, n_threads: 1 }).expect("fits")
}

/// Returns what is in memory before a run.
pub(crate) fn memory(arena: &Arena) -> Vec<u8> {
    let mut memory = vec![0; arena.n_bytes() as usize];
    let mut table = arena.table();
    table[header::PID_TGID as usize..][..8].copy_from_slice(&PID_TGID.to_le_bytes());
    memory[..table.len()].copy_from_slice(&table);
    memory
}

/// Reads the word at an offset.
pub(crate) fn word(memory: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(memory[at as usize..][..8].try_into().expect("8 bytes"))
}

/// Reads what a run left in memory.
pub(crate) fn outcome(result: u64, arena: &Arena, memory: &[u8]) -> Outcome {
    let part = |range: &std::ops::Range<u64>| &memory[range.start as usize..range.end as usize];
    let mut elements = BTreeMap::new();
    for (at, map) in maps().iter().enumerate().filter(|(_, it)| it.kind != Storage::Ring) {
        let parts = arena.parts(at).expect("is there");
        let bytes = MapBytes { map, states: part(&parts.states), keys: part(&parts.keys), values: part(&parts.values) };
        bytes.for_each(|key, value| {
            elements.insert((at, key.to_vec()), value.to_vec());
        });
    }
    let (slots, marks) = arena.ring_parts();
    let head = word(memory, arena.ring_words().0);
    let mut records = Vec::new();
    let ring = RingBytes { marks: part(&marks), slots: part(&slots), head };
    let mut reader = RingReader::new(RING_SLOTS);
    reader.read(ring, true, |it| records.push(it.data.to_vec()));
    Outcome { result, maps: elements, records }
}

/// Collects the names of instructions and helpers that a program has.
pub(crate) fn coverage(insns: &[Insn], seen: &mut BTreeSet<String>) {
    let mut at = 0;
    while let Some(insn) = insns.get(at) {
        seen.insert(kind(insn));
        let jumps_back = matches!(insn.code & 7, class::JMP | class::JMP32) && insn.off < 0;
        if jumps_back {
            seen.insert("loop".into());
        }
        at += if insn.code == 0x18 { 2 } else { 1 };
    }
}

fn kind(insn: &Insn) -> String {
    let Insn { code, src, off, imm, .. } = *insn;
    match (code & 7, code & 0xf0) {
        (class::JMP, 0x80) if src == insn::PSEUDO_CALL => "call".into(),
        (class::JMP, 0x80) => format!("helper {imm}"),
        (class::LD, _) => format!("{code:02x} src {src}"),
        (class::STX, _) if code & 0xe0 == mode::ATOMIC => format!("{code:02x} op {imm:02x}"),
        (class::ALU | class::ALU64, 0xd0) => format!("{code:02x} bits {imm}"),
        (class::ALU | class::ALU64, 0x30 | 0x90 | 0xb0) => format!("{code:02x} off {off}"),
        _ => format!("{code:02x}"),
    }
}

/// Returns all instructions and helpers that have to be covered.
pub(crate) fn everything() -> BTreeSet<String> {
    let mut all = BTreeSet::from(["18 src 0", "18 src 1", "95", "call", "loop"].map(str::to_string));
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
    let helpers = [
        helper::MAP_LOOKUP_ELEM,
        helper::MAP_UPDATE_ELEM,
        helper::MAP_DELETE_ELEM,
        helper::MAP_MODIFY,
        helper::RAISE,
        helper::NAME_TEXT,
        helper::NAME_MATCHES,
        helper::TRACE_PRINTK,
        helper::PERF_EVENT_OUTPUT,
        helper::RINGBUF_OUTPUT,
        helper::RINGBUF_RESERVE,
        helper::RINGBUF_SUBMIT,
        helper::RINGBUF_DISCARD,
        helper::PUTS,
        helper::EXIT_THREAD,
    ];
    let axes = AXES.iter().map(|it| &it.0);
    all.extend(helpers.iter().chain(&PLAIN).chain(axes).map(|it| format!("helper {it}")));
    all
}
