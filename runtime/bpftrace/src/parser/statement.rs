//! Reads statements.

use super::{Parsed, Parser};
use crate::scanner::TokenKind;
use crate::tree::{Binary, Block, Expr, ExprKind, Stmt, StmtKind};

/// Operators that assign what they compute.
const ASSIGNING: &[(&str, Binary)] = &[
    ("+=", Binary::Add),
    ("-=", Binary::Subtract),
    ("*=", Binary::Multiply),
    ("/=", Binary::Divide),
    ("%=", Binary::Remainder),
    ("&=", Binary::BitAnd),
    ("|=", Binary::BitOr),
    ("^=", Binary::BitXor),
    ("<<=", Binary::ShiftLeft),
    (">>=", Binary::ShiftRight),
];

impl Parser<'_> {
    /// Reads a block. With `keeps_value`, an expression without a semicolon at its end is its value.
    pub(super) fn statements(&mut self, keeps_value: bool) -> Parsed<Block> {
        let start = self.expect("{")?.start;
        let mut statements = Vec::new();
        let mut value = None;
        loop {
            while self.take(";") {}
            if self.next_is("}") {
                break;
            }
            let statement = self.statement()?;
            let is_complete = matches!(
                statement.kind,
                StmtKind::If { .. }
                    | StmtKind::Unroll { .. }
                    | StmtKind::While { .. }
                    | StmtKind::ForMap { .. }
                    | StmtKind::ForRange { .. }
                    | StmtKind::Block(_)
            );
            let is_last = self.next_is("}");
            match statement.kind {
                StmtKind::Expr(it) if is_last && keeps_value => value = Some(Box::new(it)),
                kind => statements.push(Stmt { kind, span: statement.span }),
            }
            if !is_last && !is_complete {
                self.expect(";")?;
            }
        }
        let end = self.expect("}")?.end;
        Ok(Block { statements, value, span: start..end })
    }

    fn statement(&mut self) -> Parsed<Stmt> {
        let first = self.scanner.peek();
        let start = first.span.start;
        let kind = match (&first.kind, self.scanner.slice(&first.span)) {
            (TokenKind::Symbol, "{") => StmtKind::Block(self.block(false)?),
            (TokenKind::Name, "if") => self.if_()?,
            (TokenKind::Name, "unroll") => {
                self.scanner.next();
                let times = self.expression()?;
                StmtKind::Unroll { times, body: self.block(false)? }
            }
            (TokenKind::Name, "while") => {
                self.scanner.next();
                let condition = self.expression()?;
                StmtKind::While { condition, body: self.block(false)? }
            }
            (TokenKind::Name, "for") => self.for_()?,
            (TokenKind::Name, "break") => self.word(StmtKind::Break),
            (TokenKind::Name, "continue") => self.word(StmtKind::Continue),
            (TokenKind::Name, "return") => self.return_()?,
            (TokenKind::Name, "let") => self.let_()?,
            _ => self.assignment()?,
        };
        Ok(Stmt { kind, span: start..self.end() })
    }

    /// Returns where the last token ended.
    pub(super) fn end(&mut self) -> usize {
        self.scanner.last_end()
    }

    fn word(&mut self, kind: StmtKind) -> StmtKind {
        self.scanner.next();
        kind
    }

    fn if_(&mut self) -> Parsed<StmtKind> {
        self.scanner.next();
        let condition = self.expression()?;
        let then = self.block(false)?;
        let otherwise = match self.take("else") {
            true if self.next_is("if") => {
                let nested = self.deeper(Self::statement)?;
                let span = nested.span.clone();
                Some(Block { statements: vec![nested], value: None, span })
            }
            true => Some(self.block(false)?),
            false => None,
        };
        Ok(StmtKind::If { condition, then, otherwise })
    }

    /// Reads `for ($kv : @m) { … }` or `for $i : a..b { … }`.
    fn for_(&mut self) -> Parsed<StmtKind> {
        self.scanner.next();
        let in_parentheses = self.take("(");
        let variable = self.scanner.next();
        if variable.kind != TokenKind::Variable {
            return Err(self.wrong(&variable, "a variable such as $kv"));
        }
        let name = self.scanner.slice(&variable.span)[1..].to_owned();
        self.expect(":")?;
        let first = self.expression()?;
        let end = if self.take("..") { Some(self.expression()?) } else { None };
        if in_parentheses {
            self.expect(")")?;
        }
        let body = self.block(false)?;
        Ok(match end {
            Some(end) => StmtKind::ForRange { index: name, start: first, end, body },
            None => StmtKind::ForMap { row: name, map: first, body },
        })
    }

    fn return_(&mut self) -> Parsed<StmtKind> {
        self.scanner.next();
        if !self.next_is(";") && !self.next_is("}") {
            self.expression()?;
        }
        Ok(StmtKind::Return)
    }

    /// Reads `let $x`, with or without a type and a value.
    fn let_(&mut self) -> Parsed<StmtKind> {
        self.scanner.next();
        let variable = self.scanner.next();
        if variable.kind != TokenKind::Variable {
            return Err(self.wrong(&variable, "a variable such as $x"));
        }
        if self.take(":") {
            self.type_()?;
        }
        if !self.take("=") {
            return Ok(StmtKind::Let);
        }
        let name = self.scanner.slice(&variable.span)[1..].to_owned();
        let target = Expr { kind: ExprKind::Variable(name), span: variable.span };
        Ok(StmtKind::Assign { target, operator: None, value: self.expression()? })
    }

    fn assignment(&mut self) -> Parsed<StmtKind> {
        let target = self.expression()?;
        if self.take("=") {
            return Ok(StmtKind::Assign { target, operator: None, value: self.expression()? });
        }
        let token = self.scanner.peek();
        let written = self.scanner.slice(&token.span);
        match ASSIGNING.iter().find(|it| token.kind == TokenKind::Symbol && it.0 == written) {
            Some((_, operator)) => {
                self.scanner.next();
                Ok(StmtKind::Assign { target, operator: Some(*operator), value: self.expression()? })
            }
            None => Ok(StmtKind::Expr(target)),
        }
    }
}
