//! A compiled script: what to attach where, the bytecode, and how to read the data it stores.

pub use crate::api::Functions;
use crate::catalog::glob;
use crate::context::ContextWords;
use crate::diagnostic::{Site, Sources};
pub use crate::id::{ClosureId, ProbeId, SwitchId};
use crate::loss::{self, Loss};
use crate::object::Object;
use crate::schema::{Event, Unit};
use crate::style::Style;
use crate::table::{TableDef, TableId};
use std::sync::Arc;
pub use xputrace_bytecode::{BpfMapId, Image, ProgramId};
pub use xputrace_events::{Activities, Activity, Call, Calls, Detail, Details, DeviceEvent, HostEvent, HostEvents};

/// Id of a string in the run's string table. Ids below [`Plan::strings`]`.len()` are those strings
/// (0 is the empty one); the tracer appends others during the run.
pub type StringId = u32;

/// Everything a run needs of a script.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub sources: Sources,
    pub probes: Vec<Probe>,
    pub tables: Vec<Arc<TableDef>>,
    pub image: Image,
    /// The string table that the bytecode's ids refer to; entry 0 is empty.
    pub strings: Vec<String>,
    /// What the ids in print records mean.
    pub prints: Vec<Print>,
    /// What the slots of the loss maps count.
    pub loss_sites: Vec<LossSite>,
    /// Linux's and the tracer's loss maps: arrays with one `u64` per slot of `loss_sites`; Linux's is per CPU.
    pub linux_losses: Option<BpfMapId>,
    pub tracer_losses: Option<BpfMapId>,
    /// The GPU's loss map.
    pub gpu_losses: Option<BpfMapId>,
    /// The per-CPU array from a map of the script (`u32`) to the number of elements that
    /// handlers in Linux stored in it less those they removed (`i64`). Present if any map evicts.
    pub linux_stored: Option<BpfMapId>,
    /// The array whose only element (`u64`) tells Linux's handlers whether to record: not if it is 0. Present if
    /// only a part of the run is recorded.
    pub window: Option<BpfMapId>,
    /// The array of one `u64` per probe, which a handler in Linux sets to 1 at its first hit. Present if the run wants to
    /// know.
    pub linux_hits: Option<BpfMapId>,
    /// The ring buffer through which Linux's handlers print.
    pub linux_ring: Option<BpfMapId>,
    /// Linux's stack map.
    pub linux_stacks: Option<BpfMapId>,
    /// The callers of probed functions in its stacks, as `xputrace_bytecode::callers` describes them.
    pub linux_callers: Option<BpfMapId>,
    /// The array of target threads, as `xputrace_bytecode::targets` describes it. Present if any probe is limited to them.
    pub targets: Option<BpfMapId>,
    /// The hash of maps, from process id (`u32`) to an array of [`TAG_SLOTS`] × 16 bytes
    /// (`u64` set, `u64` tag), through which launch handlers in Linux return their tag.
    pub tags: Option<BpfMapId>,
    /// What the collector must record while every switch is on.
    pub demand: Demand,
    /// What it must record whatever is switched on. Empty if there are no switches.
    pub always: Demand,
    /// The probes that handlers can switch on and off, or that begin off.
    pub switches: Vec<Switch>,
    /// The array of one `u64` per switch, which tells Linux's handlers whether they run: only if it is 0. Present if
    /// a handler in Linux has a switch, or turns one.
    pub linux_switches: Option<BpfMapId>,
    /// The hash of open calls under return probes: its keys end with the probe (`u64`).
    pub linux_entries: Option<BpfMapId>,
    /// The array that says where the arguments of USDT probes are ([`xputrace_bytecode::usdt`]), filled where they are
    /// attached. Present if a handler reads one.
    pub usdt_rules: Option<BpfMapId>,
    /// The parts of keys that device code fills with the number of its launch.
    pub launch_parts: Vec<LaunchPart>,
    /// How device handlers get into the kernels of real GPUs.
    pub device_ways: DeviceWays,
    /// Whether a handler asks for a stack's lines.
    pub reads_lines: bool,
    /// Present if the programs are those of a compiled object.
    pub object: Option<Arc<Object>>,
    /// Maps that an `end` handler prints, draws or clears itself.
    pub shown_by_end: Vec<TableId>,
}

