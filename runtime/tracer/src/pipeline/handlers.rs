//! The script's GPU handlers that run here, and the strings that their events refer to.

use super::device::DeviceHandlers;
use super::parts::Parts;
use crate::context::Symbol;
use crate::names::{Demangle, Names};
use crate::rendezvous::told;
use rustc_hash::FxHashMap;
use xputrace_model::context::{GpuContext, word};
use xputrace_model::plan::{
    Activities, Activity, Call, Calls, Demand, Details, Place, Plan, Probe, ProbeId, ProgramId, StringId, SwitchId,
    Target,
};
use xputrace_model::schema::Event;
use xputrace_wire::cuda_calls::{FunctionId, Functions, Layer, Parameter, error_name};
use xputrace_wire::device::original_symbol;
use xputrace_wire::events::host::{Common, MOST_ARGUMENTS, Nvtx, PARAMETER_WORDS};
use xputrace_wire::events::{Choice, HostEvent, HostEventRecord, HostEvents, Launch, Texts};
use zerocopy::IntoBytes;

/// GPU handlers, in the order of the script.
pub(super) struct Handlers {
    activities: [Vec<Handler>; Activity::COUNT],
    calls: [Vec<Handler>; Call::COUNT],
    host_events: [Vec<Handler>; HostEvent::COUNT],
    /// By number of the function.
    functions: FxHashMap<u32, Vec<ApiHandler>>,
    /// Those that run in kernels.
    pub(super) device: DeviceHandlers,
    pub(super) wanted: Wanted,
}

#[derive(Clone, Copy)]
pub(super) struct Handler {
    pub(super) probe: ProbeId,
    /// `None` for interpreted handlers.
    pub(super) program: Option<ProgramId>,
    pub(super) switch: Option<Switchable>,
}

/// A handler that is switched on and off.
#[derive(Clone, Copy)]
pub(super) struct Switchable {
    pub(super) id: SwitchId,
    /// What the record of an event must say of its demand: `message::demand::has_all`.
    pub(super) needs: u32,
}

/// A handler of `api`, for one function.
pub(super) struct ApiHandler {
    pub(super) handler: Handler,
    /// The parameters that it reads, in the order of their words; `None` where the function lacks one.
    arguments: Vec<Option<&'static Parameter>>,
}

impl ApiHandler {
    fn of(handler: Handler, probe: &Probe, function: FunctionId) -> Self {
        let function = function.function();
        let parameter = |name: &String| function?.parameter(name);
        ApiHandler { handler, arguments: probe.arguments.iter().map(parameter).collect() }
    }

    /// Fills the words of the parameters that it reads.
    pub(super) fn fill(&self, ctx: &mut GpuContext, parameters: &[u64; PARAMETER_WORDS]) {
        for (at, parameter) in self.arguments.iter().take(MOST_ARGUMENTS).enumerate() {
            let value = parameter.and_then(|it| it.value(parameters.as_bytes()));
            ctx[word::call::HAS_ARGUMENT + at] = value.is_some().into();
            ctx[word::call::ARGUMENT + at] = value.unwrap_or(0);
        }
    }
}

impl Handlers {
    pub(super) fn of(plan: &Plan) -> Self {
        let of = |fires: &dyn Fn(&Probe) -> bool| {
            let here = |(_, it): &(ProbeId, &Probe)| it.place != Place::Linux && fires(it);
            ProbeId::each(&plan.probes).filter(here).map(|(probe, it)| handler(plan, probe, it)).collect::<Vec<_>>()
        };
        let of_call = |call: Call| of(&|it: &Probe| it.event == Event::Launch && calls_of(it).contains(call));
        Handlers {
            activities: std::array::from_fn(|at| of(&|it: &Probe| it.event == Event::Activity(Activity::ALL[at]))),
            calls: by_call(of_call),
            host_events: std::array::from_fn(|at| of(&|it: &Probe| it.event == Event::Host(HostEvent::ALL[at]))),
            functions: api_handlers(plan),
            device: DeviceHandlers::of(plan),
            wanted: Wanted::of(&plan.demand),
        }
    }

