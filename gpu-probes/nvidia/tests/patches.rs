//! Patches of machine code: the collector between a simulated Sanitizer API and a simulated tracer.
#![allow(
    dead_code,
    clippy::undocumented_unsafe_blocks,
    unsafe_op_in_unsafe_fn,
    unreachable_pub,
    reason = "tests play the API and the tracer with the same raw calls"
)]

#[path = "fake/sanitizer.rs"]
mod sanitizer;
#[path = "../../agent/tests/suite/tracer.rs"]
mod tracer;

use sanitizer::{Kernel, launch_graph, word};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tracer::{Tracer, listen, memory};
use xputrace_agent::Backend;
use xputrace_agent::rendezvous::{Received, Trust};
use xputrace_agent::{Dormant, World};
use xputrace_nvidia::sanitizer::SanitizerBackend;
use xputrace_wire::device::{
    self, CHOICES, Choice, DeviceCode, ImageOutcome, Parameter, Parameters, PatchPoint, PatchedKernel, Patches,
    Unprobed, kernel_words, twin_status, twin_symbol,
};
use xputrace_wire::events::Realtime;
use xputrace_wire::message::{
    ARM, ARMED, BYE, COMING, DISARM, DORMANT, HELLO, IMAGE, Message, READ_DEVICE, REFUSED, TWIN, demand,
};
use xputrace_wire::record::Launch;
use xputrace_wire::region::{Lost, PAGE, RegionShape};
use xputrace_wire::times::MOST_GROUPS;

const SHAPE: RegionShape = RegionShape { rings: 8, ring_bytes: 1 << 20 };
/// Kernels with conditions that a process has at a time.
const MOST_NUMBERS: usize = 1 << 14;
const BLOCK: device::DeviceRegionShape = device::DeviceRegionShape { block_bytes: 64, ring: None };
const CONTEXT: u64 = 0x1_0000;
const ALL: u64 = demand::LAUNCHES | demand::KERNELS | demand::PATCHED_KERNELS;

/// Runs one test at a time: the API and the collector are per process.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(|it| it.into_inner());
    sanitizer::reset();
    guard
}

fn backend() -> Result<Box<dyn Backend>, String> {
    let backend = unsafe { SanitizerBackend::of_symbols(sanitizer::symbol, sanitizer::driver()) };
    backend.map(|it| Box::new(it) as Box<dyn Backend>)
}

struct Run {
    tracer: Tracer,
    block: *const u8,
    _memory: OwnedFd,
    /// Those that handlers of kernels read.
    parameters: Parameters,
}

unsafe impl Sync for Run {}

impl Run {
    fn new(asked: u64) -> Self {
        Self::of(asked, false)
    }

    /// Of handlers that read the GPU's clock, or don't.
    fn of(asked: u64, reads_clock: bool) -> Self {
        let listener = listen();
        let address = listener.address.clone();
        let device = memory(BLOCK.size(), true);
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let block = unsafe {
            libc::mmap(std::ptr::null_mut(), BLOCK.size(), rights, libc::MAP_SHARED, device.as_raw_fd(), 0).cast::<u8>()
        };
        unsafe { &*block.cast::<device::Control>() }.reads_clock.store(reads_clock.into(), SeqCst);
        let asked = asked | demand::DEVICE | demand::PATCHES;
        let tracer = std::thread::scope(|scope| {
            let tracer = scope.spawn(|| {
                let socket = listener.accept();
                let hello = tracer::message(&socket);
                assert_eq!((hello.kind, hello.words[4], hello.text.as_str()), (HELLO, 1, "/fake\n"));
                // It looks at the program's kernels before it says that they are to be patched.
                (0..2).for_each(|_| assert!(socket.send(&Message::new(COMING, &[], ""))));
                let (region, tags) = (memory(SHAPE.size(), true), memory(PAGE, false));
                let words = [asked, SHAPE.rings.into(), SHAPE.ring_bytes.into(), 10, 0, 0, 0, asked];
                let order = Message::new(ARM, &words, format!("\n\n\n{}\n", BLOCK.to_text()));
                assert!(socket.send_with(&order, &[region.as_fd(), device.as_fd()]));
                Tracer::new(socket, hello, SHAPE, region, tags)
            });
            let world = || World { patches: Some(backend), library: "/fake".into(), ..World::default() };
            let arm = || xputrace_agent::arm(&address, Trust::RootAndThisUser, world);
            std::iter::repeat_with(arm).find(|it| *it != Err(Dormant::AlreadyArmed)).unwrap().unwrap();
            tracer.join().unwrap()
        });
        assert_eq!(tracer.message().kind, ARMED);
        sanitizer::create_context(CONTEXT);
        Run { tracer, block, _memory: device, parameters: Parameters::default() }
    }

