//! Translates calls, as values and as statements.

use super::Coded;
use super::expression::{TIGHTEST, ValueCode};
use super::format::TIME_OF_DAY;
use super::handler::{Handler, refused};
use crate::facts::{self, ValueKind};
use crate::names::{self, Named};
use crate::quoted::quoted;
use crate::tree::{Expr, ExprKind};

/// Bytes of a text that `str` reads at most.
const MOST_TEXT: i64 = 240;

impl Handler<'_, '_> {
    /// Translates a call that has a value.
    pub(super) fn call(&mut self, name: &str, arguments: &[Expr], it: &Expr) -> Coded<ValueCode> {
        match (name, arguments) {
            ("str", [text, length @ ..]) => self.str_(text, length.first(), it),
            ("has_key", _) => self.has_key(arguments, it),
            ("strcontains", [text, Expr { kind: ExprKind::Text(part), .. }]) => {
                let code = self.operand(text, TIGHTEST)?;
                Ok(ValueCode::tight(format!("{code}.contains({})", quoted(part)), ValueKind::Bool))
            }
            ("len", [Expr { kind: ExprKind::Map { name, keys }, span }]) if keys.is_empty() => {
                self.translator.read(name, span)?;
                match self.event.is_interpreted() {
                    true => Ok(ValueCode::tight(format!("@{name}.len()"), ValueKind::Int)),
                    false => Err(refused(it, "only `interval`, `begin` and `end` can count a map's elements")),
                }
            }
            ("nsecs", [Expr { kind: ExprKind::Name(_), .. }]) => {
                let of_clock = Expr { kind: ExprKind::Name("nsecs".into()), span: it.span.clone() };
                self.value(&of_clock)
            }
            ("ustack" | "kstack", _) => {
                if arguments.iter().any(|it| facts::constant_value(it).is_some()) {
                    let whole = self.translator.quote(&it.span);
                    self.differences.push(format!("{whole}: stacks are whole here, and so are their keys"));
                }
                let of_event = Expr { kind: ExprKind::Name(name.to_owned()), span: it.span.clone() };
                self.value(&of_event)
            }
            ("strftime", [Expr { kind: ExprKind::Text(format), .. }, nsecs]) if format == TIME_OF_DAY => {
                Ok(ValueCode::tight(self.clock_time(nsecs)?, ValueKind::Text))
            }
            ("getopt", [Expr { kind: ExprKind::Text(option), .. }, rest @ ..]) => self.getopt(option, rest, it),
            _ => Err(refused(it, &no_function(name))),
        }
    }

    fn str_(&mut self, text: &Expr, length: Option<&Expr>, it: &Expr) -> Coded<ValueCode> {
        if let ExprKind::Positional(number) = text.kind {
            return Ok(ValueCode::tight(self.translator.declare_parameter(number, "\"\""), ValueKind::Name));
        }
        let address = self.number(text)?;
        // Whether a tracepoint's field is text is a guess, and `str()` of a text is that text.
        if address.kind.is_text() && !(facts::is_argument(text) && length.is_none()) {
            return Ok(address);
        }
        let length = match length.map(|it| (it, facts::constant_value(it))) {
            None => String::new(),
            Some((_, Some(length))) => {
                if length > MOST_TEXT {
                    self.differences.push(format!("a text is read up to {MOST_TEXT} bytes, not {length}"));
                }
                format!(", {}", length.clamp(1, MOST_TEXT))
            }
            Some((length, None)) => return Err(refused(length, "the length of a text must be known")),
        };
        if self.event.is_interpreted() {
            return Err(refused(it, "a program's memory can be read only while it is at a probe"));
        }
        Ok(ValueCode::tight(format!("str({}{length})", address.text), ValueKind::Text))
    }

    /// Translates an option of the script.
    fn getopt(&mut self, option: &str, rest: &[Expr], it: &Expr) -> Coded<ValueCode> {
        let (default, kind) = match rest.first().map(|it| &it.kind) {
            Some(ExprKind::Int(number)) => (number.to_string(), ValueKind::Int),
            Some(ExprKind::Text(text)) => (quoted(text), ValueKind::Name),
            _ => return Err(refused(it, "the option's default must be a number or a text")),
        };
        let help = match rest.get(1).map(|it| &it.kind) {
            Some(ExprKind::Text(help)) => quoted(help),
            _ => "\"\"".into(),
        };
        if !option.starts_with(|it: char| it.is_ascii_alphabetic()) {
            return Err(refused(it, "the option has no name"));
        }
        let variable = self.translator.name(Named::Option, option);
        let line = format!("let {variable} = arg({}, {default}, {help});", quoted(option));
        self.translator.declare(&variable, line);
        Ok(ValueCode::tight(variable, kind))
    }

