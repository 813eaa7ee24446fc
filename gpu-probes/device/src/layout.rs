//! The memory that device code and the host share.
//!
//! ```text
//! xpt_device ──▶ table: header | descriptor of map 0 | descriptor of map 1 | …
//!                          │            │
//!                          │            └──▶ states, keys, values
//!                          └──▶ losses by site; ring: slots, marks, head, tail
//! ```
//!
//! All is one piece of memory that can be anywhere: the table tells where things are as offsets from its own address.
//! Shapes (sizes of keys and values, numbers of slots) are constants in the code, so only offsets and what changes between
//! launches are read from the table. All words are little endian.

/// The module's variable that holds the table's address, once for each switch of programs; 0 for none.
pub const VARIABLE: &str = "xpt_device";

/// The register that has the table's address in a block, once it has been found not to be 0.
pub const TABLE: &str = "%xpt_table";

/// Returns what declares [`VARIABLE`] with so many switches; it goes before the module's first function.
pub fn declaration(switches: usize) -> String {
    format!(".visible .global .align 8 .u64 {VARIABLE}[{switches}];")
}

/// Offsets in the table's header, in bytes. Every field is a 64-bit word.
pub mod header {
    /// While it is 0, no block does anything that finds the table in a register: code that outlives its tracer is inert.
    pub const ENABLED: i64 = 0;
    /// Process id in the upper half, that of the main thread in the lower (helper 14).
    pub const PID_TGID: i64 = 8;
    /// What added to `%globaltimer` gives CLOCK_MONOTONIC, in nanoseconds (helper 5).
    pub const CLOCK_OFFSET_NS: i64 = 16;
    /// Offset of the loss counters, a 64-bit word a site.
    pub const LOSSES: i64 = 24;
    /// Offset of the ring's slots, [`super::ring::SLOT_BYTES`] each.
    pub const RING_SLOTS: i64 = 32;
    /// Offset of the slots' marks, [`super::ring::MARK_BYTES`] each.
    pub const RING_MARKS: i64 = 40;
    /// Offset of the word that counts slots taken. Only the device writes it.
    pub const RING_HEAD: i64 = 48;
    /// Offset of the word that counts slots read. Only the host writes it.
    pub const RING_TAIL: i64 = 56;
    /// Number of slots, a power of two. 0: there is no ring.
    pub const RING_CAPACITY: i64 = 64;
    /// Bytes of the header; the descriptors follow, in order of map.
    pub const BYTES: i64 = 128;
}

/// Offsets in a map's descriptor, in bytes. Every field is a 64-bit word. The counters are written by the device,
/// the words before them by the host.
pub mod descriptor {
    /// Offset from the table of a hash's states, 4 bytes a slot; see [`super::state`].
    pub const STATES: i64 = 0;
    /// Offset from the table of a hash's keys, [`super::DeviceMap::key_stride`] a slot.
    pub const KEYS: i64 = 8;
    /// Offset from the table of the values, [`super::DeviceMap::value_stride`] each.
    pub const VALUES: i64 = 16;
    /// Threads that a per-thread array has room for. The value of thread `t` at key `k` is number `k * threads + t`.
    pub const THREADS: i64 = 24;
    /// Counts a hash's elements.
    pub const LIVE: i64 = 64;
    /// Counts new elements that were refused because the map was full.
    pub const FULL: i64 = 72;
    /// Counts updates given up because another thread was writing that element for too long.
    pub const CONTENDED: i64 = 80;
    /// Counts lookups by threads that a per-thread array has no room for.
    pub const BEYOND: i64 = 88;
    /// Bytes of a descriptor.
    pub const BYTES: i64 = 128;
}

/// States of a hash's slot, in the two lowest bits of its word; the others are the key's [`fingerprint`].
///
/// An element keeps its slot while kernels run, and its key is written once: a deleted element can come back, but its
/// slot is for no other key. So a reader needs no lock. The host removes deleted elements between launches.
pub mod state {
    /// Never used; the whole word is 0.
    pub const EMPTY: u32 = 0;
    /// Claimed by a thread that is writing the key or the value.
    pub const BUSY: u32 = 1;
    pub const FULL: u32 = 2;
    /// The key is there, the element isn't.
    pub const DELETED: u32 = 3;
    /// The bits that hold one of these.
    pub const MASK: u32 = 3;
}

