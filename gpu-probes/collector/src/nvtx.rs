//! The NVTX ranges of one name: whether any thread is inside one. Through NVTX's injection protocol.
//!
//! ```text
//! first NVTX call of a library ─▶ dlopen NVTX_INJECTION64_PATH ─▶ InitializeInjectionNvtx2(get_export_table)
//!     get_export_table(CALLBACKS) ─▶ tables of slots ─▶ our functions into the slots of ranges
//! push, start ─▶ is it the name? ─▶ one more open ─▶ agent::window
//! pop, end    ─▶ was it?         ─▶ one less
//! ```
//! NVTX is header-only: each library of the program has its own slots, and loads us itself. Ids,
//! tables and structures are those of NVTX's public headers (`nvToolsExt.h`, `nvtxTypes.h`), the
//! same in all of version 3.

use crate::agent::window::ranges_changed;
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use xputrace_wire::RANGE_VARIABLE;

/// `NvtxGetExportTableFunc_t`.
pub type GetExportTable = unsafe extern "C" fn(u32) -> *const c_void;
/// The function behind an NVTX call. Null means that calls do nothing.
type Slot = *const c_void;
/// Domains, registered strings and ids of ranges: opaque to the program.
type Opaque = u64;
/// `wchar_t` on Linux.
type Wide = u32;

/// `NvtxExportTableID`: the table of callbacks.
const CALLBACKS: u32 = 1;
/// `NVTX_NO_PUSH_POP_TRACKING`: what pushing and popping return without a tool.
const NOT_TRACKED: c_int = -2;

/// `NvtxCallbackModule`.
const CORE: u32 = 1;
const CORE2: u32 = 5;

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct ExportedCallbacks {
    struct_size: usize,
    /// Returns an array of pointers to slots, and its highest index.
    table_of: Option<unsafe extern "C" fn(module: u32, table: *mut *mut *mut Slot, last: *mut c_uint) -> c_int>,
}

/// `nvtxEventAttributes_t`.
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    /// Category, colour and payload.
    others: [u32; 7],
    message_type: i32,
    message: *const c_void,
}

/// `nvtxMessageType_t`.
mod message_type {
    pub(super) const ASCII: i32 = 1;
    pub(super) const UNICODE: i32 = 2;
    pub(super) const REGISTERED: i32 = 3;
}

/// Ranges of the name that are open, on all threads.
static OPEN: AtomicU64 = AtomicU64::new(0);
/// Ranges of any name that were opened.
static SEEN: AtomicU64 = AtomicU64::new(0);
/// Handles and ids given out.
static HANDLES: AtomicU64 = AtomicU64::new(0);

/// Whether any thread is in a range of the name.
pub(crate) fn is_inside() -> bool {
    OPEN.load(Ordering::SeqCst) != 0
}

/// Returns the number of ranges of any name that were opened.
pub(crate) fn seen() -> u64 {
    SEEN.load(Ordering::Relaxed)
}

/// Called by NVTX at the first NVTX call of a library. Returns 1 if ranges are watched; with 0,
/// NVTX's calls do nothing.
///
/// # Safety
/// `get_export_table` is NVTX's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(get_export_table: Option<GetExportTable>) -> c_int {
    let attached = catch_unwind(|| {
        crate::quiet_panics();
        // SAFETY: the caller's promise.
        get_export_table.is_some_and(|get| name().is_some() && unsafe { attach(get) })
    });
    c_int::from(matches!(attached, Ok(true)))
}

/// Returns the name of the ranges to watch.
fn name() -> Option<&'static str> {
    static NAME: OnceLock<Option<String>> = OnceLock::new();
    NAME.get_or_init(|| std::env::var(RANGE_VARIABLE).ok()).as_deref()
}

/// Puts our functions into the slots; returns whether there were any.
unsafe fn attach(get: GetExportTable) -> bool {
    // SAFETY: NVTX's own table, null or valid for ever.
    let Some(callbacks) = (unsafe { get(CALLBACKS).cast::<ExportedCallbacks>().as_ref() }) else { return false };
    let Some(table_of) = callbacks.table_of.filter(|_| callbacks.struct_size >= size_of::<ExportedCallbacks>()) else {
        return false;
    };
    let mut attached = false;
    for (module, id, function) in hooks() {
        let (mut table, mut last) = (std::ptr::null_mut(), 0);
        // SAFETY: live out-parameters; the table's entries up to `last` are null or point at slots.
        unsafe {
            if table_of(module, &mut table, &mut last) == 0 || table.is_null() || id > last {
                continue;
            }
            if let Some(slot) = (*table.add(id as usize)).as_mut() {
                *slot = function;
                attached = true;
            }
        }
    }
    attached
}