/// How device handlers get into the kernels of a real GPU. One way for all of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DeviceWay {
    /// Into a copy of the kernel, made from its PTX.
    #[default]
    Twin,
    /// Into its machine code, by NVIDIA's Sanitizer API, which excludes CUPTI.
    Patch,
}

impl DeviceWay {
    /// Every way, by its name in scripts.
    pub const NAMES: [(&'static str, DeviceWay); 2] = [("twin", DeviceWay::Twin), ("patch", DeviceWay::Patch)];

    /// Returns the way that a script names so.
    pub fn named(text: &str) -> Option<DeviceWay> {
        Self::NAMES.into_iter().find(|it| it.0 == text).map(|it| it.1)
    }
}

/// Which ways there are in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceWays {
    /// The same in all processes: the script says so, or the run leaves no other.
    One(DeviceWay),
    /// Each process gets the one that reaches its kernels. Has what the script needs that patches can't do, if anything.
    Either { unpatchable: Option<String> },
}

impl Default for DeviceWays {
    fn default() -> Self {
        DeviceWays::One(DeviceWay::default())
    }
}

/// A part of a key that real GPUs fill with the number of the kernel's launch (`%gridid`), which stands for one of the
/// launch's fields. It is optional: a `u64` that is 0 if the field is absent, and the field's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchPart {
    /// The map, on the GPU.
    pub map: BpfMapId,
    /// Offset in the key, in bytes.
    pub offset: usize,
    /// The words of the kernel's event that say whether the field is there, and what it is.
    pub flag: usize,
    pub value: usize,
}

/// Slots of the array through which a process's threads receive launch tags.
pub const TAG_SLOTS: u32 = 1024;

/// What the collector must record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Calls whose launches are recorded.
    pub calls: Calls,
    /// Activities to record.
    pub activities: Activities,
    pub host_events: HostEvents,
    /// Those of them that a recording must have for a replay, because of handlers that are not optional.
    pub required: HostEvents,
    /// The functions whose calls are `api` events.
    pub api: Functions,
    /// What to record of all these.
    pub details: Details,
}

/// Recorded for the whole run or never.
const FROM_THE_START: Details =
    Details::of(&[Detail::Captures, Detail::CapturesPython, Detail::Latencies, Detail::PatchedKernels]);

impl Plan {
    /// Returns what the collector must record while these switches are on.
    pub fn demand_while(&self, is_on: impl Fn(SwitchId) -> bool) -> Demand {
        if self.switches.is_empty() {
            return self.demand;
        }
        let on = SwitchId::each(&self.switches).filter(|(id, _)| is_on(*id));
        let asked = on.fold(self.always, |all, (_, it)| all.with(&it.demand));
        // What was captured, made and patched before must be known when it runs, and CUPTI tells latencies from the start or never.
        let from_the_start = self.demand.details.and(FROM_THE_START);
        let asked = Demand { details: asked.details.without(FROM_THE_START).with(from_the_start), ..asked };
        // An activity is either always recorded with the calls that may have caused it, or never.
        asked.joining(|it| self.demand.joins(it))
    }

    /// Returns the switch of the `declared`-th probe that the script declares, if it has one.
    pub fn switch_of(&self, declared: u32) -> Option<SwitchId> {
        self.switches.iter().position(|it| it.declared == declared).map(SwitchId::at)
    }
}

/// A probe that can be switched on and off during the run: all handlers of one declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The position of its declaration among the script's.
    pub declared: u32,
    /// The name of its first handler.
    pub name: String,
    pub begins_on: bool,
    /// Whether handlers turn it that do not run in Linux.
    pub is_turned_elsewhere: bool,
    /// What its handlers need of the collector.
    pub demand: Demand,
    pub site: Site,
}

