//! Reads a recording, even if it is damaged.

use super::block::{self, HEAD, Head, kind};
use super::budget::Budget;
use super::columns::{self, Layouts, get, get_bytes};
use super::entry::{FileHeader, FrameInfo, Hit, Meta, ProcessStart, RecordingEntry, UserString};
use super::format::{MAGIC, RecordingError, VERSION};
use super::totals::StoredTotals;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use xputrace_boundary::read;
use xputrace_bytecode::targets::THREAD_IDS;
use xputrace_model::loss::{Loss, Losses};
use xputrace_model::stack::StackKey;

/// A recording is read as a whole: one that is larger fits into no memory.
const MOST_FILE_BYTES: u64 = 64 << 30;
/// Bytes in memory per byte of JSON: `[]` becomes a list of 24 bytes, `{}` a frame of 56.
const JSON_GROWTH: usize = 20;

/// Iterates over the entries of a recording. Skips and counts unreadable blocks.
#[derive(Debug)]
pub struct RecordingReader {
    bytes: Vec<u8>,
    at: usize,
    meta: Meta,
    layouts: Layouts,
    budget: Budget,
    ready: VecDeque<RecordingEntry>,
    next_number: u32,
    damage: Option<Damage>,
    finished: bool,
}

/// The unreadable parts of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Offset of the first damaged byte.
    pub offset: usize,
    /// Lost blocks. A truncated end counts as one block.
    pub blocks: u32,
    /// Whether the end block is missing: the recording was truncated, or is still being written.
    pub cut: bool,
}

impl RecordingReader {
    /// Reads the header.
    ///
    /// # Errors
    /// The bytes are not a recording, have another version, or have a damaged header.
    pub fn new(bytes: Vec<u8>) -> Result<Self, RecordingError> {
        let word = |at: usize| bytes.get(at..at + 4).and_then(|it| it.try_into().ok()).map(u32::from_le_bytes);
        if !bytes.starts_with(MAGIC) {
            return Err(RecordingError::NotARecording);
        }
        match word(8).ok_or(RecordingError::Header(bytes.len()))? {
            VERSION => {}
            other => return Err(RecordingError::Version(other)),
        }
        let (Some(len), Some(crc)) = (word(12), word(16)) else { return Err(RecordingError::Header(bytes.len())) };
        let end = 20usize.saturating_add(len as usize);
        let json = bytes.get(20..end).ok_or(RecordingError::Header(bytes.len()))?;
        if crc32fast::hash(json) != crc {
            return Err(RecordingError::Header(20));
        }
        let mut budget = Budget::of_file(bytes.len());
        let FileHeader { meta, records } = from_json(json, &mut budget).ok_or(RecordingError::Header(20))?;
        let layouts = Layouts::new(&records).ok_or(RecordingError::Header(20))?;
        let ready = VecDeque::new();
        Ok(RecordingReader {
            bytes,
            at: end,
            meta,
            layouts,
            budget,
            ready,
            next_number: 0,
            damage: None,
            finished: false,
        })
    }

    /// Reads a whole file.
    ///
    /// # Errors
    /// As for [`RecordingReader::new`], or the file cannot be read.
    pub fn open(path: &std::path::Path) -> Result<Self, RecordingError> {
        let bytes =
            read::named(path, MOST_FILE_BYTES).map_err(|answer| RecordingError::Io { attempted: "read", answer })?;
        Self::new(bytes)
    }

