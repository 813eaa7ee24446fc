//! Processes that wait for it to be chosen how device code gets into their kernels, each with a thread that looks at them.

use super::collector::Collector;
use super::socket::Peer;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use xputrace_model::plan::DeviceWay;

/// How device code gets into the kernels of a run's processes.
#[derive(Clone)]
pub enum Ways {
    /// The same in all of them.
    Given(DeviceWay),
    /// Each has its own.
    Chosen(Arc<dyn ChooseWay>),
}

/// Chooses a process's way before it is armed. The process is in its first CUDA call, and waits.
pub trait ChooseWay: Send + Sync {
    /// Chooses what needs no look at the process's files.
    fn at_once(&self, process: &Newcomer) -> Option<Chosen>;

    /// Chooses by the process's files, on a thread of its own. Ends in time: nobody else does that for it.
    fn by_files(&self, process: &Newcomer) -> Chosen;
}

/// A process that is not armed yet.
#[derive(Clone, Debug)]
pub struct Newcomer {
    pub peer: Peer,
    /// Why its machine code can't be patched, if it can't.
    pub no_patches: Option<String>,
    /// The file of its vendor's library, as it says.
    pub library_file: PathBuf,
}

/// The way of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    pub way: DeviceWay,
    /// Why it was chosen, for the user.
    pub note: Option<String>,
}

/// The processes that wait.
pub(super) struct Choosing {
    waiting: Vec<Waiting>,
    n_begun: u64,
    done: Receiver<(u64, Chosen)>,
    sender: Sender<(u64, Chosen)>,
    /// Has a byte for each choice, which is written before it.
    signal: PipeReader,
    writer: PipeWriter,
}

struct Waiting {
    number: u64,
    target: Collector,
    library_file: PathBuf,
}

impl Choosing {
    /// # Errors
    /// The system gives no pipe.
    pub(super) fn new() -> io::Result<Self> {
        let (sender, done) = channel();
        let (signal, writer) = io::pipe()?;
        Ok(Choosing { waiting: Vec::new(), n_begun: 0, done, sender, signal, writer })
    }

    /// Returns a descriptor that is readable when something was chosen.
    pub(super) fn fd(&self) -> RawFd {
        self.signal.as_raw_fd()
    }

    /// Begins to choose for a process. Without a thread for that, it gets the default.
    pub(super) fn begin(&mut self, chooser: Arc<dyn ChooseWay>, newcomer: Newcomer, target: Collector) {
        let number = self.n_begun;
        self.n_begun += 1;
        target.ask_to_wait();
        self.waiting.push(Waiting { number, target, library_file: newcomer.library_file.clone() });
        let done = self.sender.clone();
        let look = move |signal: PipeWriter| {
            let chosen = catch_unwind(AssertUnwindSafe(|| chooser.by_files(&newcomer)));
            tell(&signal, &done, (number, chosen.unwrap_or_default()));
        };
        let thread = |signal| std::thread::Builder::new().name("xputrace-look".into()).spawn(move || look(signal));
        if self.writer.try_clone().and_then(thread).is_err() {
            tell(&self.writer, &self.sender, (number, Chosen::default()));
        }
    }

    /// Returns a process whose way was chosen, with the file of its vendor's library.
    pub(super) fn next(&mut self) -> Option<(Collector, PathBuf, Chosen)> {
        let (number, chosen) = self.done.try_recv().ok()?;
        let _ = self.signal.read_exact(&mut [0]);
        let at = self.waiting.iter().position(|it| it.number == number)?;
        let Waiting { target, library_file, .. } = self.waiting.swap_remove(at);
        Some((target, library_file, chosen))
    }

    /// Returns the processes that still wait.
    pub(super) fn rest(&mut self) -> impl Iterator<Item = Collector> + '_ {
        self.waiting.drain(..).map(|it| it.target)
    }
}

/// Says what was chosen. Without a reader the run is over.
fn tell(mut signal: &PipeWriter, done: &Sender<(u64, Chosen)>, chosen: (u64, Chosen)) {
    let _ = signal.write_all(&[0]);
    let _ = done.send(chosen);
}
