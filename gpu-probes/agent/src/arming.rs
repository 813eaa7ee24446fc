//! Arming: a process meets a tracer, learns what is wanted, and begins to record; or it stays dormant.
//!
//! ```text
//! begin (the GPU's library starts) ─┐
//! answer_tracer (a tracer attaches) ┴─▶ arm ─▶ HELLO ─▶ ARM: map the memory, start the backend, ARMED
//!                                        └─▶ DORMANT, or nobody there: one blocked thread (dormant)
//! ```

use crate::agent::{self, Agent, Setup};
use crate::backend::{ArmRefusal, Backend};
use crate::beginning::recordable;
use crate::device::DeviceRegion;
use crate::region::{Region, Tags};
use crate::rendezvous::{Received, Socket, Trust};
use crate::state::selection::Selection;
use crate::state::switching::Order;
use crate::state::yielding::Conflict;
use crate::vendor::{Came, Vendor, World};
use crate::{control, dormant, seccomp};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};
use xputrace_wire::api::Functions;
use xputrace_wire::calls::{CALLS, DEVICE_CALLS};
use xputrace_wire::device;
use xputrace_wire::message::{ARM, ARMED, COMING, DORMANT, HELLO, Message, REFUSED, demand};
use xputrace_wire::region::RegionShape;
use xputrace_wire::{Answer, COLLECTORS_THREAD, INJECTION_VARIABLE, SOCKET_VARIABLE, VERSION};

/// How long the program waits for a tracer when its GPU library starts.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// How long it waits for a tracer once that has said that it is coming: many programs may start at once, and it may look at
/// this one's kernels first.
const ORDER_WITHIN: Duration = Duration::from_secs(10);

/// Whose GPUs this process uses: what looks for libraries when a tracer comes.
static VENDOR: OnceLock<&'static dyn Vendor> = OnceLock::new();

/// Connects this process to the tracer that the environment names, or leaves it dormant. Called when the vendor's library
/// starts, before any context exists; `chained` says what came of a tool that was to be loaded in our place. Returns when this
/// process is armed or dormant.
pub fn begin(vendor: &'static dyn Vendor, chained: Option<String>) {
    let armed = match std::env::var(SOCKET_VARIABLE) {
        Ok(address) => match seccomp::deadly_call(CALLS) {
            None => arm_from_system(vendor, &address, Trust::RootAndThisUser, Came::AtInit { chained }),
            Some(call) => {
                seccomp::tell(call, &std::env::var_os(INJECTION_VARIABLE).unwrap_or_default());
                Err(Dormant::NotWanted)
            }
        },
        Err(_) => Err(Dormant::NotWanted),
    };
    if armed.is_err() {
        wait_for_tracers(vendor);
    }
}

/// Starts a thread that waits for tracers, unless one does.
fn wait_for_tracers(vendor: &'static dyn Vendor) {
    register_fork_handler();
    VENDOR.get_or_init(|| vendor);
    dormant::begin(answer_waiting);
}

/// Waits on the calling thread, where a run has ended and the program goes on.
fn wait_for_another_tracer() {
    dormant::wait(answer_waiting);
}

/// Answers a tracer that has called the thread of a dormant process.
fn answer_waiting(address: &str) -> Answer {
    VENDOR.get().map_or(Answer::Refused, |vendor| answer_tracer(*vendor, address))
}

/// Arms for the tracer at `address`. Whoever gives it has shown that this process is theirs: they could write its
/// memory, or are its user. In a user namespace, root outside has no id by which to know it.
pub fn answer_tracer(vendor: &'static dyn Vendor, address: &str) -> Answer {
    match arm_from_system(vendor, address, Trust::Anyone, Came::Later) {
        Ok(()) => Answer::Armed,
        Err(Dormant::AlreadyArmed) => Answer::Busy(agent::current().map_or(0, |it| it.socket.tracer())),
        Err(Dormant::NoTracer(_)) => Answer::NoTracer,
        Err(Dormant::NotWanted | Dormant::Refused(_)) => Answer::Refused,
    }
}

fn arm_from_system(vendor: &'static dyn Vendor, address: &str, trust: Trust, came: Came) -> Result<(), Dormant> {
    VENDOR.get_or_init(|| vendor);
    arm(address, trust, || vendor.world(came))
}

/// Why this process stays dormant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dormant {
    /// This process is already armed by a run.
    AlreadyArmed,
    /// The socket has no listener, or one of the wrong user; the text says which.
    NoTracer(String),
    /// The tracer wants nothing from this process, or did not answer in time.
    NotWanted,
    /// The tracer was told.
    Refused(ArmRefusal),
}

/// Ensures one armed run at a time, and one caller that arms.
static ARMING: AtomicBool = AtomicBool::new(false);

/// Connects to the tracer at `address`, if it may be trusted, and arms what it requests. Calls `world` only if there is
/// a tracer.
///
/// # Errors
/// Why the process stays dormant.
pub fn arm(address: &str, trust: Trust, world: impl FnOnce() -> World) -> Result<(), Dormant> {
    register_fork_handler();
    if ARMING.swap(true, Ordering::Acquire) {
        return Err(Dormant::AlreadyArmed);
    }
    let armed = if agent::current().is_some() { Err(Dormant::AlreadyArmed) } else { meet(address, trust, world) };
    ARMING.store(false, Ordering::Release);
    armed
}

