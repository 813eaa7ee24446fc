//! Twins of kernels: the collector between a simulated CUPTI and driver, and a simulated tracer.
#![allow(
    dead_code,
    clippy::undocumented_unsafe_blocks,
    unsafe_op_in_unsafe_fn,
    unreachable_pub,
    reason = "tests play CUPTI, the driver and the tracer with the same raw calls"
)]

#[path = "fake/code.rs"]
mod code;
#[path = "../../agent/tests/suite/counting.rs"]
mod counting;
#[path = "fake/cupti.rs"]
mod cupti;
#[path = "../../agent/tests/suite/machine.rs"]
mod machine;
#[path = "../../agent/tests/suite/tracer.rs"]
mod tracer;

use counting::ALLOCATIONS;
use cupti::{DRIVER, Event, LaunchParams};
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tracer::{Tracer, listen, memory, put_at_marker};
use xputrace_agent::device::LONG_TIMEOUTS;
use xputrace_agent::rendezvous::{Received, Socket, Trust};
use xputrace_agent::{Dormant, World};
use xputrace_nvidia::cupti::{Cupti, CuptiBackend};
use xputrace_wire::device::{
    self, ArrayPlace, Choice, Codec, Condition, CopyExtent, DeviceCode, ImageOutcome, MOST_CONTEXTS, ProgramLaunch,
    Programs, ProgramsAccount, ProgramsState, RingPlace, Twin, Unprobed, decode_image, image_kind, twin_status,
    twin_symbol,
};
use xputrace_wire::events::{Call, HostEvent, HostEventRecord, HostEvents};
use xputrace_wire::message::{ARM, ARMED, BYE, DISARM, HELLO, IMAGE, Message, READ_DEVICE, REFUSED, TWIN, demand};
use xputrace_wire::record::{ActivityRecord, Record};
use xputrace_wire::region::{Lost, PAGE, RegionShape};

const SHAPE: RegionShape = RegionShape { rings: 8, ring_bytes: 1 << 20 };
const BLOCK: device::DeviceRegionShape =
    device::DeviceRegionShape { block_bytes: 64, ring: Some(RingPlace { tail: 24, slots: 32, head: 40, end: 48 }) };
/// CUPTI's id of the fake's first context.
const CONTEXT: u64 = 0x1003;
const PTX: &str = ".version 8.0\n.global .u32 table;\n.entry scale(.param .u64 p) { ret; }\n.entry other() { ret; }\n";

/// Runs one test at a time: CUPTI and the collector are per process.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(|it| it.into_inner());
    cupti::reset();
    code::reset();
    guard
}

/// How often this thread has waited for a twin until it gave up.
fn long_timeouts() -> u64 {
    LONG_TIMEOUTS.get()
}

fn backend() -> CuptiBackend {
    let table = Cupti { get_context_id: Some(cupti::context_id), ..cupti::table() };
    CuptiBackend::new(table, code::driver(), false)
}

fn world() -> World {
    world_of(backend())
}

/// Where the program has loaded code before.
fn late_world() -> World {
    world_of(backend().may_be_used(false))
}

fn world_of(backend: CuptiBackend) -> World {
    World { backend: Some(Box::new(backend)), library: "/fake/libcupti.so.13".into(), ..World::default() }
}

/// A tracer that asks for twins, and its memory.
struct Run {
    tracer: Tracer,
    memory: OwnedFd,
    block: *mut u8,
    /// Where the arrays are mapped here.
    arrays: Vec<*const u8>,
}

unsafe impl Send for Run {}
unsafe impl Sync for Run {}

impl Run {
    fn new(demand: u64) -> Self {
        Run::made(demand, &[], |_| (), world)
    }

    /// The same, in a program that has loaded code before.
    fn late(demand: u64) -> Self {
        Run::made(demand, &[], |_| (), late_world)
    }

    /// The same, with memory in place of arrays of Linux.
    fn with_arrays(demand: u64, arrays: &[(ArrayPlace, OwnedFd)]) -> Self {
        Run::made(demand, arrays, |_| (), world)
    }

    /// The same, with conditions that are set before the collector is armed.
    fn on(demand: u64, set: impl FnOnce(&[Condition])) -> Self {
        Run::made(demand, &[], |it| set(&it.conditions), world)
    }

    fn of_handlers_that_read_times(demand: u64) -> Self {
        Run::made(demand, &[], |it| it.reads_clock.store(1, SeqCst), world)
    }

    /// Of an object with programs for kernels of their own.
    fn of_programs(demand: u64) -> Self {
        code::HAS_PROGRAMS.store(true, SeqCst);
        Run::made(demand, &[], |it| it.has_programs.store(1, SeqCst), world)
    }

    fn made(
        demand: u64,
        arrays: &[(ArrayPlace, OwnedFd)],
        set: impl FnOnce(&device::Control),
        world: impl Fn() -> World,
    ) -> Self {
        let listener = listen();
        let address = listener.address.clone();
        let memory = memory(BLOCK.size(), true);
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let mapped = |memory: &OwnedFd, bytes| unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, rights, libc::MAP_SHARED, memory.as_raw_fd(), 0).cast::<u8>()
        };
        let block = mapped(&memory, BLOCK.size());
        let mapped_arrays = arrays.iter().map(|it| mapped(&it.1, PAGE).cast_const()).collect();
        unsafe { block.add(BLOCK.initial_offset()).cast::<[u64; 3]>().write([1, 0, 77]) };
        set(unsafe { &*block.cast() });
        let asked = demand | demand::DEVICE;
        let tracer = std::thread::scope(|scope| {
            let tracer = scope.spawn(|| arm(listener.accept(), asked, &BLOCK.to_text(), &memory, arrays));
            // The run before may be about to end.
            let arm = || xputrace_agent::arm(&address, Trust::RootAndThisUser, &world);
            std::iter::repeat_with(arm).find(|it| *it != Err(Dormant::AlreadyArmed)).unwrap().unwrap();
            tracer.join().unwrap()
        });
        assert_eq!(tracer.message().kind, ARMED);
        Run { tracer, memory, block, arrays: mapped_arrays }
    }

    fn control(&self) -> &device::Control {
        unsafe { &*self.block.cast() }
    }

    fn unprobed(&self, why: Unprobed) -> u64 {
        self.control().unprobed[why as usize].load(SeqCst)
    }

    fn images(&self, outcome: ImageOutcome) -> u64 {
        self.control().images[outcome as usize].load(SeqCst)
    }

    fn swapped(&self) -> u64 {
        self.control().slots.iter().map(|it| it.swapped.load(SeqCst)).sum()
    }

    /// A word of a context's copy.
    fn copied(&self, slot: usize, word: usize) -> u64 {
        unsafe { self.block.add(BLOCK.copy_offset(slot)).cast::<u64>().add(word).read_volatile() }
    }

    fn socket(&self) -> &Socket {
        self.tracer.socket.as_ref().unwrap()
    }

    /// Waits for an image; returns its number and its only PTX; of a cubin the message's text and the cubin, of a kernel its symbol.
    fn image(&self) -> (u64, Vec<u8>) {
        let Received::Message(message, memory) = self.socket().receive(Duration::from_secs(120)) else {
            panic!("no image")
        };
        assert_eq!(message.kind, IMAGE);
        let [number, entries, bytes, ..] = message.words;
        let mut contents = vec![0; bytes as usize];
        unsafe {
            let seals = libc::fcntl(memory[0].as_raw_fd(), libc::F_GET_SEALS);
            assert!(seals & libc::F_SEAL_WRITE != 0 && seals & libc::F_SEAL_SHRINK != 0);
            let n = libc::pread(memory[0].as_raw_fd(), contents.as_mut_ptr().cast(), contents.len(), 0);
            assert_eq!(n as u64, bytes);
        }
        if message.words[5] == image_kind::KERNEL {
            return (number, contents);
        }
        if message.words[5] == image_kind::CUBIN {
            return (number, [message.text.as_bytes(), b"\n", &contents].concat());
        }
        let all = decode_image(&contents).unwrap();
        assert_eq!((all.len() as u64, all[0].codec), (entries, Codec::Plain));
        (number, all[0].stored.to_vec())
    }

    fn answer(&self, number: u64, twin: &Twin) {
        self.answer_with_all(number, std::slice::from_ref(twin));
    }

    fn answer_with_all(&self, number: u64, twins: &[Twin]) {
        self.answer_with_code(number, DeviceCode::Twins(twins.to_vec()));
    }

    fn answer_with_code(&self, number: u64, code: DeviceCode) {
        let bytes = code.encode();
        let memory = memory(bytes.len(), true);
        unsafe { libc::pwrite(memory.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        let words = [number, twin_status::WOVEN, bytes.len() as u64];
        assert!(self.socket().send_with(&Message::new(TWIN, &words, ""), &[memory.as_fd()]));
    }

    /// Waits until the collector tells of a context for programs, and answers with these.
    fn send_programs(&self, programs: &Programs) {
        self.answer_with_programs(self.asked_for_programs().0, programs);
    }

    fn answer_with_programs(&self, number: u64, programs: &Programs) {
        self.answer_with_code(number, DeviceCode::Programs(programs.clone()));
    }

    /// Returns the number of what is asked, and the least of the GPUs' compute capabilities.
    fn asked_for_programs(&self) -> (u64, u64) {
        let Received::Message(message, memory) = self.socket().receive(Duration::from_secs(120)) else {
            panic!("nothing is asked")
        };
        let [number, _, bytes, least, _, kind, ..] = message.words;
        assert_eq!((message.kind, kind, bytes, memory.len()), (IMAGE, image_kind::PROGRAMS, 0, 1));
        (number, least)
    }

    /// What has become of the programs, how many were launched, and what CUDA answered.
    fn programs(&self) -> (u32, u32, u32) {
        let ProgramsAccount { state, launched, failure, .. } = &self.control().programs;
        (state.load(SeqCst), launched.load(SeqCst), failure.load(SeqCst))
    }

    fn until_programs_are(&mut self, state: ProgramsState) {
        let control = unsafe { &*self.block.cast::<device::Control>() };
        self.tracer.until("the programs", |_| control.programs.state.load(SeqCst) == state as u32);
    }

    fn answer_with(&self, number: u64, status: u64) {
        self.socket().send(&Message::new(TWIN, &[number, status], ""));
    }

    /// Loads PTX as the program, while the tracer answers with twins of these kernels; returns the library.
    fn load(&self, origin: Origin, kernels: &[&str], variables: &[&str]) -> u64 {
        let library = code::load(PTX);
        std::thread::scope(|scope| {
            scope.spawn(|| self.answer(self.image().0, &twin_of(kernels, variables)));
            fire_load(origin, library, text(PTX).as_ptr());
        });
        library
    }

    /// Loads PTX as a library, while the tracer answers with these twins; returns it, and the twins in their order.
    fn load_twins(&self, twins: &[Twin]) -> (u64, Vec<u64>) {
        let library = code::load(PTX);
        std::thread::scope(|scope| {
            scope.spawn(|| self.answer_with_all(self.image().0, twins));
            fire_load(Origin::Library, library, text(PTX).as_ptr());
        });
        (library, (1..).map(|it| library + 0x1000 * it).take(twins.len()).collect())
    }

    /// Has the blocks copied, and waits for that.
    fn read_device(&mut self) {
        let control = unsafe { &*self.block.cast::<device::Control>() };
        let number = control.answered.load(SeqCst) + 1;
        self.socket().send(&Message::new(READ_DEVICE, &[number], ""));
        self.tracer.until("the copy", |_| control.answered.load(SeqCst) == number);
    }

    fn counts(&self, condition: usize) -> [u64; 3] {
        let Condition { met, chosen, unprobed, .. } = &self.control().conditions[condition];
        [met, chosen, unprobed].map(|it| it.load(SeqCst))
    }

    /// Ends the run, and waits for that.
    fn end(&mut self) -> Message {
        self.tracer.order(DISARM);
        loop {
            match self.socket().receive(Duration::from_millis(5)) {
                Received::Message(message, _) => return message,
                Received::Closed => panic!("no BYE"),
                // So that CUPTI can be unloaded.
                Received::Nothing => _ = cupti::call(DRIVER, 513, c"cuGraphInstantiate", 0),
            }
        }
    }
}

fn arm(socket: Socket, asked: u64, blocks: &str, device: &OwnedFd, arrays: &[(ArrayPlace, OwnedFd)]) -> Tracer {
    let hello = tracer::message(&socket);
    assert_eq!(hello.kind, HELLO);
    let (region, tags) = (memory(SHAPE.size(), true), memory(PAGE, false));
    let words = [asked, SHAPE.rings.into(), SHAPE.ring_bytes.into(), 10, 0, 0, 0, asked];
    let places = ArrayPlace::all_to_text(&arrays.iter().map(|it| it.0).collect::<Vec<_>>());
    let order = Message::new(ARM, &words, format!("\n\n\n{blocks}\n{places}"));
    let tag_array = (asked & demand::MARKER != 0).then_some(&tags);
    let fds = [&region].into_iter().chain(tag_array).chain([device]).chain(arrays.iter().map(|it| &it.1));
    assert!(socket.send_with(&order, &fds.map(AsFd::as_fd).collect::<Vec<_>>()));
    Tracer::new(socket, hello, SHAPE, region, tags)
}

fn text(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

fn twin_of(kernels: &[&str], variables: &[&str]) -> Twin {
    let mut text = ".version 8.0\n.global .u64 xpt_device;\n.global .u64 xpt_globals[2];\n".to_owned();
    text += ".global .u64 xpt_names[2];\n";
    kernels.iter().for_each(|it| text += &format!(".entry {}({}) {{ ret; }}\n", twin_symbol(it), parameters(it)));
    let owned = |all: &[&str]| all.iter().map(|it| it.to_string()).collect();
    Twin {
        code: text.into_bytes(),
        kernels: owned(kernels),
        variables: owned(variables),
        names: vec![71; kernels.len()],
        choices: vec![Choice::default(); kernels.len()],
    }
}

/// The parameters of a kernel of [`PTX`].
fn parameters(kernel: &str) -> &'static str {
    if kernel == "scale" { ".param .u64 p" } else { "" }
}

/// The twins of kernels whose handlers have two conditions, and perhaps others without one.
fn twins_for(kernels: &[&str], holding: impl IntoIterator<Item = u8>) -> Vec<Twin> {
    let of = |holding| {
        let choice = Choice { conditions: [Some(0), Some(1), None], holding };
        Twin { choices: vec![choice; kernels.len()], ..twin_of(kernels, &[]) }
    };
    holding.into_iter().map(of).collect()
}

#[derive(Clone, Copy, PartialEq)]
enum Origin {
    Library,
    Module,
}

fn fire_load(origin: Origin, handle: u64, image: *const u8) {
    let mut stored = handle;
    let params = [(&raw mut stored) as u64, image as u64, 0, 0, 0, 0, 0, 0];
    let (id, name) = match origin {
        Origin::Library => (678, c"cuLibraryLoadData"),
        Origin::Module => (19, c"cuModuleLoadData"),
    };
    both(id, name, &params);
}

fn event<'a>(id: u32, name: &'a CStr, params: &[u64]) -> Event<'a> {
    let params = params.as_ptr().cast();
    Event {
        domain: DRIVER,
        id,
        name,
        symbol: Some(c"scale"),
        params,
        correlation: cupti::next_correlation(),
        result: 0,
    }
}

