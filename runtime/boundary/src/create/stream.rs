//! What is written as it is: it is no regular file, or can't be replaced.

use super::creator::Creator;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What is not replaced, but written as it is.
#[derive(Debug)]
pub struct Stream {
    creator: Creator,
    /// As the user wrote it.
    path: PathBuf,
    kind: StreamKind,
}

#[derive(Debug)]
enum StreamKind {
    /// One of our descriptors.
    Descriptor(File),
    /// A device or pipe of ours or root's, held open as a place only.
    Special(File),
    /// Likewise a file of ours or root's in a directory that the creator can't write.
    InPlace(File),
}

/// How long a pipe's reader may take to open it.
const READER_COMES_WITHIN: Duration = Duration::from_secs(10);
const LOOKS_EVERY: Duration = Duration::from_millis(10);

impl Stream {
    pub(super) fn special(creator: &Creator, path: &Path, place: File) -> io::Result<Self> {
        Stream::of(creator, path, StreamKind::Special(place))
    }

    pub(super) fn in_place(creator: &Creator, path: &Path, place: File) -> io::Result<Self> {
        Stream::of(creator, path, StreamKind::InPlace(place))
    }

    fn of(creator: &Creator, path: &Path, kind: StreamKind) -> io::Result<Self> {
        // Root in a user's place makes files, and writes no others.
        match creator.stands_in() {
            true => Err(io::ErrorKind::PermissionDenied.into()),
            false => Ok(Stream { creator: creator.clone(), path: path.to_owned(), kind }),
        }
    }

    /// Returns our descriptor that a path like `/dev/stdout` or `/dev/fd/3` names.
    pub(super) fn own_descriptor(creator: &Creator, path: &Path) -> Option<io::Result<Self>> {
        let number = match path.as_os_str().as_bytes() {
            b"/dev/stdout" => 1,
            b"/dev/stderr" => 2,
            other => {
                let number = [&b"/dev/fd/"[..], b"/proc/self/fd/"].iter().find_map(|it| other.strip_prefix(*it))?;
                std::str::from_utf8(number).ok()?.parse().ok()?
            }
        };
        // SAFETY: a number; the new descriptor is ours.
        let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
        Some(match copy {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: fcntl just returned it; nothing else owns it.
            fd => Stream::of(creator, path, StreamKind::Descriptor(unsafe { File::from_raw_fd(fd) })),
        })
    }

    /// Returns the path as the user wrote it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens it to write to it, with the creator's rights. A pipe waits for its reader: as long as `goes_on` says so, which
    /// hears now and then how long that was, and 10 s at most.
    ///
    /// # Errors
    /// The system's, or nobody reads the pipe.
    pub fn open(&self, mut goes_on: impl FnMut(Duration) -> bool) -> io::Result<File> {
        let place = match &self.kind {
            StreamKind::Descriptor(file) => return file.try_clone(),
            StreamKind::InPlace(place) => return self.reopen(place, File::options().write(true).truncate(true)),
            StreamKind::Special(place) => place,
        };
        let begin = Instant::now();
        loop {
            let mut options = File::options();
            match self.reopen(place, options.write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)) {
                Ok(file) => return blocking(file),
                Err(error) if error.raw_os_error() == Some(libc::ENXIO) && is_pipe(place) => {
                    let waited = begin.elapsed();
                    if waited >= READER_COMES_WITHIN || !goes_on(waited) {
                        let reason = format!("it is a pipe that nobody has opened to read for {} s", waited.as_secs());
                        return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
                    }
                    std::thread::sleep(LOOKS_EVERY);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn reopen(&self, place: &File, options: &std::fs::OpenOptions) -> io::Result<File> {
        let _acting = self.creator.act()?;
        options.open(format!("/proc/self/fd/{}", place.as_raw_fd()))
    }
}

fn is_pipe(place: &File) -> bool {
    place.metadata().is_ok_and(|it| it.file_type().is_fifo())
}

/// Has writes wait for a reader again.
fn blocking(file: File) -> io::Result<File> {
    // SAFETY: numbers only.
    let set = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, 0) };
    if set == 0 { Ok(file) } else { Err(io::Error::last_os_error()) }
}
