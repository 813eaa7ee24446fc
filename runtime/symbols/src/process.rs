//! What processes have mapped where, and from that the names of their frames.
//!
//! A process is known by its id and its generation: ids are used again, and exec replaces what
//! is mapped. Mappings come from perf's MMAP2 records, `/proc/PID/maps` or a list of the
//! process's own; a later one replaces what it overlaps.

use crate::demangle::demangle;
use crate::file::{FileIndex, Files, open_regular};
use crate::jit::PerfMap;
use crate::vdso::Vdso;
use blazesym::MaybeDefault;
use blazesym::symbolize::source::{Kernel, Source};
use blazesym::symbolize::{Input, Symbolizer};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use xputrace_model::stack::{Frame, Frames};
use xputrace_wire::maps::MapsLine;
use xputrace_wire::record::NO_CALLERS;

/// A process image: an id of the tracer's pid namespace, and which program it runs, counted
/// from its first (each exec is a new generation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessKey {
    pub pid: u32,
    pub generation: u32,
}

/// An executable mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// Addresses, `end` exclusive.
    pub start: u64,
    pub end: u64,
    /// Bytes from the file's beginning to what is mapped at `start`.
    pub file_offset: u64,
    /// As the process sees it; `[vdso]` and the like, `//anon` or empty where there is no file.
    pub path: PathBuf,
    /// The file's build id where it is known (MMAP2 records have either it or the inode).
    pub build_id: Option<Vec<u8>>,
    /// The file's device as `libc::makedev` puts major and minor together, 0 where not known.
    pub device: u64,
    /// The file's inode number, 0 where not known.
    pub inode: u64,
}

/// What a stack's innermost address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Innermost {
    /// The instruction that was about to run: at a probe hit or a sample.
    Instruction,
    /// Where a call will return to, as all the others are: in a stack taken inside the process.
    ReturnAddress,
}

/// All processes whose stacks can be named. It is not `Send` (the symbolizer inside is not): a
/// run has one, on the thread that prints.
pub struct Processes {
    processes: FxHashMap<ProcessKey, Process>,
    files: Files,
    vdso: Option<Vdso>,
    kernel: KernelSymbols,
}

#[derive(Default)]
struct Process {
    pid: u32,
    /// The process's id in its own innermost pid namespace, which names its perf map.
    inner_pid: u32,
    /// By start; never overlapping. A child shares its parent's until one of them maps something.
    regions: Rc<BTreeMap<u64, Region>>,
    perf_map: PerfMap,
    perf_map_file: Option<File>,
    /// Frames by address and distance looked back.
    frames: FxHashMap<(u64, u64), Frame>,
}

#[derive(Clone)]
struct Region {
    end: u64,
    file_offset: u64,
    module: Rc<str>,
    content: Content,
}

#[derive(Clone, Copy)]
enum Content {
    File(FileIndex),
    /// A file that could not be opened.
    Unreadable,
    Vdso,
    /// Memory without a file: code that was made at run time.
    Anonymous,
}

impl Default for Processes {
    fn default() -> Self {
        Processes::new()
    }
}

impl Processes {
    /// Knows no process yet.
    pub fn new() -> Self {
        Processes { processes: FxHashMap::default(), files: Files::new(), vdso: None, kernel: KernelSymbols::new() }
    }

    /// Takes note of a mapping and opens its file, which keeps its names available when the
    /// process is gone. Files that cannot be opened leave their frames without names.
    pub fn map(&mut self, key: ProcessKey, mapping: &Mapping) {
        if mapping.start >= mapping.end {
            return;
        }
        let content = content(&mut self.files, key, mapping);
        let region = Region {
            end: mapping.end,
            file_offset: mapping.file_offset,
            module: module(&mapping.path).into(),
            content,
        };
        let is_code_without_file = matches!(content, Content::Anonymous);
        let process = self.process(key);
        process.insert(mapping.start, region);
        if is_code_without_file {
            process.open_perf_map();
        }
    }