fn both(id: u32, name: &CStr, params: &[u64]) {
    let event = event(id, name, params);
    cupti::fire(event, 0);
    cupti::fire(event, 1);
}

/// Launches a kernel in blocks of so many threads; returns what is launched.
fn launch_with(handle: u64, threads: u32, shared: u32) -> u64 {
    let mut params = cupti::launch_params(0);
    (params.function, params.block, params.shared) = (handle, [threads, 1, 1], shared);
    launch_of(params)
}

/// Launches a kernel in a stream; returns what is launched.
fn launch_in(stream: u64, handle: u64) -> u64 {
    launch_of(LaunchParams { function: handle, ..cupti::launch_params(stream) })
}

fn launch_of(mut params: LaunchParams) -> u64 {
    let mut event = event(307, c"cuLaunchKernel", &[]);
    event.params = (&raw mut params).cast();
    cupti::fire(event, 0);
    let launched = unsafe { (&raw const params.function).read_volatile() };
    cupti::fire(event, 1);
    launched
}

fn launch(handle: u64) -> u64 {
    launch_with(handle, 64, 128)
}

/// The library of the twin that was loaded last.
fn twins_library(program: u64) -> u64 {
    program + 0x1000
}

#[test]
fn a_kernel_with_a_twin_is_launched_as_its_twin() {
    let _alone = alone();
    let mut run = Run::new(demand::LAUNCHES | demand::KERNELS);
    let other = code::load(PTX);
    let library = run.load(Origin::Library, &["scale"], &["table"]);
    assert_eq!(run.images(ImageOutcome::Twinned), 1);
    let twins = library + 0x1000;
    let (kernel, twin) = (code::kernel(library, "scale").unwrap(), code::kernel(twins, "scale$xpt").unwrap());
    assert_eq!(launch(kernel), twin);
    let of_context = |it| code::function(it, CONTEXT);
    assert_eq!(launch(of_context(kernel)), of_context(twin), "the function that the program may have asked for");
    for unprobed in [code::kernel(library, "other").unwrap(), code::kernel(other, "scale").unwrap(), 1, 0] {
        assert_eq!(launch(unprobed), unprobed);
    }
    assert_eq!((run.swapped(), run.control().contexts.load(SeqCst)), (2, 1));
    let slot = &run.control().slots[0];
    assert_eq!((slot.context.load(SeqCst), slot.device.load(SeqCst)), (5, 3));
    let block = code::block(CONTEXT).unwrap();
    assert_eq!([0, 1, 2].map(|it| code::word(block, it)), [1, 0, 77], "the initial bytes");
    let variable = |library, name| code::variable(library, CONTEXT, name).unwrap();
    assert_eq!(code::word(variable(twins, "xpt_device"), 0), block);
    assert_eq!(code::word(variable(twins, "xpt_globals"), 0), variable(library, "table"));
    assert_eq!(code::word(variable(twins, "xpt_names"), 0), 71);
    assert!(run.control().unprobed.iter().all(|it| it.load(SeqCst) == 0));
    run.end();
}

#[test]
fn a_modules_kernels_have_twins_in_its_own_context() {
    let _alone = alone();
    let mut run = Run::new(0);
    let module = run.load(Origin::Module, &["scale", "other", "absent"], &[]);
    let twins = twins_library(module);
    for name in ["scale", "other"] {
        let function = code::function(code::kernel(module, name).unwrap(), CONTEXT);
        let twin = code::function(code::kernel(twins, &twin_symbol(name)).unwrap(), CONTEXT);
        assert_eq!(launch(function), twin, "{name}");
        cupti::in_context(CONTEXT + 1, || assert_eq!(launch(function), function));
    }
    run.end();
}

#[test]
fn what_is_recorded_is_what_the_program_did() {
    let _alone = alone();
    let of_host = [HostEvent::Alloc, HostEvent::StreamChange];
    let all = demand::LAUNCHES | demand::KERNELS | demand::MEMCPYS | demand::MEMCPY_CALLS;
    let mut run = Run::new(all | demand::host_events(HostEvents::of(&of_host)));
    let library = run.load(Origin::Library, &["scale"], &[]);
    let kernel = code::kernel(library, "scale").unwrap();
    assert_ne!(launch(kernel), kernel);
    run.read_device();
    cupti::push_kernel(1, c"scale$xpt", 0);
    cupti::push_kernel(2, c"scale", 0);
    cupti::push_memcpy(5, code::stream(CONTEXT) as u32 + 100);
    cupti::push_memcpy(5, 9);
    cupti::push_memcpy(6, code::stream(CONTEXT) as u32 + 100);
    run.tracer.until("the kernels", |it| it.kernels().len() == 2);
    let kernels = run.tracer.kernels();
    let names: Vec<_> = kernels.iter().map(|it| run.tracer.name(it.symbol).unwrap()).collect();
    assert_eq!(names, ["scale$xpt", "scale"], "a record says which of the two ran");
    let launches = run.tracer.launches();
    assert_eq!(launches.iter().map(|it| it.symbol).collect::<Vec<_>>(), [kernels[1].symbol]);
    let of_copies = |it: &Record<'_>| matches!(it, Record::Activity(ActivityRecord::Memcpy(_)));
    assert_eq!(run.tracer.records().iter().filter(|it| of_copies(it)).count(), 2, "without ours");
    let of_host = run.tracer.records().iter().filter(|it| matches!(it, Record::Host(_))).count();
    assert_eq!(of_host, 0);
    run.end();
    assert_eq!(run.tracer.control().totals.call(Call::Memcpy).made.load(SeqCst), 0);
    assert_eq!(run.tracer.lost(Lost::Unexpected), 0);
}

/// The word of the block that handlers add to the GPU's timer.
fn clock_offset(block: u64) -> i64 {
    code::word(block, device::CLOCK_OFFSET / 8) as i64
}

/// The kernel that reads the GPU's timer is nothing that the program did.
#[test]
fn handlers_add_what_the_gpus_timer_is_behind() {
    let _alone = alone();
    code::TIMER_BEHIND.store(1_000_000_000, SeqCst);
    let all = demand::LAUNCHES | demand::KERNELS;
    let mut run = Run::of_handlers_that_read_times(all);
    let library = run.load(Origin::Library, &["scale"], &[]);
    let kernel = code::kernel(library, "scale").unwrap();
    assert_ne!(launch(kernel), kernel);
    let block = code::block(CONTEXT).unwrap();
    let slot = &run.control().slots[0];
    let (offset, error) = (slot.clock_offset.load(SeqCst) as i64, slot.clock_error.load(SeqCst));
    assert!(error > 0 && offset.abs_diff(1_000_000_000) <= error, "{offset} {error}");
    assert_eq!(clock_offset(block), offset);
    assert_eq!(code::KERNELS_RUN.load(SeqCst), 4);
    run.read_device();
    assert_eq!(run.copied(0, 2) as i64, offset);
    cupti::push_kernel(3, c"xpt_timer", 0);
    cupti::put_last_kernel_in(5, code::timer_stream(CONTEXT) as u32 + 100);
    cupti::push_kernel(2, c"scale$xpt", 0);
    run.tracer.until("the kernel", |it| !it.kernels().is_empty());
    let names: Vec<_> = run.tracer.kernels().iter().map(|it| run.tracer.name(it.symbol).unwrap()).collect();
    assert_eq!((names, run.tracer.launches().len()), (vec!["scale$xpt".to_owned()], 1));
    run.end();
    assert_eq!((run.swapped(), run.tracer.lost(Lost::Unexpected)), (1, 0));
}

#[test]
fn nobody_waits_for_a_gpu_that_is_busy_to_tell_its_time() {
    let _alone = alone();
    code::IS_BUSY.store(true, SeqCst);
    code::TIMER_BEHIND.store(7_000_000_000, SeqCst);
    let mut run = Run::of_handlers_that_read_times(demand::LAUNCHES);
    let library = run.load(Origin::Library, &["scale"], &[]);
    let kernel = code::kernel(library, "scale").unwrap();
    assert_ne!(launch(kernel), kernel);
    let block = code::block(CONTEXT).unwrap();
    let guess = clock_offset(block);
    assert!(guess < 0, "less than CLOCK_REALTIME");
    run.read_device();
    run.read_device();
    let error = |run: &Run| run.control().slots[0].clock_error.load(SeqCst);
    assert_eq!((clock_offset(block), error(&run), code::KERNELS_RUN.load(SeqCst)), (guess, 0, 0));
    code::end_of_busyness();
    assert_eq!(code::KERNELS_RUN.load(SeqCst), 1, "there was one");
    run.read_device();
    let offset = clock_offset(block);
    assert!(offset.abs_diff(7_000_000_000) < error(&run), "{offset}");
    assert!(offset.abs_diff(guess) < error(&run), "a launch had the guess");
    run.end();
}

