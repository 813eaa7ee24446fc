//! Runs a plan over a recording, as if it were live.
//!
//! ```text
//! hits, launch starts ─by time─▶ programs of Linux ──────tags─┐
//! drains, in their order ────────────────────────────────────▶ pipeline
//! ```
//! GPU events go through the same pipeline as live ones. For hits of CPU probes, the engine runs
//! the programs that Linux would run, on what was recorded of each hit. Linux's launch handlers run
//! at the start of their launch, and set its tag before it is joined. All maps are the engine's.

use crate::names::{Demangle, Names};
use crate::pipeline::{self, CollectorTotals, Pipeline, ProcessIndex, ProcessInfo, Sink};
use crate::prints;
use crate::recording::{Damage, Entry, FrameInfo, GpuKind, Hit, Meta, ProbeInfo, Reader, RecordedText, hits};
use crate::switches::Switches;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use xputrace_bytecode::helper;
use xputrace_bytecode::probe::{self, pt_regs};
use xputrace_bytecode::targets;
use xputrace_bytecode::vm::Env;
use xputrace_model::loss::{Loss, Losses};
use xputrace_model::plan::cookie;
use xputrace_model::plan::{
    BpfMapId, Detail, HostEvent, HostEvents, Place, Plan, Probe, ProbeId, ProgramId, TextRead, record as plan_record,
};
use xputrace_model::schema::Event;
use xputrace_model::stack::{self, StackKey};
use xputrace_wire::marker;
use xputrace_wire::record::{Frame, Header, Launch, Record, framed, kind, records};
use zerocopy::{FromBytes, IntoBytes};

/// Why a plan cannot run over a recording.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the recording has no hits of {}; it has {}. {}", missing.join(", "), listed(recorded), again(record))]
    NotRecorded { missing: Vec<String>, recorded: Vec<String>, record: String },
    #[error("the script's handler of {probe} cannot run over a recording: hits of USDT probes are not recorded yet")]
    Usdt { probe: String },
    #[error("line {line} of the script reads a text at {probe} that was not recorded. {}", again(record))]
    TextNotRecorded { probe: String, line: u32, record: String },
    #[error(
        "line {line} of the script asks for the hits of {probe} in {}, but the recording has those in {}. {}, or {}",
        processes(*everywhere), processes(!*everywhere), again(record),
        if *everywhere { "leave `scope: \"system\"` out" } else { "add `scope: \"system\"`" }
    )]
    OtherScope { probe: String, line: u32, everywhere: bool, record: String },
    #[error("the script reads launch stacks, but the recording has none. {}", again(record))]
    NoLaunchStacks { record: String },
    #[error("of host events and CUDA calls, the recording lacks {}. {}", few(missing), again(record))]
    NoHostEvents { missing: Vec<String>, record: String },
    #[error("the recording has no lines of stacks. Add `--lines` before the `--` of `{record}`")]
    NoLines { record: String },
    #[error(
        "the script's device handlers ({}) cannot run over this recording: it is of a real GPU, whose threads it does \
         not have. They run over recordings of the software GPU, and on it",
        few(handlers)
    )]
    NoThreads { handlers: Vec<String> },
    #[error(transparent)]
    Pipeline(#[from] pipeline::Error),
}

fn again(record: &str) -> String {
    format!("Record what the script reads: `{record}`")
}

/// Lists names: the first ones, and how many more there are. A pattern of calls may match a thousand.
fn few(names: &[String]) -> String {
    const MOST: usize = 5;
    match names.len().checked_sub(MOST) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..MOST].join(", ")),
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "no CPU probes".into() } else { names.join(", ") }
}

fn processes(everywhere: bool) -> &'static str {
    if everywhere { "all processes" } else { "the traced processes alone" }
}

/// What a replay returns besides the handled events.
#[derive(Default)]
pub struct Outcome {
    /// Processes that used CUDA.
    pub processes: u64,
    /// The collectors' own totals.
    pub totals: Vec<CollectorTotals>,
    /// From the start of the recording to its last event.
    pub span_nanos: u64,
    /// What CPU probes lost during the recording, except stacks (handlers count the stacks that they use), and what of it
    /// is unreadable.
    pub losses: Losses,
    /// The unreadable parts of the recording.
    pub damage: Option<Damage>,
}

