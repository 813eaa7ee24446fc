//! Every way to lose an event or a value, in one place. Losses are data: they are counted where
//! they happen and printed with every result.

use crate::diagnostic::Site;
use crate::id::TableId;
use std::collections::BTreeMap;
use xputrace_events::{Activities, Activity, Call, Calls};

/// A kind of loss. Its name is the key in `-f json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Loss {
    /// Launch records that did not fit into a thread's ring.
    LaunchRingFull,
    /// Launches, and other records, of threads that found no ring: a process has a bounded number.
    NoRingForThread,
    /// Activity records that did not fit into a ring, even after waiting.
    ActivityRingFull,
    /// Records of the GPU's activity, at least, of unknown kinds, whose buffer was discarded unread.
    ActivityUnread,
    /// Activity records that CUPTI itself dropped.
    CuptiDropped,
    /// Activity records whose times CUPTI did not collect.
    NoTimestamps,
    /// Stacks that did not fit into the collector's stack table.
    StackTableFull,
    /// Strings that did not fit into the collector's name table.
    NameTableFull,
    /// Mappings of a target that did not fit into the tracer's table.
    MappingTableFull,
    /// Activities whose launch was never seen.
    Unjoined,
    /// Launches without an activity record when the process ended.
    LostAtExit,
    /// Activity records that the collector sent and that did not arrive, by its own totals.
    Unreconciled,
    /// Launches dropped because too many waited for their activities.
    LaunchEvicted,
    /// Graph launches without a kernel record, for which it is unknown whether they launch a
    /// kernel.
    GraphWithoutRecord,
    /// Events handled after later ones because they arrived too late.
    OutOfOrder,
    /// Steps of the wall clock against the monotonic clock while recording.
    ClockStep,
    /// Records of a target that could not be decoded.
    Malformed,
    /// Blocks of a recording that are damaged or missing.
    RecordingDamaged,
    /// Updates refused because a map was full.
    MapFull,
    /// Elements evicted from maps to make room.
    MapEvicted,
    /// Updates that Linux refused although there was room: it had no memory at hand and could not
    /// wait for any, or the probe interrupted a change of the map.
    UpdateRefused,
    /// Values that a bounded compare-and-swap failed to store.
    CasFailed,
    /// Texts cut to their capacity.
    TextCut,
    /// Stacks that Linux could not store.
    LinuxStack,
    /// Stacks whose place in Linux's table another stack has.
    StackCollision,
    /// Printed lines and events that did not fit into Linux's ring buffer.
    LinuxRingFull,
    /// Handlers that ended because they used a missing value.
    MissingValue,
    /// Handlers that ended because they divided by zero.
    DivisionByZero,
    /// Handlers that skipped an event because its launch is unknown.
    SkippedUnjoined,
    /// Handlers that ended because they could not read the target's memory.
    UnreadableMemory,
    /// Returns without an entry (it preceded attaching, or did not fit).
    NoEntry,
    /// Returns that Linux did not report because their thread already had 64 probed calls open.
    ReturnTooDeep,
    /// Calls without a return: ended by an exception, `longjmp` or the end of the thread, or still
    /// running.
    NoReturn,
    /// Calls that ended in a jump to another function, so that their return is not seen.
    TailCall,
    /// Hits that Linux skipped because the same program was already running on that CPU.
    LinuxMissed,
    /// Processes that ran without uprobes, usually because they ended before these were attached. A process
    /// that ran several programs meanwhile counts once for each.
    UnprobedProcess,
    /// Processes that used CUDA, or may have, and were not traced: their launches are missing.
    UntracedProcess,
    /// Processes that ended, or whose tracing ended, without a last flush: the activities of their last moments
    /// are missing, and no launch record tells how many.
    NoLastFlush,
    /// Processes of the command that were still running when tracing ended with it.
    StillRunning,
    /// Handlers stopped by the engine's instruction limit.
    InstructionLimit,
}

