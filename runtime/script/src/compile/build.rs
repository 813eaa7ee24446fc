//! The plan under construction: maps, strings and loss slots are created on first use.

use super::emit::Emitter;
use super::nested::NESTED_BYTES;
use super::returns::{ENTRY_BYTES, KEY_BYTES, MOST_KEPT};
use super::tables::Shapes;
use super::typed::{Checked, MapId};
use super::unit::Unit;
use crate::handler::{Handler, Staged};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use xputrace_bytecode::callers::{self, Callers};
use xputrace_bytecode::image::{MMAPABLE, NO_PREALLOC};
use xputrace_bytecode::{BpfMapId, Home, Image, MapKind, MapSpec, ProgramKind};
use xputrace_model::catalog::Catalog;
use xputrace_model::context::device::{self, launch_word};
use xputrace_model::diagnostic::{Diagnostic, FileId, Site};
use xputrace_model::loss::Loss;
use xputrace_model::plan::{
    LaunchFilter, LaunchPart, LossSite, Place, Plan, Probe, ProbeId, ProgramId, ReturnWay, StringId, TAG_SLOTS, Target,
};
use xputrace_model::schema::{DeviceEvent, Event};
use xputrace_model::stack;
use xputrace_model::table::{Parts, Storage, TableDef, TableId, TableKind};

/// Size of the ring buffers through which handlers print.
const RING_BYTES: u32 = 1 << 20;
/// Maximum number of open calls under return probes, beside the elements that stay; beyond it the oldest are evicted.
const ENTRIES: u32 = 16_384 + MOST_KEPT;
/// Maximum number of threads whose open calls are tracked.
const NESTED_THREADS: u32 = 4096;
/// Maximum number of processes that receive tags.
const PROCESSES: u32 = 16_384;

/// Which engine a program runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Engine {
    Linux,
    Tracer,
    Gpu,
}

impl Engine {
    fn home(self) -> Home {
        match self {
            Engine::Linux => Home::Linux,
            Engine::Tracer => Home::Tracer,
            Engine::Gpu => Home::Gpu,
        }
    }

    fn letter(self) -> &'static str {
        match self {
            Engine::Linux => "k",
            Engine::Tracer => "t",
            Engine::Gpu => "d",
        }
    }
}

pub(super) struct Build<'a> {
    pub(super) staged: &'a Staged,
    pub(super) catalog: &'a dyn Catalog,
    pub(super) shapes: &'a Shapes,
    pub(super) diagnostics: Vec<Diagnostic>,
    pub(super) plan: Plan,
    tables: Vec<TableDef>,
    strings: FxHashMap<String, StringId>,
    losses: FxHashMap<(Loss, FileId, u32, Option<TableId>), usize>,
    nested: Option<BpfMapId>,
    kept_entries: Option<(BpfMapId, u32)>,
    every: FxHashMap<Engine, (BpfMapId, u32)>,
    tracer_ring: Option<BpfMapId>,
    gpu_ring: Option<BpfMapId>,
    /// Whether a handler in Linux calls `exit`.
    pub(super) ends_in_linux: bool,
    over: Option<BpfMapId>,
    /// Whether only a part of the run is recorded.
    pub(super) has_window: bool,
    /// Whether stacks at a function's entry have its caller.
    pub(super) keeps_callers: bool,
    /// Whether programs in Linux tell that they were hit.
    pub(super) has_hits: bool,
}

impl<'a> Build<'a> {
    pub(super) fn new(staged: &'a Staged, catalog: &'a dyn Catalog, shapes: &'a Shapes) -> Self {
        let sources = staged.sources.files.iter().map(|it| (it.name.clone(), it.text.clone())).collect();
        let plan = Plan {
            sources: staged.sources.clone(),
            image: Image { sources, ..Image::default() },
            strings: vec![String::new()],
            ..Plan::default()
        };
        let mut build = Build {
            staged,
            catalog,
            shapes,
            diagnostics: Vec::new(),
            plan,
            tables: Vec::new(),
            strings: FxHashMap::from_iter([(String::new(), 0)]),
            losses: FxHashMap::default(),
            nested: None,
            kept_entries: None,
            every: FxHashMap::default(),
            tracer_ring: None,
            gpu_ring: None,
            ends_in_linux: false,
            over: None,
            has_window: false,
            keeps_callers: false,
            has_hits: false,
        };
        for map in 0..shapes.list.len() {
            let table = build.table_with_maps(map);
            build.add_launch_parts(map, &table);
            build.tables.push(table);
        }
        build
    }

