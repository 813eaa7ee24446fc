//! Unified memory: CUPTI counts what happens to it only after CUDA has started, and only where the GPU and the system let it.

use super::records::UNIFIED_MEMORY_KINDS;
use super::{CuptiBackend, CuptiResult, KIND_UNIFIED_MEMORY, SCOPE_ALL_DEVICES, SUCCESS, UnifiedMemoryCounter};
use std::sync::atomic::Ordering;
use xputrace_agent::Agent;
use xputrace_wire::region::Lost;

/// `CUPTI_ERROR_INVALID_PARAMETER`.
const INVALID_PARAMETER: CuptiResult = 1;

impl CuptiBackend {
    /// Enables the records of unified memory, or leaves that to [`CuptiBackend::cuda_started`]. The user is told where there
    /// can be none.
    pub(super) fn enable_unified_memory(&self, agent: &Agent) {
        if !self.has_started.load(Ordering::Acquire) {
            return;
        }
        let why = match self.configure_unified_memory() {
            Some(SUCCESS) => return,
            Some(answer) => self.cupti.explain(answer),
            None => "this libcupti has no function for that".to_owned(),
        };
        // The note may not arrive before the process ends.
        agent.count_lost(Lost::UnifiedUnrecorded, 1);
        agent.note(format!("no `migration` events: CUPTI does not record unified memory in this process: {why}"));
    }

    /// Enables what had to wait for CUDA.
    pub(super) fn cuda_started(&self, agent: &Agent) {
        if !self.has_started.swap(true, Ordering::AcqRel) && self.records_unified_memory() {
            self.enable_unified_memory(agent);
        }
    }

    /// Returns CUPTI's answer; `None` if it lacks a function. Earlier versions count fewer things.
    fn configure_unified_memory(&self) -> Option<CuptiResult> {
        let configure = self.cupti.configure_unified_memory?;
        let kinds = UNIFIED_MEMORY_KINDS.map(|it| it as u32);
        let mut counters =
            kinds.map(|kind| UnifiedMemoryCounter { scope: SCOPE_ALL_DEVICES, kind, device: 0, enable: 1 });
        // SAFETY: as many structures as we say.
        let mut answer = unsafe { configure(counters.as_mut_ptr(), counters.len() as u32) };
        if answer == INVALID_PARAMETER {
            let known = counters.iter_mut();
            // SAFETY: one structure each.
            let answers = known.map(|it| unsafe { configure(it, 1) });
            answer = answers.fold(answer, |all, it| if it == SUCCESS { SUCCESS } else { all });
        }
        if answer == SUCCESS { self.enable_kind(KIND_UNIFIED_MEMORY) } else { Some(answer) }
    }
}
