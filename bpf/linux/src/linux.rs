//! [`Linux`]: what a run holds in Linux.

use crate::attach;
use crate::compiled::{self, Rings};
use crate::error::{AttachError, Error};
use crate::links::Links;
use crate::load::{self, LoadedMap};
use crate::map::{MapHandle, OnElement};
use crate::marker::TagArrays;
use crate::probes::Probes;
use crate::report::{AttachReport, News, Warning};
use crate::resolve;
use crate::ring::Ring;
use crate::scope::{self, Scope};
use crate::sideband::{self, MOST_PARANOID_FOR_PROCESSES, MOST_PARANOID_FOR_SYSTEM, ProcessEvent, Sideband};
use crate::sys;
use crate::targets::{MOST_THREADS, Targets};
use crate::usdt::Rules;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;
use xputrace_bytecode::{BpfMapId, Image, ProgramId, callers};
use xputrace_model::names::Names;
use xputrace_model::plan::{Place, Plan, ProbeId};
use xputrace_model::schema::Event;
use xputrace_model::stack::{LINUX_FRAMES, StackKey};
use xputrace_model::table::TableId;

/// Everything a run holds in Linux: programs, maps and links. Dropping it removes all of them.
pub struct Linux {
    probes: Probes,
    /// Links to the collectors' marker function.
    markers: Links,
    /// Links of the programs that keep the map of targets up to date.
    followers: Vec<OwnedFd>,
    targets: Option<Targets>,
    image: Image,
    maps: Vec<Option<LoadedMap>>,
    roles: Roles,
    ring: Option<Ring>,
    /// Of a compiled object's programs.
    rings: Rings,
    scope: Scope,
    sideband: Sideband,
    lost_events_told: bool,
    /// Processes without their main thread that were told of.
    leaderless_told: BTreeSet<u32>,
    events: Vec<ProcessEvent>,
    news: Vec<News>,
}

/// The image's maps that have a special role.
#[derive(Clone, Copy, Debug, Default)]
struct Roles {
    losses: Option<BpfMapId>,
    stacks: Option<BpfMapId>,
    callers: Option<BpfMapId>,
    tags: Option<BpfMapId>,
    stored: Option<BpfMapId>,
}

impl Linux {
    /// Loads the plan's programs for Linux and the maps that live in Linux. If the verifier refuses
    /// a program, that is a bug in the compiler; the error names the script's line.
    pub fn load(plan: &Plan) -> Result<Linux, Error> {
        Linux::load_following(plan, MOST_THREADS)
    }

    /// Like [`Linux::load`], but at most so many threads are followed at a time.
    ///
    /// # Errors
    /// As for [`Linux::load`].
    pub fn load_following(plan: &Plan, most_threads: u32) -> Result<Linux, Error> {
        let image = plan.image.clone();
        let (loaded, compiled) = match plan.object.as_ref().and_then(|it| Some((it, it.elf.as_ref()?))) {
            Some((object, elf)) => compiled::load(&image, object, elf).map(|(loaded, it)| (loaded, Some(it)))?,
            None => (load::load(&image)?, None),
        };
        let map = |map: BpfMapId| loaded.maps.get(map.index()).and_then(Option::as_ref).ok_or(Error::NoSuchMap(map));
        let ring = plan.linux_ring.map(|it| load::open_ring(map(it)?)).transpose()?;
        let load_targets =
            |it: &LoadedMap| Targets::load(it.current.fd().as_fd(), most_threads).map_err(Error::NotFollowed);
        let targets = plan.targets.map(|it| load_targets(map(it)?)).transpose()?;
        let rules = plan.usdt_rules.map(|it| map(it).map(|it| it.current.clone())).transpose()?;
        let rings = compiled.as_ref().map(|it| it.rings(&image, &loaded.maps)).transpose()?.unwrap_or_default();
        Ok(Linux {
            probes: Probes::new(loaded.programs, compiled, &plan.strings, Rules::of(rules)),
            markers: Links::default(),
            followers: Vec::new(),
            targets,
            image,
            maps: loaded.maps,
            roles: Roles {
                losses: plan.linux_losses,
                stored: plan.linux_stored,
                stacks: plan.linux_stacks,
                callers: plan.linux_callers,
                tags: plan.tags,
            },
            ring,
            rings,
            scope: Scope::Processes(Vec::new()),
            sideband: Sideband::default(),
            lost_events_told: false,
            leaderless_told: BTreeSet::new(),
            events: Vec::new(),
            news: Vec::new(),
        })
    }

