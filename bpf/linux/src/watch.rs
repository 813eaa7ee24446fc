//! The process events of a run that has no probes in Linux.

use crate::scope;
use crate::sideband::{ProcessEvent, Sideband, Unwatched};
use std::io;

/// Watches forks, execs, exits and mappings of processes. For some processes and their descendants, it needs no
/// privileges if `perf_event_paranoid` is at most `sideband::MOST_PARANOID_FOR_PROCESSES`.
#[derive(Debug)]
pub struct ProcessWatch {
    sideband: Sideband,
}

impl ProcessWatch {
    /// Watches everything that these processes and their descendants do from now on.
    ///
    /// # Errors
    /// The system does not let us open perf events.
    pub fn of(pids: &[u32]) -> io::Result<Self> {
        Ok(ProcessWatch { sideband: Sideband::open(Some(&scope::with_descendants(pids)))? })
    }

    /// Watches all processes. Needs CAP_PERFMON, or a `perf_event_paranoid` of at most
    /// `sideband::MOST_PARANOID_FOR_SYSTEM`.
    ///
    /// # Errors
    /// The system does not let us open perf events.
    pub fn of_all() -> io::Result<Self> {
        Ok(ProcessWatch { sideband: Sideband::open(None)? })
    }

    /// Returns the descriptors that become readable when there are events.
    pub fn fds(&self) -> impl Iterator<Item = i32> + '_ {
        self.sideband.fds()
    }

    /// Returns everything since the last call, in order of time.
    pub fn events(&mut self) -> Vec<ProcessEvent> {
        self.sideband.drain()
    }

    /// Returns the processes of which events are missing, since the last call.
    pub fn unwatched(&mut self) -> Vec<Unwatched> {
        self.sideband.unwatched()
    }

    /// Returns how many event records Linux dropped because too many came at once.
    pub fn lost(&self) -> u64 {
        self.sideband.lost
    }

    /// Returns the watched processes that run, as of the last [`ProcessWatch::events`].
    pub fn running(&self) -> Vec<u32> {
        self.sideband.running()
    }
}
