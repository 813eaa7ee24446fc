//! Host events: what happens on the CPU. They are CUDA calls, from entry to return, NVTX ranges, modules that are loaded,
//! and what CUPTI and the driver take time for.
//!
//! Like the table of activities, one row per event. The first columns are the same in each; handlers find them where
//! those of a launch are.

use crate::about::{About, MeasuredCost};
use crate::column::{
    Column, Meaning, Prediction, Texts, boolean, bytes, choice, derived, fields, hidden, int, n_fields, optional,
    record,
};
use crate::field::{Field, FieldType, From, Unit};
use crate::table::{self, Choice, OF_CALL, RANGES};
use crate::word::{self, GpuContext, call, range};
use Prediction::{Kept, Previous, PreviousOf, Same};
use zerocopy::{FromBytes, IntoBytes};

pub use crate::word::call::MOST_ARGUMENTS;

/// Words of 8 bytes that hold the parameters of any call.
pub const PARAMETER_WORDS: usize = 11;

/// Further fields of every call that the tracer computes.
const COMMON: &[Field] = &[
    derived(
        "ustack",
        FieldType::Stack,
        Unit::None,
        word::LAUNCH_USTACK,
        "user stack of the call, with the lines of a Python program",
    ),
    derived("pystack", FieldType::Stack, Unit::None, word::LAUNCH_PYSTACK, "the lines of a Python program alone"),
    derived("api", FieldType::Name, Unit::None, word::LAUNCH_API, "name of the call, such as cudaMalloc"),
    derived("gpu", FieldType::Parts(table::LAUNCH_GPU), Unit::None, word::LAUNCH_GPU, table::GPU_DOC),
    Field {
        name: "error",
        kind: FieldType::Name,
        unit: Unit::None,
        from: From::Optional { flag: word::LAUNCH_RESULT, value: call::ERROR },
        doc: "name of the error, such as cudaErrorMemoryAllocation; `()` on success",
        texts: &[],
    },
    Field {
        name: "nested",
        kind: FieldType::Name,
        unit: Unit::None,
        from: From::Optional { flag: call::NESTED, value: call::NESTED },
        doc: "name of the CUDA call that made this one; `()` if the program made it",
        texts: &[],
    },
    RANGES[0],
    RANGES[1],
];

/// Fields of an NVTX range that the tracer computes.
const OF_RANGE: &[Field] = &[
    Field { doc: "when it was opened", ..OF_CALL[0] },
    OF_CALL[1],
    Field { doc: "thread that opened it", ..OF_CALL[2] },
    OF_CALL[3],
    OF_CALL[4],
    derived("name", FieldType::Name, Unit::None, range::NAME, "name of the range or mark"),
    derived(
        "path",
        FieldType::Name,
        Unit::None,
        range::PATH,
        "names of the ranges around it and its own, such as \"epoch/step\"; of started ranges and marks, the name",
    ),
    Field {
        name: "domain",
        kind: FieldType::Name,
        unit: Unit::None,
        from: From::Optional { flag: range::DOMAIN, value: range::DOMAIN },
        doc: "name of the domain; `()` for the default one",
        texts: &[],
    },
    Field {
        name: "payload_text",
        kind: FieldType::Name,
        unit: Unit::None,
        from: From::Optional { flag: range::PAYLOAD_TEXT, value: range::PAYLOAD_TEXT },
        doc: "the payload, if it is a floating-point number: with as many digits as tell it from others, such as \"0.25\"",
        texts: &[],
    },
];

/// Fields of a module that the tracer computes.
const OF_MODULE: &[Field] = &[
    Field { doc: "when it had been loaded, or began to be unloaded", ..OF_CALL[0] },
    OF_CALL[1],
    Field { doc: "thread in whose call that was", ..OF_CALL[2] },
    OF_CALL[3],
    Field { doc: "user stack of that call, with the lines of a Python program", ..COMMON[0] },
    COMMON[1],
    RANGES[0],
    RANGES[1],
];

/// Fields of a context that the tracer computes.
const OF_CONTEXT: &[Field] = &[
    Field { doc: "when it had been created, or began to be destroyed", ..OF_CALL[0] },
    OF_MODULE[1],
    OF_MODULE[2],
    OF_MODULE[3],
    OF_MODULE[4],
    OF_MODULE[5],
    COMMON[3],
    OF_MODULE[6],
    OF_MODULE[7],
];

/// Fields of CUPTI's overhead that the tracer computes.
const OF_OVERHEAD: &[Field] = &[
    Field { doc: "when it began", ..OF_CALL[0] },
    OF_CALL[1],
    Field { doc: "thread that it held up, or the process id if unknown", ..OF_CALL[2] },
    OF_CALL[3],
    OF_CALL[4],
];

/// Fields of what happened to unified memory that the tracer computes.
const OF_MIGRATION: &[Field] = &[
    Field { doc: "when it began", ..OF_CALL[0] },
    OF_CALL[1],
    Field { doc: "name of the process", ..OF_CALL[3] },
    OF_CALL[4],
];

/// Fields of a GPU's switch of contexts that the tracer computes.
const OF_CONTEXT_SWITCH: &[Field] =
    &[Field { doc: "when that was", ..OF_CALL[0] }, OF_CALL[1], Field { doc: "name of the process", ..OF_CALL[3] }];

