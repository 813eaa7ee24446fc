//! The thread that accepts collectors and arms them.
//!
//! A program is blocked in its first CUDA call until its collector is armed or gives up. So this
//! thread never waits for a single peer: silent peers are set aside, and reports go through a
//! channel.

use super::choosing::{Choosing, Chosen, Newcomer, Ways};
use super::collector::{Arming, Collector, RunOrder, SharedMemory};
use super::error::RendezvousError;
use super::listener::{Connection, Heard, Listener, Reach};
use super::socket::{Peer, readable};
use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use xputrace_model::plan::{Demand, DeviceWay};
use xputrace_render::one_line;

/// How long a peer may stay silent. A silent peer delays nobody else.
const SILENCE: Duration = Duration::from_secs(10);
/// Maximum number of silent peers; beyond it, the oldest is dropped.
const MOST_SILENT: usize = 1024;
/// How many connections are accepted before others are heard: somebody may connect again and again.
const MOST_AT_ONCE: usize = 64;
/// More than wait for a listening socket.
const MOST_WAITING: usize = 4 * libc::SOMAXCONN as usize;
/// Processes whose refusal is remembered, so that each is reported once.
const MOST_REFUSED: usize = 1 << 16;
/// How often a process can be connected at a time. One that runs another program connects anew; each connection reserves
/// the memory of its rings.
const MOST_OF_PROCESS: usize = 32;
/// Likewise, all processes.
const MOST_CONNECTED: usize = 4096;
/// Delay before the next attempt, if the system refuses further connections.
const RETRY: Duration = Duration::from_millis(20);

/// Creates the tag array of a process, given its id.
pub type TagArrays = Box<dyn FnMut(u32) -> Result<OwnedFd, String> + Send>;

/// What a run asks of its processes.
pub struct Order {
    /// The same for each of them.
    pub run: RunOrder,
    /// What processes record that are armed from now on.
    pub now: Arc<Mutex<Demand>>,
    /// Set if the demand has a launch marker.
    pub tags: Option<TagArrays>,
    /// How device code gets into kernels.
    pub ways: Ways,
    /// Whether a process is the target's, under any user.
    pub is_target: Box<dyn Fn(u32) -> bool + Send>,
}

/// The fate of a peer.
pub enum Arrival {
    Armed(Box<Armed>),
    Missed(Missed),
    /// The system currently refuses connections.
    Full(RendezvousError),
}

/// A collector that was sent its order.
pub struct Armed {
    pub target: Collector,
    pub shared: SharedMemory,
    /// Number of the process in this run, in order of arrival.
    pub index: u32,
    pub comm: String,
    /// The result of [`Collector::thread_ids`] when it was armed.
    pub thread_ids: Vec<(u32, u32)>,
    /// The file of the vendor's library, as it says.
    pub library_file: PathBuf,
    /// How device code gets into its kernels.
    pub chosen: Chosen,
}

/// A process that is not traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missed {
    pub peer: Peer,
    pub comm: String,
    pub why: Why,
}

/// Why a process is not traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It belongs to another user and is not a child of the command.
    OtherUser,
    /// It connected and sent nothing.
    Silent,
    /// It disconnected before it sent a message: its collector does not trust us, or it was killed.
    Left,
    /// It cannot be traced: it has no library of its vendor, or another version of the collector.
    Refused(String),
    /// The run ended while the way into its kernels was chosen.
    Undecided,
    /// Something failed in the tracer.
    Failed(String),
}

