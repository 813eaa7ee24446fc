//! Arguments of USDT probes: where a program finds them, which is known only where the probe is attached.
//!
//! Each place of a probe says itself where its arguments are. Attaching fills a map with such rules, and the attach cookie's
//! upper half is the number of the place's rule. One program so serves places that a compiler made differently.
//!
//! ```text
//! rule     12 x argument
//! argument displacement (8 bytes), then bytes as in `at`
//! value    displacement + base register + (index register << scale), or what is in memory there, of some bytes and a sign
//! ```

use crate::id::BpfMapId;
use crate::insn::{Alu, Cond, Size};
use crate::probe::pt_regs;
use crate::{Assembler, Home, Label, MapKind, MapSpec, Reg, helper};

/// Arguments that a probe can have. Source: `STAP_PROBEV` in SystemTap's `sys/sdt.h`.
pub const MOST_ARGUMENTS: usize = 12;
/// Number of different rules that a run can have.
pub const MOST_RULES: u32 = 1024;
/// Size of an argument in a rule.
const ARGUMENT_BYTES: usize = 16;
/// Size of a rule.
pub const RULE_BYTES: usize = MOST_ARGUMENTS * ARGUMENT_BYTES;
/// Bytes of the program's stack that [`ArgumentReader::argument`] overwrites.
pub const SCRATCH_BYTES: i16 = 32;
/// The cookie's upper half is the number of a rule.
const RULE_SHIFT: i32 = 32;

/// Offsets in an argument of a rule.
mod at {
    pub(super) const DISPLACEMENT: i16 = 0;
    pub(super) const KIND: i16 = 8;
    /// Each a register's number in `pt_regs` plus one; 0 for none.
    pub(super) const REGISTERS: [i16; 2] = [9, 10];
    pub(super) const SCALE: i16 = 11;
    /// Bytes that are read from memory.
    pub(super) const BYTES: i16 = 12;
    /// Bits to drop at the right, and then at the left, to have the value in the upper bits.
    pub(super) const DROPPED: i16 = 13;
    pub(super) const UNUSED: i16 = 14;
    pub(super) const SIGNED: i16 = 15;
}

/// What a rule says of an argument.
mod kind {
    pub(super) const ABSENT: u8 = 0;
    pub(super) const VALUE: u8 = 1;
    pub(super) const MEMORY: u8 = 2;
}

/// A register in `pt_regs`, by its byte offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Register(pub i16);

/// Where an argument is at a place, and what it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Argument {
    pub from: Operand,
    /// 1, 2, 4 or 8.
    pub bytes: u8,
    pub signed: bool,
}

/// Where an argument is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    Constant(i64),
    Register {
        register: Register,
        /// Whether it is the second byte, such as `%ah`.
        is_high: bool,
    },
    Memory {
        displacement: i64,
        base: Option<Register>,
        /// A register, and the power of two that it is multiplied with.
        index: Option<(Register, u8)>,
    },
}

/// A place's arguments, in order; those that it lacks are `None`.
pub type Rule = [Option<Argument>; MOST_ARGUMENTS];

/// Describes the map of rules, by their number.
pub fn map(name: &str) -> MapSpec {
    MapSpec {
        name: name.into(),
        kind: MapKind::Array,
        key_size: 4,
        value_size: RULE_BYTES as u32,
        max_entries: MOST_RULES,
        flags: 0,
        home: Home::Linux,
        inner: None,
    }
}

/// Returns a cookie: a name's id, and the number of a rule.
pub fn cookie(name: u32, rule: u32) -> u64 {
    u64::from(name) | u64::from(rule) << RULE_SHIFT
}

/// Returns a rule as it is in the map.
pub fn encode(rule: &Rule) -> [u8; RULE_BYTES] {
    let mut bytes = [0; RULE_BYTES];
    for (argument, to) in rule.iter().zip(bytes.chunks_exact_mut(ARGUMENT_BYTES)) {
        if let Some(argument) = argument {
            argument.encode(to);
        }
    }
    bytes
}

impl Argument {
    fn encode(&self, to: &mut [u8]) {
        let mut put = |at: i16, byte: u8| to[at as usize] = byte;
        let number = |it: Register| (it.0 / 8) as u8 + 1;
        put(at::KIND, kind::VALUE);
        put(at::BYTES, self.bytes);
        put(at::UNUSED, 64 - 8 * self.bytes.min(8));
        put(at::SIGNED, self.signed.into());
        let displacement = match self.from {
            Operand::Constant(value) => value,
            Operand::Register { register, is_high } => {
                put(at::REGISTERS[0], number(register));
                put(at::DROPPED, if is_high { 8 } else { 0 });
                0
            }
            Operand::Memory { displacement, base, index } => {
                put(at::KIND, kind::MEMORY);
                put(at::REGISTERS[0], base.map_or(0, number));
                put(at::REGISTERS[1], index.map_or(0, |it| number(it.0)));
                put(at::SCALE, index.map_or(0, |it| it.1));
                displacement
            }
        };
        to[at::DISPLACEMENT as usize..at::KIND as usize].copy_from_slice(&displacement.to_le_bytes());
    }
}

/// Emits readers of arguments into a program.
pub struct ArgumentReader<'a> {
    pub asm: &'a mut Assembler,
    /// The map of rules.
    pub rules: BpfMapId,
    /// Holds the program's context. Not one of R0 to R5.
    pub context: Reg,
    /// Offset of [`SCRATCH_BYTES`] bytes from the frame pointer.
    pub scratch: i16,
}

/// Slots in the scratch bytes.
mod slot {
    /// What was read last; before that, the key of the rule.
    pub(super) const READ: i16 = 0;
    /// The sum so far.
    pub(super) const SUM: i16 = 8;
    /// A copy of the argument's second half.
    pub(super) const HALF: i16 = 16;
}

