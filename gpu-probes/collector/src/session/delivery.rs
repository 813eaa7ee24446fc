//! Delivery: what CUPTI recorded, from its buffers into the rings.

use super::{BUFFER_PATIENCE, POOL, Session};
use crate::activity::{self, Origin, Pool};
use crate::clock::read_clocks;
use crate::cupti::SUCCESS;
use crate::intern::{NoId, Text};
use crate::output::{self, Output, Patience, Role};
use std::ffi::c_char;
use std::sync::atomic::Ordering;
use xputrace_wire::events::Activity;
use xputrace_wire::record::{Clock, kind};
use xputrace_wire::region::Lost;

impl Session {
    /// Kernels of a completed buffer → the completing thread's ring.
    ///
    /// # Safety
    /// CUPTI filled `valid` bytes at `buffer` and does not use them any more.
    pub(crate) unsafe fn complete(&'static self, buffer: *mut u8, valid: usize) {
        let Some(pool) = POOL.get() else { return };
        match pool.origin(buffer) {
            Origin::Pool(n) => {
                let _completing = Completing::new(self, pool, n);
                // SAFETY: the caller's promise.
                unsafe { self.deliver(buffer, valid) };
            }
            Origin::Discard => {
                // Several threads of CUPTI wrote over each other there: only how much it was is known.
                let lost = (valid / self.record_bytes.load(Ordering::Relaxed)) as u64;
                self.region.count_lost(Lost::ActivityRingFull, lost);
                let kernels = self.region.control().totals.activity(Activity::Kernel);
                kernels.records.fetch_add(lost, Ordering::Relaxed);
            }
            Origin::Foreign => self.count_unexpected(),
        }
    }

    unsafe fn deliver(&'static self, buffer: *mut u8, valid: usize) {
        let mut tally = Tally::default();
        let mut patience = Patience::new(self, BUFFER_PATIENCE);
        let wrote = output::with(self, Role::Service, |out| {
            let clock = Clock { filled: valid as u32, room: activity::BUFFER_BYTES as u32, ..read_clocks() };
            out.write_waiting(&mut patience, kind::CLOCK, &clock, &[]);
            // SAFETY: the caller's promise.
            unsafe {
                self.for_each_record(buffer, valid, |it| self.deliver_record(it, Some(out), &mut patience, &mut tally))
            };
        });
        if wrote.is_none() {
            // SAFETY: as above.
            unsafe {
                self.for_each_record(buffer, valid, |it| self.deliver_record(it, None, &mut patience, &mut tally))
            };
        }
        tally.publish(self);
    }

    unsafe fn for_each_record(&self, buffer: *mut u8, valid: usize, mut each: impl FnMut(*const u8)) {
        let Some(next) = self.cupti.next_record else { return };
        let mut record: *mut u8 = std::ptr::null_mut();
        let mut before = 0;
        // SAFETY: the buffer that CUPTI filled, and its own cursor.
        while valid > 0 && unsafe { next(buffer, valid, &mut record) } == SUCCESS && !record.is_null() {
            each(record);
            let size = (record as usize).wrapping_sub(std::mem::replace(&mut before, record as usize));
            if (activity::KERNEL_RECORD_BYTES..activity::BUFFER_BYTES).contains(&size) {
                self.record_bytes.store(size, Ordering::Relaxed);
            }
        }
    }

    fn deliver_record(&self, record: *const u8, out: Option<&mut Output>, patience: &mut Patience, tally: &mut Tally) {
        // SAFETY: a record that CUPTI stepped to.
        if !activity::is_kernel(unsafe { activity::kind(record) }) {
            tally.unexpected += 1;
            return;
        }
        // SAFETY: a kernel record.
        let (mut kernel, name) = unsafe { activity::kernel(record) };
        tally.kernels += 1;
        tally.kernel_nanos += kernel.end.since(kernel.start);
        tally.no_timestamps += u64::from(kernel.end.0 == 0);
        let Some(out) = out else {
            tally.no_ring += 1;
            return;
        };
        kernel.symbol = self.kernel_name(name, out, patience, tally);
        tally.ring_full += u64::from(!out.write_waiting(patience, kind::KERNEL, &kernel, &[]));
    }

    fn kernel_name(&self, name: *const c_char, out: &mut Output, patience: &mut Patience, tally: &mut Tally) -> u32 {
        if name.is_null() {
            return 0;
        }
        let tell = |id, text: &[u8]| {
            let body = xputrace_wire::record::Name { id, len: text.len() as u32 };
            out.write_waiting(patience, kind::NAME, &body, text)
        };
        // SAFETY: CUPTI's name of a kernel, a C string.
        match unsafe { self.names.intern(name, Text::Symbol, tell) } {
            Ok(id) => id,
            Err(NoId::TableFull) => {
                tally.name_table_full += 1;
                0
            }
            Err(NoId::NotTold) => 0,
        }
    }
}

/// What one buffer held.
#[derive(Debug, Default)]
struct Tally {
    kernels: u64,
    kernel_nanos: u64,
    no_timestamps: u64,
    no_ring: u64,
    ring_full: u64,
    name_table_full: u64,
    unexpected: u64,
}

impl Tally {
    fn publish(&self, session: &Session) {
        session.kernels_seen.fetch_add(self.kernels, Ordering::Relaxed);
        let totals = &session.region.control().totals;
        let kernels = totals.activity(Activity::Kernel);
        kernels.records.fetch_add(self.kernels, Ordering::Relaxed);
        kernels.nanos.fetch_add(self.kernel_nanos, Ordering::Relaxed);
        for (what, n) in [
            (Lost::NoTimestamps, self.no_timestamps),
            (Lost::NoRing, self.no_ring),
            (Lost::ActivityRingFull, self.ring_full),
            (Lost::NameTableFull, self.name_table_full),
            (Lost::Unexpected, self.unexpected),
        ] {
            if n > 0 {
                session.region.count_lost(what, n);
            }
        }
    }
}

/// A buffer that is being delivered: whatever happens, it is given back, and no flush waits for it.
struct Completing<'a> {
    session: &'a Session,
    pool: &'a Pool,
    buffer: usize,
}

impl<'a> Completing<'a> {
    fn new(session: &'a Session, pool: &'a Pool, buffer: usize) -> Self {
        session.completing.fetch_add(1, Ordering::AcqRel);
        Completing { session, pool, buffer }
    }
}

impl Drop for Completing<'_> {
    fn drop(&mut self) {
        self.session.completing.fetch_sub(1, Ordering::AcqRel);
        self.pool.give_back(self.buffer);
    }
}
