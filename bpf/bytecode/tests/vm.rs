//! The engine alone: its checks, maps and helpers, and that no input makes it panic.

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use common::{image, map, program};
use proptest::prelude::*;
use xputrace_bytecode::image::{Home, Image, MapKind, MapSpec, Program, ProgramKind};
use xputrace_bytecode::insn::{Alu, Cond, Insn, Reg, Size, atomic};
use xputrace_bytecode::vm::{Atomic, Engine, Env, Fault, FaultReason, Number, RemoteMap};
use xputrace_bytecode::{Assembler, BpfMapId, ProgramId, helper};

fn engine(image: &Image) -> Engine {
    let all: Vec<ProgramId> = (0..image.programs.len()).map(ProgramId::at).collect();
    Engine::new(image, &all, &mut |_, _| None).expect("loads")
}

fn one(maps: Vec<MapSpec>, write: impl FnOnce(&mut Assembler)) -> Image {
    image(maps, vec![program("it", ProgramKind::Syscall, write)])
}

fn raw(insns: &[(u8, u8, u8, i16, i32)]) -> Image {
    let insns = insns.iter().map(|&(code, dst, src, off, imm)| Insn { code, dst, src, off, imm });
    let kind = ProgramKind::Syscall;
    let (map_refs, lines) = (vec![], vec![]);
    image(vec![], vec![Program { name: "it".into(), kind, insns: insns.collect(), map_refs, lines }])
}

fn refusal(image: &Image) -> String {
    Engine::new(image, &[ProgramId(0)], &mut |_, _| None).err().expect("is refused").to_string()
}

fn fault(image: &Image) -> Fault {
    engine(image).run_words(ProgramId(0), &[1, 2], &mut ()).expect_err("fails")
}

#[test]
fn the_engine_has_every_helper_that_has_a_name() {
    let named: Vec<i32> = (0..10_000).filter(|it| helper::name(*it).is_some()).collect();
    assert_eq!(named.len(), 40);
    for id in named {
        let image = one(vec![], |asm| {
            (1..=5).for_each(|it| asm.mov_imm(Reg(it), 0));
            asm.call(id);
            asm.exit();
        });
        let result = engine(&image).run_words(ProgramId(0), &[1, 2], &mut ());
        assert!(!result.is_err_and(|it| matches!(it.reason, FaultReason::NoHelper(_))), "{id}");
    }
}

/// Adds one to the element whose key is context word 0.
fn count(asm: &mut Assembler) {
    let (missing, end) = (asm.label(), asm.label());
    asm.ldx(Size::Dw, Reg::R2, Reg::R1, 0);
    asm.stx(Size::Dw, Reg::FP, -8, Reg::R2);
    asm.st_imm(Size::Dw, Reg::FP, -16, 1);
    asm.ld_map(Reg::R1, BpfMapId(0));
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R2, -8);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, missing);
    asm.mov_imm(Reg::R1, 1);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
    asm.mov_imm(Reg::R0, 0);
    asm.jump(end);
    asm.place(missing);
    asm.ld_map(Reg::R1, BpfMapId(0));
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R2, -8);
    asm.mov(Reg::R3, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R3, -16);
    asm.mov_imm(Reg::R4, helper::UPDATE_NOEXIST.into());
    asm.call(helper::MAP_UPDATE_ELEM);
    asm.place(end);
    asm.exit();
}

