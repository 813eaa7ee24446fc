//! The gap that is open, if any, and what to do when another tool uses the GPU's library.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use xputrace_wire::message::conflict;
use xputrace_wire::record::Launch;

/// What to do when another tool uses the GPU's library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// Let it have the records for as long as it uses them.
    Yield,
    /// Refuse its calls.
    Keep,
    /// End the run.
    Fail,
}

impl Conflict {
    /// Reads a number of [`conflict`].
    pub(crate) fn of_word(word: u64) -> Self {
        match word {
            conflict::KEEP => Conflict::Keep,
            conflict::FAIL => Conflict::Fail,
            _ => Conflict::Yield,
        }
    }
}

/// The gap that is open, if any.
#[derive(Debug)]
pub(crate) struct Yielding {
    pub(crate) is_on: AtomicBool,
    pub(crate) launches: AtomicU64,
    pub(crate) has_refused: AtomicBool,
    gap: Mutex<Option<Gap>>,
}

#[derive(Debug)]
pub(crate) struct Gap {
    pub(crate) began: u64,
    pub(crate) holder: String,
}

impl Yielding {
    pub(crate) fn new() -> Self {
        Yielding {
            is_on: AtomicBool::new(false),
            launches: AtomicU64::new(0),
            has_refused: AtomicBool::new(false),
            gap: Mutex::new(None),
        }
    }

    /// Returns the flag of launches that begin now.
    #[inline]
    pub(crate) fn flag(&self) -> u32 {
        if self.is_on.load(Ordering::Acquire) { Launch::YIELDED } else { 0 }
    }

    /// Counts a marked launch that has returned.
    #[cold]
    pub(crate) fn count(&self, launch: &Launch) {
        if launch.result == 0 && launch.flags & (Launch::CAPTURED | Launch::OUTSIDE) == 0 {
            self.launches.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn gap(&self) -> MutexGuard<'_, Option<Gap>> {
        self.gap.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
