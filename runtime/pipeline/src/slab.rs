//! Large elements that stay where they are: room for them grows by a chunk at a time, and the places of those that
//! have gone are taken by others.

use std::ops::{Index, IndexMut};

/// Elements of a chunk.
const CHUNK: usize = 1 << 8;

/// Elements by place: 0 is the first one's, and so on.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    /// The last one's elements behind `len` are copies of its first.
    chunks: Vec<Box<[T; CHUNK]>>,
    /// Elements so far, with those that have gone.
    len: usize,
    /// Places of elements that have gone.
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { chunks: Vec::new(), len: 0, free: Vec::new() }
    }
}

impl<T: Copy> Slab<T> {
    /// Adds the element that `make` returns, which is large, so it is made where it stays; returns its place.
    #[inline(always)]
    pub(crate) fn insert(&mut self, make: impl FnOnce() -> T) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self[place] = make();
                place
            }
            None => self.push(make()),
        }
    }

    #[inline(never)]
    fn push(&mut self, element: T) -> u32 {
        let place = self.len as u32;
        if self.len == self.room() {
            // An array of them would be made on the stack.
            let chunk = vec![element; CHUNK].into_boxed_slice().try_into();
            self.chunks.push(chunk.unwrap_or_else(|_| unreachable!("it has as many elements as a chunk")));
        }
        self[place] = element;
        self.len += 1;
        place
    }

    /// Gives up the element at a place, where it can be read until another one is there.
    #[inline]
    pub(crate) fn remove(&mut self, place: u32) {
        self.free.push(place);
    }

    /// Returns for how many elements there is room.
    pub(crate) fn room(&self) -> usize {
        self.chunks.len() * CHUNK
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, place: u32) -> &T {
        &self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, place: u32) -> &mut T {
        &mut self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_stay_and_free_places_are_taken_first() {
        let mut slab = Slab::default();
        let places: Vec<u32> = (0..3 * CHUNK as u64).map(|n| slab.insert(|| n)).collect();
        assert!(places.iter().zip(0..).all(|(place, n)| slab[*place] == n));
        slab.remove(places[7]);
        assert_eq!((slab.insert(|| 1 << 40), slab[places[7]], slab[places[8]]), (places[7], 1 << 40, 8));
        assert_eq!(slab.room(), 3 * CHUNK);
    }
}
