//! Reads an ELF object that clang has made of C by libbpf's rules: sections of programs, maps in `.maps` defined by their
//! types, global variables, `license`.
//!
//! ```text
//! SEC("…") functions ─┐
//! .text functions ────┴─ linked: a program is a function and those that it calls
//! .maps + .BTF          maps by number and name; .rodata, .data, .bss: maps of one value
//! ```
//!
//! What a section or a type of map means is for others to say. The bytes are untrusted.
//!
//! Source: libbpf's documentation of `SEC()` names and BTF-defined maps; the psABI's `R_BPF_64_64` and `R_BPF_64_32`
//! (LLVM's "BPF Directory-Based Relocations").

use std::collections::{BTreeMap, HashMap, HashSet};

use object::elf;
use object::read::elf::{ElfFile64, FileHeader as _};
use object::{Endianness, Object as _, ObjectSection, ObjectSymbol as _, RelocationFlags, RelocationTarget};
use object::{SectionIndex, SectionKind, SymbolIndex, SymbolKind};

use super::INSN_BYTES;
use super::lines::Lines;
use super::losses::{self, LossSlot};
use super::types::{Field, Layout, Type, Types};
use crate::id::BpfMapId;
use crate::image::Line;
use crate::insn::{self, Insn, class};

/// Bytes of an object, its debug information included.
const MOST_BYTES: usize = 64 << 20;
/// Instructions of one linked program (`BPF_COMPLEXITY_LIMIT_INSNS` in Linux).
const MOST_INSNS: usize = 1_000_000;
/// Bytes of all global variables of one section.
const MOST_DATA_BYTES: usize = 16 << 20;
/// Maps of one object.
const MOST_MAPS: usize = 1000;

/// What an object contains.
#[derive(Clone, Debug)]
pub struct Contents {
    /// Contents of the section `license`; empty if there is none.
    pub license: String,
    pub programs: Vec<ReadProgram>,
    /// Those of `.maps` in their order, then the sections of global variables.
    pub maps: Vec<ReadMap>,
    /// Name and text of each source file, as far as its lines have code; other lines are empty.
    pub sources: Vec<(String, String)>,
    pub types: Types,
    /// What the slots of loss maps count, in an object of a script's.
    pub losses: Vec<LossSlot>,
    /// Whether maps are defined as libbpf no longer knows it.
    pub has_legacy_maps: bool,
}

/// A program: a function with a section of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadProgram {
    pub name: String,
    /// As `SEC()` gives it, such as `kprobe/work`.
    pub section: String,
    /// Maps that it and the functions that it calls refer to, each once.
    pub maps: Vec<BpfMapId>,
    /// Whether a map of programs holds it from the start: others call it by its place there.
    pub is_in_map: bool,
    /// The error says what only libbpf can link, such as a function of Linux.
    pub code: Result<ReadCode, ReadError>,
}

/// A program's function, followed by the functions that it calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadCode {
    pub insns: Vec<Insn>,
    /// Slots of `ld_imm64` whose immediate is a map or an address in its value: (slot, map).
    pub map_refs: Vec<(usize, BpfMapId)>,
    /// In order of `insn`; files are those of [`Contents::sources`].
    pub lines: Vec<Line>,
}

/// Whether a type of map is one of bpftime's for GPUs, which are above its `GPU_MAP_OFFSET`; Linux has none as high.
pub fn is_map_type_of_gpu(number: u32) -> bool {
    const GPU_MAP_OFFSET: u32 = 1500;
    number > GPU_MAP_OFFSET
}

/// A map, as the object defines it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadMap {
    pub name: String,
    /// `enum bpf_map_type`, or a number that only some loaders know.
    pub kind: u32,
    pub key_bytes: u32,
    pub value_bytes: u32,
    pub max_entries: u32,
    pub flags: u32,
    pub key: Layout,
    pub value: Layout,
    /// For a section of global variables, what it begins with.
    pub contents: Option<Vec<u8>>,
    /// What of its definition only libbpf understands: a sentence.
    pub oddity: Option<String>,
}

