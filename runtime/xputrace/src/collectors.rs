//! The collectors of a run: found as their processes start CUDA, armed, drained, let go.

use crate::run::Running;
use crate::run::sources::{Progress, Source};
use crate::target::Launch;
use anyhow::{Context, Result, anyhow};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;
use xputrace_tracer::rendezvous::{DEFAULT_SHAPE, Listener, Notice, Region, Target};
use xputrace_tracer::{CollectorTotals, ProcessIndex, ProcessInfo};

/// How often the rings are read while a target records.
const DRAIN_INTERVAL: Duration = Duration::from_millis(2);

/// Everything between this run and the collectors in its targets.
pub struct Collectors {
    listener: Listener,
    /// The collector's file, as the targets load it.
    file: PathBuf,
    /// Those that record, or have left something to be read.
    targets: Vec<Traced>,
    /// How often each process id has connected.
    generations: HashMap<u32, u32>,
    /// Whether the system let no further collector connect when it was last asked.
    is_full: bool,
    /// Given up when no further file can be opened: what it makes room for is saying so.
    spare: Option<File>,
    /// Of processes that are gone.
    totals: Vec<CollectorTotals>,
    rings: Vec<Vec<u8>>,
}

/// A process whose collector connected and was armed.
struct Traced {
    target: Target,
    region: Region,
    process: ProcessIndex,
}

impl Collectors {
    /// Listens, and has the command load the collector.
    pub fn new(launch: &mut Launch) -> Result<Self> {
        let listener = Listener::new(launch.identity.as_ref().map(|it| it.uid))?;
        let file = launch.inject(listener.value())?;
        Ok(Collectors {
            listener,
            file,
            targets: Vec::new(),
            generations: HashMap::new(),
            is_full: false,
            spare: File::open("/dev/null").ok(),
            totals: Vec::new(),
            rings: Vec::new(),
        })
    }

    /// Whether any process records, or has left something to be read.
    pub fn is_recording(&self) -> bool {
        !self.targets.is_empty()
    }

    /// The collectors' own totals, of processes past and present.
    pub fn totals(&self) -> Vec<CollectorTotals> {
        let present = self.targets.iter().map(|it| it.region.totals());
        self.totals.iter().copied().chain(present).collect()
    }

    fn accept(&mut self, running: &mut Running) {
        self.is_full = false;
        loop {
            match self.listener.accept() {
                Ok(None) => return,
                Ok(Some(target)) => self.arm_or_undo(target, running),
                Err(error) => {
                    self.is_full = true;
                    self.spare = None;
                    return running.report().fail(&format!("processes that start CUDA now are not traced: {error}"));
                }
            }
        }
    }

    fn arm_or_undo(&mut self, target: Target, running: &mut Running) {
        let pid = target.pid;
        if let Err(error) = self.arm(target, running) {
            running.report().note(&format!("process {pid} is not traced: {error:#}"));
            if let Some(linux) = &mut running.state().linux {
                linux.detach_marker(pid);
            }
        }
    }

    /// Arms a collector before its process goes on.
    fn arm(&mut self, mut target: Target, running: &mut Running) -> Result<()> {
        running.report().collector_connected();
        let no_cupti =
            (target.cupti_version == 0).then(|| format!("process {} has no CUPTI: {}", target.pid, target.cupti));
        if let Some(refusal) = target.refusal.clone().or(no_cupti) {
            running.report().note(&refusal);
            running.report().refusals.push(refusal);
            target.leave_dormant();
            return Ok(());
        }
        let software = is_software_gpu(&target);
        running.say_if_software(software);
        let plan = running.plan().clone();
        let mut state = running.state();
        let process = ProcessIndex(state.pipeline.n_processes() as u32);
        let mut tags = None;
        if let (true, Some(linux)) = (plan.demand.launch_marker, &mut state.linux) {
            tags = Some(linux.add_tag_array(target.pid)?);
            linux.attach_marker(&plan, target.pid, &self.file, marker_offset(&self.file)?)?;
        }
        let tags = tags.as_ref().map(|it| it.as_raw_fd());
        let region = target.arm(&plan.demand, plan.demand.launch_stacks, DEFAULT_SHAPE, process.0, tags)?;
        let info = self.describe(&target);
        drop(state);
        running.add_process(info, target.thread_ids(), software);
        self.targets.push(Traced { target, region, process });
        Ok(())
    }

    fn describe(&mut self, target: &Target) -> ProcessInfo {
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", target.pid)).unwrap_or_default();
        let seen = self.generations.entry(target.pid).or_default();
        let generation = std::mem::replace(seen, *seen + 1);
        ProcessInfo {
            pid: target.pid,
            pid_in_target: if target.pid_in_target == target.pid { 0 } else { target.pid_in_target },
            comm: comm.trim().into(),
            generation,
        }
    }

