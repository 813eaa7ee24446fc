//! The user-space engine: runs the same programs as Linux, over events that Linux never sees.
//!
//! ```text
//! Program ──decode (checks once)──▶ Decoded ──run (checks every access)──▶ R0, maps, records
//! ```
//!
//! It is safe on any input. Programs are checked at load as far as possible without following
//! values (instructions, registers, jumps, helpers, maps), and every memory access is checked when
//! it happens. Pointers are virtual; no host address is visible. The module has no `unsafe`. It
//! runs everything that Linux's verifier accepts, and much that it refuses.
//!
//! Differences from Linux: registers and stack start as zeros instead of being refused; per-CPU
//! maps have one copy (`map_lookup_percpu_elem` returns it for every CPU); an LRU map holds exactly
//! its capacity; `get_current_task` is 0; a reserved record of a ring buffer reaches
//! [`Env::output`] when it is submitted.

mod call;
mod decode;
mod env;
mod fault;
mod fuse;
mod map;
mod memory;
mod op;
mod pointer;
mod printk;
mod run;
mod tally;

use zerocopy::IntoBytes as _;

use self::call::Scratch;
use self::map::{Map, Store};
use self::memory::{Local, OpenCalls, ReservedRecords, RunMemory};
use self::op::Decoded;
use self::tally::Tally;
pub use env::{Atomic, Env, GpuThread, Modification, Number, RemoteMap};
pub use fault::{Fault, FaultReason, LoadError};
pub use printk::line as printed_line;

use crate::id::{BpfMapId, ProgramId};
use crate::image::{Home, Image, MapSpec};
use crate::insn::STACK_BYTES;

/// Instruction limit of a run unless [`Engine::set_instruction_limit`] sets another.
pub const DEFAULT_INSTRUCTION_LIMIT: u64 = 1_000_000;

/// Returns the handle of a map that lives elsewhere, or `None`.
pub type FindRemote<'a> = dyn FnMut(BpfMapId, &MapSpec) -> Option<Box<dyn RemoteMap>> + 'a;

/// Programs of an image, ready to run, with the maps they share.
///
/// Queries of a map that the engine does not hold (a remote map, one used only by Linux's programs,
/// an id out of range) return no elements or `-EINVAL`.
pub struct Engine {
    /// By index in the image; empty if not loaded.
    programs: Vec<Vec<Decoded>>,
    /// By the same index: what is done in place of those that are no more than that.
    tallies: Vec<Option<Tally>>,
    /// The image's maps, then the inner maps.
    maps: Vec<Map>,
    /// Maps whose values are copies, to be written back after each run.
    remote: Vec<usize>,
    /// Those of them whose value programs have the address of, without looking it up.
    addressed: Vec<usize>,
    /// Maps with a value per GPU thread.
    per_thread: Vec<usize>,
    records: ReservedRecords,
    calls: OpenCalls,
    scratch: Scratch,
    instruction_limit: u64,
}

impl Engine {
    /// Checks and decodes the given programs of the image.
    ///
    /// `remote` is asked once for each map that those programs use or whose home is not Linux; if
    /// it returns no handle, the engine creates the map itself.
    ///
    /// # Errors
    /// A program breaks the rules of the instruction set or calls a helper that the engine lacks;
    /// or the engine cannot hold a map.
    pub fn new(image: &Image, programs: &[ProgramId], remote: &mut FindRemote<'_>) -> Result<Engine, LoadError> {
        let mut engine = Engine {
            programs: vec![Vec::new(); image.programs.len()],
            tallies: Vec::new(),
            maps: Vec::with_capacity(image.maps.len()),
            remote: Vec::new(),
            addressed: Vec::new(),
            per_thread: Vec::new(),
            records: ReservedRecords::default(),
            calls: OpenCalls::default(),
            scratch: Scratch::default(),
            instruction_limit: DEFAULT_INSTRUCTION_LIMIT,
        };
        engine.load(image, programs)?;
        engine.create_maps(image, programs, remote)?;
        engine.tallies = engine.programs.iter().map(|it| Tally::of(it, &engine.maps)).collect();
        Ok(engine)
    }

    fn load(&mut self, image: &Image, programs: &[ProgramId]) -> Result<(), LoadError> {
        for at in programs {
            let program = image.programs.get(at.index()).ok_or_else(|| LoadError {
                place: format!("program {}", at.0),
                what: format!("the image has {} programs", image.programs.len()),
            })?;
            self.programs[at.index()] = decode::decode(program, image.maps.len())?;
        }
        Ok(())
    }

