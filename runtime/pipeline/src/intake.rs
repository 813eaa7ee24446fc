//! How the records of one drain change their process.

use crate::account::Ledger;
use crate::clock::Span;
use crate::gpus::{MOST_SEEN, SeenGpu};
use crate::graphs::NodeFate;
use crate::handlers::Handlers;
use crate::join::HeldLaunch;
use crate::joined::QueuedActivity;
use crate::known_process::{KnownProcess, MappingInfo, ObjectInfo};
use crate::orphans::Orphan;
use crate::process::TracedProcess;
use crate::process_info::Limits;
use crate::queue::EventQueue;
use crate::strings::Strings;
use std::collections::BTreeSet;
use xputrace_model::loss::Loss;
use xputrace_model::names::Names;
use xputrace_model::plan::{Activity, Call, Detail, Details, StringId};
use xputrace_wire::api::FunctionId;
use xputrace_wire::events::{EventSource, HostEvent, HostEvents, OfActivity, Realtime, Visitor, in_place};
use xputrace_wire::message::demand;
use xputrace_wire::record::{
    ActivityRecord, Clock, Flush, FramedRecord, Gpu, GpuLimits, Graph, HostEventRecord, Launch, Record, framed, kind,
};

/// Everything that a drain of one process may change.
pub(crate) struct Intake<'a> {
    pub(crate) process: &'a mut TracedProcess,
    pub(crate) target: &'a mut KnownProcess,
    pub(crate) names: &'a mut Names,
    pub(crate) gpus: &'a mut Vec<SeenGpu>,
    pub(crate) strings: &'a mut Strings,
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) handlers: &'a Handlers,
    pub(crate) limits: Limits,
}

