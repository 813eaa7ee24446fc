//! Opens files below a directory that others may change, by openat2(2): links can't lead elsewhere.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Opens a directory; `resolve` has bits of `RESOLVE_*`.
///
/// # Errors
/// The system's.
pub fn open_directory(from: &File, path: &Path, resolve: u64) -> io::Result<File> {
    open(from, path, libc::O_RDONLY | libc::O_DIRECTORY, resolve)
}

/// Opens a file to read it, likewise. It does not wait, whatever the file is.
///
/// # Errors
/// The system's.
pub fn open_file(from: &File, path: &Path, resolve: u64) -> io::Result<File> {
    open(from, path, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY, resolve)
}

fn open(from: &File, path: &Path, flags: i32, resolve: u64) -> io::Result<File> {
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
