//! The outcome of everything: calls = joined + failed + lost, by kind, and every loss by name.
//!
//! A collector's counts are in memory that its target can write. They may be any numbers, so sums
//! with them saturate.

use crate::wanted::WantedRecords;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use xputrace_model::loss::{Account, Loss, Losses};
use xputrace_model::names::Names;
use xputrace_model::plan::{Call, Calls, HostEvent, StringId};
use xputrace_wire::region::Lost;
use xputrace_wire::totals::CollectorTotals;

/// The run's account.
pub(crate) struct Ledger {
    pub(crate) account: Account,
    pub(crate) losses: Losses,
    lost_by_name: FxHashMap<StringId, u64>,
    /// Calls whose records another tool got.
    yielded: u64,
    /// Calls that were dropped because too many waited, except those whose records are known to be lost.
    evicted: u64,
    /// As in [`WantedRecords`].
    expected: Calls,
}

/// Records of one process that arrived.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Calls that submitted work or failed to, by [`Call::index`].
    pub(crate) submitted: [u64; Call::COUNT],
    /// By [`HostEvent::index`].
    pub(crate) host_events: [u64; HostEvent::COUNT],
    pub(crate) activities: u64,
    pub(crate) untimed: u64,
    pub(crate) in_vain: InVain,
}

/// Launches of one process that were waited for in vain.
#[derive(Clone, Copy, Default)]
pub(crate) struct InVain {
    /// Until too many waited.
    pub(crate) evicted: u64,
    /// Until the process ended.
    pub(crate) at_exit: u64,
}

impl InVain {
    /// Takes `n` away, first of those that were evicted: they are the oldest.
    fn without(self, n: u64) -> InVain {
        let rest = n.saturating_sub(self.evicted);
        InVain { evicted: self.evicted.saturating_sub(n), at_exit: self.at_exit.saturating_sub(rest) }
    }
}

impl Ledger {
    pub(crate) fn new(wanted: &WantedRecords) -> Self {
        Ledger {
            account: Account::new(wanted.calls, wanted.activities).with_host_events(wanted.host_events),
            losses: Losses::default(),
            lost_by_name: FxHashMap::default(),
            yielded: 0,
            evicted: 0,
            expected: wanted.expected,
        }
    }

    /// Counts calls of this kind and name that will never have an activity record.
    pub(crate) fn lose(&mut self, call: Call, name: StringId, n: u64) {
        let balance = self.account.call_mut(call);
        balance.lost = balance.lost.saturating_add(n);
        let of_name = self.lost_by_name.entry(name).or_default();
        *of_name = of_name.saturating_add(n);
    }

    /// Counts calls that are waited for no longer, because too many are.
    pub(crate) fn evicted(&mut self, n: u64) {
        self.evicted += n;
    }

    /// Counts a call without a record of which it is unknown whether it should have one.
    pub(crate) fn without_record(&mut self, call: Call) {
        self.account.call_mut(call).without_record += 1;
        self.losses.add(if call == Call::Graph { Loss::GraphWithoutRecord } else { Loss::CopyWithoutRecord }, 1);
    }

    /// Counts a call whose record another tool probably got.
    pub(crate) fn yielded(&mut self, call: Call) {
        self.yielded += 1;
        self.account.call_mut(call).lost += u64::from(self.expected.contains(call));
    }

    /// Takes [`Ledger::yielded`] back: the record has arrived.
    pub(crate) fn regained(&mut self, call: Call) {
        self.yielded = self.yielded.saturating_sub(1);
        let n = u64::from(self.expected.contains(call));
        let balance = self.account.call_mut(call);
        balance.lost = balance.lost.saturating_sub(n);
        balance.joined += n;
    }

    /// Returns all losses so far.
    pub(crate) fn losses(&self) -> Losses {
        let mut losses = self.losses.clone();
        losses.add(Loss::Yielded, self.yielded);
        losses.add(Loss::LaunchEvicted, self.evicted);
        losses
    }

