//! Expands tracepoint handlers with wildcards into one handler per matching tracepoint: their
//! records differ, and so do their names.

use super::check::tracepoints_help;
use crate::handler::{Handler, Staged};
use std::borrow::Cow;
use xputrace_model::catalog::{Catalog, glob, is_attachable};
use xputrace_model::diagnostic::Diagnostic;
use xputrace_model::plan::Target;

/// Maximum number of tracepoints that a pattern may match: each becomes a program in Linux.
const MOST_MATCHES: usize = 1024;

/// Returns the script without wildcards in tracepoints.
pub(super) fn tracepoints<'a>(
    staged: &'a Staged,
    catalog: &dyn Catalog,
    diagnostics: &mut Vec<Diagnostic>,
) -> Cow<'a, Staged> {
    if !staged.handlers.iter().any(|it| pattern(it).is_some()) {
        return Cow::Borrowed(staged);
    }
    let known = catalog.tracepoints();
    let mut expanded = staged.clone();
    expanded.handlers.clear();
    for handler in &staged.handlers {
        match (pattern(handler), &known) {
            (None, _) => expanded.handlers.push(handler.clone()),
            (Some(pattern), Ok(known)) => match matches(&pattern, known) {
                Ok(names) => expanded.handlers.extend(names.into_iter().map(|it| at(handler, it))),
                Err(message) => diagnostics.push(
                    Diagnostic::error("tracepoint-pattern", message, handler.declared_at.clone())
                        .help(tracepoints_help(staged, catalog, "*")),
                ),
            },
            (Some(_), Err(why)) => {
                diagnostics.push(Diagnostic::error("unknown-tracepoint", why, handler.declared_at.clone()));
            }
        }
    }
    Cow::Owned(expanded)
}

/// Returns `CATEGORY:NAME` of a handler's tracepoints if it contains wildcards.
fn pattern(handler: &Handler) -> Option<String> {
    match &handler.target {
        Target::Tracepoint { category, name } => {
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
        target: Target::Tracepoint { category: category.to_owned(), name: name.to_owned() },
        name: format!("{}:{category}:{name}", handler.event.name()),
        ..handler.clone()
    }
}
