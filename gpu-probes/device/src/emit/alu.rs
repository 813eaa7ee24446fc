//! Arithmetic and comparisons.

use super::{Emitter, put};
use crate::Refusal;
use crate::analyse::State;
use crate::flat::{Alu, Operand};
use xputrace_bytecode::insn::Cond;

impl Emitter<'_> {
    pub(super) fn arithmetic(
        &mut self,
        op: Alu,
        wide: bool,
        dst: u8,
        rhs: Operand,
        state: &State,
    ) -> Result<(), Refusal> {
        let lhs = if op == Alu::Mov { String::new() } else { self.read(dst, state)? };
        let known = state.operand(self.node.frame, rhs).scalar().known;
        let rhs = self.operand(rhs, state)?;
        let dst = self.reg(dst);
        match wide {
            true => self.compute(op, 64, &dst, &lhs, &rhs, known),
            false => {
                let (a, b) = (self.narrow(&lhs), self.narrow(&rhs));
                let result = self.word();
                self.compute(op, 32, &result, &a, &b, known.map(|it| u64::from(it as u32)));
                put!(self, "cvt.u64.u32 {dst}, {result}");
            }
        }
        Ok(())
    }

    /// Returns a 32-bit register with the lower half of an operand.
    fn narrow(&mut self, operand: &str) -> String {
        if operand.is_empty() {
            return String::new();
        }
        let narrow = self.word();
        match operand.parse::<i64>() {
            Ok(imm) => put!(self, "mov.b32 {narrow}, {}", imm as i32),
            Err(_) => put!(self, "cvt.u32.u64 {narrow}, {operand}"),
        }
        narrow
    }

    /// Computes with registers of `bits` bits; `known` is the second operand's value.
    fn compute(&mut self, op: Alu, bits: u32, dst: &str, a: &str, b: &str, known: Option<u64>) {
        match op {
            Alu::Mov => put!(self, "mov.b{bits} {dst}, {b}"),
            Alu::Add => put!(self, "add.s{bits} {dst}, {a}, {b}"),
            Alu::Sub => put!(self, "sub.s{bits} {dst}, {a}, {b}"),
            Alu::Mul => put!(self, "mul.lo.s{bits} {dst}, {a}, {b}"),
            Alu::Or => put!(self, "or.b{bits} {dst}, {a}, {b}"),
            Alu::And => put!(self, "and.b{bits} {dst}, {a}, {b}"),
            Alu::Xor => put!(self, "xor.b{bits} {dst}, {a}, {b}"),
            Alu::Lsh | Alu::Rsh | Alu::Arsh => self.shift(op, bits, dst, a, b, known),
            Alu::Div | Alu::Mod => self.divide(op == Alu::Mod, bits, dst, a, b, known),
            Alu::SDiv | Alu::SMod => self.divide_signed(op == Alu::SMod, bits, dst, a, b),
        }
    }

    /// Shifts by the low bits of the second operand; PTX's own shifts clamp it ("shl", section 9.7.8.7).
    fn shift(&mut self, op: Alu, bits: u32, dst: &str, a: &str, b: &str, known: Option<u64>) {
        let name = match op {
            Alu::Lsh => format!("shl.b{bits}"),
            Alu::Rsh => format!("shr.u{bits}"),
            _ => format!("shr.s{bits}"),
        };
        let mask = u64::from(bits - 1);
        if let Some(known) = known {
            return put!(self, "{name} {dst}, {a}, {}", known & mask);
        }
        let amount = self.word();
        match bits {
            64 => put!(self, "cvt.u32.u64 {amount}, {b}"),
            _ => put!(self, "mov.b32 {amount}, {b}"),
        }
        put!(self, "and.b32 {amount}, {amount}, {mask}");
        put!(self, "{name} {dst}, {a}, {amount}");
    }

    /// Divides: by 0 the quotient is 0, and the remainder the dividend (RFC 9669, section 4.1).
    fn divide(&mut self, remainder: bool, bits: u32, dst: &str, a: &str, b: &str, known: Option<u64>) {
        let name = if remainder { "rem" } else { "div" };
        match known {
            Some(0) if remainder => put!(self, "mov.b{bits} {dst}, {a}"),
            Some(0) => put!(self, "mov.b{bits} {dst}, 0"),
            Some(_) => put!(self, "{name}.u{bits} {dst}, {a}, {b}"),
            None => {
                let (zero, divisor, result) = (self.predicate(), self.register(bits == 64), self.register(bits == 64));
                put!(self, "setp.eq.u{bits} {zero}, {b}, 0");
                put!(self, "selp.b{bits} {divisor}, 1, {b}, {zero}");
                put!(self, "{name}.u{bits} {result}, {a}, {divisor}");
                let otherwise = if remainder { a } else { "0" };
                put!(self, "selp.b{bits} {dst}, {otherwise}, {result}, {zero}");
            }
        }
    }

    /// Divides signed numbers; the quotient of the smallest one by -1 is itself. Where PTX leaves a division
    /// undefined, it divides by 1 instead.
    fn divide_signed(&mut self, remainder: bool, bits: u32, dst: &str, a: &str, b: &str) {
        let (zero, minus_one, special) = (self.predicate(), self.predicate(), self.predicate());
        let (divisor, result) = (self.register(bits == 64), self.register(bits == 64));
        put!(self, "setp.eq.s{bits} {zero}, {b}, 0");
        put!(self, "setp.eq.s{bits} {minus_one}, {b}, -1");
        put!(self, "or.pred {special}, {zero}, {minus_one}");
        put!(self, "selp.b{bits} {divisor}, 1, {b}, {special}");
        if remainder {
            put!(self, "rem.s{bits} {result}, {a}, {divisor}");
            return put!(self, "selp.b{bits} {dst}, {a}, {result}, {zero}");
        }
        let negated = self.register(bits == 64);
        put!(self, "div.s{bits} {result}, {a}, {divisor}");
        put!(self, "neg.s{bits} {negated}, {a}");
        put!(self, "selp.b{bits} {result}, {negated}, {result}, {minus_one}");
        put!(self, "selp.b{bits} {dst}, 0, {result}, {zero}");
    }

    pub(super) fn negate(&mut self, wide: bool, dst: u8, state: &State) -> Result<(), Refusal> {
        let dst = self.read(dst, state)?;
        if wide {
            put!(self, "neg.s64 {dst}, {dst}");
        } else {
            let narrow = self.narrow(&dst);
            put!(self, "neg.s32 {narrow}, {narrow}");
            put!(self, "cvt.u64.u32 {dst}, {narrow}");
        }
        Ok(())
    }

    pub(super) fn extend(&mut self, bits: u8, wide: bool, dst: u8, src: u8, state: &State) -> Result<(), Refusal> {
        let src = self.read(src, state)?;
        let dst = self.reg(dst);
        put!(self, "cvt.s64.s{bits} {dst}, {src}");
        if !wide {
            put!(self, "and.b64 {dst}, {dst}, 0xffffffff");
        }
        Ok(())
    }

    pub(super) fn keep_low(&mut self, bits: u8, dst: u8, state: &State) -> Result<(), Refusal> {
        let dst = self.read(dst, state)?;
        if bits < 64 {
            put!(self, "and.b64 {dst}, {dst}, {:#x}", (1u64 << bits) - 1);
        }
        Ok(())
    }

    pub(super) fn swap(&mut self, bits: u8, dst: u8, state: &State) -> Result<(), Refusal> {
        let dst = self.read(dst, state)?;
        let (low, high) = (self.word(), self.word());
        put!(self, "mov.b64 {{{low}, {high}}}, {dst}");
        // Each digit of prmt's mask takes a byte: 0 to 3 of its first operand, 4 to 7 of its second.
        match bits {
            16 => {
                put!(self, "prmt.b32 {low}, {low}, 0, 0x4401");
                put!(self, "cvt.u64.u32 {dst}, {low}");
            }
            32 => {
                put!(self, "prmt.b32 {low}, {low}, 0, 0x0123");
                put!(self, "cvt.u64.u32 {dst}, {low}");
            }
            _ => {
                put!(self, "prmt.b32 {low}, {low}, 0, 0x0123");
                put!(self, "prmt.b32 {high}, {high}, 0, 0x0123");
                put!(self, "mov.b64 {dst}, {{{high}, {low}}}");
            }
        }
        Ok(())
    }

    /// Returns a predicate that says whether the condition holds.
    pub(super) fn compare(
        &mut self,
        cond: Cond,
        wide: bool,
        lhs: u8,
        rhs: Operand,
        state: &State,
    ) -> Result<String, Refusal> {
        let (mut a, mut b) = (self.read(lhs, state)?, self.operand(rhs, state)?);
        let bits = if wide { 64 } else { 32 };
        if !wide {
            (a, b) = (self.narrow(&a), self.narrow(&b));
        }
        let holds = self.predicate();
        let test = match cond {
            Cond::Set => {
                let common = self.register(bits == 64);
                put!(self, "and.b{bits} {common}, {a}, {b}");
                put!(self, "setp.ne.u{bits} {holds}, {common}, 0");
                return Ok(holds);
            }
            Cond::Eq => "eq.u",
            Cond::Ne => "ne.u",
            Cond::Gt => "gt.u",
            Cond::Ge => "ge.u",
            Cond::Lt => "lt.u",
            Cond::Le => "le.u",
            Cond::Sgt => "gt.s",
            Cond::Sge => "ge.s",
            Cond::Slt => "lt.s",
            Cond::Sle => "le.s",
        };
        put!(self, "setp.{test}{bits} {holds}, {a}, {b}");
        Ok(holds)
    }
}
