//! A tracer that makes twins of `tests/h200/twins.cu` by hand, for a machine with a GPU: each counts its threads in the
//! block's second word. Runs the program without twins and with them, and compares.
//!
//! ```text
//! twins COLLECTOR PROGRAM PTX            both runs, one after the other
//! twins leave COLLECTOR PROGRAM PTX      the run ends while the program goes on
//! twins silent COLLECTOR PROGRAM PTX     no image is answered
//! twins weave PTX                        prints the twins
//! ```
//! `tests/h200/README.md` says how to build and run it.
#![allow(
    clippy::undocumented_unsafe_blocks,
    clippy::print_stdout,
    clippy::exit,
    reason = "a test program, with the same raw calls as the tests"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use xputrace_agent::rendezvous::{Received, Socket};
use xputrace_wire::device::{
    self, Choice, Codec, DeviceCode, ImageOutcome, MOST_CONTEXTS, Twin, decode_image, original_symbol, twin_status,
    twin_symbol,
};
use xputrace_wire::events::{Call, HostEvent, HostEventRecord, HostEvents};
use xputrace_wire::message::{
    ARM, ARMED, BYE, COMING, DISARM, HELLO, IMAGE, Message, READ_DEVICE, REFUSED, TWIN, demand,
};
use xputrace_wire::record::{ActivityRecord, Record, records};
use xputrace_wire::region::{Control, Lost, PAGE, RegionShape};
use xputrace_wire::ring::{Reader, RingHeader};

const SHAPE: RegionShape = RegionShape { rings: 64, ring_bytes: 1 << 20 };
/// The word that enables, the counter, and some more to be copied.
const BLOCK: device::DeviceRegionShape = device::DeviceRegionShape { block_bytes: 1 << 16, ring: None };
const VARIABLES: [&str; 2] = ["bias", "factor"];
const LASTS_AT_MOST: Duration = Duration::from_secs(120);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["weave", ptx] => {
            println!("{}", weave(&std::fs::read_to_string(ptx).unwrap()).0);
            true
        }
        ["leave", collector, program, ptx] => leaves(collector, program, ptx),
        ["silent", collector, program, ptx] => is_silent(collector, program, ptx),
        [collector, program, ptx] => compare(collector, program, ptx),
        _ => {
            println!("usage: twins [leave|silent] COLLECTOR PROGRAM PTX, or twins weave PTX");
            false
        }
    };
    println!("{}", if done { "PASSED" } else { "FAILED" });
    std::process::exit(i32::from(!done));
}

/// Says whether something is so.
fn check(is_so: bool, what: impl std::fmt::Display) -> bool {
    println!("{} {what}", if is_so { "ok  " } else { "FAIL" });
    is_so
}

const RECORDED: u64 = demand::LAUNCHES
    | demand::KERNELS
    | demand::MEMCPYS
    | demand::MEMCPY_CALLS
    | demand::host_events(HostEvents::of(&[
        HostEvent::Alloc,
        HostEvent::Free,
        HostEvent::Module,
        HostEvent::StreamChange,
    ]));

fn compare(collector: &str, program: &str, ptx: &str) -> bool {
    let bare = run_bare(program, ptx);
    let without = run(collector, program, &[ptx], RECORDED, Behaviour::Answers);
    let only = run(collector, program, &[ptx], demand::DEVICE, Behaviour::Answers);
    let with = run(collector, program, &[ptx], RECORDED | demand::DEVICE, Behaviour::Answers);
    let launch = |it: &Outcome| it.said("launch");
    println!(
        "ns a launch: {} bare, {} recorded, {} with twins, {} with both",
        bare,
        launch(&without),
        launch(&only),
        launch(&with)
    );
    let mut all = check(without.status == Some(0), format!("status without twins: {:?}", without.status));
    for it in [&only, &with] {
        all &= it.is_exact();
    }
    all &= check(with.kernels == without.kernels, format!("kernels by name: {:?} {:?}", with.kernels, without.kernels));
    let others = |it: &Outcome| (it.memcpys, it.memcpy_calls, it.host_events_but_modules());
    all &=
        check(others(&with) == others(&without), format!("other records: {:?} {:?}", others(&with), others(&without)));
    // Twins ask for their originals' variables in each context, which loads those there.
    let sizes = |it: &Outcome| it.modules.iter().map(|it| it.1).collect::<BTreeSet<_>>();
    all &= check(
        with.modules.len() >= without.modules.len() && sizes(&with) == sizes(&without),
        format!("modules: {:?} {:?}", with.modules, without.modules),
    );
    all & check(with.lost.iter().all(|it| *it == 0), format!("lost: {:?}", with.lost))
}

