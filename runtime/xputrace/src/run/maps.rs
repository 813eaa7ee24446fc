//! A script's maps: the engines' parts and the interpreter's own, read and changed as one.
//!
//! ```text
//! kernel's part ─┐
//! tracer's part ─┼─ read: drained or copied, merged ──▶ Table
//! own part ──────┘   (own: what interpreted handlers wrote, and what reads drained)
//! ```
//! A map of two generations is drained into the own part by each read, so that an interpreted
//! handler sees one consistent snapshot, and `clear` removes exactly that.

use super::State;
use std::collections::HashMap;
use std::sync::Arc;
use xputrace_bytecode::MapKind;
use xputrace_bytecode::insn::atomic;
use xputrace_bytecode::vm::Change;
use xputrace_model::bucket;
use xputrace_model::loss::Loss;
use xputrace_model::plan::Plan;
use xputrace_model::table::{Cell, Key, Scalar, Storage, Table, TableDef, TableId, TableKind, Value};
use xputrace_tracer::tables;

/// A map of the script.
pub(super) struct Map {
    pub def: Arc<TableDef>,
    /// Where its values are in this run.
    storage: Storage,
    /// Whether it has two generations, so that reading it drains the engines.
    drains: bool,
    own: HashMap<Key, Cell>,
    /// Whether it was read since it was last cleared.
    is_read: bool,
    /// Whether a handler has printed, drawn or cleared it.
    pub shown: bool,
}

impl Map {
    pub fn new(def: Arc<TableDef>, plan: &Plan, has_linux: bool) -> Self {
        let drains = def.storage.linux().is_some_and(|it| plan.image.maps[it].kind == MapKind::ArrayOfMaps);
        let storage = if has_linux { def.storage } else { def.storage.replayed() };
        Map { def, storage, drains, own: HashMap::new(), is_read: false, shown: false }
    }

    /// Whether another element fits into the own part.
    fn has_room_for(&self, key: &[Value]) -> bool {
        self.own.contains_key(key) || self.own.len() < self.def.capacity as usize
    }
}

impl State {
    pub(super) fn id(&self, name: &str) -> Option<TableId> {
        self.by_name.get(name).copied()
    }

    pub(super) fn map(&mut self, id: TableId) -> &mut Map {
        &mut self.maps[id.0 as usize]
    }

    /// A map's contents now: one consistent snapshot.
    pub fn snapshot(&mut self, id: TableId) -> Table {
        let Map { ref def, storage, drains, .. } = *self.map(id);
        let def = def.clone();
        let mut parts: Vec<Vec<(Key, Cell)>> = Vec::new();
        self.map(id).is_read = true;
        if drains {
            self.drain(id, &def, storage);
        } else {
            parts.extend(storage.linux().map(|it| self.linux_part(&def, it)));
            parts.extend(storage.tracer().is_some().then(|| self.pipeline.part(id)));
        }
        parts.push(self.map(id).own.iter().map(|(k, c)| (k.clone(), c.clone())).collect());
        tables::merge(&def, parts)
    }

    fn linux_part(&self, def: &TableDef, map: usize) -> Vec<(Key, Cell)> {
        let Some(handle) = self.linux.as_ref().and_then(|it| it.map(map)) else { return Vec::new() };
        let mut collector = tables::Collector::new(def, self.pipeline.names());
        let single = def.stored_key_size() == 0;
        let read = handle.for_each(&mut |key, values| {
            values.iter().for_each(|value| collector.add(if single { &[] } else { key }, value));
        });
        // A map that cannot be read any more (the kernel is going away) reads as what was seen.
        drop(read);
        collector.finish()
    }

    /// Moves what the engines' generations hold into the own part.
    fn drain(&mut self, id: TableId, def: &TableDef, storage: Storage) {
        let single = def.stored_key_size() == 0;
        let mut drained = Vec::new();
        if let (Some(map), Some(linux)) = (storage.linux(), &mut self.linux) {
            let mut collector = tables::Collector::new(def, self.pipeline.names());
            let swapped = linux.swap(map, &mut |key, values| {
                values.iter().for_each(|value| collector.add(if single { &[] } else { key }, value));
            });
            self.failures.extend(swapped.err().map(|it| format!("cannot read {}: {it}", def.name)));
            drained.extend(collector.finish());
        }
        if storage.tracer().is_some() {
            drained.extend(self.pipeline.drain_part(id));
        }
        for (key, cell) in drained {
            self.merge_own(id, key, cell);
        }
    }

    /// Adds to the own part; refusals because it is full are counted.
    fn merge_own(&mut self, id: TableId, key: Key, cell: Cell) {
        let map = self.map(id);
        let has_room = map.has_room_for(&key);
        match map.own.get_mut(&key) {
            Some(row) => row.merge(map.def.kind, cell),
            None if has_room => drop(map.own.insert(key, cell)),
            None => self.losses.add(Loss::MapFull, 1),
        }
    }

