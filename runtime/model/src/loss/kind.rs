//! The kinds of losses: one row each. Messages, JSON, recordings and the reference take what they say from here.

/// A row is a kind's name, the name that older recordings have for it, what its count means, and what the user can do
/// about it. Both sentences have no final dot, and are also the kind's documentation.
macro_rules! losses {
    ($(
        $(#[$doc:meta])*
        $Kind:ident {
            name: $name:literal, $(was: $was:literal,)?
            meaning: $meaning:literal,
            $(help: $help:literal,)?
        }
    )*) => {
        /// A kind of loss.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Loss { $(
            #[doc = concat!("`", $name, "`: ", $meaning, ".")]
            ///
            $(#[$doc])*
            $Kind,
        )* }

        impl Loss {
            /// Every kind, in print order.
            pub const ALL: &'static [Loss] = &[$( Loss::$Kind ),*];

            /// Its name in `-f json`, messages and recordings.
            pub const fn name(self) -> &'static str {
                match self { $( Loss::$Kind => $name, )* }
            }

            /// What its count means: a sentence without a final dot.
            pub const fn meaning(self) -> &'static str {
                match self { $( Loss::$Kind => $meaning, )* }
            }

            /// What the user can do about it, as such a sentence; `None` where nothing can be done.
            pub const fn help(self) -> Option<&'static str> {
                match self { $( Loss::$Kind => first(&[$( $help )?]), )* }
            }

            /// Its name in recordings of earlier versions, if it had another.
            const fn former_name(self) -> Option<&'static str> {
                match self { $( Loss::$Kind => first(&[$( $was )?]), )* }
            }
        }
    };
}

