//! Records CPU probes: programs that write everything that a handler may read of a hit, and the
//! layout of these records.
//!
//! ```text
//! Plan ──recorder──▶ Plan whose programs write Hit records ──ring──▶ Layouts::decode ──▶ Hit
//! ```
//! The handlers themselves do not run while recording; they run over the hits in a replay.

use crate::catalog::{recorded, returned};
use crate::entry::{Hit, ProbeInfo, UserString};
use rustc_hash::FxHashMap;
use xputrace_bytecode::asm::AsmError;
use xputrace_bytecode::callers::{self, Callers};
use xputrace_bytecode::insn::{Alu, Cond, atomic};
use xputrace_bytecode::probe::{EEXIST, Machine, ReadEmitter, StackSide, pt_regs};
use xputrace_bytecode::targets::{self, leave_out_others};
use xputrace_bytecode::{
    Assembler, BpfMapId, Home, Image, MapKind, MapSpec, Program, ProgramId, ProgramKind, Reg, helper, insn::Size,
};
use xputrace_model::catalog::{Catalog, TracepointFieldType, TracepointFormat};
use xputrace_model::loss::Loss;
use xputrace_model::plan::{
    Activities, Calls, ContextWord, Demand, Detail, Details, Functions, HostEvents, LONGEST_TEXT, LossSite, Place,
    Plan, Probe, ProbePlace, ProbeScope, TextRead, record,
};
use xputrace_model::schema::Event;
use xputrace_model::stack;

/// Maximum number of bytes kept of a tracepoint's record.
const LONGEST_RECORD: usize = 1024;
/// Size of Linux's ring buffer while recording.
const RING_BYTES: u32 = 8 << 20;
/// Counted for each probe while recording; its slots are adjacent.
const COUNTED: [Loss; 3] = [Loss::LinuxRingFull, Loss::LinuxStack, Loss::StackCollision];
/// The word of a stack that collided in the stack map: a replay counts it as the run would have.
pub const COLLIDED: u64 = 2;

/// Stack slots of the programs.
mod slot {
    /// The key of a map with 4-byte keys, and what [`xputrace_bytecode::targets`] needs.
    pub(super) const KEY: i16 = -8;
    /// Overwritten by the readers of the context.
    pub(super) const SCRATCH: i16 = KEY - xputrace_bytecode::probe::SCRATCH_BYTES;
    const _: () = assert!(KEY + xputrace_bytecode::targets::SCRATCH_BYTES <= 0);
}

/// What a recording always requests from the collector. Of CUDA's calls it has the waits, allocations and frees, those that
/// record events, create or destroy streams, and the `api` events that the script asks for; and it has what CUPTI
/// makes records of only if the script asks.
const EVERYTHING: Demand = Demand {
    calls: Calls::ALL,
    // A graph as a whole follows from its nodes.
    activities: Activities::NODES,
    host_events: HostEvents::KEPT,
    required: HostEvents::NONE,
    api: Functions::NONE,
    details: Details::kept(),
};

/// What it also requests if the script reads it.
const IF_READ: Details = Details::of(&[Detail::Latencies, Detail::Nested]);

/// Set in a record's probe number if the hit is at the entry of a return probe's function.
const ENTRY: u32 = 1 << 31;
/// Pseudo address under which [`Hit::strings`] holds the probed function's name: a hit's cookie is
/// an id in the recording run's string table, which later runs lack.
pub const FUNCTION_NAME: u64 = u64::MAX;

/// Offsets in a hit record; the context follows at [`at::CONTEXT`].
mod at {
    pub(super) const PROBE: i16 = 4;
    pub(super) const TIME: i16 = 8;
    pub(super) const PID_TGID: i16 = 16;
    pub(super) const UID_GID: i16 = 24;
    pub(super) const CPU: i16 = 32;
    pub(super) const COMM: i16 = 40;
    pub(super) const CGROUP: i16 = 56;
    pub(super) const COOKIE: i16 = 64;
    pub(super) const FUNC_IP: i16 = 72;
    pub(super) const USTACK: i16 = 80;
    pub(super) const KSTACK: i16 = 88;
    pub(super) const CONTEXT: usize = 96;
}

