//! How a command's environment makes the driver load the collector.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use xputrace_wire::{CHAIN_VARIABLE, CHAINED_RANGES_VARIABLE, INJECTION_VARIABLE, RANGE_VARIABLE, SOCKET_VARIABLE};

/// Names the library that NVTX loads at a program's first NVTX call.
const NVTX_VARIABLE: &str = "NVTX_INJECTION64_PATH";

/// Why the program's ranges are followed.
#[derive(Clone, Copy, Debug)]
pub struct Ranges<'a> {
    /// Only in ranges of this name anything is recorded.
    pub window: Option<&'a str>,
    /// Whether events have the ranges around them.
    pub are_read: bool,
}

/// What a command's environment gets.
#[derive(Debug, Default)]
pub struct Injection {
    pub variables: Vec<(&'static str, OsString)>,
    /// What the user should know.
    pub notes: Vec<String>,
}

impl Injection {
    /// Makes CUDA load the collector, which will connect to the tracer at `socket`. What our environment names in its place is
    /// loaded too.
    pub fn of(collector: &Path, socket: &str, ranges: Ranges<'_>) -> Self {
        let mut injection = Injection::default();
        let library = collector.as_os_str();
        if let Some(earlier) = earlier(INJECTION_VARIABLE, library) {
            injection.notes.push(format!(
                "{INJECTION_VARIABLE} already named {}; it is loaded too, after the collector",
                earlier.to_string_lossy()
            ));
            injection.set(CHAIN_VARIABLE, earlier);
        }
        injection.set(INJECTION_VARIABLE, library);
        injection.set(SOCKET_VARIABLE, socket);
        // NVTX follows the program's ranges.
        if ranges.are_read || ranges.window.is_some() {
            earlier(NVTX_VARIABLE, library).into_iter().for_each(|it| injection.set(CHAINED_RANGES_VARIABLE, it));
            injection.set(NVTX_VARIABLE, library);
        }
        ranges.window.into_iter().for_each(|it| injection.set(RANGE_VARIABLE, it));
        injection
    }

    fn set(&mut self, name: &'static str, value: impl Into<OsString>) {
        self.variables.push((name, value.into()));
    }
}

/// Returns the other library that a variable of our environment names, if it does.
fn earlier(variable: &str, library: &OsStr) -> Option<OsString> {
    std::env::var_os(variable).filter(|it| !it.is_empty() && it != library)
}
