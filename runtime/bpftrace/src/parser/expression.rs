//! Reads expressions, with C's precedence.

use super::{Parsed, Parser};
use crate::scanner::{Token, TokenKind};
use crate::tree::{Binary, Expr, ExprKind, Span, Unary};

/// Words that a type consists of, apart from `struct x` and names that end with `_t`.
const TYPE_WORDS: &[&str] = &[
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "int", "char", "short", "long",
    "unsigned", "signed", "void", "bool", "const", "string", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64",
    "__u8", "__u16", "__u32", "__u64", "__be16", "__be32",
];

impl Parser<'_> {
    pub(super) fn expression(&mut self) -> Parsed<Expr> {
        self.deeper(Self::choice)
    }

    fn choice(&mut self) -> Parsed<Expr> {
        let condition = self.binary(1)?;
        if !self.take("?") {
            return Ok(condition);
        }
        let then = if self.next_is(":") { None } else { Some(Box::new(self.expression()?)) };
        self.expect(":")?;
        let otherwise = self.expression()?;
        let span = condition.span.start..otherwise.span.end;
        let kind = ExprKind::Choice { condition: Box::new(condition), then, otherwise: Box::new(otherwise) };
        Ok(Expr { kind, span })
    }

    fn binary(&mut self, weakest: u8) -> Parsed<Expr> {
        let mut left = self.unary()?;
        while let Some(operator) = self.binary_operator().filter(|it| it.binding() >= weakest) {
            self.scanner.next();
            self.level()?;
            let right = self.deeper(|it| it.binary(operator.binding() + 1))?;
            let span = left.span.start..right.span.end;
            left = Expr { kind: ExprKind::Binary(operator, Box::new(left), Box::new(right)), span };
        }
        Ok(left)
    }

    fn binary_operator(&mut self) -> Option<Binary> {
        let token = self.scanner.peek();
        let written = self.scanner.slice(&token.span);
        let operator = *Binary::ALL.iter().find(|it| token.kind == TokenKind::Symbol && it.text() == written)?;
        let is_end = operator == Binary::Divide && self.in_condition && self.scanner.ends_condition(&token.span);
        (!is_end).then_some(operator)
    }

    fn unary(&mut self) -> Parsed<Expr> {
        let token = self.scanner.peek();
        let operator = match self.scanner.slice(&token.span) {
            "!" => Unary::Not,
            "~" => Unary::Invert,
            "-" => Unary::Minus,
            "*" => Unary::Read,
            "&" => Unary::Address,
            "++" | "--" => {
                self.scanner.next();
                let up = self.scanner.slice(&token.span) == "++";
                let target = self.deeper(Self::unary)?;
                let span = token.span.start..target.span.end;
                return Ok(Expr { kind: ExprKind::Increment { target: Box::new(target), up }, span });
            }
            "(" => match self.cast()? {
                Some(cast) => return Ok(cast),
                None => return self.postfix(),
            },
            _ => return self.postfix(),
        };
        self.scanner.next();
        let operand = self.deeper(Self::unary)?;
        let span = token.span.start..operand.span.end;
        Ok(Expr { kind: ExprKind::Unary(operator, Box::new(operand)), span })
    }

    /// Reads `(type)value`, if that is next.
    fn cast(&mut self) -> Parsed<Option<Expr>> {
        let mark = self.scanner.mark();
        let start = self.scanner.next().span.start;
        let to = self.type_().ok();
        if to.is_some() && self.take(")") && self.begins_operand() {
            let value = self.deeper(Self::unary)?;
            let span = start..value.span.end;
            let to = to.unwrap_or_default();
            return Ok(Some(Expr { kind: ExprKind::Cast { to, value: Box::new(value) }, span }));
        }
        self.scanner.reset(&mark);
        Ok(None)
    }

    fn begins_operand(&mut self) -> bool {
        let token = self.scanner.peek();
        match token.kind {
            TokenKind::Symbol => matches!(self.scanner.slice(&token.span), "(" | "-" | "!" | "~" | "*" | "&"),
            TokenKind::Wrong | TokenKind::End => false,
            _ => true,
        }
    }

    /// Reads a type as written: `struct file *`, `uint64`, `unsigned long`, `int32[4]`, `pid_t *`.
    pub(super) fn type_(&mut self) -> Parsed<String> {
        let start = self.scanner.peek().span.start;
        let mut words = 0;
        let mut is_known = false;
        loop {
            let token = self.scanner.peek();
            let word = self.scanner.slice(&token.span);
            if token.kind != TokenKind::Name {
                break;
            }
            if matches!(word, "struct" | "union" | "enum") {
                self.scanner.next();
                self.name("the type's name")?;
                is_known = true;
            } else if TYPE_WORDS.contains(&word) || word.ends_with("_t") {
                self.scanner.next();
                is_known = true;
            } else if words == 0 {
                self.scanner.next();
            } else {
                break;
            }
            words += 1;
        }
        let mut is_pointer = false;
        while self.take("*") {
            is_pointer = true;
        }
        while self.take("[") {
            if !self.next_is("]") {
                self.scanner.next();
            }
            self.expect("]")?;
        }
        let token = self.scanner.peek();
        match words > 0 && (is_known || is_pointer) {
            true => Ok(self.scanner.text[start..self.end()].to_owned()),
            false => Err(self.wrong(&token, "a type")),
        }
    }

    fn postfix(&mut self) -> Parsed<Expr> {
        let mut value = self.primary()?;
        loop {
            let token = self.scanner.peek();
            let written = if token.kind == TokenKind::Symbol { self.scanner.slice(&token.span) } else { "" };
            if matches!(written, "." | "->" | "[" | "++" | "--") {
                self.level()?;
            }
            match written {
                "." | "->" => {
                    self.scanner.next();
                    let name = self.scanner.next();
                    if !matches!(name.kind, TokenKind::Name | TokenKind::Int(_)) {
                        return Err(self.wrong(&name, "a field"));
                    }
                    let span = value.span.start..name.span.end;
                    let name = self.scanner.slice(&name.span).to_owned();
                    value = Expr { kind: ExprKind::Field { of: Box::new(value), name }, span };
                }
                "[" => {
                    self.scanner.next();
                    let at = self.expression()?;
                    let end = self.expect("]")?.end;
                    let span = value.span.start..end;
                    value = Expr { kind: ExprKind::Index { of: Box::new(value), at: Box::new(at) }, span };
                }
                "++" | "--" => {
                    self.scanner.next();
                    let span = value.span.start..token.span.end;
                    value = Expr { kind: ExprKind::Increment { target: Box::new(value), up: written == "++" }, span };
                }
                _ => return Ok(value),
            }
        }
    }

    fn primary(&mut self) -> Parsed<Expr> {
        let token = self.scanner.peek();
        let written = self.scanner.slice(&token.span);
        if token.kind == TokenKind::Symbol {
            return match written {
                "(" => self.parenthesized(),
                "{" => {
                    let span = self.in_brackets(|it| it.block(true))?.span;
                    Ok(Expr { kind: ExprKind::Block, span })
                }
                _ => Err(self.wrong(&token, "a value")),
            };
        }
        self.scanner.next();
        let kind = match token.kind {
            TokenKind::Int(it) => ExprKind::Int(it),
            TokenKind::Text(ref it) => ExprKind::Text(it.clone()),
            TokenKind::Variable => ExprKind::Variable(written[1..].to_owned()),
            TokenKind::Positional(it) => ExprKind::Positional(it),
            TokenKind::PositionalCount => ExprKind::PositionalCount,
            TokenKind::Map => ExprKind::Map { name: written[1..].to_owned(), keys: self.keys()? },
            TokenKind::Name => return self.named(&token),
            TokenKind::Symbol | TokenKind::Wrong | TokenKind::End => return Err(self.wrong(&token, "a value")),
        };
        Ok(Expr { kind, span: token.span.start..self.end() })
    }

    fn named(&mut self, token: &Token) -> Parsed<Expr> {
        let name = self.scanner.slice(&token.span).to_owned();
        let kind = match name.as_str() {
            "sizeof" | "offsetof" | "typeof" if self.take("(") => {
                if !self.scanner.skip_bracket() {
                    return Err(self.wrong(token, "a closed parenthesis"));
                }
                ExprKind::Opaque("the layout of C's types is not known")
            }
            _ if self.take("(") => ExprKind::Call { name, arguments: self.list(")")? },
            "true" => ExprKind::Int(1),
            "false" => ExprKind::Int(0),
            _ => ExprKind::Name(name),
        };
        Ok(Expr { kind, span: token.span.start..self.end() })
    }

    /// Reads `(a)`, `(a, b)`, or a record `(a = 1)`.
    fn parenthesized(&mut self) -> Parsed<Expr> {
        let start = self.scanner.next().span.start;
        let mut values = self.list(")")?;
        let span: Span = start..self.end();
        let kind = match values.len() {
            1 => return Ok(Expr { span, ..values.remove(0) }),
            _ => ExprKind::Tuple(values),
        };
        Ok(Expr { kind, span })
    }

    fn keys(&mut self) -> Parsed<Vec<Expr>> {
        if self.take("[") { self.list("]") } else { Ok(Vec::new()) }
    }

    /// Reads expressions up to a closing bracket.
    fn list(&mut self, close: &str) -> Parsed<Vec<Expr>> {
        self.in_brackets(|it| {
            let mut values = Vec::new();
            while !it.take(close) {
                values.push(it.expression()?);
                if !it.take(",") {
                    it.expect(close)?;
                    break;
                }
            }
            Ok(values)
        })
    }

    /// Reads what is in brackets, where no slash ends a probe's condition.
    fn in_brackets<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        let outside = std::mem::take(&mut self.in_condition);
        let result = read(self);
        self.in_condition = outside;
        result
    }
}
