//! A minimal collector connects, is armed, writes, and is read.

#[path = "../../pipeline/tests/common/mod.rs"]
mod common;

use common::*;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use xputrace_model::plan::{Activities, Activity, Call, Calls, Demand, Detail, Details, DeviceWay};
use xputrace_pipeline::ProcessIndex;
use xputrace_rendezvous::{
    Acceptor, Arming, Arrival, ChooseWay, Chosen, Collector, DEFAULT_SHAPE, DeviceBlock, Heard, Listener, Missed,
    Newcomer, Notice, Order, RunOrder, SharedMemory, Ways, Why, Window,
};
use xputrace_wire::device::{
    Choice, Codec, CopyExtent, DeviceCode, Portability, PortableCode, Twin, encode_image, twin_status,
};
use xputrace_wire::device::{LoadedCode, Woven};
use xputrace_wire::message::{self, Message, demand};
use xputrace_wire::record::{self, ActivityRecord, Flush, Kernel, Launch, Record, kind, size_of_record};
use xputrace_wire::region::{Control, PAGE, RegionShape};
use xputrace_wire::ring::{RingHeader, Writer};

const SHAPE: RegionShape = RegionShape { rings: 2, ring_bytes: 65_536 };

/// Connects as a collector does.
fn connect(value: &str) -> OwnedFd {
    let name = value.strip_prefix('@').and_then(|it| it.split(':').next()).expect("an abstract name");
    // SAFETY: plain system calls on an address that lives through them.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0);
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as u16;
        for (to, from) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let len = (size_of::<u16>() + 1 + name.len()) as u32;
        assert_eq!(libc::connect(fd, (&raw const address).cast(), len), 0);
        OwnedFd::from_raw_fd(fd)
    }
}

fn say(socket: &OwnedFd, message: &Message) {
    let bytes = message.encode();
    // SAFETY: the buffer lives through the call.
    let n = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
    assert_eq!(n as usize, bytes.len());
}

