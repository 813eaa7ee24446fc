//! What any backend's collector does in this process, between a simulated machine and a simulated tracer.

pub mod counting;
pub mod machine;
pub mod tracer;

pub use counting::ALLOCATIONS;
use machine::{Machine, left};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tracer::{Listener, Tracer, listen, memory, message, put_at_marker};
use xputrace_agent::rendezvous::Trust;
use xputrace_agent::{Dormant, World};
use xputrace_wire::events::{Activity, Call};
use xputrace_wire::marker::{WORDS, word};
use xputrace_wire::message::{ARMED, BYE, DISARM, DORMANT, HELLO, Message, RECORD, demand, window};
use xputrace_wire::record::{Launch, Record, UNKNOWN};
use xputrace_wire::region::{Lost, RegionShape};

pub const ALL: u64 = demand::LAUNCHES | demand::KERNELS | demand::OUTERMOST;

pub const SHAPE: RegionShape = RegionShape { rings: 8, ring_bytes: 1 << 20 };

/// Runs one test at a time: CUPTI and the collector are per process. The run of a test that failed is ended first.
pub fn alone<M: Machine>() -> MutexGuard<'static, Option<fn()>> {
    static END_OF_LAST: Mutex<Option<fn()>> = Mutex::new(None);
    let mut guard = END_OF_LAST.lock().unwrap_or_else(|it| it.into_inner());
    if let Some(end) = guard.replace(end_run::<M>) {
        end();
    }
    M::reset();
    guard
}

