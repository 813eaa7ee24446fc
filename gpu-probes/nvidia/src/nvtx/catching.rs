//! Panics do not reach the program.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the work behind a call of the program; a panic must not reach it.
pub(super) fn caught<R>(otherwise: R, run: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(otherwise)
}