    /// Adds a handler's probe, and its programs if it is compiled and the script has no errors.
    pub(super) fn handler(&mut self, unit: &Unit, fit: bool) {
        let handler = unit.handler;
        let id = ProbeId::at(self.plan.probes.len());
        let mut probe = Probe {
            target: handler.target.clone(),
            name: handler.name.clone(),
            returns: handler.options.returns,
            closure: handler.interpreted,
            scope: handler.options.scope(),
            texts: unit.checked.as_ref().map_or(Vec::new(), |it| it.texts.clone()),
            sees_unjoined: unit.sees_unjoined(),
            arguments: unit.arguments(),
            usdt_arguments: unit.checked.as_ref().map_or(Vec::new(), |it| it.usdt_arguments.clone()),
            switch: self.plan.switch_of(handler.declared),
            launches: if unit.place == Place::Gpu { handler.options.launches() } else { LaunchFilter::ALL },
            site: handler.site,
            why: unit.why.clone(),
            ..Probe::of(handler.event, unit.place)
        };
        if let Some(checked) = unit.checked.as_ref().filter(|_| fit) {
            probe.program = self.program(handler, unit.place, checked, id);
            if checked.entry_args.is_some() {
                probe.entry_program = self.entry_program(handler, checked, id);
            }
            if handler.event == Event::Uretprobe && probe.returns == ReturnWay::AtReturn {
                probe.tail_program = self.tail_program(handler, checked, id);
            }
        }
        self.plan.probes.push(probe);
    }

    fn program(&mut self, handler: &Handler, place: Place, checked: &Checked, probe: ProbeId) -> Option<ProgramId> {
        let (engine, kind) = match (place, handler.event, &handler.target) {
            (Place::Gpu, event, Target::Kernels(kernels)) => {
                let (place, kernels) = (event.name().to_owned(), kernels.pattern().text().to_owned());
                (Engine::Gpu, ProgramKind::Device { place, kernels })
            }
            (Place::Tracer | Place::Interpreter, ..) => (Engine::Tracer, ProgramKind::Syscall),
            (_, Event::Uretprobe, _) => (Engine::Linux, ProgramKind::Uretprobe),
            (_, Event::Tracepoint, Target::Tracepoint { category, name }) => {
                (Engine::Linux, ProgramKind::Tracepoint { category: category.clone(), name: name.clone() })
            }
            (_, Event::Profile, _) => (Engine::Linux, ProgramKind::PerfEvent),
            _ => (Engine::Linux, ProgramKind::Uprobe),
        };
        if handler.event == Event::Device(DeviceEvent::Memory) {
            // Twins of kernels set them.
            device::Access::ALL.iter().map(|it| it.text()).chain(device::SPACES.iter().copied()).for_each(|it| {
                self.string(it);
            });
        }
        let name = format!("{}_{}", handler.event.name(), probe.0);
        let mut emitter = Emitter::new(self, handler, checked, engine, probe);
        emitter.prologue();
        emitter.block(&checked.body);
        let program = emitter.finish(name, kind)?;
        Some(self.plan.image.add_program(program))
    }

    fn entry_program(&mut self, handler: &Handler, checked: &Checked, probe: ProbeId) -> Option<ProgramId> {
        let mut emitter = Emitter::new(self, handler, checked, Engine::Linux, probe);
        emitter.leave_entry();
        let program = emitter.finish(format!("entry_{}", probe.0), ProgramKind::Uprobe)?;
        Some(self.plan.image.add_program(program))
    }

