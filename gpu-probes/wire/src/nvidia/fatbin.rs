//! Containers of code for GPUs ("fatbins"), in a program's memory or in its files.
//!
//! ```text
//! wrapper  0x466243b1: u32 version, pointer to a container
//! container 0xba55ed50: u16 version, u16 size of this header, u64 size of what follows: entries, one behind the other
//! entry    u16 kind, u16 0x101, u32 size of this header, u64 size of the payload (padded), u32 its size if compressed, …,
//!          u32 GPU at 28, …, u64 flags at 40, …, u64 size when decompressed at 56
//! ```
//! As `nvcc` and `fatbinary` of CUDA 13.0 write them.

use crate::device::{Codec, ImageOutcome, MOST_IMAGE_BYTES, Portability};
use crate::stored::{ReadableMemory, StoredAt};
use std::fmt;

/// The first word of a wrapper.
pub const WRAPPER: u32 = 0x4662_43b1;
/// The first word of a container.
pub const CONTAINER: u32 = 0xba55_ed50;
const CONTAINER_BYTES: u64 = 16;
/// What is read of an entry's header.
const ENTRY_BYTES: u64 = 64;
const MOST_ENTRY_HEADER_BYTES: u64 = 1 << 16;
/// What the second word of each entry is.
const ENTRY_MARK: u16 = 0x101;
/// Entries of one container that are looked at.
const MOST_ENTRIES: usize = 4096;
const PTX: u16 = 1;
const CUBIN: u16 = 2;

/// Bits of an entry's flags.
mod flag {
    pub(super) const LZ4: u64 = 0x2000;
    pub(super) const ZSTD: u64 = 0x8000;
    pub(super) const EXACT: u64 = 0x10_0000;
    pub(super) const FAMILY: u64 = 0x20_0000;
}

/// The GPUs that code is for. As text, what compilers call it: `sm_90a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuTarget {
    /// The GPU's number, such as 90; 0 if only the text says it.
    pub sm: u32,
    pub portability: Portability,
}

impl GpuTarget {
    /// Whether GPUs of this compute capability run such machine code.
    pub fn runs_on(self, capability: u32) -> bool {
        match self.portability {
            Portability::Later | Portability::Family => self.sm <= capability && self.sm / 10 == capability / 10,
            Portability::Exact => self.sm == capability,
        }
    }

    /// Whether such PTX can be compiled for GPUs of this compute capability (PTX ISA, section 11.1.2, ".target": what `a` and
    /// `f` promise).
    pub fn compiles_for(self, capability: u32) -> bool {
        match self.portability {
            Portability::Later => self.sm <= capability,
            Portability::Exact => self.sm == capability,
            Portability::Family => self.sm <= capability && self.sm / 10 == capability / 10,
        }
    }

    /// By what the driver chooses among code that a GPU can run: it takes the greatest.
    pub fn preference(self) -> (u32, bool) {
        (self.sm, self.portability != Portability::Later)
    }
}

impl fmt::Display for GpuTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.portability {
            Portability::Later => "",
            Portability::Exact => "a",
            Portability::Family => "f",
        };
        write!(f, "sm_{}{suffix}", self.sm)
    }
}

impl StoredAt {
    /// What it is for.
    pub fn target(&self) -> GpuTarget {
        GpuTarget { sm: self.sm, portability: self.portability }
    }

    /// Whether this PTX and machine code of the same container are of one compilation: they are for the same. PTX for older
    /// GPUs may be another program, as sources have code for newer ones only.
    pub fn is_of_same(&self, other: &StoredAt) -> bool {
        self.target() == other.target()
    }
}

/// What a container has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FatbinContents {
    pub ptx: Vec<StoredAt>,
    pub cubins: Vec<StoredAt>,
    /// Size of the container, with its header; 0 for what is in none.
    pub bytes: u64,
}

impl FatbinContents {
    /// Returns the machine code that the driver runs on GPUs of this compute capability; without any, it compiles PTX.
    pub fn cubin_that_runs(&self, capability: u32) -> Option<&StoredAt> {
        let runs = self.cubins.iter().filter(|it| it.target().runs_on(capability));
        runs.max_by_key(|it| it.target().preference())
    }

    /// Whether it has no code at all.
    pub fn is_empty(&self) -> bool {
        self.ptx.is_empty() && self.cubins.is_empty()
    }

    /// Returns the PTX from which the code was made that the driver runs.
    ///
    /// # Errors
    /// There is PTX, but not that of this code.
    pub fn of_what_runs(self, capability: u32) -> Result<Vec<StoredAt>, ImageOutcome> {
        let Some(newest) = self.cubin_that_runs(capability).copied() else { return Ok(self.ptx) };
        let same: Vec<StoredAt> = self.ptx.into_iter().filter(|it| it.is_of_same(&newest)).collect();
        if same.is_empty() { Err(ImageOutcome::OlderPortableCode) } else { Ok(same) }
    }
}

