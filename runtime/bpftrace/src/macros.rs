//! Replaces calls of macros by their bodies: `macro over($x, @m) { … }`.

use crate::facts;
use crate::parser::MOST_LEVELS as MOST_DEPTH;
use crate::tree::{Block, Expr, ExprKind, Item, Macro, Program, Span, Stmt, StmtKind};
use std::collections::{BTreeMap, BTreeSet};

/// Macros may call macros, this deeply.
const MOST_LEVELS: usize = 8;
/// Nodes that are put into a program: a macro that doubles its argument could otherwise grow without bounds.
const MOST_NODES: usize = 10_000;

const TOO_LARGE: &str = "its macros put too much in its place";

/// Replaces all calls of the program's macros. A call that has no value as one expression stays; one whose macros grow
/// too large becomes [`ExprKind::Opaque`].
pub(crate) fn expand(program: &mut Program) {
    let macros: BTreeMap<String, Macro> = program
        .items
        .iter()
        .filter_map(|it| match it {
            Item::Macro(it) => Some((it.name.clone(), it.clone())),
            _ => None,
        })
        .collect();
    let mut expansion = Expansion { macros, nodes: 0, variables: BTreeSet::new() };
    for item in &mut program.items {
        if let Item::Probe(probe) = item {
            expansion.variables = variables_of(&probe.body);
            if let Some(condition) = &mut probe.condition {
                expansion.expression(condition, Nesting::default());
            }
            expansion.block(&mut probe.body, Nesting::default());
        }
    }
}

/// Where a node is.
#[derive(Clone, Copy, Default)]
struct Nesting {
    /// Macros that it came from.
    macros: usize,
    /// Nodes above it.
    depth: usize,
}

impl Nesting {
    fn below(self) -> Self {
        Nesting { depth: self.depth + 1, ..self }
    }
}

struct Expansion {
    macros: BTreeMap<String, Macro>,
    /// Nodes that were put into the program so far.
    nodes: usize,
    /// Variables of the probe, with those that macros brought.
    variables: BTreeSet<String>,
}

impl Expansion {
    fn block(&mut self, block: &mut Block, place: Nesting) {
        for statement in &mut block.statements {
            for expression in statement.expressions_mut() {
                self.expression(expression, place.below());
            }
            for nested in statement.blocks_mut() {
                self.block(nested, place.below());
            }
            if let StmtKind::Expr(call) = &mut statement.kind
                && let Some(body) = self.body_of(call, place.below())
            {
                statement.kind = StmtKind::Block(body);
            }
        }
    }

    fn expression(&mut self, expression: &mut Expr, place: Nesting) {
        for part in expression.parts_mut() {
            self.expression(part, place.below());
        }
        let ExprKind::Call { name, .. } = &expression.kind else { return };
        let has_only_value = self.macros.get(name).is_some_and(|it| it.body.statements.is_empty());
        if has_only_value
            && let Some(body) = self.body_of(expression, place)
            && let Some(value) = body.value
        {
            *expression = *value;
        }
    }

