//! Joining, order and losses: synthetic rings in, tables and counts out.

mod common;

use common::*;
use proptest::prelude::*;
use xputrace_bytecode::insn::{Alu, Reg, Size, atomic};
use xputrace_bytecode::{Assembler, BpfMapId, Home, ProgramId, ProgramKind, helper};
use xputrace_model::context::{GpuContext, WORDS, word};
use xputrace_model::diagnostic::Site;
use xputrace_model::loss::{Balance, Cause, Loss};
use xputrace_model::plan::{
    Activities, Activity, Call, Calls, Demand, Detail, Details, Place, Plan, ProbePlace, Switch, SwitchId,
};
use xputrace_model::schema::Event;
use xputrace_model::stack::StackKey;
use xputrace_model::table::{Cell, Key, Scalar, TableKind, Value};
use xputrace_pipeline::{Limits, Pipeline, ProcessIndex, ProcessInfo};
use xputrace_wire::events::Realtime;
use xputrace_wire::message::demand;
use xputrace_wire::record::{self, Clock, Graph, Kernel, Launch, Memset, Node, kind};
use xputrace_wire::region::CallTotals;
use xputrace_wire::region::Lost;
use xputrace_wire::totals::CollectorTotals;

const P: ProcessIndex = ProcessIndex(0);

fn feed(pipeline: &mut Pipeline, sink: &mut Recorder, rings: &[Ring]) {
    let rings: Vec<Vec<u8>> = rings.iter().map(|it| it.0.clone()).collect();
    pipeline.feed(P, &rings, sink);
}

fn end(pipeline: &mut Pipeline, sink: &mut Recorder) {
    pipeline.end_process(P, CollectorTotals::default(), sink);
}

fn row(name: &str, tid: i64, joined: i64, sum: i64) -> (Key, Cell) {
    (vec![Value::Str(name.into()), Value::Int(tid), Value::Int(joined)], Cell::Number(sum))
}

fn made(made: u64) -> CallTotals<u64> {
    CallTotals { made, ..CallTotals::default() }
}

/// Returns how many kernels arrived, and their total nanoseconds.
fn kernels(pipeline: &Pipeline) -> (u64, u64) {
    let it = pipeline.account().activity(Activity::Kernel).to_owned();
    (it.records, it.nanos)
}

/// What no handler reads is not filled: what one reads must not depend on that.
#[test]
fn every_word_is_the_same_whatever_others_read() {
    let counted = |at: usize, n_probes: usize| {
        let mut plan = kernel_plan();
        plan.image.maps = vec![hash("n", 8, Home::Tracer)];
        plan.image.programs = vec![add_to_map("n", BpfMapId(0), &[at], None)];
        plan.tables = vec![table("@n", vec![key(Scalar::Int)], TableKind::Count, BpfMapId(0))];
        // The second handler is interpreted, and may read all.
        plan.probes.truncate(n_probes);
        let (mut pipeline, mut sink) = (pipeline(plan), Recorder::default());
        let told =
            Launch { tag: 8, flags: Launch::TAGGED, external: 9, external_kind: 1, stack: 10, ..launch(5, 1_000) };
        let launches = Launch { ranges: KERNEL_B, result: 0, device: 3, stream: 4, grid: [5, 6, 7], ..told };
        let launches = Launch { block: [8, 9, 10], dynamic_shared: 11, ..launches };
        let ran = Kernel { grid: [5, 6, 7], block: [8, 9, 10], device: 3, stream: 4, ..kernel(5, 1_100, 1_500) };
        let rings = [Ring::default().names().launch(launches), Ring::default().clock(2_000).kernel(ran)];
        feed(&mut pipeline, &mut sink, &rings);
        end(&mut pipeline, &mut sink);
        rows(&mut pipeline, 0, true)
    };
    for at in 0..WORDS {
        let alone = counted(at, 1);
        assert_eq!((alone.len(), &alone), (1, &counted(at, 2)), "word {at}");
    }
}

/// The worked example of docs/JOIN.md.
#[test]
fn the_documented_example() {
    let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
    let launches =
        Ring::default().names().launch(launch(11, 1_000)).launch(launch(14, 1_100)).launch(launch(19, 1_200));
    let activity = Ring::default()
        .clock(2_000)
        .kernel(kernel(14, 1_120, 1_320))
        .kernel(kernel(11, 1_020, 1_420))
        .kernel(kernel(7, 900, 1_010))
        .flush(2_000);
    feed(&mut pipeline, &mut sink, &[launches, activity]);
    assert_eq!(sink.ends(), [] as [u64; 0], "the kernel of unknown launch 7 waits, and it ended first");

    feed(&mut pipeline, &mut sink, &[Ring::default(), Ring::default().flush(2_100)]);
    assert_eq!(sink.ends(), [1_010], "after two flushes 7 is unjoined; 19 was launched at 1200 and withholds the rest");
    assert_eq!(
        pipeline.waiting().map(|it| (it.name.to_string(), it.since_nanos, it.events)),
        Some(("a<int>".into(), 1_200, 2))
    );

    let late = Ring::default().clock(3_000).kernel(kernel(19, 1_430, 2_430)).flush(3_000);
    feed(&mut pipeline, &mut sink, &[Ring::default(), late]);
    assert_eq!(sink.ends(), [1_010, 1_320, 1_420, 2_430]);
    assert_eq!(rows(&mut pipeline, 0, true), [row("a<int>", 0, 0, 110), row("a<int>", 7, 1, 1_600)]);
    end(&mut pipeline, &mut sink);
    assert_eq!(pipeline.account().launches(), Balance { made: 3, joined: 3, ..Balance::default() });
    assert_eq!(kernels(&pipeline), (4, 1_710));
    assert_eq!(pipeline.losses().iter().collect::<Vec<_>>(), [(Loss::Unjoined, Cause::default(), 1)]);
}

/// `kernel(|k| @names[k.name] += 1)`, with the text itself, not its id, as the key.
fn plan_by_text() -> Plan {
    const ROOM: u32 = 8;
    let mut asm = Assembler::new();
    asm.ldx(Size::Dw, Reg::R1, Reg::R1, (word::NAME * 8) as i16);
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R2, -8);
    asm.mov_imm(Reg::R3, ROOM.into());
    asm.call(helper::NAME_TEXT);
    asm.ld_map(Reg::R1, BpfMapId(0));
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R2, -8);
    asm.mov_imm(Reg::R3, 1);
    asm.mov_imm(Reg::R4, atomic::ADD.into());
    asm.call(helper::MAP_MODIFY);
    asm.mov_imm(Reg::R0, 0);
    asm.exit();
    let mut plan = kernel_plan();
    plan.image.maps[0] = hash("names", ROOM, Home::Tracer);
    plan.image.programs[0] = program("names", ProgramKind::Syscall, asm);
    plan.tables = vec![table("@names", vec![key(Scalar::Text(ROOM))], TableKind::Count, BpfMapId(0))];
    plan.probes.truncate(1);
    plan
}

#[test]
fn a_name_that_is_not_utf8_has_the_key_that_linux_gives_it() {
    let (mut pipeline, mut sink) = (pipeline(plan_by_text()), Recorder::default());
    let launches = Ring::default().name_of_bytes(KERNEL_A, b"caf\xe9").launch(launch(1, 1_000));
    feed(&mut pipeline, &mut sink, &[launches, Ring::default().clock(2_000).kernel(kernel(1, 1_100, 1_200))]);
    end(&mut pipeline, &mut sink);
    // Linux's maps hold bytes; this is how they are read back.
    let key = vec![Value::Str(xputrace_model::text::from_bytes(b"caf\xe9").into())];
    assert_eq!(rows(&mut pipeline, 0, true), [(key, Cell::Number(1))]);
}

#[test]
fn every_field_reaches_the_handler() {
    let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
    let mut launch = launch(5, 1_000);
    (launch.tag, launch.flags, launch.stack, launch.grid, launch.dynamic_shared) =
        (-3, Launch::TAGGED, 9, [1, 2, 3], 64);
    launch.stream = xputrace_wire::record::UNKNOWN;
    let kernel =
        Kernel { grid: [4, 5, 6], block: [7, 8, 9], registers: 32, stream: 13, device: 2, ..kernel(5, 1_500, 1_700) };
    feed(&mut pipeline, &mut sink, &[Ring::default().names().launch(launch), Ring::default().clock(1).kernel(kernel)]);
    end(&mut pipeline, &mut sink);
    let it = sink.events[0];
    let text = |at: usize| pipeline.state().names().get(it[at]).unwrap().to_string();
    assert_eq!(
        ["a<int>", "a", "a<int>", "cudaLaunchKernel", "kernel", "a<int>", "a"].map(String::from),
        [
            word::NAME,
            word::SHORT_NAME,
            word::SYMBOL,
            word::LAUNCH_API,
            word::LAUNCH_KIND,
            word::LAUNCH_NAME,
            word::LAUNCH_SHORT_NAME,
        ]
        .map(text)
    );
    let numbers = |from: usize, n: usize| it[from..from + n].to_vec();
    assert_eq!(numbers(word::START, 3), [1_500, 1_700, 200]);
    assert_eq!(numbers(word::GRID, 7), [4, 5, 6, 7, 8, 9, 32]);
    assert_eq!(numbers(word::LAUNCH_START, 3), [1_000, 1_005, 5]);
    assert_eq!(numbers(word::LAUNCH_GRID, 3), [1, 2, 3]);
    assert_eq!((it[word::TIME], it[word::PID], it[word::TID]), (1_500, 100, 7));
    assert_eq!((it[word::LAUNCH_TAGGED], it[word::LAUNCH_TAG] as i64), (1, -3));
    assert_eq!((it[word::STREAM], it[word::LAUNCH_STREAM], it[word::DEVICE]), (13, 13, 2));
    assert_eq!(it[word::COMM].to_le_bytes(), *b"app\0\0\0\0\0");
    assert_eq!(it[word::LAUNCH_USTACK], StackKey::Collector { process: 0, id: 9 }.to_word());
}