/// Adds context word 2 to the element of words 0 and 1, and counts. An odd one has an instruction that other such programs
/// lack, and changes nothing.
fn tally(asm: &mut Assembler, is_odd: bool) {
    let (have, out) = (asm.label(), asm.label());
    asm.mov(Reg::R6, Reg::R1);
    if is_odd {
        asm.alu_imm(Alu::Or, Reg::R7, 0);
    }
    asm.ldx(Size::Dw, Reg::R0, Reg::R6, 16);
    asm.stx(Size::Dw, Reg::FP, -8, Reg::R0);
    for (key, at) in [(0, -32), (8, -16)] {
        asm.ldx(Size::Dw, Reg::R2, Reg::R6, key);
        asm.stx(Size::Dw, Reg::FP, at, Reg::R2);
    }
    asm.st_imm(Size::Dw, Reg::FP, -24, 7);
    asm.find(BpfMapId(0), -32);
    asm.jump_if_imm(Cond::Ne, Reg::R0, 0, have);
    asm.st_imm(Size::Dw, Reg::FP, -48, 0);
    asm.st_imm(Size::Dw, Reg::FP, -40, 0);
    asm.ld_map(Reg::R1, BpfMapId(0));
    asm.stack_address(Reg::R2, -32);
    asm.stack_address(Reg::R3, -48);
    asm.mov_imm(Reg::R4, helper::UPDATE_NOEXIST.into());
    asm.call(helper::MAP_UPDATE_ELEM);
    asm.find(BpfMapId(0), -32);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.place(have);
    asm.ldx(Size::Dw, Reg::R1, Reg::FP, -8);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
    asm.mov_imm(Reg::R1, 1);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 8, Reg::R1);
    asm.place(out);
    asm.mov_imm(Reg::R0, 3);
    asm.exit();
}

fn counts(engine: &Engine) -> BTreeMap<u64, u64> {
    let mut all = BTreeMap::new();
    engine.for_each(BpfMapId(0), &mut |key, value| {
        all.insert(word(key), word(value));
    });
    all
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("is a word"))
}

#[test]
fn a_hash_counts_and_refuses_when_full() {
    let mut engine = engine(&one(vec![map("calls", MapKind::Hash, 8, 8, 2)], count));
    let answers: Vec<u64> =
        [7, 7, 8, 9, 7].iter().map(|it| engine.run_words(ProgramId(0), &[*it], &mut ()).expect("runs")).collect();
    assert_eq!(answers, [0, 0, 0, -7i64 as u64, 0]);
    assert_eq!(counts(&engine), BTreeMap::from([(7, 3), (8, 1)]));
    assert_eq!(engine.lookup(BpfMapId(0), &7u64.to_le_bytes()).map(word), Some(3));
    assert_eq!(engine.delete(BpfMapId(0), &7u64.to_le_bytes()), 0);
    assert_eq!(engine.delete(BpfMapId(0), &7u64.to_le_bytes()), -2);
    assert_eq!(engine.len(BpfMapId(0)), 1);
    engine.clear(BpfMapId(0));
    assert_eq!((engine.len(BpfMapId(0)), counts(&engine).len()), (0, 0));
}

#[test]
fn an_lru_map_evicts_what_was_not_used() {
    let mut engine = engine(&one(vec![map("calls", MapKind::LruHash, 8, 8, 4)], count));
    for key in [1, 2, 3, 4, 1, 2, 1, 5, 1, 6, 1] {
        assert_eq!(engine.run_words(ProgramId(0), &[key], &mut ()), Ok(0));
    }
    assert_eq!(engine.len(BpfMapId(0)), 4);
    assert_eq!(counts(&engine).get(&1), Some(&5));
}

#[test]
fn two_generations_drain() {
    let inner = map("gen", MapKind::PercpuHash, 8, 8, 16);
    let outer = MapSpec { inner: Some(Box::new(inner)), ..map("gens", MapKind::ArrayOfMaps, 4, 4, 1) };
    let image = one(vec![outer], |asm| {
        asm.st_imm(Size::Dw, Reg::FP, -8, 0);
        asm.st_imm(Size::Dw, Reg::FP, -16, 41);
        asm.ld_map(Reg::R1, BpfMapId(0));
        asm.mov(Reg::R2, Reg::FP);
        asm.alu_imm(Alu::Add, Reg::R2, -8);
        asm.call(helper::MAP_LOOKUP_ELEM);
        asm.mov(Reg::R1, Reg::R0);
        asm.mov(Reg::R2, Reg::FP);
        asm.alu_imm(Alu::Add, Reg::R2, -8);
        asm.mov(Reg::R3, Reg::FP);
        asm.alu_imm(Alu::Add, Reg::R3, -16);
        asm.mov_imm(Reg::R4, 0);
        asm.call(helper::MAP_UPDATE_ELEM);
        asm.exit();
    });
    let mut engine = engine(&image);
    assert_eq!(engine.run_words(ProgramId(0), &[], &mut ()), Ok(0));
    let mut drained = Vec::new();
    engine.drain(BpfMapId(0), &mut |key, value| drained.push((word(key), word(value))));
    assert_eq!(drained, [(0, 41)]);
    drained.clear();
    engine.drain(BpfMapId(0), &mut |key, value| drained.push((word(key), word(value))));
    assert_eq!(drained, []);
}

