//! Lines of JSON with types, for programs: one object a line.
//!
//! `-f ndjson` is [`crate::json`] with typed keys. An element of a map is a line of its own:
//!
//! | type | members |
//! |---|---|
//! | `map`, `hist`, `stats`, `quantiles` | `{"type":"map","map":"@n","keys":[0,"sample"],"value":3}`: values as in `-f json`. A missing part of the key is `null`, a stack the list of its frames |
//! | `print` | `"text"`, or for a printed `#{…}` its `"value"` |
//! | `note` | `"text"` |
//! | `attached_probes`, `gap`, `losses` | the members that their `data` has in `-f json` |
//! | `record` | `{"type":"record","ring":"r","value":…}`: of a compiled object's ring |
//!
//! `xputrace export ndjson` writes the events of a recording ([`rows`]); its schema ([`schema`]) says what is in each.

mod rows;
mod schema;
mod values;

use crate::cells::shown_text;
use crate::context::Context;
use crate::datum;
use crate::export::{EventFormat, Exporter, Format};
use crate::json::{cell, end, gap, object, type_name};
use crate::print::unescaped;
use crate::rows::{KeyPart, MapRow, NamedFrame, NamedStack, named, rows as rows_of};
use serde_json::{Map, Value as Json, json};
use std::io::{self, Write};
use xputrace_model::object::{Datum, Dump};
use xputrace_model::output::{Output, View};
use xputrace_model::table::{Cell, Value};

/// `-f ndjson`.
pub const FORMAT: Format = Format { name: "ndjson", machine_readable: true, open: || Box::new(TypedLines) };

/// `xputrace export ndjson`.
pub const EVENTS: EventFormat = EventFormat {
    name: "ndjson",
    help: "Lines of JSON, one for each event, with all that is known of it",
    schema: schema::text,
    open: || Box::new(rows::Rows::default()),
};

/// Writes one line per output, and one for each element of a map.
struct TypedLines;

impl Exporter for TypedLines {
    fn output(&mut self, out: &mut dyn Write, output: &Output, context: &mut Context<'_>) -> io::Result<()> {
        lines(output, context).iter().try_for_each(|it| writeln!(out, "{}", values::escaped(it.to_string())))
    }
}

fn lines(output: &Output, context: &mut Context<'_>) -> Vec<Json> {
    let line = match output {
        Output::Table(view) => return elements(view, context),
        Output::Dump(it) => return elements_of_object(it),
        Output::Attached { probes } => json!({ "type": "attached_probes", "probes": probes }),
        Output::Print(pieces) => json!({ "type": "print", "text": unescaped(pieces, context.names) }),
        Output::Object(members) => json!({ "type": "print", "value": object(members, context) }),
        Output::Note(text) => json!({ "type": "note", "text": text }),
        Output::Gap(it) => flat("gap", gap(it)),
        Output::Record { map, value } => json!({ "type": "record", "ring": map, "value": datum::json(value) }),
        Output::End { losses, account } => flat("losses", end(losses, account.as_deref(), context)),
    };
    vec![line]
}

/// Puts an object's members beside the type.
fn flat(name: &str, data: Json) -> Json {
    let mut line = Map::from_iter([("type".to_owned(), json!(name))]);
    if let Json::Object(members) = data {
        line.extend(members);
    }
    Json::Object(line)
}

fn elements(view: &View, context: &mut Context<'_>) -> Vec<Json> {
    let def = &view.table.def;
    let rows = rows_of(view, context.names);
    let element = |row: &MapRow| {
        let keys: Vec<Json> = row.key.iter().map(part).collect();
        let value = match &row.cell {
            Cell::Plain(Value::Stack(it)) => frames(&named(*it, context.names)),
            other => cell(other, def.kind, context),
        };
        json!({ "type": type_name(def.kind), "map": def.name, "keys": keys, "value": value })
    };
    rows.iter().map(element).collect()
}

fn part(it: &KeyPart) -> Json {
    match it {
        KeyPart::Missing => Json::Null,
        KeyPart::Int(it, _) => json!(it),
        KeyPart::Bool(it) => json!(it),
        KeyPart::Text(it) => json!(shown_text(it)),
        KeyPart::Stack(it) => frames(it),
    }
}

/// Returns the names of a stack's frames, innermost first.
fn frames(it: &NamedStack) -> Json {
    it.0.iter().map(NamedFrame::text).collect()
}

/// Returns the elements of a compiled object's map.
fn elements_of_object(it: &Dump) -> Vec<Json> {
    let keys = |key: &Datum| match datum::json(key) {
        Json::Array(parts) => parts,
        other => vec![other],
    };
    let element = |(key, value): &(Datum, Datum)| json!({ "type": "map", "map": it.map, "keys": keys(key), "value": datum::json(value) });
    it.rows.iter().map(element).collect()
}
