//! The run's string table: the plan's strings first, then those met during the run.
//!
//! A run has one. Everything that needs ids for new texts (the tracer for kernels and calls, the
//! Linux side for functions that a pattern matches) interns them here, so equal text has an equal
//! id everywhere.

use crate::plan::StringId;
use crate::text;
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::sync::Arc;

/// Texts by id and ids by text. Ids are never reused, and equal text has an equal id.
#[derive(Clone, Debug)]
pub struct Names {
    texts: Vec<Arc<str>>,
    ids: FxHashMap<Arc<str>, StringId>,
    /// What texts stand for that are not their own bytes ([`crate::text`]).
    bytes: FxHashMap<StringId, Box<[u8]>>,
}

impl Default for Names {
    /// Contains only the empty text.
    fn default() -> Self {
        Names::new(&[])
    }
}

impl Names {
    /// Keeps the ids of the plan's strings; a text that occurs twice gets its first id.
    pub fn new(strings: &[String]) -> Self {
        let mut names = Names { texts: Vec::new(), ids: FxHashMap::default(), bytes: FxHashMap::default() };
        if strings.is_empty() {
            names.push(Arc::from(""));
        }
        strings.iter().for_each(|it| {
            names.push(Arc::from(it.as_str()));
        });
        names
    }

    /// Returns the id of a text, creating one if needed.
    pub fn intern(&mut self, text: &str) -> StringId {
        match self.ids.get(text) {
            Some(id) => *id,
            None => self.push(Arc::from(text)),
        }
    }

    /// Returns the text of an id.
    pub fn get(&self, id: u64) -> Option<&Arc<str>> {
        self.texts.get(usize::try_from(id).ok()?)
    }

    /// Returns the bytes that the text of an id stands for, empty if there is none: what a program that runs in
    /// Linux reads of the target.
    pub fn bytes(&self, id: u64) -> &[u8] {
        let other = StringId::try_from(id).ok().and_then(|it| self.bytes.get(&it));
        other.map(|it| &**it).or_else(|| self.get(id).map(|it| it.as_bytes())).unwrap_or_default()
    }

    /// Iterates over all texts in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(|it| &**it)
    }

    /// Returns the number of texts.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Always false: the empty text is always there.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    fn push(&mut self, text: Arc<str>) -> StringId {
        let id = self.texts.len() as StringId;
        self.texts.push(text.clone());
        if let Cow::Owned(bytes) = text::to_bytes(&text) {
            self.bytes.insert(id, bytes.into());
        }
        self.ids.entry(text).or_insert(id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_strings_come_first_and_equal_text_has_one_id() {
        let mut names = Names::new(&["".into(), "a".into()]);
        assert_eq!((names.intern("a"), names.intern("b"), names.intern("b"), names.intern("")), (1, 2, 2, 0));
        assert_eq!(names.get(2).map(|it| &**it), Some("b"));
        assert_eq!(names.get(u64::MAX), None);
    }

    #[test]
    fn a_text_has_the_bytes_that_it_stands_for() {
        let mut names = Names::new(&["".into(), "plain".into()]);
        let other = names.intern(&text::from_bytes(b"caf\xe9"));
        assert_eq!((names.bytes(1), names.bytes(other.into())), (&b"plain"[..], &b"caf\xe9"[..]));
        assert_eq!((names.bytes(0), names.bytes(u64::MAX)), (&b""[..], &b""[..]));
    }
}
