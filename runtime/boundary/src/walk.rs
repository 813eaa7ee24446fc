//! Follows a path component by component, and a link only if it is root's or of the user who acts.
//!
//! A relative path leads through directories that others may change: a link of theirs in it could lead anywhere. (Linux
//! itself does so in directories like `/tmp` alone: sysctl `fs.protected_symlinks`.)

use crate::user::Account;
use std::collections::VecDeque;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// As Linux allows in a path.
const MOST_LINKS: usize = 40;

/// Where a path leads: a name in a directory that is held open, so that nothing above it can be exchanged any more.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) directory: File,
    pub(crate) name: OsString,
    /// What is there: no link, or one of another user that is not followed; `None` if nothing is.
    pub(crate) there: Option<File>,
}

/// Follows a path to its last name, which need not exist.
///
/// # Errors
/// A directory doesn't exist or can't be entered, the path ends in no name, or a link in it is another user's.
pub(crate) fn follow(path: &Path) -> io::Result<Found> {
    let mut at = directory(Path::new(if path.is_absolute() { "/" } else { "." }))?;
    let mut rest: VecDeque<OsString> = names(path).collect();
    let mut n_links = 0;
    while let Some(name) = rest.pop_front() {
        let there = match entry(&at, &name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && rest.is_empty() => None,
            there => Some(there?),
        };
        let is_last = rest.is_empty();
        if let Some(link) = there.as_ref().filter(|it| is_link(it) && !(is_last && is_others(it))) {
            n_links += 1;
            if n_links > MOST_LINKS {
                return Err(io::Error::from_raw_os_error(libc::ELOOP));
            }
            let to = target(link, &name)?;
            if to.is_absolute() {
                at = directory(Path::new("/"))?;
            }
            names(&to).rev().for_each(|it| rest.push_front(it));
        } else if is_last {
            return Ok(Found { directory: at, name, there });
        } else {
            at = entry_as_directory(&at, &name)?;
        }
    }
    Err(io::Error::from_raw_os_error(libc::EISDIR))
}

/// Opens a directory as a place, likewise.
///
/// # Errors
/// As for [`follow`], or it is no directory.
pub(crate) fn enter(path: &Path) -> io::Result<File> {
    // Any name in it will do.
    follow(&path.join("x")).map(|it| it.directory)
}

fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    let name = |it| match it {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    path.components().filter_map(name).collect::<Vec<_>>().into_iter()
}

fn directory(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(path)
}

fn entry(directory: &File, name: &OsStr) -> io::Result<File> {
    openat(directory, name, libc::O_PATH | libc::O_NOFOLLOW, 0)
}

fn entry_as_directory(at: &File, name: &OsStr) -> io::Result<File> {
    openat(at, name, libc::O_PATH | libc::O_NOFOLLOW | libc::O_DIRECTORY, 0)
}

/// Opens a name in a directory; `mode` is that of a file that this creates.
pub(crate) fn openat(directory: &File, name: &OsStr, flags: i32, mode: u32) -> io::Result<File> {
    let name = CString::new(name.as_bytes())?;
    // SAFETY: an open directory and a C string; the new descriptor is ours.
    unsafe {
        match libc::openat(directory.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC, mode) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(File::from_raw_fd(fd)),
        }
    }
}

fn is_link(file: &File) -> bool {
    file.metadata().is_ok_and(|it| it.is_symlink())
}

fn is_others(file: &File) -> bool {
    !file.metadata().is_ok_and(|it| is_trusted(it.uid()))
}

/// Whether what belongs to this user may lead us somewhere.
pub(crate) fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == Account::current().uid
}

/// Returns where a link leads.
fn target(link: &File, name: &OsStr) -> io::Result<PathBuf> {
    let owner = link.metadata()?.uid();
    if !is_trusted(owner) {
        let reason = format!("{} is a link of user {owner}, and is not followed", name.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    let mut path = vec![0; libc::PATH_MAX as usize];
    // SAFETY: an empty C string names the link itself, and the buffer has the length given.
    let n = unsafe { libc::readlinkat(link.as_raw_fd(), c"".as_ptr(), path.as_mut_ptr().cast(), path.len()) };
    path.truncate(usize::try_from(n).map_err(|_| io::Error::last_os_error())?);
    Ok(OsString::from_vec(path).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user::{ActingAs, is_root};
    use std::fs;
    use std::os::unix::fs::{lchown, symlink};

    fn inode(found: io::Result<Found>) -> Result<u64, String> {
        found.map(|it| it.directory.metadata().unwrap().ino()).map_err(|it| it.to_string())
    }

    #[test]
    fn links_of_ours_are_followed() {
        let place = tempfile::tempdir().unwrap();
        let at = |it: &str| place.path().join(it);
        fs::create_dir_all(at("a/b")).unwrap();
        symlink("a", at("relative")).unwrap();
        symlink(at("a/b"), at("absolute")).unwrap();
        symlink("../relative/b/file", at("a/final")).unwrap();
        symlink("circle", at("circle")).unwrap();
        let b = fs::metadata(at("a/b")).unwrap().ino();
        for path in ["a/b/new", "relative/b/new", "absolute/new", "a/../a/b/./new", "a/final"] {
            assert_eq!(inode(follow(&at(path))), Ok(b), "{path}");
        }
        assert!(follow(&at("circle")).is_err() && follow(&at("none/new")).is_err() && follow(Path::new("/")).is_err());
        fs::write(at("a/b/file"), "").unwrap();
        assert!(follow(&at("a/final")).unwrap().there.is_some());
    }

    #[test]
    fn links_of_others_are_refused() {
        if !is_root() {
            println!("skipped: not root");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        symlink("/etc", place.path().join("theirs")).unwrap();
        lchown(place.path().join("theirs"), Some(12_345), None).unwrap();
        let found = follow(&place.path().join("theirs")).unwrap();
        assert!(is_link(&found.there.unwrap()), "the link itself");
        let refused = inode(follow(&place.path().join("theirs/new"))).unwrap_err();
        assert_eq!(refused, "theirs is a link of user 12345, and is not followed");
        fs::set_permissions(place.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let _acting = ActingAs::user(Account { uid: 12_345, gid: 12_345 }, &[]).unwrap();
        assert!(follow(&place.path().join("theirs/new")).is_ok(), "its owner follows it");
    }
}
