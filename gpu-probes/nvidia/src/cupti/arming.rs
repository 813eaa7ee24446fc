//! Arming: requests from CUPTI what the demand says.

use super::calls::{IDS, REQUIRED, index_of};
use super::host_calls::Watched;
use super::others::{OTHER, OURS, TWINS};
use super::pool::Pool;
use super::records::{EVENT_RECORDS, RecordedKinds};
use super::run::{CuptiBackend, POOL, RUN, Run};
use super::{
    ATTRIBUTE_WHOLE_GRAPHS, ERROR_NOT_INITIALIZED, FINALIZE_TESTED, KIND_UNIFIED_MEMORY, RESOURCE_CONTEXT_CREATED,
    RESOURCE_CONTEXT_DESTROYING, RESOURCE_CUDA_STARTED, RESOURCE_EXECUTABLE_CREATED, RESOURCE_MODULE_LOADED,
    RESOURCE_MODULE_UNLOADING, RESOURCE_NODE_CLONED, RESOURCE_NODE_CREATED, RESOURCE_NODE_UPDATED,
    RESOURCE_STREAM_CREATED, SUCCESS, domain, yielding,
};
use std::sync::atomic::{AtomicBool, Ordering};
use xputrace_agent::{Agent, ArmRefusal, Order};
use xputrace_wire::api::{FunctionId, Functions};
use xputrace_wire::device::Condition;
use xputrace_wire::events::{Activities, Activity, Calls, HostEvent, HostEvents};
use xputrace_wire::message::demand;

/// What needs callbacks: with unified memory, to learn when CUDA has started.
const TOLD_IN_CALLBACKS: HostEvents =
    HostEvents::OF_CALLS.with(HostEvents::OF_RESOURCES).with(HostEvents::of(&[HostEvent::Migration]));

/// How many functions a note names.
const MOST_NAMED: usize = 20;

impl CuptiBackend {
    /// Prepares to share CUPTI, and watches what launches depend on.
    pub(super) fn prepare(&'static self, agent: &'static Agent) -> Result<(), ArmRefusal> {
        if POOL.get().is_none() {
            let pool =
                Pool::new().map_err(|it| ArmRefusal::from(format!("reserving memory for CUPTI's buffers: {it}")))?;
            let _ = POOL.set(pool);
        }
        // Buffers need the run too.
        let run: &'static Run = Box::leak(Box::new(Run::new(agent, self)));
        RUN.store(std::ptr::from_ref(run).cast_mut(), Ordering::Release);
        // Without it another user of CUPTI in the process meets us unprepared.
        if let Err(why) = yielding::share(&self.cupti) {
            agent.note(format!("other tools that use CUPTI in the process cannot share it: {why}"));
        }
        self.subscribe_and_prepare(agent)
    }

    /// Asks CUPTI for the times at which kernels are queued and submitted, if that is wanted. CUPTI can begin to tell them
    /// only before CUDA has started.
    pub(super) fn tell_latencies(&self, agent: &Agent) {
        if !agent.wants(demand::LATENCIES) {
            return;
        }
        let answer = if self.is_first { self.enable_latencies() } else { Some(ERROR_NOT_INITIALIZED) };
        let Some(answer) = answer else { return };
        if answer != SUCCESS {
            let why = if self.is_first { self.cupti.explain(answer) } else { "CUDA had started before".to_owned() };
            agent.note(format!("`queued` and `submitted` are `()`: CUPTI does not tell them in this process: {why}"));
        }
    }

    /// Tells the user if another subscriber has chosen that graphs are recorded as a whole.
    pub(super) fn tell_of_whole_graphs(&self, agent: &Agent) {
        if self.scope().is_some() && self.attribute(ATTRIBUTE_WHOLE_GRAPHS) == Some(1) {
            let what = "kernels, copies and memsets in graphs have no records of their own";
            agent.note(format!("another tool in the process has CUPTI record graphs as a whole: {what}"));
        }
    }

