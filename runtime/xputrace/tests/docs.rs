//! The examples in the README, the guide pages and the headers of scripts are run.
//!
//! Scripts in ```` ```rhai ```` fences are checked. Transcripts in ```` ```console ```` fences are run and
//! compared: `-- ./llm` stands for the recording of that program; a line `…` in what is expected
//! leaves out the rest. Pages whose programs need the software GPU are run by live tests (`docs/…`).

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const RUN_BY_LIVE_TESTS: [&str; 3] = ["SOFTGPU.md", "PYTHON.md", "OBJECTS.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn xputrace(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xputrace"));
    command.args(arguments).current_dir(root()).output().expect("the binary runs")
}

/// (file, fenced text) of one kind.
fn fences(kind: &str) -> Vec<(String, String)> {
    let mut files = vec![root().join("README.md")];
    files.extend(std::fs::read_dir(root().join("docs")).unwrap().map(|it| it.unwrap().path()));
    let mut found = Vec::new();
    for file in files.iter().filter(|it| it.extension().is_some_and(|it| it == "md")) {
        let text = std::fs::read_to_string(file).unwrap();
        for part in text.split(&format!("```{kind}\n")).skip(1) {
            let fenced = part.split("```").next().unwrap_or_default();
            found.push((file.file_name().unwrap().to_string_lossy().into_owned(), fenced.to_string()));
        }
    }
    found
}

#[test]
fn scripts_in_the_documentation_compile() {
    let scripts = fences("rhai");
    assert!(scripts.len() >= 6, "only {} scripts found", scripts.len());
    for (file, script) in scripts {
        if script.contains("tracepoint(") && !Path::new("/sys/kernel/tracing/events/sched").exists() {
            println!("skipped: tracefs cannot be read");
            continue;
        }
        let done = xputrace(&["check", "-e", &script]);
        assert!(done.status.success(), "{file}:\n{script}\n{}", String::from_utf8_lossy(&done.stderr));
    }
}

#[test]
fn transcripts_in_the_documentation_are_true() {
    let transcripts = fences("console");
    assert!(transcripts.len() >= 2, "only {} transcripts found", transcripts.len());
    for (file, transcript) in transcripts.into_iter().filter(|it| !RUN_BY_LIVE_TESTS.contains(&it.0.as_str())) {
        let (command, expected) = transcript.split_once('\n').unwrap();
        let words = words(command.strip_prefix("$ xputrace ").expect(command));
        let done = xputrace(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let said = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        let expected = expected.split("\n…").next().unwrap_or_default().trim_end();
        assert!(said.starts_with(expected), "{file}: {command}\n--- documented\n{expected}\n--- said\n{said}");
    }
}

#[test]
fn bundled_scripts_have_a_manual_and_compile() {
    let listed = xputrace(&["scripts"]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    assert_eq!(listed.lines().count(), std::fs::read_dir(scripts).unwrap().count(), "{listed}");
    for line in listed.lines() {
        let name = line.split_whitespace().next().unwrap();
        let summary = line[name.len()..].trim();
        assert!(summary.ends_with(['.', ':', '?']) && summary.len() < 100, "{line}");
        assert!(xputrace(&["check", name]).status.success(), "{name} does not compile");
        let help = xputrace(&[name, "--help"]);
        assert!(String::from_utf8_lossy(&help.stdout).contains("Usage: xputrace"), "{name} has no help");
    }
}

#[test]
fn the_readme_names_every_event_and_bundled_script() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let listed = [xputrace(&["list"]).stdout, xputrace(&["scripts"]).stdout].concat();
    let listed = String::from_utf8_lossy(&listed).into_owned();
    // `uprobe:LIBRARY:FUNCTION` is an event, `tracepoint:sched:sched_switch` one of many; of a script, more follows.
    let names = listed.lines().filter_map(|it| it.split([':', ' ']).next());
    // The README shows what real GPUs can do, which device code cannot yet.
    let names = names.filter(|it| !it.starts_with("device_"));
    let missing: Vec<&str> = names.filter(|it| !readme.contains(&format!("`{it}`"))).collect();
    assert!(missing.is_empty() && listed.contains("kernel"), "{missing:?}");
}

/// Splits a command line at spaces outside single quotes; `-- ./llm` becomes the recording.
fn words(line: &str) -> Vec<String> {
    let line = line.replace("-- ./llm", "--replay tests/replay/llm.xpt");
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().unwrap().push(c),
        }
    }
    words.retain(|it| !it.is_empty());
    words
}
