//! [`StoreAccess`]: the maps with all their parts.

use crate::Store;
use crate::backing::{Backing, UpdateRefusal};
use crate::codec::{self, Collector};
use crate::engines::Engines;
use std::sync::Arc;
use xputrace_model::names::Names;
use xputrace_model::plan::BpfMapId;
use xputrace_model::stack::StackKey;
use xputrace_model::table::{Cell, Key, Scalar, Table, TableDef, TableId, TableKind, Value};

/// The store and the engines, borrowed for one step. No handler may run meanwhile.
#[derive(Debug)]
pub struct StoreAccess<'a, L, T> {
    pub(crate) store: &'a mut Store,
    pub(crate) engines: Engines<L, T>,
    pub(crate) names: &'a mut Names,
}

impl<L: Backing, T: Backing> StoreAccess<'_, L, T> {
    /// Returns a consistent snapshot of a map's contents.
    pub fn snapshot(&mut self, id: TableId) -> Table {
        self.store.map_mut(id).is_read = true;
        let in_engines = match self.store.map(id).drains {
            true => {
                self.drain(id);
                Vec::new()
            }
            false => self.read_engines(id),
        };
        let map = self.store.map(id);
        codec::merge(&map.def, [in_engines, map.own_rows()])
    }

    /// Returns the value of a plain map's element, or the number that an aggregation's rows are
    /// sorted by.
    pub fn get(&mut self, id: TableId, key: &[Value]) -> Option<Value> {
        if self.store.map(id).is_plain() {
            return self.get_plain(id, key);
        }
        let row = self.snapshot(id).rows.into_iter().find(|(it, _)| it == key);
        row.map(|(_, cell)| Value::Int(cell.weight()))
    }

    /// Assigns an element of a map that is not an aggregation; a missing value removes it. Counts
    /// an update that a full map refuses.
    ///
    /// # Errors
    /// A sentence.
    pub fn set(&mut self, id: TableId, key: &[Value], value: Value) -> Result<(), String> {
        let map = self.store.map_mut(id);
        match map.def.kind {
            TableKind::Plain(kind) if map.homes.is_some() => {
                let done = self.set_in_engine(id, kind, key, value);
                self.count_refusal(id, done)
            }
            TableKind::Plain(_) => {
                map.set_own(key, value);
                Ok(())
            }
            _ => self.set_sum(id, key, value),
        }
    }

    /// Adds to an integer; atomically in engines, where compiled handlers may add too.
    ///
    /// # Errors
    /// A sentence.
    pub fn add(&mut self, id: TableId, key: &[Value], delta: i64) -> Result<(), String> {
        let map = self.store.map(id);
        match map.def.kind {
            TableKind::Sum => {
                self.aggregate(id, key, TableKind::Sum, delta);
                Ok(())
            }
            TableKind::Plain(Scalar::Int) if map.homes.is_some() => {
                let done = self.add_in_engine(id, key, delta);
                self.count_refusal(id, done)
            }
            TableKind::Plain(Scalar::Int) => {
                let old = match map.own_value(key) {
                    Some(Value::Int(n)) => n,
                    _ => 0,
                };
                self.set(id, key, Value::Int(old.wrapping_add(delta)))
            }
            _ => Err(format!("{} does not hold integers", map.def.name)),
        }
    }

    /// Adds a value to an aggregation.
    pub fn aggregate(&mut self, id: TableId, key: &[Value], kind: TableKind, value: i64) {
        self.store.map_mut(id).merge_own(key.to_vec(), Cell::of(kind, value));
    }

    /// Removes an element.
    pub fn remove(&mut self, id: TableId, key: &[Value]) {
        self.drain_unread(id);
        let map = self.store.map_mut(id);
        map.remove_own(key);
        if map.drains {
            return;
        }
        let Some(stored) = self.stored_key(id, key) else { return };
        let def = self.store.map(id).def.clone();
        self.in_engines(id, "remove from", |engine, map| delete(engine, map, &def, &stored));
    }

    /// Clears a map. If it has two generations, removes only what the last read saw, or everything
    /// if there was no read since the last clear.
    pub fn clear(&mut self, id: TableId) {
        self.drain_unread(id);
        let map = self.store.map_mut(id);
        map.clear_own();
        // The handler has not seen what the engines collected since the last read.
        if map.drains {
            return;
        }
        self.in_engines(id, "clear", |engine, map| engine.clear(map));
    }

    /// Calls `f` with every stack that a map holds, in any part, possibly repeatedly. Unlike a
    /// handler's read, it drains nothing.
    ///
    /// # Errors
    /// A map in Linux cannot be read, so some stacks are missing.
    pub fn for_each_stack(&self, f: &mut dyn FnMut(StackKey)) -> Result<(), String> {
        let holding = || self.store.maps.iter().filter(|it| it.def.holds_stacks());
        holding().for_each(|it| it.own_stacks(f));
        // Read the maps twice: a handler may move a stack from a map yet to be read to one already
        // read.
        for map in holding().chain(holding()) {
            let on_value = &mut |key: &[u8], value: &[u8]| codec::stacks(&map.def, key, value, f);
            self.engines.with(map.homes).try_for_each(|(engine, at)| engine.for_each(at, on_value))?;
        }
        Ok(())
    }

    /// Returns what the engines hold now. If a map in Linux cannot be read to its end, returns what
    /// was read.
    fn read_engines(&self, id: TableId) -> Vec<(Key, Cell)> {
        let map = self.store.map(id);
        let mut collector = Collector::new(&map.def, self.names);
        for (engine, at) in self.engines.with(map.homes) {
            let _ = engine.for_each(at, &mut |key, value| collector.add(key, value));
        }
        collector.finish()
    }

    /// Drains the engines' generations into the own part.
    fn drain(&mut self, id: TableId) {
        let map = self.store.map(id);
        let def = map.def.clone();
        let mut collector = Collector::new(&def, self.names);
        let take = &mut |key: &[u8], value: &[u8]| collector.add(key, value);
        let failed = self.engines.change_all(map.homes, |engine, at| engine.drain(at, take));
        let map = self.store.map_mut(id);
        collector.finish().into_iter().for_each(|(key, cell)| map.merge_own(key, cell));
        self.store.fail(failed, "read", id);
    }

    /// Drains a map that no handler has read since it was cleared, so that all its contents are
    /// removed.
    fn drain_unread(&mut self, id: TableId) {
        let map = self.store.map(id);
        if map.drains && !map.is_read {
            self.drain(id);
        }
    }

    fn get_plain(&mut self, id: TableId, key: &[Value]) -> Option<Value> {
        let map = self.store.map(id);
        if !map.homes.is_some() {
            return map.own_value(key);
        }
        let (def, homes) = (map.def.clone(), map.homes);
        let stored = self.stored_key(id, key)?;
        let (engine, at) = self.engines.with(homes).next()?;
        let value = engine.lookup(at, &stored)?;
        match codec::decode_value(&def, &stored, &value, self.names) {
            Cell::Plain(value) => Some(value),
            _ => None,
        }
    }

    fn set_in_engine(&mut self, id: TableId, kind: Scalar, key: &[Value], value: Value) -> Result<(), UpdateRefusal> {
        let misfit = UpdateRefusal::Other(misfit(&self.store.map(id).def));
        let stored = self.stored_key(id, key).ok_or_else(|| misfit.clone())?;
        let bytes = codec::encode_plain(kind, &value, self.names);
        self.in_engine(id, |engine, map| match (value, bytes) {
            (Value::Missing, _) => engine.delete(map, &stored).map_err(UpdateRefusal::Other),
            (_, Some(bytes)) => engine.update(map, &stored, &bytes),
            (_, None) => Err(misfit),
        })
    }

    fn add_in_engine(&mut self, id: TableId, key: &[Value], delta: i64) -> Result<(), UpdateRefusal> {
        let stored = self.stored_key(id, key).ok_or_else(|| UpdateRefusal::Other(misfit(&self.store.map(id).def)))?;
        self.in_engine(id, |engine, map| engine.add(map, &stored, delta))
    }

    /// Calls `change` on a map in each engine that has it; `verb` describes it in errors.
    fn in_engines(
        &mut self,
        id: TableId,
        verb: &str,
        change: impl FnMut(&mut dyn Backing, BpfMapId) -> Result<(), String>,
    ) {
        let failed = self.engines.change_all(self.store.map(id).homes, change);
        self.store.fail(failed, verb, id);
    }

    /// Calls `change` on the only home of a plain map.
    fn in_engine(
        &mut self,
        id: TableId,
        change: impl FnOnce(&mut dyn Backing, BpfMapId) -> Result<(), UpdateRefusal>,
    ) -> Result<(), UpdateRefusal> {
        self.engines.change_only(self.store.map(id).homes, change)
    }

    /// Assigns an element of a plain map that is kept as a sum: replaces what was added before.
    fn set_sum(&mut self, id: TableId, key: &[Value], value: Value) -> Result<(), String> {
        self.drain(id);
        let map = self.store.map_mut(id);
        map.remove_own(key);
        match (map.def.kind, value) {
            (TableKind::Sum, Value::Int(n)) => map.merge_own(key.to_vec(), Cell::Number(n)),
            (TableKind::Sum, Value::Missing) => {}
            _ => return Err(misfit(&self.store.map(id).def)),
        }
        Ok(())
    }

    /// Encodes a key for engines. A map without keys has one element, whose key is four zeros.
    fn stored_key(&mut self, id: TableId, key: &[Value]) -> Option<Vec<u8>> {
        let def = Arc::clone(&self.store.map(id).def);
        let stored = codec::encode_key(&def, key, self.names)?;
        Some(if def.stored_key_size() == 0 { vec![0; 4] } else { stored })
    }

    fn count_refusal(&mut self, id: TableId, done: Result<(), UpdateRefusal>) -> Result<(), String> {
        match done {
            Ok(()) => Ok(()),
            Err(UpdateRefusal::Full) => {
                self.store.map_mut(id).refused += 1;
                Ok(())
            }
            Err(UpdateRefusal::Other(reason)) => Err(reason),
        }
    }
}

/// Removes an element of an engine's map; for a histogram, all its buckets.
fn delete(engine: &mut dyn Backing, map: BpfMapId, def: &TableDef, stored: &[u8]) -> Result<(), String> {
    match (def.kind, def.stored_key_size()) {
        // A one-element array, whose element cannot be deleted.
        (kind, 0) if kind.is_aggregation() => engine.clear(map),
        (kind, _) if kind.is_bucketed() => {
            let mut buckets: Vec<Vec<u8>> = Vec::new();
            engine.for_each(map, &mut |key, _| buckets.extend(key.starts_with(stored).then(|| key.to_vec())))?;
            buckets.iter().try_for_each(|it| engine.delete(map, it))
        }
        _ => engine.delete(map, stored),
    }
}

fn misfit(def: &TableDef) -> String {
    format!("{} holds values or keys of another type", def.name)
}
