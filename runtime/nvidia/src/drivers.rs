//! Tracks the processes that load CUDA's driver library, to find those whose CUDA calls may be
//! missing.
//!
//! At the first CUDA call, CUDA loads the collector named by an environment variable. Many programs
//! are linked with the driver library and never use it: nothing of them is missing. What counts is
//! a program in which CUDA runs without its collector connecting, and one in which CUDA cannot find
//! the collector.
//!
//! Linux reports what processes do, with times; connections have times too. All of these are put in
//! order before anything is concluded.

mod given;
mod program;

pub use given::Given;

use given::Look;
use program::{Fate, TrackedProgram};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::RawFd;
use std::path::Path;
use xputrace_linux::{ProcessEvent, ProcessWatch, has_thread, monotonic_nanos};
use xputrace_model::gpu::GpuKind;
use xputrace_rendezvous::{Armed, comm_of};
pub use xputrace_wire::INJECTION_VARIABLE;
use xputrace_wire::calls;
use xputrace_wire::maps::MapsLine;

/// Name of the thread that the driver starts with each context; before that, a process cannot use
/// the GPU. NVIDIA doesn't document the name; drivers for servers, desktops and Jetson use it.
const DRIVERS_THREAD: &str = "cuda-EvtHandlr";

/// Maximum number of processes tracked, and of their missing programs named.
const MOST_PROCESSES: usize = 1 << 16;

/// Maximum number of processes named that Linux stopped reporting on.
const MOST_UNWATCHED_NAMED: usize = 5;

/// The processes of a command that use the driver library.
#[derive(Default)]
pub struct Drivers {
    /// `None` if another source provides the events, or the system refused the watch.
    watch: Option<ProcessWatch>,
    /// What is unknown because the system refused the watch.
    deaf: Option<String>,
    /// Processes that Linux stopped reporting on, and could not be watched again. The first few, and their number.
    unwatched: Vec<u32>,
    n_unwatched: u64,
    given: Given,
    processes: HashMap<u32, TrackedProcess>,
    /// Connections since the last process events.
    connections: Vec<Connection>,
    /// Number of programs in [`TrackedProcess::earlier`], and of those for which there was no room.
    n_missing: usize,
    n_unnamed: u64,
    /// Number of programs that loaded the driver library and didn't connect, in processes for which there was no room.
    n_untracked: u64,
    /// Ended programs that could have loaded the collector, and in which CUDA never ran.
    n_idle: u64,
    /// Processes in which CUDA has started, to be attached to.
    started: Vec<u32>,
}

/// A collector's connection, by process.
#[derive(Clone, Copy, Debug)]
struct Connection {
    pid: u32,
    accepted_nanos: u64,
}

#[derive(Debug, Default)]
struct TrackedProcess {
    comm: String,
    n_execs: u32,
    /// Time of its last exec, or else of its fork.
    begun_nanos: u64,
    /// The running program, if it has loaded the driver library.
    now: Option<TrackedProgram>,
    /// Earlier programs that are missing.
    earlier: Vec<TrackedProgram>,
    has_ended: bool,
}

impl TrackedProcess {
    /// Returns the program whose collector connected at this time; the newest if several are
    /// equally likely.
    fn of_connection(&mut self, accepted_nanos: u64) -> Option<&mut TrackedProgram> {
        let all = self.earlier.iter_mut().chain(&mut self.now);
        let ranked = all.filter_map(|it| Some((it.rank_of_connection(accepted_nanos)?, it)));
        ranked.max_by_key(|(rank, _)| *rank).map(|(_, it)| it)
    }
}

/// A program whose CUDA calls, if it made any, are missing.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unconnected {
    pub pid: u32,
    pub comm: String,
    /// Whether it certainly used CUDA.
    pub used_driver: bool,
    /// Why its collector has not connected, if known.
    pub why: Option<String>,
}

impl Drivers {
    /// Creates it for a command that does not run yet; [`Drivers::heard`] is then told what its
    /// processes do.
    pub fn told(given: Given) -> Self {
        Drivers { given, ..Drivers::default() }
    }

    /// The same, but it watches the processes itself; all of them if none is given.
    pub fn watching(given: Given, pids: &[u32]) -> Self {
        let watch = if pids.is_empty() { ProcessWatch::of_all() } else { ProcessWatch::of(pids) };
        let (watch, deaf) = match watch {
            Ok(watch) => (Some(watch), None),
            Err(error) => (None, Some(deafness(&error, &given, pids.is_empty()))),
        };
        Drivers { watch, deaf, ..Drivers::told(given) }
    }

