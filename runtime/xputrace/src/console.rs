//! The only way to standard output, standard error and `-o`.
//!
//! Writing to a closed pipe is an error, and interrupts work while a slow reader is waited for.

use crate::interrupts;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use xputrace_boundary::create::{Destination, FileAccess, Stream};
use xputrace_model::diagnostic::{Diagnostic, Severity, Sources};
use xputrace_model::text::printed;

/// How long a stalled reader may delay an interrupted run.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a pipe's reader is waited for without a word.
const SAID_AFTER: Duration = Duration::from_secs(1);
/// How long a line is held back until a pipe has room for it.
const ROOM_PATIENCE: Duration = Duration::from_millis(200);
const ROOM_GLANCE: Duration = Duration::from_millis(1);
/// Size of the write buffer.
const MOST_WAITING: usize = 16 * 1024;
/// How often a waiting writer checks for interrupts.
const GLANCE_MILLIS: libc::c_int = 20;

/// Prints a message on standard error; ignores a failure, which could not be reported. It may have texts of programs in
/// it, which can't control the terminal.
pub fn say(text: impl Display) {
    complain(format_args!("xputrace: {}\n", printed(&text.to_string())));
}

/// Writes to standard error as is.
pub fn complain(text: impl Display) {
    static ABANDONED: AtomicBool = AtomicBool::new(false);
    if ABANDONED.load(Ordering::Relaxed) {
        return;
    }
    // In a single write: other processes write there too.
    let written = Outlet::stderr().and_then(|it| Lines::new(it).print(text));
    ABANDONED.store(written.is_err(), Ordering::Relaxed);
}

/// Prints diagnostics to standard error; warnings only on request.
pub fn diagnose(diagnostics: &[Diagnostic], sources: &Sources, errors_only: bool) {
    let shown: Vec<Diagnostic> =
        diagnostics.iter().filter(|it| !errors_only || it.severity == Severity::Error).cloned().collect();
    if !shown.is_empty() {
        let color = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        complain(xputrace_render::diagnostics(&shown, sources, color));
    }
}

/// Writes to standard output as is.
///
/// # Errors
/// The output is closed, or no room is left.
pub fn print(text: impl Display) -> io::Result<()> {
    Lines::new(Outlet::stdout()?).print(text)
}

/// Opens what is written as it is. Says what is waited for if a pipe's reader takes its time.
///
/// # Errors
/// The system's, or nobody reads a pipe.
pub fn open(stream: &Stream) -> io::Result<File> {
    let mut is_said = false;
    stream.open(|waited| {
        if waited >= SAID_AFTER && !std::mem::replace(&mut is_said, true) {
            say(format_args!("waiting for somebody to read from the pipe {}", stream.path().display()));
        }
        waited < PATIENCE || !interrupts::are_pending()
    })
}

/// A file descriptor to write to.
#[derive(Debug)]
pub struct Outlet(File);

impl Outlet {
    /// # Errors
    /// It was closed when the program started.
    pub fn stdout() -> io::Result<Self> {
        // Results would vanish without a word.
        if xputrace_linux::was_closed(libc::STDOUT_FILENO) {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        Self::standard(io::stdout().as_fd())
    }

    pub fn stderr() -> io::Result<Self> {
        Self::standard(io::stderr().as_fd())
    }

    /// Begins a file: what is there is replaced now, and what is written can be read at once. If it can't be replaced any
    /// more, `misplaced` hears so, and where the file is.
    ///
    /// # Errors
    /// The system's, or nobody reads a pipe.
    pub fn begin(destination: Destination, misplaced: impl FnOnce(io::Error)) -> io::Result<Self> {
        let file = match destination {
            Destination::File(place) => {
                let draft = place.draft(FileAccess::Usual)?;
                let file = draft.file()?;
                draft.publish().unwrap_or_else(|error| {
                    misplaced(error);
                    file
                })
            }
            Destination::Stream(stream) => open(&stream)?,
        };
        Ok(Self::standard(file.as_fd()).unwrap_or(Outlet(file)))
    }

    /// Opens a pipe anew, without blocking: a slow reader must not keep us from hearing an
    /// interrupt, and the descriptor itself is shared with the command.
    fn standard(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let shared = File::from(fd.try_clone_to_owned()?);
        let again = || {
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path).ok()
        };
        let is_pipe = shared.metadata()?.file_type().is_fifo();
        Ok(Outlet(is_pipe.then(again).flatten().unwrap_or(shared)))
    }

    /// Waits until a pipe has room for a line that is longer than Linux writes atomically, but not
    /// long if the reader does not read.
    fn await_room(&self, bytes: usize) {
        let until = Instant::now() + ROOM_PATIENCE;
        while self.room().is_some_and(|it| it < bytes) && Instant::now() < until && !interrupts::are_pending() {
            std::thread::sleep(ROOM_GLANCE);
        }
    }

    /// Returns the capacity of an empty pipe, 0 if the pipe is not empty, `None` if it is not a
    /// pipe.
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

/// Writes whole lines, so that they stay whole even if the command writes into the same pipe.
///
/// Linux writes up to `PIPE_BUF` bytes to a pipe atomically, and more if the pipe has room.
pub struct Lines {
    outlet: Outlet,
    waiting: Vec<u8>,
    /// How many of the waiting bytes are whole lines. A line may take many writes, so it is not searched again at each.
    whole: usize,
}

impl Lines {
    pub fn new(outlet: Outlet) -> Self {
        Lines { outlet, waiting: Vec::new(), whole: 0 }
    }

    /// Writes a text immediately.
    fn print(&mut self, text: impl Display) -> io::Result<()> {
        write!(self, "{text}")?;
        self.flush()
    }

    /// Writes everything up to `end`, in pieces that end with a line.
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
        self.whole = self.whole.saturating_sub(end);
        Ok(())
    }
}

/// Returns the length of the next piece: as many whole lines as fit into `PIPE_BUF`, or one longer
/// line.
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
        if let Some(last) = bytes.iter().rposition(|it| *it == b'\n') {
            self.whole = self.waiting.len() + last + 1;
        }
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() >= MOST_WAITING && self.whole > 0 {
            self.write_until(self.whole)?;
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
