//! Observes what a run receives, before its handlers do: a recording.

use super::RunState;
use anyhow::Result;
use std::collections::BTreeSet;
use xputrace_model::stack::StackKey;
use xputrace_pipeline::{ProcessIndex, ProcessInfo};
use xputrace_wire::totals::CollectorTotals;

/// Observes a run. An error is reported once; the run continues.
pub trait Observer {
    /// A process's collector was armed.
    fn process(&mut self, process: ProcessIndex, info: &ProcessInfo) -> Result<()>;
    /// The contents of a process's rings.
    fn rings(&mut self, process: ProcessIndex, rings: &[Vec<u8>]) -> Result<()>;
    /// A process has ended.
    fn end_process(&mut self, process: ProcessIndex, totals: &CollectorTotals) -> Result<()>;
    /// A record from a Linux probe that is neither a print nor an exit: a recorded hit.
    fn hit(&mut self, record: &[u8], state: &RunState) -> Result<()>;
    /// Returns the stacks that it will name when the run has ended.
    fn stacks(&self) -> &BTreeSet<StackKey>;
    /// The run has ended; stacks can still be named.
    fn end(self: Box<Self>, state: &mut RunState) -> Result<()>;
}
