//! The ELF files that a process has mapped: their functions and their unwind tables.

use crate::process::Mapping;
use crate::safety::is_allocators;
use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, FrameDescriptionEntry, NativeEndian, ParsedEhFrameHdr,
    Register, RegisterRule, UnwindContext, UnwindSection, X86_64,
};
use memmap2::Mmap;
use object::elf::{self, FileHeader64, ProgramHeader64, Sym64};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{Endianness, SectionIndex};
use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

type Slice<'a> = EndianSlice<'a, NativeEndian>;

/// A file with code.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) path: PathBuf,
    /// Executable addresses in the process.
    code: Vec<Range<u64>>,
    /// Address in the process minus address in the file.
    bias: u64,
    /// The unused rest of the last page of its code, in the process.
    pub(crate) gap: Range<u64>,
    /// Where the gap is in the file.
    gap_offset: usize,
    functions: HashMap<String, Range<u64>>,
    file: Mmap,
    unwind: Option<Unwind>,
}

/// Where a file's unwind tables are: ranges of the file and their addresses in it.
#[derive(Debug)]
struct Unwind {
    header: (Range<usize>, u64),
    frames: (Range<usize>, u64),
}

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

impl Image {
    /// Opens the files of the executable mappings; leaves out those that cannot be read.
    pub(crate) fn all(pid: u32, mappings: &[Mapping]) -> Vec<Image> {
        let mut all: Vec<Image> = Vec::new();
        for mapping in mappings.iter().filter(|it| it.is_executable) {
            let Some(path) = &mapping.path else { continue };
            match all.iter_mut().find(|it| it.path == *path) {
                Some(image) => image.code.push(mapping.start..mapping.end),
                None => all.extend(Image::open(pid, mapping, path)),
            }
        }
        all
    }

    fn open(pid: u32, mapping: &Mapping, path: &Path) -> Option<Image> {
        let file = open(pid, mapping, path)?;
        // SAFETY: a file that someone truncates now would end us by SIGBUS, as it would its own process.
        let file = unsafe { Mmap::map(&file) }.ok()?;
        let elf = Elf::parse(&file)?;
        let segment = elf.code_at(mapping.file_offset)?;
        let bias = mapping.start.wrapping_sub(segment.address_of(mapping.file_offset));
        // A large library has hundreds of thousands; of those outside of libc, only allocators matter.
        let is_needed = |name: &str| is_of_libc(path) || is_allocators(name);
        Some(Image {
            path: path.into(),
            code: std::iter::once(mapping.start..mapping.end).collect(),
            bias,
            gap: segment.gap(mapping, bias),
            gap_offset: usize::try_from(segment.end_offset()).ok()?,
            functions: elf.functions(bias, is_needed).unwrap_or_default(),
            unwind: elf.unwind(),
            file,
        })
    }

    pub(crate) fn has_code_at(&self, address: u64) -> bool {
        self.code.iter().any(|it| it.contains(&address))
    }

    /// Returns what is in the gap as long as nobody writes there.
    pub(crate) fn gap_contents(&self, address: u64, len: usize) -> Vec<u8> {
        let from = self.gap_offset.saturating_add(address.wrapping_sub(self.gap.start) as usize);
        let rest = self.file.get(from..).unwrap_or_default();
        let mut bytes = rest[..len.min(rest.len())].to_vec();
        bytes.resize(len, 0);
        bytes
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
        let slice = |range: &Range<usize>| Slice::new(&self.file[range.clone()], NativeEndian);
        let bases = BaseAddresses::default().set_eh_frame(unwind.frames.1).set_eh_frame_hdr(unwind.header.1);
        let header: ParsedEhFrameHdr<_> =
            EhFrameHdr::from(slice(&unwind.header.0)).parse(&bases, size_of::<u64>() as u8).ok()?;
        let frames: EhFrame<Slice<'_>> = EhFrame::from(slice(&unwind.frames.0));
        let in_file = address.wrapping_sub(self.bias);
        let table = header.table()?;
        let fde = table.fde_for_address(&frames, &bases, in_file, EhFrame::cie_from_offset).ok()?;
        self.row_of(&fde, &frames, &bases, in_file)
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

/// Opens a mapped file: by its mapping if Linux lets us, else by its path in the process's root.
fn open(pid: u32, mapping: &Mapping, path: &Path) -> Option<File> {
    let by_mapping = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    let by_path = || {
        let file = File::open(PathBuf::from(format!("/proc/{pid}/root")).join(path.strip_prefix("/").ok()?)).ok()?;
        (file.metadata().ok()?.ino() == mapping.inode).then_some(file)
    };
    File::open(by_mapping).ok().or_else(by_path)
}

/// The headers of an ELF file.
struct Elf<'a> {
    file: &'a [u8],
    header: &'a FileHeader64<Endianness>,
    endian: Endianness,
    segments: &'a [ProgramHeader64<Endianness>],
}

impl<'a> Elf<'a> {
    fn parse(file: &'a [u8]) -> Option<Self> {
        let header = FileHeader64::<Endianness>::parse(file).ok()?;
        let endian = header.endian().ok()?;
        Some(Elf { file, header, endian, segments: header.program_headers(endian, file).ok()? })
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
        let symbols = self.header.sections(endian, file).ok()?.symbols(endian, file, elf::SHT_DYNSYM).ok()?;
        let is_function =
            |it: &&Sym64<Endianness>| it.st_type() == elf::STT_FUNC && it.st_shndx(endian) != elf::SHN_UNDEF;
        let named = |it: &Sym64<Endianness>| {
            let name = std::str::from_utf8(it.name(endian, symbols.strings()).ok()?).ok()?;
            let start = it.st_value(endian).wrapping_add(bias);
            is_needed(name).then(|| (name.to_owned(), start..start.wrapping_add(it.st_size(endian))))
        };
        Some(symbols.iter().filter(is_function).filter_map(named).collect())
    }

    /// Returns where its unwind tables are.
    fn unwind(&self) -> Option<Unwind> {
        let Elf { file, endian, .. } = *self;
        let table = self.segments.iter().find(|it| it.p_type(endian) == elf::PT_GNU_EH_FRAME)?;
        let sections = self.header.sections(endian, file).ok()?;
        let (_, frames): (SectionIndex, _) = sections.section_by_name(endian, b".eh_frame")?;
        let range = |offset: u64, len: u64| {
            let range = usize::try_from(offset).ok()?..usize::try_from(offset.checked_add(len)?).ok()?;
            file.get(range.clone()).map(|_| range)
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
    fn gap(&self, mapping: &Mapping, bias: u64) -> Range<u64> {
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
