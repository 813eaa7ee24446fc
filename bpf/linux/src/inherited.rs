//! What this process inherited, which a command started by it must get unchanged.
//!
//! It is recorded before `main`: Rust's start-up code ignores SIGPIPE and opens `/dev/null` in
//! place of closed standard descriptors, and the run then handles signals and raises limits.

use std::mem::{MaybeUninit, zeroed};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Signals that were ignored, one bit each: signal 1 is bit 0.
static IGNORED: AtomicU64 = AtomicU64::new(0);
/// Signals that were blocked, in the same form.
static BLOCKED: AtomicU64 = AtomicU64::new(0);
/// Standard descriptors that were closed, one bit each.
static CLOSED: AtomicU8 = AtomicU8::new(0);
static OPEN_FILES_SOFT: AtomicU64 = AtomicU64::new(0);
static OPEN_FILES_HARD: AtomicU64 = AtomicU64::new(0);

/// Signals of Linux: 1 to 64.
const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;
/// Signals that we must not change: the C library reserves two, and two cannot be changed.
const FIXED: [i32; 4] = [libc::SIGKILL, libc::SIGSTOP, 32, 33];

/// Runs before `main`, and before Rust's start-up code.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

extern "C" fn note() {
    let mut ignored = 0;
    for signal in SIGNALS.filter(|it| !FIXED.contains(it)) {
        // SAFETY: a zeroed sigaction is valid; the call fills it or fails.
        let mut action: libc::sigaction = unsafe { zeroed() };
        // SAFETY: only queries; the pointer is to a sigaction.
        let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
        if asked == 0 && action.sa_sigaction == libc::SIG_IGN {
            ignored |= bit(signal);
        }
    }
    IGNORED.store(ignored, Ordering::Relaxed);
    BLOCKED.store(blocked_now(), Ordering::Relaxed);
    // SAFETY: asks for the flags of a descriptor, which may be closed.
    let closed = (0..3).filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } < 0).fold(0, |all, fd| all | 1 << fd);
    CLOSED.store(closed, Ordering::Relaxed);
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to an rlimit.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    OPEN_FILES_SOFT.store(limit.rlim_cur, Ordering::Relaxed);
    OPEN_FILES_HARD.store(limit.rlim_max, Ordering::Relaxed);
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

fn blocked_now() -> u64 {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: only queries; the pointer is to a sigset, and a zeroed one is valid.
    let set = unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), set.as_mut_ptr());
        set.assume_init()
    };
    // SAFETY: the set is filled; unknown numbers are not members.
    SIGNALS.filter(|it| unsafe { libc::sigismember(&set, *it) } == 1).fold(0, |all, it| all | bit(it))
}

/// Whether a signal was ignored when this process was started.
pub fn was_ignored(signal: i32) -> bool {
    IGNORED.load(Ordering::Relaxed) & bit(signal) != 0
}

/// Whether a standard descriptor (0 to 2) was closed when this process was started. It is
/// `/dev/null` since.
pub fn was_closed(fd: i32) -> bool {
    CLOSED.load(Ordering::Relaxed) & 1 << fd != 0
}

/// Makes Linux keep our children's exit statuses even if the caller's SIGCHLD disposition discards
/// them.
pub(crate) fn hear_of_children() {
    if was_ignored(libc::SIGCHLD) {
        set(libc::SIGCHLD, libc::SIG_DFL);
    }
}

fn set(signal: i32, disposition: libc::sighandler_t) {
    // SAFETY: a zeroed sigaction is valid: no flags, no mask.
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = disposition;
    // SAFETY: the pointer is to a sigaction without a handler of ours.
    unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
}

/// Restores the recorded state in a forked child. Handlers need nothing, because `exec` removes
/// them. Allocates nothing and takes no lock.
pub(crate) fn restore() {
    for signal in SIGNALS.filter(|it| !FIXED.contains(it)) {
        match was_ignored(signal) {
            true => set(signal, libc::SIG_IGN),
            // Rust ignores the first, and we may have changed the others.
            false if matches!(signal, libc::SIGPIPE | libc::SIGCHLD | libc::SIGXFSZ) => set(signal, libc::SIG_DFL),
            false => {}
        }
    }
    for fd in (0..3).filter(|fd| was_closed(*fd)) {
        // SAFETY: closes the `/dev/null` that Rust's start-up code opened, which the child does not
        // use.
        unsafe { libc::close(fd) };
    }
    let (soft, hard) = (OPEN_FILES_SOFT.load(Ordering::Relaxed), OPEN_FILES_HARD.load(Ordering::Relaxed));
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: the pointer is to an rlimit. A hard limit of 0 means that it is unknown.
    unsafe { (hard > 0).then(|| libc::setrlimit(libc::RLIMIT_NOFILE, &limit)) };
    block_only(BLOCKED.load(Ordering::Relaxed));
}

fn block_only(signals: u64) {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is emptied before it is read, and its members are signals.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in SIGNALS.filter(|it| signals & bit(*it) != 0) {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut());
    }
}

/// Blocks all signals in this thread until dropped.
pub(crate) struct BlockedSignals {
    before: u64,
}

impl BlockedSignals {
    pub(crate) fn all() -> Self {
        let before = blocked_now();
        block_only(u64::MAX);
        BlockedSignals { before }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        block_only(self.before);
    }
}
