//! Order without launches: what CUPTI's completed buffers tell.
//!
//! A kernel's record takes its place in a buffer when the kernel is submitted. CUPTI hands
//! buffers over in that order, and each only when all kernels in it have ended. So
//! - what is still to come was submitted after everything that has come;
//! - a buffer that is not full was handed over by a flush that found all work done: all that
//!   has come had ended by then, and what is still to come had not been submitted;
//! - after a full buffer, the kernels that are still to come end after the last one of their
//!   own stream that has come. A stream without a kernel in two buffers is taken as idle.
//!
//! All three hold however late CUPTI delivers: the time of a flush is not needed.

use rustc_hash::FxHashMap;
use xputrace_wire::record::{FULL_BUFFER_KERNELS, Kernel};

/// Buffers in which a stream that is in use has a kernel.
const ACTIVE_BUFFERS: u64 = 2;
/// Flushes without a kernel after which nothing more is expected of the buffers before. Only a
/// last buffer that was full to its end needs it; a second where a flush is made every 100 ms.
const QUIET_FLUSHES: u32 = 10;
/// Bounds on what a target can make us remember.
const MOST_STREAMS: usize = 4096;
const MOST_RINGS: usize = 4096;

/// The completed buffers of a process so far.
#[derive(Default)]
pub(super) struct Buffers {
    /// Of each ring, the buffer that was written into it last.
    of_ring: Vec<Buffer>,
    /// Buffers begun so far.
    n_buffers: u64,
    /// By context and stream, in the last [`ACTIVE_BUFFERS`].
    streams: FxHashMap<(u32, u32), Stream>,
    newest_end: u64,
    complete_until: u64,
    flushes_without_kernel: u32,
}

#[derive(Clone, Copy, Default)]
struct Buffer {
    /// CLOCK_MONOTONIC nanoseconds at which its delivery began.
    delivered: u64,
    n_kernels: u32,
}

struct Stream {
    end: u64,
    /// Number of the buffer that its last kernel was in.
    buffer: u64,
}

impl Buffers {
    /// A buffer begins, by its clock record.
    pub(super) fn begin(&mut self, ring: usize, delivered: u64) {
        if ring >= MOST_RINGS {
            return;
        }
        if ring >= self.of_ring.len() {
            self.of_ring.resize(ring + 1, Buffer::default());
        }
        self.of_ring[ring] = Buffer { delivered, n_kernels: 0 };
        self.n_buffers += 1;
        let first_active = (self.n_buffers + 1).saturating_sub(ACTIVE_BUFFERS);
        self.streams.retain(|_, it| it.buffer >= first_active);
    }

    /// A kernel of the buffer that was begun last in this ring; its times are converted.
    pub(super) fn kernel(&mut self, ring: usize, kernel: &Kernel) {
        if let Some(buffer) = self.of_ring.get_mut(ring) {
            buffer.n_kernels = buffer.n_kernels.saturating_add(1);
        }
        self.flushes_without_kernel = 0;
        self.newest_end = self.newest_end.max(kernel.end);
        let stream = (kernel.context, kernel.stream);
        if self.streams.len() < MOST_STREAMS || self.streams.contains_key(&stream) {
            let it = self.streams.entry(stream).or_insert(Stream { end: 0, buffer: 0 });
            *it = Stream { end: it.end.max(kernel.end), buffer: self.n_buffers };
        }
    }

    /// A flush is over: every buffer that was begun has come to its end.
    pub(super) fn flush(&mut self) {
        let newest = self.of_ring.iter().max_by_key(|it| it.delivered);
        let all_was_done = newest.is_some_and(|it| it.n_kernels < FULL_BUFFER_KERNELS);
        let until = match self.streams.values().map(|it| it.end).min() {
            Some(of_streams) if !all_was_done && self.flushes_without_kernel < QUIET_FLUSHES => of_streams,
            _ => self.newest_end,
        };
        self.complete_until = self.complete_until.max(until);
        self.flushes_without_kernel = self.flushes_without_kernel.saturating_add(1);
    }

    /// Every kernel that ended by then has come, as of the last flush.
    pub(super) fn complete_until(&self) -> u64 {
        self.complete_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Buffers of one ring; each kernel is its stream and its end.
    fn deliver(buffers: &mut Buffers, at: u64, kernels: impl IntoIterator<Item = (u32, u64)>) {
        buffers.begin(0, at);
        for (stream, end) in kernels {
            buffers.kernel(0, &Kernel { stream, end, ..Kernel::default() });
        }
    }

    /// As many kernels of a stream as fill a buffer but for `room`, the last of which ends then.
    fn filling(stream: u32, end: u64, room: u32) -> impl Iterator<Item = (u32, u64)> {
        (0..FULL_BUFFER_KERNELS - room).rev().map(move |n| (stream, end - u64::from(n)))
    }

    #[test]
    fn a_buffer_that_was_not_full_completes_everything() {
        let mut buffers = Buffers::default();
        deliver(&mut buffers, 1, [(1, 500), (2, 300)]);
        assert_eq!(buffers.complete_until(), 0, "its end is known at the flush");
        buffers.flush();
        assert_eq!(buffers.complete_until(), 500);
    }

    #[test]
    fn after_a_full_buffer_each_stream_may_go_on_from_its_last_kernel() {
        let mut buffers = Buffers::default();
        deliver(&mut buffers, 1, filling(1, 90_000, 1).chain([(2, 40_000)]));
        buffers.flush();
        assert_eq!(buffers.complete_until(), 40_000);
        deliver(&mut buffers, 2, [(2, 41_000)]);
        buffers.flush();
        assert_eq!(buffers.complete_until(), 90_000);
    }

    #[test]
    fn a_stream_that_was_left_holds_nothing_back() {
        let mut buffers = Buffers::default();
        deliver(&mut buffers, 1, filling(1, 90_000, 1).chain([(2, 40_000)]));
        deliver(&mut buffers, 2, filling(1, 190_000, 0));
        buffers.flush();
        assert_eq!(buffers.complete_until(), 40_000);
        deliver(&mut buffers, 3, filling(1, 290_000, 0));
        buffers.flush();
        assert_eq!(buffers.complete_until(), 290_000);
    }

    #[test]
    fn a_last_buffer_that_was_just_full_is_complete_after_quiet_flushes() {
        let mut buffers = Buffers::default();
        deliver(&mut buffers, 1, filling(1, 90_000, 1).chain([(2, 40_000)]));
        (0..QUIET_FLUSHES).for_each(|_| buffers.flush());
        assert_eq!(buffers.complete_until(), 40_000);
        buffers.flush();
        assert_eq!(buffers.complete_until(), 90_000);
    }
}
