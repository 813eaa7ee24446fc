//! The DWARF of a file that tells lines, as a file in memory.
//!
//! What reads DWARF maps its file, and inflates what is compressed there to whatever size the file claims. So it never
//! gets the file itself, which its owner may truncate, but a file that only we have: made of the sections that lines
//! take, inflated within a budget.
//!
//! ```text
//! header │ .debug_abbrev │ … │ .debug_str_offsets │ one symbol │ names of sections │ headers of sections
//! ```

use crate::elf_file::{Header, MOST_BYTES};
use crate::omission::TooMuch;
use crate::table::range;
use flate2::read::ZlibDecoder;
use object::elf::{self, SectionHeader64};
use object::read::elf::{FileHeader, SectionHeader};
use object::{Endian, Endianness};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use xputrace_boundary::copied::FileCopy;
use xputrace_boundary::memory::MemoryFile;
use xputrace_boundary::trust::Changers;
use xputrace_boundary::user::Account;

/// The sections that tell lines and inlined functions, without `.debug_`. What else there is tells of variables, and is
/// as large.
const KEPT: &[&str] =
    &["abbrev", "addr", "aranges", "info", "line", "line_str", "ranges", "rnglists", "str", "str_offsets", "types"];

/// The sections that are made of units.
const HAVE_UNITS: &[&str] = &["aranges", "info", "types"];

/// Most DWARF of a file, inflated. Programs of several gigabytes of it exist; what reads it takes as much memory again.
const MOST: u64 = 4 << 30;
/// Most DWARF of a file that others can write, inflated. It may be made so that what is parsed of it takes many times as
/// much memory: a program of line numbers, 25 times.
const MOST_OF_OTHERS: u64 = 64 << 20;

/// Those whose files are trusted as much as our own, besides root.
#[derive(Clone, Debug)]
pub(crate) struct Trusted(Vec<Account>);

impl Trusted {
    /// Returns the user who we are, and the one who became us by sudo.
    pub(crate) fn by_environment() -> Self {
        let own = Account::current();
        let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
        // Without a group they have none of their own.
        let before = || Some(Account { uid: number("SUDO_UID")?, gid: number("SUDO_GID").unwrap_or(u32::MAX) });
        // Only root's environment is that of sudo.
        Trusted([Some(own), (own.uid == 0).then(before).flatten()].into_iter().flatten().collect())
    }

    /// Whether nobody else can write a file.
    fn write_alone(&self, file: &File) -> bool {
        Changers::of(file).is_ok_and(|it| it.are_among(&self.0))
    }

    /// Returns how much DWARF of a file is read.
    pub(crate) fn most_dwarf(&self, file: &File) -> u64 {
        if self.write_alone(file) { MOST } else { MOST_OF_OTHERS }
    }
}

/// Most units of DWARF of a file. Each takes a kilobyte of memory, and as little as twelve bytes of the file; the largest
/// programs have fifty thousand.
const MOST_UNITS: usize = 1 << 18;

/// An ELF file in memory that has the DWARF of another.
#[derive(Debug)]
pub(crate) struct Excerpt {
    pub(crate) file: MemoryFile,
    pub(crate) bytes: u64,
}

/// Why there is no excerpt.
#[derive(Debug)]
pub(crate) enum Missing {
    /// It would have more than it may have.
    TooMuch(TooMuch),
    /// The file has no DWARF, is damaged, or cannot be read.
    Unreadable,
}

impl From<io::Error> for Missing {
    fn from(_: io::Error) -> Self {
        Missing::Unreadable
    }
}

/// A section that is kept.
struct Kept {
    /// Index in [`KEPT`].
    kind: usize,
    /// Where its bytes are in the file.
    from: Range<u64>,
    packing: Packing,
    /// How many there are when they are inflated.
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    None,
    Zlib,
    Zstd,
}

