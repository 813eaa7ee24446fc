//! The ELF files that a process has mapped: their functions and their unwind tables.

use crate::functions::is_allocators;
use crate::process::ProcessMapping;
use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, FrameDescriptionEntry, NativeEndian, ParsedEhFrameHdr,
    Register, RegisterRule, UnwindContext, UnwindSection, X86_64,
};
use object::elf::{self, FileHeader64, ProgramHeader64, Sym64};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, SectionTable, Sym};
use object::{Endianness, SectionIndex, StringTable};
use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use xputrace_boundary::copied::FileCopy;
use xputrace_boundary::read;

type Slice<'a> = EndianSlice<'a, NativeEndian>;

/// A file with code.
#[derive(Debug)]
pub(crate) struct CodeFile {
    pub(crate) path: PathBuf,
    /// Executable addresses in the process.
    code: Vec<Range<u64>>,
    /// Address in the process minus address in the file.
    bias: u64,
    /// The unused rest of the last page of its code, in the process.
    pub(crate) gap: Range<u64>,
    /// Where the gap is in the file.
    gap_offset: u64,
    functions: HashMap<String, Range<u64>>,
    file: Reopened,
    unwind: Option<Unwind>,
}

/// Where a file's unwind tables are: ranges of the file and their addresses in it.
#[derive(Clone, Debug)]
struct Unwind {
    header: (Range<u64>, u64),
    frames: (Range<u64>, u64),
}

/// A file that is opened again when more of it is needed: of a program's hundreds, few are, and all together would take
/// more descriptors than we may have.
#[derive(Debug)]
struct Reopened {
    pid: u32,
    mapping: ProcessMapping,
    identity: FileIdentity,
    copy: OnceCell<Option<FileCopy>>,
}

/// What tells a file from another one, and from itself with other contents.
type FileIdentity = (u64, u64, u64, (i64, i64));

/// Most bytes of a file that are copied: tables of functions and of unwinding, of which large libraries have a hundred
/// megabytes.
const MOST_BYTES: u64 = 1 << 30;

/// The caller's frame, relative to a frame's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Address of the function's first instruction, in the process.
    pub(crate) function: u64,
    /// Whether a signal interrupted the caller.
    pub(crate) is_signal_frame: bool,
    pub(crate) rule: Option<Rule>,
}

/// How to find the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// The register and offset that give the canonical frame address.
    pub(crate) cfa: (Register, i64),
    /// Offsets from it at which rbx, rbp, r12 to r15 are saved, by [`SAVED`].
    pub(crate) saved: [Option<i64>; SAVED.len()],
    /// Offset from it of the return address.
    pub(crate) return_address: i64,
}

/// The registers that a function restores.
pub(crate) const SAVED: [Register; 6] = [X86_64::RBX, X86_64::RBP, X86_64::R12, X86_64::R13, X86_64::R14, X86_64::R15];

impl CodeFile {
    /// Opens the files of the executable mappings; leaves out those that cannot be read.
    pub(crate) fn all(pid: u32, mappings: &[ProcessMapping]) -> Vec<CodeFile> {
        let mut all: Vec<CodeFile> = Vec::new();
        let mut known: HashMap<&Path, Option<usize>> = HashMap::new();
        for mapping in mappings.iter().filter(|it| it.is_executable) {
            let Some(path) = &mapping.path else { continue };
            // A program may map thousands of parts of a file; one that can't be read is not tried for each.
            if let Some(image) = known.get(path.as_path()) {
                let image = image.and_then(|it| all.get_mut(it));
                image.into_iter().for_each(|it| it.code.push(mapping.start..mapping.end));
                continue;
            }
            let opened = CodeFile::open(pid, mapping, path);
            known.insert(path, opened.as_ref().map(|_| all.len()));
            all.extend(opened);
        }
        all
    }

    fn open(pid: u32, mapping: &ProcessMapping, path: &Path) -> Option<CodeFile> {
        let file = open(pid, mapping, path)?;
        let identity = identity(&file).ok()?;
        let copy = FileCopy::of(file, MOST_BYTES).ok()?;
        let elf = Elf::parse(&copy)?;
        let segment = elf.code_at(mapping.file_offset)?;
        let bias = mapping.start.wrapping_sub(segment.address_of(mapping.file_offset));
        // A large library has hundreds of thousands; of those outside of libc, only allocators matter.
        let is_needed = |name: &str| is_of_libc(path) || is_allocators(name);
        Some(CodeFile {
            path: path.into(),
            code: std::iter::once(mapping.start..mapping.end).collect(),
            bias,
            gap: segment.gap(mapping, bias),
            gap_offset: segment.end_offset(),
            functions: elf.functions(bias, is_needed).unwrap_or_default(),
            unwind: elf.unwind(),
            file: Reopened { pid, mapping: mapping.clone(), identity, copy: OnceCell::new() },
        })
    }

