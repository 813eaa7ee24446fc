//! Statements.

use super::build::Engine;
use super::emit::{Emitter, SCRATCH};
use super::probe_ctx::MARKER_SLOT;
use super::typed::{Base, Expr, ExprKind, LocalId, MapId, PrintPart, Printed, Stmt, StmtKind, TypedBlock};
use rhai::Position;
use xputrace_bytecode::insn::{Alu, Cond, Reg, Size, atomic};
use xputrace_bytecode::probe::TaskId;
use xputrace_bytecode::{BpfMapId, Home, Label, helper};
use xputrace_model::context::word;
use xputrace_model::diagnostic::Diagnostic;
use xputrace_model::loss::Loss;
use xputrace_model::plan::{Arg, Form, MapAction, Piece, Print, TAG_SLOTS, record};
use xputrace_model::table::Scalar;

/// Maximum size of a print record; larger ones do not fit on the stack with the rest.
const MAX_RECORD_BYTES: usize = 440;

impl Emitter<'_, '_> {
    pub(super) fn block(&mut self, block: &TypedBlock) {
        let mark = self.mark();
        for stmt in &block.stmts {
            self.stmt(stmt);
        }
        if let Some(value) = &block.value {
            let on = self.asm.label();
            self.discard(value, on);
            self.asm.place(on);
        }
        self.release(mark);
    }

    pub(super) fn stmt(&mut self, stmt: &Stmt) {
        self.line(stmt.at);
        if let StmtKind::Set(local, value) = &stmt.kind {
            let slot = self.local(*local);
            let mark = self.mark();
            self.set_local(*local, slot, value);
            self.release(mark);
            return;
        }
        let mark = self.mark();
        match &stmt.kind {
            StmtKind::Set(..) => {}
            StmtKind::Store(map, keys, value) => self.store_element(*map, keys, value, stmt.at),
            StmtKind::Change(map, keys, op, value) => self.change_element(*map, keys, *op, value, stmt.at),
            StmtKind::Remove(map, keys) => self.remove_element(*map, keys),
            StmtKind::Aggregate(map, keys, value) => self.aggregate(*map, keys, value.as_ref(), stmt.at),
            StmtKind::Print(printed) => self.print(printed, stmt.at),
            StmtKind::Map(map, action) => self.act_on_map(*map, *action, stmt.at),
            StmtKind::Exit(code) => self.exit_run(code.as_ref(), stmt.at),
            StmtKind::Switch(probe, on) => self.switch(*probe, *on, stmt.at),
            StmtKind::Tag(value) => self.tag(value),
            StmtKind::If(condition, then, otherwise) => self.if_stmt(condition, then, otherwise),
            StmtKind::Block(block) => self.block(block),
            StmtKind::Loop(iterations) => self.unrolled(iterations),
            StmtKind::Break => {
                if let Some((out, _)) = self.loops.last().copied() {
                    self.asm.jump(out);
                }
            }
            StmtKind::Continue => {
                if let Some((_, next)) = self.loops.last().copied() {
                    self.asm.jump(next);
                }
            }
            StmtKind::Return => self.asm.jump(self.end),
            StmtKind::Leave => {
                let out = self.leaving.last().copied().unwrap_or(self.end);
                self.asm.jump(out);
            }
            StmtKind::Eval(value) => {
                let on = self.asm.label();
                self.discard(value, on);
                self.asm.place(on);
            }
        }
        self.release(mark);
    }

    pub(super) fn set_local(&mut self, local: usize, slot: i16, value: &Expr) {
        let ty = self.checked.locals[local];
        let kind = ty.base.scalar();
        if let (Base::Text(n), true) = (ty.base, overwrites(value, local)) {
            return self.set_text_of_itself(local, slot, n, value);
        }
        match (ty.optional, kind) {
            (false, Scalar::Text(_)) => {
                let missing = self.strict(value.at);
                self.store_value(value, kind, slot, missing);
            }
            (false, _) => {
                self.eval_strict(value);
                self.store_local(slot);
            }
            (true, _) => self.optional_part(value, kind, slot),
        }
    }