/// A recording that a plan can run over.
pub struct Opened {
    plan: Arc<Plan>,
    meta: Meta,
    tape: Tape,
}

/// Creates a pipeline for a plan over a recording. Runs nothing yet, so that `begin` handlers can
/// run first.
///
/// # Errors
/// The plan needs a probe that was not recorded, or cannot be loaded into the engine.
pub fn open(plan: Arc<Plan>, recording: Reader, demangle: Demangle) -> Result<(Pipeline, Opened), Error> {
    let meta = recording.meta().clone();
    check(&plan, &meta)?;
    let tape = Tape::load(recording);
    check_threads(&plan, &tape)?;
    let mut pipeline = Pipeline::all_native(plan.clone(), demangle)?;
    let missing: Vec<HostEvent> = meta.missing_kinds(plan.demand.host_events).collect();
    pipeline.has_no_account_of(HostEvents::of(&missing));
    Ok((pipeline, Opened { plan, meta, tape }))
}

impl Opened {
    /// Takes the names of frames, by stack: handlers may print them.
    pub fn take_frames(&mut self) -> FxHashMap<StackKey, Vec<FrameInfo>> {
        std::mem::take(&mut self.tape.frames)
    }

    /// Whether any process used the software GPU, whose times are meaningless.
    pub fn is_of_software_gpu(&self) -> bool {
        self.tape.gpus.contains(&GpuKind::Software) || self.meta.gpu == GpuKind::Software
    }

    /// What the recording says of itself.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// What the recording lacks, if that may matter.
    pub fn notes(&self) -> Vec<String> {
        self.lacked_python().into_iter().chain(self.lacked_events()).collect()
    }

    /// Names the events of handlers that are left out.
    fn lacked_events(&self) -> Option<String> {
        let handled =
            self.plan.probes.iter().filter_map(|it| if let Event::Host(kind) = it.event { Some(kind) } else { None });
        let handled = handled.fold(HostEvents::NONE, |all, it| all.with(HostEvents::of(&[it])));
        let missing: Vec<String> = self.meta.missing_kinds(handled).map(|it| it.name().to_owned()).collect();
        let record = self.plan.sources.record_command();
        let text =
            || format!("the recording has no {} events: what the script shows of them is missing", few(&missing));
        (!missing.is_empty()).then(|| format!("{}. {}", text(), again(&record)))
    }

    /// A program without Python has no Python frames anyway.
    fn lacked_python(&self) -> Option<String> {
        let lacks_python = self.plan.demand.has(Detail::Python) && !self.meta.launch_python;
        let is_python = self.meta.command.iter().any(|it| it.contains("python"));
        let record = self.plan.sources.record_command();
        (lacks_python && is_python).then(|| format!("the recording has no Python frames. {}", again(&record)))
    }

    /// Runs the plan over the whole recording. The caller runs `begin` and `end`.
    pub fn run(self, pipeline: &mut Pipeline, sink: &mut dyn Sink) -> Outcome {
        let mut playing = self.play();
        while playing.step(pipeline, sink) {}
        playing.finish(pipeline, sink)
    }

    /// Begins to run the plan over the recording, step by step: interpreted handlers run between two steps.
    pub fn play(self) -> Playing {
        let handlers = LinuxHandlers::of(&self.plan, &self.meta);
        let lost_stack = if self.meta.tells_losses { ENOMEM } else { EFAULT };
        let causes = self.tape.causes(handlers.launch.is_empty());
        Playing {
            began: self.meta.monotonic_nanos,
            tape: self.tape,
            at: 0,
            causes,
            handlers,
            lost_stack,
            clock: Clock::default(),
            totals: Vec::new(),
        }
    }
}

/// A recording that a plan runs over.
pub struct Playing {
    tape: Tape,
    /// How many of its entries have been handled.
    at: usize,
    /// What is left of [`Tape::causes`].
    causes: Vec<Cause>,
    handlers: LinuxHandlers,
    lost_stack: i64,
    clock: Clock,
    totals: Vec<CollectorTotals>,
    /// The start of the recording.
    began: u64,
}