/// A plan that records, and the meaning of its records.
#[derive(Clone, Debug)]
pub struct Recorder {
    pub plan: Plan,
    /// For the header of the recording, in the order of [`Hit::probe`].
    pub probes: Vec<ProbeInfo>,
    pub layouts: Layouts,
}

/// The contents of each probe's hits.
#[derive(Clone, Debug, Default)]
pub struct Layouts {
    probes: Vec<HitLayout>,
}

/// What follows the head of a probe's hits.
#[derive(Clone, Debug, Default)]
struct HitLayout {
    context_size: usize,
    /// Texts of the target, one after another; a hit at the entry of a return probe has none.
    texts: Vec<ContextWord>,
}

/// A text in a hit: the result of the read, then the bytes.
const TEXT_BYTES: usize = 8 + TEXT_ROOM.next_multiple_of(8);
/// Room for the longest string that a script can request, plus one byte and the NUL. The extra byte
/// shows handlers that a string was truncated.
const TEXT_ROOM: usize = LONGEST_TEXT as usize + 2;

/// Room for a string of a tracepoint's record, with its NUL. In a recorded context, each of these
/// strings has its own room after the fixed fields, and the fields that locate strings point there.
const RECORD_TEXT_BYTES: usize = TEXT_ROOM.next_multiple_of(8);

/// Why the probes cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecorderError {
    #[error("cannot record {probe}: {reason}")]
    Tracepoint { probe: String, reason: String },
    #[error(
        "cannot record {probe}: line {line} of the script reads a text whose address it computes; \
             an argument, a field of a tracepoint, and these with a constant added can be recorded"
    )]
    Text { probe: String, line: u32 },
    #[error(
        "cannot record {probe}: hits of USDT probes are not recorded yet. Run the script instead, or record the function that \
             the probe is in, with `uprobe`"
    )]
    Usdt { probe: String },
    #[error("cannot make the recording program")]
    Assemble(#[from] AsmError),
}

/// Creates the plan that records the CPU probes of `plan`, and everything on the GPU side.
///
/// # Errors
/// A tracepoint's format cannot be read, or a probe's hits cannot be recorded.
pub fn recorder(plan: &Plan, catalog: &dyn Catalog) -> Result<Recorder, RecorderError> {
    let mut builder = Builder::new(plan, catalog);
    for probe in each_once(plan.probes.iter().filter(|it| it.place == Place::Linux && !it.event.is_gpu())) {
        builder.add(&probe)?;
    }
    Ok(builder.finish())
}

/// Returns what is requested for a script.
fn requested(wanted: &Demand) -> Demand {
    Demand {
        host_events: EVERYTHING.host_events.with(wanted.host_events),
        api: wanted.api,
        details: EVERYTHING.details.with(wanted.details.and(IF_READ)),
        ..EVERYTHING
    }
}

/// Combines probes of the same name into one that records whatever any of their handlers reads.
/// Each hit is recorded once, and a replay runs all handlers of that name over it. Handlers of all
/// processes get a probe of their own, since they have other hits.
fn each_once<'p>(probes: impl Iterator<Item = &'p Probe>) -> Vec<Probe> {
    let mut once: Vec<Probe> = Vec::new();
    let mut by_name: FxHashMap<(&str, bool), usize> = FxHashMap::default();
    for probe in probes {
        let key = (probe.name.as_str(), is_everywhere(probe));
        match by_name.get(&key) {
            Some(at) => widen(&mut once[*at], probe),
            None => {
                by_name.insert(key, once.len());
                once.push(probe.clone());
            }
        }
    }
    once
}

