//! Every way an event or a value can be lost, in one place. Losses are data: they are counted
//! where they happen and printed with every result.

use crate::diagnostic::Site;
use std::collections::BTreeMap;
use xputrace_events::{Activities, Activity, Call, Calls};

/// A way to lose something. The text form is the key in `-f json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Loss {
    /// Launch records that did not fit into a thread's ring.
    LaunchRingFull,
    /// Threads beyond the number of rings; their launches are not seen.
    NoRingForThread,
    /// Records of the GPU's activity that did not fit into a ring although the writer waited.
    ActivityRingFull,
    /// Activity records that CUPTI itself dropped.
    CuptiDropped,
    /// Activity records whose times CUPTI did not collect.
    NoTimestamps,
    /// Stacks that did not fit into the collector's stack table.
    StackTableFull,
    /// Strings that did not fit into the collector's name table.
    NameTableFull,
    /// Activities whose launch was never seen.
    Unjoined,
    /// Launches whose work had not been recorded when the process ended.
    LostAtExit,
    /// Activity records that the collector passed on and that did not arrive, by its own totals.
    Unreconciled,
    /// Launches forgotten because too many waited for their work.
    LaunchEvicted,
    /// Graph launches without a kernel's record, of which it is not known whether they launch a kernel.
    GraphWithoutRecord,
    /// Events handled after later ones because they came too late.
    OutOfOrder,
    /// Steps of the wall clock against the monotonic clock while recording.
    ClockStep,
    /// Records in a ring or file that could not be decoded.
    Malformed,
    /// Updates refused because a map was full.
    MapFull,
    /// Elements that made room for others, of maps that evict.
    MapEvicted,
    /// Updates that Linux refused for another reason than room: it had no memory at hand where it
    /// could not wait for any, or the map was being changed by what the probe interrupted.
    UpdateRefused,
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
    /// Calls whose return was not seen: left by an exception, `longjmp` or the end of the thread,
    /// or not over yet.
    NoReturn,
    /// Calls that ended by a jump to another function, whose return is not seen.
    TailCall,
    /// Hits that the kernel skipped because the same program was already running there.
    KernelMissed,
    /// Processes that ran without uprobes, most of them because they ended before those were in place.
    UnprobedProcess,
    /// Processes that started CUDA and were not traced: none of their launches is in the result.
    UntracedProcess,
    /// Processes of the command that ran on when tracing ended with it.
    StillRunning,
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
        Loss::GraphWithoutRecord,
        Loss::OutOfOrder,
        Loss::ClockStep,
        Loss::Malformed,
        Loss::MapFull,
        Loss::MapEvicted,
        Loss::UpdateRefused,
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
        Loss::NoReturn,
        Loss::TailCall,
        Loss::KernelMissed,
        Loss::UnprobedProcess,
        Loss::UntracedProcess,
        Loss::StillRunning,
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
            Loss::GraphWithoutRecord => "graph_without_record",
            Loss::OutOfOrder => "out_of_order",
            Loss::ClockStep => "clock_step",
            Loss::Malformed => "malformed",
            Loss::MapFull => "map_full",
            Loss::MapEvicted => "map_evicted",
            Loss::UpdateRefused => "update_refused",
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
            Loss::NoReturn => "no_return",
            Loss::TailCall => "tail_call",
            Loss::KernelMissed => "kernel_missed",
            Loss::UnprobedProcess => "unprobed_process",
            Loss::UntracedProcess => "untraced_process",
            Loss::StillRunning => "still_running",
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

/// What became of the calls of one kind: `made` is the sum of all but `captured`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Calls seen by the collector, captured ones (which submit no work) apart.
    pub made: u64,
    /// Calls whose work was recorded.
    pub joined: u64,
    /// Calls that returned an error.
    pub failed: u64,
    /// Calls whose work never arrived, or whose own record was lost.
    pub lost: u64,
    /// Launches of graphs that hold no kernel: none of their work is a kernel's.
    pub without_kernel: u64,
    /// Launches of graphs of which no kernel's record came, and which may hold none.
    pub without_record: u64,
    /// Calls recorded into a graph under stream capture: they submit no work.
    pub captured: u64,
}