/// Says it, and sends a descriptor along.
fn say_with(socket: &OwnedFd, message: &Message, descriptor: RawFd) {
    let bytes = message.encode();
    let mut control = [0u64; 3];
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all buffers live through the call, and the control data has room for a descriptor.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
        (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
        let first = libc::CMSG_FIRSTHDR(&header);
        ((*first).cmsg_level, (*first).cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        (*first).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(first).cast::<RawFd>().write_unaligned(descriptor);
        assert_eq!(libc::sendmsg(socket.as_raw_fd(), &header, 0) as usize, bytes.len());
    }
}

/// Returns the next message, and the first descriptor sent with it.
fn hear(socket: &OwnedFd) -> (Message, Option<OwnedFd>) {
    let mut bytes = [0u8; message::MAX_SIZE];
    let mut control = [0u64; 8];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all buffers live through the call; libc's macros parse the control data.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
        (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
        let n = libc::recvmsg(socket.as_raw_fd(), &mut header, 0);
        let first = libc::CMSG_FIRSTHDR(&header);
        let fd =
            (!first.is_null()).then(|| OwnedFd::from_raw_fd(libc::CMSG_DATA(first).cast::<i32>().read_unaligned()));
        (Message::decode(&bytes[..n as usize]).unwrap(), fd)
    }
}

/// Returns the next collector that said hello; drops earlier ones.
fn next(listener: &Listener) -> Option<Collector> {
    while let Some(connection) = listener.accept().unwrap() {
        if let Heard::Hello(target) = connection.hear() {
            return Some(target);
        }
    }
    None
}

fn hello() -> Message {
    Message::new(
        message::HELLO,
        &[xputrace_wire::VERSION.into(), std::process::id().into(), 130_001, demand::STACKS],
        "libcupti.so.13",
    )
}

#[test]
fn a_collector_is_armed_and_its_records_are_read() {
    let listener = Listener::new(None).unwrap();
    assert!(listener.accept().unwrap().is_none());
    let collector = connect(listener.value());
    say(&collector, &hello());
    let mut target = next(&listener).expect("a collector");
    assert_eq!(
        (target.peer.pid, target.library_version, target.library.as_str()),
        (std::process::id(), 130_001, "libcupti.so.13")
    );
    assert!(target.capabilities == demand::STACKS && target.refusal.is_none() && target.poll().is_none());

    let wanted = Demand {
        calls: Calls::LAUNCHES,
        activities: Activities::of(&[Activity::Kernel]),
        details: Details::of(&[Detail::Marker]),
        ..Default::default()
    };
    let window = Arc::new(Window::new(5));
    let run = RunOrder { mappings: true, window, conflict: 1, gpus: "1".into(), ..run_order(wanted) };
    let arming = Arming { run: &run, first: &Demand::default(), way: DeviceWay::Twin };
    let mut region = target.arm(&arming, 3, None).unwrap().region;
    let (arm, memory) = hear(&collector);
    let bits = demand::LAUNCHES | demand::KERNELS | demand::MAPPINGS;
    assert_eq!(
        (arm.kind, arm.words),
        (message::ARM, [bits, 2, 65_536, 100, 3, 5, 1, demand::MAPPINGS]),
        "no marker without a tag array"
    );

    say(&collector, &Message::new(message::ARMED, &[250], "a note"));
    assert!(matches!(target.poll(), Some(Notice::Armed { micros: 250, notes }) if notes == ["a note"]));

    let memory = memory.unwrap();
    // SAFETY: the region has this size; the test maps it once and never unmaps it.
    let (control, mut writer) = unsafe {
        let at =
            libc::mmap(std::ptr::null_mut(), SHAPE.size(), 3, libc::MAP_SHARED, memory.as_raw_fd(), 0).cast::<u8>();
        let header = at.add(SHAPE.ring_offset(0));
        (&*at.cast::<Control>(), Writer::new(header.cast::<RingHeader>(), header.add(PAGE), SHAPE.ring_bytes))
    };
    assert_eq!(control.armed.load(Ordering::Relaxed), 1);
    control.rings_claimed.store(1, Ordering::Relaxed);
    control.totals.call(Call::Graph).made.store(1, Ordering::Relaxed);
    control.lost[0].store(4, Ordering::Relaxed);
    assert!(writer.write(size_of_record::<Launch>(0), |out| record::encode(kind::LAUNCH, &launch(1, 5), &[], out)));
    let marks = region.marks();
    let rings = region.drain(&marks);
    assert_eq!(rings.len(), 1);
    let totals = region.totals();
    assert_eq!((totals.launches(), totals.lost[0], totals.broken_rings), (1, 4, 0));
    let (mut pipeline, mut sink) = (pipeline(kernel_plan()), Recorder::default());
    pipeline.feed(ProcessIndex(0), &rings, &mut sink);
    assert_eq!(pipeline.in_flight(), 1);

    // Nonsense written by a target loses only its own data.
    control.rings_claimed.store(u32::MAX, Ordering::Relaxed);
    // SAFETY: inside the mapping of the second ring.
    let second = unsafe { &*((control as *const Control).cast::<u8>().add(SHAPE.ring_offset(1)).cast::<RingHeader>()) };
    second.written.store(u64::MAX - 7, Ordering::Relaxed);
    let marks = region.marks();
    assert_eq!(region.drain(&marks).iter().map(Vec::len).sum::<usize>(), 0);
    assert_eq!(region.totals().broken_rings, 1);

    target.disarm();
    assert_eq!(hear(&collector).0.kind, message::DISARM);
    say(&collector, &Message::new(message::BYE, &[], ""));
    assert!(matches!(target.poll(), Some(Notice::Bye { notes }) if notes.is_empty()));
    drop(collector);
    assert!(matches!((target.poll(), target.poll()), (Some(Notice::Closed), None)));
    drop(region);
    assert_eq!(control.armed.load(Ordering::Relaxed), 0, "whoever still looks sees that nobody reads");
}

/// However busy other threads are.
#[test]
fn no_flush_is_read_before_what_precedes_it_in_other_rings() {
    let listener = Listener::new(None).unwrap();
    let collector = connect(listener.value());
    say(&collector, &hello());
    let mut target = next(&listener).expect("a collector");
    // The more rings, the more can be written while they are looked at.
    let shape = DEFAULT_SHAPE;
    let demand = Demand { activities: Activities::of(&[Activity::Kernel]), ..Default::default() };
    let run = RunOrder { shape, ..run_order(demand) };
    let arming = Arming { run: &run, first: &demand, way: DeviceWay::Twin };
    let mut region = target.arm(&arming, 3, None).unwrap().region;
    let memory = hear(&collector).1.unwrap();
    // SAFETY: as above.
    let (control, [mut activities, mut flushes]) = unsafe {
        let at =
            libc::mmap(std::ptr::null_mut(), shape.size(), 3, libc::MAP_SHARED, memory.as_raw_fd(), 0).cast::<u8>();
        let writer = |ring| {
            let header = at.add(shape.ring_offset(ring));
            Writer::new(header.cast::<RingHeader>(), header.add(PAGE), shape.ring_bytes)
        };
        (&*at.cast::<Control>(), [writer(0), writer(shape.rings - 1)])
    };
    control.rings_claimed.store(shape.rings, Ordering::Relaxed);
    const LAST: u64 = 2_000;
    let writing = std::thread::spawn(move || {
        let mut write = |n: u64| {
            let body = kernel(n as u32, n, n + 1);
            let len = size_of_record::<Kernel>(0);
            while !activities.write(len, |out| record::encode(kind::KERNEL, &body, &[], out)) {}
        };
        for n in 1..=LAST {
            for _ in 0..1_000 {
                write(n);
                // Slower than it is read, so that it never waits, and no two looks find the same.
                (0..8).for_each(|_| std::hint::spin_loop());
            }
            control.totals.flushes.fetch_add(1, Ordering::SeqCst);
            let flush = Flush { began: n, last: 0 };
            while !flushes.write(size_of_record::<Flush>(0), |out| record::encode(kind::FLUSH, &flush, &[], out)) {}
        }
    });
    let (mut newest, mut flushed) = (0, 0);
    while flushed < LAST {
        let marks = region.marks();
        for ring in region.drain(&marks) {
            for it in record::records(&ring).map_while(Result::ok) {
                match it {
                    Record::Activity(ActivityRecord::Kernel(it)) => newest = newest.max(u64::from(it.correlation)),
                    Record::Flush(it) => flushed = flushed.max(it.began),
                    _ => {}
                }
            }
        }
        assert!(newest >= flushed, "flush {flushed} came before its kernels: {newest}");
    }
    writing.join().unwrap();
}

/// What is asked for at every moment of a run.
fn run_order(demand: Demand) -> RunOrder {
    RunOrder {
        demand,
        is_switched: false,
        mappings: false,
        shape: SHAPE,
        window: Arc::default(),
        conflict: 0,
        gpus: String::new(),
        device: None,
    }
}

/// Arms for device code.
fn arm_device(target: &mut Collector, block: DeviceBlock) -> SharedMemory {
    let run = RunOrder { device: Some(block), ..run_order(Demand::default()) };
    let arming = Arming { run: &run, first: &Demand::default(), way: DeviceWay::Twin };
    target.arm(&arming, 0, None).unwrap()
}

/// Returns memory that can't shrink, with these contents.
fn sealed_memory(bytes: &[u8]) -> File {
    // SAFETY: a C string and numbers; the new descriptor is ours.
    let mut memory = unsafe {
        let fd = libc::memfd_create(c"image".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0 && libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) == 0);
        File::from_raw_fd(fd)
    };
    memory.write_all(bytes).unwrap();
    memory
}

