//! What a translation gives: the script, what is not in it, and where that is in the program.

/// A script, and what of the program is not in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The script. It ends with a line end, if it has any text.
    pub text: String,
    /// In the order of the program.
    pub untranslated: Vec<Untranslated>,
}

/// A part of a program that has no translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untranslated {
    /// Line in the program, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The part itself, on one line.
    pub what: String,
    /// The reason, as the rest of a sentence: "there is no such event".
    pub because: String,
}

/// Returns line and column of a place, from 1.
pub(crate) fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.rfind('\n').map_or(0, |it| it + 1);
    (before.matches('\n').count() + 1, before[line..].chars().count() + 1)
}