fn meet(address: &str, trust: Trust, world: impl FnOnce() -> World) -> Result<(), Dormant> {
    let socket = Socket::connect(address, trust, ANSWER_WITHIN)
        .map_err(|error| Dormant::NoTracer(format!("{address}: {error}")))?;
    let world = world();
    let backend = world.backend.as_deref();
    let (version, capabilities) = backend.map_or((0, 0), |it| (it.version(), recordable(it)));
    let can_patch = world.patches.is_some() && world.no_patches.is_none();
    let (pid, can_patch) = (u64::from(std::process::id()), u64::from(can_patch));
    let hello = [u64::from(VERSION), pid, u64::from(version), capabilities, can_patch];
    let no_patches = world.no_patches.as_deref().unwrap_or_default();
    socket.send(&Message::new(HELLO, &hello, format!("{}\n{no_patches}", world.library)));
    let (order, descriptors) = wait_for_order(&socket)?;
    let began = Instant::now();
    let notes = world.chained.clone().unwrap_or_default();
    match prepare(&order, descriptors, world, socket) {
        Ok(setup) => start(setup, began, &notes),
        Err((refusal, socket)) => Err(refuse(&socket, refusal, &notes)),
    }
}

fn wait_for_order(socket: &Socket) -> Result<(Message, Vec<OwnedFd>), Dormant> {
    let mut until = Instant::now() + ANSWER_WITHIN;
    loop {
        match socket.receive(until.saturating_duration_since(Instant::now())) {
            Received::Message(order, _) if order.kind == COMING => until = Instant::now() + ORDER_WITHIN,
            Received::Message(order, descriptors) if order.kind == ARM => return Ok((order, descriptors)),
            Received::Message(order, _) if order.kind == DORMANT => return Err(Dormant::NotWanted),
            Received::Closed => return Err(Dormant::NotWanted),
            Received::Nothing if Instant::now() >= until => return Err(Dormant::NotWanted),
            Received::Message(..) | Received::Nothing => {}
        }
    }
}

/// An order, taken apart.
struct Asked<'a> {
    demand: u64,
    first_demand: u64,
    shape: RegionShape,
    flush_period: Duration,
    window: u64,
    conflict: Conflict,
    api: &'a str,
    gpus: &'a str,
    first_api: &'a str,
    blocks: &'a str,
    arrays: &'a str,
}

/// The tracer's memory, mapped here.
struct Mapped {
    region: Region,
    tags: Option<Tags>,
    device: Option<DeviceRegion>,
}

/// What an order takes of this process.
struct Prepared {
    backend: Box<dyn Backend>,
    memory: Mapped,
    most: Order,
    first: Order,
}

/// Checks the order, finds what is to record, and maps the memory.
fn prepare(
    order: &Message,
    descriptors: Vec<OwnedFd>,
    world: World,
    socket: Socket,
) -> Result<Setup, (ArmRefusal, Socket)> {
    let asked = Asked::of(order);
    let ranges = world.ranges;
    match asked.prepare(&descriptors, world) {
        Ok(Prepared { backend, memory: Mapped { region, tags, device }, most, first }) => Ok(Setup {
            backend,
            most,
            first,
            flush_period: asked.flush_period,
            window: asked.window,
            conflict: asked.conflict,
            selection: Selection::of(asked.gpus),
            region,
            tags,
            device,
            socket,
            ranges,
        }),
        Err(why) => Err((ArmRefusal::from(why), socket)),
    }
}

impl<'a> Asked<'a> {
    fn of(order: &'a Message) -> Self {
        let [demand, rings, ring_bytes, flush_millis, _, window, conflict, first] = order.words;
        let mut lines = order.text.split('\n');
        let [api, gpus, first_api, blocks, arrays] = [(); 5].map(|()| lines.next().unwrap_or_default());
        Asked {
            demand,
            first_demand: first & demand,
            shape: RegionShape {
                rings: u32::try_from(rings).unwrap_or(0),
                ring_bytes: u32::try_from(ring_bytes).unwrap_or(0),
            },
            flush_period: Duration::from_millis(flush_millis.clamp(1, 60_000)),
            window,
            conflict: Conflict::of_word(conflict),
            api,
            gpus,
            first_api,
            blocks,
            arrays,
        }
    }

    fn wants(&self, what: u64) -> bool {
        self.demand & what != 0
    }

    fn prepare(&self, descriptors: &[OwnedFd], world: World) -> Result<Prepared, String> {
        self.refuse_what_is_deadly(world.no_patches.as_deref())?;
        let backend = self.find_backend(world)?;
        let memory = self.map(descriptors)?;
        let most = order_of(self.demand, self.api)?;
        let first = order_of(self.first_demand, self.first_api)?;
        Ok(Prepared { backend, memory, most, first })
    }

