//! Weaves handlers into kernels.

use crate::NoTwin;
use crate::block_end;
use crate::conflicts;
use crate::image::{Failure, Refused};
use crate::kept::{Kept, keeps};
use crate::patches;
use crate::sharing::Shared;
use crate::text::Gpu;
use std::collections::{BTreeMap, BTreeSet};
use xputrace_bytecode::{BpfMapId, MapKind, MapSpec, Program};
use xputrace_device::arena::{Arena, ArenaError, Needs};
use xputrace_device::layout::{LINE_BYTES, TABLE, declaration, descriptor, header};
use xputrace_device::{
    DeviceMap, Kind, LEAST_ARCHITECTURE, LEAST_PTX_VERSION, Options, RecordKind, Request, Scope, SiteKind, Sums,
    TableAt, Word, sums, translate,
};
use xputrace_events::DeviceEvent;
use xputrace_events::device::{self, SOURCES, SPACES, Source};
use xputrace_ptx::{
    ADDRESS, Access, AccessKind, Declaration, Function, Module, Point, Site, Space, WeaveError, type_bits,
};
use xputrace_wire::device::{ArrayPlace, Choice, NAMES_VARIABLE, RingPlace, Twin, twin_symbol};

/// A handler, and where in a kernel it runs.
#[derive(Clone, Debug)]
pub struct Handler {
    pub place: DeviceEvent,
    pub program: Program,
    /// The number of the condition on which it runs; `None` if it runs at every launch.
    pub condition: Option<u8>,
}

/// What a kernel gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Handlers by their index, in the order in which they run.
    pub handlers: Vec<usize>,
}

/// A twin as text: the same in every run of a script, in every process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TwinText {
    /// PTX.
    pub text: String,
    /// What it is for, as it says: `sm_90a`.
    pub target: String,
    /// The symbols of the originals.
    pub kernels: Vec<String>,
    /// The original's variables that it uses.
    pub variables: Vec<String>,
    /// The symbols whose names it reads, if it reads any: of its kernels, and behind them of functions that they call.
    pub names: Vec<String>,
    /// At which launches they run, a kernel each.
    pub choices: Vec<Choice>,
    /// Of a kernel that may run itself again, which is alone then: its PTX without handlers. How deep it can go depends on the
    /// stack that each of its functions takes, so the twin's may take no more.
    pub recursive_original: Option<String>,
}

impl TwinText {
    /// Returns the twin, whose code was made of the text; `name_of` gives the string id of a function's name.
    pub fn with_code(&self, code: Vec<u8>, name_of: impl FnMut(&str) -> u64) -> Twin {
        let names = self.names.iter().map(String::as_str).map(name_of).collect();
        let (kernels, variables, choices) = (self.kernels.clone(), self.variables.clone(), self.choices.clone());
        Twin { code, kernels, variables, names, choices }
    }

    /// Returns the text as code: the driver takes one that ends with a 0, and compiles it.
    pub fn as_code(&self) -> Vec<u8> {
        [self.text.as_bytes(), &[0]].concat()
    }
}

/// Why no kernel at all can get these handlers.
#[derive(Debug, thiserror::Error)]
pub enum MakerError {
    #[error("handler {handler}: {refusal}")]
    Handler { handler: usize, refusal: xputrace_device::Refusal },
    #[error("the map `{0}` is of a kind that GPUs don't have")]
    Map(String),
    #[error(transparent)]
    Arena(#[from] ArenaError),
}

/// Whose handlers they are, and what they may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A script's: their context has the words of a device event.
    Script,
    /// A compiled object's: they have no context.
    Object {
        /// Whether they may end threads of kernels (helper 507).
        allows_exit: bool,
    },
}

impl Origin {
    fn allows_exit(self) -> bool {
        self == Origin::Object { allows_exit: true }
    }

    /// Returns where the words of the context come from.
    pub(crate) fn context(self, spot: &Spot<'_>, texts: &Texts) -> Vec<Word> {
        match self {
            Origin::Script => spot.context(texts),
            Origin::Object { .. } => Vec::new(),
        }
    }
}

/// Makes twins and patches with the handlers of one script, whose maps are in one piece of memory.
#[derive(Debug)]
pub struct Maker {
    pub(crate) origin: Origin,
    pub(crate) handlers: Vec<Handler>,
    /// The sites of each handler's program, and the number of the first. Behind them, one whose sums are kept has one more.
    own_sites: Vec<(u32, Vec<xputrace_device::Site>)>,
    /// Whether each handler reads what its kernel is called.
    reads_name: Vec<bool>,
    /// The parameters that each handler reads: a bit for each.
    reads_arguments: Vec<u64>,
    sites: Vec<HandlerSite>,
    /// Maps whose elements are merged when they are read, and that handlers only add to.
    pub(crate) added_to: BTreeSet<BpfMapId>,
    maps: Vec<DeviceMap>,
    arena: Arena,
    reads_clock: bool,
    pub(crate) texts: Texts,
}

