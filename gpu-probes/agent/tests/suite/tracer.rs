//! A simulated tracer: listens, sends orders, reads the rings.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use xputrace_agent::rendezvous::{Received, Socket};
use xputrace_wire::message::{ARM, HELLO, Message, SWITCH};
use xputrace_wire::record::{ActivityRecord, Flush, Kernel, Launch, Memset, Record, records};
use xputrace_wire::region::{Control, Lost, PAGE, RegionShape};
use xputrace_wire::ring::{Reader, RingHeader};

/// How long anything is waited for: much longer than it takes on a machine with other work.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Listener {
    socket: OwnedFd,
    pub address: String,
}

pub fn listen() -> Listener {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::SeqCst);
    let address = format!("@xputrace-test-{}-{number}", std::process::id());
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        let mut name: libc::sockaddr_un = MaybeUninit::zeroed().assume_init();
        name.sun_family = libc::AF_UNIX as u16;
        for (to, from) in name.sun_path[1..].iter_mut().zip(&address.as_bytes()[1..]) {
            *to = *from as i8;
        }
        let len = (2 + address.len()) as u32;
        assert_eq!(libc::bind(fd, (&raw const name).cast(), len), 0);
        assert_eq!(libc::listen(fd, 4), 0);
        let patience = libc::timeval { tv_sec: PATIENCE.as_secs() as i64, tv_usec: 0 };
        let size = size_of_val(&patience) as u32;
        let value = (&raw const patience).cast();
        assert_eq!(libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, value, size), 0);
        Listener { socket: OwnedFd::from_raw_fd(fd), address }
    }
}

impl Listener {
    pub fn accept(&self) -> Socket {
        let fd = unsafe {
            libc::accept4(self.socket.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC)
        };
        assert!(fd >= 0, "no collector connected: {}", std::io::Error::last_os_error());
        Socket::from_connected(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Accepts one collector and arms it.
    pub fn arm(&self, demand: u64, shape: RegionShape) -> Tracer {
        self.arm_with(demand, shape, memory(shape.size(), true), 0)
    }

    /// The same; it records only in this window.
    pub fn arm_in(&self, window: u64, demand: u64, shape: RegionShape) -> Tracer {
        self.arm_with(demand, shape, memory(shape.size(), true), window)
    }

    pub fn arm_with(&self, demand: u64, shape: RegionShape, region: OwnedFd, window: u64) -> Tracer {
        self.arm_at_first(demand, demand, shape, region, window)
    }

    /// Asks for `first` of what may be asked for later.
    pub fn arm_at_first(&self, first: u64, demand: u64, shape: RegionShape, region: OwnedFd, window: u64) -> Tracer {
        let socket = self.accept();
        let hello = message(&socket);
        assert_eq!(hello.kind, HELLO);
        let tags = memory(PAGE, false);
        let words = [demand, shape.rings.into(), shape.ring_bytes.into(), 10, 0, window, 0, first];
        let order = Message::new(ARM, &words, "");
        send(&socket, &order, &[&region, &tags]);
        Tracer::new(socket, hello, shape, region, tags)
    }
}

pub fn message(socket: &Socket) -> Message {
    match socket.receive(PATIENCE) {
        Received::Message(message, _) => message,
        other => panic!("{other:?}"),
    }
}

/// Creates a memfd, sealed or not.
pub fn memory(size: usize, sealed: bool) -> OwnedFd {
    unsafe {
        let fd = libc::memfd_create(c"region".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert_eq!(libc::ftruncate(fd, size as i64), 0);
        if sealed {
            assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW), 0);
        }
        OwnedFd::from_raw_fd(fd)
    }
}

fn send(socket: &Socket, message: &Message, descriptors: &[&OwnedFd]) {
    let mut bytes = message.encode();
    let mut control = [0u64; 16];
    let size = (descriptors.len() * 4) as u32;
    unsafe {
        let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut header: libc::msghdr = MaybeUninit::zeroed().assume_init();
        (header.msg_iov, header.msg_iovlen) = (&mut vector, 1);
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = libc::CMSG_SPACE(size) as usize;
        let first = libc::CMSG_FIRSTHDR(&header);
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_RIGHTS;
        (*first).cmsg_len = libc::CMSG_LEN(size) as usize;
        for (n, it) in descriptors.iter().enumerate() {
            libc::CMSG_DATA(first).cast::<i32>().add(n).write_unaligned(it.as_raw_fd());
        }
        assert_eq!(libc::sendmsg(socket.raw(), &header, 0), bytes.len() as isize);
    }
}

pub struct Tracer {
    pub socket: Option<Socket>,
    pub hello: Message,
    pub tags: *mut u64,
    shape: RegionShape,
    base: *mut u8,
    readers: Vec<Reader>,
    pub bytes: Vec<Vec<u8>>,
    _descriptors: [OwnedFd; 2],
}

unsafe impl Send for Tracer {}

impl Tracer {
    pub fn new(socket: Socket, hello: Message, shape: RegionShape, region: OwnedFd, tags: OwnedFd) -> Self {
        let map = |fd: &OwnedFd, size| unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        let base: *mut u8 = map(&region, shape.size()).cast();
        let tag_words = map(&tags, PAGE).cast();
        let readers = (0..shape.rings).map(|n| unsafe {
            let header = base.add(shape.ring_offset(n));
            Reader::new(header.cast::<RingHeader>(), header.add(PAGE), shape.ring_bytes)
        });
        Tracer {
            socket: Some(socket),
            hello,
            tags: tag_words,
            shape,
            base,
            readers: readers.collect(),
            bytes: vec![Vec::new(); shape.rings as usize],
            _descriptors: [region, tags],
        }
    }