#[test]
fn a_timer_that_can_not_be_read_is_no_matter() {
    for function in ["create_urgent_stream", "register_memory", "launch_kernel"] {
        let _alone = alone();
        code::FAILS_IN.lock().unwrap().push(function);
        let mut run = Run::of_handlers_that_read_times(demand::LAUNCHES);
        let library = run.load(Origin::Library, &["scale"], &[]);
        let kernel = code::kernel(library, "scale").unwrap();
        assert_ne!(launch(kernel), kernel);
        run.read_device();
        assert_eq!(run.control().slots[0].clock_error.load(SeqCst), 0, "{function}");
        run.end();
    }
}

/// Programs of these names and numbers of threads.
fn programs(all: &[(&str, u32)]) -> Programs {
    let mut text = ".version 8.0\n.global .u64 xpt_device;\n".to_owned();
    all.iter().for_each(|it| text += &format!(".entry {}() {{ ret; }}\n", it.0));
    let launch = |it: &(&str, u32)| ProgramLaunch { symbol: it.0.into(), grid: [2, 3, 4], block: [it.1, 1, 1] };
    Programs { code: text.into_bytes(), launches: all.iter().map(launch).collect() }
}

/// CUPTI's callback about a context that was created.
const CONTEXT_CREATED: u32 = 1;

#[test]
fn programs_run_once_in_the_first_context_and_in_a_stream_of_ours() {
    let _alone = alone();
    code::PROGRAMS_ANSWER.store(600, SeqCst);
    let mut run = Run::of_programs(demand::LAUNCHES | demand::KERNELS);
    cupti::fire_resource(CONTEXT_CREATED, CONTEXT);
    cupti::fire_resource(CONTEXT_CREATED, CONTEXT + 1);
    run.send_programs(&programs(&[("first", 32), ("second", 1)]));
    run.until_programs_are(ProgramsState::Running);
    let launched = code::LAUNCHED.lock().unwrap().clone();
    let block = code::block(CONTEXT).unwrap();
    let expected = |symbol: &str, threads| {
        let shape = [2, 3, 4, threads, 1, 1];
        code::Launched { context: CONTEXT, symbol: symbol.into(), shape, block }
    };
    assert_eq!(launched, [expected("first", 32), expected("second", 1)]);
    assert_eq!(code::block(CONTEXT + 1), None);
    run.read_device();
    assert_eq!(run.programs(), (ProgramsState::Running as u32, 2, 0), "they have not ended");
    code::PROGRAMS_ANSWER.store(0, SeqCst);
    run.read_device();
    assert_eq!(run.programs(), (ProgramsState::Done as u32, 2, 0));
    cupti::push_kernel(3, c"first", 0);
    cupti::put_last_kernel_in(5, code::programs_stream(CONTEXT) as u32 + 100);
    cupti::push_kernel(2, c"scale", 0);
    run.tracer.until("the kernel", |it| !it.kernels().is_empty());
    let names: Vec<_> = run.tracer.kernels().iter().map(|it| run.tracer.name(it.symbol).unwrap()).collect();
    assert_eq!((names, run.tracer.launches().len()), (vec!["scale".to_owned()], 0), "none of ours");
    run.end();
    assert_eq!((run.swapped(), run.tracer.lost(Lost::Unexpected)), (2, 0));
    assert_eq!(code::LAUNCHED.lock().unwrap().len(), 2);
}

#[test]
fn a_process_without_programs_is_not_asked_for_a_context() {
    let _alone = alone();
    let mut run = Run::new(demand::LAUNCHES);
    cupti::fire_resource(CONTEXT_CREATED, CONTEXT);
    assert_eq!(run.end().kind, BYE);
    assert_eq!((code::block(CONTEXT), run.programs().0), (None, ProgramsState::Waiting as u32));
}

#[test]
fn a_context_that_can_not_be_used_yet_is_tried_again() {
    let _alone = alone();
    code::FAILS_IN.lock().unwrap().push("context_device");
    let mut run = Run::of_programs(0);
    cupti::fire_resource(CONTEXT_CREATED, CONTEXT);
    run.read_device();
    assert_eq!(code::block(CONTEXT), None);
    code::FAILS_IN.lock().unwrap().clear();
    run.read_device();
    run.send_programs(&programs(&[("first", 32)]));
    run.until_programs_are(ProgramsState::Running);
    run.read_device();
    assert_eq!(run.programs().0, ProgramsState::Done as u32);
    run.end();
}

#[test]
fn a_context_that_can_never_be_used_is_not_waited_for() {
    let _alone = alone();
    code::FAILS_IN.lock().unwrap().push("context_device");
    let mut run = Run::of_programs(0);
    cupti::fire_resource(CONTEXT_CREATED, CONTEXT);
    xputrace_agent::wait_for_programs();
    assert_eq!(run.programs().0, ProgramsState::Waiting as u32);
    run.end();
}

#[test]
fn programs_that_another_process_runs_are_not_waited_for() {
    let _alone = alone();
    let mut run = Run::of_programs(0);
    std::thread::scope(|scope| {
        cupti::fire_resource(CONTEXT_CREATED, CONTEXT);
        let waiting = scope.spawn(xputrace_agent::wait_for_programs);
        run.answer_with(run.asked_for_programs().0, twin_status::NOTHING);
        waiting.join().unwrap();
    });
    // Nor without a context.
    assert_eq!(run.programs(), (ProgramsState::Waiting as u32, 0, 0));
    run.end();
    assert_eq!(code::LAUNCHED.lock().unwrap().len(), 0);
}

#[test]
fn a_process_of_xputraces_own_waits_for_its_programs() {
    let _alone = alone();
    code::PROGRAMS_ANSWER.store(600, SeqCst);
    let mut run = Run::of_programs(0);
    xputrace_agent::wait_for_programs();
    std::thread::scope(|scope| {
        cupti::fire_resource(CONTEXT_CREATED, CONTEXT);
        let waiting = scope.spawn(xputrace_agent::wait_for_programs);
        run.send_programs(&programs(&[("first", 32)]));
        run.until_programs_are(ProgramsState::Running);
        assert!(!waiting.is_finished());
        code::PROGRAMS_ANSWER.store(0, SeqCst);
        waiting.join().unwrap();
    });
    assert_eq!(run.programs(), (ProgramsState::Done as u32, 1, 0));
    run.end();
}

#[test]
fn what_becomes_of_programs_that_fail_is_told() {
    let too_large = programs(&[("first", 32), ("large", 2048), ("last", 1)]);
    let broken = Programs { code: b".broken".to_vec(), launches: vec![] };
    let missing = Programs { code: programs(&[("other", 1)]).code, ..programs(&[("first", 1)]) };
    let cases = [
        (too_large, 0, (ProgramsState::NotLaunched, 1, 1)),
        (broken, 0, (ProgramsState::NotLoaded, 0, 218)),
        (missing, 0, (ProgramsState::NotLoaded, 0, 500)),
        (programs(&[("first", 32)]), 700, (ProgramsState::Failed, 1, 700)),
    ];
    for (programs, answer, (state, n, failure)) in cases {
        let _alone = alone();
        code::PROGRAMS_ANSWER.store(answer, SeqCst);
        let mut run = Run::of_programs(0);
        cupti::fire_resource(CONTEXT_CREATED, CONTEXT);
        run.send_programs(&programs);
        let control = unsafe { &*run.block.cast::<device::Control>() };
        run.tracer.until("the programs", |_| control.programs.state.load(SeqCst) != ProgramsState::Waiting as u32);
        // Looks whether they have ended.
        run.read_device();
        assert_eq!(run.programs(), (state as u32, n, failure));
        run.end();
    }
}

#[test]
fn programs_are_waited_for_at_the_end_for_a_while() {
    for (answer, state) in [(0, ProgramsState::Done), (600, ProgramsState::CutOff)] {
        let _alone = alone();
        code::PROGRAMS_ANSWER.store(600, SeqCst);
        let mut run = Run::of_programs(0);
        cupti::fire_resource(CONTEXT_CREATED, CONTEXT);
        run.send_programs(&programs(&[("first", 32)]));
        run.until_programs_are(ProgramsState::Running);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                code::PROGRAMS_ANSWER.store(answer, SeqCst);
            });
            run.end();
        });
        assert_eq!(run.programs().0, state as u32);
        assert_eq!(run.control().slots[0].is_last.load(SeqCst), 1);
    }
}

#[test]
fn programs_end_with_their_context() {
    let _alone = alone();
    code::PROGRAMS_ANSWER.store(600, SeqCst);
    let mut run = Run::of_programs(0);
    cupti::fire_resource(CONTEXT_CREATED, CONTEXT);
    run.send_programs(&programs(&[("first", 32)]));
    run.until_programs_are(ProgramsState::Running);
    cupti::fire_resource(2, CONTEXT);
    code::end(CONTEXT);
    run.read_device();
    assert_eq!(run.programs(), (ProgramsState::CutOff as u32, 1, 0));
    run.end();
    assert_eq!(code::MISUSES.load(SeqCst), 0);
}

/// Their code may take long to compile, and programs make contexts for a moment.
#[test]
fn programs_whose_context_ended_before_they_came_run_in_the_next_one() {
    for has_next in [true, false] {
        let _alone = alone();
        let mut run = Run::of_programs(0);
        cupti::fire_resource(CONTEXT_CREATED, CONTEXT);
        let (number, _) = run.asked_for_programs();
        cupti::fire_resource(2, CONTEXT);
        code::end(CONTEXT);
        run.answer_with_programs(number, &programs(&[("first", 32)]));
        run.read_device();
        assert_eq!(run.programs(), (ProgramsState::Waiting as u32, 0, 0));
        if has_next {
            cupti::fire_resource(CONTEXT_CREATED, CONTEXT + 1);
            run.until_programs_are(ProgramsState::Running);
            run.read_device();
        }
        run.end();
        let launched_in: Vec<_> = code::LAUNCHED.lock().unwrap().iter().map(|it| it.context).collect();
        let expected =
            if has_next { (ProgramsState::Done, vec![CONTEXT + 1]) } else { (ProgramsState::Waiting, vec![]) };
        assert_eq!((run.programs().0, launched_in), (expected.0 as u32, expected.1));
        assert_eq!(code::MISUSES.load(SeqCst), 0);
    }
}

/// The driver loads code when it is first needed, which is in a call of ours then.
#[test]
fn modules_are_the_programs_whoever_has_them_loaded() {
    let _alone = alone();
    let mut run = Run::new(demand::host_events(HostEvents::of(&[HostEvent::Module])));
    let library = run.load(Origin::Library, &["scale"], &[]);
    let kernel = code::kernel(library, "scale").unwrap();
    assert_ne!(launch(kernel), kernel);
    let [module, twins] = [library, twins_library(library)].map(|it| code::module_of(it, CONTEXT));
    for it in [twins, module] {
        cupti::fire_module(7, it, b"");
    }
    run.tracer.until("the modules", |it| it.records().iter().filter_map(modules_kind).count() >= 2);
    let records = run.tracer.records();
    let mut modules: Vec<(u32, u32)> = records.iter().filter_map(modules_kind).collect();
    // They come from two threads.
    modules.sort_unstable();
    assert_eq!(modules, [(module, 0), (module, 1)], "unloaded and loaded, without the twin's");
    drop(records);
    run.end();
}

/// Returns a module's number, and whether it was loaded.
fn modules_kind(it: &Record<'_>) -> Option<(u32, u32)> {
    match it {
        Record::Host(HostEventRecord::Module(it)) => Some((it.id, it.has_bytes)),
        _ => None,
    }
}

