//! The table: one row per event.
//!
//! A row of [`activities!`] lists the members of the record in wire order, 64-bit ones first: type,
//! prediction in recordings and, if scripts can read it, its word, type, unit and description. The
//! record, its columns, the event's fields, the kind of the call that submits it, and the bits of
//! the demand are derived from it.

use crate::about::{About, MeasuredCost};
use crate::clock::Realtime;
use crate::column::{
    Column, Meaning, Prediction, Texts, boolean, bytes, choice, derived, dim3, fields, hidden, int, n_fields, optional,
    record, time,
};
use crate::field::{Field, FieldType, Unit};
use crate::host::{
    AllocKind, ContextChangeKind, ContextSwitchKind, MigrationCause, MigrationKind, ModuleKind, OverheadKind,
    RangeKind, StreamChangeKind, StreamMode, WaitKind,
};
use crate::word::{self, GpuContext};
use Prediction::{Kept, Previous, PreviousOf, Same};
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// An unknown id.
pub const UNKNOWN: u32 = u32::MAX;

/// Wire kind of [`Launch`].
pub const LAUNCH_RECORD: u16 = 1;

// Shared by several rows.
const DEVICE: Meaning = int(word::DEVICE, "the GPU's number in its process: CUPTI's device id");
const CONTEXT: Meaning = int(word::CONTEXT, "CUPTI's context id");
const STREAM: Meaning = int(word::STREAM, "CUPTI's stream id");
const GRAPH: Meaning = int(word::GRAPH, "executable graph that it belongs to").unless_0(word::GRAPH);
const GRAPH_NODE: Meaning = int(word::GRAPH_NODE, "its node in that graph").unless_0(word::GRAPH);

/// The parts of `gpu`, of which `at` is the first word, and `limits` the first of what a multiprocessor has. The former
/// are missing together, and so are the latter.
const fn gpu_parts(at: usize, limits: usize) -> [Field; 10] {
    const fn number(name: &'static str, unit: Unit, at: (usize, usize), doc: &'static str) -> Field {
        optional(name, FieldType::Int, unit, at, doc)
    }
    let uuid = at + word::GPU_UUID - word::GPU;
    let sms = at + word::GPU_SMS - word::GPU;
    let memory = at + word::GPU_MEMORY - word::GPU;
    [
        optional("name", FieldType::Name, Unit::None, (uuid, at), "the GPU's name, such as NVIDIA H200"),
        optional("uuid", FieldType::Name, Unit::None, (uuid, uuid), "its UUID, as nvidia-smi shows it"),
        number("sms", Unit::None, (uuid, sms), "its streaming multiprocessors"),
        number("memory", Unit::Bytes, (uuid, memory), "its memory"),
        number("capability", Unit::None, (limits, limits), "its compute capability, 90 for 9.0"),
        number("threads_per_sm", Unit::None, (limits, limits + 1), "threads that a multiprocessor has room for"),
        number("blocks_per_sm", Unit::None, (limits, limits + 2), "blocks that a multiprocessor has room for"),
        number("registers_per_sm", Unit::None, (limits, limits + 3), "registers of a multiprocessor"),
        number("shared_per_sm", Unit::Bytes, (limits, limits + 4), "shared memory of a multiprocessor"),
        number("reserved_shared", Unit::Bytes, (limits, limits + 5), "shared memory that CUDA takes for each block"),
    ]
}

pub(crate) const GPU_DOC: &str = "the GPU: its name, its UUID, its multiprocessors and its bytes of memory; also what a \
    multiprocessor has: `capability threads_per_sm blocks_per_sm registers_per_sm shared_per_sm reserved_shared`";
/// Parts of an activity's `gpu`.
pub const GPU: &[Field] = &gpu_parts(word::GPU, word::GPU_LIMITS);
/// Parts of the `gpu` of a launch or a CUDA call.
pub const LAUNCH_GPU: &[Field] = &gpu_parts(word::LAUNCH_GPU, word::LAUNCH_GPU_LIMITS);

const fn stream_kind(at: usize) -> Field {
    let doc =
        "\"null\" for the default stream of the context, \"per-thread\" for that of a thread, \"created\" for others";
    optional("stream_kind", FieldType::Name, Unit::None, (at, at), doc)
}

const fn stream_priority(flag: usize, at: usize) -> Field {
    let doc = "priority of the stream: 0, or less for streams whose work goes first";
    optional("stream_priority", FieldType::Int, Unit::None, (flag, at), doc)
}

/// The parts of `capture`.
const CAPTURE: &[Field] = &[
    optional(
        "ustack",
        FieldType::Stack,
        Unit::None,
        (word::CAPTURED, word::CAPTURE_USTACK),
        "the user stack, with the lines of a Python program",
    ),
    optional(
        "pystack",
        FieldType::Stack,
        Unit::None,
        (word::CAPTURED, word::CAPTURE_PYSTACK),
        "the lines of a Python program alone",
    ),
];