    /// Adds one value to an aggregation, from an interpreted handler.
    pub(super) fn aggregate(&mut self, id: TableId, key: &[Value], kind: TableKind, value: i64) {
        self.merge_own(id, key.to_vec(), single(kind, value));
    }

    /// One element of a plain map.
    pub(super) fn plain(&mut self, id: TableId, key: &[Value]) -> Option<Value> {
        let map = self.map(id);
        let def = map.def.clone();
        let linux_map = match map.storage {
            Storage::Interpreter => {
                return match map.own.get(key) {
                    Some(Cell::Plain(value)) => Some(value.clone()),
                    _ => None,
                };
            }
            Storage::Tracer(_) => return self.pipeline.state_mut().get_plain(id, key),
            Storage::Linux { map, .. } | Storage::Both { linux: map, .. } => map,
        };
        let stored = self.stored_key(&def, key)?;
        let values = self.linux.as_ref()?.map(linux_map)?.lookup(&stored).ok()??;
        match tables::decode_value(&def, &stored, values.first()?, self.pipeline.names()) {
            Cell::Plain(value) => Some(value),
            _ => None,
        }
    }

    /// Assigns an element of a plain map; a missing value removes it.
    pub(super) fn set_plain(&mut self, id: TableId, key: &[Value], value: Value) -> Result<(), String> {
        let map = self.map(id);
        let def = map.def.clone();
        let linux_map = match map.storage {
            Storage::Interpreter => {
                self.set_own(id, key, value);
                return Ok(());
            }
            Storage::Tracer(_) => {
                let done = self.pipeline.state_mut().set_plain(id, key, &value);
                return if done { Ok(()) } else { Err(misfit(&def)) };
            }
            Storage::Linux { map, .. } | Storage::Both { linux: map, .. } => map,
        };
        let TableKind::Plain(kind) = def.kind else { return self.set_sum(id, &def, key, value) };
        let stored = self.stored_key(&def, key).ok_or_else(|| misfit(&def))?;
        let bytes = tables::encode_plain(kind, &value, self.pipeline.state_mut().names_mut());
        let handle = self.linux.as_ref().and_then(|it| it.map(linux_map)).ok_or("the map is not loaded")?;
        match (value, bytes) {
            (Value::Missing, _) => handle.delete(&stored).map(|_| ()).map_err(|e| e.to_string()),
            (_, Some(bytes)) => handle.update(&stored, &bytes, 0).map_err(|e| e.to_string()),
            (_, None) => Err(misfit(&def)),
        }
    }

    /// Assigns an element of a plain map that is kept as a sum: what was added before is over.
    fn set_sum(&mut self, id: TableId, def: &TableDef, key: &[Value], value: Value) -> Result<(), String> {
        let storage = self.map(id).storage;
        self.drain(id, def, storage);
        self.map(id).own.remove(key);
        match (def.kind, value) {
            (TableKind::Sum, Value::Int(n)) => self.merge_own(id, key.to_vec(), Cell::Number(n)),
            (TableKind::Sum, Value::Missing) => {}
            _ => return Err(misfit(def)),
        }
        Ok(())
    }

    fn set_own(&mut self, id: TableId, key: &[Value], value: Value) {
        let map = self.map(id);
        if value == Value::Missing {
            map.own.remove(key);
        } else if map.has_room_for(key) {
            map.own.insert(key.to_vec(), Cell::Plain(value));
        } else {
            self.losses.add(Loss::MapFull, 1);
        }
    }

    /// Adds to an integer of a plain map. One that lives in the kernel, where its probes may be
    /// adding too, is changed there: exactly.
    pub(super) fn add_plain(&mut self, id: TableId, key: &[Value], delta: i64) -> Result<(), String> {
        if self.map(id).def.kind == TableKind::Sum {
            self.aggregate(id, key, TableKind::Sum, delta);
            return Ok(());
        }
        if let Some(done) = self.add_in_linux(id, key, delta) {
            return done;
        }
        let old = match self.plain(id, key) {
            Some(Value::Int(n)) => n,
            None | Some(Value::Missing) => 0,
            Some(_) => return Err(format!("{} does not hold integers", self.map(id).def.name)),
        };
        self.set_plain(id, key, Value::Int(old.wrapping_add(delta)))
    }

    fn add_in_linux(&mut self, id: TableId, key: &[Value], delta: i64) -> Option<Result<(), String>> {
        let map = self.map(id);
        let (def, linux_map) = (map.def.clone(), map.storage.linux()?);
        if def.kind != TableKind::Plain(Scalar::Int) {
            return None;
        }
        let stored = self.stored_key(&def, key)?;
        let change = Change::new(atomic::ADD, delta as u64)?;
        let handle = self.linux.as_ref()?.map(linux_map)?;
        Some(handle.modify(&stored, change).map_err(|e| e.to_string()))
    }

