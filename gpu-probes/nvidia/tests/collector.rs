//! The collector in this process, between a simulated CUPTI and a simulated tracer. What is not specific to CUPTI is tested by
//! the agent's own suite, which runs here too.
#![allow(
    dead_code,
    clippy::undocumented_unsafe_blocks,
    unsafe_op_in_unsafe_fn,
    unreachable_pub,
    reason = "tests play CUPTI and the tracer with the same raw calls"
)]

#[path = "fake/cupti.rs"]
mod cupti;
#[path = "../../agent/tests/suite/mod.rs"]
mod suite;

use cupti::{OverCupti, Program};
use std::sync::atomic::Ordering::SeqCst;
use suite::machine::{self, Machine};
use suite::tracer::{Tracer, listen};
use suite::{ALL, ALLOCATIONS, SHAPE, alone, arm, arm_at_first, arm_in, asks_for, disarm, launch_until, refused};
use xputrace_agent::rendezvous::Trust;
use xputrace_agent::{Dormant, World};
use xputrace_nvidia::cupti::records;
use xputrace_wire::events::{Activities, Activity, Call, HostEvent, HostEvents};
use xputrace_wire::message::{ARMED, BYE, DISARM, REFUSED, demand, window};
use xputrace_wire::record::{HostEventRecord, Launch, Record, UNKNOWN};
use xputrace_wire::region::{Lost, RegionShape};

suite!(super::OverCupti);

#[test]
fn memsets_are_recorded_where_they_are_asked_for() {
    let _alone = alone::<OverCupti>();
    let mut tracer =
        arm::<OverCupti>(demand::MEMSETS | demand::MEMSET_CALLS | demand::STREAMS | demand::OUTERMOST, SHAPE);
    assert!(cupti::is_enabled(cupti::RUNTIME, 51) && cupti::is_enabled(cupti::DRIVER, 216));
    assert!(!cupti::is_enabled(cupti::DRIVER, 307) && !cupti::is_enabled(cupti::RUNTIME, 211));
    let correlation = cupti::memset_async(9);
    cupti::push_memset(correlation, 4096, 0);
    cupti::push_memset(correlation + 1, 512, 3);
    tracer.until("the memsets", |it| it.memsets().len() == 2);
    let [plain, in_graph] = tracer.memsets()[..] else { panic!() };
    assert_eq!(
        (plain.correlation, plain.bytes, plain.value, plain.memory_kind, plain.known),
        (correlation, 4096, 42, 3, 1)
    );
    assert_eq!((plain.start.0, plain.end.0), (2_000_000, 2_000_300));
    assert_eq!((in_graph.value, in_graph.memory_kind, in_graph.known), (0, 0, 0), "CUPTI's are those of another");
    let launches = tracer.launches();
    let [launch] = launches[..] else { panic!("{launches:?}") };
    assert_eq!((launch.correlation, launch.launch_kind, launch.stream), (correlation, Launch::MEMSET, 109));
    assert_eq!(tracer.name(launch.api).unwrap(), "cudaMemsetAsync");
    disarm::<OverCupti>(&mut tracer);
    assert_eq!(tracer.control().totals.call(Call::Memset).made.load(SeqCst), 1);
    assert_eq!(tracer.control().totals.activity(Activity::Memset).nanos.load(SeqCst), 600);
}

/// Whether a record will come is read at the driver's call; a copy that does not reach it is none.
#[test]
fn copies_say_whether_a_record_will_come() {
    let _alone = alone::<OverCupti>();
    let mut tracer =
        arm::<OverCupti>(demand::MEMCPYS | demand::MEMCPY_CALLS | demand::STREAMS | demand::OUTERMOST, SHAPE);
    assert!(cupti::is_enabled(cupti::RUNTIME, 41) && cupti::is_enabled(cupti::DRIVER, 277));
    assert!(!cupti::is_enabled(cupti::DRIVER, 307) && !cupti::is_enabled(cupti::DRIVER, 216));
    let (to_device, anywhere, legacy) =
        ((277, c"cuMemcpyHtoDAsync_v2"), (306, c"cuMemcpyAsync"), (60, c"cuMemcpyHtoDAsync"));
    for (driver, bytes, flags, stream) in [
        (Some(to_device), 64, 0, 109),
        (Some(to_device), 0, Launch::NO_RECORD, 109),
        (Some(anywhere), 64, Launch::MAYBE_NO_RECORD, 109),
        (Some(anywhere), 0, Launch::NO_RECORD, 109),
        (Some(legacy), 64, Launch::MAYBE_NO_RECORD, UNKNOWN),
        (None, 0, Launch::NO_RECORD, UNKNOWN),
    ] {
        let correlation = cupti::memcpy_async(driver, bytes);
        let launch = tracer.launches().into_iter().find(|it| it.correlation == correlation).unwrap();
        assert_eq!((launch.launch_kind, launch.flags), (Launch::MEMCPY, flags), "{driver:?} {bytes}");
        assert_eq!(launch.stream, stream, "{driver:?} {bytes}");
        assert_eq!(tracer.name(launch.api).unwrap(), "cudaMemcpyAsync");
    }
    disarm::<OverCupti>(&mut tracer);
    assert_eq!(tracer.control().totals.call(Call::Memcpy).made.load(SeqCst), 6);
}

