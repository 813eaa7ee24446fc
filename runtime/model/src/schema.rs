//! The events a script can name, and their fields: one table from which the compiler, the
//! interpreted handlers, `explain`, the diagnostics and the language reference all work.

use crate::context::word;

/// An event source of the language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    Kernel,
    Launch,
    Uprobe,
    Uretprobe,
    Tracepoint,
    Profile,
    Interval,
    Begin,
    End,
}

impl Event {
    /// The function that declares a handler for it.
    pub fn name(self) -> &'static str {
        match self {
            Event::Kernel => "kernel",
            Event::Launch => "launch",
            Event::Uprobe => "uprobe",
            Event::Uretprobe => "uretprobe",
            Event::Tracepoint => "tracepoint",
            Event::Profile => "profile",
            Event::Interval => "interval",
            Event::Begin => "begin",
            Event::End => "end",
        }
    }

    /// Whether it comes from the GPU side, so that its handlers get a [`crate::context::GpuContext`].
    pub fn is_gpu(self) -> bool {
        matches!(self, Event::Kernel | Event::Launch)
    }

    /// Whether it is a function's entry or return, where its probe is in a file's code.
    pub fn is_function(self) -> bool {
        matches!(self, Event::Uprobe | Event::Uretprobe)
    }

    /// The fields of its event value, tracepoint fields (which the running kernel defines) apart.
    pub fn fields(self) -> &'static [Field] {
        match self {
            Event::Kernel => KERNEL,
            Event::Launch => LAUNCH,
            Event::Uprobe => UPROBE,
            Event::Uretprobe => URETPROBE,
            Event::Tracepoint | Event::Profile => CPU,
            Event::Interval | Event::Begin | Event::End => &[],
        }
    }
}

/// Events that the language defines and this version does not run yet: naming one is an error that says so.
pub const NOT_YET: &[&str] = &[
    "memcpy",
    "memset",
    "wait",
    "alloc",
    "free",
    "graph_launch",
    "nvtx",
    "api",
    "usdt",
    "device_entry",
    "device_exit",
    "device_mem",
    "device_block_begin",
    "device_block_end",
    "device_barrier",
    "device_line",
];

/// One field of an event value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: &'static str,
    pub kind: FieldType,
    pub unit: Unit,
    /// Where its value comes from.
    pub from: From,
    /// A sentence for the language reference.
    pub doc: &'static str,
}

/// The type of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    Int,
    /// 16 bytes of text, NUL padded.
    Comm,
    /// A string of the run's string table.
    Name,
    Stack,
    /// Three integers `x y z`, and `size`, their product.
    Dim3,
    /// The launch that caused a kernel; `()` when it is not known.
    Launch,
    /// The event at the function's entry, at a `uretprobe`.
    Entry,
    /// An integer that is `()` when [`From::Optional`]'s flag word is 0.
    OptionalInt,
}

/// What a number measures, for printing it with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub enum Unit {
    #[default]
    None,
    /// Nanoseconds that something took.
    Nanos,
    /// A point in time: nanoseconds of the run's clock.
    Clock,
    /// Values of different units came together: a plain number.
    Mixed,
    Bytes,
}

/// Where a field's value is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// At this word of the [`crate::context::GpuContext`].
    Word(usize),
    /// At word `value`, present when word `flag` is not 0.
    Optional { flag: usize, value: usize },
    /// Computed from the probe's own context by the kernel engine.
    Probe,
}

const fn word(name: &'static str, kind: FieldType, unit: Unit, at: usize, doc: &'static str) -> Field {
    Field { name, kind, unit, from: From::Word(at), doc }
}

const fn optional(name: &'static str, flag: usize, value: usize, doc: &'static str) -> Field {
    Field { name, kind: FieldType::OptionalInt, unit: Unit::None, from: From::Optional { flag, value }, doc }
}

const fn probe(name: &'static str, kind: FieldType, unit: Unit, doc: &'static str) -> Field {
    Field { name, kind, unit, from: From::Probe, doc }
}

use FieldType::{Comm, Dim3, Entry, Int, Launch, Name, Stack};
use Unit::{Bytes, Clock, Nanos, None};

