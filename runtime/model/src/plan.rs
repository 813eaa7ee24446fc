//! A compiled script: what to attach where, the bytecode, and how to read what it stores.

use crate::diagnostic::{Site, Sources};
use crate::loss::Loss;
use crate::schema::{Event, Unit};
use crate::table::{TableDef, TableId};
use std::sync::Arc;
pub use xputrace_bytecode::Image;
pub use xputrace_events::{Activities, Activity, Call, Calls};

/// Id of a string in the run's string table. Ids below [`Plan::strings`]`.len()` are those
/// strings (0 is the empty one); the tracer appends what it meets while running.
pub type StringId = u32;

/// Everything a run needs of a script.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub sources: Sources,
    pub probes: Vec<Probe>,
    pub tables: Vec<Arc<TableDef>>,
    pub image: Image,
    /// The string table that the bytecode's ids refer to; entry 0 is empty.
    pub strings: Vec<String>,
    /// What the ids in print records mean.
    pub prints: Vec<Print>,
    /// What the slots of the loss maps count.
    pub loss_sites: Vec<LossSite>,
    /// Index in [`Image::maps`] of the kernel's and the tracer's loss maps: arrays of one `u64`
    /// a slot of `loss_sites`; the kernel's is per CPU.
    pub linux_losses: Option<usize>,
    pub tracer_losses: Option<usize>,
    /// Index of the per-CPU array, a map of the script (`u32`) → how many elements handlers in Linux have
    /// put into it less those they removed (`i64`), of maps that evict; where any does.
    pub linux_stored: Option<usize>,
    /// Index of the ring buffer through which the kernel's handlers print.
    pub linux_ring: Option<usize>,
    /// Index of the kernel's stack map.
    pub linux_stacks: Option<usize>,
    /// Index of the hash of threads, by their ids in the initial pid namespace (`u32` → `u64`, the
    /// address of their `task_struct`), that probes are limited to, where any probe is.
    pub targets: Option<usize>,
    /// Index of the hash of maps, process id (`u32`) → array of [`TAG_SLOTS`] × 16 bytes
    /// (`u64` set, `u64` tag), through which launch handlers in the kernel leave their tag.
    pub tags: Option<usize>,
    pub demand: Demand,
    /// Maps that an `end` handler prints, draws or clears itself.
    pub shown_by_end: Vec<TableId>,
}

/// Slots of the array through which a process's threads receive launch tags.
pub const TAG_SLOTS: u32 = 1024;

/// What the collector has to be armed for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Calls whose launches are recorded.
    pub calls: Calls,
    /// What is recorded of what the GPU does.
    pub activities: Activities,
    pub launch_stacks: bool,
    /// `launch.end` or `launch.duration` is read, or launches are put in order by their end.
    pub launch_ends: bool,
    /// `launch.stream` is read where no kernel record can tell it.
    pub launch_streams: bool,
    /// A launch handler runs in the kernel, at the collector's marker function.
    pub launch_marker: bool,
}

impl Demand {
    /// Whether the program has to be injected at all.
    pub fn gpu(&self) -> bool {
        !self.calls.is_empty() || !self.activities.is_empty()
    }

    /// Whether an activity is recorded together with every call that may have caused it.
    pub fn joins(&self, activity: Activity) -> bool {
        self.activities.contains(activity) && self.calls.contains_all(activity.causes())
    }

    /// Whether what is recorded tells when a call's work is done. A graph may hold anything: it
    /// is known to have run by its kernels.
    pub fn expects(&self, call: Call) -> bool {
        self.calls.contains(call) && self.activities.contains(call.activity().unwrap_or(Activity::Kernel))
    }
}

/// One declared handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    pub event: Event,
    pub target: Target,
    /// As bpftrace would write it: `uprobe:libc:malloc`; what `e.probe` is.
    pub name: String,
    pub place: Place,
    /// Index in [`Image::programs`], for compiled handlers.
    pub program: Option<usize>,
    /// The program at the function's entry, for return probes that need one.
    pub entry_program: Option<usize>,
    /// The program where the function jumps to another instead of returning, for return probes.
    pub tail_program: Option<usize>,
    /// How a return probe sees returns.
    pub returns: ReturnWay,
    /// Index of the interpreter's closure, for interpreted handlers.
    pub closure: Option<usize>,
    pub scope: ProbeScope,
    /// Texts of the target that the handler reads.
    pub texts: Vec<TextRead>,
    /// Whether the handler sees kernels whose launch is not known.
    pub sees_unjoined: bool,
    pub site: Site,
    /// Why it runs where it runs, for `explain`; sentences without a final dot.
    pub why: Vec<String>,
}

/// A text of the target that a handler reads with `str()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextRead {
    /// Where its address is found; `None` where the handler computes it from more than that.
    pub address: Option<ContextWord>,
    /// Where the script reads it.
    pub site: Site,
}

/// An address that a probe's context holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextWord {
    /// Bytes from the start of the context to the word.
    pub at: u32,
    /// What is added to the word.
    pub plus: i64,
}

/// Bytes of the longest text that `str()` reads.
pub const LONGEST_TEXT: u32 = 240;

impl Probe {
    /// A probe that is attached nowhere and runs nothing yet.
    pub fn of(event: Event, place: Place) -> Self {
        Probe {
            event,
            target: Target::None,
            name: event.name().into(),
            place,
            program: None,
            entry_program: None,
            tail_program: None,
            returns: ReturnWay::default(),
            closure: None,
            scope: ProbeScope::default(),
            texts: Vec::new(),
            sees_unjoined: false,
            site: Site::default(),
            why: Vec::new(),
        }
    }
}