/// A remote map, like one in Linux.
#[derive(Clone, Default)]
struct Elsewhere(Rc<RefCell<BTreeMap<Vec<u8>, Vec<u8>>>>);

impl RemoteMap for Elsewhere {
    fn lookup(&mut self, key: &[u8], value: &mut [u8]) -> bool {
        let map = self.0.borrow();
        let found = map.get(key);
        found.inspect(|it| value.copy_from_slice(it)).is_some()
    }
    fn update(&mut self, key: &[u8], value: &[u8], flags: u64) -> i64 {
        let exists = self.0.borrow().contains_key(key);
        match flags {
            1 if exists => -17,
            2 if !exists => -2,
            _ => {
                self.0.borrow_mut().insert(key.into(), value.into());
                0
            }
        }
    }
    fn delete(&mut self, key: &[u8]) -> i64 {
        self.0.borrow_mut().remove(key).map_or(-2, |_| 0)
    }
}

#[test]
fn a_remote_map_gets_what_programs_store() {
    let image = one(vec![map("calls", MapKind::Hash, 8, 8, 16)], count);
    let map = Elsewhere::default();
    let handle = map.clone();
    let mut remote = |_: BpfMapId, _: &MapSpec| Some(Box::new(handle.clone()) as Box<dyn RemoteMap>);
    let mut engine = Engine::new(&image, &[ProgramId(0)], &mut remote).expect("loads");
    for key in [3, 3, 4, 3] {
        assert_eq!(engine.run_words(ProgramId(0), &[key], &mut ()), Ok(0));
    }
    let found: Vec<(u64, u64)> = map.0.borrow().iter().map(|(k, v)| (word(k), word(v))).collect();
    assert_eq!(found, [(3, 3), (4, 1)]);
}

/// A remote map whose owner runs atomic instructions itself: there was 100 in each number.
struct Owner(Elsewhere, Rc<RefCell<Vec<(Number, Atomic)>>>);

impl RemoteMap for Owner {
    fn lookup(&mut self, key: &[u8], value: &mut [u8]) -> bool {
        self.0.lookup(key, value)
    }
    fn update(&mut self, key: &[u8], value: &[u8], flags: u64) -> i64 {
        self.0.update(key, value, flags)
    }
    fn delete(&mut self, key: &[u8]) -> i64 {
        self.0.delete(key)
    }
    fn atomic(&mut self, _: &[u8], number: Number, atomic: Atomic) -> Option<u64> {
        self.1.borrow_mut().push((number, atomic));
        Some(100)
    }
}

/// What others change in a remote value at the same time is kept: atomic instructions run where it lives.
#[test]
fn atomic_instructions_run_where_a_value_lives() {
    let image = one(vec![map("values", MapKind::Array, 4, 24, 1)], |asm| {
        asm.st_imm(Size::W, Reg::FP, -4, 0);
        asm.ld_map(Reg::R1, BpfMapId(0));
        asm.mov(Reg::R2, Reg::FP);
        asm.alu_imm(Alu::Add, Reg::R2, -4);
        asm.call(helper::MAP_LOOKUP_ELEM);
        asm.mov(Reg::R6, Reg::R0);
        asm.mov_imm(Reg::R7, 5);
        asm.atomic(atomic::ADD | atomic::FETCH, Size::W, Reg::R6, 20, Reg::R7);
        asm.mov_imm(Reg::R0, 9);
        asm.mov_imm(Reg::R8, 3);
        asm.atomic(atomic::CMPXCHG, Size::Dw, Reg::R6, 8, Reg::R8);
        asm.alu(Alu::Add, Reg::R0, Reg::R7);
        asm.exit();
    });
    let (map, seen) = (Elsewhere::default(), Rc::new(RefCell::new(Vec::new())));
    map.0.borrow_mut().insert(vec![0; 4], vec![0; 24]);
    let mut remote = |_: BpfMapId, _: &MapSpec| Some(Box::new(Owner(map.clone(), seen.clone())) as Box<dyn RemoteMap>);
    let mut engine = Engine::new(&image, &[ProgramId(0)], &mut remote).expect("loads");
    assert_eq!(engine.run_words(ProgramId(0), &[], &mut ()), Ok(200), "both return what was there");
    let add = Atomic { op: atomic::ADD | atomic::FETCH, operand: 5, expected: seen.borrow()[0].1.expected };
    let exchange = Atomic { op: atomic::CMPXCHG, operand: 3, expected: 9 };
    assert_eq!(*seen.borrow(), [(Number { at: 20, bytes: 4 }, add), (Number { at: 8, bytes: 8 }, exchange)]);
    assert!(!engine.has_overwritten(BpfMapId(0)));
}

