//! The collectors of a run: accepted when their processes start CUDA, armed, drained, disarmed.

mod attaching;
mod device;
mod reading;

use crate::cli::{Chosen, OnConflict, Options, Range, WindowOptions};
use crate::payload::COLLECTOR;
use crate::run::Running;
use crate::run::sources::{EventSource, Progress};
use crate::target::Launch;
use anyhow::{Context, Result};
use attaching::Attaching;
use reading::Reading;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xputrace_linux::{Linux, monotonic_nanos, parent_of};
use xputrace_model::gpu::GpuKind;
use xputrace_model::loss::Loss;
use xputrace_model::plan::{Demand, Detail, DeviceWay, DeviceWays, Plan};
use xputrace_nvidia_tracer::choosing::Chooser;
use xputrace_nvidia_tracer::drivers::{Drivers, Given, Unconnected, gpu_of};
use xputrace_nvidia_tracer::injection::Ranges;
use xputrace_nvidia_tracer::programs::Why as WhyHere;
use xputrace_nvidia_tracer::twins::{Requester, TwinAnswer, Twins};
use xputrace_nvidia_tracer::unfinished::Unfinished;
use xputrace_pipeline::{ProcessIndex, ProcessInfo, SeenGpu, Turned};
use xputrace_render::{counted, one_line};
use xputrace_rendezvous::{
    Acceptor, Armed, Arrival, Chosen as ChosenWay, Collector, DEFAULT_SHAPE, DeviceRegion, Listener, LoadedImage,
    Missed, Notice, Order, Peer, Region, RunOrder, SharedMemory, TagArrays, Ways, Why, Window,
};
use xputrace_wire::device::CopyExtent;
use xputrace_wire::device::Woven;
use xputrace_wire::marker;
use xputrace_wire::message::{conflict, window};
use xputrace_wire::record::{FramedRecord, Thread, framed, kind};
use xputrace_wire::totals::CollectorTotals;
/// Images of a process that are worked on or wait for it: each takes a descriptor. A process loads one with each thread, and one
/// after another once it waits no more.
const MOST_IMAGES: usize = 256;

/// Messages of a process that are handled before others are: it may send them without end.
const MOST_NOTICES: usize = 64;
/// Notes of a process's collector that are passed on.
const MOST_NOTES: usize = 16;

/// How often the rings are read while a target records.
const DRAIN_INTERVAL: Duration = Duration::from_millis(2);

/// Follows from device handlers in a part of the run: what a graph runs is fixed when it is made.
const GRAPHS_KEEP_HANDLERS: &str = "device handlers are in a CUDA graph from when it was made: one that was made in the part of the \
     run that is recorded (--range, --after) runs them outside of it, too, and one that was made before has none";

/// How many processes whose collector never connected are named.
const MOST_NAMED: usize = 100;

/// Everything between this run and the collectors in its targets.
pub struct Collectors {
    /// Until [`Collectors::open`] passes it to the thread that accepts collectors.
    listener: Option<Listener>,
    acceptor: Option<Acceptor>,
    /// The collector's file as targets load it; one for each of their users and roots.
    files: Vec<PathBuf>,
    /// The address at which targets find us.
    socket: String,
    /// Without a command.
    attaching: Option<Attaching>,
    window: Arc<Window>,
    /// Whether only a part of the run is recorded.
    has_window: bool,
    /// One of `message::conflict`.
    conflict: u64,
    /// As in `message::ARM`.
    gpus: String,
    /// Why the system once refused connections.
    no_room: Option<String>,
    /// Processes that record, or whose rings have something left to read.
    targets: Vec<Traced>,
    /// How often each process id has connected.
    generations: HashMap<u32, u32>,
    /// Closed when no further file can be opened, so that this can be reported.
    spare: Option<File>,
    /// What processes record that are armed from now on.
    demand: Arc<Mutex<Demand>>,
    /// Whether that may change.
    has_switches: bool,
    /// If the script has device handlers.
    twins: Option<Twins>,
    /// If it is chosen for each process how they get into kernels.
    chooser: Option<Arc<Chooser>>,
    /// Totals of processes that have ended.
    totals: Vec<CollectorTotals>,
    rings: Vec<Vec<u8>>,
}