    /// Stores R0 in a variable. On Linux it does so in two halves, which makes the verifier forget
    /// the number's value. Otherwise it would follow `if a { n += 1 } if b { n += 1 } …` once for
    /// every value that `n` can have, and give up.
    fn store_local(&mut self, slot: i16) {
        if self.engine != Engine::Linux {
            return self.store(slot, Reg::R0);
        }
        self.asm.stx(Size::W, Reg::FP, slot, Reg::R0);
        self.asm.alu_imm(Alu::Rsh, Reg::R0, 32);
        self.asm.stx(Size::W, Reg::FP, slot + 4, Reg::R0);
    }

    /// Emits `s += "x"`: concatenates elsewhere, then copies.
    fn set_text_of_itself(&mut self, local: usize, slot: i16, capacity: u32, value: &Expr) {
        let optional = self.checked.locals[local].optional;
        let flag = if optional { 8 } else { 0 };
        let (missing, done) = (self.asm.label(), self.asm.label());
        let to = if optional { missing } else { self.strict(value.at) };
        let text = self.alloc(capacity as usize + 16);
        self.text(value, text, capacity, to);
        for word in (0..capacity.next_multiple_of(8) as i16).step_by(8) {
            self.load(Reg::R0, text + word);
            self.store(slot + flag + word, Reg::R0);
        }
        if optional {
            self.store_imm(slot, 1);
            self.asm.jump(done);
            self.asm.place(missing);
            self.zero(slot, 8 + capacity.next_multiple_of(8) as usize);
        }
        self.asm.place(done);
    }

    fn if_stmt(&mut self, condition: &Expr, then: &TypedBlock, otherwise: &TypedBlock) {
        let (otherwise_at, done) = (self.asm.label(), self.asm.label());
        self.branch(condition, false, otherwise_at);
        self.block(then);
        if !otherwise.stmts.is_empty() || otherwise.value.is_some() {
            self.asm.jump(done);
            self.asm.place(otherwise_at);
            self.block(otherwise);
        } else {
            self.asm.place(otherwise_at);
        }
        self.asm.place(done);
    }

    fn unrolled(&mut self, iterations: &[TypedBlock]) {
        let out = self.asm.label();
        for block in iterations {
            let next = self.asm.label();
            self.loops.push((out, next));
            self.block(block);
            self.loops.pop();
            self.asm.place(next);
        }
        self.asm.place(out);
    }

    /// Emits `@m[key] = value`; assigning `()` removes the element.
    fn store_element(&mut self, map: MapId, keys: &[Expr], value: &Expr, at: Position) {
        let kind = self.build.shapes.value(map).base.scalar();
        let done = self.asm.label();
        let slot = self.alloc(kind.size() + 8);
        let remove = self.asm.label();
        self.store_value(value, kind, slot, remove);
        let refusals = self.refusals(map, at, done);
        let key = self.key(map, keys);
        let bpf_map = self.table(map);
        if self.counts_stored(map) {
            // It was new, or present, or new because of an eviction in between: the count tells
            // which.
            self.update(bpf_map, key, slot, helper::UPDATE_NOEXIST);
            self.count_stored(map, 1);
            self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
            self.update(bpf_map, key, slot, helper::UPDATE_EXIST);
            self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
            self.update(bpf_map, key, slot, helper::UPDATE_NOEXIST);
            self.count_stored(map, 1);
        } else {
            self.update(bpf_map, key, slot, helper::UPDATE_ANY);
        }
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
        self.refused(&refusals);
        self.asm.place(remove);
        if value.ty.optional {
            self.remove_element(map, keys);
        }
        self.asm.place(done);
    }

    fn remove_element(&mut self, map: MapId, keys: &[Expr]) {
        let key = self.key(map, keys);
        let bpf_map = self.table(map);
        self.asm.ld_map(Reg::R1, bpf_map);
        self.address(Reg::R2, key);
        self.asm.call(helper::MAP_DELETE_ELEM);
        self.count_stored(map, -1);
    }

