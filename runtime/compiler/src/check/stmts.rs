//! Statements: assignments, branches, loops and prints.

use super::checker::{Binding, Checker};
use super::exprs::{known_text, text_bytes};
use super::operators::negated;
use crate::chain::{Chain, Link, map_name, unwrapped};
use crate::tables::{Purpose, join_base};
use crate::typed::{Base, Expr, ExprKind, LocalId, MapId, PrintPart, Printed, Stmt, StmtKind, TypedBlock};
use rhai::{Expr as Syntax, FnCallExpr, Ident, Position, Stmt as SyntaxStmt};
use xputrace_model::diagnostic::Diagnostic;
use xputrace_model::plan::{MapAction, Place};
use xputrace_model::schema::{Event, Unit};
use xputrace_model::style::{Digits, MOST_COLUMNS, Style, padded};
use xputrace_script::handler::Captured;
use xputrace_script::mistakes::no_exit_status;
use xputrace_script::{mistakes, words};

/// Maximum number of iterations of a `for`, which is unrolled.
const MAX_ITERATIONS: i64 = 64;

impl Checker<'_> {
    /// Checks a block's statements in a new scope; the last expression is its value.
    pub(super) fn block(&mut self, stmts: &[SyntaxStmt], with_value: bool) -> TypedBlock {
        self.scopes.push(Vec::new());
        let mut block = TypedBlock::default();
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

    pub(super) fn stmt(&mut self, stmt: &SyntaxStmt) -> Option<Stmt> {
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
                let then = self.block_where(&condition, flow.body.statements(), false);
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
                let instead = "write `for i in 0..16 { if !(condition) { break; } … }`: at most 64 iterations, known when the script starts";
                self.unsupported("a loop without a bound", at, instead);
                return None;
            }
            SyntaxStmt::Switch(it, _) => StmtKind::Eval(self.switch(&it.0, &it.1, false, at)),
            SyntaxStmt::TryCatch(..) => {
                self.unsupported("try", at, "test for `()` instead of throwing");
                return None;
            }
            _ => {
                self.unsupported(
                    "this statement",
                    at,
                    &self.or_interpret("write it with `if`, `switch`, `for i in 0..n`, assignments and calls"),
                );
                return None;
            }
        };
        Some(Stmt { kind, at })
    }

    pub(super) fn iterations(
        &mut self,
        name: &str,
        counted: bool,
        flow: &rhai::FlowControl,
        at: Position,
    ) -> Option<Vec<TypedBlock>> {
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

    pub(super) fn loop_values(&mut self, over: &Syntax) -> Option<Vec<Captured>> {
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
                                "this loop runs {} times; loops are unrolled, so the limit is {MAX_ITERATIONS}",
                                to.saturating_sub(from)
                            ),
                            label,
                        )
                        .help("use fewer iterations, or an `interval` or `end` handler"),
                    );
                    return None;
                }
                (from..to).map(Captured::Int).collect()
            }
            Syntax::Array(items, _) if items.len() <= MAX_ITERATIONS as usize => {
                let mut values = Vec::new();
                for item in items {
                    match self.expr(item).kind {
                        ExprKind::Literal(text) => values.push(Captured::Str(text)),
                        ExprKind::Const(n) => values.push(Captured::Int(n)),
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
            Syntax::Variable(variable, ..) if self.listed(&variable.1).is_some() => {
                let values = match self.listed(&variable.1) {
                    Some(Captured::List(values)) => values,
                    _ => Vec::new(),
                };
                if values.is_empty() || values.len() > MAX_ITERATIONS as usize {
                    let instead = format!("loop over a list of 1 to {MAX_ITERATIONS} values");
                    self.unsupported("a loop over this", at, &instead);
                    return None;
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

    /// Returns a value that must be known at compile time.
    pub(super) fn constant(&mut self, expr: &Syntax) -> Option<i64> {
        let value = self.expr(expr);
        if let ExprKind::Const(n) = value.kind {
            return Some(n);
        }
        let label = self.label(value.at);
        self.error(
            Diagnostic::error("not-constant", "this must be known when the script is compiled", label)
                .help("use a number, or a variable of the script's top level"),
        );
        None
    }

    pub(super) fn assignment(&mut self, lhs: &Syntax, op: Option<&str>, rhs: &Syntax, at: Position) -> Option<Stmt> {
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
                        .help("handlers capture top-level variables by value when they are declared")
                        .help(format!("to change it from handlers, use a map: `@{name} = …`")),
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

    pub(super) fn tag_value(&mut self, value: &Syntax) -> Expr {
        let value = self.expr(value);
        if !value.ty.base.is_string() {
            return self.expect(value, Base::Int);
        }
        let diagnostic = Diagnostic::error("type", "a tag is an integer", self.label(value.at))
            .help("tag with a number that identifies it, such as a request id");
        let at = value.at;
        self.poison(diagnostic, at)
    }

    pub(super) fn assigned_local(
        &mut self,
        local: LocalId,
        op: Option<&str>,
        rhs: &Syntax,
        at: Position,
    ) -> Option<Expr> {
        let rhs = self.expr(rhs);
        let ty = self.checked.locals[local];
        let value = match op {
            None => rhs,
            Some(op) => {
                let current = Expr { kind: ExprKind::Local(local), ty, at };
                self.binary(op, current, rhs, at)
            }
        };
        let base = match (ty.base, value.ty.base) {
            // Reserve room for its longest text.
            (Base::Text(n), other) if other.is_string() => Some(Base::Text(n.max(text_bytes(&value)))),
            // A name is held by its id, and only the tracer knows the id of a text, so this never
            // matches.
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
                    "this variable holds a name or literal, but this string is built at run time".into();
            }
            self.error(diagnostic.help("use another variable: `let other = …;`"));
            return None;
        };
        self.context_words.remove(&local);
        let slot = &mut self.checked.locals[local];
        slot.base = base;
        slot.optional |= value.ty.optional;
        Some(value)
    }

    /// Whether an expression is evaluated for its effect and has no value.
    pub(super) fn is_action(&self, expr: &Syntax) -> bool {
        let expr = unwrapped(expr);
        match expr {
            Syntax::FnCall(call, _) => return matches!(&*call.name, "print" | "exit"),
            Syntax::And(parts, _) | Syntax::Or(parts, _) => return parts.last().is_some_and(|it| self.is_action(it)),
            _ => {}
        }
        let chain = Chain::of(expr);
        if self.probe_method(&chain).is_some() {
            return true;
        }
        map_name(chain.head).is_some()
            && matches!(chain.links.last(), Some(Link::Method(..)) if is_map_action(chain.links.len()))
    }

    /// Whether the last part of a condition, whose value nobody wants, is something to do if the others let it.
    fn is_guarded(&self, last: &Syntax) -> bool {
        let calls_function = match unwrapped(last) {
            Syntax::FnCall(call, _) => self.function_of(call).is_some(),
            Syntax::Stmt(_) => true,
            _ => false,
        };
        calls_function || self.is_action(last)
    }

    /// Checks `condition && action` and `condition || action`; `None` if it is a plain condition.
    fn guarded(&mut self, expr: &Syntax, at: Position) -> Option<Stmt> {
        let (parts, all) = match expr {
            Syntax::And(parts, _) => (parts, true),
            Syntax::Or(parts, _) => (parts, false),
            _ => return None,
        };
        let (last, front) = parts.split_last().filter(|it| self.is_guarded(it.0))?;
        let action = [SyntaxStmt::Expr(Box::new(last.clone()))];
        let condition = self.all(front.iter(), at, if all { ExprKind::And } else { ExprKind::Or });
        let condition = if all { condition } else { negated(condition, at) };
        let then = self.block_where(&condition, &action, false);
        Some(Stmt { kind: StmtKind::If(condition, then, TypedBlock::default()), at })
    }

    pub(super) fn expr_stmt(&mut self, expr: &Syntax) -> Option<Stmt> {
        let expr = unwrapped(expr);
        let at = expr.position();
        match expr {
            Syntax::FnCall(call, at) => return self.call_stmt(call, *at),
            Syntax::Stmt(block) => {
                return Some(Stmt { kind: StmtKind::Block(self.block(block.statements(), false)), at });
            }
            _ => {}
        }
        if let Some(guarded) = self.guarded(expr, at) {
            return Some(guarded);
        }
        let chain = Chain::of(expr);
        if let (Some(name), Some(Link::Method(call, at))) = (map_name(chain.head), chain.links.last())
            && is_map_action(chain.links.len())
        {
            return self.map_method(&name, &chain, call, *at);
        }
        if let Some((probe, call, at)) = self.probe_method(&chain) {
            return self.switch_probe(probe, call, at);
        }
        let value = self.expr(expr);
        Some(Stmt { kind: StmtKind::Eval(value), at })
    }

    /// Returns the probe, by its declaration, and the method of a chain that is a call of a probe's method.
    fn probe_method<'c>(&self, chain: &Chain<'c>) -> Option<(u32, &'c FnCallExpr, Position)> {
        let (Syntax::Variable(variable, ..), [Link::Method(call, at)]) = (chain.head, &chain.links[..]) else {
            return None;
        };
        match self.lookup(&variable.1) {
            Some(Binding::Constant(Captured::Probe(probe))) => Some((probe, call, *at)),
            _ => None,
        }
    }

    /// Checks `probe.enable()` and `probe.disable()`.
    fn switch_probe(&mut self, probe: u32, call: &FnCallExpr, at: Position) -> Option<Stmt> {
        let label = self.label(at);
        let name = call.name.as_str();
        let problem = match self.staged.probes.get(probe as usize) {
            _ if !words::SWITCHING.contains(&name) => mistakes::no_probe_method(name, label),
            _ if !call.args.is_empty() => Diagnostic::error("arguments", format!("`{name}` takes no value"), label),
            Some(it) if !words::can_be_switched(it.event) => mistakes::never_switched(it.event, label),
            _ if self.place == Place::Gpu => {
                self.not_yet_on_gpu("switching a probe", at, "switch it in a `kernel` or `interval` handler");
                return None;
            }
            _ => return Some(Stmt { kind: StmtKind::Switch(probe, name == words::ENABLE), at }),
        };
        self.error(problem);
        None
    }

    pub(super) fn call_stmt(&mut self, call: &FnCallExpr, at: Position) -> Option<Stmt> {
        let kind = match (&*call.name, &call.args[..]) {
            ("print", [argument]) => self.print(unwrapped(argument)),
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

    /// Checks an exit status: it has 8 bits, so a larger constant is an error.
    pub(super) fn exit_code(&mut self, code: &Syntax) -> Expr {
        let code = self.integer(code);
        match code.kind {
            ExprKind::Const(n) if u8::try_from(n).is_err() && code.ty.base == Base::Int => {
                let at = code.at;
                let diagnostic = no_exit_status(n, self.label(at));
                self.poison(diagnostic, at)
            }
            _ => code,
        }
    }

    /// Checks what `print` prints: a map, an object or a text.
    fn print(&mut self, argument: &Syntax) -> StmtKind {
        if let Some((name, top)) = self.printed_map(argument) {
            let map = self.whole_map(&name, argument.start_position());
            return StmtKind::Map(map, MapAction::Print { top });
        }
        StmtKind::Print(match argument {
            Syntax::Map(members, _) => Printed::Object(self.members(&members.0)),
            text => Printed::Line(self.printed(text)),
        })
    }

    /// Returns the map that is printed as a whole, or how many of its largest elements are.
    fn printed_map(&mut self, argument: &Syntax) -> Option<(String, Option<usize>)> {
        let chain = Chain::of(argument);
        let name = map_name(chain.head)?;
        match chain.links[..] {
            [] => {
                let id = self.shapes.get(&name);
                let is_value =
                    id.is_some_and(|it| self.shapes.purpose(it) == Some(Purpose::Plain) && !self.shapes.has_keys(it));
                (!is_value).then_some((name, None))
            }
            [Link::Method(call, _)] if call.name == "top" && call.args.len() == 1 => {
                let n = self.constant(&call.args[0]).unwrap_or(1);
                if n < 1 {
                    let at = self.label(call.args[0].position());
                    self.error(
                        Diagnostic::error("top", "this would print no row", at).help("write `print(@m.top(5))`"),
                    );
                }
                Some((name, Some(usize::try_from(n).unwrap_or(usize::MAX).max(1))))
            }
            _ => None,
        }
    }

    /// Returns a map that the tracer reads or clears for this handler.
    pub(super) fn whole_map(&mut self, name: &str, at: Position) -> MapId {
        let label = self.label(at);
        let map = self.shapes.id(name, &label);
        let shape = &mut self.shapes.list[map];
        shape.in_interpreter = true;
        shape.read_live = true;
        map
    }

    /// Checks the members of a printed `#{…}`, in the order of their names.
    fn members(&mut self, members: &[(Ident, Syntax)]) -> Vec<(String, PrintPart)> {
        let mut sorted: Vec<&(Ident, Syntax)> = members.iter().collect();
        sorted.sort_by(|a, b| a.0.name.cmp(&b.0.name));
        sorted.into_iter().map(|(name, it)| (name.name.to_string(), self.member(unwrapped(it)))).collect()
    }

    fn member(&mut self, value: &Syntax) -> PrintPart {
        self.styled_part(value).unwrap_or_else(|| printed_value(self.expr(value)))
    }

    /// Returns the pieces of a printed text: constants, and values with or without `.human`.
    pub(super) fn printed(&mut self, argument: &Syntax) -> Vec<PrintPart> {
        match argument {
            Syntax::InterpolatedString(pieces, _) => pieces.iter().flat_map(|it| self.printed_part(it)).collect(),
            one => self.printed_part(one),
        }
    }

    /// Checks a piece that says how it is printed: by `.human`, `.hex` or `.pad(n)`.
    fn styled_part(&mut self, piece: &Syntax) -> Option<PrintPart> {
        let mut chain = Chain::of(piece);
        let columns = take_columns(&mut chain.links);
        let digits = take_digits(&mut chain.links);
        if columns.is_none() && digits.is_none() {
            return None;
        }
        let expr = if chain.links.is_empty() { self.expr(chain.head) } else { self.chain(&chain) };
        let expr =
            if digits.is_some_and(|it| it(Unit::None) == Digits::Hex) { self.expect(expr, Base::Int) } else { expr };
        let digits = digits.map_or(Digits::Decimal, |it| it(expr.ty.unit));
        let columns = columns.map_or(0, |it| self.columns(it, &expr));
        Some(match known_text(&expr) {
            Some(text) if digits == Digits::Decimal => PrintPart::Text(padded(&text, columns.into())),
            _ => PrintPart::Value { expr, style: Style { digits, columns } },
        })
    }

    /// Checks the columns of `.pad(n)`: a constant, negative to fill them after the text.
    fn columns(&mut self, columns: &Syntax, padded: &Expr) -> i16 {
        let label = self.label(columns.position());
        if padded.ty.base == Base::Stack {
            self.error(Diagnostic::error("type", "a stack has several lines and cannot be padded", label));
            return 0;
        }
        match self.constant(columns) {
            Some(n) if (-MOST_COLUMNS..=MOST_COLUMNS).contains(&n) => n as i16,
            Some(_) => {
                let message = format!("`pad` fills up to {MOST_COLUMNS} columns");
                let help = "write `x.pad(8)`, or `x.pad(-8)` to fill the columns after it";
                self.error(Diagnostic::error("arguments", message, label).help(help));
                0
            }
            None => 0,
        }
    }

    pub(super) fn printed_part(&mut self, piece: &Syntax) -> Vec<PrintPart> {
        let piece = unwrapped(piece);
        if let Some(part) = self.styled_part(piece) {
            return vec![part];
        }
        let expr = self.expr(piece);
        match expr.kind {
            // The tracer concatenates them: there is no length limit, and names are known there.
            ExprKind::Concat(parts) => parts.into_iter().map(printed_value).collect(),
            _ => vec![printed_value(expr)],
        }
    }
}

pub(super) fn printed_value(expr: Expr) -> PrintPart {
    match expr.kind {
        ExprKind::Literal(text) => PrintPart::Text(text),
        _ => PrintPart::Value { expr, style: Style::default() },
    }
}

/// Takes `.human` or `.hex` off the end of a chain.
fn take_digits(links: &mut Vec<Link>) -> Option<fn(Unit) -> Digits> {
    let digits: fn(Unit) -> Digits = match links.last()? {
        Link::Property("human", _) => Digits::Human,
        Link::Property("hex", _) => |_| Digits::Hex,
        _ => return None,
    };
    links.pop();
    Some(digits)
}

/// Takes `.pad(n)` off the end of a chain; returns `n`.
fn take_columns<'c>(links: &mut Vec<Link<'c>>) -> Option<&'c Syntax> {
    let Link::Method(call, _) = links.last()? else { return None };
    let [columns] = &call.args[..] else { return None };
    (call.name == "pad").then(|| links.pop())?;
    Some(columns)
}

/// Whether a method at the end of a chain belongs to the map or its element, not to a value in it.
pub(super) fn is_map_action(links: usize) -> bool {
    links <= 2
}