const OF_WAIT: &[Field] = &[derived(
    "waited_for",
    FieldType::Parts(WAITED_FOR),
    Unit::None,
    call::WAITED_END,
    "the GPU activity that the CPU waited for, derived: of those launched before the call, on what it waits for, the one \
     that ended last",
)];

/// The parts of `waited_for`.
pub const WAITED_FOR: &[Field] = &[
    waited_for("name", FieldType::Name, Unit::None, call::WAITED_NAME, "the kernel's name, \"memcpy\" or \"memset\""),
    waited_for("start", FieldType::Int, Unit::Clock, call::WAITED_START, "when the GPU started"),
    waited_for("end", FieldType::Int, Unit::Clock, call::WAITED_END, "when the GPU finished"),
    waited_for("stream", FieldType::Int, Unit::None, call::WAITED_STREAM, "CUPTI's id of its stream"),
];

const fn waited_for(name: &'static str, kind: FieldType, unit: Unit, word: usize, doc: &'static str) -> Field {
    optional(name, kind, unit, (call::WAITED_END, word), doc)
}

/// What the tracer knows of the memory that is freed.
const OF_FREED: &[Field] = &[
    Field {
        name: "bytes",
        kind: FieldType::Int,
        unit: Unit::Bytes,
        from: From::Optional { flag: call::HAS_BYTES, value: call::BYTES },
        doc: "size of the memory; `()` if its allocation was not seen, or the call failed",
        texts: &[],
    },
    derived("kind", FieldType::Name, Unit::None, call::KIND, "as in `alloc`: that of the allocation, if it was seen"),
];

const OF_API: &[Field] = &[
    derived("name", FieldType::Name, Unit::None, word::LAUNCH_API, "name of the call: the same as `api`"),
    derived(
        "args",
        FieldType::Arguments,
        Unit::None,
        call::HAS_ARGUMENT,
        "by CUDA's own names, such as `a.args.size`: integers; addresses and enumerations too",
    ),
];