/// Makes a probe also record what another one of the same name needs.
fn widen(probe: &mut Probe, other: &Probe) {
    probe.texts.extend(&other.texts);
    probe.entry_program = probe.entry_program.or(other.entry_program);
    // A link per process misses hits that a link per file sees.
    if other.scope == ProbeScope::Tree {
        probe.scope = ProbeScope::Tree;
    }
}

/// Whether a probe's handler sees all processes.
pub fn is_everywhere(probe: &Probe) -> bool {
    probe.scope == ProbeScope::System
}

impl Layouts {
    /// Decodes a record of Linux's ring; returns `None` if it is not a hit.
    pub fn decode(&self, bytes: &[u8]) -> Option<Hit> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let head = word(0)?;
        if head as u32 != record::HIT {
            return None;
        }
        let (probe, entry) = ((head >> 32) as u32 & !ENTRY, (head >> 32) as u32 & ENTRY != 0);
        let layout = self.probes.get(probe as usize)?;
        let context = bytes.get(at::CONTEXT..at::CONTEXT + layout.context_size)?;
        let texts = if entry { &[][..] } else { &layout.texts };
        let field = |at: i16| word(at as usize);
        let (pid_tgid, uid_gid) = (field(at::PID_TGID)?, field(at::UID_GID)?);
        let comm = at::COMM as usize;
        Some(Hit {
            probe,
            entry,
            time_nanos: field(at::TIME)?,
            pid: (pid_tgid >> 32) as u32,
            tid: pid_tgid as u32,
            uid: uid_gid as u32,
            gid: (uid_gid >> 32) as u32,
            cpu: field(at::CPU)? as u32,
            comm: bytes.get(comm..comm + 16)?.try_into().ok()?,
            cgroup: field(at::CGROUP)?,
            cookie: field(at::COOKIE)?,
            func_ip: field(at::FUNC_IP)?,
            ustack: field(at::USTACK)?,
            kstack: field(at::KSTACK)?,
            context: context.to_vec(),
            strings: texts_of(context, texts, bytes.get(at::CONTEXT + layout.context_size..)?),
        })
    }
}

/// Returns the strings that could be read.
fn texts_of(context: &[u8], texts: &[ContextWord], bytes: &[u8]) -> Vec<UserString> {
    let read = |(word, text): (&ContextWord, &[u8])| {
        let address: [u8; 8] = context.get(word.at as usize..word.at as usize + 8)?.try_into().ok()?;
        let length = i64::from_le_bytes(text[..8].try_into().ok()?);
        let length = usize::try_from(length).ok()?.checked_sub(1)?;
        let text = text[8..].get(..length)?.to_vec();
        Some(UserString { address: u64::from_le_bytes(address).wrapping_add_signed(word.plus), text })
    };
    texts.iter().zip(bytes.chunks_exact(TEXT_BYTES)).filter_map(read).collect()
}

struct Builder<'a> {
    catalog: &'a dyn Catalog,
    plan: Plan,
    probes: Vec<ProbeInfo>,
    layouts: Layouts,
    ring: BpfMapId,
    stacks: BpfMapId,
    callers: Callers,
    losses: BpfMapId,
}