    fn control(&self) -> &device::Control {
        unsafe { &*self.block.cast() }
    }

    /// Asks for a copy, which has this number; returns the generation of the one that is there then.
    fn copy(&mut self, number: u64) -> u64 {
        let control = unsafe { &*self.block.cast::<device::Control>() };
        self.tracer.socket.as_ref().unwrap().send(&Message::new(READ_DEVICE, &[number], ""));
        self.tracer.until("the copy", |_| control.answered.load(SeqCst) == number);
        control.slots[0].generation.load(SeqCst)
    }

    /// Loads a module, while the tracer answers that these kernels have handlers.
    fn load(&self, module: u64, kernels: &[&str]) {
        self.load_with(module, kernels, Choice::default(), [5, 0, 0, 0, 0, 0, 0, 0]);
    }

    /// The same; the handlers have conditions.
    fn load_with(&self, module: u64, kernels: &[&str], conditions: Choice, handlers: [u64; CHOICES]) {
        let kernel = |it: &&str| PatchedKernel {
            symbol: (*it).to_owned(),
            name: 71,
            conditions,
            handlers,
            parameters: self.parameters,
            reading: if self.parameters.iter().any(|it| it.bytes > 0) { u8::MAX } else { 0 },
        };
        let patches = Patches {
            code: vec![1],
            points: vec![PatchPoint::Entry, PatchPoint::Exit],
            kernels: kernels.iter().map(kernel).collect(),
        };
        let cubin = cubin();
        std::thread::scope(|scope| {
            scope.spawn(|| self.answer(&DeviceCode::Patches(patches).encode()));
            sanitizer::load(CONTEXT, module, &cubin);
        });
    }

    fn answer(&self, patches: &[u8]) {
        let socket = self.tracer.socket.as_ref().unwrap();
        let Received::Message(message, _) = socket.receive(Duration::from_secs(120)) else { panic!("no image") };
        assert_eq!(message.kind, IMAGE);
        let memory = memory(patches.len(), true);
        unsafe { libc::pwrite(memory.as_raw_fd(), patches.as_ptr().cast(), patches.len(), 0) };
        let words = [message.words[0], twin_status::WOVEN, patches.len() as u64];
        assert!(socket.send_with(&Message::new(TWIN, &words, ""), &[memory.as_fd()]));
    }

    /// Returns the kernels once there are so many: their names, times and launches.
    fn kernels(&mut self, n: usize) -> Vec<(String, u64, u32)> {
        self.tracer.until("kernels", |it| it.kernels().len() >= n);
        let all = self.tracer.kernels();
        assert_eq!(all.len(), n);
        let named = |it: &xputrace_wire::record::Kernel| {
            (self.tracer.name(it.symbol).unwrap_or_default(), it.end.since(it.start), it.correlation)
        };
        all.iter().map(named).collect()
    }

    fn end(self) {
        self.tracer.order(DISARM);
        assert_eq!(self.tracer.message().kind, BYE);
    }
}

/// An ELF file with one section, of nothing.
fn cubin() -> Vec<u8> {
    let mut bytes = vec![0; 128];
    bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    bytes[18] = 190;
    bytes[40] = 64;
    bytes[52] = 64;
    bytes[58] = 64;
    bytes[60] = 1;
    bytes
}

const FIRST: Kernel = Kernel { context: CONTEXT, module: 0x200, function: 0x2100, name: c"first" };
const OTHER: Kernel = Kernel { function: 0x2200, name: c"other", ..FIRST };
const UNPATCHED: Kernel = Kernel { module: 0x300, function: 0x3100, name: c"unpatched", ..FIRST };

#[test]
fn a_process_says_why_it_cannot_be_patched() {
    let listener = listen();
    let address = listener.address.clone();
    let tracer = std::thread::spawn(move || {
        let socket = listener.accept();
        let hello = tracer::message(&socket);
        socket.send(&Message::new(DORMANT, &[], ""));
        hello
    });
    let no_patches = || Some("no Sanitizer API".to_owned());
    let world =
        || World { patches: Some(backend), no_patches: no_patches(), library: "/fake".into(), ..World::default() };
    let arm = || xputrace_agent::arm(&address, Trust::RootAndThisUser, world);
    let armed = std::iter::repeat_with(arm).find(|it| *it != Err(Dormant::AlreadyArmed));
    assert_eq!(armed, Some(Err(Dormant::NotWanted)));
    let hello = tracer.join().unwrap();
    assert_eq!((hello.kind, hello.words[4], hello.text.as_str()), (HELLO, 0, "/fake\nno Sanitizer API"));
}

