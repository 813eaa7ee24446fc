//! eBPF instructions and the numbers that encode them.
//!
//! Source: RFC 9669, "BPF Instruction Set Architecture", and `include/uapi/linux/bpf.h`.

/// A register, R0 to R10. R10 is the read-only frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(pub u8);

impl Reg {
    pub const R0: Reg = Reg(0);
    pub const R1: Reg = Reg(1);
    pub const R2: Reg = Reg(2);
    pub const R3: Reg = Reg(3);
    pub const R4: Reg = Reg(4);
    pub const R5: Reg = Reg(5);
    pub const R6: Reg = Reg(6);
    pub const R7: Reg = Reg(7);
    pub const R8: Reg = Reg(8);
    pub const R9: Reg = Reg(9);
    /// Frame pointer; the program's 512 bytes of stack are below it.
    pub const FP: Reg = Reg(10);
}

/// An instruction slot: 8 bytes in the object. `ld_imm64` takes two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Insn {
    pub code: u8,
    pub dst: u8,
    pub src: u8,
    pub off: i16,
    pub imm: i32,
}

impl Insn {
    /// Returns the 8 bytes of the slot, little endian.
    pub fn to_bytes(self) -> [u8; 8] {
        let [o0, o1] = self.off.to_le_bytes();
        let [i0, i1, i2, i3] = self.imm.to_le_bytes();
        [self.code, (self.src << 4) | (self.dst & 0xf), o0, o1, i0, i1, i2, i3]
    }

    /// Inverse of [`Insn::to_bytes`].
    pub fn from_bytes(b: [u8; 8]) -> Self {
        Insn {
            code: b[0],
            dst: b[1] & 0xf,
            src: b[1] >> 4,
            off: i16::from_le_bytes([b[2], b[3]]),
            imm: i32::from_le_bytes([b[4], b[5], b[6], b[7]]),
        }
    }
}

/// Instruction classes, low three bits of `code`.
pub mod class {
    pub const LD: u8 = 0;
    pub const LDX: u8 = 1;
    pub const ST: u8 = 2;
    pub const STX: u8 = 3;
    pub const ALU: u8 = 4;
    pub const JMP: u8 = 5;
    pub const JMP32: u8 = 6;
    pub const ALU64: u8 = 7;
}

/// Whether the operand is a register, bit 3 of `code` of arithmetic and jumps.
pub const SRC_REG: u8 = 0x08;

/// Arithmetic operations, high four bits of `code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Alu {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    Div = 0x30,
    Or = 0x40,
    And = 0x50,
    Lsh = 0x60,
    Rsh = 0x70,
    Neg = 0x80,
    Mod = 0x90,
    Xor = 0xa0,
    Mov = 0xb0,
    /// Arithmetic (sign-keeping) shift right.
    Arsh = 0xc0,
}

/// Jump conditions, high four bits of `code`; `S` marks signed comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Cond {
    Eq = 0x10,
    Gt = 0x20,
    Ge = 0x30,
    Set = 0x40,
    Ne = 0x50,
    Sgt = 0x60,
    Sge = 0x70,
    Lt = 0xa0,
    Le = 0xb0,
    Slt = 0xc0,
    Sle = 0xd0,
}

impl Cond {
    const ALL: [Cond; 11] = {
        use Cond::*;
        [Eq, Gt, Ge, Set, Ne, Sgt, Sge, Lt, Le, Slt, Sle]
    };

    /// Returns the condition in the high four bits of `code`, if it is one.
    pub fn of(code: u8) -> Option<Cond> {
        Cond::ALL.into_iter().find(|it| *it as u8 == code & 0xf0)
    }
}

pub const JA: u8 = 0x00;
pub const CALL: u8 = 0x80;
pub const EXIT: u8 = 0x90;

/// Memory access sizes, bits 3 and 4 of `code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Size {
    /// 4 bytes.
    W = 0x00,
    /// 2 bytes.
    H = 0x08,
    /// 1 byte.
    B = 0x10,
    /// 8 bytes.
    Dw = 0x18,
}

impl Size {
    /// Returns the size in the code of a memory access.
    pub fn of(code: u8) -> Size {
        match code & 0x18 {
            0x00 => Size::W,
            0x08 => Size::H,
            0x10 => Size::B,
            _ => Size::Dw,
        }
    }

    /// Returns the number of bytes.
    pub fn bytes(self) -> usize {
        match self {
            Size::B => 1,
            Size::H => 2,
            Size::W => 4,
            Size::Dw => 8,
        }
    }
}

/// Memory access modes, high three bits of `code`.
pub mod mode {
    pub const IMM: u8 = 0x00;
    pub const MEM: u8 = 0x60;
    /// Sign-extending load.
    pub const MEMSX: u8 = 0x80;
    pub const ATOMIC: u8 = 0xc0;
}

/// Atomic operations, in `imm`; add [`FETCH`] to return the old value.
pub mod atomic {
    pub const ADD: i32 = 0x00;
    pub const OR: i32 = 0x40;
    pub const AND: i32 = 0x50;
    pub const XOR: i32 = 0xa0;
    pub const FETCH: i32 = 0x01;
    pub const XCHG: i32 = 0xe1;
    pub const CMPXCHG: i32 = 0xf1;
}

/// `src` of `ld_imm64` if its immediate is a map (patched by the loader).
pub const PSEUDO_MAP_FD: u8 = 1;
/// `src` of `ld_imm64` if its immediate is an address in a map's value; the second half is the offset in it.
pub const PSEUDO_MAP_VALUE: u8 = 2;
/// `src` of a call of a function of the program itself; the immediate is the distance to it.
pub const PSEUDO_CALL: u8 = 1;
/// Bytes of a function's stack (`MAX_BPF_STACK` in Linux's `include/linux/filter.h`).
pub const STACK_BYTES: usize = 512;
/// Functions that may be inside each other, the entry included (`MAX_CALL_FRAMES` in Linux's
/// `include/linux/bpf_verifier.h`).
pub const MAX_FRAMES: usize = 8;
