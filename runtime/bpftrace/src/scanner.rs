//! Splits a text into tokens on demand: what a `/` or `:` means depends on what the parser expects.
//!
//! Comments are kept with their places. Directives of C's preprocessor are followed as bpftrace does where Linux has
//! type information: `BPFTRACE_HAVE_BTF` is defined, and headers are not needed.

use crate::tree::Span;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Name,
    Int(i64),
    /// A quoted text, its escapes replaced.
    Text(String),
    /// `$x`.
    Variable,
    /// `$1`.
    Positional(u32),
    /// `$#`.
    PositionalCount,
    /// `@x` or `@`.
    Map,
    Symbol,
    /// What can't begin a token, and a quoted text without its end.
    Wrong,
    End,
}

#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) kind: TokenKind,
    pub(crate) span: Span,
}

/// `// …` or `/* … */`.
#[derive(Clone, Debug)]
pub(crate) struct Comment {
    pub(crate) span: Span,
}

/// `#define NAME VALUE`, with the place of its value.
#[derive(Clone, Debug)]
pub(crate) struct Define {
    pub(crate) name: String,
    pub(crate) value: Span,
}

/// A place to come back to.
pub(crate) struct Mark {
    at: usize,
    last_end: usize,
    comments: usize,
    defines: usize,
}

pub(crate) struct Scanner<'a> {
    pub(crate) text: &'a str,
    at: usize,
    /// Where the last token ended.
    last_end: usize,
    pub(crate) comments: Vec<Comment>,
    pub(crate) defines: Vec<Define>,
    /// What makes all that follows unknown: where it is, and why.
    pub(crate) fault: Option<(usize, &'static str)>,
}

/// Defined by bpftrace where Linux has type information.
const HAVE_BTF: &str = "BPFTRACE_HAVE_BTF";

/// Operators of more than one byte, longest first.
const LONG_SYMBOLS: &[&str] = &[
    "<<=", ">>=", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "++", "--", "+=", "-=", "*=", "/=", "%=", "&=", "|=",
    "^=", "->", "..",
];

