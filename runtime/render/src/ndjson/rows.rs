//! The events of a recording as lines.
//!
//! ```text
//! {"event":"recording","schema":1,…}          first: what was recorded
//! {"event":"kernel","time":…,"launch":{…}}    a row for each event, in the order in which handlers see them
//! {"event":"losses","losses":{…},"rows":{…}}  last: a file without it was cut
//! ```
//! A row has every field of its event ([`super::schema`]). How it is written is worked out once for each kind of event
//! ([`FieldForm`]), so that a row costs little more than its bytes.

use super::schema::{self, key_of};
use super::values::{Values, escaped, quoted};
use crate::export::{AboutRecording, EventExporter, EventNames, Exported, ExportedArgument};
use crate::hits::{HIT_EVENTS, HitRow, HitValue, hit_fields};
use serde_json::{Map, Value as Json, json};
use std::io::{self, Write};
use xputrace_model::context::{GpuContext, word};
use xputrace_model::loss::{Loss, Losses};
use xputrace_model::schema::{Event, Field, FieldType, From, LAUNCH};

/// How many bytes are gathered before they are written.
const MOST_WAITING: usize = 1 << 18;

/// Writes the lines.
#[derive(Default)]
pub(super) struct Rows {
    forms: Vec<Form>,
    hits: Vec<HitForm>,
    values: Values,
    waiting: Vec<u8>,
}

/// How the rows of one kind of event are written.
struct Form {
    event: Event,
    /// `{"event":"kernel"`
    start: Vec<u8>,
    fields: Vec<FieldForm>,
    n_rows: u64,
}

/// Likewise of hits.
struct HitForm {
    event: Event,
    start: Vec<u8>,
    keys: Vec<Vec<u8>>,
    n_rows: u64,
}

/// A field of a row.
struct FieldForm {
    /// `,"time":`; `{` in place of the comma for the first of a nested object.
    key: Vec<u8>,
    /// The word that says whether there is a value.
    flag: Option<usize>,
    value: ValueForm,
}

/// Where a value is, and how it is written.
enum ValueForm {
    Signed(usize),
    Unsigned(usize),
    Bool(usize),
    Text(usize),
    Comm(usize),
    Stack(usize),
    Dim3(usize),
    Object(Vec<FieldForm>),
    /// An object that is likely to be the same in the next row.
    KeptObject(Box<KeptObject>),
    Arguments(Vec<FieldForm>),
}

/// An object and the words that it was made of.
struct KeptObject {
    fields: Vec<FieldForm>,
    words: Vec<usize>,
    values: Vec<u64>,
    json: Vec<u8>,
}

impl EventExporter for Rows {
    fn begin(&mut self, _: &mut dyn Write, about: &AboutRecording, exported: &[Exported]) -> io::Result<()> {
        self.forms = exported.iter().map(Form::of).collect();
        self.hits = HIT_EVENTS.iter().map(|it| HitForm::of(*it)).collect();
        self.line(&header(about));
        Ok(())
    }

    fn event(
        &mut self,
        out: &mut dyn Write,
        exported: usize,
        words: &GpuContext,
        names: &mut dyn EventNames,
    ) -> io::Result<()> {
        let Rows { forms, values, waiting, .. } = self;
        let Some(form) = forms.get_mut(exported) else { return Ok(()) };
        form.n_rows += 1;
        waiting.extend_from_slice(&form.start);
        put_all(&mut form.fields, words, values, names, waiting);
        waiting.extend_from_slice(b"}\n");
        self.write(out, MOST_WAITING)
    }

    fn hit(&mut self, out: &mut dyn Write, hit: &HitRow<'_>, names: &mut dyn EventNames) -> io::Result<()> {
        let Rows { hits, values, waiting, .. } = self;
        let Some(form) = hits.iter_mut().find(|it| it.event == hit.event) else { return Ok(()) };
        form.n_rows += 1;
        waiting.extend_from_slice(&form.start);
        for (key, value) in form.keys.iter().zip(&hit.values) {
            waiting.extend_from_slice(key);
            put_hit_value(value, values, names, waiting);
        }
        if hit.event == Event::Tracepoint {
            put_record(hit, values, names, waiting);
        }
        waiting.extend_from_slice(b"}\n");
        self.write(out, MOST_WAITING)
    }

    fn finish(&mut self, out: &mut dyn Write, losses: &Losses) -> io::Result<()> {
        let line = self.losses(losses);
        self.line(&line);
        self.write(out, 1)
    }
}

impl Rows {
    fn line(&mut self, it: &Json) {
        self.waiting.extend_from_slice(escaped(it.to_string()).as_bytes());
        self.waiting.push(b'\n');
    }

