//! `--after` and `--range`: the part of a run that is recorded.

use super::timers::TimeLimit;
use crate::cli::{Range, WindowOptions};
use crate::collectors::Collectors;
use crate::machine::deadline;
use crate::run::running::Running;
use anyhow::Result;
use std::time::{Duration, Instant};
use xputrace_linux::monotonic_nanos;
use xputrace_model::schema::Unit;
use xputrace_render::{counted, human};
use xputrace_wire::region::WindowTotals;
use xputrace_wire::totals::CollectorTotals;

/// The part of a run that is recorded.
///
/// Collectors follow the program's ranges themselves. Handlers in Linux follow as soon as the
/// tracer has seen it.
#[derive(Debug, Default)]
pub struct Window {
    options: WindowOptions,
    /// When `--after` is over.
    begins: Option<Instant>,
    has_begun: bool,
    /// When it was opened, if it is open.
    open_since: Option<Instant>,
    open_before: Duration,
    has_opened: bool,
}

impl Window {
    /// Counts `--after` from now.
    pub fn new(options: &WindowOptions) -> Self {
        Window { options: options.clone(), begins: options.after.map(deadline), ..Window::default() }
    }

    /// Whether there is one: otherwise everything is recorded.
    pub fn is_limited(&self) -> bool {
        self.options.is_limited()
    }

    /// Returns how soon `--after` is over.
    pub fn due_in(&self) -> Option<Duration> {
        let begins = self.begins.filter(|_| !self.has_begun)?;
        Some(begins.saturating_duration_since(Instant::now()))
    }

    /// Opens or closes it; `limit` counts from its first opening.
    ///
    /// # Errors
    /// Handlers in Linux cannot be told.
    pub fn step(
        &mut self,
        running: &mut Running,
        collectors: Option<&mut Collectors>,
        limit: &mut TimeLimit,
    ) -> Result<()> {
        if !self.is_limited() {
            return Ok(());
        }
        let begins_now = !self.has_begun && self.due_in().is_none_or(|it| it.is_zero());
        self.has_begun |= begins_now;
        let mut totals = Vec::new();
        if let Some(collectors) = collectors {
            if begins_now {
                collectors.begin_window();
            }
            totals = collectors.totals();
        }
        let is_in_range = self.options.range.is_none() || totals.iter().any(|it| it.window.open_since != 0);
        self.set_open(self.has_begun && is_in_range, running)?;
        let was_in_range = self.options.range.is_some() && totals.iter().any(|it| it.window.openings > 0);
        if !self.has_opened && (self.open_since.is_some() || was_in_range) {
            self.has_opened = true;
            limit.start();
        }
        Ok(())
    }

    fn set_open(&mut self, open: bool, running: &Running) -> Result<()> {
        if open == self.open_since.is_some() {
            return Ok(());
        }
        running.state().set_window(open)?;
        match self.open_since.take() {
            Some(since) => self.open_before += since.elapsed(),
            None => self.open_since = Some(Instant::now()),
        }
        Ok(())
    }

    /// Returns for how long it was open so far; for ranges, in the process where that is longest.
    pub fn elapsed(&self, totals: &[CollectorTotals]) -> Duration {
        match self.options.range {
            Some(_) => Duration::from_nanos(totals.iter().map(|it| nanos(&it.window)).max().unwrap_or(0)),
            None => self.open_before + self.open_since.map_or(Duration::ZERO, |it| it.elapsed()),
        }
    }

    /// Says how often and how long it was open. `None` if there is none.
    ///
    /// # Errors
    /// Why it never was.
    pub fn summary(&self, totals: &[CollectorTotals]) -> Option<Result<String, String>> {
        let elapsed = shown(self.elapsed(totals));
        let delay = self.options.after.map(shown);
        Some(match (&self.options.range, delay) {
            (None, None) => return None,
            (None, Some(delay)) if self.has_opened => Ok(format!("recorded for {elapsed}, from {delay} on")),
            (_, Some(delay)) if !self.has_begun => {
                Err(format!("nothing was recorded: the run ended before {delay} had passed (--after)"))
            }
            (None, _) => Err("nothing was recorded".into()),
            (Some(range), _) => of_range(range, totals),
        })
    }
}

fn of_range(range: &Range, totals: &[CollectorTotals]) -> Result<String, String> {
    let entered: Vec<&WindowTotals<u64>> = totals.iter().map(|it| &it.window).filter(|it| it.openings > 0).collect();
    if entered.is_empty() {
        return Err(format!("nothing was recorded: {}", why_never(range, totals)));
    }
    let openings = entered.iter().fold(0, |sum: u64, it| sum.saturating_add(it.openings));
    let together = entered.iter().fold(0, |sum: u64, it| sum.saturating_add(nanos(it)));
    Ok(format!(
        "recorded {range}: {} in {}, for {} in total",
        counted(openings, "opening", "openings"),
        counted(entered.len() as u64, "process", "processes"),
        shown(Duration::from_nanos(together))
    ))
}

fn why_never(range: &Range, totals: &[CollectorTotals]) -> String {
    if totals.is_empty() {
        return "no process made a CUDA call, which is when the collector starts".into();
    }
    match range {
        Range::Profiler => "the program never called cudaProfilerStart".into(),
        Range::Named(name) => {
            let others = totals.iter().fold(0, |sum: u64, it| sum.saturating_add(it.window.ranges));
            let seen = match others {
                0 => ", and no NVTX range at all".to_owned(),
                n => format!(", but {}", counted(n, "other NVTX range", "other NVTX ranges")),
            };
            format!("the program never opened the NVTX range `{name}`{seen}")
        }
    }
}

/// Returns for how long it was open, up to now. Numbers that a target supplies are untrusted.
fn nanos(it: &WindowTotals<u64>) -> u64 {
    let now = match it.open_since {
        0 => 0,
        since => monotonic_nanos().saturating_sub(since),
    };
    it.nanos.saturating_add(now)
}

fn shown(time: Duration) -> String {
    human(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX), Unit::Nanos)
}
