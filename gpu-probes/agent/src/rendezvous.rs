//! The socket to the tracer: finds it, checks the peer, exchanges messages with descriptors.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::time::{Duration, Instant};
use xputrace_wire::device::MOST_ARRAYS;
use xputrace_wire::message::{MAX_SIZE, Message};

/// A connection with one message per packet. Its descriptor is in the program's table, where the
/// program may close the number and reuse it. So each use first checks that the number still refers
/// to this socket.
#[derive(Debug)]
pub struct Socket {
    socket: OwnedFd,
    identity: Option<DescriptorIdentity>,
    /// The tracer's process id, as this process sees it; 0 if it cannot.
    tracer: u32,
}

/// Device and inode of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorIdentity(libc::dev_t, libc::ino_t);

impl DescriptorIdentity {
    /// Returns the identity of what is open under this number now.
    fn of(descriptor: i32) -> Option<Self> {
        // SAFETY: zeroes are a stat, which the call fills.
        unsafe {
            let mut stat: libc::stat64 = MaybeUninit::zeroed().assume_init();
            (libc::fstat64(descriptor, &mut stat) == 0).then_some(DescriptorIdentity(stat.st_dev, stat.st_ino))
        }
    }

    pub(crate) fn from_parts(device: u64, inode: u64) -> Self {
        DescriptorIdentity(device, inode)
    }

    /// Returns device and inode.
    pub(crate) fn parts(self) -> (u64, u64) {
        (self.0, self.1)
    }

    /// Closes a number if it is still this file's. May be called between fork and exec.
    pub(crate) fn close_number(self, number: i32) {
        if DescriptorIdentity::of(number) == Some(self) {
            // SAFETY: our own descriptor, which nobody in this table uses now.
            unsafe { libc::close(number) };
        }
    }
}

/// A listening socket in the abstract namespace. As with [`Socket`], each use first checks that the number is still
/// this socket's.
#[derive(Debug)]
pub(crate) struct Listener {
    number: i32,
    identity: DescriptorIdentity,
}

impl Listener {
    /// Takes the name `@name`. Nobody can connect before [`Listener::listen`].
    ///
    /// # Errors
    /// The name is taken, or the process is out of descriptors.
    pub(crate) fn bind(name: &str) -> io::Result<Self> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor of ours.
        let socket = moved_high(unsafe { OwnedFd::from_raw_fd(fd) });
        let (address, len) = socket_address(&format!("@{name}"))?;
        // SAFETY: an address of `len` bytes.
        if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let identity = DescriptorIdentity::of(socket.as_raw_fd()).ok_or_else(io::Error::last_os_error)?;
        Ok(Listener { number: socket.into_raw_fd(), identity })
    }

    /// Lets peers connect.
    pub(crate) fn listen(&self) {
        // SAFETY: our own descriptor. It fails only if the program has closed it, which is noticed at its next use.
        unsafe { libc::listen(self.number, 8) };
    }

    pub(crate) fn identity(&self) -> DescriptorIdentity {
        self.identity
    }

    /// Returns the descriptor.
    pub(crate) fn raw(&self) -> i32 {
        self.number
    }

    /// Waits for a connection; returns `None` if none comes.
    ///
    /// # Errors
    /// The number is no longer this socket's.
    pub(crate) fn accept(&self, within: Duration) -> io::Result<Option<Socket>> {
        let is_ready = wait_readable(self.number, within);
        if DescriptorIdentity::of(self.number) != Some(self.identity) {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        if !is_ready {
            return Ok(None);
        }
        let nobody = std::ptr::null_mut();
        // SAFETY: a listening socket; no address is requested.
        let fd = unsafe { libc::accept4(self.number, nobody, std::ptr::null_mut(), libc::SOCK_CLOEXEC) };
        // SAFETY: a fresh descriptor of ours.
        Ok((fd >= 0).then(|| Socket::from_connected(moved_high(unsafe { OwnedFd::from_raw_fd(fd) }))))
    }

    /// Closes it, if the number is still its own.
    pub(crate) fn close(self) {
        self.identity.close_number(self.number);
    }
}

/// Descriptors are moved to numbers below this one: few programs get that far, and Linux's table
/// for the process does not grow.
const HIGHEST: libc::rlim_t = 1024;
/// How far below the end of the table to start.
const BELOW_THE_END: libc::rlim_t = 24;
/// `CLOSE_RANGE_UNSHARE` of close_range(2): first gives the calling thread a table of its own.
const UNSHARE: libc::c_uint = 2;

