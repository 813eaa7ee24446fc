//! What several tests need: the fixtures, PTX without its layout, and NVIDIA's assembler.
#![allow(dead_code, reason = "each test uses a part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub fn tests_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// The name and the text of every PTX file of ours.
pub fn fixtures() -> Vec<(String, String)> {
    let mut fixtures: Vec<_> = fs::read_dir(tests_directory().join("fixtures"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "ptx"))
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(path).unwrap()))
        .collect();
    fixtures.sort();
    assert!(!fixtures.is_empty(), "no fixtures");
    fixtures
}

pub fn fixture(name: &str) -> String {
    fs::read_to_string(tests_directory().join("fixtures").join(name).with_extension("ptx")).unwrap()
}

/// The module with those kernels alone that can have a copy, and their names.
pub fn only_faithful(text: &str) -> (xputrace_ptx::Module, Vec<String>) {
    let mut module = xputrace_ptx::Module::parse(text).unwrap();
    let kernels = module.functions().filter(|it| it.is_kernel() && it.body.is_some()).map(|it| it.name.clone());
    let faithful: Vec<String> = kernels.filter(|kernel| module.faithful(kernel).is_empty()).collect();
    module.only(&faithful.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    (module, faithful)
}

/// Compares a module with a golden text, which the assembler must accept.
#[track_caller]
pub fn accept(golden: &str, module: &xputrace_ptx::Module) {
    let text = module.to_string();
    xputrace_golden::assert(&tests_directory().join("woven").join(golden).with_extension("ptx"), &text);
    assert_assembles(golden, &text);
}

/// The names, numbers, strings and signs of a text, without comments and white space. Written apart from the
/// parser's own lexer, which it checks.
pub fn normalised(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte == b'%';
    let end_of = |from: usize, what: &str| text[from..].find(what).map_or(text.len(), |at| from + at);
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let end = match bytes[at] {
            _ if rest.starts_with("//") => end_of(at, "\n"),
            _ if rest.starts_with("/*") => end_of(at + 2, "*/") + 2,
            b'"' => end_of(at + 1, "\"") + 1,
            byte if is_name(byte) => rest.bytes().position(|byte| !is_name(byte)).map_or(text.len(), |n| at + n),
            _ => at + rest.chars().next().map_or(1, char::len_utf8),
        };
        let token = &text[at..end];
        if !token.starts_with("//")
            && !token.starts_with("/*")
            && !token.trim_matches(['\0', ' ', '\t', '\n', '\r']).is_empty()
        {
            tokens.push(token);
        }
        at = end;
    }
    tokens
}

/// NVIDIA's assembler, if this machine has one: `PTXAS` names it, or the PATH has it.
fn ptxas() -> Option<PathBuf> {
    let candidates = std::env::var_os("PTXAS").map(PathBuf::from).into_iter().chain([PathBuf::from("ptxas")]);
    candidates.into_iter().find(|path| Command::new(path).arg("--version").output().is_ok())
}

/// Fails if the assembler refuses a text. Does nothing where there is none.
#[track_caller]
pub fn assert_assembles(name: &str, text: &str) {
    assemble(text).unwrap_or_else(|said| panic!("{name}: ptxas refuses it: {said}\n{text}"));
}

/// What the assembler says of a text that it refuses. Without an assembler, nothing is refused.
#[allow(clippy::print_stdout, reason = "tests/run.sh counts what was skipped by this line")]
pub fn assemble(text: &str) -> Result<(), String> {
    let Some(ptxas) = ptxas() else {
        println!("skipped: no GPU toolkit (ptxas)");
        return Ok(());
    };
    let directory = tempfile::tempdir().unwrap();
    let input = directory.path().join("woven.ptx");
    fs::write(&input, text).unwrap();
    let output = Command::new(ptxas)
        .arg(format!("-arch={}", architecture(text)))
        .arg(&input)
        .arg("-o")
        .arg(directory.path().join("woven.cubin"))
        .output()
        .unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Every `.ptx` file below the directory that `PTX_CORPUS` names.
#[allow(clippy::print_stdout, reason = "tests/run.sh counts what was skipped by this line")]
pub fn corpus() -> Option<Vec<PathBuf>> {
    let Some(directory) = std::env::var_os("PTX_CORPUS") else {
        println!("skipped: no GPU programs besides ours (PTX_CORPUS names no directory)");
        return None;
    };
    let mut files = Vec::new();
    find_ptx(Path::new(&directory), &mut files);
    println!("{} files of PTX", files.len());
    assert!(!files.is_empty(), "no file of PTX in PTX_CORPUS");
    Some(files)
}

fn find_ptx(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find_ptx(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "ptx") {
            files.push(path);
        }
    }
}

/// What to assemble a module for: its first target, `sm_90a`, or a GPU that the assembler still knows.
fn architecture(text: &str) -> &str {
    const OLDEST: u32 = 75;
    let rest = text.split_once(".target ").map_or("sm_90a", |(_, rest)| rest);
    let target = rest.split([',', '\n', ' ']).next().unwrap_or(rest);
    let number = target.trim_start_matches("sm_").trim_end_matches(['a', 'f']).parse();
    if number.is_ok_and(|number: u32| number < OLDEST) { "sm_90" } else { target }
}