    fn tail_program(&mut self, handler: &Handler, checked: &Checked, probe: ProbeId) -> Option<ProgramId> {
        let mut emitter = Emitter::new(self, handler, checked, Engine::Linux, probe);
        emitter.count_tail_call();
        let program = emitter.finish(format!("tail_{}", probe.0), ProgramKind::Uprobe)?;
        Some(self.plan.image.add_program(program))
    }

    /// Returns the finished plan, with growing maps at their final size.
    pub(super) fn finish(mut self) -> (Plan, Vec<Diagnostic>) {
        let slots = self.plan.loss_sites.len().max(1) as u32;
        for map in [self.plan.linux_losses, self.plan.tracer_losses, self.plan.gpu_losses].into_iter().flatten() {
            self.plan.image.maps[map].max_entries = slots;
        }
        if let Some(map) = self.plan.linux_hits {
            self.plan.image.maps[map].max_entries = self.plan.probes.len() as u32;
        }
        for (map, slots) in self.every.values() {
            self.plan.image.maps[*map].max_entries = *slots;
        }
        self.plan.tables = self.tables.into_iter().map(Arc::new).collect();
        (self.plan, self.diagnostics)
    }

    /// Returns the id of a string known at compile time.
    pub(super) fn string(&mut self, text: &str) -> StringId {
        if let Some(id) = self.strings.get(text) {
            return *id;
        }
        let id = self.plan.strings.len() as StringId;
        self.plan.strings.push(text.into());
        self.strings.insert(text.into(), id);
        id
    }

    /// Returns the slot that counts a loss at a line, shared by the engines.
    pub(super) fn loss_slot(&mut self, loss: Loss, site: Site, table: Option<TableId>, engine: Engine) -> usize {
        self.loss_map(engine);
        let sites = &mut self.plan.loss_sites;
        *self.losses.entry((loss, site.file, site.line, table)).or_insert_with(|| {
            sites.push(LossSite { loss, site, table });
            sites.len() - 1
        })
    }

    pub(super) fn loss_map(&mut self, engine: Engine) -> BpfMapId {
        let known = match engine {
            Engine::Linux => self.plan.linux_losses,
            Engine::Tracer => self.plan.tracer_losses,
            Engine::Gpu => self.plan.gpu_losses,
        };
        if let Some(map) = known {
            return map;
        }
        let (name, kind) = match engine {
            Engine::Linux => ("losses_k", MapKind::PercpuArray),
            Engine::Tracer => ("losses_t", MapKind::Array),
            Engine::Gpu => ("losses_d", MapKind::Array),
        };
        let map = self.map(spec(name, kind, 4, 8, 1, 0, engine.home()));
        match engine {
            Engine::Linux => self.plan.linux_losses = Some(map),
            Engine::Tracer => self.plan.tracer_losses = Some(map),
            Engine::Gpu => self.plan.gpu_losses = Some(map),
        }
        map
    }

    /// Returns the map that counts the elements of evicting maps.
    pub(super) fn stored_map(&mut self) -> BpfMapId {
        if let Some(map) = self.plan.linux_stored {
            return map;
        }
        let maps = self.shapes.list.len() as u32;
        let map = self.map(spec("stored", MapKind::PercpuArray, 4, 8, maps, 0, Home::Linux));
        self.plan.linux_stored = Some(map);
        map
    }

    /// Returns the map that tells programs in Linux that one of them has called `exit`: its value is then
    /// not 0. `None` if none of them can.
    pub(super) fn over_map(&mut self, engine: Engine) -> Option<BpfMapId> {
        if engine != Engine::Linux || !self.ends_in_linux {
            return None;
        }
        if self.over.is_none() {
            self.over = Some(self.map(spec("over", MapKind::Array, 4, 8, 1, 0, Home::Linux)));
        }
        self.over
    }

    /// Returns the map that tells programs in Linux whether to record: its value is then not 0. `None` if they
    /// always do.
    pub(super) fn window_map(&mut self, engine: Engine) -> Option<BpfMapId> {
        if engine != Engine::Linux || !self.has_window {
            return None;
        }
        if self.plan.window.is_none() {
            self.plan.window = Some(self.map(spec("window", MapKind::Array, 4, 8, 1, 0, Home::Linux)));
        }
        self.plan.window
    }

