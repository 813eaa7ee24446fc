//! State shared between launch handlers in Linux and the collectors: a tag array per process,
//! created on the thread that arms the process.

use crate::error::Error;
use crate::load;
use crate::sys;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use xputrace_bytecode::image::MapSpec;

/// A plan's tag arrays, by process id.
///
/// A process without an array does not belong to the run: launch handlers skip it.
#[derive(Debug)]
pub struct TagArrays {
    by_process: OwnedFd,
    spec: MapSpec,
}

impl TagArrays {
    pub(crate) fn new(by_process: OwnedFd, spec: MapSpec) -> Self {
        TagArrays { by_process, spec }
    }

    /// Creates a process's array, which can be mapped and belongs to this process alone. Replaces
    /// an array of an earlier process with the same id.
    ///
    /// # Errors
    /// The system is out of resources.
    pub fn add(&self, pid: u32) -> Result<OwnedFd, Error> {
        let (_, array) = load::create_inner(&self.spec)?;
        sys::map_update(self.by_process.as_fd(), &pid.to_ne_bytes(), &array.as_raw_fd().to_ne_bytes(), 0)
            .map_err(|answer| Error::Map { operation: "register a process in", map: self.spec.name.clone(), answer })?;
        Ok(array)
    }
}
