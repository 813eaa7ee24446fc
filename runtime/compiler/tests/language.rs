//! Runs the language reference: its examples compile, and its tables are those of the code.
//! `BLESS=1` rewrites the tables.

use std::fmt::Write;
use std::path::Path;
use std::rc::Rc;
use xputrace_compiler::{Wishes, compile};
use xputrace_model::catalog::MiniCatalog;
use xputrace_model::diagnostic::{Severity, SourceFile};
use xputrace_model::loss::Loss;
use xputrace_model::schema::{self, About, Activity, DeviceEvent, Event, Field, FieldType, HostEvent};
use xputrace_script::{BundledLoader, load};

fn reference() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/LANGUAGE.md")
}

#[test]
fn the_examples_compile() {
    let text = std::fs::read_to_string(reference()).expect("the reference is in the repository");
    let mut wrong = String::new();
    let examples: Vec<&str> = text.split("```rhai\n").skip(1).filter_map(|it| it.split("```").next()).collect();
    assert!(examples.len() >= 9);
    for example in examples {
        let source = SourceFile { name: "example.rhai".into(), text: example.into() };
        let loaded = load(source, &[], Rc::new(BundledLoader));
        let (_, compiled) = compile(&loaded.staged, &MiniCatalog, Wishes::default());
        for it in loaded.diagnostics.iter().chain(&compiled).filter(|it| it.severity == Severity::Error) {
            let _ = writeln!(wrong, "{example}{}: {:?}\n", it.message, it.help);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// The examples of `xputrace help` compile.
#[test]
fn the_examples_of_events_compile() {
    for event in Event::all() {
        let source = SourceFile { name: format!("help {}", event.name()), text: event.about().example.into() };
        let loaded = load(source, &[], Rc::new(BundledLoader));
        let (_, compiled) = compile(&loaded.staged, &MiniCatalog, Wishes::default());
        let wrong: Vec<_> = loaded.diagnostics.iter().chain(&compiled).collect();
        assert!(wrong.is_empty(), "{}: {wrong:#?}", event.name());
    }
}

/// The README's overview is written by hand.
#[test]
fn the_readmes_overview_of_events_has_them_all() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let text = std::fs::read_to_string(readme).expect("it is in the repository");
    let overview = text.split("\n## Events\n").nth(1).and_then(|it| it.split("\n\n").next()).expect("a table");
    // The README shows what real GPUs can do, which device code cannot yet.
    let events = Event::all().filter(|it| !matches!(it, Event::Device(_)));
    let missing: Vec<&str> = events.map(Event::name).filter(|it| !overview.contains(&format!("`{it}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_tables_are_those_of_the_code() {
    let text = std::fs::read_to_string(reference()).expect("the reference is in the repository");
    let activities = Activity::ALL.iter().map(|it| (format!("fields: {}", it.name()), fields(it.fields())));
    let others = [
        ("fields: launch", fields(schema::LAUNCH)),
        ("fields: cpu", fields(schema::CPU)),
        ("fields: uprobe", fields(beyond_cpu(schema::UPROBE))),
        ("fields: uretprobe", fields(beyond_cpu(schema::URETPROBE))),
        ("fields: usdt", fields(beyond_cpu(schema::USDT))),
        ("events", events()),
        ("losses", losses()),
        ("library", library()),
    ];
    let mut written = text.clone();
    let calls = HostEvent::ALL.iter().map(|it| (format!("fields: {}", it.name()), fields(it.fields())));
    let of_threads = Event::Device(DeviceEvent::Entry).fields();
    let own = |place| -> Vec<Field> {
        Event::Device(place).fields().iter().filter(|it| !of_threads.contains(it)).copied().collect()
    };
    let device = [
        ("fields: device".to_owned(), fields(of_threads)),
        ("fields: device_mem".to_owned(), fields(&own(DeviceEvent::Memory))),
        ("fields: device_call".to_owned(), fields(&own(DeviceEvent::Call))),
    ];
    for (name, table) in
        activities.chain(calls).chain(device).chain(others.map(|(name, table)| (name.to_owned(), table)))
    {
        let (start, end) = (format!("<!-- {name} -->\n"), "<!-- end -->");
        let from =
            written.find(&start).unwrap_or_else(|| panic!("the reference has no place for {name}")) + start.len();
        let to = from + written[from..].find(end).expect("the table has an end");
        written.replace_range(from..to, &table);
    }
    xputrace_golden::assert(&reference(), &written);
}

fn events() -> String {
    let mut out = String::from("| declaration | fires when |\n|---|---|\n");
    for About { usage, fires, .. } in Event::all().map(Event::about) {
        let _ = writeln!(out, "| `{}` | {fires} |", usage.replace('|', "\\|"));
    }
    out
}

/// Returns the fields after those of every CPU event.
fn beyond_cpu(fields: &'static [Field]) -> &'static [Field] {
    &fields[schema::CPU.len()..]
}

fn fields(fields: &[Field]) -> String {
    let mut out = String::from("| field | type | meaning |\n|---|---|---|\n");
    for field in fields {
        let kind = match field.kind {
            FieldType::Dim3 | FieldType::Parts(_) => format!("`{}`", field.type_text()),
            _ => field.type_text().replace("()", "`()`"),
        };
        let _ = writeln!(out, "| `{}` | {kind} | {} |", field.name, field.doc);
    }
    out
}

/// Returns the functions of the standard library, with the comments above them.
fn library() -> String {
    let mut out = String::from("| function | meaning |\n|---|---|\n");
    for module in xputrace_script::stdlib() {
        let mut comment = Vec::new();
        for line in module.text.lines() {
            if let Some(text) = line.strip_prefix("/// ") {
                comment.push(text);
            } else if line.starts_with("private fn ") {
                comment.clear();
            } else if let Some(function) = line.strip_prefix("fn ") {
                let head = function.split(" {").next().unwrap_or_default();
                assert!(!comment.is_empty(), "{}::{head} has no comment", module.name);
                let _ = writeln!(out, "| `{}::{head}` | {} |", module.name, comment.join(" "));
                comment.clear();
            }
        }
    }
    out
}

fn losses() -> String {
    let mut out = String::from("| loss | what is counted | what you can do |\n|---|---|---|\n");
    for loss in Loss::ALL {
        let _ = writeln!(out, "| `{}` | {} | {} |", loss.name(), loss.meaning(), loss.help().unwrap_or("-"));
    }
    out
}
