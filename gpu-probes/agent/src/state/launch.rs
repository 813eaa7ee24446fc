//! What a thread remembers of its launches between its callbacks.

use super::run_address::RunAddress;
use super::selection::LastContext;
use crate::library::{Layer, Stream};
use std::ffi::c_char;
use std::hint::cold_path;
use xputrace_unwind::Bounds;
use xputrace_wire::record::{Launch, UNKNOWN};

/// One in this many launches is timed for `Totals::callback_nanos`.
pub(crate) const TIMED_EVERY: u32 = 64;
pub(crate) const STREAM_SLOTS: usize = 16;

/// What a thread remembers between its callbacks.
pub(crate) struct LaunchState {
    pub(crate) run: RunAddress,
    /// The outermost launch call that has not returned.
    pub(crate) open: Option<Open>,
    /// The demand under which the launch is recorded.
    pub(crate) demand: u64,
    /// `Switching::layers_added` at the last launch.
    pub(crate) layers_added: u32,
    pub(crate) launch: Launch,
    pub(crate) symbol: *const c_char,
    pub(crate) name: *const c_char,
    /// Whether the driver call was seen: its parameters are the launch's.
    pub(crate) submitted: bool,
    /// Whether the marker was skipped because the thread has no ring.
    pub(crate) has_no_slot: bool,
    /// Nanoseconds spent in the launch's callbacks so far, if it is timed.
    pub(crate) timed: Option<u64>,
    pub(crate) countdown: u32,
    pub(crate) bounds: Option<Bounds>,
    pub(crate) context: LastContext,
    pub(crate) streams: [StreamSlot; STREAM_SLOTS],
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) call: usize,
    pub(crate) layer: Layer,
    pub(crate) correlation: u32,
    /// Whether recording was on at ENTER.
    pub(crate) recorded: bool,
    /// How often the backend had been paused by then: it does not report a return while it is.
    pub(crate) pauses: u32,
}

#[derive(Clone, Copy)]
pub(crate) struct StreamSlot {
    pub(crate) epoch: u64,
    pub(crate) context: u32,
    pub(crate) stream: Stream,
    pub(crate) id: u32,
    /// As in [`Launch`].
    pub(crate) priority: u32,
}

impl LaunchState {
    pub(crate) const fn new() -> Self {
        const NO_STREAM: StreamSlot =
            StreamSlot { epoch: 0, context: 0, stream: Stream { handle: 0, per_thread: false }, id: 0, priority: 0 };
        LaunchState {
            run: RunAddress::NONE,
            open: None,
            demand: 0,
            layers_added: 0,
            launch: NO_LAUNCH,
            symbol: std::ptr::null(),
            name: std::ptr::null(),
            submitted: false,
            has_no_slot: false,
            timed: None,
            // A thread's first launches fill tables and are not representative.
            countdown: TIMED_EVERY / 2,
            bounds: None,
            context: LastContext::NONE,
            streams: [NO_STREAM; STREAM_SLOTS],
        }
    }

    /// Forgets what belongs to another run.
    #[inline(always)]
    pub(crate) fn bind<Run>(&mut self, run: &Run) {
        if !self.run.is_of(run) {
            cold_path();
            let bounds = self.bounds;
            *self = LaunchState { run: RunAddress::of(run), bounds, ..LaunchState::new() };
        }
    }
}

/// A launch of which nothing is known.
pub(crate) const NO_LAUNCH: Launch = Launch {
    start: 0,
    end: 0,
    tag: 0,
    correlation: 0,
    tid: 0,
    api: 0,
    stack: 0,
    symbol: 0,
    ranges: 0,
    demanded: 0,
    stream_priority: 0,
    external: 0,
    external_kind: 0,
    result: 0,
    context: UNKNOWN,
    device: UNKNOWN,
    stream: UNKNOWN,
    grid: [0; 3],
    block: [0; 3],
    dynamic_shared: 0,
    launch_kind: 0,
    flags: 0,
};
