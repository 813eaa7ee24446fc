//! The code for GPUs that a program or library has on disk.
//!
//! Linkers put all containers of a program one behind the other into a section. Nothing else of the file is read, and of that
//! only headers: libraries have gigabytes of code.

use crate::text::{TextError, contents};
use object::read::elf::{FileHeader, SectionHeader};
use object::{Endianness, Object, ObjectSection, elf};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use xputrace_boundary::copied::FileCopy;
use xputrace_wire::device::{MOST_IMAGE_BYTES, Parameter, PortableCode};
use xputrace_wire::nvidia::fatbin::{CONTAINER, FatbinContents, in_container};
use xputrace_wire::stored::{ReadableMemory, StoredAt};

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
    pub all: Vec<FatbinContents>,
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

/// Machine code that can't be read.
#[derive(Debug, thiserror::Error)]
#[error("machine code that the program has loaded can't be read: {0}")]
pub struct NoCode(#[from] object::Error);

/// A file as memory: offsets are addresses.
struct Contents<'a>(&'a File);

impl ReadableMemory for Contents<'_> {
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
                // A container may say any size: behind the largest there is nothing, and not the file's beginning again.
                at = at.saturating_add(found.bytes).checked_next_multiple_of(ALIGNMENT).unwrap_or(end);
                n_entries += found.ptx.len() + found.cubins.len();
                if n_entries > MOST_ENTRIES {
                    images.is_cut = true;
                    break;
                }
                images.all.extend(Some(found).filter(|it| !it.is_empty()));
            }
            Err(_) => at = next_container(file, at.saturating_add(ALIGNMENT), end),
        }
    }
    images
}

/// More than the tables of sections and their names take in any library.
const MOST_HEADER_BYTES: u64 = 64 << 20;

/// Returns where the section begins and ends in the file.
fn section(file: &File) -> Option<(u64, u64)> {
    let data = &FileCopy::of(file.try_clone().ok()?, MOST_HEADER_BYTES).ok()?;
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
pub fn ptx_in(file: &File, at: &StoredAt) -> Result<PortableCode<'static>, ReadError> {
    let StoredAt { codec, portability, sm, bytes, .. } = *at;
    Ok(PortableCode { codec, portability, sm, text_bytes: bytes, stored: stored(file, at)?.into() })
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

/// The name of the section with what the driver has to know of a kernel begins so.
const INFO_SECTION: &str = ".nv.info.";

/// Returns the parameters of each kernel in a cubin, by number. A kernel of which they can't be read is left out.
///
/// # Errors
/// It is no ELF file.
pub fn parameters_of(cubin: &[u8]) -> Result<HashMap<String, Vec<Parameter>>, NoCode> {
    let file = object::File::parse(cubin)?;
    let kernel = |section: object::Section<'_, '_>| {
        let symbol = section.name().ok()?.strip_prefix(INFO_SECTION)?.to_owned();
        Some((symbol, parameters_in(section.data().ok()?)?))
    };
    Ok(file.sections().filter_map(kernel).collect())
}

/// How a section of facts is made up, as what `ptxas` of CUDA 13.0 writes for `sm_75` to `sm_120` shows, and `cuobjdump -elf` names
/// it: one fact after another, of a byte with its format, a byte with its attribute, and two bytes, which are its value, or the
/// number of bytes that follow.
mod info {
    /// Bytes follow (`EIFMT_SVAL`).
    pub(super) const OF_SIZE: u8 = 4;
    /// A parameter (`EIATTR_KPARAM_INFO`): 4 bytes; its number and offset, of 2 each; and 4 whose upper 14 bits are its size.
    pub(super) const PARAMETER: u8 = 0x17;
    pub(super) const SIZE_AT: u32 = 18;
    /// Likewise, of kernels with larger ones (`EIATTR_KPARAM_INFO_V2`): the last 4 are its size.
    pub(super) const LARGE_PARAMETER: u8 = 0x45;
    /// The size of all parameters (`EIATTR_CBANK_PARAM_SIZE`).
    pub(super) const BYTES_OF_ALL: u8 = 0x19;
}

/// Returns the parameters that a section tells of; `None` if it is malformed, or doesn't tell of all.
fn parameters_in(mut facts: &[u8]) -> Option<Vec<Parameter>> {
    let (mut all, mut bytes_of_all) = (BTreeMap::new(), 0);
    while let Some(([format, attribute, low, high], rest)) = facts.split_first_chunk() {
        let value = u16::from_le_bytes([*low, *high]);
        let (follows, rest) = rest.split_at_checked(if *format == info::OF_SIZE { value.into() } else { 0 })?;
        match *attribute {
            info::PARAMETER => _ = all.insert(number_of(follows)?, parameter_of(follows, info::SIZE_AT)?),
            info::LARGE_PARAMETER => _ = all.insert(number_of(follows)?, parameter_of(follows, 0)?),
            info::BYTES_OF_ALL => bytes_of_all = value.into(),
            _ => {}
        }
        facts = rest;
    }
    let end = all.values().map(|it: &Parameter| it.offset.saturating_add(it.bytes)).max().unwrap_or(0);
    let is_whole = facts.is_empty() && end == bytes_of_all && all.keys().copied().eq(0..all.len() as u16);
    is_whole.then(|| all.into_values().collect())
}

fn number_of(parameter: &[u8]) -> Option<u16> {
    Some(u16::from_le_bytes(*parameter.get(4..)?.first_chunk()?))
}

/// Returns a parameter whose size begins at this bit of its last 4 bytes.
fn parameter_of(parameter: &[u8], size_at: u32) -> Option<Parameter> {
    let offset = u16::from_le_bytes(*parameter.get(6..)?.first_chunk()?);
    let bytes = u32::from_le_bytes(*parameter.get(8..)?.first_chunk()?) >> size_at;
    Some(Parameter { offset: offset.into(), bytes })
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
