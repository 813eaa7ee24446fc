//! Details: what is recorded of launches and calls beyond that they were made, one row each.
//!
//! ```text
//!            ┌─▶ script: which words, when a handler reads them, ask for it
//! a detail ──┼─▶ wire: the bit that asks the collector for it
//!            ├─▶ tracer: whether recordings have it in any case
//!            └─▶ explain: what it is called
//! ```

use crate::table::{GPU, LAUNCH_GPU};
use crate::word::{self, call};

/// What a detail is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetailOf {
    /// Launches and the activities that they cause.
    Launches,
    /// CUDA calls that are events of the CPU, and what has a stack like them.
    Calls,
    Both,
}

/// A row of the table.
struct DetailRow {
    of: DetailOf,
    /// Position in the demand that a collector is sent (`message::demand`); `None` if it concerns the tracer alone.
    bit: Option<u32>,
    /// Words whose reading asks for it.
    words: &'static [usize],
    /// Whether a recording has it, whatever the script reads.
    is_kept: bool,
    /// What `explain` calls it; empty if it says it elsewhere, or not at all.
    text: &'static str,
}

macro_rules! details {
    ($( $(#[$doc:meta])* $Name:ident { $($row:tt)* } )*) => {
        /// Something to record of launches or calls.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Detail { $( $(#[$doc])* $Name, )* }

        impl Detail {
            /// Every detail, in the order in which `explain` lists them.
            pub const ALL: &'static [Detail] = &[$( Detail::$Name, )*];

            const fn row(self) -> DetailRow {
                match self { $( Detail::$Name => DetailRow { $($row)* }, )* }
            }
        }
    };
}

use DetailOf::{Both, Calls, Launches};

/// Words that tell of a GPU.
const OF_GPUS: [usize; GPU.len() + LAUNCH_GPU.len()] = {
    let (mut words, mut at) = ([0; GPU.len() + LAUNCH_GPU.len()], 0);
    while at < words.len() {
        let part = if at < GPU.len() { GPU[at] } else { LAUNCH_GPU[at - GPU.len()] };
        words[at] = part.from.word().expect("they are words of the context");
        at += 1;
    }
    words
};

details! {
    /// A stack at each launch.
    Stacks {
        of: Launches, bit: Some(2), words: &[word::LAUNCH_USTACK], is_kept: true, text: "a stack at each launch",
    }
    /// The Python frames of each launch.
    Python {
        of: Launches, bit: Some(7), words: &[word::LAUNCH_PYSTACK], is_kept: true,
        text: "the Python frames of each launch",
    }
    /// The NVTX ranges that the launching thread is in.
    Ranges {
        of: Launches, bit: Some(9), words: &[word::LAUNCH_RANGE, word::LAUNCH_RANGE_PATH], is_kept: true,
        text: "the NVTX ranges around each launch",
    }
    /// The id that the program, or a tool in it, has pushed.
    ExternalIds {
        of: Launches, bit: Some(28), words: &[word::LAUNCH_EXTERNAL, word::LAUNCH_EXTERNAL_KIND], is_kept: true,
        text: "the external id of each launch",
    }
    /// The stream of each launch, where no kernel's record has it.
    Streams { of: Launches, bit: Some(3), words: &[], is_kept: true, text: "the stream of each launch" }
    /// The priority of that stream.
    Priorities {
        of: Launches, bit: Some(31),
        words: &[
            word::STREAM_HAS_PRIORITY, word::STREAM_PRIORITY,
            word::LAUNCH_STREAM_HAS_PRIORITY, word::LAUNCH_STREAM_PRIORITY,
        ],
        is_kept: true, text: "its priority",
    }
    /// When kernels are queued and submitted: asked for before CUDA starts. CUPTI takes more time for each kernel.
    Latencies {
        of: Launches, bit: Some(30), words: &[word::QUEUED, word::SUBMITTED], is_kept: false,
        text: "when each kernel is queued and submitted",
    }
    /// A stack where a node of a graph is captured or added, or a graph is instantiated.
    Captures {
        of: Launches, bit: Some(14), words: &[word::CAPTURED, word::CAPTURE_USTACK, word::CAPTURE_PYSTACK],
        is_kept: true, text: "",
    }
    /// The Python frames there.
    CapturesPython {
        of: Launches, bit: Some(15), words: &[word::CAPTURE_PYSTACK], is_kept: true, text: "the Python frames there",
    }
    /// What only the outermost call tells: its name, times and result. Without it a launch is the driver's call. The name
    /// of a launch that submits no single kernel is the call's.
    Outermost {
        of: Launches, bit: Some(8),
        words: &[
            word::LAUNCH_START, word::LAUNCH_END, word::LAUNCH_DURATION, word::LAUNCH_API, word::LAUNCH_RESULT,
            word::LAUNCH_NAME, word::LAUNCH_SHORT_NAME,
        ],
        is_kept: true, text: "",
    }
    /// The clock when a launch's call returns. Without it a launch's `end` is its `start`.
    Ends { of: Launches, bit: Some(6), words: &[word::LAUNCH_END, word::LAUNCH_DURATION], is_kept: true, text: "" }
    /// A call of the marker function at each launch, with a slot of the tag array: a launch handler runs in Linux.
    Marker { of: Launches, bit: Some(4), words: &[], is_kept: false, text: "" }
    /// Whether a stream is the default one.
    StreamKinds {
        of: Launches, bit: None, words: &[word::STREAM_KIND, word::LAUNCH_STREAM_KIND], is_kept: true, text: "",
    }
    /// The kernel before another one.
    Previous {
        of: Launches, bit: None, words: &[word::PREVIOUS_NAME, word::PREVIOUS_END], is_kept: true, text: "",
    }
    /// How long a GPU was idle. Then all activities are recorded.
    Idle { of: Launches, bit: None, words: &[word::IDLE, word::HAS_IDLE], is_kept: true, text: "" }
    /// Launches and kernels where machine code is patched too, so that CUPTI tells nothing of them.
    PatchedKernels { of: Launches, bit: None, words: &[], is_kept: false, text: "" }

    /// A stack at each call.
    CallStacks {
        of: Calls, bit: Some(10), words: &[word::LAUNCH_USTACK], is_kept: true, text: "a stack at each of these calls",
    }
    /// The Python frames of each call.
    CallPython {
        of: Calls, bit: Some(13), words: &[word::LAUNCH_PYSTACK], is_kept: true,
        text: "the Python frames of each of these calls",
    }
    /// The stream of each call.
    CallStreams {
        of: Calls, bit: Some(11), words: &[word::LAUNCH_STREAM], is_kept: true,
        text: "the stream of each of these calls",
    }
    /// The NVTX ranges that the calling thread is in.
    CallRanges {
        of: Calls, bit: Some(1), words: &[word::LAUNCH_RANGE, word::LAUNCH_RANGE_PATH], is_kept: true,
        text: "the NVTX ranges around each of these calls",
    }
    /// Which call of the runtime makes a call of the driver, so all of the runtime's are watched.
    Nested {
        of: Calls, bit: Some(12), words: &[call::NESTED], is_kept: false,
        text: "which call of CUDA's runtime made it, so all of these are watched",
    }
    /// The activity that a wait was for.
    WaitedFor { of: Calls, bit: None, words: &[], is_kept: true, text: "" }
    /// An event's GPU. The collector tells it in any case.
    Gpus { of: Both, bit: None, words: &OF_GPUS, is_kept: true, text: "" }
}

impl Detail {
    /// Whether it is a detail of launches, and of the activities that they cause.
    pub fn is_of_launches(self) -> bool {
        self.row().of != Calls
    }

    /// Whether it is a detail of CUDA calls that are events of the CPU.
    pub fn is_of_calls(self) -> bool {
        self.row().of != Launches
    }

    /// Returns its bit in the demand that a collector is sent; 0 if it concerns the tracer alone.
    pub const fn bit(self) -> u64 {
        match self.row().bit {
            Some(at) => 1 << at,
            None => 0,
        }
    }

    /// Returns what `explain` calls it; empty if it isn't listed.
    pub const fn text(self) -> &'static str {
        self.row().text
    }

    /// Returns the words of the context that ask for it when a handler reads one.
    pub const fn words(self) -> &'static [usize] {
        self.row().words
    }
}

