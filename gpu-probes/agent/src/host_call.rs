//! Events of the CPU: what happens on the application's thread at each CUDA call that is one.
//!
//! ```text
//! runtime ENTER ─ driver ENTER ─ driver EXIT ─ runtime EXIT
//! start, stack    start, stack   record        record
//! ```
//! A wait, an allocation or a free is recorded once, as the outermost call that is one: the driver's call inside it
//! is not recorded again. `api` events are recorded for each call that they are asked for.
//!
//! A thread's state is beside that of launches ([`super::launch`]): a call may be both. No lock, and no allocation.

use super::Agent;
use super::clock::now;
use super::library::{Context, Layer, Stream};
use super::output;
use super::stack::StackTaken;
use super::state::host_call::{HostCallState, OpenCall};
use super::state::output::Output;
use super::state::run_address::RunAddress;
use super::state::selection::LastContext;
use super::state::this_thread::{ThisThread, this_thread};
use super::surroundings::{current_ranges, stack_of_call};
use xputrace_unwind::Pushed;
use xputrace_wire::events::host::{
    Alloc, Api, Common, EventRecord, Free, PARAMETER_WORDS, StreamChange, StreamChangeKind, StreamMode, Wait,
};
use xputrace_wire::events::{HostEvent, HostEvents};
use xputrace_wire::message::demand;
use xputrace_wire::record::UNKNOWN;

/// A call on entry.
#[derive(Clone, Copy, Debug)]
pub struct Entered<'a> {
    /// The number of the function.
    pub function: u32,
    /// [`Layer::Runtime`] or [`Layer::Driver`].
    pub layer: Layer,
    /// What it is.
    pub events: HostEvents,
    /// Shared by a runtime call and the driver calls inside it.
    pub correlation: u32,
    pub context: Option<Context>,
    /// Registers at the call of the backend.
    pub registers: &'a Pushed,
}

/// A call on return.
#[derive(Clone, Copy, Debug)]
pub struct Returned {
    pub function: u32,
    pub layer: Layer,
    pub correlation: u32,
    /// 0 is success.
    pub result: i32,
    pub context: Option<Context>,
}

/// What a call was about. What it is not about is empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    /// A number of `WaitKind`.
    pub wait: u32,
    pub stream: Option<Stream>,
    /// A handle; 0 if it is not about an event.
    pub event: u64,
    /// The stream that the call has created or destroyed; `None` if it failed.
    pub handle: Option<u64>,
    /// How it was to be created.
    pub created: Option<Created>,
    pub memory: CallMemory,
    pub parameters: [u64; PARAMETER_WORDS],
}

/// How a call creates a stream.
#[derive(Clone, Copy, Debug)]
pub struct Created {
    pub priority: i32,
    pub mode: StreamMode,
}

/// Memory that a call allocated or freed.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallMemory {
    /// A number of `AllocKind`.
    pub kind: u32,
    /// `None` if the call failed.
    pub address: Option<u64>,
    pub bytes: u64,
    pub is_async: bool,
}

impl CallMemory {
    pub fn of_device(address: Option<u64>, bytes: u64) -> Self {
        CallMemory { kind: xputrace_wire::events::host::AllocKind::Device as u32, address, bytes, is_async: false }
    }
}

/// Of which only the outermost call is recorded.
const ONCE: HostEvents = HostEvents::OF_CALLS.without(HostEvents::of(&[HostEvent::Api]));

/// Handles a call on entry.
///
/// # Safety
/// The registers in `entered` are those of the calling thread.
pub unsafe fn enter(thread: &'static ThisThread, agent: &'static Agent, entered: &Entered<'_>) {
    if thread.is_untraced() {
        return;
    }
    match thread.host_call.try_borrow_mut() {
        Ok(mut local) => local.enter(agent, entered),
        Err(_) => agent.count_unexpected(),
    }
}

/// Handles a call on return. `facts` is called if it is recorded.
pub fn exit(thread: &'static ThisThread, agent: &'static Agent, returned: &Returned, facts: impl FnOnce() -> Facts) {
    match thread.host_call.try_borrow_mut() {
        Ok(mut local) => local.exit(agent, returned, facts),
        Err(_) => agent.count_unexpected(),
    }
}

impl HostCallState {
    fn bind(&mut self, agent: &'static Agent) {
        if !self.run.is_of(agent) {
            *self = HostCallState::new(RunAddress::of(agent), self.bounds);
        }
    }

    fn enter(&mut self, agent: &'static Agent, entered: &Entered<'_>) {
        let demand = agent.demand_now();
        let asked = demand::host_events_of(demand);
        if asked.is_empty() {
            return;
        }
        let start = now();
        self.bind(agent);
        let outer = match entered.layer {
            Layer::Driver => self.runtime.outer(entered.correlation),
            _ => None,
        };
        let is_recorded = agent.is_recording() && agent.window.contains_now();
        let of_outer = outer.map_or(HostEvents::NONE, |it| it.events).and(ONCE);
        let mut open = OpenCall {
            function: entered.function,
            correlation: entered.correlation,
            events: if is_recorded { entered.events.and(asked).without(of_outer) } else { HostEvents::NONE },
            nested: outer.map_or(0, |it| it.function),
            start,
            context: entered.context,
            demand,
            stack: 0,
            ranges: 0,
            flags: self.demanded(agent, demand, entered.layer) << Common::DEMANDED_AT,
        };
        if !open.events.is_empty() && demand & (demand::HOST_STACKS | demand::HOST_PYTHON) != 0 {
            self.take_stack(agent, entered, &mut open);
        }
        if !open.events.is_empty() && demand & demand::HOST_RANGES != 0 {
            open.ranges = current_ranges(agent);
        }
        match entered.layer {
            Layer::Driver => self.driver.add(open),
            _ => self.runtime.add(open),
        }
    }

