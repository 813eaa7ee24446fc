//! Reads files that others can write.
//!
//! A path may name a pipe (opening it would wait), a device (reading it may never end), or by the time that it is opened
//! another file. So only what was opened counts: it must be a regular file, and is read up to a limit.

use std::ffi::{CString, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// How paths are followed below a directory, as bits of openat2(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// As the processes do that have this directory as their root: they cannot lead out of it.
    InRoot,
    /// Not at all, and nothing leads above the directory.
    None,
}

impl Links {
    fn bits(self) -> u64 {
        match self {
            Links::InRoot => libc::RESOLVE_IN_ROOT,
            Links::None => libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS,
        }
    }
}

/// Opens a regular file to read it. Does not wait, whatever the path names.
///
/// # Errors
/// The system refuses it, or the path names something else, such as a pipe.
pub fn open(path: &Path) -> io::Result<File> {
    let opened = |options| File::options().read(true).custom_flags(options).open(path);
    reopened(opened(libc::O_PATH)?, || opened(libc::O_NONBLOCK | libc::O_NOCTTY))
}

/// Opens a regular file below a directory.
///
/// # Errors
/// As for [`open`].
pub fn open_below(directory: &File, path: &Path, links: Links) -> io::Result<File> {
    let opened = |flags| openat2(directory, path, flags, links.bits());
    reopened(opened(libc::O_PATH)?, || opened(libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY))
}

/// Opens a directory, wherever links lead.
///
/// # Errors
/// The system's.
pub fn open_directory(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_DIRECTORY).open(path)
}

/// Opens a directory below another.
///
/// # Errors
/// The system's.
pub fn open_directory_below(directory: &File, path: &Path, links: Links) -> io::Result<File> {
    openat2(directory, path, libc::O_RDONLY | libc::O_DIRECTORY, links.bits())
}

/// Returns the names in a directory, `most` at most, each with what is known of it: a link is described itself.
///
/// # Errors
/// The system's.
pub fn entries(directory: &File, most: usize) -> io::Result<Vec<(OsString, Metadata)>> {
    // Through its descriptor, nothing above can be exchanged.
    let all = std::fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()))?.take(most);
    // One that is gone by now is left out.
    Ok(all.flatten().filter_map(|it| Some((it.file_name(), it.metadata().ok()?))).collect())
}

/// Returns the contents of a file that has at most `most_bytes`.
///
/// # Errors
/// It has more, or is not a regular file, or the system's.
pub fn contents(file: &File, most_bytes: u64) -> io::Result<Vec<u8>> {
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(not_regular());
    }
    if about.len() > most_bytes {
        return Err(too_large(most_bytes));
    }
    bounded(file, most_bytes)
}

/// Returns the contents of what the user who runs us has named: a pipe or a device will do, too.
///
/// # Errors
/// It has more than `most_bytes`, or the system's.
pub fn named(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    bounded(&File::open(path)?, most_bytes)
}

/// Returns what Linux says in a file of procfs, sysfs or tracefs, which no user has written.
///
/// # Errors
/// The system's, or it is not UTF-8.
pub fn of_linux(path: impl AsRef<Path>) -> io::Result<String> {
    std::fs::read_to_string(path)
}

/// Reads to the end, which may be further away than it was.
fn bounded(mut file: impl Read, most_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.by_ref().take(most_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most_bytes { Err(too_large(most_bytes)) } else { Ok(bytes) }
}

/// Opens what is held as a place, if it is a regular file: to open a device has effects by itself.
/// Without procfs it is opened anew, `again`.
fn reopened(place: File, again: impl FnOnce() -> io::Result<File>) -> io::Result<File> {
    let place = regular(place)?;
    let options = libc::O_NONBLOCK | libc::O_NOCTTY;
    match File::options().read(true).custom_flags(options).open(format!("/proc/self/fd/{}", place.as_raw_fd())) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => regular(again()?),
        opened => opened,
    }
}

fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
}

fn not_regular() -> io::Error {
    io::Error::other("it is not a regular file")
}

fn too_large(most_bytes: u64) -> io::Error {
    let limit = match most_bytes >> 20 {
        0 => format!("{most_bytes} bytes"),
        mib => format!("{mib} MiB"),
    };
    io::Error::new(io::ErrorKind::FileTooLarge, format!("it is larger than {limit}"))
}

fn openat2(from: &File, path: &Path, flags: i32, resolve: u64) -> io::Result<File> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: zeroes are an open_how.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (flags | libc::O_CLOEXEC) as u64;
    how.resolve = resolve;
    // SAFETY: a C string and an open_how of the size given; the new descriptor is ours.
    unsafe {
        let fd = libc::syscall(libc::SYS_openat2, from.as_raw_fd(), path.as_ptr(), &raw const how, size_of_val(&how));
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(File::from_raw_fd(fd as i32)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_regular_files_are_opened_and_nothing_waits() {
        let place = tempfile::tempdir().unwrap();
        let pipe = place.path().join("pipe");
        let name = CString::new(pipe.as_os_str().as_bytes()).unwrap();
        // SAFETY: a C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        symlink("/dev/zero", place.path().join("endless")).unwrap();
        for other in [pipe, place.path().join("endless"), place.path().to_owned()] {
            assert_eq!(open(&other).unwrap_err().to_string(), "it is not a regular file", "{}", other.display());
        }
    }

    #[test]
    fn what_is_larger_than_the_limit_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        fs::write(&path, [7; 100]).unwrap();
        let file = || open(&path).unwrap();
        assert_eq!(contents(&file(), 100).unwrap(), [7; 100]);
        assert_eq!(contents(&file(), 99).unwrap_err().to_string(), "it is larger than 99 bytes");
        assert_eq!(named(Path::new("/dev/zero"), 1 << 20).unwrap_err().to_string(), "it is larger than 1 MiB");
    }

    #[test]
    fn links_below_a_directory_stay_below_it() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("here"), b"").unwrap();
        symlink("/here", place.path().join("absolute")).unwrap();
        symlink("/etc/passwd", place.path().join("outside")).unwrap();
        let root = File::open(place.path()).unwrap();
        assert!(open_below(&root, Path::new("absolute"), Links::InRoot).is_ok());
        assert!(open_below(&root, Path::new("absolute"), Links::None).is_err());
        assert!(open_below(&root, Path::new("outside"), Links::InRoot).is_err());
        assert!(open_below(&root, Path::new("../etc/passwd"), Links::None).is_err());
    }

    #[test]
    fn a_directory_is_listed_up_to_a_limit() {
        let place = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            fs::write(place.path().join(name), name.repeat(7)).unwrap();
        }
        symlink("a", place.path().join("link")).unwrap();
        let directory = open_directory(place.path()).unwrap();
        let mut all = entries(&directory, 100).unwrap();
        all.sort_by(|one, other| one.0.cmp(&other.0));
        let described: Vec<_> = all.iter().map(|(name, it)| (name.to_str().unwrap(), it.is_file(), it.len())).collect();
        assert_eq!(described, [("a", true, 7), ("b", true, 7), ("c", true, 7), ("link", false, 1)]);
        assert_eq!(entries(&directory, 2).unwrap().len(), 2);
    }
}
