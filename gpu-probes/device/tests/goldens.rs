//! Programs and the PTX that becomes of them: `BLESS=1` accepts changes. NVIDIA's assembler has to accept every one.

mod common;

use std::path::Path;

use common::{assemble, kernels, map, module, program, programs, ptxas};
use xputrace_bytecode::insn::{self, Alu, Cond, Insn, Reg, Size, atomic};
use xputrace_bytecode::{Assembler, BpfMapId, Home, Image, MapKind, MapSpec, Program, ProgramKind, disasm, helper};
use xputrace_device::{DeviceMap, Options, Request, Storage, Word, translate};

const ARRAY: BpfMapId = BpfMapId(0);
const HASH: BpfMapId = BpfMapId(1);
const THREADS: BpfMapId = BpfMapId(2);
const RING: BpfMapId = BpfMapId(3);

fn maps() -> Vec<DeviceMap> {
    vec![
        map(Storage::Array, 4, 8, 16),
        map(Storage::Hash, 16, 24, 1000),
        map(Storage::PerThreadArray, 4, 8, 2),
        map(Storage::Ring, 0, 0, 0),
    ]
}

fn context() -> Vec<Word> {
    vec![
        Word::Narrow("%tid.x".into()),
        Word::Wide("%globaltimer".into()),
        Word::Constant(42),
        Word::Statements("cvta.to.global.u64 {d}, %result;".into()),
        Word::Absent,
    ]
}

/// An image that names the maps, for the listing.
fn image(program: &Program) -> Image {
    let named = |name: &str| MapSpec { home: Home::Tracer, ..MapSpec::number(name, MapKind::Hash) };
    Image {
        maps: ["array", "hash", "threads", "ring"].map(named).to_vec(),
        programs: vec![program.clone()],
        sources: vec![],
    }
}

/// Compares a program's block with a file, and assembles a kernel that has it twice.
fn check(name: &str, write: impl FnOnce(&mut Assembler)) {
    check_program(name, &program(write));
}

fn check_program(name: &str, program: &Program) {
    let options = Options { annotate: true, result: Some("%result".into()), architecture: 90, ..Options::default() };
    let (maps, context) = (maps(), context());
    let request = Request { program, maps: &maps, context: &context, options: &options };
    let block = translate(request).unwrap_or_else(|it| panic!("{name}: {it}"));
    let sites: String = block.sites.iter().map(|it| format!("// site: {it:?}\n")).collect();
    let text = format!("{}\n{}{sites}", disasm::text(program, &image(program)), block.text);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.txt"));
    xputrace_golden::assert(&path, &text);
    if let Some(ptxas) = ptxas(name) {
        assemble(&ptxas, &module(&[&block.text, &block.text])).unwrap_or_else(|it| panic!("{name}: {it}\n{text}"));
    }
}

/// Calls a map helper with the key in the stack's first word.
fn with_key(asm: &mut Assembler, map: BpfMapId, key: i16, helper: i32) {
    asm.ld_map(Reg::R1, map);
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R2, key.into());
    asm.call(helper);
}

#[test]
fn a_counter_per_thread_in_an_array() {
    check("count", |asm| {
        let done = asm.label();
        asm.ldx(Size::Dw, Reg::R6, Reg::R1, 0);
        asm.alu_imm(Alu::And, Reg::R6, 15);
        asm.stx(Size::W, Reg::FP, -4, Reg::R6);
        with_key(asm, ARRAY, -4, helper::MAP_LOOKUP_ELEM);
        asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
        asm.mov_imm(Reg::R1, 1);
        asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
        asm.place(done);
        asm.mov_imm(Reg::R0, 0);
        asm.exit();
    });
}

#[test]
fn an_element_of_a_hash_is_found_or_made() {
    check("hash", |asm| {
        let (hit, done) = (asm.label(), asm.label());
        asm.ldx(Size::Dw, Reg::R6, Reg::R1, 0);
        asm.stx(Size::Dw, Reg::FP, -16, Reg::R6);
        asm.st_imm(Size::Dw, Reg::FP, -8, 7);
        with_key(asm, HASH, -16, helper::MAP_LOOKUP_ELEM);
        asm.jump_if_imm(Cond::Ne, Reg::R0, 0, hit);
        for at in [-40, -32, -24] {
            asm.st_imm(Size::Dw, Reg::FP, at, 0);
        }
        asm.mov(Reg::R3, Reg::FP);
        asm.alu_imm(Alu::Add, Reg::R3, -40);
        asm.mov_imm(Reg::R4, helper::UPDATE_NOEXIST.into());
        with_key(asm, HASH, -16, helper::MAP_UPDATE_ELEM);
        with_key(asm, HASH, -16, helper::MAP_LOOKUP_ELEM);
        asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
        asm.place(hit);
        asm.mov_imm(Reg::R1, 1);
        asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 8, Reg::R1);
        asm.place(done);
        with_key(asm, HASH, -16, helper::MAP_DELETE_ELEM);
        asm.exit();
    });
}

#[test]
fn a_value_per_thread() {
    check("per-thread", |asm| {
        let done = asm.label();
        asm.ldx(Size::Dw, Reg::R6, Reg::R1, 8);
        asm.st_imm(Size::W, Reg::FP, -4, 1);
        with_key(asm, THREADS, -4, helper::MAP_LOOKUP_ELEM);
        asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
        asm.stx(Size::Dw, Reg::R0, 0, Reg::R6);
        asm.place(done);
        asm.exit();
    });
}