/// A place in a handler that counts losses, or writes records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandlerSite {
    /// The handler's index.
    pub handler: usize,
    /// Index of the instruction in its program.
    pub insn: usize,
    /// What its records are, if it writes any; other sites count runs that were ended.
    pub record: Option<RecordKind>,
}

impl HandlerSite {
    fn new(handler: usize, xputrace_device::Site { insn, what }: xputrace_device::Site) -> Self {
        let record = match what {
            SiteKind::Record(kind) => Some(kind),
            SiteKind::OutOfFuel | SiteKind::BadAccess => None,
        };
        HandlerSite { handler, insn, record }
    }
}

/// String ids of what handlers read of accesses; 0 for what the script doesn't have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Texts(BTreeMap<&'static str, u64>);

impl Texts {
    fn new(id: &dyn Fn(&str) -> Option<u64>) -> Self {
        let all = device::Access::ALL.iter().map(|it| it.text()).chain(SPACES.iter().copied());
        Texts(all.filter_map(|it| Some((it, id(it)?))).collect())
    }

    pub(crate) fn id(&self, text: &str) -> u64 {
        self.0.get(text).copied().unwrap_or(0)
    }
}

impl Maker {
    /// Checks that each handler can run on a GPU, and lays out their maps.
    ///
    /// `maps` has a map of the script for each id, `None` for those that are not on the GPU. `string_id` gives the ids of
    /// strings that the script was compiled with.
    ///
    /// # Errors
    /// A handler does what GPUs can't, or the maps are too large.
    pub fn new(
        origin: Origin,
        handlers: Vec<Handler>,
        maps: &[Option<GpuMap<'_>>],
        string_id: &dyn Fn(&str) -> Option<u64>,
    ) -> Result<Maker, MakerError> {
        let merged = maps.iter().enumerate().filter(|it| it.1.is_some_and(|it| it.has_parts));
        let mut added_to: BTreeSet<BpfMapId> = merged.map(|it| BpfMapId::at(it.0)).collect();
        let maps = maps.iter().map(|it| it.map_or(Ok(NOWHERE), device_map)).collect::<Result<Vec<_>, _>>()?;
        let texts = Texts::new(string_id);
        // Nothing that depends on the place is known yet, so these are all the sites that a handler can have.
        let words = origin.context(&Spot::ANY, &texts).into_iter().zip(SOURCES);
        let context: Vec<Word> =
            words.map(|(word, source)| patches::argument_word(source).unwrap_or(unknown(word))).collect();
        let (mut own_sites, mut sites, mut reads_clock) = (Vec::new(), Vec::new(), false);
        let (mut reads_name, mut reads_arguments) = (Vec::new(), Vec::new());
        for (handler, Handler { place, program, .. }) in handlers.iter().enumerate() {
            let first_site = sites.len() as u32;
            let options = Options { first_site, allow_exit: origin.allows_exit(), ..Options::default() };
            let request = Request { program, maps: &maps, context: &context, options: &options };
            let refused = |refusal| MakerError::Handler { handler, refusal };
            let block = translate(request).map_err(refused)?;
            reads_clock |= block.text.contains(TIMER);
            reads_name.push(block.text.contains(NAMES_VARIABLE));
            reads_arguments.push(patches::arguments_in(&block.text));
            let others = sums::read_or_set(request).map_err(refused)?;
            added_to.retain(|it| !others.contains(it));
            sites.extend(block.sites.iter().map(|it| HandlerSite::new(handler, *it)));
            if keeps(*place) {
                sites.push(HandlerSite { handler, insn: 0, record: None });
            }
            own_sites.push((first_site, block.sites));
        }
        let writes = sites.iter().any(|it: &HandlerSite| it.record.is_some());
        let arena = Arena::new(Needs {
            n_sites: sites.len() as u32,
            ring_slots: if writes { RING_SLOTS } else { 0 },
            n_threads: threads_with_room(&maps),
            maps: maps.clone(),
        })?;
        Ok(Maker {
            origin,
            handlers,
            own_sites,
            reads_name,
            reads_arguments,
            sites,
            added_to,
            maps,
            arena,
            reads_clock,
            texts,
        })
    }

    /// Returns how the memory is laid out.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Returns the sites of all handlers, by number.
    pub fn sites(&self) -> &[HandlerSite] {
        &self.sites
    }

    /// Returns where the memory has its ring, if it has one.
    pub fn ring(&self) -> Option<RingPlace> {
        let (head, tail) = self.arena.ring_words();
        let slots = self.arena.ring_parts().0.start;
        let place = RingPlace { tail, slots, head, end: head + LINE_BYTES };
        (self.arena.ring_slots() > 0).then_some(place)
    }

    /// Returns the arrays of Linux that handlers use, and where the memory is to say where they are.
    pub fn arrays(&self) -> Vec<(BpfMapId, ArrayPlace)> {
        let outer = self.maps.iter().enumerate().filter(|it| it.1.kind == Kind::OuterArray);
        outer
            .map(|(map, shape)| {
                let at = self.arena.counter(map, descriptor::VALUES);
                let bytes = u64::from(shape.value_stride()) * u64::from(shape.max_entries);
                (BpfMapId::at(map), ArrayPlace { at, bytes })
            })
            .collect()
    }

    /// Whether any handler reads the GPU's timer.
    pub fn reads_clock(&self) -> bool {
        self.reads_clock
    }

    /// Whether any handler reads parameters of its kernel.
    pub fn reads_arguments(&self) -> bool {
        self.reads_arguments.iter().any(|it| *it != 0)
    }

    /// Returns the parameters that any of these handlers reads: a bit for each.
    pub fn arguments_of(&self, wanted: &Wanted) -> u64 {
        wanted.handlers.iter().fold(0, |all, it| all | self.reads_arguments[*it])
    }

    /// Returns the memory as it is at first.
    pub fn initial(&self) -> Vec<u8> {
        let mut memory = self.arena.table();
        memory.resize(self.arena.n_bytes() as usize, 0);
        memory
    }

    /// Returns the maps by their id.
    pub fn maps(&self) -> &[DeviceMap] {
        &self.maps
    }

    /// Makes the twin of these kernels of a module. They can be copied faithfully.
    pub(crate) fn twin(
        &self,
        mut module: Module,
        gpu: Gpu,
        kernels: BTreeMap<String, (Choice, Wanted)>,
    ) -> Result<TwinText, Failure> {
        let choices = kernels.values().map(|it| it.0).collect();
        let kernels: BTreeMap<String, Wanted> = kernels.into_iter().map(|(name, it)| (name, it.1)).collect();
        let target = Target::of(&module);
        let names: Vec<&str> = kernels.keys().map(String::as_str).collect();
        module.only(&names)?;
        let calls = module.calls();
        let recurs = names.iter().any(|it| calls.leads_to_recursion(it));
        let recursive_original = recurs.then(|| module.to_string());
        // Before variables are redirected, which adds reads of their addresses.
        let read_names = self.weave(&mut module, &kernels, target.architecture.min(gpu.capability))?;
        let variables = module.redirect(&mut |it| !it.is_literal())?;
        module.declare(&declaration(switches_of(&self.handlers)))?;
        if !read_names.is_empty() {
            module.declare(&format!(".visible .const .align 8 .u64 {NAMES_VARIABLE}[{}];", read_names.len()))?;
        }
        if kernels.values().any(|it| self.of_place(it, DeviceEvent::BlockEnd).next().is_some()) {
            module.declare(block_end::DECLARATION)?;
        }
        for kernel in &names {
            module.rename(kernel, &twin_symbol(kernel))?;
        }
        Ok(TwinText {
            text: module.to_string(),
            target: target.text,
            kernels: names.into_iter().map(str::to_owned).collect(),
            variables: variables.into_iter().map(|it| it.name).collect(),
            names: read_names,
            choices,
            recursive_original,
        })
    }

    /// Weaves the handlers in; returns the symbols whose names they read, if they read any.
    fn weave(
        &self,
        module: &mut Module,
        kernels: &BTreeMap<String, Wanted>,
        architecture: u32,
    ) -> Result<Vec<String>, Failure> {
        let shared = self.share(module, kernels)?;
        let mut kernels = Kernels::of(module, kernels, shared);
        kernels.callees = self.callees(module, &kernels)?;
        let kept = self.kept(module, &kernels, architecture)?;
        for (kernel, kept) in &kept {
            module.begin(kernel, &kept.registers())?;
        }
        let (mut refused, mut reads_names) = (Refused::new(), false);
        module.weave(&kernels.names(), &mut |site| {
            let kernel = kernels.caller(site)?;
            let kept = kept.get(kernel).filter(|_| kernel == site.function);
            let spot = kernels.spot(kernel, site);
            match self.at_places(kernels.wanted(kernel), places_of(site), &spot, architecture, kept) {
                Ok(text) => {
                    reads_names |= text.contains(NAMES_VARIABLE);
                    Some(text).filter(|it| !it.is_empty())
                }
                Err(refusal) => {
                    refused.entry(kernel.to_owned()).or_insert(NoTwin::Refused(refusal));
                    None
                }
            }
        })?;
        if !refused.is_empty() {
            return Err(Failure::Of(refused));
        }
        Ok(if reads_names { kernels.symbols() } else { Vec::new() })
    }

    /// Returns the functions whose calls have handlers, as the original calls them, in the order of their names.
    fn callees(&self, module: &Module, kernels: &Kernels<'_>) -> Result<Vec<String>, WeaveError> {
        let has_handlers = |kernel: &str| self.of_place(kernels.wanted(kernel), DeviceEvent::Call).next().is_some();
        let names = kernels.names();
        let mut callees = BTreeSet::new();
        if names.iter().any(|it| has_handlers(it)) {
            module.clone().weave(&names, &mut |site| {
                let calls = kernels.caller(site).filter(|it| site.point == Point::BeforeCall && has_handlers(it));
                callees.extend(calls.and_then(|_| kernels.callee(site)).map(str::to_owned));
                None
            })?;
        }
        Ok(callees.into_iter().collect())
    }

    /// Returns the PTX of a kernel's handlers where these places are; empty if it has none there.
    fn at_places(
        &self,
        wanted: &Wanted,
        places: &[DeviceEvent],
        spot: &Spot<'_>,
        architecture: u32,
        kept: Option<&Kept>,
    ) -> Result<String, xputrace_device::Refusal> {
        let mut text = String::new();
        for place in places {
            let blocks = self.blocks(wanted, *place, spot, architecture, kept)?;
            let is_of_last = *place == DeviceEvent::BlockEnd && !blocks.is_empty();
            text += &if is_of_last { block_end::in_last_thread(&blocks) } else { blocks };
        }
        Ok(text)
    }

    /// Returns the PTX of a kernel's handlers at this place; empty if it has none there.
    fn blocks(
        &self,
        wanted: &Wanted,
        place: DeviceEvent,
        spot: &Spot<'_>,
        architecture: u32,
        kept: Option<&Kept>,
    ) -> Result<String, xputrace_device::Refusal> {
        let mut text = String::new();
        let mut here = self.of_place(wanted, place).peekable();
        // Code has far more places than handlers.
        if here.peek().is_some() {
            let context = self.origin.context(spot, &self.texts);
            for at in here {
                let table = TableAt::Variable { switch: switch_of(&self.handlers[at]) };
                let sums = kept.filter(|_| keeps(place)).map(|it| it.sums(switch_of(&self.handlers[at])));
                text += &self.block(at, &context, architecture, table, sums.unwrap_or_default())?;
                text.push('\n');
            }
        }
        match kept.filter(|_| place == DeviceEvent::Exit) {
            Some(kept) => Ok(text + &self.flush(kept, spot, architecture)?),
            None => Ok(text),
        }
    }

    /// Returns where a handler runs.
    pub(crate) fn place(&self, handler: usize) -> DeviceEvent {
        self.handlers[handler].place
    }

    /// Returns the number of a handler's condition.
    pub(crate) fn condition(&self, handler: usize) -> Option<u8> {
        self.handlers[handler].condition
    }

    /// Whether a handler reads what its kernel is called.
    pub(crate) fn reads_name(&self, handler: usize) -> bool {
        self.reads_name[handler]
    }

    /// Returns the handlers of a kernel that run at this place.
    pub(crate) fn of_place<'a>(&'a self, wanted: &'a Wanted, place: DeviceEvent) -> impl Iterator<Item = usize> + 'a {
        wanted.handlers.iter().copied().filter(move |at| self.handlers[*at].place == place)
    }

    /// Returns the PTX of a handler, with this context.
    pub(crate) fn block(
        &self,
        handler: usize,
        context: &[Word],
        architecture: u32,
        table: TableAt,
        sums: Sums,
    ) -> Result<String, xputrace_device::Refusal> {
        let options = Options { sums, ..self.options(handler, architecture, table) };
        let program = &self.handlers[handler].program;
        let block = |options: &Options| translate(Request { program, maps: &self.maps, context, options });
        let kept = block(&options)?;
        if sums::is_straight(&kept) {
            return Ok(kept.text);
        }
        // Nor does it keep then what it could.
        let text =
            if options.sums.is_empty() { kept } else { block(&Options { sums: Sums::default(), ..options })? }.text;
        // Threads that a handler ends don't come together again.
        Ok(if self.origin.allows_exit() { text } else { together_again(&text) })
    }

    /// Returns how a handler is translated.
    pub(crate) fn options(&self, handler: usize, architecture: u32, table: TableAt) -> Options {
        let (first_site, sites) = self.own_sites[handler].clone();
        Options { first_site, sites, allow_exit: self.origin.allows_exit(), architecture, table, ..Options::default() }
    }
}

/// Returns the element of the twin's variable that switches a handler.
pub(crate) fn switch_of(handler: &Handler) -> usize {
    handler.condition.map_or(0, |it| usize::from(it) + 1)
}

/// Returns how many switches handlers have.
pub(crate) fn switches_of(handlers: &[Handler]) -> usize {
    handlers.iter().map(|it| switch_of(it) + 1).max().unwrap_or(1)
}

/// Returns the events at a point of a kernel's code, in their order.
pub(crate) fn places_of(site: &Site<'_>) -> &'static [DeviceEvent] {
    match site.point {
        Point::Entry => &[DeviceEvent::BlockBegin, DeviceEvent::Entry],
        Point::Exit => &[DeviceEvent::Exit, DeviceEvent::BlockEnd],
        Point::BeforeAccess(_) => &[DeviceEvent::Memory],
        Point::BeforeBarrier => &[DeviceEvent::Barrier],
        Point::BeforeCall => &[DeviceEvent::Call],
        Point::Line => &[DeviceEvent::Line],
        _ => &[],
    }
}

/// Returns a word of which nothing is known now.
fn unknown(word: Word) -> Word {
    match word {
        Word::Constant(value) => Word::Statements(format!("mov.b64 {{d}}, {value};")),
        other => other,
    }
}

/// The kernels of a twin.
pub(crate) struct Kernels<'a> {
    wanted: &'a BTreeMap<String, Wanted>,
    parameters: BTreeMap<&'a str, Vec<Parameter>>,
    shared: Shared,
    /// The functions whose names handlers may read at calls.
    callees: Vec<String>,
}

impl<'a> Kernels<'a> {
    fn of(module: &Module, wanted: &'a BTreeMap<String, Wanted>, shared: Shared) -> Self {
        let parameters = |it: &'a String| (it.as_str(), module.kernel(it).map(parameters).unwrap_or_default());
        Kernels { wanted, parameters: wanted.keys().map(parameters).collect(), shared, callees: Vec::new() }
    }

