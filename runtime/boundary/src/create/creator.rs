//! Whose files they are.

use super::place::{Destination, Place};
use super::stream::Stream;
use crate::trust::Changers;
use crate::user::{Account, ActingAs};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Who creates files: files are theirs, and are made where they may make them.
#[derive(Clone, Debug)]
pub struct Creator {
    account: Account,
    groups: Vec<u32>,
    root: Root,
}

/// What root does for a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Root {
    Nothing,
    /// Creates what this user may not, where only root can write.
    MayStandIn,
    /// Does so now.
    StandsIn,
}

/// Who may read and change a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// The umask decides, as for other programs' files.
    Usual,
    /// Its owner alone.
    Private,
    /// Others may read and execute it.
    Program,
}

impl FileAccess {
    pub(super) fn mode(self) -> u32 {
        match self {
            FileAccess::Usual => 0o666,
            FileAccess::Private => 0o600,
            FileAccess::Program => 0o755,
        }
    }
}

impl Creator {
    /// Creates files as a user, if we are root; else they are ours anyway.
    pub fn of(account: Account, groups: Vec<u32>) -> Self {
        Creator { account, groups, root: Root::Nothing }
    }

    /// Has root create what the user may not, in directories where root alone can write: under sudo that is what the
    /// user asked for, and nobody can have prepared anything there.
    pub fn or_root(self) -> Self {
        Creator { root: Root::MayStandIn, ..self }
    }

    /// Creates files as the user that this process is.
    pub fn own() -> Self {
        Creator::of(Account::current(), Vec::new())
    }

    /// Returns the user whose files they are.
    pub fn account(&self) -> Account {
        self.account
    }

    /// Takes the user's rights for a while.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn act(&self) -> io::Result<ActingAs> {
        ActingAs::user(self.account, &self.groups)
    }

    /// Finds out where a path leads, and whether it can be written there. Changes nothing.
    ///
    /// # Errors
    /// The system refuses it, it is a directory, or a directory in the path is another user's link.
    pub fn destination(&self, path: &Path) -> io::Result<Destination> {
        match Stream::own_descriptor(self, path) {
            Some(stream) => stream.map(Destination::Stream),
            None => self.or_as_root(|it| Destination::find(it, path)),
        }
    }

    /// Finds the place of a file.
    ///
    /// # Errors
    /// As for [`Creator::destination`], or it is no regular file.
    pub fn place(&self, path: &Path) -> io::Result<Place> {
        match self.destination(path)? {
            Destination::File(place) => Ok(place),
            Destination::Stream(_) => Err(io::Error::other("it is not a regular file")),
        }
    }

    /// Writes a whole file.
    ///
    /// # Errors
    /// As for [`Creator::destination`], or it can't be written.
    pub fn write(&self, path: &Path, bytes: &[u8], access: FileAccess) -> io::Result<()> {
        match self.destination(path)? {
            Destination::File(place) => {
                let mut draft = place.draft(access)?;
                draft.write_all(bytes)?;
                draft.finish()
            }
            Destination::Stream(stream) => stream.open(|_| true)?.write_all(bytes),
        }
    }

    /// Does something as the user and, if they may not and root may in their place, as root. What is done asks
    /// [`Creator::may_make_in`] before it changes a directory.
    pub(super) fn or_as_root<T>(&self, act: impl Fn(&Creator) -> io::Result<T>) -> io::Result<T> {
        match act(self) {
            Err(error) if self.root == Root::MayStandIn && error.kind() == io::ErrorKind::PermissionDenied => {
                let root = Creator { root: Root::StandsIn, ..Creator::own() };
                let refused = |_| io::Error::new(error.kind(), format!("{error}, as user {}", self.account.uid));
                act(&root).map_err(refused)
            }
            answer => answer,
        }
    }

    /// Whether it may try to make something in a directory: root in a user's place does so where nobody else can.
    pub(super) fn may_make_in(&self, directory: &File) -> io::Result<()> {
        match self.stands_in() && !Changers::of(directory)?.are_among(&[]) {
            true => Err(io::ErrorKind::PermissionDenied.into()),
            false => Ok(()),
        }
    }

    /// Whether it is root in a user's place.
    pub(super) fn stands_in(&self) -> bool {
        self.root == Root::StandsIn
    }
}
