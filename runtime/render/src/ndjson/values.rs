//! Values as JSON text, for very many rows: each text and each stack is escaped once.

use crate::cells::shown_text;
use crate::export::EventNames;
use crate::rows::{NamedFrame, named};
use rustc_hash::FxHashMap;
use std::fmt::Write as _;
use xputrace_model::stack::StackKey;
use xputrace_model::text;

const NULL: &[u8] = b"null";

/// Ids whose texts are remembered: they are positions in the run's string table.
const MOST_TEXTS: usize = 1 << 22;
/// Different names of threads that are remembered: a target may have any number of them.
const MOST_COMMS: usize = 1 << 14;

/// What was escaped before.
#[derive(Default)]
pub(super) struct Values {
    /// By id.
    texts: Vec<Option<Box<[u8]>>>,
    comms: FxHashMap<[u64; 2], Box<[u8]>>,
    /// By word.
    stacks: FxHashMap<u64, Box<[u8]>>,
    digits: itoa::Buffer,
}

impl Values {
    #[inline]
    pub(super) fn signed(&mut self, out: &mut Vec<u8>, value: i64) {
        out.extend_from_slice(self.digits.format(value).as_bytes());
    }

    #[inline]
    pub(super) fn unsigned(&mut self, out: &mut Vec<u8>, value: u64) {
        out.extend_from_slice(self.digits.format(value).as_bytes());
    }

    /// Appends the text with this id; `null` if there is none.
    #[inline]
    pub(super) fn text(&mut self, out: &mut Vec<u8>, id: u64, names: &dyn EventNames) {
        if let Some(Some(known)) = self.texts.get(id as usize) {
            return out.extend_from_slice(known);
        }
        let Some(text) = names.text(id) else { return out.extend_from_slice(NULL) };
        let json = quoted(text).into_bytes();
        out.extend_from_slice(&json);
        let Some(at) = usize::try_from(id).ok().filter(|it| *it < MOST_TEXTS) else { return };
        if self.texts.len() <= at {
            self.texts.resize_with(at + 1, || None);
        }
        self.texts[at] = Some(json.into());
    }

    /// Appends 16 bytes padded with NULs.
    #[inline]
    pub(super) fn comm(&mut self, out: &mut Vec<u8>, words: [u64; 2]) {
        if let Some(known) = self.comms.get(&words) {
            return out.extend_from_slice(known);
        }
        let json = quoted(&text::of_words(words[0], words[1])).into_bytes();
        out.extend_from_slice(&json);
        if self.comms.len() >= MOST_COMMS {
            self.comms.clear();
        }
        self.comms.insert(words, json.into());
    }

    /// Appends a stack's frames, innermost first; `null` if there is no stack, or it was lost.
    #[inline]
    pub(super) fn stack(&mut self, out: &mut Vec<u8>, word: u64, names: &mut dyn EventNames) {
        if let Some(known) = self.stacks.get(&word) {
            return out.extend_from_slice(known);
        }
        let stack = StackKey::from_word(word);
        let Some(frames) = names.frames(stack).filter(|_| !matches!(stack, StackKey::Empty | StackKey::Lost)) else {
            return out.extend_from_slice(NULL);
        };
        let texts = match frames.is_empty() {
            true => Vec::new(),
            false => named(stack, names).0.iter().map(|it: &NamedFrame| quoted(&it.text())).collect(),
        };
        let json = format!("[{}]", texts.join(",")).into_bytes();
        out.extend_from_slice(&json);
        self.stacks.insert(word, json.into());
    }
}

/// Returns a text of the target as a string of JSON.
pub(super) fn quoted(text: &str) -> String {
    escaped(serde_json::Value::from(shown_text(text)).to_string())
}

/// Escapes the control characters that JSON leaves as they are too: a line may be shown on a terminal.
pub(super) fn escaped(json: String) -> String {
    if !json.chars().any(char::is_control) {
        return json;
    }
    json.chars().fold(String::with_capacity(json.len() + 8), |mut all, it| {
        match it.is_control() {
            // Writing to a string can't fail.
            true => drop(write!(all, "\\u{:04x}", u32::from(it))),
            false => all.push(it),
        }
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_target_reaches_a_terminal_raw() {
        assert_eq!(quoted("a\"\\\n\x1b[1m\u{9b}é"), "\"a\\\"\\\\\\n\\u001b[1m\\u009bé\"");
        let parsed: String = serde_json::from_str(&quoted("\u{7f}\u{85}")).unwrap();
        assert_eq!(parsed, "\u{7f}\u{85}");
        assert_eq!(quoted(&text::from_bytes(b"caf\xe9")), "\"caf\\\\xe9\"");
    }
}
