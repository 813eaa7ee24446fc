//! System calls as functions on owned descriptors; most of this crate's `unsafe` code.
//!
//! Nothing here makes decisions: each function makes a call and converts its answer to a `Result`.

use libbpf_rs::{AsRawLibbpf, Object, OpenObject};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use xputrace_bytecode::image::MapSpec;

/// Source: `include/uapi/linux/bpf.h`, `enum bpf_attach_type`.
const BPF_TRACE_ITER: u32 = 28;
const BPF_PERF_EVENT: u32 = 41;
const BPF_TRACE_UPROBE_MULTI: u32 = 48;
/// `BPF_F_UPROBE_MULTI_RETURN`: attach to the functions' returns.
const UPROBE_MULTI_RETURN: u32 = 1;
/// Linux's own error for what it doesn't support, as stepping over some instructions; it has no name in user space.
/// Source: `include/linux/errno.h`.
pub(crate) const ENOTSUPP: i32 = 524;

/// Converts the answer of a call that returns a descriptor or a negative errno.
fn owned(answer: i32) -> io::Result<OwnedFd> {
    if answer < 0 {
        return Err(io::Error::from_raw_os_error(-answer));
    }
    // SAFETY: the call has just created this descriptor; nothing else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(answer) })
}

fn done(answer: i32) -> io::Result<()> {
    if answer < 0 { Err(io::Error::from_raw_os_error(-answer)) } else { Ok(()) }
}

fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

/// Returns an upper bound of this machine's number of CPUs.
pub(crate) fn most_cpus() -> io::Result<usize> {
    /// In bits. Linux refuses a mask that is smaller than its own.
    const LARGEST: usize = 1 << 16;
    let mut mask = vec![0u64; LARGEST / 64];
    // SAFETY: pointer and length are of one buffer. The raw system call returns the size of Linux's
    // mask; the C library's function doesn't.
    let bytes = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(&*mask), mask.as_mut_ptr()) };
    match usize::try_from(bytes) {
        Ok(bytes) if bytes > 0 => Ok(bytes * 8),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Creates a map.
pub(crate) fn map_create(spec: &MapSpec) -> io::Result<OwnedFd> {
    let name = c_string(spec.name.as_bytes())?;
    let opts = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        map_flags: spec.flags,
        ..Default::default()
    };
    // SAFETY: name and options live through the call.
    owned(unsafe {
        libbpf_sys::bpf_map_create(
            spec.kind as u32,
            name.as_ptr(),
            spec.key_size,
            spec.value_size,
            spec.max_entries,
            &opts,
        )
    })
}

/// Reads an element into `value`, which must be as long as the map's value, rounded up and times
/// the CPUs if the map is per-CPU.
pub(crate) fn map_lookup(map: BorrowedFd<'_>, key: &[u8], value: &mut [u8]) -> io::Result<()> {
    // SAFETY: the caller, `map.rs`, has checked both lengths against the map's sizes.
    done(unsafe { libbpf_sys::bpf_map_lookup_elem(map.as_raw_fd(), key.as_ptr().cast(), value.as_mut_ptr().cast()) })
}

/// Stores an element; lengths as for [`map_lookup`].
pub(crate) fn map_update(map: BorrowedFd<'_>, key: &[u8], value: &[u8], flags: u64) -> io::Result<()> {
    // SAFETY: as in `map_lookup`.
    done(unsafe { libbpf_sys::bpf_map_update_elem(map.as_raw_fd(), key.as_ptr().cast(), value.as_ptr().cast(), flags) })
}

pub(crate) fn map_delete(map: BorrowedFd<'_>, key: &[u8]) -> io::Result<()> {
    // SAFETY: as in `map_lookup`.
    done(unsafe { libbpf_sys::bpf_map_delete_elem(map.as_raw_fd(), key.as_ptr().cast()) })
}

