//! What a handler does with maps and with its event, read off the syntax before any types are
//! known: placement needs it, and handlers that are not compiled are only ever read this way.
//! The functions that it calls are part of it.

use super::chain::{Chain, Link, key_parts, map_name, unwrapped};
use crate::handler::{Captured, Function, Handler, Staged};
use rhai::{Expr, FnCallExpr, Position, Stmt};
use xputrace_model::diagnostic::FileId;

/// One use of a map.
pub(super) struct Use<'a> {
    pub(super) map: String,
    pub(super) keys: Option<Vec<&'a Expr>>,
    pub(super) how: How<'a>,
    /// The file that `at` is a position of.
    pub(super) file: FileId,
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
pub(super) struct Scan<'a> {
    staged: &'a Staged,
    /// The file whose text is looked at.
    file: FileId,
    /// Functions that were looked into.
    followed: Vec<&'a Function>,
    pub(super) uses: Vec<Use<'a>>,
    /// Where `.tag` of the event is set.
    pub(super) sets_tag: Option<Position>,
    /// Whether `.launch` itself is tested: `== ()`, `!= ()`, `??`, or read through by `?.`.
    pub(super) tests_launch: bool,
    /// Names of all properties that are read.
    pub(super) properties: Vec<&'a str>,
    /// Names of all functions that are called, methods and functions of scripts apart.
    pub(super) calls: Vec<&'a str>,
}

pub(super) fn scan<'a>(staged: &'a Staged, handler: &'a Handler) -> Scan<'a> {
    let mut scan = Scan {
        staged,
        file: handler.file,
        followed: Vec::new(),
        uses: Vec::new(),
        sets_tag: None,
        tests_launch: false,
        properties: Vec::new(),
        calls: Vec::new(),
    };
    scan.closures(&handler.captured);
    scan.stmts(&handler.body);
    scan
}

impl<'a> Scan<'a> {
    pub(super) fn reads(&self, property: &str) -> bool {
        self.properties.contains(&property)
    }

    /// Those that a handler holds are there to be called.
    fn closures(&mut self, captured: &'a [(String, Captured)]) {
        for (_, value) in captured {
            if let Captured::Closure(function) = value {
                self.closures(&function.captured);
                self.follow(function);
            }
        }
    }

    fn follow(&mut self, function: &'a Function) {
        if self.followed.contains(&function) {
            return;
        }
        self.followed.push(function);
        let caller = std::mem::replace(&mut self.file, function.file);
        self.stmts(&function.body);
        self.file = caller;
    }

    fn found(&mut self, map: String, keys: Option<Vec<&'a Expr>>, how: How<'a>, at: Position) {
        self.uses.push(Use { map, keys, how, file: self.file, at });
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
            Stmt::Switch(it, _) => {
                self.expr(&it.0);
                for case in &it.1.expressions {
                    self.expr(&case.lhs);
                    self.expr(&case.rhs);
                }
            }
            _ => {}
        }
    }

    fn assignment(&mut self, lhs: &'a Expr, rhs: &'a Expr) {
        let chain = Chain::of(lhs);
        match map_name(chain.head) {
            Some(map) => {
                let keys = self.keys(&chain.links);
                self.found(map, keys, How::Assign(rhs), chain.head.position());
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
        self.found(map, keys, how, chain.head.position());
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
        let module = call.namespace.path.first().map(|it| it.as_str());
        match self.staged.function(self.file, module, &call.name, call.args.len()) {
            Some(function) => self.follow(function),
            None => self.calls.push(&call.name),
        }
        let args: Vec<&'a Expr> = call.args.iter().map(unwrapped).collect();
        if call.name == "contains"
            && let [map, key] = args[..]
            && let Some(map) = map_name(map)
        {
            let parts = key_parts(key);
            for part in &parts {
                self.expr(part);
            }
            self.found(map, Some(parts), How::Contains, at);
            return;
        }
        if matches!(&*call.name, "==" | "!=") && args.iter().any(|it| matches!(it, Expr::Unit(_))) {
            self.tests_launch |= args.iter().any(|it| is_launch(it));
        }
        for argument in args {
            match map_name(argument) {
                Some(map) if call.op_token.is_none() => {
                    self.found(map, None, How::Passed, argument.position());
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
