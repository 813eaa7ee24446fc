//! The rewriting: tokens in, text and positions out.

use super::bare::{self, BareHandler};
use super::imports::imports;
use super::token::{self, SHEBANG, Token, TokenKind, byte_order_mark, closing};
use crate::handler::{BARE_EVENT, BARE_MAP, Positions};
use crate::units;
use crate::words::{MODULE_FUNCTION, SWITCHING, takes_maps};
use std::collections::BTreeMap;
use xputrace_model::plan::HostEvent;
use xputrace_model::table::TableKind;

/// The reader that a text is rewritten for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// What `compile` reads: maps are plain variables.
    Compiled,
    /// What Rhai runs: a map is a handle, and `.value` reads or writes its contents.
    Interpreted,
}

/// A text that Rhai can parse, and its positions in the original.
#[derive(Clone, Debug, Default)]
pub struct Lexed {
    pub text: String,
    pub positions: Positions,
    /// The variables that stand for maps, each once, in order of first use.
    pub map_variables: Vec<String>,
}

/// Maximum line and column that Rhai's positions can hold.
pub(crate) const MOST_POSITIONS: usize = u16::MAX as usize;

impl Lexed {
    /// Returns the first place in the user's text that Rhai's positions cannot express.
    pub(crate) fn too_far(&self) -> Option<usize> {
        let long = self.text.lines().position(|it| it.len() > MOST_POSITIONS && it.chars().count() > MOST_POSITIONS);
        let line = long.or_else(|| (self.positions.lines.len() > MOST_POSITIONS).then_some(MOST_POSITIONS))?;
        Some(self.positions.user_offset(self.positions.lines[line]))
    }
}

/// Words that Rhai reserves but that make good field names.
const RESERVED: &[&str] = &[
    "as",
    "async",
    "await",
    "break",
    "call",
    "case",
    "catch",
    "const",
    "continue",
    "curry",
    "debug",
    "default",
    "do",
    "else",
    "eval",
    "exit",
    "export",
    "false",
    "fn",
    "Fn",
    "for",
    "global",
    "go",
    "goto",
    "if",
    "import",
    "in",
    "is",
    "is_def_fn",
    "is_def_var",
    "is_shared",
    "let",
    "loop",
    "match",
    "module",
    "new",
    "nil",
    "null",
    "package",
    "print",
    "private",
    "protected",
    "public",
    "return",
    "shared",
    "spawn",
    "static",
    "super",
    "switch",
    "sync",
    "this",
    "thread",
    "throw",
    "true",
    "try",
    "type_of",
    "until",
    "use",
    "var",
    "void",
    "while",
    "with",
    "yield",
];

/// Whether a method of a map or an element is called for what it does.
fn acts_on_map(method: &str) -> bool {
    matches!(method, "remove" | "clear" | "take") || TableKind::of_method(method).is_some()
}

pub(super) fn rewrite(text: &str, tokens: &[Token], dialect: Dialect) -> Lexed {
    let mut plan = Plan { text, tokens, bare: bare::handlers(text, tokens), edits: BTreeMap::new() };
    plan.first_line();
    // Go backwards: where two insertions meet, the inner expression's comes first.
    for at in (0..tokens.len()).rev() {
        plan.token(at, dialect);
    }
    for import in imports(text, tokens) {
        plan.remove(import.span);
    }
    let mut out = TextWriter::default();
    let mut done = 0;
    for ((start, _), edit) in &plan.edits {
        out.copy(text, done..*start);
        out.insert(&edit.text, edit.stands_for);
        done = start + edit.removed;
    }
    out.copy(text, done..text.len());
    let mut lexed = out.finish(map_variables(text, tokens));
    lexed.positions.user_lines = std::iter::once(0).chain(text.match_indices('\n').map(|it| it.0 + 1)).collect();
    lexed
}

/// Returns the variable that stands for a map.
fn variable(map: &str) -> String {
    match &map[1..] {
        "" => BARE_MAP.to_owned(),
        name => format!("_{name}"),
    }
}

fn map_variables(text: &str, tokens: &[Token]) -> Vec<String> {
    let mut found = Vec::new();
    for token in tokens.iter().filter(|it| it.kind == TokenKind::Map) {
        let variable = variable(&text[token.span.clone()]);
        if !found.contains(&variable) {
            found.push(variable);
        }
    }
    found
}

/// The edits, by place.
struct Plan<'a> {
    text: &'a str,
    tokens: &'a [Token],
    bare: Vec<BareHandler>,
    /// By (offset, order of the edits at that offset).
    edits: BTreeMap<(usize, usize), Edit>,
}

struct Edit {
    /// Bytes of the user's text that it replaces.
    removed: usize,
    text: String,
    /// The user's offset that positions inside it map to.
    stands_for: usize,
}

