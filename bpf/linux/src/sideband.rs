//! Forks, execs, exits and mappings of processes, from Linux's perf records.
//!
//! There is one ring per CPU. The events of all watched threads on a CPU write into its ring;
//! threads and processes that they create are watched too.
//!
//! Source of the record layouts: `include/uapi/linux/perf_event.h`, `enum perf_event_type`.

use crate::cpus;
use crate::proc_maps::{self, View};
use crate::scope;
use crate::sys::{self, RingPages};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// The highest `perf_event_paranoid` at which a process without CAP_PERFMON may watch its own
/// user's processes. From 2 on, `perf_allow_kernel` in `include/linux/perf_event.h` refuses events
/// that include Linux's own code; distributions that have a level 3 refuse all events there.
pub(crate) const MOST_PARANOID_FOR_PROCESSES: i64 = 2;
/// Likewise for watching all processes: `perf_allow_cpu`.
pub(crate) const MOST_PARANOID_FOR_SYSTEM: i64 = 0;

/// An action of a process in the scope. Times are CLOCK_MONOTONIC nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessEvent {
    Fork {
        time_nanos: u64,
        parent: u32,
        pid: u32,
    },
    Exec {
        time_nanos: u64,
        pid: u32,
        comm: String,
        /// Whether the previous program had several threads. Any of them may have called `exec`.
        had_threads: bool,
    },
    Exit {
        time_nanos: u64,
        pid: u32,
    },
    /// A thread of the process got this name.
    ThreadName {
        time_nanos: u64,
        pid: u32,
        comm: String,
    },
    /// An executable mapping of a file, or of memory with a name such as `//anon` or `[vdso]`.
    /// `build_id` is empty if Linux could not read it; the file's device (as `libc::makedev`) and inode are 0
    /// if it could. Files mapped before attaching are reported the same way, with the time of attaching.
    Mmap {
        time_nanos: u64,
        pid: u32,
        start: u64,
        len: u64,
        pgoff: u64,
        path: PathBuf,
        build_id: Vec<u8>,
        device: u64,
        inode: u64,
    },
}

impl ProcessEvent {
    /// Returns when it happened.
    pub fn time_nanos(&self) -> u64 {
        match self {
            ProcessEvent::Fork { time_nanos, .. }
            | ProcessEvent::Exec { time_nanos, .. }
            | ProcessEvent::Exit { time_nanos, .. }
            | ProcessEvent::ThreadName { time_nanos, .. }
            | ProcessEvent::Mmap { time_nanos, .. } => *time_nanos,
        }
    }
}

/// A process of which some events are missing: it executed a program that changes its privileges, upon which Linux stops
/// reporting on it.
#[derive(Debug)]
pub struct Unwatched {
    pub pid: u32,
    /// Why it cannot be watched again; `None` if it ended before that could be tried.
    pub refusal: Option<io::Error>,
}

/// A process's last call of `exec`.
#[derive(Clone, Copy, Debug)]
struct LastExec {
    time_nanos: u64,
    /// Whether anything is known that the program has mapped.
    is_mapped: bool,
}

/// A process whose main thread has ended.
#[derive(Clone, Copy, Debug)]
struct Leaderless {
    /// When the main thread ended, as far as known.
    since_nanos: u64,
    /// When the last of its threads that have ended did so.
    last_end_nanos: u64,
    /// When it was last asked whether it has ended.
    asked_nanos: u64,
    /// Whether other threads were found to go on, rather than end with the main one.
    goes_on: bool,
}

impl Leaderless {
    fn since(since_nanos: u64) -> Self {
        Leaderless { since_nanos, last_end_nanos: since_nanos, asked_nanos: 0, goes_on: false }
    }

    /// Whether it is time to ask again: often while its threads are ending. Asking opens a file, so a script that traces
    /// that would wake us each time.
    fn is_due(&mut self) -> bool {
        const RECENT_NANOS: u64 = 100_000_000;
        const PERIOD_NANOS: u64 = 10_000_000;
        const LONG_PERIOD_NANOS: u64 = 500_000_000;
        let now = sys::monotonic_nanos();
        let is_recent = now.saturating_sub(self.last_end_nanos) < RECENT_NANOS;
        let period = if is_recent { PERIOD_NANOS } else { LONG_PERIOD_NANOS };
        let is_due = now.saturating_sub(self.asked_nanos) >= period;
        if is_due {
            self.asked_nanos = now;
        }
        is_due
    }