    /// Refuses what may end the process, before any of it is tried.
    fn refuse_what_is_deadly(&self, no_patches: Option<&str>) -> Result<(), String> {
        let no_patches = no_patches.filter(|_| self.wants(demand::PATCHES)).map(str::to_owned);
        let no_device =
            || self.wants(demand::DEVICE).then(|| seccomp::refusal(DEVICE_CALLS, "device handlers take")).flatten();
        no_patches.or_else(no_device).map_or(Ok(()), Err)
    }

    /// Returns what records all that is asked for.
    fn find_backend(&self, world: World) -> Result<Box<dyn Backend>, String> {
        let backend = match world.patches.filter(|_| self.wants(demand::PATCHES)) {
            Some(find) => find()?,
            None => world.backend.ok_or(world.library)?,
        };
        match self.demand & !recordable(backend.as_ref()) {
            0 => Ok(backend),
            beyond => Err(format!("the GPU's library cannot record everything requested (demand {beyond:#x})")),
        }
    }

    /// Maps the region, the tags behind it where they are asked for, and the device region behind those.
    fn map(&self, descriptors: &[OwnedFd]) -> Result<Mapped, String> {
        let mut descriptors = descriptors.iter().map(AsFd::as_fd);
        let mut next = |what: &str| descriptors.next().ok_or_else(|| format!("the tracer sent no {what}"));
        let region = Region::map(next("region")?, self.shape)?;
        let tags = match self.wants(demand::MARKER) {
            true => Some(Tags::map(next("tag array")?, self.shape.rings)?),
            false => None,
        };
        let device = match self.wants(demand::DEVICE) {
            true => Some(self.map_device(next("device region")?, descriptors.collect())?),
            false => None,
        };
        Ok(Mapped { region, tags, device })
    }

    /// Maps the memory with the blocks, and the arrays, which come behind it.
    fn map_device(&self, memory: BorrowedFd<'_>, arrays: Vec<BorrowedFd<'_>>) -> Result<DeviceRegion, String> {
        let shape = device::DeviceRegionShape::of_text(self.blocks)
            .ok_or_else(|| format!("the tracer sent \"{}\" as a block's size", self.blocks))?;
        let places = device::ArrayPlace::all_of_text(self.arrays)
            .ok_or_else(|| format!("the tracer sent \"{}\" as a list of arrays", self.arrays))?;
        if arrays.len() < places.len() {
            return Err(format!("the tracer sent {} of {} arrays", arrays.len(), places.len()));
        }
        let arrays: Vec<_> = places.into_iter().zip(arrays).collect();
        DeviceRegion::map(memory, shape, &arrays)
    }
}

fn order_of(demand: u64, api: &str) -> Result<Order, String> {
    let api = Functions::of_text(api).ok_or("the tracer sent a malformed list of functions")?;
    Ok(Order { demand, api })
}

fn start(setup: Setup, began: Instant, notes: &str) -> Result<(), Dormant> {
    let socket = setup.socket.try_clone();
    let agent = match Agent::arm(setup) {
        Ok(agent) => agent,
        Err(refusal) => return Err(refuse_by(socket.as_ref(), refusal, notes)),
    };
    let keeps_socket = match control::start(agent, wait_for_another_tracer) {
        Ok(keeps_socket) => keeps_socket,
        Err(error) => {
            agent.abandon();
            let refusal = ArmRefusal::from(format!("starting the thread \"{}\": {error}", COLLECTORS_THREAD));
            return Err(refuse(&agent.socket, refusal, notes));
        }
    };
    // Registered after the backend's own handlers, so that it runs before them.
    register_exit_handler();
    let micros = began.elapsed().as_micros() as u64;
    let python = agent.newly_unsupported_python();
    let first = Some(notes.to_owned()).filter(|it| !it.is_empty());
    let notes: Vec<String> = first.into_iter().chain(python).chain(agent.take_notes()).collect();
    agent.socket.send(&Message::new(ARMED, &[micros], notes.join("\n")));
    if keeps_socket {
        agent.socket.close_number();
    }
    Ok(())
}

fn refuse_by(socket: Option<&Socket>, refusal: ArmRefusal, notes: &str) -> Dormant {
    match socket {
        Some(socket) => refuse(socket, refusal, notes),
        None => Dormant::Refused(refusal),
    }
}

fn refuse(socket: &Socket, refusal: ArmRefusal, notes: &str) -> Dormant {
    let text = if notes.is_empty() { refusal.text.clone() } else { format!("{}\n{notes}", refusal.text) };
    socket.send(&Message::new(REFUSED, &[u64::from(refusal.result)], text));
    Dormant::Refused(refusal)
}

fn register_fork_handler() {
    static ONCE: Once = Once::new();
    // SAFETY: a function of this library, which is never unloaded.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_forked_child));
    });
}

/// Runs first in a forked child.
unsafe extern "C" fn in_forked_child() {
    // The thread that was arming is the parent's.
    ARMING.store(false, Ordering::Release);
    agent::in_forked_child();
    dormant::in_forked_child();
}

fn register_exit_handler() {
    static ONCE: Once = Once::new();
    // SAFETY: as above.
    ONCE.call_once(|| unsafe {
        libc::atexit(agent::at_process_exit);
    });
}
