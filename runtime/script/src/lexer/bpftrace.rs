//! bpftrace's probes, `uprobe:libc:malloc /pid == 1/ { @[comm] = count(); }`: recognized by their shape, and answered
//! with their translation.

use super::token::{Token, TokenKind, closing};
use std::ops::Range;
use xputrace_model::diagnostic::{Diagnostic, FileId, Label};

/// A probe in bpftrace's notation, amid a script.
pub(super) struct Probe {
    /// Its tokens; of a probe without a body, only its kind.
    pub(super) tokens: Range<usize>,
    /// What to write.
    pub(super) help: String,
}

/// Answers a text that is a whole program for bpftrace.
pub(super) fn program(file: FileId, text: &str) -> Option<Diagnostic> {
    if !xputrace_bpftrace::is_program(text) {
        return None;
    }
    let translation = xputrace_bpftrace::translate(text).ok()?;
    let start = text.len() - text.trim_start().len();
    let end = start + text[start..].lines().next().unwrap_or_default().len();
    let label = Label { file, span: start..end, note: None };
    let mut error = Diagnostic::error("bpftrace", "this is a program for bpftrace", label);
    error.help.push(format!("write:\n{}", translation.text.trim_end()));
    if !translation.untranslated.is_empty() {
        error.help.push("comments say what has no equivalent, and why".into());
    }
    error.help.push("`xputrace translate` writes this to standard output".into());
    Some(error)
}

/// Recognizes a probe at a token outside all brackets.
pub(super) fn probe(text: &str, tokens: &[Token], at: usize) -> Option<Probe> {
    let slice = |at: usize| tokens.get(at).map_or("", |it: &Token| &text[it.span.clone()]);
    let is_probe = match slice(at + 1) {
        ":" => xputrace_bpftrace::is_probe_kind(slice(at)),
        "{" => matches!(slice(at), "BEGIN" | "END"),
        _ => false,
    };
    if !is_probe || tokens[at].kind != TokenKind::Identifier {
        return None;
    }
    let open = (at..tokens.len()).find(|it| matches!(slice(*it), "{" | ";"));
    let close = open.filter(|it| slice(*it) == "{").and_then(|it| closing(text, tokens, it));
    let last = close.unwrap_or(at);
    let written = close.map(|close| &text[tokens[at].span.start..tokens[close].span.end]);
    let translation = written.and_then(|it| xputrace_bpftrace::translate(it).ok());
    let help = match translation {
        Some(it) if is_comment(&it.text) => it.untranslated.first().map(|it| it.because.clone()).unwrap_or_default(),
        Some(it) => format!("write `{}`", it.text.trim_end()),
        None => "bpftrace's notation; `xputrace translate` translates whole programs".to_owned(),
    };
    Some(Probe { tokens: at..last + 1, help })
}

/// Whether nothing of a probe has a translation.
fn is_comment(script: &str) -> bool {
    script.lines().all(|it| it.starts_with("//"))
}