    /// Subscribes, and watches what launches depend on.
    pub(super) fn subscribe_and_prepare(&'static self, agent: &'static Agent) -> Result<(), ArmRefusal> {
        if !self.subscribe_first(agent)? {
            return Ok(());
        }
        for id in self.resource_ids(agent) {
            self.enable_callback(domain::RESOURCE, id, true)?;
        }
        self.watch_twins(agent)?;
        let calls = demand::calls_of(agent.demand());
        for it in IDS.iter().filter(|it| it.prepares_for(calls, agent.follows_profiler())) {
            self.enable_callback(it.domain, it.id, true)?;
        }
        Ok(())
    }

    /// Returns the callbacks that say who made graphs and their nodes, who loads modules, who creates contexts, and
    /// when CUDA has started.
    fn resource_ids(&self, agent: &Agent) -> impl Iterator<Item = u32> {
        const OF_EVENTS: [(HostEvent, [u32; 2]); 3] = [
            (HostEvent::Module, [RESOURCE_MODULE_LOADED, RESOURCE_MODULE_UNLOADING]),
            (HostEvent::ContextChange, [RESOURCE_CONTEXT_CREATED, RESOURCE_CONTEXT_DESTROYING]),
            // Whichever comes first.
            (HostEvent::Migration, [RESOURCE_CUDA_STARTED, RESOURCE_CONTEXT_CREATED]),
        ];
        let wanted = demand::host_events_of(agent.demand());
        let of_events = OF_EVENTS.into_iter().filter(move |it| wanted.contains(it.0)).flat_map(|it| it.1);
        self.graph_ids(agent).iter().copied().chain(of_events)
    }