impl<'a> Scanner<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Scanner { text, at: 0, last_end: 0, comments: Vec::new(), defines: Vec::new(), fault: None }
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark { at: self.at, last_end: self.last_end, comments: self.comments.len(), defines: self.defines.len() }
    }

    pub(crate) fn reset(&mut self, mark: &Mark) {
        (self.at, self.last_end) = (mark.at, mark.last_end);
        self.comments.truncate(mark.comments);
        self.defines.truncate(mark.defines);
    }

    /// Goes to a place within the text, as to the value of a `#define`.
    pub(crate) fn jump(&mut self, at: usize) {
        self.at = at;
    }

    /// Returns where the last token ended that was taken.
    pub(crate) fn last_end(&self) -> usize {
        self.last_end
    }

    pub(crate) fn slice(&self, span: &Span) -> &'a str {
        &self.text[span.clone()]
    }

    /// Returns the next token without taking it.
    pub(crate) fn peek(&mut self) -> Token {
        self.skip_blank();
        self.token()
    }

    /// Takes the next token.
    pub(crate) fn next(&mut self) -> Token {
        let token = self.peek();
        self.at = token.span.end;
        self.last_end = self.at;
        token
    }

    /// Takes an attach point, up to a blank, a comma, a brace, or the condition that follows it directly.
    pub(crate) fn point(&mut self) -> Span {
        self.skip_blank();
        let start = self.at;
        let mut in_quotes = false;
        for (offset, it) in self.text[start..].char_indices() {
            match it {
                '"' => in_quotes = !in_quotes,
                _ if in_quotes => {}
                ',' | '{' | ';' => break,
                _ if it.is_whitespace() => break,
                // Neither a function nor a number has a slash; a file's name has.
                '/' if self.text[start..self.at].matches(':').count() >= 2 => break,
                _ => {}
            }
            self.at = start + offset + it.len_utf8();
        }
        start..self.at
    }

    /// Whether the condition of a probe ends at this slash: a brace follows.
    pub(crate) fn ends_condition(&self, slash: &Span) -> bool {
        let mut rest = Scanner { at: slash.end, ..Scanner::new(self.text) };
        let next = rest.next();
        rest.slice(&next.span) == "{"
    }

    /// Takes everything up to the end of the bracket that was just taken; false if it has none.
    pub(crate) fn skip_bracket(&mut self) -> bool {
        let mut depth = 1usize;
        loop {
            let token = self.next();
            match (token.kind, &self.text[token.span]) {
                (TokenKind::Symbol, "{" | "(") => depth += 1,
                (TokenKind::Symbol, "}" | ")") => depth -= 1,
                (TokenKind::End, _) => return false,
                _ => {}
            }
            if depth == 0 {
                return true;
            }
        }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn is_at_line_start(&self) -> bool {
        let line = self.text[..self.at].rfind('\n').map_or(0, |it| it + 1);
        self.text[line..self.at].trim().is_empty()
    }

    /// Skips blanks, comments and directives.
    fn skip_blank(&mut self) {
        loop {
            let rest = self.rest();
            self.at += rest.len() - rest.trim_start().len();
            let rest = self.rest();
            if rest.starts_with("//") {
                self.comment(rest.find('\n').unwrap_or(rest.len()));
            } else if rest.starts_with("/*") {
                let end = rest.find("*/");
                if end.is_none() {
                    self.fault.get_or_insert((self.at, "this comment is not closed: `*/` is missing"));
                }
                self.comment(end.map_or(rest.len(), |it| it + 2));
            } else if rest.starts_with('#') && self.is_at_line_start() {
                self.directive();
            } else {
                return;
            }
        }
    }

    fn comment(&mut self, length: usize) {
        self.comments.push(Comment { span: self.at..self.at + length });
        self.at += length;
    }

    /// Takes a line, with those that a backslash continues.
    fn line(&mut self) -> Span {
        let start = self.at;
        loop {
            let end = self.rest().find('\n').map_or(self.text.len(), |it| self.at + it);
            let is_continued = self.text[start..end].trim_end_matches('\r').ends_with('\\') && end < self.text.len();
            self.at = if is_continued { end + 1 } else { end };
            if !is_continued {
                return start..end;
            }
        }
    }

    fn directive(&mut self) {
        let span = self.line();
        let line = self.slice(&span);
        let (word, operand) = directive_parts(line);
        match word {
            "define" => {
                let name = operand.split_whitespace().next().unwrap_or_default();
                if !name.contains('(') {
                    let value = span.end - operand.len() + name.len();
                    self.defines.push(Define { name: name.to_owned(), value: value..span.end });
                }
            }
            "undef" => self.defines.retain(|it| it.name != operand.trim()),
            "if" | "ifdef" | "ifndef" if !self.holds(word, operand, &span) => self.skip_branch(false),
            // The branch before it was taken.
            "else" | "elif" => self.skip_branch(true),
            _ => {}
        }
    }

    /// Whether the condition of `#if`, `#elif`, `#ifdef` or `#ifndef` holds. One that is not known is noted.
    fn holds(&mut self, word: &str, condition: &str, directive: &Span) -> bool {
        let condition = condition.split("//").next().unwrap_or_default().split("/*").next().unwrap_or_default().trim();
        let is_defined = |name: &str| name == HAVE_BTF || self.defines.iter().any(|it| it.name == name);
        match (word, integer(condition)) {
            ("ifdef", _) => is_defined(condition),
            ("ifndef", _) => !is_defined(condition),
            (_, Some(number)) => number != 0,
            _ => {
                let why = "whether this holds is not known: remove the directive, and what does not apply";
                self.fault.get_or_insert((directive.start, why));
                true
            }
        }
    }

    /// Skips to the branch that is taken instead of the one that begins here, or to `#endif`; with `to_end`, no other
    /// branch is taken.
    fn skip_branch(&mut self, to_end: bool) {
        let mut depth = 0usize;
        while self.at < self.text.len() {
            self.at += usize::from(self.rest().starts_with('\n'));
            let span = self.line();
            let line = self.slice(&span).trim_start();
            let (word, operand) = if line.starts_with('#') { directive_parts(line) } else { ("", "") };
            match word {
                "if" | "ifdef" | "ifndef" => depth += 1,
                "endif" if depth == 0 => return,
                "endif" => depth -= 1,
                "else" if depth == 0 && !to_end => return,
                "elif" if depth == 0 && !to_end && self.holds(word, operand, &span) => return,
                _ => {}
            }
        }
    }

    fn token(&self) -> Token {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else {
            return Token { kind: TokenKind::End, span: self.at..self.at };
        };
        let (kind, length) = match first {
            '"' => quoted(rest),
            '@' => (TokenKind::Map, 1 + word(&rest[1..])),
            '$' => dollar(rest),
            '0'..='9' => {
                let length = word(rest);
                (integer(&rest[..length]).map_or(TokenKind::Wrong, TokenKind::Int), length)
            }
            _ if is_of_word(first) => (TokenKind::Name, word(rest)),
            _ => symbol(rest, first),
        };
        Token { kind, span: self.at..self.at + length }
    }
}

/// Splits a directive into its word and what follows that.
fn directive_parts(line: &str) -> (&str, &str) {
    let text = line.trim_start_matches('#').trim_start();
    let (word, operand) = text.split_at(word(text));
    (word, operand.trim_start())
}

fn is_of_word(it: char) -> bool {
    it.is_ascii_alphanumeric() || it == '_'
}

/// Returns the length of the word at the start.
fn word(text: &str) -> usize {
    text.find(|it| !is_of_word(it)).unwrap_or(text.len())
}

