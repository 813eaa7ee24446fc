//! The probes of a machine, and the fields of their events.

use crate::cells::padded;
use std::fmt::Write;
use xputrace_model::listing::Listed;
use xputrace_model::schema::{Event, Field};

/// Columns of a field's name and type: name, type, meaning.
pub(crate) type FieldRow = [String; 3];

/// Lists probes by name. `verbose` adds the fields of their events, and what cannot be probed.
pub fn listing(probes: &[Listed], verbose: bool) -> String {
    let mut text = String::new();
    for probe in probes {
        match probe.refused {
            None => line(&mut text, &probe.name),
            Some(why) if verbose => line(&mut text, &format!("{} (cannot be probed: {why})", probe.name)),
            Some(_) => {}
        }
        if verbose {
            rows(&mut text, &own_fields(probe));
        }
    }
    if verbose {
        shared_fields(probes, &mut text);
    }
    text
}

/// Returns the fields that are shown under a probe.
fn own_fields(probe: &Listed) -> Vec<FieldRow> {
    match probe.has_place() {
        true => probe.own.iter().map(|(name, kind)| [name.clone(), kind.clone(), String::new()]).collect(),
        false => fields(probe.event),
    }
}

/// Writes the fields that all probes of an event have, once.
fn shared_fields(probes: &[Listed], text: &mut String) {
    for event in Event::all() {
        if probes.iter().any(|it| it.event == event && it.has_place() && it.refused.is_none()) {
            line(text, &format!("every {}", event.name()));
            rows(text, &fields(event));
        }
    }
}

fn fields(event: Event) -> Vec<FieldRow> {
    event.fields().iter().map(|it| row(it, it.name.to_owned())).collect()
}

/// Returns the row of a field that is called so.
pub(crate) fn row(field: &Field, name: String) -> FieldRow {
    [name, field.type_text(), field.doc.to_owned()]
}

/// Writes the rows, each column as wide as it must be.
pub(crate) fn rows(text: &mut String, rows: &[FieldRow]) {
    let width = |column: usize| rows.iter().map(|it| it[column].chars().count()).max().unwrap_or(0);
    let (names, types) = (width(0), width(1));
    for [name, kind, meaning] in rows {
        line(text, format!("    {}  {}  {meaning}", padded(name, names), padded(kind, types)).trim_end());
    }
}

fn line(text: &mut String, content: &str) {
    writeln!(text, "{content}").expect("writing to a string does not fail");
}
