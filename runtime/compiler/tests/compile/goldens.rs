//! Text in, text out: next to each script in `tests/compile/handlers` is the compiler's answer:
//! diagnostics, probes, maps and bytecode. `BLESS=1` rewrites the answers.

use crate::support::{compiled, described};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use xputrace_bytecode::BpfMapId;
use xputrace_bytecode::disasm;
use xputrace_model::plan::{Demand, Plan};

#[test]
fn answers_are_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/compile/handlers");
    let mut scripts: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("the scripts are in the repository")
        .map(|it| it.expect("readable").path())
        .filter(|it| it.extension().is_some_and(|it| it == "rhai"))
        .collect();
    scripts.sort();
    assert!(!scripts.is_empty());
    let mut wrong = Vec::new();
    for path in scripts {
        let script = std::fs::read_to_string(&path).expect("readable");
        wrong.extend(xputrace_golden::compare(&path.with_extension("txt"), &answer(&script)).err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What users of other tracers and languages tend to write: `### name`, the script, `---`, the
/// answer.
#[test]
fn habits_are_answered() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/compile/habits.txt");
    let text = std::fs::read_to_string(&path).expect("readable");
    let mut answered = String::new();
    for section in text.split("### ").skip(1) {
        let (name, rest) = section.split_once('\n').expect("a name");
        let script = rest.split("\n---").next().unwrap_or(rest).trim_end();
        let (_, diagnostics) = compiled(script);
        let answer = described(script, &diagnostics);
        let _ = write!(answered, "### {name}\n{script}\n---\n{answer}\n");
    }
    xputrace_golden::assert(&path, &answered);
}

fn answer(script: &str) -> String {
    let (plan, diagnostics) = compiled(script);
    let mut out = described(script, &diagnostics);
    if diagnostics.iter().all(|it| it.severity != xputrace_model::diagnostic::Severity::Error) {
        describe(&plan, &mut out);
    }
    out
}

fn describe(plan: &Plan, out: &mut String) {
    for probe in &plan.probes {
        let _ = writeln!(out, "{} runs as {}: {}", probe.name, probe.place.name(), probe.why.join("; "));
    }
    let _ = writeln!(out, "demand {}", demanded(&plan.demand));
    for table in &plan.tables {
        let keys: Vec<String> =
            table.keys.iter().map(|it| format!("{:?}{}", it.kind, if it.optional { "?" } else { "" })).collect();
        let map = |it: Option<BpfMapId>| {
            it.map_or("-".into(), |it| {
                let spec = &plan.image.maps[it];
                let inner = spec.inner.as_ref().map_or(String::new(), |it| format!(" of {:?}", it.kind));
                format!("{:?}{inner} {}", spec.kind, spec.name)
            })
        };
        let _ = writeln!(
            out,
            "{}[{}] {:?} {:?}, kernel {}, tracer {}{}",
            table.name,
            keys.join(", "),
            table.kind,
            table.unit,
            map(table.storage.linux()),
            map(table.storage.used_by_tracer()),
            // Only where device code has a part.
            table.storage.gpu().map_or(String::new(), |it| format!(", gpu {}", map(Some(it))))
        );
    }
    if !plan.shown_by_end.is_empty() {
        let _ = writeln!(out, "shown by end {:?}", plan.shown_by_end);
    }
    for program in &plan.image.programs {
        let _ =
            writeln!(out, "\n{} {:?}\n{}", program.name, program.kind, disasm::text(program, &plan.image).trim_end());
    }
}

/// Lists what is demanded, and leaves out what isn't.
fn demanded(demand: &Demand) -> String {
    let Demand { calls, activities, host_events, required, api, details } = demand;
    let parts = [
        format!("calls {calls:?}"),
        format!("activities {activities:?}"),
        format!("host events {host_events:?}"),
        format!("required {required:?}"),
        format!("api {api:?}"),
        format!("details {details:?}"),
    ];
    let parts: Vec<String> = parts.into_iter().filter(|it| !it.ends_with("{}") && !it.ends_with("()")).collect();
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
}
