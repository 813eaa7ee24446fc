//! The tracer's side of `wire::message`: finds the collectors, arms them, reads their rings.
//!
//! ```text
//! Listener ─accept─▶ Target ─arm─▶ Region ─take─▶ bytes for the pipeline
//! ```
//! The one module with sockets, shared memory and `unsafe`. A region's memory is written by the
//! target and so untrusted: sizes come from our own shape, bytes are copied before they are read.
#![allow(unsafe_code, reason = "sockets and shared memory are system calls on raw memory")]

use crate::pipeline::CollectorTotals;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use xputrace_model::plan::Demand;
use xputrace_wire::message::{self, Message, demand};
use xputrace_wire::region::{Control, PAGE, Shape};
use xputrace_wire::ring::{Reader, RingHeader};
use xputrace_wire::status::innermost_id;

/// What failed between tracer and collectors.
#[derive(Debug, thiserror::Error)]
#[error("{attempted}: {answer}")]
pub struct RendezvousError {
    /// What was attempted, on what.
    pub attempted: String,
    /// What the system answered.
    pub answer: io::Error,
}

/// How often an armed collector flushes CUPTI's buffers.
pub const FLUSH_MILLIS: u64 = 100;

/// Rings and bytes a ring of a usual target: 64 threads, 1 MiB each, touched as they fill.
pub const DEFAULT_SHAPE: Shape = Shape { rings: 64, ring_bytes: 1 << 20 };

/// The socket that collectors find through [`xputrace_wire::SOCKET_VARIABLE`].
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    value: String,
    /// Removed on drop, with its directory.
    path: Option<PathBuf>,
    allowed_uids: Vec<u32>,
}

impl Listener {
    /// Listens on a fresh abstract name, or where that is refused on a socket in a directory of
    /// mode 0700 under `XDG_RUNTIME_DIR` or `/tmp`.
    ///
    /// `also_uid` may connect beside root and the tracer's own user: the invoking user, when the
    /// program runs as that.
    ///
    /// # Errors
    /// When neither kind of socket can be made.
    pub fn new(also_uid: Option<u32>) -> Result<Listener, RendezvousError> {
        let name = format!("xputrace-{}-{:016x}", std::process::id(), random());
        // SAFETY: no arguments, cannot fail.
        let own = unsafe { libc::geteuid() };
        let allowed_uids = [0, own].into_iter().chain(also_uid).collect();
        let socket = || seqpacket().map_err(|answer| failed("make a socket for the collectors", answer));
        let abstract_socket = socket()?;
        if bind_abstract(&abstract_socket, &name).is_ok() {
            listen(&abstract_socket).map_err(|it| failed(format!("listen on @{name}"), it))?;
            return Ok(Listener { socket: abstract_socket, value: format!("@{name}"), path: None, allowed_uids });
        }
        let socket = socket()?;
        let path = private_directory(&name)?.join("socket");
        let context = |it| failed(format!("listen on {}", path.display()), it);
        bind_path(&socket, &path).map_err(context)?;
        listen(&socket).map_err(context)?;
        Ok(Listener { socket, value: path.display().to_string(), path: Some(path), allowed_uids })
    }

    /// The value for [`xputrace_wire::SOCKET_VARIABLE`].
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Readable when a collector wants to connect.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// The next collector that has connected and said hello; `None` when there is none. Never
    /// blocks for longer than 100 ms (a peer that connects and says nothing is dropped).
    ///
    /// # Errors
    /// When the system refuses another connection. The peer goes on waiting for one then, and
    /// [`Listener::fd`] stays readable.
    pub fn accept(&self) -> Result<Option<Target>, RendezvousError> {
        loop {
            // SAFETY: a listening socket; no address is asked for.
            let fd = unsafe {
                libc::accept4(self.socket.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC)
            };
            if fd < 0 {
                let answer = io::Error::last_os_error();
                match answer.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(None),
                    // Of a peer that has gone meanwhile.
                    Some(libc::EINTR | libc::ECONNABORTED) => continue,
                    _ => return Err(failed("accept a collector's connection", answer)),
                }
            }
            // SAFETY: accept4 just returned it, nobody else owns it.
            let socket = unsafe { OwnedFd::from_raw_fd(fd) };
            if let Some(target) = self.greet(socket) {
                return Ok(Some(target));
            }
        }
    }

    fn greet(&self, socket: OwnedFd) -> Option<Target> {
        let (pid, uid) = peer(&socket)?;
        if !self.allowed_uids.contains(&uid) {
            return None;
        }
        wait_readable(&socket, 100);
        let Received::Message(hello) = receive(&socket) else { return None };
        if hello.kind != message::HELLO {
            return None;
        }
        let refusal = (hello.words[0] != u64::from(xputrace_wire::VERSION))
            .then(|| format!("the collector in process {pid} speaks version {} of the wire format", hello.words[0]));
        Some(Target {
            socket,
            pid,
            uid,
            pid_in_target: hello.words[1] as u32,
            cupti_version: hello.words[2] as u32,
            can_walk_stacks: hello.words[3] != 0,
            cupti: hello.text,
            refusal,
            closed: false,
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
            let _ = path.parent().map(std::fs::remove_dir);
        }
    }
}

