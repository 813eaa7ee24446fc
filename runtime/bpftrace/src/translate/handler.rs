//! Translates the statements of one handler.

use super::expression::ADDITION;
use super::{Coded, Refused, Translator};
use crate::facts::{self, ValueKind};
use crate::layout::Piece;
use crate::names::Named;
use crate::target::{AttachPoint, Event};
use crate::tree::{Binary, Block, Expr, ExprKind, Probe, Span, Stmt, StmtKind};
use std::collections::BTreeMap;

/// A loop that is compiled runs at most this often.
const MOST_ITERATIONS: i64 = 64;

/// A variable of a handler.
#[derive(Clone, Debug)]
pub(super) enum Variable {
    /// Declared, in this block or one around it.
    Declared,
    /// The row of a loop over a map.
    Row,
    /// Its value has no translation.
    Unknown,
}

pub(super) struct Handler<'h, 't> {
    pub(super) translator: &'h mut Translator<'t>,
    /// The number of the probe among the program's items.
    pub(super) probe: usize,
    pub(super) event: Event,
    /// Whether it is at all functions of a pattern.
    pub(super) is_at_pattern: bool,
    pub(super) variables: BTreeMap<String, Variable>,
    /// Elements that exist here for sure, as they are written.
    pub(super) present: Vec<String>,
    /// Differences to say before the statement that is being translated.
    pub(super) differences: Vec<String>,
}

impl<'h, 't> Handler<'h, 't> {
    pub(super) fn new(translator: &'h mut Translator<'t>, probe: usize, event: Event, targets: &[AttachPoint]) -> Self {
        let is_at_pattern =
            matches!(event, Event::Uprobe | Event::Uretprobe) && targets.iter().any(|it| it.place.contains(['*', '?']));
        Handler {
            translator,
            probe,
            event,
            is_at_pattern,
            variables: BTreeMap::new(),
            present: Vec::new(),
            differences: Vec::new(),
        }
    }

    /// Translates condition and body.
    ///
    /// # Errors
    /// The condition has no translation.
    pub(super) fn body(mut self, probe: &Probe) -> Coded<Vec<Piece>> {
        let Some(condition) = &probe.condition else {
            return Ok(self.block(&probe.body));
        };
        let code = self.condition(condition)?.text;
        let mut pieces = Vec::new();
        self.say_differences(&mut pieces);
        self.learn(condition);
        let body = self.block(&probe.body);
        match body.iter().any(Piece::is_code) {
            true => pieces.push(Piece::Blocks(vec![(format!("if {code}"), body)])),
            false => pieces.extend(body),
        }
        Ok(pieces)
    }

    /// Translates a block. What it declares, and what exists in it, is forgotten behind it.
    fn block(&mut self, block: &Block) -> Vec<Piece> {
        let outside = (self.variables.clone(), self.present.clone());
        self.translator.enter(block.span.start + 1);
        let mut pieces = self.hoisted(block);
        let mut at = 0;
        while at < block.statements.len() {
            let statement = &block.statements[at];
            self.translator.come_to(statement.span.start, &mut pieces);
            at += self.statements(&block.statements[at..], &mut pieces).max(1);
            let last = &block.statements[at - 1];
            let end = self.behind(&last.span);
            self.translator.leave(&end);
        }
        self.translator.come_to(block.span.end.saturating_sub(1), &mut pieces);
        let (variables, present) = outside;
        let unknown: Vec<String> = self.unknown().filter(|it| variables.contains_key(*it)).cloned().collect();
        self.variables = variables;
        self.variables.extend(unknown.into_iter().map(|it| (it, Variable::Unknown)));
        // What was removed in the block is gone behind it.
        self.present = present.into_iter().filter(|it| self.present.contains(it)).collect();
        pieces
    }

    fn unknown(&self) -> impl Iterator<Item = &String> {
        self.variables.iter().filter(|it| matches!(it.1, Variable::Unknown)).map(|it| it.0)
    }

    /// Returns a statement's place with the semicolon behind it.
    fn behind(&self, span: &Span) -> Span {
        let rest = &self.translator.text[span.end..];
        let blanks = rest.len() - rest.trim_start().len();
        if rest[blanks..].starts_with(';') { span.start..span.end + blanks + 1 } else { span.clone() }
    }