    pub(crate) fn names(&self) -> Vec<&'a str> {
        self.wanted.keys().map(String::as_str).collect()
    }

    pub(crate) fn wanted(&self, kernel: &str) -> &'a Wanted {
        &self.wanted[kernel]
    }

    pub(crate) fn has(&self, function: &str) -> bool {
        self.wanted.contains_key(function)
    }

    /// Returns the kernel whose handlers a place gets, if any runs it.
    fn caller<'s>(&'s self, site: &Site<'s>) -> Option<&'s str> {
        if self.has(site.function) {
            return Some(site.function);
        }
        self.shared.get(site.function).map(|it| it.kernel.as_str())
    }

    /// Returns the function that a place calls, as the original calls it.
    fn callee<'s>(&'s self, site: &Site<'s>) -> Option<&'s str> {
        let callee = site.instruction?.callee()?;
        Some(self.shared.get(callee).map_or(callee, |it| it.original.as_str()))
    }

    /// Returns the symbols of the twin's variable for names, in their order.
    fn symbols(&self) -> Vec<String> {
        self.wanted.keys().chain(&self.callees).cloned().collect()
    }

    /// Returns a place in a kernel, which knows its parameters there.
    pub(crate) fn spot<'s>(&'s self, kernel: &str, site: &'s Site<'s>) -> Spot<'s> {
        let parameters = self.parameters.get(kernel).filter(|_| kernel == site.function);
        let kernel = self.wanted.keys().position(|it| it == kernel).unwrap_or(0);
        let callee =
            self.callee(site).and_then(|it| self.callees.binary_search_by(|known| known.as_str().cmp(it)).ok());
        let callee = callee.map(|it| self.wanted.len() + it);
        Spot { kernel, callee, site: Some(site), parameters: parameters.map_or(&[], Vec::as_slice) }
    }
}

