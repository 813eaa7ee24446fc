//! Gaps: while another tool in the program has the GPU library's records.
//!
//! ```text
//! begin_gap ─▶ launches are marked ─▶ (records are handed over) ─▶ gap_began ─▶ record in the ring
//! (records are ours again) ─▶ end_gap ─▶ launches are not marked ─▶ record in the ring
//! ```
//! A launch that is not marked has its activity's record with us; one that is may have it elsewhere.

use super::Agent;
use super::clock::now;
use super::state::yielding::{Conflict, Gap};
use std::sync::atomic::Ordering;
use xputrace_wire::record::{MAX_NAME, Yield, kind};

impl Agent {
    /// What to do when another tool uses the GPU's library.
    pub fn on_conflict(&self) -> Conflict {
        self.conflict
    }

    /// Marks launches from now on.
    pub fn begin_gap(&self) {
        self.yielding.launches.store(0, Ordering::Release);
        self.yielding.is_on.store(true, Ordering::Release);
    }

    /// Notes that this library has the records now.
    pub fn gap_began(&'static self, holder: &str) {
        let holder: String = holder.chars().take(MAX_NAME / 4).collect();
        let began = now();
        self.write_gap(&Yield { began, ..Yield::default() }, &holder);
        *self.yielding.gap() = Some(Gap { began, holder });
    }

    /// Notes that some launches of the gap cannot be seen.
    pub fn gap_is_blind(&self) {
        self.yielding.launches.fetch_or(Yield::AT_LEAST, Ordering::AcqRel);
    }

    /// Notes that the records are ours again, or that the run ends.
    pub fn end_gap(&'static self) {
        let gap = self.yielding.gap().take();
        self.yielding.is_on.store(false, Ordering::Release);
        if let Some(Gap { began, holder }) = gap {
            let launches = self.yielding.launches.load(Ordering::Acquire);
            self.write_gap(&Yield { began, ended: now(), launches, ..Yield::default() }, &holder);
        }
    }

    /// Notes that a library's claim was refused; once for each run.
    pub fn kept_from(&'static self, holder: &str) {
        if !self.yielding.has_refused.swap(true, Ordering::AcqRel) {
            let at = now();
            self.write_gap(&Yield { began: at, ended: at, ..Yield::default() }, holder);
        }
    }

    fn write_gap(&'static self, gap: &Yield, holder: &str) {
        self.write_waiting(kind::YIELD, &Yield { len: holder.len() as u64, ..*gap }, holder.as_bytes());
    }
}