    /// Declares variables at the beginning of a block that are first assigned in a block within, and used behind it:
    /// bpftrace's variables belonged to the whole probe.
    fn hoisted(&mut self, block: &Block) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for name in assigned_within(block) {
            let first = block.statements.iter().position(|it| mentions(it, &name));
            let is_nested = first.is_some_and(|it| !assigns_directly(&block.statements[it], &name));
            let uses = block.statements.iter().filter(|it| mentions(it, &name)).count();
            if is_nested && uses > 1 && !self.variables.contains_key(&name) {
                let nothing = match self.translator.facts.variable(self.probe, &name) {
                    ValueKind::Int | ValueKind::Unknown | ValueKind::Bool => "0",
                    ValueKind::Name => "\"\"",
                    // Texts that are read, stacks and tuples have no such value.
                    ValueKind::Text | ValueKind::Stack | ValueKind::Tuple => continue,
                };
                pieces.push(Piece::Line(format!("let {} = {nothing};", self.variable_name(&name))));
                self.variables.insert(name, Variable::Declared);
            }
        }
        pieces
    }

    /// Translates the first statements; returns how many it took.
    fn statements(&mut self, statements: &[Stmt], pieces: &mut Vec<Piece>) -> usize {
        let untranslated = self.translator.untranslated.len();
        let result = match self.printed(statements, pieces) {
            Ok(0) => self.statement(&statements[0]),
            Ok(printed) => return printed,
            Err(refused) => Err(refused),
        };
        match result {
            Ok(code) => {
                self.say_differences(pieces);
                pieces.extend(code);
            }
            Err(refused) => {
                self.differences.clear();
                self.translator.untranslated.truncate(untranslated);
                self.forget(&statements[0]);
                let whole = Refused { span: statements[0].span.clone(), ..refused };
                self.translator.refuse(whole, pieces);
            }
        }
        1
    }

    pub(super) fn say_differences(&mut self, pieces: &mut Vec<Piece>) {
        for it in std::mem::take(&mut self.differences) {
            pieces.push(Piece::Comment(format!("differs: {it}")));
        }
    }

    /// Notes that variables which a statement would have assigned have no value.
    fn forget(&mut self, statement: &Stmt) {
        let block = Block { statements: vec![statement.clone()], ..Block::default() };
        facts::each_statement(&block, &mut |it| {
            if let Some(name) = assigned(it) {
                self.variables.insert(name.to_owned(), Variable::Unknown);
            }
        });
    }

    fn statement(&mut self, statement: &Stmt) -> Coded<Vec<Piece>> {
        let line = |code: String| Ok(vec![Piece::Line(format!("{code};"))]);
        match &statement.kind {
            StmtKind::Expr(it) => self.expression_statement(it).map(|it| vec![Piece::Line(it + ";")]),
            StmtKind::Assign { target, operator, value } => line(self.assignment(target, *operator, value)?),
            // It is declared where it gets a value.
            StmtKind::Let => Ok(Vec::new()),
            StmtKind::If { condition, then, otherwise } => self.if_(condition, then, otherwise.as_ref()),
            StmtKind::Unroll { times, body } => self.unroll(times, body),
            StmtKind::While { condition, body } => self.while_(condition, body, &statement.span),
            StmtKind::ForMap { row, map, body } => self.for_map(row, map, body),
            StmtKind::ForRange { index, start, end, body } => self.for_range(index, start, end, body),
            StmtKind::Break => line("break".into()),
            StmtKind::Continue => line("continue".into()),
            StmtKind::Return => line("return".into()),
            StmtKind::Block(it) => Ok(self.block(it)),
        }
    }

    fn if_(&mut self, condition: &Expr, then: &Block, otherwise: Option<&Block>) -> Coded<Vec<Piece>> {
        let head = format!("if {}", self.condition(condition)?.text);
        let mut parts = Vec::new();
        let mut pieces = Vec::new();
        self.say_differences(&mut pieces);
        let before = self.present.clone();
        self.learn(condition);
        parts.push((head, self.block(then)));
        self.present.retain(|it| before.contains(it));
        if let Some(block) = otherwise {
            let body = self.block(block);
            match &body[..] {
                [Piece::Blocks(nested)] if is_else_if(block) => {
                    let mut nested = nested.clone();
                    nested[0].0.insert_str(0, "else ");
                    parts.extend(nested);
                }
                _ => parts.push(("else".into(), body)),
            }
        }
        pieces.push(Piece::Blocks(parts));
        Ok(pieces)
    }

    fn unroll(&mut self, times: &Expr, body: &Block) -> Coded<Vec<Piece>> {
        let count = self.bound(times)?;
        let wanted = self.free_name("i");
        let index = self.translator.name(Named::Index, &wanted);
        self.present.clear();
        let body = self.block(body);
        Ok(vec![Piece::Blocks(vec![(format!("for {index} in 0..{count}"), body)])])
    }

    fn for_range(&mut self, index: &str, start: &Expr, end: &Expr, body: &Block) -> Coded<Vec<Piece>> {
        let (start, end) = (self.bound(start)?, self.bound(end)?);
        self.present.clear();
        let body = self.block_with(index, Variable::Declared, body);
        let head = format!("for {} in {start}..{end}", self.variable_name(index));
        Ok(vec![Piece::Blocks(vec![(head, body)])])
    }

    /// Translates the body of a loop, which has a variable of its own.
    fn block_with(&mut self, name: &str, variable: Variable, body: &Block) -> Vec<Piece> {
        let outside = self.variables.insert(name.to_owned(), variable);
        let body = self.block(body);
        match outside {
            Some(it) => self.variables.insert(name.to_owned(), it),
            None => self.variables.remove(name),
        };
        body
    }

    /// Translates a bound of a loop, which is constant in a compiled handler.
    fn bound(&mut self, bound: &Expr) -> Coded<String> {
        match facts::constant_value(bound) {
            Some(it) if self.event.is_interpreted() || (0..=MOST_ITERATIONS).contains(&it) => Ok(it.to_string()),
            None if self.event.is_interpreted() => Ok(self.operand(bound, ADDITION)?),
            _ => Err(refused(bound, "a compiled loop has constant bounds, and at most 64 iterations")),
        }
    }

    fn while_(&mut self, condition: &Expr, body: &Block, span: &Span) -> Coded<Vec<Piece>> {
        if !self.event.is_interpreted() {
            let because = "a loop without a bound cannot be compiled; write `for i in 0..64`".to_owned();
            return Err(Refused { span: span.clone(), because });
        }
        // What the body removes is gone when the condition is tested again.
        self.present.clear();
        let head = format!("while {}", self.condition(condition)?.text);
        let body = self.block(body);
        Ok(vec![Piece::Blocks(vec![(head, body)])])
    }

    fn for_map(&mut self, row: &str, map: &Expr, body: &Block) -> Coded<Vec<Piece>> {
        let ExprKind::Map { name, keys } = &map.kind else {
            return Err(refused(map, "only maps have elements"));
        };
        if !self.event.is_interpreted() || !keys.is_empty() {
            return Err(refused(map, "only `interval`, `begin` and `end` can go over a map"));
        }
        self.translator.read(name, &map.span)?;
        self.present.clear();
        let body = self.block_with(row, Variable::Row, body);
        let head = format!("for {} in @{name}", self.variable_name(row));
        Ok(vec![Piece::Blocks(vec![(head, body)])])
    }

    fn assignment(&mut self, target: &Expr, operator: Option<Binary>, value: &Expr) -> Coded<String> {
        match &target.kind {
            ExprKind::Variable(name) => self.assign_variable(name, operator, target, value),
            ExprKind::Map { name, keys } => self.assign_element(name, keys, operator, target, value),
            ExprKind::Name(name) if name == "_" => self.expression_statement(value),
            _ => Err(refused(target, "only variables and maps can be assigned")),
        }
    }

    fn assign_variable(&mut self, name: &str, operator: Option<Binary>, target: &Expr, value: &Expr) -> Coded<String> {
        let here = self.variable_name(name);
        if let Some(operator) = operator {
            self.variable(name, &target.span)?;
            let value = self.number(value)?.text;
            self.assigned(&here);
            return Ok(format!("{here} {}= {value}", operator.text()));
        }
        let value_code = self.number(value)?;
        let kind = self.translator.facts.variable(self.probe, name);
        if kind == ValueKind::Text && value_code.kind == ValueKind::Name {
            return Err(refused(value, &format!("`${name}` holds texts that are read at run time, not a literal")));
        }
        if kind == ValueKind::Tuple {
            return Err(refused(value, "tuples are only keys of maps"));
        }
        let is_new = !matches!(self.variables.get(name), Some(Variable::Declared));
        self.variables.insert(name.to_owned(), Variable::Declared);
        self.assigned(&here);
        Ok(format!("{}{here} = {}", if is_new { "let " } else { "" }, value_code.text))
    }

    fn assign_element(
        &mut self,
        name: &str,
        keys: &[Expr],
        operator: Option<Binary>,
        target: &Expr,
        value: &Expr,
    ) -> Coded<String> {
        let element = self.element(name, keys, &target.span)?;
        let known = self.translator.facts.map(name);
        let mut exists_then = false;
        let code = match (facts::aggregation(value), operator) {
            (Some(method), None) => self.aggregation(&element, method, value)?,
            (_, Some(operator)) if known.aggregation.is_none() => {
                format!("{element} {}= {}", operator.text(), self.number(value)?.text)
            }
            (None, None) if known.aggregation.is_none() => {
                let value_code = self.number(value)?;
                if value_code.kind == ValueKind::Tuple {
                    return Err(refused(value, "a map cannot hold tuples; use a map for each part"));
                }
                exists_then = true;
                format!("{element} = {}", value_code.text)
            }
            _ => {
                let method = known.aggregation.unwrap_or_default();
                return Err(refused(
                    value,
                    &format!("`@{name}` is updated by `{method}()`, and so holds nothing else"),
                ));
            }
        };
        let map = format!("@{name}");
        self.assigned(&map);
        if exists_then && !has_word(&element[map.len()..], &map) {
            self.present.push(element);
        }
        self.translator.fill(name);
        Ok(code)
    }

    /// Writes `@m[k].hist(x)`.
    fn aggregation(&mut self, element: &str, method: &str, value: &Expr) -> Coded<String> {
        let ExprKind::Call { arguments, .. } = &value.kind else {
            return Err(refused(value, "it is no call"));
        };
        let expected = match method {
            "count" => 0..=0,
            "hist" => 1..=2,
            "lhist" => 4..=4,
            _ => 1..=1,
        };
        if !expected.contains(&arguments.len()) {
            return Err(refused(value, &format!("`{method}` takes other arguments")));
        }
        let mut codes = Vec::new();
        for (at, argument) in arguments.iter().enumerate() {
            if at > 0 && facts::constant_value(argument).is_none() {
                return Err(refused(argument, "the buckets of a histogram must be numbers"));
            }
            let code = self.number(argument)?.text;
            codes.push(if code == "e.retval" { "e.retval.i64".into() } else { code });
        }
        if method == "hist" && codes.get(1).is_some_and(|it| it == "0") {
            codes.pop();
        }
        Ok(format!("{element}.{method}({})", codes.join(", ")))
    }

    fn free_name(&self, wanted: &str) -> String {
        let is_used = |name: &str| {
            let as_variable = format!("${name}");
            self.translator.text.contains(&as_variable)
        };
        let mut name = wanted.to_owned();
        while is_used(&name) {
            name.push('_');
        }
        name
    }

    /// Notes which elements exist where a condition holds.
    fn learn(&mut self, condition: &Expr) {
        match &condition.kind {
            ExprKind::Binary(Binary::And, a, b) => {
                self.learn(a);
                self.learn(b);
            }
            ExprKind::Binary(Binary::Unequal, a, b) if facts::constant_value(b) == Some(0) => self.learn(a),
            ExprKind::Map { name, keys } => {
                if let Ok(element) = self.element(name, keys, &condition.span) {
                    self.present.push(element);
                }
            }
            ExprKind::Call { name, arguments } if name == "has_key" => {
                if let Ok(element) = self.element_of(arguments, &condition.span) {
                    self.present.push(element.1);
                }
            }
            _ => {}
        }
    }

    /// Forgets that elements of a map exist, and those whose keys are read from it.
    pub(super) fn removed(&mut self, map: &str) {
        let map = format!("@{map}");
        self.present.retain(|it| !has_word(it, &map));
    }

    /// Forgets elements whose keys are read from a variable or a map that gets a value: `x` or `@m`.
    pub(super) fn assigned(&mut self, changed: &str) {
        self.present.retain(|it| it.split_once('[').is_none_or(|(_, key)| !has_word(key, changed)));
    }

    /// Returns the name here of a variable of bpftrace's.
    pub(super) fn variable_name(&mut self, name: &str) -> String {
        self.translator.name(Named::Variable, name)
    }
}

