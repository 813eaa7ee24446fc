//! What the processes of a command do, for a run that has no probes in Linux.

use crate::sideband::{ProcessEvent, Sideband};
use std::io;

/// Hears of forks, execs, exits and mappings of a process and of those that it starts. Needs no rights where
/// `perf_event_paranoid` is at most `sideband::MOST_PARANOID_FOR_PROCESSES`.
#[derive(Debug)]
pub struct ProcessWatch {
    sideband: Sideband,
}

impl ProcessWatch {
    /// Begins with what the process does next.
    ///
    /// # Errors
    /// When the system lets us open no perf events.
    pub fn of(pid: u32) -> io::Result<Self> {
        Ok(ProcessWatch { sideband: Sideband::open(Some(&[pid]))? })
    }

    /// Readable when there are events.
    pub fn fds(&self) -> impl Iterator<Item = i32> + '_ {
        self.sideband.fds()
    }

    /// Everything since this was last asked, in order of time.
    pub fn events(&mut self) -> Vec<ProcessEvent> {
        self.sideband.drain()
    }

    /// How many records of what they did Linux dropped, because too many came at once.
    pub fn lost(&self) -> u64 {
        self.sideband.lost
    }

    /// The watched processes that run, as of the last [`ProcessWatch::events`].
    pub fn running(&self) -> Vec<u32> {
        self.sideband.running()
    }
}