/// The time of the recording, in CLOCK_MONOTONIC nanoseconds.
#[derive(Default)]
struct Clock {
    now: u64,
    /// Of the last two drains.
    drains: [u64; 2],
}

impl Playing {
    /// Handles the next drain of a process, and what CPU probes saw before. Returns false once nothing is left.
    pub fn step(&mut self, pipeline: &mut Pipeline, sink: &mut dyn Sink) -> bool {
        if self.at >= self.tape.entries.len() || sink.is_over() {
            return false;
        }
        let until = self.tape.time_of(self.at);
        self.run_causes(until, pipeline, sink);
        let Playing { tape, at, .. } = self;
        let entry = std::mem::replace(&mut tape.entries[*at], Entry::Symbols(Vec::new()));
        self.at += 1;
        self.replay(pipeline).0.take(&entry, sink);
        true
    }

    /// Handles what is left, and returns what the caller reports.
    pub fn finish(mut self, pipeline: &mut Pipeline, sink: &mut dyn Sink) -> Outcome {
        self.run_causes(u64::MAX, pipeline, sink);
        pipeline.finish(sink);
        let Playing { mut tape, clock, totals, began, .. } = self;
        if let Some(damage) = &tape.damage {
            tape.losses.add(Loss::RecordingDamaged, u64::from(damage.blocks).max(1));
        }
        Outcome {
            span_nanos: clock.now.saturating_sub(began),
            totals,
            losses: tape.losses,
            damage: tape.damage,
            processes: tape.pids.len() as u64,
        }
    }

    fn run_causes(&mut self, until: u64, pipeline: &mut Pipeline, sink: &mut dyn Sink) {
        while let Some(cause) = self.causes.pop_if(|it| it.time <= until && !sink.is_over()) {
            let (mut replay, tape) = self.replay(pipeline);
            replay.run(&cause, tape, sink);
        }
    }

    fn replay<'a>(&'a mut self, pipeline: &'a mut Pipeline) -> (Replay<'a>, &'a mut Tape) {
        let Playing { tape, handlers, lost_stack, clock, totals, .. } = self;
        (Replay { handlers, pipeline, clock, totals, lost_stack: *lost_stack }, tape)
    }
}

/// Checks that every CPU probe of the plan was recorded, in its scope.
fn check(plan: &Plan, meta: &Meta) -> Result<(), Error> {
    let record = plan.sources.record_command();
    if let Some(it) = plan.probes.iter().find(|it| it.event == Event::Usdt) {
        return Err(Error::Usdt { probe: it.name.clone() });
    }
    let is_cpu = |it: &&Probe| it.event.is_of_cpu();
    let mut recorded: Vec<String> = meta.probes.iter().map(|it| it.name.clone()).collect();
    recorded.dedup();
    let wanted = || plan.probes.iter().filter(is_cpu);
    let mut missing: Vec<String> = wanted().map(|it| it.name.clone()).filter(|it| !recorded.contains(it)).collect();
    missing.dedup();
    if !missing.is_empty() {
        return Err(Error::NotRecorded { missing, recorded, record });
    }
    if let Some(it) = wanted().find(|it| recorded_as(it, meta).is_none()) {
        let everywhere = hits::is_everywhere(it);
        return Err(Error::OtherScope { probe: it.name.clone(), line: it.site.line, everywhere, record });
    }
    if let Some((probe, text)) = first_unrecorded_text(plan, meta) {
        return Err(Error::TextNotRecorded { probe: probe.name.clone(), line: text.site.line, record });
    }
    if plan.demand.has(Detail::Stacks) && !meta.launch_stacks && meta.gpu != GpuKind::None {
        return Err(Error::NoLaunchStacks { record });
    }
    let missing = meta.missing_host_events(&plan.demand);
    if !missing.is_empty() {
        return Err(Error::NoHostEvents { missing, record });
    }
    if plan.reads_lines && !meta.lines {
        return Err(Error::NoLines { record });
    }
    Ok(())
}

