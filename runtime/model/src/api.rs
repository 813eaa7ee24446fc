//! The functions of the GPU's API whose calls are `api` events.

use crate::catalog::glob;
pub use xputrace_cuda_calls::{ApiFunction, FunctionId, Functions, Parameter, ParameterKind, functions};

/// Returns the functions that a pattern matches: by their name, or as programs write it.
pub fn functions_like(pattern: &str) -> impl Iterator<Item = &'static ApiFunction> {
    functions().iter().filter(move |it| glob(pattern, it.name()) || glob(pattern, it.plain_name()))
}