fn leaves(collector: &str, program: &str, ptx: &str) -> bool {
    let it = run(collector, program, &[ptx, "10", "100"], RECORDED | demand::DEVICE, Behaviour::LeavesAfter(700));
    let mut all = check(it.status == Some(0), format!("status {:?}, {}", it.status, it.output));
    all &= check(it.bye.is_some(), format!("bye: {:?}", it.bye));
    all & check(
        it.counted > 0 && it.counted < it.said("threads"),
        format!("counted {} of {}", it.counted, it.said("threads")),
    )
}

fn is_silent(collector: &str, program: &str, ptx: &str) -> bool {
    let began = Instant::now();
    let it = run(collector, program, &[ptx], RECORDED | demand::DEVICE, Behaviour::Silent);
    let mut all =
        check(it.status == Some(0), format!("status {:?}, {:.1} s", it.status, began.elapsed().as_secs_f64()));
    all &= check(it.images[ImageOutcome::NoAnswer as usize] > 0, format!("images {:?}", it.images));
    all & check(it.counted == 0, format!("counted {}", it.counted))
}

fn run_bare(program: &str, ptx: &str) -> u64 {
    let output = Command::new(program).arg(ptx).output().unwrap();
    said(&String::from_utf8_lossy(&output.stdout), "launch")
}

#[derive(Clone, Copy, PartialEq)]
enum Behaviour {
    Answers,
    Silent,
    /// Ends the run after milliseconds.
    LeavesAfter(u64),
}

/// What came of a run.
#[derive(Default, Debug)]
struct Outcome {
    status: Option<i32>,
    output: String,
    bye: Option<String>,
    counted: u64,
    swapped: u64,
    contexts: u32,
    reads: u64,
    unprobed: Vec<u64>,
    images: Vec<u64>,
    kernels: BTreeMap<String, u64>,
    memcpys: u64,
    memcpy_calls: u64,
    host_events: Vec<u64>,
    /// What became of each module, and its bytes.
    modules: Vec<(u32, u64)>,
    lost: Vec<u64>,
}

impl Outcome {
    fn said(&self, word: &str) -> u64 {
        said(&self.output, word)
    }

    fn host_events_but_modules(&self) -> Vec<u64> {
        let counts = self.host_events.iter().zip(HostEvent::ALL);
        counts.filter(|it| *it.1 != HostEvent::Module).map(|it| *it.0).collect()
    }

    fn is_exact(&self) -> bool {
        println!("{}", self.output);
        let mut all = check(self.status == Some(0), format!("status {:?}", self.status));
        let threads = self.said("threads");
        all &= check(self.counted == threads && threads > 0, format!("counted {} of {threads} threads", self.counted));
        all &= check(self.swapped > 0, format!("{} launches and nodes with twins", self.swapped));
        all &= check(self.unprobed.iter().all(|it| *it == 0), format!("unprobed {:?}", self.unprobed));
        all &= check(self.images[ImageOutcome::Twinned as usize] >= 5, format!("images {:?}", self.images));
        all &= check(self.contexts == 2, format!("{} contexts", self.contexts));
        all & check(self.reads > 0, format!("{} reads were answered", self.reads))
    }
}

fn said(output: &str, word: &str) -> u64 {
    let line = output.lines().find_map(|it| it.strip_prefix(word)).unwrap_or_default();
    line.split_whitespace().next().and_then(|it| it.parse().ok()).unwrap_or(0)
}

