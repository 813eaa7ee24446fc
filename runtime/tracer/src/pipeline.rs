//! Bytes in, handled events and tables out.
//!
//! ```text
//! feed: rings of one drain ─┬─ names, stacks, threads, launches (all rings first)
//!                           └─ clocks, kernels, flushes ─▶ join ─▶ events ─sort─▶ handlers
//! ```
//! Events of a process are handled in order of their end, up to a watermark (docs/JOIN.md).

use crate::busy::BusyTime;
use crate::clock::ClockOffset;
use crate::context::{self, Comm, Identity, LaunchFacts, Symbol};
use crate::join::Pending;
use crate::names::{Demangle, Names};
use crate::state::{IdMap, MappingInfo, State, Target};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use xputrace_bytecode::image::MapSpec;
use xputrace_bytecode::vm::{Engine, LoadError, RemoteMap};
use xputrace_model::context::{GpuContext, WORDS, word};
use xputrace_model::loss::{Account, Loss, Losses};
use xputrace_model::output::Output;
use xputrace_model::plan::{Place, Plan, StringId};
use xputrace_model::schema::Event;
use xputrace_model::stack::StackKey;
use xputrace_model::table::{Cell, Key, TableId};
use xputrace_wire::record::{self, Header, Kernel, Launch, Record, UNKNOWN, kind};
use xputrace_wire::region::Lost;
use zerocopy::FromBytes;

/// Where the pipeline's results go, and what it asks of the session.
pub trait Sink {
    /// A line that a handler printed.
    fn output(&mut self, output: Output);
    /// Runs an interpreted GPU handler over an event. Its strings are ids of `state.names()`.
    /// Kernels whose launch is not known come too, with word `JOINED` 0: whoever runs the
    /// handler decides by what it reads, as compiled handlers do themselves.
    fn interpret(&mut self, probe: usize, event: &GpuContext, state: &mut State);
    /// In a replay: time has come this far (CLOCK_MONOTONIC nanoseconds of the recording), so
    /// that intervals can fire.
    fn advance(&mut self, now_nanos: u64, state: &mut State) {
        let _ = (now_nanos, state);
    }
    /// A handler called `exit(code)`.
    fn exit(&mut self, code: i64);
    /// Whether the run is over: no further event is handled.
    fn is_over(&self) -> bool {
        false
    }
}

/// Number of a process in this run, in order of appearance; a process that execs gets a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessIndex(pub u32);

/// A process as its events name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessInfo {
    /// In the tracer's namespace.
    pub pid: u32,
    /// The process id as the target sees it, where that differs; 0 where it is the same.
    pub pid_in_target: u32,
    /// Name of the process.
    pub comm: String,
    /// Tells images of one process id apart.
    pub generation: u32,
}

/// The collector's own counts: what it wrote, and what it lost ([`Lost`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct CollectorTotals {
    pub kernels: u64,
    pub kernel_nanos: u64,
    pub launches: u64,
    pub graph_launches: u64,
    pub failed_launches: u64,
    pub captured_launches: u64,
    /// Nanoseconds that the collector's callbacks took.
    pub callback_nanos: u64,
    pub flushes: u64,
    /// Indexed by [`Lost`].
    pub lost: [u64; Lost::COUNT],
    /// Ring positions that could not be: their bytes were skipped.
    pub broken_rings: u64,
}

/// Bounds on what is kept of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Launches that wait for their kernels; about 110 bytes each.
    pub pending_launches: usize,
    /// Graph launches kept for further kernels of their graph.
    pub graph_launches: usize,
    /// Events that wait for the watermark; about 200 bytes each.
    pub buffered_events: usize,
    /// Kernels that wait for their launch; about 100 bytes each.
    pub orphan_kernels: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { pending_launches: 1 << 20, graph_launches: 8192, buffered_events: 1 << 20, orphan_kernels: 1 << 17 }
    }
}

/// Why a plan cannot run here.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot load the script's handlers into the tracer's engine")]
    Load(#[from] LoadError),
}

/// GPUs whose busy time is kept: device ids come from the target.
const MOST_DEVICES: usize = 64;

/// What the output waits for: the oldest launch whose kernel has not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub process: ProcessIndex,
    /// Demangled name of the kernel, or the call's name.
    pub name: Arc<str>,
    /// CLOCK_MONOTONIC nanoseconds at which it was launched.
    pub since_nanos: u64,
    /// Events that wait behind it.
    pub events: usize,
}

/// Decodes, joins, orders and handles the events of all processes of a run.
pub struct Pipeline {
    state: State,
    processes: Vec<Process>,
    handlers: Handlers,
    strings: Strings,
    losses: Losses,
    account: Account,
    lost_by_name: FxHashMap<StringId, u64>,
    limits: Limits,
    busy: FxHashMap<u32, BusyTime>,
}