    /// Returns the map in which programs in Linux tell that they were hit. `None` if nobody wants to know.
    pub(super) fn hits_map(&mut self, engine: Engine) -> Option<BpfMapId> {
        if engine != Engine::Linux || !self.has_hits {
            return None;
        }
        if self.plan.linux_hits.is_none() {
            self.plan.linux_hits = Some(self.map(spec("hits", MapKind::Array, 4, 8, 1, 0, Home::Linux)));
        }
        self.plan.linux_hits
    }

    /// Returns the map that tells programs in Linux which switches are off: the values are then not 0.
    pub(super) fn switches_map(&mut self) -> BpfMapId {
        if let Some(map) = self.plan.linux_switches {
            return map;
        }
        let n = self.plan.switches.len() as u32;
        let map = self.map(spec("switches", MapKind::Array, 4, 8, n, 0, Home::Linux));
        self.plan.linux_switches = Some(map);
        map
    }

    pub(super) fn ring_map(&mut self, engine: Engine) -> BpfMapId {
        let known = match engine {
            Engine::Linux => self.plan.linux_ring,
            Engine::Tracer => self.tracer_ring,
            Engine::Gpu => self.gpu_ring,
        };
        if let Some(map) = known {
            return map;
        }
        let name = format!("prints_{}", engine.letter());
        let map = self.map(spec(&name, MapKind::Ringbuf, 0, 0, RING_BYTES, 0, engine.home()));
        match engine {
            Engine::Linux => self.plan.linux_ring = Some(map),
            Engine::Tracer => self.tracer_ring = Some(map),
            Engine::Gpu => self.gpu_ring = Some(map),
        }
        map
    }

    pub(super) fn stack_map(&mut self) -> BpfMapId {
        if let Some(map) = self.plan.linux_stacks {
            return map;
        }
        let stacks = self.staged.stacks.unwrap_or(stack::LINUX_STACKS);
        let map = self.map(spec("stacks", MapKind::StackTrace, 4, stack::LINUX_FRAMES * 8, stacks, 0, Home::Linux));
        self.plan.linux_stacks = Some(map);
        map
    }

    pub(super) fn callers(&mut self) -> Callers {
        let stacks = self.stack_map();
        let stacks = self.plan.image.maps[stacks].max_entries;
        let known = self.plan.linux_callers;
        let map = known.unwrap_or_else(|| self.map(callers::map("callers", stacks)));
        self.plan.linux_callers = Some(map);
        Callers { map, stacks }
    }

    pub(super) fn usdt_rules_map(&mut self) -> BpfMapId {
        if let Some(map) = self.plan.usdt_rules {
            return map;
        }
        let map = self.map(xputrace_bytecode::usdt::map("usdt_rules"));
        self.plan.usdt_rules = Some(map);
        map
    }

    pub(super) fn targets_map(&mut self) -> BpfMapId {
        if let Some(map) = self.plan.targets {
            return map;
        }
        let map = self.map(xputrace_bytecode::targets::map("targets"));
        self.plan.targets = Some(map);
        map
    }

    pub(super) fn tags_map(&mut self) -> BpfMapId {
        if let Some(map) = self.plan.tags {
            return map;
        }
        let slots = spec("tag_slots", MapKind::Array, 4, 16, TAG_SLOTS, MMAPABLE, Home::Linux);
        let outer = MapSpec {
            inner: Some(Box::new(slots)),
            ..spec("tags", MapKind::HashOfMaps, 4, 4, PROCESSES, NO_PREALLOC, Home::Linux)
        };
        let map = self.map(outer);
        self.plan.tags = Some(map);
        map
    }

