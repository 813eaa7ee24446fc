//! Recordings: files, and the blocks in them, whose checksums and compression would hide what is inside from blind damage.

use super::tracer::{Nobody, demangle, plans};
use super::{files_in, joined, parts};
use crate::harness::{Bound, Target};
use xputrace_recording::{Meta, RecordingEntry, RecordingReader, RecordingWriter};

/// What a reader may take (docs/RECORDING.md), and the pipeline behind it.
const BOUND: Bound = Bound { bytes: 320 << 20, per_byte: 4000 };

pub(super) const TARGETS: &[Target] = &[
    Target { name: "recording_file", read: file, seeds: files, words: &["XBLK"], bound: BOUND },
    Target { name: "recording_blocks", read: blocks, seeds: unpacked, words: WORDS, bound: BOUND },
];

const WORDS: &[&str] =
    &["[]", "{}", "[[", "]]", "null", "\"gpu\":\"Real\"", "previous", "same:start", "8x3", ",", "[[1,[{}]]]"];

/// Blocks and the header of a file; the header is the first.
struct Unpacked {
    header: Vec<u8>,
    blocks: Vec<(u32, Vec<u8>)>,
}

const FILE_HEAD: usize = 20;
const BLOCK_HEAD: usize = 32;

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|it| u32::from_le_bytes(*it))
}

impl Unpacked {
    fn of(file: &[u8]) -> Option<Self> {
        let end = FILE_HEAD + word(file, 12)? as usize;
        let (header, mut rest) = (file.get(FILE_HEAD..end)?.to_vec(), &file[end..]);
        let mut blocks = Vec::new();
        while let (Some(kind), Some(raw), Some(packed)) = (word(rest, 4), word(rest, 12), word(rest, 16)) {
            let payload = rest.get(BLOCK_HEAD..BLOCK_HEAD + packed as usize)?;
            blocks.push((kind, zstd::bulk::decompress(payload, raw as usize).ok()?));
            rest = &rest[BLOCK_HEAD + packed as usize..];
        }
        Some(Unpacked { header, blocks })
    }

    /// Returns a file with checksums that are right.
    fn packed(&self) -> Vec<u8> {
        let crc = crc32fast::hash(&self.header);
        let lens = [1, self.header.len() as u32, crc].map(u32::to_le_bytes).concat();
        let mut file = [b"XPUTRACE", &lens[..], &self.header].concat();
        for (number, (kind, raw)) in (0u32..).zip(&self.blocks) {
            let payload = zstd::bulk::compress(raw, 1).expect("memory is compressed");
            let words = [*kind, number, raw.len() as u32, payload.len() as u32, crc32fast::hash(&payload), 0];
            let head = [b"XBLK", &words.map(u32::to_le_bytes).concat()[..]].concat();
            file.extend([&head[..], &crc32fast::hash(&head).to_le_bytes(), &payload].concat());
        }
        file
    }
}

fn file(input: &[u8]) {
    replayed(input.to_vec());
}

/// Reads parts: a header; then for each block its kind, and what is in it.
fn blocks(input: &[u8]) {
    let parts = parts(input);
    let Some((header, rest)) = parts.split_first() else { return };
    let blocks = rest.chunks_exact(2).map(|it| (u32::from(it[0].first().copied().unwrap_or(0)), it[1].to_vec()));
    replayed(Unpacked { header: header.to_vec(), blocks: blocks.collect() }.packed());
}

/// Reads a file, writes what was read, and runs a script over it.
fn replayed(file: Vec<u8>) {
    let n_bytes = file.len();
    let Ok(mut reader) = RecordingReader::new(file.clone()) else { return };
    let entries: Vec<RecordingEntry> = reader.by_ref().collect();
    assert!(reader.damage().is_none_or(|it| it.offset <= n_bytes));
    let meta = reader.meta().clone();
    drop(reader);
    written(&meta, &entries);
    drop(entries);
    let plans = plans();
    let plan = plans[n_bytes % plans.len()].clone();
    let reader = RecordingReader::new(file).expect("it was just read");
    if let Ok((mut pipeline, opened)) = xputrace_replay::open(plan, reader, demangle) {
        let _ = (opened.notes(), opened.is_of_software_gpu());
        opened.run(&mut pipeline, &mut Nobody::default());
    }
}