macro_rules! host_events {
    ($(
        $(#[$doc:meta])*
        $Record:ident $name:literal { record: $record:literal, also: $also:expr, about: $about:expr $(,)? }
            { $($wide:tt)* } { $($narrow:tt)* }
    )*
    @beside $(
        $(#[$other_doc:meta])*
        $Other:ident $other_name:literal { record: $other_record:literal, source: $source:expr, also: $other_also:expr, about: $other_about:expr $(,)? }
            { $($other:tt)* }
    )*) => {
        /// A kind of event on the CPU.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum HostEvent { $( $(#[$doc])* $Record, )* $( $(#[$other_doc])* $Other, )* }

        impl HostEvent {
            /// Every kind, in the order of the table.
            pub const ALL: &'static [HostEvent] = &[$( HostEvent::$Record, )* $( HostEvent::$Other, )*];
            pub const COUNT: usize = HostEvent::ALL.len();

            /// Returns the function that declares a handler for it.
            pub const fn name(self) -> &'static str {
                match self { $( HostEvent::$Record => $name, )* $( HostEvent::$Other => $other_name, )* }
            }

            /// Kind of its record on the wire.
            pub const fn record_kind(self) -> u16 {
                match self { $( HostEvent::$Record => $record, )* $( HostEvent::$Other => $other_record, )* }
            }

            /// Returns what tells of it.
            pub const fn source(self) -> EventSource {
                match self { $( HostEvent::$Record => EventSource::Call, )* $( HostEvent::$Other => $source, )* }
            }

            /// What is said of it.
            pub const fn about(self) -> &'static About {
                match self {
                    $( HostEvent::$Record => const { &$about }, )*
                    $( HostEvent::$Other => const { &$other_about }, )*
                }
            }

            /// Members of its record.
            pub const fn columns(self) -> &'static [Column] {
                match self { $( HostEvent::$Record => $Record::COLUMNS, )* $( HostEvent::$Other => $Other::COLUMNS, )* }
            }

            /// Bytes of its record's body.
            pub const fn record_size(self) -> usize {
                match self { $( HostEvent::$Record => size_of::<$Record>(), )* $( HostEvent::$Other => size_of::<$Other>(), )* }
            }

            /// Fields of its event value.
            pub const fn fields(self) -> &'static [Field] {
                match self { $( HostEvent::$Record => $Record::FIELDS, )* $( HostEvent::$Other => $Other::FIELDS, )* }
            }
        }

        /// A record of a host event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum HostEventRecord { $( $Record($Record), )* $( $Other($Other), )* }

        impl HostEventRecord {
            /// Reads a record of this wire kind; returns `None` if the bytes are too few or the kind is not a host event's.
            #[inline]
            pub fn read(record_kind: u16, body: &[u8]) -> Option<Self> {
                match record_kind {
                    $( $record => Some(HostEventRecord::$Record($Record::read_from_prefix(body).ok()?.0)), )*
                    $( $other_record => Some(HostEventRecord::$Other($Other::read_from_prefix(body).ok()?.0)), )*
                    _ => None,
                }
            }

            #[inline]
            pub fn kind(&self) -> HostEvent {
                match self {
                    $( HostEventRecord::$Record(_) => HostEvent::$Record, )*
                    $( HostEventRecord::$Other(_) => HostEvent::$Other, )*
                }
            }

            /// Fills the words of all columns that are fields.
            #[inline]
            pub fn put_words(&self, words: &mut GpuContext, texts: &impl Texts) {
                match self {
                    $( HostEventRecord::$Record(it) => it.put_words(words, texts), )*
                    $( HostEventRecord::$Other(it) => it.put_words(words, texts), )*
                }
            }

            /// Converts the times of a record of [`EventSource::Record`]: they are the vendor's.
            pub fn retime(&mut self, mut convert: impl FnMut(u64) -> u64) {
                match self {
                    $( HostEventRecord::$Record(_) => {} )*
                    $( HostEventRecord::$Other(it) => it.retime(&mut convert), )*
                }
            }

            /// Notes the thread of a record of [`EventSource::Record`].
            pub fn set_thread(&mut self, tid: u32) {
                match self {
                    $( HostEventRecord::$Record(_) => {} )*
                    $( HostEventRecord::$Other(it) => it.set_thread(tid), )*
                }
            }

            /// Returns the body of the record, as it is on the wire.
            pub fn body(&self) -> &[u8] {
                match self {
                    $( HostEventRecord::$Record(it) => it.as_bytes(), )*
                    $( HostEventRecord::$Other(it) => it.as_bytes(), )*
                }
            }

            /// Returns what all host events have.
            #[inline]
            pub fn common(&self) -> Common {
                match self { $( HostEventRecord::$Record(it) => Common {
                    start: it.start, end: it.end, function: it.function, nested: it.nested, tid: it.tid,
                    stack: it.stack, ranges: it.ranges, result: it.result, flags: it.flags,
                    device: if it.has_context == 0 { table::UNKNOWN } else { it.device },
                }, )* $( HostEventRecord::$Other(it) => it.common(), )* }
            }
        }

        $(
            record! { $(#[$doc])* $Record {
                /// CLOCK_MONOTONIC nanoseconds at ENTER and EXIT.
                start: u64, PreviousOf("end"), Meaning { unit: Unit::Clock, ..int(word::LAUNCH_START, "when the call started") };
                end: u64, Same("start"), Meaning { unit: Unit::Clock, ..int(word::LAUNCH_END, "when the call returned") };
                $($wide)*
                /// The number of the function that was called.
                function: u32, Kept;
                /// The number of the function that made the call, 0 if the program did.
                nested: u32, Kept;
                /// CUPTI's correlation id.
                correlation: u32, Previous;
                /// Thread id as the target sees it.
                tid: u32, Previous;
                /// Stack id; 0 if no stack was requested or none could be taken.
                stack: u32, Kept;
                /// Name id of the path of NVTX ranges that the thread is in; 0 outside ranges.
                ranges: u32, Kept;
                result: i32, Previous, int(word::LAUNCH_RESULT, "the call's result, 0 on success");
                device: u32, Previous, int(word::LAUNCH_DEVICE, "CUPTI's device id; `()` before there is a context").unless_0(call::HAS_CONTEXT);
                context: u32, Previous, int(word::LAUNCH_CONTEXT, "CUPTI's context id; `()` before there is one").unless_0(call::HAS_CONTEXT);
                has_context: u32, Previous, hidden(call::HAS_CONTEXT);
                /// [`Common::NO_STACK`], [`Common::EVENTS_MISSING`] and, from [`Common::DEMANDED_AT`] on, the options
                /// of the demand when the call began: the lower half of `message::demand::recorded_under`.
                flags: u32, Previous;
                $($narrow)*
            } }

            impl $Record {
                /// Its fields.
                pub const FIELDS: &'static [Field] = &fields::<{
                    let also: &[Field] = $also;
                    OF_CALL.len() + COMMON.len() + also.len() + n_fields($Record::COLUMNS)
                }>(&[&OF_CALL, COMMON, $also], $Record::COLUMNS);
            }

            impl std::convert::From<$Record> for HostEventRecord {
                fn from(it: $Record) -> Self { HostEventRecord::$Record(it) }
            }
        )*

        $(
            record! { $(#[$other_doc])* $Other { $($other)* } }

            impl $Other {
                /// Its fields.
                pub const FIELDS: &'static [Field] = &fields::<{
                    let also: &[Field] = $other_also;
                    also.len() + n_fields($Other::COLUMNS)
                }>(&[$other_also], $Other::COLUMNS);
            }

            impl std::convert::From<$Other> for HostEventRecord {
                fn from(it: $Other) -> Self { HostEventRecord::$Other(it) }
            }
        )*
    };
}

/// What tells of a host event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventSource {
    /// A CUDA call, from entry to return.
    Call,
    /// NVTX.
    Range,
    /// The vendor's library, in a call that it doesn't name.
    Resource,
    /// The vendor's library, in records with its own times, which arrive late and in no order.
    Record,
}

/// What all host events have. What is only a call's is 0 in others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Common {
    pub start: u64,
    pub end: u64,
    pub function: u32,
    pub nested: u32,
    pub tid: u32,
    pub stack: u32,
    pub ranges: u32,
    pub result: i32,
    /// [`table::UNKNOWN`] before there is a context.
    pub device: u32,
    pub flags: u32,
}

impl Common {
    /// A stack was requested but could not be stored.
    pub const NO_STACK: u32 = 1;
    /// Before this call, the record of one that recorded a CUDA event was lost.
    pub const EVENTS_MISSING: u32 = 2;
    pub const DEMANDED_AT: u32 = 16;

    /// Of an event that is no call.
    const NO_CALL: Common = Common {
        start: 0,
        end: 0,
        function: 0,
        nested: 0,
        tid: 0,
        stack: 0,
        ranges: 0,
        result: 0,
        device: table::UNKNOWN,
        flags: 0,
    };
}