#[test]
fn memset_calls_are_left_alone_where_nobody_asks() {
    let _alone = alone::<OverCupti>();
    let mut tracer = arm::<OverCupti>(ALL, SHAPE);
    assert!(!cupti::is_enabled(cupti::RUNTIME, 51) && !cupti::is_enabled(cupti::DRIVER, 216));
    assert!(!cupti::MEMSETS_ON.load(SeqCst));
    disarm::<OverCupti>(&mut tracer);
}

#[test]
fn a_runtime_launch_and_its_driver_call_are_one() {
    let _alone = alone::<OverCupti>();
    let mut tracer = arm::<OverCupti>(ALL, SHAPE);
    assert_eq!(tracer.hello.words[..3], [u64::from(xputrace_wire::VERSION), std::process::id().into(), 130_001]);
    assert_eq!(tracer.hello.words[3] & demand::MEMSETS, demand::MEMSETS);
    assert_eq!(tracer.hello.text, "/fake/libcupti.so.13\n");
    let correlation = cupti::launch(c"_Z5scaleIfEvPT_S0_", 9, 0);
    tracer.until("the kernel", |it| !it.kernels().is_empty());
    let launches = tracer.launches();
    let [launch] = launches[..] else { panic!("{launches:?}") };
    assert_eq!(launch.correlation, correlation);
    assert_eq!((launch.grid, launch.block, launch.dynamic_shared), ([4, 2, 1], [64, 1, 1], 128));
    assert_eq!((launch.device, launch.context, launch.stream), (3, 5, UNKNOWN));
    assert_eq!((launch.launch_kind, launch.flags, launch.result, launch.stack), (Launch::KERNEL, 0, 0, 0));
    assert!(launch.start > 0 && launch.start == launch.end, "no end without ENDS");
    assert_eq!(tracer.name(launch.api).unwrap(), "cudaLaunchKernel");
    assert_eq!(tracer.name(launch.symbol).unwrap(), "_Z5scaleIfEvPT_S0_");
    let kernel = tracer.kernels()[0];
    assert_eq!((kernel.correlation, kernel.symbol), (correlation, launch.symbol));
    assert_eq!((kernel.start.0, kernel.end.0), (1_000_000, 1_000_500));
    let totals = tracer.control();
    assert_eq!(totals.totals.activity(Activity::Kernel).records.load(SeqCst), 1);
    assert_eq!(totals.totals.activity(Activity::Kernel).nanos.load(SeqCst), 500);
    assert!(
        tracer.records().iter().any(|it| matches!(it, Record::Clock(it) if it.monotonic_before <= it.monotonic_after))
    );
    assert_eq!(disarm::<OverCupti>(&mut tracer).kind, BYE);
    assert_eq!(tracer.flushes().iter().filter(|it| it.last == 1).count(), 1);
    assert_eq!(cupti::FINALIZED.load(SeqCst), 1);
    assert!(!cupti::ACTIVITY_ON.load(SeqCst));
}

