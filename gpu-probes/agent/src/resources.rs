//! Modules, code for the GPU, that a program loads and unloads, and contexts that it creates and destroys: written by the
//! thread in whose call that happens.

use super::Agent;
use super::clock::now;
use super::output;
use super::stack::StackTaken;
use super::state::output::Output;
use super::state::this_thread::this_thread;
use super::surroundings::{current_ranges, stack_of_driver_call};
use xputrace_unwind::Pushed;
use xputrace_wire::events::host::{self, Common, Module};
use xputrace_wire::events::{ContextChangeKind, HostEvent, HostEvents, ModuleKind};
use xputrace_wire::message::demand;
use zerocopy::{Immutable, IntoBytes};

/// What happens to a module.
#[derive(Clone, Copy, Debug)]
pub struct ModuleChange {
    /// The backend's number of it.
    pub module: u32,
    /// The size of its code where it was loaded, `None` where it is about to be unloaded.
    pub bytes: Option<u64>,
}

/// What happens to a context.
#[derive(Clone, Copy, Debug)]
pub struct ContextChange {
    /// Whether it was created; else it is about to be destroyed.
    pub is_created: bool,
    /// `None` if the backend does not tell them.
    pub ids: Option<ContextIds>,
}

/// The backend's numbers of a context.
#[derive(Clone, Copy, Debug)]
pub struct ContextIds {
    pub context: u32,
    pub device: u32,
    /// Its default stream.
    pub null_stream: Option<u32>,
}

/// The thread and the code in whose call something happens to a resource.
struct Caller {
    start: u64,
    tid: u32,
    stack: u32,
    ranges: u32,
    flags: u32,
}

impl Agent {
    /// Records a module that was loaded or is about to be unloaded, if that is wanted.
    ///
    /// # Safety
    /// The registers are those of the calling thread at the call of the backend, which has not returned.
    pub unsafe fn module_changed(&'static self, change: ModuleChange, registers: &Pushed) {
        // SAFETY: the caller promises the registers of the calling thread at the call of the backend.
        let Some(Caller { start, tid, stack, ranges, flags }) = (unsafe { self.caller(HostEvent::Module, registers) })
        else {
            return;
        };
        let record = Module {
            start,
            bytes: change.bytes.unwrap_or(0),
            has_bytes: change.bytes.is_some().into(),
            kind: if change.bytes.is_some() { ModuleKind::Load } else { ModuleKind::Unload } as u32,
            id: change.module,
            tid,
            stack,
            ranges,
            flags,
            unused: 0,
        };
        self.record_resource(HostEvent::Module, &record);
    }

    /// Records a context that was created or is about to be destroyed, if that is wanted.
    ///
    /// # Safety
    /// The registers are those of the calling thread at the call of the backend, which has not returned.
    pub unsafe fn context_changed(&'static self, change: ContextChange, registers: &Pushed) {
        let event = HostEvent::ContextChange;
        // SAFETY: the caller promises the registers of the calling thread at the call of the backend.
        let Some(Caller { start, tid, stack, ranges, flags }) = (unsafe { self.caller(event, registers) }) else {
            return;
        };
        let null_stream = change.ids.and_then(|it| it.null_stream);
        let record = host::ContextChange {
            start,
            kind: if change.is_created { ContextChangeKind::Create } else { ContextChangeKind::Destroy } as u32,
            context: change.ids.map_or(0, |it| it.context),
            device: change.ids.map_or(0, |it| it.device),
            has_context: change.ids.is_some().into(),
            null_stream: null_stream.unwrap_or(0),
            has_null_stream: null_stream.is_some().into(),
            tid,
            stack,
            ranges,
            flags,
        };
        self.record_resource(event, &record);
    }

    /// Returns who calls, if this event is wanted now.
    ///
    /// # Safety
    /// The registers are those of the calling thread at the call of the backend, which has not returned.
    unsafe fn caller(&'static self, event: HostEvent, registers: &Pushed) -> Option<Caller> {
        let demand = self.demand_now();
        let is_asked = demand::host_events_of(demand).contains(event);
        if !is_asked || !self.is_recording() || !self.window.contains_now() {
            return None;
        }
        let start = now();
        let wants_stack = demand & (demand::HOST_STACKS | demand::HOST_PYTHON) != 0;
        let taken = match wants_stack {
            // SAFETY: the caller promises the registers of the calling thread at the call of the backend.
            true => unsafe { stack_of_driver_call(self, registers) },
            false => StackTaken::Empty,
        };
        let lost = if matches!(taken, StackTaken::Lost) { Common::NO_STACK } else { 0 };
        Some(Caller {
            start,
            tid: this_thread().id(),
            stack: taken.id().unwrap_or(0),
            ranges: if demand & demand::HOST_RANGES != 0 { current_ranges(self) } else { 0 },
            flags: lost | demand::recorded_under(demand) << Common::DEMANDED_AT,
        })
    }

    fn record_resource(&'static self, event: HostEvent, record: &(impl IntoBytes + Immutable)) {
        let write = |event: HostEvent, out: &mut Output| out.write(event.record_kind(), record, &[]);
        output::record_host_events(self, HostEvents::of(&[event]), write);
    }
}
