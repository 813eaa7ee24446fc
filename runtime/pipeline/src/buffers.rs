//! Orders events without launches, by CUPTI's completed buffers.
//!
//! A record takes its place in a buffer when its work is submitted. CUPTI delivers buffers in that
//! order, each only after everything in it has ended. So
//! - everything outstanding was submitted after everything that has arrived;
//! - a buffer that is not full was delivered by a flush that found all work done: everything that
//!   has arrived had ended by then, and everything outstanding had not been submitted yet;
//! - after a full buffer, outstanding work ends after the last record of its own stream. A stream
//!   without a record in three buffers is considered idle.
//!
//! All this holds however late CUPTI delivers; the time of a flush is not needed.

use rustc_hash::FxHashMap;
use xputrace_wire::record::Clock;

/// A buffer with less room left is full: CUPTI's records are far smaller.
const FULL_BUT_FOR_BYTES: u32 = 32 << 10;
/// Older recordings don't contain how full a buffer was. A full one has at least this many kernels
/// (records of CUPTI 11.7 to 13.5 have 176 to 248 bytes; a buffer has 1 MiB).
const FULL_OF_KERNELS: u32 = 4096;

/// A stream in use has a record in one of this many buffers; the last one may be read only partly.
const ACTIVE_BUFFERS: u64 = 3;
/// After this many flushes without a record, nothing more is expected from earlier buffers. Only
/// needed for a last buffer that is exactly full. One second if there is a flush every 100 ms.
const QUIET_FLUSHES: u32 = 10;
/// Limits on what a target can make us remember.
const MOST_STREAMS: usize = 4096;
const MOST_RINGS: usize = 4096;

/// The completed buffers of a process so far.
#[derive(Default)]
pub(crate) struct Buffers {
    /// The buffer last begun in each ring.
    of_ring: Vec<Buffer>,
    /// Number of buffers begun so far, and when the last non-full one was.
    n_begun: u64,
    not_full: u64,
    /// Of the completed buffers: the one delivered last, and the newest end of all.
    last_read: Buffer,
    read_until: u64,
    /// By context and stream, in the last [`ACTIVE_BUFFERS`].
    streams: FxHashMap<(u32, u32), StreamEnd>,
    /// The ring of all buffers since the last flush. Buffers are in order as long as there is only
    /// one.
    writer: DeliveringRing,
    /// When the flush began that this drain completes.
    flush: Option<u64>,
    flushes_without_record: u32,
    complete_until: u64,
}

#[derive(Clone, Copy, Default)]
struct Buffer {
    number: u64,
    /// When its delivery began, in CLOCK_MONOTONIC nanoseconds.
    delivered: u64,
    fill: Fill,
    n_records: u32,
    newest_end: u64,
    /// Whether more of its records may come.
    open: bool,
}

impl Buffer {
    /// Whether the buffer was delivered because it was full, not because a flush found all work
    /// done. False while that is unknown.
    fn is_full(&self) -> bool {
        match self.fill {
            Fill::Unknown => self.n_records >= FULL_OF_KERNELS,
            Fill::Full => true,
            Fill::Part => false,
        }
    }
}

/// How full a buffer was when CUPTI delivered it.
#[derive(Clone, Copy, Default)]
enum Fill {
    #[default]
    Unknown,
    Part,
    Full,
}

impl Fill {
    fn of(clock: &Clock) -> Fill {
        match clock.room.checked_sub(clock.filled) {
            _ if clock.room == 0 => Fill::Unknown,
            Some(left) if left >= FULL_BUT_FOR_BYTES => Fill::Part,
            _ => Fill::Full,
        }
    }
}

struct StreamEnd {
    end: u64,
    /// Number of the buffer that contains its last record.
    buffer: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum DeliveringRing {
    #[default]
    None,
    One(usize),
    Several,
}

impl Buffers {
    /// Begins a buffer, at its clock record.
    pub(crate) fn begin(&mut self, ring: usize, clock: &Clock) {
        if ring >= MOST_RINGS {
            return;
        }
        if ring >= self.of_ring.len() {
            self.of_ring.resize(ring + 1, Buffer::default());
        }
        self.close(ring);
        self.n_begun += 1;
        let (number, delivered, fill) = (self.n_begun, clock.monotonic_before, Fill::of(clock));
        self.of_ring[ring] = Buffer { number, delivered, fill, open: true, ..Buffer::default() };
        self.writer = match self.writer {
            DeliveringRing::None => DeliveringRing::One(ring),
            one if one == DeliveringRing::One(ring) => one,
            _ => DeliveringRing::Several,
        };
        let first_active = (self.n_begun + 1).saturating_sub(ACTIVE_BUFFERS);
        self.streams.retain(|_, it| it.buffer >= first_active);
    }