    /// Returns the header.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Returns what could not be read; complete once the iterator has ended.
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
        let entries = unpacked(&head, payload, &self.layouts, &mut self.budget);
        if entries.is_none() {
            self.lose(self.at, 1);
        }
        self.finished |= head.kind == kind::END && entries.is_some();
        self.at = end;
        self.ready.extend(entries.into_iter().flatten());
    }

    /// Finds the next block after a damaged header.
    fn resume(&mut self) {
        let from = self.at;
        let rest = self.bytes.get(from + 1..).unwrap_or_default();
        let next = rest.windows(HEAD).position(|it| it[..4] == block::MAGIC && Head::decode(it).is_some());
        match next {
            // The number of the block found will tell how many are missing.
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

impl Iterator for RecordingReader {
    type Item = RecordingEntry;

    fn next(&mut self) -> Option<RecordingEntry> {
        while self.ready.is_empty() && !self.finished {
            self.next_block();
        }
        self.ready.pop_front()
    }
}

/// Decodes the entries of a block. Returns `None` if it is damaged, its payload does not match its
/// kind, or it would exceed the file's budget. Blocks of kinds that only later versions know have
/// no entries.
fn unpacked(head: &Head, payload: &[u8], layouts: &Layouts, budget: &mut Budget) -> Option<Vec<RecordingEntry>> {
    budget.take(head.raw_len as usize)?;
    decode(head.kind, &block::unpack(head, payload)?, layouts, budget)
}

fn decode(kind: u32, raw: &[u8], layouts: &Layouts, budget: &mut Budget) -> Option<Vec<RecordingEntry>> {
    Some(match kind {
        kind::PROCESS_START => {
            let it: ProcessStart = from_json(raw, budget)?;
            vec![it.into()]
        }
        kind::PROCESS_END => {
            let (process, time_nanos, totals): (_, _, Box<StoredTotals>) = from_json(raw, budget)?;
            vec![RecordingEntry::ProcessEnd { process, time_nanos, totals: Box::new((*totals).into()) }]
        }
        kind::SYMBOLS => {
            let words: Vec<(u64, Vec<FrameInfo>)> = from_json(raw, budget)?;
            let key = |(word, frames)| (StackKey::from_word(word), frames);
            vec![RecordingEntry::Symbols(words.into_iter().map(key).collect())]
        }
        kind::LOSSES => vec![RecordingEntry::Losses(losses(from_json(raw, budget)?))],
        kind::WIRE => columns::decode(raw, layouts, budget)?,
        kind::HITS => decode_hits(raw, budget)?,
        _ => Vec::new(),
    })
}

/// Skips losses that only later versions know.
fn losses(counts: Vec<(String, u64)>) -> Losses {
    let mut losses = Losses::default();
    for (name, n) in counts {
        Loss::named(&name).into_iter().for_each(|it| losses.add(it, n));
    }
    losses
}

fn from_json<T: DeserializeOwned>(raw: &[u8], budget: &mut Budget) -> Option<T> {
    budget.take(raw.len().saturating_mul(JSON_GROWTH))?;
    serde_json::from_slice(raw).ok()
}

fn decode_hits(mut raw: &[u8], budget: &mut Budget) -> Option<Vec<RecordingEntry>> {
    let mut hits = Vec::new();
    while !raw.is_empty() {
        budget.take_values::<RecordingEntry>(1)?;
        hits.push(RecordingEntry::Hit(decode_hit(&mut raw, budget)?));
    }
    Some(hits)
}

fn decode_hit(input: &mut &[u8], budget: &mut Budget) -> Option<Hit> {
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
    if tid >= THREAD_IDS {
        return None;
    }
    let [time_nanos, cgroup, cookie, func_ip, ustack, kstack] = large;
    let context = owned(get_bytes(input)?, budget)?;
    let mut strings = Vec::new();
    for _ in 0..get(input)? {
        budget.take_values::<UserString>(1)?;
        strings.push(UserString { address: get(input)?, text: owned(get_bytes(input)?, budget)? });
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

fn owned(bytes: &[u8], budget: &mut Budget) -> Option<Vec<u8>> {
    budget.take(bytes.len())?;
    Some(bytes.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Schema;
    use crate::writer::RecordingWriter;
    use proptest::prelude::*;
    use xputrace_model::gpu::GpuKind;
    use xputrace_wire::events::Realtime;
    use xputrace_wire::record::{self, Kernel, Launch};

    /// Returns the minimum size of an entry in memory.
    fn size(entry: &RecordingEntry) -> usize {
        size_of::<RecordingEntry>()
            + match entry {
                RecordingEntry::Wire { rings, .. } => rings.iter().map(|it| size_of::<Vec<u8>>() + it.len()).sum(),
                RecordingEntry::Hit(hit) => {
                    let strings = hit.strings.iter().map(|it| size_of::<UserString>() + it.text.len());
                    hit.context.len() + strings.sum::<usize>()
                }
                RecordingEntry::Symbols(it) => it.iter().map(|(_, it)| size_of::<FrameInfo>() * it.len() + 32).sum(),
                _ => 0,
            }
    }

    /// Returns a payload of each kind, as the writer creates it.
    fn payloads() -> Vec<(u32, Vec<u8>)> {
        let mut ring = Vec::new();
        record::push(&mut ring, record::kind::LAUNCH, &Launch { start: 7, end: 9, ..Launch::default() }, &[]);
        record::push(&mut ring, record::kind::KERNEL, &Kernel { start: Realtime(8), ..Kernel::default() }, &[]);
        record::push(&mut ring, record::kind::NAME, &record::Name { id: 1, len: 3 }, b"abc");
        let hit =
            Hit { context: vec![7; 20], strings: vec![UserString { address: 1, text: vec![65; 9] }], ..Hit::default() };
        let frame = FrameInfo { function: "main".into(), module: "app".into(), offset: 4 };
        let entries = [
            RecordingEntry::ProcessStart {
                process: 0,
                pid: 1,
                pid_in_target: 0,
                comm: "app".into(),
                generation: 0,
                time_nanos: 1,
                gpu: GpuKind::Software,
            },
            RecordingEntry::Wire { process: 0, time_nanos: 4, rings: vec![ring.clone(), vec![1, 2, 3], ring] },
            RecordingEntry::Hit(hit.clone()),
            RecordingEntry::Hit(hit),
            RecordingEntry::ProcessEnd { process: 0, time_nanos: 9, totals: Box::default() },
            RecordingEntry::Symbols(vec![(StackKey::from_word(5), vec![frame])]),
            RecordingEntry::Losses(losses(vec![("linux_ring_full".into(), 3)])),
        ];
        let mut writer = RecordingWriter::new(Vec::new(), &Meta::default()).unwrap();
        entries.into_iter().for_each(|it| writer.write(it).unwrap());
        let file = writer.finish().unwrap();
        let heads = (0..file.len()).filter_map(|at| Some((at, Head::decode(&file[at..])?)));
        let payload = |(at, head): (usize, Head)| {
            let from = at + HEAD;
            (head.kind, block::unpack(&head, &file[from..from + head.packed_len as usize]).unwrap())
        };
        heads.map(payload).collect()
    }

    #[test]
    fn losses_are_read_by_the_names_of_earlier_versions_too() {
        for (earlier, now) in [
            ("kernel_stack", "linux_stack"),
            ("kernel_ring_full", "linux_ring_full"),
            ("kernel_missed", "linux_missed"),
        ] {
            let read = losses(vec![(earlier.into(), 3)]);
            assert!(!read.is_empty() && read == losses(vec![(now.into(), 3)]), "{earlier}");
        }
        assert!(losses(vec![("of_a_later_version".into(), 3)]).is_empty());
    }

    #[test]
    fn every_kind_has_its_payload() {
        let mut kinds: Vec<u32> = payloads().iter().map(|it| it.0).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, [1, 2, 3, 4, 6, 7, 8]);
    }

    proptest! {
        #[test]
        fn damaged_payloads_are_refused_or_small(
            damage in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..6),
            cut in any::<usize>(),
            noise in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let layouts = Layouts::new(&Schema::now()).unwrap();
            for (kind, mut raw) in payloads() {
                let len = raw.len().max(1);
                for (at, value) in &damage {
                    raw.get_mut(at % len).into_iter().for_each(|it| *it = *value);
                }
                let cut = if cut % 2 == 0 { raw.len() } else { cut % (raw.len() + 1) };
                for raw in [&raw[..], &raw[..cut], &noise] {
                    let mut budget = Budget::of_file(0);
                    let entries = decode(kind, raw, &layouts, &mut budget).unwrap_or_default();
                    prop_assert!(entries.iter().map(size).sum::<usize>() <= 64 << 20);
                }
            }
        }
    }

    #[test]
    fn starts_of_earlier_recordings_do_not_tell_the_gpu() {
        let layouts = Layouts::new(&Schema::now()).unwrap();
        let start =
            decode(kind::PROCESS_START, br#"[0, 7, 0, "app", 1, 9]"#, &layouts, &mut Budget::of_file(0)).unwrap();
        assert!(matches!(start[..], [RecordingEntry::ProcessStart { pid: 7, time_nanos: 9, gpu: GpuKind::None, .. }]));
    }

    /// Returns how many values the records of a kind have.
    fn n_columns(at: usize) -> usize {
        Schema::now().kinds()[at].described().unwrap().iter().map(|it| it.count).sum()
    }

    /// Returns a wire block of `n` empty launches: a few bytes when compressed.
    fn launches_of_nothing(n: u64) -> Vec<u8> {
        let mut raw = vec![0, 1, 0];
        columns::put_bytes(&mut raw, &[vec![1; n as usize], vec![3, 4]].concat());
        columns::put_bytes(&mut raw, &[0]);
        columns::put(&mut raw, n);
        // No planes: launches, then no kernels.
        raw.extend(vec![0; n_columns(0)]);
        raw.extend(vec![0; 1 + n_columns(1)]);
        raw
    }

    /// Returns a file whose launches and kernels have these columns, with a wire block.
    fn file_with(columns: &str, raw: &[u8]) -> Vec<u8> {
        let json = format!(r#"{{"records":[[1,[{columns}]],[2,[{columns}]]]}}"#).into_bytes();
        let head = [VERSION, json.len() as u32, crc32fast::hash(&json)].map(u32::to_le_bytes).concat();
        [MAGIC, &head[..], &json, &block::pack(kind::WIRE, 0, raw, 3).unwrap()].concat()
    }

    #[test]
    fn records_take_what_they_have_in_memory_whatever_columns_a_file_has() {
        let n = 4_000_000u64;
        let mut raw = vec![0, 1, 0];
        columns::put_bytes(&mut raw, &[vec![1; n as usize], vec![3, 4]].concat());
        columns::put_bytes(&mut raw, &[0]);
        columns::put(&mut raw, n);
        // One column of launches without planes, and no kernels.
        raw.extend([0, 0, 0]);
        let file = file_with(r#""start 8""#, &raw);
        let most = Budget::of_file(file.len()).left();
        let held: usize = RecordingReader::new(file).unwrap().map(|it| size(&it)).sum();
        assert!(held <= most, "{held}");
        assert!(RecordingReader::new(file_with("", &raw)).is_err(), "rows without columns take nothing");
    }

    #[test]
    fn a_small_file_does_not_become_gigabytes() {
        let empty_drains = {
            let n = 8_000_000;
            let mut raw = vec![0];
            columns::put(&mut raw, n);
            raw.resize(raw.len() + n as usize, 0);
            columns::put_bytes(&mut raw, &vec![4; n as usize]);
            raw.extend([0; 44]);
            raw
        };
        let empty_frames = format!("[[1,[{}{{}}]]]", "{},".repeat(4_000_000)).into_bytes();
        for (kind, raw) in
            [(kind::WIRE, launches_of_nothing(100_000)), (kind::WIRE, empty_drains), (kind::SYMBOLS, empty_frames)]
        {
            let mut file = RecordingWriter::new(Vec::new(), &Meta::default()).unwrap().finish().unwrap();
            file.truncate(file.len() - HEAD - 9);
            for number in 0..40 {
                file.extend(block::pack(kind, number, &raw, 3).unwrap());
            }
            let most = Budget::of_file(file.len()).left();
            let mut reader = RecordingReader::new(file).unwrap();
            let held: usize = (&mut reader).map(|it| size(&it)).sum();
            assert!(held <= most, "{held} bytes of kind {kind}");
            assert!(reader.damage().is_some_and(|it| it.blocks > 0), "what is left out is counted");
        }
    }
}