#[test]
fn an_image_is_answered_with_a_twin() {
    let listener = Listener::new(None).unwrap();
    let collector = connect(listener.value());
    let capabilities = demand::STACKS | demand::DEVICE;
    let words = [xputrace_wire::VERSION.into(), std::process::id().into(), 130_001, capabilities];
    say(&collector, &Message::new(message::HELLO, &words, ""));
    let mut target = next(&listener).expect("a collector");
    let block = DeviceBlock { initial: vec![1; 16], ..DeviceBlock::default() };
    let shared = arm_device(&mut target, block);
    assert!(shared.device.is_some());
    let (arm, _) = hear(&collector);
    assert_eq!((arm.words[0], arm.text.split('\n').nth(3)), (demand::DEVICE, Some("16")));

    let ptx = PortableCode {
        codec: Codec::Plain,
        portability: Portability::Later,
        sm: 90,
        text_bytes: 4,
        stored: b"text".as_slice().into(),
    };
    let bytes = encode_image(&[ptx]);
    let memory = sealed_memory(&bytes);
    say_with(&collector, &Message::new(message::IMAGE, &[7, 1, bytes.len() as u64], ""), memory.as_raw_fd());
    let Some(Notice::Image(image)) = target.poll() else { panic!("no image") };
    let modules =
        |it: &LoadedCode<'_>| if let LoadedCode::Portable(all) = it { encode_image(all) } else { panic!("{it:?}") };
    assert_eq!((image.number, image.read(modules).unwrap()), (7, bytes));

    let (kernels, choices) = (vec!["scale".into()], vec![Choice::default()]);
    let code = DeviceCode::Twins(vec![Twin { code: b"code".to_vec(), kernels, choices, ..Twin::default() }; 2]);
    for (woven, status) in [
        (Woven::Nothing, twin_status::NOTHING),
        (Woven::Failed, twin_status::FAILED),
        (Woven::TooMany, twin_status::TOO_MANY),
        (Woven::NoPortableCode, twin_status::NO_PORTABLE_CODE),
        (Woven::Code(code.clone()), twin_status::WOVEN),
    ] {
        target.answer(7, &woven);
        let (answer, memory) = hear(&collector);
        assert_eq!((answer.kind, answer.words[..2].to_vec()), (message::TWIN, vec![7, status]));
        let Some(memory) = memory else { continue };
        let mut bytes = vec![0; answer.words[2] as usize];
        File::from(memory).read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(DeviceCode::decode(&bytes).as_ref(), Some(&code));
    }
    target.read_device(3, CopyExtent::Ring);
    let (request, _) = hear(&collector);
    assert_eq!((request.kind, request.words[..2].to_vec()), (message::READ_DEVICE, vec![3, CopyExtent::Ring as u64]));
}

