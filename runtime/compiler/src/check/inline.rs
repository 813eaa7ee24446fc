//! Functions of the script, of modules and in variables. Each call is compiled in place, so that a
//! handler stays one program without calls.

use super::checker::{Binding, Checker, InlinedCall, constants};
use super::exprs::text_bytes;
use crate::chain::unwrapped;
use crate::tables::join_base;
use crate::typed::missing;
use crate::typed::{Base, Expr, ExprKind, Inlined, LocalId, Stmt, StmtKind, Type, TypedBlock};
use rhai::{ASTFlags, ASTNode, Expr as Syntax, FnCallExpr, Position, Stmt as SyntaxStmt};
use xputrace_model::diagnostic::Diagnostic;
use xputrace_model::schema::Unit;
use xputrace_script::handler::{Captured, ScriptFunction};

/// Maximum number of inlined calls in one handler, including those inside functions.
const MAX_CALLS: usize = 200;

/// A parameter whose value is computed at the call.
type Computed = (LocalId, Expr);

impl<'a> Checker<'a> {
    /// Checks `name(…)` or `module::name(…)` if there is such a function.
    pub(super) fn script_call(&mut self, call: &FnCallExpr, at: Position) -> Option<Expr> {
        let function = self.function_of(call)?;
        Some(self.inline(function, &call.args, at))
    }

    /// Returns the function of the script that a call means.
    pub(super) fn function_of(&self, call: &FnCallExpr) -> Option<&'a ScriptFunction> {
        let module = call.namespace.path.first().map(|it| it.as_str());
        self.staged.function(self.file, module, &call.name, call.args.len())
    }

    /// Inlines a function's body.
    pub(super) fn inline(&mut self, function: &ScriptFunction, arguments: &[Syntax], at: Position) -> Expr {
        if let Some(refusal) = self.refusal(function, arguments.len(), at) {
            return self.poison(refusal, at);
        }
        self.inlined += 1;
        let (bindings, arguments) = self.arguments(function, arguments);
        let result = returns_early(&function.body).then(|| self.new_local(Type::of(Base::Unknown)));
        let call = self.label(at);
        let known = self.diagnostics.len();

        let outer_scopes = std::mem::replace(&mut self.scopes, vec![constants(&function.captured), bindings]);
        let outer_file = std::mem::replace(&mut self.file, function.file);
        let outer_loops = std::mem::replace(&mut self.loops, 0);
        self.frames.push(InlinedCall { file: function.file, name: function.name.clone(), result, result_bytes: 0 });
        let mut body = self.block(&function.body, true);
        if let Some(result) = result {
            self.end_in(result, &function.body, &mut body, at);
        }
        self.frames.pop();
        self.loops = outer_loops;
        self.file = outer_file;
        self.scopes = outer_scopes;

        let inside: Vec<Diagnostic> = self.diagnostics.drain(known..).collect();
        self.diagnostics.extend(inside.into_iter().map(|it| it.also(call.clone(), "in this call")));
        self.inlined_value(Inlined { file: function.file, arguments, body, result }, at)
    }

    fn refusal(&self, function: &ScriptFunction, n_arguments: usize, at: Position) -> Option<Diagnostic> {
        let error =
            |code, message: String, help: String| Some(Diagnostic::error(code, message, self.label(at)).help(help));
        let name = &function.name;
        if self.frames.iter().any(|it| it.file == function.file && it.name == *name) {
            let message = format!("`{name}` calls itself, but functions are compiled into their callers");
            return error("recursion", message, "write a loop, `for i in 0..n`, or do it in an `end` handler".into());
        }
        if self.inlined >= MAX_CALLS {
            let message = format!("this handler contains more than {MAX_CALLS} function calls");
            return error("too-many-calls", message, "functions are compiled into their callers: call fewer".into());
        }
        if function.parameters.len() != n_arguments {
            let takes = function.parameters.len();
            return error(
                "arguments",
                format!("this function takes {takes} values, not {n_arguments}"),
                "pass as many".into(),
            );
        }
        None
    }

    /// Returns what the parameters mean in the body, and the values to compute first.
    fn arguments(
        &mut self,
        function: &ScriptFunction,
        arguments: &[Syntax],
    ) -> (Vec<(String, Binding)>, Vec<Computed>) {
        let (mut bindings, mut computed) = (Vec::new(), Vec::new());
        for (name, argument) in function.parameters.iter().zip(arguments) {
            let binding = match unwrapped(argument) {
                Syntax::Variable(variable, ..) if self.is_event(&variable.1) => Binding::Event,
                Syntax::Variable(variable, ..)
                    if self.closure(&variable.1).is_some() || self.listed(&variable.1).is_some() =>
                {
                    self.lookup(&variable.1).unwrap_or(Binding::Event)
                }
                argument => {
                    let value = self.expr(argument);
                    let constant = captured(&value).filter(|_| !assigns(&function.body, name));
                    constant.map_or_else(
                        || {
                            let local = self.new_local(value.ty);
                            self.note_context_word(local, &value);
                            computed.push((local, value));
                            Binding::Local(local)
                        },
                        Binding::Constant,
                    )
                }
            };
            bindings.push((name.clone(), binding));
        }
        (bindings, computed)
    }

    /// Returns the closure that a variable holds.
    pub(super) fn closure(&self, name: &str) -> Option<Box<ScriptFunction>> {
        match self.lookup(name) {
            Some(Binding::Constant(Captured::Closure(function))) => Some(function),
            _ => None,
        }
    }

    /// Makes the end of a body leave its value where early returns do.
    fn end_in(&mut self, result: LocalId, syntax: &[SyntaxStmt], body: &mut TypedBlock, at: Position) {
        if matches!(syntax.last(), Some(SyntaxStmt::Return(..))) {
            return;
        }
        let value = body.value.take().unwrap_or_else(|| missing(at));
        self.returned(result, &value);
        body.stmts.push(Stmt { at: value.at, kind: StmtKind::Set(result, value) });
    }

    fn inlined_value(&mut self, call: Inlined, at: Position) -> Expr {
        let ty = match (&call.result, &call.body.value) {
            (Some(result), _) => self.checked.locals[*result],
            (None, Some(value)) => value.ty,
            (None, None) => Type::of(Base::Unknown).maybe(true),
        };
        if call.arguments.is_empty()
            && call.body.stmts.is_empty()
            && let Some(Expr { kind: kind @ (ExprKind::Const(_) | ExprKind::Literal(_)), .. }) = &call.body.value
        {
            return Expr { kind: kind.clone(), ty, at };
        }
        Expr { kind: ExprKind::Inlined(Box::new(call)), ty, at }
    }

    /// Checks `return`, from the handler or from the function being inlined.
    pub(super) fn leave(&mut self, value: Option<&Syntax>, at: Position) -> Stmt {
        let value = value.map(|it| self.expr(it));
        let kind = match self.frames.last().map(|it| it.result) {
            None => StmtKind::Return,
            Some(None) => StmtKind::Block(TypedBlock::default()),
            Some(Some(result)) => {
                let value = value.unwrap_or_else(|| missing(at));
                self.returned(result, &value);
                let stmts = vec![Stmt { kind: StmtKind::Set(result, value), at }, Stmt { kind: StmtKind::Leave, at }];
                StmtKind::Block(TypedBlock { stmts, value: None })
            }
        };
        Stmt { kind, at }
    }

    /// Whether a `return` at the end of this block is just its value.
    pub(super) fn returns_at_its_end(&self) -> bool {
        self.frames.last().is_some_and(|it| it.result.is_none())
    }

    /// Widens the result's type to hold this value.
    fn returned(&mut self, result: LocalId, value: &Expr) {
        let ty = self.checked.locals[result];
        let Some(base) = join_base(ty.base, value.ty.base) else {
            let message =
                format!("this function returns {} here but {} elsewhere", value.ty.base.noun(), ty.base.noun());
            let diagnostic = Diagnostic::error("type", message, self.label(value.at));
            return self.error(diagnostic);
        };
        let mut bytes = 0;
        if let Some(frame) = self.frames.last_mut().filter(|_| value.ty.base.is_string()) {
            frame.result_bytes = frame.result_bytes.max(text_bytes(value));
            bytes = frame.result_bytes;
        }
        let base = if matches!(base, Base::Text(_)) { Base::Text(bytes) } else { base };
        let unit = xputrace_script::units::join_unit(ty.unit, value.ty.unit);
        self.checked.locals[result] = Type { base, optional: ty.optional || value.ty.optional, unit };
    }

    pub(super) fn new_local(&mut self, ty: Type) -> LocalId {
        self.checked.locals.push(ty);
        self.checked.locals.len() - 1
    }
}

