//! What NVTX's handles stand for: registered strings, domains, and ranges that are started and ended.
//!
//! Fixed capacity, no lock, no allocation. A handle is looked up only after the call that returned it, so an entry is
//! always whole.

use std::sync::atomic::{AtomicU64, Ordering};

/// A handle or id that a tool gave to the program; opaque to it, and to us if the tool is another one.
pub(super) type Handle = u64;

const FREE: u64 = 0;
const REMOVED: u64 = 1;
const PROBES: usize = 64;

/// A word for each handle.
#[derive(Debug)]
pub(super) struct Handles<const N: usize> {
    keys: [AtomicU64; N],
    words: [AtomicU64; N],
}

impl<const N: usize> Handles<N> {
    pub(super) const fn new() -> Self {
        Handles { keys: [const { AtomicU64::new(FREE) }; N], words: [const { AtomicU64::new(0) }; N] }
    }

    /// Keeps a handle's word; nothing if there is no room.
    pub(super) fn set(&self, handle: Handle, word: u64) {
        let at = self.find(handle).or_else(|| self.claim(handle));
        if let Some(at) = at {
            self.words[at].store(word, Ordering::Release);
        }
    }

    pub(super) fn get(&self, handle: Handle) -> Option<u64> {
        self.find(handle).map(|at| self.words[at].load(Ordering::Acquire))
    }

    pub(super) fn remove(&self, handle: Handle) -> Option<u64> {
        let at = self.find(handle)?;
        let word = self.words[at].load(Ordering::Acquire);
        self.keys[at].store(REMOVED, Ordering::Release);
        Some(word)
    }

    fn find(&self, handle: Handle) -> Option<usize> {
        let places = self.places(handle).map(|at| (at, self.keys[at].load(Ordering::Acquire)));
        places.take_while(|(_, key)| *key != FREE).find(|(_, it)| *it == key(handle)).map(|(at, _)| at)
    }

    fn claim(&self, handle: Handle) -> Option<usize> {
        let is_taken = |at: usize, from: u64| {
            self.keys[at].compare_exchange(from, key(handle), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        self.places(handle).find(|at| is_taken(*at, FREE) || is_taken(*at, REMOVED))
    }

    fn places(&self, handle: Handle) -> impl Iterator<Item = usize> {
        let first = (handle.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        (0..PROBES.min(N)).map(move |probe| first.wrapping_add(probe) % N)
    }
}

/// Returns a number that is neither [`FREE`] nor [`REMOVED`], except for two handles that no tool gives.
fn key(handle: Handle) -> u64 {
    handle.wrapping_add(2)
}

#[cfg(test)]
mod tests {
    use super::Handles;

    #[test]
    fn handles_come_and_go() {
        let handles = Handles::<8>::new();
        for round in 0..100 {
            (0..8).for_each(|it| handles.set(round * 8 + it, it));
            handles.set(9999, 1);
            assert_eq!(handles.get(9999), None, "there is no room");
            handles.set(round * 8, 7);
            assert_eq!(handles.get(round * 8), Some(7));
            assert!((1..8).all(|it| handles.remove(round * 8 + it) == Some(it)));
            assert_eq!((handles.remove(round * 8 + 1), handles.remove(round * 8)), (None, Some(7)));
        }
    }
}