/// Returns the module, id (`NvtxCallbackIdCore`, `NvtxCallbackIdCore2`) and function of each slot
/// that we use.
fn hooks() -> [(u32, u32, Slot); 16] {
    [
        (CORE, 4, start_ex as Slot),
        (CORE, 5, start_ascii as Slot),
        (CORE, 6, start_wide as Slot),
        (CORE, 7, end as Slot),
        (CORE, 8, push_ex as Slot),
        (CORE, 9, push_ascii as Slot),
        (CORE, 10, push_wide as Slot),
        (CORE, 11, pop as Slot),
        (CORE2, 2, domain_start_ex as Slot),
        (CORE2, 3, domain_end as Slot),
        (CORE2, 4, domain_push_ex as Slot),
        (CORE2, 5, domain_pop as Slot),
        (CORE2, 10, register_ascii as Slot),
        (CORE2, 11, register_wide as Slot),
        (CORE2, 12, create_domain as Slot),
        (CORE2, 13, create_domain as Slot),
    ]
}

unsafe extern "C" fn start_ex(attributes: *const Attributes) -> Opaque {
    // SAFETY: the program's arguments, here and in the functions below.
    start(|| unsafe { is_name_in(attributes) })
}

unsafe extern "C" fn start_ascii(text: *const c_char) -> Opaque {
    // SAFETY: as above.
    start(|| unsafe { is_name(text) })
}

unsafe extern "C" fn start_wide(text: *const Wide) -> Opaque {
    // SAFETY: as above.
    start(|| unsafe { is_wide_name(text) })
}

unsafe extern "C" fn domain_start_ex(_domain: Opaque, attributes: *const Attributes) -> Opaque {
    // SAFETY: as above.
    start(|| unsafe { is_name_in(attributes) })
}

unsafe extern "C" fn end(id: Opaque) {
    caught((), || {
        if is_marked(id) {
            leave(1);
        }
    });
}

unsafe extern "C" fn domain_end(_domain: Opaque, id: Opaque) {
    // SAFETY: as above.
    unsafe { end(id) };
}

unsafe extern "C" fn push_ex(attributes: *const Attributes) -> c_int {
    // SAFETY: as above.
    push(0, || unsafe { is_name_in(attributes) })
}

unsafe extern "C" fn push_ascii(text: *const c_char) -> c_int {
    // SAFETY: as above.
    push(0, || unsafe { is_name(text) })
}

unsafe extern "C" fn push_wide(text: *const Wide) -> c_int {
    // SAFETY: as above.
    push(0, || unsafe { is_wide_name(text) })
}

unsafe extern "C" fn domain_push_ex(domain: Opaque, attributes: *const Attributes) -> c_int {
    // SAFETY: as above.
    push(domain, || unsafe { is_name_in(attributes) })
}

unsafe extern "C" fn pop() -> c_int {
    pop_from(0)
}

unsafe extern "C" fn domain_pop(domain: Opaque) -> c_int {
    pop_from(domain)
}

unsafe extern "C" fn register_ascii(_domain: Opaque, text: *const c_char) -> Opaque {
    // SAFETY: as above.
    caught(0, || handle(unsafe { is_name(text) }))
}

unsafe extern "C" fn register_wide(_domain: Opaque, text: *const Wide) -> Opaque {
    // SAFETY: as above.
    caught(0, || handle(unsafe { is_wide_name(text) }))
}

unsafe extern "C" fn create_domain(_name: *const c_void) -> Opaque {
    caught(0, || handle(false))
}

/// Runs the work behind a call of the program; a panic must not reach it.
fn caught<R>(otherwise: R, run: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(otherwise)
}

fn start(is_ours: impl FnOnce() -> bool) -> Opaque {
    caught(0, || {
        SEEN.fetch_add(1, Ordering::Relaxed);
        let is_ours = is_ours();
        if is_ours {
            enter();
        }
        handle(is_ours)
    })
}

fn push(domain: Opaque, is_ours: impl FnOnce() -> bool) -> c_int {
    caught((), || {
        SEEN.fetch_add(1, Ordering::Relaxed);
        let is_ours = is_ours();
        let pushed = THREAD.with(|it| it.try_borrow_mut().is_ok_and(|mut it| it.push(domain, is_ours)));
        if pushed && is_ours {
            let _ = GUARD.try_with(|_| ());
            enter();
        }
    });
    NOT_TRACKED
}

fn pop_from(domain: Opaque) -> c_int {
    caught((), || {
        let was_ours = THREAD.with(|it| it.try_borrow_mut().is_ok_and(|mut it| it.pop(domain)));
        if was_ours {
            leave(1);
        }
    });
    NOT_TRACKED
}

fn enter() {
    OPEN.fetch_add(1, Ordering::SeqCst);
    ranges_changed();
}

fn leave(n: u64) {
    let less = |open: u64| Some(open.saturating_sub(n));
    let _ = OPEN.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    ranges_changed();
}

/// Returns a new handle or id, which is never 0; its lowest bit is the mark.
fn handle(marked: bool) -> Opaque {
    (HANDLES.fetch_add(1, Ordering::Relaxed) + 1) << 1 | u64::from(marked)
}

fn is_marked(handle: Opaque) -> bool {
    handle & 1 != 0
}

