//! What a collector has said of its process, beside events: what names its stacks.

use crate::id_map::IdMap;
use crate::process_info::{ProcessIndex, ProcessInfo};
use xputrace_model::stack::StackKey;
use xputrace_wire::record::{MappedObject, Mapping, PythonCode};

// Limits per process, so that a target cannot grow the tracer's memory further.

/// Return addresses of all its stacks together: 32 MiB.
const MOST_FRAMES: usize = 4 << 20;
/// Contents of all its Python functions together.
const MOST_CODE_BYTES: usize = 16 << 20;
const MOST_MAPPINGS: usize = 1 << 14;

/// An executable mapping that a collector reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingInfo {
    pub mapping: Mapping,
    pub path: String,
}

/// A file that stacks were in while it was mapped, as a collector reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    pub object: MappedObject,
    /// Empty if it has none.
    pub build_id: Vec<u8>,
    /// As the program named it to the loader; empty for the program itself.
    pub path: Vec<u8>,
    /// The directory that the process was in when it was armed, if the path is relative.
    pub directory: Vec<u8>,
}

/// A stack that a collector took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenStack<'a> {
    /// Innermost first (`xputrace_wire::record::Stack`).
    pub words: &'a [u64],
    /// Ids of the files that its return addresses are in.
    pub objects: &'a [u32],
}

#[derive(Debug)]
struct KeptStack {
    words: Box<[u64]>,
    objects: Box<[u32]>,
}

/// What is known of one process.
#[derive(Debug)]
pub(crate) struct KnownProcess {
    pub(crate) info: ProcessInfo,
    stacks: IdMap<KeptStack>,
    n_frames: usize,
    pub(crate) codes: IdMap<PythonCode>,
    codes_bytes: usize,
    pub(crate) mappings: Vec<MappingInfo>,
    pub(crate) objects: Vec<ObjectInfo>,
}

impl KnownProcess {
    pub(crate) fn new(info: ProcessInfo) -> Self {
        KnownProcess {
            info,
            stacks: IdMap::default(),
            n_frames: 0,
            codes: IdMap::default(),
            codes_bytes: 0,
            mappings: Vec::new(),
            objects: Vec::new(),
        }
    }

    /// Adds a stack; an id keeps its first one. Returns false if there are too many.
    pub(crate) fn add_stack(&mut self, id: u32, words: Vec<u64>, objects: Vec<u32>) -> bool {
        if self.stacks.get(id).is_some() {
            return true;
        }
        self.n_frames = self.n_frames.saturating_add(words.len() + objects.len().div_ceil(2));
        let stack = KeptStack { words: words.into_boxed_slice(), objects: objects.into_boxed_slice() };
        self.n_frames <= MOST_FRAMES && self.stacks.insert(id, stack)
    }

    /// Adds a Python function; an id keeps its first one. Returns false if there are too many.
    pub(crate) fn add_code(&mut self, id: u32, contents: &[u8]) -> bool {
        if self.codes.get(id).is_some() {
            return true;
        }
        self.codes_bytes = self.codes_bytes.saturating_add(contents.len());
        let fits = self.codes_bytes <= MOST_CODE_BYTES;
        fits && PythonCode::decode(contents).is_some_and(|it| self.codes.insert(id, it))
    }

    /// Ends the process: keeps only what names its stacks.
    pub(crate) fn end(&mut self) {
        self.stacks.shrink();
        self.codes.shrink();
        if !self.has_stacks() {
            self.codes = IdMap::default();
            self.mappings.clear();
            self.objects.clear();
        }
        self.mappings.shrink_to_fit();
        self.objects.shrink_to_fit();
    }

    /// Forgets the stacks and mappings, once it has ended.
    pub(crate) fn forget_stacks(&mut self) {
        self.stacks = IdMap::default();
        self.end();
    }

    pub(crate) fn has_stacks(&self) -> bool {
        !self.stacks.is_empty()
    }

    /// Adds an unknown mapping; returns false if there are too many.
    pub(crate) fn add_mapping(&mut self, mapping: MappingInfo) -> bool {
        // The collector sends its whole list whenever it has changed.
        if self.mappings.contains(&mapping) {
            return true;
        }
        let room = self.mappings.len() < MOST_MAPPINGS;
        if room {
            self.mappings.push(mapping);
        }
        room
    }

    /// Adds a file; a known id keeps its first one. Returns false if there are too many.
    pub(crate) fn add_object(&mut self, object: ObjectInfo) -> bool {
        // Threads that meet it at once each send it.
        if self.objects.iter().any(|it| it.object.id == object.object.id) {
            return true;
        }
        let room = self.objects.len() < MOST_MAPPINGS;
        if room {
            self.objects.push(object);
        }
        room
    }
}

pub(crate) fn frames_of(processes: &[KnownProcess], stack: StackKey) -> Option<(ProcessIndex, TakenStack<'_>)> {
    let StackKey::Collector { process, id } = stack.whole() else { return None };
    let KeptStack { words, objects } = processes.get(process as usize)?.stacks.get(id)?;
    Some((ProcessIndex(process), TakenStack { words, objects }))
}