    fn create_maps(
        &mut self,
        image: &Image,
        programs: &[ProgramId],
        remote: &mut FindRemote<'_>,
    ) -> Result<(), LoadError> {
        let mut used: Vec<bool> = image.maps.iter().map(|it| it.home != Home::Linux).collect();
        let refs = programs.iter().flat_map(|it| &image.programs[*it].map_refs);
        refs.for_each(|(_, map)| used[map.index()] = true);

        let mut inner_maps = Vec::new();
        for (at, spec) in image.maps.iter().enumerate() {
            let handle = if used[at] { remote(BpfMapId::at(at), spec) } else { None };
            let first = image.maps.len() + inner_maps.len();
            let map = match handle {
                _ if !used[at] => Ok(Map::unused(spec)),
                Some(handle) => {
                    self.remote.push(at);
                    Map::remote(spec, handle)
                }
                None => inner_maps_of(spec, first).and_then(|mut inner| {
                    let range = first..first + inner.len();
                    inner_maps.append(&mut inner);
                    Map::native(spec, range)
                }),
            };
            if matches!(&map, Ok(it) if it.is_remote()) && is_addressed(image, programs, BpfMapId::at(at)) {
                self.addressed.push(at);
            }
            if used[at] && spec.kind == crate::MapKind::PerThreadArray {
                self.per_thread.push(at);
            }
            let place = || format!("map `{}`", spec.name);
            self.maps.push(map.map_err(|what| LoadError { place: place(), what })?);
        }
        self.maps.append(&mut inner_maps);
        match self.maps.len() {
            n if n > pointer::MAX_MAPS => Err(LoadError {
                place: "the image".into(),
                what: format!("{n} maps, inner ones included, are more than {}", pointer::MAX_MAPS),
            }),
            _ => Ok(()),
        }
    }

    /// Changes the instruction limit. A run may exceed it by one pass through its program.
    pub fn set_instruction_limit(&mut self, n_instructions: u64) {
        self.instruction_limit = n_instructions;
    }

    /// Sets the GPU thread, by its number in its launch, that the following runs are in.
    pub fn set_gpu_thread(&mut self, number: u64) {
        for at in &self.per_thread {
            self.maps[*at].set_thread(number);
        }
    }

    /// Runs a program over a read-only context; returns R0.
    ///
    /// # Errors
    /// The program did something forbidden; see [`FaultReason`].
    #[inline]
    pub fn run<E: Env>(&mut self, program: ProgramId, ctx: &[u8], env: &mut E) -> Result<u64, Fault> {
        if let Some(Some(tally)) = self.tallies.get(program.index())
            && let Some(answer) = tally.run(&mut self.maps, ctx)
        {
            return Ok(answer);
        }
        let code = self.programs.get(program.index()).map_or(&[][..], Vec::as_slice);
        for at in &self.remote {
            self.maps[*at].forget_remote_values();
        }
        for at in &self.addressed {
            self.maps[*at].find(&0_u32.to_le_bytes());
        }
        self.records.forget();
        self.calls.forget();
        // Build it in place: building the stack separately would copy it.
        let mut memory = RunMemory {
            local: Local { stack: [0; STACK_BYTES], calls: &mut self.calls, ctx, records: &mut self.records },
            maps: &mut self.maps,
        };
        let answer = run::run(code, &mut memory, &mut self.scratch, env, self.instruction_limit);
        for at in &self.remote {
            self.maps[*at].write_back();
        }
        answer
    }

    /// Like [`Engine::run`], but over words, without copying them.
    ///
    /// # Errors
    /// As for [`Engine::run`].
    #[inline]
    pub fn run_words<E: Env>(&mut self, program: ProgramId, ctx: &[u64], env: &mut E) -> Result<u64, Fault> {
        self.run(program, ctx.as_bytes(), env)
    }

    /// Calls `f` with each element's key and value: for an array, all entries with their index as
    /// key; for an array of maps, the elements of its inner maps. The keys of an array with a value per GPU thread
    /// are the index and the thread's number, 4 bytes each.
    pub fn for_each(&self, map: BpfMapId, f: &mut dyn FnMut(&[u8], &[u8])) {
        for at in self.parts(map) {
            self.maps[at].for_each(f);
        }
    }

