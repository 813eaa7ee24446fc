//! What the suite needs of a machine with a GPU: made up twice, once as a CUPTI below the CUPTI
//! backend, once as a backend of its own.

use std::ffi::CStr;
use xputrace_collector::World;

pub trait Machine {
    /// As when the process began.
    fn reset();

    fn world() -> World;

    /// A kernel launched through the runtime; its correlation id.
    fn launch(symbol: &CStr, stream: u64, result: i32) -> u32;

    /// A driver call that launches, and allocates nothing by itself.
    fn launch_quietly();

    /// A graph with so many kernels.
    fn launch_graph(kernels: u64) -> u32;

    /// A kernel that will be delivered at the next flush.
    fn push_kernel(correlation: u32, symbol: &CStr);

    /// The newest kernel lost its end.
    fn spoil_last_kernel();

    fn create_stream();

    /// How often the id of a stream was asked for.
    fn stream_questions() -> usize;

    /// How often a run has let go.
    fn times_let_go() -> usize;

    /// Whether anything is recorded.
    fn is_recording() -> bool;

    /// The function whose frame a launch stack begins with.
    fn caller() -> u64;
}