    fn graph_ids(&self, agent: &Agent) -> &'static [u32] {
        const OF_GRAPHS: &[u32] =
            &[RESOURCE_EXECUTABLE_CREATED, RESOURCE_NODE_CREATED, RESOURCE_NODE_CLONED, RESOURCE_NODE_UPDATED];
        match agent.wants(demand::CAPTURES) {
            true if demand::activities_of(agent.demand()) == Activities::of(&[Activity::Graph]) => &OF_GRAPHS[..1],
            true => OF_GRAPHS,
            false => &[],
        }
    }

    /// Subscribes, and enables a callback; returns whether it could. Where no call is recorded, another subscriber
    /// is no obstacle.
    ///
    /// Done before anything else of CUPTI's, whatever is recorded: a callback makes CUPTI look at the contexts that
    /// exist. If kinds are enabled first in a process that has contexts, and launch callbacks later, as for
    /// unloading CUPTI, then the next launch reads a null pointer inside CUPTI (seen with 13.0).
    fn subscribe_first(&'static self, agent: &'static Agent) -> Result<bool, ArmRefusal> {
        let is_recorded = !demand::calls_of(agent.demand()).is_empty()
            || demand::host_events_of(agent.demand()).intersects(TOLD_IN_CALLBACKS);
        let needs_calls =
            is_recorded || agent.wants(demand::DEVICE) || agent.follows_profiler() || agent.wants(demand::CAPTURES);
        self.forget_earlier_use();
        match self.subscribe() {
            Ok(()) => {}
            Err(it) if needs_calls => return Err(it),
            Err(_) => return Ok(false),
        }
        // If CUPTI does not report new streams, ids are queried at each launch.
        if self.enable_callback(domain::RESOURCE, RESOURCE_STREAM_CREATED, true)? == SUCCESS {
            agent.tells_of_streams();
        }
        Ok(true)
    }

    /// Unloads CUPTI before we subscribe for the first time in a program that may have used it before: a profiler that
    /// only records, such as Kineto, enables kinds without a callback, and then the launch after our subscribing is
    /// the one that crashes. One that records at this moment loses what it has not read.
    fn forget_earlier_use(&self) {
        static IS_OURS: AtomicBool = AtomicBool::new(false);
        if IS_OURS.swap(true, Ordering::AcqRel) || !self.may_be_used || OTHER.was_seen() {
            return;
        }
        if let Some(finalize) = self.cupti.finalize.filter(|_| FINALIZE_TESTED.contains(&self.cupti.version())) {
            // SAFETY: no arguments; seen to be safe where CUPTI was never used. Where it was, and other threads launch at this
            // moment, the program may crash (see `Teardown`); without this, its next launch does.
            unsafe { finalize() };
        }
    }

    /// Enables callbacks before kinds of activities, and disables them after those: so every activity has its launch.
    pub(super) fn switch_records(
        &'static self,
        agent: &'static Agent,
        from: &Order,
        to: &Order,
    ) -> Result<(), ArmRefusal> {
        self.has_recorded.store(true, Ordering::Release);
        let (before, after) = (watched(from), watched(to));
        self.enable_calls(agent, &after.without(&before))?;
        self.want_activities(agent, to)?;
        let unwanted = before.without(&after);
        if !unwanted.is_empty() {
            // What they have submitted may still have a record: without their return, nobody would know its launch.
            agent.wait_for_calls_under_way();
            self.disable_calls(agent, &unwanted);
        }
        Ok(())
    }

    /// Enables the callbacks of what an order records, where none is enabled.
    pub(super) fn enable_all_calls(&self, agent: &Agent, order: &Order) -> Result<(), ArmRefusal> {
        self.enable_calls(agent, &watched(order))
    }

    /// Enables callbacks of calls. A CUPTI that lacks one of the waits, allocations or frees belongs to a CUDA that
    /// lacks it too; of functions that the script names, the user is told.
    fn enable_calls(&self, agent: &Agent, calls: &Functions) -> Result<(), ArmRefusal> {
        let mut unknown = Vec::new();
        for it in calls.iter() {
            let answer = self.enable_callback(it.domain(), it.callback(), true)?;
            if answer == SUCCESS {
                continue;
            }
            if let (true, Some(at)) = (is_required(it), index_of(it.domain(), it.callback())) {
                return Err(self.refusal(&format!("cuptiEnableCallback for {}", IDS[at].name), answer));
            }
            if agent.api().contains(it) {
                unknown.push(it.to_mark());
            }
        }
        if !unknown.is_empty() {
            let more = unknown.len().saturating_sub(MOST_NAMED);
            unknown.truncate(MOST_NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            agent.note(format!("this CUPTI does not report calls of {}{more}", unknown.join(", ")));
        }
        Ok(())
    }

    /// Disables callbacks of calls, except those that launches depend on.
    fn disable_calls(&self, agent: &Agent, calls: &Functions) {
        let stays = |it: &FunctionId| {
            let known = index_of(it.domain(), it.callback()).map(|at| IDS[at]);
            known.is_some_and(|it| it.prepares_for(demand::calls_of(agent.demand()), agent.follows_profiler()))
        };
        for it in calls.iter().filter(|it| !stays(it)) {
            let _ = self.enable_callback(it.domain(), it.callback(), false);
        }
    }

    /// Switches the callbacks of these calls, as the driver sees them.
    pub(super) fn enable_ids(&self, calls: Calls, on: bool) -> Result<(), ArmRefusal> {
        for it in IDS.iter().filter(|it| it.submits_for(calls, false)) {
            self.enable_callback(it.domain, it.id, on)?;
        }
        Ok(())
    }

    pub(super) fn enable_callback(&self, domain: u32, id: u32, on: bool) -> Result<u32, ArmRefusal> {
        OURS.set(domain, id, on);
        if !on && (TWINS.has(domain, id) || OTHER.wants(domain, id)) {
            return Ok(SUCCESS);
        }
        self.switch_callback(domain, id, on)
    }

    /// Has CUPTI call us, or not, whoever wants it.
    pub(super) fn switch_callback(&self, domain: u32, id: u32, on: bool) -> Result<u32, ArmRefusal> {
        let enable = self.cupti.enable_callback.ok_or_else(|| missing("cuptiEnableCallback"))?;
        // SAFETY: our own subscription.
        Ok(unsafe { enable(u32::from(on), self.subscriber.load(Ordering::Acquire), domain, id) })
    }

    /// Enables kinds of records. `is_first` says that none is enabled so far.
    pub(super) fn enable_kinds(
        &self,
        agent: &Agent,
        recorded: RecordedKinds,
        is_first: bool,
    ) -> Result<(), ArmRefusal> {
        if recorded.is_empty() {
            return Ok(());
        }
        if is_first {
            self.prepare_for_activities()?;
        }
        if recorded.events.contains(HostEvent::Migration) {
            self.enable_unified_memory(agent);
        }
        for (kind, name) in recorded.kinds().filter(|it| it.0 != KIND_UNIFIED_MEMORY) {
            let answer = self.enable_kind(kind).ok_or_else(|| missing("cuptiActivityEnable"))?;
            if answer != SUCCESS {
                return Err(
                    self.refusal(&format!("cuptiActivityEnable for the activity {name}{}", needs(kind)), answer)
                );
            }
        }
        Ok(())
    }

    fn prepare_for_activities(&self) -> Result<(), ArmRefusal> {
        self.cupti.flush_all.ok_or_else(|| missing("cuptiActivityFlushAll"))?;
        self.cupti.next_record.ok_or_else(|| missing("cuptiActivityGetNextRecord"))?;
        // Both are optional: without them CUPTI zeroes buffers itself, and uses one per thread.
        self.set_attributes();
        let answer = self.register().ok_or_else(|| missing("cuptiActivityRegisterCallbacks"))?;
        match answer {
            SUCCESS => Ok(()),
            _ => Err(self.refusal("cuptiActivityRegisterCallbacks", answer)),
        }
    }

    pub(super) fn refusal(&self, attempted: &str, result: u32) -> ArmRefusal {
        ArmRefusal { result, text: format!("{attempted}: {}", self.cupti.explain(result)) }
    }
}