/// A process whose collector has said hello.
#[derive(Debug)]
pub struct Target {
    socket: OwnedFd,
    /// In the tracer's namespace, by the peer's credentials.
    pub pid: u32,
    pub uid: u32,
    /// As the target sees itself.
    pub pid_in_target: u32,
    /// CUPTI's version, 0 where none was found.
    pub cupti_version: u32,
    /// Whether launch stacks can be walked there.
    pub can_walk_stacks: bool,
    /// Path of libcupti, or why there is none.
    pub cupti: String,
    /// Why it cannot be armed: another version of the collector. Such a target gets DORMANT.
    pub refusal: Option<String>,
    closed: bool,
}

/// What a collector says after it was armed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Recording; `micros` is how long arming took. Notes are for the user.
    Armed { micros: u64, notes: Vec<String> },
    /// Not recording: CUPTI's result code (0 where it was not CUPTI), what was attempted and the answer.
    Refused { code: u64, reason: String },
    /// The last flush is done.
    Bye { notes: Vec<String> },
    /// The process is gone.
    Closed,
}

impl Target {
    /// Makes the shared memory, and asks the collector to record into it.
    ///
    /// `tags` is the tag array of a demand with a launch marker; `mappings` asks for the list
    /// of executable mappings.
    ///
    /// # Errors
    /// When the memory cannot be made, or the target is gone.
    pub fn arm(
        &mut self,
        wanted: &Demand,
        mappings: bool,
        shape: Shape,
        process_index: u32,
        tags: Option<RawFd>,
    ) -> Result<Region, RendezvousError> {
        let context = |what: &str| format!("{what} for process {}", self.pid);
        let memory = sealed_memory(shape.size()).map_err(|it| failed(context("make shared memory"), it))?;
        let region = Region::map(&memory, shape).map_err(|it| failed(context("map shared memory"), it))?;
        let bits = demand_bits(wanted, mappings) & if tags.is_some() { u64::MAX } else { !demand::MARKER };
        let words = [bits, shape.rings.into(), shape.ring_bytes.into(), FLUSH_MILLIS, process_index.into()];
        let fds: Vec<RawFd> = [Some(memory.as_raw_fd()), tags].into_iter().flatten().collect();
        send(&self.socket, &Message::new(message::ARM, &words, ""), &fds)
            .map_err(|it| failed(context("arm the collector"), it))?;
        Ok(region)
    }

    /// Nothing is wanted of this process.
    pub fn leave_dormant(self) {
        let _ = send(&self.socket, &Message::new(message::DORMANT, &[], ""), &[]);
    }

    /// Asks the collector to stop; it answers with a last flush and [`Notice::Bye`].
    pub fn disarm(&mut self) {
        let _ = send(&self.socket, &Message::new(message::DISARM, &[], ""), &[]);
    }

    /// Readable when [`Target::poll`] has something to say.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// What the collector has said since; `None` when nothing. Never blocks. Unknown messages are skipped.
    pub fn poll(&mut self) -> Option<Notice> {
        while !self.closed {
            match receive(&self.socket) {
                Received::Nothing => return None,
                Received::Closed => {
                    self.closed = true;
                    return Some(Notice::Closed);
                }
                Received::Message(it) => match notice(&it) {
                    Some(notice) => return Some(notice),
                    None => continue,
                },
            }
        }
        None
    }

