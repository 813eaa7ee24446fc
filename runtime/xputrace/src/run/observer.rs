//! Whoever wants to hear what a run takes in, before its handlers do: a recording.

use super::State;
use anyhow::Result;
use xputrace_tracer::{CollectorTotals, ProcessIndex, ProcessInfo};

/// Hears a run. An error is reported once and ends nothing: the run goes on.
pub trait Observer {
    /// A process's collector was armed. `software` says that its GPU is the software GPU.
    fn process(&mut self, process: ProcessIndex, info: &ProcessInfo, software: bool) -> Result<()>;
    /// What a process's rings held.
    fn rings(&mut self, process: ProcessIndex, rings: &[Vec<u8>]) -> Result<()>;
    /// Nothing more comes from a process.
    fn end_process(&mut self, process: ProcessIndex, totals: &CollectorTotals) -> Result<()>;
    /// A record from a Linux probe that is neither a print nor an exit: a recorded hit.
    fn hit(&mut self, record: &[u8], state: &State) -> Result<()>;
    /// The end of the run, while names of stacks can still be looked up.
    fn end(self: Box<Self>, state: &mut State) -> Result<()>;
}
