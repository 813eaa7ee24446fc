//! Script errors as the user sees them: the line, a caret, the reason, a suggestion.

use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Renderer, Snippet};
use std::ops::Range;
use xputrace_model::diagnostic::{Diagnostic, FileId, Label, Severity, SourceFile, Sources};

/// Formats all diagnostics, separated by empty lines; `color` adds terminal colours.
pub fn diagnostics(diagnostics: &[Diagnostic], sources: &Sources, color: bool) -> String {
    let renderer = if color { Renderer::styled() } else { Renderer::plain() };
    let reports: Vec<String> = diagnostics.iter().map(|it| renderer.render(&report(it, sources))).collect();
    let mut text = reports.join("\n\n");
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

fn report<'a>(diagnostic: &'a Diagnostic, sources: &'a Sources) -> Vec<Group<'a>> {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let title = level.primary_title(diagnostic.message.as_str()).id(diagnostic.code);
    let group = title.elements(snippets(diagnostic, sources));
    vec![group.elements(diagnostic.help.iter().map(|it| Level::HELP.message(it.as_str())))]
}

/// Returns one snippet per file, the primary label's first.
fn snippets<'a>(diagnostic: &'a Diagnostic, sources: &'a Sources) -> Vec<Snippet<'a, Annotation<'a>>> {
    let mut files: Vec<FileId> = vec![diagnostic.primary.file];
    for label in &diagnostic.secondary {
        if !files.contains(&label.file) {
            files.push(label.file);
        }
    }
    files.into_iter().filter_map(|it| snippet(diagnostic, it, sources.files.get(it.0 as usize)?)).collect()
}

fn snippet<'a>(
    diagnostic: &'a Diagnostic,
    file: FileId,
    source: &'a SourceFile,
) -> Option<Snippet<'a, Annotation<'a>>> {
    let primary = std::iter::once((&diagnostic.primary, AnnotationKind::Primary));
    let secondary = diagnostic.secondary.iter().map(|it| (it, AnnotationKind::Context));
    let annotations = primary
        .chain(secondary)
        .filter(|(label, _)| label.file == file)
        .map(|(label, kind)| annotation(label, kind, &source.text));
    Some(Snippet::source(source.text.as_str()).path(source.name.as_str()).annotations(annotations))
}

fn annotation<'a>(label: &'a Label, kind: AnnotationKind, text: &str) -> Annotation<'a> {
    kind.span(sound(&label.span, text)).label(label.note.as_deref())
}

/// Clamps a span to the text and to character boundaries.
fn sound(span: &Range<usize>, text: &str) -> Range<usize> {
    let floor = |at: usize| (0..=at.min(text.len())).rev().find(|it| text.is_char_boundary(*it)).unwrap_or(0);
    let start = floor(span.start);
    start..floor(span.end).max(start)
}