/// The parts of `previous`.
const PREVIOUS: &[Field] = &[
    optional("name", FieldType::Name, Unit::None, (word::PREVIOUS_END, word::PREVIOUS_NAME), "its name"),
    optional("end", FieldType::Int, Unit::Clock, (word::PREVIOUS_END, word::PREVIOUS_END), "its last instruction"),
];

/// Fields of every activity that the tracer computes.
const COMMON: &[Field] = &[
    derived("time", FieldType::Int, Unit::Clock, word::TIME, "start time on the GPU"),
    derived("pid", FieldType::Int, Unit::None, word::PID, "process id"),
    derived("tid", FieldType::Int, Unit::None, word::TID, "thread that launched it, or the process id if unknown"),
    derived("comm", FieldType::Comm, Unit::None, word::COMM, "name of the process"),
    derived("duration", FieldType::Int, Unit::Nanos, word::DURATION, "`end - start`"),
    derived("gpu", FieldType::Parts(GPU), Unit::None, word::GPU, GPU_DOC),
    stream_kind(word::STREAM_KIND),
    stream_priority(word::STREAM_HAS_PRIORITY, word::STREAM_PRIORITY),
    derived(
        "capture",
        FieldType::Parts(CAPTURE),
        Unit::None,
        word::CAPTURE_USTACK,
        "in a graph: the code that captured or added its node; of a graph: the code that instantiated it",
    ),
    optional(
        "idle",
        FieldType::Int,
        Unit::Nanos,
        (word::HAS_IDLE, word::IDLE),
        "how long nothing of its process had run on the GPU when it began; 0 if something ran",
    ),
    derived("launch", FieldType::Launch, Unit::None, word::LAUNCH, "call that launched it"),
    RANGES[0],
    RANGES[1],
];

/// The NVTX ranges that the thread is in that launches, or makes a call.
pub(crate) const RANGES: [Field; 2] = [
    optional(
        "nvtx",
        FieldType::Name,
        Unit::None,
        (word::LAUNCH_RANGE, word::LAUNCH_RANGE),
        "name of the innermost NVTX range that the calling thread is in; `()` outside ranges",
    ),
    optional(
        "nvtx_path",
        FieldType::Name,
        Unit::None,
        (word::LAUNCH_RANGE, word::LAUNCH_RANGE_PATH),
        "names of all NVTX ranges that the calling thread is in, such as \"epoch/step\"; `()` outside ranges",
    ),
];

/// Fields of a kernel that the tracer computes.
const OF_KERNELS: &[Field] = &[
    derived(
        "name",
        FieldType::Name,
        Unit::None,
        word::NAME,
        "demangled name with template arguments, without parameters",
    ),
    derived("short_name", FieldType::Name, Unit::None, word::SHORT_NAME, "demangled name without template arguments"),
    derived("symbol", FieldType::Name, Unit::None, word::SYMBOL, "mangled name"),
    derived(
        "previous",
        FieldType::Parts(PREVIOUS),
        Unit::None,
        word::PREVIOUS_NAME,
        "the kernel that ended before it on its stream: its name and its end",
    ),
];

/// Fields of every call, whether it launches something or is an event of the CPU.
pub(crate) const OF_CALL: [Field; 5] = [
    derived("time", FieldType::Int, Unit::Clock, word::LAUNCH_START, "when the call started"),
    derived("pid", FieldType::Int, Unit::None, word::LAUNCH_PID, "process id"),
    derived("tid", FieldType::Int, Unit::None, word::LAUNCH_TID, "thread that called"),
    derived("comm", FieldType::Comm, Unit::None, word::LAUNCH_COMM, "name of that thread"),
    derived("duration", FieldType::Int, Unit::Nanos, word::LAUNCH_DURATION, "`end - start`"),
];

/// Further fields of a launch that the tracer computes.
const LAUNCH_DERIVED: &[Field] = &[
    derived(
        "ustack",
        FieldType::Stack,
        Unit::None,
        word::LAUNCH_USTACK,
        "user stack of the outermost call, with the lines of a Python program",
    ),
    derived("pystack", FieldType::Stack, Unit::None, word::LAUNCH_PYSTACK, "the lines of a Python program alone"),
    derived(
        "api",
        FieldType::Name,
        Unit::None,
        word::LAUNCH_API,
        "name of the outermost call, such as cudaLaunchKernel",
    ),
    derived(
        "name",
        FieldType::Name,
        Unit::None,
        word::LAUNCH_NAME,
        "demangled name of the kernel; the call's name if it launches none or several",
    ),
    derived("symbol", FieldType::Name, Unit::None, word::LAUNCH_SYMBOL, "mangled name of the kernel"),
    Field {
        texts: Call::NAMES,
        ..derived(
            "kind",
            FieldType::Name,
            Unit::None,
            word::LAUNCH_KIND,
            "what it submits: \"kernel\", \"graph\", \"memset\" or \"memcpy\"",
        )
    },
    RANGES[0],
    RANGES[1],
    optional(
        "tag",
        FieldType::Int,
        Unit::None,
        (word::LAUNCH_TAGGED, word::LAUNCH_TAG),
        "value set by a `launch` handler",
    ),
    derived("gpu", FieldType::Parts(LAUNCH_GPU), Unit::None, word::LAUNCH_GPU, GPU_DOC),
    stream_kind(word::LAUNCH_STREAM_KIND),
    stream_priority(word::LAUNCH_STREAM_HAS_PRIORITY, word::LAUNCH_STREAM_PRIORITY),
];

