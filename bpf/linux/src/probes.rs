//! The probes of a run: where they are attached, and for which processes.
//!
//! A function's probe is attached to every file that contains the function: files known when the
//! run begins, and files that a process maps later.

use crate::attach::{self, Alive, FunctionProbe, PlaceTables, ProbedFile, Programs, Sampler, Sought, TracepointLink};
use crate::compiled::Compiled;
use crate::error::{AttachError, most_telling};
use crate::links::Links;
use crate::proc_maps::{self, FileMapping, View};
use crate::reach;
use crate::report::{LateFile, News, Outcome, ProbeReport, Unprobed, Warning};
use crate::resolve::{self, Candidate, Content, FileId, FilePart};
use crate::scope::{self, Scope};
use crate::sideband::is_over;
use crate::sys;
use crate::usdt::Rules;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use xputrace_model::names::Names;
use xputrace_model::plan::{Place, Plan, Probe, ProbeId, ProbePlace, ProbeScope, ProgramId};
use xputrace_model::schema::Event;

/// Links, and what is needed to link files and processes that come later.
pub(crate) struct Probes {
    // Drop order: links before the programs they refer to.
    links: Links,
    /// Of a compiled object's programs that libbpf attaches.
    links_of_libbpf: Vec<libbpf_rs::Link>,
    compiled: Option<Compiled>,
    /// By index in the image; `None` for programs that don't run in Linux.
    programs: Vec<Option<OwnedFd>>,
    /// Assigns ids to functions matched by a pattern.
    pub(crate) names: Names,
    /// Where USDT probes have their arguments.
    rules: Rules,
    functions: Vec<FunctionProbe>,
    samplers: Vec<Sampler>,
    /// Open while Linux counts program runs. Needed if samples may be missed.
    run_counting: Option<OwnedFd>,
    /// Missed samples, final once detached.
    missed_samples: u64,
    scope: Option<Scope>,
    /// The scope's running processes.
    alive: Alive,
    /// When files were probed that a process had mapped before.
    late_files: HashMap<FileId, u64>,
    /// The late files that a process had before they were probed.
    late_in: HashMap<u32, Vec<(FileId, PathBuf)>>,
    /// Files already reported as unprobed, by process. Reset at `exec`.
    told: HashMap<u32, HashSet<PathBuf>>,
    /// Processes that got their own links after they had started.
    linked: HashMap<u32, Linked>,
    news: Vec<News>,
}

/// A process that got its own links after it had started.
struct Linked {
    at_nanos: u64,
    /// Number of `exec`s before that.
    programs: u32,
}

impl Probes {
    pub(crate) fn new(
        programs: Vec<Option<OwnedFd>>,
        compiled: Option<Compiled>,
        strings: &[String],
        rules: Rules,
    ) -> Probes {
        Probes {
            links: Links::default(),
            links_of_libbpf: Vec::new(),
            compiled,
            programs,
            names: Names::new(strings),
            rules,
            functions: Vec::new(),
            samplers: Vec::new(),
            run_counting: None,
            missed_samples: 0,
            scope: None,
            alive: Alive::new(),
            late_files: HashMap::new(),
            late_in: HashMap::new(),
            told: HashMap::new(),
            linked: HashMap::new(),
            news: Vec::new(),
        }
    }

    pub(crate) fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Returns the scope's running processes.
    pub(crate) fn alive(&self) -> &Alive {
        &self.alive
    }

    fn is_system(&self) -> bool {
        self.scope.as_ref().is_some_and(Scope::is_open)
    }

