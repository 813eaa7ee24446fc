//! PTX text → words, strings and punctuation (PTX ISA, §4 "Syntax").
//!
//! A word is a maximal run of letters, digits, `_`, `$`, `%` and `.`; `::` joins two words of a modifier. So
//! `%tid.x`, `ld.global.v4.f32`, `shared::cluster` and `0f3F800000` are one word each; comments and white space
//! are dropped.

use crate::ParseError;

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Word,
    /// With its quotes.
    Text,
    /// One ASCII character.
    Sign(u8),
    End,
}

/// A piece of the text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub kind: TokenKind,
    pub text: &'a str,
    /// Its offset in the text, in bytes.
    pub at: usize,
}

impl Token<'_> {
    pub(crate) fn is(&self, sign: u8) -> bool {
        self.kind == TokenKind::Sign(sign)
    }

    /// Whether it is a directive: a word that begins with a dot.
    pub(crate) fn is_directive(&self) -> bool {
        self.kind == TokenKind::Word && self.text.starts_with('.')
    }
}

/// Reads tokens, always one ahead.
#[derive(Clone)]
pub(crate) struct Lexer<'a> {
    text: &'a str,
    /// Behind `next`.
    at: usize,
    next: Token<'a>,
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(text: &'a str) -> Result<Self, ParseError> {
        // Images in memory end with NUL, and so do files written from them.
        let text = text.trim_end_matches('\0');
        let mut lexer = Lexer { text, at: 0, next: Token { kind: TokenKind::End, text: "", at: 0 } };
        lexer.advance()?;
        Ok(lexer)
    }

    pub(crate) fn peek(&self) -> Token<'a> {
        self.next
    }

    /// Takes the next token.
    pub(crate) fn advance(&mut self) -> Result<Token<'a>, ParseError> {
        let token = self.next;
        self.next = self.read()?;
        Ok(token)
    }

    /// Takes the next token if it is `sign`.
    pub(crate) fn take(&mut self, sign: u8) -> Result<bool, ParseError> {
        let taken = self.next.is(sign);
        if taken {
            self.advance()?;
        }
        Ok(taken)
    }

    pub(crate) fn expect(&mut self, sign: u8, what: &str) -> Result<(), ParseError> {
        if self.take(sign)? { Ok(()) } else { Err(self.unexpected(what)) }
    }

    pub(crate) fn word(&mut self, what: &str) -> Result<Token<'a>, ParseError> {
        if self.next.kind == TokenKind::Word { self.advance() } else { Err(self.unexpected(what)) }
    }

    /// The text from one offset to another.
    pub(crate) fn slice(&self, from: usize, to: usize) -> &'a str {
        &self.text[from..to]
    }

    /// Puts the end of the next word back, from its byte `keep` on.
    pub(crate) fn split(&mut self, keep: usize) -> Token<'a> {
        let first = Token { text: &self.next.text[..keep], ..self.next };
        self.next = Token { text: &self.next.text[keep..], at: self.next.at + keep, ..self.next };
        first
    }

    /// Says that the next token is not what should be there.
    pub(crate) fn unexpected(&self, expected: &str) -> ParseError {
        let found = match self.next.kind {
            TokenKind::End => "the end of the text".to_owned(),
            _ => format!("`{}`", self.next.text.chars().take(MOST_SHOWN).collect::<String>()),
        };
        self.error(self.next.at, format!("expected {expected}, found {found}"))
    }

    /// An error at an offset.
    pub(crate) fn error(&self, at: usize, what: impl Into<String>) -> ParseError {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        let line_start = before.iter().rposition(|b| *b == b'\n').map_or(0, |newline| newline + 1);
        let line = before.iter().filter(|b| **b == b'\n').count() + 1;
        ParseError { line, column: at - line_start + 1, what: what.into() }
    }

    fn read(&mut self) -> Result<Token<'a>, ParseError> {
        self.skip_blank()?;
        let at = self.at;
        let bytes = self.text.as_bytes();
        let kind = match bytes.get(at) {
            None => TokenKind::End,
            Some(b'"') => self.skip_string()?,
            Some(byte) if is_word(*byte) => self.skip_word(),
            Some(byte) if byte.is_ascii_graphic() => {
                self.at += 1;
                TokenKind::Sign(*byte)
            }
            Some(_) => return Err(self.error(at, "a character that PTX doesn't have")),
        };
        Ok(Token { kind, text: &self.text[at..self.at], at })
    }

    fn skip_blank(&mut self) -> Result<(), ParseError> {
        let bytes = self.text.as_bytes();
        loop {
            match (bytes.get(self.at), bytes.get(self.at + 1)) {
                (Some(b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c), _) => self.at += 1,
                (Some(b'/'), Some(b'/')) => self.at = find(bytes, self.at, b"\n").unwrap_or(bytes.len()),
                (Some(b'/'), Some(b'*')) => match find(bytes, self.at + 2, b"*/") {
                    Some(end) => self.at = end + 2,
                    None => return Err(self.error(self.at, "a comment without an end")),
                },
                _ => return Ok(()),
            }
        }
    }

    fn skip_string(&mut self) -> Result<TokenKind, ParseError> {
        let bytes = self.text.as_bytes();
        let mut at = self.at + 1;
        loop {
            match bytes.get(at) {
                Some(b'"') => break,
                Some(b'\\') => at += 2,
                Some(_) => at += 1,
                None => return Err(self.error(self.at, "a string without an end")),
            }
        }
        self.at = at + 1;
        Ok(TokenKind::Text)
    }

    fn skip_word(&mut self) -> TokenKind {
        let bytes = self.text.as_bytes();
        let start = self.at;
        loop {
            let rest = &bytes[self.at..];
            match rest {
                [byte, ..] if is_word(*byte) => self.at += 1,
                [b':', b':', next, ..] if next.is_ascii_alphanumeric() => self.at += 2,
                [b'+' | b'-', digit, ..] if digit.is_ascii_digit() && ends_in_exponent(&bytes[start..self.at]) => {
                    self.at += 1;
                }
                _ => return TokenKind::Word,
            }
        }
    }
}

/// How many characters of a token an error shows.
const MOST_SHOWN: usize = 40;

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

/// Whether a number so far is one whose exponent may have a sign: `1.5e` (PTX ISA, §4.5.2 "Floating-Point Constants").
fn ends_in_exponent(number: &[u8]) -> bool {
    let Some((b'e' | b'E', digits)) = number.split_last() else { return false };
    digits.first().is_some_and(u8::is_ascii_digit) && digits.iter().all(|b| b.is_ascii_digit() || *b == b'.')
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    bytes.get(from..)?.windows(what.len()).position(|window| window == what).map(|at| from + at)
}