/// Something that records of all kinds of activities are shown to.
pub trait Visitor {
    fn visit<R: OfActivity>(&mut self, record: &R);
}

/// Returns the record that begins with these bytes: where it is or, if it isn't aligned there, in `copy`; `None` if they are too
/// few.
#[inline]
pub fn in_place<'a, R: FromBytes + KnownLayout + Immutable>(body: &'a [u8], copy: &'a mut Option<R>) -> Option<&'a R> {
    match R::ref_from_prefix(body) {
        Ok((it, _)) => Some(it),
        Err(_) => {
            *copy = Some(R::read_from_prefix(body).ok()?.0);
            copy.as_ref()
        }
    }
}

/// The columns of every activity, by name: the tracer joins and orders by them.
macro_rules! activities {
    ($(
        $(#[$doc:meta])*
        $Record:ident $name:literal { record: $record:literal, call: $call:literal, plural: $plural:literal, also: $also:expr, about: $about:expr $(,)? } { $($columns:tt)* }
    )*) => {
        /// A kind of GPU activity.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Activity { $( $(#[$doc])* $Record, )* }

        impl Activity {
            /// Every kind, in the order of the table.
            pub const ALL: &'static [Activity] = &[$( Activity::$Record ),*];
            pub const COUNT: usize = Activity::ALL.len();

            /// Returns the function that declares a handler for it.
            pub const fn name(self) -> &'static str {
                match self { $( Activity::$Record => $name, )* }
            }

            /// Kind of its record on the wire.
            pub const fn record_kind(self) -> u16 {
                match self { $( Activity::$Record => $record, )* }
            }

            /// Members of its record.
            pub const fn columns(self) -> &'static [Column] {
                match self { $( Activity::$Record => $Record::COLUMNS, )* }
            }

            /// Bytes of its record's body.
            pub const fn record_size(self) -> usize {
                match self { $( Activity::$Record => size_of::<$Record>(), )* }
            }

            /// Shows a visitor a record of this kind; returns false if the bytes are too few.
            #[inline]
            pub fn show(self, body: &[u8], visitor: &mut impl Visitor) -> bool {
                match self {
                    $( Activity::$Record => in_place::<$Record>(body, &mut None).map(|it| visitor.visit(it)).is_some(), )*
                }
            }

            /// Fields of its event value.
            pub const fn fields(self) -> &'static [Field] {
                match self { $( Activity::$Record => $Record::FIELDS, )* }
            }

            /// Returns the word for several of them.
            pub const fn plural(self) -> &'static str {
                match self { $( Activity::$Record => $plural, )* }
            }

            /// What is said of it.
            pub const fn about(self) -> &'static About {
                match self { $( Activity::$Record => const { &$about }, )* }
            }

            /// Returns the kind of call that submits it, outside graphs or as a graph.
            pub const fn call(self) -> Call {
                match self { $( Activity::$Record => Call::$Record, )* }
            }
        }

        /// A kind of launch, by what the call submits.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Call {
            $( $(#[$doc])* $Record = $call, )*
        }

        impl Call {
            /// Every kind, in the order of the table.
            pub const ALL: &'static [Call] = &[$( Call::$Record, )*];
            /// Their names in scripts, likewise.
            pub const NAMES: &'static [&'static str] = &[$( $name, )*];

            /// Returns its name in scripts.
            pub const fn name(self) -> &'static str {
                match self { $( Call::$Record => $name, )* }
            }

            /// Returns the activity that it submits; a graph submits any others, too.
            pub const fn activity(self) -> Activity {
                match self { $( Call::$Record => Activity::$Record, )* }
            }
        }

        /// A record of something that a GPU did.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ActivityRecord { $( $Record($Record), )* }

        impl ActivityRecord {
            /// Reads a record of this wire kind; returns `None` if the bytes are too few or the
            /// kind is not an activity's.
            #[inline]
            pub fn read(record_kind: u16, body: &[u8]) -> Option<Self> {
                match record_kind {
                    $( $record => Some(ActivityRecord::$Record($Record::read_from_prefix(body).ok()?.0)), )*
                    _ => None,
                }
            }

            #[inline]
            pub fn activity(&self) -> Activity {
                match self { $( ActivityRecord::$Record(_) => Activity::$Record, )* }
            }

            /// Fills the words of all columns that are fields, except times.
            #[inline]
            pub fn put_words(&self, words: &mut GpuContext, texts: &impl Texts) {
                match self { $( ActivityRecord::$Record(it) => it.put_words(words, texts), )* }
            }
        }

        $(
            record! { $(#[$doc])* $Record { $($columns)* } }

            impl $Record {
                /// Its fields.
                pub const FIELDS: &'static [Field] = &fields::<{
                    let also: &[Field] = $also;
                    COMMON.len() + also.len() + n_fields($Record::COLUMNS)
                }>(&[COMMON, $also], $Record::COLUMNS);
            }

            impl std::convert::From<$Record> for ActivityRecord {
                fn from(it: $Record) -> Self { ActivityRecord::$Record(it) }
            }
        )*

        activities! { @common $($Record)* ;
            start: Realtime, end: Realtime, graph_node: u64, graph: u32, correlation: u32, device: u32, context: u32, stream: u32
        }
    };
    (@common $($Record:ident)* ; $($rest:tt)*) => {
        activities! { @columns [$($Record)*] $($rest)* }
    };
    (@columns $Records:tt $( $column:ident : $type:ty ),*) => {
        impl ActivityRecord {
            $( activities! { @column $Records $column $type } )*
        }

        /// A record of an activity, of a kind that is known or not.
        pub trait OfActivity: Copy + Into<ActivityRecord> {
            fn activity(&self) -> Activity;
            $( fn $column(&self) -> $type; )*
        }

        impl OfActivity for ActivityRecord {
            #[inline]
            fn activity(&self) -> Activity { self.activity() }
            $( #[inline] fn $column(&self) -> $type { self.$column() } )*
        }

        activities! { @each $Records [$( $column : $type ),*] }
    };
    (@each [$($Record:ident)*] $columns:tt) => { $( activities! { @kind $Record $columns } )* };
    (@kind $Record:ident [$( $column:ident : $type:ty ),*]) => {
        impl OfActivity for $Record {
            #[inline]
            fn activity(&self) -> Activity { Activity::$Record }
            $( #[inline] fn $column(&self) -> $type { self.$column } )*
        }
    };
    (@column [$($Record:ident)*] $column:ident $type:ty) => {
        #[inline]
        pub fn $column(&self) -> $type {
            match self { $( ActivityRecord::$Record(it) => it.$column, )* }
        }
    };
}

record! {
    /// A call that submits work, written when the outermost call returns.
    Launch {
        /// CLOCK_MONOTONIC nanoseconds at the outermost ENTER and, if the demand asks for it, EXIT;
        /// otherwise `end` equals `start`.
        start: u64, PreviousOf("end"), Meaning { unit: Unit::Clock, ..int(word::LAUNCH_START, "when the call started") };
        end: u64, Same("start"), Meaning { unit: Unit::Clock, ..int(word::LAUNCH_END, "when the call returned") };
        /// The tag set by a handler at the marker, if `flags` has [`Launch::TAGGED`].
        tag: i64, Previous;
        external: u64, Previous,
            int(word::LAUNCH_EXTERNAL, "id that the program or a tool in it had pushed for its calls, as profilers do with the number of an operator; `()` without one")
                .unless_0(word::LAUNCH_EXTERNAL_KIND);
        /// CUPTI's correlation id; a runtime call and its nested driver call share it.
        correlation: u32, Previous;
        /// Thread id as the target sees it.
        tid: u32, Previous;
        /// Name id of the outermost call, version suffix removed.
        api: u32, Kept;
        /// Stack id; 0 if no stack was requested or none could be taken.
        stack: u32, Kept;
        /// Name id of the kernel's symbol; 0 for calls that submit none or several.
        symbol: u32, Kept;
        /// Name id of the path of NVTX ranges that the thread is in; 0 outside ranges.
        ranges: u32, Kept;
        /// What the demand asked for when the call began: `message::demand::recorded_under`. 0 if that is not known.
        demanded: u32, Previous;
        /// Return value of the outermost call, 0 is success.
        result: i32, Previous, int(word::LAUNCH_RESULT, "the call's result, 0 on success");
        context: u32, Previous, int(word::LAUNCH_CONTEXT, "CUPTI's context id");
        device: u32, Previous, int(word::LAUNCH_DEVICE, "the GPU's number in its process: CUPTI's device id");
        /// [`UNKNOWN`] if not requested.
        stream: u32, Previous, int(word::LAUNCH_STREAM, "CUPTI's stream id");
        grid: [u32; 3], Kept, dim3(word::LAUNCH_GRID, "blocks in the grid");
        block: [u32; 3], Kept, dim3(word::LAUNCH_BLOCK, "threads per block");
        dynamic_shared: u32, Kept, bytes(word::LAUNCH_DYNAMIC_SHARED, "dynamic shared memory per block");
        /// The number of a [`Call`].
        launch_kind: u32, Previous;
        /// [`Launch::TAGGED`], [`Launch::CAPTURED`], [`Launch::NO_STACK`], [`Launch::NO_RECORD`],
        /// [`Launch::MAYBE_NO_RECORD`], [`Launch::OUTSIDE`], [`Launch::YIELDED`],
        /// [`Launch::NULL_STREAM`], [`Launch::THREAD_STREAM`].
        flags: u32, Previous;
        /// Of the stream, plus [`Launch::PRIORITY_0`]; 0 if not requested, or unknown.
        stream_priority: u32, Previous;
        /// An [`ExternalKind`]; 0 without an external id, or if it was not requested.
        external_kind: u32, Previous,
            choice(
                Choice::ExternalKind,
                word::LAUNCH_EXTERNAL_KIND,
                "for whom that id is: \"unknown\", \"openacc\", \"custom0\", \"custom1\" or \"custom2\"; `()` without one",
            )
            .unless_0(word::LAUNCH_EXTERNAL_KIND);
    }
}

impl Launch {
    pub const KERNEL: u32 = Call::Kernel as u32;
    pub const GRAPH: u32 = Call::Graph as u32;
    pub const MEMSET: u32 = Call::Memset as u32;
    pub const MEMCPY: u32 = Call::Memcpy as u32;

    pub const TAGGED: u32 = 1;
    /// Captured into a graph: it submits no work.
    pub const CAPTURED: u32 = 2;
    /// A stack was requested but could not be stored.
    pub const NO_STACK: u32 = 4;
    /// There is no record to wait for: a graph without kernels, or a copy of 0 bytes.
    pub const NO_RECORD: u32 = 8;
    /// There may be no record to wait for: a graph that was instantiated before tracing started or has
    /// nodes that may be skipped, or a copy that may be between two places of the host's memory.
    pub const MAYBE_NO_RECORD: u32 = 16;
    /// Outside the part of the run that is recorded, in time or by its GPU: recorded only to tell what it caused.
    pub const OUTSIDE: u32 = 32;
    /// Made while another tool in the process received CUPTI's records: its activity's record may
    /// never arrive.
    pub const YIELDED: u32 = 64;
    /// In the default stream of the context, or of the thread. Only where `stream` is requested.
    pub const NULL_STREAM: u32 = 128;
    pub const THREAD_STREAM: u32 = 256;

    /// Priority 0 as `stream_priority` has it.
    pub const PRIORITY_0: u32 = 1 << 31;

    /// Returns the priority of the stream, if it is known.
    pub fn priority(&self) -> Option<i32> {
        let it = self.stream_priority;
        (it != 0).then(|| it.wrapping_sub(Launch::PRIORITY_0) as i32)
    }

    /// What is said of it.
    pub const ABOUT: About = About {
        usage: "launch(|l| …)",
        fires: "a call launched a kernel or a graph, or made a call of its `kinds`",
        example: "launch(|l| @calls[l.api].count());",
        measured: Some(MeasuredCost::new(("launch", "launch"), 855, "launch")),
        ..About::OF_LAUNCH
    };

    /// Its fields.
    pub const FIELDS: &'static [Field] = &fields::<{ OF_CALL.len() + LAUNCH_DERIVED.len() + n_fields(Launch::COLUMNS) }>(
        &[&OF_CALL, LAUNCH_DERIVED],
        Launch::COLUMNS,
    );

    /// Whether it causes at most one activity. A graph has many nodes; a copy may be made in parts.
    #[inline]
    pub fn is_single(&self) -> bool {
        !matches!(self.launch_kind, Launch::GRAPH | Launch::MEMCPY)
    }

    /// Returns what it submits, or `None` for an unknown number.
    #[inline]
    pub fn call(&self) -> Option<Call> {
        Call::from_number(self.launch_kind)
    }
}