/// Looking for it may end the process.
#[test]
fn what_patches_is_not_looked_for_where_it_is_known_not_to_be_found() {
    static WAS_LOOKED_FOR: AtomicBool = AtomicBool::new(false);
    fn look() -> Result<Box<dyn Backend>, String> {
        WAS_LOOKED_FOR.store(true, SeqCst);
        Err("it was looked for".to_owned())
    }
    let _alone = alone();
    let listener = listen();
    let address = listener.address.clone();
    let tracer = std::thread::spawn(move || listener.arm(demand::PATCHES, SHAPE).message());
    let no_patches = || Some("a filter forbids it".to_owned());
    let world = || World { patches: Some(look), no_patches: no_patches(), ..World::default() };
    let arm = || xputrace_agent::arm(&address, Trust::RootAndThisUser, world);
    let armed = std::iter::repeat_with(arm).find(|it| *it != Err(Dormant::AlreadyArmed));
    let refused = tracer.join().unwrap();
    assert_eq!((refused.kind, refused.text.as_str()), (REFUSED, "a filter forbids it"));
    assert!(matches!(armed, Some(Err(Dormant::Refused(_)))) && !WAS_LOOKED_FOR.load(SeqCst), "{armed:?}");
}

#[test]
fn kernels_have_the_times_that_patches_took_and_their_launch() {
    let _alone = alone();
    let mut run = Run::new(ALL);
    run.load(0x200, &["first"]);
    assert_eq!(run.control().images[ImageOutcome::Twinned as usize].load(SeqCst), 1);
    let words = FIRST.launch(1);
    assert_eq!([kernel_words::NAME, kernel_words::HANDLERS].map(|it| word(words, it)), [71, 5]);
    let words = OTHER.launch(2);
    assert_eq!(word(words, kernel_words::HANDLERS), 0, "times alone");
    assert_eq!(UNPATCHED.launch(3), 0);
    let kernels = run.kernels(3);
    let mut launches: Vec<Launch> = run.tracer.launches();
    launches.sort_by_key(|it| it.correlation);
    let correlations: Vec<u32> = launches.iter().map(|it| it.correlation).collect();
    let find = |name: &str| kernels.iter().find(|it| it.0 == name).map(|it| (it.1, it.2));
    assert_eq!(find(&twin_symbol("first")), Some((50, correlations[0])));
    assert_eq!(find("other"), Some((50, correlations[1])));
    assert_eq!(find("unpatched"), Some((0, correlations[2])));
    assert_eq!(run.tracer.lost(Lost::NoTimestamps), 1, "its module was not patched");
    assert_eq!(run.control().slots[0].swapped.load(SeqCst), 1);
    run.end();
}

