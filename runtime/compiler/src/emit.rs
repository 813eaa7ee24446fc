//! The frame of a program: registers, stack slots, losses, and the BPF map of each table for the
//! program's engine.
//!
//! R6 holds the context. Values of 8 bytes are computed into R0; a value that must wait goes to R7,
//! R8, R9 or, when those are taken, the stack. Texts are computed into stack slots. A value that
//! may be missing is computed with a label to jump to if it is.

use super::build::{Build, Engine};
use super::typed::{Checked, LocalId, MapId};
use rhai::Position;
use rustc_hash::{FxHashMap, FxHashSet};
use xputrace_bytecode::insn::{Cond, Insn, Reg, STACK_BYTES, Size, atomic, class};
use xputrace_bytecode::{Assembler, BpfMapId, Label, Line, Program, ProgramKind, helper};
use xputrace_model::context::ContextWords;
use xputrace_model::diagnostic::{Diagnostic, FileId, Site};
use xputrace_model::loss::Loss;
use xputrace_model::plan::ProbeId;
use xputrace_model::table::TableId;
use xputrace_script::handler::Handler;

/// Maximum number of maps in a program (`MAX_USED_MAPS` in Linux's `kernel/bpf/verifier.c`).
const MOST_MAPS: usize = 64;
/// A slot for array keys, used only between two adjacent instructions, and by the filter of targets.
pub(super) const SCRATCH: i16 = -xputrace_bytecode::targets::SCRATCH_BYTES;
/// The errno of an update for which a map has no room.
const E2BIG: i32 = 7;
const TEMPORARIES: [Reg; 3] = [Reg::R7, Reg::R8, Reg::R9];

/// A program under construction.
pub(super) struct Emitter<'a, 'b> {
    pub(super) asm: Assembler,
    pub(super) build: &'a mut Build<'b>,
    pub(super) handler: &'a Handler,
    pub(super) checked: &'a Checked,
    pub(super) engine: Engine,
    /// The handler's probe in the plan.
    pub(super) probe: ProbeId,
    pub(super) locals: FxHashMap<LocalId, i16>,
    /// At a return probe: the slot with the entry's time and arguments.
    pub(super) entry: Option<i16>,
    /// The slot with the event's time, if it is read more than once: all reads must agree.
    pub(super) time: Option<i16>,
    /// The file that the instructions come from.
    pub(super) file: FileId,
    /// Where `return` goes in the functions being inlined.
    pub(super) leaving: Vec<Label>,
    /// Labels for `break` and `continue`.
    pub(super) loops: Vec<(Label, Label)>,
    /// Ends the program.
    pub(super) end: Label,
    /// The words of the GPU context that are loaded.
    pub(super) reads: ContextWords,
    depth: usize,
    used: i32,
    deepest: i32,
    ending: FxHashMap<usize, Label>,
    counted: Vec<Counted>,
}

/// Code that counts a loss, placed after the program's own.
struct Counted {
    label: Label,
    slot: usize,
    back: Label,
}

/// Where refused updates are counted.
pub(super) struct Refusals {
    /// The map was full.
    full: Label,
    other: Label,
}

/// Where a value waits.
#[derive(Clone, Copy)]
pub(super) enum Temporary {
    Register(Reg),
    Slot(i16),
}

impl<'a, 'b> Emitter<'a, 'b> {
    pub(super) fn new(
        build: &'a mut Build<'b>,
        handler: &'a Handler,
        checked: &'a Checked,
        engine: Engine,
        probe: ProbeId,
    ) -> Self {
        let mut asm = Assembler::new();
        let end = asm.label();
        Emitter {
            asm,
            build,
            handler,
            checked,
            engine,
            probe,
            locals: FxHashMap::default(),
            entry: None,
            time: None,
            file: handler.file,
            leaving: Vec::new(),
            loops: Vec::new(),
            end,
            reads: ContextWords::default(),
            depth: 0,
            used: 8,
            deepest: 8,
            ending: FxHashMap::default(),
            counted: Vec::new(),
        }
    }