impl Demand {
    /// Returns what either asks for.
    #[must_use]
    pub fn with(&self, other: &Demand) -> Demand {
        Demand {
            calls: self.calls.with(other.calls),
            activities: self.activities.with(other.activities),
            host_events: self.host_events.with(other.host_events),
            required: self.required.with(other.required),
            api: self.api.with(&other.api),
            details: self.details.with(other.details),
        }
    }

    /// Whether it asks for a detail.
    pub fn has(&self, it: Detail) -> bool {
        self.details.has(it)
    }

    /// Records the activities of these kinds, of those that it records, together with every call that may have caused
    /// them.
    #[must_use]
    pub fn joining(self, is_joined: impl Fn(Activity) -> bool) -> Demand {
        let joined = self.activities.iter().filter(|it| is_joined(*it));
        Demand { calls: joined.fold(self.calls, |all, it| all.with(it.causes())), ..self }
    }

    /// Whether it asks for events that `before` does not ask for.
    pub fn adds_events(&self, before: &Demand) -> bool {
        let events = |it: &Demand| (it.calls, it.activities, it.host_events, it.api);
        events(&before.with(self)) != events(before)
    }

    /// Whether the program must load the collector.
    pub fn gpu(&self) -> bool {
        !self.calls.is_empty() || !self.activities.is_empty() || !self.host_events.is_empty()
    }

    /// Whether the collector takes native stacks, whose names need the process's mappings.
    pub fn takes_stacks(&self) -> bool {
        self.details.intersects(Details::of(&[Detail::Stacks, Detail::CallStacks, Detail::Captures]))
    }

    /// Whether the program's NVTX ranges are followed.
    pub fn ranges(&self) -> bool {
        self.details.intersects(Details::of(&[Detail::Ranges, Detail::CallRanges]))
            || self.host_events.contains(HostEvent::Range)
    }

    /// Whether an activity is recorded together with every call that may have caused it.
    pub fn joins(&self, activity: Activity) -> bool {
        self.activities.contains(activity) && self.calls.contains_all(activity.causes())
    }

    /// Whether the records tell when a call's work is done.
    pub fn expects(&self, call: Call) -> bool {
        self.calls.contains(call) && self.activities.intersects(call.shown_by())
    }

    /// Whether graphs are recorded as a whole where that is possible: their nodes' records are not needed.
    pub fn only_whole_graphs(&self) -> bool {
        self.activities == Activities::of(&[Activity::Graph])
    }
}

/// One declared handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    pub event: Event,
    pub target: ProbePlace,
    /// The name in bpftrace's notation, `uprobe:libc:malloc`, which is `e.probe`.
    pub name: String,
    pub place: Place,
    /// The program of a compiled handler.
    pub program: Option<ProgramId>,
    /// The entry program of a return probe that needs one.
    pub entry_program: Option<ProgramId>,
    /// The program of a return probe at jumps to another function.
    pub tail_program: Option<ProgramId>,
    /// How a return probe detects returns.
    pub returns: ReturnWay,
    /// The interpreter's closure, for interpreted handlers.
    pub closure: Option<ClosureId>,
    pub scope: ProbeScope,
    /// The words of a GPU event that the program reads, beside the time; `None` if that isn't known, so it may read any.
    pub reads: Option<ContextWords>,
    /// Texts that the handler reads from the target.
    pub texts: Vec<TextRead>,
    /// Whether the handler sees kernels without a known launch.
    pub sees_unjoined: bool,
    /// Names of the parameters that an `api` handler reads, in the order of their words.
    pub arguments: Vec<String>,
    /// The numbers of the arguments that a `usdt` handler reads.
    pub usdt_arguments: Vec<usize>,
    /// What switches it on and off, if anything does.
    pub switch: Option<SwitchId>,
    /// At which launches a device handler runs.
    pub launches: LaunchFilter,
    pub site: Site,
    /// Why it runs there, for `explain`: sentences without a final dot.
    pub why: Vec<String>,
}

/// A text of the target that a handler reads with `str()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextRead {
    /// Where its address comes from; `None` if the handler computes it in another way.
    pub address: Option<ContextWord>,
    /// Where the script reads it.
    pub site: Site,
}