    /// Returns its executable addresses in the process.
    pub(crate) fn code(&self) -> &[Range<u64>] {
        &self.code
    }

    /// Returns what is in the gap as long as nobody writes there; `None` if the file is no longer the same.
    pub(crate) fn gap_contents(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        let from = self.gap_offset.saturating_add(address.wrapping_sub(self.gap.start));
        let mut bytes = self.file.copy()?.up_to(from, len as u64).to_vec();
        bytes.resize(len, 0);
        Some(bytes)
    }

    /// Returns where an exported function is, in the process.
    pub(crate) fn symbol(&self, name: &str) -> Option<Range<u64>> {
        self.functions.get(name).cloned()
    }

    /// Whether it is glibc, or a part of it that later versions have merged into libc.
    pub(crate) fn is_of_libc(&self) -> bool {
        is_of_libc(&self.path)
    }

    pub(crate) fn is_dynamic_linker(&self) -> bool {
        name(&self.path).starts_with("ld-") || name(&self.path).starts_with("ld.so")
    }

    /// Whether some of its code allocates in place of libc's.
    pub(crate) fn replaces_allocator(&self) -> bool {
        ["malloc", "calloc"].iter().any(|it| self.symbol(it).is_some())
    }

    /// Whether all of its code does, as its name says.
    pub(crate) fn is_allocator(&self) -> bool {
        ["malloc", "libhoard"].iter().any(|it| name(&self.path).contains(it))
    }

    /// Returns the unwind row of an address in the process; `None` without one.
    pub(crate) fn row(&self, address: u64) -> Option<Row> {
        let unwind = self.unwind.as_ref()?;
        let file = self.file.copy()?;
        let bases = BaseAddresses::default().set_eh_frame(unwind.frames.1).set_eh_frame_hdr(unwind.header.1);
        let header = Slice::new(file.get(unwind.header.0.clone())?, NativeEndian);
        let header: ParsedEhFrameHdr<_> = EhFrameHdr::from(header).parse(&bases, size_of::<u64>() as u8).ok()?;
        let in_file = address.wrapping_sub(self.bias);
        let at = header.table()?.lookup(in_file, &bases).ok()?.direct().ok()?;
        let entry = FrameEntry::read(file, &unwind.frames, at)?;
        let frames: EhFrame<Slice<'_>> = EhFrame::from(Slice::new(&entry.bytes, NativeEndian));
        let bases = bases.set_eh_frame(entry.address);
        let fde = frames.fde_from_offset(&bases, entry.offset.into(), EhFrame::cie_from_offset).ok()?;
        if fde.contains(in_file) { self.row_of(&fde, &frames, &bases, in_file) } else { None }
    }

    fn row_of(
        &self,
        fde: &FrameDescriptionEntry<Slice<'_>>,
        frames: &EhFrame<Slice<'_>>,
        bases: &BaseAddresses,
        in_file: u64,
    ) -> Option<Row> {
        let mut context = UnwindContext::new();
        let row = fde.unwind_info_for_address(frames, bases, &mut context, in_file).ok()?;
        let offset = |register: Register| match row.register(register) {
            Some(RegisterRule::Offset(offset)) => Some(offset),
            _ => None,
        };
        let rule = || {
            let CfaRule::RegisterAndOffset { register, offset: cfa } = row.cfa() else { return None };
            Some(Rule { cfa: (*register, *cfa), saved: SAVED.map(offset), return_address: offset(X86_64::RA)? })
        };
        Some(Row {
            function: fde.initial_address().wrapping_add(self.bias),
            is_signal_frame: fde.cie().is_signal_trampoline(),
            rule: rule(),
        })
    }
}

fn name(file: &Path) -> &str {
    file.file_name().and_then(|it| it.to_str()).unwrap_or_default()
}

fn is_of_libc(file: &Path) -> bool {
    ["libc.so", "libc-2.", "libpthread", "libdl"].iter().any(|it| name(file).starts_with(it))
}

impl Reopened {
    /// Returns the file's copy; `None` if it is another file by now, or cannot be opened.
    fn copy(&self) -> Option<&FileCopy> {
        let open = || {
            let file = open(self.pid, &self.mapping, self.mapping.path.as_deref()?)?;
            let is_same = identity(&file).is_ok_and(|it| it == self.identity);
            is_same.then(|| FileCopy::of(file, MOST_BYTES).ok())?
        };
        self.copy.get_or_init(open).as_ref()
    }
}

