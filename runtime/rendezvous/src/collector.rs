//! A process whose collector has said hello: its order, and its notices.

use super::device::{DeviceBlock, DeviceRegion, LoadedImage, memory_with};
use super::error::{RendezvousError, failed};
use super::region::{Region, sealed_memory};
use super::socket::{Peer, Received, receive, send};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use xputrace_boundary::read::of_linux;
use xputrace_model::plan::{Demand, Detail, DeviceWay};
use xputrace_render::one_line;
use xputrace_wire::api::with_names;
use xputrace_wire::device::{ArrayPlace, CopyExtent, MOST_IMAGE_BYTES, Woven, twin_status};
use xputrace_wire::message::{self, Message, demand, window};
use xputrace_wire::region::RegionShape;
use xputrace_wire::status::innermost_id;
use xputrace_wire::vendor::Vendor;

/// How often an armed collector flushes the buffers of the vendor's library.
pub const FLUSH_MILLIS: u64 = 100;

/// A process whose collector has said hello.
#[derive(Debug)]
pub struct Collector {
    socket: OwnedFd,
    pub peer: Peer,
    /// As the target sees it.
    pub pid_in_target: u32,
    pub vendor: Vendor,
    /// Version of the vendor's library that tells of activities; 0 if none was found.
    pub library_version: u32,
    /// Bits of `message::demand` that the collector supports.
    pub capabilities: u64,
    /// Path of that library, or why there is none.
    pub library: String,
    /// Why its machine code can't be patched, if it can't.
    pub no_patches: Option<String>,
    /// Why it cannot be armed: another version of the collector. Such a target stays dormant.
    pub refusal: Option<String>,
    hearing: Hearing,
    /// Lives as long as this.
    presence: Arc<()>,
}

/// Whether a process is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hearing {
    Open,
    /// Its queue was full when something was sent, which [`Collector::poll`] is still to say.
    Deaf,
    /// Nothing more is heard of it.
    Over,
}

/// What a run asks of every collector.
#[derive(Debug)]
pub struct RunOrder {
    /// Everything that may be asked for during the run.
    pub demand: Demand,
    /// Whether what is recorded may change.
    pub is_switched: bool,
    /// Whether collectors should send their lists of executable mappings.
    pub mappings: bool,
    pub shape: RegionShape,
    /// When collectors record.
    pub window: Arc<Window>,
    /// What collectors do when another tool uses the vendor's library: one of `message::conflict`.
    pub conflict: u64,
    /// The GPUs whose launches are recorded, as in `message::ARM`.
    pub gpus: String,
    /// What device memory is like at first, if the run has device code.
    pub device: Option<DeviceBlock>,
}

/// What one collector is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Arming<'a> {
    pub run: &'a RunOrder,
    /// What is recorded at first.
    pub first: &'a Demand,
    /// How device code gets into kernels.
    pub way: DeviceWay,
}

/// The memory shared with a target.
#[derive(Debug)]
pub struct SharedMemory {
    pub region: Region,
    /// If the run has device code, and the target's collector can put it into kernels.
    pub device: Option<DeviceRegion>,
}

/// When collectors record; shared with the thread that arms them.
#[derive(Debug, Default)]
pub struct Window {
    conditions: u64,
    /// Whether LATER no longer needs to be waited for.
    has_begun: AtomicBool,
}

impl Window {
    /// Creates a window with these conditions, all of which must hold; none is always.
    pub fn new(conditions: u64) -> Self {
        Window { conditions, has_begun: AtomicBool::new(false) }
    }

    /// Lets processes that are armed from now on record at once; those before need [`Collector::record`].
    pub fn begin(&self) {
        self.has_begun.store(true, Ordering::SeqCst);
    }

    /// Whether a process may have been told to wait for what has happened meanwhile.
    pub fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::SeqCst)
    }

    fn bits(&self) -> u64 {
        if self.has_begun() { self.conditions & !window::LATER } else { self.conditions }
    }
}

/// What a collector sends after it was armed.
#[derive(Debug)]
pub enum Notice {
    /// It records; `micros` is how long arming took. Notes are for the user.
    Armed { micros: u64, notes: Vec<String> },
    /// It does not record. Has the vendor's result code (0 for other failures), what was attempted, and
    /// the answer.
    Refused { code: u64, reason: String },
    /// The program has loaded code; [`Collector::answer`] lets it go on.
    Image(LoadedImage),
    /// The last flush is done.
    Bye { notes: Vec<String> },
    /// Something that this version does not know.
    Unknown,
    /// It does not read what we send. Nothing more is sent or heard.
    Deaf,
    /// The process has ended.
    Closed,
}