/// Adds the second word of the context to the element of the first, then copies it to `copy`.
fn modify(asm: &mut Assembler) {
    let missing = asm.label();
    asm.mov(Reg::R6, Reg::R1);
    asm.ldx(Size::Dw, Reg::R1, Reg::R6, 0);
    asm.stx(Size::Dw, Reg::FP, -8, Reg::R1);
    asm.ld_map(Reg::R1, BpfMapId(0));
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R2, -8);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.mov(Reg::R7, Reg::R0);
    asm.ld_map(Reg::R1, BpfMapId(0));
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R2, -8);
    asm.ldx(Size::Dw, Reg::R3, Reg::R6, 8);
    asm.ldx(Size::Dw, Reg::R4, Reg::R6, 16);
    asm.call(helper::MAP_MODIFY);
    asm.jump_if_imm(Cond::Ne, Reg::R0, 0, missing);
    asm.jump_if_imm(Cond::Eq, Reg::R7, 0, missing);
    asm.ldx(Size::Dw, Reg::R0, Reg::R7, 0);
    asm.place(missing);
    asm.exit();
}

#[test]
fn numbers_are_changed_in_place_from_zero() {
    let image = one(vec![map("sums", MapKind::Hash, 8, 8, 2)], modify);
    for remote in [false, true] {
        let elsewhere = Elsewhere::default();
        let handle = elsewhere.clone();
        let mut find = |_: BpfMapId, _: &MapSpec| remote.then(|| Box::new(handle.clone()) as Box<dyn RemoteMap>);
        let mut engine = Engine::new(&image, &[ProgramId(0)], &mut find).expect("loads");
        let mut run = |key: u64, operand: u64, op: i32| {
            engine.run_words(ProgramId(0), &[key, operand, op as u64], &mut ()).expect("runs") as i64
        };
        assert_eq!(run(1, 40, atomic::ADD), 0, "made, where nothing was");
        assert_eq!(run(1, 2, atomic::ADD), 42, "a pointer that was looked up sees it");
        assert_eq!(run(1, 2u64.wrapping_neg(), atomic::ADD), 40);
        assert_eq!(run(1, 7, atomic::OR), 47);
        assert_eq!(run(1, 12, atomic::AND), 12);
        assert_eq!(run(1, 5, atomic::XOR), 9);
        assert_eq!(run(1, 5, atomic::XCHG), -22, "no such change");
        assert_eq!(run(2, 1, atomic::AND), 0);
        if !remote {
            assert_eq!(run(3, 1, atomic::ADD), -7, "the map is full");
        }
    }
}

