//! Converts an `Image` to an ELF object that libbpf, bpftool and aya load; [`read`] reads those that others wrote.
//!
//! ```text
//! a section per program type   all its programs in a row, with relocations to maps
//! .maps + .BTF                 a struct per map; its members' types encode the definition
//! .BTF.ext                     functions, and the script's lines for the verifier's log
//! license                      "Dual BSD/GPL"
//! ```
//!
//! The object contains the maps of both homes, so it is self-contained. An array of maps comes with
//! a first inner map in slot 0, by a static initializer that the loader executes. Hashes of maps
//! are empty; the loader's user fills them. Programs that loaders must not load, such as those that call
//! helpers of the tracer's engine, are in sections whose name starts with `?` and that aren't code: all
//! loaders pass over them.
//!
//! Source: libbpf's documentation of `SEC()` names and BTF-defined maps.

mod btf;
mod lines;
mod losses;
mod read;
mod types;

use std::collections::HashSet;

use object::write::{Object, Relocation, SectionId, Symbol, SymbolId, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind, SymbolFlags, SymbolKind, SymbolScope, elf,
};

use self::btf::{Btf, SectionInfo, TypeId};
use crate::image::{Home, Image, MapKind, MapSpec, Program, ProgramKind};
use crate::insn::{self, class};

pub use self::losses::LossSlot;
pub use self::read::{Contents, ReadCode, ReadError, ReadMap, ReadProgram, is_map_type_of_gpu, read};
pub use self::types::{Field, Layout, Types};

const LICENSE: &[u8] = b"Dual BSD/GPL\0";
/// Maximum length of map and program names in Linux, without the NUL.
const MAX_NAME_BYTES: usize = 15;
/// Helpers from this number on exist only in the tracer's engine.
const FIRST_OWN_HELPER: i32 = 9000;
const INSN_BYTES: usize = 8;
/// A slot of `values`: a pointer filled in by a relocation.
const SLOT_BYTES: u32 = 8;
/// Bits of a line record that hold the column.
const COLUMN_BITS: u32 = 10;

/// Why the object could not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    #[error(
        "program `{program}`: instruction {insn} refers to map {map}, which it does not load or the image does not have"
    )]
    MapRef { program: String, insn: usize, map: usize },
    #[error("program `{program}` has no instructions")]
    NoInstructions { program: String },
    #[error("program `{program}`: `{category}:{name}` is no tracepoint's name")]
    Tracepoint { program: String, category: String, name: String },
    #[error("program `{program}`: the names of the kernels for {place} contain a NUL")]
    Kernels { program: String, place: String },
    #[error("map `{map}` is a map of maps, but says nothing of its inner maps")]
    NoInner { map: String },
    #[error("cannot write the ELF object: {0}")]
    Elf(String),
}

/// The names of maps and programs in the object, in the image's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectNames {
    pub maps: Vec<String>,
    pub programs: Vec<String>,
    /// For each array of maps, the name of the inner map in slot 0.
    pub inner_maps: Vec<Option<String>>,
}

/// Returns the names under which [`write()`] stores each map and program: the image's own if they
/// are unique C identifiers of at most 15 characters, else derived ones.
pub fn names(image: &Image) -> ObjectNames {
    let maps = image.maps.iter().map(|it| it.name.as_str());
    let programs = image.programs.iter().map(|it| it.name.as_str());
    let inner = image.maps.iter().filter_map(first_inner).map(|it| it.name.as_str());
    let wanted: Vec<&str> = maps.chain(programs).chain(inner).collect();
    let mut taken = HashSet::new();
    let mut names: Vec<Option<String>> = wanted
        .iter()
        .map(|it| (*it == identifier(it) && taken.insert(it.to_string())).then(|| it.to_string()))
        .collect();
    for (name, wanted) in names.iter_mut().zip(&wanted).filter(|(it, _)| it.is_none()) {
        *name = Some(unique(&identifier(wanted), &mut taken));
    }
    let mut names = names.into_iter().flatten();
    let maps = names.by_ref().take(image.maps.len()).collect();
    let programs = names.by_ref().take(image.programs.len()).collect();
    let inner_maps = image.maps.iter().map(|it| first_inner(it).and_then(|_| names.next()));
    ObjectNames { maps, programs, inner_maps: inner_maps.collect() }
}

/// Returns the map for slot 0 of an array of maps.
fn first_inner(spec: &MapSpec) -> Option<&MapSpec> {
    spec.inner.as_deref().filter(|_| spec.kind == MapKind::ArrayOfMaps)
}