    /// Looks whether a thread goes on, long after the main thread's end: those of a process that ends are told to at once,
    /// and do so when they leave Linux.
    fn look(&mut self, pid: u32) {
        const PATIENCE_NANOS: u64 = 1_000_000_000;
        if !self.goes_on && sys::monotonic_nanos().saturating_sub(self.since_nanos) > PATIENCE_NANOS {
            let stat = |thread: &i32| std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).ok();
            let lives = |thread: &i32| stat(thread).as_deref().and_then(life) == Some(Life::Lives);
            self.goes_on = threads_of(pid).iter().any(lives);
        }
    }
}

/// Pages in each CPU's ring; a power of two.
const RING_PAGES: usize = 64;

/// Maximum number of readings of the rings for one answer. One is enough if nothing happens
/// meanwhile.
const MOST_READINGS: u32 = 4;

const RECORD_LOST: u32 = 2;
const RECORD_COMM: u32 = 3;
const RECORD_EXIT: u32 = 4;
const RECORD_FORK: u32 = 7;
const RECORD_MMAP2: u32 = 10;
const MISC_COMM_EXEC: u16 = 1 << 13;
const MISC_MMAP_BUILD_ID: u16 = 1 << 14;
const HEADER_BYTES: usize = 8;
/// Size of the thread ids and time at the end of every record (`sample_id_all` with TID and TIME).
const TRAILER_BYTES: usize = 16;
/// Size of the part of an MMAP2 record between `pgoff` and `prot`: device, inode and generation, or
/// the build id with its length.
const MMAP2_IDENTITY_BYTES: usize = 24;

/// The open rings.
#[derive(Debug, Default)]
pub(crate) struct Sideband {
    rings: Vec<PerfRing>,
    /// Events that write into the rings.
    events: Vec<OwnedFd>,
    /// Records whose causes may not have been read.
    unsettled: Vec<SidebandRecord>,
    /// Processes whose main thread has ended but others may run.
    leaderless: BTreeMap<u32, Leaderless>,
    /// By running process.
    execs: BTreeMap<u32, LastExec>,
    /// Processes whose running program has created threads.
    threaded: BTreeSet<u32>,
    /// Running processes that are no longer watched.
    dropped: Vec<u32>,
    unwatched: Vec<Unwatched>,
    /// The watched processes known to run; `None` if all processes are watched.
    running: Option<BTreeSet<u32>>,
    pub(crate) lost: u64,
}

impl Sideband {
    /// Watches every thread of the processes, or every process if `None`.
    pub(crate) fn open(pids: Option<&[u32]>) -> io::Result<Sideband> {
        let threads = match pids {
            Some(pids) => pids.iter().flat_map(|it| threads_of(*it)).collect(),
            None => vec![-1],
        };
        let running = pids.map(|it| it.iter().copied().collect());
        let mut sideband = Sideband { running, ..Sideband::default() };
        sideband.threaded = pids.into_iter().flatten().copied().filter(|it| threads_of(*it).len() > 1).collect();
        let leaderless = pids.into_iter().flatten().filter(|it| is_leaderless(**it));
        sideband.leaderless = leaderless.map(|it| (*it, Leaderless::since(sys::monotonic_nanos()))).collect();
        for cpu in cpus::online()? {
            sideband.open_cpu(cpu, &threads)?;
        }
        Ok(sideband)
    }

    fn open_cpu(&mut self, cpu: i32, threads: &[i32]) -> io::Result<()> {
        let mut ring: Option<usize> = None;
        for thread in threads {
            let event = match sys::perf_event_open(&attributes(), *thread, cpu) {
                Ok(event) => event,
                // The thread has ended in the meantime.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
                Err(error) => return Err(error),
            };
            match ring {
                None => {
                    ring = Some(self.rings.len());
                    self.rings.push(PerfRing::new(event, cpu)?);
                }
                Some(ring) => {
                    sys::perf_redirect(event.as_fd(), self.rings[ring].fd.as_fd())?;
                    self.events.push(event);
                }
            }
        }
        Ok(())
    }

