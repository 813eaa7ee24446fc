//! What handlers that are not compiled say about maps: their shape if nothing else tells it, and
//! which aggregations are read during the run.

use super::chain::{Chain, unwrapped};
use super::check::arguments;
use super::scan::{How, Scan, Switched, Switching, Use, constant};
use super::tables::{MAX_KEY_PARTS, Purpose, Shapes, Stored};
use super::typed::{Base, Type};
use super::unit::Unit as HandlerUnit;
use rhai::{Expr, FnCallExpr};
use xputrace_model::context::MOST_ARGUMENTS;
use xputrace_model::diagnostic::Diagnostic;
use xputrace_model::plan::{Place, ProbePlace};
use xputrace_model::schema::{Event, Unit};
use xputrace_model::table::{TableId, TableKind};
use xputrace_script::handler::Staged;
use xputrace_script::mistakes::no_field;
use xputrace_script::units;
use xputrace_script::{mistakes, words};

/// Checks the parameters of CUDA's calls that a handler reads.
pub(super) fn check_arguments(staged: &Staged, unit: &HandlerUnit, diagnostics: &mut Vec<Diagnostic>) {
    let ProbePlace::Api(functions) = &unit.handler.target else { return };
    for (n, (name, file, at)) in unit.scan.arguments.iter().enumerate() {
        let label = staged.label(*file, *at);
        match arguments::in_all(functions, name) {
            Err(problem) => diagnostics.push(problem.diagnostic(name, label)),
            Ok(_) if n >= MOST_ARGUMENTS => diagnostics.push(arguments::too_many(label)),
            Ok(_) => {}
        }
    }
}

/// Merges one handler's uses into the shapes.
pub(super) fn note(staged: &Staged, scan: &Scan, shapes: &mut Shapes, diagnostics: &mut Vec<Diagnostic>) {
    for it in &scan.unknown_fields {
        diagnostics.push(no_field(&it.of, it.name, &it.known, staged.label(it.file, it.at)));
    }
    for (unit, file, at) in &scan.units_of_times {
        diagnostics.push(units::of_a_time(unit, staged.label(*file, *at)));
    }
    diagnostics.extend(scan.switches.iter().filter_map(|it| mistake_with_probe(staged, it)));
    for each in &scan.uses {
        let label = staged.label(each.file, each.at);
        let map = shapes.id(&each.map, &label);
        shapes.list[map].in_interpreter = true;
        let purpose = match &each.how {
            How::Assign(_) => Some(Purpose::Plain),
            How::Method(call) => aggregation(call).map(Purpose::Aggregate),
            _ => None,
        };
        let indexed = each.keys.as_ref().is_some_and(|it| it.len() <= MAX_KEY_PARTS);
        if indexed || (purpose.is_some() && each.keys.is_none()) {
            let keys = each.keys.iter().flatten().zip(&each.key_units).map(|(it, unit)| loose(it, *unit)).collect();
            shapes.use_key(map, keys, &label, diagnostics);
        }
        if let Some(purpose) = purpose {
            shapes.use_as(map, purpose, &label, diagnostics);
        }
        match &each.how {
            How::Assign(value) => shapes.use_value(map, loose(value, each.value_unit), &label, diagnostics),
            How::Method(call) if purpose.is_some() && !call.args.is_empty() => {
                shapes.use_value(map, loose(&call.args[0], each.value_unit), &label, diagnostics);
            }
            _ => {}
        }
    }
    for shape in &mut shapes.list {
        shape.written |= scan.aliased.contains(&shape.name) || calls_unknown(scan);
    }
}

/// Returns what is wrong with a use of a probe, or of a probe's method.
fn mistake_with_probe(staged: &Staged, it: &Switched) -> Option<Diagnostic> {
    let label = staged.label(it.file, it.at);
    match it.how {
        Switching::Method(_, name) if !words::SWITCHING.contains(&name) => Some(mistakes::no_probe_method(name, label)),
        Switching::Method(probe, _) => {
            let event = staged.probes.get(probe as usize)?.event;
            (!words::can_be_switched(event)).then(|| mistakes::never_switched(event, label))
        }
        Switching::NoProbe(method, noun) => Some(mistakes::no_probe(method, noun, label)),
        Switching::Value => Some(
            Diagnostic::error("probe-value", "this is a probe, which is neither a number nor a map", label)
                .help("a probe has `enable()` and `disable()`; map names start with `@`"),
        ),
    }
}

/// Marks the aggregations that interpreted handlers read or clear during the run.
pub(super) fn mark_live_reads(units: &[HandlerUnit], shapes: &mut Shapes) {
    for unit in units.iter().filter(|it| !it.is_compiled() && it.handler.event != Event::End) {
        mark_reads_of(&unit.scan, shapes);
    }
}

