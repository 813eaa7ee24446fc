//! Where imported texts come from: a value passed in, so that this crate does no IO.

use crate::bundle;
use xputrace_model::diagnostic::SourceFile;

/// Finds the text of `import "name"`.
///
/// The standard library is not asked for here: its names win, and they are compiled in.
pub trait Loader {
    /// The text that `import "name"` means; the error is a sentence that says where was looked.
    fn load(&self, name: &str) -> Result<SourceFile, String>;
}

/// Knows the standard library and nothing else: for `-e`, and for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct BundledLoader;

impl Loader for BundledLoader {
    fn load(&self, name: &str) -> Result<SourceFile, String> {
        let known: Vec<&str> = bundle::stdlib().iter().map(|it| it.name).collect();
        Err(format!("there is no module `{name}`; the standard library has {}", known.join(", ")))
    }
}
