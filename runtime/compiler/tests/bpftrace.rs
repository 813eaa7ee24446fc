//! Programs for bpftrace and what they are translated to, which compiles. `BLESS=1` rewrites the expected scripts.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use xputrace_bytecode::probe::PidNamespace;
use xputrace_compiler::{Wishes, compile};
use xputrace_model::catalog::{Catalog, MiniCatalog, TracepointField, TracepointFieldType, TracepointFormat};
use xputrace_model::diagnostic::{Severity, SourceFile};
use xputrace_script::{BundledLoader, load};

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

/// Probes of every kind that handlers differ by.
const PROBES: &[&str] = &[
    "uprobe:libc:read",
    "uprobe:libc:mem*",
    "uretprobe:libc:read",
    "tracepoint:sched:sched_switch",
    "profile:hz:99",
    "interval:s:1",
    "BEGIN",
    "END",
];

/// Statements that are translated, or refused, in each of them.
const STATEMENTS: &[&str] = &[
    "@ = count(); print(@); clear(@);",
    "@a[pid, comm, cpu, uid] = sum(tid); print(@a, 5);",
    "@b[kstack, ustack(perf)] = stats(nsecs);",
    "@c = hist(elapsed, 2); @d = lhist(nsecs / 1e6, 0, 100, 10); @e = avg(3); @f = min(-3); @g = max(4);",
    "@h[tid] = nsecs; $d = nsecs - @h[tid]; @i = hist($d); delete(@h[tid]);",
    "@j[tid] = 1; if (@j[tid]) { @k[tid]++; } else if (!@k[tid]) { @k[tid] -= 2; } @k[1] |= 5;",
    "@l[comm] = comm; if (@l[comm] == \"x\") { printf(\"%s %-8s\\n\", @l[comm], comm); } @m[@l[comm]] = count();",
    "@n[1] = kstack; @o[@n[1]] = count(); printf(\"%s %d\\n\", kstack, pid);",
    "@p[tid] = func; @q[@p[tid]] = count(); printf(\"%s|%20s\\n\", probe, func);",
    "$x = pid > 3; $y = $x ? \"a\" : \"b\"; @r[$y] = count(); @s = $x; if ($y == \"a\") { @s = 2; }",
    "$x = (int8)pid; $y = (uint32)-tid; $z = ~$x & 0xff; $w = ($x << 3) % 7 - -$y; @t = $w / 2 ^ $z;",
    "printf(\"%5d|%-5u|%05d|%x|%p|%lld|%c|%%|%s\\n\", cpu, uid, gid, pid, tid, nsecs, 65, comm);",
    "printf(\"no end\"); printf(\" %d\", pid); time(); time(\"%H:%M:%S \"); print(strftime(\"%H:%M:%S\", nsecs));",
    "if (pid == 1 || comm != \"x\" && !(tid & 1)) { exit(); } return;",
    "unroll(4) { $i = 1; @u[$i] = count(); } for $j : 0..3 { if ($j == 1) { continue; } @v[$j] = count(); break; }",
    "$n = 5; while ($n > 0) { $n--; if ($n == 2) { break; } } @w = $n;",
    "@aa[1] = 2; for ($kv : @aa) { printf(\"%d %d\\n\", $kv.0, $kv.1); } @bb = len(@aa);",
    "if (has_key(@cc, pid)) { @dd = count(); } @cc[pid] = 1;",
    "if (!strncmp(comm, \"ab\", 2) || strcontains(comm, \"c\")) { @ee = count(); }",
    "@ff[$1, str($2)] = count(); if (pid == $1) { exit(3); }",
    "@gg = arg0; @hh[str(arg1)] = count(); @ii = retval; if (retval < 0) { @jj = sum(retval); }",
    "@kk = args->prev_pid; @ll[args.next_comm] = count(); if (args->prev_comm == \"x\") { exit(); }",
    "$p = (struct x *)arg0; $q = $p->a; @mm = $q; @nn = *$p; @oo = args->a.b[3]; join(args->argv);",
    "if (pid) { $late = 1; } else { $late = 2; } @pp = $late; if (tid) { $text = comm; } @qq[$text] = count();",
    "@rr[pid] = count(); delete(@rr[pid]); zero(@rr); print(@rr, 3, 10); if (@rr[pid] > 5) { exit(); }",
    "$new = 1; $e = 2; $print = 3; $fn = $new + $e + $print; @ss = $fn; @tt[(1, \"a\")] = $fn;",
];

#[test]
fn every_statement_compiles_in_every_probe() {
    let mut wrong = String::new();
    for (probe, statement) in PROBES.iter().flat_map(|probe| STATEMENTS.iter().map(move |it| (probe, it))) {
        let program = format!("{probe} {{ {statement} }}");
        let translation = xputrace_bpftrace::translate(&program).unwrap_or_else(|it| panic!("{program}: {it}"));
        // What has no translation leaves a script without probes.
        let is_empty =
            translation.text.lines().all(|it| it.is_empty() || it.starts_with("//") || it.starts_with("let "));
        for mistake in mistakes(&translation.text).iter().filter(|_| !is_empty) {
            let _ = writeln!(wrong, "{program}\n{}{mistake}\n", translation.text);
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
    let (_, compiled) = compile(&loaded.staged, &TestCatalog, Wishes::default());
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
