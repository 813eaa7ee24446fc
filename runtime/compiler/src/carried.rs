//! What an object of `xputrace build` can't carry of a script's device handlers. The object has their code and maps, and
//! nothing that says what a word is: a name, a part of a histogram, an encoded maximum.

use super::tables::Shapes;
use super::typed::MapId;
use super::unit::Unit;
use std::iter;
use xputrace_model::diagnostic::{Diagnostic, Label};
use xputrace_model::plan::{DeviceWay, LaunchFilter, Place, ProbePlace};
use xputrace_model::schema::{Field, FieldType};
use xputrace_model::table::{Scalar, TableDef, TableKind};
use xputrace_script::handler::{Handler, Staged};

const INSTEAD: &str = "run the script itself (`xputrace run SCRIPT -- CMD`), or build without this handler";

/// Reports what of the device handlers would be lost, or read as another number.
pub(super) fn check(staged: &Staged, units: &[Unit], shapes: &Shapes) -> Vec<Diagnostic> {
    let on_gpu = || units.iter().filter(|it| it.place == Place::Gpu);
    let of_handlers = on_gpu().flat_map(|it| [options(it.handler), names(it), prints(it)]).flatten();
    let maps = (0..shapes.list.len()).filter(|it| shapes.list[*it].in_gpu);
    let of_maps = maps.filter_map(|map| {
        let what = not_a_number(shapes, map)?;
        let place = on_gpu().flat_map(|it| &it.scan.uses).find(|it| it.map == shapes.list[map].name)?;
        let message = format!("{what}, and the maps of an object show numbers as they are stored");
        Some(error(staged.label(place.file, place.at), message))
    });
    of_handlers.chain(of_maps).collect()
}

fn error(at: Label, message: String) -> Diagnostic {
    Diagnostic::error("not-in-objects", message, at).help(INSTEAD)
}

/// At which launches, and by which way, is decided beside the code.
fn options(handler: &Handler) -> Option<Diagnostic> {
    let LaunchFilter { every, tag, stream } = handler.options.launches();
    let given = [
        ("every", every > 1),
        ("tag", tag.is_some()),
        ("stream", stream.is_some()),
        ("via", handler.options.via == Some(DeviceWay::Patch)),
    ];
    if let ProbePlace::Kernels(pattern) = &handler.target
        && pattern.may_overlap()
    {
        let message = "an object has no place for several patterns that may match the same kernel".to_owned();
        return Some(error(handler.declared_at.clone(), message));
    }
    let given: Vec<String> = given.iter().filter(|it| it.1).map(|it| format!("`{}`", it.0)).collect();
    let message = format!("an object has no place for {} of `{}`", given.join(", "), handler.event.name());
    (!given.is_empty()).then(|| error(handler.declared_at.clone(), message))
}

/// Names, and what is known of a launch, are numbers of tables that only a script's run has.
fn names(unit: &Unit) -> Option<Diagnostic> {
    let fields = unit.handler.event.fields().iter();
    let with_parts =
        fields.flat_map(|it| iter::once(("", it)).chain(parts_of_launch(it).map(|part| ("launch.", part))));
    let (of, field) = with_parts
        .filter(|(of, it)| it.kind == FieldType::Name || !of.is_empty())
        .find(|(_, it)| unit.scan.reads.has(it))?;
    let message = format!("the handler reads `{of}{}`, which an object's run doesn't know", field.name);
    Some(error(unit.handler.declared_at.clone(), message))
}

fn parts_of_launch(field: &Field) -> impl Iterator<Item = &'static Field> {
    field.below().filter(|_| field.name == "launch").unwrap_or_default().iter()
}

/// The texts that records stand for, and what `exit` ends, are beside the code.
fn prints(unit: &Unit) -> Option<Diagnostic> {
    let call = unit.scan.calls.iter().find(|it| ["print", "exit"].contains(it))?;
    let message = format!("the handler calls `{call}`, which a device handler in an object can't");
    Some(error(unit.handler.declared_at.clone(), message))
}

/// Says what is in a map that is not a number as it is stored.
fn not_a_number(shapes: &Shapes, map: MapId) -> Option<String> {
    let TableDef { name, keys, kind, .. } = shapes.def(map);
    let is_number = |it: Scalar| matches!(it, Scalar::Int | Scalar::Bool);
    if keys.iter().any(|it| !is_number(it.kind)) {
        return Some(format!("the key of `{name}` has a name"));
    }
    match kind {
        TableKind::Count | TableKind::Sum => None,
        TableKind::Plain(it) if is_number(it) => None,
        TableKind::Plain(_) => Some(format!("`{name}` holds names")),
        _ => Some(format!("`{name}` is a `{}`, which is stored in a form of its own", kind.verb())),
    }
}