impl Balance {
    /// Both together. Sums stay at their greatest.
    #[must_use]
    pub fn with(self, other: Balance) -> Balance {
        Balance {
            made: self.made.saturating_add(other.made),
            joined: self.joined.saturating_add(other.joined),
            failed: self.failed.saturating_add(other.failed),
            lost: self.lost.saturating_add(other.lost),
            without_kernel: self.without_kernel.saturating_add(other.without_kernel),
            without_record: self.without_record.saturating_add(other.without_record),
            captured: self.captured.saturating_add(other.captured),
        }
    }

    /// What is accounted for: equal to `made` where nothing is missing.
    pub fn sum(&self) -> u64 {
        let parts = [self.joined, self.failed, self.lost, self.without_kernel, self.without_record];
        parts.into_iter().fold(0, u64::saturating_add)
    }
}

/// Records of one kind of activity, and the nanoseconds in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    pub records: u64,
    pub nanos: u64,
    /// The collector's own totals of the same, as the GPU's library delivered them.
    pub told_records: u64,
    pub told_nanos: u64,
}

impl Arrived {
    /// Whether all that was delivered has arrived.
    pub fn agrees(&self) -> bool {
        (self.records, self.nanos) == (self.told_records, self.told_nanos)
    }
}

/// What became of everything that was asked of the GPU's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The kinds that the script asked for; the others are not known.
    pub calls: Calls,
    pub activities: Activities,
    balances: [Balance; Call::COUNT],
    arrived: [Arrived; Activity::COUNT],
}

impl Account {
    /// Nothing yet, of these kinds.
    pub fn new(calls: Calls, activities: Activities) -> Self {
        Account { calls, activities, ..Account::default() }
    }

    /// What became of one kind of calls.
    pub fn call(&self, kind: Call) -> &Balance {
        &self.balances[kind.index()]
    }

    /// The same, to be changed.
    #[inline]
    pub fn call_mut(&mut self, kind: Call) -> &mut Balance {
        &mut self.balances[kind.index()]
    }

    /// The records of one kind.
    pub fn activity(&self, kind: Activity) -> &Arrived {
        &self.arrived[kind.index()]
    }

    /// The same, to be changed.
    #[inline]
    pub fn activity_mut(&mut self, kind: Activity) -> &mut Arrived {
        &mut self.arrived[kind.index()]
    }

    /// What became of calls of several kinds.
    pub fn balance(&self, kinds: Calls) -> Balance {
        kinds.iter().fold(Balance::default(), |all, it| all.with(*self.call(it)))
    }

    /// What became of the calls that submit a kernel or a graph.
    pub fn launches(&self) -> Balance {
        self.balance(Calls::LAUNCHES)
    }

    /// Whether nothing was seen of what was asked for.
    pub fn is_silent(&self) -> bool {
        match self.activities.is_empty() {
            true => self.balance(Calls::ALL).made == 0,
            false => self.activities.iter().all(|it| self.activity(it).records == 0),
        }
    }

    /// The same without the kinds of which nothing was seen; `None` where that is all of them. For
    /// a recording, which asks for every kind.
    pub fn seen(self) -> Option<Account> {
        let of_work = |call: Call| call.activity().unwrap_or(Activity::Kernel);
        let is_seen = |kind: Activity| {
            *self.activity(kind) != Arrived::default()
                || self.calls.iter().any(|it| of_work(it) == kind && *self.call(it) != Balance::default())
        };
        let calls = self.calls.iter().filter(|it| is_seen(of_work(*it)));
        let seen = Account {
            calls: calls.fold(Calls::NONE, |all, it| all.with(Calls::of(&[it]))),
            activities: self
                .activities
                .iter()
                .filter(|it| is_seen(*it))
                .fold(Activities::NONE, |all, it| all.with(Activities::of(&[it]))),
            ..self
        };
        (!seen.calls.is_empty() || !seen.activities.is_empty()).then_some(seen)
    }

    /// Takes what has arrived for everything that the collectors had to tell.
    pub fn believe(&mut self) {
        for it in &mut self.arrived {
            (it.told_records, it.told_nanos) = (it.records, it.nanos);
        }
    }
}