impl ReadMap {
    /// Whether it holds constants: `.rodata`.
    pub fn is_constant(&self) -> bool {
        self.contents.is_some() && self.name.starts_with(".rodata")
    }
}

/// Why an object could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    #[error("it is no ELF object for BPF: {0}. Compile C with `clang -g -O2 -target bpf -c`")]
    NotBpf(String),
    #[error("{0}")]
    Types(String),
    #[error("its types (`.BTF`) are missing: compile it with `clang -g`")]
    NoTypes,
    #[error("map `{map}`: {what}")]
    Map { map: String, what: String },
    #[error("section `{section}`: {what}")]
    Section { section: String, what: String },
    #[error("section `{section}`, program `{program}`, instruction {insn}: {what}")]
    Insn { section: String, program: String, insn: usize, what: String },
}

type Elf<'a> = ElfFile64<'a, Endianness>;

/// Reads an object.
///
/// # Errors
/// It is no BPF object, or has something that no engine here runs (see [`ReadError`]).
pub fn read(data: &[u8]) -> Result<Contents, ReadError> {
    if data.len() > MOST_BYTES {
        return Err(ReadError::NotBpf(format!("it has more than {MOST_BYTES} bytes")));
    }
    let elf = Elf::parse(data).map_err(|it| ReadError::NotBpf(it.to_string()))?;
    let machine = elf.elf_header().e_machine(elf.endian());
    if machine != elf::EM_BPF || elf.endian() != Endianness::Little {
        return Err(ReadError::NotBpf(format!("its machine is number {machine}, and BPF is {}", elf::EM_BPF)));
    }
    let types = types(&elf)?;
    let ext = elf.section_by_name(".BTF.ext").and_then(|it| it.data().ok()).unwrap_or_default();
    let lines = Lines::parse(ext, &types).map_err(ReadError::Types)?;
    let maps = Maps::of(&elf, &types)?;
    let programs = Linker::of(&elf, &maps, &lines)?.programs();
    let sources = lines.sources();
    let has_legacy_maps = elf.section_by_name(LEGACY).is_some();
    let losses = losses(&elf)?;
    Ok(Contents { has_legacy_maps, license: license(&elf), programs, maps: maps.list, sources, types, losses })
}

fn losses(elf: &Elf<'_>) -> Result<Vec<LossSlot>, ReadError> {
    let data = elf.section_by_name(losses::SECTION).and_then(|it| it.data().ok()).unwrap_or_default();
    losses::parse(data).map_err(|what| ReadError::Section { section: losses::SECTION.into(), what })
}

fn types(elf: &Elf<'_>) -> Result<Types, ReadError> {
    match elf.section_by_name(".BTF").and_then(|it| it.data().ok()) {
        Some(data) => Types::parse(data).map_err(ReadError::Types),
        None if elf.section_by_name(".maps").is_some() => Err(ReadError::NoTypes),
        None => Ok(Types::default()),
    }
}

