//! The filter of probes that also fire in other processes.

use crate::id::BpfMapId;
use crate::insn::{Alu, Cond, Size};
use crate::{Assembler, Home, Label, MapKind, MapSpec, Reg, helper};

/// All thread ids are smaller, whatever `/proc/sys/kernel/pid_max` says: `PID_MAX_LIMIT` of 64-bit machines
/// (include/linux/threads.h).
pub const THREAD_IDS: u32 = 4 << 20;
/// Log2 of the threads of a word.
const WORD_SHIFT: i32 = u64::BITS.trailing_zeros() as i32;

/// Bytes of the stack that [`leave_out_others`] and [`find_word`] use.
pub const SCRATCH_BYTES: i16 = 8;

/// Describes the map of targets: an array of words with a bit for each thread, by its id in the initial pid namespace.
pub fn map(name: &str) -> MapSpec {
    MapSpec {
        name: name.into(),
        kind: MapKind::Array,
        key_size: 4,
        value_size: size_of::<u64>() as u32,
        max_entries: THREAD_IDS >> WORD_SHIFT,
        flags: 0,
        home: Home::Linux,
        inner: None,
    }
}

/// Returns the index of a thread's word in the map, and its bit there.
pub fn word_and_bit(thread: u32) -> (u32, u64) {
    (thread >> WORD_SHIFT, 1 << (thread % u64::BITS))
}

/// Continues if the event belongs to a target, else jumps to `out`.
///
/// An event belongs to the running thread, and to the threads whose ids its record holds at these
/// offsets from `record`. Clobbers R0 to R5. `scratch` is the first of [`SCRATCH_BYTES`] free bytes of the stack.
pub fn leave_out_others(asm: &mut Assembler, map: BpfMapId, scratch: i16, record: Reg, threads: &[i16], out: Label) {
    let found = asm.label();
    asm.call(helper::GET_CURRENT_PID_TGID);
    test(asm, map, scratch);
    for offset in threads {
        asm.jump_if_imm(Cond::Ne, Reg::R0, 0, found);
        asm.ldx(Size::W, Reg::R0, record, *offset);
        test(asm, map, scratch);
    }
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.place(found);
}

/// Sets R0 to not 0 if the thread whose id is in its low half is a target, else to 0.
fn test(asm: &mut Assembler, map: BpfMapId, scratch: i16) {
    let none = asm.label();
    find_word(asm, map, scratch);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, none);
    asm.ldx(Size::Dw, Reg::R0, Reg::R0, 0);
    asm.alu(Alu::And, Reg::R0, Reg::R1);
    asm.place(none);
}

/// Sets R0 to the address of the word of the thread whose id is in its low half, and R1 to its bit; R0 to null for what is
/// no thread id. Clobbers R2 to R5.
pub fn find_word(asm: &mut Assembler, map: BpfMapId, scratch: i16) {
    let (index, thread) = (scratch, scratch + 4);
    asm.alu32(Alu::Mov, Reg::R0, Reg::R0);
    asm.stx(Size::W, Reg::FP, thread, Reg::R0);
    asm.alu_imm(Alu::Rsh, Reg::R0, WORD_SHIFT);
    asm.stx(Size::W, Reg::FP, index, Reg::R0);
    asm.find(map, index);
    asm.ldx(Size::W, Reg::R2, Reg::FP, thread);
    // The bits of a shift's number above the word's size don't count.
    asm.mov_imm(Reg::R1, 1);
    asm.alu(Alu::Lsh, Reg::R1, Reg::R2);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_id_has_a_bit_of_its_own() {
        assert_eq!(
            [word_and_bit(0), word_and_bit(63), word_and_bit(64), word_and_bit(131)],
            [(0, 1), (0, 1 << 63), (1, 1), (2, 8)]
        );
        assert_eq!(word_and_bit(THREAD_IDS - 1).0, map("").max_entries - 1);
    }
}
