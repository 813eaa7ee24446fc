//! The beginning of a run in this process.

use super::Agent;
use super::agent::{CURRENT, Setup};
use super::backend::{ArmRefusal, Backend};
use super::phase::Phase;
use std::sync::atomic::Ordering;
use xputrace_wire::events::{HostEvent, HostEvents};
use xputrace_wire::message::demand;
use xputrace_wire::record::{Gpu, Thread, UNKNOWN, kind};

/// Returns the bits of the demand that can be recorded: the backend's, and those that the agent serves itself.
pub(crate) fn recordable(backend: &dyn Backend) -> u64 {
    let of_launches = demand::STACKS | demand::PYTHON | demand::RANGES | demand::ENDS | demand::OUTERMOST;
    let of_calls = demand::HOST_STACKS | demand::HOST_PYTHON;
    let ranges = demand::host_events(HostEvents::of(&[HostEvent::Range]));
    demand::SWITCHED | of_launches | of_calls | ranges | demand::MARKER | demand::MAPPINGS | backend.capabilities()
}

impl Agent {
    /// Arms what the demand says, and makes the agent the current one.
    ///
    /// # Errors
    /// The backend refused; everything done so far is undone.
    pub(crate) fn arm(setup: Setup) -> Result<&'static Agent, ArmRefusal> {
        let agent: &'static Agent = Box::leak(Box::new(Agent::new(setup)?));
        agent.refresh_code();
        CURRENT.store(std::ptr::from_ref(agent).cast_mut(), Ordering::Release);
        // Start recording before the backend does, so that nothing it delivers is rejected.
        agent.life.phase.set(Phase::Armed);
        if let Err(refusal) = agent.backend.start(agent).and_then(|()| agent.settle()) {
            agent.abandon();
            agent.give_back();
            return Err(refusal);
        }
        agent.write_first_records();
        Ok(agent)
    }

    /// Undoes arming if it cannot continue.
    pub(crate) fn abandon(&'static self) {
        self.life.phase.set(Phase::Left);
        self.device.close();
        self.backend.abandon(self);
        self.forget();
        self.life.gone.store(true, Ordering::Release);
    }

    fn write_first_records(&'static self) {
        let mut comm = [0u8; 16];
        if let Ok(text) = std::fs::read("/proc/self/comm") {
            let text = text.strip_suffix(b"\n").unwrap_or(&text);
            let len = text.len().min(comm.len() - 1);
            comm[..len].copy_from_slice(&text[..len]);
        }
        let thread = Thread { tid: self.life.pid, reserved: 0, comm };
        self.write_waiting(kind::THREAD, &thread, &[]);
        self.write_waiting(kind::GPU, &Gpu { device: UNKNOWN, ..Gpu::default() }, &[]);
        self.code.mappings.changed();
        self.send_mappings();
    }
}
