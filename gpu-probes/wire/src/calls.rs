//! The system calls that a process makes when it loads the collector, connects and records. A seccomp filter may end a
//! process for any of them.
//!
//! A process that must not connect can still tell the tracer which call is to blame: it maps a page of the collector's
//! file, which takes no other call than loading it did. The page's offset is the call's, far beyond the end of the
//! file. Linux reports the mapping in its perf records.

/// A system call, with arguments that do no harm, apart from `exit`: descriptors are -1, and all but the first are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemCall {
    pub name: &'static str,
    pub number: i64,
    pub argument: u64,
}

const fn call(name: &'static str, number: libc::c_long, argument: u64) -> SystemCall {
    SystemCall { name, number, argument }
}

const NO_DESCRIPTOR: u64 = u64::MAX;
const HERE: u64 = libc::AT_FDCWD as u64;

/// Those of every run. glibc uses `clone` where `clone3` fails with ENOSYS.
pub const CALLS: &[SystemCall] = &[
    call("mmap", libc::SYS_mmap, 0),
    call("munmap", libc::SYS_munmap, 0),
    call("mprotect", libc::SYS_mprotect, 0),
    call("madvise", libc::SYS_madvise, 0),
    call("brk", libc::SYS_brk, 0),
    call("rt_sigaction", libc::SYS_rt_sigaction, 0),
    call("rt_sigprocmask", libc::SYS_rt_sigprocmask, libc::SIG_SETMASK as u64),
    call("sigaltstack", libc::SYS_sigaltstack, 0),
    call("gettid", libc::SYS_gettid, 0),
    call("getpid", libc::SYS_getpid, 0),
    call("getuid", libc::SYS_getuid, 0),
    call("membarrier", libc::SYS_membarrier, 0),
    call("prctl", libc::SYS_prctl, libc::PR_SET_NAME as u64),
    call("sched_yield", libc::SYS_sched_yield, 0),
    call("sched_getaffinity", libc::SYS_sched_getaffinity, 0),
    call("nanosleep", libc::SYS_nanosleep, 0),
    call("clock_nanosleep", libc::SYS_clock_nanosleep, libc::CLOCK_MONOTONIC as u64),
    call("futex", libc::SYS_futex, 0),
    call("exit", libc::SYS_exit, 0),
    call("set_robust_list", libc::SYS_set_robust_list, 0),
    call("rseq", libc::SYS_rseq, 0),
    call("openat", libc::SYS_openat, HERE),
    call("newfstatat", libc::SYS_newfstatat, HERE),
    call("statx", libc::SYS_statx, HERE),
    call("fstat", libc::SYS_fstat, NO_DESCRIPTOR),
    call("lseek", libc::SYS_lseek, NO_DESCRIPTOR),
    call("getcwd", libc::SYS_getcwd, 0),
    call("read", libc::SYS_read, NO_DESCRIPTOR),
    call("pread64", libc::SYS_pread64, NO_DESCRIPTOR),
    call("close", libc::SYS_close, NO_DESCRIPTOR),
    call("fcntl", libc::SYS_fcntl, NO_DESCRIPTOR),
    call("getrandom", libc::SYS_getrandom, 0),
    call("prlimit64", libc::SYS_prlimit64, 0),
    call("getrlimit", libc::SYS_getrlimit, libc::RLIMIT_NOFILE as u64),
    call("socket", libc::SYS_socket, libc::AF_UNIX as u64),
    call("connect", libc::SYS_connect, NO_DESCRIPTOR),
    call("getsockopt", libc::SYS_getsockopt, NO_DESCRIPTOR),
    call("setsockopt", libc::SYS_setsockopt, NO_DESCRIPTOR),
    call("sendto", libc::SYS_sendto, NO_DESCRIPTOR),
    call("recvmsg", libc::SYS_recvmsg, NO_DESCRIPTOR),
    call("shutdown", libc::SYS_shutdown, NO_DESCRIPTOR),
    call("poll", libc::SYS_poll, 0),
    call("close_range", libc::SYS_close_range, NO_DESCRIPTOR),
    call("clone3", libc::SYS_clone3, 0),
    call("clone", libc::SYS_clone, libc::CLONE_VM as u64 | libc::CLONE_THREAD as u64),
];

/// Those that a run with device handlers takes besides: it sends what the program loads. A process learns by its order
/// that it takes part in one, and can then answer that it must not.
pub const DEVICE_CALLS: &[SystemCall] = &[
    call("memfd_create", libc::SYS_memfd_create, 0),
    call("pwrite64", libc::SYS_pwrite64, NO_DESCRIPTOR),
    call("sendmsg", libc::SYS_sendmsg, NO_DESCRIPTOR),
];

/// What looking for a library takes, that which patches machine code or a libcupti that is not mapped: it reads directories.
pub const LOOKING_CALLS: &[SystemCall] = &[call("getdents64", libc::SYS_getdents64, NO_DESCRIPTOR)];

/// Offset in the collector's file of the page that stands for the first call.
const FIRST_OFFSET: u64 = 1 << 30;
/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;

/// Returns the offset of the page, of 4 KiB, that stands for a call of [`CALLS`].
pub fn offset_of(index: usize) -> u64 {
    FIRST_OFFSET + index as u64 * PAGE_BYTES
}

/// Returns the call that a page of the collector's file stands for.
pub fn at_offset(offset: u64) -> Option<&'static SystemCall> {
    CALLS.get(usize::try_from(offset.checked_sub(FIRST_OFFSET)? / PAGE_BYTES).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_has_a_page() {
        for (index, call) in CALLS.iter().enumerate() {
            assert_eq!(at_offset(offset_of(index)), Some(call));
        }
        for offset in [0, 0x1000, offset_of(CALLS.len()), u64::MAX] {
            assert_eq!(at_offset(offset), None, "{offset:#x}");
        }
    }
}
