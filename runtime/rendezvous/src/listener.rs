//! The sockets that collectors connect to, and who may connect.

use super::collector::Collector;
use super::error::{RendezvousError, failed};
use super::network::{Network, NetworkId};
use super::socket::{Peer, Received, bind_abstract, bind_path, listen, peer, private_directory, random, receive, send};
use super::socket::{accept, seqpacket};
use std::cell::Cell;
use std::collections::HashSet;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use xputrace_boundary::create::Creator;
use xputrace_boundary::read;
use xputrace_boundary::user::Account;
use xputrace_wire::message::{self, Message};

/// Prefix of the names of a tracer's socket and directory.
const PREFIX: &str = "xputrace-";
/// The socket's name in its directory.
const SOCKET: &str = "socket";
/// Names of a directory that are looked at for such.
const MOST_LOOKED_AT: usize = 100_000;

/// The sockets that collectors find through [`xputrace_wire::SOCKET_VARIABLE`]: one in the abstract
/// namespace, and one in the file system, for processes in other network namespaces.
#[derive(Debug)]
pub struct Listener {
    sockets: Vec<OwnedFd>,
    value: String,
    /// Removed on drop, with its directory.
    path: Option<PathBuf>,
    allowed_uids: Vec<u32>,
    /// The socket whose turn it is, as a number that only grows.
    turn: Cell<usize>,
}

impl Listener {
    /// Listens on a new abstract name, and on a socket in a new directory under `XDG_RUNTIME_DIR`
    /// or `/tmp`. One of the two is enough.
    ///
    /// `also_uid` may connect besides root and the tracer's own user. It is the invoking user, if
    /// the program runs as that.
    ///
    /// # Errors
    /// Neither socket can be created.
    pub fn new(also_uid: Option<u32>) -> Result<Listener, RendezvousError> {
        let name = format!("{PREFIX}{}-{:016x}", std::process::id(), random());
        // SAFETY: no arguments, cannot fail.
        let own = unsafe { libc::geteuid() };
        let allowed_uids = [0, own].into_iter().chain(also_uid).collect();
        let (sockets, value, path) = match (on_abstract(&name), on_path(&name)) {
            (Ok(first), Ok((second, path))) => (vec![first, second], format!("@{name}:{}", path.display()), Some(path)),
            (Ok(only), Err(_)) => (vec![only], format!("@{name}"), None),
            (Err(_), Ok((only, path))) => (vec![only], path.display().to_string(), Some(path)),
            (Err(error), Err(_)) => return Err(error),
        };
        Ok(Listener { sockets, value, path, allowed_uids, turn: Cell::default() })
    }

    /// Returns what listens in further network namespaces.
    pub(super) fn reach(&self) -> Reach {
        Reach { name: self.abstract_name(), reached: HashSet::new() }
    }

    /// Also accepts the connections to these sockets.
    pub(super) fn add(&mut self, sockets: impl Iterator<Item = OwnedFd>) {
        self.sockets.extend(sockets);
    }

    fn abstract_name(&self) -> Option<String> {
        Some(self.value.strip_prefix('@')?.split(':').next()?.to_owned())
    }

    /// Returns the value for [`xputrace_wire::SOCKET_VARIABLE`].
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Returns the descriptors that are readable when a collector wants to connect.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.sockets.iter().map(AsRawFd::as_raw_fd)
    }

    /// Accepts the next collector; returns `None` if none is waiting. Never blocks.
    ///
    /// # Errors
    /// The system refuses another connection. The peer keeps waiting for one, and [`Listener::fds`]
    /// stay readable.
    pub fn accept(&self) -> Result<Option<Connection>, RendezvousError> {
        let n = self.sockets.len();
        for _ in 0..n {
            // In turns: who connects to one again and again must not keep others out.
            let turn = self.turn.replace(self.turn.get().wrapping_add(1)) % n;
            let accepted = accept(&self.sockets[turn]).map_err(|it| failed("accept a collector's connection", it))?;
            if let Some((socket, peer)) = accepted.and_then(|it| peer(&it).map(|peer| (it, peer))) {
                return Ok(Some(Connection { socket, peer }));
            }
        }
        Ok(None)
    }

    /// Whether any process of this user may connect.
    pub fn allows(&self, peer: Peer) -> bool {
        self.allowed_uids.contains(&peer.uid)
    }
}

/// Where else an abstract name is listened on.
#[derive(Debug)]
pub(super) struct Reach {
    name: Option<String>,
    /// Network namespaces that have a socket of ours.
    reached: HashSet<NetworkId>,
}

impl Reach {
    /// Returns a socket that listens in the network namespace of a process; `None` if one does already.
    ///
    /// # Errors
    /// We may not enter it.
    pub(super) fn socket_for(&mut self, pid: u32) -> Result<Option<OwnedFd>, RendezvousError> {
        let context = |it| failed(format!("listen for the collector in the network namespace of process {pid}"), it);
        let theirs = Network::of_process(pid).map_err(context)?;
        let ours = Network::of_this_thread().map_err(context)?;
        let Some(name) = &self.name else { return Ok(None) };
        if theirs.id == ours.id || self.reached.contains(&theirs.id) {
            return Ok(None);
        }
        // A thread of its own, which ends there: this one stays in our namespace.
        let listen_there = || theirs.enter().map_err(context).and_then(|()| on_abstract(name));
        let listening = std::thread::scope(|scope| scope.spawn(listen_there).join());
        let socket = listening.unwrap_or_else(|_| Err(context(std::io::Error::other("its thread panicked"))))?;
        self.reached.insert(theirs.id);
        Ok(Some(socket))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            remove(path);
        }
    }
}