    /// Thread ids as the target sees them, and as the tracer does, of all threads that live now:
    /// for [`crate::Pipeline::translate_threads`]. Empty where both are the same.
    pub fn thread_ids(&self) -> Vec<(u32, u32)> {
        if self.pid == self.pid_in_target {
            return Vec::new();
        }
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        threads.filter_map(|it| innermost_tid(&it.path())).collect()
    }
}

/// Tid in the target's own namespace, and in ours.
fn innermost_tid(task: &Path) -> Option<(u32, u32)> {
    let inner = innermost_id(&std::fs::read_to_string(task.join("status")).ok()?)?;
    Some((inner, task.file_name()?.to_str()?.parse().ok()?))
}

fn notice(message: &Message) -> Option<Notice> {
    let notes = || message.text.lines().map(str::to_owned).collect();
    match message.kind {
        message::ARMED => Some(Notice::Armed { micros: message.words[0], notes: notes() }),
        message::REFUSED => Some(Notice::Refused { code: message.words[0], reason: message.text.clone() }),
        message::BYE => Some(Notice::Bye { notes: notes() }),
        _ => None,
    }
}

fn demand_bits(wanted: &Demand, mappings: bool) -> u64 {
    let options: u64 = [
        (wanted.launch_stacks, demand::STACKS),
        (wanted.launch_streams, demand::STREAMS),
        (wanted.launch_marker, demand::MARKER),
        (wanted.launch_ends, demand::ENDS),
        (mappings, demand::MAPPINGS),
    ]
    .into_iter()
    .filter_map(|(on, bit)| on.then_some(bit))
    .sum();
    options | demand::calls(wanted.calls) | demand::activities(wanted.activities)
}

/// The memory shared with one target.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    shape: Shape,
    readers: Vec<Reader>,
    broken_rings: u64,
}

// SAFETY: the mapping belongs to this value alone on our side and is not tied to a thread.
unsafe impl Send for Region {}

/// Looks at the rings' positions until two agree.
const MOST_LOOKS: usize = 4;

/// How far each ring had been written at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks(Vec<u64>);

impl Region {
    fn map(memory: &OwnedFd, shape: Shape) -> io::Result<Region> {
        if !shape.is_sound() {
            return Err(io::Error::other(format!("unsound sizes: {shape:?}")));
        }
        // SAFETY: a fresh mapping of a descriptor that is at least this long and sealed against shrinking.
        let at = unsafe {
            let flags = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), shape.size(), flags, libc::MAP_SHARED, memory.as_raw_fd(), 0)
        };
        let base = NonNull::new(at.cast::<u8>()).filter(|_| at != libc::MAP_FAILED);
        let base = base.ok_or_else(io::Error::last_os_error)?;
        let readers = (0..shape.rings).map(|ring| reader(base, shape, ring)).collect();
        let region = Region { base, shape, readers, broken_rings: 0 };
        region.control().armed.store(1, Ordering::Release);
        Ok(region)
    }

    /// How far the rings that are in use have been written, as of now. Where writers pause for
    /// as long as looking at them takes, of one moment: no record then lacks what another thread
    /// wrote before it, such as the kernels of a flush.
    pub fn marks(&self) -> Marks {
        let look = || Marks(self.readers[..self.rings_used()].iter().map(Reader::mark).collect());
        let mut marks = look();
        for _ in 0..MOST_LOOKS {
            let again = look();
            if again == marks {
                break;
            }
            marks = again;
        }
        marks
    }

    /// The bytes up to the marks, by ring: one drain for [`crate::Pipeline::feed`]. Kernels may
    /// still precede their launch (its call returns later); the pipeline waits for that.
    pub fn take(&mut self, marks: &Marks) -> Vec<Vec<u8>> {
        let mut rings = vec![Vec::new(); marks.0.len()];
        self.take_into(marks, &mut rings);
        rings
    }

    /// The same into buffers that are reused: each is emptied first.
    pub fn take_into(&mut self, marks: &Marks, rings: &mut Vec<Vec<u8>>) {
        rings.resize_with(marks.0.len(), Vec::new);
        for ((reader, mark), out) in self.readers.iter_mut().zip(&marks.0).zip(rings) {
            out.clear();
            self.broken_rings += u64::from(!reader.take(*mark, out));
        }
    }

    /// The collector's own totals as of now.
    pub fn totals(&self) -> CollectorTotals {
        CollectorTotals::of(self.control(), self.broken_rings)
    }

    fn rings_used(&self) -> usize {
        (self.control().rings_claimed.load(Ordering::Acquire) as usize).min(self.readers.len())
    }

    fn control(&self) -> &Control {
        // SAFETY: the first page of the mapping, page-aligned; all fields are atomics, so the
        // target may write them at any time.
        unsafe { self.base.cast::<Control>().as_ref() }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.control().armed.store(0, Ordering::Release);
        self.readers.clear();
        // SAFETY: the mapping that `map` made, with its size; its readers are gone.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.shape.size()) };
    }
}