impl Plan<'_> {
    /// Handles a byte order mark or `#!` line, which Rhai does not know.
    fn first_line(&mut self) {
        let start = byte_order_mark(self.text);
        if start > 0 {
            self.replace(0..start, "", 0);
        }
        if self.text[start..].starts_with(SHEBANG) {
            self.replace(start..start + SHEBANG.len(), "//", start);
        }
    }

    fn token(&mut self, at: usize, dialect: Dialect) {
        match self.tokens[at].kind {
            TokenKind::Map => self.map(at, dialect),
            TokenKind::Identifier => {
                self.reserved_event(at);
                self.reserved_field(at);
                self.bare_field(at);
            }
            TokenKind::Float => {
                self.fractional_duration(at);
                self.joined_unit(at);
            }
            TokenKind::Integer => {
                self.rate(at);
                self.joined_unit(at);
            }
            TokenKind::Symbol if matches!(self.symbol(at), "&&" | "||") => {
                self.bare_bars(at);
                if dialect == Dialect::Interpreted && self.is_between_operands(at) {
                    self.guarded_action(at);
                }
            }
            TokenKind::Symbol if self.symbol(at) == "->" => {
                let span = self.tokens[at].span.clone();
                self.replace(span.clone(), ".", span.start);
            }
            TokenKind::Template | TokenKind::TemplateStart | TokenKind::TemplateMiddle | TokenKind::TemplateEnd => {
                self.escapes(at)
            }
            _ => {}
        }
    }

    /// Replaces `
    /// `, `\t` and `\\` in backticks, which Rhai leaves as they are, by their meaning in quotes.
    fn escapes(&mut self, at: usize) {
        let Token { kind, span } = &self.tokens[at];
        let opens = matches!(kind, TokenKind::Template | TokenKind::TemplateStart);
        let bytes = self.text.as_bytes();
        let mut i = span.start + 1;
        while i + 1 < span.end {
            let meant = match &bytes[i..i + 2] {
                // Rhai drops a line break right after the opening backtick: write one for it and
                // one for us.
                b"\\n" if opens && i == span.start + 1 => "\n\n",
                b"\\n" => "\n",
                b"\\t" => "\t",
                b"\\\\" => "\\",
                _ => {
                    i += 1;
                    continue;
                }
            };
            self.replace(i..i + 2, meant, i);
            i += 2;
        }
    }

    /// Rewrites `@x[a, b]` and what follows it.
    fn map(&mut self, at: usize, dialect: Dialect) {
        let span = self.tokens[at].span.clone();
        self.replace(span.clone(), &variable(&self.text[span.clone()]), span.start);
        let last = match self.key_end(at) {
            Some((close, several)) => {
                if several {
                    self.insert(self.tokens[at + 1].span.end, "[", self.tokens[at + 1].span.start);
                    self.insert(self.tokens[close].span.start, "]", self.tokens[close].span.start);
                }
                close
            }
            None => at,
        };
        if dialect == Dialect::Interpreted {
            self.value(at, last);
        }
    }

    /// Returns the bracket that closes a map's key, and whether the key has several parts.
    fn key_end(&self, map: usize) -> Option<(usize, bool)> {
        if self.symbol(map + 1) != "[" {
            return None;
        }
        let mut depth = 0usize;
        let mut several = false;
        for at in map + 1..self.tokens.len() {
            match (self.tokens[at].kind, self.symbol(at)) {
                (TokenKind::TemplateStart, _) | (_, "[" | "(" | "{" | "#{" | "?[") => depth += 1,
                (TokenKind::TemplateEnd, _) | (_, "]" | ")" | "}") => depth -= 1,
                (_, ",") if depth == 1 => several = true,
                _ => {}
            }
            if depth == 0 {
                return Some((at, several));
            }
        }
        None
    }

    /// Adds `.value` to a map or element whose value is meant.
    fn value(&mut self, first: usize, last: usize) {
        let (start, end) = (self.tokens[first].span.start, self.tokens[last].span.end);
        match self.symbol(last + 1) {
            "." | "?." | "[" | "?[" => {}
            "+=" => self.accumulate(last, ".added", start),
            "-=" => self.accumulate(last, ".subtracted", start),
            _ if first > 0 && self.word(first - 1) == "in" => {}
            "," | ")" if self.is_for_a_handle(first) => {}
            // Its text may be more than its value, such as the parts of `stats`.
            _ if self.is_alone_in_template(first, last) => {}
            _ => self.insert(end, ".value", start),
        }
    }

    /// Whether these tokens are all of a `${…}`.
    fn is_alone_in_template(&self, first: usize, last: usize) -> bool {
        let kind = |at: usize| self.tokens.get(at).map(|it| it.kind);
        matches!(first.checked_sub(1).and_then(kind), Some(TokenKind::TemplateStart | TokenKind::TemplateMiddle))
            && matches!(kind(last + 1), Some(TokenKind::TemplateMiddle | TokenKind::TemplateEnd))
    }

    /// Rewrites `x += n` as an assignment to a property that adds.
    fn accumulate(&mut self, last: usize, property: &str, start: usize) {
        self.insert(self.tokens[last].span.end, property, start);
        let operator = self.tokens[last + 1].span.clone();
        self.replace(operator.clone(), "=", operator.start);
    }

    /// Whether the expression at token `first` is an argument of a function that takes maps, not
    /// their values.
    fn is_for_a_handle(&self, first: usize) -> bool {
        let mut depth = 0usize;
        for at in (0..first).rev() {
            match (self.tokens[at].kind, self.symbol(at)) {
                (TokenKind::TemplateEnd, _) | (_, "]" | ")" | "}") => depth += 1,
                (TokenKind::TemplateStart, _) => match depth.checked_sub(1) {
                    Some(less) => depth = less,
                    None => return false,
                },
                (_, open @ ("[" | "(" | "{" | "#{" | "?[")) => match depth.checked_sub(1) {
                    Some(less) => depth = less,
                    None => return open == "(" && self.takes_handles(at) && self.begins_argument(first),
                },
                _ => {}
            }
        }
        false
    }

    fn begins_argument(&self, first: usize) -> bool {
        matches!(self.symbol(first - 1), "(" | ",")
    }

    /// Whether the parenthesis at `open` belongs to a call of such a function.
    fn takes_handles(&self, open: usize) -> bool {
        open.checked_sub(1).is_some_and(|before| takes_maps(self.word(before)))
    }

    /// Whether an operand ends before the token: `||` begins a closure elsewhere.
    fn is_between_operands(&self, at: usize) -> bool {
        let Some(before) = at.checked_sub(1) else { return false };
        match self.tokens[before].kind {
            TokenKind::Symbol => matches!(self.symbol(before), ")" | "]" | "}"),
            _ => self.word(before) != "return",
        }
    }

    /// Gives `condition && action` a value, which Rhai wants on both sides.
    fn guarded_action(&mut self, operator: usize) {
        let first = operator + 1;
        let Some(last) = self.action_end(first) else { return };
        let (start, end) = (self.tokens[first].span.start, self.tokens[last].span.end);
        self.insert(start, "{ ", start);
        self.insert(end, "; true }", start);
    }

    /// Returns the last token of the call that begins at `first`, if it is made for what it does.
    fn action_end(&self, first: usize) -> Option<usize> {
        if matches!(self.word(first), "print" | "exit") && self.symbol(first + 1) == "(" {
            return self.closing(first + 1);
        }
        let is_map = self.tokens.get(first)?.kind == TokenKind::Map;
        let mut at = match self.key_end(first) {
            Some((close, _)) if is_map => close,
            _ => first,
        };
        loop {
            let method = self.word(at + 2);
            if self.symbol(at + 1) != "." || self.symbol(at + 3) != "(" {
                return None;
            }
            let close = self.closing(at + 3)?;
            let acts = if is_map { acts_on_map(method) } else { SWITCHING.contains(&method) };
            if acts && self.symbol(close + 1) != "." {
                return Some(close);
            }
            at = close;
        }
    }

    /// Returns the token that closes the bracket at `open`.
    fn closing(&self, open: usize) -> Option<usize> {
        closing(self.text, self.tokens, open)
    }

    /// Names the event of a handler `|| …` that reads its fields by their names alone.
    fn bare_bars(&mut self, at: usize) {
        if self.bare.iter().any(|it| it.bars == at && !it.fields.is_empty()) {
            let span = self.tokens[at].span.clone();
            self.replace(span.clone(), &format!("|{BARE_EVENT}|"), span.start);
        }
    }

    /// Rewrites a field's name that stands alone.
    fn bare_field(&mut self, at: usize) {
        if !self.bare.iter().any(|it| it.fields.contains(&at)) {
            return;
        }
        let span = self.tokens[at].span.clone();
        let word = &self.text[span.clone()];
        let field = match RESERVED.contains(&word) {
            true => format!("{BARE_EVENT}[\"{word}\"]"),
            false => format!("{BARE_EVENT}.{word}"),
        };
        self.replace(span.clone(), &field, span.start);
    }

    /// Rewrites the event `module(…)`, whose name is a word of Rhai's.
    fn reserved_event(&mut self, at: usize) {
        let span = self.tokens[at].span.clone();
        let is_method = at > 0 && matches!(self.symbol(at - 1), "." | "?.");
        if &self.text[span.clone()] == HostEvent::Module.name() && self.symbol(at + 1) == "(" && !is_method {
            self.replace(span.clone(), MODULE_FUNCTION, span.start);
        }
    }

    /// Rewrites `.new` as `["new"]` unless it is a method call, and `return: x` as `"return": x`.
    fn reserved_field(&mut self, at: usize) {
        let span = self.tokens[at].span.clone();
        let word = &self.text[span.clone()];
        if at == 0 || !RESERVED.contains(&word) || self.symbol(at + 1) == "(" {
            return;
        }
        if self.symbol(at + 1) == ":" && matches!(self.symbol(at - 1), "#{" | "{" | ",") {
            self.replace(span.clone(), &format!("\"{word}\""), span.start);
            return;
        }
        let bracket = match self.symbol(at - 1) {
            "." => "[",
            "?." => "?[",
            _ => return,
        };
        let dot = self.tokens[at - 1].span.clone();
        self.replace(dot.clone(), bracket, dot.start);
        let quoted = format!("\"{word}\"]");
        self.replace(span.clone(), &quoted, span.start);
    }

    /// Rewrites `1.5.ms` as whole nanoseconds.
    fn fractional_duration(&mut self, at: usize) {
        if self.symbol(at + 1) != "." {
            return;
        }
        let number = self.tokens[at].span.clone();
        let unit = self.word(at + 2);
        if let Some(nanos) = units::fraction(&self.text[number.clone()], unit) {
            let end = self.tokens[at + 2].span.end;
            self.replace(number.start..end, &format!("{nanos}.ns"), number.start);
        }
    }

    /// Rewrites `99.hz` and `2.minutes` in nanoseconds: compiled handlers only know the short
    /// units.
    fn rate(&mut self, at: usize) {
        let number = self.tokens[at].span.clone();
        let unit = self.word(at + 2);
        if self.symbol(at + 1) != "." || !matches!(unit, "hz" | "minutes" | "hours") {
            return;
        }
        let written = self.text[number.clone()].replace('_', "").parse().ok();
        if let Some(nanos) = written.and_then(|n| units::whole(n, unit)) {
            let end = self.tokens[at + 2].span.end;
            self.replace(number.start..end, &format!("{nanos}.ns"), number.start);
        }
    }

    /// Reads `100ms`, a mistake already reported, as `100.ms`.
    fn joined_unit(&mut self, at: usize) {
        if units::is_unit(self.word(at + 1)) {
            let end = self.tokens[at].span.end;
            self.insert(end, ".", end);
        }
    }

    fn symbol(&self, at: usize) -> &str {
        match self.tokens.get(at) {
            Some(token) if token.kind == TokenKind::Symbol => &self.text[token.span.clone()],
            _ => "",
        }
    }

    fn word(&self, at: usize) -> &str {
        token::word(self.text, self.tokens, at)
    }

    fn insert(&mut self, at: usize, text: &str, stands_for: usize) {
        let order = self.edits.range((at, 0)..(at + 1, 0)).count();
        self.edits.insert((at, order), Edit { removed: 0, text: text.to_owned(), stands_for });
    }

    /// Removes the tokens of `span` one by one, so that line breaks between them stay.
    fn remove(&mut self, span: std::ops::Range<usize>) {
        let tokens = self.tokens;
        for token in tokens.iter().filter(|it| span.contains(&it.span.start)) {
            self.replace(token.span.clone(), "", span.start);
        }
    }

    fn replace(&mut self, span: std::ops::Range<usize>, text: &str, stands_for: usize) {
        // Replacements follow all insertions at their place.
        let edit = Edit { removed: span.len(), text: text.to_owned(), stands_for };
        self.edits.insert((span.start, usize::MAX), edit);
    }
}

/// Writes the new text and records how it maps to the old one.
#[derive(Default)]
struct TextWriter {
    text: String,
    anchors: Vec<(usize, usize)>,
}

impl TextWriter {
    fn copy(&mut self, from: &str, span: std::ops::Range<usize>) {
        if span.start < span.end {
            self.anchors.push((self.text.len(), span.start));
            self.text.push_str(&from[span]);
        }
    }

    /// Inserts text whose characters all map to one place.
    fn insert(&mut self, text: &str, stands_for: usize) {
        let start = self.text.len();
        self.anchors.extend((0..text.len()).map(|i| (start + i, stands_for)));
        self.text.push_str(text);
    }

    fn finish(self, map_variables: Vec<String>) -> Lexed {
        let mut lexed = Lexed { text: self.text, map_variables, ..Lexed::default() };
        lexed.positions.anchors = self.anchors;
        lexed.positions.lines.push(0);
        for (at, c) in lexed.text.char_indices() {
            if c == '\n' {
                lexed.positions.lines.push(at + 1);
            }
            if c.len_utf8() > 1 {
                lexed.positions.wide.push((at, c.len_utf8() - 1));
            }
        }
        lexed
    }
}
