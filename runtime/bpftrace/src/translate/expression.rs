//! Translates expressions. Each piece of code knows how tightly its outermost operator binds in Rhai, which differs
//! from C: a shift binds tighter than a sum, and a comparison less than `&`.

use super::handler::{Handler, Variable, refused};
use super::{Coded, Refused};
use crate::facts::{self, ValueKind};
use crate::names;
use crate::quoted::quoted;
use crate::target::Event;
use crate::tree::{Binary, Expr, ExprKind, Span, Unary};

/// How tightly operators bind in Rhai. Source: `Token::precedence` in its src/tokenizer.rs.
mod level {
    /// `if a { b } else { c }`, and `a ?? b`, which is easily misread among others.
    pub(super) const WEAKEST: u8 = 0;
    pub(super) const IN: u8 = 110;
    pub(super) const UNARY: u8 = 220;
}

/// Of what is one piece: a name, a call, a method.
pub(super) const TIGHTEST: u8 = 255;

/// Of sums and differences.
pub(super) const ADDITION: u8 = 150;

/// A key of a map has at most this many parts.
const MOST_KEY_PARTS: usize = 4;

/// Code of a value.
#[derive(Clone, Debug)]
pub(super) struct ValueCode {
    pub(super) text: String,
    level: u8,
    pub(super) kind: ValueKind,
    /// The opposite of a condition, where it is as short.
    opposite: Option<String>,
}

impl ValueCode {
    pub(super) fn tight(text: impl Into<String>, kind: ValueKind) -> Self {
        ValueCode { text: text.into(), level: TIGHTEST, kind, opposite: None }
    }

    fn weak(text: String, kind: ValueKind) -> Self {
        ValueCode { level: level::WEAKEST, ..ValueCode::tight(text, kind) }
    }

    fn at(level: u8, text: String, kind: ValueKind) -> Self {
        ValueCode { level, ..ValueCode::tight(text, kind) }
    }

    /// Returns the code for a place where everything binds at least so tightly.
    pub(super) fn at_least(&self, level: u8) -> String {
        if self.level < level { format!("({})", self.text) } else { self.text.clone() }
    }
}

fn rhai_level(operator: Binary) -> u8 {
    match operator {
        Binary::Or | Binary::BitOr | Binary::BitXor => 30,
        Binary::And | Binary::BitAnd => 60,
        Binary::Equal | Binary::Unequal => 90,
        Binary::Less | Binary::LessOrEqual | Binary::Greater | Binary::GreaterOrEqual => 130,
        Binary::Add | Binary::Subtract => ADDITION,
        Binary::Multiply | Binary::Divide | Binary::Remainder => 180,
        Binary::ShiftLeft | Binary::ShiftRight => 210,
    }
}

impl Handler<'_, '_> {
    /// Translates a value; a condition stays one.
    pub(super) fn value(&mut self, it: &Expr) -> Coded<ValueCode> {
        match &it.kind {
            ExprKind::Int(number) => Ok(self.integer(*number, it)),
            ExprKind::Text(text) => Ok(ValueCode::tight(quoted(text), ValueKind::Name)),
            ExprKind::Variable(name) => self.variable(name, &it.span),
            ExprKind::Positional(number) => {
                let is_text = self.translator.facts.text_parameters.contains(number);
                let name = self.translator.declare_parameter(*number, "0");
                Ok(ValueCode::tight(name, if is_text { ValueKind::Name } else { ValueKind::Int }))
            }
            ExprKind::PositionalCount => Err(refused(it, "the number of the script's parameters is not known")),
            ExprKind::Map { name, keys } => self.read_element(name, keys, it),
            ExprKind::Name(name) => self.builtin(name, it),
            ExprKind::Call { name, arguments } => self.call(name, arguments, it),
            ExprKind::Field { of, name } => self.field(of, name, it),
            ExprKind::Index { .. } => Err(refused(it, "arrays of a program cannot be read")),
            ExprKind::Unary(operator, of) => self.unary(*operator, of, it),
            ExprKind::Increment { .. } => Err(refused(it, "`++` and `--` are statements here, and have no value")),
            ExprKind::Binary(operator, ..) if operator.is_comparison() => self.condition(it),
            ExprKind::Binary(operator, a, b) => self.arithmetic(*operator, a, b),
            ExprKind::Choice { condition, then, otherwise } => self.choice(condition, then.as_deref(), otherwise),
            ExprKind::Cast { to, value } => self.cast(to, value, it),
            ExprKind::Tuple(_) => Err(refused(it, "tuples are only keys of maps")),
            ExprKind::Block => Err(refused(it, "a block has no value here; use a variable")),
            ExprKind::Opaque(because) => Err(refused(it, because)),
        }
    }