fn reader(base: NonNull<u8>, shape: Shape, ring: u32) -> Reader {
    // SAFETY: ring headers and data lie within the mapping by `Shape::size`, and the readers
    // are dropped with the mapping; nobody else reads.
    unsafe {
        let header = base.as_ptr().add(shape.ring_offset(ring));
        Reader::new(header.cast::<RingHeader>(), header.add(PAGE), shape.ring_bytes)
    }
}

fn failed(attempted: impl Into<String>, answer: io::Error) -> RendezvousError {
    RendezvousError { attempted: attempted.into(), answer }
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn random() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: eight writable bytes. A short answer leaves zeros; the name is unique by pid anyway.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    u64::from_le_bytes(bytes)
}

fn seqpacket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain system call; the descriptor is owned from here on.
    unsafe { checked(libc::socket(libc::AF_UNIX, kind, 0)).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

fn bind_abstract(socket: &OwnedFd, name: &str) -> io::Result<()> {
    bind(socket, &[b"\0", name.as_bytes()].concat())
}

fn bind_path(socket: &OwnedFd, path: &Path) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    // Any user may connect (the peer's id is asked for then). By the mask, as changing the rights
    // of a path could be made to change those of another file.
    // SAFETY: cannot fail; the tracer has one thread when it begins to listen.
    let before = unsafe { libc::umask(0) };
    let answer = bind(socket, &[path.as_os_str().as_bytes(), b"\0"].concat());
    // SAFETY: as above.
    unsafe { libc::umask(before) };
    answer
}

fn bind(socket: &OwnedFd, name: &[u8]) -> io::Result<()> {
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
    // SAFETY: the address lives through the call and is at least `len` bytes.
    checked(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len as libc::socklen_t) })?;
    Ok(())
}

fn listen(socket: &OwnedFd) -> io::Result<()> {
    // SAFETY: plain system call.
    checked(unsafe { libc::listen(socket.as_raw_fd(), 128) }).map(|_| ())
}

/// A fresh directory that others can pass through, and only we can change.
fn private_directory(name: &str) -> Result<PathBuf, RendezvousError> {
    use std::os::unix::fs::DirBuilderExt;
    let base = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|it| it.is_dir());
    let path = base.unwrap_or_else(|| PathBuf::from("/tmp")).join(name);
    let context = |it| failed(format!("make the directory {}", path.display()), it);
    std::fs::DirBuilder::new().mode(0o711).create(&path).map_err(context)?;
    Ok(path)
}

/// Process id, in our namespace, and user id of the peer.
fn peer(socket: &OwnedFd) -> Option<(u32, u32)> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the buffer is a ucred and `len` its size.
    let result = unsafe {
        let at = (&raw mut credentials).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, at, &mut len)
    };
    (result == 0).then_some((credentials.pid as u32, credentials.uid))
}

fn wait_readable(socket: &OwnedFd, millis: libc::c_int) {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd.
    unsafe { libc::poll(&mut poll, 1, millis) };
}

enum Received {
    Message(Message),
    Nothing,
    Closed,
}

fn receive(socket: &OwnedFd) -> Received {
    let mut bytes = [0u8; message::MAX_SIZE];
    loop {
        // SAFETY: a writable buffer of that size. Descriptors that a peer sends are not asked
        // for, so the kernel closes them.
        let n = unsafe { libc::recv(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
        match n {
            1.. => match Message::decode(&bytes[..n as usize]) {
                Some(message) => return Received::Message(message),
                None => continue,
            },
            0 => return Received::Closed,
            _ => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::EAGAIN) => return Received::Nothing,
                _ => return Received::Closed,
            },
        }
    }
}

