//! Values: 8 bytes into R0, texts into stack slots, conditions into jumps.

use super::build::Engine;
use super::emit::Emitter;
use super::typed::{Base, Block, Expr, Kind, MapId, Source};
use rhai::Position;
use xputrace_bytecode::insn::{Alu, Cond, Reg, Size};
use xputrace_bytecode::{Label, helper};
use xputrace_model::context::word;
use xputrace_model::diagnostic::Diagnostic;
use xputrace_model::loss::Loss;
use xputrace_model::table::Scalar;

impl Emitter<'_, '_> {
    /// R0 = a value that must be there.
    pub(super) fn eval_strict(&mut self, expr: &Expr) {
        let missing = self.strict(expr.at);
        self.eval(expr, missing);
    }

    /// R0 = the value; goes to `missing` when it is not there. R1 to R5 are lost.
    pub(super) fn eval(&mut self, expr: &Expr, missing: Label) {
        match &expr.kind {
            Kind::Const(n) => self.asm.mov_imm(Reg::R0, *n),
            Kind::Literal(text) => {
                let id = self.build.string(text);
                self.asm.mov_imm(Reg::R0, i64::from(id));
            }
            Kind::Missing => self.asm.jump(missing),
            Kind::Local(local) => self.eval_local(*local, missing),
            Kind::Source(source) => self.source(*source, expr.at, missing),
            Kind::Joined(inner) => {
                self.joined(missing);
                self.eval(inner, missing);
            }
            Kind::Read(map, keys) => {
                self.find(*map, keys, missing);
                self.asm.ldx(Size::Dw, Reg::R0, Reg::R0, 0);
            }
            Kind::Neg(value) => {
                self.eval_strict(value);
                self.asm.alu_imm(Alu::Neg, Reg::R0, 0);
            }
            Kind::Binary(op, a, b) => self.binary(*op, a, b, expr.at),
            Kind::Coalesce(parts) => self.coalesce(parts, missing, &mut |this, part, to| this.eval(part, to)),
            Kind::If(condition, then, otherwise) => {
                self.if_value(condition, then, otherwise, missing, &mut |this, value, to| this.eval(value, to));
            }
            Kind::Block(block) => self.block_value(block, missing, &mut |this, value, to| this.eval(value, to)),
            Kind::Pick(larger, a, b) => {
                self.two(a, b);
                let done = self.asm.label();
                let keep = if *larger { Cond::Sge } else { Cond::Sle };
                self.asm.jump_if(keep, Reg::R0, Reg::R1, done);
                self.asm.mov(Reg::R0, Reg::R1);
                self.asm.place(done);
            }
            Kind::Abs(value) => {
                self.eval_strict(value);
                let done = self.asm.label();
                self.asm.jump_if_imm(Cond::Sge, Reg::R0, 0, done);
                self.asm.alu_imm(Alu::Neg, Reg::R0, 0);
                self.asm.place(done);
            }
            Kind::Contains(..)
            | Kind::Not(_)
            | Kind::Compare(..)
            | Kind::Same(..)
            | Kind::IsMissing(_)
            | Kind::And(_)
            | Kind::Or(_) => self.truth(expr),
            // Texts are never asked for as a word; see `Emitter::text`.
            Kind::UserText(..) => self.asm.mov_imm(Reg::R0, 0),
        }
    }

