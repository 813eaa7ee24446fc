//! Addresses as the engine's programs see them: a region and an offset, never a host address.
//!
//! The upper 24 bits select the region, the lower 40 the byte in it. Running off the front of a
//! region lands at the unused far end of the previous one.

pub(super) const OFFSET_BITS: u32 = 40;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;

/// Region numbers resemble Linux kernel addresses, so a small integer is never a pointer.
const FIRST: u64 = 0xff_b000;

pub(super) const STACK: u64 = FIRST;
pub(super) const CTX: u64 = FIRST + 1;
pub(super) const RECORDS: u64 = FIRST + 2;
/// Maps themselves; the offset is the map's index.
pub(super) const MAPS: u64 = FIRST + 3;
/// Values of map 0; map n's are n regions further.
pub(super) const VALUES: u64 = FIRST + 16;
/// Maximum number of maps with a region of their own.
pub(super) const MAX_MAPS: usize = 4000;

/// Log2 of the distance between two records of a ring buffer.
pub(super) const RECORD_SHIFT: u32 = 33;
/// Maximum number of records that a run may have reserved.
pub(super) const MAX_RECORDS: usize = 1 << (OFFSET_BITS - RECORD_SHIFT);

pub(super) fn make(region: u64, offset: u64) -> u64 {
    region << OFFSET_BITS | offset
}

#[inline(always)]
pub(super) fn region(pointer: u64) -> u64 {
    pointer >> OFFSET_BITS
}

#[inline(always)]
pub(super) fn offset(pointer: u64) -> u64 {
    pointer & OFFSET_MASK
}
