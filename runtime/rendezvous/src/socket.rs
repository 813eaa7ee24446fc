//! System calls on sockets: names, credentials, packets with descriptors.

use super::error::{RendezvousError, failed};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use xputrace_wire::message::{self, Message};

pub(super) fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub(super) fn random() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: eight writable bytes. A short answer leaves zeros; the pid makes the name unique
    // anyway.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    u64::from_le_bytes(bytes)
}

pub(super) fn seqpacket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain system call; the descriptor is owned from here on.
    unsafe { checked(libc::socket(libc::AF_UNIX, kind, 0)).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

pub(super) fn bind_abstract(socket: &OwnedFd, name: &str) -> io::Result<()> {
    bind(socket, &[b"\0", name.as_bytes()].concat())
}

pub(super) fn bind_path(socket: &OwnedFd, path: &Path) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    // Any user may connect; the peer's uid is checked then. Use the mask instead of chmod, because
    // the path could meanwhile lead to another file.
    // SAFETY: cannot fail. The mask is per process, and the tracer has one thread at this point.
    let before = unsafe { libc::umask(0) };
    let answer = bind(socket, &[path.as_os_str().as_bytes(), b"\0"].concat());
    // SAFETY: as above.
    unsafe { libc::umask(before) };
    answer
}

pub(super) fn bind(socket: &OwnedFd, name: &[u8]) -> io::Result<()> {
    let (address, len) = address(name)?;
    // SAFETY: the address lives through the call and is at least `len` bytes.
    checked(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(())
}

pub(super) fn connect_abstract(socket: &OwnedFd, name: &str) -> io::Result<()> {
    let (address, len) = address(&[b"\0", name.as_bytes()].concat())?;
    // SAFETY: as above.
    checked(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(())
}

fn address(name: &[u8]) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: an all-zero sockaddr_un is valid.
    let mut address: libc::sockaddr_un = unsafe { MaybeUninit::zeroed().assume_init() };
    if name.len() > address.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + name.len();
    Ok((address, len as libc::socklen_t))
}

/// Accepts the next connection, if one is waiting.
pub(super) fn accept(listening: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    loop {
        let nobody = std::ptr::null_mut();
        // SAFETY: a listening socket; no address is requested.
        let fd = unsafe { libc::accept4(listening.as_raw_fd(), nobody, std::ptr::null_mut(), libc::SOCK_CLOEXEC) };
        if fd >= 0 {
            // SAFETY: accept4 just returned it; nothing else owns it.
            return Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }));
        }
        let answer = io::Error::last_os_error();
        match answer.raw_os_error() {
            Some(libc::EAGAIN) => return Ok(None),
            // The peer has gone in the meantime.
            Some(libc::EINTR | libc::ECONNABORTED) => {}
            _ => return Err(answer),
        }
    }
}

/// Waits until some descriptors are readable or closed by their peer; `None` waits forever.
pub(super) fn readable(fds: &[RawFd], limit: Option<Duration>) -> Vec<RawFd> {
    let poll = |fd: &RawFd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 };
    let mut polls: Vec<libc::pollfd> = fds.iter().map(poll).collect();
    let millis = limit.map_or(-1, |it| it.as_millis().min(60_000) as libc::c_int);
    // SAFETY: pointer and length are of one vector.
    unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, millis) };
    polls.iter().filter(|it| it.revents != 0).map(|it| it.fd).collect()
}

pub(super) fn listen(socket: &OwnedFd) -> io::Result<()> {
    // SAFETY: plain system call.
    checked(unsafe { libc::listen(socket.as_raw_fd(), libc::SOMAXCONN) }).map(|_| ())
}

/// Creates a directory that others may enter, but only we can change. Root's is in `/tmp`, where
/// programs that change their user can reach it.
pub(super) fn private_directory(name: &str) -> Result<PathBuf, RendezvousError> {
    use std::os::unix::fs::DirBuilderExt;
    // SAFETY: no arguments, cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|it| !is_root && it.is_dir());
    let path = own.unwrap_or_else(|| PathBuf::from("/tmp")).join(name);
    let context = |it| failed(format!("make the directory {}", path.display()), it);
    std::fs::DirBuilder::new().mode(0o711).create(&path).map_err(context)?;
    Ok(path)
}

/// The process at the other end of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// In the tracer's namespace.
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
    /// When its connection was accepted.
    pub accepted: Instant,
}

/// Returns who connected, according to the system.
pub(super) fn peer(socket: &OwnedFd) -> Option<Peer> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the buffer is a ucred and `len` its size.
    let result = unsafe {
        let at = (&raw mut credentials).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, at, &mut len)
    };
    let libc::ucred { pid, uid, gid } = credentials;
    (result == 0).then_some(Peer { pid: pid as u32, uid, gid, accepted: Instant::now() })
}

pub(super) enum Received {
    Message(Message, Option<OwnedFd>),
    Nothing,
    Closed,
}

