//! What a program reads of its context, so that nobody need fill the rest.

use std::ops::Range;

use super::decode::size_of;
use crate::helper;
use crate::image::Program;
use crate::insn::{self, Alu, Insn, Reg, class};

/// Helpers that read the context at most through their arguments.
const PLAIN: [i32; 7] = [
    helper::MAP_LOOKUP_ELEM,
    helper::MAP_UPDATE_ELEM,
    helper::MAP_DELETE_ELEM,
    helper::MAP_MODIFY,
    helper::KTIME_GET_NS,
    helper::NAME_TEXT,
    helper::NAME_MATCHES,
];

/// Returns the bytes of its context that a program may read, beside the time that [`helper::KTIME_GET_NS`] returns; `None`
/// if it may read any: it computes with the context's address, stores it or passes it on, or calls a helper that may look
/// at the context itself.
pub fn context_reads(program: &Program) -> Option<Vec<Range<usize>>> {
    let mut reads = Reads { holders: vec![None; program.insns.len()], bytes: Vec::new() };
    *reads.holders.first_mut()? = Some(Registers::default().with(Reg::R1.0));
    for (at, it) in program.insns.iter().enumerate() {
        if let Some(holders) = reads.holders[at] {
            reads.follow(at, it, holders)?;
        }
    }
    Some(reads.bytes)
}

/// A set of registers.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Registers(u16);

impl Registers {
    fn has(self, reg: u8) -> bool {
        self.0 >> (reg & 15) & 1 != 0
    }

    fn with(self, reg: u8) -> Self {
        Registers(self.0 | 1 << (reg & 15))
    }

    fn without(self, reg: u8) -> Self {
        Registers(self.0 & !(1 << (reg & 15)))
    }

    fn and(self, other: Self) -> Self {
        Registers(self.0 | other.0)
    }
}

struct Reads {
    /// Which registers may hold the context's address before each instruction; `None` where none leads so far.
    holders: Vec<Option<Registers>>,
    bytes: Vec<Range<usize>>,
}

impl Reads {
    /// Notes that one instruction may lead to another. `None` if that one was followed already, with less.
    fn reach(&mut self, from: usize, to: usize, holders: Registers) -> Option<()> {
        let known = self.holders.get_mut(to)?;
        let all = known.unwrap_or_default().and(holders);
        if to <= from && *known != Some(all) {
            return None;
        }
        *known = Some(all);
        Some(())
    }

    fn follow(&mut self, at: usize, it: &Insn, holders: Registers) -> Option<()> {
        let reads_source = it.code & insn::SRC_REG != 0 && holders.has(it.src);
        let next = match it.code & 7 {
            class::LD => return self.reach(at, at + 2, holders.without(it.dst)),
            class::LDX => {
                self.load(it, holders)?;
                holders.without(it.dst)
            }
            class::ALU64 if it.code & 0xf0 == Alu::Mov as u8 && it.off == 0 => match reads_source {
                true => holders.with(it.dst),
                false => holders.without(it.dst),
            },
            class::ALU | class::ALU64 if it.code & 0xf0 == Alu::Mov as u8 && !reads_source => holders.without(it.dst),
            class::ALU | class::ALU64 => (!reads_source && !holders.has(it.dst)).then_some(holders)?,
            class::ST => (!holders.has(it.dst)).then_some(holders)?,
            class::STX => (!holders.has(it.dst) && !holders.has(it.src)).then_some(holders)?,
            _ => return self.jump(at, it, holders),
        };
        self.reach(at, at + 1, next)
    }

    fn load(&mut self, it: &Insn, holders: Registers) -> Option<()> {
        if holders.has(it.src) {
            let start = usize::try_from(it.off).ok()?;
            self.bytes.push(start..start + size_of(it.code));
        }
        Some(())
    }

