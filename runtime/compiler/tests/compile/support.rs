//! Stages and compiles scripts as the crate does; formats the answers.

use std::rc::Rc;
use xputrace_compiler::{Wishes, compile};
use xputrace_model::catalog::{Catalog, MiniCatalog};
use xputrace_model::diagnostic::{Diagnostic, Label, Severity, SourceFile};
use xputrace_model::plan::Plan;
use xputrace_script::{BundledLoader, LoadedScript, load};

/// Compiles a script on a miniature machine; returns the diagnostics of staging and compiling.
pub(crate) fn compiled(script: &str) -> (Plan, Vec<Diagnostic>) {
    compiled_for(script, Wishes::default())
}

/// The same, for a run that wants this.
pub(crate) fn compiled_for(script: &str, wishes: Wishes) -> (Plan, Vec<Diagnostic>) {
    let loaded = staged(script);
    let (plan, compiler) = compile(&loaded.staged, &MiniCatalog, wishes);
    let mut diagnostics = loaded.diagnostics;
    diagnostics.extend(compiler);
    (plan, diagnostics)
}

/// Returns the plan of a script without mistakes.
pub(crate) fn plan(script: &str) -> Plan {
    plan_on(script, &MiniCatalog)
}

/// The same, on another machine.
pub(crate) fn plan_on(script: &str, catalog: &dyn Catalog) -> Plan {
    let loaded = staged(script);
    let (plan, mut diagnostics) = compile(&loaded.staged, catalog, Wishes::default());
    diagnostics.extend(loaded.diagnostics);
    let errors: Vec<_> = diagnostics.iter().filter(|it| it.severity == Severity::Error).collect();
    assert!(errors.is_empty(), "{script}\n{}", described(script, &diagnostics));
    plan
}

/// Formats diagnostics: place, message, other places, help.
pub(crate) fn described(script: &str, diagnostics: &[Diagnostic]) -> String {
    let mut out = String::new();
    let place = |label: &Label| {
        let before = &script[..label.span.start.min(script.len())];
        let line = before.matches('\n').count() + 1;
        let column = before.len() - before.rfind('\n').map_or(0, |it| it + 1) + 1;
        format!("{line}:{column} `{}`", script.get(label.span.clone()).unwrap_or(""))
    };
    for it in diagnostics {
        let severity = if it.severity == Severity::Error { "error" } else { "warning" };
        out += &format!("{severity}[{}] {} {}\n", it.code, place(&it.primary), it.message);
        for label in &it.secondary {
            out += &format!("  also {} {}\n", place(label), label.note.as_deref().unwrap_or(""));
        }
        for help in &it.help {
            out += &format!("  help: {help}\n");
        }
    }
    out
}

/// Runs a script's top level.
pub(crate) fn staged(script: &str) -> LoadedScript {
    load(SourceFile { name: "script.rhai".into(), text: script.into() }, &[], Rc::new(BundledLoader))
}
