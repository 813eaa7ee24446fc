//! Bytes in, handled events and tables out.
//!
//! ```text
//! feed: rings of one drain ─intake─┬─ names, stacks, threads, launches (all rings first)
//!                                  └─ clocks, activities, flushes ─▶ join ─▶ queue ─watermark─▶ handlers
//! ```
//! Events of a process are handled in order of their end, up to a watermark (docs/JOIN.md).

use crate::account::Ledger;
use crate::busy::BusyGpus;
use crate::handlers::Handlers;
use crate::handling::{Handling, Reach};
use crate::known_process::KnownProcess;
use crate::process::TracedProcess;
use crate::process_info::{Limits, ProcessIndex, ProcessInfo};
use crate::sink::Sink;
use crate::state::HandlerState;
use crate::strings::{Demangle, Strings};
use std::sync::Arc;
use xputrace_bytecode::BpfMapId;
use xputrace_bytecode::image::MapSpec;
use xputrace_bytecode::vm::{Engine, LoadError, RemoteMap};
use xputrace_model::gap::Gap;
use xputrace_model::loss::{Account, Loss, Losses};
use xputrace_model::names::Names;
use xputrace_model::plan::{Call, Condition, HostEvents, Place, Plan, ProbeId, ProgramId};
use xputrace_wire::device::Sampled;
use xputrace_wire::totals::CollectorTotals;

/// Returns the maps that live in Linux, by index in the image.
pub type RemoteMaps<'a> = dyn FnMut(BpfMapId, &MapSpec) -> Option<Box<dyn RemoteMap>> + 'a;

/// Maximum number of gaps in the result.
const MOST_GAPS: usize = 10_000;

/// Why a plan cannot run here.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
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
    /// `None` after a process has ended.
    processes: Vec<Option<Box<TracedProcess>>>,
    handling: Handling,
    /// Of processes that have ended.
    gaps: Vec<Gap>,
}

impl Pipeline {
    /// Loads the plan's handlers that run in the tracer.
    ///
    /// # Errors
    /// A program or map cannot be loaded into the engine.
    pub fn new(plan: Arc<Plan>, demangle: Demangle, remote: &mut RemoteMaps<'_>) -> Result<Self, PipelineError> {
        let handlers = Handlers::of(&plan);
        let engine = Engine::new(&plan.image, &programs(&plan, &handlers), remote)?;
        Ok(Self::with_engine(plan, handlers, engine, demangle, false))
    }

    /// Loads every map into the engine, and Linux's programs as well as the tracer's.
    pub fn all_native(plan: Arc<Plan>, demangle: Demangle) -> Result<Self, PipelineError> {
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
        let strings = Strings::new(demangle, handlers.wanted.reads, handlers.activity_fields(&plan), &mut names);
        let ledger = Ledger::new(&handlers.wanted);
        let state = HandlerState::new(plan, engine, names, all_native);
        let (limits, busy) = (Limits::default(), BusyGpus::default());
        let handling = Handling { state, handlers, strings, ledger, limits, busy };
        Pipeline { processes: Vec::new(), handling, gaps: Vec::new() }
    }

