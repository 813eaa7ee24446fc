//! Values: words into R0, texts into stack slots, conditions into jumps.

use super::build::Engine;
use super::emit::Emitter;
use super::typed::{Base, Expr, ExprKind, Inlined, MapId, TypedBlock, ValueSource};
use rhai::Position;
use xputrace_bytecode::Label;
use xputrace_bytecode::insn::{Alu, Cond, Reg, Size, atomic};
use xputrace_model::context::word;
use xputrace_model::loss::Loss;
use xputrace_model::table::Scalar;

impl Emitter<'_, '_> {
    /// Sets R0 to a value that must be present.
    pub(super) fn eval_strict(&mut self, expr: &Expr) {
        let missing = self.strict(expr.at);
        self.eval(expr, missing);
    }

    /// Sets R0 to the value; jumps to `missing` if there is none. Clobbers R1 to R5.
    pub(super) fn eval(&mut self, expr: &Expr, missing: Label) {
        match &expr.kind {
            ExprKind::Const(n) => self.asm.mov_imm(Reg::R0, *n),
            ExprKind::Literal(text) => {
                let id = self.build.string(text);
                self.asm.mov_imm(Reg::R0, i64::from(id));
            }
            ExprKind::Missing => self.asm.jump(missing),
            ExprKind::Local(local) => self.eval_local(*local, missing),
            ExprKind::Source(source) => self.source(*source, expr.at, missing),
            ExprKind::Joined(inner) => {
                self.joined(missing);
                self.eval(inner, missing);
            }
            ExprKind::Read(map, keys) => {
                self.find(*map, keys, missing);
                self.asm.ldx(Size::Dw, Reg::R0, Reg::R0, 0);
            }
            ExprKind::Exchange(map, keys) => {
                self.find(*map, keys, missing);
                let bpf_map = self.table(*map);
                if self.has_copies(bpf_map) {
                    self.asm.ldx(Size::Dw, Reg::R0, Reg::R0, 0);
                } else {
                    self.asm.mov_imm(Reg::R1, 0);
                    self.asm.atomic(atomic::XCHG, Size::Dw, Reg::R0, 0, Reg::R1);
                    self.asm.mov(Reg::R0, Reg::R1);
                }
            }
            ExprKind::Neg(value) => {
                self.eval_strict(value);
                self.asm.alu_imm(Alu::Neg, Reg::R0, 0);
            }
            ExprKind::Binary(op, a, b) => self.binary(*op, a, b, expr.at),
            ExprKind::Coalesce(parts) => self.coalesce(parts, missing, &mut |this, part, to| this.eval(part, to)),
            ExprKind::If(condition, then, otherwise) => {
                self.if_value(condition, then, otherwise, missing, &mut |this, value, to| this.eval(value, to));
            }
            ExprKind::Block(block) => self.block_value(block, missing, &mut |this, value, to| this.eval(value, to)),
            ExprKind::Pick(larger, a, b) => {
                self.two(a, b);
                let done = self.asm.label();
                let keep = if *larger { Cond::Sge } else { Cond::Sle };
                self.asm.jump_if(keep, Reg::R0, Reg::R1, done);
                self.asm.mov(Reg::R0, Reg::R1);
                self.asm.place(done);
            }
            ExprKind::Abs(value) => {
                self.eval_strict(value);
                let done = self.asm.label();
                self.asm.jump_if_imm(Cond::Sge, Reg::R0, 0, done);
                self.asm.alu_imm(Alu::Neg, Reg::R0, 0);
                self.asm.place(done);
            }
            ExprKind::Contains(..)
            | ExprKind::Not(_)
            | ExprKind::Compare(..)
            | ExprKind::Same(..)
            | ExprKind::IsMissing(_)
            | ExprKind::Match(..)
            | ExprKind::And(_)
            | ExprKind::Or(_) => self.truth(expr),
            ExprKind::Inlined(call) => self.inlined(call, missing, &mut |this, value, to| this.eval(value, to)),
            // Texts are never evaluated as a word; see `Emitter::text`.
            ExprKind::UserText(..) | ExprKind::Hex(_) | ExprKind::Concat(_) => self.asm.mov_imm(Reg::R0, 0),
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

    /// Returns the stack slot of a local: a flag if it is optional, then the value.
    pub(super) fn local(&mut self, local: usize) -> i16 {
        if let Some(slot) = self.locals.get(&local) {
            return *slot;
        }
        let ty = self.checked.locals[local];
        let scribbled = if matches!(ty.base, Base::Text(_)) { 8 } else { 0 };
        let slot = self.alloc(ty.base.scalar().size() + scribbled + if ty.optional { 8 } else { 0 });
        self.locals.insert(local, slot);
        slot
    }

    /// Jumps to `missing` if the kernel's launch is unknown.
    pub(super) fn joined(&mut self, missing: Label) {
        self.load_word(Reg::R0, word::JOINED);
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, missing);
    }

    /// Sets R0 to the address of an element's value.
    pub(super) fn find(&mut self, map: MapId, keys: &[Expr], missing: Label) {
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
            ExprKind::Const(n) => self.asm.mov_imm(Reg::R1, n),
            ExprKind::Source(ValueSource::Word(n)) if self.engine != Engine::Linux => {
                self.load_word(Reg::R1, n);
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
            ExprKind::Const(n) => Some(n),
            _ => None,
        };
        match (op, constant.map(i32::try_from)) {
            (Alu::Div | Alu::Mod, _) => self.division(op, a, b, constant, at),
            (Alu::Lsh | Alu::Arsh, _) => match constant.map(u8::try_from) {
                Some(Ok(bits @ 0..64)) => {
                    self.eval_strict(a);
                    self.asm.alu_imm(op, Reg::R0, bits.into());
                }
                _ => self.shift(op, a, b),
            },
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

    /// Shifts by any number of bits, as Rhai does: by 64 and more, every bit is shifted out, and by a
    /// negative number the other way. The instruction itself takes 0 to 63.
    fn shift(&mut self, op: Alu, a: &Expr, b: &Expr) {
        let back = if op == Alu::Lsh { Alu::Arsh } else { Alu::Lsh };
        self.two(a, b);
        let (few, far, far_back, done) = (self.asm.label(), self.asm.label(), self.asm.label(), self.asm.label());
        self.asm.jump_if_imm(Cond::Le, Reg::R1, 63, few);
        self.asm.jump_if_imm(Cond::Sgt, Reg::R1, 63, far);
        self.asm.alu_imm(Alu::Neg, Reg::R1, 0);
        // Unsigned: the smallest integer is its own negative.
        self.asm.jump_if_imm(Cond::Gt, Reg::R1, 63, far_back);
        self.asm.alu(back, Reg::R0, Reg::R1);
        self.asm.jump(done);
        self.asm.place(far_back);
        self.shift_out(back);
        self.asm.jump(done);
        self.asm.place(far);
        self.shift_out(op);
        self.asm.jump(done);
        self.asm.place(few);
        self.asm.alu(op, Reg::R0, Reg::R1);
        self.asm.place(done);
    }

    /// Shifts every bit of R0 out: 0 remains, or −1 of a negative number shifted right.
    fn shift_out(&mut self, op: Alu) {
        match op {
            Alu::Lsh => self.asm.mov_imm(Reg::R0, 0),
            _ => self.asm.alu_imm(op, Reg::R0, 63),
        }
    }

    /// Signed division. −1 is handled separately: dividing the smallest integer by it traps on
    /// processors whose Linux does not catch that.
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

    pub(super) fn coalesce(&mut self, parts: &[Expr], missing: Label, each: &mut dyn FnMut(&mut Self, &Expr, Label)) {
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

    pub(super) fn if_value(
        &mut self,
        condition: &Expr,
        then: &TypedBlock,
        otherwise: &TypedBlock,
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

    pub(super) fn block_value(
        &mut self,
        block: &TypedBlock,
        missing: Label,
        each: &mut dyn FnMut(&mut Self, &Expr, Label),
    ) {
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

    /// Emits an inlined function's body; `each` takes its value.
    pub(super) fn inlined(&mut self, call: &Inlined, missing: Label, each: &mut dyn FnMut(&mut Self, &Expr, Label)) {
        let mark = self.mark();
        for (local, value) in &call.arguments {
            let slot = self.local(*local);
            self.set_local(*local, slot, value);
        }
        let caller = std::mem::replace(&mut self.file, call.file);
        match call.result {
            None => self.block_value(&call.body, missing, each),
            Some(result) => {
                // Every return leaves its value here, wherever it is in the body.
                self.local(result);
                let out = self.asm.label();
                self.leaving.push(out);
                self.block(&call.body);
                self.leaving.pop();
                self.asm.place(out);
                let value = Expr { kind: ExprKind::Local(result), ty: self.checked.locals[result], at: Position::NONE };
                each(self, &value, missing);
            }
        }
        self.file = caller;
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

    /// Jumps to `to` if the condition equals `when`, else falls through.
    pub(super) fn branch(&mut self, expr: &Expr, when: bool, to: Label) {
        match &expr.kind {
            ExprKind::Not(inner) => self.branch(inner, !when, to),
            ExprKind::And(parts) => self.branch_all(parts, true, when, to),
            ExprKind::Or(parts) => self.branch_all(parts, false, when, to),
            ExprKind::Compare(Cond::Eq, a, b) => {
                self.equality(a, b, when, to, &mut |this, a, b, unequal| this.unequal_words(a, b, unequal));
            }
            ExprKind::Same(a, b) => {
                self.equality(a, b, when, to, &mut |this, a, b, unequal| this.unequal_texts(a, b, unequal));
            }
            ExprKind::Compare(cond, a, b) => self.ordered(*cond, a, b, when, to),
            ExprKind::IsMissing(value) => {
                let missing = self.other(!when, to);
                self.discard(value, missing);
                self.finish_branch(missing, !when, to);
            }
            ExprKind::Match(place, string, wanted) => {
                let unmatched = self.other(when, to);
                self.matched(*place, string, wanted, unmatched);
                self.finish_branch(unmatched, when, to);
            }
            ExprKind::Contains(map, keys) => {
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

    /// Returns the target of the path opposite to the one that reaches [`Emitter::finish_branch`].
    fn other(&mut self, jump_here: bool, to: Label) -> Label {
        if jump_here { self.asm.label() } else { to }
    }

    /// Sends the path that gets here to `to` if `jump_here`, else falls through; `other` does the
    /// opposite.
    fn finish_branch(&mut self, other: Label, jump_here: bool, to: Label) {
        if jump_here {
            self.asm.jump(to);
            self.asm.place(other);
        }
    }

    /// Emits `&&` (if `all`) or `||` of the parts.
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
            ExprKind::Const(n) if i32::try_from(n).is_ok() => {
                self.eval_strict(a);
                self.asm.jump_if_imm(cond, Reg::R0, n as i32, to);
            }
            _ => {
                self.two(a, b);
                self.asm.jump_if(cond, Reg::R0, Reg::R1, to);
            }
        }
    }

    /// Compares two values that may be missing: `()` equals only `()`.
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

    /// Evaluates a value only to see whether it is present.
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

    pub(super) fn unequal_words(&mut self, a: &Expr, b: &Expr, unequal: Label) {
        if let ExprKind::Const(n) = b.kind
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

    /// Stores a value in the form that maps and prints hold. A text may overwrite the 8 bytes after
    /// its own.
    pub(super) fn store_value(&mut self, expr: &Expr, as_kind: Scalar, slot: i16, missing: Label) {
        match as_kind {
            Scalar::Text(n) => self.text(expr, slot, n, missing),
            _ => {
                self.eval(expr, missing);
                self.store(slot, Reg::R0);
            }
        }
    }

    /// Writes a map's key and returns its slot; a bucket's word, if any, comes last.
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

    /// Writes a flag word, then the value or zeros.
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
