//! Ctrl-C and its like: the first ends the run, a second one quits at once.

use anyhow::{Context, Result};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

static COUNT: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_signal(signal: libc::c_int) {
    // A terminal that closes sends a hangup behind whatever came before.
    if COUNT.fetch_add(1, Ordering::Relaxed) > 0 && signal != libc::SIGHUP {
        // SAFETY: async-signal-safe, and nothing of ours needs more than the end of the process.
        unsafe { libc::_exit(128 + signal) };
    }
}

/// How many there were since [`install`].
pub fn count() -> u32 {
    COUNT.load(Ordering::Relaxed)
}

/// From here on they are counted, and no longer end the process.
pub fn install() -> Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: the handler only touches an atomic and calls _exit.
        let before = unsafe { libc::signal(signal, on_signal as *const () as libc::sighandler_t) };
        if before == libc::SIG_ERR {
            return Err(io::Error::last_os_error()).context("cannot catch signals");
        }
        // Under nohup a hangup is no interrupt, for the command neither.
        if signal == libc::SIGHUP && before == libc::SIG_IGN {
            // SAFETY: sets back what was there.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    }
    Ok(())
}
