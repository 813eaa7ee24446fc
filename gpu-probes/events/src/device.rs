//! Events of device code: what handlers that run inside a kernel are given, and where it comes from.
//!
//! A handler runs once in each thread of a kernel. Its context is an array of words, like that of other GPU events
//! ([`crate::word`]), with indices of its own. On a GPU each word is computed from a special register of PTX
//! ([`Source`]); on the software GPU the tracer fills them from the kernel's record.

use crate::about::About;
use crate::field::{Field, FieldType, From, Unit};
use crate::table::Launch;
use crate::word;

/// Number of 64-bit words.
pub const WORDS: usize = ARGUMENTS + 2 * MOST_ARGUMENTS;

/// Maximum number of a launch's threads that handlers run in on the software GPU.
pub const MOST_THREADS: u64 = 1 << 20;

/// Maximum number of threads that handlers run in for one process of the software GPU, which says itself how many its launches
/// have: each handler's are counted. A real GPU runs them itself.
pub const MOST_THREADS_OF_PROCESS: u64 = 16 << 20;

/// Threads of a warp.
pub const WARP_THREADS: u64 = 32;

/// Bytes of the pieces that global memory is fetched in, each at a multiple of its size (CUDA C++ Best Practices Guide,
/// "Coalesced Access to Global Memory").
pub const SECTOR_BYTES: u64 = 32;

/// Conditions that a script's handlers can have in all, and those of one kernel: each subset of these takes a twin.
pub const MOST_CONDITIONS: usize = 32;
pub const MOST_KERNEL_CONDITIONS: usize = 3;

/// A device event as its handlers see it.
pub type DeviceContext = [u64; WORDS];

pub const TIME: usize = 0;
pub const PID: usize = 1;
/// A string id.
pub const KERNEL: usize = 2;
/// Three words each: `x y z`.
pub const THREAD: usize = 3;
pub const BLOCK: usize = 6;
pub const BLOCK_DIM: usize = 9;
pub const GRID_DIM: usize = 12;
pub const SMID: usize = 15;
pub const WARPID: usize = 16;
pub const LANEID: usize = 17;
pub const CLOCK: usize = 18;
/// 1 in one of the threads of a warp that are there together; no field reads it.
pub const IS_LEADER: usize = 19;
/// In the state space of the access.
pub const ADDRESS: usize = 20;
/// 0 if it is not known.
pub const BYTES: usize = 21;
/// A string id: one of [`Access::ALL`].
pub const ACCESS: usize = 22;
/// A string id.
pub const SPACE: usize = 23;
/// The line of the source; 0 if it is not known.
pub const LINE: usize = 24;
/// Threads of the warp that are there together.
pub const ACTIVE: usize = 25;
/// Sectors of memory ([`SECTOR_BYTES`]) that the threads of the warp that are there together access; 0 if it is not known.
pub const SECTORS: usize = 26;
/// 1 if the next word is known.
pub const HAS_CONFLICTS: usize = 27;
/// Passes that the warp's access to shared memory takes beyond the fewest.
pub const CONFLICTS: usize = 28;
/// 1 if the next word is known.
pub const HAS_CALLEE: usize = 29;
/// A string id.
pub const CALLEE: usize = 30;
/// What the launch's words are, each in place of a word of the events of its kernel ([`LAUNCH_WORDS`]). On a GPU each of them
/// is the launch's number, which tells the tracer what they are.
pub const LAUNCH: usize = 31;
/// Two words each: whether the kernel has that parameter, and its bits.
pub const ARGUMENTS: usize = LAUNCH + LAUNCH_WORDS.len();

/// The words of a kernel's event that device events have of its launch, in their order.
pub const LAUNCH_WORDS: [usize; 11] = [
    word::JOINED,
    word::LAUNCH_USTACK,
    word::LAUNCH_PYSTACK,
    word::LAUNCH_START,
    word::LAUNCH_TID,
    word::LAUNCH_API,
    word::LAUNCH_STREAM,
    word::LAUNCH_TAGGED,
    word::LAUNCH_TAG,
    word::LAUNCH_RANGE,
    word::LAUNCH_RANGE_PATH,
];

