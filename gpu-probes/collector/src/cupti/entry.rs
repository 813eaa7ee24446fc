//! CUPTI's callbacks, the entry points from C. Panics end here and are counted.

use super::delivery::drop_buffer;
use super::{CallbackData, CallbackFunction, Handle, POOL, RESOURCE_STREAM_CREATED, Run, current_run, domain};
use std::ffi::c_void;
use xputrace_unwind::{Pushed, push_registers};

/// The subscriber's callback.
pub(super) const CALLBACK: CallbackFunction = callback;

/// Calls [`on_callback`] with the registers at CUPTI's call as the fifth argument. A stack walk
/// starts from them.
#[unsafe(naked)]
unsafe extern "C" fn callback(user_data: *mut c_void, domain: u32, id: u32, data: *const CallbackData) {
    core::arch::naked_asm!(
        push_registers!(),
        "mov r8, rsp",
        "call {}",
        "add rsp, 56",
        "ret",
        sym on_callback
    )
}

unsafe extern "C" fn on_callback(
    user_data: *mut c_void,
    domain: u32,
    id: u32,
    data: *const CallbackData,
    registers: *const Pushed,
) {
    // SAFETY: the run that was subscribed with: never freed; and what `callback` pushed.
    let (Some(run), Some(registers)) = (unsafe { (user_data.cast::<Run>().as_ref(), registers.as_ref()) }) else {
        return;
    };
    run.agent.guarded(|| {
        if domain == domain::RESOURCE {
            if id == RESOURCE_STREAM_CREATED {
                run.agent.on_stream_created();
            }
            return;
        }
        // SAFETY: CUPTI's data of this call, null or valid while it runs.
        let Some(data) = (unsafe { data.as_ref() }) else { return run.agent.count_unexpected() };
        // SAFETY: the registers come from the entry above.
        unsafe { run.on_call(domain, id, data, registers) };
    });
}

/// CUPTI requests a buffer.
pub(super) unsafe extern "C" fn request_buffer(buffer: *mut *mut u8, size: *mut usize, max_records: *mut usize) {
    let Some((memory, bytes)) = POOL.get().map(super::Pool::request) else { return };
    // SAFETY: CUPTI's out-parameters.
    unsafe {
        *buffer = memory;
        *size = bytes;
        *max_records = 0;
    }
}

/// CUPTI returns a buffer.
pub(super) unsafe extern "C" fn complete_buffer(
    _context: Handle,
    _stream: u32,
    buffer: *mut u8,
    _size: usize,
    valid: usize,
) {
    let Some(run) = current_run() else { return drop_buffer(buffer) };
    if run.agent.is_ours() {
        // SAFETY: CUPTI's promise about the buffer.
        run.agent.guarded(|| unsafe { run.complete(buffer, valid) });
    }
}
