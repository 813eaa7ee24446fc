//! Texts: bytes in stack slots, compared, copied and concatenated there.

use super::build::Engine;
use super::emit::{Emitter, Temporary};
use super::typed::{Base, Expr, ExprKind};
use rhai::Position;
use xputrace_bytecode::insn::{Alu, Cond, Reg, Size};
use xputrace_bytecode::{Label, helper};
use xputrace_model::diagnostic::Diagnostic;
use xputrace_model::loss::Loss;
use xputrace_model::style::HEX_BYTES;

/// Number of digits of the largest integer.
const MAX_DIGITS: i16 = 19;

/// Number of hexadecimal digits of 64 bits.
const HEX_DIGITS: i16 = 16;

/// Where the next piece of a text goes.
enum Cursor {
    /// A constant number of bytes after the start.
    Known(i16),
    /// As many bytes as the temporary holds.
    Kept(Temporary),
}

impl Emitter<'_, '_> {
    /// Writes a text of `capacity` bytes, rounded up to words and padded with NULs; may overwrite
    /// up to 8 bytes after it.
    pub(super) fn text(&mut self, expr: &Expr, slot: i16, capacity: u32, missing: Label) {
        let words = capacity.div_ceil(8) as usize;
        match &expr.kind {
            ExprKind::Literal(text) => {
                let text = cut(text, capacity as usize);
                for index in 0..words {
                    self.store_imm(slot + index as i16 * 8, word_of(text, index));
                }
            }
            ExprKind::Missing => self.asm.jump(missing),
            ExprKind::Local(local) if matches!(expr.ty.base, Base::Text(_)) => {
                self.local_text(*local, slot, capacity, missing);
            }
            ExprKind::Joined(inner) => {
                self.joined(missing);
                self.text(inner, slot, capacity, missing);
            }
            ExprKind::Read(map, keys) if matches!(expr.ty.base, Base::Text(_)) => {
                self.find(*map, keys, missing);
                let stored = expr.ty.base.scalar().size();
                for at in (0..(words * 8).min(stored) as i16).step_by(8) {
                    self.asm.ldx(Size::Dw, Reg::R1, Reg::R0, at);
                    self.store(slot + at, Reg::R1);
                }
                self.zero_from(slot, stored, words * 8);
            }
            ExprKind::Coalesce(parts) => {
                self.coalesce(parts, missing, &mut |this, part, to| this.text(part, slot, capacity, to));
            }
            ExprKind::If(condition, then, otherwise) => {
                self.if_value(condition, then, otherwise, missing, &mut |this, value, to| {
                    this.text(value, slot, capacity, to);
                });
            }
            ExprKind::Block(block) => {
                self.block_value(block, missing, &mut |this, value, to| this.text(value, slot, capacity, to));
            }
            ExprKind::Inlined(call) => {
                self.inlined(call, missing, &mut |this, value, to| this.text(value, slot, capacity, to));
            }
            ExprKind::Concat(parts) => self.concat(parts, slot, capacity, expr),
            ExprKind::Hex(_) => self.concat(std::slice::from_ref(expr), slot, capacity, expr),
            ExprKind::UserText(address, n) => {
                self.zero(slot, words * 8);
                self.eval_strict(address);
                let unreadable = self.lost_value(Loss::UnreadableMemory, expr.at, missing);
                self.read_text(helper::PROBE_READ_USER_STR, (*n).min(capacity), slot, expr.at, unreadable);
            }
            ExprKind::Source(source) if matches!(expr.ty.base, Base::Text(_)) => {
                self.source_text(*source, slot, capacity, expr.at);
            }
            _ => self.name_text(expr, slot, capacity, missing),
        }
    }

