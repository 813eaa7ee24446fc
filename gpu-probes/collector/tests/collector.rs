//! The collector in this process, between a simulated machine and a simulated tracer. Everything
//! that is not specific to CUPTI is also tested with a second, vendor-neutral backend.
#![allow(
    dead_code,
    clippy::undocumented_unsafe_blocks,
    unsafe_op_in_unsafe_fn,
    unreachable_pub,
    reason = "tests play CUPTI and the tracer with the same raw calls"
)]

#[path = "fake/cupti.rs"]
mod cupti;
#[path = "fake/machine.rs"]
mod machine;
#[path = "fake/plain.rs"]
mod plain;
#[path = "fake/tracer.rs"]
mod tracer;

use cupti::{OverCupti, Program};
use machine::Machine;
use plain::Plain;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tracer::{Listener, Tracer, listen, memory, message, put_at_marker};
use xputrace_collector::cupti::records;
use xputrace_collector::rendezvous::Trust;
use xputrace_collector::{Dormant, World};
use xputrace_wire::events::{Activities, Activity, Call, HostEvent, HostEvents};
use xputrace_wire::marker::{WORDS, word};
use xputrace_wire::message::{ARMED, BYE, DISARM, DORMANT, HELLO, Message, RECORD, REFUSED, demand, window};
use xputrace_wire::record::{HostEventRecord, Launch, Record, UNKNOWN};
use xputrace_wire::region::{Lost, Shape};

struct Counting;
thread_local!(static ALLOCATIONS: Cell<usize> = const { Cell::new(0) });

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        System.alloc(layout)
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        System.dealloc(at, layout);
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        System.realloc(at, layout, size)
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ALL: u64 = demand::LAUNCHES | demand::KERNELS | demand::OUTERMOST;
const SHAPE: Shape = Shape { rings: 8, ring_bytes: 1 << 20 };

/// Runs one test at a time: CUPTI and the collector are per process. The run of a test that failed is ended first.
fn alone<M: Machine>() -> MutexGuard<'static, Option<fn()>> {
    static END_OF_LAST: Mutex<Option<fn()>> = Mutex::new(None);
    let mut guard = END_OF_LAST.lock().unwrap_or_else(|it| it.into_inner());
    if let Some(end) = guard.replace(end_run::<M>) {
        end();
    }
    M::reset();
    guard
}

