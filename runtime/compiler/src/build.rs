//! The plan under construction: maps, strings and loss slots are created on first use.

use super::tables::Shapes;
use super::typed::MapId;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use xputrace_bytecode::callers::{self, Callers};
use xputrace_bytecode::image::{MMAPABLE, NO_PREALLOC};
use xputrace_bytecode::{BpfMapId, Home, Image, MapKind, MapSpec};
use xputrace_model::catalog::Catalog;
use xputrace_model::context::device::launch_word;
use xputrace_model::diagnostic::{Diagnostic, FileId, Site};
use xputrace_model::loss::Loss;
use xputrace_model::plan::{LaunchPart, LossSite, Plan, StringId, TAG_SLOTS};
use xputrace_model::stack;
use xputrace_model::table::{Parts, Storage, TableDef, TableId, TableKind};
use xputrace_script::handler::Staged;

/// Size of the ring buffers through which handlers print.
const RING_BYTES: u32 = 1 << 20;
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
    pub(super) nested: Option<BpfMapId>,
    pub(super) kept_entries: Option<(BpfMapId, u32)>,
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
        let kind = if engine == Engine::Linux { MapKind::PercpuArray } else { MapKind::Array };
        let map = spec(&format!("losses_{}", engine.letter()), kind, 4, 8, 1, 0, engine.home());
        self.once(
            |it| match engine {
                Engine::Linux => &mut it.plan.linux_losses,
                Engine::Tracer => &mut it.plan.tracer_losses,
                Engine::Gpu => &mut it.plan.gpu_losses,
            },
            map,
        )
    }

    /// Returns the map that counts the elements of evicting maps.
    pub(super) fn stored_map(&mut self) -> BpfMapId {
        let maps = self.shapes.list.len() as u32;
        let stored = spec("stored", MapKind::PercpuArray, 4, 8, maps, 0, Home::Linux);
        self.once(|it| &mut it.plan.linux_stored, stored)
    }

    /// Returns the map that tells programs in Linux that one of them has called `exit`: its value is then
    /// not 0. `None` if none of them can.
    pub(super) fn over_map(&mut self, engine: Engine) -> Option<BpfMapId> {
        let may_end = engine == Engine::Linux && self.ends_in_linux;
        may_end.then(|| self.once(|it| &mut it.over, word_of_linux("over")))
    }

    /// Returns the map that tells programs in Linux whether to record: its value is then not 0. `None` if they
    /// always do.
    pub(super) fn window_map(&mut self, engine: Engine) -> Option<BpfMapId> {
        let has_window = engine == Engine::Linux && self.has_window;
        has_window.then(|| self.once(|it| &mut it.plan.window, word_of_linux("window")))
    }

    /// Returns the map in which programs in Linux tell that they were hit. `None` if nobody wants to know.
    pub(super) fn hits_map(&mut self, engine: Engine) -> Option<BpfMapId> {
        let has_hits = engine == Engine::Linux && self.has_hits;
        has_hits.then(|| self.once(|it| &mut it.plan.linux_hits, word_of_linux("hits")))
    }

    /// Returns the map that tells programs in Linux which switches are off: the values are then not 0.
    pub(super) fn switches_map(&mut self) -> BpfMapId {
        let n = self.plan.switches.len() as u32;
        self.once(|it| &mut it.plan.linux_switches, spec("switches", MapKind::Array, 4, 8, n, 0, Home::Linux))
    }

    pub(super) fn ring_map(&mut self, engine: Engine) -> BpfMapId {
        let name = format!("prints_{}", engine.letter());
        let map = spec(&name, MapKind::Ringbuf, 0, 0, RING_BYTES, 0, engine.home());
        self.once(
            |it| match engine {
                Engine::Linux => &mut it.plan.linux_ring,
                Engine::Tracer => &mut it.tracer_ring,
                Engine::Gpu => &mut it.gpu_ring,
            },
            map,
        )
    }

    pub(super) fn stack_map(&mut self) -> BpfMapId {
        let stacks = self.staged.stacks.unwrap_or(stack::LINUX_STACKS);
        let map = spec("stacks", MapKind::StackTrace, 4, stack::LINUX_FRAMES * 8, stacks, 0, Home::Linux);
        self.once(|it| &mut it.plan.linux_stacks, map)
    }

    pub(super) fn callers(&mut self) -> Callers {
        let stacks = self.stack_map();
        let stacks = self.plan.image.maps[stacks].max_entries;
        Callers { map: self.once(|it| &mut it.plan.linux_callers, callers::map("callers", stacks)), stacks }
    }

    pub(super) fn usdt_rules_map(&mut self) -> BpfMapId {
        self.once(|it| &mut it.plan.usdt_rules, xputrace_bytecode::usdt::map("usdt_rules"))
    }

    pub(super) fn targets_map(&mut self) -> BpfMapId {
        self.once(|it| &mut it.plan.targets, xputrace_bytecode::targets::map("targets"))
    }

    pub(super) fn tags_map(&mut self) -> BpfMapId {
        let slots = spec("tag_slots", MapKind::Array, 4, 16, TAG_SLOTS, MMAPABLE, Home::Linux);
        let outer = MapSpec {
            inner: Some(Box::new(slots)),
            ..spec("tags", MapKind::HashOfMaps, 4, 4, PROCESSES, NO_PREALLOC, Home::Linux)
        };
        self.once(|it| &mut it.plan.tags, outer)
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

    /// Returns the map whose id is kept in a place, which is made where there is none yet.
    fn once(&mut self, place: impl Fn(&mut Self) -> &mut Option<BpfMapId>, spec: MapSpec) -> BpfMapId {
        let known = *place(self);
        let map = known.unwrap_or_else(|| self.map(spec));
        *place(self) = Some(map);
        map
    }

    pub(super) fn map(&mut self, spec: MapSpec) -> BpfMapId {
        self.plan.image.add_map(spec)
    }
}

pub(super) fn spec(name: &str, kind: MapKind, key: u32, value: u32, entries: u32, flags: u32, home: Home) -> MapSpec {
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

/// Describes a map of one word, or of as many as are known at the end.
fn word_of_linux(name: &str) -> MapSpec {
    spec(name, MapKind::Array, 4, 8, 1, 0, Home::Linux)
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