#[test]
fn a_graph_launch_has_many_kernels() {
    let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
    let graph = Launch { launch_kind: Launch::GRAPH, symbol: 0, ..launch(5, 1_000) };
    let of_graph = |node, end| Kernel { graph: 1, graph_node: node, ..kernel(5, end - 10, end) };
    let first = Ring::default().clock(1).kernel(of_graph(1, 1_100)).kernel(of_graph(2, 1_200)).flush(2_000);
    let second = Ring::default().kernel(of_graph(1, 3_100)).flush(4_000);
    feed(&mut pipeline, &mut sink, &[Ring::default().names().launch(graph), first]);
    feed(&mut pipeline, &mut sink, &[Ring::default(), second]);
    end(&mut pipeline, &mut sink);
    assert_eq!(rows(&mut pipeline, 0, true), [row("a<int>", 7, 1, 30)]);
    let graphs = pipeline.account().call(Call::Graph).to_owned();
    assert_eq!((graphs.made, graphs.joined, kernels(&pipeline).0), (1, 1, 3));
    assert_eq!(sink.events[0][word::LAUNCH_NAME], sink.events[0][word::LAUNCH_API], "a graph is named by its call");
    assert!(pipeline.losses().is_empty());
}

#[test]
fn a_graph_launch_without_a_kernel_record_is_lost_only_where_its_graph_has_a_kernel() {
    let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
    let graph = |id, flags| Launch { launch_kind: Launch::GRAPH, symbol: 0, flags, ..launch(id, u64::from(id) * 100) };
    let launches = Ring::default()
        .names()
        .launch(graph(1, 0))
        .launch(graph(2, 0))
        .launch(graph(3, Launch::NO_RECORD))
        .launch(graph(4, Launch::NO_RECORD))
        .launch(graph(5, Launch::MAYBE_NO_RECORD))
        .launch(graph(6, Launch::MAYBE_NO_RECORD))
        .launch(Launch { result: 700, ..graph(7, Launch::NO_RECORD) });
    let kernels = Ring::default().clock(1).kernel(kernel(1, 150, 160)).kernel(kernel(5, 550, 560)).flush(1_000);
    feed(&mut pipeline, &mut sink, &[launches, kernels]);
    end(&mut pipeline, &mut sink);
    let graphs = *pipeline.account().call(Call::Graph);
    let expected =
        Balance { made: 7, joined: 2, failed: 1, lost: 1, without_work: 2, without_record: 1, ..Balance::default() };
    assert_eq!((graphs, graphs.sum()), (expected, 7));
    let losses = pipeline.losses();
    assert_eq!((losses.of(Loss::LostAtExit), losses.of(Loss::GraphWithoutRecord)), (1, 1));
}

/// No record follows such a launch, so it must not hold anything back.
#[test]
fn a_graph_without_a_kernel_does_not_withhold_later_kernels() {
    let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
    let graph = Launch { launch_kind: Launch::GRAPH, symbol: 0, flags: Launch::NO_RECORD, ..launch(1, 100) };
    let launches = Ring::default().names().launch(graph).launch(launch(2, 200));
    feed(&mut pipeline, &mut sink, &[launches, Ring::default().clock(1).kernel(kernel(2, 250, 260)).flush(1_000)]);
    assert_eq!((sink.events.len(), pipeline.in_flight()), (1, 0));
}

/// While another tool has CUPTI's records.
#[test]
fn launches_of_a_gap_are_lost_by_name_and_hold_nothing_back() {
    let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
    let yielded = |id, start| Launch { flags: Launch::YIELDED, ..launch(id, start) };
    // 1 was delivered by the flush that handed over; 2 was entered before the gap and submitted in it; 5 was
    // submitted just after it.
    let launches = Ring::default()
        .names()
        .launch(launch(1, 100))
        .launch(launch(2, 200))
        .launch(yielded(3, 400))
        .launch(Launch { result: 700, ..yielded(4, 500) })
        .launch(yielded(5, 600))
        .launch(launch(6, 800));
    let service = Ring::default().clock(1).kernel(kernel(1, 110, 120)).gap(300, 0, 0).gap(300, 700, 2);
    let service = service.kernel(kernel(5, 710, 720)).kernel(kernel(6, 810, 820)).flush(900);
    feed(&mut pipeline, &mut sink, &[launches, service]);
    assert_eq!(sink.ends(), [120, 720, 820], "nothing waits for 2 and 3");
    end(&mut pipeline, &mut sink);
    let calls = *pipeline.account().call(Call::Kernel);
    assert_eq!(calls, Balance { made: 6, joined: 3, failed: 1, lost: 2, ..Balance::default() });
    assert_eq!((pipeline.losses().of(Loss::Yielded), pipeline.losses().of(Loss::LostAtExit)), (2, 0));
    let gaps: Vec<_> = pipeline.gaps().iter().map(|it| (it.pid, &*it.holder, it.start, it.end, it.launches)).collect();
    assert_eq!(gaps, [(100, "libother.so", 300, 700, 2)]);
}

#[test]
fn a_script_without_launches_counts_those_of_a_gap() {
    let plan = kernel_plan();
    let demand = Demand { calls: Calls::NONE, ..plan.demand };
    let (mut pipeline, mut sink) = (pipeline(Plan { demand, ..plan }), Recorder::default());
    let launches = Ring::default().names().launch(Launch { flags: Launch::YIELDED, ..launch(1, 400) });
    feed(&mut pipeline, &mut sink, &[launches, Ring::default().clock(1).gap(300, 700, 1).flush(900)]);
    end(&mut pipeline, &mut sink);
    assert_eq!((pipeline.losses().of(Loss::Yielded), pipeline.account().launches().made), (1, 0));
}

#[test]
fn launches_are_joined_failed_captured_or_lost() {
    let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
    let launches = Ring::default()
        .names()
        .launch(launch(1, 100))
        .launch(Launch { result: 700, ..launch(2, 200) })
        .launch(Launch { flags: Launch::CAPTURED, ..launch(3, 300) })
        .launch(Launch { symbol: KERNEL_B, ..launch(4, 400) });
    feed(&mut pipeline, &mut sink, &[launches, Ring::default().clock(1).kernel(kernel(1, 150, 160)).flush(1_000)]);
    let mut totals = CollectorTotals::default()
        .with_call(Call::Kernel, CallTotals { made: 6, captured: 1, ..CallTotals::default() })
        .with_activity(Activity::Kernel, 4, 99);
    totals.lost[Lost::LaunchRingFull as usize] = 2;
    totals.lost[Lost::ActivityRingFull as usize] = 1;
    pipeline.end_process(P, totals, &mut sink);
    let it = pipeline.account();
    assert_eq!(it.launches(), Balance { made: 5, joined: 1, failed: 1, lost: 3, captured: 1, ..Balance::default() });
    let told = it.activity(Activity::Kernel);
    assert_eq!((told.told_records, told.told_nanos), (4, 99));
    let losses = pipeline.losses();
    let of = |it| losses.of(it);
    assert_eq!(
        (of(Loss::LostAtExit), of(Loss::Unreconciled), of(Loss::LaunchRingFull), of(Loss::ActivityRingFull)),
        (0, 2, 2, 1)
    );
    let lost: Vec<_> = pipeline.lost_by_name().into_iter().map(|(name, n)| (name.to_string(), n)).collect();
    assert_eq!(lost, [("(launch record lost)".into(), 2), ("b".into(), 1)]);
    pipeline.end_process(P, totals, &mut sink);
    assert_eq!(pipeline.account(), it, "a process ends once");
}

