//! Buffers of activity records: requested by CUPTI, filled, returned, read.

use super::others::OTHER;
use super::others::clock::{CLOCK, Scale};
use super::pool::{BUFFER_BYTES, Origin, Pool};
use super::records::{self, CuptiRecord, RecordExtent, RecordedKinds};
use super::run::{CuptiBackend, POOL, Run};
use super::twins::Twins;
use super::{FLUSH_FORCED, SUCCESS};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use xputrace_agent::delivery::Delivery;
use xputrace_agent::{Agent, Flushing};
use xputrace_wire::events::{Activity, Realtime};
use xputrace_wire::region::Lost;

/// How long a flush waits for the buffers that CUPTI's own thread is delivering.
const COMPLETION_PATIENCE: Duration = Duration::from_millis(300);

/// How long to wait for the end of kernels that run when we leave, after the last record. A machine may be busy.
const LAST_PATIENCE: Duration = Duration::from_millis(200);
/// The same when another tool, whose thread waits, is to have the records.
const OTHERS_PATIENCE: Duration = Duration::from_millis(20);
const LAST_PERIOD: Duration = Duration::from_millis(2);

/// Takes back a buffer that arrives after its run is over.
pub(super) fn drop_buffer(buffer: *const u8) {
    if let Some(pool) = POOL.get()
        && let Origin::Pool(n) = pool.origin(buffer)
    {
        pool.give_back(n);
    }
}

impl Run {
    /// Reads a completed buffer.
    ///
    /// # Safety
    /// CUPTI filled `valid` bytes at `buffer` and no longer uses them.
    pub(super) unsafe fn complete(&self, buffer: *mut u8, valid: usize) {
        let Some(pool) = POOL.get() else { return };
        let Run { agent, backend, .. } = *self;
        match pool.origin(buffer) {
            Origin::Pool(n) => {
                let _completing = Completing::new(backend, pool, n);
                let scale = CLOCK.scale();
                let extent = RecordExtent::of(backend.cupti.version());
                let twins = backend.twins();
                agent.deliver(valid as u32, BUFFER_BYTES as u32, |delivery| {
                    // SAFETY: the caller promises that CUPTI filled `valid` bytes at `buffer` and no longer uses them.
                    unsafe {
                        backend.for_each_record(buffer, valid, |it| deliver_record(it, extent, scale, twins, delivery))
                    };
                });
            }
            // Several CUPTI threads overwrote each other's records there; only the size is known.
            Origin::Discard => backend.count_unread(agent, valid),
            Origin::Foreign => agent.count_unexpected(),
        }
    }
}

/// # Safety
/// `record` is one that CUPTI stepped to, of this extent, in a buffer that it no longer uses.
unsafe fn deliver_record(
    record: *const u8,
    extent: RecordExtent,
    scale: Option<Scale>,
    twins: Option<&Twins>,
    delivery: &mut Delivery<'_>,
) {
    let is_ours = |context, stream| twins.is_some_and(|it| it.has_stream(context, stream));
    // 0 is a time that CUPTI doesn't tell.
    let convert = |time: Realtime| scale.filter(|_| time.0 != 0).map_or(time, |it| it.realtime(time));
    // SAFETY: the caller promises a record that CUPTI stepped to, of this extent; each is read as its own kind.
    unsafe {
        match records::read(record, extent) {
            // Of a block, and of the GPU's timer.
            CuptiRecord::Memcpy(it) if is_ours(it.context, it.stream) => {}
            CuptiRecord::Kernel(it, _) if is_ours(it.context, it.stream) => {}
            CuptiRecord::Kernel(mut it, name) => {
                (it.start, it.end) = (convert(it.start), convert(it.end));
                (it.queued, it.submitted) = (convert(it.queued), convert(it.submitted));
                delivery.kernel(it, name);
            }
            CuptiRecord::Memset(mut it) => {
                (it.start, it.end) = (convert(it.start), convert(it.end));
                delivery.activity(it);
            }
            CuptiRecord::Memcpy(mut it) => {
                (it.start, it.end) = (convert(it.start), convert(it.end));
                delivery.activity(it);
            }
            CuptiRecord::Graph(mut it) => {
                (it.start, it.end) = (convert(it.start), convert(it.end));
                delivery.activity(it);
            }
            CuptiRecord::Event(mut it, thread) => {
                it.retime(|time| convert(Realtime(time)).0);
                delivery.event(it, thread);
            }
            // Of calls that were under way when another tool disabled its kinds.
            CuptiRecord::Other(_) if OTHER.was_seen() => {}
            CuptiRecord::Other(_) => delivery.unexpected(),
        }
    }
}