/// Returns a descriptor for the same file with a high number, or `socket` itself if none is free.
fn moved_high(socket: OwnedFd) -> OwnedFd {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live rlimit; the new descriptor is owned from here on.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        let lowest = limit.rlim_cur.min(HIGHEST).saturating_sub(BELOW_THE_END) as i32;
        match libc::fcntl(socket.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest) {
            -1 => socket,
            high => OwnedFd::from_raw_fd(high),
        }
    }
}

/// Whose socket is accepted as a tracer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    RootAndThisUser,
    Anyone,
}

/// The result of receiving.
#[derive(Debug)]
pub enum Received {
    Message(Message, Vec<OwnedFd>),
    /// Nothing within the time limit.
    Nothing,
    /// The tracer is gone.
    Closed,
}

const MAX_DESCRIPTORS: usize = 3 + MOST_ARRAYS;

impl Socket {
    /// Connects to the first address that answers: `@NAME` in the abstract namespace, a path, or
    /// `@NAME:PATH`, whose path is also reachable from other network namespaces.
    ///
    /// # Errors
    /// Nobody listens, or accepts in time, or the listener is not trusted.
    pub fn connect(addresses: &str, trust: Trust, within: Duration) -> io::Result<Self> {
        match addresses.split_once(':').filter(|_| addresses.starts_with('@')) {
            Some((name, path)) => {
                Self::connect_to(name, trust, within).or_else(|_| Self::connect_to(path, trust, within))
            }
            None => Self::connect_to(addresses, trust, within),
        }
    }

    fn connect_to(address: &str, trust: Trust, within: Duration) -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor of ours.
        let mut socket = Socket::from_connected(moved_high(unsafe { OwnedFd::from_raw_fd(fd) }));
        // Limits how long connecting and sending may wait.
        socket.set_send_timeout(within)?;
        let (name, len) = socket_address(address)?;
        // SAFETY: an address of `len` bytes.
        while unsafe { libc::connect(socket.raw(), (&raw const name).cast(), len) } != 0 {
            let error = io::Error::last_os_error();
            // A signal arrived while the tracer's queue is full.
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        if trust == Trust::RootAndThisUser {
            socket.check_peer()?;
        }
        socket.tracer = socket.peer()?.pid as u32;
        Ok(socket)
    }

    /// Wraps a connected socket.
    pub fn from_connected(socket: OwnedFd) -> Self {
        let identity = DescriptorIdentity::of(socket.as_raw_fd());
        let mut socket = Socket { socket, identity, tracer: 0 };
        socket.tracer = socket.peer().map_or(0, |it| it.pid as u32);
        socket
    }

    /// Gives the calling thread its own descriptor table that contains only this socket, out of the
    /// program's reach. Returns whether the system supports that (Linux 5.9 and later do).
    pub fn keep_to_this_thread(&self) -> bool {
        let own = self.raw() as libc::c_uint;
        let close = |from: libc::c_uint, to: libc::c_uint, flags: libc::c_uint| {
            // SAFETY: numbers only; what it closes is this thread's copy, once the first call has made one.
            unsafe { libc::syscall(libc::SYS_close_range, from, to, flags) == 0 }
        };
        let unshared = close(own + 1, libc::c_uint::MAX, UNSHARE);
        unshared && (own == 0 || close(0, own - 1, 0))
    }

    /// Closes the number in the calling thread's table if it is still this socket's. May be called
    /// between fork and exec.
    pub fn close_number(&self) {
        self.identity.iter().for_each(|it| it.close_number(self.raw()));
    }

    /// Closes it, if the number is still its own.
    pub(crate) fn close(self) {
        self.close_number();
        std::mem::forget(self);
    }

    /// Whether the number is still this socket's.
    fn is_here(&self) -> bool {
        self.identity.is_some() && DescriptorIdentity::of(self.raw()) == self.identity
    }

    /// Returns the tracer's process id, as this process sees it; 0 if it cannot.
    pub fn tracer(&self) -> u32 {
        self.tracer
    }