/// Three launches lack a record. The collector knows of lost records, and the launches beyond these are lost at exit.
#[test]
fn each_launch_without_a_record_is_lost_under_one_name() {
    let name_losses = |lost: &[(Lost, u64)]| {
        let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
        let launches = (1..=4).fold(Ring::default().names(), |ring, n| ring.launch(launch(n, u64::from(n) * 100)));
        feed(&mut pipeline, &mut sink, &[launches, Ring::default().clock(1).kernel(kernel(4, 450, 460)).flush(1_000)]);
        let mut totals = CollectorTotals::default().with_call(Call::Kernel, made(4));
        lost.iter().for_each(|(kind, n)| totals.lost[*kind as usize] = *n);
        pipeline.end_process(P, totals, &mut sink);
        assert_eq!(pipeline.account().launches(), Balance { made: 4, joined: 1, lost: 3, ..Balance::default() });
        pipeline.losses().iter().map(|(loss, _, n)| format!("{} {n}", loss.name())).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(name_losses(&[]), "lost_at_exit 3");
    assert_eq!(name_losses(&[(Lost::LibraryDropped, 2)]), "cupti_dropped 2, lost_at_exit 1");
    assert_eq!(name_losses(&[(Lost::LibraryDropped, 3)]), "cupti_dropped 3");
    assert_eq!(
        name_losses(&[(Lost::ActivityRingFull, 1), (Lost::Unread, 1), (Lost::LibraryDropped, u64::MAX)]),
        format!("activity_ring_full 1, activity_unread 1, cupti_dropped {}", u64::MAX)
    );
}

#[test]
fn a_dropped_record_of_an_evicted_launch_is_counted_once() {
    let limits = Limits { pending_launches: 16, ..Limits::default() };
    let (mut pipeline, mut sink) = (pipeline(kernel_plan()).with_limits(limits), Recorder::default());
    let launches = (1..=20).fold(Ring::default().names(), |ring, n| ring.launch(launch(n, u64::from(n) * 100)));
    feed(&mut pipeline, &mut sink, &[launches]);
    let evicted = pipeline.losses().of(Loss::LaunchEvicted);
    assert_eq!(evicted, 5, "4 too many, and a sixteenth more");
    let mut totals = CollectorTotals::default().with_call(Call::Kernel, made(20));
    totals.lost[Lost::LibraryDropped as usize] = evicted + 3;
    pipeline.end_process(P, totals, &mut sink);
    let (losses, lost) = (pipeline.losses(), pipeline.account().launches().lost);
    let of = |it| losses.of(it);
    assert_eq!((of(Loss::LaunchEvicted), of(Loss::LibraryDropped), of(Loss::LostAtExit), lost), (0, 8, 12, 20));
}

#[test]
fn a_long_kernel_withholds_what_ends_later_until_it_comes() {
    let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
    let launches = Ring::default().names().launch(launch(1, 1_000)).launch(launch(2, 1_010));
    feed(&mut pipeline, &mut sink, &[launches, Ring::default().clock(1).kernel(kernel(2, 1_050, 1_060)).flush(1_500)]);
    assert!(sink.events.is_empty());
    feed(&mut pipeline, &mut sink, &[Ring::default(), Ring::default().kernel(kernel(1, 1_020, 9_000)).flush(9_500)]);
    assert_eq!(sink.ends(), [1_060, 9_000]);
    assert_eq!(pipeline.losses().of(Loss::OutOfOrder), 0);
}

#[test]
fn a_launch_whose_kernel_was_lost_withholds_no_longer_than_two_flushes() {
    let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
    let launches = Ring::default().names().launch(launch(1, 1_000)).launch(launch(2, 1_010));
    feed(&mut pipeline, &mut sink, &[launches, Ring::default().clock(1).kernel(kernel(2, 1_050, 1_060)).flush(1_500)]);
    feed(&mut pipeline, &mut sink, &[Ring::default().flush(1_600)]);
    assert_eq!(sink.ends(), [1_060]);
    feed(&mut pipeline, &mut sink, &[Ring::default().kernel(kernel(1, 1_020, 1_040)).flush(1_700)]);
    assert_eq!(sink.ends(), [1_060, 1_040]);
    assert_eq!(pipeline.losses().of(Loss::OutOfOrder), 1);
}

#[test]
fn a_stepped_wall_clock_is_counted_and_followed() {
    let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
    let pair = |at: u64, offset: u64| Clock {
        monotonic_before: at - 1,
        realtime: Realtime(at + offset),
        monotonic_after: at + 1,
        ..Clock::default()
    };
    let raw = |id, start, end| Kernel { start: Realtime(start), end: Realtime(end), ..kernel(id, 0, 0) };
    let activity = Ring::default()
        .clock_pair(pair(1_000, 50_000))
        .kernel(raw(1, 50_900, 50_950))
        .clock_pair(pair(2_000, 90_000))
        .kernel(raw(2, 91_900, 91_980))
        .flush(3_000);
    feed(
        &mut pipeline,
        &mut sink,
        &[Ring::default().names().launch(launch(1, 800)).launch(launch(2, 1_800)), activity],
    );
    assert_eq!(sink.ends(), [950, 1_980]);
    assert_eq!(pipeline.losses().iter().collect::<Vec<_>>(), [(Loss::ClockStep, Cause::default(), 1)]);
}

#[test]
fn a_kernel_without_times_is_joined_and_not_handled() {
    let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
    let untimed = Kernel { start: Realtime(0), end: Realtime(0), ..kernel(1, 0, 0) };
    feed(
        &mut pipeline,
        &mut sink,
        &[Ring::default().names().launch(launch(1, 100)), Ring::default().clock(1).kernel(untimed)],
    );
    let mut totals = CollectorTotals::default().with_call(Call::Kernel, made(1)).with_activity(Activity::Kernel, 1, 0);
    totals.lost[Lost::NoTimestamps as usize] = 1;
    pipeline.end_process(P, totals, &mut sink);
    assert!(sink.events.is_empty());
    assert_eq!((pipeline.account().launches().joined, pipeline.losses().of(Loss::NoTimestamps)), (1, 1));
}

#[test]
fn an_event_waits_for_a_name_from_another_ring() {
    let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
    feed(
        &mut pipeline,
        &mut sink,
        &[Ring::default().launch(launch(1, 100)), Ring::default().clock(1).kernel(kernel(1, 150, 160)).flush(500)],
    );
    assert!(sink.events.is_empty());
    feed(&mut pipeline, &mut sink, &[Ring::default().names()]);
    assert_eq!(rows(&mut pipeline, 0, true), [row("a<int>", 7, 1, 10)]);
}

#[test]
fn memory_is_bounded_and_what_falls_out_is_counted() {
    let limits = Limits { pending_launches: 64, buffered_events: 64, graph_launches: 4, orphans: 16 };
    let mut pipeline = pipeline(kernel_plan()).with_limits(limits);
    let mut sink = Recorder::default();
    let many = (0..1_000u32).fold(Ring::default().names(), |ring, n| ring.launch(launch(n, u64::from(n))));
    feed(&mut pipeline, &mut sink, &[many]);
    assert!(pipeline.in_flight() <= 64);
    let orphans =
        (2_000..3_000u32).fold(Ring::default().clock(1), |ring, n| ring.kernel(kernel(n, n.into(), u64::from(n) + 1)));
    feed(&mut pipeline, &mut sink, &[orphans]);
    assert!(sink.events.len() > 900, "{}", sink.events.len());
    end(&mut pipeline, &mut sink);
    let losses = pipeline.losses();
    assert_eq!(
        (losses.of(Loss::LaunchEvicted) + losses.of(Loss::LostAtExit), losses.of(Loss::Unjoined)),
        (1_000, 1_000)
    );
    assert_eq!((pipeline.account().launches().lost, sink.events.len()), (1_000, 1_000));
}

#[test]
fn launch_handlers_run_on_completed_records_even_without_kernels() {
    let mut plan = kernel_plan();
    plan.demand = Demand { calls: Calls::LAUNCHES, ..Default::default() };
    plan.image.programs[0] = add_to_map("n", BpfMapId(0), &[word::LAUNCH_NAME, word::TID, word::JOINED], None);
    plan.probes =
        vec![probe(Event::Launch, Place::Tracer, Some(ProgramId(0))), probe(Event::Launch, Place::Interpreter, None)];
    let (mut pipeline, mut sink) = (pipeline(plan), Recorder::default());
    let failed = Launch { result: 1, ..launch(2, 200) };
    let captured = Launch { flags: Launch::CAPTURED, ..launch(3, 300) };
    feed(&mut pipeline, &mut sink, &[Ring::default().names().launch(failed).launch(launch(1, 100)).launch(captured)]);
    assert!(sink.events.is_empty(), "a call that ended before may arrive later");
    feed(&mut pipeline, &mut sink, &[Ring::default().flush(400)]);
    assert_eq!(rows(&mut pipeline, 0, true), [row("a<int>", 7, 1, 2)]);
    let starts: Vec<u64> = sink.events.iter().map(|it| it[word::TIME]).collect();
    assert_eq!(starts, [100, 200]);
    end(&mut pipeline, &mut sink);
    let it = pipeline.account().launches();
    assert_eq!((it.made, it.failed, it.lost), (2, 1, 0));
}

#[test]
fn what_the_script_did_not_ask_for_is_left_out() {
    let rings = || {
        let launches = Ring::default().names().launch(launch(1, 100)).launch(launch(2, 200));
        [launches, Ring::default().clock(1).kernel(kernel(1, 150, 160)).flush(500)]
    };
    let totals = CollectorTotals::default().with_call(Call::Kernel, made(2)).with_activity(Activity::Kernel, 1, 10);
    let kernel = Activities::of(&[Activity::Kernel]);
    for (calls, activities, expected) in
        [(Calls::LAUNCHES, Activities::NONE, (2, 0, 0)), (Calls::NONE, kernel, (0, 0, 1))]
    {
        let mut plan = kernel_plan();
        plan.demand = Demand { calls, activities, ..Default::default() };
        let (mut pipeline, mut sink) = (pipeline(plan), Recorder::default());
        feed(&mut pipeline, &mut sink, &rings());
        pipeline.end_process(P, totals, &mut sink);
        let it = pipeline.account().launches();
        assert_eq!((it.made, it.joined, kernels(&pipeline).0), expected);
        assert_eq!(sink.events.len(), usize::from(activities == kernel));
        assert!(pipeline.losses().is_empty());
    }
}

#[test]
fn damaged_bytes_are_counted_once_and_the_rest_is_handled() {
    let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
    let mut broken = Ring::default().names().launch(launch(1, 100));
    broken.0.extend([1, 0, 0, 0, 3, 0, 0, 0]);
    feed(&mut pipeline, &mut sink, &[broken, Ring::default().clock(1).kernel(kernel(1, 150, 160)).flush(500)]);
    assert_eq!(rows(&mut pipeline, 0, true), [row("a<int>", 7, 1, 10)]);
    assert_eq!(pipeline.losses().iter().collect::<Vec<_>>(), [(Loss::Malformed, Cause::default(), 1)]);
}

/// One call of a random program: a launch on one of a few threads, and its kernel.
#[derive(Clone, Debug)]
struct Step {
    thread: usize,
    kind: u8,
    nanos: u64,
    shuffle: u64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0usize..3, 0u8..12, 1u64..500, any::<u64>());
    proptest::collection::vec(
        step.prop_map(|(thread, kind, nanos, shuffle)| Step { thread, kind, nanos, shuffle }),
        0..60,
    )
}

