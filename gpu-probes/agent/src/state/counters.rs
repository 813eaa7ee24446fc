//! What is counted at launches and calls, by ring.

use std::hint::cold_path;
use std::sync::atomic::{AtomicU64, Ordering};
use xputrace_wire::events;
use xputrace_wire::record::Launch;
use xputrace_wire::region::CallTotals;

/// A ring's share of the totals. Only its owner writes it, and each flush sums them, so that
/// launching threads do not contend for a cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    /// By [`events::Call::index`].
    pub(crate) calls: [CallTotals; events::Call::COUNT],
    /// By [`events::HostEvent::index`].
    pub(crate) host_events: [AtomicU64; events::HostEvent::COUNT],
    pub(crate) callback_nanos: AtomicU64,
    pub(crate) stacks: AtomicU64,
    /// Threads without a ring share one.
    pub(crate) shared: bool,
}

impl Counters {
    #[inline]
    pub(crate) fn add(&self, launch: &Launch, callback_nanos: u64) {
        let inside = launch.call().filter(|_| launch.flags & Launch::OUTSIDE == 0);
        if let Some(totals) = inside.map(|it| &self.calls[it.index()]) {
            self.bump(&totals.made, 1);
            if launch.result != 0 {
                cold_path();
                self.bump(&totals.failed, 1);
            }
            if launch.flags & Launch::CAPTURED != 0 {
                cold_path();
                self.bump(&totals.captured, 1);
            }
        }
        if callback_nanos != 0 {
            cold_path();
            self.bump(&self.callback_nanos, callback_nanos);
        }
    }

    pub(crate) fn add_host_events(&self, kinds: events::HostEvents) {
        kinds.iter().for_each(|it| self.bump(&self.host_events[it.index()], 1));
    }

    #[inline]
    pub(crate) fn bump(&self, counter: &AtomicU64, n: u64) {
        if self.shared {
            cold_path();
            counter.fetch_add(n, Ordering::Relaxed);
        } else {
            counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        }
    }
}