/// Returns the word of a kernel's event that a device event's word stands for, if that is one of the launch.
pub const fn launch_word(at: usize) -> Option<usize> {
    if at >= LAUNCH && at < ARGUMENTS { Some(LAUNCH_WORDS[at - LAUNCH]) } else { None }
}

/// Parameters of a kernel that handlers can read: the first ones.
pub const MOST_ARGUMENTS: usize = 16;

/// Where device code gets a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// From a special register of 32 bits, zero-extended (PTX ISA, "Special Registers").
    Register32(&'static str),
    /// From one of 64 bits.
    Register64(&'static str),
    /// From `%globaltimer`, in nanoseconds, moved to the tracer's clock.
    GlobalTimer,
    /// Constant in a process.
    OfProcess,
    /// Constant in a kernel.
    OfKernel,
    /// One of the threads of a warp that are there together has 1.
    Leader,
    /// The number of these threads.
    Active,
    /// From what is at this place in the code, such as an access to memory.
    OfPlace,
    /// Whether the kernel has the parameter with this index.
    HasArgument(usize),
    /// The parameter with this index, zero-extended.
    Argument(usize),
}

/// The source of each word, by its index.
pub const SOURCES: [Source; WORDS] = sources();

const fn sources() -> [Source; WORDS] {
    let mut all = [Source::OfPlace; WORDS];
    all[TIME] = Source::GlobalTimer;
    all[PID] = Source::OfProcess;
    all[KERNEL] = Source::OfKernel;
    let mut at = 0;
    while at < POSITIONS.len() {
        let (first, registers) = POSITIONS[at];
        let mut axis = 0;
        while axis < registers.len() {
            all[first + axis] = Source::Register32(registers[axis]);
            axis += 1;
        }
        at += 1;
    }
    all[SMID] = Source::Register32("%smid");
    all[WARPID] = Source::Register32("%warpid");
    all[LANEID] = Source::Register32("%laneid");
    all[CLOCK] = Source::Register64("%clock64");
    all[IS_LEADER] = Source::Leader;
    all[ACTIVE] = Source::Active;
    let mut at = LAUNCH;
    while at < ARGUMENTS {
        // The same for all threads of a launch, and for a node of a graph at all launches of it. It is CUPTI's `gridId`.
        all[at] = Source::Register64("%gridid");
        at += 1;
    }
    let mut n = 0;
    while n < MOST_ARGUMENTS {
        all[ARGUMENTS + 2 * n] = Source::HasArgument(n);
        all[ARGUMENTS + 2 * n + 1] = Source::Argument(n);
        n += 1;
    }
    all
}

const POSITIONS: [(usize, [&str; 3]); 4] = [
    (THREAD, ["%tid.x", "%tid.y", "%tid.z"]),
    (BLOCK, ["%ctaid.x", "%ctaid.y", "%ctaid.z"]),
    (BLOCK_DIM, ["%ntid.x", "%ntid.y", "%ntid.z"]),
    (GRID_DIM, ["%nctaid.x", "%nctaid.y", "%nctaid.z"]),
];

/// State spaces of accesses, as scripts compare them.
pub const SPACES: &[&str] = &["generic", "global", "shared", "local", "const"];

/// What an access does, as scripts compare it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    Load,
    Store,
    /// Reads, changes and writes.
    Atomic,
}

impl Access {
    pub const ALL: &[Access] = &[Access::Load, Access::Store, Access::Atomic];
    pub const TEXTS: &[&str] = &[Access::Load.text(), Access::Store.text(), Access::Atomic.text()];

    pub const fn text(self) -> &'static str {
        match self {
            Access::Load => "load",
            Access::Store => "store",
            Access::Atomic => "atomic",
        }
    }
}

/// `does` is what the handler does in the example.
macro_rules! device_events {
    ($( $(#[$doc:meta])* $Place:ident $name:literal { fields: $fields:expr, fires: $fires:literal,
        does: $does:literal $(,)? } )*) => {
        /// A place in a kernel where handlers can run.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DeviceEvent { $( $(#[$doc])* $Place, )* }

        impl DeviceEvent {
            /// Every place.
            pub const ALL: &[DeviceEvent] = &[$( DeviceEvent::$Place, )*];

            /// Returns the event's name in scripts.
            pub const fn name(self) -> &'static str {
                match self { $( DeviceEvent::$Place => $name, )* }
            }

            /// Returns the fields that scripts read.
            pub const fn fields(self) -> &'static [Field] {
                match self { $( DeviceEvent::$Place => $fields, )* }
            }

            /// What is said of it.
            pub const fn about(self) -> &'static About {
                match self { $( DeviceEvent::$Place => const { &About {
                    usage: concat!($name, "(\"vectorAdd\", |t| …)"),
                    fires: $fires,
                    example: concat!($name, "(\"vectorAdd\", |t| ", $does, ");"),
                    ..About::IN_KERNELS
                } }, )* }
            }
        }
    };
}

