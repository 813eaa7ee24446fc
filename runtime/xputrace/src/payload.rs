//! Files inside the binary that other processes must load: the collector and, for the demo, the
//! software GPU and its program. They are stored under the hash of their contents in a directory of
//! the user who loads them, and stay there: children of a target load them later.

use crate::below::open_directory;
use anyhow::{Context, Result, anyhow, bail};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use xputrace_wire::limits::advice;

/// A file that the binary carries.
#[derive(Clone, Copy, Debug)]
pub struct Payload {
    name: &'static str,
    extension: &'static str,
    bytes: &'static [u8],
}

pub const COLLECTOR: Payload =
    Payload { name: "collector", extension: ".so", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/collector.so")) };
pub const SOFTGPU: Payload =
    Payload { name: "softgpu", extension: ".so", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/softgpu.so")) };
pub const SERVER: Payload =
    Payload { name: "server", extension: "", bytes: include_bytes!(concat!(env!("OUT_DIR"), "/server")) };

/// The user who will load the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
    pub home: Option<PathBuf>,
}

impl Owner {
    /// Returns the user that this process runs as.
    pub fn current() -> Self {
        // SAFETY: both calls only return numbers.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        Owner { uid, gid, home: std::env::var_os("HOME").map(PathBuf::from) }
    }
}

impl Payload {
    /// Ensures that the file is in a directory from which `owner` can load it; returns its path.
    ///
    /// All of this happens with the rights of `owner`: a directory that they can change must not
    /// lead root astray.
    pub fn lay_down(self, owner: &Owner) -> Result<PathBuf> {
        let _rights = Rights::of(owner)?;
        let directory = directory(owner)?;
        let path = directory.join(self.file_name());
        if fs::read(&path).is_ok_and(|it| it == self.bytes) {
            return Ok(path);
        }
        let draft = directory.join(format!(".{}-{}", self.name, std::process::id()));
        self.write(&draft, &path)
            .map_err(|it| anyhow!("writing {} to {}: {it}{}", self.name, path.display(), advice(&it)))?;
        Ok(path)
    }

    /// Whether a file of this length is this one.
    pub fn is(self, path: &Path, len: u64) -> bool {
        len == self.bytes.len() as u64 && fs::read(path).is_ok_and(|it| it == self.bytes)
    }

    /// Returns the name under which the file is stored.
    pub fn file_name(self) -> String {
        format!("{}-{:016x}{}", self.name, hash(self.bytes), self.extension)
    }

    /// Ensures that the file is in a directory below another root; returns its path there. Links below the root are
    /// followed as its processes do, so they cannot lead out of it.
    ///
    /// # Errors
    /// No directory is suitable.
    pub fn lay_down_in(self, root: &Path) -> Result<PathBuf> {
        let root = File::open(root).context("opening its root directory")?;
        let mut refusals = Vec::new();
        for parent in ["var/tmp", "tmp", "dev/shm"] {
            match self.write_below(&root, parent) {
                Ok(directory) => return Ok(Path::new("/").join(parent).join(directory).join(self.file_name())),
                Err(error) => refusals.push(format!("/{parent}: {error:#}")),
            }
        }
        bail!("found no directory for the collector in its root directory: {}", refusals.join("; "))
    }

    /// Writes the file into a directory of ours in `parent`; returns that directory's name.
    fn write_below(self, root: &File, parent: &str) -> Result<String> {
        let parent = open_directory(root, Path::new(parent), libc::RESOLVE_IN_ROOT)?;
        // SAFETY: no arguments, cannot fail.
        let own = unsafe { libc::geteuid() };
        let name = format!("xputrace-{own}");
        let directory_name = CString::new(name.as_str())?;
        // SAFETY: a directory of ours and a C string. That it exists already is fine.
        unsafe { libc::mkdirat(parent.as_raw_fd(), directory_name.as_ptr(), 0o755) };
        let directory = open_directory(&parent, Path::new(&name), libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS)?;
        let found = directory.metadata()?;
        if found.uid() != own || found.mode() & 0o022 != 0 {
            bail!("{name} is not a directory that only user {own} can write");
        }
        // Through its descriptor, nothing above can be exchanged any more.
        let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        if is_noexec(&path)? {
            bail!("its file system is mounted noexec");
        }
        let file = path.join(self.file_name());
        if !fs::read(&file).is_ok_and(|it| it == self.bytes) {
            self.write(&path.join(format!(".{}", std::process::id())), &file)?;
        }
        Ok(name)
    }

    fn write(self, draft: &Path, path: &Path) -> io::Result<()> {
        let _ = fs::remove_file(draft);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(draft)?;
        file.write_all(self.bytes)?;
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
        fs::rename(draft, path)
    }
}

/// The effective user and group of this thread, changed until dropped. libc's functions would change those of all
/// threads, some of which need our rights.
struct Rights {
    before: Option<(u32, u32)>,
}

/// `-1` of setresuid(2): leaves an id as it is.
const SAME: u32 = u32::MAX;

impl Rights {
    fn of(owner: &Owner) -> Result<Self> {
        // SAFETY: cannot fail, and only return numbers.
        let before = unsafe { (libc::geteuid(), libc::getegid()) };
        if before.0 != 0 || owner.uid == 0 {
            return Ok(Rights { before: None });
        }
        let become_owner = || set_group(owner.gid).and_then(|()| set_user(owner.uid));
        become_owner().inspect_err(|_| _ = set_group(before.1)).context(format!("acting as user {}", owner.uid))?;
        Ok(Rights { before: Some(before) })
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        if let Some((uid, gid)) = self.before {
            // The saved user id is still root's.
            let _ = set_user(uid).and_then(|()| set_group(gid));
        }
    }
}

fn set_user(uid: u32) -> io::Result<()> {
    // SAFETY: sets numbers of the calling thread.
    if unsafe { libc::syscall(libc::SYS_setresuid, SAME, uid, SAME) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn set_group(gid: u32) -> io::Result<()> {
    // SAFETY: as above.
    if unsafe { libc::syscall(libc::SYS_setresgid, SAME, gid, SAME) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Returns a directory that belongs to the user alone and may contain code.
fn directory(owner: &Owner) -> Result<PathBuf> {
    let mut candidates = Vec::new();
    if owner.uid == 0 {
        // A program started by root may become another user, who cannot read root's home.
        candidates.push(PathBuf::from("/var/cache/xputrace"));
    }
    // Don't create a missing home (the user nobody has none); it would get the wrong owner.
    candidates.extend(owner.home.as_ref().filter(|home| home.is_dir()).map(|home| home.join(".cache/xputrace")));
    candidates.push(PathBuf::from(format!("/var/tmp/xputrace-{}", owner.uid)));
    candidates.push(PathBuf::from(format!("/tmp/xputrace-{}", owner.uid)));
    let mut refusals = Vec::new();
    for candidate in candidates {
        match prepare(&candidate, owner) {
            Ok(()) => return Ok(candidate),
            Err(reason) => refusals.push(format!("{}: {reason:#}", candidate.display())),
        }
    }
    bail!(
        "found no directory for the collector that user {} owns and can execute files from: {}",
        owner.uid,
        refusals.join("; ")
    )
}

fn prepare(directory: &Path, owner: &Owner) -> Result<()> {
    // Users that root's commands become load from root's directory.
    let mode = if owner.uid == 0 { 0o755 } else { 0o700 };
    if !directory.exists() {
        fs::DirBuilder::new().recursive(true).mode(mode).create(directory)?;
    }
    let found = fs::symlink_metadata(directory)?;
    if !found.is_dir() || found.uid() != owner.uid || found.mode() & 0o022 != 0 {
        bail!("it is not a directory that only user {} can write", owner.uid);
    }
    if found.mode() & mode != mode {
        // It was created under a restrictive umask.
        fs::set_permissions(directory, fs::Permissions::from_mode(mode))?;
    }
    if is_noexec(directory)? {
        bail!("its file system is mounted noexec");
    }
    Ok(())
}

fn is_noexec(directory: &Path) -> Result<bool> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: a zeroed statvfs is valid, and the call fills it or fails.
    let mut info: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is NUL-terminated and `info` outlives the call.
    if unsafe { libc::statvfs(path.as_ptr(), &mut info) } != 0 {
        return Err(std::io::Error::last_os_error()).context("asking for its mount flags");
    }
    Ok(info.f_flag & libc::ST_NOEXEC != 0)
}

/// FNV-1a: identifies contents, protects nothing (the contents are compared too).
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |acc, byte| (acc ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
