//! The library inside the traced program: the agent together with one vendor's folder.
//!
//! The built library needs no symbol newer than glibc 2.28 (`build.rs`; `tests/symbols.rs` checks the file) and libgcc_s, and
//! neither CUDA nor CUPTI to load. It is never unloaded.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::ffi::{CStr, c_char, c_int};
use std::panic::catch_unwind;
use xputrace_agent::{answer_tracer, begin, quiet_panics, wait_for_programs};
use xputrace_nvidia::{NVIDIA, SUCCESS, run_chained};
use xputrace_wire::Answer;

// The linker calls what is in here (`build.rs`).
core::arch::global_asm!(include_str!(concat!(env!("OUT_DIR"), "/old_glibc.s")));

/// Called by the CUDA driver in `cuInit` if `CUDA_INJECTION64_PATH` names this library. Returns
/// when this process is armed or dormant.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> c_int {
    let _ = catch_unwind(|| {
        quiet_panics();
        begin(&NVIDIA, run_chained());
    });
    // Failing would not help the program.
    SUCCESS
}

/// Arms for the tracer at `socket`, as [`InitializeInjection`] does for the one in the environment:
/// for a tracer that attaches to a running program. Returns an [`Answer`]'s code.
///
/// # Safety
/// `socket` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xputrace_arm(socket: *const c_char) -> c_int {
    let armed = catch_unwind(|| {
        quiet_panics();
        // SAFETY: the caller promises that `socket` is a C string.
        answer_tracer(&NVIDIA, unsafe { CStr::from_ptr(socket) }.to_str().unwrap_or_default())
    });
    armed.unwrap_or(Answer::Refused).code()
}

/// Waits until the tracer's programs have run that it may have for a context of this process. xputrace's own process calls it
/// once it has made one.
#[unsafe(no_mangle)]
pub extern "C" fn xputrace_wait_for_programs() {
    let _ = catch_unwind(wait_for_programs);
}