/// Writes the key after `key`, or the first one, to `next`.
pub(crate) fn map_next_key(map: BorrowedFd<'_>, key: Option<&[u8]>, next: &mut [u8]) -> io::Result<()> {
    let key = key.map_or(ptr::null(), <[u8]>::as_ptr);
    // SAFETY: as in `map_lookup`; a null key asks for the first.
    done(unsafe { libbpf_sys::bpf_map_get_next_key(map.as_raw_fd(), key.cast(), next.as_mut_ptr().cast()) })
}

/// Reads up to `count` elements after the position `from`, and writes the new position to `to`.
/// Returns how many were read, and whether those were the last. The error `ENOSPC` asks for a
/// larger buffer.
pub(crate) fn map_lookup_batch(
    map: BorrowedFd<'_>,
    from: Option<&mut [u8]>,
    to: &mut [u8],
    keys: &mut [u8],
    values: &mut [u8],
    count: u32,
) -> io::Result<(usize, bool)> {
    let mut count = count;
    let from = from.map_or(ptr::null_mut(), <[u8]>::as_mut_ptr);
    // SAFETY: the caller, `map.rs`, sizes `keys` and `values` for `count` elements and both
    // positions for the larger of a key and 4 bytes.
    let answer = unsafe {
        libbpf_sys::bpf_map_lookup_batch(
            map.as_raw_fd(),
            from.cast(),
            to.as_mut_ptr().cast(),
            keys.as_mut_ptr().cast(),
            values.as_mut_ptr().cast(),
            &mut count,
            ptr::null(),
        )
    };
    match -answer {
        libc::ENOENT => Ok((count as usize, true)),
        _ => done(answer).map(|()| (count as usize, false)),
    }
}

/// Loads the object. Unlike [`OpenObject::load`], preserves the errno.
pub(crate) fn load_object(object: OpenObject) -> io::Result<Object> {
    let pointer = object.as_libbpf_object();
    // SAFETY: the pointer is to an opened object, which `object` keeps alive.
    done(unsafe { libbpf_sys::bpf_object__load(pointer.as_ptr()) })?;
    // SAFETY: the object is loaded, and after `take_ptr` nothing else closes it.
    Ok(unsafe { Object::from_ptr(object.take_ptr()) })
}

/// Loads a program for [`run_program`]. Its map references must be patched.
pub(crate) fn load_syscall_program(name: &CStr, insns: &[[u8; 8]]) -> io::Result<OwnedFd> {
    /// Source: `enum bpf_prog_type`.
    const BPF_PROG_TYPE_SYSCALL: u32 = 31;
    /// `BPF_F_SLEEPABLE`, required for this type.
    const SLEEPABLE: u32 = 1 << 4;
    let opts = libbpf_sys::bpf_prog_load_opts { prog_flags: SLEEPABLE, ..load_options() };
    load_program(BPF_PROG_TYPE_SYSCALL, opts, name, insns)
}

/// Loads a program for [`link_raw_tracepoint`]. Its map references must be patched.
pub(crate) fn load_raw_tracepoint(name: &CStr, insns: &[[u8; 8]]) -> io::Result<OwnedFd> {
    /// Source: `enum bpf_prog_type`.
    const BPF_PROG_TYPE_RAW_TRACEPOINT: u32 = 17;
    load_program(BPF_PROG_TYPE_RAW_TRACEPOINT, load_options(), name, insns)
}

/// Loads a program for an iterator. Its map references must be patched. `iterator` is the BTF type
/// id of the iterator's function, such as `bpf_iter_task`.
pub(crate) fn load_iterator(name: &CStr, iterator: u32, insns: &[[u8; 8]]) -> io::Result<OwnedFd> {
    /// Source: `enum bpf_prog_type`.
    const BPF_PROG_TYPE_TRACING: u32 = 26;
    let opts = libbpf_sys::bpf_prog_load_opts {
        expected_attach_type: BPF_TRACE_ITER,
        attach_btf_id: iterator,
        ..load_options()
    };
    load_program(BPF_PROG_TYPE_TRACING, opts, name, insns)
}