fn license(elf: &Elf<'_>) -> String {
    let data = elf.section_by_name("license").and_then(|it| it.data().ok()).unwrap_or_default();
    let text = data.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// The maps, and where symbols find them.
struct Maps {
    list: Vec<ReadMap>,
    /// By section and offset in it. Of sections with global variables, only offset 0 is there.
    places: HashMap<(SectionIndex, u64), usize>,
    /// Sections with global variables.
    data: HashMap<SectionIndex, usize>,
}

impl Maps {
    fn of(elf: &Elf<'_>, types: &Types) -> Result<Maps, ReadError> {
        let mut maps = Maps { list: Vec::new(), places: HashMap::new(), data: HashMap::new() };
        if let Some(section) = elf.section_by_name(".maps") {
            maps.defined(elf, types, section.index())?;
        }
        if let Some(section) = elf.section_by_name(LEGACY) {
            let refused = |what: String| ReadError::Section { section: LEGACY.into(), what };
            let data = section.data().map_err(|it| refused(it.to_string()))?;
            maps.legacy(elf, section.index(), data).map_err(refused)?;
        }
        maps.variables(elf, types)?;
        match maps.list.len() {
            n if n > MOST_MAPS => Err(ReadError::Map {
                map: maps.list[MOST_MAPS].name.clone(),
                what: format!("an object has at most {MOST_MAPS} maps, and this one has {n}"),
            }),
            _ => Ok(maps),
        }
    }

    /// Reads `.maps`, in the order of the variables there.
    fn defined(&mut self, elf: &Elf<'_>, types: &Types, section: SectionIndex) -> Result<(), ReadError> {
        let mut places = offsets(elf, section);
        let mut list = Vec::new();
        for (name, definition) in types.section(".maps") {
            let unknown = |what: &str| ReadError::Map { map: name.to_owned(), what: what.into() };
            let place = places.remove(name).ok_or_else(|| unknown("it has no symbol in `.maps`"))?;
            list.push((place, map(name, definition, types).map_err(|what| unknown(&what))?));
        }
        if let Some(name) = places.into_keys().min() {
            return Err(ReadError::Map { map: name, what: "its types are missing: compile with `clang -g`".into() });
        }
        list.sort_by_key(|it| it.0);
        for (place, map) in list {
            self.places.insert((section, place), self.list.len());
            self.list.push(map);
        }
        Ok(())
    }

    /// Reads the section of maps that are defined by numbers, `struct bpf_map_def`.
    fn legacy(&mut self, elf: &Elf<'_>, section: SectionIndex, data: &[u8]) -> Result<(), String> {
        let mut places: Vec<(u64, String)> = offsets(elf, section).into_iter().map(|(name, at)| (at, name)).collect();
        places.sort_unstable();
        for (at, name) in places {
            let words = data.get(at as usize..).unwrap_or_default().as_chunks::<4>().0;
            let Some([kind, key_bytes, value_bytes, max_entries, flags]) = words.first_chunk() else {
                return Err(format!("the definition of `{name}` is cut off"));
            };
            let number = |it: &[u8; 4]| u32::from_le_bytes(*it);
            self.places.insert((section, at), self.list.len());
            self.list.push(ReadMap {
                name,
                kind: number(kind),
                key_bytes: number(key_bytes),
                value_bytes: number(value_bytes),
                max_entries: number(max_entries),
                flags: number(flags),
                key: Layout::of_bytes(number(key_bytes)),
                value: Layout::of_bytes(number(value_bytes)),
                contents: None,
                oddity: None,
            });
        }
        Ok(())
    }

    /// Makes a map of each section with global variables.
    fn variables(&mut self, elf: &Elf<'_>, types: &Types) -> Result<(), ReadError> {
        for section in elf.sections() {
            let name = section.name().unwrap_or_default();
            let is_of = |kind: &str| name.strip_prefix(kind).is_some_and(|it| it.is_empty() || it.starts_with('.'));
            let n_bytes = usize::try_from(section.size()).unwrap_or(usize::MAX);
            if !(is_of(".rodata") || is_of(".data") || is_of(".bss")) || n_bytes == 0 {
                continue;
            }
            let refused = |what: String| ReadError::Section { section: name.to_owned(), what };
            if n_bytes > MOST_DATA_BYTES {
                return Err(refused(format!("{n_bytes} bytes of global variables are more than {MOST_DATA_BYTES}")));
            }
            if section.relocations().next().is_some() {
                return Err(refused("a global variable holds an address, which is not supported".into()));
            }
            let data = section.data().map_err(|it| refused(it.to_string()))?;
            let mut contents = data.to_vec();
            contents.resize(n_bytes, 0);
            let value = variables_of(elf, types, section.index(), name, n_bytes as u32);
            self.data.insert(section.index(), self.list.len());
            self.list.push(ReadMap {
                name: name.to_owned(),
                kind: crate::MapKind::Array as u32,
                key_bytes: 4,
                value_bytes: n_bytes as u32,
                max_entries: 1,
                flags: 0,
                key: Layout::of_bytes(4),
                value,
                contents: Some(contents),
                oddity: None,
            });
        }
        Ok(())
    }
}

/// Returns where the variables of a section are.
fn offsets(elf: &Elf<'_>, section: SectionIndex) -> BTreeMap<String, u64> {
    let of = elf.symbols().filter(|it| it.section_index() == Some(section) && it.kind() == SymbolKind::Data);
    of.filter_map(|it| Some((it.name().ok()?.to_owned(), it.address()))).collect()
}

/// Returns the global variables of a section as members of a struct.
fn variables_of(elf: &Elf<'_>, types: &Types, section: SectionIndex, name: &str, bytes: u32) -> Layout {
    let places = offsets(elf, section);
    let variable = |(variable, of): (&str, u32)| {
        let at = u32::try_from(*places.get(variable)?).ok()?;
        let layout = types.layout(of)?;
        let fits = at.checked_add(layout.bytes()).is_some_and(|end| end <= bytes);
        fits.then(|| Field { name: variable.to_owned(), at, layout })
    };
    let mut members: Vec<Field> = types.section(name).into_iter().filter_map(variable).collect();
    members.sort_by_key(|it| it.at);
    match members.is_empty() {
        true => Layout::of_bytes(bytes),
        false => Layout::Struct { name: String::new(), bytes, members },
    }
}

/// Reads a map's definition: a struct whose members' types hold the numbers.
fn map(name: &str, definition: u32, types: &Types) -> Result<ReadMap, String> {
    let Some(Type::Struct { members, .. }) = types.plain(definition) else {
        return Err("its definition is no struct".into());
    };
    let mut map = ReadMap {
        name: name.to_owned(),
        kind: 0,
        key_bytes: 0,
        value_bytes: 0,
        max_entries: 0,
        flags: 0,
        key: Layout::Bytes { bytes: 0 },
        value: Layout::Bytes { bytes: 0 },
        contents: None,
        oddity: None,
    };
    let (mut key, mut value) = (None, None);
    for member in members {
        let number = || number(types, member.of).ok_or_else(|| format!("its `{}` is no number", member.name));
        let of_type = || {
            let layout = types.pointed(member.of).and_then(|it| types.layout(it));
            layout.ok_or_else(|| format!("the type of its {} has no known size, or too many parts", member.name))
        };
        match member.name.as_str() {
            "type" => map.kind = number()?,
            "max_entries" => map.max_entries = number()?,
            "map_flags" => map.flags = number()?,
            "key_size" => map.key_bytes = number()?,
            "value_size" => map.value_bytes = number()?,
            "key" => key = Some(of_type()?),
            "value" => value = Some(of_type()?),
            "pinning" if number()? == 0 => {}
            "pinning" => return Err("it is to be pinned, but a run leaves nothing behind: leave `pinning` out".into()),
            "numa_node" => {}
            other => map.oddity = Some(format!("its definition has `{other}`, which only Linux's maps can have")),
        }
    }
    map.key_bytes = size("key", map.key_bytes, key.as_ref())?;
    map.value_bytes = size("value", map.value_bytes, value.as_ref())?;
    map.key = key.unwrap_or_else(|| Layout::of_bytes(map.key_bytes));
    map.value = value.unwrap_or_else(|| Layout::of_bytes(map.value_bytes));
    Ok(map)
}

/// Returns the size of a map's keys or values, which may be given twice.
fn size(what: &str, number: u32, layout: Option<&Layout>) -> Result<u32, String> {
    match layout.map(Layout::bytes) {
        Some(bytes) if number != 0 && number != bytes => {
            Err(format!("its {what} has {bytes} bytes, and its {what}_size is {number}"))
        }
        Some(bytes) => Ok(bytes),
        None => Ok(number),
    }
}

/// Reads a number that libbpf's `__uint` encodes: a pointer to an array of that length.
fn number(types: &Types, id: u32) -> Option<u32> {
    match types.plain(types.pointed(id)?)? {
        Type::Array { n, .. } => Some(*n),
        _ => None,
    }
}

/// Where a function's code is.
#[derive(Clone, Debug)]
struct CodePlace {
    name: String,
    section: SectionIndex,
    /// The slots of the section that are its code.
    slots: std::ops::Range<usize>,
}

/// A section's code.
struct SectionCode {
    name: String,
    insns: Vec<Insn>,
    /// Symbols that instructions refer to, by slot.
    relocations: HashMap<usize, SymbolIndex>,
}

/// Puts programs together with the functions that they call.
struct Linker<'a> {
    elf: &'a Elf<'a>,
    maps: &'a Maps,
    lines: &'a Lines,
    functions: Vec<CodePlace>,
    code: HashMap<SectionIndex, SectionCode>,
}