fn identifier(name: &str) -> String {
    let valid = |it: char| if it.is_ascii_alphanumeric() { it } else { '_' };
    let mut name: String = name.chars().map(valid).take(MAX_NAME_BYTES).collect();
    if !name.starts_with(|it: char| it.is_ascii_alphabetic() || it == '_') {
        name.insert(0, '_');
        name.truncate(MAX_NAME_BYTES);
    }
    name
}

fn unique(name: &str, taken: &mut HashSet<String>) -> String {
    let numbered = (2..).map(|n: usize| {
        let number = format!("_{n}");
        let kept = name.len().min(MAX_NAME_BYTES - number.len());
        format!("{}{number}", &name[..kept])
    });
    let mut candidates = std::iter::once(name.to_owned()).chain(numbered);
    candidates.find(|it| taken.insert(it.clone())).unwrap_or_default()
}

/// Who loads the object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Loaders {
    /// libbpf from 1.1 on and aya: a function probe has one place, in `uprobe` and `uretprobe`. Programs over an array
    /// of words are passed over, because aya knows no `syscall`.
    #[default]
    Any,
    /// libbpf from 1.3 on: a function probe has one link with many places, in `uprobe.multi` and `uretprobe.multi`.
    Libbpf,
}

/// Where loaders attach the program of a function probe by themselves: what libbpf takes after `uprobe/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachPlace {
    /// A path, or a library's file name, which libbpf looks for in the system's directories.
    pub file: String,
    /// A symbol; for [`Loaders::Libbpf`] also a pattern.
    pub function: String,
}

impl AttachPlace {
    /// Returns what follows the program's type in a section's name; `None` if these loaders can't read it.
    fn suffix(&self, loaders: Loaders) -> Option<String> {
        // Source: libbpf's attach_uprobe and attach_uprobe_multi, which read these by sscanf(3).
        let is_plain = |it: char| it.is_ascii_alphanumeric() || "_.".contains(it);
        let is_read = match loaders {
            Loaders::Any => {
                self.function.chars().all(is_plain) && !self.function.starts_with(|it: char| it.is_ascii_digit())
            }
            Loaders::Libbpf => self.function.chars().all(|it| it.is_ascii_graphic()),
        };
        let is_file = !self.file.is_empty() && !self.file.contains([':', '\0']);
        (is_read && is_file && !self.function.is_empty()).then(|| format!("/{}:{}", self.file, self.function))
    }
}

/// Converts the image to an ELF object for our own libbpf.
///
/// # Errors
/// The image is inconsistent (see [`ObjectError`]).
pub fn write(image: &Image) -> Result<Vec<u8>, ObjectError> {
    write_for(image, Loaders::Libbpf, &[], &[])
}

/// Converts the image to an ELF object for these loaders. Function probes have the `places` of their programs, in the
/// image's order; without one, the loader's user attaches it. `losses` are what the slots of its loss maps count.
///
/// # Errors
/// As [`write`].
pub fn write_for(
    image: &Image,
    loaders: Loaders,
    places: &[Option<AttachPlace>],
    losses: &[LossSlot],
) -> Result<Vec<u8>, ObjectError> {
    let mut writer = ObjectWriter::new(image);
    writer.license();
    writer.losses(losses);
    writer.maps()?;
    for section in sections(image, loaders, places)? {
        writer.section(&section)?;
    }
    writer.finish()
}

/// Whether these loaders load a program.
pub fn is_loaded(program: &Program, loaders: Loaders) -> bool {
    match program.kind {
        ProgramKind::Device { .. } => false,
        ProgramKind::Syscall if loaders == Loaders::Any => false,
        _ => !for_engine_only(program),
    }
}

/// Begins the names of sections that loaders pass over: libbpf's own way to say so (`libbpf.c`, `SEC_DEF` and
/// `bpf_program__set_autoload`).
pub const SET_ASIDE: char = '?';

/// A section, and its programs as indices into the image.
struct Section {
    name: String,
    programs: Vec<usize>,
    is_loaded: bool,
}

/// Groups programs by section, in order of first appearance.
fn sections(image: &Image, loaders: Loaders, places: &[Option<AttachPlace>]) -> Result<Vec<Section>, ObjectError> {
    let mut sections: Vec<Section> = Vec::new();
    for (at, program) in image.programs.iter().enumerate() {
        let is_loaded = is_loaded(program, loaders);
        let place = places.get(at).and_then(|it| it.as_ref()?.suffix(loaders)).unwrap_or_default();
        let name = section_name(program, loaders, &place)?;
        let name = if is_loaded { name } else { format!("{SET_ASIDE}{name}") };
        match sections.iter_mut().find(|it| it.name == name) {
            Some(section) => section.programs.push(at),
            None => sections.push(Section { name, programs: vec![at], is_loaded }),
        }
    }
    Ok(sections)
}

