//! Script errors as data: where, what, why, and what to write instead.
//!
//! Compilation returns its best result together with diagnostics; rendering happens elsewhere.

use std::ops::Range;

/// Severity: an error stops the run before anything is attached, a warning is only printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    Error,
    Warning,
}

/// An error or warning about a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    pub severity: Severity,
    /// Stable identifier in kebab-case, one per kind of mistake: `unknown-field`, `mixed-keys`, …
    pub code: &'static str,
    /// What is wrong, in a sentence without a final dot.
    pub message: String,
    /// The place that the caret points at.
    pub primary: Label,
    /// Related places, such as the first use of the same map.
    pub secondary: Vec<Label>,
    /// What to write instead, or why.
    pub help: Vec<String>,
}

/// A byte range in one source file, with an optional note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    pub file: FileId,
    /// Byte offsets in the user's text.
    pub span: Range<usize>,
    pub note: Option<String>,
}

/// Index into [`Sources`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct FileId(pub u32);

/// A place in a script, precise enough to print `script.rhai:3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Site {
    pub file: FileId,
    /// Byte offset in the user's text.
    pub offset: u32,
    /// 1-based line.
    pub line: u32,
}

/// The texts of a script: itself, then its imports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    pub files: Vec<SourceFile>,
}

/// A source text and its name in messages (`-e` for a one-liner).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    pub name: String,
    pub text: String,
}

impl Sources {
    /// Returns the command that records what the script reads.
    pub fn record_command(&self) -> String {
        let script = match self.files.first().map_or("", |it| it.name.as_str()) {
            "" => "SCRIPT",
            "-e" => "-e '…'",
            name => name,
        };
        format!("xputrace record {script} -o t.xpt -- CMD")
    }
}

impl Diagnostic {
    /// Creates an error at a place; add to `secondary` and `help` as needed.
    pub fn error(code: &'static str, message: impl Into<String>, primary: Label) -> Self {
        Diagnostic {
            severity: Severity::Error,
            code,
            message: message.into(),
            primary,
            secondary: Vec::new(),
            help: Vec::new(),
        }
    }

    /// Creates a warning at a place.
    pub fn warning(code: &'static str, message: impl Into<String>, primary: Label) -> Self {
        Diagnostic { severity: Severity::Warning, ..Diagnostic::error(code, message, primary) }
    }

    /// Adds a line of help.
    #[must_use]
    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.help.push(text.into());
        self
    }

    /// Adds a labelled place.
    #[must_use]
    pub fn also(mut self, mut label: Label, note: impl Into<String>) -> Self {
        label.note = Some(note.into());
        self.secondary.push(label);
        self
    }
}

/// Words longer than this, in bytes, have none near them: comparing takes time by the product of both lengths.
const LONGEST_COMPARED: usize = 256;

/// Returns the candidate nearest to `word` if it is near enough to suggest (a third of its length).
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let is_compared = |it: &&str| it.len().max(word.len()) <= LONGEST_COMPARED;
    candidates
        .into_iter()
        .filter(is_compared)
        .map(|it| (edit_distance(word, it), it))
        .filter(|(distance, it)| *distance <= it.len().max(word.len()).div_ceil(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, it)| it)
}

fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_suggested_and_far_ones_are_not() {
        let fields = ["name", "duration", "start", "launch"];
        assert_eq!(nearest("durations", fields), Some("duration"));
        assert_eq!(nearest("nmae", fields), Some("name"));
        assert_eq!(nearest("zebra", fields), None);
        let (long, nearly) = ("a".repeat(1_000_000), "a".repeat(999_999));
        assert_eq!(nearest(&long, [nearly.as_str()]), None);
    }
}