/// Waits until the run of a tracer that is gone has ended: the library is let go within calls.
fn end_run<M: Machine>() {
    let until = Instant::now() + Duration::from_secs(60);
    while is_armed::<M>() {
        assert!(Instant::now() < until, "a test that failed has left the collector armed");
        M::launch(c"_Z4last", 1, 0);
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn is_armed<M: Machine>() -> bool {
    xputrace_collector::arm("", Trust::RootAndThisUser, M::world) == Err(Dormant::AlreadyArmed)
}

fn arm<M: Machine>(demand: u64, shape: Shape) -> Tracer {
    arm_in::<M>(0, demand, shape)
}

fn arm_in<M: Machine>(window: u64, demand: u64, shape: Shape) -> Tracer {
    let listener = listen();
    let address = listener.address.clone();
    let tracer = std::thread::spawn(move || listener.arm_in(window, demand, shape));
    xputrace_collector::arm(&address, Trust::RootAndThisUser, M::world).unwrap();
    let tracer = tracer.join().unwrap();
    let armed = tracer.message();
    assert_eq!(armed.kind, ARMED, "{}", armed.text);
    tracer
}

/// Disarms while CUDA calls continue, so that CUPTI can be unloaded.
fn disarm<M: Machine>(tracer: &mut Tracer) -> Message {
    tracer.order(DISARM);
    tracer.until("leaving", |_| {
        M::launch(c"_Z4last", 1, 0);
        M::times_let_go() == 1
    });
    tracer.message()
}

fn refused(within: impl FnOnce(Listener) + Send + 'static, world: impl FnOnce() -> World) -> Dormant {
    let listener = listen();
    let address = listener.address.clone();
    let thread = std::thread::spawn(move || within(listener));
    let dormant = xputrace_collector::arm(&address, Trust::RootAndThisUser, world).unwrap_err();
    thread.join().unwrap();
    dormant
}

/// Runs each of these tests on every machine.
macro_rules! suite {
    ($($name:ident)*) => {
        mod over_cupti {
            $(#[test] fn $name() { super::$name::<super::OverCupti>(); })*
        }
        mod over_another_backend {
            $(#[test] fn $name() { super::$name::<super::Plain>(); })*
        }
    };
}

suite! {
    a_launch_and_its_kernel_are_told
    a_graph_has_many_kernels
    kernels_without_times_are_counted
    stacks_begin_at_the_caller_and_are_told_once
    a_stack_that_comes_back_is_known_and_told_to_each_tracer
    a_stack_that_is_not_the_threads_own_is_not_read
    the_end_of_a_launch_is_read_where_it_is_asked_for
    stream_ids_are_asked_once_until_a_stream_is_made
    the_marker_gets_the_words_and_gives_the_tag
    nothing_is_allocated_at_a_launch
    four_threads_lose_nothing
    a_ring_is_used_again_when_its_thread_ends
    more_threads_than_rings_are_counted_and_kernels_still_come
    a_ring_that_is_too_small_counts_what_it_loses
    many_kernels_come_through_a_small_ring_when_it_is_read
    a_killed_tracer_disarms_and_the_next_one_arms_again
    a_forked_child_touches_nothing
    threads_and_mappings_have_names
    nothing_is_recorded_before_the_tracer_says_so
    stacks_are_taken_only_while_they_are_asked_for
    a_thousand_switches_lose_nothing
    memory_that_could_shrink_is_refused
    a_tracer_that_wants_nothing_or_says_nothing_leaves_it_dormant
}

fn a_launch_and_its_kernel_are_told<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(ALL, SHAPE);
    assert_eq!(tracer.hello.words[..2], [u64::from(xputrace_wire::VERSION), std::process::id().into()]);
    let served = tracer.hello.words[3];
    assert_eq!(served & (ALL | demand::STACKS), ALL | demand::STACKS, "what the backend can serve");
    let correlation = M::launch(c"_Z5scaleIfEvPT_S0_", 9, 0);
    tracer.until("the kernel", |it| !it.kernels().is_empty());
    let launches = tracer.launches();
    let [launch] = launches[..] else { panic!("{launches:?}") };
    assert_eq!((launch.correlation, launch.launch_kind, launch.flags), (correlation, Launch::KERNEL, 0));
    assert_eq!((launch.grid, launch.block, launch.dynamic_shared), ([4, 2, 1], [64, 1, 1], 128));
    assert_eq!((launch.device, launch.context, launch.stream), (3, 5, UNKNOWN));
    let kernel = tracer.kernels()[0];
    assert_eq!((kernel.correlation, kernel.symbol), (correlation, launch.symbol));
    assert_eq!(tracer.name(kernel.symbol).unwrap(), "_Z5scaleIfEvPT_S0_");
    assert_eq!(disarm::<M>(&mut tracer).kind, BYE);
    assert_eq!(tracer.flushes().iter().filter(|it| it.last == 1).count(), 1);
    assert!(!M::is_recording());
}

fn a_graph_has_many_kernels<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(ALL, SHAPE);
    let graph = M::launch_graph(3);
    tracer.until("the kernels", |it| it.kernels().len() == 3);
    assert!(tracer.kernels().iter().all(|it| it.correlation == graph));
    assert_eq!((tracer.launches()[0].launch_kind, tracer.launches()[0].symbol), (Launch::GRAPH, 0));
    disarm::<M>(&mut tracer);
    assert_eq!(tracer.control().totals.call(Call::Graph).made.load(SeqCst), 1);
}

fn kernels_without_times_are_counted<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(demand::KERNELS, SHAPE);
    M::push_kernel(1, c"_Z1fv");
    M::spoil_last_kernel();
    tracer.until("the kernel", |it| it.lost(Lost::NoTimestamps) == 1 && !it.kernels().is_empty());
    disarm::<M>(&mut tracer);
}

#[test]
fn a_test_that_fails_leaves_no_run_to_the_next_one() {
    let failed = std::panic::catch_unwind(|| {
        let _alone = alone::<OverCupti>();
        let _tracer = arm::<OverCupti>(ALL, SHAPE);
        std::panic::resume_unwind(Box::new("on purpose"))
    });
    assert!(failed.is_err());
    let _alone = alone::<Plain>();
    let mut tracer = arm::<Plain>(ALL, SHAPE);
    disarm::<Plain>(&mut tracer);
}

/// What it submitted may have ended, and be in a buffer that the flush leaves out.
#[test]
fn a_flush_reaches_no_further_than_the_launch_that_is_under_way() {
    let _alone = alone::<Plain>();
    let mut tracer = arm::<Plain>(ALL, SHAPE);
    let under_way = plain::enters_only();
    let before = tracer.flushes().len();
    tracer.until("flushes", |it| it.flushes().len() >= before + 3);
    // The first may have begun before the launch did.
    let meanwhile: Vec<u64> = tracer.flushes()[before + 1..].iter().map(|it| it.began).collect();
    plain::returns_only(Some(under_way));
    let after = tracer.flushes().len();
    tracer.until("later flushes", |it| it.flushes().len() >= after + 2 && !it.launches().is_empty());
    let start = tracer.launches()[0].start;
    assert!(meanwhile.iter().all(|it| *it <= start), "{meanwhile:?} {start}");
    assert!(tracer.flushes().last().unwrap().began > start);
    disarm::<Plain>(&mut tracer);
}

/// It may have read the clock, and not have written its record yet.
#[test]
fn a_flush_reaches_no_further_than_a_thread_that_is_held_up_inside() {
    let _alone = alone::<Plain>();
    let mut tracer = arm::<Plain>(ALL, SHAPE);
    let before = tracer.flushes().len();
    tracer.until("flushes", |it| it.flushes().len() >= before + 2);
    let seen_outside = tracer.flushes().last().unwrap().began;
    let mut meanwhile = Vec::new();
    plain::agent().unwrap().guarded(|| {
        let before = tracer.flushes().len();
        tracer.until("flushes meanwhile", |it| it.flushes().len() >= before + 3);
        // The first may have begun before.
        meanwhile = tracer.flushes()[before + 1..].iter().map(|it| it.began).collect();
    });
    assert!(meanwhile.iter().all(|it| *it >= seen_outside && *it == meanwhile[0]), "{seen_outside} {meanwhile:?}");
    tracer.until("later flushes", |it| it.flushes().last().unwrap().began > meanwhile[0]);
    disarm::<Plain>(&mut tracer);
}

/// The simulated backend only records kernels.
#[test]
fn a_launch_that_is_under_way_when_we_arm_is_outside() {
    let _alone = alone::<Plain>();
    let mut tracer = arm::<Plain>(ALL, SHAPE);
    let earlier = plain::returns_only(None);
    let later = Plain::launch(c"_Z1fv", 7, 0);
    plain::returns_only(Some(later));
    tracer.until("both launches", |it| it.launches().len() == 2);
    let all = tracer.launches();
    let flags = |id| all.iter().find(|it| it.correlation == id).map(|it| it.flags & Launch::OUTSIDE);
    assert_eq!((flags(earlier), flags(later)), (Some(Launch::OUTSIDE), Some(0)));
    let third = Plain::launch(c"_Z1fv", 7, 0);
    tracer.until("the third", |it| it.launches().iter().any(|it| it.correlation == third));
    assert_eq!(tracer.launches().len(), 3, "the runtime's return is none besides the driver's call inside");
    disarm::<Plain>(&mut tracer);
}

#[test]
fn a_runs_memory_is_given_back_when_nobody_is_inside() {
    let _alone = alone::<Plain>();
    let regions = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|it| it.contains("/memfd:")).count()
    };
    let before = regions();
    let mut tracer = arm::<Plain>(ALL, SHAPE);
    let agent = plain::agent().unwrap();
    let (comes_in, is_inside) = std::sync::mpsc::channel();
    let (says, may_leave) = std::sync::mpsc::channel::<()>();
    let inside = std::thread::spawn(move || {
        assert!(agent.guarded(|| {
            comes_in.send(()).unwrap();
            may_leave.recv().unwrap();
            agent.count_unexpected();
        }));
    });
    is_inside.recv().unwrap();
    disarm::<Plain>(&mut tracer);
    assert!(regions() >= before + 2, "the region is there, in the tracer and in us: a thread is inside");
    says.send(()).unwrap();
    inside.join().unwrap();
    assert_eq!(tracer.lost(Lost::Unexpected), 1, "what it did inside was no harm");
    tracer.until("closing", |_| !agent.guarded(|| ()));

    Plain::reset();
    let mut again = arm::<Plain>(ALL, SHAPE);
    let armed = regions();
    disarm::<Plain>(&mut again);
    again.until("giving back", |_| regions() < armed);
}