#[test]
fn a_launch_whose_group_is_in_use_has_handlers_and_no_times() {
    let _alone = alone();
    let mut run = Run::new(ALL);
    run.load(0x200, &["first"]);
    let running = FIRST.begin(1);
    let late = FIRST.begin(1 + MOST_GROUPS as u64);
    assert_eq!([running, late].map(|it| word(it, kernel_words::HANDLERS)), [5, 5]);
    assert_eq!(word(late, kernel_words::TIMES), 0);
    let durations = |run: &mut Run, n| {
        let mut all: Vec<u64> = run.kernels(n).iter().map(|it| it.1).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(durations(&mut run, 1), [0]);
    sanitizer::run(running, 1);
    assert_eq!(durations(&mut run, 2), [0, 50]);
    let running = FIRST.begin(2);
    assert_ne!(word(running, kernel_words::TIMES), 0);
    sanitizer::end_context(CONTEXT);
    assert_eq!(durations(&mut run, 3), [0, 0, 50], "it did not end");
    assert_eq!(run.tracer.lost(Lost::NoTimestamps), 2);
    run.end();
}

#[test]
fn nodes_of_graphs_have_their_times_at_each_launch() {
    let _alone = alone();
    let mut run = Run::new(ALL);
    run.load(0x200, &["first"]);
    for _ in 0..3 {
        launch_graph(&[(FIRST, 10), (OTHER, 11), (FIRST, 12)]);
    }
    let kernels = run.kernels(9);
    assert!(kernels.iter().all(|it| it.1 == 50), "{kernels:?}");
    let mut launches: Vec<u32> = kernels.iter().map(|it| it.2).collect();
    launches.dedup();
    let graphs: Vec<u32> = run.tracer.launches().iter().map(|it| it.correlation).collect();
    assert_eq!((launches, graphs.len()), (graphs.clone(), 3));
    let nodes: Vec<(u64, bool)> = run.tracer.kernels().iter().map(|it| (it.graph_node, it.graph != 0)).collect();
    assert_eq!(nodes[..3], [(0x910a, true), (0x910b, true), (0x910c, true)]);
    run.end();
}

#[test]
fn the_launch_of_a_graph_that_fails_shifts_no_times() {
    let _alone = alone();
    let mut run = Run::new(ALL);
    run.load(0x200, &["first"]);
    launch_graph(&[(FIRST, 10)]);
    sanitizer::begin_graph(&[(FIRST, 10)], 1);
    launch_graph(&[(FIRST, 10)]);
    let kernels = run.kernels(2);
    let graphs: Vec<u32> = run.tracer.launches().iter().map(|it| it.correlation).collect();
    assert_eq!(kernels.iter().map(|it| (it.1, it.2)).collect::<Vec<_>>(), [(50, graphs[0]), (50, graphs[2])]);
    assert_eq!(run.tracer.lost(Lost::NoTimestamps), 0);
    run.end();
}

#[test]
fn kernels_that_can_not_be_numbered_have_no_handlers_and_it_is_said() {
    let _alone = alone();
    let run = Run::new(demand::LAUNCHES | demand::KERNELS);
    let conditions = Choice { conditions: [Some(0), None, None], holding: 0 };
    let names: Vec<String> = (0..MOST_NUMBERS + 1).map(|it| format!("k{it}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let load = |names: &[&str]| {
        run.load_with(0x200, names, conditions, [1; CHOICES]);
        [ImageOutcome::Twinned, ImageOutcome::TableFull].map(|it| run.control().images[it as usize].load(SeqCst))
    };
    assert_eq!(load(&names), [0, 1]);
    for twinned in 1..4 {
        assert_eq!(load(&names[..MOST_NUMBERS]), [twinned, 1], "they were given back");
        sanitizer::unload(CONTEXT, 0x200);
    }
    run.end();
}

#[test]
fn what_is_measured_replaces_a_guess_that_was_written_meanwhile() {
    let _alone = alone();
    const BEHIND: u64 = 5_000_000_000;
    sanitizer::BEHIND.store(BEHIND, SeqCst);
    sanitizer::LOADS_WAIT.store(true, SeqCst);
    let mut run = Run::of(ALL, true);
    run.load(0x200, &["first"]);
    let words = FIRST.launch(1);
    let written = || word(word(words, kernel_words::BLOCK), device::CLOCK_OFFSET) as i64;
    assert!(written() < 0, "a guess: less than CLOCK_REALTIME, and the launch does not wait for ever");
    sanitizer::LOADS_WAIT.store(false, SeqCst);
    assert_eq!(run.kernels(1)[0].1, 50);
    assert_eq!(run.tracer.lost(Lost::NoTimestamps), 0, "times are read once the clock is known");
    let told = &run.control().slots[0];
    let offsets = [written(), told.clock_offset.load(SeqCst) as i64];
    assert!(offsets.iter().all(|it| it.abs_diff(BEHIND as i64) < 1_000_000_000), "{offsets:?}");
    assert!(told.clock_error.load(SeqCst) > 1_000_000_000, "the launch has read the guess");
    run.end();
}

#[test]
fn places_of_an_unloaded_module_are_another_ones() {
    let _alone = alone();
    let run = Run::new(ALL);
    let words = |run: &Run, grid_id| {
        run.load(0x200, &["first"]);
        let words = FIRST.launch(grid_id);
        sanitizer::unload(CONTEXT, 0x200);
        words
    };
    assert_eq!(words(&run, 1), words(&run, 2));
    // The function's handle is another module's by now.
    assert_eq!(Kernel { module: 0x300, ..FIRST }.begin(3), 0);
    run.end();
}

#[test]
fn a_module_that_waits_for_a_stream_holds_up_no_other() {
    let _alone = alone();
    let run = Run::new(ALL);
    run.load(0x200, &["first"]);
    sanitizer::WAITS.store(true, SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| run.load(0x201, &["second"]));
        // A third is patched while the second waits.
        while sanitizer::PATCHED.load(SeqCst) < 4 {
            std::thread::yield_now();
        }
        scope.spawn(|| run.load(0x202, &["third"]));
        while sanitizer::PATCHED.load(SeqCst) < 6 {
            std::thread::yield_now();
        }
        sanitizer::WAITS.store(false, SeqCst);
    });
    run.end();
}