/// Returns the rings of three threads, and the ring with the kernels.
fn play(steps: &[Step]) -> Vec<Vec<Vec<u8>>> {
    let mut rings: Vec<Vec<Vec<u8>>> = vec![Vec::new(); 3];
    let mut kernels: Vec<(u64, Vec<u8>)> = Vec::new();
    for (n, step) in steps.iter().enumerate() {
        let (id, start) = (10 + 3 * n as u32, 1_000 * n as u64 + 1_000);
        let mut it = Launch { tid: 70 + step.thread as u32, symbol: 1 + (n as u32 & 1), ..launch(id, start) };
        let mut n_kernels = 1;
        match step.kind {
            0 => (it.result, n_kernels) = (1, 0),
            1 => (it.flags, n_kernels) = (Launch::CAPTURED, 0),
            2 | 3 => (it.launch_kind, it.symbol, n_kernels) = (Launch::GRAPH, 0, 3),
            4 => n_kernels = 0,
            _ => {}
        }
        if step.kind != 5 {
            rings[step.thread].push(Ring::default().launch(it).0);
        }
        for k in 0..n_kernels {
            let end = start + step.nanos * (k + 1);
            let kernel = Kernel { graph_node: k, symbol: 1 + (n as u32 & 1), ..kernel(id, end - step.nanos, end) };
            kernels.push((step.shuffle.rotate_left(k as u32 * 7), Ring::default().kernel(kernel).0));
        }
    }
    kernels.sort();
    let mut activity: Vec<Vec<u8>> = kernels.into_iter().map(|it| it.1).collect();
    activity.push(Ring::default().flush(1 << 40).0);
    rings.push(activity);
    rings
}

/// Feeds the rings in drains, in the given order of rings.
fn run(
    rings: &[Vec<Vec<u8>>],
    cuts: &[usize],
    order: &[usize],
) -> (Vec<(Key, Cell)>, Vec<u64>, xputrace_model::loss::Account) {
    let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
    feed(&mut pipeline, &mut sink, &[Ring::default().names().clock(1)]);
    let n_drains = cuts.len() / rings.len() + 1;
    for drain in 0..n_drains {
        let piece = |ring: usize| {
            let bound = |d: usize| match d {
                0 => 0,
                d if d >= n_drains => rings[ring].len(),
                d => {
                    let mut at: Vec<usize> =
                        (0..n_drains - 1).map(|i| cuts[i * rings.len() + ring] % (rings[ring].len() + 1)).collect();
                    at.sort_unstable();
                    at[d - 1]
                }
            };
            Ring(rings[ring][bound(drain)..bound(drain + 1)].concat())
        };
        let pieces: Vec<Ring> = order.iter().map(|ring| piece(*ring)).collect();
        feed(&mut pipeline, &mut sink, &pieces);
    }
    end(&mut pipeline, &mut sink);
    let mut ends = sink.ends();
    ends.sort_unstable();
    (rows(&mut pipeline, 0, true), ends, pipeline.account())
}

/// Returns names, stacks, threads, mappings and clocks.
fn descriptions() -> Ring {
    let mut ring = Ring::default().names().clock(1);
    let mapping = record::Mapping { start: 1, end: 2, file_offset: 0, inode: 3, device: 4, path_len: 4 };
    record::push(&mut ring.0, kind::MAPPING, &mapping, b"/app");
    let object = record::MappedObject { id: 5, build_id_len: 2, path_len: 4, ..Default::default() };
    record::push(&mut ring.0, kind::OBJECT, &object, b"id/app");
    let frames_and_objects = [[9; 16].as_slice(), &[1, 0, 0, 0, 5, 0, 0, 0]].concat();
    record::push(&mut ring.0, kind::STACK, &record::Stack { id: 1, len: 2, end: 0 }, &frames_and_objects);
    record::push(
        &mut ring.0,
        kind::THREAD,
        &record::Thread { tid: 7, reserved: 0, comm: *b"worker\0\0\0\0\0\0\0\0\0\0" },
        &[],
    );
    ring.clock(2)
}

#[test]
fn counts_that_a_target_made_up_stay_at_their_greatest() {
    let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
    pipeline.add_process(ProcessInfo::default());
    let most = u64::MAX;
    let totals = CollectorTotals { lost: [most; Lost::COUNT], broken_rings: most, ..Default::default() };
    let totals = totals.with_call(Call::Kernel, made(most)).with_activity(Activity::Kernel, most, most);
    let long = |id| Kernel { start: Realtime(1), end: Realtime(most), ..kernel(id, 0, 0) };
    feed(
        &mut pipeline,
        &mut sink,
        &[Ring::default().names().launch(launch(1, 1)).clock(1).kernel(long(1)).kernel(long(2))],
    );
    for process in 0..2 {
        pipeline.end_process(ProcessIndex(process), totals, &mut sink);
    }
    let (it, kernels) = (pipeline.account().launches(), *pipeline.account().activity(Activity::Kernel));
    assert_eq!((it.made, it.lost, kernels.nanos, kernels.told_records), (most, most, most, most));
    assert_eq!(pipeline.losses().of(Loss::Malformed), most);
}

/// One stack repeatedly, and thousands of names: what is kept per target is bounded.
#[test]
fn names_and_stacks_of_one_target_are_bounded() {
    let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
    let text = "n".repeat(4000);
    for drain in 0..20u32 {
        let mut ring = Ring::default();
        for n in 0..1000 {
            ring = ring.name(10 + drain * 1000 + n, &format!("{text}{drain}.{n}"));
            record::push(&mut ring.0, kind::STACK, &record::Stack { id: 1 << 30, len: 0, end: 0 }, &[]);
        }
        feed(&mut pipeline, &mut sink, &[ring]);
    }
    assert!(pipeline.losses().of(Loss::NameTableFull) > 2_000);
    assert_eq!(pipeline.losses().of(Loss::StackTableFull), 20_000);
}

#[test]
fn stacks_of_an_ended_process_are_kept_until_they_are_forgotten() {
    let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
    feed(&mut pipeline, &mut sink, &[descriptions()]);
    end(&mut pipeline, &mut sink);
    let process = ProcessIndex(0);
    let kept = |it: &Pipeline| {
        let stack = it.state().stack(StackKey::Collector { process: 0, id: 1 });
        let stack = stack.map(|(_, stack)| (stack.words.len(), stack.objects.to_vec()));
        let objects: Vec<_> = it.state().objects(process).iter().map(|it| (it.object.id, it.path.clone())).collect();
        (stack, objects, it.state().mappings(process).len(), it.state().has_stacks(process))
    };
    assert_eq!(kept(&pipeline), (Some((2, vec![5])), vec![(5, b"/app".to_vec())], 1, true));
    pipeline.state_mut().forget_stacks(process);
    assert_eq!(kept(&pipeline), (None, vec![], 0, false));
}