/// An address that a probe's context holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextWord {
    /// Bytes from the start of the context to the word.
    pub at: u32,
    /// What is added to the word.
    pub plus: i64,
}

/// Maximum length of a text read by `str()`.
pub const LONGEST_TEXT: u32 = 240;

impl Probe {
    /// Creates a probe that is not attached and has no handler.
    pub fn of(event: Event, place: Place) -> Self {
        Probe {
            event,
            target: ProbePlace::None,
            name: event.name().into(),
            place,
            program: None,
            entry_program: None,
            tail_program: None,
            returns: ReturnWay::default(),
            closure: None,
            scope: ProbeScope::default(),
            reads: None,
            texts: Vec::new(),
            sees_unjoined: false,
            arguments: Vec::new(),
            usdt_arguments: Vec::new(),
            switch: None,
            launches: LaunchFilter::ALL,
            site: Site::default(),
            why: Vec::new(),
        }
    }
}

/// `#{scope: …}`: whose events fire a CPU probe, and who else pays for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProbeScope {
    /// The target's process tree, each process from its first instruction on. Function probes are
    /// in every process that maps the code, and the program filters out others.
    #[default]
    Tree,
    /// The target's process tree. Each process has its own function probes, so others pay nothing,
    /// but a new process runs without them for some milliseconds.
    Process,
    /// Every process.
    System,
}

impl ProbeScope {
    /// Names in scripts.
    pub const NAMES: [(&str, ProbeScope); 3] =
        [("tree", ProbeScope::Tree), ("process", ProbeScope::Process), ("system", ProbeScope::System)];

    /// Whether the program must filter out other processes because it runs there too.
    pub fn is_filtered(self, event: Event) -> bool {
        let sampled = matches!(event, Event::Tracepoint | Event::Profile);
        match self {
            ProbeScope::Process => sampled,
            ProbeScope::Tree => sampled || event.is_in_code(),
            ProbeScope::System => false,
        }
    }
}

/// The attach cookie of a function probe: the function's name in the lower half, the return site
/// above it. A USDT probe's has its name there, and [another number](xputrace_bytecode::usdt::cookie) above it.
pub mod cookie {
    use super::StringId;

    /// Where the [`ReturnSite`] begins.
    pub const SITE_SHIFT: i32 = 32;

    /// Where a return is detected, and so where its return address is.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum ReturnSite {
        /// In the caller, after the return address left the stack: Linux's trampoline.
        #[default]
        Trampoline,
        /// At a `ret`, with the return address on top of the stack.
        Ret,
        /// At the `pop` before it, with the return address above what is popped.
        Pop,
        /// At a `leave; ret`, with the return address above the saved frame pointer.
        Leave,
    }

    impl ReturnSite {
        /// Returns the number in the upper half of the cookie.
        pub fn code(self) -> i32 {
            self as i32
        }
    }

    /// Creates a cookie. `site` is [`ReturnSite::Trampoline`] if returns are not probed.
    pub fn of(name: StringId, site: ReturnSite) -> u64 {
        u64::from(name) | ((site as u64) << SITE_SHIFT)
    }

    /// The function's name.
    pub fn name(cookie: u64) -> StringId {
        cookie as StringId
    }

    /// Returns the cookie with another name, for a replay.
    pub fn renamed(cookie: u64, name: StringId) -> u64 {
        (cookie >> SITE_SHIFT << SITE_SHIFT) | u64::from(name)
    }

    /// Returns the cookie of a tail call: instead of a name, the condition code of a conditional
    /// jump or [`ALWAYS`].
    pub fn of_tail_call(condition: Option<u8>) -> u64 {
        condition.map_or(ALWAYS, u64::from)
    }

    /// The jump is not conditional.
    pub const ALWAYS: u64 = 16;
}

/// How the returns of a function are probed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReturnWay {
    /// At the function's own `ret` instructions, which leaves the stack alone.
    #[default]
    AtReturn,
    /// By Linux's trampoline, which replaces the return address: cheaper, but programs that unwind,
    /// move or switch stacks meanwhile are killed.
    Trampoline,
}