    /// Records that CUDA was found to run in a process. What Linux tells of the time before changes nothing.
    pub fn found(&mut self, pid: u32) {
        let now = monotonic_nanos();
        if let Some(process) = self.process(pid) {
            process.begun_nanos = now;
            process.now = Some(TrackedProgram::new(String::new(), now, Look::Attached, now));
            self.start(pid);
        }
    }

    /// Returns the processes in which CUDA has started, each program of them once. Somebody is to attach to them.
    pub fn take_started(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.started)
    }

    /// Records that the running program of a process has been accounted for.
    pub fn account_for(&mut self, pid: u32) {
        let program = self.processes.get_mut(&pid).and_then(|it| it.now.as_mut());
        program.into_iter().for_each(|it| it.reaches(Fate::Connected));
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
        self.deaf.clone().or_else(|| (lost > 0).then(dropped)).or_else(|| self.blindness())
    }

    fn blindness(&self) -> Option<String> {
        let (pids, more) = self.unwatched();
        let mut pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        if more > 0 {
            pids.push(format!("{more} more"));
        }
        (!pids.is_empty()).then(|| {
            format!(
                "Linux stops reporting on a process that changes its privileges at exec: what these did with CUDA, and \
                 which processes they left, is not known: {}",
                pids.join(", ")
            )
        })
    }

    /// Returns the processes that may have used CUDA since Linux stopped reporting on them: the first few, and how many more.
    pub fn unwatched(&self) -> (&[u32], u64) {
        (&self.unwatched, self.n_unwatched - self.unwatched.len() as u64)
    }

    /// Returns the descriptors that are readable when [`Drivers::take`] has something to do.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.watch.iter().flat_map(ProcessWatch::fds)
    }

    /// Returns the command's running processes, as of the last [`Drivers::take`]; none if another
    /// source provides the events.
    pub fn running(&self) -> Vec<u32> {
        self.watch.as_ref().map(ProcessWatch::running).unwrap_or_default()
    }

    /// Takes the process events since the last call.
    pub fn take(&mut self) {
        if let Some(watch) = &mut self.watch {
            let events = watch.events();
            for it in watch.unwatched() {
                self.n_unwatched += 1;
                if self.unwatched.len() < MOST_UNWATCHED_NAMED {
                    self.unwatched.push(it.pid);
                }
            }
            self.heard(&events);
        }
    }

    /// Handles process events, in order of time: everything since the last call.
    pub fn heard(&mut self, events: &[ProcessEvent]) {
        events.iter().for_each(|it| self.hear(it));
        for connection in std::mem::take(&mut self.connections) {
            self.assign(connection);
        }
    }

    /// Records that a process's collector has connected. Earlier events of the process may be yet
    /// to come.
    pub fn connected(&mut self, pid: u32, accepted_nanos: u64) {
        self.connections.push(Connection { pid, accepted_nanos });
    }

    fn hear(&mut self, event: &ProcessEvent) {
        if self.given.attaches() && self.is_no_news(event) {
            return;
        }
        match event {
            ProcessEvent::Fork { parent, pid, time_nanos } => self.fork(*parent, *pid, *time_nanos),
            ProcessEvent::Exec { pid, comm, time_nanos, .. } => self.exec(*pid, comm, *time_nanos),
            ProcessEvent::Exit { pid, time_nanos } => self.exit(*pid, *time_nanos),
            ProcessEvent::ThreadName { pid, comm, .. } if comm == DRIVERS_THREAD => self.start(*pid),
            ProcessEvent::Mmap { pid, path, .. } if is_driver_library(path) => {
                self.n_untracked += u64::from(self.program(*pid).is_none());
            }
            ProcessEvent::Mmap { pid, path, pgoff, .. } if path.file_name() == self.given.collector.file_name() => {
                let Some(program) = self.program(*pid) else { return };
                program.reaches(Fate::CollectorLoaded);
                calls::at_offset(*pgoff).into_iter().for_each(|it| program.is_denied(it.name));
            }
            ProcessEvent::ThreadName { .. } | ProcessEvent::Mmap { .. } => {}
        }
    }

    /// Whether an event is older than what is known of its process, or is of no process that we can see: outside of
    /// our pid namespace, Linux calls them 0 and -1.
    fn is_no_news(&self, event: &ProcessEvent) -> bool {
        let pid = match event {
            ProcessEvent::Fork { pid, .. }
            | ProcessEvent::Exec { pid, .. }
            | ProcessEvent::Exit { pid, .. }
            | ProcessEvent::ThreadName { pid, .. }
            | ProcessEvent::Mmap { pid, .. } => pid,
        };
        let is_outside = matches!(*pid, 0 | u32::MAX);
        is_outside || self.processes.get(pid).is_some_and(|it| event.time_nanos() < it.begun_nanos)
    }

    /// CUDA starts in a process.
    fn start(&mut self, pid: u32) {
        let (attaches, name) = (self.given.attaches(), self.given.name.clone());
        let Some(program) = self.program(pid) else { return };
        let mut is_new = false;
        if attaches {
            // Programs rename themselves; the name in the last event is that of the exec.
            program.comm = Some(comm_of(pid)).filter(|it| !it.is_empty()).unwrap_or_else(|| program.comm.clone());
            if name.is_some_and(|it| !it.matches(&program.comm)) {
                return program.reaches(Fate::Connected);
            }
            is_new = !std::mem::replace(&mut program.is_handed_out, true);
        }
        program.reaches(Fate::Started);
        if is_new {
            self.started.push(pid);
        }
    }

    /// A child has its parent's libraries. More events follow if it uses CUDA.
    fn fork(&mut self, parent: u32, pid: u32, time_nanos: u64) {
        self.end_program(pid, time_nanos);
        let comm = self.processes.get(&parent).map(|it| it.comm.clone()).unwrap_or_default();
        if let Some(process) = self.process(pid) {
            (process.comm, process.begun_nanos, process.has_ended) = (comm, time_nanos, false);
        }
    }

    fn exec(&mut self, pid: u32, comm: &str, time_nanos: u64) {
        self.end_program(pid, time_nanos);
        if let Some(process) = self.process(pid) {
            comm.clone_into(&mut process.comm);
            process.begun_nanos = time_nanos;
            process.n_execs += 1;
        }
    }

    fn exit(&mut self, pid: u32, time_nanos: u64) {
        self.end_program(pid, time_nanos);
        if let Some(process) = self.processes.get_mut(&pid) {
            process.has_ended = true;
            self.make_room(pid);
        }
    }

    fn end_program(&mut self, pid: u32, time_nanos: u64) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let Some(mut program) = process.now.take() else { return };
        program.ends(time_nanos);
        if !program.is_missing() {
            self.n_idle += u64::from(program.is_idle());
        } else if self.n_missing < MOST_PROCESSES {
            process.earlier.push(program);
            self.n_missing += 1;
        } else {
            self.n_unnamed += 1;
        }
    }

    /// Forgets an ended process that is not missing; most have nothing to do with CUDA.
    fn make_room(&mut self, pid: u32) {
        if self.processes.get(&pid).is_some_and(|it| it.has_ended && it.earlier.is_empty()) {
            self.processes.remove(&pid);
        }
    }

    /// Returns the program of a process that uses the driver library. A new one is examined at
    /// once, before it can end.
    fn program(&mut self, pid: u32) -> Option<&mut TrackedProgram> {
        let given = self.given.clone();
        let process = self.process(pid)?;
        if process.now.is_none() {
            let is_as_given = Some(pid) == given.command && process.n_execs <= 1;
            let (found, looked_nanos) =
                if is_as_given { (Look::Finds, process.begun_nanos) } else { (given.look(pid), monotonic_nanos()) };
            process.now = Some(TrackedProgram::new(process.comm.clone(), process.begun_nanos, found, looked_nanos));
        }
        process.now.as_mut()
    }

    /// Assigns a connection to a program.
    fn assign(&mut self, Connection { pid, accepted_nanos }: Connection) {
        let Some(process) = self.processes.get_mut(&pid) else {
            // It can only be one for which there was no room.
            self.n_untracked = self.n_untracked.saturating_sub(1);
            return;
        };
        let Some(program) = process.of_connection(accepted_nanos) else { return };
        program.reaches(Fate::Connected);
        let kept = process.earlier.len();
        process.earlier.retain(TrackedProgram::is_missing);
        self.n_missing -= kept - process.earlier.len();
        self.make_room(pid);
    }

    fn process(&mut self, pid: u32) -> Option<&mut TrackedProcess> {
        let has_room = self.processes.len() < MOST_PROCESSES || self.processes.contains_key(&pid);
        has_room.then(|| self.processes.entry(pid).or_default())
    }

    /// Returns the programs whose CUDA calls may be missing, at the end of a run.
    pub fn unconnected(&self) -> Vec<Unconnected> {
        let programs = |(pid, it): (&u32, &TrackedProcess)| {
            let all = it.earlier.iter().chain(&it.now).filter(|it| it.is_missing());
            let unconnected = |it: &TrackedProgram| Unconnected {
                pid: *pid,
                comm: it.comm.clone(),
                used_driver: it.used_driver(),
                why: it.reason(),
            };
            all.map(unconnected).collect::<Vec<_>>()
        };
        let mut all: Vec<_> = self.processes.iter().flat_map(programs).collect();
        all.sort();
        all
    }

    /// Returns how many more there are than [`Drivers::unconnected`] returns.
    pub fn n_unnamed(&self) -> u64 {
        self.n_unnamed + self.n_untracked
    }

    /// Returns how many programs loaded the driver library and could have loaded the collector, but
    /// CUDA never ran in them.
    pub fn n_idle(&self) -> u64 {
        let running = self.processes.values().filter_map(|it| it.now.as_ref());
        self.n_idle + running.filter(|it| it.is_idle()).count() as u64
    }
}