    /// Attaches every probe of the plan that can be attached now; a failure does not affect the
    /// other probes.
    pub(crate) fn attach(&mut self, plan: &Plan, scope: &Scope, warnings: &mut Vec<Warning>) -> Vec<ProbeReport> {
        self.alive = scope::with_descendants(&scope.pids()).into_iter().collect();
        self.scope = Some(scope.clone());
        let has = |event| plan.probes.iter().any(|it| runs_here(it) && it.event == event);
        if has(Event::Profile) && has(Event::Tracepoint) {
            self.run_counting = sys::count_runs().ok();
        }
        let here = ProbeId::each(&plan.probes).filter(|(_, it)| runs_here(it)).collect();
        let told = warnings.len();
        let report = |(probe, it)| ProbeReport { probe, outcome: self.attach_probe(probe, it, warnings) };
        let mut reports: Vec<ProbeReport> = in_order_of_attaching(here).map(report).collect();
        reports.sort_by_key(|it| it.probe);
        warnings[told..].sort_by_key(|it| it.probe);
        self.reach_running(warnings);
        reports
    }

    /// Probes the files that running processes have really mapped, if they are not the ones to which their paths lead.
    fn reach_running(&mut self, warnings: &mut Vec<Warning>) {
        let pids: Vec<u32> = match &self.scope {
            _ if self.functions.is_empty() => return,
            Some(Scope::System) => scope::all_processes(),
            Some(Scope::Named(name)) => scope::processes_named(name),
            Some(Scope::Processes(_)) => self.alive.iter().copied().collect(),
            Some(Scope::Command(_)) | None => return,
        };
        for pid in pids {
            let view = View::of(pid);
            for mapping in proc_maps::of(pid).unwrap_or_default() {
                self.reach_mapping(pid, view, &mapping, warnings);
            }
        }
    }

    fn reach_mapping(&mut self, pid: u32, view: View, mapping: &FileMapping, warnings: &mut Vec<Warning>) {
        let Some(id) = resolve::file_id(&view.mapped(mapping)) else { return };
        for index in 0..self.functions.len() {
            let missed = |it: &&ProbedFile| it.id == id && it.is_reached(pid, mapping) == Some(false);
            let Some(part) = self.functions[index].files.iter().find(missed).map(|it| it.part) else { continue };
            // A process that has ended has no probes; one that has called `exec` meanwhile gets them with that event.
            let is_as_it_was = !is_over(pid) && !self.links.are_void(pid);
            if is_as_it_was && !self.reach(index, part, pid, mapping) {
                self.tell_unreached(index, pid, &mapping.path, warnings);
            }
        }
    }

    /// Probes what a process has really mapped, unless that is done. Returns whether it is found.
    fn reach(&mut self, index: usize, part: FilePart, pid: u32, mapping: &FileMapping) -> bool {
        for path in reach::others(pid, mapping, View::of(pid)) {
            let Some(id) = resolve::file_id(&path) else { continue };
            // Where it lacks the function, it is not the one.
            let _ = self.attach_file(index, &Candidate { id, path, part });
            let files = &self.functions[index].files;
            if files.iter().any(|it| it.id == id && it.is_reached(pid, mapping) == Some(true)) {
                return true;
            }
        }
        false
    }

    fn tell_unreached(&mut self, index: usize, pid: u32, file: &Path, warnings: &mut Vec<Warning>) {
        self.news.push(News::UnprobedProgram);
        let FunctionProbe { probe, object, sought, .. } = &self.functions[index];
        let text = format!(
            "process {pid} has mapped another file than the one that is now at {}, and it cannot be found: its calls of \
             {object}:{sought} are not seen. Restart the process",
            file.display()
        );
        warnings.push(Warning { probe: Some(*probe), text });
    }

    /// Detaches everything. From now on, new processes and newly mapped files get no links.
    pub(crate) fn detach(&mut self) {
        self.functions.clear();
        self.alive.clear();
        self.missed_samples = self.missed_samples();
        let samplers = std::mem::take(&mut self.samplers);
        samplers.into_iter().for_each(|it| self.links.add(it.probe, it.into_links()));
        self.links = Links::default();
        self.links_of_libbpf.clear();
        self.run_counting = None;
    }

