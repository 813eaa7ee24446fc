//! What a run says, as data: the render crate turns these into text or JSON.

use crate::loss::{Account, Losses};
use crate::stack::{Frames, StackKey};
use crate::table::Table;
use std::sync::Arc;

/// One thing to print, in the order in which it happened.
#[derive(Clone, Debug)]
pub enum Output {
    /// All probes are in place.
    Attached { probes: usize },
    /// A `print` of a string, whose stacks get their names where it is rendered.
    Print(Vec<Piece>),
    /// What the tracer itself has to say of the results below.
    Note(String),
    /// A map, or part of it.
    Table(View),
    /// The end of the run: losses last, always. The account is boxed as prints, of which there are many, are small.
    End { losses: Losses, account: Option<Box<Account>> },
}

impl Output {
    /// A `print` without stacks.
    pub fn print(text: impl Into<String>) -> Self {
        Output::Print(vec![Piece::Text(text.into())])
    }
}

/// A piece of a printed text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Text(String),
    Stack(StackKey),
}

/// A map as it is to be shown.
#[derive(Clone, Debug)]
pub struct View {
    pub table: Arc<Table>,
    /// Only this many of the largest.
    pub top: Option<usize>,
}

/// Names for stacks: implemented by the session over live processes, or over a recording.
pub trait StackNames {
    /// The frames of a stack, innermost first; `None` when it was lost.
    fn frames(&mut self, stack: StackKey) -> Option<Frames>;
}
