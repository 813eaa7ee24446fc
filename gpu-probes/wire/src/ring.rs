//! A byte ring with one writer and one reader in different processes.
//!
//! Positions only grow and are taken modulo the capacity. Records never wrap: the writer fills the
//! end with a pad record instead. Neither side trusts the other's position beyond its own bounds,
//! so a broken peer only loses data.
#![allow(unsafe_code, reason = "a ring is raw memory that two processes share")]

use crate::record::{Header, kind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use zerocopy::IntoBytes;

/// Precedes a ring's data in shared memory; writer and reader have separate cache lines.
#[repr(C, align(64))]
#[derive(Default, Debug)]
pub struct RingHeader {
    /// Total bytes written.
    pub written: AtomicU64,
    /// Thread that owns the ring, 0 if none.
    pub owner: AtomicU32,
    _pad: [u32; 13],
    /// Total bytes read.
    pub read: Line,
}

/// A word with a cache line of its own.
#[repr(C, align(64))]
#[derive(Default, Debug)]
pub struct Line(pub AtomicU64);

/// The writing end.
#[derive(Debug)]
pub struct Writer {
    header: *const RingHeader,
    data: *mut u8,
    capacity: u64,
    /// Cached copy of the reader's position.
    read: u64,
}

// SAFETY: the pointers are to shared memory that outlives the writer, and only one writer exists.
unsafe impl Send for Writer {}

impl Writer {
    /// # Safety
    /// `header` and `capacity` bytes at `data` stay mapped and writable while the writer lives;
    /// `capacity` is a power of two; there is no other writer.
    pub unsafe fn new(header: *const RingHeader, data: *mut u8, capacity: u32) -> Self {
        // SAFETY: the caller promises that `header` is mapped while the writer lives.
        let read = unsafe { (*header).read.0.load(Ordering::Acquire) };
        Writer { header, data, capacity: u64::from(capacity), read }
    }

    fn header(&self) -> &RingHeader {
        // SAFETY: `new`'s contract.
        unsafe { &*self.header }
    }

    /// Writes a record of `size` bytes (a multiple of 8), which `fill` encodes. Returns false and
    /// writes nothing if there is no room. Never blocks, never allocates.
    #[inline]
    pub fn write(&mut self, size: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        let written = self.header().written.load(Ordering::Relaxed);
        let at = written & (self.capacity - 1);
        let to_end = self.capacity - at;
        let size64 = size as u64;
        let pad = if size64 > to_end { to_end } else { 0 };
        if size64 > self.capacity || !self.has_room(written, size64 + pad) {
            return false;
        }
        if pad > 0 {
            self.write_pad(at, pad);
        }
        let at = (written + pad) & (self.capacity - 1);
        // SAFETY: `at + size <= capacity`, and the reader does not look here before the store below.
        fill(unsafe { std::slice::from_raw_parts_mut(self.data.add(at as usize), size) });
        self.header().written.store(written + pad + size64, Ordering::Release);
        true
    }

    #[inline]
    fn has_room(&mut self, written: u64, need: u64) -> bool {
        let free = |read: u64| self.capacity.saturating_sub(written.saturating_sub(read));
        if free(self.read) >= need {
            return true;
        }
        self.read = self.header().read.0.load(Ordering::Acquire).min(written);
        self.capacity.saturating_sub(written - self.read) >= need
    }

    #[cold]
    fn write_pad(&mut self, at: u64, size: u64) {
        let header = Header { kind: kind::PAD, flags: 0, size: size as u32 };
        // SAFETY: positions and sizes are multiples of 8, so at least a header fits before the end.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.data.add(at as usize), size_of::<Header>()) };
        bytes.copy_from_slice(header.as_bytes());
    }
}

/// The reading end.
#[derive(Debug)]
pub struct Reader {
    header: *const RingHeader,
    data: *const u8,
    capacity: u64,
    read: u64,
}

// SAFETY: as for the writer.
unsafe impl Send for Reader {}

impl Reader {
    /// # Safety
    /// As for [`Writer::new`], but with the data readable and the header writable.
    pub unsafe fn new(header: *const RingHeader, data: *const u8, capacity: u32) -> Self {
        Reader { header, data, capacity: u64::from(capacity), read: 0 }
    }

    fn header(&self) -> &RingHeader {
        // SAFETY: `new`'s contract.
        unsafe { &*self.header }
    }

    /// Returns the total bytes written so far. Pass it to [`Reader::take`] to read up to this
    /// point.
    pub fn mark(&self) -> u64 {
        self.header().written.load(Ordering::Acquire)
    }

    /// Appends the bytes written up to `mark` to `out` and frees their room. If `mark` is
    /// impossible (a broken writer), skips to it and returns false.
    pub fn take(&mut self, mark: u64, out: &mut Vec<u8>) -> bool {
        let available = mark.wrapping_sub(self.read);
        let sound = available <= self.capacity;
        if sound {
            let at = self.read & (self.capacity - 1);
            let first = available.min(self.capacity - at);
            self.copy(at, first, out);
            self.copy(0, available - first, out);
        }
        self.read = mark;
        self.header().read.0.store(mark, Ordering::Release);
        sound
    }

    fn copy(&self, at: u64, len: u64, out: &mut Vec<u8>) {
        let len = len as usize;
        out.reserve(len);
        let end = out.len();
        // SAFETY: `at + len <= capacity`; bytes written by another process are plain data, copied
        // once, and looked at only in our copy.
        unsafe {
            std::ptr::copy_nonoverlapping(self.data.add(at as usize), out.as_mut_ptr().add(end), len);
            out.set_len(end + len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Launch, Record, encode, kind, records, size_of_record};
    use std::sync::Arc;

    struct Memory {
        header: RingHeader,
        data: Vec<u64>,
    }

    fn ring(capacity: u32) -> (Arc<Memory>, Writer, Reader) {
        let memory = Arc::new(Memory { header: RingHeader::default(), data: vec![0; capacity as usize / 8] });
        let data = memory.data.as_ptr() as *mut u8;
        // SAFETY: the memory is kept by the caller as long as both ends.
        unsafe {
            let writer = Writer::new(&memory.header, data, capacity);
            let reader = Reader::new(&memory.header, data, capacity);
            (memory, writer, reader)
        }
    }

    fn write(writer: &mut Writer, n: u32) -> bool {
        let launch = Launch { correlation: n, ..Default::default() };
        writer.write(size_of_record::<Launch>(0), |out| encode(kind::LAUNCH, &launch, &[], out))
    }

    #[test]
    fn a_full_ring_refuses_and_goes_on_after_reading() {
        let (_memory, mut writer, mut reader) = ring(4096);
        let fitted = (0..1000).take_while(|&n| write(&mut writer, n)).count();
        assert_eq!(fitted, 4096 / size_of_record::<Launch>(0));
        let mut out = Vec::new();
        assert!(reader.take(reader.mark(), &mut out));
        assert_eq!(records(&out).count(), fitted);
        assert!(write(&mut writer, 0));
    }

    #[test]
    fn every_record_crosses_between_threads_in_order() {
        let (_memory, mut writer, mut reader) = ring(8192);
        let total = 200_000u32;
        let producer = std::thread::spawn(move || {
            let mut n = 0;
            while n < total {
                if write(&mut writer, n) {
                    n += 1;
                } else {
                    std::thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        let mut out = Vec::new();
        while expected < total {
            out.clear();
            assert!(reader.take(reader.mark(), &mut out));
            for record in records(&out) {
                let Ok(Record::Launch(launch)) = record else { panic!("{record:?}") };
                assert_eq!(launch.correlation, expected);
                expected += 1;
            }
        }
        producer.join().unwrap();
    }

    #[test]
    fn an_impossible_position_is_refused() {
        let (_memory, mut writer, mut reader) = ring(4096);
        write(&mut writer, 1);
        let mut out = Vec::new();
        assert!(!reader.take(1 << 40, &mut out));
        assert!(out.is_empty());
    }
}
