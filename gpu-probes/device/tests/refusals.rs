//! What can't be translated is refused by instruction, and what goes wrong in a run ends it, counted.

mod common;

use common::ptx::{Code, Warp};
use common::{map, program, programs};
use proptest::prelude::*;
use xputrace_bytecode::image::{Program, ProgramKind};
use xputrace_bytecode::insn::{Alu, Cond, Insn, Reg, Size, atomic};
use xputrace_bytecode::{Assembler, BpfMapId, helper};
use xputrace_device::arena::{Arena, Needs};
use xputrace_device::{
    DeviceMap, Options, PtxBlock, RecordKind, Refusal, Request, SiteKind, Storage, TableAt, Word, translate,
};

const ARRAY: BpfMapId = programs::ARRAY;

fn maps() -> Vec<DeviceMap> {
    vec![map(Storage::Hash, 16, 8, 10), map(Storage::Ring, 0, 0, 0), map(Storage::Array, 4, 16, 4)]
}

fn translated(program: &Program, options: &Options) -> Result<PtxBlock, Refusal> {
    let context = [Word::Narrow("%tid.x".into()), Word::Absent];
    translate(Request { program, maps: &maps(), context: &context, options })
}

#[track_caller]
fn refused(insn: usize, why: &str, write: impl FnOnce(&mut Assembler)) {
    let refusal = translated(&program(write), &Options::default()).expect_err("is refused");
    assert!(refusal.insn == insn && refusal.what.contains(why), "{refusal}");
}

fn look_up(asm: &mut Assembler) {
    asm.st_imm(Size::W, Reg::FP, -4, 1);
    asm.ld_map(Reg::R1, ARRAY);
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R2, -4);
    asm.call(helper::MAP_LOOKUP_ELEM);
}

#[test]
fn pointers_of_unknown_kinds_are_refused() {
    refused(1, "through a number", |asm| {
        asm.mov_imm(Reg::R2, 4096);
        asm.ldx(Size::Dw, Reg::R0, Reg::R2, 0);
        asm.exit();
    });
    refused(2, "different kind of value on each path", |asm| {
        let other = asm.label();
        asm.jump_if_imm(Cond::Eq, Reg::R1, 7, other);
        asm.mov(Reg::R1, Reg::FP);
        asm.place(other);
        asm.ldx(Size::Dw, Reg::R0, Reg::R1, -8);
        asm.exit();
    });
    refused(0, "r3, which is not set", |asm| {
        asm.mov(Reg::R0, Reg::R3);
        asm.exit();
    });
    refused(0, "r1 is the context, not a map", |asm| {
        asm.call(helper::MAP_LOOKUP_ELEM);
        asm.exit();
    });
}

#[test]
fn places_outside_are_refused() {
    refused(0, "outside of the context, or spans two words", |asm| {
        asm.ldx(Size::Dw, Reg::R0, Reg::R1, 16);
        asm.exit();
    });
    refused(0, "which this event does not have", |asm| {
        asm.ldx(Size::Dw, Reg::R0, Reg::R1, 8);
        asm.exit();
    });
    refused(0, "writes to the context", |asm| {
        asm.st_imm(Size::Dw, Reg::R1, 0, 1);
        asm.exit();
    });
    refused(0, "of a stack", |asm| {
        asm.st_imm(Size::Dw, Reg::FP, -516, 1);
        asm.exit();
    });
    refused(7, "of a map's value", |asm| {
        let done = asm.label();
        look_up(asm);
        asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
        asm.ldx(Size::W, Reg::R0, Reg::R0, 13);
        asm.place(done);
        asm.exit();
    });
    refused(8, "not aligned", |asm| {
        let done = asm.label();
        look_up(asm);
        asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
        asm.mov_imm(Reg::R1, 1);
        asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 4, Reg::R1);
        asm.place(done);
        asm.exit();
    });
}

#[test]
fn helpers_that_the_device_lacks_are_refused() {
    refused(0, "helper 16 (get_current_comm)", |asm| {
        asm.call(helper::GET_CURRENT_COMM);
        asm.exit();
    });
    refused(0, "not allowed here", |asm| {
        asm.call(helper::EXIT_THREAD);
        asm.exit();
    });
    refused(4, "r3, the record's size", |asm| {
        asm.ldx(Size::Dw, Reg::R3, Reg::R1, 0);
        asm.ld_map(Reg::R1, programs::RING);
        asm.mov(Reg::R2, Reg::FP);
        asm.call(helper::RINGBUF_OUTPUT);
        asm.exit();
    });
}

#[test]
fn functions_that_call_themselves_are_refused() {
    let insns = [(0x85, 0, 1, 0, -1), (0x95, 0, 0, 0, 0)];
    let insns = insns.map(|(code, dst, src, off, imm)| Insn { code, dst, src, off, imm }).to_vec();
    let program = Program { name: "p".into(), kind: ProgramKind::Syscall, insns, map_refs: vec![], lines: vec![] };
    let refusal = translated(&program, &Options::default()).expect_err("is refused");
    assert!(refusal.what.contains("8 functions deep"), "{refusal}");
}

