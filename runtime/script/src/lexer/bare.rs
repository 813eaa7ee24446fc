//! Handlers that name no event and read its fields by their names alone: `uprobe("libc:malloc", || @[comm].count())`.

use super::token::{self, Token, TokenKind, closing};
use rustc_hash::FxHashSet;
use xputrace_model::schema::Event;

/// A handler `|| …` of an event with fields. All numbers are tokens.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BareHandler {
    /// Its `||`.
    pub(super) bars: usize,
    /// The names that are fields of its event.
    pub(super) fields: Vec<usize>,
    /// The names that would be, but that the script gives to something of its own.
    pub(super) own: Vec<usize>,
}

/// Returns the handlers without a parameter, of events that have fields.
pub(super) fn handlers(text: &str, tokens: &[Token]) -> Vec<BareHandler> {
    let reader = BareReader { text, tokens };
    let own = reader.own_names();
    let mut open: Vec<usize> = Vec::new();
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match (token.kind, reader.slice(at)) {
            (TokenKind::TemplateStart, _) | (TokenKind::Symbol, "(" | "[" | "{" | "#{" | "?[") => open.push(at),
            (TokenKind::TemplateEnd, _) | (TokenKind::Symbol, ")" | "]" | "}") => drop(open.pop()),
            (TokenKind::Symbol, "||") => found.extend(reader.handler(at, &open, &own)),
            _ => {}
        }
    }
    found
}

struct BareReader<'a> {
    text: &'a str,
    tokens: &'a [Token],
}

impl<'a> BareReader<'a> {
    /// Returns the handler whose bars are at `bars`, in these open brackets.
    fn handler(&self, bars: usize, open: &[usize], own: &FxHashSet<&str>) -> Option<BareHandler> {
        if !matches!(self.slice(bars.checked_sub(1)?), "(" | ",") {
            return None;
        }
        let event = self.declared(open)?;
        let end = closing(self.text, self.tokens, *open.last()?)?;
        let names = (bars + 1..end).filter(|at| self.is_field(*at, event));
        let (own, fields) = names.partition(|at| own.contains(self.slice(*at)));
        Some(BareHandler { bars, fields, own })
    }

    /// Returns the event that the innermost call declares a handler of, also one in `interpret(…)`.
    fn declared(&self, open: &[usize]) -> Option<Event> {
        let (innermost, outer) = open.split_last()?;
        let name = self.word(innermost.checked_sub(1)?);
        if name == "interpret" {
            return self.declared(outer);
        }
        Event::all().find(|it| it.name() == name && !it.fields().is_empty())
    }

    /// Whether the word at `at` names a field of the event. A tracepoint's are known only on the machine, so any word that
    /// means nothing else is one.
    fn is_field(&self, at: usize, event: Event) -> bool {
        let word = self.word(at);
        let before = self.slice(at - 1);
        let after = self.slice(at + 1);
        let is_key = after == ":" && matches!(before, "#{" | ",");
        if word.is_empty()
            || matches!(before, "." | "?." | "::" | "let" | "const" | "for")
            || matches!(after, "(" | "::")
            || is_key
        {
            return false;
        }
        let is_known = event.fields().iter().any(|it| it.name == word);
        let may_be = event == Event::Tracepoint && (word == "args" || after != ".") && !WORDS.contains(&word);
        is_known || may_be
    }

    /// Returns the names that the script gives to variables, functions, parameters and modules.
    fn own_names(&self) -> FxHashSet<&'a str> {
        let mut own = FxHashSet::default();
        let mut in_bars = false;
        for at in 0..self.tokens.len() {
            let before = at.checked_sub(1).map_or("", |it| self.slice(it));
            if self.slice(at) == "|" && self.tokens[at].kind == TokenKind::Symbol {
                in_bars = !in_bars && matches!(before, "(" | "," | "=" | "{" | ";" | "[" | "=>" | "return" | ":");
            }
            let is_declared = matches!(before, "let" | "const" | "for" | "as" | "fn") || in_bars;
            if is_declared && !self.word(at).is_empty() {
                own.insert(self.word(at));
            }
            if matches!(before, "fn" | "for") {
                own.extend(self.listed(if before == "fn" { at + 1 } else { at }));
            }
        }
        own
    }

    /// Returns the words between the parentheses that open at `open`.
    fn listed(&self, open: usize) -> Vec<&'a str> {
        let end = match self.slice(open) {
            "(" => closing(self.text, self.tokens, open).unwrap_or(open),
            _ => open,
        };
        (open..end).map(|at| self.word(at)).filter(|it| !it.is_empty()).collect()
    }

    fn slice(&self, at: usize) -> &'a str {
        self.tokens.get(at).map_or("", |it| &self.text[it.span.clone()])
    }

    fn word(&self, at: usize) -> &'a str {
        token::word(self.text, self.tokens, at)
    }
}

/// Words of the language, which name nothing.
const WORDS: &[&str] = &[
    "let", "const", "if", "else", "switch", "do", "while", "until", "loop", "for", "in", "continue", "break", "return",
    "throw", "true", "false", "this", "try", "catch", "is", "and", "or", "not",
];
