//! [`Linux`]: what a run holds in the kernel.

use crate::attach::{self, Alive, FunctionProbe};
use crate::catalog::LiveCatalog;
use crate::elf::Elf;
use crate::error::{AttachError, Error};
use crate::follow::Followers;
use crate::links::Links;
use crate::load::{self, Loaded};
use crate::map::{MapHandle, OnElement};
use crate::marker::TagArrays;
use crate::proc_maps::{self, View};
use crate::report::{AttachReport, LateFile, News, Outcome, ProbeReport, Unprobed, Warning};
use crate::resolve::{self, Candidate, FileId};
use crate::ring::Ring;
use crate::scope::{self, Scope};
use crate::sideband::{ProcessEvent, Replaced, Sideband};
use crate::sys;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;
use xputrace_bytecode::Image;
use xputrace_model::catalog::Catalog;
use xputrace_model::names::Names;
use xputrace_model::plan::{Place, Plan, Probe, ProbeScope, Target};
use xputrace_model::schema::Event;
use xputrace_model::stack::StackKey;

/// A plan's programs, maps and links in the kernel; dropping it takes all of them out.
pub struct Linux {
    // Dropped in this order: links first, then what they refer to.
    links: Links,
    /// At the collectors' marker function.
    markers: Links,
    image: Image,
    loaded: Loaded,
    roles: Roles,
    /// What keeps the target map right, or why that is done from here; `None` without that map.
    followers: Option<Result<Followers, String>>,
    /// Processes of the scope that the target map did not take from here.
    refused_targets: u64,
    /// How many unfollowed processes were told of.
    told_unfollowed: u64,
    ring: Option<Ring>,
    names: Names,
    functions: Vec<FunctionProbe>,
    scope: Option<Scope>,
    /// Files that were probed only after a process had mapped them, and since when they are.
    late_files: HashMap<FileId, u64>,
    alive: Alive,
    sideband: Sideband,
    lost_events_told: bool,
    events: Vec<ProcessEvent>,
    news: Vec<News>,
}

/// Which of the image's maps serves what.
#[derive(Clone, Copy, Debug, Default)]
struct Roles {
    losses: Option<usize>,
    stacks: Option<usize>,
    targets: Option<usize>,
    tags: Option<usize>,
}

impl Linux {
    /// Loads the plan's programs for Linux and the maps that live in the kernel. A program that
    /// the verifier refuses is a bug of the compiler; the error names the script's line.
    pub fn load(plan: &Plan) -> Result<Linux, Error> {
        let image = plan.image.clone();
        let loaded = load::load(&image)?;
        let ring = plan.linux_ring.map(|it| open_ring(&loaded, it)).transpose()?;
        let roles =
            Roles { losses: plan.linux_losses, stacks: plan.linux_stacks, targets: plan.targets, tags: plan.tags };
        let targets = plan.targets.and_then(|it| loaded.maps.get(it)?.as_ref());
        let namespace = LiveCatalog::new().pid_namespace();
        let followers = targets.map(|it| Followers::load(it.current.fd().as_fd(), namespace));
        Ok(Linux {
            late_files: HashMap::new(),
            links: Links::default(),
            markers: Links::default(),
            image,
            loaded,
            roles,
            followers,
            refused_targets: 0,
            told_unfollowed: 0,
            ring,
            names: Names::new(&plan.strings),
            functions: Vec::new(),
            scope: None,
            alive: Alive::new(),
            sideband: Sideband::default(),
            lost_events_told: false,
            events: Vec::new(),
            news: Vec::new(),
        })
    }

    /// Runs `f` with the run's string table in place of this side's own, so that functions which a
    /// pattern matches get ids of that table. A hit's cookie is the id of its function's name.
    ///
    /// Lend it to whatever may attach: [`Linux::attach`], [`Linux::poll`] and [`Linux::processes`].
    pub fn lending<R>(&mut self, names: &mut Names, f: impl FnOnce(&mut Linux) -> R) -> R {
        std::mem::swap(&mut self.names, names);
        let result = f(self);
        std::mem::swap(&mut self.names, names);
        result
    }