/// A parameter of a kernel that fits into a word.
struct Parameter {
    name: String,
    /// 1 to 8.
    bytes: u32,
    /// What its address is a multiple of.
    alignment: u32,
}

/// Returns a kernel's parameters; without a name, those that are larger.
fn parameters(kernel: &Function) -> Vec<Parameter> {
    kernel.parameters.iter().flatten().map(|it| parameter(it).unwrap_or(Parameter::NONE)).collect()
}

/// Returns a parameter, if it fits into a word: a structure is an array of bytes.
fn parameter(it: &Declaration) -> Option<Parameter> {
    let words = || it.words.iter().filter_map(|word| word.strip_prefix('.'));
    let size = words().rev().find_map(type_bits)? / 8;
    let one = it.names.first()?;
    let n = one.dimensions.iter().try_fold(1u32, |all, n| all.checked_mul(n.parse().ok()?))?;
    let bytes = size.checked_mul(n).filter(|it| (1..=8).contains(it))?;
    // Of a pointer, what is said is how aligned that is to which it points.
    let said = words().find_map(|it| it.strip_prefix("align")?.trim().parse().ok()).filter(|_| bytes > size);
    Some(Parameter { name: one.name.clone(), bytes, alignment: said.unwrap_or(size) })
}

/// Where a handler runs, as far as its context depends on that.
pub(crate) struct Spot<'a> {
    /// The kernel's index in its twin.
    kernel: usize,
    /// Where the twin's variable for names has that of the function which is called there.
    callee: Option<usize>,
    site: Option<&'a Site<'a>>,
    /// Those that can be read there.
    parameters: &'a [Parameter],
}

