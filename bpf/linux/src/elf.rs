//! Executables and libraries: their functions, where these are in the file, and the dependencies.

use gimli::UnwindSection;
use object::elf::{self, FileHeader64, ProgramHeader64, SectionHeader64, SectionType};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, SectionTable, Sym};
use object::{Endianness, StringTable};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use xputrace_boundary::copied::FileCopy;

/// Most bytes of a file that are copied. Symbol tables of the largest libraries have some hundred megabytes; DWARF, which
/// is read for the type that a function returns, has a gigabyte.
const MOST_BYTES: u64 = 1 << 30;
/// Bytes that the longest instruction of x86-64 has, and the one after an `endbr64`.
pub(crate) const LONGEST_INSTRUCTION: u64 = 16;

/// A file, of which only what is asked for is copied: its other users may change it at any time.
pub(crate) struct Elf {
    path: PathBuf,
    bytes: FileCopy,
}

/// The headers of a file. Reading them copies no symbol table.
struct Headers<'a> {
    bytes: &'a FileCopy,
    header: &'a FileHeader64<Endianness>,
    endian: Endianness,
    segments: &'a [ProgramHeader64<Endianness>],
    sections: SectionTable<'a, FileHeader64<Endianness>, &'a FileCopy>,
}

/// A section as far as its readers need it.
pub(crate) struct Section<'a> {
    pub(crate) address: u64,
    pub(crate) bytes: &'a [u8],
}

/// A symbol table, and the names in it.
struct Symbols<'a> {
    endian: Endianness,
    all: &'a [elf::Sym64<Endianness>],
    /// All of them are copied at once: whoever looks for a name reads most of them.
    names: StringTable<'a>,
}

/// A function symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FunctionSymbol {
    /// The name without a version.
    pub(crate) name: String,
    /// Offset of its first byte in the file.
    pub(crate) file_offset: u64,
    pub(crate) size: u64,
    /// Whether it only selects the implementation to run (an indirect function).
    pub(crate) indirect: bool,
}

/// What an executable asks the dynamic linker for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) libraries: Vec<String>,
    /// RPATH and RUNPATH, with `$ORIGIN` replaced.
    pub(crate) directories: Vec<PathBuf>,
}

impl Elf {
    pub(crate) fn open(path: &Path) -> Result<Elf, String> {
        let bytes = FileCopy::open(path, MOST_BYTES).map_err(|it| it.to_string())?;
        let elf = Elf { path: path.to_path_buf(), bytes };
        elf.headers().ok_or("it is not a 64-bit ELF file")?;
        Ok(elf)
    }