/// Maps that are defined by numbers are here: `type`, sizes of key and value, capacity, flags. libbpf took them up to 0.8,
/// and aya's older macros write them.
const LEGACY: &str = "maps";
/// Whether a section holds programs. Those that no loader takes are not marked as code by [`super::write_for`].
fn is_code<'d>(section: &impl ObjectSection<'d>) -> bool {
    section.kind() == SectionKind::Text || section.name().is_ok_and(|it| it.starts_with(super::SET_ASIDE))
}

/// Functions that no attachment calls are here.
const SHARED: &str = ".text";

impl<'a> Linker<'a> {
    fn of(elf: &'a Elf<'a>, maps: &'a Maps, lines: &'a Lines) -> Result<Self, ReadError> {
        let mut code = HashMap::new();
        for section in elf.sections().filter(|it| is_code(it) && it.size() > 0) {
            let name = section.name().unwrap_or_default().to_owned();
            let refused = |what: String| ReadError::Section { section: name.clone(), what };
            let data = section.data().map_err(|it| refused(it.to_string()))?;
            let (insns, rest) = data.as_chunks::<INSN_BYTES>();
            if !rest.is_empty() {
                return Err(refused(format!("its {} bytes are no whole instructions", data.len())));
            }
            let mut relocations = HashMap::new();
            for (at, relocation) in section.relocations() {
                let known = [elf::R_BPF_64_64, elf::R_BPF_64_32];
                match (relocation.flags(), relocation.target()) {
                    (RelocationFlags::Elf { r_type }, RelocationTarget::Symbol(symbol)) if known.contains(&r_type) => {
                        relocations.insert(at as usize / INSN_BYTES, symbol);
                    }
                    _ => return Err(refused(format!("it has a relocation of an unknown kind at {at:#x}"))),
                }
            }
            let insns = insns.iter().map(|it| Insn::from_bytes(*it)).collect();
            code.insert(section.index(), SectionCode { name, insns, relocations });
        }
        let functions = functions(elf, &code)?;
        Ok(Linker { elf, maps, lines, functions, code })
    }

