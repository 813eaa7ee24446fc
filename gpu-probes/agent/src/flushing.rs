//! Flushing: the backend delivers what it holds back, and the tracer is told how far that reaches.

use super::clock::now;
use super::stack::Stacks;
use super::state::counters::Counters;
use super::{Agent, Flushing, ranges};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use xputrace_wire::message::demand;
use xputrace_wire::record::{Flush, Gpu, GpuLimits, kind};

impl Agent {
    /// Asks the backend for everything finished, then writes a Flush record.
    pub(crate) fn flush(&'static self, how: Flushing) {
        if !self.is_ours() {
            return;
        }
        let _flushing = Raised::new(&self.life.flushing);
        let began = now();
        // Launches under way may have submitted what has ended, and that may be in a buffer that is not delivered yet.
        let until = self.oldest_call_began().map_or(began, |it| it.min(began));
        let flushed = self.backend.flush(self, how);
        // A thread may have entered a call before the flush began, and have been held up before it said so.
        let until = until.min(self.settled_until(began));
        let until = self.oldest_call_began().map_or(until, |it| it.min(until));
        self.publish_totals();
        // Behind the flush: whatever it delivered ran on GPUs that are known by now.
        self.tell_gpus();
        self.tell_openings();
        if self.code.mappings.changed() {
            self.refresh_code();
            self.send_mappings();
        }
        let last = how != Flushing::Regular;
        if flushed || last {
            // Before its record is written: the tracer tells by this number whether it may see the record, and not yet
            // all that precedes it in other rings.
            self.memory.region.control().totals.flushes.fetch_add(1, Ordering::SeqCst);
            self.write_waiting(kind::FLUSH, &Flush { began: until, last: u64::from(last) }, &[]);
        }
    }

    /// Sums the rings' counters into the control page.
    pub(crate) fn publish_totals(&self) {
        self.memory.region.control().window.ranges.store(self.ranges.map_or(0, |it| it.opened()), Ordering::Relaxed);
        ranges::publish(self);
        let totals = &self.memory.region.control().totals;
        let publish = |to: &AtomicU64, of: &dyn Fn(&Counters) -> &AtomicU64| {
            to.store(self.memory.counters.iter().map(|it| of(it).load(Ordering::Relaxed)).sum(), Ordering::Relaxed);
        };
        for (at, calls) in totals.calls.iter().enumerate() {
            publish(&calls.made, &|it| &it.calls[at].made);
            publish(&calls.failed, &|it| &it.calls[at].failed);
            publish(&calls.captured, &|it| &it.calls[at].captured);
        }
        for (at, made) in totals.host_events.iter().enumerate() {
            publish(made, &|it| &it.host_events[at]);
        }
        publish(&totals.callback_nanos, &|it| &it.callback_nanos);
        publish(&totals.stacks, &|it| &it.stacks);
    }

    /// Reads what is mapped now, as far as launches need it.
    pub(crate) fn refresh_code(&self) {
        self.code.stacks.iter().for_each(Stacks::refresh);
    }

    pub(crate) fn send_mappings(&'static self) {
        if self.wants(demand::MAPPINGS) {
            self.code.mappings.send(|mapping, path| self.write_waiting(kind::MAPPING, mapping, path));
        }
    }

    /// Says when the gate for launches was opened since the last time.
    fn tell_openings(&'static self) {
        if let Some(opened) = self.window.take_openings() {
            self.write_waiting(kind::OPENED, &opened, &[]);
        }
    }

    /// Says which GPUs this process has, once, as soon as that is known.
    pub(crate) fn tell_gpus(&'static self) {
        if !self.gpus_told.load(Ordering::Acquire) {
            let mut tell =
                |gpu: &Gpu, limits: &GpuLimits, name: &[u8]| self.write_waiting(kind::GPU, gpu, &limits.after(name));
            self.gpus_told.store(self.backend.each_gpu(&mut tell), Ordering::Release);
        }
    }
}

/// A flag that is set until this is dropped.
struct Raised<'a>(&'a AtomicBool);

impl<'a> Raised<'a> {
    fn new(flag: &'a AtomicBool) -> Self {
        flag.store(true, Ordering::Release);
        Raised(flag)
    }
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
