//! `switch`. Rhai keeps only the hash of a case's value, so the values must be recovered: every
//! literal in the text is parsed as a case of its own, and the hashes are compared.

use super::checker::Checker;
use super::operators::symbol_beside;
use crate::typed::{Expr, ExprKind, Stmt, StmtKind, TypedBlock, int, missing};
use rhai::{
    AST, ASTNode, BinaryExpr, Engine, Expr as Syntax, Position, RangeCase, Stmt as SyntaxStmt, SwitchCasesCollection,
};
use rustc_hash::FxHashMap;
use xputrace_bytecode::insn::Cond;
use xputrace_script::lexer;

/// One branch of a `switch`: its condition and its body.
struct Way<'s> {
    condition: Option<Expr>,
    body: &'s Syntax,
}

impl Checker<'_> {
    /// Turns a `switch` into a chain of choices in Rhai's order: values, ranges, `_`.
    pub(super) fn switch(
        &mut self,
        value: &Syntax,
        cases: &SwitchCasesCollection,
        with_value: bool,
        at: Position,
    ) -> Expr {
        let value = self.expr(value);
        let mut stmts = Vec::new();
        let value = self.settled_alone(value, &mut stmts);
        let mut ways = self.value_ways(&value, cases, at);
        ways.extend(self.range_ways(&value, cases));
        let mut otherwise = match cases.def_case {
            Some(default) => self.way_body(&cases.expressions[default].rhs, with_value),
            None => TypedBlock::default(),
        };
        for way in ways.into_iter().rev() {
            let then = self.way_body(way.body, with_value);
            otherwise = match way.condition {
                Some(condition) => {
                    let choice = self.choice(condition, then, otherwise, at);
                    TypedBlock { stmts: Vec::new(), value: Some(choice) }
                }
                None => then,
            };
        }
        let ty = otherwise.value.as_ref().map_or(missing(at).ty, |it| it.ty);
        stmts.append(&mut otherwise.stmts);
        Expr { kind: ExprKind::Block(Box::new(TypedBlock { stmts, value: otherwise.value })), ty, at }
    }

    fn way_body(&mut self, body: &Syntax, with_value: bool) -> TypedBlock {
        self.block(&[SyntaxStmt::Expr(Box::new(body.clone()))], with_value)
    }

    fn value_ways<'s>(&mut self, value: &Expr, cases: &'s SwitchCasesCollection, at: Position) -> Vec<Way<'s>> {
        let text = &self.staged.sources.files[self.file.0 as usize].text;
        let literals = literals_by_hash(text);
        let mut sorted: Vec<(usize, u64)> =
            cases.cases.iter().filter_map(|(hash, list)| Some((*list.blocks.first()?, *hash))).collect();
        sorted.sort_unstable();
        let mut ways = Vec::new();
        for (_, hash) in sorted {
            // Rhai lists ranges here too.
            let only_ranges =
                cases.cases[&hash].blocks.iter().all(|it| cases.ranges.iter().any(|range| range.index() == *it));
            let Some(literal) = literals.get(&hash) else {
                if only_ranges {
                    continue;
                }
                self.unsupported(
                    "this case of a `switch`",
                    at,
                    "use integers, ranges of integers, booleans or quoted strings",
                );
                continue;
            };
            for block in &cases.cases[&hash].blocks {
                let literal = self.expr(literal);
                let matches = self.binary("==", value.clone(), literal, at);
                ways.push(self.way(matches, &cases.expressions[*block], at));
            }
        }
        ways
    }

    fn range_ways<'s>(&mut self, value: &Expr, cases: &'s SwitchCasesCollection) -> Vec<Way<'s>> {
        let mut ways = Vec::new();
        for range in &cases.ranges {
            let (from, to, last) = match range {
                RangeCase::ExclusiveInt(range, _) => (range.start, range.end, Cond::Slt),
                RangeCase::InclusiveInt(range, _) => (*range.start(), *range.end(), Cond::Sle),
            };
            let at = value.at;
            let low = self.comparison(Cond::Sge, value.clone(), int(from, at), at);
            let high = self.comparison(last, value.clone(), int(to, at), at);
            let inside = Expr { ty: low.ty, kind: ExprKind::And(vec![low, high]), at };
            ways.push(self.way(inside, &cases.expressions[range.index()], at));
        }
        ways
    }

    /// Checks a case, with its `if` if it has one.
    fn way<'s>(&mut self, matches: Expr, case: &'s BinaryExpr, at: Position) -> Way<'s> {
        let condition = match &case.lhs {
            Syntax::BoolConstant(true, _) => matches,
            guard => {
                let guard = self.condition(guard);
                Expr { ty: guard.ty, kind: ExprKind::And(vec![matches, guard]), at }
            }
        };
        Way { condition: Some(condition), body: &case.rhs }
    }

    /// Returns a value that can be used twice; computes it first if evaluating it twice would
    /// repeat an effect.
    pub(super) fn settled(&mut self, value: Expr, before: &mut Vec<Stmt>) -> Expr {
        if value.is_simple() { value } else { self.stored(value, before) }
    }

    /// Likewise, for comparing a name with others: its mangled form is none of them, as in Rhai.
    pub(super) fn settled_alone(&mut self, value: Expr, before: &mut Vec<Stmt>) -> Expr {
        match symbol_beside(&value) {
            Some(_) => self.stored(value, before),
            None => self.settled(value, before),
        }
    }

    /// Computes a value into a variable of its own.
    fn stored(&mut self, value: Expr, before: &mut Vec<Stmt>) -> Expr {
        let (at, ty) = (value.at, value.ty);
        let local = self.new_local(ty);
        before.push(Stmt { kind: StmtKind::Set(local, value), at });
        Expr { kind: ExprKind::Local(local), ty, at }
    }
}

/// Maps the hashes that Rhai gives to cases to the literals of a text.
fn literals_by_hash(text: &str) -> FxHashMap<u64, Syntax> {
    let literals = lexer::literals(text).into_iter().chain(["true".into(), "false".into()]);
    let cases: String = literals.map(|it| format!("{it} => {it},")).collect();
    let mut found = FxHashMap::default();
    let Ok(ast) = Engine::new_raw().compile(format!("switch 0 {{ {cases} }}")) else { return found };
    let ast: AST = ast;
    ast.walk(&mut |path: &[ASTNode]| {
        if let [ASTNode::Stmt(SyntaxStmt::Switch(it, _))] = path {
            for (hash, list) in &it.1.cases {
                if let Some(block) = list.blocks.first() {
                    found.insert(*hash, it.1.expressions[*block].rhs.clone());
                }
            }
        }
        true
    });
    found
}
