//! Whether the probes of a file reach a process that has it mapped.
//!
//! Linux probes an inode. A path may lead to another inode by now than the one that a process has mapped under it:
//! overlayfs has copied the file to its upper layer, or something was mounted over it. What tells is the process's
//! memory, because a breakpoint changes the code there.

use crate::proc_maps::{FileMapping, View};
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xputrace_boundary::read;

/// Whether a probed place of a file differs from the file in a process's memory. Returns `None` if either cannot be
/// read, or the mapping does not have the place.
pub(crate) fn is_reached(pid: u32, mapping: &FileMapping, file: &Path, file_offset: u64) -> Option<bool> {
    let at = file_offset.checked_sub(mapping.pgoff).filter(|it| *it < mapping.len)?;
    let byte = |file: std::io::Result<File>, at: u64| {
        let mut byte = [0];
        file.and_then(|it| it.read_exact_at(&mut byte, at)).ok().map(|()| byte)
    };
    let memory = byte(File::open(format!("/proc/{pid}/mem")), mapping.start + at)?;
    Some(memory != byte(read::open(file), file_offset)?)
}

/// Returns the files that a process may have mapped instead of the one that its path leads to, the likeliest first.
pub(crate) fn others(pid: u32, mapping: &FileMapping, view: View) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let overlay = mounts.lines().filter_map(|it| Overlay::parse(it, &mapping.path)).max_by_key(|it| it.mount_point_len);
    let below = overlay.map(|it| it.layers_files()).unwrap_or_default();
    // Whoever mounted it may see other files than we do.
    let below_inside = below.iter().map(|it| view.file(it)).collect();
    let all = [vec![view.by_range(mapping)], below, below_inside].concat();
    all.into_iter().filter(|it| it.is_file()).collect()
}

/// A mount of overlayfs that has a certain file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Overlay {
    mount_point_len: usize,
    /// Path of the file in each layer.
    path: PathBuf,
    /// Directories of the lower layers, the uppermost first. Only relative to an ancestor of `upper`, if the mount was
    /// made so.
    lower: Vec<PathBuf>,
    upper: PathBuf,
}

impl Overlay {
    /// Parses a line of `/proc/PID/mountinfo` (proc_pid_mountinfo(5)). Returns `None` unless it is an overlay that may
    /// have the file.
    pub(crate) fn parse(line: &str, file: &Path) -> Option<Overlay> {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3).map(unescaped);
        let (root, mount_point) = (mount.next()?, mount.next()?);
        let mut system = system.split(' ');
        let options = (system.next()? == "overlay").then(|| system.nth(1))??;
        let path = root.strip_prefix("/").ok()?.join(file.strip_prefix(&mount_point).ok()?);
        let mut overlay =
            Overlay { mount_point_len: mount_point.as_os_str().len(), path, lower: Vec::new(), upper: PathBuf::new() };
        for (name, value) in options.split(',').filter_map(|it| it.split_once('=')) {
            match name {
                "lowerdir" => overlay.lower.extend(layers(&unescaped(value))),
                // How newer mounts name each layer.
                "lowerdir+" => overlay.lower.push(unescaped(value)),
                "upperdir" => overlay.upper = unescaped(value),
                _ => {}
            }
        }
        Some(overlay)
    }

    fn layers_files(&self) -> Vec<PathBuf> {
        let whole = |layer: &PathBuf| match layer.is_absolute() {
            true => Some(layer.clone()),
            false => self.upper.ancestors().map(|it| it.join(layer)).find(|it| it.is_dir()),
        };
        self.lower.iter().filter_map(whole).map(|it| it.join(&self.path)).collect()
    }
}

/// Splits `lowerdir`, where `\:` is a colon in a path. Layers of data alone have no names.
fn layers(value: &Path) -> Vec<PathBuf> {
    let mut layers = vec![Vec::new()];
    let mut bytes = value.as_os_str().as_encoded_bytes().iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b':' => layers.push(Vec::new()),
            byte => {
                let byte = if byte == b'\\' { bytes.next() } else { Some(byte) };
                layers.last_mut().into_iter().for_each(|it| it.extend(byte));
            }
        }
    }
    layers.into_iter().filter(|it| !it.is_empty()).map(path).collect()
}

/// Undoes `seq_escape`: a backslash and three octal digits.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, others @ ..] = rest {
        let code = others.get(..3).filter(|_| *first == b'\\').and_then(|it| std::str::from_utf8(it).ok());
        match code.and_then(|it| u8::from_str_radix(it, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &others[3..];
            }
            None => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    path(bytes)
}

fn path(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layers_of_an_overlay() {
        let line = r"45 36 0:45 /sub /my\040app rw,relatime - overlay none rw,lowerdir=/a\134:b:c/fs,upperdir=/var/s/9/fs,workdir=/w";
        let overlay = Overlay::parse(line, Path::new("/my app/bin/server")).unwrap();
        assert_eq!(overlay.path, Path::new("sub/bin/server"));
        assert_eq!(overlay.lower, [PathBuf::from("/a:b"), "c/fs".into()]);
        assert_eq!(overlay.upper, Path::new("/var/s/9/fs"));
        let line = "45 36 0:45 / /m rw - overlay none rw,lowerdir+=/a,lowerdir+=/b,upperdir=/u,workdir=/w";
        assert_eq!(Overlay::parse(line, Path::new("/m/x")).unwrap().lower, [PathBuf::from("/a"), "/b".into()]);
        for line in ["45 36 0:45 / /m rw - ext4 /dev/vda rw", "45 36", ""] {
            assert_eq!(Overlay::parse(line, Path::new("/m/x")), None);
        }
        assert_eq!(Overlay::parse("4 3 0:4 / /other rw - overlay o rw,lowerdir=/a", Path::new("/m/x")), None);
    }
}
