//! The files that a process has mapped for execution.

use std::io;
use std::path::{Path, PathBuf};
use xputrace_wire::maps::MapsLine;

/// One executable mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileMapping {
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// File offset in bytes.
    pub(crate) pgoff: u64,
    pub(crate) path: PathBuf,
    /// As `libc::makedev`.
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// The file no longer exists under its path.
    pub(crate) deleted: bool,
}

/// Returns the executable file mappings of a process, in address order.
pub(crate) fn of(pid: u32) -> io::Result<Vec<FileMapping>> {
    let text = std::fs::read(format!("/proc/{pid}/maps"))?;
    Ok(text.split(|it| *it == b'\n').filter_map(executable_file).collect())
}

/// How to access the files that a process sees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pid: u32,
    /// Whether its mount namespace or root differs from ours.
    elsewhere: bool,
}

impl View {
    pub(crate) fn of(pid: u32) -> View {
        let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        let root = std::fs::read_link(format!("/proc/{pid}/root")).ok();
        let elsewhere =
            namespace(&pid.to_string()) != namespace("self") || root.is_some_and(|it| it.as_os_str() != "/");
        View { pid, elsewhere }
    }

    /// Returns the path under which we can open a mapped file.
    pub(crate) fn mapped(self, mapping: &FileMapping) -> PathBuf {
        if mapping.deleted { self.by_range(mapping) } else { self.file(&mapping.path) }
    }

    /// Returns a mapped file's path by its addresses, which doesn't depend on its name.
    pub(crate) fn by_range(self, mapping: &FileMapping) -> PathBuf {
        let range = format!("{:x}-{:x}", mapping.start, mapping.start + mapping.len);
        PathBuf::from(format!("/proc/{}/map_files/{range}", self.pid))
    }

    /// Converts an absolute path, as the process sees it, to a path that we can open.
    pub(crate) fn file(self, path: &Path) -> PathBuf {
        match path.strip_prefix("/") {
            Ok(relative) if self.elsewhere => PathBuf::from(format!("/proc/{}/root", self.pid)).join(relative),
            _ => path.to_path_buf(),
        }
    }
}

pub(crate) fn executable_file(line: &[u8]) -> Option<FileMapping> {
    let line = MapsLine::parse(line).filter(|it| it.is_executable)?;
    let (path, deleted) = line.file()?;
    let device = libc::makedev(line.device.0, line.device.1);
    let (start, len) = (line.start, line.end - line.start);
    Some(FileMapping { start, len, pgoff: line.file_offset, path, device, inode: line.inode, deleted })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_executable_files_count() {
        let line = b"7f01-7f05 r-xp 00001000 fe:00 1234                       /usr/lib/my lib.so (deleted)";
        let mapping = FileMapping {
            start: 0x7f01,
            len: 4,
            pgoff: 0x1000,
            path: "/usr/lib/my lib.so".into(),
            device: libc::makedev(0xfe, 0),
            inode: 1234,
            deleted: true,
        };
        assert_eq!(executable_file(line), Some(mapping));
        for line in ["1-2 r--p 0 00:00 0 /a", "1-2 r-xp 0 00:00 0 [vdso]"] {
            assert_eq!(executable_file(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn our_own_executable_is_mapped() {
        let exe = std::env::current_exe().unwrap();
        assert!(of(std::process::id()).unwrap().iter().any(|it| it.path == exe));
    }
}
