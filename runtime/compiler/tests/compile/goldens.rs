//! Text in, text out: next to each script in `tests/compile/handlers` is the compiler's answer:
//! diagnostics, probes, maps and bytecode. `BLESS=1` rewrites the answers.

use crate::support::{compiled, described};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use xputrace_bytecode::BpfMapId;
use xputrace_bytecode::disasm;
use xputrace_bytecode::insn::{Reg, class};
use xputrace_model::context::ContextWords;
use xputrace_model::plan::{Demand, Place, Plan};

/// Returns the scripts of the repository, in order.
fn handlers() -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/compile/handlers");
    let mut scripts: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("the scripts are in the repository")
        .map(|it| it.expect("readable").path())
        .filter(|it| it.extension().is_some_and(|it| it == "rhai"))
        .collect();
    scripts.sort();
    assert!(!scripts.is_empty());
    let text = |path: PathBuf| {
        let script = std::fs::read_to_string(&path).expect("readable");
        (path, script)
    };
    scripts.into_iter().map(text).collect()
}

#[test]
fn answers_are_as_written() {
    let wrong = handlers().into_iter();
    let wrong =
        wrong.filter_map(|(path, it)| xputrace_golden::compare(&path.with_extension("txt"), &answer(&it)).err());
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The programs keep the context in R6 and read it nowhere else, so what they load from there is all that they read.
#[test]
fn programs_read_of_an_event_what_the_plan_says() {
    let mut n_reading = 0;
    for (path, script) in handlers() {
        let (plan, _) = compiled(&script);
        for probe in plan.probes.iter().filter(|it| it.place == Place::Tracer) {
            let Some(program) = probe.program.map(|it| &plan.image.programs[it]) else { continue };
            let loads = program.insns.iter().filter(|it| it.code & 7 == class::LDX && it.src == Reg::R6.0);
            let loaded: ContextWords = loads.map(|it| it.off as usize / 8).collect();
            let said = probe.reads.expect("a compiled handler's program says what it reads");
            assert!(loaded.without(said).is_empty(), "{}: {}", path.display(), probe.name);
            n_reading += usize::from(!loaded.is_empty());
        }
    }
    assert!(n_reading > 20, "{n_reading} programs that read");
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
