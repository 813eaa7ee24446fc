//! Numbers about the run that scripts can read.

use super::RunState;
use std::time::Duration;
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
    let values = [
        ("elapsed_ns", elapsed_ns),
        ("gpu_busy_ns", busy),
        ("gpu_time_ns", gpu_time as i64),
        ("gpu_busy_share", busy.saturating_mul(1000).checked_div(elapsed_ns).unwrap_or(0)),
        ("launches", launches.made as i64),
        ("joined", launches.joined as i64),
        ("failed", launches.failed as i64),
        ("lost", launches.lost as i64),
        ("kernels", kernels as i64),
        ("tracer_cost_ns", own_cpu_nanos()),
        ("stacks_taken", sum(|it| it.stacks)),
        ("kept_programs", state.stacks.n_programs() as i64),
    ];
    state.builtins.extend(values);
    // An estimate from a handful of samples means nothing.
    if sum(CollectorTotals::launches) >= LEAST_LAUNCHES {
        let inside = sum(|it| it.callback_nanos);
        let costs = [("collector_cost_ns", inside), ("own_cost_ns", inside.saturating_add(own_cpu_nanos()))];
        state.builtins.extend(costs);
    }
}

fn own_cpu_nanos() -> i64 {
    // SAFETY: a zeroed rusage is valid, and the call fills it or fails.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a rusage.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let nanos = |it: libc::timeval| it.tv_sec * 1_000_000_000 + it.tv_usec * 1000;
    nanos(usage.ru_utime) + nanos(usage.ru_stime)
}
