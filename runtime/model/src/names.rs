//! The run's string table: the plan's strings first, then what the run meets.
//!
//! A run has one. Whoever needs ids of new texts (the tracer for kernels and calls, the Linux side for
//! functions that a pattern matches) interns them here, so that equal text is equal everywhere.

use crate::plan::StringId;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Texts by id and ids by text. Ids are never reused, and equal text has an equal id.
#[derive(Clone, Debug)]
pub struct Names {
    texts: Vec<Arc<str>>,
    ids: FxHashMap<Arc<str>, StringId>,
}

impl Default for Names {
    /// The empty text alone.
    fn default() -> Self {
        Names::new(&[])
    }
}

impl Names {
    /// The plan's strings keep their ids; where a text stands there twice, the first id is its id.
    pub fn new(strings: &[String]) -> Self {
        let mut names = Names { texts: Vec::new(), ids: FxHashMap::default() };
        if strings.is_empty() {
            names.push(Arc::from(""));
        }
        strings.iter().for_each(|it| {
            names.push(Arc::from(it.as_str()));
        });
        names
    }

    /// The id of a text, new where it was not known.
    pub fn intern(&mut self, text: &str) -> StringId {
        match self.ids.get(text) {
            Some(id) => *id,
            None => self.push(Arc::from(text)),
        }
    }

    /// The text behind an id.
    pub fn get(&self, id: u64) -> Option<&Arc<str>> {
        self.texts.get(usize::try_from(id).ok()?)
    }

    /// All texts, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(|it| &**it)
    }

    /// The number of texts.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Never: the empty text is always there.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    fn push(&mut self, text: Arc<str>) -> StringId {
        let id = self.texts.len() as StringId;
        self.texts.push(text.clone());
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
}