impl Spot<'_> {
    /// To see whether a handler can run anywhere.
    const ANY: Spot<'static> = Spot { kernel: 0, callee: None, site: None, parameters: &[] };

    /// Returns where the words of the context come from.
    ///
    /// What changes from run to run comes from memory: the text is the same in all of them.
    fn context(&self, texts: &Texts) -> Vec<Word> {
        SOURCES.into_iter().enumerate().map(|(at, source)| self.word(at, source, texts)).collect()
    }

    fn word(&self, at: usize, source: Source, texts: &Texts) -> Word {
        match source {
            Source::Register32(register) => Word::Narrow(register.into()),
            Source::Register64(register) => Word::Wide(register.into()),
            Source::GlobalTimer => Word::Statements(clock()),
            Source::OfProcess => Word::Fixed(process_id()),
            Source::OfKernel => Word::Fixed(name_at(self.kernel)),
            Source::Leader => Word::Statements(LEADER.into()),
            Source::Active => Word::Statements(ACTIVE.into()),
            Source::OfPlace => self.of_place(at, texts),
            Source::HasArgument(n) => Word::Constant(self.parameter(n).is_some().into()),
            Source::Argument(n) => self.parameter(n).map_or(Word::Constant(0), |it| Word::Fixed(it.statements())),
        }
    }

    fn parameter(&self, n: usize) -> Option<&Parameter> {
        self.parameters.get(n).filter(|it| !it.name.is_empty())
    }

    fn of_place(&self, at: usize, texts: &Texts) -> Word {
        let access = match self.site.map(|it| it.point) {
            Some(Point::BeforeAccess(access)) => Some(access),
            _ => None,
        };
        let line = self.site.and_then(|it| it.line).map_or(0, |it| it.line);
        match (at, access) {
            (device::LINE, _) => Word::Constant(line.into()),
            (device::HAS_CALLEE, _) => Word::Constant(self.callee.is_some().into()),
            // Another one at another call.
            (device::CALLEE, _) => self.callee.map_or(Word::Constant(0), |it| Word::Statements(name_at(it))),
            (device::ADDRESS, Some(_)) => Word::Wide(ADDRESS.into()),
            (device::BYTES, Some(access)) => Word::Constant(access.bytes.unwrap_or(0).into()),
            (device::ACCESS, Some(access)) => Word::Constant(texts.id(kind(&access).text())),
            (device::SECTORS, Some(access)) => sectors(&access).map_or(Word::Constant(0), Word::Statements),
            (device::HAS_CONFLICTS, Some(access)) => {
                conflicts::are_known(&access).map_or(Word::Constant(0), Word::Statements)
            }
            (device::CONFLICTS, Some(access)) => {
                conflicts::of_access(&access).map_or(Word::Constant(0), Word::Statements)
            }
            (device::SPACE, Some(access)) => Word::Constant(texts.id(access.space.name())),
            _ => Word::Constant(0),
        }
    }
}