#[test]
fn accesses_are_checked() {
    use FaultReason::BadAccess;
    let at = |write: fn(&mut Assembler)| {
        let image = one(vec![map("slots", MapKind::Array, 4, 24, 4)], |asm| {
            write(asm);
            asm.exit();
        });
        match fault(&image).reason {
            BadAccess { len, write, .. } => (len, write),
            other => panic!("{other}"),
        }
    };
    fn slot(asm: &mut Assembler) {
        asm.st_imm(Size::W, Reg::FP, -4, 1);
        asm.ld_map(Reg::R1, BpfMapId(0));
        asm.mov(Reg::R2, Reg::FP);
        asm.alu_imm(Alu::Add, Reg::R2, -4);
        asm.call(helper::MAP_LOOKUP_ELEM);
    }
    assert_eq!(at(|asm| asm.ldx(Size::Dw, Reg::R0, Reg::R1, 16)), (8, false), "past the context");
    assert_eq!(at(|asm| asm.ldx(Size::B, Reg::R0, Reg::R1, -1)), (1, false), "before the context");
    assert_eq!(at(|asm| asm.stx(Size::W, Reg::R1, 0, Reg::R1)), (4, true), "into the context");
    assert_eq!(at(|asm| asm.ldx(Size::H, Reg::R0, Reg::R5, 0)), (2, false), "at null");
    assert_eq!(
        at(|asm| {
            asm.mov(Reg::R2, Reg::FP);
            asm.stx(Size::Dw, Reg::R2, -4, Reg::R1)
        }),
        (8, true)
    );
    assert_eq!(
        at(|asm| {
            slot(asm);
            asm.ldx(Size::Dw, Reg::R0, Reg::R0, 17)
        }),
        (8, false),
        "past a value"
    );
    assert_eq!(
        at(|asm| {
            slot(asm);
            asm.ldx(Size::Dw, Reg::R0, Reg::R0, -8)
        }),
        (8, false),
        "before a value"
    );
    assert_eq!(
        at(|asm| {
            asm.ld_map(Reg::R1, BpfMapId(0));
            asm.ldx(Size::Dw, Reg::R0, Reg::R1, 0)
        }),
        (8, false),
        "a map itself"
    );
    assert_eq!(
        at(|asm| {
            asm.ld_map(Reg::R1, BpfMapId(0));
            asm.call(helper::MAP_LOOKUP_ELEM)
        }),
        (4, false),
        "a key"
    );
}

#[test]
fn endless_loops_end() {
    let endless = raw(&[(0x05, 0, 0, -1, 0), (0x95, 0, 0, 0, 0)]);
    assert_eq!(fault(&endless), Fault { insn: 0, reason: FaultReason::InstructionLimit });
}

/// A program that calls a function twice, by raw instructions: 0x85 with source 1 calls.
fn answer(write: impl FnOnce(&mut Assembler)) -> Result<u64, Fault> {
    let emit = |asm: &mut Assembler| {
        write(asm);
        asm.exit();
    };
    engine(&one(vec![], emit)).run_words(ProgramId(0), &[1, 2], &mut ())
}

#[test]
fn the_context_is_read_through_the_register_that_holds_it() {
    let second_of = |size: Size, at: i16| {
        answer(|asm| {
            asm.mov(Reg::R6, Reg::R1);
            asm.ldx(size, Reg::R0, Reg::R6, at);
        })
    };
    assert_eq!([Size::Dw, Size::W, Size::H, Size::B].map(|it| second_of(it, 8)), [Ok(2); 4]);
    for (at, len) in [(16, 8), (9, 8), (-1, 8)] {
        let fault = second_of(Size::Dw, at).expect_err("is outside");
        assert!(matches!(fault.reason, FaultReason::BadAccess { len: it, write: false, .. } if it == len));
        assert_eq!(fault.insn, 1);
    }
    let elsewhere = answer(|asm| {
        asm.mov(Reg::R6, Reg::R1);
        asm.st_imm(Size::Dw, Reg::FP, -8, 5);
        asm.mov(Reg::R6, Reg::FP);
        asm.ldx(Size::Dw, Reg::R0, Reg::R6, -8);
    });
    assert_eq!(elsewhere, Ok(5), "it holds something else by then");
}

#[test]
fn a_jump_may_lead_into_a_row_that_runs_as_one() {
    let stored = |jumps: bool| {
        answer(|asm| {
            let middle = asm.label();
            asm.mov(Reg::R6, Reg::R1);
            asm.mov_imm(Reg::R2, 77);
            if jumps {
                asm.jump(middle);
            }
            asm.ldx(Size::Dw, Reg::R2, Reg::R6, 8);
            asm.place(middle);
            asm.stx(Size::Dw, Reg::FP, -8, Reg::R2);
            asm.ldx(Size::Dw, Reg::R0, Reg::FP, -8);
            asm.alu(Alu::Add, Reg::R0, Reg::R2);
        })
    };
    assert_eq!([stored(false), stored(true)], [Ok(4), Ok(154)]);
}

