//! Compiles staged handlers into a `Plan`: a pure function from Rhai syntax to eBPF.
//!
//! ```text
//! Handlers ─scan, placement─▶ Units ─check, until the maps' shapes hold still─▶ typed Units ─emit─▶ programs
//!                               └── fields that handlers read ─▶ Demand, `explain`
//! ```
//!
//! It knows Rhai's syntax trees, and neither its engine nor its values: see the crate `script`.
//!
//! The loader also needs to know: programs of function probes read the attach cookie
//! (`model::plan::cookie`), which holds the function's name and where its return is seen. A probe
//! with an entry program attaches both programs to the same function, the entry first.
#![forbid(unsafe_code)]

mod aggregate;
mod at_launch;
mod build;
mod carried;
mod chain;
mod check;
mod demand;
mod device;
mod emit;
mod emit_expr;
mod emit_match;
mod emit_stmt;
mod emit_text;
mod expand;
mod explain;
mod interpreted;
mod late;
mod nested;
mod placement;
mod places;
mod probe_ctx;
mod programs;
mod reads;
mod returns;
mod scan;
mod tables;
mod typed;
mod unit;
mod wishes;

use build::Build;
use demand::Demands;
pub use places::MISSING_PLACES;
use tables::Shapes;
use unit::Unit;
pub use wishes::Wishes;
use xputrace_model::catalog::Catalog;
use xputrace_model::diagnostic::{Diagnostic, Label, Severity, nearest};
use xputrace_model::plan::{Place, Plan};
use xputrace_script::handler::{DeclaredProbe, Handler, Staged};

/// Maximum number of handlers in Linux: each is a program, and takes milliseconds to attach and
/// detach.
const MOST_PROGRAMS: usize = 16_384;
/// Maximum rounds of inference; a round can only widen types, so few are needed.
const MAX_ROUNDS: usize = 8;

/// Compiles all handlers of a script.
///
/// Returns the best possible plan and all diagnostics. If any diagnostic is an error, the plan has
/// no programs and must not be run.
pub fn compile(staged: &Staged, catalog: &dyn Catalog, wishes: Wishes) -> (Plan, Vec<Diagnostic>) {
    let mut diagnostics = Vec::new();
    let expanded = expand::handlers(staged, catalog, &mut diagnostics);
    let (plan, found) = compile_handlers(&expanded, catalog, wishes);
    diagnostics.extend(found);
    let place = |it: &Diagnostic| (it.primary.file, it.primary.span.start, it.primary.span.end, it.code);
    diagnostics.sort_by(|a, b| (place(a), &a.message).cmp(&(place(b), &b.message)));
    // Report a handler's errors once, even if it is declared in a loop or for many tracepoints.
    // Report missing functions and the like once for each.
    let told_apart = |a: &Diagnostic, b: &Diagnostic| MISSING_PLACES.contains(&a.code) && a.message != b.message;
    diagnostics.dedup_by(|a, b| a.primary == b.primary && a.code == b.code && !told_apart(a, b));
    (plan, diagnostics)
}

fn compile_handlers(staged: &Staged, catalog: &dyn Catalog, wishes: Wishes) -> (Plan, Vec<Diagnostic>) {
    let mut units = unit::units(staged);
    let in_linux = || units.iter().filter(|it| it.place == Place::Linux);
    if let Some(first_too_many) = in_linux().nth(MOST_PROGRAMS) {
        return (Plan::default(), vec![too_many(first_too_many.handler, in_linux().count())]);
    }
    let mut shapes = declared(staged);
    let mut diagnostics = infer(staged, catalog, &mut units, &mut shapes);
    check_maps(&shapes, &mut diagnostics);
    if !wishes.other_loaders {
        interpreted::mark_live_reads(&units, &mut shapes);
    }
    if wishes.other_loaders {
        diagnostics.extend(carried::check(staged, &units, &shapes));
    }
    diagnostics.extend(device::check_maps(staged, &units, &shapes));
    let (ways, mistakes) = device::ways(staged, &units, &shapes, wishes);
    diagnostics.extend(mistakes);
    diagnostics.extend(device::check_tags(&units));
    diagnostics.extend(late::warn_of_exchanges(staged, &units));
    diagnostics.extend(warn_of_never_enabled(staged));
    diagnostics.extend(interpreted::warn_of_lossy_clears(staged, &units, &shapes));

    let fit = !has_errors(&diagnostics);
    let mut build = Build::new(staged, catalog, &shapes);
    let demands = Demands::of(staged, &units, &ways, wishes);
    (build.plan.demand, build.plan.always, build.plan.switches) = (demands.whole, demands.always, demands.switches);
    build.plan.device_ways = ways;
    build.plan.reads_lines = units.iter().any(|it| it.scan.reads_lines);
    build.has_window = wishes.window;
    // Other loaders have the ids of Linux's stack map alone, and a recording's have the caller already.
    build.keeps_callers = !wishes.other_loaders && !catalog.is_recording();
    build.has_hits = wishes.hits;
    build.ends_in_linux = units.iter().any(Unit::ends_in_linux);
    units.iter().for_each(|it| build.handler(it, fit));
    let (mut plan, from_build) = build.finish();
    diagnostics.extend(from_build);
    diagnostics.extend(device::check_conditions(&plan, &units));
    plan.shown_by_end = interpreted::shown_by_end(&units, &shapes);
    explain::explain(&units, &mut plan);
    (plan, diagnostics)
}