/// Callbacks and kinds follow what is asked for, launches that are no longer asked for are outside, and one that is
/// under way at the switch is whole.
#[test]
fn callbacks_and_kinds_are_on_only_while_they_are_asked_for() {
    let _alone = alone::<OverCupti>();
    let base = demand::host_events(HostEvents::of(&[HostEvent::Alloc]));
    let mut tracer = arm_at_first::<OverCupti>(base, base | ALL | demand::STACKS);
    let is_on = || cupti::is_enabled(cupti::DRIVER, 307) && cupti::ACTIVITY_ON.load(SeqCst);
    let is_off = || !cupti::is_enabled(cupti::DRIVER, 307) && !cupti::ACTIVITY_ON.load(SeqCst);
    assert!(is_off() && cupti::is_enabled(cupti::RUNTIME, 20));
    for round in 1..=3 {
        cupti::launch(c"_Z1fv", 7, 0);
        cupti::malloc(0x7000, 64, 0, || ());
        tracer.switch(base | ALL);
        tracer.until("the switch", |_| is_on());
        assert!(cupti::is_enabled(cupti::RUNTIME, 211));
        launch_until::<OverCupti>(&mut tracer, demand::KERNELS, true);
        let params = cupti::launch_params(9);
        let open = driver_launch(&params);
        // Of a thread's first launch, the call of the runtime around it may not have been seen.
        cupti::fire(open, 0);
        tracer.switch(base);
        cupti::fire(open, 1);
        tracer.until("the end", |_| is_off());
        assert!(cupti::is_enabled(cupti::RUNTIME, 20));
        let launches = tracer.launches();
        let whole = launches.iter().find(|it| it.correlation == open.correlation).unwrap();
        assert!(asks_for(whole, demand::KERNELS) && whole.flags & Launch::OUTSIDE == 0);
        assert_eq!(allocations(&mut tracer).len(), round);
    }
    assert_eq!(tracer.lost(Lost::Unexpected), 0);
    disarm::<OverCupti>(&mut tracer);
    let launches = tracer.launches();
    let inside = launches.iter().filter(|it| it.flags & Launch::OUTSIDE == 0);
    assert!(inside.clone().all(|it| asks_for(it, demand::KERNELS)));
    assert_eq!(tracer.launches_made(), inside.count() as u64);
}

/// A thread's first launch after the runtime's calls have begun to be watched may be inside a call that was not seen.
#[test]
fn a_launch_inside_a_call_of_the_runtime_that_was_not_seen_does_not_say_that_it_is_the_outermost() {
    let _alone = alone::<OverCupti>();
    let drivers = demand::LAUNCHES | demand::KERNELS;
    let mut tracer = arm_at_first::<OverCupti>(drivers, ALL);
    let params = cupti::launch_params(9);
    let by_driver = || {
        let open = driver_launch(&params);
        cupti::fire(open, 0);
        cupti::fire(open, 1);
        open.correlation
    };
    by_driver();
    tracer.switch(ALL);
    tracer.until("the switch", |_| cupti::is_enabled(cupti::RUNTIME, 211));
    let new = tracer.control().totals.flushes.load(SeqCst) + 2;
    tracer.until("a flush", |it| it.control().totals.flushes.load(SeqCst) > new);
    let [first, second] = [by_driver(), by_driver()];
    let by_runtime = cupti::launch(c"_Z1fv", 7, 0);
    let launches = tracer.launches();
    let is_outermost = |of: u32| asks_for(launches.iter().find(|it| it.correlation == of).unwrap(), demand::OUTERMOST);
    assert_eq!([first, second, by_runtime].map(is_outermost), [false, true, true]);
    disarm::<OverCupti>(&mut tracer);
}

#[test]
fn callbacks_and_records_are_off_outside_the_window() {
    let _alone = alone::<OverCupti>();
    let mut tracer = arm_in::<OverCupti>(window::PROFILER, ALL | demand::STACKS, SHAPE);
    let is_on = || cupti::is_enabled(cupti::DRIVER, 307) && cupti::ACTIVITY_ON.load(SeqCst);
    let is_off = || {
        let calls = [(cupti::DRIVER, 307), (cupti::RUNTIME, 211), (cupti::DRIVER, 514)];
        !calls.iter().any(|(domain, id)| cupti::is_enabled(*domain, *id)) && !cupti::ACTIVITY_ON.load(SeqCst)
    };
    assert!(is_off() && cupti::is_enabled(cupti::DRIVER, 308));
    assert!(cupti::is_enabled(cupti::DRIVER, 513), "what graphs contain must be known once it opens");
    for openings in 1..=3 {
        cupti::launch(c"_Z1fv", 7, 0);
        cupti::call(cupti::DRIVER, 308, c"cuProfilerStart", 0);
        assert!(is_on(), "at once");
        cupti::launch(c"_Z1fv", 7, 0);
        cupti::call(cupti::DRIVER, 309, c"cuProfilerStop", 0);
        cupti::launch(c"_Z1fv", 7, 0);
        tracer.until("the pause", |_| is_off());
        let launches = tracer.launches();
        let outside = |it: &Launch| it.flags & Launch::OUTSIDE != 0;
        assert_eq!(launches.iter().filter(|it| !outside(it)).count(), openings);
        assert!(launches.iter().all(|it| (it.stack == 0) == outside(it)), "no stack outside");
        assert_eq!(tracer.launches_made(), openings as u64);
        assert_eq!(tracer.control().window.openings.load(SeqCst), openings as u64);
    }
    assert_eq!(tracer.lost(Lost::Unexpected), 0);
    disarm::<OverCupti>(&mut tracer);
}