/// Two streams' kernels in CUPTI's buffers; the second stream's come one buffer later.
#[test]
fn kernels_alone_are_handled_in_order_whatever_the_flushes_say() {
    const N_FULL: u32 = 4096;
    let mut plan = kernel_plan();
    plan.demand = Demand { activities: Activities::of(&[Activity::Kernel]), ..Default::default() };
    let (mut pipeline, mut sink) = (pipeline(plan), Recorder::default());
    let on = |stream, id, end| Kernel { stream, ..kernel(id, end - 5, end) };
    let full = (0..N_FULL).fold(Ring::default().names().clock_of_buffer(10, 1 << 20), |ring, n| {
        let (stream, end) = if n % 2 == 0 { (1, 20_000 + u64::from(n)) } else { (2, 10_000 + u64::from(n)) };
        ring.kernel(on(stream, n, end))
    });
    feed(&mut pipeline, &mut sink, &[full.flush(1 << 40)]);
    let n_first = sink.events.len();
    assert_eq!(sink.ends().last(), Some(&(10_000 + u64::from(N_FULL) - 1)), "stream 2 goes on");
    let rest = (0..10)
        .fold(Ring::default().clock_of_buffer(20, 2_000), |ring, n| ring.kernel(on(2, n, 15_000 + u64::from(n))));
    feed(&mut pipeline, &mut sink, &[rest.flush((1 << 40) + 1)]);
    assert_eq!((n_first, sink.events.len()), (2048, 4106));
    assert!(sink.ends().is_sorted());
    assert_eq!(pipeline.losses().of(Loss::OutOfOrder), 0);
}

/// Interpreted handlers of kernels, memsets, and memset calls; all with their launches.
fn memset_plan(demand: Demand) -> Plan {
    let mut plan = kernel_plan();
    let mut calls = probe(Event::Launch, Place::Interpreter, None);
    calls.target = ProbePlace::Calls(Calls::of(&[Call::Memset]));
    let interpreted = |it| probe(Event::Activity(it), Place::Interpreter, None);
    plan.probes = vec![interpreted(Activity::Kernel), interpreted(Activity::Memset), calls];
    plan.demand = demand;
    plan
}

fn everything() -> Demand {
    Demand { calls: Calls::ALL, activities: Activities::ALL, ..Demand::default() }
}

#[test]
fn memsets_are_joined_with_their_call_and_with_their_graph() {
    let (mut pipeline, mut sink) = (pipeline(memset_plan(everything())), Recorder::default());
    let graph = Launch { symbol: 0, launch_kind: Launch::GRAPH, ..launch(2, 200) };
    let calls = Ring::default().names().launch(memset_call(1, 100)).launch(graph).launch(launch(3, 300));
    let in_graph = Memset { graph: 5, graph_node: 9, known: 0, ..memset(2, 220, 230) };
    let activities = Ring::default()
        .clock(1)
        .memset(memset(1, 150, 160))
        .kernel(Kernel { graph: 5, ..kernel(2, 205, 215) })
        .memset(in_graph)
        .kernel(kernel(3, 310, 320))
        .flush(1_000);
    feed(&mut pipeline, &mut sink, &[calls, activities]);
    end(&mut pipeline, &mut sink);

    let account = pipeline.account();
    let joined = Balance { made: 1, joined: 1, ..Balance::default() };
    assert!([Call::Memset, Call::Graph, Call::Kernel].iter().all(|it| *account.call(*it) == joined), "{account:?}");
    assert_eq!((account.activity(Activity::Memset).records, account.activity(Activity::Memset).nanos), (2, 20));
    // The call, then the GPU's activities in order of their end.
    assert_eq!(sink.ends(), [0, 160, 215, 230, 320]);
    let text = |it: &GpuContext, at: usize| pipeline.state().names().get(it[at]).map(|it| it.to_string());
    let [call, alone, _, in_graph, _] = &sink.events[..] else { panic!("{}", sink.events.len()) };
    assert_eq!(text(call, word::LAUNCH_KIND).as_deref(), Some("memset"));
    assert_eq!(text(alone, word::LAUNCH_KIND).as_deref(), Some("memset"));
    assert_eq!(text(alone, word::memset::MEMORY_KIND).as_deref(), Some("device"));
    assert_eq!((alone[word::memset::BYTES], alone[word::memset::VALUE], alone[word::memset::KNOWN]), (64, 7, 1));
    assert_eq!((alone[word::TID], alone[word::LAUNCH_START]), (7, 100));
    assert_eq!(text(in_graph, word::LAUNCH_KIND).as_deref(), Some("graph"));
    assert_eq!((in_graph[word::GRAPH], in_graph[word::GRAPH_NODE], in_graph[word::memset::KNOWN]), (5, 9, 0));
    assert!(pipeline.losses().is_empty());
}

/// Failed, captured and lost calls, and those without a record: each kind of call has its own
/// account.
#[test]
fn memset_calls_have_an_account_of_their_own() {
    let (mut pipeline, mut sink) = (pipeline(memset_plan(everything())), Recorder::default());
    let calls = Ring::default()
        .names()
        .launch(memset_call(1, 100))
        .launch(Launch { result: 1, ..memset_call(2, 200) })
        .launch(Launch { flags: Launch::CAPTURED, ..memset_call(3, 300) })
        .launch(memset_call(4, 400))
        .launch(launch(5, 500));
    let activities = Ring::default().clock(1).memset(memset(1, 150, 160)).kernel(kernel(5, 510, 520)).flush(1_000);
    feed(&mut pipeline, &mut sink, &[calls, activities]);
    let totals = CollectorTotals::default()
        .with_call(Call::Memset, CallTotals { made: 5, failed: 1, captured: 1 })
        .with_call(Call::Kernel, made(1))
        .with_activity(Activity::Memset, 2, 30)
        .with_activity(Activity::Kernel, 1, 10);
    pipeline.end_process(P, totals, &mut sink);
    let memsets = *pipeline.account().call(Call::Memset);
    assert_eq!(memsets, Balance { made: 4, joined: 1, failed: 1, lost: 2, captured: 1, ..Balance::default() });
    assert_eq!(memsets.made, memsets.sum());
    assert_eq!(*pipeline.account().call(Call::Kernel), Balance { made: 1, joined: 1, ..Balance::default() });
    assert_eq!((pipeline.losses().of(Loss::LostAtExit), pipeline.losses().of(Loss::Unreconciled)), (1, 1));
}

/// Without kernel records, it is unknown whether a graph ran, or had a memset. So it is neither
/// waited for nor counted as lost.
#[test]
fn a_graph_without_memsets_does_not_withhold_those_outside() {
    let demand = Demand {
        calls: Activity::Memset.causes(),
        activities: Activities::of(&[Activity::Memset]),
        ..Demand::default()
    };
    let (mut pipeline, mut sink) = (pipeline(memset_plan(demand)), Recorder::default());
    let graph = |id, start| Launch { symbol: 0, launch_kind: Launch::GRAPH, ..launch(id, start) };
    let calls = Ring::default().names().launch(graph(1, 100)).launch(graph(2, 200)).launch(memset_call(3, 300));
    let activities =
        Ring::default().clock_of_buffer(1, 500).memset(memset(2, 220, 230)).memset(memset(3, 310, 320)).flush(1_000);
    feed(&mut pipeline, &mut sink, &[calls, activities]);
    feed(&mut pipeline, &mut sink, &[Ring::default().flush(2_000)]);
    let memsets: Vec<u64> = sink.ends().into_iter().filter(|it| *it != 0).collect();
    assert_eq!(memsets, [230, 320], "handled while the process runs");
    assert!(sink.events.iter().all(|it| it[word::JOINED] == 1));
    end(&mut pipeline, &mut sink);
    assert_eq!(*pipeline.account().call(Call::Memset), Balance { made: 1, joined: 1, ..Balance::default() });
    assert!(pipeline.losses().is_empty() && pipeline.account().call(Call::Graph).lost == 0);
}

/// Without calls, memsets are not orphans, and unrequested calls are left out.
#[test]
fn memsets_alone_need_no_calls() {
    let demand = Demand { activities: Activities::of(&[Activity::Memset]), ..Demand::default() };
    let (mut pipeline, mut sink) = (pipeline(memset_plan(demand)), Recorder::default());
    let calls = Ring::default().names().launch(memset_call(1, 100)).launch(launch(2, 200));
    let activities =
        Ring::default().clock_of_buffer(1, 500).memset(memset(1, 110, 120)).kernel(kernel(2, 210, 220)).flush(1_000);
    feed(&mut pipeline, &mut sink, &[calls, activities]);
    assert_eq!(sink.ends(), [120]);
    assert_eq!(sink.events[0][word::TID], 100, "the process, where the thread is not known");
    end(&mut pipeline, &mut sink);
    assert!(pipeline.losses().is_empty());
    assert_eq!(pipeline.account().balance(Calls::ALL), Balance::default());
}