impl Pipeline {
    /// Loads the plan's handlers that run in the tracer. `remote` supplies the maps that live
    /// in the kernel, by index in the image.
    ///
    /// # Errors
    /// When a program or map cannot be loaded into the engine.
    pub fn new(
        plan: Arc<Plan>,
        demangle: Demangle,
        remote: &mut dyn FnMut(usize, &MapSpec) -> Option<Box<dyn RemoteMap>>,
    ) -> Result<Self, Error> {
        let handlers = Handlers::of(&plan);
        let engine = Engine::new(&plan.image, &handlers.programs(), remote)?;
        Ok(Self::with_engine(plan, handlers, engine, demangle, false))
    }

    /// The same with every map in the engine, and the kernel's programs beside the tracer's.
    pub(crate) fn all_native(plan: Arc<Plan>, demangle: Demangle) -> Result<Self, Error> {
        let handlers = Handlers::of(&plan);
        let kernel = plan.probes.iter().filter(|it| it.place == Place::Linux);
        let mut programs = handlers.programs();
        programs.extend(kernel.flat_map(|it| it.program.into_iter().chain(it.entry_program)));
        programs.sort_unstable();
        programs.dedup();
        let engine = Engine::new(&plan.image, &programs, &mut |_, _| None)?;
        Ok(Self::with_engine(plan, handlers, engine, demangle, true))
    }

    fn with_engine(plan: Arc<Plan>, handlers: Handlers, engine: Engine, demangle: Demangle, all_native: bool) -> Self {
        let mut names = Names::new(&plan.strings);
        let strings = Strings::new(demangle, &mut names);
        let state = State { plan, engine, names, targets: Vec::new(), faults: FxHashMap::default(), all_native };
        Pipeline {
            state,
            processes: Vec::new(),
            handlers,
            strings,
            losses: Losses::default(),
            account: Account::default(),
            lost_by_name: FxHashMap::default(),
            limits: Limits::default(),
            busy: FxHashMap::default(),
        }
    }

    /// Other bounds than the default ones.
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// A process whose collector was armed.
    pub fn add_process(&mut self, info: ProcessInfo) -> ProcessIndex {
        let index = ProcessIndex(self.processes.len() as u32);
        self.processes.push(Process::new(index, &info, self.limits));
        self.state.targets.push(Target::new(info));
        index
    }

    /// How many processes there are.
    pub fn n_processes(&self) -> usize {
        self.processes.len()
    }

    /// Thread ids as the target sees them, and as the tracer does: for targets in another pid
    /// namespace. Others are taken as they are.
    pub fn translate_threads(&mut self, process: ProcessIndex, ids: impl IntoIterator<Item = (u32, u32)>) {
        if let Some(process) = self.processes.get_mut(process.0 as usize) {
            process.thread_ids.extend(ids);
        }
    }

    /// Takes one drain of a process's rings, and handles what is in order by now.
    pub fn feed(&mut self, process: ProcessIndex, rings: &[Vec<u8>], sink: &mut dyn Sink) {
        let at = process.0 as usize;
        if at >= self.processes.len() {
            return;
        }
        rings.iter().for_each(|ring| self.take_causes(at, ring));
        self.retry_orphans(at);
        rings.iter().for_each(|ring| self.take_activity(at, ring));
        self.enforce_limits(at);
        self.handle_ready(at, Reach::Watermark, sink);
    }

    /// The process is gone or was disarmed: handles all that is left, and counts what never came.
    pub fn end_process(&mut self, process: ProcessIndex, totals: CollectorTotals, sink: &mut dyn Sink) {
        let at = process.0 as usize;
        let Some(it) = self.processes.get_mut(at).filter(|it| !it.ended) else { return };
        it.ended = true;
        self.release_orphans(at, u64::MAX);
        self.handle_ready(at, Reach::Everything, sink);
        self.count_lost_launches(at);
        self.reconcile(at, &totals);
    }

    /// Ends every process that still runs, with no totals of their collectors.
    pub fn finish(&mut self, sink: &mut dyn Sink) {
        for at in 0..self.processes.len() {
            if !self.processes[at].ended {
                self.release_orphans(at, u64::MAX);
                self.handle_ready(at, Reach::Everything, sink);
                self.count_lost_launches(at);
                self.processes[at].ended = true;
            }
        }
    }

    /// What became of the launches so far. While a process runs, launches in flight are neither
    /// joined nor lost.
    pub fn account(&self) -> Account {
        self.account
    }

