//! Processes that load CUDA's driver library, so that those whose CUDA calls may be missing are known.
//!
//! CUDA loads the collector at the first CUDA call, from a variable of the environment. So a process
//! that could load it and has not made no CUDA call, and nothing of it is missing: many programs are
//! linked with the driver library and never use it. What counts is a process that loaded the collector
//! and never connected, and one in which CUDA finds no collector.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use xputrace_linux::{ProcessEvent, ProcessWatch};
use xputrace_wire::SOCKET_VARIABLE;

/// The variable that names the library which CUDA loads at the first CUDA call.
pub const INJECTION_VARIABLE: &str = "CUDA_INJECTION64_PATH";

/// Processes kept at a time; of those beyond, nothing is known.
const MOST_PROCESSES: usize = 1 << 16;

/// The driver library's users among the processes of a command.
#[derive(Default)]
pub struct Drivers {
    /// `None` where what processes do is heard from elsewhere, or the system refused it.
    watch: Option<ProcessWatch>,
    /// What cannot be known because the system refused the watch.
    deaf: Option<String>,
    given: Given,
    processes: HashMap<u32, Process>,
    /// Programs that have ended, could load the collector, and did not.
    n_idle: u64,
}

/// What the environment of the command was given.
#[derive(Clone, Debug, Default)]
pub struct Given {
    pub command: u32,
    /// The collector's file.
    pub collector: PathBuf,
    /// The address of our socket.
    pub socket: String,
}

#[derive(Debug, Default)]
struct Process {
    comm: String,
    execs: u32,
    /// What it runs now, once that has loaded the driver library.
    now: Option<Program>,
    /// What it ran before, as far as it is missing.
    earlier: Vec<Program>,
    /// Collectors that connected before their program was heard to load the library.
    early_connections: u32,
}

/// A program that has loaded the driver library, which may be heard of several times.
#[derive(Debug)]
struct Program {
    comm: String,
    has_loaded_collector: bool,
    has_connected: bool,
    /// Why CUDA finds no collector in it; `None` where it does.
    hindrance: Option<String>,
}

impl Program {
    /// Whether it may have made CUDA calls that are missing.
    fn is_missing(&self) -> bool {
        !self.has_connected && (self.has_loaded_collector || self.hindrance.is_some())
    }

    /// Whether it could load the collector, and did not.
    fn is_idle(&self) -> bool {
        !self.has_connected && !self.is_missing()
    }
}

/// A process whose CUDA calls, if it made any, are missing.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unconnected {
    pub pid: u32,
    pub comm: String,
    /// Why its collector has not connected, where that is known.
    pub why: Option<String>,
}

impl Drivers {
    /// Of a command that has not begun to run. What its processes do is told by [`Drivers::heard`].
    pub fn told(given: Given) -> Self {
        Drivers { given, ..Drivers::default() }
    }

    /// The same, hearing itself what they do.
    pub fn watching(given: Given) -> Self {
        let (watch, deaf) = match ProcessWatch::of(given.command) {
            Ok(watch) => (Some(watch), None),
            Err(error) => (None, Some(deafness(&error))),
        };
        Drivers { watch, deaf, ..Drivers::told(given) }
    }

    /// Returns what cannot be known about the command's processes, and why; `None` if all of it can.
    pub fn shortfall(&self) -> Option<String> {
        let lost = self.watch.as_ref().map_or(0, ProcessWatch::lost);
        let dropped = || {
            format!(
                "Linux dropped {lost} records of what processes did, as too many came at once: `untraced_process` and \
                 `still_running` may be too low"
            )
        };
        self.deaf.clone().or_else(|| (lost > 0).then(dropped))
    }

