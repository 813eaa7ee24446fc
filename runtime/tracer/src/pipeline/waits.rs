//! `w.waited_for`: the activity for which a call made the CPU wait.
//!
//! CUPTI does not say it. A call that waits for a stream returns when everything is done that was launched there
//! before, so it was for what ended last of that; likewise for a context, and for the copy that the call makes itself.
//! Of an event it is not known where in its stream it was recorded.

use super::previous::Previous;
use super::queue::Joined;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use xputrace_model::context::{GpuContext, word::call};
use xputrace_wire::events::host::{Wait, WaitKind};

/// Limits per process; the numbers come from the target.
const MOST_STREAMS: usize = 1 << 12;
/// Activities kept of each stream: a wait is for one of the last, unless another thread launches on.
const MOST_KEPT: usize = 64;

/// An activity that was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ran {
    /// A string id.
    name: u64,
    start: u64,
    end: u64,
    /// When its launch began.
    launched: u64,
    correlation: u32,
}

/// The last activities of each stream.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// By context and stream, in order of their end.
    streams: FxHashMap<(u32, u32), VecDeque<Ran>>,
}

impl Waits {
    /// Takes an activity, whose name is this string id.
    pub(super) fn ran(&mut self, event: &Joined, name: u64) {
        let stream = (event.activity.context(), event.activity.stream());
        let (start, end) = (event.span.start, event.span.end);
        // One without a launch was launched before it started.
        let launched = event.launch.as_ref().map_or(start, |it| it.start);
        self.add(stream, Ran { name, start, end, launched, correlation: event.activity.correlation() });
    }

    fn add(&mut self, stream: (u32, u32), ran: Ran) {
        if self.streams.len() < MOST_STREAMS || self.streams.contains_key(&stream) {
            self.streams.entry(stream).or_default().push_back(ran);
        }
    }

    /// All waits that ended until then have been handled: a later one is for one of the last activities.
    pub(super) fn forget_before(&mut self, until: u64) {
        for all in self.streams.values_mut() {
            let old = all.partition_point(|it| it.end <= until);
            all.drain(..old.saturating_sub(MOST_KEPT));
        }
    }

    /// Fills the words of what a wait was for.
    pub(super) fn fill(&self, ctx: &mut GpuContext, wait: &Wait, previous: &Previous) {
        let known = self.waited_for(wait).filter(|(_, it)| previous.is_complete(it.launched, wait.start));
        let Some((stream, ran)) = known else { return };
        ctx[call::WAITED_NAME] = ran.name;
        ctx[call::WAITED_START] = ran.start;
        ctx[call::WAITED_END] = ran.end;
        ctx[call::WAITED_STREAM] = stream.into();
    }

    /// Returns the activity that a wait was for, and its stream; `None` if nothing ran any more, or it is not known.
    fn waited_for(&self, wait: &Wait) -> Option<(u32, &Ran)> {
        let is = |kind: WaitKind| wait.kind == kind as u32;
        if wait.result != 0
            || wait.has_context == 0
            || is(WaitKind::Event)
            || is(WaitKind::Stream) && wait.has_stream == 0
        {
            return None;
        }
        let is_meant = |ran: &&Ran| match is(WaitKind::Copy) {
            true => ran.correlation == wait.correlation,
            false => ran.launched < wait.start,
        };
        let is_there =
            |(context, stream): (u32, u32)| context == wait.context && (!is(WaitKind::Stream) || stream == wait.stream);
        let there = self.streams.iter().filter(|(it, _)| is_there(**it));
        let meant = there.filter_map(|((_, stream), all)| Some((*stream, all.iter().rev().find(is_meant)?)));
        meant.max_by_key(|(_, it)| it.end).filter(|(_, it)| it.end > wait.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: u32 = 1;

    fn ran(waits: &mut Waits, stream: u32, launched: u64, (start, end): (u64, u64)) {
        waits.add((CONTEXT, stream), Ran { name: end, start, end, launched, correlation: launched as u32 });
    }

    fn wait(kind: WaitKind, stream: u32, start: u64, end: u64) -> Wait {
        let it = Wait { kind: kind as u32, start, end, stream, context: CONTEXT, ..Wait::default() };
        Wait { has_context: 1, has_stream: 1, ..it }
    }

    fn found(waits: &Waits, wait: &Wait) -> Option<(u32, u64)> {
        waits.waited_for(wait).map(|(stream, it)| (stream, it.end))
    }

    #[test]
    fn a_wait_is_for_what_ended_last_of_what_was_launched_before() {
        let mut waits = Waits::default();
        ran(&mut waits, 7, 10, (20, 30));
        ran(&mut waits, 8, 11, (30, 60));
        ran(&mut waits, 7, 12, (40, 50));
        // Another thread launched it meanwhile.
        ran(&mut waits, 7, 46, (50, 55));
        assert_eq!(found(&waits, &wait(WaitKind::Stream, 7, 45, 52)), Some((7, 50)));
        assert_eq!(found(&waits, &wait(WaitKind::Context, 0, 45, 62)), Some((8, 60)));
        assert_eq!(found(&waits, &wait(WaitKind::Device, 0, 58, 62)), Some((8, 60)));
        assert_eq!(found(&waits, &wait(WaitKind::Stream, 7, 56, 57)), None, "it had ended");
        assert_eq!(found(&waits, &wait(WaitKind::Event, 7, 45, 52)), None);
        assert_eq!(found(&waits, &wait(WaitKind::Stream, 9, 45, 52)), None);
        assert_eq!(found(&waits, &Wait { result: 700, ..wait(WaitKind::Stream, 7, 45, 52) }), None);
        let copy = Wait { correlation: 46, ..wait(WaitKind::Copy, 7, 45, 56) };
        assert_eq!(found(&waits, &copy), Some((7, 55)), "its own");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut waits = Waits::default();
        (0..1000).for_each(|it| ran(&mut waits, 7, it * 10, (it * 10 + 1, it * 10 + 9)));
        waits.forget_before(5000);
        assert_eq!(waits.streams[&(CONTEXT, 7)].len(), 500 + MOST_KEPT);
        (0..5000).for_each(|it| ran(&mut waits, it as u32, 1, (2, 3)));
        assert!(waits.streams.len() <= MOST_STREAMS);
    }
}
