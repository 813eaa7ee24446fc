//! Twins of kernels, as far as no vendor's library is concerned: what the tracer is asked and answers, and the thread that
//! works for it.
//!
//! ```text
//! program's thread ── image ──▶ courier ── IMAGE ──▶ tracer       (exchange)
//!                  ◀─ twin ─── listener ◀─ TWIN ───
//! program's thread ── job ────▶ worker ───▶ the GPU's driver      (worker)
//! ```
//! The courier has the listener's descriptors, the worker the program's. A thread of the program waits ten seconds at
//! most for either, and holds no lock meanwhile; once one has timed out, all threads together wait no longer than that. After that an image is still
//! sent, so that its twin is there for the next run, and its thread waits until it is copied.

mod exchange;
mod files;
mod memory;
mod region;
mod requests;
mod waits;
mod worker;

pub use exchange::LOOKS_EVERY;
pub use memory::{CodeAt, ImageCode};
pub use region::DeviceRegion;
pub use waits::{LAST_COPY_WITHIN, LONG_TIMEOUTS, TWIN_WITHIN, count_timeout};
pub use worker::Job;

use exchange::Exchange;
use worker::Worker;

/// What a run needs for its twins besides its memory.
#[derive(Debug, Default)]
pub(super) struct Device {
    exchange: Exchange,
    worker: Worker,
}

impl Device {
    /// Ends its threads.
    pub(super) fn close(&self) {
        self.exchange.close();
        self.worker.close();
    }
}