    /// Removes a probe's links, which stay away until [`Probes::switch_on`].
    pub(crate) fn switch_off(&mut self, probe: ProbeId) {
        self.functions.iter_mut().filter(|it| it.probe == probe).for_each(|it| it.is_off = true);
        let samplers: Vec<Sampler> = self.samplers.extract_if(.., |it| it.probe == probe).collect();
        for sampler in samplers {
            self.missed_samples += sampler.missed(&self.programs);
            self.links.add(probe, sampler.into_links());
        }
        self.links.remove_probe(probe);
    }

    /// Attaches a probe again, where it is attached by now.
    ///
    /// # Errors
    /// Linux refuses it. What was attached so far stays.
    pub(crate) fn switch_on(&mut self, id: ProbeId, probe: &Probe) -> Result<(), AttachError> {
        let Some(index) = self.functions.iter().position(|it| it.probe == id) else {
            return match self.attach_probe(id, probe, &mut Vec::new()) {
                Outcome::Failed(error) => Err(error),
                _ => Ok(()),
            };
        };
        self.functions[index].is_off = false;
        for file in 0..self.functions[index].files.len() {
            let links = self.link_file(index, file)?;
            self.links.take_over(links);
        }
        Ok(())
    }

    /// Returns the number of hits that Linux skipped because a program was already running on that
    /// CPU, and of missed samples.
    pub(crate) fn missed_hits(&self) -> u64 {
        let counted = self.programs.iter().flatten().filter_map(|it| sys::prog_misses(it.as_fd()).ok());
        counted.sum::<u64>() + self.missed_samples()
    }

    /// Returns 0 for scripts without tracepoint handlers, which alone make Linux miss samples.
    fn missed_samples(&self) -> u64 {
        if self.run_counting.is_none() {
            return self.missed_samples;
        }
        self.missed_samples + self.samplers.iter().map(|it| it.missed(&self.programs)).sum::<u64>()
    }

    /// Links a new process of the scope.
    pub(crate) fn on_fork(&mut self, parent: u32, pid: u32, time_nanos: u64) {
        if self.alive.contains(&parent) && self.alive.insert(pid) {
            self.link_process(pid, time_nanos);
        }
        for (id, file) in self.late_in.get(&parent).cloned().unwrap_or_default() {
            self.had_file(pid, id, &file, time_nanos);
        }
    }

    /// Forgets the previous program's mappings. Links the process anew if a thread other than the
    /// main one called `exec`.
    pub(crate) fn on_exec(&mut self, pid: u32, had_threads: bool, time_nanos: u64) {
        self.late_in.remove(&pid);
        self.told.remove(&pid);
        if let Some(linked) = self.linked.get_mut(&pid).filter(|it| time_nanos < it.at_nanos) {
            linked.programs += 1;
            // The first `exec` is counted with the process itself.
            if linked.programs > 1 {
                self.news.push(News::UnprobedProgram);
            }
        }
        // The links of a process that has ended are void in any case.
        let is_replaced = self.alive.contains(&pid) && self.links.are_void(pid) && (had_threads || !is_over(pid));
        if is_replaced {
            self.links.remove_now(pid);
            self.link_process(pid, time_nanos);
        }
    }

    /// Whether a process has links of its own.
    pub(crate) fn has_own_links(&self, pid: u32) -> bool {
        self.links.has_own(pid)
    }

    /// Removes the links of an ended process.
    pub(crate) fn forget(&mut self, pid: u32) {
        self.links.remove(pid);
        self.alive.remove(&pid);
        self.late_in.remove(&pid);
        self.told.remove(&pid);
        self.linked.remove(&pid);
    }

