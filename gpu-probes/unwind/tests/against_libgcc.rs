//! Every stack is held against libgcc's own unwinder, at the same moment.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use xputrace_unwind::{
    Bounds, End, MOST_FRAMES, MappedObject, Pushed, Registers, StackMemory, StackMemoryKey, UnwindTables, Walker,
    push_registers,
};

// Hands on to `on_call` with the registers that the caller relies on. libgcc unwinds through it.
core::arch::global_asm!(
    ".type callback, @function",
    "callback:",
    ".cfi_startproc",
    push_registers!(),
    ".cfi_adjust_cfa_offset 56",
    "mov rdi, rsp",
    "call {}",
    "add rsp, 56",
    ".cfi_adjust_cfa_offset -56",
    "ret",
    ".cfi_endproc",
    ".size callback, . - callback",
    sym on_call
);

unsafe extern "C" {
    fn callback();
}

struct Thread {
    tables: &'static UnwindTables,
    bounds: Bounds,
    walker: Box<Walker>,
    remembering: Remembering,
    calls: u64,
    frames: u64,
    wrong: Vec<String>,
}

/// A walker that is only asked for stacks that are not remembered.
struct Remembering {
    walker: Box<Walker>,
    memory: Box<StackMemory>,
    /// By the numbers that they are kept with.
    stacks: Vec<Vec<u64>>,
    recalled: u64,
}

impl Remembering {
    fn new() -> Self {
        let (walker, memory) = (Box::new(Walker::new()), Box::new(StackMemory::new()));
        Remembering { walker, memory, stacks: Vec::new(), recalled: 0 }
    }

    /// The stack, remembered or walked.
    ///
    /// # Safety
    /// As for [`Walker::walk`].
    unsafe fn stack(&mut self, tables: &UnwindTables, registers: Registers, bounds: Bounds) -> &[u64] {
        // Nothing tells stacks apart but what they are.
        let key = StackMemoryKey::default();
        // SAFETY: the caller promises the calling thread's registers and bounds; its stack is readable within them.
        if let Some(known) = unsafe { self.memory.recall(&mut self.walker, &key, &registers, bounds) } {
            self.recalled += 1;
            return &self.stacks[known as usize];
        }
        // SAFETY: the caller promises the calling thread's registers and bounds; its stack is readable within them.
        let found = unsafe { self.walker.walk(tables, registers, bounds) }.0.to_vec();
        self.memory.keep(&self.walker, &key, bounds, self.stacks.len() as u32);
        self.stacks.push(found);
        &self.stacks[self.stacks.len() - 1]
    }
}

/// What was compared.
struct Compared {
    calls: u64,
    frames: u64,
    recalled: u64,
}

thread_local! {
    static THREAD: RefCell<Option<Thread>> = const { RefCell::new(None) };
}