impl Excerpt {
    /// Makes an excerpt of at most `most_bytes`.
    pub(crate) fn of(file: &File, most_bytes: u64) -> Result<Self, Missing> {
        let headers = FileCopy::of(file.try_clone()?, MOST_BYTES)?;
        let header = Header::parse(&headers).map_err(|_| Missing::Unreadable)?;
        let endian = header.endian().map_err(|_| Missing::Unreadable)?;
        let sections = header.sections(endian, &headers).map_err(|_| Missing::Unreadable)?;
        let mut kept: Vec<Kept> = Vec::new();
        for section in sections.iter() {
            let name = sections.section_name(endian, section).unwrap_or_default();
            let Some(found) = Kept::find(&headers, section, name, endian) else { continue };
            if !kept.iter().any(|it| it.kind == found.kind) {
                kept.push(found);
            }
        }
        // Before anything is copied: a few bytes may claim any size.
        let bytes = kept.iter().try_fold(0u64, |sum, it| sum.checked_add(it.bytes)).filter(|it| *it <= most_bytes);
        let bytes = bytes.ok_or(Missing::TooMuch(TooMuch::Bytes(most_bytes)))?;
        let excerpt = MemoryFile::new()?;
        let mut writer = Writer::new(excerpt.file(), endian);
        for section in kept {
            writer.align();
            let (kind, at) = (section.kind, writer.at);
            section.copy(file, &mut writer)?;
            if HAVE_UNITS.contains(&KEPT[kind]) && has_too_many_units(excerpt.file(), at..writer.at, endian) {
                return Err(Missing::TooMuch(TooMuch::Units(MOST_UNITS)));
            }
        }
        writer.finish(header.e_machine(endian).0)?;
        Ok(Excerpt { file: excerpt, bytes })
    }
}

impl Kept {
    /// Returns a section if it is to be kept, and there is something of it.
    fn find(
        headers: &FileCopy,
        section: &SectionHeader64<Endianness>,
        name: &[u8],
        endian: Endianness,
    ) -> Option<Self> {
        /// `.zdebug_`: this, then the size in 8 bytes, the highest first (binutils' `bfd/compress.c`).
        const MAGIC: &[u8; 4] = b"ZLIB";
        /// Source: the ELF gABI, `Elf64_Chdr`: type, 4 unused bytes, size, alignment.
        const HEADER_BYTES: u64 = 24;
        let is_old = name.starts_with(b".z");
        let name = name.strip_prefix(b".debug_").or_else(|| name.strip_prefix(b".zdebug_"))?;
        let kind = KEPT.iter().position(|it| it.as_bytes() == name)?;
        let from = range(section, endian).filter(|it| it.end <= headers.size())?;
        let part = |offset: u64, len: u64| headers.get(from.start + offset..from.start + offset + len);
        let inside = |skipped: u64| from.start.checked_add(skipped).filter(|it| *it <= from.end).map(|it| it..from.end);
        if is_old {
            let bytes = u64::from_be_bytes(part(0, 12)?.strip_prefix(MAGIC)?.try_into().ok()?);
            return Some(Kept { kind, from: inside(12)?, packing: Packing::Zlib, bytes });
        }
        if !section.sh_flags(endian).contains(elf::SHF_COMPRESSED) {
            let bytes = from.end - from.start;
            return Some(Kept { kind, from, packing: Packing::None, bytes });
        }
        let packing = match elf::CompressionType(endian.read_u32(part(0, 4)?.try_into().ok()?)) {
            elf::ELFCOMPRESS_ZLIB => Packing::Zlib,
            elf::ELFCOMPRESS_ZSTD => Packing::Zstd,
            _ => return None,
        };
        let bytes = endian.read_u64(part(8, 8)?.try_into().ok()?);
        Some(Kept { kind, from: inside(HEADER_BYTES)?, packing, bytes })
    }

    /// Copies it, inflated.
    fn copy(self, file: &File, writer: &mut Writer<'_>) -> io::Result<()> {
        let from = FilePart { file, rest: self.from };
        let (kind, bytes) = (self.kind, self.bytes);
        match self.packing {
            Packing::None => writer.add(kind, bytes, from),
            Packing::Zlib => writer.add(kind, bytes, ZlibDecoder::new(from)),
            // It refuses windows of more than 128 MiB, and so needs no more memory.
            Packing::Zstd => writer.add(kind, bytes, zstd::stream::read::Decoder::new(from)?),
        }
    }
}

