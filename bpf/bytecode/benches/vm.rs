//! The cost of one event in the engine: a filter, a histogram's bucket and a hash update, as in
//! `kernel(|k| if k.duration > 1.us { @time[k.name].hist(k.duration) })`.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use xputrace_bytecode::image::{Home, Image, MapKind, MapSpec, Program, ProgramKind};
use xputrace_bytecode::insn::{Alu, Cond, Reg, Size, atomic};
use xputrace_bytecode::vm::Engine;
use xputrace_bytecode::{Assembler, BpfMapId, ProgramId, helper};

/// Steps of the binary logarithm: (remaining bits, shift).
const LOG2_STEPS: [i32; 6] = [32, 16, 8, 4, 2, 1];

fn handler(asm: &mut Assembler) {
    let (end, missing) = (asm.label(), asm.label());
    asm.mov(Reg::R6, Reg::R1);
    asm.ldx(Size::Dw, Reg::R7, Reg::R6, 32);
    asm.ldx(Size::Dw, Reg::R1, Reg::R6, 24);
    asm.alu(Alu::Sub, Reg::R7, Reg::R1);
    asm.jump_if_imm(Cond::Sle, Reg::R7, 1000, end);
    log2(asm);
    asm.ldx(Size::Dw, Reg::R1, Reg::R6, 40);
    asm.stx(Size::Dw, Reg::FP, -16, Reg::R1);
    asm.stx(Size::Dw, Reg::FP, -8, Reg::R8);
    key(asm);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, missing);
    asm.mov_imm(Reg::R1, 1);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
    asm.jump(end);
    asm.place(missing);
    asm.st_imm(Size::Dw, Reg::FP, -24, 1);
    key(asm);
    asm.mov(Reg::R3, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R3, -24);
    asm.mov_imm(Reg::R4, helper::UPDATE_NOEXIST.into());
    asm.call(helper::MAP_UPDATE_ELEM);
    asm.place(end);
    asm.mov_imm(Reg::R0, 0);
    asm.exit();
}

/// `r8 = log2(r7)`.
fn log2(asm: &mut Assembler) {
    asm.mov(Reg::R2, Reg::R7);
    asm.mov_imm(Reg::R8, 0);
    for bits in LOG2_STEPS {
        let less = asm.label();
        asm.mov(Reg::R1, Reg::R2);
        asm.alu_imm(Alu::Rsh, Reg::R1, bits);
        asm.jump_if_imm(Cond::Eq, Reg::R1, 0, less);
        asm.alu_imm(Alu::Add, Reg::R8, bits);
        asm.mov(Reg::R2, Reg::R1);
        asm.place(less);
    }
}

fn key(asm: &mut Assembler) {
    asm.ld_map(Reg::R1, BpfMapId(0));
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R2, -16);
}

fn image() -> Image {
    let mut asm = Assembler::new();
    handler(&mut asm);
    let assembled = asm.finish().expect("assembles");
    let time = MapSpec {
        name: "time".into(),
        kind: MapKind::Hash,
        key_size: 16,
        value_size: 8,
        max_entries: 65_536,
        flags: 0,
        home: Home::Tracer,
        inner: None,
    };
    let program = Program {
        name: "kernel".into(),
        kind: ProgramKind::Syscall,
        insns: assembled.insns,
        map_refs: assembled.map_refs,
        lines: assembled.lines,
    };
    Image { maps: vec![time], programs: vec![program], sources: Vec::new() }
}

fn bench(criterion: &mut Criterion) {
    let mut engine = Engine::new(&image(), &[ProgramId(0)], &mut |_, _| None).expect("loads");
    let mut ctx = [0u64; 64];
    let mut n = 0u64;
    criterion.bench_function("filter, log2 and one hash update", |bencher| {
        bencher.iter(|| {
            n += 1;
            ctx[4] = 2_000 + (n & 0xffff);
            ctx[5] = n % 50;
            engine.run_words(ProgramId(0), black_box(&ctx), &mut ())
        });
    });
    let mut engine = Engine::new(&image(), &[ProgramId(0)], &mut |_, _| None).expect("loads");
    ctx[4] = 1;
    criterion.bench_function("filtered out", |bencher| {
        bencher.iter(|| engine.run_words(ProgramId(0), black_box(&ctx), &mut ()));
    });
}

criterion_group!(benches, bench);
criterion_main!(benches);
