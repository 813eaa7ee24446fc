//! What live runs and replays share: interrupts, notes, built-in values, names in printed lines.

use crate::results::Results;
use anyhow::{Context, Result, anyhow};
use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use xputrace_model::diagnostic::Diagnostic;
use xputrace_model::loss::Account;
use xputrace_model::stack::StackKey;
use xputrace_tracer::CollectorTotals;

/// The status that `exit(code)` asks for; codes that a process cannot have become 255.
pub fn exit_status(code: i64) -> std::process::ExitCode {
    std::process::ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

/// A moment this far from now.
pub fn deadline(after: Duration) -> Instant {
    Instant::now().checked_add(after).unwrap_or_else(Instant::now)
}

/// Readable names of a mangled one.
pub fn demangle(symbol: &str) -> (String, String) {
    let names = xputrace_symbols::demangle(symbol);
    (names.name, names.short_name)
}

/// Ctrl-C and its like: the first ends the run, the second quits at once.
pub struct Interrupts(());

static INTERRUPTS: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_signal(signal: libc::c_int) {
    if INTERRUPTS.fetch_add(1, Ordering::Relaxed) > 0 && signal == libc::SIGINT {
        // SAFETY: async-signal-safe, and nothing of ours needs more than the end of the process.
        unsafe { libc::_exit(130) };
    }
}

impl Interrupts {
    pub fn install() -> Result<Self> {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
            // SAFETY: the handler only touches an atomic and calls _exit.
            let before = unsafe { libc::signal(signal, on_signal as *const () as libc::sighandler_t) };
            if before == libc::SIG_ERR {
                return Err(std::io::Error::last_os_error()).context("catching signals");
            }
        }
        Ok(Interrupts(()))
    }

    /// How many there were.
    pub fn count(&self) -> u32 {
        INTERRUPTS.load(Ordering::Relaxed)
    }
}

/// Where the marker function lies in the collector's file.
pub fn marker_offset(collector: &Path) -> Result<u64> {
    let bytes = std::fs::read(collector).with_context(|| format!("reading {}", collector.display()))?;
    function_offset(&bytes, "xputrace_launch_marker")
        .ok_or_else(|| anyhow!("{} has no marker function", collector.display()))
}

/// Offset in the file of an exported function.
fn function_offset(elf: &[u8], name: &str) -> Option<u64> {
    use object::{Object, ObjectSection, ObjectSymbol};
    let file = object::File::parse(elf).ok()?;
    let symbol = file.dynamic_symbols().find(|it| it.name() == Ok(name))?;
    let section = file.section_by_index(symbol.section_index()?).ok()?;
    let (offset, _) = section.file_range()?;
    Some(symbol.address() - section.address() + offset)
}

/// What names this machine in a recording.
pub fn machine_name() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_string();
    let release = read("/proc/sys/kernel/osrelease");
    // What distributions append to the version says more of the machine than a recording should.
    let version = release.split('-').next().unwrap_or_default();
    format!("{} {version}", read("/proc/sys/kernel/ostype"))
}

/// CLOCK_MONOTONIC now, in nanoseconds.
pub fn monotonic_nanos() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec, which the call fills.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Notes for the user, and what the end of the run has to explain.
#[derive(Default)]
pub struct Report {
    quiet: bool,
    said: HashSet<String>,
    failures: HashSet<(u32, usize)>,
    tape_failed: bool,
    software_said: bool,
    pub connected: u64,
    pub refusals: Vec<String>,
    pub children: u64,
    pub unprobed_micros: u64,
}

impl Report {
    pub fn new(quiet: bool) -> Self {
        Report { quiet, ..Report::default() }
    }

    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Whether this is the first time that a software GPU was met.
    pub fn is_first_software(&mut self) -> bool {
        !std::mem::replace(&mut self.software_said, true)
    }

    /// Says a thing once, on standard error.
    pub fn note(&mut self, text: &str) {
        if !self.quiet && self.said.insert(text.to_string()) {
            eprintln!("xputrace: {text}");
        }
    }

    /// Whether a failure of an interpreted handler is the first of its kind at its place.
    pub fn is_new(&mut self, diagnostic: &Diagnostic) -> bool {
        self.failures.insert((diagnostic.primary.file.0, diagnostic.primary.span.start))
    }

    /// A tape that cannot be written is said once; the run goes on.
    pub fn tape_result(&mut self, result: Result<()>) {
        if let Err(error) = result
            && !std::mem::replace(&mut self.tape_failed, true)
        {
            eprintln!("xputrace: the recording is incomplete: {error:#}");
        }
    }

