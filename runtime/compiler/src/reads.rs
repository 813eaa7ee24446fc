//! The words of the GPU context that a handler reads. What the collector records, and what
//! `explain` says of it, follow from this set alone.

use xputrace_model::context::{ContextWords, device, word};
use xputrace_model::schema::{Event, Field, FieldType, From};

/// Words of the GPU context. Fields of CPU events have none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reads(ContextWords);

impl Reads {
    pub(super) fn add(&mut self, word: usize) {
        self.0.add(word);
    }

    /// Adds a field; for `.launch` itself, only whether the launch is known.
    pub(super) fn add_field(&mut self, field: &Field) {
        if let Some(word) = word_of(field) {
            self.0.add(word);
        }
    }

    /// Whether a field is read.
    pub(super) fn has(&self, field: &Field) -> bool {
        match field.kind {
            FieldType::Parts(parts) => parts.iter().any(|it| self.has(it)),
            _ => word_of(field).is_some_and(|it| self.0.has(it)),
        }
    }

    /// Adds every field of an event, and those below them, for an event passed to code that cannot be
    /// followed.
    pub(super) fn add_all(&mut self, fields: &[Field]) {
        fields.iter().for_each(|it| {
            self.add_field(it);
            self.add_all(it.below().unwrap_or_default());
        });
    }

    /// Whether any of these words is read.
    pub(super) fn any(&self, words: &[usize]) -> bool {
        words.iter().any(|it| self.0.has(*it))
    }

    /// Returns what is read of a kernel's event: for device events, the words that stand for one of them.
    pub(super) fn of_kernel(&self, event: Event) -> Reads {
        match event {
            Event::Device(_) => Reads(self.0.iter().filter_map(device::launch_word).collect()),
            _ => *self,
        }
    }

    /// Whether any field of the launch is read.
    pub(super) fn of_launch(&self) -> bool {
        self.0.iter().any(|it| it >= word::LAUNCH)
    }
}

/// Returns the word that tells a field; for `.launch` itself, whether the launch is known. One that has parts has
/// none.
fn word_of(field: &Field) -> Option<usize> {
    match (field.kind, field.from) {
        (FieldType::Launch, _) => Some(word::JOINED),
        (FieldType::Parts(_), _) => None,
        (_, From::Word(at) | From::Optional { value: at, .. }) => Some(at),
        (_, From::Probe) => None,
    }
}