/// Explains what a run misses that cannot watch processes, and what to do.
fn deafness(error: &io::Error, given: &Given, of_all: bool) -> String {
    let advice = match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (`ulimit -n`)",
        Some(libc::EACCES | libc::EPERM) if of_all => {
            "set /proc/sys/kernel/perf_event_paranoid to 0, or run as root; containers often refuse it by seccomp"
        }
        Some(libc::EACCES | libc::EPERM) => {
            "set /proc/sys/kernel/perf_event_paranoid to 2, or run as root; containers often refuse it by seccomp"
        }
        _ => "`xputrace doctor` checks the machine",
    };
    if given.attaches() {
        return format!(
            "cannot watch processes: perf_event_open failed: {error}. Processes in which CUDA starts from now on are \
             neither traced nor counted; {advice}"
        );
    }
    format!(
        "cannot watch processes: perf_event_open failed: {error}. Processes whose CUDA calls are missing \
         (`untraced_process`), and those that go on after the run (`still_running`), are not counted; {advice}"
    )
}

/// Whether the driver has started in a process.
pub fn has_started(pid: u32) -> bool {
    let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mut files = maps.split(|it| *it == b'\n').filter_map(|it| MapsLine::parse(it)?.file());
    files.any(|(path, _)| is_driver_library(&path)) && has_thread(pid, DRIVERS_THREAD)
}

