//! Where imported texts come from. It is passed in, so that this crate does no I/O.

use crate::bundle;
use xputrace_model::diagnostic::SourceFile;

/// Finds the text of `import "name"`.
///
/// Not asked for the standard library, which is compiled in and whose names take precedence.
pub trait Loader {
    /// Returns the text of `import "name"`; the error is a sentence that says where it looked.
    fn load(&self, name: &str) -> Result<SourceFile, String>;
}

/// Knows only the standard library: for `-e`, and for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct BundledLoader;

impl Loader for BundledLoader {
    fn load(&self, name: &str) -> Result<SourceFile, String> {
        let known: Vec<&str> = bundle::stdlib().iter().map(|it| it.name).collect();
        Err(format!("there is no module `{name}`; the standard library has {}", known.join(", ")))
    }
}