/// A launch by the driver's own call.
fn driver_launch(params: &cupti::LaunchParams) -> cupti::Event<'static> {
    cupti::Event {
        domain: cupti::DRIVER,
        id: 307,
        name: c"cuLaunchKernel",
        symbol: Some(c"_Z1fv"),
        params: std::ptr::from_ref(params).cast(),
        correlation: cupti::next_correlation(),
        result: 0,
    }
}

/// A call that returns while callbacks are off has no EXIT.
#[test]
fn a_call_that_is_open_at_the_pause_is_forgotten() {
    let _alone = alone::<OverCupti>();
    let mut tracer = arm_in::<OverCupti>(window::PROFILER, demand::LAUNCHES | demand::KERNELS, SHAPE);
    cupti::call(cupti::DRIVER, 308, c"cuProfilerStart", 0);
    let params = cupti::launch_params(9);
    let open = driver_launch(&params);
    cupti::fire(open, 0);
    cupti::call(cupti::DRIVER, 309, c"cuProfilerStop", 0);
    tracer.until("the pause", |_| !cupti::is_enabled(cupti::DRIVER, 307));
    cupti::fire(open, 1);
    cupti::call(cupti::DRIVER, 308, c"cuProfilerStart", 0);
    let correlation = cupti::launch(c"_Z1fv", 9, 0);
    let launches = tracer.launches();
    assert_eq!(launches.iter().map(|it| it.correlation).collect::<Vec<_>>(), [correlation]);
    assert_eq!(tracer.lost(Lost::Unexpected), 0);
    disarm::<OverCupti>(&mut tracer);
}

#[test]
fn the_runtimes_calls_are_left_alone_where_nobody_asks() {
    let _alone = alone::<OverCupti>();
    let mut tracer = arm::<OverCupti>(demand::LAUNCHES | demand::KERNELS | demand::STACKS, SHAPE);
    assert!(cupti::is_enabled(cupti::DRIVER, 307) && !cupti::is_enabled(cupti::RUNTIME, 211));
    assert!(cupti::is_enabled(cupti::DRIVER, 514) && !cupti::is_enabled(cupti::RUNTIME, 311));
    let correlation = cupti::launch(c"_Z5scaleIfEvPT_S0_", 9, 0);
    tracer.until("the kernel", |it| !it.kernels().is_empty());
    let launches = tracer.launches();
    let [launch] = launches[..] else { panic!("{launches:?}") };
    assert_eq!((launch.correlation, tracer.kernels()[0].correlation), (correlation, correlation));
    assert_eq!((launch.grid, launch.block, launch.dynamic_shared), ([4, 2, 1], [64, 1, 1], 128));
    assert_eq!(tracer.name(launch.api).unwrap(), "cuLaunchKernel");
    assert_eq!(tracer.name(launch.symbol).unwrap(), "_Z5scaleIfEvPT_S0_");
    disarm::<OverCupti>(&mut tracer);
}