    /// One drain of a process's rings; whether there was anything.
    fn drain(&mut self, at: usize, running: &mut Running) -> bool {
        let traced = &mut self.targets[at];
        let marks = traced.region.marks();
        traced.region.take_into(&marks, &mut self.rings);
        if self.rings.iter().all(Vec::is_empty) {
            return false;
        }
        running.feed(traced.process, &self.rings);
        true
    }

    /// Reads what a process left behind, closes its account, and lets it go.
    fn part_with(&mut self, at: usize, running: &mut Running) {
        // Twice: a name may have been written behind what the first drain saw. A target that still
        // writes is not followed for ever.
        for _ in 0..2 {
            self.drain(at, running);
        }
        let Traced { region, process, .. } = self.targets.remove(at);
        let totals = region.totals();
        self.totals.push(totals);
        running.end_process(process, totals);
    }

    /// Asks every collector for its last flush; they answer with a bye.
    pub fn disarm(&mut self) {
        self.targets.iter_mut().for_each(|it| it.target.disarm());
    }

    /// Closes every account, whether its collector has said bye or not.
    pub fn part_with_all(&mut self, running: &mut Running) {
        while !self.targets.is_empty() {
            self.part_with(0, running);
        }
    }
}

impl Source for Collectors {
    /// The listener is left out where nobody can be let in: it stays readable then.
    fn descriptors(&self, _running: &Running) -> Vec<RawFd> {
        let listener = (!self.is_full).then(|| self.listener.fd());
        listener.into_iter().chain(self.targets.iter().map(|it| it.target.fd())).collect()
    }

    fn due_in(&self) -> Option<Duration> {
        self.is_recording().then_some(DRAIN_INTERVAL)
    }

    /// Arms new collectors, hears what they say, and drains every ring.
    fn step(&mut self, running: &mut Running) -> Result<Progress> {
        self.accept(running);
        let mut is_busy = false;
        let mut at = 0;
        while at < self.targets.len() {
            is_busy |= self.drain(at, running);
            match hear(&mut self.targets[at].target, running) {
                Hearing::GoesOn => at += 1,
                Hearing::IsOver => self.part_with(at, running),
            }
        }
        Ok(if is_busy { Progress::Busy } else { Progress::Idle })
    }
}

/// Whether more is to come from a collector.
enum Hearing {
    GoesOn,
    IsOver,
}

/// What a collector has said since.
fn hear(target: &mut Target, running: &mut Running) -> Hearing {
    while let Some(notice) = target.poll() {
        match notice {
            Notice::Armed { notes, .. } => notes.iter().for_each(|it| running.report().note(it)),
            Notice::Refused { reason, .. } => {
                running.report().note(&reason);
                running.report().refusals.push(reason);
                return Hearing::IsOver;
            }
            Notice::Bye { notes } => {
                notes.iter().for_each(|it| running.report().note(it));
                return Hearing::IsOver;
            }
            Notice::Closed => return Hearing::IsOver,
        }
    }
    Hearing::GoesOn
}

/// Whether the CUPTI that a process found is the software GPU's: all its libraries are one file,
/// under whatever name they were asked for.
fn is_software_gpu(target: &Target) -> bool {
    let seen = std::path::Path::new("/proc").join(target.pid.to_string()).join("root");
    let path = seen.join(target.cupti.trim_start_matches('/'));
    let file = std::fs::canonicalize(&path).unwrap_or(path);
    file.file_name().is_some_and(|it| it.to_string_lossy().contains("softgpu"))
}

/// Where the function that launch handlers of the kernel are attached to lies in the collector's file.
fn marker_offset(collector: &Path) -> Result<u64> {
    let bytes = std::fs::read(collector).with_context(|| format!("cannot read {}", collector.display()))?;
    function_offset(&bytes, "xputrace_launch_marker")
        .ok_or_else(|| anyhow!("{} has no marker function", collector.display()))
}

/// Offset in the file of an exported function.
fn function_offset(elf: &[u8], name: &str) -> Option<u64> {
    use object::{Object, ObjectSection, ObjectSymbol};
    let file = object::File::parse(elf).ok()?;
    let symbol = file.dynamic_symbols().find(|it| it.name() == Ok(name))?;
    let section = file.section_by_index(symbol.section_index()?).ok()?;
    let (offset, _) = section.file_range()?;
    Some(symbol.address() - section.address() + offset)
}