const IS_ASYNC: Meaning = boolean(call::IS_ASYNC, "whether it happens in a stream, and not during the call");
const STREAM: Meaning =
    int(word::LAUNCH_STREAM, "CUPTI's stream id; `()` if it is not about one stream").unless_0(call::HAS_STREAM);

host_events! {
    /// A call in which the CPU waits for the GPU.
    Wait "wait" {
        record: 48, also: OF_WAIT,
        about: About {
            usage: "wait(|w| …)",
            fires: "a CUDA call in which the CPU waits for the GPU has returned",
            example: "wait(|w| @waited[w.api].sum(w.duration));",
            measured: Some(MeasuredCost::new(("wait", "wait"), 654, "wait")),
            ..About::OF_CALL
        },
    } {
        event: u64, Previous,
            int(call::EVENT, "CUDA's handle of the event; `()` unless it waits for an event").unless_0(call::EVENT);
    } {
        /// A [`WaitKind`].
        kind: u32, Kept, choice(
            Choice::WaitKind,
            call::KIND,
            "what it waits for: \"device\", \"context\", \"stream\" or \"event\"; \"copy\" if the call copies memory and waits for that",
        );
        stream: u32, Previous, STREAM;
        has_stream: u32, Previous, hidden(call::HAS_STREAM);
    }

    /// A call that allocates memory.
    Alloc "alloc" {
        record: 49, also: &[],
        about: About {
            usage: "alloc(|a| …)",
            fires: "a CUDA call that allocates memory has returned",
            example: "alloc(|a| @allocated[a.api].sum(a.bytes));",
            measured: Some(MeasuredCost::new(("alloc and free", "malloc and free"), 1222, "allocation with its free")),
            ..About::OF_CALL
        },
    } {
        address: u64, Previous, int(call::ADDRESS, "address of the memory, or CUDA's handle of it; `()` if the call failed").unless_0(call::HAS_ADDRESS);
        bytes: u64, Kept, bytes(call::BYTES, "size of the memory");
    } {
        /// A [`AllocKind`].
        kind: u32, Kept, choice(
            Choice::AllocKind,
            call::KIND,
            "\"device\", \"managed\", \"pinned\", \"registered\", \"pool\", \"virtual\" or \"mapped\"",
        );
        is_async: u32, Previous, IS_ASYNC;
        has_address: u32, Previous, hidden(call::HAS_ADDRESS);
        stream: u32, Previous, STREAM;
        has_stream: u32, Previous, hidden(call::HAS_STREAM);
    }

    /// A call that frees memory.
    Free "free" {
        record: 50, also: OF_FREED,
        about: About {
            usage: "free(|f| …)",
            fires: "a CUDA call that frees memory has returned",
            example: "free(|f| @freed[f.api].count());",
            ..About::OF_CALL
        },
    } {
        address: u64, Previous, int(call::ADDRESS, "address of the memory, or CUDA's handle of it");
    } {
        /// A [`AllocKind`]: what the call frees where the allocation is unknown.
        kind: u32, Kept;
        is_async: u32, Previous, IS_ASYNC;
        stream: u32, Previous, STREAM;
        has_stream: u32, Previous, hidden(call::HAS_STREAM);
        unused: u32, Kept;
    }

    /// A call whose name a pattern of the script matches.
    Api "api" {
        record: 51, also: OF_API,
        about: About {
            usage: "api(\"cudaMalloc*\", |a| …)",
            fires: "a CUDA call of that name has returned",
            example: "api(\"cudaMalloc\", |a| if a.error != () { print(`${a.args.size} bytes: ${a.error}`) });",
            more: Some("Names of calls, and their parameters: xputrace list -v 'api:cudaMalloc*'"),
            recorded: "for each call that the pattern matches, when it returns",
            measured: Some(MeasuredCost::new(("api(cudaGetDevice)", "cudaGetDevice"), 302, "call of `api`")),
            ..About::OF_CALL
        },
    } {
        /// The parameters, as CUPTI passes them.
        parameters: [u64; PARAMETER_WORDS], Kept;
    } {
        unused: u32, Kept;
    }

    /// A call that records a CUDA event.
    EventRecord "event_record" {
        record: 52, also: &[],
        about: About {
            usage: "event_record(|r| …)",
            fires: "a CUDA call that records a CUDA event has returned",
            example: "event_record(|r| @records[r.api].count());",
            ..About::OF_CALL
        },
    } {
        event: u64, Previous, int(call::EVENT, "CUDA's handle of the event");
    } {
        stream: u32, Previous,
            int(word::LAUNCH_STREAM, "CUPTI's id of the stream that it is recorded in; `()` if that is a whole context, or a graph")
                .unless_0(call::HAS_STREAM);
        has_stream: u32, Previous, hidden(call::HAS_STREAM);
        unused: u32, Kept;
    }

    /// A call that creates or destroys a stream.
    StreamChange "stream" {
        record: 55, also: &[],
        about: About {
            usage: "stream(|s| …)",
            fires: "a CUDA call that creates or destroys a stream has returned",
            example: "stream(|s| @streams[s.api].count());",
            ..About::OF_CALL
        },
    } {
        handle: u64, Previous, int(call::ADDRESS, "CUDA's handle of the stream; `()` if the call failed").unless_0(call::HAS_ADDRESS);
    } {
        /// A [`StreamChangeKind`].
        kind: u32, Kept, choice(Choice::StreamChangeKind, call::KIND, "\"create\" or \"destroy\"");
        stream: u32, Previous,
            int(word::LAUNCH_STREAM, "CUPTI's stream id; `()` if the call failed, and where the stream's creation was not seen")
                .unless_0(call::HAS_STREAM);
        has_stream: u32, Previous, hidden(call::HAS_STREAM);
        priority: i32, Kept,
            int(call::PRIORITY, "priority that a stream is created with: 0, or less for streams whose work goes first; `()` where it is destroyed")
                .unless_0(call::IS_CREATED);
        /// A [`StreamMode`]; 0 where it is destroyed.
        mode: u32, Kept,
            choice(
                Choice::StreamMode,
                call::MODE,
                "\"blocking\" if its work and the default stream's wait for each other, else \"non-blocking\"; `()` where it is destroyed",
            )
            .unless_0(call::MODE);
        is_created: u32, Kept, hidden(call::IS_CREATED);
        has_handle: u32, Previous, hidden(call::HAS_ADDRESS);
    }

    @beside
    /// An NVTX range that was closed, or a mark that was set.
    Range "nvtx" {
        record: 36, source: EventSource::Range, also: OF_RANGE,
        about: About {
            usage: "nvtx(|n| …)",
            fires: "an NVTX range of the program was closed, or a mark was set",
            example: "nvtx(|n| @ranges[n.name ?? \"without a name\"].sum(n.duration));",
            recorded: "when the range is closed",
            changed: "after the range was closed",
            in_time: "to change it in time, use a CPU probe on the function around the range",
            records: "NVTX ranges",
            measured: Some(MeasuredCost::new(("nvtx", "range"), 70, "NVTX range")),
            ..About::OF_CALL
        },
    } {
        /// CLOCK_MONOTONIC nanoseconds at the calls that open and close it.
        start: u64, PreviousOf("end"), Meaning { unit: Unit::Clock, ..int(word::LAUNCH_START, "when it was opened") };
        end: u64, Same("start"), Meaning { unit: Unit::Clock, ..int(word::LAUNCH_END, "when it was closed; of a mark, `start`") };
        /// An integer, or the bits of a floating-point number.
        payload: i64, Kept, int(range::PAYLOAD, "the payload, if it is an integer; of one with a schema, as NCCL has, the first size").unless_0(range::HAS_PAYLOAD);
        /// Name id of the path of ranges that it ends.
        path: u32, Kept;
        /// Name id of the domain, as a path of one name; 0 for the default domain.
        domain: u32, Kept;
        /// A [`RangeKind`].
        kind: u32, Kept, choice(
            Choice::RangeKind,
            range::KIND,
            "\"push\": pushed and popped by a thread; \"start\": started and ended, by any threads; \"mark\"",
        );
        category: u32, Kept, int(range::CATEGORY, "number of the category").unless_0(range::CATEGORY);
        color: u32, Kept, int(range::COLOR, "the colour, such as 0xff00ff00: alpha, red, green, blue").unless_0(range::HAS_COLOR);
        has_color: u32, Kept, hidden(range::HAS_COLOR);
        /// Whether the payload is an integer.
        has_payload: u32, Kept, hidden(range::HAS_PAYLOAD);
        /// A [`PayloadFloat`]; 0 unless the payload is one.
        payload_float: u32, Kept;
        /// Thread that opened it, as the target sees it.
        tid: u32, Previous;
        unused: u32, Kept;
    }

    /// A module, code for the GPU, that was loaded or is about to be unloaded.
    Module "module" {
        record: 53, source: EventSource::Resource, also: OF_MODULE,
        about: About {
            usage: "module(|m| …)",
            fires: "a module, code for the GPU, was loaded or is about to be unloaded",
            example: "module(|m| @modules[m.kind].count());",
            recorded: "in the call that loads or unloads it",
            changed: "after the module was loaded or unloaded",
            in_time: "to change it in time, use a CPU probe on the program's own function",
            records: "modules that are loaded and unloaded",
            ..About::OF_CALL
        },
    } {
        /// CLOCK_MONOTONIC nanoseconds.
        start: u64, Previous, hidden(word::LAUNCH_START);
        bytes: u64, Kept, bytes(call::BYTES, "size of its code (cubin); `()` where it is unloaded").unless_0(call::HAS_BYTES);
        has_bytes: u32, Kept, hidden(call::HAS_BYTES);
        /// A [`ModuleKind`].
        kind: u32, Kept, choice(Choice::ModuleKind, call::KIND, "\"load\" or \"unload\"");
        id: u32, Previous, int(call::MODULE, "CUPTI's number of the module");
        /// Thread id as the target sees it.
        tid: u32, Previous;
        /// Stack id; 0 if no stack was requested or none could be taken.
        stack: u32, Kept;
        /// Name id of the path of NVTX ranges that the thread is in; 0 outside ranges.
        ranges: u32, Kept;
        /// As of a CUDA call.
        flags: u32, Previous;
        unused: u32, Kept;
    }

    /// A context that was created or is about to be destroyed.
    ContextChange "context" {
        record: 56, source: EventSource::Resource, also: OF_CONTEXT,
        about: About {
            usage: "context(|c| …)",
            fires: "a CUDA context was created or is about to be destroyed",
            example: "context(|c| @contexts[c.kind].count());",
            recorded: "in the call that creates or destroys it",
            changed: "after the context was created or destroyed",
            in_time: "to change it in time, use a CPU probe on the program's own function",
            records: "contexts that are created and destroyed",
            ..About::OF_CALL
        },
    } {
        /// CLOCK_MONOTONIC nanoseconds.
        start: u64, Previous, hidden(word::LAUNCH_START);
        /// A [`ContextChangeKind`].
        kind: u32, Kept, choice(Choice::ContextChangeKind, call::KIND, "\"create\" or \"destroy\"");
        context: u32, Previous,
            int(word::LAUNCH_CONTEXT, "CUPTI's context id; `()` if CUPTI does not tell it").unless_0(call::HAS_CONTEXT);
        device: u32, Previous,
            int(word::LAUNCH_DEVICE, "CUPTI's device id; `()` if CUPTI does not tell it").unless_0(call::HAS_CONTEXT);
        /// Whether `context` and `device` are known.
        has_context: u32, Previous, hidden(call::HAS_CONTEXT);
        null_stream: u32, Previous,
            int(call::NULL_STREAM, "CUPTI's id of its default stream; `()` where it is destroyed, or if CUPTI does not tell it")
                .unless_0(call::HAS_STREAM);
        has_null_stream: u32, Previous, hidden(call::HAS_STREAM);
        /// Thread id as the target sees it.
        tid: u32, Previous;
        /// Stack id; 0 if no stack was requested or none could be taken.
        stack: u32, Kept;
        /// Name id of the path of NVTX ranges that the thread is in; 0 outside ranges.
        ranges: u32, Kept;
        /// As of a CUDA call.
        flags: u32, Previous;
    }

    /// Time that CUPTI, or the driver's bookkeeping, took from the program.
    Overhead "overhead" {
        record: 54, source: EventSource::Record, also: OF_OVERHEAD,
        about: About {
            usage: "overhead(|o| …)",
            fires: "CUPTI or the driver took time from the program",
            example: "overhead(|o| @cost[o.kind].sum(o.duration));",
            records: "CUPTI's own overhead",
            ..About::OF_RECORD
        },
    } {
        /// CUPTI's times, CLOCK_REALTIME; the tracer turns them into CLOCK_MONOTONIC when it takes the record.
        start: u64, PreviousOf("end"), Meaning { unit: Unit::Clock, ..int(word::LAUNCH_START, "when it began") };
        end: u64, Same("start"), Meaning { unit: Unit::Clock, ..int(word::LAUNCH_END, "when it ended") };
        /// A [`OverheadKind`].
        kind: u32, Kept, choice(
            Choice::OverheadKind,
            call::KIND,
            "\"buffer_flush\", \"buffer_request\", \"instrumentation\" or \"resource\" of CUPTI; \"compiler\", \"module_loading\", \
             \"lazy_loading\", \"command_buffer_full\" or \"uvm_init\" of the driver; or \"other\"",
        );
        /// Thread id as the target sees it; the process id if it is unknown.
        tid: u32, Previous;
    }

    /// What happened to unified (managed) memory: it moved, or was touched where it wasn't.
    Migration "migration" {
        record: 57, source: EventSource::Record, also: OF_MIGRATION,
        about: About {
            usage: "migration(|m| …)",
            fires: "unified memory moved, or was touched where it wasn't",
            example: "migration(|m| @moved[m.kind].count());",
            in_time: "to change it in time, use a CPU probe on what touches the memory",
            records: "what happens to unified memory",
            ..About::OF_RECORD
        },
    } {
        /// CUPTI's times, as those of [`Overhead`].
        start: u64, PreviousOf("end"), Meaning { unit: Unit::Clock, ..int(word::LAUNCH_START, "when it began") };
        end: u64, Same("start"),
            Meaning {
                unit: Unit::Clock,
                ..int(word::LAUNCH_END, "when it ended; `start` of \"cpu_fault\", \"thrashing\" and \"remote_map\"")
            };
        address: u64, Kept, int(call::ADDRESS, "address of the first page");
        bytes: u64, Kept, bytes(call::BYTES, "size of the memory; `()` of faults and \"throttling\"").unless_0(call::HAS_BYTES);
        /// 0 unless it is a fault of the CPU.
        instruction: u64, Kept,
            int(call::INSTRUCTION, "of a \"cpu_fault\": address of the instruction that touched it; else `()`")
                .unless_0(call::INSTRUCTION);
        has_bytes: u32, Kept, hidden(call::HAS_BYTES);
        /// A [`MigrationKind`].
        kind: u32, Kept, choice(
            Choice::MigrationKind,
            call::KIND,
            "\"HtoD\", \"DtoH\" or \"DtoD\": memory moved; \"cpu_fault\", \"gpu_fault\", \"thrashing\", \"throttling\" or \"remote_map\"; \
             or \"other\"",
        );
        /// A [`MigrationCause`]; 0 if it is unknown.
        cause: u32, Kept, choice(
            Choice::MigrationCause,
            call::CAUSE,
            "why memory moved: \"user\", \"coherence\", \"prefetch\", \"eviction\" or \"access_counters\"; of a \"gpu_fault\" how it was \
             touched: \"read\", \"write\", \"atomic\" or \"prefetch\"; of a \"remote_map\" \"coherence\", \"thrashing\", \"policy\", \
             \"out_of_memory\" or \"eviction\"; `()` if CUPTI does not tell it",
        ).unless_0(call::CAUSE);
        /// Of a fault of the GPU: how many.
        count: u32, Kept,
            int(call::COUNT, "of a \"gpu_fault\": groups of faults of that page; else `()`").unless_0(call::COUNT);
        src_device: u32, Previous,
            int(call::SRC_DEVICE, "CUPTI's id of the GPU that memory moved from, or that faulted; `()` if it is the CPU, or unknown")
                .unless_0(call::HAS_SRC_DEVICE);
        has_src_device: u32, Previous, hidden(call::HAS_SRC_DEVICE);
        dst_device: u32, Previous,
            int(call::DST_DEVICE, "CUPTI's id of the GPU that memory moved to; `()` if it is the CPU, or unknown")
                .unless_0(call::HAS_DST_DEVICE);
        has_dst_device: u32, Previous, hidden(call::HAS_DST_DEVICE);
        /// The process id as the target sees it.
        tid: u32, Previous;
        unused: u32, Kept;
    }

    /// A GPU began to switch to a context of the process, or away from it, or was done with that.
    ContextSwitch "context_switch" {
        record: 58, source: EventSource::Record, also: OF_CONTEXT_SWITCH,
        about: About {
            usage: "context_switch(|s| …)",
            fires: "a GPU began to switch contexts, or was done with that: other programs, or other contexts of this one, ran on it",
            example: "context_switch(|s| @switches[s.context, s.kind].count());",
            records: "when GPUs switch contexts",
            ..About::OF_RECORD
        },
    } {
        /// CUPTI's time, as those of [`Overhead`].
        start: u64, Previous, hidden(word::LAUNCH_START);
        /// `start`.
        end: u64, Same("start"), hidden(word::LAUNCH_END);
        /// A [`ContextSwitchKind`].
        kind: u32, Kept, choice(Choice::ContextSwitchKind, call::KIND, "\"start\" or \"end\" of the switch; or \"other\"");
        context: u32, Previous, int(word::LAUNCH_CONTEXT, "CUPTI's context id");
        /// The process id as the target sees it.
        tid: u32, Previous;
        unused: u32, Kept;
    }
}

