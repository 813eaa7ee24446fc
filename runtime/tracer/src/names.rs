//! The run's string table: the plan's strings first, then what the tracer meets.

use rustc_hash::FxHashMap;
use std::sync::Arc;
use xputrace_model::plan::StringId;

/// Gives a mangled name its two readable forms: with template arguments and without, both
/// without parameters. Names that are not mangled come back as they are.
pub type Demangle = fn(&str) -> (String, String);

/// Texts by id and ids by text. Ids are never reused, equal text has an equal id.
#[derive(Clone, Debug)]
pub struct Names {
    texts: Vec<Arc<str>>,
    ids: FxHashMap<Arc<str>, StringId>,
    /// Probed functions that patterns found, with ids from [`FUNCTION_IDS`] on.
    functions: Vec<Arc<str>>,
}

/// First id of functions that patterns found while attaching: whoever attaches gives these ids
/// out while this table grows elsewhere.
pub const FUNCTION_IDS: StringId = 1 << 30;

impl Names {
    /// The plan's strings keep their ids; where a text stands there twice, the first id is its id.
    pub fn new(strings: &[String]) -> Self {
        let mut names = Names { texts: Vec::new(), ids: FxHashMap::default(), functions: Vec::new() };
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
        match id.checked_sub(FUNCTION_IDS.into()) {
            None => self.texts.get(id as usize),
            Some(function) => self.functions.get(usize::try_from(function).ok()?),
        }
    }

    /// The functions that patterns found, in the order of their ids from [`FUNCTION_IDS`] on.
    pub fn set_functions(&mut self, names: &[String]) {
        let new = names.get(self.functions.len()..).unwrap_or_default();
        self.functions.extend(new.iter().map(|it| Arc::from(it.as_str())));
    }

    /// How many there are.
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
