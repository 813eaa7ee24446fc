//! The filter of probes that also fire in other processes.

use crate::id::BpfMapId;
use crate::image::NO_PREALLOC;
use crate::insn::{Cond, Size};
use crate::{Assembler, Home, Label, MapKind, MapSpec, Reg, helper};

/// Maximum number of threads that are followed at a time.
pub const MOST_THREADS: u32 = 131_072;

/// Describes the map of targets. The key is the thread id in the initial pid namespace; the value
/// distinguishes threads that have the same id one after the other.
pub fn map(name: &str) -> MapSpec {
    MapSpec {
        name: name.into(),
        kind: MapKind::Hash,
        key_size: 4,
        value_size: 8,
        max_entries: MOST_THREADS,
        flags: NO_PREALLOC,
        home: Home::Linux,
        inner: None,
    }
}

/// Continues if the event belongs to a target, else jumps to `out`.
///
/// An event belongs to the running thread, and to the threads whose ids its record holds at these
/// offsets from `record`. `map` contains the targets by thread id in the initial pid namespace
/// (`u32`). Clobbers R1 to R5; R0 is not null afterwards. `key` is a free 4-byte stack slot.
pub fn leave_out_others(asm: &mut Assembler, map: BpfMapId, key: i16, record: Reg, threads: &[i16], out: Label) {
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

/// Sets R0 to the element of the thread whose id is in the low half of R0, or null.
fn look_up(asm: &mut Assembler, map: BpfMapId, key: i16) {
    asm.stx(Size::W, Reg::FP, key, Reg::R0);
    asm.ld_map(Reg::R1, map);
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(crate::insn::Alu::Add, Reg::R2, key.into());
    asm.call(helper::MAP_LOOKUP_ELEM);
}
