//! Every stack is held against libgcc's own unwinder, at the same moment.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use xputrace_unwind::{Bounds, End, MOST_FRAMES, Pushed, Tables, Walker, push_registers};

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
    tables: &'static Tables,
    bounds: Bounds,
    walker: Box<Walker>,
    calls: u64,
    frames: u64,
    wrong: Vec<String>,
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
        let mut anew = Walker::new();
        // SAFETY: as above.
        let again = unsafe { anew.walk(thread.tables, registers, thread.bounds) }.0;
        if again != thread.walker.last() {
            thread.wrong.push("a walker without memory finds another stack".to_owned());
        }
    });
}

/// Calls and frames that were compared on this thread while `run` ran.
fn compared(tables: &'static Tables, run: impl FnOnce()) -> (u64, u64) {
    let thread = Thread {
        tables,
        bounds: Bounds::of_thread().unwrap(),
        walker: Box::new(Walker::new()),
        calls: 0,
        frames: 0,
        wrong: Vec::new(),
    };
    THREAD.set(Some(thread));
    run();
    let thread = THREAD.take().unwrap();
    assert!(thread.wrong.is_empty(), "{} of {} stacks: {}", thread.wrong.len(), thread.calls, thread.wrong[0]);
    (thread.calls, thread.frames)
}

fn tables() -> &'static Tables {
    Box::leak(Box::new(Tables::new()))
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
    type Function = unsafe extern "C" fn(unsafe extern "C" fn(), i64);
    // SAFETY: the libraries of these tests, whose functions have this type.
    unsafe {
        let library = libloading::Library::new(library).unwrap();
        library.get::<Function>(function).unwrap()(callback, seed);
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
    let (calls, frames) = compared(tables(), || {
        for flags in FLAGS {
            call(&built(directory.path(), "shapes.c", flags), "shapes", 11);
            call(&built(directory.path(), "throws.cpp", flags), "throws", 8);
        }
        call(&built(directory.path(), "hand_written.s", &[]), "hand_written", 0);
    });
    assert!(calls > 300 && frames > 6_000, "{calls} calls, {frames} frames");
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