device_events! {
    /// Before a thread's first instruction.
    Entry "device_entry" {
        fields: FIELDS, fires: "a thread of a kernel of that name begins", does: "@threads.count()"
    }
    /// After its last one.
    Exit "device_exit" {
        fields: FIELDS, fires: "a thread of a kernel of that name is about to end",
        does: "@last[t.threadIdx.x].max(t.time)"
    }
    /// Before the first instruction of a block's first thread.
    BlockBegin "device_block_begin" {
        fields: FIELDS, fires: "the first thread of a block of a kernel of that name begins",
        does: "@blocks[t.smid].count()"
    }
    /// After the last instruction of a block, in the thread that ends last.
    BlockEnd "device_block_end" {
        fields: FIELDS, fires: "the last thread of a block of a kernel of that name is about to end",
        does: "@ended[t.blockIdx.x].max(t.time)"
    }
    /// Before each access to memory.
    Memory "device_mem" {
        fields: ACCESS_FIELDS, fires: "a thread of a kernel of that name is about to access memory",
        does: "@bytes[t.access].sum(t.bytes)"
    }
    /// Before each barrier of the block.
    Barrier "device_barrier" {
        fields: LINE_FIELDS, fires: "a thread of a kernel of that name comes to a barrier", does: "@barriers.count()"
    }
    /// Before each call of a function.
    Call "device_call" {
        fields: CALL_FIELDS, fires: "a thread of a kernel of that name is about to call a function",
        does: "@calls[t.callee].count()"
    }
    /// Where code of another source line begins.
    Line "device_line" {
        fields: LINE_FIELDS, fires: "a thread of a kernel of that name comes to another source line",
        does: "@lines[t.line].count()"
    }
}

impl DeviceEvent {
    /// Whether all that is needed to know when it happens are a kernel's threads, and not its code.
    pub const fn is_of_threads(self) -> bool {
        matches!(self, DeviceEvent::Entry | DeviceEvent::Exit) || self.is_of_blocks()
    }

    /// Whether patches of machine code know when it happens. Only twins know lines, and which thread of a block ends last.
    pub const fn can_be_patched(self) -> bool {
        !matches!(self, DeviceEvent::Line | DeviceEvent::BlockEnd)
    }

    /// Whether it happens once in each block.
    pub const fn is_of_blocks(self) -> bool {
        matches!(self, DeviceEvent::BlockBegin | DeviceEvent::BlockEnd)
    }
}

const fn word(name: &'static str, kind: FieldType, unit: Unit, at: usize, doc: &'static str) -> Field {
    Field { name, kind, unit, from: From::Word(at), doc, texts: &[] }
}

const fn int(name: &'static str, at: usize, doc: &'static str) -> Field {
    word(name, FieldType::Int, Unit::None, at, doc)
}

/// The parts of a position.
const fn position(at: usize) -> [Field; 3] {
    [int("x", at, "first coordinate"), int("y", at + 1, "second coordinate"), int("z", at + 2, "third coordinate")]
}

const THREAD_PARTS: &[Field] = &position(THREAD);
const BLOCK_PARTS: &[Field] = &position(BLOCK);

const FIELDS: &[Field] = &with::<{ COMMON.len() + MOST_ARGUMENTS }>(&[]);
const LINE_FIELDS: &[Field] = &with::<{ COMMON.len() + 1 + MOST_ARGUMENTS }>(&[LINE_FIELD]);
const CALL_FIELDS: &[Field] = &with::<{ COMMON.len() + OF_CALL.len() + MOST_ARGUMENTS }>(&OF_CALL);
const ACCESS_FIELDS: &[Field] = &with::<{ COMMON.len() + OF_ACCESS.len() + MOST_ARGUMENTS }>(&OF_ACCESS);