    /// Writes what has been gathered, if it is so much.
    fn write(&mut self, out: &mut dyn Write, least: usize) -> io::Result<()> {
        if self.waiting.len() >= least {
            out.write_all(&self.waiting)?;
            self.waiting.clear();
        }
        Ok(())
    }

    /// Returns the last line: every loss, and the number of rows of each event.
    fn losses(&self, losses: &Losses) -> Json {
        let lost = Loss::ALL.iter().map(|it| (it.name().to_owned(), losses.of(*it))).filter(|it| it.1 > 0);
        let lost: Map<String, Json> = lost.map(|(name, n)| (name, json!(n))).collect();
        let mut rows = Map::new();
        let of_forms = self.forms.iter().map(|it| (it.event, it.n_rows));
        for (event, n) in of_forms.chain(self.hits.iter().map(|it| (it.event, it.n_rows))).filter(|it| it.1 > 0) {
            let sum = rows.get(event.name()).and_then(Json::as_u64).unwrap_or(0) + n;
            rows.insert(event.name().to_owned(), json!(sum));
        }
        json!({ "event": schema::LOSSES, "losses": lost, "rows": rows })
    }
}

fn header(about: &AboutRecording) -> Json {
    let probe = |(name, fields): &(String, Vec<(String, String)>)| {
        let fields: Map<String, Json> = fields.iter().map(|(name, kind)| (name.clone(), json!(kind))).collect();
        json!({ "name": name, "record": fields })
    };
    json!({
        "event": schema::RECORDING,
        "schema": schema::VERSION,
        "xputrace": env!("CARGO_PKG_VERSION"),
        "recorded_by": about.recorder,
        "machine": about.machine,
        "command": about.command,
        "unix_seconds": about.unix_seconds,
        "monotonic_nanos": about.monotonic_nanos,
        "is_of_software_gpu": about.is_of_software_gpu,
        "probes": about.probes.iter().map(probe).collect::<Vec<_>>(),
    })
}

fn start(event: Event) -> Vec<u8> {
    format!("{{\"event\":\"{}\"", event.name()).into_bytes()
}

impl Form {
    fn of(exported: &Exported) -> Self {
        let Exported { event, arguments } = exported;
        let fields = event.fields().iter().filter_map(|it| FieldForm::of(*event, it, arguments)).collect();
        Form { event: *event, start: start(*event), fields, n_rows: 0 }
    }
}

impl HitForm {
    fn of(event: Event) -> Self {
        let key = |name: &str| format!(",\"{name}\":").into_bytes();
        let keys = hit_fields(event).iter().map(|it| key(it.name)).collect();
        HitForm { event, start: start(event), keys, n_rows: 0 }
    }
}

impl FieldForm {
    /// Returns how a field is written; `None` for fields that rows don't have.
    fn of(event: Event, field: &Field, arguments: &[ExportedArgument]) -> Option<Self> {
        let (flag, at) = match field.from {
            From::Word(at) => (None, at),
            From::Optional { flag, value } => (Some(flag), value),
            From::Probe => return None,
        };
        let nested =
            |fields: &[Field], event| object(fields.iter().filter_map(|it| FieldForm::of(event, it, &[])).collect());
        let (flag, value) = match field.kind {
            FieldType::Int if schema::is_unsigned(event.columns(), field) => (flag, ValueForm::Unsigned(at)),
            FieldType::Int => (flag, ValueForm::Signed(at)),
            FieldType::Bool => (flag, ValueForm::Bool(at)),
            FieldType::Name => (flag, ValueForm::Text(at)),
            FieldType::Comm => (flag, ValueForm::Comm(at)),
            FieldType::Stack => (flag, ValueForm::Stack(at)),
            FieldType::Dim3 => (flag, ValueForm::Dim3(at)),
            FieldType::Launch => (Some(word::JOINED), ValueForm::Object(nested(LAUNCH, Event::Launch))),
            FieldType::Parts(parts) => (flag, ValueForm::KeptObject(Box::new(KeptObject::of(nested(parts, event))))),
            FieldType::Arguments => (flag, ValueForm::Arguments(object(argument_forms(arguments)))),
            FieldType::Entry => return None,
        };
        Some(FieldForm { key: format!(",\"{}\":", key_of(field)).into_bytes(), flag, value })
    }

    fn words(&self, all: &mut Vec<usize>) {
        all.extend(self.flag);
        match &self.value {
            ValueForm::Signed(at)
            | ValueForm::Unsigned(at)
            | ValueForm::Bool(at)
            | ValueForm::Text(at)
            | ValueForm::Stack(at) => all.push(*at),
            ValueForm::Comm(at) => all.extend([*at, at + 1]),
            ValueForm::Dim3(at) => all.extend([*at, at + 1, at + 2]),
            ValueForm::Object(fields) | ValueForm::Arguments(fields) => fields.iter().for_each(|it| it.words(all)),
            ValueForm::KeptObject(kept) => all.extend(&kept.words),
        }
    }
}

