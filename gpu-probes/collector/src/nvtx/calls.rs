//! What runs in place of NVTX's functions: the other tool's function, if there is one, and ours. What a call returns is
//! the other tool's answer.

use super::handles::{Handle, Handles};
use super::texts::{Attributes, Name, Wide, name_handle};
use super::{NEXT, thread, window};
use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// The function behind an NVTX call. Null means that calls do nothing.
pub(super) type Slot = *const c_void;

/// `NVTX_NO_PUSH_POP_TRACKING`: what pushing and popping return without a tool.
const NOT_TRACKED: c_int = -2;

/// `NvtxCallbackModule`.
const CORE: u32 = 1;
const CORE2: u32 = 5;

/// A slot that we use: its module, id (`NvtxCallbackIdCore`, `NvtxCallbackIdCore2`) and our function.
pub(super) struct Hook {
    pub(super) module: u32,
    pub(super) id: u32,
    pub(super) function: Slot,
}

// SAFETY: functions.
unsafe impl Sync for Hook {}

/// Declares the hooks' indices and table, and our functions: each calls the other tool's function of the same type, or
/// answers itself, and then does our work.
macro_rules! hooks {
    ($(
        $Index:ident: $module:ident $id:literal
        fn $name:ident($($argument:ident: $type:ty),*) $(-> $R:ty)? { otherwise $otherwise:expr; |$answer:pat_param| $work:expr }
    )*) => {
        #[allow(clippy::upper_case_acronyms)]
        #[derive(Clone, Copy)]
        enum Index { $( $Index, )* }

        pub(super) const N_HOOKS: usize = [$( Index::$Index ),*].len();
        pub(super) static HOOKS: [Hook; N_HOOKS] =
            [$( Hook { module: $module, id: $id, function: $name as Slot } ),*];

        $(
            unsafe extern "C" fn $name($($argument: $type),*) $(-> $R)? {
                type Function = unsafe extern "C" fn($($type),*) $(-> $R)?;
                let next = NEXT[Index::$Index as usize].load(Ordering::Acquire);
                let answer = if next.is_null() {
                    $otherwise
                } else {
                    // SAFETY: the other tool's function for the same slot, with the program's arguments.
                    unsafe { std::mem::transmute::<*mut c_void, Function>(next)($($argument),*) }
                };
                let $answer = answer;
                caught((), || $work);
                answer
            }
        )*
    };
}

hooks! {
    StartEx: CORE 4 fn start_ex(attributes: *const Attributes) -> Handle {
        otherwise new_handle(); |id| start(id, 0, Name::Attributes(attributes))
    }
    StartAscii: CORE 5 fn start_ascii(text: *const c_char) -> Handle {
        otherwise new_handle(); |id| start(id, 0, Name::Ascii(text))
    }
    StartWide: CORE 6 fn start_wide(text: *const Wide) -> Handle {
        otherwise new_handle(); |id| start(id, 0, Name::Wide(text))
    }
    End: CORE 7 fn end(id: Handle) { otherwise (); |()| ended(id) }
    PushEx: CORE 8 fn push_ex(attributes: *const Attributes) -> c_int {
        otherwise NOT_TRACKED; |_| push(0, Name::Attributes(attributes))
    }
    PushAscii: CORE 9 fn push_ascii(text: *const c_char) -> c_int {
        otherwise NOT_TRACKED; |_| push(0, Name::Ascii(text))
    }
    PushWide: CORE 10 fn push_wide(text: *const Wide) -> c_int {
        otherwise NOT_TRACKED; |_| push(0, Name::Wide(text))
    }
    Pop: CORE 11 fn pop() -> c_int { otherwise NOT_TRACKED; |_| thread::pop(0) }
    DomainStartEx: CORE2 2 fn domain_start_ex(domain: Handle, attributes: *const Attributes) -> Handle {
        otherwise new_handle(); |id| start(id, domain, Name::Attributes(attributes))
    }
    DomainEnd: CORE2 3 fn domain_end(domain: Handle, id: Handle) { otherwise { let _ = domain; }; |()| ended(id) }
    DomainPushEx: CORE2 4 fn domain_push_ex(domain: Handle, attributes: *const Attributes) -> c_int {
        otherwise NOT_TRACKED; |_| push(domain, Name::Attributes(attributes))
    }
    DomainPop: CORE2 5 fn domain_pop(domain: Handle) -> c_int { otherwise NOT_TRACKED; |_| thread::pop(domain) }
    RegisterAscii: CORE2 10 fn register_ascii(domain: Handle, text: *const c_char) -> Handle {
        otherwise { let _ = domain; new_handle() }; |handle| named(handle, Name::Ascii(text))
    }
    RegisterWide: CORE2 11 fn register_wide(domain: Handle, text: *const Wide) -> Handle {
        otherwise { let _ = domain; new_handle() }; |handle| named(handle, Name::Wide(text))
    }
    CreateAscii: CORE2 12 fn create_ascii(name: *const c_char) -> Handle {
        otherwise new_handle(); |handle| named(handle, Name::Ascii(name))
    }
    CreateWide: CORE2 13 fn create_wide(name: *const Wide) -> Handle {
        otherwise new_handle(); |handle| named(handle, Name::Wide(name))
    }
}

/// Runs the work behind a call of the program; a panic must not reach it.
pub(super) fn caught<R>(otherwise: R, run: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(otherwise)
}

/// Returns a handle or id for the program, which is never 0.
fn new_handle() -> Handle {
    static HANDLES: AtomicU64 = AtomicU64::new(1);
    HANDLES.fetch_add(1, Ordering::Relaxed)
}

/// Started ranges that `--range` names, until they are ended.
static STARTED: Handles<4096> = Handles::new();

fn start(id: Handle, domain: Handle, name: Name) {
    // SAFETY: the program's argument, here and in the functions below.
    if unsafe { name.with(|it| window::names(domain, it)) } {
        STARTED.set(id, 1);
        window::enter();
    }
}

fn ended(id: Handle) {
    if STARTED.remove(id).is_some() {
        window::leave(1);
    }
}

fn push(domain: Handle, name: Name) {
    // SAFETY: as above.
    unsafe { name.with(|it| thread::push(domain, it)) };
}

fn named(handle: Handle, name: Name) {
    // SAFETY: as above.
    unsafe { name.with(|it| name_handle(handle, it)) };
}
