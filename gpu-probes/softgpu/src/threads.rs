//! Threads of this library's own.

use crate::forks::say;

/// Starts a thread that blocks all signals; returns false if the system cannot create it.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> bool {
    // SAFETY: an all-zero signal set is valid memory for `sigfillset` to fill.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut old = all;
    // SAFETY: both sets are valid; a new thread inherits the mask of the one that starts it.
    unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
    }
    let started = std::thread::Builder::new().name(name.into()).spawn(body).is_ok();
    // SAFETY: `old` was written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut()) };
    if !started {
        say(format_args!("no thread for {name}: the system refused one"));
    }
    started
}
