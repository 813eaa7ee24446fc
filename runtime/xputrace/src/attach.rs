//! Brings the collector into processes that were started without it.

use crate::machine::deadline;
use crate::payload::{COLLECTOR, Owner};
use anyhow::{Context, Result, bail};
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use xputrace_boundary::user::Account;
use xputrace_inject::{Request, inject};
use xputrace_linux::{has_thread, is_over, seen_from_here, shares_our_files};
use xputrace_render::one_line;
use xputrace_rendezvous::{call_dormant, comm_of};
use xputrace_wire::maps::MapsLine;
use xputrace_wire::status::field;
use xputrace_wire::{Answer, COLLECTORS_THREAD};

/// The collector's function that arms a running process.
const ARM: &str = "xputrace_arm";
/// How long a thread that loads the collector may take to map its file.
const LOADED_WITHIN: Duration = Duration::from_secs(1);
/// How long a process may be held by a run whose tracer has ended.
const LEFT_WITHIN: Duration = Duration::from_secs(2);
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(10);
/// How many processes are attached to at a time.
const MOST_AT_ONCE: usize = 16;

/// A running process in which CUDA runs.
#[derive(Clone, Debug)]
pub struct Attachable {
    pub pid: u32,
    comm: String,
    /// The collector's file as the process sees it.
    library: PathBuf,
    /// The same file as we see it.
    pub collector: PathBuf,
    /// Whether the process has loaded it.
    is_loaded: bool,
}

impl Attachable {
    /// Lays down the collector where the process can load it, unless it has.
    ///
    /// # Errors
    /// There is no directory from which it can load the collector.
    pub fn prepare(pid: u32) -> Result<Self> {
        if let Some((library, collector)) = loaded_collector(pid) {
            return Ok(Attachable { pid, comm: comm_of(pid), library, collector, is_loaded: true });
        }
        let (library, collector) = if shares_our_files(pid).context("looking at its mounts")? {
            let library = COLLECTOR.lay_down(&owner(pid)?)?;
            (library.clone(), library)
        } else {
            let library = COLLECTOR.lay_down_in(&seen_from_here(pid, Path::new("/")), &owner(pid)?)?;
            let collector = seen_from_here(pid, &library);
            (library, collector)
        };
        Ok(Attachable { pid, comm: comm_of(pid), library, collector, is_loaded: false })
    }

    /// Lets the collector connect to the tracer at `socket`, which arms it meanwhile: by a call if it waits for one,
    /// else by loading it. Returns once it is armed or refused; what it refuses, it tells the tracer.
    fn attach(&self, socket: &str) -> Result<()> {
        if !self.is_loaded
            && let Some(loaded) = self.loaded_meanwhile()?
        {
            return loaded.attach(socket);
        }
        let until = deadline(LEFT_WITHIN);
        let mut answer = self.ask(socket)?;
        // A run that has ended may take a while to leave.
        while let Answer::Busy(holder) = answer
            && is_over(holder)
            && Instant::now() < until
        {
            std::thread::sleep(ASK_AGAIN_AFTER);
            answer = self.ask(socket)?;
        }
        match answer {
            Answer::Armed | Answer::Refused => Ok(()),
            Answer::NoTracer => {
                bail!("its collector cannot connect to xputrace, by name or by path; a sandbox may prevent it")
            }
            Answer::Busy(0) => bail!("another xputrace traces it"),
            Answer::Busy(holder) => bail!("another xputrace, process {holder}, traces it"),
        }
    }

    /// Returns the process with the collector that another tracer has loaded meanwhile, if one has. A thread that loads
    /// it has its name before.
    ///
    /// # Errors
    /// That collector is of another version: two in a process know nothing of each other.
    fn loaded_meanwhile(&self) -> Result<Option<Self>> {
        let until = deadline(LOADED_WITHIN);
        while has_thread(self.pid, COLLECTORS_THREAD) {
            if let Some((library, collector)) = loaded_collector(self.pid) {
                let comm = self.comm.clone();
                return Ok(Some(Attachable { pid: self.pid, comm, library, collector, is_loaded: true }));
            }
            if Instant::now() >= until {
                bail!("another version of xputrace traces it");
            }
            std::thread::sleep(ASK_AGAIN_AFTER);
        }
        Ok(None)
    }

