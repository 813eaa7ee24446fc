//! The callers of probed functions.
//!
//! At its first instruction a function has no frame yet, so Linux's walk by frame pointers goes from the function to its
//! caller's caller. The caller is where the return address on top of the stack leads. A stack's id names both:
//!
//! ```text
//! bits of an id   0 … shift     the stack in Linux's stack map
//!                 shift … 30    0, or 1 + the place of the return address in the array of callers
//! ```

use crate::id::BpfMapId;
use crate::insn::{Alu, Cond, Size, atomic};
use crate::probe::stack_word::ID_BITS;
use crate::probe::{EEXIST, pt_regs};
use crate::{Assembler, Label, MapKind, MapSpec, Reg, helper};

/// Most callers that are kept.
const MOST_CALLERS: u32 = 16_384;
/// Places that are tried for an address.
const TRIES: u32 = 4;
/// Knuth's multiplicative hash: 2³² divided by the golden ratio, as a signed number.
const HASH_FACTOR: i32 = 0x9e37_79b1_u32 as i32;
const HASH_SHIFT: i32 = 32;

/// Where the callers of stacks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Callers {
    pub map: BpfMapId,
    /// Size of the stack map.
    pub stacks: u32,
}

/// Describes the map of callers beside a stack map of this size.
pub fn map(name: &str, stacks: u32) -> MapSpec {
    MapSpec { max_entries: places(stacks), ..MapSpec::number(name, MapKind::Array) }
}

fn shift(stacks: u32) -> u32 {
    stacks.next_power_of_two().trailing_zeros()
}

/// A power of two, of which every number but the last fits beside a stack's.
fn places(stacks: u32) -> u32 {
    (1 << (ID_BITS - shift(stacks) - 1)).min(MOST_CALLERS)
}

/// Splits a stack's id into the stack in the stack map, and the place of its caller.
pub fn split(id: u32, stacks: u32) -> (u32, Option<u32>) {
    let shift = shift(stacks);
    (id & ((1 << shift) - 1), (id >> shift).checked_sub(1))
}

impl Callers {
    /// Adds the caller to the id of a stack, in R0. `context` is that of a probe at a function's first instruction. Leaves the
    /// id alone if there is no return address, and jumps to `lost` with `-EEXIST` in R0 if there is no place for it. Uses 8
    /// bytes of the program's stack each at `address`, `id` and `place`.
    pub(crate) fn add(self, asm: &mut Assembler, context: Reg, [address, id, place]: [i16; 3], lost: Label) {
        let (done, found) = (asm.label(), asm.label());
        asm.stx(Size::Dw, Reg::FP, id, Reg::R0);
        asm.stack_address(Reg::R1, address);
        asm.mov_imm(Reg::R2, 8);
        asm.ldx(Size::Dw, Reg::R3, context, pt_regs::STACK_POINTER);
        asm.call(helper::PROBE_READ_USER);
        asm.jump_if_imm(Cond::Ne, Reg::R0, 0, done);
        asm.ldx(Size::Dw, Reg::R1, Reg::FP, address);
        asm.jump_if_imm(Cond::Eq, Reg::R1, 0, done);
        asm.alu_imm(Alu::Mul, Reg::R1, HASH_FACTOR);
        asm.alu_imm(Alu::Rsh, Reg::R1, HASH_SHIFT);
        for _ in 0..TRIES {
            let next = asm.label();
            asm.alu_imm(Alu::And, Reg::R1, places(self.stacks) as i32 - 1);
            asm.stx(Size::W, Reg::FP, place, Reg::R1);
            asm.find(self.map, place);
            asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
            asm.ldx(Size::Dw, Reg::R1, Reg::FP, address);
            asm.ldx(Size::Dw, Reg::R2, Reg::R0, 0);
            asm.jump_if(Cond::Eq, Reg::R2, Reg::R1, found);
            asm.jump_if_imm(Cond::Ne, Reg::R2, 0, next);
            asm.mov(Reg::R3, Reg::R0);
            asm.mov_imm(Reg::R0, 0);
            asm.atomic(atomic::CMPXCHG, Size::Dw, Reg::R3, 0, Reg::R1);
            asm.jump_if_imm(Cond::Eq, Reg::R0, 0, found);
            asm.jump_if(Cond::Eq, Reg::R0, Reg::R1, found);
            asm.place(next);
            asm.ldx(Size::W, Reg::R1, Reg::FP, place);
            asm.alu_imm(Alu::Add, Reg::R1, 1);
        }
        asm.mov_imm(Reg::R0, (-EEXIST).into());
        asm.jump(lost);
        asm.place(found);
        asm.ldx(Size::W, Reg::R1, Reg::FP, place);
        asm.alu_imm(Alu::Add, Reg::R1, 1);
        asm.alu_imm(Alu::Lsh, Reg::R1, shift(self.stacks) as i32);
        asm.ldx(Size::Dw, Reg::R0, Reg::FP, id);
        asm.alu(Alu::Or, Reg::R0, Reg::R1);
        asm.stx(Size::Dw, Reg::FP, id, Reg::R0);
        asm.place(done);
        asm.ldx(Size::Dw, Reg::R0, Reg::FP, id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stack_and_caller_fit_in_an_id() {
        for stacks in [1024, 16_384, 20_000, 1 << 20] {
            let (stack, caller) = (stacks - 1, places(stacks) - 1);
            let id = stack | (caller + 1) << shift(stacks);
            assert!(id < 1 << ID_BITS, "{stacks}");
            assert_eq!(split(id, stacks), (stack, Some(caller)));
            assert_eq!(split(stack, stacks), (stack, None));
        }
    }
}
