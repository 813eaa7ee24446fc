//! The script's maps, for the store.

use crate::device_memory::DeviceMemory;
use std::io;
use xputrace_bytecode::BpfMapId;
use xputrace_bytecode::vm::Engine;
use xputrace_store::{Backing, OnValue, UpdateRefusal};

/// The script's maps in the engine, and what GPUs have of them. Those of Linux are not reachable through it.
pub struct EngineMaps<'a> {
    pub(crate) engine: &'a mut Engine,
    pub(crate) device: &'a mut DeviceMemory,
}

impl Backing for EngineMaps<'_> {
    fn for_each(&self, map: BpfMapId, f: &mut OnValue<'_>) -> Result<(), String> {
        self.engine.for_each(map, f);
        self.device.for_each(map, f);
        Ok(())
    }

    fn drain(&mut self, map: BpfMapId, f: &mut OnValue<'_>) -> Result<(), String> {
        self.device.for_each(map, f);
        self.engine.drain(map, f);
        self.device.clear(map)
    }

    fn lookup(&self, map: BpfMapId, key: &[u8]) -> Option<Vec<u8>> {
        self.engine.lookup(map, key).map(<[u8]>::to_vec).or_else(|| self.device.lookup(map, key))
    }

    fn update(&mut self, map: BpfMapId, key: &[u8], value: &[u8]) -> Result<(), UpdateRefusal> {
        refusal(self.engine.update(map, key, value, 0))
    }

    fn add(&mut self, map: BpfMapId, key: &[u8], delta: i64) -> Result<(), UpdateRefusal> {
        refusal(self.engine.add(map, key, delta))
    }

    fn delete(&mut self, map: BpfMapId, key: &[u8]) -> Result<(), String> {
        match errno(self.engine.delete(map, key)) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            done => done.map_err(|it| it.to_string()),
        }
    }

    fn clear(&mut self, map: BpfMapId) -> Result<(), String> {
        self.engine.clear(map);
        self.device.clear(map)
    }
}

fn refusal(answer: i64) -> Result<(), UpdateRefusal> {
    errno(answer).map_err(|it| match it.raw_os_error() {
        Some(libc::E2BIG) => UpdateRefusal::Full,
        _ => UpdateRefusal::Other(it.to_string()),
    })
}

/// Converts the engine's answer: 0 or a negative errno.
fn errno(answer: i64) -> Result<(), io::Error> {
    if answer == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-answer as i32)) }
}
