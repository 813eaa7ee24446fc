//! Stacks that have been given names, for recordings: what a replay shows without the processes.

use std::collections::BTreeMap;
use xputrace_model::output::StackNames;
use xputrace_model::stack::{Frames, StackKey};

/// Named stacks by key. Whoever writes it out goes through [`SymbolTable::iter`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SymbolTable {
    stacks: BTreeMap<StackKey, Frames>,
}

impl SymbolTable {
    /// Remembers a stack's frames; a later insertion replaces an earlier one.
    pub fn insert(&mut self, stack: StackKey, frames: Frames) {
        self.stacks.insert(stack, frames);
    }

    /// All stacks in order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (StackKey, &Frames)> {
        self.stacks.iter().map(|(stack, frames)| (*stack, frames))
    }

    pub fn len(&self) -> usize {
        self.stacks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }
}

impl FromIterator<(StackKey, Frames)> for SymbolTable {
    fn from_iter<T: IntoIterator<Item = (StackKey, Frames)>>(stacks: T) -> Self {
        SymbolTable { stacks: stacks.into_iter().collect() }
    }
}

impl StackNames for SymbolTable {
    fn frames(&mut self, stack: StackKey) -> Option<Frames> {
        self.stacks.get(&stack).cloned()
    }
}
