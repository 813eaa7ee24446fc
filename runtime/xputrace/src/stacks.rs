//! Names the stacks of a run. Addresses come from Linux's stack map or from a collector; mappings
//! come from perf's records, /proc, or the collector's own list.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use xputrace_linux::{Linux, ProcessEvent};
use xputrace_model::output::StackNames;
use xputrace_model::plan::Plan;
use xputrace_model::stack::{Frame, Frames, LINUX_FRAMES, PythonFrames, StackKey};
use xputrace_pipeline::{HandlerState, ProcessIndex, TakenStack};
use xputrace_symbols::{Detail, Images, MappedObject, Mapping, Omission, ProcessKey, Processes, Proof, python_frame};
use xputrace_wire::record;

/// First generation of processes that collectors describe, separate from those that perf's records
/// describe.
const COLLECTOR_GENERATIONS: u32 = 1 << 24;

/// How frames and names are shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Naming {
    pub python: PythonFrames,
    /// Whether outputs for readers show names with all their template arguments.
    pub whole_names: bool,
    /// Whether all stacks are shown with the lines of native code.
    pub lines: bool,
}

impl Naming {
    /// Returns the stack whose frames are named to show this one.
    fn source_of(self, stack: StackKey) -> StackKey {
        match stack {
            StackKey::CollectorPython { .. } => stack.whole(),
            it if self.lines => it.with_lines(),
            it => it,
        }
    }
}

fn detail(stack: StackKey) -> Detail {
    if stack.has_lines() { Detail::Lines } else { Detail::Names }
}

/// The mappings of all processes of the run, and the stacks named so far.
#[derive(Default)]
pub struct Stacks {
    processes: Processes,
    images: Images,
    /// How many of the mappings and files that a collector has reported have been processed.
    taken: HashMap<ProcessIndex, TakenFrames>,
    known: HashMap<StackKey, Frames>,
    /// Those frames, without duplicates: short processes of one program share them.
    lists: HashSet<Frames>,
    /// Stacks shown without any name.
    unnamed: HashSet<StackKey>,
    naming: Naming,
    /// Whether handlers in Linux take stacks; otherwise mappings are not needed.
    takes_in_linux: bool,
    /// Ended programs of which Linux may still have unread records. A program also ends when its
    /// process calls exec.
    unread: Vec<ProcessKey>,
    /// Ended programs without unread records.
    over: Over<ProcessKey>,
    /// Processes whose collector has left, if they have stacks.
    left: Over<ProcessIndex>,
}

#[derive(Clone, Copy, Debug, Default)]
struct TakenFrames {
    mappings: usize,
    objects: usize,
}

/// What has ended but may have stacks in a map.
struct Over<K> {
    kept: HashSet<K>,
    /// How many there were when the maps could not be read.
    kept_all: usize,
}

impl<K> Default for Over<K> {
    fn default() -> Self {
        Over { kept: HashSet::new(), kept_all: 0 }
    }
}

/// How many ended programs are kept before their stacks in maps are named.
const LEAST_PROGRAMS: usize = 4096;
/// Likewise for processes whose collector has left, each of which may have many stacks.
const LEAST_LEFT: usize = 16;

impl<K> Over<K> {
    fn are_many(&self, least: usize) -> bool {
        self.kept.len() >= least.max(self.kept_all.saturating_mul(2))
    }

    fn keep_all(&mut self) {
        self.kept_all = self.kept.len();
    }
}

impl Stacks {
    /// Returns what names and lines left out since the last call.
    pub fn take_omissions(&mut self) -> Vec<Omission> {
        self.processes.take_omissions()
    }

    /// Creates it without any process.
    pub fn of(plan: &Plan, naming: Naming) -> Self {
        Stacks { takes_in_linux: plan.linux_stacks.is_some(), naming, ..Stacks::default() }
    }

    /// Whether outputs for readers show names whole.
    pub fn shows_whole_names(&self) -> bool {
        self.naming.whole_names
    }

    /// Adds a running process.
    pub fn add_process(&mut self, pid: u32) {
        if !self.takes_in_linux {
            return;
        }
        let key = self.images.current(pid);
        // A process that has just ended has no mappings to read; its frames stay addresses.
        let _ = self.processes.map_running(key);
    }

