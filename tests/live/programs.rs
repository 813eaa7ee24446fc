//! The C programs of `programs/`, for the tests that are not text files.

use std::path::PathBuf;
use xputrace_tests::program;

/// `programs/cpu.c`
pub fn cpu() -> PathBuf {
    program("cpu")
}

/// `programs/cudart.c`
pub fn cudart() -> PathBuf {
    program("cudart")
}
