//! Follows a path component by component, and a link only if it is root's or of the user who acts.
//!
//! A relative path leads through directories that others may change: a link of theirs in it could lead anywhere. (Linux
//! itself does so in directories like `/tmp` alone: sysctl `fs.protected_symlinks`.)
//!
//! A link of procfs to what a process has (`/proc/PID/root`, `/proc/PID/fd/3`) leads where the process has chosen, which its
//! text says only within the process's own root directory. So Linux follows it, if no user but root and the one who acts is
//! the process's. Where that is another root directory than ours, what lies behind counts as another user's: its links are
//! meant for there, and even root there need not be trusted here.

use crate::trust::may_lead;
use std::collections::VecDeque;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// As Linux allows in a path.
const MOST_LINKS: usize = 40;

/// Where a path leads.
#[derive(Debug)]
pub(crate) enum End {
    Entry(DirectoryEntry),
    /// What a process has open or uses, by a link of procfs: it is reached, but has no name.
    Nameless(Nameless),
}

/// A name in a directory that is held open, so that nothing above it can be swapped.
#[derive(Debug)]
pub(crate) struct DirectoryEntry {
    pub(crate) directory: File,
    pub(crate) name: OsString,
    /// What is there: no link, or one of another user that is not followed; `None` if nothing is.
    pub(crate) there: Option<File>,
    /// The same place as a path in which no link is followed but those of procfs.
    pub(crate) path: PathBuf,
    /// Whether what is there counts as another user's, whoever owns it.
    pub(crate) is_elsewhere: bool,
}

#[derive(Debug)]
pub(crate) struct Nameless {
    pub(crate) file: File,
    /// As for [`DirectoryEntry`].
    pub(crate) is_elsewhere: bool,
}

/// Follows a path to its end, where nothing need be.
///
/// # Errors
/// A directory doesn't exist or can't be entered, the path ends in no name, or a link in it is another user's.
pub(crate) fn follow(path: &Path) -> io::Result<End> {
    let mut way = Way::of(path)?;
    while let Some(name) = way.rest.pop_front() {
        let is_last = way.rest.is_empty();
        let there = match entry(&way.at, &name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_last => None,
            there => Some(there?),
        };
        match there.as_ref().filter(|it| is_link(it)) {
            Some(_) if is_of_procfs(&way.at)? => {
                if let Some(end) = way.jump(&name)? {
                    return Ok(End::Nameless(end));
                }
            }
            Some(link) if !is_last || way.may_follow(link) => way.turn(link, &name)?,
            _ if is_last => {
                let path = way.path.join(&name);
                let (directory, is_elsewhere) = (way.at, way.is_elsewhere);
                return Ok(End::Entry(DirectoryEntry { directory, name, there, path, is_elsewhere }));
            }
            _ => way.enter(&name)?,
        }
    }
    Err(io::Error::from_raw_os_error(libc::EISDIR))
}

/// Opens a directory as a place in the same way.
///
/// # Errors
/// As for [`follow`], or it is no directory.
pub(crate) fn enter(path: &Path) -> io::Result<File> {
    // Any name in it will do.
    match follow(&path.join("x"))? {
        End::Entry(it) => Ok(it.directory),
        End::Nameless(_) => Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
    }
}

/// How far a path was followed.
struct Way {
    at: File,
    path: PathBuf,
    /// What is still to be followed from there.
    rest: VecDeque<OsString>,
    n_links: usize,
    is_elsewhere: bool,
}

impl Way {
    fn of(path: &Path) -> io::Result<Self> {
        let start = Path::new(if path.is_absolute() { "/" } else { "." });
        let so_far = if path.is_absolute() { "/" } else { "" };
        let rest = names(path).collect();
        Ok(Way { at: directory(start)?, path: so_far.into(), rest, n_links: 0, is_elsewhere: false })
    }

    fn enter(&mut self, name: &OsStr) -> io::Result<()> {
        self.at = entry_as_directory(&self.at, name)?;
        self.path.push(name);
        Ok(())
    }

