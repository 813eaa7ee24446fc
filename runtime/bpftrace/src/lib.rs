//! Translates bpftrace's programs into this product's scripts.
//!
//! ```text
//! text ─scanner, parser→ tree ─facts→ what maps hold ─translate→ pieces ─layout→ text
//! ```
//!
//! What has no translation is a comment at its place, and is listed. Any text is taken, and nothing panics. The crate
//! knows neither files nor processes; whether what it writes compiles is for the compiler to say.
//!
//! Sources: bpftrace's language reference (docs/language.md in its repository), of versions 0.17 to 0.23.

#![forbid(unsafe_code)]

mod facts;
mod layout;
mod macros;
mod names;
mod parser;
mod quoted;
mod scanner;
mod target;
mod translate;
mod translation;
mod tree;

use translation::position;
use tree::Item;

pub use translation::{Translation, Untranslated};

/// Why a text is no bpftrace program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Byte offset in the text.
    pub offset: usize,
    /// Line in the text, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What was expected, and what is there.
    pub message: String,
}

impl std::fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

impl std::error::Error for SyntaxError {}

/// Translates a program.
///
/// # Errors
/// The text is no bpftrace program; the error names the first place where it isn't.
pub fn translate(text: &str) -> Result<Translation, SyntaxError> {
    let (mut program, comments) = parser::parse(text).map_err(|it| {
        let (line, column) = position(text, it.at);
        SyntaxError { offset: it.at, line, column, message: it.message }
    })?;
    macros::expand(&mut program);
    Ok(translate::translate(text, &program, &comments))
}

/// Whether a text is a whole program of bpftrace's, with at least one probe. No script of this product is.
pub fn is_program(text: &str) -> bool {
    let program = parser::parse(text);
    program.is_ok_and(|(program, _)| program.items.iter().any(|it| matches!(it, Item::Probe(_))))
}

/// Whether a word is a kind of probe, such as `uprobe`, or its short name.
pub fn is_probe_kind(word: &str) -> bool {
    parser::PROBE_KINDS.contains(&word)
}
