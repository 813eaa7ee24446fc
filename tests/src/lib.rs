//! What the tests of the built binary share: the binary itself, programs to trace, and a run of
//! both whose results can be asked for by name.
//!
//! Nothing here knows how xputrace is made: it is started as a user starts it, and judged by what
//! it prints. What the numbers should be, the traced programs say themselves.

mod build;
pub mod case;
mod run;

pub use build::{c_program, program, softgpu, workload, xputrace};
pub use run::{Done, Started, Trace, hist_count};

/// Ends a test that cannot run here, and says why in the form that `tests/run.sh` counts.
#[macro_export]
macro_rules! skip {
    ($reason:expr) => {{
        println!("skipped: {}", $reason);
        return;
    }};
}

/// Ends a test that needs the right to load eBPF where there is none.
#[macro_export]
macro_rules! need_root {
    () => {
        if !$crate::is_root() {
            $crate::skip!("not root");
        }
    };
}

/// Whether this process may do everything.
pub fn is_root() -> bool {
    // SAFETY: the call only returns a number.
    unsafe { libc::geteuid() == 0 }
}