    /// Also watches every thread of these processes.
    fn watch(&mut self, pids: &[u32]) -> io::Result<()> {
        let threads: Vec<i32> = pids.iter().flat_map(|it| threads_of(*it)).collect();
        for ring in &self.rings {
            for thread in &threads {
                match sys::perf_event_open(&attributes(), *thread, ring.cpu) {
                    Ok(event) => {
                        sys::perf_redirect(event.as_fd(), ring.fd.as_fd())?;
                        self.events.push(event);
                    }
                    // The thread has ended in the meantime.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        self.running.iter_mut().for_each(|it| it.extend(pids));
        self.threaded.extend(pids.iter().filter(|it| threads_of(**it).len() > 1));
        Ok(())
    }

    /// Returns the watched processes that run; empty if all processes are watched.
    pub(crate) fn running(&self) -> Vec<u32> {
        self.running.iter().flatten().copied().filter(|it| !is_over(*it)).collect()
    }

    /// Returns the descriptors to wait on.
    pub(crate) fn fds(&self) -> impl Iterator<Item = i32> + '_ {
        self.rings.iter().map(|it| it.fd.as_raw_fd())
    }

    /// Returns everything since the last call, from all CPUs, in order of time. Whatever led to an
    /// event is in the same answer or in an earlier one.
    pub(crate) fn drain(&mut self) -> Vec<ProcessEvent> {
        let mut events = Vec::new();
        self.take_records(&mut events);
        let over = self.over();
        if !over.is_empty() {
            // What they did between the reading above and their end.
            self.take_records(&mut events);
        }
        events.extend(over.into_iter().filter_map(|pid| self.exit(pid)));
        events.sort_by_key(ProcessEvent::time_nanos);
        self.follow(&events);
        for pid in std::mem::take(&mut self.dropped) {
            let missed = self.take_up_again(pid);
            self.follow(&missed);
            events.extend(missed);
        }
        events
    }

    fn follow(&mut self, events: &[ProcessEvent]) {
        if let Some(running) = &mut self.running {
            events.iter().for_each(|it| follow(running, it));
        }
    }

    /// Watches a process whose events Linux dropped, and its descendants. Returns what was missed: new children, and
    /// all mappings.
    fn take_up_again(&mut self, pid: u32) -> Vec<ProcessEvent> {
        let tree = scope::with_descendants(&[pid]);
        let is_new = |it: &u32| *it != pid && self.running.as_ref().is_some_and(|known| !known.contains(it));
        let children: Vec<u32> = tree.iter().copied().filter(is_new).collect();
        if let Err(error) = self.watch(&tree) {
            self.unwatched.push(Unwatched { pid, refusal: Some(error) });
            return Vec::new();
        }
        let time_nanos = sys::monotonic_nanos();
        let fork = |child: u32| {
            let parent = scope::parent_of(child).unwrap_or(pid);
            ProcessEvent::Fork { time_nanos, parent, pid: child }
        };
        let mut events: Vec<ProcessEvent> = children.iter().copied().map(fork).collect();
        let mapped = mappings_of(&[pid]);
        if let Some(exec) = self.execs.get_mut(&pid) {
            exec.is_mapped |= !mapped.is_empty();
        }
        events.extend(mapped);
        events.extend(mappings_of(&children));
        // Its end may have come before the watch.
        if is_over(pid) {
            self.leaderless.insert(pid, Leaderless::since(time_nanos));
        }
        events
    }

    fn take_records(&mut self, events: &mut Vec<ProcessEvent>) {
        let mut records = self.read();
        records.sort_by_key(SidebandRecord::time_nanos);
        for record in records {
            match record {
                SidebandRecord::Event(mut event) => {
                    match &mut event {
                        // Linux has given the id to another process.
                        ProcessEvent::Fork { pid, .. } => events.extend(self.exit(*pid)),
                        ProcessEvent::Exec { pid, time_nanos, had_threads, .. } => {
                            self.execs.insert(*pid, LastExec { time_nanos: *time_nanos, is_mapped: false });
                            *had_threads = self.threaded.remove(pid);
                        }
                        ProcessEvent::Mmap { pid, .. } => {
                            self.execs.get_mut(pid).into_iter().for_each(|it| it.is_mapped = true);
                        }
                        _ => {}
                    }
                    events.push(event);
                }
                SidebandRecord::ThreadBegin { pid, .. } => _ = self.threaded.insert(pid),
                SidebandRecord::ThreadEnd { pid, thread, time_nanos }
                    if pid == thread || self.leaderless.contains_key(&pid) =>
                {
                    let it = self.leaderless.entry(pid).or_insert(Leaderless::since(time_nanos));
                    it.last_end_nanos = time_nanos;
                    it.asked_nanos = 0;
                }
                SidebandRecord::ThreadEnd { .. } => {}
                SidebandRecord::Lost { n, .. } => self.lost += n,
            }
        }
    }

    fn read(&mut self) -> Vec<SidebandRecord> {
        let rings = &mut self.rings;
        let mut read = |to: &mut Vec<SidebandRecord>| {
            rings.iter_mut().for_each(|it| it.drain(&mut |record| to.extend(parse(record))))
        };
        settled(&mut self.unsettled, sys::monotonic_nanos, &mut read)
    }

    /// Returns the processes of which events are missing, since the last call.
    pub(crate) fn unwatched(&mut self) -> Vec<Unwatched> {
        std::mem::take(&mut self.unwatched)
    }

    /// Returns the processes whose main thread has ended and that go on.
    pub(crate) fn leaderless(&self) -> Vec<u32> {
        self.leaderless.iter().filter(|(_, it)| it.goes_on).map(|(pid, _)| *pid).collect()
    }

    /// Finds processes that have ended. A process ends with its last thread, which may not be the
    /// main one. It also continues, with the same id, when a thread other than the main one calls
    /// `exec`.
    fn over(&mut self) -> Vec<u32> {
        let mut over = Vec::new();
        self.leaderless.retain(|pid, it| match it.is_due().then(|| after_leader(*pid)) {
            None => true,
            Some(After::Nothing) => {
                over.push(*pid);
                true
            }
            Some(After::OtherThreads) => {
                it.look(*pid);
                true
            }
            // When a process executes a program that changes its privileges, Linux drops its events and records that
            // as its end. A thread that takes over calls `exec` after the main thread has ended; an earlier `exec` is
            // one that dropped the events.
            Some(After::NewLeader) if self.execs.get(pid).is_some_and(|exec| exec.time_nanos < it.last_end_nanos) => {
                // The events of all processes are no process's own.
                if self.running.is_some() {
                    self.dropped.push(*pid);
                }
                false
            }
            Some(After::NewLeader) => false,
        });
        over
    }

    /// Returns the end of a process whose main thread has ended, unless it is known already.
    fn exit(&mut self, pid: u32) -> Option<ProcessEvent> {
        let time_nanos = self.leaderless.remove(&pid)?.last_end_nanos;
        self.threaded.remove(&pid);
        // Every program maps itself, so this one was not watched.
        if self.execs.remove(&pid).is_some_and(|it| !it.is_mapped) {
            self.unwatched.push(Unwatched { pid, refusal: None });
        }
        Some(ProcessEvent::Exit { time_nanos, pid })
    }
}

/// Reads all rings by `read`, and returns the records whose causes have been read too; `unsettled`
/// keeps the others for the next call.
///
/// A process moves between CPUs, so what led to an event may be in a ring that was read before the
/// event's own. But Linux completes a record before the process goes on: the causes of everything up
/// to the time at which a reading begins are found by that reading.
fn settled(
    unsettled: &mut Vec<SidebandRecord>,
    now: impl Fn() -> u64,
    mut read: impl FnMut(&mut Vec<SidebandRecord>),
) -> Vec<SidebandRecord> {
    let mut began_nanos = 0;
    for _ in 0..MOST_READINGS {
        began_nanos = now();
        read(unsettled);
        if unsettled.iter().all(|it| it.time_nanos() <= began_nanos) {
            break;
        }
    }
    let (settled, later) = std::mem::take(unsettled).into_iter().partition(|it| it.time_nanos() <= began_nanos);
    *unsettled = later;
    settled
}

/// Returns what running processes have mapped, as mapped now.
pub(crate) fn mappings_of(pids: &[u32]) -> Vec<ProcessEvent> {
    let time_nanos = sys::monotonic_nanos();
    let mut build_ids: HashMap<PathBuf, Vec<u8>> = HashMap::new();
    let mut events = Vec::new();
    for pid in pids.iter().copied() {
        let view = View::of(pid);
        for mapping in proc_maps::of(pid).unwrap_or_default() {
            let path = view.mapped(&mapping);
            let build_id = build_ids.entry(path).or_insert_with_key(|it| crate::resolve::build_id(it)).clone();
            let proc_maps::FileMapping { start, len, pgoff, path, device, inode, .. } = mapping;
            let (device, inode) = if build_id.is_empty() { (device, inode) } else { (0, 0) };
            events.push(ProcessEvent::Mmap { time_nanos, pid, start, len, pgoff, path, build_id, device, inode });
        }
    }
    events
}

fn follow(running: &mut BTreeSet<u32>, event: &ProcessEvent) {
    match event {
        ProcessEvent::Fork { pid, .. } => _ = running.insert(*pid),
        ProcessEvent::Exit { pid, .. } => _ = running.remove(pid),
        ProcessEvent::Exec { .. } | ProcessEvent::ThreadName { .. } | ProcessEvent::Mmap { .. } => {}
    }
}

/// What remains of a process whose main thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Nothing,
    OtherThreads,
    NewLeader,
}

fn after_leader(pid: u32) -> After {
    if is_over(pid) {
        return After::Nothing;
    }
    // This file may be missing for a moment while a thread replaces the main one.
    match std::fs::read_to_string(format!("/proc/{pid}/stat")).ok().as_deref().and_then(life) {
        Some(Life::Lives) => After::NewLeader,
        Some(Life::Ended) | None => After::OtherThreads,
    }
}

/// Whether a process goes on, or ends, without its main thread.
pub fn is_leaderless(pid: u32) -> bool {
    after_leader(pid) == After::OtherThreads
}

/// Whether all threads have ended. `/proc` cannot tell: while a thread replaces the main one, a
/// running process may have no entry there, or that of the ended thread.
pub fn is_over(pid: u32) -> bool {
    match sys::pidfd(pid) {
        Ok(pidfd) => has_ended(&pidfd),
        Err(error) => error.raw_os_error() == Some(libc::ESRCH),
    }
}

/// Whether the process behind a pidfd has ended.
///
/// Linux looks up the main thread and then asks whether it was the last. If another thread's `exec`
/// takes its place in between, the descriptor is readable although the process goes on (`pidfd_poll`
/// and `delay_group_leader`). A second look finds the new main thread.
pub fn has_ended(pidfd: &OwnedFd) -> bool {
    is_readable(pidfd) && is_readable(pidfd)
}

fn is_readable(fd: &OwnedFd) -> bool {
    let mut ready = [libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    sys::wait_readable(&mut ready, 0).is_ok() && ready[0].revents != 0
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Lives,
    /// Or is exiting: its end has been recorded, but it is still there.
    Ended,
}

/// Parses a `stat` of a thread in `/proc`: the third field is the state, the ninth the flags.
pub(crate) fn life(stat: &str) -> Option<Life> {
    /// Source: `include/linux/sched.h`.
    const PF_EXITING: u64 = 4;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    let flags: u64 = fields.nth(5)?.parse().ok()?;
    Some(match state {
        "Z" | "X" => Life::Ended,
        _ if flags & PF_EXITING != 0 => Life::Ended,
        _ => Life::Lives,
    })
}

fn attributes() -> libbpf_sys::perf_event_attr {
    let mut attr = libbpf_sys::perf_event_attr {
        type_: libbpf_sys::PERF_TYPE_SOFTWARE,
        size: size_of::<libbpf_sys::perf_event_attr>() as u32,
        config: u64::from(libbpf_sys::PERF_COUNT_SW_DUMMY),
        sample_type: u64::from(libbpf_sys::PERF_SAMPLE_TID | libbpf_sys::PERF_SAMPLE_TIME),
        clockid: libc::CLOCK_MONOTONIC,
        ..Default::default()
    };
    // Process events are reported anyway, and users without privileges may only open such an event.
    attr.set_exclude_kernel(1);
    attr.set_inherit(1);
    attr.set_mmap(1);
    attr.set_mmap2(1);
    attr.set_build_id(1);
    attr.set_comm(1);
    attr.set_comm_exec(1);
    attr.set_task(1);
    attr.set_sample_id_all(1);
    attr.set_use_clockid(1);
    attr.set_watermark(1);
    attr.__bindgen_anon_2.wakeup_watermark = 1;
    attr
}

fn threads_of(pid: u32) -> Vec<i32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|it| it.file_name().to_str()?.parse().ok()).collect()
}

