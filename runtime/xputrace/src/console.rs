//! The way to standard output, standard error and `-o`, and the only one.
//!
//! Writing fails as an error where nobody reads any more, and an interrupt gets through while a
//! slow reader is waited for.

use crate::interrupts;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a reader who does not read may hold up a run that was interrupted.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often a waiting writer looks for interrupts.
const GLANCE_MILLIS: libc::c_int = 20;

/// Says a thing to the user, on standard error. Where that cannot be written there is nobody to tell.
pub fn say(text: impl Display) {
    complain(format_args!("xputrace: {text}\n"));
}

/// Writes to standard error as it stands.
pub fn complain(text: impl Display) {
    static ABANDONED: AtomicBool = AtomicBool::new(false);
    if ABANDONED.load(Ordering::Relaxed) {
        return;
    }
    // In one piece: other processes write there too.
    let written = Outlet::stderr().and_then(|mut it| it.write_all(text.to_string().as_bytes()));
    ABANDONED.store(written.is_err(), Ordering::Relaxed);
}

/// Writes to standard output as it stands.
///
/// # Errors
/// Those of the output: nobody reads it, no room is left.
pub fn print(text: impl Display) -> io::Result<()> {
    Outlet::stdout()?.write_all(text.to_string().as_bytes())
}

/// A file descriptor to write to.
#[derive(Debug)]
pub struct Outlet(File);

impl Outlet {
    pub fn stdout() -> io::Result<Self> {
        Self::standard(io::stdout().as_fd())
    }

    pub fn stderr() -> io::Result<Self> {
        Self::standard(io::stderr().as_fd())
    }

    /// A file, which keeps what is in it until [`Outlet::truncate`].
    pub fn file(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        Ok(Self::standard(file.as_fd()).unwrap_or(Outlet(file)))
    }

    /// A pipe is opened anew, without blocking: that its readers are slow must not keep us from hearing
    /// an interrupt, and the descriptor itself is shared with the command.
    fn standard(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let shared = File::from(fd.try_clone_to_owned()?);
        let again = || {
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path).ok()
        };
        let is_pipe = shared.metadata()?.file_type().is_fifo();
        Ok(Outlet(is_pipe.then(again).flatten().unwrap_or(shared)))
    }

    /// Empties it, where it is a file on a disk.
    pub fn truncate(&self) -> io::Result<()> {
        if self.0.metadata()?.is_file() { self.0.set_len(0) } else { Ok(()) }
    }

    fn can_be_written(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one entry, which outlives the call.
        unsafe { libc::poll(&mut poll, 1, GLANCE_MILLIS) > 0 }
    }
}

impl Write for Outlet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut give_up = None;
        loop {
            if self.can_be_written() {
                match self.0.write(bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    written => return written,
                }
            }
            if interrupts::are_pending() && Instant::now() > *give_up.get_or_insert_with(|| Instant::now() + PATIENCE) {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "nobody reads it"));
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
