//! Tells the processor what is read soon.
#![allow(unsafe_code, reason = "the instruction takes an address, which may be any")]

/// Bytes that are fetched ahead of where a reader is: some twenty records of the usual ones.
const AHEAD: usize = 2048;

/// Fetches the two cache lines that a reader comes to after many more records. Records are found one by another, so the processor
/// cannot know by itself where it reads next.
#[inline(always)]
pub(crate) fn ahead_of(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in [0, 64] {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let address = bytes.as_ptr().wrapping_add(AHEAD + line);
        // SAFETY: it has no effect but on caches, and none where nothing is mapped.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, AHEAD);
}
