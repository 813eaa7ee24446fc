//! How long a GPU was busy: the length of the union of its kernels' times.
//!
//! Kernels arrive mostly in order of their end. So the union is a short list of disjoint spans, of
//! which only the last few can still grow; older ones are summed up.

/// Number of separate spans that stay; a kernel that started before all of them counts from the oldest one's start.
const OPEN_SPANS: usize = 256;
/// Number of spans at which the older ones are summed up.
const MOST_SPANS: usize = 2 * OPEN_SPANS;

/// Maximum number of GPUs: they come from the target.
const MOST_DEVICES: usize = 64;

/// The busy time of each GPU, by a number that is the same in all processes.
#[derive(Clone, Debug, Default)]
pub(crate) struct BusyGpus {
    by_gpu: Vec<(u64, BusyTime)>,
    kernels: u64,
    nanos: u64,
}

impl BusyGpus {
    /// Adds a kernel that ran on a GPU from `start` to `end`.
    #[inline]
    pub(crate) fn add(&mut self, gpu: u64, start: u64, end: u64) {
        self.kernels += 1;
        self.nanos = self.nanos.saturating_add(end.saturating_sub(start));
        let n_gpus = self.by_gpu.len();
        match self.by_gpu.iter_mut().find(|it| it.0 == gpu) {
            Some((_, busy)) => busy.add(start, end),
            None if n_gpus < MOST_DEVICES => {
                let open = if start < end { vec![(start, end)] } else { Vec::new() };
                self.by_gpu.push((gpu, BusyTime { open, ..BusyTime::default() }));
            }
            None => {}
        }
    }

    /// Returns how many kernels were added, and the sum of their durations.
    pub(crate) fn kernels(&self) -> (u64, u64) {
        (self.kernels, self.nanos)
    }

    /// Returns the busy time of the GPU of which this holds; `None` if there is none.
    pub(crate) fn nanos_of(&self, is_it: impl Fn(u64) -> bool) -> Option<u64> {
        self.by_gpu.iter().find(|(gpu, _)| is_it(*gpu)).map(|(_, busy)| busy.nanos())
    }

    /// Returns the busy time of the busiest GPU.
    pub(crate) fn most_nanos(&self) -> u64 {
        self.by_gpu.iter().map(|(_, busy)| busy.nanos()).max().unwrap_or(0)
    }
}

/// The union of one GPU's kernel times.
#[derive(Clone, Debug, Default)]
struct BusyTime {
    /// Disjoint spans, ascending.
    open: Vec<(u64, u64)>,
    closed_nanos: u64,
    /// End of the last span summed up.
    closed_until: u64,
}

impl BusyTime {
    /// Adds a kernel that ran from `start` to `end`.
    #[inline(always)]
    fn add(&mut self, start: u64, end: u64) {
        let start = start.max(self.closed_until);
        match self.open.last_mut() {
            Some(last) if start < last.0 => self.merge(start, end),
            Some(last) if start <= last.1 => last.1 = end.max(last.1),
            _ if start < end => self.open.push((start, end)),
            _ => {}
        }
        if self.open.len() >= MOST_SPANS {
            self.close_oldest();
        }
    }

    /// Adds a kernel that began before the last span did, to those that it touches.
    #[cold]
    fn merge(&mut self, mut start: u64, mut end: u64) {
        let mut later = Vec::new();
        while let Some(&(s, e)) = self.open.last().filter(|(_, e)| *e >= start) {
            self.open.pop();
            if s > end {
                later.push((s, e));
            } else {
                start = start.min(s);
                end = end.max(e);
            }
        }
        if start < end {
            self.open.push((start, end));
        }
        self.open.extend(later.into_iter().rev());
    }

    #[cold]
    fn close_oldest(&mut self) {
        let n_closed = self.open.len() - OPEN_SPANS;
        for (start, end) in self.open.drain(..n_closed) {
            self.closed_nanos += end - start;
            self.closed_until = end;
        }
    }

    /// Returns the length of the union so far.
    fn nanos(&self) -> u64 {
        self.closed_nanos + self.open.iter().map(|(start, end)| end - start).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn union(kernels: &[(u64, u64)]) -> u64 {
        let mut busy = BusyTime::default();
        kernels.iter().for_each(|(start, end)| busy.add(*start, *end));
        busy.nanos()
    }

    #[test]
    fn overlaps_count_once_in_any_order() {
        assert_eq!(union(&[(0, 10), (5, 20), (30, 31)]), 21);
        assert_eq!(union(&[(0, 1), (5, 6), (2, 7)]), 6);
        assert_eq!(union(&[(10, 20), (0, 5), (12, 13)]), 15);
        assert_eq!(union(&[(0, 0)]), 0);
    }

    #[test]
    fn many_spans_are_summed_up() {
        let kernels: Vec<_> = (0..10_000).map(|i| (i * 10, i * 10 + 3)).collect();
        assert_eq!(union(&kernels), 30_000);
    }
}
