//! The code for GPUs that a program or library has on disk.
//!
//! Linkers put all containers of a program one behind the other into a section. Nothing else of the file is read, and of that
//! only headers: libraries have gigabytes of code.

use crate::NoCode;
use crate::text::{TextError, contents};
use object::read::elf::{FileHeader, SectionHeader};
use object::{Endianness, Object, ObjectSection, ReadCache, elf};
use std::fs::File;
use std::os::unix::fs::FileExt;
use xputrace_wire::device::{MOST_IMAGE_BYTES, Ptx};
use xputrace_wire::fatbin::{CONTAINER, Found, Memory, StoredAt, in_container};

/// The section with containers that are loaded as they are. What is in `__nv_relfatbin` was linked to such first.
const SECTION: &[u8] = b".nv_fatbin";
/// At which multiples containers begin.
const ALIGNMENT: u64 = 8;
/// PTX and machine code of all containers of a file: a hundred times what the largest libraries have.
const MOST_ENTRIES: usize = 1 << 18;
/// How much is read at once to find the next container behind what is none.
const PIECE_BYTES: usize = 1 << 16;

/// The containers of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Images {
    /// Their addresses are offsets in the file.
    pub all: Vec<Found>,
    /// Whether the search was given up before the end.
    pub is_cut: bool,
}

/// Code that could not be read from its file.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("reading {bytes} bytes of code at {at:#x}: {error}")]
    Read { at: u64, bytes: u64, error: std::io::Error },
    #[error("{0} bytes of code are more than the {MOST_IMAGE_BYTES} that are read")]
    TooLarge(u64),
    #[error(transparent)]
    Text(#[from] TextError),
}

/// A file as memory: offsets are addresses.
struct Contents<'a>(&'a File);

impl Memory for Contents<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> bool {
        self.0.read_exact_at(into, address).is_ok()
    }
}

/// Returns the containers of a program or library that have code; none of any other file. Asks `goes_on` between them whether to
/// go on.
pub fn images_of(file: &File, goes_on: &dyn Fn() -> bool) -> Images {
    let (mut images, mut memory) = (Images::default(), Contents(file));
    let Some((mut at, end)) = section(file) else { return images };
    let mut n_entries = 0;
    while at < end {
        if !goes_on() {
            images.is_cut = true;
            break;
        }
        match in_container(at, &mut memory) {
            Ok(found) => {
                at = at.saturating_add(found.bytes).next_multiple_of(ALIGNMENT);
                n_entries += found.ptx.len() + found.cubins.len();
                if n_entries > MOST_ENTRIES {
                    images.is_cut = true;
                    break;
                }
                images.all.extend(Some(found).filter(|it| !it.is_empty()));
            }
            Err(_) => at = next_container(file, at + ALIGNMENT, end),
        }
    }
    images
}

/// Returns where the section begins and ends in the file.
fn section(file: &File) -> Option<(u64, u64)> {
    let data = &ReadCache::new(file);
    let header = elf::FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, data).ok()?;
    let (_, section) = sections.section_by_name(endian, SECTION)?;
    let (at, bytes) = section.file_range(endian)?;
    Some((at, at.checked_add(bytes)?))
}

/// Returns where the next container may begin, from here on; the end if there is none.
fn next_container(file: &File, from: u64, end: u64) -> u64 {
    let mut piece = vec![0; PIECE_BYTES];
    let mut at = from;
    while at < end {
        let n = file.read_at(&mut piece, at).unwrap_or(0);
        let words = piece[..n].chunks_exact(ALIGNMENT as usize);
        let n_words = words.len();
        if let Some(found) = words.map(|it| it.starts_with(&CONTAINER.to_le_bytes())).position(|it| it) {
            return at + found as u64 * ALIGNMENT;
        }
        if n_words == 0 {
            break;
        }
        at += n_words as u64 * ALIGNMENT;
    }
    end
}

/// Reads PTX from its file, as it is there.
///
/// # Errors
/// It is too large, or the file has changed.
pub fn ptx_in(file: &File, at: &StoredAt) -> Result<Ptx<'static>, ReadError> {
    let StoredAt { codec, portability, sm, bytes, .. } = *at;
    Ok(Ptx { codec, portability, sm, text_bytes: bytes, stored: stored(file, at)?.into() })
}

/// Reads machine code from its file, and decompresses it.
///
/// # Errors
/// It is too large, or is not what its header says.
pub fn cubin_in(file: &File, at: &StoredAt) -> Result<Vec<u8>, ReadError> {
    Ok(contents(at.codec, &stored(file, at)?, at.bytes)?)
}

fn stored(file: &File, StoredAt { address, stored_bytes, .. }: &StoredAt) -> Result<Vec<u8>, ReadError> {
    if *stored_bytes > MOST_IMAGE_BYTES {
        return Err(ReadError::TooLarge(*stored_bytes));
    }
    let mut bytes = vec![0; *stored_bytes as usize];
    let read = file.read_exact_at(&mut bytes, *address);
    read.map_err(|error| ReadError::Read { at: *address, bytes: *stored_bytes, error })?;
    Ok(bytes)
}

/// The name of the section with a kernel's parameters in a cubin begins so; other functions have none.
const PARAMETERS_SECTION: &str = ".nv.constant0.";

/// Returns the symbols of the kernels in a cubin.
///
/// # Errors
/// It is no ELF file.
pub fn kernels_of(cubin: &[u8]) -> Result<Vec<String>, NoCode> {
    let file = object::File::parse(cubin)?;
    let names = file.sections().filter_map(|it| it.name().ok()?.strip_prefix(PARAMETERS_SECTION).map(str::to_owned));
    Ok(names.collect())
}

/// Returns the names behind each `.entry` in PTX: those of its kernels, without reading the rest of it.
///
/// ```
/// let text = ".visible .entry _Z5scalePf(.param .u64 p) { ret; }\n.entry\tother\n(\n) { ret; }";
/// assert_eq!(xputrace_twins::entries_of(text).collect::<Vec<_>>(), ["_Z5scalePf", "other"]);
/// ```
pub fn entries_of(text: &str) -> impl Iterator<Item = &str> {
    text.split(".entry").skip(1).filter_map(|it| {
        let rest = it.trim_start();
        let end = rest.find(|it: char| it == '(' || it.is_whitespace() || it == '{').unwrap_or(rest.len());
        Some(&rest[..end]).filter(|name| !name.is_empty() && rest.len() < it.len())
    })
}
