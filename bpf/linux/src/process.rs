//! What Linux says of another process.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use xputrace_boundary::read::of_linux;

/// Whether a thread of a process has this name.
pub fn has_thread(pid: u32, name: &str) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.filter_map(|it| of_linux(it.path().join("comm")).ok()).any(|it| it.trim_end() == name)
}

/// Returns the path by which we reach a file of a process.
pub fn seen_from_here(pid: u32, path: &Path) -> PathBuf {
    Path::new(&format!("/proc/{pid}/root")).join(path.strip_prefix("/").unwrap_or(path))
}

/// Whether paths lead to the same files in a process as here: it has our root directory and our mounts.
///
/// # Errors
/// Its mounts cannot be looked at.
pub fn shares_our_files(pid: u32) -> io::Result<bool> {
    let identity = |it: fs::Metadata| (it.dev(), it.ino());
    let root = |it: &Path| fs::metadata(it).map(identity).ok();
    let mounts = |process: &str| fs::metadata(format!("/proc/{process}/ns/mnt")).map(identity);
    let theirs = mounts(&pid.to_string())?;
    Ok(root(&seen_from_here(pid, Path::new("/"))) == root(Path::new("/")) && theirs == mounts("self")?)
}
