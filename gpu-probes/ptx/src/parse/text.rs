//! What the tree keeps as text: tokens, joined so that they are the same tokens when read again.

use crate::ParseError;
use crate::lex::{Lexer, Token, TokenKind};

/// Takes tokens up to one that `ends` at the outermost level of brackets.
pub(super) fn until<'a>(lexer: &mut Lexer<'a>, ends: impl Fn(&Token<'a>) -> bool) -> Result<String, ParseError> {
    let mut text = Joined::default();
    let mut depth = 0usize;
    loop {
        let token = lexer.peek();
        if token.kind == TokenKind::End || depth == 0 && ends(&token) {
            return Ok(text.text);
        }
        match token.kind {
            TokenKind::Sign(b'(' | b'[' | b'{') => depth += 1,
            TokenKind::Sign(b')' | b']' | b'}') if depth == 0 => {
                return Err(lexer.unexpected("no closing bracket here"));
            }
            TokenKind::Sign(b')' | b']' | b'}') => depth -= 1,
            TokenKind::Sign(b';') => return Err(lexer.unexpected("a closing bracket")),
            _ => {}
        }
        text.push(&lexer.advance()?);
    }
}

/// Text of tokens.
#[derive(Default)]
pub(super) struct Joined {
    pub(super) text: String,
    last: Option<TokenKind>,
}

impl Joined {
    pub(super) fn push(&mut self, token: &Token) {
        if self.last.is_some_and(|last| self.would_merge(last, token.kind)) {
            self.text.push(' ');
        }
        self.text.push_str(token.text);
        self.last = Some(token.kind);
    }

    /// Whether the tokens would be read as others without a space between them; also true after a comma.
    fn would_merge(&self, last: TokenKind, next: TokenKind) -> bool {
        let is_text = |kind| matches!(kind, TokenKind::Word | TokenKind::Text);
        match (last, next) {
            (TokenKind::Sign(b','), _) => true,
            // Comments, and the two colons of a modifier.
            (TokenKind::Sign(b'/'), _) | (TokenKind::Sign(b':'), TokenKind::Sign(b':')) => true,
            // The exponent of a number.
            (TokenKind::Word, TokenKind::Sign(b'+' | b'-')) => self.text.ends_with(['e', 'E']),
            _ => is_text(last) && is_text(next),
        }
    }
}