/// Reads bytes.
///
/// # Errors
/// They are not readable.
pub fn read<const N: usize>(memory: &mut dyn ReadableMemory, address: u64) -> Result<[u8; N], ImageOutcome> {
    let mut bytes = [0; N];
    if memory.read(address, &mut bytes) { Ok(bytes) } else { Err(ImageOutcome::Unreadable) }
}

/// Reads a word.
///
/// # Errors
/// It is not readable.
pub fn word(memory: &mut dyn ReadableMemory, address: u64) -> Result<u32, ImageOutcome> {
    read(memory, address).map(u32::from_le_bytes)
}

/// Returns what the container at this address has.
///
/// # Errors
/// It is not readable, malformed, or has more PTX than is read.
pub fn in_container(container: u64, memory: &mut dyn ReadableMemory) -> Result<FatbinContents, ImageOutcome> {
    let header = Bytes(read::<{ CONTAINER_BYTES as usize }>(memory, container)?);
    let (header_bytes, bytes) = (u64::from(header.u16(6)), header.u64(8));
    if header.u32(0) != CONTAINER || header_bytes < CONTAINER_BYTES {
        return Err(ImageOutcome::Unreadable);
    }
    let (mut at, mut left) = (container.wrapping_add(header_bytes), bytes);
    let mut found = FatbinContents { bytes: header_bytes.saturating_add(bytes), ..FatbinContents::default() };
    for _ in 0..MOST_ENTRIES {
        if left < ENTRY_BYTES {
            break;
        }
        let entry = EntryHeader(Bytes(read(memory, at)?));
        let size = entry.size().filter(|it| *it <= left).ok_or(ImageOutcome::Unreadable)?;
        if entry.is_ptx() {
            let ptx = entry.stored(at).ok_or(ImageOutcome::Unreadable)?;
            if ptx.stored_bytes > MOST_IMAGE_BYTES {
                return Err(ImageOutcome::TooLarge);
            }
            found.ptx.push(ptx);
        } else if entry.is_cubin() {
            found.cubins.push(entry.stored(at).ok_or(ImageOutcome::Unreadable)?);
        }
        at = at.wrapping_add(size);
        left -= size;
    }
    Ok(found)
}

/// Little-endian numbers at offsets below its size.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<const N: usize>(pub [u8; N]);

impl<const N: usize> Bytes<N> {
    fn at<const M: usize>(&self, offset: usize) -> [u8; M] {
        std::array::from_fn(|it| self.0[offset + it])
    }

    /// Returns the number at this offset, which is inside.
    pub fn u16(&self, offset: usize) -> u16 {
        u16::from_le_bytes(self.at(offset))
    }

    /// Returns the number at this offset, which is inside.
    pub fn u32(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.at(offset))
    }

    /// Returns the number at this offset, which is inside.
    pub fn u64(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.at(offset))
    }
}

/// An entry's header.
struct EntryHeader(Bytes<{ ENTRY_BYTES as usize }>);

impl EntryHeader {
    fn is_ptx(&self) -> bool {
        self.0.u16(0) == PTX
    }

    fn is_cubin(&self) -> bool {
        self.0.u16(0) == CUBIN
    }

    fn sm(&self) -> u32 {
        self.0.u32(28)
    }

    fn portability(&self) -> Portability {
        let flags = self.0.u64(40);
        match (flags & flag::EXACT, flags & flag::FAMILY) {
            (0, 0) => Portability::Later,
            (0, _) => Portability::Family,
            _ => Portability::Exact,
        }
    }

    fn header_bytes(&self) -> u64 {
        self.0.u32(4).into()
    }

    /// Returns the size of header and payload; `None` if it cannot be that.
    fn size(&self) -> Option<u64> {
        let is_sound =
            self.0.u16(2) == ENTRY_MARK && (ENTRY_BYTES..=MOST_ENTRY_HEADER_BYTES).contains(&self.header_bytes());
        self.header_bytes().checked_add(self.0.u64(8)).filter(|_| is_sound)
    }

    /// Describes what is in the entry at this address; `None` if its sizes are at odds.
    fn stored(&self, at: u64) -> Option<StoredAt> {
        let (payload_bytes, packed_bytes, flags) = (self.0.u64(8), u64::from(self.0.u32(16)), self.0.u64(40));
        let codec = match (flags & flag::ZSTD, flags & flag::LZ4) {
            (0, 0) => Codec::Plain,
            (0, _) => Codec::Lz4,
            _ => Codec::Zstd,
        };
        let stored_bytes = if codec == Codec::Plain { payload_bytes } else { packed_bytes };
        (stored_bytes <= payload_bytes).then(|| StoredAt {
            codec,
            portability: self.portability(),
            sm: self.sm(),
            bytes: if codec == Codec::Plain { payload_bytes } else { self.0.u64(56) },
            address: at.wrapping_add(self.header_bytes()),
            stored_bytes,
        })
    }
}
