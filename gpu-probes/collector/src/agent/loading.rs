//! Modules, code for the GPU, that a program loads and unloads: written by the thread in whose call that happens.

use super::Agent;
use super::clock::now;
use super::launch::{self, current_ranges};
use super::output;
use super::stack::StackTaken;
use xputrace_unwind::Pushed;
use xputrace_wire::events::host::{Common, Module};
use xputrace_wire::events::{HostEvent, HostEvents, ModuleKind};
use xputrace_wire::message::demand;

/// What happens to a module.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The backend's number of it.
    pub module: u32,
    /// The size of its code where it was loaded, `None` where it is about to be unloaded.
    pub bytes: Option<u64>,
}

impl Agent {
    /// Records a module that was loaded or is about to be unloaded, if that is wanted.
    ///
    /// # Safety
    /// The registers are those of the calling thread.
    pub unsafe fn module_changed(&'static self, change: Change, registers: &Pushed) {
        let demand = self.demand_now();
        let is_asked = demand::host_events_of(demand).contains(HostEvent::Module);
        if !is_asked || !self.is_recording() || !self.window.contains_now() {
            return;
        }
        let start = now();
        let wants_stack = demand & (demand::HOST_STACKS | demand::HOST_PYTHON) != 0;
        let taken = match wants_stack {
            // SAFETY: the caller's promise.
            true => unsafe { launch::stack_of_driver_call(self, registers) },
            false => StackTaken::Empty,
        };
        let lost = if matches!(taken, StackTaken::Lost) { Common::NO_STACK } else { 0 };
        let record = Module {
            start,
            bytes: change.bytes.unwrap_or(0),
            has_bytes: change.bytes.is_some().into(),
            kind: if change.bytes.is_some() { ModuleKind::Load } else { ModuleKind::Unload } as u32,
            id: change.module,
            tid: output::tid(),
            stack: taken.id().unwrap_or(0),
            ranges: if demand & demand::HOST_RANGES != 0 { current_ranges(self) } else { 0 },
            flags: lost | demand::told(demand) << Common::DEMANDED_AT,
            unused: 0,
        };
        let module = HostEvents::of(&[HostEvent::Module]);
        output::record_host_events(self, module, |event, out| out.write(event.record_kind(), &record, &[]));
    }
}