/// A process whose collector connected and was sent its order.
struct Traced {
    target: Collector,
    region: Region,
    device: Option<DeviceRegion>,
    /// How device handlers get into its kernels.
    way: DeviceWay,
    reading: Reading,
    /// Images of which it has no answer yet.
    n_images: usize,
    process: ProcessIndex,
    comm: String,
    /// Notes of its collector so far.
    n_notes: usize,
    /// Whether it has reported that it records.
    is_armed: bool,
    /// Whether nothing more comes from its collector.
    is_over: bool,
}

impl Traced {
    /// Returns what it is called in messages.
    fn called(&self) -> String {
        format!("process {} ({})", self.target.peer.pid, one_line(&self.comm))
    }
}

impl Collectors {
    /// Listens, and makes the command load the collector. Accepts nobody before
    /// [`Collectors::open`].
    pub fn of_command(launch: &mut Launch, options: &Options, plan: &Plan) -> Result<Self> {
        let listener = Listener::new(launch.identity.as_ref().map(|it| it.uid))?;
        let window = options.window.range.as_ref().and_then(Range::name);
        let ranges = Ranges { window, are_read: plan.demand.ranges() };
        let file = launch.inject(listener.value(), ranges)?;
        Ok(Collectors { files: vec![file], ..Collectors::new(listener, options) })
    }

    /// Listens for the collectors of running processes. [`Collectors::attach`] brings them there.
    ///
    /// # Errors
    /// The system cannot create a socket.
    pub fn of_running(chosen: Chosen, options: &Options) -> Result<Self> {
        let collectors = Collectors::new(Listener::new(None)?, options);
        let attaching = Some(Attaching::new(chosen, collectors.socket.clone()));
        Ok(Collectors { attaching, ..collectors })
    }

    fn new(listener: Listener, options: &Options) -> Self {
        Collectors {
            socket: listener.value().to_owned(),
            listener: Some(listener),
            acceptor: None,
            window: Arc::new(Window::new(conditions(&options.window))),
            has_window: conditions(&options.window) != 0,
            conflict: conflict_word(options.on_conflict),
            gpus: options.gpus.join(","),
            files: Vec::new(),
            attaching: None,
            no_room: None,
            targets: Vec::new(),
            generations: HashMap::new(),
            spare: File::open("/dev/null").ok(),
            demand: Arc::default(),
            has_switches: false,
            twins: None,
            chooser: None,
            totals: Vec::new(),
            rings: Vec::new(),
        }
    }

    /// Says which of the chosen GPUs no process had, and which there were; `None` where no GPU is known.
    pub fn unknown_gpus(&self, seen: &[SeenGpu]) -> Option<String> {
        let is_known = |word: &&str| seen.iter().any(|it| it.gpu.is_called(it.name.as_bytes(), word));
        let unknown: Vec<&str> = self.gpus.split(',').filter(|it| !it.is_empty() && !is_known(it)).collect();
        if unknown.is_empty() || seen.is_empty() {
            return None;
        }
        let listed =
            |it: &SeenGpu| format!("\n  {} {} {}", it.gpu.device, it.gpu.uuid_text(it.name.as_bytes()), it.name);
        let all: String = seen.iter().map(listed).collect();
        Some(format!(
            "no process had the GPU `{}` (--device); the GPUs, as the processes number them:{all}",
            unknown.join("`, `")
        ))
    }

