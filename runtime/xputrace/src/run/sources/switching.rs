//! Follows what a script switches on and off: collectors record it, and probes in Linux are attached.
//!
//! A probe in Linux that is switched off tests a word and does nothing, from that moment on. It is detached once it has
//! been off for a while, because each hit costs Linux a trap all the same; and attached again when it is switched on.

use super::linux::LinuxEvents;
use crate::collectors::Collectors;
use crate::run::running::Running;
use crate::run::state::RunState;
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use xputrace_linux::monotonic_nanos;
use xputrace_model::loss::Loss;
use xputrace_model::plan::{Place, Plan, ProbeId};
use xputrace_pipeline::Turned;

/// How long a probe stays attached that is off: switching costs Linux some 10 ms.
const IDLE_BEFORE_DETACHED: Duration = Duration::from_millis(500);

/// The probes in Linux that are switched off.
#[derive(Debug, Default)]
pub struct Switching {
    /// Attached, and off since then.
    idle: BTreeMap<ProbeId, Instant>,
    detached: BTreeSet<ProbeId>,
    /// When the last two steps began.
    steps: [u64; 2],
    /// What Linux's programs switched before has been read. CLOCK_MONOTONIC nanoseconds, like `steps`.
    linux_heard_until: u64,
}

impl Switching {
    /// Detaches the probes that begin off. They were attached, so mistakes in what they probe are known.
    pub fn begin(plan: &Plan, state: &mut RunState) -> Self {
        let mut switching = Switching::default();
        let off: Vec<ProbeId> = in_linux(plan, &state.pipeline.state().switches().now(), false).collect();
        off.into_iter().for_each(|it| switching.detach(it, state));
        switching
    }

    /// Notes until when everything that can switch a probe has been heard of, and reads what Linux's programs have
    /// switched. What else happened before the step before the last had been written when the last one read it.
    ///
    /// # Errors
    /// Linux's records are unreadable.
    pub fn hear(&mut self, running: &mut Running, linux: &mut LinuxEvents) -> Result<()> {
        if running.plan().switches.is_empty() {
            return Ok(());
        }
        let now = monotonic_nanos();
        running.state().pipeline.state_mut().set_time(now, self.steps[0]);
        self.steps = [self.steps[1], now];
        if running.plan().linux_switches.is_some() {
            if linux.take_records(running)? {
                self.linux_heard_until = now;
            }
            running.state().pipeline.state_mut().heard_linux(self.linux_heard_until);
        }
        Ok(())
    }

    /// Does what handlers have switched since the last call.
    ///
    /// # Errors
    /// Handlers in Linux cannot be told.
    pub fn step(&mut self, running: &mut Running, collectors: Option<&mut Collectors>) -> Result<()> {
        let turned = running.state().pipeline.state_mut().switches_mut().drain_changes();
        if let Some(turned) = turned {
            running.state().tell_linux_switches()?;
            if let Some(collectors) = collectors {
                collectors.switch(&turned, running);
            }
            self.follow(&turned, running);
        }
        self.detach_idle(running);
        Ok(())
    }

    /// Attaches what is on, and notes since when the rest is off.
    fn follow(&mut self, switches: &Turned, running: &mut Running) {
        let plan = running.plan().clone();
        for probe in in_linux(&plan, switches, true) {
            self.idle.remove(&probe);
            if self.detached.remove(&probe) {
                attach(&plan, probe, running);
            }
        }
        for probe in in_linux(&plan, switches, false).filter(|it| !self.detached.contains(it)) {
            self.idle.entry(probe).or_insert_with(Instant::now);
        }
    }

    fn detach_idle(&mut self, running: &Running) {
        let is_idle = |since: &Instant| since.elapsed() >= IDLE_BEFORE_DETACHED;
        let long: Vec<ProbeId> = self.idle.iter().filter(|it| is_idle(it.1)).map(|it| *it.0).collect();
        for probe in long {
            self.idle.remove(&probe);
            self.detach(probe, &mut running.state());
        }
    }

    fn detach(&mut self, probe: ProbeId, state: &mut RunState) {
        if let Some(linux) = &mut state.linux {
            linux.switch_off(probe);
            self.detached.insert(probe);
        }
    }
}

/// Returns the probes in Linux that are on, or off. Handlers at the collector's marker are not attached by themselves.
fn in_linux<'a>(plan: &'a Plan, switches: &'a Turned, on: bool) -> impl Iterator<Item = ProbeId> + use<'a> {
    let probes = ProbeId::each(&plan.probes).filter(|(_, it)| it.place == Place::Linux && !it.event.is_gpu());
    probes.filter(move |(_, it)| it.switch.is_some_and(|it| switches.is_on(it) == on)).map(|it| it.0)
}

/// Attaches a probe that was switched on. Its hits until now were not seen.
fn attach(plan: &Plan, probe: ProbeId, running: &mut Running) {
    let (mut state, report) = running.parts();
    let state = &mut *state;
    let Some(linux) = &mut state.linux else { return };
    let names = state.pipeline.state_mut().names_mut();
    let attached = linux.lending(names, |it| it.switch_on(plan, probe));
    let it = &plan.probes[probe.index()];
    if let Err(error) = attached {
        report.fail(&format!("cannot attach {}, which was enabled: {error}", it.name));
    }
    state.losses.add_at(Loss::EnabledUnseen, it.site, 1);
}