/// The ring of records: slots of equal size, of which a record takes as many as it needs, in a row.
///
/// A thread takes slots by adding to the head. If the tail says that they are free, it writes its record and then the
/// first slot's [`WRITTEN`](ring::WRITTEN) mark; otherwise it drops the record, and counts that in each of the slots'
/// [`DROPPED`](ring::DROPPED) marks. So nobody waits for the reader, and the reader knows of each slot what became of it.
pub mod ring {
    pub const SLOT_BYTES: u32 = 64;
    /// Slots after the last one, so that a record that begins there is in one piece.
    pub const EXTRA_SLOTS: u32 = MAX_RECORD_BYTES / SLOT_BYTES;
    /// Bytes of the largest record, with its header.
    pub const MAX_RECORD_BYTES: u32 = 4096;
    pub const MARK_BYTES: u32 = 16;
    /// In a mark: position of the record written here last, plus 1.
    pub const WRITTEN: i64 = 0;
    /// In a mark: how often this slot was taken and dropped.
    pub const DROPPED: i64 = 8;
    /// In a record: number of its site, 32 bits.
    pub const SITE: i64 = 0;
    /// In a record: bytes of its data, 32 bits, and [`DISCARDED`] for one that was taken back.
    pub const LEN: i64 = 4;
    /// In a record: its position among all slots taken, 64 bits.
    pub const POSITION: i64 = 8;
    /// Bytes before a record's data.
    pub const RECORD_HEADER_BYTES: u32 = 16;
    /// In the data of a record of `trace_printk`: the format, behind three arguments of 64 bits.
    pub const FORMAT_AT: u32 = 24;
    /// Bit of the length of a record that the reader skips.
    pub const DISCARDED: u32 = 1 << 31;
}

/// Probes of a hash before a key counts as absent, or the map as full. At most half of the slots are in use, so
/// runs of this length don't happen by chance.
pub const MAX_PROBES: u32 = 1024;
/// Attempts to get past a slot that another thread is writing.
pub const MAX_RETRIES: u32 = 1 << 14;

/// How a map's elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Storage {
    /// A value per index, from 0.
    Array,
    /// Likewise, but the values are elsewhere: the host says where in [`descriptor::VALUES`], by an offset that may wrap.
    OuterArray,
    /// A value per index and thread of the launch.
    PerThreadArray,
    /// A value per key.
    Hash,
    /// No elements: records go to the ring that all such maps share.
    Ring,
}

/// Who else accesses a map while kernels run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Only code on the same device.
    Device,
    /// The host, or another device.
    System,
}

/// Bytes of a line of the GPU's L2 cache, where atomic operations are done.
pub const LINE_BYTES: u64 = 128;

/// A map on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceMap {
    pub kind: Storage,
    /// 4 for arrays, as in Linux.
    pub key_bytes: u32,
    pub value_bytes: u32,
    /// Elements of a hash, indices of an array.
    pub max_entries: u32,
    /// Copies of each value, at least 1. A thread uses that of its multiprocessor, so that sums don't wait for each other.
    /// Of a per-thread array, and of a map from which programs delete elements, there is one.
    pub parts: u32,
    pub scope: Scope,
}

impl DeviceMap {
    /// Bytes from one value to the next.
    pub fn value_stride(&self) -> u32 {
        self.value_bytes.next_multiple_of(8)
    }

    /// Bytes from one key of a hash to the next.
    pub fn key_stride(&self) -> u32 {
        self.key_bytes.next_multiple_of(8)
    }

    /// Bytes of a part's values, for one thread if there is a value for each. Parts are in lines of their own, so that what
    /// multiprocessors add to is not in one line.
    pub fn part_bytes(&self) -> u64 {
        let bytes = u64::from(self.n_slots()) * u64::from(self.value_stride());
        if self.parts > 1 { bytes.next_multiple_of(LINE_BYTES) } else { bytes }
    }

    /// Bytes of all values, likewise. Those of a part lie together.
    pub fn value_bytes_in_all(&self) -> u64 {
        self.part_bytes().saturating_mul(self.parts.into())
    }

    /// Slots of a hash, a power of two; indices of an array.
    pub fn n_slots(&self) -> u32 {
        match self.kind {
            Storage::Hash => self.max_entries.saturating_mul(2).checked_next_power_of_two().unwrap_or(1 << 31).max(2),
            Storage::Array | Storage::OuterArray | Storage::PerThreadArray => self.max_entries,
            Storage::Ring => 0,
        }
    }
}

/// Multiplier of [`hash`], the golden ratio's (Knuth, The Art of Computer Programming, vol. 3, section 6.4).
pub const HASH_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the hash of a key, given as words; the last is padded with zeros.
pub fn hash(words: &[u64]) -> u64 {
    words.iter().fold(0, |hash, word| {
        let mixed = (hash ^ word).wrapping_mul(HASH_MULTIPLIER);
        mixed ^ mixed >> 32
    })
}

/// Returns a key's bits in the state of its slot: [`state::MASK`] is clear.
pub fn fingerprint(hash: u64) -> u32 {
    (hash >> 32) as u32 & !state::MASK
}

/// Returns a key as words, the last padded with zeros.
pub fn key_words(key: &[u8]) -> Vec<u64> {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    key.chunks(8).map(word).collect()
}