    fn jump(&mut self, at: usize, it: &Insn, holders: Registers) -> Option<()> {
        let is_wide = it.code & 7 == class::JMP;
        let far = |distance: i64| usize::try_from(at as i64 + 1 + distance).ok();
        match it.code & 0xf0 {
            insn::EXIT => Some(()),
            insn::CALL => {
                let is_plain = is_wide && it.src == 0 && PLAIN.contains(&it.imm);
                let has_arguments = it.imm != helper::KTIME_GET_NS;
                let passes = has_arguments && (Reg::R1.0..=Reg::R5.0).any(|it| holders.has(it));
                (is_plain && !passes).then(|| self.reach(at, at + 1, holders.without(Reg::R0.0)))?
            }
            insn::JA if is_wide => self.reach(at, far(it.off.into())?, holders),
            insn::JA => self.reach(at, far(it.imm.into())?, holders),
            _ => {
                self.reach(at, far(it.off.into())?, holders)?;
                self.reach(at, at + 1, holders)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asm::Assembler;
    use crate::image::ProgramKind;
    use crate::insn::{Cond, Size, atomic};

    fn reads(emit: impl FnOnce(&mut Assembler)) -> Option<Vec<Range<usize>>> {
        let mut asm = Assembler::new();
        emit(&mut asm);
        asm.mov_imm(Reg::R0, 0);
        asm.exit();
        let it = asm.finish().unwrap();
        let (name, kind) = (String::new(), ProgramKind::Syscall);
        context_reads(&Program { name, kind, insns: it.insns, map_refs: it.map_refs, lines: it.lines })
    }

    #[test]
    fn the_context_is_followed_through_copies_and_branches() {
        let found = reads(|asm| {
            let (other, end) = (asm.label(), asm.label());
            asm.mov(Reg::R6, Reg::R1);
            asm.call(helper::KTIME_GET_NS);
            asm.jump_if_imm(Cond::Eq, Reg::R0, 0, other);
            asm.ldx(Size::W, Reg::R1, Reg::R6, 12);
            asm.jump(end);
            asm.place(other);
            asm.ldx(Size::Dw, Reg::R7, Reg::R1, 64);
            asm.mov(Reg::R1, Reg::FP);
            asm.place(end);
            asm.ldx(Size::Dw, Reg::R1, Reg::FP, -8);
            asm.mov(Reg::R2, Reg::FP);
            asm.alu_imm(Alu::Add, Reg::R2, -8);
            asm.call(helper::MAP_LOOKUP_ELEM);
        });
        assert_eq!(found, Some(vec![12..16, 64..72]));
    }

    #[test]
    fn a_program_may_read_all_where_the_address_goes_elsewhere() {
        let unknown: [fn(&mut Assembler); 6] = [
            |asm| asm.alu_imm(Alu::Add, Reg::R1, 8),
            |asm| asm.stx(Size::Dw, Reg::FP, -8, Reg::R1),
            |asm| asm.atomic(atomic::ADD, Size::Dw, Reg::FP, -8, Reg::R1),
            |asm| asm.call(helper::MAP_LOOKUP_ELEM),
            |asm| {
                asm.mov_imm(Reg::R1, 0);
                asm.call(helper::RINGBUF_OUTPUT);
            },
            |asm| asm.ldx(Size::Dw, Reg::R2, Reg::R1, -8),
        ];
        for emit in unknown {
            assert_eq!(reads(emit), None);
        }
    }

    #[test]
    fn a_loop_that_brings_the_address_back_is_not_followed() {
        let found = reads(|asm| {
            let again = asm.label();
            asm.mov(Reg::R6, Reg::R1);
            asm.mov_imm(Reg::R1, 0);
            asm.place(again);
            asm.ldx(Size::Dw, Reg::R2, Reg::R1, 0);
            asm.mov(Reg::R1, Reg::R6);
            asm.jump_if_imm(Cond::Ne, Reg::R2, 0, again);
        });
        assert_eq!(found, None);
    }
}