#[test]
fn functions_have_registers_and_a_stack_of_their_own() {
    let image = raw(&[
        (0xb7, 6, 0, 0, 100),
        (0x7a, 10, 0, -8, 5),
        (0xbf, 1, 10, 0, 0),
        (0x07, 1, 0, 0, -8),
        (0x85, 0, 1, 0, 6),
        (0xbf, 7, 0, 0, 0),
        (0xb7, 2, 0, 0, 3),
        (0x79, 0, 10, -8, 0),
        (0x0f, 0, 6, 0, 0),
        (0x0f, 0, 7, 0, 0),
        (0x95, 0, 0, 0, 0),
        // Adds 1000 to its caller's word, and returns what it finds in its own, and in R6.
        (0xb7, 6, 0, 0, 1000),
        (0x7a, 10, 0, -8, 10000),
        (0x79, 2, 1, 0, 0),
        (0x0f, 2, 6, 0, 0),
        (0x7b, 1, 2, 0, 0),
        (0x79, 0, 10, -8, 0),
        (0x95, 0, 0, 0, 0),
    ]);
    assert_eq!(engine(&image).run(ProgramId(0), &[], &mut ()), Ok(1005 + 100 + 10000));

    let endless = raw(&[(0x85, 0, 1, 0, -1), (0x95, 0, 0, 0, 0)]);
    let fault = fault(&endless);
    assert_eq!((fault.insn, fault.reason), (0, FaultReason::TooManyFrames));
    assert!(refusal(&raw(&[(0x85, 0, 1, 0, 7), (0x95, 0, 0, 0, 0)])).contains("jumps out of the program"));
}

#[test]
fn bad_programs_are_refused() {
    const EXIT: (u8, u8, u8, i16, i32) = (0x95, 0, 0, 0, 0);
    let refused = |insns: &[(u8, u8, u8, i16, i32)], why: &str| {
        let text = refusal(&raw(insns));
        assert!(text.contains(why), "{text}");
    };
    refused(&[], "past its end");
    refused(&[(0xb7, 0, 0, 0, 0)], "past its end");
    refused(&[(0x15, 0, 0, 0, 0)], "past its end");
    refused(&[(0xb7, 10, 0, 0, 0), EXIT], "writes to r10");
    refused(&[(0xb7, 11, 0, 0, 0), EXIT], "above r10");
    refused(&[(0x05, 0, 0, 1, 0), EXIT], "out of the program");
    refused(&[(0x05, 0, 0, -2, 0), EXIT], "out of the program");
    refused(&[(0x05, 0, 0, 1, 0), (0x18, 0, 0, 0, 0), (0, 0, 0, 0, 0), EXIT], "middle");
    refused(&[(0x18, 0, 0, 0, 0), EXIT], "second half");
    refused(&[(0x18, 1, 1, 0, 0), (0, 0, 0, 0, 0), EXIT], "does not say which");
    refused(&[(0x85, 0, 0, 0, 9999), EXIT], "no helper 9999");
    refused(&[(0x85, 0, 2, 0, 0), EXIT], "call of kind 2");
    refused(&[(0x7a, 10, 0, -4, 0), EXIT], "outside of the stack");
    refused(&[(0xff, 0, 0, 0, 0), EXIT], "no instruction 0xff");
}

#[test]
fn an_image_that_the_engine_cannot_hold_is_refused() {
    let huge = one(vec![map("huge", MapKind::Array, 4, 4096, 1 << 30)], |asm| asm.exit());
    let huge = Image { maps: vec![MapSpec { home: Home::Tracer, ..huge.maps[0].clone() }], ..huge };
    assert!(refusal(&huge).starts_with("map `huge`"));
    assert!(Engine::new(&huge, &[ProgramId(5)], &mut |_, _| None).is_err());
}

/// An environment with an answer to everything.
struct Answers(Vec<Vec<u8>>);