/// Checks that the threads of kernels are known, if device handlers run in them.
fn check_threads(plan: &Plan, tape: &Tape) -> Result<(), Error> {
    let handlers: Vec<String> = plan.device_handlers().map(|it| plan.probes[it.probe.index()].name.clone()).collect();
    // Recordings of earlier versions don't say of which GPU they are: they were made on real ones.
    match tape.gpus.iter().any(|it| *it != GpuKind::Software) && !handlers.is_empty() {
        true => Err(Error::NoThreads { handlers }),
        false => Ok(()),
    }
}

/// Returns the number under which a probe's hits were recorded, if they were recorded in its scope.
fn recorded_as(probe: &Probe, meta: &Meta) -> Option<usize> {
    let mut of_name = meta.probes.iter().enumerate().filter(|(_, it)| it.name == probe.name);
    let is_alike = |it: &ProbeInfo| it.everywhere.is_none_or(|it| it == hits::is_everywhere(probe));
    // Some recordings contain each hit once per handler of the probe; use the first.
    of_name.find(|(_, it)| is_alike(it)).map(|it| it.0)
}

/// Returns the first text that a handler reads at a fixed location and that no hit carries.
fn first_unrecorded_text<'p>(plan: &'p Plan, meta: &Meta) -> Option<(&'p Probe, &'p TextRead)> {
    let is_recorded = |probe: &Probe, word: RecordedText| {
        meta.probes.iter().any(|it| it.name == probe.name && it.texts.contains(&word))
    };
    let texts = plan.probes.iter().flat_map(|probe| probe.texts.iter().map(move |it| (probe, it)));
    let mut unrecorded = texts.filter(|(probe, text)| text.address.is_some_and(|it| !is_recorded(probe, it.into())));
    unrecorded.next()
}

/// A recording in memory.
struct Tape {
    entries: Vec<Entry>,
    hits: Vec<Hit>,
    names: FxHashMap<(u32, u32), Vec<u8>>,
    comms: FxHashMap<(u32, u32), [u8; 16]>,
    pids: FxHashMap<u32, u32>,
    frames: FxHashMap<StackKey, Vec<FrameInfo>>,
    gpus: Vec<GpuKind>,
    losses: Losses,
    damage: Option<Damage>,
}

/// An event on a CPU, with its time.
struct Cause {
    time: u64,
    what: What,
}

enum What {
    /// Index into [`Tape::hits`].
    Hit(usize),
    /// A launch, by its location in the entries.
    Launch { entry: usize, ring: usize, offset: usize },
}

impl Tape {
    fn load(mut recording: Reader) -> Self {
        let mut tape = Tape {
            entries: Vec::new(),
            hits: Vec::new(),
            names: FxHashMap::default(),
            comms: FxHashMap::default(),
            pids: FxHashMap::default(),
            frames: FxHashMap::default(),
            gpus: Vec::new(),
            losses: Losses::default(),
            damage: None,
        };
        for entry in &mut recording {
            tape.add(entry);
        }
        tape.damage = recording.damage();
        tape
    }

    fn add(&mut self, entry: Entry) {
        match entry {
            Entry::Hit(hit) => self.hits.push(hit),
            Entry::Symbols(symbols) => self.frames.extend(symbols),
            Entry::Losses(losses) => {
                let told_here = losses.iter().filter(|it| !matches!(it.0, Loss::LinuxStack | Loss::StackCollision));
                told_here.for_each(|(loss, _, n)| self.losses.add(loss, n));
            }
            Entry::ProcessStart { process, pid, ref comm, pid_in_target, gpu, .. } => {
                self.pids.insert(process, pid);
                self.gpus.extend(Some(gpu).filter(|it| !self.gpus.contains(it)));
                let tid = if pid_in_target == 0 { pid } else { pid_in_target };
                self.comms.insert((process, tid), xputrace_model::text::padded(comm));
                self.entries.push(entry);
            }
            Entry::Wire { process, time_nanos, mut rings } => {
                rings.iter_mut().for_each(|ring| self.prepare(process, ring));
                self.entries.push(Entry::Wire { process, time_nanos, rings });
            }
            Entry::ProcessEnd { .. } => self.entries.push(entry),
        }
    }

