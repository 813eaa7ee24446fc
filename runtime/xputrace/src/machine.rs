//! This machine: the compiler's view of it, its clock and name.

use crate::cli::{Options, Run};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use xputrace_boundary::read::of_linux;
use xputrace_linux::{LiveCatalog, Scope, monotonic_nanos};
use xputrace_script::Clocks;

/// Returns this machine's catalog, including the files that a run would probe.
pub fn catalog(run: &Run) -> LiveCatalog {
    LiveCatalog::of(match run.command.first() {
        Some(program) => Scope::foretold(program),
        // A script without a target may only be checked.
        None if run.options.pids.is_empty() && !run.options.all_processes => Scope::Processes(Vec::new()),
        None => running(&run.options),
    })
}

/// Returns the running processes that are traced: all if none is given.
pub fn running(options: &Options) -> Scope {
    match &options.name {
        Some(name) => Scope::Named(name.clone()),
        None if options.pids.is_empty() => Scope::System,
        None => Scope::Processes(options.pids.clone()),
    }
}

/// Returns this machine's name for recordings.
pub fn name() -> String {
    let read = |path: &str| of_linux(path).unwrap_or_default().trim().to_string();
    let release = read("/proc/sys/kernel/osrelease");
    // The distribution's version suffix says more about the machine than a recording should.
    let version = release.split('-').next().unwrap_or_default();
    format!("{} {version}", read("/proc/sys/kernel/ostype"))
}

/// Returns this machine's clocks as they are now.
pub fn clocks() -> Clocks {
    let (realtime, monotonic_ns) = (realtime_nanos(), monotonic_nanos() as i64);
    let zone = seconds_east(realtime / 1_000_000_000) * 1_000_000_000;
    Clocks { monotonic_ns, wall_ahead_ns: realtime - monotonic_ns + zone }
}

/// Returns CLOCK_REALTIME in nanoseconds since 1970.
pub fn realtime_nanos() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_nanos() as i64)
}

/// Returns what the machine's time zone is ahead of UTC at a time.
fn seconds_east(since_1970: i64) -> i64 {
    // SAFETY: a zeroed tm is valid, and the call fills it or fails.
    let mut local: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to values that live here.
    unsafe { libc::localtime_r(&since_1970, &mut local) };
    local.tm_gmtoff
}

/// Returns a moment this far from now; a distant one if the clock cannot express it.
pub fn deadline(after: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(100 * 365 * 86_400);
    let now = Instant::now();
    now.checked_add(after.min(FAR)).unwrap_or(now)
}
