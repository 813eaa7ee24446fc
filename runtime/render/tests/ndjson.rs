//! Lines of JSON with types: what a run puts out, and the events of a recording.

mod common;

use common::*;
use serde_json::Value as Json;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use xputrace_model::bucket;
use xputrace_model::context::{GpuContext, WORDS, word};
use xputrace_model::diagnostic::Sources;
use xputrace_model::gap::Gap;
use xputrace_model::loss::{Loss, Losses};
use xputrace_model::object::{Datum, Dump};
use xputrace_model::output::{Member, Output, Piece, StackNames};
use xputrace_model::schema::{Activity, Event, HostEvent, Unit};
use xputrace_model::stack::{Frames, StackKey};
use xputrace_model::table::{Cell, Scalar, TableKind, Value};
use xputrace_render::{
    AboutRecording, Context, EVENT_FORMATS, EventExporter, EventNames, Exported, ExportedArgument, FORMATS, HIT_EVENTS,
    HitRow, HitValue, UNLIMITED, hit_fields,
};

fn golden(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    xputrace_golden::assert(&path, actual);
}

fn typed(outputs: &[Output]) -> String {
    let format = FORMATS.iter().find(|it| it.name == "ndjson").unwrap();
    let (mut exporter, mut out, sources) = ((format.open)(), Vec::new(), Sources::default());
    for output in outputs {
        let mut context = Context { names: &mut Names, sources: &sources, tables: &[], width: UNLIMITED };
        exporter.output(&mut out, output, &mut context).unwrap();
    }
    String::from_utf8(out).unwrap()
}

#[test]
fn each_element_of_a_map_has_its_typed_key() {
    let keys = [Scalar::Int, Scalar::Name, Scalar::Bool, Scalar::Stack];
    let key = |n: i64, name: Value, on: bool, at: u32| vec![Value::Int(n), name, Value::Bool(on), stack(at)];
    let counted = vec![
        (key(0, string("sample"), true, 1), Cell::Number(3)),
        (key(-1, string("a,b\n\x1b\u{9b}"), false, 9), Cell::Number(4)),
        (key(2, Value::Missing, false, 3), Cell::Number(5)),
    ];
    let plain =
        |kind, value| table("@last", &[], TableKind::Plain(kind), Unit::None, vec![(vec![], Cell::Plain(value))]);
    let buckets = |bits| {
        let indices = [1i64, 3, 900].map(|it| (bucket::index(it, bits), 2));
        Cell::Buckets(BTreeMap::from(indices))
    };
    let one =
        |name: &str, kind, cell| view(table(name, &[Scalar::Name], kind, Unit::Nanos, vec![(vec![string("k")], cell)]));
    golden(
        "ndjson.txt",
        &typed(&[
            Output::Attached { probes: 2 },
            Output::Print(vec![
                Piece::Text("launched by\n".into()),
                Piece::Stack(StackKey::Collector { process: 0, id: 1 }),
            ]),
            Output::Object(vec![
                Member { name: "addr".into(), value: Value::Missing, unit: Unit::None },
                Member { name: "took".into(), value: Value::Int(3), unit: Unit::Nanos },
                Member { name: "by".into(), value: stack(1), unit: Unit::None },
            ]),
            Output::Note("what the tracer says".into()),
            view(table("@n", &keys, TableKind::Count, Unit::None, counted)),
            view(plain(Scalar::Bool, Value::Bool(true))),
            view(plain(Scalar::Stack, stack(1))),
            one("@us", TableKind::Hist { bits: 0 }, buckets(0)),
            one("@s", TableKind::Stats, Cell::Stats { count: 2, total: i128::MAX, min: 4, max: 5 }),
            one("@a", TableKind::Avg, Cell::Avg { count: 2, total: 10 }),
            one("@q", TableKind::Quantiles, Cell::Buckets(BTreeMap::from([(TableKind::Quantiles.bucket(9), 4)]))),
            Output::Dump(Dump {
                map: "places".into(),
                rows: vec![
                    (Datum::Array(vec![Datum::Int(1), Datum::Text("x".into())]), Datum::Int(2)),
                    (Datum::Int(7), Datum::Struct(vec![("on".into(), Datum::Bool(true))])),
                ],
            }),
            Output::Record { map: "ring".into(), value: Datum::Int(i128::from(u64::MAX)) },
            Output::Gap(Gap {
                pid: 7,
                comm: "python3".into(),
                holder: "libtorch_cpu.so".into(),
                start: 1,
                end: 9,
                launches: 2,
                saw_all: true,
                was_refused: false,
            }),
            Output::End { losses: Losses::default(), account: None },
        ]),
    );
}