impl Intake<'_> {
    /// Takes a drain: first, from all rings, what activities refer to; then the activities.
    pub(crate) fn ingest(&mut self, rings: &[Vec<u8>]) {
        let has_others: Vec<bool> = rings.iter().map(|it| self.ingest_causes(it)).collect();
        self.retry_orphans();
        let others = rings.iter().enumerate().zip(has_others).filter(|(_, has_others)| *has_others);
        others.for_each(|((ring, it), _)| self.ingest_activities(ring, it));
        if let Some(all_was_done) = self.process.watermark.buffers.end_drain() {
            let complete = self.process.graphs.flush(all_was_done);
            self.handle_graphs(complete);
        }
        self.enforce_limits();
    }

    /// Gives up on everything that still waits.
    pub(crate) fn give_up(&mut self) {
        let complete = self.process.graphs.shrink_to(0);
        self.handle_graphs(complete);
        self.shrink_orphans(0);
    }

    /// Counts the launches whose activities never arrived.
    pub(crate) fn count_lost_launches(&mut self) {
        let lost = self.forget_launches(usize::MAX);
        self.process.counts.in_vain.at_exit += lost;
    }

    /// Takes all records that activities may refer to; returns whether there may be others.
    fn ingest_causes(&mut self, ring: &[u8]) -> bool {
        let (mut frames, mut has_others) = (framed(ring), false);
        let sound = frames.all(|it| self.on_cause(&it, &mut has_others)) && frames.rest().is_empty();
        self.ledger.losses.add(Loss::Malformed, (!sound).into());
        has_others || !sound
    }

    /// Returns false if the record does not match its kind; the rest of its ring is then skipped.
    #[inline]
    fn on_cause(&mut self, frame: &FramedRecord<'_>, has_others: &mut bool) -> bool {
        match frame.header.kind {
            kind::LAUNCH => in_place(frame.body(), &mut None).map(|it| self.on_launch(it)).is_some(),
            kind::NAME
            | kind::CODE
            | kind::STACK
            | kind::THREAD
            | kind::MAPPING
            | kind::OBJECT
            | kind::GPU
            | kind::NODE
            | kind::NODE_UPDATE => frame.decode().map(|it| self.on_description(it)).is_some(),
            kind => match HostEvent::of_record(kind) {
                Some(it) if it.source() != EventSource::Record => {
                    HostEventRecord::read(kind, frame.body()).map(|it| self.on_host_event(&it)).is_some()
                }
                // Among them events whose times need the clock that precedes them.
                _ => {
                    *has_others = true;
                    true
                }
            },
        }
    }

    /// Takes clocks, activities and flushes, in order.
    fn ingest_activities(&mut self, ring: usize, bytes: &[u8]) {
        let sound = framed(bytes).all(|frame| match frame.header.kind {
            kind::CLOCK => Clock::read(frame.body()).map(|it| self.on_clock(ring, &it)).is_some(),
            kind::FLUSH => frame.read().map(|it| self.on_flush(ring, &it)).is_some(),
            kind::OPENED => frame.read().map(|it| self.process.previous.opened(&it)).is_some(),
            kind::YIELD => match frame.decode() {
                Some(Record::Yield { gap, holder }) => {
                    self.process.gaps.on_yield(gap, holder);
                    self.process.previous.missing(gap.began, gap.ended.max(gap.began));
                    true
                }
                _ => false,
            },
            kind => match Activity::of_record(kind) {
                Some(activity) => activity.show(frame.body(), &mut OfRing { intake: self, ring }),
                None if HostEvent::of_record(kind).is_some_and(|it| it.source() == EventSource::Record) => {
                    HostEventRecord::read(kind, frame.body()).map(|it| self.on_timed_event(it)).is_some()
                }
                None => true,
            },
        });
        self.ledger.losses.add(Loss::Malformed, (!sound).into());
    }

    /// Takes what a record says about a graph that ran.
    fn on_node(&mut self, record: &ActivityRecord) {
        self.process.graphs.arrived(record);
        let Some(graph) = record.graph_of_node() else { return };
        if self.process.graphs.add_node(graph, record) == NodeFate::Missed {
            self.ledger.losses.add(Loss::GraphNodeMissed, 1);
        }
    }

    /// Handles graphs of which all nodes have arrived.
    fn handle_graphs(&mut self, complete: Vec<Graph>) {
        for graph in complete {
            let (nanos, span) = (graph.end.since(graph.start), self.process.clock.span(graph.start, graph.end));
            let arrived = self.ledger.account.activity_mut(Activity::Graph);
            // The collector knows nothing of them.
            for (records, sum) in
                [(&mut arrived.records, &mut arrived.nanos), (&mut arrived.told_records, &mut arrived.told_nanos)]
            {
                (*records, *sum) = (records.saturating_add(1), sum.saturating_add(nanos));
            }
            self.handle_record(&graph, span);
        }
    }

    fn note_buffer(&mut self, ring: usize, record: &impl OfActivity) {
        let (stream, span) =
            ((record.context(), record.stream()), self.process.clock.span(record.start(), record.end()));
        self.process.watermark.buffers.record(ring, stream, span.map_or(0, |it| it.end));
    }

    #[inline]
    fn on_launch(&mut self, launch: &Launch) {
        let wanted = &self.handlers.wanted;
        let Some(call) = launch.call() else { return self.ledger.losses.add(Loss::Malformed, 1) };
        if !wanted.calls.contains(call) {
            return self.on_unwanted_launch(call, launch);
        }
        if wanted.reads.intersects(Details::OF_STREAMS) {
            self.process.facts.note_stream(launch, self.strings);
        }
        let has_no_record = launch.flags & Launch::NO_RECORD != 0;
        let is_expected = wanted.expected.contains(call) && expects(launch, call);
        let is_waited_for = is_expected && !has_no_record;
        let balance = self.ledger.account.call_mut(call);
        if launch.flags & Launch::OUTSIDE != 0 {
            balance.outside += 1;
            self.process.launched(launch.correlation);
            if launch.result == 0 && launch.flags & Launch::CAPTURED == 0 && wanted.joins_with(call) {
                self.process.launches.insert(launch, launch.flags, is_waited_for);
            }
            return;
        }
        if launch.flags & Launch::CAPTURED != 0 {
            balance.captured += 1;
            return;
        }
        let process = &mut *self.process;
        process.launched(launch.correlation);
        process.counts.submitted[call.index()] += 1;
        if !is_expected && wanted.expected.contains(call) {
            // What it does on the GPU was not asked for when it began.
            balance.outside += 1;
            if launch.result == 0 && wanted.joins_with(call) {
                process.launches.insert(launch, launch.flags, false);
            }
            if !self.handlers.of_call(call).is_empty() {
                process.calls.push(launch.end, || *launch);
            }
            return;
        }
        balance.made = balance.made.saturating_add(1);
        if launch.result != 0 {
            balance.failed += 1;
        } else {
            balance.without_work += u64::from(has_no_record);
            let is_yielded = !has_no_record && process.gaps.concern(launch) && wanted.records(call);
            if is_yielded {
                self.ledger.yielded(call);
            }
            if wanted.joins_with(call) {
                let mark = if is_yielded { Launch::YIELDED } else { 0 };
                let flags = launch.flags & !Launch::YIELDED | mark;
                process.launches.insert(launch, flags, is_waited_for && !is_yielded);
            }
        }
        if !self.handlers.of_call(call).is_empty() {
            process.calls.push(launch.end, || *launch);
        }
    }

    /// Takes a launch that was recorded only to count what a gap lacks.
    fn on_unwanted_launch(&mut self, call: Call, launch: &Launch) {
        let is_seen =
            launch.flags & (Launch::CAPTURED | Launch::OUTSIDE | Launch::NO_RECORD) == 0 && launch.result == 0;
        let is_asked_for = expects(launch, call);
        if is_seen && is_asked_for && launch.flags & Launch::YIELDED != 0 && self.handlers.wanted.records(call) {
            self.ledger.yielded(call);
        }
    }

    fn on_host_event(&mut self, record: &HostEventRecord) {
        let common = record.common();
        let is_known = FunctionId::of_number(common.function).is_some_and(FunctionId::exists);
        if !is_known && HostEvents::OF_CALLS.contains(record.kind()) {
            return self.ledger.losses.add(Loss::Malformed, 1);
        }
        if !self.handlers.wants(record) {
            return;
        }
        self.strings.learn(&common, self.names);
        self.strings.learn_payload(record, self.names);
        self.process.counts.host_events[record.kind().index()] += 1;
        self.ledger.account.host_event_mut(record.kind()).handled += 1;
        self.process.host_events.push(common.end, || *record);
    }

    /// Takes an event with the vendor's times.
    fn on_timed_event(&mut self, mut record: HostEventRecord) {
        let common = record.common();
        match self.process.clock.span(Realtime(common.start), Realtime(common.end)) {
            Some(Span { start, end }) => {
                let mut ours = [start, end].into_iter();
                record.retime(|time| ours.next().unwrap_or(time));
                self.on_host_event(&record);
            }
            None => self.ledger.losses.add(Loss::NoTimestamps, 1),
        }
    }

    fn on_description(&mut self, record: Record<'_>) {
        match record {
            Record::Name { id, text } => self.on_name(id, text),
            Record::Code { id, contents } => {
                let kept = self.target.add_code(id, contents);
                self.ledger.losses.add(Loss::NameTableFull, (!kept).into());
            }
            Record::Stack { id, frames, objects } => {
                let kept = self.target.add_stack(id, frames, objects);
                self.ledger.losses.add(Loss::StackTableFull, (!kept).into());
            }
            Record::Thread(thread) => self.process.facts.name_thread(thread.tid, thread.comm),
            Record::Node(node) => {
                let kept = self.process.facts.add_node(&node);
                self.ledger.losses.add(Loss::StackTableFull, (!kept).into());
            }
            Record::NodeUpdate(update) => {
                let kept = self.process.facts.update_node(&update);
                self.ledger.losses.add(Loss::StackTableFull, (!kept).into());
            }
            Record::Gpu { gpu, limits, name } => self.on_gpu((&gpu, limits), name),
            Record::Object { object, build_id, path, directory } => {
                let kept = self.target.add_object(ObjectInfo {
                    object,
                    build_id: build_id.into(),
                    path: path.into(),
                    directory: directory.into(),
                });
                self.ledger.losses.add(Loss::MappingTableFull, (!kept).into());
            }
            Record::Mapping { mapping, path } => {
                let kept =
                    self.target.add_mapping(MappingInfo { mapping, path: String::from_utf8_lossy(path).into_owned() });
                self.ledger.losses.add(Loss::MappingTableFull, (!kept).into());
            }
            _ => {}
        }
    }

    fn on_gpu(&mut self, (gpu, limits): (&Gpu, GpuLimits), name: &[u8]) {
        let is_new = self.process.facts.gpus.add((gpu, limits), name, self.names);
        let seen = SeenGpu { gpu: *gpu, name: xputrace_model::text::from_bytes(name) };
        if is_new && self.gpus.len() < MOST_SEEN && !self.gpus.contains(&seen) {
            self.gpus.push(seen);
        }
    }

    /// Takes a name. An id keeps its first text, so that a target cannot grow the string table
    /// without limit.
    fn on_name(&mut self, id: u32, text: &[u8]) {
        let facts = &mut self.process.facts;
        if facts.knows_name(id) {
            return;
        }
        let named = facts.has_room_for_names() && {
            let symbol = self.strings.symbol(&xputrace_model::text::from_bytes(text), self.names);
            // Equal texts are kept once.
            let texts = BTreeSet::from([symbol.symbol, symbol.name, symbol.short_name]);
            let bytes = texts.into_iter().filter_map(|it| self.names.get(it)).map(|it| it.len()).sum();
            facts.name(id, symbol, bytes)
        };
        self.ledger.losses.add(Loss::NameTableFull, (!named).into());
    }

    fn on_clock(&mut self, ring: usize, pair: &Clock) {
        let stepped = self.process.clock.update(pair);
        self.process.watermark.buffers.begin(ring, pair);
        self.ledger.losses.add(Loss::ClockStep, stepped.into());
    }

    #[inline]
    fn on_activity(&mut self, ring: usize, record: &impl OfActivity) {
        let wanted = &self.handlers.wanted;
        let kind = record.activity();
        let process = &mut *self.process;
        let arrived = self.ledger.account.activity_mut(kind);
        arrived.records += 1;
        process.counts.activities += 1;
        let (start, end) = (record.start(), record.end());
        let span = process.clock.span(start, end);
        match span {
            Some(_) => arrived.nanos = arrived.nanos.saturating_add(end.since(start)),
            None => {
                process.counts.untimed += 1;
                self.ledger.losses.add(Loss::NoTimestamps, 1);
            }
        }
        if let (true, Some(span)) = (wanted.reads.has(Detail::Idle), span) {
            process.idle.arrived(record.device(), span);
        }
        if wanted.foretold != wanted.activities || wanted.derives_graphs {
            let stream = (record.context(), record.stream());
            process.watermark.buffers.record(ring, stream, span.map_or(0, |it| it.end));
        }
        self.handle_record(record, span);
    }

    /// Joins a record with its launch, if that is wanted, and queues it.
    #[inline(always)]
    fn handle_record(&mut self, record: &impl OfActivity, span: Option<Span>) {
        if !self.handlers.wanted.joined.contains(record.activity()) {
            queue(&mut self.process.activities, span, record, None);
        } else if !join(self.process, self.ledger, record, span) {
            self.process.orphans.push((*record).into(), span);
        }
    }

    fn on_flush(&mut self, ring: usize, flush: &Flush) {
        self.process.watermark.flush(ring, flush.began);
        self.process.is_complete |= flush.last != 0;
        if let Some(time) = self.process.gaps.flush(flush.began) {
            self.give_up_before(time);
        }
        let expired = self.process.orphans.expire().collect();
        self.handle_alone(expired);
    }

    fn retry_orphans(&mut self) {
        let mut orphans = std::mem::take(&mut self.process.orphans);
        orphans.retry(|it| join(self.process, self.ledger, &it.activity, it.span));
        self.process.orphans = orphans;
    }

    fn enforce_limits(&mut self) {
        let complete = self.process.graphs.shrink_to(self.limits.graph_launches);
        self.handle_graphs(complete);
        self.shrink_orphans(self.limits.orphans);
        let over = self.process.launches.n_waiting().saturating_sub(self.limits.pending_launches);
        if over > 0 {
            let lost = self.forget_launches(over + self.limits.pending_launches / 16);
            self.process.counts.in_vain.evicted += lost;
            self.ledger.evicted(lost);
        }
    }

    fn shrink_orphans(&mut self, limit: usize) {
        let surplus = self.process.orphans.shrink_to(limit).collect();
        self.handle_alone(surplus);
    }

    /// Handles activities whose launch is no longer waited for.
    fn handle_alone(&mut self, orphans: Vec<Orphan>) {
        for Orphan { span, activity, .. } in orphans {
            self.ledger.losses.add(self.process.loss_of(&activity), 1);
            queue(&mut self.process.activities, span, &activity, None);
        }
    }

    /// Stops waiting for launches before a gap: what was recorded of them has arrived.
    fn give_up_before(&mut self, time: u64) {
        for launch in self.process.launches.give_up_before(time, Launch::YIELDED) {
            let Some(call) = launch.call().filter(|_| launch.flags & Launch::OUTSIDE == 0) else { continue };
            match launch.flags & Launch::MAYBE_NO_RECORD {
                0 => self.ledger.yielded(call),
                _ => self.ledger.without_record(call),
            }
        }
    }

    /// Stops waiting for the `n` oldest launches; returns how many of them are lost.
    fn forget_launches(&mut self, n: usize) -> u64 {
        let mut lost = 0;
        for launch in self.process.launches.evict(n) {
            let Some(call) = launch.call().filter(|_| launch.flags & Launch::OUTSIDE == 0) else { continue };
            if launch.flags & Launch::MAYBE_NO_RECORD != 0 {
                self.ledger.without_record(call);
            } else {
                self.ledger.lose(call, self.process.facts.launch_symbol(&launch).name as StringId, 1);
                lost += 1;
            }
        }
        lost
    }
}