impl Collector {
    pub(super) fn new(socket: OwnedFd, peer: Peer, hello: Message) -> Self {
        let version = hello.words[0];
        let (library, no_patches) = hello.text.split_once('\n').unwrap_or((&hello.text, ""));
        let vendor = Vendor::numbered(hello.words[5]);
        let refusal = match vendor {
            _ if version != u64::from(xputrace_wire::VERSION) => {
                Some(format!("speaks version {version} of the wire format"))
            }
            None => Some("is for a vendor's GPUs that are not known".into()),
            Some(_) => None,
        };
        let refusal = refusal.map(|it: String| format!("the collector in process {} {it}", peer.pid));
        Collector {
            socket,
            peer,
            pid_in_target: hello.words[1] as u32,
            vendor: vendor.unwrap_or_default(),
            library_version: hello.words[2] as u32,
            capabilities: hello.words[3],
            library: library.to_owned(),
            no_patches: (hello.words[4] == 0).then(|| one_line(no_patches)),
            refusal,
            hearing: Hearing::Open,
            presence: Arc::default(),
        }
    }

    /// Creates the shared memory, and asks the collector to record into it.
    ///
    /// `tags` is the tag array if the demand has a launch marker.
    ///
    /// # Errors
    /// The memory cannot be created, or the target is gone.
    pub fn arm(
        &mut self,
        order: &Arming<'_>,
        process_index: u32,
        tags: Option<RawFd>,
    ) -> Result<SharedMemory, RendezvousError> {
        let Arming { run, first, way } = *order;
        let RunOrder { demand: most, is_switched, mappings, shape, window, conflict, gpus, device } = run;
        let shape = *shape;
        let context = |what: &str| format!("{what} for process {}", self.peer.pid);
        let shared = |verb: &str| context(&format!("{verb} {} MiB of shared memory", shape.size() >> 20));
        let memory = sealed_memory(shape.size()).map_err(|it| failed(shared("make"), it))?;
        let region = Region::map(&memory, shape).map_err(|it| failed(shared("map"), it))?;
        let device = device.as_ref().filter(|_| self.capabilities & demand::DEVICE != 0);
        let arrays = device.map_or(&[][..], |it| &it.arrays);
        let patches = device.is_some() && way == DeviceWay::Patch;
        let gives_arguments = patches && device.is_some_and(|it| it.reads_arguments);
        let device =
            device.map(|it| DeviceRegion::new(it, patches && most.has(Detail::PatchedKernels), self.pid_in_target));
        let device = device.transpose().map_err(|it| failed(context("make device memory"), it))?;
        let possible = if tags.is_some() { u64::MAX } else { !demand::MARKER };
        let [bits, first_bits] = [most, first].map(|it| demand_bits(it, *mappings) & possible);
        let of_run = [
            (*is_switched, demand::SWITCHED),
            (device.is_some(), demand::DEVICE),
            (patches, demand::PATCHES),
            (patches && most.has(Detail::PatchedKernels), demand::PATCHED_KERNELS),
            (gives_arguments, demand::ARGUMENTS),
        ];
        let bits = of_run.into_iter().filter(|it| it.0).fold(bits, |bits, it| bits | it.1);
        let (rings, ring_bytes) = (shape.rings.into(), shape.ring_bytes.into());
        let index = process_index.into();
        let words = [bits, rings, ring_bytes, FLUSH_MILLIS, index, window.bits(), *conflict, first_bits];
        let fds = [Some(memory.as_raw_fd()), tags, device.as_ref().map(DeviceRegion::fd)];
        let fds: Vec<RawFd> = fds.into_iter().flatten().chain(arrays.iter().map(|it| it.1.as_raw_fd())).collect();
        let arrays = ArrayPlace::all_to_text(&arrays.iter().map(|it| it.0).collect::<Vec<_>>());
        let block = device.as_ref().map_or(String::new(), |it| it.shape().to_text());
        let text = format!("{}\n{gpus}\n{}\n{block}\n{arrays}", most.api.to_text(), first.api.to_text());
        send(&self.socket, &Message::new(message::ARM, &words, text), &fds)
            .map_err(|it| failed(context("arm the collector"), it))?;
        Ok(SharedMemory { region, device })
    }

    /// Says what becomes of an image, so that the program goes on.
    pub fn answer(&mut self, image: u64, woven: &Woven) {
        let (status, memory) = match woven.encode() {
            (status, Some(contents)) => sent(status, &contents),
            (status, None) => (status, None),
        };
        let n_bytes = memory.as_ref().map_or(0, |it| it.1);
        let fds: Vec<RawFd> = memory.iter().map(|it| it.0.as_raw_fd()).collect();
        self.tell(&Message::new(message::TWIN, &[image, status, n_bytes], ""), &fds);
    }

    /// Asks the collector to copy so much of the device memory into the region; `number` is then the one that it has answered.
    pub fn read_device(&mut self, number: u64, extent: CopyExtent) {
        self.tell(&Message::new(message::READ_DEVICE, &[number, extent as u64], ""), &[]);
    }

    /// Asks the collector to record from now on, if [`Window::LATER`] made it wait.
    pub fn record(&mut self) {
        self.tell(&Message::new(message::RECORD, &[], ""), &[]);
    }

    /// Asks the collector to record this from now on, and nothing else.
    pub fn switch(&mut self, demand: &Demand, mappings: bool) {
        let bits = demand_bits(demand, mappings);
        self.tell(&Message::new(message::SWITCH, &[bits], demand.api.to_text()), &[]);
    }