fn send(socket: &OwnedFd, message: &Message, fds: &[RawFd]) -> io::Result<()> {
    let bytes = message.encode();
    let mut part = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    // Room for two descriptors, aligned as a control header has to be.
    let mut control = [0u64; 8];
    // SAFETY: an all-zero msghdr is valid.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_iov = &mut part;
    header.msg_iovlen = 1;
    if !fds.is_empty() {
        let len = size_of_val(fds) as u32;
        header.msg_control = control.as_mut_ptr().cast();
        // SAFETY: `control` has room for CMSG_SPACE of two descriptors (24 bytes); the header
        // and the data are written within it.
        unsafe {
            header.msg_controllen = libc::CMSG_SPACE(len) as _;
            let first = libc::CMSG_FIRSTHDR(&header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(len) as _;
            std::ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), libc::CMSG_DATA(first), len as usize);
        }
    }
    // SAFETY: all that `header` points to lives through the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &header, libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Shared memory that neither side can shrink or grow.
fn sealed_memory(size: usize) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a NUL-terminated name; the descriptor is owned from here on.
    let fd = unsafe { checked(libc::memfd_create(c"xputrace".as_ptr(), flags)).map(|fd| OwnedFd::from_raw_fd(fd)) }?;
    let file = File::from(fd);
    file.set_len(size as u64)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: plain system call.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicU64;
    use xputrace_model::plan::{Activities, Calls};

    const SMALL: Shape = Shape { rings: 2, ring_bytes: 4096 };

    proptest! {
        /// The control page, the rings' positions and their bytes are whatever a target leaves there.
        #[test]
        fn any_words_in_shared_memory_are_survived(
            writes in proptest::collection::vec((0usize..PAGE / 8 * 5, prop_oneof![any::<u64>(), 0u64..10_000]), 1..40),
        ) {
            let mut region = Region::map(&sealed_memory(SMALL.size()).unwrap(), SMALL).unwrap();
            let word = |region: &Region, at: usize| {
                // SAFETY: an aligned word of the mapping, which is `SMALL.size()` bytes: five pages.
                unsafe { AtomicU64::from_ptr(region.base.as_ptr().cast::<u64>().add(at)) }.as_ptr()
            };
            let mut broken = 0;
            for (at, value) in writes {
                // SAFETY: as above; nobody else has the mapping.
                unsafe { word(&region, at).write_volatile(value) };
                let marks = region.marks();
                prop_assert!(marks.0.len() <= SMALL.rings as usize);
                let rings = region.take(&marks);
                prop_assert!(rings.iter().all(|it| it.len() <= SMALL.ring_bytes as usize));
                prop_assert!(region.totals().broken_rings >= broken);
                broken = region.totals().broken_rings;
            }
        }
    }

    #[test]
    fn every_demand_has_its_bit() {
        let all = Demand {
            calls: Calls::ALL,
            activities: Activities::ALL,
            launch_stacks: true,
            launch_ends: true,
            launch_streams: true,
            launch_marker: true,
        };
        assert_eq!(demand_bits(&all, true) & 0xffff, 124, "every option");
        let bits = demand_bits(&all, true);
        assert_eq!((demand::calls_of(bits), demand::activities_of(bits)), (Calls::ALL, Activities::ALL));
        assert_eq!(demand_bits(&Demand::default(), false), 0);
    }

    #[test]
    fn another_user_can_connect_by_path_and_change_nothing() {
        use std::os::unix::fs::PermissionsExt;
        let path = private_directory(&format!("xputrace-test-{:016x}", random())).unwrap().join("socket");
        bind_path(&seqpacket().unwrap(), &path).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let directory = path.parent().unwrap();
        assert_eq!((mode(&path) & 0o222, mode(directory) & 0o077), (0o222, 0o011));
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn an_accept_that_fails_is_no_silence() {
        let socket = seqpacket().unwrap();
        let listener = Listener { socket, value: String::new(), path: None, allowed_uids: Vec::new() };
        let error = listener.accept().unwrap_err();
        assert!(error.to_string().contains("accept a collector's connection"), "{error}");
    }

    #[test]
    fn memory_is_sealed() {
        let memory = sealed_memory(8192).unwrap();
        let file = File::from(memory);
        assert!(file.set_len(4096).is_err() && file.set_len(16384).is_err());
    }
}
