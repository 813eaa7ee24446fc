//! Replaces calls of macros by their bodies: `macro over($x, @m) { … }`.

use crate::tree::{Block, Expr, ExprKind, Item, Macro, Program, Span, Stmt, StmtKind};
use std::collections::BTreeMap;

/// Macros may call macros, this deeply.
const MOST_LEVELS: usize = 8;
/// Calls that are replaced in a program: a macro that doubles its argument could otherwise grow without bounds.
const MOST_CALLS: usize = 1000;

/// Replaces all calls of the program's macros. A call that has no value as one expression stays.
pub(crate) fn expand(program: &mut Program) {
    let macros: BTreeMap<String, Macro> = program
        .items
        .iter()
        .filter_map(|it| match it {
            Item::Macro(it) => Some((it.name.clone(), it.clone())),
            _ => None,
        })
        .collect();
    let mut expansion = Expansion { macros, calls: 0 };
    for item in &mut program.items {
        if let Item::Probe(probe) = item {
            if let Some(condition) = &mut probe.condition {
                expansion.expression(condition, 0);
            }
            expansion.block(&mut probe.body, 0);
        }
    }
}

struct Expansion {
    macros: BTreeMap<String, Macro>,
    calls: usize,
}

impl Expansion {
    fn block(&mut self, block: &mut Block, level: usize) {
        for statement in &mut block.statements {
            for expression in statement.expressions_mut() {
                self.expression(expression, level);
            }
            for nested in statement.blocks_mut() {
                self.block(nested, level);
            }
            if let StmtKind::Expr(call) = &statement.kind
                && let Some(body) = self.body_of(call, level)
            {
                statement.kind = StmtKind::Block(body);
            }
        }
    }

    fn expression(&mut self, expression: &mut Expr, level: usize) {
        for part in expression.parts_mut() {
            self.expression(part, level);
        }
        let ExprKind::Call { name, .. } = &expression.kind else { return };
        let has_only_value = self.macros.get(name).is_some_and(|it| it.body.statements.is_empty());
        if has_only_value
            && let Some(body) = self.body_of(expression, level)
            && let Some(value) = body.value
        {
            *expression = *value;
        }
    }

    /// Returns a macro's body with the call's arguments; none if it is no call of a macro.
    fn body_of(&mut self, call: &Expr, level: usize) -> Option<Block> {
        let ExprKind::Call { name, arguments } = &call.kind else { return None };
        let called = self.macros.get(name)?;
        if level == MOST_LEVELS || self.calls == MOST_CALLS || called.parameters.len() != arguments.len() {
            return None;
        }
        self.calls += 1;
        let parameters = called.parameters.iter().map(String::as_str).zip(arguments).collect();
        let mut body = called.body.clone();
        Substitution { parameters, place: &call.span }.block(&mut body);
        self.block(&mut body, level + 1);
        if let Some(value) = &mut body.value {
            self.expression(value, level + 1);
        }
        // As a statement, a value is an expression like others.
        if !body.statements.is_empty()
            && let Some(value) = body.value.take()
        {
            body.statements.push(Stmt { span: call.span.clone(), kind: StmtKind::Expr(*value) });
        }
        Some(body)
    }
}

/// Puts arguments in place of a macro's parameters, and the call's place in place of the macro's.
struct Substitution<'a> {
    parameters: BTreeMap<&'a str, &'a Expr>,
    place: &'a Span,
}

impl Substitution<'_> {
    fn block(&self, block: &mut Block) {
        block.span = self.place.clone();
        for statement in &mut block.statements {
            statement.span = self.place.clone();
            for expression in statement.expressions_mut() {
                self.expression(expression);
            }
            for nested in statement.blocks_mut() {
                self.block(nested);
            }
        }
        if let Some(value) = &mut block.value {
            self.expression(value);
        }
    }

    fn expression(&self, expression: &mut Expr) {
        expression.span = self.place.clone();
        for part in expression.parts_mut() {
            self.expression(part);
        }
        let (written, keys) = match &mut expression.kind {
            ExprKind::Variable(name) => (format!("${name}"), Vec::new()),
            ExprKind::Map { name, keys } => (format!("@{name}"), std::mem::take(keys)),
            ExprKind::Name(name) => (name.clone(), Vec::new()),
            _ => return,
        };
        match self.parameters.get(written.as_str()) {
            Some(argument) => {
                expression.kind = argument.kind.clone();
                if let ExprKind::Map { keys: of_argument, .. } = &mut expression.kind {
                    of_argument.extend(keys);
                }
            }
            None => {
                if let ExprKind::Map { keys: of_map, .. } = &mut expression.kind {
                    *of_map = keys;
                }
            }
        }
    }
}