    /// Replaces the default limits.
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.handling.limits = limits;
        self
    }

    /// Adds a process whose collector was armed.
    pub fn add_process(&mut self, info: ProcessInfo) -> ProcessIndex {
        let index = ProcessIndex(self.processes.len() as u32);
        self.processes.push(Some(Box::new(TracedProcess::new(index, &info, self.handling.limits))));
        self.handling.state.processes.push(KnownProcess::new(info));
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
            ids.into_iter().for_each(|(in_target, tid)| process.facts.translate_thread(in_target, tid));
        }
    }

    /// Takes one drain of a process's rings and handles the events that are in order. Rings of an
    /// unknown or ended process are counted as [`Loss::Malformed`].
    pub fn feed(&mut self, process: ProcessIndex, rings: &[Vec<u8>], sink: &mut dyn Sink) {
        let at = process.0 as usize;
        let Some(mut process) = self.processes.get_mut(at).and_then(Option::take) else {
            return self.handling.ledger.losses.add(Loss::Malformed, 1);
        };
        self.handling.intake(at, &mut process).ingest(rings);
        self.handling.handle_ready(&mut process, Reach::Watermark, sink);
        self.processes[at] = Some(process);
    }

    /// Whether activities of a process may be missing without a loss that counts them: its collector's last flush
    /// has not arrived, and no launch record shows what it would have brought. A graph's launch does not, nor a
    /// copy's: how many records it has is unknown.
    pub fn may_lack_activities(&self, process: ProcessIndex) -> bool {
        let Some(Some(process)) = self.processes.get(process.0 as usize) else { return false };
        let wanted = &self.handling.handlers.wanted;
        let has_several = [Call::Graph, Call::Memcpy].iter().any(|it| process.counts.submitted[it.index()] > 0);
        !process.is_complete && !wanted.activities.is_empty() && (wanted.foretold != wanted.activities || has_several)
    }

    /// Ends a process that exited or was disarmed: handles everything left, and counts what never
    /// arrived.
    pub fn end_process(&mut self, process: ProcessIndex, totals: CollectorTotals, sink: &mut dyn Sink) {
        let at = process.0 as usize;
        let Some(mut process) = self.processes.get_mut(at).and_then(Option::take) else { return };
        self.handling.intake(at, &mut process).give_up();
        self.handling.handle_ready(&mut process, Reach::Everything, sink);
        self.handling.intake(at, &mut process).count_lost_launches();
        self.handling.ledger.reconcile(
            process.counts,
            &totals,
            &self.handling.handlers.wanted,
            self.handling.strings.unnamed,
        );
        let room = MOST_GAPS.saturating_sub(self.gaps.len());
        let gaps = process.gaps.of(&self.handling.state.processes[at].info, process.watermark.flushed_until());
        self.gaps.extend(gaps.take(room));
        self.handling.state.processes[at].end();
        self.handling.handlers.device.forget(process.facts.index);
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
        self.handling.ledger.account
    }

    /// Leaves kinds of host events out of the account: none of them being known is not none of them having been.
    pub fn has_no_account_of(&mut self, kinds: HostEvents) {
        let account = self.handling.ledger.account;
        self.handling.ledger.account = account.with_host_events(account.host_events.without(kinds));
    }

    /// Returns how many kernels were handled, and the sum of their durations.
    pub fn handled_kernels(&self) -> (u64, u64) {
        self.handling.busy.kernels()
    }

    /// Returns the nanoseconds during which the busiest GPU ran at least one kernel.
    pub fn busy_nanos(&self) -> u64 {
        self.handling.busy.most_nanos()
    }

    /// Returns the nanoseconds during which the GPU with this UUID ran at least one kernel; `None` if it ran none.
    pub fn busy_nanos_of(&self, uuid: &str) -> Option<u64> {
        self.handling.busy.nanos_of(|gpu| self.handling.state.names.get(gpu).is_some_and(|it| **it == *uuid))
    }

    /// Returns all losses so far, by kind and line of the script.
    pub fn losses(&self) -> Losses {
        let mut losses = self.handling.ledger.losses();
        losses.merge(&self.handling.state.handler_losses());
        losses
    }

    /// Returns the gaps in ended processes: while another tool had CUPTI.
    pub fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    /// Returns the launches whose activities never arrived by name, most frequent first.
    pub fn lost_by_name(&self) -> Vec<(Arc<str>, u64)> {
        self.handling.ledger.lost_by_name(&self.handling.state.names)
    }

    /// Returns the number of launches in flight, over all processes.
    pub fn in_flight(&self) -> usize {
        self.processes.iter().flatten().map(|it| it.launches.n_waiting()).sum()
    }

    /// Returns what the output waits for, if events are waiting.
    pub fn waiting(&self) -> Option<Waiting> {
        let waiting = |it: &TracedProcess| {
            let launch = *it.waits_for()?;
            let name = self.handling.state.names.get(it.facts.launch_symbol(&launch).name);
            let name = name.cloned().unwrap_or_else(|| Arc::from(""));
            Some(Waiting { process: it.facts.index, name, since_nanos: launch.start, events: it.activities.len() })
        };
        self.processes.iter().flatten().map(AsRef::as_ref).filter_map(waiting).min_by_key(|it| it.since_nanos)
    }

    /// Returns the engine, the string table and the processes.
    pub fn state(&self) -> &HandlerState {
        &self.handling.state
    }

    /// Returns the same, for handlers that change maps.
    pub fn state_mut(&mut self) -> &mut HandlerState {
        &mut self.handling.state
    }

    /// Returns the device probes whose pattern no kernel has matched, where there were kernels.
    pub fn unmatched_device_probes(&self) -> Vec<ProbeId> {
        self.handling.handlers.device.unmatched().collect()
    }

    /// Notes that kernels of a process have twins: its collector chooses their launches.
    pub fn has_twins<'s>(&mut self, process: ProcessIndex, symbols: impl IntoIterator<Item = &'s str>) {
        let Handling { state, handlers, .. } = &mut self.handling;
        handlers.device.has_twins(process, symbols.into_iter().map(|it| state.names.intern(it).into()));
    }

    /// Adds launches that a collector has chosen, by a condition's position in [`Plan::conditions`], and those of them that
    /// ran without handlers.
    pub fn add_sampled(&mut self, condition: usize, sampled: Sampled, unprobed: u64) {
        let Handling { handlers, ledger, .. } = &mut self.handling;
        handlers.device.add_sampled(condition, (sampled, unprobed), &mut ledger.losses);
    }

    /// Returns how many launches each condition of the script has chosen.
    pub fn sampled(&self) -> impl Iterator<Item = (Condition, Sampled)> {
        self.handling.handlers.device.sampled()
    }

    /// Runs what a compiled object launches by itself, in place of a GPU, until the run is over. `now_nanos` is on CLOCK_MONOTONIC.
    pub fn run_launches(&mut self, pid: u32, now_nanos: u64, sink: &mut dyn Sink) {
        super::device_handlers::run_launches(&mut self.handling.state, pid, now_nanos, sink);
    }
}
