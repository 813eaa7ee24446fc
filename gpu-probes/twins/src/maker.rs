//! Weaves handlers into kernels.

use crate::NoTwin;
use crate::text::{Gpu, best, text};
use std::collections::BTreeMap;
use xputrace_bytecode::{MapKind, MapSpec, Program};
use xputrace_device::arena::{Arena, ArenaError, Needs};
use xputrace_device::layout::{DECLARATION, VARIABLE, header};
use xputrace_device::{
    DeviceMap, Kind, LEAST_ARCHITECTURE, LEAST_PTX_VERSION, Options, Request, Scope, Word, translate,
};
use xputrace_events::DeviceEvent;
use xputrace_events::device::{self, SOURCES, Source};
use xputrace_ptx::{Module, Point};
use xputrace_wire::device::{NAMES_VARIABLE, Ptx, Twin, twin_symbol};

/// A handler, and where in a kernel it runs.
#[derive(Clone, Debug)]
pub struct Handler {
    pub place: DeviceEvent,
    pub program: Program,
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
    /// Whether it reads what its kernels are called.
    pub reads_names: bool,
}

impl TwinText {
    /// Returns the twin, whose code was made of the text; `name_of` gives the string id of a kernel's name.
    pub fn with_code(&self, code: Vec<u8>, name_of: impl FnMut(&str) -> u64) -> Twin {
        let names =
            if self.reads_names { self.kernels.iter().map(String::as_str).map(name_of).collect() } else { vec![] };
        Twin { code, kernels: self.kernels.clone(), variables: self.variables.clone(), names }
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

/// Makes twins with the handlers of one script, whose maps are in one piece of memory.
#[derive(Debug)]
pub struct Maker {
    handlers: Vec<Handler>,
    /// The first site of each handler.
    first_sites: Vec<u32>,
    n_sites: u32,
    maps: Vec<DeviceMap>,
    arena: Arena,
}

impl Maker {
    /// Checks that each handler can run on a GPU, and lays out their maps.
    ///
    /// `maps` has a map of the script for each id, `None` for those that are not on the GPU.
    ///
    /// # Errors
    /// A handler does what GPUs can't, or the maps are too large.
    pub fn new(handlers: Vec<Handler>, maps: &[Option<GpuMap<'_>>]) -> Result<Maker, MakerError> {
        let maps = maps.iter().map(|it| it.map_or(Ok(NOWHERE), device_map)).collect::<Result<Vec<_>, _>>()?;
        let context = context(0);
        let (mut first_sites, mut n_sites) = (Vec::new(), 0);
        for (handler, Handler { program, .. }) in handlers.iter().enumerate() {
            let options = Options { first_site: n_sites, ..Options::default() };
            let block = translate(Request { program, maps: &maps, context: &context, options: &options })
                .map_err(|refusal| MakerError::Handler { handler, refusal })?;
            first_sites.push(n_sites);
            n_sites += block.sites.len() as u32;
        }
        let arena = Arena::new(Needs { maps: maps.clone(), n_sites, ring_slots: 0, n_threads: 0 })?;
        Ok(Maker { handlers, first_sites, n_sites, maps, arena })
    }

    /// Returns how the memory is laid out.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Returns how many sites of the handlers count losses.
    pub fn n_sites(&self) -> u32 {
        self.n_sites
    }

    /// Returns the memory as it is at first. `clock_offset_nanos` is added to the GPU's timer.
    pub fn initial(&self, clock_offset_nanos: i64) -> Vec<u8> {
        let mut memory = self.arena.table();
        memory[header::CLOCK_OFFSET_NS as usize..][..8].copy_from_slice(&clock_offset_nanos.to_le_bytes());
        memory.resize(self.arena.n_bytes() as usize, 0);
        memory
    }

    /// Returns the maps by their id.
    pub fn maps(&self) -> &[DeviceMap] {
        &self.maps
    }

    /// Makes the twin of an image. `wanted` says what a kernel of this symbol gets, if anything.
    /// Returns `None` if it has no kernel that gets anything.
    ///
    /// # Errors
    /// A kernel should get a handler, but can't.
    pub fn twin(
        &self,
        image: &[Ptx<'_>],
        gpu: Gpu,
        wanted: &mut dyn FnMut(&str) -> Option<Wanted>,
    ) -> Result<Option<TwinText>, NoTwin> {
        let Some(ptx) = best(image, gpu) else { return Ok(None) };
        let mut module = Module::parse(&text(ptx)?)?;
        let kernels = chosen(&module, wanted);
        let target = Target::of(&module);
        let names: Vec<&str> = kernels.keys().map(String::as_str).collect();
        if names.is_empty() {
            return Ok(None);
        }
        if !target.is_enough() {
            return Err(NoTwin::TooOld { target: target.text });
        }
        for kernel in &names {
            let obstacles = module.faithful(kernel);
            if !obstacles.is_empty() {
                let obstacles = obstacles.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                return Err(NoTwin::Obstacles { kernel: (*kernel).to_owned(), obstacles });
            }
        }
        module.only(&names)?;
        let variables = module.redirect(&mut |it| !it.is_literal())?;
        module.declare(DECLARATION)?;
        let reads_names = self.weave(&mut module, &kernels, target.architecture.min(gpu.capability))?;
        for kernel in &names {
            module.rename(kernel, &twin_symbol(kernel))?;
        }
        Ok(Some(TwinText {
            text: module.to_string(),
            target: target.text,
            kernels: names.into_iter().map(str::to_owned).collect(),
            variables: variables.into_iter().map(|it| it.name).collect(),
            reads_names,
        }))
    }

    /// Weaves the handlers in; returns whether any reads what its kernel is called.
    fn weave(
        &self,
        module: &mut Module,
        kernels: &BTreeMap<String, Wanted>,
        architecture: u32,
    ) -> Result<bool, NoTwin> {
        let mut texts = BTreeMap::new();
        for (index, (kernel, wanted)) in kernels.iter().enumerate() {
            for place in DeviceEvent::ALL {
                let text = self
                    .blocks(wanted, *place, architecture, index)
                    .map_err(|refusal| NoTwin::Refused { kernel: kernel.clone(), refusal })?;
                texts.insert((kernel.as_str(), *place), text);
            }
        }
        let names: Vec<&str> = kernels.keys().map(String::as_str).collect();
        let reads_names = texts.values().any(|it| it.contains(NAMES_VARIABLE));
        if reads_names {
            module.declare(&format!(".visible .const .align 8 .u64 {NAMES_VARIABLE}[{}];", names.len()))?;
        }
        let has_exits = texts.iter().any(|((_, place), text)| *place == DeviceEvent::Exit && !text.is_empty());
        let mut ends_elsewhere = None;
        module.weave(&names, &mut |site| {
            let place = match site.point {
                Point::Entry => DeviceEvent::Entry,
                Point::Exit => DeviceEvent::Exit,
                _ => return None,
            };
            if !kernels.contains_key(site.function) {
                // It doesn't know which kernel called it, and so which handlers should run.
                ends_elsewhere = Some(site.function.to_owned());
                return None;
            }
            texts.get(&(site.function, place)).filter(|it| !it.is_empty()).cloned()
        })?;
        match ends_elsewhere.filter(|_| has_exits) {
            Some(function) => Err(NoTwin::EndsElsewhere { function }),
            None => Ok(reads_names),
        }
    }

    /// Returns the PTX of the handlers of the twin's kernel with this index, at this place; empty if it has none there.
    fn blocks(
        &self,
        wanted: &Wanted,
        place: DeviceEvent,
        architecture: u32,
        kernel: usize,
    ) -> Result<String, xputrace_device::Refusal> {
        let context = context(kernel);
        let mut text = String::new();
        for at in wanted.handlers.iter().copied().filter(|at| self.handlers[*at].place == place) {
            let options = Options { first_site: self.first_sites[at], architecture, ..Options::default() };
            let request =
                Request { program: &self.handlers[at].program, maps: &self.maps, context: &context, options: &options };
            text += &translate(request)?.text;
            text.push('\n');
        }
        Ok(text)
    }
}

/// What a module is to be compiled for.
struct Target {
    /// As it says: `sm_90a`.
    text: String,
    /// Its number; 0 if there is none.
    architecture: u32,
    version: (u32, u32),
}

impl Target {
    fn of(module: &Module) -> Self {
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
    fn is_enough(&self) -> bool {
        self.architecture >= LEAST_ARCHITECTURE && self.version >= LEAST_PTX_VERSION
    }
}

// What this crate's parts say of each other's symbols.
const _: () = assert!(header::ENABLED as usize == xputrace_wire::device::ENABLED);
const _: () = assert!(header::PID_TGID as usize == xputrace_wire::device::PID_TGID);

/// Returns the kernels of a module that get anything.
fn chosen(module: &Module, wanted: &mut dyn FnMut(&str) -> Option<Wanted>) -> BTreeMap<String, Wanted> {
    let kernels = module.functions().filter(|it| it.is_kernel() && it.body.is_some());
    kernels.filter_map(|it| Some((it.name.clone(), wanted(&it.name)?))).collect()
}

/// Takes no memory.
const NOWHERE: DeviceMap =
    DeviceMap { kind: Kind::Ring, key_bytes: 0, value_bytes: 0, max_entries: 0, parts: 1, scope: Scope::Device };

/// A map of the script that is on the GPU.
#[derive(Clone, Copy, Debug)]
pub struct GpuMap<'a> {
    pub spec: &'a MapSpec,
    /// Whether its values may be in parts, which readers merge.
    pub has_parts: bool,
}

/// The values of a map take at most this much memory because they are in parts.
const MOST_PARTS_BYTES: u64 = 4 << 20;
/// More than multiprocessors have to share parts.
const MOST_PARTS: u64 = 128;

fn device_map(GpuMap { spec, has_parts }: GpuMap<'_>) -> Result<DeviceMap, MakerError> {
    let kind = match spec.kind {
        MapKind::Hash => Kind::Hash,
        MapKind::Array => Kind::Array,
        _ => return Err(MakerError::Map(spec.name.clone())),
    };
    let map = DeviceMap {
        kind,
        key_bytes: spec.key_size,
        value_bytes: spec.value_size,
        max_entries: spec.max_entries,
        parts: 1,
        scope: Scope::Device,
    };
    let part_bytes = map.n_values() * u64::from(map.value_stride());
    let parts = if has_parts { MOST_PARTS_BYTES / part_bytes.max(1) } else { 1 };
    Ok(DeviceMap { parts: parts.clamp(1, MOST_PARTS) as u32, ..map })
}

/// Returns where the words of the context come from, in the twin's kernel with this index.
///
/// What changes from run to run comes from memory: the text is the same in all of them.
fn context(kernel: usize) -> Vec<Word> {
    let word = |(at, source): (usize, Source)| match source {
        Source::Register32(register) => Word::Narrow(register.into()),
        Source::Register64(register) => Word::Wide(register.into()),
        Source::GlobalTimer => Word::Statements(clock()),
        Source::OfProcess => Word::Statements(process_id()),
        Source::OfKernel if at == device::KERNEL => Word::Statements(name_of(kernel)),
        Source::OfKernel => Word::Absent,
    };
    SOURCES.into_iter().enumerate().map(word).collect()
}

/// Returns PTX that sets `{d}` to the GPU's time on the host's clock.
fn clock() -> String {
    format!(
        "{{ .reg .b64 %table; .reg .b64 %offset; ld.global.u64 %table, [{VARIABLE}]; \
         ld.global.u64 %offset, [%table+{}]; mov.u64 {{d}}, %globaltimer; add.s64 {{d}}, {{d}}, %offset; }}",
        header::CLOCK_OFFSET_NS
    )
}

/// Returns PTX that sets `{d}` to the id of the process.
fn process_id() -> String {
    format!(
        "{{ .reg .b64 %table; ld.global.u64 %table, [{VARIABLE}]; ld.global.u64 {{d}}, [%table+{}]; \
         shr.u64 {{d}}, {{d}}, 32; }}",
        header::PID_TGID
    )
}

/// Returns PTX that sets `{d}` to the string id of a kernel's name.
fn name_of(kernel: usize) -> String {
    format!("ld.const.u64 {{d}}, [{NAMES_VARIABLE}+{}];", kernel * size_of::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_those_that_the_collector_sets() {
        use xputrace_wire::device::{BLOCK_VARIABLE, GLOBALS_VARIABLE};
        assert_eq!((VARIABLE, xputrace_ptx::GLOBALS), (BLOCK_VARIABLE, GLOBALS_VARIABLE));
    }
}