#[test]
fn driver_calls_stand_alone_and_graphs_have_many_kernels() {
    let _alone = alone::<OverCupti>();
    let mut tracer = arm::<OverCupti>(ALL, SHAPE);
    let params = cupti::launch_params(9);
    let alone = driver_launch(&params);
    cupti::fire(alone, 0);
    cupti::fire(alone, 1);
    let graph = cupti::call(cupti::RUNTIME, 311, c"cudaGraphLaunch", 0);
    for node in 1..4 {
        cupti::push_kernel(graph, c"_Z1fv", node);
    }
    tracer.until("the kernels", |it| it.kernels().len() == 3);
    let launches = tracer.launches();
    assert_eq!(launches.len(), 2);
    assert_eq!(tracer.name(launches[0].api).unwrap(), "cuLaunchKernel");
    assert_eq!(launches[0].grid, [4, 2, 1]);
    assert_eq!((launches[1].launch_kind, launches[1].symbol, launches[1].correlation), (Launch::GRAPH, 0, graph));
    disarm::<OverCupti>(&mut tracer);
    assert_eq!(tracer.control().totals.call(Call::Graph).made.load(SeqCst), 1);
}

#[test]
fn failures_and_captures_are_marked_and_counted() {
    let _alone = alone::<OverCupti>();
    let mut tracer = arm::<OverCupti>(ALL, SHAPE);
    cupti::launch(c"_Z1fv", 7, 0);
    assert_eq!(cupti::CAPTURE_QUESTIONS.load(SeqCst), 0, "no capture is open");
    cupti::call(cupti::DRIVER, 539, c"cuStreamBeginCapture_v2", 7);
    cupti::CAPTURING.store(7, SeqCst);
    let captured = cupti::launch(c"_Z1fv", 7, 0);
    let beside = cupti::launch(c"_Z1fv", 8, 0);
    cupti::CAPTURING.store(0, SeqCst);
    cupti::call(cupti::DRIVER, 497, c"cuStreamEndCapture", 7);
    let failed = cupti::launch(c"_Z1fv", 7, 9);
    assert_eq!(cupti::CAPTURE_QUESTIONS.load(SeqCst), 2, "only while it was open");
    let launches = tracer.launches();
    let of = |id| *launches.iter().find(|it| it.correlation == id).unwrap();
    assert_eq!(of(captured).flags, Launch::CAPTURED);
    assert_eq!(of(beside).flags, 0);
    assert_eq!(of(failed).result, 9);
    tracer.until("the totals", |it| it.launches_made() == 4);
    let totals = &tracer.control().totals;
    assert_eq!(
        (totals.call(Call::Kernel).failed.load(SeqCst), totals.call(Call::Kernel).captured.load(SeqCst)),
        (1, 1)
    );
    disarm::<OverCupti>(&mut tracer);
}

/// For manual measurements: the cost of our callbacks, without CUPTI's own part. `CASE` names one of the cases.
#[test]
#[ignore = "prints times, asserts nothing about them"]
fn print_the_cost_of_a_launch() {
    const BLOCKS: u32 = 60;
    const LAUNCHES: u32 = 2000;
    let _alone = alone::<OverCupti>();
    let clock = std::time::Instant::now();
    (0..1000).for_each(|_| {
        std::hint::black_box(std::time::Instant::now());
    });
    println!("reading the clock: {} ns", clock.elapsed().as_nanos() / 1000);
    let constant = Program { stacks: 1, kernels: 1, bytes: 0 };
    let changing = Program { stacks: 170, kernels: 60, bytes: 512 << 10 };
    for (what, wanted, program) in [
        ("without stacks", demand::LAUNCHES, constant),
        ("joined, without stacks", demand::LAUNCHES | demand::OUTERMOST, constant),
        ("without stacks, with ends", demand::LAUNCHES | demand::ENDS, constant),
        ("with one stack", demand::LAUNCHES | demand::STACKS, constant),
        ("with stream ids", demand::LAUNCHES | demand::STREAMS, constant),
        ("with 170 stacks", demand::LAUNCHES | demand::STACKS, Program { bytes: 0, ..changing }),
        ("without stacks, cold caches", demand::LAUNCHES, changing),
        ("with 170 stacks, cold caches", demand::LAUNCHES | demand::STACKS, changing),
    ] {
        if std::env::var("CASE").is_ok_and(|it| it != what) {
            continue;
        }
        cupti::reset();
        // The ring is read after each block, so it wraps many times, as in a run.
        let mut tracer = arm::<OverCupti>(wanted, RegionShape { rings: 4, ring_bytes: 1 << 20 });
        let mut block = |n: u32| {
            let nanos = [false, true].map(|armed| cupti::time_launches(program, LAUNCHES, n * LAUNCHES, armed));
            tracer.drain();
            nanos[1] - nanos[0]
        };
        let mut extra: Vec<f64> = (0..BLOCKS).map(&mut block).collect();
        extra.sort_unstable_by(f64::total_cmp);
        let (low, median, high) = (extra[3], extra[extra.len() / 2], extra[extra.len() - 4]);
        println!("{what}: median {median:.1} ns a launch, nine in ten between {low:.1} and {high:.1}");
        let launches = tracer.launches();
        assert_eq!(launches.len(), (BLOCKS * LAUNCHES) as usize);
        println!("  frames {:?}", tracer.stack(launches[0].stack).map(|it| it.len()));
        disarm::<OverCupti>(&mut tracer);
    }
}

