//! Lists and objects of the script's top level: constant tables that a handler indexes, tests and loops over.

use super::checker::{Binding, Checker};
use crate::chain::{Link, unwrapped};
use crate::typed::int;
use crate::typed::missing;
use crate::typed::{Base, Expr, ExprKind, Type, TypedBlock};
use rhai::{Expr as Syntax, Position};
use xputrace_bytecode::insn::Cond;
use xputrace_model::diagnostic::Diagnostic;
use xputrace_script::handler::Captured;
use xputrace_script::mistakes::no_field;

/// Most names of an object that a handler reads by a name known only at run time: they are compared one after another.
const MOST_COMPARED: usize = 64;

impl Checker<'_> {
    /// Returns the list or object that a variable holds.
    pub(super) fn listed(&self, name: &str) -> Option<Captured> {
        match self.lookup(name)? {
            Binding::Constant(value @ (Captured::List(_) | Captured::Object(_))) => Some(value),
            _ => None,
        }
    }

    /// Checks what links read of a list or object.
    pub(super) fn constant_part(&mut self, name: &str, of: Captured, links: &[Link], at: Position) -> Expr {
        let Some((link, rest)) = links.split_first() else { return self.captured(name, &of, at) };
        let part = match (&of, link) {
            (Captured::List(values), Link::Method(call, _)) if call.name == "len" && call.args.is_empty() => {
                Captured::Int(values.len() as i64)
            }
            (Captured::Object(named), Link::Property(part, at)) => match named.iter().find(|it| it.0 == *part) {
                Some((_, value)) => value.clone(),
                None => {
                    let known: Vec<&str> = named.iter().map(|it| it.0.as_str()).collect();
                    let diagnostic = no_field(&format!("`{name}`"), part, &known, self.label(*at));
                    return self.poison(diagnostic, *at);
                }
            },
            (Captured::List(values), Link::Index(index, _)) => {
                let index = self.integer(index);
                match index.kind {
                    ExprKind::Const(n) => element(values, n).cloned().unwrap_or(Captured::Unit),
                    _ => {
                        let element = self.element_at(name, values, index, at);
                        return self.links(element, rest);
                    }
                }
            }
            (Captured::Object(named), Link::Index(index, _)) => {
                let index = self.expr(index);
                let value = self.named(name, named, index, at);
                return self.links(value, rest);
            }
            (_, Link::Method(_, at) | Link::Property(_, at) | Link::Index(_, at)) => {
                let whole = self.captured(name, &of, *at);
                return whole;
            }
        };
        match part {
            Captured::List(_) | Captured::Object(_) => self.constant_part(name, part, rest, at),
            value => {
                let value = self.captured(name, &value, at);
                self.links(value, rest)
            }
        }
    }

    /// Chooses an element of a list by halves, as [`element`] does; there is none beyond its ends.
    fn element_at(&mut self, name: &str, values: &[Captured], index: Expr, at: Position) -> Expr {
        let mut stmts = Vec::new();
        let index = self.settled(index, &mut stmts);
        let values: Vec<Expr> = values.iter().map(|it| self.captured(name, it, at)).collect();
        let from_end = -(values.len() as i64)..0;
        let values: Vec<(i64, Expr)> = from_end.chain(0..).zip(values.iter().chain(&values).cloned()).collect();
        let value = self.chosen(&index, &values, at);
        let ty = value.ty;
        Expr { kind: ExprKind::Block(Box::new(TypedBlock { stmts, value: Some(value) })), ty, at }
    }

    fn chosen(&mut self, index: &Expr, values: &[(i64, Expr)], at: Position) -> Expr {
        let (condition, then, otherwise) = match values {
            [] => return missing(at),
            [(n, value)] => (self.binary("==", index.clone(), int(*n, at), at), value.clone(), missing(at)),
            _ => {
                let (low, high) = values.split_at(values.len() / 2);
                let is_low = self.comparison(Cond::Slt, index.clone(), int(high[0].0, at), at);
                (is_low, self.chosen(index, low, at), self.chosen(index, high, at))
            }
        };
        let block = |value| TypedBlock { stmts: Vec::new(), value: Some(value) };
        self.choice(condition, block(then), block(otherwise), at)
    }

    /// Chooses what an object holds for a name.
    fn named(&mut self, name: &str, named: &[(String, Captured)], index: Expr, at: Position) -> Expr {
        if named.len() > MOST_COMPARED {
            let message = format!("`{name}` has {} names, but a handler compares at most {MOST_COMPARED}", named.len());
            let diagnostic = Diagnostic::error("too-many-names", message, self.label(at))
                .help("use integers and a list, or look the name up in an `interval` or `end` handler");
            return self.poison(diagnostic, at);
        }
        if !index.ty.base.is_string() {
            let diagnostic =
                Diagnostic::error("type", format!("the names in `{name}` are strings"), self.label(index.at));
            return self.poison(diagnostic.help("write a string between the brackets"), at);
        }
        let mut stmts = Vec::new();
        let index = self.settled_alone(index, &mut stmts);
        let mut value = missing(at);
        for (part, held) in named.iter().rev() {
            let literal = self.literal(part, at);
            let condition = self.binary("==", index.clone(), literal, at);
            let then = self.captured(name, held, at);
            let block = |value| TypedBlock { stmts: Vec::new(), value: Some(value) };
            value = self.choice(condition, block(then), block(value), at);
        }
        let ty = value.ty;
        Expr { kind: ExprKind::Block(Box::new(TypedBlock { stmts, value: Some(value) })), ty, at }
    }

    /// Returns the values of a list, or the names of an object, that an expression is.
    pub(super) fn listed_values(&mut self, list: &Syntax) -> Option<Vec<Expr>> {
        let list = unwrapped(list);
        let at = list.position();
        match list {
            Syntax::Array(items, _) => Some(items.iter().map(|it| self.expr(it)).collect()),
            Syntax::Variable(variable, ..) => Some(match self.listed(&variable.1)? {
                Captured::List(values) => values.iter().map(|it| self.captured(&variable.1, it, at)).collect(),
                Captured::Object(named) => named.iter().map(|it| self.literal(&it.0, at)).collect(),
                _ => return None,
            }),
            _ => None,
        }
    }

    /// Checks `x in [a, b]`.
    pub(super) fn is_among(&mut self, value: &Syntax, values: Vec<Expr>, at: Position) -> Expr {
        let ty = Type::of(Base::Bool);
        let value = self.expr(value);
        let mut stmts = Vec::new();
        let value = self.settled_alone(value, &mut stmts);
        let equal = values.into_iter().map(|it| self.binary("==", value.clone(), it, at)).collect();
        let equal: Vec<Expr> = equal;
        let kind = if equal.is_empty() { ExprKind::Const(0) } else { ExprKind::Or(equal) };
        let any = Expr { kind, ty, at };
        Expr { kind: ExprKind::Block(Box::new(TypedBlock { stmts, value: Some(any) })), ty, at }
    }
}

/// Returns an element of a list, counted from the end if negative, as Rhai does.
fn element(values: &[Captured], n: i64) -> Option<&Captured> {
    let from_end = usize::try_from(n.unsigned_abs()).ok().and_then(|it| values.len().checked_sub(it));
    let at = if n < 0 { from_end } else { usize::try_from(n).ok() };
    values.get(at?)
}