#[test]
fn an_image_is_sent_as_it_is_and_what_has_no_ptx_is_not() {
    let _alone = alone();
    let mut run = Run::new(0);
    let elf = [&b"\x7fELF\x02\x01\x01"[..], &[0; 4096]].concat();
    let library = code::load(PTX);
    fire_load(Origin::Library, library, elf.as_ptr());
    let fatbin = include_bytes!("images/plain.fatbin");
    let wrapper = [0x1_4662_43b1, fatbin.as_ptr() as u64, 0];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (number, ptx) = run.image();
            assert!(ptx.starts_with(b"\n\n\n\n\n\n\n\n.version 9.0"), "the first that is sent");
            run.answer_with(number, twin_status::NOTHING);
            let (number, ptx) = run.image();
            assert_eq!(ptx, PTX.as_bytes());
            run.answer_with(number, twin_status::FAILED);
        });
        fire_load(Origin::Library, library, wrapper.as_ptr().cast());
        fire_load(Origin::Module, library, text(PTX).as_ptr());
    });
    for outcome in [ImageOutcome::NoPortableCode, ImageOutcome::NothingToProbe, ImageOutcome::NotWoven] {
        assert_eq!(run.images(outcome), 1, "{outcome:?}");
    }
    assert_eq!(code::LOADS.load(SeqCst), 0);
    let kernel = code::kernel(library, "scale").unwrap();
    assert_eq!(launch(kernel), kernel);
    run.end();
}

#[test]
fn a_cubin_is_sent_with_where_its_ptx_may_be() {
    let _alone = alone();
    let mut run = Run::new(0);
    let fatbin = include_bytes!("images/plain.fatbin");
    // The first entry, behind its header of 64 bytes.
    let cubin = [&fatbin[80..], &[0; 4096]].concat();
    let home = std::env::var("HOME").unwrap_or_default();
    let library = code::load(PTX);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (number, sent) = run.image();
            // The variables of Triton's cache, and no file.
            let text = format!("{}\n{}\n{home}\n\n", variable("TRITON_CACHE_DIR"), variable("TRITON_HOME"));
            let (before, bytes) = sent.split_at(text.len());
            assert_eq!((before, &bytes[..4]), (text.as_bytes(), &b"\x7fELF"[..]));
            assert!(bytes.len() < fatbin.len() && cubin.starts_with(bytes));
            run.answer_with(number, twin_status::NO_PORTABLE_CODE);
            run.answer(run.image().0, &twin_of(&["scale"], &[]));
        });
        fire_load(Origin::Library, library, cubin.as_ptr());
        fire_load(Origin::Library, library, cubin.as_ptr());
    });
    assert_eq!((run.images(ImageOutcome::NoPortableCode), run.images(ImageOutcome::Twinned)), (1, 1));
    let kernel = code::kernel(library, "scale").unwrap();
    assert_ne!(launch(kernel), kernel);
    run.end();
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

#[test]
fn code_in_files_has_twins_too() {
    let _alone = alone();
    let mut run = Run::new(0);
    let path = std::env::temp_dir().join(format!("xputrace-code-{}", std::process::id()));
    let path_text = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    std::fs::write(&path, PTX).unwrap();
    let library = code::load(PTX);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (number, ptx) = run.image();
            assert_eq!(ptx, PTX.as_bytes());
            run.answer(number, &twin_of(&["scale"], &[]));
            let (number, cubin) = run.image();
            assert!(String::from_utf8_lossy(&cubin).contains(&format!("\n{}\n\x7fELF", path.display())));
            run.answer_with(number, twin_status::NO_PORTABLE_CODE);
        });
        fire_load_file(library, &path_text);
        std::fs::write(&path, &include_bytes!("images/plain.fatbin")[80..]).unwrap();
        fire_load_file(code::load(PTX), &path_text);
    });
    std::fs::remove_file(&path).unwrap();
    fire_load_file(code::load(PTX), &path_text);
    for outcome in [ImageOutcome::Twinned, ImageOutcome::NoPortableCode, ImageOutcome::File] {
        assert_eq!(run.images(outcome), 1, "{outcome:?}");
    }
    let kernel = code::kernel(library, "scale").unwrap();
    assert_ne!(launch(kernel), kernel);
    run.end();
}

fn fire_load_file(handle: u64, path: &CStr) {
    let mut stored = handle;
    let params = [(&raw mut stored) as u64, path.as_ptr() as u64, 0, 0, 0, 0, 0, 0];
    both(679, c"cuLibraryLoadFromFile", &params);
}

#[test]
fn garbage_harms_nothing() {
    let _alone = alone();
    let mut run = Run::new(0);
    let end = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let base = libc::mmap(std::ptr::null_mut(), 8192, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_eq!(libc::mprotect(base.byte_add(4096), 4096, libc::PROT_NONE), 0);
        base.cast::<u8>().add(4096)
    };
    let fatbin = include_bytes!("images/plain.fatbin");
    let at_end = |bytes: &[u8]| unsafe {
        let at = end.sub(bytes.len());
        at.copy_from(bytes.as_ptr(), bytes.len());
        at.cast_const()
    };
    let waits = long_timeouts();
    let images: [&dyn Fn() -> *const u8; 6] = [
        &|| std::ptr::dangling(),
        &|| end.cast_const(),
        &|| at_end(&fatbin[..2]),
        &|| at_end(&fatbin[..40]),
        &|| at_end(&fatbin[..3000]),
        &|| at_end(b".version 8.0"),
    ];
    for (n, image) in images.into_iter().enumerate() {
        fire_load(Origin::Library, code::load(PTX), image());
        assert_eq!(run.images(ImageOutcome::Unreadable), n as u64 + 1, "{n}");
    }
    assert_eq!(long_timeouts(), waits, "none waits for an answer");
    run.end();
}

#[test]
fn a_twin_that_cannot_be_used_leaves_the_original() {
    let _alone = alone();
    let mut run = Run::new(0);
    let library = code::load(PTX);
    let broken = Twin { code: b".broken".to_vec(), ..twin_of(&["scale"], &[]) };
    let kernels = vec!["scale".into(), "other".into()];
    let choices = vec![Choice::default(); 2];
    let lacks_kernel = Twin { kernels, names: vec![71, 72], choices, ..twin_of(&["scale"], &[]) };
    let lacks_block = Twin { code: b".entry scale$xpt() { ret; }".to_vec(), ..twin_of(&["scale"], &[]) };
    let lacks_variable = twin_of(&["scale"], &["absent"]);
    for twin in [broken, lacks_kernel, lacks_block, lacks_variable] {
        std::thread::scope(|scope| {
            scope.spawn(|| run.answer(run.image().0, &twin));
            fire_load(Origin::Library, library, text(PTX).as_ptr());
        });
    }
    assert_eq!((run.images(ImageOutcome::NotLoaded), run.images(ImageOutcome::Twinned)), (2, 2));
    let kernel = code::kernel(library, "scale").unwrap();
    assert_eq!(launch(kernel), kernel);
    assert_eq!(run.unprobed(Unprobed::NotReady), 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let number = run.image().0;
            run.socket().send(&Message::new(TWIN, &[number, twin_status::WOVEN, 100], ""));
        });
        fire_load(Origin::Library, library, text(PTX).as_ptr());
    });
    assert_eq!(run.images(ImageOutcome::NoAnswer), 1, "without a memory");
    run.end();
}

/// Loads an image, which the tracer does not answer, while `end` happens; it is over at once.
fn waits_no_longer(end: impl FnOnce(&mut Run)) {
    let _alone = alone();
    let mut run = Run::new(0);
    let loading = std::thread::spawn(|| {
        let library = code::load(PTX);
        fire_load(Origin::Library, library, text(PTX).as_ptr());
        long_timeouts()
    });
    run.image();
    end(&mut run);
    assert_eq!(loading.join().unwrap(), 0);
    let kernel = code::kernel(code::load(PTX), "scale").unwrap();
    assert_eq!(launch(kernel), kernel);
    if run.tracer.socket.is_some() {
        run.tracer.message();
    }
    run.tracer.until("leaving", |_| {
        cupti::call(DRIVER, 513, c"cuGraphInstantiate", 0);
        cupti::FINALIZED.load(SeqCst) + cupti::UNSUBSCRIBED.load(SeqCst) > 0
    });
}

#[test]
fn a_load_waits_no_longer_than_the_run() {
    waits_no_longer(|run| run.tracer.order(DISARM));
}

#[test]
fn a_load_waits_no_longer_than_the_tracer_lives() {
    waits_no_longer(|run| drop(run.tracer.socket.take()));
}

/// Loading is blocked by a kernel that only the program can end: it gets its turn.
#[test]
fn nobody_waits_for_a_driver_that_is_stuck() {
    let _alone = alone();
    let mut run = Run::new(0);
    code::IS_BLOCKED.store(true, SeqCst);
    let (waits, library) = (long_timeouts(), code::load(PTX));
    std::thread::scope(|scope| {
        scope.spawn(|| (0..2).for_each(|_| run.answer(run.image().0, &twin_of(&["scale"], &[]))));
        (0..2).for_each(|_| fire_load(Origin::Library, library, text(PTX).as_ptr()));
    });
    assert_eq!(run.images(ImageOutcome::NotLoaded), 2);
    assert_eq!(long_timeouts(), waits + 1, "the second one does not wait");
    let kernel = code::kernel(library, "scale").unwrap();
    assert_eq!(launch(kernel), kernel);
    both(680, c"cuLibraryUnload", &[library]);
    assert_eq!(long_timeouts(), waits + 1, "its code is not in use");
    code::IS_BLOCKED.store(false, SeqCst);
    run.socket().send(&Message::new(READ_DEVICE, &[1], ""));
    run.tracer.until("all jobs", |_| unsafe { &*run.block.cast::<device::Control>() }.answered.load(SeqCst) == 1);
    assert_eq!(launch(kernel), kernel, "what comes too late is dropped: the code may be gone");
    assert_eq!(code::LOADS.load(SeqCst), 1, "the other one was not begun");
    run.end();
}

#[test]
fn another_context_is_prepared_at_its_first_launch() {
    let _alone = alone();
    let mut run = Run::new(0);
    let library = run.load(Origin::Library, &["scale"], &[]);
    let (kernel, twin) =
        (code::kernel(library, "scale").unwrap(), code::kernel(library + 0x1000, "scale$xpt").unwrap());
    let another = CONTEXT + 1;
    assert_eq!(code::block(another), None);
    cupti::in_context(another, || {
        assert_eq!(launch(kernel), twin);
        assert_eq!(launch(code::function(kernel, another)), code::function(twin, another));
    });
    assert_ne!(code::block(another), code::block(CONTEXT));
    let device = code::variable(library + 0x1000, another, "xpt_device").unwrap();
    assert_eq!(code::word(device, 0), code::block(another).unwrap());
    let slots = [0, 1].map(|it| &run.control().slots[it]).map(|it| (it.context.load(SeqCst), it.swapped.load(SeqCst)));
    assert_eq!(slots, [(5, 0), (6, 2)]);
    // Code that is loaded later, too.
    cupti::in_context(another, || _ = run.load(Origin::Library, &["scale"], &[]));
    for (n, context) in (0..2 * MOST_CONTEXTS as u64).map(|it| (it, CONTEXT + it)) {
        cupti::in_context(context, || assert_eq!(launch(kernel) == twin, n < MOST_CONTEXTS as u64, "{n}"));
    }
    assert_eq!(run.unprobed(Unprobed::NoContext), MOST_CONTEXTS as u64);
    run.end();
}

