//! A plan for all that a recording has: each event goes to the sink, and none to a script.

use xputrace_model::context::MOST_ARGUMENTS;
use xputrace_model::plan::{
    Activities, Activity, Calls, Demand, Detail, Details, Functions, HostEvent, HostEvents, Place, Plan, Probe,
    ProbePlace,
};
use xputrace_model::schema::Event;
use xputrace_recording::Meta;

/// Returns a plan with a probe for each kind of event that a recording may have, and for each function whose calls are in
/// it. Their handlers are the sink's: [`xputrace_pipeline::Sink::interpret`] gets every event with all that is known of it. What was
/// not recorded is not asked for, so that such a plan runs over any recording.
///
/// Hits of CPU probes have no probe in it: [`crate::ReplaySink::hit`] gets those.
pub fn every_event(meta: &Meta) -> Plan {
    let demand = demand(meta);
    let mut probes: Vec<Probe> = Activity::ALL.iter().map(|it| of(Event::Activity(*it), ProbePlace::None)).collect();
    probes.push(of(Event::Launch, ProbePlace::Calls(Calls::ALL)));
    let hosts = demand.host_events.iter().filter(|it| *it != HostEvent::Api);
    probes.extend(hosts.map(|it| of(Event::Host(it), ProbePlace::None)));
    probes.extend(of_functions(&demand.api));
    Plan { probes, demand, strings: vec![String::new()], ..Plan::default() }
}

fn of(event: Event, target: ProbePlace) -> Probe {
    Probe { target, sees_unjoined: true, ..Probe::of(event, Place::Tracer) }
}

/// Returns a probe for each function, since each has its own parameters.
fn of_functions(functions: &Functions) -> impl Iterator<Item = Probe> {
    functions.iter().filter_map(|id| {
        let mut only = Functions::NONE;
        only.add(id);
        let readable = id.function()?.parameters.iter().filter(|it| it.is_integer()).take(MOST_ARGUMENTS);
        let arguments = readable.map(|it| it.name.to_owned()).collect();
        Some(Probe { arguments, ..of(Event::Host(HostEvent::Api), ProbePlace::Api(Box::new(only))) })
    })
}

fn demand(meta: &Meta) -> Demand {
    let is_recorded = |it: &HostEvent| meta.host_events.iter().any(|name| name == it.name());
    let host_events: Vec<HostEvent> = HostEvent::ALL.iter().copied().filter(is_recorded).collect();
    Demand {
        calls: Calls::ALL,
        activities: Activities::ALL,
        host_events: HostEvents::of(&host_events),
        required: HostEvents::NONE,
        api: meta.functions(),
        details: details(meta),
    }
}

fn details(meta: &Meta) -> Details {
    let mut lacking = Details::NONE;
    lacking.add_if(!meta.launch_stacks, Detail::Stacks);
    lacking.add_if(!meta.call_ranges, Detail::CallRanges);
    let mut details = Details::kept().without(lacking);
    details.add_if(meta.nested_calls, Detail::Nested);
    details
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_recorded_is_not_asked_for() {
        let plan = every_event(&Meta::default());
        assert!(plan.demand.host_events.is_empty() && plan.demand.api.is_empty());
        assert!(!plan.demand.has(Detail::Stacks) && plan.demand.has(Detail::Previous));
        assert_eq!(plan.probes.len(), Activity::COUNT + 1);
    }

    #[test]
    fn a_call_has_its_readable_parameters() {
        let names = |all: &[&str]| all.iter().map(|it| (*it).to_owned()).collect();
        let meta = Meta { host_events: names(&["wait", "api"]), api: names(&["cudaMalloc"]), ..Meta::default() };
        let plan = every_event(&meta);
        let calls: Vec<_> = plan.probes.iter().filter(|it| it.event == Event::Host(HostEvent::Api)).collect();
        assert!(!calls.is_empty() && calls.iter().all(|it| it.arguments == ["devPtr", "size"]), "{calls:?}");
    }
}