impl Env for Answers {
    fn ktime_ns(&mut self) -> u64 {
        5
    }
    fn cpu(&mut self) -> u32 {
        3
    }
    fn output(&mut self, map: BpfMapId, data: &[u8]) -> bool {
        assert_eq!(map, BpfMapId(0));
        self.0.push(data.to_vec());
        true
    }
    fn name(&mut self, id: u64) -> &[u8] {
        if id == 2 { b"vectorAdd" } else { b"" }
    }
}

#[test]
fn helpers_ask_the_surroundings() {
    let image = one(vec![map("ring", MapKind::Ringbuf, 0, 0, 4096)], |asm| {
        asm.mov_imm(Reg::R1, 2);
        asm.mov(Reg::R2, Reg::FP);
        asm.alu_imm(Alu::Add, Reg::R2, -8);
        asm.mov_imm(Reg::R3, 8);
        asm.call(helper::NAME_TEXT);
        asm.mov(Reg::R6, Reg::R0);
        asm.ld_map(Reg::R1, BpfMapId(0));
        asm.mov(Reg::R2, Reg::FP);
        asm.alu_imm(Alu::Add, Reg::R2, -8);
        asm.mov_imm(Reg::R3, 8);
        asm.mov_imm(Reg::R4, 0);
        asm.call(helper::RINGBUF_OUTPUT);
        asm.call(helper::KTIME_GET_NS);
        asm.alu(Alu::Add, Reg::R6, Reg::R0);
        asm.call(helper::GET_SMP_PROCESSOR_ID);
        asm.alu(Alu::Add, Reg::R0, Reg::R6);
        asm.exit();
    });
    let mut answers = Answers(Vec::new());
    assert_eq!(engine(&image).run_words(ProgramId(0), &[], &mut answers), Ok(9 + 5 + 3));
    assert_eq!(answers.0, [b"vectorA\0"]);
}

#[test]
fn names_are_looked_through() {
    struct Names;
    impl Env for Names {
        fn name(&mut self, id: u64) -> &[u8] {
            [&b""[..], b"vectorAdd", b"vector", b"Add", b"torA", b"vectorAdds"][id as usize]
        }
    }
    let found = |wanted: i64, place: i64| {
        let image = one(vec![], |asm| {
            asm.mov_imm(Reg::R1, 1);
            asm.mov_imm(Reg::R2, wanted);
            asm.mov_imm(Reg::R3, place);
            asm.call(helper::NAME_MATCHES);
            asm.exit();
        });
        engine(&image).run_words(ProgramId(0), &[], &mut Names) == Ok(1)
    };
    let at = |place| (0..6).filter(|it| found(*it, place)).collect::<Vec<i64>>();
    assert_eq!(at(helper::MATCH_ANYWHERE), [0, 1, 2, 3, 4]);
    assert_eq!(at(helper::MATCH_START), [0, 1, 2]);
    assert_eq!(at(helper::MATCH_END), [0, 1, 3]);
}

