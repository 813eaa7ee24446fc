//! `k.previous`: the kernel that ended before another one on its stream.
//!
//! Kernels are handled in order of their end, and a stream runs one after the other, so the last one handled
//! is the previous one. Where a kernel that ran in between may be missing, nothing is said.

use crate::joined::Joined;
use rustc_hash::FxHashMap;
use xputrace_model::context::{GpuContext, word};
use xputrace_wire::record::{Launch, Opened};

/// Limits per process; the numbers come from the target.
const MOST_STREAMS: usize = 1 << 14;
const MOST_BREAKS: usize = 1 << 10;

/// A kernel that was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// A string id.
    pub(crate) name: u64,
    pub(crate) end: u64,
    /// When its launch began.
    launched: u64,
}

/// The last kernel of each stream.
#[derive(Debug, Default)]
pub(crate) struct Previous {
    /// By context and stream.
    last: FxHashMap<(u32, u32), Ended>,
    /// Times of launch, from first to last, between which launches are missing, or just before which. Disjoint and ascending.
    breaks: Vec<(u64, u64)>,
    /// Launches whose kernel never arrived, as of this batch, ascending. There may be thousands, and every event asks.
    lost: Vec<u64>,
    is_early: bool,
}

impl Previous {
    /// Takes times between which the gate for launches was opened.
    pub(crate) fn opened(&mut self, it: &Opened) {
        self.missing(it.first, it.last);
    }

    /// Kernels may be missing whose launches began between these times.
    pub(crate) fn missing(&mut self, first: u64, last: u64) {
        // Those that it overlaps become one with it: between their times, something is missing either way.
        let from = self.breaks.partition_point(|it| it.1 < first);
        let to = self.breaks.partition_point(|it| it.0 <= last).max(from);
        let (first, last) = match &self.breaks[from..to] {
            [] => (first, last),
            [begins, .., ends] => (begins.0.min(first), ends.1.max(last)),
            [only] => (only.0.min(first), only.1.max(last)),
        };
        self.breaks.splice(from..to, [(first, last)]);
        if self.breaks.len() > MOST_BREAKS {
            let [a, b] = [self.breaks[0], self.breaks[1]];
            self.breaks.splice(..2, [(a.0, b.1)]);
        }
    }

    /// Begins a batch. `lost` are the launches that wait in vain for their kernel. Of a batch that is handled too
    /// early, and where it meets others, nothing is said: earlier kernels may still arrive.
    pub(crate) fn begin(&mut self, mut lost: Vec<u64>, is_early: bool) {
        lost.sort_unstable();
        self.lost = lost;
        if is_early || self.is_early {
            self.last.clear();
        }
        self.is_early = is_early;
    }

    /// Takes a kernel, whose other words are filled, and fills those of the one before it.
    pub(crate) fn fill(&mut self, ctx: &mut GpuContext, event: &Joined<'_>) {
        let stream = (event.activity.context(), event.activity.stream());
        let ran = (ctx[word::NAME], event.span.start, event.span.end);
        let before = self.next(stream, ran, event.launch);
        ctx[word::PREVIOUS_NAME] = before.map_or(0, |it| it.name);
        ctx[word::PREVIOUS_END] = before.map_or(0, |it| it.end);
    }

    /// Takes the next kernel of a stream, with its launch, which ran from `start` on; returns the one before.
    pub(crate) fn next(
        &mut self,
        stream: (u32, u32),
        (name, start, end): (u64, u64, u64),
        launch: Option<&Launch>,
    ) -> Option<Ended> {
        let Some(launched) = launch.map(|it| it.start) else {
            // Where it belongs among the others is not known.
            self.last.remove(&stream);
            return None;
        };
        let before = self.last.get(&stream).copied();
        // One that is late changes nothing.
        if before.is_none_or(|it| it.end <= end) && (before.is_some() || self.last.len() < MOST_STREAMS) {
            self.last.insert(stream, Ended { name, end, launched });
        }
        before.filter(|it| it.end <= start && self.is_complete(it.launched, launched))
    }

    /// Whether no activity is missing between one launched at `from` and one at `to`, as far as is known.
    pub(crate) fn is_complete(&self, from: u64, to: u64) -> bool {
        !self.is_early && !self.lacks(from, to)
    }

