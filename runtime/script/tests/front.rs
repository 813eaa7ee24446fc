//! The front end: mistakes and their answers, handlers with a host in memory, and the standard
//! library's own tests. `BLESS=1` rewrites the expected answers.

mod fake_host;

use fake_host::FakeHost;
use std::cell::RefCell;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use xputrace_model::context::word;
use xputrace_model::diagnostic::{Diagnostic, Label, SourceFile, Sources};
use xputrace_model::schema::Event;
use xputrace_script::{BundledLoader, EventView, LoadedScript, load};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn stage(name: &str, text: &str) -> LoadedScript {
    load(SourceFile { name: name.into(), text: text.into() }, &[], Rc::new(BundledLoader))
}

fn scripts_in(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(repository().join(folder)).expect("the folder is part of the repository");
    let mut paths: Vec<PathBuf> = entries.map(|it| it.expect("readable").path()).collect();
    paths.retain(|it| it.extension().is_some_and(|it| it == "rhai"));
    paths.sort();
    paths
}

#[test]
fn mistakes_have_answers() {
    let mut wrong = String::new();
    for path in scripts_in("tests/compile/front") {
        let text = std::fs::read_to_string(&path).expect("readable");
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        let loaded = stage(&name, &text);
        let got = render(&loaded.staged.sources, &loaded.diagnostics);
        if let Err(difference) = xputrace_golden::compare(&path.with_extension("txt"), &got) {
            let _ = writeln!(wrong, "{difference}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Formats diagnostics: place, code, message; other places; help.
fn render(sources: &Sources, diagnostics: &[Diagnostic]) -> String {
    let mut out = String::new();
    for it in diagnostics {
        let _ = writeln!(
            out,
            "{} {}: {} `{}`",
            place(sources, &it.primary),
            it.code,
            it.message,
            slice(sources, &it.primary)
        );
        for label in &it.secondary {
            let note = label.note.as_deref().unwrap_or_default();
            let _ = writeln!(out, "    {} `{}`: {note}", place(sources, label), slice(sources, label));
        }
        for help in &it.help {
            let _ = writeln!(out, "    help: {help}");
        }
    }
    out
}

fn place(sources: &Sources, label: &Label) -> String {
    let source = &sources.files[label.file.0 as usize];
    let before = &source.text[..label.span.start];
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("{}:{}:{column}", source.name, before.matches('\n').count() + 1)
}

fn slice<'a>(sources: &'a Sources, label: &Label) -> &'a str {
    let text = &sources.files[label.file.0 as usize].text;
    text[label.span.clone()].lines().next().unwrap_or_default()
}

#[test]
fn the_standard_library_passes_its_own_tests() {
    let paths = scripts_in("stdlib/tests");
    assert_eq!(paths.len(), xputrace_script::stdlib().len(), "one test a library");
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("readable");
        let (_, answers) = run(&text);
        assert!(answers.is_empty(), "{}: {answers:?}", path.display());
    }
}

/// Stages a script and runs each of its interpreted handlers once, in order.
fn run(text: &str) -> (Rc<RefCell<FakeHost>>, Vec<String>) {
    run_on(Rc::default(), text)
}

fn run_on(host: Rc<RefCell<FakeHost>>, text: &str) -> (Rc<RefCell<FakeHost>>, Vec<String>) {
    let mut loaded = stage("test.rhai", text);
    let mut answers: Vec<String> = loaded
        .diagnostics
        .iter()
        .map(|it| format!("{}: {}", place(&loaded.staged.sources, &it.primary), it.message))
        .collect();
    loaded.interpreter.bind(host.clone());
    for handler in &loaded.staged.handlers {
        let Some(closure) = handler.interpreted else { continue };
        let answer = if handler.event == Event::KERNEL {
            loaded.interpreter.run(closure, Some(&kernel_event()))
        } else {
            loaded.interpreter.run(closure, None)
        };
        if let Err(it) = answer {
            answers.push(format!("{}: {}", place(&loaded.staged.sources, &it.primary), it.message));
        }
    }
    (host, answers)
}

/// Returns a joined kernel `add<int>` of 1,500 ns.
fn kernel_event() -> EventView<'static> {
    static WORDS: std::sync::OnceLock<xputrace_model::context::GpuContext> = std::sync::OnceLock::new();
    let words = WORDS.get_or_init(|| {
        let mut words = [0; xputrace_model::context::WORDS];
        words[word::NAME] = 7;
        words[word::DURATION] = 1500;
        words[word::START] = 2000;
        words[word::GRID..word::GRID + 3].copy_from_slice(&[4, 5, 6]);
        words[word::COMM] = u64::from_le_bytes(*b"python\0\0");
        words[word::JOINED] = 1;
        words[word::LAUNCH_START] = 1200;
        words
    });
    EventView { event: Event::KERNEL, words, strings: &|id| (id == 7).then(|| Arc::from("add<int>")), arguments: &[] }
}

/// Returns what a script without mistakes prints.
fn printed(text: &str) -> Vec<String> {
    let (host, answers) = run(text);
    assert!(answers.is_empty(), "{text}\n{answers:?}");
    host.borrow().printed.clone()
}