/// Waits until the run of a tracer that is gone has ended: the library is let go within calls.
pub fn end_run<M: Machine>() {
    let until = Instant::now() + Duration::from_secs(60);
    while is_armed::<M>() {
        assert!(Instant::now() < until, "a test that failed has left the collector armed");
        M::launch(c"_Z4last", 1, 0);
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn is_armed<M: Machine>() -> bool {
    xputrace_agent::arm("", Trust::RootAndThisUser, M::world) == Err(Dormant::AlreadyArmed)
}

pub fn arm<M: Machine>(demand: u64, shape: RegionShape) -> Tracer {
    arm_in::<M>(0, demand, shape)
}

pub fn arm_in<M: Machine>(window: u64, demand: u64, shape: RegionShape) -> Tracer {
    let listener = listen();
    let address = listener.address.clone();
    let tracer = std::thread::spawn(move || listener.arm_in(window, demand, shape));
    xputrace_agent::arm(&address, Trust::RootAndThisUser, M::world).unwrap();
    let tracer = tracer.join().unwrap();
    let armed = tracer.message();
    assert_eq!(armed.kind, ARMED, "{}", armed.text);
    tracer
}

/// Disarms while CUDA calls continue, so that CUPTI can be unloaded.
pub fn disarm<M: Machine>(tracer: &mut Tracer) -> Message {
    tracer.order(DISARM);
    tracer.until("leaving", |_| {
        M::launch(c"_Z4last", 1, 0);
        M::times_let_go() == 1
    });
    tracer.message()
}

pub fn refused(within: impl FnOnce(Listener) + Send + 'static, world: impl FnOnce() -> World) -> Dormant {
    let listener = listen();
    let address = listener.address.clone();
    let thread = std::thread::spawn(move || within(listener));
    let dormant = xputrace_agent::arm(&address, Trust::RootAndThisUser, world).unwrap_err();
    thread.join().unwrap();
    dormant
}

pub fn a_launch_and_its_kernel_are_told<M: Machine>() {
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

pub fn a_graph_has_many_kernels<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(ALL, SHAPE);
    let graph = M::launch_graph(3);
    tracer.until("the kernels", |it| it.kernels().len() == 3);
    assert!(tracer.kernels().iter().all(|it| it.correlation == graph));
    assert_eq!((tracer.launches()[0].launch_kind, tracer.launches()[0].symbol), (Launch::GRAPH, 0));
    disarm::<M>(&mut tracer);
    assert_eq!(tracer.control().totals.call(Call::Graph).made.load(SeqCst), 1);
}

pub fn kernels_without_times_are_counted<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(demand::KERNELS, SHAPE);
    M::push_kernel(1, c"_Z1fv");
    M::spoil_last_kernel();
    tracer.until("the kernel", |it| it.lost(Lost::NoTimestamps) == 1 && !it.kernels().is_empty());
    disarm::<M>(&mut tracer);
}

pub fn nothing_is_recorded_before_the_tracer_says_so<M: Machine>() {
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

pub fn arm_at_first<M: Machine>(first: u64, demand: u64) -> Tracer {
    let listener = listen();
    let address = listener.address.clone();
    let region = memory(SHAPE.size(), true);
    let tracer = std::thread::spawn(move || listener.arm_at_first(first, demand, SHAPE, region, 0));
    xputrace_agent::arm(&address, Trust::RootAndThisUser, M::world).unwrap();
    let tracer = tracer.join().unwrap();
    assert_eq!(tracer.message().kind, ARMED);
    tracer
}

pub fn asks_for(launch: &Launch, demand: u64) -> bool {
    assert!(launch.demanded & demand::TOLD as u32 != 0, "each launch says what it was recorded under");
    demand::has_all(launch.demanded, demand::recorded_under(demand))
}

/// Launches until one is recorded under another demand.
pub fn launch_until<M: Machine>(tracer: &mut Tracer, demand: u64, asked: bool) {
    tracer.until("the switch", |it| {
        let launch = M::launch(c"_Z1fv", 7, 0);
        let launches = it.launches();
        launches.iter().any(|it| it.correlation == launch && asks_for(it, demand) == asked)
    });
}

pub fn stacks_are_taken_only_while_they_are_asked_for<M: Machine>() {
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
pub struct Stop<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Returns the number of the collector's threads; those of other tests come and go.
pub fn n_own_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.map(name).filter(|it| it.starts_with("xputrace")).count()
}

pub fn a_thousand_switches_lose_nothing<M: Machine>() {
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

pub fn stacks_begin_at_the_caller_and_are_told_once<M: Machine>() {
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
pub fn a_stack_that_comes_back_is_known_and_told_to_each_tracer<M: Machine>() {
    const PATHS: [u64; 5] = [3, 5, 13, 5, 0];
    const STACKS: usize = 4;
    const ROUNDS: usize = 50;
    for run in 0..3 {
        let _alone = alone::<M>();
        let mut tracer = arm::<M>(ALL | demand::STACKS, SHAPE);
        for threads in 1..=2 {
            let launch = || {
                (0..ROUNDS * PATHS.len()).for_each(|at| {
                    left(PATHS[at % PATHS.len()], 8, &mut || _ = M::launch(c"_Z1fv", 7, 0));
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

pub fn a_stack_that_is_not_the_threads_own_is_not_read<M: Machine>() {
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
pub fn on_another_stack<F: FnOnce()>(run: F) {
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

pub fn the_end_of_a_launch_is_read_where_it_is_asked_for<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(demand::LAUNCHES | demand::ENDS, SHAPE);
    M::launch(c"_Z1fv", 7, 0);
    assert!(tracer.launches().iter().all(|it| it.start < it.end));
    disarm::<M>(&mut tracer);
}

pub fn stream_ids_are_asked_once_until_a_stream_is_made<M: Machine>() {
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

pub fn the_marker_gets_the_words_and_gives_the_tag<M: Machine>() {
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

pub fn nothing_is_allocated_at_a_launch<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(ALL | demand::STACKS | demand::STREAMS | demand::MARKER, SHAPE);
    (0..100).for_each(|_| M::launch_quietly());
    let before = ALLOCATIONS.get();
    (0..1000).for_each(|_| M::launch_quietly());
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert_eq!(tracer.launches().len(), 1100);
    disarm::<M>(&mut tracer);
}

pub fn four_threads_lose_nothing<M: Machine>() {
    let _alone = alone::<M>();
    const EACH: usize = 5000;
    // One ring has room for everything: consecutive threads may share it, and reading may be slow.
    let mut tracer = arm::<M>(demand::LAUNCHES | demand::STACKS, RegionShape { rings: 8, ring_bytes: 1 << 22 });
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

pub fn a_ring_is_used_again_when_its_thread_ends<M: Machine>() {
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

pub fn more_threads_than_rings_are_counted_and_kernels_still_come<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(ALL, RegionShape { rings: 4, ring_bytes: 1 << 16 });
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

pub fn a_ring_that_is_too_small_counts_what_it_loses<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(demand::LAUNCHES, RegionShape { rings: 4, ring_bytes: 4096 });
    for _ in 0..200 {
        M::launch(c"_Z1fv", 7, 0);
    }
    let recorded = tracer.launches().len() as u64;
    assert!(recorded > 0 && recorded < 200);
    assert_eq!(recorded + tracer.lost(Lost::LaunchRingFull), 200);
    disarm::<M>(&mut tracer);
}

pub fn many_kernels_come_through_a_small_ring_when_it_is_read<M: Machine>() {
    let _alone = alone::<M>();
    let mut tracer = arm::<M>(ALL, RegionShape { rings: 4, ring_bytes: 1 << 16 });
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

pub fn a_killed_tracer_disarms_and_the_next_one_arms_again<M: Machine>() {
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

pub fn a_forked_child_touches_nothing<M: Machine>() {
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

pub fn threads_and_mappings_have_names<M: Machine>() {
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

pub fn memory_that_could_shrink_is_refused<M: Machine>() {
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
        let shape = xputrace_agent::region::Region::map(std::os::fd::AsFd::as_fd(&memory(size, sealed)), SHAPE);
        assert!(shape.is_err());
    }
}

pub fn a_tracer_that_wants_nothing_or_says_nothing_leaves_it_dormant<M: Machine>() {
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
    assert_eq!(xputrace_agent::arm(&silent.address, Trust::RootAndThisUser, M::world), Err(Dormant::NotWanted));
    let nobody =
        xputrace_agent::arm("@xputrace-nobody-is-there", Trust::RootAndThisUser, || panic!("nothing is looked for"));
    assert!(matches!(nobody, Err(Dormant::NoTracer(_))));
    assert!(matches!(xputrace_agent::arm("", Trust::RootAndThisUser, M::world), Err(Dormant::NoTracer(_))));
}

/// Runs each of these tests on a machine: `suite!{Machine}`.
#[macro_export]
macro_rules! suite {
    ($Machine:ty) => {
        $crate::suite! { $Machine;
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
    };
    ($Machine:ty; $($name:ident)*) => {
        mod with_any_backend {
            $(#[test] fn $name() { $crate::suite::$name::<$Machine>(); })*
        }
    };
}
