//! Reading the BPF ring buffer.
//!
//! ```text
//! page 0: consumer position (ours)   page 1: producer position   then the data, mapped twice
//! ```
//! Records are an 8-byte header (length with two flag bits), then the bytes, rounded up to 8.
//! Because the data are mapped twice, a record is contiguous even where it wraps.
//! Source: `kernel/bpf/ringbuf.c`.

use crate::sys::{self, RingPages};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
const HEADER_BYTES: u64 = 8;

/// The reading end of a ring buffer map.
#[derive(Debug)]
pub(crate) struct Ring {
    fd: OwnedFd,
    consumer: RingPages,
    producer: RingPages,
    data_at: usize,
    mask: u64,
}

impl Ring {
    /// `bytes` is the map's `max_entries`, a power of two.
    pub(crate) fn new(fd: OwnedFd, bytes: u32) -> io::Result<Ring> {
        let page = sys::page_size();
        let consumer = RingPages::new(fd.as_fd(), page, 0, true)?;
        let producer = RingPages::new(fd.as_fd(), page + 2 * bytes as usize, page, false)?;
        Ok(Ring { fd, consumer, producer, data_at: page, mask: u64::from(bytes) - 1 })
    }

    /// Returns the descriptor to wait on.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Passes on every record that is complete when it is called, in order. Returns `false` if a
    /// record that is still being written holds back others.
    pub(crate) fn drain(&mut self, on_record: &mut dyn FnMut(&[u8])) -> bool {
        // Producers may be faster than we are. Leave new records for the next call, so that a flood
        // doesn't block the caller.
        let end = self.position(&self.producer).load(Ordering::Acquire);
        let mut at = self.position(&self.consumer).load(Ordering::Relaxed);
        while at < end {
            let header = self.header(at).load(Ordering::Acquire);
            if header & BUSY != 0 {
                return false;
            }
            let len = header & !(BUSY | DISCARDED);
            if header & DISCARDED == 0 {
                on_record(self.record(at, len));
            }
            at += (u64::from(len) + HEADER_BYTES).next_multiple_of(8);
            self.position(&self.consumer).store(at, Ordering::Release);
        }
        true
    }

    fn position<'a>(&self, page: &'a RingPages) -> &'a AtomicU64 {
        // SAFETY: the first 8 bytes of both pages are a position that Linux accesses
        // atomically, and the mapping outlives the reference.
        unsafe { AtomicU64::from_ptr(page.at(0).cast()) }
    }

    fn header(&self, at: u64) -> &AtomicU32 {
        // SAFETY: the masked position is inside the data and 8-byte aligned.
        unsafe { AtomicU32::from_ptr(self.producer.at(self.data_at + (at & self.mask) as usize).cast()) }
    }

    fn record(&self, at: u64, len: u32) -> &[u8] {
        let len = u64::from(len).min(self.mask) as usize;
        let start = self.producer.at(self.data_at + ((at + HEADER_BYTES) & self.mask) as usize);
        // SAFETY: a record is at most as long as the ring, and the data are mapped twice in a
        // row, so the bytes are inside the mapping; Linux does not write to a record that
        // is complete before the consumer position has passed it.
        unsafe { std::slice::from_raw_parts(start, len) }
    }
}