/// Whether a part of a file has more units than are read. Each begins with the length of its rest.
///
/// Source: DWARF 5, 7.4: a length of 32 bits, or of 64 bits after `0xffffffff`.
fn has_too_many_units(file: &File, part: Range<u64>, endian: Endianness) -> bool {
    const LONG: u32 = u32::MAX;
    let mut at = part.start;
    for _ in 0..MOST_UNITS {
        let (mut short, mut long) = ([0; 4], [0; 8]);
        if at >= part.end || file.read_exact_at(&mut short, at).is_err() {
            return false;
        }
        at += short.len() as u64;
        let mut len = u64::from(endian.read_u32(short));
        if endian.read_u32(short) == LONG {
            if file.read_exact_at(&mut long, at).is_err() {
                return false;
            }
            at += long.len() as u64;
            len = endian.read_u64(long);
        }
        let Some(next) = at.checked_add(len) else { return false };
        at = next;
    }
    at < part.end
}

/// Reads a part of a file, without moving the file's position.
struct FilePart<'a> {
    file: &'a File,
    rest: Range<u64>,
}

impl Read for FilePart<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let len = (self.rest.end - self.rest.start).min(bytes.len() as u64) as usize;
        let n = self.file.read_at(&mut bytes[..len], self.rest.start)?;
        self.rest.start += n as u64;
        Ok(n)
    }
}

/// Writes an ELF file, one section after another.
struct Writer<'a> {
    file: &'a File,
    endian: Endianness,
    at: u64,
    headers: Vec<u8>,
    names: Vec<u8>,
}

/// Bytes of an ELF file's own header.
const FILE_HEADER_BYTES: u64 = size_of::<Header>() as u64;
const SECTION_HEADER_BYTES: usize = size_of::<SectionHeader64<Endianness>>();

impl<'a> Writer<'a> {
    fn new(file: &'a File, endian: Endianness) -> Self {
        // The first section is none, and the first name is empty.
        Writer { file, endian, at: FILE_HEADER_BYTES, headers: vec![0; SECTION_HEADER_BYTES], names: vec![0] }
    }