const OF_ACCESS: [Field; 7] = [
    int("address", ADDRESS, "address that is accessed; in shared and local memory, within the thread's own"),
    optional("bytes", BYTES, Unit::Bytes, "bytes that the thread accesses; `()` where only the running code knows"),
    Field {
        texts: Access::TEXTS,
        ..word("access", FieldType::Name, Unit::None, ACCESS, "\"load\", \"store\" or \"atomic\"")
    },
    Field {
        texts: SPACES,
        ..word(
            "space",
            FieldType::Name,
            Unit::None,
            SPACE,
            "state space, as the code names it: \"global\", \"shared\", \"local\", \"const\" or \"generic\"",
        )
    },
    optional(
        "sectors",
        SECTORS,
        Unit::None,
        "32-byte sectors of global memory that the warp's threads access together; `()` in other memory, and where `bytes` is \
         `()` or more than 32",
    ),
    Field {
        from: From::Optional { flag: HAS_CONFLICTS, value: CONFLICTS },
        ..int(
            "conflicts",
            CONFLICTS,
            "passes that the warp's access to shared memory takes beyond the fewest, since threads want different words of a bank; \
             `()` in other memory, for atomics and whole matrices, and where `bytes` is `()` or more than 16",
        )
    },
    LINE_FIELD,
];

const OF_CALL: [Field; 2] = [
    Field {
        from: From::Optional { flag: HAS_CALLEE, value: CALLEE },
        ..word(
            "callee",
            FieldType::Name,
            Unit::None,
            CALLEE,
            "demangled name of the function that is called; `()` where the kernel is patched, which doesn't tell it",
        )
    },
    LINE_FIELD,
];

const LINE_FIELD: Field =
    optional("line", LINE, Unit::None, "line of the source; `()` in code without line information (`nvcc -lineinfo`)");

/// A number that is absent where it is 0.
const fn optional(name: &'static str, at: usize, unit: Unit, doc: &'static str) -> Field {
    Field { name, kind: FieldType::Int, unit, from: From::Optional { flag: at, value: at }, doc, texts: &[] }
}

const ARGUMENT_NAMES: [&str; MOST_ARGUMENTS] = [
    "arg0", "arg1", "arg2", "arg3", "arg4", "arg5", "arg6", "arg7", "arg8", "arg9", "arg10", "arg11", "arg12", "arg13",
    "arg14", "arg15",
];

const fn argument(n: usize) -> Field {
    let at = ARGUMENTS + 2 * n;
    Field {
        name: ARGUMENT_NAMES[n],
        kind: FieldType::Int,
        unit: Unit::None,
        from: From::Optional { flag: at, value: at + 1 },
        doc: ARGUMENT,
        texts: &[],
    }
}

const ARGUMENT: &str = "bits of this parameter of the kernel; `()` if it has none, or one of more than 8 bytes";

/// Returns the fields that all places have, those given, and the kernel's parameters.
const fn with<const N: usize>(own: &[Field]) -> [Field; N] {
    let mut all = [COMMON[0]; N];
    let mut at = 0;
    while at < N {
        all[at] = if at < COMMON.len() {
            COMMON[at]
        } else if at < COMMON.len() + own.len() {
            own[at - COMMON.len()]
        } else {
            argument(at - COMMON.len() - own.len())
        };
        at += 1;
    }
    all
}

const COMMON: [Field; 13] = [
    word("time", FieldType::Int, Unit::Clock, TIME, "time on the GPU"),
    int("pid", PID, "process id"),
    word(
        "kernel",
        FieldType::Name,
        Unit::None,
        KERNEL,
        "demangled name of the kernel, as `k.name` of its `kernel` event",
    ),
    word("threadIdx", FieldType::Parts(THREAD_PARTS), Unit::None, THREAD, "the thread's position in its block"),
    word("blockIdx", FieldType::Parts(BLOCK_PARTS), Unit::None, BLOCK, "the block's position in the grid"),
    word("blockDim", FieldType::Dim3, Unit::None, BLOCK_DIM, "threads per block"),
    word("gridDim", FieldType::Dim3, Unit::None, GRID_DIM, "blocks in the grid"),
    int("smid", SMID, "multiprocessor that the thread runs on"),
    int("warpid", WARPID, "the warp's number on its multiprocessor"),
    int("laneid", LANEID, "the thread's number in its warp, 0 to 31"),
    int("active", ACTIVE, "threads of its warp that are there together, this one included"),
    int("clock", CLOCK, "cycles of the multiprocessor's clock"),
    word(
        "launch",
        FieldType::Parts(LAUNCH_PARTS),
        Unit::None,
        LAUNCH,
        "call that launched the kernel; its parts can only be parts of a map's key",
    ),
];