    /// Attaches the launch handlers that run in Linux, and starts to accept collectors: of the
    /// target's processes and their descendants, under any user, and of the same user's processes. Returns the
    /// [`Drivers`] that track which of them use CUDA. If there are probes in Linux, the caller
    /// passes it process events; otherwise it watches processes itself.
    ///
    /// # Errors
    /// The handlers cannot be attached, or the system cannot create a thread.
    ///
    /// They record what is switched on.
    pub fn open(
        &mut self,
        plan: &Plan,
        switches: &Turned,
        linux: Option<&mut Linux>,
        pids: Vec<u32>,
    ) -> Result<Drivers> {
        *self.demand() = plan.demand_while(|it| switches.is_on(it));
        self.has_switches = !plan.switches.is_empty();
        let mut tags: Option<TagArrays> = None;
        let drivers = self.drivers(&pids, linux.is_some());
        self.twins = Twins::of(plan)?;
        let device = self.twins.as_ref().map(|it| it.block(linux.as_deref())).transpose()?;
        if let (true, Some(linux)) = (plan.demand.has(Detail::Marker), linux) {
            for file in &self.files {
                linux.attach_marker(plan, file, marker::SYMBOL)?;
            }
            let arrays = linux.tag_arrays()?;
            tags = arrays.map(|it| Box::new(move |pid| it.add(pid).map_err(|it| it.to_string())) as TagArrays);
        }
        let admitted = self.attaching.as_ref().map(Attaching::admitted).unwrap_or_default();
        let run = RunOrder {
            demand: plan.demand,
            is_switched: self.has_switches,
            mappings: sends_mappings(plan),
            shape: DEFAULT_SHAPE,
            window: self.window.clone(),
            conflict: self.conflict,
            gpus: self.gpus.clone(),
            device,
        };
        let order = Order {
            run,
            now: self.demand.clone(),
            tags,
            ways: self.ways(plan),
            is_target: Box::new(move |pid| admitted.contains(pid) || pids.iter().any(|it| is_descendant(pid, *it))),
        };
        let listener = self.listener.take().context("collectors are let in once")?;
        self.acceptor = Some(Acceptor::start(listener, order).context("cannot start the thread that arms collectors")?);
        Ok(drivers)
    }

    /// Returns how device handlers get into kernels.
    fn ways(&mut self, plan: &Plan) -> Ways {
        match plan.device_ways {
            DeviceWays::One(way) => Ways::Given(way),
            // An object that real GPUs can't run.
            DeviceWays::Either { .. } if self.twins.is_none() => Ways::Given(DeviceWay::Twin),
            DeviceWays::Either { .. } => Ways::Chosen(self.chooser.insert(Arc::new(Chooser::of(plan))).clone()),
        }
    }

    fn drivers(&self, pids: &[u32], is_told: bool) -> Drivers {
        let command = if self.attaching.is_none() { pids.first().copied() } else { None };
        let collector = self.files.first().cloned().unwrap_or_else(|| COLLECTOR.file_name().into());
        let name = self.attaching.as_ref().and_then(Attaching::name);
        let given = Given { command, collector, socket: self.socket.clone(), name };
        if is_told { Drivers::told(given) } else { Drivers::watching(given, pids) }
    }

    /// Lets all processes record from now on, those that connect later too.
    pub fn begin_window(&mut self) {
        self.window.begin();
        self.targets.iter_mut().for_each(|it| it.target.record());
    }

    /// Lets all processes record what is switched on now, those that connect later too. Counts where events of a probe
    /// were not seen when it was enabled.
    pub fn switch(&mut self, switches: &Turned, running: &mut Running) {
        let plan = running.plan().clone();
        let (wanted, meanwhile) =
            (plan.demand_while(|it| switches.is_on(it)), plan.demand_while(|it| switches.was_on(it)));
        let before = std::mem::replace(&mut *self.demand(), wanted);
        if meanwhile.adds_events(&before) {
            running.state().losses.add(Loss::EnabledUnseen, self.targets.len() as u64);
        }
        if wanted != before {
            self.targets.iter_mut().for_each(|it| it.target.switch(&wanted, sends_mappings(&plan)));
        }
        let devices = self.targets.iter().filter_map(|it| it.device.as_ref());
        if let Some(twins) = &self.twins {
            devices.for_each(|it| switch(twins, it, switches, running));
        }
    }

    fn demand(&self) -> MutexGuard<'_, Demand> {
        self.demand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any process records, or has something left to read.
    pub fn is_recording(&self) -> bool {
        !self.targets.is_empty()
    }

    /// Returns the collectors' own totals, including those of ended processes.
    pub fn totals(&self) -> Vec<CollectorTotals> {
        let present = self.targets.iter().map(|it| it.region.totals());
        self.totals.iter().copied().chain(present).collect()
    }

    fn take_arrivals(&mut self, running: &mut Running) {
        running.state().drivers.take();
        let Some(acceptor) = &self.acceptor else { return };
        for arrival in acceptor.arrivals().collect::<Vec<_>>() {
            match arrival {
                Arrival::Armed(it) => self.take_in(*it, running),
                Arrival::Missed(it) => {
                    connected(it.peer, running);
                    miss(&it, running);
                }
                Arrival::Full(error) => {
                    self.spare = None;
                    self.no_room = Some(error.to_string());
                    running.report().fail(&format!("processes that start using CUDA now may not be traced: {error}"));
                }
            }
        }
    }