/// `#{scope: …}`: whose events fire a probe in the kernel, and who else pays for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProbeScope {
    /// The target's process tree from each process's first instruction on: function probes are in
    /// every process that has the code, and the program leaves the others out.
    #[default]
    Tree,
    /// The target's process tree; each of its processes has function probes of its own, so that
    /// nobody else pays, and a new one runs without them for some milliseconds.
    Process,
    /// Every process.
    System,
}

impl ProbeScope {
    /// What a script calls them.
    pub const NAMES: [(&str, ProbeScope); 3] =
        [("tree", ProbeScope::Tree), ("process", ProbeScope::Process), ("system", ProbeScope::System)];

    /// Whether the program has to leave out processes that are not the target's: it runs in
    /// others too.
    pub fn is_filtered(self, event: Event) -> bool {
        let sampled = matches!(event, Event::Tracepoint | Event::Profile);
        match self {
            ProbeScope::Process => sampled,
            ProbeScope::Tree => sampled || event.is_function(),
            ProbeScope::System => false,
        }
    }
}

/// What the cookie of a function probe's hit tells its program: in the lower half the function's
/// name, above it where a return probe stands.
pub mod cookie {
    use super::StringId;

    /// Where the [`ReturnSite`] begins.
    pub const SITE_SHIFT: i32 = 32;

    /// Where a return is seen, and so where its return address lies.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum ReturnSite {
        /// In the caller, with the return address gone from the stack: the trampoline of Linux.
        #[default]
        Trampoline,
        /// At a `ret`, with the return address on top of the stack.
        Ret,
        /// At the `pop` before it, with the return address above what is popped.
        Pop,
        /// At a `leave; ret`, with the return address above the saved frame pointer.
        Leave,
    }

    impl ReturnSite {
        /// The number that a program finds in the upper half of the cookie.
        pub fn code(self) -> i32 {
            self as i32
        }
    }

    /// The cookie of a hit. `site` is [`ReturnSite::Trampoline`] where returns are not probed.
    pub fn of(name: StringId, site: ReturnSite) -> u64 {
        u64::from(name) | ((site as u64) << SITE_SHIFT)
    }

    /// The function's name.
    pub fn name(cookie: u64) -> StringId {
        cookie as StringId
    }

    /// The same cookie with another name, as a replay has it.
    pub fn renamed(cookie: u64, name: StringId) -> u64 {
        (cookie >> SITE_SHIFT << SITE_SHIFT) | u64::from(name)
    }

    /// What the program of a tail call finds there instead of a name: the condition code of a
    /// conditional jump, or [`ALWAYS`].
    pub fn of_tail_call(condition: Option<u8>) -> u64 {
        condition.map_or(ALWAYS, u64::from)
    }

    /// The jump is not conditional.
    pub const ALWAYS: u64 = 16;
}

/// How the returns of a function are probed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReturnWay {
    /// At the function's own `ret` instructions, which leaves the stack alone; by the trampoline
    /// only where nothing that runs inside the function can read the stack.
    #[default]
    Safe,
    /// By the trampoline of Linux, which takes the place of the return address: cheaper, but
    /// programs that unwind, move or switch stacks meanwhile are killed.
    Trampoline,
}

impl ReturnWay {
    /// The way that a script calls so.
    pub fn named(name: &str) -> Option<ReturnWay> {
        match name {
            "safe" => Some(ReturnWay::Safe),
            "trampoline" => Some(ReturnWay::Trampoline),
            _ => None,
        }
    }
}

/// What a probe is attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Functions of an executable or library; both parts as the user wrote them.
    Function {
        object: String,
        function: String,
    },
    Tracepoint {
        category: String,
        name: String,
    },
    /// A sample a so many times a second on each CPU.
    Profile {
        hz: u64,
    },
    Interval {
        nanos: u64,
    },
    /// Calls that submit work of these kinds: a `launch` handler.
    Calls(Calls),
    /// Other events of the GPU side, `begin` and `end`.
    None,
}

/// Where a handler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// As eBPF in the kernel.
    Linux,
    /// As eBPF in the tracer, on joined events.
    Tracer,
    /// In the Rhai interpreter.
    Interpreter,
}

impl Place {
    /// What `explain` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Place::Linux => "linux",
            Place::Tracer => "tracer",
            Place::Interpreter => "interpreter",
        }
    }
}

/// A slot of the loss maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossSite {
    pub loss: Loss,
    pub site: Site,
    /// The map that was full, where one was.
    pub table: Option<TableId>,
}

/// First 4 bytes of every record that a handler writes: what follows.
pub mod record {
    /// A print: `u32` index into [`super::Plan::prints`], then its arguments.
    pub const PRINT: u32 = 1;
    /// `exit(code)`: `u32` 0, then the code as `i64`.
    pub const EXIT: u32 = 2;
    /// A recorded hit of a CPU probe: `u32` index into [`super::Plan::probes`], then the hit.
    pub const HIT: u32 = 3;
}

/// A compiled `print`: its text with arguments from the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Print {
    pub pieces: Vec<Piece>,
    /// Bytes of the record, header included.
    pub size: usize,
}

/// A piece of a printed line. Offsets are bytes from the start of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Text(String),
    Arg(Arg),
}

/// An argument in a print record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arg {
    pub at: usize,
    pub kind: crate::table::Scalar,
    /// Offset of a `u64` that is 0 when the value is missing.
    pub present_at: Option<usize>,
    /// `Some` where the script wrote `.human`.
    pub human: Option<Unit>,
}