/// A set of details.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Details(u32);

impl Details {
    pub const NONE: Details = Details(0);
    pub const ALL: Details = Details::of(Detail::ALL);
    /// What tells of streams by the calls that create them.
    pub const OF_STREAMS: Details = Details::of(&[Detail::StreamKinds, Detail::Priorities]);

    /// These.
    pub const fn of(these: &[Detail]) -> Details {
        let (mut bits, mut at) = (0, 0);
        while at < these.len() {
            bits |= 1 << these[at] as u32;
            at += 1;
        }
        Details(bits)
    }

    /// Returns those that a recording has, whatever the script reads.
    pub const fn kept() -> Details {
        let (mut bits, mut at) = (0, 0);
        while at < Detail::ALL.len() {
            bits |= (Detail::ALL[at].row().is_kept as u32) << Detail::ALL[at] as u32;
            at += 1;
        }
        Details(bits)
    }

    #[inline]
    pub const fn has(self, it: Detail) -> bool {
        self.0 & 1 << it as u32 != 0
    }

    pub const fn intersects(self, others: Details) -> bool {
        self.0 & others.0 != 0
    }

    #[must_use]
    pub const fn with(self, others: Details) -> Details {
        Details(self.0 | others.0)
    }

    /// Returns the details in both sets.
    #[must_use]
    pub const fn and(self, others: Details) -> Details {
        Details(self.0 & others.0)
    }

    #[must_use]
    pub const fn without(self, others: Details) -> Details {
        Details(self.0 & !others.0)
    }

    /// Adds one if a condition holds.
    pub fn add_if(&mut self, condition: bool, it: Detail) {
        self.0 |= u32::from(condition) << it as u32;
    }

    /// Iterates over them in the order of the table.
    pub fn iter(self) -> impl Iterator<Item = Detail> + Clone {
        Detail::ALL.iter().copied().filter(move |it| self.has(*it))
    }

    /// Returns the bits that ask a collector for them.
    pub const fn bits(self) -> u64 {
        let (mut bits, mut at) = (0, 0);
        while at < Detail::ALL.len() {
            if self.has(Detail::ALL[at]) {
                bits |= Detail::ALL[at].bit();
            }
            at += 1;
        }
        bits
    }
}

impl std::fmt::Debug for Details {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

const _: () = {
    assert!(Detail::ALL.len() <= 32, "a set of details has 32 bits");
    let (mut taken, mut at) = (0, 0);
    while at < Detail::ALL.len() {
        let bit = Detail::ALL[at].bit();
        assert!(taken & bit == 0, "two details have the same bit");
        taken |= bit;
        at += 1;
    }
};