#[test]
fn what_cupti_lost_is_counted() {
    let _alone = alone::<OverCupti>();
    let mut tracer = arm::<OverCupti>(ALL, SHAPE);
    cupti::DROPPED.store(17, SeqCst);
    cupti::launch(c"_Z1fv", 7, 0);
    cupti::spoil_last_kernel();
    tracer.until("the kernel", |it| !it.kernels().is_empty() && it.lost(Lost::LibraryDropped) == 17);
    assert_eq!(tracer.lost(Lost::NoTimestamps), 1);
    assert_eq!((tracer.kernels()[0].start.0, tracer.kernels()[0].end.0), (0, 0));
    disarm::<OverCupti>(&mut tracer);
}

#[test]
fn records_in_a_discarded_buffer_are_counted_by_kind_where_that_is_known() {
    let of = |activities: Activities, bytes| {
        let _alone = alone::<OverCupti>();
        let tracer = arm::<OverCupti>(demand::activities(activities), SHAPE);
        cupti::overrun(bytes);
        let told = Activity::ALL.iter().map(|it| tracer.control().totals.activity(*it).records.load(SeqCst));
        let counts = (told.collect::<Vec<_>>(), tracer.lost(Lost::ActivityRingFull), tracer.lost(Lost::Unread));
        tracer.order(DISARM);
        tracer.message();
        counts
    };
    let kernels = 10 * records::MOST_KERNEL_RECORD_BYTES;
    // A lower bound: no kernel record was seen, so their size is unknown.
    let none = vec![0; Activity::COUNT];
    assert_eq!(of(Activities::of(&[Activity::Kernel]), kernels), (none.clone(), 0, 10));
    let mut memsets = none.clone();
    memsets[Activity::Memset.index()] = 20;
    assert_eq!(of(Activities::of(&[Activity::Memset]), 20 * 88), (memsets, 20, 0));
    // A lower bound: the records of copies have two sizes, which versions change.
    let copies = 10 * records::MOST_MEMCPY_RECORD_BYTES;
    assert_eq!(of(Activities::of(&[Activity::Memcpy]), copies), (none.clone(), 0, 10));
    // A lower bound: the other records are smaller.
    assert_eq!(of(Activities::ALL, kernels), (none, 0, 10));
}

#[test]
fn an_untested_cupti_is_not_finalized_and_that_is_said() {
    let _alone = alone::<OverCupti>();
    cupti::VERSION.store(130_300, SeqCst);
    let mut tracer = arm::<OverCupti>(ALL, SHAPE);
    cupti::launch(c"_Z1fv", 7, 0);
    let bye = disarm::<OverCupti>(&mut tracer);
    assert_eq!((bye.kind, cupti::FINALIZED.load(SeqCst)), (BYE, 0));
    assert!(bye.text.contains("0.4 us"), "{}", bye.text);
}

#[test]
fn cupti_is_unloaded_also_after_a_run_with_callbacks_alone() {
    let _alone = alone::<OverCupti>();
    let mut tracer = arm::<OverCupti>(demand::LAUNCHES, SHAPE);
    cupti::launch(c"_Z1fv", 7, 0);
    let bye = disarm::<OverCupti>(&mut tracer);
    assert_eq!((bye.kind, bye.text.as_str(), cupti::FINALIZED.load(SeqCst)), (BYE, "", 1));
}

#[test]
fn the_last_kernels_come_at_exit() {
    let _alone = alone::<OverCupti>();
    let listener = listen();
    let address = listener.address.clone();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_program_that_exits", "--ignored", "--nocapture"])
        .env("XPUTRACE_TEST_SOCKET", address)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut tracer = listener.arm(ALL, SHAPE);
    assert_eq!(tracer.message().kind, ARMED);
    assert!(child.wait().unwrap().success());
    assert!(tracer.says_goodbye());
    assert_eq!(tracer.launches().len(), 3);
    assert_eq!(tracer.kernels().len(), 3);
    assert_eq!(tracer.flushes().last().unwrap().last, 1);
    assert_eq!(tracer.launches_made(), 3);
}

