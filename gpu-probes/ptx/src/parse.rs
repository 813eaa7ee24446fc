//! Text → tree.
//!
//! ```text
//! parse ── modules: directives, variables, functions, sections
//!   ├ declaration ── what has a state space and a type
//!   └ body ── scopes and statements
//!       └ operand
//! ```

mod body;
mod declaration;
mod operand;
mod text;

use crate::ParseError;
use crate::lex::{Lexer, TokenKind};
use crate::tree::*;

/// Scopes in scopes that a text may have, so that no text exhausts the stack.
const MOST_SCOPES: usize = 200;

impl Module {
    /// Parses a module of PTX.
    ///
    /// # Errors
    /// The text is not PTX as far as this crate understands it: where, and what should have been there.
    pub fn parse(text: &str) -> Result<Module, ParseError> {
        let mut lexer = Lexer::new(text)?;
        let mut items = Vec::new();
        while lexer.peek().kind != TokenKind::End {
            items.push(item(&mut lexer)?);
        }
        Ok(Module { items })
    }
}

/// Parses statements as they stand in a body, with balanced braces.
///
/// # Errors
/// The text is not a sequence of statements.
pub fn parse_statements(text: &str) -> Result<Vec<Statement>, ParseError> {
    let mut lexer = Lexer::new(text)?;
    let statements = body::statements(&mut lexer, MOST_SCOPES)?;
    if lexer.peek().kind == TokenKind::End { Ok(statements) } else { Err(lexer.unexpected("a statement")) }
}

fn item(lexer: &mut Lexer) -> Result<Item, ParseError> {
    if !lexer.peek().is_directive() {
        return Err(lexer.unexpected("a directive"));
    }
    match declaration::next_directive(lexer) {
        ".version" | ".target" | ".address_size" => open_directive(lexer).map(Item::Directive),
        ".file" => file(lexer).map(Item::Directive),
        ".pragma" | ".alias" => closed_directive(lexer).map(Item::Directive),
        ".section" => section(lexer).map(Item::Section),
        _ => declared(lexer),
    }
}

/// A function, if the words in front of the name say so, or variables.
fn declared(lexer: &mut Lexer) -> Result<Item, ParseError> {
    let words = declaration::words(lexer)?;
    if words.iter().any(|word| word == ".func" || word == ".entry") {
        return function(lexer, words).map(Item::Function);
    }
    if !words.iter().any(|word| declaration::is_space(word)) {
        return Err(lexer.unexpected("a state space, `.func` or `.entry` before a name"));
    }
    let names = declaration::names(lexer)?;
    lexer.expect(b';', "`;` after a declaration")?;
    Ok(Item::Variable(Declaration { words, names }))
}

/// `.target sm_90a, debug`: ends where the next directive begins.
fn open_directive(lexer: &mut Lexer) -> Result<Directive, ParseError> {
    let name = declaration::directive(lexer)?;
    let arguments = text::until(lexer, |token| token.is_directive() || token.is(b'{') || token.is(b';'))?;
    Ok(Directive { name, arguments, has_end: false })
}

/// `.pragma "nounroll";`.
fn closed_directive(lexer: &mut Lexer) -> Result<Directive, ParseError> {
    let name = declaration::directive(lexer)?;
    let arguments = text::until(lexer, |token| token.is(b';'))?;
    lexer.expect(b';', "`;` after a directive")?;
    Ok(Directive { name, arguments, has_end: true })
}

/// `.file 1 "a.cu", 1700000000, 4096` (PTX ISA, §11.5.2 ".file").
fn file(lexer: &mut Lexer) -> Result<Directive, ParseError> {
    let name = declaration::directive(lexer)?;
    let mut arguments = lexer.word("the number of a file")?.text.to_owned();
    if lexer.peek().kind != TokenKind::Text {
        return Err(lexer.unexpected("the name of a file"));
    }
    arguments.push(' ');
    arguments.push_str(lexer.advance()?.text);
    while lexer.take(b',')? {
        arguments.push_str(", ");
        arguments.push_str(lexer.word("a time or size")?.text);
    }
    Ok(Directive { name, arguments, has_end: false })
}

fn section(lexer: &mut Lexer) -> Result<Section, ParseError> {
    declaration::directive(lexer)?;
    let name = lexer.word("the name of a section")?.text.to_owned();
    let open = lexer.peek().at;
    lexer.expect(b'{', "`{` after the name of a section")?;
    let mut depth = 1;
    loop {
        let token = lexer.advance()?;
        match token.kind {
            TokenKind::Sign(b'{') => depth += 1,
            TokenKind::Sign(b'}') => depth -= 1,
            TokenKind::End => return Err(lexer.error(open, "a section without an end")),
            _ => {}
        }
        if depth == 0 {
            let text = lexer.slice(open + 1, token.at).trim().to_owned();
            return Ok(Section { name, text });
        }
    }
}

fn function(lexer: &mut Lexer, words: Vec<String>) -> Result<Function, ParseError> {
    let returns = if lexer.peek().is(b'(') { Some(declaration::parameters(lexer)?) } else { None };
    let name = lexer.word("the name of a function")?.text.to_owned();
    let parameters = if lexer.peek().is(b'(') { Some(declaration::parameters(lexer)?) } else { None };
    let directives = function_directives(lexer)?;
    let body = if lexer.take(b';')? { None } else { Some(function_body(lexer)?) };
    Ok(Function { words, returns, name, parameters, directives, body })
}

fn function_directives(lexer: &mut Lexer) -> Result<Vec<Directive>, ParseError> {
    let mut directives = Vec::new();
    while lexer.peek().is_directive() {
        let is_closed = declaration::next_directive(lexer) == ".pragma";
        directives.push(if is_closed { closed_directive(lexer)? } else { open_directive(lexer)? });
    }
    Ok(directives)
}

fn function_body(lexer: &mut Lexer) -> Result<Vec<Statement>, ParseError> {
    lexer.expect(b'{', "`{` or `;` after the head of a function")?;
    let statements = body::statements(lexer, MOST_SCOPES)?;
    lexer.expect(b'}', "a statement or `}`")?;
    Ok(statements)
}
