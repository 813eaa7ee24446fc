//! Staged handlers to a `Plan`: a pure function, Rhai syntax in, eBPF out.
//!
//! ```text
//! Handlers ─scan─▶ uses ─placement─▶ places
//!     └────check, until the maps' shapes hold still─▶ typed handlers ─emit─▶ programs
//! ```
//!
//! What the loader has to know beyond the [`Plan`]: a probe whose function is a pattern reads its
//! function's name from the attach cookie, which is the name's id in the run's string table; a
//! probe with an entry program attaches both programs to the same function, the entry first.

mod aggregate;
mod build;
mod chain;
mod check;
mod check_expr;
mod emit;
mod emit_expr;
mod emit_match;
mod emit_stmt;
mod emit_text;
mod expand;
mod fields;
mod inline;
mod interpreted;
mod nested;
mod placement;
mod probe_ctx;
mod scan;
mod switch;
mod tables;
mod typed;

use crate::handler::{Handler, Staged};
use build::Build;
use placement::Placed;
use scan::Scan;
use tables::Shapes;
use typed::Checked;
use xputrace_model::catalog::Catalog;
use xputrace_model::diagnostic::{Diagnostic, Label, Severity};
use xputrace_model::plan::{Place, Plan};
use xputrace_model::schema::Event;
use xputrace_model::table::TableId;

/// Handlers in the kernel: each is a program, and takes it milliseconds to attach and detach.
const MOST_PROGRAMS: usize = 16_384;
/// Rounds of inference; each can only widen a type, so few are needed.
const MAX_ROUNDS: usize = 8;

/// Compiles all handlers of a script.
///
/// Returns the best plan it could make together with everything it has to say; when any
/// diagnostic is an error, the plan has no programs and must not be run.
pub fn compile(staged: &Staged, catalog: &dyn Catalog) -> (Plan, Vec<Diagnostic>) {
    let mut diagnostics = Vec::new();
    let expanded = expand::tracepoints(staged, catalog, &mut diagnostics);
    let (plan, found) = compile_handlers(&expanded, catalog);
    diagnostics.extend(found);
    let place = |it: &Diagnostic| (it.primary.file, it.primary.span.start, it.primary.span.end, it.code);
    diagnostics.sort_by(|a, b| (place(a), &a.message).cmp(&(place(b), &b.message)));
    // A handler that is declared in a loop, or for many tracepoints, has its mistakes once; that it is for
    // functions that are not there, once a function.
    let told_apart = |a: &Diagnostic, b: &Diagnostic| a.code == check::NO_SUCH_FUNCTION && a.message != b.message;
    diagnostics.dedup_by(|a, b| a.primary == b.primary && a.code == b.code && !told_apart(a, b));
    (plan, diagnostics)
}

fn compile_handlers(staged: &Staged, catalog: &dyn Catalog) -> (Plan, Vec<Diagnostic>) {
    let scans: Vec<Scan> = staged.handlers.iter().map(|it| scan::scan(staged, it)).collect();
    let cpu_maps = placement::written_by_cpu_probes(staged, &scans);
    let mut placed: Vec<Placed> =
        staged.handlers.iter().zip(&scans).map(|(handler, scan)| placement::place(handler, scan, &cpu_maps)).collect();

    let mut diagnostics = Vec::new();
    let in_linux = staged.handlers.iter().zip(&placed).filter(|it| it.1.place == Place::Linux);
    if let Some((handler, _)) = in_linux.clone().nth(MOST_PROGRAMS) {
        return (Plan::default(), vec![too_many(handler, in_linux.count())]);
    }
    let mut shapes = declared(staged);
    let inference = Inference { staged, catalog, scans: &scans, placed: &placed };
    let checked = inference.run(&mut shapes, &mut diagnostics);
    check_maps(&shapes, &mut diagnostics);
    mark_live_reads(staged, &scans, &placed, &mut shapes);

    for ((handler, placed), scan) in staged.handlers.iter().zip(&mut placed).zip(&scans) {
        diagnostics.extend(placement::warn_of_late_reads(staged, handler, placed, scan, &cpu_maps));
        placement::explain_maps(placed, scan, &shapes);
    }

    let fit = !has_errors(&diagnostics);
    let mut build = Build::new(staged, catalog, &shapes);
    for ((handler, placed), checked) in staged.handlers.iter().zip(&placed).zip(&checked) {
        build.handler(handler, placed, checked.as_ref().filter(|_| fit));
    }
    let (mut plan, from_build) = build.finish();
    diagnostics.extend(from_build);
    plan.demand = placement::demand(staged, &placed, &scans);
    plan.demand.launch_ends = placement::reads_launch_ends(&plan, &scans);
    plan.shown_by_end = shown_by_end(staged, &scans, &shapes);
    (plan, diagnostics)
}

