//! What a handler does with maps and with its event, read off the syntax before any types are
//! known: placement needs it, and handlers that are not compiled are only ever read this way.

use super::chain::{Chain, Link, key_parts, map_name, unwrapped};
use crate::handler::Handler;
use rhai::{ASTNode, Expr, FnCallExpr, Position, Stmt};

/// One use of a map.
pub(super) struct Use<'a> {
    pub(super) map: String,
    pub(super) keys: Option<Vec<&'a Expr>>,
    pub(super) how: How<'a>,
    pub(super) at: Position,
}

/// What is done with the element or the map.
pub(super) enum How<'a> {
    Read,
    /// `=`, or another assignment operator.
    Assign(&'a Expr),
    /// A method, aggregations among them.
    Method(&'a FnCallExpr),
    Contains,
    /// The whole map is an argument of a function.
    Passed,
}

/// All that a handler's syntax tells.
#[derive(Default)]
pub(super) struct Scan<'a> {
    pub(super) uses: Vec<Use<'a>>,
    /// Where `.tag` of the event is set.
    pub(super) sets_tag: Option<Position>,
    /// Whether `.launch` itself is tested: `== ()`, `!= ()`, `??`, or read through by `?.`.
    pub(super) tests_launch: bool,
    /// Names of all properties that are read.
    pub(super) properties: Vec<&'a str>,
    /// Names of all functions that are called, methods apart.
    pub(super) calls: Vec<&'a str>,
}

pub(super) fn scan(handler: &Handler) -> Scan<'_> {
    let mut scan = Scan::default();
    scan.stmts(&handler.body);
    scan
}

impl<'a> Scan<'a> {
    pub(super) fn reads(&self, property: &str) -> bool {
        self.properties.contains(&property)
    }

    fn stmts(&mut self, stmts: &'a [Stmt]) {
        for stmt in stmts {
            self.stmt(stmt);
        }
    }

    fn stmt(&mut self, stmt: &'a Stmt) {
        match stmt {
            Stmt::Assignment(it) => self.assignment(&it.1.lhs, &it.1.rhs),
            Stmt::If(flow, _) | Stmt::While(flow, _) | Stmt::Do(flow, ..) | Stmt::TryCatch(flow, _) => {
                self.expr(&flow.expr);
                self.stmts(flow.body.statements());
                self.stmts(flow.branch.statements());
            }
            Stmt::For(it, _) => {
                self.expr(&it.2.expr);
                self.stmts(it.2.body.statements());
            }
            Stmt::Var(it, ..) => self.expr(&it.1),
            Stmt::FnCall(call, at) => self.call(call, *at),
            Stmt::Block(block) => self.stmts(block.statements()),
            Stmt::Expr(expr) => self.expr(expr),
            Stmt::Return(Some(expr), ..) | Stmt::BreakLoop(Some(expr), ..) => self.expr(expr),
            Stmt::Switch(..) => self.anywhere(stmt),
            _ => {}
        }
    }

    /// For statements whose inside is not looked at: every map in them counts as read.
    fn anywhere(&mut self, stmt: &'a Stmt) {
        stmt.walk(&mut Vec::new(), &mut |path: &[ASTNode]| {
            if let Some(ASTNode::Expr(expr)) = path.last()
                && let Some(map) = map_name(expr)
            {
                self.uses.push(Use { map, keys: None, how: How::Read, at: expr.position() });
            }
            true
        });
    }

    fn assignment(&mut self, lhs: &'a Expr, rhs: &'a Expr) {
        let chain = Chain::of(lhs);
        match map_name(chain.head) {
            Some(map) => {
                let keys = self.keys(&chain.links);
                self.uses.push(Use { map, keys, how: How::Assign(rhs), at: chain.head.position() });
            }
            None => {
                if let Some(Link::Property("tag", at)) = chain.links.last() {
                    self.sets_tag = Some(*at);
                }
            }
        }
        self.expr(rhs);
    }

    fn keys(&mut self, links: &[Link<'a>]) -> Option<Vec<&'a Expr>> {
        let index = links.iter().find_map(|it| match it {
            Link::Index(index, _) => Some(*index),
            _ => None,
        })?;
        let parts = key_parts(index);
        for part in &parts {
            self.expr(part);
        }
        Some(parts)
    }

    fn expr(&mut self, expr: &'a Expr) {
        let expr = unwrapped(expr);
        let chain = Chain::of(expr);
        self.tests_launch |= chain.safe && chain.links.iter().any(|it| matches!(it, Link::Property("launch", _)));
        if let Some(map) = map_name(chain.head) {
            return self.map(map, &chain);
        }
        if !chain.links.is_empty() {
            self.expr(chain.head);
        }
        for link in &chain.links {
            match link {
                Link::Property(name, _) => self.properties.push(name),
                Link::Index(index, _) => self.expr(index),
                Link::Method(call, _) => {
                    for argument in &call.args {
                        self.expr(argument);
                    }
                }
            }
        }
        if chain.links.is_empty() {
            self.children(expr);
        }
    }

    fn map(&mut self, map: String, chain: &Chain<'a>) {
        let keys = self.keys(&chain.links);
        let method = chain.links.iter().find_map(|it| match it {
            Link::Method(call, _) => Some(*call),
            _ => None,
        });
        if let Some(call) = method {
            for argument in &call.args {
                self.expr(argument);
            }
        }
        let how = method.map_or(How::Read, How::Method);
        self.uses.push(Use { map, keys, how, at: chain.head.position() });
    }

    fn children(&mut self, expr: &'a Expr) {
        match expr {
            Expr::InterpolatedString(parts, _) | Expr::Array(parts, _) => {
                for part in parts {
                    self.expr(part);
                }
            }
            Expr::Map(parts, _) => {
                for (_, part) in &parts.0 {
                    self.expr(part);
                }
            }
            Expr::And(parts, _) | Expr::Or(parts, _) => {
                for part in parts.iter() {
                    self.expr(part);
                }
            }
            Expr::Coalesce(parts, _) => {
                for part in parts.iter() {
                    self.tests_launch |= is_launch(part);
                    self.expr(part);
                }
            }
            Expr::Stmt(block) => self.stmts(block.statements()),
            Expr::FnCall(call, at) => self.call(call, *at),
            _ => {}
        }
    }

    fn call(&mut self, call: &'a FnCallExpr, at: Position) {
        self.calls.push(&call.name);
        let args: Vec<&'a Expr> = call.args.iter().map(unwrapped).collect();
        if call.name == "contains"
            && let [map, key] = args[..]
            && let Some(map) = map_name(map)
        {
            let parts = key_parts(key);
            for part in &parts {
                self.expr(part);
            }
            self.uses.push(Use { map, keys: Some(parts), how: How::Contains, at });
            return;
        }
        if matches!(&*call.name, "==" | "!=") && args.iter().any(|it| matches!(it, Expr::Unit(_))) {
            self.tests_launch |= args.iter().any(|it| is_launch(it));
        }
        for argument in args {
            match map_name(argument) {
                Some(map) if call.op_token.is_none() => {
                    self.uses.push(Use { map, keys: None, how: How::Passed, at: argument.position() });
                }
                _ => self.expr(argument),
            }
        }
    }
}

/// Whether an expression is `k.launch` itself.
fn is_launch(expr: &Expr) -> bool {
    matches!(Chain::of(unwrapped(expr)).links.last(), Some(Link::Property("launch", _)))
}
