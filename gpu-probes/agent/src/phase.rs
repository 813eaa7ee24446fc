//! The phases of a run.

use std::sync::atomic::{AtomicU32, Ordering};

/// The phases of a run, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Phase {
    Arming,
    Armed,
    /// Recording is over; the last flush is in progress.
    Ending,
    Left,
}

/// A phase that several threads advance.
#[derive(Debug)]
pub(crate) struct SharedPhase(AtomicU32);

impl SharedPhase {
    pub(crate) fn new(phase: Phase) -> Self {
        SharedPhase(AtomicU32::new(phase as u32))
    }

    #[inline]
    pub(crate) fn is(&self, phase: Phase) -> bool {
        self.0.load(Ordering::Acquire) == phase as u32
    }

    pub(crate) fn set(&self, phase: Phase) {
        self.0.store(phase as u32, Ordering::Release);
    }

    /// Whether the caller made this step.
    pub(crate) fn step(&self, from: Phase, to: Phase) -> bool {
        self.0.compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
