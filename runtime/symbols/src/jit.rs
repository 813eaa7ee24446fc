//! Names of code compiled at run time, from `/tmp/perf-PID.map`, perf's format
//! (tools/perf/Documentation/jit-interface.txt): `START SIZE name`, both hexadecimal.

use std::fs::File;
use std::io::Read;

/// Maximum bytes read of such a file; a program writes it, so it is untrusted.
const LARGEST: u64 = 256 << 20;

/// A perf map as last read.
#[derive(Debug, Default)]
pub(crate) struct PerfMap {
    /// Sorted by start address.
    entries: Vec<Entry>,
    /// Size of the file at the last read.
    read_bytes: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    start: u64,
    size: u64,
    name: String,
}

impl PerfMap {
    /// Reads the file again if it has grown. Keeps the old entries if it cannot be read.
    pub(crate) fn refresh(&mut self, file: &File) {
        let size = file.metadata().map_or(0, |it| if it.is_file() { it.len() } else { 0 });
        if size == self.read_bytes {
            return;
        }
        let mut text = Vec::new();
        if read_from_start(file, &mut text).is_ok() {
            self.entries = parse(&String::from_utf8_lossy(&text));
            self.read_bytes = size;
        }
    }

    /// Returns the name and start of the code at `address`.
    pub(crate) fn find(&self, address: u64) -> Option<(&str, u64)> {
        let after = self.entries.partition_point(|it| it.start <= address);
        let entry = self.entries.get(after.checked_sub(1)?)?;
        (address - entry.start < entry.size).then_some((entry.name.as_str(), entry.start))
    }
}

fn read_from_start(file: &File, text: &mut Vec<u8>) -> std::io::Result<()> {
    use std::io::Seek;
    let mut file = file;
    file.rewind()?;
    file.take(LARGEST).read_to_end(text).map(drop)
}

/// Parses a perf map. Skips malformed lines. Of several entries at one address the last wins: the
/// code was replaced.
fn parse(text: &str) -> Vec<Entry> {
    let mut entries: Vec<Entry> = text.lines().filter_map(entry).collect();
    entries.sort_by_key(|it| it.start);
    entries.reverse();
    entries.dedup_by_key(|it| it.start);
    entries.reverse();
    entries
}

fn entry(line: &str) -> Option<Entry> {
    let mut parts = line.trim_end().splitn(3, ' ');
    let mut number = || u64::from_str_radix(parts.next()?.trim_start_matches("0x"), 16).ok();
    let (start, size) = (number()?, number()?);
    let name = parts.next().filter(|it| !it.is_empty())?;
    Some(Entry { start, size, name: name.into() })
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
}
