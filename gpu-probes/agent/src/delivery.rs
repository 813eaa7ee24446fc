//! Delivery: from the backend's buffers into the rings.

use super::Agent;
use super::clock::read_clocks;
use super::intern::{NoId, TextKind};
use super::output::{self, BUFFER_PATIENCE, RingRole};
use super::state::output::{Output, Patience};
use std::ffi::c_char;
use std::sync::atomic::Ordering;
use xputrace_wire::events::{Activity, HostEventRecord, HostEvents};
use xputrace_wire::message::demand;
use xputrace_wire::record::{ActivityRecord, Clock, Kernel, kind};
use xputrace_wire::region::Lost;
use zerocopy::{Immutable, IntoBytes};

impl Agent {
    /// Takes a buffer of activities with `filled` of `room` bytes in use; `each` passes them to the
    /// delivery one by one.
    pub fn deliver(&'static self, filled: u32, room: u32, each: impl FnOnce(&mut Delivery<'_>)) {
        let mut each = Some(each);
        let wrote = output::with(self, RingRole::Service, |out| {
            let mut patience = self.patience(BUFFER_PATIENCE);
            let clock = Clock { filled, room, ..read_clocks() };
            out.write_waiting(&mut patience, kind::CLOCK, &clock, &[]);
            self.tally(Some(out), patience, each.take())
        });
        // Without a ring they are still counted.
        let tally = wrote.unwrap_or_else(|| self.tally(None, self.patience(BUFFER_PATIENCE), each.take()));
        tally.publish(self);
    }

    fn tally<'a>(
        &'static self,
        out: Option<&'a mut Output>,
        patience: Patience,
        each: Option<impl FnOnce(&mut Delivery<'a>)>,
    ) -> Tally {
        let mut delivery = Delivery { agent: self, out, patience, tally: Tally::default() };
        if let Some(each) = each {
            each(&mut delivery);
        }
        delivery.tally
    }

    /// Counts activities that were discarded unread.
    pub fn count_thrown_away(&self, kind: Activity, n: u64) {
        self.count_lost(Lost::ActivityRingFull, n);
        self.memory.region.control().totals.activity(kind).records.fetch_add(n, Ordering::Relaxed);
    }
}

/// A buffer being written into the rings.
#[derive(Debug)]
pub struct Delivery<'a> {
    agent: &'static Agent,
    out: Option<&'a mut Output>,
    patience: Patience,
    tally: Tally,
}

impl Delivery<'_> {
    /// Delivers a kernel with its mangled name.
    ///
    /// # Safety
    /// `name` is null or a C string.
    pub unsafe fn kernel(&mut self, mut kernel: Kernel, name: *const c_char) {
        if self.count(&kernel.into()) {
            // SAFETY: the caller promises that `name` is null or a C string.
            let symbol = unsafe { self.name(name) };
            kernel.symbol = symbol.unwrap_or(0);
            let is_written = self.write(&kernel);
            self.tally.name_table_full += u64::from(is_written && symbol.is_err());
        }
    }

    /// Delivers an activity without a name.
    pub fn activity<T: Into<ActivityRecord> + IntoBytes + Immutable + Copy>(&mut self, record: T) {
        if self.count(&record.into()) {
            self.write(&record);
        }
    }

    /// Delivers an event that the backend has a record of, if it is asked for, and counts it. It is one of the thread that
    /// pthreads calls `thread`, or of the process.
    pub fn event(&mut self, mut record: HostEventRecord, thread: Option<u32>) {
        record.set_thread(thread.and_then(|it| self.agent.thread_called(it)).unwrap_or_else(std::process::id));
        let event = record.kind();
        if !demand::host_events_of(self.agent.demand()).contains(event) {
            return;
        }
        // A body of any type goes where a record's variable end does.
        const NO_BYTES: [u8; 0] = [];
        let (kind, body) = (event.record_kind(), record.body());
        let is_written =
            self.out.as_mut().is_some_and(|it| it.write_waiting(&mut self.patience, kind, &NO_BYTES, body));
        let events = HostEvents::of(&[event]);
        let lost = if is_written { HostEvents::NONE } else { events };
        output::count_host_events(self.agent, events, lost, self.out.as_ref().map(|it| it.ring()));
    }

    /// Counts a record that was not requested.
    pub fn unexpected(&mut self) {
        self.tally.unexpected += 1;
    }

    /// Counts a record; returns whether it is to be written to a ring, and there is one. Of activities that are recorded
    /// only as nodes of graphs, others are dropped.
    fn count(&mut self, record: &ActivityRecord) -> bool {
        let is_asked = demand::activities_of(self.agent.demand()).contains(record.activity());
        if !is_asked && record.graph_of_node().is_none() {
            return false;
        }
        let of_kind = &mut self.tally.activities[record.activity().index()];
        of_kind.0 += 1;
        of_kind.1 += record.end().since(record.start());
        self.tally.no_timestamps += u64::from(record.end().0 == 0);
        self.tally.no_ring += u64::from(self.out.is_none());
        self.out.is_some()
    }

    /// Returns whether the record found room.
    fn write<T: Into<ActivityRecord> + IntoBytes + Immutable + Copy>(&mut self, record: &T) -> bool {
        let kind = (*record).into().activity().record_kind();
        let Some(out) = &mut self.out else { return false };
        let is_written = out.write_waiting(&mut self.patience, kind, record, &[]);
        self.tally.ring_full += u64::from(!is_written);
        is_written
    }

    /// Returns the id of a kernel's mangled name, 0 if there is none.
    ///
    /// # Safety
    /// `name` is null or a C string.
    unsafe fn name(&mut self, name: *const c_char) -> Result<u32, NoId> {
        let Some(out) = self.out.as_mut().filter(|_| !name.is_null()) else { return Ok(0) };
        let patience = &mut self.patience;
        let tell = |id, text: &[u8]| {
            let body = xputrace_wire::record::Name { id, len: text.len() as u32 };
            out.write_waiting(patience, kind::NAME, &body, text)
        };
        // SAFETY: the caller promises that `name`, which is not null here, is a C string.
        unsafe { self.agent.tables.names.intern(name, TextKind::Symbol, tell) }
    }
}

/// The contents of one buffer.
#[derive(Debug, Default)]
struct Tally {
    /// Records and nanoseconds, by [`Activity::index`].
    activities: [(u64, u64); Activity::COUNT],
    no_timestamps: u64,
    no_ring: u64,
    ring_full: u64,
    name_table_full: u64,
    unexpected: u64,
}

impl Tally {
    fn publish(&self, agent: &Agent) {
        let totals = &agent.memory.region.control().totals;
        for (of_kind, (records, nanos)) in totals.activities.iter().zip(self.activities) {
            of_kind.records.fetch_add(records, Ordering::Relaxed);
            of_kind.nanos.fetch_add(nanos, Ordering::Relaxed);
        }
        for (what, n) in [
            (Lost::NoTimestamps, self.no_timestamps),
            (Lost::NoRing, self.no_ring),
            (Lost::ActivityRingFull, self.ring_full),
            (Lost::NameTableFull, self.name_table_full),
            (Lost::Unexpected, self.unexpected),
        ] {
            if n > 0 {
                agent.count_lost(what, n);
            }
        }
    }
}
