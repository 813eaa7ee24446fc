//! Reads a whole program: probes, and what else stands outside braces.

mod expression;
mod statement;

use crate::facts;
use crate::scanner::{Comment, Scanner, Token, TokenKind};
use crate::tree::{Block, Constant, Expr, ExprKind, Item, Macro, Other, Point, Probe, Program, Span};

/// Where and why a text is no bpftrace program.
#[derive(Debug)]
pub(crate) struct Wrong {
    /// Byte offset in the text.
    pub(crate) at: usize,
    pub(crate) message: String,
}

pub(crate) type Parsed<T> = Result<T, Wrong>;

/// The tree may be this deep: what reads it calls itself for each level.
pub(crate) const MOST_LEVELS: usize = 100;

/// Kinds of probes, with their short names.
pub(crate) const PROBE_KINDS: &[&str] = &[
    "BEGIN",
    "END",
    "begin",
    "end",
    "uprobe",
    "u",
    "uretprobe",
    "ur",
    "usdt",
    "U",
    "tracepoint",
    "t",
    "rawtracepoint",
    "rt",
    "profile",
    "p",
    "interval",
    "i",
    "kprobe",
    "k",
    "kretprobe",
    "kr",
    "fentry",
    "f",
    "fexit",
    "fr",
    "kfunc",
    "kretfunc",
    "software",
    "s",
    "hardware",
    "h",
    "watchpoint",
    "w",
    "asyncwatchpoint",
    "aw",
    "iter",
    "it",
    "self",
    "test",
    "bench",
];

/// Parses a program; returns it with its comments.
///
/// # Errors
/// The text is no bpftrace program.
pub(crate) fn parse(text: &str) -> Parsed<(Program, Vec<Comment>)> {
    let mut parser = Parser { scanner: Scanner::new(text), levels: 0, in_condition: false };
    let program = parser.program();
    if let Some((at, why)) = parser.scanner.fault {
        return Err(parser.wrong_at(at, why));
    }
    Ok((program?, parser.scanner.comments))
}

pub(crate) struct Parser<'a> {
    scanner: Scanner<'a>,
    levels: usize,
    /// Whether a slash before a brace ends the expression.
    in_condition: bool,
}

impl<'a> Parser<'a> {
    fn program(&mut self) -> Parsed<Program> {
        let mut program = Program::default();
        while self.scanner.peek().kind != TokenKind::End {
            let item = self.item(&mut program)?;
            program.items.push(item);
        }
        self.defines(&mut program);
        Ok(program)
    }

    fn item(&mut self, program: &mut Program) -> Parsed<Item> {
        let first = self.scanner.peek();
        let start = first.span.start;
        let other = match self.scanner.slice(&first.span) {
            "macro" => return self.macro_().map(Item::Macro),
            "config" => Other::Config,
            "import" => Other::Import,
            "fn" => Other::Function,
            "let" => Other::MapDeclaration,
            "struct" | "union" | "typedef" => Other::Type,
            "enum" => {
                self.enumeration(program)?;
                return Ok(Item::Other { what: Other::Type, span: start..self.end_of_item() });
            }
            _ => return self.probe().map(Item::Probe),
        };
        self.skip_item(other)?;
        Ok(Item::Other { what: other, span: start..self.end_of_item() })
    }

    /// Takes a semicolon behind an item; returns where the item ends.
    fn end_of_item(&mut self) -> usize {
        let mark = self.scanner.mark();
        let token = self.scanner.next();
        if self.scanner.slice(&token.span) == ";" {
            return token.span.end;
        }
        self.scanner.reset(&mark);
        self.end()
    }

    /// Takes an item that ends with a semicolon or a block.
    fn skip_item(&mut self, what: Other) -> Parsed<()> {
        let start = self.scanner.peek().span.start;
        loop {
            let mark = self.scanner.mark();
            let token = self.scanner.next();
            match self.scanner.slice(&token.span) {
                "{" if !self.scanner.skip_bracket() => return Err(self.wrong_at(start, "this has no end")),
                // `typedef struct { … } name;`
                "{" if what != Other::Type => return Ok(()),
                ";" => {
                    self.scanner.reset(&mark);
                    return Ok(());
                }
                _ if token.kind == TokenKind::End => return Err(self.wrong_at(start, "this has no end")),
                _ => {}
            }
            // A type may end without a semicolon.
            let next = self.scanner.peek();
            let is_closed = self.scanner.text[..next.span.start].trim_end().ends_with('}');
            if is_closed && (next.kind == TokenKind::End || PROBE_KINDS.contains(&self.scanner.slice(&next.span))) {
                return Ok(());
            }
        }
    }

