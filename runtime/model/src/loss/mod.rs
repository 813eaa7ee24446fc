//! Every way to lose an event or a value, in one place. Losses are data: they are counted where
//! they happen and printed with every result.

mod kind;

pub use kind::Loss;

use crate::diagnostic::Site;
use crate::id::TableId;
use std::collections::BTreeMap;
use xputrace_events::{Activities, Activity, Call, Calls, HostEvent, HostEvents};

/// Counts of losses by kind, and by the handler's line and the map, where these are known. Sums saturate:
/// some counts come from a target and may be any number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    counts: BTreeMap<(Loss, Cause), u64>,
}

/// What in the script caused a loss, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cause {
    /// The handler's line.
    pub site: Option<Site>,
    /// The map that lost something.
    pub table: Option<TableId>,
}

impl From<Site> for Cause {
    fn from(site: Site) -> Self {
        Cause { site: Some(site), table: None }
    }
}

impl From<TableId> for Cause {
    fn from(table: TableId) -> Self {
        Cause { site: None, table: Some(table) }
    }
}

impl Losses {
    /// Adds `n` losses that nothing in the script caused.
    pub fn add(&mut self, loss: Loss, n: u64) {
        self.add_at(loss, Cause::default(), n);
    }

    /// Adds `n` losses caused by a line of the script, or in one of its maps.
    pub fn add_at(&mut self, loss: Loss, cause: impl Into<Cause>, n: u64) {
        if n > 0 {
            let count = self.counts.entry((loss, cause.into())).or_default();
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

    /// Returns the count of one kind, whatever caused it.
    pub fn of(&self, loss: Loss) -> u64 {
        let of_kind = self.counts.iter().filter(|((kind, _), _)| *kind == loss);
        of_kind.fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }

    /// Iterates over all nonzero counts, by kind, line and map.
    pub fn iter(&self) -> impl Iterator<Item = (Loss, Cause, u64)> + '_ {
        self.counts.iter().map(|((loss, cause), n)| (*loss, *cause, *n))
    }

    /// Whether nothing was lost.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}

/// The outcome of the calls of one kind: `made` is the sum of all but `captured` and `outside`.
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
    /// Calls that leave nothing to wait for: launches of graphs without a kernel, copies of nothing.
    pub without_work: u64,
    /// Calls that may leave nothing, and had no record: launches of graphs that may contain no kernel, copies that
    /// may be within the host's memory.
    pub without_record: u64,
    /// Calls captured into a graph: they submit no work.
    pub captured: u64,
    /// Calls near the part of the run that is recorded, but outside: they and what they caused are not handled.
    pub outside: u64,
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
            without_work: self.without_work.saturating_add(other.without_work),
            without_record: self.without_record.saturating_add(other.without_record),
            captured: self.captured.saturating_add(other.captured),
            outside: self.outside.saturating_add(other.outside),
        }
    }

    /// Returns the calls accounted for: equal to `made` if nothing is missing.
    pub fn sum(&self) -> u64 {
        let parts = [self.joined, self.failed, self.lost, self.without_work, self.without_record];
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

/// Host events of one kind that ended: `handled + lost`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounts {
    pub handled: u64,
    /// Their records did not arrive.
    pub lost: u64,
}

/// The outcome of everything that was requested of the GPU side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The kinds that the script requested; others are unknown.
    pub calls: Calls,
    pub activities: Activities,
    /// The kinds of host events that the script requested.
    pub host_events: HostEvents,
    host_counts: [HostCounts; HostEvent::COUNT],
    balances: [Balance; Call::COUNT],
    arrived: [Arrived; Activity::COUNT],
}

impl Account {
    /// Creates an empty account of these kinds.
    pub fn new(calls: Calls, activities: Activities) -> Self {
        Account { calls, activities, ..Account::default() }
    }

    /// Adds kinds of host events.
    #[must_use]
    pub fn with_host_events(self, host_events: HostEvents) -> Self {
        Account { host_events, ..self }
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

    /// Returns the activity whose records show that calls of this kind were carried out: of those that may, the first
    /// that was requested.
    pub fn shows(&self, call: Call) -> Activity {
        let mut all = call.shown_by().iter();
        all.clone().find(|it| self.activities.contains(*it)).or_else(|| all.next()).unwrap_or(call.activity())
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

    /// Returns the outcome of one kind of host events.
    pub fn host_event(&self, kind: HostEvent) -> &HostCounts {
        &self.host_counts[kind.index()]
    }

    /// Returns the same, mutable.
    pub fn host_event_mut(&mut self, kind: HostEvent) -> &mut HostCounts {
        &mut self.host_counts[kind.index()]
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
        let is_unseen = |it: HostEvent| *self.host_event(it) == HostCounts::default();
        self.host_events.iter().all(is_unseen) && self.is_silent_on_work()
    }

    fn is_silent_on_work(&self) -> bool {
        match self.activities.is_empty() {
            true => self.balance(Calls::ALL).made == 0,
            false => self.activities.iter().all(|it| self.activity(it).records == 0),
        }
    }

    /// Drops the kinds of which nothing was seen; returns `None` if that is all of them. For
    /// recordings, which request every kind.
    pub fn seen(self) -> Option<Account> {
        let is_seen = |kind: Activity| {
            *self.activity(kind) != Arrived::default()
                || self.calls.iter().any(|it| self.shows(it) == kind && *self.call(it) != Balance::default())
        };
        let calls = self.calls.iter().filter(|it| is_seen(self.shows(*it)));
        let seen = Account {
            calls: calls.fold(Calls::NONE, |all, it| all.with(Calls::of(&[it]))),
            activities: self
                .activities
                .iter()
                .filter(|it| is_seen(*it))
                .fold(Activities::NONE, |all, it| all.with(Activities::of(&[it]))),
            // They have no second count to compare with: only what is missing is of interest.
            host_events: self
                .host_events
                .iter()
                .filter(|it| self.host_event(*it).lost > 0)
                .fold(HostEvents::NONE, |all, it| all.with(HostEvents::of(&[it]))),
            ..self
        };
        (!seen.calls.is_empty() || !seen.activities.is_empty() || !seen.host_events.is_empty()).then_some(seen)
    }

    /// Takes what arrived for the collectors' totals.
    pub fn believe(&mut self) {
        for it in &mut self.arrived {
            (it.told_records, it.told_nanos) = (it.records, it.nanos);
        }
    }
}