    /// Returns the value of an element.
    pub fn lookup(&self, map: BpfMapId, key: &[u8]) -> Option<&[u8]> {
        self.image_map(map)?.peek(key)
    }

    /// Creates or changes an element; returns 0 or a negative errno. Flags as in [`crate::helper`].
    pub fn update(&mut self, map: BpfMapId, key: &[u8], value: &[u8], flags: u64) -> i64 {
        self.native_mut(map).map_or(env::EINVAL, |it| it.update(key, value, flags))
    }

    /// Adds to the first 8 bytes of an element's value, starting from zeros; returns 0 or a
    /// negative errno.
    pub fn add(&mut self, map: BpfMapId, key: &[u8], delta: i64) -> i64 {
        self.native_mut(map).map_or(env::EINVAL, |it| it.modify(key, Modification::add(delta)))
    }

    /// Removes an element; returns 0 or a negative errno.
    pub fn delete(&mut self, map: BpfMapId, key: &[u8]) -> i64 {
        self.native_mut(map).map_or(env::EINVAL, |it| it.delete(key))
    }

    /// Removes all elements, including those of inner maps; the entries of an array become zero.
    pub fn clear(&mut self, map: BpfMapId) {
        for at in self.parts(map) {
            self.maps[at].clear();
        }
    }

    /// Returns the number of elements evicted from an LRU hash so far.
    pub fn evicted(&self, map: BpfMapId) -> u64 {
        self.parts(map).map(|at| self.maps[at].evicted()).sum()
    }

    /// Returns the number of elements of a hash or entries of an array.
    pub fn len(&self, map: BpfMapId) -> usize {
        self.image_map(map).map_or(0, Map::len)
    }

    /// Passes all elements (of an array of maps, those of its inner maps) to `f`, then removes them
    /// like [`Engine::clear`].
    pub fn drain(&mut self, map: BpfMapId, f: &mut dyn FnMut(&[u8], &[u8])) {
        for at in self.parts(map) {
            self.maps[at].for_each(f);
            self.maps[at].clear();
        }
    }

    /// Whether programs have stored to values of a map that lives elsewhere, other than by helpers and atomic instructions:
    /// what others changed there meanwhile is lost.
    pub fn has_overwritten(&self, map: BpfMapId) -> bool {
        self.image_map(map).is_some_and(Map::has_overwritten)
    }

    /// Returns the maps that hold a map's elements: itself, or its inner maps.
    fn parts(&self, map: BpfMapId) -> std::ops::Range<usize> {
        match self.image_map(map).map(|it| &it.store) {
            Some(Store::Maps(inner)) => inner.clone(),
            Some(Store::OneMap(inner)) => *inner..*inner + 1,
            Some(_) => map.index()..map.index() + 1,
            None => 0..0,
        }
    }

    fn image_map(&self, map: BpfMapId) -> Option<&Map> {
        self.maps.get(map.index())
    }

    fn native_mut(&mut self, map: BpfMapId) -> Option<&mut Map> {
        self.maps.get_mut(map.index()).filter(|it| !matches!(it.store, Store::Remote(_)))
    }
}

/// Whether a program has the address of a map's value in its code: of a global variable.
fn is_addressed(image: &Image, programs: &[ProgramId], map: BpfMapId) -> bool {
    programs.iter().map(|it| &image.programs[*it]).any(|program| {
        let is_value =
            |slot: &usize| program.insns.get(*slot).is_some_and(|it| it.src == crate::insn::PSEUDO_MAP_VALUE);
        program.map_refs.iter().any(|(slot, it)| *it == map && is_value(slot))
    })
}

/// Creates the empty inner maps of a map of maps; they will be at `first` and following.
fn inner_maps_of(spec: &MapSpec, first: usize) -> Result<Vec<Map>, String> {
    let n_inner = match spec.kind {
        crate::MapKind::ArrayOfMaps => spec.max_entries,
        crate::MapKind::HashOfMaps => 1,
        _ => return Ok(Vec::new()),
    };
    let inner = spec.inner.as_deref().ok_or("a map of maps does not say what its maps are")?;
    if inner.inner.is_some() {
        return Err("inner maps cannot have inner maps".into());
    }
    if first + n_inner as usize > pointer::MAX_MAPS {
        return Err(format!("an array of {n_inner} maps is too large for the engine"));
    }
    (0..n_inner).map(|_| Map::native(inner, 0..0)).collect()
}