    /// Emits the ends and returns the program; reports errors at the handler.
    pub(super) fn finish(mut self, name: String, kind: ProgramKind) -> Option<Program> {
        self.asm.place(self.end);
        self.asm.mov_imm(Reg::R0, 0);
        self.asm.exit();
        self.write_losses();
        let at = self.handler.declared_at.clone();
        if self.deepest > STACK_BYTES as i32 {
            self.build.diagnostics.push(
                Diagnostic::error(
                    "stack-too-large",
                    format!("this handler needs {} bytes of stack; the limit is {STACK_BYTES}", self.deepest),
                    at,
                )
                .help("read shorter strings, `str(ptr, 32)`, or use fewer of them in one statement"),
            );
            return None;
        }
        let engine = self.engine;
        let assembled = self.asm.finish().map_err(|it| it.to_string()).and_then(|assembled| match engine {
            Engine::Linux if far(&assembled.insns) => Err("its jumps span more than 32767 instructions".to_owned()),
            _ => Ok(assembled),
        });
        match assembled {
            Ok(assembled) if engine == Engine::Linux && distinct(&assembled.map_refs) > MOST_MAPS => {
                let message = format!(
                    "this handler uses {} maps, including internal ones; the limit is {MOST_MAPS}",
                    distinct(&assembled.map_refs)
                );
                self.build.diagnostics.push(
                    Diagnostic::error("too-many-maps", message, at)
                        .help("merge several maps into one by adding a part to the key: `@bytes[\"read\", e.pid]`")
                        .help("or split it into several handlers of the same event"),
                );
                None
            }
            Ok(assembled) if engine == Engine::Gpu && !assembled.insns.iter().all(runs_on_gpu) => {
                let message = "this handler does what device code cannot do";
                self.build.diagnostics.push(
                    Diagnostic::error("not-in-device-code", message, at)
                        .help("device code computes with integers, compares names, changes maps, and prints"),
                );
                None
            }
            Ok(assembled) => Some(without_dead_code(Program {
                name,
                kind,
                insns: assembled.insns,
                map_refs: assembled.map_refs,
                lines: assembled.lines,
            })),
            Err(why) => {
                self.build.diagnostics.push(
                    Diagnostic::error("too-large", format!("this handler is too large to compile: {why}"), at).help(
                        "split it into several handlers of the same event, or use fewer iterations: loops are unrolled",
                    ),
                );
                None
            }
        }
    }

    pub(super) fn site(&self, at: Position) -> Site {
        self.build.staged.site(self.file, at)
    }

    /// Sets the source line of the instructions that follow.
    pub(super) fn line(&mut self, at: Position) {
        if at.is_none() {
            return;
        }
        let positions = &self.build.staged.positions[self.file.0 as usize];
        let (line, column) = positions.line_and_column(positions.offset(at));
        self.asm.line(self.file.0 as usize, line, column);
    }

    /// Reserves stack in whole words; returns an offset from the frame pointer.
    pub(super) fn alloc(&mut self, bytes: usize) -> i16 {
        self.used += bytes.next_multiple_of(8) as i32;
        self.deepest = self.deepest.max(self.used);
        // Beyond the limit the program is refused, so any offset will do.
        -(self.used.min(i32::from(i16::MAX)) as i16)
    }

    pub(super) fn mark(&self) -> i32 {
        self.used
    }

    pub(super) fn release(&mut self, mark: i32) {
        self.used = mark;
    }

    /// Saves R0 so that it survives the next computation.
    pub(super) fn push(&mut self) -> Temporary {
        let temporary = match TEMPORARIES.get(self.depth) {
            Some(register) => {
                self.asm.mov(*register, Reg::R0);
                Temporary::Register(*register)
            }
            None => {
                let slot = self.alloc(8);
                self.store(slot, Reg::R0);
                Temporary::Slot(slot)
            }
        };
        self.depth += 1;
        temporary
    }

