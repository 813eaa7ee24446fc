//! The files that a process has mapped for execution.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One executable mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileMapping {
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// Offset in the file, in bytes.
    pub(crate) pgoff: u64,
    pub(crate) path: PathBuf,
    /// The file is no longer under its path.
    pub(crate) deleted: bool,
}

/// Executable file mappings of a process, in order of address.
pub(crate) fn of(pid: u32) -> io::Result<Vec<FileMapping>> {
    let text = std::fs::read(format!("/proc/{pid}/maps"))?;
    Ok(text.split(|it| *it == b'\n').filter_map(parse).collect())
}

/// The path under which we can open a mapped file of a process, whatever mount namespace it is in.
pub(crate) fn reachable(pid: u32, mapping: &FileMapping) -> PathBuf {
    if mapping.deleted {
        let range = format!("{:x}-{:x}", mapping.start, mapping.start + mapping.len);
        return PathBuf::from(format!("/proc/{pid}/map_files/{range}"));
    }
    in_root_of(pid, &mapping.path)
}

/// An absolute path as the process sees it, as a path that we can open.
pub(crate) fn in_root_of(pid: u32, path: &std::path::Path) -> PathBuf {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let root = std::fs::read_link(format!("/proc/{pid}/root")).ok();
    let elsewhere = namespace(&pid.to_string()) != namespace("self") || root.is_some_and(|it| it.as_os_str() != "/");
    match path.strip_prefix("/") {
        Ok(relative) if elsewhere => PathBuf::from(format!("/proc/{pid}/root")).join(relative),
        _ => path.to_path_buf(),
    }
}

/// `start-end perms offset dev inode path`; see proc_pid_maps(5).
fn parse(line: &[u8]) -> Option<FileMapping> {
    let mut rest = line;
    let mut word = || {
        let begin = rest.iter().position(|it| *it != b' ')?;
        let end = rest[begin..].iter().position(|it| *it == b' ').map_or(rest.len(), |it| begin + it);
        let word = std::str::from_utf8(&rest[begin..end]).ok()?;
        rest = &rest[end..];
        Some(word)
    };
    let (start, end) = word()?.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    let executable = word()?.as_bytes().get(2) == Some(&b'x');
    let pgoff = u64::from_str_radix(word()?, 16).ok()?;
    let (_device, _inode) = (word()?, word()?);
    let path = rest.trim_ascii_start();
    if !executable || !path.starts_with(b"/") {
        return None;
    }
    let (path, deleted) = match path.strip_suffix(b" (deleted)") {
        Some(path) => (path, true),
        None => (path, false),
    };
    let path = PathBuf::from(OsString::from_vec(unescape(path)));
    Some(FileMapping { start, len: end.checked_sub(start)?, pgoff, path, deleted })
}

/// The kernel writes a newline in a path as `\012`.
fn unescape(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((first, tail)) = rest.split_first() {
        match rest.strip_prefix(b"\\012") {
            Some(tail) => {
                out.push(b'\n');
                rest = tail;
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_file_mappings_are_read() {
        let line = b"7f01-7f05 r-xp 00001000 fe:00 1234                       /usr/lib/my lib.so (deleted)";
        let mapping =
            FileMapping { start: 0x7f01, len: 4, pgoff: 0x1000, path: "/usr/lib/my lib.so".into(), deleted: true };
        assert_eq!(parse(line), Some(mapping));
    }

    #[test]
    fn other_lines_are_not() {
        for line in ["", "x", "1-2 r--p 0 00:00 0 /a", "1-2 r-xp 0 00:00 0 [vdso]", "2-1 r-xp 0 00:00 0 /a", "1-2 r-xp"]
        {
            assert_eq!(parse(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn our_own_executable_is_mapped() {
        let exe = std::env::current_exe().unwrap();
        assert!(of(std::process::id()).unwrap().iter().any(|it| it.path == exe));
    }
}
