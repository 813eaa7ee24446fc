//! Where patched kernels leave the times at which they ran: memory of each context, which the collector allocates, all 0 at first.
//!
//! ```text
//! HEAD │ records, a ring │ groups of launches │ groups of nodes of graphs
//! ```
//! A launch uses the *group* that its number (`%gridid`) leads to, so no two that run at a time may have the same one: the
//! collector sees to that. Threads that exit count themselves in one of the group's *lines*, by their block's number, so that
//! a line knows how many it waits for. Whoever fills a line counts it, and whoever fills the group takes a record, writes the times
//! into it and makes the group what it was at first. Words are `u64`, and of counts the lower half.

/// Offset of the number of records that were taken so far.
pub const HEAD: usize = 0;
/// Offset of the first record.
pub const RECORDS: usize = 64;
/// Records in the ring, a power of two.
pub const MOST_RECORDS: usize = 1 << 15;
/// Offset of the groups of launches.
pub const LAUNCHES: usize = RECORDS + MOST_RECORDS * record::BYTES;
/// Groups of each kind, a power of two.
pub const MOST_GROUPS: usize = 1 << 14;
/// Offset of the groups of nodes.
pub const NODES: usize = LAUNCHES + MOST_GROUPS * group::BYTES;
/// Size of all.
pub const BYTES: usize = NODES + MOST_GROUPS * group::BYTES;

/// What a record consists of, by offsets.
pub mod record {
    /// 1 more than its number, once the rest is written: records are numbered from 0 on, and the n-th of them is at n modulo
    /// [`MOST_RECORDS`](super::MOST_RECORDS).
    pub const MARK: usize = 0;
    /// `%gridid` of the launch.
    pub const GRID_ID: usize = 8;
    /// `%globaltimer` where the first block began, in nanoseconds.
    pub const START: usize = 16;
    /// Likewise where the last thread exited.
    pub const END: usize = 24;
    /// 1 for a node of a graph, 0 for a launch by itself.
    pub const IS_NODE: usize = 32;
    pub const BYTES: usize = 64;
}

/// What a group consists of, by offsets.
pub mod group {
    /// The complement of the earliest time at which a block began; 0 if none has begun.
    pub const START: usize = 0;
    /// The latest time at which a line was filled.
    pub const END: usize = 8;
    /// Lines that are filled.
    pub const FILLED: usize = 16;
    /// The first line: the number of threads that have exited, of the blocks whose number leaves this line's modulo [`LINES`].
    pub const FIRST_LINE: usize = 64;
    /// Lines, a power of two. Many warps that count at one word wait for each other.
    pub const LINES: usize = 16;
    pub const LINE_BYTES: usize = 64;
    pub const BYTES: usize = FIRST_LINE + LINES * LINE_BYTES;
}

/// The times of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    pub grid_id: u64,
    pub is_node: bool,
    /// By the GPU's clock, in nanoseconds.
    pub start: u64,
    pub end: u64,
}

impl Times {
    /// Reads the record of this number; `None` if it is another one, or not complete.
    pub fn of_record(bytes: &[u8; record::BYTES], number: u64) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|it| bytes[at + it]));
        let is_whole = word(record::MARK) == number.wrapping_add(1);
        is_whole.then(|| Times {
            grid_id: word(record::GRID_ID),
            is_node: word(record::IS_NODE) != 0,
            start: word(record::START),
            end: word(record::END),
        })
    }

    /// Inverts [`Times::of_record`].
    pub fn record(self, number: u64) -> [u8; record::BYTES] {
        let mut bytes = [0; record::BYTES];
        let words = [
            (record::MARK, number.wrapping_add(1)),
            (record::GRID_ID, self.grid_id),
            (record::START, self.start),
            (record::END, self.end),
            (record::IS_NODE, self.is_node.into()),
        ];
        words.into_iter().for_each(|(at, word)| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes()));
        bytes
    }
}

/// Returns the number of a launch's group.
pub const fn group_of(grid_id: u64) -> usize {
    grid_id as usize % MOST_GROUPS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_when_it_is_whole() {
        let times = Times { grid_id: 7, is_node: true, start: 100, end: 1 << 40 };
        let bytes = times.record(32_768);
        assert_eq!(Times::of_record(&bytes, 32_768), Some(times));
        assert_eq!(Times::of_record(&bytes, 0), None, "the one that was there before");
        assert_eq!(Times::of_record(&[0; record::BYTES], 0), None);
    }
}
