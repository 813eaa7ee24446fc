//! A script's maps: the parts of the engines and of the interpreter, accessed as one.
//!
//! ```text
//! Linux's part ──┐
//! tracer's part ─┼─ read: drained or copied, merged ──▶ Table
//! own part ──────┘   (own: written by interpreted handlers, or drained by reads)
//! ```
//! Engines hold bytes ([`Backing`]); [`codec`] interprets them. Each read drains a map with two
//! generations into the own part. So an interpreted handler sees a consistent snapshot, and `clear`
//! removes exactly what it has seen.
#![forbid(unsafe_code)]

mod access;
mod backing;
pub mod codec;
mod engines;
mod map;

pub use access::StoreAccess;
pub use backing::{Backing, OnValue, UpdateRefusal};

use engines::Engines;
use map::Map;
use std::collections::HashMap;
use std::sync::Arc;
use xputrace_model::names::Names;
use xputrace_model::plan::Plan;
use xputrace_model::table::{TableDef, TableId};

/// A run's maps, except for the engines' parts. [`Store::with`] adds the engines.
#[derive(Debug, Default)]
pub struct Store {
    maps: Vec<Map>,
    by_name: HashMap<String, TableId>,
    failures: Vec<String>,
}

impl Store {
    /// Creates the plan's maps, empty. Without Linux, the tracer's engine has Linux's maps too.
    pub fn new(plan: &Plan, has_linux: bool) -> Store {
        Store {
            maps: plan.tables.iter().map(|it| Map::new(it.clone(), &plan.image, has_linux)).collect(),
            by_name: TableId::each(&plan.tables).map(|(id, it)| (it.name.clone(), id)).collect(),
            ..Store::default()
        }
    }

    /// Looks up a map by its name, including the `@`.
    pub fn id(&self, name: &str) -> Option<TableId> {
        self.by_name.get(name).copied()
    }

    /// Returns the shape of a map.
    pub fn def(&self, id: TableId) -> &Arc<TableDef> {
        &self.map(id).def
    }

    /// Returns how many updates of interpreted handlers were refused because a map was full, by map.
    pub fn refused(&self) -> impl Iterator<Item = (TableId, u64)> + '_ {
        TableId::each(self.maps.iter().map(|it| it.refused))
    }

    /// Returns what engines could not read or change since the last call, as sentences.
    pub fn take_failures(&mut self) -> Vec<String> {
        std::mem::take(&mut self.failures)
    }

    /// Combines the maps with the engines, for one step.
    pub fn with<'a, L: Backing, T: Backing>(
        &'a mut self,
        linux: Option<L>,
        tracer: T,
        names: &'a mut Names,
    ) -> StoreAccess<'a, L, T> {
        StoreAccess { store: self, engines: Engines { linux, tracer }, names }
    }

    fn map(&self, id: TableId) -> &Map {
        &self.maps[id.index()]
    }

    fn map_mut(&mut self, id: TableId) -> &mut Map {
        &mut self.maps[id.index()]
    }

    fn fail(&mut self, reasons: Vec<String>, verb: &str, id: TableId) {
        let name = &self.maps[id.index()].def.name;
        self.failures.extend(reasons.into_iter().map(|it| format!("cannot {verb} {name}: {it}")));
    }
}
