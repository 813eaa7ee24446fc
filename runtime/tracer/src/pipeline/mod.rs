//! Bytes in, handled events and tables out.
//!
//! ```text
//! feed: rings of one drain ─intake─┬─ names, stacks, threads, launches (all rings first)
//!                                  └─ clocks, activities, flushes ─▶ join ─▶ queue ─watermark─▶ handlers
//! ```
//! Events of a process are handled in order of their end, up to a watermark (docs/JOIN.md).

mod account;
mod buffers;
mod device;
mod gaps;
pub(crate) mod gpus;
mod graphs;
mod handlers;
mod idle;
mod intake;
mod memory;
mod orphans;
mod parts;
mod previous;
mod process;
pub(crate) mod queue;
mod streams;
mod totals;
mod waits;
mod watermark;

use crate::busy::BusyGpus;
use crate::device_launches::Owner;
use crate::device_memory::DeviceMemory;
use crate::names::{Demangle, Names};
use crate::recording::{GpuKind, Hit};
use crate::state::{Origin, State, TakenStack, Target};
use crate::switches::Switches;
use account::Ledger;
pub use device::Sampled;
pub use gpus::SeenGpu;
use handlers::{Handler, Handlers, Strings};
use intake::Intake;
use process::Process;
use queue::{Joined, Queued};
use rustc_hash::FxHashMap;
use std::sync::Arc;
pub use totals::{CollectorTotals, Made, Records, WindowTotals};
use xputrace_bytecode::BpfMapId;
use xputrace_bytecode::image::MapSpec;
use xputrace_bytecode::vm::{Engine, LoadError, RemoteMap};
use xputrace_model::context::{GpuContext, WORDS, word};
use xputrace_model::gap::Gap;
use xputrace_model::loss::{Account, Loss, Losses};
use xputrace_model::output::Output;
use xputrace_model::plan::{Activity, Call, Detail, Details, HostEvents, MapAction, Place, Plan, ProbeId, ProgramId};
use xputrace_model::stack::StackKey;
use xputrace_model::table::TableId;
use xputrace_wire::events::host::Common;
use xputrace_wire::record::{ActivityRecord, HostEventRecord, Launch};

/// Receives the pipeline's results and answers its questions about the run.
pub trait Sink {
    /// Prints a handler's output.
    fn output(&mut self, output: Output);
    /// Runs an interpreted GPU handler over an event whose strings are ids of `state.names()`. It
    /// also gets activities without a known launch (word `JOINED` is 0); the implementation decides
    /// by what the handler reads, as compiled handlers do themselves.
    fn interpret(&mut self, probe: ProbeId, event: &GpuContext, state: &mut State);
    /// Hears of a hit of a CPU probe in a recording, before the programs that run over it.
    fn hit(&mut self, _hit: &Hit, _state: &mut State) {}
    /// A compiled handler wants something done with a whole map, after what it has printed.
    fn map(&mut self, map: TableId, action: MapAction);
    /// A handler called `exit(code)`.
    fn exit(&mut self, code: i64);
    /// Whether the run is over: no further event is handled.
    fn is_over(&self) -> bool {
        false
    }
}

/// Number of a process in this run, in order of appearance; exec starts a new number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessIndex(pub u32);

/// A process, as events show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Process id in the tracer's namespace.
    pub pid: u32,
    /// Process id in the target's namespace if it differs, else 0.
    pub pid_in_target: u32,
    /// Name of the process.
    pub comm: String,
    /// Tells images of one process id apart.
    pub generation: u32,
    /// Whether it ran already when it was attached to. Not in recordings, which are made of commands.
    pub is_attached: bool,
    /// Which GPU it uses.
    pub gpu: GpuKind,
}

/// Returns the maps that live in Linux, by index in the image.
pub type RemoteMaps<'a> = dyn FnMut(BpfMapId, &MapSpec) -> Option<Box<dyn RemoteMap>> + 'a;

/// Limits on what is kept per process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Launches that wait for their activities, about 130 bytes each. A collector's buffers hold
    /// 50,000 kernels; beyond those, the kernels of further launches are lost.
    pub pending_launches: usize,
    /// Graph launches kept for the rest of their graph.
    pub graph_launches: usize,
    /// Activities that wait for the watermark, and calls as well; about 240 bytes each. Enough for
    /// all kernels in a collector's buffers (8 MiB, about 39,000). If more wait, they wait for
    /// something lost.
    pub buffered_events: usize,
    /// Activities that wait for their launch; about 120 bytes each.
    pub orphans: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { pending_launches: 1 << 16, graph_launches: 8192, buffered_events: 3 << 14, orphans: 1 << 14 }
    }
}

