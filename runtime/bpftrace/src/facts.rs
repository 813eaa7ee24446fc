//! What a program's maps and variables hold: found out before anything is translated, because here an element that
//! doesn't exist has no value, and a condition is no number.

use crate::tree::{Binary, Block, Expr, ExprKind, Item, Probe, Program, Stmt, StmtKind, Unary};
use std::collections::BTreeMap;

/// What an expression yields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ValueKind {
    #[default]
    Unknown,
    Int,
    /// A truth, which is an integer in bpftrace.
    Bool,
    /// A text that is known by a number here: a literal, a function's or a probe's name.
    Name,
    /// A text that is read at run time.
    Text,
    Stack,
    Tuple,
}

impl ValueKind {
    pub(crate) fn is_text(self) -> bool {
        matches!(self, ValueKind::Name | ValueKind::Text)
    }

    fn join(self, other: ValueKind) -> ValueKind {
        match (self, other) {
            (ValueKind::Unknown, it) | (it, ValueKind::Unknown) => it,
            (a, b) if a.is_text() && b.is_text() && a != b => ValueKind::Text,
            (a, _) => a,
        }
    }
}

/// Functions that aggregate, which are methods of maps here, by the same names.
pub(crate) const AGGREGATIONS: &[&str] = &["count", "sum", "min", "max", "avg", "stats", "hist", "lhist"];

/// What is known of a map.
#[derive(Clone, Debug, Default)]
pub(crate) struct MapFacts {
    pub(crate) kind: ValueKind,
    /// The function that it is updated by, if it is an aggregation.
    pub(crate) aggregation: Option<String>,
    /// Whether 0 or an empty text may be stored, which bpftrace can't tell from nothing.
    may_hold_nothing: bool,
}

/// A variable belongs to a probe, by the probe's number.
type VariableKey = (usize, String);

/// What is known of a program's maps and variables.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    maps: BTreeMap<String, MapFacts>,
    variables: BTreeMap<VariableKey, ValueKind>,
    /// The script's parameters that are read as text.
    pub(crate) text_parameters: Vec<u32>,
}

impl Facts {
    /// Reads the assignments of a program, until nothing new is found.
    pub(crate) fn of(program: &Program) -> Facts {
        let mut facts = Facts::default();
        let probes = || {
            program.items.iter().enumerate().filter_map(|(at, it)| match it {
                Item::Probe(probe) => Some((at, probe)),
                _ => None,
            })
        };
        // An assignment from a variable is known once that variable's is.
        for _ in 0..4 {
            for (at, probe) in probes() {
                facts.assignments(at, &probe.body);
            }
        }
        for (_, probe) in probes() {
            each_expression(probe, &mut |it| facts.note_parameter(it));
        }
        facts
    }

    pub(crate) fn map(&self, name: &str) -> MapFacts {
        self.maps.get(name).cloned().unwrap_or_default()
    }

    /// Whether the program stores anything in a map.
    pub(crate) fn is_filled(&self, map: &str) -> bool {
        self.maps.contains_key(map)
    }

    /// Whether each value that is stored in the map is true in a condition.
    pub(crate) fn is_never_nothing(&self, map: &str) -> bool {
        self.maps.get(map).is_some_and(|it| !it.may_hold_nothing && it.aggregation.is_none())
    }

    pub(crate) fn variable(&self, probe: usize, name: &str) -> ValueKind {
        self.variables.get(&(probe, name.to_owned())).copied().unwrap_or_default()
    }

    /// Returns what an expression of a probe yields.
    pub(crate) fn kind(&self, probe: usize, expression: &Expr) -> ValueKind {
        match &expression.kind {
            ExprKind::Int(_) | ExprKind::Cast { .. } | ExprKind::PositionalCount => ValueKind::Int,
            ExprKind::Positional(_) | ExprKind::Increment { .. } => ValueKind::Int,
            ExprKind::Text(_) => ValueKind::Name,
            ExprKind::Variable(name) => self.variable(probe, name),
            ExprKind::Map { name, .. } => match self.maps.get(name) {
                Some(map) if map.aggregation.is_some() => ValueKind::Int,
                Some(map) => map.kind,
                None => ValueKind::Unknown,
            },
            ExprKind::Name(name) => match name.as_str() {
                "comm" => ValueKind::Text,
                "func" | "probe" => ValueKind::Name,
                "ustack" | "kstack" => ValueKind::Stack,
                _ => ValueKind::Int,
            },
            ExprKind::Call { name, .. } => match name.as_str() {
                "str" | "kstr" | "strftime" => ValueKind::Text,
                "ustack" | "kstack" => ValueKind::Stack,
                "strncmp" | "strcontains" | "has_key" => ValueKind::Bool,
                _ => ValueKind::Int,
            },
            ExprKind::Field { of, name } => match of.kind {
                ExprKind::Name(ref args) if args == "args" => field_kind(name),
                _ => ValueKind::Unknown,
            },
            ExprKind::Unary(Unary::Not, _) => ValueKind::Bool,
            ExprKind::Unary(..) => ValueKind::Int,
            ExprKind::Binary(operator, ..) if operator.is_comparison() => ValueKind::Bool,
            ExprKind::Binary(..) => ValueKind::Int,
            ExprKind::Choice { then, otherwise, .. } => {
                let then = then.as_ref().map_or(ValueKind::Unknown, |it| self.kind(probe, it));
                then.join(self.kind(probe, otherwise))
            }
            ExprKind::Tuple(_) => ValueKind::Tuple,
            ExprKind::Index { .. } | ExprKind::Block | ExprKind::Opaque(_) => ValueKind::Unknown,
        }
    }