    /// Writes an integer; in hexadecimal if the program does.
    fn integer(&self, number: i64, it: &Expr) -> ValueCode {
        let written = &self.translator.text[it.span.clone()];
        let is_hex = number >= 0 && written.starts_with("0x") && written[2..].bytes().all(|it| it.is_ascii_hexdigit());
        if is_hex { ValueCode::tight(written, ValueKind::Int) } else { int(number) }
    }

    /// Translates a value to compute with, or to keep: a condition as 0 or 1.
    pub(super) fn number(&mut self, it: &Expr) -> Coded<ValueCode> {
        let code = self.value(it)?;
        Ok(match code.kind {
            ValueKind::Bool => ValueCode::weak(format!("if {} {{ 1 }} else {{ 0 }}", code.text), ValueKind::Int),
            _ => code,
        })
    }

    /// Translates an operand of something that binds so tightly.
    pub(super) fn operand(&mut self, it: &Expr, level: u8) -> Coded<String> {
        Ok(self.number(it)?.at_least(level))
    }

    pub(super) fn variable(&mut self, name: &str, span: &Span) -> Coded<ValueCode> {
        let because = match self.variables.get(name) {
            Some(Variable::Declared) => {
                let kind = self.translator.facts.variable(self.probe, name);
                return Ok(ValueCode::tight(self.variable_name(name), kind));
            }
            Some(Variable::Row) => format!("`${name}` is a whole row: read `.0` and `.1`"),
            Some(Variable::Unknown) => format!("`${name}` has no value here"),
            None => format!("`${name}` is read before it is assigned"),
        };
        Err(Refused { span: span.clone(), because })
    }

    /// Writes `@m[a, b]`.
    pub(super) fn element(&mut self, name: &str, keys: &[Expr], span: &Span) -> Coded<String> {
        let parts = key_parts(keys);
        if parts.len() > MOST_KEY_PARTS {
            let because = format!("a key has at most {MOST_KEY_PARTS} parts");
            return Err(Refused { span: span.clone(), because });
        }
        if parts.is_empty() {
            return Ok(format!("@{name}"));
        }
        let mut codes = Vec::new();
        for part in parts {
            codes.push(self.number(part)?.text);
        }
        Ok(format!("@{name}[{}]", codes.join(", ")))
    }

    /// Translates `has_key(@m, k)`.
    pub(super) fn has_key(&mut self, arguments: &[Expr], it: &Expr) -> Coded<ValueCode> {
        let (map, element) = self.element_of(arguments, &it.span)?;
        self.translator.read(&map, &it.span)?;
        let keys = match arguments {
            [Expr { kind: ExprKind::Map { keys, .. }, .. }] => keys,
            _ => &arguments[1..],
        };
        Ok(existence(&map, &element, key_parts(keys).len()))
    }

    /// Splits the arguments of `delete(@m[k])` and `delete(@m, k)` into the map and the element.
    pub(super) fn element_of(&mut self, arguments: &[Expr], span: &Span) -> Coded<(String, String)> {
        match arguments {
            [Expr { kind: ExprKind::Map { name, keys }, span }] => Ok((name.clone(), self.element(name, keys, span)?)),
            [Expr { kind: ExprKind::Map { name, keys }, span }, key] if keys.is_empty() => {
                Ok((name.clone(), self.element(name, std::slice::from_ref(key), span)?))
            }
            _ => Err(Refused { span: span.clone(), because: "it names no element of a map".into() }),
        }
    }

