//! Runs a program as a user, for a limited time, with files in memory.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A user, and their group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
}

/// How long a program may run.
#[derive(Clone, Copy, Debug)]
pub struct Limit<'a> {
    pub within: Duration,
    /// Set when nobody wants its result any more.
    pub is_given_up: &'a AtomicBool,
}

/// Why a program did not end by itself.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("it can't be run: {0}")]
    System(#[from] io::Error),
    #[error("it did not end within {} s", .0.as_secs())]
    TooLong(Duration),
    #[error("the run is over")]
    GivenUp,
}

/// How often to look whether a result is still wanted.
const LOOKS_EVERY: Duration = Duration::from_millis(50);
/// Likewise, where Linux doesn't tell when the program ends (before 5.3).
const ASKS_EVERY: Duration = Duration::from_millis(5);
/// More than compilers say.
const MOST_SAID_BYTES: u64 = 16 << 20;

/// Whether we may become other users.
fn is_root() -> bool {
    // SAFETY: cannot fail, and only returns a number.
    unsafe { libc::geteuid() == 0 }
}

/// Runs a program with an empty environment; returns how it ended and what it said. Root becomes the user of the account;
/// others must be that user. The program also gets `files`, as `/proc/self/fd/N`.
pub(crate) fn run(
    command: &mut Command,
    files: &[&MemoryFile],
    account: Account,
    limit: Limit<'_>,
) -> Result<(ExitStatus, String), RunError> {
    let mut said = MemoryFile::new()?;
    command.env_clear().stdin(Stdio::null()).stdout(said.0.try_clone()?).stderr(said.0.try_clone()?);
    // Ctrl-C is for us, not for it.
    command.process_group(0);
    if is_root() {
        // The standard library gives up all other groups too.
        command.gid(account.gid).uid(account.uid);
    }
    let kept: Vec<RawFd> = files.iter().map(|it| it.0.as_raw_fd()).collect();
    // SAFETY: between fork and exec it only makes system calls, and allocates nothing.
    unsafe { command.pre_exec(move || prepare(&kept)) };
    let mut child = command.spawn()?;
    let status = wait(&mut child, limit)?;
    Ok((status, String::from_utf8_lossy(&said.read(MOST_SAID_BYTES)?).into_owned()))
}

/// In the child: it ends with us, gets no rights by its file, and keeps these descriptors.
fn prepare(kept: &[RawFd]) -> io::Result<()> {
    // SAFETY: numbers only; the descriptors are open in the child too.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        for fd in kept {
            if libc::fcntl(*fd, libc::F_SETFD, 0) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(())
}

fn wait(child: &mut Child, limit: Limit<'_>) -> Result<ExitStatus, RunError> {
    let until = Instant::now() + limit.within;
    let pidfd = pidfd(child.id());
    loop {
        match &pidfd {
            Some(it) => wait_for(it, LOOKS_EVERY),
            None => sleep(ASKS_EVERY),
        }
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let error = match limit.is_given_up.load(Ordering::Acquire) {
            true => RunError::GivenUp,
            false if Instant::now() >= until => RunError::TooLong(limit.within),
            false => continue,
        };
        // With all that it has started: it leads a group of its own.
        // SAFETY: numbers only; the child is not waited for yet, so that its number is nobody else's.
        unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
        child.wait()?;
        return Err(error);
    }
}

fn pidfd(pid: u32) -> Option<OwnedFd> {
    // SAFETY: the new descriptor is ours.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// Waits until a descriptor is readable, or for this long.
fn wait_for(fd: &OwnedFd, within: Duration) {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live structure.
    unsafe { libc::poll(&raw mut poll, 1, within.as_millis() as i32) };
}

/// A file without a name, that only we and our child have.
pub(crate) struct MemoryFile(File);

impl MemoryFile {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: a C string; the new descriptor is ours.
        unsafe {
            match libc::memfd_create(c"xputrace".as_ptr(), libc::MFD_CLOEXEC) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(MemoryFile(File::from_raw_fd(fd))),
            }
        }
    }

    pub(crate) fn with(bytes: &[u8]) -> io::Result<Self> {
        let mut file = MemoryFile::new()?;
        file.0.write_all(bytes)?;
        file.0.rewind()?;
        Ok(file)
    }

    /// Returns the path by which the child opens it.
    pub(crate) fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }

    /// Returns its contents, of which there are `most_bytes` at most.
    pub(crate) fn read(&mut self, most_bytes: u64) -> io::Result<Vec<u8>> {
        self.0.rewind()?;
        let mut bytes = Vec::new();
        (&self.0).take(most_bytes).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}
