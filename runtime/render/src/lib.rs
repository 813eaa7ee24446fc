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
mod context;
mod datum;
mod diagnostics;
mod explain;
mod export;
mod fold;
mod formats;
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
pub use context::{Context, UNLIMITED};
pub use diagnostics::diagnostics;
pub use explain::explain;
pub use export::{
    AboutRecording, EventExporter, EventFormat, EventNames, Exported, ExportedArgument, Exporter, FileOutput, Format,
    Maps,
};
pub use fold::{FoldError, Path, StackFile, flamegraph, folded, widest_paths};
pub use formats::{EVENT_FORMATS, FILES, FORMATS};
pub use help::event_help;
pub use hits::{HIT_EVENTS, HitField, HitRow, HitValue, hit_fields};
pub use human::{counted, human};
pub use json::json;
pub use listing::listing;
pub use names::short_names;
pub use print::{printed, stack_lines};
pub use text::text;