    /// Makes the collector try to connect: by a call if it waits for one, else by loading it.
    fn ask(&self, socket: &str) -> Result<Answer> {
        let called = if self.is_loaded { call_dormant(self.pid, socket) } else { None };
        let request = || Request { library: self.library.clone(), symbol: ARM, argument: socket.into() };
        Ok(called.map_or_else(|| inject(self.pid, &request()).map(Answer::from_code), Ok)?)
    }
}

/// Says to which process a reason belongs.
pub fn refusal(pid: u32, comm: &str, why: &anyhow::Error) -> String {
    format!("cannot attach to process {pid} ({}): {why:#}", one_line(comm))
}

/// An attempt to attach that is over.
pub struct Attempt {
    pub pid: u32,
    pub comm: String,
    pub result: Result<()>,
}

/// Attempts to attach, each on a thread of its own: one may take as long as its process loads CUPTI.
pub struct Attempts {
    socket: String,
    waiting: VecDeque<Attachable>,
    n_working: usize,
    sender: Sender<Attempt>,
    over: Receiver<Attempt>,
}

impl Attempts {
    /// Creates it for a tracer whose address is `socket`.
    pub fn new(socket: String) -> Self {
        let (sender, over) = channel();
        Attempts { socket, waiting: VecDeque::new(), n_working: 0, sender, over }
    }

    /// Begins an attempt, or puts it off while there are many.
    pub fn begin(&mut self, process: Attachable) {
        self.waiting.push_back(process);
        self.begin_waiting();
    }

    fn begin_waiting(&mut self) {
        while self.n_working < MOST_AT_ONCE
            && let Some(process) = self.waiting.pop_front()
        {
            self.n_working += 1;
            let (pid, comm) = (process.pid, process.comm.clone());
            if let Err(error) = self.begin_on_thread(process) {
                let result = Err(error).context("xputrace cannot start a thread");
                let _ = self.sender.send(Attempt { pid, comm, result });
            }
        }
    }

    fn begin_on_thread(&self, process: Attachable) -> io::Result<()> {
        let (sender, socket) = (self.sender.clone(), self.socket.clone());
        let work = move || {
            let result = process.attach(&socket);
            let _ = sender.send(Attempt { pid: process.pid, comm: process.comm, result });
        };
        std::thread::Builder::new().name("xputrace-attach".into()).spawn(work).map(drop)
    }

    /// Returns an attempt that is over; `None` if there is none up to this moment.
    pub fn next(&mut self, until: Instant) -> Option<Attempt> {
        if self.n_working == 0 {
            return None;
        }
        let attempt = match self.over.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(attempt) => attempt,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
        };
        self.n_working -= 1;
        self.begin_waiting();
        Some(attempt)
    }

    /// Begins none of those that were put off.
    pub fn stop(&mut self) {
        self.waiting.clear();
    }
}

/// Returns the file of our collector that a process has loaded already: as it sees it, and as we do.
fn loaded_collector(pid: u32) -> Option<(PathBuf, PathBuf)> {
    let maps = fs::read(format!("/proc/{pid}/maps")).ok()?;
    let lines = maps.split(|it| *it == b'\n').filter_map(MapsLine::parse).filter(|it| it.is_executable);
    let mut files = lines.filter_map(|it| Some((it.file()?.0, it.inode)));
    files.find_map(|(path, inode)| {
        let seen = seen_from_here(pid, &path);
        let found = fs::metadata(&seen).ok()?;
        (found.ino() == inode && COLLECTOR.is(&seen)).then_some((path, seen))
    })
}

/// The user as whom a process loads files.
fn owner(pid: u32) -> Result<Owner> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("reading its user")?;
    let effective = |name: &str| field(&status, name)?.split_whitespace().nth(1)?.parse().ok();
    let (uid, gid) = effective("Uid").zip(effective("Gid")).context("its user is unknown")?;
    let own = Owner::current();
    let account = Account { uid, gid };
    Ok(if own.account.uid == uid { own } else { Owner { account, home: None } })
}
