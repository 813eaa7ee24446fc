//! Flushing: CUPTI is asked for what it holds back, and the tracer told how far that reaches.

use super::Session;
use crate::clock::now;
use crate::cupti::{FLUSH_FORCED, SUCCESS};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use xputrace_wire::message::demand;
use xputrace_wire::record::{Flush, kind};
use xputrace_wire::region::Lost;

/// Why a flush is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushing {
    Regular,
    /// The run is over, the program goes on.
    Leaving,
    /// The program ends.
    AtExit,
}

impl Session {
    /// Asks CUPTI for finished kernels and writes a Flush record behind them.
    pub(crate) fn flush(&'static self, how: Flushing) {
        if !self.is_ours() {
            return;
        }
        let _flushing = Raised::new(&self.flushing);
        let began = now();
        let flushed = !self.wants(demand::KERNELS) || self.flush_activity(how);
        self.publish_totals();
        if self.mappings.changed() {
            self.modules.refresh();
            self.send_mappings();
        }
        let last = how != Flushing::Regular;
        if flushed || last {
            self.write_waiting(kind::FLUSH, &Flush { began, last: u64::from(last) }, &[]);
            self.region.control().totals.flushes.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush_activity(&self, how: Flushing) -> bool {
        let Some(flush) = self.cupti.flush_all else { return false };
        let flag = if how == Flushing::AtExit { FLUSH_FORCED } else { 0 };
        // SAFETY: from an ordinary thread of ours or from atexit, no lock held.
        let answer = unsafe { flush(flag) };
        let delivered = self.wait_for_completions(Duration::from_millis(300));
        self.count_dropped();
        if answer != SUCCESS {
            self.count_unexpected();
        }
        answer == SUCCESS && delivered
    }

    /// Buffers that CUPTI's own thread was completing meanwhile belong to the flush.
    fn wait_for_completions(&self, at_most: Duration) -> bool {
        let until = Instant::now() + at_most;
        while self.completing.load(Ordering::Acquire) != 0 {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        true
    }

    fn count_dropped(&self) {
        let Some(ask) = self.cupti.dropped_records else { return };
        let mut dropped = 0usize;
        // SAFETY: a live usize; context and stream are ignored by CUPTI.
        if unsafe { ask(std::ptr::null_mut(), 0, &mut dropped) } == SUCCESS && dropped > 0 {
            self.region.count_lost(Lost::CuptiDropped, dropped as u64);
        }
    }
}

/// A flag that is up until this is dropped.
struct Raised<'a>(&'a AtomicBool);

impl<'a> Raised<'a> {
    fn new(flag: &'a AtomicBool) -> Self {
        flag.store(true, Ordering::Release);
        Raised(flag)
    }
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