/// Says why an expression has no translation.
pub(super) fn refused(expression: &Expr, because: &str) -> Refused {
    Refused { span: expression.span.clone(), because: because.to_owned() }
}

/// Whether a name stands in a piece of code as a whole.
fn has_word(code: &str, name: &str) -> bool {
    let is_of_word = |it: char| it.is_ascii_alphanumeric() || it == '_';
    code.match_indices(name).any(|(at, _)| {
        let is_begun = !name.starts_with('@') && code[..at].ends_with(is_of_word);
        !is_begun && !code[at + name.len()..].starts_with(is_of_word)
    })
}

fn is_else_if(block: &Block) -> bool {
    matches!(&block.statements[..], [Stmt { kind: StmtKind::If { .. }, span }] if *span == block.span)
}

/// Returns the variable that a statement assigns itself.
fn assigned(statement: &Stmt) -> Option<&str> {
    match &statement.kind {
        StmtKind::Assign { target: Expr { kind: ExprKind::Variable(name), .. }, .. } => Some(name),
        _ => None,
    }
}

fn assigns_directly(statement: &Stmt, name: &str) -> bool {
    assigned(statement) == Some(name)
}

/// Returns the variables that blocks within a block assign, each once.
fn assigned_within(block: &Block) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for nested in block.statements.iter().flat_map(Stmt::blocks) {
        facts::each_statement(nested, &mut |it| {
            if let Some(name) = assigned(it)
                && !names.iter().any(|it| it == name)
            {
                names.push(name.to_owned());
            }
        });
    }
    names
}

/// Whether a statement assigns or reads a variable.
fn mentions(statement: &Stmt, name: &str) -> bool {
    let mut found = false;
    facts::each_expression_of(statement, &mut |it| found |= matches!(&it.kind, ExprKind::Variable(of) if of == name));
    found
}