unsafe extern "C" {
    fn _Unwind_Backtrace(trace: extern "C" fn(*mut c_void, *mut c_void) -> c_int, argument: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> u64;
    fn _Unwind_GetCFA(context: *mut c_void) -> u64;
}

/// What libgcc finds: the addresses from the frame whose stack pointer is `rsp` on.
fn libgcc(rsp: u64) -> Vec<u64> {
    extern "C" fn visit(context: *mut c_void, all: *mut c_void) -> c_int {
        // SAFETY: the argument below.
        let all = unsafe { &mut *all.cast::<Vec<(u64, u64)>>() };
        // SAFETY: libgcc's context.
        all.push(unsafe { (_Unwind_GetIP(context), _Unwind_GetCFA(context)) });
        0
    }
    let mut all: Vec<(u64, u64)> = Vec::new();
    // SAFETY: the callback and its argument live through the call.
    unsafe { _Unwind_Backtrace(visit, (&raw mut all).cast()) };
    // The frame's own CFA in libgcc's words is its rsp.
    let first = all.iter().position(|(_, cfa)| *cfa == rsp).unwrap_or(all.len());
    all[first..].iter().map(|(ip, _)| *ip).take_while(|ip| *ip != 0).collect()
}

unsafe extern "C" fn on_call(pushed: &Pushed) {
    THREAD.with_borrow_mut(|thread| {
        let thread = thread.as_mut().unwrap();
        // SAFETY: what `callback` pushed.
        let registers = unsafe { pushed.registers(thread.bounds) }.unwrap();
        let expected = libgcc(registers.rsp);
        thread.calls += 1;
        thread.frames += expected.len() as u64;
        // SAFETY: the thread's own registers and stack.
        let (found, end) = unsafe { thread.walker.walk(thread.tables, registers, thread.bounds) };
        let is_equal = match end {
            End::Root => found == expected,
            End::TooDeep => found.len() == MOST_FRAMES && expected.starts_with(found),
            _ => false,
        };
        if !is_equal {
            thread.wrong.push(format!("{end:?}\n ours   {found:x?}\n libgcc {expected:x?}"));
        }
        for skipped in [0, thread.walker.last().len() / 2] {
            let mut found = Vec::new();
            thread.walker.for_each_file(skipped, |it| found.push(it.key()));
            if without_repetition(found) != files_at(&thread.walker.last()[skipped..]) {
                thread.wrong.push(format!("other files than those of {skipped} frames outward"));
            }
        }
        let mut anew = Walker::new();
        // SAFETY: as above.
        let again = unsafe { anew.walk(thread.tables, registers, thread.bounds) }.0;
        if again != thread.walker.last() {
            thread.wrong.push("a walker without memory finds another stack".to_owned());
        }
        let recalled = thread.remembering.recalled;
        // SAFETY: as above.
        let remembered = unsafe { thread.remembering.stack(thread.tables, registers, thread.bounds) };
        if remembered != again {
            let remembered = remembered.to_vec();
            let how = if thread.remembering.recalled > recalled { "remembered" } else { "walked after others" };
            thread.wrong.push(format!("{how}\n {remembered:x?}\n libgcc {expected:x?}"));
        }
    });
}

fn without_repetition(mut keys: Vec<u64>) -> Vec<u64> {
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// The files that the loader has at these addresses, or that calls before them are in.
fn files_at(addresses: &[u64]) -> Vec<u64> {
    without_repetition(addresses.iter().filter_map(|it| MappedObject::at(it - 1)).map(|it| it.key()).collect())
}

/// Compares the stacks of this thread while `run` runs.
fn compared(tables: &'static UnwindTables, run: impl FnOnce()) -> Compared {
    compared_with(tables, Remembering::new(), run).0
}

fn compared_with(
    tables: &'static UnwindTables,
    remembering: Remembering,
    run: impl FnOnce(),
) -> (Compared, Remembering) {
    let before = remembering.recalled;
    let thread = Thread {
        tables,
        bounds: Bounds::of_thread().unwrap(),
        walker: Box::new(Walker::new()),
        remembering,
        calls: 0,
        frames: 0,
        wrong: Vec::new(),
    };
    THREAD.set(Some(thread));
    run();
    let Thread { remembering, calls, frames, wrong, .. } = THREAD.take().unwrap();
    assert!(wrong.is_empty(), "{} of {calls} stacks: {}", wrong.len(), wrong[0]);
    (Compared { calls, frames, recalled: remembering.recalled - before }, remembering)
}

fn tables() -> &'static UnwindTables {
    Box::leak(Box::new(UnwindTables::new()))
}

fn built(directory: &Path, source: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let compiler = if source.extension().is_some_and(|it| it == "cpp") { "c++" } else { "cc" };
    let library = directory.join(format!("{}{}.so", source.file_name().unwrap().display(), flags.concat()));
    let built = Command::new(compiler).args(["-shared", "-fPIC", "-o"]).arg(&library).args(flags).arg(&source).status();
    assert!(built.unwrap().success(), "{}", source.display());
    library
}

/// Calls a function of a library with [`callback`] and a number, and unloads the library.
fn call(library: &Path, function: &str, seed: i64) {
    call_times(1, library, function, seed);
}

fn call_times(times: u32, library: &Path, function: &str, seed: i64) {
    type Function = unsafe extern "C" fn(unsafe extern "C" fn(), i64);
    // SAFETY: the libraries of these tests, whose functions have this type.
    unsafe {
        let library = libloading::Library::new(library).unwrap();
        let function = library.get::<Function>(function).unwrap();
        (0..times).for_each(|_| function(callback, seed));
    }
}

const FLAGS: [&[&str]; 6] = [
    &["-O0"],
    &["-O1", "-fno-omit-frame-pointer"],
    &["-O2"],
    &["-O3", "-fomit-frame-pointer"],
    &["-Os", "-fno-asynchronous-unwind-tables", "-fexceptions"],
    &["-O3", "-fstack-protector-all", "-fcf-protection=full"],
];

#[test]
fn every_shape_of_frame() {
    let directory = tempfile::tempdir().unwrap();
    let Compared { calls, frames, recalled } = compared(tables(), || {
        for flags in FLAGS {
            let (shapes, throws) =
                (built(directory.path(), "shapes.c", flags), built(directory.path(), "throws.cpp", flags));
            call_times(5, &shapes, "shapes", 11);
            call_times(5, &shapes, "signalled", 11);
            call_times(5, &throws, "throws", 8);
        }
        call_times(5, &built(directory.path(), "hand_written.s", &[]), "hand_written", 0);
    });
    assert!(calls > 1200 && frames > 24_000, "{calls} calls, {frames} frames");
    assert!(recalled > calls / 2, "{recalled} of {calls}");
}

/// One of some functions, with frames of different sizes, each of which calls others and the callback.
fn random(choose: &mut u64, depth: u32) -> usize {
    #[inline(never)]
    fn with<const SIZE: usize>(choose: &mut u64, depth: u32) -> usize {
        let kept = black_box([SIZE; SIZE]);
        let inner = random(choose, depth) + random(choose, depth.saturating_sub(3));
        inner + kept[SIZE / 2]
    }
    *choose ^= *choose << 13;
    *choose ^= *choose >> 7;
    *choose ^= *choose << 17;
    if depth == 0 {
        // SAFETY: a function without parameters.
        unsafe { callback() };
        return 0;
    }
    match *choose % 5 {
        0 => with::<1>(choose, depth - 1),
        1 => with::<3>(choose, depth - 1),
        2 => with::<20>(choose, depth - 1),
        3 => black_box(random(choose, depth - 1)) + 1,
        // SAFETY: a function without parameters.
        _ => unsafe {
            callback();
            black_box(random(choose, depth - 1)) + 2
        },
    }
}

#[test]
fn random_trees_of_calls() {
    let Compared { calls, recalled, .. } = compared(tables(), || {
        for seed in (1..=30_u64).chain(1..=30) {
            for _ in 0..black_box(4) {
                random(&mut (seed * 0x9e37_79b9), 12);
            }
        }
    });
    assert!(calls > 2_000 && recalled > calls / 2, "{recalled} of {calls}");
}

#[test]
fn threads_that_take_over_what_another_one_remembered() {
    let directory = tempfile::tempdir().unwrap();
    let (shapes, tables) = (built(directory.path(), "shapes.c", FLAGS[2]), tables());
    let mut remembering = Remembering::new();
    for thread in 0..8 {
        let run = || {
            call(&shapes, "shapes", thread % 2);
            random(&mut 77, 8);
        };
        let run = || compared_with(tables, remembering, run).1;
        remembering = std::thread::scope(|scope| scope.spawn(run).join().unwrap());
    }
}

/// Two libraries of the same code, at the same places: its words on the stack are the same, and only the tables
/// tell that one has a frame more.
#[test]
fn the_same_words_mean_something_else_in_another_library() {
    let directory = tempfile::tempdir().unwrap();
    let libraries = [8, 40].map(|size| built(directory.path(), "skips.s", &[&format!("-Wa,--defsym,SIZE={size}")]));
    let mut last = 0;
    let mut replaced = 0;
    let Compared { recalled, .. } = compared(tables(), || {
        for library in libraries.iter().cycle().take(60) {
            call_times(6, library, "outer", 0);
            let place = THREAD.with_borrow(|it| it.as_ref().unwrap().walker.last()[0]);
            replaced += u32::from(place == last);
            last = place;
        }
    });
    assert!(replaced > 0, "never at the same place");
    assert!(recalled >= 60, "{recalled}");
}

#[test]
fn libraries_that_come_and_go_on_many_threads() {
    let directory = tempfile::tempdir().unwrap();
    let libraries: Vec<_> = FLAGS.map(|it| built(directory.path(), "shapes.c", it)).into();
    let tables = tables();
    std::thread::scope(|scope| {
        for thread in 0..64 {
            let libraries = &libraries;
            scope.spawn(move || {
                compared(tables, || {
                    for round in 0..6 {
                        call(&libraries[(thread + round) % libraries.len()], "shapes", (thread + round) as i64);
                    }
                })
            });
        }
    });
}

#[test]
fn another_library_in_the_place_of_one_that_went() {
    let directory = tempfile::tempdir().unwrap();
    // The same code at the same places, but for how large the frames are.
    let libraries = [4096, 8192, 12288].map(|size| {
        let library = directory.path().join(format!("{size}.so"));
        let source =
            format!("void frame(void (*f)(void), long n) {{ volatile char x[{size}]; x[n] = 1; f(); x[n + 1] = 2; }}");
        let file = directory.path().join(format!("{size}.c"));
        std::fs::write(&file, source).unwrap();
        let built = Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).args([&library, &file]).status();
        assert!(built.unwrap().success());
        library
    });
    compared(tables(), || {
        for round in 0..30 {
            call(&libraries[round % 3], "frame", 5);
        }
    });
}