    /// Takes note of everything executable in `/proc/PID/maps`; returns how many mappings.
    ///
    /// # Errors
    /// The process does not exist or may not be looked at.
    pub fn map_running(&mut self, key: ProcessKey) -> io::Result<usize> {
        let path = format!("/proc/{}/maps", key.pid);
        let text = fs::read(&path).map_err(|it| {
            io::Error::new(it.kind(), format!("cannot read the mappings of process {} from {path}: {it}", key.pid))
        })?;
        let mappings: Vec<Mapping> = text.split(|it| *it == b'\n').filter_map(executable_mapping).collect();
        for mapping in &mappings {
            self.map(key, mapping);
        }
        Ok(mappings.len())
    }

    /// Whether any mapping of the process is known.
    pub fn knows(&self, key: ProcessKey) -> bool {
        self.processes.contains_key(&key)
    }

    /// How many of these addresses the process has mapped.
    pub fn n_covered(&self, key: ProcessKey, addresses: &[u64]) -> usize {
        let Some(process) = self.processes.get(&key) else { return 0 };
        addresses.iter().filter(|it| process.region(**it).is_some()).count()
    }

    /// A forked child starts with its parent's mappings.
    pub fn fork(&mut self, parent: ProcessKey, child: ProcessKey) {
        let Some(parent) = self.processes.get(&parent) else { return };
        let regions = parent.regions.clone();
        let process = self.process(child);
        process.frames.clear();
        process.regions = regions;
    }

    /// Drops what only speeds a process's lookups up: it has ended, and its stacks are few from now on.
    pub fn ended(&mut self, key: ProcessKey) {
        if let Some(process) = self.processes.get_mut(&key) {
            process.frames = FxHashMap::default();
        }
    }

    /// Drops what is known of a process; its files stay open for others.
    pub fn forget(&mut self, key: ProcessKey) {
        self.processes.remove(&key);
    }

    /// Returns the frames at `addresses`, innermost first as they are given. Where no name is found
    /// a frame's function is the address in hexadecimal, in the file's own terms where the file is
    /// known, so that it is the same in every process.
    ///
    /// Linux walks a stack by frame pointers and follows whatever code without them leaves in that
    /// register. So a stack that Linux took ends before the first return address that lies in no
    /// code of the process, with a mark that names the file of the last frame: see
    /// [`is_without_frame_pointers`]. A collector, which knows code that is made at run time, says
    /// itself where that is ([`NO_CALLERS`]).
    pub fn resolve(&mut self, addresses: &[u64], key: ProcessKey, innermost: Innermost) -> Frames {
        let mut frames: Vec<Frame> = Vec::with_capacity(addresses.len());
        for (i, address) in addresses.iter().enumerate() {
            let back = u64::from(i > 0 || innermost == Innermost::ReturnAddress);
            let frame = self.frame(key, *address, back);
            let lies_in_no_code = match innermost {
                Innermost::Instruction => frame.module.is_empty() && i > 0 && !frames[i - 1].module.is_empty(),
                Innermost::ReturnAddress => *address == NO_CALLERS,
            };
            if lies_in_no_code {
                frames.push(without_frame_pointers(frames.last()));
                break;
            }
            frames.push(frame);
        }
        frames.into()
    }

    /// The frames at kernel `addresses`, innermost first; all but the first are return addresses.
    pub fn resolve_kernel(&mut self, addresses: &[u64]) -> Frames {
        let back = |i: usize| u64::from(i > 0);
        addresses.iter().enumerate().map(|(i, address)| self.kernel.frame(*address, back(i))).collect()
    }

    fn process(&mut self, key: ProcessKey) -> &mut Process {
        self.processes.entry(key).or_insert_with(|| Process::begin(key.pid))
    }