impl CuptiBackend {
    /// Counts records that were discarded unread. Exact if all that are recorded have one size, and it
    /// is known; otherwise the number of the largest possible records, a lower bound.
    fn count_unread(&self, agent: &Agent, bytes: usize) {
        let seen = self.kernel_bytes.load(Ordering::Relaxed);
        let kernel_bytes = if seen == 0 { records::MOST_KERNEL_RECORD_BYTES } else { seen };
        let bytes_of = |it: Activity| match it {
            Activity::Kernel => kernel_bytes,
            Activity::Memset => records::memset_record_bytes(self.cupti.version()),
            Activity::Memcpy => records::MOST_MEMCPY_RECORD_BYTES,
            Activity::Graph => records::GRAPH_RECORD_BYTES,
        };
        let all = self.recorded(RecordedKinds::of(agent.demand()));
        let recorded: Vec<Activity> = all.activities.iter().collect();
        match recorded[..] {
            [kind] if all.events.is_empty() && (kind == Activity::Memset || kind == Activity::Kernel && seen != 0) => {
                agent.count_thrown_away(kind, (bytes / bytes_of(kind)) as u64)
            }
            _ => {
                let others = all.event_records().map(|it| it.bytes);
                let largest = recorded.iter().map(|it| bytes_of(*it)).chain(others).max();
                let largest = largest.unwrap_or(records::MOST_KERNEL_RECORD_BYTES);
                agent.count_lost(Lost::Unread, (bytes / largest) as u64);
            }
        }
    }

    /// # Safety
    /// CUPTI filled `valid` bytes at `buffer`.
    unsafe fn for_each_record(&self, buffer: *mut u8, valid: usize, mut each: impl FnMut(*const u8)) {
        let mut record: *mut u8 = std::ptr::null_mut();
        let mut kernel_before = None;
        // SAFETY: the buffer that CUPTI filled, and its own cursor.
        while valid > 0 && unsafe { self.step(buffer, valid, &mut record) } == Some(SUCCESS) && !record.is_null() {
            self.saw_records.store(true, Ordering::Relaxed);
            each(record);
            if let Some(before) = kernel_before {
                self.kernel_bytes.store((record as usize).wrapping_sub(before), Ordering::Relaxed);
            }
            // SAFETY: a record that CUPTI stepped to.
            kernel_before = records::is_kernel(unsafe { records::kind(record) }).then_some(record as usize);
        }
    }

    pub(super) fn flush_activities(&self, agent: &Agent, how: Flushing) -> bool {
        let Some(flush) = self.cupti.flush_all else { return false };
        let flag = if how == Flushing::AtExit { self.forced_flush() } else { 0 };
        // SAFETY: from an ordinary thread of ours or from atexit, no lock held.
        let flush = |flag| unsafe { flush(flag) };
        let answer = flush(flag);
        let mut delivered = self.wait_for_completions();
        match how {
            Flushing::Leaving => delivered &= self.flush_the_rest(agent, flush, LAST_PATIENCE),
            Flushing::HandingOver => delivered &= self.flush_the_rest(agent, flush, OTHERS_PATIENCE),
            Flushing::Regular | Flushing::AtExit => {}
        }
        self.count_dropped(agent);
        if answer != SUCCESS {
            agent.count_unexpected();
        }
        answer == SUCCESS && delivered
    }

    /// Returns the flag of a flush that is forced, unless that harms another subscriber: it takes the records of kernels
    /// that run from each, and they never come again.
    fn forced_flush(&self) -> u32 {
        let is_shared = self.scope().is_some() && OTHER.was_seen();
        if is_shared { 0 } else { FLUSH_FORCED }
    }

    /// Waits for buffers that CUPTI's own thread is completing: they belong to the flush.
    pub(super) fn wait_for_completions(&self) -> bool {
        let until = Instant::now() + COMPLETION_PATIENCE;
        while self.completing.load(Ordering::Acquire) != 0 {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        true
    }

    /// Flushes until CUPTI has returned all buffers. A flush leaves out whole buffers in which one kernel runs, which may
    /// be about to end; once no record has come for a while, such kernels are delivered without their end.
    fn flush_the_rest(&self, agent: &Agent, flush: impl Fn(u32) -> u32, patience: Duration) -> bool {
        let mut delivered = true;
        let has_lent = || POOL.get().is_some_and(Pool::has_lent);
        let (mut last, mut until) = (self.completed(), Instant::now() + patience);
        while has_lent() && !agent.is_exiting() {
            std::thread::sleep(LAST_PERIOD);
            let is_late = Instant::now() >= until;
            flush(if is_late { self.forced_flush() } else { 0 });
            delivered &= self.wait_for_completions();
            if is_late {
                break;
            }
            if self.completed() != last {
                (last, until) = (self.completed(), Instant::now() + patience);
            }
        }
        delivered
    }

    fn completed(&self) -> u32 {
        self.completed.load(Ordering::Acquire)
    }

    fn count_dropped(&self, agent: &Agent) {
        if let Some(dropped) = self.dropped().filter(|it| *it > 0) {
            agent.count_lost(Lost::LibraryDropped, dropped as u64);
        }
    }
}

/// A buffer being delivered: it is always returned, and no flush waits for it afterwards.
struct Completing<'a> {
    backend: &'a CuptiBackend,
    pool: &'a Pool,
    buffer: usize,
}

impl<'a> Completing<'a> {
    fn new(backend: &'a CuptiBackend, pool: &'a Pool, buffer: usize) -> Self {
        backend.completing.fetch_add(1, Ordering::AcqRel);
        Completing { backend, pool, buffer }
    }
}

impl Drop for Completing<'_> {
    fn drop(&mut self) {
        self.backend.completed.fetch_add(1, Ordering::AcqRel);
        self.backend.completing.fetch_sub(1, Ordering::AcqRel);
        self.pool.give_back(self.buffer);
    }
}
