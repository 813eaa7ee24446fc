//! What a run outputs, as data; the render crate turns it into text or JSON.

use crate::gap::Gap;
use crate::loss::{Account, Losses};
use crate::object::{Datum, Dump};
use crate::schema::Unit;
use crate::stack::{Frames, StackKey};
use crate::table::{Table, Value};
use std::sync::Arc;

/// One output, in the order of events.
#[derive(Clone, Debug)]
pub enum Output {
    /// All probes are attached.
    Attached { probes: usize },
    /// A printed string; its stacks are named when it is rendered.
    Print(Vec<Piece>),
    /// A printed `#{…}`, in the order of its names.
    Object(Vec<Member>),
    /// The tracer's own remark about the results.
    Note(String),
    /// A map, or part of it.
    Table(View),
    /// A map of an object, as a whole.
    Dump(Dump),
    /// A record that a program of an object wrote.
    Record { map: String, value: Datum },
    /// A gap in the result.
    Gap(Gap),
    /// The end of the run; losses always come last. The account is boxed to keep the many prints
    /// small.
    End { losses: Losses, account: Option<Box<Account>> },
}

impl Output {
    /// A `print` without stacks.
    pub fn print(text: impl Into<String>) -> Self {
        Output::Print(vec![Piece::Text(text.into())])
    }

    /// Prints what a program of the target has said.
    pub fn said(text: &str) -> Self {
        Output::print(crate::text::printed(text))
    }

    /// Shows a map, or its `top` largest elements.
    pub fn table(table: Arc<Table>, top: Option<usize>) -> Self {
        match table.rows.is_empty() {
            true => Output::empty(&table.def.name),
            false => Output::Table(View { table, top }),
        }
    }

    /// Says that a map has no elements.
    pub fn empty(map: &str) -> Self {
        Output::print(format!("{map}: empty"))
    }
}

/// A named value of a printed `#{…}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    pub value: Value,
    pub unit: Unit,
}

/// A piece of a printed text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// What the script says.
    Text(String),
    /// A text that the script has read: it stays on one line, whatever is in it.
    Value(String),
    Stack(StackKey),
}

/// A map as it should be shown.
#[derive(Clone, Debug)]
pub struct View {
    pub table: Arc<Table>,
    /// Show only this many of the largest.
    pub top: Option<usize>,
}

/// Names stacks: from live processes, or from a recording.
pub trait StackNames {
    /// Returns the frames of a stack, innermost first; `None` if it was lost.
    fn frames(&mut self, stack: StackKey) -> Option<Frames>;

    /// Whether outputs for readers show names whole instead of shortening them.
    fn shows_whole_names(&self) -> bool {
        false
    }
}