/// What is done with a record that is no call's.
trait Beside {
    fn common(&self) -> Common;

    /// Converts its times, if they are the vendor's.
    fn retime(&mut self, _convert: &mut dyn FnMut(u64) -> u64) {}

    /// Notes its thread, if the vendor's record doesn't tell.
    fn set_thread(&mut self, _tid: u32) {}
}

/// Those of [`EventSource::Record`].
macro_rules! of_records {
    ($($Record:ident)*) => { $(
        impl Beside for $Record {
            fn common(&self) -> Common {
                Common { start: self.start, end: self.end, tid: self.tid, ..Common::NO_CALL }
            }

            fn retime(&mut self, convert: &mut dyn FnMut(u64) -> u64) {
                (self.start, self.end) = (convert(self.start), convert(self.end));
            }

            fn set_thread(&mut self, tid: u32) {
                self.tid = tid;
            }
        }
    )* };
}

of_records! { Overhead Migration ContextSwitch }

impl Beside for Range {
    fn common(&self) -> Common {
        Common { start: self.start, end: self.end, tid: self.tid, ..Common::NO_CALL }
    }
}

impl Range {
    /// Returns the payload, if it is a floating-point number, as text from which it can be read again.
    pub fn payload_text(&self) -> Option<String> {
        const DOUBLE: u32 = PayloadFloat::Double as u32;
        const SINGLE: u32 = PayloadFloat::Single as u32;
        match self.payload_float {
            DOUBLE => Some(format!("{:?}", f64::from_bits(self.payload as u64))),
            SINGLE => Some(format!("{:?}", f32::from_bits(self.payload as u32))),
            _ => None,
        }
    }
}

