//! Finds the process's interpreter.

use crate::code::member;
use crate::frames::Frames;
use crate::layout::{DEBUG_WORDS, Layout, V3_11, V3_12, of_debug_offsets};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;

/// An interpreter whose frames can be read.
#[derive(Clone, Copy, Debug)]
pub struct Interpreter {
    layout: Layout,
    runtime: u64,
    /// The state of the calling thread, or null.
    of_this_thread: ThreadState,
    /// Since 3.12: the state that the calling thread has the GIL with, or null.
    current: Option<ThreadState>,
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
        let mut scope = Scope::Global;
        if scope.symbol(c"_PyRuntime").is_none() {
            match Scope::library() {
                Some(it) => scope = it,
                None => return Ok(None),
            }
        }
        let Some(runtime) = scope.symbol(c"_PyRuntime") else { return Ok(None) };
        // SAFETY: its type since 3.11, when it came.
        let version = scope.symbol(c"Py_Version").map(|it| unsafe { member::<u64>(it, 0) });
        let interpreter = || version.map_or("CPython before 3.11".into(), name);
        let refused = |reason| Unsupported { interpreter: interpreter(), reason };
        let layout = match version.map(|it| it >> 16) {
            Some(0x30b) if is_final(version) => V3_11,
            Some(0x30c) if is_final(version) => V3_12,
            Some(0x30d) if is_final(version) => {
                // SAFETY: the table is at its beginning in this version.
                let words = unsafe { member::<[u64; DEBUG_WORDS]>(runtime, 0) };
                of_debug_offsets(&words, version.unwrap_or_default()).map_err(refused)?
            }
            _ => return Err(refused("only those of CPython 3.11, 3.12 and 3.13 are known")),
        };
        // Such builds put two more words before every object.
        if scope.symbol(c"_Py_PrintReferences").is_some() {
            return Err(refused("it is built to trace references"));
        }
        let Some(of_this_thread) = scope.function(c"PyGILState_GetThisThreadState") else {
            return Err(refused("it has no PyGILState_GetThisThreadState"));
        };
        let is_own_threads = version.is_some_and(|it| it >> 16 >= 0x30c);
        let current = scope.function(c"_PyThreadState_UncheckedGet").filter(|_| is_own_threads);
        Ok(Some(Interpreter { layout, runtime, of_this_thread, current }))
    }

    /// The calling thread's frames; `None` for a thread that the interpreter does not know, and
    /// while the interpreter ends, as it may free them then.
    ///
    /// # Safety
    /// The calling thread does not return from the function that it is in while they are used.
    #[inline]
    pub unsafe fn frames(&self) -> Option<Frames<'_>> {
        // SAFETY: it takes nothing, and may be called without the GIL, at any time.
        let current = self.current.map_or(std::ptr::null_mut(), |it| unsafe { it() });
        let thread = match current.is_null() {
            // SAFETY: as above.
            true => unsafe { (self.of_this_thread)() },
            false => current,
        };
        // SAFETY: a word of the interpreter's own state.
        let finalizing: u64 = unsafe { member(self.runtime, self.layout.finalizing) };
        let is_safe = !thread.is_null() && (finalizing == 0 || finalizing == thread as u64);
        // SAFETY: the calling thread's state; and the caller's promise.
        is_safe.then(|| unsafe { Frames::of(&self.layout, thread as u64) })
    }
}

fn is_final(version: Option<u64>) -> bool {
    version.is_some_and(|it| it >> 4 & 0xf == 0xf)
}

fn name(version: u64) -> String {
    format!("CPython {}.{}", version >> 24, version >> 16 & 0xff)
}

/// Where symbols are looked for.
enum Scope {
    Global,
    /// A library that the program has loaded for itself.
    Library(*mut c_void),
}

impl Scope {
    /// An interpreter's library that is mapped, but not in the global scope.
    fn library() -> Option<Scope> {
        unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
            // SAFETY: the loader's entry, and the answer below.
            let (info, found) = unsafe { (&*info, &mut *found.cast::<Option<CString>>()) };
            if info.dlpi_name.is_null() {
                return 0;
            }
            // SAFETY: the loader's C string.
            let path = unsafe { CStr::from_ptr(info.dlpi_name) };
            let name = path.to_bytes().rsplit(|it| *it == b'/').next().unwrap_or_default();
            if name.starts_with(b"libpython3.") {
                *found = Some(path.to_owned());
            }
            c_int::from(found.is_some())
        }

        let mut found: Option<CString> = None;
        // SAFETY: `visit` and its answer live through the call.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
        // SAFETY: a C string; nothing is loaded.
        let handle = unsafe { libc::dlopen(found?.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        // The handle is kept, and with it the library: its functions are called from now on.
        (!handle.is_null()).then_some(Scope::Library(handle))
    }

    fn symbol(&self, name: &CStr) -> Option<u64> {
        let handle = match self {
            Scope::Global => libc::RTLD_DEFAULT,
            Scope::Library(handle) => *handle,
        };
        // SAFETY: a C string, and a handle that stays open.
        let found = unsafe { libc::dlsym(handle, name.as_ptr().cast::<c_char>()) };
        (!found.is_null()).then_some(found as u64)
    }

    fn function(&self, name: &CStr) -> Option<ThreadState> {
        // SAFETY: the functions that are asked for have this type in all versions that are known.
        self.symbol(name).map(|it| unsafe { std::mem::transmute::<u64, ThreadState>(it) })
    }
}