/// Waits until the worker is in a call that blocks.
fn worker_is_stuck() {
    let until = Instant::now() + Duration::from_secs(120);
    while code::BLOCKED.load(SeqCst) == 0 {
        assert!(Instant::now() < until, "nothing blocks");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn unblock() {
    code::BLOCKS_IN.lock().unwrap().clear();
}

/// Runs something while the worker prepares a context and is stuck in a function of the driver.
fn while_stuck_in(function: &'static str, kernel: u64, context: u64, run: impl FnOnce()) {
    code::BLOCKS_IN.lock().unwrap().push(function);
    std::thread::scope(|scope| {
        scope.spawn(|| cupti::in_context(context, || assert_eq!(launch(kernel), kernel)));
        worker_is_stuck();
        run();
        unblock();
    });
}

/// A call that is stuck with a context returns some time after the context has ended. No other begins.
#[test]
fn the_worker_lets_go_of_a_context_that_ends() {
    let _alone = alone();
    let mut run = Run::new(0);
    let library = run.load(Origin::Library, &["scale"], &["table"]);
    let kernel = code::kernel(library, "scale").unwrap();
    for (n, function) in ["context_device", "wait_for_stream", "kernel_attribute"].into_iter().enumerate() {
        let context = CONTEXT + 1 + n as u64;
        while_stuck_in(function, kernel, context, || {
            let waits = long_timeouts();
            cupti::fire_resource(2, context);
            assert_eq!(long_timeouts(), waits, "{function}");
            code::end(context);
        });
        cupti::in_context(context, || assert_eq!(launch(kernel), kernel, "{function}"));
    }
    assert_ne!(launch(kernel), kernel);
    run.end();
    assert_eq!(code::MISUSES.load(SeqCst), 0);
}

#[test]
fn code_is_unloaded_when_the_call_with_it_has_returned_and_used_no_more() {
    let _alone = alone();
    let mut run = Run::new(0);
    let library = run.load(Origin::Library, &["scale"], &["table"]);
    let kernel = code::kernel(library, "scale").unwrap();
    let is_unloaded = AtomicBool::new(false);
    std::thread::scope(|scope| {
        while_stuck_in("library_global", kernel, CONTEXT + 1, || {
            scope.spawn(|| {
                cupti::fire(event(680, c"cuLibraryUnload", &[library]), 0);
                code::end(library);
                is_unloaded.store(true, SeqCst);
            });
            while launch(kernel) != kernel {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(!is_unloaded.load(SeqCst), "it is forgotten, and a call is using it");
        });
    });
    assert_eq!(launch(kernel), kernel);
    run.end();
    assert_eq!(code::MISUSES.load(SeqCst), 0);
}

/// Nobody tells what the program ends once the run is over. Nor does it wait long where the run is just ending.
#[test]
fn a_run_that_is_over_uses_nothing_of_the_programs() {
    let _alone = alone();
    let mut run = Run::new(0);
    let library = run.load(Origin::Library, &["scale"], &["table"]);
    let kernel = code::kernel(library, "scale").unwrap();
    while_stuck_in("library_global", kernel, CONTEXT + 1, || {
        run.tracer.order(DISARM);
        run.tracer.until("the end", |_| {
            cupti::call(DRIVER, 513, c"cuGraphInstantiate", 0);
            launch(kernel) == kernel
        });
        let waits = long_timeouts();
        both(680, c"cuLibraryUnload", &[library]);
        assert_eq!(long_timeouts(), waits);
        run.end();
        [library, CONTEXT, CONTEXT + 1].into_iter().for_each(code::end);
    });
    run.tracer.until("the worker", |_| code::BLOCKED.load(SeqCst) == 0);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(code::MISUSES.load(SeqCst), 0);
}

/// A launch runs in its stream's context, whichever is current.
#[test]
fn a_stream_of_another_context_takes_the_launch_there() {
    let _alone = alone();
    let mut run = Run::new(0);
    let [another, third] = [1, 2].map(|it| CONTEXT + it);
    let twins = twins_library(0x10_0000);
    // In the third context, the twin takes more.
    code::set(code::function(twins + 0x10, third), code::REGISTERS, 32);
    let library = run.load(Origin::Library, &["scale"], &[]);
    let (kernel, twin) = (library + 0x10, twins + 0x10);
    let [stream, of_third] = [0x70, 0x90];
    code::set_stream_context(stream, another);
    code::set_stream_context(of_third, third);
    let of_another = |it| code::function(it, another);
    assert_eq!(launch_in(stream, of_another(kernel)), of_another(twin));
    assert_eq!(launch_in(stream, kernel), twin);
    assert!(code::block(another).is_some(), "it is prepared there");
    let swapped = |slot: usize| run.control().slots[slot].swapped.load(SeqCst);
    assert_eq!((swapped(0), swapped(1)), (0, 2));
    assert_eq!(launch_in(0x80, kernel), twin, "a stream of the current context");
    assert_eq!((swapped(0), swapped(1)), (1, 2));
    // Whether it fits would be asked of the current context.
    let functions = |it| code::function(it, third);
    assert_eq!(launch_in(of_third, functions(kernel)), functions(kernel));
    cupti::in_context(third, || assert_eq!(launch_in(of_third, functions(kernel)), functions(twin)));
    assert_eq!(run.unprobed(Unprobed::MayNotFit), 1);
    // A stream is asked for once, until there is a new one, which may have its handle.
    let asked = code::CONTEXT_QUESTIONS.load(SeqCst);
    (0..10).for_each(|_| assert_eq!(launch_in(stream, kernel), twin));
    [0, 1, 2]
        .into_iter()
        .for_each(|it| assert_eq!(launch_in(it, kernel), twin, "a special one is the current context's"));
    assert_eq!(code::CONTEXT_QUESTIONS.load(SeqCst), asked);
    code::set_stream_context(stream, CONTEXT);
    assert_eq!(launch_in(stream, of_another(kernel)), of_another(kernel), "which has it in the other context only");
    code::set_stream_context(stream, 0x9999);
    assert_eq!(launch_in(stream, kernel), kernel);
    assert_eq!(run.unprobed(Unprobed::NoContext), 1);
    run.end();
}

#[test]
fn code_that_is_unloaded_is_forgotten() {
    let _alone = alone();
    let mut run = Run::new(0);
    for (origin, id, name) in [(Origin::Library, 680, c"cuLibraryUnload"), (Origin::Module, 22, c"cuModuleUnload")] {
        let library = run.load(origin, &["scale"], &[]);
        let mut handles = vec![code::function(code::kernel(library, "scale").unwrap(), CONTEXT)];
        handles.extend((origin == Origin::Library).then(|| code::kernel(library, "scale").unwrap()));
        handles.iter().for_each(|it| assert_ne!(launch(*it), *it));
        cupti::fire(event(id, name, &[library]), 0);
        handles.iter().for_each(|it| assert_eq!(launch(*it), *it, "before the handle can be another's"));
    }
    assert_eq!(run.unprobed(Unprobed::NotReady), 0);
    run.end();
}

#[test]
fn a_context_that_ends_is_copied_and_forgotten() {
    let _alone = alone();
    let mut run = Run::new(0);
    let library = run.load(Origin::Library, &["scale"], &[]);
    let (kernel, another) = (code::kernel(library, "scale").unwrap(), CONTEXT + 1);
    cupti::in_context(another, || assert_ne!(launch(kernel), kernel));
    code::set_word(code::block(another).unwrap(), 1, 42);
    both(322, c"cuCtxDestroy_v2", &[another]);
    assert_eq!((run.copied(1, 1), run.copied(0, 2)), (42, 0), "that context's alone");
    code::set_word(code::block(CONTEXT).unwrap(), 1, 43);
    cupti::fire(event(545, c"cuDevicePrimaryCtxReset_v2", &[3]), 0);
    assert_eq!(run.copied(0, 1), 43);
    cupti::fire_resource(2, another);
    let is_last = |slot: usize| run.control().slots[slot].is_last.load(SeqCst);
    assert_eq!((is_last(0), is_last(1)), (0, 1));
    cupti::in_context(another, || assert_eq!(launch(kernel), kernel));
    assert_ne!(launch(kernel), kernel);
    run.end();
}

/// The tracer counts contexts in which twins ran and whose last copy is none at their end.
#[test]
fn a_copy_that_fails_is_not_the_last_one() {
    let _alone = alone();
    let mut run = Run::new(0);
    let library = run.load(Origin::Library, &["scale"], &[]);
    let (kernel, [failed, later]) = (code::kernel(library, "scale").unwrap(), [1, 2].map(|it| CONTEXT + it));
    for context in [CONTEXT, failed, later] {
        cupti::in_context(context, || assert_ne!(launch(kernel), kernel));
    }
    let end = |context| {
        both(322, c"cuCtxDestroy_v2", &[context]);
        cupti::fire_resource(2, context);
    };
    code::COPIES_FAIL.store(true, SeqCst);
    end(failed);
    code::COPIES_FAIL.store(false, SeqCst);
    end(later);
    code::COPIES_FAIL.store(true, SeqCst);
    run.end();
    assert_eq!([0, 1, 2].map(|it| run.control().slots[it].is_last.load(SeqCst)), [0, 0, 1]);
}

#[test]
fn blocks_are_copied_when_the_tracer_asks() {
    let _alone = alone();
    let mut run = Run::new(0);
    let control = run.block.cast::<device::Control>();
    let read = |run: &mut Run, number, extent: CopyExtent| {
        run.socket().send(&Message::new(READ_DEVICE, &[number, extent as u64], ""));
        run.tracer.until("the copy", |_| unsafe { &*control }.answered.load(SeqCst) == number);
    };
    read(&mut run, 1, CopyExtent::Whole);
    run.load(Origin::Library, &["scale"], &[]);
    let generation = |run: &Run| run.control().slots[0].generation.load(SeqCst);
    assert_eq!(generation(&run), 0);
    for number in 2..5 {
        code::set_word(code::block(CONTEXT).unwrap(), 1, number * 10);
        read(&mut run, number, CopyExtent::Whole);
        assert_eq!((run.copied(0, 1), run.copied(0, 2)), (number * 10, 77));
        assert_eq!(generation(&run), (number - 1) * 2);
    }
    let (block, words) = (code::block(CONTEXT).unwrap(), [4, 5, 6]);
    run.control().slots[0].read.store(9, SeqCst);
    words.iter().for_each(|it| code::set_word(block, *it, 50));
    read(&mut run, 5, CopyExtent::Ring);
    assert_eq!(run.copied(0, 3), 9, "how much of the ring was read");
    assert_eq!(words.map(|it| run.copied(0, it)), [50, 50, 0], "what is the ring's");
    read(&mut run, 6, CopyExtent::Whole);
    assert_eq!(run.copied(0, 6), 50);
    run.end();
}

#[test]
fn a_block_says_where_the_gpu_has_arrays_of_linux() {
    let _alone = alone();
    let array = |at, bytes| (ArrayPlace { at, bytes }, memory(PAGE, false));
    let mut run = Run::with_arrays(0, &[array(16, 8), array(48, PAGE as u64)]);
    let library = run.load(Origin::Library, &["scale"], &[]);
    let kernel = code::kernel(library, "scale").unwrap();
    let another = CONTEXT + 1;
    cupti::in_context(another, || assert_ne!(launch(kernel), kernel));
    let addresses = |context| {
        let block = code::block(context).unwrap();
        [2, 6].map(|it| code::word(block, it).wrapping_add(block).wrapping_sub(code::ELSEWHERE))
    };
    let [first, second] = addresses(CONTEXT);
    assert_eq!(addresses(another), [first, second], "one memory");
    code::set_word(first, 0, 5);
    code::set_word(second, 511, 6);
    let of = |at: usize| unsafe { std::slice::from_raw_parts((run.arrays[at]).cast::<u64>(), 512) };
    assert_eq!((of(0)[0], of(1)[511]), (5, 6), "that of the tracer");
    run.end();
}

#[test]
fn leaving_runs_originals_and_leaves_twins_that_do_nothing() {
    let _alone = alone();
    let mut run = Run::new(demand::LAUNCHES);
    let library = run.load(Origin::Library, &["scale"], &[]);
    let kernel = code::kernel(library, "scale").unwrap();
    assert_ne!(launch(kernel), kernel);
    let block = code::block(CONTEXT).unwrap();
    code::set_word(block, 1, 1234);
    assert_eq!(run.end().kind, BYE);
    assert_eq!((run.copied(0, 0), run.copied(0, 1)), (1, 1234));
    let switches = code::variable(twins_library(library), CONTEXT, "xpt_device").unwrap();
    assert_eq!([0, 1, 7].map(|it| code::word(switches, it)), [0; 3]);
    assert_eq!(run.control().slots[0].is_last.load(SeqCst), 1);
    assert_eq!(launch(kernel), kernel);
    assert!(!cupti::is_enabled(DRIVER, 307) && !cupti::is_enabled(DRIVER, 678));

    // Another tracer comes: code that is loaded by then has no twin.
    cupti::reset();
    let mut again = Run::new(0);
    assert_eq!(launch(kernel), kernel);
    let library = again.load(Origin::Library, &["scale"], &[]);
    let kernel = code::kernel(library, "scale").unwrap();
    assert_ne!(launch(kernel), kernel);
    again.end();
}

#[test]
fn a_launch_runs_the_twin_of_the_conditions_that_hold() {
    let _alone = alone();
    let mut run = Run::on(0, |conditions| {
        conditions[0].every.store(3, SeqCst);
        conditions[1].every.store(2, SeqCst);
    });
    let (library, twins) = run.load_twins(&twins_for(&["scale", "other"], 1..4));
    let [scale, other] = [0x10, 0x20].map(|it| library + it);
    let launched = |kernel: u64| {
        let found = launch(kernel);
        if found == kernel { 0 } else { 1 + twins.iter().position(|it| found - it == kernel - library).unwrap() }
    };
    assert_eq!([scale; 7].map(launched), [3, 0, 2, 1, 2, 0, 3]);
    assert_eq!([other; 3].map(launched), [3, 0, 2], "each kernel counts by itself");
    let function = code::function(scale, CONTEXT);
    let functions = [function; 3].map(|it| launch(it) == function);
    assert_eq!(functions, [true, false, false], "whatever its handle: the 8th, 9th and 10th");
    assert_eq!((run.counts(0), run.counts(1), run.swapped()), ([13, 5, 0], [13, 7, 0], 9));
    run.end();

    // With a handler that has no condition, no launch runs the original.
    let mut run = Run::on(0, |conditions| conditions.iter().for_each(|it| it.is_off.store(1, SeqCst)));
    let (library, twins) = run.load_twins(&twins_for(&["scale"], 0..4));
    assert_eq!(launch(library + 0x10), twins[0] + 0x10);
    run.control().conditions[1].is_off.store(0, SeqCst);
    assert_eq!(launch(library + 0x10), twins[2] + 0x10);
    assert_eq!((run.counts(0), run.counts(1)), ([0; 3], [1, 1, 0]));
    run.end();
}

/// Handlers in Linux give a launch its tag, before its twin is chosen.
#[test]
fn a_launch_runs_the_twin_of_its_tag() {
    static SLOTS: AtomicUsize = AtomicUsize::new(0);
    static LAUNCHES: AtomicU64 = AtomicU64::new(0);
    extern "C" fn tag(_: *const u64, slot: u64) {
        let slots = SLOTS.load(SeqCst) as *mut u64;
        let tag = LAUNCHES.fetch_add(1, SeqCst);
        if tag > 0 {
            unsafe { slots.add(slot as usize * 2 + 1).write(tag) };
            unsafe { slots.add(slot as usize * 2).write(1) };
        }
    }
    let _alone = alone();
    let mut run = Run::on(demand::LAUNCHES | demand::MARKER, |conditions| {
        conditions[0].has_tag.store(1, SeqCst);
        conditions[1].has_tag.store(1, SeqCst);
        conditions[1].tag.store(2, SeqCst);
    });
    let (library, twins) = run.load_twins(&twins_for(&["scale"], 1..4));
    SLOTS.store(run.tracer.tags as usize, SeqCst);
    put_at_marker(Some(tag));
    let launched: Vec<u64> = (0..4).map(|_| launch(library + 0x10)).collect();
    put_at_marker(None);
    assert_eq!(launched, [library, library, twins[1], library].map(|it| it + 0x10), "without a tag, with 1, 2 and 3");
    assert_eq!((run.counts(0), run.counts(1)), ([0; 3], [1, 1, 0]));
    run.end();
}

#[test]
fn a_launch_that_was_chosen_and_cannot_run_its_twin_is_counted() {
    let _alone = alone();
    let mut run = Run::on(0, |conditions| conditions[1].every.store(2, SeqCst));
    let (library, _) = run.load_twins(&twins_for(&["scale"], 1..4));
    let kernel = library + 0x10;
    let too_large = |n: u32| (0..n).for_each(|_| assert_eq!(launch_with(kernel, 1025, 0), kernel));
    too_large(4);
    assert_eq!((run.counts(0), run.counts(1)), ([4, 4, 4], [4, 2, 2]));
    run.control().conditions[0].is_off.store(1, SeqCst);
    too_large(4);
    assert_eq!((run.counts(0), run.counts(1)), ([4, 4, 4], [8, 4, 4]));
    assert_eq!(run.unprobed(Unprobed::BlockTooLarge), 6);
    code::set_stream_context(77, 0x9999);
    assert_eq!(launch_in(77, kernel), kernel);
    assert_eq!((run.counts(1), run.unprobed(Unprobed::NoContext)), ([9, 5, 5], 1));
    run.end();
}

/// Nodes of graphs keep their twins: the variable tells those whether to do anything.
#[test]
fn twins_are_switched_by_their_variable() {
    let _alone = alone();
    let mut run = Run::new(0);
    let (library, twins) = run.load_twins(&twins_for(&["scale"], 1..4));
    let block = code::block(CONTEXT).unwrap();
    let switches = || {
        twins
            .iter()
            .map(|it| {
                let variable = code::variable(*it, CONTEXT, "xpt_device").unwrap();
                [0, 1, 2, 3].map(|it| code::word(variable, it) == block)
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(switches(), [[true; 4]; 3]);
    run.control().conditions[1].is_off.store(1, SeqCst);
    run.read_device();
    assert_eq!(switches(), [[true; 4]; 3], "what was launched before may not have run yet");
    (0..9).for_each(|_| run.read_device());
    assert_eq!(switches(), [[true, true, false, true]; 3]);
    let (_, later) = run.load_twins(&twins_for(&["scale"], [1]));
    let variable = code::variable(later[0], CONTEXT, "xpt_device").unwrap();
    assert_eq!([1, 2].map(|it| code::word(variable, it)), [block, 0], "that is loaded meanwhile");
    run.control().conditions[1].is_off.store(0, SeqCst);
    assert_eq!(launch(library + 0x10), twins[0] + 0x10, "the other would do nothing yet");
    run.read_device();
    assert_eq!(switches(), [[true; 4]; 3]);
    assert_eq!(code::word(variable, 2), block);
    assert_eq!(launch(library + 0x10), twins[2] + 0x10);
    run.end();
    assert_eq!(switches(), [[false; 4]; 3]);
}

#[test]
fn a_twin_takes_the_attributes_of_its_original() {
    let _alone = alone();
    let mut run = Run::new(0);
    let library = code::load(PTX);
    let kernel = code::kernel(library, "scale").unwrap();
    let (other, twins) = (code::kernel(library, "other").unwrap(), library + 0x1000);
    code::set(kernel, 8, 60_000);
    code::set(kernel, 14, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| run.answer(run.image().0, &twin_of(&["scale", "other"], &[])));
        fire_load(Origin::Library, library, text(PTX).as_ptr());
    });
    let [twin, others_twin] = ["scale", "other"].map(|it| code::kernel(twins, &twin_symbol(it)).unwrap());
    assert_eq!((code::attribute(twin, 8), code::attribute(twin, 14)), (60_000, 1));
    let launch_shared = |shared| (launch_with(kernel, 64, shared), code::attribute(twin, 8));
    assert_eq!(launch_shared(60_000), (twin, 60_000));
    assert_eq!(launch_shared(70_000), (kernel, 60_000), "CUDA refuses it, as without us");
    let allow = |bytes: u64| {
        code::set(kernel, 8, bytes as i32);
        both(687, c"cuKernelSetAttribute", &[bytes << 32 | 8, kernel, 3]);
    };
    allow(80_000);
    assert_eq!([70_000, 65_000, 80_001].map(launch_shared), [(twin, 70_000), (twin, 70_000), (kernel, 70_000)]);
    allow(50_000);
    assert_eq!([65_000, 50_000].map(launch_shared), [(kernel, 70_000), (twin, 70_000)]);
    assert_eq!(run.unprobed(Unprobed::AttributeRefused), 0);
    allow(200_000);
    assert_eq!(launch_shared(100_001), (kernel, 70_000));
    assert_eq!(run.unprobed(Unprobed::AttributeRefused), 1);
    assert_eq!(launch_with(kernel, 1025, 0), kernel);
    assert_eq!(run.unprobed(Unprobed::BlockTooLarge), 1);
    // What the program sets later: `cuKernelSetAttribute` and `cuFuncSetAttribute`.
    both(687, c"cuKernelSetAttribute", &[7 << 32 | 9, other, 3]);
    assert_eq!(code::attribute(others_twin, 9), 7);
    let [function, functions_twin] = [other, others_twin].map(|it| code::function(it, CONTEXT));
    both(481, c"cuFuncSetAttribute", &[function, 5 << 32 | 9]);
    assert_eq!(code::attribute(functions_twin, 9), 5);
    both(481, c"cuFuncSetAttribute", &[function, 200_000 << 32 | 9]);
    assert_eq!(launch(function), function);
    assert_eq!((launch(other), run.unprobed(Unprobed::AttributeRefused)), (others_twin, 2));
    run.end();
}

/// Of 64 threads, in one dimension.
fn launch_config(blocks: u64, attributes: &[[u64; 9]]) -> [u64; 7] {
    let attributes = (attributes.as_ptr() as u64, attributes.len() as u64);
    [1 << 32 | blocks, 64 << 32 | 1, 1 << 32 | 1, 0, 0, attributes.0, attributes.1]
}

/// Launches a kernel by `cuLaunchKernelEx`; returns what is launched.
fn launch_ex(kernel: u64, blocks: u64, attributes: &[[u64; 9]]) -> u64 {
    let config = launch_config(blocks, attributes);
    let params = [config.as_ptr() as u64, kernel, 0, 0];
    cupti::fire(event(652, c"cuLaunchKernelEx", &params), 0);
    unsafe { (&raw const params[1]).read_volatile() }
}

/// An attribute of a launch.
fn attribute(id: u64, value: u64) -> [u64; 9] {
    [id, value, 0, 0, 0, 0, 0, 0, 0]
}

/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`.
fn cluster([x, y, z]: [u64; 3]) -> [u64; 9] {
    [4, y << 32 | x, z, 0, 0, 0, 0, 0, 0]
}

/// The driver refuses a cooperative launch that does not fit as a whole.
#[test]
fn a_cooperative_launch_runs_a_twin_that_fits() {
    let _alone = alone();
    let mut run = Run::new(0);
    let (larger, equal) = (0x10, 0x20);
    let twins = twins_library(0x10_0000);
    code::set(twins + larger, code::REGISTERS, 32);
    let library = run.load(Origin::Library, &["scale", "other"], &[]);
    let cooperative = |kernel: u64, blocks: u64| {
        let params = [kernel, 1 << 32 | blocks, 64 << 32 | 1, 1 << 32 | 1, 0, 0, 0, 0];
        cupti::fire(event(477, c"cuLaunchCooperativeKernel", &params), 0);
        let by_call = unsafe { params.as_ptr().read_volatile() };
        assert_eq!(
            launch_ex(kernel, blocks, &[attribute(4, 0), attribute(2, 1)]),
            by_call,
            "the attribute says it, too"
        );
        by_call
    };
    // As in the test below.
    let [fits_twin, fits_original] = [32, 64].map(|it| it * code::SMS as u64);
    let launched = [fits_twin, fits_twin + 1, fits_original].map(|it| cooperative(library + larger, it));
    assert_eq!(launched, [twins + larger, library + larger, library + larger]);
    assert_eq!((run.unprobed(Unprobed::Cooperative), run.unprobed(Unprobed::MayNotFit)), (4, 0));
    assert_eq!(cooperative(library + larger, fits_original + 1), twins + larger, "the driver refuses either");
    assert_eq!(cooperative(library + equal, fits_original), twins + equal);
    let both = [cluster([4, 1, 1]), attribute(2, 1)];
    assert_eq!(launch_ex(library + larger, fits_twin, &both), twins + larger);
    assert_eq!(launch_ex(library + larger, fits_original, &both), library + larger);
    assert_eq!((run.unprobed(Unprobed::Cooperative), run.unprobed(Unprobed::MayNotFit)), (5, 0));
    assert_eq!(launch_ex(library + larger, 1, &[attribute(4, 0), attribute(2, 0)]), twins + larger);
    run.end();
}

/// A twin with more registers fits fewer blocks. Blocks of a grid that fits as a whole may wait for each other.
#[test]
fn a_twin_runs_where_it_fits_as_its_original_does() {
    let _alone = alone();
    let mut run = Run::new(0);
    // Of 64 threads: 64 blocks of the original fit on a multiprocessor, and 32 of the twin with twice the registers.
    let (larger, equal) = (0x10, 0x20);
    let twins = twins_library(0x10_0000);
    for handle in [twins + larger, code::function(twins + larger, CONTEXT)] {
        code::set(handle, code::REGISTERS, 32);
    }
    let library = run.load(Origin::Library, &["scale", "other"], &[]);
    assert_eq!(twins, twins_library(library));
    let (original, twin) = (library + larger, twins + larger);
    let sms = code::SMS as u64;
    let [fits_twin, fits_original] = [32 * sms, 64 * sms];
    let of_context = |it| code::function(it, CONTEXT);
    for (kernel, its_twin) in [(original, twin), (of_context(original), of_context(twin))] {
        for (blocks, launched) in [
            (1, its_twin),
            (fits_twin, its_twin),
            (fits_twin + 1, kernel),
            (fits_original, kernel),
            (fits_original + 1, its_twin),
        ] {
            assert_eq!(launch_ex(kernel, blocks, &[]), launched, "{blocks}");
        }
    }
    assert_eq!(run.unprobed(Unprobed::MayNotFit), 4);
    // Of 1024 threads each, a multiprocessor has room for a block of the original, and for none of the twin.
    for handle in [original, twin] {
        code::set(handle, code::REGISTERS, if handle == twin { 65 } else { 64 });
    }
    assert_eq!(launch_with(original, 1024, 0), original);
    assert_eq!(run.unprobed(Unprobed::MayNotFit), 5);
    // A twin that takes no more is not asked about.
    let questions = code::OCCUPANCY_QUESTIONS.load(SeqCst);
    assert_eq!(launch_ex(library + equal, 100, &[cluster([2, 1, 1])]), twins + equal);
    assert_eq!(code::OCCUPANCY_QUESTIONS.load(SeqCst), questions);
    run.end();
}

/// A library whose first kernel has a twin with twice the registers: of 64 threads, 32 of its blocks fit on a multiprocessor
/// in place of 64. Also returns both.
fn load_larger(run: &Run) -> (u64, u64) {
    let twins = twins_library(0x10_0000);
    let twin = twins + 0x10;
    for handle in [twin, code::function(twin, CONTEXT)] {
        code::set(handle, code::REGISTERS, 32);
    }
    let library = run.load(Origin::Library, &["scale", "other"], &[]);
    assert_eq!(twins, twins_library(library));
    (library + 0x10, twin)
}

/// Fewer clusters of a twin with more registers fit.
#[test]
fn a_twin_in_clusters_runs_where_it_fits_as_its_original_does() {
    let _alone = alone();
    let mut run = Run::new(0);
    let (original, twin) = load_larger(&run);
    let [fits_twin, fits_original] = [32, 64].map(|it| it * code::SMS as u64);
    let cases = [(fits_twin, twin), (fits_twin + 8, original), (fits_original, original), (fits_original + 8, twin)];
    for (blocks, launched) in cases {
        assert_eq!(launch_ex(original, blocks, &[cluster([4, 2, 1])]), launched, "{blocks}");
    }
    assert_eq!(run.unprobed(Unprobed::MayNotFit), 2);
    // Of the larger cluster none of the twin's fits.
    assert_eq!(launch_ex(original, fits_original + 128, &[cluster([128, 1, 1])]), original);
    assert_eq!(run.unprobed(Unprobed::MayNotFit), 3);
    // As the kernel has them itself, and the launch nothing.
    for (attribute, extent) in [(11, 2), (12, 2), (13, 2)] {
        [original, twin].iter().for_each(|it| code::set(*it, attribute, extent));
    }
    for (blocks, launched) in cases {
        assert_eq!(launch_ex(original, blocks, &[]), launched, "{blocks}");
    }
    assert_eq!(run.unprobed(Unprobed::MayNotFit), 5);
    code::FAILS_IN.lock().unwrap().push("active_clusters");
    assert_eq!(launch_ex(original, 8, &[]), original, "where the driver does not say");
    run.end();
}

/// A node's clusters are none of what describes it, and may change when it has its kernel.
#[test]
fn a_node_in_clusters_is_made_of_a_twin_that_fits() {
    let _alone = alone();
    let mut run = Run::new(0);
    let (original, twin) = load_larger(&run);
    let blocks = 32 * code::SMS as u64;
    let of = |kernel: u64| [0, 1 << 32 | blocks, 64 << 32 | 1, 1 << 32 | 1, 0, 0, 0, kernel, 0];
    let (node, none) = (0x77, [0; 3]);
    let any = [vec![0, 0], of(original).to_vec(), vec![0; 21]].concat();
    let change = |id: u32, handles: &[u64], description: &[u64]| {
        let params = [handles, &[description.as_ptr() as u64, 0]].concat();
        cupti::fire(event(id, c"cuGraphKernelNodeSetParams", &params), 0);
        let at = (&raw const params[handles.len()]).cast::<*const u64>();
        unsafe { at.read_volatile().add(description.iter().position(|it| *it == original).unwrap()).read() }
    };
    for (cluster, made_of) in [(none, twin), ([64, 1, 1], twin), ([128, 1, 1], original)] {
        code::set_node(node, of(original), cluster);
        for (ids, description) in [([691, 692], of(original).as_slice()), ([713, 714], &any)] {
            let changed = [change(ids[0], &[node], description), change(ids[1], &[0x99, node], description)];
            assert_eq!(changed, [made_of; 2], "{cluster:?}");
        }
    }
    assert_eq!(run.unprobed(Unprobed::MayNotFit), 4);
    for (id, cluster, stays) in [(571, none, true), (571, [64, 1, 1], true), (569, [128, 1, 1], false)] {
        code::set_node(node, of(twin), cluster);
        both(id, c"cuGraphKernelNodeSetAttribute", &[node, 4, 0]);
        assert_eq!(code::node(node), of(if stays { twin } else { original }), "{cluster:?}");
    }
    assert_eq!(run.unprobed(Unprobed::MayNotFit), 5);
    code::set_node(node, of(original), [128, 1, 1]);
    both(571, c"cuGraphKernelNodeSetAttribute", &[node, 4, 0]);
    assert_eq!((code::node(node), run.unprobed(Unprobed::MayNotFit)), (of(original), 5), "it has no twin");
    run.end();
}

#[test]
fn a_node_that_gets_its_original_back_counts_as_one_without_handlers() {
    let _alone = alone();
    let mut run = Run::new(0);
    let twin = twins_library(0x10_0000) + 0x10;
    code::set(twin, code::REGISTERS, 32);
    let (library, twins) = run.load_twins(&twins_for(&["scale"], [3]));
    let original = library + 0x10;
    assert_eq!(twin, twins[0] + 0x10);
    let blocks = 32 * code::SMS as u64;
    let of = |kernel: u64| [0, 1 << 32 | blocks, 64 << 32 | 1, 1 << 32 | 1, 0, 0, 0, kernel, 0];
    let (node, description) = (0x77, of(original));
    code::set_node(node, description, [0; 3]);
    both(691, c"cuGraphKernelNodeSetParams", &[node, description.as_ptr() as u64, 0]);
    assert_eq!((run.swapped(), run.counts(0), run.counts(1)), (1, [1, 1, 0], [1, 1, 0]));
    // No such cluster of the twin's fits.
    code::set_node(node, of(twin), [128, 1, 1]);
    for _ in 0..2 {
        both(571, c"cuGraphKernelNodeSetAttribute", &[node, 4, 0]);
        assert_eq!(code::node(node), of(original));
        assert_eq!((run.swapped(), run.unprobed(Unprobed::MayNotFit)), (0, 1));
        assert_eq!((run.counts(0), run.counts(1)), ([1, 1, 1], [1, 1, 1]));
    }
    // A clone of it.
    code::set_node(node, of(twin), [128, 1, 1]);
    both(571, c"cuGraphKernelNodeSetAttribute", &[node, 4, 0]);
    assert_eq!((run.swapped(), run.unprobed(Unprobed::MayNotFit)), (0, 2));
    run.end();
}

/// The program's own structures stay as they are, and it is told of its own kernels.
#[test]
fn nodes_of_graphs_are_made_of_twins() {
    let _alone = alone();
    let mut run = Run::new(0);
    let library = run.load(Origin::Library, &["scale"], &[]);
    let (kernel, twin) =
        (code::kernel(library, "scale").unwrap(), code::kernel(library + 0x1000, "scale$xpt").unwrap());
    let [function, functions_twin] = [kernel, twin].map(|it| code::function(it, CONTEXT));
    let sizes = [1 << 32 | 1, 32 << 32 | 1, 1 << 32 | 1, 0, 0];
    let node = |function: u64, kernel: u64, context: u64| {
        let mut node = vec![function];
        node.extend(sizes);
        node.extend([0, kernel, context]);
        node
    };
    let made = |id: u32, at: usize, structure: &[u64]| {
        let mut params = [0u64; 6];
        params[at / 8] = structure.as_ptr() as u64;
        cupti::fire(event(id, c"cuGraphAddKernelNode", &params), 0);
        let seen = unsafe { (&raw const params[at / 8]).read_volatile() as *const u64 };
        unsafe { std::slice::from_raw_parts(seen, structure.len()) }.to_vec()
    };
    for (id, at) in [(502, 32), (521, 8), (538, 16)] {
        let program = node(function, 0, 0)[..7].to_vec();
        let kept = program.clone();
        assert_eq!(made(id, at, &program), node(functions_twin, 0, 0)[..7], "{id}");
        assert_eq!(program, kept);
    }
    for (id, at) in [(689, 32), (691, 8), (692, 16)] {
        assert_eq!(made(id, at, &node(0, kernel, 0)), node(0, twin, 0), "{id}");
        assert_eq!(made(id, at, &node(function, 0, CONTEXT)), node(functions_twin, 0, CONTEXT), "{id}");
        assert_eq!(made(id, at, &node(0, kernel, 0x9999)), node(0, kernel, 0x9999), "in a context that is not known");
    }
    let any = |kind: u64, node: Vec<u64>| [vec![kind, 0], node, vec![0; 21]].concat();
    for (id, at) in [(712, 32), (723, 40), (713, 8), (714, 16)] {
        assert_eq!(made(id, at, &any(0, node(0, kernel, 0))), any(0, node(0, twin, 0)), "{id}");
        assert_eq!(made(id, at, &any(1, node(0, kernel, 0))), any(1, node(0, kernel, 0)), "no kernel");
    }
    for (id, size) in [(503, 7), (690, 9)] {
        let mut asked = node(functions_twin, 0, 0)[..size].to_vec();
        both(id, c"cuGraphKernelNodeGetParams", &[0, asked.as_mut_ptr() as u64]);
        assert_eq!(asked[0], function);
    }
    let mut asked = node(0, twin, 0);
    both(690, c"cuGraphKernelNodeGetParams_v2", &[0, asked.as_mut_ptr() as u64]);
    assert_eq!(asked, node(0, kernel, 0));
    run.end();
}

#[test]
fn nothing_is_allocated_at_a_launch() {
    let _alone = alone();
    let mut run = Run::new(demand::LAUNCHES);
    let library = run.load(Origin::Library, &["scale"], &[]);
    let (kernel, other) = (code::kernel(library, "scale").unwrap(), code::kernel(library, "other").unwrap());
    (0..10).for_each(|_| assert_ne!(launch(kernel), kernel));
    let before = ALLOCATIONS.get();
    (0..1000).for_each(|_| {
        assert_ne!(launch(kernel), kernel);
        assert_eq!(launch(other), other);
    });
    assert_eq!(ALLOCATIONS.get(), before);
    assert_eq!(run.swapped(), 1010);
    run.end();
}

/// Threads launch while images come and go.
#[test]
fn launches_beside_loads_run_their_own_twins() {
    let _alone = alone();
    let mut run = Run::new(demand::LAUNCHES);
    let library = run.load(Origin::Library, &["scale"], &[]);
    let (kernel, twin) =
        (code::kernel(library, "scale").unwrap(), code::kernel(library + 0x1000, "scale$xpt").unwrap());
    let stop = AtomicBool::new(false);
    let made: u64 = std::thread::scope(|scope| {
        let launch = || {
            let mut made = 0;
            while !stop.load(SeqCst) {
                assert_eq!(launch(kernel), twin);
                made += 1;
            }
            made
        };
        let threads = [scope.spawn(launch), scope.spawn(launch)];
        for _ in 0..20 {
            let library = run.load(Origin::Library, &["scale"], &[]);
            both(680, c"cuLibraryUnload", &[library]);
        }
        stop.store(true, SeqCst);
        threads.into_iter().map(|it| it.join().unwrap()).sum()
    });
    assert_eq!(run.swapped(), made);
    run.end();
}

#[test]
fn a_device_region_that_is_not_as_it_should_be_is_refused() {
    let whole = Arc::new(memory(BLOCK.size(), true));
    let cases: [(&str, OwnedFd, &str); 5] = [
        ("", whole.try_clone().unwrap(), "as a block's size"),
        ("12", whole.try_clone().unwrap(), "a block of 12 bytes"),
        ("64 24 32 40 72", whole.try_clone().unwrap(), "a block of 64 bytes"),
        ("8192", whole.try_clone().unwrap(), "were announced"),
        ("64", memory(BLOCK.size(), false), "sealed against shrinking"),
    ];
    for (blocks, memory, why) in cases {
        let _alone = alone();
        let listener = listen();
        let address = listener.address.clone();
        let thread = std::thread::spawn(move || {
            let refused = arm(listener.accept(), demand::DEVICE, blocks, &memory, &[]).message();
            assert_eq!(refused.kind, REFUSED);
            assert!(refused.text.contains(why), "{}", refused.text);
        });
        let dormant = xputrace_agent::arm(&address, Trust::RootAndThisUser, world).unwrap_err();
        thread.join().unwrap();
        assert!(matches!(dormant, Dormant::Refused(_)));
    }
}

/// Takes the request for a kernel's twin.
fn asked(run: &Run, symbol: &str) -> u64 {
    let (number, asked) = run.image();
    assert_eq!(String::from_utf8(asked).unwrap(), symbol);
    number
}

/// Launches until something else is launched, and returns that.
fn until_twin(handle: u64) -> u64 {
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        let launched = launch(handle);
        if launched != handle {
            return launched;
        }
        assert!(Instant::now() < until, "no twin");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn kernels_that_were_loaded_before_get_their_twins_while_originals_run() {
    let _alone = alone();
    let library = code::load(PTX);
    let kernel = code::kernel(library, "scale").unwrap();
    let mut run = Run::late(demand::LAUNCHES | demand::KERNELS);
    assert_eq!([launch(kernel), launch(kernel)], [kernel; 2], "nobody waits");
    run.answer(asked(&run, "scale"), &twin_of(&["scale"], &["table"]));
    let twin = until_twin(kernel);
    assert_eq!(twin, code::kernel(twins_library(library), "scale$xpt").unwrap());
    let of_context = |it| code::function(it, CONTEXT);
    assert_eq!(launch(of_context(kernel)), of_context(twin), "and its function");
    assert!(run.unprobed(Unprobed::NotReady) >= 2);
    assert_eq!((run.images(ImageOutcome::Twinned), run.swapped()), (1, 2));
    let variable = |library, name| code::variable(library, CONTEXT, name).unwrap();
    assert_eq!(code::word(variable(twins_library(library), "xpt_globals"), 0), variable(library, "table"));
    both(680, c"cuLibraryUnload", &[library]);
    assert_eq!(launch(kernel), kernel, "the handle may be another kernel's");
    run.answer_with(asked(&run, "scale"), twin_status::NOTHING);
    run.end();
    assert_eq!(code::MISUSES.load(SeqCst), 0);
}

#[test]
fn a_function_that_was_got_before_has_a_twin_until_any_library_is_unloaded() {
    let _alone = alone();
    let (library, other) = (code::load(PTX), code::load(PTX));
    let function = code::function(code::kernel(library, "scale").unwrap(), CONTEXT);
    let mut run = Run::late(0);
    for _ in 0..3 {
        assert_eq!(launch(function), function);
        run.answer(asked(&run, "scale"), &twin_of(&["scale"], &[]));
        let launched = until_twin(function);
        let twin = code::kernel(twins_library(other), "scale$xpt").unwrap();
        assert_eq!(launched, code::function(twin, CONTEXT), "it is loaded once");
        // Of which library a module is that the driver has made is not known.
        both(680, c"cuLibraryUnload", &[other]);
    }
    assert_eq!(launch(function), function);
    run.answer_with(asked(&run, "scale"), twin_status::NOTHING);
    run.end();
}

#[test]
fn launches_of_kernels_without_a_twin_are_counted_by_why() {
    let _alone = alone();
    let library = code::load(PTX);
    let kernel = code::kernel(library, "scale").unwrap();
    for (status, why) in [
        (twin_status::NOT_IN_FILES, Unprobed::NotInFiles),
        (twin_status::NO_PORTABLE_CODE, Unprobed::NoPortableCode),
        (twin_status::OLDER_PORTABLE_CODE, Unprobed::OlderPortableCode),
        (twin_status::AMBIGUOUS, Unprobed::Ambiguous),
        (twin_status::FAILED, Unprobed::NoTwin),
    ] {
        let mut run = Run::late(0);
        launch(kernel);
        run.answer_with(asked(&run, "scale"), status);
        run.tracer.until("the reason", |_| run_unprobed(run.block, why) == 1);
        (0..3).for_each(|_| assert_eq!(launch(kernel), kernel));
        assert_eq!(run.unprobed(why), 4, "{why:?}");
        assert_eq!(run.control().unprobed.iter().map(|it| it.load(SeqCst)).sum::<u64>(), 4);
        run.end();
    }
}

/// Begins a run after the kernels were loaded; returns them. Each has been launched three times since.
fn late_to_two_kernels() -> (Run, [u64; 2]) {
    let library = code::load(PTX);
    let kernels = ["scale", "other"].map(|it| code::kernel(library, it).unwrap());
    let run = Run::late(0);
    (0..3).for_each(|_| assert_eq!(kernels.map(launch), kernels));
    (run, kernels)
}

#[test]
fn launches_count_while_nobody_knows_their_kernel() {
    let _alone = alone();
    let (mut run, _) = late_to_two_kernels();
    assert_eq!(run.unprobed(Unprobed::NotKnown), 6);
    run.answer_with(asked(&run, "scale"), twin_status::NO_PORTABLE_CODE);
    run.tracer.until("the reason", |_| run_unprobed(run.block, Unprobed::NotKnown) == 3);
    assert_eq!(run.unprobed(Unprobed::NoPortableCode), 3);
    // The other one is never answered for.
    run.end();
    assert_eq!(run.unprobed(Unprobed::NotKnown), 3);
}

#[test]
fn launches_of_more_kernels_than_there_is_room_for_are_counted() {
    const ROOM: u64 = 1 << 13;
    let _alone = alone();
    let library = code::load(PTX);
    let kernel = code::kernel(library, "scale").unwrap();
    let mut run = Run::late(0);
    // Of what is no kernel, the driver tells nothing.
    (1..=ROOM).for_each(|it| assert_eq!(launch(it << 12), it << 12));
    assert_eq!(run.control().unprobed.iter().map(|it| it.load(SeqCst)).sum::<u64>(), 0);
    (0..2).for_each(|_| assert_eq!(launch(kernel), kernel));
    assert_eq!(run.unprobed(Unprobed::TooManyKernels), 2);
    both(680, c"cuLibraryUnload", &[code::load(PTX)]);
    assert_eq!(launch(kernel), kernel);
    run.answer(asked(&run, "scale"), &twin_of(&["scale"], &[]));
    assert_ne!(until_twin(kernel), kernel, "there is room again");
    run.end();
}

fn run_unprobed(block: *mut u8, why: Unprobed) -> u64 {
    unsafe { &*block.cast::<device::Control>() }.unprobed[why as usize].load(SeqCst)
}

#[test]
fn a_twin_with_other_parameters_does_not_run() {
    let _alone = alone();
    let library = code::load(PTX);
    let kernel = code::kernel(library, "scale").unwrap();
    let mut run = Run::late(0);
    launch(kernel);
    let text = ".version 8.0\n.global .u64 xpt_device;\n.entry scale$xpt(.param .u64 p, .param .u64 q) { ret; }\n";
    let twin = Twin { code: text.into(), names: vec![], ..twin_of(&["scale"], &[]) };
    run.answer(asked(&run, "scale"), &twin);
    run.tracer.until("the reason", |_| run_unprobed(run.block, Unprobed::Unlike) == 1);
    assert_eq!(launch(kernel), kernel);
    assert_eq!((run.unprobed(Unprobed::Unlike), run.images(ImageOutcome::Unlike)), (2, 0));
    run.end();
}

#[test]
fn kernels_that_no_handler_names_are_asked_for_once_and_not_counted() {
    let _alone = alone();
    let (mut run, [scale, other]) = late_to_two_kernels();
    run.answer_with(asked(&run, "scale"), twin_status::NOTHING);
    run.answer(asked(&run, "other"), &twin_of(&["other"], &[]));
    until_twin(other);
    // What the program loads from now on is known, and never asked for by name.
    let later = run.load(Origin::Library, &["other"], &[]);
    let of_later = code::kernel(later, "scale").unwrap();
    (0..3).for_each(|_| assert_eq!([launch(scale), launch(of_later)], [scale, of_later]));
    assert!(run.unprobed(Unprobed::NotReady) >= 3);
    run.socket().send(&Message::new(READ_DEVICE, &[1], ""));
    run.end();
}

/// The program may unload a kernel's code before there is an answer.
#[test]
fn an_answer_that_comes_too_late_is_dropped() {
    let _alone = alone();
    let library = code::load(PTX);
    let kernel = code::kernel(library, "scale").unwrap();
    let mut run = Run::late(0);
    launch(kernel);
    let number = asked(&run, "scale");
    both(680, c"cuLibraryUnload", &[library]);
    code::end(library);
    run.answer(number, &twin_of(&["scale"], &["table"]));
    run.read_device();
    let images = run.control().images.iter().map(|it| it.load(SeqCst)).sum::<u64>();
    assert_eq!((code::MISUSES.load(SeqCst), images, run.unprobed(Unprobed::NotReady)), (0, 0, 1));
    run.end();
}