fn kind(access: &Access) -> device::Access {
    match access.kind {
        AccessKind::Load => device::Access::Load,
        AccessKind::Store => device::Access::Store,
        AccessKind::Atomic | AccessKind::Reduction => device::Access::Atomic,
    }
}

impl Parameter {
    /// One that handlers can't have.
    const NONE: Parameter = Parameter { name: String::new(), bytes: 0, alignment: 0 };

    /// Returns PTX that sets `{d}` to it.
    fn statements(&self) -> String {
        let Parameter { name, bytes, alignment } = self;
        match bytes {
            _ if alignment < bytes || !bytes.is_power_of_two() => self.pieces(),
            8 => format!("ld.param.b64 {{d}}, [{name}];"),
            4 => format!("{{ .reg .b32 %narrow; ld.param.b32 %narrow, [{name}]; cvt.u64.u32 {{d}}, %narrow; }}"),
            _ => {
                let bits = 8 * bytes;
                format!("{{ .reg .b16 %narrow; ld.param.u{bits} %narrow, [{name}]; cvt.u64.u16 {{d}}, %narrow; }}")
            }
        }
    }

    /// Likewise, of a structure whose address is a multiple of less than its size: by what can be read at once.
    fn pieces(&self) -> String {
        let mut text = "{ .reg .b64 %piece; mov.b64 {d}, 0;".to_owned();
        let mut at = 0;
        while at < self.bytes {
            let left = self.bytes - at;
            let bytes =
                [4, 2, 1].into_iter().find(|it| *it <= left && *it <= self.alignment && at % it == 0).unwrap_or(1);
            text += &format!(
                " ld.param.u{} %piece, [{}+{at}]; shl.b64 %piece, %piece, {}; or.b64 {{d}}, {{d}}, %piece;",
                8 * bytes,
                self.name,
                8 * at
            );
            at += bytes;
        }
        text + " }"
    }
}

