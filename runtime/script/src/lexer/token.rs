//! Tokenizes a script by Rhai's rules, dropping comments and white space.
//!
//! A template becomes several tokens: its text up to `${`, the code inside, the text after `}`, and
//! so on. So `@x` inside `${…}` is an ordinary token.

use std::ops::Range;

/// A token and its place in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) span: Range<usize>,
}

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    Identifier,
    /// `@name`, or a bare `@`.
    Map,
    Integer,
    Float,
    /// A string, raw string or character, with its quotes.
    Text,
    /// A string without its end.
    OpenText,
    /// Template text from the backtick to the closing backtick.
    Template,
    /// From the backtick to `${`.
    TemplateStart,
    /// From `}` to the next `${`.
    TemplateMiddle,
    /// From `}` to the closing backtick.
    TemplateEnd,
    /// A template, or part of one, without its closing backtick.
    OpenTemplate,
    /// `/*` without its end.
    OpenComment,
    Symbol,
}

/// Symbols of more than one character, longest first.
const SYMBOLS: &[&str] = &[
    "**=", "<<=", ">>=", "..=", "...", "===", "!==", "??=", "++", "--", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=",
    "==", "!=", "<=", ">=", "<<", ">>", "&&", "||", "**", "..", "::", "=>", "->", "??", "?.", "?[", "#{",
];

/// Starts a first line meant for the shell that runs the script.
pub(super) const SHEBANG: &str = "#!";

/// Returns the length of the byte order mark that some editors write at the start of a file.
pub(super) fn byte_order_mark(text: &str) -> usize {
    if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 }
}

/// Returns the token that closes the bracket at `open`.
pub(super) fn closing(text: &str, tokens: &[Token], open: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match (token.kind, &text[token.span.clone()]) {
            (TokenKind::TemplateStart, _) | (TokenKind::Symbol, "[" | "(" | "{" | "#{" | "?[") => depth += 1,
            (TokenKind::TemplateEnd, _) | (TokenKind::Symbol, "]" | ")" | "}") => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// Returns the identifier at `at`; an empty text if there is none.
pub(super) fn word<'a>(text: &'a str, tokens: &[Token], at: usize) -> &'a str {
    match tokens.get(at) {
        Some(token) if token.kind == TokenKind::Identifier => &text[token.span.clone()],
        _ => "",
    }
}

/// Returns all tokens of `text`.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let mut scanner = Scanner { text, at: byte_order_mark(text), tokens: Vec::new(), braces: Vec::new() };
    if scanner.rest().starts_with(SHEBANG) {
        scanner.skip_line();
    }
    while scanner.at < text.len() {
        scanner.token();
    }
    scanner.tokens
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    tokens: Vec<Token>,
    /// For each open brace, whether it belongs to a template's `${`.
    braces: Vec<bool>,
}

impl Scanner<'_> {
    fn token(&mut self) {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return };
        match first {
            c if c.is_whitespace() => self.at += c.len_utf8(),
            '/' if rest.starts_with("//") => self.skip_line(),
            '/' if rest.starts_with("/*") => self.block_comment(),
            '"' => self.string(1, '"'),
            '\'' => self.string(1, '\''),
            '#' if raw_hashes(rest).is_some() => self.raw_string(),
            '`' => self.template(TokenKind::Template, TokenKind::TemplateStart, 1),
            '@' => {
                let name = identifier_len(&rest[1..]);
                self.push(TokenKind::Map, 1 + name);
            }
            c if c.is_ascii_digit() => self.number(),
            c if starts_identifier(c) => self.push(TokenKind::Identifier, identifier_len(rest)),
            '}' if self.braces.last() == Some(&true) => {
                self.braces.pop();
                self.template(TokenKind::TemplateEnd, TokenKind::TemplateMiddle, 1);
            }
            _ => self.symbol(first),
        }
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn push(&mut self, kind: TokenKind, len: usize) {
        self.tokens.push(Token { kind, span: self.at..self.at + len });
        self.at += len;
    }

    fn skip_line(&mut self) {
        self.at += self.rest().find('\n').unwrap_or(self.rest().len());
    }

    /// Skips a block comment; they nest.
    fn block_comment(&mut self) {
        let bytes = self.rest().as_bytes();
        let mut depth = 0usize;
        let mut i = 0;
        while i < bytes.len() {
            match &bytes[i..] {
                [b'/', b'*', ..] => (depth, i) = (depth + 1, i + 2),
                [b'*', b'/', ..] => (depth, i) = (depth - 1, i + 2),
                _ => i += 1,
            }
            if depth == 0 {
                self.at += i;
                return;
            }
        }
        self.push(TokenKind::OpenComment, bytes.len());
    }

    /// Reads a string or character: a backslash escapes the next character (or line break), a
    /// doubled quote stands for one. If unclosed, it ends with its line.
    fn string(&mut self, skip: usize, quote: char) {
        let rest = self.rest();
        let mut chars = rest[skip..].char_indices().peekable();
        while let Some((i, c)) = chars.next() {
            match c {
                '\\' => {
                    let return_first = chars.next().is_some_and(|(_, c)| c == '\r');
                    chars.next_if(|(_, c)| return_first && *c == '\n');
                }
                '\n' => return self.push(TokenKind::OpenText, skip + i),
                c if c == quote && chars.next_if(|(_, c)| *c == quote).is_none() => {
                    return self.push(TokenKind::Text, skip + i + c.len_utf8());
                }
                _ => {}
            }
        }
        self.push(TokenKind::OpenText, rest.len());
    }

    fn raw_string(&mut self) {
        let rest = self.rest();
        let hashes = raw_hashes(rest).unwrap_or(1);
        let end = format!("\"{}", "#".repeat(hashes));
        match rest[hashes + 1..].find(&end) {
            Some(i) => self.push(TokenKind::Text, hashes + 1 + i + end.len()),
            None => self.push(TokenKind::OpenText, rest.len()),
        }
    }

    /// Reads template text up to the closing backtick or the next `${`.
    fn template(&mut self, closed: TokenKind, interpolated: TokenKind, skip: usize) {
        let bytes = self.rest().as_bytes();
        let mut i = skip;
        while i < bytes.len() {
            match &bytes[i..] {
                [b'`', b'`', ..] => i += 2,
                [b'`', ..] => return self.push(closed, i + 1),
                [b'$', b'{', ..] => {
                    self.braces.push(true);
                    return self.push(interpolated, i + 2);
                }
                _ => i += 1,
            }
        }
        self.push(TokenKind::OpenTemplate, bytes.len());
    }

    fn number(&mut self) {
        let rest = self.rest();
        let (kind, len) = number_len(rest);
        self.push(kind, len);
    }

    fn symbol(&mut self, first: char) {
        let symbol = SYMBOLS.iter().find(|it| self.rest().starts_with(**it));
        let len = symbol.map_or(first.len_utf8(), |it| it.len());
        match first {
            '{' => self.braces.push(false),
            '#' if symbol.is_some() => self.braces.push(false),
            '}' => {
                self.braces.pop();
            }
            _ => {}
        }
        self.push(TokenKind::Symbol, len);
    }
}