    /// Returns the descriptor, for calls that this type does not have.
    pub fn raw(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    /// Returns a second handle of the same connection.
    pub fn try_clone(&self) -> Option<Self> {
        Some(Socket::from_connected(self.socket.try_clone().ok()?))
    }

    fn set_send_timeout(&self, timeout: Duration) -> io::Result<()> {
        let time = libc::timeval {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_usec: libc::suseconds_t::from(timeout.subsec_micros()),
        };
        let size = size_of_val(&time) as libc::socklen_t;
        // SAFETY: a live timeval of that size.
        let answer = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_SNDTIMEO,
                (&raw const time).cast(),
                size,
            )
        };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Whether the peer may control this process.
    pub(crate) fn is_of_root_or_this_user(&self) -> bool {
        self.peer().is_ok_and(|it| may_control(it.uid))
    }

    fn check_peer(&self) -> io::Result<()> {
        let peer = self.peer()?;
        if !may_control(peer.uid) {
            let text = format!("the socket belongs to user {}, neither root nor this program's", peer.uid);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(())
    }

    fn peer(&self) -> io::Result<libc::ucred> {
        let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut size = size_of_val(&peer) as libc::socklen_t;
        // SAFETY: a live ucred of that size.
        let answer = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut peer).cast(),
                &mut size,
            )
        };
        if answer == 0 { Ok(peer) } else { Err(io::Error::last_os_error()) }
    }

    /// Ends the connection; the tracer still reads what was sent.
    pub fn shut_down(&self) {
        if !self.is_here() {
            return;
        }
        // SAFETY: a descriptor of ours.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// Sends a message. Drops it if the tracer does not accept it at once, because the program must
    /// not wait for the tracer.
    pub fn send(&self, message: &Message) -> bool {
        if !self.is_here() {
            return false;
        }
        let bytes = message.encode();
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: a live buffer.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
        sent == bytes.len() as isize
    }

    /// The same, with descriptors.
    pub fn send_with(&self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> bool {
        if !self.is_here() || descriptors.len() > MAX_DESCRIPTORS {
            return false;
        }
        let mut bytes = message.encode();
        let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut control = [0u64; 16];
        let size = size_of_val(descriptors) as libc::c_uint;
        // SAFETY: the header's pointers are to live buffers of the sizes given, and the control buffer has room for the
        // descriptors.
        let sent = unsafe {
            let mut header: libc::msghdr = MaybeUninit::zeroed().assume_init();
            (header.msg_iov, header.msg_iovlen) = (&mut vector, 1);
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = libc::CMSG_SPACE(size) as _;
            let first = &mut *libc::CMSG_FIRSTHDR(&header);
            (first.cmsg_level, first.cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
            first.cmsg_len = libc::CMSG_LEN(size) as _;
            for (n, it) in descriptors.iter().enumerate() {
                libc::CMSG_DATA(first).cast::<i32>().add(n).write_unaligned(it.as_raw_fd());
            }
            libc::sendmsg(self.socket.as_raw_fd(), &header, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
        };
        sent == bytes.len() as isize
    }

    /// Waits for a message.
    pub fn receive(&self, within: Duration) -> Received {
        if !wait_readable(self.raw(), within) {
            return Received::Nothing;
        }
        // A message that belongs to the program itself.
        if !self.is_here() {
            return Received::Closed;
        }
        let mut bytes = [0u8; MAX_SIZE];
        match self.receive_packet(&mut bytes) {
            Ok((0, _)) => Received::Closed,
            Ok((len, descriptors)) => match Message::decode(&bytes[..len]) {
                Some(message) => Received::Message(message, descriptors),
                None => Received::Nothing,
            },
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Received::Nothing,
                // The peer has closed without reading everything, which Linux reports once, before what the peer has sent.
                io::ErrorKind::ConnectionReset => Received::Nothing,
                _ => Received::Closed,
            },
        }
    }

    fn receive_packet(&self, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut control = [0u64; 16];
        // SAFETY: zeroes are a message header; its pointers are set below.
        let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.msg_iov = &mut vector;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control) as _;
        let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
        // SAFETY: the header's pointers are to live buffers of the sizes given.
        let len = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &mut header, flags) };
        if len < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: Linux filled the control buffer.
        Ok((len as usize, unsafe { descriptors(&header) }))
    }
}