/// Has the threads of a warp that came to a handler together go on together. The compiler lets them go on alone where a handler
/// has branches, and then the next one would see a warp's threads in several groups. (PTX ISA, "bar.warp.sync": all threads of
/// the mask must come to it, as they do.)
pub(crate) fn together_again(handler: &str) -> String {
    format!(
        "{{\n    .reg .b32 %xpt_there;\n    activemask.b32 %xpt_there;\n{handler}    bar.warp.sync %xpt_there;\n}}\n"
    )
}

/// PTX that sets `{d}` to 1 in the last of the threads of a warp that are there, and to 0 in the others.
pub(crate) const LEADER: &str = "{ .reg .b32 %there, %leader, %lane; .reg .pred %is_it; activemask.b32 %there; \
     bfind.u32 %leader, %there; mov.u32 %lane, %laneid; setp.eq.u32 %is_it, %leader, %lane; \
     selp.b64 {d}, 1, 0, %is_it; }";

/// PTX that sets `{d}` to the number of threads of a warp that are there.
pub(crate) const ACTIVE: &str =
    "{ .reg .b32 %there; activemask.b32 %there; popc.b32 %there, %there; cvt.u64.u32 {d}, %there; }";

/// Returns PTX that sets `{d}` to the number of sectors that the threads of a warp that are there access: of the threads of a
/// sector one is counted. Aligned as they must be, the bytes of a thread lie in one sector (PTX ISA, "Addresses as Operands").
fn sectors(access: &Access) -> Option<String> {
    let is_counted = match access.space {
        Space::Global => "",
        // An address of another space is none of global memory's.
        Space::Generic => "isspacep.global %is_global, {address}; and.pred %is_first, %is_first, %is_global; ",
        Space::Shared | Space::Local | Space::Const | Space::Param => return None,
    };
    // Copies in bulk are aligned to 16 bytes alone.
    let most_bytes = if access.is_asynchronous { 16 } else { device::SECTOR_BYTES };
    access.bytes.filter(|it| u64::from(*it) <= most_bytes)?;
    Some(sectors_at(ADDRESS, is_counted))
}

/// Returns PTX that sets `{d}` to the number of sectors that the threads of a warp that are there access at these addresses.
/// `is_counted` are statements that clear `%is_first` in threads whose access is not counted; they may use `%is_global`.
pub(crate) fn sectors_at(address: &str, is_counted: &str) -> String {
    let shift = device::SECTOR_BYTES.ilog2();
    let text = format!(
        "{{ .reg .b32 %there, %same, %first, %lane, %n; .reg .b64 %sector; .reg .pred %is_first, %is_global; \
         activemask.b32 %there; shr.u64 %sector, {{address}}, {shift}; match.any.sync.b64 %same, %sector, %there; \
         bfind.u32 %first, %same; mov.u32 %lane, %laneid; setp.eq.u32 %is_first, %lane, %first; {is_counted}\
         vote.sync.ballot.b32 %n, %is_first, %there; popc.b32 %n, %n; cvt.u64.u32 {{d}}, %n; }}"
    );
    text.replace("{address}", address)
}

/// What a module is to be compiled for.
pub(crate) struct Target {
    /// As it says: `sm_90a`.
    pub(crate) text: String,
    /// Its number; 0 if there is none.
    architecture: u32,
    version: (u32, u32),
}

impl Target {
    pub(crate) fn of(module: &Module) -> Self {
        let said = |name| module.directives(name).next().map_or("", |it| it.arguments.as_str());
        let text = said(".target").split([',', ' ']).find(|it| it.starts_with("sm_")).unwrap_or_default();
        let number =
            |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0);
        let (major, minor) = said(".version").split_once('.').unwrap_or_default();
        Target {
            text: text.to_owned(),
            architecture: number(text.trim_start_matches("sm_")),
            version: (number(major), number(minor)),
        }
    }

    /// Whether handlers can be compiled for it.
    pub(crate) fn is_enough(&self) -> bool {
        self.architecture >= LEAST_ARCHITECTURE && self.version >= LEAST_PTX_VERSION
    }
}

