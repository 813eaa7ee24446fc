//! Launches of patched kernels, as the API tells of them, and a record of each kernel that says which launch its number is.
//!
//! Nobody tells when the kernel ran: its record has the time at which its launch returned. Scripts that read times of kernels are
//! refused where kernels are patched.

use super::functions::LaunchData;
use crate::agent::clock::realtime_now;
use crate::agent::launch::{self, Entered, Records, Returned, Submission};
use crate::agent::{Agent, Context, Layer, Stream};
use crate::cupti::Handle;
use std::cell::Cell;
use std::ffi::c_char;
use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering};
use xputrace_unwind::Pushed;
use xputrace_wire::events;
use xputrace_wire::message::demand;
use xputrace_wire::record::{Kernel, UNKNOWN};

/// The only call: which of CUDA's functions the program has called isn't told.
const CALL: usize = 0;

/// Ids of launches; 0 is none.
static NEXT: AtomicU32 = AtomicU32::new(1);

thread_local! {
    /// The launch that the thread is in, if it is recorded.
    static OPEN: Cell<Option<Open>> = const { Cell::new(None) };
}

/// A kernel that is being launched.
#[derive(Clone, Copy)]
pub(super) struct Launching {
    pub(super) context: Context,
    pub(super) device: u32,
    /// What its record calls it: a C string that stays.
    pub(super) symbol: *const c_char,
}

#[derive(Clone, Copy)]
struct Open {
    launching: Launching,
    correlation: u32,
    grid_id: u64,
    grid: [u32; 3],
    block: [u32; 3],
}

/// Begins a launch, with its stack if that is wanted.
///
/// # Safety
/// `data` is the API's for this launch, which the calling thread makes; the registers are those at the API's call.
pub(super) unsafe fn begin(agent: &'static Agent, data: &LaunchData, launching: Launching, registers: &Pushed) {
    if !agent.wants(demand::LAUNCHES) {
        return;
    }
    let correlation = NEXT.fetch_add(1, Ordering::Relaxed).max(1);
    let LaunchData { grid_id, grid, block, stream, function_name, .. } = *data;
    let entered = Entered {
        call: CALL,
        layer: Layer::Driver,
        submits: events::Call::Kernel,
        correlation,
        name: null(),
        symbol: function_name,
        registers,
    };
    let submission = || Submission {
        context: Some(launching.context),
        grid,
        block,
        dynamic_shared: 0,
        stream: Some(Stream { handle: stream as usize, per_thread: false }),
        is_captured: false,
        records: Records::Certain,
    };
    // SAFETY: the caller's promise.
    unsafe { launch::enter(agent, &entered, submission) };
    OPEN.set(Some(Open { launching, correlation, grid_id, grid, block }));
}

/// Ends the launch that the calling thread has begun, if it is recorded.
pub(super) fn end(agent: &'static Agent) {
    let Some(Open { launching, correlation, grid_id, grid, block }) = OPEN.take() else { return };
    let Launching { context, device, symbol } = launching;
    let returned =
        Returned { call: CALL, submits: events::Call::Kernel, correlation, result: 0, context: Some(context) };
    // SAFETY: the names stay until the call returns.
    unsafe { launch::exit(agent, &returned) };
    let now = realtime_now();
    let kernel = Kernel {
        start: now,
        end: now,
        grid_id,
        correlation,
        device,
        context: context.id,
        stream: UNKNOWN,
        grid,
        block,
        ..Kernel::default()
    };
    // SAFETY: a C string that stays.
    agent.deliver(1, 1, |delivery| unsafe { delivery.kernel(kernel, symbol) });
}

/// Returns a context by its slot: nobody names contexts here.
pub(super) fn context_of(slot: usize, handle: Handle) -> Context {
    Context { id: slot as u32 + 1, handle }
}
