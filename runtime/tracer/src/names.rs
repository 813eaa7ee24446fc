//! Texts of a run: the string table is `model`'s; names are demangled by a function that the run passes in.

pub use xputrace_model::names::Names;

/// Gives a mangled name its two readable forms: with template arguments and without, both
/// without parameters. Names that are not mangled come back as they are.
pub type Demangle = fn(&str) -> (String, String);