#[test]
fn a_record_of_two_slots() {
    check("record", |asm| {
        asm.ldx(Size::Dw, Reg::R6, Reg::R1, 8);
        asm.ldx(Size::W, Reg::R7, Reg::R1, 16);
        asm.stx(Size::Dw, Reg::FP, -64, Reg::R6);
        asm.stx(Size::W, Reg::FP, -56, Reg::R7);
        asm.ld_map(Reg::R1, RING);
        asm.mov(Reg::R2, Reg::FP);
        asm.alu_imm(Alu::Add, Reg::R2, -64);
        asm.mov_imm(Reg::R3, 64);
        asm.mov_imm(Reg::R4, 0);
        asm.call(helper::RINGBUF_OUTPUT);
        asm.exit();
    });
}

/// The kernels of `examples/on_gpu.rs`, in which many threads run a program.
#[test]
fn programs_of_many_threads_are_assembled() {
    let Some(ptxas) = ptxas("assembling programs of many threads") else { return };
    type Write = fn(&mut Assembler);
    let programs: [(&str, Write); 6] = [
        ("count", |asm| programs::count(asm, 1000)),
        ("come_and_go", |asm| programs::come_and_go(asm, 1000)),
        ("sum", |asm| programs::sum(asm, Size::Dw)),
        ("record", |asm| programs::record(asm, 60, 2)),
        ("endless", programs::endless),
        ("stray", programs::stray),
    ];
    let maps = [
        DeviceMap { parts: 132, ..map(Storage::Hash, 16, 8, 1000) },
        map(Storage::Ring, 0, 0, 0),
        DeviceMap { parts: 132, ..map(Storage::Array, 4, 8, 1) },
    ];
    let per_thread = [maps[0], maps[1], map(Storage::PerThreadArray, 4, 8, 1)];
    let context = [Word::Statements(kernels::THREAD_NUMBER.into())];
    let options = Options { architecture: 90, ..Options::default() };
    for (name, write) in programs {
        for maps in [&maps, &per_thread] {
            let maps =
                if name == "come_and_go" { &[DeviceMap { parts: 1, ..maps[0] }, maps[1], maps[2]] } else { maps };
            let program = program(write);
            let request = Request { program: &program, maps, context: &context, options: &options };
            let block = translate(request).unwrap_or_else(|it| panic!("{name}: {it}"));
            let said = assemble(&ptxas, &kernels::of_a_crowd(&block)).unwrap_or_else(|it| panic!("{name}: {it}"));
            assert!(said.contains(" 0 bytes stack frame"), "{name} has a stack in memory: {said}");
        }
    }
}

#[test]
fn a_loop_over_a_stack_in_memory() {
    check("loop", |asm| {
        let top = asm.label();
        asm.mov_imm(Reg::R6, 0);
        asm.place(top);
        asm.mov(Reg::R7, Reg::FP);
        asm.alu(Alu::Add, Reg::R7, Reg::R6);
        asm.stx(Size::Dw, Reg::R7, -64, Reg::R6);
        asm.alu_imm(Alu::Add, Reg::R6, 8);
        asm.jump_if_imm(Cond::Lt, Reg::R6, 64, top);
        asm.ldx(Size::Dw, Reg::R0, Reg::FP, -16);
        asm.exit();
    });
}

#[test]
fn a_maximum_by_compare_and_exchange() {
    check("maximum", |asm| {
        let (top, done) = (asm.label(), asm.label());
        asm.ldx(Size::Dw, Reg::R6, Reg::R1, 0);
        asm.st_imm(Size::W, Reg::FP, -4, 1);
        with_key(asm, ARRAY, -4, helper::MAP_LOOKUP_ELEM);
        asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
        asm.mov(Reg::R7, Reg::R0);
        asm.ldx(Size::Dw, Reg::R0, Reg::R7, 0);
        asm.place(top);
        asm.jump_if(Cond::Sge, Reg::R0, Reg::R6, done);
        asm.mov(Reg::R8, Reg::R0);
        asm.atomic(atomic::CMPXCHG, Size::Dw, Reg::R7, 0, Reg::R6);
        asm.jump_if(Cond::Ne, Reg::R0, Reg::R8, top);
        asm.place(done);
        asm.mov_imm(Reg::R0, 0);
        asm.exit();
    });
}

#[test]
fn a_maximum_in_one_step() {
    check("raise", |asm| {
        let done = asm.label();
        asm.ldx(Size::Dw, Reg::R6, Reg::R1, 0);
        asm.st_imm(Size::W, Reg::FP, -4, 1);
        with_key(asm, ARRAY, -4, helper::MAP_LOOKUP_ELEM);
        asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
        asm.mov(Reg::R1, Reg::R0);
        asm.mov(Reg::R2, Reg::R6);
        asm.call(helper::RAISE);
        asm.place(done);
        asm.mov_imm(Reg::R0, 0);
        asm.exit();
    });
}

#[test]
fn a_function_and_an_address_in_a_map() {
    let insn = |(code, dst, src, off, imm)| Insn { code, dst, src, off, imm };
    let insns = [
        (0x18, 1, insn::PSEUDO_MAP_VALUE, 0, 0),
        (0, 0, 0, 0, 4),
        (0xb7, 6, 0, 0, 5),
        (0x85, 0, insn::PSEUDO_CALL, 0, 2),
        (0x0f, 0, 6, 0, 0),
        (0x95, 0, 0, 0, 0),
        // Stores what it is given, and returns the word there.
        (0xb7, 6, 0, 0, 7),
        (0x63, 1, 6, 0, 0),
        (0x61, 0, 1, 0, 0),
        (0x95, 0, 0, 0, 0),
    ];
    let map_refs = vec![(0, ARRAY)];
    let insns = insns.map(insn).to_vec();
    check_program(
        "function",
        &Program { name: "p".into(), kind: ProgramKind::Syscall, insns, map_refs, lines: vec![] },
    );
}