    /// Nanoseconds in which a GPU ran at least one kernel, of the GPU that was busiest.
    pub fn busy_nanos(&self) -> u64 {
        self.busy.values().map(BusyTime::nanos).max().unwrap_or(0)
    }

    /// Everything lost so far, by kind and line of the script.
    pub fn losses(&self) -> Losses {
        let mut losses = self.losses.clone();
        losses.merge(&self.state.handler_losses());
        losses
    }

    /// Launches whose kernels never came, by name, most first.
    pub fn lost_by_name(&self) -> Vec<(Arc<str>, u64)> {
        let text = |id: StringId| self.state.names.get(id.into()).cloned().unwrap_or_else(|| Arc::from(""));
        let mut lost: Vec<_> = self.lost_by_name.iter().map(|(id, n)| (text(*id), *n)).collect();
        lost.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        lost
    }

    /// Launches whose kernels may still come, over all processes.
    pub fn in_flight(&self) -> usize {
        self.processes.iter().filter(|it| !it.ended).map(|it| it.pending.n_waiting()).sum()
    }

    /// What the output waits for, where events wait.
    pub fn waiting(&self) -> Option<Waiting> {
        let waiting = |it: &Process| {
            let launch = *it.oldest_withholding().filter(|_| !it.events.is_empty())?;
            let name = it.launch_symbol(&launch).name;
            let name = self.state.names.get(name).cloned().unwrap_or_else(|| Arc::from(""));
            Some(Waiting { process: it.index, name, since_nanos: launch.start, events: it.events.len() })
        };
        self.processes.iter().filter(|it| !it.ended).filter_map(waiting).min_by_key(|it| it.since_nanos)
    }

    /// The engine, the string table, the processes.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The same, for handlers that change maps.
    pub fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    /// The string table.
    pub fn names(&self) -> &Names {
        &self.state.names
    }

    /// Return addresses of a stack that a collector took.
    pub fn stack(&self, stack: StackKey) -> Option<(ProcessIndex, &[u64])> {
        self.state.stack(stack)
    }

    /// The engine's part of a map.
    pub fn part(&self, table: TableId) -> Vec<(Key, Cell)> {
        self.state.part(table)
    }

    /// The same, and leaves it empty.
    pub fn drain_part(&mut self, table: TableId) -> Vec<(Key, Cell)> {
        self.state.drain_part(table)
    }
}

// --- Decoding

impl Pipeline {
    /// All records but those of the GPU's side: what kernels refer to.
    fn take_causes(&mut self, at: usize, bytes: &[u8]) {
        let left = scan(bytes, |header, whole| {
            match header.kind {
                kind::LAUNCH => match Launch::read_from_prefix(&whole[size_of::<Header>()..]) {
                    Ok((launch, _)) => self.take_launch(at, &launch),
                    Err(_) => return false,
                },
                kind::NAME | kind::STACK | kind::THREAD | kind::MAPPING => {
                    return match record::records(whole).next() {
                        Some(Ok(record)) => self.take_description(at, record),
                        _ => false,
                    };
                }
                _ => {}
            }
            true
        });
        self.losses.add(Loss::Malformed, u64::from(left > 0));
    }

    /// Clocks, kernels and flushes, in their order.
    fn take_activity(&mut self, at: usize, bytes: &[u8]) {
        let mut malformed = 0;
        scan(bytes, |header, whole| {
            let body = &whole[size_of::<Header>()..];
            let sound = match header.kind {
                kind::KERNEL => Kernel::read_from_prefix(body).map(|(it, _)| self.take_kernel(at, it)).is_ok(),
                kind::CLOCK => record::Clock::read_from_prefix(body).map(|(it, _)| self.take_clock(at, &it)).is_ok(),
                kind::FLUSH => record::Flush::read_from_prefix(body).map(|(it, _)| self.take_flush(at, &it)).is_ok(),
                _ => true,
            };
            malformed += u64::from(!sound);
            sound
        });
        self.losses.add(Loss::Malformed, malformed);
    }

    fn take_clock(&mut self, at: usize, pair: &record::Clock) {
        let stepped = self.processes[at].clock.update(pair);
        self.losses.add(Loss::ClockStep, stepped.into());
    }

