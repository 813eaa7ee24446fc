//! Disassembly, text in, text out.

mod common;

use common::{image, map, program};
use xputrace_bytecode::image::{MapKind, ProgramKind};
use xputrace_bytecode::insn::{Alu, Cond, Insn, Reg, Size, atomic};
use xputrace_bytecode::{BpfMapId, Image, disasm, helper};

#[test]
fn a_handler_reads_like_the_verifiers_log() {
    let handler = program("calls", ProgramKind::Uprobe, |asm| {
        let (missing, end) = (asm.label(), asm.label());
        asm.line(0, 2, 5);
        asm.mov(Reg::R6, Reg::R1);
        asm.ldx(Size::Dw, Reg::R7, Reg::R6, 112);
        asm.jump_if_imm(Cond::Sgt, Reg::R7, 64, missing);
        asm.line(0, 3, 5);
        asm.st_imm(Size::W, Reg::FP, -8, 1);
        asm.ld_map(Reg::R1, BpfMapId(0));
        asm.mov(Reg::R2, Reg::FP);
        asm.alu_imm(Alu::Add, Reg::R2, -8);
        asm.call(helper::MAP_LOOKUP_ELEM);
        asm.jump_if(Cond::Eq, Reg::R0, Reg::R7, missing);
        asm.mov_imm(Reg::R1, 1 << 40);
        asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
        asm.atomic(atomic::CMPXCHG, Size::W, Reg::R0, 8, Reg::R1);
        asm.atomic(atomic::ADD | atomic::FETCH, Size::Dw, Reg::R0, 0, Reg::R1);
        asm.alu32(Alu::Arsh, Reg::R1, Reg::R2);
        asm.jump(end);
        asm.place(missing);
        asm.line(0, 9, 1);
        asm.mov_imm(Reg::R0, 0);
        asm.place(end);
        asm.exit();
    });
    let source = "\nif e.arg0 <= 64 {\n    @calls[e.tid].count();\n}\n";
    let image = Image {
        sources: vec![("calls.rhai".into(), source.into())],
        ..image(vec![map("calls", MapKind::Hash, 4, 8, 16)], vec![handler])
    };
    let expected = "\
; if e.arg0 <= 64 { @ calls.rhai:2
   0: (bf) r6 = r1
   1: (79) r7 = *(u64 *)(r6 +112)
   2: (65) if r7 s> 0x40 goto pc+14
; @calls[e.tid].count(); @ calls.rhai:3
   3: (62) *(u32 *)(r10 -8) = 1
   4: (18) r1 = map[calls]
   6: (bf) r2 = r10
   7: (07) r2 += -8
   8: (85) call map_lookup_elem#1
   9: (1d) if r0 == r7 goto pc+7
  10: (18) r1 = 0x10000000000
  12: (db) lock *(u64 *)(r0 +0) += r1
  13: (c3) r0 = atomic32_cmpxchg((u32 *)(r0 +8), r0, r1)
  14: (db) r1 = atomic64_fetch_add((u64 *)(r0 +0), r1)
  15: (cc) w1 s>>= w2
  16: (05) goto pc+1
; @ calls.rhai:9
  17: (b7) r0 = 0
  18: (95) exit
";
    assert_eq!(disasm::text(&image.programs[0], &image), expected);
}

#[test]
fn newer_instructions_have_their_signs() {
    let one = |code, dst, src, off, imm| {
        let mut program = program("it", ProgramKind::Syscall, |asm| asm.exit());
        program.insns[0] = Insn { code, dst, src, off, imm };
        let image = image(vec![], vec![]);
        disasm::text(&program, &image).trim().to_owned()
    };
    assert_eq!(one(0x3f, 1, 2, 1, 0), "0: (3f) r1 s/= r2");
    assert_eq!(one(0x94, 1, 0, 1, 7), "0: (94) w1 s%= 7");
    assert_eq!(one(0xbf, 1, 2, 8, 0), "0: (bf) r1 = (s8)r2");
    assert_eq!(one(0x91, 1, 2, -4, 0), "0: (91) r1 = *(s8 *)(r2 -4)");
    assert_eq!(one(0xd7, 1, 0, 0, 32), "0: (d7) r1 = bswap32 r1");
    assert_eq!(one(0xdc, 1, 0, 0, 16), "0: (dc) r1 = be16 r1");
    assert_eq!(one(0x06, 0, 0, 0, 3), "0: (06) gotol pc+3");
    assert_eq!(one(0x4e, 1, 2, 3, 0), "0: (4e) if w1 & w2 goto pc+3");
    assert_eq!(one(0x87, 3, 0, 0, 0), "0: (87) r3 = -r3");
    assert_eq!(one(0x85, 0, 0, 0, 4242), "0: (85) call unknown#4242");
    assert_eq!(one(0xff, 1, 2, 3, 4), "0: (ff) unknown (dst 1, src 2, off 3, imm 4)");
}