/// What is written is read again.
fn written(meta: &Meta, entries: &[RecordingEntry]) {
    let Ok(mut writer) = RecordingWriter::new(Vec::new(), meta) else { return };
    if !entries.iter().all(|it| writer.write(it.clone()).is_ok()) {
        return;
    }
    let Ok(file) = writer.finish() else { return };
    let mut reader = RecordingReader::new(file).expect("what was written is a recording");
    let again: Vec<RecordingEntry> = reader.by_ref().collect();
    // Drains without a byte are not written, and blocks of different kinds come in another order.
    let is_drain = |it: &&RecordingEntry| matches!(it, RecordingEntry::Wire { rings, .. } if rings.iter().any(|it| !it.is_empty()));
    let is_hit = |it: &&RecordingEntry| matches!(it, RecordingEntry::Hit(_));
    if reader.damage().is_none() {
        assert!(again.iter().filter(is_hit).eq(entries.iter().filter(is_hit)));
        let by_process = |all: &[RecordingEntry]| {
            let mut drains: Vec<RecordingEntry> = all.iter().filter(is_drain).cloned().collect();
            drains.sort_by_key(|it| if let RecordingEntry::Wire { process, .. } = it { *process } else { 0 });
            drains
        };
        assert!(by_process(&again) == by_process(entries));
    }
}

/// Recordings that are read and written again in some milliseconds.
const MOST_BYTES: usize = 20 << 10;

fn files() -> Vec<Vec<u8>> {
    let mut all = files_in("tests/replay", ".xpt");
    all.retain(|it| it.len() <= MOST_BYTES);
    all.push(own());
    all
}

/// A recording with what those of the repository lack: hits of CPU probes.
fn own() -> Vec<u8> {
    use xputrace_recording::{FrameInfo, Hit, ProbeInfo, UserString};
    let probe = ProbeInfo { name: "uprobe:./server:handle_request".into(), ..ProbeInfo::default() };
    let meta = Meta { command: vec!["./server".into()], tells_losses: true, probes: vec![probe], ..Meta::default() };
    let text = UserString { address: 0x1000, text: b"text".to_vec() };
    let hit = Hit {
        time_nanos: 500,
        pid: 100,
        tid: 7,
        ustack: 5,
        context: vec![7; 168],
        strings: vec![text],
        ..Hit::default()
    };
    let frame = FrameInfo { function: "main".into(), module: "server".into(), offset: 4 };
    let stack = xputrace_model::stack::StackKey::from_word(5);
    let entries = [
        RecordingEntry::Hit(hit.clone()),
        RecordingEntry::Hit(hit),
        RecordingEntry::Symbols(vec![(stack, vec![frame])]),
    ];
    let mut writer = RecordingWriter::new(Vec::new(), &meta).expect("memory is written");
    entries.into_iter().for_each(|it| writer.write(it).expect("memory is written"));
    writer.finish().expect("memory is written")
}

fn unpacked() -> Vec<Vec<u8>> {
    let all = files().into_iter().filter_map(|it| Unpacked::of(&it));
    all.map(|Unpacked { header, blocks }| {
        // The first ones have a bit of everything.
        let small = blocks.iter().filter(|it| it.1.len() <= MOST_BYTES);
        let kinds: Vec<_> = small.take(12).map(|(kind, raw)| ([*kind as u8], raw)).collect();
        joined(std::iter::once(&header[..]).chain(kinds.iter().flat_map(|(kind, raw)| [&kind[..], &raw[..]])))
    })
    .collect()
}

/// Returns rings that recordings have.
pub(super) fn rings() -> Vec<Vec<u8>> {
    let entries = files().into_iter().filter_map(|it| RecordingReader::new(it).ok()).flatten();
    let rings = entries.flat_map(|it| if let RecordingEntry::Wire { rings, .. } = it { rings } else { Vec::new() });
    let mut rings: Vec<_> = rings.filter(|it| (1..MOST_BYTES).contains(&it.len())).collect();
    rings.sort_by_key(Vec::len);
    // Of many that are alike, a few of each size.
    let step = (rings.len() / 40).max(1);
    rings.into_iter().step_by(step).collect()
}