    /// Emits `@m[key] += value` and the like: atomic, and from 0 if there is no element.
    fn change_element(&mut self, map: MapId, keys: &[Expr], op: Alu, value: &Expr, at: Position) {
        let slot = self.alloc(8);
        self.eval_strict(value);
        if op == Alu::Sub {
            self.asm.alu_imm(Alu::Neg, Reg::R0, 0);
        }
        self.store(slot, Reg::R0);
        if self.build.shapes.is_summed(map) {
            return self.aggregate_stored(map, keys, slot, at);
        }
        let key = self.key(map, keys);
        let bpf_map = self.table(map);
        let (hit, done) = (self.asm.label(), self.asm.label());
        let refusals = self.refusals(map, at, done);
        if self.has_copies(bpf_map) {
            self.change_in_linux(bpf_map, key, slot, op);
            self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
            self.refused(&refusals);
            self.asm.place(done);
            return;
        }
        self.lookup(bpf_map, key);
        self.asm.jump_if_imm(Cond::Ne, Reg::R0, 0, hit);
        let first = match op {
            Alu::And => {
                let zero = self.alloc(8);
                self.zero(zero, 8);
                zero
            }
            _ => slot,
        };
        self.update(bpf_map, key, first, helper::UPDATE_NOEXIST);
        self.count_stored(map, 1);
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
        self.store(SCRATCH, Reg::R0);
        self.lookup(bpf_map, key);
        self.asm.jump_if_imm(Cond::Ne, Reg::R0, 0, hit);
        self.load(Reg::R0, SCRATCH);
        self.refused(&refusals);
        self.asm.place(hit);
        self.load(Reg::R1, slot);
        self.asm.atomic(atomic_op(op), Size::Dw, Reg::R0, 0, Reg::R1);
        self.asm.place(done);
    }

    /// Whether a handler finds copies of a map's elements: the tracer does of those in Linux, which probes may change meanwhile.
    pub(super) fn has_copies(&self, bpf_map: BpfMapId) -> bool {
        self.engine == Engine::Tracer && self.build.plan.image.maps[bpf_map].home == Home::Linux
    }

    /// Changes the element, of which there is only a copy here, in one call; sets R0 to 0 or a negative error.
    fn change_in_linux(&mut self, bpf_map: BpfMapId, key: i16, operand: i16, op: Alu) {
        self.asm.ld_map(Reg::R1, bpf_map);
        self.address(Reg::R2, key);
        self.load(Reg::R3, operand);
        self.asm.mov_imm(Reg::R4, atomic_op(op).into());
        self.asm.call(helper::MAP_MODIFY);
    }

    fn print(&mut self, printed: &Printed, at: Position) {
        let mut record = PrintRecord { size: 8, values: Vec::new() };
        let form = match printed {
            Printed::Line(parts) => Form::Line(parts.iter().map(|it| record.piece_of_line(it)).collect()),
            Printed::Object(members) => {
                Form::Object(members.iter().map(|(name, it)| (name.clone(), record.piece(it))).collect())
            }
        };
        let PrintRecord { size, values } = record;
        if size > MAX_RECORD_BYTES {
            let label = self.build.staged.label(self.file, at);
            self.build.diagnostics.push(
                Diagnostic::error(
                    "print-too-large",
                    format!("this line has {size} bytes of values; the limit is {MAX_RECORD_BYTES}"),
                    label,
                )
                .help("print shorter strings, `str(ptr, 32)`, or several lines"),
            );
            return;
        }
        let index = self.build.plan.prints.len();
        self.build.plan.prints.push(Print { form, size });
        let buffer = self.alloc(size + 8);
        self.asm.st_imm(Size::W, Reg::FP, buffer, record::PRINT as i32);
        self.asm.st_imm(Size::W, Reg::FP, buffer + 4, index as i32);
        for (expr, kind, offset) in values {
            let slot = buffer + offset as i16;
            if expr.ty.optional {
                self.optional_part(expr, kind, slot);
            } else {
                let missing = self.strict(expr.at);
                self.store_value(expr, kind, slot, missing);
            }
        }
        self.output(buffer, size, at);
    }