/// The program that the test above runs.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn a_program_that_exits() {
    let Ok(address) = std::env::var("XPUTRACE_TEST_SOCKET") else { return };
    xputrace_agent::arm(&address, Trust::RootAndThisUser, OverCupti::world).unwrap();
    for _ in 0..3 {
        cupti::launch(c"_Z1fv", 7, 0);
    }
    // A child unknown to fork handlers runs the same exit handlers, without the region.
    let mut status = -1;
    unsafe {
        let child = libc::syscall(libc::SYS_fork) as i32;
        if child == 0 {
            libc::exit(0);
        }
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
    }
    assert_eq!(status, 0, "the child's exit");
}

#[test]
fn a_program_may_close_every_descriptor_and_use_the_numbers_again() {
    let _alone = alone::<OverCupti>();
    let listener = listen();
    let address = listener.address.clone();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_program_that_closes_what_it_inherited", "--ignored", "--nocapture"])
        .env("XPUTRACE_TEST_SOCKET", address)
        .stdout(std::process::Stdio::null())
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut tracer = listener.arm(ALL, SHAPE);
    assert_eq!(tracer.message().kind, ARMED);
    tracer.until("flushes with launches made behind the closing", |it| {
        it.launches().len() > 10 && it.flushes().len() > 20
    });
    let launched = tracer.launches().len();
    tracer.until("further launches", |it| it.launches().len() > launched);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success(), "what the program sent itself was taken or cut off");
    assert!(tracer.says_goodbye());
}

/// The program that the test above runs: a daemon that closes inherited descriptors, then uses
/// sockets with any numbers until its input ends.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn a_program_that_closes_what_it_inherited() {
    use std::io::{Read, Write};
    let Ok(address) = std::env::var("XPUTRACE_TEST_SOCKET") else { return };
    xputrace_agent::arm(&address, Trust::RootAndThisUser, OverCupti::world).unwrap();
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) }, 0);
    // Reuses all numbers below the usual limit.
    let pairs: Vec<_> = (0..500).map_while(|_| std::os::unix::net::UnixStream::pair().ok()).collect();
    let mut input = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
    while unsafe { libc::poll(&mut input, 1, 0) } == 0 {
        cupti::launch(c"_Z1fv", 7, 0);
        for (mut near, mut far) in pairs.iter().map(|it| (&it.0, &it.1)) {
            near.write_all(b"message").unwrap();
            let mut read = [0; 7];
            far.read_exact(&mut read).unwrap();
            assert_eq!(&read, b"message");
        }
    }
}

#[test]
fn a_cupti_that_refuses_is_named_and_the_program_runs_on() {
    let _alone = alone::<OverCupti>();
    cupti::SUBSCRIBE_ANSWER.store(39, SeqCst);
    let dormant = refused(
        |listener| {
            let tracer = listener.arm(ALL, SHAPE);
            let refused = tracer.message();
            assert_eq!((refused.kind, refused.words[0]), (REFUSED, 39));
            assert!(refused.text.contains("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"), "{}", refused.text);
        },
        OverCupti::world,
    );
    assert!(matches!(dormant, Dormant::Refused(_)));
    cupti::launch(c"_Z1fv", 7, 0);
    assert!(!cupti::ACTIVITY_ON.load(SeqCst));
}

#[test]
fn without_cupti_the_tracer_hears_why() {
    let _alone = alone::<OverCupti>();
    let dormant = refused(
        |listener| {
            let tracer = listener.arm(ALL, SHAPE);
            assert_eq!((tracer.hello.words[2], tracer.hello.text.as_str()), (0, "nowhere to be found\n"));
            assert_eq!(tracer.message().kind, REFUSED);
        },
        || World { library: "nowhere to be found".into(), ..World::default() },
    );
    assert!(matches!(dormant, Dormant::Refused(_)));
}

const ALLOCATIONS_ALONE: u64 = demand::host_events(HostEvents::of(&[HostEvent::Alloc]));

