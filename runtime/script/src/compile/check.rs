//! Syntax to typed statements: names are resolved, types found, constants folded, and all that
//! cannot be compiled is answered with what to write instead.
//!
//! The same walk infers the shapes of maps: it is repeated until they no longer change, and only
//! the last round's diagnostics are kept.

use super::chain::{Chain, Link, key_parts, map_name, unwrapped};
use super::inline::Frame;
use super::tables::{MAX_KEY_PARTS, NAME_TEXT_BYTES, Purpose, Shapes, Stored, join_base};
use super::typed::{Base, Block, Checked, Expr, Kind, LocalId, MapId, Part, Stmt, StmtKind, Type};
use super::unit::Unit;
use crate::handler::{Captured, Handler, Staged};
use rhai::{Expr as Syntax, FnCallExpr, Position, Stmt as SyntaxStmt};
use xputrace_bytecode::insn::Alu;
use xputrace_model::bucket::HIST_BITS;
use xputrace_model::catalog::Catalog;
use xputrace_model::diagnostic::{Diagnostic, FileId, Label, nearest};
use xputrace_model::plan::{Place, Target};
use xputrace_model::schema::Event;
use xputrace_model::table::TableKind;

/// Most iterations of a `for`, which is unrolled.
const MAX_ITERATIONS: i64 = 64;
/// Most buckets of a linear histogram.
const MAX_LINEAR_BUCKETS: i128 = 10_000;

/// The code of a probe at a function that its file does not have.
pub(super) const NO_SUCH_FUNCTION: &str = "no-such-function";

/// Methods that aggregate, and how many values each takes.
const AGGREGATIONS: &[&str] = &["count", "sum", "min", "max", "avg", "stats", "hist", "lhist", "quantiles"];

pub(super) struct Checker<'a> {
    pub(super) staged: &'a Staged,
    pub(super) catalog: &'a dyn Catalog,
    pub(super) handler: &'a Handler,
    pub(super) place: Place,
    pub(super) tests_launch: bool,
    pub(super) shapes: &'a mut Shapes,
    pub(super) diagnostics: &'a mut Vec<Diagnostic>,
    pub(super) checked: Checked,
    /// The file whose text is looked at.
    pub(super) file: FileId,
    pub(super) scopes: Vec<Vec<(String, Binding)>>,
    pub(super) loops: usize,
    /// The functions that are being compiled in place, outermost first.
    pub(super) frames: Vec<Frame>,
    /// Calls that were compiled in place so far.
    pub(super) inlined: usize,
}

/// What a name of a handler stands for.
#[derive(Clone)]
pub(super) enum Binding {
    Local(LocalId),
    Constant(Captured),
    Event,
}

/// Checks one handler at the place that was chosen for it.
pub(super) fn check(
    staged: &Staged,
    catalog: &dyn Catalog,
    unit: &Unit,
    shapes: &mut Shapes,
    diagnostics: &mut Vec<Diagnostic>,
) -> Checked {
    let handler = unit.handler;
    let mut outer = constants(&handler.captured);
    if !handler.parameter.is_empty() {
        outer.push((handler.parameter.clone(), Binding::Event));
    }
    let mut checker = Checker {
        staged,
        catalog,
        handler,
        place: unit.place,
        tests_launch: unit.scan.tests_launch,
        shapes,
        diagnostics,
        checked: Checked::default(),
        file: handler.file,
        scopes: vec![outer],
        loops: 0,
        frames: Vec::new(),
        inlined: 0,
    };
    checker.check_target();
    checker.checked.body = checker.block(&handler.body, false);
    checker.checked
}

/// The variables that captured values are in a body.
pub(super) fn constants(captured: &[(String, Captured)]) -> Vec<(String, Binding)> {
    captured.iter().map(|(name, value)| (name.clone(), Binding::Constant(value.clone()))).collect()
}

