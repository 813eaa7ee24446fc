//! The input of a GPU handler: a flat array of 64-bit words, the same for every GPU event.
//!
//! The tracer fills it for each joined event; handlers read it at fixed offsets, so the same
//! bytecode runs in the tracer and, as a `syscall` program with this array as context, in Linux.
//! Strings are ids of the run's string table.
//!
//! ```text
//!  0.. 7  who, and a kernel's names      8..10  when
//! 11..20  the event's own fields        21..47  where it ran, what ran before, whether it was joined
//! 48..95  the launch: all zero when the event was not joined
//! 96..    more of the event's own fields
//! ```
//! At the collector's launch marker the same numbers apply, but only some words are filled; the
//! others are 0.

/// Number of 64-bit words.
pub const WORDS: usize = 104;

/// A GPU event as its handlers see it.
pub type GpuContext = [u64; WORDS];

pub const TIME: usize = 0;
pub const PID: usize = 1;
pub const TID: usize = 2;
/// 16 bytes, NUL padded.
pub const COMM: usize = 3;
pub const NAME: usize = 5;
pub const SHORT_NAME: usize = 6;
pub const SYMBOL: usize = 7;
pub const START: usize = 8;
pub const END: usize = 9;
pub const DURATION: usize = 10;

/// First word of the event's own fields; each event has its own layout.
pub const OWN: usize = 11;
pub const GRID: usize = OWN;
pub const BLOCK: usize = OWN + 3;
pub const REGISTERS: usize = OWN + 6;
pub const STATIC_SHARED: usize = OWN + 7;
pub const DYNAMIC_SHARED: usize = OWN + 8;
pub const LOCAL_MEMORY: usize = OWN + 9;

pub const DEVICE: usize = 21;
pub const CONTEXT: usize = 22;
pub const STREAM: usize = 23;
/// Executable graph id, 0 outside graphs.
pub const GRAPH: usize = 24;
pub const GRAPH_NODE: usize = 25;
/// 1 when the launch is known.
pub const JOINED: usize = 26;

/// The GPU: its name, its UUID, its number of multiprocessors, and its bytes of memory. The UUID is 0 if
/// the GPU is not known.
pub const GPU: usize = 27;
pub const GPU_UUID: usize = GPU + 1;
pub const GPU_SMS: usize = GPU + 2;
pub const GPU_MEMORY: usize = GPU + 3;

/// What the stream is: a string id, 0 if that is not known.
pub const STREAM_KIND: usize = 31;
/// The kernel before on the stream: its name, and its end, which is 0 if it is not known.
pub const PREVIOUS_NAME: usize = 32;
pub const PREVIOUS_END: usize = 33;

/// The stacks that captured or added the graph's node, each a word of `xputrace_model::stack::StackKey`; and 1
/// if they are known.
pub const CAPTURE_USTACK: usize = 34;
pub const CAPTURE_PYSTACK: usize = 35;
pub const CAPTURED: usize = 36;

/// Whether the priority of the stream is known, and what it is.
pub const STREAM_HAS_PRIORITY: usize = 37;
pub const STREAM_PRIORITY: usize = 38;

/// What a multiprocessor of the GPU has: the members of `xputrace_wire::record::GpuLimits`, in their order. The compute
/// capability is 0 if they are not known.
pub const GPU_LIMITS: usize = 40;

/// How long nothing of the process had run on its GPU, and whether that is known.
pub const IDLE: usize = 46;
pub const HAS_IDLE: usize = 47;

/// First word of the launch.
pub const LAUNCH: usize = 48;
pub const LAUNCH_START: usize = 48;
pub const LAUNCH_END: usize = 49;
pub const LAUNCH_DURATION: usize = 50;
pub const LAUNCH_PID: usize = 51;
pub const LAUNCH_TID: usize = 52;
/// 16 bytes, NUL padded.
pub const LAUNCH_COMM: usize = 53;
/// A string id; at the marker, the number of a [`crate::Call`].
pub const LAUNCH_KIND: usize = 55;
/// A word of `xputrace_model::stack::StackKey`.
pub const LAUNCH_USTACK: usize = 56;
pub const LAUNCH_API: usize = 57;
pub const LAUNCH_RESULT: usize = 58;
pub const LAUNCH_NAME: usize = 59;
pub const LAUNCH_SHORT_NAME: usize = 60;
/// A string id. At the marker, the address in the target of the mangled name as a C string; 0 if
/// the call does not submit a single kernel.
pub const LAUNCH_SYMBOL: usize = 61;
pub const LAUNCH_GRID: usize = 62;
pub const LAUNCH_BLOCK: usize = 65;
pub const LAUNCH_DYNAMIC_SHARED: usize = 68;
pub const LAUNCH_DEVICE: usize = 69;
pub const LAUNCH_CONTEXT: usize = 70;
pub const LAUNCH_STREAM: usize = 71;
/// 1 when the tag was set.
pub const LAUNCH_TAGGED: usize = 72;
pub const LAUNCH_TAG: usize = 73;
/// A word of `xputrace_model::stack::StackKey`.
pub const LAUNCH_PYSTACK: usize = 74;
/// As [`GPU`].
pub const LAUNCH_GPU: usize = 75;
pub const LAUNCH_GPU_UUID: usize = LAUNCH_GPU + 1;
pub const LAUNCH_GPU_SMS: usize = LAUNCH_GPU + 2;
pub const LAUNCH_GPU_MEMORY: usize = LAUNCH_GPU + 3;
/// Of the thread that launches; 0 outside NVTX ranges.
pub const LAUNCH_RANGE: usize = LAUNCH_GPU + 4;
pub const LAUNCH_RANGE_PATH: usize = LAUNCH_RANGE + 1;
/// As [`STREAM_KIND`].
pub const LAUNCH_STREAM_KIND: usize = LAUNCH_RANGE_PATH + 1;
/// As [`STREAM_HAS_PRIORITY`].
pub const LAUNCH_STREAM_HAS_PRIORITY: usize = LAUNCH_STREAM_KIND + 1;
pub const LAUNCH_STREAM_PRIORITY: usize = LAUNCH_STREAM_KIND + 2;
/// As [`GPU_LIMITS`].
pub const LAUNCH_GPU_LIMITS: usize = 88;