/// Runs the program under a tracer that asks for this.
fn run(collector: &str, program: &str, arguments: &[&str], demand: u64, behaviour: Behaviour) -> Outcome {
    let name = format!("@xputrace-twins-{}-{}", std::process::id(), demand & demand::DEVICE | demand::KERNELS & demand);
    let listener = listen(&name);
    let child = Command::new(program)
        .args(arguments)
        .env(xputrace_wire::INJECTION_VARIABLE, std::fs::canonicalize(collector).unwrap())
        .env(xputrace_wire::SOCKET_VARIABLE, &name)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut tracer = Tracer::arm(accept(&listener), demand, child);
    tracer.serve(behaviour);
    tracer.outcome()
}

struct Tracer {
    socket: Socket,
    child: Child,
    demand: u64,
    region: *mut u8,
    readers: Vec<Reader>,
    bytes: Vec<Vec<u8>>,
    block: *mut u8,
    bye: Option<String>,
    asked: u64,
    _memory: [OwnedFd; 2],
}

impl Tracer {
    fn arm(socket: Socket, demand: u64, child: Child) -> Self {
        socket.send(&Message::new(COMING, &[], ""));
        let Received::Message(hello, _) = socket.receive(LASTS_AT_MOST) else { panic!("no HELLO") };
        assert_eq!(hello.kind, HELLO);
        assert_eq!(hello.words[0], u64::from(xputrace_wire::VERSION));
        assert_eq!(hello.words[3] & demand, demand, "the collector offers {:#x} ({})", hello.words[3], hello.text);
        let memory = [memory_of(SHAPE.size()), memory_of(BLOCK.size())];
        let (region, block) = (map(&memory[0], SHAPE.size()), map(&memory[1], BLOCK.size()));
        unsafe { block.add(BLOCK.initial_offset()).cast::<u64>().write(1) };
        let words = [demand, SHAPE.rings.into(), SHAPE.ring_bytes.into(), 100, 0, 0, 0, demand];
        let text = format!("\n\n\n{}", BLOCK.to_text());
        assert!(socket.send_with(&Message::new(ARM, &words, text), &[memory[0].as_fd(), memory[1].as_fd()]));
        let readers = (0..SHAPE.rings).map(|n| unsafe {
            let header = region.add(SHAPE.ring_offset(n));
            Reader::new(header.cast::<RingHeader>(), header.add(PAGE), SHAPE.ring_bytes)
        });
        let (readers, bytes) = (readers.collect(), vec![Vec::new(); SHAPE.rings as usize]);
        Tracer { socket, child, demand, region, readers, bytes, block, bye: None, asked: 0, _memory: memory }
    }

    fn control(&self) -> &Control {
        unsafe { &*self.region.cast() }
    }

    fn device(&self) -> &device::Control {
        unsafe { &*self.block.cast() }
    }

    fn serve(&mut self, behaviour: Behaviour) {
        let (began, mut has_left) = (Instant::now(), false);
        loop {
            self.drain();
            let received = self.socket.receive(Duration::from_millis(20));
            match received {
                Received::Closed => break,
                Received::Message(message, memory) => self.handle(&message, &memory, behaviour),
                Received::Nothing => {}
            }
            if self.bye.is_some() && behaviour == Behaviour::Answers {
                break;
            }
            if self.demand & demand::DEVICE != 0 && self.device().answered.load(SeqCst) == self.asked {
                self.asked += 1;
                self.socket.send(&Message::new(READ_DEVICE, &[self.asked], ""));
            }
            if let Behaviour::LeavesAfter(millis) = behaviour
                && !has_left
                && began.elapsed() > Duration::from_millis(millis)
            {
                has_left = self.socket.send(&Message::new(DISARM, &[], ""));
            }
            if began.elapsed() > LASTS_AT_MOST {
                println!("it takes too long");
                let _ = self.child.kill();
                break;
            }
        }
        self.drain();
    }

