//! Host events: their order, parameters and account.

mod common;

use common::{Recorder, Ring, kernel_plan, pipeline, probe};
use proptest::prelude::*;
use xputrace_model::context::{GpuContext, word};
use xputrace_model::loss::Loss;
use xputrace_model::plan::{
    Activities, Activity, Calls as LaunchCalls, Demand, Details, Functions, HostEvent, HostEvents, Place, Plan, Probe,
    ProbePlace,
};
use xputrace_model::schema::Event;
use xputrace_pipeline::{Pipeline, ProcessIndex};
use xputrace_wire::api::{FunctionId, functions};
use xputrace_wire::events::host::{Alloc, AllocKind, Api, Free, Wait, WaitKind};
use xputrace_wire::record;
use xputrace_wire::region::Lost;
use xputrace_wire::totals::CollectorTotals;

const PROCESS: ProcessIndex = ProcessIndex(0);

fn function(name: &str) -> FunctionId {
    functions().iter().find(|it| it.name() == name).unwrap().id
}

fn wait(start: u64, end: u64) -> Wait {
    let function = function("cudaStreamSynchronize").number();
    Wait { start, end, function, tid: 7, kind: WaitKind::Stream as u32, ..Wait::default() }
}

fn alloc(end: u64, address: u64, bytes: u64) -> Alloc {
    let kind = AllocKind::Device as u32;
    let function = function("cudaMalloc").number();
    Alloc { start: end - 5, end, function, address, bytes, kind, has_address: 1, ..Alloc::default() }
}

fn free(end: u64, address: u64) -> Free {
    let function = function("cudaFree").number();
    Free { start: end - 5, end, function, address, kind: AllocKind::Device as u32, ..Free::default() }
}

fn api(end: u64, name: &str, parameters: &[u64]) -> Api {
    let mut it = Api { start: end - 5, end, function: function(name).number(), ..Api::default() };
    it.parameters[..parameters.len()].copy_from_slice(parameters);
    it
}

trait Calls {
    fn wait(self, it: Wait) -> Self;
    fn alloc(self, it: Alloc) -> Self;
    fn free(self, it: Free) -> Self;
    fn api(self, it: Api) -> Self;
}

impl Calls for Ring {
    fn wait(mut self, it: Wait) -> Self {
        record::push(&mut self.0, HostEvent::Wait.record_kind(), &it, &[]);
        self
    }
    fn alloc(mut self, it: Alloc) -> Self {
        record::push(&mut self.0, HostEvent::Alloc.record_kind(), &it, &[]);
        self
    }
    fn free(mut self, it: Free) -> Self {
        record::push(&mut self.0, HostEvent::Free.record_kind(), &it, &[]);
        self
    }
    fn api(mut self, it: Api) -> Self {
        record::push(&mut self.0, HostEvent::Api.record_kind(), &it, &[]);
        self
    }
}

/// Interpreted handlers of these events; those of `api` are for these functions and read these parameters.
fn plan(kinds: &[HostEvent], api: &[(&[&str], &[&str])]) -> Plan {
    let mut plan = kernel_plan();
    let handler = |kind: &HostEvent| probe(Event::Host(*kind), Place::Interpreter, None);
    plan.probes = kinds.iter().map(handler).collect();
    let mut all = Functions::NONE;
    for (names, arguments) in api {
        let of: Functions = names.iter().map(|it| function(it)).collect();
        all = all.with(&of);
        plan.probes.push(Probe {
            target: ProbePlace::Api(Box::new(of)),
            arguments: arguments.iter().map(|it| (*it).to_owned()).collect(),
            ..handler(&HostEvent::Api)
        });
    }
    let api_kind: &[HostEvent] = if api.is_empty() { &[] } else { &[HostEvent::Api] };
    let kinds = HostEvents::of(kinds).with(HostEvents::of(api_kind));
    plan.demand = Demand { host_events: kinds, api: all, ..Demand::default() };
    plan
}

fn feed(pipeline: &mut Pipeline, sink: &mut Recorder, rings: Vec<Ring>) {
    let bytes: Vec<Vec<u8>> = rings.into_iter().map(|it| it.0).collect();
    pipeline.feed(PROCESS, &bytes, sink);
}

fn name(pipeline: &Pipeline, id: u64) -> String {
    pipeline.state().names().get(id).map(|it| it.to_string()).unwrap_or_default()
}

fn argument(event: &GpuContext, at: usize) -> Option<u64> {
    (event[word::call::HAS_ARGUMENT + at] != 0).then_some(event[word::call::ARGUMENT + at])
}

#[test]
fn calls_are_handled_in_order_of_their_end_whatever_ring_brings_them() {
    let (mut pipeline, mut sink) = (pipeline(plan(&[HostEvent::Wait], &[])), Recorder::default());
    feed(&mut pipeline, &mut sink, vec![Ring::default().wait(wait(10, 300)), Ring::default().wait(wait(20, 100))]);
    // Another thread's call that ended before, however many drains late it is read.
    feed(&mut pipeline, &mut sink, vec![Ring::default().flush(100)]);
    feed(&mut pipeline, &mut sink, vec![Ring::default().wait(wait(5, 200))]);
    feed(&mut pipeline, &mut sink, vec![Ring::default().flush(300)]);
    let ends: Vec<u64> = sink.events.iter().map(|it| it[word::LAUNCH_END]).collect();
    assert_eq!(ends, [100, 200, 300]);
    assert_eq!(name(&pipeline, sink.events[0][word::call::KIND]), "stream");
    assert_eq!(name(&pipeline, sink.events[0][word::LAUNCH_API]), "cudaStreamSynchronize");
    assert_eq!(sink.events[0][word::LAUNCH_DURATION], 80);
    assert_eq!(pipeline.losses().of(Loss::OutOfOrder), 0);
}

