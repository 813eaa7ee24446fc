//! The store's access to maps in Linux.

use super::RunState;
use xputrace_linux::{Error, Linux, MapHandle};
use xputrace_model::plan::BpfMapId;
use xputrace_model::table::TableId;
use xputrace_pipeline::EngineMaps;
use xputrace_store::{Backing, OnValue, StoreAccess, UpdateRefusal};

/// Maps that are loaded into Linux.
pub struct LinuxMaps<'a>(&'a mut Linux);

impl RunState {
    /// Returns the script's maps with all their parts, for one step.
    pub fn maps(&mut self) -> StoreAccess<'_, LinuxMaps<'_>, EngineMaps<'_>> {
        let (engine, names) = self.pipeline.state_mut().maps();
        self.store.with(self.linux.as_mut().map(LinuxMaps), engine, names)
    }

    /// Returns the map of this name, with its `@`.
    pub fn id(&self, name: &str) -> Option<TableId> {
        self.store.id(name)
    }
}

impl LinuxMaps<'_> {
    fn map(&self, map: BpfMapId) -> Result<&MapHandle, Error> {
        self.0.map(map).ok_or(Error::NoSuchMap(map))
    }
}

impl Backing for LinuxMaps<'_> {
    fn for_each(&self, map: BpfMapId, f: &mut OnValue<'_>) -> Result<(), String> {
        let on_element = &mut |key: &[u8], values: &[&[u8]]| values.iter().for_each(|it| f(key, it));
        sentence(self.map(map).and_then(|it| it.for_each(on_element)))
    }

    fn drain(&mut self, map: BpfMapId, f: &mut OnValue<'_>) -> Result<(), String> {
        sentence(self.0.swap(map, &mut |key, values| values.iter().for_each(|it| f(key, it))))
    }

    fn lookup(&self, map: BpfMapId, key: &[u8]) -> Option<Vec<u8>> {
        self.map(map).ok()?.lookup(key).ok()??.into_iter().next()
    }

    fn update(&mut self, map: BpfMapId, key: &[u8], value: &[u8]) -> Result<(), UpdateRefusal> {
        self.map(map).and_then(|it| it.update(key, value, 0)).map_err(refusal)
    }

    fn add(&mut self, map: BpfMapId, key: &[u8], delta: i64) -> Result<(), UpdateRefusal> {
        self.map(map).and_then(|it| it.add(key, delta)).map_err(refusal)
    }

    fn delete(&mut self, map: BpfMapId, key: &[u8]) -> Result<(), String> {
        sentence(self.map(map).and_then(|it| it.delete(key)).map(|_was_there| ()))
    }

    fn clear(&mut self, map: BpfMapId) -> Result<(), String> {
        sentence(self.map(map).and_then(MapHandle::clear))
    }
}

fn sentence(done: Result<(), Error>) -> Result<(), String> {
    done.map_err(|it| it.to_string())
}

fn refusal(error: Error) -> UpdateRefusal {
    match &error {
        Error::Map { answer, .. } if answer.raw_os_error() == Some(libc::E2BIG) => UpdateRefusal::Full,
        _ => UpdateRefusal::Other(error.to_string()),
    }
}
