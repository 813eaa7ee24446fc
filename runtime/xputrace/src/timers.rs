//! `interval` handlers and when they are due.

use std::time::{Duration, Instant};
use xputrace_model::plan::{Plan, Probe, Target};

/// Shorter intervals would leave no time for anything else.
const SHORTEST: Duration = Duration::from_micros(1);

/// The timers of a run.
#[derive(Debug, Default)]
pub struct Timers(Vec<Timer>);

#[derive(Debug)]
struct Timer {
    closure: usize,
    every: Duration,
    next: Instant,
}

impl Timers {
    /// All of them begin now.
    pub fn new(plan: &Plan) -> Self {
        let now = Instant::now();
        let timer = |it: &Probe| match (&it.target, it.closure) {
            (Target::Interval { nanos }, Some(closure)) => {
                let every = Duration::from_nanos(*nanos).max(SHORTEST);
                Some(Timer { closure, every, next: now + every })
            }
            _ => None,
        };
        Timers(plan.probes.iter().filter_map(timer).collect())
    }

    /// How long until the next one is due; `None` without timers.
    pub fn next_in(&self) -> Option<Duration> {
        let next = self.0.iter().map(|it| it.next).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// The closures that are due now.
    pub fn due(&mut self) -> Vec<usize> {
        let now = Instant::now();
        let mut due = Vec::new();
        for timer in self.0.iter_mut().filter(|it| it.next <= now) {
            timer.next += timer.every;
            // A late timer does not catch up: it fires once and goes on from now.
            if timer.next <= now {
                timer.next = now + timer.every;
            }
            due.push(timer.closure);
        }
        due
    }
}
