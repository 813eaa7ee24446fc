//! What the suite needs of a machine with a GPU. There are two: a simulated CUPTI below the CUPTI
//! backend, and a backend of its own.

use std::ffi::{CStr, c_void};
use std::hint::black_box;
use xputrace_agent::World;

pub trait Machine {
    /// Restores the initial state.
    fn reset();

    fn world() -> World;

    /// Launches a kernel through the runtime; returns its correlation id.
    fn launch(symbol: &CStr, stream: u64, result: i32) -> u32;

    /// A driver call that launches, without allocations of its own.
    fn launch_quietly();

    /// Launches a graph with this many kernels.
    fn launch_graph(kernels: u64) -> u32;

    /// Adds a kernel for the next flush to deliver.
    fn push_kernel(correlation: u32, symbol: &CStr);

    /// Removes the end of the newest kernel.
    fn spoil_last_kernel();

    fn create_stream();

    /// Returns how often a stream's id was queried.
    fn stream_questions() -> usize;

    /// Returns how often a run has released the library.
    fn times_let_go() -> usize;

    /// Whether anything is recorded.
    fn is_recording() -> bool;

    /// Returns the function whose frame a launch stack begins with.
    fn caller() -> u64;
}

/// Calls two functions in an order that the bits of `path` give, so that each path is a stack of its own.
#[inline(never)]
pub fn left(path: u64, depth: u32, run: &mut dyn FnMut()) -> u64 {
    match (depth, path & 1) {
        (0, _) => run(),
        (_, 0) => return black_box(left(path >> 1, depth - 1, run)) + 1,
        (_, _) => return black_box(right(path >> 1, depth - 1, run)) + 2,
    }
    3
}

#[inline(never)]
fn right(path: u64, depth: u32, run: &mut dyn FnMut()) -> u64 {
    match (depth, path & 1) {
        (0, _) => run(),
        (_, 0) => return black_box(left(path >> 1, depth - 1, run)) + 4,
        (_, _) => return black_box(right(path >> 1, depth - 1, run)) + 5,
    }
    6
}

/// Calls a callback with these arguments from a function with a frame pointer, as a vendor's library does.
#[unsafe(naked)]
pub unsafe extern "C" fn framed(callback: *const c_void, user: usize, domain: u32, id: u32, data: *const c_void) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov esi, edx",
        "mov edx, ecx",
        "mov rcx, r8",
        "call rax",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc"
    )
}
