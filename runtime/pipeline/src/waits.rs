//! `w.waited_for`: the activity for which a call made the CPU wait.
//!
//! CUPTI does not say it. A call that waits for a stream returns when everything is done that was launched there
//! before, so it was for what ended last of that; likewise for a context, and for the copy that the call makes itself.
//! An event is done when everything is that was launched on its stream before the call that recorded it.

use crate::joined::Joined;
use crate::previous::Previous;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use xputrace_model::context::{GpuContext, word::call};
use xputrace_wire::events::host::{Common, EventRecord, Wait, WaitKind};

/// Limits per process; the numbers come from the target.
const MOST_STREAMS: usize = 1 << 12;
/// Activities kept of each stream: a wait is for one of the last, unless another thread launches on.
const MOST_KEPT: usize = 64;
/// CUDA events, and calls kept that recorded the same one: a wait is for the last before it, unless other threads have
/// recorded it again meanwhile.
const MOST_EVENTS: usize = 1 << 16;
const MOST_RECORDS: usize = 8;
/// Activities kept of all streams, whatever their number and ends.
const MOST_IN_ALL: usize = 1 << 18;

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
pub(crate) struct Waits {
    /// By context and stream, in order of their end.
    streams: FxHashMap<(u32, u32), VecDeque<Ran>>,
    kept: usize,
    /// By handle.
    events: FxHashMap<u64, EventRecords>,
}

/// Where in its stream an event was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecordPoint {
    context: u32,
    stream: u32,
    /// When the call began and returned.
    start: u64,
    end: u64,
}

/// The last calls that recorded an event, in order of their end.
#[derive(Debug, Default)]
struct EventRecords {
    places: VecDeque<RecordPoint>,
    /// Whether something records it that is no call in a stream: a graph does each time it is launched.
    is_elsewhere: bool,
}

impl EventRecords {
    /// Returns the place that a wait which began then is for; `None` if it is not known.
    fn before(&self, time: u64) -> Option<&RecordPoint> {
        let last = self.places.iter().filter(|it| it.start < time).max_by_key(|it| it.start)?;
        // Which of two calls at a time was the last is not known.
        let overlaps = |it: &RecordPoint| it.start < last.start && it.end > last.start;
        let is_known = !self.is_elsewhere && last.end <= time && !self.places.iter().any(overlaps);
        is_known.then_some(last)
    }
}

impl Waits {
    /// Takes a call that recorded an event.
    pub(crate) fn on_event_record(&mut self, it: &EventRecord) {
        let has_room = self.events.len() < MOST_EVENTS || self.events.contains_key(&it.event);
        if it.result != 0 || !has_room {
            return;
        }
        let event = self.events.entry(it.event).or_default();
        event.is_elsewhere |= it.has_stream == 0 || it.has_context == 0;
        if event.places.len() == MOST_RECORDS {
            event.places.pop_front();
        }
        event.places.push_back(RecordPoint { context: it.context, stream: it.stream, start: it.start, end: it.end });
    }

    /// Takes an activity, whose name is this string id.
    pub(crate) fn on_activity(&mut self, event: &Joined<'_>, name: u64) {
        let stream = (event.activity.context(), event.activity.stream());
        let (start, end) = (event.span.start, event.span.end);
        // One without a launch was launched before it started.
        let launched = event.launch.map_or(start, |it| it.start);
        self.add(stream, Ran { name, start, end, launched, correlation: event.activity.correlation() });
    }

    fn add(&mut self, stream: (u32, u32), ran: Ran) {
        if self.streams.len() < MOST_STREAMS || self.streams.contains_key(&stream) {
            let all = self.streams.entry(stream).or_default();
            if self.kept < MOST_IN_ALL {
                self.kept += 1;
            } else if all.pop_front().is_none() {
                return;
            }
            all.push_back(ran);
        }
    }

    /// All waits that ended until then have been handled: a later one is for one of the last activities.
    pub(crate) fn forget_before(&mut self, until: u64) {
        for all in self.streams.values_mut() {
            let old = all.partition_point(|it| it.end <= until);
            self.kept -= all.drain(..old.saturating_sub(MOST_KEPT)).len();
        }
    }

    /// Fills the words of what a wait was for.
    pub(crate) fn fill(&self, ctx: &mut GpuContext, wait: &Wait, previous: &Previous) {
        let known = match wait.kind == WaitKind::Event as u32 {
            true => self.waited_for_event(wait),
            false => self.waited_for(wait),
        };
        let known = known.filter(|(_, it)| previous.is_complete(it.launched, wait.start));
        let Some((stream, ran)) = known else { return };
        ctx[call::WAITED_NAME] = ran.name;
        ctx[call::WAITED_START] = ran.start;
        ctx[call::WAITED_END] = ran.end;
        ctx[call::WAITED_STREAM] = stream.into();
    }