    /// Returns the calls without an activity record by name, most frequent first.
    pub(crate) fn lost_by_name(&self, names: &Names) -> Vec<(Arc<str>, u64)> {
        let text = |id: StringId| names.get(id.into()).cloned().unwrap_or_else(|| Arc::from(""));
        let mut lost: Vec<_> = self.lost_by_name.iter().map(|(id, n)| (text(*id), *n)).collect();
        lost.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        lost
    }

    /// Compares what arrived of a process with its collector's counts. Calls without a record get
    /// the name `unnamed`.
    pub(crate) fn reconcile(
        &mut self,
        arrived: Counts,
        told: &CollectorTotals,
        wanted: &WantedRecords,
        unnamed: StringId,
    ) {
        for kind in wanted.activities.iter() {
            let it = self.account.activity_mut(kind);
            it.told_records = it.told_records.saturating_add(told.activity(kind).records);
            it.told_nanos = it.told_nanos.saturating_add(told.activity(kind).nanos);
        }
        for kind in wanted.calls.iter() {
            let submitted = told.call(kind).made.saturating_sub(told.call(kind).captured);
            let unseen = submitted.saturating_sub(arrived.submitted[kind.index()]);
            let balance = self.account.call_mut(kind);
            balance.made = balance.made.saturating_add(unseen);
            if unseen > 0 {
                self.lose(kind, unnamed, unseen);
            }
        }
        for kind in wanted.host_events.iter() {
            let lost = told.host_events[kind.index()].saturating_sub(arrived.host_events[kind.index()]);
            let counts = self.account.host_event_mut(kind);
            counts.lost = counts.lost.saturating_add(lost);
        }
        self.name_in_vain(arrived.in_vain, told);
        self.add_losses(arrived, told, wanted);
    }

    /// Names the launches without a record. One whose record is counted as lost itself has that name already. Which
    /// launch a lost record was of is unknown: as many launches as there are lost records are taken for theirs.
    fn name_in_vain(&mut self, in_vain: InVain, told: &CollectorTotals) {
        let lost_records = LOST_RECORDS.iter().map(|it| told.lost[*it as usize]).fold(0, u64::saturating_add);
        let unexplained = in_vain.without(lost_records);
        self.evicted -= in_vain.evicted - unexplained.evicted;
        self.losses.add(Loss::LostAtExit, unexplained.at_exit);
    }

    fn add_losses(&mut self, arrived: Counts, told: &CollectorTotals, wanted: &WantedRecords) {
        let delivered = wanted.activities.iter().map(|it| told.activity(it).records).fold(0, u64::saturating_add);
        let accounted = arrived.activities.saturating_add(told.lost[Lost::ActivityRingFull as usize]);
        self.losses.add(Loss::Unreconciled, delivered.saturating_sub(accounted));
        self.losses.add(Loss::Malformed, told.broken_rings);
        for lost in Lost::ALL {
            let already_counted = if *lost == Lost::NoTimestamps { arrived.untimed } else { 0 };
            self.losses.add(loss(*lost), told.lost[*lost as usize].saturating_sub(already_counted));
        }
    }
}

/// The collector's losses of activity records, whose launches are waited for in vain.
const LOST_RECORDS: [Lost; 3] = [Lost::ActivityRingFull, Lost::LibraryDropped, Lost::Unread];

/// Under which name the collector's loss is reported.
fn loss(lost: Lost) -> Loss {
    match lost {
        Lost::LaunchRingFull => Loss::LaunchRingFull,
        Lost::NoRing => Loss::NoRingForThread,
        Lost::ActivityRingFull => Loss::ActivityRingFull,
        Lost::LibraryDropped => Loss::LibraryDropped,
        Lost::NoTimestamps => Loss::NoTimestamps,
        Lost::StackTableFull => Loss::StackTableFull,
        Lost::NameTableFull => Loss::NameTableFull,
        Lost::Unexpected | Lost::Panics => Loss::Malformed,
        Lost::Unread => Loss::ActivityUnread,
        Lost::HostEventRingFull => Loss::HostEventRingFull,
        Lost::RangeUnrecorded => Loss::RangeUnrecorded,
        Lost::UnifiedUnrecorded => Loss::UnifiedUnrecorded,
    }
}