#[test]
fn a_collector_without_device_code_is_not_asked_for_it() {
    let listener = Listener::new(None).unwrap();
    let collector = connect(listener.value());
    say(&collector, &hello());
    let mut target = next(&listener).expect("a collector");
    let block = DeviceBlock { initial: vec![1; 16], ..DeviceBlock::default() };
    let shared = arm_device(&mut target, block);
    assert!(shared.device.is_none());
    assert_eq!(hear(&collector).0.words[0] & demand::DEVICE, 0);
}

#[test]
fn a_collector_of_another_version_is_named_and_strangers_are_dropped() {
    let listener = Listener::new(None).unwrap();
    let silent = connect(listener.value());
    drop(silent);
    let other = connect(listener.value());
    say(&other, &Message::new(message::HELLO, &[99, 5], ""));
    let target = next(&listener).expect("a collector");
    assert!(target.refusal.as_ref().unwrap().ends_with("speaks version 99 of the wire format"));
    target.leave_dormant();
    assert_eq!(hear(&other).0.kind, message::DORMANT);
}

/// Waits for `n` arrivals of an acceptor.
fn arrivals(acceptor: &Acceptor, n: usize) -> Vec<Arrival> {
    let mut all = Vec::new();
    while all.len() < n {
        let mut poll = libc::pollfd { fd: acceptor.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live entry.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, 60_000) }, 1, "{} of {n} arrivals", all.len());
        all.extend(acceptor.arrivals());
    }
    all
}

fn order(is_target: fn(u32) -> bool) -> Order {
    let demand = Demand { calls: Calls::LAUNCHES, ..Default::default() };
    Order {
        run: run_order(demand),
        now: Arc::default(),
        tags: None,
        ways: Ways::Given(DeviceWay::Twin),
        is_target: Box::new(is_target),
    }
}

#[test]
fn silent_peers_hold_up_nobody() {
    let listener = Listener::new(None).unwrap();
    let value = listener.value().to_owned();
    let silent: Vec<OwnedFd> = (0..100).map(|_| connect(&value)).collect();
    let collectors: Vec<OwnedFd> = (0..20).map(|_| connect(&value)).collect();
    collectors.iter().for_each(|it| say(it, &hello()));
    let acceptor = Acceptor::start(listener, order(|_| true)).unwrap();
    let armed = arrivals(&acceptor, 20);
    let mut indices: Vec<u32> =
        armed.iter().map(|it| if let Arrival::Armed(it) = it { it.index } else { 99 }).collect();
    indices.sort_unstable();
    assert_eq!(indices, (0..20).collect::<Vec<_>>());
    for it in &collectors {
        assert_eq!([hear(it).0.kind, hear(it).0.kind], [message::COMING, message::ARM]);
    }
    assert_eq!(hear(&silent[99]).0.kind, message::COMING, "a tracer is there");
}

/// Chooses patches once it is let go, but twins at once for a process that can't be patched.
struct Patient(Mutex<Receiver<()>>);

impl ChooseWay for Patient {
    fn at_once(&self, process: &Newcomer) -> Option<Chosen> {
        process.no_patches.clone().map(|why| Chosen { way: DeviceWay::Twin, note: Some(why) })
    }

