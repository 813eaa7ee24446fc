//! Executables and libraries: their functions, where these are in the file, and the dependencies.

use gimli::UnwindSection;
use memmap2::Mmap;
use object::read::elf::{Dyn, ElfFile64, FileHeader, SectionHeader};
use object::{Endianness, Object, ObjectSection, ObjectSegment, ObjectSymbol, Permissions, SymbolFlags};
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Source: the ELF gABI, `st_info`.
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;

/// A mapped file.
pub(crate) struct Elf {
    path: PathBuf,
    bytes: Mmap,
}

/// A function symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
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
        let file = File::open(path).map_err(|it| it.to_string())?;
        // SAFETY: the bytes are only read; a file that another process truncates meanwhile ends
        // us with SIGBUS, as it would end its own users.
        let bytes = unsafe { Mmap::map(&file) }.map_err(|it| it.to_string())?;
        let elf = Elf { path: path.to_path_buf(), bytes };
        elf.parse()?;
        Ok(elf)
    }

    pub(crate) fn parse(&self) -> Result<ElfFile64<'_, Endianness>, String> {
        ElfFile64::parse(&*self.bytes).map_err(|_| "it is not a 64-bit ELF file".to_owned())
    }

    /// Returns the defined functions whose name (as in the file, without a version) passes. Skips
    /// function symbols that refer to data, where a breakpoint would change the data.
    pub(crate) fn functions(&self, passes: &mut dyn FnMut(&str) -> bool) -> Vec<Function> {
        let Ok(file) = self.parse() else { return Vec::new() };
        let code = segments(&file, Permissions::executable);
        let mut found: HashMap<(String, u64), Function> = HashMap::new();
        for symbol in file.symbols().chain(file.dynamic_symbols()) {
            let Some(kind) = function_kind(&symbol.flags()) else { continue };
            let Ok(name) = symbol.name() else { continue };
            let name = name.split('@').next().unwrap_or(name);
            if symbol.is_undefined() || name.is_empty() || !passes(name) {
                continue;
            }
            let Some(file_offset) = offset_of(&code, symbol.address()) else { continue };
            let indirect = kind == STT_GNU_IFUNC;
            let function = Function { name: name.to_owned(), file_offset, size: symbol.size(), indirect };
            found.entry((function.name.clone(), file_offset)).or_insert(function);
        }
        let mut found: Vec<_> = found.into_values().collect();
        found.sort_by(|a, b| (&a.name, a.file_offset).cmp(&(&b.name, b.file_offset)));
        found
    }

    /// Returns the virtual address of the code at a file offset.
    pub(crate) fn address(&self, file_offset: u64) -> Option<u64> {
        let file = self.parse().ok()?;
        file.segments().find_map(|it| {
            let (start, size) = it.file_range();
            let distance = file_offset.checked_sub(start).filter(|it| *it < size)?;
            Some(it.address() + distance)
        })
    }

    /// Returns the file offset of the code at a virtual address.
    pub(crate) fn file_offset(&self, address: u64) -> Option<u64> {
        let file = self.parse().ok()?;
        offset_of(&segments(&file, Permissions::executable), address)
    }

    /// Returns the file offset of the data at a virtual address.
    pub(crate) fn data_offset(&self, address: u64) -> Option<u64> {
        let file = self.parse().ok()?;
        offset_of(&segments(&file, |it| !it.executable()), address)
    }

    /// Returns the virtual address of a variable; a sentence if it has none, or several.
    pub(crate) fn variable(&self, name: &str) -> Result<u64, String> {
        let file = self.parse()?;
        let symbols = file.symbols().chain(file.dynamic_symbols());
        let named = symbols.filter(|it| it.is_definition() && it.name() == Ok(name)).map(|it| it.address());
        let mut addresses: Vec<u64> = named.collect();
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
        let file = self.parse().ok()?;
        let section = file.section_by_name(".eh_frame")?;
        let rules = gimli::EhFrame::new(section.data().ok()?, gimli::LittleEndian);
        let bases = gimli::BaseAddresses::default().set_eh_frame(section.address());
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

    /// Whether a function is used here but defined elsewhere.
    pub(crate) fn imports(&self, function: &str) -> bool {
        self.parse().is_ok_and(|file| file.dynamic_symbols().any(|it| it.is_undefined() && it.name() == Ok(function)))
    }

    /// Whether it has no symbol table except the dynamic linker's.
    pub(crate) fn is_stripped(&self) -> bool {
        self.parse().is_ok_and(|file| file.symbol_table().is_none())
    }

    /// Returns the code at an offset; empty beyond the end.
    pub(crate) fn code(&self, file_offset: u64) -> &[u8] {
        usize::try_from(file_offset).ok().and_then(|it| self.bytes.get(it..)).unwrap_or(&[])
    }

    pub(crate) fn is_x86_64(&self) -> bool {
        self.parse().is_ok_and(|file| file.elf_header().e_machine(file.endian()) == object::elf::EM_X86_64)
    }

    pub(crate) fn build_id(&self) -> Vec<u8> {
        self.parse().ok().and_then(|it| it.build_id().ok().flatten().map(<[u8]>::to_vec)).unwrap_or_default()
    }

    /// Returns the libraries that it is linked with, and its search directories.
    pub(crate) fn needs(&self) -> Needs {
        self.parse().ok().and_then(|file| self.read_needs(&file)).unwrap_or_default()
    }

    fn read_needs(&self, file: &ElfFile64<'_, Endianness>) -> Option<Needs> {
        let (endian, data) = (file.endian(), &*self.bytes);
        let sections = file.elf_header().sections(endian, data).ok()?;
        let (dynamic, strings) = sections.iter().find_map(|it| it.dynamic(endian, data).ok().flatten())?;
        let strings = sections.strings(endian, data, strings).ok()?;
        let text = |it: &object::elf::Dyn64<Endianness>| {
            let at = u32::try_from(it.d_val(endian)).ok()?;
            String::from_utf8(strings.get(at).ok()?.to_vec()).ok()
        };
        let mut needs = Needs::default();
        for entry in dynamic {
            let (Some(text), tag) = (text(entry), entry.d_tag(endian)) else { continue };
            if tag == object::elf::DT_NEEDED {
                needs.libraries.push(text);
            } else if tag == object::elf::DT_RPATH || tag == object::elf::DT_RUNPATH {
                let origin = self.path.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
                let expand = |it: &str| PathBuf::from(it.replace("$ORIGIN", &origin).replace("${ORIGIN}", &origin));
                needs.directories.extend(text.split(':').filter(|it| !it.is_empty()).map(expand));
            }
        }
        Some(needs)
    }
}

fn function_kind(flags: &SymbolFlags<object::SectionIndex, object::SymbolIndex>) -> Option<u8> {
    match flags {
        SymbolFlags::Elf { st_info, .. } => {
            let kind = st_info.0 & 0xf;
            (kind == STT_FUNC || kind == STT_GNU_IFUNC).then_some(kind)
        }
        _ => None,
    }
}

/// Returns address, file offset and size of the segments whose permissions pass.
fn segments(file: &ElfFile64<'_, Endianness>, passes: impl Fn(&Permissions) -> bool) -> Vec<(u64, (u64, u64))> {
    let passing = file.segments().filter(|it| passes(&it.permissions()));
    passing.map(|it| (it.address(), it.file_range())).collect()
}

fn offset_of(segments: &[(u64, (u64, u64))], address: u64) -> Option<u64> {
    segments.iter().find_map(|(start, (offset, size))| {
        let inside = address.checked_sub(*start)?;
        (inside < *size).then(|| offset.checked_add(inside)).flatten()
    })
}