impl<'a> Builder<'a> {
    fn new(plan: &Plan, catalog: &'a dyn Catalog) -> Self {
        let mut image = Image { sources: plan.image.sources.clone(), ..Image::default() };
        let mut map = |spec: MapSpec| image.add_map(spec);
        let spec = |name: &str, kind, key_size, value_size, max_entries| MapSpec {
            name: name.into(),
            kind,
            key_size,
            value_size,
            max_entries,
            flags: 0,
            home: Home::Linux,
            inner: None,
        };
        let ring = map(spec("xpu_ring", MapKind::Ringbuf, 0, 0, RING_BYTES));
        let declared = plan.linux_stacks.map(|it| plan.image.maps[it].max_entries);
        let n_stacks = declared.unwrap_or(stack::LINUX_STACKS);
        let stacks = map(spec("xpu_stacks", MapKind::StackTrace, 4, stack::LINUX_FRAMES * 8, n_stacks));
        let callers = Callers { map: map(callers::map("xpu_callers", n_stacks)), stacks: n_stacks };
        let targets = map(targets::map("xpu_targets"));
        let window = plan.window.map(|_| map(spec("xpu_window", MapKind::Array, 4, 8, 1)));
        let losses = map(spec("xpu_losses", MapKind::PercpuArray, 4, 8, COUNTED.len() as u32));
        let recording = Plan {
            sources: plan.sources.clone(),
            strings: plan.strings.clone(),
            image,
            linux_ring: Some(ring),
            linux_stacks: Some(stacks),
            linux_callers: Some(callers.map),
            linux_losses: Some(losses),
            targets: Some(targets),
            window,
            demand: requested(&plan.demand),
            ..Plan::default()
        };
        Builder {
            catalog,
            plan: recording,
            probes: Vec::new(),
            layouts: Layouts::default(),
            ring,
            stacks,
            callers,
            losses,
        }
    }

    fn add(&mut self, probe: &Probe) -> Result<(), RecorderError> {
        if probe.event == Event::Usdt {
            return Err(RecorderError::Usdt { probe: probe.name.clone() });
        }
        let number = self.probes.len() as u32;
        let (kind, size, format) = self.context(probe)?;
        let texts = texts(probe)?;
        let record_texts = format.as_ref().map(|it| record_texts(it, size)).unwrap_or_default();
        let threads = match (&probe.target, &format) {
            (ProbePlace::Tracepoint { category, name }, Some(format)) => format.scheduled_threads(category, name),
            _ => Vec::new(),
        };
        // Some probes fire for every process; if so, record only events of the targets.
        let targets = probe.scope.is_filtered(probe.event).then_some(&*threads);
        self.plan.loss_sites.extend(COUNTED.map(|loss| LossSite { loss, site: probe.site, table: None }));
        let is_function = matches!(kind, ProgramKind::Uprobe | ProgramKind::Uretprobe);
        let hit = HitProgram { number, size, is_function, targets, record_texts: &record_texts, texts: &texts };
        let entry = HitProgram { number: number | ENTRY, texts: &[], ..hit };
        let entry_program = match probe.entry_program {
            Some(_) => Some(self.program(probe, ProgramKind::Uprobe, &entry)?),
            None => None,
        };
        let program = self.program(probe, kind, &hit)?;
        self.probes.push(ProbeInfo {
            name: probe.name.clone(),
            fields: format.map(|it| recorded(&it)).unwrap_or_default(),
            returns: self.returned(probe),
            ustack: true,
            kstack: true,
            texts: texts.iter().map(|it| (*it).into()).collect(),
            everywhere: Some(is_everywhere(probe)),
        });
        self.layouts.probes.push(HitLayout { context_size: hit.context_size(), texts });
        self.plan.probes.push(Probe {
            program: Some(program),
            entry_program,
            tail_program: None,
            closure: None,
            // Its replay switches it.
            switch: None,
            ..probe.clone()
        });
        Ok(())
    }

    /// Returns the integer that a probed function returns, for the header.
    fn returned(&self, probe: &Probe) -> Option<String> {
        match (&probe.target, probe.event) {
            (ProbePlace::Function { object, function }, Event::Uretprobe) => {
                self.catalog.return_type(object, function).map(returned)
            }
            _ => None,
        }
    }

    fn context(&self, probe: &Probe) -> Result<(ProgramKind, usize, Option<TracepointFormat>), RecorderError> {
        Ok(match (&probe.target, probe.event) {
            (ProbePlace::Tracepoint { category, name }, _) => {
                let format = self
                    .catalog
                    .tracepoint(category, name)
                    .map_err(|reason| RecorderError::Tracepoint { probe: probe.name.clone(), reason })?;
                let size = record_size(&format);
                let kind = ProgramKind::Tracepoint { category: category.clone(), name: name.clone() };
                (kind, size, Some(format))
            }
            (_, Event::Profile) => (ProgramKind::PerfEvent, pt_regs::SIZE, None),
            (_, Event::Uretprobe) => (ProgramKind::Uretprobe, pt_regs::SIZE, None),
            _ => (ProgramKind::Uprobe, pt_regs::SIZE, None),
        })
    }