impl ReturnWay {
    /// Returns the way with this name in scripts.
    pub fn named(name: &str) -> Option<ReturnWay> {
        match name {
            "safe" => Some(ReturnWay::AtReturn),
            "trampoline" => Some(ReturnWay::Trampoline),
            _ => None,
        }
    }
}

/// What a probe is attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbePlace {
    /// Functions of an executable or library; both parts as the user wrote them.
    Function {
        object: String,
        function: String,
    },
    /// USDT probes of an executable or library.
    Usdt {
        object: String,
        pattern: UsdtPattern,
    },
    Tracepoint {
        category: String,
        name: String,
    },
    /// Samples each CPU `hz` times a second.
    Profile {
        hz: u64,
    },
    Interval {
        nanos: u64,
    },
    /// Calls that submit work of these kinds: a `launch` handler.
    Calls(Calls),
    /// Calls of these functions: an `api` handler.
    Api(Box<Functions>),
    /// Kernels of these names: a device handler.
    Kernels(PatternOfHandler),
    /// What a compiled object's section names, such as `fentry/FUNCTION`: libbpf attaches the program.
    Section(String),
    /// Other GPU events, `begin` and `end`.
    None,
}

impl ProbePlace {
    /// Whether such an event occurs at the first instructions of functions.
    pub fn is_at_entry(&self, event: Event) -> bool {
        let ProbePlace::Function { function, .. } = self else { return false };
        event == Event::Uprobe && !is_instruction(function)
    }
}

/// Whether what a probe is at is an instruction rather than a function: `0x1139`, `work+4`; not `operator+`.
pub fn is_instruction(function: &str) -> bool {
    let offset = function.rsplit_once('+').map(|it| it.1);
    function.starts_with("0x") || offset.is_some_and(|it| it.starts_with(|digit: char| digit.is_ascii_digit()))
}

/// The name of a USDT probe, as a script gives it: `*` stands for any text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UsdtPattern {
    /// `None` if it is the only one with a probe of the name.
    pub provider: Option<String>,
    pub name: String,
}

impl UsdtPattern {
    /// Returns the pattern of every probe.
    pub fn any() -> UsdtPattern {
        UsdtPattern { provider: Some("*".into()), name: "*".into() }
    }

    /// Splits `FILE:PROVIDER:NAME` or `FILE::NAME`; the file may have colons.
    pub fn split(text: &str) -> Option<(&str, UsdtPattern)> {
        let (rest, name) = text.rsplit_once(':')?;
        let (object, provider) = rest.rsplit_once(':')?;
        let provider = Some(provider).filter(|it| !it.is_empty()).map(str::to_owned);
        let pattern = UsdtPattern { provider, name: name.to_owned() };
        (!object.is_empty() && !name.is_empty()).then_some((object, pattern))
    }

    /// Returns `PROVIDER:NAME`, or `:NAME`.
    pub fn text(&self) -> String {
        format!("{}:{}", self.provider.as_deref().unwrap_or_default(), self.name)
    }

    /// Returns the only probe that it can mean, if it has no wildcards.
    pub fn only(&self) -> Option<String> {
        let text = self.text();
        (self.provider.is_some() && !text.contains(['*', '?'])).then_some(text)
    }
}

/// Names of kernels, as a script gives them: `*` stands for any text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelPattern(String);

impl KernelPattern {
    pub fn new(text: impl Into<String>) -> Self {
        KernelPattern(text.into())
    }

    /// Returns the pattern as the script gives it.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Whether it matches a kernel that has these names: demangled with and without template arguments, and mangled.
    pub fn matches<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> bool {
        names.into_iter().any(|it| glob(&self.0, it))
    }
}

/// A pattern of a handler that may have several. The first that matches a kernel has it, so that the handler runs once in each
/// of its threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternOfHandler {
    /// All patterns of the handler.
    list: Arc<[KernelPattern]>,
    /// Which of them it is.
    at: usize,
}

