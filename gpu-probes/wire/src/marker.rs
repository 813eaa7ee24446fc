//! What the collector hands to a handler at its launch marker: an array of 64-bit words at the
//! numbers of `xputrace_model::context`, repeated here because the collector knows `wire` alone
//! (a test holds the two equal), and a slot for the tag.
//!
//! The marker is the exported function [`SYMBOL`]`(words, slot)`; its first instruction is a nop
//! of five bytes. It is called on the launching thread before the driver launches.

/// Name of the marker function in the collector's dynamic symbol table.
pub const SYMBOL: &str = "xputrace_launch_marker";

/// Number of words.
pub const WORDS: usize = 64;

/// Word numbers that are filled at the marker; the others are 0.
pub mod word {
    /// CLOCK_MONOTONIC nanoseconds at the outermost ENTER, as [`LAUNCH_START`].
    pub const TIME: usize = 0;
    pub const PID: usize = 1;
    pub const TID: usize = 2;
    pub const LAUNCH_START: usize = 32;
    /// `record::Launch::KERNEL` or `record::Launch::GRAPH`.
    pub const LAUNCH_KIND: usize = 38;
    /// Address, in the target, of the mangled name as a C string; 0 for graphs.
    pub const LAUNCH_SYMBOL: usize = 40;
    pub const LAUNCH_GRID: usize = 41;
    pub const LAUNCH_BLOCK: usize = 44;
    pub const LAUNCH_DYNAMIC_SHARED: usize = 47;
    pub const LAUNCH_DEVICE: usize = 48;
    pub const LAUNCH_CONTEXT: usize = 49;
    /// CUPTI's stream id, or `record::UNKNOWN` where it was not asked for.
    pub const LAUNCH_STREAM: usize = 50;
    pub const LAUNCH_PID: usize = 53;
    pub const LAUNCH_TID: usize = 54;
}

/// Bytes of a slot in the tag array: a word that is 1 when the tag was set, then the tag. The
/// slot's index is the index of the launching thread's ring.
pub const SLOT_BYTES: usize = 16;

#[cfg(test)]
mod tests {
    use super::word as ours;
    use xputrace_model::context::{WORDS, word as model};

    #[test]
    fn words_are_the_models() {
        assert_eq!(super::WORDS, WORDS);
        let pairs = [
            (ours::TIME, model::TIME),
            (ours::PID, model::PID),
            (ours::TID, model::TID),
            (ours::LAUNCH_START, model::LAUNCH_START),
            (ours::LAUNCH_KIND, model::LAUNCH_KIND),
            (ours::LAUNCH_SYMBOL, model::LAUNCH_SYMBOL),
            (ours::LAUNCH_GRID, model::LAUNCH_GRID),
            (ours::LAUNCH_BLOCK, model::LAUNCH_BLOCK),
            (ours::LAUNCH_DYNAMIC_SHARED, model::LAUNCH_DYNAMIC_SHARED),
            (ours::LAUNCH_DEVICE, model::LAUNCH_DEVICE),
            (ours::LAUNCH_CONTEXT, model::LAUNCH_CONTEXT),
            (ours::LAUNCH_STREAM, model::LAUNCH_STREAM),
            (ours::LAUNCH_PID, model::LAUNCH_PID),
            (ours::LAUNCH_TID, model::LAUNCH_TID),
        ];
        for (ours, model) in pairs {
            assert_eq!(ours, model);
        }
    }
}
