//! Reads a recording, whatever has become of it.

use super::block::{self, HEAD, Head, kind};
use super::columns::{self, get, get_bytes};
use super::entry::{Entry, FrameInfo, Hit, Meta, UserString};
use super::{Error, MAGIC, VERSION};
use std::collections::VecDeque;
use xputrace_model::stack::StackKey;

/// Most entries that one block may hold as a list.
const MOST_STRINGS: u64 = 1 << 16;

/// Iterates over the entries of a recording. Blocks that cannot be read are skipped and counted.
#[derive(Debug)]
pub struct Reader {
    bytes: Vec<u8>,
    at: usize,
    meta: Meta,
    ready: VecDeque<Entry>,
    next_number: u32,
    damage: Option<Damage>,
    finished: bool,
}

/// What of a recording could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Offset of the first byte that is not as it was written.
    pub offset: usize,
    /// Blocks that were lost. Those of a cut end are not known, and not counted beyond the first.
    pub blocks: u32,
    /// Whether the file ends before its end block: the recording was cut or is still being written.
    pub cut: bool,
}

impl Reader {
    /// Reads the header.
    ///
    /// # Errors
    /// When this is not a recording, it is one of another version, or its header is damaged.
    pub fn new(bytes: Vec<u8>) -> Result<Self, Error> {
        let word = |at: usize| bytes.get(at..at + 4).and_then(|it| it.try_into().ok()).map(u32::from_le_bytes);
        if !bytes.starts_with(MAGIC) {
            return Err(Error::NotARecording);
        }
        match word(8).ok_or(Error::Header(bytes.len()))? {
            VERSION => {}
            other => return Err(Error::Version(other)),
        }
        let (Some(len), Some(crc)) = (word(12), word(16)) else { return Err(Error::Header(bytes.len())) };
        let end = 20usize.saturating_add(len as usize);
        let json = bytes.get(20..end).ok_or(Error::Header(bytes.len()))?;
        if crc32fast::hash(json) != crc {
            return Err(Error::Header(20));
        }
        let meta = serde_json::from_slice(json).map_err(|_| Error::Header(20))?;
        Ok(Reader { bytes, at: end, meta, ready: VecDeque::new(), next_number: 0, damage: None, finished: false })
    }

    /// Reads a file whole.
    ///
    /// # Errors
    /// As [`Reader::new`], and when the file cannot be read.
    pub fn open(path: &std::path::Path) -> Result<Self, Error> {
        let bytes = std::fs::read(path).map_err(|answer| Error::Io { attempted: "read", answer })?;
        Self::new(bytes)
    }

    /// What the recording is about.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// What could not be read; complete once the iterator has ended.
    pub fn damage(&self) -> Option<Damage> {
        self.damage
    }

    fn next_block(&mut self) {
        let Some(head) = Head::decode(&self.bytes[self.at.min(self.bytes.len())..]) else {
            return self.resume();
        };
        let from = self.at + HEAD;
        let end = from + head.packed_len as usize;
        self.note_missing(head.number);
        self.next_number = head.number.saturating_add(1);
        let Some(payload) = self.bytes.get(from..end) else {
            self.lose(self.at, 1);
            return self.cut();
        };
        let entries = block::unpack(&head, payload).and_then(|raw| decode(head.kind, &raw));
        if entries.is_none() {
            self.lose(self.at, 1);
        }
        self.finished |= head.kind == kind::END && entries.is_some();
        self.at = end;
        self.ready.extend(entries.into_iter().flatten());
    }

    /// No head where one should be: goes on at the next one, if there is any.
    fn resume(&mut self) {
        let from = self.at;
        let rest = self.bytes.get(from + 1..).unwrap_or_default();
        let next = rest.windows(HEAD).position(|it| it[..4] == block::MAGIC && Head::decode(it).is_some());
        match next {
            // Blocks are numbered: how many are missing is seen at the one that is found.
            Some(distance) => {
                self.lose(from, 0);
                self.at = from + 1 + distance;
            }
            None => {
                let part = self.at < self.bytes.len();
                self.lose(from.min(self.bytes.len()), u32::from(part));
                self.cut();
            }
        }
    }

    fn note_missing(&mut self, number: u32) {
        let missing = number.saturating_sub(self.next_number);
        if missing > 0 {
            self.lose(self.at, missing);
        }
    }

    fn lose(&mut self, offset: usize, blocks: u32) {
        let damage = self.damage.get_or_insert(Damage { offset, blocks: 0, cut: false });
        damage.blocks = damage.blocks.saturating_add(blocks);
    }

    fn cut(&mut self) {
        if let Some(damage) = &mut self.damage {
            damage.cut = true;
        }
        self.finished = true;
    }
}

impl Iterator for Reader {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        while self.ready.is_empty() && !self.finished {
            self.next_block();
        }
        self.ready.pop_front()
    }
}

/// The entries of a block; `None` when its payload is not what its kind says. Kinds of later
/// versions hold nothing for this one.
fn decode(kind: u32, raw: &[u8]) -> Option<Vec<Entry>> {
    Some(match kind {
        kind::PROCESS_START => {
            let (process, pid, pid_in_target, comm, generation, time_nanos) = serde_json::from_slice(raw).ok()?;
            vec![Entry::ProcessStart { process, pid, pid_in_target, comm, generation, time_nanos }]
        }
        kind::PROCESS_END => {
            let (process, time_nanos, totals) = serde_json::from_slice(raw).ok()?;
            vec![Entry::ProcessEnd { process, time_nanos, totals }]
        }
        kind::MAPPINGS => vec![Entry::Mappings(serde_json::from_slice(raw).ok()?)],
        kind::SYMBOLS => {
            let words: Vec<(u64, Vec<FrameInfo>)> = serde_json::from_slice(raw).ok()?;
            let key = |(word, frames)| (StackKey::from_word(word), frames);
            vec![Entry::Symbols(words.into_iter().map(key).collect())]
        }
        kind::WIRE => columns::decode(raw)?,
        kind::HITS => decode_hits(raw)?,
        _ => Vec::new(),
    })
}

fn decode_hits(mut raw: &[u8]) -> Option<Vec<Entry>> {
    let mut hits = Vec::new();
    while !raw.is_empty() {
        hits.push(Entry::Hit(decode_hit(&mut raw)?));
    }
    Some(hits)
}

fn decode_hit(input: &mut &[u8]) -> Option<Hit> {
    let mut small = [0u32; 7];
    for it in &mut small {
        *it = u32::try_from(get(input)?).ok()?;
    }
    let mut large = [0u64; 6];
    for it in &mut large {
        *it = get(input)?;
    }
    let (comm, rest) = input.split_first_chunk::<16>()?;
    *input = rest;
    let [probe, entry, pid, tid, uid, gid, cpu] = small;
    let [time_nanos, cgroup, cookie, func_ip, ustack, kstack] = large;
    let context = get_bytes(input)?.to_vec();
    let n = get(input).filter(|n| *n <= MOST_STRINGS)?;
    let mut strings = Vec::new();
    for _ in 0..n {
        strings.push(UserString { address: get(input)?, text: get_bytes(input)?.to_vec() });
    }
    let comm = *comm;
    Some(Hit {
        probe,
        entry: entry != 0,
        time_nanos,
        pid,
        tid,
        uid,
        gid,
        cpu,
        comm,
        cgroup,
        cookie,
        func_ip,
        ustack,
        kstack,
        context,
        strings,
    })
}
