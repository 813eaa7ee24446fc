//! Aggregations: find or create this engine's part of an element, then update it atomically.

use super::build::Engine;
use super::emit::{Emitter, SCRATCH};
use super::typed::{Expr, MapId};
use rhai::Position;
use xputrace_bytecode::insn::{Alu, Cond, Reg, Size, atomic};
use xputrace_bytecode::{BpfMapId, Label, helper};
use xputrace_model::bucket::{self, QUANTILE_BITS};
use xputrace_model::loss::Loss;
use xputrace_model::table::TableKind;

/// Attempts of a compare-and-swap before it is abandoned and counted.
const CAS_TRIES: usize = 8;

impl Emitter<'_, '_> {
    /// Emits `@m[key].sum(value)` and the other aggregations.
    pub(super) fn aggregate(&mut self, map: MapId, keys: &[Expr], value: Option<&Expr>, at: Position) {
        let slot = self.alloc(8);
        match value {
            Some(value) => {
                self.eval_strict(value);
                self.store(slot, Reg::R0);
            }
            None => self.store_imm(slot, 1),
        }
        self.aggregate_stored(map, keys, slot, at);
    }

    /// Aggregates the value in `slot`.
    pub(super) fn aggregate_stored(&mut self, map: MapId, keys: &[Expr], slot: i16, at: Position) {
        let def = self.build.shapes.def(map);
        let key = self.key(map, keys);
        if def.kind.is_bucketed() {
            self.load(Reg::R1, slot);
            self.bucket(def.kind);
            self.store(key + def.key_size() as i16, Reg::R0);
            self.store_imm(slot, 1);
        }
        let done = self.asm.label();
        self.element(map, key, def.kind.value_size(), at, done);
        self.apply(def.kind, slot, at, done);
        self.asm.place(done);
    }