    fn take_description(&mut self, at: usize, record: Record<'_>) -> bool {
        let process = &mut self.processes[at];
        let target = &mut self.state.targets[at];
        match record {
            // An id keeps its first text: a target cannot make the string table grow without end.
            Record::Name { id, .. } if process.names.get(id).is_some() => {}
            Record::Name { id, text } => {
                let text = String::from_utf8_lossy(text);
                let symbol = self.strings.symbol(&text, &mut self.state.names);
                if !process.names.insert(id, symbol) {
                    self.losses.add(Loss::NameTableFull, 1);
                }
            }
            Record::Stack { id, frames } => {
                if !target.stacks.insert(id, frames.into_boxed_slice()) {
                    self.losses.add(Loss::StackTableFull, 1);
                }
            }
            Record::Thread(thread) => process.name_thread(thread.tid, thread.comm),
            Record::Mapping { mapping, path } => {
                let it = MappingInfo {
                    start: mapping.start,
                    end: mapping.end,
                    file_offset: mapping.file_offset,
                    inode: mapping.inode,
                    device: mapping.device,
                    path: String::from_utf8_lossy(path).into_owned(),
                };
                if !target.add_mapping(it) {
                    self.losses.add(Loss::Malformed, 1);
                }
            }
            _ => {}
        }
        true
    }

    #[inline]
    fn take_launch(&mut self, at: usize, launch: &Launch) {
        if !self.handlers.expect_launches {
            return;
        }
        let process = &mut self.processes[at];
        process.launch_records += 1;
        if launch.flags & Launch::CAPTURED != 0 {
            self.account.captured += 1;
            process.captured_records += 1;
            return;
        }
        self.account.launches += 1;
        process.newest_launch_end = process.newest_launch_end.max(launch.end);
        if launch.result != 0 {
            self.account.failed += 1;
        } else if self.handlers.expect_kernels {
            process.pending.insert(launch);
        }
        if !self.handlers.launch.is_empty() {
            process.push(Joined::of_launch(launch));
        }
    }

    #[inline]
    fn take_kernel(&mut self, at: usize, mut kernel: Kernel) {
        if !self.handlers.expect_kernels {
            return;
        }
        let process = &mut self.processes[at];
        self.account.kernels += 1;
        process.kernels += 1;
        let timed = kernel.start != 0 && kernel.end >= kernel.start;
        if timed {
            self.account.kernel_nanos = self.account.kernel_nanos.wrapping_add(kernel.end - kernel.start);
            kernel.start = process.clock.to_monotonic(kernel.start);
            kernel.end = process.clock.to_monotonic(kernel.end);
        } else {
            process.untimed += 1;
            self.losses.add(Loss::NoTimestamps, 1);
        }
        match process.pending.join(kernel.correlation, kernel.context) {
            Some((launch, first)) => {
                self.account.joined += u64::from(first);
                process.note_join(&launch);
                if timed {
                    process.push(Joined::of_kernel(&kernel, Some(&launch)));
                }
            }
            None if self.handlers.expect_launches => process.orphans.push(Orphan { kernel, timed, flushes_seen: 0 }),
            None if timed => process.push(Joined::of_kernel(&kernel, None)),
            None => {}
        }
    }

    fn take_flush(&mut self, at: usize, flush: &record::Flush) {
        let process = &mut self.processes[at];
        process.flushed_until = process.flushed_until.max(flush.began);
        process.age_horizons();
        process.orphans.iter_mut().for_each(|it| it.flushes_seen += 1);
        self.release_orphans(at, ORPHAN_FLUSHES);
    }

    /// Kernels that came before their launch: a launch record is written when the call returns.
    fn retry_orphans(&mut self, at: usize) {
        let process = &mut self.processes[at];
        if process.orphans.is_empty() {
            return;
        }
        for orphan in std::mem::take(&mut process.orphans) {
            match process.pending.join(orphan.kernel.correlation, orphan.kernel.context) {
                Some((launch, first)) => {
                    self.account.joined += u64::from(first);
                    process.note_join(&launch);
                    if orphan.timed {
                        process.push(Joined::of_kernel(&orphan.kernel, Some(&launch)));
                    }
                }
                None => process.orphans.push(orphan),
            }
        }
    }

    /// Gives up on the launches of kernels that waited for too long. `flushes` is how many
    /// flushes they must have waited for, `u64::MAX` for all of them.
    fn release_orphans(&mut self, at: usize, flushes: u64) {
        let process = &mut self.processes[at];
        let everything = flushes == u64::MAX;
        let excess = process.orphans.len().saturating_sub(self.limits.orphan_kernels);
        let mut n_unjoined = 0;
        let (events, unsorted) = (&mut process.events, &mut process.unsorted);
        let mut seen = 0;
        process.orphans.retain(|it| {
            seen += 1;
            let keep = !everything && it.flushes_seen < flushes && seen > excess;
            if !keep {
                n_unjoined += 1;
                if it.timed {
                    unsorted.push((it.kernel.end, events.len() as u32));
                    events.push(Joined::of_kernel(&it.kernel, None));
                }
            }
            keep
        });
        self.losses.add(Loss::Unjoined, n_unjoined);
    }

