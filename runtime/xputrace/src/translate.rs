//! `xputrace translate`: writes a program for bpftrace as a script.

use crate::cli::TranslateOptions;
use crate::console;
use crate::status::{INCOMPLETE, MISTAKE};
use anyhow::{Context, Result, bail};
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use xputrace_boundary::read;
use xputrace_bpftrace::{SyntaxError, Translation};
use xputrace_compiler::{MISSING_PLACES, Wishes, compile};
use xputrace_linux::LiveCatalog;
use xputrace_model::diagnostic::{Diagnostic, FileId, Label, Severity, SourceFile, Sources};
use xputrace_script::BundledLoader;

/// More than anybody writes.
pub const MOST_SCRIPT_BYTES: u64 = 16 << 20;

/// Prints the script, and on standard error how much is missing.
///
/// # Errors
/// The program cannot be read, or the script not be printed.
pub fn translate(options: &TranslateOptions) -> Result<ExitCode> {
    let source = source_of(options)?;
    match xputrace_bpftrace::translate(&source.text) {
        Ok(translation) => {
            console::print(&translation.text)?;
            Ok(status(&translation))
        }
        Err(error) => {
            let sources = Sources { files: vec![source] };
            console::diagnose(&[mistake(&error)], &sources, false);
            Ok(ExitCode::from(MISTAKE))
        }
    }
}

fn status(translation: &Translation) -> ExitCode {
    let (mistakes, sources) = mistakes_of(translation);
    let count = translation.untranslated.len();
    if count > 0 {
        let parts = if count == 1 { "1 part is".into() } else { format!("{count} parts are") };
        console::say(format_args!("{parts} not translated; comments say why"));
    }
    if !mistakes.is_empty() {
        console::say(format_args!("the translation does not compile:"));
        console::diagnose(&mistakes, &sources, true);
    }
    if count > 0 || !mistakes.is_empty() { ExitCode::from(INCOMPLETE) } else { ExitCode::SUCCESS }
}

/// Returns why the translation does not compile, other than for places that another machine may have, or that an argument
/// of the script names.
fn mistakes_of(translation: &Translation) -> (Vec<Diagnostic>, Sources) {
    let source = SourceFile { name: "translation".into(), text: translation.text.clone() };
    let loaded = xputrace_script::load(source, &[], Rc::new(BundledLoader));
    let (_, compiled) = compile(&loaded.staged, &LiveCatalog::new(), Wishes::default());
    let is_of_elsewhere = |code| code == xputrace_script::PATTERN_MISTAKE || MISSING_PLACES.contains(&code);
    let all = loaded.diagnostics.into_iter().chain(compiled);
    let mistakes = all.filter(|it| it.severity == Severity::Error && !is_of_elsewhere(it.code)).collect();
    (mistakes, loaded.staged.sources)
}

fn source_of(options: &TranslateOptions) -> Result<SourceFile> {
    let (name, bytes) = match (&options.one_liner, options.file.as_deref()) {
        (Some(text), _) => return Ok(SourceFile { name: "-e".into(), text: text.clone() }),
        (None, Some(path)) if path == Path::new("-") => {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
            ("standard input".to_owned(), bytes)
        }
        (None, path) => {
            let path = path.unwrap_or(Path::new(""));
            let bytes =
                read::named(path, MOST_SCRIPT_BYTES).with_context(|| format!("cannot read {}", path.display()))?;
            (path.display().to_string(), bytes)
        }
    };
    let text = String::from_utf8(bytes).with_context(|| format!("{name} is not UTF-8 text"))?;
    Ok(SourceFile { name, text })
}

fn mistake(error: &SyntaxError) -> Diagnostic {
    let label = Label { file: FileId::default(), span: error.offset..error.offset + 1, note: None };
    Diagnostic::error("syntax", format!("this is no program for bpftrace: {}", error.message), label)
}

/// Refuses a file for bpftrace that bpftrace could not read either; others are answered with their translation.
///
/// # Errors
/// The file's name ends with `.bt`, and its text is no program for bpftrace.
pub fn refuse_broken(path: &Path, text: &str) -> Result<()> {
    if path.extension().is_some_and(|it| it == "bt")
        && let Err(error) = xputrace_bpftrace::translate(text)
    {
        bail!("{}:{error}; a program for bpftrace was expected", path.display());
    }
    Ok(())
}
