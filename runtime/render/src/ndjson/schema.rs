//! The schema of `xputrace export ndjson`, made from the table of events.
//!
//! Each event has a list of fields: name, type, unit, whether it may be `null`, and what it means. [`VERSION`] changes when
//! a reader of the last one would misread a row; further fields and events do not change it.

use crate::hits::{HIT_EVENTS, HitField, hit_fields};
use serde_json::{Map, Value as Json, json};
use xputrace_model::schema::{Column, Event, Field, FieldType, From, LAUNCH, Unit};

/// Version of the rows.
pub(super) const VERSION: u32 = 1;
/// `event` of the first line.
pub(super) const RECORDING: &str = "recording";
/// `event` of the last line.
pub(super) const LOSSES: &str = "losses";

/// The fields of the first and the last line: name, type, and meaning.
const OF_RECORDING: [(&str, &str, &str); 9] = [
    ("schema", "integer", "version of this schema"),
    ("xputrace", "string", "version of the program that wrote this"),
    ("recorded_by", "string", "name and version of the program that made the recording"),
    ("machine", "string", "where it was made"),
    ("command", "strings", "the command that was recorded"),
    ("unix_seconds", "integer", "its start, in seconds since 1970"),
    ("monotonic_nanos", "integer", "its start on the clock of all times, CLOCK_MONOTONIC"),
    ("is_of_software_gpu", "boolean", "whether GPU times mean nothing: the software GPU ran the kernels"),
    ("probes", "objects", "the CPU probes that were recorded: `name`, and in `record` a tracepoint's own fields"),
];
const OF_LOSSES: [(&str, &str, &str); 2] = [
    ("losses", "object", "the number of each loss by its name; those that are 0 are left out"),
    ("rows", "object", "the number of rows by event"),
];

/// Returns the schema as a text of JSON.
pub(super) fn text() -> String {
    let mut events = vec![made_up(RECORDING, "the first line: what was recorded", &OF_RECORDING)];
    let is_recorded = |it: &Event| matches!(it, Event::Activity(_) | Event::Launch | Event::Host(_));
    events.extend(Event::all().filter(is_recorded).map(of_event));
    events.extend(HIT_EVENTS.into_iter().map(of_hits));
    events.push(made_up(LOSSES, "the last line: a file without it was cut", &OF_LOSSES));
    let schema = json!({ "version": VERSION, "xputrace": env!("CARGO_PKG_VERSION"), "events": events });
    format!("{schema:#}\n")
}

fn made_up(event: &str, meaning: &str, fields: &[(&str, &str, &str)]) -> Json {
    let field = |(name, kind, doc): &(&str, &str, &str)| json!({ "name": name, "type": kind, "null": false, "description": doc });
    json!({ "event": event, "description": meaning, "fields": fields.iter().map(field).collect::<Vec<_>>() })
}

fn of_event(event: Event) -> Json {
    let fields: Vec<Json> = event.fields().iter().filter_map(|it| of_field(it, event.columns())).collect();
    json!({ "event": event.name(), "description": event.about().fires, "fields": fields })
}

/// Describes a field; `None` for one that rows don't have.
fn of_field(field: &Field, columns: &[Column]) -> Option<Json> {
    if field.from == From::Probe || field.kind == FieldType::Entry {
        return None;
    }
    let may_be_null = match field.kind {
        FieldType::Stack | FieldType::Launch => true,
        _ => matches!(field.from, From::Optional { .. }),
    };
    let mut all = described(key_of(field), type_name(field.kind), field.unit, may_be_null, field.doc);
    if is_unsigned(columns, field) {
        all.insert("unsigned".into(), json!(true));
    }
    if key_of(field) != field.name {
        all.insert("field".into(), json!(field.name));
    }
    if !field.texts.is_empty() {
        all.insert("texts".into(), json!(field.texts));
    }
    let below = match field.kind {
        FieldType::Launch => Some((LAUNCH, Event::Launch.columns())),
        _ => field.below().map(|it| (it, columns)),
    };
    if let Some((fields, columns)) = below {
        all.insert("fields".into(), fields.iter().filter_map(|it| of_field(it, columns)).collect());
    }
    Some(Json::Object(all))
}

fn of_hits(event: Event) -> Json {
    let field = |it: &HitField| Json::Object(described(it.name, type_name(it.kind), it.unit, it.is_optional, it.doc));
    let mut fields: Vec<Json> = hit_fields(event).iter().map(field).collect();
    if event == Event::Tracepoint {
        let doc = "the tracepoint's own fields by name, integers and strings; the first line lists them in `probes`";
        fields.push(Json::Object(described("record", "object", Unit::None, false, doc)));
    }
    json!({ "event": event.name(), "description": event.about().fires, "fields": fields })
}

fn described(name: &str, kind: &str, unit: Unit, may_be_null: bool, doc: &str) -> Map<String, Json> {
    let mut all = Map::new();
    all.insert("name".into(), json!(name));
    all.insert("type".into(), json!(kind));
    if let Some(unit) = unit_name(unit) {
        all.insert("unit".into(), json!(unit));
    }
    all.insert("null".into(), json!(may_be_null));
    all.insert("description".into(), json!(doc.replace("`()`", "null")));
    all
}

/// The type of a value in JSON.
fn type_name(kind: FieldType) -> &'static str {
    match kind {
        FieldType::Int => "integer",
        FieldType::Bool => "boolean",
        FieldType::Comm | FieldType::Name => "string",
        FieldType::Stack => "frames",
        FieldType::Dim3 => "[x,y,z]",
        FieldType::Launch | FieldType::Parts(_) | FieldType::Entry | FieldType::Arguments => "object",
    }
}

fn unit_name(unit: Unit) -> Option<&'static str> {
    match unit {
        Unit::Nanos => Some("ns"),
        Unit::Clock => Some("ns of CLOCK_MONOTONIC"),
        Unit::Bytes => Some("bytes"),
        Unit::None | Unit::Mixed => None,
    }
}

/// Returns a field's key in a row, where `event` says what the row is of.
pub(super) fn key_of(field: &Field) -> &'static str {
    match field.name {
        "event" => "event_handle",
        name => name,
    }
}

/// Whether a field is an unsigned integer of 64 bits, such as an address. These are the record's columns.
pub(super) fn is_unsigned(columns: &[Column], field: &Field) -> bool {
    let has_it = |it: &&Column| it.name == field.name && it.meaning.is_some_and(|it| it.from == field.from);
    field.kind == FieldType::Int && columns.iter().find(has_it).is_some_and(|it| !it.is_signed && it.width == 8)
}