#[test]
fn what_the_backend_cannot_serve_is_refused_by_name() {
    let _alone = alone::<Plain>();
    let dormant = refused(
        |listener| {
            let refused = listener.arm(demand::MEMSETS, SHAPE).message();
            assert_eq!(refused.kind, REFUSED);
            assert!(refused.text.contains("cannot record everything requested"), "{}", refused.text);
        },
        Plain::world,
    );
    assert!(matches!(dormant, Dormant::Refused(_)));
}

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

fn nothing_is_recorded_before_the_tracer_says_so<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm_in::<M>(window::LATER, ALL, SHAPE);
    (0..3).for_each(|_| _ = M::launch(c"_Z1fv", 7, 0));
    assert_eq!((tracer.launches_made(), tracer.control().window.openings.load(SeqCst)), (0, 0));
    tracer.order(RECORD);
    tracer.until("the opening", |it| it.control().window.openings.load(SeqCst) == 1);
    tracer.until("the gate", |it| {
        M::launch(c"_Z1fv", 7, 0);
        it.launches().iter().any(|it| it.flags & Launch::OUTSIDE == 0)
    });
    assert!(tracer.control().window.open_since.load(SeqCst) > 0);
    disarm::<M>(&mut tracer);
    let told = tracer.control();
    assert!(told.window.nanos.load(SeqCst) > 0 && told.window.open_since.load(SeqCst) == 0);
    let inside = tracer.launches().iter().filter(|it| it.flags & Launch::OUTSIDE == 0).count();
    assert_eq!(tracer.launches_made(), inside as u64);
}

