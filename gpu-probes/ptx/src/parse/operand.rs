//! Operands (PTX ISA, §6 "Instruction Operands", and §4.6 "Constant Expressions").

use super::text::Joined;
use crate::ParseError;
use crate::lex::{Lexer, Token, TokenKind};
use crate::tree::Operand;

/// Brackets in brackets that an operand may have; PTX has two.
const MOST_BRACKETS: usize = 8;

/// The operands of an instruction up to its `;`.
pub(super) fn operands(lexer: &mut Lexer, opcode: &str) -> Result<Vec<Operand>, ParseError> {
    if lexer.peek().is(b';') {
        return Ok(Vec::new());
    }
    let is_call = opcode == "call" || opcode.starts_with("call.");
    let mut operands = Vec::new();
    loop {
        let is_list = is_call && lexer.peek().is(b'(');
        operands.push(if is_list { bracketed(lexer, b')', MOST_BRACKETS)? } else { operand(lexer, MOST_BRACKETS)? });
        if !lexer.take(b',')? {
            return Ok(operands);
        }
    }
}

fn operand(lexer: &mut Lexer, most_brackets: usize) -> Result<Operand, ParseError> {
    match lexer.peek().kind {
        TokenKind::Sign(b'[') => bracketed(lexer, b']', most_brackets),
        TokenKind::Sign(b'{') => bracketed(lexer, b'}', most_brackets),
        _ => expression(lexer),
    }
}

/// Operands in brackets, of the kind that `close` ends.
fn bracketed(lexer: &mut Lexer, close: u8, most_brackets: usize) -> Result<Operand, ParseError> {
    let Some(most_brackets) = most_brackets.checked_sub(1) else {
        return Err(lexer.unexpected("fewer brackets in each other"));
    };
    lexer.advance()?;
    let mut parts = Vec::new();
    while !lexer.take(close)? {
        if !parts.is_empty() {
            lexer.expect(b',', &format!("`,` or `{}`", char::from(close)))?;
        }
        parts.push(operand(lexer, most_brackets)?);
    }
    Ok(match close {
        b']' => Operand::Address(parts),
        b'}' => Operand::Vector(parts),
        _ => Operand::List(parts),
    })
}

/// What has no brackets of its own around it.
fn expression(lexer: &mut Lexer) -> Result<Operand, ParseError> {
    let first = lexer.peek();
    if is_name(&first) {
        lexer.advance()?;
        return after_name(lexer, first);
    }
    if lexer.peek().is(b'!') {
        lexer.advance()?;
        if is_name(&lexer.peek()) {
            return not(lexer);
        }
        return rest(lexer, &[first]);
    }
    match first.kind {
        TokenKind::Word | TokenKind::Sign(b'-' | b'+' | b'~' | b'(') => rest(lexer, &[]),
        _ => Err(lexer.unexpected("an operand")),
    }
}

fn not(lexer: &mut Lexer) -> Result<Operand, ParseError> {
    let name = lexer.advance()?;
    if ends(&lexer.peek()) {
        return Ok(Operand::Not(name.text.to_owned()));
    }
    rest(lexer, &[Token { kind: TokenKind::Sign(b'!'), text: "!", at: name.at }, name])
}

fn after_name(lexer: &mut Lexer, name: Token) -> Result<Operand, ParseError> {
    let sign = lexer.peek();
    match sign.kind {
        _ if ends(&sign) => Ok(Operand::Name(name.text.to_owned())),
        TokenKind::Sign(b'+' | b'-') => match rest(lexer, &[])? {
            Operand::Expression(offset) if offset.bytes().all(|byte| !byte.is_ascii_alphanumeric()) => {
                Err(lexer.unexpected("a constant behind a sign"))
            }
            Operand::Expression(offset) => Ok(Operand::Sum { name: name.text.to_owned(), offset }),
            other => Ok(other),
        },
        TokenKind::Sign(b'|') => {
            lexer.advance()?;
            let second = lexer.peek();
            if !is_name(&second) {
                return rest(lexer, &[name, sign]);
            }
            lexer.advance()?;
            if !ends(&lexer.peek()) {
                return rest(lexer, &[name, sign, second]);
            }
            Ok(Operand::Pair(name.text.to_owned(), second.text.to_owned()))
        }
        _ => rest(lexer, &[name]),
    }
}

/// The rest of an expression as text, behind tokens that were taken already.
fn rest(lexer: &mut Lexer, taken: &[Token]) -> Result<Operand, ParseError> {
    let mut text = Joined::default();
    taken.iter().for_each(|token| text.push(token));
    let mut depth = 0usize;
    loop {
        let token = lexer.peek();
        match token.kind {
            _ if depth == 0 && ends(&token) => break,
            TokenKind::End | TokenKind::Sign(b';' | b'{' | b'}' | b'@') => {
                return Err(lexer.unexpected("the rest of an operand"));
            }
            TokenKind::Sign(b'(' | b'[') => depth += 1,
            TokenKind::Sign(b')' | b']') => depth -= 1,
            _ => {}
        }
        text.push(&lexer.advance()?);
    }
    if text.text.is_empty() { Err(lexer.unexpected("an operand")) } else { Ok(Operand::Expression(text.text)) }
}

fn ends(token: &Token) -> bool {
    matches!(token.kind, TokenKind::End | TokenKind::Sign(b',' | b';' | b']' | b'}' | b')'))
}

fn is_name(token: &Token) -> bool {
    token.kind == TokenKind::Word && !token.text.starts_with(|c: char| c.is_ascii_digit())
}
