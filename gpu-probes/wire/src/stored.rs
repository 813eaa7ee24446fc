//! Code for GPUs, as it lies in memory or in a file.

use crate::device::{Codec, Portability};

/// Memory or a file that can be looked at.
pub trait ReadableMemory {
    /// Fills `into` from an address; returns false if not all of it is readable.
    fn read(&mut self, address: u64, into: &mut [u8]) -> bool;
}

/// Code for a GPU, portable or not, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredAt {
    pub codec: Codec,
    pub portability: Portability,
    /// The GPU's number, such as 90; 0 if only the text says it.
    pub sm: u32,
    /// Size when decompressed; 0 if it is not known.
    pub bytes: u64,
    pub address: u64,
    pub stored_bytes: u64,
}
