//! Values of a run → text, JSON, folded stacks, SVG.
//!
//! ```text
//! Output ──text, json, ndjson──▶ lines     Table ──folded──▶ stacks ──flamegraph──▶ SVG
//! Diagnostic ──diagnostics──▶ report     Plan ──explain──▶ report
//! events of a recording ──ndjson──▶ lines
//! ```
//!
//! Pure functions: the only I/O goes through the `std::io::Write` passed in. This crate does not
//! know which engine or process produced a number.
#![forbid(unsafe_code)]

mod account;
mod cells;
mod datum;
mod diagnostics;
mod explain;
mod export;
mod fold;
mod help;
mod hits;
mod human;
mod json;
mod listing;
mod names;
mod ndjson;
mod print;
mod rows;
mod text;

pub use cells::{one_line, shorten, shorten_all, shown_text};
pub use diagnostics::diagnostics;
pub use explain::explain;
pub use export::{
    AboutRecording, EVENT_FORMATS, EventExporter, EventFormat, EventNames, Exported, ExportedArgument, Exporter, FILES,
    FORMATS, FileOutput, Format, Maps,
};
pub use fold::{FoldError, Path, StackFile, flamegraph, folded, widest_paths};
pub use help::event_help;
pub use hits::{HIT_EVENTS, HitField, HitRow, HitValue, hit_fields};
pub use human::human;
pub use json::json;
pub use listing::listing;
pub use names::short_names;
pub use print::{printed, stack_lines};
pub use text::text;

use std::sync::Arc;
use xputrace_model::diagnostic::Sources;
use xputrace_model::output::StackNames;
use xputrace_model::table::TableDef;

/// Width when the output is not a terminal: nothing is cut or wrapped.
pub const UNLIMITED: usize = usize::MAX;

/// What every output needs besides its values.
pub struct Context<'a> {
    /// Resolves stacks to frames.
    pub names: &'a mut dyn StackNames,
    /// The script's text, to name the lines of losses.
    pub sources: &'a Sources,
    /// The script's maps, to name those that lost something.
    pub tables: &'a [Arc<TableDef>],
    /// Maximum width of lines made here; text printed by a script is never cut.
    pub width: usize,
}
