//! The parameters of CUDA's calls: which of those that a pattern matches have one of a name.

use super::checker::Checker;
use crate::typed::{Base, Expr, ExprKind, Type, ValueSource, missing};
use rhai::Position;
use xputrace_model::api::{ApiFunction, FunctionId, Functions, Parameter, ParameterKind};
use xputrace_model::context::{MOST_ARGUMENTS, word};
use xputrace_model::diagnostic::{Diagnostic, Label};
use xputrace_model::plan::ProbePlace;
use xputrace_script::mistakes::no_field;

/// Why a parameter cannot be read.
pub(crate) enum Problem {
    /// None of the calls has it; these are those that they have.
    Unknown(Vec<&'static str>),
    /// It is no integer there.
    NoInteger { function: &'static str, what: &'static str },
}

impl Problem {
    pub(crate) fn diagnostic(self, name: &str, label: Label) -> Diagnostic {
        match self {
            Problem::Unknown(known) if known.is_empty() => {
                let message = format!("the call has no parameter `{name}`: it has none, or none that is known");
                Diagnostic::error("unknown-field", message, label)
            }
            Problem::Unknown(known) => no_field("the call's `args`", name, &known, label),
            Problem::NoInteger { function, what } => {
                Diagnostic::error("argument-type", format!("`{name}` of `{function}` is {what}"), label)
                    .help("integers, enumerations and addresses can be read")
            }
        }
    }
}

/// Whether all of these calls have the parameter.
///
/// # Errors
/// None has it, or it is no integer in one of them.
pub(crate) fn in_all(functions: &Functions, name: &str) -> Result<bool, Problem> {
    let each = || functions.iter().filter_map(FunctionId::function);
    let named = |it: &&'static ApiFunction| it.parameter(name).map(|parameter| (it.name(), parameter));
    let unreadable = |(_, it): &(&str, &Parameter)| !it.is_integer();
    if let Some((function, parameter)) = each().filter_map(|it| named(&it)).find(unreadable) {
        let what = match parameter.kind {
            ParameterKind::Float(_) => "a floating-point number",
            _ => "a structure, passed by value",
        };
        return Err(Problem::NoInteger { function, what });
    }
    match each().filter(|it| named(it).is_some()).count() {
        0 => {
            let mut known: Vec<&str> = each().flat_map(|it| it.parameters).map(|it| it.name).collect();
            known.sort_unstable();
            known.dedup();
            Err(Problem::Unknown(known))
        }
        n => Ok(n == functions.iter().count()),
    }
}

/// More than so many parameters cannot be read by one handler.
pub(crate) fn too_many(label: Label) -> Diagnostic {
    let message = format!("a handler can read {MOST_ARGUMENTS} parameters, and this is one more");
    Diagnostic::error("too-many-arguments", message, label).help("write a handler of its own for some of the calls")
}

impl Checker<'_> {
    /// Checks `a.args.NAME`.
    pub(super) fn argument(&mut self, at: Position, name: Option<(&str, Position)>) -> Expr {
        let Some((name, name_at)) = name else {
            let diagnostic = Diagnostic::error("args-value", "`.args` cannot be used as a value", self.label(at))
                .help("read one of the parameters, such as `.args.size`");
            return self.poison(diagnostic, at);
        };
        let ProbePlace::Api(functions) = &self.handler.target else { return missing(name_at) };
        let in_all = match in_all(functions, name) {
            Ok(in_all) => in_all,
            Err(problem) => {
                let diagnostic = problem.diagnostic(name, self.label(name_at));
                return self.poison(diagnostic, name_at);
            }
        };
        let slot = self.scan.arguments.iter().position(|it| it.0 == name).unwrap_or(MOST_ARGUMENTS);
        if slot >= MOST_ARGUMENTS {
            let diagnostic = too_many(self.label(name_at));
            return self.poison(diagnostic, name_at);
        }
        let value = word::call::ARGUMENT + slot;
        let (source, ty) = match in_all {
            true => (ValueSource::Word(value), Type::of(Base::Int)),
            false => (ValueSource::Flagged(word::call::HAS_ARGUMENT + slot, value), Type::of(Base::Int).maybe(true)),
        };
        Expr { kind: ExprKind::Source(source), ty, at: name_at }
    }
}
