//! From what the user writes to what Rhai parses, keeping every position.
//!
//! Rhai knows no `@maps`, refuses its reserved words as field names, and explains itself poorly
//! where users of other tracers slip. So a text is cut into tokens once, checked for those
//! slips, and rewritten by insertion and replacement within a line:
//!
//! | written | for the compiler | for the interpreter |
//! |---|---|---|
//! | `@x`, `@` | `_x`, `__map` | the same, `.value` behind it where its value is meant |
//! | `@x[a, b]` | `_x[[a, b]]` | the same, `.value` likewise |
//! | `@x[k] += n` | `_x[k] += n` | `_x[k].added = n` (so that it starts from 0) |
//! | `e.new` | `e["new"]` | the same |
//! | `1.5.ms`, `100.hz` | `1500000.ns`, `10000000.ns` | the same |
//! | `\n`, `\t`, `\\` in backticks | what they mean in quotes | the same |
//!
//! Lines are never removed, and added only by `\n` in backticks.

mod check;
mod rewrite;
#[cfg(test)]
mod tests;
mod token;

use crate::handler::Positions;
use xputrace_model::diagnostic::{Diagnostic, FileId};

/// Which of its two readers a text is rewritten for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// What `compile` reads: maps are plain variables.
    Compiled,
    /// What Rhai runs: a map is a handle, and `.value` reads or writes what it holds.
    Interpreted,
}

/// A text that Rhai can parse, and the way back.
#[derive(Clone, Debug, Default)]
pub struct Lexed {
    pub text: String,
    pub positions: Positions,
    /// The variables that stand for maps, each once, in order of appearance.
    pub map_variables: Vec<String>,
}

/// Rewrites `text` for one reader. Any text is accepted; what is wrong in it is [`check`]'s or
/// Rhai's to say.
pub fn rewrite(text: &str, dialect: Dialect) -> Lexed {
    rewrite::rewrite(text, &token::tokens(text), dialect)
}

/// The mistakes that show in the tokens alone, all of them, in order of their place.
pub fn check(file: FileId, text: &str) -> Vec<Diagnostic> {
    check::check(file, text, &token::tokens(text))
}

/// Codes of mistakes after which [`rewrite`] goes on with what was meant.
pub(crate) const REPAIRED: &[&str] = &["unit", "field-arrow"];

/// An `import "name" as alias` of the top level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) name: String,
    pub(crate) alias: Option<String>,
    /// The name with its quotes.
    pub(crate) name_span: std::ops::Range<usize>,
    /// The whole statement, without its semicolon.
    span: std::ops::Range<usize>,
}

/// The imports of a text. They are taken out of what Rhai parses: it would forget a module
/// before the handlers that use it run.
pub(crate) fn imports(text: &str) -> Vec<Import> {
    imports_of(text, &token::tokens(text))
}

fn imports_of(text: &str, tokens: &[token::Token]) -> Vec<Import> {
    let slice = |at: usize| tokens.get(at).map_or("", |it: &token::Token| &text[it.span.clone()]);
    let is_name =
        |at: usize| tokens.get(at).is_some_and(|it| it.kind == token::Kind::Text) && slice(at).starts_with('"');
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        if slice(at) != "import" || tokens[at].kind != token::Kind::Identifier || !is_name(at + 1) {
            continue;
        }
        let alias = (slice(at + 2) == "as").then(|| slice(at + 3).to_owned());
        let last = if alias.is_some() { at + 3 } else { at + 1 };
        let Some(end) = tokens.get(last).map(|it| it.span.end) else { continue };
        found.push(Import {
            name: slice(at + 1).trim_matches('"').to_owned(),
            alias,
            name_span: tokens[at + 1].span.clone(),
            span: tokens[at].span.start..end,
        });
    }
    found
}

/// The integers and the strings in quotes of a text, each once, as they are written; integers
/// with a minus in front as well.
pub(crate) fn literals(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for token in token::tokens(text) {
        let written = &text[token.span.clone()];
        match token.kind {
            token::Kind::Integer => found.extend([written.to_owned(), format!("-{written}")]),
            token::Kind::Text => found.push(written.to_owned()),
            _ => {}
        }
    }
    found.sort();
    found.dedup();
    found
}