fn arm_at_first<M: Machine>(first: u64, demand: u64) -> Tracer {
    let listener = listen();
    let address = listener.address.clone();
    let region = memory(SHAPE.size(), true);
    let tracer = std::thread::spawn(move || listener.arm_at_first(first, demand, SHAPE, region, 0));
    xputrace_collector::arm(&address, Trust::RootAndThisUser, M::world).unwrap();
    let tracer = tracer.join().unwrap();
    assert_eq!(tracer.message().kind, ARMED);
    tracer
}

fn asks_for(launch: &Launch, demand: u64) -> bool {
    assert!(launch.demanded & demand::TOLD as u32 != 0, "each launch says what it was recorded under");
    demand::has_all(launch.demanded, demand::told(demand))
}

/// Launches until one is recorded under another demand.
fn launch_until<M: Machine>(tracer: &mut Tracer, demand: u64, asked: bool) {
    tracer.until("the switch", |it| {
        let launch = M::launch(c"_Z1fv", 7, 0);
        let launches = it.launches();
        launches.iter().any(|it| it.correlation == launch && asks_for(it, demand) == asked)
    });
}

fn stacks_are_taken_only_while_they_are_asked_for<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm_at_first::<M>(ALL, ALL | demand::STACKS);
    (0..3).for_each(|_| _ = M::launch(c"_Z1fv", 7, 0));
    assert!(tracer.launches().iter().all(|it| !asks_for(it, demand::STACKS)));
    tracer.switch(ALL | demand::STACKS);
    launch_until::<M>(&mut tracer, demand::STACKS, true);
    let during = (0..10).map(|_| M::launch(c"_Z1fv", 7, 0)).collect::<Vec<_>>();
    tracer.switch(ALL);
    launch_until::<M>(&mut tracer, demand::STACKS, false);
    let after = (0..20).map(|_| M::launch(c"_Z1fv", 7, 0)).collect::<Vec<_>>();
    disarm::<M>(&mut tracer);
    let launches = tracer.launches();
    let with_stack = |of: &[u32]| launches.iter().filter(|it| of.contains(&it.correlation) && it.stack != 0).count();
    assert_eq!((with_stack(&during), with_stack(&after)), (10, 0));
    assert!(launches.iter().all(|it| (it.stack != 0) == asks_for(it, demand::STACKS)));
    let taken = tracer.control().totals.stacks.load(SeqCst);
    assert_eq!(taken, launches.iter().filter(|it| it.stack != 0).count() as u64, "none was taken in vain");
}

/// Sets a flag when it is dropped, also if a test fails: threads that wait for it would never end.
struct Stop<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Returns the number of the collector's threads; those of other tests come and go.
fn n_own_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.map(name).filter(|it| it.starts_with("xputrace")).count()
}