    /// Handles a process event.
    pub fn heard(&mut self, event: &ProcessEvent) {
        if !self.takes_in_linux {
            return;
        }
        match event {
            ProcessEvent::Fork { parent, pid, .. } => {
                let (parent, child) = self.images.fork(*parent, *pid);
                self.processes.fork(parent, child);
            }
            ProcessEvent::Exec { pid, .. } => {
                self.is_over(*pid);
                self.images.exec(*pid);
            }
            ProcessEvent::Exit { pid, .. } => {
                self.is_over(*pid);
                self.images.exit(*pid);
            }
            ProcessEvent::ThreadName { .. } => {}
            ProcessEvent::Mmap { pid, start, len, pgoff, path, build_id, device, inode, .. } => {
                let mapping = Mapping {
                    start: *start,
                    end: start.saturating_add(*len),
                    file_offset: *pgoff,
                    path: path.clone(),
                    build_id: (!build_id.is_empty()).then(|| build_id.clone()),
                    device: *device,
                    inode: *inode,
                };
                if self.processes.map(self.images.current(*pid), &mapping) {
                    // These may have more than one meaning now.
                    self.known.retain(|it, _| !matches!(it.whole(), StackKey::LinuxUser { pid: of, .. } if of == *pid));
                }
            }
        }
    }

    fn is_over(&mut self, pid: u32) {
        let key = self.images.current(pid);
        self.processes.ended(key);
        self.unread.push(key);
    }

    /// Starts to read the records that Linux has now, which include all of the programs that have
    /// ended so far.
    pub fn begin_to_read(&mut self) {
        self.over.kept.extend(self.unread.drain(..));
    }

    /// Handles a collector's leaving: no more stacks of its process will come.
    pub fn left(&mut self, state: &HandlerState, process: ProcessIndex) {
        if state.has_stacks(process) {
            self.processes.ended(key_of(state, process));
            self.left.kept.insert(process);
        } else {
            self.forget_left(state, process);
        }
    }

    /// Whether there are enough ended programs to call [`Stacks::forget_over`].
    pub fn are_many_over(&self) -> bool {
        self.over.are_many(LEAST_PROGRAMS) || self.left.are_many(LEAST_LEFT)
    }

    /// Keeps all programs until there are as many again.
    pub fn keep_all(&mut self) {
        self.over.keep_all();
        self.left.keep_all();
    }

    /// Forgets the ended programs. First names those of their stacks that are in `used`; no others
    /// are still needed. All records that Linux had at [`Stacks::begin_to_read`] must have been
    /// handled.
    pub fn forget_over(&mut self, used: &HashSet<StackKey>, linux: Option<&Linux>, state: &mut HandlerState) {
        let used: HashSet<StackKey> = used.iter().map(|it| self.naming.source_of(*it)).collect();
        self.known.retain(|it, _| matches!(it, StackKey::LinuxKernel { .. }) || used.contains(it));
        self.lists.retain(|it| Arc::strong_count(it) > 1);
        for stack in used.iter().copied() {
            if self.known.contains_key(&stack) {
                continue;
            }
            if let Some(frames) = self.last_frames(stack, linux, state) {
                self.know(stack, frames);
            }
        }
        self.forget_programs();
        for process in std::mem::take(&mut self.left).kept {
            state.forget_stacks(process);
            self.forget_left(state, process);
        }
    }

    /// Returns the frames of a stack whose program has ended, so that later events cannot improve
    /// its names.
    fn last_frames(&mut self, stack: StackKey, linux: Option<&Linux>, state: &HandlerState) -> Option<Frames> {
        match stack.whole() {
            StackKey::LinuxUser { pid, exec, .. } => {
                let addresses = linux?.stack_addresses(stack)?;
                let program = self.program(pid, exec, &addresses);
                self.over.kept.contains(&program).then(|| self.user_frames(stack, program, &addresses).0)
            }
            StackKey::Collector { process, .. } if self.left.kept.contains(&ProcessIndex(process)) => {
                self.collector_frames(stack, state).map(|it| it.0)
            }
            _ => None,
        }
    }

