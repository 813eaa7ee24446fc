//! Who can change a file: its owner, and those whom its mode lets write. Each question of trust is answered from this.
//!
//! Root can change everything, so only others are of interest. A group counts as a user's own where it is the one that many
//! systems give each user, of the same number; an access list (`setfacl`) may name anybody, so it counts as everybody.

use crate::user::Account;
use std::ffi::CString;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Those who can change a file, or which names are in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changers {
    owner: u32,
    /// The file's group, if its members can write.
    group: Option<u32>,
    /// Whether anybody can.
    everybody: bool,
    /// Whether it is a directory in which each can rename and remove only what is theirs.
    is_sticky: bool,
}

impl Changers {
    /// Returns those of an open file or directory.
    ///
    /// # Errors
    /// The system's.
    pub fn of(file: &File) -> io::Result<Self> {
        let path = || PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Ok(Changers::by(&file.metadata()?, || has_access_list(&path(), libc::getxattr)))
    }

    /// Returns those of what a path names, which may be a link.
    ///
    /// # Errors
    /// The system's.
    pub fn of_path(path: &Path) -> io::Result<Self> {
        Ok(Changers::by(&path.symlink_metadata()?, || has_access_list(path, libc::lgetxattr)))
    }

    fn by(about: &Metadata, has_list: impl FnOnce() -> bool) -> Self {
        // A link's mode says nothing: only its directory counts.
        let mode = if about.is_symlink() { 0 } else { about.mode() };
        let group_writes = mode & libc::S_IWGRP != 0;
        Changers {
            owner: about.uid(),
            group: group_writes.then(|| about.gid()),
            // What a list allows at most is said in the place of the group's rights.
            everybody: mode & libc::S_IWOTH != 0 || group_writes && has_list(),
            is_sticky: about.is_dir() && mode & libc::S_ISVTX != 0,
        }
    }

    /// Whether all of them are these users, or root.
    pub fn are_among(&self, users: &[Account]) -> bool {
        let is_own = |gid: u32| gid == 0 || users.iter().any(|it| it.gid == gid && it.uid == gid);
        self.is_owner_among(users) && !self.everybody && self.group.is_none_or(is_own)
    }

    /// Whether none but these users and root can exchange what is theirs in a directory: only they can change it, or it is
    /// sticky.
    pub fn leave_to(&self, users: &[Account]) -> bool {
        self.are_among(users) || self.is_sticky && self.is_owner_among(users)
    }

    fn is_owner_among(&self, users: &[Account]) -> bool {
        self.owner == 0 || users.iter().any(|it| it.uid == self.owner)
    }
}

/// Whether what belongs to this user may lead us somewhere: it is root, or who acts.
pub(crate) fn may_lead(uid: u32) -> bool {
    uid == 0 || uid == Account::current().uid
}

type GetXattr = unsafe extern "C" fn(*const libc::c_char, *const libc::c_char, *mut libc::c_void, usize) -> isize;

/// Whether a file has an access list, as far as can be found out.
fn has_access_list(path: &Path, get: GetXattr) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return true };
    // SAFETY: two C strings; with a size of 0 nothing is written.
    let len = unsafe { get(path.as_ptr(), c"system.posix_acl_access".as_ptr(), std::ptr::null_mut(), 0) };
    let has_none = || matches!(io::Error::last_os_error().raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP));
    len >= 0 || !has_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    const THEM: Account = Account { uid: 1000, gid: 1000 };
    /// A user of a system where a group has many.
    const STAFF: Account = Account { uid: 1001, gid: 20 };

    fn file(owner: u32, group: u32, mode: u32) -> Changers {
        let writes = |bit: u32| mode & bit != 0;
        Changers {
            owner,
            group: writes(0o020).then_some(group),
            everybody: writes(0o002),
            is_sticky: mode & libc::S_ISVTX != 0,
        }
    }

    #[test]
    fn a_file_is_changed_by_its_owner_group_and_others() {
        let table = [
            // Root's.
            (file(0, 0, 0o644), [true, true, true]),
            (file(0, 0, 0o664), [true, true, true]),
            (file(0, 20, 0o664), [false, false, false]),
            (file(0, 0, 0o646), [false, false, false]),
            // Theirs: their own group is they.
            (file(1000, 1000, 0o644), [false, true, false]),
            (file(1000, 1000, 0o664), [false, true, false]),
            (file(1000, 20, 0o664), [false, false, false]),
            (file(1000, 20, 0o644), [false, true, false]),
            (file(0, 1000, 0o664), [false, true, false]),
            // The group is not one user's.
            (file(1001, 20, 0o664), [false, false, false]),
            (file(1001, 20, 0o644), [false, false, true]),
            // A group of the same number is somebody's, who need not be they.
            (file(1001, 1001, 0o664), [false, false, false]),
        ];
        for (changers, expected) in table {
            let among = [&[][..], &[THEM], &[STAFF]].map(|it| changers.are_among(it));
            assert_eq!(among, expected, "{changers:?}");
            assert_eq!(among, [&[][..], &[THEM], &[STAFF]].map(|it| changers.leave_to(it)), "{changers:?}");
        }
        assert!(file(1000, 20, 0o644).are_among(&[STAFF, THEM]));
    }

    #[test]
    fn a_sticky_directory_leaves_to_each_what_is_theirs() {
        let shared = file(0, 0, 0o1777);
        assert!(shared.leave_to(&[]) && shared.leave_to(&[THEM]) && !shared.are_among(&[THEM]));
        // Its owner can rename everything there.
        assert!(!file(1000, 1000, 0o1777).leave_to(&[STAFF]));
    }

    #[test]
    fn files_are_asked() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        std::fs::write(&path, "").unwrap();
        let uid = Account::current().uid;
        let us = [Account { uid, gid: uid }];
        let changers = |mode: u32| {
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
            let by_path = Changers::of_path(&path).unwrap();
            assert_eq!(Changers::of(&File::open(&path).unwrap()).unwrap(), by_path);
            by_path
        };
        assert!(changers(0o644).are_among(&us) && !changers(0o646).are_among(&us));
        let link = place.path().join("link");
        std::os::unix::fs::symlink("file", &link).unwrap();
        assert!(Changers::of_path(&link).unwrap().are_among(&us));
        if list(&path).is_err() {
            println!("skipped: no access lists here");
            return;
        }
        for changers in [Changers::of_path(&path), File::open(&path).and_then(|it| Changers::of(&it))] {
            assert!(changers.unwrap().everybody, "user 12345, by the list");
        }
    }

    /// Lets user 12345 write a file.
    fn list(path: &Path) -> io::Result<()> {
        // Version, then for each entry: tag, rights, id. Source: `include/uapi/linux/posix_acl_xattr.h`.
        const NOBODY: u32 = u32::MAX;
        let entries: [(u16, u16, u32); 5] =
            [(0x01, 6, NOBODY), (0x02, 6, 12_345), (0x04, 4, NOBODY), (0x10, 6, NOBODY), (0x20, 4, NOBODY)];
        let mut bytes = 2u32.to_le_bytes().to_vec();
        for (tag, rights, id) in entries {
            bytes.extend([tag.to_le_bytes(), rights.to_le_bytes()].concat());
            bytes.extend(id.to_le_bytes());
        }
        let path = CString::new(path.as_os_str().as_bytes())?;
        let name = c"system.posix_acl_access";
        // SAFETY: two C strings, and bytes with their length.
        let set = unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), bytes.as_ptr().cast(), bytes.len(), 0) };
        crate::answer(set)
    }
}