/// Maximum number of gaps in the result.
const MOST_GAPS: usize = 10_000;

/// Why a plan cannot run here.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot load the script's handlers into the tracer's engine")]
    Load(#[from] LoadError),
}

/// What the output waits for: the oldest launch without an activity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub process: ProcessIndex,
    /// Demangled name of the kernel, or the call's name.
    pub name: Arc<str>,
    /// Launch time in CLOCK_MONOTONIC nanoseconds.
    pub since_nanos: u64,
    /// Events that wait behind it.
    pub events: usize,
}

/// Returns the programs that the engine runs.
fn programs(plan: &Plan, handlers: &Handlers) -> Vec<ProgramId> {
    let launched = plan.object.iter().flat_map(|it| &it.launches).map(|it| it.program);
    handlers.programs().into_iter().chain(launched).collect()
}

/// Decodes, joins, orders and handles the events of all processes of a run.
pub struct Pipeline {
    state: State,
    /// `None` after a process has ended.
    processes: Vec<Option<Box<Process>>>,
    handlers: Handlers,
    strings: Strings,
    ledger: Ledger,
    limits: Limits,
    busy: BusyGpus,
    /// Of processes that have ended.
    gaps: Vec<Gap>,
}

impl Pipeline {
    /// Loads the plan's handlers that run in the tracer.
    ///
    /// # Errors
    /// A program or map cannot be loaded into the engine.
    pub fn new(plan: Arc<Plan>, demangle: Demangle, remote: &mut RemoteMaps<'_>) -> Result<Self, Error> {
        let handlers = Handlers::of(&plan);
        let engine = Engine::new(&plan.image, &programs(&plan, &handlers), remote)?;
        Ok(Self::with_engine(plan, handlers, engine, demangle, false))
    }

    /// Loads every map into the engine, and Linux's programs as well as the tracer's.
    pub(crate) fn all_native(plan: Arc<Plan>, demangle: Demangle) -> Result<Self, Error> {
        let handlers = Handlers::of(&plan);
        let kernel = plan.probes.iter().filter(|it| it.place == Place::Linux);
        let mut programs = programs(&plan, &handlers);
        programs.extend(kernel.flat_map(|it| it.program.into_iter().chain(it.entry_program)));
        programs.sort_unstable();
        programs.dedup();
        let engine = Engine::new(&plan.image, &programs, &mut |_, _| None)?;
        Ok(Self::with_engine(plan, handlers, engine, demangle, true))
    }

    fn with_engine(plan: Arc<Plan>, handlers: Handlers, engine: Engine, demangle: Demangle, all_native: bool) -> Self {
        let mut names = Names::new(&plan.strings);
        let strings = Strings::new(demangle, handlers.wanted.reads, handlers.activity_parts(&plan), &mut names);
        let ledger = Ledger::new(&handlers.wanted);
        let switches = Switches::new(&plan);
        let hit = vec![false; plan.probes.len()];
        let device = DeviceMemory::of(&plan);
        let mut state = State {
            plan,
            engine,
            device,
            has_run_launches: false,
            names,
            targets: Vec::new(),
            faults: FxHashMap::default(),
            gpus: Vec::new(),
            all_native,
            switches,
            now: 0,
            heard_until: u64::MAX,
            linux_heard_until: u64::MAX,
            hit,
            late: FxHashMap::default(),
            forgotten: FxHashMap::default(),
        };
        state.tell_linux_programs();
        state.fill_object_maps();
        Pipeline {
            state,
            processes: Vec::new(),
            handlers,
            strings,
            ledger,
            limits: Limits::default(),
            busy: BusyGpus::default(),
            gaps: Vec::new(),
        }
    }

    /// Replaces the default limits.
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Adds a process whose collector was armed.
    pub fn add_process(&mut self, info: ProcessInfo) -> ProcessIndex {
        let index = ProcessIndex(self.processes.len() as u32);
        self.processes.push(Some(Box::new(Process::new(index, &info, self.limits))));
        self.state.targets.push(Target::new(info));
        index
    }

    /// Returns the number of processes.
    pub fn n_processes(&self) -> usize {
        self.processes.len()
    }

    /// Maps thread ids in the target's pid namespace to the tracer's. Other ids are used as they
    /// are.
    pub fn translate_threads(&mut self, process: ProcessIndex, ids: impl IntoIterator<Item = (u32, u32)>) {
        if let Some(Some(process)) = self.processes.get_mut(process.0 as usize) {
            process.facts.thread_ids.extend(ids);
        }
    }