/// Runs an iterator's program for every thread of a process, or for every thread if `None`. Only
/// visits threads in our pid namespace.
pub(crate) fn iterate_tasks(program: BorrowedFd<'_>, pid: Option<u32>) -> io::Result<()> {
    const NO_TARGET: i32 = 0;
    let mut tasks = libbpf_sys::bpf_iter_link_info::default();
    tasks.task.pid = pid.unwrap_or(0);
    let opts = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        iter_info: &mut tasks,
        iter_info_len: size_of_val(&tasks) as u32,
        ..Default::default()
    };
    // SAFETY: the options and what they point to live through the call.
    let link = owned(unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), NO_TARGET, BPF_TRACE_ITER, &opts) })?;
    // SAFETY: the call takes a number and returns a descriptor.
    let iterator = owned(unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) })?;
    // The program prints nothing; reading until the end visits all tasks.
    io::copy(&mut std::fs::File::from(iterator), &mut io::sink()).map(drop)
}

fn load_options() -> libbpf_sys::bpf_prog_load_opts {
    libbpf_sys::bpf_prog_load_opts { sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as _, ..Default::default() }
}

fn load_program(
    kind: u32,
    opts: libbpf_sys::bpf_prog_load_opts,
    name: &CStr,
    insns: &[[u8; 8]],
) -> io::Result<OwnedFd> {
    // SAFETY: `[u8; 8]` has the layout of `struct bpf_insn`, which libbpf passes on without looking
    // into it; name and options live through the call.
    owned(unsafe {
        libbpf_sys::bpf_prog_load(
            kind,
            name.as_ptr(),
            c"GPL".as_ptr(),
            insns.as_ptr().cast(),
            insns.len() as _,
            ptr::from_ref(&opts).cast_mut(),
        )
    })
}

/// Runs a program of type `syscall` on `ctx` now; returns the program's result.
pub(crate) fn run_program(program: BorrowedFd<'_>, ctx: &mut [u8]) -> io::Result<i32> {
    let mut opts = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        ctx_in: ctx.as_mut_ptr().cast(),
        ctx_size_in: u32::try_from(ctx.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        ..Default::default()
    };
    // SAFETY: Linux reads the context and writes it back, within its length.
    done(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut opts) })?;
    Ok(opts.retval as i32)
}

/// Returns how often Linux skipped the program, because a program was already running on that CPU.
pub(crate) fn prog_misses(program: BorrowedFd<'_>) -> io::Result<u64> {
    prog_info(program).map(|it| it.recursion_misses)
}

/// Returns how often the program ran while [`count_runs`] was in effect.
pub(crate) fn prog_runs(program: BorrowedFd<'_>) -> io::Result<u64> {
    prog_info(program).map(|it| it.run_cnt)
}

/// Makes Linux count the runs of each program until the descriptor is closed.
pub(crate) fn count_runs() -> io::Result<OwnedFd> {
    // SAFETY: the call takes a number and returns a descriptor.
    owned(unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) })
}

/// Returns for how many nanoseconds a perf event was enabled. Its read format must be the enabled
/// time alone.
pub(crate) fn time_enabled(event: &OwnedFd) -> io::Result<u64> {
    let mut words = [0u64; 2];
    // SAFETY: pointer and length are of one buffer.
    let n = unsafe { libc::read(event.as_raw_fd(), words.as_mut_ptr().cast(), size_of_val(&words)) };
    match usize::try_from(n) {
        Ok(n) if n == size_of_val(&words) => Ok(words[1]),
        _ => Err(io::Error::last_os_error()),
    }
}

fn prog_info(program: BorrowedFd<'_>) -> io::Result<libbpf_sys::bpf_prog_info> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut len = size_of_val(&info) as u32;
    // SAFETY: `len` is the size of the structure, whose pointers are all null.
    done(unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &mut info, &mut len) })?;
    Ok(info)
}