/// The allocations that the tracer was told of: function, address if there is one, bytes, result.
fn allocations(tracer: &mut Tracer) -> Vec<(u32, Option<u64>, u64, i32)> {
    let alloc = |it: &Record<'_>| match it {
        Record::Host(HostEventRecord::Alloc(it)) => {
            Some((it.function, (it.has_address != 0).then_some(it.address), it.bytes, it.result))
        }
        _ => None,
    };
    tracer.records().iter().filter_map(alloc).collect()
}

#[test]
fn an_allocation_is_told_once_as_the_outermost_call() {
    let _alone = alone::<OverCupti>();
    let mut tracer = arm::<OverCupti>(ALLOCATIONS_ALONE, SHAPE);
    cupti::malloc(0x7000, 64, 0, || ());
    cupti::malloc(0, 1 << 60, 2, || ());
    // A launch is none, and nobody asked for it.
    OverCupti::launch_quietly();
    let malloc = 2 << 16 | 20;
    assert_eq!(allocations(&mut tracer), [(malloc, Some(0x7000), 64, 0), (malloc, None, 1 << 60, 2)]);
    assert!(!cupti::is_enabled(2, 211) && !cupti::is_enabled(1, 307), "launches are not watched");
    assert_eq!(tracer.launches().len(), 0);
    tracer.order(DISARM);
    assert_eq!(tracer.message().kind, BYE);
    let made = tracer.control().totals.host_events[HostEvent::Alloc.index()].load(SeqCst);
    assert_eq!((made, tracer.lost(Lost::Unexpected)), (2, 0));
}

#[test]
fn a_call_and_a_launch_inside_it_are_both_told() {
    let _alone = alone::<OverCupti>();
    let mut tracer = arm::<OverCupti>(ALL | ALLOCATIONS_ALONE, SHAPE);
    cupti::malloc(0x7000, 64, 0, OverCupti::launch_quietly);
    assert_eq!(allocations(&mut tracer), [(2 << 16 | 20, Some(0x7000), 64, 0)]);
    assert_eq!(tracer.launches().len(), 1);
    disarm::<OverCupti>(&mut tracer);
}

#[test]
fn nothing_is_allocated_at_a_call() {
    let _alone = alone::<OverCupti>();
    let mut tracer = arm::<OverCupti>(ALLOCATIONS_ALONE | demand::HOST_STACKS, SHAPE);
    (0..100).for_each(|_| cupti::malloc(0x7000, 64, 0, || ()));
    let before = ALLOCATIONS.get();
    (0..1000).for_each(|_| cupti::malloc(0x7000, 64, 0, || ()));
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert_eq!(allocations(&mut tracer).len(), 1100);
    tracer.order(DISARM);
    assert_eq!(tracer.message().kind, BYE);
}

#[test]
fn calls_that_do_not_fit_into_a_ring_are_counted() {
    let _alone = alone::<OverCupti>();
    let mut tracer = arm::<OverCupti>(ALLOCATIONS_ALONE, RegionShape { rings: 3, ring_bytes: 4096 });
    (0..500).for_each(|_| cupti::malloc(0x7000, 64, 0, || ()));
    let told = allocations(&mut tracer).len() as u64;
    let lost = tracer.lost(Lost::HostEventRingFull);
    assert!(lost > 0 && told + lost == 500, "{told} {lost}");
    tracer.order(DISARM);
    assert_eq!(tracer.message().kind, BYE);
    assert_eq!(tracer.control().totals.host_events[HostEvent::Alloc.index()].load(SeqCst), 500);
}

#[test]
fn calls_that_begin_outside_the_window_are_not_told() {
    let _alone = alone::<OverCupti>();
    let mut tracer = arm_in::<OverCupti>(window::PROFILER, ALLOCATIONS_ALONE, SHAPE);
    let profiler = |id: u32, name| cupti::call(1, id, name, 0);
    cupti::malloc(0x1000, 1, 0, || ());
    profiler(308, c"cuProfilerStart");
    cupti::malloc(0x2000, 2, 0, || ());
    // It begins inside, and belongs to it.
    cupti::malloc(0x3000, 3, 0, || _ = profiler(309, c"cuProfilerStop"));
    cupti::malloc(0x4000, 4, 0, || ());
    let bytes: Vec<u64> = allocations(&mut tracer).iter().map(|it| it.2).collect();
    assert_eq!(bytes, [2, 3]);
    tracer.order(DISARM);
    assert_eq!(tracer.message().kind, BYE);
}
