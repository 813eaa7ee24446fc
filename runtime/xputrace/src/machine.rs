//! This machine: as the compiler sees it, its clock and name, and `xputrace list`.

use crate::cli::Run;
use crate::console;
use anyhow::{Result, anyhow};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use xputrace_linux::{LiveCatalog, Scope};

/// This machine, and the files that a run would probe.
pub fn catalog(run: &Run) -> LiveCatalog {
    LiveCatalog::of(match run.command.first() {
        Some(program) => Scope::foretold(program),
        None if run.options.all_processes => Scope::System,
        None => Scope::Processes(run.options.pids.clone()),
    })
}

/// `xputrace list PATTERN`: what can be probed here, a line each.
pub fn list(pattern: Option<&str>) -> Result<ExitCode> {
    let pattern = pattern.unwrap_or("tracepoint:*:*");
    let found = xputrace_linux::list(pattern).map_err(|e| anyhow!(e))?;
    if found.is_empty() {
        return Err(anyhow!("nothing here matches `{pattern}`"));
    }
    console::print(found.iter().map(|it| format!("{it}\n")).collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}

/// What names this machine in a recording.
pub fn name() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_string();
    let release = read("/proc/sys/kernel/osrelease");
    // What distributions append to the version says more of the machine than a recording should.
    let version = release.split('-').next().unwrap_or_default();
    format!("{} {version}", read("/proc/sys/kernel/ostype"))
}

/// A moment this far from now; for times that no clock reaches, one that does not come.
pub fn deadline(after: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(100 * 365 * 86_400);
    let now = Instant::now();
    now.checked_add(after.min(FAR)).unwrap_or(now)
}