/// Returns the process that a uprobe link is bound to: 0 if the task that it was created for has
/// ended. Returns `None` before Linux 6.8, which does not tell
/// (`bpf_uprobe_multi_link_fill_link_info`).
pub(crate) fn uprobe_link_pid(link: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let mut info = libbpf_sys::bpf_link_info::default();
    let mut len = size_of_val(&info) as u32;
    // SAFETY: `len` is the size of the structure, whose pointers are all null.
    done(unsafe { libbpf_sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &mut info, &mut len) })?;
    // SAFETY: plain numbers; zero if Linux did not fill them.
    let (places, pid) = unsafe { (info.__bindgen_anon_1.uprobe_multi.count, info.__bindgen_anon_1.uprobe_multi.pid) };
    Ok(bound_to(places, pid))
}

/// Returns `None` if there are 0 places: every link has one, so Linux did not fill the answer.
fn bound_to(places: u32, pid: u32) -> Option<u32> {
    (places > 0).then_some(pid)
}

/// Places in one file for one program to be attached to.
pub(crate) struct UprobeMulti<'a> {
    pub(crate) path: &'a Path,
    /// File offsets, each with the cookie that its hits carry.
    pub(crate) offsets: &'a [u64],
    pub(crate) cookies: &'a [u64],
    /// For each, the file offset of the counter that Linux counts up while it is probed, or 0. None of them has one if this
    /// is empty.
    pub(crate) counters: &'a [u64],
    /// `None` means every process.
    pub(crate) pid: Option<u32>,
    pub(crate) at_return: bool,
}

pub(crate) fn link_uprobe_multi(program: BorrowedFd<'_>, places: &UprobeMulti<'_>) -> io::Result<OwnedFd> {
    const NO_TARGET: i32 = 0;
    assert_eq!(places.offsets.len(), places.cookies.len(), "a cookie for each place");
    assert!(places.counters.is_empty() || places.counters.len() == places.offsets.len(), "a counter for each place");
    let path = c_string(places.path.as_os_str().as_bytes())?;
    let mut opts = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        ..Default::default()
    };
    opts.__bindgen_anon_1.uprobe_multi = libbpf_sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_3 {
        path: path.as_ptr(),
        offsets: places.offsets.as_ptr(),
        cookies: places.cookies.as_ptr(),
        ref_ctr_offsets: if places.counters.is_empty() { ptr::null() } else { places.counters.as_ptr() },
        cnt: u32::try_from(places.offsets.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        flags: if places.at_return { UPROBE_MULTI_RETURN } else { 0 },
        pid: places.pid.unwrap_or(0),
        ..Default::default()
    };
    // SAFETY: path and arrays live through the call and have `cnt` elements.
    owned(unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), NO_TARGET, BPF_TRACE_UPROBE_MULTI, &opts) })
}

/// Runs the program at every occurrence of a perf event (a tracepoint or a timer).
pub(crate) fn link_perf_event(program: BorrowedFd<'_>, event: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let opts = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        ..Default::default()
    };
    // SAFETY: the options live through the call.
    owned(unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), event.as_raw_fd(), BPF_PERF_EVENT, &opts) })
}

/// Runs the program at every occurrence of a raw tracepoint, which passes the tracepoint's own
/// arguments.
pub(crate) fn link_raw_tracepoint(name: &CStr, program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the name lives through the call.
    owned(unsafe { libbpf_sys::bpf_raw_tracepoint_open(name.as_ptr(), program.as_raw_fd()) })
}

