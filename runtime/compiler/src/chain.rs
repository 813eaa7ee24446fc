//! Rhai nests `a.b[c].d()` to the right, with an index's own chain in the middle. Here it becomes a
//! head and a list of links.

use rhai::{ASTFlags, Expr, FnCallExpr, Position, Stmt};
use xputrace_script::handler;

/// `head`, and the links applied to it in source order.
pub(super) struct Chain<'a> {
    pub(super) head: &'a Expr,
    pub(super) links: Vec<Link<'a>>,
    /// Whether it contains a `?.`.
    pub(super) safe: bool,
}

/// One step of a chain.
#[derive(Clone, Copy)]
pub(super) enum Link<'a> {
    Property(&'a str, Position),
    Index(&'a Expr, Position),
    Method(&'a FnCallExpr, Position),
}

impl<'a> Chain<'a> {
    pub(super) fn of(expr: &'a Expr) -> Self {
        let mut links = Vec::new();
        let head = match expr {
            Expr::Dot(pair, ..) => {
                follow_dot(&pair.rhs, &mut links);
                &pair.lhs
            }
            Expr::Index(pair, flags, at) => {
                follow_index(&pair.rhs, *flags, *at, &mut links);
                &pair.lhs
            }
            other => other,
        };
        if map_name(head).is_none() {
            links.iter_mut().for_each(name_field);
        }
        Chain { head, links, safe: is_safe(expr) }
    }
}

/// Turns `k["name"]` into `k.name`: only maps have string keys.
fn name_field(link: &mut Link) {
    if let Link::Index(index, at) = *link
        && let Expr::StringConstant(name, _) = unwrapped(index)
    {
        *link = Link::Property(name, at);
    }
}

fn is_safe(expr: &Expr) -> bool {
    match expr {
        Expr::Dot(pair, flags, _) | Expr::Index(pair, flags, _) => {
            flags.contains(ASTFlags::NEGATED) || is_safe(&pair.rhs)
        }
        _ => false,
    }
}

/// Follows the right side of a dot: the rest of the chain.
fn follow_dot<'a>(rest: &'a Expr, links: &mut Vec<Link<'a>>) {
    match rest {
        Expr::Dot(pair, ..) => {
            one(&pair.lhs, links);
            follow_dot(&pair.rhs, links);
        }
        Expr::Index(pair, flags, at) => {
            one(&pair.lhs, links);
            follow_index(&pair.rhs, *flags, *at, links);
        }
        last => one(last, links),
    }
}

/// Follows the right side of an index: the index alone if the chain breaks here, else index and
/// rest.
fn follow_index<'a>(rest: &'a Expr, flags: ASTFlags, at: Position, links: &mut Vec<Link<'a>>) {
    if flags.contains(ASTFlags::BREAK) {
        links.push(Link::Index(rest, at));
        return;
    }
    match rest {
        Expr::Dot(pair, ..) => {
            links.push(Link::Index(&pair.lhs, at));
            follow_dot(&pair.rhs, links);
        }
        Expr::Index(pair, flags, inner) => {
            links.push(Link::Index(&pair.lhs, at));
            follow_index(&pair.rhs, *flags, *inner, links);
        }
        last => links.push(Link::Index(last, at)),
    }
}

fn one<'a>(expr: &'a Expr, links: &mut Vec<Link<'a>>) {
    match expr {
        Expr::Property(name, at) => links.push(Link::Property(&name.2, *at)),
        Expr::MethodCall(call, at) => links.push(Link::Method(call, *at)),
        other => links.push(Link::Index(other, other.position())),
    }
}

/// Strips the `{ }` that interpolation and single-expression blocks put around an expression.
pub(super) fn unwrapped(expr: &Expr) -> &Expr {
    match expr {
        Expr::Stmt(block) => match block.statements() {
            [Stmt::Expr(inner)] => unwrapped(inner),
            _ => expr,
        },
        _ => expr,
    }
}

/// Returns the map, with its `@`, that a variable of the rewritten text stands for.
pub(super) fn map_name(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Variable(variable, _, _) => handler::map_name(&variable.1),
        _ => None,
    }
}

/// Returns the parts of `[a, b]`, or the only part if it is not a list.
pub(super) fn key_parts(index: &Expr) -> Vec<&Expr> {
    match unwrapped(index) {
        Expr::Array(parts, _) => parts.iter().collect(),
        one => vec![one],
    }
}