    /// The string table of functions that were matched while no other was lent.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Attaches every probe that can be attached now; one that cannot does not affect the others.
    /// Process events are watched from before the first link, so nothing falls in between.
    pub fn attach(&mut self, plan: &Plan, scope: &Scope) -> AttachReport {
        let mut report = AttachReport::default();
        report.warnings.extend(self.watch_processes(scope));
        self.follow_targets(scope);
        self.alive = scope::with_descendants(&scope.pids()).into_iter().collect();
        self.scope = Some(scope.clone());
        for (index, probe) in plan.probes.iter().enumerate().filter(|(_, it)| runs_here(it)) {
            let outcome = self.attach_probe(index, probe, &mut report.warnings);
            report.probes.push(ProbeReport { probe: index, outcome });
        }
        // Behind the script's own handlers of that tracepoint, which are to see the process yet.
        self.attach_follower(Followers::watch_ends);
        report.warnings.extend(self.late_followers());
        self.report_existing_mappings();
        report
    }

    /// Takes all probes out for good; programs and maps stay. From here on what the maps and the
    /// ring buffer hold belongs together.
    pub fn detach(&mut self) {
        // Neither a new process nor a newly mapped file is given links any more.
        self.functions.clear();
        self.alive.clear();
        self.links = Links::default();
        self.markers = Links::default();
    }