fn section_name(program: &Program, loaders: Loaders, place: &str) -> Result<String, ObjectError> {
    let links = if loaders == Loaders::Libbpf { ".multi" } else { "" };
    Ok(match &program.kind {
        ProgramKind::Uprobe => format!("uprobe{links}{place}"),
        ProgramKind::Uretprobe => format!("uretprobe{links}{place}"),
        ProgramKind::Tracepoint { category, name } => {
            let valid = |it: &str| !it.is_empty() && !it.contains(['/', '\0']);
            if !valid(category) || !valid(name) {
                let (category, name) = (category.clone(), name.clone());
                return Err(ObjectError::Tracepoint { program: program.name.clone(), category, name });
            }
            format!("tracepoint/{category}/{name}")
        }
        ProgramKind::PerfEvent => "perf_event".into(),
        ProgramKind::Syscall => "syscall".into(),
        ProgramKind::Section(name) => name.clone(),
        ProgramKind::Device { place, kernels } if kernels.contains('\0') => {
            return Err(ObjectError::Kernels { program: program.name.clone(), place: place.clone() });
        }
        ProgramKind::Device { place, kernels } => format!("{place}/{kernels}"),
    })
}

fn for_engine_only(program: &Program) -> bool {
    let call = class::JMP | insn::CALL;
    program.insns.iter().any(|it| it.code == call && it.src == 0 && it.imm >= FIRST_OWN_HELPER)
}

struct ObjectWriter<'a> {
    image: &'a Image,
    names: ObjectNames,
    object: Object<'a>,
    btf: Btf,
    types: MapTypes,
    /// The image's sources by line.
    lines: Vec<Vec<&'a str>>,
    maps: Vec<SymbolId>,
    infos: Vec<SectionInfo>,
}

/// Variables of `.maps`.
#[derive(Default)]
struct Variables {
    names: Vec<String>,
    /// (variable, offset, size).
    list: Vec<(TypeId, u32, u32)>,
    /// Offset of the next one.
    offset: u32,
}

impl Variables {
    /// Returns its position in the list.
    fn add(&mut self, variable: TypeId, name: String, bytes: u32) -> usize {
        self.names.push(name);
        self.list.push((variable, self.offset, bytes));
        self.offset += bytes;
        self.list.len() - 1
    }
}

/// MapTypes used by all map definitions.
struct MapTypes {
    int: TypeId,
    u8: TypeId,
    u32: TypeId,
    u64: TypeId,
    i64: TypeId,
    ctx: TypeId,
}