#[test]
fn words_are_those_of_the_conditions_that_hold() {
    let _alone = alone();
    let mut run = Run::new(ALL);
    let conditions = Choice { conditions: [Some(0), Some(3), None], holding: 0 };
    let control = run.control();
    control.conditions[0].every.store(2, SeqCst);
    control.conditions[3].is_off.store(1, SeqCst);
    run.load_with(0x200, &["first"], conditions, [0, 1, 2, 3, 0, 0, 0, 0]);
    let handlers = |grid_id| word(FIRST.launch(grid_id), kernel_words::HANDLERS);
    assert_eq!([1, 2, 3].map(handlers), [1, 0, 1]);
    run.control().conditions[3].is_off.store(0, SeqCst);
    assert_eq!([4, 5].map(handlers), [2, 3]);
    launch_graph(&[(FIRST, 10)]);
    let counts = |at: usize| {
        let it = &run.control().conditions[at];
        [&it.met, &it.chosen, &it.unprobed].map(|it| it.load(SeqCst))
    };
    assert_eq!([counts(0), counts(3)], [[5, 3, 1], [2, 2, 0]]);
    assert_eq!(run.control().unprobed[Unprobed::InGraph as usize].load(SeqCst), 1);
    let names = run.kernels(6);
    let n_of = |name: &str| names.iter().filter(|it| it.0 == name).count();
    assert_eq!([n_of("first"), n_of(&twin_symbol("first"))], [1, 5]);
    assert!(names.iter().all(|it| it.1 == 50), "{names:?}");
    run.end();
}

#[test]
fn a_copy_that_fails_leaves_the_one_before() {
    let _alone = alone();
    let mut run = Run::new(demand::LAUNCHES | demand::KERNELS);
    run.load(0x200, &["first"]);
    assert_eq!(run.copy(1), 2);
    let failure = |run: &Run| run.control().slots[0].failure.load(SeqCst);
    sanitizer::COPIES_FAIL.store(true, SeqCst);
    assert_eq!((run.copy(2), failure(&run)), (2, 0), "the context has not failed");
    sanitizer::ANSWER.store(700, SeqCst);
    assert_eq!((run.copy(3), failure(&run)), (2, 700));
    sanitizer::COPIES_FAIL.store(false, SeqCst);
    assert_eq!(run.copy(4), 4);
    run.end();
}

#[test]
fn nothing_is_copied_behind_the_last_copy() {
    let _alone = alone();
    let mut run = Run::new(demand::LAUNCHES | demand::KERNELS);
    run.load(0x200, &["first"]);
    assert_eq!(run.copy(1), 2);
    run.control().slots[0].is_last.store(1, SeqCst);
    assert_eq!(run.copy(2), 2, "the tracer may ask until the process has ended");
    sanitizer::end_context(CONTEXT);
    assert_eq!(run.control().slots[0].generation.load(SeqCst), 2);
    run.end();
}

#[test]
fn without_kernel_handlers_records_say_which_launch_a_kernels_number_is() {
    let _alone = alone();
    let mut run = Run::new(demand::LAUNCHES | demand::KERNELS);
    run.load(0x200, &["first"]);
    assert_eq!(word(FIRST.launch(1), kernel_words::TIMES), 0);
    assert_eq!((OTHER.launch(2), UNPATCHED.launch(3)), (0, 0));
    assert_eq!(run.kernels(1)[0].0, twin_symbol("first"));
    let [kernel] = run.tracer.kernels()[..] else { panic!("one") };
    assert!(kernel.grid_id == 1 && kernel.start == kernel.end && kernel.start != Realtime(0));
    run.end();
}

/// A run whose handlers read the first, third and fourth parameter: of 4, 8 and 1 byte.
fn with_arguments(asked: u64) -> Run {
    let mut run = Run::new(asked | demand::ARGUMENTS);
    for (number, offset, bytes) in [(0, 0, 4), (2, 16, 8), (3, 24, 1)] {
        run.parameters[number] = Parameter { offset, bytes };
    }
    run
}

