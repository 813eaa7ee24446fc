//! The memory shared by one target process and the tracer: a sealed memfd.
//!
//! ```text
//! 0        Control (one page)
//! 4096     ring 0: RingHeader (one page), then `ring_bytes` of data
//! …        ring 1, …
//! ```
//! A thread of the target claims a ring on its first write. Both sides take sizes from the message
//! that came with the descriptor, never from this memory.

use crate::ring::RingHeader;
use std::sync::atomic::{AtomicU32, AtomicU64};
use xputrace_events::{Activity, Call, HostEvent};

/// Alignment of everything in the region.
pub const PAGE: usize = 4096;

/// The first page.
#[repr(C, align(64))]
#[derive(Default, Debug)]
pub struct Control {
    /// 1 while the tracer wants records.
    pub armed: AtomicU32,
    /// Rings claimed so far; can exceed the number of rings.
    pub rings_claimed: AtomicU32,
    /// Running totals of what CUPTI delivered.
    pub totals: Totals,
    pub window: WindowTotals,
    /// What the collector lost, indexed by [`Lost`].
    pub lost: [AtomicU64; Lost::COUNT],
}

/// How often and how long the process was in the part of the run that is recorded.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowTotals<N = AtomicU64> {
    pub openings: N,
    /// How long it was open in total, until it was last closed.
    pub nanos: N,
    /// CLOCK_MONOTONIC nanoseconds of its last opening; 0 while it is closed.
    pub open_since: N,
    /// NVTX ranges of any name that were opened.
    pub ranges: N,
}

/// Running totals of the collector.
#[repr(C)]
#[derive(Default, Debug)]
pub struct Totals {
    /// Indexed by [`Activity::index`].
    pub activities: [ActivityTotals; Activity::COUNT],
    /// Indexed by [`Call::index`].
    pub calls: [CallTotals; Call::COUNT],
    /// Host events, indexed by [`HostEvent::index`].
    pub host_events: [AtomicU64; HostEvent::COUNT],
    /// Nanoseconds spent in the collector's callbacks, where measured.
    pub callback_nanos: AtomicU64,
    /// Stacks taken.
    pub stacks: AtomicU64,
    pub flushes: AtomicU64,
}

impl Totals {
    /// Returns the totals of this kind.
    pub fn activity(&self, kind: Activity) -> &ActivityTotals {
        &self.activities[kind.index()]
    }

    /// Returns the totals of this kind.
    pub fn call(&self, kind: Call) -> &CallTotals {
        &self.calls[kind.index()]
    }
}

/// Totals of one kind of activity record, as CUPTI delivered them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActivityTotals<N = AtomicU64> {
    pub records: N,
    /// Sum of all durations.
    pub nanos: N,
}

/// Totals of one kind of outermost call that returned.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTotals<N = AtomicU64> {
    /// Includes captured calls.
    pub made: N,
    pub failed: N,
    pub captured: N,
}

/// Lists the kinds once: their positions in [`Control::lost`] follow from it.
macro_rules! lost {
    ($( $(#[$doc:meta])* $Kind:ident, )*) => {
        /// Losses counted inside the target. Recordings have the counts by position: new kinds come last.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Lost { $( $(#[$doc])* $Kind, )* }

        impl Lost {
            /// Every kind, by position.
            pub const ALL: &'static [Lost] = &[$( Lost::$Kind ),*];
            pub const COUNT: usize = Lost::ALL.len();
        }
    };
}

lost! {
    LaunchRingFull,
    /// A thread found no ring.
    NoRing,
    ActivityRingFull,
    LibraryDropped,
    NoTimestamps,
    StackTableFull,
    NameTableFull,
    /// Callbacks or records that did not have the expected form.
    Unexpected,
    /// Panics caught at the C boundary.
    Panics,
    /// Activity records of unknown kinds, at least: their buffer was discarded unread.
    Unread,
    /// Host events that did not fit into a ring.
    HostEventRingFull,
    /// NVTX ranges that ended before the run recorded, or whose beginning is unknown.
    RangeUnrecorded,
    /// CUPTI refused to record unified memory.
    UnifiedUnrecorded,
}

/// Sizes that define a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionShape {
    pub rings: u32,
    /// Bytes of data in each ring: a power of two, at least one page.
    pub ring_bytes: u32,
}

impl RegionShape {
    /// Returns the size of the whole region.
    pub const fn size(self) -> usize {
        PAGE + self.rings as usize * self.ring_stride()
    }

    /// Returns the offset of ring `index`'s header.
    pub const fn ring_offset(self, index: u32) -> usize {
        PAGE + index as usize * self.ring_stride()
    }

    const fn ring_stride(self) -> usize {
        PAGE + self.ring_bytes as usize
    }

    /// Whether both sides can work with these sizes.
    pub const fn is_sound(self) -> bool {
        self.rings > 0
            && self.rings <= 4096
            && self.ring_bytes >= PAGE as u32
            && self.ring_bytes.is_power_of_two()
            && self.ring_bytes <= 1 << 28
    }
}

const _: () = assert!(size_of::<Control>() <= PAGE);
const _: () = assert!(size_of::<RingHeader>() <= PAGE);
