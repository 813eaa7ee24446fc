//! What became of everything: launches = joined + failed + lost, and every loss by name.
//!
//! The counts of a collector stand in memory that its target can write: they are any numbers,
//! and sums with them stay at their greatest instead of overflowing.

use super::CollectorTotals;
use super::process::Wanted;
use crate::names::Names;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use xputrace_model::loss::{Account, Loss, Losses};
use xputrace_model::plan::StringId;
use xputrace_wire::region::Lost;

/// The run's account.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) account: Account,
    pub(super) losses: Losses,
    lost_by_name: FxHashMap<StringId, u64>,
}

/// Records of one process that arrived.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) launches: u64,
    pub(super) captured_launches: u64,
    pub(super) kernels: u64,
    pub(super) untimed_kernels: u64,
}

impl Ledger {
    /// So many launches of this name have no kernel, and will not have any.
    pub(super) fn lose(&mut self, name: StringId, n: u64) {
        self.account.lost = self.account.lost.saturating_add(n);
        let of_name = self.lost_by_name.entry(name).or_default();
        *of_name = of_name.saturating_add(n);
    }

    /// Launches without kernels by name, most first.
    pub(super) fn lost_by_name(&self, names: &Names) -> Vec<(Arc<str>, u64)> {
        let text = |id: StringId| names.get(id.into()).cloned().unwrap_or_else(|| Arc::from(""));
        let mut lost: Vec<_> = self.lost_by_name.iter().map(|(id, n)| (text(*id), *n)).collect();
        lost.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        lost
    }

    /// Compares what arrived of a process with what its collector counted. Launches without a
    /// record get the name `unnamed`.
    pub(super) fn reconcile(&mut self, arrived: Counts, told: &CollectorTotals, wanted: Wanted, unnamed: StringId) {
        if wanted.kernels {
            let account = &mut self.account;
            account.collector_kernels = account.collector_kernels.saturating_add(told.kernels);
            account.collector_kernel_nanos = account.collector_kernel_nanos.saturating_add(told.kernel_nanos);
        }
        if wanted.launches {
            let submitted = told.launches.saturating_sub(told.captured_launches);
            let unseen = submitted.saturating_sub(arrived.launches - arrived.captured_launches);
            self.account.launches = self.account.launches.saturating_add(unseen);
            if unseen > 0 {
                self.lose(unnamed, unseen);
            }
        }
        self.add_losses(arrived, told, wanted);
    }

    fn add_losses(&mut self, arrived: Counts, told: &CollectorTotals, wanted: Wanted) {
        let lost = |it: Lost| told.lost[it as usize];
        let accounted = arrived.kernels.saturating_add(lost(Lost::ActivityRingFull));
        let missing = if wanted.kernels { told.kernels.saturating_sub(accounted) } else { 0 };
        let unexpected = lost(Lost::Unexpected).saturating_add(lost(Lost::Panics)).saturating_add(told.broken_rings);
        for (loss, n) in [
            (Loss::Unreconciled, missing),
            (Loss::LaunchRingFull, lost(Lost::LaunchRingFull)),
            (Loss::NoRingForThread, lost(Lost::NoRing)),
            (Loss::ActivityRingFull, lost(Lost::ActivityRingFull)),
            (Loss::CuptiDropped, lost(Lost::CuptiDropped)),
            (Loss::NoTimestamps, lost(Lost::NoTimestamps).saturating_sub(arrived.untimed_kernels)),
            (Loss::StackTableFull, lost(Lost::StackTableFull)),
            (Loss::NameTableFull, lost(Lost::NameTableFull)),
            (Loss::Malformed, unexpected),
        ] {
            self.losses.add(loss, n);
        }
    }
}