    /// Readable when [`Linux::poll`] has something to do.
    pub fn fds(&self) -> impl Iterator<Item = std::os::fd::RawFd> + '_ {
        let ring = self.ring.as_ref().map(|it| it.fd().as_raw_fd());
        self.sideband.fds().chain(ring)
    }

    /// Waits until the ring buffer has records or a process did something, at most `timeout`;
    /// hands out the records, and attaches to new children and newly mapped files. Records come
    /// in the order in which handlers wrote them; what is written meanwhile is for the next call.
    pub fn poll(&mut self, timeout: Duration, on_record: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        let ring = self.ring.as_ref().map(|it| it.fd().as_raw_fd());
        let wait = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds: Vec<_> = self.sideband.fds().chain(ring).map(wait).collect();
        let millis = timeout.as_micros().div_ceil(1000).try_into().unwrap_or(i32::MAX);
        sys::wait_readable(&mut fds, millis)
            .map_err(|answer| Error::System { what: "wait for events of the kernel".into(), answer })?;
        // Children first: every microsecond counts for them.
        self.handle_process_events();
        if let Some(ring) = &mut self.ring {
            ring.drain(on_record);
        }
        Ok(())
    }

    /// The map with this index in `Plan::image`, where it lives in the kernel. Of a map with two
    /// generations it is the current one.
    pub fn map(&self, index: usize) -> Option<&MapHandle> {
        self.loaded.maps.get(index)?.as_ref().map(|it| &it.current)
    }

    /// Puts an empty generation in place of the current one, waits (in the kernel) until no
    /// program uses the old one any more, and hands out everything that it holds: each key, and
    /// its value once a CPU.
    pub fn swap(&mut self, index: usize, f: &mut OnElement<'_>) -> Result<(), Error> {
        let map = self.loaded.maps.get(index).and_then(Option::as_ref).ok_or(Error::NoSuchMap(index))?;
        let spec = &self.image.maps[index];
        let outer = map.outer.as_ref().ok_or_else(|| Error::NotSwappable(spec.name.clone()))?;
        let (_, fresh) = load::create_inner(spec)?;
        load::put_generation(outer, &fresh).map_err(|it| map.current.error("swap the generations of", it))?;
        map.current.replace(fresh).for_each(f)
    }

    /// Addresses of a stack that the kernel took, innermost first; `None` when it is not (or no
    /// longer) there.
    pub fn stack_addresses(&self, stack: StackKey) -> Option<Vec<u64>> {
        let id = match stack {
            StackKey::LinuxUser { id, .. } | StackKey::LinuxKernel { id } => id,
            StackKey::Collector { .. } | StackKey::Empty | StackKey::Lost => return None,
        };
        let stored = self.map(self.roles.stacks?)?.lookup(&id.to_ne_bytes()).ok()??;
        let words = stored.first()?.as_chunks::<8>().0.iter().map(|it| u64::from_ne_bytes(*it));
        Some(words.take_while(|it| *it != 0).collect())
    }

    /// Counts of `Plan::loss_sites` in the kernel, summed over CPUs; empty where the plan has
    /// no loss map in the kernel.
    pub fn loss_counts(&self) -> Vec<u64> {
        let Some(map) = self.roles.losses.and_then(|it| self.map(it)) else { return Vec::new() };
        let mut counts = vec![0u64; map.spec().max_entries as usize];
        let read = map.for_each(&mut |key, cpus| {
            let index = key.first_chunk().map(|it| u32::from_ne_bytes(*it) as usize);
            if let Some(count) = index.and_then(|it| counts.get_mut(it)) {
                let words = cpus.iter().filter_map(|it| it.first_chunk()).map(|it| u64::from_ne_bytes(*it));
                *count = words.fold(*count, u64::wrapping_add);
            }
        });
        if read.is_err() { Vec::new() } else { counts }
    }

    /// Hits that the kernel skipped because the same program was already running on that CPU.
    pub fn missed_hits(&self) -> u64 {
        self.loaded.programs.iter().flatten().filter_map(|it| sys::prog_misses(it.as_fd()).ok()).sum()
    }

    /// What the scope's processes did since last asked, in order of time. Looks for new events
    /// first, so that it can be called without [`Linux::poll`].
    pub fn processes(&mut self) -> Vec<ProcessEvent> {
        self.handle_process_events();
        std::mem::take(&mut self.events)
    }

    /// What was attached, or could not be, since last asked.
    pub fn news(&mut self) -> Vec<News> {
        self.look_for_unfollowed();
        std::mem::take(&mut self.news)
    }

    /// The map of tag arrays, for the thread that arms processes; `None` where no handler needs one.
    ///
    /// # Errors
    /// When the system has no descriptor for it.
    pub fn tag_arrays(&self) -> Result<Option<TagArrays>, Error> {
        let Some(map) = self.roles.tags.and_then(|it| self.map(it)) else { return Ok(None) };
        let spec = &self.image.maps[self.roles.tags.unwrap_or_default()];
        let fd = map.fd().as_fd().try_clone_to_owned().map_err(|it| map.error("share", it))?;
        Ok(Some(TagArrays::new(fd, spec.clone())))
    }

    /// Attaches the launch handlers that run in Linux at the collector's marker function, in whichever process
    /// loads `file`; returns how many there are. They leave out processes without a tag array.
    ///
    /// One link a file, since a process would otherwise wait some 10 ms for its own, in which many others start.
    pub fn attach_marker(&mut self, plan: &Plan, file: &Path, file_offset: u64) -> Result<usize, AttachError> {
        let handlers = plan.probes.iter().filter(|it| it.event == Event::Launch && it.place == Place::Linux);
        let programs: Vec<usize> = handlers.filter_map(|it| it.program).collect();
        for program in &programs {
            let link = attach::link_place(&self.loaded.programs, *program, file, file_offset)?;
            self.markers.add(None, vec![link]);
        }
        Ok(programs.len())
    }

    /// Takes back a process's tag array: for one whose collector is not armed after all. Its other probes stay.
    pub fn remove_tag_array(&mut self, pid: u32) {
        if let Some(tags) = self.roles.tags.and_then(|it| self.map(it)) {
            // Most processes have none.
            let _ = tags.delete(&pid.to_ne_bytes());
        }
    }

    fn watch_processes(&mut self, scope: &Scope) -> Option<Warning> {
        let pids = match scope {
            Scope::System => None,
            _ => Some(scope::with_descendants(&scope.pids())),
        };
        match Sideband::open(pids.as_deref()) {
            Ok(sideband) => {
                self.sideband = sideband;
                None
            }
            Err(error) => Some(Warning { probe: 0, text: unwatched(&error) }),
        }
    }

    fn is_system(&self) -> bool {
        matches!(self.scope, Some(Scope::System))
    }

    /// First the programs that follow, then the processes that there are: a fork in between is
    /// seen by one of the two.
    fn follow_targets(&mut self, scope: &Scope) {
        if self.roles.targets.is_none() {
            return;
        }
        self.attach_follower(Followers::watch_births);
        let seeds = match scope {
            Scope::System => scope::all_processes(),
            _ => scope.pids(),
        };
        seeds.iter().for_each(|it| self.add_target(*it));
        scope::with_descendants(&seeds).iter().skip(seeds.len()).for_each(|it| self.add_target(*it));
    }

    fn attach_follower(&mut self, watch: fn(&Followers) -> Result<OwnedFd, String>) {
        let Some(Ok(followers)) = &self.followers else { return };
        match watch(followers) {
            Ok(link) => self.links.add(None, vec![link]),
            Err(why) => self.followers = Some(Err(why)),
        }
    }

    /// Whether children become targets only when their process event is read.
    fn follows_late(&self) -> bool {
        matches!(self.followers, Some(Err(_)))
    }

    fn late_followers(&self) -> Option<Warning> {
        let why = self.followers.as_ref()?.as_ref().err()?;
        let text = format!("children are followed a moment late, and counted as unprobed_process: {why}");
        Some(Warning { probe: 0, text })
    }

    fn add_target(&mut self, pid: u32) {
        let Some(targets) = self.roles.targets.and_then(|it| self.map(it)) else { return };
        if targets.update(&pid.to_ne_bytes(), &1u32.to_ne_bytes(), 0).is_err() {
            self.refused_targets += 1;
        }
    }

    fn attach_probe(&mut self, index: usize, probe: &Probe, warnings: &mut Vec<Warning>) -> Outcome {
        let Some(program) = probe.program else {
            return Outcome::Failed(not_compiled(&probe.name));
        };
        match &probe.target {
            Target::Function { object, function } => {
                self.functions.push(FunctionProbe {
                    probe: index,
                    program,
                    entry_program: probe.entry_program,
                    at_return: probe.event == Event::Uretprobe,
                    object: object.clone(),
                    function: function.clone(),
                    every_file: probe.scope == ProbeScope::System || self.is_system(),
                    every_process: probe.scope != ProbeScope::Process || self.is_system(),
                    files: Vec::new(),
                    seen: HashSet::new(),
                });
                self.attach_function(self.functions.len() - 1, warnings)
            }
            Target::Tracepoint { category, name } => {
                match attach::link_tracepoint(&self.loaded.programs, program, category, name) {
                    Ok(links) => self.hold(links, 1),
                    Err(error) => Outcome::Failed(error),
                }
            }
            Target::Profile { hz } => match attach::link_profile(&self.loaded.programs, program, *hz) {
                Ok((links, cpus)) => self.hold(links, cpus),
                Err(error) => Outcome::Failed(error),
            },
            Target::Interval { .. } | Target::Calls(_) | Target::None => Outcome::Failed(not_compiled(&probe.name)),
        }
    }

    fn hold(&mut self, links: Vec<OwnedFd>, functions: usize) -> Outcome {
        self.links.add(None, links);
        Outcome::Attached { functions, files: Vec::new() }
    }

    fn attach_function(&mut self, index: usize, warnings: &mut Vec<Warning>) -> Outcome {
        let scope = match (&self.scope, self.functions[index].every_file) {
            (Some(Scope::Command(command)), _) => Scope::Command(command.clone()),
            (_, true) => Scope::System,
            _ => Scope::Processes(self.alive.iter().copied().collect()),
        };
        let object = self.functions[index].object.clone();
        let candidates = self.functions[index].candidates(&scope);
        if candidates.is_empty() && object.contains('/') && !object.contains(['*', '?']) {
            return Outcome::Failed(AttachError::NoSuchFile(PathBuf::from(object)));
        }
        let mut errors = Vec::new();
        for file in &candidates {
            match self.attach_file(index, file) {
                Ok(more) => warnings.extend(more),
                // The executable was only a guess for a library that may be linked statically.
                Err(AttachError::NoSuchFunction { file, .. }) if !resolve::is_candidate(&object, &file) => {}
                Err(error) => errors.push(error),
            }
        }
        match (self.functions[index].files.is_empty(), attach::most_telling(errors)) {
            (false, _) => self.functions[index].attached(),
            (true, Some(error)) => Outcome::Failed(error),
            (true, None) => Outcome::Pending,
        }
    }

    /// Looks into a file and links what it found, in all processes of the scope or in none.
    fn attach_file(&mut self, index: usize, file: &Candidate) -> Result<Vec<Warning>, AttachError> {
        let names = &mut self.names;
        let probe = &mut self.functions[index];
        let programs = &self.loaded.programs;
        let Some(found) = probe.look_into(file, programs, &mut |it| names.intern(it))? else { return Ok(Vec::new()) };
        match self.link_file(index, found.file) {
            Ok(links) => self.links.take_over(links),
            Err(error) => {
                self.functions[index].files.pop();
                return Err(error);
            }
        }
        Ok(found.warnings)
    }

    fn link_file(&self, index: usize, file: usize) -> Result<Links, AttachError> {
        let probe = &self.functions[index];
        let pids: Vec<Option<u32>> = match probe.every_process {
            true => vec![None],
            false => self.alive.iter().copied().map(Some).collect(),
        };
        let mut linked = Links::default();
        for pid in pids {
            match probe.link(file, pid, &self.loaded.programs) {
                Ok(links) => linked.add(pid, links),
                Err(AttachError::NoSuchProcess(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(linked)
    }

    /// Whether the probe is in the file now, or is not for it.
    fn attach_late(&mut self, index: usize, file: &Candidate, named: bool) -> bool {
        let probe = self.functions[index].probe;
        match self.attach_file(index, file) {
            Ok(warnings) => {
                self.news.extend(warnings.into_iter().map(News::Warning));
                let outcome = self.functions[index].attached();
                self.news.push(News::Probe(ProbeReport { probe, outcome }));
                self.late_files.insert(file.id, sys::monotonic_nanos());
            }
            // Another file has it, or the executable was only a guess.
            Err(AttachError::NoSuchFunction { .. }) if !named || !self.functions[index].files.is_empty() => {}
            Err(error) => {
                let is_final = error.is_of_the_file();
                self.news.push(News::Probe(ProbeReport { probe, outcome: Outcome::Failed(error) }));
                if !is_final {
                    self.functions[index].seen.remove(&file.id);
                }
                return is_final;
            }
        }
        true
    }

    /// Attaches the probes that name functions in a file which a process has just mapped. `file`
    /// is its path as the process sees it.
    fn on_mapping(&mut self, pid: u32, file: &Path, time_nanos: u64) {
        let wanted = self.functions.iter().any(|it| resolve::is_candidate(&it.object, file));
        let may_be_static = self.functions.iter().any(|it| resolve::may_be_static(&it.object));
        if !wanted && !may_be_static {
            return;
        }
        let path = mapped_path(pid, file);
        let Some(id) = resolve::file_id(&path) else {
            // The process has ended, and with it our view of its files.
            if wanted && !self.is_probed_by_name(file) {
                self.tell_late(pid, file, time_nanos);
            }
            return;
        };
        let is_executable = || std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|it| it == file);
        let executable = may_be_static && is_executable();
        let mut attached = true;
        for index in 0..self.functions.len() {
            let probe = &self.functions[index];
            let named = resolve::is_candidate(&probe.object, file);
            let guessed = executable && resolve::may_be_static(&probe.object);
            if (named || guessed) && !probe.seen.contains(&id) {
                attached &= self.attach_late(index, &Candidate { id, path: path.clone() }, named);
            }
        }
        if !attached || self.late_files.get(&id).is_some_and(|at| time_nanos < *at) {
            self.tell_late(pid, file, time_nanos);
        }
    }

    /// Whether a file of this name is probed for every probe that asks for it.
    fn is_probed_by_name(&self, file: &Path) -> bool {
        let named = |it: &FunctionProbe| it.files.iter().any(|it| it.path.file_name() == file.file_name());
        self.functions.iter().filter(|it| resolve::is_candidate(&it.object, file)).all(named)
    }

    fn tell_late(&mut self, pid: u32, file: &Path, since_nanos: u64) {
        let micros = sys::monotonic_nanos().saturating_sub(since_nanos) / 1000;
        self.news.push(News::LateFile(LateFile { pid, file: file.to_path_buf(), micros }));
    }

    fn handle_process_events(&mut self) {
        for event in self.sideband.drain() {
            match &event {
                ProcessEvent::Fork { time_nanos, parent, pid } => self.on_fork(*parent, *pid, *time_nanos),
                ProcessEvent::Mmap { pid, path, time_nanos, .. } => self.on_mapping(*pid, path, *time_nanos),
                ProcessEvent::Exit { pid, .. } => self.forget(*pid),
                ProcessEvent::Exec { .. } => {}
            }
            self.events.push(event);
        }
        for Replaced { pid, time_nanos } in self.sideband.replaced() {
            if self.alive.contains(&pid) {
                // Both would fire at a hit, if the old ones still did.
                self.links.remove_now(pid);
                self.link_process(pid, time_nanos, false);
            }
        }
    }

    /// Gives a new process of the scope its own links, and makes it a target where the kernel does
    /// not.
    fn on_fork(&mut self, parent: u32, pid: u32, time_nanos: u64) {
        let is_ours = self.alive.contains(&parent);
        let late = self.follows_late() && (is_ours || self.is_system());
        if late {
            self.add_target(pid);
        }
        let is_new = match is_ours {
            true => self.alive.insert(pid),
            false => late,
        };
        if is_new {
            self.link_process(pid, time_nanos, late);
        }
    }

    /// Links the probes of which each process has its own, and tells since when there were none.
    fn link_process(&mut self, pid: u32, since_nanos: u64, late: bool) {
        let mut failed = None;
        let mut linked = 0;
        for probe in self.functions.iter().filter(|it| !it.every_process && !it.files.is_empty()) {
            match probe.link_all(pid, &self.loaded.programs) {
                Ok(links) => self.links.add(Some(pid), links),
                Err(error) => failed = Some(error),
            }
            linked += 1;
        }
        if linked > 0 || late {
            let micros = sys::monotonic_nanos().saturating_sub(since_nanos) / 1000;
            self.news.push(News::Child(Unprobed { pid, micros, failed }));
        }
    }

    fn forget(&mut self, pid: u32) {
        self.links.remove(pid);
        self.alive.remove(&pid);
        // Programs in the kernel have done it already; the number may be another process's by now.
        let targets = self.roles.targets.filter(|_| self.follows_late());
        for map in [self.roles.tags, targets].into_iter().flatten().filter_map(|it| self.map(it)) {
            // Most processes have no tag array.
            let _ = map.delete(&pid.to_ne_bytes());
        }
    }

    /// What became of processes that nobody told of yet.
    fn look_for_unfollowed(&mut self) {
        let in_linux = self.followers.as_ref().and_then(|it| it.as_ref().ok()).map_or(0, Followers::unfollowed);
        let all = in_linux + self.refused_targets;
        if all > self.told_unfollowed {
            self.news.push(News::Unfollowed(all - self.told_unfollowed));
            self.told_unfollowed = all;
        }
        if self.sideband.lost > 0 && !std::mem::replace(&mut self.lost_events_told, true) {
            let text = "process events were lost, as too many came at once: processes and files of that moment may \
                        have no uprobes, and stacks no names"
                .into();
            self.news.push(News::Warning(Warning { probe: 0, text }));
        }
    }

    /// What the scope's processes have mapped already, as if they had just done so.
    fn report_existing_mappings(&mut self) {
        if !matches!(self.scope, Some(Scope::Processes(_))) {
            return;
        }
        let time_nanos = sys::monotonic_nanos();
        let mut build_ids: HashMap<PathBuf, Vec<u8>> = HashMap::new();
        for pid in self.alive.clone() {
            let view = View::of(pid);
            for mapping in proc_maps::of(pid).unwrap_or_default() {
                let path = view.mapped(&mapping);
                let build_id = build_ids
                    .entry(path)
                    .or_insert_with_key(|it| Elf::open(it).map(|it| it.build_id()).unwrap_or_default())
                    .clone();
                let proc_maps::FileMapping { start, len, pgoff, path, .. } = mapping;
                self.events.push(ProcessEvent::Mmap { time_nanos, pid, start, len, pgoff, path, build_id });
            }
        }
    }
}

/// Whether a probe is attached by [`Linux::attach`].
fn runs_here(probe: &Probe) -> bool {
    probe.place == Place::Linux && probe.event != Event::Launch
}

fn not_compiled(name: &str) -> AttachError {
    AttachError::Refused {
        what: name.to_owned(),
        answer: "it has nothing that could be attached in the kernel".into(),
        hint: "; this is a bug in xputrace".into(),
    }
}

/// Why process events are not available, and what follows from it.
fn unwatched(error: &std::io::Error) -> String {
    let hint = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "; run as root or set sysctl kernel.perf_event_paranoid=1",
        errno => attach::hint(errno),
    };
    format!(
        "cannot watch processes by perf events: {error}{hint}. Files that are mapped from now on have no uprobes, \
         nor have new children that need uprobes of their own (`scope: \"process\"`)"
    )
}

fn open_ring(loaded: &Loaded, index: usize) -> Result<Ring, Error> {
    let map = loaded.maps.get(index).and_then(Option::as_ref).ok_or(Error::NoSuchMap(index))?;
    let fd = map.current.try_clone_fd()?;
    Ring::new(fd, map.current.spec().max_entries).map_err(|it| map.current.error("map the ring of", it))
}

/// A path that we can open for a file that a process has mapped under `file`.
fn mapped_path(pid: u32, file: &Path) -> PathBuf {
    let view = View::of(pid);
    let direct = view.file(file);
    if direct.exists() {
        return direct;
    }
    let mappings = proc_maps::of(pid).unwrap_or_default();
    mappings.iter().find(|it| it.path == file).map_or(direct, |it| view.mapped(it))
}