    fn program(&mut self, probe: &Probe, kind: ProgramKind, hit: &HitProgram) -> Result<ProgramId, RecorderError> {
        let assembled = self.write_program(hit, probe).finish()?;
        let image = &mut self.plan.image;
        Ok(image.add_program(Program {
            name: format!("record_{}", image.programs.len()),
            kind,
            insns: assembled.insns,
            map_refs: assembled.map_refs,
            lines: assembled.lines,
        }))
    }

    /// R6 the context, R7 the record, R8 the process and thread ids.
    fn write_program(&self, hit: &HitProgram, probe: &Probe) -> Assembler {
        let HitProgram { number, size, is_function, targets, record_texts, texts } = *hit;
        let texts_at = at::CONTEXT + hit.context_size();
        let mut asm = Assembler::new();
        let (out, full) = (asm.label(), asm.label());
        asm.line(probe.site.file.0 as usize, probe.site.line, 1);
        asm.mov(Reg(6), Reg::R1);
        self.reader(&mut asm).task_ids();
        asm.mov(Reg(8), Reg::R0);
        if let (Some(threads), Some(map)) = (targets, self.plan.targets) {
            leave_out_others(&mut asm, map, slot::KEY, Reg(6), threads, out);
        }
        // Entries are recorded at any time, for returns that happen later.
        if let (Some(map), true) = (self.plan.window, number & ENTRY == 0) {
            asm.load_only(map, slot::KEY, out);
            asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
        }
        asm.ld_map(Reg::R1, self.ring);
        asm.mov_imm(Reg::R2, (texts_at + texts.len() * TEXT_BYTES) as i64);
        asm.mov_imm(Reg::R3, 0);
        asm.call(helper::RINGBUF_RESERVE);
        asm.jump_if_imm(Cond::Eq, Reg::R0, 0, full);
        asm.mov(Reg(7), Reg::R0);
        asm.st_imm(Size::W, Reg(7), 0, record::HIT as i32);
        asm.st_imm(Size::W, Reg(7), at::PROBE, number as i32);
        asm.stx(Size::Dw, Reg(7), at::PID_TGID, Reg(8));
        self.facts(&mut asm, is_function);
        let callers = probe.target.is_at_entry(probe.event).then_some(self.callers);
        self.stack(&mut asm, number, StackSide::User, callers, at::USTACK);
        self.stack(&mut asm, number, StackSide::Kernel, None, at::KSTACK);
        // The first word of a tracepoint's record is Linux's own, and nothing after the last field
        // may be read.
        let first = if matches!(probe.target, ProbePlace::Tracepoint { .. }) { 8 } else { 0 };
        for word in [0, size.saturating_sub(1) / 8 * 8] {
            asm.st_imm(Size::Dw, Reg(7), (at::CONTEXT + word) as i16, 0);
        }
        let mut offset = first;
        while offset < size {
            let (width, bytes) = match size - offset {
                8.. => (Size::Dw, 8),
                4.. => (Size::W, 4),
                2.. => (Size::H, 2),
                _ => (Size::B, 1),
            };
            asm.ldx(width, Reg::R1, Reg(6), offset as i16);
            asm.stx(width, Reg(7), (at::CONTEXT + offset) as i16, Reg::R1);
            offset += bytes;
        }
        for (field, to) in record_texts.iter().zip(hit.record_texts_at()) {
            record_text(&mut asm, *field, to);
        }
        for (n, word) in texts.iter().enumerate() {
            text(&mut asm, *word, (texts_at + n * TEXT_BYTES) as i16);
        }
        asm.mov(Reg::R1, Reg(7));
        asm.mov_imm(Reg::R2, 0);
        asm.call(helper::RINGBUF_SUBMIT);
        asm.jump(out);
        asm.place(full);
        self.count(&mut asm, number, Loss::LinuxRingFull);
        asm.place(out);
        asm.mov_imm(Reg::R0, 0);
        asm.exit();
        asm
    }