/// One CPU's ring: a page with the positions, then the data.
#[derive(Debug)]
struct PerfRing {
    fd: OwnedFd,
    cpu: i32,
    pages: RingPages,
    /// Buffer for a record that wraps around the end.
    record: Vec<u8>,
}

impl PerfRing {
    fn new(fd: OwnedFd, cpu: i32) -> io::Result<PerfRing> {
        let pages = RingPages::new(fd.as_fd(), (1 + RING_PAGES) * sys::page_size(), 0, true)?;
        Ok(PerfRing { fd, cpu, pages, record: Vec::new() })
    }

    fn drain(&mut self, f: &mut dyn FnMut(&[u8])) {
        let head = self.position(std::mem::offset_of!(libbpf_sys::perf_event_mmap_page, data_head));
        let end = head.load(Ordering::Acquire);
        let tail = std::mem::offset_of!(libbpf_sys::perf_event_mmap_page, data_tail);
        let mut at = self.position(tail).load(Ordering::Relaxed);
        while at < end {
            let mut header = [0; HEADER_BYTES];
            self.copy(at, &mut header);
            let len = usize::from(u16::from_le_bytes([header[6], header[7]]));
            if len < HEADER_BYTES {
                at = end;
                break;
            }
            let mut record = std::mem::take(&mut self.record);
            record.resize(len, 0);
            self.copy(at, &mut record);
            f(&record);
            self.record = record;
            at += len as u64;
        }
        self.position(tail).store(at, Ordering::Release);
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: an aligned 64-bit word of the first page, which Linux accesses atomically; the
        // mapping lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.pages.at(offset).cast()) }
    }