fn on_abstract(name: &str) -> Result<OwnedFd, RendezvousError> {
    let context = |it| failed(format!("listen on @{name} for the collectors"), it);
    let socket = seqpacket().map_err(context)?;
    bind_abstract(&socket, name).and_then(|()| listen(&socket)).map_err(context)?;
    Ok(socket)
}

fn on_path(name: &str) -> Result<(OwnedFd, PathBuf), RendezvousError> {
    let directory = private_directory(name)?;
    directory.parent().into_iter().for_each(clear_abandoned);
    let path = directory.join(SOCKET);
    let context = |it| failed(format!("listen on {} for the collectors", path.display()), it);
    let socket = seqpacket().map_err(context)?;
    bind_path(&socket, &path).and_then(|()| listen(&socket)).map_err(context)?;
    Ok((socket, path))
}

/// Removes the directories that our tracers left in `parent` when they were killed.
fn clear_abandoned(parent: &Path) {
    let own = Account::current().uid;
    let Ok(entries) = read::open_directory(parent).and_then(|it| read::entries(&it, MOST_LOOKED_AT)) else { return };
    for (name, about) in entries.into_iter().filter(|it| it.0.as_encoded_bytes().starts_with(PREFIX.as_bytes())) {
        let is_ours = about.is_dir() && about.uid() == own;
        let socket = parent.join(name).join(SOCKET);
        if is_ours && is_abandoned(&socket) {
            remove(&socket);
        }
    }
}

/// Removes a socket and its directory.
fn remove(socket: &Path) {
    // Where it can't be removed, it is in nobody's way.
    let _ = socket.parent().map(|it| Creator::own().remove_own_directory(it, SOCKET.as_ref()));
}

/// Whether no process listens on this socket. As long as one does, connecting with another
/// socket type is refused because of the type, without the tracer noticing.
fn is_abandoned(socket: &Path) -> bool {
    UnixStream::connect(socket).is_err_and(|it| it.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// A peer that has connected and sent nothing yet.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    peer: Peer,
}

/// A peer's first message.
#[derive(Debug)]
pub enum Heard {
    /// Nothing yet.
    Nothing(Connection),
    Hello(Collector),
    /// The peer is gone, or is not a collector.
    Gone,
}

impl Connection {
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Returns the descriptor that is readable when there is a message.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Tells the peer that a tracer is here and will send an order.
    pub fn ask_to_wait(&self) {
        let _ = send(&self.socket, &Message::new(message::COMING, &[], ""), &[]);
    }

    /// Leaves the process untraced.
    pub fn leave_dormant(self) {
        let _ = send(&self.socket, &Message::new(message::DORMANT, &[], ""), &[]);
    }

    /// Receives the peer's first message. Never blocks.
    pub fn hear(self) -> Heard {
        match receive(&self.socket) {
            Received::Message(hello, _) if hello.kind == message::HELLO => {
                Heard::Hello(Collector::new(self.socket, self.peer, hello))
            }
            Received::Nothing => Heard::Nothing(self),
            Received::Message(..) | Received::Closed => Heard::Gone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_user_can_connect_by_path_and_change_nothing() {
        use std::os::unix::fs::PermissionsExt;
        let listener = Listener::new(None).unwrap();
        let (name, path) = listener.value().split_once(':').unwrap();
        assert!(name.starts_with('@'));
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let (path, directory) = (Path::new(path), Path::new(path).parent().unwrap().to_path_buf());
        assert_eq!((mode(path) & 0o222, mode(&directory) & 0o077), (0o222, 0o011));
        drop(listener);
        assert!(!directory.exists());
    }

    #[test]
    fn what_a_killed_tracer_left_is_removed_and_what_a_living_one_has_stays() {
        let living = Listener::new(None).unwrap();
        let kept = living.path.clone().unwrap();
        let mut killed = Listener::new(None).unwrap();
        // A killed tracer closes its sockets and removes nothing.
        killed.sockets.clear();
        let left = killed.path.take().unwrap();
        assert!(left.exists());
        let _later = Listener::new(None).unwrap();
        assert!(!left.exists() && !left.parent().unwrap().exists(), "{}", left.display());
        assert!(kept.exists());
    }

    #[test]
    fn an_accept_that_fails_is_no_silence() {
        let sockets = vec![seqpacket().unwrap()];
        let listener =
            Listener { sockets, value: String::new(), path: None, allowed_uids: Vec::new(), turn: Cell::default() };
        let error = listener.accept().unwrap_err();
        assert!(error.to_string().contains("accept a collector's connection"), "{error}");
    }
}
