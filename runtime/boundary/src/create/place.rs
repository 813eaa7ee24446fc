//! Where a path leads, and what may be done there.

use super::creator::Creator;
use super::stream::Stream;
use crate::answer;
use crate::trust::may_lead;
use crate::user::Account;
use crate::walk::{self, DirectoryEntry, End, Nameless, below};
use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Where something is written.
#[derive(Debug)]
pub enum Destination {
    File(Place),
    Stream(Stream),
}

/// A file's directory, which is held open, and its name there.
#[derive(Debug)]
pub struct Place {
    pub(super) creator: Creator,
    pub(super) directory: File,
    pub(super) name: OsString,
    /// As the user wrote it.
    pub(super) path: PathBuf,
    /// The same without links.
    pub(super) true_path: PathBuf,
    /// What a new file has of the one that is there.
    pub(super) inherited: Option<Inherited>,
    /// Whether what is there counts as another user's, whoever owns it.
    pub(super) is_elsewhere: bool,
}

/// What a file passes on to the one that replaces it, if it is the creator's own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inherited {
    pub(super) mode: u32,
    pub(super) gid: u32,
}

/// What is at the end of a path, for who acts.
enum There {
    Nothing,
    Directory,
    /// A regular file of ours or root's.
    Ours(File, Metadata),
    /// One that counts as another user's.
    File(Metadata),
    /// A device, or a pipe or the like of ours or root's.
    Special(File),
    /// What is no file, of another user: a link, a pipe.
    InTheWay(Metadata),
}

impl There {
    fn of(file: Option<File>, is_elsewhere: bool) -> io::Result<Self> {
        let Some(file) = file else { return Ok(There::Nothing) };
        let about = file.metadata()?;
        let is_trusted = !is_elsewhere && may_lead(about.uid());
        Ok(match about.file_type() {
            it if it.is_dir() => There::Directory,
            it if it.is_file() && is_trusted => There::Ours(file, about),
            it if it.is_file() => There::File(about),
            it if is_trusted || it.is_char_device() && !is_elsewhere => There::Special(file),
            _ => There::InTheWay(about),
        })
    }
}

impl Destination {
    pub(super) fn find(creator: &Creator, path: &Path) -> io::Result<Self> {
        let _acting = creator.act()?;
        let mut entry = match walk::follow(path)? {
            End::Entry(entry) => entry,
            End::Nameless(end) => return Destination::nameless(creator, path, end),
        };
        creator.may_make_in(&entry.directory)?;
        match There::of(entry.there.take(), entry.is_elsewhere)? {
            There::Nothing => Destination::new_file(creator, entry, path, None),
            There::Directory => Err(io::Error::from_raw_os_error(libc::EISDIR)),
            There::Ours(file, about) => Destination::our_file(creator, entry, path, (file, &about)),
            There::File(about) => {
                may_write(&entry.directory, &entry.name)?;
                may_replace(&entry.directory, about.uid())?;
                Destination::new_file(creator, entry, path, None)
            }
            There::Special(file) => {
                may_write(&entry.directory, &entry.name)?;
                Stream::special(creator, path, file).map(Destination::Stream)
            }
            There::InTheWay(about) => {
                may_replace(&entry.directory, about.uid())?;
                Destination::new_file(creator, entry, path, None)
            }
        }
    }

    /// What procfs leads to is written as it is: there is no name by which another could take its place.
    fn nameless(creator: &Creator, path: &Path, Nameless { file, is_elsewhere }: Nameless) -> io::Result<Self> {
        match There::of(Some(file), is_elsewhere)? {
            There::Directory => Err(io::Error::from_raw_os_error(libc::EISDIR)),
            There::Ours(file, _) => Stream::in_place(creator, path, file).map(Destination::Stream),
            There::Special(file) => Stream::special(creator, path, file).map(Destination::Stream),
            There::Nothing | There::File(_) | There::InTheWay(_) => {
                let reason = "it is another user's, and can't be replaced by that path: name it by its own";
                Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
            }
        }
    }

    fn our_file(
        creator: &Creator,
        entry: DirectoryEntry,
        path: &Path,
        (file, about): (File, &Metadata),
    ) -> io::Result<Self> {
        may_write(&entry.directory, &entry.name)?;
        may_replace(&entry.directory, about.uid())?;
        if may_write(&entry.directory, OsStr::new(".")).is_err() {
            return Stream::in_place(creator, path, file).map(Destination::Stream);
        }
        let is_own = about.uid() == Account::current().uid;
        let inherited = is_own.then(|| Inherited { mode: about.mode() & 0o777, gid: about.gid() });
        Destination::new_file(creator, entry, path, inherited)
    }

    fn new_file(
        creator: &Creator,
        DirectoryEntry { directory, name, path: true_path, is_elsewhere, .. }: DirectoryEntry,
        path: &Path,
        inherited: Option<Inherited>,
    ) -> io::Result<Self> {
        may_write(&directory, OsStr::new("."))?;
        let (creator, path) = (creator.clone(), path.to_owned());
        Ok(Destination::File(Place { creator, directory, name, path, true_path, inherited, is_elsewhere }))
    }
}

impl Creator {
    /// Returns a place in an open directory. Whatever is there will be replaced, if it is no directory.
    pub fn place_in(&self, directory: File, name: OsString) -> Place {
        let (path, true_path) = (name.clone().into(), below(&directory, &name));
        Place { creator: self.clone(), directory, name, path, true_path, inherited: None, is_elsewhere: false }
    }
}

impl Place {
    /// Returns the path as the user wrote it.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether the user who acts may replace what another user has in a directory.
fn may_replace(directory: &File, owner: u32) -> io::Result<()> {
    let (about, uid) = (directory.metadata()?, Account::current().uid);
    match about.mode() & libc::S_ISVTX == 0 || [0, about.uid(), owner].contains(&uid) {
        true => Ok(()),
        false => {
            let reason = format!("what is there is user {owner}'s, and the directory lets only them replace it");
            Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
        }
    }
}

/// Whether the user who acts may write a file or directory, by its mode.
fn may_write(directory: &File, name: &OsStr) -> io::Result<()> {
    let name = CString::new(name.as_bytes())?;
    // Not libc's function: an older one asks for the real user.
    // SAFETY: an open directory and a C string.
    let may = answer(unsafe {
        libc::syscall(libc::SYS_faccessat2, directory.as_raw_fd(), name.as_ptr(), libc::W_OK, libc::AT_EACCESS)
    });
    // Before Linux 5.8 it is found out when the file is made.
    may.or_else(|it| if matches!(it.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) { Ok(()) } else { Err(it) })
}
