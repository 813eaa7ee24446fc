//! What NVTX's handles stand for: registered strings, domains, and ranges that are started and ended.
//!
//! Fixed capacity, no lock, no allocation. A handle is looked up only after the call that returned it, so an entry is
//! always whole.

use std::sync::atomic::{AtomicU64, Ordering};

/// A handle or id that a tool gave to the program; opaque to it, and to us if the tool is another one.
pub(super) type NvtxHandle = u64;

const FREE: u64 = 0;
const REMOVED: u64 = 1;
const PROBES: usize = 64;

/// Words for each handle.
#[derive(Debug)]
pub(super) struct Handles<const N: usize, const WORDS: usize> {
    keys: [AtomicU64; N],
    words: [[AtomicU64; WORDS]; N],
}

impl<const N: usize, const WORDS: usize> Handles<N, WORDS> {
    pub(super) const fn new() -> Self {
        Handles {
            keys: [const { AtomicU64::new(FREE) }; N],
            words: [const { [const { AtomicU64::new(0) }; WORDS] }; N],
        }
    }

    /// Keeps a handle's words; returns whether there is room.
    pub(super) fn set(&self, handle: NvtxHandle, words: [u64; WORDS]) -> bool {
        let Some(at) = self.find(handle).or_else(|| self.claim(handle)) else { return false };
        self.words[at].iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::Release));
        true
    }

    pub(super) fn get(&self, handle: NvtxHandle) -> Option<[u64; WORDS]> {
        self.find(handle).map(|at| self.read(at))
    }

    pub(super) fn remove(&self, handle: NvtxHandle) -> Option<[u64; WORDS]> {
        let at = self.find(handle)?;
        let words = self.read(at);
        self.keys[at].store(REMOVED, Ordering::Release);
        Some(words)
    }

    fn read(&self, at: usize) -> [u64; WORDS] {
        std::array::from_fn(|word| self.words[at][word].load(Ordering::Acquire))
    }

    fn find(&self, handle: NvtxHandle) -> Option<usize> {
        let places = self.places(handle).map(|at| (at, self.keys[at].load(Ordering::Acquire)));
        places.take_while(|(_, key)| *key != FREE).find(|(_, it)| *it == key(handle)).map(|(at, _)| at)
    }

    fn claim(&self, handle: NvtxHandle) -> Option<usize> {
        let is_taken = |at: usize, from: u64| {
            self.keys[at].compare_exchange(from, key(handle), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        self.places(handle).find(|at| is_taken(*at, FREE) || is_taken(*at, REMOVED))
    }

    fn places(&self, handle: NvtxHandle) -> impl Iterator<Item = usize> {
        let first = (handle.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        (0..PROBES.min(N)).map(move |probe| first.wrapping_add(probe) % N)
    }
}

/// Returns a number that is neither [`FREE`] nor [`REMOVED`], except for two handles that no tool gives.
fn key(handle: NvtxHandle) -> u64 {
    handle.wrapping_add(2)
}

#[cfg(test)]
mod tests {
    use super::Handles;

    #[test]
    fn handles_come_and_go() {
        let handles = Handles::<8, 2>::new();
        for round in 0..100 {
            (0..8).for_each(|it| assert!(handles.set(round * 8 + it, [it, it])));
            assert!(!handles.set(9999, [1; 2]) && handles.get(9999).is_none(), "there is no room");
            assert!(handles.set(round * 8, [7; 2]));
            assert_eq!(handles.get(round * 8), Some([7; 2]));
            assert!((1..8).all(|it| handles.remove(round * 8 + it) == Some([it; 2])));
            assert_eq!((handles.remove(round * 8 + 1), handles.remove(round * 8)), (None, Some([7; 2])));
        }
    }
}
