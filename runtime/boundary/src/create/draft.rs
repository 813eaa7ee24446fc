//! A file while it is written.

use super::creator::FileAccess;
use super::place::{Inherited, Place};
use crate::answer;
use crate::trust::may_lead;
use crate::walk::{self, below};
use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What a file's group may do, as bits of its mode.
const OF_GROUP: u32 = 0o070;

/// A file that is being written.
#[derive(Debug)]
pub struct Draft {
    file: File,
    name: OsString,
    place: Place,
    is_kept: bool,
}

impl Place {
    /// Begins the file that is to be there. A file of the creator's that it replaces passes its group on, if the creator
    /// may give it, and its mode, unless the new one's is said by `access`.
    ///
    /// # Errors
    /// The system's.
    pub fn draft(self, access: FileAccess) -> io::Result<Draft> {
        let acting = self.creator.act()?;
        let mut prefix = self.name.clone();
        prefix.push(".");
        // Never more than it will have: who has opened it keeps that.
        let mode = access.mode() & self.inherited.map_or(0o777, |it| it.mode & !OF_GROUP);
        // The directory is the open one, whatever its name is now.
        let named = tempfile::Builder::new().prefix(&prefix).suffix(".part").make_in("/", |path| {
            let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
            walk::openat(&self.directory, path.file_name().unwrap_or_default(), flags, mode)
        })?;
        let (file, path) = named.into_parts();
        let name = path.file_name().unwrap_or_default().to_owned();
        // From here on it is removed by this, with the rights that it takes.
        path.keep().map_err(|it| it.error)?;
        let draft = Draft { file, name, place: self, is_kept: false };
        draft.inherit(access)?;
        drop(acting);
        Ok(draft)
    }
}

impl Draft {
    /// Gives it its group, and then its mode.
    fn inherit(&self, access: FileAccess) -> io::Result<()> {
        let inherited = self.place.inherited;
        let mode = match access {
            FileAccess::Usual => inherited.map(|it| it.mode),
            // Whatever the umask is.
            FileAccess::Private | FileAccess::Program => Some(access.mode()),
        };
        let Some(mode) = mode else { return Ok(()) };
        let has_group = inherited.is_none_or(|it| has_group(&self.file, it));
        // Another group gets what everybody has, and nothing that was meant for the one before.
        let mode = if has_group { mode } else { mode & (!OF_GROUP | mode << 3) };
        self.file.set_permissions(Permissions::from_mode(mode))
    }

    /// Returns the path of the draft itself, where links have led.
    pub fn path(&self) -> PathBuf {
        self.place.true_path.with_file_name(&self.name)
    }

    /// Returns the file's final path, as the user wrote it.
    pub fn target(&self) -> &Path {
        &self.place.path
    }

    /// Keeps the draft under its own name, should it never be finished.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Returns the open file.
    ///
    /// # Errors
    /// The system has no further descriptor.
    pub fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Puts the file in its place, and in place of what is there.
    ///
    /// # Errors
    /// The system's. Then the draft stays, and the error says where it is.
    pub fn finish(mut self) -> io::Result<()> {
        self.take_place().map(drop)
    }

    /// Does so before it is whole; returns the file for the rest.
    ///
    /// # Errors
    /// As for [`Draft::finish`].
    pub fn publish(mut self) -> io::Result<File> {
        let file = self.file()?;
        Ok(self.take_place()?.unwrap_or(file))
    }

    /// Returns the file that is there, if it can only be written.
    fn take_place(&mut self) -> io::Result<Option<File>> {
        let taken = self.place.creator.act().and_then(|_acting| {
            match rename(&self.place.directory, &self.name, &self.place.name) {
                // What is there is mounted by itself, and can't be replaced.
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => self.copy_into_place().map(Some),
                answer => answer.map(|()| None),
            }
        });
        // If it is in its place, nothing is left under its own name; else it is all that is left.
        self.is_kept = !matches!(taken, Ok(Some(_)));
        let kept = |it: io::Error| {
            io::Error::new(it.kind(), format!("{it}; what was written is in {}", self.path().display()))
        };
        taken.map_err(kept)
    }

    fn copy_into_place(&mut self) -> io::Result<File> {
        let options = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let path = below(&self.place.directory, &self.place.name);
        let mut there = File::options().write(true).custom_flags(options).open(path)?;
        let about = there.metadata()?;
        if !about.is_file() || self.place.is_elsewhere || !may_lead(about.uid()) {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        there.set_len(0)?;
        self.file.rewind()?;
        io::copy(&mut self.file, &mut there)?;
        Ok(there)
    }
}

impl Write for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_kept
            && let Ok(_acting) = self.place.creator.act()
        {
            let _ = remove(&self.place.directory, &self.name);
        }
    }
}

/// Gives a file its group, if that is not its own; returns whether it has it.
fn has_group(file: &File, Inherited { gid, .. }: Inherited) -> bool {
    /// `-1` of fchown(2): leaves the owner as it is.
    const SAME: u32 = u32::MAX;
    // SAFETY: numbers only.
    file.metadata().is_ok_and(|it| it.gid() == gid) || unsafe { libc::fchown(file.as_raw_fd(), SAME, gid) } == 0
}

fn rename(directory: &File, from: &OsStr, to: &OsStr) -> io::Result<()> {
    let (from, to, directory) = (CString::new(from.as_bytes())?, CString::new(to.as_bytes())?, directory.as_raw_fd());
    // SAFETY: an open directory and two C strings.
    answer(unsafe { libc::renameat(directory, from.as_ptr(), directory, to.as_ptr()) })
}

fn remove(directory: &File, name: &OsStr) -> io::Result<()> {
    let name = CString::new(name.as_bytes())?;
    // SAFETY: an open directory and a C string.
    answer(unsafe { libc::unlinkat(directory.as_raw_fd(), name.as_ptr(), 0) })
}