fn a_thousand_switches_lose_nothing<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm_at_first::<M>(ALL, ALL | demand::STACKS);
    let n_descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let made = std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let launch = || {
            let mut n = 0;
            while !stop.load(SeqCst) {
                M::launch(c"_Z1fv", 7, 0);
                n += 1;
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
            n
        };
        let threads = [scope.spawn(launch), scope.spawn(launch)];
        let before = n_descriptors();
        for n in 0..1000 {
            tracer.switch(if n % 2 == 0 { ALL | demand::STACKS } else { ALL });
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        launch_until::<M>(&mut tracer, demand::STACKS, false);
        // The listener, the control thread, and the one that waits for a next run. That of the run before may just be ending.
        tracer.until("no more threads than at first", |_| n_own_threads() == 3);
        assert_eq!(n_descriptors(), before);
        stop.store(true, SeqCst);
        threads.into_iter().map(|it| it.join().unwrap()).sum::<u64>()
    });
    assert!(made > 0);
    disarm::<M>(&mut tracer);
    let launches = tracer.launches();
    let inside: Vec<&Launch> = launches.iter().filter(|it| it.flags & Launch::OUTSIDE == 0).collect();
    assert!(inside.len() as u64 >= made, "{} of {made}", inside.len());
    assert_eq!(tracer.launches_made(), inside.len() as u64);
    assert!(
        launches.iter().all(|it| (it.stack != 0) == (it.flags & Launch::OUTSIDE == 0 && asks_for(it, demand::STACKS)))
    );
    let [ring_full, unexpected] = [Lost::LaunchRingFull, Lost::Unexpected].map(|it| tracer.lost(it));
    assert_eq!((ring_full, unexpected), (0, 0));
}

/// Callbacks and kinds follow what is asked for, launches that are not asked for any more are outside, and one that is
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

fn stacks_begin_at_the_caller_and_are_told_once<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(ALL | demand::STACKS, SHAPE);
    for _ in 0..10 {
        M::launch(c"_Z1fv", 7, 0);
    }
    let launches = tracer.launches();
    assert!(launches.iter().all(|it| it.stack == launches[0].stack && it.stack != 0), "{launches:?}");
    let told = tracer.records().iter().filter(|it| matches!(it, Record::Stack { .. })).count();
    assert_eq!(told, 1);
    let frames = tracer.stack(launches[0].stack).unwrap();
    let framed = M::caller();
    assert!((framed..framed + 64).contains(&frames[0]), "{frames:x?}");
    assert!(frames.len() >= 2);
    disarm::<M>(&mut tracer);
}

/// Launches from four stacks, again and again, which a thread leaves in one run and another one comes to.
fn a_stack_that_comes_back_is_known_and_told_to_each_tracer<M: Machine>() {
    const PATHS: [u64; 5] = [3, 5, 13, 5, 0];
    const STACKS: usize = 4;
    const ROUNDS: usize = 50;
    for run in 0..3 {
        let _alone = alone::<M>();
        let mut tracer = arm::<M>(ALL | demand::STACKS, SHAPE);
        for threads in 1..=2 {
            let launch = || {
                (0..ROUNDS * PATHS.len()).for_each(|at| {
                    cupti::left(PATHS[at % PATHS.len()], 8, &mut || _ = M::launch(c"_Z1fv", 7, 0));
                });
            };
            std::thread::spawn(launch).join().unwrap();
            let launches = tracer.launches();
            assert_eq!(launches.len(), threads * ROUNDS * PATHS.len());
            let told = tracer.records().iter().filter(|it| matches!(it, Record::Stack { .. })).count();
            assert_eq!(told, STACKS, "run {run}");
            let first = |at: usize| launches[at].stack;
            for (at, launch) in launches.iter().enumerate() {
                assert_eq!(launch.stack, first(at % PATHS.len()), "launch {at} of run {run}");
            }
            let frames: Vec<_> = [0, 1, 2, 4].map(|at| tracer.stack(first(at)).unwrap()).into();
            let differ = |a: usize, b: usize| a == b || frames[a] != frames[b] && frames[a].len() == frames[b].len();
            assert!((0..STACKS).all(|a| (0..STACKS).all(|b| differ(a, b))), "{frames:x?}");
            assert_eq!(first(1), first(3));
        }
        disarm::<M>(&mut tracer);
    }
}

fn a_stack_that_is_not_the_threads_own_is_not_read<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(ALL | demand::STACKS, SHAPE);
    on_another_stack(|| {
        M::launch(c"_Z1fv", 7, 0);
    });
    let launches = tracer.launches();
    // It has a stack that says so, and no frames.
    assert_ne!(launches[0].stack, 0);
    assert_eq!(launches[0].flags & Launch::NO_STACK, 0);
    disarm::<M>(&mut tracer);
}

