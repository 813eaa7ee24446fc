//! Runs a program as another user, or a program that another user can write, with nothing of ours: for a limited time, in
//! a session of its own without a terminal, with an empty environment, limits, and no descriptors but its own.

use crate::answer;
use crate::memory::MemoryFile;
use crate::trust::Changers;
use crate::user::{Account, is_root};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a program may run.
#[derive(Clone, Copy, Debug)]
pub struct Limit<'a> {
    pub within: Duration,
    /// Set when nobody wants its result.
    pub is_given_up: &'a AtomicBool,
}

/// Why a program did not end by itself.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("it can't be run: {0}")]
    System(#[from] io::Error),
    #[error("it is not run as user {uid}: another user can change {}", path.display())]
    CanBeChanged { path: PathBuf, uid: u32 },
    #[error("it did not end within {} s", .0.as_secs())]
    TooLong(Duration),
    #[error("the run is over")]
    GivenUp,
}

/// How often to look whether a result is still wanted.
const LOOKS_EVERY: Duration = Duration::from_millis(50);
/// How often to look whether it has ended, where Linux doesn't tell (before 5.3).
const ASKS_EVERY: Duration = Duration::from_millis(5);
/// More than compilers say.
const MOST_SAID_BYTES: u64 = 16 << 20;
/// As Linux follows in a path.
const MOST_LINKS: usize = 40;
/// What a file may grow to that it writes.
const MOST_WRITTEN_BYTES: u64 = 128 << 20;
/// What it may take of memory: compilers take some gigabytes for the largest kernels.
const MOST_MEMORY_BYTES: u64 = 16 << 30;
const MOST_DESCRIPTORS: u64 = 256;

/// Runs a program; returns how it ended and what it said, 16 MiB at most. Root becomes the user of the account; others
/// must be that user. The program also gets `files`, as `/proc/self/fd/N`.
///
/// # Errors
/// It can't be run, or users other than root and that of the account can change it; or it takes too long.
pub fn run(
    program: &Path,
    arguments: impl IntoIterator<Item = impl AsRef<std::ffi::OsStr>>,
    files: &[&MemoryFile],
    account: Account,
    limit: Limit<'_>,
) -> Result<(ExitStatus, String), RunError> {
    // It is run in another directory.
    let program = &std::path::absolute(program)?;
    if let Some(path) = changeable_by_others(program, account)? {
        return Err(RunError::CanBeChanged { path, uid: account.uid });
    }
    let mut said = MemoryFile::new()?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().current_dir("/");
    command.stdin(Stdio::null()).stdout(said.0.try_clone()?).stderr(said.0.try_clone()?);
    if is_root() {
        // The standard library gives up all other groups too.
        command.gid(account.gid).uid(account.uid);
    }
    let kept: Vec<RawFd> = files.iter().map(|it| it.0.as_raw_fd()).collect();
    let seconds = limit.within.as_secs() + 1;
    // SAFETY: between fork and exec it only makes system calls, and allocates nothing.
    unsafe { command.pre_exec(move || prepare(&kept, seconds)) };
    let mut child = command.spawn()?;
    let status = wait(&mut child, limit)?;
    Ok((status, String::from_utf8_lossy(&said.read(MOST_SAID_BYTES)?).into_owned()))
}

/// Returns the first part of a path that users other than root and this one can change: the file, a directory above it,
/// or a link on the way, with the directories above that.
fn changeable_by_others(program: &Path, account: Account) -> io::Result<Option<PathBuf>> {
    let mut way = Some(program.to_owned());
    for _ in 0..MOST_LINKS {
        let Some(path) = way else { return Ok(None) };
        for part in path.ancestors() {
            if !Changers::of_path(part)?.leave_to(&[account]) {
                return Ok(Some(part.to_owned()));
            }
        }
        way = with_a_link_followed(&path)?;
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// Returns a path with its first link replaced by what that leads to; `None` without a link.
fn with_a_link_followed(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut parts = path.components();
    let mut so_far = PathBuf::new();
    while let Some(part) = parts.next() {
        let directory = so_far.clone();
        so_far.push(part);
        if so_far.symlink_metadata()?.is_symlink() {
            // `join` with an empty path would add a slash, and a file's path must not end in one.
            let (to, rest) = (directory.join(so_far.read_link()?), parts.as_path());
            return Ok(Some(if rest.as_os_str().is_empty() { to } else { to.join(rest) }));
        }
    }
    Ok(None)
}

/// In the child: it ends with us, has no terminal, gets no rights by its file, and keeps these descriptors alone.
fn prepare(kept: &[RawFd], seconds: u64) -> io::Result<()> {
    // SAFETY: numbers only; the descriptors are open in the child too.
    unsafe {
        answer(libc::setsid())?;
        answer(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        answer(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        libc::umask(0o077);
        close_at_exec()?;
        for fd in kept {
            answer(libc::fcntl(*fd, libc::F_SETFD, 0))?;
        }
    }
    for (what, most) in [
        (libc::RLIMIT_CPU, seconds),
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_FSIZE, MOST_WRITTEN_BYTES),
        (libc::RLIMIT_AS, MOST_MEMORY_BYTES),
        (libc::RLIMIT_NOFILE, MOST_DESCRIPTORS),
    ] {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: a live structure.
        answer(unsafe { libc::setrlimit(what, &raw const limit) })?;
    }
    Ok(())
}

/// Marks all descriptors but the standard ones to be closed by exec. They are not closed yet: the standard library
/// reports by one of them that exec failed.
fn close_at_exec() -> io::Result<()> {
    /// Source: `include/uapi/linux/close_range.h`.
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 1 << 2;
    // SAFETY: numbers only.
    if unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC) } == 0 {
        return Ok(());
    }
    // Before Linux 5.11. Without allocation, so /proc/self/fd can't be listed.
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live structure, then numbers only; those that are not open are an error without effect.
    unsafe {
        answer(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit))?;
        for fd in 3..limit.rlim_cur.min(1 << 20) as RawFd {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        }
    }
    Ok(())
}