    /// Takes one drain of a process's rings and handles the events that are in order. Rings of an
    /// unknown or ended process are counted as [`Loss::Malformed`].
    pub fn feed(&mut self, process: ProcessIndex, rings: &[Vec<u8>], sink: &mut dyn Sink) {
        let at = process.0 as usize;
        let Some(mut process) = self.processes.get_mut(at).and_then(Option::take) else {
            return self.ledger.losses.add(Loss::Malformed, 1);
        };
        self.intake(at, &mut process).take(rings);
        self.handle_ready(&mut process, Reach::Watermark, sink);
        self.processes[at] = Some(process);
    }

    /// Whether activities of a process may be missing without a loss that counts them: its collector's last flush
    /// has not arrived, and no launch record shows what it would have brought. A graph's launch does not, nor a
    /// copy's: how many records it has is unknown.
    pub fn may_lack_activities(&self, process: ProcessIndex) -> bool {
        let Some(Some(process)) = self.processes.get(process.0 as usize) else { return false };
        let wanted = &self.handlers.wanted;
        let has_several = [Call::Graph, Call::Memcpy].iter().any(|it| process.counts.submitted[it.index()] > 0);
        !process.is_complete && !wanted.activities.is_empty() && (wanted.foretold != wanted.activities || has_several)
    }

    /// Ends a process that exited or was disarmed: handles everything left, and counts what never
    /// arrived.
    pub fn end_process(&mut self, process: ProcessIndex, totals: CollectorTotals, sink: &mut dyn Sink) {
        let at = process.0 as usize;
        let Some(mut process) = self.processes.get_mut(at).and_then(Option::take) else { return };
        self.intake(at, &mut process).give_up();
        self.handle_ready(&mut process, Reach::Everything, sink);
        self.intake(at, &mut process).count_lost_launches();
        self.ledger.reconcile(process.counts, &totals, &self.handlers.wanted, self.strings.unnamed);
        let room = MOST_GAPS.saturating_sub(self.gaps.len());
        let gaps = process.gaps.of(&self.state.targets[at].info, process.watermark.flushed_until());
        self.gaps.extend(gaps.take(room));
        self.state.targets[at].end();
        self.handlers.device.forget(process.facts.index);
    }

    /// Ends every process that is still running, without its collector's totals.
    pub fn finish(&mut self, sink: &mut dyn Sink) {
        for at in 0..self.processes.len() as u32 {
            self.end_process(ProcessIndex(at), CollectorTotals::default(), sink);
        }
    }

    /// Returns the outcome of the launches so far. While a process runs, launches in flight are
    /// neither joined nor lost.
    pub fn account(&self) -> Account {
        self.ledger.account
    }

    /// Leaves kinds of host events out of the account: none of them being known is not none of them having been.
    pub(crate) fn has_no_account_of(&mut self, kinds: HostEvents) {
        let account = self.ledger.account;
        self.ledger.account = account.with_host_events(account.host_events.without(kinds));
    }

    /// Returns how many kernels were handled, and the sum of their durations.
    pub fn handled_kernels(&self) -> (u64, u64) {
        self.busy.kernels()
    }

    /// Returns the nanoseconds during which the busiest GPU ran at least one kernel.
    pub fn busy_nanos(&self) -> u64 {
        self.busy.most_nanos()
    }

    /// Returns the nanoseconds during which the GPU with this UUID ran at least one kernel; `None` if it ran none.
    pub fn busy_nanos_of(&self, uuid: &str) -> Option<u64> {
        self.busy.nanos_of(|gpu| self.state.names.get(gpu).is_some_and(|it| **it == *uuid))
    }

    /// Returns all losses so far, by kind and line of the script.
    pub fn losses(&self) -> Losses {
        let mut losses = self.ledger.losses();
        losses.merge(&self.state.handler_losses());
        losses
    }

    /// Returns the gaps in ended processes: while another tool had CUPTI.
    pub fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    /// Returns the launches whose activities never arrived by name, most frequent first.
    pub fn lost_by_name(&self) -> Vec<(Arc<str>, u64)> {
        self.ledger.lost_by_name(&self.state.names)
    }

    /// Returns the number of launches in flight, over all processes.
    pub fn in_flight(&self) -> usize {
        self.processes.iter().flatten().map(|it| it.launches.n_waiting()).sum()
    }

    /// Returns what the output waits for, if events are waiting.
    pub fn waiting(&self) -> Option<Waiting> {
        let waiting = |it: &Process| {
            let launch = *it.waits_for()?;
            let name = self.state.names.get(it.facts.launch_symbol(&launch).name);
            let name = name.cloned().unwrap_or_else(|| Arc::from(""));
            Some(Waiting { process: it.facts.index, name, since_nanos: launch.start, events: it.activities.len() })
        };
        self.processes.iter().flatten().map(AsRef::as_ref).filter_map(waiting).min_by_key(|it| it.since_nanos)
    }