impl Beside for Module {
    fn common(&self) -> Common {
        let Module { start, tid, stack, ranges, flags, .. } = *self;
        Common { start, end: start, tid, stack, ranges, flags, ..Common::NO_CALL }
    }
}

impl Beside for ContextChange {
    fn common(&self) -> Common {
        let ContextChange { start, tid, stack, ranges, flags, .. } = *self;
        let device = if self.has_context == 0 { table::UNKNOWN } else { self.device };
        Common { start, end: start, tid, stack, ranges, flags, device, ..Common::NO_CALL }
    }
}

impl HostEvent {
    /// Returns the kind with this wire kind.
    #[inline]
    pub fn of_record(record_kind: u16) -> Option<HostEvent> {
        HostEvent::ALL.iter().copied().find(|it| it.record_kind() == record_kind)
    }

    /// Returns its index in arrays by kind.
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }
}

texts! {
    /// What a call waits for.
    WaitKind {
        Device = 1 "device",
        Context = 2 "context",
        Stream = 3 "stream",
        Event = 4 "event",
        Copy = 5 "copy",
    }
}

texts! {
    /// What a call allocates.
    AllocKind {
        Device = 1 "device",
        Managed = 2 "managed",
        /// Memory of the CPU, allocated by CUDA and locked.
        Pinned = 3 "pinned",
        /// Memory of the program, locked.
        Registered = 4 "registered",
        /// Of a memory pool, in a stream.
        Pool = 5 "pool",
        /// Memory without an address (`cuMemCreate`).
        Virtual = 6 "virtual",
        /// Addresses for such memory (`cuMemMap`): no further memory.
        Mapped = 7 "mapped",
    }
}

