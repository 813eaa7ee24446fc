//! What is known while a handler is checked, and how its mistakes are reported.

use crate::scan::Scan;
use crate::tables::Shapes;
use crate::typed::{Base, Checked, Expr, ExprKind, LocalId, Type, ValueSource};
use rhai::Position;
use rustc_hash::FxHashMap;
use xputrace_model::catalog::Catalog;
use xputrace_model::diagnostic::{Diagnostic, FileId, Label};
use xputrace_model::plan::{ContextWord, Place};
use xputrace_script::handler::{Captured, Handler, Staged};

/// Checks one handler: its methods are in the files beside.
pub(super) struct Checker<'a> {
    pub(super) staged: &'a Staged,
    pub(super) catalog: &'a dyn Catalog,
    pub(super) handler: &'a Handler,
    pub(super) place: Place,
    pub(super) scan: &'a Scan<'a>,
    pub(super) shapes: &'a mut Shapes,
    pub(super) diagnostics: &'a mut Vec<Diagnostic>,
    pub(super) checked: Checked,
    /// The file being checked.
    pub(super) file: FileId,
    pub(super) scopes: Vec<Vec<(String, Binding)>>,
    pub(super) loops: usize,
    /// The functions being inlined, outermost first.
    pub(super) frames: Vec<InlinedCall>,
    /// Fields that an enclosing test has shown to be present.
    pub(super) there: Vec<ValueSource>,
    /// Variables that hold a word of the probe's context.
    pub(super) context_words: FxHashMap<LocalId, ContextWord>,
    /// Variables that hold a return value as it is in the register.
    pub(super) raw_returns: Vec<LocalId>,
    /// Calls inlined so far.
    pub(super) inlined: usize,
    /// Where device code reads fields of its launch, other than as parts of keys.
    pub(super) loose_launch: Vec<Label>,
}

/// What a name in a handler stands for.
#[derive(Clone)]
pub(super) enum Binding {
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
        Expr { kind: ExprKind::Const(0), ty: Type::of(Base::Unknown), at }
    }

    pub(super) fn literal(&mut self, text: &str, at: Position) -> Expr {
        Expr { kind: ExprKind::Literal(text.into()), ty: Type::of(Base::Name), at }
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
        Expr { kind: ExprKind::Const(0), ty: Type::of(Base::Unknown), at }
    }
}

/// A function being inlined.
pub(super) struct InlinedCall {
    pub(super) file: FileId,
    pub(super) name: String,
    /// Where an early `return` leaves its value.
    pub(super) result: Option<LocalId>,
    /// Maximum length of the strings it returns.
    pub(super) result_bytes: u32,
}

/// Returns the captured values as variables of a body.
pub(super) fn constants(captured: &[(String, Captured)]) -> Vec<(String, Binding)> {
    captured.iter().map(|(name, value)| (name.clone(), Binding::Constant(value.clone()))).collect()
}
