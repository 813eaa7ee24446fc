//! Finds the process's interpreter.

use crate::code::member;
use crate::frames::Frames;
use crate::layout::{self, DEBUG_WORDS, Layout, V3_11, V3_12, of_debug_offsets};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use xputrace_unwind::find_loaded;

/// An interpreter whose frames can be read. Its library stays loaded.
#[derive(Clone, Copy, Debug)]
pub struct Interpreter {
    layout: Layout,
    /// The word that is not 0 once the interpreter ends: the state of the thread that ends it.
    finalizing: u64,
    /// Returns the state that the calling thread had last, or null.
    of_this_thread: ThreadState,
}

type ThreadState = unsafe extern "C" fn() -> *mut c_void;

/// An interpreter whose frames can't be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// Such as "CPython 3.14".
    pub interpreter: String,
    pub reason: &'static str,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the Python frames of {} can't be read: {}", self.interpreter, self.reason)
    }
}

impl Interpreter {
    /// Looks among the mapped libraries; `None` where none of them is an interpreter. Allocates, and
    /// takes the loader's lock.
    ///
    /// # Errors
    /// There is an interpreter whose frames can't be read.
    pub fn find() -> Result<Option<Interpreter>, Unsupported> {
        let Some((scope, runtime)) = SymbolScope::of_interpreter() else { return Ok(None) };
        // SAFETY: its type since 3.11, when it came.
        let version = scope.symbol(c"Py_Version").map(|it| Version(unsafe { member(it, 0) }));
        let interpreter = version.map_or("CPython before 3.11".into(), |it| it.to_string());
        let found = version.ok_or(UNKNOWN_VERSION).and_then(|it| Interpreter::in_scope(&scope, runtime, it));
        found.map(Some).map_err(|reason| Unsupported { interpreter, reason })
    }

    fn in_scope(scope: &SymbolScope, runtime: u64, version: Version) -> Result<Self, &'static str> {
        let layout = version.layout(runtime)?;
        if !has_plain_objects(scope) {
            return Err("it is built to trace references");
        }
        if !keep_loaded(runtime) {
            return Err("its library may be unloaded");
        }
        let of_this_thread =
            scope.function(c"PyGILState_GetThisThreadState").ok_or("it has no PyGILState_GetThisThreadState")?;
        Ok(Interpreter { layout, finalizing: runtime + layout.finalizing, of_this_thread })
    }

    /// The calling thread's frames; `None` for a thread that the interpreter does not know, and
    /// while the interpreter ends: it frees the states of other threads then.
    ///
    /// # Safety
    /// The calling thread does not return from the function that it is in while they are used.
    #[inline]
    pub unsafe fn frames(&self) -> Option<Frames<'_>> {
        // SAFETY: takes nothing, needs no GIL, and its library stays. Since 3.12, it is the state of the
        // interpreter in which the thread was last; before, that of the first one.
        let thread = unsafe { (self.of_this_thread)() } as u64;
        // SAFETY: a word of the interpreter's own state.
        let ends = Ends { word: unsafe { AtomicU64::from_ptr(self.finalizing as *mut u64) }, thread };
        // The thread's state is looked at after it was seen that the interpreter does not end.
        // SAFETY: this thread's state; the caller promises that it stays in its function while the frames are used.
        (thread != 0 && !ends.by_another_thread()).then(|| unsafe { Frames::of(&self.layout, thread, ends) })
    }
}

/// Whether the interpreter ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends<'a> {
    word: &'a AtomicU64,
    thread: u64,
}

impl Ends<'_> {
    /// The thread that ends it may read its own frames.
    #[inline]
    pub(crate) fn by_another_thread(self) -> bool {
        let finalizing = self.word.load(Ordering::Acquire);
        finalizing != 0 && finalizing != self.thread
    }
}

const UNKNOWN_VERSION: &str = "only those of CPython 3.11, 3.12 and 3.13 are known";

/// `Py_Version`: major, minor, micro, release level and serial (`Include/patchlevel.h`).
#[derive(Clone, Copy, Debug)]
struct Version(u64);

impl Version {
    fn layout(self, runtime: u64) -> Result<Layout, &'static str> {
        const FINAL: u64 = 0xf;
        match (self.0 >> 16, self.0 >> 4 & 0xf) {
            (0x30b, FINAL) => Ok(V3_11),
            (0x30c, FINAL) => Ok(V3_12),
            // SAFETY: the table is at the beginning of the runtime's state in this version.
            (0x30d, FINAL) => of_debug_offsets(&unsafe { member::<[u64; DEBUG_WORDS]>(runtime, 0) }, self.0),
            _ => Err(UNKNOWN_VERSION),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CPython {}.{}", self.0 >> 24, self.0 >> 16 & 0xff)
    }
}

/// Whether objects begin as usual: the type of types is itself. Builds that trace references put two
/// words before.
fn has_plain_objects(scope: &SymbolScope) -> bool {
    // SAFETY: a static object of the interpreter, larger than this.
    scope.symbol(c"PyType_Type").is_some_and(|it| unsafe { member::<u64>(it, layout::TYPE) } == it)
}

/// Keeps the library that this address lies in, whatever the program does; false if it can't be kept.
fn keep_loaded(address: u64) -> bool {
    let Some(path) = find_loaded(|it| it.holds(address).then(|| it.path.to_vec())) else { return false };
    // The program itself has no path, and stays.
    path.is_empty() || mapped(&path, libc::RTLD_NODELETE).is_some()
}

/// Opens a library that is mapped already; the handle is kept.
fn mapped(path: &[u8], flags: c_int) -> Option<*mut c_void> {
    let path = CString::new(path).ok()?;
    // SAFETY: a C string; nothing is loaded.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD | flags) };
    (!handle.is_null()).then_some(handle)
}

/// Where symbols are looked for.
enum SymbolScope {
    Global,
    /// A library that the program has loaded for itself.
    Library(*mut c_void),
}

impl SymbolScope {
    /// The interpreter's scope, and the address of its state.
    fn of_interpreter() -> Option<(SymbolScope, u64)> {
        let runtime = |scope: SymbolScope| scope.symbol(c"_PyRuntime").map(|it| (scope, it));
        runtime(SymbolScope::Global).or_else(|| runtime(SymbolScope::library()?))
    }

    /// An interpreter's library that is mapped, but not in the global scope. It has `_PyRuntime`, so
    /// this is done once.
    fn library() -> Option<SymbolScope> {
        let is_interpreter =
            |path: &[u8]| path.rsplit(|it| *it == b'/').next().is_some_and(|name| name.starts_with(b"libpython3."));
        let path = find_loaded(|it| is_interpreter(it.path).then(|| it.path.to_vec()))?;
        mapped(&path, 0).map(SymbolScope::Library)
    }

    fn symbol(&self, name: &CStr) -> Option<u64> {
        let handle = match self {
            SymbolScope::Global => libc::RTLD_DEFAULT,
            SymbolScope::Library(handle) => *handle,
        };
        // SAFETY: a C string, and a handle that stays open.
        let found = unsafe { libc::dlsym(handle, name.as_ptr().cast::<c_char>()) };
        (!found.is_null()).then_some(found as u64)
    }

    fn function(&self, name: &CStr) -> Option<ThreadState> {
        // SAFETY: the function that is asked for has this type in all versions that are known.
        self.symbol(name).map(|it| unsafe { std::mem::transmute::<u64, ThreadState>(it) })
    }
}