    /// Returns a macro's body with the call's arguments; none if it is no call of a macro.
    fn body_of(&mut self, call: &mut Expr, place: Nesting) -> Option<Block> {
        let ExprKind::Call { name, arguments } = &call.kind else { return None };
        let called = self.macros.get(name)?;
        if called.parameters.len() != arguments.len() {
            return None;
        }
        let parameters: BTreeMap<_, _> = called.parameters.iter().map(String::as_str).zip(arguments).collect();
        let size = Size::of_body(&called.body, &parameters);
        let nodes = self.nodes.saturating_add(size.nodes);
        if place.macros == MOST_LEVELS || place.depth + size.depth > MOST_DEPTH || nodes > MOST_NODES {
            call.kind = ExprKind::Opaque(TOO_LARGE);
            return None;
        }
        self.nodes = nodes;
        let mut body = called.body.clone();
        let own = own_variables(called, &mut self.variables);
        Substitution { parameters, own, place: &call.span }.block(&mut body);
        let inside = Nesting { macros: place.macros + 1, ..place };
        self.block(&mut body, inside);
        if let Some(value) = &mut body.value {
            self.expression(value, inside.below());
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

/// How large a tree is.
#[derive(Clone, Copy, Default)]
struct Size {
    nodes: usize,
    depth: usize,
}

impl Size {
    /// Returns the size of a macro's body with its arguments.
    fn of_body(body: &Block, parameters: &BTreeMap<&str, &Expr>) -> Size {
        let none = BTreeMap::new();
        let arguments = parameters.iter().map(|(name, it)| (*name, Size::of(it, &none))).collect();
        Size::of_block(body, &arguments)
    }

    fn of_block(block: &Block, arguments: &BTreeMap<&str, Size>) -> Size {
        let mut below = Size::default();
        for statement in &block.statements {
            statement.expressions().into_iter().for_each(|it| below.add(Size::of(it, arguments)));
            statement.blocks().into_iter().for_each(|it| below.add(Size::of_block(it, arguments)));
        }
        block.value.iter().for_each(|it| below.add(Size::of(it, arguments)));
        below.with_parent()
    }

    fn of(expression: &Expr, arguments: &BTreeMap<&str, Size>) -> Size {
        let mut below = Size::default();
        expression.parts().into_iter().for_each(|it| below.add(Size::of(it, arguments)));
        if let Some(argument) = written(expression).and_then(|it| arguments.get(it.as_str())) {
            below.add(*argument);
        }
        below.with_parent()
    }

    /// Adds a tree beside this one.
    fn add(&mut self, beside: Size) {
        self.nodes = self.nodes.saturating_add(beside.nodes);
        self.depth = self.depth.max(beside.depth);
    }

    fn with_parent(self) -> Size {
        Size { nodes: self.nodes.saturating_add(1), depth: self.depth + 1 }
    }
}

/// Returns how an expression is written in a macro's list of parameters, if it can be.
fn written(expression: &Expr) -> Option<String> {
    match &expression.kind {
        ExprKind::Variable(name) => Some(format!("${name}")),
        ExprKind::Map { name, .. } => Some(format!("@{name}")),
        ExprKind::Name(name) => Some(name.clone()),
        _ => None,
    }
}

/// Returns the variables of a block, also of loops.
fn variables_of(block: &Block) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    facts::each_statement(block, &mut |it| {
        names.extend(loop_variable(&it.kind).cloned());
        facts::each_expression_of(it, &mut |it| names.extend(variable(it)));
    });
    block.value.iter().for_each(|it| facts::within(it, &mut |it| names.extend(variable(it))));
    names
}

fn variable(expression: &Expr) -> Option<String> {
    if let ExprKind::Variable(name) = &expression.kind { Some(name.clone()) } else { None }
}

fn loop_variable(statement: &StmtKind) -> Option<&String> {
    match statement {
        StmtKind::ForMap { row: name, .. } | StmtKind::ForRange { index: name, .. } => Some(name),
        _ => None,
    }
}

/// Names the variables that a macro brings itself: they are not the caller's of the same names.
fn own_variables(called: &Macro, taken: &mut BTreeSet<String>) -> BTreeMap<String, String> {
    let mut own = BTreeMap::new();
    for name in variables_of(&called.body) {
        if called.parameters.iter().any(|it| it.strip_prefix('$') == Some(&name)) {
            continue;
        }
        let numbered = (2..).map(|it| format!("{name}_{it}"));
        let free = std::iter::once(name.clone()).chain(numbered).find(|it| !taken.contains(it));
        let free = free.unwrap_or_else(|| name.clone());
        taken.insert(free.clone());
        own.insert(name, free);
    }
    own
}

/// Puts arguments in place of a macro's parameters, and the call's place in place of the macro's.
struct Substitution<'a> {
    parameters: BTreeMap<&'a str, &'a Expr>,
    /// New names of the macro's own variables.
    own: BTreeMap<String, String>,
    place: &'a Span,
}

impl Substitution<'_> {
    fn block(&self, block: &mut Block) {
        block.span = self.place.clone();
        for statement in &mut block.statements {
            statement.span = self.place.clone();
            if let StmtKind::ForMap { row: name, .. } | StmtKind::ForRange { index: name, .. } = &mut statement.kind
                && let Some(own) = self.own.get(name)
            {
                name.clone_from(own);
            }
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
        if let ExprKind::Variable(name) = &mut expression.kind
            && let Some(own) = self.own.get(name)
        {
            name.clone_from(own);
            return;
        }
        let Some(argument) = written(expression).and_then(|it| self.parameters.get(it.as_str())) else { return };
        let keys = match &mut expression.kind {
            ExprKind::Map { keys, .. } => std::mem::take(keys),
            _ => Vec::new(),
        };
        expression.kind = argument.kind.clone();
        if let ExprKind::Map { keys: of_argument, .. } = &mut expression.kind {
            of_argument.extend(keys);
        }
    }
}
