//! Counts, at the entry, the returns that Linux's trampoline will not report.
//!
//! Linux tracks 64 open returns per thread; deeper calls return unseen. So each entry appends its
//! stack pointer to its thread's list of open calls, after removing those that have ended. Stacks
//! grow down, so an ended call never has a higher stack pointer than the new one, even if it was
//! left by an exception or `longjmp`.
//!
//! ```text
//! open calls of a thread:  u32 depth │ u32 – │ 64 × u32 stack pointer / 16, the outermost first
//! ```
//! Source: `MAX_URETPROBE_DEPTH` in `include/linux/uprobes.h`.

use super::build::{Build, spec};
use super::emit::Emitter;
use rhai::Position;
use xputrace_bytecode::insn::{Alu, Cond, Reg, Size};
use xputrace_bytecode::probe::pt_regs;
use xputrace_bytecode::{BpfMapId, Home, MapKind, helper};
use xputrace_model::loss::Loss;
use xputrace_model::plan::cookie::ReturnSite;

const DEEPEST: i32 = 64;
/// Offset of the stack pointers.
const POINTERS: i16 = 8;
/// Size of a thread's list.
const NESTED_BYTES: usize = POINTERS as usize + 4 * DEEPEST as usize;

/// Maximum number of threads whose open calls are tracked.
const NESTED_THREADS: u32 = 4096;

impl Build<'_> {
    /// Returns the map of each thread's open calls of return-probed functions.
    fn nested_map(&mut self) -> BpfMapId {
        if let Some(map) = self.nested {
            return map;
        }
        let map = self.map(spec("nested", MapKind::LruHash, 8, NESTED_BYTES as u32, NESTED_THREADS, 0, Home::Linux));
        self.nested = Some(map);
        map
    }
}

impl Emitter<'_, '_> {
    /// Ends the program and counts the call if it is too deep for Linux to report its return.
    pub(super) fn only_reported_returns(&mut self, at: Position) {
        let (next, over, untracked) = (self.asm.label(), self.asm.label(), self.asm.label());
        let too_deep = self.counts(Loss::ReturnTooDeep, at, None, self.end);
        self.return_site();
        self.asm.jump_if_imm(Cond::Ne, Reg::R0, ReturnSite::Trampoline.code(), untracked);
        let mark = self.mark();
        let thread = self.alloc(8);
        self.asm.call(helper::GET_CURRENT_PID_TGID);
        self.store(thread, Reg::R0);
        self.open_calls(thread, untracked);
        self.asm.ldx(Size::W, Reg::R1, Reg::R0, 0);
        self.asm.ldx(Size::Dw, Reg::R2, Reg::R6, pt_regs::STACK_POINTER);
        self.asm.alu_imm(Alu::Rsh, Reg::R2, 4);
        // Never true, but the verifier requires it.
        self.asm.jump_if_imm(Cond::Gt, Reg::R1, DEEPEST, untracked);
        self.asm.place(next);
        self.asm.jump_if_imm(Cond::Eq, Reg::R1, 0, over);
        self.innermost_above();
        self.asm.jump_if_imm(Cond::Sgt, Reg::R4, 0, over);
        self.asm.alu_imm(Alu::Sub, Reg::R1, 1);
        self.asm.jump(next);
        self.asm.place(over);
        self.asm.stx(Size::W, Reg::R0, 0, Reg::R1);
        self.asm.jump_if_imm(Cond::Ge, Reg::R1, DEEPEST, too_deep);
        self.pointer_address();
        self.asm.stx(Size::W, Reg::R3, POINTERS, Reg::R2);
        self.asm.alu_imm(Alu::Add, Reg::R1, 1);
        self.asm.stx(Size::W, Reg::R0, 0, Reg::R1);
        self.asm.place(untracked);
        self.release(mark);
    }

    /// Sets R0 to the thread's list, creating it if needed.
    fn open_calls(&mut self, thread: i16, none: xputrace_bytecode::Label) {
        let nested = self.build.nested_map();
        let known = self.asm.label();
        let mark = self.mark();
        let empty = self.alloc(NESTED_BYTES);
        self.lookup(nested, thread);
        self.asm.jump_if_imm(Cond::Ne, Reg::R0, 0, known);
        self.zero(empty, NESTED_BYTES);
        self.update(nested, thread, empty, helper::UPDATE_NOEXIST);
        self.lookup(nested, thread);
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, none);
        self.asm.place(known);
        self.release(mark);
    }

    /// Sets R4 to the distance from the new call, whose stack pointer is R2, up to the innermost of
    /// R1 open calls. The difference between two shifted pointers of one stack fits in 32 signed
    /// bits.
    fn innermost_above(&mut self) {
        self.pointer_address();
        self.asm.ldx(Size::W, Reg::R4, Reg::R3, POINTERS - 4);
        self.asm.alu(Alu::Sub, Reg::R4, Reg::R2);
        self.asm.alu_imm(Alu::Lsh, Reg::R4, 32);
        self.asm.alu_imm(Alu::Arsh, Reg::R4, 32);
    }

    /// Sets R3 so that R3 + [`POINTERS`] is the address after R1 stack pointers.
    fn pointer_address(&mut self) {
        self.asm.mov(Reg::R3, Reg::R1);
        self.asm.alu_imm(Alu::Lsh, Reg::R3, 2);
        self.asm.alu(Alu::Add, Reg::R3, Reg::R0);
    }
}