    /// Emits `print(@m)` or `@m.clear()`: a record that the tracer acts on, in order with what is printed.
    fn act_on_map(&mut self, map: MapId, action: MapAction, at: Position) {
        let what = match action {
            MapAction::Clear => record::CLEAR,
            MapAction::Print { top: None } => record::WHOLE,
            MapAction::Print { top: Some(n) } => n as u64,
        };
        let buffer = self.alloc(record::MAP_BYTES);
        self.asm.st_imm(Size::W, Reg::FP, buffer, record::MAP as i32);
        self.asm.st_imm(Size::W, Reg::FP, buffer + 4, map as i32);
        self.store_imm(buffer + 8, what as i64);
        self.output(buffer, record::MAP_BYTES, at);
    }

    fn exit_run(&mut self, code: Option<&Expr>, at: Position) {
        let buffer = self.alloc(16);
        match code {
            Some(code) => {
                self.eval_strict(code);
                self.store(buffer + 8, Reg::R0);
            }
            None => self.zero(buffer + 8, 8),
        }
        self.asm.st_imm(Size::W, Reg::FP, buffer, record::EXIT as i32);
        self.asm.st_imm(Size::W, Reg::FP, buffer + 4, 0);
        // If the record did not fit, the run goes on.
        let full = self.submit(buffer, 16, at);
        self.announce_exit();
        self.asm.place(full);
        self.asm.jump(self.end);
    }

    /// Emits `probe.enable()` or `probe.disable()`: a record for the tracer. In Linux, also the word that Linux's
    /// handlers test, so that they follow at once; only a change is a record, unless handlers elsewhere may have changed
    /// what the word does not tell yet.
    fn switch(&mut self, probe: u32, on: bool, at: Position) {
        let Some(switch) = self.build.plan.switch_of(probe) else { return };
        let buffer = self.alloc(record::SWITCH_BYTES);
        self.asm.call(helper::KTIME_GET_NS);
        self.store(buffer + 16, Reg::R0);
        self.asm.st_imm(Size::W, Reg::FP, buffer, record::SWITCH as i32);
        self.asm.st_imm(Size::W, Reg::FP, buffer + 4, switch.0 as i32);
        self.store_imm(buffer + 8, on.into());
        if self.engine != Engine::Linux {
            return self.output(buffer, record::SWITCH_BYTES, at);
        }
        let done = self.asm.label();
        self.find_switch(switch, done);
        self.asm.ldx(Size::Dw, Reg::R1, Reg::R0, 0);
        let is_turned_elsewhere = self.build.plan.switches.get(switch.index()).is_some_and(|it| it.is_turned_elsewhere);
        let was = self.alloc(8);
        self.store(was, Reg::R1);
        if !is_turned_elsewhere {
            self.asm.jump_if_imm(Cond::Eq, Reg::R1, (!on).into(), done);
        }
        self.asm.st_imm(Size::Dw, Reg::R0, 0, (!on).into());
        let full = self.submit(buffer, record::SWITCH_BYTES, at);
        self.asm.jump(done);
        // The tracer will not hear of it, so it has not happened.
        self.asm.place(full);
        self.find_switch(switch, done);
        self.load(Reg::R1, was);
        self.asm.stx(Size::Dw, Reg::R0, 0, Reg::R1);
        self.asm.place(done);
    }

    /// Submits a record to the engine's ring buffer.
    fn output(&mut self, buffer: i16, size: usize, at: Position) {
        let full = self.submit(buffer, size, at);
        self.asm.place(full);
    }

    /// Submits a record; returns the label where the program goes on if it did not fit.
    fn submit(&mut self, buffer: i16, size: usize, at: Position) -> Label {
        let on = self.asm.label();
        let loss = if self.engine == Engine::Gpu { Loss::DeviceRingFull } else { Loss::LinuxRingFull };
        let full = self.counts(loss, at, None, on);
        // The tracer asks when the event ended, for what the record switches.
        self.reads.add(word::LAUNCH_END);
        let ring = self.build.ring_map(self.engine);
        self.asm.ld_map(Reg::R1, ring);
        self.address(Reg::R2, buffer);
        self.asm.mov_imm(Reg::R3, size as i64);
        self.asm.mov_imm(Reg::R4, 0);
        self.asm.call(helper::RINGBUF_OUTPUT);
        self.asm.jump_if_imm(Cond::Ne, Reg::R0, 0, full);
        on
    }