    /// Adds a process that was sent its order.
    fn take_in(&mut self, armed: Armed, running: &mut Running) {
        running.report().collector_connected();
        connected(armed.target.peer, running);
        let info = self.describe(&armed);
        let Armed { mut target, shared: SharedMemory { region, device }, comm, thread_ids, index, chosen, .. } = armed;
        let ChosenWay { way, note } = chosen;
        note.iter().for_each(|it| running.report().note(it));
        if way == DeviceWay::Patch {
            running.report().kernels_are_patched();
        }
        running.say_of_gpu(info.gpu, device.is_some());
        if info.gpu == GpuKind::Software {
            running.run_programs_here(WhyHere::SoftwareGpu);
        }
        if device.is_some() && self.has_window {
            running.report().note(GRAPHS_KEEP_HANDLERS);
        }
        if let (Some(twins), Some(device)) = (&self.twins, &device) {
            running.state().pipeline.state_mut().set_device_layout(twins.layout());
            let switches = running.state().pipeline.state().switches().now();
            switch(twins, device, &switches, running);
            twins.caution().into_iter().for_each(|it| running.report().note(it));
        }
        // It may have been sent its order before the window began.
        if self.window.has_begun() {
            target.record();
        }
        // Likewise, before something was switched.
        if self.has_switches {
            target.switch(&self.demand(), sends_mappings(running.plan()));
        }
        running.add_process(info, thread_ids);
        self.targets.push(Traced {
            target,
            region,
            device,
            way,
            reading: Reading::default(),
            n_images: 0,
            process: ProcessIndex(index),
            comm,
            n_notes: 0,
            is_armed: false,
            is_over: false,
        });
    }

    fn describe(&mut self, armed: &Armed) -> ProcessInfo {
        let Armed { target, comm, .. } = armed;
        let seen = self.generations.entry(target.peer.pid).or_default();
        let generation = std::mem::replace(seen, *seen + 1);
        ProcessInfo {
            pid: target.peer.pid,
            pid_in_target: if target.pid_in_target == target.peer.pid { 0 } else { target.pid_in_target },
            comm: comm.clone(),
            generation,
            is_attached: self.attaching.is_some(),
            gpu: gpu_of(armed),
        }
    }

    /// Drains a process's rings once; returns whether there was anything.
    fn drain(&mut self, at: usize, running: &mut Running) -> bool {
        let traced = &mut self.targets[at];
        let marks = traced.region.marks();
        traced.region.drain_into(&marks, &mut self.rings);
        if self.rings.iter().all(Vec::is_empty) {
            return false;
        }
        learn_threads(traced, &self.rings, running);
        running.feed(traced.process, &self.rings);
        true
    }

    /// Whether nothing more comes from some process, whose account is open.
    pub fn has_any_over(&self) -> bool {
        self.targets.iter().any(|it| it.is_over)
    }

    /// Closes the accounts of these.
    pub fn part_with_those_over(&mut self, running: &mut Running) {
        while let Some(at) = self.targets.iter().position(|it| it.is_over) {
            self.part_with(at, running);
        }
    }

    /// Reads what a process left behind, closes its account, and removes it.
    fn part_with(&mut self, at: usize, running: &mut Running) {
        // Twice: a name may have been written after the first drain began. Only twice, in case the
        // target keeps writing.
        for _ in 0..2 {
            self.drain(at, running);
        }
        let traced = self.targets.remove(at);
        let called = traced.called();
        let Traced { target, region, device, way, process, is_armed, .. } = traced;
        if let Some(device) = device {
            device::read(&device, CopyExtent::Whole, process, running);
            running.state().pipeline.state_mut().end_device_memory(process);
            let clocks = device::account(&device, way, (process, target.peer.pid), running);
            self.twins.iter_mut().for_each(|it| it.add_clocks(clocks, way));
        }
        if is_armed && running.state().pipeline.may_lack_activities(process) {
            running.state().losses.add(Loss::NoLastFlush, 1);
            running.report().note_about_process(&format!("{called} ended without a last flush"));
        }
        let totals = region.totals();
        self.totals.push(totals);
        running.end_process(process, totals);
        // With probes in Linux, this waits until their records are read.
        if running.state().linux.is_none() {
            running.forget_programs();
        }
    }

