//! What runs in place of NVTX's functions: the other tool's function, if there is one, and ours. What a call returns is
//! the other tool's answer.

use super::catching::caught;
use super::handles::{Handles, NvtxHandle};
use super::texts::{Attributes, Name, RangePath, Wide, name_handle, path_of};
use super::{thread, window};
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use xputrace_agent::clock::now;
use xputrace_agent::ranges::{self, Payload, Range, RangeDetails};
use xputrace_agent::this_thread;
use xputrace_wire::events::{PayloadFloat, RangeKind};

/// The function behind an NVTX call. Null means that calls do nothing.
pub(super) type FunctionSlot = *const c_void;

/// `NVTX_NO_PUSH_POP_TRACKING`: what pushing and popping return without a tool.
const NOT_TRACKED: c_int = -2;

/// `NvtxCallbackModule`.
const CORE: u32 = 1;
const CORE2: u32 = 5;

/// A slot that we use: its module, id (`NvtxCallbackIdCore`, `NvtxCallbackIdCore2`) and our function.
pub(super) struct Hook {
    pub(super) module: u32,
    pub(super) id: u32,
    pub(super) function: FunctionSlot,
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
        #[derive(Clone, Copy)]
        enum Index { $( $Index, )* }

        pub(super) const N_HOOKS: usize = [$( Index::$Index ),*].len();
        pub(super) static HOOKS: [Hook; N_HOOKS] =
            [$( Hook { module: $module, id: $id, function: $name as FunctionSlot } ),*];

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

/// The other tool's functions, by index in [`HOOKS`]. NVTX never unloads a tool.
pub(super) static NEXT: [AtomicPtr<c_void>; N_HOOKS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; N_HOOKS];

hooks! {
    MarkEx: CORE 1 fn mark_ex(attributes: *const Attributes) { otherwise (); |()| mark(0, Name::Attributes(attributes)) }
    MarkAscii: CORE 2 fn mark_ascii(text: *const c_char) { otherwise (); |()| mark(0, Name::Ascii(text)) }
    MarkWide: CORE 3 fn mark_wide(text: *const Wide) { otherwise (); |()| mark(0, Name::Wide(text)) }
    StartEx: CORE 4 fn start_ex(attributes: *const Attributes) -> NvtxHandle {
        otherwise new_handle(); |id| start(id, 0, Name::Attributes(attributes))
    }
    StartAscii: CORE 5 fn start_ascii(text: *const c_char) -> NvtxHandle {
        otherwise new_handle(); |id| start(id, 0, Name::Ascii(text))
    }
    StartWide: CORE 6 fn start_wide(text: *const Wide) -> NvtxHandle {
        otherwise new_handle(); |id| start(id, 0, Name::Wide(text))
    }
    End: CORE 7 fn end(id: NvtxHandle) { otherwise (); |()| ended(id) }
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
    DomainMarkEx: CORE2 1 fn domain_mark_ex(domain: NvtxHandle, attributes: *const Attributes) {
        otherwise (); |()| mark(domain, Name::Attributes(attributes))
    }
    DomainStartEx: CORE2 2 fn domain_start_ex(domain: NvtxHandle, attributes: *const Attributes) -> NvtxHandle {
        otherwise new_handle(); |id| start(id, domain, Name::Attributes(attributes))
    }
    DomainEnd: CORE2 3 fn domain_end(domain: NvtxHandle, id: NvtxHandle) { otherwise { let _ = domain; }; |()| ended(id) }
    DomainPushEx: CORE2 4 fn domain_push_ex(domain: NvtxHandle, attributes: *const Attributes) -> c_int {
        otherwise NOT_TRACKED; |_| push(domain, Name::Attributes(attributes))
    }
    DomainPop: CORE2 5 fn domain_pop(domain: NvtxHandle) -> c_int { otherwise NOT_TRACKED; |_| thread::pop(domain) }
    RegisterAscii: CORE2 10 fn register_ascii(domain: NvtxHandle, text: *const c_char) -> NvtxHandle {
        otherwise { let _ = domain; new_handle() }; |handle| named(handle, Name::Ascii(text))
    }
    RegisterWide: CORE2 11 fn register_wide(domain: NvtxHandle, text: *const Wide) -> NvtxHandle {
        otherwise { let _ = domain; new_handle() }; |handle| named(handle, Name::Wide(text))
    }
    CreateAscii: CORE2 12 fn create_ascii(name: *const c_char) -> NvtxHandle {
        otherwise new_handle(); |handle| named(handle, Name::Ascii(name))
    }
    CreateWide: CORE2 13 fn create_wide(name: *const Wide) -> NvtxHandle {
        otherwise new_handle(); |handle| named(handle, Name::Wide(name))
    }
}

/// Returns a handle or id for the program, which is never 0.
fn new_handle() -> NvtxHandle {
    static HANDLES: AtomicU64 = AtomicU64::new(1);
    HANDLES.fetch_add(1, Ordering::Relaxed)
}

/// Ranges that are started and not ended: see [`Started`].
static STARTED: Handles<4096, { Started::WORDS }> = Handles::new();

/// A range that was started. Any thread may end it.
struct Started {
    path: RangePath,
    domain: RangePath,
    start: u64,
    tid: u32,
    is_window: bool,
    details: RangeDetails,
}

impl Started {
    const WORDS: usize = 5;
    const IS_WINDOW: u64 = 1;
    const HAS_COLOR: u64 = 2;
    const HAS_PAYLOAD: u64 = 4;
    const IS_DOUBLE: u64 = 8;
    const IS_SINGLE: u64 = 16;