fn identity(file: &File) -> io::Result<FileIdentity> {
    let it = file.metadata()?;
    Ok((it.dev(), it.ino(), it.len(), (it.mtime(), it.mtime_nsec())))
}

/// Opens a mapped file: by its mapping if Linux lets us, else by its path in the process's root.
fn open(pid: u32, mapping: &ProcessMapping, path: &Path) -> Option<File> {
    let by_mapping = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    let by_path = || {
        let inside = PathBuf::from(format!("/proc/{pid}/root")).join(path.strip_prefix("/").ok()?);
        let file = read::open(&inside).ok()?;
        (file.metadata().ok()?.ino() == mapping.inode).then_some(file)
    };
    read::open(Path::new(&by_mapping)).ok().or_else(by_path)
}

/// An entry of a table of frames, and what it has in common with others, without the rest of the table: that of a large
/// library has tens of megabytes, and a thread is held meanwhile.
struct FrameEntry {
    /// The common part, then the entry.
    bytes: Vec<u8>,
    /// Where the entry is in them.
    offset: usize,
    /// The address that the bytes seem to have, by which the entry has its own.
    address: u64,
}

impl FrameEntry {
    /// Reads the entry that has an address, in a table of these bytes of a file and of this address.
    ///
    /// Source: Linux Standard Base, "Exception Frames": a length of 4 bytes, then of an entry the distance of this word
    /// from its common part.
    fn read(file: &FileCopy, table: &(Range<u64>, u64), at: u64) -> Option<FrameEntry> {
        const WORD: u64 = 4;
        let start = at.checked_sub(table.1)?;
        let entry = FrameEntry::part(file, &table.0, start)?;
        let distance = entry.get(WORD as usize..2 * WORD as usize)?;
        let distance = u64::from(u32::from_ne_bytes(distance.try_into().ok()?));
        let common = FrameEntry::part(file, &table.0, (start + WORD).checked_sub(distance)?)?;
        let offset = common.len();
        let mut bytes = [common, entry].concat();
        let distance = u32::try_from(offset).ok()?.checked_add(WORD as u32)?;
        bytes.get_mut(offset + 4..offset + 8)?.copy_from_slice(&distance.to_ne_bytes());
        Some(FrameEntry { bytes, offset, address: at.wrapping_sub(offset as u64) })
    }

    /// Returns the part at an offset in a table.
    fn part<'a>(file: &'a FileCopy, table: &Range<u64>, offset: u64) -> Option<&'a [u8]> {
        /// More than any function's rules take.
        const MOST_BYTES: u64 = 1 << 20;
        let start = table.start.checked_add(offset)?;
        let len = file.get(start..start.checked_add(4)?)?;
        let len = 4 + u64::from(u32::from_ne_bytes(len.try_into().ok()?));
        let end = start.checked_add(len).filter(|it| *it <= table.end && len <= MOST_BYTES)?;
        file.get(start..end)
    }
}

/// The headers of an ELF file.
struct Elf<'a> {
    file: &'a FileCopy,
    header: &'a FileHeader64<Endianness>,
    endian: Endianness,
    segments: &'a [ProgramHeader64<Endianness>],
}

impl<'a> Elf<'a> {
    fn parse(file: &'a FileCopy) -> Option<Self> {
        let header = FileHeader64::<Endianness>::parse(file).ok()?;
        let endian = header.endian().ok()?;
        Some(Elf { file, header, endian, segments: header.program_headers(endian, file).ok()? })
    }

    fn sections(&self) -> Option<SectionTable<'a, FileHeader64<Endianness>, &'a FileCopy>> {
        self.header.sections(self.endian, self.file).ok()
    }

    /// Returns the executable segment with this byte of the file.
    fn code_at(&self, file_offset: u64) -> Option<Segment> {
        let endian = self.endian;
        let code = self
            .segments
            .iter()
            .filter(|it| it.p_type(endian) == elf::PT_LOAD && it.p_flags(endian).contains(elf::PF_X));
        let mut code = code.map(|it| Segment {
            offset: it.p_offset(endian),
            address: it.p_vaddr(endian),
            len: it.p_filesz(endian),
            len_in_memory: it.p_memsz(endian),
        });
        code.find(|it| (page(it.offset)..it.end_offset()).contains(&file_offset))
    }