    pub(crate) fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    fn attach_probe(&mut self, id: ProbeId, probe: &Probe, warnings: &mut Vec<Warning>) -> Outcome {
        let Some(program) = probe.program else {
            return Outcome::Failed(not_compiled(&probe.name));
        };
        match &probe.target {
            ProbePlace::Function { object, function } => {
                self.attach_in_files(id, probe, program, object, Sought::Function(function.clone()), warnings)
            }
            ProbePlace::Usdt { object, pattern } => {
                self.attach_in_files(id, probe, program, object, Sought::Usdt(pattern.clone()), warnings)
            }
            ProbePlace::Tracepoint { category, name } => {
                match attach::link_tracepoint(&self.programs, program, category, name) {
                    Ok(TracepointLink { link, event }) => {
                        self.links.add(id, vec![link]);
                        self.links.add_event(id, event);
                        Outcome::Attached { functions: 1, files: Vec::new() }
                    }
                    Err(error) => Outcome::Failed(error),
                }
            }
            ProbePlace::Profile { hz } => match Sampler::start(&self.programs, id, program, *hz) {
                Ok(sampler) => {
                    let functions = sampler.n_cpus();
                    self.samplers.push(sampler);
                    Outcome::Attached { functions, files: Vec::new() }
                }
                Err(error) => Outcome::Failed(error),
            },
            ProbePlace::Section(section) => {
                let attached = self.compiled.as_ref().map(|it| it.attach(program, section));
                match attached.unwrap_or_else(|| Err(not_compiled(&probe.name))) {
                    Ok(link) => {
                        self.links_of_libbpf.push(link);
                        Outcome::Attached { functions: 1, files: Vec::new() }
                    }
                    Err(error) => Outcome::Failed(error),
                }
            }
            ProbePlace::Interval { .. }
            | ProbePlace::Kernels(_)
            | ProbePlace::Calls(_)
            | ProbePlace::Api(_)
            | ProbePlace::None => Outcome::Failed(not_compiled(&probe.name)),
        }
    }

