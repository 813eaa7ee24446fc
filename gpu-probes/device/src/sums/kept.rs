//! The elements that a thread keeps in registers, and how these are called.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use xputrace_bytecode::BpfMapId;

/// An element of a map, as far as a thread keeps it in registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    pub(super) map: BpfMapId,
    pub(super) key: Vec<KeyWord>,
    /// What is done to the words of its value, by their offset.
    pub(super) words: BTreeMap<i32, SumChange>,
}

/// A word of an element's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyWord {
    Known(u64),
    /// This word of the context, which is the same wherever a thread reads it.
    OfContext(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SumChange {
    Add,
    /// As [`xputrace_bytecode::helper::RAISE`] does.
    Raise,
}

/// Elements that a thread keeps in registers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// The number of the first: registers have the numbers in their names.
    pub(super) first: usize,
    pub(super) list: Vec<Sum>,
}

/// Returns the register that says whether an element is in use.
pub(crate) fn there(sum: usize) -> String {
    format!("%xpt_sum{sum}_there")
}

/// Returns the register of a word of an element.
pub(crate) fn word(sum: usize, at: i32) -> String {
    format!("%xpt_sum{sum}_{at}")
}

impl Sum {
    /// Whether it is the same element.
    pub fn is_of(&self, other: &Sum) -> bool {
        (self.map, &self.key) == (other.map, &other.key)
    }

    /// The map of the element.
    pub fn map(&self) -> BpfMapId {
        self.map
    }

    /// Adds what another program does to the element; returns false if the two do different things to a word.
    pub fn merge(&mut self, other: &Sum) -> bool {
        let is_alike = other.words.iter().all(|(at, change)| self.words.get(at).is_none_or(|it| it == change));
        self.words.extend(&other.words);
        is_alike
    }

    /// Returns the words of the context that are in its key.
    pub(super) fn key_words(&self) -> impl Iterator<Item = usize> {
        self.key.iter().filter_map(|it| match it {
            KeyWord::OfContext(word) => Some(*word),
            KeyWord::Known(_) => None,
        })
    }
}

impl Sums {
    /// Puts chosen ones together; `first` is the number of the first.
    pub fn numbered(first: usize, list: Vec<Sum>) -> Self {
        Sums { first, list }
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the number of an element; its key is asked for only if any element of the map is kept.
    pub(crate) fn find(&self, map: BpfMapId, key: impl FnOnce() -> Option<Vec<KeyWord>>) -> Option<usize> {
        let key = if self.list.iter().any(|it| it.map == map) { key()? } else { return None };
        let at = self.list.iter().position(|it| it.map == map && it.key == key)?;
        Some(self.first + at)
    }

    /// Returns the PTX that declares the registers and sets them, for the beginning of the kernel's body.
    pub fn registers(&self) -> String {
        let mut text = String::new();
        for (number, sum) in (self.first..).zip(&self.list) {
            let there = there(number);
            let _ = writeln!(text, ".reg .b32 {there};\nmov.b32 {there}, 0;");
            for at in sum.words.keys() {
                let word = word(number, *at);
                let _ = writeln!(text, ".reg .b64 {word};\nmov.b64 {word}, 0;");
            }
        }
        text
    }
}
