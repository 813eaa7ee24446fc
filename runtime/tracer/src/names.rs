//! Texts of a run. The string table is `model`'s; the run passes in the function that demangles
//! names.

pub use xputrace_model::names::Names;

/// Returns the two readable forms of a mangled name, with and without template arguments, both
/// without parameters. Names that are not mangled are returned as they are.
pub type Demangle = fn(&str) -> (String, String);
