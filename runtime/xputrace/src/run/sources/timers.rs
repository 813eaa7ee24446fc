//! `interval` handlers and their due times; the time limit of a run.

use super::source::{EventSource, Progress};
use crate::machine::deadline;
use crate::run::running::Running;
use anyhow::Result;
use std::time::{Duration, Instant};
use xputrace_model::plan::{ClosureId, Plan, Probe, ProbePlace, SwitchId};
use xputrace_pipeline::Switches;

/// Shorter intervals would leave no time for anything else.
const SHORTEST: Duration = Duration::from_micros(1);

/// The timers of a run.
#[derive(Debug, Default)]
pub struct Timers(Vec<Timer>);

#[derive(Debug)]
struct Timer {
    closure: ClosureId,
    every: Duration,
    next: Instant,
    switch: Option<SwitchId>,
}

impl Timers {
    /// Starts all of them now.
    pub fn new(plan: &Plan) -> Self {
        let now = Instant::now();
        let timer = |it: &Probe| match (&it.target, it.closure) {
            (ProbePlace::Interval { nanos }, Some(closure)) => {
                let every = Duration::from_nanos(*nanos).max(SHORTEST);
                Some(Timer { closure, every, next: now + every, switch: it.switch })
            }
            _ => None,
        };
        Timers(plan.probes.iter().filter_map(timer).collect())
    }

    /// Whether any is due now.
    pub fn are_due(&self) -> bool {
        self.due_in().is_some_and(|it| it.is_zero())
    }

    /// Returns the closures that are due now. The time of one that is switched off passes all the same.
    fn due(&mut self, switches: &Switches) -> Vec<ClosureId> {
        let now = Instant::now();
        let mut due = Vec::new();
        for timer in self.0.iter_mut().filter(|it| it.next <= now) {
            timer.next += timer.every;
            // A late timer does not catch up: it fires once and restarts from now.
            if timer.next <= now {
                timer.next = now + timer.every;
            }
            if timer.switch.is_none_or(|it| switches.is_on(it)) {
                due.push(timer.closure);
            }
        }
        due
    }
}

impl EventSource for Timers {
    fn due_in(&self) -> Option<Duration> {
        let next = self.0.iter().map(|it| it.next).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn step(&mut self, running: &mut Running) -> Result<Progress> {
        let due = self.due(running.state().pipeline.state().switches());
        running.run_closures(due);
        Ok(Progress::Idle)
    }
}

/// `--for`: when a run ends at the latest.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimeLimit {
    time: Option<Duration>,
    ends: Option<Instant>,
}

impl TimeLimit {
    /// A limit that does not count yet; `None` means no limit.
    pub fn of(time: Option<Duration>) -> Self {
        TimeLimit { time, ends: None }
    }

    /// Counts from now.
    pub fn start(&mut self) {
        self.ends = self.time.map(deadline);
    }

    /// Returns the moment, if there is a limit and it counts.
    pub fn at(self) -> Option<Instant> {
        self.ends
    }
}

impl EventSource for TimeLimit {
    fn due_in(&self) -> Option<Duration> {
        Some(self.ends?.saturating_duration_since(Instant::now()))
    }

    fn step(&mut self, _running: &mut Running) -> Result<Progress> {
        let is_up = self.ends.is_some_and(|it| Instant::now() >= it);
        Ok(if is_up { Progress::Stop } else { Progress::Idle })
    }
}