fn wait_readable(fd: i32, within: Duration) -> bool {
    let until = Instant::now() + within;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let millis = left.as_millis().min(i32::MAX as u128) as i32 + i32::from(!left.is_zero());
        // SAFETY: one live pollfd.
        match unsafe { libc::poll(&mut poll, 1, millis) } {
            0 => return false,
            n if n > 0 => return true,
            _ if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted => return true,
            _ => {}
        }
    }
}

/// # Safety
/// `header` was filled by recvmsg and its control buffer lives.
unsafe fn descriptors(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut all = Vec::new();
    // SAFETY: the macros walk the control messages; each descriptor in them is new and ours.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while let Some(it) = message.as_ref() {
            if it.cmsg_level == libc::SOL_SOCKET && it.cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(message).cast::<i32>();
                let n = (it.cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<i32>();
                for index in 0..n {
                    let fd = OwnedFd::from_raw_fd(data.add(index).read_unaligned());
                    if all.len() < MAX_DESCRIPTORS {
                        all.push(fd);
                    }
                }
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    all
}

fn socket_address(address: &str) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: zeroes are an address.
    let mut name: libc::sockaddr_un = unsafe { MaybeUninit::zeroed().assume_init() };
    name.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let text = address.as_bytes();
    if text.is_empty() || text.len() >= name.sun_path.len() {
        let text =
            format!("cannot connect to \"{address}\": a socket's name has 1 to {} bytes", name.sun_path.len() - 1);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    for (to, from) in name.sun_path.iter_mut().zip(text) {
        *to = *from as libc::c_char;
    }
    let is_abstract = text[0] == b'@';
    if is_abstract {
        name.sun_path[0] = 0;
    }
    // A path includes its NUL; an abstract name ends with its last byte.
    let len = size_of::<libc::sa_family_t>() + text.len() + usize::from(!is_abstract);
    Ok((name, len as libc::socklen_t))
}

/// Whether a user may control this process: by its rights, not by who started it.
fn may_control(user: libc::uid_t) -> bool {
    // SAFETY: no arguments.
    user == 0 || user == unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn pair() -> (OwnedFd, OwnedFd) {
        let mut both = [0; 2];
        // SAFETY: room for two descriptors, which we own from here on.
        unsafe {
            assert_eq!(libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, both.as_mut_ptr()), 0);
            (OwnedFd::from_raw_fd(both[0]), OwnedFd::from_raw_fd(both[1]))
        }
    }

    #[test]
    fn a_number_that_the_program_uses_again_is_left_alone() {
        let (ours, _tracer) = pair();
        let socket = Socket::from_connected(moved_high(ours));
        assert!(socket.raw() >= 64 && socket.send(&Message::default()));
        let (stranger, mut other) = UnixStream::pair().unwrap();
        // SAFETY: closes our number and opens another socket under it, as a program may.
        assert_eq!(unsafe { libc::dup2(stranger.as_raw_fd(), socket.raw()) }, socket.raw());
        other.write_all(b"for the program").unwrap();
        assert!(matches!(socket.receive(Duration::from_secs(60)), Received::Closed));
        assert!(!socket.send(&Message::default()));
        socket.shut_down();
        socket.close_number();
        let mut read = [0; 15];
        (&stranger).read_exact(&mut read).unwrap();
        assert_eq!(&read, b"for the program", "nothing was taken");
        (&stranger).write_all(b"x").unwrap();
        assert_eq!(other.read(&mut read).unwrap(), 1, "nothing was written or shut down");
    }

    #[test]
    fn a_thread_of_its_own_keeps_the_socket_when_the_program_closes_it() {
        let (ours, tracer) = pair();
        let (socket, tracer) = (Socket::from_connected(ours), Socket::from_connected(tracer));
        std::thread::scope(|scope| {
            let (told, hears) = std::sync::mpsc::channel();
            let socket = &socket;
            scope.spawn(move || {
                let alone = socket.keep_to_this_thread();
                told.send(alone).unwrap();
                if alone {
                    assert!(matches!(socket.receive(Duration::from_secs(60)), Received::Message(..)));
                    assert!(socket.send(&Message::default()));
                }
            });
            if !hears.recv().unwrap() {
                println!("skipped: the system has no close_range");
                return;
            }
            socket.close_number();
            assert!(!socket.is_here());
            assert!(tracer.send(&Message::default()));
            assert!(matches!(tracer.receive(Duration::from_secs(60)), Received::Message(..)));
        });
        // The number is closed already.
        std::mem::forget(socket);
    }
}