impl<'a> ObjectWriter<'a> {
    fn new(image: &'a Image) -> Self {
        let mut btf = Btf::new();
        let types = MapTypes {
            int: btf.int("int", 4, true),
            u8: btf.int("unsigned char", 1, false),
            u32: btf.int("unsigned int", 4, false),
            u64: btf.int("unsigned long long", 8, false),
            i64: btf.int("long long", 8, true),
            ctx: btf.pointer(btf::VOID),
        };
        ObjectWriter {
            image,
            names: names(image),
            object: Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little),
            btf,
            types,
            lines: image.sources.iter().map(|(_, text)| text.lines().collect()).collect(),
            maps: Vec::new(),
            infos: Vec::new(),
        }
    }

    fn license(&mut self) {
        let section = self.add_section("license", SectionKind::Data, LICENSE.to_vec(), 1);
        self.add_symbol("_license", SymbolKind::Data, section, 0, LICENSE.len() as u64);
    }

    fn losses(&mut self, slots: &[LossSlot]) {
        if !slots.is_empty() {
            self.add_section(losses::SECTION, SectionKind::Metadata, losses::to_text(slots).into_bytes(), 1);
        }
    }

    fn add_section(&mut self, name: &str, kind: SectionKind, data: Vec<u8>, align: u64) -> SectionId {
        let section = self.object.add_section(Vec::new(), name.into(), kind);
        self.object.set_section_data(section, data, align);
        section
    }

    fn add_symbol(&mut self, name: &str, kind: SymbolKind, section: SectionId, value: u64, size: u64) -> SymbolId {
        self.object.add_symbol(Symbol {
            name: name.into(),
            value,
            size,
            kind,
            scope: SymbolScope::Dynamic,
            weak: false,
            section: SymbolSection::Section(section),
            flags: SymbolFlags::None,
        })
    }

    fn maps(&mut self) -> Result<(), ObjectError> {
        let image = self.image;
        if image.maps.is_empty() {
            return Ok(()); // libbpf refuses an empty `.maps`.
        }
        let mut variables = Vec::new();
        let mut slots = Vec::new();
        let mut section = Variables::default();
        for (at, spec) in image.maps.iter().enumerate() {
            let (definition, bytes) = self.map(spec, false)?;
            // Loaders create the maps in this order, and fill an array as soon as it exists.
            let inner = match (first_inner(spec), self.names.inner_maps[at].clone()) {
                (Some(inner), Some(name)) => {
                    let (definition, bytes) = self.map(inner, true)?;
                    Some(section.add(self.btf.variable(&name, definition), name, bytes))
                }
                _ => None,
            };
            let name = self.names.maps[at].clone();
            let room = if inner.is_some() { SLOT_BYTES } else { 0 };
            variables.push(section.add(self.btf.variable(&name, definition), name, bytes + room));
            slots.extend(inner.map(|it| (section.offset - SLOT_BYTES, it)));
        }
        let id = self.add_section(".maps", SectionKind::Data, vec![0; section.offset as usize], 8);
        self.btf.section(".maps", section.offset, &section.list);
        let symbols = self.map_symbols(id, &section);
        for (offset, inner) in slots {
            self.add_relocation(id, offset.into(), symbols[inner])?;
        }
        self.maps = variables.into_iter().map(|it| symbols[it]).collect();
        Ok(())
    }

    fn map_symbols(&mut self, section: SectionId, variables: &Variables) -> Vec<SymbolId> {
        let all = variables.list.iter().zip(&variables.names);
        all.map(|((_, offset, bytes), name)| {
            let (offset, bytes) = (u64::from(*offset), u64::from(*bytes));
            self.add_symbol(name, SymbolKind::Data, section, offset, bytes)
        })
        .collect()
    }

    /// Adds the struct that defines a map; returns it and its size in bytes.
    fn map(&mut self, spec: &MapSpec, is_inner: bool) -> Result<(TypeId, u32), ObjectError> {
        let mut members = vec![("type", self.number(spec.kind as u32)), ("max_entries", self.number(spec.max_entries))];
        if spec.flags != 0 {
            members.push(("map_flags", self.number(spec.flags)));
        }
        match spec.kind {
            MapKind::Ringbuf => {}
            MapKind::StackTrace | MapKind::ArrayOfMaps | MapKind::HashOfMaps => {
                members.push(("key_size", self.number(spec.key_size)));
                members.push(("value_size", self.number(spec.value_size)));
            }
            _ => {
                // What scripts count with are signed integers.
                let word = if spec.home == Home::Gpu { self.types.i64 } else { self.types.u64 };
                let key = self.bytes_type(spec.key_size, word);
                let value = self.bytes_type(spec.value_size, word);
                members.push(("key", self.btf.pointer(key)));
                members.push(("value", self.btf.pointer(value)));
            }
        }
        let bytes = members.len() as u32 * 8;
        if matches!(spec.kind, MapKind::ArrayOfMaps | MapKind::HashOfMaps) {
            let no_inner = || ObjectError::NoInner { map: spec.name.clone() };
            let inner = spec.inner.as_deref().filter(|_| !is_inner).ok_or_else(no_inner)?;
            let (definition, _) = self.map(inner, true)?;
            let pointer = self.btf.pointer(definition);
            members.push(("values", self.btf.array(pointer, self.types.u32, 0)));
        }
        Ok((self.btf.struct_of_pointers(&members, bytes), bytes))
    }

    /// Encodes a number for libbpf: a pointer to an array of that length.
    fn number(&mut self, number: u32) -> TypeId {
        let array = self.btf.array(self.types.int, self.types.u32, number);
        self.btf.pointer(array)
    }

    /// Returns a type of that size that dumps readably: an integer, words of this type, or bytes.
    fn bytes_type(&mut self, bytes: u32, word: TypeId) -> TypeId {
        let MapTypes { u8, u32, .. } = self.types;
        match bytes {
            4 => u32,
            8 => word,
            _ if bytes.is_multiple_of(8) => self.btf.array(word, u32, bytes / 8),
            _ => self.btf.array(u8, u32, bytes),
        }
    }

    fn section(&mut self, section: &Section) -> Result<(), ObjectError> {
        let image = self.image;
        let insns = section.programs.iter().flat_map(|it| &image.programs[*it].insns);
        let code: Vec<u8> = insns.flat_map(|it| it.to_bytes()).collect();
        let kind = if section.is_loaded { SectionKind::Text } else { SectionKind::ReadOnlyData };
        let id = self.add_section(&section.name, kind, code, INSN_BYTES as u64);

        let name = self.btf.string(&section.name);
        let mut info = SectionInfo { name, functions: Vec::new(), lines: Vec::new() };
        let mut first_insn = 0;
        for at in &section.programs {
            self.program(*at, id, first_insn, &mut info)?;
            self.program_lines(&image.programs[*at], first_insn, &mut info);
            first_insn += image.programs[*at].insns.len();
        }
        self.infos.push(info);
        Ok(())
    }

    fn program(
        &mut self,
        at: usize,
        section: SectionId,
        first_insn: usize,
        info: &mut SectionInfo,
    ) -> Result<(), ObjectError> {
        let program = &self.image.programs[at];
        if program.insns.is_empty() {
            return Err(ObjectError::NoInstructions { program: program.name.clone() });
        }
        let name = self.names.programs[at].clone();
        let start = (first_insn * INSN_BYTES) as u64;
        let bytes = (program.insns.len() * INSN_BYTES) as u64;
        self.add_symbol(&name, SymbolKind::Text, section, start, bytes);
        let function = self.btf.function(&name, self.types.int, self.types.ctx);
        info.functions.push((start as u32, function));
        for (insn, map) in &program.map_refs {
            self.relocation(program, section, start, *insn, map.index())?;
        }
        Ok(())
    }

    fn relocation(
        &mut self,
        program: &Program,
        section: SectionId,
        start: u64,
        insn: usize,
        map: usize,
    ) -> Result<(), ObjectError> {
        let ld_imm64 = class::LD | insn::mode::IMM | insn::Size::Dw as u8;
        let loads = program.insns.get(insn).is_some_and(|it| it.code == ld_imm64);
        let symbol = self.maps.get(map).filter(|_| loads).ok_or_else(|| ObjectError::MapRef {
            program: program.name.clone(),
            insn,
            map,
        })?;
        self.add_relocation(section, start + (insn * INSN_BYTES) as u64, *symbol)
    }

    fn add_relocation(&mut self, section: SectionId, offset: u64, symbol: SymbolId) -> Result<(), ObjectError> {
        let flags = RelocationFlags::Elf { r_type: elf::R_BPF_64_64 };
        let relocation = Relocation { offset, symbol, addend: 0, flags };
        self.object.add_relocation(section, relocation).map_err(|it| ObjectError::Elf(it.to_string()))
    }

    /// Linux requires a record at a program's first instruction, and none inside an `ld_imm64`.
    /// libbpf warns about programs without records.
    fn program_lines(&mut self, program: &Program, first_insn: usize, info: &mut SectionInfo) {
        let offset = |insn: usize| ((first_insn + insn) * INSN_BYTES) as u32;
        if program.lines.first().is_none_or(|it| it.insn != 0) {
            info.lines.push([offset(0), 0, 0, 0]);
        }
        let mut next = 0;
        for line in &program.lines {
            let starts = program.insns.get(line.insn).is_some_and(|it| it.code != 0);
            if !starts || line.insn < next {
                continue;
            }
            next = line.insn + 1;
            let file = self.image.sources.get(line.file).map_or("", |(name, _)| name);
            let texts = self.lines.get(line.file);
            let text = texts.and_then(|it| it.get(line.line.checked_sub(1)? as usize));
            let column = line.column.min((1 << COLUMN_BITS) - 1);
            info.lines.push([
                offset(line.insn),
                self.btf.string(file),
                self.btf.string(text.copied().unwrap_or_default()),
                line.line << COLUMN_BITS | column,
            ]);
        }
    }

    fn finish(mut self) -> Result<Vec<u8>, ObjectError> {
        let ext = btf::ext(&self.infos);
        let btf = std::mem::replace(&mut self.btf, Btf::new()).finish();
        self.add_section(".BTF", SectionKind::Metadata, btf, 4);
        if !self.infos.is_empty() {
            self.add_section(".BTF.ext", SectionKind::Metadata, ext, 4);
        }
        self.object.write().map_err(|it| ObjectError::Elf(it.to_string()))
    }
}
