//! Programs that many threads run at the same time. Word 0 of the context is the thread's number.

use xputrace_bytecode::insn::{Alu, Cond, Reg, Size, atomic};
use xputrace_bytecode::{Assembler, BpfMapId, helper};

/// A hash with keys of 16 bytes and values of 8.
pub(crate) const HASH: BpfMapId = BpfMapId(0);
pub(crate) const RING: BpfMapId = BpfMapId(1);
/// An array with values of 8 bytes.
pub(crate) const ARRAY: BpfMapId = BpfMapId(2);
/// What [`sum`] multiplies the thread's number by.
pub(crate) const FACTOR: u64 = 0x1234_5678_9abc_def1;

fn with_key(asm: &mut Assembler, map: BpfMapId, helper: i32) {
    asm.ld_map(Reg::R1, map);
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R2, -16);
    asm.call(helper);
}

/// Puts the thread's number modulo `n_keys` where [`with_key`] takes it.
fn key(asm: &mut Assembler, n_keys: i32) {
    asm.ldx(Size::Dw, Reg::R6, Reg::R1, 0);
    asm.alu_imm(Alu::Mod, Reg::R6, n_keys);
    asm.stx(Size::Dw, Reg::FP, -16, Reg::R6);
    asm.st_imm(Size::Dw, Reg::FP, -8, 0);
}

/// Counts a key as handlers do: finds its element, or makes it.
pub(crate) fn count(asm: &mut Assembler, n_keys: i32) {
    let (hit, done) = (asm.label(), asm.label());
    key(asm, n_keys);
    with_key(asm, HASH, helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Ne, Reg::R0, 0, hit);
    asm.st_imm(Size::Dw, Reg::FP, -24, 0);
    asm.mov(Reg::R3, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R3, -24);
    asm.mov_imm(Reg::R4, helper::UPDATE_NOEXIST.into());
    with_key(asm, HASH, helper::MAP_UPDATE_ELEM);
    with_key(asm, HASH, helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
    asm.place(hit);
    asm.mov_imm(Reg::R1, 1);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
    asm.place(done);
    asm.mov_imm(Reg::R0, 0);
    asm.exit();
}

/// Makes and deletes an element again and again, and leaves it made.
pub(crate) fn come_and_go(asm: &mut Assembler, n_keys: i32) {
    key(asm, n_keys);
    asm.mov_imm(Reg::R7, 0);
    let top = asm.label();
    asm.place(top);
    asm.stx(Size::Dw, Reg::FP, -24, Reg::R6);
    asm.mov(Reg::R3, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R3, -24);
    asm.mov_imm(Reg::R4, helper::UPDATE_ANY.into());
    with_key(asm, HASH, helper::MAP_UPDATE_ELEM);
    with_key(asm, HASH, helper::MAP_DELETE_ELEM);
    asm.alu_imm(Alu::Add, Reg::R7, 1);
    asm.jump_if_imm(Cond::Lt, Reg::R7, 4, top);
    asm.mov(Reg::R3, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R3, -24);
    asm.mov_imm(Reg::R4, helper::UPDATE_ANY.into());
    with_key(asm, HASH, helper::MAP_UPDATE_ELEM);
    asm.exit();
}

/// Adds a multiple of the thread's number to the array's element.
pub(crate) fn sum(asm: &mut Assembler, size: Size) {
    let done = asm.label();
    asm.ldx(Size::Dw, Reg::R6, Reg::R1, 0);
    asm.mov_imm(Reg::R7, FACTOR as i64);
    asm.alu(Alu::Mul, Reg::R6, Reg::R7);
    asm.st_imm(Size::Dw, Reg::FP, -16, 0);
    with_key(asm, ARRAY, helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
    asm.atomic(atomic::ADD, size, Reg::R0, 0, Reg::R6);
    asm.place(done);
    asm.exit();
}

/// Writes records of so many bytes, which begin with the thread's number and the record's.
pub(crate) fn record(asm: &mut Assembler, n_bytes: i32, n_records: i32) {
    let top = asm.label();
    asm.ldx(Size::Dw, Reg::R6, Reg::R1, 0);
    asm.mov_imm(Reg::R7, 0);
    asm.place(top);
    asm.stx(Size::Dw, Reg::FP, -152, Reg::R6);
    asm.stx(Size::B, Reg::FP, -144, Reg::R7);
    asm.ld_map(Reg::R1, RING);
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R2, -152);
    asm.mov_imm(Reg::R3, n_bytes.into());
    asm.mov_imm(Reg::R4, 0);
    asm.call(helper::RINGBUF_OUTPUT);
    asm.alu_imm(Alu::Add, Reg::R7, 1);
    asm.jump_if_imm(Cond::Lt, Reg::R7, n_records, top);
    asm.exit();
}

/// Jumps for ever.
pub(crate) fn endless(asm: &mut Assembler) {
    let top = asm.label();
    asm.place(top);
    asm.jump(top);
}

/// Writes where the thread's number says, far outside of the array's value.
pub(crate) fn stray(asm: &mut Assembler) {
    let done = asm.label();
    asm.ldx(Size::Dw, Reg::R6, Reg::R1, 0);
    asm.alu_imm(Alu::Add, Reg::R6, 1);
    asm.alu_imm(Alu::Mul, Reg::R6, 4096);
    asm.st_imm(Size::Dw, Reg::FP, -16, 0);
    with_key(asm, ARRAY, helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
    asm.alu(Alu::Add, Reg::R0, Reg::R6);
    asm.st_imm(Size::Dw, Reg::R0, 0, -1);
    asm.place(done);
    asm.exit();
}
