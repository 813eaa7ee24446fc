//! A collector that means harm. It speaks to the tracer as one does, without CUDA.
//!
//! ```text
//! hostile hello|refused|armed|bye    says a text with control characters, and a forged result, in that message
//! hostile notes|unknown|short N      is armed, then sends such messages from N threads, without end
//! hostile requests N                 is armed, asks for the twins of N images, reads no answer, and stays until its input ends
//! hostile ptx FILE                   maps the file; is armed, asks for the twin of a kernel, and waits for it
//! hostile connect PID                connects to the socket of a tracer again and again, each time under another name
//! ```
//!
//! It says on standard output what it has done; those without end say so once they have begun.

use std::fs::{self, File};
use std::io::{self, Read, Write, stdout};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use xputrace_wire::device::{Codec, Portability, PortableCode, encode_image, image_kind};
use xputrace_wire::message::{self, Message};
use xputrace_wire::{SOCKET_VARIABLE, VERSION};
use xputrace_workloads::Result;

/// Sets a terminal's title, clears it, goes back in the line, and forges a line of results.
const TEXT: &str =
    "\x1b]0;forged\x07\x1b[2J\u{9b}31m said\rfirst\u{202e} of all\nforged: launches 0 = joined 0; 0 lost";
/// Messages after which one without end has begun.
const BEGUN: usize = 10_000;
/// A compute capability.
const CAPABILITY: u64 = 80;
/// Of a version that only the ptxas of a test takes: others are passed over.
const KERNEL: &str =
    ".version 99.9\n.target sm_80\n.address_size 64\n.visible .entry asked(.param .u64 values) { ret; }\n";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, rest @ ..] = arguments.as_slice() else { return Err("which mode?".into()) };
    let argument = rest.first().map_or("", String::as_str);
    match mode.as_str() {
        "hello" => {
            let peer = Peer::connect(&tracer()?)?;
            peer.send(&hello(0, TEXT))?;
            peer.wait_for(message::DORMANT)
        }
        "refused" => {
            Peer::armed()?.send(&Message::new(message::REFUSED, &[1], TEXT))?;
            say("refused")
        }
        "armed" => {
            let peer = Peer::armed()?;
            peer.send(&Message::new(message::ARMED, &[1], TEXT))?;
            peer.send(&Message::new(message::BYE, &[], ""))?;
            say("armed")
        }
        "bye" => {
            let peer = Peer::armed()?;
            peer.send(&Message::new(message::ARMED, &[1], ""))?;
            peer.send(&Message::new(message::BYE, &[], TEXT))?;
            say("bye")
        }
        "notes" => flood(argument.parse()?, |i| Message::new(message::ARMED, &[1], notes(i)).encode()),
        "unknown" => flood(argument.parse()?, |_| Message::new(u32::MAX, &[], "").encode()),
        "short" => flood(argument.parse()?, |_| vec![0]),
        "requests" => requests(argument.parse()?),
        "ptx" => ptx(argument),
        "connect" => connect(argument),
        other => Err(format!("unknown mode {other}").into()),
    }
}

/// A hundred lines that nobody has said before.
fn notes(i: usize) -> String {
    (0..100).map(|line| format!("note {i} {line}\n")).collect()
}

fn flood(threads: usize, message: impl Fn(usize) -> Vec<u8> + Sync) -> Result<()> {
    let peer = Peer::armed()?;
    peer.send(&Message::new(message::ARMED, &[1], ""))?;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (peer, message) = (&peer, &message);
            scope.spawn(move || {
                let mut i = thread;
                while peer.send_bytes(&message(i), &[]).is_ok() {
                    i += threads;
                    if i / threads == BEGUN {
                        let _ = say("begun");
                    }
                }
            });
        }
    });
    Ok(())
}

fn requests(n: u64) -> Result<()> {
    let peer = Peer::armed()?;
    peer.send(&Message::new(message::ARMED, &[1], ""))?;
    // Until the tracer has enough of it.
    let _ = (1..=n).try_for_each(|image| peer.ask_for_twin(image));
    say("asked")?;
    // Until then the socket stays open.
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn ptx(path: &str) -> Result<()> {
    let file = File::open(path)?;
    // SAFETY: maps one page of an open file, for good.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), 1, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error().into());
    }
    let peer = Peer::armed()?;
    peer.send(&Message::new(message::ARMED, &[1], ""))?;
    peer.ask_for_twin(1)?;
    peer.wait_for(message::TWIN)?;
    peer.send(&Message::new(message::BYE, &[], ""))?;
    say("answered")
}