/// A handle to the thread. Dropping it ends the thread.
pub struct Acceptor {
    arrivals: Receiver<Arrival>,
    /// The thread writes a byte for each arrival, looks for sockets at each byte from here, and ends when this is
    /// closed.
    signal: UnixStream,
    further: Sender<OwnedFd>,
    reach: Reach,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system is out of descriptors or threads.
    pub fn start(listener: Listener, order: Order) -> std::io::Result<Self> {
        let (signal, other) = UnixStream::pair()?;
        signal.set_nonblocking(true)?;
        other.set_nonblocking(true)?;
        let (sender, arrivals) = channel();
        let (further, sockets) = channel();
        let reach = listener.reach();
        let work = Arrivals {
            listener,
            sockets,
            order,
            silent: Vec::new(),
            choosing: Choosing::new()?,
            n_armed: 0,
            connected: Connected::default(),
            refused: HashSet::new(),
            is_full: false,
            arrivals: sender,
            signal: other,
        };
        let thread = std::thread::Builder::new().name("xputrace-accept".into()).spawn(move || work.run())?;
        Ok(Acceptor { arrivals, signal, further, reach, thread: Some(thread) })
    }

    /// Also listens in the network namespace of a process, where our abstract name is another one.
    ///
    /// # Errors
    /// We may not enter it.
    pub fn also_reach(&mut self, pid: u32) -> Result<(), RendezvousError> {
        if let Some(socket) = self.reach.socket_for(pid)? {
            let _ = self.further.send(socket);
            let _ = (&self.signal).write(&[1]);
        }
        Ok(())
    }

    /// Returns the descriptor that is readable when there are arrivals.
    pub fn fd(&self) -> RawFd {
        self.signal.as_raw_fd()
    }