    /// Learns names, and removes the tags that the recorded script set.
    fn prepare(&mut self, process: u32, ring: &mut [u8]) {
        for record in records(ring).map_while(Result::ok) {
            match record {
                Record::Name { id, text } => drop(self.names.insert((process, id), text.to_vec())),
                Record::Thread(it) => drop(self.comms.insert((process, it.tid), it.comm)),
                _ => {}
            }
        }
        let launches: Vec<usize> = launches_in(ring).collect();
        launches.into_iter().for_each(|it| set_tag(ring, it, None));
    }

    /// Returns everything that runs a program of Linux, latest first.
    fn causes(&self, hits_only: bool) -> Vec<Cause> {
        let hit = |(at, it): (usize, &Hit)| Cause { time: it.time_nanos, what: What::Hit(at) };
        let mut causes: Vec<Cause> = self.hits.iter().enumerate().map(hit).collect();
        for (entry, it) in self.entries.iter().enumerate().filter(|_| !hits_only) {
            let Entry::Wire { rings, .. } = it else { continue };
            for (ring, bytes) in rings.iter().enumerate() {
                for offset in launches_in(bytes) {
                    if let Some(launch) = launch_at(bytes, offset) {
                        causes.push(Cause { time: launch.start, what: What::Launch { entry, ring, offset } });
                    }
                }
            }
        }
        causes.sort_by_key(|it| std::cmp::Reverse(it.time));
        causes
    }

    /// Returns how far the CPU side must be before an entry is handled: a drain holds launches that
    /// started before it was taken.
    fn time_of(&self, at: usize) -> u64 {
        match &self.entries[at] {
            Entry::Wire { time_nanos, rings, .. } => {
                let starts = rings.iter().flat_map(|ring| launches_in(ring).map(move |it| (ring, it)));
                let starts = starts.filter_map(|(ring, at)| launch_at(ring, at)).map(|it| it.start);
                starts.max().unwrap_or(0).max(*time_nanos)
            }
            Entry::ProcessEnd { time_nanos, .. } => *time_nanos,
            _ => 0,
        }
    }
}

struct Replay<'a> {
    handlers: &'a LinuxHandlers,
    pipeline: &'a mut Pipeline,
    clock: &'a mut Clock,
    totals: &'a mut Vec<CollectorTotals>,
    /// What Linux answers if a hit's stack has the word 0.
    lost_stack: i64,
}

/// Linux's programs: by recorded probe, and at the launch marker.
struct LinuxHandlers {
    hits: Vec<Vec<LinuxHandler>>,
    /// Each with its program.
    launch: Vec<(ProbeId, ProgramId)>,
}

struct LinuxHandler {
    probe: ProbeId,
    program: Option<ProgramId>,
    entry_program: Option<ProgramId>,
}

impl LinuxHandlers {
    fn of(plan: &Plan, meta: &Meta) -> Self {
        let in_linux = || ProbeId::each(&plan.probes).filter(|(_, it)| it.place == Place::Linux);
        let mut hits: Vec<Vec<LinuxHandler>> = meta.probes.iter().map(|_| Vec::new()).collect();
        for (probe, it) in in_linux().filter(|(_, it)| it.event != Event::Launch) {
            if let Some(at) = recorded_as(it, meta) {
                hits[at].push(LinuxHandler { probe, program: it.program, entry_program: it.entry_program });
            }
        }
        let launch = in_linux().filter(|(_, it)| it.event == Event::Launch);
        LinuxHandlers { hits, launch: launch.filter_map(|(probe, it)| Some((probe, it.program?))).collect() }
    }
}