impl Checker<'_> {
    pub(super) fn label(&self, at: Position) -> Label {
        self.staged.label(self.file, at)
    }

    pub(super) fn error(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.push(diagnostic);
    }

    /// Reports a mistake and stands in for the value, of a type that fits anywhere.
    pub(super) fn poison(&mut self, diagnostic: Diagnostic, at: Position) -> Expr {
        self.error(diagnostic);
        Expr { kind: Kind::Const(0), ty: Type::of(Base::Unknown), at }
    }

    pub(super) fn literal(&mut self, text: &str, at: Position) -> Expr {
        Expr { kind: Kind::Literal(text.into()), ty: Type::of(Base::Name), at }
    }

    /// Whether what is probed exists on this machine, as far as that is known beforehand.
    fn check_target(&mut self) {
        let (code, why, help) = match &self.handler.target {
            Target::Tracepoint { category, name } => {
                let Err(why) = self.catalog.tracepoint(category, name) else { return };
                (
                    "unknown-tracepoint",
                    why,
                    format!("`xputrace list 'tracepoint:{category}:*'` shows those of this machine"),
                )
            }
            Target::Function { object, function } => {
                let Err(why) = self.catalog.function(object, function) else { return };
                (NO_SUCH_FUNCTION, why, format!("`xputrace list 'uprobe:{object}:*'` shows those that can be probed"))
            }
            _ => return,
        };
        self.error(Diagnostic::error(code, why, self.pattern_label()).help(help));
    }

    /// The pattern as it stands in the declaration, where it stands there as it is; else the declaration.
    fn pattern_label(&self) -> Label {
        let declared = self.handler.declared_at.clone();
        let file = self.staged.sources.files.get(declared.file.0 as usize);
        let behind = file.and_then(|it| it.text.get(declared.span.end..)).unwrap_or_default();
        // The handler begins at its bars.
        let before_handler = behind.split('|').next().unwrap_or_default();
        let pattern = self.handler.name.split_once(':').map_or("", |it| it.1);
        match before_handler.find(&format!("\"{pattern}\"")) {
            Some(at) => {
                let start = declared.span.end + at;
                Label { span: start..start + pattern.len() + 2, ..declared }
            }
            None => declared,
        }
    }

    /// The statements of a block in a scope of their own; the last expression is its value.
    pub(super) fn block(&mut self, stmts: &[SyntaxStmt], with_value: bool) -> Block {
        self.scopes.push(Vec::new());
        let mut block = Block::default();
        let (last, front) = match stmts.split_last() {
            Some((last, front)) if with_value => (Some(last), front),
            _ => (None, stmts),
        };
        for stmt in front {
            block.stmts.extend(self.stmt(stmt));
        }
        match last {
            Some(SyntaxStmt::Expr(expr)) if !self.is_action(expr) => block.value = Some(self.expr(expr)),
            Some(SyntaxStmt::Return(Some(value), flags, _))
                if self.returns_at_its_end() && !flags.contains(rhai::ASTFlags::BREAK) =>
            {
                block.value = Some(self.expr(value));
            }
            Some(SyntaxStmt::If(flow, at)) => block.value = Some(self.if_value(flow, *at)),
            Some(SyntaxStmt::Switch(it, at)) => block.value = Some(self.switch(&it.0, &it.1, true, *at)),
            Some(SyntaxStmt::Block(inner)) => {
                let at = inner.position();
                block.value = Some(self.block_value(inner.statements(), at));
            }
            Some(other) => block.stmts.extend(self.stmt(other)),
            None => {}
        }
        self.scopes.pop();
        block
    }

    fn stmt(&mut self, stmt: &SyntaxStmt) -> Option<Stmt> {
        let at = stmt.position();
        let kind = match stmt {
            SyntaxStmt::Noop(_) | SyntaxStmt::Share(_) => return None,
            SyntaxStmt::Expr(expr) => return self.expr_stmt(expr),
            SyntaxStmt::FnCall(call, at) => return self.call_stmt(call, *at),
            SyntaxStmt::Assignment(it) => {
                let op = it.0.get_op_assignment_info().map(|info| info.5);
                return self.assignment(&it.1.lhs, op, &it.1.rhs, it.0.position());
            }
            SyntaxStmt::Var(it, ..) => return self.declaration(&it.0.name, &it.1, at),
            SyntaxStmt::If(flow, _) => {
                let condition = self.condition(&flow.expr);
                let then = self.block(flow.body.statements(), false);
                StmtKind::If(condition, then, self.block(flow.branch.statements(), false))
            }
            SyntaxStmt::Block(block) => StmtKind::Block(self.block(block.statements(), false)),
            SyntaxStmt::For(it, _) => StmtKind::Loop(self.iterations(&it.0.name, it.1.is_some(), &it.2, at)?),
            SyntaxStmt::BreakLoop(None, flags, _) if self.loops > 0 => {
                if flags.contains(rhai::ASTFlags::BREAK) {
                    StmtKind::Break
                } else {
                    StmtKind::Continue
                }
            }
            SyntaxStmt::Return(value, flags, _) => {
                if flags.contains(rhai::ASTFlags::BREAK) {
                    self.unsupported("throw", at, "end the handler with `return`");
                }
                return Some(self.leave(value.as_deref(), at));
            }
            SyntaxStmt::While(..) | SyntaxStmt::Do(..) => {
                let instead = "write `for i in 0..16 { if !(condition) { break; } … }`: a bound of at most 64, known when the script starts";
                self.unsupported("a loop without a bound", at, instead);
                return None;
            }
            SyntaxStmt::Switch(it, _) => StmtKind::Eval(self.switch(&it.0, &it.1, false, at)),
            SyntaxStmt::TryCatch(..) => {
                self.unsupported("try", at, "compiled handlers throw nothing; test for `()` instead");
                return None;
            }
            _ => {
                self.unsupported("this statement", at, "wrap the handler in `interpret(…)` if it needs all of Rhai");
                return None;
            }
        };
        Some(Stmt { kind, at })
    }

    pub(super) fn unsupported(&mut self, what: &str, at: Position, instead: &str) {
        let label = self.label(at);
        self.error(
            Diagnostic::error("unsupported", format!("{what} cannot be compiled in a handler"), label).help(instead),
        );
    }

    fn declaration(&mut self, name: &str, value: &Syntax, at: Position) -> Option<Stmt> {
        if name.starts_with('_') {
            self.unsupported("a variable whose name begins with `_`", at, "choose another name");
            return None;
        }
        let value = self.expr(value);
        let local = self.checked.locals.len();
        self.checked.locals.push(value.ty);
        self.scopes.last_mut()?.push((name.into(), Binding::Local(local)));
        Some(Stmt { kind: StmtKind::Set(local, value), at })
    }

    fn iterations(&mut self, name: &str, counted: bool, flow: &rhai::FlowControl, at: Position) -> Option<Vec<Block>> {
        if counted {
            self.unsupported("a `for` with a counter", at, "write `for i in 0..n`");
            return None;
        }
        let values = self.loop_values(&flow.expr)?;
        self.loops += 1;
        let mut blocks = Vec::new();
        for value in values {
            self.scopes.push(vec![(name.into(), Binding::Constant(value))]);
            blocks.push(self.block(flow.body.statements(), false));
            self.scopes.pop();
        }
        self.loops -= 1;
        Some(blocks)
    }

    fn loop_values(&mut self, over: &Syntax) -> Option<Vec<Captured>> {
        let at = over.position();
        let values = match unwrapped(over) {
            Syntax::FnCall(call, _) if matches!(&*call.name, ".." | "..=") && call.args.len() == 2 => {
                let (from, to) = (self.constant(&call.args[0])?, self.constant(&call.args[1])?);
                let to = if call.name == "..=" { to.saturating_add(1) } else { to };
                if to.saturating_sub(from) > MAX_ITERATIONS {
                    let label = self.label(at);
                    self.error(
                        Diagnostic::error(
                            "loop-too-long",
                            format!(
                                "this loop would run {} times; it is unrolled, so at most {MAX_ITERATIONS}",
                                to.saturating_sub(from)
                            ),
                            label,
                        )
                        .help("loop less, or do it in an `interval` or `end` handler"),
                    );
                    return None;
                }
                (from..to).map(Captured::Int).collect()
            }
            Syntax::Array(items, _) if items.len() <= MAX_ITERATIONS as usize => {
                let mut values = Vec::new();
                for item in items {
                    match self.expr(item).kind {
                        Kind::Literal(text) => values.push(Captured::Str(text)),
                        Kind::Const(n) => values.push(Captured::Int(n)),
                        _ => {
                            self.unsupported(
                                "a loop over values that are not constant",
                                at,
                                "loop over a constant range",
                            );
                            return None;
                        }
                    }
                }
                values
            }
            _ => {
                self.unsupported("this loop", at, "write `for i in 0..n` with a constant `n` of at most 64");
                return None;
            }
        };
        Some(values)
    }

    /// A value that must be known while compiling.
    fn constant(&mut self, expr: &Syntax) -> Option<i64> {
        let value = self.expr(expr);
        if let Kind::Const(n) = value.kind {
            return Some(n);
        }
        let label = self.label(value.at);
        self.error(
            Diagnostic::error("not-constant", "this must be known when the script is compiled", label)
                .help("use a number, or a variable of the script's top level"),
        );
        None
    }

    fn assignment(&mut self, lhs: &Syntax, op: Option<&str>, rhs: &Syntax, at: Position) -> Option<Stmt> {
        let chain = Chain::of(lhs);
        if let Some(name) = map_name(chain.head) {
            return self.map_assignment(&name, &chain, op, rhs, at);
        }
        let Syntax::Variable(variable, _, head_at) = chain.head else {
            self.unsupported("assigning to this", at, "assign to a variable, a map, or `l.tag`");
            return None;
        };
        let name = variable.1.to_string();
        let kind = match (self.lookup(&name), &chain.links[..]) {
            (Some(Binding::Local(local)), []) => StmtKind::Set(local, self.assigned_local(local, op, rhs, at)?),
            (Some(Binding::Constant(_)), []) => {
                let label = self.label(*head_at);
                self.error(
                    Diagnostic::error("assign-captured", format!("`{name}` is a constant in this handler"), label)
                        .help("a variable of the script's top level is taken by value when the handler is declared")
                        .help(format!("to change it from handlers use a map: `@{name} = …`")),
                );
                return None;
            }
            (Some(Binding::Event), [Link::Property("tag", _)])
                if self.handler.event == Event::Launch && op.is_none() =>
            {
                StmtKind::Tag(self.tag_value(rhs))
            }
            (Some(Binding::Event), _) => {
                let label = self.label(*head_at);
                self.error(
                    Diagnostic::error("read-only", "an event's fields cannot be assigned to", label)
                        .help("only the `tag` of a `launch` event can be set, with `=`"),
                );
                return None;
            }
            (None, _) => {
                self.unknown_variable(&name, *head_at);
                return None;
            }
            _ => {
                self.unsupported("assigning to part of a variable", at, "assign to the variable, or use a map");
                return None;
            }
        };
        Some(Stmt { kind, at })
    }

    fn tag_value(&mut self, value: &Syntax) -> Expr {
        let value = self.expr(value);
        if !value.ty.base.is_string() {
            return self.expect(value, Base::Int);
        }
        let diagnostic = Diagnostic::error("type", "a tag is an integer", self.label(value.at))
            .help("number what you tell apart, such as a request's id, and tag with the number");
        let at = value.at;
        self.poison(diagnostic, at)
    }

    fn assigned_local(&mut self, local: LocalId, op: Option<&str>, rhs: &Syntax, at: Position) -> Option<Expr> {
        let rhs = self.expr(rhs);
        let ty = self.checked.locals[local];
        let value = match op {
            None => rhs,
            Some(op) => {
                let current = Expr { kind: Kind::Local(local), ty, at };
                self.binary(op, current, rhs, at)
            }
        };
        let base = match (ty.base, value.ty.base) {
            // Space for the longest of its texts.
            (Base::Text(n), other) if other.is_string() => Some(Base::Text(n.max(text_bytes(&value)))),
            // A name is held by its id, and only the tracer knows the id of a text: never.
            (Base::Name, Base::Text(_)) => None,
            (known, other) => join_base(known, other),
        };
        let Some(base) = base else {
            let mut diagnostic = Diagnostic::error(
                "changed-type",
                format!("this variable holds {}, not {}", ty.base.noun(), value.ty.base.noun()),
                self.label(value.at),
            );
            if ty.base == Base::Name && value.ty.base.is_string() {
                diagnostic.message =
                    "this variable holds a name or literal, and this is a string made while running".into();
            }
            self.error(diagnostic.help("use another variable: `let other = …;`"));
            return None;
        };
        let slot = &mut self.checked.locals[local];
        slot.base = base;
        slot.optional |= value.ty.optional;
        Some(value)
    }

    fn map_assignment(
        &mut self,
        name: &str,
        chain: &Chain,
        op: Option<&str>,
        rhs: &Syntax,
        at: Position,
    ) -> Option<Stmt> {
        let element = self.element(name, chain)?;
        let (map, keys, label) = (element.map, element.keys, element.label);
        if !element.rest.is_empty() {
            self.unsupported("assigning to part of an element", at, "use one map for each value");
            return None;
        }
        if let Some(diagnostic) = self.aggregation_assigned(name, chain, rhs) {
            self.shapes.list[map].written = true;
            self.error(diagnostic);
            return None;
        }
        let value = self.expr(rhs);
        self.shapes.use_as(map, Purpose::Plain, &label, self.diagnostics);
        let atomic = op.and_then(|op| match op {
            "+" => Some(Alu::Add),
            "-" => Some(Alu::Sub),
            "&" => Some(Alu::And),
            "|" => Some(Alu::Or),
            "^" => Some(Alu::Xor),
            _ => None,
        });
        if value.ty.base.is_string() && op.is_some() {
            let whole = format!("store a whole string: `{name}[key] = `…${{x}}…``");
            self.unsupported("growing a string in a map", at, &whole);
            return None;
        }
        let literal = literal_of(&value);
        let stored = Stored::new(value.ty.maybe(false), literal);
        self.shapes.use_value(map, stored, &label, self.diagnostics);
        let kind = match (op, atomic) {
            (None, _) => StmtKind::Store(map, keys, value),
            (Some(_), Some(alu)) => StmtKind::Change(map, keys, alu, value),
            (Some(op), None) => {
                let ty = self.shapes.value(map);
                let current = Expr { kind: Kind::Read(map, keys.clone()), ty, at };
                let value = self.binary(op, current, value, at);
                StmtKind::Store(map, keys, value)
            }
        };
        Some(Stmt { kind, at })
    }

    /// bpftrace's `@calls = count()`.
    fn aggregation_assigned(&self, name: &str, chain: &Chain, rhs: &Syntax) -> Option<Diagnostic> {
        let Syntax::FnCall(call, at) = unwrapped(rhs) else { return None };
        let method = AGGREGATIONS.iter().find(|it| **it == call.name.as_str())?;
        if matches!(*method, "min" | "max") && call.args.len() == 2 {
            return None;
        }
        let element = if chain.links.is_empty() { name.to_owned() } else { format!("{name}[…]") };
        let given = if call.args.is_empty() { "" } else { "…" };
        let message = format!("`{method}` is a method of the map");
        Some(
            Diagnostic::error("aggregation", message, self.label(*at))
                .help(format!("write `{element}.{method}({given})`")),
        )
    }

    /// Whether an expression is done for its effect and has no value.
    fn is_action(&self, expr: &Syntax) -> bool {
        let expr = unwrapped(expr);
        if let Syntax::FnCall(call, _) = expr {
            return matches!(&*call.name, "print" | "exit");
        }
        let chain = Chain::of(expr);
        map_name(chain.head).is_some()
            && matches!(chain.links.last(), Some(Link::Method(..)) if is_map_action(chain.links.len()))
    }

    fn expr_stmt(&mut self, expr: &Syntax) -> Option<Stmt> {
        let expr = unwrapped(expr);
        let at = expr.position();
        match expr {
            Syntax::FnCall(call, at) => return self.call_stmt(call, *at),
            Syntax::Stmt(block) => {
                return Some(Stmt { kind: StmtKind::Block(self.block(block.statements(), false)), at });
            }
            _ => {}
        }
        let chain = Chain::of(expr);
        if let (Some(name), Some(Link::Method(call, at))) = (map_name(chain.head), chain.links.last())
            && is_map_action(chain.links.len())
        {
            return self.map_method(&name, &chain, call, *at);
        }
        let value = self.expr(expr);
        Some(Stmt { kind: StmtKind::Eval(value), at })
    }

    fn call_stmt(&mut self, call: &FnCallExpr, at: Position) -> Option<Stmt> {
        let kind = match (&*call.name, &call.args[..]) {
            ("print", [argument]) => StmtKind::Print(self.printed(argument)),
            ("print", []) => {
                self.unsupported("print of nothing", at, "print a string: `print(\"\")` is an empty line");
                return None;
            }
            ("print", _) => {
                self.unsupported("print of several values", at, "write one string: print(`${a} ${b}`)");
                return None;
            }
            ("exit", []) => StmtKind::Exit(None),
            ("exit", [code]) => StmtKind::Exit(Some(self.exit_code(code))),
            _ => StmtKind::Eval(self.call(call, at)),
        };
        Some(Stmt { kind, at })
    }

    /// What the command line sees has 8 bits; a constant that it would not see is a mistake.
    fn exit_code(&mut self, code: &Syntax) -> Expr {
        let code = self.integer(code);
        match code.kind {
            Kind::Const(n) if !(0..=255).contains(&n) && code.ty.base == Base::Int => {
                let diagnostic = Diagnostic::error("exit-code", format!("{n} is no exit status"), self.label(code.at))
                    .help("it is from 0 to 255");
                let at = code.at;
                self.poison(diagnostic, at)
            }
            _ => code,
        }
    }

    /// The pieces of what is printed: text, and values with `.human` or without.
    fn printed(&mut self, argument: &Syntax) -> Vec<Part> {
        let argument = unwrapped(argument);
        if let Some(name) = map_name(argument) {
            let label = self.label(argument.position());
            let id = self.shapes.get(&name);
            if id.is_none_or(|id| self.shapes.purpose(id) != Some(Purpose::Plain) || self.shapes.has_keys(id)) {
                self.error(
                    Diagnostic::error("print-map", format!("`{name}` cannot be printed in a compiled handler"), label)
                        .help(format!("print it in `interval(1.s, || print({name}))` or in an `end` handler")),
                );
                return Vec::new();
            }
        }
        match argument {
            Syntax::InterpolatedString(pieces, _) => pieces.iter().flat_map(|it| self.printed_part(it)).collect(),
            one => self.printed_part(one),
        }
    }

    fn printed_part(&mut self, piece: &Syntax) -> Vec<Part> {
        let piece = unwrapped(piece);
        let mut chain = Chain::of(piece);
        if let Some(Link::Property("human", _)) = chain.links.last() {
            chain.links.pop();
            return vec![Part::Value { expr: self.chain(&chain), human: true }];
        }
        let expr = self.expr(piece);
        match expr.kind {
            // The tracer joins them: there is no limit then, and names are known there.
            Kind::Concat(parts) => parts.into_iter().map(printed_value).collect(),
            _ => vec![printed_value(expr)],
        }
    }

    fn map_method(&mut self, name: &str, chain: &Chain, call: &FnCallExpr, at: Position) -> Option<Stmt> {
        let method = &*call.name;
        let without_call =
            Chain { head: chain.head, links: chain.links[..chain.links.len() - 1].to_vec(), safe: chain.safe };
        match method {
            "clear" | "top" | "len" | "keys" | "values" => {
                let label = self.label(at);
                self.error(
                    Diagnostic::error(
                        "interpreter-only",
                        format!("`{name}.{method}` is not for compiled handlers"),
                        label,
                    )
                    .help("use it in an `interval`, `begin` or `end` handler")
                    .help("a compiled handler can remove one element: `@m[key].remove()`"),
                );
                return None;
            }
            "remove" => {
                let element = self.element(name, &without_call)?;
                self.shapes.use_as(element.map, Purpose::Plain, &element.label, self.diagnostics);
                return Some(Stmt { kind: StmtKind::Remove(element.map, element.keys), at });
            }
            _ => {}
        }
        if !AGGREGATIONS.contains(&method) {
            let label = self.label(at);
            let mut diagnostic = Diagnostic::error("unknown-method", format!("a map has no method `{method}`"), label);
            if let Some(near) = nearest(method, AGGREGATIONS.iter().copied().chain(["remove"])) {
                diagnostic = diagnostic.help(format!("did you mean `{near}`?"));
            }
            self.error(diagnostic.help(format!("it has: {} remove", AGGREGATIONS.join(" "))));
            return None;
        }
        let element = self.element(name, &without_call)?;
        self.shapes.list[element.map].written = true;
        let (kind, value) = self.aggregation(call, at)?;
        self.shapes.use_as(element.map, Purpose::Aggregate(kind), &element.label, self.diagnostics);
        if let Some(value) = &value {
            let stored = Stored::new(value.ty.maybe(false), None);
            self.shapes.use_value(element.map, stored, &element.label, self.diagnostics);
        }
        Some(Stmt { kind: StmtKind::Aggregate(element.map, element.keys, value), at })
    }

    /// The kind of an aggregation and the value it takes, from its call.
    pub(super) fn aggregation(&mut self, call: &FnCallExpr, at: Position) -> Option<(TableKind, Option<Expr>)> {
        let kind = match (&*call.name, call.args.len()) {
            ("count", 0) => return Some((TableKind::Count, None)),
            (name, 1) if of_one_value(name).is_some() => of_one_value(name)?,
            ("hist", 2) => TableKind::Hist { bits: self.sub_bits(&call.args[1])? },
            ("lhist", 4) => self.linear(call, at)?,
            (name, _) => {
                let (takes, form) = match name {
                    "count" => ("no value", "@map.count()".to_owned()),
                    "lhist" => ("four values", "@map.lhist(x, min, max, step)".to_owned()),
                    _ => ("one value", format!("@map.{name}(x)")),
                };
                let diagnostic = Diagnostic::error("arguments", format!("`{name}` takes {takes}"), self.label(at));
                self.error(diagnostic.help(format!("write `{form}`")));
                return None;
            }
        };
        Some((kind, Some(self.integer(&call.args[0]))))
    }

    fn sub_bits(&mut self, bits: &Syntax) -> Option<u32> {
        let n = self.constant(bits)?;
        if (0..=5).contains(&n) {
            return Some(n as u32);
        }
        let label = self.label(bits.position());
        self.error(Diagnostic::error("arguments", "sub-bucket bits are 0 to 5", label));
        None
    }

    fn linear(&mut self, call: &FnCallExpr, at: Position) -> Option<TableKind> {
        let (min, max, step) =
            (self.constant(&call.args[1])?, self.constant(&call.args[2])?, self.constant(&call.args[3])?);
        let buckets = (i128::from(max) - i128::from(min)) / i128::from(step.max(1));
        if step < 1 || max <= min || buckets > MAX_LINEAR_BUCKETS {
            let label = self.label(at);
            self.error(Diagnostic::error("arguments", "these are no bounds of a linear histogram", label).help(
                format!(
                    "lhist(x, min, max, step): min below max, step at least 1, at most {MAX_LINEAR_BUCKETS} buckets"
                ),
            ));
            return None;
        }
        Some(TableKind::Lhist { min, max, step })
    }

    /// The map and key of `@m[…]`, and what follows the key.
    pub(super) fn element<'c>(&mut self, name: &str, chain: &Chain<'c>) -> Option<Element<'c>> {
        let label = self.label(chain.head.position());
        let map = self.shapes.id(name, &label);
        match self.place {
            Place::Linux => self.shapes.list[map].in_linux = true,
            _ => self.shapes.list[map].in_tracer = true,
        }
        let (keys, rest) = match chain.links.split_first() {
            Some((Link::Index(index, _), rest)) => match self.key(index, &label) {
                Some(keys) => (keys, rest),
                None => {
                    // One mistake is enough: the map is not also called unassigned.
                    self.shapes.list[map].written = true;
                    return None;
                }
            },
            _ => (Vec::new(), &chain.links[..]),
        };
        if let Some(Link::Index(_, at)) = rest.first() {
            self.unsupported("indexing an element again", *at, &format!("write `{name}[a, b]` for a key of two parts"));
            return None;
        }
        let rest = match rest.split_first() {
            Some((Link::Property("value", _), rest)) => rest.to_vec(),
            _ => rest.to_vec(),
        };
        self.use_key(map, &keys, &label);
        Some(Element { map, keys, rest, label })
    }

    pub(super) fn use_key(&mut self, map: MapId, keys: &[Expr], label: &Label) {
        let stored = keys.iter().map(|it| Stored::new(it.ty, literal_of(it))).collect();
        self.shapes.use_key(map, stored, label, self.diagnostics);
    }

    pub(super) fn key(&mut self, index: &Syntax, label: &Label) -> Option<Vec<Expr>> {
        let parts = key_parts(index);
        if parts.len() > MAX_KEY_PARTS {
            self.error(Diagnostic::error(
                "too-many-keys",
                format!("a key has at most {MAX_KEY_PARTS} parts, this one {}", parts.len()),
                label.clone(),
            ));
            return None;
        }
        Some(parts.into_iter().map(|it| self.expr(it)).collect())
    }

    pub(super) fn lookup_value(&mut self, name: &str, at: Position) -> Expr {
        match self.lookup(name) {
            Some(Binding::Local(local)) => Expr { kind: Kind::Local(local), ty: self.checked.locals[local], at },
            Some(Binding::Constant(value)) => self.captured(name, &value, at),
            Some(Binding::Event) => {
                let diagnostic = Diagnostic::error("event-value", "the event is no value of its own", self.label(at))
                    .help(format!("read one of its fields, such as `{name}.time`"));
                self.poison(diagnostic, at)
            }
            None => self.unknown_variable(name, at),
        }
    }

    pub(super) fn is_event(&self, name: &str) -> bool {
        matches!(self.lookup(name), Some(Binding::Event))
    }

    pub(super) fn lookup(&self, name: &str) -> Option<Binding> {
        let bindings = self.scopes.iter().rev().flat_map(|scope| scope.iter().rev());
        bindings.into_iter().find(|it| it.0 == name).map(|it| it.1.clone())
    }

    fn captured(&mut self, name: &str, value: &Captured, at: Position) -> Expr {
        let of = |base, n| Expr { kind: Kind::Const(n), ty: Type::of(base), at };
        match value {
            Captured::Int(n) => of(Base::Int, *n),
            Captured::Bool(b) => of(Base::Bool, i64::from(*b)),
            Captured::Str(text) => self.text_constant(text, at),
            Captured::Unit => missing(at),
            Captured::Closure(_) => {
                let diagnostic = Diagnostic::error("function-value", format!("`{name}` is a function"), self.label(at))
                    .help(format!("call it: `{name}.call(…)`"));
                self.poison(diagnostic, at)
            }
            Captured::Other(ty) => {
                let diagnostic = Diagnostic::error(
                    "captured-type",
                    format!("`{name}` is {ty}, which has no meaning in a compiled handler"),
                    self.label(at),
                )
                .help("integers, booleans and strings can be used; wrap the handler in `interpret(…)` for others");
                self.poison(diagnostic, at)
            }
        }
    }

    fn unknown_variable(&mut self, name: &str, at: Position) -> Expr {
        let known: Vec<String> = self.scopes.iter().flatten().map(|it| it.0.clone()).collect();
        let mut diagnostic =
            Diagnostic::error("unknown-variable", format!("there is no variable `{name}`"), self.label(at));
        if let Some(near) = nearest(name, known.iter().map(String::as_str)) {
            diagnostic = diagnostic.help(format!("did you mean `{near}`?"));
        }
        let diagnostic = diagnostic.help(format!("a map is written `@{name}`"));
        self.poison(diagnostic, at)
    }
}

