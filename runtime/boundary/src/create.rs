//! Creates files.
//!
//! A file is written as a *draft* beside its place, under a random name that did not exist, and then renamed. So what was
//! there before stays until the new file is whole, a reader never sees half of it, and a link or a pipe that another user
//! has laid in its way is replaced, not followed.
//!
//! ```text
//! path ──Creator──▶ Destination ─┬─ Place ──▶ Draft ──finish──▶ the file
//!                                └─ Stream: a device, a pipe or a descriptor of ours, written as it is
//! ```

use crate::answer;
use crate::read::{self, Links};
use crate::user::{Account, ActingAs};
use crate::walk::{self, Found, is_trusted};
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Who creates files: files are theirs, and are made where they may make them.
#[derive(Clone, Debug)]
pub struct Creator {
    account: Account,
    groups: Vec<u32>,
    /// Whether root creates what this user may not, where only root can write.
    may_be_root: bool,
}

/// Who may read and change a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The umask decides, as for other programs' files.
    Usual,
    /// Its owner alone.
    Private,
    /// Others may read and execute it.
    Program,
}

impl Access {
    fn mode(self) -> u32 {
        match self {
            Access::Usual => 0o666,
            Access::Private => 0o600,
            Access::Program => 0o755,
        }
    }
}

/// Where something is written.
#[derive(Debug)]
pub enum Destination {
    File(Place),
    Stream(Stream),
}

/// A file's directory, which is held open, and its name there.
#[derive(Debug)]
pub struct Place {
    creator: Creator,
    directory: File,
    name: OsString,
    /// As the user wrote it.
    path: PathBuf,
    /// The mode of the file that is there, if it is the creator's own.
    mode_there: Option<u32>,
}

/// What is not a regular file.
#[derive(Debug)]
pub struct Stream(StreamKind);

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

impl Creator {
    /// Creates files as a user, if we are root; else they are ours anyway.
    pub fn of(account: Account, groups: Vec<u32>) -> Self {
        Creator { account, groups, may_be_root: false }
    }

    /// Has root create what the user may not, in directories where root alone can write: under sudo that is what the
    /// user asked for, and nobody can have prepared anything there.
    pub fn or_root(self) -> Self {
        Creator { may_be_root: true, ..self }
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
        if let Some(file) = own_descriptor(path) {
            return Ok(Destination::Stream(Stream(StreamKind::Descriptor(file?))));
        }
        self.or_as_root(
            |it| it.own_destination(path),
            |it| match it {
                Destination::File(place) => is_roots_alone(&place.directory),
                Destination::Stream(_) => false,
            },
        )
    }

    /// Does something as the user and, if they may not and root may in their place, as root; what root did must pass.
    fn or_as_root<T>(&self, act: impl Fn(&Creator) -> io::Result<T>, passes: impl Fn(&T) -> bool) -> io::Result<T> {
        match act(self) {
            Err(error) if self.may_be_root && error.kind() == io::ErrorKind::PermissionDenied => {
                let refused = || io::Error::new(error.kind(), format!("{error}, as user {}", self.account.uid));
                act(&Creator::own()).ok().filter(passes).ok_or_else(refused)
            }
            answer => answer,
        }
    }