    fn reader<'r>(&self, asm: &'r mut Assembler) -> ReadEmitter<'r> {
        let (pid_namespace, exec_id_offset) = (self.catalog.pid_namespace(), self.catalog.exec_id_offset());
        ReadEmitter { asm, machine: Machine { pid_namespace, exec_id_offset }, scratch: slot::SCRATCH }
    }

    fn facts(&self, asm: &mut Assembler, is_function: bool) {
        for (call, offset) in [
            (helper::KTIME_GET_NS, at::TIME),
            (helper::GET_CURRENT_UID_GID, at::UID_GID),
            (helper::GET_SMP_PROCESSOR_ID, at::CPU),
            (helper::GET_CURRENT_CGROUP_ID, at::CGROUP),
        ] {
            asm.call(call);
            asm.stx(Size::Dw, Reg(7), offset, Reg::R0);
        }
        asm.mov(Reg::R1, Reg(7));
        asm.alu_imm(Alu::Add, Reg::R1, at::COMM.into());
        asm.mov_imm(Reg::R2, 16);
        asm.call(helper::GET_CURRENT_COMM);
        for (call, offset) in [(helper::GET_ATTACH_COOKIE, at::COOKIE), (helper::GET_FUNC_IP, at::FUNC_IP)] {
            match is_function {
                true => {
                    asm.mov(Reg::R1, Reg(6));
                    asm.call(call);
                    asm.stx(Size::Dw, Reg(7), offset, Reg::R0);
                }
                false => asm.st_imm(Size::Dw, Reg(7), offset, 0),
            }
        }
    }

    /// Stores a stack's word. If Linux could not store the stack, counts that and stores 0.
    fn stack(&self, asm: &mut Assembler, number: u32, frames: StackSide, callers: Option<Callers>, offset: i16) {
        let (lost, done) = (asm.label(), asm.label());
        asm.st_imm(Size::Dw, Reg(7), offset, 0);
        self.reader(asm).stack(frames, Reg(6), self.stacks, callers, lost);
        asm.stx(Size::Dw, Reg(7), offset, Reg::R0);
        asm.jump(done);
        asm.place(lost);
        let other = asm.label();
        asm.jump_if_imm(Cond::Ne, Reg::R0, -EEXIST, other);
        asm.st_imm(Size::Dw, Reg(7), offset, COLLIDED as i32);
        self.count(asm, number, Loss::StackCollision);
        asm.jump(done);
        asm.place(other);
        self.count(asm, number, Loss::LinuxStack);
        asm.place(done);
    }

    /// Counts a loss of this probe.
    fn count(&self, asm: &mut Assembler, number: u32, loss: Loss) {
        let none = asm.label();
        let of_probe = COUNTED.iter().position(|it| *it == loss).unwrap_or_default();
        asm.st_imm(Size::W, Reg::FP, slot::KEY, ((number & !ENTRY) as usize * COUNTED.len() + of_probe) as i32);
        asm.find(self.losses, slot::KEY);
        asm.jump_if_imm(Cond::Eq, Reg::R0, 0, none);
        asm.mov_imm(Reg::R1, 1);
        asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
        asm.place(none);
    }

    fn finish(mut self) -> Recorder {
        self.plan.image.maps[self.losses].max_entries = self.plan.loss_sites.len().max(1) as u32;
        Recorder { plan: self.plan, probes: self.probes, layouts: self.layouts }
    }
}

/// The program that records one kind of hit.
#[derive(Clone, Copy)]
struct HitProgram<'a> {
    number: u32,
    /// Size of the context's fixed fields in bytes.
    size: usize,
    is_function: bool,
    /// If only events of the targets are recorded: offsets of the threads in a record of the
    /// scheduler.
    targets: Option<&'a [i16]>,
    /// Offsets of the fields that locate strings in the record.
    record_texts: &'a [usize],
    texts: &'a [ContextWord],
}