    /// Stops accepting, and asks every collector for its last flush, which they answer with
    /// a bye.
    pub fn disarm(&mut self, running: &mut Running) {
        self.stop_attaching(running);
        self.acceptor.iter_mut().for_each(Acceptor::stop);
        self.take_arrivals(running);
        self.targets.iter_mut().for_each(|it| it.target.disarm());
    }

    /// Closes every account, whether its collector has said bye or not. Counts the processes that
    /// may have used CUDA without their collector connecting.
    pub fn part_with_all(&mut self, running: &mut Running) {
        self.count_unconnected(running);
        while !self.targets.is_empty() {
            self.part_with(0, running);
        }
        self.twins.iter().flat_map(Twins::notes).for_each(|it| running.report().note(&it));
    }
}

impl Collectors {
    /// Stops accepting; returns what may still go on.
    pub fn into_unfinished(self) -> Unfinished {
        Unfinished { twins: self.twins, chooser: self.chooser }
    }

    fn count_unconnected(&self, running: &mut Running) {
        if running.report().output_ended() {
            return; // The run did not wait for them.
        }
        let (unconnected, n_unnamed, n_idle, shortfall, (unwatched, mut n_unseen)) = {
            let drivers = &mut running.state().drivers;
            drivers.take();
            let (first, n_more) = drivers.unwatched();
            let unwatched = (first.to_vec(), n_more);
            (drivers.unconnected(), drivers.n_unnamed(), drivers.n_idle(), drivers.shortfall(), unwatched)
        };
        let named = unconnected.len().min(MOST_NAMED);
        let n_more = (unconnected.len() - named) as u64 + n_unnamed;
        for it in &unconnected[..named] {
            untraced(it.pid, &self.unconnected(it), running);
        }
        if n_more > 0 {
            running.state().losses.add(Loss::UntracedProcess, n_more);
            let more = counted(n_more, "further process", "further processes");
            running.report().note(&format!("not traced: {more} whose collector never connected"));
        }
        // They may have used CUDA, unless their collectors came. The note says which they are.
        for pid in unwatched {
            n_unseen += u64::from(!running.has_traced(pid) && running.report().is_first_untraced(pid));
        }
        running.state().losses.add(Loss::UntracedProcess, n_unseen);
        if let Some(shortfall) = shortfall {
            running.report().note(&shortfall);
        }
        if n_idle > 0 {
            let programs = counted(n_idle, "program", "programs");
            running.report().note(&format!("{programs} loaded CUDA's driver library and never started it"));
        }
    }

    fn unconnected(&self, Unconnected { pid, comm, used_driver, why }: &Unconnected) -> String {
        let why = why.as_ref().or(self.no_room.as_ref()).map_or("its collector reported no reason", String::as_str);
        if self.attaching.is_some() {
            return format!("process {pid} ({}) used CUDA: {why}", one_line(comm));
        }
        let (did, missing) = match used_driver {
            true => ("used CUDA", "Its CUDA calls are missing"),
            false => ("loaded CUDA's driver library", "If it made CUDA calls, they are missing"),
        };
        format!("process {pid} ({}) {did}, and its collector never connected: {why}. {missing}", one_line(comm))
    }
}

impl EventSource for Collectors {
    fn descriptors(&self, running: &Running) -> Vec<RawFd> {
        let state = running.state();
        let waited = state.drivers.fds().chain(self.acceptor.iter().map(Acceptor::fd));
        let waited = waited.chain(self.twins.iter().map(Twins::fd));
        waited.chain(self.targets.iter().map(|it| it.target.fd())).collect()
    }

    fn due_in(&self) -> Option<Duration> {
        self.is_recording().then_some(DRAIN_INTERVAL)
    }

    /// Accepts new processes, handles collectors' messages, and drains every ring. Those that are over stay until
    /// [`Collectors::part_with_those_over`].
    fn step(&mut self, running: &mut Running) -> Result<Progress> {
        self.attach_later(running);
        self.take_arrivals(running);
        let mut is_busy = false;
        for at in 0..self.targets.len() {
            is_busy |= self.drain(at, running);
            let traced = &mut self.targets[at];
            traced.is_over = traced.is_over || matches!(hear(traced, self.twins.as_ref(), running), Hearing::IsOver);
        }
        self.answer_images(running);
        self.read_device(running);
        Ok(if is_busy { Progress::Busy } else { Progress::Idle })
    }
}