    /// Adds a probe of places in files, and attaches it to those files that are known.
    fn attach_in_files(
        &mut self,
        id: ProbeId,
        probe: &Probe,
        program: ProgramId,
        object: &str,
        sought: Sought,
        warnings: &mut Vec<Warning>,
    ) -> Outcome {
        self.functions.push(FunctionProbe {
            probe: id,
            program,
            entry_program: probe.entry_program,
            tail_program: probe.tail_program,
            returns: (probe.event == Event::Uretprobe).then_some(probe.returns),
            object: object.to_owned(),
            sought,
            arguments: probe.usdt_arguments.clone(),
            every_file: probe.scope == ProbeScope::System || self.is_system(),
            every_process: probe.scope != ProbeScope::Process || self.is_system(),
            is_off: false,
            files: Vec::new(),
            seen: HashMap::new(),
        });
        self.attach_function(self.functions.len() - 1, warnings)
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
                // The executable was only a guess: the library may be linked statically.
                Err(error) if error.without_it().is_some_and(|it| !resolve::is_candidate(&object, it)) => {}
                Err(error) => errors.push(error),
            }
        }
        match (self.functions[index].files.is_empty(), most_telling(errors)) {
            (false, _) => self.functions[index].attached(),
            (true, Some(error)) => Outcome::Failed(error),
            (true, None) => Outcome::Pending,
        }
    }

    /// Searches a file, and links what was found: in all processes if the probe is for every
    /// process, else in each process of the scope.
    fn attach_file(&mut self, index: usize, file: &Candidate) -> Result<Vec<Warning>, AttachError> {
        let mut known = PlaceTables { names: &mut self.names, rules: &mut self.rules };
        let probe = &mut self.functions[index];
        let Some(found) = probe.look_into(file, &self.programs, &mut known)? else { return Ok(Vec::new()) };
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
            _ if probe.is_off => Vec::new(),
            true => vec![None],
            false => self.alive.iter().copied().map(Some).collect(),
        };
        let mut linked = Links::default();
        for pid in pids {
            match probe.link(file, pid, &self.programs) {
                Ok(links) => linked.add_of_file(pid, probe.probe, probe.files[file].id, links),
                Err(AttachError::NoSuchProcess(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(linked)
    }

    /// Attaches a probe to a file that is already in use. Returns whether that is settled: the file
    /// is probed, or never will be.
    fn attach_late(&mut self, index: usize, file: &Candidate, named: bool) -> bool {
        let probe = self.functions[index].probe;
        match self.attach_file(index, file) {
            Ok(warnings) => {
                self.news.extend(warnings.into_iter().map(News::Warning));
                let outcome = self.functions[index].attached();
                self.news.push(News::Probe(ProbeReport { probe, outcome }));
                self.late_files.insert(file.id, sys::monotonic_nanos());
            }
            // Another file has the function, or the executable was only a guess.
            Err(it) if it.without_it().is_some() && (!named || !self.functions[index].files.is_empty()) => {}
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

    /// Attaches the probes that name functions in a newly mapped file. `file` is its path as the
    /// process sees it.
    pub(crate) fn on_mapping(&mut self, pid: u32, file: &Path, build_id: &[u8], time_nanos: u64) {
        // Anonymous memory may have a name too, such as `//anon` or `[vdso]`.
        let is_file = file.is_absolute() && !file.as_os_str().as_encoded_bytes().starts_with(b"//");
        let wanted = is_file && self.functions.iter().any(|it| resolve::is_candidate(&it.object, file));
        let may_be_static = self.functions.iter().any(|it| resolve::may_be_static(&it.object));
        if !is_file || (!wanted && !may_be_static) {
            return;
        }
        let path = mapped_path(pid, file);
        let Some(id) = resolve::file_id(&path) else {
            if let Some(id) = resolve::file_id(file) {
                self.forget_if_rewritten(id, file);
            }
            // The process has ended, so `/proc` no longer leads to its files.
            if wanted && !self.was_probed(file, build_id) {
                self.tell_late(pid, file, time_nanos);
            }
            return;
        };
        self.forget_if_rewritten(id, &path);
        let is_executable = || std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|it| it == file);
        let executable = may_be_static && is_executable();
        let mut attached = true;
        for index in 0..self.functions.len() {
            let probe = &self.functions[index];
            let named = resolve::is_candidate(&probe.object, file);
            let guessed = executable && resolve::may_be_static(&probe.object);
            if (named || guessed) && !probe.seen.contains_key(&id) {
                let part = if named { FilePart::All } else { FilePart::GpuRuntime };
                attached &= self.attach_late(index, &Candidate { id, path: path.clone(), part }, named);
            }
        }
        match attached {
            true => self.had_file(pid, id, file, time_nanos),
            false => self.tell_late(pid, file, time_nanos),
        }
    }

    /// Detaches the probes from a file whose content was replaced in place, so that they are attached anew.
    ///
    /// Linux probes offsets of an inode: in other content, a breakpoint may be amid an instruction.
    fn forget_if_rewritten(&mut self, id: FileId, file: &Path) {
        let Some(now) = Content::outside(file) else { return };
        let known = |it: &FunctionProbe| it.seen.get(&id).is_some_and(|it| it.is_replaced_by(&now, file));
        if !self.functions.iter().any(known) {
            return;
        }
        let probed_as = self.functions.iter_mut().filter_map(|it| it.forget(id)).last();
        self.links.remove_file(id);
        if let Some(path) = probed_as {
            let text = format!(
                "{} was rewritten while it was probed: programs that already ran the new content may have misbehaved, \
                 and their hits are not right. To replace a file, remove or rename the old one",
                path.display()
            );
            self.news.push(News::Warning(Warning { probe: None, text }));
        }
    }

    /// Records that a process has had a file since `since_nanos`, when it mapped the file or was
    /// forked by a parent that had it. Reports it if the file was not probed yet at that time.
    fn had_file(&mut self, pid: u32, id: FileId, file: &Path, since_nanos: u64) {
        if self.late_files.get(&id).is_some_and(|probed_at| since_nanos < *probed_at) {
            self.tell_late(pid, file, since_nanos);
            self.late_in.entry(pid).or_default().push((id, file.to_path_buf()));
        }
    }

    /// Whether every probe that asks for a file was in it when a process, which has ended since,
    /// mapped it. The path may lead to another file by now. Returns `false` in doubt.
    fn was_probed(&self, file: &Path, build_id: &[u8]) -> bool {
        let now = resolve::file_id(file);
        let named = |it: &&FunctionProbe| resolve::is_candidate(&it.object, file);
        self.functions.iter().filter(named).all(|probe| match now.map(|it| probe.seen.get(&it)) {
            Some(Some(known)) if known.build_id == build_id => true,
            Some(None) if resolve::build_id(file) == build_id => false,
            _ => !build_id.is_empty() && probe.seen.values().any(|it| it.build_id == build_id),
        })
    }

    /// Reports once per program that it had a file without its probes.
    fn tell_late(&mut self, pid: u32, file: &Path, since_nanos: u64) {
        if !self.told.entry(pid).or_default().insert(file.to_path_buf()) {
            return;
        }
        let micros = sys::monotonic_nanos().saturating_sub(since_nanos) / 1000;
        let waits = |it: &&FunctionProbe| it.files.is_empty() && resolve::is_candidate(&it.object, file);
        let waiting = self.functions.iter().filter(waits).map(|it| it.probe).collect();
        self.news.push(News::LateFile(LateFile { pid, file: file.to_path_buf(), waiting, micros }));
    }

    /// Links the per-process probes in a process, and reports how long it ran without them.
    fn link_process(&mut self, pid: u32, since_nanos: u64) {
        let mut failed = None;
        let mut linked = 0;
        let is_wanted = |it: &&FunctionProbe| !it.every_process && !it.is_off && !it.files.is_empty();
        for probe in self.functions.iter().filter(is_wanted) {
            match probe.link_all(pid, &self.programs) {
                Ok(links) => self.links.take_over(links),
                Err(error) => failed = Some(error),
            }
            linked += 1;
        }
        if linked > 0 {
            let at_nanos = sys::monotonic_nanos();
            self.linked.insert(pid, Linked { at_nanos, programs: 0 });
            let micros = at_nanos.saturating_sub(since_nanos) / 1000;
            self.news.push(News::Child(Unprobed { pid, micros, failed }));
        }
    }
}

/// Sorts probes so that handlers of one place run in the order in which they are declared.
///
/// Linux puts a uprobe before those that its place has already, so the last one comes first (`consumer_add` in
/// `kernel/events/uprobes.c`). Tracepoints run programs in the order of their attachment (`bpf_prog_array_copy`). Files and processes
/// that come later are attached in the same order.
fn in_order_of_attaching(probes: Vec<(ProbeId, &Probe)>) -> impl Iterator<Item = (ProbeId, &Probe)> {
    let (functions, others): (Vec<_>, Vec<_>) = probes.into_iter().partition(|it| it.1.event.is_in_code());
    others.into_iter().chain(functions.into_iter().rev())
}

/// Whether [`crate::Linux::attach`] attaches the probe.
fn runs_here(probe: &Probe) -> bool {
    probe.place == Place::Linux && probe.event != Event::Launch
}

fn not_compiled(name: &str) -> AttachError {
    AttachError::Refused {
        what: name.to_owned(),
        answer: "it has nothing that could be attached in Linux".into(),
        hint: "; this is a bug in xputrace".into(),
    }
}

/// Returns a path that we can open for a file that a process has mapped as `file`.
fn mapped_path(pid: u32, file: &Path) -> PathBuf {
    let view = View::of(pid);
    let direct = view.file(file);
    if direct.exists() {
        return direct;
    }
    let mappings = proc_maps::of(pid).unwrap_or_default();
    mappings.iter().find(|it| it.path == file).map_or(direct, |it| view.mapped(it))
}