    #[inline]
    pub(super) fn of_activity(&self, kind: Activity) -> &[Handler] {
        &self.activities[kind.index()]
    }

    /// Returns what the handlers of activities read. Those that run in kernels are told of their launch.
    pub(super) fn activity_parts(&self, plan: &Plan) -> Parts {
        match self.device.is_empty() {
            true => Parts::of(plan, self.activities.iter().flatten()),
            false => Parts::ALL,
        }
    }

    #[inline]
    pub(super) fn of_call(&self, kind: Call) -> &[Handler] {
        &self.calls[kind.index()]
    }

    #[inline]
    pub(super) fn of_host_event(&self, kind: HostEvent) -> &[Handler] {
        &self.host_events[kind.index()]
    }

    /// Whether a record is among those that the collector was armed for. A recording may hold others.
    pub(super) fn wants(&self, record: &HostEventRecord) -> bool {
        let is_asked = match record {
            HostEventRecord::Api(it) => {
                FunctionId::of_number(it.function).is_some_and(|it| self.wanted.api.contains(it))
            }
            _ => true,
        };
        self.wanted.host_events.contains(record.kind()) && is_asked
    }

    /// Returns the `api` handlers of a function.
    pub(super) fn of_function(&self, function: u32) -> &[ApiHandler] {
        self.functions.get(&function).map_or(&[], Vec::as_slice)
    }