impl HitProgram<'_> {
    /// Returns the size of the recorded context in bytes.
    fn context_size(&self) -> usize {
        self.size.next_multiple_of(8) + self.record_texts.len() * RECORD_TEXT_BYTES
    }

    /// Returns where the record's strings are in the recorded context.
    fn record_texts_at(&self) -> impl Iterator<Item = usize> {
        (self.size.next_multiple_of(8)..).step_by(RECORD_TEXT_BYTES)
    }
}

/// Returns the strings to record for a probe, without duplicates.
fn texts(probe: &Probe) -> Result<Vec<ContextWord>, RecorderError> {
    let word =
        |it: &TextRead| it.address.ok_or_else(|| RecorderError::Text { probe: probe.name.clone(), line: it.site.line });
    let mut words = probe.texts.iter().map(word).collect::<Result<Vec<_>, _>>()?;
    words.sort();
    words.dedup();
    Ok(words)
}

/// Copies a string of the tracepoint's record, located by `field`, to offset `to` of the hit's
/// context (the hit is in R7), and updates the recorded field. An unreadable string becomes empty.
fn record_text(asm: &mut Assembler, field: usize, to: usize) {
    for word in (0..RECORD_TEXT_BYTES).step_by(8) {
        asm.st_imm(Size::Dw, Reg(7), (at::CONTEXT + to + word) as i16, 0);
    }
    asm.mov(Reg::R1, Reg(7));
    asm.alu_imm(Alu::Add, Reg::R1, (at::CONTEXT + to) as i32);
    asm.mov_imm(Reg::R2, TEXT_ROOM as i64);
    asm.ldx(Size::W, Reg::R3, Reg(6), field as i16);
    asm.alu_imm(Alu::And, Reg::R3, 0xffff);
    asm.alu(Alu::Add, Reg::R3, Reg(6));
    asm.call(helper::PROBE_READ_KERNEL_STR);
    let place = (RECORD_TEXT_BYTES << 16) | to;
    asm.st_imm(Size::W, Reg(7), (at::CONTEXT + field) as i16, place as i32);
}

/// Copies a string of the target to the record in R7.
fn text(asm: &mut Assembler, word: ContextWord, at: i16) {
    asm.mov(Reg::R1, Reg(7));
    asm.alu_imm(Alu::Add, Reg::R1, i32::from(at) + 8);
    asm.mov_imm(Reg::R2, TEXT_ROOM as i64);
    asm.ldx(Size::Dw, Reg::R3, Reg(6), word.at as i16);
    asm.mov_imm(Reg::R0, word.plus);
    asm.alu(Alu::Add, Reg::R3, Reg::R0);
    asm.call(helper::PROBE_READ_USER_STR);
    asm.stx(Size::Dw, Reg(7), at, Reg::R0);
}

/// Returns the offsets of a tracepoint's fields that locate strings.
fn record_texts(format: &TracepointFormat, size: usize) -> Vec<usize> {
    let fields = format.fields.iter().filter(|it| it.kind == TracepointFieldType::DataLoc);
    fields.map(|it| it.offset as usize).filter(|it| it + 4 <= size).collect()
}

/// Returns the size of a tracepoint's record, up to the end of its last fixed field.
fn record_size(format: &TracepointFormat) -> usize {
    let end = |it: &xputrace_model::catalog::TracepointField| {
        let size = match it.kind {
            TracepointFieldType::Int { size, .. } => size,
            TracepointFieldType::Chars(n) => n,
            TracepointFieldType::DataLoc => 4,
            TracepointFieldType::Other => 0,
        };
        (it.offset + size) as usize
    };
    format.fields.iter().map(end).max().unwrap_or(8).min(LONGEST_RECORD)
}
