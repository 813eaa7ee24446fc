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
/// How long a line is kept back until a pipe has room for it.
const ROOM_PATIENCE: Duration = Duration::from_millis(200);
const ROOM_GLANCE: Duration = Duration::from_millis(1);
/// Bytes that are gathered before they are written.
const MOST_WAITING: usize = 16 * 1024;
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
    let written = Outlet::stderr().and_then(|it| Lines::new(it).print(text));
    ABANDONED.store(written.is_err(), Ordering::Relaxed);
}

/// Writes to standard output as it stands.
///
/// # Errors
/// Those of the output: nobody reads it, no room is left.
pub fn print(text: impl Display) -> io::Result<()> {
    Lines::new(Outlet::stdout()?).print(text)
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

    /// Waits until a pipe has room for a line that is longer than what Linux writes in one piece. A reader
    /// who leaves something in it is not waited for long.
    fn await_room(&self, bytes: usize) {
        let until = Instant::now() + ROOM_PATIENCE;
        while self.room().is_some_and(|it| it < bytes) && Instant::now() < until && !interrupts::are_pending() {
            std::thread::sleep(ROOM_GLANCE);
        }
    }

    /// Bytes that an empty pipe holds, 0 while there is something in it; `None` where it is no pipe.
    fn room(&self) -> Option<usize> {
        let mut queued: libc::c_int = 0;
        // SAFETY: a command that takes no pointer, and a request that fills an integer.
        let (capacity, asked) = unsafe {
            let fd = self.0.as_raw_fd();
            (libc::fcntl(fd, libc::F_GETPIPE_SZ), libc::ioctl(fd, libc::FIONREAD, &mut queued))
        };
        let capacity = usize::try_from(capacity).ok().filter(|_| asked == 0)?;
        Some(if queued == 0 { capacity } else { 0 })
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

/// Writes whole lines: where the command writes into the same pipe, its lines and ours stay apart.
///
/// Linux writes up to `PIPE_BUF` bytes into a pipe in one piece, and more where the pipe has room.
pub struct Lines {
    outlet: Outlet,
    waiting: Vec<u8>,
}

impl Lines {
    pub fn new(outlet: Outlet) -> Self {
        Lines { outlet, waiting: Vec::new() }
    }

    /// Writes a text at once.
    fn print(&mut self, text: impl Display) -> io::Result<()> {
        write!(self, "{text}")?;
        self.flush()
    }

    /// Empties it, where it is a file on a disk.
    pub fn truncate(&self) -> io::Result<()> {
        self.outlet.truncate()
    }

    /// Writes what there is up to here, in pieces that end with a line.
    fn write_until(&mut self, end: usize) -> io::Result<()> {
        let mut at = 0;
        while at < end {
            let piece = &self.waiting[at..end.min(at + piece_len(&self.waiting[at..end]))];
            if piece.len() > libc::PIPE_BUF {
                self.outlet.await_room(piece.len());
            }
            self.outlet.write_all(piece)?;
            at += piece.len();
        }
        self.waiting.drain(..end);
        Ok(())
    }
}

/// How much to write in one piece: as many whole lines as fit into `PIPE_BUF`, or one that does not.
fn piece_len(bytes: &[u8]) -> usize {
    let ends = |from: &[u8]| from.iter().position(|it| *it == b'\n').map(|it| it + 1);
    let short = &bytes[..bytes.len().min(libc::PIPE_BUF)];
    match short.iter().rposition(|it| *it == b'\n') {
        _ if bytes.len() <= libc::PIPE_BUF => bytes.len(),
        Some(last) => last + 1,
        None => ends(bytes).unwrap_or(bytes.len()),
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() >= MOST_WAITING
            && let Some(last) = self.waiting.iter().rposition(|it| *it == b'\n')
        {
            self.write_until(last + 1)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_until(self.waiting.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_lines() {
        let text = |lengths: &[usize]| lengths.iter().flat_map(|n| [vec![b'x'; n - 1], vec![b'\n']].concat()).collect();
        let len = |lengths: &[usize]| -> usize { piece_len(Vec::<u8>::as_slice(&text(lengths))) };
        assert_eq!((len(&[10, 20]), len(&[4000, 96]), len(&[4000, 97])), (30, 4096, 4000));
        assert_eq!((len(&[9000, 10]), len(&[10, 9000])), (9000, 10));
        assert_eq!(piece_len(&[b'x'; 5000]), 5000);
    }
}