/// Says which CUPTI has records of a kind, if not all have.
fn needs(kind: u32) -> String {
    let since = EVENT_RECORDS.iter().find(|it| it.kind == kind).and_then(|it| it.since);
    since.map(|it| format!(", which needs CUPTI {it} or later")).unwrap_or_default()
}

/// Returns the calls whose callbacks an order needs: launches, and events of the CPU. A call may be both.
fn watched(order: &Order) -> Functions {
    let (calls, outermost) = (demand::calls_of(order.demand), order.demand & demand::OUTERMOST != 0);
    let launches = IDS.iter().filter(|it| it.submits_for(calls, outermost));
    let launches: Functions = launches.filter_map(|it| FunctionId::of_callback(it.domain, it.id)).collect();
    launches.with(&Watched::of(order).ids(order))
}

fn is_required(call: FunctionId) -> bool {
    REQUIRED.contains(&(call.domain(), call.callback()))
}

impl Run {
    fn new(agent: &'static Agent, backend: &'static CuptiBackend) -> Self {
        let watched = Watched::of(&Order { demand: agent.demand(), api: *agent.api() });
        let has_twins = agent.wants(demand::DEVICE);
        let conditions = agent.device_region().map(|it| &it.control().conditions);
        let has_tag = |it: &Condition| it.has_tag.load(Ordering::Relaxed) != 0;
        let twins_need_tags = conditions.is_some_and(|it| it.iter().any(has_tag));
        Run { agent, backend, watched, has_host_calls: !watched.is_empty(), has_twins, twins_need_tags }
    }
}

pub(super) fn missing(function: &str) -> ArmRefusal {
    ArmRefusal::from(format!("this libcupti has no {function}"))
}