/// Runs `run` on memory that is no thread's stack, as coroutines do.
fn on_another_stack<F: FnOnce()>(run: F) {
    extern "C" fn enter<F: FnOnce()>(run: *mut Option<F>) {
        unsafe { (*run).take().unwrap()() }
    }
    let mut memory = vec![0u128; 1 << 16];
    let mut run = Some(run);
    let top = unsafe { memory.as_mut_ptr().add(memory.len()) };
    unsafe {
        core::arch::asm!(
            "mov r12, rsp", "mov rsp, {top}", "call {enter}", "mov rsp, r12",
            out("r12") _, top = in(reg) top, enter = in(reg) enter::<F> as extern "C" fn(*mut Option<F>),
            in("rdi") &raw mut run, clobber_abi("C"),
            options(nostack),
        );
    }
}

fn the_end_of_a_launch_is_read_where_it_is_asked_for<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(demand::LAUNCHES | demand::ENDS, SHAPE);
    M::launch(c"_Z1fv", 7, 0);
    assert!(tracer.launches().iter().all(|it| it.start < it.end));
    disarm::<M>(&mut tracer);
}

fn stream_ids_are_asked_once_until_a_stream_is_made<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(ALL | demand::STREAMS, SHAPE);
    for _ in 0..5 {
        M::launch(c"_Z1fv", 7, 0);
    }
    assert_eq!(M::stream_questions(), 1);
    M::create_stream();
    M::launch(c"_Z1fv", 7, 0);
    assert!(M::stream_questions() >= 2);
    assert!(tracer.launches().iter().all(|it| it.stream == 107));
    disarm::<M>(&mut tracer);
}

fn the_marker_gets_the_words_and_gives_the_tag<M: Machine>() {
    static SEEN: Mutex<Vec<[u64; WORDS]>> = Mutex::new(Vec::new());
    static TAGS: Mutex<usize> = Mutex::new(0);
    extern "C" fn handler(words: *const u64, slot: u64) {
        let words = unsafe { words.cast::<[u64; WORDS]>().read() };
        let mut seen = SEEN.lock().unwrap();
        if seen.len() == 1 {
            let slots = *TAGS.lock().unwrap() as *mut u64;
            unsafe { slots.add(slot as usize * 2 + 1).write(42) };
            unsafe { slots.add(slot as usize * 2).write(1) };
        }
        seen.push(words);
    }
    let _alone = alone::<M>();
    // A static in a generic function is shared by all machines.
    SEEN.lock().unwrap().clear();
    let mut tracer = arm::<M>(ALL | demand::MARKER | demand::STREAMS, SHAPE);
    *TAGS.lock().unwrap() = tracer.tags as usize;
    put_at_marker(Some(handler));
    for _ in 0..3 {
        M::launch(c"_Z1fv", 7, 0);
    }
    put_at_marker(None);
    let launches = tracer.launches();
    let tags: Vec<_> = launches.iter().map(|it| (it.flags & Launch::TAGGED != 0, it.tag)).collect();
    assert_eq!(tags, [(false, 0), (true, 42), (false, 0)]);
    let words = SEEN.lock().unwrap()[1];
    assert_eq!(words[word::LAUNCH_START], launches[1].start);
    assert_eq!(words[word::LAUNCH_TID], u64::from(launches[1].tid));
    assert_eq!(words[word::LAUNCH_GRID..][..3], [4, 2, 1]);
    assert_eq!(words[word::LAUNCH_STREAM], 107);
    let symbol = unsafe { std::ffi::CStr::from_ptr(words[word::LAUNCH_SYMBOL] as *const _) };
    assert_eq!(symbol, c"_Z1fv");
    disarm::<M>(&mut tracer);
}

fn nothing_is_allocated_at_a_launch<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(ALL | demand::STACKS | demand::STREAMS | demand::MARKER, SHAPE);
    (0..100).for_each(|_| M::launch_quietly());
    let before = ALLOCATIONS.get();
    (0..1000).for_each(|_| M::launch_quietly());
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert_eq!(tracer.launches().len(), 1100);
    disarm::<M>(&mut tracer);
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
        let mut tracer = arm::<OverCupti>(wanted, Shape { rings: 4, ring_bytes: 1 << 20 });
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