    pub(super) fn entries_map(&mut self) -> BpfMapId {
        if let Some(map) = self.plan.linux_entries {
            return map;
        }
        let map =
            self.map(spec("entries", MapKind::LruHash, KEY_BYTES as u32, ENTRY_BYTES as u32, ENTRIES, 0, Home::Linux));
        self.plan.linux_entries = Some(map);
        map
    }

    /// Returns the map of each thread's open calls of return-probed functions.
    pub(super) fn nested_map(&mut self) -> BpfMapId {
        if let Some(map) = self.nested {
            return map;
        }
        let map = self.map(spec("nested", MapKind::LruHash, 8, NESTED_BYTES as u32, NESTED_THREADS, 0, Home::Linux));
        self.nested = Some(map);
        map
    }

    /// Returns the counter of entries whose elements stay: the map and the slot in it.
    pub(super) fn kept_entries(&mut self) -> (BpfMapId, u32) {
        let slot = self.kept_entries.unwrap_or_else(|| self.every_slot(Engine::Linux));
        *self.kept_entries.insert(slot)
    }

    /// Returns a counter, as for `every: n`: the map and the slot in it.
    pub(super) fn every_slot(&mut self, engine: Engine) -> (BpfMapId, u32) {
        let (map, next) = match self.every.get(&engine) {
            Some(known) => *known,
            None => {
                let name = format!("every_{}", engine.letter());
                (self.map(spec(&name, MapKind::Array, 4, 8, 1, 0, engine.home())), 0)
            }
        };
        self.every.insert(engine, (map, next + 1));
        (map, next)
    }

    /// Returns the BPF map behind a script's map, for programs of an engine.
    pub(super) fn table_map(&self, map: MapId, engine: Engine) -> BpfMapId {
        let table = &self.tables[map];
        let found = match engine {
            Engine::Linux => table.storage.linux(),
            Engine::Tracer => table.storage.used_by_tracer(),
            Engine::Gpu => table.storage.gpu(),
        };
        found.expect("inference notes every engine whose handlers use a map")
    }

    /// Whether the Linux part is an array of one map, swapped when it is read.
    pub(super) fn has_generations(&self, map: MapId) -> bool {
        self.shapes.list[map].read_live && self.tables[map].kind.is_aggregation()
    }

    /// Whether the map has a single element.
    pub(super) fn is_single(&self, map: MapId) -> bool {
        self.tables[map].stored_key_size() == 0
    }

    /// Whether the map evicts elements to make room.
    pub(super) fn evicts(&self, map: MapId) -> bool {
        self.tables[map].evicts()
    }

    fn table_with_maps(&mut self, map: MapId) -> TableDef {
        let table = self.shapes.def(map);
        let storage = self.storage(map, &table);
        TableDef { storage, ..table }
    }

    /// Says which parts of its keys on the GPU are launches.
    fn add_launch_parts(&mut self, map: MapId, table: &TableDef) {
        let Some(gpu) = table.storage.gpu() else { return };
        let mut offset = 0;
        for (part, words) in table.keys.iter().zip(self.shapes.launch_parts(map)) {
            let of_kernel = words.and_then(|it| Some((launch_word(it.flag)?, launch_word(it.value)?)));
            if let Some((flag, value)) = of_kernel {
                self.plan.launch_parts.push(LaunchPart { map: gpu, offset, flag, value });
            }
            offset += part.size();
        }
    }

    /// Decides where a map is stored, by its users.
    fn storage(&mut self, map: MapId, table: &TableDef) -> Storage {
        let shape = &self.shapes.list[map];
        let (in_linux, in_tracer, in_gpu) = (shape.in_linux, shape.in_tracer, shape.in_gpu);
        if let TableKind::Plain(_) = table.kind {
            return match (in_linux, in_tracer, in_gpu) {
                (_, _, true) => Storage::Gpu(self.map(plain_spec(map, table, Engine::Gpu))),
                (true, from_tracer, false) => {
                    Storage::Linux { map: self.map(plain_spec(map, table, Engine::Linux)), from_tracer }
                }
                (false, true, false) => Storage::Tracer(self.map(plain_spec(map, table, Engine::Tracer))),
                (false, false, false) => Storage::Interpreter,
            };
        }
        let linux = in_linux.then(|| self.map(linux_part(map, table, shape.read_live)));
        let tracer = in_tracer.then(|| self.map(native_part(map, table, Engine::Tracer)));
        let gpu = in_gpu.then(|| self.map(native_part(map, table, Engine::Gpu)));
        match (linux, tracer, gpu) {
            (None, None, None) => Storage::Interpreter,
            (Some(map), None, None) => Storage::Linux { map, from_tracer: false },
            (None, Some(map), None) => Storage::Tracer(map),
            (None, None, Some(map)) => Storage::Gpu(map),
            (linux, tracer, gpu) => Storage::Parts(Parts { linux, tracer, gpu }),
        }
    }

