//! Where C calls in: CUPTI's callbacks. Panics end here, counted.

use crate::cupti::{CallbackData, CallbackFunction, Handle, RESOURCE_STREAM_CREATED, domain};
use crate::launch;
use crate::session::{self, Session};
use crate::stack::Frame;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use xputrace_wire::region::Lost;

/// The subscriber's callback.
pub(crate) const CALLBACK: CallbackFunction = callback;

/// Hands on to [`on_callback`] with the caller's frame pointer and stack pointer as fifth and
/// sixth argument: our own code need not keep frame pointers.
#[unsafe(naked)]
unsafe extern "C" fn callback(user_data: *mut c_void, domain: u32, id: u32, data: *const CallbackData) {
    core::arch::naked_asm!("mov r8, rbp", "mov r9, rsp", "jmp {}", sym on_callback)
}

unsafe extern "C" fn on_callback(
    user_data: *mut c_void,
    domain: u32,
    id: u32,
    data: *const CallbackData,
    rbp: usize,
    rsp: usize,
) {
    // SAFETY: the session that was subscribed with: never freed.
    let Some(session) = (unsafe { user_data.cast::<Session>().as_ref() }) else { return };
    guarded(session, || {
        if domain == domain::RESOURCE {
            if id == RESOURCE_STREAM_CREATED {
                session.on_stream_created();
            }
            return;
        }
        // SAFETY: CUPTI's data of this call, null or valid while it runs.
        let Some(data) = (unsafe { data.as_ref() }) else { return session.count_unexpected() };
        // SAFETY: the registers come from the entry above.
        unsafe { launch::on_call(session, domain, id, data, Frame { rbp, rsp }) };
    });
}

/// CUPTI wants a buffer.
pub(crate) unsafe extern "C" fn request_buffer(buffer: *mut *mut u8, size: *mut usize, max_records: *mut usize) {
    let Some((memory, bytes)) = session::request_buffer() else { return };
    // SAFETY: CUPTI's out-parameters.
    unsafe {
        *buffer = memory;
        *size = bytes;
        *max_records = 0;
    }
}

/// CUPTI hands a buffer back.
pub(crate) unsafe extern "C" fn complete_buffer(
    _context: Handle,
    _stream: u32,
    buffer: *mut u8,
    _size: usize,
    valid: usize,
) {
    let Some(session) = session::current() else { return session::drop_buffer(buffer) };
    if session.is_ours() {
        // SAFETY: CUPTI's promise about the buffer.
        guarded(session, || unsafe { session.complete(buffer, valid) });
    }
}

#[inline]
fn guarded(session: &Session, run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_err() && session.is_ours() {
        session.region.count_lost(Lost::Panics, 1);
    }
}