activities! {
    /// A kernel that ran.
    Kernel "kernel" {
        record: 2, call: 1, plural: "kernels", also: OF_KERNELS,
        about: About {
            usage: "kernel(|k| …)",
            fires: "a kernel ran on the GPU",
            example: "kernel(|k| @time[k.name].sum(k.duration));",
            measured: Some(MeasuredCost::new(("kernel", "launch"), 902, "launch")),
            ..About::OF_ACTIVITY
        },
    } {
        start: Realtime, PreviousOf("end"), time(word::START, "first instruction on the GPU");
        end: Realtime, Same("start"), time(word::END, "last instruction on the GPU");
        graph_node: u64, Kept, GRAPH_NODE;
        /// 0 where CUPTI doesn't tell, like the next.
        queued: Realtime, Previous,
            time(word::QUEUED, "when the CPU put it into a command buffer; `()` where CUPTI doesn't tell")
                .unless_0(word::QUEUED);
        submitted: Realtime, Previous,
            time(word::SUBMITTED, "when that buffer was handed to the GPU; `()` where CUPTI doesn't tell")
                .unless_0(word::SUBMITTED);
        /// The launch's number: `%gridid` in the kernel. 0 in recordings of earlier versions.
        grid_id: u64, Previous;
        /// 0 outside graphs.
        graph: u32, Previous, GRAPH;
        correlation: u32, Previous;
        device: u32, Previous, DEVICE;
        context: u32, Previous, CONTEXT;
        stream: u32, Kept, STREAM;
        /// Name id of the mangled name.
        symbol: u32, Kept;
        grid: [u32; 3], Kept, dim3(word::GRID, "blocks in the grid");
        block: [u32; 3], Kept, dim3(word::BLOCK, "threads per block");
        registers: u32, Kept, int(word::REGISTERS, "registers per thread");
        static_shared: u32, Kept, bytes(word::STATIC_SHARED, "static shared memory per block");
        dynamic_shared: u32, Kept, bytes(word::DYNAMIC_SHARED, "dynamic shared memory per block");
        local_memory: u32, Kept, bytes(word::LOCAL_MEMORY, "local memory per thread");
    }

    /// Memory that the GPU set to a value.
    Memset "memset" {
        record: 9, call: 3, plural: "memsets", also: &[],
        about: About {
            usage: "memset(|m| …)",
            fires: "the GPU set memory to a value",
            example: "memset(|m| @set[m.memory_kind ?? \"graph\"].sum(m.bytes));",
            measured: Some(MeasuredCost::new(("memset", "set"), 481, "memory set")),
            ..About::OF_ACTIVITY
        },
    } {
        start: Realtime, PreviousOf("end"), time(word::START, "when the GPU started");
        end: Realtime, Same("start"), time(word::END, "when the GPU finished");
        bytes: u64, Kept, bytes(word::memset::BYTES, "size of the memory");
        graph_node: u64, Kept, GRAPH_NODE;
        /// 0 outside graphs.
        graph: u32, Previous, GRAPH;
        correlation: u32, Previous;
        device: u32, Previous, DEVICE;
        context: u32, Previous, CONTEXT;
        stream: u32, Kept, STREAM;
        value: u32, Kept,
            int(word::memset::VALUE, "value written; `()` inside a graph, where CUPTI does not report it")
                .unless_0(word::memset::KNOWN);
        /// A [`MemoryKind`].
        memory_kind: u32, Kept,
            choice(
                Choice::MemoryKind,
                word::memset::MEMORY_KIND,
                "\"device\", \"pinned\", \"pageable\", \"managed\", …; `()` inside a graph, where CUPTI does not report it",
            )
            .unless_0(word::memset::KNOWN);
        /// 1 if `value` and `memory_kind` are those of this operation, 0 if they are unknown.
        known: u32, Kept, hidden(word::memset::KNOWN);
    }

    /// Memory that the GPU copied.
    Memcpy "memcpy" {
        record: 12, call: 4, plural: "copies", also: &[],
        about: About {
            usage: "memcpy(|m| …)",
            fires: "the GPU copied memory",
            example: "memcpy(|m| @copied[m.direction].sum(m.bytes));",
            measured: Some(MeasuredCost::new(("memcpy", "copy"), 667, "copy")),
            ..About::OF_ACTIVITY
        },
    } {
        start: Realtime, PreviousOf("end"), time(word::START, "when the GPU started");
        end: Realtime, Same("start"), time(word::END, "when the GPU finished");
        bytes: u64, Kept, bytes(word::memcpy::BYTES, "bytes copied");
        graph_node: u64, Kept, GRAPH_NODE;
        /// 0 if CUPTI doesn't tell.
        copies: u64, Previous,
            int(word::memcpy::COPIES, "copies that this event stands for: 1, or more of a batch; `()` before CUPTI 12.9")
                .unless_0(word::memcpy::COPIES);
        /// 0 outside graphs.
        graph: u32, Previous, GRAPH;
        correlation: u32, Previous;
        device: u32, Previous, DEVICE;
        context: u32, Previous, CONTEXT;
        stream: u32, Kept, STREAM;
        /// A [`CopyDirection`].
        direction: u32, Kept,
            choice(
                Choice::CopyDirection,
                word::memcpy::DIRECTION,
                "\"HtoD\", \"DtoH\", \"DtoD\", \"HtoH\", \"PtoP\" between devices; with `A` for arrays, \"HtoA\" and so on",
            );
        /// A [`MemoryKind`].
        src: u32, Kept,
            choice(Choice::MemoryKind, word::memcpy::SRC, "memory read: \"device\", \"pinned\", \"pageable\", \"managed\", …");
        /// A [`MemoryKind`].
        dst: u32, Kept, choice(Choice::MemoryKind, word::memcpy::DST, "memory written, likewise");
        is_async: u32, Kept, boolean(word::memcpy::IS_ASYNC, "whether the call may return before the copy is done");
        /// [`UNKNOWN`] unless it is between devices, as in the next.
        src_device: u32, Previous,
            int(word::memcpy::SRC_DEVICE, "CUPTI's id of the device read; `()` if `direction` is not \"PtoP\"")
                .unless_0(word::memcpy::IS_PEER);
        dst_device: u32, Previous,
            int(word::memcpy::DST_DEVICE, "CUPTI's id of the device written, likewise").unless_0(word::memcpy::IS_PEER);
        /// 1 if it is between devices.
        is_peer: u32, Previous, hidden(word::memcpy::IS_PEER);
    }

    /// A launch of a graph that ran, as a whole.
    Graph "graph" {
        record: 13, call: 2, plural: "graphs", also: &[],
        about: About {
            usage: "graph(|g| …)",
            fires: "the GPU ran a graph that was launched",
            example: "graph(|g| @graph_us.hist(g.duration / 1.us));",
            ..About::OF_ACTIVITY
        },
    } {
        start: Realtime, PreviousOf("end"), time(word::START, "when its first node started");
        end: Realtime, Same("start"), time(word::END, "when its last node ended");
        /// 0: it is no node.
        graph_node: u64, Previous;
        graph: u32, Kept, int(word::GRAPH, "executable graph that was launched");
        correlation: u32, Previous;
        device: u32, Previous, DEVICE;
        context: u32, Previous, CONTEXT;
        stream: u32, Previous, int(word::STREAM, "CUPTI's id of the stream that it was launched in");
        /// 0 if the GPU recorded it as a whole.
        nodes: u32, Previous,
            int(word::graph::NODES, "nodes with a record that `start` and `end` are from; `()` unless `is_derived`")
                .unless_0(word::graph::NODES);
        is_derived: u32, Previous,
            boolean(word::graph::IS_DERIVED, "whether the tracer puts it together from its nodes' records");
        reserved: u32, Previous;
    }
}

