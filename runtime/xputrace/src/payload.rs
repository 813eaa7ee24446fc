//! Files inside the binary that other processes must load: the collector and, for the demo, the
//! software GPU and its program. They are stored under the hash of their contents in a directory of
//! the user who loads them, and stay there: children of a target load them later.

use anyhow::{Context, Result, anyhow, bail};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use xputrace_boundary::create::{Creator, FileAccess};
use xputrace_boundary::read::{self, Links};
use xputrace_boundary::user::Account;
use xputrace_wire::limits::advice;

/// A file that the binary carries.
#[derive(Clone, Copy, Debug)]
pub struct Payload {
    name: &'static str,
    extension: &'static str,
    bytes: &'static [u8],
}

pub static COLLECTOR: Payload =
    Payload { name: "collector", extension: ".so", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/collector.so")) };
pub static SOFTGPU: Payload =
    Payload { name: "softgpu", extension: ".so", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/softgpu.so")) };
pub static SERVER: Payload =
    Payload { name: "server", extension: "", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/server")) };

/// The user who will load the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub account: Account,
    pub home: Option<PathBuf>,
}

impl Owner {
    /// Returns the user that this process runs as.
    pub fn current() -> Self {
        Owner { account: Account::current(), home: std::env::var_os("HOME").map(PathBuf::from) }
    }
}

/// A directory in which files can be laid down.
struct Shelf {
    directory: File,
    path: PathBuf,
}

impl Payload {
    /// Ensures that the file is in a directory from which `owner` can load it; returns its path.
    ///
    /// All of this happens with the rights of `owner`: a directory that they can change must not lead root astray.
    pub fn lay_down(self, owner: &Owner) -> Result<PathBuf> {
        let creator = Creator::of(owner.account, Vec::new());
        let uid = owner.account.uid;
        let shelf = shelf(owner, &creator).with_context(|| {
            format!("found no directory for the collector that user {uid} owns and can execute files from")
        })?;
        self.lay_on(shelf, &creator)
    }

    /// Ensures that the file is in a directory below another root, from which `owner`'s processes there can load it;
    /// returns its path there. Links below the root are followed as its processes do, so they cannot lead out of it, and
    /// what they lead to is written with the rights of `owner`.
    ///
    /// # Errors
    /// No directory is suitable.
    pub fn lay_down_in(self, root: &Path, owner: &Owner) -> Result<PathBuf> {
        let creator = Creator::of(owner.account, Vec::new());
        let root = read::open_directory(root).context("opening its root directory")?;
        let open = |parent: &str| read::open_directory_below(&root, Path::new(parent), Links::InRoot);
        let parents = ["var/tmp", "tmp", "dev/shm"].map(|it| (Path::new("/").join(it), open(it)));
        let shelf =
            in_one_of(parents, &creator).context("found no directory for the collector in its root directory")?;
        self.lay_on(shelf, &creator)
    }

    /// Returns its contents.
    pub fn bytes(self) -> &'static [u8] {
        self.bytes
    }

    /// Whether a file is this one.
    pub fn is(self, path: &Path) -> bool {
        read::open(path).is_ok_and(|it| self.is_in(&it))
    }

    /// Returns the name under which the file is stored.
    pub fn file_name(self) -> String {
        format!("{}-{:016x}{}", self.name, hash(self.bytes), self.extension)
    }

    fn is_in(self, file: &File) -> bool {
        let has_its_size = file.metadata().is_ok_and(|it| it.len() == self.bytes.len() as u64);
        has_its_size && read::contents(file, self.bytes.len() as u64).is_ok_and(|it| it == self.bytes)
    }

    fn lay_on(self, shelf: Shelf, creator: &Creator) -> Result<PathBuf> {
        let name = self.file_name();
        let path = shelf.path.join(&name);
        let there = {
            let _acting = creator.act()?;
            read::open_below(&shelf.directory, Path::new(&name), Links::None)
        };
        if !there.is_ok_and(|it| self.is_in(&it)) {
            self.write(shelf.directory, creator)
                .map_err(|it| anyhow!("writing {} to {}: {it}{}", self.name, path.display(), advice(&it)))?;
        }
        Ok(path)
    }

    fn write(self, directory: File, creator: &Creator) -> io::Result<()> {
        let mut draft = creator.place_in(directory, self.file_name().into()).draft(FileAccess::Program)?;
        draft.write_all(self.bytes)?;
        draft.finish()
    }
}

/// Finds a directory that belongs to the user alone and may contain code.
fn shelf(owner: &Owner, creator: &Creator) -> Result<Shelf> {
    let mut refusals = Vec::new();
    // A program started by root may become another user, who cannot read root's home.
    let of_root = (owner.account.uid == 0).then(|| PathBuf::from("/var/cache"));
    // Don't create a missing home (the user nobody has none); it would get the wrong owner.
    let of_home = owner.home.as_ref().filter(|home| home.is_dir()).map(|home| home.join(".cache"));
    for parent in of_root.into_iter().chain(of_home) {
        let opened = creator.directory(&parent).and_then(|()| read::open_directory(&parent));
        match opened.map_err(Into::into).and_then(|it| shelf_below(&it, &parent, OsStr::new("xputrace"), creator)) {
            Ok(shelf) => return Ok(shelf),
            Err(reason) => refusals.push(format!("{}: {reason:#}", parent.join("xputrace").display())),
        }
    }
    let parents = ["/var/tmp", "/tmp"].map(|it| (PathBuf::from(it), read::open_directory(Path::new(it))));
    in_one_of(parents, creator)
        .map_err(|it| anyhow!("{}", refusals.into_iter().chain([it.to_string()]).collect::<Vec<_>>().join("; ")))
}

/// Finds or makes a directory of the user's in one of these that everybody can write. Another user may have taken its
/// name; then it gets one that nobody can guess.
fn in_one_of<const N: usize>(parents: [(PathBuf, io::Result<File>); N], creator: &Creator) -> Result<Shelf> {
    let name = format!("xputrace-{}", creator.account().uid);
    let mut refusals = Vec::new();
    for (path, parent) in parents {
        let found = parent.map_err(anyhow::Error::from).and_then(|parent| {
            shelf_below(&parent, &path, OsStr::new(&name), creator).or_else(|_| {
                let (name, directory) =
                    creator.own_random_directory(&parent, &format!("{name}-"), mode_for(creator))?;
                executable(Shelf { path: path.join(name), directory })
            })
        });
        match found {
            Ok(shelf) => return Ok(shelf),
            Err(reason) => refusals.push(format!("{}: {reason:#}", path.join(&name).display())),
        }
    }
    bail!("{}", refusals.join("; "))
}

fn shelf_below(parent: &File, path: &Path, name: &OsStr, creator: &Creator) -> Result<Shelf> {
    let directory = creator.own_directory(parent, name, mode_for(creator))?;
    executable(Shelf { path: path.join(name), directory })
}

/// Users that root's commands become load from root's directory.
fn mode_for(creator: &Creator) -> u32 {
    if creator.account().uid == 0 { 0o755 } else { 0o700 }
}

fn executable(shelf: Shelf) -> Result<Shelf> {
    if is_noexec(&shelf.directory)? {
        bail!("its file system is mounted noexec");
    }
    Ok(shelf)
}

fn is_noexec(directory: &File) -> Result<bool> {
    // SAFETY: a zeroed statvfs is valid, and the call fills it or fails.
    let mut info: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor, and `info` outlives the call.
    if unsafe { libc::fstatvfs(directory.as_raw_fd(), &mut info) } != 0 {
        return Err(io::Error::last_os_error()).context("asking for its mount flags");
    }
    Ok(info.f_flag & libc::ST_NOEXEC != 0)
}

/// FNV-1a: identifies contents, protects nothing (the contents are compared too).
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |acc, byte| (acc ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
