//! Blocks: the unit of compression, checksums and loss.

use crc32fast::hash;

/// First bytes of a block.
pub(super) const MAGIC: [u8; 4] = *b"XBLK";
/// Size of the header before the payload.
pub(super) const HEAD: usize = 32;
/// Maximum size of a block, compressed or not: what a reader will allocate.
pub(super) const MOST_BYTES: usize = 64 << 20;

/// The kinds of payloads.
pub(super) mod kind {
    pub(crate) const PROCESS_START: u32 = 1;
    pub(crate) const WIRE: u32 = 2;
    pub(crate) const HITS: u32 = 3;
    pub(crate) const PROCESS_END: u32 = 4;
    pub(crate) const SYMBOLS: u32 = 6;
    /// The writer finished: a file without this block is truncated.
    pub(crate) const END: u32 = 7;
    pub(crate) const LOSSES: u32 = 8;
}

/// The header of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: u32,
    /// Number of the block in the file, from 0.
    pub(super) number: u32,
    pub(super) raw_len: u32,
    pub(super) packed_len: u32,
    pub(super) payload_crc: u32,
}

impl Head {
    pub(super) fn encode(&self) -> [u8; HEAD] {
        let mut out = [0; HEAD];
        out[..4].copy_from_slice(&MAGIC);
        let words = [self.kind, self.number, self.raw_len, self.packed_len, self.payload_crc, 0];
        for (i, word) in words.into_iter().enumerate() {
            out[4 + i * 4..8 + i * 4].copy_from_slice(&word.to_le_bytes());
        }
        let crc = hash(&out[..HEAD - 4]);
        out[HEAD - 4..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Returns `None` if the bytes are not a header or are damaged.
    pub(super) fn decode(bytes: &[u8]) -> Option<Head> {
        let bytes = bytes.get(..HEAD)?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let sound = bytes[..4] == MAGIC && word(HEAD - 4) == hash(&bytes[..HEAD - 4]);
        let head =
            Head { kind: word(4), number: word(8), raw_len: word(12), packed_len: word(16), payload_crc: word(20) };
        let bounded = head.raw_len as usize <= MOST_BYTES && head.packed_len as usize <= MOST_BYTES;
        (sound && bounded).then_some(head)
    }
}

/// Returns a whole block, or `None` if the payload is larger than a reader would accept.
pub(super) fn pack(kind: u32, number: u32, raw: &[u8], level: i32) -> Option<Vec<u8>> {
    if raw.len() > MOST_BYTES {
        return None;
    }
    let payload = zstd::bulk::compress(raw, level).ok()?;
    let head = Head {
        kind,
        number,
        raw_len: raw.len() as u32,
        packed_len: u32::try_from(payload.len()).ok()?,
        payload_crc: hash(&payload),
    };
    let mut out = head.encode().to_vec();
    out.extend(payload);
    Some(out)
}

/// Returns the payload after a header, or `None` if it is damaged.
pub(super) fn unpack(head: &Head, payload: &[u8]) -> Option<Vec<u8>> {
    if hash(payload) != head.payload_crc {
        return None;
    }
    let raw = zstd::bulk::decompress(payload, head.raw_len as usize).ok()?;
    (raw.len() == head.raw_len as usize).then_some(raw)
}
