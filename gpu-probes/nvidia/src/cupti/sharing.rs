//! Who has the records, and who may change that.

use super::functions::{ATTRIBUTE_PER_THREAD_BUFFER, ATTRIBUTE_ZEROED_BUFFERS};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a thread waits for another one that hands the records over or takes them back.
const PATIENCE: Duration = Duration::from_secs(2);

/// The attributes that we set, with our values.
pub(super) const ATTRIBUTES: [(u32, u8); 2] = [(ATTRIBUTE_ZEROED_BUFFERS, 1), (ATTRIBUTE_PER_THREAD_BUFFER, 0)];
/// An attribute that could not be read.
pub(super) const UNREAD: u8 = u8::MAX;

/// Who has the records.
#[derive(Debug)]
pub(super) struct Sharing {
    /// No lock: who finds it taken waits a while, then leaves the matter as it is.
    pub(super) is_changing: AtomicBool,
    /// Whether the run wants records now.
    pub(super) is_wanted: AtomicBool,
    /// [`RecordedKinds`] as bits: what it wants, and what is enabled.
    pub(super) wanted: AtomicU32,
    pub(super) enabled: AtomicU32,
    pub(super) is_yielding: AtomicBool,
    /// CLOCK_MONOTONIC nanoseconds.
    pub(super) yielded_at: AtomicU64,
    /// When it was first seen that the other user has disabled its kinds and not flushed; 0 if that is not so.
    pub(super) done_since: AtomicU64,
    /// Calls of the other user during which nothing is taken back.
    pub(super) busy: AtomicU32,
    /// Values that our attributes had before; [`UNREAD`] while they are not ours.
    pub(super) attributes: [AtomicU8; ATTRIBUTES.len()],
}

impl Default for Sharing {
    fn default() -> Self {
        Sharing {
            is_changing: AtomicBool::new(false),
            is_wanted: AtomicBool::new(false),
            wanted: AtomicU32::new(0),
            enabled: AtomicU32::new(0),
            is_yielding: AtomicBool::new(false),
            yielded_at: AtomicU64::new(0),
            done_since: AtomicU64::new(0),
            busy: AtomicU32::new(0),
            attributes: [const { AtomicU8::new(UNREAD) }; ATTRIBUTES.len()],
        }
    }
}

/// The right to switch records.
pub(super) struct SharingChange<'a>(&'a AtomicBool);

impl Drop for SharingChange<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Sharing {
    pub(super) fn change(&self) -> Option<SharingChange<'_>> {
        let until = Instant::now() + PATIENCE;
        while self.is_changing.swap(true, Ordering::AcqRel) {
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Some(SharingChange(&self.is_changing))
    }
}