// What this crate's parts say of each other's symbols.
const _: () = assert!(header::ENABLED as usize == xputrace_wire::device::ENABLED);
const _: () = assert!(header::PID_TGID as usize == xputrace_wire::device::PID_TGID);
const _: () = assert!(header::CLOCK_OFFSET_NS as usize == xputrace_wire::device::CLOCK_OFFSET);

/// Takes no memory.
const NOWHERE: DeviceMap =
    DeviceMap { kind: Kind::Ring, key_bytes: 0, value_bytes: 0, max_entries: 0, parts: 1, scope: Scope::Device };

/// A map of the script that is on the GPU.
#[derive(Clone, Copy, Debug)]
pub struct GpuMap<'a> {
    pub spec: &'a MapSpec,
    /// Whether its values may be in parts, which readers merge.
    pub has_parts: bool,
    /// Whether it is an array of Linux, which the GPU uses where it is.
    pub is_outer: bool,
}

/// Slots of the ring: 4 MiB, and the marks of 1 MiB. They are copied as often as the maps, or more.
const RING_SLOTS: u32 = 1 << 16;

/// Arrays per thread take at most this much memory, all together: it is copied as often as the maps.
const MOST_THREADS_BYTES: u64 = 32 << 20;

/// Returns for how many threads there is room in arrays per thread.
fn threads_with_room(maps: &[DeviceMap]) -> u64 {
    let of_threads = maps.iter().filter(|it| it.kind == Kind::PerThreadArray);
    let bytes = of_threads.fold(0, |all, it| it.value_bytes_in_all().saturating_add(all));
    MOST_THREADS_BYTES.checked_div(bytes).unwrap_or(0)
}

/// The values of a map take at most this much memory because they are in parts.
const MOST_PARTS_BYTES: u64 = 4 << 20;
/// More than multiprocessors have to share parts.
const MOST_PARTS: u64 = 128;

fn device_map(GpuMap { spec, has_parts, is_outer }: GpuMap<'_>) -> Result<DeviceMap, MakerError> {
    let kind = match spec.kind {
        MapKind::Hash if !is_outer => Kind::Hash,
        MapKind::Array if is_outer => Kind::OuterArray,
        MapKind::Array => Kind::Array,
        MapKind::PerThreadArray => Kind::PerThreadArray,
        MapKind::Ringbuf | MapKind::EventRing => Kind::Ring,
        _ => return Err(MakerError::Map(spec.name.clone())),
    };
    let map = DeviceMap {
        kind,
        key_bytes: spec.key_size,
        value_bytes: spec.value_size,
        max_entries: spec.max_entries,
        parts: 1,
        scope: if is_outer { Scope::System } else { Scope::Device },
    };
    let parts = if has_parts { MOST_PARTS_BYTES / map.part_bytes().max(LINE_BYTES) } else { 1 };
    Ok(DeviceMap { parts: parts.clamp(1, MOST_PARTS) as u32, ..map })
}

/// Returns PTX that sets `{d}` to the GPU's time on the host's clock.
pub(crate) fn clock() -> String {
    format!(
        "{{ .reg .b64 %offset; ld.global.u64 %offset, [{TABLE}+{}]; mov.u64 {{d}}, {TIMER}; \
         add.s64 {{d}}, {{d}}, %offset; }}",
        header::CLOCK_OFFSET_NS
    )
}

/// The GPU's timer, in nanoseconds.
const TIMER: &str = "%globaltimer";

/// Returns PTX that sets `{d}` to the id of the process.
pub(crate) fn process_id() -> String {
    format!("ld.global.u64 {{d}}, [{TABLE}+{}]; shr.u64 {{d}}, {{d}}, 32;", header::PID_TGID)
}

/// Returns PTX that sets `{d}` to an element of the twin's variable for names.
fn name_at(index: usize) -> String {
    format!("ld.const.u64 {{d}}, [{NAMES_VARIABLE}+{}];", index * size_of::<u64>())
}

#[cfg(test)]
mod tests {

    #[test]
    fn symbols_are_those_that_the_collector_sets() {
        use xputrace_device::layout::VARIABLE;
        use xputrace_wire::device::{BLOCK_VARIABLE, GLOBALS_VARIABLE};
        assert_eq!((VARIABLE, xputrace_ptx::GLOBALS), (BLOCK_VARIABLE, GLOBALS_VARIABLE));
    }
}