    fn local_text(&mut self, local: usize, slot: i16, capacity: u32, missing: Label) {
        let mut from = self.local(local);
        if self.checked.locals[local].optional {
            self.load(Reg::R0, from);
            self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, missing);
            from += 8;
        }
        let held = self.checked.locals[local].base.scalar().size();
        let wanted = capacity.next_multiple_of(8) as usize;
        for at in (0..held.min(wanted) as i16).step_by(8) {
            self.load(Reg::R0, from + at);
            self.store(slot + at, Reg::R0);
        }
        self.zero_from(slot, held, wanted);
    }

    pub(super) fn zero_from(&mut self, slot: i16, from: usize, to: usize) {
        if from < to {
            self.zero(slot + from as i16, to - from);
        }
    }

    /// Returns where a value that cannot be read leads: it is counted, and missing. Where a missing
    /// value ends the handler, that is not counted as well.
    pub(super) fn lost_value(&mut self, loss: Loss, at: Position, missing: Label) -> Label {
        match self.ends_handler(missing) {
            true => self.ends_with(loss, at),
            false => self.counts(loss, at, None, missing),
        }
    }

    /// Reads the string at the address in R0, at most `n` bytes, into zeroed memory.
    pub(super) fn read_text(&mut self, read: i32, n: u32, slot: i16, at: Position, unreadable: Label) {
        let on = self.asm.label();
        let cut = self.counts(Loss::TextCut, at, None, on);
        self.asm.mov(Reg::R3, Reg::R0);
        self.address(Reg::R1, slot);
        // One byte more than fits, and the NUL: this distinguishes a longer string from one that
        // just fits.
        self.asm.mov_imm(Reg::R2, i64::from(n) + 2);
        self.asm.call(read);
        self.asm.jump_if_imm(Cond::Slt, Reg::R0, 0, unreadable);
        self.asm.jump_if_imm(Cond::Sgt, Reg::R0, n as i32 + 1, cut);
        self.asm.place(on);
        self.asm.st_imm(Size::B, Reg::FP, slot + n as i16, 0);
    }

    /// Emits a name, known by its id, as text: only the tracer has the table.
    fn name_text(&mut self, expr: &Expr, slot: i16, capacity: u32, missing: Label) {
        if self.engine != Engine::Tracer {
            let label = self.build.staged.label(self.file, expr.at);
            self.build
                .diagnostics
                .push(Diagnostic::error("name-as-text", "the text of this name is not known in Linux", label).help(
                "make it a part of a key of its own, `@m[e.func, e.comm]`, in a map where no text stands in its place",
            ));
            return;
        }
        let on = self.asm.label();
        let cut = self.counts(Loss::TextCut, expr.at, None, on);
        self.eval(expr, missing);
        self.asm.mov(Reg::R1, Reg::R0);
        self.address(Reg::R2, slot);
        self.asm.mov_imm(Reg::R3, i64::from(capacity) + 1);
        self.asm.call(helper::NAME_TEXT);
        self.asm.jump_if_imm(Cond::Sgt, Reg::R0, capacity as i32, cut);
        self.asm.place(on);
    }

    /// Concatenates the texts of values.
    ///
    /// Lengths are known only at run time, so pieces are written at a moving place on the stack. A
    /// piece's length comes from a helper whose result has bounds that the verifier knows: no path
    /// splits by length.
    fn concat(&mut self, parts: &[Expr], slot: i16, capacity: u32, whole: &Expr) {
        let mark = self.mark();
        let bytes = match whole.ty.base {
            Base::Text(n) => n,
            _ => capacity,
        };
        // Inference gives texts the room that they need; cutting is for what it cannot see.
        let fits = bytes <= capacity;
        let to = if fits { slot } else { self.alloc(bytes as usize + 16) };
        self.zero(to, bytes.max(if fits { capacity } else { 0 }).next_multiple_of(8) as usize + 8);
        let mut cursor = Cursor::Known(0);
        for part in parts {
            cursor = self.piece(part, to, cursor);
        }
        if let Cursor::Kept(temporary) = cursor {
            self.pop(temporary, Reg::R0);
        }
        if !fits {
            self.copy_cut(to, slot, capacity, whole.at);
        }
        self.release(mark);
    }

    /// Copies the first bytes of a longer text.
    fn copy_cut(&mut self, from: i16, to: i16, capacity: u32, at: Position) {
        let on = self.asm.label();
        let cut = self.counts(Loss::TextCut, at, None, on);
        self.asm.ldx(Size::B, Reg::R0, Reg::FP, from + capacity as i16);
        for byte in capacity..capacity.next_multiple_of(8) {
            self.asm.st_imm(Size::B, Reg::FP, from + byte as i16, 0);
        }
        for word in (0..capacity.next_multiple_of(8) as i16).step_by(8) {
            self.load(Reg::R1, from + word);
            self.store(to + word, Reg::R1);
        }
        self.asm.jump_if_imm(Cond::Ne, Reg::R0, 0, cut);
        self.asm.place(on);
    }

    fn piece(&mut self, part: &Expr, slot: i16, cursor: Cursor) -> Cursor {
        if let (ExprKind::Literal(text), Cursor::Known(at)) = (&part.kind, &cursor) {
            self.bytes_at(Reg::FP, slot + at, text.as_bytes());
            return Cursor::Known(at + text.len() as i16);
        }
        let (missing, done) = (self.asm.label(), self.asm.label());
        if part.ty.optional {
            self.piece_value(part, slot, &cursor, missing);
            self.asm.jump(done);
            self.asm.place(missing);
            self.literal_piece("-", slot, &cursor);
        } else {
            let ends = self.strict(part.at);
            self.piece_value(part, slot, &cursor, ends);
        }
        self.asm.place(done);
        self.advance(cursor)
    }

    /// Advances the cursor by R0.
    fn advance(&mut self, cursor: Cursor) -> Cursor {
        match cursor {
            Cursor::Known(at) => self.asm.alu_imm(Alu::Add, Reg::R0, i32::from(at)),
            Cursor::Kept(temporary) => {
                self.pop(temporary, Reg::R1);
                self.asm.alu(Alu::Add, Reg::R0, Reg::R1);
            }
        }
        Cursor::Kept(self.push())
    }

    /// Sets `into` to the address of the next piece; clobbers R5.
    fn next_piece(&mut self, into: Reg, slot: i16, cursor: &Cursor) {
        match cursor {
            Cursor::Known(at) => self.address(into, slot + at),
            Cursor::Kept(temporary) => {
                self.address(into, slot);
                match temporary {
                    Temporary::Register(register) => self.asm.alu(Alu::Add, into, *register),
                    Temporary::Slot(kept) => {
                        self.load(Reg::R5, *kept);
                        self.asm.alu(Alu::Add, into, Reg::R5);
                    }
                }
            }
        }
    }

    /// Writes a value's text at the cursor; sets R0 to its length.
    fn piece_value(&mut self, part: &Expr, slot: i16, cursor: &Cursor, missing: Label) {
        match (&part.kind, part.ty.base) {
            (ExprKind::Literal(text), _) => self.literal_piece(text, slot, cursor),
            (ExprKind::Hex(number), _) => {
                self.eval_strict(number);
                self.hex_piece(slot, cursor);
            }
            (_, Base::Bool) => {
                let (no, done) = (self.asm.label(), self.asm.label());
                self.eval(part, missing);
                self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, no);
                self.literal_piece("true", slot, cursor);
                self.asm.jump(done);
                self.asm.place(no);
                self.literal_piece("false", slot, cursor);
                self.asm.place(done);
            }
            (_, Base::Text(n)) => {
                let mark = self.mark();
                let text = self.alloc(n as usize + 16);
                self.text(part, text, n, missing);
                // A text that fills its bytes has no NUL after it.
                self.asm.st_imm(Size::B, Reg::FP, text + n as i16, 0);
                self.address(Reg::R3, text);
                self.copy_piece(n, slot, cursor);
                self.release(mark);
            }
            (_, Base::Name) => self.name_piece(part, slot, cursor, missing),
            _ => {
                self.eval(part, missing);
                self.decimal_piece(slot, cursor);
            }
        }
    }

    fn literal_piece(&mut self, text: &str, slot: i16, cursor: &Cursor) {
        self.next_piece(Reg::R1, slot, cursor);
        self.bytes_at(Reg::R1, 0, text.as_bytes());
        self.asm.mov_imm(Reg::R0, text.len() as i64);
    }

    fn bytes_at(&mut self, base: Reg, offset: i16, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            self.asm.st_imm(Size::B, base, offset + index as i16, i32::from(*byte));
        }
    }

    /// Copies the NUL-terminated text at R3, at most `n` bytes, to the cursor; sets R0 to its
    /// length.
    fn copy_piece(&mut self, n: u32, slot: i16, cursor: &Cursor) {
        let there = self.asm.label();
        self.next_piece(Reg::R1, slot, cursor);
        self.asm.mov_imm(Reg::R2, i64::from(n) + 1);
        self.asm.call(helper::PROBE_READ_KERNEL_STR);
        // The program's own stack is always readable; the verifier does not know that.
        self.asm.jump_if_imm(Cond::Sgt, Reg::R0, 0, there);
        self.asm.mov_imm(Reg::R0, 1);
        self.asm.place(there);
        self.asm.alu_imm(Alu::Sub, Reg::R0, 1);
    }

    /// Writes a name, whose text only the tracer has.
    fn name_piece(&mut self, part: &Expr, slot: i16, cursor: &Cursor, missing: Label) {
        if self.engine != Engine::Tracer {
            // Reports what is wrong with it.
            self.name_text(part, slot, 0, missing);
            return;
        }
        let capacity = super::tables::NAME_TEXT_BYTES;
        let on = self.asm.label();
        let cut = self.counts(Loss::TextCut, part.at, None, on);
        self.eval(part, missing);
        self.next_piece(Reg::R2, slot, cursor);
        self.asm.mov(Reg::R1, Reg::R0);
        self.asm.mov_imm(Reg::R3, i64::from(capacity) + 1);
        self.asm.call(helper::NAME_TEXT);
        let fits = self.asm.label();
        self.asm.jump_if_imm(Cond::Sle, Reg::R0, capacity as i32, fits);
        self.asm.jump(cut);
        self.asm.place(on);
        self.asm.mov_imm(Reg::R0, i64::from(capacity));
        self.asm.place(fits);
    }

    /// Writes the decimal digits of R0. Computes all of them and counts them without branches.
    fn decimal_piece(&mut self, slot: i16, cursor: &Cursor) {
        let mark = self.mark();
        let digits = self.alloc(24);
        self.zero(digits, 24);
        // R1 = 1 when it is negative, R0 = its absolute value.
        self.asm.mov(Reg::R1, Reg::R0);
        self.asm.alu_imm(Alu::Arsh, Reg::R1, 63);
        self.asm.alu(Alu::Xor, Reg::R0, Reg::R1);
        self.asm.alu(Alu::Sub, Reg::R0, Reg::R1);
        self.asm.alu_imm(Alu::And, Reg::R1, 1);
        // R2 counts the digits: every nonzero quotient has one more. R3 is scratch.
        self.asm.mov_imm(Reg::R2, 1);
        for digit in 0..MAX_DIGITS {
            self.asm.mov(Reg::R3, Reg::R0);
            self.asm.alu_imm(Alu::Mod, Reg::R3, 10);
            self.asm.alu_imm(Alu::Add, Reg::R3, i32::from(b'0'));
            self.asm.stx(Size::B, Reg::FP, digits + MAX_DIGITS - digit, Reg::R3);
            if digit + 1 < MAX_DIGITS {
                self.asm.alu_imm(Alu::Div, Reg::R0, 10);
                self.asm.mov(Reg::R3, Reg::R0);
                self.asm.alu_imm(Alu::Neg, Reg::R3, 0);
                self.asm.alu_imm(Alu::Rsh, Reg::R3, 63);
                self.asm.alu(Alu::Add, Reg::R2, Reg::R3);
            }
        }
        // The minus goes before the first digit; without one it is overwritten.
        self.asm.mov_imm(Reg::R4, i64::from(MAX_DIGITS));
        self.asm.alu(Alu::Sub, Reg::R4, Reg::R2);
        self.address(Reg::R3, digits);
        self.asm.alu(Alu::Add, Reg::R3, Reg::R4);
        self.asm.st_imm(Size::B, Reg::R3, 0, i32::from(b'-'));
        self.asm.alu_imm(Alu::Xor, Reg::R1, 1);
        self.asm.alu(Alu::Add, Reg::R3, Reg::R1);
        self.copy_piece(MAX_DIGITS as u32 + 1, slot, cursor);
        self.release(mark);
    }

    /// Writes the bits of R0 as `0x…`. Computes all digits and counts them without branches.
    fn hex_piece(&mut self, slot: i16, cursor: &Cursor) {
        let mark = self.mark();
        let digits = self.alloc(24);
        self.zero(digits, 24);
        // R2 counts the digits: every nonzero rest has one more. R1 and R3 are scratch.
        self.asm.mov_imm(Reg::R2, 1);
        for digit in 1..=HEX_DIGITS {
            self.asm.mov(Reg::R3, Reg::R0);
            self.asm.alu_imm(Alu::And, Reg::R3, 15);
            // R1 = 1 for a letter.
            self.asm.mov_imm(Reg::R1, 9);
            self.asm.alu(Alu::Sub, Reg::R1, Reg::R3);
            self.asm.alu_imm(Alu::Rsh, Reg::R1, 63);
            self.asm.alu_imm(Alu::Mul, Reg::R1, i32::from(b'a' - b'9' - 1));
            self.asm.alu(Alu::Add, Reg::R3, Reg::R1);
            self.asm.alu_imm(Alu::Add, Reg::R3, i32::from(b'0'));
            self.asm.stx(Size::B, Reg::FP, digits + 2 + HEX_DIGITS - digit, Reg::R3);
            if digit < HEX_DIGITS {
                self.asm.alu_imm(Alu::Rsh, Reg::R0, 4);
                self.asm.mov(Reg::R3, Reg::R0);
                self.asm.alu_imm(Alu::Neg, Reg::R3, 0);
                self.asm.alu_imm(Alu::Rsh, Reg::R3, 63);
                self.asm.alu(Alu::Add, Reg::R2, Reg::R3);
            }
        }
        self.asm.mov_imm(Reg::R4, i64::from(HEX_DIGITS));
        self.asm.alu(Alu::Sub, Reg::R4, Reg::R2);
        self.address(Reg::R3, digits);
        self.asm.alu(Alu::Add, Reg::R3, Reg::R4);
        self.bytes_at(Reg::R3, 0, b"0x");
        self.copy_piece(HEX_BYTES as u32, slot, cursor);
        self.release(mark);
    }

    pub(super) fn unequal_texts(&mut self, a: &Expr, b: &Expr, unequal: Label) {
        match (a.ty.base, b.ty.base) {
            (Base::Text(n), Base::Text(m)) => self.unequal_slots(a, b, n.max(m), unequal),
            (Base::Text(n), _) => match &b.kind {
                ExprKind::Literal(text) => self.unequal_literal(a, n, text.as_bytes(), unequal),
                _ => self.unequal_slots(a, b, n.max(super::tables::NAME_TEXT_BYTES), unequal),
            },
            (_, Base::Text(_)) => self.unequal_texts(b, a, unequal),
            _ => self.unequal_words(a, b, unequal),
        }
    }

    fn unequal_literal(&mut self, text: &Expr, capacity: u32, literal: &[u8], unequal: Label) {
        if literal.len() > capacity as usize {
            self.discard(text, unequal);
            self.asm.jump(unequal);
            return;
        }
        let mark = self.mark();
        let slot = self.alloc(capacity as usize + 16);
        self.text(text, slot, capacity, unequal);
        // The first word that contains the literal's end differs in every longer text.
        let words = (literal.len() / 8 + 1).min(capacity.div_ceil(8) as usize);
        for index in 0..words {
            self.load(Reg::R0, slot + index as i16 * 8);
            let expected = word_of(literal, index);
            match i32::try_from(expected) {
                Ok(small) => self.asm.jump_if_imm(Cond::Ne, Reg::R0, small, unequal),
                Err(_) => {
                    self.asm.mov_imm(Reg::R1, expected);
                    self.asm.jump_if(Cond::Ne, Reg::R0, Reg::R1, unequal);
                }
            }
        }
        self.release(mark);
    }

    fn unequal_slots(&mut self, a: &Expr, b: &Expr, capacity: u32, unequal: Label) {
        let mark = self.mark();
        let (left, right) = (self.alloc(capacity as usize + 16), self.alloc(capacity as usize + 16));
        self.text(a, left, capacity, unequal);
        self.text(b, right, capacity, unequal);
        for at in (0..capacity as i16).step_by(8) {
            self.load(Reg::R0, left + at);
            self.load(Reg::R1, right + at);
            self.asm.jump_if(Cond::Ne, Reg::R0, Reg::R1, unequal);
        }
        self.release(mark);
    }
}

/// Returns the 8 bytes of a text at a word, padded with NULs, as the word in memory.
fn word_of(text: &[u8], index: usize) -> i64 {
    let mut bytes = [0; 8];
    let rest = text.get(index * 8..).unwrap_or(&[]);
    let n = rest.len().min(8);
    bytes[..n].copy_from_slice(&rest[..n]);
    i64::from_le_bytes(bytes)
}

/// Returns the first bytes of a text, whole characters only.
fn cut(text: &str, capacity: usize) -> &[u8] {
    let mut end = text.len().min(capacity);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}