    fn copy(&self, at: u64, out: &mut [u8]) {
        let size = RING_PAGES * sys::page_size();
        for (i, byte) in out.iter_mut().enumerate() {
            let offset = (at as usize + i) % size;
            // SAFETY: inside the data pages; Linux does not write between tail and head.
            *byte = unsafe { self.pages.at(sys::page_size() + offset).read_volatile() };
        }
    }
}

/// A parsed record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SidebandRecord {
    Event(ProcessEvent),
    ThreadBegin {
        pid: u32,
        time_nanos: u64,
    },
    ThreadEnd {
        pid: u32,
        thread: u32,
        time_nanos: u64,
    },
    /// `n` records did not fit.
    Lost {
        n: u64,
        time_nanos: u64,
    },
}

impl SidebandRecord {
    fn time_nanos(&self) -> u64 {
        match self {
            SidebandRecord::Event(event) => event.time_nanos(),
            SidebandRecord::ThreadBegin { time_nanos, .. }
            | SidebandRecord::ThreadEnd { time_nanos, .. }
            | SidebandRecord::Lost { time_nanos, .. } => *time_nanos,
        }
    }
}

/// Parses one complete record. Returns `None` if it is irrelevant or malformed.
pub(crate) fn parse(record: &[u8]) -> Option<SidebandRecord> {
    let body = Body(record);
    let (kind, misc) = (body.u32(0)?, body.u16(4)?);
    let time_nanos = body.u64(record.len().checked_sub(8)?)?;
    let event = match kind {
        RECORD_LOST => return Some(SidebandRecord::Lost { n: body.u64(16)?, time_nanos }),
        RECORD_COMM => {
            let (pid, comm) = (body.u32(8)?, String::from_utf8_lossy(body.text(16)?).into_owned());
            match misc & MISC_COMM_EXEC {
                0 => ProcessEvent::ThreadName { time_nanos, pid, comm },
                _ => ProcessEvent::Exec { time_nanos, pid, comm, had_threads: false },
            }
        }
        RECORD_FORK => {
            let (pid, parent, time_nanos) = (body.u32(8)?, body.u32(12)?, body.u64(24)?);
            if pid == parent {
                return Some(SidebandRecord::ThreadBegin { pid, time_nanos });
            }
            ProcessEvent::Fork { time_nanos, parent, pid }
        }
        RECORD_EXIT => {
            let (pid, thread) = (body.u32(8)?, body.u32(16)?);
            return Some(SidebandRecord::ThreadEnd { pid, thread, time_nanos: body.u64(24)? });
        }
        RECORD_MMAP2 => mapping(&body, misc, time_nanos)?,
        _ => return None,
    };
    Some(SidebandRecord::Event(event))
}