    /// Runs `f` with `names` as the string table. Functions matched by a pattern then get ids of
    /// the run's table; a hit's cookie is the id of its function's name.
    ///
    /// Use this around every call that may attach: [`Linux::attach`], [`Linux::poll`] and
    /// [`Linux::processes`].
    pub fn lending<R>(&mut self, names: &mut Names, f: impl FnOnce(&mut Linux) -> R) -> R {
        std::mem::swap(&mut self.probes.names, names);
        let result = f(self);
        std::mem::swap(&mut self.probes.names, names);
        result
    }

    /// Returns the string table used outside [`Linux::lending`].
    pub fn names(&self) -> &Names {
        &self.probes.names
    }

    /// Attaches every probe that can be attached now; a failure does not affect the other probes.
    /// Starts to watch process events before the first link exists, so no event falls in between.
    ///
    /// # Errors
    /// The scope's processes cannot be followed. Probes limited to them would see nothing.
    pub fn attach(&mut self, plan: &Plan, scope: &Scope) -> Result<AttachReport, Error> {
        let mut report = AttachReport::default();
        self.scope = scope.clone();
        report.warnings.extend(self.watch_processes(scope));
        let name = if let Scope::Named(name) = scope { Some(name) } else { None };
        self.follow(|it| it.watch_births(name))?;
        self.follow(|it| it.watch_takeovers())?;
        match scope {
            Scope::Command(_) => self.follow(|it| it.watch_exec())?,
            Scope::Named(name) => self.follow(|it| it.watch_name(name))?,
            Scope::Processes(_) | Scope::System => {}
        }
        self.add_targets()?;
        report.probes = self.probes.attach(plan, scope, &mut report.warnings);
        // After the script's handlers, which must still see the thread.
        self.follow(|it| it.watch_frees())?;
        self.report_existing_mappings();
        Ok(report)
    }

    /// Detaches a probe until [`Linux::switch_on`].
    pub fn switch_off(&mut self, probe: ProbeId) {
        self.probes.switch_off(probe);
    }

    /// Attaches a probe again. Calls that were open when it was detached have no return.
    ///
    /// # Errors
    /// Linux refuses it.
    pub fn switch_on(&mut self, plan: &Plan, probe: ProbeId) -> Result<(), AttachError> {
        let Some(it) = plan.probes.get(probe.index()) else { return Ok(()) };
        self.forget_open_calls(plan, probe);
        self.probes.switch_on(probe, it)
    }

    /// Forgets the open calls of a return probe: another call may have the stack slot of one whose return was not seen.
    fn forget_open_calls(&self, plan: &Plan, probe: ProbeId) {
        let Some(entries) = plan.linux_entries.and_then(|it| self.map(it)) else { return };
        let mut open = Vec::new();
        let _ = entries.for_each(&mut |key, _| {
            if key.ends_with(&u64::from(probe.0).to_ne_bytes()) {
                open.push(key.to_vec());
            }
        });
        open.iter().for_each(|it| _ = entries.delete(it));
    }

    /// Detaches all probes for good, and keeps programs and maps. From here on the maps and the
    /// ring buffer are consistent with each other.
    pub fn detach(&mut self) {
        self.probes.detach();
        self.markers = Links::default();
        self.followers.clear();
    }

