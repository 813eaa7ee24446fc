//! A script's maps: the engines' parts and the interpreter's own, read and changed as one.
//!
//! ```text
//! Linux's part ──┐
//! tracer's part ─┼─ read: drained or copied, merged ──▶ Table
//! own part ──────┘   (own: what interpreted handlers wrote, and what reads drained)
//! ```
//! Engines hold bytes ([`Backing`]); [`codec`] knows what they mean. A map of two generations is drained
//! into the own part by each read, so that an interpreted handler sees one consistent snapshot, and
//! `clear` removes exactly that.
#![forbid(unsafe_code)]

mod access;
mod backing;
pub mod codec;
mod map;

pub use access::Access;
pub use backing::{Backing, OnValue, Refusal};

use map::Map;
use std::collections::HashMap;
use std::sync::Arc;
use xputrace_model::names::Names;
use xputrace_model::plan::Plan;
use xputrace_model::table::{TableDef, TableId};

/// The maps of a run, as far as no engine keeps them. [`Store::with`] joins it with the engines.
#[derive(Debug, Default)]
pub struct Store {
    maps: Vec<Map>,
    by_name: HashMap<String, TableId>,
    refused: u64,
    failures: Vec<String>,
}

impl Store {
    /// The plan's maps, empty. Without Linux, the tracer's engine has its maps too.
    pub fn new(plan: &Plan, has_linux: bool) -> Store {
        Store {
            maps: plan.tables.iter().map(|it| Map::new(it.clone(), &plan.image, has_linux)).collect(),
            by_name: TableId::each(&plan.tables).map(|(id, it)| (it.name.clone(), id)).collect(),
            ..Store::default()
        }
    }

    /// The map of this name, with its `@`.
    pub fn id(&self, name: &str) -> Option<TableId> {
        self.by_name.get(name).copied()
    }

    /// The shape of a map.
    pub fn def(&self, id: TableId) -> &Arc<TableDef> {
        &self.map(id).def
    }

    /// Updates of interpreted handlers that were refused because a map was full.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// What engines could not read or change since this was last asked, a sentence each.
    pub fn take_failures(&mut self) -> Vec<String> {
        std::mem::take(&mut self.failures)
    }

    /// The maps with all their parts, for one step.
    pub fn with<'a, L: Backing, T: Backing>(
        &'a mut self,
        linux: Option<L>,
        tracer: T,
        names: &'a mut Names,
    ) -> Access<'a, L, T> {
        Access { store: self, linux, tracer, names }
    }

    fn map(&self, id: TableId) -> &Map {
        &self.maps[id.index()]
    }

    fn map_mut(&mut self, id: TableId) -> &mut Map {
        &mut self.maps[id.index()]
    }

    fn fail(&mut self, done: Result<(), String>, verb: &str, id: TableId) {
        if let Err(reason) = done {
            let text = format!("cannot {verb} {}: {reason}", self.def(id).name);
            self.failures.push(text);
        }
    }
}
