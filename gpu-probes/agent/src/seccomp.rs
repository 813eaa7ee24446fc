//! Whether a seccomp filter would end this process for what the collector does.
//!
//! A process cannot read its own filters. So a child makes the calls, with arguments that do no harm; it inherits the
//! filters, and notes each call before it makes it. It shares no memory with the program but that note, so nothing but
//! the child can come to harm. It has no exit signal, so the program doesn't notice it.

use std::ffi::OsStr;
use std::os::fd::AsRawFd;

use std::sync::atomic::{AtomicU32, Ordering};
use xputrace_wire::calls::{CALLS, DEVICE_CALLS, LOOKING_CALLS, PAGE_BYTES, SystemCall, offset_of};
use xputrace_wire::status::field;

/// `Seccomp:` in proc_pid_status(5) of a thread that has a filter.
const FILTERED: &str = "2";
/// Noted once all calls have returned, and once the child may also be waited for; before that, the number of the call that
/// is being made.
const ALL_MADE: u32 = u32::MAX - 1;
const MAY_WAIT: u32 = u32::MAX;

/// Returns which of these calls, or of those that finding out takes, would end this process, or may.
pub(crate) fn deadly_call(calls: &[SystemCall]) -> Option<&'static SystemCall> {
    if !is_filtered() {
        return None;
    }
    // Where not even a child can be made, threads may be forbidden too.
    let noted = make_calls_in_child(calls).unwrap_or(libc::SYS_clone as u32);
    CALLS.iter().chain(DEVICE_CALLS).chain(LOOKING_CALLS).find(|it| it.number == i64::from(noted))
}

/// Says which of these calls would end this process; `takes` is who makes it, as in "device handlers take".
pub fn refusal(calls: &[SystemCall], takes: &str) -> Option<String> {
    let call = deadly_call(calls)?;
    Some(format!("a seccomp filter would end the process for calling {}, which {takes}", call.name))
}

/// Whether the calling thread has a filter.
pub(crate) fn is_filtered() -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    field(&status, "Seccomp") == Some(FILTERED)
}

/// Tells the tracer about a call of [`CALLS`], as the module `calls` of `wire` describes.
pub(crate) fn tell(call: &SystemCall, collector: &OsStr) {
    let Some(index) = CALLS.iter().position(|it| it == call) else { return };
    let Ok(file) = std::fs::File::open(collector) else { return };
    let rights = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: a new mapping, which nothing reads and which is removed at once.
    unsafe {
        let offset = offset_of(index) as libc::off_t;
        let page =
            libc::mmap(std::ptr::null_mut(), PAGE_BYTES as usize, rights, libc::MAP_PRIVATE, file.as_raw_fd(), offset);
        if page != libc::MAP_FAILED {
            libc::munmap(page, PAGE_BYTES as usize);
        }
    }
}

/// Returns what the child noted last; `None` if there can be none.
fn make_calls_in_child(calls: &[SystemCall]) -> Option<u32> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new page of zeroes, which outlives the reference.
    unsafe {
        let page = libc::mmap(std::ptr::null_mut(), PAGE_BYTES as usize, rights, kind, -1, 0);
        if page == libc::MAP_FAILED {
            return None;
        }
        let note = &*page.cast::<AtomicU32>();
        // With CLONE_VFORK, the call returns once the child has ended. Without a stack, the child goes on here.
        let child = libc::syscall(libc::SYS_clone, libc::CLONE_VFORK, 0, 0, 0, 0);
        if child == 0 {
            make_calls(note, calls);
        }
        let noted = note.load(Ordering::Acquire);
        if child > 0 && noted == MAY_WAIT {
            libc::waitpid(child as libc::pid_t, std::ptr::null_mut(), libc::__WCLONE);
        }
        libc::munmap(page, PAGE_BYTES as usize);
        (child > 0).then_some(noted)
    }
}

/// Makes all calls, and ends this process.
///
/// # Safety
/// It is a child with memory of its own, apart from the note.
unsafe fn make_calls(note: &AtomicU32, calls: &[SystemCall]) -> ! {
    let all_signals = u64::MAX;
    let begin = |number: i64| note.store(number as u32, Ordering::Release);
    // SAFETY: the caller promises a child with its own memory; none of the calls has a valid pointer, but for the mask.
    unsafe {
        // A handler of the program's that a filter calls must not run here; a blocked SIGSYS ends the child.
        begin(libc::SYS_rt_sigprocmask);
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all_signals, 0, size_of::<u64>());
        // Its end is no crash to be kept.
        begin(libc::SYS_prctl);
        libc::syscall(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        for call in calls.iter().filter(|it| it.number != libc::SYS_exit) {
            begin(call.number);
            libc::syscall(call.number, call.argument, 0, 0, 0, 0, 0);
        }
        note.store(ALL_MADE, Ordering::Release);
        libc::syscall(libc::SYS_wait4, 0, 0, libc::WNOHANG, 0);
        note.store(MAY_WAIT, Ordering::Release);
        loop {
            libc::syscall(libc::SYS_exit, 0);
        }
    }
}

#[cfg(test)]
#[path = "../tests/suite/forbidding.rs"]
mod forbidding;

#[cfg(test)]
mod tests {
    use super::forbidding::forbid;
    use super::*;

    /// What is deadly in a thread with such a filter, of all runs' calls and of those with device handlers.
    fn deadly_where_forbidden(number: i64) -> [Option<&'static str>; 2] {
        let in_thread = move || {
            forbid(number);
            [CALLS, DEVICE_CALLS].map(|it| deadly_call(it).map(|call| call.name))
        };
        std::thread::spawn(in_thread).join().unwrap()
    }

    #[test]
    fn what_device_handlers_take_is_asked_of_their_runs_alone() {
        assert_eq!(deadly_where_forbidden(libc::SYS_memfd_create), [None, Some("memfd_create")]);
        assert_eq!(deadly_where_forbidden(libc::SYS_sendmsg), [None, Some("sendmsg")]);
        assert_eq!(deadly_where_forbidden(libc::SYS_connect), [Some("connect"), None]);
        assert_eq!(deadly_where_forbidden(libc::SYS_chroot), [None, None]);
    }
}