    fn handle(&mut self, message: &Message, memory: &[OwnedFd], behaviour: Behaviour) {
        match message.kind {
            ARMED | REFUSED => println!("message {}: {:?} {}", message.kind, message.words, message.text),
            BYE => self.bye = Some(message.text.clone()),
            IMAGE if behaviour != Behaviour::Silent => self.answer(message, memory),
            IMAGE => {}
            other => println!("message {other}?"),
        }
    }

    fn answer(&self, message: &Message, memory: &[OwnedFd]) {
        let [image, entries, bytes, ..] = message.words;
        let contents = contents(&memory[0], bytes as usize);
        let all = decode_image(&contents).unwrap();
        assert_eq!(all.len() as u64, entries);
        let plain = all.iter().find(|it| it.codec == Codec::Plain);
        let text = plain.map(|it| String::from_utf8_lossy(&it.stored).trim_end_matches('\0').to_owned());
        let Some(text) = text.filter(|it| it.contains(".entry scale(")) else {
            println!("image {image}: {entries} entries, {bytes} bytes: nothing to probe");
            self.socket.send(&Message::new(TWIN, &[image, twin_status::NOTHING], ""));
            return;
        };
        let (code, kernels) = weave(&text);
        let variables = VARIABLES.map(str::to_owned).to_vec();
        let choices = vec![Choice::default(); kernels.len()];
        let twin = Twin { code: code.into_bytes(), kernels, variables, names: vec![], choices };
        let bytes = DeviceCode::Twins(vec![twin]).encode();
        let memory = memory_of(bytes.len());
        unsafe { libc::pwrite(memory.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        let words = [image, twin_status::WOVEN, bytes.len() as u64];
        assert!(self.socket.send_with(&Message::new(TWIN, &words, ""), &[memory.as_fd()]));
    }

    fn drain(&mut self) {
        let marks: Vec<u64> = self.readers.iter().map(Reader::mark).collect();
        for ((reader, mark), bytes) in self.readers.iter_mut().zip(marks).zip(&mut self.bytes) {
            assert!(reader.take(mark, bytes), "a broken position");
        }
    }

    fn outcome(mut self) -> Outcome {
        let mut output = String::new();
        let mut stdout = self.child.stdout.take().unwrap();
        std::io::Read::read_to_string(&mut stdout, &mut output).unwrap();
        let status = self.child.wait().unwrap().code();
        self.drain();
        let count = |it: &std::sync::atomic::AtomicU64| it.load(SeqCst);
        let word =
            |slot: usize| unsafe { self.block.add(BLOCK.copy_offset(slot)).cast::<u64>().add(1).read_volatile() };
        let mut outcome = Outcome {
            status,
            output,
            bye: self.bye.clone(),
            counted: (0..MOST_CONTEXTS).map(word).sum(),
            swapped: self.device().slots.iter().map(|it| count(&it.swapped)).sum(),
            contexts: self.device().contexts.load(SeqCst),
            reads: self.device().answered.load(SeqCst),
            unprobed: self.device().unprobed.iter().map(count).collect(),
            images: self.device().images.iter().map(count).collect(),
            memcpy_calls: count(&self.control().totals.call(Call::Memcpy).made),
            host_events: self.control().totals.host_events.iter().map(count).collect(),
            lost: Lost::ALL.iter().map(|it| count(&self.control().lost[*it as usize])).collect(),
            ..Outcome::default()
        };
        let all: Vec<Record<'_>> = self.bytes.iter().flat_map(|it| records(it).map(|it| it.unwrap())).collect();
        let names: BTreeMap<u32, String> = all
            .iter()
            .filter_map(|it| match it {
                Record::Name { id, text } => Some((*id, String::from_utf8_lossy(text).into_owned())),
                _ => None,
            })
            .collect();
        for it in &all {
            match it {
                Record::Activity(ActivityRecord::Kernel(it)) => {
                    *outcome.kernels.entry(original_symbol(&names[&it.symbol]).to_owned()).or_default() += 1;
                }
                Record::Activity(ActivityRecord::Memcpy(_)) => outcome.memcpys += 1,
                Record::Host(HostEventRecord::Module(it)) => outcome.modules.push((it.kind, it.bytes)),
                _ => {}
            }
        }
        outcome
    }
}

/// Makes twins of all kernels, which count their threads; returns them, and the originals' symbols.
fn weave(ptx: &str) -> (String, Vec<String>) {
    let (mut out, mut kernels, mut begins) = (String::new(), Vec::new(), false);
    for line in ptx.lines() {
        let is_variable = line.starts_with(".global") || line.starts_with(".const");
        if is_variable && VARIABLES.iter().any(|it| line.ends_with(&format!(" {it};"))) {
            continue;
        }
        let mut line = line.replace("ld.const.u32", "ld.global.u32");
        for (n, variable) in VARIABLES.iter().enumerate() {
            line = line.replace(&format!("[{variable}]"), &format!("[%xpt_g{n}]"));
        }
        if let Some(name) = line.strip_prefix(".visible .entry ").and_then(|it| it.strip_suffix('(')) {
            kernels.push(name.to_owned());
            line = format!(".visible .entry {}(", twin_symbol(name));
            begins = true;
        }
        out.push_str(&line);
        out.push('\n');
        if line.starts_with(".address_size") {
            out.push_str(".visible .global .align 8 .u64 xpt_device;\n");
            out.push_str(".visible .global .align 8 .u64 xpt_globals[2];\n");
        }
        if begins && line == "{" {
            begins = false;
            let n = kernels.len();
            out.push_str(&format!(
                "\t.reg .b64 %xpt_b, %xpt_g0, %xpt_g1;\n\
                 \t.reg .pred %xpt_p;\n\
                 \tld.global.u64 %xpt_g0, [xpt_globals];\n\
                 \tld.global.u64 %xpt_g1, [xpt_globals+8];\n\
                 \tld.global.u64 %xpt_b, [xpt_device];\n\
                 \tsetp.eq.u64 %xpt_p, %xpt_b, 0;\n\
                 \t@%xpt_p bra $xpt_{n};\n\
                 \tred.global.add.u64 [%xpt_b+8], 1;\n\
                 $xpt_{n}:\n"
            ));
        }
    }
    (out, kernels)
}

fn listen(address: &str) -> OwnedFd {
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        let mut name: libc::sockaddr_un = MaybeUninit::zeroed().assume_init();
        name.sun_family = libc::AF_UNIX as u16;
        for (to, from) in name.sun_path[1..].iter_mut().zip(&address.as_bytes()[1..]) {
            *to = *from as i8;
        }
        assert_eq!(libc::bind(fd, (&raw const name).cast(), (2 + address.len()) as u32), 0);
        assert_eq!(libc::listen(fd, 4), 0);
        OwnedFd::from_raw_fd(fd)
    }
}

fn accept(listener: &OwnedFd) -> Socket {
    let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    unsafe {
        assert_eq!(libc::poll(&mut poll, 1, 60_000), 1, "nobody has connected");
        let fd = libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC);
        assert!(fd >= 0);
        Socket::from_connected(OwnedFd::from_raw_fd(fd))
    }
}

fn memory_of(size: usize) -> OwnedFd {
    unsafe {
        let fd = libc::memfd_create(c"twins".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert_eq!(libc::ftruncate(fd, size as i64), 0);
        assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW), 0);
        OwnedFd::from_raw_fd(fd)
    }
}

fn map(memory: &OwnedFd, size: usize) -> *mut u8 {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let base = unsafe { libc::mmap(std::ptr::null_mut(), size, rights, libc::MAP_SHARED, memory.as_raw_fd(), 0) };
    assert_ne!(base, libc::MAP_FAILED);
    base.cast()
}

fn contents(memory: &OwnedFd, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    let n = unsafe { libc::pread(memory.as_raw_fd(), out.as_mut_ptr().cast(), bytes, 0) };
    assert_eq!(n as usize, bytes);
    out
}