const fn first(texts: &[&'static str]) -> Option<&'static str> {
    texts.first().copied()
}

impl Loss {
    /// Returns the kind that has this name, or had it in recordings of earlier versions.
    pub fn named(name: &str) -> Option<Loss> {
        Loss::ALL.iter().copied().find(|it| it.name() == name || it.former_name() == Some(name))
    }
}

losses! {
    LaunchRingFull {
        name: "launch_ring_full",
        meaning: "launch records that did not fit into a thread's ring",
        help: "record less per launch (no stack), or sample with `every`",
    }
    HostEventRingFull {
        name: "host_event_ring_full",
        meaning: "records of CUDA calls (`wait`, `alloc`, `free`, `api`) and NVTX ranges that did not fit into a thread's ring",
        help: "name fewer functions in `api`, or read no stack",
    }
    RangeUnrecorded {
        name: "range_unrecorded",
        meaning: "NVTX ranges and marks before the process's first CUDA call, or nested deeper than 64",
        help: "call CUDA first, such as `cudaFree(0)` or `torch.cuda.init()`",
    }
    UnifiedUnrecorded {
        name: "unified_unrecorded",
        meaning: "processes in which CUPTI does not record what happens to unified memory, so they have no `migration` events",
        help: "run where the GPU can fault on memory: on Linux, without MPS, with all GPUs as peers or one in `CUDA_VISIBLE_DEVICES`",
    }
    /// A process has a bounded number of rings.
    NoRingForThread {
        name: "no_ring_for_thread",
        meaning: "launches, and other records, of threads that found every ring of their process taken",
        help: "have fewer threads of one process launch at the same time",
    }
    ActivityRingFull {
        name: "activity_ring_full",
        meaning: "GPU activity records that did not fit into a ring, even after waiting",
        help: "give the tracer a CPU of its own",
    }
    /// Of unknown kinds: the buffer was not decoded.
    ActivityUnread {
        name: "activity_unread",
        meaning: "GPU activity records discarded unread (a lower bound): all buffers for CUPTI were in use",
        help: "give the tracer a CPU of its own",
    }
    LibraryDropped {
        name: "cupti_dropped",
        meaning: "GPU activity records that CUPTI dropped",
        help: "have fewer launches in flight, or trace for less time",
    }
    NoTimestamps {
        name: "no_timestamps",
        meaning: "GPU activities without times from CUPTI, such as those that did not finish; handlers do not see them",
        help: "let the program wait for the GPU before it ends",
    }
    StackTableFull {
        name: "stack_table_full",
        meaning: "launch stacks that did not fit into the collector's table",
        help: "trace for less time, or without stacks",
    }
    NameTableFull {
        name: "name_table_full",
        meaning: "uses of a name that did not fit into the collector's table, or into a ring; the event has none there, or that of the call",
        help: "trace for less time: the table has room for 16,384 names, and 16 MiB",
    }
    MappingTableFull {
        name: "mapping_table_full",
        meaning: "mappings of processes that did not fit into the tracer's table; stacks have no names there",
        help: "trace for less time, or without stacks",
    }
    Unjoined {
        name: "unjoined",
        meaning: "GPU activities whose launch was never seen",
        help: "either launch records were lost too, or they were launched before tracing began, or by a conditional \
             node of a graph",
    }
    BeforeAttach {
        name: "before_attach",
        meaning: "GPU activities that were launched before xputrace attached to their process",
        help: "start the program under xputrace to trace it from its first launch",
    }
    LostAtExit {
        name: "lost_at_exit",
        meaning: "launches whose kernel record had not arrived when the process ended or called exec",
        help: "CUPTI delivers records up to 100 ms late: let the program wait that long, or end it with exit()",
    }
    /// The result also lists each gap: who had the records, and for how long.
    Yielded {
        name: "yielded",
        meaning: "launches whose records went to another tool in the program, such as torch.profiler",
        help: "the lines above say which, and for how long; up to 13.4, CUPTI serves one at a time. `--on-conflict \
               keep` refuses the other tool instead",
    }
    Unreconciled {
        name: "unreconciled",
        meaning: "GPU activity records that the collector sent and that did not arrive",
        help: "this is a bug in xputrace; please report it",
    }
    LaunchEvicted {
        name: "launch_evicted",
        meaning: "launches dropped because too many were waiting for their kernels",
        help: "look for a kernel that does not finish",
    }
    GraphWithoutRecord {
        name: "graph_without_record",
        meaning: "graph launches without a kernel record; whether their graphs launch a kernel is not known",
        help: "start the program under xputrace, which then sees its graphs being made; conditional nodes, and nodes \
             that are switched off, stay unknown",
    }
    GraphNodeMissed {
        name: "graph_node_missed",
        meaning: "records of nodes that their `graph` event lacks: they came after it, or have no launch or times; its \
                  start or end may be wrong",
        help: "ask for graphs alone, in a program that xputrace starts: the GPU then records each as a whole",
    }
    CopyWithoutRecord {
        name: "copy_without_record",
        meaning: "copy calls without a record; whether the GPU had anything to do is not known",
        help: "copies within the host's memory may have none; copy it with memcpy(), or say with the call that one side \
               is the device's",
    }
    OutOfOrder {
        name: "out_of_order",
        meaning: "events that CUPTI delivered after later ones had been handled; sums are complete",
        help: "if order matters, read `.launch` in the handler: launches tell which kernels to wait for",
    }
    ClockStep {
        name: "clock_step",
        meaning: "steps of the wall clock during the run; GPU times near them may be wrong",
        help: "don't set the clock during a run",
    }
    Malformed {
        name: "malformed",
        meaning: "records of a traced process that could not be decoded",
        help: "either the process overwrote memory that it shares with the tracer, or this is a bug in xputrace; \
             please report it if the process does not",
    }
    RecordingDamaged {
        name: "recording_damaged",
        meaning: "blocks of the recording that are damaged or missing",
        help: "copy the file again, or record again; the message on standard error says where the damage begins",
    }
    MapFull {
        name: "map_full",
        meaning: "updates refused because a map was full",
        help: "declare a larger size: `map(#{name: …, size: …})`",
    }
    MapEvicted {
        name: "map_evicted",
        meaning: "elements evicted with their values to make room; a key that returns starts anew",
        help: "declare a larger size: `map(#{name: …, size: …, evict: true})`",
    }
    /// It had no memory at hand and could not wait for any, or the probe interrupted a change of the map.
    UpdateRefused {
        name: "update_refused",
        meaning: "updates that Linux refused temporarily although there was room",
        help: "ignore small numbers: only the first hits of a new key are missing",
    }
    CasFailed {
        name: "cas_failed",
        meaning: "minima or maxima not stored because other threads kept changing them",
        help: "add a key that fewer threads share, such as `tid`",
    }
    TextCut {
        name: "text_cut",
        meaning: "texts cut to their capacity",
        help: "pass a length to `str()`",
    }
    LinuxStack {
        name: "linux_stack", was: "kernel_stack",
        meaning: "stacks that Linux could not store",
        help: "declare a larger table: `stacks(65_536);`",
    }
    StackCollision {
        name: "stack_collision",
        meaning: "stacks dropped because another stack has the same hash slot",
        help: "declare a larger table, where fewer stacks share a slot: `stacks(65_536);`",
    }
    /// Usually because the process changed its privileges at exec, after which Linux reports nothing more of it.
    UnnamedStack {
        name: "unnamed_stack",
        meaning: "stacks shown as addresses: their process ended before it was known what it had mapped",
        help: "a program that changes its user or group by exec must run until xputrace has read its mappings, some \
               milliseconds",
    }
    LinuxRingFull {
        name: "linux_ring_full", was: "kernel_ring_full",
        meaning: "printed lines, `enable()` and `disable()` of CPU probes' handlers, hits that `record` keeps, and records of \
                  compiled objects (perf event arrays), that did not fit into Linux's ring buffer",
        help: "print or switch less often, or aggregate; with `record`, probe something less frequent",
    }
    MissingValue {
        name: "missing_value",
        meaning: "handlers that ended because they used a missing value",
        help: "test the value first: `??`, `in`, `== ()`",
    }
    DivisionByZero {
        name: "division_by_zero",
        meaning: "handlers that ended because they divided by zero",
        help: "test the divisor first",
    }
    SkippedUnjoined {
        name: "skipped_unjoined",
        meaning: "events that a handler skipped because their launch is unknown",
        help: "to handle them, test `.launch == ()`",
    }
    EnabledLate {
        name: "enabled_late",
        meaning: "events that a handler skipped after it was enabled: their launches or calls began before the collector recorded what it reads",
        help: "enable it earlier; it takes up to 200 ms to take effect",
    }
    EnabledUnseen {
        name: "enabled_unseen",
        meaning: "times that a probe was enabled whose events were not seen until then, in a process: those of the first 200 ms or so may be missing, how many is unknown",
        help: "to see its events at once, add a probe for the same events that is always enabled, such as one that only counts them",
    }
    EnabledForgotten {
        name: "enabled_forgotten",
        meaning: "events that a handler skipped, because it has been switched so often since they began that it is unknown whether it was enabled",
        help: "switch it less often: at least 32,000 periods are remembered while events wait to be handled, a second or so",
    }
    UnreadableMemory {
        name: "unreadable_memory",
        meaning: "strings of the program, and arguments of `usdt` probes in its memory, that could not be read, and are `()`",
        help: "check the address. Linux reads only memory that is loaded: text that the program has not touched yet \
             can be read later, such as at the function's return, by `str(e.entry.arg0)` in a `uretprobe`",
    }
    NoArgument {
        name: "no_argument",
        meaning: "arguments of `usdt` probes that were read at a place that does not have them, and are `()`",
        help: "`xputrace list -v 'usdt:FILE:*'` shows the arguments of each probe; name the probes that have them",
    }
    NoEntry {
        name: "no_entry",
        meaning: "returns without a probed entry: the calls started before the probe was attached, or in the parent of \
             a forked process",
    }
    ReturnTooDeep {
        name: "return_too_deep",
        meaning: "returns that Linux did not report: their thread already had 64 probed calls open",
        help: "probe fewer functions that call each other, or drop `return: \"trampoline\"`",
    }
    NoReturn {
        name: "no_return",
        meaning: "calls without a return: they ended by an exception, `longjmp` or `exit`, or were still running",
    }
    TailCall {
        name: "tail_call",
        meaning: "calls that ended in a jump to another function, which returned instead",
        help: "probe that function, or only the entry",
    }
    LinuxMissed {
        name: "linux_missed", was: "kernel_missed",
        meaning: "hits that Linux skipped because a handler was already running on that CPU",
        help: "probe something less frequent",
    }
    /// Usually because they ended before these were attached. A process that ran several programs meanwhile
    /// counts once for each.
    UnprobedProcess {
        name: "unprobed_process",
        meaning: "processes that ran without their uprobes, for some milliseconds or throughout",
        help: "name the library by its path; if the probe has another scope, use `#{scope: \"tree\"}`",
    }
    UntracedProcess {
        name: "untraced_process",
        meaning: "processes that used CUDA, or may have, and were not traced: their launches are not in the result",
        help: "run without `-q` to see which and why: the notes are on standard error",
    }
    UnknownThread {
        name: "unknown_thread",
        meaning: "threads in another pid namespace that ended before xputrace had seen them: the `tid` of their launches and \
                  calls is the one in there",
        help: "let threads run for some milliseconds, or start xputrace in that namespace",
    }
    NoLastFlush {
        name: "no_last_flush",
        meaning: "processes killed, or ended by `_exit` or exec: GPU activities of up to their last 100 ms are \
             missing, how many is unknown",
        help: "end the program with exit(); or read `.launch` in the handler, and the launches that lack a kernel are \
             counted",
    }
    NotReading {
        name: "not_reading",
        meaning: "processes that were left because their collector did not read what the run sent it: what they do from \
                  then on is not in the result",
        help: "let the process run: one that is stopped, by a debugger or SIGSTOP, reads nothing",
    }
    StillRunning {
        name: "still_running",
        meaning: "processes that the traced program left running; what they do from here on is not in the result",
        help: "let the command wait for them (`sh -c '… & wait'`), or trace them by `-p PID` or `-a`",
    }
    /// The first threads of a launch run it, in the order of their numbers.
    DeviceThreadSkipped {
        name: "device_thread_skipped",
        meaning: "threads of kernels that a device handler did not run in: on the software GPU, it runs in the first \
                  1,048,576 of a launch, and handlers run in 16,777,216 of a process",
        help: "launch fewer threads",
    }
    DeviceUnprobed {
        name: "device_unprobed",
        meaning: "kernels that ran without a device handler that matches them",
        help: "notes at the end say why: most often they have no PTX, or were loaded before xputrace attached. The software GPU \
               runs `device_entry` and `device_exit` alone",
    }
    DeviceCopyMissing {
        name: "device_copy_missing",
        meaning: "GPU contexts whose memory could not be read at their end: what device handlers did there in the last \
                  200 ms or more is missing, how much is unknown",
        help: "end the program with exit(), and check the results of its CUDA calls: a context that has failed can't be \
               read, nor can a program that was killed",
    }
    DeviceProgramUnfinished {
        name: "device_program_unfinished",
        meaning: "programs in kprobe/__directly_run that the GPU did not run to their end: what they should have done is missing, \
                  in part or as a whole",
        help: "the notes say what CUDA answered; launch fewer threads (--launch), or let the command run for longer",
    }
    DeviceRingFull {
        name: "device_ring_full",
        meaning: "printed lines, `exit()` and records of device code, that did not fit into the ring in the GPU's memory, or \
                  were not finished when their context ended",
        help: "print in fewer threads: `#{per: \"warp\"}`, `#{per: \"block\"}`, or `if t.threadIdx.x == 0`; or aggregate",
    }
    DeviceThreadBeyond {
        name: "device_thread_beyond",
        meaning: "look-ups of a compiled object in an array per thread (1502, 1512), by threads of a real GPU that it has no room for: \
                  they returned NULL",
        help: "launch fewer threads, or make the array's value or its `max_entries` smaller",
    }
    DeviceLaunchUnknown {
        name: "device_launch_unknown",
        meaning: "kernels whose launch device code could not be told: beyond the first 65,536 launches, and nodes of graphs \
                  that were launched from several places; the parts of keys that read it are `-`",
        help: "write fewer launches into keys: match fewer kernels, or trace a part of the run with --after or --range",
    }
    DeviceArgumentsUnknown {
        name: "device_arguments_unknown",
        meaning: "launches of patched kernels whose device handlers read parameters, which were `()`: nodes of graphs, launches by \
                  calls older than `cuLaunchKernel`, and those in streams beyond the first 32,768 of a context",
        help: "let the handlers have `#{via: \"twin\"}`, for kernels with PTX",
    }
    InstructionLimit {
        name: "instruction_limit",
        meaning: "handlers stopped by the instruction limit",
        help: "make the loop shorter",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_loss_is_found_by_its_names_and_explained_without_a_dot() {
        let names = Loss::ALL.iter().flat_map(|it| [Some(it.name()), it.former_name()]).flatten();
        let mut seen = HashSet::new();
        assert!(names.clone().all(|it| seen.insert(it)), "two kinds have the same name");
        assert!(names.into_iter().all(|it| Loss::named(it).is_some()));
        assert_eq!((Loss::named("kernel_missed"), Loss::named("")), (Some(Loss::LinuxMissed), None));
        for text in Loss::ALL.iter().flat_map(|it| [Some(it.meaning()), it.help()]).flatten() {
            assert!(!text.is_empty() && !text.ends_with('.'), "{text}");
        }
    }
}
