//! Turns syntax into typed statements: resolves names, infers types, folds constants, and reports
//! what cannot be compiled with what to write instead.
//!
//! The same pass infers the shapes of maps. It repeats until they are stable; only the last round's
//! diagnostics count.

pub(crate) mod arguments;
mod calls;
mod checker;
mod constants;
mod exprs;
mod fields;
mod inline;
mod maps;
mod names;
mod operators;
mod stmts;
mod switch;
mod target;
mod warn;

use crate::tables::Shapes;
use crate::typed::Checked;
use crate::unit::Unit;
use checker::{Binding, Checker, constants};
use rustc_hash::FxHashMap;
use xputrace_model::catalog::Catalog;
use xputrace_model::diagnostic::Diagnostic;
use xputrace_script::handler::Staged;

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
        scan: &unit.scan,
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