    pub fn control(&self) -> &Control {
        unsafe { &*self.base.cast() }
    }

    pub fn lost(&self, what: Lost) -> u64 {
        self.control().lost[what as usize].load(Ordering::SeqCst)
    }

    pub fn message(&self) -> Message {
        message(self.socket.as_ref().unwrap())
    }

    /// Whether the collector's last message is BYE, or nothing: a process may end before it can
    /// send one.
    pub fn says_goodbye(&self) -> bool {
        match self.socket.as_ref().unwrap().receive(Duration::from_secs(60)) {
            Received::Message(message, _) => message.kind == xputrace_wire::message::BYE,
            Received::Closed => true,
            Received::Nothing => false,
        }
    }

    pub fn order(&self, kind: u32) {
        self.socket.as_ref().unwrap().send(&Message::new(kind, &[], ""));
    }

    /// Asks for something else from now on.
    pub fn switch(&self, demand: u64) {
        self.socket.as_ref().unwrap().send(&Message::new(SWITCH, &[demand], ""));
    }

    pub fn drain(&mut self) {
        let marks: Vec<u64> = self.readers.iter().map(Reader::mark).collect();
        for ((reader, mark), bytes) in self.readers.iter_mut().zip(marks).zip(&mut self.bytes) {
            assert!(reader.take(mark, bytes), "a broken position");
        }
    }

    pub fn records(&mut self) -> Vec<Record<'_>> {
        self.drain();
        self.bytes.iter().flat_map(|it| records(it).map(|it| it.unwrap())).collect()
    }

    pub fn launches(&mut self) -> Vec<Launch> {
        self.records().iter().filter_map(|it| if let Record::Launch(it) = it { Some(*it) } else { None }).collect()
    }

    /// Returns the number of calls of all kinds, by the collector's totals.
    pub fn launches_made(&self) -> u64 {
        self.control().totals.calls.iter().map(|it| it.made.load(Ordering::SeqCst)).sum()
    }

    pub fn kernels(&mut self) -> Vec<Kernel> {
        self.records()
            .iter()
            .filter_map(|it| if let Record::Activity(ActivityRecord::Kernel(it)) = it { Some(*it) } else { None })
            .collect()
    }

    pub fn memsets(&mut self) -> Vec<Memset> {
        self.records()
            .iter()
            .filter_map(|it| if let Record::Activity(ActivityRecord::Memset(it)) = it { Some(*it) } else { None })
            .collect()
    }

    pub fn flushes(&mut self) -> Vec<Flush> {
        self.records().iter().filter_map(|it| if let Record::Flush(it) = it { Some(*it) } else { None }).collect()
    }

    pub fn name(&mut self, id: u32) -> Option<String> {
        self.records().iter().find_map(|it| match it {
            Record::Name { id: this, text } if *this == id => Some(String::from_utf8_lossy(text).into_owned()),
            _ => None,
        })
    }

    pub fn stack(&mut self, id: u32) -> Option<Vec<u64>> {
        self.records().into_iter().find_map(|it| match it {
            Record::Stack { id: this, frames, .. } if this == id => Some(frames),
            _ => None,
        })
    }

    /// Reads until `done`; fails if that takes too long.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < end, "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn rings_owned(&self) -> usize {
        let header = |n| unsafe { &*self.base.add(self.shape.ring_offset(n)).cast::<RingHeader>() };
        (0..self.shape.rings).filter(|&n| header(n).owner.load(Ordering::SeqCst) != 0).count()
    }
}

/// A handler at the collector's marker: it gets an event's words, and the slot for its tag.
pub type AtMarker = extern "C" fn(words: *const u64, slot: u64);

/// Has the marker call a handler: replaces its nop by a jump, for which it has room, or restores it.
pub fn put_at_marker(handler: Option<AtMarker>) {
    let marker = xputrace_agent::xputrace_launch_marker as *const () as usize;
    let to = handler.map(|it| it as *const () as usize);
    let mut code = [0x0f, 0x1f, 0x44, 0, 0];
    if let Some(to) = to {
        code[0] = 0xe9;
        code[1..].copy_from_slice(&(to.wrapping_sub(marker + 5) as i32).to_le_bytes());
    }
    unsafe {
        let page = marker & !4095;
        let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        assert_eq!(libc::mprotect(page as *mut _, 8192, all), 0);
        (marker as *mut [u8; 5]).write_volatile(code);
        assert_eq!(libc::mprotect(page as *mut _, 8192, libc::PROT_READ | libc::PROT_EXEC), 0);
    }
}