    /// Adds a record to the buffer last begun in this ring: its context and stream, and its end on
    /// CLOCK_MONOTONIC.
    #[inline]
    pub(crate) fn record(&mut self, ring: usize, stream: (u32, u32), end: u64) {
        if let Some(buffer) = self.of_ring.get_mut(ring) {
            buffer.n_records = buffer.n_records.saturating_add(1);
            buffer.newest_end = buffer.newest_end.max(end);
        }
        self.flushes_without_record = 0;
        if self.streams.len() < MOST_STREAMS || self.streams.contains_key(&stream) {
            let it = self.streams.entry(stream).or_insert(StreamEnd { end: 0, buffer: 0 });
            *it = StreamEnd { end: it.end.max(end), buffer: self.n_begun };
        }
    }

    /// Ends a flush: every buffer whose delivery began before it is complete, as are the earlier
    /// ones in its own ring.
    pub(crate) fn flush(&mut self, ring: usize, began: u64) {
        if ring < self.of_ring.len() {
            self.close(ring);
        }
        self.flush = Some(began.max(self.flush.unwrap_or(0)));
        self.flushes_without_record = self.flushes_without_record.saturating_add(1);
    }

    /// Ends a drain: all its rings have been read. If a flush was completed in it, returns whether that found all work
    /// done.
    pub(crate) fn end_drain(&mut self) -> Option<bool> {
        let of_streams = self.streams.values().map(|it| it.end).min();
        let flush = self.flush.take().map(|began| self.has_done_all_by(began));
        let until = match flush {
            Some(all_was_done) => of_streams.filter(|_| !all_was_done).unwrap_or(self.read_until),
            // The streams in use are known once a whole buffer was full.
            None if self.writer != DeliveringRing::Several && self.n_begun >= self.not_full + 2 => {
                of_streams.unwrap_or(0)
            }
            None => 0,
        };
        self.complete_until = self.complete_until.max(until);
        flush
    }

    /// Whether the flush that began then found all work done.
    fn has_done_all_by(&mut self, began: u64) -> bool {
        self.close_those_before(began);
        self.writer = DeliveringRing::None;
        !self.last_read.is_full() || self.flushes_without_record > QUIET_FLUSHES
    }

    /// Returns a time; everything that ended until then has arrived.
    pub(crate) fn complete_until(&self) -> u64 {
        self.complete_until
    }

    fn close_those_before(&mut self, flush_began: u64) {
        for ring in 0..self.of_ring.len() {
            if self.of_ring[ring].delivered < flush_began {
                self.close(ring);
            }
        }
    }

