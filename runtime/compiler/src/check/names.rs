//! What a name stands for: variables, captured values, the event.

use super::checker::{Binding, Checker};
use crate::typed::missing;
use crate::typed::{Base, Expr, ExprKind, Stmt, StmtKind, Type};
use rhai::{Expr as Syntax, Position};
use xputrace_model::diagnostic::{Diagnostic, nearest};
use xputrace_script::handler::Captured;
use xputrace_script::words;

impl Checker<'_> {
    pub(super) fn lookup_value(&mut self, name: &str, at: Position) -> Expr {
        match self.lookup(name) {
            Some(Binding::Local(local)) => Expr { kind: ExprKind::Local(local), ty: self.checked.locals[local], at },
            Some(Binding::Constant(value)) => self.captured(name, &value, at),
            Some(Binding::Event) => {
                let diagnostic =
                    Diagnostic::error("event-value", "the event cannot be used as a value", self.label(at))
                        .help(format!("read one of its fields, such as `{name}.time`"));
                self.poison(diagnostic, at)
            }
            None => self.unknown_variable(name, at),
        }
    }

    pub(super) fn is_event(&self, name: &str) -> bool {
        matches!(self.lookup(name), Some(Binding::Event))
    }

    pub(super) fn lookup(&self, name: &str) -> Option<Binding> {
        let bindings = self.scopes.iter().rev().flat_map(|scope| scope.iter().rev());
        bindings.into_iter().find(|it| it.0 == name).map(|it| it.1.clone())
    }

    pub(super) fn captured(&mut self, name: &str, value: &Captured, at: Position) -> Expr {
        let of = |base, n| Expr { kind: ExprKind::Const(n), ty: Type::of(base), at };
        match value {
            Captured::Int(n) => of(Base::Int, *n),
            Captured::Bool(b) => of(Base::Bool, i64::from(*b)),
            Captured::Str(text) => self.text_constant(text, at),
            Captured::Unit => missing(at),
            Captured::List(_) => {
                let help = format!("read an element, `{name}[i]`, or test for one: `x in {name}`");
                self.whole_value(&format!("`{name}` is a list"), &self.or_interpret(&help), at)
            }
            Captured::Object(_) => {
                let help = format!("read what it holds for a name: `{name}.part`, `{name}[e.comm]`");
                self.whole_value(&format!("`{name}` is a `#{{…}}`"), &self.or_interpret(&help), at)
            }
            Captured::Closure(_) => {
                let diagnostic = Diagnostic::error("function-value", format!("`{name}` is a function"), self.label(at))
                    .help(format!("call it: `{name}.call(…)`"));
                self.poison(diagnostic, at)
            }
            Captured::Probe(_) => {
                let diagnostic = Diagnostic::error("probe-value", format!("`{name}` is a probe"), self.label(at))
                    .help(format!("switch it: `{name}.enable()` or `{name}.disable()`, as a statement of its own"))
                    .help(format!("for a map, write `@{name}`"));
                self.poison(diagnostic, at)
            }
            Captured::Other(ty) => {
                let diagnostic = Diagnostic::error(
                    "captured-type",
                    format!("`{name}` is {ty}, which compiled handlers cannot use"),
                    self.label(at),
                )
                .help(self.or_interpret("use an integer, boolean or string"));
                self.poison(diagnostic, at)
            }
        }
    }

    /// Reports a value with parts where one of them is needed.
    fn whole_value(&mut self, message: &str, help: &str, at: Position) -> Expr {
        let diagnostic = Diagnostic::error("whole-value", message, self.label(at)).help(help);
        self.poison(diagnostic, at)
    }

    /// Adds to an advice that the interpreter knows more, for events whose handlers it can run.
    pub(super) fn or_interpret(&self, advice: &str) -> String {
        match words::can_be_interpreted(self.handler.event) {
            true => format!("{advice}, or wrap the handler in `interpret(…)`, which has all of Rhai"),
            false => advice.to_owned(),
        }
    }

    pub(super) fn unknown_variable(&mut self, name: &str, at: Position) -> Expr {
        let known: Vec<String> = self.scopes.iter().flatten().map(|it| it.0.clone()).collect();
        let mut diagnostic =
            Diagnostic::error("unknown-variable", format!("there is no variable `{name}`"), self.label(at));
        if let Some(near) = nearest(name, known.iter().map(String::as_str)) {
            diagnostic = diagnostic.help(format!("did you mean `{near}`?"));
        }
        let diagnostic = diagnostic.help(format!("for a map, write `@{name}`"));
        self.poison(diagnostic, at)
    }

    pub(super) fn declaration(&mut self, name: &str, value: &Syntax, at: Position) -> Option<Stmt> {
        if name.starts_with('_') {
            self.unsupported("a variable whose name starts with `_`", at, "choose another name");
            return None;
        }
        let value = self.expr(value);
        let local = self.checked.locals.len();
        self.note_context_word(local, &value);
        if self.is_raw_return(&value) {
            self.raw_returns.push(local);
        }
        self.checked.locals.push(value.ty);
        self.scopes.last_mut()?.push((name.into(), Binding::Local(local)));
        Some(Stmt { kind: StmtKind::Set(local, value), at })
    }
}