    fn enforce_limits(&mut self, at: usize) {
        let limits = self.limits;
        if self.processes[at].orphans.len() > limits.orphan_kernels {
            self.release_orphans(at, u64::MAX - 1);
        }
        let over = self.processes[at].pending.n_waiting().saturating_sub(limits.pending_launches);
        if over > 0 {
            let gone = self.processes[at].pending.evict(over + limits.pending_launches / 16);
            self.losses.add(Loss::LaunchEvicted, gone.len() as u64);
            self.count_as_lost(at, &gone);
        }
    }

    fn count_lost_launches(&mut self, at: usize) {
        let gone = self.processes[at].pending.evict(usize::MAX);
        self.losses.add(Loss::LostAtExit, gone.len() as u64);
        self.count_as_lost(at, &gone);
    }

    fn count_as_lost(&mut self, at: usize, launches: &[Launch]) {
        self.account.lost += launches.len() as u64;
        for launch in launches {
            let symbol = self.processes[at].launch_symbol(launch);
            *self.lost_by_name.entry(symbol.name as StringId).or_default() += 1;
        }
    }

    /// Compares what arrived with what the collector counted.
    fn reconcile(&mut self, at: usize, totals: &CollectorTotals) {
        let process = &self.processes[at];
        let lost = |it: Lost| totals.lost[it as usize];
        if self.handlers.expect_kernels {
            self.account.collector_kernels += totals.kernels;
            self.account.collector_kernel_nanos = self.account.collector_kernel_nanos.wrapping_add(totals.kernel_nanos);
        }
        let submitted = match self.handlers.expect_launches {
            true => totals.launches.saturating_sub(totals.captured_launches),
            false => 0,
        };
        let unseen = submitted.saturating_sub(process.launch_records - process.captured_records);
        self.account.launches += unseen;
        self.account.lost += unseen;
        if unseen > 0 {
            *self.lost_by_name.entry(self.strings.unnamed).or_default() += unseen;
        }
        let missing = match self.handlers.expect_kernels {
            true => totals.kernels.saturating_sub(process.kernels + lost(Lost::ActivityRingFull)),
            false => 0,
        };
        let untimed = lost(Lost::NoTimestamps).saturating_sub(process.untimed);
        for (loss, n) in [
            (Loss::Unreconciled, missing),
            (Loss::LaunchRingFull, lost(Lost::LaunchRingFull)),
            (Loss::NoRingForThread, lost(Lost::NoRing)),
            (Loss::ActivityRingFull, lost(Lost::ActivityRingFull)),
            (Loss::CuptiDropped, lost(Lost::CuptiDropped)),
            (Loss::NoTimestamps, untimed),
            (Loss::StackTableFull, lost(Lost::StackTableFull)),
            (Loss::NameTableFull, lost(Lost::NameTableFull)),
            (Loss::Malformed, lost(Lost::Unexpected) + lost(Lost::Panics) + totals.broken_rings),
        ] {
            self.losses.add(loss, n);
        }
    }
}

// --- Handling

impl Pipeline {
    /// Handles the buffered events that nothing earlier can precede any more.
    fn handle_ready(&mut self, at: usize, reach: Reach, sink: &mut dyn Sink) {
        let process = &mut self.processes[at];
        if process.events.is_empty() {
            process.launch_end_of_last_feed = process.newest_launch_end;
            return;
        }
        let mut watermark = match reach {
            Reach::Everything => u64::MAX,
            Reach::Watermark => process.watermark(self.handlers.expect_kernels),
        };
        process.launch_end_of_last_feed = process.newest_launch_end;
        process.sort();
        let excess = process.order.len().saturating_sub(self.limits.buffered_events);
        if excess > 0 {
            let forced = excess + self.limits.buffered_events / 2;
            watermark = watermark.max(process.order[forced.min(process.order.len()) - 1].0);
        }
        let n_ready = process.order.partition_point(|(end, _)| *end <= watermark);
        let order = std::mem::take(&mut process.order);
        let events = std::mem::take(&mut process.events);
        let mut ctx: GpuContext = [0; WORDS];
        let mut done = 0;
        for (end, index) in &order[..n_ready] {
            let event = &events[*index as usize];
            if sink.is_over() || !self.handle(at, event, reach, &mut ctx, sink) {
                break;
            }
            let process = &mut self.processes[at];
            self.losses.add(Loss::OutOfOrder, u64::from(*end < process.handled_until));
            process.handled_until = process.handled_until.max(*end);
            done += 1;
        }
        self.processes[at].keep(order, events, done);
    }