    /// Reads an element, which is 0 or empty in bpftrace if it doesn't exist.
    fn read_element(&mut self, name: &str, keys: &[Expr], it: &Expr) -> Coded<ValueCode> {
        self.translator.read(name, &it.span)?;
        if !self.translator.facts.is_filled(name) && !self.event.is_interpreted() {
            return Err(refused(it, &format!("the program stores nothing in `@{name}`")));
        }
        let element = self.element(name, keys, &it.span)?;
        let map = self.translator.facts.map(name);
        if map.aggregation.is_some() && !self.event.is_interpreted() {
            let because =
                "aggregations can be read only in `interval`, `begin` and `end`; store a value with `=` or `+=`";
            return Err(refused(it, because));
        }
        let kind = if map.aggregation.is_some() { ValueKind::Int } else { map.kind };
        if self.present.contains(&element) || kind == ValueKind::Stack {
            return Ok(ValueCode::tight(element, kind));
        }
        let nothing = if kind.is_text() { "\"\"" } else { "0" };
        Ok(ValueCode::weak(format!("{element} ?? {nothing}"), kind))
    }

    fn builtin(&mut self, name: &str, it: &Expr) -> Coded<ValueCode> {
        if let Some(constant) = self.translator.declare_constant(name) {
            return Ok(ValueCode::tight(constant, ValueKind::Int));
        }
        if self.event.is_interpreted() {
            return self.builtin_without_event(name, it);
        }
        let kind = match name {
            "comm" => ValueKind::Text,
            "func" | "probe" => ValueKind::Name,
            "ustack" | "kstack" => ValueKind::Stack,
            _ => ValueKind::Int,
        };
        let argument = name.strip_prefix("arg").and_then(|it| it.parse::<usize>().ok());
        let is_argument = argument.is_some_and(|it| it < if self.event == Event::Usdt { 12 } else { 6 });
        match name {
            "nsecs" => Ok(ValueCode::tight("e.time", ValueKind::Int)),
            "elapsed" => {
                let loaded = self.loaded();
                Ok(ValueCode::at(ADDITION, format!("e.time - {loaded}"), ValueKind::Int))
            }
            "func" if !matches!(self.event, Event::Uprobe | Event::Uretprobe) => {
                Err(refused(it, "this probe is at no function; `probe` is its name"))
            }
            "probe" if self.is_at_pattern => {
                const PATTERN: &str = "`probe` is the pattern here, so this is the function's name alone";
                if self.translator.says(PATTERN) {
                    self.differences.push(PATTERN.into());
                }
                Ok(ValueCode::tight("e.func", kind))
            }
            "comm" | "func" | "probe" | "ustack" | "kstack" | "pid" | "tid" | "uid" | "gid" | "cpu" | "cgroup" => {
                Ok(ValueCode::tight(format!("e.{name}"), kind))
            }
            "retval" if self.event == Event::Uretprobe => Ok(ValueCode::tight("e.retval", ValueKind::Int)),
            _ if is_argument && matches!(self.event, Event::Uprobe | Event::Usdt) => {
                Ok(ValueCode::tight(format!("e.{name}"), ValueKind::Int))
            }
            _ if is_argument && self.event == Event::Uretprobe => {
                Err(refused(it, &format!("at its return, a call's arguments are `e.entry.{name}`")))
            }
            _ => Err(refused(it, unknown_builtin(name).as_str())),
        }
    }

