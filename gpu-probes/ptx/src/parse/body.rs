//! Statements (PTX ISA, §4.3 "Statements").

use super::{closed_directive, declaration, file, operand, text};
use crate::ParseError;
use crate::lex::{Lexer, TokenKind};
use crate::tree::*;

/// Directives that a label stands in front of.
const TABLES: [&str; 3] = [".branchtargets", ".calltargets", ".callprototype"];

/// Takes statements up to a `}` or the end of the text; they may have `most_scopes` scopes in each other.
pub(super) fn statements(lexer: &mut Lexer, most_scopes: usize) -> Result<Vec<Statement>, ParseError> {
    let mut statements = Vec::new();
    loop {
        let token = lexer.peek();
        match token.kind {
            TokenKind::End | TokenKind::Sign(b'}') => return Ok(statements),
            TokenKind::Sign(b'{') => statements.push(scope(lexer, most_scopes)?),
            TokenKind::Sign(b';') => {
                lexer.advance()?;
                statements.push(Statement::Empty);
            }
            TokenKind::Sign(b'@') => statements.push(Statement::Instruction(guarded(lexer)?)),
            TokenKind::Word if token.is_directive() => statements.push(directive(lexer)?),
            TokenKind::Word => statements.push(labelled(lexer)?),
            _ => return Err(lexer.unexpected("a statement")),
        }
    }
}

fn scope(lexer: &mut Lexer, most_scopes: usize) -> Result<Statement, ParseError> {
    let Some(most_scopes) = most_scopes.checked_sub(1) else {
        return Err(lexer.unexpected("fewer scopes in each other"));
    };
    lexer.expect(b'{', "`{`")?;
    let inner = statements(lexer, most_scopes)?;
    lexer.expect(b'}', "a statement or `}`")?;
    Ok(Statement::Scope(inner))
}

fn directive(lexer: &mut Lexer) -> Result<Statement, ParseError> {
    match declaration::next_directive(lexer) {
        ".loc" => location(lexer).map(Statement::Location),
        ".pragma" => closed_directive(lexer).map(Statement::Directive),
        ".file" => file(lexer).map(Statement::Directive),
        _ => variables(lexer).map(Statement::Declaration),
    }
}

fn variables(lexer: &mut Lexer) -> Result<Declaration, ParseError> {
    let start = lexer.clone();
    let words = declaration::words(lexer)?;
    if !words.iter().any(|word| declaration::is_space(word)) {
        return Err(start.unexpected("a declaration with a state space"));
    }
    let names = declaration::names(lexer)?;
    lexer.expect(b';', "`;` after a declaration")?;
    Ok(Declaration { words, names })
}

fn location(lexer: &mut Lexer) -> Result<Location, ParseError> {
    declaration::directive(lexer)?;
    let file = number(lexer, "the number of a file")?;
    let line = number(lexer, "the number of a line")?;
    let column = number(lexer, "the number of a column")?;
    let inlined = if lexer.take(b',')? { Some(inlined(lexer)?) } else { None };
    Ok(Location { file, line, column, inlined })
}

fn number(lexer: &mut Lexer, what: &str) -> Result<u32, ParseError> {
    let number = lexer.peek().text.parse().map_err(|_| lexer.unexpected(what))?;
    lexer.advance()?;
    Ok(number)
}

/// `function_name LABEL [+ NUMBER], inlined_at FILE LINE COLUMN`.
fn inlined(lexer: &mut Lexer) -> Result<String, ParseError> {
    let mut text = text::Joined::default();
    keyword(lexer, "function_name", &mut text)?;
    text.push(&lexer.word("the label of a function's name")?);
    if lexer.peek().is(b'+') {
        text.push(&lexer.advance()?);
        text.push(&lexer.word("an offset")?);
    }
    if !lexer.peek().is(b',') {
        return Err(lexer.unexpected("`,` before `inlined_at`"));
    }
    text.push(&lexer.advance()?);
    keyword(lexer, "inlined_at", &mut text)?;
    for what in ["the number of a file", "the number of a line", "the number of a column"] {
        text.push(&lexer.word(what)?);
    }
    Ok(text.text)
}

fn keyword(lexer: &mut Lexer, keyword: &str, text: &mut text::Joined) -> Result<(), ParseError> {
    if lexer.peek().text != keyword {
        return Err(lexer.unexpected(&format!("`{keyword}`")));
    }
    text.push(&lexer.advance()?);
    Ok(())
}

/// A label, a table, or an instruction without a guard.
fn labelled(lexer: &mut Lexer) -> Result<Statement, ParseError> {
    let word = lexer.peek();
    if word.text.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(lexer.unexpected("a statement"));
    }
    lexer.advance()?;
    if !lexer.take(b':')? {
        return instruction(lexer, None, word.text).map(Statement::Instruction);
    }
    if lexer.peek().is_directive() && TABLES.contains(&lexer.peek().text) {
        return table(lexer, word.text).map(Statement::Table);
    }
    Ok(Statement::Label(word.text.to_owned()))
}

fn table(lexer: &mut Lexer, label: &str) -> Result<LabelledDirective, ParseError> {
    let Directive { name, arguments, .. } = closed_directive(lexer)?;
    Ok(LabelledDirective { label: label.to_owned(), directive: name, arguments })
}

fn guarded(lexer: &mut Lexer) -> Result<Instruction, ParseError> {
    lexer.expect(b'@', "`@`")?;
    let is_negated = lexer.take(b'!')?;
    let predicate = lexer.word("a predicate after `@`")?.text.to_owned();
    let opcode = lexer.word("an instruction after its guard")?;
    instruction(lexer, Some(Guard { predicate, is_negated }), opcode.text)
}

fn instruction(lexer: &mut Lexer, guard: Option<Guard>, first: &str) -> Result<Instruction, ParseError> {
    let mut opcode = first.to_owned();
    // Inline assembly may have white space between modifiers. No operand begins with a dot.
    while lexer.peek().is_directive() {
        opcode.push_str(lexer.advance()?.text);
    }
    let operands = operand::operands(lexer, &opcode)?;
    lexer.expect(b';', "`,` or `;` after an operand")?;
    Ok(Instruction { guard, opcode, operands })
}
