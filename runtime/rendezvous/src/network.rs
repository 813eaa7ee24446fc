//! Network namespaces: an abstract socket name exists in one of them.

use super::socket::checked;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// A network namespace, kept from going away.
#[derive(Debug)]
pub(super) struct Network {
    file: File,
    pub(super) id: NetworkId,
}

/// Device and inode of the namespace's file (namespaces(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct NetworkId(u64, u64);

impl Network {
    /// # Errors
    /// The process has ended, or is not ours to look at.
    pub(super) fn of_process(pid: u32) -> io::Result<Network> {
        Network::open(&format!("/proc/{pid}/ns/net"))
    }

    pub(super) fn of_this_thread() -> io::Result<Network> {
        Network::open("/proc/thread-self/ns/net")
    }

    fn open(path: &str) -> io::Result<Network> {
        let file = File::open(path)?;
        let it = file.metadata()?;
        Ok(Network { file, id: NetworkId(it.dev(), it.ino()) })
    }

    /// Moves the calling thread there, for good.
    ///
    /// # Errors
    /// This takes CAP_SYS_ADMIN.
    pub(super) fn enter(&self) -> io::Result<()> {
        // SAFETY: a namespace's descriptor.
        checked(unsafe { libc::setns(self.file.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
    }
}
