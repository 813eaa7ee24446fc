//! One map: where its parts are, and the interpreter's own part.

use std::collections::HashMap;
use std::sync::Arc;
use xputrace_model::plan::{BpfMapId, Image};
use xputrace_model::stack::StackKey;
use xputrace_model::table::{Cell, Key, Storage, TableDef, TableKind, Value};

/// A map of the script.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) def: Arc<TableDef>,
    pub(crate) homes: Homes,
    /// Whether it has two generations, so that reading it drains the engines.
    pub(crate) drains: bool,
    /// Written by interpreted handlers, or drained by reads.
    own: HashMap<Key, Cell>,
    /// Whether it was read since it was last cleared.
    pub(crate) is_read: bool,
    /// Updates of interpreted handlers that found it full.
    pub(crate) refused: u64,
}

/// The engines' maps that hold its values in this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Homes {
    pub(crate) linux: Option<BpfMapId>,
    pub(crate) tracer: Option<BpfMapId>,
    /// Linux's map, kept by the tracer's engine if there is no Linux.
    pub(crate) tracer_for_linux: Option<BpfMapId>,
    /// The GPU's map, which the tracer's engine keeps for the software GPU.
    pub(crate) gpu: Option<BpfMapId>,
}

impl Homes {
    fn new(storage: Storage, has_linux: bool) -> Homes {
        let (linux, replayed) = if has_linux { (storage.linux(), None) } else { (None, storage.linux()) };
        Homes { linux, tracer: storage.tracer(), tracer_for_linux: replayed, gpu: storage.gpu() }
    }

    /// Whether an engine has the map because compiled handlers use it.
    pub(crate) fn is_some(self) -> bool {
        self.linux.is_some() || self.in_tracer().next().is_some()
    }

    /// Returns the maps of the tracer's engine.
    pub(crate) fn in_tracer(self) -> impl Iterator<Item = BpfMapId> {
        self.tracer.into_iter().chain(self.tracer_for_linux).chain(self.gpu)
    }
}

impl Map {
    pub(crate) fn new(def: Arc<TableDef>, image: &Image, has_linux: bool) -> Map {
        let drains = def.storage.linux().is_some_and(|it| image.maps[it].inner.is_some());
        let homes = Homes::new(def.storage, has_linux);
        Map { def, homes, drains, own: HashMap::new(), is_read: false, refused: 0 }
    }

    pub(crate) fn own_rows(&self) -> Vec<(Key, Cell)> {
        self.own.iter().map(|(key, cell)| (key.clone(), cell.clone())).collect()
    }

    pub(crate) fn own_stacks(&self, f: &mut dyn FnMut(StackKey)) {
        let of_value = |cell| match cell {
            &Cell::Plain(Value::Stack(stack)) => Some(stack),
            _ => None,
        };
        let of_key = |value: &Value| match value {
            Value::Stack(stack) => Some(*stack),
            _ => None,
        };
        for (key, cell) in &self.own {
            key.iter().filter_map(of_key).chain(of_value(cell)).for_each(&mut *f);
        }
    }

    pub(crate) fn own_value(&self, key: &[Value]) -> Option<Value> {
        match self.own.get(key) {
            Some(Cell::Plain(value)) => Some(value.clone()),
            _ => None,
        }
    }

    /// Merges an element into the own part; if that is full, counts the update as refused.
    pub(crate) fn merge_own(&mut self, key: Key, cell: Cell) {
        let is_full = self.is_full();
        match self.own.get_mut(&key) {
            Some(row) => row.merge(self.def.kind, cell),
            None if is_full => self.refused += 1,
            None => drop(self.own.insert(key, cell)),
        }
    }

    /// Assigns an element of the own part; if that is full, counts the update as refused.
    pub(crate) fn set_own(&mut self, key: &[Value], value: Value) {
        let is_full = self.is_full();
        match (value, self.own.get_mut(key)) {
            (Value::Missing, _) => self.remove_own(key),
            (value, Some(row)) => *row = Cell::Plain(value),
            (_, None) if is_full => self.refused += 1,
            (value, None) => drop(self.own.insert(key.to_vec(), Cell::Plain(value))),
        }
    }

    pub(crate) fn remove_own(&mut self, key: &[Value]) {
        self.own.remove(key);
    }

    pub(crate) fn clear_own(&mut self) {
        self.own.clear();
        self.is_read = false;
    }

    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.def.kind, TableKind::Plain(_))
    }

    fn is_full(&self) -> bool {
        self.own.len() >= self.def.capacity as usize
    }
}
