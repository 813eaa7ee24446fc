//! What a thread remembers of its calls between its callbacks.

use super::run_address::RunAddress;
use super::selection::LastContext;
use crate::library::Context;
use xputrace_unwind::Bounds;
use xputrace_wire::events::HostEvents;

/// A call that has not returned.
#[derive(Clone, Copy)]
pub(crate) struct OpenCall {
    pub(crate) function: u32,
    pub(crate) correlation: u32,
    /// What is recorded of it: nothing if it began outside the part of the run that is.
    pub(crate) events: HostEvents,
    /// The function that made it, 0 if the program did.
    pub(crate) nested: u32,
    pub(crate) start: u64,
    pub(crate) context: Option<Context>,
    /// The demand under which it is recorded.
    pub(crate) demand: u64,
    pub(crate) stack: u32,
    /// Name id of the path of NVTX ranges.
    pub(crate) ranges: u32,
    pub(crate) flags: u32,
}

/// Calls of one layer that have not returned. There may be several: a signal handler may make calls amid another one.
#[derive(Clone, Copy)]
pub(crate) struct OpenCalls([Option<OpenCall>; OpenCalls::MOST]);

impl OpenCalls {
    const MOST: usize = 4;
    pub(crate) const NONE: OpenCalls = OpenCalls([None; OpenCalls::MOST]);

    /// Adds a call. If there is no room, the oldest goes: its return was never reported, since its callback was
    /// switched off meanwhile.
    pub(crate) fn add(&mut self, open: OpenCall) {
        if let Some(slot) = self.0.iter_mut().min_by_key(|slot| slot.map_or(0, |it| it.start)) {
            *slot = Some(open);
        }
    }

    /// Returns the call that others with its correlation id are part of.
    pub(crate) fn outer(&self, correlation: u32) -> Option<&OpenCall> {
        self.0.iter().flatten().filter(|it| it.correlation == correlation).max_by_key(|it| it.start)
    }

    /// Removes the call that returns: the latest, if a signal handler makes the call that it interrupts.
    pub(crate) fn take(&mut self, function: u32, correlation: u32) -> Option<OpenCall> {
        let is_it = |it: &OpenCall| (it.function, it.correlation) == (function, correlation);
        let of_it = self.0.iter_mut().filter(|slot| slot.as_ref().is_some_and(is_it));
        of_it.max_by_key(|slot| slot.map(|it| it.start))?.take()
    }
}

/// What a thread remembers between its callbacks.
pub(crate) struct HostCallState {
    pub(crate) run: RunAddress,
    pub(crate) runtime: OpenCalls,
    pub(crate) driver: OpenCalls,
    pub(crate) bounds: Option<Bounds>,
    pub(crate) context: LastContext,
    /// `Switching::layers_added` at the last call.
    pub(crate) layers_added: u32,
}

impl HostCallState {
    pub(crate) const fn new(run: RunAddress, bounds: Option<Bounds>) -> Self {
        HostCallState {
            run,
            runtime: OpenCalls::NONE,
            driver: OpenCalls::NONE,
            bounds,
            context: LastContext::NONE,
            layers_added: 0,
        }
    }
}
