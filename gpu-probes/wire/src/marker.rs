//! What the launch marker passes to a handler: an array of 64-bit words, indexed by [`word`], of
//! which only those filled by [`words`] are nonzero; and a slot for the tag.
//!
//! The marker is the exported function [`SYMBOL`]`(words, slot)`. Its first instruction is a
//! five-byte nop. The launching thread calls it before the driver launches.

use crate::record::Launch;
pub use xputrace_events::WORDS;
pub use xputrace_events::word;
use xputrace_events::{GpuContext, Texts};

/// Name of the marker in the collector's dynamic symbol table.
pub const SYMBOL: &str = "xputrace_launch_marker";

/// Size of a slot in the tag array: a word that is 1 once the tag is set, then the tag. A thread's
/// slot has the same index as its ring.
pub const SLOT_BYTES: usize = 16;

/// Returns the words of a call in progress. `symbol` is the address, in the target, of the mangled
/// name as a C string; 0 if the call does not submit a single kernel.
#[inline]
pub fn words(launch: &Launch, pid: u32, symbol: u64) -> GpuContext {
    let mut words = [0; WORDS];
    launch.put_words(&mut words, &NoTexts);
    // The call has not returned yet.
    words[word::LAUNCH_END] = 0;
    words[word::LAUNCH_RESULT] = 0;
    words[word::TIME] = launch.start;
    words[word::PID] = pid.into();
    words[word::TID] = launch.tid.into();
    words[word::LAUNCH_PID] = pid.into();
    words[word::LAUNCH_TID] = launch.tid.into();
    words[word::LAUNCH_KIND] = launch.launch_kind.into();
    words[word::LAUNCH_SYMBOL] = symbol;
    words
}

/// The target has no string table; launches have no columns that need one.
struct NoTexts;

impl Texts for NoTexts {
    fn choice(&self, _: xputrace_events::Choice, _: u32) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_has_begun_fills_the_words_that_are_known_by_then() {
        let launch = Launch {
            start: 7,
            end: 9,
            tid: 5,
            grid: [1, 2, 3],
            stream: 4,
            result: -1,
            launch_kind: Launch::GRAPH,
            ..Launch::default()
        };
        let words = words(&launch, 3, 0x1000);
        let read =
            [word::TIME, word::PID, word::LAUNCH_TID, word::LAUNCH_START, word::LAUNCH_STREAM].map(|it| words[it]);
        assert_eq!(read, [7, 3, 5, 7, 4]);
        assert_eq!(words[word::LAUNCH_GRID..][..3], [1, 2, 3]);
        assert_eq!((words[word::LAUNCH_KIND], words[word::LAUNCH_SYMBOL]), (2, 0x1000));
        assert_eq!((words[word::LAUNCH_END], words[word::LAUNCH_RESULT], words[word::JOINED]), (0, 0, 0));
    }
}