    fn headers(&self) -> Option<Headers<'_>> {
        let bytes = &self.bytes;
        let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, bytes).ok()?;
        Some(Headers { bytes, header, endian, segments, sections: header.sections(endian, bytes).ok()? })
    }

    /// Returns the defined functions whose name (as in the file, without a version) passes. Skips
    /// function symbols that refer to data, where a breakpoint would change the data.
    pub(crate) fn functions(&self, passes: &mut dyn FnMut(&str) -> bool) -> Vec<FunctionSymbol> {
        let Some(headers) = self.headers() else { return Vec::new() };
        let code = headers.loaded(is_code);
        let mut found: HashMap<(String, u64), FunctionSymbol> = HashMap::new();
        for symbols in headers.all_symbols() {
            for symbol in symbols.all.iter().filter(|it| is_function(it)) {
                let Some(name) = symbols.name(symbol) else { continue };
                let name = name.split('@').next().unwrap_or(name);
                if symbols.is_undefined(symbol) || name.is_empty() || !passes(name) {
                    continue;
                }
                let Some(file_offset) = offset_of(&code, symbols.address(symbol)) else { continue };
                let indirect = symbol.st_type() == elf::STT_GNU_IFUNC;
                let size = symbol.st_size(symbols.endian);
                let function = FunctionSymbol { name: name.to_owned(), file_offset, size, indirect };
                found.entry((function.name.clone(), file_offset)).or_insert(function);
            }
        }
        let mut found: Vec<_> = found.into_values().collect();
        found.sort_by(|a, b| (&a.name, a.file_offset).cmp(&(&b.name, b.file_offset)));
        found
    }

    /// Returns the virtual address of the code at a file offset.
    pub(crate) fn address(&self, file_offset: u64) -> Option<u64> {
        let headers = self.headers()?;
        headers.loaded(|_| true).iter().find_map(|(address, (start, size))| {
            let distance = file_offset.checked_sub(*start).filter(|it| it < size)?;
            Some(address.wrapping_add(distance))
        })
    }

    /// Returns the file offset of the code at a virtual address.
    pub(crate) fn file_offset(&self, address: u64) -> Option<u64> {
        offset_of(&self.headers()?.loaded(is_code), address)
    }

    /// Returns the file offset of the data at a virtual address.
    pub(crate) fn data_offset(&self, address: u64) -> Option<u64> {
        offset_of(&self.headers()?.loaded(|it| !is_code(it)), address)
    }

    /// Returns the virtual address of a variable; a sentence if it has none, or several.
    pub(crate) fn variable(&self, name: &str) -> Result<u64, String> {
        let tables = self.headers().map(|it| it.all_symbols()).unwrap_or_default();
        let mut addresses: Vec<u64> = tables.iter().flat_map(|it| it.definitions(name)).collect();
        addresses.sort_unstable();
        addresses.dedup();
        match addresses[..] {
            [one] => Ok(one),
            [] if self.is_stripped() => Err(format!("it is in the variable `{name}`, and the file is stripped")),
            [] => Err(format!("it is in the variable `{name}`, for which the file has no symbol")),
            _ => Err(format!("it is in the variable `{name}`, and the file has several of this name")),
        }
    }

    /// Returns the start of the code that contains an address, by the file's unwinding rules: a
    /// function, or a part that the compiler moved out of one. Stripped files have these rules too.
    pub(crate) fn unwound_part(&self, address: u64) -> Option<u64> {
        let section = self.section(".eh_frame")?;
        let rules = gimli::EhFrame::new(section.bytes, gimli::LittleEndian);
        let bases = gimli::BaseAddresses::default().set_eh_frame(section.address);
        let mut entries = rules.entries(&bases);
        while let Ok(Some(entry)) = entries.next() {
            let gimli::CieOrFde::Fde(part) = entry else { continue };
            let Ok(part) = part.parse(gimli::EhFrame::cie_from_offset) else { continue };
            if part.contains(address) {
                return Some(part.initial_address());
            }
        }
        None
    }

    /// Returns a section; `None` if the file has none of this name, or has it compressed.
    pub(crate) fn section(&self, name: &str) -> Option<Section<'_>> {
        let Headers { endian, sections, bytes, .. } = self.headers()?;
        let (_, section) = sections.section_by_name(endian, name.as_bytes())?;
        let is_compressed = section.sh_flags(endian).contains(elf::SHF_COMPRESSED);
        let bytes = section.data(endian, bytes).ok().filter(|_| !is_compressed)?;
        Some(Section { address: section.sh_addr(endian), bytes })
    }

    /// Returns the virtual address of a section.
    pub(crate) fn section_address(&self, name: &str) -> Option<u64> {
        let Headers { endian, sections, .. } = self.headers()?;
        sections.section_by_name(endian, name.as_bytes()).map(|(_, it)| it.sh_addr(endian))
    }

    /// Returns the descriptions of all notes of an owner and kind, in the file's order.
    pub(crate) fn notes(&self, owner: &[u8], kind: elf::NoteType) -> Vec<&[u8]> {
        let Some(Headers { endian, sections, bytes, .. }) = self.headers() else { return Vec::new() };
        let mut found = Vec::new();
        for section in sections.iter() {
            let Ok(Some(mut notes)) = section.notes(endian, bytes) else { continue };
            while let Ok(Some(note)) = notes.next() {
                if note.name() == owner && note.n_type(endian) == kind {
                    found.push(note.desc());
                }
            }
        }
        found
    }

    /// Whether a function is used here but defined elsewhere.
    pub(crate) fn imports(&self, function: &str) -> bool {
        let symbols = self.headers().and_then(|it| it.symbols(elf::SHT_DYNSYM));
        symbols
            .is_some_and(|it| it.all.iter().any(|symbol| it.is_undefined(symbol) && it.name(symbol) == Some(function)))
    }

    /// Whether it has no symbol table except the dynamic linker's.
    pub(crate) fn is_stripped(&self) -> bool {
        self.headers().is_some_and(|it| it.section_of_kind(elf::SHT_SYMTAB).is_none())
    }

    /// Whether it has more of what was asked for than is copied.
    pub(crate) fn is_too_large(&self) -> bool {
        self.bytes.is_over_budget()
    }

    /// Returns at most `len` bytes of the code at an offset; fewer at the end of the file.
    pub(crate) fn code(&self, file_offset: u64, len: u64) -> &[u8] {
        self.bytes.up_to(file_offset, len)
    }

    pub(crate) fn is_x86_64(&self) -> bool {
        self.headers().is_some_and(|it| it.header.e_machine(it.endian) == elf::EM_X86_64)
    }

    pub(crate) fn build_id(&self) -> Vec<u8> {
        let of_segments =
            || self.headers().filter(|it| it.sections.is_empty()).and_then(|it| it.build_id_of_segments());
        let notes = self.notes(elf::ELF_NOTE_GNU, elf::NT_GNU_BUILD_ID);
        notes.first().copied().or_else(of_segments).map(<[u8]>::to_vec).unwrap_or_default()
    }

    /// Returns the libraries that it is linked with, and its search directories.
    pub(crate) fn needs(&self) -> Needs {
        self.headers().and_then(|it| self.read_needs(&it)).unwrap_or_default()
    }

    fn read_needs(&self, headers: &Headers<'_>) -> Option<Needs> {
        let Headers { endian, sections, bytes, .. } = headers;
        let (endian, bytes) = (*endian, *bytes);
        let (dynamic, strings) = sections.iter().find_map(|it| it.dynamic(endian, bytes).ok().flatten())?;
        let strings = sections.strings(endian, bytes, strings).ok()?;
        let text = |it: &elf::Dyn64<Endianness>| {
            let at = u32::try_from(it.d_val.get(endian)).ok()?;
            String::from_utf8(strings.get(at).ok()?.to_vec()).ok()
        };
        let mut needs = Needs::default();
        for entry in dynamic {
            let tag = entry.d_tag.get(endian);
            let is_path = tag == elf::DT_RPATH || tag == elf::DT_RUNPATH;
            let Some(text) = (is_path || tag == elf::DT_NEEDED).then(|| text(entry)).flatten() else { continue };
            if is_path {
                let origin = self.path.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
                let expand = |it: &str| PathBuf::from(it.replace("$ORIGIN", &origin).replace("${ORIGIN}", &origin));
                needs.directories.extend(text.split(':').filter(|it| !it.is_empty()).map(expand));
            } else {
                needs.libraries.push(text);
            }
        }
        Some(needs)
    }
}