    /// Declares the variable that holds the time when the script was loaded.
    fn loaded(&mut self) -> &'static str {
        self.translator.declare("loaded", "let loaded = loaded_ns();".into());
        "loaded"
    }

    fn builtin_without_event(&mut self, name: &str, it: &Expr) -> Coded<ValueCode> {
        match name {
            // The run has not begun there.
            "elapsed" if self.event == Event::Begin => Ok(int(0)),
            "nsecs" if self.event == Event::Begin => Ok(ValueCode::tight(self.loaded(), ValueKind::Int)),
            "elapsed" => Ok(ValueCode::tight("elapsed_ns()", ValueKind::Int)),
            "nsecs" => {
                let loaded = self.loaded();
                Ok(ValueCode::at(ADDITION, format!("{loaded} + elapsed_ns()"), ValueKind::Int))
            }
            "pid" | "tid" | "comm" | "cpu" | "uid" | "gid" | "cgroup" | "probe" | "func" | "ustack" | "kstack" => {
                let function = self.event.function();
                Err(refused(it, &format!("`{function}` has no event, and so no `{name}`")))
            }
            _ => Err(refused(it, unknown_builtin(name).as_str())),
        }
    }

    fn field(&mut self, of: &Expr, name: &str, it: &Expr) -> Coded<ValueCode> {
        match &of.kind {
            ExprKind::Name(args) if args == "args" && self.event == Event::Tracepoint => {
                if name.starts_with('_') {
                    return Err(refused(it, "names that begin with `_` are reserved here"));
                }
                let kind = self.translator.facts.kind(self.probe, it);
                let place = if names::CPU_FIELDS.contains(&name) { "e.args" } else { "e" };
                Ok(ValueCode::tight(format!("{place}.{name}"), kind))
            }
            ExprKind::Name(args) if args == "args" => {
                Err(refused(it, "arguments are known by their position: `e.arg0`"))
            }
            ExprKind::Variable(row) if matches!(self.variables.get(row), Some(Variable::Row)) => {
                let part = match name {
                    "0" => "key",
                    "1" => "value",
                    _ => return Err(refused(it, "a row has a key and a value")),
                };
                Ok(ValueCode::tight(format!("{}.{part}", self.variable_name(row)), ValueKind::Unknown))
            }
            ExprKind::Field { of: inner, name: part } if part == "0" => match &inner.kind {
                ExprKind::Variable(row) if matches!(self.variables.get(row), Some(Variable::Row)) => {
                    Ok(ValueCode::tight(format!("{}.keys[{name}]", self.variable_name(row)), ValueKind::Unknown))
                }
                _ => Err(refused(it, "fields of C's structures cannot be read")),
            },
            _ => Err(refused(it, "fields of C's structures cannot be read")),
        }
    }

    fn unary(&mut self, operator: Unary, of: &Expr, it: &Expr) -> Coded<ValueCode> {
        match operator {
            Unary::Not => self.condition(it),
            Unary::Minus => match facts::constant_value(it) {
                Some(number) => Ok(int(number)),
                None => {
                    let operand = behind_minus(self.operand(of, level::UNARY)?);
                    Ok(ValueCode::at(level::UNARY, format!("-{operand}"), ValueKind::Int))
                }
            },
            Unary::Invert => {
                let operand = self.operand(of, rhai_level(Binary::BitXor))?;
                Ok(ValueCode::at(rhai_level(Binary::BitXor), format!("{operand} ^ -1"), ValueKind::Int))
            }
            Unary::Read | Unary::Address => Err(refused(it, "only text can be read from memory, by `str`")),
        }
    }

    fn arithmetic(&mut self, operator: Binary, a: &Expr, b: &Expr) -> Coded<ValueCode> {
        let level = rhai_level(operator);
        let (left, right) = (self.operand(a, level)?, self.operand(b, level + 1)?);
        Ok(ValueCode::at(level, format!("{left} {} {right}", operator.text()), ValueKind::Int))
    }

    fn choice(&mut self, condition: &Expr, then: Option<&Expr>, otherwise: &Expr) -> Coded<ValueCode> {
        let test = self.condition(condition)?.text;
        let then = match then {
            Some(then) => self.number(then)?,
            // It is written twice, so it must be short.
            None if matches!(condition.kind, ExprKind::Variable(_) | ExprKind::Name(_)) => self.number(condition)?,
            None => return Err(refused(condition, "it has no middle; assign the condition to a variable first")),
        };
        let otherwise = self.number(otherwise)?;
        let kind = if then.kind == ValueKind::Unknown { otherwise.kind } else { then.kind };
        Ok(ValueCode::weak(format!("if {test} {{ {} }} else {{ {} }}", then.text, otherwise.text), kind))
    }

    /// Translates casts between integers.
    fn cast(&mut self, to: &str, value: &Expr, it: &Expr) -> Coded<ValueCode> {
        let words: Vec<&str> = to.split_whitespace().filter(|it| *it != "const").collect();
        let view = match words.join(" ").as_str() {
            "int8" | "s8" | "char" => "i8",
            "int16" | "s16" | "short" => "i16",
            "int32" | "s32" | "int" => "i32",
            "uint8" | "u8" | "__u8" | "uint8_t" | "unsigned char" | "bool" => "u8",
            "uint16" | "u16" | "__u16" | "uint16_t" | "unsigned short" => "u16",
            "uint32" | "u32" | "__u32" | "uint32_t" | "unsigned int" | "unsigned" => "u32",
            "int64" | "uint64" | "u64" | "s64" | "__u64" | "uint64_t" | "int64_t" | "long" | "unsigned long"
            | "size_t" | "ssize_t" => return self.number(value),
            _ => return Err(refused(it, "C's types other than integers are not known")),
        };
        let operand = behind_minus(self.operand(value, TIGHTEST)?);
        Ok(ValueCode::tight(format!("{operand}.{view}"), ValueKind::Int))
    }

    /// Translates a truth: what is no comparison is compared with 0, or tested for existence.
    pub(super) fn condition(&mut self, it: &Expr) -> Coded<ValueCode> {
        match &it.kind {
            ExprKind::Binary(operator @ (Binary::And | Binary::Or), a, b) => {
                let level = rhai_level(*operator);
                let left = self.condition(a)?.at_least(level);
                let right = self.condition(b)?.at_least(level + 1);
                Ok(ValueCode::at(level, format!("{left} {} {right}", operator.text()), ValueKind::Bool))
            }
            ExprKind::Binary(operator, a, b) if operator.is_comparison() => self.comparison(*operator, a, b),
            ExprKind::Unary(Unary::Not, of) => {
                let code = self.condition(of)?;
                Ok(negated(&code))
            }
            ExprKind::Map { name, keys } if self.translator.facts.is_never_nothing(name) => {
                self.translator.read(name, &it.span)?;
                self.exists(name, keys, &it.span)
            }
            ExprKind::Int(number) => Ok(ValueCode::tight(if *number == 0 { "false" } else { "true" }, ValueKind::Bool)),
            ExprKind::Call { name, arguments } if name == "strncmp" => {
                Ok(negated(&self.same_beginning(arguments, it)?))
            }
            _ => {
                let code = self.value(it)?;
                let level = rhai_level(Binary::Unequal);
                let nothing = match code.kind {
                    ValueKind::Bool => return Ok(code),
                    kind if kind.is_text() => "\"\"",
                    ValueKind::Stack => "()",
                    _ => "0",
                };
                Ok(test(false, &code.at_least(level), nothing))
            }
        }
    }

    fn comparison(&mut self, operator: Binary, a: &Expr, b: &Expr) -> Coded<ValueCode> {
        let is_test = matches!(operator, Binary::Equal | Binary::Unequal);
        if is_test && is_nothing(b) {
            let is_text_test = matches!(&a.kind, ExprKind::Call { name, .. } if name == "strncmp");
            let is_element =
                matches!(&a.kind, ExprKind::Map { name, .. } if self.translator.facts.is_never_nothing(name));
            if is_text_test || is_element {
                let truth = self.condition(a)?;
                return Ok(if operator == Binary::Unequal { truth } else { negated(&truth) });
            }
        }
        let level = rhai_level(operator);
        let is_order = !is_test;
        let sign = |code: String| if is_order && code == "e.retval" { "e.retval.i64".to_owned() } else { code };
        let (left, right) = (sign(self.operand(a, level + 1)?), sign(self.operand(b, level + 1)?));
        Ok(match operator {
            Binary::Equal | Binary::Unequal => test(operator == Binary::Equal, &left, &right),
            _ => ValueCode::at(level, format!("{left} {} {right}", operator.text()), ValueKind::Bool),
        })
    }

    /// Writes `k in @m`.
    fn exists(&mut self, map: &str, keys: &[Expr], span: &Span) -> Coded<ValueCode> {
        let element = self.element(map, keys, span)?;
        Ok(existence(map, &element, key_parts(keys).len()))
    }

    /// Translates `strncmp(text, "beginning", n) == 0`.
    fn same_beginning(&mut self, arguments: &[Expr], it: &Expr) -> Coded<ValueCode> {
        let [a, b, length] = arguments else {
            return Err(refused(it, "`strncmp` takes two texts and a length"));
        };
        let (text, literal) = match (&a.kind, &b.kind) {
            (_, ExprKind::Text(literal)) => (a, literal),
            (ExprKind::Text(literal), _) => (b, literal),
            _ => return Err(refused(it, "one of the texts must be known")),
        };
        let length = facts::constant_value(length).and_then(|it| usize::try_from(it).ok());
        let Some(length) = length else {
            return Err(refused(it, "the length must be known"));
        };
        let code = self.value(text)?;
        Ok(match literal.get(..length) {
            Some(beginning) => {
                let text = format!("{}.starts_with({})", code.at_least(TIGHTEST), quoted(beginning));
                ValueCode::tight(text, ValueKind::Bool)
            }
            None => {
                let text = code.at_least(rhai_level(Binary::Equal) + 1);
                test(true, &text, &quoted(literal))
            }
        })
    }
}

