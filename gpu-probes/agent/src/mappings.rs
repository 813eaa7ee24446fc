//! The program's executable mappings, for a tracer that cannot read them from perf.

use std::sync::atomic::{AtomicU64, Ordering};
use xputrace_unwind::{Changes, loader_changes};
use xputrace_wire::maps::MapsLine;
use xputrace_wire::record::Mapping;

/// Remembers which libraries were mapped at the last check.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    changes: AtomicU64,
}

impl Mappings {
    /// Whether a library was added or removed since the last call.
    pub(crate) fn changed(&self) -> bool {
        let Changes { added, removed } = loader_changes();
        let changes = added.wrapping_mul(1 << 32).wrapping_add(removed).wrapping_add(1);
        self.changes.swap(changes, Ordering::AcqRel) != changes
    }

    /// Passes the whole list to `write`.
    pub(crate) fn send(&self, mut write: impl FnMut(&Mapping, &[u8])) {
        let Ok(text) = std::fs::read("/proc/self/maps") else { return };
        for (mapping, path) in text.split(|&it| it == b'\n').filter_map(parse) {
            write(&mapping, path);
        }
    }
}

/// Parses a line of `/proc/PID/maps` if it is executable code of a file (or the vdso).
fn parse(line: &[u8]) -> Option<(Mapping, &[u8])> {
    let line = MapsLine::parse(line).filter(|it| it.is_executable && !it.path.is_empty())?;
    let mapping = Mapping {
        start: line.start,
        end: line.end,
        file_offset: line.file_offset,
        inode: line.inode,
        device: libc::makedev(line.device.0, line.device.1),
        path_len: line.path.len() as u64,
    };
    Some((mapping, line.path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_files_are_listed() {
        let line = b"7f0000001000-7f0000002000 r-xp 00001000 fe:01 42                 /usr/lib/a b.so";
        let (mapping, path) = parse(line).unwrap();
        assert_eq!(path, b"/usr/lib/a b.so");
        assert_eq!((mapping.start, mapping.end, mapping.file_offset), (0x7f0000001000, 0x7f0000002000, 0x1000));
        assert_eq!((mapping.inode, mapping.device), (42, libc::makedev(0xfe, 1)));
        assert_eq!(mapping.path_len, path.len() as u64);
    }

    #[test]
    fn data_anonymous_memory_and_nonsense_are_not() {
        assert!(parse(b"7f0000001000-7f0000002000 rw-p 00001000 fe:01 42 /usr/lib/a.so").is_none());
        assert!(parse(b"7f0000001000-7f0000002000 r-xp 00000000 00:00 0 ").is_none());
        assert!(parse(b"").is_none());
        assert!(parse(b"nonsense").is_none());
    }

    #[test]
    fn this_program_is_in_its_own_list() {
        let mappings = Mappings::default();
        let here = this_program_is_in_its_own_list as fn() as usize as u64;
        let mut found = false;
        mappings.send(|mapping, path| found |= (mapping.start..mapping.end).contains(&here) && !path.is_empty());
        assert!(found);
        assert!(mappings.changed(), "the first look is a change");
    }
}