/// Interpreted handlers of kernels and copies with their launches.
fn copy_plan() -> Plan {
    let interpreted = |it| probe(Event::Activity(it), Place::Interpreter, None);
    let probes = vec![interpreted(Activity::Kernel), interpreted(Activity::Memcpy)];
    Plan { probes, demand: everything(), ..kernel_plan() }
}

/// A copy may be made in parts: each has its call, which is joined once.
#[test]
fn all_parts_of_a_copy_have_its_call() {
    let (mut pipeline, mut sink) = (pipeline(copy_plan()), Recorder::default());
    let calls = Ring::default().names().launch(copy_call(1, 100)).launch(copy_call(2, 200));
    let activities = Ring::default()
        .clock(1)
        .memcpy(copy(1, 150, 160))
        .memcpy(copy(1, 160, 175))
        .memcpy(copy(2, 210, 220))
        .flush(500);
    feed(&mut pipeline, &mut sink, &[calls, activities]);
    let late = Ring::default().clock(2).memcpy(copy(1, 600, 610)).flush(1_000);
    feed(&mut pipeline, &mut sink, &[late]);
    end(&mut pipeline, &mut sink);
    assert_eq!(sink.ends(), [160, 175, 220, 610]);
    let of_first = sink.events.iter().filter(|it| it[word::LAUNCH_START] == 100 && it[word::JOINED] == 1);
    assert_eq!(of_first.count(), 3);
    let text = |at: usize| pipeline.state().names().get(sink.events[0][at]).map(|it| it.to_string());
    let words = [word::memcpy::DIRECTION, word::memcpy::SRC, word::memcpy::DST, word::LAUNCH_KIND].map(text);
    assert_eq!(words.each_ref().map(Option::as_deref), [Some("HtoD"), Some("pinned"), Some("device"), Some("memcpy")]);
    assert_eq!(*pipeline.account().call(Call::Memcpy), Balance { made: 2, joined: 2, ..Balance::default() });
    assert!(pipeline.losses().is_empty());
}

/// Nothing waits for a copy of 0 bytes; one that may be the host's own is waited for, and no lost call.
#[test]
fn copies_without_a_record_are_told_from_lost_ones() {
    let (mut pipeline, mut sink) = (pipeline(copy_plan()), Recorder::default());
    let copy_with = |id, start, flags| Launch { flags, ..copy_call(id, start) };
    let calls = Ring::default()
        .names()
        .launch(copy_with(1, 100, Launch::NO_RECORD))
        .launch(copy_with(2, 200, Launch::MAYBE_NO_RECORD))
        .launch(copy_with(3, 300, Launch::MAYBE_NO_RECORD))
        .launch(copy_call(4, 400))
        .launch(launch(5, 500));
    let activities = Ring::default().clock(1).memcpy(copy(2, 210, 220)).kernel(kernel(5, 510, 520)).flush(1_000);
    feed(&mut pipeline, &mut sink, &[calls, activities]);
    let withheld = sink.ends();
    (2..=4).for_each(|n| feed(&mut pipeline, &mut sink, &[Ring::default().flush(n * 1_000)]));
    assert_eq!((&withheld[..], &sink.ends()[..]), (&[220][..], &[220, 520][..]), "not for ever");
    end(&mut pipeline, &mut sink);
    let copies = *pipeline.account().call(Call::Memcpy);
    assert_eq!(
        copies,
        Balance { made: 4, joined: 1, lost: 1, without_work: 1, without_record: 1, ..Balance::default() }
    );
    assert_eq!(copies.made, copies.sum());
    let losses = pipeline.losses();
    assert_eq!((losses.of(Loss::LostAtExit), losses.of(Loss::CopyWithoutRecord)), (1, 1));
}

/// Parts of one copy bring it back once from those that another tool seemed to have.
#[test]
fn a_copy_in_parts_is_regained_once() {
    let (mut pipeline, mut sink) = (pipeline(copy_plan()), Recorder::default());
    let calls = Ring::default().names().launch(Launch { flags: Launch::YIELDED, ..copy_call(1, 100) });
    let activities = Ring::default().clock(1).memcpy(copy(1, 150, 160)).memcpy(copy(1, 160, 175)).flush(500);
    feed(&mut pipeline, &mut sink, &[calls, activities]);
    end(&mut pipeline, &mut sink);
    assert_eq!(*pipeline.account().call(Call::Memcpy), Balance { made: 1, joined: 1, ..Balance::default() });
    assert!(pipeline.losses().is_empty(), "{:?}", pipeline.losses());
}

#[test]
fn a_launch_of_an_unknown_kind_is_no_launch() {
    let (mut pipeline, mut sink) = (pipeline(memset_plan(everything())), Recorder::default());
    feed(&mut pipeline, &mut sink, &[Ring::default().names().launch(Launch { launch_kind: 99, ..launch(1, 1) })]);
    end(&mut pipeline, &mut sink);
    assert_eq!(pipeline.account().balance(Calls::ALL), Balance::default());
    assert_eq!(pipeline.losses().of(Loss::Malformed), 1);
}

proptest! {
    #[test]
    fn neither_the_order_of_rings_nor_the_cuts_between_drains_change_the_tables(
        steps in steps(),
        cuts in proptest::collection::vec(any::<usize>(), 0..12),
        order in Just(vec![0usize, 1, 2, 3]).prop_shuffle(),
    ) {
        let rings = play(&steps);
        let whole = run(&rings, &[], &[0, 1, 2, 3]);
        prop_assert_eq!(whole.2.launches().made, whole.2.launches().sum());
        prop_assert_eq!(&run(&rings, &cuts, &order), &whole);
    }

    #[test]
    fn any_bytes_are_survived(rings in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..4)) {
        let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
        pipeline.feed(P, &rings, &mut sink);
        end(&mut pipeline, &mut sink);
    }

    #[test]
    fn damaged_records_are_survived(steps in steps(), damage in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..20)) {
        let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
        let mut rings: Vec<Vec<u8>> = play(&steps).into_iter().map(|it| it.concat()).collect();
        rings.push(descriptions().0);
        for (at, value) in damage {
            let ring = &mut rings[at % 5];
            if !ring.is_empty() {
                let at = at / 5 % ring.len();
                ring[at] = value;
            }
        }
        pipeline.feed(P, &rings, &mut sink);
        pipeline.feed(P, &rings, &mut sink);
        end(&mut pipeline, &mut sink);
        let it = pipeline.account().launches();
        prop_assert_eq!(it.made, it.sum());
    }
}

/// Feeds two processes a kernel each, on the GPU that they call 0: 100 ns from the same time on.
fn busy_of_two_gpus(uuids: [u8; 2]) -> u64 {
    let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
    pipeline.add_process(ProcessInfo { pid: 8, ..ProcessInfo::default() });
    for (process, uuid) in uuids.into_iter().enumerate() {
        let ring = Ring::default().names().gpu(record::UNKNOWN, 0).gpu(0, uuid).launch(launch(1, 100));
        let shift = 50 * process as u64;
        let ring = ring.clock(50).kernel(kernel(1, 200 + shift, 300 + shift)).flush(1_000);
        pipeline.feed(ProcessIndex(process as u32), &[ring.0], &mut sink);
    }
    pipeline.finish(&mut sink);
    pipeline.busy_nanos()
}

#[test]
fn gpus_of_one_number_are_told_apart_by_their_uuids() {
    assert_eq!(busy_of_two_gpus([1, 2]), 100, "two GPUs");
    assert_eq!(busy_of_two_gpus([1, 1]), 150, "one GPU, busy from 200 to 350");
}

/// A collector tells a GPU at the latest before the flush that delivers what ran there; a full buffer may come first.
#[test]
fn events_wait_for_their_gpu_until_the_flush_that_tells_it() {
    let mut plan = kernel_plan();
    plan.demand = Demand {
        activities: Activities::of(&[Activity::Kernel]),
        details: Details::of(&[Detail::Gpus]),
        ..Demand::default()
    };
    let (mut pipeline, mut sink) = (pipeline(plan), Recorder::default());
    let first = Ring::default().names().gpu(record::UNKNOWN, 0).clock_of_buffer(1, 500).kernel(kernel(1, 100, 200));
    feed(&mut pipeline, &mut sink, &[first.flush(150)]);
    assert_eq!(sink.ends(), [] as [u64; 0], "it ended after that flush began");
    feed(&mut pipeline, &mut sink, &[Ring::default().gpu(0, 7).flush(1_000)]);
    assert_eq!(sink.ends(), [200]);
    let words = sink.events.last().unwrap();
    let uuid = pipeline.state().names().get(words[word::GPU_UUID]).map(|it| it.to_string());
    assert_eq!(uuid.as_deref(), Some("GPU-07070707-0707-0707-0707-070707070707"));
    assert_eq!((words[word::GPU_SMS], words[word::GPU_MEMORY]), (4, 1 << 30));
    assert_eq!(words[word::GPU_LIMITS..][..6], [90, 0, 0, 0, 0, 1024]);
    // One that the collector never told of is not waited for any longer.
    let unknown = Kernel { device: 3, ..kernel(2, 1_100, 1_200) };
    feed(&mut pipeline, &mut sink, &[Ring::default().clock_of_buffer(1_000, 500).kernel(unknown).flush(2_000)]);
    assert_eq!(sink.ends(), [200, 1_200]);
    assert_eq!(sink.events.last().unwrap()[word::GPU_UUID], 0);
}

