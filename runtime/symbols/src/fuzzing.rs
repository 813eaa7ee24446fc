//! For the fuzzer alone: readers that are private, because nobody else reads what they read.

use crate::jit::{PerfMap, Room};
use std::fs::File;

/// Reads a perf map, and looks up an address in it.
pub fn perf_map(file: &File, address: u64) {
    let mut map = PerfMap::new(Room::default());
    map.refresh(file);
    let _ = map.find(address);
}