    /// Returns the programs in the order of their sections, and of their code within one.
    fn programs(&self) -> Vec<ReadProgram> {
        let entries = self.functions.iter().filter(|it| self.code[&it.section].name != SHARED);
        let in_maps = self.programs_in_maps();
        let program = |it: &CodePlace| ReadProgram {
            name: it.name.clone(),
            section: self.code[&it.section].name.clone(),
            maps: self.maps_of(it),
            is_in_map: in_maps.contains(it.name.as_str()),
            code: self.link(it),
        };
        entries.map(program).collect()
    }

    /// Returns the names of what maps hold from the start.
    fn programs_in_maps(&self) -> HashSet<&str> {
        let maps = self.elf.section_by_name(".maps");
        let held = maps.iter().flat_map(|it| it.relocations()).filter_map(|(_, it)| match it.target() {
            RelocationTarget::Symbol(symbol) => self.elf.symbol_by_index(symbol).ok()?.name().ok(),
            _ => None,
        });
        held.collect()
    }

    /// Returns the maps that a function and those that it calls refer to. What can't be linked is left out.
    fn maps_of(&self, entry: &CodePlace) -> Vec<BpfMapId> {
        let mut found = Vec::new();
        let mut reached = vec![entry];
        let mut next = 0;
        while let Some(function) = reached.get(next).copied() {
            next += 1;
            for slot in function.slots.clone() {
                match (self.called(function, slot), self.data(function, slot)) {
                    (Ok(Some(called)), _) if !reached.iter().any(|it| std::ptr::eq(*it, called)) => {
                        reached.push(called)
                    }
                    (_, Ok(Some((map, _)))) if !found.contains(&map) => found.push(map),
                    _ => {}
                }
            }
        }
        found.sort_unstable();
        found
    }