/// Fields of a `kernel` event.
pub const KERNEL: &[Field] = &[
    word("time", Int, Clock, word::TIME, "when the kernel started"),
    word("pid", Int, None, word::PID, "process id"),
    word("tid", Int, None, word::TID, "thread that launched it, or the process id where that is not known"),
    word("comm", Comm, None, word::COMM, "name of the process"),
    word("name", Name, None, word::NAME, "demangled, with template arguments, without parameters"),
    word("short_name", Name, None, word::SHORT_NAME, "demangled, without template arguments"),
    word("symbol", Name, None, word::SYMBOL, "mangled"),
    word("start", Int, Clock, word::START, "first instruction on the GPU"),
    word("end", Int, Clock, word::END, "last instruction on the GPU"),
    word("duration", Int, Nanos, word::DURATION, "`end - start`"),
    word("grid", Dim3, None, word::GRID, "blocks in the grid"),
    word("block", Dim3, None, word::BLOCK, "threads in a block"),
    word("registers", Int, None, word::REGISTERS, "registers a thread"),
    word("static_shared", Int, Bytes, word::STATIC_SHARED, "static shared memory of a block"),
    word("dynamic_shared", Int, Bytes, word::DYNAMIC_SHARED, "dynamic shared memory of a block"),
    word("local_memory", Int, Bytes, word::LOCAL_MEMORY, "local memory a thread"),
    word("device", Int, None, word::DEVICE, "CUPTI's device id"),
    word("context", Int, None, word::CONTEXT, "CUPTI's context id"),
    word("stream", Int, None, word::STREAM, "CUPTI's stream id"),
    optional("graph", word::GRAPH, word::GRAPH, "the executable graph it belongs to"),
    optional("graph_node", word::GRAPH, word::GRAPH_NODE, "its node in that graph"),
    word("launch", Launch, None, word::LAUNCH, "the call that launched it"),
];

/// Fields of a `launch` event, and of a kernel's `.launch`.
pub const LAUNCH: &[Field] = &[
    word("time", Int, Clock, word::LAUNCH_START, "when the call began"),
    word("pid", Int, None, word::LAUNCH_PID, "process id"),
    word("tid", Int, None, word::LAUNCH_TID, "thread that called"),
    word("comm", Comm, None, word::LAUNCH_COMM, "name of that thread"),
    word("kind", Name, None, word::LAUNCH_KIND, "\"kernel\" or \"graph\""),
    word("start", Int, Clock, word::LAUNCH_START, "when the call began"),
    word("end", Int, Clock, word::LAUNCH_END, "when the call returned"),
    word("duration", Int, Nanos, word::LAUNCH_DURATION, "`end - start`"),
    word("ustack", Stack, None, word::LAUNCH_USTACK, "user stack of the outermost call"),
    word("api", Name, None, word::LAUNCH_API, "name of the outermost call, such as cudaLaunchKernel"),
    word("result", Int, None, word::LAUNCH_RESULT, "what the call returned, 0 is success"),
    word("name", Name, None, word::LAUNCH_NAME, "demangled name of the kernel; the call's name for a graph"),
    word("symbol", Name, None, word::LAUNCH_SYMBOL, "mangled name of the kernel"),
    word("grid", Dim3, None, word::LAUNCH_GRID, "blocks in the grid"),
    word("block", Dim3, None, word::LAUNCH_BLOCK, "threads in a block"),
    word("dynamic_shared", Int, Bytes, word::LAUNCH_DYNAMIC_SHARED, "dynamic shared memory of a block"),
    word("device", Int, None, word::LAUNCH_DEVICE, "CUPTI's device id"),
    word("context", Int, None, word::LAUNCH_CONTEXT, "CUPTI's context id"),
    word("stream", Int, None, word::LAUNCH_STREAM, "CUPTI's stream id"),
    optional("tag", word::LAUNCH_TAGGED, word::LAUNCH_TAG, "what a `launch` handler set"),
];

macro_rules! cpu_fields {
    ($($more:expr),* $(,)?) => {
        &[
            probe("time", Int, Clock, "when it was hit"),
            probe("pid", Int, None, "process id"),
            probe("tid", Int, None, "thread id"),
            probe("comm", Comm, None, "name of the thread"),
            probe("cpu", Int, None, "processor it ran on"),
            probe("uid", Int, None, "user id"),
            probe("gid", Int, None, "group id"),
            probe("cgroup", Int, None, "cgroup id"),
            probe("probe", Name, None, "the probe's full name"),
            probe("func", Name, None, "the probed function's name"),
            probe("ustack", Stack, None, "user stack"),
            probe("kstack", Stack, None, "kernel stack"),
            $($more),*
        ]
    };
}

/// Fields that every CPU event has.
pub const CPU: &[Field] = cpu_fields![];
/// Fields of a `uprobe` event.
pub const UPROBE: &[Field] = cpu_fields![
    probe("arg0", Int, None, "first integer argument"),
    probe("arg1", Int, None, "second integer argument"),
    probe("arg2", Int, None, "third integer argument"),
    probe("arg3", Int, None, "fourth integer argument"),
    probe("arg4", Int, None, "fifth integer argument"),
    probe("arg5", Int, None, "sixth integer argument"),
];
/// Fields of a `uretprobe` event.
pub const URETPROBE: &[Field] = cpu_fields![
    probe("retval", Int, None, "what the function returned"),
    probe("duration", Int, Nanos, "from its entry to its return"),
    probe("entry", Entry, None, "the event at its entry: `e.entry.arg0`"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn field_names_are_unique_in_each_event() {
        for event in [Event::Kernel, Event::Launch, Event::Uprobe, Event::Uretprobe, Event::Profile] {
            let names: HashSet<_> = event.fields().iter().map(|it| it.name).collect();
            assert_eq!(names.len(), event.fields().len(), "{}", event.name());
        }
    }
}