/// Whether Linux has loaded the driver: this process's own view of its files, without a call of CUDA's.
pub fn is_loaded() -> bool {
    ["/proc/driver/nvidia/version", "/dev/nvidiactl"].iter().any(|it| Path::new(it).exists())
}

/// Whether a file is libcuda, or a stand-in for it.
fn is_driver_library(path: &Path) -> bool {
    let name = path.file_name().map(OsStr::as_encoded_bytes).unwrap_or_default();
    name.starts_with(b"libcuda.so") || is_software_gpu(path)
}

/// Whether a file is the software GPU's, all of whose libraries are one file under several names.
pub(crate) fn is_software_gpu(file: &Path) -> bool {
    let name = file.file_name().map(OsStr::as_encoded_bytes).unwrap_or_default();
    name.windows(b"softgpu".len()).any(|it| it == b"softgpu")
}

/// Returns which GPU a process has whose collector was armed.
pub fn gpu_of(process: &Armed) -> GpuKind {
    if is_software_gpu(&process.library_file) { GpuKind::Software } else { GpuKind::Real }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const COLLECTOR: &str = "/var/cache/xputrace/libxputrace_collector-1234.so";
    const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04";
    /// Larger than any pid in Linux, so such a process cannot be examined.
    const GONE: u32 = 1 << 23;

    pub(super) fn given(command: u32) -> Given {
        Given { command: Some(command), collector: COLLECTOR.into(), socket: "@xputrace-1:1000".into(), name: None }
    }

    /// An event of a process; each has its own time.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Fork,
        Exec,
        Maps(&'static str),
        Thread(&'static str),
        Exit,
        Connects,
    }
    use Step::{Connects, Exec, Exit, Fork, Maps, Thread};

    const PARENT: u32 = GONE + 1;

    fn event(step: Step, pid: u32, time_nanos: u64) -> Option<ProcessEvent> {
        let comm = || String::from("train");
        Some(match step {
            Fork => ProcessEvent::Fork { time_nanos, parent: PARENT, pid },
            Exec => ProcessEvent::Exec { time_nanos, pid, comm: comm(), had_threads: false },
            Thread(name) => ProcessEvent::ThreadName { time_nanos, pid, comm: name.into() },
            Exit => ProcessEvent::Exit { time_nanos, pid },
            Connects => return None,
            Maps(path) => ProcessEvent::Mmap {
                time_nanos,
                pid,
                start: 0,
                len: 0,
                pgoff: 0,
                path: path.into(),
                build_id: Vec::new(),
                device: 0,
                inode: 0,
            },
        })
    }

    /// Delivers the events in batches that end before the steps in `ends`, and each connection as
    /// soon as it is accepted.
    fn after(command: u32, steps: &[Step], ends: &[usize]) -> Drivers {
        let mut drivers = Drivers::told(given(command));
        let mut batch = Vec::new();
        for (at, step) in steps.iter().enumerate() {
            if ends.contains(&at) {
                drivers.heard(&std::mem::take(&mut batch));
            }
            match event(*step, GONE, at as u64) {
                Some(event) => batch.push(event),
                None => drivers.connected(GONE, at as u64),
            }
        }
        drivers.heard(&batch);
        drivers
    }

    /// Returns how many programs are missing and how many are idle, which must not depend on the
    /// batches.
    fn left(command: u32, steps: &[Step]) -> (usize, u64) {
        let count = |it: &Drivers| (it.unconnected().len(), it.n_idle());
        let expected = count(&after(command, steps, &[]));
        for ends in 0..1usize << steps.len() {
            let ends: Vec<usize> = (0..steps.len()).filter(|at| ends >> at & 1 == 1).collect();
            assert_eq!(count(&after(command, steps, &ends)), expected, "{steps:?}, heard up to each of {ends:?}");
        }
        expected
    }

    #[test]
    fn processes_for_which_there_is_no_room_are_counted() {
        let mut drivers = Drivers::told(given(PARENT));
        let n = MOST_PROCESSES as u32 + 3;
        for pid in GONE + 2..GONE + 2 + n {
            let steps = [Fork, Maps(LIBRARY), Thread(DRIVERS_THREAD), Exit];
            let events: Vec<_> = steps.iter().filter_map(|it| event(*it, pid, 1)).collect();
            drivers.heard(&events);
        }
        assert_eq!((drivers.unconnected().len(), drivers.n_unnamed()), (MOST_PROCESSES, 3));
        drivers.connected(GONE + 1 + n, 2);
        drivers.heard(&[]);
        assert_eq!(drivers.n_unnamed(), 2, "one of them is traced");
    }

    #[test]
    fn a_program_whose_collector_never_connects_is_missing_if_cuda_ran_in_it() {
        let (library, collector, cuda) = (Maps(LIBRARY), Maps(COLLECTOR), Thread(DRIVERS_THREAD));
        for command in [GONE, 1] {
            let left = |steps: &[Step]| left(command, steps);
            assert_eq!(left(&[Exec, library, library]), (0, 1), "it made no CUDA call");
            assert_eq!(left(&[Exec, library, Exit]), (0, 1), "nor did this one, which has ended");
            assert_eq!(left(&[Exec, library, Thread("worker"), Exit]), (0, 1));
            assert_eq!(left(&[Exec, Maps("/usr/lib/libcudart.so.13"), Maps("/lib/libc.so.6"), Exit]), (0, 0));
            assert_eq!(left(&[Exec, library, cuda, Exit]), (1, 0), "CUDA ran without the collector");
            assert_eq!(left(&[Exec, library, collector]), (1, 0), "its collector never connected");
            assert_eq!(left(&[Exec, library, collector, cuda, Exit]), (1, 0));
            assert_eq!(left(&[Exec, library, collector, Connects]), (0, 0));
            assert_eq!(left(&[Exec, library, library, collector, Connects, library, cuda, Exit]), (0, 0));
            assert_eq!(left(&[Exec, library, collector, Exit, Connects]), (0, 0), "accepted after its end");
        }
    }

    #[test]
    fn each_program_of_a_process_is_one_of_its_own() {
        let (library, collector, cuda) = (Maps(LIBRARY), Maps(COLLECTOR), Thread(DRIVERS_THREAD));
        let left = |steps: &[Step]| left(GONE, steps);
        assert_eq!(left(&[Exec, library, collector, Connects, Exec, library]), (0, 1));
        assert_eq!(left(&[Exec, library, collector, Connects, Exec, library, collector]), (1, 0));
        assert_eq!(left(&[Exec, library, collector, Connects, Exec, library, cuda, Exit]), (1, 0));
        assert_eq!(left(&[Exec, library, collector, Exec, library, collector, Connects]), (1, 0));
        assert_eq!(left(&[Exec, library, collector, Connects, Exec, library, collector, Connects]), (0, 0));
        // A connection whose collector Linux never reported is not taken for the next program's.
        assert_eq!(left(&[Exec, Connects, Exec, library, cuda]), (1, 0));
        assert_eq!(left(&[Exec, Connects, Exec, library, collector]), (1, 0));
    }

    #[test]
    fn a_child_that_loads_the_collector_and_never_connects_is_missing() {
        let (collector, cuda) = (Maps(COLLECTOR), Thread(DRIVERS_THREAD));
        let left = |steps: &[Step]| left(PARENT, steps);
        assert_eq!(left(&[Fork, Exit]), (0, 0), "its parent has the library");
        assert_eq!(left(&[Fork, collector, Exit]), (1, 0));
        assert_eq!(left(&[Fork, collector, Connects, Exit]), (0, 0));
        assert_eq!(left(&[Fork, cuda, Exit]), (1, 0));
        let mut drivers = Drivers::told(given(PARENT));
        let steps =
            [(Exec, PARENT), (Maps(LIBRARY), PARENT), (Fork, GONE), (collector, GONE), (Exit, GONE), (Exit, PARENT)];
        drivers.heard(&(0..).zip(steps).filter_map(|(at, (step, pid))| event(step, pid, at)).collect::<Vec<_>>());
        let missing = drivers.unconnected().into_iter().map(|it| (it.pid, it.comm)).collect::<Vec<_>>();
        assert_eq!(missing, [(GONE, "train".to_string())], "its name is its parent's");
    }

    /// A process is examined when its events are handled; by then it may run another program.
    #[test]
    fn what_was_found_in_a_later_program_is_not_said_of_an_earlier_one() {
        let pid = std::process::id();
        let hear = |steps: &[(Step, u64)]| {
            let mut drivers = Drivers::told(given(1));
            drivers.heard(&steps.iter().filter_map(|(step, at)| event(*step, pid, *at)).collect::<Vec<_>>());
            let reasons = drivers.unconnected().into_iter().map(|it| it.why.unwrap_or_default());
            (reasons.collect::<Vec<_>>(), drivers.n_idle())
        };
        let expected = format!("its environment has no {INJECTION_VARIABLE}");
        assert_eq!(hear(&[(Exec, 1), (Maps(LIBRARY), 2)]), (vec![expected.clone()], 0));
        assert_eq!(hear(&[(Exec, 1), (Maps(LIBRARY), 2), (Exit, u64::MAX)]), (vec![expected], 0));
        assert_eq!(hear(&[(Exec, 1), (Maps(LIBRARY), 2), (Exec, 3)]), (vec![], 1));
    }

    #[test]
    fn processes_that_are_over_take_no_room() {
        let mut drivers = Drivers::told(given(GONE));
        let steps = [Exec, Maps("/lib/libc.so.6"), Exit, Fork, Exec, Maps(LIBRARY), Maps(COLLECTOR), Connects, Exit];
        for pid in GONE..GONE + 1000 {
            steps.iter().for_each(|it| match event(*it, pid, 1) {
                Some(event) => drivers.heard(&[event]),
                None => drivers.connected(pid, 1),
            });
        }
        // The last connection is handled after its process has ended.
        drivers.connected(GONE, 1);
        drivers.heard(&[]);
        assert_eq!((drivers.processes.len(), drivers.n_missing), (0, 0));
    }

    #[test]
    fn those_beyond_the_room_are_counted() {
        let mut drivers = Drivers::told(given(GONE));
        for _ in 0..MOST_PROCESSES + 10 {
            let steps = [Exec, Maps(LIBRARY), Thread(DRIVERS_THREAD)];
            drivers.heard(&steps.iter().filter_map(|it| event(*it, GONE, 1)).collect::<Vec<_>>());
        }
        drivers.heard(&event(Exit, GONE, 1).into_iter().collect::<Vec<_>>());
        assert_eq!((drivers.unconnected().len(), drivers.n_unnamed()), (MOST_PROCESSES, 10));
    }
}