    /// False when the event has to wait for a name that is still on its way.
    #[inline]
    fn handle(&mut self, at: usize, event: &Joined, reach: Reach, ctx: &mut GpuContext, sink: &mut dyn Sink) -> bool {
        let process = &mut self.processes[at];
        if reach == Reach::Watermark && process.lacks_names(event) && process.name_waits < NAME_FEEDS {
            process.name_waits += 1;
            return false;
        }
        process.name_waits = 0;
        let handlers = match event.kind {
            JoinedKind::Launch => {
                process.fill_launch_event(ctx, event, &self.strings);
                &self.handlers.launch
            }
            JoinedKind::Kernel | JoinedKind::Unjoined => {
                process.fill_kernel_event(ctx, event, &self.strings);
                let device = ctx[word::DEVICE] as u32;
                if self.busy.len() < MOST_DEVICES || self.busy.contains_key(&device) {
                    self.busy.entry(device).or_default().add(ctx[word::START], ctx[word::END]);
                }
                &self.handlers.kernel
            }
        };
        for handler in handlers {
            match handler.program {
                Some(program) => self.state.run_gpu(handler.probe, program, ctx, sink),
                None => sink.interpret(handler.probe, ctx, &mut self.state),
            }
        }
        true
    }
}

/// Flushes that a kernel waits for its launch: the call that launched it may still be running.
const ORPHAN_FLUSHES: u64 = 2;
/// Drains that an event waits for a name: another thread's ring may bring it in the next one.
const NAME_FEEDS: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Watermark,
    Everything,
}

/// GPU handlers that run here, in the order of the script.
struct Handlers {
    kernel: Vec<Handler>,
    launch: Vec<Handler>,
    /// What the collector was armed for. A recording may hold more: that is left out, so that
    /// a script gives the same answer live and replayed.
    expect_kernels: bool,
    expect_launches: bool,
}

#[derive(Clone, Copy)]
struct Handler {
    probe: usize,
    /// `None` for interpreted ones.
    program: Option<usize>,
}

impl Handlers {
    fn of(plan: &Plan) -> Self {
        let of = |event: Event| {
            let here = |(_, it): &(usize, &xputrace_model::plan::Probe)| it.event == event && it.place != Place::Linux;
            let handler = |(probe, it): (usize, &xputrace_model::plan::Probe)| Handler {
                probe,
                program: it.program.filter(|_| it.place == Place::Tracer),
            };
            plan.probes.iter().enumerate().filter(here).map(handler).collect::<Vec<_>>()
        };
        Handlers {
            kernel: of(Event::Kernel),
            launch: of(Event::Launch),
            expect_kernels: plan.demand.kernels,
            expect_launches: plan.demand.launches,
        }
    }

    fn programs(&self) -> Vec<usize> {
        self.kernel.iter().chain(&self.launch).filter_map(|it| it.program).collect()
    }
}

/// Ids of texts that events refer to.
struct Strings {
    demangle: Demangle,
    demangled: FxHashMap<StringId, Symbol>,
    kernel: u64,
    graph: u64,
    unnamed: StringId,
}

impl Strings {
    fn new(demangle: Demangle, names: &mut Names) -> Self {
        Strings {
            demangle,
            demangled: FxHashMap::default(),
            kernel: names.intern("kernel").into(),
            graph: names.intern("graph").into(),
            unnamed: names.intern("(launch record lost)"),
        }
    }

    fn symbol(&mut self, text: &str, names: &mut Names) -> Symbol {
        let id = names.intern(text);
        let demangle = self.demangle;
        *self.demangled.entry(id).or_insert_with(|| {
            let (name, short_name) = demangle(text);
            Symbol { symbol: id.into(), name: names.intern(&name).into(), short_name: names.intern(&short_name).into() }
        })
    }
}

// --- One process

/// A kernel with its launch, a kernel without, or a launch on its own.
struct Joined {
    kernel: Kernel,
    launch: Launch,
    kind: JoinedKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum JoinedKind {
    Launch,
    Kernel,
    Unjoined,
}

impl Joined {
    #[inline]
    fn of_kernel(kernel: &Kernel, launch: Option<&Launch>) -> Self {
        match launch {
            Some(launch) => Joined { kernel: *kernel, launch: *launch, kind: JoinedKind::Kernel },
            None => Joined { kernel: *kernel, launch: Launch::default(), kind: JoinedKind::Unjoined },
        }
    }

    fn of_launch(launch: &Launch) -> Self {
        Joined { kernel: Kernel::default(), launch: *launch, kind: JoinedKind::Launch }
    }

    fn end(&self) -> u64 {
        if self.kind == JoinedKind::Launch { self.launch.end } else { self.kernel.end }
    }

