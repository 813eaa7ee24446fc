//! Programs and maps before they are loaded anywhere.

use crate::id::{BpfMapId, ProgramId};
use crate::insn::Insn;
use std::ops::{Index, IndexMut};

/// Programs and the maps they share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    pub maps: Vec<MapSpec>,
    pub programs: Vec<Program>,
    /// Name and text of each source file for line information: the verifier's log and `bpftool prog
    /// dump xlated linum` then show the script's lines.
    pub sources: Vec<(String, String)>,
}

impl Image {
    /// Adds a map.
    pub fn add_map(&mut self, spec: MapSpec) -> BpfMapId {
        self.maps.push(spec);
        BpfMapId::at(self.maps.len() - 1)
    }

    /// Adds a program.
    pub fn add_program(&mut self, program: Program) -> ProgramId {
        self.programs.push(program);
        ProgramId::at(self.programs.len() - 1)
    }
}

macro_rules! index {
    ($id:ty => $item:ty) => {
        impl Index<$id> for Vec<$item> {
            type Output = $item;

            fn index(&self, id: $id) -> &$item {
                &self[id.index()]
            }
        }

        impl IndexMut<$id> for Vec<$item> {
            fn index_mut(&mut self, id: $id) -> &mut $item {
                &mut self[id.index()]
            }
        }
    };
}

index!(BpfMapId => MapSpec);
index!(ProgramId => Program);

/// The engine in which a map lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Home {
    /// A BPF map in Linux; programs in the tracer access it by system calls.
    Linux,
    /// A map of the tracer's engine.
    Tracer,
    /// A map in the memory of each GPU; for the software GPU, one of the tracer's engine.
    Gpu,
}

/// Kinds of map, numbered as in `enum bpf_map_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum MapKind {
    Hash = 1,
    Array = 2,
    PerfEventArray = 4,
    PercpuHash = 5,
    PercpuArray = 6,
    StackTrace = 7,
    LruHash = 9,
    LruPercpuHash = 10,
    ArrayOfMaps = 12,
    HashOfMaps = 13,
    Ringbuf = 27,
    // Of GPU programs, numbered as in bpftime (`runtime/include/bpftime_shm.hpp`).
    /// An array with a value for each thread of a launch.
    PerThreadArray = 1502,
    /// Records of at most the value's size, which `perf_event_output` writes.
    EventRing = 1527,
    /// Of a compiled object, and of a type that only Linux needs to know.
    Foreign = u32::MAX,
}

/// `BPF_F_NO_PREALLOC`: allocate hash elements on demand.
pub const NO_PREALLOC: u32 = 1;
/// `BPF_F_RDONLY_PROG`: programs do not change it.
pub const READ_ONLY: u32 = 1 << 7;
/// `BPF_F_MMAPABLE`: an array whose pages can be mapped.
pub const MMAPABLE: u32 = 1 << 10;

/// A map to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapSpec {
    /// A C identifier of at most 15 characters.
    pub name: String,
    pub kind: MapKind,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub flags: u32,
    pub home: Home,
    /// Shape of the inner maps of [`MapKind::ArrayOfMaps`] and [`MapKind::HashOfMaps`].
    pub inner: Option<Box<MapSpec>>,
}

impl MapSpec {
    /// Describes a map in Linux with one 64-bit number.
    pub fn number(name: &str, kind: MapKind) -> Self {
        let (key_size, value_size, max_entries) = (4, 8, 1);
        MapSpec { name: name.into(), kind, key_size, value_size, max_entries, flags: 0, home: Home::Linux, inner: None }
    }
}

/// What a program is attached to; determines its section, context and helpers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ProgramKind {
    /// `uprobe.multi`; context is `struct pt_regs`.
    Uprobe,
    /// `uretprobe.multi`; context is `struct pt_regs`.
    Uretprobe,
    /// `tracepoint/CATEGORY/NAME`; context is the tracepoint's record.
    Tracepoint { category: String, name: String },
    /// `perf_event`; context is `struct bpf_perf_event_data`, which begins with `pt_regs`.
    PerfEvent,
    /// `syscall`: run by the tracer over an array of 64-bit words; never attached.
    Syscall,
    /// A compiled object's section, which libbpf understands: such as `fentry/FUNCTION`.
    Section(String),
    /// `?PLACE/KERNELS`, which libbpf does not load: code for a GPU, at a place in the kernels of these names. Context is
    /// an array of 64-bit words.
    Device { place: String, kernels: String },
}

/// One handler's bytecode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// A C identifier, unique in the image, at most 15 characters.
    pub name: String,
    pub kind: ProgramKind,
    pub insns: Vec<Insn>,
    /// Slots of `ld_imm64` whose immediate is a map: (slot, map).
    pub map_refs: Vec<(usize, BpfMapId)>,
    /// Line information in order of `insn`; each entry holds until the next.
    pub lines: Vec<Line>,
}

/// An instruction's position in the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    pub insn: usize,
    /// Index into [`Image::sources`].
    pub file: usize,
    /// 1-based.
    pub line: u32,
    /// 1-based.
    pub column: u32,
}

impl Program {
    /// Returns the line of instruction `insn`.
    pub fn line_of(&self, insn: usize) -> Option<Line> {
        self.lines.iter().take_while(|it| it.insn <= insn).last().copied()
    }
}