/// Returns the parts of a key: of a tuple, its values.
fn key_parts(keys: &[Expr]) -> Vec<&Expr> {
    let parts = keys.iter().flat_map(|it| match &it.kind {
        ExprKind::Tuple(parts) => parts.iter().collect(),
        _ => vec![it],
    });
    parts.collect()
}

/// Writes whether an element of a map exists whose key has so many parts.
fn existence(map: &str, element: &str, parts: usize) -> ValueCode {
    let key = element.strip_prefix(&format!("@{map}[")).and_then(|it| it.strip_suffix(']'));
    match key {
        None => test(false, element, "()"),
        Some(key) if parts == 1 => ValueCode::at(level::IN, format!("{key} in @{map}"), ValueKind::Bool),
        Some(key) => ValueCode::at(level::IN, format!("[{key}] in @{map}"), ValueKind::Bool),
    }
}

/// Puts parentheses around what begins with a minus sign: a second one before it would make one word of both.
fn behind_minus(code: String) -> String {
    if code.starts_with('-') { format!("({code})") } else { code }
}

/// Writes an integer.
fn int(number: i64) -> ValueCode {
    let level = if number < 0 { level::UNARY } else { TIGHTEST };
    // The smallest integer cannot be written as a negated one.
    let text = if number == i64::MIN { "(-9223372036854775807 - 1)".into() } else { grouped(number) };
    ValueCode::at(level, text, ValueKind::Int)
}

