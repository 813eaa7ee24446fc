//! Processes that load CUDA's driver library, so that one whose collector never connects is known.
//!
//! CUDA loads the collector by a variable of the environment, which programs may remove; and in
//! another mount namespace the variable names no file.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::RawFd;
use std::path::Path;
use xputrace_linux::{ProcessEvent, ProcessWatch};

/// Processes kept at a time; of those beyond, nothing is known.
const MOST_PROCESSES: usize = 1 << 16;

/// The driver library's users among the processes of a command.
#[derive(Default)]
pub struct Drivers {
    /// `None` where the system lets us open no perf events.
    watch: Option<ProcessWatch>,
    processes: HashMap<u32, Process>,
}

#[derive(Default)]
struct Process {
    comm: String,
    /// Whether the program that it runs now has loaded the library.
    has_library: bool,
    /// Programs of this process id that loaded it, less those whose collector connected.
    unconnected: i32,
}

/// A process that loaded the driver library and whose collector never connected.
#[derive(Debug, PartialEq, Eq)]
pub struct Unconnected {
    pub pid: u32,
    pub comm: String,
}

impl Drivers {
    /// Of a command that has not begun to run.
    pub fn watch(command: u32) -> Self {
        Drivers { watch: ProcessWatch::of(command).ok(), ..Drivers::default() }
    }

    /// Readable when there is something to take.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.watch.iter().flat_map(ProcessWatch::fds)
    }

    /// The command's processes that run, as of the last [`Drivers::take`].
    pub fn running(&self) -> Vec<u32> {
        self.watch.as_ref().map(ProcessWatch::running).unwrap_or_default()
    }

    /// Takes what the processes have done since.
    pub fn take(&mut self) {
        let events = self.watch.as_mut().map(ProcessWatch::events).unwrap_or_default();
        events.into_iter().for_each(|it| self.heard(it));
    }

    fn heard(&mut self, event: ProcessEvent) {
        match event {
            ProcessEvent::Exec { pid, comm, .. } => {
                if let Some(process) = self.process(pid) {
                    (process.comm, process.has_library) = (comm, false);
                }
            }
            ProcessEvent::Mmap { pid, path, .. } if is_driver_library(&path) => {
                if let Some(process) = self.process(pid)
                    && !std::mem::replace(&mut process.has_library, true)
                {
                    process.unconnected += 1;
                }
            }
            // Most have nothing to do with CUDA: they are forgotten, and others have room.
            ProcessEvent::Exit { pid, .. } if self.processes.get(&pid).is_some_and(|it| it.unconnected == 0) => {
                self.processes.remove(&pid);
            }
            _ => {}
        }
    }

    /// The collector of a process has connected, which may be heard before its mappings are.
    pub fn connected(&mut self, pid: u32) {
        if let Some(process) = self.process(pid) {
            process.unconnected -= 1;
        }
    }

    fn process(&mut self, pid: u32) -> Option<&mut Process> {
        let has_room = self.processes.len() < MOST_PROCESSES || self.processes.contains_key(&pid);
        has_room.then(|| self.processes.entry(pid).or_default())
    }

    /// Those whose collector never connected, at the end of a run.
    pub fn unconnected(&self) -> Vec<Unconnected> {
        let times = |it: &Process| usize::try_from(it.unconnected).unwrap_or(0);
        let each =
            |(pid, it): (&u32, &Process)| std::iter::repeat_n((*pid, it.comm.clone()), times(it)).collect::<Vec<_>>();
        let mut all: Vec<_> = self.processes.iter().flat_map(each).collect();
        all.sort();
        all.into_iter().map(|(pid, comm)| Unconnected { pid, comm }).collect()
    }
}

/// Whether a file is libcuda, or the library that stands in for it.
fn is_driver_library(path: &Path) -> bool {
    let name = path.file_name().map(OsStr::as_encoded_bytes).unwrap_or_default();
    name.starts_with(b"libcuda.so") || is_software_gpu_name(name)
}

/// Whether a file's name is the software GPU's.
pub fn is_software_gpu_name(name: &[u8]) -> bool {
    name.windows(b"softgpu".len()).any(|it| it == b"softgpu")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exec(pid: u32) -> ProcessEvent {
        ProcessEvent::Exec { time_nanos: 0, pid, comm: "train".into() }
    }

    fn maps(pid: u32, path: &str) -> ProcessEvent {
        ProcessEvent::Mmap { time_nanos: 0, pid, start: 0, len: 0, pgoff: 0, path: path.into(), build_id: Vec::new() }
    }

    fn left(events: impl IntoIterator<Item = ProcessEvent>, connected: &[u32]) -> Vec<u32> {
        let mut drivers = Drivers::default();
        connected.iter().for_each(|it| drivers.connected(*it));
        events.into_iter().for_each(|it| drivers.heard(it));
        drivers.unconnected().iter().map(|it| it.pid).collect()
    }

    #[test]
    fn each_program_connects_once_whenever_that_is_heard() {
        let library = |pid| maps(pid, "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04");
        assert_eq!(left([exec(7), library(7), library(7)], &[]), [7]);
        assert_eq!(left([exec(7), library(7)], &[7]), [0; 0]);
        assert_eq!(left([exec(7), library(7), exec(7), library(7)], &[7]), [7], "the second program is another one");
        assert_eq!(left([exec(7), maps(7, "/usr/lib/libcudart.so.13"), maps(7, "/lib/libc.so.6")], &[]), [0; 0]);
        let exit = ProcessEvent::Exit { time_nanos: 0, pid: 7 };
        assert_eq!(left([exec(7), library(7), exit], &[]), [7]);
    }
}