/// Makes fields those of a nested object.
fn object(mut fields: Vec<FieldForm>) -> Vec<FieldForm> {
    fields.first_mut().into_iter().for_each(|it| it.key[0] = b'{');
    fields
}

fn argument_forms(arguments: &[ExportedArgument]) -> Vec<FieldForm> {
    let form = |(n, it): (usize, &ExportedArgument)| {
        let at = word::call::ARGUMENT + n;
        let value = if it.is_unsigned { ValueForm::Unsigned(at) } else { ValueForm::Signed(at) };
        let key = format!(",{}:", quoted(&it.name)).into_bytes();
        FieldForm { key, flag: Some(word::call::HAS_ARGUMENT + n), value }
    };
    arguments.iter().enumerate().map(form).collect()
}

impl KeptObject {
    fn of(fields: Vec<FieldForm>) -> Self {
        let mut words = Vec::new();
        fields.iter().for_each(|it| it.words(&mut words));
        KeptObject { fields, words, values: Vec::new(), json: Vec::new() }
    }

    fn put(&mut self, words: &GpuContext, values: &mut Values, names: &mut dyn EventNames, out: &mut Vec<u8>) {
        let is_same = !self.json.is_empty() && self.words.iter().zip(&self.values).all(|(at, it)| words[*at] == *it);
        if !is_same {
            self.json.clear();
            put_object(&mut self.fields, words, values, names, &mut self.json);
            self.values.clear();
            self.values.extend(self.words.iter().map(|at| words[*at]));
        }
        out.extend_from_slice(&self.json);
    }
}

fn put_object(
    fields: &mut [FieldForm],
    words: &GpuContext,
    values: &mut Values,
    names: &mut dyn EventNames,
    out: &mut Vec<u8>,
) {
    if fields.is_empty() {
        out.push(b'{');
    }
    put_all(fields, words, values, names, out);
    out.push(b'}');
}

fn put_all(
    fields: &mut [FieldForm],
    words: &GpuContext,
    values: &mut Values,
    names: &mut dyn EventNames,
    out: &mut Vec<u8>,
) {
    for FieldForm { key, flag, value } in fields {
        out.extend_from_slice(key);
        match flag {
            Some(flag) if words[*flag] == 0 => out.extend_from_slice(b"null"),
            _ => put(value, words, values, names, out),
        }
    }
}

fn put(value: &mut ValueForm, words: &GpuContext, values: &mut Values, names: &mut dyn EventNames, out: &mut Vec<u8>) {
    match value {
        ValueForm::Signed(at) => values.signed(out, words[*at] as i64),
        ValueForm::Unsigned(at) => values.unsigned(out, words[*at]),
        ValueForm::Bool(at) => out.extend_from_slice(if words[*at] != 0 { b"true" } else { b"false" }),
        ValueForm::Text(at) => values.text(out, words[*at], names),
        ValueForm::Comm(at) => values.comm(out, [words[*at], words[*at + 1]]),
        ValueForm::Stack(at) => values.stack(out, words[*at], names),
        ValueForm::Dim3(at) => {
            for (n, before) in b"[,,".iter().enumerate() {
                out.push(*before);
                values.signed(out, words[*at + n] as i64);
            }
            out.push(b']');
        }
        ValueForm::Object(fields) | ValueForm::Arguments(fields) => put_object(fields, words, values, names, out),
        ValueForm::KeptObject(kept) => kept.put(words, values, names, out),
    }
}

fn put_hit_value(value: &HitValue<'_>, values: &mut Values, names: &mut dyn EventNames, out: &mut Vec<u8>) {
    match value {
        HitValue::Missing => out.extend_from_slice(b"null"),
        HitValue::Int(it) => values.signed(out, *it),
        HitValue::Unsigned(it) => values.unsigned(out, *it),
        HitValue::Text(it) => out.extend_from_slice(quoted(it).as_bytes()),
        HitValue::Stack(it) => values.stack(out, it.to_word(), names),
    }
}

/// Appends a tracepoint's own fields.
fn put_record(hit: &HitRow<'_>, values: &mut Values, names: &mut dyn EventNames, out: &mut Vec<u8>) {
    out.extend_from_slice(b",\"record\":{");
    for (n, (name, value)) in hit.record.iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        out.extend_from_slice(quoted(name).as_bytes());
        out.push(b':');
        put_hit_value(value, values, names, out);
    }
    out.push(b'}');
}