/// Returns what a launch has given, by number.
fn arguments(words: u64) -> [Option<u64>; 4] {
    let there = word(words, kernel_words::HAS_ARGUMENTS);
    assert_eq!(there >> 4, 0);
    std::array::from_fn(|n| (there >> n & 1 == 1).then(|| word(words, kernel_words::ARGUMENTS + 8 * n)))
}

#[test]
fn launches_give_the_parameters_that_handlers_read() {
    let _alone = alone();
    let run = with_arguments(ALL);
    run.load(0x200, &["first"]);
    let without = || run.control().without_arguments.load(SeqCst);
    let words = FIRST.call(1, 7, &[0xaaaa_bbbb_1111_2222, 1, u64::MAX, 0x1ff]);
    assert_eq!(arguments(words), [Some(0x1111_2222), None, Some(u64::MAX), Some(0xff)]);
    let at = [kernel_words::NAME, kernel_words::HANDLERS, kernel_words::IS_NODE];
    assert_eq!(at.map(|it| word(words, it)), [71, 5, 0]);
    assert_ne!(word(words, kernel_words::TIMES), 0);

    let packed = [3u64, 0, 4, 5];
    let size = size_of_val(&packed);
    let extra = [1, packed.as_ptr() as u64, 2, std::ptr::from_ref(&size) as u64, 0];
    let words = FIRST.call_with(2, 7, &[0, 0, 0, 0, 0, 7, 0, extra.as_ptr() as u64]);
    assert_eq!((arguments(words), without()), ([Some(3), None, Some(4), Some(5)], 0));
    assert_eq!(arguments(OTHER.call(3, 7, &[1, 2, 3, 4])), [None; 4], "no handler");
    assert_eq!(without(), 0);

    let words = FIRST.begin(4);
    assert_eq!((arguments(words), word(words, kernel_words::HANDLERS), without()), ([None; 4], 5, 1), "of no call");
    launch_graph(&[(FIRST, 10), (OTHER, 11)]);
    assert_eq!(without(), 2, "in a graph");
    run.end();
}

#[test]
fn a_launch_without_a_slot_has_handlers_and_no_parameters() {
    let _alone = alone();
    let run = with_arguments(0);
    run.load(0x200, &["first"]);
    let without = || run.control().without_arguments.load(SeqCst);
    let call = |grid_id, stream| FIRST.call(grid_id, stream, &[grid_id, 0, 0, 0]);
    let first = call(1, 7);
    let again = call(2, 7);
    assert_eq!((first, arguments(again)[0]), (again, Some(2)), "in its stream, one after the other");
    let other = call(3, 100);
    assert_eq!((arguments(first)[0], arguments(other)[0], without()), (Some(2), Some(3), 0));
    sanitizer::end_stream(CONTEXT, 7);
    assert!(![first, other].contains(&call(4, 7)), "kernels of the other stream may still run");
    sanitizer::COPIES_FAIL.store(true, SeqCst);
    assert_eq!((arguments(call(5, 7)), without()), ([None; 4], 1));
    sanitizer::COPIES_FAIL.store(false, SeqCst);
    // Those that are left, and one more.
    const LEFT: u64 = (1 << 15) - 3;
    (0..LEFT).for_each(|it| _ = call(6 + it, 1000 + it));
    assert_eq!(without(), 1);
    let words = call(1, 999);
    assert_eq!((arguments(words), word(words, kernel_words::HANDLERS), without()), ([None; 4], 5, 2));
    assert_eq!(arguments(call(2, 100))[0], Some(2), "a stream that has one");
    run.end();
}

#[test]
fn threads_that_launch_in_one_stream_overwrite_no_parameters() {
    const THREADS: u64 = 4;
    const LAUNCHES: u64 = 200;
    let _alone = alone();
    let run = with_arguments(0);
    run.load(0x200, &["first"]);
    let launches = |thread: u64| {
        for n in 0..LAUNCHES {
            let value = thread * LAUNCHES + n;
            let params = [std::ptr::from_ref(&value); 4];
            let seen = FIRST.call_while(n, 7, &[0, 0, 0, 0, 0, 7, params.as_ptr() as u64, 0], arguments);
            assert_eq!(seen[0], Some(value));
        }
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|it| _ = scope.spawn(move || launches(it))));
    assert_eq!(run.control().without_arguments.load(SeqCst), 0);
    run.end();
}
