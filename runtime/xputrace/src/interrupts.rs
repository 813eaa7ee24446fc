//! Signals that ask us to end: Ctrl-C and the like.
//!
//! The handler records a signal; the run decides what it means. A second signal before that, or
//! while the run is already ending because of one, quits at once. The same signal within 200 ms is no
//! second one: timeout(1), for example, signals the process and then its group.

use anyhow::{Context, Result};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use xputrace_linux::monotonic_nanos;

/// Signals that ask for the end, sent by the terminal (Ctrl-C, Ctrl-\, hangup) or by `kill`.
const SIGNALS: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
/// Two Ctrl-C within this time end the tracing of a command that handles Ctrl-C itself.
pub const TWICE: Duration = Duration::from_secs(1);

/// The same signal within this time is one request, sent twice.
const ONE_REQUEST_NANOS: u64 = 200_000_000;
/// What a second signal says before it ends the process.
const RESULTS_MISSING: &[u8] = b"xputrace: quit by a second signal; the results were not printed\n";

/// Signals recorded but not handled, in the order of `SIGNALS`; then those from a terminal.
static NOTED: [AtomicBool; 2 * SIGNALS.len()] = [const { AtomicBool::new(false) }; 2 * SIGNALS.len()];
/// Number of signals recorded but not handled.
static PENDING: AtomicU32 = AtomicU32::new(0);
/// Whether the run is ending because of a signal.
static ENDING: AtomicBool = AtomicBool::new(false);
/// Whether the results are out, so that nothing is missing if a second signal ends the process.
static PRINTED: AtomicBool = AtomicBool::new(false);
/// Time of the last request by each signal, in CLOCK_MONOTONIC nanoseconds; 0 if there was none.
static REQUESTED: [AtomicU64; SIGNALS.len()] = [const { AtomicU64::new(0) }; SIGNALS.len()];

/// A signal and its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupt {
    pub signal: libc::c_int,
    /// Whether the terminal sent it, and so to the command as well.
    pub is_from_terminal: bool,
}

extern "C" fn on_signal(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: Linux passes a siginfo that lives through the handler.
    let is_from_terminal = unsafe { (*info).si_code } == libc::SI_KERNEL;
    let is_shielded = is_from_terminal && xputrace_linux::was_ignored(signal);
    let Some(at) = SIGNALS.iter().position(|it| *it == signal).filter(|_| !is_shielded) else { return };
    // A terminal's are noted even so: its user may press Ctrl-C twice that fast.
    let is_repeated = is_repeated(at);
    if is_repeated && !is_from_terminal {
        return;
    }
    NOTED[at + if is_from_terminal { SIGNALS.len() } else { 0 }].store(true, Ordering::Release);
    let is_second = PENDING.fetch_add(1, Ordering::AcqRel) > 0 || ENDING.load(Ordering::Acquire);
    // A closing terminal sends a hangup after whatever came before.
    if is_second && !is_repeated && signal != libc::SIGHUP {
        quit(128 + signal);
    }
}

/// Whether the same signal asked a moment ago; if not, this is a request.
fn is_repeated(at: usize) -> bool {
    // clock_gettime(2), which is async-signal-safe.
    let now = monotonic_nanos();
    let last = REQUESTED[at].load(Ordering::Acquire);
    let is_repeated = last != 0 && now.saturating_sub(last) < ONE_REQUEST_NANOS;
    if !is_repeated {
        REQUESTED[at].store(now, Ordering::Release);
    }
    is_repeated
}

/// Ends the process from a signal handler.
fn quit(status: libc::c_int) -> ! {
    if !PRINTED.load(Ordering::Acquire) {
        // SAFETY: async-signal-safe, with a live text and its length.
        unsafe { libc::write(libc::STDERR_FILENO, RESULTS_MISSING.as_ptr().cast(), RESULTS_MISSING.len()) };
    }
    // SAFETY: async-signal-safe, and nothing of ours needs more than the end of the process.
    unsafe { libc::_exit(status) }
}

/// Whether a signal asks us to end; a stalled reader is then not waited for.
pub fn are_pending() -> bool {
    PENDING.load(Ordering::Acquire) > 0 || ENDING.load(Ordering::Acquire)
}

/// Whether signals wait for [`take`].
pub fn are_unhandled() -> bool {
    PENDING.load(Ordering::Acquire) > 0
}

/// Returns the signals since the last call.
pub fn take() -> Vec<Interrupt> {
    if PENDING.swap(0, Ordering::AcqRel) == 0 {
        return Vec::new();
    }
    let noted = NOTED.iter().enumerate().filter(|(_, it)| it.swap(false, Ordering::AcqRel));
    let interrupt = |(at, _): (usize, &AtomicBool)| Interrupt {
        signal: SIGNALS[at % SIGNALS.len()],
        is_from_terminal: at >= SIGNALS.len(),
    };
    noted.map(interrupt).collect()
}

/// Notes that the run is ending because of an interrupt: from now on another one quits at once.
pub fn begin_to_end() {
    ENDING.store(true, Ordering::Release);
}

/// Notes that the results are out.
pub fn results_are_printed() {
    PRINTED.store(true, Ordering::Release);
}

/// Leaves the terminal's signals to a command that handles Ctrl-C itself and is waited for after
/// tracing; other signals end us like any process.
pub fn leave_to_command() -> Result<()> {
    for signal in SIGNALS {
        let is_terminals = matches!(signal, libc::SIGINT | libc::SIGQUIT);
        set(signal, if is_terminals { libc::SIG_IGN } else { libc::SIG_DFL }, 0)?;
    }
    Ok(())
}

/// Records signals from now on instead of letting them end the process.
///
/// # Errors
/// The system refuses.
pub fn install() -> Result<()> {
    for signal in SIGNALS {
        // Under nohup a hangup is not an interrupt, neither for us nor for the command.
        if signal == libc::SIGHUP && xputrace_linux::was_ignored(signal) {
            continue;
        }
        set(signal, on_signal as *const () as libc::sighandler_t, libc::SA_SIGINFO)?;
    }
    // Ignore SIGXFSZ: exceeding the file size limit is an error of the write, which we report.
    set(libc::SIGXFSZ, libc::SIG_IGN, 0)?;
    Ok(())
}

fn set(signal: libc::c_int, handler: libc::sighandler_t, flags: libc::c_int) -> Result<()> {
    // SAFETY: a zeroed sigaction is valid: an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    // SAFETY: the handler only touches atomics and calls _exit.
    match unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()).context("cannot catch signals"),
    }
}