fn dollar(rest: &str) -> (TokenKind, usize) {
    if rest[1..].starts_with('#') {
        return (TokenKind::PositionalCount, 2);
    }
    let length = word(&rest[1..]);
    let name = &rest[1..1 + length];
    let kind = match name.parse() {
        Ok(number) => TokenKind::Positional(number),
        Err(_) if name.is_empty() || name.starts_with(|it: char| it.is_ascii_digit()) => TokenKind::Wrong,
        Err(_) => TokenKind::Variable,
    };
    (kind, 1 + length)
}

fn symbol(rest: &str, first: char) -> (TokenKind, usize) {
    match LONG_SYMBOLS.iter().find(|it| rest.starts_with(**it)) {
        Some(it) => (TokenKind::Symbol, it.len()),
        None if first.is_ascii_punctuation() => (TokenKind::Symbol, 1),
        None => (TokenKind::Wrong, first.len_utf8()),
    }
}

/// Reads a text in quotes, with C's escapes.
fn quoted(rest: &str) -> (TokenKind, usize) {
    let mut text = String::new();
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, it)) = chars.next() {
        match it {
            '"' => return (TokenKind::Text(text), at + 1),
            '\\' => match chars.next() {
                Some((_, 'n')) => text.push('\n'),
                Some((_, 't')) => text.push('\t'),
                Some((_, 'r')) => text.push('\r'),
                Some((at, 'x' | '0'..='7')) => {
                    let (character, more) = code_point(&rest[at..]);
                    text.push(character);
                    chars.by_ref().take(more).for_each(drop);
                }
                Some((_, it)) => text.push(it),
                None => break,
            },
            it => text.push(it),
        }
    }
    (TokenKind::Wrong, rest.len())
}

/// Reads the digits of `\x1b` or `\033`; also returns how many characters follow the first.
fn code_point(written: &str) -> (char, usize) {
    let (digits, radix, before) = match written.strip_prefix('x') {
        Some(it) => (it, 16, 0),
        None => (written, 8, 1),
    };
    let most = if radix == 16 { 2 } else { 3 };
    let length = digits.bytes().take(most).take_while(|it| char::from(*it).is_digit(radix)).count();
    let code = u32::from_str_radix(&digits[..length], radix).unwrap_or_default();
    (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), length - before.min(length))
}

/// Units of time behind a number, in nanoseconds.
const UNITS: &[(&str, u64)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Reads an integer: `10`, `0x1f`, `017`, `1_000`, `1e6`, `5ul`, `100ms`.
pub(crate) fn integer(written: &str) -> Option<i64> {
    let plain = written.replace('_', "").to_ascii_lowercase();
    let value = if let Some(digits) = plain.strip_prefix("0x") {
        u64::from_str_radix(digits.trim_end_matches(['u', 'l']), 16).ok()?
    } else {
        let digits = plain.find(|it: char| !it.is_ascii_digit()).unwrap_or(plain.len());
        let (digits, suffix) = plain.split_at(digits);
        let is_octal = digits.len() > 1 && digits.starts_with('0');
        let value = u64::from_str_radix(digits, if is_octal { 8 } else { 10 }).ok()?;
        match suffix {
            "" => value,
            _ if suffix.trim_end_matches(['u', 'l']).is_empty() => value,
            _ => match suffix.strip_prefix('e') {
                Some(exponent) => value.checked_mul(10u64.checked_pow(exponent.parse().ok()?)?)?,
                None => value.checked_mul(UNITS.iter().find(|it| it.0 == suffix)?.1)?,
            },
        }
    };
    Some(value as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_in_every_notation() {
        for (written, value) in [
            ("0", 0),
            ("0x1F", 31),
            ("010", 8),
            ("1_000", 1000),
            ("1e6", 1_000_000),
            ("5ul", 5),
            ("100ms", 100_000_000),
            ("0xffffffffffffffff", -1),
        ] {
            assert_eq!(integer(written), Some(value), "{written}");
        }
        for wrong in ["09", "1e99", "5x", "99999999999999999999"] {
            assert_eq!(integer(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn escapes() {
        let text = quoted(r#""a\n\t\"\\ \033[1m \x1b[0m \0 \q ü""#).0;
        assert_eq!(text, TokenKind::Text("a\n\t\"\\ \u{1b}[1m \u{1b}[0m \0 q ü".into()));
    }

    #[test]
    fn branches_of_the_preprocessor() {
        let text =
            "#ifndef BPFTRACE_HAVE_BTF\nheaders\n#else\nbtf\n#endif\n#ifdef OTHER\nno\n#endif\n#define N 5\nlast";
        let mut scanner = Scanner::new(text);
        let mut words = Vec::new();
        loop {
            let token = scanner.next();
            if token.kind == TokenKind::End {
                break;
            }
            words.push(&text[token.span]);
        }
        assert_eq!(words, ["btf", "last"]);
        assert_eq!(text[scanner.defines[0].value.clone()].trim(), "5");
    }
}
