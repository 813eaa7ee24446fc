//! Every way an event or a value can be lost, in one place. Losses are data: they are counted
//! where they happen and printed with every result.

use crate::diagnostic::Site;
use std::collections::BTreeMap;

/// A way to lose something. The text form is the key in `-f json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Loss {
    /// Launch records that did not fit into a thread's ring.
    LaunchRingFull,
    /// Threads beyond the number of rings; their launches are not seen.
    NoRingForThread,
    /// Kernel records that did not fit into a ring although the writer waited.
    ActivityRingFull,
    /// Kernel records that CUPTI itself dropped.
    CuptiDropped,
    /// Kernel records whose times CUPTI did not collect.
    NoTimestamps,
    /// Stacks that did not fit into the collector's stack table.
    StackTableFull,
    /// Strings that did not fit into the collector's name table.
    NameTableFull,
    /// Kernels whose launch was never seen.
    Unjoined,
    /// Launches whose kernel record had not come when the process ended.
    LostAtExit,
    /// Kernel records that the collector passed on and that did not arrive, by its own totals.
    Unreconciled,
    /// Launches forgotten because too many waited for their kernels.
    LaunchEvicted,
    /// Events handled after later ones because they came too late.
    OutOfOrder,
    /// Steps of the wall clock against the monotonic clock while recording.
    ClockStep,
    /// Records in a ring or file that could not be decoded.
    Malformed,
    /// Updates refused because a map was full.
    MapFull,
    /// Values that a bounded compare-and-swap did not manage to store.
    CasFailed,
    /// Texts longer than their capacity, stored cut.
    TextCut,
    /// Stacks that the kernel could not store.
    KernelStack,
    /// Printed lines and events that did not fit into the kernel's ring buffer.
    KernelRingFull,
    /// Handlers that ended because they used a missing value.
    MissingValue,
    /// Handlers that ended because they divided by zero.
    DivisionByZero,
    /// Handlers that skipped an event because its launch is not known.
    SkippedUnjoined,
    /// Handlers that ended because they could not read the target's memory.
    UnreadableMemory,
    /// Return probes that found no entry (it was made before attaching, or did not fit).
    NoEntry,
    /// Returns that the kernel does not report, as a thread has 64 probed calls open around them.
    ReturnTooDeep,
    /// Hits that the kernel skipped because the same program was already running there.
    KernelMissed,
    /// Processes that ran without uprobes, most of them because they ended before those were in place.
    UnprobedProcess,
    /// Processes that started CUDA and were not traced: none of their launches is in the result.
    UntracedProcess,
    /// Handlers stopped by the engine's instruction limit.
    InstructionLimit,
}