/// Returns the number of hashes of `##"`, or `None` if no raw string starts here.
fn raw_hashes(rest: &str) -> Option<usize> {
    let hashes = rest.bytes().take_while(|b| *b == b'#').count();
    (hashes > 0 && rest[hashes..].starts_with('"')).then_some(hashes)
}

fn starts_identifier(c: char) -> bool {
    c == '_' || c.is_ascii_alphabetic()
}

fn identifier_len(rest: &str) -> usize {
    rest.bytes().take_while(|b| *b == b'_' || b.is_ascii_alphanumeric()).count()
}

/// Returns the length of a number by Rhai's rules: `1..2` and `1.ms` end before the dot, `1.5` and
/// `1.` do not.
fn number_len(rest: &str) -> (TokenKind, usize) {
    let bytes = rest.as_bytes();
    if let [b'0', b'x' | b'X' | b'o' | b'O' | b'b' | b'B', ..] = bytes {
        let digits = bytes[2..].iter().take_while(|b| b.is_ascii_hexdigit() || **b == b'_').count();
        return (TokenKind::Integer, 2 + digits);
    }
    let digits = |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_digit() || **b == b'_').count();
    let mut len = digits(0);
    let mut kind = TokenKind::Integer;
    if bytes.get(len) == Some(&b'.') && bytes.get(len + 1).is_some_and(u8::is_ascii_digit) {
        kind = TokenKind::Float;
        len += 1 + digits(len + 1);
    }
    if let Some(b'e' | b'E') = bytes.get(len) {
        let sign = usize::from(matches!(bytes.get(len + 1), Some(b'+' | b'-')));
        if bytes.get(len + 1 + sign).is_some_and(u8::is_ascii_digit) {
            kind = TokenKind::Float;
            len += 1 + sign + digits(len + 1 + sign);
        }
    }
    (kind, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str) -> Vec<(TokenKind, &str)> {
        tokens(text).into_iter().map(|it| (it.kind, &text[it.span])).collect()
    }

    #[test]
    fn numbers_end_before_ranges_and_units() {
        use TokenKind::*;
        assert_eq!(cut("0..4"), [(Integer, "0"), (Symbol, ".."), (Integer, "4")]);
        assert_eq!(cut("100.ms"), [(Integer, "100"), (Symbol, "."), (Identifier, "ms")]);
        assert_eq!(cut("1.5.ms"), [(Float, "1.5"), (Symbol, "."), (Identifier, "ms")]);
        assert_eq!(cut("0xff_ff 1e3"), [(Integer, "0xff_ff"), (Float, "1e3")]);
    }

    #[test]
    fn templates_are_descended_into() {
        use TokenKind::*;
        assert_eq!(
            cut("`a ${ #{x: `${@y}`} } b` c"),
            [
                (TemplateStart, "`a ${"),
                (Symbol, "#{"),
                (Identifier, "x"),
                (Symbol, ":"),
                (TemplateStart, "`${"),
                (Map, "@y"),
                (TemplateEnd, "}`"),
                (Symbol, "}"),
                (TemplateEnd, "} b`"),
                (Identifier, "c"),
            ]
        );
        assert_eq!(cut("`a``b` x"), [(Template, "`a``b`"), (Identifier, "x")]);
    }

    #[test]
    fn strings_and_comments_hide_what_is_in_them() {
        use TokenKind::*;
        assert_eq!(cut(r##"#"@x"y"# "\"@z" /* @a /* */ @b */ @c // @d"##).len(), 3);
        assert_eq!(cut("'\\''"), [(Text, "'\\''")]);
        assert_eq!(cut("\"open\n@x"), [(OpenText, "\"open"), (Map, "@x")]);
        assert_eq!(cut("/* open"), [(OpenComment, "/* open")]);
    }
}