fn mapping(body: &Body<'_>, misc: u16, time_nanos: u64) -> Option<ProcessEvent> {
    const IDENTITY: usize = 40;
    let (build_id, device, inode) = match misc & MISC_MMAP_BUILD_ID {
        0 => (Vec::new(), libc::makedev(body.u32(IDENTITY)?, body.u32(IDENTITY + 4)?), body.u64(IDENTITY + 8)?),
        _ => {
            let len = usize::from(*body.0.get(IDENTITY)?).min(20);
            (body.0.get(IDENTITY + 4..IDENTITY + 4 + len)?.to_vec(), 0, 0)
        }
    };
    let path = body.text(IDENTITY + MMAP2_IDENTITY_BYTES + 8)?;
    Some(ProcessEvent::Mmap {
        time_nanos,
        pid: body.u32(8)?,
        start: body.u64(16)?,
        len: body.u64(24)?,
        pgoff: body.u64(32)?,
        path: PathBuf::from(OsString::from_vec(path.to_vec())),
        build_id,
        device,
        inode,
    })
}

/// A record including its header, read by byte offset.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn u16(&self, at: usize) -> Option<u16> {
        Some(u16::from_le_bytes(self.0.get(at..at.checked_add(2)?)?.try_into().ok()?))
    }

    fn u32(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(self.0.get(at..at.checked_add(4)?)?.try_into().ok()?))
    }

    fn u64(&self, at: usize) -> Option<u64> {
        Some(u64::from_le_bytes(self.0.get(at..at.checked_add(8)?)?.try_into().ok()?))
    }

    /// Returns the NUL-terminated text before the trailer.
    fn text(&self, at: usize) -> Option<&'a [u8]> {
        let text = self.0.get(at..self.0.len().checked_sub(TRAILER_BYTES)?)?;
        Some(&text[..text.iter().position(|it| *it == 0)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    fn record(kind: u32, misc: u16, body: &[u8], time: u64) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend(misc.to_le_bytes());
        bytes.extend(((HEADER_BYTES + body.len() + TRAILER_BYTES) as u16).to_le_bytes());
        bytes.extend(body);
        bytes.extend([7, 0, 0, 0, 7, 0, 0, 0]);
        bytes.extend(time.to_le_bytes());
        bytes
    }

    #[test]
    fn a_thread_that_lives_is_told_from_one_that_ends() {
        let stat = |state: &str, flags: u64| format!("7 (a) Z 1 (b) {state} 1 7 7 0 -1 {flags} 90 0");
        assert_eq!(life(&stat("S", 0x40_0000)), Some(Life::Lives));
        assert_eq!(life(&stat("R", 0x40_0004)), Some(Life::Ended));
        assert_eq!(life(&stat("Z", 0x40_000c)), Some(Life::Ended));
        assert_eq!(life("7 (a"), None);
        assert_eq!(after_leader(std::process::id()), After::NewLeader);
    }

    const EXECS_LEFT: &str = "XPUTRACE_TEST_EXECS_LEFT";

    /// The child is this test, which executes itself repeatedly, each time from another thread.
    #[test]
    fn an_exec_by_another_thread_is_no_end() {
        let test = || {
            let mut test = Command::new(std::env::current_exe().unwrap());
            test.args(["sideband::tests::an_exec_by_another_thread_is_no_end", "--exact", "--test-threads=1"]);
            test
        };
        match std::env::var(EXECS_LEFT).map(|it| it.parse::<u32>().unwrap()) {
            Ok(0) => return,
            Ok(n) => {
                let become_it = move || panic!("{}", test().env(EXECS_LEFT, (n - 1).to_string()).exec());
                return std::thread::spawn(become_it).join().unwrap();
            }
            Err(_) => {}
        }
        let mut child = test().env(EXECS_LEFT, "500").stdout(Stdio::null()).spawn().unwrap();
        while after_leader(child.id()) != After::Nothing {}
        let status = child.try_wait().unwrap();
        assert!(status.is_some_and(|it| it.success()), "it runs, and is taken for one that has ended: {status:?}");
    }

    #[test]
    fn a_mapping_with_a_build_id() {
        let mut body: Vec<u8> = [7u32, 8].iter().flat_map(|it| it.to_le_bytes()).collect();
        body.extend([0x1000u64, 0x2000, 0x3000].iter().flat_map(|it| it.to_le_bytes()));
        body.extend([2, 0, 0, 0, 0xab, 0xcd]);
        body.extend([0; 18]);
        body.extend([0; 8]);
        body.extend(b"/lib/x\0\0");
        let expected = ProcessEvent::Mmap {
            time_nanos: 99,
            pid: 7,
            start: 0x1000,
            len: 0x2000,
            pgoff: 0x3000,
            path: "/lib/x".into(),
            build_id: vec![0xab, 0xcd],
            device: 0,
            inode: 0,
        };
        assert_eq!(parse(&record(RECORD_MMAP2, MISC_MMAP_BUILD_ID, &body, 99)), Some(SidebandRecord::Event(expected)));
    }

    #[test]
    fn a_mapping_without_a_build_id_has_its_files_inode() {
        let mut body: Vec<u8> = [7u32, 8].iter().flat_map(|it| it.to_le_bytes()).collect();
        body.extend([0x1000u64, 0x2000, 0x3000].iter().flat_map(|it| it.to_le_bytes()));
        body.extend([0xfe_u32, 1].iter().flat_map(|it| it.to_le_bytes()));
        body.extend([42u64, 9].iter().flat_map(|it| it.to_le_bytes()));
        body.extend([0; 8]);
        body.extend(b"/lib/x\0\0");
        let Some(SidebandRecord::Event(ProcessEvent::Mmap { path, build_id, device, inode, .. })) =
            parse(&record(RECORD_MMAP2, 0, &body, 99))
        else {
            panic!("another record")
        };
        assert_eq!((path, build_id), ("/lib/x".into(), vec![]));
        assert_eq!((device, inode), (libc::makedev(0xfe, 1), 42));
    }

    #[test]
    fn a_new_thread_is_no_fork() {
        let body = |pid: u32, parent: u32| {
            let mut body: Vec<u8> = [pid, parent, 8, 7].iter().flat_map(|it| it.to_le_bytes()).collect();
            body.extend(5u64.to_le_bytes());
            body
        };
        let fork = ProcessEvent::Fork { time_nanos: 5, parent: 7, pid: 8 };
        assert_eq!(parse(&record(RECORD_FORK, 0, &body(8, 7), 9)), Some(SidebandRecord::Event(fork)));
        let thread = SidebandRecord::ThreadBegin { pid: 7, time_nanos: 5 };
        assert_eq!(parse(&record(RECORD_FORK, 0, &body(7, 7), 9)), Some(thread));
    }

    #[test]
    fn an_exec_is_told_from_a_new_name() {
        let mut body: Vec<u8> = [7u32, 7].iter().flat_map(|it| it.to_le_bytes()).collect();
        body.extend(b"python\0\0");
        let exec = ProcessEvent::Exec { time_nanos: 1, pid: 7, comm: "python".into(), had_threads: false };
        assert_eq!(parse(&record(RECORD_COMM, MISC_COMM_EXEC, &body, 1)), Some(SidebandRecord::Event(exec)));
        let name = ProcessEvent::ThreadName { time_nanos: 1, pid: 7, comm: "python".into() };
        assert_eq!(parse(&record(RECORD_COMM, 0, &body, 1)), Some(SidebandRecord::Event(name)));
    }

    proptest! {
        /// One process moves between CPUs and goes on while the rings are read: `moves` are the CPU
        /// of each of its events, and how many happen before the next look at a clock or a ring.
        #[test]
        fn a_cause_is_told_before_its_effect(moves in proptest::collection::vec((0usize..3, 0u64..4), 1..200)) {
            let (mut time, mut rings) = (0u64, vec![Vec::new(); 3]);
            let mut moves = moves.into_iter();
            let mut happens = |time: &mut u64, rings: &mut Vec<Vec<SidebandRecord>>| {
                let (cpu, n) = moves.next().unwrap_or_default();
                for _ in 0..n {
                    *time += 1;
                    rings[(cpu + *time as usize) % 3].push(SidebandRecord::Lost { n: 1, time_nanos: *time });
                }
            };
            let (mut unsettled, mut told) = (Vec::new(), 0);
            for _ in 0..200 {
                let steps = RefCell::new((&mut time, &mut rings, &mut happens));
                let now = || {
                    let (time, rings, happens) = &mut *steps.borrow_mut();
                    happens(time, rings);
                    **time
                };
                let read = |records: &mut Vec<SidebandRecord>| {
                    let (time, rings, happens) = &mut *steps.borrow_mut();
                    for cpu in 0..3 {
                        records.append(&mut rings[cpu]);
                        happens(time, rings);
                    }
                };
                let mut times: Vec<_> = settled(&mut unsettled, now, read).iter().map(SidebandRecord::time_nanos).collect();
                times.sort();
                prop_assert_eq!(&times, &(told + 1..=told + times.len() as u64).collect::<Vec<_>>());
                told += times.len() as u64;
            }
            prop_assert_eq!(told, time);
        }

        #[test]
        fn any_bytes_are_survived(kind in 0u32..12, misc: u16, body in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = parse(&body);
            let mut bytes = kind.to_le_bytes().to_vec();
            bytes.extend(misc.to_le_bytes());
            bytes.extend(body);
            let _ = parse(&bytes);
        }
    }
}
