//! Runs the handlers of a process's events, in the order of the events.

use crate::account::Ledger;
use crate::busy::BusyGpus;
use crate::device_handlers::KernelLaunch;
use crate::device_launches::Owner;
use crate::handler::GpuHandler;
use crate::handlers::Handlers;
use crate::intake::Intake;
use crate::joined::QueuedActivity;
use crate::process::TracedProcess;
use crate::process_info::Limits;
use crate::queue::{EventQueue, Queued, Until};
use crate::sink::Sink;
use crate::state::{EventOrigin, HandlerState};
use crate::strings::Strings;
use xputrace_model::context::{GpuContext, WORDS, word};
use xputrace_model::loss::Loss;
use xputrace_model::plan::{Activity, Detail, Details};
use xputrace_wire::events::host::Common;
use xputrace_wire::record::{ActivityRecord, HostEventRecord, Launch};

/// What handles the events of all processes.
pub(crate) struct Handling {
    pub(crate) state: HandlerState,
    pub(crate) handlers: Handlers,
    pub(crate) strings: Strings,
    pub(crate) ledger: Ledger,
    pub(crate) limits: Limits,
    pub(crate) busy: BusyGpus,
}

/// Which events of a process are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Watermark,
    Everything,
}

impl Handling {
    /// Borrows what a drain of a process changes; the process itself is moved out meanwhile.
    pub(crate) fn intake<'a>(&'a mut self, at: usize, process: &'a mut TracedProcess) -> Intake<'a> {
        Intake {
            process,
            target: &mut self.state.processes[at],
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
    pub(crate) fn handle_ready(&mut self, process: &mut TracedProcess, reach: Reach, sink: &mut dyn Sink) {
        let [calls, activities] = self.until(process, reach);
        if !self.strings.reads.has(Detail::WaitedFor) {
            self.handle_until(process, |it| &mut it.host_events, calls, reach, sink);
        }
        self.handle_until(process, |it| &mut it.calls, calls, reach, sink);
        self.handle_until(process, |it| &mut it.activities, activities, reach, sink);
        if self.strings.reads.has(Detail::WaitedFor) {
            // What a wait was for ended before it.
            let until = Until { in_order: calls.in_order.min(activities.end()), ..calls };
            self.handle_until(process, |it| &mut it.host_events, until, reach, sink);
            process.waits.forget_before(until.end());
        }
    }

    /// Returns how far calls and other host events may be handled, and how far activities.
    fn until(&self, process: &TracedProcess, reach: Reach) -> [Until; 2] {
        if reach == Reach::Everything {
            return [Until { in_order: u64::MAX, heard: u64::MAX }; 2];
        }
        let TracedProcess { watermark, launches, orphans, .. } = process;
        let wanted = &self.handlers.wanted;
        let heard = self.state.linux_heard_until;
        let in_order = watermark.activities_until(wanted, launches, orphans);
        let activities = Until { in_order, heard: heard.min(self.state.heard_until) };
        let calls = Until { in_order: watermark.flushed_until(), heard };
        [calls, activities]
    }

    fn handle_until<E: Handled>(
        &mut self,
        process: &mut TracedProcess,
        queue_of: fn(&mut TracedProcess) -> &mut EventQueue<E>,
        until: Until,
        reach: Reach,
        sink: &mut dyn Sink,
    ) {
        let queue = queue_of(process);
        if queue.is_empty() {
            return;
        }
        if !queue.has_ready(until, self.limits.buffered_events) {
            // Other events ask for what it prepares, too.
            return E::prepare(self.strings.reads, process, false);
        }
        let batch = queue.take_batch(until, self.limits.buffered_events);
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
        let queue = queue_of(process);
        queue.handled_until = handled_until;
        queue.put_back(batch, n_handled);
    }

    #[inline(always)]
    fn run(
        state: &mut HandlerState,
        handlers: &[GpuHandler],
        origin: EventOrigin,
        ctx: &GpuContext,
        sink: &mut dyn Sink,
    ) {
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
trait Handled: Queued {
    /// Prepares for a batch; it is forced if its events are handled too early.
    fn prepare(_reads: Details, _process: &mut TracedProcess, _is_forced: bool) {}

    fn handle(&self, handling: &mut Handling, process: &mut TracedProcess, ctx: &mut GpuContext, sink: &mut dyn Sink);
}

impl Handled for QueuedActivity {
    fn prepare(reads: Details, process: &mut TracedProcess, is_forced: bool) {
        if reads.has(Detail::Previous) || reads.has(Detail::WaitedFor) || reads.has(Detail::Idle) {
            process.prepare_previous(is_forced);
        }
    }

    #[inline]
    fn handle(&self, handling: &mut Handling, process: &mut TracedProcess, ctx: &mut GpuContext, sink: &mut dyn Sink) {
        let facts = &process.facts;
        let event = self.with_launch(&process.launches);
        facts.fill_activity_event(ctx, &event, &handling.strings);
        let kind = self.activity.activity();
        if handling.strings.reads.has(Detail::Idle) {
            process.idle.fill(ctx, &event, &process.previous);
        }
        if kind == Activity::Kernel {
            if handling.strings.reads.has(Detail::Previous) {
                process.previous.fill(ctx, &event);
            }
            handling.busy.add(facts.gpus.identity(self.activity.device()), self.span.start, self.span.end);
        }
        // A graph's nodes are what ran.
        if handling.strings.reads.has(Detail::WaitedFor) && kind != Activity::Graph {
            let name = if kind == Activity::Kernel { ctx[word::NAME] } else { handling.strings.activity(kind) };
            process.waits.on_activity(&event, name);
        }
        let alone = EventOrigin { began: self.span.start, demanded: 0 };
        let origin = event.launch.map_or(alone, |it| EventOrigin { began: it.start, demanded: it.demanded });
        if kind == Activity::Kernel && !handling.handlers.device.is_empty() {
            let is_twin = process.facts.is_twin(self.activity.symbol());
            if is_twin && let ActivityRecord::Kernel(it) = &self.activity {
                let owner = Owner { process: process.facts.index, context: it.context };
                handling.state.device.launches.learn(owner, it.grid_id, ctx);
            }
            let launch = KernelLaunch { process: process.facts.index, origin, kernel: ctx, is_twin };
            handling.handlers.device.run_kernel(&launch, &mut handling.state, &mut handling.ledger.losses, sink);
        }
        if let Some(launch) = self.launch {
            process.launches.release(launch);
        }
        Handling::run(&mut handling.state, handling.handlers.of_activity(kind), origin, ctx, sink);
    }
}

impl Handled for HostEventRecord {
    fn handle(&self, handling: &mut Handling, process: &mut TracedProcess, ctx: &mut GpuContext, sink: &mut dyn Sink) {
        let freed = process.allocations.on_event(self);
        let Common { start, flags, .. } = self.common();
        let origin = EventOrigin { began: start, demanded: flags >> Common::DEMANDED_AT };
        process.facts.fill_host_event(ctx, self, freed, &handling.strings);
        match self {
            HostEventRecord::Wait(it) if handling.strings.reads.has(Detail::WaitedFor) => {
                process.waits.fill(ctx, it, &process.previous);
            }
            HostEventRecord::StreamChange(it) => process.stream_ids.fill(ctx, it),
            HostEventRecord::EventRecord(it) if handling.strings.reads.has(Detail::WaitedFor) => {
                process.waits.on_event_record(it)
            }
            _ => {}
        }
        if let HostEventRecord::Api(it) = self {
            let function = it.function;
            for handler in handling.handlers.of_function(function) {
                handler.fill(ctx, &it.parameters);
                Handling::run(&mut handling.state, std::slice::from_ref(&handler.handler), origin, ctx, sink);
            }
            return;
        }
        Handling::run(&mut handling.state, handling.handlers.of_host_event(self.kind()), origin, ctx, sink);
    }
}

impl Handled for Launch {
    fn handle(&self, handling: &mut Handling, process: &mut TracedProcess, ctx: &mut GpuContext, sink: &mut dyn Sink) {
        let Some(call) = self.call() else { return };
        process.facts.fill_launch_event(ctx, self, &handling.strings);
        let origin = EventOrigin { began: self.start, demanded: self.demanded };
        Handling::run(&mut handling.state, handling.handlers.of_call(call), origin, ctx, sink);
    }
}
