//! Separate debug files: where distributions and builds put the symbols and lines of stripped files.
//!
//! ```text
//! /usr/lib/debug/.build-id/ab/cdef….debug      by the file's build id
//! DIR/NAME, DIR/.debug/NAME, /usr/lib/debug/DIR/NAME      by its `.gnu_debuglink`
//! ```
//! The places and their order are those of GDB's manual, "Debugging Information in Separate Files".
//! They are looked for in the root of the process first, then in ours. Not supported:
//! `.gnu_debugdata`, debuginfod.

use crate::elf_file::{DebugLink, Layout};
use std::cell::OnceCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use xputrace_boundary::read;

const DEBUG_ROOT: &str = "usr/lib/debug";

/// An open debug file of an executable.
pub(crate) struct DebugFile {
    file: File,
    has_lines: bool,
    /// The checksum that it must have, if no build id says that it belongs to the executable.
    expected_crc: Option<u32>,
    /// Whether it has that checksum. It is computed when the file is first needed: debug files are
    /// large.
    belongs: OnceCell<bool>,
}

impl DebugFile {
    /// Opens the debug file of the executable `file`, which is mapped as `path` in a process with
    /// the root directory `root`.
    pub(crate) fn find(path: &Path, file: &File, layout: &Layout, root: &Path) -> Option<Self> {
        let roots = [root, Path::new("/")];
        let by_build_id = layout.build_id.as_deref().and_then(build_id_path);
        let by_build_id = by_build_id.iter().flat_map(|it| roots.map(|root| (root.join(it), None)));
        let by_link = layout.debug_link.iter().flat_map(|it| {
            let paths = link_paths(path, it);
            paths.into_iter().flat_map(move |path| roots.map(|root| (root.join(&path), Some(it.crc))))
        });
        by_build_id.chain(by_link).find_map(|(path, crc)| DebugFile::open(&path, file, layout, crc))
    }

    /// Opens a candidate. Build ids decide if both files have one, else the checksum.
    fn open(path: &Path, executable: &File, layout: &Layout, crc: Option<u32>) -> Option<Self> {
        let file = read::open(path).ok()?;
        if is_same(&file, executable) {
            return None;
        }
        let found = Layout::read(&file)?;
        let expected_crc = match (&layout.build_id, &found.build_id) {
            (Some(expected), Some(found)) if expected == found => None,
            (Some(_), Some(_)) => return None,
            _ => Some(crc?),
        };
        Some(DebugFile { file, has_lines: found.has_lines, expected_crc, belongs: OnceCell::new() })
    }

    /// Returns the file; `None` if it belongs to another build of the executable.
    pub(crate) fn file(&self) -> Option<&File> {
        let belongs = || self.expected_crc.is_none_or(|it| checksum(&self.file).is_ok_and(|found| found == it));
        self.belongs.get_or_init(belongs).then_some(&self.file)
    }

    /// Whether it has DWARF.
    pub(crate) fn has_lines(&self) -> bool {
        self.has_lines
    }
}

fn build_id_path(build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first()?;
    let rest: String = rest.iter().map(|it| format!("{it:02x}")).collect();
    Some(Path::new(DEBUG_ROOT).join(format!(".build-id/{first:02x}/{rest}.debug")))
}

/// Returns where a link's file can be, relative to the root directory.
fn link_paths(executable: &Path, link: &DebugLink) -> Vec<PathBuf> {
    let folder = executable.parent().and_then(|it| it.strip_prefix("/").ok());
    let Some(folder) = folder.filter(|_| link.name.components().count() == 1) else { return Vec::new() };
    [folder.to_path_buf(), folder.join(".debug"), Path::new(DEBUG_ROOT).join(folder)]
        .map(|it| it.join(&link.name))
        .to_vec()
}

fn is_same(a: &File, b: &File) -> bool {
    let identity = |it: &File| it.metadata().ok().map(|it| (it.dev(), it.ino()));
    identity(a) == identity(b)
}

/// Returns the CRC-32 of a file's contents, as `.gnu_debuglink` has it.
fn checksum(file: &File) -> io::Result<u32> {
    /// Debug files of larger programs have build ids. A file without contents may have any size.
    const MOST_BYTES: u64 = 8 << 30;
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at <= MOST_BYTES {
        match file.read_at(&mut buffer, at)? {
            0 => return Ok(hasher.finalize()),
            n => {
                hasher.update(&buffer[..n]);
                at += n as u64;
            }
        }
    }
    Err(io::ErrorKind::FileTooLarge.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_looked_up_beside_the_file_and_in_the_debug_directory() {
        let link = |name: &str| DebugLink { name: name.into(), crc: 0 };
        let paths = link_paths(Path::new("/opt/app/bin/server"), &link("server.debug"));
        let expected =
            ["opt/app/bin/server.debug", "opt/app/bin/.debug/server.debug", "usr/lib/debug/opt/app/bin/server.debug"];
        assert_eq!(paths, expected.map(PathBuf::from));
        assert!(link_paths(Path::new("/bin/sh"), &link("../etc/passwd")).is_empty());
        assert!(link_paths(Path::new("relative"), &link("a.debug")).is_empty());
    }

    #[test]
    fn a_build_id_names_a_file() {
        let path = build_id_path(&[0xab, 0xcd, 0x01]);
        assert_eq!(path, Some("usr/lib/debug/.build-id/ab/cd01.debug".into()));
        assert_eq!(build_id_path(&[]), None);
    }
}
