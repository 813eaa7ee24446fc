//! Turns syntax into typed statements: resolves names, infers types, folds constants, and reports
//! what cannot be compiled with what to write instead.
//!
//! The same pass infers the shapes of maps. It repeats until they are stable; only the last round's
//! diagnostics count.

pub(in crate::compile) mod arguments;
mod calls;
mod constants;
mod exprs;
mod fields;
mod inline;
mod maps;
mod names;
mod operators;
mod stmts;
mod switch;
mod warn;

use super::tables::Shapes;
use super::typed::{Base, Block, Checked, Expr, Kind, LocalId, Source, Type};
use super::unit::Unit;
use super::{chain, tables, typed};
use crate::handler::{Captured, Handler, Staged};
pub(super) use fields::unknown_at_launch;
use inline::Frame;
use names::constants;
use rhai::{Position, Stmt as SyntaxStmt};
use rustc_hash::FxHashMap;
use xputrace_model::catalog::Catalog;
use xputrace_model::diagnostic::{Diagnostic, FileId, Label};
use xputrace_model::plan::{ContextWord, Place, Target, is_instruction};

/// Code of the error for a function that the probed file lacks.
const NO_SUCH_FUNCTION: &str = "no-such-function";
/// The same for a USDT probe.
const NO_SUCH_USDT: &str = "no-such-usdt";
/// The same for a tracepoint.
pub(super) const UNKNOWN_TRACEPOINT: &str = "unknown-tracepoint";
/// The same for tracepoints of a pattern.
pub(super) const TRACEPOINT_PATTERN: &str = "tracepoint-pattern";
/// Codes of the errors for places that this machine lacks, and another one may have.
pub const MISSING_PLACES: [&str; 4] = [NO_SUCH_FUNCTION, NO_SUCH_USDT, UNKNOWN_TRACEPOINT, TRACEPOINT_PATTERN];

struct Checker<'a> {
    staged: &'a Staged,
    catalog: &'a dyn Catalog,
    handler: &'a Handler,
    place: Place,
    tests_launch: bool,
    shapes: &'a mut Shapes,
    diagnostics: &'a mut Vec<Diagnostic>,
    checked: Checked,
    /// The file being checked.
    file: FileId,
    scopes: Vec<Vec<(String, Binding)>>,
    loops: usize,
    /// The functions being inlined, outermost first.
    frames: Vec<Frame>,
    /// Fields that an enclosing test has shown to be present.
    there: Vec<Source>,
    /// Variables that hold a word of the probe's context.
    context_words: FxHashMap<LocalId, ContextWord>,
    /// Variables that hold a return value as it is in the register.
    raw_returns: Vec<LocalId>,
    /// Calls inlined so far.
    inlined: usize,
    /// Where device code reads fields of its launch, other than as parts of keys.
    loose_launch: Vec<Label>,
}

/// What a name in a handler stands for.
#[derive(Clone)]
enum Binding {
    Local(LocalId),
    Constant(Captured),
    Event,
}