/// Warns of a probe that begins off, and that no handler switches on.
fn warn_of_never_enabled(staged: &Staged) -> Vec<Diagnostic> {
    let is_held = |probe: u32| staged.handlers.iter().any(|it| it.holds.contains(&probe));
    let never = (0u32..).zip(&staged.probes).filter(|(probe, it)| !it.begins_on && !is_held(*probe));
    let warning = |(_, it): (u32, &DeclaredProbe)| {
        let message = format!("this `{}` probe begins disabled, and no handler enables it", it.event.name());
        Diagnostic::warning("never-enabled", message, it.declared_at.clone())
            .help("call `.enable()` in a handler that is declared after it")
    };
    never.map(warning).collect()
}

fn has_errors(diagnostics: &[Diagnostic]) -> bool {
    diagnostics.iter().any(|it| it.severity == Severity::Error)
}

/// Returns the maps that the script declares itself, with their sizes.
fn declared(staged: &Staged) -> Shapes {
    let mut shapes = Shapes::default();
    for map in &staged.maps {
        let id = shapes.id(&map.name, &map.declared_at);
        let shape = &mut shapes.list[id];
        shape.capacity = map.size.unwrap_or(shape.capacity);
        shape.evict = map.evict;
    }
    shapes
}

/// Checks all handlers until the maps' shapes are stable; only the last round's diagnostics count.
fn infer(staged: &Staged, catalog: &dyn Catalog, units: &mut [Unit], shapes: &mut Shapes) -> Vec<Diagnostic> {
    let mut before = shapes.fingerprint();
    for _ in 0..MAX_ROUNDS {
        let diagnostics = check_all(staged, catalog, units, shapes);
        let after = shapes.fingerprint();
        if after == before {
            return diagnostics;
        }
        before = after;
    }
    let mut diagnostics = check_all(staged, catalog, units, shapes);
    let growing = shapes.list.iter().zip(before.iter().zip(shapes.fingerprint())).find(|it| *it.1.0 != it.1.1);
    diagnostics.extend(growing.map(|it| grows(&it.0.name, it.0.seen_at.clone())));
    diagnostics
}

fn check_all(staged: &Staged, catalog: &dyn Catalog, units: &mut [Unit], shapes: &mut Shapes) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    for unit in units.iter_mut().filter(|it| it.is_compiled()) {
        unit.checked = Some(check::check(staged, catalog, unit, shapes, &mut diagnostics));
    }
    for unit in units.iter().filter(|it| !it.is_compiled()) {
        interpreted::note(staged, &unit.scan, shapes, &mut diagnostics);
        interpreted::check_arguments(staged, unit, &mut diagnostics);
    }
    diagnostics
}

fn too_many(handler: &Handler, n: usize) -> Diagnostic {
    let message = format!("the script declares {n} handlers that run in Linux; the limit is {MOST_PROGRAMS}");
    Diagnostic::error("too-many-handlers", message, handler.declared_at.clone())
        .help("one handler can probe many functions: `uprobe(\"libc:mem*\", |e| @calls[e.func].count())`")
}

/// Reports a map whose strings are built from its own strings: they have no maximum size.
fn grows(map: &str, seen_at: Label) -> Diagnostic {
    let message = format!("the strings in `{map}` are built from its own strings and would grow without limit");
    Diagnostic::error("growing-string", message, seen_at).help("keep the parts in separate maps")
}

/// Reports a histogram that evicts: it would lose single buckets of keys that stay.
fn evicts_buckets(map: &str, declared_at: Label) -> Diagnostic {
    let message = format!("`{map}` is a histogram, which cannot evict: it would lose single buckets");
    Diagnostic::error("evicting-histogram", message, declared_at)
        .help("remove `evict`; if the map is full, declare a larger size: `map(#{name: …, size: …})`")
}

/// Reports maps that no handler stores into (usually a misspelling) and histograms that evict.
fn check_maps(shapes: &Shapes, diagnostics: &mut Vec<Diagnostic>) {
    let evicting = shapes.list.iter().filter(|it| it.evict);
    diagnostics.extend(evicting.filter(|it| it.is_bucketed()).map(|it| evicts_buckets(&it.name, it.seen_at.clone())));
    let written = || shapes.list.iter().filter(|it| it.written).map(|it| it.name.as_str());
    for shape in shapes.list.iter().filter(|it| !it.written) {
        let message = format!("`{}` is read here but never assigned", shape.name);
        let diagnostic = match (shape.in_linux || shape.in_tracer || shape.in_gpu, shape.in_interpreter) {
            (true, _) => Diagnostic::error("never-assigned", message, shape.seen_at.clone()),
            (false, true) => Diagnostic::warning("never-assigned", message, shape.seen_at.clone()),
            // It is declared and not used.
            (false, false) => continue,
        };
        diagnostics.push(match nearest(&shape.name, written()) {
            Some(near) => diagnostic.help(format!("did you mean `{near}`?")),
            None => diagnostic,
        });
    }
}