/// Receives a message with at most one descriptor; Linux closes those for which there is no room.
pub(super) fn receive(socket: &OwnedFd) -> Received {
    let mut bytes = [0u8; message::MAX_SIZE];
    loop {
        let (n, descriptor) = receive_packet(socket, &mut bytes);
        match n {
            // Whoever sends something else is no collector, and must not keep us busy.
            1.. => match Message::decode(&bytes[..n as usize]) {
                Some(message) => return Received::Message(message, descriptor),
                None => return Received::Closed,
            },
            0 => return Received::Closed,
            _ => match io::Error::last_os_error().raw_os_error() {
                // The peer has closed without reading everything, which Linux reports once, before what the peer
                // has sent.
                Some(libc::EINTR | libc::ECONNRESET) => continue,
                Some(libc::EAGAIN) => return Received::Nothing,
                _ => return Received::Closed,
            },
        }
    }
}

/// Returns what `recvmsg` returned, and the packet's first descriptor.
fn receive_packet(socket: &OwnedFd, bytes: &mut [u8]) -> (isize, Option<OwnedFd>) {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // Room for one descriptor, aligned as a control header must be.
    let mut control = [0u64; 3];
    // SAFETY: an all-zero msghdr is valid.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_iov = &mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    // Room for one descriptor and no more: its padding has room for another, which nobody would close.
    // SAFETY: computes a number.
    header.msg_controllen = unsafe { libc::CMSG_LEN(size_of::<RawFd>() as u32) } as usize;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: everything that `header` points to lives through the call, and has the size it says.
    let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut header, flags) };
    if n < 0 {
        return (n, None);
    }
    // SAFETY: Linux has written the headers within `control`; a descriptor that it passed is owned from here on.
    let descriptor = unsafe {
        libc::CMSG_FIRSTHDR(&header).as_ref().filter(|it| it.cmsg_type == libc::SCM_RIGHTS).and_then(|it| {
            let is_whole = it.cmsg_len >= libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
            is_whole.then(|| OwnedFd::from_raw_fd(libc::CMSG_DATA(it).cast::<RawFd>().read_unaligned()))
        })
    };
    (n, descriptor)
}

/// Bytes of `CMSG_SPACE(0)`.
const CONTROL_HEADER_BYTES: usize = size_of::<libc::cmsghdr>();

/// Sends a message. Never waits: a peer that doesn't read, because it is stopped or means to, would hold the run.
///
/// # Errors
/// The peer has closed the socket, or does not read and its queue is full (`WouldBlock`).
pub(super) fn send(socket: &OwnedFd, message: &Message, fds: &[RawFd]) -> io::Result<()> {
    let bytes = message.encode();
    let mut part = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    // Room for all descriptors that a message has, aligned as a control header must be.
    let mut control = [0u64; 8];
    if size_of_val(fds) > size_of_val(&control) - CONTROL_HEADER_BYTES {
        return Err(io::Error::other(format!("a message with {} descriptors", fds.len())));
    }
    // SAFETY: an all-zero msghdr is valid.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_iov = &mut part;
    header.msg_iovlen = 1;
    if !fds.is_empty() {
        let len = size_of_val(fds) as u32;
        header.msg_control = control.as_mut_ptr().cast();
        // SAFETY: `control` has room for the descriptors, as seen above; the header and the data are written within it.
        unsafe {
            header.msg_controllen = libc::CMSG_SPACE(len) as _;
            let first = libc::CMSG_FIRSTHDR(&header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(len) as _;
            std::ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), libc::CMSG_DATA(first), len as usize);
        }
    }
    // SAFETY: everything that `header` points to lives through the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &header, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> [OwnedFd; 2] {
        let mut both = [0; 2];
        // SAFETY: room for two descriptors, which are owned from here on.
        unsafe {
            assert_eq!(libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, both.as_mut_ptr()), 0);
            both.map(|it| OwnedFd::from_raw_fd(it))
        }
    }

    #[test]
    fn what_a_peer_sent_is_received_though_it_left_messages_unread() {
        let [ours, theirs] = pair();
        send(&ours, &Message::new(message::RECORD, &[], ""), &[]).unwrap();
        send(&theirs, &Message::new(message::ARMED, &[1], ""), &[]).unwrap();
        drop(theirs);
        assert!(matches!(receive(&ours), Received::Message(it, None) if it.kind == message::ARMED));
        assert!(matches!(receive(&ours), Received::Closed));
    }

    #[test]
    fn a_peer_that_does_not_read_is_not_waited_for() {
        let [ours, _theirs] = pair();
        let refused = (0..1 << 20).find_map(|_| send(&ours, &Message::new(message::RECORD, &[], ""), &[]).err());
        assert_eq!(refused.map(|it| it.kind()), Some(io::ErrorKind::WouldBlock));
    }

    #[test]
    fn further_descriptors_of_a_message_are_closed() {
        let [ours, theirs] = pair();
        let [further, ends] = pair();
        let fds = [further.as_raw_fd(), further.as_raw_fd(), further.as_raw_fd()];
        send(&theirs, &Message::new(message::IMAGE, &[], ""), &fds).unwrap();
        drop(further);
        assert!(matches!(receive(&ours), Received::Message(_, Some(_))));
        assert!(matches!(receive(&ends), Received::Closed), "none is left");
    }

    #[test]
    fn what_is_no_message_ends_the_connection() {
        let [ours, theirs] = pair();
        // SAFETY: one byte of a live buffer.
        assert_eq!(unsafe { libc::send(theirs.as_raw_fd(), b"x".as_ptr().cast(), 1, 0) }, 1);
        assert!(matches!(receive(&ours), Received::Closed));
    }
}