    fn link(&self, entry: &CodePlace) -> Result<ReadCode, ReadError> {
        let mut program = ReadCode::default();
        // Each function once, with the slot that it begins at; calls are patched when all have a place.
        let mut placed: Vec<(&CodePlace, usize)> = vec![(entry, 0)];
        let mut calls = Vec::new();
        let mut next = 0;
        while let Some((function, start)) = placed.get(next).copied() {
            next += 1;
            let code = &self.code[&function.section];
            program.insns.extend_from_slice(&code.insns[function.slots.clone()]);
            if program.insns.len() > MOST_INSNS {
                return Err(self.refused(function, 0, format!("it has more than {MOST_INSNS} instructions")));
            }
            if let Some(slot) = self.lines.first_field(&code.name, &function.slots) {
                let what =
                    "reads a field of another program's struct by its name (CO-RE), which only programs in Linux can";
                return Err(self.refused(function, slot, what));
            }
            program.lines.extend(self.lines.within(&code.name, &function.slots, start));
            for slot in function.slots.clone() {
                let at = start + slot - function.slots.start;
                if let Some(called) = self.called(function, slot)? {
                    if !placed.iter().any(|it| std::ptr::eq(it.0, called)) {
                        let end = placed.iter().map(|(it, start)| start + it.slots.len()).max().unwrap_or(0);
                        placed.push((called, end));
                    }
                    calls.push((at, called));
                } else if let Some((map, insns)) = self.data(function, slot)? {
                    program.insns[at] = insns[0];
                    program.insns[at + 1] = insns[1];
                    program.map_refs.push((at, map));
                }
            }
        }
        for (at, called) in calls {
            let target = placed.iter().find(|it| std::ptr::eq(it.0, called)).map_or(0, |it| it.1);
            program.insns[at].imm = (target as i64 - at as i64 - 1) as i32;
        }
        Ok(program)
    }

    /// Returns the function that an instruction calls, if it is a call of the object's own.
    fn called(&self, function: &CodePlace, slot: usize) -> Result<Option<&CodePlace>, ReadError> {
        let code = &self.code[&function.section];
        let insn = code.insns[slot];
        let relocated = code.relocations.get(&slot);
        let is_call = insn.code == class::JMP | insn::CALL && insn.src == insn::PSEUDO_CALL;
        if !is_call {
            if insn.code == class::JMP | insn::CALL && relocated.is_some() {
                return Err(self.refused(function, slot, "calls a function of Linux by name (kfunc)"));
            }
            return Ok(None);
        }
        let (section, target) = match relocated {
            None => (function.section, slot as i64 + 1 + i64::from(insn.imm)),
            Some(symbol) => {
                let (section, at, name) = self.symbol(function, slot, *symbol)?;
                // Without a symbol of its own, the distance from the section's start is in the instruction.
                let rest = if name.is_empty() { i64::from(insn.imm) + 1 } else { 0 };
                (section, (at / INSN_BYTES as u64) as i64 + rest)
            }
        };
        let is_it = |it: &&CodePlace| it.section == section && it.slots.start as i64 == target;
        let found = self.functions.iter().find(is_it);
        found.map(Some).ok_or_else(|| self.refused(function, slot, "calls something that is no function of the object"))
    }