    /// Restores what [`Emitter::push`] saved.
    pub(super) fn pop(&mut self, temporary: Temporary, into: Reg) {
        self.depth -= 1;
        match temporary {
            Temporary::Register(register) => self.asm.mov(into, register),
            Temporary::Slot(slot) => self.load(into, slot),
        }
    }

    /// Loads a word of the GPU context.
    pub(super) fn load_word(&mut self, into: Reg, word: usize) {
        self.reads.add(word);
        self.asm.ldx(Size::Dw, into, Reg::R6, (word * 8) as i16);
    }

    pub(super) fn load(&mut self, into: Reg, slot: i16) {
        self.asm.ldx(Size::Dw, into, Reg::FP, slot);
    }

    pub(super) fn store(&mut self, slot: i16, from: Reg) {
        self.asm.stx(Size::Dw, Reg::FP, slot, from);
    }

    pub(super) fn store_imm(&mut self, slot: i16, value: i64) {
        match i32::try_from(value) {
            Ok(small) => self.asm.st_imm(Size::Dw, Reg::FP, slot, small),
            Err(_) => {
                self.asm.mov_imm(Reg::R1, value);
                self.store(slot, Reg::R1);
            }
        }
    }

    pub(super) fn zero(&mut self, slot: i16, bytes: usize) {
        for at in (0..bytes).step_by(8) {
            self.asm.st_imm(Size::Dw, Reg::FP, slot + at as i16, 0);
        }
    }

    /// `into = frame pointer + slot`.
    pub(super) fn address(&mut self, into: Reg, slot: i16) {
        self.asm.stack_address(into, slot);
    }

    /// Returns the BPF map behind a table for this program's engine.
    pub(super) fn table(&self, map: MapId) -> BpfMapId {
        self.build.table_map(map, self.engine)
    }

    /// Returns the label to jump to if a loss ends the handler.
    pub(super) fn ends_with(&mut self, loss: Loss, at: Position) -> Label {
        let slot = self.build.loss_slot(loss, self.site(at), None, self.engine);
        *self.ending.entry(slot).or_insert_with(|| self.asm.label())
    }

    /// Whether a label is where a counted loss ends the handler.
    pub(super) fn ends_handler(&self, label: Label) -> bool {
        self.ending.values().any(|it| *it == label)
    }

    /// Returns the label to jump to if a required value is missing.
    pub(super) fn strict(&mut self, at: Position) -> Label {
        self.ends_with(Loss::MissingValue, at)
    }

    /// Returns the label to jump to if a loss is counted and the handler goes on at `back`, with R0
    /// zero.
    pub(super) fn counts(&mut self, loss: Loss, at: Position, table: Option<MapId>, back: Label) -> Label {
        let table = table.map(TableId::at);
        let slot = self.build.loss_slot(loss, self.site(at), table, self.engine);
        let label = self.asm.label();
        self.counted.push(Counted { label, slot, back });
        label
    }

    /// Returns the labels for refused updates of a map, by reason.
    pub(super) fn refusals(&mut self, map: MapId, at: Position, back: Label) -> Refusals {
        Refusals {
            full: self.counts(Loss::MapFull, at, Some(map), back),
            other: self.counts(Loss::UpdateRefused, at, Some(map), back),
        }
    }

