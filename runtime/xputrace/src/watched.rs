//! Processes that are waited for, held by descriptor: a number can be another process's by now.

use anyhow::{Result, bail};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Processes of which those that have ended are forgotten.
#[derive(Debug)]
pub struct Watched(Vec<OwnedFd>);

impl Watched {
    /// The processes that `-p` names.
    ///
    /// # Errors
    /// There is no such process, or the number is a thread's.
    pub fn named(pids: &[u32]) -> Result<Self> {
        let mut all = Vec::new();
        for pid in pids {
            match pidfd(*pid) {
                Ok(fd) => all.push(fd),
                Err(error) => match error.raw_os_error() {
                    Some(libc::ESRCH) => bail!("-p {pid}: there is no such process"),
                    Some(libc::EINVAL | libc::ENOENT) if *pid > 0 => {
                        bail!("-p {pid} is a thread; give the id of its process")
                    }
                    _ => bail!("-p {pid} cannot be watched: {error}"),
                },
            }
        }
        Ok(Watched(all))
    }

    /// The command; nothing where the kernel refuses, as its end is asked for too.
    pub fn command(pid: u32) -> Self {
        Watched(pidfd(pid).into_iter().collect())
    }

    /// Readable when one of them ends.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.0.iter().map(AsRawFd::as_raw_fd)
    }

    /// Whether all of them have ended.
    pub fn are_gone(&mut self) -> bool {
        self.0.retain(|it| !is_readable(it));
        self.0.is_empty()
    }

    /// Sleeps until one of them ends, or so many milliseconds.
    pub fn wait(&self, millis: libc::c_int) {
        poll(self.fds(), millis);
    }
}

/// Sleeps until one of these can be read, or so many milliseconds.
pub fn poll(fds: impl Iterator<Item = RawFd>, millis: libc::c_int) -> bool {
    let mut fds: Vec<libc::pollfd> = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: the array outlives the call and its length is given.
    unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, millis) > 0 }
}

fn is_readable(fd: &OwnedFd) -> bool {
    poll(std::iter::once(fd.as_raw_fd()), 0)
}

fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two numbers and makes a descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was made just now, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_there_until_it_ends() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let mut watched = Watched::named(&[child.id()]).unwrap();
        assert!(!watched.are_gone());
        child.kill().unwrap();
        // Before it is waited for: its number is still in /proc.
        watched.wait(10_000);
        assert!(watched.are_gone());
        assert!(std::path::Path::new("/proc").join(child.id().to_string()).exists());
        child.wait().unwrap();
        assert!(Watched::named(&[child.id()]).unwrap_err().to_string().contains("no such process"));
    }
}