/// `pid` −1 means every process, `cpu` −1 every CPU.
pub(crate) fn perf_event_open(attr: &libbpf_sys::perf_event_attr, pid: i32, cpu: i32) -> io::Result<OwnedFd> {
    const NO_GROUP: i32 = -1;
    /// `PERF_FLAG_FD_CLOEXEC`.
    const CLOEXEC: u64 = 1 << 3;
    // SAFETY: `attr` is a whole structure whose `size` field says how long it is.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, ptr::from_ref(attr), pid, cpu, NO_GROUP, CLOEXEC) };
    match i32::try_from(fd) {
        Ok(fd) if fd >= 0 => owned(fd),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Closes descriptors that take long to close. A forked child, which keeps only these open, closes
/// them at its exit; the caller doesn't wait. If the fork fails, closing them blocks.
pub(crate) fn close_in_child(mut descriptors: Vec<OwnedFd>) {
    if descriptors.is_empty() {
        return;
    }
    descriptors.sort_by_key(AsRawFd::as_raw_fd);
    // SAFETY: the child only makes system calls on its own descriptors, and exits.
    if unsafe { libc::fork() } == 0 {
        let mut first: libc::c_uint = 0;
        for kept in &descriptors {
            let kept = kept.as_raw_fd() as libc::c_uint;
            if kept > first {
                // SAFETY: takes only descriptor numbers.
                unsafe { libc::syscall(libc::SYS_close_range, first, kept - 1, 0) };
            }
            first = kept + 1;
        }
        // SAFETY: takes only descriptor numbers. The child's exit closes the rest, in a session of
        // its own.
        unsafe {
            libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0);
            libc::setsid();
            libc::_exit(0);
        }
    }
}

/// Makes `event` write its records into the ring of `into`.
pub(crate) fn perf_redirect(event: BorrowedFd<'_>, into: BorrowedFd<'_>) -> io::Result<()> {
    /// `PERF_EVENT_IOC_SET_OUTPUT`, `_IO('$', 5)`.
    const SET_OUTPUT: libc::c_ulong = 0x2405;
    // SAFETY: both are descriptors of perf events, and the call takes no pointers.
    let answer = unsafe { libc::ioctl(event.as_raw_fd(), SET_OUTPUT as _, into.as_raw_fd()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Waits until one of the descriptors is readable, at most `timeout_millis`.
pub(crate) fn wait_readable(fds: &mut [libc::pollfd], timeout_millis: i32) -> io::Result<()> {
    // SAFETY: pointer and length are of one slice.
    let answer = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as _, timeout_millis) };
    match answer {
        -1 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
        _ => Ok(()),
    }
}

/// Returns a descriptor that becomes readable when the process has ended with all its threads.
///
/// # Errors
/// `ESRCH` if there is no such process.
pub fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    match i32::try_from(fd) {
        Ok(fd) if fd >= 0 => owned(fd),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the current CLOCK_MONOTONIC time in nanoseconds, the clock of all events.
pub fn monotonic_nanos() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a whole timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the page size in bytes.
pub(crate) fn page_size() -> usize {
    // SAFETY: takes no pointers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Pages of a ring shared with Linux; unmapped on drop.
#[derive(Debug)]
pub(crate) struct RingPages {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; `RingPages` only hands out raw
// pointers.
unsafe impl Send for RingPages {}

impl RingPages {
    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize, offset: usize, writable: bool) -> io::Result<RingPages> {
        let access = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: Linux chooses the address, so a new mapping touches no memory of ours.
        let base = unsafe {
            libc::mmap(ptr::null_mut(), len, access, libc::MAP_SHARED, fd.as_raw_fd(), offset as libc::off_t)
        };
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => Ok(RingPages { base, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the address of byte `at`.
    pub(crate) fn at(&self, at: usize) -> *mut u8 {
        assert!(at < self.len, "inside the mapping");
        // SAFETY: checked to be inside the mapping.
        unsafe { self.base.as_ptr().add(at) }
    }
}

impl Drop for RingPages {
    fn drop(&mut self) {
        // SAFETY: created by `mmap` with this length; nothing refers to it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_of_which_linux_says_nothing_is_not_one_of_an_ended_task() {
        assert_eq!(bound_to(0, 0), None, "before Linux 6.8");
        assert_eq!((bound_to(1, 0), bound_to(1, 7)), (Some(0), Some(7)));
    }
}