impl Checker<'_> {
    pub(super) fn label(&self, at: Position) -> Label {
        self.staged.label(self.file, at)
    }

    pub(super) fn error(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.push(diagnostic);
    }

    /// Reports an error and returns a placeholder of a type that fits anywhere.
    pub(super) fn poison(&mut self, diagnostic: Diagnostic, at: Position) -> Expr {
        self.error(diagnostic);
        Expr { kind: Kind::Const(0), ty: Type::of(Base::Unknown), at }
    }

    pub(super) fn literal(&mut self, text: &str, at: Position) -> Expr {
        Expr { kind: Kind::Literal(text.into()), ty: Type::of(Base::Name), at }
    }

    /// Checks that the probe's target exists on this machine, as far as that is known in advance.
    pub(super) fn check_target(&mut self) {
        let target = &self.handler.target;
        if let Target::Function { object, .. } | Target::Usdt { object, .. } = target
            && !self.catalog.has_file(object)
        {
            let diagnostic = no_file(object, self.pattern_label());
            return self.error(diagnostic);
        }
        let Some((code, why)) = missing_place(target, self.catalog) else { return };
        let help = match target {
            Target::Tracepoint { category, .. } => tracepoints_help(self.staged, self.catalog, category),
            Target::Function { function, .. } if is_instruction(function) => {
                "`objdump -d` shows where instructions begin".to_owned()
            }
            Target::Function { object, .. } => {
                format!("`xputrace list 'uprobe:{object}:*'` lists the functions that can be probed")
            }
            Target::Usdt { object, .. } => {
                format!("`xputrace list 'usdt:{object}:*'` lists the file's probes, `list 'usdt:*' -p PID` a process's")
            }
            _ => return,
        };
        self.error(Diagnostic::error(code, why, self.pattern_label()).help(help));
    }

    /// Labels the pattern if the declaration contains it literally, else the declaration.
    pub(super) fn pattern_label(&self) -> Label {
        let declared = self.handler.declared_at.clone();
        let file = self.staged.sources.files.get(declared.file.0 as usize);
        let behind = file.and_then(|it| it.text.get(declared.span.end..)).unwrap_or_default();
        // The handler starts at its bars.
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

    /// Checks a block's statements in a new scope; the last expression is its value.
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

    pub(super) fn unsupported(&mut self, what: &str, at: Position, instead: &str) {
        let label = self.label(at);
        self.error(Diagnostic::error("unsupported", format!("{what} cannot be compiled"), label).help(instead));
    }

    /// Reports what device code cannot do yet.
    pub(super) fn not_yet_on_gpu(&mut self, what: &str, at: Position, instead: &str) {
        let label = self.label(at);
        let message = format!("{what} is not implemented yet in device code");
        self.error(Diagnostic::error("not-in-device-code", message, label).help(instead));
    }

    pub(super) fn no_value(&mut self, what: &str, at: Position, instead: &str) -> Expr {
        self.unsupported(what, at, instead);
        Expr { kind: Kind::Const(0), ty: Type::of(Base::Unknown), at }
    }
}

/// Returns the code and the reason of the error for a place that is known not to exist.
pub(super) fn missing_place(target: &Target, catalog: &dyn Catalog) -> Option<(&'static str, String)> {
    match target {
        Target::Tracepoint { category, name } => {
            catalog.tracepoint(category, name).err().map(|why| (UNKNOWN_TRACEPOINT, why))
        }
        Target::Function { object, function } if catalog.has_file(object) => {
            catalog.function(object, function).err().map(|why| (NO_SUCH_FUNCTION, why))
        }
        Target::Usdt { object, pattern } if catalog.has_file(object) => {
            catalog.usdt(object, pattern).err().map(|why| (NO_SUCH_USDT, why))
        }
        _ => None,
    }
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
        there: Vec::new(),
        context_words: FxHashMap::default(),
        raw_returns: Vec::new(),
        inlined: 0,
        loose_launch: Vec::new(),
    };
    checker.check_target();
    checker.checked.body = checker.block(&handler.body, false);
    checker.check_launch();
    checker.checked
}

/// Warns of a file that is not there now; the program of a run may bring it along.
fn no_file(object: &str, label: Label) -> Diagnostic {
    if object.contains('/') {
        return Diagnostic::warning("no-such-file", format!("there is no file `{object}` here"), label)
            .help("a path is relative to the directory in which xputrace is started; a run without the file fails");
    }
    Diagnostic::warning("no-such-file", format!("no file of the name `{object}` is installed or running here"), label)
        .help("a run in which no process maps such a file fails")
        .help("if the program brings it along, name it by its path, so that `check` knows its functions")
}

pub(super) fn missing(at: Position) -> Expr {
    Expr { kind: Kind::Missing, ty: Type::of(Base::Unknown).maybe(true), at }
}

/// Says how to find tracepoints, or how to record them.
pub(super) fn tracepoints_help(staged: &Staged, catalog: &dyn Catalog, category: &str) -> String {
    match catalog.is_recording() {
        true => format!("record what the script reads: `{}`", staged.sources.record_command()),
        false => format!("`xputrace list 'tracepoint:{category}:*'` lists this machine's"),
    }
}