    fn own_destination(&self, path: &Path) -> io::Result<Destination> {
        let _acting = self.act()?;
        let Found { directory, name, there } = walk::follow(path)?;
        let about = there.as_ref().map(File::metadata).transpose()?;
        match about {
            Some(it) if it.is_dir() => Err(io::Error::from_raw_os_error(libc::EISDIR)),
            Some(it) if !it.is_file() && (is_trusted(it.uid()) || it.file_type().is_char_device()) => {
                may_write(&directory, &name)?;
                let there = there.ok_or(io::ErrorKind::NotFound)?;
                Ok(Destination::Stream(Stream(StreamKind::Special(there))))
            }
            about => {
                match &about {
                    Some(it) if it.is_file() => {
                        may_write(&directory, &name)?;
                        may_replace(&directory, it.uid())?;
                    }
                    Some(it) => may_replace(&directory, it.uid())?,
                    None => {}
                }
                match (may_write(&directory, OsStr::new(".")), there) {
                    (Err(_), Some(there)) if about.as_ref().is_some_and(|it| is_trusted(it.uid())) => {
                        return Ok(Destination::Stream(Stream(StreamKind::InPlace(there))));
                    }
                    (answer, _) => answer?,
                }
                let own = about.filter(|it| it.uid() == Account::current().uid);
                let mode_there = own.map(|it| it.mode() & 0o777);
                Ok(Destination::File(Place { creator: self.clone(), directory, name, path: path.into(), mode_there }))
            }
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
    pub fn write(&self, path: &Path, bytes: &[u8], access: Access) -> io::Result<()> {
        match self.destination(path)? {
            Destination::File(place) => {
                let mut draft = place.draft(access)?;
                draft.write_all(bytes)?;
                draft.finish()
            }
            Destination::Stream(stream) => stream.open()?.write_all(bytes),
        }
    }

    /// Makes a directory, and those above it that are missing.
    ///
    /// # Errors
    /// The system's, or a link of another user is in the way.
    pub fn directory(&self, path: &Path) -> io::Result<()> {
        let mut above: Vec<&Path> = path.ancestors().collect();
        while let Some(directory) = above.pop() {
            self.or_as_root(|it| it.make_directory(directory), is_roots_alone)?;
        }
        Ok(())
    }

    /// Makes a directory that is missing, and returns the one in which it is.
    fn make_directory(&self, path: &Path) -> io::Result<File> {
        let _acting = self.act()?;
        let Ok(Found { directory, name, there }) = walk::follow(path) else {
            // The root, `.` and `..` end in no name.
            return walk::enter(path);
        };
        match there {
            Some(there) if !there.metadata()?.is_dir() => Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
            Some(_) => Ok(directory),
            None => match DirBuilder::new().create(below(&directory, &name)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                _ => Ok(directory),
            },
        }
    }

    /// Makes a link, in place of what is there if that is no directory.
    ///
    /// # Errors
    /// The system's, or a link of another user is in the way.
    pub fn link(&self, target: &Path, path: &Path) -> io::Result<()> {
        let _acting = self.act()?;
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let directory = walk::enter(path.parent().unwrap_or(Path::new("")))?;
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
        match DirBuilder::new().mode(mode).create(below(parent, name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let directory = read::open_directory_below(parent, Path::new(name), Links::None)?;
        let about = directory.metadata()?;
        let uid = Account::current().uid;
        if about.uid() != uid || about.mode() & 0o022 != 0 {
            let reason = format!("{} is not a directory that only user {uid} can write", name.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
        if about.mode() & mode != mode {
            // It was created under a restrictive umask.
            directory.set_permissions(Permissions::from_mode(mode))?;
        }
        Ok(directory)
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

    /// Returns a place in an open directory. Whatever is there will be replaced, if it is no directory.
    pub fn place_in(&self, directory: File, name: OsString) -> Place {
        let path = name.clone().into();
        Place { creator: self.clone(), directory, name, path, mode_there: None }
    }
}

impl Place {
    /// Returns the path as the user wrote it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins the file that is to be there. A file of the creator's that it replaces passes its mode on, unless the new
    /// one is private.
    ///
    /// # Errors
    /// The system's.
    pub fn draft(self, access: Access) -> io::Result<Draft> {
        let acting = self.creator.act()?;
        let mut prefix = self.name.clone();
        prefix.push(".");
        // The directory is the open one, whatever its name is now.
        let named = tempfile::Builder::new().prefix(&prefix).suffix(".part").make_in("/", |path| {
            // Never more than it will have: who has opened it keeps that.
            let mode = access.mode() & self.mode_there.unwrap_or(0o777);
            let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
            walk::openat(&self.directory, path.file_name().unwrap_or_default(), flags, mode)
        })?;
        let (file, path) = named.into_parts();
        let name = path.file_name().unwrap_or_default().to_owned();
        // From here on it is removed by this, with the rights that it takes.
        path.keep().map_err(|it| it.error)?;
        let draft = Draft { file, name, place: self, is_kept: false };
        let mode = match access {
            Access::Usual => draft.place.mode_there,
            // Whatever the umask is.
            Access::Private | Access::Program => Some(access.mode()),
        };
        if let Some(mode) = mode {
            draft.file.set_permissions(Permissions::from_mode(mode))?;
        }
        drop(acting);
        Ok(draft)
    }
}

/// A file that is being written.
#[derive(Debug)]
pub struct Draft {
    file: File,
    name: OsString,
    place: Place,
    is_kept: bool,
}

impl Draft {
    /// Returns the path of the draft itself.
    pub fn path(&self) -> PathBuf {
        self.place.path.with_file_name(&self.name)
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
    /// The system's.
    pub fn finish(mut self) -> io::Result<()> {
        let _acting = self.place.creator.act()?;
        match rename(&self.place.directory, &self.name, &self.place.name) {
            // What is there is mounted by itself, and can't be replaced.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => self.copy_into_place(),
            answer => answer.map(|()| self.is_kept = true),
        }
    }

    fn copy_into_place(&mut self) -> io::Result<()> {
        let options = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let path = below(&self.place.directory, &self.place.name);
        let mut there = File::options().write(true).custom_flags(options).open(path)?;
        let about = there.metadata()?;
        if !about.is_file() || !is_trusted(about.uid()) {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        // Should the copy fail, this is what is left.
        self.is_kept = true;
        there.set_len(0)?;
        self.file.rewind()?;
        io::copy(&mut self.file, &mut there)?;
        self.is_kept = false;
        Ok(())
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

impl Stream {
    /// Opens it to write to it.
    ///
    /// # Errors
    /// The system's, or nobody reads the pipe within 10 s.
    pub fn open(self) -> io::Result<File> {
        let reopen = |place: &File| format!("/proc/self/fd/{}", place.as_raw_fd());
        let path = match &self.0 {
            StreamKind::Descriptor(file) => return file.try_clone(),
            StreamKind::InPlace(place) => return File::options().write(true).truncate(true).open(reopen(place)),
            StreamKind::Special(place) => reopen(place),
        };
        let until = Instant::now() + READER_COMES_WITHIN;
        loop {
            match File::options().write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(&path) {
                Ok(file) => return blocking(file),
                // A pipe without a reader.
                Err(it) if it.raw_os_error() == Some(libc::ENXIO) && Instant::now() < until => {
                    std::thread::sleep(LOOKS_EVERY);
                }
                Err(it) => return Err(it),
            }
        }
    }
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

/// Has writes wait for a reader again.
fn blocking(file: File) -> io::Result<File> {
    // SAFETY: numbers only.
    let set = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, 0) };
    if set == 0 { Ok(file) } else { Err(io::Error::last_os_error()) }
}

/// Returns a path by which the system finds a name in an open directory, whatever happens to the directory's own name.
fn below(directory: &File, name: &OsStr) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name)
}

/// Returns our descriptor that a path like `/dev/stdout` or `/dev/fd/3` names.
fn own_descriptor(path: &Path) -> Option<io::Result<File>> {
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
        fd => Ok(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }),
    })
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

/// Whether nobody but root can change what is in a directory.
fn is_roots_alone(directory: &File) -> bool {
    directory.metadata().is_ok_and(|it| it.uid() == 0 && it.mode() & 0o022 == 0)
}

/// Whether the user who acts may write a file or directory, by its mode.
fn may_write(directory: &File, name: &OsStr) -> io::Result<()> {
    let name = CString::new(name.as_bytes())?;
    // Not libc's function: an older one asks for the real user.
    // SAFETY: as above.
    let may = answer(unsafe {
        libc::syscall(libc::SYS_faccessat2, directory.as_raw_fd(), name.as_ptr(), libc::W_OK, libc::AT_EACCESS)
    });
    // Before Linux 5.8 it is found out when the file is made.
    may.or_else(|it| if matches!(it.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) { Ok(()) } else { Err(it) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user::is_root;
    use std::os::unix::fs::{chown, lchown, symlink};

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            Folder(tempfile::tempdir().unwrap())
        }

        fn at(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(self.0.path()).unwrap();
            let mut names: Vec<String> = entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }

        fn text(&self, name: &str) -> String {
            fs::read_to_string(self.at(name)).unwrap()
        }

        fn mode(&self, name: &str) -> u32 {
            fs::metadata(self.at(name)).unwrap().mode() & 0o777
        }
    }

    fn pipe(path: &Path) {
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o666) }, 0);
    }

    #[test]
    fn the_old_file_stays_until_the_new_one_is_whole() {
        let folder = Folder::new();
        let own = Creator::own();
        fs::write(folder.at("x"), "old").unwrap();
        let mut draft = own.place(&folder.at("x")).unwrap().draft(Access::Usual).unwrap();
        draft.write_all(b"new").unwrap();
        assert_eq!(folder.text("x"), "old");
        assert!(draft.path().exists());
        drop(draft);
        assert_eq!((folder.names(), folder.text("x")), (vec!["x".into()], "old".into()));
        own.write(&folder.at("x"), b"new", Access::Usual).unwrap();
        assert_eq!((folder.names(), folder.text("x")), (vec!["x".into()], "new".into()));
    }

    #[test]
    fn a_draft_that_is_kept_stays_under_its_own_name() {
        let folder = Folder::new();
        let mut draft = Creator::own().place(&folder.at("t.xpt")).unwrap().draft(Access::Private).unwrap();
        draft.keep();
        let path = draft.path();
        drop(draft);
        assert!(path.exists() && !folder.at("t.xpt").exists());
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn modes_are_as_they_should_be() {
        let folder = Folder::new();
        let own = Creator::own();
        fs::write(folder.at("plain"), "").unwrap();
        own.write(&folder.at("new"), b"", Access::Usual).unwrap();
        assert_eq!(folder.mode("new"), folder.mode("plain"));
        fs::set_permissions(folder.at("new"), Permissions::from_mode(0o640)).unwrap();
        own.write(&folder.at("new"), b"", Access::Usual).unwrap();
        assert_eq!(folder.mode("new"), 0o640, "kept");
        own.write(&folder.at("new"), b"", Access::Private).unwrap();
        own.write(&folder.at("program"), b"", Access::Program).unwrap();
        assert_eq!((folder.mode("new"), folder.mode("program")), (0o600, 0o755));
    }

    #[test]
    fn links_of_ours_are_followed_and_stay() {
        let folder = Folder::new();
        symlink("x", folder.at("link")).unwrap();
        Creator::own().write(&folder.at("link"), b"1", Access::Usual).unwrap();
        assert!(folder.at("link").is_symlink());
        assert_eq!(folder.text("x"), "1");
    }

    #[test]
    fn what_can_not_be_written_is_said_before_anything_runs() {
        let folder = Folder::new();
        let refused = |path: &str| Creator::own().destination(&folder.at(path)).unwrap_err().kind();
        assert_eq!(refused("none/x"), io::ErrorKind::NotFound);
        assert_eq!(refused("."), io::ErrorKind::IsADirectory);
        assert_eq!(folder.names(), [""; 0]);
    }

    #[test]
    fn devices_and_pipes_of_ours_are_written_as_they_are() {
        let folder = Folder::new();
        let own = Creator::own();
        own.write(Path::new("/dev/null"), b"x", Access::Usual).unwrap();
        pipe(&folder.at("pipe"));
        let path = folder.at("pipe");
        let reader = std::thread::spawn(move || fs::read_to_string(path).unwrap());
        own.write(&folder.at("pipe"), b"text", Access::Usual).unwrap();
        assert_eq!(reader.join().unwrap(), "text");
        assert!(folder.at("pipe").symlink_metadata().unwrap().file_type().is_fifo());
        assert!(own.place(&folder.at("pipe")).is_err());
    }

    #[test]
    fn links_and_pipes_of_others_are_replaced() {
        if !is_root() {
            println!("skipped: not root");
            return;
        }
        let folder = Folder::new();
        let own = Creator::own();
        fs::write(folder.at("precious"), "precious").unwrap();
        symlink("precious", folder.at("link")).unwrap();
        pipe(&folder.at("pipe"));
        for name in ["link", "pipe"] {
            lchown(folder.at(name), Some(12_345), None).unwrap();
            own.write(&folder.at(name), b"new", Access::Usual).unwrap();
            assert!(folder.at(name).symlink_metadata().unwrap().is_file(), "{name}");
        }
        assert_eq!(folder.text("precious"), "precious");
        let mut draft = own.place(&folder.at("late")).unwrap().draft(Access::Usual).unwrap();
        symlink("precious", folder.at("late")).unwrap();
        lchown(folder.at("late"), Some(12_345), None).unwrap();
        draft.write_all(b"new").unwrap();
        draft.finish().unwrap();
        assert!(!folder.at("late").is_symlink());
        assert_eq!((folder.text("late"), folder.text("precious")), ("new".into(), "precious".into()));
    }

    #[test]
    fn files_are_made_where_their_creator_may_and_are_theirs() {
        if !is_root() {
            println!("skipped: not root");
            return;
        }
        let folder = Folder::new();
        let them = Creator::of(Account { uid: 12_345, gid: 12_346 }, vec![]);
        for mode in [0o700, 0o755] {
            fs::set_permissions(folder.0.path(), Permissions::from_mode(mode)).unwrap();
            let refused = them.destination(&folder.at("x")).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
            let file = format!("roots/{mode:o}");
            them.clone().or_root().directory(&folder.at("roots")).unwrap();
            them.clone().or_root().write(&folder.at(&file), b"", Access::Usual).unwrap();
            assert_eq!(fs::metadata(folder.at(&file)).unwrap().uid(), 0);
        }
        let theirs = them.clone().or_root();
        fs::create_dir(folder.at("third")).unwrap();
        chown(folder.at("third"), Some(12_399), None).unwrap();
        assert!(theirs.destination(&folder.at("third/x")).is_err(), "a third user's directory");
        chown(folder.0.path(), Some(12_345), None).unwrap();
        them.write(&folder.at("x"), b"", Access::Usual).unwrap();
        them.directory(&folder.at("a/b")).unwrap();
        for name in ["x", "a", "a/b"] {
            let about = fs::metadata(folder.at(name)).unwrap();
            assert_eq!((about.uid(), about.gid()), (12_345, 12_346), "{name}");
        }
    }
}