impl Replay<'_> {
    fn run(&mut self, cause: &Cause, tape: &mut Tape, sink: &mut dyn Sink) {
        self.advance(cause.time);
        let state = self.pipeline.state_mut();
        if !state.switches.take_turned().is_empty() {
            state.tell_linux_programs();
        }
        match cause.what {
            What::Hit(at) => {
                sink.hit(&tape.hits[at], state);
                self.run_hit(&tape.hits[at], sink);
            }
            What::Launch { entry, ring, offset } => {
                let Entry::Wire { process, rings, .. } = &tape.entries[entry] else { return };
                let (process, Some(launch)) = (*process, launch_at(&rings[ring], offset)) else { return };
                let tag = self.run_marker(process, &launch, tape, sink);
                if let (Some(_), Entry::Wire { rings, .. }) = (tag, &mut tape.entries[entry]) {
                    set_tag(&mut rings[ring], offset, tag);
                }
            }
        }
    }

    fn run_hit(&mut self, hit: &Hit, sink: &mut dyn Sink) {
        let Some(handlers) = self.handlers.hits.get(hit.probe as usize) else { return };
        let state = self.pipeline.state_mut();
        // Every recorded hit is a target's. The map holds only the current thread.
        let (word, bit) = targets::word_and_bit(hit.tid);
        if let Some(targets) = state.plan.targets {
            state.engine.update(targets, &word.to_le_bytes(), &bit.to_le_bytes(), 0);
        }
        let cookie = cookie_of(hit, &mut state.names);
        for it in handlers {
            let Some(program) = (if hit.entry { it.entry_program } else { it.program }) else { continue };
            let memory = Memory::of_hit(hit);
            let lost_stack = self.lost_stack;
            let mut env = CpuEnv {
                plan: &state.plan,
                names: &state.names,
                switches: &mut state.switches,
                hit,
                cookie,
                memory,
                lost_stack,
                sink,
            };
            if let Err(fault) = state.engine.run(program, &hit.context, &mut env) {
                state.count_fault(it.probe, fault);
            }
        }
        if let Some(targets) = state.plan.targets {
            state.engine.update(targets, &word.to_le_bytes(), &0u64.to_le_bytes(), 0);
        }
    }

    /// Runs Linux's launch handlers as the collector's marker would; returns the tag that they set.
    fn run_marker(&mut self, process: u32, launch: &Launch, tape: &Tape, sink: &mut dyn Sink) -> Option<i64> {
        // The recording may hold calls of kinds that the script doesn't ask for.
        let calls = self.pipeline.state_mut().plan.demand.calls;
        if !launch.call().is_some_and(|it| calls.contains(it)) {
            return None;
        }
        let pid = tape.pids.get(&process).copied().unwrap_or(0);
        let symbol = tape.names.get(&(process, launch.symbol)).filter(|_| launch.symbol != 0);
        let words = marker::words(launch, pid, if symbol.is_some() { SYMBOL_AT } else { 0 });
        let comm = tape.comms.get(&(process, launch.tid)).copied().unwrap_or_default();
        let hit =
            Hit { time_nanos: launch.start, pid, tid: launch.tid, comm, context: marker_regs(), ..Hit::default() };
        let state = self.pipeline.state_mut();
        for (probe, program) in &self.handlers.launch {
            let memory = Memory { parts: vec![(WORDS_AT, words.as_bytes()), (SYMBOL_AT, symbol.map_or(&[], |it| it))] };
            let (plan, names, switches, hit) = (&*state.plan, &state.names, &mut state.switches, &hit);
            let mut env = CpuEnv { plan, names, switches, hit, cookie: 0, memory, lost_stack: EFAULT, sink };
            if let Err(fault) = state.engine.run(*program, &hit.context, &mut env) {
                state.count_fault(*probe, fault);
            }
        }
        let mut tag = None;
        state.engine.drain(state.plan.tags?, &mut |_, slot| {
            let half = |at: usize| xputrace_store::codec::word(slot, at);
            if half(0) != 0 {
                tag = Some(half(8) as i64);
            }
        });
        tag
    }

    fn take(&mut self, entry: &Entry, sink: &mut dyn Sink) {
        match entry {
            Entry::ProcessStart { process, pid, pid_in_target, comm, generation, time_nanos, gpu } => {
                self.fill_up_to(*process);
                self.pipeline.add_process(ProcessInfo {
                    is_attached: false,
                    pid: *pid,
                    pid_in_target: *pid_in_target,
                    comm: comm.clone(),
                    generation: *generation,
                    gpu: *gpu,
                });
                self.advance(*time_nanos);
            }
            Entry::Wire { process, time_nanos, rings } => {
                self.fill_up_to(process.saturating_add(1));
                self.drain_at(*time_nanos);
                self.pipeline.feed(ProcessIndex(*process), rings, sink);
                self.advance(*time_nanos);
            }
            Entry::ProcessEnd { process, time_nanos, totals } => {
                self.pipeline.end_process(ProcessIndex(*process), **totals, sink);
                self.totals.push(**totals);
                self.advance(*time_nanos);
            }
            Entry::Hit(_) | Entry::Symbols(_) | Entry::Losses(_) => {}
        }
    }

    /// Adds processes whose start was lost with a damaged block, so that later ones keep their
    /// numbers.
    fn fill_up_to(&mut self, n: u32) {
        while self.pipeline.n_processes() < (n as usize).min(MOST_PROCESSES) {
            self.pipeline.add_process(ProcessInfo { comm: "?".into(), ..ProcessInfo::default() });
        }
    }

    fn advance(&mut self, time: u64) {
        self.clock.now = self.clock.now.max(time);
    }

    /// Says what a run says before it reads the rings: host events that ended before the drain before the last have
    /// been handled.
    fn drain_at(&mut self, time: u64) {
        let state = self.pipeline.state_mut();
        if !state.switches.is_empty() {
            state.set_time(time, self.clock.drains[0]);
        }
        self.clock.drains = [self.clock.drains[1], time];
    }
}