    /// The frame at `address`, looked up `back` bytes before it: a return address may already
    /// belong to the next function.
    fn frame(&mut self, key: ProcessKey, address: u64, back: u64) -> Frame {
        let Some(process) = self.processes.get_mut(&key) else { return unnamed(address, "") };
        if let Some(known) = process.frames.get(&(address, back)) {
            return known.clone();
        }
        let at = address.saturating_sub(back);
        let Some((start, region)) = process.region(at) else {
            return process.jit_frame(at, back).unwrap_or_else(|| unnamed(address, ""));
        };
        let module = region.module.to_string();
        let file_offset = (at - start).wrapping_add(region.file_offset);
        let frame = match region.content {
            // What is compiled at run time comes and goes: it is looked up each time.
            Content::Anonymous => return process.jit_frame(at, back).unwrap_or_else(|| unnamed(address, &module)),
            Content::File(file) => match self.files.symbol(file, file_offset) {
                Some(it) => Frame { function: it.function, module, offset: it.offset + back },
                None => unnamed(self.files.address(file, file_offset).wrapping_add(back), &module),
            },
            Content::Vdso => match self.vdso.get_or_insert_with(Vdso::read).find(at - start) {
                Some((name, begin)) => Frame { function: name.into(), module, offset: at - start - begin + back },
                None => unnamed((at - start).wrapping_add(back), &module),
            },
            Content::Unreadable => unnamed(file_offset.wrapping_add(back), &module),
        };
        process.frames.insert((address, back), frame.clone());
        frame
    }
}

impl Process {
    fn begin(pid: u32) -> Self {
        Process { pid, inner_pid: inner_pid(pid).unwrap_or(pid), ..Process::default() }
    }

    fn region(&self, address: u64) -> Option<(u64, &Region)> {
        let (start, region) = self.regions.range(..=address).next_back()?;
        (address < region.end).then_some((*start, region))
    }

    /// Puts a region in, cutting what it covers out of older ones.
    fn insert(&mut self, start: u64, region: Region) {
        let end = region.end;
        let regions = Rc::make_mut(&mut self.regions);
        let overlapping: Vec<u64> = regions.range(..end).filter(|(_, it)| it.end > start).map(|(at, _)| *at).collect();
        if !overlapping.is_empty() {
            self.frames.clear();
        }
        for old_start in overlapping {
            let Some(old) = regions.remove(&old_start) else { continue };
            if old.end > end {
                let cut = end - old_start;
                regions.insert(end, Region { file_offset: old.file_offset.wrapping_add(cut), ..old.clone() });
            }
            if old_start < start {
                regions.insert(old_start, Region { end: start, ..old });
            }
        }
        regions.insert(start, region);
    }

    fn jit_frame(&mut self, at: u64, back: u64) -> Option<Frame> {
        if self.perf_map.find(at).is_none() {
            self.open_perf_map();
            if let Some(file) = &self.perf_map_file {
                self.perf_map.refresh(file);
            }
        }
        let (name, start) = self.perf_map.find(at)?;
        Some(Frame { function: demangle(name).name, module: "[jit]".into(), offset: at - start + back })
    }

    /// Opens the perf map where there is one by now; it stays open for when the process is gone.
    fn open_perf_map(&mut self) {
        if self.perf_map_file.is_some() {
            return;
        }
        let inside = format!("/proc/{}/root/tmp/perf-{}.map", self.pid, self.inner_pid);
        let outside = format!("/tmp/perf-{}.map", self.pid);
        self.perf_map_file = [inside, outside].iter().find_map(|it| open_regular(Path::new(it)));
    }
}

fn content(files: &mut Files, key: ProcessKey, mapping: &Mapping) -> Content {
    let path = mapping.path.as_os_str().as_encoded_bytes();
    if path == b"[vdso]" {
        return Content::Vdso;
    }
    let is_file = path.starts_with(b"/")
        && !path.starts_with(b"//")
        && !path.starts_with(b"/memfd:")
        && path != b"/dev/zero (deleted)";
    if !is_file {
        return Content::Anonymous;
    }
    files.open(key, mapping).map_or(Content::Unreadable, Content::File)
}

/// What frames call memory without a file.
pub const ANONYMOUS: &str = "[anonymous]";

