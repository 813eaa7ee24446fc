//! Expands tracepoint handlers with wildcards into one handler per matching tracepoint: their
//! records differ, and so do their names. Leaves out optional handlers at places that do not exist.

use super::places::{TRACEPOINT_PATTERN, UNKNOWN_TRACEPOINT, missing_place, tracepoints_help};
use std::borrow::Cow;
use xputrace_model::catalog::{Catalog, glob, is_attachable};
use xputrace_model::diagnostic::Diagnostic;
use xputrace_model::plan::ProbePlace;
use xputrace_script::handler::{Handler, Staged};

/// Code of the warning for an optional handler whose probe a recording lacks.
const NOT_RECORDED: &str = "not-recorded";
/// Maximum number of tracepoints that a pattern may match: each becomes a program in Linux.
const MOST_MATCHES: usize = 1024;

/// Returns the script without wildcards in tracepoints, and without optional handlers at places that do not exist.
pub(super) fn handlers<'a>(
    staged: &'a Staged,
    catalog: &dyn Catalog,
    diagnostics: &mut Vec<Diagnostic>,
) -> Cow<'a, Staged> {
    if !staged.handlers.iter().any(|it| pattern(it).is_some() || it.options.optional) {
        return Cow::Borrowed(staged);
    }
    let known = catalog.tracepoints();
    let mut expanded = staged.clone();
    expanded.handlers.clear();
    for handler in &staged.handlers {
        match (pattern(handler), &known) {
            (None, _) if handler.options.optional => match missing(handler, catalog) {
                Some((code, why)) => diagnostics.push(left_out(handler, code, why)),
                None => expanded.handlers.push(handler.clone()),
            },
            (None, _) => expanded.handlers.push(handler.clone()),
            (Some(pattern), Ok(known)) => match matches(&pattern, known) {
                Ok(names) => expanded.handlers.extend(names.into_iter().map(|it| at(handler, it))),
                Err(message) if handler.options.optional => {
                    diagnostics.push(left_out(handler, TRACEPOINT_PATTERN, message));
                }
                Err(message) => diagnostics.push(
                    Diagnostic::error(TRACEPOINT_PATTERN, message, handler.declared_at.clone())
                        .help(tracepoints_help(staged, catalog, "*")),
                ),
            },
            (Some(_), Err(why)) => {
                diagnostics.push(Diagnostic::error(UNKNOWN_TRACEPOINT, why, handler.declared_at.clone()));
            }
        }
    }
    Cow::Owned(expanded)
}

/// Returns the code and the reason of the error for a handler at a place that does not exist, or that a recording lacks.
fn missing(handler: &Handler, catalog: &dyn Catalog) -> Option<(&'static str, String)> {
    let is_place =
        matches!(handler.target, ProbePlace::Function { .. } | ProbePlace::Usdt { .. } | ProbePlace::Tracepoint { .. });
    missing_place(&handler.target, catalog).or_else(|| {
        let lacks_it = is_place && !catalog.has_probe(&handler.name);
        lacks_it.then(|| (NOT_RECORDED, format!("the recording has no hits of `{}`", handler.name)))
    })
}

fn left_out(handler: &Handler, code: &'static str, why: String) -> Diagnostic {
    Diagnostic::warning(code, why, handler.declared_at.clone()).help("the handler is optional, and is left out")
}

/// Returns `CATEGORY:NAME` of a handler's tracepoints if it contains wildcards.
fn pattern(handler: &Handler) -> Option<String> {
    match &handler.target {
        ProbePlace::Tracepoint { category, name } => {
            Some(format!("{category}:{name}")).filter(|it| it.contains(['*', '?']))
        }
        _ => None,
    }
}

fn matches<'a>(pattern: &str, known: &'a [String]) -> Result<Vec<(&'a str, &'a str)>, String> {
    let names = known.iter().filter(|it| glob(pattern, it) && is_attachable(it));
    let names: Vec<(&str, &str)> = names.filter_map(|it| it.split_once(':')).collect();
    match names.len() {
        0 => Err(format!("no tracepoint matches `{pattern}`")),
        n if n > MOST_MATCHES => Err(format!("`{pattern}` matches {n} tracepoints; the limit is {MOST_MATCHES}")),
        _ => Ok(names),
    }
}

/// Returns the handler for one of its tracepoints.
fn at(handler: &Handler, (category, name): (&str, &str)) -> Handler {
    Handler {
        target: ProbePlace::Tracepoint { category: category.to_owned(), name: name.to_owned() },
        name: format!("{}:{category}:{name}", handler.event.name()),
        ..handler.clone()
    }
}
