//! Values of a run → text, JSON, folded stacks, SVG.
//!
//! ```text
//! Output ──text, json──▶ lines     Table ──folded──▶ stacks ──flamegraph──▶ SVG
//! Diagnostic ──diagnostics──▶ report     Plan ──explain──▶ report
//! ```
//!
//! Pure functions: the only IO is the `std::io::Write` that is passed in. Nothing here knows
//! which engine or process a number came from.
#![forbid(unsafe_code)]

mod account;
mod cells;
mod diagnostics;
mod explain;
mod export;
mod fold;
mod human;
mod json;
mod print;
mod rows;
mod text;

pub use account::meaning;
pub use cells::{shorten, shorten_all};
pub use diagnostics::diagnostics;
pub use explain::explain;
pub use export::{Exporter, FILES, FORMATS, FileOutput, Format, Maps};
pub use fold::{FoldError, Path, StackFile, flamegraph, folded, widest_paths};
pub use human::human;
pub use json::json;
pub use print::{printed, stack_lines};
pub use text::text;

use xputrace_model::diagnostic::Sources;
use xputrace_model::output::StackNames;

/// The width of what is no terminal: nothing is cut or wrapped there.
pub const UNLIMITED: usize = usize::MAX;

/// What every output needs beside its own values.
pub struct Context<'a> {
    /// Gives stacks their frames.
    pub names: &'a mut dyn StackNames,
    /// The script's texts, for naming the lines that met losses.
    pub sources: &'a Sources,
    /// Most columns of a line that is made here; a script's own prints are never cut.
    pub width: usize,
}
