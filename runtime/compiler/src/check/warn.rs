//! Warnings about code that compiles but hardly means what it says.

use super::checker::Checker;
use crate::typed::{Expr, ExprKind, ValueSource};
use rhai::Position;
use xputrace_bytecode::insn::Cond;
use xputrace_bytecode::probe::pt_regs;
use xputrace_model::diagnostic::Diagnostic;
use xputrace_model::plan::ProbePlace;

impl Checker<'_> {
    /// Warns of `k.graph != 0`, which also holds if there is no graph.
    pub(super) fn warn_of_unequal_to_missing(&mut self, a: &Expr, b: &Expr) {
        for (field, other) in [(a, b), (b, a)] {
            let Some(source) = optional_field(field) else { continue };
            if matches!(other.kind, ExprKind::Missing) || other.ty.optional || self.there.contains(&source) {
                continue;
            }
            let label = self.label(field.at);
            self.error(
                Diagnostic::warning(
                    "unequal-to-missing",
                    "this field can be missing, and `()` differs from every value",
                    label,
                )
                .help("to skip missing values, write `x != () && x != …`")
                .help("to use a default, write `(x ?? 0) != …`"),
            );
        }
    }

    /// Warns of `e.retval < 0`, which never holds if the function returns an `int`.
    pub(super) fn warn_of_raw_sign(&mut self, cond: Cond, a: &Expr, b: &Expr) {
        for (value, other, flipped) in [(a, b, false), (b, a, true)] {
            if let ExprKind::Const(n) = other.kind
                && self.is_raw_return(value)
                && asks_for_sign(cond, flipped, n)
            {
                self.warn_of_raw_return(value);
            }
        }
    }

    /// Warns of `@x.sum(e.retval)`, which adds 2³² for each -1 of an `int`.
    pub(super) fn warn_of_raw_sum(&mut self, value: &Expr) {
        if self.is_raw_return(value) {
            self.warn_of_raw_return(value);
        }
    }

    /// Warns of `e.pid` at `sched:sched_wakeup`: that is who wakes, and the record names who is woken.
    pub(super) fn warn_of_the_running_thread(&mut self, name: &str, at: Position) {
        let ProbePlace::Tracepoint { category, name: tracepoint } = &self.handler.target else { return };
        let is_of_another = category == "sched" && OF_ANOTHER_THREAD.iter().any(|it| tracepoint.starts_with(it));
        let format = || self.catalog.tracepoint(category, tracepoint).ok();
        if !is_of_another || !format().is_some_and(|it| it.fields.iter().any(|it| it.name == name)) {
            return;
        }
        let message =
            format!("`{name}` is that of the running thread, and not of the one that `{tracepoint}` is about");
        let warning = Diagnostic::warning("running-thread", message, self.label(at));
        self.error(warning.help(format!("for the other, write `e.args.{name}`")));
    }

    /// Whether a value is the whole register of a return value.
    pub(super) fn is_raw_return(&self, value: &Expr) -> bool {
        match &value.kind {
            ExprKind::Source(ValueSource::Register(pt_regs::RETURN_VALUE)) => self.return_type().is_none(),
            ExprKind::Local(local) => self.raw_returns.contains(local),
            _ => false,
        }
    }

    pub(super) fn warn_of_no_integer(&mut self, at: Position) {
        let message = "the function returns no integer: this is the register in which one would be";
        let warning = Diagnostic::warning("no-integer-retval", message, self.label(at));
        self.error(warning.help("fractions and structures cannot be read"));
    }

    fn warn_of_raw_return(&mut self, value: &Expr) {
        let message = "this is the whole 64-bit register, in which the -1 of an `int` reads 4294967295";
        let label = self.label(value.at);
        self.error(
            Diagnostic::warning("raw-retval", message, label)
                .help("no debug information tells what the function returns")
                .help("if it returns `int`, write `e.retval.i32`, as in `e.retval.i32 < 0`")
                .help("if it returns `long`, `ssize_t` or a pointer, write `e.retval.i64`"),
        );
    }
}

/// Tracepoints of the scheduler whose record is about another thread than the running one.
const OF_ANOTHER_THREAD: &[&str] = &["sched_wak", "sched_migrate_task", "sched_stat_"];

/// Whether a comparison with `n` tests the sign.
fn asks_for_sign(cond: Cond, flipped: bool, n: i64) -> bool {
    match (cond, flipped) {
        (Cond::Slt | Cond::Sge, false) | (Cond::Sgt | Cond::Sle, true) => n <= 0,
        (Cond::Sle | Cond::Sgt, false) | (Cond::Sge | Cond::Slt, true) => n < 0,
        _ => n < 0,
    }
}

/// Returns the source of a field that may be missing.
fn optional_field(value: &Expr) -> Option<ValueSource> {
    match &value.kind {
        ExprKind::Source(source @ ValueSource::Flagged(..)) => Some(*source),
        ExprKind::Joined(inner) => match inner.kind {
            ExprKind::Source(source) => Some(source),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the fields that are present if a condition holds.
pub(super) fn found_there(condition: &Expr) -> Vec<ValueSource> {
    match &condition.kind {
        ExprKind::Not(inner) => match &inner.kind {
            ExprKind::IsMissing(field) => optional_field(field).into_iter().collect(),
            _ => Vec::new(),
        },
        ExprKind::And(parts) => parts.iter().flat_map(found_there).collect(),
        _ => Vec::new(),
    }
}