impl Collectors {
    /// Sends the twins that have been made to the processes that wait for them.
    fn answer_images(&mut self, running: &mut Running) {
        let Some(twins) = &mut self.twins else { return };
        while let Some(done) = twins.finished() {
            // A process that has ended waits for nothing.
            let process = done.requester.process;
            let Some(traced) = self.targets.iter_mut().find(|it| it.process == process) else { continue };
            let number = done.number;
            traced.n_images = traced.n_images.saturating_sub(1);
            let TwinAnswer { woven, notes, probed, why_no_programs } = {
                let mut state = running.state();
                let names = state.pipeline.state_mut().names_mut();
                twins.answer(done, &mut |name| names.intern(name).into())
            };
            notes.iter().for_each(|it| running.report().note_about_process(it));
            running.state().pipeline.has_twins(process, probed.iter().map(String::as_str));
            why_no_programs.into_iter().for_each(|it| running.take_programs_back(it));
            traced.target.answer(number, &woven);
        }
    }

    /// Takes over the copies of device memory that have been made, and asks their collectors for the next ones.
    fn read_device(&mut self, running: &mut Running) {
        if self.twins.is_none() {
            return;
        }
        for Traced { target, device, reading, process, .. } in &mut self.targets {
            let Some(device) = device else { continue };
            if let Some(extent) = reading.answered(|| device.counts().map_or(0, |it| it.answered)) {
                reading.has_records = device::read(device, extent, *process, running);
            }
            if let Some((number, extent)) = reading.next(Instant::now()) {
                target.read_device(number, extent);
            }
        }
    }
}

/// Learns our ids of the threads that have begun to record in a pid namespace of their own, before any of their events is
/// handled.
fn learn_threads(Traced { target, process, .. }: &Traced, rings: &[Vec<u8>], running: &Running) {
    if !target.has_own_ids() {
        return;
    }
    let in_ring = |ring: &Vec<u8>| framed(ring).filter_map(|it| thread_of(&it)).collect::<Vec<u32>>();
    let begun: Vec<u32> = rings.iter().flat_map(in_ring).collect();
    if begun.is_empty() {
        return;
    }
    let known = target.thread_ids();
    let n_unknown = begun.iter().filter(|tid| known.iter().all(|it| it.0 != **tid)).count();
    let mut state = running.state();
    state.losses.add(Loss::UnknownThread, n_unknown as u64);
    state.pipeline.translate_threads(*process, known);
}

/// Returns the thread that a record says has begun to record.
fn thread_of(frame: &FramedRecord<'_>) -> Option<u32> {
    let is_thread = frame.header.kind == kind::THREAD;
    is_thread.then(|| frame.read::<Thread>()).flatten().map(|it| it.tid)
}

/// Whether more may come from a collector.
enum Hearing {
    GoesOn,
    IsOver,
}

/// Handles a collector's messages since the last call.
fn hear(traced: &mut Traced, twins: Option<&Twins>, running: &mut Running) -> Hearing {
    for _ in 0..MOST_NOTICES {
        let Some(notice) = traced.target.poll() else { break };
        match notice {
            Notice::Armed { notes, .. } => {
                traced.is_armed = true;
                take_notes(&notes, traced, running);
            }
            Notice::Image(image) => take_image(image, traced, twins, running),
            Notice::Refused { reason, .. } => {
                untraced(traced.target.peer.pid, &format!("{}: {reason}", traced.called()), running);
                return Hearing::IsOver;
            }
            Notice::Bye { notes } => {
                take_notes(&notes, traced, running);
                return Hearing::IsOver;
            }
            Notice::Unknown => {}
            Notice::Deaf => {
                running.state().losses.add(Loss::NotReading, 1);
                let process = traced.called();
                running.report().note_about_process(&format!("{process} did not read what it was sent, and was left"));
                return Hearing::IsOver;
            }
            Notice::Closed => {
                if !traced.is_armed {
                    let why = format!("{} went on before it was armed", traced.called());
                    untraced(traced.target.peer.pid, &why, running);
                }
                return Hearing::IsOver;
            }
        }
    }
    Hearing::GoesOn
}