    /// Returns what the record says of its demand. If the runtime's calls have begun to be watched since the thread's
    /// last call, this one may be inside a call of the runtime that was not seen.
    fn demanded(&mut self, agent: &Agent, demand: u64, layer: Layer) -> u32 {
        let layers_added = agent.switching.layers_added();
        let is_surely_known = layer == Layer::Runtime || self.layers_added == layers_added;
        self.layers_added = layers_added;
        demand::recorded_under(if is_surely_known { demand } else { demand & !demand::HOST_NESTED })
    }

    #[inline(never)]
    fn take_stack(&mut self, agent: &'static Agent, entered: &Entered<'_>, open: &mut OpenCall) {
        let called = u64::from(entered.function);
        // SAFETY: the registers are those at the call that this thread has entered.
        match unsafe { stack_of_call(agent, &mut self.bounds, entered.registers, entered.layer, called) } {
            StackTaken::Id(id) => open.stack = id,
            StackTaken::Empty => {}
            StackTaken::Lost => open.flags |= Common::NO_STACK,
        }
    }

    fn exit(&mut self, agent: &'static Agent, returned: &Returned, facts: impl FnOnce() -> Facts) {
        let end = now();
        self.bind(agent);
        let opens = match returned.layer {
            Layer::Driver => &mut self.driver,
            _ => &mut self.runtime,
        };
        // Any other was entered before we were armed.
        let Some(open) = opens.take(returned.function, returned.correlation) else { return };
        if !open.events.is_empty() && agent.is_recording() {
            self.record(agent, &open, returned, end, &facts());
        }
    }

    fn record(&mut self, agent: &'static Agent, open: &OpenCall, returned: &Returned, end: u64, facts: &Facts) {
        let context = returned.context.or(open.context);
        let used = context.map_or(LastContext::NONE, |it| self.context.set(agent.backend, &agent.selection, it));
        if !used.is_selected {
            return;
        }
        let stream = match (facts.stream, context) {
            (Some(stream), Some(context)) if open.demand & demand::HOST_STREAMS != 0 => {
                agent.backend.stream_of(context, stream)
            }
            _ => None,
        };
        let missing = if agent.lacks_event_records() { Common::EVENTS_MISSING } else { 0 };
        let flags = open.flags | missing;
        let record = FinishedCall { open, returned, end, context, device: used.device, stream, facts, flags };
        output::record_host_events(agent, open.events, |event, out| record.write(event, out));
    }
}

/// Everything about a call that has returned.
struct FinishedCall<'a> {
    open: &'a OpenCall,
    returned: &'a Returned,
    end: u64,
    context: Option<Context>,
    device: u32,
    stream: Option<u32>,
    facts: &'a Facts,
    flags: u32,
}

/// Creates a record with the columns that all of them have.
macro_rules! with_common {
    ($Record:ident, $it:expr, { $($own:tt)* }) => {
        $Record {
            start: $it.open.start,
            end: $it.end,
            function: $it.open.function,
            nested: $it.open.nested,
            correlation: $it.open.correlation,
            tid: this_thread().id(),
            stack: $it.open.stack,
            ranges: $it.open.ranges,
            result: $it.returned.result,
            device: $it.device,
            context: $it.context.map_or(UNKNOWN, |it| it.id),
            has_context: u32::from($it.context.is_some()),
            flags: $it.flags,
            $($own)*
        }
    };
}

impl FinishedCall<'_> {
    /// Returns whether it fitted.
    fn write(&self, event: HostEvent, out: &mut Output) -> bool {
        let CallMemory { kind, address, bytes, is_async } = self.facts.memory;
        let is_async = u32::from(is_async);
        let (stream, has_stream) = (self.stream.unwrap_or(UNKNOWN), u32::from(self.stream.is_some()));
        let record_kind = event.record_kind();
        match event {
            HostEvent::Wait => {
                let Facts { wait: kind, event, .. } = *self.facts;
                out.write(record_kind, &with_common!(Wait, self, { event, kind, stream, has_stream }), &[])
            }
            HostEvent::EventRecord => {
                let event = self.facts.event;
                out.write(record_kind, &with_common!(EventRecord, self, { event, stream, has_stream, unused: 0 }), &[])
            }
            HostEvent::Alloc => {
                let has_address = u32::from(address.is_some());
                let address = address.unwrap_or(0);
                let record = with_common!(Alloc, self, {
                    address, bytes, kind, is_async, has_address, stream, has_stream
                });
                out.write(record_kind, &record, &[])
            }
            HostEvent::Free => {
                let address = address.unwrap_or(0);
                let record = with_common!(Free, self, { address, kind, is_async, stream, has_stream, unused: 0 });
                out.write(record_kind, &record, &[])
            }
            HostEvent::Api => {
                let parameters = self.facts.parameters;
                out.write(record_kind, &with_common!(Api, self, { parameters, unused: 0 }), &[])
            }
            HostEvent::StreamChange => {
                let Facts { handle, created, .. } = *self.facts;
                let kind = if created.is_some() { StreamChangeKind::Create } else { StreamChangeKind::Destroy } as u32;
                let (has_handle, handle) = (handle.is_some().into(), handle.unwrap_or(0));
                let is_created = created.is_some().into();
                let priority = created.map_or(0, |it| it.priority);
                let mode = created.map_or(0, |it| it.mode as u32);
                let record = with_common!(StreamChange, self, {
                    handle, kind, stream, has_stream, priority, mode, is_created, has_handle
                });
                out.write(record_kind, &record, &[])
            }
            // No calls (`super::ranges`, `super::resources`, `super::delivery`).
            _ => true,
        }
    }
}
