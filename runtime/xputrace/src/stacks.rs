//! Names the stacks of a run. Addresses come from Linux's stack map or from a collector; mappings
//! come from perf's records, /proc, or the collector's own list.

use std::collections::HashMap;
use std::path::PathBuf;
use xputrace_linux::{Linux, ProcessEvent};
use xputrace_model::output::StackNames;
use xputrace_model::plan::Plan;
use xputrace_model::stack::{Frame, Frames, LINUX_FRAMES, StackKey};
use xputrace_symbols::{Images, Innermost, Mapping, ProcessKey, Processes};
use xputrace_tracer::{ProcessIndex, State};

/// First generation of processes that collectors describe, separate from those that perf's records
/// describe.
const COLLECTOR_GENERATIONS: u32 = 1 << 24;

/// What is known of every process of the run, and the stacks named so far.
#[derive(Default)]
pub struct Stacks {
    processes: Processes,
    images: Images,
    /// How many of a collector's mappings have been processed.
    mappings_taken: HashMap<ProcessIndex, usize>,
    known: HashMap<StackKey, Frames>,
    /// Whether handlers in Linux take stacks; otherwise mappings are not needed.
    takes_in_linux: bool,
}

impl Stacks {
    /// Creates one without any process.
    pub fn of(plan: &Plan) -> Self {
        Stacks { takes_in_linux: plan.linux_stacks.is_some(), ..Stacks::default() }
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
            ProcessEvent::Exec { pid, .. } => self.images.exec(*pid),
            ProcessEvent::Exit { pid, .. } => {
                let key = self.images.current(*pid);
                self.processes.ended(key);
            }
            ProcessEvent::Mmap { pid, start, len, pgoff, path, build_id, .. } => {
                let mapping = Mapping {
                    start: *start,
                    end: start.saturating_add(*len),
                    file_offset: *pgoff,
                    path: path.clone(),
                    build_id: (!build_id.is_empty()).then(|| build_id.clone()),
                    device: 0,
                    inode: 0,
                };
                self.processes.map(self.images.current(*pid), &mapping);
            }
        }
    }

    /// Opens the files that a collector has reported, while they exist.
    pub fn take_mappings(&mut self, state: &State, process: ProcessIndex) -> Option<ProcessKey> {
        let info = state.process(process)?;
        let key = ProcessKey { pid: info.pid, generation: COLLECTOR_GENERATIONS + process.0 };
        let mappings = state.mappings(process);
        let taken = self.mappings_taken.entry(process).or_default();
        for it in mappings.iter().skip(*taken) {
            let mapping = Mapping {
                start: it.start,
                end: it.end,
                file_offset: it.file_offset,
                path: PathBuf::from(&it.path),
                build_id: None,
                device: it.device,
                inode: it.inode,
            };
            self.processes.map(key, &mapping);
        }
        *taken = mappings.len();
        Some(key)
    }

    /// Adds frames from a recording.
    pub fn know(&mut self, stack: StackKey, frames: Frames) {
        self.known.insert(stack, frames);
    }

    /// Returns names over these engines.
    pub fn names<'a>(&'a mut self, linux: Option<&'a Linux>, state: &'a State) -> Names<'a> {
        Names { stacks: self, linux, state }
    }
}

/// [`StackNames`] of a run at one moment.
pub struct Names<'a> {
    stacks: &'a mut Stacks,
    linux: Option<&'a Linux>,
    state: &'a State,
}

impl StackNames for Names<'_> {
    fn frames(&mut self, stack: StackKey) -> Option<Frames> {
        if let Some(frames) = self.stacks.known.get(&stack) {
            return Some(frames.clone());
        }
        let (frames, is_cut) = match stack {
            StackKey::Empty | StackKey::Lost => return None,
            StackKey::LinuxKernel { .. } => {
                let addresses = self.linux?.stack_addresses(stack)?;
                (self.stacks.processes.resolve_kernel(&addresses), is_cut(&addresses))
            }
            StackKey::LinuxUser { pid, exec, .. } => {
                let addresses = self.linux?.stack_addresses(stack)?;
                let key = self.program(pid, exec, &addresses);
                (self.stacks.processes.resolve(&addresses, key, Innermost::Instruction), is_cut(&addresses))
            }
            StackKey::Collector { .. } => (self.collector_frames(stack)?, false),
        };
        let is_final = is_final(&frames);
        let frames = if is_cut { with_end_of_walk(&frames) } else { frames };
        if is_final {
            self.stacks.known.insert(stack, frames.clone());
        }
        Some(frames)
    }
}

/// Whether later events cannot name these frames better: a new mapping, or code made while the
/// program runs.
fn is_final(frames: &[Frame]) -> bool {
    frames.iter().all(|it| !it.module.is_empty() && it.module != xputrace_symbols::ANONYMOUS)
}

/// Whether a stack that Linux took may have more frames than it holds.
fn is_cut(addresses: &[u64]) -> bool {
    addresses.len() >= LINUX_FRAMES as usize
}

/// The frames, and behind them one that says why there are no more: unless they end for another reason.
fn with_end_of_walk(frames: &[Frame]) -> Frames {
    let function = format!("[Linux stops after {LINUX_FRAMES} frames]");
    let end = Frame { function, module: String::new(), offset: 0 };
    let has_ended = frames.last().is_some_and(xputrace_symbols::is_without_frame_pointers);
    frames.iter().cloned().chain((!has_ended).then_some(end)).collect()
}

impl Names<'_> {
    /// Returns the program of the process in which a stack was taken.
    fn program(&mut self, pid: u32, exec: u8, addresses: &[u64]) -> ProcessKey {
        let Stacks { processes, images, .. } = &mut *self.stacks;
        let key = images.of_stack(pid, exec, |it| processes.n_covered(it, addresses));
        if !processes.knows(key) {
            let _ = processes.map_running(key);
        }
        key
    }

    fn collector_frames(&mut self, stack: StackKey) -> Option<Frames> {
        let (process, addresses) = self.state.stack(stack)?;
        let key = self.stacks.take_mappings(self.state, process)?;
        Some(self.stacks.processes.resolve(addresses, key, Innermost::ReturnAddress))
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

    /// Over a long run the mappings of every process would fill the memory.
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
        };
        for takes_in_linux in [false, true] {
            let mut stacks = Stacks { takes_in_linux, ..Stacks::default() };
            stacks.heard(&mapped);
            assert_eq!(stacks.processes.knows(ProcessKey { pid: 7, generation: 0 }), takes_in_linux);
        }
    }
}