const LAUNCH_PARTS: &[Field] = &[
    of_launch(word::LAUNCH_USTACK),
    of_launch(word::LAUNCH_PYSTACK),
    of_launch(word::LAUNCH_START),
    of_launch(word::LAUNCH_TID),
    of_launch(word::LAUNCH_API),
    of_launch(word::LAUNCH_STREAM),
    of_launch(word::LAUNCH_TAG),
    of_launch(word::LAUNCH_RANGE),
    of_launch(word::LAUNCH_RANGE_PATH),
];

/// Returns the field of a launch that is in this word of a kernel's event, as device events have it: absent where the launch
/// is not known.
const fn of_launch(at: usize) -> Field {
    let mut n = 0;
    while n < Launch::FIELDS.len() {
        let field = Launch::FIELDS[n];
        let from = match field.from {
            From::Word(value) if value == at => Some((word::JOINED, value)),
            From::Optional { flag, value } if value == at => Some((flag, value)),
            _ => None,
        };
        if let Some((flag, value)) = from {
            return Field { from: From::Optional { flag: own_word(flag), value: own_word(value) }, ..field };
        }
        n += 1;
    }
    panic!("launches have no such field")
}

/// Returns the word of a device event that stands for one of a kernel's event.
const fn own_word(of_kernel: usize) -> usize {
    let mut n = 0;
    while n < LAUNCH_WORDS.len() {
        if LAUNCH_WORDS[n] == of_kernel {
            return LAUNCH + n;
        }
        n += 1;
    }
    panic!("device events have no such word")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_read_by_one_field() {
        let mut read = [0; WORDS];
        let of_call = OF_CALL.iter().filter(|it| **it != LINE_FIELD);
        for field in ACCESS_FIELDS.iter().filter(|it| it.name != "launch").chain(of_call) {
            let words = match (field.from, field.kind) {
                (From::Optional { flag, value }, _) => flag..value + 1,
                (From::Word(at), FieldType::Dim3 | FieldType::Parts(_)) => at..at + 3,
                (From::Word(at), _) => at..at + 1,
                (From::Probe, _) => panic!("{} has no word", field.name),
            };
            read[words].iter_mut().for_each(|it| *it += 1);
        }
        read[IS_LEADER] += 1;
        // Some of these are read by several fields, to know whether they are there.
        (LAUNCH..ARGUMENTS).for_each(|at| read[at] = LAUNCH_PARTS.iter().any(|it| reads(it, at)).into());
        assert_eq!(read, [1; WORDS]);
    }

    fn reads(field: &Field, word: usize) -> bool {
        matches!(field.from, From::Optional { flag, value } if [flag, value].contains(&word))
    }

    #[test]
    fn every_word_that_belongs_to_no_place_has_a_source() {
        let of_place = (0..WORDS).filter(|it| SOURCES[*it] == Source::OfPlace);
        assert_eq!(
            of_place.collect::<Vec<_>>(),
            [ADDRESS, BYTES, ACCESS, SPACE, LINE, SECTORS, HAS_CONFLICTS, CONFLICTS, HAS_CALLEE, CALLEE]
        );
    }

    #[test]
    fn the_parts_of_a_dimension_are_in_their_order() {
        for (at, register) in [(THREAD, "%tid"), (BLOCK, "%ctaid"), (BLOCK_DIM, "%ntid"), (GRID_DIM, "%nctaid")] {
            let of = |n: usize| match SOURCES[at + n] {
                Source::Register32(it) => it.to_owned(),
                other => panic!("{other:?}"),
            };
            assert_eq!([of(0), of(1), of(2)], ["x", "y", "z"].map(|it| format!("{register}.{it}")));
        }
    }
}