impl Loss {
    /// Every kind, in print order.
    pub const ALL: &'static [Loss] = &[
        Loss::LaunchRingFull,
        Loss::NoRingForThread,
        Loss::ActivityRingFull,
        Loss::ActivityUnread,
        Loss::CuptiDropped,
        Loss::NoTimestamps,
        Loss::StackTableFull,
        Loss::NameTableFull,
        Loss::MappingTableFull,
        Loss::Unjoined,
        Loss::LostAtExit,
        Loss::Unreconciled,
        Loss::LaunchEvicted,
        Loss::GraphWithoutRecord,
        Loss::OutOfOrder,
        Loss::ClockStep,
        Loss::Malformed,
        Loss::RecordingDamaged,
        Loss::MapFull,
        Loss::MapEvicted,
        Loss::UpdateRefused,
        Loss::CasFailed,
        Loss::TextCut,
        Loss::LinuxStack,
        Loss::StackCollision,
        Loss::LinuxRingFull,
        Loss::MissingValue,
        Loss::DivisionByZero,
        Loss::SkippedUnjoined,
        Loss::UnreadableMemory,
        Loss::NoEntry,
        Loss::ReturnTooDeep,
        Loss::NoReturn,
        Loss::TailCall,
        Loss::LinuxMissed,
        Loss::UnprobedProcess,
        Loss::UntracedProcess,
        Loss::NoLastFlush,
        Loss::StillRunning,
        Loss::InstructionLimit,
    ];

    /// Returns the kind with this name, or with one that recordings of earlier versions have for it.
    pub fn named(name: &str) -> Option<Loss> {
        match name {
            "kernel_stack" => Some(Loss::LinuxStack),
            "kernel_ring_full" => Some(Loss::LinuxRingFull),
            "kernel_missed" => Some(Loss::LinuxMissed),
            _ => Loss::ALL.iter().copied().find(|it| it.name() == name),
        }
    }

    /// Returns its name in `-f json` and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Loss::LaunchRingFull => "launch_ring_full",
            Loss::NoRingForThread => "no_ring_for_thread",
            Loss::ActivityRingFull => "activity_ring_full",
            Loss::ActivityUnread => "activity_unread",
            Loss::CuptiDropped => "cupti_dropped",
            Loss::NoTimestamps => "no_timestamps",
            Loss::StackTableFull => "stack_table_full",
            Loss::NameTableFull => "name_table_full",
            Loss::MappingTableFull => "mapping_table_full",
            Loss::Unjoined => "unjoined",
            Loss::LostAtExit => "lost_at_exit",
            Loss::Unreconciled => "unreconciled",
            Loss::LaunchEvicted => "launch_evicted",
            Loss::GraphWithoutRecord => "graph_without_record",
            Loss::OutOfOrder => "out_of_order",
            Loss::ClockStep => "clock_step",
            Loss::Malformed => "malformed",
            Loss::RecordingDamaged => "recording_damaged",
            Loss::MapFull => "map_full",
            Loss::MapEvicted => "map_evicted",
            Loss::UpdateRefused => "update_refused",
            Loss::CasFailed => "cas_failed",
            Loss::TextCut => "text_cut",
            Loss::LinuxStack => "linux_stack",
            Loss::StackCollision => "stack_collision",
            Loss::LinuxRingFull => "linux_ring_full",
            Loss::MissingValue => "missing_value",
            Loss::DivisionByZero => "division_by_zero",
            Loss::SkippedUnjoined => "skipped_unjoined",
            Loss::UnreadableMemory => "unreadable_memory",
            Loss::NoEntry => "no_entry",
            Loss::ReturnTooDeep => "return_too_deep",
            Loss::NoReturn => "no_return",
            Loss::TailCall => "tail_call",
            Loss::LinuxMissed => "linux_missed",
            Loss::UnprobedProcess => "unprobed_process",
            Loss::UntracedProcess => "untraced_process",
            Loss::NoLastFlush => "no_last_flush",
            Loss::StillRunning => "still_running",
            Loss::InstructionLimit => "instruction_limit",
        }
    }
}

/// Counts of losses by kind and, if a handler's line caused them, by line. Sums saturate: some
/// counts come from a target and may be any number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    counts: BTreeMap<(Loss, Option<Cause>), u64>,
}

/// What in the script caused a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cause {
    pub site: Site,
    /// The map that lost something, if any.
    pub table: Option<TableId>,
}

impl From<Site> for Cause {
    fn from(site: Site) -> Self {
        Cause { site, table: None }
    }
}

impl Losses {
    /// Adds `n` losses that no line of the script caused.
    pub fn add(&mut self, loss: Loss, n: u64) {
        if n > 0 {
            let count = self.counts.entry((loss, None)).or_default();
            *count = count.saturating_add(n);
        }
    }