    fn may_follow(&self, link: &File) -> bool {
        !self.is_elsewhere && link.metadata().is_ok_and(|it| may_lead(it.uid()))
    }

    /// Follows a link by its text.
    fn turn(&mut self, link: &File, name: &OsStr) -> io::Result<()> {
        if !self.may_follow(link) {
            let reason = match self.is_elsewhere {
                true => format!(
                    "{} is a link in another root directory, and is not followed: name what it leads to there",
                    name.display()
                ),
                false => {
                    let owner = link.metadata()?.uid();
                    format!("{} is a link of user {owner}, and is not followed", name.display())
                }
            };
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
        self.count_link()?;
        let to = text(link)?;
        if to.is_absolute() {
            self.at = directory(Path::new("/"))?;
            self.path = "/".into();
        }
        names(&to).rev().for_each(|it| self.rest.push_front(it));
        Ok(())
    }

    /// Has Linux follow a link of procfs. Returns what it leads to if the path ends there.
    fn jump(&mut self, name: &OsStr) -> io::Result<Option<Nameless>> {
        self.count_link()?;
        // Linux's own links, such as /proc/self, are no process's.
        if let Some(users) = users_of_process(&self.at)? {
            if let Some(user) = users.into_iter().find(|it| !may_lead(*it)) {
                let reason = format!(
                    "{} leads where a process of user {user} has chosen, and is not followed: name the place by a path that \
                     leads through none of its links",
                    self.path.join(name).display()
                );
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
            }
            self.is_elsewhere |= !has_our_root(&self.at);
        }
        if self.rest.is_empty() {
            let file = openat(&self.at, name, libc::O_PATH, 0)?;
            return Ok(Some(Nameless { file, is_elsewhere: self.is_elsewhere }));
        }
        self.at = openat(&self.at, name, libc::O_PATH | libc::O_DIRECTORY, 0)?;
        self.path.push(name);
        Ok(None)
    }

    fn count_link(&mut self) -> io::Result<()> {
        self.n_links += 1;
        if self.n_links > MOST_LINKS { Err(io::Error::from_raw_os_error(libc::ELOOP)) } else { Ok(()) }
    }
}

fn is_of_procfs(file: &File) -> io::Result<bool> {
    // SAFETY: zeroes are a statfs.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor and a live structure.
    crate::answer(unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut about) })?;
    Ok(about.f_type == libc::PROC_SUPER_MAGIC)
}

