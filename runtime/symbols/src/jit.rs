//! Names of code compiled at run time, from `/tmp/perf-PID.map`, perf's format
//! (tools/perf/Documentation/jit-interface.txt): `START SIZE name`, both hexadecimal.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::rc::Rc;
use xputrace_boundary::user::Account;

/// Maximum bytes read of such a file; a program writes it, so it is untrusted.
const LARGEST: u64 = 256 << 20;
/// Bytes that are read at a time, and the length of the longest line.
const BLOCK_BYTES: usize = 1 << 20;
/// Maximum bytes of memory that the entries of all processes take: half a million of usual length.
const MOST_KEPT_BYTES: u64 = 64 << 20;
/// What an entry takes besides its name: its part of the tree, which is two thirds full, and what the allocator adds.
const ENTRY_BYTES: u64 = 80;

/// A perf map as far as it was read.
#[derive(Debug)]
pub(crate) struct PerfMap {
    /// By start address, without overlaps.
    entries: BTreeMap<u64, JitEntry>,
    /// Where the next line starts in the file.
    read_bytes: u64,
    /// What this map has taken of the memory for all.
    taken_bytes: u64,
    room: Room,
}

/// The memory for the perf maps of all processes.
#[derive(Clone, Debug)]
pub(crate) struct Room(Rc<RoomLeft>);

#[derive(Debug)]
struct RoomLeft {
    bytes: Cell<u64>,
    was_exceeded: Cell<bool>,
}

impl Default for Room {
    fn default() -> Self {
        Room::of(MOST_KEPT_BYTES)
    }
}

impl Room {
    fn of(bytes: u64) -> Self {
        Room(Rc::new(RoomLeft { bytes: Cell::new(bytes), was_exceeded: Cell::new(false) }))
    }

    /// Returns how much there was if it was exceeded since the last call.
    pub(crate) fn take_exceeded(&self) -> Option<u64> {
        self.0.was_exceeded.take().then_some(MOST_KEPT_BYTES)
    }

    fn take(&self, bytes: u64) -> bool {
        let rest = self.0.bytes.get().checked_sub(bytes);
        rest.iter().for_each(|it| self.0.bytes.set(*it));
        self.0.was_exceeded.set(rest.is_none() || self.0.was_exceeded.get());
        rest.is_some()
    }

    fn give(&self, bytes: u64) {
        self.0.bytes.set(self.0.bytes.get() + bytes);
    }
}

#[derive(Debug, PartialEq, Eq)]
struct JitEntry {
    end: u64,
    name: Box<str>,
}

impl JitEntry {
    fn size(&self) -> u64 {
        ENTRY_BYTES + self.name.len() as u64
    }
}

/// Whether a perf map is of the process, whose user is this if known: anybody can make a file of that name in `/tmp`.
pub(crate) fn is_of(file: &File, user: Option<u32>) -> bool {
    let of_process = user.unwrap_or_else(|| Account::current().uid);
    file.metadata().is_ok_and(|it| it.uid() == Account::ROOT.uid || it.uid() == of_process)
}

impl PerfMap {
    pub(crate) fn new(room: Room) -> Self {
        PerfMap { entries: BTreeMap::new(), read_bytes: 0, taken_bytes: 0, room }
    }

    /// Reads what the file has grown by; returns whether there is anything new. A file that became
    /// shorter is read anew.
    pub(crate) fn refresh(&mut self, file: &File) -> bool {
        let bytes = file.metadata().map_or(0, |it| if it.is_file() { it.len().min(LARGEST) } else { 0 });
        if bytes < self.read_bytes {
            *self = PerfMap::new(self.room.clone());
        }
        let before = self.read_bytes;
        let mut block = Vec::new();
        while self.read_bytes < bytes {
            block.resize(BLOCK_BYTES.min((bytes - self.read_bytes) as usize), 0);
            let Ok(n) = file.read_at(&mut block, self.read_bytes) else { break };
            // The rest of the last line is not written yet, or in the next block.
            let whole = block[..n].iter().rposition(|it| *it == b'\n').map_or(0, |it| it + 1);
            if whole == 0 {
                break;
            }
            self.read_bytes += whole as u64;
            let text = String::from_utf8_lossy(&block[..whole]);
            text.lines().filter_map(entry).for_each(|(start, it)| self.insert(start, it));
        }
        self.read_bytes > before
    }

    /// Inserts code in place of what it overlaps: it was made later. Without room for it, that only goes.
    fn insert(&mut self, start: u64, entry: JitEntry) {
        let overlapped: Vec<u64> =
            self.entries.range(..entry.end).rev().take_while(|(_, it)| it.end > start).map(|(at, _)| *at).collect();
        for at in overlapped {
            let Some(old) = self.entries.remove(&at) else { continue };
            self.give(old.size());
            if at < start {
                self.keep(at, JitEntry { end: start, ..old });
            }
        }
        self.keep(start, entry);
    }

    fn keep(&mut self, start: u64, entry: JitEntry) {
        let bytes = entry.size();
        if self.room.take(bytes) {
            self.taken_bytes += bytes;
            self.entries.insert(start, entry);
        }
    }