/// Runs one thread; returns R0 and the number of each loss.
fn run(write: impl FnOnce(&mut Assembler), thread: u64) -> (u64, Vec<(SiteKind, u64)>) {
    run_with(write, thread, 0, |warp| warp.table)
}

/// Likewise with the element of the variable that it looks at, which holds what `table` says.
fn run_with(
    write: impl FnOnce(&mut Assembler),
    thread: u64,
    switch: usize,
    table: impl FnOnce(&Warp<'_>) -> u64,
) -> (u64, Vec<(SiteKind, u64)>) {
    let table_at = TableAt::Variable { switch };
    let options = Options { fuel: 100, result: Some("%result".into()), table: table_at, ..Options::default() };
    let block = translated(&program(write), &options).expect("is translated");
    let arena = Arena::new(Needs { maps: maps(), n_sites: block.sites.len() as u32, ring_slots: 0, n_threads: 1 });
    let arena = arena.expect("fits");
    let mut memory = arena.table();
    memory.resize(arena.n_bytes() as usize, 0);
    let element = if switch == 0 { "[xpt_device]".to_owned() } else { format!("[xpt_device+{}]", 8 * switch) };
    assert_eq!(block.text.matches("xpt_device").count(), block.text.matches(&element).count());
    let code = Code::parse(&block.text.replace(&element, "[xpt_device]"));
    let mut warp = Warp::new(&code, 1, memory);
    warp.table = table(&warp);
    warp.threads[0].special.insert("%tid.x".into(), thread);
    warp.run_in_turn();
    let loss = |at: usize| common::generate::word(&warp.global, arena.loss(at as u32));
    let losses = block.sites.iter().enumerate().map(|(at, site)| (site.what, loss(at))).filter(|it| it.1 > 0);
    (warp.threads[0].result(&code), losses.collect())
}

#[test]
fn runs_that_go_wrong_end() {
    assert_eq!(run(programs::endless, 0), (0, vec![(SiteKind::OutOfFuel, 1)]));
    assert_eq!(run(programs::stray, 0), (0, vec![(SiteKind::BadAccess, 1)]));
    assert_eq!(run(programs::stray, u64::from(u32::MAX)), (0, vec![(SiteKind::BadAccess, 1)]));
    let without_test = |asm: &mut Assembler| {
        asm.st_imm(Size::W, Reg::FP, -4, 4);
        asm.ld_map(Reg::R1, ARRAY);
        asm.mov(Reg::R2, Reg::FP);
        asm.alu_imm(Alu::Add, Reg::R2, -4);
        asm.call(helper::MAP_LOOKUP_ELEM);
        asm.ldx(Size::Dw, Reg::R0, Reg::R0, 0);
        asm.exit();
    };
    assert_eq!(run(without_test, 0), (0, vec![(SiteKind::BadAccess, 1)]));
    let record = |asm: &mut Assembler| programs::record(asm, 60, 3);
    assert_eq!(run(record, 0).1, vec![(SiteKind::Record(RecordKind::Data(BpfMapId(1))), 3)]);
}

#[test]
fn nothing_runs_while_probes_are_off() {
    for switch in [0, 3] {
        assert_eq!(run_with(programs::endless, 0, switch, |_| 0), (0, vec![]));
        assert_eq!(run_with(programs::endless, 0, switch, |warp| warp.table), (0, vec![(SiteKind::OutOfFuel, 1)]));
    }
}

fn any_insn() -> impl Strategy<Value = Insn> {
    // Those of the list are often right as they are, so more than the first is looked at.
    let codes =
        vec![0xb7, 0xbf, 0x07, 0x0f, 0x2f, 0x3f, 0x61, 0x79, 0x63, 0x7b, 0x72, 0x15, 0x1d, 0x05, 0x85, 0x95, 0xdb];
    let code = prop_oneof![1 => any::<u8>(), 9 => prop::sample::select(codes)];
    (code, 0u8..12, 0u8..12, -20i16..20, prop_oneof![-20i32..20, any::<i32>(), 1i32..150, 500i32..512])
        .prop_map(|(code, dst, src, off, imm)| Insn { code, dst, src, off, imm })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_program_makes_it_panic(
        insns in prop::collection::vec(any_insn(), 0..30),
        map_refs in prop::collection::vec((0usize..30, 0u32..4), 0..5),
    ) {
        let mut insns = insns;
        insns.push(Insn { code: 0x95, ..Insn::default() });
        let map_refs = map_refs.into_iter().map(|(at, map)| (at, BpfMapId(map))).collect();
        let program = Program { name: "p".into(), kind: ProgramKind::Syscall, insns, map_refs, lines: vec![] };
        let _ = translated(&program, &Options::default());
    }
}