    /// Returns the engine, the string table and the processes.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the same, for handlers that change maps.
    pub fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    /// Returns the string table.
    pub fn names(&self) -> &Names {
        &self.state.names
    }

    /// Returns a stack that a collector took.
    pub fn stack(&self, stack: StackKey) -> Option<(ProcessIndex, TakenStack<'_>)> {
        self.state.stack(stack)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Watermark,
    Everything,
}

/// How far the events of a queue may be handled.
#[derive(Clone, Copy, Debug)]
struct Until {
    /// Nothing that arrives later precedes what ends by then.
    in_order: u64,
    /// Everything has been heard of that switches probes for what ends by then: not even what is handled out of order may
    /// end later.
    heard: u64,
}

impl Until {
    fn end(self) -> u64 {
        self.in_order.min(self.heard)
    }
}

impl Pipeline {
    /// Borrows what a drain of a process changes; the process itself is moved out meanwhile.
    fn intake<'a>(&'a mut self, at: usize, process: &'a mut Process) -> Intake<'a> {
        Intake {
            process,
            target: &mut self.state.targets[at],
            names: &mut self.state.names,
            gpus: &mut self.state.gpus,
            strings: &mut self.strings,
            ledger: &mut self.ledger,
            handlers: &self.handlers,
            limits: self.limits,
        }
    }

    /// Handles the events that nothing earlier can precede any more. Calls come first, so that an
    /// activity follows its launch.
    fn handle_ready(&mut self, process: &mut Process, reach: Reach, sink: &mut dyn Sink) {
        let [calls, activities] = self.until(process, reach);
        if !self.strings.reads.has(Detail::WaitedFor) {
            self.handle_until::<HostEventRecord>(process, calls, reach, sink);
        }
        self.handle_until::<Launch>(process, calls, reach, sink);
        self.handle_until::<Joined>(process, activities, reach, sink);
        if self.strings.reads.has(Detail::WaitedFor) {
            // What a wait was for ended before it.
            let until = Until { in_order: calls.in_order.min(activities.end()), ..calls };
            self.handle_until::<HostEventRecord>(process, until, reach, sink);
            process.waits.forget_before(until.end());
        }
    }

    /// Returns how far calls and other host events may be handled, and how far activities.
    fn until(&self, process: &Process, reach: Reach) -> [Until; 2] {
        if reach == Reach::Everything {
            return [Until { in_order: u64::MAX, heard: u64::MAX }; 2];
        }
        let Process { watermark, launches, orphans, .. } = process;
        let wanted = &self.handlers.wanted;
        let heard = self.state.linux_heard_until;
        let in_order = watermark.activities_until(wanted, launches, orphans);
        let activities = Until { in_order, heard: heard.min(self.state.heard_until) };
        let calls = Until { in_order: watermark.flushed_until(), heard };
        [calls, activities]
    }

    fn handle_until<E: Queued + Handled>(
        &mut self,
        process: &mut Process,
        until: Until,
        reach: Reach,
        sink: &mut dyn Sink,
    ) {
        let queue = E::queue_of(process);
        if queue.is_empty() {
            return;
        }
        if !queue.has_ready(until, self.limits.buffered_events) {
            // Other events ask for what it prepares, too.
            return E::prepare(self.strings.reads, process, false);
        }
        let batch = queue.take(until, self.limits.buffered_events);
        let mut handled_until = queue.handled_until;
        E::prepare(self.strings.reads, process, batch.is_forced);
        let mut ctx: GpuContext = [0; WORDS];
        let mut n_handled = 0;
        for (end, event) in batch.ready() {
            let waits_for_gpu = !batch.is_forced && process.waits_for_gpu(event);
            let waits = reach == Reach::Watermark && (waits_for_gpu || process.waits_for_names(event));
            if waits || sink.is_over() {
                break;
            }
            event.handle(self, process, &mut ctx, sink);
            if end < handled_until && event.is_in_order() {
                self.ledger.losses.add(Loss::OutOfOrder, 1);
            }
            handled_until = end.max(handled_until);
            n_handled += 1;
        }
        let queue = E::queue_of(process);
        queue.handled_until = handled_until;
        queue.put_back(batch, n_handled);
    }