#[test]
fn a_free_knows_the_allocation_at_its_address() {
    let (mut pipeline, mut sink) = (pipeline(plan(&[HostEvent::Alloc, HostEvent::Free], &[])), Recorder::default());
    let failed = Alloc { result: 2, has_address: 0, ..alloc(40, 0, 1 << 40) };
    let calls = Ring::default().free(free(30, 0x100)).alloc(alloc(20, 0x100, 64)).free(free(50, 0x200)).alloc(failed);
    feed(&mut pipeline, &mut sink, vec![calls]);
    pipeline.finish(&mut sink);
    let freed = |event: &GpuContext| (event[word::call::HAS_BYTES] != 0).then_some(event[word::call::BYTES]);
    assert_eq!((freed(&sink.events[1]), freed(&sink.events[3])), (Some(64), None));
    assert_eq!(name(&pipeline, sink.events[2][word::call::ERROR]), "cudaErrorMemoryAllocation");
    assert_eq!(sink.events[2][word::call::HAS_ADDRESS], 0);
}

#[test]
fn each_handler_gets_the_parameters_that_it_names() {
    let both: &[&str] = &["cudaMalloc", "cudaMemcpy"];
    let plan = plan(&[], &[(both, &["size", "kind"]), (&["cudaMalloc"], &["devPtr"])]);
    let (mut pipeline, mut sink) = (pipeline(plan), Recorder::default());
    // The fourth parameter is an enumeration of 32 bits; what is behind it is not part of it.
    let copy = api(200, "cudaMemcpy", &[1, 2, 3, 0xffff_ffff_0000_0002]);
    let other = api(300, "cudaFree", &[9]);
    feed(
        &mut pipeline,
        &mut sink,
        vec![Ring::default().api(api(100, "cudaMalloc", &[0x7000, 64])).api(copy).api(other)],
    );
    pipeline.finish(&mut sink);
    let read: Vec<_> = sink.events.iter().map(|it| (argument(it, 0), argument(it, 1))).collect();
    assert_eq!(read, [(Some(64), None), (Some(0x7000), None), (None, Some(2))], "cudaFree was not asked for");
    assert_eq!(pipeline.account().host_event(HostEvent::Api).handled, 2);
}

#[test]
fn calls_that_did_not_fit_into_a_ring_are_lost_by_name() {
    let (mut pipeline, mut sink) = (pipeline(plan(&[HostEvent::Wait], &[])), Recorder::default());
    feed(&mut pipeline, &mut sink, vec![Ring::default().wait(wait(10, 20))]);
    let mut totals = CollectorTotals::default();
    totals.host_events[HostEvent::Wait.index()] = 5;
    totals.lost[Lost::HostEventRingFull as usize] = 4;
    pipeline.end_process(PROCESS, totals, &mut sink);
    let counts = *pipeline.account().host_event(HostEvent::Wait);
    assert_eq!((counts.handled, counts.lost, pipeline.losses().of(Loss::HostEventRingFull)), (1, 4, 4));
}

#[test]
fn a_function_that_cuda_does_not_have_is_malformed() {
    let (mut pipeline, mut sink) = (pipeline(plan(&[HostEvent::Wait], &[])), Recorder::default());
    for function in [0, 1023 | 1 << 16, 5 << 16 | 1, u32::MAX] {
        feed(&mut pipeline, &mut sink, vec![Ring::default().wait(Wait { function, ..wait(10, 20) })]);
    }
    pipeline.finish(&mut sink);
    assert_eq!((sink.events.len(), pipeline.losses().of(Loss::Malformed)), (0, 4));
}

/// Interpreted handlers of every event, with everything that they may read.
fn everything() -> Plan {
    let mut plan = kernel_plan();
    let handler = |event| probe(event, Place::Interpreter, None);
    let activities = Activity::ALL.iter().map(|it| handler(Event::Activity(*it)));
    let calls = Probe { target: ProbePlace::Calls(LaunchCalls::ALL), ..handler(Event::Launch) };
    let hosts = HostEvents::ALL.iter().map(|it| handler(Event::Host(it)));
    plan.probes = activities.chain(hosts).chain([calls]).collect();
    plan.demand = Demand {
        calls: LaunchCalls::ALL,
        activities: Activities::ALL,
        host_events: HostEvents::ALL,
        details: Details::ALL,
        ..Demand::default()
    };
    plan
}

/// Returns a record of this kind; the words are its contents.
fn any_record(kind: u16, words: &[u64]) -> Vec<u8> {
    let size = 8 + 8 * words.len() as u32;
    let head = [&kind.to_le_bytes()[..], &[0; 2], &size.to_le_bytes()].concat();
    head.into_iter().chain(words.iter().flat_map(|it| it.to_le_bytes())).collect()
}

proptest! {
    /// Kinds of records have numbers below 64. Small words repeat ids, and are sound lengths, kinds and flags.
    #[test]
    fn records_of_every_kind_are_survived_whatever_they_contain(
        drains in proptest::collection::vec(proptest::collection::vec(
            (0u16..64, proptest::collection::vec(prop_oneof![Just(0), 1u64..9, 0u64..2_000, any::<u64>()], 0..48)),
            0..60,
        ), 1..5),
    ) {
        let (mut pipeline, mut sink) = (pipeline(everything()), Recorder::default());
        for records in drains {
            let ring: Vec<u8> = records.iter().flat_map(|(kind, words)| any_record(*kind, words)).collect();
            pipeline.feed(PROCESS, &[ring], &mut sink);
        }
        pipeline.end_process(PROCESS, CollectorTotals::default(), &mut sink);
        let calls = pipeline.account().balance(LaunchCalls::ALL);
        prop_assert_eq!(calls.made, calls.sum());
    }
}
