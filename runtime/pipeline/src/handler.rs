//! A handler of the script, as it runs here.

use xputrace_model::plan::{Demand, Place, Plan, Probe, ProbeId, ProgramId, SwitchId};
use xputrace_model::schema::Event;
use xputrace_wire::events::host::Common;
use xputrace_wire::message::demand;

/// A handler of GPU events: a probe's program, or an interpreted one.
#[derive(Clone, Copy)]
pub(crate) struct GpuHandler {
    pub(crate) probe: ProbeId,
    /// `None` for interpreted handlers.
    pub(crate) program: Option<ProgramId>,
    pub(crate) switch: Option<Switchable>,
}

/// A handler that is switched on and off.
#[derive(Clone, Copy)]
pub(crate) struct Switchable {
    pub(crate) id: SwitchId,
    /// What the record of an event must say of its demand: `message::demand::has_all`.
    pub(crate) needs: u32,
}

impl GpuHandler {
    /// Returns the handler of a probe.
    pub(crate) fn of(plan: &Plan, probe: ProbeId, it: &Probe) -> Self {
        // Records of host events say less of their demand: the options, not the activities.
        let said = if matches!(it.event, Event::Host(_)) { u32::MAX >> Common::DEMANDED_AT } else { u32::MAX };
        let needs = |id: SwitchId| Some(recorded_under(&plan.switches.get(id.index())?.demand) & said);
        let switch = it.switch.and_then(|id| Some(Switchable { id, needs: needs(id)? }));
        GpuHandler { probe, program: it.program.filter(|_| matches!(it.place, Place::Tracer | Place::Gpu)), switch }
    }
}

/// Returns what the record of an event says of its demand if it was recorded with all that `demand` asks for.
fn recorded_under(it: &Demand) -> u32 {
    demand::recorded_under(demand::of(it.details, it.calls, it.activities, it.host_events))
}