    /// Readable when there is something to take.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.watch.iter().flat_map(ProcessWatch::fds)
    }

    /// The command's processes that run, as of the last [`Drivers::take`]; none where it is told of them.
    pub fn running(&self) -> Vec<u32> {
        self.watch.as_ref().map(ProcessWatch::running).unwrap_or_default()
    }

    /// Takes what the processes have done since.
    pub fn take(&mut self) {
        let events = self.watch.as_mut().map(ProcessWatch::events).unwrap_or_default();
        events.iter().for_each(|it| self.heard(it));
    }

    /// A process did something.
    pub fn heard(&mut self, event: &ProcessEvent) {
        match event {
            ProcessEvent::Exec { pid, comm, .. } => self.exec(*pid, comm),
            ProcessEvent::Mmap { pid, path, .. } if is_driver_library(path) => self.loads_driver(*pid),
            ProcessEvent::Mmap { pid, path, .. } if path.file_name() == self.given.collector.file_name() => {
                if let Some(program) = self.processes.get_mut(pid).and_then(|it| it.now.as_mut()) {
                    program.has_loaded_collector = true;
                }
            }
            ProcessEvent::Exit { pid, .. } => self.exit(*pid),
            _ => {}
        }
    }

    fn exec(&mut self, pid: u32, comm: &str) {
        self.end_program(pid);
        if let Some(process) = self.process(pid) {
            comm.clone_into(&mut process.comm);
            process.execs += 1;
        }
    }

    /// Looks at once whether CUDA finds the collector there: later the process may be gone.
    fn loads_driver(&mut self, pid: u32) {
        let given = self.given.clone();
        let Some(process) = self.process(pid) else { return };
        if process.now.is_some() {
            return;
        }
        let is_as_given = pid == given.command && process.execs <= 1;
        let hindrance = match given.hindrance(pid) {
            Err(_) if is_as_given => None,
            // It ended before it could be asked. It inherited the environment of the command, as far as is known.
            Err(error) if has_ended(&error) => None,
            Err(error) => Some(format!("its environment cannot be read ({error})")),
            Ok(hindrance) => hindrance,
        };
        let comm = process.comm.clone();
        let has_connected = process.early_connections > 0;
        process.early_connections -= u32::from(has_connected);
        process.now = Some(Program { comm, has_loaded_collector: false, has_connected, hindrance });
    }

    /// Most have nothing to do with CUDA: they are forgotten, and others have room.
    fn exit(&mut self, pid: u32) {
        self.end_program(pid);
        if self.processes.get(&pid).is_some_and(|it| it.earlier.is_empty()) {
            self.processes.remove(&pid);
        }
    }

    fn end_program(&mut self, pid: u32) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        match process.now.take() {
            Some(program) if program.is_missing() => process.earlier.push(program),
            Some(program) => self.n_idle += u64::from(program.is_idle()),
            None => {}
        }
    }

    /// The collector of a process has connected, which may be heard before its mappings are.
    pub fn connected(&mut self, pid: u32) {
        let Some(process) = self.process(pid) else { return };
        let now = process.now.as_mut().filter(|it| !it.has_connected);
        let earlier = process.earlier.iter().position(|it| it.has_loaded_collector);
        match (earlier.or(process.earlier.len().checked_sub(1).filter(|_| now.is_none())), now) {
            (Some(at), _) => _ = process.earlier.remove(at),
            (None, Some(program)) => program.has_connected = true,
            (None, None) => process.early_connections += 1,
        }
    }

    fn process(&mut self, pid: u32) -> Option<&mut Process> {
        let has_room = self.processes.len() < MOST_PROCESSES || self.processes.contains_key(&pid);
        has_room.then(|| self.processes.entry(pid).or_default())
    }

    /// Those whose CUDA calls may be missing, at the end of a run.
    pub fn unconnected(&self) -> Vec<Unconnected> {
        let programs = |(pid, it): (&u32, &Process)| {
            let all = it.earlier.iter().chain(&it.now).filter(|it| it.is_missing());
            all.map(|it| Unconnected { pid: *pid, comm: it.comm.clone(), why: it.hindrance.clone() })
                .collect::<Vec<_>>()
        };
        let mut all: Vec<_> = self.processes.iter().flat_map(programs).collect();
        all.sort();
        all
    }

    /// Programs that loaded the driver library, and in which CUDA never loaded the collector though it could.
    pub fn n_idle(&self) -> u64 {
        let running = self.processes.values().filter_map(|it| it.now.as_ref());
        self.n_idle + running.filter(|it| it.is_idle()).count() as u64
    }
}