    fn eval_local(&mut self, local: usize, missing: Label) {
        let slot = self.local(local);
        if self.checked.locals[local].optional {
            self.load(Reg::R0, slot);
            self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, missing);
            self.load(Reg::R0, slot + 8);
        } else {
            self.load(Reg::R0, slot);
        }
    }

    /// Stack of a local: a flag when it is optional, then the value.
    pub(super) fn local(&mut self, local: usize) -> i16 {
        if let Some(slot) = self.locals.get(&local) {
            return *slot;
        }
        let ty = self.checked.locals[local];
        let slot = self.alloc(ty.base.scalar().size() + 8 + if ty.optional { 8 } else { 0 });
        self.locals.insert(local, slot);
        slot
    }

    /// Goes to `missing` when the kernel's launch is not known.
    fn joined(&mut self, missing: Label) {
        self.asm.ldx(Size::Dw, Reg::R0, Reg::R6, (word::JOINED * 8) as i16);
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, missing);
    }

    /// R0 = the address of an element's value.
    fn find(&mut self, map: MapId, keys: &[Expr], missing: Label) {
        let mark = self.mark();
        let key = self.key(map, keys);
        let bpf_map = self.table(map);
        self.lookup(bpf_map, key);
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, missing);
        self.release(mark);
    }

    /// R0 = a, R1 = b.
    fn two(&mut self, a: &Expr, b: &Expr) {
        self.eval_strict(a);
        match b.kind {
            Kind::Const(n) => self.asm.mov_imm(Reg::R1, n),
            Kind::Source(Source::Word(n)) if self.engine == Engine::Tracer => {
                self.asm.ldx(Size::Dw, Reg::R1, Reg::R6, (n * 8) as i16);
            }
            _ => {
                let mark = self.mark();
                let waiting = self.push();
                self.eval_strict(b);
                self.asm.mov(Reg::R1, Reg::R0);
                self.pop(waiting, Reg::R0);
                self.release(mark);
            }
        }
    }

    fn binary(&mut self, op: Alu, a: &Expr, b: &Expr, at: Position) {
        let constant = match b.kind {
            Kind::Const(n) => Some(n),
            _ => None,
        };
        match (op, constant.map(i32::try_from)) {
            (Alu::Div | Alu::Mod, _) => self.division(op, a, b, constant, at),
            (Alu::Lsh | Alu::Arsh, Some(_)) => {
                self.eval_strict(a);
                self.asm.alu_imm(op, Reg::R0, (constant.unwrap_or(0) & 63) as i32);
            }
            (Alu::Lsh | Alu::Arsh, None) => {
                self.two(a, b);
                self.asm.alu_imm(Alu::And, Reg::R1, 63);
                self.asm.alu(op, Reg::R0, Reg::R1);
            }
            (op, Some(Ok(small))) => {
                self.eval_strict(a);
                self.asm.alu_imm(op, Reg::R0, small);
            }
            (op, _) => {
                self.two(a, b);
                self.asm.alu(op, Reg::R0, Reg::R1);
            }
        }
    }

    /// Signed division. −1 goes its own way: the smallest integer divided by it would trap on
    /// processors whose kernel does not catch that.
    fn division(&mut self, op: Alu, a: &Expr, b: &Expr, constant: Option<i64>, at: Position) {
        self.two(a, b);
        if constant.is_some_and(|it| it != 0 && it != -1) {
            self.asm.alu_signed(op, Reg::R0, Reg::R1);
            return;
        }
        let zero = self.ends_with(Loss::DivisionByZero, at);
        let (minus_one, done) = (self.asm.label(), self.asm.label());
        self.asm.jump_if_imm(Cond::Eq, Reg::R1, 0, zero);
        self.asm.jump_if_imm(Cond::Eq, Reg::R1, -1, minus_one);
        self.asm.alu_signed(op, Reg::R0, Reg::R1);
        self.asm.jump(done);
        self.asm.place(minus_one);
        match op {
            Alu::Div => self.asm.alu_imm(Alu::Neg, Reg::R0, 0),
            _ => self.asm.mov_imm(Reg::R0, 0),
        }
        self.asm.place(done);
    }

    fn coalesce(&mut self, parts: &[Expr], missing: Label, each: &mut dyn FnMut(&mut Self, &Expr, Label)) {
        let done = self.asm.label();
        let Some((last, front)) = parts.split_last() else { return };
        for part in front {
            let next = self.asm.label();
            each(self, part, next);
            self.asm.jump(done);
            self.asm.place(next);
        }
        each(self, last, missing);
        self.asm.place(done);
    }

    fn if_value(
        &mut self,
        condition: &Expr,
        then: &Block,
        otherwise: &Block,
        missing: Label,
        each: &mut dyn FnMut(&mut Self, &Expr, Label),
    ) {
        let (otherwise_at, done) = (self.asm.label(), self.asm.label());
        self.branch(condition, false, otherwise_at);
        self.block_value(then, missing, each);
        self.asm.jump(done);
        self.asm.place(otherwise_at);
        self.block_value(otherwise, missing, each);
        self.asm.place(done);
    }

    fn block_value(&mut self, block: &Block, missing: Label, each: &mut dyn FnMut(&mut Self, &Expr, Label)) {
        let mark = self.mark();
        for stmt in &block.stmts {
            self.stmt(stmt);
        }
        match &block.value {
            Some(value) => each(self, value, missing),
            None => self.asm.jump(missing),
        }
        self.release(mark);
    }

    /// R0 = 1 or 0.
    fn truth(&mut self, expr: &Expr) {
        let (no, done) = (self.asm.label(), self.asm.label());
        self.branch(expr, false, no);
        self.asm.mov_imm(Reg::R0, 1);
        self.asm.jump(done);
        self.asm.place(no);
        self.asm.mov_imm(Reg::R0, 0);
        self.asm.place(done);
    }

    /// Goes to `to` when the condition is `when`, and on otherwise.
    pub(super) fn branch(&mut self, expr: &Expr, when: bool, to: Label) {
        match &expr.kind {
            Kind::Not(inner) => self.branch(inner, !when, to),
            Kind::And(parts) => self.branch_all(parts, true, when, to),
            Kind::Or(parts) => self.branch_all(parts, false, when, to),
            Kind::Compare(Cond::Eq, a, b) => {
                self.equality(a, b, when, to, &mut |this, a, b, unequal| this.unequal_words(a, b, unequal));
            }
            Kind::Same(a, b) => {
                self.equality(a, b, when, to, &mut |this, a, b, unequal| this.unequal_texts(a, b, unequal));
            }
            Kind::Compare(cond, a, b) => self.ordered(*cond, a, b, when, to),
            Kind::IsMissing(value) => {
                let missing = self.other(!when, to);
                self.discard(value, missing);
                self.finish_branch(missing, !when, to);
            }
            Kind::Contains(map, keys) => {
                let missing = self.other(when, to);
                self.find(*map, keys, missing);
                self.finish_branch(missing, when, to);
            }
            _ => {
                self.eval_strict(expr);
                self.asm.jump_if_imm(if when { Cond::Ne } else { Cond::Eq }, Reg::R0, 0, to);
            }
        }
    }

    /// Where the path goes that decides against the one that comes to [`Emitter::finish_branch`].
    fn other(&mut self, jump_here: bool, to: Label) -> Label {
        if jump_here { self.asm.label() } else { to }
    }

    /// The path that gets here goes to `to` when `jump_here`, else on; `other` does the opposite.
    fn finish_branch(&mut self, other: Label, jump_here: bool, to: Label) {
        if jump_here {
            self.asm.jump(to);
            self.asm.place(other);
        }
    }

    /// `&&` (with `all`) and `||` of parts.
    fn branch_all(&mut self, parts: &[Expr], all: bool, when: bool, to: Label) {
        if when != all {
            for part in parts {
                self.branch(part, when, to);
            }
            return;
        }
        let decided = self.asm.label();
        let Some((last, front)) = parts.split_last() else { return };
        for part in front {
            self.branch(part, !when, decided);
        }
        self.branch(last, when, to);
        self.asm.place(decided);
    }

    fn ordered(&mut self, cond: Cond, a: &Expr, b: &Expr, when: bool, to: Label) {
        let cond = if when { cond } else { inverse(cond) };
        match b.kind {
            Kind::Const(n) if i32::try_from(n).is_ok() => {
                self.eval_strict(a);
                self.asm.jump_if_imm(cond, Reg::R0, n as i32, to);
            }
            _ => {
                self.two(a, b);
                self.asm.jump_if(cond, Reg::R0, Reg::R1, to);
            }
        }
    }

    /// Equality of two values of which either may be missing: `()` equals only `()`.
    fn equality(
        &mut self,
        a: &Expr,
        b: &Expr,
        when: bool,
        to: Label,
        compare: &mut dyn FnMut(&mut Self, &Expr, &Expr, Label),
    ) {
        let unequal = self.other(when, to);
        if a.ty.optional && b.ty.optional {
            let (equal, a_missing, present) = (self.asm.label(), self.asm.label(), self.asm.label());
            self.discard(a, a_missing);
            self.discard(b, unequal);
            self.asm.jump(present);
            self.asm.place(a_missing);
            self.discard(b, equal);
            self.asm.jump(unequal);
            self.asm.place(present);
            compare(self, a, b, unequal);
            self.asm.place(equal);
        } else {
            compare(self, a, b, unequal);
        }
        self.finish_branch(unequal, when, to);
    }

    /// Computes a value only to see whether it is there.
    pub(super) fn discard(&mut self, expr: &Expr, missing: Label) {
        let mark = self.mark();
        match expr.ty.base {
            Base::Text(n) => {
                let slot = self.alloc(n as usize + 16);
                self.text(expr, slot, n, missing);
            }
            _ => self.eval(expr, missing),
        }
        self.release(mark);
    }

    fn unequal_words(&mut self, a: &Expr, b: &Expr, unequal: Label) {
        if let Kind::Const(n) = b.kind
            && let Ok(small) = i32::try_from(n)
        {
            self.eval(a, unequal);
            self.asm.jump_if_imm(Cond::Ne, Reg::R0, small, unequal);
            return;
        }
        let mark = self.mark();
        self.eval(a, unequal);
        let waiting = self.push();
        self.eval(b, unequal);
        self.pop(waiting, Reg::R1);
        self.release(mark);
        self.asm.jump_if(Cond::Ne, Reg::R0, Reg::R1, unequal);
    }

    fn unequal_texts(&mut self, a: &Expr, b: &Expr, unequal: Label) {
        match (a.ty.base, b.ty.base) {
            (Base::Text(n), Base::Text(m)) => self.unequal_slots(a, b, n.max(m), unequal),
            (Base::Text(n), _) => match &b.kind {
                Kind::Literal(text) => self.unequal_literal(a, n, text.as_bytes(), unequal),
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
        // The first word that holds the literal's end differs from every longer text.
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

    /// Stores a value as a map or a print holds it. A text may use 8 bytes behind its own.
    pub(super) fn store_value(&mut self, expr: &Expr, as_kind: Scalar, slot: i16, missing: Label) {
        match as_kind {
            Scalar::Text(n) => self.text(expr, slot, n, missing),
            _ => {
                self.eval(expr, missing);
                self.store(slot, Reg::R0);
            }
        }
    }

    /// Writes a text of `capacity` bytes, rounded up to words and NUL padded; up to 8 bytes
    /// behind it are scribbled on.
    pub(super) fn text(&mut self, expr: &Expr, slot: i16, capacity: u32, missing: Label) {
        let words = capacity.div_ceil(8) as usize;
        match &expr.kind {
            Kind::Literal(text) => {
                let text = cut(text, capacity as usize);
                for index in 0..words {
                    self.store_imm(slot + index as i16 * 8, word_of(text, index));
                }
            }
            Kind::Missing => self.asm.jump(missing),
            Kind::Local(local) if matches!(expr.ty.base, Base::Text(_)) => {
                self.local_text(*local, slot, capacity, missing);
            }
            Kind::Joined(inner) => {
                self.joined(missing);
                self.text(inner, slot, capacity, missing);
            }
            Kind::Read(map, keys) if matches!(expr.ty.base, Base::Text(_)) => {
                self.find(*map, keys, missing);
                let stored = expr.ty.base.scalar().size();
                for at in (0..(words * 8).min(stored) as i16).step_by(8) {
                    self.asm.ldx(Size::Dw, Reg::R1, Reg::R0, at);
                    self.store(slot + at, Reg::R1);
                }
                self.zero_from(slot, stored, words * 8);
            }
            Kind::Coalesce(parts) => {
                self.coalesce(parts, missing, &mut |this, part, to| this.text(part, slot, capacity, to));
            }
            Kind::If(condition, then, otherwise) => {
                self.if_value(condition, then, otherwise, missing, &mut |this, value, to| {
                    this.text(value, slot, capacity, to);
                });
            }
            Kind::Block(block) => {
                self.block_value(block, missing, &mut |this, value, to| this.text(value, slot, capacity, to));
            }
            Kind::UserText(address, n) => {
                self.zero(slot, words * 8);
                self.eval_strict(address);
                self.read_text(helper::PROBE_READ_USER_STR, (*n).min(capacity), slot, expr.at);
            }
            Kind::Source(source) if matches!(expr.ty.base, Base::Text(_)) => {
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

    /// The string at the address in R0, of at most `n` bytes, into zeroed memory.
    pub(super) fn read_text(&mut self, read: i32, n: u32, slot: i16, at: Position) {
        let on = self.asm.label();
        let cut = self.counts(Loss::TextCut, at, None, on);
        let unreadable = self.ends_with(Loss::UnreadableMemory, at);
        self.asm.mov(Reg::R3, Reg::R0);
        self.address(Reg::R1, slot);
        // One byte more than fits, and the NUL: a longer string is told from one that just fits.
        self.asm.mov_imm(Reg::R2, i64::from(n) + 2);
        self.asm.call(read);
        self.asm.jump_if_imm(Cond::Slt, Reg::R0, 0, unreadable);
        self.asm.jump_if_imm(Cond::Sgt, Reg::R0, n as i32 + 1, cut);
        self.asm.place(on);
        self.asm.st_imm(Size::B, Reg::FP, slot + n as i16, 0);
    }

    /// A name, which is known by its id, as text: only the tracer has the table.
    fn name_text(&mut self, expr: &Expr, slot: i16, capacity: u32, missing: Label) {
        if self.engine != Engine::Tracer {
            let label = self.build.staged.label(self.handler.file, expr.at);
            self.build.diagnostics.push(
                Diagnostic::error("name-as-text", "the text of this name is not known in the kernel", label)
                    .help("use it in a map of its own, where no text such as `comm` or `str()` stands in its place"),
            );
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

    /// Writes a map's key and returns where; the bucket's place, where there is one, is last.
    pub(super) fn key(&mut self, map: MapId, keys: &[Expr]) -> i16 {
        let def = self.build.shapes.def(map);
        let slot = self.alloc(def.stored_key_size().max(8) + 8);
        if def.stored_key_size() == 0 {
            self.asm.st_imm(Size::Dw, Reg::FP, slot, 0);
            return slot;
        }
        let mut at = slot;
        for (part, expr) in def.keys.iter().zip(keys) {
            if !part.optional {
                let missing = self.strict(expr.at);
                self.store_value(expr, part.kind, at, missing);
            } else {
                self.optional_part(expr, part.kind, at);
            }
            at += part.size() as i16;
        }
        slot
    }

    /// A flag word, then the value or zeros.
    pub(super) fn optional_part(&mut self, expr: &Expr, kind: Scalar, at: i16) {
        let (missing, done) = (self.asm.label(), self.asm.label());
        self.store_value(expr, kind, at + 8, missing);
        self.store_imm(at, 1);
        self.asm.jump(done);
        self.asm.place(missing);
        self.zero(at, 8 + kind.size());
        self.asm.place(done);
    }
}

fn inverse(cond: Cond) -> Cond {
    match cond {
        Cond::Sgt => Cond::Sle,
        Cond::Sge => Cond::Slt,
        Cond::Slt => Cond::Sge,
        Cond::Sle => Cond::Sgt,
        Cond::Eq => Cond::Ne,
        Cond::Ne => Cond::Eq,
        Cond::Gt => Cond::Le,
        Cond::Ge => Cond::Lt,
        Cond::Lt => Cond::Ge,
        Cond::Le => Cond::Gt,
        Cond::Set => Cond::Set,
    }
}

/// The 8 bytes of a text at a word, NUL padded, as the word that memory holds.
fn word_of(text: &[u8], index: usize) -> i64 {
    let mut bytes = [0; 8];
    let rest = text.get(index * 8..).unwrap_or(&[]);
    let n = rest.len().min(8);
    bytes[..n].copy_from_slice(&rest[..n]);
    i64::from_le_bytes(bytes)
}

/// A text's first bytes, whole characters only.
fn cut(text: &str, capacity: usize) -> &[u8] {
    let mut end = text.len().min(capacity);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}