    pub(super) fn programs(&self) -> Vec<ProgramId> {
        let lists = self.activities.iter().chain(&self.calls).chain(&self.host_events);
        let mut all: Vec<_> = lists.flatten().filter_map(|it| it.program).chain(self.device.programs()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

pub(super) fn handler(plan: &Plan, probe: ProbeId, it: &Probe) -> Handler {
    // Records of host events say less of their demand: the options, not the activities.
    let said = if matches!(it.event, Event::Host(_)) { u32::MAX >> Common::DEMANDED_AT } else { u32::MAX };
    let needs = |id: SwitchId| Some(told(&plan.switches.get(id.index())?.demand) & said);
    let switch = it.switch.and_then(|id| Some(Switchable { id, needs: needs(id)? }));
    Handler { probe, program: it.program.filter(|_| matches!(it.place, Place::Tracer | Place::Gpu)), switch }
}

fn api_handlers(plan: &Plan) -> FxHashMap<u32, Vec<ApiHandler>> {
    let mut all: FxHashMap<u32, Vec<ApiHandler>> = FxHashMap::default();
    for (id, probe) in ProbeId::each(&plan.probes) {
        let Target::Api(functions) = &probe.target else { continue };
        for function in functions.iter() {
            let it = ApiHandler::of(handler(plan, id, probe), probe, function);
            all.entry(function.number()).or_default().push(it);
        }
    }
    all
}

/// Returns the calls that a launch handler sees.
fn calls_of(probe: &Probe) -> Calls {
    match probe.target {
        Target::Calls(calls) => calls,
        _ => Calls::LAUNCHES,
    }
}

/// A value for each kind of call, by [`Call::index`].
fn by_call<T: Default>(of: impl Fn(Call) -> T) -> [T; Call::COUNT] {
    let mut all: [T; Call::COUNT] = std::array::from_fn(|_| T::default());
    Call::ALL.iter().for_each(|it| all[it.index()] = of(*it));
    all
}

/// What the collector was armed to record. A recording may hold more, which is ignored, so that a
/// script gives the same answer live and replayed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) activities: Activities,
    pub(super) calls: Calls,
    pub(super) host_events: HostEvents,
    /// The functions whose calls are `api` events.
    pub(super) api: Functions,
    /// Activities that are joined with their launch.
    pub(super) joined: Activities,
    /// Calls that an activity can be joined with.
    joining: Calls,
    /// Calls whose records tell when their work is done.
    pub(super) expected: Calls,
    /// Whether graphs are put together from their nodes' records, where such arrive.
    pub(super) derives_graphs: bool,
    /// Activities announced by their launches; for others, CUPTI's buffers tell what is
    /// outstanding.
    pub(super) foretold: Activities,
    pub(super) reads: Details,
}

impl Wanted {
    fn of(demand: &Demand) -> Self {
        let activities = |holds: &dyn Fn(Activity) -> bool| {
            demand
                .activities
                .iter()
                .filter(|it| holds(*it))
                .fold(Activities::NONE, |all, it| all.with(Activities::of(&[it])))
        };
        let expected = demand.calls.iter().filter(|it| demand.expects(*it));
        let expected = expected.fold(Calls::NONE, |all, it| all.with(Calls::of(&[it])));
        Wanted {
            activities: demand.activities,
            derives_graphs: demand.activities.contains(Activity::Graph),
            calls: demand.calls,
            host_events: demand.host_events,
            api: demand.api,
            joined: activities(&|it| demand.joins(it)),
            joining: demand
                .activities
                .iter()
                .filter(|it| demand.joins(*it))
                .fold(Calls::NONE, |all, it| all.with(it.causes())),
            expected,
            reads: demand.details,
            foretold: activities(&|it| demand.joins(it) && expected.contains_all(it.causes())),
        }
    }

    /// Whether activities that a call of this kind may submit are recorded.
    pub(super) fn records(&self, call: Call) -> bool {
        self.activities.iter().any(|it| it.causes().contains(call))
    }

    /// Whether an activity can be joined with a call of this kind.
    #[inline]
    pub(super) fn joins_with(&self, call: Call) -> bool {
        self.joining.contains(call)
    }
}

/// String ids that events refer to.
pub(super) struct Strings {
    demangle: Demangle,
    demangled: FxHashMap<StringId, Symbol>,
    calls: [u64; Call::COUNT],
    activities: [u64; Activity::COUNT],
    /// By number.
    functions: FxHashMap<u32, u64>,
    errors: FxHashMap<(Layer, i32), u64>,
    /// Texts of payloads that are floating-point numbers, by bits and type.
    payloads: FxHashMap<(i64, u32), u64>,
    /// For further ones.
    other_payload: u64,
    /// By number, of each [`Choice`].
    choices: Vec<Vec<u64>>,
    pub(super) unnamed: StringId,
    pub(super) reads: Details,
    pub(super) activity_parts: Parts,
    null_stream: u64,
    thread_stream: u64,
    created_stream: u64,
}

impl Strings {
    pub(super) fn new(demangle: Demangle, reads: Details, activity_parts: Parts, names: &mut Names) -> Self {
        let mut calls = [0; Call::COUNT];
        Call::ALL.iter().for_each(|it| calls[it.index()] = names.intern(it.name()).into());
        let of_choice =
            |it: &Choice, names: &mut Names| it.texts().iter().map(|text| names.intern(text).into()).collect();
        Strings {
            demangle,
            demangled: FxHashMap::default(),
            calls,
            activities: std::array::from_fn(|at| names.intern(Activity::ALL[at].name()).into()),
            functions: FxHashMap::default(),
            errors: FxHashMap::default(),
            payloads: FxHashMap::default(),
            other_payload: 0,
            choices: Choice::ALL.iter().map(|it| of_choice(it, names)).collect(),
            unnamed: names.intern("(launch record lost)"),
            reads,
            activity_parts,
            null_stream: names.intern("null").into(),
            thread_stream: names.intern("per-thread").into(),
            created_stream: names.intern("created").into(),
        }
    }

    /// Returns the name of a kind of call in scripts.
    #[inline]
    pub(super) fn call(&self, kind: Call) -> u64 {
        self.calls[kind.index()]
    }

    /// Returns the name of a kind of activity in scripts.
    pub(super) fn activity(&self, kind: Activity) -> u64 {
        self.activities[kind.index()]
    }

    /// Returns what the stream of a launch is, in scripts.
    pub(super) fn stream_kind(&self, launch: &Launch) -> u64 {
        match launch.flags {
            it if it & Launch::NULL_STREAM != 0 => self.null_stream,
            it if it & Launch::THREAD_STREAM != 0 => self.thread_stream,
            _ => self.created_stream,
        }
    }

    /// Learns the names that a CUDA call refers to.
    pub(super) fn learn(&mut self, common: &Common, names: &mut Names) {
        for number in [common.function, common.nested] {
            self.functions.entry(number).or_insert_with(|| {
                let function = FunctionId::of_number(number).and_then(FunctionId::function);
                function.map_or(0, |it| names.intern(it.name()).into())
            });
        }
        if common.result == 0 || self.errors.len() >= MOST_ERRORS {
            return;
        }
        let layer = layer_of(common.function);
        self.errors.entry((layer, common.result)).or_insert_with(|| match error_name(layer, common.result) {
            Some(name) => names.intern(name).into(),
            None => names.intern(&format!("error {}", common.result)).into(),
        });
    }

    /// Learns the text of a payload.
    pub(super) fn learn_payload(&mut self, record: &HostEventRecord, names: &mut Names) {
        let HostEventRecord::Nvtx(it) = record else { return };
        let key = (it.payload, it.payload_float);
        if it.payload_float == 0 || self.payloads.contains_key(&key) {
            return;
        }
        if self.payloads.len() >= MOST_PAYLOADS {
            self.other_payload = names.intern(UNKNOWN_PAYLOAD).into();
        } else if let Some(text) = it.payload_text() {
            self.payloads.insert(key, names.intern(&text).into());
        }
    }

    /// Returns the text of a payload; 0 unless it is a floating-point number.
    pub(super) fn payload(&self, it: &Nvtx) -> u64 {
        match it.payload_float {
            0 => 0,
            float => self.payloads.get(&(it.payload, float)).copied().unwrap_or(self.other_payload),
        }
    }

    /// Returns the name of a function; 0 if there is none.
    pub(super) fn function(&self, number: u32) -> u64 {
        self.functions.get(&number).copied().unwrap_or(0)
    }

    /// Returns the name of the error that a function returned; 0 if it is unknown.
    pub(super) fn error(&self, function: u32, result: i32) -> u64 {
        self.errors.get(&(layer_of(function), result)).copied().unwrap_or(0)
    }

    pub(super) fn symbol(&mut self, text: &str, names: &mut Names) -> Symbol {
        let id = names.intern(text);
        let demangle = self.demangle;
        *self.demangled.entry(id).or_insert_with(|| {
            if let Some(path) = text.strip_prefix(RANGE_SEPARATOR) {
                return ranges(path, names);
            }
            let original = original_symbol(text);
            let (name, short_name) = demangle(original);
            Symbol {
                symbol: names.intern(original).into(),
                name: names.intern(&name).into(),
                short_name: names.intern(&short_name).into(),
                is_twin: original != text,
            }
        })
    }
}

const RANGE_SEPARATOR: char = xputrace_wire::record::RANGE_SEPARATOR as char;

/// Returns the innermost of these NVTX ranges as the name, and all of them as the symbol. There a `/` that is part of a
/// name has a `\` before it, and so has a `\`.
fn ranges(path: &str, names: &mut Names) -> Symbol {
    let innermost = path.rsplit(RANGE_SEPARATOR).next().unwrap_or(path);
    let name = names.intern(innermost).into();
    let escaped = path.replace('\\', r"\\").replace('/', r"\/");
    let symbol = names.intern(&escaped.replace(RANGE_SEPARATOR, "/")).into();
    Symbol { symbol, name, short_name: name, is_twin: false }
}

/// Maximum number of error codes with a name: a target may make any up.
const MOST_ERRORS: usize = 1024;
/// Likewise of different payloads.
const MOST_PAYLOADS: usize = 1 << 16;
const UNKNOWN_PAYLOAD: &str = "[unknown]";

fn layer_of(function: u32) -> Layer {
    FunctionId::of_number(function).map_or(Layer::Driver, FunctionId::layer)
}

impl Texts for Strings {
    #[inline]
    fn choice(&self, choice: Choice, number: u32) -> u64 {
        self.choices[choice as usize].get(number as usize).copied().unwrap_or(0)
    }
}