texts! {
    /// What a call does to a stream.
    StreamChangeKind {
        Create = 1 "create",
        Destroy = 2 "destroy",
    }
}

texts! {
    /// Whether a stream waits for the default stream.
    StreamMode {
        Blocking = 1 "blocking",
        NonBlocking = 2 "non-blocking",
    }
}

texts! {
    /// What happens to a context.
    ContextChangeKind {
        Create = 1 "create",
        Destroy = 2 "destroy",
    }
}

texts! {
    /// What a GPU did. The numbers but the last are those of CUPTI.
    ContextSwitchKind {
        Start = 1 "start",
        End = 2 "end",
        Other = 3 "other",
    }
}

texts! {
    /// What happens to a module.
    ModuleKind {
        Load = 1 "load",
        Unload = 2 "unload",
    }
}

texts! {
    /// What takes time beside the program's own work. The numbers but the first and the last are those of CUPTI, less one,
    /// from bit 16 on.
    OverheadKind {
        Compiler = 1 "compiler",
        BufferFlush = 2 "buffer_flush",
        Instrumentation = 3 "instrumentation",
        Resource = 4 "resource",
        ModuleLoading = 5 "module_loading",
        LazyLoading = 6 "lazy_loading",
        CommandBufferFull = 7 "command_buffer_full",
        BufferRequest = 8 "buffer_request",
        UvmInit = 9 "uvm_init",
        Other = 10 "other",
    }
}

