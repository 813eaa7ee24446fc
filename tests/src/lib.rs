//! Shared by the tests of the built binary: the binary itself, programs to trace, and runs whose
//! results can be queried by name.
//!
//! The tests start xputrace as a user would, and judge it by its output. The traced programs
//! themselves say what the numbers should be.

mod build;
pub mod case;
pub mod guest;
mod run;

pub use build::{c_program, program, softgpu, workload, xputrace};
pub use run::{Done, Started, Trace, hist_count};

/// Skips a test that cannot run here; prints the reason in the form that `tests/run.sh` counts.
#[macro_export]
macro_rules! skip {
    ($reason:expr) => {{
        println!("skipped: {}", $reason);
        return;
    }};
}

/// Skips a test that needs the right to load eBPF programs.
#[macro_export]
macro_rules! need_root {
    () => {
        if !$crate::is_root() {
            $crate::skip!("not root");
        }
    };
}

/// Whether this process is root.
pub fn is_root() -> bool {
    // SAFETY: the call only returns a number.
    unsafe { libc::geteuid() == 0 }
}