/// Address, file offset and size of a segment.
type LoadedSegment = (u64, (u64, u64));

impl<'a> Headers<'a> {
    /// Returns the loaded segments whose rights pass.
    fn loaded(&self, passes: impl Fn(elf::ProgramFlags) -> bool) -> Vec<LoadedSegment> {
        let endian = self.endian;
        let loaded = self.segments.iter().filter(|it| it.p_type(endian) == elf::PT_LOAD);
        let passing = loaded.filter(|it| passes(it.p_flags(endian)));
        passing.map(|it| (it.p_vaddr(endian), it.file_range(endian))).collect()
    }

    fn section_of_kind(&self, kind: SectionType) -> Option<&'a SectionHeader64<Endianness>> {
        let endian = self.endian;
        self.sections.iter().find(|it| it.sh_type(endian) == kind && it.sh_size(endian) > 0)
    }

    /// Returns the symbol tables: first the one that a stripped file lacks.
    fn all_symbols(&self) -> Vec<Symbols<'a>> {
        [elf::SHT_SYMTAB, elf::SHT_DYNSYM].into_iter().filter_map(|it| self.symbols(it)).collect()
    }

    fn symbols(&self, kind: SectionType) -> Option<Symbols<'a>> {
        let Headers { endian, bytes, .. } = *self;
        let section = self.section_of_kind(kind)?;
        let all = section.data_as_array(endian, bytes).ok()?;
        let names = self.sections.section(section.link(endian)).ok()?;
        let names = names.data(endian, bytes).ok()?;
        Some(Symbols { endian, all, names: StringTable::new(names, 0, names.len() as u64) })
    }

    fn build_id_of_segments(&self) -> Option<&'a [u8]> {
        let mut notes = self.segments.iter().filter_map(|it| it.notes(self.endian, self.bytes).ok().flatten());
        notes.find_map(|mut notes| {
            let mut all = std::iter::from_fn(|| notes.next().ok().flatten());
            let found = all.find(|it| it.name() == elf::ELF_NOTE_GNU && it.n_type(self.endian) == elf::NT_GNU_BUILD_ID);
            found.map(|it| it.desc())
        })
    }
}

impl<'a> Symbols<'a> {
    fn name(&self, symbol: &elf::Sym64<Endianness>) -> Option<&'a str> {
        std::str::from_utf8(symbol.name(self.endian, self.names).ok()?).ok()
    }

    fn address(&self, symbol: &elf::Sym64<Endianness>) -> u64 {
        symbol.st_value(self.endian)
    }

    fn is_undefined(&self, symbol: &elf::Sym64<Endianness>) -> bool {
        symbol.st_shndx(self.endian) == elf::SHN_UNDEF
    }

    /// Returns the addresses of what has this name here.
    fn definitions(&self, name: &str) -> Vec<u64> {
        let defined = self.all.iter().filter(|it| it.is_definition(self.endian, self.names));
        defined.filter(|it| self.name(it) == Some(name)).map(|it| self.address(it)).collect()
    }
}

fn is_code(rights: elf::ProgramFlags) -> bool {
    rights.contains(elf::PF_X)
}

fn is_function(symbol: &elf::Sym64<Endianness>) -> bool {
    symbol.st_type() == elf::STT_FUNC || symbol.st_type() == elf::STT_GNU_IFUNC
}

fn offset_of(segments: &[LoadedSegment], address: u64) -> Option<u64> {
    segments.iter().find_map(|(start, (offset, size))| {
        let inside = address.checked_sub(*start)?;
        (inside < *size).then(|| offset.checked_add(inside)).flatten()
    })
}
