//! What the headers of an ELF file tell. Reads nothing else: libraries of several gigabytes are
//! common.

use object::read::elf::{FileHeader, NoteIterator, ProgramHeader, SectionHeader};
use object::{Endianness, elf};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use xputrace_boundary::copied::FileCopy;

/// Most bytes that are read of a file: headers, notes and names of sections, of which the largest files have some
/// hundred kilobytes.
pub(crate) const MOST_BYTES: u64 = 16 << 20;

/// A file's parts.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    pub(crate) segments: Vec<Segment>,
    pub(crate) build_id: Option<Vec<u8>>,
    pub(crate) debug_link: Option<DebugLink>,
    /// Whether it has DWARF.
    pub(crate) has_lines: bool,
    /// The virtual address at which a program starts.
    pub(crate) entry: u64,
    /// Whether it is a program that contains its C library.
    pub(crate) is_static: bool,
}

/// A loaded segment: `bytes` at `file_offset` have the virtual address `address`.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) file_offset: u64,
    pub(crate) bytes: u64,
    pub(crate) address: u64,
}

/// `.gnu_debuglink`: a debug file's name without directory, and the CRC-32 of its contents.
#[derive(Debug)]
pub(crate) struct DebugLink {
    pub(crate) name: PathBuf,
    pub(crate) crc: u32,
}

pub(crate) type Header = elf::FileHeader64<Endianness>;

impl Layout {
    /// Reads it; `None` if the file is not ELF of 64 bits.
    pub(crate) fn read(file: &File) -> Option<Self> {
        let data = &FileCopy::of(file.try_clone().ok()?, MOST_BYTES).ok()?;
        let header = Header::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let parts = header.program_headers(endian, data).ok()?;
        let segment = |it: &elf::ProgramHeader64<Endianness>| Segment {
            file_offset: it.p_offset(endian),
            bytes: it.p_filesz(endian),
            address: it.p_vaddr(endian),
        };
        let segments = parts.iter().filter(|it| it.p_type(endian) == elf::PT_LOAD).map(segment).collect();
        let (entry, is_static) = (header.e_entry(endian), is_static(header, parts, endian, data));
        let of_segments = || parts.iter().find_map(|it| build_id(it.notes(endian, data).ok()??, endian));
        let Ok(sections) = header.sections(endian, data) else {
            return Some(Layout { segments, build_id: of_segments(), entry, is_static, ..Layout::default() });
        };
        let named = |name: &[u8]| sections.section_by_name(endian, name).map(|(_, it)| it);
        // A debug file's segments are those of the executable, and lead elsewhere.
        let of_sections = named(b".note.gnu.build-id").and_then(|it| build_id(it.notes(endian, data).ok()??, endian));
        Some(Layout {
            segments,
            build_id: of_sections.or_else(of_segments),
            debug_link: named(b".gnu_debuglink").and_then(|it| debug_link(it.data(endian, data).ok()?, endian)),
            has_lines: named(b".debug_info").or_else(|| named(b".zdebug_info")).is_some(),
            entry,
            is_static,
        })
    }
}

/// Whether a file is a program, and names no dynamic linker. Libraries name none either.
fn is_static<'a>(
    header: &Header,
    parts: &'a [elf::ProgramHeader64<Endianness>],
    endian: Endianness,
    data: &'a FileCopy,
) -> bool {
    let flags = |it: &elf::ProgramHeader64<Endianness>| {
        let entries = it.dynamic(endian, data).ok()??;
        entries.iter().find(|it| it.d_tag.get(endian) == elf::DT_FLAGS_1).map(|it| it.d_val.get(endian))
    };
    let is_pie = || parts.iter().find_map(flags).is_some_and(|it| it & elf::DF_1_PIE.0 != 0);
    let is_program = header.e_type(endian) == elf::ET_EXEC || is_pie();
    is_program && !parts.iter().any(|it| it.p_type(endian) == elf::PT_INTERP)
}

fn build_id(mut notes: NoteIterator<'_, Header>, endian: Endianness) -> Option<Vec<u8>> {
    while let Ok(Some(note)) = notes.next() {
        if note.name() == elf::ELF_NOTE_GNU && note.n_type(endian) == elf::NT_GNU_BUILD_ID {
            return Some(note.desc().to_vec());
        }
    }
    None
}

/// Parses the name, which zeros fill up to a multiple of 4 bytes, and the checksum.
fn debug_link(section: &[u8], endian: Endianness) -> Option<DebugLink> {
    let end = section.iter().position(|it| *it == 0).filter(|it| *it > 0)?;
    let crc = section.get((end + 1).next_multiple_of(4)..)?.first_chunk::<4>()?;
    let crc = if endian == Endianness::Big { u32::from_be_bytes(*crc) } else { u32::from_le_bytes(*crc) };
    Some(DebugLink { name: OsStr::from_bytes(&section[..end]).into(), crc })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debug_link_is_a_name_and_a_checksum() {
        let link = debug_link(b"a.debug\0\x04\x03\x02\x01", Endianness::Little);
        assert_eq!(link.map(|it| (it.name, it.crc)), Some(("a.debug".into(), 0x0102_0304)));
        for damaged in [&b""[..], b"\0\0\0\0", b"a.debug", b"a.debug\0\x04"] {
            assert!(debug_link(damaged, Endianness::Little).is_none(), "{damaged:?}");
        }
    }
}