    /// Adds one of [`KEPT`], which must have exactly these bytes.
    fn add(&mut self, kind: usize, bytes: u64, from: impl Read) -> io::Result<()> {
        /// Bytes that are copied at a time.
        const BLOCK_BYTES: usize = 1 << 18;
        let name = format!(".debug_{}", KEPT.get(kind).copied().unwrap_or_default());
        self.begin(&name, elf::SHT_PROGBITS, bytes, 0);
        let mut from = from.take(bytes.saturating_add(1));
        let mut block = vec![0; BLOCK_BYTES];
        let mut rest = bytes;
        loop {
            let n = from.read(&mut block)?;
            if n == 0 {
                break;
            }
            rest = rest.checked_sub(n as u64).ok_or(io::ErrorKind::InvalidData)?;
            self.write(&block[..n])?;
        }
        if rest == 0 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Adds the headers, which lead to all that was added.
    fn finish(mut self, machine: u16) -> io::Result<()> {
        self.add_symbol()?;
        let names = self.n_sections();
        let name_bytes = self.names.len() + ".shstrtab\0".len();
        self.begin(".shstrtab", elf::SHT_STRTAB, name_bytes as u64, 0);
        self.write(&self.names.clone())?;
        self.align();
        let (headers_at, n) = (self.at, self.n_sections());
        self.write(&self.headers.clone())?;
        let header = self.file_header(machine, headers_at, n, names);
        self.file.write_all_at(&header, 0)
    }

    /// Adds a symbol that has all addresses: code whose function has no DWARF has lines too, and these are looked up only
    /// for what has a symbol. It takes the place of the first one, which by the format is none: blazesym would find that
    /// one alone.
    fn add_symbol(&mut self) -> io::Result<()> {
        let info = elf::STT_FUNC.0;
        let section = self.u16(elf::SHN_ABS.0);
        let symbol = [&[0; 4][..], &[info, 0], &section, &[0; 8], &self.u64(u64::MAX)].concat();
        let names = self.n_sections() as u32 + 1;
        self.begin(".symtab", elf::SHT_SYMTAB, symbol.len() as u64, names);
        self.write(&symbol)?;
        self.begin(".strtab", elf::SHT_STRTAB, 1, 0);
        self.write(&[0])
    }

    /// Begins a section: adds its header and name.
    fn begin(&mut self, name: &str, kind: elf::SectionType, bytes: u64, link: u32) {
        self.align();
        let name_at = self.names.len() as u32;
        self.names.extend(name.as_bytes());
        self.names.push(0);
        let entry_bytes = if kind == elf::SHT_SYMTAB { 24 } else { 0 };
        // Source: the ELF gABI, `Elf64_Shdr`.
        let header = [
            &self.u32(name_at)[..],
            &self.u32(kind.0),
            // Flags, address.
            &[0; 16],
            &self.u64(self.at),
            &self.u64(bytes),
            &self.u32(link),
            &[0; 4],
            &self.u64(8),
            &self.u64(entry_bytes),
        ];
        self.headers.extend(header.concat());
    }

    /// Source: the ELF gABI, `Elf64_Ehdr`.
    fn file_header(&self, machine: u16, headers_at: u64, n_sections: u16, names: u16) -> Vec<u8> {
        let order = if self.endian == Endianness::Big { elf::ELFDATA2MSB } else { elf::ELFDATA2LSB };
        let identity = [&elf::ELFMAG[..], &[elf::ELFCLASS64.0, order.0, elf::EV_CURRENT.0], &[0; 9]].concat();
        [
            &identity[..],
            &self.u16(elf::ET_EXEC.0),
            &self.u16(machine),
            &self.u32(elf::EV_CURRENT.0.into()),
            // Entry, segments.
            &[0; 16],
            &self.u64(headers_at),
            // Flags.
            &[0; 4],
            &self.u16(FILE_HEADER_BYTES as u16),
            // Segments.
            &[0; 4],
            &self.u16(SECTION_HEADER_BYTES as u16),
            &self.u16(n_sections),
            &self.u16(names),
        ]
        .concat()
    }

    fn n_sections(&self) -> u16 {
        (self.headers.len() / SECTION_HEADER_BYTES) as u16
    }

    fn align(&mut self) {
        self.at = self.at.next_multiple_of(8);
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.at)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn u16(&self, it: u16) -> [u8; 2] {
        self.endian.write_u16(it)
    }

    fn u32(&self, it: u32) -> [u8; 4] {
        self.endian.write_u32(it)
    }

    fn u64(&self, it: u64) -> [u8; 8] {
        self.endian.write_u64(it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::{Object, ObjectSection};
    use std::io::Write;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    const INFO: usize = 3;

    /// Makes a file whose one section has this name, flags and bytes.
    fn file_with(name: &str, is_compressed: bool, bytes: &[u8]) -> File {
        let file = tempfile::tempfile().unwrap();
        let mut writer = Writer::new(&file, Endianness::Little);
        writer.begin(name, elf::SHT_PROGBITS, bytes.len() as u64, 0);
        if is_compressed {
            writer.headers[SECTION_HEADER_BYTES + 8] = 8;
            writer.headers[SECTION_HEADER_BYTES + 9] = 8;
        }
        writer.write(bytes).unwrap();
        writer.finish(62).unwrap();
        file
    }

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn packed(packing: u32, claimed: u64, bytes: &[u8]) -> Vec<u8> {
        [&packing.to_le_bytes()[..], &[0; 4], &claimed.to_le_bytes(), &1u64.to_le_bytes(), bytes].concat()
    }

    /// Returns the contents of `.debug_info` in the excerpt of a file.
    fn info(file: &File, most: u64) -> Result<Vec<u8>, &'static str> {
        let mut excerpt = Excerpt::of(file, most).map_err(|it| match it {
            Missing::TooMuch(TooMuch::Bytes(_)) => "too many bytes",
            Missing::TooMuch(TooMuch::Units(_)) => "too many units",
            Missing::Unreadable => "unreadable",
        })?;
        let bytes = excerpt.file.read(1 << 30).unwrap();
        let elf = object::File::parse(&*bytes).unwrap();
        Ok(elf.section_by_name(".debug_info").map(|it| it.data().unwrap().to_vec()).unwrap_or_default())
    }

    #[test]
    fn sections_are_copied_and_inflated() {
        let text: Vec<u8> = (0..1_000_000u32).flat_map(|it| (it / 7).to_le_bytes()).collect();
        let n = text.len() as u64;
        let old = [&b"ZLIB"[..], &n.to_be_bytes(), &zlib(&text)].concat();
        let zstd = zstd::encode_all(&*text, 3).unwrap();
        for (name, is_compressed, bytes) in [
            (".debug_info", false, text.clone()),
            (".debug_info", true, packed(1, n, &zlib(&text))),
            (".debug_info", true, packed(2, n, &zstd)),
            (".zdebug_info", false, old),
        ] {
            let file = file_with(name, is_compressed, &bytes);
            assert!(info(&file, n).as_ref() == Ok(&text), "{name} {is_compressed}");
            assert_eq!(info(&file, n - 1), Err("too many bytes"), "{name} {is_compressed}");
        }
        assert_eq!(KEPT[INFO], "info");
    }

    #[test]
    fn what_a_file_claims_is_checked_before_memory_is_taken_for_it() {
        let zeros = zlib(&vec![0; 1 << 24]);
        for claimed in [1 << 38, u64::MAX] {
            let file = file_with(".debug_info", true, &packed(1, claimed, &zeros));
            assert_eq!(info(&file, 1 << 32), Err("too many bytes"));
            let old = [&b"ZLIB"[..], &claimed.to_be_bytes(), &zeros].concat();
            assert_eq!(info(&file_with(".zdebug_info", false, &old), 1 << 32), Err("too many bytes"));
        }
        // More than is claimed, and less.
        for claimed in [0, 1, (1 << 24) - 1, (1 << 24) + 1] {
            let file = file_with(".debug_info", true, &packed(1, claimed, &zeros));
            assert_eq!(info(&file, 1 << 32), Err("unreadable"), "{claimed}");
        }
    }

    #[test]
    fn damaged_sections_are_left_out() {
        for (name, is_compressed, bytes) in [
            (".debug_info", true, vec![1; 23]),
            (".debug_info", true, packed(7, 4, b"what")),
            (".zdebug_info", false, b"ZLIB".to_vec()),
            (".zdebug_info", false, b"zlibzlibzlib".to_vec()),
            (".debug_loc", false, vec![1; 100]),
        ] {
            let file = file_with(name, is_compressed, &bytes);
            assert_eq!(info(&file, 10), Ok(Vec::new()), "{name} {bytes:?}");
        }
        // A section that reaches past the end of the file.
        let file = file_with(".debug_info", false, &[1; 100]);
        let end = file.metadata().unwrap().len();
        for bytes in [end, u64::MAX] {
            let at = end - (file_sections(&file) - 1) * SECTION_HEADER_BYTES as u64 + 32;
            file.write_all_at(&bytes.to_le_bytes(), at).unwrap();
            assert_eq!(info(&file, 1 << 32), Ok(Vec::new()), "{bytes}");
        }
    }

    fn file_sections(file: &File) -> u64 {
        let mut n = [0; 2];
        file.read_exact_at(&mut n, 60).unwrap();
        u16::from_le_bytes(n).into()
    }

    #[test]
    fn a_file_of_many_small_units_is_not_read() {
        let units = |n: usize, unit: &[u8]| info(&file_with(".debug_info", false, &unit.repeat(n)), 1 << 32);
        let (short, long) = (b"\x03\0\0\0abc", b"\xff\xff\xff\xff\x01\0\0\0\0\0\0\0a");
        for unit in [&short[..], long] {
            assert!(units(MOST_UNITS, unit).is_ok());
            assert_eq!(units(MOST_UNITS + 1, unit), Err("too many units"));
        }
        assert!(units(MOST_UNITS + 1, b"\xff\xff\xff\xff").is_ok(), "damaged");
    }

    #[test]
    fn a_file_that_others_can_write_may_have_less() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let about = file.as_file().metadata().unwrap();
        let most = |mode: u32, trusted: &[u32]| {
            file.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
            Trusted(trusted.iter().map(|it| Account { uid: *it, gid: *it }).collect()).most_dwarf(file.as_file())
        };
        let own = about.uid();
        assert_eq!((most(0o755, &[own]), most(0o644, &[7, own])), (MOST, MOST));
        assert_eq!(most(0o646, &[own]), MOST_OF_OTHERS);
        if about.gid() == own {
            assert_eq!(most(0o664, &[own]), MOST, "their own group's");
        }
        if own != 0 {
            println!("skipped: not root");
            return;
        }
        let chown = |uid, gid| std::os::unix::fs::chown(file.path(), Some(uid), Some(gid)).unwrap();
        chown(12_345, 12_345);
        assert_eq!((most(0o644, &[0]), most(0o644, &[0, 12_345])), (MOST_OF_OTHERS, MOST));
        assert_eq!(most(0o664, &[0, 12_345]), MOST, "their own group's");
        chown(12_345, 12_399);
        assert_eq!((most(0o644, &[12_345]), most(0o664, &[12_345])), (MOST, MOST_OF_OTHERS));
    }
}