/// The external id of a launch, and for whom it is: a string id, 0 without one.
pub const LAUNCH_EXTERNAL: usize = 94;
pub const LAUNCH_EXTERNAL_KIND: usize = 95;

/// First of further words of the event itself.
pub const MORE: usize = 96;
/// When a kernel was queued, and submitted; 0 if that is not known.
pub const QUEUED: usize = MORE;
pub const SUBMITTED: usize = MORE + 1;

/// Words of a `memcpy` event's own fields.
pub mod memcpy {
    use super::OWN;

    pub const BYTES: usize = OWN;
    pub const DIRECTION: usize = OWN + 1;
    pub const SRC: usize = OWN + 2;
    pub const DST: usize = OWN + 3;
    pub const IS_ASYNC: usize = OWN + 4;
    pub const COPIES: usize = OWN + 5;
    pub const SRC_DEVICE: usize = OWN + 6;
    pub const DST_DEVICE: usize = OWN + 7;
    /// 1 for copies between devices.
    pub const IS_PEER: usize = OWN + 8;
}

/// Words of a `memset` event's own fields.
pub mod memset {
    use super::OWN;

    pub const BYTES: usize = OWN;
    pub const VALUE: usize = OWN + 1;
    pub const MEMORY_KIND: usize = OWN + 2;
    /// 1 if value and memory kind are those of this operation.
    pub const KNOWN: usize = OWN + 3;
}

/// Words of a `graph` event's own fields.
pub mod graph {
    use super::OWN;

    pub const NODES: usize = OWN;
    pub const IS_DERIVED: usize = OWN + 1;
}

/// Words of a CUDA call's own fields; what launches have too is where theirs is.
pub mod call {
    use super::OWN;

    /// A string id.
    pub const ERROR: usize = OWN;
    /// A string id; 0 if the program made the call.
    pub const NESTED: usize = OWN + 1;
    pub const HAS_CONTEXT: usize = OWN + 2;
    pub const HAS_STREAM: usize = OWN + 3;
    /// A string id.
    pub const KIND: usize = OWN + 4;
    pub const ADDRESS: usize = OWN + 5;
    pub const HAS_ADDRESS: usize = OWN + 6;
    pub const BYTES: usize = OWN + 7;
    pub const HAS_BYTES: usize = OWN + 8;
    pub const IS_ASYNC: usize = OWN + 9;

    /// Of a `wait` event: the activity that it was for. Its end is 0 if that is not known.
    pub const WAITED_END: usize = OWN + 10;
    pub const WAITED_START: usize = OWN + 11;
    /// A string id.
    pub const WAITED_NAME: usize = OWN + 12;
    pub const WAITED_STREAM: usize = OWN + 13;
    /// CUDA's handle of an event; 0 if the call is about none.
    pub const EVENT: usize = OWN + 14;
    /// CUPTI's number of a module.
    pub const MODULE: usize = OWN + 15;
    /// Of a stream that is created: its mode, a string id, its priority, and 1 if it is known.
    pub const MODE: usize = OWN + 16;
    pub const PRIORITY: usize = OWN + 17;
    pub const IS_CREATED: usize = OWN + 18;
    /// CUPTI's id of a context's default stream.
    pub const NULL_STREAM: usize = OWN + 19;

    /// Of unified memory; these are no call's. The cause is a string id.
    pub const CAUSE: usize = OWN + 10;
    pub const COUNT: usize = OWN + 11;
    pub const INSTRUCTION: usize = OWN + 12;
    pub const SRC_DEVICE: usize = OWN + 13;
    pub const HAS_SRC_DEVICE: usize = OWN + 14;
    pub const DST_DEVICE: usize = OWN + 15;
    pub const HAS_DST_DEVICE: usize = OWN + 16;

    /// Maximum number of parameters that a handler of `api` may read.
    pub const MOST_ARGUMENTS: usize = 8;

    /// Of an `api` event: whether the parameters that its handler reads are there, and what they are. Both have
    /// [`MOST_ARGUMENTS`] words.
    pub const HAS_ARGUMENT: usize = OWN + 5;
    pub const ARGUMENT: usize = HAS_ARGUMENT + MOST_ARGUMENTS;
    const _: () = assert!(ARGUMENT + MOST_ARGUMENTS <= super::LAUNCH);
}

/// Words of an NVTX range's own fields.
pub mod range {
    use super::OWN;

    /// A string id, like the two below.
    pub const NAME: usize = OWN;
    pub const PATH: usize = OWN + 1;
    pub const DOMAIN: usize = OWN + 2;
    pub const KIND: usize = OWN + 3;
    pub const CATEGORY: usize = OWN + 4;
    pub const COLOR: usize = OWN + 5;
    pub const HAS_COLOR: usize = OWN + 6;
    pub const PAYLOAD: usize = OWN + 7;
    pub const HAS_PAYLOAD: usize = OWN + 8;
    /// A string id; 0 unless the payload is a floating-point number.
    pub const PAYLOAD_TEXT: usize = OWN + 9;
}
