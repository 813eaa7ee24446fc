//! Where imported texts come from. It is passed in, so that this crate does no I/O.

use crate::bundle;
use xputrace_model::diagnostic::SourceFile;

/// Finds the text of `import "name"`.
///
/// Not asked for the standard library, which is compiled in and whose names take precedence.
pub trait Loader {
    /// Returns the clocks of the machine whose events the script sees; `None` where that is not this one, as in a replay.
    fn clocks(&self) -> Option<Clocks> {
        None
    }

    /// Returns the text of `import "name"`; the error is a sentence that says where it looked.
    fn load(&self, name: &str) -> Result<SourceFile, String>;
}

/// The clocks of a machine, when a script is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    /// CLOCK_MONOTONIC, which times of events are of, in nanoseconds.
    pub monotonic_ns: i64,
    /// What the wall clock in the machine's time zone is ahead of it, in nanoseconds since 1970.
    pub wall_ahead_ns: i64,
}

/// Knows only the standard library: for `-e`, and for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct BundledLoader;

impl Loader for BundledLoader {
    /// Those of a machine that was started at the beginning of 1970, just now.
    fn clocks(&self) -> Option<Clocks> {
        Some(Clocks::default())
    }

    fn load(&self, name: &str) -> Result<SourceFile, String> {
        let known: Vec<&str> = bundle::stdlib().iter().map(|it| it.name).collect();
        Err(format!("there is no module `{name}`; the standard library has {}", known.join(", ")))
    }
}