    /// Returns the map that an instruction refers to, and the instruction with its second half: the offset in the map's
    /// value, if it is a global variable's.
    fn data(&self, function: &CodePlace, slot: usize) -> Result<Option<(BpfMapId, [Insn; 2])>, ReadError> {
        let code = &self.code[&function.section];
        let Some(symbol) = code.relocations.get(&slot) else { return Ok(None) };
        let ld_imm64 = class::LD | insn::mode::IMM | insn::Size::Dw as u8;
        let (insn, high) = match (code.insns[slot], code.insns.get(slot + 1)) {
            (insn, Some(high)) if insn.code == ld_imm64 && slot + 1 < function.slots.end => (insn, *high),
            _ => return Err(self.refused(function, slot, "has a relocation, but loads no address")),
        };
        let (section, at, name) = self.symbol(function, slot, *symbol)?;
        let at = at.wrapping_add(insn.imm as u32 as u64);
        if let Some(map) = self.maps.places.get(&(section, at)) {
            let insn = Insn { src: insn::PSEUDO_MAP_FD, imm: 0, ..insn };
            return Ok(Some((BpfMapId::at(*map), [insn, Insn { imm: 0, ..high }])));
        }
        if let Some(map) = self.maps.data.get(&section) {
            let insn = Insn { src: insn::PSEUDO_MAP_VALUE, imm: 0, ..insn };
            let offset = i32::try_from(at).map_err(|_| self.refused(function, slot, "loads an absurd address"))?;
            return Ok(Some((BpfMapId::at(*map), [insn, Insn { imm: offset, ..high }])));
        }
        Err(self.refused(function, slot, format!("refers to `{name}`, which is neither a map nor a global variable")))
    }

    /// Returns a symbol's section, place in it, and name; empty for a section's own.
    fn symbol(
        &self,
        function: &CodePlace,
        slot: usize,
        symbol: SymbolIndex,
    ) -> Result<(SectionIndex, u64, &str), ReadError> {
        let found = self.elf.symbol_by_index(symbol).map_err(|it| self.refused(function, slot, it.to_string()))?;
        let name = if found.kind() == SymbolKind::Section { "" } else { found.name().unwrap_or_default() };
        match found.section_index() {
            Some(section) => Ok((section, found.address(), name)),
            None => Err(self.refused(function, slot, format!("refers to `{name}`, which the object does not have"))),
        }
    }

    fn refused(&self, function: &CodePlace, slot: usize, what: impl Into<String>) -> ReadError {
        ReadError::Insn {
            section: self.code[&function.section].name.clone(),
            program: function.name.clone(),
            insn: slot.saturating_sub(function.slots.start),
            what: what.into(),
        }
    }
}

/// Returns the functions, in the order of their sections and places.
fn functions(elf: &Elf<'_>, code: &HashMap<SectionIndex, SectionCode>) -> Result<Vec<CodePlace>, ReadError> {
    let mut all = Vec::new();
    for symbol in elf.symbols().filter(|it| it.kind() == SymbolKind::Text && it.size() > 0) {
        let Some((section, SectionCode { name: section_name, insns, .. })) =
            symbol.section_index().and_then(|it| Some((it, code.get(&it)?)))
        else {
            continue;
        };
        let name = symbol.name().unwrap_or_default().to_owned();
        let (start, bytes) = (symbol.address() as usize, symbol.size() as usize);
        let slots = start / INSN_BYTES..(start.saturating_add(bytes)) / INSN_BYTES;
        let is_whole = start.is_multiple_of(INSN_BYTES) && bytes.is_multiple_of(INSN_BYTES);
        if !is_whole || slots.end > insns.len() {
            let what = format!("the function `{name}` is not within it");
            return Err(ReadError::Section { section: section_name.clone(), what });
        }
        all.push(CodePlace { name, section, slots });
    }
    all.sort_by_key(|it| (it.section.0, it.slots.start));
    Ok(all)
}
