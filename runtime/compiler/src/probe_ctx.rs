//! Where an event's fields come from: registers and helpers at a CPU probe, the record of a
//! tracepoint, the words of a GPU event.

use super::build::Engine;
use super::emit::{Emitter, SCRATCH};
use super::typed::ValueSource;
use rhai::Position;
use xputrace_bytecode::insn::{Alu, Cond, Reg, Size};
use xputrace_bytecode::probe::{EEXIST, Machine, ReadEmitter, SCRATCH_BYTES, StackSide, TaskId, pt_regs};
use xputrace_bytecode::targets::leave_out_others;
use xputrace_bytecode::{Label, helper, usdt};
use xputrace_model::context::{device, word};
use xputrace_model::loss::Loss;
use xputrace_model::plan::{ProbePlace, SwitchId};
use xputrace_model::schema::Event;
use xputrace_script::handler::Per;

/// Arguments of the collector's marker function: the context's words and the tag's slot.
const MARKER_CONTEXT: i16 = pt_regs::ARGUMENTS[0];
pub(super) const MARKER_SLOT: i16 = pt_regs::ARGUMENTS[1];

/// An odd number that scrambles the index of a group of events.
const SPREAD: i64 = 0x9e37_79b9;

impl Emitter<'_, '_> {
    /// Sets R0 to an 8-byte field.
    pub(super) fn source(&mut self, source: ValueSource, at: Position, missing: Label) {
        match source {
            ValueSource::Word(n) => self.word(n, at),
            ValueSource::Flagged(flag, value) => {
                self.word(flag, at);
                self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, missing);
                self.word(value, at);
            }
            ValueSource::Register(offset) => self.asm.ldx(Size::Dw, Reg::R0, Reg::R6, offset),
            ValueSource::Time => match self.time {
                Some(slot) => self.load(Reg::R0, slot),
                None => self.asm.call(helper::KTIME_GET_NS),
            },
            ValueSource::Pid => self.task_id(TaskId::Process),
            ValueSource::Tid => self.task_id(TaskId::Thread),
            ValueSource::Cpu => self.asm.call(helper::GET_SMP_PROCESSOR_ID),
            ValueSource::Uid => {
                self.asm.call(helper::GET_CURRENT_UID_GID);
                self.asm.alu32(Alu::Mov, Reg::R0, Reg::R0);
            }
            ValueSource::Gid => {
                self.asm.call(helper::GET_CURRENT_UID_GID);
                self.asm.alu_imm(Alu::Rsh, Reg::R0, 32);
            }
            ValueSource::Cgroup => self.asm.call(helper::GET_CURRENT_CGROUP_ID),
            ValueSource::Cookie => {
                self.asm.mov(Reg::R1, Reg::R6);
                self.asm.call(helper::GET_ATTACH_COOKIE);
                // The name's id; the upper bits say where a return was seen.
                self.asm.alu32(Alu::Mov, Reg::R0, Reg::R0);
            }
            ValueSource::UserStack => self.stack(StackSide::User, at),
            ValueSource::LinuxStack => self.stack(StackSide::Kernel, at),
            ValueSource::EntryTime => self.entry_word(0),
            ValueSource::EntryArg(n) => self.entry_word(1 + n),
            ValueSource::Record { offset, size, signed } => self.record_integer(offset, size, signed),
            ValueSource::UsdtArgument(n) => self.usdt_argument(n, at, missing),
            // These are texts.
            ValueSource::Comm
            | ValueSource::WordText(_)
            | ValueSource::RecordChars { .. }
            | ValueSource::RecordLoc { .. }
            | ValueSource::MarkerText(_) => self.asm.mov_imm(Reg::R0, 0),
        }
    }

    /// Writes a text field into words of the stack.
    pub(super) fn source_text(&mut self, source: ValueSource, slot: i16, capacity: u32, at: Position) {
        let bytes = capacity.next_multiple_of(8) as usize;
        match source {
            ValueSource::WordText(n) => {
                for word in 0..2 {
                    self.load_word(Reg::R0, n + word);
                    self.store(slot + word as i16 * 8, Reg::R0);
                }
                self.zero_from(slot, 16, bytes);
            }
            ValueSource::Comm => {
                self.address(Reg::R1, slot);
                self.asm.mov_imm(Reg::R2, 16);
                self.asm.call(helper::GET_CURRENT_COMM);
                self.zero_from(slot, 16, bytes);
            }
            ValueSource::RecordChars { offset, len } => {
                // Use the helper, which stops at the NUL: what Linux left after it is not part of
                // the text.
                self.zero(slot, bytes);
                self.address(Reg::R1, slot);
                self.asm.mov_imm(Reg::R2, i64::from(len));
                self.asm.mov(Reg::R3, Reg::R6);
                self.asm.alu_imm(Alu::Add, Reg::R3, offset as i32);
                self.asm.call(helper::PROBE_READ_KERNEL_STR);
            }
            ValueSource::RecordLoc { offset } => {
                self.zero(slot, bytes);
                self.asm.ldx(Size::W, Reg::R1, Reg::R6, offset as i16);
                self.asm.alu_imm(Alu::And, Reg::R1, 0xffff);
                self.asm.mov(Reg::R0, Reg::R6);
                self.asm.alu(Alu::Add, Reg::R0, Reg::R1);
                let unreadable = self.ends_with(Loss::UnreadableMemory, at);
                self.read_text(helper::PROBE_READ_KERNEL_STR, capacity, slot, at, unreadable);
            }
            ValueSource::MarkerText(word) => {
                self.zero(slot, bytes);
                self.word(word, at);
                let unreadable = self.ends_with(Loss::UnreadableMemory, at);
                self.read_text(helper::PROBE_READ_USER_STR, capacity, slot, at, unreadable);
            }
            _ => self.zero(slot, bytes),
        }
    }

    /// Sets R0 to a word of the GPU context, which at the marker lies in the target's memory.
    fn word(&mut self, n: usize, at: Position) {
        if self.engine != Engine::Linux {
            return self.load_word(Reg::R0, n);
        }
        let unreadable = self.ends_with(Loss::UnreadableMemory, at);
        self.address(Reg::R1, SCRATCH);
        self.asm.mov_imm(Reg::R2, 8);
        self.asm.ldx(Size::Dw, Reg::R3, Reg::R6, MARKER_CONTEXT);
        self.asm.alu_imm(Alu::Add, Reg::R3, (n * 8) as i32);
        self.asm.call(helper::PROBE_READ_USER);
        self.asm.jump_if_imm(Cond::Slt, Reg::R0, 0, unreadable);
        self.load(Reg::R0, SCRATCH);
    }

    /// Returns the machine properties that determine how a probe's context is read.
    fn machine(&self) -> Machine {
        let catalog = self.build.catalog;
        Machine { pid_namespace: catalog.pid_namespace(), exec_id_offset: catalog.exec_id_offset() }
    }

    /// Sets R0 to the process or thread id in the tracer's namespace; 0 if the task has none there.
    pub(super) fn task_id(&mut self, id: TaskId) {
        let machine = self.machine();
        ReadEmitter { asm: &mut self.asm, machine, scratch: SCRATCH }.task_id(id);
    }

    /// Sets R0 to a stack's word; counts a stack that Linux could not store.
    fn stack(&mut self, frames: StackSide, at: Position) {
        let mark = self.mark();
        let (machine, scratch) = (self.machine(), self.alloc(SCRATCH_BYTES as usize));
        let (done, lost) = (self.asm.label(), self.asm.label());
        let collided = self.counts(Loss::StackCollision, at, None, done);
        let other = self.counts(Loss::LinuxStack, at, None, done);
        let stacks = self.build.stack_map();
        let is_at_entry = frames == StackSide::User && self.handler.target.is_at_entry(self.handler.event);
        let callers = (is_at_entry && self.build.keeps_callers).then(|| self.build.callers());
        ReadEmitter { asm: &mut self.asm, machine, scratch }.stack(frames, Reg::R6, stacks, callers, lost);
        self.asm.jump(done);
        self.asm.place(lost);
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, -EEXIST, collided);
        self.asm.jump(other);
        self.asm.place(done);
        self.release(mark);
    }

    /// Sets R0 to an argument of a USDT probe. One that cannot be read is counted, and missing.
    fn usdt_argument(&mut self, n: usize, at: Position, missing: Label) {
        let absent = self.lost_value(Loss::NoArgument, at, missing);
        let unreadable = self.lost_value(Loss::UnreadableMemory, at, missing);
        let rules = self.build.usdt_rules_map();
        let mark = self.mark();
        let scratch = self.alloc(usdt::SCRATCH_BYTES as usize);
        usdt::ArgumentReader { asm: &mut self.asm, rules, context: Reg::R6, scratch }.argument(n, absent, unreadable);
        self.release(mark);
    }

    fn record_integer(&mut self, offset: u32, size: u32, signed: bool) {
        let width = match size {
            1 => Size::B,
            2 => Size::H,
            4 => Size::W,
            _ => Size::Dw,
        };
        self.asm.ldx(width, Reg::R0, Reg::R6, offset as i16);
        if signed && size < 8 {
            let bits = 64 - 8 * size as i32;
            self.asm.alu_imm(Alu::Lsh, Reg::R0, bits);
            self.asm.alu_imm(Alu::Arsh, Reg::R0, bits);
        }
    }

    fn entry_word(&mut self, n: usize) {
        match self.entry {
            Some(slot) => self.load(Reg::R0, slot + n as i16 * 8),
            None => self.asm.mov_imm(Reg::R0, 0),
        }
    }

    /// Emits what precedes a handler's own statements.
    pub(super) fn prologue(&mut self) {
        self.asm.mov(Reg::R6, Reg::R1);
        self.line(self.handler.body.first().map_or(Position::NONE, |it| it.position()));
        self.only_targets();
        self.only_calls();
        // Count skipped events too: an entry left behind counts as a call without a return.
        if self.checked.entry_args.is_some() {
            self.fetch_entry();
        }
        self.until_exit();
        self.only_in_window();
        self.only_while_on();
        self.note_hit();
        // Whether device code runs is decided at the launch.
        let every = self.handler.options.every.filter(|_| self.engine != Engine::Gpu);
        if let Some(every) = every.filter(|it| *it > 1) {
            self.only_every(every);
        }
        self.only_per(self.handler.options.per);
        if self.checked.needs_launch {
            let at = self.handler.body.first().map_or(Position::NONE, |it| it.position());
            let skipped = self.ends_with(Loss::SkippedUnjoined, at);
            self.word(word::JOINED, at);
            self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, skipped);
        }
        if self.checked.time_reads > 1 {
            let slot = self.alloc(8);
            self.asm.call(helper::KTIME_GET_NS);
            self.store(slot, Reg::R0);
            self.time = Some(slot);
        }
    }

    /// Notes the first hit. Later ones only read the word, so that processors don't take it from each other.
    fn note_hit(&mut self) {
        let Some(map) = self.build.hits_map(self.engine) else { return };
        let done = self.asm.label();
        self.asm.st_imm(Size::W, Reg::FP, SCRATCH, self.probe.0 as i32);
        self.lookup(map, SCRATCH);
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
        self.asm.ldx(Size::Dw, Reg::R1, Reg::R0, 0);
        self.asm.jump_if_imm(Cond::Ne, Reg::R1, 0, done);
        self.asm.st_imm(Size::Dw, Reg::R0, 0, 1);
        self.asm.place(done);
    }

    /// Skips threads of a kernel.
    fn only_per(&mut self, per: Per) {
        let (words, expected) = match per {
            Per::Thread => return,
            Per::Warp => (device::IS_LEADER..device::IS_LEADER + 1, 1),
            Per::Block => (device::THREAD..device::THREAD + 3, 0),
        };
        for at in words {
            self.load_word(Reg::R0, at);
            self.asm.jump_if_imm(Cond::Ne, Reg::R0, expected, self.end);
        }
    }

    /// Skips events after an `exit` in Linux: the probes stay until the tracer has heard of it.
    fn until_exit(&mut self) {
        if let Some(map) = self.build.over_map(self.engine) {
            self.asm.load_only(map, SCRATCH, self.end);
            self.asm.jump_if_imm(Cond::Ne, Reg::R0, 0, self.end);
        }
    }

    /// Skips events outside the part of the run that is recorded. At the marker, the collector does.
    fn only_in_window(&mut self) {
        if self.handler.event == Event::Launch {
            return;
        }
        if let Some(map) = self.build.window_map(self.engine) {
            self.asm.load_only(map, SCRATCH, self.end);
            self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, self.end);
        }
    }

    /// Skips events while the probe is switched off. Elsewhere than in Linux, the engine does.
    fn only_while_on(&mut self) {
        let switch = self.build.plan.switch_of(self.handler.declared);
        if let Some(switch) = switch.filter(|_| self.engine == Engine::Linux) {
            self.find_switch(switch, self.end);
            self.asm.ldx(Size::Dw, Reg::R0, Reg::R0, 0);
            self.asm.jump_if_imm(Cond::Ne, Reg::R0, 0, self.end);
        }
    }

    /// Sets R0 to the address of the word that tells whether a switch is off.
    pub(super) fn find_switch(&mut self, switch: SwitchId, none: Label) {
        let map = self.build.switches_map();
        self.asm.st_imm(Size::W, Reg::FP, SCRATCH, switch.0 as i32);
        self.lookup(map, SCRATCH);
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, none);
    }

    /// Tells all programs in Linux that the run is over.
    pub(super) fn announce_exit(&mut self) {
        if let Some(map) = self.build.over_map(self.engine) {
            let unknown = self.asm.label();
            self.asm.find_only(map, SCRATCH, unknown);
            self.asm.st_imm(Size::Dw, Reg::R0, 0, 1);
            self.asm.place(unknown);
        }
    }

    /// Skips events of other processes, if the program runs there too.
    pub(super) fn only_targets(&mut self) {
        match self.handler.event {
            Event::Launch if self.engine == Engine::Linux => self.only_connected(),
            event if self.handler.options.scope().is_filtered(event) => {
                let targets = self.build.targets_map();
                let threads = self.scheduled_threads();
                leave_out_others(&mut self.asm, targets, SCRATCH, Reg::R6, &threads, self.end);
            }
            _ => {}
        }
    }

    /// Skips processes outside this run: the marker is in every process that loads the collector,
    /// but only those of this run have a tag array.
    fn only_connected(&mut self) {
        let tags = self.build.tags_map();
        self.task_id(TaskId::Process);
        self.asm.stx(Size::W, Reg::FP, SCRATCH, Reg::R0);
        self.lookup(tags, SCRATCH);
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, self.end);
    }

    /// Returns the offsets of the threads that a scheduler record names.
    fn scheduled_threads(&self) -> Vec<i16> {
        let ProbePlace::Tracepoint { category, name } = &self.handler.target else { return Vec::new() };
        let format = self.build.catalog.tracepoint(category, name);
        format.map(|it| it.scheduled_threads(category, name)).unwrap_or_default()
    }

    /// Skips other kinds of calls at the marker, which every recorded call passes.
    fn only_calls(&mut self) {
        let calls = self.handler.options.calls();
        let at_marker = self.handler.event == Event::Launch && self.engine == Engine::Linux;
        if !at_marker || calls.contains_all(self.build.plan.demand.calls) {
            return;
        }
        let numbers = calls.iter().fold(0i64, |all, it| all | 1 << it.number());
        self.word(word::LAUNCH_KIND, self.handler.body.first().map_or(Position::NONE, |it| it.position()));
        self.asm.mov_imm(Reg::R1, numbers);
        self.asm.alu(Alu::Rsh, Reg::R1, Reg::R0);
        self.asm.alu_imm(Alu::And, Reg::R1, 1);
        self.asm.jump_if_imm(Cond::Eq, Reg::R1, 0, self.end);
    }

    /// Passes one event of each group of `every`. The position within the group varies: a fixed one
    /// could always pick the same kernel of a program that launches several in turn.
    fn only_every(&mut self, every: u64) {
        let (map, slot) = self.build.every_slot(self.engine);
        self.asm.st_imm(Size::W, Reg::FP, SCRATCH, slot as i32);
        self.lookup(map, SCRATCH);
        self.asm.jump_if_imm(Cond::Eq, Reg::R0, 0, self.end);
        self.asm.mov_imm(Reg::R1, 1);
        self.asm.atomic(
            xputrace_bytecode::insn::atomic::ADD | xputrace_bytecode::insn::atomic::FETCH,
            Size::Dw,
            Reg::R0,
            0,
            Reg::R1,
        );
        // Pick the position by scrambling the group's number.
        self.asm.mov_imm(Reg::R2, every as i64);
        self.asm.mov(Reg::R3, Reg::R1);
        self.asm.alu(Alu::Div, Reg::R3, Reg::R2);
        self.asm.mov_imm(Reg::R4, SPREAD);
        self.asm.alu(Alu::Mul, Reg::R3, Reg::R4);
        self.asm.mov(Reg::R4, Reg::R3);
        self.asm.alu_imm(Alu::Rsh, Reg::R4, 29);
        self.asm.alu(Alu::Xor, Reg::R3, Reg::R4);
        self.asm.alu(Alu::Mod, Reg::R3, Reg::R2);
        self.asm.alu(Alu::Mod, Reg::R1, Reg::R2);
        self.asm.jump_if(Cond::Ne, Reg::R1, Reg::R3, self.end);
    }
}