fn four_threads_lose_nothing<M: Machine>() {
    let _alone = alone::<M>();
    const EACH: usize = 5000;
    // One ring has room for everything: consecutive threads may share it, and reading may be slow.
    let mut tracer = arm::<M>(demand::LAUNCHES | demand::STACKS, Shape { rings: 8, ring_bytes: 1 << 22 });
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(|| {
                (0..EACH).for_each(|_| {
                    M::launch(c"_Z1fv", 7, 0);
                })
            })
        })
        .collect();
    let mut done = false;
    while !done {
        done = threads.iter().all(|it| it.is_finished());
        tracer.drain();
    }
    let mut correlations: Vec<_> = tracer.launches().iter().map(|it| it.correlation).collect();
    correlations.sort_unstable();
    correlations.dedup();
    assert_eq!(correlations.len(), 4 * EACH);
    tracer.until("the totals", |it| it.launches_made() == 4 * EACH as u64);
    disarm::<M>(&mut tracer);
    let lost: Vec<_> = tracer.control().lost.iter().map(|it| it.load(SeqCst)).collect();
    assert_eq!(lost, [0; Lost::COUNT]);
}

fn a_ring_is_used_again_when_its_thread_ends<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(demand::LAUNCHES, SHAPE);
    for _ in 0..50 {
        std::thread::spawn(|| M::launch(c"_Z1fv", 7, 0)).join().unwrap();
    }
    assert_eq!(tracer.launches().len(), 50);
    assert_eq!(tracer.lost(Lost::NoRing), 0);
    assert!(tracer.control().rings_claimed.load(SeqCst) <= 4);
    assert!(tracer.rings_owned() <= 3);
    disarm::<M>(&mut tracer);
}

fn more_threads_than_rings_are_counted_and_kernels_still_come<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(ALL, Shape { rings: 4, ring_bytes: 1 << 16 });
    let barrier = std::sync::Barrier::new(6);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                M::launch(c"_Z1fv", 7, 0);
                barrier.wait();
            });
        }
    });
    tracer.until("the kernels", |it| it.kernels().len() == 6);
    let recorded = tracer.launches().len() as u64;
    assert!(recorded < 6);
    assert_eq!(recorded + tracer.lost(Lost::NoRing), 6);
    disarm::<M>(&mut tracer);
}

fn a_ring_that_is_too_small_counts_what_it_loses<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(demand::LAUNCHES, Shape { rings: 4, ring_bytes: 4096 });
    for _ in 0..200 {
        M::launch(c"_Z1fv", 7, 0);
    }
    let recorded = tracer.launches().len() as u64;
    assert!(recorded > 0 && recorded < 200);
    assert_eq!(recorded + tracer.lost(Lost::LaunchRingFull), 200);
    disarm::<M>(&mut tracer);
}

#[test]
fn what_cupti_lost_is_counted() {
    let _alone = alone::<OverCupti>();
    let mut tracer = arm::<OverCupti>(ALL, SHAPE);
    cupti::DROPPED.store(17, SeqCst);
    cupti::launch(c"_Z1fv", 7, 0);
    cupti::spoil_last_kernel();
    tracer.until("the kernel", |it| !it.kernels().is_empty() && it.lost(Lost::CuptiDropped) == 17);
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

fn many_kernels_come_through_a_small_ring_when_it_is_read<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(ALL, Shape { rings: 4, ring_bytes: 1 << 16 });
    for n in 0..20_000 {
        M::push_kernel(n, c"_Z1fv");
    }
    tracer.until("all kernels", |it| {
        it.drain();
        it.control().totals.activity(Activity::Kernel).records.load(SeqCst) == 20_000
    });
    assert_eq!(tracer.lost(Lost::ActivityRingFull), 0);
    tracer.until("all kernels", |it| it.kernels().len() == 20_000);
    disarm::<M>(&mut tracer);
}

fn a_killed_tracer_disarms_and_the_next_one_arms_again<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(ALL, SHAPE);
    M::launch(c"_Z1fv", 7, 0);
    tracer.until("the kernel", |it| !it.kernels().is_empty());
    drop(tracer.socket.take());
    tracer.until("leaving", |_| {
        M::launch(c"_Z1fv", 7, 0);
        M::times_let_go() == 1
    });
    assert!(!M::is_recording());
    let before = tracer.launches().len();
    M::launch(c"_Z1fv", 7, 0);
    assert_eq!(tracer.launches().len(), before, "nothing is recorded any more");
    // The old run releases the process shortly after it unsubscribed.
    tracer.until("letting go", |_| !is_armed::<M>());
    M::reset();
    let mut again = arm::<M>(ALL, SHAPE);
    M::launch(c"_Z1fv", 7, 0);
    again.until("the kernel", |it| !it.kernels().is_empty());
    assert_eq!(again.launches().len(), 1);
    disarm::<M>(&mut again);
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