fn has_errors(diagnostics: &[Diagnostic]) -> bool {
    diagnostics.iter().any(|it| it.severity == Severity::Error)
}

/// The maps that the script declares itself, with their sizes.
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

/// What inference works on.
struct Inference<'a> {
    staged: &'a Staged,
    catalog: &'a dyn Catalog,
    scans: &'a [Scan<'a>],
    placed: &'a [Placed],
}

impl Inference<'_> {
    /// Checks all handlers until the maps' shapes no longer change; the last round's diagnostics
    /// hold.
    fn run(&self, shapes: &mut Shapes, diagnostics: &mut Vec<Diagnostic>) -> Vec<Option<Checked>> {
        let mut before = shapes.fingerprint();
        for _ in 0..MAX_ROUNDS {
            diagnostics.clear();
            let checked = self.round(shapes, diagnostics);
            let after = shapes.fingerprint();
            if after == before {
                return checked;
            }
            before = after;
        }
        diagnostics.clear();
        let checked = self.round(shapes, diagnostics);
        let growing = shapes.list.iter().zip(before.iter().zip(shapes.fingerprint())).find(|it| *it.1.0 != it.1.1);
        diagnostics.extend(growing.map(|it| grows(&it.0.name, it.0.seen_at.clone())));
        checked
    }

    fn round(&self, shapes: &mut Shapes, diagnostics: &mut Vec<Diagnostic>) -> Vec<Option<Checked>> {
        let handlers = || self.staged.handlers.iter().zip(self.placed).zip(self.scans);
        let checked = handlers()
            .map(|((handler, placed), scan)| {
                let compiled = placed.place != Place::Interpreter;
                compiled.then(|| {
                    let tests_launch = scan.tests_launch;
                    check::check(self.staged, self.catalog, handler, placed.place, tests_launch, shapes, diagnostics)
                })
            })
            .collect();
        for (_, scan) in handlers().filter(|it| it.0.1.place == Place::Interpreter) {
            interpreted::note(self.staged, scan, shapes, diagnostics);
        }
        checked
    }
}

fn too_many(handler: &Handler, n: usize) -> Diagnostic {
    let message = format!("the script declares {n} handlers for the kernel, and at most {MOST_PROGRAMS} can be");
    Diagnostic::error("too-many-handlers", message, handler.declared_at.clone())
        .help("one handler can be at many functions: `uprobe(\"libc:mem*\", |e| @calls[e.func].count())`")
}

/// A map whose strings are made of its own strings has no size.
fn grows(map: &str, seen_at: Label) -> Diagnostic {
    let message = format!("the strings in `{map}` are put together from themselves and would grow without end");
    Diagnostic::error("growing-string", message, seen_at).help("keep the parts in maps of their own")
}

/// Maps that no handler ever stores into are mistakes of spelling, mostly.
fn check_maps(shapes: &Shapes, diagnostics: &mut Vec<Diagnostic>) {
    for shape in shapes.list.iter().filter(|it| !it.written && (it.in_linux || it.in_tracer)) {
        let written = shapes.list.iter().filter(|it| it.written).map(|it| it.name.as_str());
        let mut diagnostic = Diagnostic::error(
            "never-assigned",
            format!("`{}` is read here and never assigned", shape.name),
            shape.seen_at.clone(),
        );
        if let Some(near) = xputrace_model::diagnostic::nearest(&shape.name, written) {
            diagnostic = diagnostic.help(format!("did you mean `{near}`?"));
        }
        diagnostics.push(diagnostic);
    }
}

fn mark_live_reads(staged: &Staged, scans: &[Scan], placed: &[Placed], shapes: &mut Shapes) {
    for ((handler, placed), scan) in staged.handlers.iter().zip(placed).zip(scans) {
        if placed.place == Place::Interpreter {
            interpreted::mark_live_reads(handler, scan, shapes);
        }
    }
}

fn shown_by_end(staged: &Staged, scans: &[Scan], shapes: &Shapes) -> Vec<TableId> {
    let ends = staged.handlers.iter().zip(scans).filter(|it| it.0.event == Event::End);
    let mut shown: Vec<TableId> = ends.flat_map(|it| interpreted::shown(it.1, shapes)).collect();
    shown.sort();
    shown.dedup();
    shown
}
