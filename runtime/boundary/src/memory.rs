//! Files in memory, without a name.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::PathBuf;

/// A file that only we have, and a child that inherits it.
#[derive(Debug)]
pub struct MemoryFile(pub(crate) File);

impl MemoryFile {
    /// # Errors
    /// The system refuses it.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a C string; the new descriptor is ours.
        unsafe {
            match libc::memfd_create(c"xputrace".as_ptr(), libc::MFD_CLOEXEC) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(MemoryFile(File::from_raw_fd(fd))),
            }
        }
    }

    /// Creates it with these contents.
    ///
    /// # Errors
    /// As for [`MemoryFile::new`], or there is no memory.
    pub fn with(bytes: &[u8]) -> io::Result<Self> {
        let mut file = MemoryFile::new()?;
        file.0.write_all(bytes)?;
        file.0.rewind()?;
        Ok(file)
    }

    /// Returns the path by which we open it; the child that inherits it, too.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    /// Returns the file itself.
    pub fn file(&self) -> &File {
        &self.0
    }

    /// Returns its contents, of which there are `most_bytes` at most.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&mut self, most_bytes: u64) -> io::Result<Vec<u8>> {
        self.0.rewind()?;
        let mut bytes = Vec::new();
        (&self.0).take(most_bytes).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}
