//! What every event source of a run does.

use crate::run::running::Running;
use anyhow::Result;
use std::os::fd::RawFd;
use std::time::Duration;

/// An event source of a run.
pub trait EventSource {
    /// Returns descriptors that are readable when there is something to do.
    fn descriptors(&self, _running: &Running) -> Vec<RawFd> {
        Vec::new()
    }

    /// Returns how soon it must be stepped even if none of its descriptors is readable.
    fn due_in(&self) -> Option<Duration> {
        None
    }

    /// Handles what there is.
    ///
    /// # Errors
    /// The source is unreadable, which ends the run.
    fn step(&mut self, running: &mut Running) -> Result<Progress>;
}

/// The result of a step; a later variant outweighs an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// There is nothing more now.
    Idle,
    /// What the run waits for has ended; the run ends once no source is busy.
    Done,
    /// There was something, and more may follow immediately.
    Busy,
    /// The run ends now.
    Stop,
}