    fn by_files(&self, _: &Newcomer) -> Chosen {
        let _ = self.0.lock().unwrap().recv();
        Chosen { way: DeviceWay::Patch, note: None }
    }
}

#[test]
fn a_process_waits_until_its_way_is_chosen_and_holds_up_nobody() {
    let (let_go, gate) = channel();
    let listener = Listener::new(None).unwrap();
    let says = |can_patch: u64, text: &str| {
        let words = [xputrace_wire::VERSION.into(), std::process::id().into(), 130_001, demand::DEVICE, can_patch];
        let collector = connect(listener.value());
        say(&collector, &Message::new(message::HELLO, &words, text));
        collector
    };
    let patched = says(1, "libcupti.so.13\n");
    let other = says(0, "libcupti.so.13\nno Sanitizer API");
    let ways = Ways::Chosen(Arc::new(Patient(Mutex::new(gate))));
    let device = Some(DeviceBlock { initial: vec![1; 16], ..DeviceBlock::default() });
    let order = order(|_| true);
    let run = RunOrder { device, ..order.run };
    let acceptor = Acceptor::start(listener, Order { ways, run, ..order }).unwrap();
    let arrived = |arrival: &Arrival| match arrival {
        Arrival::Armed(it) => (it.index, it.chosen.clone()),
        _ => panic!("not armed"),
    };
    let twins = Chosen { way: DeviceWay::Twin, note: Some("no Sanitizer API".into()) };
    assert_eq!(arrived(&arrivals(&acceptor, 1)[0]), (0, twins));
    let_go.send(()).unwrap();
    assert_eq!(arrived(&arrivals(&acceptor, 1)[0]), (1, Chosen { way: DeviceWay::Patch, note: None }));
    let is_patched = |order: &Message| order.words[0] & demand::PATCHES != 0;
    let heard = [hear(&patched).0, hear(&patched).0, hear(&patched).0];
    assert_eq!(heard.each_ref().map(|it| it.kind), [message::COMING, message::COMING, message::ARM]);
    assert!(is_patched(&heard[2]));
    let heard = [hear(&other).0, hear(&other).0];
    assert_eq!((heard[1].kind, is_patched(&heard[1])), (message::ARM, false));
}

#[test]
fn a_process_that_still_waits_at_the_end_stays_dormant() {
    let (_let_go, gate) = channel::<()>();
    let listener = Listener::new(None).unwrap();
    let collector = connect(listener.value());
    let words = [xputrace_wire::VERSION.into(), std::process::id().into(), 130_001, demand::DEVICE, 1];
    say(&collector, &Message::new(message::HELLO, &words, "libcupti.so.13\n"));
    let ways = Ways::Chosen(Arc::new(Patient(Mutex::new(gate))));
    let mut acceptor = Acceptor::start(listener, Order { ways, ..order(|_| true) }).unwrap();
    assert_eq!([hear(&collector).0.kind, hear(&collector).0.kind], [message::COMING, message::COMING]);
    acceptor.stop();
    assert_eq!(hear(&collector).0.kind, message::DORMANT);
    assert!(matches!(&arrivals(&acceptor, 1)[..], [Arrival::Missed(it)] if it.why == Why::Undecided));
}

#[test]
fn a_process_of_the_target_that_leaves_before_it_was_armed_is_told_of() {
    let listener = Listener::new(None).unwrap();
    drop(connect(listener.value()));
    let acceptor = Acceptor::start(listener, order(|pid| pid == std::process::id())).unwrap();
    let missed = arrivals(&acceptor, 1).into_iter().next();
    let Some(Arrival::Missed(Missed { peer, why, .. })) = missed else { panic!("nothing was missed") };
    assert_eq!((peer.pid, why), (std::process::id(), Why::Left));
}

#[test]
fn nobody_is_let_in_after_the_end() {
    let listener = Listener::new(None).unwrap();
    let value = listener.value().to_owned();
    let first = connect(&value);
    say(&first, &hello());
    let mut acceptor = Acceptor::start(listener, order(|_| true)).unwrap();
    let before = arrivals(&acceptor, 1);
    acceptor.stop();
    assert_eq!((before.len(), acceptor.arrivals().count()), (1, 0));
    let path = value.split_once(':').unwrap().1;
    assert!(!std::path::Path::new(path).exists());
}
