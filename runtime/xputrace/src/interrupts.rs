//! Signals that ask us to end: Ctrl-C and its like.
//!
//! The handler takes note of a signal; the run takes it up and decides what it means. A second one
//! before that, or once the run is ending because of one, quits at once.

use anyhow::{Context, Result};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Signals that ask for the end, as those of the terminal (Ctrl-C, Ctrl-\, hangup) and of `kill`.
const SIGNALS: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
/// Two of Ctrl-C within this time end the tracing of a command that handles Ctrl-C itself.
pub const TWICE: Duration = Duration::from_secs(1);

/// Signals taken note of and not taken up, in the order of `SIGNALS`; behind them those of a terminal.
static NOTED: [AtomicBool; 2 * SIGNALS.len()] = [const { AtomicBool::new(false) }; 2 * SIGNALS.len()];
/// Signals taken note of and not taken up.
static PENDING: AtomicU32 = AtomicU32::new(0);
/// The run is ending because of one.
static ENDING: AtomicBool = AtomicBool::new(false);

/// A signal, and who it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupt {
    pub signal: libc::c_int,
    /// A terminal sends it to the command as well.
    pub is_from_terminal: bool,
}

extern "C" fn on_signal(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo that lives through the handler.
    let is_from_terminal = unsafe { (*info).si_code } == libc::SI_KERNEL;
    let is_shielded = is_from_terminal && xputrace_linux::was_ignored(signal);
    let Some(at) = SIGNALS.iter().position(|it| *it == signal).filter(|_| !is_shielded) else { return };
    NOTED[at + if is_from_terminal { SIGNALS.len() } else { 0 }].store(true, Ordering::Release);
    let is_second = PENDING.fetch_add(1, Ordering::AcqRel) > 0 || ENDING.load(Ordering::Acquire);
    // A terminal that closes sends a hangup behind whatever came before.
    if is_second && signal != libc::SIGHUP {
        // SAFETY: async-signal-safe, and nothing of ours needs more than the end of the process.
        unsafe { libc::_exit(128 + signal) };
    }
}

/// Whether someone wants us to end: a reader who does not read is not waited for then.
pub fn are_pending() -> bool {
    PENDING.load(Ordering::Acquire) > 0 || ENDING.load(Ordering::Acquire)
}

/// The signals since this was last asked.
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

/// The run is ending because of an interrupt: from here on another one quits at once.
pub fn begin_to_end() {
    ENDING.store(true, Ordering::Release);
}

/// The tracing is over and a command is waited for that handles Ctrl-C itself: the terminal's signals
/// are the command's alone, and those of others end us as they end any process.
pub fn leave_to_command() -> Result<()> {
    for signal in SIGNALS {
        let is_terminals = matches!(signal, libc::SIGINT | libc::SIGQUIT);
        set(signal, if is_terminals { libc::SIG_IGN } else { libc::SIG_DFL }, 0)?;
    }
    Ok(())
}

/// From here on signals are taken note of, and no longer end the process.
///
/// # Errors
/// The system refuses.
pub fn install() -> Result<()> {
    for signal in SIGNALS {
        // Under nohup a hangup is no interrupt, for the command neither.
        if signal == libc::SIGHUP && xputrace_linux::was_ignored(signal) {
            continue;
        }
        set(signal, on_signal as *const () as libc::sighandler_t, libc::SA_SIGINFO)?;
    }
    // A file that grows beyond its limit is an error of the write, which we tell.
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