    /// Adds `n` losses caused by a line of the script.
    pub fn add_at(&mut self, loss: Loss, place: impl Into<Cause>, n: u64) {
        if n > 0 {
            let count = self.counts.entry((loss, Some(place.into()))).or_default();
            *count = count.saturating_add(n);
        }
    }

    /// Adds all counts of another.
    pub fn merge(&mut self, other: &Losses) {
        for (key, n) in &other.counts {
            let count = self.counts.entry(*key).or_default();
            *count = count.saturating_add(*n);
        }
    }

    /// Returns the count of one kind, over all lines.
    pub fn of(&self, loss: Loss) -> u64 {
        let of_kind = self.counts.iter().filter(|((kind, _), _)| *kind == loss);
        of_kind.fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }

    /// Iterates over all nonzero counts, by kind, line and map.
    pub fn iter(&self) -> impl Iterator<Item = (Loss, Option<Cause>, u64)> + '_ {
        self.counts.iter().map(|((loss, place), n)| (*loss, *place, *n))
    }

    /// Whether nothing was lost.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}

/// The outcome of the calls of one kind: `made` is the sum of all but `captured`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Calls that the collector saw, except captured ones (which submit no work).
    pub made: u64,
    /// Calls with an activity record.
    pub joined: u64,
    /// Calls that returned an error.
    pub failed: u64,
    /// Calls whose activities never arrived, or whose own record was lost.
    pub lost: u64,
    /// Launches of graphs that contain no kernel.
    pub without_kernel: u64,
    /// Launches of graphs that may contain no kernel, without a kernel record.
    pub without_record: u64,
    /// Calls captured into a graph: they submit no work.
    pub captured: u64,
}

impl Balance {
    /// Adds both. Sums saturate.
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

    /// Returns the calls accounted for: equal to `made` if nothing is missing.
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
    /// The collector's own totals, as the GPU's library delivered them.
    pub told_records: u64,
    pub told_nanos: u64,
}

impl Arrived {
    /// Whether everything delivered has arrived.
    pub fn agrees(&self) -> bool {
        (self.records, self.nanos) == (self.told_records, self.told_nanos)
    }
}

/// The outcome of everything that was requested of the GPU side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The kinds that the script requested; others are unknown.
    pub calls: Calls,
    pub activities: Activities,
    balances: [Balance; Call::COUNT],
    arrived: [Arrived; Activity::COUNT],
}

impl Account {
    /// Creates an empty account of these kinds.
    pub fn new(calls: Calls, activities: Activities) -> Self {
        Account { calls, activities, ..Account::default() }
    }

    /// Returns the outcome of one kind of calls.
    pub fn call(&self, kind: Call) -> &Balance {
        &self.balances[kind.index()]
    }

    /// Returns the outcome of one kind of calls, mutable.
    #[inline]
    pub fn call_mut(&mut self, kind: Call) -> &mut Balance {
        &mut self.balances[kind.index()]
    }

    /// The records of one kind.
    pub fn activity(&self, kind: Activity) -> &Arrived {
        &self.arrived[kind.index()]
    }

    /// Returns the records of one kind, mutable.
    #[inline]
    pub fn activity_mut(&mut self, kind: Activity) -> &mut Arrived {
        &mut self.arrived[kind.index()]
    }

    /// Returns the outcome of calls of several kinds.
    pub fn balance(&self, kinds: Calls) -> Balance {
        kinds.iter().fold(Balance::default(), |all, it| all.with(*self.call(it)))
    }

    /// Returns the outcome of the calls that submit a kernel or a graph.
    pub fn launches(&self) -> Balance {
        self.balance(Calls::LAUNCHES)
    }

    /// Whether nothing of what was requested was seen.
    pub fn is_silent(&self) -> bool {
        match self.activities.is_empty() {
            true => self.balance(Calls::ALL).made == 0,
            false => self.activities.iter().all(|it| self.activity(it).records == 0),
        }
    }

    /// Drops the kinds of which nothing was seen; returns `None` if that is all of them. For
    /// recordings, which request every kind.
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

    /// Takes what arrived for the collectors' totals.
    pub fn believe(&mut self) {
        for it in &mut self.arrived {
            (it.told_records, it.told_nanos) = (it.records, it.nanos);
        }
    }
}