    /// Decides between events that end together, whichever way they arrived.
    fn tie(&self) -> (JoinedKind, u64, u32, u64, u32) {
        (
            self.kind,
            self.kernel.start,
            self.kernel.correlation | self.launch.correlation,
            self.kernel.graph_node,
            self.launch.tid,
        )
    }
}

struct Orphan {
    kernel: Kernel,
    timed: bool,
    flushes_seen: u64,
}

struct Process {
    index: ProcessIndex,
    ended: bool,
    pid: u64,
    pid_in_target: u32,
    comm: Comm,
    names: IdMap<Symbol>,
    threads: FxHashMap<u32, Comm>,
    thread_ids: FxHashMap<u32, u32>,
    clock: ClockOffset,
    pending: Pending,
    orphans: Vec<Orphan>,
    events: Vec<Joined>,
    /// End and index of the events that are in order, and of those that came since.
    order: Vec<(u64, u32)>,
    unsorted: Vec<(u64, u32)>,
    flushed_until: u64,
    handled_until: u64,
    /// By context: start of the newest joined launch, now, one and two flushes ago.
    horizons: Vec<(u32, [u64; 3])>,
    newest_launch_end: u64,
    launch_end_of_last_feed: u64,
    name_waits: u32,
    launch_records: u64,
    captured_records: u64,
    kernels: u64,
    untimed: u64,
}

/// Threads and contexts remembered of one process.
const MOST_THREADS: usize = 1 << 16;
const MOST_CONTEXTS: usize = 64;

impl Process {
    fn new(index: ProcessIndex, info: &ProcessInfo, limits: Limits) -> Self {
        let mut comm = [0; 16];
        let bytes = info.comm.as_bytes();
        let n = bytes.len().min(15);
        comm[..n].copy_from_slice(&bytes[..n]);
        Process {
            index,
            ended: false,
            pid: info.pid.into(),
            pid_in_target: if info.pid_in_target == 0 { info.pid } else { info.pid_in_target },
            comm: comm.into(),
            names: IdMap::default(),
            threads: FxHashMap::default(),
            thread_ids: FxHashMap::default(),
            clock: ClockOffset::default(),
            pending: Pending::new(limits.graph_launches),
            orphans: Vec::new(),
            events: Vec::new(),
            order: Vec::new(),
            unsorted: Vec::new(),
            flushed_until: 0,
            handled_until: 0,
            horizons: Vec::new(),
            newest_launch_end: 0,
            launch_end_of_last_feed: 0,
            name_waits: 0,
            launch_records: 0,
            captured_records: 0,
            kernels: 0,
            untimed: 0,
        }
    }

    fn name_thread(&mut self, tid: u32, comm: [u8; 16]) {
        if tid == self.pid_in_target {
            self.comm = comm.into();
        }
        if self.threads.len() < MOST_THREADS || self.threads.contains_key(&tid) {
            self.threads.insert(tid, comm.into());
        }
    }

    #[inline]
    fn push(&mut self, event: Joined) {
        self.unsorted.push((event.end(), self.events.len() as u32));
        self.events.push(event);
    }

    /// Remembers that a later launch's kernel has arrived: see [`Process::oldest_withholding`].
    #[inline]
    fn note_join(&mut self, launch: &Launch) {
        if let Some((_, [newest, ..])) = self.horizons.iter_mut().find(|(context, _)| *context == launch.context) {
            *newest = (*newest).max(launch.start);
        } else if self.horizons.len() < MOST_CONTEXTS {
            self.horizons.push((launch.context, [launch.start, 0, 0]));
        }
    }

    fn age_horizons(&mut self) {
        for (_, [now, one_ago, two_ago]) in &mut self.horizons {
            (*two_ago, *one_ago) = (*one_ago, *now);
        }
    }

    /// The launch that holds later events back: the oldest whose kernel has not come. One that
    /// kernels of later launches in its context overtook two flushes ago was lost by CUPTI
    /// (which hands records over in order of launch) and holds back no longer.
    fn oldest_withholding(&self) -> Option<&Launch> {
        let overtaken = |it: &Launch| {
            self.horizons.iter().any(|(context, [_, _, two_ago])| *context == it.context && it.start < *two_ago)
        };
        self.pending.oldest(|it| !overtaken(it))
    }

    fn watermark(&self, expect_kernels: bool) -> u64 {
        if !expect_kernels {
            return self.launch_end_of_last_feed;
        }
        let launch = self.oldest_withholding().map_or(u64::MAX, |it| it.start);
        let orphan = self.orphans.iter().filter(|it| it.timed).map(|it| it.kernel.end).min().unwrap_or(u64::MAX);
        self.flushed_until.min(launch).min(orphan)
    }