impl ActivityRecord {
    /// Returns the name id of what ran; 0 without a name.
    #[inline]
    pub fn symbol(&self) -> u32 {
        match self {
            ActivityRecord::Kernel(it) => it.symbol,
            ActivityRecord::Memset(_) | ActivityRecord::Memcpy(_) | ActivityRecord::Graph(_) => 0,
        }
    }

    /// Returns the executable graph that it is a node of; `None` outside graphs.
    #[inline]
    pub fn graph_of_node(&self) -> Option<u32> {
        match self {
            ActivityRecord::Graph(_) => None,
            node => Some(node.graph()).filter(|it| *it != 0),
        }
    }
}

impl Activity {
    /// Returns the kind with this wire kind.
    #[inline]
    pub fn of_record(record_kind: u16) -> Option<Activity> {
        Activity::ALL.iter().copied().find(|it| it.record_kind() == record_kind)
    }

    /// Returns its index in arrays by kind.
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl Call {
    pub const COUNT: usize = Call::ALL.len();

    /// Returns its number in [`Launch::launch_kind`].
    #[inline]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The inverse of [`Call::number`].
    #[inline]
    pub fn from_number(number: u32) -> Option<Call> {
        Call::ALL.iter().copied().find(|it| it.number() == number)
    }

    /// Returns its index in arrays by kind.
    #[inline]
    pub const fn index(self) -> usize {
        self as usize - 1
    }
}

/// Names the fixed lists of strings that columns may be numbers in.
macro_rules! choices {
    ($($List:ident)*) => {
        /// A fixed list of strings, indexed by a column's number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Choice { $( $List, )* }

        impl Choice {
            pub const ALL: &'static [Choice] = &[$( Choice::$List, )*];

            /// Returns the strings by number; 0 means none of them.
            pub const fn texts(self) -> &'static [&'static str] {
                match self { $( Choice::$List => $List::NAMES, )* }
            }
        }
    };
}

