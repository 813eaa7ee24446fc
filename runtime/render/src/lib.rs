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
pub use fold::{FoldError, Path, flamegraph, folded, widest_paths};
pub use human::human;
pub use json::json;
pub use print::{printed, stack_lines};
pub use text::text;

use std::io::{self, Write};
use xputrace_model::diagnostic::Sources;
use xputrace_model::output::{Output, StackNames};

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

/// What `-f` chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// [`text`]
    #[default]
    Text,
    /// [`json`]
    Json,
}

/// A name that is no output format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    #[error("csv output is not offered yet; use `-f json`")]
    NotYet,
    #[error("there is no output format `{0}`; use `text` or `json`")]
    Unknown(String),
}

impl std::str::FromStr for Format {
    type Err = FormatError;

    fn from_str(name: &str) -> Result<Self, FormatError> {
        match name {
            "text" => Ok(Format::Text),
            "json" => Ok(Format::Json),
            "csv" => Err(FormatError::NotYet),
            other => Err(FormatError::Unknown(other.into())),
        }
    }
}

/// Writes one output in the chosen format.
///
/// # Errors
/// Those of `out`.
pub fn write(format: Format, out: &mut dyn Write, output: &Output, context: &mut Context<'_>) -> io::Result<()> {
    match format {
        Format::Text => text(out, output, context),
        Format::Json => json(out, output, context),
    }
}