    /// Returns the activity that a wait for an event was for, like [`Self::waited_for`].
    fn waited_for_event(&self, wait: &Wait) -> Option<(u32, &Ran)> {
        if wait.result != 0 || wait.flags & Common::EVENTS_MISSING != 0 {
            return None;
        }
        let place = self.events.get(&wait.event)?.before(wait.start)?;
        let last =
            self.streams.get(&(place.context, place.stream))?.iter().rev().find(|it| it.launched < place.start)?;
        // An event that was made anew at the same address, and not recorded, is waited for by nothing.
        (last.end > wait.start && last.start < wait.end).then_some((place.stream, last))
    }

    /// Returns the activity that a wait was for, and its stream; `None` if nothing ran any more, or it is not known.
    fn waited_for(&self, wait: &Wait) -> Option<(u32, &Ran)> {
        let is = |kind: WaitKind| wait.kind == kind as u32;
        if wait.result != 0 || wait.has_context == 0 || is(WaitKind::Stream) && wait.has_stream == 0 {
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

    /// Records an event in stream 7.
    fn record(waits: &mut Waits, event: u64, start: u64) {
        let it = EventRecord { event, start, end: start + 2, stream: 7, has_stream: 1, ..EventRecord::default() };
        waits.on_event_record(&EventRecord { context: CONTEXT, has_context: 1, ..it });
    }

    fn found_of_event(waits: &Waits, event: u64, start: u64, end: u64) -> Option<(u32, u64)> {
        let wait = Wait { event, ..wait(WaitKind::Event, 0, start, end) };
        waits.waited_for_event(&wait).map(|(stream, it)| (stream, it.end))
    }

    #[test]
    fn a_wait_for_an_event_is_for_what_was_launched_before_it_was_recorded() {
        let mut waits = Waits::default();
        ran(&mut waits, 7, 10, (20, 30));
        ran(&mut waits, 7, 12, (30, 60));
        ran(&mut waits, 8, 13, (30, 65));
        ran(&mut waits, 7, 18, (60, 90));
        record(&mut waits, 5, 14);
        assert_eq!(found_of_event(&waits, 5, 40, 61), Some((7, 60)));
        assert_eq!(found_of_event(&waits, 6, 40, 61), None, "never recorded");
        assert_eq!(found_of_event(&waits, 5, 62, 63), None, "it was done");
        assert_eq!(found_of_event(&waits, 5, 15, 61), None, "the call that recorded it had not returned");
        record(&mut waits, 5, 19);
        assert_eq!(found_of_event(&waits, 5, 40, 91), Some((7, 90)), "recorded again");
        assert_eq!(found_of_event(&waits, 5, 17, 61), Some((7, 60)), "before it was recorded again");
        let lost = Wait { event: 5, flags: Common::EVENTS_MISSING, ..wait(WaitKind::Event, 0, 40, 91) };
        assert_eq!(waits.waited_for_event(&lost), None);
        record(&mut waits, 5, 20);
        assert_eq!(found_of_event(&waits, 5, 40, 91), None, "by two threads at a time");
    }

    #[test]
    fn what_a_graph_or_a_context_records_is_not_known() {
        let mut waits = Waits::default();
        ran(&mut waits, 7, 10, (20, 60));
        record(&mut waits, 5, 14);
        waits.on_event_record(&EventRecord { event: 5, start: 17, end: 18, has_context: 1, ..EventRecord::default() });
        record(&mut waits, 5, 20);
        assert_eq!(found_of_event(&waits, 5, 40, 61), None);
    }

    #[test]
    fn events_and_their_records_are_bounded() {
        let mut waits = Waits::default();
        ran(&mut waits, 7, 10, (20, 60));
        (0..20).for_each(|it| record(&mut waits, 5, 12 + it * 4));
        assert_eq!(waits.events[&5].places.len(), MOST_RECORDS);
        assert_eq!(found_of_event(&waits, 5, 15, 61), None, "the call before it is forgotten");
        (0..MOST_EVENTS as u64 + 9).for_each(|it| record(&mut waits, it, 14));
        assert_eq!(waits.events.len(), MOST_EVENTS);
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

    #[test]
    fn what_never_ends_takes_no_more_than_its_share() {
        let mut waits = Waits::default();
        let far = |it: usize| Ran { name: 1, start: 1, end: u64::MAX - 1, launched: it as u64, correlation: it as u32 };
        (0..MOST_IN_ALL + 10_000).for_each(|it| waits.add((CONTEXT, it as u32 % 8), far(it)));
        waits.forget_before(1_000_000);
        assert_eq!(waits.streams.values().map(VecDeque::len).sum::<usize>(), MOST_IN_ALL);
    }
}