    /// The key as the BPF map has it: a map without a key is an array of one element.
    fn stored_key(&mut self, def: &TableDef, key: &[Value]) -> Option<Vec<u8>> {
        let stored = tables::encode_key(def, key, self.pipeline.state_mut().names_mut())?;
        Some(if stored.is_empty() { 0u32.to_le_bytes().to_vec() } else { stored })
    }

    /// Moves what the engines' generations hold into the own part where no handler has read it since it
    /// was cleared: what is removed now is then all there is.
    fn drain_unread(&mut self, id: TableId) {
        let Map { ref def, storage, drains, is_read, .. } = *self.map(id);
        let def = def.clone();
        if drains && !is_read {
            self.drain(id, &def, storage);
        }
    }

    /// Removes one element.
    pub(super) fn remove_element(&mut self, id: TableId, key: &[Value]) {
        self.drain_unread(id);
        let map = self.map(id);
        let Map { ref def, storage, drains, .. } = *map;
        let def = def.clone();
        map.own.remove(key);
        if let TableKind::Plain(_) = def.kind {
            // What is not there needs no removing.
            let _ = self.set_plain(id, key, Value::Missing);
            return;
        }
        if drains {
            return;
        }
        if storage.tracer().is_some() {
            self.pipeline.state_mut().remove(id, key);
        }
        if let Some(linux_map) = storage.linux() {
            self.remove_in_linux(&def, linux_map, key);
        }
    }

    /// Removes an element of an aggregation from the kernel's part; of a histogram, all its buckets.
    fn remove_in_linux(&mut self, def: &TableDef, linux_map: usize, key: &[Value]) {
        let Some(stored) = tables::encode_key(def, key, self.pipeline.state_mut().names_mut()) else { return };
        let Some(handle) = self.linux.as_ref().and_then(|it| it.map(linux_map)) else { return };
        let removed = match (stored.is_empty(), def.kind.is_bucketed()) {
            (true, _) => handle.clear(),
            (false, false) => handle.delete(&stored).map(|_| ()),
            (false, true) => {
                let mut buckets: Vec<Vec<u8>> = Vec::new();
                handle
                    .for_each(&mut |it, _| buckets.extend(it.starts_with(&stored).then(|| it.to_vec())))
                    .and_then(|()| buckets.iter().try_for_each(|it| handle.delete(it).map(|_| ())))
            }
        };
        self.failures.extend(removed.err().map(|it| format!("cannot remove from {}: {it}", def.name)));
    }

    /// Empties a map: of one with two generations, removes what the last read has seen.
    pub(super) fn clear_map(&mut self, id: TableId) {
        self.drain_unread(id);
        let map = self.map(id);
        let Map { ref def, storage, drains, .. } = *map;
        let name = def.name.clone();
        map.own.clear();
        map.shown = true;
        map.is_read = false;
        // What the engines gathered since the last read is not what the handler has seen.
        if drains {
            return;
        }
        if let Some(handle) = storage.linux().and_then(|it| self.linux.as_ref()?.map(it))
            && let Err(error) = handle.clear()
        {
            self.failures.push(format!("cannot clear {name}: {error}"));
        }
        if storage.tracer().is_some() {
            self.pipeline.state_mut().clear_part(id);
        }
    }
}

fn misfit(def: &TableDef) -> String {
    format!("{} holds values or keys of another type", def.name)
}

/// An aggregation of one value.
fn single(kind: TableKind, value: i64) -> Cell {
    let one = |bucket| Cell::Buckets([(bucket, 1)].into());
    match kind {
        TableKind::Plain(_) => Cell::Plain(Value::Int(value)),
        TableKind::Count => Cell::Number(1),
        TableKind::Sum | TableKind::Min | TableKind::Max => Cell::Number(value),
        TableKind::Avg => Cell::Avg { count: 1, total: value.into() },
        TableKind::Stats => Cell::Stats { count: 1, total: value.into(), min: value, max: value },
        TableKind::Hist { bits } => one(bucket::index(value, bits)),
        TableKind::Quantiles => one(bucket::index(value, bucket::QUANTILE_BITS)),
        TableKind::Lhist { min, max, step } => one(linear_bucket(value, min, max, step)),
    }
}

fn linear_bucket(value: i64, min: i64, max: i64, step: i64) -> i64 {
    if value < min {
        -1
    } else if value >= max {
        max.wrapping_sub(min).checked_div(step).unwrap_or(0)
    } else {
        value.wrapping_sub(min).checked_div(step).unwrap_or(0)
    }
}
