//! Trees → text, within a budget.
//!
//! What a substitution stands for is printed each time, so a short symbol can have a name without end, or take endless
//! work for a name of no length at all (packs of nothing). So what is printed is counted, and so is each node on the way;
//! beyond a limit there is no name.
//!
//! A template parameter stands for an argument of the function whose name or signature is being printed, and an argument
//! is printed as seen from outside of that function. A [`Meaning`] says which function that is.

mod expressions;
mod names;
mod types;

use crate::limits::{DEEPEST_PRINTED, LONGEST_NAME, MOST_STEPS};
use crate::tree::{List, NodeId, Qualifiers, Tree};

/// Which parts of a name are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// The name with template arguments.
    Name,
    /// The name without any template arguments.
    ShortName,
    /// The name and the types of parameters.
    Parameters,
}

/// A printed name, and what it took.
#[derive(Debug)]
pub(crate) struct Printed {
    pub(crate) text: String,
    /// There are template arguments, whether shown or not.
    pub(crate) has_arguments: bool,
}

/// Prints a symbol; `None` beyond a limit, or if a template parameter stands for nothing.
pub(crate) fn print(tree: &Tree<'_>, root: NodeId, shown: Shown) -> Option<Printed> {
    let mut printer = Printer::new(tree, shown != Shown::ShortName);
    printer.symbol(root, shown == Shown::Parameters)?;
    Some(Printed { text: printer.text, has_arguments: printer.has_arguments })
}

/// Returns what printing a symbol takes, whether it has a name or not: nodes that are visited, and bytes that are written.
#[cfg(test)]
pub(crate) fn cost(tree: &Tree<'_>, root: NodeId, shown: Shown) -> (usize, usize) {
    let mut printer = Printer::new(tree, shown != Shown::ShortName);
    let _ = printer.symbol(root, shown == Shown::Parameters);
    (printer.steps, printer.written)
}

/// What template parameters stand for.
#[derive(Clone, Copy, Debug, Default)]
struct Meaning {
    scope: Option<usize>,
    /// Which element of each pack is printed, in an expansion.
    element: Option<usize>,
}

/// What declares template parameters.
#[derive(Clone, Copy, Debug)]
struct Binder {
    kind: Binds,
    parent: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Binds {
    /// A function that has these arguments.
    Function(List),
    /// A lambda's parameters, of which these are declared; the others are `auto`.
    Lambda(List),
}

/// What is around the core of a type.
#[derive(Clone, Copy, Debug)]
enum Modifier {
    Pointer,
    Lvalue,
    Rvalue,
    Qualified(Qualifiers),
    VendorQualified(NodeId),
    Suffixed(&'static str),
    Member(NodeId),
}

struct Printer<'t, 'a> {
    tree: &'t Tree<'a>,
    text: String,
    /// Bytes of the text, and of what has been taken back.
    written: usize,
    shows_arguments: bool,
    has_arguments: bool,
    steps: usize,
    depth: usize,
    scopes: Vec<Binder>,
    meaning: Meaning,
    /// The length of the pack that was met in the innermost expansion.
    pack_length: Option<usize>,
    /// Of the types that are being printed: see [`types`].
    modifiers: Vec<(Modifier, Meaning)>,
}

impl<'t, 'a> Printer<'t, 'a> {
    fn new(tree: &'t Tree<'a>, shows_arguments: bool) -> Self {
        Self {
            tree,
            text: String::with_capacity(128),
            written: 0,
            shows_arguments,
            has_arguments: false,
            steps: 0,
            depth: 0,
            scopes: Vec::new(),
            meaning: Meaning::default(),
            pack_length: None,
            modifiers: Vec::new(),
        }
    }

    fn write(&mut self, text: &str) -> Option<()> {
        self.charge(text.len())?;
        self.text.push_str(text);
        Some(())
    }

    /// Counts bytes that are written.
    fn charge(&mut self, bytes: usize) -> Option<()> {
        self.written = self.written.saturating_add(bytes);
        (self.written <= LONGEST_NAME).then_some(())
    }

    fn write_number(&mut self, number: impl std::fmt::Display) -> Option<()> {
        self.write(&number.to_string())
    }

    fn step(&mut self) -> Option<()> {
        self.steps += 1;
        (self.steps <= MOST_STEPS).then_some(())
    }

    /// Prints what may contain itself.
    fn nested(&mut self, print: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        self.step()?;
        if self.depth >= DEEPEST_PRINTED {
            return None;
        }
        self.depth += 1;
        print(self)?;
        self.depth -= 1;
        Some(())
    }

    /// Prints with other meanings of template parameters.
    fn within(&mut self, meaning: Meaning, print: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        let outer = std::mem::replace(&mut self.meaning, meaning);
        print(self)?;
        self.meaning = outer;
        Some(())
    }

    /// Prints inside of what declares template parameters.
    fn scoped(&mut self, kind: Binds, print: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        let scope = self.scopes.len();
        self.scopes.push(Binder { kind, parent: self.meaning.scope });
        self.within(Meaning { scope: Some(scope), element: None }, print)?;
        self.scopes.truncate(scope);
        Some(())
    }

    fn scope(&self) -> Option<Binder> {
        self.scopes.get(self.meaning.scope?).copied()
    }

    fn list(&mut self, list: List) -> Option<()> {
        self.items(self.tree.list(list))
    }

    /// Prints items with commas between them. An empty pack is no item.
    fn items(&mut self, items: &[NodeId]) -> Option<()> {
        let mut is_first = true;
        for item in items {
            let end = self.text.len();
            self.write(if is_first { "" } else { ", " })?;
            let start = self.text.len();
            self.node(*item)?;
            if self.text.len() == start {
                self.text.truncate(end);
            } else {
                is_first = false;
            }
        }
        Some(())
    }

    fn parenthesized(&mut self, items: &[NodeId]) -> Option<()> {
        self.write("(")?;
        self.items(items)?;
        self.write(")")
    }

    /// Prints a pattern once for each element of the pack in it.
    fn expansion(&mut self, pattern: NodeId) -> Option<()> {
        let outer = std::mem::take(&mut self.pack_length);
        let start = self.text.len();
        self.element(pattern, 0)?;
        match self.pack_length {
            Some(0) => self.text.truncate(start),
            Some(length) => {
                for at in 1..length {
                    self.write(", ")?;
                    self.element(pattern, at)?;
                }
            }
            None => self.unexpanded(pattern, start)?,
        }
        self.pack_length = outer;
        Some(())
    }

    fn element(&mut self, pattern: NodeId, at: usize) -> Option<()> {
        self.step()?;
        self.within(Meaning { element: Some(at), ..self.meaning }, |it| it.node(pattern))
    }

    /// A pattern without a known pack, printed from `start` on.
    fn unexpanded(&mut self, pattern: NodeId, start: usize) -> Option<()> {
        if self.tree.get(pattern).is_operation() {
            self.write(")")?;
            self.charge(self.text.len().saturating_sub(start))?;
            self.text.insert(start, '(');
        }
        self.write("...")
    }
}