choices! {
    MemoryKind CopyDirection WaitKind AllocKind RangeKind ModuleKind OverheadKind StreamChangeKind StreamMode
    ContextChangeKind ContextSwitchKind MigrationKind MigrationCause ExternalKind
}

texts! {
    /// For whom an external id is: the numbers of `CUpti_ExternalCorrelationKind`.
    ExternalKind {
        Unknown = 1 "unknown",
        OpenAcc = 2 "openacc",
        Custom0 = 3 "custom0",
        Custom1 = 4 "custom1",
        Custom2 = 5 "custom2",
    }
}

texts! {
    /// Where memory is.
    MemoryKind {
        Pageable = 1 "pageable",
        Pinned = 2 "pinned",
        Device = 3 "device",
        Array = 4 "array",
        Managed = 5 "managed",
        DeviceStatic = 6 "device_static",
        ManagedStatic = 7 "managed_static",
    }
}

texts! {
    /// Between which kinds of memory a copy is: the host's, a device's, an array.
    CopyDirection {
        HostToDevice = 1 "HtoD",
        DeviceToHost = 2 "DtoH",
        HostToArray = 3 "HtoA",
        ArrayToHost = 4 "AtoH",
        ArrayToArray = 5 "AtoA",
        ArrayToDevice = 6 "AtoD",
        DeviceToArray = 7 "DtoA",
        DeviceToDevice = 8 "DtoD",
        HostToHost = 9 "HtoH",
        /// From one device to another.
        PeerToPeer = 10 "PtoP",
    }
}