/// Handlers see the kernel before on the stream only where none can be missing in between.
#[test]
fn the_previous_kernel_is_told_or_missing_but_never_wrong() {
    let mut plan = kernel_plan();
    plan.demand.details.add_if(true, Detail::Previous);
    let (mut pipeline, mut sink) = (pipeline(plan), Recorder::default());
    let mut opened = Ring::default();
    record::push(&mut opened.0, kind::OPENED, &record::Opened { first: 500, last: 500 }, &[]);
    let launches = [(1, 100), (2, 110), (3, 120), (4, 600)];
    let rings = launches.iter().fold(Ring::default().names(), |ring, it| ring.launch(launch(it.0, it.1)));
    // The second kernel arrives last; the fourth was launched after the gate had been closed.
    let ran = [kernel(1, 130, 140), kernel(3, 160, 170), kernel(2, 145, 150), kernel(4, 610, 620)];
    let activities = ran.into_iter().fold(opened.clock(50), Ring::kernel).flush(1_000);
    feed(&mut pipeline, &mut sink, &[rings, activities]);
    end(&mut pipeline, &mut sink);
    let previous: Vec<_> = sink.events.iter().map(|it| (it[word::END], it[word::PREVIOUS_END])).collect();
    assert_eq!(previous, [(140, 0), (150, 140), (170, 150), (620, 0)]);
}

/// The plan with launch stacks, of which the compiled handler needs them and begins off.
fn switched_plan() -> Plan {
    let mut plan = kernel_plan();
    let demand = Demand { details: plan.demand.details.with(Details::of(&[Detail::Stacks])), ..plan.demand };
    let switch = Switch {
        declared: 0,
        name: "kernel".into(),
        begins_on: false,
        is_turned_elsewhere: false,
        demand,
        site: Site::default(),
    };
    plan.always = plan.demand;
    plan.demand = demand;
    plan.switches = vec![switch];
    plan.probes[0].switch = Some(IT);
    plan
}

const IT: SwitchId = SwitchId(0);
const KERNELS: u64 = demand::LAUNCHES | demand::KERNELS;
const WITH_STACKS: u64 = KERNELS | demand::STACKS;

fn launch_under(asked: u64, correlation: u32, start: u64) -> Launch {
    Launch { demanded: demand::recorded_under(asked), ..launch(correlation, start) }
}

fn of_kernel(correlation: u32) -> Kernel {
    let start = 1_000 + 100 * u64::from(correlation);
    kernel(correlation, start + 50, start + 60)
}

#[test]
fn a_handler_runs_over_what_began_while_it_was_on_and_has_what_it_reads() {
    let (mut pipeline, mut sink) = (pipeline(switched_plan()), Recorder::default());
    // Turned on at 1200 and off at 1500; the collector followed at 1350 and 1650.
    pipeline.state_mut().switches_mut().turn(IT, true, 1_200);
    pipeline.state_mut().switches_mut().turn(IT, false, 1_500);
    let asked = |start| if (1_350..1_650).contains(&start) { WITH_STACKS } else { KERNELS };
    let launches = (1..=7).fold(Ring::default().names(), |ring, n: u32| {
        let start = 1_000 + 100 * u64::from(n);
        ring.launch(launch_under(asked(start), n, start))
    });
    let kernels = (1..=7).fold(Ring::default().clock(3_000), |ring, n| ring.kernel(of_kernel(n))).flush(3_000);
    feed(&mut pipeline, &mut sink, &[launches, kernels]);
    end(&mut pipeline, &mut sink);
    assert_eq!(sink.events.len(), 7, "the other handler sees all");
    assert_eq!(rows(&mut pipeline, 0, true), [row("a<int>", 7, 1, 10)], "that of 1400");
    assert_eq!(pipeline.losses().of(Loss::EnabledLate), 2, "those of 1200 and 1300");
    assert_eq!(pipeline.account().launches(), Balance { made: 7, joined: 7, ..Balance::default() });
}

#[test]
fn a_recording_that_does_not_say_what_was_asked_for_has_everything() {
    let (mut pipeline, mut sink) = (pipeline(switched_plan()), Recorder::default());
    pipeline.state_mut().switches_mut().turn(IT, true, 0);
    let rings = [Ring::default().names().launch(launch(1, 1_100)), Ring::default().clock(3_000).kernel(of_kernel(1))];
    feed(&mut pipeline, &mut sink, &rings);
    end(&mut pipeline, &mut sink);
    assert_eq!(rows(&mut pipeline, 0, true), [row("a<int>", 7, 1, 10)]);
    assert_eq!(pipeline.losses().of(Loss::EnabledLate), 0);
}

#[test]
fn a_launch_whose_kernels_are_not_recorded_is_outside_and_withholds_nothing() {
    let (mut pipeline, mut sink) = (pipeline(switched_plan()), Recorder::default());
    let launches = Ring::default()
        .names()
        .launch(launch_under(demand::LAUNCHES, 1, 1_100))
        .launch(launch_under(KERNELS, 2, 1_200))
        .launch(launch_under(demand::LAUNCHES, 3, 1_300));
    // CUPTI's kind was still on.
    let kernels = Ring::default().clock(3_000).kernel(of_kernel(2)).kernel(of_kernel(3)).flush(3_000);
    feed(&mut pipeline, &mut sink, &[launches, kernels]);
    assert_eq!(sink.ends(), [1_260, 1_360], "the first launch is not waited for");
    pipeline.end_process(P, CollectorTotals::default().with_call(Call::Kernel, made(3)), &mut sink);
    let balance = Balance { made: 1, joined: 1, outside: 2, ..Balance::default() };
    assert_eq!(pipeline.account().launches(), balance);
    assert!(pipeline.losses().is_empty(), "{:?}", pipeline.losses());
}

#[test]
fn activities_wait_until_everything_that_may_switch_was_heard_of() {
    let (mut pipeline, mut sink) = (pipeline(switched_plan()), Recorder::default());
    pipeline.state_mut().set_time(3_000, 1_200);
    let launches =
        Ring::default().names().launch(launch_under(WITH_STACKS, 1, 1_100)).launch(launch_under(WITH_STACKS, 2, 1_200));
    let kernels = Ring::default().clock(3_000).kernel(of_kernel(1)).kernel(of_kernel(2)).flush(3_000);
    feed(&mut pipeline, &mut sink, &[launches, kernels]);
    assert_eq!(sink.ends(), [1_160]);
    pipeline.state_mut().switches_mut().turn(IT, true, 1_200);
    pipeline.state_mut().set_time(3_100, 3_000);
    feed(&mut pipeline, &mut sink, &[Ring::default(), Ring::default().flush(3_100)]);
    assert_eq!(sink.ends(), [1_160, 1_260]);
    assert_eq!(rows(&mut pipeline, 0, true), [row("a<int>", 7, 1, 10)]);
}

/// A handler of launches alone, which begins off.
fn switched_launch_plan() -> Plan {
    let mut plan = switched_plan();
    plan.probes = vec![probe(Event::Launch, Place::Interpreter, None)];
    plan.probes[0].switch = Some(IT);
    plan.demand = Demand { calls: Calls::LAUNCHES, ..Demand::default() };
    (plan.always, plan.switches[0].demand) = (Demand::default(), plan.demand);
    plan
}

#[test]
fn launches_wait_until_everything_that_linux_switched_was_heard_of_even_if_too_many_do() {
    let limits = Limits { buffered_events: 4, ..Limits::default() };
    let (mut pipeline, mut sink) = (pipeline(switched_launch_plan()).with_limits(limits), Recorder::default());
    pipeline.state_mut().heard_linux(1_140);
    let launches = |numbers: std::ops::Range<u32>| {
        numbers.fold(Ring::default().names(), |it, n| it.launch(launch(n, 1_000 + 20 * u64::from(n))))
    };
    feed(&mut pipeline, &mut sink, &[launches(0..8)]);
    feed(&mut pipeline, &mut sink, &[launches(8..20)]);
    pipeline.state_mut().switches_mut().turn(IT, true, 1_200);
    pipeline.state_mut().heard_linux(1_300);
    feed(&mut pipeline, &mut sink, &[Ring::default()]);
    pipeline.state_mut().switches_mut().turn(IT, false, 1_300);
    pipeline.state_mut().heard_linux(1_400);
    feed(&mut pipeline, &mut sink, &[Ring::default()]);
    end(&mut pipeline, &mut sink);
    let starts: Vec<u64> = sink.events.iter().map(|it| it[word::TIME]).collect();
    assert_eq!(starts, [1_200, 1_220, 1_240, 1_260, 1_280]);
}

