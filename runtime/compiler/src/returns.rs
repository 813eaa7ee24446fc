//! Return probes: an entry and its return are matched by the stack slot of the return address.
//!
//! ```text
//! entry     entries[process, slot, probe] = time, arguments      no_return += 1
//! return    take entries[process, slot, probe]                   no_return -= 1
//! tail call take entries[process, slot, probe]                   no_return -= 1, tail_call += 1
//! ```
//! Adding and deleting an element at each call would cost more than the rest of the handler. So a
//! taken entry stays in the map, with the time [`TAKEN`], for the next call with its slot. Only the
//! first [`MOST_KEPT`] elements do: they leave room for as many open calls with other slots.
//!
//! Two open calls have different slots, whatever thread, coroutine or recursion they belong to. A
//! call left by an exception or `longjmp` leaves an entry behind, which the next call with the same
//! slot replaces. So the final `no_return` is exact: the number of calls whose return was not seen.

use super::build::{Build, Engine, spec};
use super::emit::{Emitter, SCRATCH};
use rhai::Position;
use xputrace_bytecode::helper;
use xputrace_bytecode::insn::{Alu, Cond, Reg, Size, atomic};
use xputrace_bytecode::probe::pt_regs;
use xputrace_bytecode::{BpfMapId, Home, Label, MapKind};
use xputrace_model::loss::Loss;
use xputrace_model::plan::cookie::{self, ReturnSite};

/// Size of an entry: its time, six arguments, and whether its element stays when it is taken.
const ENTRY_BYTES: usize = 64;
/// Where an entry says that.
const STAYS: i16 = 56;
/// Elements that stay.
const MOST_KEPT: u32 = 16_384;
/// The time of an entry whose call has ended. No call begins then: Linux's clock counts from boot.
const TAKEN: i32 = 0;
/// Size of its key: process, slot of the return address, probe.
const KEY_BYTES: usize = 24;

/// Maximum number of open calls under return probes, beside the elements that stay; beyond it the oldest are evicted.
const ENTRIES: u32 = 16_384 + MOST_KEPT;

/// Bits of the processor's flags register.
mod flag {
    pub(super) const CARRY: i32 = 0;
    pub(super) const PARITY: i32 = 2;
    pub(super) const ZERO: i32 = 6;
    pub(super) const SIGN: i32 = 7;
    pub(super) const OVERFLOW: i32 = 11;
}

/// The flags that each pair of conditional jumps tests, indexed by half its condition code: the
/// first two must differ, or the last one must be set. The odd code of a pair negates it. Source:
/// Intel's manual, volume 1, appendix B.
const CONDITIONS: [&[(Alu, i32)]; 8] = [
    &[(Alu::Xor, flag::OVERFLOW)],
    &[(Alu::Xor, flag::CARRY)],
    &[(Alu::Xor, flag::ZERO)],
    &[(Alu::Xor, flag::CARRY), (Alu::Or, flag::ZERO)],
    &[(Alu::Xor, flag::SIGN)],
    &[(Alu::Xor, flag::PARITY)],
    &[(Alu::Xor, flag::SIGN), (Alu::Xor, flag::OVERFLOW)],
    &[(Alu::Xor, flag::SIGN), (Alu::Xor, flag::OVERFLOW), (Alu::Or, flag::ZERO)],
];

impl Build<'_> {
    /// Returns the map of open calls.
    fn entries_map(&mut self) -> BpfMapId {
        if let Some(map) = self.plan.linux_entries {
            return map;
        }
        let map =
            self.map(spec("entries", MapKind::LruHash, KEY_BYTES as u32, ENTRY_BYTES as u32, ENTRIES, 0, Home::Linux));
        self.plan.linux_entries = Some(map);
        map
    }

    /// Returns the counter of entries whose elements stay: the map and the slot in it.
    fn kept_entries(&mut self) -> (BpfMapId, u32) {
        let slot = self.kept_entries.unwrap_or_else(|| self.every_slot(Engine::Linux));
        *self.kept_entries.insert(slot)
    }
}

