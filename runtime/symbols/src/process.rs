//! What processes have mapped, and the frame names that follow from it.
//!
//! A process is identified by its id and generation: ids are reused, and exec replaces all
//! mappings. Mappings come from perf's MMAP2 records, `/proc/PID/maps` or a list that the process
//! sends; a later mapping replaces what it overlaps.

use crate::demangle::demangle;
use crate::file::{FileIndex, Files};
use crate::jit::{self, PerfMap, Room};
use crate::object::MappedObject;
use crate::omission::Omission;
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
use xputrace_boundary::read::{self, Links};
use xputrace_model::stack::{Frame, Frames, LINUX_FRAMES};
use xputrace_wire::maps::MapsLine;
use xputrace_wire::record::{MAX_FRAMES, NO_CALLERS, python_frame, stack_end};
use xputrace_wire::status::{field, innermost_id};

/// A process image: an id in the tracer's pid namespace, and the program that it runs, counted from
/// its first (each exec starts a new generation).
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
    /// File offset of the byte mapped at `start`.
    pub file_offset: u64,
    /// Path as the process sees it; `[vdso]` and the like, or `//anon` or empty without a file.
    pub path: PathBuf,
    /// The file's build id if known (an MMAP2 record has either it or the inode).
    pub build_id: Option<Vec<u8>>,
    /// The file's device as encoded by `libc::makedev`, 0 if unknown.
    pub device: u64,
    /// The file's inode number, 0 if unknown.
    pub inode: u64,
}

/// What the native frames of a stack tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Detail {
    #[default]
    Names,
    /// The line too, as `function file.c:123`, and inlined functions as frames of their own, as
    /// `function file.c:123 [inlined]`, where DWARF tells.
    Lines,
}

/// All processes whose stacks can be named. Not `Send`, because the symbolizer is not: a run has
/// one, on the thread that prints.
pub struct Processes {
    processes: FxHashMap<ProcessKey, Process>,
    files: Files,
    vdso: Option<Vdso>,
    kernel: KernelSymbols,
    /// The memory for all perf maps.
    room: Room,
}

struct Process {
    pid: u32,
    /// The process's id in its own innermost pid namespace, which names its perf map.
    inner_pid: u32,
    /// Its effective user when it was first seen, if known.
    user: Option<u32>,
    /// By start address, without overlaps. A child shares its parent's until either maps something.
    regions: Rc<BTreeMap<u64, Region>>,
    /// What was mapped where something else is now, and its start address.
    replaced: Vec<(u64, Region)>,
    perf_map: PerfMap,
    perf_map_file: Option<File>,
    /// The process's own `/tmp`, kept open until the perf map is there: the process may end before.
    tmp: Option<File>,
    /// Whether the perf map is as new as the stack that is being named.
    perf_map_is_fresh: bool,
    /// Frames in code made at run time, like `frames`, until the perf map changes.
    jit_frames: FxHashMap<(u64, u64), Frame>,
    /// Frames by address and by how far before it they were looked up.
    frames: FxHashMap<(u64, u64), Frame>,
    /// By id.
    objects: BTreeMap<u32, Placed>,
    /// How often something was mapped.
    n_mapped: u64,
}

/// A file that stacks say they are in.
struct Placed {
    object: MappedObject,
    module: Rc<str>,
    file: Option<FileIndex>,
    /// Value of [`Process::n_mapped`] when it was last looked for.
    looked_at: u64,
}

/// Where the code of a frame is in a file.
type FilePosition = (FileIndex, u64);

#[derive(Clone)]
struct Region {
    end: u64,
    file_offset: u64,
    module: Rc<str>,
    content: Content,
}

impl Region {
    /// Whether this region, which begins at `start`, has the same code at each address as another one, if it has any.
    fn is_part_of(&self, start: u64, other: &Region, others_start: u64) -> bool {
        let place = |start: u64, it: &Region| start.wrapping_sub(it.file_offset);
        let has_places = !matches!(self.content, Content::Anonymous | Content::Vdso);
        self.content == other.content
            && self.module == other.module
            && (!has_places || place(start, self) == place(others_start, other))
    }
}

/// Maximum number of replaced mappings of a process that are told apart.
const MOST_REPLACED: usize = 4096;