    /// Returns the descriptors that become readable when [`Linux::poll`] has something to do.
    pub fn fds(&self) -> impl Iterator<Item = std::os::fd::RawFd> + '_ {
        let ring = self.ring.as_ref().map(|it| it.fd().as_raw_fd());
        self.sideband.fds().chain(ring).chain(self.rings.fds())
    }

    /// Passes on the records that a compiled object's programs have written, each with its ring. Returns `false` if a
    /// record that is still being written holds back later ones.
    ///
    /// # Errors
    /// They can't be read.
    pub fn object_records(&mut self, on_record: &mut dyn FnMut(BpfMapId, &[u8])) -> Result<bool, Error> {
        self.rings.drain(on_record)
    }

    /// Returns how many records of a compiled object's programs did not fit into its rings, as far as Linux counts them.
    pub fn lost_object_records(&self) -> u64 {
        self.rings.n_lost()
    }

    /// Waits at most `timeout` for records in the ring buffer or process events. Passes on the
    /// records, and attaches to new children and newly mapped files. Records come in the order in
    /// which handlers reserved them; records written during the call are left for the next one.
    /// Returns `false` if a record that is still being written holds back later ones.
    pub fn poll(&mut self, timeout: Duration, on_record: &mut dyn FnMut(&[u8])) -> Result<bool, Error> {
        let ring = self.ring.as_ref().map(|it| it.fd().as_raw_fd());
        let wait = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds: Vec<_> = self.sideband.fds().chain(ring).map(wait).collect();
        let millis = timeout.as_micros().div_ceil(1000).try_into().unwrap_or(i32::MAX);
        sys::wait_readable(&mut fds, millis)
            .map_err(|answer| Error::System { what: "wait for events of Linux".into(), answer })?;
        // Children first: until their links exist, their hits are missing.
        self.handle_process_events();
        Ok(self.ring.as_mut().is_none_or(|it| it.drain(on_record)))
    }

    /// Returns a map of `Plan::image`, if it lives in Linux: the current generation, if it has two.
    pub fn map(&self, map: BpfMapId) -> Option<&MapHandle> {
        self.maps.get(map.index())?.as_ref().map(|it| &it.current)
    }

    /// Replaces the current generation by an empty one and waits until no program uses the old one.
    /// Then passes on each of the old one's keys with one value per CPU.
    pub fn swap(&mut self, id: BpfMapId, f: &mut OnElement<'_>) -> Result<(), Error> {
        let map = self.maps.get(id.index()).and_then(Option::as_ref).ok_or(Error::NoSuchMap(id))?;
        let spec = &self.image.maps[id];
        let outer = map.outer.as_ref().ok_or_else(|| Error::NotSwappable(spec.name.clone()))?;
        let (_, fresh) = load::create_inner(spec)?;
        load::put_generation(outer, &fresh).map_err(|it| map.current.error("swap the generations of", it))?;
        let old = map.current.replace(fresh);
        old.for_each(&mut |key, values| {
            map.current.count_stored(-1);
            f(key, values);
        })
    }

    /// Returns how many elements Linux evicted from a map of the script. Exact unless elements are
    /// stored meanwhile.
    pub fn evicted(&self, map: BpfMapId, table: TableId) -> u64 {
        let Some(map) = self.map(map) else { return 0 };
        let by_programs = self.roles.stored.and_then(|it| self.map(it)?.lookup(&table.0.to_ne_bytes()).ok()?);
        let words = by_programs.iter().flatten().filter_map(|it| it.first_chunk()).map(|it| i64::from_ne_bytes(*it));
        let stored = words.fold(map.stored(), i64::wrapping_add);
        let mut present = 0;
        let counted = map.for_each(&mut |_, _| present += 1);
        if counted.is_err() { 0 } else { u64::try_from(stored - present).unwrap_or(0) }
    }

    /// Returns the addresses of a stack that Linux took, innermost first, or `None` if it is not
    /// there.
    pub fn stack_addresses(&self, stack: StackKey) -> Option<Vec<u64>> {
        let (StackKey::LinuxUser { id, .. } | StackKey::LinuxKernel { id }) = stack.whole() else { return None };
        let stacks = self.map(self.roles.stacks?)?;
        let (id, caller) = callers::split(id, stacks.spec().max_entries);
        let stored = stacks.lookup(&id.to_ne_bytes()).ok()??;
        let words = stored.first()?.as_chunks::<8>().0.iter().map(|it| u64::from_ne_bytes(*it));
        let mut addresses: Vec<u64> = words.take_while(|it| *it != 0).collect();
        let caller = caller.and_then(|it| self.caller(it)).filter(|it| addresses.get(1) != Some(it));
        if let (Some(caller), false) = (caller, addresses.is_empty()) {
            addresses.insert(1, caller);
            addresses.truncate(LINUX_FRAMES as usize);
        }
        Some(addresses)
    }

    fn caller(&self, place: u32) -> Option<u64> {
        let stored = self.map(self.roles.callers?)?.lookup(&place.to_ne_bytes()).ok()??;
        Some(u64::from_ne_bytes(*stored.first()?.first_chunk()?))
    }

    /// Returns the counts of `Plan::loss_sites` in Linux, summed over CPUs; empty if the plan has
    /// no loss map in Linux.
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

    /// Returns the number of hits that Linux skipped because a program was already running on that
    /// CPU.
    pub fn missed_hits(&self) -> u64 {
        self.probes.missed_hits()
    }

    /// Returns what the scope's processes did since the last call, in order of time. Looks for new
    /// events first, so it works without [`Linux::poll`].
    pub fn processes(&mut self) -> Vec<ProcessEvent> {
        self.handle_process_events();
        std::mem::take(&mut self.events)
    }

    /// Returns the scope's running processes, as of the last [`Linux::processes`]; empty for
    /// [`Scope::System`].
    pub fn running(&self) -> Vec<u32> {
        self.sideband.running()
    }

    /// Returns what was attached, or failed to be, since the last call.
    pub fn news(&mut self) -> Vec<News> {
        self.look_for_losses();
        let mut news = self.probes.take_news();
        news.append(&mut self.news);
        news
    }

    /// Returns the map of tag arrays for the thread that arms processes; `None` if no handler needs
    /// it.
    ///
    /// # Errors
    /// The process is out of file descriptors.
    pub fn tag_arrays(&self) -> Result<Option<TagArrays>, Error> {
        let Some((id, map)) = self.roles.tags.and_then(|id| Some((id, self.map(id)?))) else { return Ok(None) };
        let spec = &self.image.maps[id];
        let fd = map.fd().as_fd().try_clone_to_owned().map_err(|it| map.error("share", it))?;
        Ok(Some(TagArrays::new(fd, spec.clone())))
    }

    /// Attaches the launch handlers that run in Linux to the function `marker` of a collector's file, in every
    /// process that loads it. Returns the number of handlers. They skip processes without a tag array.
    ///
    /// One link per file: attaching to a single process takes some 10 ms, in which many others may
    /// start.
    pub fn attach_marker(&mut self, plan: &Plan, file: &Path, marker: &str) -> Result<usize, AttachError> {
        let file_offset = resolve::first_instruction(file, marker)?;
        let handlers =
            ProbeId::each(&plan.probes).filter(|(_, it)| it.event == Event::Launch && it.place == Place::Linux);
        let programs: Vec<(ProbeId, ProgramId)> = handlers.filter_map(|(id, it)| Some((id, it.program?))).collect();
        for (probe, program) in programs.iter().copied() {
            let link = attach::link_place(self.probes.programs(), program, file, file_offset)?;
            self.markers.add(probe, vec![link]);
        }
        Ok(programs.len())
    }

    /// Removes a process's tag array. Other probes in the process are not affected.
    pub fn remove_tag_array(&mut self, pid: u32) {
        if let Some(tags) = self.roles.tags.and_then(|it| self.map(it)) {
            // Most processes have none.
            let _ = tags.delete(&pid.to_ne_bytes());
        }
    }

    fn watch_processes(&mut self, scope: &Scope) -> Option<Warning> {
        let pids = (!scope.is_open()).then(|| scope::with_descendants(&scope.pids()));
        match Sideband::open(pids.as_deref()) {
            Ok(sideband) => {
                self.sideband = sideband;
                None
            }
            Err(error) => Some(Warning { probe: None, text: unwatched(&error, scope) }),
        }
    }

    fn follow(&mut self, watch: impl FnOnce(&mut Targets) -> Result<OwnedFd, String>) -> Result<(), Error> {
        if let Some(targets) = &mut self.targets {
            self.followers.push(watch(targets).map_err(Error::NotFollowed)?);
        }
        Ok(())
    }

    /// Makes running processes targets. The programs that follow targets are attached before this,
    /// so a child forked meanwhile is seen by them or found here.
    fn add_targets(&self) -> Result<(), Error> {
        let Some(targets) = &self.targets else { return Ok(()) };
        let seeds = match &self.scope {
            Scope::System => return targets.add(None).map_err(Error::NotFollowed),
            Scope::Command(command) => return targets.await_exec(command.pid).map_err(Error::NotFollowed),
            Scope::Processes(pids) => scope::with_descendants(pids),
            Scope::Named(name) => scope::processes_named(name),
        };
        let add = |it: &u32| targets.add(Some(*it)).map_err(Error::NotFollowed);
        seeds.iter().try_for_each(add)
    }

    fn handle_process_events(&mut self) {
        for event in self.sideband.drain() {
            match &event {
                ProcessEvent::Fork { time_nanos, parent, pid } => self.probes.on_fork(*parent, *pid, *time_nanos),
                ProcessEvent::Mmap { pid, path, build_id, time_nanos, .. } => {
                    self.probes.on_mapping(*pid, path, build_id, *time_nanos)
                }
                ProcessEvent::Exit { pid, .. } => self.forget(*pid),
                ProcessEvent::Exec { pid, time_nanos, had_threads, .. } => {
                    self.probes.on_exec(*pid, *had_threads, *time_nanos)
                }
                ProcessEvent::ThreadName { pid, comm, .. } => self.on_thread_name(*pid, comm),
            }
            self.events.push(event);
        }
        for pid in self.sideband.leaderless() {
            if self.probes.has_own_links(pid) && self.leaderless_told.insert(pid) {
                self.news.push(News::Warning(Warning { probe: None, text: leaderless(pid) }));
            }
        }
        for it in self.sideband.unwatched() {
            // Of one that has ended, the stacks without names are counted when they are shown.
            let Some(error) = it.refusal else { continue };
            let text = format!(
                "process {} changed privileges at exec, and cannot be watched any more: {error}. Its new children and \
                 files have no uprobes of their own, and its stacks no names",
                it.pid
            );
            self.news.push(News::Warning(Warning { probe: None, text }));
        }
    }

    /// A process that takes the scope's name becomes a target with the threads that it has already, and one that gives
    /// it up is none with all of its threads.
    fn on_thread_name(&mut self, pid: u32, comm: &str) {
        let (Scope::Named(name), Some(targets)) = (&self.scope, &self.targets) else { return };
        let change = match scope::has_name(pid, name) {
            true if name.matches(comm) => targets.add(Some(pid)),
            // Another thread took another name.
            true => Ok(()),
            false => targets.remove(pid),
        };
        if let Err(text) = change {
            self.news.push(News::Warning(Warning { probe: None, text }));
        }
    }

    fn forget(&mut self, pid: u32) {
        self.probes.forget(pid);
        self.leaderless_told.remove(&pid);
        self.remove_tag_array(pid);
    }

    /// Reports refused threads and lost process events, unless reported before.
    fn look_for_losses(&mut self) {
        let refused = self.targets.as_mut().map_or(0, Targets::newly_refused);
        if refused > 0 {
            self.news.push(News::Unfollowed(refused));
        }
        if self.sideband.lost > 0 && !std::mem::replace(&mut self.lost_events_told, true) {
            let text =
                "process events were lost, as too many came at once: processes started and files mapped just then \
                        may have no uprobes, and stacks no names"
                    .into();
            self.news.push(News::Warning(Warning { probe: None, text }));
        }
    }

    /// Reports the mappings that the scope's processes already have as new ones.
    fn report_existing_mappings(&mut self) {
        if matches!(self.scope, Scope::Processes(_)) {
            let alive: Vec<u32> = self.probes.alive().iter().copied().collect();
            self.events.extend(sideband::mappings_of(&alive));
        }
    }
}

/// Linux knows a link's process by the memory of its main thread (`uprobe_multi_link_filter`), which has none once it has
/// ended. So when any probe of a function is removed, it takes the function's breakpoints out of the process.
fn leaderless(pid: u32) -> String {
    format!(
        "process {pid} goes on without its main thread: new uprobes of its own do not fire, and earlier ones stop once \
         anyone removes a probe of the same function. Where they must, use `#{{scope: \"tree\"}}`"
    )
}

/// Explains why process events are unavailable, and the consequences.
fn unwatched(error: &std::io::Error, scope: &Scope) -> String {
    let most_paranoid = match scope {
        Scope::System | Scope::Named(_) => MOST_PARANOID_FOR_SYSTEM,
        Scope::Processes(_) | Scope::Command(_) => MOST_PARANOID_FOR_PROCESSES,
    };
    let hint = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            format!("; run as root, or set sysctl kernel.perf_event_paranoid={most_paranoid}")
        }
        errno => attach::hint(errno).to_owned(),
    };
    format!(
        "cannot watch processes by perf events: {error}{hint}. Files that are mapped from now on have no uprobes, \
         nor have new children that need uprobes of their own (`scope: \"process\"`)"
    )
}