    /// Jumps to where a refusal is counted; R0 is the update's result.
    pub(super) fn refused(&mut self, refusals: &Refusals) {
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, -E2BIG, refusals.full);
        self.asm.jump(refusals.other);
    }

    /// Whether a map evicts elements, so that this program must count what it stores.
    pub(super) fn counts_stored(&self, map: MapId) -> bool {
        self.engine == Engine::Linux && self.build.evicts(map)
    }

    /// Counts elements stored (1) or removed (−1) if R0 is 0, that is, if the update or deletion
    /// succeeded. Keeps R0.
    pub(super) fn count_stored(&mut self, map: MapId, n: i64) {
        if !self.counts_stored(map) {
            return;
        }
        let done = self.asm.label();
        let stored = self.build.stored_map();
        self.asm.jump_if_imm(Cond::Ne, Reg::R0, 0, done);
        self.asm.st_imm(Size::W, Reg::FP, SCRATCH, map as i32);
        self.lookup(stored, SCRATCH);
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
        self.asm.mov_imm(Reg::R1, n);
        self.asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
        self.asm.mov_imm(Reg::R0, 0);
        self.asm.place(done);
    }

    fn write_losses(&mut self) {
        for Counted { label, slot, back } in std::mem::take(&mut self.counted) {
            self.asm.place(label);
            self.asm.st_imm(Size::W, Reg::FP, SCRATCH, slot as i32);
            self.count_loss(back);
        }
        let mut ending: Vec<(usize, Label)> = std::mem::take(&mut self.ending).into_iter().collect();
        if ending.is_empty() {
            return;
        }
        ending.sort_by_key(|it| it.0);
        let tail = self.asm.label();
        for (slot, label) in ending {
            self.asm.place(label);
            self.asm.st_imm(Size::W, Reg::FP, SCRATCH, slot as i32);
            self.asm.jump(tail);
        }
        self.asm.place(tail);
        self.count_loss(self.end);
    }

    /// Adds 1 to the loss whose slot is in the scratch word, then jumps to `back` with R0 zero.
    fn count_loss(&mut self, back: Label) {
        let none = self.asm.label();
        let map = self.build.loss_map(self.engine);
        self.lookup(map, SCRATCH);
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, none);
        self.asm.mov_imm(Reg::R1, 1);
        self.asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
        self.asm.place(none);
        self.asm.mov_imm(Reg::R0, 0);
        self.asm.jump(back);
    }

    /// Adds to a loss and continues.
    pub(super) fn add_to_loss(&mut self, loss: Loss, at: Position, n: i64) {
        let none = self.asm.label();
        let slot = self.build.loss_slot(loss, self.site(at), None, self.engine);
        let map = self.build.loss_map(self.engine);
        self.asm.st_imm(Size::W, Reg::FP, SCRATCH, slot as i32);
        self.lookup(map, SCRATCH);
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, none);
        self.asm.mov_imm(Reg::R1, n);
        self.asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
        self.asm.place(none);
    }

    /// Sets R0 to the address of the element with the key in `key`, or 0.
    pub(super) fn lookup(&mut self, map: BpfMapId, key: i16) {
        self.asm.find(map, key);
    }

    pub(super) fn delete(&mut self, map: BpfMapId, key: i16) {
        self.asm.ld_map(Reg::R1, map);
        self.address(Reg::R2, key);
        self.asm.call(helper::MAP_DELETE_ELEM);
    }

    /// Stores the bytes in `value`; sets R0 to 0 or a negative error.
    pub(super) fn update(&mut self, map: BpfMapId, key: i16, value: i16, flags: i32) {
        self.asm.ld_map(Reg::R1, map);
        self.address(Reg::R2, key);
        self.address(Reg::R3, value);
        self.asm.mov_imm(Reg::R4, i64::from(flags));
        self.asm.call(helper::MAP_UPDATE_ELEM);
    }
}

/// The helpers that device code has: those that change maps, and the one that writes records.
const ON_GPU: [i32; 5] =
    [helper::MAP_LOOKUP_ELEM, helper::MAP_UPDATE_ELEM, helper::MAP_DELETE_ELEM, helper::RAISE, helper::RINGBUF_OUTPUT];

/// Whether device code may have this instruction.
fn runs_on_gpu(insn: &Insn) -> bool {
    let calls = insn.code == class::JMP | xputrace_bytecode::insn::CALL;
    !calls || ON_GPU.contains(&insn.imm)
}

