//! Numbers about the run that scripts can read.

use super::RunState;
use std::time::Duration;
use xputrace_script::RunNumber;
use xputrace_wire::totals::CollectorTotals;

/// Minimum number of launches for a cost estimate: the collector times one in 64.
const LEAST_LAUNCHES: i64 = 1024;

/// Recomputes them.
pub fn refresh(state: &mut RunState, totals: &[CollectorTotals], elapsed: Duration) {
    let account = state.pipeline.account();
    let launches = account.launches();
    // Those outside the recorded part are in the account, because their records arrive.
    let (kernels, gpu_time) = state.pipeline.handled_kernels();
    // Target-supplied counts are untrusted.
    let sum = |of: fn(&CollectorTotals) -> u64| totals.iter().map(of).fold(0, u64::saturating_add) as i64;
    let elapsed_ns = elapsed.as_nanos() as i64;
    let busy = state.pipeline.busy_nanos() as i64;
    // An estimate from a handful of samples means nothing.
    let is_estimated = sum(CollectorTotals::launches) >= LEAST_LAUNCHES;
    let inside = sum(|it| it.callback_nanos);
    let kept_programs = state.stacks.n_programs() as i64;
    let value = |number: RunNumber| match number {
        RunNumber::Launches => Some(launches.made as i64),
        RunNumber::Joined => Some(launches.joined as i64),
        RunNumber::Failed => Some(launches.failed as i64),
        RunNumber::Lost => Some(launches.lost as i64),
        RunNumber::Kernels => Some(kernels as i64),
        RunNumber::GpuBusyNanos => Some(busy),
        RunNumber::GpuBusyShare => Some(busy.saturating_mul(1000).checked_div(elapsed_ns).unwrap_or(0)),
        RunNumber::GpuTimeNanos => Some(gpu_time as i64),
        RunNumber::CollectorCostNanos => is_estimated.then_some(inside),
        RunNumber::TracerCostNanos => Some(own_cpu_nanos()),
        RunNumber::OwnCostNanos => is_estimated.then(|| inside.saturating_add(own_cpu_nanos())),
        RunNumber::StacksTaken => Some(sum(|it| it.stacks)),
        RunNumber::KeptPrograms => Some(kept_programs),
        RunNumber::ElapsedNanos => Some(elapsed_ns),
        // They are known when they are asked for.
        RunNumber::Losses | RunNumber::OutputIsJson => None,
    };
    state.numbers.extend(RunNumber::ALL.iter().filter_map(|it| Some((*it, value(*it)?))));
}

fn own_cpu_nanos() -> i64 {
    // SAFETY: a zeroed rusage is valid, and the call fills it or fails.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a rusage.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let nanos = |it: libc::timeval| it.tv_sec * 1_000_000_000 + it.tv_usec * 1000;
    nanos(usage.ru_utime) + nanos(usage.ru_stime)
}