    /// Returns the named frames, and whether they are final.
    fn user_frames(&mut self, stack: StackKey, program: ProcessKey, addresses: &[u64]) -> (Frames, bool) {
        let frames = self.processes.resolve(addresses, program, detail(stack));
        if !self.processes.knows(program) {
            self.unnamed.insert(stack.whole());
            return (xputrace_symbols::with_unknown_mappings(frames), false);
        }
        self.unnamed.remove(&stack.whole());
        // A mark in place of an address may give way to a mapping; one behind all of them stays.
        let is_final = match frames.split_last() {
            Some((last, named)) if xputrace_symbols::is_without_frame_pointers(last) => {
                named.len() >= addresses.len() && is_final(named)
            }
            _ => is_final(&frames),
        };
        (with_end_of_walk(frames, addresses), is_final)
    }

    /// Returns the named frames, and whether they are final.
    fn collector_frames(&mut self, stack: StackKey, state: &HandlerState) -> Option<(Frames, bool)> {
        let (process, TakenStack { words, objects }) = state.stack(stack)?;
        let key = self.take_mappings(state, process);
        let python = |code, offset| python_frame(state.code(process, code), offset);
        let frames = self.processes.resolve_launch(words, objects, key, detail(stack), python);
        let is_final = is_final(&frames) && self.processes.has_files(key, objects);
        Some((frames, is_final))
    }

    fn forget_programs(&mut self) {
        let Stacks { processes, images, unread, over, .. } = self;
        let with_others: HashSet<u32> = unread.iter().map(|it| it.pid).collect();
        for key in std::mem::take(over).kept {
            processes.forget(key);
            if !with_others.contains(&key.pid) {
                images.forget_ended(key.pid);
            }
        }
    }

    fn forget_left(&mut self, state: &HandlerState, process: ProcessIndex) {
        self.processes.forget(key_of(state, process));
        self.taken.remove(&process);
    }

    /// Returns the program of the process in which a stack was taken.
    fn program(&mut self, pid: u32, exec: u8, addresses: &[u64]) -> ProcessKey {
        self.images.of_stack(pid, exec, |it| self.processes.n_covered(it, addresses))
    }

    /// Returns how many stacks were shown as addresses, since it is not known what their processes had mapped.
    pub fn n_unnamed(&self) -> u64 {
        self.unnamed.len() as u64
    }

    /// Returns the number of programs whose mappings are kept.
    pub fn n_programs(&self) -> usize {
        self.processes.len()
    }

    /// Opens the files that a collector has reported, while they exist.
    pub fn take_mappings(&mut self, state: &HandlerState, process: ProcessIndex) -> ProcessKey {
        let key = key_of(state, process);
        let mappings = state.mappings(process);
        let taken = self.taken.entry(process).or_default();
        for it in mappings.iter().skip(taken.mappings) {
            let record::Mapping { start, end, file_offset, inode, device, .. } = it.mapping;
            let path = PathBuf::from(&it.path);
            self.processes.map(key, &Mapping { start, end, file_offset, path, build_id: None, device, inode });
        }
        let objects = state.objects(process);
        for it in objects.iter().skip(taken.objects) {
            let record::MappedObject { id, start, end, base, check, checked_bytes, .. } = it.object;
            let proof = Proof { build_id: it.build_id.clone(), check, checked_bytes };
            let [path, directory] = [&it.path, &it.directory].map(|it| PathBuf::from(OsStr::from_bytes(it)));
            self.processes.place(key, MappedObject { id, start, end, base, proof, path, directory });
        }
        *taken = TakenFrames { mappings: mappings.len(), objects: objects.len() };
        key
    }

    /// Keeps a stack's frames, as named here or in a recording.
    pub fn know(&mut self, stack: StackKey, frames: Frames) {
        let list = self.lists.get(&frames).cloned().unwrap_or(frames);
        self.lists.insert(list.clone());
        self.known.insert(stack, list);
    }

    /// Returns names over these engines.
    pub fn names<'a>(&'a mut self, linux: Option<&'a Linux>, state: &'a HandlerState) -> FrameNames<'a> {
        FrameNames { stacks: self, linux, state }
    }
}