/// Whether a jump may be out of range once Linux has replaced calls and divisions by its own code.
fn far(insns: &[Insn]) -> bool {
    let mut grown = Vec::with_capacity(insns.len() + 1);
    let mut at = 0;
    for insn in insns {
        grown.push(at);
        at += 1 + growth(insn);
    }
    grown.push(at);
    let span = |from: usize, to: usize| grown.get(to).map_or(0, |it| it.abs_diff(grown[from + 1]));
    (0..insns.len()).any(|from| target(insns, from).is_some_and(|to| span(from, to) > i16::MAX as usize))
}

/// Returns the maximum number of instructions that Linux adds for one (`do_misc_fixups` in
/// `kernel/bpf/verifier.c`, and each map type's `map_gen_lookup`).
fn growth(insn: &Insn) -> usize {
    let call = insn.code == class::JMP | xputrace_bytecode::insn::CALL;
    let divides = insn.code & 7 == class::ALU64 && matches!(insn.code & 0xf0, 0x30 | 0x90);
    match insn.imm {
        helper::MAP_LOOKUP_ELEM if call => 8,
        _ if call => 3,
        _ if divides => 8,
        _ => 0,
    }
}

fn distinct(map_refs: &[(usize, BpfMapId)]) -> usize {
    map_refs.iter().map(|it| it.1).collect::<FxHashSet<_>>().len()
}

/// Removes unreachable instructions, which the verifier refuses.
fn without_dead_code(program: Program) -> Program {
    let reached = reached(&program.insns);
    if reached.iter().all(|it| *it) {
        return program;
    }
    let mut moved = Vec::with_capacity(reached.len() + 1);
    let mut kept = 0;
    for live in &reached {
        moved.push(kept);
        kept += usize::from(*live);
    }
    moved.push(kept);
    let insns = program
        .insns
        .iter()
        .enumerate()
        .filter(|(at, _)| reached[*at])
        .map(|(at, insn)| match target(&program.insns, at) {
            Some(to) => Insn { off: (moved[to] as i64 - moved[at] as i64 - 1) as i16, ..*insn },
            None => *insn,
        })
        .collect();
    let map_refs = program.map_refs.iter().filter(|it| reached[it.0]).map(|it| (moved[it.0], it.1)).collect();
    let mut lines: Vec<Line> = Vec::new();
    for line in &program.lines {
        let line = Line { insn: moved[line.insn.min(reached.len())], ..*line };
        if lines.last().is_some_and(|it| it.insn == line.insn) {
            lines.pop();
        }
        lines.push(line);
    }
    lines.retain(|it| it.insn < kept);
    Program { insns, map_refs, lines, ..program }
}

fn reached(insns: &[Insn]) -> Vec<bool> {
    let mut reached = vec![false; insns.len()];
    let mut open = vec![0];
    while let Some(at) = open.pop() {
        if at >= insns.len() || reached[at] {
            continue;
        }
        reached[at] = true;
        let insn = insns[at];
        if insn.code == class::LD | 0x18 {
            if let Some(second) = reached.get_mut(at + 1) {
                *second = true;
            }
            open.push(at + 2);
            continue;
        }
        let exits = insn.code == class::JMP | xputrace_bytecode::insn::EXIT;
        let always = insn.code == class::JMP | xputrace_bytecode::insn::JA;
        if let Some(to) = target(insns, at) {
            open.push(to);
        }
        if !exits && !always {
            open.push(at + 1);
        }
    }
    reached
}

/// Returns a jump's target.
fn target(insns: &[Insn], at: usize) -> Option<usize> {
    let insn = insns[at];
    let op = insn.code & 0xf0;
    let jumps =
        insn.code & 7 == class::JMP && op != xputrace_bytecode::insn::CALL && op != xputrace_bytecode::insn::EXIT;
    // The second slot of `ld_imm64` has code 0 and is not a jump.
    jumps.then(|| (at as i64 + 1 + i64::from(insn.off)) as usize)
}
