//! For the fuzzer alone: what a `ptxas` of another user says, and files of a cache that anyone may have written.

use crate::cache::{CubinKey, decode};
use crate::usage;

/// Reads the output of `ptxas -v`.
pub fn said(text: &str) {
    let _ = (usage::parse(text), usage::frames(text));
}

/// Reads a file of the cache.
pub fn cached(bytes: &[u8]) {
    let _ = decode(CubinKey::of(&["fuzz"]), bytes);
}