/// Reports what a collector says: a process that is not trusted.
fn take_notes(notes: &[String], traced: &mut Traced, running: &mut Running) {
    let process = traced.called();
    for note in notes {
        traced.n_notes += 1;
        match traced.n_notes {
            ..=MOST_NOTES => running.report().note_of(&process, note),
            n if n == MOST_NOTES + 1 => running.report().note_of(&process, "further notes are left out"),
            _ => return,
        }
    }
}

/// Has made what an image gets, or answers that it gets nothing.
fn take_image(image: LoadedImage, traced: &mut Traced, twins: Option<&Twins>, running: &mut Running) {
    let Some(twins) = twins else { return traced.target.answer(image.number, &Woven::Nothing) };
    let is_context = image.is_context();
    if is_context && !running.give_programs(traced.process) {
        return traced.target.answer(image.number, &Woven::Nothing);
    }
    // Programs that are given to a context are made in any case.
    if !is_context && traced.n_images >= MOST_IMAGES {
        return traced.target.answer(image.number, &Woven::TooMany);
    }
    traced.n_images += 1;
    twins.begin(image, Requester::of(traced.process, traced.target.peer, traced.way));
}

/// Says to a process which device handlers are enabled now.
fn switch(twins: &Twins, device: &DeviceRegion, switches: &Turned, running: &mut Running) {
    if let Err(note) = twins.switch(device, switches) {
        running.report().note_about_process(&note);
    }
}

/// Whether collectors send their lists of executable mappings.
fn sends_mappings(plan: &Plan) -> bool {
    plan.demand.takes_stacks()
}

/// Returns when collectors record.
fn conditions(WindowOptions { after, range }: &WindowOptions) -> u64 {
    let of_range = match range {
        None => 0,
        Some(Range::Profiler) => window::PROFILER,
        Some(Range::Named(_)) => window::RANGES,
    };
    of_range | if after.is_some() { window::LATER } else { 0 }
}

/// Returns what collectors do when another tool uses CUPTI.
fn conflict_word(it: OnConflict) -> u64 {
    match it {
        OnConflict::Yield => conflict::YIELD,
        OnConflict::Keep => conflict::KEEP,
        OnConflict::Fail => conflict::FAIL,
    }
}

fn connected(Peer { pid, accepted, .. }: Peer, running: &mut Running) {
    let ago = accepted.elapsed().as_nanos() as u64;
    running.state().drivers.connected(pid, monotonic_nanos().saturating_sub(ago));
}

/// Reports a process whose collector connected but was not sent an order.
fn miss(missed: &Missed, running: &mut Running) {
    let Missed { peer: Peer { pid, uid, .. }, comm, why } = missed;
    let reason = match why {
        Why::Refused(reason) => {
            running.report().collector_connected();
            return untraced(*pid, reason, running);
        }
        Why::OtherUser => "belongs to another user and is not a child of the command".to_owned(),
        Why::Silent => "connected and then sent nothing for 10 s".to_owned(),
        Why::Left => "left before it could be armed: it was killed, or refuses this user".to_owned(),
        Why::Undecided => "was not armed: the run ended while the way into its kernels was chosen".to_owned(),
        Why::Failed(reason) => format!("was not armed: cannot {reason}"),
    };
    untraced(*pid, &format!("process {pid} ({}, user {uid}) {reason}", one_line(comm)), running);
}

/// Counts a process whose launches are unknown, and says why. What comes later of the same one is no further process.
fn untraced(pid: u32, why: &str, running: &mut Running) {
    if !running.report().is_first_untraced(pid) {
        return;
    }
    running.state().losses.add(Loss::UntracedProcess, 1);
    running.report().refuse(why);
    running.report().note_about_process(&format!("not traced: {why}"));
}

/// Whether a process descends from `ancestor`, as far as its ancestors still run.
fn is_descendant(mut pid: u32, ancestor: u32) -> bool {
    /// Longer than any chain of parents. Ids that are reused meanwhile could form a cycle.
    const MOST_PARENTS: usize = 256;
    for _ in 0..MOST_PARENTS {
        if pid == ancestor {
            return true;
        }
        match parent_of(pid) {
            Some(parent) if parent > 1 => pid = parent,
            _ => return false,
        }
    }
    false
}