/// Keeps what is no longer mapped, once.
fn note_replaced(all: &mut Vec<(u64, Region)>, start: u64, region: &Region) {
    let holds_it = |it: &(u64, Region)| it.0 <= start && it.1.end >= region.end;
    if all.iter().any(|it| holds_it(it) && it.1.is_part_of(it.0, region, start)) {
        return;
    }
    let n = all.len();
    if let Some((first, rest)) = all.get_mut(MOST_REPLACED) {
        (*first, rest.end) = ((*first).min(start), rest.end.max(region.end));
    } else if n == MOST_REPLACED {
        all.push((start, Region { module: "[other code]".into(), content: Content::Unreadable, ..region.clone() }));
    } else {
        all.push((start, region.clone()));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    File(FileIndex),
    /// The file could not be opened.
    Unreadable,
    Vdso,
    /// Memory without a file: code made at run time.
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
        Processes {
            processes: FxHashMap::default(),
            files: Files::new(),
            vdso: None,
            kernel: KernelSymbols::new(),
            room: Room::default(),
        }
    }

    /// Records a mapping and opens its file, so that names stay available after the process ends.
    /// Frames in files that cannot be opened have no names. Returns whether other code was mapped there before: then
    /// names of stacks there may be others from now on.
    pub fn map(&mut self, key: ProcessKey, mapping: &Mapping) -> bool {
        if mapping.start >= mapping.end {
            return false;
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
        process.n_mapped += 1;
        let n_replaced = process.replaced.len();
        process.insert(mapping.start, region);
        let has_replaced = process.replaced.len() > n_replaced;
        if is_code_without_file {
            process.open_perf_map();
        }
        has_replaced
    }

    /// Records a file that stacks say they are in, and opens it. Of what is mapped later, it is looked for again if it
    /// can't be found now.
    pub fn place(&mut self, key: ProcessKey, object: MappedObject) {
        let process = self.process(key);
        let (id, module) = (object.id, object.module().into());
        process.objects.insert(id, Placed { object, module, file: None, looked_at: u64::MAX });
        self.look_for(key, id);
    }

    /// Whether all these files are known and open, so that names of stacks in them can't become better.
    pub fn has_files(&self, key: ProcessKey, objects: &[u32]) -> bool {
        let placed = |id: &u32| self.processes.get(&key).and_then(|it| it.objects.get(id));
        objects.iter().all(|id| placed(id).is_some_and(|it| it.file.is_some()))
    }

    /// Looks for the file of an object, unless nothing has changed since the last time.
    fn look_for(&mut self, key: ProcessKey, id: u32) {
        let Processes { processes, files, .. } = self;
        let Some(Process { objects, regions, n_mapped, .. }) = processes.get_mut(&key) else { return };
        let Some(placed) = objects.get_mut(&id).filter(|it| it.file.is_none() && it.looked_at != *n_mapped) else {
            return;
        };
        placed.looked_at = *n_mapped;
        let MappedObject { start, end, proof, .. } = &placed.object;
        let mapped = overlapping(regions.range(..end), *start).find_map(|(_, region)| match region.content {
            Content::File(file) if files.fits(file, proof) => Some((file, region.module.clone())),
            _ => None,
        });
        let found = mapped.or_else(|| placed.object.find(files, key.pid).map(|(file, module)| (file, module.into())));
        if let Some((file, module)) = found {
            (placed.file, placed.module) = (Some(file), module);
        }
    }

    /// Records every executable mapping in `/proc/PID/maps`; returns how many there are.
    ///
    /// # Errors
    /// The process does not exist, or access is denied.
    pub fn map_running(&mut self, key: ProcessKey) -> io::Result<usize> {
        let pid = key.pid;
        let text = fs::read(format!("/proc/{pid}/maps")).map_err(|it| {
            let text = format!("cannot read the mappings of process {pid} from /proc/{pid}/maps: {it}");
            io::Error::new(it.kind(), text)
        })?;
        let mappings: Vec<Mapping> = text.split(|it| *it == b'\n').filter_map(executable_mapping).collect();
        for mapping in &mappings {
            self.map(key, mapping);
        }
        Ok(mappings.len())
    }

    /// Returns what names and lines left out since the last call because it would take too much memory.
    pub fn take_omissions(&mut self) -> Vec<Omission> {
        let jit = self.room.take_exceeded().map(|most_bytes| Omission::JitNames { most_bytes });
        let mut omissions = self.files.take_omissions();
        omissions.extend(jit);
        omissions
    }

    /// Returns the number of programs whose mappings are known.
    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// Whether no mapping is known.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// Whether any mapping of the process is known.
    pub fn knows(&self, key: ProcessKey) -> bool {
        self.processes.contains_key(&key)
    }

    /// Returns how many of these addresses the process has mapped.
    pub fn n_covered(&self, key: ProcessKey, addresses: &[u64]) -> usize {
        let Some(process) = self.processes.get(&key) else { return 0 };
        addresses.iter().filter(|it| process.region(**it).is_some()).count()
    }

    /// Copies the parent's mappings to a forked child.
    pub fn fork(&mut self, parent: ProcessKey, child: ProcessKey) {
        let Some(parent) = self.processes.get(&parent) else { return };
        let regions = parent.regions.clone();
        let process = self.process(child);
        process.frames.clear();
        process.regions = regions;
    }

    /// Drops a process's lookup caches: it has ended, so few stacks will follow.
    pub fn ended(&mut self, key: ProcessKey) {
        if let Some(process) = self.processes.get_mut(&key) {
            process.frames = FxHashMap::default();
            process.jit_frames = FxHashMap::default();
        }
    }

    /// Drops all that is known of a process; its files stay open for others.
    pub fn forget(&mut self, key: ProcessKey) {
        self.processes.remove(&key);
    }

    /// Returns the frames at `addresses`, innermost first, as given. If no name is found, the
    /// function is the hexadecimal address: the file's own virtual address if the file is known, so
    /// that it is the same in every process.
    ///
    /// Linux walks stacks by frame pointer and follows whatever value code without frame pointers
    /// leaves in that register. So a stack taken by Linux is cut before the first return address
    /// outside the process's code. If it does not reach a function at which a program or thread
    /// starts, a mark names the last frame's file ([`is_without_frame_pointers`]). What comes after
    /// such a function is left out.
    pub fn resolve(&mut self, addresses: &[u64], key: ProcessKey, detail: Detail) -> Frames {
        self.begin_stack(key);
        let mut frames: Vec<Frame> = Vec::with_capacity(addresses.len());
        let (mut is_whole, mut may_end) = (false, false);
        for (i, address) in addresses.iter().enumerate() {
            let frame = self.frame(key, *address, u64::from(i > 0));
            if is_whole && !is_root(&frame.function) {
                return frames.into();
            }
            is_whole |= i > 0 && STARTS.contains(&frame.function.as_str());
            let lies_in_no_code = frame.module.is_empty() && frames.last().is_some_and(|it| !it.module.is_empty());
            if lies_in_no_code {
                // What starts programs and threads often has no frame pointers either.
                if !may_end {
                    frames.push(without_frame_pointers(frames.last()));
                }
                return frames.into();
            }
            may_end = is_root(&frame.function);
            let place = self.place_of(key, address.saturating_sub(u64::from(i > 0)));
            self.push(&mut frames, frame, place, detail);
        }
        if addresses.len() < LINUX_FRAMES as usize && self.lacks_callers(addresses, key) {
            frames.push(without_frame_pointers(frames.last()));
        }
        frames.into()
    }

    /// Whether callers are missing at the end of a stack that Linux took: no program or thread starts in its last
    /// function. So a register that is no frame pointer led nowhere. Returns `false` if that cannot be told.
    fn lacks_callers(&mut self, addresses: &[u64], key: ProcessKey) -> bool {
        let Some(last) = addresses.last() else { return false };
        let back = u64::from(addresses.len() > 1);
        let frame = self.frame(key, *last, back);
        let at = last.saturating_sub(back);
        let region = self.processes.get(&key).and_then(|it| it.region(at));
        let Some((start, region)) = region.filter(|_| !is_root(&frame.function)) else { return false };
        let file_offset = (at - start).wrapping_add(region.file_offset);
        match region.content {
            Content::File(file) => {
                let is_named = self.files.symbol(file, file_offset).is_some();
                let may_start_threads =
                    self.files.is_static(file) || C_LIBRARIES.iter().any(|it| frame.module.starts_with(it));
                !self.files.is_entry(file, file_offset) && (is_named || !may_start_threads)
            }
            Content::Unreadable => false,
            Content::Vdso | Content::Anonymous => true,
        }
    }

    /// Returns the frames that the words of a launch stack stand for, innermost first: return
    /// addresses, named by the `objects` that they are in, or else as by [`Processes::resolve`]; Python frames, which
    /// `python` names by their function's id and instruction; and why frames are missing ([`stack_end`]).
    pub fn resolve_launch(
        &mut self,
        words: &[u64],
        objects: &[u32],
        key: ProcessKey,
        detail: Detail,
        python: impl Fn(u32, u32) -> Frame,
    ) -> Frames {
        self.begin_stack(key);
        objects.iter().for_each(|id| self.look_for(key, *id));
        let mut frames: Vec<Frame> = Vec::with_capacity(words.len());
        for word in words {
            let end = end_of_stack(*word, frames.last());
            match (python_frame::of_word(*word), end) {
                (Some((code, offset)), _) => frames.push(python(code, offset)),
                (None, Some(end)) => frames.push(end),
                (None, None) => {
                    let (frame, place) = self.launch_frame(key, objects, *word);
                    self.push(&mut frames, frame, place, detail);
                }
            }
        }
        frames.into()
    }

    /// Returns the frames at Linux kernel `addresses`, innermost first; all but the first are
    /// return addresses.
    pub fn resolve_kernel(&mut self, addresses: &[u64]) -> Frames {
        let back = |i: usize| u64::from(i > 0);
        addresses.iter().enumerate().map(|(i, address)| self.kernel.frame(*address, back(i))).collect()
    }

    /// Returns the frame of a return address in one of these objects, or in no file.
    fn launch_frame(&mut self, key: ProcessKey, objects: &[u32], address: u64) -> (Frame, Option<FilePosition>) {
        let at = address.saturating_sub(1);
        let Some(process) = self.processes.get_mut(&key) else { return (unnamed(address, ""), None) };
        let mut placed = objects.iter().map(|id| process.objects.get(id));
        if let Some(placed) = placed.clone().flatten().find(|it| it.object.holds(at)) {
            return self.files.frame_in(placed, at);
        }
        if placed.any(|it| it.is_none()) {
            // It may be in the one that is not known.
            return (unnamed(address, ""), None);
        }
        // What is mapped where a file is or was, and is no file to the loader, is code made at run time.
        if process.objects.values().any(|it| it.object.holds(at)) {
            let frame = process.jit_frame(at, 1).unwrap_or_else(|| unnamed(address, ANONYMOUS));
            return (frame, None);
        }
        (self.frame(key, address, 1), self.place_of(key, at))
    }

    /// Adds a frame, with its line and what is inlined there if wanted.
    fn push(&mut self, frames: &mut Vec<Frame>, frame: Frame, place: Option<FilePosition>, detail: Detail) {
        let source = match (detail, place) {
            (Detail::Names, _) => return frames.push(frame),
            (Detail::Lines, Some((file, file_offset))) => self.files.source(file, file_offset),
            (Detail::Lines, None) => Rc::from([]),
        };
        let with_place = |function: &str, place: &Option<String>| match place {
            Some(place) => format!("{function} {place}"),
            None => function.to_owned(),
        };
        let Some((own, inlined)) = source.split_last() else { return frames.push(frame) };
        for it in inlined {
            let name = it.inlined.as_deref().unwrap_or_default();
            let function = format!("{} [inlined]", with_place(name, &it.place));
            frames.push(Frame { function, module: frame.module.clone(), offset: 0 });
        }
        frames.push(Frame { function: with_place(&frame.function, &own.place), ..frame });
    }

    /// Returns where the code at an address is, by what is mapped there last.
    fn place_of(&self, key: ProcessKey, at: u64) -> Option<FilePosition> {
        let (start, region) = self.processes.get(&key)?.region(at)?;
        match region.content {
            Content::File(file) => Some((file, (at - start).wrapping_add(region.file_offset))),
            _ => None,
        }
    }

    fn process(&mut self, key: ProcessKey) -> &mut Process {
        self.processes.entry(key).or_insert_with(|| Process::begin(key.pid, self.room.clone()))
    }

    /// Code may have been made since the last stack.
    fn begin_stack(&mut self, key: ProcessKey) {
        if let Some(process) = self.processes.get_mut(&key) {
            process.perf_map_is_fresh = false;
        }
    }

    /// Returns the frame at `address`, looked up `back` bytes earlier: a return address may already
    /// belong to the next function. Where the process had several mappings there, one after another, it is not known in
    /// which of them the stack was: the frame has the names of all.
    fn frame(&mut self, key: ProcessKey, address: u64, back: u64) -> Frame {
        let Some(process) = self.processes.get(&key) else { return unnamed(address, "") };
        if let Some(known) = process.frames.get(&(address, back)) {
            return known.clone();
        }
        let at = address.saturating_sub(back);
        let mut regions: Vec<(u64, Region)> =
            process.replaced.iter().filter(|(start, it)| (*start..it.end).contains(&at)).cloned().collect();
        regions.extend(process.region(at).map(|(start, region)| (start, region.clone())));
        let is_of_file = regions.iter().all(|it| it.1.content != Content::Anonymous);
        let frames = regions.iter().map(|(start, region)| self.frame_in_region(key, *start, region, address, back));
        let frame = frames.reduce(either);
        let Some(process) = self.processes.get_mut(&key) else { return unnamed(address, "") };
        match frame {
            None => process.jit_frame(at, back).unwrap_or_else(|| unnamed(address, "")),
            Some(frame) => {
                // Code made at run time comes and goes, so look it up each time.
                if is_of_file {
                    process.frames.insert((address, back), frame.clone());
                }
                frame
            }
        }
    }

    /// Returns the frame at an address, in the region that begins at `start`.
    fn frame_in_region(&mut self, key: ProcessKey, start: u64, region: &Region, address: u64, back: u64) -> Frame {
        let at = address.saturating_sub(back);
        let module = region.module.to_string();
        let file_offset = (at - start).wrapping_add(region.file_offset);
        match region.content {
            Content::Anonymous => {
                let jit = self.processes.get_mut(&key).and_then(|it| it.jit_frame(at, back));
                jit.unwrap_or_else(|| unnamed(address, &module))
            }
            Content::File(file) => match self.files.symbol(file, file_offset) {
                Some(it) => Frame { function: it.function, module, offset: it.offset.wrapping_add(back) },
                None => unnamed(self.files.address(file, file_offset).wrapping_add(back), &module),
            },
            Content::Vdso => match self.vdso.get_or_insert_with(Vdso::read).find(at - start) {
                Some((name, begin)) => Frame { function: name.into(), module, offset: at - start - begin + back },
                None => unnamed((at - start).wrapping_add(back), &module),
            },
            Content::Unreadable => unnamed(file_offset.wrapping_add(back), &module),
        }
    }
}

/// Returns the frame that is one of two.
fn either(one: Frame, other: Frame) -> Frame {
    let or = |one: String, other: String| match one.split(" or ").any(|it| it == other) {
        true => one,
        false => format!("{one} or {other}"),
    };
    let offset = if one.offset == other.offset { one.offset } else { 0 };
    Frame { function: or(one.function, other.function), module: or(one.module, other.module), offset }
}

impl Files {
    /// Returns the frame of the call that ends after address `at`, in a file, and where that is.
    fn frame_in(&mut self, placed: &Placed, at: u64) -> (Frame, Option<FilePosition>) {
        let address = at.wrapping_sub(placed.object.base);
        let place = placed.file.and_then(|it| Some((it, self.offset(it, address)?)));
        let frame = match place.and_then(|(file, file_offset)| self.symbol(file, file_offset)) {
            Some(it) => {
                Frame { function: it.function, module: placed.module.to_string(), offset: it.offset.wrapping_add(1) }
            }
            None => unnamed(address.wrapping_add(1), &placed.module),
        };
        (frame, place)
    }
}

impl Process {
    fn begin(pid: u32, room: Room) -> Self {
        let status = status(pid).unwrap_or_default();
        Process {
            pid,
            inner_pid: innermost_id(&status).unwrap_or(pid),
            user: effective_user(&status),
            regions: Rc::default(),
            replaced: Vec::new(),
            perf_map: PerfMap::new(room),
            perf_map_file: None,
            tmp: None,
            perf_map_is_fresh: false,
            jit_frames: FxHashMap::default(),
            frames: FxHashMap::default(),
            objects: BTreeMap::new(),
            n_mapped: 0,
        }
    }

    fn region(&self, address: u64) -> Option<(u64, &Region)> {
        let (start, region) = self.regions.range(..=address).next_back()?;
        (address < region.end).then_some((*start, region))
    }

    /// Inserts a region, trimming older ones that it overlaps.
    fn insert(&mut self, start: u64, region: Region) {
        let end = region.end;
        let regions = Rc::make_mut(&mut self.regions);
        let mut overlapping: Vec<u64> = overlapping(regions.range(..end), start).map(|(at, _)| *at).collect();
        overlapping.reverse();
        if !overlapping.is_empty() {
            self.frames.clear();
        }
        for old_start in overlapping {
            let Some(old) = regions.remove(&old_start) else { continue };
            if !old.is_part_of(old_start, &region, start) {
                note_replaced(&mut self.replaced, old_start, &old);
            }
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

    /// Returns the frame of code made at run time, which comes and goes.
    fn jit_frame(&mut self, at: u64, back: u64) -> Option<Frame> {
        self.refresh_perf_map();
        if let Some(known) = self.jit_frames.get(&(at, back)) {
            return Some(known.clone());
        }
        let (name, start) = self.perf_map.find(at)?;
        let frame =
            Frame { function: demangle(name).name, module: "[jit]".into(), offset: (at - start).wrapping_add(back) };
        self.jit_frames.insert((at, back), frame.clone());
        Some(frame)
    }

    /// Reads what the perf map has grown by, once for each stack.
    fn refresh_perf_map(&mut self) {
        if std::mem::replace(&mut self.perf_map_is_fresh, true) {
            return;
        }
        self.open_perf_map();
        if let Some(file) = &self.perf_map_file
            && self.perf_map.refresh(file)
        {
            self.jit_frames.clear();
        }
    }

    /// Opens the perf map once it exists, and keeps it open for after the process's end.
    fn open_perf_map(&mut self) {
        if self.perf_map_file.is_some() {
            return;
        }
        if self.tmp.is_none() {
            let root = read::open_directory(Path::new(&format!("/proc/{}/root", self.pid)));
            self.tmp = root.and_then(|it| read::open_directory_below(&it, Path::new("tmp"), Links::InRoot)).ok();
        }
        let user = status(self.pid).and_then(|it| effective_user(&it)).or(self.user);
        // A link could lead to a file of root's, and names to what is in it.
        let open = |tmp: &File, pid: u32| {
            let path = PathBuf::from(format!("perf-{pid}.map"));
            read::open_below(tmp, &path, Links::None).ok().filter(|it| jit::is_of(it, user))
        };
        let inside = self.tmp.as_ref().and_then(|it| open(it, self.inner_pid));
        let outside = || open(&read::open_directory(Path::new("/tmp")).ok()?, self.pid);
        self.perf_map_file = inside.or_else(outside);
        if self.perf_map_file.is_some() {
            self.tmp = None;
        }
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

/// The module shown for memory without a file.
pub const ANONYMOUS: &str = "[anonymous]";

/// Returns the module name that frames show: the file name without directories.
pub(crate) fn module(path: &Path) -> String {
    let text = path.to_string_lossy();
    if text.is_empty() || text.starts_with("//") || text.starts_with("[anon") {
        return ANONYMOUS.into();
    }
    let text = text.strip_suffix(" (deleted)").unwrap_or(&text);
    text.rsplit('/').find(|it| !it.is_empty()).unwrap_or(text).to_string()
}

/// Prefix of the frame that stands for unknown callers.
const WITHOUT_FRAME_POINTERS: &str = "[no frame pointers: ";

/// Returns the frame that stands for the callers of code without frame pointers.
fn without_frame_pointers(of: Option<&Frame>) -> Frame {
    mark(format!("{WITHOUT_FRAME_POINTERS}{}]", module_of(of)))
}

/// Adds a frame that says why no frame of a stack has a name: nothing is known of what its process had mapped.
pub fn with_unknown_mappings(frames: Frames) -> Frames {
    let end = mark("[no names: it is not known what the process had mapped]".into());
    frames.iter().cloned().chain([end]).collect()
}

/// Functions in C libraries and their dynamic linkers that only others of them call.
const STARTS: &[&str] = &[
    "_start",
    "_start_c",
    "_dl_start",
    "_dl_start_user",
    "__libc_start_main",
    "__libc_start_main_impl",
    "__libc_start_call_main",
    "libc_start_main_stage2",
    "start_thread",
    "clone",
    "clone3",
    "__clone",
    "__clone3",
    "__start_context",
];
/// Others at which a program or thread may start, by how their names begin: variants of those, and Go's runtime.
const ROOT_PREFIXES: &[&str] = &["__libc_start", "__clone", "runtime.", "_rt0_"];
/// Beginnings of the file names of C libraries and dynamic linkers, whose functions may have no names.
const C_LIBRARIES: &[&str] = &["libc.", "libc-", "libpthread", "ld-", "ld."];

/// Whether a program or thread may start in a function. The C library that calls `main` often has no frame pointers.
fn is_root(function: &str) -> bool {
    function == "main" || STARTS.contains(&function) || ROOT_PREFIXES.iter().any(|it| function.starts_with(it))
}

/// Returns the frame that says why a launch stack ends before its root, if `address` is a
/// [`stack_end`]; `last` is the frame before.
fn end_of_stack(address: u64, last: Option<&Frame>) -> Option<Frame> {
    if address == NO_CALLERS {
        return Some(without_frame_pointers(last));
    }
    Some(mark(match u16::try_from(address).ok()? {
        stack_end::NO_TABLE => format!("[no unwind table: {}]", module_of(last)),
        stack_end::UNSUPPORTED_RULE => format!("[unsupported unwind rule: {}]", module_of(last)),
        stack_end::OFF_STACK => "[not on the thread's own stack]".into(),
        stack_end::TOO_DEEP => format!("[more than {MAX_FRAMES} frames]"),
        stack_end::PYTHON_TOO_DEEP => {
            let function = format!("[more than {MAX_FRAMES} Python frames]");
            return Some(Frame { function, module: Frame::PYTHON.into(), offset: 0 });
        }
        _ => return None,
    }))
}

fn module_of(frame: Option<&Frame>) -> &str {
    frame.map(|it| it.module.as_str()).filter(|it| !it.is_empty()).unwrap_or(ANONYMOUS)
}

fn mark(function: String) -> Frame {
    Frame { function, module: String::new(), offset: 0 }
}

/// Whether a frame stands for the callers of code without frame pointers.
pub fn is_without_frame_pointers(frame: &Frame) -> bool {
    frame.function.starts_with(WITHOUT_FRAME_POINTERS)
}

fn unnamed(address: u64, module: &str) -> Frame {
    Frame { function: format!("0x{address:x}"), module: module.into(), offset: 0 }
}

/// Returns the regions that reach past `start`, the last first, of all that begin before an end. They don't overlap each
/// other, so none of those before the first of them does: looking at them, too, would make the time to map many files
/// grow by the square of their number.
fn overlapping<'r>(
    before_end: impl DoubleEndedIterator<Item = (&'r u64, &'r Region)>,
    start: u64,
) -> impl Iterator<Item = (&'r u64, &'r Region)> {
    before_end.rev().take_while(move |(_, it)| it.end > start)
}

fn status(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/status")).ok()
}

/// Source: proc_pid_status(5): real, effective, saved and file system's.
fn effective_user(status: &str) -> Option<u32> {
    field(status, "Uid")?.split_whitespace().nth(1)?.parse().ok()
}

/// Parses a line of `/proc/PID/maps` if it is an executable mapping.
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

/// The functions of the running Linux kernel.
struct KernelSymbols {
    symbolizer: Symbolizer,
    source: Source<'static>,
    /// Whether Linux shows its addresses to us. Otherwise they all read as 0, and every name would
    /// be wrong.
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
        Some(Frame {
            function: demangle(&sym.name).name,
            module: Self::MODULE.into(),
            offset: sym.offset as u64 + back,
        })
    }
}

/// Whether `/proc/kallsyms` shows addresses to us (kernel.kptr_restrict).
fn addresses_are_shown() -> bool {
    use io::{BufRead, BufReader};
    let Ok(file) = File::open("/proc/kallsyms") else { return false };
    let lines = BufReader::new(file).lines().map_while(Result::ok).take(64);
    lines.filter_map(|it| u64::from_str_radix(it.split(' ').next()?, 16).ok()).any(|it| it != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(end: u64) -> Region {
        Region { end, file_offset: 0, module: "m".into(), content: Content::Unreadable }
    }

    #[test]
    fn of_many_regions_few_are_looked_at() {
        let regions: BTreeMap<u64, Region> = (0..64_000).map(|it| (it * 16, region(it * 16 + 8))).collect();
        let mut n_looked_at = 0;
        let mut starts = |start, end| {
            let counted = regions.range(..end).inspect(|_| n_looked_at += 1);
            overlapping(counted, start).map(|it| *it.0).collect::<Vec<_>>()
        };
        assert_eq!(starts(63_000 * 16 + 7, 63_001 * 16 + 1), [63_001 * 16, 63_000 * 16]);
        assert_eq!(starts(63_000 * 16 + 8, 63_001 * 16), []);
        assert_eq!(n_looked_at, 4);
    }
}
