//! The calling thread's end of its ring: how records are written there.

use super::run_address::RunAddress;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use xputrace_unwind::{Description, FIRST_PAGE};
use xputrace_wire::record::{self, MAX_BUILD_ID, MAX_NAME, Thread, encode, encode_parts, kind, size_of_record};
use xputrace_wire::ring::Writer;
use zerocopy::{Immutable, IntoBytes};

// The tracer compares no more of a file than this.
const _: () = assert!(FIRST_PAGE as usize <= record::MAX_CHECKED_BYTES);

/// The calling thread's end of its ring.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) run: RunAddress,
    pub(crate) writer: Option<Writer>,
    pub(crate) ring: u32,
    pub(crate) tid: u32,
    /// Value of `SharedMemory::released` when no ring was left.
    pub(crate) released_seen: Option<u64>,
}

impl Output {
    /// Of a thread without a ring. The end of a thread with one releases it.
    pub(crate) const NONE: Output =
        Output { run: RunAddress::NONE, writer: None, ring: 0, tid: 0, released_seen: None };

    /// Returns the index of the ring, which is also its slot in the tag array.
    pub(crate) fn ring(&self) -> u32 {
        self.ring
    }

    /// Writes a record, or nothing if it does not fit.
    #[inline(always)]
    pub(crate) fn write<T: IntoBytes + Immutable>(&mut self, kind: u16, body: &T, tail: &[u8]) -> bool {
        let Some(writer) = &mut self.writer else { return false };
        writer.write(size_of_record::<T>(tail.len()), |out| encode(kind, body, tail, out))
    }

    /// Writes a record, waiting for the tracer to make room. Never use it on the launch path.
    pub(crate) fn write_waiting<T: IntoBytes + Immutable>(
        &mut self,
        patience: &mut Patience,
        kind: u16,
        body: &T,
        tail: &[u8],
    ) -> bool {
        loop {
            if self.write(kind, body, tail) {
                patience.renew();
                return true;
            }
            if !patience.wait() {
                return false;
            }
        }
    }

    pub(crate) fn write_name(&mut self, id: u32, text: &[u8]) -> bool {
        self.write(kind::NAME, &record::Name { id, len: text.len() as u32 }, text)
    }

    pub(crate) fn write_code(&mut self, id: u32, parts: &[&[u8]]) -> bool {
        let len: usize = parts.iter().map(|it| it.len()).sum();
        self.write_parts(kind::CODE, &record::Code { id, len: len as u32 }, parts)
    }

    /// Writes a stack; `objects` are the ids of the files that its frames are in.
    pub(crate) fn write_stack(&mut self, id: u32, frames: &[u64], end: u16, objects: &[u32]) -> bool {
        // x86-64 is little endian, as the record is.
        let n_objects = objects.len() as u32;
        let parts = [frames.as_bytes(), n_objects.as_bytes(), objects.as_bytes()];
        self.write_parts(kind::STACK, &record::Stack { id, len: frames.len() as u16, end }, &parts)
    }

    fn write_parts<T: IntoBytes + Immutable>(&mut self, kind: u16, body: &T, parts: &[&[u8]]) -> bool {
        let Some(writer) = &mut self.writer else { return false };
        let len = parts.iter().map(|it| it.len()).sum();
        writer.write(size_of_record::<T>(len), |out| encode_parts(kind, body, parts, out))
    }

    /// Writes what a file is that is mapped; `directory` is where relative paths began when the process was armed.
    pub(crate) fn write_object(&mut self, id: u32, range: Range<u64>, it: &Description<'_>, directory: &[u8]) -> bool {
        let is_relative = !it.path.is_empty() && !it.path.starts_with(b"/");
        let directory = if is_relative && directory.len() <= MAX_NAME { directory } else { &[] };
        let build_id = if it.build_id.len() <= MAX_BUILD_ID { it.build_id } else { &[] };
        let path = &it.path[..it.path.len().min(MAX_NAME)];
        let object = record::MappedObject {
            id,
            build_id_len: build_id.len() as u16,
            path_len: path.len() as u16,
            start: range.start,
            end: range.end,
            base: it.base,
            check: record::check_of_file(it.first_bytes),
            checked_bytes: it.first_bytes.len() as u32,
            directory_len: directory.len() as u32,
        };
        self.write_parts(kind::OBJECT, &object, &[build_id, path, directory])
    }

    pub(crate) fn write_comm(&mut self) {
        let mut comm = [0u8; 16];
        // SAFETY: Linux writes at most 16 bytes.
        unsafe { libc::prctl(libc::PR_GET_NAME, comm.as_mut_ptr()) };
        self.write(kind::THREAD, &Thread { tid: self.tid, reserved: 0, comm }, &[]);
    }
}

/// How long a writer off the launch path may wait for room: for a tracer that does not read. One that does is waited for
/// several times as long.
#[derive(Debug)]
pub(crate) struct Patience {
    is_tracer_gone: &'static AtomicBool,
    /// For the next room.
    at_most: Duration,
    until: Instant,
    /// In total.
    last: Instant,
    has_waited: bool,
}

impl Patience {
    pub(crate) fn new(is_tracer_gone: &'static AtomicBool, at_most: Duration) -> Self {
        const MOST_RENEWALS: u32 = 8;
        let now = Instant::now();
        Patience {
            is_tracer_gone,
            at_most,
            until: now + at_most,
            last: now + at_most * MOST_RENEWALS,
            has_waited: false,
        }
    }

    /// Notes that there was room: if it was waited for, the tracer reads.
    #[inline]
    fn renew(&mut self) {
        if std::mem::take(&mut self.has_waited) {
            self.until = (Instant::now() + self.at_most).min(self.last);
        }
    }

    /// Sleeps briefly; returns false if the time is up or nobody reads.
    fn wait(&mut self) -> bool {
        if self.is_tracer_gone.load(Ordering::Relaxed) || Instant::now() >= self.until {
            return false;
        }
        self.has_waited = true;
        std::thread::sleep(Duration::from_micros(200));
        true
    }
}