fn mark_reads_of(scan: &Scan, shapes: &mut Shapes) {
    for each in scan.uses.iter().filter(|it| is_read(&it.how)) {
        if let Some(map) = shapes.get(&each.map) {
            shapes.list[map].read_live = true;
            shapes.list[map].cleared_live |= is_removal(&each.how);
        }
    }
    if calls_unknown(scan) {
        for shape in &mut shapes.list {
            shape.read_live = true;
        }
    }
}

/// Whether a handler calls a function that was not followed: it may do anything with any map.
fn calls_unknown(scan: &Scan) -> bool {
    scan.calls.iter().any(|it| it.starts_with(|c: char| c.is_alphabetic()) && !words::is_known(it))
}

/// Warns of clearing a plain map during the run if probes in Linux store into it, unless they only
/// add and subtract: what they store between the last read and the clear is lost.
pub(super) fn warn_of_lossy_clears(staged: &Staged, units: &[HandlerUnit], shapes: &Shapes) -> Vec<Diagnostic> {
    let in_linux = || units.iter().filter(|it| it.place == Place::Linux).flat_map(|it| &it.scan.uses);
    let is_lossy = |name: &str| {
        let is_plain = shapes.get(name).is_some_and(|it| shapes.purpose(it) == Some(Purpose::Plain));
        let is_summed = shapes.get(name).is_some_and(|it| shapes.is_summed(it));
        is_plain && !is_summed && in_linux().any(|it| it.map == name && matches!(it.how, How::Assign(_)))
    };
    let while_running = units.iter().filter(|it| it.handler.event != Event::End);
    let clears = while_running.flat_map(|unit| {
        let clears_all = |it: &&Use| match &it.how {
            How::Method(call) => call.name == "clear" || takes_all(call, it) && !unit.is_compiled(),
            _ => false,
        };
        unit.scan.uses.iter().filter(clears_all)
    });
    clears
        .filter(|it| is_lossy(&it.map))
        .map(|it| {
            let method = if matches!(&it.how, How::Method(call) if call.name == "take") { "take" } else { "clear" };
            let message =
                format!("what probes store in `{}` between the last read and this `{method}` is lost", it.map);
            Diagnostic::warning("lossy-clear", message, staged.label(it.file, it.at))
                .help(
                    "nothing is lost of an aggregation, such as `.sum(x)` or `.max(x)`, or where probes only use `+=`",
                )
                .help(format!("a probe can remove single elements when they are done: `{}[key].remove()`", it.map))
        })
        .collect()
}

/// Whether a method reads and removes all elements of a map.
fn takes_all(call: &FnCallExpr, it: &Use) -> bool {
    call.name == "take" && it.keys.is_none()
}

/// Returns the maps that `end` handlers show: those that they print, draw or clear as a whole, or whose elements they go
/// through.
pub(super) fn shown_by_end(units: &[HandlerUnit], shapes: &Shapes) -> Vec<TableId> {
    let ends = units.iter().filter(|it| it.handler.event == Event::End);
    let whole = ends.flat_map(|it| &it.scan.uses).filter(|it| it.keys.is_none() && shows(&it.how));
    let mut shown: Vec<TableId> = whole.filter_map(|it| shapes.get(&it.map)).map(TableId::at).collect();
    shown.sort();
    shown.dedup();
    shown
}

fn shows(how: &How) -> bool {
    let only_asks = matches!(how, How::Method(call) if matches!(&*call.name, "len" | "is_empty" | "keys"));
    is_read(how) && !only_asks
}

fn is_read(how: &How) -> bool {
    match how {
        How::Read | How::Contains | How::Passed => true,
        How::Method(call) => aggregation(call).is_none(),
        How::Assign(_) => false,
    }
}

fn is_removal(how: &How) -> bool {
    matches!(how, How::Method(call) if matches!(&*call.name, "clear" | "remove" | "take"))
}

/// Returns the aggregation that a method call makes, as far as its arguments are literal.
fn aggregation(call: &FnCallExpr) -> Option<TableKind> {
    Some(match (&*call.name, call.args.len()) {
        ("count", 0) => TableKind::Count,
        (name, 1) => return TableKind::of_one_value(name),
        ("lhist", 4) => TableKind::Lhist {
            min: constant(&call.args[1])?,
            max: constant(&call.args[2])?,
            step: constant(&call.args[3])?,
        },
        _ => return None,
    })
}

/// Returns the type of an expression that is not compiled and has this unit, if its form tells.
fn loose(expr: &Expr, unit: Unit) -> Stored {
    let expr = unwrapped(expr);
    match expr {
        Expr::StringConstant(text, _) => Stored::new(Type::of(Base::Name), Some(text)),
        Expr::BoolConstant(..) => Stored::new(Type::of(Base::Bool), None),
        Expr::Unit(_) => Stored::new(Type::of(Base::Unknown).maybe(true), None),
        _ => match Chain::of(expr).head {
            Expr::IntegerConstant(..) => Stored::new(Type::with(Base::Int, unit), None),
            _ => Stored::new(Type::with(Base::Unknown, unit), None),
        },
    }
}