fn any_insn() -> impl Strategy<Value = Insn> {
    let helper = prop_oneof![Just(1), Just(2), Just(3), 0..200i32, Just(helper::NAME_TEXT)];
    let imm = prop_oneof![4 => -20..20i32, 1 => any::<i32>(), 1 => Just(0)];
    prop_oneof![
        4 => (any::<u8>(), 0u8..11, 0u8..11, -20..20i16, imm)
            .prop_map(|(code, dst, src, off, imm)| Insn { code, dst, src, off, imm }),
        1 => any::<[u8; 8]>().prop_map(Insn::from_bytes),
        1 => helper.prop_map(|imm| Insn { code: 0x85, imm, ..Insn::default() }),
        3 => (prop::sample::select(vec![0x79u8, 0x7b, 0xbf, 0xb7, 0x0f, 0x07, 0x71, 0x63]), 0u8..10, 0u8..11, -32..32i16)
            .prop_map(|(code, dst, src, off)| {
                let off = if code & 7 == 7 { 0 } else { off };
                let imm = if code & 15 == 7 { -8 } else { 0 };
                let src = if code & 15 == 7 { 0 } else { src };
                Insn { code, dst, src, off, imm }
            }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_makes_it_panic(
        insns in prop::collection::vec(any_insn(), 0..40),
        refs in prop::collection::vec((0..40usize, (0..4u32).prop_map(BpfMapId)), 0..2),
    ) {
        let maps = vec![
            map("hash", MapKind::Hash, 8, 16, 4),
            map("array", MapKind::Array, 4, 16, 4),
            map("ring", MapKind::Ringbuf, 0, 0, 4096),
        ];
        let kind = ProgramKind::Syscall;
        let mut program = Program { name: "it".into(), kind, insns, map_refs: refs, lines: vec![] };
        program.insns.push(Insn { code: 0x95, ..Insn::default() });
        let image = image(maps, vec![program]);
        let _ = xputrace_bytecode::disasm::text(&image.programs[0], &image);
        let _ = xputrace_bytecode::object::write(&image);
        if let Ok(mut engine) = Engine::new(&image, &[ProgramId(0)], &mut |_, _| None) {
            engine.set_instruction_limit(10_000);
            let _ = engine.run(ProgramId(0), &[1; 13], &mut ());
        }
    }

    /// One instruction at a time, so that most programs pass the loader's checks.
    #[test]
    fn a_single_instruction_never_panics(insn in any_insn()) {
        let program = Program {
            name: "it".into(),
            kind: ProgramKind::Syscall,
            insns: vec![insn, Insn { code: 0x95, ..Insn::default() }],
            map_refs: vec![],
            lines: vec![],
        };
        if let Ok(mut engine) = Engine::new(&image(vec![], vec![program]), &[ProgramId(0)], &mut |_, _| None) {
            engine.set_instruction_limit(100);
            let _ = engine.run(ProgramId(0), &[1; 13], &mut ());
        }
    }

    /// What is added without running the program is what the program adds.
    #[test]
    fn a_tally_is_what_its_program_does(
        evicts in any::<bool>(),
        events in prop::collection::vec((0..6u64, 0..3u64, any::<u64>()), 0..100),
    ) {
        let kind = if evicts { MapKind::LruHash } else { MapKind::Hash };
        let [seen, run] = [false, true].map(|is_odd| {
            let mut engine = engine(&one(vec![map("m", kind, 24, 16, 8)], |asm| tally(asm, is_odd)));
            let all = events.iter().map(|(a, b, c)| vec![*a, *b, *c]).chain([vec![1, 2]]);
            let answers: Vec<_> = all.map(|it| engine.run_words(ProgramId(0), &it, &mut ())).collect();
            let mut elements = Vec::new();
            engine.for_each(BpfMapId(0), &mut |key, value| elements.push((key.to_vec(), value.to_vec())));
            (answers.into_iter().map(|it| it.map_err(|it| it.reason)).collect::<Vec<_>>(), elements)
        });
        prop_assert_eq!(seen, run);
    }

    /// Compares the engine's hash with the standard library's.
    #[test]
    fn a_hash_is_a_map(ops in prop::collection::vec((0..3u8, 0..40u64, any::<u64>(), 0..3u64), 0..300)) {
        let spec = MapSpec { home: Home::Tracer, ..map("m", MapKind::Hash, 8, 8, 16) };
        let mut engine = Engine::new(&image(vec![spec], vec![]), &[], &mut |_, _| None).expect("loads");
        let mut model = BTreeMap::new();
        for (op, key, value, flags) in ops {
            if op == 0 {
                let gone = model.remove(&key).map_or(-2, |_| 0);
                prop_assert_eq!(engine.delete(BpfMapId(0), &key.to_le_bytes()), gone);
                continue;
            }
            let answer = match (flags, model.contains_key(&key)) {
                (1, true) => -17,
                (2, false) => -2,
                (_, false) if model.len() == 16 => -7,
                _ => { model.insert(key, value); 0 }
            };
            prop_assert_eq!(engine.update(BpfMapId(0), &key.to_le_bytes(), &value.to_le_bytes(), flags), answer);
        }
        prop_assert_eq!(engine.len(BpfMapId(0)), model.len());
        prop_assert_eq!(counts(&engine), model);
    }
}
