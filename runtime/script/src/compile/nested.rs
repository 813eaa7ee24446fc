//! Returns that the trampoline of Linux will not report, counted at the entry.
//!
//! Linux keeps 64 open returns a thread; what a thread calls deeper returns unseen. So each
//! entry notes its stack pointer in its thread's list of open calls, after it has taken out those
//! that are over: a stack grows down, so a call that is over has no higher stack pointer than the
//! new one. That holds too where a call was left by an exception or `longjmp`.
//!
//! ```text
//! open calls of a thread:  u32 depth │ u32 – │ 64 × u32 stack pointer / 16, the outermost first
//! ```
//! Source: `MAX_URETPROBE_DEPTH` in `include/linux/uprobes.h`.

use super::emit::Emitter;
use rhai::Position;
use xputrace_bytecode::helper;
use xputrace_bytecode::insn::{Alu, Cond, Reg, Size};
use xputrace_bytecode::probe::pt_regs;
use xputrace_model::loss::Loss;
use xputrace_model::plan::cookie::ReturnSite;

const DEEPEST: i32 = 64;
/// Where the stack pointers begin.
const POINTERS: i16 = 8;
/// Bytes of a thread's list.
pub(super) const NESTED_BYTES: usize = POINTERS as usize + 4 * DEEPEST as usize;

impl Emitter<'_, '_> {
    /// Ends the program, counted, where the call is too deep for Linux to report its return.
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
        // Never true; the verifier asks for it.
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

    /// R0 = the thread's list, which is made where there is none.
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

    /// R4 = how far the innermost of R1 open calls lies above the new one, whose stack pointer is
    /// R2. The difference of what is left of two pointers of one stack fits 32 bits with its sign.
    fn innermost_above(&mut self) {
        self.pointer_address();
        self.asm.ldx(Size::W, Reg::R4, Reg::R3, POINTERS - 4);
        self.asm.alu(Alu::Sub, Reg::R4, Reg::R2);
        self.asm.alu_imm(Alu::Lsh, Reg::R4, 32);
        self.asm.alu_imm(Alu::Arsh, Reg::R4, 32);
    }

    /// R3 + [`POINTERS`] = the place behind R1 stack pointers.
    fn pointer_address(&mut self) {
        self.asm.mov(Reg::R3, Reg::R1);
        self.asm.alu_imm(Alu::Lsh, Reg::R3, 2);
        self.asm.alu(Alu::Add, Reg::R3, Reg::R0);
    }
}
