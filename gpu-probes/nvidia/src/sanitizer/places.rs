//! Places in a piece of device memory, all of one size: those of unloaded modules are used again.

use std::ops::Range;

#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    /// All from here on are free.
    next: usize,
    /// Before it, in order, none next to another.
    free: Vec<Range<usize>>,
}

impl Places {
    /// Takes so many places in a row, of `most` that there are; returns the first.
    pub(super) fn take(&mut self, n: usize, most: usize) -> Option<usize> {
        if let Some(at) = self.free.iter().position(|it| it.len() >= n) {
            let first = self.free[at].start;
            self.free[at].start += n;
            self.free.retain(|it| !it.is_empty());
            return Some(first);
        }
        let first = self.next;
        self.next = first.checked_add(n).filter(|end| *end <= most)?;
        Some(first)
    }

    /// Gives back what [`Places::take`] has returned.
    pub(super) fn give_back(&mut self, places: Range<usize>) {
        let at = self.free.partition_point(|it| it.start < places.start);
        self.free.insert(at, places);
        let merged = |mut all: Vec<Range<usize>>, it: Range<usize>| {
            match all.last_mut().filter(|last| last.end == it.start) {
                Some(last) => last.end = it.end,
                None => all.push(it),
            }
            all
        };
        self.free = std::mem::take(&mut self.free).into_iter().filter(|it| !it.is_empty()).fold(Vec::new(), merged);
        if let Some(last) = self.free.pop_if(|it| it.end == self.next) {
            self.next = last.start;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back_and_are_taken_again() {
        let mut places = Places::default();
        let taken = [3, 4, 2].map(|n| places.take(n, 10));
        assert_eq!(taken, [Some(0), Some(3), Some(7)]);
        assert_eq!(places.take(2, 10), None);
        places.give_back(0..3);
        assert_eq!(places.take(4, 10), None, "not in a row");
        places.give_back(3..7);
        assert_eq!((places.take(5, 10), places.take(2, 10)), (Some(0), Some(5)));
        for range in [5..7, 7..9, 0..5] {
            places.give_back(range);
        }
        assert_eq!((places.take(10, 10), places.free.len()), (Some(0), 0));
    }
}
