//! The program's NVTX ranges, through NVTX's injection protocol.
//!
//! ```text
//! first NVTX call of a library ─▶ dlopen NVTX_INJECTION64_PATH ─▶ InitializeInjectionNvtx2(get_export_table)
//!     the tool that the variable named before us puts its functions into the slots
//!     get_export_table(CALLBACKS) ─▶ tables of slots ─▶ our functions into the slots, the tool's behind them
//! push, pop ─▶ the calling thread's ranges (`thread`) ─▶ a launch's path
//! is one open that `--range` names? (`window`) ─▶ agent::window
//! ```
//! NVTX is header-only: each library of the program has its own slots, and loads us itself. Ids,
//! tables and structures are those of NVTX's public headers (`nvToolsExt.h`, `nvtxTypes.h`), the
//! same in all of version 3.

mod calls;
mod catching;
mod chained;
mod handles;
mod schemas;
mod texts;
mod thread;
mod window;

use calls::{FunctionSlot, HOOKS, N_HOOKS, NEXT};
use catching::caught;
pub use chained::GetExportTable;
use chained::chained;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use xputrace_agent::Ranges;

/// The ranges that a program marks by NVTX.
#[derive(Debug)]
pub(crate) struct NvtxRanges;

impl Ranges for NvtxRanges {
    fn path(&self) -> Option<&'static CStr> {
        thread::path()
    }

    fn is_inside(&self) -> bool {
        window::is_inside()
    }

    fn opened(&self) -> u64 {
        window::opened()
    }
}

/// `NvtxExportTableID`: the table of callbacks.
const CALLBACKS: u32 = 1;

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct ExportedCallbacks {
    struct_size: usize,
    /// Returns an array of pointers to slots, and its highest index.
    table_of: Option<unsafe extern "C" fn(module: u32, table: *mut *mut *mut FunctionSlot, last: *mut c_uint) -> c_int>,
}

/// Called by NVTX at the first NVTX call of a library. Returns 1 if a tool follows its calls; with 0, they do nothing.
///
/// # Safety
/// `get_export_table` is null or the function that NVTX passes to a tool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(get_export_table: Option<GetExportTable>) -> c_int {
    let found = caught(None, || {
        xputrace_agent::quiet_panics();
        // SAFETY: the caller promises that the function, if it is given, is NVTX's.
        get_export_table.and_then(|get| unsafe { slots(get) }).map(|slots| (slots, contents(&slots)))
    });
    // SAFETY: the caller promises that `get_export_table` is null or NVTX's function: what the other tool is to be
    // given, too.
    let is_chained = chained().is_some_and(|it| unsafe { it(get_export_table) } != 0);
    let is_attached = caught(false, || found.is_some_and(|(slots, before)| attach(&slots, &before)));
    c_int::from(is_chained || is_attached)
}

/// The slots of one library, by index in [`HOOKS`]: null where its NVTX has none.
type Slots = [*mut FunctionSlot; N_HOOKS];

/// # Safety
/// `get` is the function that NVTX passes to a tool.
unsafe fn slots(get: GetExportTable) -> Option<Slots> {
    // SAFETY: NVTX's own table, null or valid for ever.
    let callbacks = unsafe { get(CALLBACKS).cast::<ExportedCallbacks>().as_ref() }?;
    let table_of = callbacks.table_of.filter(|_| callbacks.struct_size >= size_of::<ExportedCallbacks>())?;
    let mut slots = [std::ptr::null_mut(); N_HOOKS];
    for (slot, hook) in slots.iter_mut().zip(&HOOKS) {
        let (mut table, mut last) = (std::ptr::null_mut(), 0);
        // SAFETY: live out-parameters; the table's entries up to `last` are null or point at slots.
        unsafe {
            if table_of(hook.module, &mut table, &mut last) != 0 && !table.is_null() && hook.id <= last {
                *slot = *table.add(hook.id as usize);
            }
        }
    }
    Some(slots)
}

/// Returns what is in the slots: at first, NVTX's own functions that initialize it and then call what the slot holds.
fn contents(slots: &Slots) -> [FunctionSlot; N_HOOKS] {
    // SAFETY: NVTX's slots.
    slots.map(|slot| if slot.is_null() { std::ptr::null() } else { unsafe { *slot } })
}

/// Puts our functions into a library's slots; returns whether there were any. `before` was in the slots before the
/// other tool.
fn attach(slots: &Slots, before: &[FunctionSlot; N_HOOKS]) -> bool {
    let theirs = contents(slots);
    let of_tool = theirs.iter().zip(before).map(|(now, before)| if now == before { std::ptr::null() } else { *now });
    if !texts::prepare() || !of_tool.zip(&NEXT).all(|(it, next)| remember(it, next)) {
        return false;
    }
    let present = slots.iter().zip(&HOOKS).filter(|(slot, _)| !slot.is_null());
    // SAFETY: NVTX's slots, written while it initializes.
    present.map(|(slot, hook)| unsafe { **slot = hook.function }).count() != 0
}

/// Notes the other tool's function of a slot, null if it has none. Returns false if the tool has another function for each
/// library, which one function of ours can't tell apart: such a library is left to it.
fn remember(theirs: FunctionSlot, next: &AtomicPtr<c_void>) -> bool {
    let theirs = theirs.cast_mut();
    match next.compare_exchange(std::ptr::null_mut(), theirs, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => true,
        Err(known) => known == theirs,
    }
}
