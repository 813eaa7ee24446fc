//! Linux's programs over a recording: at hits of CPU probes, and at the launch marker.

use crate::check::recorded_as;
use crate::cpu_env::{CpuEnv, EFAULT, ENOMEM, RecordedMemory};
use crate::tape::Tape;
use xputrace_bytecode::probe::pt_regs;
use xputrace_bytecode::targets;
use xputrace_model::names::Names;
use xputrace_model::plan::{Place, Plan, ProbeId, ProgramId, cookie};
use xputrace_model::schema::Event;
use xputrace_pipeline::{HandlerState, Outputs};
use xputrace_recording::{Hit, Meta, hits};
use xputrace_wire::marker;
use xputrace_wire::record::Launch;
use zerocopy::IntoBytes;

/// Linux's programs: by recorded probe, and at the launch marker.
pub(crate) struct LinuxHandlers {
    hits: Vec<Vec<LinuxHandler>>,
    /// Each with its program.
    launch: Vec<(ProbeId, ProgramId)>,
    /// What Linux answers if a hit's stack has the word 0.
    lost_stack: i64,
}

struct LinuxHandler {
    probe: ProbeId,
    program: Option<ProgramId>,
    entry_program: Option<ProgramId>,
}

impl LinuxHandlers {
    pub(crate) fn of(plan: &Plan, meta: &Meta) -> Self {
        let in_linux = || ProbeId::each(&plan.probes).filter(|(_, it)| it.place == Place::Linux);
        let mut hits: Vec<Vec<LinuxHandler>> = meta.probes.iter().map(|_| Vec::new()).collect();
        for (probe, it) in in_linux().filter(|(_, it)| it.event != Event::Launch) {
            if let Some(at) = recorded_as(it, meta) {
                hits[at].push(LinuxHandler { probe, program: it.program, entry_program: it.entry_program });
            }
        }
        let launch = in_linux().filter(|(_, it)| it.event == Event::Launch);
        let lost_stack = if meta.tells_losses { ENOMEM } else { EFAULT };
        let launch = launch.filter_map(|(probe, it)| Some((probe, it.program?))).collect();
        LinuxHandlers { hits, launch, lost_stack }
    }

    /// Whether nothing runs at launches.
    pub(crate) fn has_no_marker(&self) -> bool {
        self.launch.is_empty()
    }

    /// Runs what Linux would run at a hit.
    pub(crate) fn run_hit(&self, hit: &Hit, state: &mut HandlerState, sink: &mut dyn Outputs) {
        let Some(handlers) = self.hits.get(hit.probe as usize) else { return };
        // Every recorded hit is a target's. The map holds only the current thread.
        let (word, bit) = targets::word_and_bit(hit.tid);
        let is_target = |state: &mut HandlerState, bits: u64| {
            if let Some(targets) = state.plan().targets {
                state.programs().0.update(targets, &word.to_le_bytes(), &bits.to_le_bytes(), 0);
            }
        };
        is_target(state, bit);
        let cookie = cookie_of(hit, state.names_mut());
        for it in handlers {
            let Some(program) = (if hit.entry { it.entry_program } else { it.program }) else { continue };
            let (memory, lost_stack) = (RecordedMemory::of_hit(hit), self.lost_stack);
            let (engine, prints) = state.programs();
            let mut env = CpuEnv { prints, hit, cookie, memory, lost_stack, sink };
            if let Err(fault) = engine.run(program, &hit.context, &mut env) {
                state.count_fault(it.probe, fault);
            }
        }
        is_target(state, 0);
    }

    /// Runs Linux's launch handlers as the collector's marker would; returns the tag that they set.
    pub(crate) fn run_marker(
        &self,
        (process, launch): (u32, &Launch),
        tape: &Tape,
        state: &mut HandlerState,
        sink: &mut dyn Outputs,
    ) -> Option<i64> {
        // The recording may hold calls of kinds that the script doesn't ask for.
        let calls = state.plan().demand.calls;
        if !launch.call().is_some_and(|it| calls.contains(it)) {
            return None;
        }
        let pid = tape.pids.get(&process).copied().unwrap_or(0);
        let symbol = tape.names.get(&(process, launch.symbol)).filter(|_| launch.symbol != 0);
        let words = marker::words(launch, pid, if symbol.is_some() { SYMBOL_AT } else { 0 });
        let comm = tape.comms.get(&(process, launch.tid)).copied().unwrap_or_default();
        let hit =
            Hit { time_nanos: launch.start, pid, tid: launch.tid, comm, context: marker_regs(), ..Hit::default() };
        for (probe, program) in &self.launch {
            let memory =
                RecordedMemory { parts: vec![(WORDS_AT, words.as_bytes()), (SYMBOL_AT, symbol.map_or(&[], |it| it))] };
            let (engine, prints) = state.programs();
            let mut env = CpuEnv { prints, hit: &hit, cookie: 0, memory, lost_stack: EFAULT, sink };
            if let Err(fault) = engine.run(*program, &hit.context, &mut env) {
                state.count_fault(*probe, fault);
            }
        }
        let mut tag = None;
        let tags = state.plan().tags?;
        state.programs().0.drain(tags, &mut |_, slot| {
            let half = |at: usize| xputrace_store::codec::word(slot, at);
            if half(0) != 0 {
                tag = Some(half(8) as i64);
            }
        });
        tag
    }
}

/// Made-up addresses where a handler at the marker finds its words and the kernel's name.
const WORDS_AT: u64 = 0x1000_0000;
const SYMBOL_AT: u64 = 0x2000_0000;

fn marker_regs() -> Vec<u8> {
    let mut regs = vec![0; pt_regs::SIZE];
    for (at, value) in pt_regs::ARGUMENTS.into_iter().zip([WORDS_AT, 0]) {
        regs[at as usize..at as usize + 8].copy_from_slice(&value.to_le_bytes());
    }
    regs
}

/// Returns a hit's cookie in this run, whose name ids differ from the recorded run's.
fn cookie_of(hit: &Hit, names: &mut Names) -> u64 {
    let name = hit.strings.iter().find(|it| it.address == hits::FUNCTION_NAME);
    name.map_or(hit.cookie, |it| cookie::renamed(hit.cookie, names.intern(&xputrace_model::text::from_bytes(&it.text))))
}