    pub fn print_end(&mut self) {
        if self.children > 0 {
            let text = format!(
                "{} child processes were followed; together they ran {} us before their uprobes were in place \
                 (none of it with `#{{scope: \"tree\"}}`)",
                self.children, self.unprobed_micros
            );
            self.note(&text);
        }
    }

    /// Why no kernel was seen, and what to do.
    pub fn silence(&mut self, account: &Account) -> Option<String> {
        Some(if !self.refusals.is_empty() {
            format!("no GPU events: {}", self.refusals.join("; "))
        } else if self.connected == 0 {
            "no GPU events: no process loaded the collector, which CUDA does at the first CUDA call. Either the \
             program made no CUDA call, or it removes CUDA_INJECTION64_PATH from its environment; `xputrace doctor` \
             checks the machine"
                .into()
        } else if account.launches == 0 {
            "no GPU events: CUDA was used, but no kernel was launched".into()
        } else if account.failed == account.launches {
            format!("no GPU events: all {} launches failed", account.launches)
        } else {
            return None;
        })
    }
}

/// Numbers of the run itself that scripts can read.
pub fn refresh_builtins(results: &mut Results, totals: &[CollectorTotals], elapsed: Duration) {
    let account = results.pipeline.account();
    let sum = |of: fn(&CollectorTotals) -> u64| totals.iter().map(of).sum::<u64>() as i64;
    let elapsed_ns = elapsed.as_nanos() as i64;
    let busy = results.pipeline.busy_nanos() as i64;
    let values = [
        ("elapsed_ns", elapsed_ns),
        ("gpu_busy_ns", busy),
        ("gpu_time_ns", account.kernel_nanos as i64),
        ("gpu_busy_share", busy.saturating_mul(1000).checked_div(elapsed_ns).unwrap_or(0)),
        ("launches", account.launches as i64),
        ("joined", account.joined as i64),
        ("failed", account.failed as i64),
        ("lost", account.lost as i64),
        ("kernels", account.kernels as i64),
        ("collector_cost_ns", sum(|it| it.callback_nanos)),
        ("tracer_cost_ns", own_cpu_nanos()),
        ("own_cost_ns", sum(|it| it.callback_nanos).saturating_add(own_cpu_nanos())),
    ];
    results.builtins.extend(values);
}

fn own_cpu_nanos() -> i64 {
    // SAFETY: a zeroed rusage is valid, and the call fills it or fails.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a rusage.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let nanos = |it: libc::timeval| it.tv_sec * 1_000_000_000 + it.tv_usec * 1000;
    nanos(usage.ru_utime) + nanos(usage.ru_stime)
}

/// A printed line in pieces: stacks are named when the engines are free.
pub enum PrintedPiece {
    Text(String),
    Stack(StackKey),
}

impl PrintedPiece {
    pub fn text(&self, results: &mut Results) -> String {
        match self {
            PrintedPiece::Text(text) => text.clone(),
            PrintedPiece::Stack(stack) => results.stack_lines(*stack),
        }
    }
}

/// Marks a stack inside a printed line: a character no script can print, then the stack's word.
const MARK: char = '\u{f8ff}';

/// What stands for a stack until it is named.
pub fn stack_placeholder(stack: StackKey) -> String {
    format!("{MARK}{:016x}", stack.to_word())
}

/// The pieces of a line that has stacks in it.
pub fn split_stacks(text: &str) -> Option<Vec<PrintedPiece>> {
    if !text.contains(MARK) {
        return None;
    }
    let mut parts = text.split(MARK);
    let mut pieces = vec![PrintedPiece::Text(parts.next().unwrap_or("").into())];
    for part in parts {
        match part.get(..16).and_then(|it| u64::from_str_radix(it, 16).ok()) {
            Some(word) => {
                pieces.push(PrintedPiece::Stack(StackKey::from_word(word)));
                pieces.push(PrintedPiece::Text(part[16..].into()));
            }
            None => pieces.push(PrintedPiece::Text(format!("{MARK}{part}"))),
        }
    }
    Some(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_in_lines_are_found_again() {
        let key = StackKey::Collector { process: 1, id: 7 };
        let line = format!("k took 3\n{} end", stack_placeholder(key));
        let pieces = split_stacks(&line).unwrap();
        assert!(matches!(pieces[1], PrintedPiece::Stack(it) if it == key));
        assert!(split_stacks("plain").is_none());
    }
}