/// Takes the activities of a ring.
struct OfRing<'i, 'a> {
    intake: &'i mut Intake<'a>,
    ring: usize,
}

impl Visitor for OfRing<'_, '_> {
    #[inline]
    fn visit<R: OfActivity>(&mut self, record: &R) {
        let wanted = &self.intake.handlers.wanted;
        if wanted.derives_graphs {
            self.intake.on_node(&(*record).into());
        }
        if wanted.activities.contains(record.activity()) {
            self.intake.on_activity(self.ring, record);
        } else if wanted.derives_graphs {
            self.intake.note_buffer(self.ring, record);
        }
    }
}

/// Whether the activities that show when the work of a call is done were asked for when it began.
fn expects(launch: &Launch, call: Call) -> bool {
    demand::has_any(launch.demanded, call.shown_by())
}

/// Joins an activity with its launch; returns false if the launch has not arrived.
#[inline]
fn join(process: &mut TracedProcess, ledger: &mut Ledger, activity: &impl OfActivity, span: Option<Span>) -> bool {
    let (correlation, context) = (activity.correlation(), activity.context());
    let Some((launch, cause)) = process.launches.join(correlation, context) else { return false };
    if launch.flags & Launch::OUTSIDE != 0 {
        process.launches.decline(cause);
        return true;
    }
    match launch.call() {
        // It counts as outside.
        Some(call) if !expects(launch, call) => {}
        Some(call) if cause.is_first => ledger.account.call_mut(call).joined += 1,
        // One record shows that they came here. Those of a graph may be divided.
        Some(call) if launch.flags & Launch::YIELDED != 0 && call != Call::Graph => {
            launch.flags &= !Launch::YIELDED;
            ledger.regained(call);
        }
        _ => {}
    }
    process.watermark.joined(launch);
    match span {
        Some(_) => {
            let launch = process.launches.hold(cause);
            queue(&mut process.activities, span, activity, Some(launch));
        }
        None => process.launches.decline(cause),
    }
    true
}

/// Queues an activity; one without times is counted and not handled.
#[inline]
fn queue(
    queue: &mut EventQueue<QueuedActivity>,
    span: Option<Span>,
    activity: &impl OfActivity,
    launch: Option<HeldLaunch>,
) {
    if let Some(span) = span {
        queue.push(span.end, || QueuedActivity { span, activity: (*activity).into(), launch });
    }
}
