//! The filter of probes that run in other processes too.

use crate::insn::{Cond, Size};
use crate::{Assembler, Label, Reg, helper};

/// Goes on where the event belongs to a target, and jumps to `out` where it does not.
///
/// An event belongs to the thread that runs, and to the threads whose ids its record holds at these
/// offsets from `record`. `map` has targets by their thread id in the initial pid namespace
/// (`u32`). R1 to R5 are lost; R0 is not null where it goes on. `key` is a free stack slot of 4 bytes.
pub fn leave_out_others(asm: &mut Assembler, map: usize, key: i16, record: Reg, threads: &[i16], out: Label) {
    let found = asm.label();
    asm.call(helper::GET_CURRENT_PID_TGID);
    look_up(asm, map, key);
    for offset in threads {
        asm.jump_if_imm(Cond::Ne, Reg::R0, 0, found);
        asm.ldx(Size::W, Reg::R0, record, *offset);
        look_up(asm, map, key);
    }
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.place(found);
}

/// R0 = the element of the thread whose id is in the low half of R0, or null.
fn look_up(asm: &mut Assembler, map: usize, key: i16) {
    asm.stx(Size::W, Reg::FP, key, Reg::R0);
    asm.ld_map(Reg::R1, map);
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(crate::insn::Alu::Add, Reg::R2, key.into());
    asm.call(helper::MAP_LOOKUP_ELEM);
}