    /// Takes `enum name { A, B = 3 }`, and notes its constants.
    fn enumeration(&mut self, program: &mut Program) -> Parsed<()> {
        self.scanner.next();
        if self.scanner.peek().kind == TokenKind::Name {
            self.scanner.next();
        }
        self.expect("{")?;
        let mut next_value = Some(0i64);
        while !self.take("}") {
            let name = self.name("a name of the enumeration")?;
            if self.take("=") {
                next_value = facts::constant_value(&self.expression()?);
            }
            let kind = next_value.map_or(ExprKind::Opaque("its value is not known"), ExprKind::Int);
            let value = Expr { kind, span: name.span.clone() };
            next_value = next_value.map(|it| it.wrapping_add(1));
            program.constants.push(Constant { name: self.scanner.slice(&name.span).to_owned(), value });
            if !self.take(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(())
    }

    /// Reads the values of `#define`s; those that are no expressions are left out.
    fn defines(&mut self, program: &mut Program) {
        for define in self.scanner.defines.clone() {
            let mut value = Parser {
                scanner: Scanner::new(&self.scanner.text[..define.value.end]),
                levels: 0,
                in_condition: false,
            };
            value.scanner.jump(define.value.start);
            if let Ok(expression) = value.expression()
                && value.scanner.peek().kind == TokenKind::End
            {
                program.constants.push(Constant { name: define.name, value: expression });
            }
        }
    }

    fn macro_(&mut self) -> Parsed<Macro> {
        let start = self.scanner.next().span.start;
        let name = self.name("the macro's name")?;
        self.expect("(")?;
        let mut parameters = Vec::new();
        while !self.take(")") {
            let parameter = self.scanner.next();
            if !matches!(parameter.kind, TokenKind::Name | TokenKind::Variable | TokenKind::Map) {
                return Err(self.wrong(&parameter, "a parameter"));
            }
            parameters.push(self.scanner.slice(&parameter.span).to_owned());
            if !self.take(",") {
                self.expect(")")?;
                break;
            }
        }
        let body = self.block(true)?;
        let span = start..body.span.end;
        Ok(Macro { name: self.scanner.slice(&name.span).to_owned(), parameters, body, span })
    }

    fn probe(&mut self) -> Parsed<Probe> {
        let mut points = vec![self.point()?];
        while self.take(",") {
            // bpftrace lets a list end with a comma.
            if self.next_is("{") {
                break;
            }
            points.push(self.point()?);
        }
        let condition = if self.take("/") { Some(self.condition()?) } else { None };
        let body = self.block(false)?;
        let span = points[0].span.start..body.span.end;
        Ok(Probe { points, condition, body, span })
    }

    fn condition(&mut self) -> Parsed<Expr> {
        self.in_condition = true;
        let condition = self.expression();
        self.in_condition = false;
        let condition = condition?;
        self.expect("/")?;
        Ok(condition)
    }

    fn point(&mut self) -> Parsed<Point> {
        let span = self.scanner.point();
        let text = self.scanner.slice(&span).to_owned();
        let kind = text.split(':').next().unwrap_or_default();
        match PROBE_KINDS.contains(&kind) || kind.contains('*') && text.contains(':') {
            true => Ok(Point { text, span }),
            false if text.is_empty() => {
                Err(self.wrong_at(span.start, "a probe was expected, such as uprobe:libc:malloc"))
            }
            false => Err(self.wrong_at(span.start, &format!("`{kind}` is no kind of probe"))),
        }
    }

    /// Takes a symbol or word if it is next.
    fn take(&mut self, written: &str) -> bool {
        let token = self.scanner.peek();
        let is_it =
            matches!(token.kind, TokenKind::Symbol | TokenKind::Name) && self.scanner.slice(&token.span) == written;
        if is_it {
            self.scanner.next();
        }
        is_it
    }

    fn next_is(&mut self, written: &str) -> bool {
        let token = self.scanner.peek();
        matches!(token.kind, TokenKind::Symbol | TokenKind::Name) && self.scanner.slice(&token.span) == written
    }

    fn expect(&mut self, written: &str) -> Parsed<Span> {
        let token = self.scanner.peek();
        match self.take(written) {
            true => Ok(token.span),
            false => Err(self.wrong(&token, &format!("`{written}`"))),
        }
    }

    fn name(&mut self, what: &str) -> Parsed<Token> {
        let token = self.scanner.next();
        match token.kind {
            TokenKind::Name => Ok(token),
            _ => Err(self.wrong(&token, what)),
        }
    }

    /// Says what was expected in place of a token.
    fn wrong(&self, token: &Token, expected: &str) -> Wrong {
        let found = match token.kind {
            TokenKind::End => "the text ends".to_owned(),
            TokenKind::Wrong if self.scanner.slice(&token.span).starts_with('"') => {
                "there is a text without its end".into()
            }
            _ => format!("there is `{}`", self.scanner.slice(&token.span)),
        };
        self.wrong_at(token.span.start, &format!("{expected} was expected, but {found}"))
    }

    fn wrong_at(&self, at: usize, message: &str) -> Wrong {
        Wrong { at, message: message.to_owned() }
    }

    /// Reads something one level deeper.
    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        let outside = self.levels;
        self.level()?;
        let result = read(self);
        self.levels = outside;
        result
    }

    /// Counts a level of the tree, which ends where that around it does: a chain of operators is as deep as it is long.
    fn level(&mut self) -> Parsed<()> {
        if self.levels == MOST_LEVELS {
            let at = self.scanner.peek().span.start;
            return Err(self.wrong_at(at, "this is nested too deeply"));
        }
        self.levels += 1;
        Ok(())
    }

    fn block(&mut self, keeps_value: bool) -> Parsed<Block> {
        self.deeper(|it| it.statements(keeps_value))
    }
}