    /// Whether something may be missing that was launched between these times.
    pub(crate) fn is_missing(&self, from: u64, to: u64) -> bool {
        self.is_early || self.lacks(from, to)
    }

    /// Whether a kernel may be missing between one launched at `from` and one at `to`.
    fn lacks(&self, from: u64, to: u64) -> bool {
        let first_break = self.breaks.get(self.breaks.partition_point(|it| it.1 <= from));
        let first_lost = self.lost.get(self.lost.partition_point(|it| *it <= from));
        first_break.is_some_and(|it| it.0 <= to) || first_lost.is_some_and(|it| *it <= to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(start: u64) -> Launch {
        Launch { start, ..Launch::default() }
    }

    /// The ends of the kernels before kernels on a stream, given as launch, start and end.
    fn before(previous: &mut Previous, kernels: &[(u64, u64, u64)]) -> Vec<Option<u64>> {
        let next = |&(at, start, end): &(u64, u64, u64)| {
            previous.next((1, 7), (3, start, end), Some(&launch(at))).map(|it| it.end)
        };
        kernels.iter().map(next).collect()
    }

    #[test]
    fn each_stream_has_its_own() {
        let mut previous = Previous::default();
        let mut next = |stream, name, start, end| {
            previous.next((1, stream), (name, start, end), Some(&launch(start - 1))).map(|it| (it.name, it.end))
        };
        assert_eq!(next(7, 1, 10, 20), None);
        assert_eq!(next(8, 2, 15, 25), None);
        assert_eq!(next(7, 3, 20, 30), Some((1, 20)));
        assert_eq!(next(8, 4, 26, 31), Some((2, 25)));
    }

    #[test]
    fn kernels_that_overlap_or_are_late_have_none() {
        let mut previous = Previous::default();
        let kernels = [(1, 10, 20), (2, 15, 30), (3, 21, 25), (4, 30, 40)];
        assert_eq!(before(&mut previous, &kernels), [None, None, None, Some(30)]);
    }

    #[test]
    fn nothing_is_said_where_a_kernel_may_be_missing() {
        let mut previous = Previous::default();
        previous.opened(&Opened { first: 50, last: 50 });
        let kernels = [(10, 11, 12), (40, 41, 42), (60, 61, 62), (70, 71, 72)];
        assert_eq!(before(&mut previous, &kernels), [None, Some(12), None, Some(62)]);
        previous.begin(vec![80], false);
        assert_eq!(before(&mut previous, &[(90, 91, 92), (100, 101, 102)]), [None, Some(92)]);
        previous.next((1, 7), (3, 110, 120), None);
        assert_eq!(before(&mut previous, &[(130, 131, 132)]), [None], "after one without a launch");
        previous.begin(Vec::new(), true);
        assert_eq!(before(&mut previous, &[(140, 141, 142), (150, 151, 152)]), [None, None], "handled too early");
        previous.begin(Vec::new(), false);
        assert_eq!(before(&mut previous, &[(160, 161, 162), (170, 171, 172)]), [None, Some(162)]);
    }

    #[test]
    fn breaks_in_any_order_say_what_each_of_them_says() {
        use proptest::prelude::*;
        let breaks = proptest::collection::vec((0u64..40, 0u64..6), 0..12);
        proptest!(|(breaks in breaks, lost in proptest::collection::vec(0u64..50, 0..4), from in 0u64..50, length in 0u64..9)| {
            let mut previous = Previous::default();
            breaks.iter().for_each(|it| previous.missing(it.0, it.0 + it.1));
            previous.begin(lost.clone(), false);
            let to = from + length;
            let wanted = breaks.iter().any(|it| from < it.0 + it.1 && it.0 <= to) || lost.iter().any(|it| from < *it && *it <= to);
            prop_assert_eq!(previous.lacks(from, to), wanted);
        });
    }

    #[test]
    fn memory_is_bounded_and_merged_breaks_still_hold() {
        let mut previous = Previous::default();
        (0..10_000).for_each(|it| previous.missing(it * 10, it * 10));
        assert!(previous.breaks.len() <= MOST_BREAKS && previous.lacks(3, 4) && previous.lacks(99_985, 99_995));
        assert!(!previous.lacks(99_991, 99_999));
    }
}