#[test]
fn plain_values() {
    assert_eq!(
        printed(
            "begin(|| { @n += 2; @n += 3; @x[1, \"a\"] = 5; @x[1, \"a\"] -= 1; @s = \"a\"; @s += \"b\"; @ = 9; });\n\
             end(|| { print(@n); print(`${@n} ${@x[1, \"a\"]} ${@s} ${@}`); print(@n * 2 + @x[1, \"a\"]); });"
        ),
        ["@n: 5", "5 4 ab 9", "14"]
    );
}

#[test]
fn missing_values() {
    assert_eq!(
        printed(
            "begin(|| { @x[1] = 5; @x[2] = 6; @x[2].remove(); @y[1] = 1; @y.clear(); });\n\
             end(|| { print(1 in @x); print(2 in @x); print(@x[2] == ()); print(@x[2] ?? 7); print(`${@x[2]}`); \
             print(@y.len()); print(@y); if @x[1] == 5 { print(\"five\") } });"
        ),
        ["true", "false", "true", "7", "-", "0", "@y: empty", "five"]
    );
}

#[test]
fn aggregations() {
    assert_eq!(
        printed(
            "begin(|| { for i in 1..=100 { @h.quantiles(i); @s[\"k\"].stats(i); @c[i % 3].count(); @t.sum(i); @a.avg(i); } });\n\
             end(|| { print(@t * 2); print(@s[\"k\"].max); print(@s[\"k\"].avg); print(@h.p50); print(@h.percentile(99)); \
             print(@a); print(@c.keys()); for r in @c { print(`${r.key}=${r.value}`) } print(@c.top(1)); print(@h.count); });"
        ),
        ["10100", "100", "50", "50", "99", "@a: 50", "[0, 1, 2]", "1=34", "0=33", "2=33", "@c top 1: 3", "100"]
    );
}

#[test]
fn functions_and_modules_see_maps() {
    assert_eq!(
        printed(
            "import \"fmt\" as fmt;\n\
             fn note(what) { @seen[what] += 1; if @seen[what] > 1 { @last = what; } }\n\
             begin(|| { note(\"a\"); note(\"b\"); note(\"b\"); });\n\
             end(|| { print(`${@seen[\"b\"]} ${@last} ${fmt::duration(1.5.ms)}`); });"
        ),
        ["2 b 1.50 ms"]
    );
}

#[test]
fn live_variables_and_the_top_levels_prints() {
    assert_eq!(
        printed("print(\"first\"); let n = 0; begin(|| { n += 1; }); end(|| { n += 1; print(n); });"),
        ["first", "2"]
    );
}

#[test]
fn events_have_their_fields() {
    assert_eq!(
        printed(
            "kernel(interpret(|k| { print(`${k.name} ${k.duration} ${k.grid.y} ${k.grid.size} ${k.comm}`); \
             print(k.start - k.launch.time); print(k.launch.tag == ()); }));"
        ),
        ["add<int> 1500 5 120 python", "800", "true"]
    );
}

#[test]
fn a_missing_value_has_no_fields_and_no_order() {
    let (_, answers) = run("begin(|| {\n    let gone = ();\n    print(gone.time);\n});\n\
         end(|| { let gone = (); print(gone < \"a\"); });\n\
         end(|| { let gone = (); print(1.5 >= gone); });\n\
         end(|| { let gone = (); print(gone > true); });\n");
    assert_eq!(
        answers,
        [
            "test.rhai:3:16: a missing value has no field `time`",
            "test.rhai:5:36: `<` is applied to a missing value",
            "test.rhai:6:35: `>=` is applied to a missing value",
            "test.rhai:7:36: `>` is applied to a missing value",
        ]
    );
}

#[test]
fn run_time_mistakes_name_their_line() {
    let (_, answers) = run("begin(|| {\n    let x = @gone[1] + 1;\n});\n\
         fn share(a, b) {\n    a / b\n}\n\
         end(|| print(share(1, @zero ?? 0)));\n\
         end(|| print(@n[1].foo));\n\
         kernel(interpret(|k| print(k.nmae)));\n\
         end(|| { while true { } });\n");
    assert_eq!(
        answers,
        [
            "test.rhai:2:22: `+` is applied to a missing value",
            "test.rhai:5:7: division by zero: 1 / 0",
            "test.rhai:8:20: an element of a map has no field `foo`",
            "test.rhai:9:30: this event has no field `nmae`",
            "test.rhai:10:1: this runs too long; is it an endless loop?",
        ]
    );
}

#[test]
fn flame_graphs_exits_and_numbers_of_the_run() {
    let (host, answers) =
        run("end(|| { flamegraph(\"a.svg\", @gpu); print(launches()); exit(3); print(\"never\"); });");
    assert!(answers.is_empty(), "{answers:?}");
    assert_eq!(host.borrow().printed, ["@gpu in a.svg", "12"]);
    assert_eq!(host.borrow().exit, Some(3));
}

#[test]
fn an_integer_without_a_unit_prints_plainly() {
    let (host, answers) =
        run("end(|| { let ns = 1500; print(`${ns.human}`); for row in @none.top(3) { print(row.human); } });");
    assert!(answers.is_empty(), "{answers:?}");
    assert_eq!(host.borrow().printed, ["1500"]);
}