/// Returns the process that a collector describes.
fn key_of(state: &HandlerState, process: ProcessIndex) -> ProcessKey {
    let pid = state.process(process).map_or(0, |it| it.pid);
    ProcessKey { pid, generation: COLLECTOR_GENERATIONS + process.0 }
}

/// [`StackNames`] of a run at one moment.
pub struct FrameNames<'a> {
    stacks: &'a mut Stacks,
    linux: Option<&'a Linux>,
    state: &'a HandlerState,
}

impl StackNames for FrameNames<'_> {
    fn frames(&mut self, stack: StackKey) -> Option<Frames> {
        let python = self.stacks.naming.python;
        let source = self.stacks.naming.source_of(stack);
        match stack {
            StackKey::Collector { .. } | StackKey::CollectorLines { .. } => {
                Some(xputrace_symbols::shown(&self.whole(source)?, python))
            }
            StackKey::CollectorPython { id: 0, .. } => Some(Frames::from([])),
            StackKey::CollectorPython { .. } => Some(xputrace_symbols::shown(&self.whole(source)?, PythonFrames::Only)),
            _ => self.whole(source),
        }
    }

    fn shows_whole_names(&self) -> bool {
        self.stacks.shows_whole_names()
    }
}

impl FrameNames<'_> {
    /// Returns all frames of a stack, innermost first; `None` if it was lost. A recording may have
    /// no lines.
    pub fn whole(&mut self, stack: StackKey) -> Option<Frames> {
        if let Some(frames) = self.stacks.known.get(&stack) {
            return Some(frames.clone());
        }
        self.newly_named(stack).or_else(|| self.stacks.known.get(&stack.whole()).cloned())
    }

    fn newly_named(&mut self, stack: StackKey) -> Option<Frames> {
        let (frames, is_final) = match stack.whole() {
            StackKey::LinuxKernel { .. } => {
                let addresses = self.linux?.stack_addresses(stack)?;
                let frames = self.stacks.processes.resolve_kernel(&addresses);
                let is_final = is_final(&frames);
                (with_end_of_walk(frames, &addresses), is_final)
            }
            StackKey::LinuxUser { pid, exec, .. } => {
                let addresses = self.linux?.stack_addresses(stack)?;
                let program = self.program(pid, exec, &addresses);
                self.stacks.user_frames(stack, program, &addresses)
            }
            StackKey::Collector { .. } => self.stacks.collector_frames(stack, self.state)?,
            _ => return None,
        };
        if is_final {
            self.stacks.know(stack, frames.clone());
        }
        Some(frames)
    }
}

/// Whether later events cannot improve these names: neither a new mapping, nor code made at run
/// time, nor a Python function that is told of later.
fn is_final(frames: &[Frame]) -> bool {
    let is_named = |it: &Frame| !it.module.is_empty() && it.module != xputrace_symbols::ANONYMOUS;
    frames.iter().all(|it| is_named(it) && !xputrace_symbols::is_unknown_python(it))
}

/// Adds a frame that says why there are no more, if Linux may have stopped early.
fn with_end_of_walk(frames: Frames, addresses: &[u64]) -> Frames {
    let has_ended = frames.last().is_some_and(xputrace_symbols::is_without_frame_pointers);
    if addresses.len() < LINUX_FRAMES as usize || has_ended {
        return frames;
    }
    let function = format!("[Linux stops after {LINUX_FRAMES} frames]");
    let end = Frame { function, module: String::new(), offset: 0 };
    frames.iter().cloned().chain([end]).collect()
}

impl FrameNames<'_> {
    /// Returns the program of the process in which a stack was taken, with its mappings if it still runs.
    fn program(&mut self, pid: u32, exec: u8, addresses: &[u64]) -> ProcessKey {
        let key = self.stacks.program(pid, exec, addresses);
        let processes = &mut self.stacks.processes;
        if !processes.knows(key) {
            let _ = processes.map_running(key);
        }
        key
    }
}