/// # Safety
/// Null, or attributes with the message that they say.
unsafe fn is_name_in(attributes: *const Attributes) -> bool {
    // SAFETY: the caller's promise.
    let Some(it) = (unsafe { attributes.as_ref() }).filter(|it| usize::from(it.size) >= size_of::<Attributes>()) else {
        return false;
    };
    match it.message_type {
        // SAFETY: as above.
        message_type::ASCII => unsafe { is_name(it.message.cast()) },
        // SAFETY: as above.
        message_type::UNICODE => unsafe { is_wide_name(it.message.cast()) },
        message_type::REGISTERED => is_marked(it.message as Opaque),
        _ => false,
    }
}

/// # Safety
/// Null, or a C string.
unsafe fn is_name(text: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    !text.is_null() && name().is_some_and(|it| it.as_bytes() == unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// # Safety
/// Null, or a string of wide characters with a 0 at its end.
unsafe fn is_wide_name(text: *const Wide) -> bool {
    let Some(name) = name().filter(|_| !text.is_null()) else { return false };
    let characters = name.chars().map(u32::from).chain([0]);
    // SAFETY: the caller's promise; it ends at the first difference, so never behind the 0.
    characters.enumerate().all(|(at, it)| unsafe { text.add(at).read_unaligned() } == it)
}

/// Domains in which a thread may have ranges open at the same time; those in others don't count.
const MOST_DOMAINS: usize = 16;
/// Depth of nesting down to which ranges count.
const MOST_DEPTH: u32 = u128::BITS;

/// The pushed ranges of a thread.
struct Pushed([Stack; MOST_DOMAINS]);

#[derive(Clone, Copy)]
struct Stack {
    domain: Opaque,
    depth: u32,
    /// A bit for each level: whether its range has the name.
    ours: u128,
}

thread_local! {
    /// Has no destructor, so that it is always usable; `GUARD` closes what a thread leaves open.
    static THREAD: RefCell<Pushed> =
        const { RefCell::new(Pushed([Stack { domain: 0, depth: 0, ours: 0 }; MOST_DOMAINS])) };
    static GUARD: Guard = const { Guard };
}

impl Pushed {
    /// Returns whether there was room.
    fn push(&mut self, domain: Opaque, is_ours: bool) -> bool {
        let Some(stack) = self.stack_of(domain) else { return false };
        let has_room = stack.depth < MOST_DEPTH;
        if is_ours && has_room {
            stack.ours |= 1 << stack.depth;
        }
        stack.depth = stack.depth.saturating_add(1);
        has_room
    }

    /// Returns whether the range had the name.
    fn pop(&mut self, domain: Opaque) -> bool {
        let Some(stack) = self.0.iter_mut().find(|it| it.domain == domain && it.depth > 0) else { return false };
        stack.depth -= 1;
        let level = if stack.depth < MOST_DEPTH { 1 << stack.depth } else { 0 };
        let was_ours = stack.ours & level != 0;
        stack.ours &= !level;
        was_ours
    }

    fn stack_of(&mut self, domain: Opaque) -> Option<&mut Stack> {
        let known = self.0.iter().position(|it| it.domain == domain && it.depth > 0);
        let stack = &mut self.0[known.or_else(|| self.0.iter().position(|it| it.depth == 0))?];
        stack.domain = domain;
        Some(stack)
    }

    /// Forgets all of them; returns how many had the name.
    fn clear(&mut self) -> u64 {
        let n = self.0.iter().map(|it| u64::from(it.ours.count_ones())).sum();
        self.0.iter_mut().for_each(|it| (it.depth, it.ours) = (0, 0));
        n
    }
}

/// Closes the ranges that a thread leaves open when it ends.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        caught((), || match THREAD.with(|it| it.try_borrow_mut().map_or(0, |mut it| it.clear())) {
            0 => {}
            n => leave(n),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_nest_in_each_domain_by_itself() {
        let mut pushed = Pushed([Stack { domain: 0, depth: 0, ours: 0 }; MOST_DOMAINS]);
        assert!(pushed.push(0, true) && pushed.push(8, false) && pushed.push(0, false) && pushed.push(8, true));
        assert_eq!([pushed.pop(0), pushed.pop(0), pushed.pop(0)], [false, true, false]);
        assert_eq!([pushed.pop(8), pushed.pop(8)], [true, false]);
        assert!(!pushed.pop(9), "what was pushed before us is not there");
    }

    #[test]
    fn what_is_too_deep_does_not_count() {
        let mut pushed = Pushed([Stack { domain: 0, depth: 0, ours: 0 }; MOST_DOMAINS]);
        assert!((0..MOST_DEPTH).all(|_| pushed.push(0, false)) && !pushed.push(0, true));
        assert!(!pushed.pop(0) && (0..MOST_DEPTH).all(|_| !pushed.pop(0)));
        assert!((0..MOST_DOMAINS as u64).all(|it| pushed.push(it, true)) && !pushed.push(99, true));
        assert_eq!((pushed.clear(), pushed.clear()), (MOST_DOMAINS as u64, 0));
    }
}
