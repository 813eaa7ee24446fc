//! An assembler: instructions with labels in, resolved instructions out.
//!
//! One method per instruction, named after the verifier's mnemonics; nothing is optimized.

use crate::helper;
use crate::id::BpfMapId;
use crate::image::Line;
use crate::insn::{self, Alu, Cond, Insn, Reg, Size, class, mode};

/// A jump target, created before or after the jumps to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Label(u32);

/// The program under construction.
#[derive(Clone, Debug, Default)]
pub struct Assembler {
    insns: Vec<Insn>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
    map_refs: Vec<(usize, BpfMapId)>,
    lines: Vec<Line>,
}

/// The result of [`Assembler::finish`]: the parts of a [`crate::Program`].
#[derive(Clone, Debug)]
pub struct Assembled {
    pub insns: Vec<Insn>,
    pub map_refs: Vec<(usize, BpfMapId)>,
    pub lines: Vec<Line>,
}

/// Why a program could not be assembled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AsmError {
    #[error("a jump goes to a label that was never placed")]
    UnplacedLabel,
    #[error("a jump from instruction {from} spans more than 32767 instructions")]
    JumpTooFar { from: usize },
}

impl Assembler {
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the index of the next instruction.
    pub fn here(&self) -> usize {
        self.insns.len()
    }

