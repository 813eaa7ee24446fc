//! What a GPU handler is given: words of the table of GPU events ([`xputrace_events::word`]).

pub use xputrace_events::device::{self, DeviceContext};
pub use xputrace_events::host::MOST_ARGUMENTS;
pub use xputrace_events::word;
pub use xputrace_events::{GpuContext, WORDS};

/// A set of words of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextWords(u128);

const _: () = assert!(WORDS <= u128::BITS as usize);

impl ContextWords {
    /// Adds a word, if events have it.
    pub fn add(&mut self, word: usize) {
        if word < WORDS {
            self.0 |= 1 << word;
        }
    }

    pub const fn has(self, word: usize) -> bool {
        word < WORDS && self.0 >> word & 1 != 0
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the words in order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..WORDS).filter(move |it| self.has(*it))
    }

    pub const fn with(self, others: ContextWords) -> ContextWords {
        ContextWords(self.0 | others.0)
    }

    pub const fn without(self, others: ContextWords) -> ContextWords {
        ContextWords(self.0 & !others.0)
    }

    /// Whether a word is in both.
    pub const fn meets(self, others: ContextWords) -> bool {
        self.0 & others.0 != 0
    }
}

impl FromIterator<usize> for ContextWords {
    fn from_iter<T: IntoIterator<Item = usize>>(words: T) -> Self {
        words.into_iter().fold(ContextWords::default(), |mut all, it| {
            all.add(it);
            all
        })
    }
}