    /// Returns the arrivals since the last call. Never blocks.
    pub fn arrivals(&self) -> impl Iterator<Item = Arrival> + '_ {
        let mut bytes = [0; 256];
        while (&self.signal).read(&mut bytes).is_ok_and(|n| n == bytes.len()) {}
        self.arrivals.try_iter()
    }

    /// Ends the thread: nobody else is accepted. Earlier arrivals are still returned.
    pub fn stop(&mut self) {
        let _ = self.signal.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A peer that has sent nothing yet.
struct Silent {
    connection: Connection,
    /// Determined when it connected: it may have ended when it disconnects.
    is_target: bool,
}

impl Silent {
    fn since(&self) -> Instant {
        self.connection.peer().accepted
    }
}

/// The connections of processes that were armed, which last as long as these references hold.
#[derive(Default)]
struct Connected(HashMap<u32, Vec<Weak<()>>>);

impl Connected {
    /// Notes that a process is about to be armed; returns why it can't be.
    fn admit(&mut self, pid: u32, presence: Weak<()>) -> Result<(), String> {
        self.0.retain(|_, of_process| {
            of_process.retain(|it| it.strong_count() > 0);
            !of_process.is_empty()
        });
        let n_processes = self.0.len();
        let of_process = self.0.entry(pid).or_default();
        if of_process.len() >= MOST_OF_PROCESS {
            return Err(format!("process {pid} has connected {MOST_OF_PROCESS} times"));
        }
        if of_process.is_empty() && n_processes >= MOST_CONNECTED {
            self.0.remove(&pid);
            return Err(format!("{MOST_CONNECTED} processes are traced already"));
        }
        of_process.push(presence);
        Ok(())
    }
}

/// The thread's state.
struct Arrivals {
    listener: Listener,
    /// Further sockets to listen on.
    sockets: Receiver<OwnedFd>,
    order: Order,
    /// In order of arrival.
    silent: Vec<Silent>,
    choosing: Choosing,
    n_armed: u32,
    /// Those that were armed and are still connected, by process.
    connected: Connected,
    /// Processes of other users that were reported.
    refused: HashSet<u32>,
    /// Whether the system refused the last attempt to accept.
    is_full: bool,
    arrivals: Sender<Arrival>,
    signal: UnixStream,
}

impl Arrivals {
    fn run(mut self) {
        while self.wait() {
            self.accept(MOST_AT_ONCE);
            self.hear();
            self.arm_chosen();
            self.let_go_of_silent();
        }
        self.close();
    }

    /// Ends the run: peers that say hello now stay dormant, and those that already left are
    /// reported.
    fn close(&mut self) {
        self.accept(MOST_WAITING);
        for target in self.choosing.rest().collect::<Vec<_>>() {
            let peer = target.peer;
            target.leave_dormant();
            self.miss(peer, Why::Undecided);
        }
        for Silent { connection, is_target } in std::mem::take(&mut self.silent) {
            let peer = connection.peer();
            match connection.hear() {
                Heard::Nothing(connection) => connection.leave_dormant(),
                Heard::Hello(target) => target.leave_dormant(),
                Heard::Gone if is_target => self.miss(peer, Why::Left),
                Heard::Gone => {}
            }
        }
    }

    /// Waits until there is something to do; returns false when the run is over.
    fn wait(&mut self) -> bool {
        let signal = self.signal.as_raw_fd();
        let listening = self.listener.fds().filter(|_| !self.is_full);
        let fds: Vec<RawFd> = [signal, self.choosing.fd()]
            .into_iter()
            .chain(listening)
            .chain(self.silent.iter().map(|it| it.connection.fd()))
            .collect();
        let oldest = self.silent.iter().map(Silent::since).min();
        let oldest = oldest.map(|it| SILENCE.saturating_sub(it.elapsed()) + Duration::from_millis(1));
        let limit = if self.is_full { Some(RETRY) } else { oldest };
        !readable(&fds, limit).contains(&signal) || self.add_sockets()
    }

    /// Takes further sockets to listen on; returns false if the run is over.
    fn add_sockets(&mut self) -> bool {
        let goes_on = (&self.signal).read(&mut [0; 64]).is_ok_and(|n| n > 0);
        self.listener.add(self.sockets.try_iter());
        goes_on
    }

    fn accept(&mut self, most: usize) {
        let was_full = std::mem::take(&mut self.is_full);
        for _ in 0..most {
            match self.listener.accept() {
                Ok(None) => return,
                Ok(Some(peer)) => self.let_in(peer),
                Err(error) => {
                    self.is_full = true;
                    if !was_full {
                        self.report(Arrival::Full(error));
                    }
                    return;
                }
            }
        }
    }

    fn let_in(&mut self, connection: Connection) {
        let peer = connection.peer();
        // Answer first: a peer that gets no answer soon leaves.
        connection.ask_to_wait();
        let is_target = (self.order.is_target)(peer.pid);
        if !self.listener.allows(peer) && !is_target {
            connection.leave_dormant();
            return self.refuse(peer);
        }
        if self.silent.len() == MOST_SILENT {
            let oldest = self.silent.remove(0);
            self.miss(oldest.connection.peer(), Why::Silent);
        }
        self.silent.push(Silent { connection, is_target });
    }

    /// Reports a process of another user, once.
    fn refuse(&mut self, peer: Peer) {
        if self.refused.len() >= MOST_REFUSED {
            self.refused.clear();
        }
        if self.refused.insert(peer.pid) {
            self.miss(peer, Why::OtherUser);
        }
    }

    fn hear(&mut self) {
        for Silent { connection, is_target } in std::mem::take(&mut self.silent) {
            let peer = connection.peer();
            match connection.hear() {
                Heard::Nothing(connection) => self.silent.push(Silent { connection, is_target }),
                Heard::Hello(target) => {
                    self.arm(target);
                    // Greet peers that connected in the meantime.
                    self.accept(MOST_AT_ONCE);
                }
                Heard::Gone if is_target => self.miss(peer, Why::Left),
                Heard::Gone => {}
            }
        }
    }

    fn let_go_of_silent(&mut self) {
        let late: Vec<_> = self.silent.extract_if(.., |it| it.since().elapsed() >= SILENCE).collect();
        late.into_iter().for_each(|it| self.miss(it.connection.peer(), Why::Silent));
    }

    /// Arms a process, unless its way has to be chosen first.
    fn arm(&mut self, target: Collector) {
        let peer = target.peer;
        let no_library = (target.library_version == 0).then(|| {
            format!("process {} has no {}: {}", target.peer.pid, target.vendor.library(), one_line(&target.library))
        });
        let refusal =
            target.refusal.clone().or(no_library).or_else(|| self.connected.admit(peer.pid, target.presence()).err());
        if let Some(refusal) = refusal {
            target.leave_dormant();
            return self.miss(peer, Why::Refused(refusal));
        }
        // As it says: to look there could take as long as the process likes.
        let library_file = PathBuf::from(&target.library);
        let chooser = match &self.order.ways {
            Ways::Given(way) => return self.arm_by(target, library_file, Chosen { way: *way, note: None }),
            Ways::Chosen(chooser) => chooser.clone(),
        };
        let newcomer = Newcomer { peer, no_patches: target.no_patches.clone(), library_file: library_file.clone() };
        match chooser.at_once(&newcomer) {
            Some(chosen) => self.arm_by(target, library_file, chosen),
            None => self.choosing.begin(chooser, newcomer, target),
        }
    }

    /// Arms the processes whose way was chosen meanwhile.
    fn arm_chosen(&mut self) {
        while let Some((target, library_file, chosen)) = self.choosing.next() {
            self.arm_by(target, library_file, chosen);
        }
    }

    fn arm_by(&mut self, mut target: Collector, library_file: PathBuf, chosen: Chosen) {
        let peer = target.peer;
        match self.send_order(&mut target, chosen.way) {
            Ok(shared) => {
                let index = self.n_armed;
                self.n_armed += 1;
                let (comm, thread_ids) = (comm_of(target.peer.pid), target.thread_ids());
                let armed = Armed { target, shared, index, comm, thread_ids, library_file, chosen };
                self.report(Arrival::Armed(Box::new(armed)));
            }
            Err(reason) => {
                target.leave_dormant();
                self.miss(peer, Why::Failed(reason));
            }
        }
    }

    fn send_order(&mut self, target: &mut Collector, way: DeviceWay) -> Result<SharedMemory, String> {
        let Order { run, now, tags, .. } = &mut self.order;
        let tags = tags.as_mut().map(|make| make(target.peer.pid)).transpose()?;
        let first = *now.lock().unwrap_or_else(PoisonError::into_inner);
        let order = Arming { run, first: &first, way };
        target.arm(&order, self.n_armed, tags.as_ref().map(AsRawFd::as_raw_fd)).map_err(|it| it.to_string())
    }

    fn miss(&self, peer: Peer, why: Why) {
        self.report(Arrival::Missed(Missed { peer, comm: comm_of(peer.pid), why }));
    }

    fn report(&self, arrival: Arrival) {
        // If nobody receives, this thread is about to be stopped.
        let _ = self.arrivals.send(arrival);
        // If the socket is full, earlier bytes are signal enough.
        let _ = (&self.signal).write(&[1]);
    }
}

/// Returns a process's name; empty if it has ended.
pub fn comm_of(pid: u32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    xputrace_model::text::from_bytes(line.strip_suffix(b"\n").unwrap_or(&line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_while_they_last() {
        let mut connected = Connected::default();
        let mut admit = |pid: u32| {
            let presence = Arc::new(());
            connected.admit(pid, Arc::downgrade(&presence)).map(|()| presence)
        };
        let of_one: Vec<_> = (0..MOST_OF_PROCESS).map(|_| admit(1).unwrap()).collect();
        assert_eq!(admit(1).unwrap_err(), "process 1 has connected 32 times");
        let others: Vec<_> = (2..=MOST_CONNECTED as u32).map(|pid| admit(pid).unwrap()).collect();
        assert_eq!(admit(5000).unwrap_err(), "4096 processes are traced already");
        let further = admit(2).expect("a process of those may connect again");
        drop((of_one, others));
        admit(5000).unwrap();
        assert_eq!(connected.0.len(), 2, "ended ones are forgotten");
        drop(further);
    }
}
