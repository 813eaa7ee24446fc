//! Writes a recording during a run.

use super::block::{self, kind};
use super::columns::{self, Drain, put, put_bytes};
use super::entry::{FileHeader, Hit, Meta, ProcessStart, RecordingEntry};
use super::format::{MAGIC, RecordingError, VERSION};
use super::schema::Schema;
use super::totals::StoredTotals;
use serde::Serialize;
use std::io::Write;
use xputrace_model::loss::Loss;

/// Wire bytes and hits are collected up to this size before they are compressed.
const BLOCK_BYTES: usize = 4 << 20;
/// zstd's level: columns are small, so a high one is affordable.
const LEVEL: i32 = 12;

/// Writes a recording. Without [`RecordingWriter::finish`], what was collected last is lost.
#[derive(Debug)]
pub struct RecordingWriter<W: Write> {
    out: W,
    blocks: u32,
    wire: Vec<Gathered>,
    wire_bytes: usize,
    hits: Vec<u8>,
}

#[derive(Debug)]
struct Gathered {
    process: u32,
    drains: Vec<Drain>,
}

impl<W: Write> RecordingWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn new(mut out: W, meta: &Meta) -> Result<Self, RecordingError> {
        let json = serde_json::to_vec(&FileHeader { meta: meta.clone(), records: Schema::now() })?;
        let mut head = MAGIC.to_vec();
        head.extend(VERSION.to_le_bytes());
        head.extend((json.len() as u32).to_le_bytes());
        head.extend(crc32fast::hash(&json).to_le_bytes());
        head.extend(json);
        out.write_all(&head).map_err(cannot_write)?;
        Ok(RecordingWriter { out, blocks: 0, wire: Vec::new(), wire_bytes: 0, hits: Vec::new() })
    }

    /// Appends an entry; wire bytes and hits are collected first. Entries of one process keep their
    /// order, and so do hits.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn write(&mut self, entry: RecordingEntry) -> Result<(), RecordingError> {
        match entry {
            RecordingEntry::Wire { process, time_nanos, rings } => self.gather(process, time_nanos, rings),
            RecordingEntry::Hit(hit) => {
                encode_hit(&mut self.hits, &hit);
                if self.hits.len() >= BLOCK_BYTES { self.flush_hits() } else { Ok(()) }
            }
            RecordingEntry::ProcessStart { process, pid, pid_in_target, comm, generation, time_nanos, gpu } => {
                let start = ProcessStart(process, pid, pid_in_target, comm, generation, time_nanos, gpu);
                self.json(kind::PROCESS_START, &start)
            }
            RecordingEntry::ProcessEnd { process, time_nanos, totals } => {
                self.flush()?;
                self.json(kind::PROCESS_END, &(process, time_nanos, StoredTotals::from(*totals)))
            }
            RecordingEntry::Symbols(symbols) => {
                let words: Vec<_> = symbols.iter().map(|(key, frames)| (key.to_word(), frames)).collect();
                words.chunks(4096).try_for_each(|it| self.json(kind::SYMBOLS, &it))
            }
            RecordingEntry::Losses(losses) => {
                let counts = Loss::ALL.iter().map(|it| (it.name(), losses.of(*it))).filter(|(_, n)| *n > 0);
                self.json(kind::LOSSES, &counts.collect::<Vec<_>>())
            }
        }
    }

    fn gather(&mut self, process: u32, time_nanos: u64, rings: Vec<Vec<u8>>) -> Result<(), RecordingError> {
        let bytes: usize = rings.iter().map(Vec::len).sum();
        if bytes == 0 {
            return Ok(());
        }
        let drain = (time_nanos, rings);
        match self.wire.iter_mut().find(|it| it.process == process) {
            Some(it) => it.drains.push(drain),
            None => self.wire.push(Gathered { process, drains: vec![drain] }),
        }
        self.wire_bytes += bytes;
        if self.wire_bytes >= BLOCK_BYTES { self.flush_wire() } else { Ok(()) }
    }

    /// Writes what was collected.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn flush(&mut self) -> Result<(), RecordingError> {
        self.flush_hits()?;
        self.flush_wire()
    }

    /// Ends the recording and returns the output.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn finish(mut self) -> Result<W, RecordingError> {
        self.flush()?;
        self.block(kind::END, &[])?;
        self.out.flush().map_err(cannot_write)?;
        Ok(self.out)
    }

    fn flush_wire(&mut self) -> Result<(), RecordingError> {
        self.wire_bytes = 0;
        for it in std::mem::take(&mut self.wire) {
            for part in parts(&it.drains) {
                self.block(kind::WIRE, &columns::encode(it.process, part))?;
            }
        }
        Ok(())
    }

    fn flush_hits(&mut self) -> Result<(), RecordingError> {
        let hits = std::mem::take(&mut self.hits);
        if hits.is_empty() { Ok(()) } else { self.block(kind::HITS, &hits) }
    }

    fn json(&mut self, kind: u32, value: &impl Serialize) -> Result<(), RecordingError> {
        self.block(kind, &serde_json::to_vec(value)?)
    }

    fn block(&mut self, kind: u32, raw: &[u8]) -> Result<(), RecordingError> {
        let too_large = || cannot_write(std::io::Error::other("a block is larger than 64 MiB"));
        let bytes = block::pack(kind, self.blocks, raw, LEVEL).ok_or_else(too_large)?;
        self.blocks += 1;
        self.out.write_all(&bytes).map_err(cannot_write)
    }
}

/// Splits drains into runs that fit well into a block each.
fn parts(drains: &[Drain]) -> Vec<&[Drain]> {
    let mut parts = Vec::new();
    let (mut from, mut bytes) = (0, 0);
    for (at, (_, rings)) in drains.iter().enumerate() {
        let size: usize = rings.iter().map(Vec::len).sum();
        if bytes > 0 && bytes + size > 4 * BLOCK_BYTES {
            parts.push(&drains[from..at]);
            (from, bytes) = (at, 0);
        }
        bytes += size;
    }
    parts.push(&drains[from..]);
    parts
}

fn encode_hit(out: &mut Vec<u8>, hit: &Hit) {
    for n in [hit.probe, hit.entry.into(), hit.pid, hit.tid, hit.uid, hit.gid, hit.cpu] {
        put(out, n.into());
    }
    for n in [hit.time_nanos, hit.cgroup, hit.cookie, hit.func_ip, hit.ustack, hit.kstack] {
        put(out, n);
    }
    out.extend(hit.comm);
    put_bytes(out, &hit.context);
    put(out, hit.strings.len() as u64);
    for it in &hit.strings {
        put(out, it.address);
        put_bytes(out, &it.text);
    }
}

fn cannot_write(answer: std::io::Error) -> RecordingError {
    RecordingError::Io { attempted: "write", answer }
}