    /// Completes the last buffer of a ring.
    fn close(&mut self, ring: usize) {
        let buffer = std::mem::take(&mut self.of_ring[ring].open).then(|| self.of_ring[ring]);
        let Some(buffer) = buffer else { return };
        self.read_until = self.read_until.max(buffer.newest_end);
        if buffer.delivered >= self.last_read.delivered {
            self.last_read = buffer;
        }
        if !buffer.is_full() {
            self.not_full = self.not_full.max(buffer.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Delivers a buffer with one ring; each kernel is its stream and its end.
    fn deliver(buffers: &mut Buffers, at: u64, kernels: impl IntoIterator<Item = (u32, u64)>) {
        deliver_into(0, buffers, at, kernels);
    }

    /// Delivers a buffer of an older recording, without its fill level.
    fn deliver_into(ring: usize, buffers: &mut Buffers, at: u64, kernels: impl IntoIterator<Item = (u32, u64)>) {
        buffers.begin(ring, &Clock { monotonic_before: at, ..Clock::default() });
        kernels.into_iter().for_each(|(stream, end)| buffers.record(ring, (1, stream), end));
    }

    /// Delivers a buffer with its fill level.
    fn deliver_filled(buffers: &mut Buffers, at: u64, filled: u32, records: impl IntoIterator<Item = (u32, u64)>) {
        buffers.begin(0, &Clock { monotonic_before: at, filled, room: 1 << 20, ..Clock::default() });
        records.into_iter().for_each(|(stream, end)| buffers.record(0, (1, stream), end));
    }

    /// A flush by a thread that delivered nothing itself, and the end of the drain.
    fn flush(buffers: &mut Buffers, began: u64) {
        buffers.flush(9, began);
        buffers.end_drain();
    }

    /// Returns enough kernels of a stream to fill a buffer except for `room`; the last one ends at
    /// `end`.
    fn filling(stream: u32, end: u64, room: u32) -> impl Iterator<Item = (u32, u64)> {
        (0..FULL_OF_KERNELS - room).rev().map(move |n| (stream, end - u64::from(n)))
    }

    #[test]
    fn a_buffer_that_was_not_full_completes_everything() {
        let mut buffers = Buffers::default();
        deliver(&mut buffers, 1, [(1, 500), (2, 300)]);
        buffers.end_drain();
        assert_eq!(buffers.complete_until(), 0, "more of it may come");
        flush(&mut buffers, 2);
        assert_eq!(buffers.complete_until(), 500);
    }

    #[test]
    fn a_full_buffer_is_known_by_its_bytes_whatever_is_in_it() {
        let mut buffers = Buffers::default();
        // Few records that filled it: more will come.
        deliver_filled(&mut buffers, 1, (1 << 20) - 100, [(1, 90_000), (2, 40_000)]);
        flush(&mut buffers, 2);
        assert_eq!(buffers.complete_until(), 40_000);
        // Many small records that did not fill it: all work was done.
        deliver_filled(&mut buffers, 3, 900_000, filling(1, 190_000, 0).chain([(2, 120_000)]));
        flush(&mut buffers, 4);
        assert_eq!(buffers.complete_until(), 190_000);
    }

    #[test]
    fn after_a_full_buffer_each_stream_may_go_on_from_its_last_kernel() {
        let mut buffers = Buffers::default();
        deliver(&mut buffers, 1, filling(1, 90_000, 1).chain([(2, 40_000)]));
        flush(&mut buffers, 2);
        assert_eq!(buffers.complete_until(), 40_000);
        deliver(&mut buffers, 3, [(2, 41_000)]);
        flush(&mut buffers, 4);
        assert_eq!(buffers.complete_until(), 90_000);
    }

    #[test]
    fn full_buffers_need_no_flush() {
        let mut buffers = Buffers::default();
        deliver(&mut buffers, 1, filling(1, 90_000, 1).chain([(2, 40_000)]));
        buffers.end_drain();
        assert_eq!(buffers.complete_until(), 0, "it is not known which streams are in use");
        deliver(&mut buffers, 2, [(1, 91_000)]);
        buffers.end_drain();
        assert_eq!(buffers.complete_until(), 40_000);
        // Another thread delivers at the same time, so the order of the two is unknown.
        deliver_into(3, &mut buffers, 3, [(2, 95_000)]);
        buffers.end_drain();
        assert_eq!(buffers.complete_until(), 40_000);
    }

    #[test]
    fn a_buffer_that_a_flush_did_not_wait_for_does_not_look_small() {
        let mut buffers = Buffers::default();
        deliver(&mut buffers, 1, filling(1, 90_000, 1).chain([(2, 40_000)]));
        deliver_into(3, &mut buffers, 8, [(1, 91_000)]);
        flush(&mut buffers, 5);
        assert_eq!(buffers.complete_until(), 40_000);
    }

    #[test]
    fn a_stream_that_was_left_holds_nothing_back() {
        let mut buffers = Buffers::default();
        deliver(&mut buffers, 1, filling(1, 90_000, 1).chain([(2, 40_000)]));
        for (at, end) in [(2, 190_000), (4, 290_000)] {
            deliver(&mut buffers, at, filling(1, end, 0));
            flush(&mut buffers, at + 1);
            assert_eq!(buffers.complete_until(), 40_000);
        }
        deliver(&mut buffers, 6, filling(1, 390_000, 0));
        flush(&mut buffers, 7);
        assert_eq!(buffers.complete_until(), 390_000);
    }

    #[test]
    fn a_last_buffer_that_was_just_full_is_complete_after_quiet_flushes() {
        let mut buffers = Buffers::default();
        deliver(&mut buffers, 1, filling(1, 90_000, 1).chain([(2, 40_000)]));
        (0..QUIET_FLUSHES).for_each(|_| flush(&mut buffers, 2));
        assert_eq!(buffers.complete_until(), 40_000);
        flush(&mut buffers, 2);
        assert_eq!(buffers.complete_until(), 90_000);
    }
}