    fn sort(&mut self) {
        self.order.append(&mut self.unsorted);
        let events = &self.events;
        let tie = |index: u32| events[index as usize].tie();
        self.order.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| tie(a.1).cmp(&tie(b.1))));
    }

    /// Keeps the events that were not handled, in order, and the buffers' room.
    fn keep(&mut self, mut order: Vec<(u64, u32)>, mut events: Vec<Joined>, done: usize) {
        if done == order.len() {
            order.clear();
            events.clear();
        } else if done > 0 {
            let mut wanted = vec![false; events.len()];
            order.drain(..done);
            order.iter().for_each(|(_, index)| wanted[*index as usize] = true);
            let mut renumbered = vec![0u32; events.len()];
            let (mut at, mut n) = (0, 0);
            events.retain(|_| {
                renumbered[at] = n;
                let keep = wanted[at];
                n += u32::from(keep);
                at += 1;
                keep
            });
            order.iter_mut().for_each(|(_, index)| *index = renumbered[*index as usize]);
        }
        self.order = order;
        self.events = events;
    }

    fn lacks_names(&self, event: &Joined) -> bool {
        let unknown = |id: u32| id != 0 && self.names.get(id).is_none();
        match event.kind {
            JoinedKind::Launch => unknown(event.launch.api) || unknown(event.launch.symbol),
            JoinedKind::Unjoined => unknown(event.kernel.symbol),
            JoinedKind::Kernel => unknown(event.kernel.symbol) || unknown(event.launch.api),
        }
    }

    fn symbol(&self, id: u32) -> Symbol {
        self.names.get(id).copied().unwrap_or_default()
    }

    /// A launch is named by its kernel; a graph's by the call.
    fn launch_symbol(&self, launch: &Launch) -> Symbol {
        match launch.symbol {
            0 | UNKNOWN => {
                let api = self.symbol(launch.api);
                Symbol { symbol: 0, ..api }
            }
            id => self.symbol(id),
        }
    }

    fn thread(&self, launch: &Launch) -> Identity {
        let tid = self.thread_ids.get(&launch.tid).copied().unwrap_or(launch.tid);
        let comm = self.threads.get(&launch.tid).copied().unwrap_or(self.comm);
        Identity { pid: self.pid, tid: tid.into(), comm }
    }

    fn fill_kernel_event(&self, ctx: &mut GpuContext, event: &Joined, strings: &Strings) {
        let mut identity = Identity { pid: self.pid, tid: self.pid, comm: self.comm };
        if event.kind == JoinedKind::Unjoined {
            context::clear_launch(ctx);
        } else {
            let thread = self.fill_launch_words(ctx, &event.launch, strings);
            identity.tid = thread.tid;
            if event.launch.stream == UNKNOWN {
                ctx[word::LAUNCH_STREAM] = event.kernel.stream.into();
            }
        }
        context::fill_kernel(ctx, &event.kernel, self.symbol(event.kernel.symbol), identity);
    }

    fn fill_launch_event(&self, ctx: &mut GpuContext, event: &Joined, strings: &Strings) {
        context::clear_kernel(ctx);
        let thread = self.fill_launch_words(ctx, &event.launch, strings);
        context::fill_identity(ctx, event.launch.start, thread);
    }

    fn fill_launch_words(&self, ctx: &mut GpuContext, launch: &Launch, strings: &Strings) -> Identity {
        let thread = self.thread(launch);
        let ustack = match launch.stack {
            0 => StackKey::Lost,
            id => StackKey::Collector { process: self.index.0, id },
        };
        context::fill_launch(
            ctx,
            &LaunchFacts {
                record: launch,
                symbol: self.launch_symbol(launch),
                api: self.symbol(launch.api).symbol,
                kind: if launch.launch_kind == Launch::GRAPH { strings.graph } else { strings.kernel },
                ustack: ustack.to_word(),
                thread,
            },
        );
        thread
    }
}

/// Calls `f` with each record's header and all of its bytes until it returns false; returns the
/// bytes that could not be read. Accepts any bytes.
#[inline]
pub(crate) fn scan(bytes: &[u8], mut f: impl FnMut(Header, &[u8]) -> bool) -> usize {
    let mut rest = bytes;
    while !rest.is_empty() {
        let Ok((header, _)) = Header::read_from_prefix(rest) else { return rest.len() };
        let size = header.size as usize;
        if size < size_of::<Header>() || !size.is_multiple_of(8) || size > rest.len() {
            return rest.len();
        }
        let (whole, after) = rest.split_at(size);
        if header.kind != kind::PAD && !f(header, whole) {
            return rest.len();
        }
        rest = after;
    }
    0
}