fn a_forked_child_touches_nothing<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(ALL | demand::STACKS, SHAPE);
    M::launch(c"_Z1fv", 7, 0);
    let child = unsafe { libc::fork() };
    if child == 0 {
        M::launch(c"_Z1fv", 7, 0);
        std::thread::spawn(|| M::launch(c"_Z1fv", 7, 0)).join().unwrap();
        unsafe { libc::_exit(7) };
    }
    let mut status = 0;
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "status {status:x}");
    M::launch(c"_Z1fv", 7, 0);
    assert_eq!(tracer.launches().len(), 2);
    disarm::<M>(&mut tracer);
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
    xputrace_collector::arm(&address, Trust::RootAndThisUser, OverCupti::world).unwrap();
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

fn threads_and_mappings_have_names<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(ALL | demand::MAPPINGS, SHAPE);
    std::thread::Builder::new().name("launcher".into()).spawn(|| M::launch(c"_Z1fv", 7, 0)).unwrap().join().unwrap();
    let records = tracer.records();
    let comm =
        |it: &xputrace_wire::record::Thread| String::from_utf8_lossy(&it.comm).trim_end_matches('\0').to_string();
    let threads: Vec<_> = records
        .iter()
        .filter_map(|it| if let Record::Thread(it) = it { Some((it.tid, comm(it))) } else { None })
        .collect();
    assert!(threads.iter().any(|(_, comm)| comm == "launcher"), "{threads:?}");
    let own = std::fs::read_to_string("/proc/self/comm").unwrap();
    assert!(threads.contains(&(std::process::id(), own.trim().to_string())), "{threads:?}");
    let here = threads_and_mappings_have_names::<M> as fn() as usize as u64;
    let mapped = records.iter().any(|it| matches!(it, Record::Mapping { mapping, path } if (mapping.start..mapping.end).contains(&here) && !path.is_empty()));
    assert!(mapped);
    disarm::<M>(&mut tracer);
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
    xputrace_collector::arm(&address, Trust::RootAndThisUser, OverCupti::world).unwrap();
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

fn memory_that_could_shrink_is_refused<M: Machine>() {
    let _alone = alone::<M>();
    for (size, sealed) in [(SHAPE.size(), false), (SHAPE.size() - 4096, true)] {
        let dormant = refused(
            move |listener| {
                let tracer = listener.accept();
                assert_eq!(message(&tracer).kind, HELLO);
                drop(tracer);
                let _ = (size, sealed);
            },
            M::world,
        );
        assert_eq!(dormant, Dormant::NotWanted);
        let shape =
            xputrace_collector::agent::region::Region::map(std::os::fd::AsFd::as_fd(&memory(size, sealed)), SHAPE);
        assert!(shape.is_err());
    }
}

fn a_tracer_that_wants_nothing_or_says_nothing_leaves_it_dormant<M: Machine>() {
    let _alone = alone::<M>();
    let dormant = refused(
        |listener| {
            let socket = listener.accept();
            assert_eq!(message(&socket).kind, HELLO);
            socket.send(&Message::new(DORMANT, &[], ""));
            std::thread::sleep(Duration::from_millis(50));
        },
        M::world,
    );
    assert_eq!(dormant, Dormant::NotWanted);
    let silent = listen();
    assert_eq!(xputrace_collector::arm(&silent.address, Trust::RootAndThisUser, M::world), Err(Dormant::NotWanted));
    let nobody = xputrace_collector::arm("@xputrace-nobody-is-there", Trust::RootAndThisUser, || {
        panic!("nothing is looked for")
    });
    assert!(matches!(nobody, Err(Dormant::NoTracer(_))));
    assert!(matches!(xputrace_collector::arm("", Trust::RootAndThisUser, M::world), Err(Dormant::NoTracer(_))));
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
    let mut tracer = arm::<OverCupti>(ALLOCATIONS_ALONE, Shape { rings: 3, ring_bytes: 4096 });
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
