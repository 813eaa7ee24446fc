//! Threads of ours in the program: they take no signals, and bear our name.

use std::io;
use std::mem::MaybeUninit;
use std::thread::Thread;
use xputrace_wire::COLLECTORS_THREAD;

/// Starts a thread of ours. A panic ends it, and nothing else.
///
/// # Errors
/// The system cannot create a thread.
pub(crate) fn spawn(run: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    spawn_with(256 << 10, run)
}

/// Starts a thread of ours with a stack of this size.
///
/// # Errors
/// The system cannot create a thread.
pub(crate) fn spawn_with(stack_bytes: usize, run: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    // The program's signals are for its own threads; a new thread inherits the mask.
    let before = block_signals();
    let thread = std::thread::Builder::new().name(COLLECTORS_THREAD.into()).stack_size(stack_bytes);
    let thread = thread.spawn(run);
    restore_signals(&before);
    thread.map(|it| it.thread().clone())
}

/// Renames the calling thread, as `/proc` shows it.
pub(crate) fn name_thread(name: &str) {
    let mut text = [0u8; 16];
    text.iter_mut().take(15).zip(name.bytes()).for_each(|(to, from)| *to = from);
    // SAFETY: a C string.
    unsafe { libc::prctl(libc::PR_SET_NAME, text.as_ptr()) };
}

fn block_signals() -> libc::sigset_t {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::zeroed());
    // SAFETY: the first call fills `all`; zeroes are an empty set.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: the mask that was in force.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}