    fn words(&self) -> [u64; Started::WORDS] {
        let RangeDetails { category, color, payload } = self.details;
        let float = payload.and_then(|it| it.float);
        let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
        let flags = flag(self.is_window, Started::IS_WINDOW)
            | flag(color.is_some(), Started::HAS_COLOR)
            | flag(payload.is_some(), Started::HAS_PAYLOAD)
            | flag(float == Some(PayloadFloat::Double), Started::IS_DOUBLE)
            | flag(float == Some(PayloadFloat::Single), Started::IS_SINGLE);
        [
            self.path.word() << 32 | self.domain.word(),
            self.start,
            u64::from(self.tid) << 32 | flags,
            u64::from(category) << 32 | u64::from(color.unwrap_or(0)),
            payload.map_or(0, |it| it.bits) as u64,
        ]
    }

    fn from_words([texts, start, tid_flags, category_color, payload]: [u64; Started::WORDS]) -> Self {
        let has = |flag: u64| tid_flags & flag != 0;
        let float = match (has(Started::IS_DOUBLE), has(Started::IS_SINGLE)) {
            (true, _) => Some(PayloadFloat::Double),
            (_, true) => Some(PayloadFloat::Single),
            _ => None,
        };
        let details = RangeDetails {
            category: (category_color >> 32) as u32,
            color: has(Started::HAS_COLOR).then_some(category_color as u32),
            payload: has(Started::HAS_PAYLOAD).then_some(Payload { bits: payload as i64, float }),
        };
        Started {
            path: RangePath::from_word(texts >> 32),
            domain: RangePath::from_word(texts & 0xffff_ffff),
            start,
            tid: (tid_flags >> 32) as u32,
            is_window: has(Started::IS_WINDOW),
            details,
        }
    }
}

fn start(id: NvtxHandle, domain: NvtxHandle, name: Name) {
    // SAFETY: the program's argument, here and in the functions below.
    let (details, (path, is_window)) =
        unsafe { (name.details(domain), name.with(|it| (RangePath::NONE.with(it), window::names(domain, it)))) };
    let it = Started { path, domain: path_of(domain), start: now(), tid: this_thread().id(), is_window, details };
    if STARTED.set(id, it.words()) && is_window {
        window::enter();
    }
}

fn ended(id: NvtxHandle) {
    let Some(it) = STARTED.remove(id).map(Started::from_words) else { return ranges::count_unrecorded() };
    let Started { path, domain, start, tid, is_window, details } = it;
    let (path, domain) = (path.c_str(), domain.c_str());
    ranges::record(&Range { kind: RangeKind::Start, path, domain, start: Some(start), details, tid });
    if is_window {
        window::leave(1);
    }
}

fn mark(domain: NvtxHandle, name: Name) {
    // SAFETY: as above.
    let (details, path) = unsafe { (name.details(domain), name.with(|it| RangePath::NONE.with(it))) };
    let (path, domain) = (path.c_str(), path_of(domain).c_str());
    ranges::record(&Range { kind: RangeKind::Mark, path, domain, start: None, details, tid: this_thread().id() });
}

fn push(domain: NvtxHandle, name: Name) {
    // SAFETY: as above.
    unsafe { name.with(|it| thread::push(domain, it, name.details(domain))) };
}

fn named(handle: NvtxHandle, name: Name) {
    // SAFETY: as above.
    unsafe { name.with(|it| name_handle(handle, it)) };
}