    /// Sets R0 to the element's address; goes to `done`, counted, if it cannot be created.
    fn element(&mut self, map: MapId, key: i16, value_size: usize, at: Position, done: Label) {
        let refusals = self.refusals(map, at, done);
        let (hit, refused) = (self.asm.label(), self.asm.label());
        let outer = self.table(map);
        let generations = self.engine == Engine::Linux && self.build.has_generations(map);
        let inner = generations.then(|| self.alloc(8));
        if let Some(inner) = inner {
            self.asm.st_imm(Size::W, Reg::FP, SCRATCH, 0);
            self.lookup(outer, SCRATCH);
            self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, refused);
            self.store(inner, Reg::R0);
        }
        self.lookup_in(outer, inner, key);
        self.asm.jump_if_imm(Cond::Ne, Reg::R0, 0, hit);
        if self.build.is_single(map) {
            // An array's element always exists.
            self.asm.place(refused);
            self.refused(&refusals);
            self.asm.place(hit);
            return;
        }
        let zero = self.alloc(value_size);
        self.zero(zero, value_size);
        self.map_into_r1(outer, inner);
        self.address(Reg::R2, key);
        self.address(Reg::R3, zero);
        self.asm.mov_imm(Reg::R4, i64::from(helper::UPDATE_NOEXIST));
        self.asm.call(helper::MAP_UPDATE_ELEM);
        self.count_stored(map, 1);
        self.store(SCRATCH, Reg::R0);
        self.lookup_in(outer, inner, key);
        self.asm.jump_if_imm(Cond::Ne, Reg::R0, 0, hit);
        self.load(Reg::R0, SCRATCH);
        self.asm.place(refused);
        self.refused(&refusals);
        self.asm.place(hit);
    }

    fn lookup_in(&mut self, outer: BpfMapId, inner: Option<i16>, key: i16) {
        self.map_into_r1(outer, inner);
        self.address(Reg::R2, key);
        self.asm.call(helper::MAP_LOOKUP_ELEM);
    }

    fn map_into_r1(&mut self, outer: BpfMapId, inner: Option<i16>) {
        match inner {
            Some(inner) => self.load(Reg::R1, inner),
            None => self.asm.ld_map(Reg::R1, outer),
        }
    }

    /// Updates the value at R0 with the one in `slot`.
    fn apply(&mut self, kind: TableKind, slot: i16, at: Position, done: Label) {
        self.load(Reg::R1, slot);
        match kind {
            TableKind::Min => self.extreme(false, 0, slot, at, done),
            TableKind::Max => self.extreme(true, 0, slot, at, done),
            TableKind::Avg => self.count_and_total(),
            TableKind::Stats => {
                self.count_and_total();
                // Counting a failure clobbers all registers, so the address waits on the stack.
                let (address, next) = (self.alloc(8), self.asm.label());
                self.store(address, Reg::R0);
                self.extreme(false, 24, slot, at, next);
                self.asm.place(next);
                self.load(Reg::R0, address);
                self.extreme(true, 32, slot, at, done);
            }
            _ => self.asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1),
        }
    }

    /// Adds the value in R1 to the total in two halves, so that it cannot overflow.
    fn count_and_total(&mut self) {
        self.asm.mov_imm(Reg::R2, 1);
        self.asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R2);
        self.asm.alu32(Alu::Mov, Reg::R2, Reg::R1);
        self.asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 8, Reg::R2);
        self.asm.alu_imm(Alu::Arsh, Reg::R1, 32);
        self.asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 16, Reg::R1);
    }

    /// Raises a coded minimum or maximum at R0: coded, either is the largest of its values without a sign.
    fn raise(&mut self, larger: bool, offset: i16, slot: i16) {
        self.asm.mov(Reg::R1, Reg::R0);
        self.asm.alu_imm(Alu::Add, Reg::R1, offset.into());
        self.load(Reg::R2, slot);
        self.asm.mov_imm(Reg::R3, if larger { i64::MIN } else { i64::MAX });
        self.asm.alu(Alu::Xor, Reg::R2, Reg::R3);
        self.asm.call(helper::RAISE);
    }

    /// Updates a coded minimum or maximum at R0 by a bounded compare-and-swap. R5 holds its
    /// address, R0 its old content, R1 the value, R2 the code, R3 the coded value, R4 the decoded
    /// old content.
    fn extreme(&mut self, larger: bool, offset: i16, slot: i16, at: Position, done: Label) {
        if self.engine == Engine::Gpu {
            return self.raise(larger, offset, slot);
        }
        let base = Reg::R5;
        self.asm.mov(base, Reg::R0);
        let failed = self.counts(Loss::CasFailed, at, None, done);
        let (identity, keeps) = if larger { (i64::MIN, Cond::Sge) } else { (i64::MAX, Cond::Sle) };
        self.load(Reg::R1, slot);
        self.asm.mov_imm(Reg::R2, identity);
        self.asm.mov(Reg::R3, Reg::R1);
        self.asm.alu(Alu::Xor, Reg::R3, Reg::R2);
        self.asm.ldx(Size::Dw, Reg::R0, base, offset);
        for _ in 0..CAS_TRIES {
            self.asm.mov(Reg::R4, Reg::R0);
            self.asm.alu(Alu::Xor, Reg::R4, Reg::R2);
            self.asm.jump_if(keeps, Reg::R4, Reg::R1, done);
            // R0 becomes the old content whether or not it was swapped; R4 keeps the guess.
            self.asm.mov(Reg::R4, Reg::R0);
            self.asm.atomic(atomic::CMPXCHG, Size::Dw, base, offset, Reg::R3);
            self.asm.jump_if(Cond::Eq, Reg::R0, Reg::R4, done);
        }
        self.asm.jump(failed);
    }

    /// Sets R0 to the bucket of the value in R1.
    fn bucket(&mut self, kind: TableKind) {
        match kind {
            TableKind::Lhist { min, max, step } => self.linear_bucket(min, max, step),
            TableKind::Hist { bits } => self.log_bucket(bits),
            _ => self.signed_bucket(QUANTILE_BITS),
        }
    }

    /// Computes [`xputrace_model::bucket::signed_index`]: R4 is all ones for a negative value.
    fn signed_bucket(&mut self, bits: u32) {
        self.asm.mov(Reg::R4, Reg::R1);
        self.asm.alu_imm(Alu::Arsh, Reg::R4, 63);
        self.asm.alu(Alu::Xor, Reg::R1, Reg::R4);
        let done = self.asm.label();
        self.bucket_from_zero(bits, done);
        self.asm.place(done);
        self.asm.alu(Alu::Xor, Reg::R0, Reg::R4);
    }

    /// Computes [`xputrace_model::bucket::index`].
    fn log_bucket(&mut self, bits: u32) {
        let (negative, done) = (self.asm.label(), self.asm.label());
        self.asm.jump_if_imm(Cond::Slt, Reg::R1, 0, negative);
        self.bucket_from_zero(bits, done);
        self.asm.jump(done);
        self.asm.place(negative);
        self.asm.mov_imm(Reg::R0, -1);
        self.asm.place(done);
    }

    /// Computes the bucket of a value that is not negative. It finds the exponent without branches, so that
    /// the verifier has a single path: each step shifts by half as much if that leaves a bit.
    fn bucket_from_zero(&mut self, bits: u32, done: Label) {
        self.asm.mov(Reg::R0, Reg::R1);
        self.asm.jump_if_imm(Cond::Slt, Reg::R1, 1 << bits, done);
        self.asm.mov(Reg::R2, Reg::R1);
        self.asm.mov_imm(Reg::R0, 0);
        for step in (0..6).rev() {
            // R3 = 1 << step if R2 needs more than 1 << step bits, else 0.
            self.asm.mov_imm(Reg::R3, (1i64 << (1 << step)) - 1);
            self.asm.alu(Alu::Sub, Reg::R3, Reg::R2);
            self.asm.alu_imm(Alu::Rsh, Reg::R3, 63);
            self.asm.alu_imm(Alu::Lsh, Reg::R3, step);
            self.asm.alu(Alu::Rsh, Reg::R2, Reg::R3);
            self.asm.alu(Alu::Add, Reg::R0, Reg::R3);
        }
        // R0 holds the exponent: ((R0 - bits + 1) << bits) + (R1 >> (R0 - bits)) - (1 << bits).
        self.asm.alu_imm(Alu::Sub, Reg::R0, bits as i32);
        self.asm.alu(Alu::Rsh, Reg::R1, Reg::R0);
        self.asm.alu_imm(Alu::Lsh, Reg::R0, bits as i32);
        self.asm.alu(Alu::Add, Reg::R0, Reg::R1);
    }

    fn linear_bucket(&mut self, min: i64, max: i64, step: i64) {
        let done = self.asm.label();
        self.asm.mov_imm(Reg::R0, -1);
        self.asm.mov_imm(Reg::R2, min);
        self.asm.jump_if(Cond::Slt, Reg::R1, Reg::R2, done);
        self.asm.mov_imm(Reg::R0, bucket::last_linear(min, max, step));
        self.asm.mov_imm(Reg::R3, max);
        self.asm.jump_if(Cond::Sge, Reg::R1, Reg::R3, done);
        self.asm.mov(Reg::R0, Reg::R1);
        self.asm.alu(Alu::Sub, Reg::R0, Reg::R2);
        self.asm.mov_imm(Reg::R2, step);
        self.asm.alu(Alu::Div, Reg::R0, Reg::R2);
        self.asm.place(done);
    }
}