/// Returns the users of the process of which procfs tells in this directory: real, effective, saved, and that of files.
/// `None` if it tells of none there.
///
/// Not the owner of its files: they are root's where the process can't be dumped, whosever it is.
fn users_of_process(directory: &File) -> io::Result<Option<[u32; 4]>> {
    let Some(mut status) = of_process(directory, "status")? else { return Ok(None) };
    let mut text = String::new();
    status.read_to_string(&mut text)?;
    let line = text.lines().find_map(|it| it.strip_prefix("Uid:"));
    let users: Option<Vec<u32>> = line.map(|it| it.split_whitespace().filter_map(|it| it.parse().ok()).collect());
    users.and_then(|it| it.try_into().ok()).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Opens a file of the process of which procfs tells in this directory, or in the one above it (`fd`, `map_files`, `ns`).
fn of_process(directory: &File, name: &str) -> io::Result<Option<File>> {
    for above in ["", "../"] {
        match openat(directory, OsStr::new(&format!("{above}{name}")), libc::O_RDONLY | libc::O_NONBLOCK, 0) {
            // That above procfs itself is anybody's.
            Ok(file) if is_of_procfs(&file)? => return Ok(Some(file)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Whether the process of which procfs tells in this directory has our root directory, and our mounts.
fn has_our_root(directory: &File) -> bool {
    let identity = |it: io::Result<File>| it.and_then(|it| it.metadata()).map(|it| (it.dev(), it.ino()));
    let is_same = |link: &str| {
        let ours = identity(File::options().read(true).custom_flags(libc::O_PATH).open(format!("/proc/self/{link}")));
        let theirs = ["", "../"].map(|it| openat(directory, OsStr::new(&format!("{it}{link}")), libc::O_PATH, 0));
        let theirs = theirs.into_iter().find_map(|it| identity(it).ok());
        ours.is_ok_and(|it| theirs == Some(it))
    };
    is_same("root") && is_same("ns/mnt")
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

/// Returns a path by which the system finds a name in an open directory, whatever happens to the directory's own name.
pub(crate) fn below(directory: &File, name: &OsStr) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name)
}

fn is_link(file: &File) -> bool {
    file.metadata().is_ok_and(|it| it.is_symlink())
}

/// Returns the text of a link.
fn text(link: &File) -> io::Result<PathBuf> {
    let mut path = vec![0; libc::PATH_MAX as usize];
    // SAFETY: an empty C string names the link itself, and the buffer has the length given.
    let n = unsafe { libc::readlinkat(link.as_raw_fd(), c"".as_ptr(), path.as_mut_ptr().cast(), path.len()) };
    path.truncate(usize::try_from(n).map_err(|_| io::Error::last_os_error())?);
    Ok(OsString::from_vec(path).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user::{Account, ActingAs, is_root};
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    /// Returns the directory's inode, and the path that was found.
    fn found(path: &Path) -> Result<(u64, PathBuf), String> {
        match follow(path).map_err(|it| it.to_string())? {
            End::Entry(it) => Ok((it.directory.metadata().unwrap().ino(), it.path)),
            End::Nameless(it) => Err(format!("nameless {}", it.file.metadata().unwrap().ino())),
        }
    }

    fn entry_at(path: &Path) -> DirectoryEntry {
        match follow(path).unwrap() {
            End::Entry(it) => it,
            End::Nameless(_) => panic!("{} has no name", path.display()),
        }
    }

    fn inode(path: &Path) -> u64 {
        fs::metadata(path).unwrap().ino()
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
        let b = inode(&at("a/b"));
        for (path, name) in [
            ("a/b/new", "a/b/new"),
            ("relative/b/new", "a/b/new"),
            ("absolute/new", "a/b/new"),
            ("a/../a/b/./new", "a/../a/b/new"),
            ("a/final", "a/../a/b/file"),
        ] {
            assert_eq!(found(&at(path)), Ok((b, at(name))), "{path}");
        }
        assert!(follow(&at("circle")).is_err() && follow(&at("none/new")).is_err() && follow(Path::new("/")).is_err());
        fs::write(at("a/b/file"), "").unwrap();
        assert!(entry_at(&at("a/final")).there.is_some());
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
        let entry = entry_at(&place.path().join("theirs"));
        assert!(is_link(&entry.there.unwrap()), "the link itself");
        let refused = found(&place.path().join("theirs/new")).unwrap_err();
        assert_eq!(refused, "theirs is a link of user 12345, and is not followed");
        fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let _acting = ActingAs::user(Account { uid: 12_345, gid: 12_345 }, &[]).unwrap();
        assert!(follow(&place.path().join("theirs/new")).is_ok(), "its owner follows it");
    }

    #[test]
    fn what_we_have_open_is_reached_through_procfs() {
        let place = tempfile::tempdir().unwrap();
        let at = |it: &str| place.path().join(it);
        fs::create_dir(at("before")).unwrap();
        fs::write(at("file"), "").unwrap();
        symlink("../file", at("before/link")).unwrap();
        let (directory, file) = (File::open(at("before")).unwrap(), File::open(at("file")).unwrap());
        let of = |it: &File| PathBuf::from(format!("/proc/self/fd/{}", it.as_raw_fd()));
        // The text of its link is wrong by now.
        fs::rename(at("before"), at("after")).unwrap();
        fs::create_dir(at("before")).unwrap();
        let entry = entry_at(&of(&directory).join("new"));
        assert_eq!(entry.directory.metadata().unwrap().ino(), inode(&at("after")));
        assert!(!entry.is_elsewhere && is_of_procfs(&File::open("/proc/self").unwrap()).unwrap());
        assert_eq!(found(&of(&directory).join("link")).unwrap().0, inode(place.path()), "an ordinary link behind it");
        fs::remove_file(at("file")).unwrap();
        assert_eq!(found(&of(&file)), Err(format!("nameless {}", file.metadata().unwrap().ino())));
        // Linux's own links there, and one to what has no name.
        assert_eq!(found(Path::new("/proc/self/new")).unwrap().0, inode(Path::new("/proc/self")));
        assert_eq!(found(Path::new("/proc/self/cwd/new")).unwrap().0, inode(Path::new(".")));
        let (_reader, writer) = io::pipe().unwrap();
        let End::Nameless(pipe) = follow(Path::new(&format!("/dev/fd/{}", writer.as_raw_fd()))).unwrap() else {
            panic!("a pipe has no name");
        };
        assert!(!pipe.is_elsewhere);
        // Also for who acts, as whom the process can't be dumped.
        let _acting = ActingAs::user(Account { uid: 12_345, gid: 12_345 }, &[]).unwrap();
        assert!(!entry_at(Path::new("/proc/self/root/tmp/new")).is_elsewhere);
    }

    /// A process of a user, with another root directory.
    struct Chrooted(libc::pid_t);

    impl Chrooted {
        fn new(root: &Path, uid: u32) -> Self {
            let root = CString::new(root.as_os_str().as_bytes()).unwrap();
            let (mut is_ready, ready) = io::pipe().unwrap();
            // SAFETY: the child makes system calls only, and never returns.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: a C string, numbers, and a byte to write.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::chroot(root.as_ptr());
                    libc::setgid(uid);
                    libc::setuid(uid);
                    libc::write(ready.as_raw_fd(), c"x".as_ptr().cast(), 1);
                    loop {
                        libc::pause();
                    }
                }
            }
            is_ready.read_exact(&mut [0]).unwrap();
            Chrooted(pid)
        }

        fn at(&self, path: &str) -> PathBuf {
            PathBuf::from(format!("/proc/{}/root{path}", self.0))
        }
    }

    impl Drop for Chrooted {
        fn drop(&mut self) {
            // SAFETY: numbers; it is our child, and not waited for yet.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), 0);
            }
        }
    }

    #[test]
    fn another_root_directory_is_another_users() {
        if !is_root() {
            println!("skipped: not root");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let at = |it: &str| root.path().join(it);
        fs::create_dir(at("etc")).unwrap();
        symlink("/etc", at("link")).unwrap();
        let ours = Chrooted::new(root.path(), 0);
        let entry = entry_at(&ours.at("/etc/new"));
        assert_eq!(entry.directory.metadata().unwrap().ino(), inode(&at("etc")), "not our own /etc");
        assert_eq!((entry.is_elsewhere, entry.path), (true, ours.at("/etc/new")));
        // It is root's, who need not be root of this place.
        assert!(is_link(&entry_at(&ours.at("/link")).there.unwrap()));
        assert_eq!(
            found(&ours.at("/link/new")).unwrap_err(),
            "link is a link in another root directory, and is not followed: name what it leads to there"
        );
        assert!(
            !entry_at(&PathBuf::from(format!("/proc/{}/root{}/new", std::process::id(), root.path().display())))
                .is_elsewhere
        );
    }

    #[test]
    fn no_process_of_another_user_leads_us() {
        if !is_root() {
            println!("skipped: not root");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        chown(root.path(), Some(12_345), None).unwrap();
        let theirs = Chrooted::new(root.path(), 12_345);
        // By then it can't be dumped, so that its links are root's.
        assert_eq!(fs::symlink_metadata(theirs.at("")).unwrap().uid(), 0);
        for path in [theirs.at(""), theirs.at("/new")] {
            let refused = found(&path).unwrap_err();
            let start = format!(
                "{} leads where a process of user 12345 has chosen, and is not followed",
                theirs.at("").display()
            );
            assert!(refused.starts_with(&start), "{refused}");
        }
        let _acting = ActingAs::user(Account { uid: 12_345, gid: 12_345 }, &[]).unwrap();
        assert!(found(&theirs.at("/new")).is_err(), "it can't be dumped");
    }
}