impl Emitter<'_, '_> {
    /// Emits the whole program at the function's entry that its return handler needs.
    pub(super) fn leave_entry(&mut self) {
        let at = self.begin_return_program();
        let entries = self.build.entries_map();
        let key = self.alloc(KEY_BYTES);
        self.asm.ldx(Size::Dw, Reg::R0, Reg::R6, pt_regs::STACK_POINTER);
        self.entry_key(key);
        self.only_reported_returns(at);
        let value = self.alloc(ENTRY_BYTES);
        self.asm.call(helper::KTIME_GET_NS);
        self.store(value, Reg::R0);
        let args = self.checked.entry_args.unwrap_or(0);
        for (n, offset) in pt_regs::ARGUMENTS.iter().enumerate() {
            let slot = value + 8 + n as i16 * 8;
            if n < args {
                self.asm.ldx(Size::Dw, Reg::R0, Reg::R6, *offset);
                self.store(slot, Reg::R0);
            } else {
                self.asm.st_imm(Size::Dw, Reg::FP, slot, 0);
            }
        }
        self.put_entry(entries, key, value, 1 + args);
        self.add_to_loss(Loss::NoReturn, at, 1);
    }

    /// Stores the entry in `value`, of which `words` are read at the return, in the element that an
    /// earlier call left, or in a new one.
    fn put_entry(&mut self, entries: BpfMapId, key: i16, value: i16, words: usize) {
        let (new, done) = (self.asm.label(), self.asm.label());
        self.lookup(entries, key);
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, new);
        for word in 0..words as i16 {
            self.asm.ldx(Size::Dw, Reg::R1, Reg::FP, value + word * 8);
            self.asm.stx(Size::Dw, Reg::R0, word * 8, Reg::R1);
        }
        self.asm.jump(done);
        self.asm.place(new);
        self.stays_if_room(value);
        self.update(entries, key, value, helper::UPDATE_ANY);
        self.asm.place(done);
    }

    /// Says in a new entry whether its element stays.
    fn stays_if_room(&mut self, value: i16) {
        let full = self.asm.label();
        let (map, slot) = self.build.kept_entries();
        self.asm.st_imm(Size::Dw, Reg::FP, value + STAYS, 0);
        self.asm.st_imm(Size::W, Reg::FP, SCRATCH, slot as i32);
        self.lookup(map, SCRATCH);
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, full);
        self.asm.mov_imm(Reg::R1, 1);
        self.asm.atomic(atomic::ADD | atomic::FETCH, Size::Dw, Reg::R0, 0, Reg::R1);
        self.asm.jump_if_imm(Cond::Ge, Reg::R1, MOST_KEPT as i32, full);
        self.asm.st_imm(Size::Dw, Reg::FP, value + STAYS, 1);
        self.asm.place(full);
    }

    /// Takes, at the return, what the entry stored.
    pub(super) fn fetch_entry(&mut self) {
        let at = self.body_position();
        let words = 1 + self.checked.entry_args.unwrap_or(0);
        let kept = self.alloc(words * 8);
        let mark = self.mark();
        let none = self.ends_with(Loss::NoEntry, at);
        let entries = self.build.entries_map();
        let key = self.alloc(KEY_BYTES);
        self.slot_at_return();
        self.entry_key(key);
        self.open_entry(entries, key, none);
        for word in 0..words as i16 {
            self.asm.ldx(Size::Dw, Reg::R1, Reg::R0, word * 8);
            self.store(kept + word * 8, Reg::R1);
        }
        self.take_entry(entries, key);
        self.add_to_loss(Loss::NoReturn, at, -1);
        self.release(mark);
        self.entry = Some(kept);
    }

    /// Emits the whole program at a jump to another function.
    pub(super) fn count_tail_call(&mut self) {
        let at = self.begin_return_program();
        self.only_taken_jumps();
        if self.checked.entry_args.is_some() {
            let entries = self.build.entries_map();
            let key = self.alloc(KEY_BYTES);
            self.asm.ldx(Size::Dw, Reg::R0, Reg::R6, pt_regs::STACK_POINTER);
            self.entry_key(key);
            self.open_entry(entries, key, self.end);
            self.take_entry(entries, key);
            self.add_to_loss(Loss::NoReturn, at, -1);
        }
        self.add_to_loss(Loss::TailCall, at, 1);
    }

    /// Sets R0 to the entry of an open call, or jumps to `none`.
    fn open_entry(&mut self, entries: BpfMapId, key: i16, none: Label) {
        self.lookup(entries, key);
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, none);
        self.asm.ldx(Size::Dw, Reg::R1, Reg::R0, 0);
        self.asm.jump_if_imm(Cond::Eq, Reg::R1, TAKEN, none);
    }

    /// Takes the entry at R0.
    fn take_entry(&mut self, entries: BpfMapId, key: i16) {
        let (goes, done) = (self.asm.label(), self.asm.label());
        self.asm.ldx(Size::Dw, Reg::R1, Reg::R0, STAYS);
        self.asm.jump_if_imm(Cond::Eq, Reg::R1, 0, goes);
        self.asm.st_imm(Size::Dw, Reg::R0, 0, TAKEN);
        self.asm.jump(done);
        self.asm.place(goes);
        self.delete(entries, key);
        self.asm.place(done);
    }

    fn begin_return_program(&mut self) -> Position {
        let at = self.body_position();
        self.asm.mov(Reg::R6, Reg::R1);
        self.line(at);
        self.only_targets();
        at
    }

    pub(super) fn body_position(&self) -> Position {
        self.handler.body.first().map_or(Position::NONE, |it| it.position())
    }

    /// Writes the key of the call whose return address is stored at R0.
    fn entry_key(&mut self, key: i16) {
        self.store(key + 8, Reg::R0);
        self.asm.call(helper::GET_CURRENT_PID_TGID);
        self.asm.alu_imm(Alu::Rsh, Reg::R0, 32);
        self.store(key, Reg::R0);
        self.store_imm(key + 16, self.probe.0.into());
    }

    /// Sets R0 to the slot that holds, or held, the return address.
    fn slot_at_return(&mut self) {
        const WORD: i32 = 8;
        let (above_frame, popped, at_top) = (self.asm.label(), self.asm.label(), self.asm.label());
        let done = self.asm.label();
        self.return_site();
        self.asm.mov(Reg::R1, Reg::R0);
        self.asm.ldx(Size::Dw, Reg::R0, Reg::R6, pt_regs::STACK_POINTER);
        self.asm.jump_if_imm(Cond::Eq, Reg::R1, ReturnSite::Ret.code(), at_top);
        self.asm.jump_if_imm(Cond::Eq, Reg::R1, ReturnSite::Pop.code(), popped);
        self.asm.jump_if_imm(Cond::Eq, Reg::R1, ReturnSite::Leave.code(), above_frame);
        self.asm.alu_imm(Alu::Add, Reg::R0, -WORD);
        self.asm.jump(done);
        self.asm.place(above_frame);
        self.asm.ldx(Size::Dw, Reg::R0, Reg::R6, pt_regs::FRAME_POINTER);
        self.asm.place(popped);
        self.asm.alu_imm(Alu::Add, Reg::R0, WORD);
        self.asm.place(at_top);
        self.asm.place(done);
    }

    /// Sets R0 to the code of the [`ReturnSite`].
    pub(super) fn return_site(&mut self) {
        self.asm.mov(Reg::R1, Reg::R6);
        self.asm.call(helper::GET_ATTACH_COOKIE);
        self.asm.alu_imm(Alu::Rsh, Reg::R0, cookie::SITE_SHIFT);
    }

    /// Ends the program if a conditional jump is not taken.
    fn only_taken_jumps(&mut self) {
        let (taken, decided) = (self.asm.label(), self.asm.label());
        self.asm.mov(Reg::R1, Reg::R6);
        self.asm.call(helper::GET_ATTACH_COOKIE);
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, cookie::ALWAYS as i32, taken);
        self.asm.ldx(Size::Dw, Reg::R1, Reg::R6, pt_regs::FLAGS);
        for (half, flags) in CONDITIONS.iter().enumerate() {
            let next = self.asm.label();
            self.asm.mov(Reg::R2, Reg::R0);
            self.asm.alu_imm(Alu::Rsh, Reg::R2, 1);
            self.asm.jump_if_imm(Cond::Ne, Reg::R2, half as i32, next);
            self.asm.mov_imm(Reg::R3, 0);
            for (how, bit) in *flags {
                self.asm.mov(Reg::R2, Reg::R1);
                self.asm.alu_imm(Alu::Rsh, Reg::R2, *bit);
                self.asm.alu(*how, Reg::R3, Reg::R2);
            }
            self.asm.jump(decided);
            self.asm.place(next);
        }
        self.asm.jump(self.end);
        self.asm.place(decided);
        self.asm.alu(Alu::Xor, Reg::R3, Reg::R0);
        self.asm.alu_imm(Alu::And, Reg::R3, 1);
        self.asm.jump_if_imm(Cond::Eq, Reg::R3, 0, self.end);
        self.asm.place(taken);
    }
}
