//! What a GPU handler is given: one flat array of 64-bit words, the same for every GPU event.
//!
//! The tracer fills it for each joined event; handlers read it at fixed offsets, so the same
//! bytecode runs in the tracer and, as a `syscall` program with this array as context, in the
//! kernel. Words from [`word::LAUNCH`] on describe the launch; they are all zero when the
//! event was not joined. Strings are ids of the run's string table ([`crate::plan::StringId`]).
//!
//! The same word numbers hold at the collector's launch marker, where only some are filled.

/// Number of 64-bit words.
pub const WORDS: usize = 64;

/// Word numbers of each field.
pub mod word {
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
    pub const GRID: usize = 11;
    pub const BLOCK: usize = 14;
    pub const REGISTERS: usize = 17;
    pub const STATIC_SHARED: usize = 18;
    pub const DYNAMIC_SHARED: usize = 19;
    pub const LOCAL_MEMORY: usize = 20;
    pub const DEVICE: usize = 21;
    pub const CONTEXT: usize = 22;
    pub const STREAM: usize = 23;
    /// Executable graph id, 0 outside graphs.
    pub const GRAPH: usize = 24;
    pub const GRAPH_NODE: usize = 25;
    /// 1 when the launch is known.
    pub const JOINED: usize = 26;

    /// First word of the launch.
    pub const LAUNCH: usize = 32;
    pub const LAUNCH_START: usize = 32;
    pub const LAUNCH_END: usize = 33;
    pub const LAUNCH_DURATION: usize = 34;
    /// A [`crate::stack::StackKey`] word.
    pub const LAUNCH_USTACK: usize = 35;
    pub const LAUNCH_API: usize = 36;
    pub const LAUNCH_RESULT: usize = 37;
    pub const LAUNCH_KIND: usize = 38;
    pub const LAUNCH_NAME: usize = 39;
    pub const LAUNCH_SYMBOL: usize = 40;
    pub const LAUNCH_GRID: usize = 41;
    pub const LAUNCH_BLOCK: usize = 44;
    pub const LAUNCH_DYNAMIC_SHARED: usize = 47;
    pub const LAUNCH_DEVICE: usize = 48;
    pub const LAUNCH_CONTEXT: usize = 49;
    pub const LAUNCH_STREAM: usize = 50;
    /// 1 when a handler set the tag.
    pub const LAUNCH_TAGGED: usize = 51;
    pub const LAUNCH_TAG: usize = 52;
    pub const LAUNCH_PID: usize = 53;
    pub const LAUNCH_TID: usize = 54;
    pub const LAUNCH_COMM: usize = 55;
    pub const LAUNCH_SHORT_NAME: usize = 57;
}

/// A GPU event as its handlers see it.
pub type GpuContext = [u64; WORDS];