    /// Translates an expression that stands alone; the code lacks its semicolon.
    pub(super) fn expression_statement(&mut self, it: &Expr) -> Coded<String> {
        match &it.kind {
            ExprKind::Increment { target, up } => self.increment(target, *up),
            ExprKind::Call { name, arguments } => self.call_statement(name, arguments, it),
            ExprKind::Opaque(because) => Err(refused(it, because)),
            _ => Err(refused(it, "it has no effect")),
        }
    }

    fn increment(&mut self, target: &Expr, up: bool) -> Coded<String> {
        let sign = if up { "+=" } else { "-=" };
        match &target.kind {
            ExprKind::Variable(name) => {
                let here = self.variable(name, &target.span)?.text;
                self.assigned(&here);
                Ok(format!("{here} {sign} 1"))
            }
            ExprKind::Map { name, keys } if self.translator.facts.map(name).aggregation.is_none() => {
                let element = self.element(name, keys, &target.span)?;
                self.assigned(&format!("@{name}"));
                self.translator.fill(name);
                Ok(format!("{element} {sign} 1"))
            }
            _ => Err(refused(target, "only variables and plain values of maps can be counted up and down")),
        }
    }

    fn call_statement(&mut self, name: &str, arguments: &[Expr], it: &Expr) -> Coded<String> {
        match name {
            "exit" => match arguments {
                [] => Ok("exit()".into()),
                [code] => Ok(format!("exit({})", self.number(code)?.text)),
                _ => Err(refused(it, "`exit` takes a status")),
            },
            "delete" => self.delete(arguments, it),
            "clear" => {
                let name = self.whole_map(arguments, it)?;
                self.removed(&name);
                Ok(format!("@{name}.clear()"))
            }
            "print" => self.print_map(arguments, it),
            _ => Err(refused(it, &no_function(name))),
        }
    }

    fn delete(&mut self, arguments: &[Expr], it: &Expr) -> Coded<String> {
        let (map, element) = self.element_of(arguments, &it.span)?;
        self.translator.read(&map, &it.span)?;
        if self.translator.facts.map(&map).aggregation.is_some() && !self.event.is_interpreted() {
            return Err(refused(it, "elements of aggregations cannot be removed in compiled handlers"));
        }
        self.removed(&map);
        Ok(format!("{element}.remove()"))
    }

    /// Returns the name of a map that is printed or emptied as a whole.
    fn whole_map(&mut self, arguments: &[Expr], it: &Expr) -> Coded<String> {
        let Some(Expr { kind: ExprKind::Map { name, keys }, .. }) = arguments.first() else {
            return Err(refused(it, "it names no map"));
        };
        if !keys.is_empty() {
            return Err(refused(it, "it names an element, not a map"));
        }
        self.translator.read(name, &it.span)?;
        Ok(name.clone())
    }

    /// Translates `print(@m, top, divisor)`.
    fn print_map(&mut self, arguments: &[Expr], it: &Expr) -> Coded<String> {
        let name = self.whole_map(arguments, it)?;
        let numbers: Vec<Option<i64>> = arguments[1..].iter().map(facts::constant_value).collect();
        let code = match numbers[..] {
            [] | [Some(0)] => format!("print(@{name})"),
            [Some(top)] | [Some(top), Some(0 | 1)] if top > 0 => format!("print(@{name}.top({top}))"),
            [None] if self.event.is_interpreted() => {
                let top = self.number(&arguments[1])?.text;
                format!("print(@{name}.top({top}))")
            }
            _ => return Err(refused(it, "a table is not divided when it is printed: divide where the map is updated")),
        };
        Ok(code)
    }
}

fn no_function(name: &str) -> String {
    match names::missing_function(name) {
        Some(because) => because.to_owned(),
        None if facts::AGGREGATIONS.contains(&name) => format!("`{name}()` is only assigned to a map"),
        None => format!("there is no function `{name}`"),
    }
}
