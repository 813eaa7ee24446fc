//! A line of `/proc/PID/maps` (proc_pid_maps(5)). Collectors send their own process's; the tracer
//! reads those of others.
//!
//! ```text
//! 7f01a000-7f01c000 r-xp 00001000 fe:00 1234      /usr/lib/libc.so.6
//! ```

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapsLine<'a> {
    /// Addresses, `end` exclusive and not below `start`.
    pub start: u64,
    pub end: u64,
    pub is_executable: bool,
    /// File offset of the byte mapped at `start`.
    pub file_offset: u64,
    /// Major and minor device number.
    pub device: (u32, u32),
    pub inode: u64,
    /// The path as printed: `[vdso]` and the like, empty without a file.
    pub path: &'a [u8],
}

impl<'a> MapsLine<'a> {
    /// Returns `None` if the line is malformed.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let mut words = Words(line);
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?;
        let file_offset = hex(words.next()?)?;
        let (major, minor) = words.next()?.split_once(':')?;
        let inode = words.next()?.parse().ok()?;
        let (start, end) = (hex(start)?, hex(end)?);
        (start <= end).then_some(MapsLine {
            start,
            end,
            is_executable: rights.as_bytes().get(2) == Some(&b'x'),
            file_offset,
            device: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
            inode,
            path: words.0.trim_ascii_start(),
        })
    }

    /// Returns the path of a mapped file and whether it has been deleted.
    pub fn file(&self) -> Option<(PathBuf, bool)> {
        if !self.path.starts_with(b"/") {
            return None;
        }
        let (path, deleted) = match self.path.strip_suffix(b" (deleted)") {
            Some(path) => (path, true),
            None => (self.path, false),
        };
        Some((PathBuf::from(OsString::from_vec(unescaped(path))), deleted))
    }
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// The rest of a line.
struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let line = self.0.trim_ascii_start();
        let end = line.iter().position(|it| *it == b' ').unwrap_or(line.len());
        let word = std::str::from_utf8(&line[..end]).ok()?;
        self.0 = &line[end..];
        (!word.is_empty()).then_some(word)
    }
}

/// Linux writes a newline in a path as `\012`.
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((first, tail)) = rest.split_first() {
        let newline = rest.strip_prefix(b"\\012");
        out.push(if newline.is_some() { b'\n' } else { *first });
        rest = newline.unwrap_or(tail);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_mapped_file() {
        let line = b"7f01-7f05 r-xp 00001000 fe:01 1234                       /usr/lib/my lib\\012.so (deleted)";
        let parsed = MapsLine::parse(line).unwrap();
        let expected = MapsLine {
            start: 0x7f01,
            end: 0x7f05,
            is_executable: true,
            file_offset: 0x1000,
            device: (0xfe, 1),
            inode: 1234,
            path: b"/usr/lib/my lib\\012.so (deleted)",
        };
        assert_eq!(parsed, expected);
        assert_eq!(parsed.file(), Some(("/usr/lib/my lib\n.so".into(), true)));
    }

    #[test]
    fn memory_without_a_file() {
        for (line, path) in [("1-2 r-xp 0 00:00 0 [vdso]", "[vdso]"), ("1-2 rw-p 0 00:00 0 ", "")] {
            let parsed = MapsLine::parse(line.as_bytes()).unwrap();
            assert_eq!((parsed.path, parsed.file()), (path.as_bytes(), None), "{line}");
        }
        assert!(!MapsLine::parse(b"1-2 rw-p 0 00:00 0").unwrap().is_executable);
    }

    #[test]
    fn other_lines_are_none() {
        for line in ["", "x", "2-1 r-xp 0 00:00 0 /a", "1-2 r-xp", "1 r-xp 0 00:00 0 /a", "1-2 r-xp 0 0000 0 /a"] {
            assert_eq!(MapsLine::parse(line.as_bytes()), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(line in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = MapsLine::parse(&line).map(|it| it.file());
        }
    }
}