/// The name that frames give a mapping: the file's without its folders.
fn module(path: &Path) -> String {
    let text = path.to_string_lossy();
    if text.is_empty() || text.starts_with("//") || text.starts_with("[anon") {
        return ANONYMOUS.into();
    }
    let text = text.strip_suffix(" (deleted)").unwrap_or(&text);
    text.rsplit('/').find(|it| !it.is_empty()).unwrap_or(text).to_string()
}

/// What a frame begins with that stands for the callers which could not be found.
const WITHOUT_FRAME_POINTERS: &str = "[no frame pointers: ";

/// Stands for the callers of code that has no frame pointers.
fn without_frame_pointers(of: Option<&Frame>) -> Frame {
    let module = of.map(|it| it.module.as_str()).filter(|it| !it.is_empty()).unwrap_or(ANONYMOUS);
    Frame { function: format!("{WITHOUT_FRAME_POINTERS}{module}]"), module: String::new(), offset: 0 }
}

/// Whether a frame stands for the callers of code that has no frame pointers.
pub fn is_without_frame_pointers(frame: &Frame) -> bool {
    frame.function.starts_with(WITHOUT_FRAME_POINTERS)
}

fn unnamed(address: u64, module: &str) -> Frame {
    Frame { function: format!("0x{address:x}"), module: module.into(), offset: 0 }
}

/// The id in the innermost namespace.
fn inner_pid(pid: u32) -> Option<u32> {
    xputrace_wire::status::innermost_id(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

/// A line of `/proc/PID/maps`, where it is executable.
fn executable_mapping(line: &[u8]) -> Option<Mapping> {
    let line = MapsLine::parse(line).filter(|it| it.is_executable)?;
    Some(Mapping {
        start: line.start,
        end: line.end,
        file_offset: line.file_offset,
        path: PathBuf::from(OsStr::from_bytes(line.path)),
        build_id: None,
        device: libc::makedev(line.device.0, line.device.1),
        inode: line.inode,
    })
}

/// The running kernel's functions.
struct KernelSymbols {
    symbolizer: Symbolizer,
    source: Source<'static>,
    /// Whether the kernel shows its addresses to us; where not, all of them read as 0, and
    /// every name would be wrong.
    shown: Option<bool>,
    frames: FxHashMap<(u64, u64), Frame>,
}

impl KernelSymbols {
    const MODULE: &str = "[kernel]";

    fn new() -> Self {
        let kernel = Kernel { vmlinux: MaybeDefault::None, debug_syms: false, ..Kernel::default() };
        let symbolizer = Symbolizer::builder().enable_code_info(false).enable_inlined_fns(false).build();
        KernelSymbols { symbolizer, source: Source::Kernel(kernel), shown: None, frames: FxHashMap::default() }
    }

    fn frame(&mut self, address: u64, back: u64) -> Frame {
        if let Some(known) = self.frames.get(&(address, back)) {
            return known.clone();
        }
        let frame = self.look_up(address.saturating_sub(back), back).unwrap_or_else(|| unnamed(address, Self::MODULE));
        self.frames.insert((address, back), frame.clone());
        frame
    }

    fn look_up(&mut self, at: u64, back: u64) -> Option<Frame> {
        if !*self.shown.get_or_insert_with(addresses_are_shown) {
            return None;
        }
        let found = self.symbolizer.symbolize_single(&self.source, Input::AbsAddr(at)).ok()?;
        let sym = found.into_sym()?;
        Some(Frame { function: sym.name.into_owned(), module: Self::MODULE.into(), offset: sym.offset as u64 + back })
    }
}

/// Whether `/proc/kallsyms` has addresses for us (kernel.kptr_restrict).
fn addresses_are_shown() -> bool {
    use io::{BufRead, BufReader};
    let Ok(file) = File::open("/proc/kallsyms") else { return false };
    let lines = BufReader::new(file).lines().map_while(Result::ok).take(64);
    lines.filter_map(|it| u64::from_str_radix(it.split(' ').next()?, 16).ok()).any(|it| it != 0)
}