/// A map's element as a handler names it.
pub(super) struct Element<'a> {
    pub(super) map: MapId,
    pub(super) keys: Vec<Expr>,
    pub(super) rest: Vec<Link<'a>>,
    pub(super) label: Label,
}

fn printed_value(expr: Expr) -> Part {
    match expr.kind {
        Kind::Literal(text) => Part::Text(text),
        _ => Part::Value { expr, human: false },
    }
}

pub(super) fn missing(at: Position) -> Expr {
    Expr { kind: Kind::Missing, ty: Type::of(Base::Unknown).maybe(true), at }
}

pub(super) fn literal_of(expr: &Expr) -> Option<&str> {
    match &expr.kind {
        Kind::Literal(text) => Some(text),
        _ => None,
    }
}

/// The aggregations that take a value and nothing else.
pub(super) fn of_one_value(method: &str) -> Option<TableKind> {
    Some(match method {
        "sum" => TableKind::Sum,
        "min" => TableKind::Min,
        "max" => TableKind::Max,
        "avg" => TableKind::Avg,
        "stats" => TableKind::Stats,
        "hist" => TableKind::Hist { bits: HIST_BITS },
        "quantiles" => TableKind::Quantiles,
        _ => return None,
    })
}

/// Whether a method that ends a chain belongs to the map or its element, not to a value in it.
fn is_map_action(links: usize) -> bool {
    links <= 2
}

/// Bytes that a string takes as text.
pub(super) fn text_bytes(value: &Expr) -> u32 {
    match (&value.kind, value.ty.base) {
        (Kind::Literal(text), _) => text.len() as u32,
        (_, Base::Text(n)) => n,
        _ => NAME_TEXT_BYTES,
    }
}
