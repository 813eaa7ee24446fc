//! Names of code compiled at run time, from `/tmp/perf-PID.map`, perf's format
//! (tools/perf/Documentation/jit-interface.txt): `START SIZE name`, both hexadecimal.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Maximum bytes read of such a file; a program writes it, so it is untrusted.
const LARGEST: u64 = 256 << 20;

/// A perf map as far as it was read.
#[derive(Debug, Default)]
pub(crate) struct PerfMap {
    /// By start address, without overlaps.
    entries: BTreeMap<u64, Entry>,
    /// Where the next line starts in the file.
    read_bytes: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    end: u64,
    name: Box<str>,
}

impl PerfMap {
    /// Reads what the file has grown by; returns whether there is anything new. A file that became
    /// shorter is read anew.
    pub(crate) fn refresh(&mut self, file: &File) -> bool {
        let bytes = file.metadata().map_or(0, |it| if it.is_file() { it.len().min(LARGEST) } else { 0 });
        if bytes < self.read_bytes {
            *self = PerfMap::default();
        }
        if bytes == self.read_bytes {
            return false;
        }
        let mut text = vec![0; usize::try_from(bytes - self.read_bytes).unwrap_or(0)];
        let Ok(n) = file.read_at(&mut text, self.read_bytes) else { return false };
        // The rest of the last line is not written yet.
        let whole = text[..n].iter().rposition(|it| *it == b'\n').map_or(0, |it| it + 1);
        self.read_bytes += whole as u64;
        String::from_utf8_lossy(&text[..whole])
            .lines()
            .filter_map(entry)
            .for_each(|(start, it)| self.insert(start, it));
        whole > 0
    }

    /// Inserts code in place of what it overlaps: it was made later.
    fn insert(&mut self, start: u64, entry: Entry) {
        let overlapped: Vec<u64> =
            self.entries.range(..entry.end).rev().take_while(|(_, it)| it.end > start).map(|(at, _)| *at).collect();
        for at in overlapped {
            if let Some(old) = self.entries.remove(&at).filter(|_| at < start) {
                self.entries.insert(at, Entry { end: start, ..old });
            }
        }
        self.entries.insert(start, entry);
    }

    /// Returns the name and start of the code at `address`.
    pub(crate) fn find(&self, address: u64) -> Option<(&str, u64)> {
        let (start, entry) = self.entries.range(..=address).next_back()?;
        (address < entry.end).then_some((&*entry.name, *start))
    }
}

/// Parses a line of a perf map; `None` if it is malformed.
fn entry(line: &str) -> Option<(u64, Entry)> {
    let mut parts = line.trim_end().splitn(3, ' ');
    let mut number = || u64::from_str_radix(parts.next()?.trim_start_matches("0x"), 16).ok();
    let (start, size) = (number()?, number()?);
    let name = parts.next().filter(|it| !it.is_empty())?;
    (size > 0).then(|| (start, Entry { end: start.saturating_add(size), name: name.into() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn code_is_found_between_its_ends_and_grows_with_the_file() {
        let mut file = tempfile::tempfile().unwrap();
        writeln!(file, "1000 10 py::forward:/app/model.py\nnonsense\n0x2000 0x20 old\n2000 20 new name").unwrap();
        let mut map = PerfMap::default();
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
        let mut map = PerfMap::default();
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
}