    /// Creates a label to be placed later.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() as u32 - 1)
    }

    /// Places `label` before the next instruction.
    pub fn place(&mut self, label: Label) {
        self.labels[label.0 as usize] = Some(self.here());
    }

    /// Sets the script's position for the instructions that follow.
    pub fn line(&mut self, file: usize, line: u32, column: u32) {
        let insn = self.here();
        if self.lines.last().is_some_and(|it| it.insn == insn) {
            self.lines.pop();
        }
        self.lines.push(Line { insn, file, line, column });
    }

    fn push(&mut self, code: u8, dst: Reg, src: Reg, off: i16, imm: i32) {
        self.insns.push(Insn { code, dst: dst.0, src: src.0, off, imm });
    }

    /// `dst op= src`, 64 bits.
    pub fn alu(&mut self, op: Alu, dst: Reg, src: Reg) {
        self.push(class::ALU64 | insn::SRC_REG | op as u8, dst, src, 0, 0);
    }

    /// `dst op= src` for `Div` and `Mod` of signed 64-bit integers: the encoding of version 4 of
    /// the instruction set, offset 1 (RFC 9669, section 4.1; Linux 6.6 and later).
    pub fn alu_signed(&mut self, op: Alu, dst: Reg, src: Reg) {
        self.push(class::ALU64 | insn::SRC_REG | op as u8, dst, src, 1, 0);
    }

    /// `dst op= imm`, 64 bits; the immediate is sign-extended.
    pub fn alu_imm(&mut self, op: Alu, dst: Reg, imm: i32) {
        self.push(class::ALU64 | op as u8, dst, Reg::R0, 0, imm);
    }

    /// `dst op= src`, 32 bits; the upper half becomes zero.
    pub fn alu32(&mut self, op: Alu, dst: Reg, src: Reg) {
        self.push(class::ALU | insn::SRC_REG | op as u8, dst, src, 0, 0);
    }

    /// `dst = src`.
    pub fn mov(&mut self, dst: Reg, src: Reg) {
        self.alu(Alu::Mov, dst, src);
    }

    /// `dst = imm`, in one slot or two as the value needs.
    pub fn mov_imm(&mut self, dst: Reg, imm: i64) {
        match i32::try_from(imm) {
            Ok(small) => self.alu_imm(Alu::Mov, dst, small),
            Err(_) => self.ld_imm64(dst, Reg::R0, imm),
        }
    }

    fn ld_imm64(&mut self, dst: Reg, src: Reg, imm: i64) {
        self.push(class::LD | mode::IMM | Size::Dw as u8, dst, src, 0, imm as i32);
        self.push(0, Reg::R0, Reg::R0, 0, (imm >> 32) as i32);
    }

    /// `dst = map`, by index into the image's maps.
    pub fn ld_map(&mut self, dst: Reg, map: BpfMapId) {
        self.map_refs.push((self.here(), map));
        self.ld_imm64(dst, Reg(insn::PSEUDO_MAP_FD), 0);
    }

    /// `dst = *(size *)(base + off)`, zero-extended.
    pub fn ldx(&mut self, size: Size, dst: Reg, base: Reg, off: i16) {
        self.push(class::LDX | mode::MEM | size as u8, dst, base, off, 0);
    }

    /// `*(size *)(base + off) = src`.
    pub fn stx(&mut self, size: Size, base: Reg, off: i16, src: Reg) {
        self.push(class::STX | mode::MEM | size as u8, base, src, off, 0);
    }

    /// `*(size *)(base + off) = imm`.
    pub fn st_imm(&mut self, size: Size, base: Reg, off: i16, imm: i32) {
        self.push(class::ST | mode::MEM | size as u8, base, Reg::R0, off, imm);
    }

    /// Atomic operation on `*(size *)(base + off)`; see [`insn::atomic`]. The old value is returned
    /// in `src` with `FETCH` and `XCHG`, in R0 with `CMPXCHG`.
    pub fn atomic(&mut self, op: i32, size: Size, base: Reg, off: i16, src: Reg) {
        self.push(class::STX | mode::ATOMIC | size as u8, base, src, off, op);
    }

    /// `goto label`.
    pub fn jump(&mut self, label: Label) {
        self.jumps.push((self.here(), label));
        self.push(class::JMP | insn::JA, Reg::R0, Reg::R0, 0, 0);
    }

    /// `if dst cond src goto label`, 64 bits.
    pub fn jump_if(&mut self, cond: Cond, dst: Reg, src: Reg, label: Label) {
        self.jumps.push((self.here(), label));
        self.push(class::JMP | insn::SRC_REG | cond as u8, dst, src, 0, 0);
    }

    /// `if dst cond imm goto label`, 64 bits; the immediate is sign-extended.
    pub fn jump_if_imm(&mut self, cond: Cond, dst: Reg, imm: i32, label: Label) {
        self.jumps.push((self.here(), label));
        self.push(class::JMP | cond as u8, dst, Reg::R0, 0, imm);
    }

    /// Sets R0 to the address of the only element of an array, or jumps if there is none. Writes the array's key at `key` on
    /// the stack, and clobbers R1 to R5.
    pub fn find_only(&mut self, array: BpfMapId, key: i16, none: Label) {
        self.st_imm(Size::W, Reg::FP, key, 0);
        self.find(array, key);
        self.jump_if_imm(Cond::Eq, Reg::R0, 0, none);
    }

    /// Loads the only word of an array into R0, or jumps if there is none; as [`Assembler::find_only`].
    pub fn load_only(&mut self, array: BpfMapId, key: i16, none: Label) {
        self.find_only(array, key, none);
        self.ldx(Size::Dw, Reg::R0, Reg::R0, 0);
    }

    /// Sets R0 to the address of the element whose key is on the stack at `key`, or 0. Clobbers R1 to R5.
    pub fn find(&mut self, map: BpfMapId, key: i16) {
        self.ld_map(Reg::R1, map);
        self.stack_address(Reg::R2, key);
        self.call(helper::MAP_LOOKUP_ELEM);
    }

    /// `dst = frame pointer + at`.
    pub fn stack_address(&mut self, dst: Reg, at: i16) {
        self.mov(dst, Reg::FP);
        self.alu_imm(Alu::Add, dst, at.into());
    }

    /// `r0 = helper(r1, …, r5)`; clobbers R1 to R5.
    pub fn call(&mut self, helper: i32) {
        self.push(class::JMP | insn::CALL, Reg::R0, Reg::R0, 0, helper);
    }

    /// Returns R0.
    pub fn exit(&mut self) {
        self.push(class::JMP | insn::EXIT, Reg::R0, Reg::R0, 0, 0);
    }

    /// Resolves the jumps.
    pub fn finish(mut self) -> Result<Assembled, AsmError> {
        for (from, label) in &self.jumps {
            let to = self.labels[label.0 as usize].ok_or(AsmError::UnplacedLabel)?;
            let distance = to as i64 - *from as i64 - 1;
            self.insns[*from].off = i16::try_from(distance).map_err(|_| AsmError::JumpTooFar { from: *from })?;
        }
        Ok(Assembled { insns: self.insns, map_refs: self.map_refs, lines: self.lines })
    }
}