#[test]
fn an_event_of_a_period_that_has_been_forgotten_is_counted() {
    let (mut pipeline, mut sink) = (pipeline(switched_launch_plan()), Recorder::default());
    let switches = pipeline.state_mut().switches_mut();
    (0..1_000_000).for_each(|n| switches.turn(IT, n % 2 == 0, 10_000 + n));
    let old =
        Ring::default().names().launch(launch(1, 10_001)).launch(launch(2, 1_009_998)).launch(launch(3, 1_009_999));
    feed(&mut pipeline, &mut sink, &[old]);
    end(&mut pipeline, &mut sink);
    let starts: Vec<u64> = sink.events.iter().map(|it| it[word::TIME]).collect();
    assert_eq!((starts, pipeline.losses().of(Loss::EnabledForgotten)), (vec![1_009_998], 1));
}

/// Interpreted handlers of these activities with their launches.
fn graph_plan(activities: &[Activity]) -> Plan {
    let probes = activities.iter().map(|it| probe(Event::Activity(*it), Place::Interpreter, None)).collect();
    let calls = Calls::LAUNCHES;
    let details = Details::of(&[Detail::Captures]);
    let demand = Demand { calls, activities: Activities::of(activities), details, ..Demand::default() };
    Plan { probes, demand, ..kernel_plan() }
}

fn graph_launch(correlation: u32, start: u64) -> Launch {
    Launch { symbol: 0, launch_kind: Launch::GRAPH, ..launch(correlation, start) }
}

fn node(correlation: u32, graph_node: u64, start: u64, end: u64) -> Kernel {
    Kernel { graph: 5, graph_node: 5 << 32 | graph_node, ..kernel(correlation, start, end) }
}

/// The GPU records them as a whole, also those without a kernel.
#[test]
fn graphs_as_a_whole_are_joined_with_their_launch() {
    let (mut pipeline, mut sink) = (pipeline(graph_plan(&[Activity::Graph])), Recorder::default());
    let calls =
        Ring::default().names().node(Node::of_graph(5), 9).launch(graph_launch(1, 100)).launch(graph_launch(2, 200));
    let whole = |correlation, start: u64, end: u64| Graph {
        graph: 5,
        correlation,
        start: Realtime(start + OFFSET),
        end: Realtime(end + OFFSET),
        context: 1,
        stream: 13,
        ..Graph::default()
    };
    let activities = Ring::default().clock(1).graph(whole(1, 150, 160)).graph(whole(2, 210, 290)).flush(1_000);
    feed(&mut pipeline, &mut sink, &[calls, activities]);
    assert_eq!(sink.ends(), [160, 290]);
    let it = sink.events[1];
    assert_eq!((it[word::START], it[word::DURATION], it[word::GRAPH], it[word::STREAM]), (210, 80, 5, 13));
    assert_eq!((it[word::graph::IS_DERIVED], it[word::graph::NODES], it[word::LAUNCH_START]), (0, 0, 200));
    assert_eq!(it[word::CAPTURE_USTACK], StackKey::Collector { process: 0, id: 9 }.to_word(), "who instantiated it");
    end(&mut pipeline, &mut sink);
    assert_eq!(*pipeline.account().call(Call::Graph), Balance { made: 2, joined: 2, ..Balance::default() });
    assert!(pipeline.losses().is_empty());
}

/// The nodes of kinds that no handler wants count too. Of launches without nodes there is no event.
#[test]
fn graphs_are_put_together_from_their_nodes_where_these_are_recorded() {
    let (mut pipeline, mut sink) = (pipeline(graph_plan(&[Activity::Graph])), Recorder::default());
    let none = Launch { flags: Launch::NO_RECORD, ..graph_launch(3, 300) };
    let calls = Ring::default().names().launch(graph_launch(1, 100)).launch(graph_launch(2, 200)).launch(none);
    let set = Memset { graph: 5, graph_node: 5 << 32 | 7, ..memset(1, 120, 400) };
    let first = Ring::default()
        .clock_of_buffer(1, 500)
        .kernel(node(1, 1, 150, 160))
        .memset(set)
        .kernel(node(2, 1, 410, 420))
        .kernel(kernel(9, 430, 440))
        .flush(1_000);
    feed(&mut pipeline, &mut sink, &[calls, first]);
    assert_eq!(sink.events.len(), 0, "more nodes may come");
    let rest = Ring::default().clock_of_buffer(2, 100).kernel(node(2, 2, 425, 450)).flush(2_000);
    feed(&mut pipeline, &mut sink, &[rest]);
    assert_eq!(sink.events.len(), 0, "another graph that was launched before this one ended is outstanding");
    feed(&mut pipeline, &mut sink, &[Ring::default().flush(3_000)]);
    assert_eq!(sink.ends(), [400, 450]);
    let told = |it: &GpuContext| {
        (it[word::START], it[word::graph::NODES], it[word::graph::IS_DERIVED], it[word::LAUNCH_START])
    };
    assert_eq!([told(&sink.events[0]), told(&sink.events[1])], [(120, 2, 1, 100), (410, 2, 1, 200)]);
    let late = Ring::default().clock_of_buffer(3, 100).kernel(node(2, 3, 460, 470)).flush(4_000);
    feed(&mut pipeline, &mut sink, &[late]);
    end(&mut pipeline, &mut sink);
    assert_eq!(sink.ends().len(), 2);
    let graphs = *pipeline.account().call(Call::Graph);
    assert_eq!(graphs, Balance { made: 3, joined: 2, without_work: 1, ..Balance::default() });
    let arrived = *pipeline.account().activity(Activity::Graph);
    assert_eq!((arrived.records, arrived.nanos, arrived.agrees()), (2, 320, true));
    assert_eq!(pipeline.losses().iter().map(|it| (it.0, it.2)).collect::<Vec<_>>(), [(Loss::GraphNodeMissed, 1)]);
}

/// Beside a handler of kernels, a graph comes behind its nodes, and is no reason to call later kernels out of order.
#[test]
fn a_graph_beside_its_kernels_comes_last_and_disturbs_no_order() {
    let plan = graph_plan(&[Activity::Kernel, Activity::Graph]);
    let (mut pipeline, mut sink) = (pipeline(plan), Recorder::default());
    let calls = Ring::default().names().launch(graph_launch(1, 100)).launch(launch(2, 200));
    let first = Ring::default()
        .clock_of_buffer(1, 500)
        .kernel(node(1, 1, 150, 160))
        .kernel(node(1, 2, 165, 180))
        .kernel(kernel(2, 210, 250))
        .flush(1_000);
    feed(&mut pipeline, &mut sink, &[calls, first]);
    assert_eq!(sink.ends(), [160, 180, 250]);
    feed(&mut pipeline, &mut sink, &[Ring::default().flush(2_000)]);
    assert_eq!(sink.ends(), [160, 180, 250, 180]);
    assert_eq!((sink.events[3][word::START], sink.events[3][word::JOINED]), (150, 1));
    end(&mut pipeline, &mut sink);
    assert_eq!(pipeline.account().launches(), Balance { made: 2, joined: 2, ..Balance::default() });
    assert!(pipeline.losses().is_empty());
}

/// A launch runs what its graph was when it began, whenever its kernels arrive.
#[test]
fn a_node_has_the_stack_that_it_had_at_its_launch() {
    let (mut pipeline, mut sink) = (pipeline(graph_plan(&[Activity::Kernel])), Recorder::default());
    let node_id = 5 << 32 | 1;
    let calls = Ring::default()
        .names()
        .node(node_id, 3)
        .node_update(150, node_id, 4)
        .node_update(250, node_id, 0)
        .launch(graph_launch(1, 100))
        .launch(graph_launch(2, 200))
        .launch(graph_launch(3, 300));
    let kernels = Ring::default()
        .clock(1)
        .kernel(node(1, 1, 400, 410))
        .kernel(node(2, 1, 420, 430))
        .kernel(node(3, 1, 440, 450))
        .flush(1_000);
    feed(&mut pipeline, &mut sink, &[calls, kernels]);
    let stacks: Vec<u64> = sink.events.iter().map(|it| it[word::CAPTURE_USTACK]).collect();
    let of = |id| StackKey::Collector { process: 0, id }.to_word();
    assert_eq!(stacks, [of(3), of(4), 0], "and the last one is not known");
}