    /// Returns the exported functions with a name that is needed, in a process where the file has this bias.
    fn functions(&self, bias: u64, is_needed: impl Fn(&str) -> bool) -> Option<HashMap<String, Range<u64>>> {
        let Elf { file, endian, .. } = *self;
        let sections = self.sections()?;
        let section = sections.iter().find(|it| it.sh_type(endian) == elf::SHT_DYNSYM)?;
        let symbols = section.data_as_array::<Sym64<Endianness>, _>(endian, file).ok()?;
        // All names are copied at once: each of them is read.
        let names = sections.section(section.link(endian)).ok()?.data(endian, file).ok()?;
        let names: StringTable<'_> = StringTable::new(names, 0, names.len() as u64);
        let is_function =
            |it: &&Sym64<Endianness>| it.st_type() == elf::STT_FUNC && it.st_shndx(endian) != elf::SHN_UNDEF;
        let named = |it: &Sym64<Endianness>| {
            let name = std::str::from_utf8(it.name(endian, names).ok()?).ok()?;
            let start = it.st_value(endian).wrapping_add(bias);
            is_needed(name).then(|| (name.to_owned(), start..start.wrapping_add(it.st_size(endian))))
        };
        Some(symbols.iter().filter(is_function).filter_map(named).collect())
    }

    /// Returns where its unwind tables are.
    fn unwind(&self) -> Option<Unwind> {
        let Elf { file, endian, .. } = *self;
        let table = self.segments.iter().find(|it| it.p_type(endian) == elf::PT_GNU_EH_FRAME)?;
        let sections = self.sections()?;
        let (_, frames): (SectionIndex, _) = sections.section_by_name(endian, b".eh_frame")?;
        let range = |offset: u64, len: u64| {
            let end = offset.checked_add(len)?;
            (end <= file.size()).then_some(offset..end)
        };
        Some(Unwind {
            header: (range(table.p_offset(endian), table.p_filesz(endian))?, table.p_vaddr(endian)),
            frames: (range(frames.sh_offset(endian), frames.sh_size(endian))?, frames.sh_addr(endian)),
        })
    }
}

/// A loaded part of a file: `len` bytes at `offset` have the virtual address `address`.
struct Segment {
    offset: u64,
    address: u64,
    len: u64,
    len_in_memory: u64,
}

impl Segment {
    fn end_offset(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    /// Returns the virtual address of a byte of the file.
    fn address_of(&self, file_offset: u64) -> u64 {
        self.address.wrapping_sub(self.offset).wrapping_add(file_offset)
    }

    /// Returns the unused rest of its last page, in a process where the file has this bias; empty if it ends outside
    /// this mapping, or is followed by zeroed memory.
    fn gap(&self, mapping: &ProcessMapping, bias: u64) -> Range<u64> {
        let end = bias.wrapping_add(self.address).wrapping_add(self.len);
        let is_last = end <= mapping.end && end > mapping.start && self.len == self.len_in_memory;
        if is_last { end..mapping.end.min(page(end.wrapping_add(PAGE - 1))) } else { 0..0 }
    }
}

const PAGE: u64 = 4096;

/// Rounds down to a page.
fn page(address: u64) -> u64 {
    address & !(PAGE - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns where the function at an address begins in a file, by all of its tables of frames.
    fn function_by_whole_table(bytes: &[u8], unwind: &Unwind, in_file: u64) -> Option<u64> {
        let slice = |it: &Range<u64>| Slice::new(&bytes[it.start as usize..it.end as usize], NativeEndian);
        let bases = BaseAddresses::default().set_eh_frame(unwind.frames.1).set_eh_frame_hdr(unwind.header.1);
        let header = EhFrameHdr::from(slice(&unwind.header.0)).parse(&bases, 8).unwrap();
        let frames = EhFrame::from(slice(&unwind.frames.0));
        let fde = header.table()?.fde_for_address(&frames, &bases, in_file, EhFrame::cie_from_offset).ok()?;
        Some(fde.initial_address())
    }

    #[test]
    fn an_entry_without_the_rest_of_its_table_tells_the_same() {
        let mappings = crate::process::mappings(std::process::id()).unwrap();
        let images = CodeFile::all(std::process::id(), &mappings);
        let mut n_rules = 0;
        for image in images.iter().filter(|it| it.path.is_file()) {
            let bytes = std::fs::read(&image.path).unwrap();
            let Some(unwind) = &image.unwind else { continue };
            let code = &image.code[0];
            for address in (code.start..code.end).step_by(997) {
                let row = image.row(address);
                let function = row.as_ref().map(|it| it.function.wrapping_sub(image.bias));
                let expected = function_by_whole_table(&bytes, unwind, address.wrapping_sub(image.bias));
                assert_eq!(function, expected, "{} {address:#x}", image.path.display());
                n_rules += usize::from(row.is_some_and(|it| it.rule.is_some()));
            }
        }
        assert!(n_rules > 100, "{n_rules}");
    }
}