/// Returns a variable's value if it is known at compile time.
fn captured(value: &Expr) -> Option<Captured> {
    match (&value.kind, value.ty) {
        (ExprKind::Const(n), Type { base: Base::Int, unit: Unit::None, .. }) => Some(Captured::Int(*n)),
        (ExprKind::Const(n), Type { base: Base::Bool, .. }) => Some(Captured::Bool(*n != 0)),
        (ExprKind::Literal(text), _) => Some(Captured::Str(text.clone())),
        (ExprKind::Missing, _) => Some(Captured::Unit),
        _ => None,
    }
}

/// Whether any statement but the last returns.
fn returns_early(body: &[SyntaxStmt]) -> bool {
    let Some((last, front)) = body.split_last() else { return false };
    let inside_last = match last {
        SyntaxStmt::Return(..) => false,
        other => contains(other, &mut is_return),
    };
    inside_last || front.iter().any(|it| contains(it, &mut is_return))
}

fn is_return(node: &ASTNode) -> bool {
    matches!(node, ASTNode::Stmt(SyntaxStmt::Return(_, flags, _)) if !flags.contains(ASTFlags::BREAK))
}

/// Whether a body assigns to one of its variables.
fn assigns(body: &[SyntaxStmt], name: &str) -> bool {
    let mut assigns = |node: &ASTNode| match node {
        ASTNode::Stmt(SyntaxStmt::Assignment(it)) => {
            matches!(&it.1.lhs, Syntax::Variable(variable, ..) if variable.1 == name)
        }
        _ => false,
    };
    body.iter().any(|it| contains(it, &mut assigns))
}

fn contains(stmt: &SyntaxStmt, test: &mut dyn FnMut(&ASTNode) -> bool) -> bool {
    let mut found = false;
    stmt.walk(&mut Vec::new(), &mut |path: &[ASTNode]| {
        found |= path.last().is_some_and(&mut *test);
        true
    });
    found
}