const _: () = {
    // All arrays by kind are indexed by these.
    let mut at = 0;
    while at < Call::ALL.len() {
        assert!(Call::ALL[at].index() < Call::COUNT, "the numbers of calls have a gap");
        at += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::Calls;
    use std::collections::HashSet;

    fn tables() -> Vec<(&'static str, &'static [Field])> {
        let activities = Activity::ALL.iter().map(|it| (it.name(), it.fields()));
        activities.chain([("launch", Launch::FIELDS)]).collect()
    }

    #[test]
    fn fields_have_names_of_their_own_and_fit_the_context() {
        for (event, fields) in tables() {
            let names: HashSet<_> = fields.iter().map(|it| it.name).collect();
            assert_eq!(names.len(), fields.len(), "{event}");
            assert!(fields.iter().all(|it| it.from.word().is_some_and(|at| at < word::WORDS)), "{event}");
        }
    }

    /// Words that a field takes.
    fn words(field: &Field) -> Vec<usize> {
        let at = field.from.word().unwrap();
        match field.kind {
            FieldType::Dim3 => (at..at + 3).collect(),
            FieldType::Comm => vec![at, at + 1],
            FieldType::Parts(parts) => parts.iter().flat_map(words).collect(),
            _ => vec![at],
        }
    }

    #[test]
    fn fields_share_no_word_but_the_time_with_the_start() {
        for (event, fields) in tables() {
            let mut taken: Vec<&str> = vec![""; word::WORDS];
            // An activity has its launch's ranges.
            let is_placed = |it: &&Field| it.kind != FieldType::Launch && (event == "launch" || !RANGES.contains(it));
            let placed = fields.iter().filter(is_placed);
            for field in placed.filter(|it| (event, it.name) != ("launch", "time")) {
                for at in words(field) {
                    let other = std::mem::replace(&mut taken[at], field.name);
                    let same = other.is_empty() || matches!((other, field.name), ("graph", "graph"));
                    assert!(same, "{event}: {other} and {} at {at}", field.name);
                }
            }
            let ((own, launch), own_too) = (taken[..word::MORE].split_at(word::LAUNCH), &taken[word::MORE..]);
            let outside = if event == "launch" { [own, own_too].concat() } else { launch.to_vec() };
            assert!(outside.iter().all(|it| it.is_empty()), "{event}");
        }
    }

    #[test]
    fn columns_fill_their_record_without_a_gap() {
        let records = Activity::ALL.iter().map(|it| (it.columns(), it.record_size()));
        for (columns, size) in records.chain([(Launch::COLUMNS, size_of::<Launch>())]) {
            let end = columns.iter().fold(0, |at, it| {
                assert_eq!(it.offset, at, "{}", it.name);
                at + it.width * it.count
            });
            assert_eq!((end, size % 8), (size, 0));
        }
    }

    #[test]
    fn kinds_are_told_apart_on_the_wire_and_in_sets() {
        let records: HashSet<_> = Activity::ALL.iter().map(|it| it.record_kind()).collect();
        assert_eq!(records.len(), Activity::COUNT);
        assert!(!records.contains(&LAUNCH_RECORD));
        assert!(Activity::ALL.iter().all(|it| Activity::of_record(it.record_kind()) == Some(*it)));
        let places: HashSet<_> = Call::ALL.iter().map(|it| it.index()).collect();
        assert_eq!(places.len(), Call::COUNT);
        assert!(Call::ALL.iter().all(|it| Call::from_number(it.number()) == Some(*it)));
        assert_eq!(Calls::from_bits(Calls::ALL.bits()), Calls::ALL);
        assert_eq!(Activity::Memset.causes().iter().collect::<Vec<_>>(), [Call::Memset, Call::Graph]);
    }

    struct Numbers;

    impl Texts for Numbers {
        fn choice(&self, _: Choice, number: u32) -> u64 {
            1000 + u64::from(number)
        }
    }

    #[test]
    fn a_record_fills_the_words_of_its_fields() {
        let mut words = [0; word::WORDS];
        let it = Memset { bytes: 64, value: 7, memory_kind: 3, known: 1, stream: 9, graph: 0, ..Memset::default() };
        ActivityRecord::from(it).put_words(&mut words, &Numbers);
        let field = |name: &str| {
            let it = Activity::Memset.fields().iter().find(|it| it.name == name).unwrap();
            match it.from {
                crate::field::From::Optional { flag, .. } if words[flag] == 0 => None,
                from => Some(words[from.word().unwrap()]),
            }
        };
        let read = ["bytes", "value", "memory_kind", "stream", "graph", "graph_node"].map(field);
        assert_eq!(read, [Some(64), Some(7), Some(1003), Some(9), None, None]);
    }

    /// Only a copy between devices has two of them, and only some records count their copies.
    #[test]
    fn a_copy_fills_the_words_of_its_fields() {
        let copy = Memcpy { bytes: 64, direction: 1, src: 2, dst: 3, is_async: 1, ..Memcpy::default() };
        let peer = Memcpy { direction: 10, copies: 5, src_device: 0, dst_device: 1, is_peer: 1, ..copy };
        let names = ["bytes", "direction", "src", "dst", "is_async", "copies", "src_device", "dst_device"];
        let read = |it: Memcpy| {
            let mut words = [0; word::WORDS];
            ActivityRecord::from(it).put_words(&mut words, &Numbers);
            names.map(|name| {
                let it = Activity::Memcpy.fields().iter().find(|it| it.name == name).unwrap();
                match it.from {
                    crate::field::From::Optional { flag, .. } if words[flag] == 0 => None,
                    from => Some(words[from.word().unwrap()]),
                }
            })
        };
        let [bytes, src, dst, is_async] = [64, 1002, 1003, 1].map(Some);
        assert_eq!(read(copy), [bytes, Some(1001), src, dst, is_async, None, None, None]);
        assert_eq!(read(peer), [bytes, Some(1010), src, dst, is_async, Some(5), Some(0), Some(1)]);
    }
}