    fn assignments(&mut self, probe: usize, block: &Block) {
        each_statement(block, &mut |statement| match &statement.kind {
            StmtKind::Assign { target, operator: None, value } => self.assignment(probe, target, value),
            StmtKind::Assign { target, operator: Some(_), .. } => self.adds(probe, target),
            StmtKind::Expr(Expr { kind: ExprKind::Increment { target, .. }, .. }) => self.adds(probe, target),
            StmtKind::ForRange { index, .. } => self.assign(probe, index, ValueKind::Int),
            _ => {}
        });
    }

    fn assign(&mut self, probe: usize, variable: &str, kind: ValueKind) {
        let known = self.variables.entry((probe, variable.to_owned())).or_default();
        *known = known.join(kind);
    }

    fn assignment(&mut self, probe: usize, target: &Expr, value: &Expr) {
        let kind = match self.kind(probe, value) {
            ValueKind::Bool => ValueKind::Int,
            it => it,
        };
        let is_something = self.is_something(value);
        match &target.kind {
            ExprKind::Variable(name) => self.assign(probe, name, kind),
            ExprKind::Map { name, .. } => {
                let map = self.maps.entry(name.clone()).or_default();
                match aggregation(value) {
                    Some(method) => map.aggregation = Some(method.to_owned()),
                    None => {
                        map.kind = map.kind.join(kind);
                        map.may_hold_nothing |= !is_something;
                    }
                }
            }
            _ => {}
        }
    }

    fn adds(&mut self, probe: usize, target: &Expr) {
        match &target.kind {
            ExprKind::Variable(name) => self.assign(probe, name, ValueKind::Int),
            ExprKind::Map { name, .. } => {
                let map = self.maps.entry(name.clone()).or_default();
                map.kind = map.kind.join(ValueKind::Int);
                map.may_hold_nothing = true;
            }
            _ => {}
        }
    }

    /// Whether a value is surely true in a condition.
    fn is_something(&self, value: &Expr) -> bool {
        match &value.kind {
            ExprKind::Int(it) => *it != 0,
            ExprKind::Text(it) => !it.is_empty(),
            ExprKind::Name(name) => {
                matches!(name.as_str(), "nsecs" | "comm" | "func" | "probe" | "ustack" | "kstack")
            }
            ExprKind::Call { name, .. } => matches!(name.as_str(), "ustack" | "kstack"),
            _ => false,
        }
    }

    fn note_parameter(&mut self, expression: &Expr) {
        if let ExprKind::Call { name, arguments } = &expression.kind
            && name == "str"
            && let Some(Expr { kind: ExprKind::Positional(number), .. }) = arguments.first()
            && !self.text_parameters.contains(number)
        {
            self.text_parameters.push(*number);
        }
    }
}

/// Returns the aggregation that a value stands for: `count()`.
pub(crate) fn aggregation(value: &Expr) -> Option<&str> {
    match &value.kind {
        ExprKind::Call { name, .. } => AGGREGATIONS.iter().find(|it| *it == name).copied(),
        _ => None,
    }
}

/// Whether it is a field of a tracepoint's `args`.
pub(crate) fn is_argument(of: &Expr) -> bool {
    matches!(&of.kind, ExprKind::Field { of, .. } if matches!(&of.kind, ExprKind::Name(it) if it == "args"))
}

/// Guesses what a tracepoint's field holds: names are texts, except for the addresses that system calls take.
fn field_kind(name: &str) -> ValueKind {
    match name.ends_with("comm") || matches!(name, "name" | "rwbs" | "devname" | "driver" | "reason_str") {
        true => ValueKind::Text,
        false => ValueKind::Int,
    }
}

/// Calls a function for each statement of a block, also for nested ones.
pub(crate) fn each_statement(block: &Block, see: &mut dyn FnMut(&Stmt)) {
    for statement in &block.statements {
        see(statement);
        for nested in statement.blocks() {
            each_statement(nested, see);
        }
    }
}

/// Calls a function for each expression of a probe, also for nested ones.
fn each_expression(probe: &Probe, see: &mut dyn FnMut(&Expr)) {
    if let Some(condition) = &probe.condition {
        within(condition, see);
    }
    for statement in &probe.body.statements {
        each_expression_of(statement, see);
    }
}

/// Calls a function for each expression of a statement, also for nested ones.
pub(crate) fn each_expression_of(statement: &Stmt, see: &mut dyn FnMut(&Expr)) {
    for expression in statement.expressions() {
        within(expression, see);
    }
    for nested in statement.blocks().into_iter().flat_map(|it| &it.statements) {
        each_expression_of(nested, see);
    }
}

/// Calls a function for an expression, and for each within it.
pub(crate) fn within(expression: &Expr, see: &mut dyn FnMut(&Expr)) {
    see(expression);
    for part in expression.parts() {
        within(part, see);
    }
}

/// Returns the value of an expression of numbers alone.
pub(crate) fn constant_value(expression: &Expr) -> Option<i64> {
    match &expression.kind {
        ExprKind::Int(it) => Some(*it),
        ExprKind::Unary(Unary::Minus, it) => constant_value(it).map(i64::wrapping_neg),
        ExprKind::Binary(operator, a, b) => {
            let (a, b) = (constant_value(a)?, constant_value(b)?);
            match operator {
                Binary::Add => Some(a.wrapping_add(b)),
                Binary::Subtract => Some(a.wrapping_sub(b)),
                Binary::Multiply => Some(a.wrapping_mul(b)),
                Binary::ShiftLeft => u32::try_from(b).ok().and_then(|it| a.checked_shl(it)),
                _ => None,
            }
        }
        _ => None,
    }
}