    fn map(&mut self, spec: MapSpec) -> BpfMapId {
        self.plan.image.add_map(spec)
    }
}

fn spec(name: &str, kind: MapKind, key: u32, value: u32, entries: u32, flags: u32, home: Home) -> MapSpec {
    MapSpec {
        name: name.into(),
        kind,
        key_size: key,
        value_size: value,
        max_entries: entries,
        flags,
        home,
        inner: None,
    }
}

/// Describes the only home of a plain map. Without a key it is a hash with one element, under a key
/// of four zeros: unlike an array's element, this one can be missing.
fn plain_spec(id: MapId, table: &TableDef, engine: Engine) -> MapSpec {
    let (kind, flags) = if table.evict { (MapKind::LruHash, 0) } else { (MapKind::Hash, NO_PREALLOC) };
    let (key, entries) = match table.stored_key_size() {
        0 => (4, 1),
        n => (n as u32, table.capacity),
    };
    let name = map_name(id, table, engine.letter());
    spec(&name, kind, key, table.kind.value_size() as u32, entries, flags, engine.home())
}

/// Describes an aggregation's part in Linux, with one value per CPU.
fn linux_part(id: MapId, table: &TableDef, generations: bool) -> MapSpec {
    let (value, entries) = (table.kind.value_size() as u32, table.stored_capacity());
    let name = map_name(id, table, "k");
    let part = match (table.stored_key_size() as u32, table.evict) {
        (0, _) => spec(&name, MapKind::PercpuArray, 4, value, 1, 0, Home::Linux),
        (key, true) => spec(&name, MapKind::LruPercpuHash, key, value, entries, 0, Home::Linux),
        (key, false) => spec(&name, MapKind::PercpuHash, key, value, entries, NO_PREALLOC, Home::Linux),
    };
    if !generations {
        return part;
    }
    let outer = spec(&map_name(id, table, "g"), MapKind::ArrayOfMaps, 4, 4, 1, 0, Home::Linux);
    MapSpec { inner: Some(Box::new(part)), ..outer }
}

/// Describes an aggregation's part in another engine, with one value.
fn native_part(id: MapId, table: &TableDef, engine: Engine) -> MapSpec {
    let (value, entries) = (table.kind.value_size() as u32, table.stored_capacity());
    let (name, home) = (map_name(id, table, engine.letter()), engine.home());
    match (table.stored_key_size() as u32, table.evict) {
        (0, _) => spec(&name, MapKind::Array, 4, value, 1, 0, home),
        (key, true) => spec(&name, MapKind::LruHash, key, value, entries, 0, home),
        (key, false) => spec(&name, MapKind::Hash, key, value, entries, NO_PREALLOC, home),
    }
}

/// Returns at most 15 characters of a C identifier, made unique by the map's number.
fn map_name(id: MapId, table: &TableDef, engine: &str) -> String {
    let plain: String =
        table.name.chars().map(|it| if it.is_ascii_alphanumeric() { it } else { '_' }).skip(1).collect();
    let suffix = format!("_{id}{engine}");
    let room = 15 - suffix.len().min(14);
    let first = if plain.starts_with(|it: char| it.is_ascii_alphabetic()) { "" } else { "m" };
    let head: String = first.chars().chain(plain.chars()).take(room).collect();
    format!("{head}{suffix}")
}
