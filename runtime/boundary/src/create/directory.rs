//! Directories and links.

use super::creator::Creator;
use crate::read::{self, Links};
use crate::trust::Changers;
use crate::user::Account;
use crate::walk::{self, DirectoryEntry, End, below};
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

impl Creator {
    /// Makes a directory, and those above it that are missing.
    ///
    /// # Errors
    /// The system's, or a link of another user is in the way.
    pub fn directory(&self, path: &Path) -> io::Result<()> {
        let mut above: Vec<&Path> = path.ancestors().collect();
        while let Some(directory) = above.pop() {
            self.or_as_root(|it| it.make_directory(directory))?;
        }
        Ok(())
    }

    /// Makes a directory if it is missing.
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        let _acting = self.act()?;
        let (directory, name, there) = match walk::follow(path) {
            Ok(End::Entry(DirectoryEntry { directory, name, there, .. })) => (directory, name, there),
            Ok(End::Nameless(end)) => return be_directory(&end.file),
            // The root, `.` and `..` end in no name.
            Err(_) => return walk::enter(path).map(drop),
        };
        if let Some(there) = there {
            return be_directory(&there);
        }
        self.may_make_in(&directory)?;
        made(DirBuilder::new().create(below(&directory, &name)))
    }

    /// Makes a link, in place of what is there if that is no directory.
    ///
    /// # Errors
    /// The system's, or a link of another user is in the way.
    pub fn link(&self, target: &Path, path: &Path) -> io::Result<()> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        self.or_as_root(|it| it.make_link(target, path.parent().unwrap_or(Path::new("")), name))
    }

    fn make_link(&self, target: &Path, parent: &Path, name: &OsStr) -> io::Result<()> {
        let _acting = self.act()?;
        let directory = walk::enter(parent)?;
        self.may_make_in(&directory)?;
        let at = below(&directory, name);
        match fs::remove_file(&at) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => std::os::unix::fs::symlink(target, at),
        }
    }

    /// Opens a directory of the user's below another, in which nobody else can write; makes it if it is missing.
    ///
    /// # Errors
    /// The system's, or what is there is something else, such as a directory that another user has made.
    pub fn own_directory(&self, parent: &File, name: &OsStr, mode: u32) -> io::Result<File> {
        let _acting = self.act()?;
        made(DirBuilder::new().mode(mode).create(below(parent, name)))?;
        let directory = read::open_directory_below(parent, Path::new(name), Links::None)?;
        let (about, user) = (directory.metadata()?, Account::current());
        if about.uid() != user.uid || !Changers::of(&directory)?.are_among(&[user]) {
            let reason = format!("{} is not a directory that only user {} can write", name.display(), user.uid);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
        if about.mode() & mode != mode {
            // It was created under a restrictive umask.
            directory.set_permissions(Permissions::from_mode(mode))?;
        }
        Ok(directory)
    }

    /// Removes a directory in which nobody but the user can write, and the one file in it.
    ///
    /// # Errors
    /// The system's, or it is another's, or there is more in it.
    pub fn remove_own_directory(&self, path: &Path, file: &OsStr) -> io::Result<()> {
        let _acting = self.act()?;
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = walk::enter(path.parent().unwrap_or(Path::new("")))?;
        let directory = read::open_directory_below(&parent, Path::new(name), Links::None)?;
        if !Changers::of(&directory)?.are_among(&[Account::current()]) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        fs::remove_file(below(&directory, file))?;
        fs::remove_dir(below(&parent, name))
    }

    /// Opens a directory as [`Creator::own_directory`] does, whose name nobody else can take: the first that begins with
    /// `prefix` and is the user's, or a new one.
    ///
    /// # Errors
    /// The system's.
    pub fn own_random_directory(&self, parent: &File, prefix: &str, mode: u32) -> io::Result<(OsString, File)> {
        let _acting = self.act()?;
        let here = below(parent, OsStr::new("."));
        let names = fs::read_dir(&here)?.flatten().map(|it| it.file_name());
        let mut earlier = names.filter(|it| it.as_bytes().starts_with(prefix.as_bytes()));
        if let Some(found) = earlier.find_map(|name| {
            let directory = self.own_directory(parent, &name, mode).ok()?;
            Some((name, directory))
        }) {
            return Ok(found);
        }
        let made =
            tempfile::Builder::new().prefix(prefix).permissions(Permissions::from_mode(mode)).tempdir_in(&here)?;
        let name = made.keep().file_name().unwrap_or_default().to_owned();
        let directory = self.own_directory(parent, &name, mode)?;
        Ok((name, directory))
    }
}

fn be_directory(there: &File) -> io::Result<()> {
    if there.metadata()?.is_dir() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENOTDIR)) }
}

/// Takes what was there already for made.
fn made(answer: io::Result<()>) -> io::Result<()> {
    answer.or_else(|it| if it.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(it) })
}
