//! Turns what the user writes into what Rhai parses, keeping every position.
//!
//! Rhai knows no `@maps`, refuses its reserved words as field names, and explains typical slips of
//! other tracers' users poorly. So a text is tokenized once, checked for those slips, and rewritten
//! by insertions and replacements within each line:
//!
//! | written | for the compiler | for the interpreter |
//! |---|---|---|
//! | `@x`, `@` | `_x`, `__map` | the same, plus `.value` where the value is meant |
//! | `@x[a, b]` | `_x[[a, b]]` | the same, plus `.value` |
//! | `@x[k] += n` | `_x[k] += n` | `_x[k].added = n` (so that it starts from 0) |
//! | `e.new` | `e["new"]` | the same |
//! | `module(…)` | `module_event(…)` | the same |
//! | `uprobe(…, \|\| @[comm].count())` | `uprobe(…, \|__event\| __map[__event.comm].count())` | the same |
//! | `a && @x.count()` | `a && _x.count()` | `a && { _x.count(); true }` |
//! | `1.5.ms`, `100.hz` | `1500000.ns`, `10000000.ns` | the same |
//! | ` `, `\t`, `\\` in backticks | their meaning in quotes | the same |
//! | a byte order mark, `#!…` at the start | removed, commented out | the same |
//!
//! Lines are never removed, and added only by `\n` in backticks.

mod bare;
mod bpftrace;
mod check;
mod imports;
mod rewrite;
#[cfg(test)]
mod tests;
mod token;

pub(crate) use imports::Import;
pub(crate) use rewrite::MOST_POSITIONS;
pub use rewrite::{Dialect, Lexed};
use xputrace_model::diagnostic::{Diagnostic, FileId};

/// A tokenized text, for all later steps.
#[derive(Clone, Debug, Default)]
pub struct Tokenized {
    text: String,
    tokens: Vec<token::Token>,
}

impl Tokenized {
    /// Tokenizes any text; [`Tokenized::check`] or Rhai reports errors.
    pub fn of(text: &str) -> Self {
        Tokenized { text: text.to_owned(), tokens: token::tokens(text) }
    }

    /// Rewrites the text for one reader.
    pub fn rewrite(&self, dialect: Dialect) -> Lexed {
        rewrite::rewrite(&self.text, &self.tokens, dialect)
    }

    /// Returns all mistakes visible in the tokens, in source order.
    pub fn check(&self, file: FileId) -> Vec<Diagnostic> {
        check::check(file, &self.text, &self.tokens)
    }

    /// Answers a text with mistakes if it is a whole program for bpftrace.
    pub(crate) fn foreign_program(&self, file: FileId) -> Option<Diagnostic> {
        bpftrace::program(file, &self.text)
    }

    /// Returns the imports. They are removed from what Rhai parses, because it would forget a
    /// module before the handlers that use it run.
    pub(crate) fn imports(&self) -> Vec<Import> {
        imports::imports(&self.text, &self.tokens)
    }

    /// Returns how the second argument is written, in the call whose parenthesis is the first token
    /// at or after `offset`; `None` if it contains no unit.
    pub(crate) fn second_argument(&self, offset: usize) -> Option<Written> {
        let first = self.tokens.partition_point(|it| it.span.start < offset);
        second_argument(&self.text, &self.tokens[first..])
    }
}

/// Codes of mistakes that [`rewrite`] repairs, so that checking can continue.
pub(crate) const REPAIRED: &[&str] = &["unit", "field-arrow"];

/// How an integer argument with a unit is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// `100.ms`, in the command line's form: `100ms`.
    Time(String),
    /// A computation that contains a unit: `10 * 1.ms`.
    Computed,
}

fn second_argument(text: &str, tokens: &[token::Token]) -> Option<Written> {
    let slice = |at: usize| tokens.get(at).map_or("", |it: &token::Token| &text[it.span.clone()]);
    let (mut depth, mut commas, mut written) = (0usize, 0, Vec::new());
    for at in 0..tokens.len() {
        match slice(at) {
            "(" | "[" | "{" | "#{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            "," if depth == 1 => commas += 1,
            _ if commas == 1 => written.push(at),
            _ => {}
        }
        if depth == 0 || commas == 2 {
            break;
        }
    }
    let has_unit = written.iter().any(|at| *at > 0 && slice(at - 1) == "." && crate::units::is_unit(slice(*at)));
    let is_number = |at: usize| matches!(tokens[at].kind, token::TokenKind::Integer | token::TokenKind::Float);
    match written[..] {
        _ if !has_unit => None,
        [number, _, unit] if is_number(number) => Some(Written::Time(format!("{}{}", slice(number), slice(unit)))),
        _ => Some(Written::Computed),
    }
}

/// Returns the integers and quoted strings of a text, each once, as written; integers also with a
/// leading minus.
pub fn literals(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for token in token::tokens(text) {
        let written = &text[token.span.clone()];
        match token.kind {
            token::TokenKind::Integer => found.extend([written.to_owned(), format!("-{written}")]),
            token::TokenKind::Text => found.push(written.to_owned()),
            _ => {}
        }
    }
    found.sort();
    found.dedup();
    found
}