texts! {
    /// What happened to unified memory. The numbers but the last are those of CUPTI.
    MigrationKind {
        HostToDevice = 1 "HtoD",
        DeviceToHost = 2 "DtoH",
        CpuFault = 3 "cpu_fault",
        GpuFault = 4 "gpu_fault",
        Thrashing = 5 "thrashing",
        Throttling = 6 "throttling",
        RemoteMap = 7 "remote_map",
        DeviceToDevice = 8 "DtoD",
        Other = 9 "other",
    }
}

texts! {
    /// Why it happened.
    MigrationCause {
        User = 1 "user",
        Coherence = 2 "coherence",
        Prefetch = 3 "prefetch",
        Eviction = 4 "eviction",
        AccessCounters = 5 "access_counters",
        Read = 6 "read",
        Write = 7 "write",
        Atomic = 8 "atomic",
        Thrashing = 9 "thrashing",
        Policy = 10 "policy",
        OutOfMemory = 11 "out_of_memory",
    }
}

texts! {
    /// The type of a payload that is a floating-point number.
    PayloadFloat {
        Double = 1 "double",
        Single = 2 "float",
    }
}

texts! {
    /// How a range was opened.
    RangeKind {
        Push = 1 "push",
        Start = 2 "start",
        Mark = 3 "mark",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn columns_fill_their_record_without_a_gap() {
        for kind in HostEvent::ALL {
            let end = kind.columns().iter().fold(0, |at, it| {
                assert_eq!(it.offset, at, "{} {}", kind.name(), it.name);
                at + it.width * it.count
            });
            assert_eq!((end, end % 8), (kind.record_size(), 0), "{}", kind.name());
        }
    }

    #[test]
    fn fields_have_names_and_words_of_their_own() {
        for kind in HostEvent::ALL {
            let names: HashSet<_> = kind.fields().iter().map(|it| it.name).collect();
            assert_eq!(names.len(), kind.fields().len(), "{}", kind.name());
            let alike = [("time", "start"), ("name", "api")];
            let of = |it: &Field| it.from.word().unwrap();
            for (n, one) in kind.fields().iter().enumerate() {
                for other in &kind.fields()[n + 1..] {
                    let may = alike.iter().any(|(a, b)| [(*a, *b), (*b, *a)].contains(&(one.name, other.name)));
                    assert!(may || of(one) != of(other), "{}: {} {}", kind.name(), one.name, other.name);
                }
            }
        }
    }

    #[test]
    fn a_payload_can_be_read_from_its_text() {
        let double = |it: f64| Range { payload: it.to_bits() as i64, payload_float: 1, ..Range::default() };
        let single = |it: f32| Range { payload: it.to_bits().into(), payload_float: 2, ..Range::default() };
        let texts = [double(0.1), single(0.1), double(-2.0), single(1e-30), double(f64::NAN), double(f64::INFINITY)];
        let texts = texts.map(|it| it.payload_text().unwrap());
        assert_eq!(texts, ["0.1", "0.1", "-2.0", "1e-30", "NaN", "inf"]);
        assert_eq!(Range { payload: 7, has_payload: 1, ..Range::default() }.payload_text(), None);
        for it in [f64::MAX, f64::MIN_POSITIVE, 1.0 / 3.0, -0.0] {
            assert_eq!(double(it).payload_text().unwrap().parse::<f64>().unwrap().to_bits(), it.to_bits());
        }
    }

    #[test]
    fn kinds_are_told_apart_on_the_wire() {
        let activities = crate::Activity::ALL.iter().map(|it| it.record_kind());
        let all: Vec<u16> = HostEvent::ALL.iter().map(|it| it.record_kind()).chain(activities).collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        assert!(HostEvent::ALL.iter().all(|it| HostEvent::of_record(it.record_kind()) == Some(*it)));
    }
}
