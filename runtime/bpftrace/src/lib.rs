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
mod scanner;
mod target;
mod translate;
mod tree;

use tree::Item;

/// A script, and what of the program is not in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The script. It ends with a line end, if it has any text.
    pub text: String,
    /// In the order of the program.
    pub untranslated: Vec<Untranslated>,
}

/// A part of a program that has no translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untranslated {
    /// Line in the program, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The part itself, on one line.
    pub what: String,
    /// The reason, as the rest of a sentence: "there is no such event".
    pub because: String,
}

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

/// Returns line and column of a place, from 1.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.rfind('\n').map_or(0, |it| it + 1);
    (before.matches('\n').count() + 1, before[line..].chars().count() + 1)
}
