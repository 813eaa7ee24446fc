//! Finds unknown functions before anything runs. Rhai itself would report them at the first call,
//! which for an `end` handler is after the measurement.

use crate::mistakes::{no_exit_status, unknown_function};
use crate::session::Session;
use crate::words;
use rhai::{ASTNode, Expr, FnCallExpr, FnPtr, Position, Stmt};
use xputrace_model::diagnostic::{Diagnostic, FileId, Label, nearest};

/// Reports a declaration inside a handler, which runs after all probes are in place.
fn late_declaration(name: &str, label: Label) -> Diagnostic {
    let message = format!("`{name}` cannot be called in a handler: all probes are already declared and attached");
    let help = match name {
        "arg" => "call it at the top level, and use the variable here: `let limit = arg(…);`",
        "loaded_ns" | "clock_ahead_ns" => "call it at the top level, and use the variable here",
        "map" => "call it at the top level: `map(#{name: …, size: …});`",
        _ => "declare the probe at the top level, `let detail = …; detail.disable();`, and call `detail.enable()` here",
    };
    Diagnostic::error("late-declaration", message, label).help(help)
}

/// The functions whose closures the interpreter runs.
const INTERPRETING: &[&str] = &["interval", "begin", "end", "interpret"];

/// Finds unknown functions at the top level of every file and in interpreted handlers. Compiled
/// handlers know other functions, which the compiler checks.
pub(crate) fn interpreted(session: &Session) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for file in 0..session.files.len() {
        let mut check = Check { session, file, followed: Vec::new(), found: &mut found };
        session.files[file].interpreted.ast.statements().iter().for_each(|it| check.statement(it, false));
    }
    found
}

struct Check<'a> {
    session: &'a Session,
    file: usize,
    /// Functions of the file that handlers call and that were followed.
    followed: Vec<String>,
    found: &'a mut Vec<Diagnostic>,
}

impl Check<'_> {
    fn statement(&mut self, statement: &Stmt, in_handler: bool) {
        let mut closures = Vec::new();
        statement.walk(&mut Vec::new(), &mut |path: &[ASTNode]| {
            match path.last() {
                Some(ASTNode::Expr(Expr::FnCall(call, position)) | ASTNode::Stmt(Stmt::FnCall(call, position))) => {
                    self.call(call, *position);
                    if in_handler {
                        self.call_while_running(call, *position);
                    }
                }
                Some(ASTNode::Expr(Expr::DynamicConstant(value, _))) if path.iter().any(interprets) => {
                    closures.extend(value.read_lock::<FnPtr>().map(|it| it.fn_name().to_owned()));
                }
                _ => {}
            }
            true
        });
        for closure in closures {
            let body = self.session.files[self.file].interpreted.statements(&closure).unwrap_or_default();
            body.iter().for_each(|it| self.statement(it, true));
        }
    }

    /// Checks that a handler declares nothing, directly or through a function.
    fn call_while_running(&mut self, call: &FnCallExpr, position: Position) {
        let name = call.name.as_str();
        let written = words::as_written(name);
        if words::declaring().any(|it| it == written) {
            self.found.push(late_declaration(written, self.session.label(FileId(self.file as u32), position)));
        } else if call.namespace.is_empty() && !self.followed.iter().any(|it| it == name) {
            self.followed.push(name.to_owned());
            let body = self.session.files[self.file].interpreted.statements(name).unwrap_or_default();
            body.iter().for_each(|it| self.statement(it, true));
        }
    }

    fn call(&mut self, call: &FnCallExpr, position: Position) {
        let name = call.name.as_str();
        if let ("exit", [Expr::IntegerConstant(code, at)]) = (name, &call.args[..])
            && u8::try_from(*code).is_err()
        {
            self.found.push(no_exit_status(*code, self.session.label(FileId(self.file as u32), *at)));
        }
        if let Some(module) = call.namespace.path.first().filter(|it| it.as_str() != "global") {
            return self.module_call(module.as_str(), name, position);
        }
        let defined = self.session.files.iter().any(|it| it.interpreted.defines(name));
        if call.op_token.is_some() || !call.namespace.is_empty() || defined || words::is_known(name) {
            return;
        }
        let label = self.session.label(FileId(self.file as u32), position);
        self.found.push(unknown_function(name, label));
    }
}

impl Check<'_> {
    /// Checks `module::name(…)`.
    fn module_call(&mut self, alias: &str, name: &str, position: Position) {
        let file = FileId(self.file as u32);
        let imported = self.session.modules.iter().find(|it| it.importer == file && it.alias == alias);
        let functions = imported.and_then(|it| self.session.files.get(it.module.0 as usize)).map(|it| &it.interpreted);
        if functions.is_some_and(|it| it.defines(name)) {
            return;
        }
        let label = self.session.label(file, position);
        self.found.push(no_module_function(alias, name, functions.map(|it| it.named_functions()), label));
    }
}

/// Reports a call of a module's function that does not exist. `functions` are those that do, if the module is imported.
fn no_module_function<'a>(
    alias: &str,
    name: &str,
    functions: Option<impl Iterator<Item = &'a str>>,
    label: Label,
) -> Diagnostic {
    let Some(functions) = functions else {
        return Diagnostic::error("unknown-module", format!("no module `{alias}` is imported here"), label)
            .help(format!("write `import \"{alias}\" as {alias};` at the top level"));
    };
    let diagnostic =
        Diagnostic::error("unknown-function", format!("the module `{alias}` has no function `{name}`"), label);
    match nearest(name, functions) {
        Some(near) => diagnostic.help(format!("did you mean `{alias}::{near}`?")),
        None => diagnostic,
    }
}

/// Whether a node is a call whose closures the interpreter runs.
fn interprets(node: &ASTNode) -> bool {
    match node {
        ASTNode::Expr(Expr::FnCall(call, _)) => INTERPRETING.contains(&call.name.as_str()),
        ASTNode::Stmt(Stmt::FnCall(call, _)) => INTERPRETING.contains(&call.name.as_str()),
        _ => false,
    }
}
