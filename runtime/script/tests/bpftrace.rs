//! Programs for bpftrace and what they are translated to, which compiles. `BLESS=1` rewrites the expected scripts.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use xputrace_bytecode::probe::PidNamespace;
use xputrace_model::catalog::{Catalog, MiniCatalog, TracepointField, TracepointFieldType, TracepointFormat};
use xputrace_model::diagnostic::{Severity, SourceFile};
use xputrace_script::{BundledLoader, compile, load};

fn programs() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/compile/bpftrace");
    let entries = std::fs::read_dir(folder).expect("the folder is part of the repository");
    let mut paths: Vec<PathBuf> = entries.map(|it| it.expect("readable").path()).collect();
    paths.retain(|it| it.extension().is_some_and(|it| it == "bt"));
    paths.sort();
    paths
}

#[test]
fn programs_are_translated_to_scripts_that_compile() {
    let mut wrong = String::new();
    for path in programs() {
        let text = std::fs::read_to_string(&path).expect("readable");
        let translation = xputrace_bpftrace::translate(&text).unwrap_or_else(|it| panic!("{}:{it}", path.display()));
        if let Err(difference) = xputrace_golden::compare(&path.with_extension("rhai"), &translation.text) {
            let _ = writeln!(wrong, "{difference}");
        }
        for mistake in mistakes(&translation.text) {
            let _ = writeln!(wrong, "{}: {mistake}", path.display());
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// The table of the manual is what the translator writes.
#[test]
fn the_table_of_the_manual_is_true() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/BPFTRACE.md");
    let text = std::fs::read_to_string(path).expect("the manual is in the repository");
    let table = text.split("<!-- translations -->").nth(1).and_then(|it| it.split("<!-- end -->").next());
    let rows: Vec<&str> = table.expect("it has the table").lines().filter(|it| it.starts_with("| `")).collect();
    assert!(rows.len() > 20);
    for row in rows {
        let cells = row.trim_start_matches("| ").trim_end_matches(" |").split(" | ").map(|it| {
            let quotes = if it.starts_with("``") { "``" } else { "`" };
            it.strip_prefix(quotes).and_then(|it| it.strip_suffix(quotes)).expect(row).replace("\\|", "|")
        });
        let [program, script]: [String; 2] = cells.collect::<Vec<_>>().try_into().expect(row);
        assert_eq!(translated(&program), script, "{row}");
    }
}

/// Translates a program, a statement or a value, on one line.
fn translated(text: &str) -> String {
    let (before, behind) = match text {
        _ if xputrace_bpftrace::is_program(text) => ("", ""),
        _ if text.ends_with([';', '}']) => ("uprobe:libc:read { ", " }"),
        _ => ("uprobe:libc:write { @m[tid] = arg1; }\nuprobe:libc:read { @value = ", "; }"),
    };
    let program = format!("{before}{text}{behind}");
    let translation = xputrace_bpftrace::translate(&program).unwrap_or_else(|it| panic!("{program}: {it}"));
    assert_eq!(translation.untranslated, [], "{program}");
    // A statement alone may use maps that nothing fills.
    let is_whole = before.is_empty() || before.contains("@m");
    assert!(!is_whole || mistakes(&translation.text).is_empty(), "{}", translation.text);
    let script = translation.text.split_whitespace().collect::<Vec<_>>().join(" ");
    let inner = script.split_once("uprobe(\"libc:read\", |e| ").filter(|_| !before.is_empty());
    match inner {
        None => script,
        Some((_, handler)) => {
            let code = handler.strip_suffix(");").unwrap_or(handler);
            code.strip_prefix("@value = ").unwrap_or(code).to_owned()
        }
    }
}

/// Compiles a script; returns what is wrong with it.
fn mistakes(text: &str) -> Vec<String> {
    let loaded = load(SourceFile { name: "translated.rhai".into(), text: text.into() }, &[], Rc::new(BundledLoader));
    let (_, compiled) = compile::compile(&loaded.staged, &TestCatalog, compile::Wishes::default());
    let errors = loaded.diagnostics.iter().chain(&compiled).filter(|it| it.severity == Severity::Error);
    errors.map(|it| format!("{} at `{}`", it.message, &text[it.primary.span.clone()])).collect()
}

/// The miniature machine, with a few more tracepoints.
struct TestCatalog;

impl Catalog for TestCatalog {
    fn tracepoint(&self, category: &str, name: &str) -> Result<TracepointFormat, String> {
        let names: &[&str] = match (category, name) {
            ("syscalls", "sys_enter_openat") => &["dfd", "filename", "flags", "mode"],
            ("syscalls", "sys_exit_openat") => &["ret"],
            _ => return MiniCatalog.tracepoint(category, name),
        };
        let field = |(at, name): (usize, &&str)| TracepointField {
            name: (*name).to_owned(),
            offset: 16 + 8 * at as u32,
            kind: TracepointFieldType::Int { size: 8, signed: true },
        };
        Ok(TracepointFormat { fields: names.iter().enumerate().map(field).collect() })
    }

    fn tracepoints(&self) -> Result<Vec<String>, String> {
        MiniCatalog.tracepoints()
    }

    fn pid_namespace(&self) -> Option<PidNamespace> {
        None
    }

    fn exec_id_offset(&self) -> Option<u32> {
        None
    }
}