/// Writes long numbers as the bundled scripts do: `1_000_000`.
fn grouped(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    if digits.len() < 6 || !digits.ends_with("000") {
        return number.to_string();
    }
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('_');
        }
        text.push(digit);
    }
    if number < 0 { format!("-{text}") } else { text }
}

/// Writes `a == b` and its opposite, or `a != b`.
fn test(is_equal: bool, left: &str, right: &str) -> ValueCode {
    let (operator, other) = if is_equal { ("==", "!=") } else { ("!=", "==") };
    let opposite = Some(format!("{left} {other} {right}"));
    ValueCode {
        opposite,
        ..ValueCode::at(rhai_level(Binary::Equal), format!("{left} {operator} {right}"), ValueKind::Bool)
    }
}

fn negated(code: &ValueCode) -> ValueCode {
    match &code.opposite {
        Some(text) => ValueCode { text: text.clone(), opposite: Some(code.text.clone()), ..code.clone() },
        None => {
            let text = format!("!{}", code.at_least(level::UNARY));
            let opposite = Some(code.at_least(level::UNARY));
            ValueCode { opposite, ..ValueCode::at(level::UNARY, text, ValueKind::Bool) }
        }
    }
}

/// Whether an expression is what bpftrace reads where an element doesn't exist.
fn is_nothing(it: &Expr) -> bool {
    facts::constant_value(it) == Some(0) || matches!(&it.kind, ExprKind::Text(text) if text.is_empty())
}

fn unknown_builtin(name: &str) -> String {
    match names::missing_builtin(name) {
        Some(because) => because.to_owned(),
        None => format!("`{name}` is not known"),
    }
}