impl Loss {
    /// Every kind, in the order in which they are printed.
    pub const ALL: &'static [Loss] = &[
        Loss::LaunchRingFull,
        Loss::NoRingForThread,
        Loss::ActivityRingFull,
        Loss::CuptiDropped,
        Loss::NoTimestamps,
        Loss::StackTableFull,
        Loss::NameTableFull,
        Loss::Unjoined,
        Loss::LostAtExit,
        Loss::Unreconciled,
        Loss::LaunchEvicted,
        Loss::OutOfOrder,
        Loss::ClockStep,
        Loss::Malformed,
        Loss::MapFull,
        Loss::CasFailed,
        Loss::TextCut,
        Loss::KernelStack,
        Loss::KernelRingFull,
        Loss::MissingValue,
        Loss::DivisionByZero,
        Loss::SkippedUnjoined,
        Loss::UnreadableMemory,
        Loss::NoEntry,
        Loss::ReturnTooDeep,
        Loss::KernelMissed,
        Loss::UnprobedProcess,
        Loss::UntracedProcess,
        Loss::InstructionLimit,
    ];

    /// Its name in `-f json` and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Loss::LaunchRingFull => "launch_ring_full",
            Loss::NoRingForThread => "no_ring_for_thread",
            Loss::ActivityRingFull => "activity_ring_full",
            Loss::CuptiDropped => "cupti_dropped",
            Loss::NoTimestamps => "no_timestamps",
            Loss::StackTableFull => "stack_table_full",
            Loss::NameTableFull => "name_table_full",
            Loss::Unjoined => "unjoined",
            Loss::LostAtExit => "lost_at_exit",
            Loss::Unreconciled => "unreconciled",
            Loss::LaunchEvicted => "launch_evicted",
            Loss::OutOfOrder => "out_of_order",
            Loss::ClockStep => "clock_step",
            Loss::Malformed => "malformed",
            Loss::MapFull => "map_full",
            Loss::CasFailed => "cas_failed",
            Loss::TextCut => "text_cut",
            Loss::KernelStack => "kernel_stack",
            Loss::KernelRingFull => "kernel_ring_full",
            Loss::MissingValue => "missing_value",
            Loss::DivisionByZero => "division_by_zero",
            Loss::SkippedUnjoined => "skipped_unjoined",
            Loss::UnreadableMemory => "unreadable_memory",
            Loss::NoEntry => "no_entry",
            Loss::ReturnTooDeep => "return_too_deep",
            Loss::KernelMissed => "kernel_missed",
            Loss::UnprobedProcess => "unprobed_process",
            Loss::UntracedProcess => "untraced_process",
            Loss::InstructionLimit => "instruction_limit",
        }
    }
}

/// Counts of losses, by kind and, where a handler's line caused them, by that line. Sums stay at
/// their greatest: some counts come from a target and are any number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    counts: BTreeMap<(Loss, Option<Site>), u64>,
}

impl Losses {
    /// Adds `n` losses that belong to no line of the script.
    pub fn add(&mut self, loss: Loss, n: u64) {
        if n > 0 {
            let count = self.counts.entry((loss, None)).or_default();
            *count = count.saturating_add(n);
        }
    }

    /// Adds `n` losses that a line of the script met.
    pub fn add_at(&mut self, loss: Loss, site: Site, n: u64) {
        if n > 0 {
            let count = self.counts.entry((loss, Some(site))).or_default();
            *count = count.saturating_add(n);
        }
    }

    /// Adds all of another count.
    pub fn merge(&mut self, other: &Losses) {
        for (key, n) in &other.counts {
            let count = self.counts.entry(*key).or_default();
            *count = count.saturating_add(*n);
        }
    }

    /// How many of one kind, over all lines.
    pub fn of(&self, loss: Loss) -> u64 {
        let of_kind = self.counts.iter().filter(|((kind, _), _)| *kind == loss);
        of_kind.fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }

    /// All that is not zero, by kind and line.
    pub fn iter(&self) -> impl Iterator<Item = (Loss, Option<Site>, u64)> + '_ {
        self.counts.iter().map(|((loss, site), n)| (*loss, *site, *n))
    }

    /// Whether nothing was lost.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}

/// What became of the launches of a run: `launches = joined + failed + lost`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Launch calls seen by the collector, captured ones (which submit no work) apart.
    pub launches: u64,
    /// Launches whose kernels arrived.
    pub joined: u64,
    /// Launches whose call returned an error.
    pub failed: u64,
    /// Launches whose kernels never arrived, or whose own record was lost.
    pub lost: u64,
    /// Launches recorded into a graph under stream capture: they submit no work.
    pub captured: u64,
    /// The script asked for kernels and not for their launches: there is nothing to join.
    pub kernels_only: bool,
    /// The script asked for launches and not for their kernels: what became of them is not known.
    pub launches_only: bool,
    /// Kernel records that arrived, and their nanoseconds.
    pub kernels: u64,
    pub kernel_nanos: u64,
    /// The collector's own totals of the same, as CUPTI delivered them.
    pub collector_kernels: u64,
    pub collector_kernel_nanos: u64,
}
