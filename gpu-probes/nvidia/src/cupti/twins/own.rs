//! What is ours in the process: modules of twins, and programs that run in kernels of their own.

use super::code::{Failure, GONE};
use crate::cupti::functions::Handle;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use xputrace_wire::device::{Programs, ProgramsState};

/// CUPTI's numbers of the modules that are twins'.
#[derive(Debug, Default)]
pub(super) struct OwnModules(Mutex<Vec<u32>>);

impl OwnModules {
    pub(super) fn with<T>(&self, run: impl FnOnce(&mut Vec<u32>) -> T) -> T {
        run(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The programs of a run in this process.
#[derive(Debug, Default)]
pub(super) struct OwnPrograms {
    pub(super) phase: Mutex<Phase>,
    /// How often no context could be prepared.
    pub(super) attempts: AtomicU32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// There was no context so far that they could run in.
    #[default]
    Unasked,
    /// The tracer was told of one.
    Asked,
    /// The tracer has sent them. None was launched so far.
    Sent(Arc<Programs>),
    /// They were launched in the context of this slot.
    Running(Launched),
    /// They have run, or do so elsewhere.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Launched {
    pub(super) slot: usize,
    pub(super) stream: Handle,
    /// What is told once they have ended: a launch may have been refused.
    pub(super) ending: Ending,
}

// SAFETY: the stream's handle is a name, which the driver checks.
unsafe impl Send for Launched {}

/// What has become of programs, and what CUDA answered if they failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    pub(super) state: ProgramsState,
    pub(super) failure: Failure,
}

impl Ending {
    pub(super) const DONE: Ending = Ending { state: ProgramsState::Done, failure: 0 };
    pub(super) const CUT_OFF: Ending = Ending { state: ProgramsState::CutOff, failure: 0 };

    /// Of what has failed so after a launch, unless its context is gone.
    pub(super) fn of(state: ProgramsState, failure: Failure) -> Self {
        if failure == GONE { Ending::CUT_OFF } else { Ending { state, failure } }
    }
}

impl OwnPrograms {
    pub(super) fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