fn connect(tracer: &str) -> Result<()> {
    let prefix = format!("@xputrace-{tracer}-");
    let sockets = fs::read_to_string("/proc/net/unix")?;
    let name = sockets.lines().filter_map(|it| it.split_whitespace().last()).find(|it| it.starts_with(&prefix));
    let name = name.ok_or("that tracer has no socket")?;
    let mut connected = 0;
    // As long as there is a tracer.
    while fs::exists(format!("/proc/{tracer}"))? {
        fs::write("/proc/self/comm", format!("attacker-{connected}"))?;
        // Refused where too many wait, or the tracer has ended.
        if Peer::connect(name).is_ok() {
            connected += 1;
            if connected == BEGUN / 10 {
                say("connected")?;
            }
        }
    }
    Ok(())
}

/// The other end of a connection.
struct Peer(OwnedFd);

impl Peer {
    /// Connects to an abstract name, which begins with `@`.
    fn connect(name: &str) -> io::Result<Peer> {
        // SAFETY: zeroes are an address.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let name = name.trim_start_matches('@').bytes();
        address.sun_path[1..].iter_mut().zip(name.clone()).for_each(|(to, from)| *to = from as libc::c_char);
        let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
        // SAFETY: the new descriptor is ours; the address lives through the call and has the length given.
        unsafe {
            let socket = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
            let socket = OwnedFd::from_raw_fd(checked(socket as isize)? as i32);
            checked(libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len as u32) as isize)?;
            Ok(Peer(socket))
        }
    }

    /// Connects to our tracer, and says hello as a process with CUPTI; returns once the tracer has sent its order.
    fn armed() -> Result<Peer> {
        let peer = Peer::connect(&tracer()?)?;
        peer.send(&hello(130_000, "/libcupti.so.13\n"))?;
        peer.wait_for(message::ARM)?;
        Ok(peer)
    }

    fn send(&self, message: &Message) -> io::Result<()> {
        self.send_bytes(&message.encode(), &[])
    }

    fn send_bytes(&self, bytes: &[u8], descriptors: &[i32]) -> io::Result<()> {
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut control = [0u64; 8];
        // SAFETY: zeroes are a msghdr. What it points to lives through the call; there is room for the descriptors.
        unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            header.msg_iov = &raw mut part;
            header.msg_iovlen = 1;
            if !descriptors.is_empty() {
                let len = size_of_val(descriptors) as u32;
                header.msg_control = control.as_mut_ptr().cast();
                header.msg_controllen = libc::CMSG_SPACE(len) as usize;
                let first = libc::CMSG_FIRSTHDR(&raw const header);
                (*first).cmsg_level = libc::SOL_SOCKET;
                (*first).cmsg_type = libc::SCM_RIGHTS;
                (*first).cmsg_len = libc::CMSG_LEN(len) as usize;
                std::ptr::copy_nonoverlapping(descriptors.as_ptr(), libc::CMSG_DATA(first).cast(), descriptors.len());
            }
            checked(libc::sendmsg(self.0.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL)).map(drop)
        }
    }

    /// Reads messages until one of this kind comes. Descriptors that come along are closed by Linux: there is no room.
    fn wait_for(&self, kind: u32) -> Result<()> {
        let mut bytes = [0u8; message::MAX_SIZE];
        loop {
            // SAFETY: writes at most as many bytes as there are.
            let n = unsafe { libc::recv(self.0.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            let message = Message::decode(&bytes[..checked(n)? as usize]).ok_or("the tracer has left")?;
            if message.kind == kind {
                return Ok(());
            }
        }
    }

    /// Asks for the twin of a kernel that is in PTX of this number.
    fn ask_for_twin(&self, image: u64) -> io::Result<()> {
        let stored = KERNEL.as_bytes().into();
        let text_bytes = KERNEL.len() as u64;
        let ptx = PortableCode { codec: Codec::Plain, portability: Portability::Later, sm: 80, text_bytes, stored };
        let bytes = encode_image(&[ptx]);
        // SAFETY: a C string; the new descriptor is ours.
        let mut memory = unsafe {
            let fd = libc::memfd_create(c"image".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            File::from_raw_fd(checked(fd as isize)? as i32)
        };
        memory.write_all(&bytes)?;
        // SAFETY: numbers only.
        let sealed =
            unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_WRITE) };
        checked(sealed as isize)?;
        let words = [image, 1, bytes.len() as u64, CAPABILITY, CAPABILITY, image_kind::PORTABLE];
        self.send_bytes(&Message::new(message::IMAGE, &words, "").encode(), &[memory.as_raw_fd()])
    }
}

/// Returns the abstract name of the tracer that has started us.
fn tracer() -> Result<String> {
    let value = std::env::var(SOCKET_VARIABLE)?;
    Ok(value.split(':').next().unwrap_or_default().to_owned())
}

fn hello(cupti_version: u64, text: &str) -> Message {
    Message::new(message::HELLO, &[VERSION.into(), std::process::id().into(), cupti_version, u64::MAX, 0], text)
}

fn say(what: &str) -> Result<()> {
    writeln!(stdout(), "{what}")?;
    Ok(())
}

fn checked(result: isize) -> io::Result<isize> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
