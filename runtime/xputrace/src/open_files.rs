//! How many files a run may have open: every handler and every link in the kernel is one, and
//! the usual limit of 1024 is less than a tracepoint with a wild card needs.

/// Raises this process's limit as far as it may go without rights. To be called after the command
/// was started, which keeps its own limit so.
pub fn raise() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills the structure, which lives through the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0 && limit.rlim_cur != limit.rlim_max {
        let most = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
        // SAFETY: the structure lives through the call. Where it is refused, the limit stays.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &most) };
    }
}
