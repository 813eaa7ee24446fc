//! The GPU's timer in each context: measured where that is prepared, and as its block is copied.

use super::code::{DriverResult, INVALID};
use super::lease::Lease;
use super::state::Twins;
use super::timer::Calls;
use crate::cupti::run::CuptiBackend;
use std::sync::atomic::Ordering;
use xputrace_agent::Agent;
use xputrace_wire::record::UNKNOWN;

impl Calls for Lease<'_> {
    fn call<T>(&self, call: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
        Lease::call(self, call)
    }
}

impl Twins {
    /// Loads what reads the GPU's timer into a context, and measures it.
    pub(super) fn begin_clock(&self, backend: &CuptiBackend, agent: &Agent, slot: usize) {
        let is_read = agent.device_region().is_some_and(|it| it.place_of_clock_offset().is_some());
        if !is_read || !self.has_block(slot) {
            return;
        }
        let lease = Lease::new(self).in_context(slot);
        let _ = lease.run(backend, || {
            let stream = || {
                let (stream, id) =
                    // SAFETY: in the context.
                    self.stream_with_id(backend, slot, lease, || unsafe { backend.driver.code.urgent_stream() })?;
                self.contexts.state(slot).timer_stream_id.store(id, Ordering::Release);
                // Without its id, what runs there would be taken for the program's.
                if id == UNKNOWN { Err(INVALID) } else { Ok(stream) }
            };
            self.contexts.state(slot).timer().load(&backend.driver.code, &lease, stream);
            Ok(())
        });
        self.set_clock(backend, agent, slot);
    }

    /// Measures the GPU's timer, if it is time to, and tells handlers and the tracer.
    pub(super) fn set_clock(&self, backend: &CuptiBackend, agent: &Agent, slot: usize) {
        let Some(region) = agent.device_region().filter(|_| self.has_block(slot)) else { return };
        let Some(at) = region.place_of_clock_offset() else { return };
        let (code, state) = (&backend.driver.code, self.contexts.state(slot));
        let (block, stream) = (state.block.load(Ordering::Acquire), state.stream.load(Ordering::Acquire));
        let lease = Lease::new(self).in_context(slot);
        let was_read = region.control().slots[slot].swapped.load(Ordering::Relaxed) > 0;
        let mut timer = state.timer();
        // SAFETY: a word of the block, bytes that live until the copy is done, and our own stream; in the context.
        let write = |bytes: [u8; 8]| unsafe {
            lease.call(|| code.write(block + at, bytes.as_ptr(), bytes.len(), stream)).is_ok()
                && lease.call(|| code.wait_for(stream)).is_ok()
        };
        if !timer.has_work() {
            return;
        }
        let _ = lease.run(backend, || {
            timer.bring_up_to_date(code, &lease, was_read, write);
            region.tell_clock(slot, timer.written_nanos(), timer.error_nanos());
            Ok(())
        });
    }
}