/// Texts by id, beyond them one for all; stacks as everywhere in these tests.
struct Texts(&'static [&'static str], Option<&'static str>);

impl StackNames for Texts {
    fn frames(&mut self, stack: StackKey) -> Option<Frames> {
        Names.frames(stack)
    }
}

impl EventNames for Texts {
    fn text(&self, id: u64) -> Option<&str> {
        usize::try_from(id).ok().and_then(|it| self.0.get(it)).copied().or(self.1)
    }
}

const TEXTS: &[&str] = &["", "matmul<float>", "_Z6matmulIfE", "a\"b\\\n\x1b[1m\u{9b}", "cudaLaunchKernel"];

fn exporter() -> Box<dyn EventExporter> {
    (EVENT_FORMATS.iter().find(|it| it.name == "ndjson").unwrap().open)()
}

/// Returns the lines of these events, and what was lost.
fn lines(
    exported: &[Exported],
    events: &[(usize, GpuContext)],
    hits: &[HitRow<'_>],
    losses: &Losses,
    mut names: Texts,
) -> String {
    let (mut exporter, mut out) = (exporter(), Vec::new());
    let about = AboutRecording {
        command: vec!["./train".into(), "a\u{9b} b".into()],
        machine: "Linux".into(),
        recorder: "xputrace 0".into(),
        unix_seconds: 1,
        monotonic_nanos: 2,
        is_of_software_gpu: true,
        probes: vec![("tracepoint:a:b".into(), vec![("fd".into(), "i32".into())])],
    };
    exporter.begin(&mut out, &about, exported).unwrap();
    for (at, words) in events {
        exporter.event(&mut out, *at, words, &mut names).unwrap();
    }
    hits.iter().for_each(|it| exporter.hit(&mut out, it, &mut names).unwrap());
    exporter.finish(&mut out, losses).unwrap();
    String::from_utf8(out).unwrap()
}

fn of(event: Event) -> Exported {
    Exported { event, arguments: Vec::new() }
}

fn with(words: &[(usize, u64)]) -> GpuContext {
    let mut all = [0; WORDS];
    words.iter().for_each(|(at, value)| all[*at] = *value);
    all
}

#[test]
fn rows_have_what_is_known_of_an_event() {
    let comm = u64::from_le_bytes(*b"python3\0");
    let alone = with(&[(word::TIME, 5), (word::COMM, comm), (word::NAME, 3), (word::SYMBOL, 77), (word::GRID + 1, 2)]);
    let mut joined = alone;
    let more = [
        (word::JOINED, 1),
        (word::LAUNCH_RESULT, -2i64 as u64),
        (word::LAUNCH_API, 4),
        (word::LAUNCH_USTACK, StackKey::Collector { process: 0, id: 1 }.to_word()),
        (word::LAUNCH_TAGGED, 1),
        (word::LAUNCH_TAG, -7i64 as u64),
        (word::GPU_UUID, 2),
    ];
    more.iter().for_each(|(at, value)| joined[*at] = *value);
    let call = with(&[
        (word::call::HAS_ARGUMENT, 1),
        (word::call::ARGUMENT, u64::MAX),
        (word::call::HAS_ARGUMENT + 1, 1),
        (word::call::ARGUMENT + 1, u64::MAX),
    ]);
    let argument = |name: &str, is_unsigned| ExportedArgument { name: name.into(), is_unsigned };
    let arguments = vec![argument("devPtr", true), argument("flags", false), argument("size", true)];
    let exported = [
        of(Event::KERNEL),
        Exported { event: Event::Host(HostEvent::Api), arguments },
        of(Event::Activity(Activity::Memcpy)),
        of(Event::Host(HostEvent::Api)),
    ];
    let copy = with(&[(word::memcpy::SRC, u64::MAX), (word::memcpy::IS_ASYNC, 1)]);
    let values = vec![HitValue::Unsigned(u64::MAX), HitValue::Int(-1), HitValue::Missing, HitValue::Text("c\n".into())];
    let record = vec![("fd", HitValue::Int(-3)), ("path", HitValue::Stack(StackKey::Lost))];
    let hit = HitRow { event: Event::Tracepoint, values, record };
    let mut losses = Losses::default();
    losses.add(Loss::LostAtExit, 2);
    let events = [(0, alone), (0, joined), (1, call), (2, copy), (3, call)];
    golden("events.ndjson", &lines(&exported, &events, &[hit], &losses, Texts(TEXTS, None)));
}

fn schema() -> HashMap<String, Json> {
    let text = (EVENT_FORMATS.iter().find(|it| it.name == "ndjson").unwrap().schema)();
    let schema: Json = serde_json::from_str(&text).unwrap();
    assert_eq!(schema["version"], 1);
    let events = schema["events"].as_array().unwrap().iter();
    events.map(|it| (it["event"].as_str().unwrap().to_owned(), it["fields"].clone())).collect()
}

/// Compares an object's keys and the types of its values with the fields that the schema gives it.
fn assert_as_described(row: &Json, fields: &Json, of: &str) {
    let row = row.as_object().unwrap();
    let fields = fields.as_array().unwrap();
    let name = |it: &Json| it["name"].as_str().unwrap().to_owned();
    let keys: Vec<&String> = row.keys().filter(|it| *it != "event").collect();
    assert_eq!(keys, fields.iter().map(name).collect::<Vec<_>>().iter().collect::<Vec<_>>(), "{of}");
    for field in fields {
        let (value, of) = (&row[&name(field)], format!("{of}.{}", name(field)));
        let is_right = match field["type"].as_str().unwrap() {
            _ if value.is_null() => field["null"] == true,
            "integer" => value.is_i64() || (value.is_u64() && field["unsigned"] == true),
            "boolean" => value.is_boolean(),
            "string" => value.is_string(),
            "object" => value.is_object(),
            _ => value.is_array(),
        };
        assert!(is_right, "{of}: {value} is not {field}");
        if !field["fields"].is_null() && !value.is_null() {
            assert_as_described(value, &field["fields"], &of);
        }
    }
}

#[test]
fn rows_are_as_the_schema_says() {
    let exported: Vec<Exported> = Event::all().filter(|it| !it.columns().is_empty()).map(of).collect();
    let all = |words: GpuContext| (0..exported.len()).map(move |at| (at, words));
    // Nothing known; everything; and words that are negative unless they are unsigned.
    let events: Vec<_> = all([0; WORDS]).chain(all([1; WORDS])).chain(all([u64::MAX; WORDS])).collect();
    let hit = |event| {
        let value = |is_optional, is_text| match (is_optional, is_text) {
            (true, _) => HitValue::Missing,
            (false, true) => HitValue::Text("x".into()),
            (false, false) => HitValue::Int(1),
        };
        let is_text = |name: &str| matches!(name, "comm" | "probe" | "at");
        let values = hit_fields(event).iter().map(|it| value(it.is_optional, is_text(it.name))).collect();
        HitRow { event, values, record: Vec::new() }
    };
    let hits: Vec<_> = HIT_EVENTS.into_iter().map(hit).collect();
    let names = Texts(TEXTS, Some("any"));
    let (schema, text) = (schema(), lines(&exported, &events, &hits, &Losses::default(), names));
    let mut seen = Vec::new();
    for line in text.lines() {
        let row: Json = serde_json::from_str(line).unwrap();
        let event = row["event"].as_str().unwrap().to_owned();
        assert_as_described(&row, &schema[&event], &event);
        seen.push(event);
    }
    seen.sort();
    seen.dedup();
    let mut described: Vec<&String> = schema.keys().collect();
    described.sort();
    assert_eq!(seen.iter().collect::<Vec<_>>(), described);
}