impl PatternOfHandler {
    /// Returns that of a handler that has no other.
    pub fn only(pattern: KernelPattern) -> Self {
        PatternOfHandler { list: Arc::new([pattern]), at: 0 }
    }

    /// Returns the patterns of a handler.
    pub fn each(patterns: impl IntoIterator<Item = KernelPattern>) -> Vec<Self> {
        let list: Arc<[KernelPattern]> = patterns.into_iter().collect();
        (0..list.len()).map(|at| PatternOfHandler { list: list.clone(), at }).collect()
    }

    pub fn pattern(&self) -> &KernelPattern {
        &self.list[self.at]
    }

    /// Whether a kernel with these names is this one's: it matches, and none before it does.
    pub fn has<'n>(&self, names: impl IntoIterator<Item = &'n str> + Clone) -> bool {
        self.list.iter().position(|it| it.matches(names.clone())) == Some(self.at)
    }

    /// Whether a kernel may be left to another pattern of the handler.
    pub fn may_overlap(&self) -> bool {
        self.list.len() > 1 && self.list.iter().any(|it| it.text().contains('*'))
    }
}

/// A handler that runs in kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceHandler<'p> {
    pub probe: ProbeId,
    /// Where in a kernel.
    pub place: DeviceEvent,
    /// In which kernels.
    pub kernels: &'p PatternOfHandler,
    /// `None` if the script has mistakes.
    pub program: Option<ProgramId>,
    /// Without one, it runs at every launch.
    pub condition: Option<Condition>,
    pub site: Site,
}

/// The launches at which a device handler runs, of those of its kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaunchFilter {
    /// `every: n`: the first of each n launches of a kernel in a process; 1 for all.
    pub every: u64,
    /// `tag: n`: only launches with this tag. `every` counts those alone.
    pub tag: Option<i64>,
    /// `stream: n`: only launches in the stream with this id, likewise.
    pub stream: Option<u32>,
}

impl LaunchFilter {
    pub const ALL: LaunchFilter = LaunchFilter { every: 1, tag: None, stream: None };

    /// Returns it as the script's options say it: `every: 100, tag: 7`.
    pub fn text(&self) -> String {
        let every = (self.every > 1).then(|| format!("every: {}", self.every));
        let tag = self.tag.map(|it| format!("tag: {it}"));
        let stream = self.stream.map(|it| format!("stream: {it}"));
        every.into_iter().chain(tag).chain(stream).collect::<Vec<_>>().join(", ")
    }
}

/// What decides at a launch whether device handlers run. Those with the same one run at the same launches of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Condition {
    pub launches: LaunchFilter,
    /// It must be on.
    pub switch: Option<SwitchId>,
}

impl Condition {
    /// Returns that of a device probe; `None` if it runs at every launch.
    fn of(probe: &Probe) -> Option<Self> {
        let it = Condition { launches: probe.launches, switch: probe.switch };
        (it != Condition { launches: LaunchFilter::ALL, switch: None }).then_some(it)
    }
}

impl Plan {
    /// Iterates over the handlers that run in kernels, in the order of the script.
    pub fn device_handlers(&self) -> impl Iterator<Item = DeviceHandler<'_>> {
        ProbeId::each(&self.probes).filter_map(|(probe, it)| match (it.event, &it.target) {
            (Event::Device(place), ProbePlace::Kernels(kernels)) => {
                let condition = Condition::of(it);
                Some(DeviceHandler { probe, place, kernels, program: it.program, condition, site: it.site })
            }
            _ => None,
        })
    }

    /// Returns the conditions of device handlers, each once; their numbers are their positions.
    pub fn conditions(&self) -> Vec<Condition> {
        let mut all = Vec::new();
        for it in self.device_handlers().filter_map(|it| it.condition) {
            if !all.contains(&it) {
                all.push(it);
            }
        }
        all
    }
}

/// Where a handler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// As eBPF in Linux.
    Linux,
    /// As eBPF in the tracer, on joined events.
    Tracer,
    /// As eBPF in kernels, in each of their threads; for the software GPU, in the tracer.
    Gpu,
    /// In the Rhai interpreter.
    Interpreter,
}