/// Whether a file of `/proc/PID` could not be read because the process is over (proc_pid_environ(5)).
fn has_ended(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT))
}

impl Given {
    /// What keeps CUDA from loading our collector in a process that has begun to run.
    ///
    /// # Errors
    /// The process cannot be looked at, mostly because it has ended.
    fn hindrance(&self, pid: u32) -> io::Result<Option<String>> {
        let environment = std::fs::read(format!("/proc/{pid}/environ"))?;
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let is_there = match std::fs::metadata(within(&root, &self.collector)) {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        Ok(self.hindrance_in(&environment, is_there))
    }

    /// `environment` is that of proc_pid_environ(5).
    fn hindrance_in(&self, environment: &[u8], has_file: bool) -> Option<String> {
        let variable = |name: &str| {
            let of_name = |it: &[u8]| it.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec);
            environment.split(|it| *it == 0).find_map(of_name).map(OsString::from_vec)
        };
        match variable(INJECTION_VARIABLE) {
            None => return Some(format!("its environment has no {INJECTION_VARIABLE}")),
            Some(other) if other != *self.collector.as_os_str() => {
                return Some(format!("its {INJECTION_VARIABLE} is {}", other.display()));
            }
            Some(_) => {}
        }
        match variable(SOCKET_VARIABLE) {
            Some(ours) if ours.as_bytes() == self.socket.as_bytes() => {}
            Some(_) => return Some("another xputrace, started inside, traces it".into()),
            None => return Some(format!("its environment has no {SOCKET_VARIABLE}")),
        }
        (!has_file).then(|| format!("{} does not exist in its root directory", self.collector.display()))
    }
}

/// Returns what a run misses that cannot watch processes, and what to do.
fn deafness(error: &io::Error) -> String {
    let advice = match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (`ulimit -n`)",
        Some(libc::EACCES | libc::EPERM) => {
            "set /proc/sys/kernel/perf_event_paranoid to 2, or run as root; containers often refuse it by seccomp"
        }
        _ => "`xputrace doctor` checks the machine",
    };
    format!(
        "cannot watch processes: perf_event_open failed: {error}. Processes whose CUDA calls are missing \
         (`untraced_process`), and those that go on after the run (`still_running`), are not counted; {advice}"
    )
}

