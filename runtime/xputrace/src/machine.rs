//! This machine as the compiler sees it, and `xputrace list`.

use anyhow::{Result, anyhow};
use std::process::ExitCode;
use xputrace_kernel::LiveCatalog;

/// Tracepoints, namespaces and structure offsets of the running kernel.
pub fn catalog() -> LiveCatalog {
    LiveCatalog::new()
}

/// `xputrace list PATTERN`: what can be probed here, a line each.
pub fn list(pattern: Option<&str>) -> Result<ExitCode> {
    let pattern = pattern.unwrap_or("tracepoint:*:*");
    let found = xputrace_kernel::list(pattern).map_err(|e| anyhow!(e))?;
    if found.is_empty() {
        return Err(anyhow!("nothing here matches `{pattern}`"));
    }
    let mut out = std::io::stdout().lock();
    for name in found {
        use std::io::Write;
        writeln!(out, "{name}")?;
    }
    Ok(ExitCode::SUCCESS)
}