/// Maximum number of such processes: a higher number is damage, and each costs some KiB.
const MOST_PROCESSES: usize = 1 << 12;

/// Made-up addresses where a handler at the marker finds its words and the kernel's name.
const WORDS_AT: u64 = 0x1000_0000;
const SYMBOL_AT: u64 = 0x2000_0000;

fn marker_regs() -> Vec<u8> {
    let mut regs = vec![0; pt_regs::SIZE];
    for (at, value) in pt_regs::ARGUMENTS.into_iter().zip([WORDS_AT, 0]) {
        regs[at as usize..at as usize + 8].copy_from_slice(&value.to_le_bytes());
    }
    regs
}

/// Returns the offsets of the launch records in a ring's bytes.
fn launches_in(ring: &[u8]) -> impl Iterator<Item = usize> {
    let is_launch = |it: &Frame<'_>| it.header.kind == kind::LAUNCH && it.body().len() >= size_of::<Launch>();
    framed(ring).filter(is_launch).map(|it| it.offset)
}

fn launch_at(ring: &[u8], offset: usize) -> Option<Launch> {
    Launch::read_from_prefix(ring.get(offset + size_of::<Header>()..)?).ok().map(|it| it.0)
}

fn set_tag(ring: &mut [u8], offset: usize, tag: Option<i64>) {
    let Some(mut launch) = launch_at(ring, offset) else { return };
    launch.flags = (launch.flags & !Launch::TAGGED) | if tag.is_some() { Launch::TAGGED } else { 0 };
    launch.tag = tag.unwrap_or(0);
    let from = offset + size_of::<Header>();
    ring[from..from + size_of::<Launch>()].copy_from_slice(launch.as_bytes());
}

/// Returns a hit's cookie in this run, whose name ids differ from the recorded run's.
fn cookie_of(hit: &Hit, names: &mut Names) -> u64 {
    let name = hit.strings.iter().find(|it| it.address == hits::FUNCTION_NAME);
    name.map_or(hit.cookie, |it| cookie::renamed(hit.cookie, names.intern(&xputrace_model::text::from_bytes(&it.text))))
}

/// What a handler may read of the target's memory.
struct Memory<'a> {
    parts: Vec<(u64, &'a [u8])>,
}

impl<'a> Memory<'a> {
    fn of_hit(hit: &'a Hit) -> Self {
        Memory { parts: hit.strings.iter().map(|it| (it.address, it.text.as_slice())).collect() }
    }

