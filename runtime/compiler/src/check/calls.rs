//! Functions and methods of compiled handlers, and string matching.

use super::checker::Checker;
use super::exprs::is_poison;
use super::operators::negated;
use crate::typed::{Base, Expr, ExprKind, LocalId, Type, ValueSource, Where};
use rhai::{Expr as Syntax, FnCallExpr, Position};
use xputrace_bytecode::insn::Alu;
use xputrace_model::diagnostic::{Diagnostic, nearest};
use xputrace_model::plan::{ContextWord, LONGEST_TEXT, Place, TextRead};
use xputrace_script::{mistakes, words};

/// Maximum length of `str()` unless one is given.
const TEXT_BYTES: u32 = 128;
/// The functions available in compiled handlers.
const FUNCTIONS: &[&str] = &["print", "exit", "str", "min", "max", "abs"];

impl Checker<'_> {
    pub(super) fn value_method(&mut self, value: Expr, call: &FnCallExpr, at: Position) -> Expr {
        if value.ty.base == Base::Unknown {
            // A map with no assignment yet: the next round knows its type.
            return value;
        }
        match (&*call.name, call.args.len()) {
            (method, 1) if value.ty.base.is_string() && Where::of(method).is_some() => {
                let place = Where::of(method).unwrap_or(Where::Anywhere);
                self.matching(place, value, &call.args[0], at)
            }
            ("min" | "max", 1) => {
                let other = self.integer(&call.args[0]);
                self.pick(call.name == "max", value, other, at)
            }
            ("abs", 0) => self.absolute(value, at),
            ("str", 0) if value.ty.base.is_string() => value,
            ("pad", 1) => {
                let whole = "write it inside the printed string: `print(`${x.pad(8)}`)`";
                self.no_value("`.pad` outside a print", at, whole)
            }
            ("str", 0 | 1) if value.ty.base == Base::Int => self.user_text(value, call.args.first(), at),
            (name, _) if words::SWITCHING.contains(&name) => {
                let diagnostic = mistakes::no_probe(name, value.ty.base.noun(), self.label(at));
                self.poison(diagnostic, at)
            }
            (name, _) => {
                let diagnostic = Diagnostic::error(
                    "unknown-method",
                    format!("{} has no method `{name}`", value.ty.base.noun()),
                    self.label(at),
                );
                let help = match value.ty.base {
                    Base::Name | Base::Text(_) => &self
                        .or_interpret("a string has `contains(\"x\")`, `starts_with(\"x\")` and `ends_with(\"x\")`"),
                    Base::Stack => "a stack can be a part of a key, or be printed",
                    _ => "a number has `min(x)`, `max(x)`, `abs()` and, as an address, `str()`",
                };
                self.poison(diagnostic.help(help), at)
            }
        }
    }

    /// Checks whether a string contains a text at a place.
    pub(super) fn matching(&mut self, place: Where, value: Expr, wanted: &Syntax, at: Position) -> Expr {
        let wanted = self.expr(wanted);
        let of = |kind| Expr { kind, ty: Type::of(Base::Bool), at };
        match (&value.kind, wanted.kind) {
            _ if is_poison(&value) => value,
            (ExprKind::Literal(text), ExprKind::Literal(wanted)) => {
                of(ExprKind::Const(place.holds(text, &wanted).into()))
            }
            (_, ExprKind::Literal(_)) if value.ty.base == Base::Name && self.place == Place::Linux => {
                let message = "the text of this name is not known in Linux";
                let diagnostic = Diagnostic::error("name-as-text", message, self.label(value.at))
                    .help("compare the whole name with `==`, or probe fewer functions: `uprobe(\"libc:mem*\", …)`");
                self.poison(diagnostic, at)
            }
            (_, ExprKind::Literal(_)) if self.place == Place::Gpu => {
                let message = "device code does not know the text of a name: there, it is a number";
                let diagnostic = Diagnostic::error("not-in-device-code", message, self.label(value.at))
                    .help("compare the whole name with `==`, or choose kernels by the probe's pattern: `\"vector*\"`");
                self.poison(diagnostic, at)
            }
            (_, ExprKind::Literal(wanted)) => of(ExprKind::Match(place, Box::new(value), wanted)),
            _ => {
                let diagnostic = Diagnostic::error(
                    "not-constant",
                    "the text to search for must be known when the script is compiled",
                    self.label(wanted.at),
                )
                .help("use a quoted string, or a variable of the script's top level");
                self.poison(diagnostic, at)
            }
        }
    }

    pub(super) fn call(&mut self, call: &FnCallExpr, at: Position) -> Expr {
        if call.op_token.is_some() {
            return self.operator(call, at);
        }
        if let Some(value) = self.script_call(call, at) {
            return value;
        }
        match (&*call.name, &call.args[..]) {
            _ if !call.namespace.is_empty() => self.unknown_module_function(call, at),
            ("contains", [map, key]) => self.contains(map, key, at),
            ("!", [value]) => {
                let value = self.condition(value);
                negated(value, at)
            }
            ("min" | "max", [a, b]) => {
                let (a, b) = (self.integer(a), self.integer(b));
                self.pick(call.name == "max", a, b, at)
            }
            ("abs", [value]) => {
                let value = self.integer(value);
                self.absolute(value, at)
            }
            ("str", [value, bytes @ ..]) if bytes.len() < 2 => {
                let value = self.expr(value);
                match (value.ty.base.is_string(), bytes.first()) {
                    (true, None) => value,
                    (_, bytes) => self.user_text(value, bytes, at),
                }
            }
            ("print" | "exit", arguments) if arguments.len() < 2 => {
                self.no_value("the value of this call", at, "call it as a statement of its own")
            }
            (name, _) if FUNCTIONS.contains(&name) => {
                let diagnostic = Diagnostic::error(
                    "arguments",
                    format!("`{name}` does not take {} values", call.args.len()),
                    self.label(at),
                );
                self.poison(diagnostic, at)
            }
            (name, _) => {
                let name = words::as_written(name);
                let mut diagnostic = Diagnostic::error(
                    "unknown-function",
                    format!("`{name}` is not a function of compiled handlers"),
                    self.label(at),
                );
                if let Some(help) = words::elsewhere(name) {
                    return self.poison(diagnostic.help(help), at);
                }
                if words::declaring().any(|it| it == name) {
                    return self.poison(diagnostic.help("call it at the top level, outside of handlers"), at);
                }
                if let Some(near) = nearest(name, FUNCTIONS.iter().copied()) {
                    diagnostic = diagnostic.help(format!("did you mean `{near}`?"));
                }
                let diagnostic =
                    diagnostic.help(format!("available: {}, and functions of the script", FUNCTIONS.join(" ")));
                self.poison(diagnostic, at)
            }
        }
    }

    pub(super) fn unknown_module_function(&mut self, call: &FnCallExpr, at: Position) -> Expr {
        let name = format!("{}::{}", call.namespace, call.name);
        let diagnostic = Diagnostic::error(
            "unknown-function",
            format!("there is no function `{name}` with {} parameters", call.args.len()),
            self.label(at),
        );
        self.poison(diagnostic, at)
    }

    /// Returns the word of the probe's context that an address equals, or is a constant away from.
    pub(super) fn context_word(&self, address: &Expr) -> Option<ContextWord> {
        let word = |at: u32| Some(ContextWord { at, plus: 0 });
        match &address.kind {
            ExprKind::Source(ValueSource::Register(offset)) => word(u32::try_from(*offset).ok()?),
            ExprKind::Source(ValueSource::Record { offset, size: 8, .. }) => word(*offset),
            ExprKind::Local(local) => self.context_words.get(local).copied(),
            ExprKind::Binary(Alu::Add, a, b) => match (&a.kind, &b.kind) {
                (_, ExprKind::Const(n)) => {
                    self.context_word(a).map(|it| ContextWord { plus: it.plus.wrapping_add(*n), ..it })
                }
                (ExprKind::Const(n), _) => {
                    self.context_word(b).map(|it| ContextWord { plus: it.plus.wrapping_add(*n), ..it })
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Remembers a variable that holds a word of the context, until it is assigned again.
    pub(super) fn note_context_word(&mut self, local: LocalId, value: &Expr) {
        match self.context_word(value) {
            Some(word) => drop(self.context_words.insert(local, word)),
            None => drop(self.context_words.remove(&local)),
        }
    }

    /// Checks `str(address, bytes)`, or `address.str(bytes)`.
    fn user_text(&mut self, address: Expr, bytes: Option<&Syntax>, at: Position) -> Expr {
        let address = self.expect(address, Base::Int);
        if self.place != Place::Linux {
            let diagnostic = Diagnostic::error(
                "no-memory",
                "`str()` reads the target's memory, which only CPU probes can do",
                self.label(at),
            )
            .help("read it in a `uprobe` and pass it through a map");
            return self.poison(diagnostic, at);
        }
        let bytes = match bytes.map(|it| self.expr(it)) {
            None => TEXT_BYTES,
            Some(Expr { kind: ExprKind::Const(n), .. }) if (1..=i64::from(LONGEST_TEXT)).contains(&n) => n as u32,
            Some(other) => {
                let message = format!("the length of a string is a constant from 1 to {LONGEST_TEXT}");
                let diagnostic =
                    Diagnostic::error("arguments", message, self.label(other.at)).help("write `str(e.arg0, 64)`");
                return self.poison(diagnostic, at);
            }
        };
        self.checked
            .texts
            .push(TextRead { address: self.context_word(&address), site: self.staged.site(self.file, at) });
        Expr { kind: ExprKind::UserText(Box::new(address), bytes), ty: Type::of(Base::Text(bytes)).maybe(true), at }
    }
}