    /// Leaves the process untraced.
    pub fn leave_dormant(self) {
        let _ = send(&self.socket, &Message::new(message::DORMANT, &[], ""), &[]);
    }

    /// Has the process wait longer: its order follows.
    pub(super) fn ask_to_wait(&self) {
        let _ = send(&self.socket, &Message::new(message::COMING, &[], ""), &[]);
    }

    /// Returns what ends with this.
    pub(super) fn presence(&self) -> Weak<()> {
        Arc::downgrade(&self.presence)
    }

    /// Asks the collector to stop; it answers with a last flush and [`Notice::Bye`].
    pub fn disarm(&mut self) {
        self.tell(&Message::new(message::DISARM, &[], ""), &[]);
    }

    /// Sends a message. One that the collector doesn't take is the last: [`Collector::poll`] will say so.
    fn tell(&mut self, message: &Message, fds: &[RawFd]) {
        let answer = send(&self.socket, message, fds);
        // Who has closed the socket is heard of when it is read.
        let is_full = answer.is_err_and(|it| it.kind() == std::io::ErrorKind::WouldBlock);
        if is_full && self.hearing == Hearing::Open {
            self.hearing = Hearing::Deaf;
        }
    }

    /// Returns the descriptor that is readable when [`Collector::poll`] has a notice.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Returns the next notice, or `None`. Never blocks.
    pub fn poll(&mut self) -> Option<Notice> {
        match self.hearing {
            Hearing::Open => {}
            Hearing::Deaf => {
                self.hearing = Hearing::Over;
                return Some(Notice::Deaf);
            }
            Hearing::Over => return None,
        }
        match receive(&self.socket) {
            Received::Nothing => None,
            Received::Closed => {
                self.hearing = Hearing::Over;
                Some(Notice::Closed)
            }
            Received::Message(it, memory) => Some(notice(&it, memory)),
        }
    }

    /// Whether its threads have other ids in its own pid namespace than in ours.
    pub fn has_own_ids(&self) -> bool {
        self.peer.pid != self.pid_in_target
    }

    /// Returns the ids of all current threads, in the target's namespace and in ours, for
    /// the pipeline. Empty if both namespaces are the same.
    pub fn thread_ids(&self) -> Vec<(u32, u32)> {
        if !self.has_own_ids() {
            return Vec::new();
        }
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.peer.pid)).into_iter().flatten().flatten();
        threads.filter_map(|it| innermost_tid(&it.path())).collect()
    }
}

/// Returns a thread's id in the target's own namespace and in ours.
fn innermost_tid(task: &Path) -> Option<(u32, u32)> {
    let inner = innermost_id(&of_linux(task.join("status")).ok()?)?;
    Some((inner, task.file_name()?.to_str()?.parse().ok()?))
}

/// Returns the status of an answer, and memory with its contents and their size; without memory, or if they are more than
/// collectors read, it has failed.
fn sent(status: u64, bytes: &[u8]) -> (u64, Option<(OwnedFd, u64)>) {
    let n_bytes = bytes.len() as u64;
    match memory_with(bytes).ok().filter(|_| n_bytes <= MOST_IMAGE_BYTES) {
        Some(memory) => (status, Some((memory, n_bytes))),
        None => (twin_status::FAILED, None),
    }
}

fn notice(message: &Message, memory: Option<OwnedFd>) -> Notice {
    let notes = || message.text.lines().map(|it| one_line(&with_names(it))).collect();
    match (message.kind, memory) {
        (message::ARMED, _) => Notice::Armed { micros: message.words[0], notes: notes() },
        (message::REFUSED, _) => Notice::Refused { code: message.words[0], reason: one_line(&message.text) },
        (message::BYE, _) => Notice::Bye { notes: notes() },
        (message::IMAGE, Some(memory)) => Notice::Image(LoadedImage::new(message.clone(), memory)),
        _ => Notice::Unknown,
    }
}

fn demand_bits(wanted: &Demand, mappings: bool) -> u64 {
    demand::of(wanted.details, wanted.calls, wanted.activities, wanted.host_events)
        | if mappings { demand::MAPPINGS } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_model::plan::{Activities, Calls, Details, Functions, HostEvents};

    #[test]
    fn every_demand_has_its_bit() {
        let all = Demand {
            calls: Calls::ALL,
            activities: Activities::ALL,
            host_events: HostEvents::ALL,
            required: HostEvents::ALL,
            api: Functions::NONE,
            details: Details::ALL,
        };
        let bits = demand_bits(&all, true);
        assert_eq!(bits & 0xffff, 0xfffe, "every option");
        assert_eq!(bits & demand::PRIORITIES, demand::PRIORITIES);
        assert_eq!(bits & demand::LATENCIES, demand::LATENCIES);
        assert_eq!(bits & demand::EXTERNAL, demand::EXTERNAL);
        assert_eq!(demand::host_events_of(bits), HostEvents::ALL);
        assert_eq!((demand::calls_of(bits), demand::activities_of(bits)), (Calls::ALL, Activities::ALL));
        assert_eq!(demand_bits(&Demand::default(), false), 0);
    }
}