/// Returns a mangled name's readable forms: whole, and without template arguments.
pub fn demangle(symbol: &str) -> (String, String) {
    let names = xputrace_symbols::demangle(symbol);
    (names.name, names.short_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: u32 = 6;

    /// Simulates a process that runs several programs in turn and ends; returns the programs.
    fn short_process(stacks: &mut Stacks, pid: u32, n_execs: u32) -> Vec<ProcessKey> {
        let map = |start| ProcessEvent::Mmap {
            time_nanos: 1,
            pid,
            start,
            len: 4096,
            pgoff: 0,
            path: "//anon".into(),
            build_id: Vec::new(),
            device: 0,
            inode: 0,
        };
        stacks.heard(&ProcessEvent::Fork { time_nanos: 1, parent: PARENT, pid });
        for exec in 0..n_execs {
            stacks.heard(&ProcessEvent::Exec { time_nanos: 1, pid, comm: "it".into(), had_threads: false });
            stacks.heard(&map(4096 * u64::from(exec + 1)));
        }
        let last = stacks.images.current(pid);
        stacks.heard(&ProcessEvent::Exit { time_nanos: 1, pid });
        let first = last.generation - n_execs;
        (first..=last.generation).map(|generation| ProcessKey { pid, generation }).collect()
    }

    #[test]
    fn few_programs_that_are_over_are_kept() {
        let mut stacks = Stacks { takes_in_linux: true, ..Stacks::default() };
        let mut most = 0;
        // Process ids are reused.
        for n in 0..40_000 {
            assert_eq!(short_process(&mut stacks, 100 + n % 1000, 2).len(), 3);
            stacks.begin_to_read();
            if stacks.are_many_over() {
                stacks.forget_programs();
            }
            most = most.max(stacks.n_programs());
        }
        assert!(most <= LEAST_PROGRAMS + 3, "{most} of 120,000 programs were kept");
        stacks.forget_programs();
        assert_eq!((stacks.n_programs(), stacks.over.kept.len()), (0, 0));
        assert_eq!(stacks.images.current(100).generation, 0, "the process is forgotten");
    }

    #[test]
    fn maps_that_cannot_be_read_are_tried_less_often() {
        let mut stacks = Stacks { takes_in_linux: true, ..Stacks::default() };
        let mut tries = 0;
        for n in 0..40_000 {
            short_process(&mut stacks, 100 + n, 1);
            stacks.begin_to_read();
            if stacks.are_many_over() {
                tries += 1;
                stacks.keep_all();
            }
        }
        assert_eq!((stacks.over.kept.len(), tries), (80_000, 5), "at 4,096 and at each double");
    }

    #[test]
    fn equal_frames_are_kept_once() {
        let mut stacks = Stacks::default();
        let frames = || Frames::from([Frame { function: "work".into(), module: "cpu".into(), offset: 1 }]);
        let stack = |id| StackKey::LinuxUser { pid: id, exec: 0, id };
        (0..100).for_each(|id| stacks.know(stack(id), frames()));
        let one = stacks.known[&stack(0)].clone();
        assert!(stacks.known.values().all(|it| Arc::ptr_eq(it, &one)));
    }

    #[test]
    fn a_program_with_unread_records_is_kept() {
        let mut stacks = Stacks { takes_in_linux: true, ..Stacks::default() };
        let programs = short_process(&mut stacks, 7, 1);
        stacks.forget_programs();
        assert!(stacks.processes.knows(programs[1]));
        stacks.begin_to_read();
        stacks.forget_programs();
        assert!(!stacks.processes.knows(programs[1]));
    }

    /// In a long run the mappings of all processes would fill the memory.
    #[test]
    fn mappings_are_kept_only_where_handlers_take_stacks() {
        let own = std::env::current_exe().unwrap();
        let mapped = ProcessEvent::Mmap {
            time_nanos: 1,
            pid: 7,
            start: 4096,
            len: 4096,
            pgoff: 0,
            path: own,
            build_id: Vec::new(),
            device: 0,
            inode: 0,
        };
        for takes_in_linux in [false, true] {
            let mut stacks = Stacks { takes_in_linux, ..Stacks::default() };
            stacks.heard(&mapped);
            assert_eq!(stacks.processes.knows(ProcessKey { pid: 7, generation: 0 }), takes_in_linux);
        }
    }
}