    #[inline(always)]
    fn run(state: &mut State, handlers: &[Handler], origin: Origin, ctx: &GpuContext, sink: &mut dyn Sink) {
        for handler in handlers {
            if handler.switch.is_some_and(|it| !state.lets_run(handler.probe, it.id, it.needs, origin)) {
                continue;
            }
            state.hit[handler.probe.index()] = true;
            match handler.program {
                Some(program) => state.run_gpu(handler.probe, program, ctx, sink),
                None => sink.interpret(handler.probe, ctx, state),
            }
        }
    }
}

/// An event that handlers run over.
trait Handled {
    /// Prepares for a batch; it is forced if its events are handled too early.
    fn prepare(_reads: Details, _process: &mut Process, _is_forced: bool) {}

    fn handle(&self, pipeline: &mut Pipeline, process: &mut Process, ctx: &mut GpuContext, sink: &mut dyn Sink);
}

impl Handled for Joined {
    fn prepare(reads: Details, process: &mut Process, is_forced: bool) {
        if reads.has(Detail::Previous) || reads.has(Detail::WaitedFor) || reads.has(Detail::Idle) {
            process.prepare_previous(is_forced);
        }
    }

    #[inline]
    fn handle(&self, pipeline: &mut Pipeline, process: &mut Process, ctx: &mut GpuContext, sink: &mut dyn Sink) {
        let facts = &process.facts;
        facts.fill_activity_event(ctx, self, &pipeline.strings);
        let kind = self.activity.activity();
        if pipeline.strings.reads.has(Detail::Idle) {
            process.idle.fill(ctx, self, &process.previous);
        }
        if kind == Activity::Kernel {
            if pipeline.strings.reads.has(Detail::Previous) {
                process.previous.fill(ctx, self);
            }
            pipeline.busy.add(facts.gpus.identity(self.activity.device()), self.span.start, self.span.end);
        }
        // A graph's nodes are what ran.
        if pipeline.strings.reads.has(Detail::WaitedFor) && kind != Activity::Graph {
            let name = if kind == Activity::Kernel { ctx[word::NAME] } else { pipeline.strings.activity(kind) };
            process.waits.ran(self, name);
        }
        let alone = Origin { began: self.span.start, demanded: 0 };
        let origin = self.launch.map_or(alone, |it| Origin { began: it.start, demanded: it.demanded });
        if kind == Activity::Kernel && !pipeline.handlers.device.is_empty() {
            let is_twin = process.facts.is_twin(self.activity.symbol());
            if is_twin && let ActivityRecord::Kernel(it) = &self.activity {
                let owner = Owner { process: process.facts.index, context: it.context };
                pipeline.state.device.launches.learn(owner, it.grid_id, ctx);
            }
            pipeline.run_device(process.facts.index, origin, ctx, is_twin, sink);
        }
        Pipeline::run(&mut pipeline.state, pipeline.handlers.of_activity(kind), origin, ctx, sink);
    }
}

impl Handled for HostEventRecord {
    fn handle(&self, pipeline: &mut Pipeline, process: &mut Process, ctx: &mut GpuContext, sink: &mut dyn Sink) {
        let freed = process.memory.take(self);
        let Common { start, flags, .. } = self.common();
        let origin = Origin { began: start, demanded: flags >> Common::DEMANDED_AT };
        process.facts.fill_host_event(ctx, self, freed, &pipeline.strings);
        match self {
            HostEventRecord::Wait(it) if pipeline.strings.reads.has(Detail::WaitedFor) => {
                process.waits.fill(ctx, it, &process.previous);
            }
            HostEventRecord::StreamChange(it) => process.stream_ids.fill(ctx, it),
            HostEventRecord::EventRecord(it) if pipeline.strings.reads.has(Detail::WaitedFor) => {
                process.waits.recorded(it)
            }
            _ => {}
        }
        if let HostEventRecord::Api(it) = self {
            let function = it.function;
            for handler in pipeline.handlers.of_function(function) {
                handler.fill(ctx, &it.parameters);
                Pipeline::run(&mut pipeline.state, std::slice::from_ref(&handler.handler), origin, ctx, sink);
            }
            return;
        }
        Pipeline::run(&mut pipeline.state, pipeline.handlers.of_host_event(self.kind()), origin, ctx, sink);
    }
}

impl Handled for Launch {
    fn handle(&self, pipeline: &mut Pipeline, process: &mut Process, ctx: &mut GpuContext, sink: &mut dyn Sink) {
        let Some(call) = self.call() else { return };
        process.facts.fill_launch_event(ctx, self, &pipeline.strings);
        let origin = Origin { began: self.start, demanded: self.demanded };
        Pipeline::run(&mut pipeline.state, pipeline.handlers.of_call(call), origin, ctx, sink);
    }
}
