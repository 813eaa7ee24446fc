//! Processes to wait for, held by descriptor because their ids may be reused.

use super::source::{EventSource, Progress};
use crate::run::running::Running;
use anyhow::{Result, bail};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use xputrace_linux::{has_ended, pidfd};

/// The processes; none if all are probed. Ended ones are forgotten.
#[derive(Debug, Default)]
pub struct Processes {
    alive: Vec<OwnedFd>,
    /// Whether any were named.
    are_named: bool,
}

impl Processes {
    /// The processes that `-p` names.
    ///
    /// # Errors
    /// There is no such process, or the id is a thread's.
    pub fn named(pids: &[u32]) -> Result<Self> {
        let mut all = Vec::new();
        for pid in pids {
            match pidfd(*pid) {
                Ok(fd) => all.push(fd),
                Err(error) => match error.raw_os_error() {
                    _ if *pid == 0 => bail!("-p 0: there is no such process"),
                    Some(libc::ESRCH) => bail!("-p {pid}: there is no such process"),
                    Some(libc::EINVAL | libc::ENOENT) => {
                        bail!("-p {pid} is a thread; give the id of its process")
                    }
                    _ => bail!("-p {pid} cannot be watched: {error}"),
                },
            }
        }
        Ok(Processes { are_named: !all.is_empty(), alive: all })
    }

    /// Returns the command's process; none if Linux refuses, since its end is polled too.
    pub fn of_command(pid: u32) -> Self {
        Processes { alive: pidfd(pid).into_iter().collect(), are_named: true }
    }

    /// Returns descriptors that are readable when one of them ends.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.alive.iter().map(AsRawFd::as_raw_fd)
    }

    /// Whether all named processes have ended.
    pub fn are_gone(&mut self) -> bool {
        self.alive.retain(|it| !has_ended(it));
        self.are_named && self.alive.is_empty()
    }
}

impl EventSource for Processes {
    fn descriptors(&self, _running: &Running) -> Vec<RawFd> {
        self.fds().collect()
    }

    fn step(&mut self, _running: &mut Running) -> Result<Progress> {
        Ok(if self.are_gone() { Progress::Stop } else { Progress::Idle })
    }
}

/// Sleeps until one of these is readable, at most `millis` milliseconds.
pub fn poll(fds: impl Iterator<Item = RawFd>, millis: libc::c_int) -> bool {
    let mut fds: Vec<libc::pollfd> = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: the array outlives the call and its length is given.
    unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, millis) > 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_there_until_it_ends() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let mut processes = Processes::named(&[child.id()]).unwrap();
        assert!(!processes.are_gone());
        child.kill().unwrap();
        // Not reaped yet: its id is still in /proc.
        poll(processes.fds(), 10_000);
        assert!(processes.are_gone());
        assert!(std::path::Path::new("/proc").join(child.id().to_string()).exists());
        child.wait().unwrap();
        assert!(Processes::named(&[child.id()]).unwrap_err().to_string().contains("no such process"));
    }
}
