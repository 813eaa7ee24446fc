//! The memory that one target process and the tracer share: a sealed memfd.
//!
//! ```text
//! 0        Control (one page)
//! 4096     ring 0: RingHeader (one page), then `ring_bytes` of data
//! …        ring 1, …
//! ```
//! Rings are claimed by the target's threads as they first write. Both sides take sizes from
//! the message that came with the descriptor, never from this memory.

use crate::ring::RingHeader;
use std::sync::atomic::{AtomicU32, AtomicU64};
use xputrace_events::{Activity, Call};

/// Alignment of everything in the region.
pub const PAGE: usize = 4096;

/// The first page.
#[repr(C, align(64))]
#[derive(Default, Debug)]
pub struct Control {
    /// Set by the tracer: 1 while records are wanted.
    pub armed: AtomicU32,
    /// Rings claimed so far; may exceed the number of rings.
    pub rings_claimed: AtomicU32,
    /// The collector's running totals, as CUPTI delivered them.
    pub totals: Totals,
    /// What the collector lost, indexed by [`Lost`].
    pub lost: [AtomicU64; Lost::COUNT],
}

/// Running totals of the collector.
#[repr(C)]
#[derive(Default, Debug)]
pub struct Totals {
    /// By [`Activity::index`].
    pub activities: [ActivityTotals; Activity::COUNT],
    /// By [`Call::index`].
    pub calls: [CallTotals; Call::COUNT],
    /// Nanoseconds that the collector's callbacks took, as far as they are measured.
    pub callback_nanos: AtomicU64,
    pub flushes: AtomicU64,
}

impl Totals {
    /// The records of this kind.
    pub fn activity(&self, kind: Activity) -> &ActivityTotals {
        &self.activities[kind.index()]
    }

    /// The calls of this kind.
    pub fn call(&self, kind: Call) -> &CallTotals {
        &self.calls[kind.index()]
    }
}

/// Records of one kind, as the GPU's library delivered them.
#[repr(C)]
#[derive(Default, Debug)]
pub struct ActivityTotals {
    pub records: AtomicU64,
    /// From start to end, of all together.
    pub nanos: AtomicU64,
}

/// Outermost calls of one kind that returned.
#[repr(C)]
#[derive(Default, Debug)]
pub struct CallTotals {
    /// Captured ones included.
    pub made: AtomicU64,
    pub failed: AtomicU64,
    pub captured: AtomicU64,
}

/// Losses counted inside the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Lost {
    LaunchRingFull,
    NoRing,
    ActivityRingFull,
    CuptiDropped,
    NoTimestamps,
    StackTableFull,
    NameTableFull,
    /// Callbacks or records that were not as expected.
    Unexpected,
    /// Panics caught at the border to C.
    Panics,
}

impl Lost {
    pub const COUNT: usize = 9;
}

/// Sizes of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub rings: u32,
    /// Bytes of data in each ring: a power of two, at least a page.
    pub ring_bytes: u32,
}

impl Shape {
    /// Bytes of the whole region.
    pub const fn size(self) -> usize {
        PAGE + self.rings as usize * self.ring_stride()
    }

    /// Offset of ring `index`'s header.
    pub const fn ring_offset(self, index: u32) -> usize {
        PAGE + index as usize * self.ring_stride()
    }

    const fn ring_stride(self) -> usize {
        PAGE + self.ring_bytes as usize
    }

    /// Whether both sides can work with it.
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