impl Place {
    /// Returns its name in `explain`.
    pub fn name(self) -> &'static str {
        match self {
            Place::Linux => "linux",
            Place::Tracer => "tracer",
            Place::Gpu => "gpu",
            Place::Interpreter => "interpreter",
        }
    }
}

/// A slot of the loss maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossSite {
    pub loss: Loss,
    pub site: Site,
    /// The map that was full, if any.
    pub table: Option<TableId>,
}

impl From<LossSite> for loss::Cause {
    fn from(LossSite { site, table, .. }: LossSite) -> Self {
        loss::Cause { site: Some(site), table }
    }
}

/// The first 4 bytes of each record that a handler writes: its kind.
pub mod record {
    /// A print: `u32` index into [`super::Plan::prints`], then its arguments.
    pub const PRINT: u32 = 1;
    /// `exit(code)`: `u32` 0, then the code as `i64`.
    pub const EXIT: u32 = 2;
    /// A recorded hit of a CPU probe: `u32` index into [`super::Plan::probes`], then the hit.
    pub const HIT: u32 = 3;
    /// `probe.enable()` or `probe.disable()`: `u32` index into [`super::Plan::switches`], `u64` 1 or 0, then the time
    /// in Linux as `u64`; elsewhere it is the end of the handler's event.
    pub const SWITCH: u32 = 4;
    pub const SWITCH_BYTES: usize = 24;
    /// `print(@m)` or `@m.clear()`: `u32` index into [`super::Plan::tables`], then a `u64`: [`CLEAR`], [`WHOLE`], or the
    /// number of the largest elements to print.
    pub const MAP: u32 = 5;
    pub const MAP_BYTES: usize = 16;
    pub const CLEAR: u64 = 0;
    pub const WHOLE: u64 = u64::MAX;

    /// Whether a record is of this kind.
    pub fn is_of(record: &[u8], kind: u32) -> bool {
        record.first_chunk().is_some_and(|it| u32::from_le_bytes(*it) == kind)
    }
}

/// What a compiled handler wants done with a whole map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapAction {
    /// Print it, or only so many of the largest elements.
    Print {
        top: Option<usize>,
    },
    Clear,
}

/// A compiled `print`: its text with arguments from the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Print {
    pub form: Form,
    /// Size of the record, including its header.
    pub size: usize,
}

/// What a `print` makes of its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    Line(Vec<Piece>),
    /// `print(#{a: …})`: names, in order, with their values.
    Object(Vec<(String, Piece)>),
}

/// A piece of a printed line. Offsets are bytes from the start of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Text(String),
    Arg(Arg),
}

/// An argument in a print record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arg {
    pub at: usize,
    pub kind: crate::table::Scalar,
    /// Offset of a `u64` that is 0 if the value is missing.
    pub present_at: Option<usize>,
    pub style: Style,
    /// What it measures; text output of an object shows it.
    pub unit: Unit,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_is_a_function_and_an_offset_is_none() {
        let are = |names: &[&str]| names.iter().map(|it| is_instruction(it)).collect::<Vec<_>>();
        assert_eq!(are(&["0x1139", "work+4", "work+0x10", "ns::operator+0x4"]), [true; 4]);
        assert_eq!(are(&["work", "ns::operator+", "operator++", "operator+="]), [false; 4]);
    }

    #[test]
    fn one_pattern_of_a_handler_has_a_kernel() {
        let all = PatternOfHandler::each(["k", "k*", "k", "*k1"].map(KernelPattern::new));
        let having = |names: [&str; 2]| all.iter().map(|it| it.has(names)).collect::<Vec<_>>();
        assert_eq!(having(["k", "_Z1kv"]), [true, false, false, false]);
        assert_eq!(having(["k1", "_Z2k1v"]), [false, true, false, false]);
        assert_eq!(having(["a", "_Z3ak1"]), [false, false, false, true]);
        assert!(all[0].may_overlap() && !PatternOfHandler::only(KernelPattern::new("k*")).may_overlap());
    }
}
