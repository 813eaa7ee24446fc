//! A map's rows, ordered and named for display.
//!
//! Stacks of different sources are different keys. Once their frames are named, rows with equal
//! keys are merged.

use crate::names::{COLUMNS, Of, ShortNames};
use std::collections::BTreeMap;
use xputrace_model::output::{StackNames, View};
use xputrace_model::schema::Unit;
use xputrace_model::stack::{Frame, StackKey};
use xputrace_model::table::{Cell, Scalar, Table, TableDef, Value};

/// One row, ready to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MapRow {
    pub key: Vec<KeyPart>,
    pub cell: Cell,
}

/// One part of a row's key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeyPart {
    Missing,
    Int(i64, Unit),
    Bool(bool),
    Text(String),
    Stack(NamedStack),
}

/// A stack compared by frame names alone, innermost first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NamedStack(pub Vec<NamedFrame>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NamedFrame {
    pub function: String,
    pub module: String,
}

impl NamedFrame {
    /// Formats `function (module)`, or the function alone if the module is unknown.
    pub(crate) fn text(&self) -> String {
        match self.module.as_str() {
            "" | Frame::PYTHON => self.function.clone(),
            module => format!("{} ({module})", self.function),
        }
    }
}

impl NamedStack {
    /// Shortens the names of functions, unless they are to be whole.
    pub(crate) fn shortened(mut self, names: &dyn StackNames) -> Self {
        if !names.shows_whole_names() {
            let short = short_functions(std::iter::once(&self));
            self.shorten(&short);
        }
        self
    }

    fn shorten(&mut self, short: &ShortNames) {
        let native = self.0.iter_mut().filter(|it| it.module != Frame::PYTHON);
        native.for_each(|it| it.function = short.of(&it.function).to_owned());
    }
}

fn short_functions<'a>(stacks: impl Iterator<Item = &'a NamedStack>) -> ShortNames {
    let native = stacks.flat_map(|it| &it.0).filter(|it| it.module != Frame::PYTHON);
    ShortNames::new(native.map(|it| it.function.as_str()), Of::Functions, COLUMNS)
}

/// Shown for a stack that could not be taken or stored.
pub(crate) const LOST_STACK: &str = "[lost stack]";
/// Shown where there is no stack, such as the Linux frames of a user-mode sample.
const NO_STACK: &str = "[no stack]";
/// Of a launch by code that Python has not called: other stacks always have a frame.
const NO_PYTHON: &str = "[no Python frames]";

/// Returns a view's rows: merged by name, ascending by value (ties by key), only the largest `top`.
pub(crate) fn rows(view: &View, names: &mut dyn StackNames) -> Vec<MapRow> {
    let mut rows = merged(&view.table, names);
    let keep = view.top.unwrap_or(usize::MAX);
    rows.drain(..rows.len().saturating_sub(keep));
    rows
}

/// Returns all rows of a table: merged by name, ascending by value (ties by key).
pub(crate) fn merged(table: &Table, names: &mut dyn StackNames) -> Vec<MapRow> {
    let mut by_key: BTreeMap<Vec<KeyPart>, Cell> = BTreeMap::new();
    for (key, cell) in &table.rows {
        let units = table.def.keys.iter().map(|it| it.unit).chain(std::iter::repeat(Unit::None));
        let key = key.iter().zip(units).map(|(value, unit)| part(value, unit, names)).collect();
        match by_key.get_mut(&key) {
            Some(existing) => existing.merge(table.def.kind, cell.clone()),
            None => {
                by_key.insert(key, cell.clone());
            }
        }
    }
    let mut rows: Vec<MapRow> = by_key.into_iter().map(|(key, cell)| MapRow { key, cell }).collect();
    rows.sort_by_key(|it| it.cell.weight());
    rows
}

/// Shortens the names of functions and kernels in rows that are complete, unless they are to be
/// whole; rows stay different. Kernels have about `columns`.
pub(crate) fn shorten_names(rows: &mut [MapRow], def: &TableDef, names: &dyn StackNames, columns: usize) {
    if names.shows_whole_names() {
        return;
    }
    let functions = short_functions(rows.iter().flat_map(|it| &it.key).filter_map(|it| match it {
        KeyPart::Stack(it) => Some(it),
        _ => None,
    }));
    let is_name = |at: usize| def.keys.get(at).is_some_and(|it| it.kind == Scalar::Name);
    let parts = rows.iter().flat_map(|it| it.key.iter().enumerate());
    let kernels = parts.filter_map(|(at, it)| match it {
        KeyPart::Text(it) if is_name(at) => Some(it.as_str()),
        _ => None,
    });
    let kernels = ShortNames::new(kernels, Of::Kernels, columns.min(COLUMNS));
    for (at, part) in rows.iter_mut().flat_map(|it| it.key.iter_mut().enumerate()) {
        match part {
            KeyPart::Text(it) if is_name(at) => *it = kernels.of(it).to_owned(),
            KeyPart::Stack(it) => it.shorten(&functions),
            _ => {}
        }
    }
}

fn part(value: &Value, unit: Unit, names: &mut dyn StackNames) -> KeyPart {
    match value {
        Value::Missing => KeyPart::Missing,
        Value::Bool(it) => KeyPart::Bool(*it),
        Value::Int(it) => KeyPart::Int(*it, unit),
        Value::Str(it) => KeyPart::Text(it.to_string()),
        Value::Stack(it) => KeyPart::Stack(named(*it, names)),
    }
}

/// Returns a stack's frame names; one placeholder if there are none.
pub(crate) fn named(stack: StackKey, names: &mut dyn StackNames) -> NamedStack {
    let made_up = |text: &str| NamedStack(vec![NamedFrame { function: text.into(), module: String::new() }]);
    if stack == StackKey::Empty {
        return made_up(NO_STACK);
    }
    let Some(frames) = names.frames(stack) else { return made_up(LOST_STACK) };
    if frames.is_empty() {
        return made_up(NO_PYTHON);
    }
    let named = |it: &Frame| NamedFrame { function: it.function.clone(), module: it.module.clone() };
    NamedStack(frames.iter().map(named).collect())
}
