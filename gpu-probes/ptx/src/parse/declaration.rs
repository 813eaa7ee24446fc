//! Declarations (PTX ISA, §5 "State Spaces, Types, and Variables").

use super::text;
use crate::ParseError;
use crate::lex::{Lexer, TokenKind};
use crate::tree::{Declaration, Declarator};

/// The state spaces that a declaration may have (PTX ISA, §5.1 "State Spaces"); `.tex` is deprecated.
const SPACES: [&str; 7] = [".reg", ".const", ".global", ".local", ".param", ".shared", ".tex"];

pub(super) fn is_space(word: &str) -> bool {
    // Banks of constants are deprecated: `.const[2]`.
    SPACES.contains(&word) || word.starts_with(".const[")
}

/// The next directive alone: `.reg` of `.reg.b32`.
pub(super) fn next_directive<'a>(lexer: &Lexer<'a>) -> &'a str {
    let text = lexer.peek().text;
    &text[..first_part(text)]
}

/// Takes the next directive.
pub(super) fn directive(lexer: &mut Lexer) -> Result<String, ParseError> {
    if !lexer.peek().is_directive() {
        return Err(lexer.unexpected("a directive"));
    }
    let text = lexer.peek().text;
    let length = first_part(text);
    let token = if length < text.len() { lexer.split(length) } else { lexer.advance()? };
    Ok(token.text.to_owned())
}

/// The length of the first directive of a word such as `.reg.b32`.
fn first_part(word: &str) -> usize {
    word[1..].find('.').map_or(word.len(), |dot| dot + 1)
}

/// Linkage, state space, attributes, alignment and type.
pub(super) fn words(lexer: &mut Lexer) -> Result<Vec<String>, ParseError> {
    let mut words = Vec::new();
    while lexer.peek().is_directive() {
        let mut word = directive(lexer)?;
        match word.as_str() {
            ".align" => {
                word.push(' ');
                word.push_str(lexer.word("an alignment in bytes")?.text);
            }
            ".attribute" => word.push_str(&bracketed(lexer, b'(', b')')?),
            ".const" if lexer.peek().is(b'[') => word.push_str(&bracketed(lexer, b'[', b']')?),
            _ => {}
        }
        words.push(word);
    }
    Ok(words)
}

/// Text in brackets, with them.
fn bracketed(lexer: &mut Lexer, open: u8, close: u8) -> Result<String, ParseError> {
    let (open, close) = (char::from(open), char::from(close));
    lexer.expect(open as u8, &format!("`{open}`"))?;
    let inner = text::until(lexer, |token| token.is(close as u8))?;
    lexer.expect(close as u8, &format!("`{close}`"))?;
    Ok(format!("{open}{inner}{close}"))
}

/// The names of a declaration.
pub(super) fn names(lexer: &mut Lexer) -> Result<Vec<Declarator>, ParseError> {
    let mut names = vec![name(lexer)?];
    while lexer.take(b',')? {
        names.push(name(lexer)?);
    }
    Ok(names)
}

fn name(lexer: &mut Lexer) -> Result<Declarator, ParseError> {
    let mut declarator = Declarator { name: lexer.word("a name")?.text.to_owned(), ..Declarator::default() };
    if lexer.take(b'<')? {
        declarator.count = Some(lexer.word("a count of registers")?.text.to_owned());
        lexer.expect(b'>', "`>` after a count of registers")?;
    }
    while lexer.take(b'[')? {
        declarator.dimensions.push(text::until(lexer, |token| token.is(b']'))?);
        lexer.expect(b']', "`]` after the size of an array")?;
    }
    if lexer.take(b'=')? {
        declarator.initialiser = Some(initialiser(lexer)?);
    }
    Ok(declarator)
}

fn initialiser(lexer: &mut Lexer) -> Result<String, ParseError> {
    let text = text::until(lexer, |token| token.is(b',') || token.is(b';'))?;
    if text.is_empty() { Err(lexer.unexpected("an initial value")) } else { Ok(text) }
}

/// `(.param .u64 a, .param .u32 b)`.
pub(super) fn parameters(lexer: &mut Lexer) -> Result<Vec<Declaration>, ParseError> {
    lexer.expect(b'(', "`(`")?;
    let mut parameters = Vec::new();
    while !lexer.peek().is(b')') {
        if !parameters.is_empty() {
            lexer.expect(b',', "`,` or `)` after a parameter")?;
        }
        parameters.push(parameter(lexer)?);
    }
    lexer.expect(b')', "`)`")?;
    Ok(parameters)
}

fn parameter(lexer: &mut Lexer) -> Result<Declaration, ParseError> {
    let words = words(lexer)?;
    if lexer.peek().kind != TokenKind::Word || words.is_empty() {
        return Err(lexer.unexpected("a parameter"));
    }
    Ok(Declaration { words, names: vec![name(lexer)?] })
}
