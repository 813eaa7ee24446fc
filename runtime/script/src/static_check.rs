//! Finds unknown functions before anything runs. Rhai itself would report them at the first call,
//! which for an `end` handler is after the measurement.

use crate::declare;
use crate::session::Session;
use rhai::{ASTNode, Expr, FnCallExpr, FnPtr, Position, Stmt};
use xputrace_model::diagnostic::{Diagnostic, FileId, Label, nearest};
use xputrace_model::table::TableKind;

/// Our own functions in the interpreter, except those that declare.
pub(crate) const OWN: &[&str] = &["print", "flamegraph", "exit", "str", "fit"];

/// Numbers about the run, as functions without arguments.
pub const BUILTINS: &[&str] = &[
    "launches",
    "joined",
    "failed",
    "lost",
    "kernels",
    "losses",
    "gpu_busy_ns",
    "gpu_busy_share",
    "gpu_time_ns",
    "collector_cost_ns",
    "tracer_cost_ns",
    "stacks_taken",
    "kept_programs",
    "own_cost_ns",
    "elapsed_ns",
    "output_is_json",
];

/// Every function of Rhai 1.27's standard packages, and those built into its parser.
const RHAI: &str = " E PI abs acos acosh all append as_string asin asinh assert atan atanh bits blob bytes call ceiling \
    chars chop clear contains cos cosh crop curry debug dedup drain elapsed end ends_with eval exit exp extract Fn \
    fill_with filter find find_map floor for_each fraction get get_bit get_bits hypot index_of insert int is_anonymous \
    is_def_fn is_def_var is_empty is_even is_exclusive is_finite is_inclusive is_infinite is_nan is_odd is_shared \
    is_zero keys len ln log make_lower make_upper map max min mixin name order order_by order_desc pad parse_be_float \
    parse_be_int parse_float parse_int parse_json parse_le_float parse_le_int pop print push range reduce reduce_rev \
    remove replace retain reverse round set set_bit set_bits set_tag shift sign sin sinh some sort sort_by sort_desc \
    splice split split_rev sqrt start starts_with sub_string tag take tan tanh to_array to_binary to_blob to_chars \
    to_debug to_degrees to_float to_hex to_int to_json to_lower to_octal to_radians to_string to_upper trim truncate \
    type_of values zip ";

/// What users of other tracers write, and its equivalent here.
const ELSEWHERE: &[(&str, &str)] = &[
    ("printf", "write `print(`…${x}…`)`"),
    ("println", "write `print(…)`"),
    ("kprobe", "Linux kernel function probes are not implemented yet; `tracepoint` is"),
    ("kretprobe", "Linux kernel function probes are not implemented yet; `tracepoint` is"),
    ("fentry", "Linux kernel function probes are not implemented yet; `tracepoint` is"),
    ("fexit", "Linux kernel function probes are not implemented yet; `tracepoint` is"),
    ("BEGIN", "write `begin(|| …)`"),
    ("END", "write `end(|| …)`"),
    ("delete", "write `@map[key].remove()`"),
    ("nsecs", "write `e.time`"),
    ("ustack", "write `e.ustack`, or `k.launch.ustack` for what launched a kernel"),
    ("kstack", "write `e.kstack`"),
    ("clear", "write `@map.clear()`, in an `interval`, `begin` or `end` handler"),
    ("zero", "write `@map.clear()`, in an `interval`, `begin` or `end` handler"),
    ("time", "write `e.time`"),
    ("join", "write `print(`…${x}…`)`"),
    ("len", "only interpreted handlers can ask for a map's size: `@map.len()`"),
];

/// Returns advice for a function of another tracer.
pub(crate) fn elsewhere(name: &str) -> Option<String> {
    let known = ELSEWHERE.iter().find(|(other, _)| *other == name).map(|it| it.1.to_owned());
    known.or_else(|| Some(format!("write `{}`", aggregation_form(TableKind::of_method(name)?))))
}

/// Shows how an aggregation is written.
pub(crate) fn aggregation_form(kind: TableKind) -> String {
    let values = match kind {
        TableKind::Count => "",
        TableKind::Lhist { .. } => "x, min, max, step",
        _ => "x",
    };
    format!("@map.{}({values})", kind.method())
}

/// Returns the names that a declaration may start with, for suggestions.
pub(crate) fn declaring_names() -> impl Iterator<Item = &'static str> {
    declare::names().chain(OWN.iter().copied())
}

/// Whether a function of this name exists, whatever its arguments.
pub(crate) fn is_known(name: &str) -> bool {
    let name = declare::as_written(name);
    declare::names().any(|it| it == name)
        || OWN.contains(&name)
        || BUILTINS.contains(&name)
        || RHAI.split_whitespace().any(|it| it == name)
}

/// Reports a call to an unknown function.
pub(crate) fn unknown_function(name: &str, label: Label) -> Diagnostic {
    let diagnostic = Diagnostic::error("unknown-function", format!("there is no function `{name}`"), label);
    if let Some(help) = elsewhere(name) {
        return diagnostic.help(help);
    }
    match nearest(name, declaring_names().chain(BUILTINS.iter().copied())) {
        Some(near) => diagnostic.help(format!("did you mean `{near}`?")),
        None => diagnostic,
    }
}

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

/// The diagnostic for an exit status that a process cannot have.
pub(crate) fn no_exit_status(code: i64, label: Label) -> Diagnostic {
    Diagnostic::error("exit-code", format!("{code} is not a valid exit status"), label)
        .help("an exit status is from 0 to 255")
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
        let written = declare::as_written(name);
        if declare::names().any(|it| it == written) {
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
        if call.op_token.is_some() || !call.namespace.is_empty() || defined || is_known(name) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_has_every_function_of_our_own() {
        let reference = include_str!("../../../docs/LANGUAGE.md");
        let own = declare::names().chain(OWN.iter().copied()).chain(BUILTINS.iter().copied());
        let is_missing = |it: &&str| !reference.contains(&format!("{it}(")) && !reference.contains(&format!("`{it}`"));
        assert_eq!(own.filter(is_missing).collect::<Vec<_>>(), <[&str; 0]>::default());
    }
}
