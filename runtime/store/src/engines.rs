//! [`Engines`]: where the compiled handlers' parts of maps are.

use crate::backing::{Backing, UpdateRefusal};
use crate::map::Homes;
use xputrace_model::plan::BpfMapId;

/// Linux, if it runs handlers, and the tracer's engine.
#[derive(Debug)]
pub(crate) struct Engines<L, T> {
    pub(crate) linux: Option<L>,
    pub(crate) tracer: T,
}

impl<L: Backing, T: Backing> Engines<L, T> {
    /// Iterates over the engines that have a map, each with the map there.
    pub(crate) fn with(&self, homes: Homes) -> impl Iterator<Item = (&dyn Backing, BpfMapId)> {
        let linux = self.linux.iter().zip(homes.linux).map(|(engine, map)| (engine as &dyn Backing, map));
        linux.chain(homes.in_tracer().map(|map| (&self.tracer as &dyn Backing, map)))
    }

    /// Calls `change` with each engine that has a map, and the map there; returns what failed.
    pub(crate) fn change_all(
        &mut self,
        homes: Homes,
        mut change: impl FnMut(&mut dyn Backing, BpfMapId) -> Result<(), String>,
    ) -> Vec<String> {
        let in_linux = self.linux.iter_mut().zip(homes.linux).map(|(engine, map)| change(engine, map).err());
        let mut failed: Vec<_> = in_linux.collect();
        failed.extend(homes.in_tracer().map(|map| change(&mut self.tracer, map).err()));
        failed.into_iter().flatten().collect()
    }

    /// Calls `change` with the only engine that has a plain map.
    pub(crate) fn change_only(
        &mut self,
        homes: Homes,
        change: impl FnOnce(&mut dyn Backing, BpfMapId) -> Result<(), UpdateRefusal>,
    ) -> Result<(), UpdateRefusal> {
        match (homes.linux, &mut self.linux, homes.in_tracer().next()) {
            (Some(map), Some(linux), _) => change(linux, map),
            (None, _, Some(map)) => change(&mut self.tracer, map),
            _ => Err(UpdateRefusal::Other("the map is not loaded".into())),
        }
    }
}