    /// Emits `l.tag = value` at the marker: writes to the launching process's array, at the slot
    /// that the collector passed.
    fn tag(&mut self, value: &Expr) {
        debug_assert!(self.engine == Engine::Linux, "handlers that set tags are placed in Linux");
        let (tag, index, done) = (self.alloc(16), self.alloc(8), self.asm.label());
        self.optional_part(value, Scalar::Int, tag);
        let tags = self.build.tags_map();
        self.asm.ldx(Size::Dw, Reg::R0, Reg::R6, MARKER_SLOT);
        self.asm.jump_if_imm(Cond::Ge, Reg::R0, TAG_SLOTS as i32, done);
        self.asm.stx(Size::W, Reg::FP, index, Reg::R0);
        self.task_id(TaskId::Process);
        self.asm.stx(Size::W, Reg::FP, SCRATCH, Reg::R0);
        self.lookup(tags, SCRATCH);
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
        self.asm.mov(Reg::R1, Reg::R0);
        self.address(Reg::R2, index);
        self.asm.call(helper::MAP_LOOKUP_ELEM);
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
        self.load(Reg::R1, tag + 8);
        self.asm.stx(Size::Dw, Reg::R0, 8, Reg::R1);
        self.load(Reg::R1, tag);
        self.asm.stx(Size::Dw, Reg::R0, 0, Reg::R1);
        self.asm.place(done);
    }
}

/// The record of a print under construction.
struct PrintRecord<'e> {
    size: usize,
    /// What to store, as what, and where.
    values: Vec<(&'e Expr, Scalar, usize)>,
}

impl<'e> PrintRecord<'e> {
    /// Makes room for the value of a part of a line; what is known to be missing needs none.
    fn piece_of_line(&mut self, part: &'e PrintPart) -> Piece {
        match part {
            PrintPart::Value { expr, .. } if matches!(expr.kind, ExprKind::Missing) => Piece::Text("-".into()),
            part => self.piece(part),
        }
    }

    /// Makes room for a part's value.
    fn piece(&mut self, part: &'e PrintPart) -> Piece {
        let (expr, style) = match part {
            PrintPart::Text(text) => return Piece::Text(text.clone()),
            PrintPart::Value { expr, style } => (expr, *style),
        };
        let kind = match expr.ty.base {
            Base::Unknown => Scalar::Int,
            base => base.scalar(),
        };
        let present_at = expr.ty.optional.then_some(self.size);
        let at = self.size + if expr.ty.optional { 8 } else { 0 };
        self.values.push((expr, kind, self.size));
        self.size = at + kind.size();
        Piece::Arg(Arg { at, kind, present_at, style, unit: expr.ty.unit })
    }
}

fn atomic_op(op: Alu) -> i32 {
    match op {
        Alu::And => atomic::AND,
        Alu::Or => atomic::OR,
        Alu::Xor => atomic::XOR,
        _ => atomic::ADD,
    }
}

/// Whether writing `value`'s text over a local would destroy its own source.
fn overwrites(value: &Expr, local: LocalId) -> bool {
    let in_block = |block: &TypedBlock| block.value.as_ref().is_some_and(|it| overwrites(it, local));
    match &value.kind {
        ExprKind::Concat(parts) => parts.iter().any(|it| may_read(it, local)),
        ExprKind::Coalesce(parts) => parts.iter().any(|it| overwrites(it, local)),
        ExprKind::Joined(inner) => overwrites(inner, local),
        ExprKind::If(_, then, otherwise) => in_block(then) || in_block(otherwise),
        ExprKind::Block(block) => in_block(block),
        ExprKind::Inlined(call) => in_block(&call.body),
        _ => false,
    }
}

fn may_read(part: &Expr, local: LocalId) -> bool {
    match part.kind {
        ExprKind::Local(other) => other == local,
        _ => !part.is_simple(),
    }
}