/// A path as a process with this root directory sees it.
fn within(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
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

    const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04";
    const COLLECTOR: &str = "/var/cache/xputrace/libxputrace_collector-1234.so";
    /// More than Linux gives out: such a process cannot be looked at.
    const GONE: u32 = 1 << 23;

    fn given(command: u32) -> Given {
        Given { command, collector: COLLECTOR.into(), socket: "@xputrace-1:1000".into() }
    }

    fn exec(pid: u32) -> ProcessEvent {
        ProcessEvent::Exec { time_nanos: 0, pid, comm: "train".into() }
    }

    fn maps(pid: u32, path: &str) -> ProcessEvent {
        ProcessEvent::Mmap { time_nanos: 0, pid, start: 0, len: 0, pgoff: 0, path: path.into(), build_id: Vec::new() }
    }

    fn exit(pid: u32) -> ProcessEvent {
        ProcessEvent::Exit { time_nanos: 0, pid }
    }

    /// Pids of those that are missing, and how many are idle.
    fn left(command: u32, events: &[ProcessEvent], connect_before: usize) -> (Vec<u32>, u64) {
        let mut drivers = Drivers::told(given(command));
        for (at, event) in events.iter().enumerate() {
            if at == connect_before {
                drivers.connected(GONE);
            }
            drivers.heard(event);
        }
        if connect_before == events.len() {
            drivers.connected(GONE);
        }
        (drivers.unconnected().iter().map(|it| it.pid).collect(), drivers.n_idle())
    }

    const NEVER: usize = usize::MAX;

    #[test]
    fn a_program_whose_collector_never_connects_is_missing_unless_it_could_and_did_not_load_it() {
        let (e, library, collector) = (exec(GONE), maps(GONE, LIBRARY), maps(GONE, COLLECTOR));
        let known = |events: &[ProcessEvent], connect_before| left(GONE, events, connect_before);
        let unknown = |events: &[ProcessEvent], connect_before| left(1, events, connect_before);
        let begun = [e.clone(), library.clone(), library.clone()];
        assert_eq!(known(&begun, NEVER), (vec![], 1), "it could load the collector, and made no CUDA call");
        assert_eq!(
            unknown(&begun, NEVER),
            (vec![], 1),
            "it has ended: it had the environment of the others, as far as is known"
        );
        let loaded = [e.clone(), library.clone(), collector.clone()];
        assert_eq!(known(&loaded, NEVER), (vec![GONE], 0), "it has loaded it, and never connected");
        // The library is heard of again after the connection: it has several mappings, or all events are late.
        let often = [e.clone(), library.clone(), library.clone(), collector.clone(), library.clone(), exit(GONE)];
        for events in [&loaded[..], &often] {
            for connected in 0..=events.len() {
                assert_eq!(known(events, connected), (vec![], 0), "connected before event {connected}");
            }
        }
        let ended = [e.clone(), library.clone(), collector.clone(), exit(GONE)];
        assert_eq!((known(&ended, NEVER), known(&ended, 4)), ((vec![GONE], 0), (vec![], 0)));
        let other = [e.clone(), maps(GONE, "/usr/lib/libcudart.so.13"), maps(GONE, "/lib/libc.so.6")];
        assert_eq!(unknown(&other, NEVER), (vec![], 0));
        // The command becomes another program: its environment may be another too.
        let twice = [e.clone(), library.clone(), collector, e, library];
        assert_eq!(known(&twice, 3), (vec![], 1), "the second program is another one, which never started it");
    }

    #[test]
    fn processes_that_are_over_take_no_room() {
        let mut drivers = Drivers::told(given(GONE));
        for pid in GONE..GONE + 1000 {
            [exec(pid), maps(pid, "/lib/libc.so.6"), exit(pid)].iter().for_each(|it| drivers.heard(it));
            [exec(pid), maps(pid, LIBRARY), maps(pid, COLLECTOR)].iter().for_each(|it| drivers.heard(it));
            drivers.connected(pid);
            drivers.heard(&exit(pid));
        }
        assert_eq!(drivers.processes.len(), 0);
    }

    #[test]
    fn what_keeps_cuda_from_loading_the_collector_is_named() {
        let injected = format!("A=b\0{INJECTION_VARIABLE}={COLLECTOR}\0{SOCKET_VARIABLE}=@xputrace-1:1000\0");
        let of = |environment: &str, has_file| given(1).hindrance_in(environment.as_bytes(), has_file);
        assert_eq!(of(&injected, true), None);
        for (environment, has_file, expected) in [
            ("A=b\0", true, "no CUDA_INJECTION64_PATH"),
            (injected.replace(COLLECTOR, "/opt/tool.so").as_str(), true, "is /opt/tool.so"),
            (injected.replace("trace-1:", "trace-2:").as_str(), true, "another xputrace"),
            (injected.split(SOCKET_VARIABLE).next().unwrap(), true, "no XPUTRACE_SOCKET"),
            (&injected, false, "does not exist in its root directory"),
        ] {
            let said = of(environment, has_file).unwrap_or_default();
            assert!(said.contains(expected), "{said}");
        }
    }
}
