//! The script's GPU handlers that run here, by the events that they run over.

use crate::device_handlers::DeviceHandlers;
use crate::fields_read::FieldsRead;
use crate::handler::GpuHandler;
use crate::wanted::WantedRecords;
use rustc_hash::FxHashMap;
use xputrace_model::context::{GpuContext, word};
use xputrace_model::plan::{Activity, Call, Calls, Place, Plan, Probe, ProbeId, ProbePlace, ProgramId};
use xputrace_model::schema::Event;
use xputrace_wire::api::{FunctionId, Parameter};
use xputrace_wire::events::host::{MOST_ARGUMENTS, PARAMETER_WORDS};
use xputrace_wire::events::{HostEvent, HostEventRecord};
use zerocopy::IntoBytes;

/// GPU handlers, in the order of the script.
pub(crate) struct Handlers {
    activities: [Vec<GpuHandler>; Activity::COUNT],
    calls: [Vec<GpuHandler>; Call::COUNT],
    host_events: [Vec<GpuHandler>; HostEvent::COUNT],
    /// By number of the function.
    functions: FxHashMap<u32, Vec<ApiHandler>>,
    /// Those that run in kernels.
    pub(crate) device: DeviceHandlers,
    pub(crate) wanted: WantedRecords,
}

/// A handler of `api`, for one function.
pub(crate) struct ApiHandler {
    pub(crate) handler: GpuHandler,
    /// The parameters that it reads, in the order of their words; `None` where the function lacks one.
    arguments: Vec<Option<&'static Parameter>>,
}

impl ApiHandler {
    fn of(handler: GpuHandler, probe: &Probe, function: FunctionId) -> Self {
        let function = function.function();
        let parameter = |name: &String| function?.parameter(name);
        ApiHandler { handler, arguments: probe.arguments.iter().map(parameter).collect() }
    }

    /// Fills the words of the parameters that it reads.
    pub(crate) fn fill(&self, ctx: &mut GpuContext, parameters: &[u64; PARAMETER_WORDS]) {
        for (at, parameter) in self.arguments.iter().take(MOST_ARGUMENTS).enumerate() {
            let value = parameter.and_then(|it| it.value(parameters.as_bytes()));
            ctx[word::call::HAS_ARGUMENT + at] = value.is_some().into();
            ctx[word::call::ARGUMENT + at] = value.unwrap_or(0);
        }
    }
}

impl Handlers {
    pub(crate) fn of(plan: &Plan) -> Self {
        let of = |fires: &dyn Fn(&Probe) -> bool| {
            let here = |(_, it): &(ProbeId, &Probe)| it.place != Place::Linux && fires(it);
            ProbeId::each(&plan.probes)
                .filter(here)
                .map(|(probe, it)| GpuHandler::of(plan, probe, it))
                .collect::<Vec<_>>()
        };
        let of_call = |call: Call| of(&|it: &Probe| it.event == Event::Launch && calls_of(it).contains(call));
        Handlers {
            activities: std::array::from_fn(|at| of(&|it: &Probe| it.event == Event::Activity(Activity::ALL[at]))),
            calls: by_call(of_call),
            host_events: std::array::from_fn(|at| of(&|it: &Probe| it.event == Event::Host(HostEvent::ALL[at]))),
            functions: api_handlers(plan),
            device: DeviceHandlers::of(plan),
            wanted: WantedRecords::of(&plan.demand),
        }
    }

    #[inline]
    pub(crate) fn of_activity(&self, kind: Activity) -> &[GpuHandler] {
        &self.activities[kind.index()]
    }

    /// Returns what the handlers of activities read. Those that run in kernels are told of their launch.
    pub(crate) fn activity_fields(&self, plan: &Plan) -> FieldsRead {
        match self.device.is_empty() {
            true => FieldsRead::of(plan, self.activities.iter().flatten()),
            false => FieldsRead::ALL,
        }
    }

    #[inline]
    pub(crate) fn of_call(&self, kind: Call) -> &[GpuHandler] {
        &self.calls[kind.index()]
    }

    #[inline]
    pub(crate) fn of_host_event(&self, kind: HostEvent) -> &[GpuHandler] {
        &self.host_events[kind.index()]
    }

    /// Whether a record is among those that the collector was armed for. A recording may hold others.
    pub(crate) fn wants(&self, record: &HostEventRecord) -> bool {
        let is_asked = match record {
            HostEventRecord::Api(it) => {
                FunctionId::of_number(it.function).is_some_and(|it| self.wanted.api.contains(it))
            }
            _ => true,
        };
        self.wanted.host_events.contains(record.kind()) && is_asked
    }

    /// Returns the `api` handlers of a function.
    pub(crate) fn of_function(&self, function: u32) -> &[ApiHandler] {
        self.functions.get(&function).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn programs(&self) -> Vec<ProgramId> {
        let lists = self.activities.iter().chain(&self.calls).chain(&self.host_events);
        let mut all: Vec<_> = lists.flatten().filter_map(|it| it.program).chain(self.device.programs()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

fn api_handlers(plan: &Plan) -> FxHashMap<u32, Vec<ApiHandler>> {
    let mut all: FxHashMap<u32, Vec<ApiHandler>> = FxHashMap::default();
    for (id, probe) in ProbeId::each(&plan.probes) {
        let ProbePlace::Api(functions) = &probe.target else { continue };
        for function in functions.iter() {
            let it = ApiHandler::of(GpuHandler::of(plan, id, probe), probe, function);
            all.entry(function.number()).or_default().push(it);
        }
    }
    all
}

/// Returns the calls that a launch handler sees.
fn calls_of(probe: &Probe) -> Calls {
    match probe.target {
        ProbePlace::Calls(calls) => calls,
        _ => Calls::LAUNCHES,
    }
}

/// A value for each kind of call, by [`Call::index`].
fn by_call<T: Default>(of: impl Fn(Call) -> T) -> [T; Call::COUNT] {
    let mut all: [T; Call::COUNT] = std::array::from_fn(|_| T::default());
    Call::ALL.iter().for_each(|it| all[it.index()] = of(*it));
    all
}