impl ArgumentReader<'_> {
    /// Sets R0 to an argument. Jumps to `absent` if the place has none, and to `unreadable` if its memory cannot be read.
    /// Clobbers R1 to R5.
    ///
    /// A program may read its context only at constant offsets, so registers are read as Linux's memory.
    pub fn argument(&mut self, n: usize, absent: Label, unreadable: Label) {
        self.copy(n, absent);
        self.load_half(Reg::R1, at::KIND);
        self.asm.jump_if_imm(Cond::Eq, Reg::R1, kind::ABSENT.into(), absent);
        for register in at::REGISTERS {
            self.add(register, unreadable);
        }
        let (is_value, done) = (self.asm.label(), self.asm.label());
        self.load_half(Reg::R1, at::KIND);
        self.asm.jump_if_imm(Cond::Ne, Reg::R1, kind::MEMORY.into(), is_value);
        self.follow(absent, unreadable);
        self.asm.jump(done);
        self.asm.place(is_value);
        self.load(Reg::R0, slot::SUM);
        self.asm.place(done);
        self.cut();
    }

    /// Copies the argument of the place's rule to the scratch bytes.
    fn copy(&mut self, n: usize, absent: Label) {
        let start = (n * ARGUMENT_BYTES) as i16;
        self.asm.mov(Reg::R1, self.context);
        self.asm.call(helper::GET_ATTACH_COOKIE);
        self.asm.alu_imm(Alu::Rsh, Reg::R0, RULE_SHIFT);
        self.asm.stx(Size::W, Reg::FP, self.scratch + slot::READ, Reg::R0);
        self.asm.find(self.rules, self.scratch + slot::READ);
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, absent);
        for (from, to) in [(at::DISPLACEMENT, slot::SUM), (at::KIND, slot::HALF)] {
            self.asm.ldx(Size::Dw, Reg::R1, Reg::R0, start + from);
            self.store(to, Reg::R1);
        }
    }

    /// Adds a register, if there is one, to the sum.
    fn add(&mut self, register: i16, unreadable: Label) {
        let none = self.asm.label();
        self.load_half(Reg::R1, register);
        self.asm.jump_if_imm(Cond::Eq, Reg::R1, 0, none);
        self.asm.alu_imm(Alu::Add, Reg::R1, -1);
        self.asm.alu_imm(Alu::Lsh, Reg::R1, 3);
        self.asm.jump_if_imm(Cond::Gt, Reg::R1, pt_regs::SIZE as i32 - 8, unreadable);
        self.asm.mov(Reg::R3, self.context);
        self.asm.alu(Alu::Add, Reg::R3, Reg::R1);
        self.address(Reg::R1, slot::READ);
        self.asm.mov_imm(Reg::R2, 8);
        self.asm.call(helper::PROBE_READ_KERNEL);
        self.asm.jump_if_imm(Cond::Ne, Reg::R0, 0, unreadable);
        self.load(Reg::R1, slot::READ);
        if register == at::REGISTERS[1] {
            self.load_half(Reg::R2, at::SCALE);
            self.asm.alu(Alu::Lsh, Reg::R1, Reg::R2);
        }
        self.load(Reg::R2, slot::SUM);
        self.asm.alu(Alu::Add, Reg::R2, Reg::R1);
        self.store(slot::SUM, Reg::R2);
        self.asm.place(none);
    }

    /// Sets R0 to what is in the program's memory at the sum.
    fn follow(&mut self, absent: Label, unreadable: Label) {
        self.asm.st_imm(Size::Dw, Reg::FP, self.scratch + slot::READ, 0);
        self.address(Reg::R1, slot::READ);
        self.load_half(Reg::R2, at::BYTES);
        self.asm.jump_if_imm(Cond::Gt, Reg::R2, 8, absent);
        self.load(Reg::R3, slot::SUM);
        self.asm.call(helper::PROBE_READ_USER);
        self.asm.jump_if_imm(Cond::Ne, Reg::R0, 0, unreadable);
        self.load(Reg::R0, slot::READ);
    }

    /// Keeps the argument's own bits of R0, and extends them by its sign.
    fn cut(&mut self) {
        let (is_signed, done) = (self.asm.label(), self.asm.label());
        self.load_half(Reg::R1, at::DROPPED);
        self.asm.alu(Alu::Rsh, Reg::R0, Reg::R1);
        self.load_half(Reg::R1, at::UNUSED);
        self.asm.alu(Alu::Lsh, Reg::R0, Reg::R1);
        self.load_half(Reg::R2, at::SIGNED);
        self.asm.jump_if_imm(Cond::Ne, Reg::R2, 0, is_signed);
        self.asm.alu(Alu::Rsh, Reg::R0, Reg::R1);
        self.asm.jump(done);
        self.asm.place(is_signed);
        self.asm.alu(Alu::Arsh, Reg::R0, Reg::R1);
        self.asm.place(done);
    }

    /// Loads a byte of the copied argument's second half.
    fn load_half(&mut self, to: Reg, at: i16) {
        self.asm.ldx(Size::B, to, Reg::FP, self.scratch + slot::HALF + at - at::KIND);
    }

    fn load(&mut self, to: Reg, slot: i16) {
        self.asm.ldx(Size::Dw, to, Reg::FP, self.scratch + slot);
    }

    fn store(&mut self, slot: i16, from: Reg) {
        self.asm.stx(Size::Dw, Reg::FP, self.scratch + slot, from);
    }

    fn address(&mut self, to: Reg, slot: i16) {
        self.asm.stack_address(to, self.scratch + slot);
    }
}