fn wait(child: &mut Child, limit: Limit<'_>) -> Result<ExitStatus, RunError> {
    let until = Instant::now() + limit.within;
    let pidfd = pidfd(child.id());
    loop {
        match &pidfd {
            Some(it) => wait_for(it, LOOKS_EVERY),
            None => sleep(ASKS_EVERY),
        }
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let error = match limit.is_given_up.load(Ordering::Acquire) {
            true => RunError::GivenUp,
            false if Instant::now() >= until => RunError::TooLong(limit.within),
            false => continue,
        };
        // With all of its group, which it leads.
        // SAFETY: numbers only; the child is not waited for yet, so that its number is nobody else's.
        unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
        child.wait()?;
        return Err(error);
    }
}

fn pidfd(pid: u32) -> Option<OwnedFd> {
    // SAFETY: the new descriptor is ours.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// Waits until a descriptor is readable, or for this long.
fn wait_for(fd: &OwnedFd, within: Duration) {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live structure.
    unsafe { libc::poll(&raw mut poll, 1, within.as_millis() as i32) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown};

    static WANTED: AtomicBool = AtomicBool::new(false);

    fn said(script: &str, account: Account) -> Result<String, RunError> {
        let limit = Limit { within: Duration::from_secs(20), is_given_up: &WANTED };
        run(Path::new("/bin/sh"), ["-c", script], &[], account, limit).map(|it| it.1)
    }

    #[test]
    fn it_has_no_terminal_no_environment_and_no_descriptors_of_ours() {
        // SAFETY: a copy of a descriptor that every later exec inherits.
        let inherited = unsafe { libc::dup(2) };
        assert!(inherited > 2);
        let script = "ps -o sid= -p $$ | tr -d ' '; echo $$; env | grep -cv ^_=; ls /proc/$$/fd | xargs; umask; \
                      (: </dev/tty) 2>/dev/null || echo none";
        let answer = said(script, Account::current()).unwrap();
        let lines: Vec<&str> = answer.lines().collect();
        assert_eq!(lines[0], lines[1], "it leads a session");
        // The shell sets PWD itself.
        assert!(lines[2].parse::<u32>().unwrap() <= 1, "{answer}");
        assert_eq!(lines[3..], ["0 1 2", "0077", "none"], "{answer}");
        // SAFETY: ours.
        unsafe { libc::close(inherited) };
    }

    #[test]
    fn what_it_writes_is_bounded() {
        let account = Account::current();
        let endless = said("yes >&2", account).unwrap();
        assert!(endless.len() as u64 <= MOST_SAID_BYTES);
    }

    #[test]
    fn a_file_that_another_user_can_change_is_not_run() {
        if !is_root() {
            println!("skipped: not root");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("program");
        fs::write(&program, "#!/bin/sh\nid -u\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let them = Account { uid: 12_345, gid: 12_345 };
        let limit = Limit { within: Duration::from_secs(20), is_given_up: &WANTED };
        // Another test's child may have the file open for a moment, as it was inherited.
        let run_as = |account| loop {
            match run(&program, [""; 0], &[], account, limit) {
                Err(RunError::System(it)) if it.kind() == io::ErrorKind::ExecutableFileBusy => {}
                other => return other.map(|it| it.1),
            }
        };
        assert_eq!(run_as(Account::ROOT).unwrap(), "0\n");
        assert_eq!(run_as(them).unwrap(), "12345\n");
        chown(&program, Some(them.uid), None).unwrap();
        assert!(matches!(run_as(Account::ROOT), Err(RunError::CanBeChanged { .. })));
        assert_eq!(run_as(them).unwrap(), "12345\n");
        chown(&program, Some(0), None).unwrap();
        chown(place.path(), Some(them.uid), None).unwrap();
        assert!(matches!(run_as(Account::ROOT), Err(RunError::CanBeChanged { path, .. }) if path == place.path()));
        // A link of root's to one of theirs, which leads back to a program of root's.
        let own = tempfile::tempdir().unwrap();
        fs::set_permissions(own.path(), fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink("/bin/true", place.path().join("link")).unwrap();
        std::os::unix::fs::symlink(place.path().join("link"), own.path().join("link")).unwrap();
        let refused = run(&own.path().join("link"), [""; 0], &[], Account::ROOT, limit);
        assert!(matches!(refused, Err(RunError::CanBeChanged { .. })), "{refused:?}");
    }
}