    /// Returns the bytes from an address to the end of what was recorded there.
    fn at(&self, address: u64) -> Option<&'a [u8]> {
        let from = |(start, bytes): &(u64, &'a [u8])| {
            let skip = usize::try_from(address.checked_sub(*start)?).ok()?;
            bytes.get(skip..).filter(|it| !it.is_empty() || skip == 0)
        };
        self.parts.iter().find_map(from)
    }
}

/// The environment of a recorded hit.
struct CpuEnv<'a> {
    plan: &'a Plan,
    names: &'a Names,
    switches: &'a mut Switches,
    hit: &'a Hit,
    /// Id of the probed function's name in this run.
    cookie: u64,
    memory: Memory<'a>,
    /// What Linux answers if the hit's stack has the word 0.
    lost_stack: i64,
    sink: &'a mut dyn Sink,
}

/// Linux's answers if there is no stack, and if it could not store one.
const EFAULT: i64 = -(probe::EFAULT as i64);
const ENOMEM: i64 = -12;
const EEXIST: i64 = -(probe::EEXIST as i64);
/// Made-up offset, relative to the task, where programs over a recording find the exec generation
/// of a hit's process, for [`xputrace_model::catalog::Catalog::exec_id_offset`].
pub const EXEC_ID_OFFSET: u32 = 0x3000;

impl Env for CpuEnv<'_> {
    fn ktime_ns(&mut self) -> u64 {
        self.hit.time_nanos
    }

    fn pid_tgid(&mut self) -> u64 {
        u64::from(self.hit.pid) << 32 | u64::from(self.hit.tid)
    }

    fn uid_gid(&mut self) -> u64 {
        u64::from(self.hit.gid) << 32 | u64::from(self.hit.uid)
    }

    fn comm(&mut self, out: &mut [u8]) {
        let n = out.len().min(16);
        out[..n].copy_from_slice(&self.hit.comm[..n]);
    }

    fn cpu(&mut self) -> u32 {
        self.hit.cpu
    }

    fn cgroup_id(&mut self) -> u64 {
        self.hit.cgroup
    }

    fn stack_id(&mut self, flags: u64) -> i64 {
        let word = if flags & helper::STACK_USER as u64 != 0 { self.hit.ustack } else { self.hit.kstack };
        match word {
            0 => self.lost_stack,
            hits::COLLIDED => EEXIST,
            stack::EMPTY => EFAULT,
            taken => i64::from(taken as u32),
        }
    }

    fn attach_cookie(&mut self) -> u64 {
        self.cookie
    }

    fn func_ip(&mut self) -> u64 {
        self.hit.func_ip
    }

    fn read_memory(&mut self, user: bool, address: u64, out: &mut [u8]) -> bool {
        if let (StackKey::LinuxUser { exec, .. }, false) = (StackKey::from_word(self.hit.ustack), user)
            && address == u64::from(EXEC_ID_OFFSET)
        {
            out.fill(0);
            out.first_mut().into_iter().for_each(|it| *it = exec);
            return true;
        }
        let bytes = self.memory.at(address).filter(|_| user).and_then(|it| it.get(..out.len()));
        bytes.map(|it| out.copy_from_slice(it)).is_some()
    }

    fn read_str(&mut self, user: bool, address: u64, out: &mut [u8]) -> i64 {
        let Some(bytes) = self.memory.at(address).filter(|_| user && !out.is_empty()) else { return EFAULT };
        let end = bytes.iter().position(|it| *it == 0).unwrap_or(bytes.len()).min(out.len() - 1);
        out[..end].copy_from_slice(&bytes[..end]);
        out[end] = 0;
        end as i64 + 1
    }

    fn output(&mut self, _map: BpfMapId, data: &[u8]) -> bool {
        let is_hit = data.first_chunk::<4>().is_some_and(|it| u32::from_le_bytes(*it) == plan_record::HIT);
        let switches = &mut *self.switches;
        is_hit || prints::record(self.plan, self.names, &mut |it, on, at| switches.turn(it, on, at), data, self.sink)
    }

    fn name(&mut self, id: u64) -> &[u8] {
        self.names.bytes(id)
    }
}