    fn give(&mut self, bytes: u64) {
        self.taken_bytes -= bytes;
        self.room.give(bytes);
    }

    /// Returns the name and start of the code at `address`.
    pub(crate) fn find(&self, address: u64) -> Option<(&str, u64)> {
        let (start, entry) = self.entries.range(..=address).next_back()?;
        (address < entry.end).then_some((&*entry.name, *start))
    }
}

impl Drop for PerfMap {
    fn drop(&mut self) {
        self.room.give(self.taken_bytes);
    }
}

/// Parses a line of a perf map; `None` if it is malformed.
fn entry(line: &str) -> Option<(u64, JitEntry)> {
    let mut parts = line.trim_end().splitn(3, ' ');
    let mut number = || u64::from_str_radix(parts.next()?.trim_start_matches("0x"), 16).ok();
    let (start, size) = (number()?, number()?);
    let name = parts.next().filter(|it| !it.is_empty())?;
    (size > 0).then(|| (start, JitEntry { end: start.saturating_add(size), name: name.into() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn code_is_found_between_its_ends_and_grows_with_the_file() {
        let mut file = tempfile::tempfile().unwrap();
        writeln!(file, "1000 10 py::forward:/app/model.py\nnonsense\n0x2000 0x20 old\n2000 20 new name").unwrap();
        let mut map = PerfMap::new(Room::default());
        map.refresh(&file);
        assert_eq!(map.find(0x100f), Some(("py::forward:/app/model.py", 0x1000)));
        assert_eq!(map.find(0x1010), None);
        assert_eq!(map.find(0x2001), Some(("new name", 0x2000)));
        assert_eq!(map.find(0xfff), None);
        writeln!(file, "3000 8 later").unwrap();
        map.refresh(&file);
        assert_eq!(map.find(0x3000), Some(("later", 0x3000)));
    }

    #[test]
    fn later_code_replaces_what_it_overlaps() {
        let mut file = tempfile::tempfile().unwrap();
        write!(file, "1000 100 old\n1200 10 small\n1080 200 new\n1400 0 empty\n1500 10 unfini").unwrap();
        let mut map = PerfMap::new(Room::default());
        assert!(map.refresh(&file));
        let at = |map: &PerfMap, it| map.find(it).map(|(name, start)| (name.to_owned(), start));
        assert_eq!(at(&map, 0x107f), Some(("old".into(), 0x1000)));
        assert_eq!(at(&map, 0x1205), Some(("new".into(), 0x1080)));
        assert_eq!((at(&map, 0x1280), at(&map, 0x1400), at(&map, 0x1500)), (None, None, None));
        writeln!(file, "shed").unwrap();
        assert!(map.refresh(&file) && !map.refresh(&file));
        assert_eq!(at(&map, 0x1500), Some(("unfinished".into(), 0x1500)));
        file.set_len(0).unwrap();
        map.refresh(&file);
        assert_eq!(at(&map, 0x1500), None, "another program's map");
    }

    #[test]
    fn all_maps_together_take_no_more_memory_than_there_is_room() {
        let room = Room::of(10 * (ENTRY_BYTES + 4));
        let mut file = tempfile::tempfile().unwrap();
        (0..8).for_each(|it| writeln!(file, "{it}000 10 name").unwrap());
        let (mut first, mut second) = (PerfMap::new(room.clone()), PerfMap::new(room.clone()));
        first.refresh(&file);
        assert_eq!(room.take_exceeded(), None);
        second.refresh(&file);
        assert_eq!((first.entries.len(), second.entries.len()), (8, 2));
        assert_eq!((room.take_exceeded(), room.take_exceeded()), (Some(MOST_KEPT_BYTES), None));
        drop(first);
        writeln!(file, "0 10 more\n9000 10 name").unwrap();
        second.refresh(&file);
        assert_eq!((second.entries.len(), second.find(0x9000)), (3, Some(("name", 0x9000))));
        drop(second);
        assert_eq!(room.0.bytes.get(), 10 * (ENTRY_BYTES + 4));
    }

    #[test]
    fn a_line_without_an_end_is_not_kept_in_memory() {
        let mut file = tempfile::tempfile().unwrap();
        writeln!(file, "1000 10 first").unwrap();
        file.set_len(200 << 20).unwrap();
        let mut map = PerfMap::new(Room::default());
        assert!(map.refresh(&file) && !map.refresh(&file));
        assert_eq!(map.find(0x1000), Some(("first", 0x1000)));
    }

    #[test]
    fn a_map_that_spans_many_blocks_is_read_whole() {
        let mut file = tempfile::tempfile().unwrap();
        let name = "n".repeat(1000);
        let text: String = (0..3000).map(|it| format!("{:x} 10 {name}\n", it << 8)).collect();
        file.write_all(text.as_bytes()).unwrap();
        let mut map = PerfMap::new(Room::default());
        map.refresh(&file);
        assert_eq!((map.entries.len(), map.read_bytes), (3000, text.len() as u64));
    }
}
