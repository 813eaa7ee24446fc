//! A thread that ptrace holds.

use crate::process::{denied, thread_has_ended, tracer_of};
use crate::request::InjectRefusal;
use std::io;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// How long a thread may take to stop.
const STOP_WITHIN: Duration = Duration::from_millis(300);

/// A stopped thread. Dropping it lets it go on as if it had never been stopped.
#[derive(Debug)]
pub(crate) struct Stopped {
    pid: u32,
    tid: u32,
    registers: libc::user_regs_struct,
    /// As Linux set them at the stop.
    original: libc::user_regs_struct,
    is_held: bool,
}

impl Stopped {
    /// Stops a thread; returns `None` if it has ended, or does not stop.
    ///
    /// # Errors
    /// Linux does not let us.
    pub(crate) fn stop(pid: u32, tid: u32) -> Result<Option<Self>, InjectRefusal> {
        // What prevents it may be gone by the time it is looked at.
        let held = seize(pid, tid).or_else(|_| seize(pid, tid));
        if !held.map_err(|it| denied(pid, "stop it by ptrace", &it))? {
            return Ok(None);
        }
        // SAFETY: zeroes are registers.
        let none: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        let mut stopped = Stopped { pid, tid, registers: none, original: none, is_held: false };
        if !stopped.interrupt() {
            return Ok(None);
        }
        stopped.is_held = true;
        stopped.read_registers()?;
        Ok(Some(stopped))
    }

    /// Returns the registers with which it will go on.
    pub(crate) fn registers(&self) -> &libc::user_regs_struct {
        &self.registers
    }

    /// Returns the thread's critical section of rseq(2), if it is in one: the address of `rseq_cs`'s
    /// contents.
    pub(crate) fn restartable_section(&self) -> Option<u64> {
        /// Source: `include/uapi/linux/ptrace.h`.
        const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
        #[repr(C)]
        #[derive(Default)]
        struct Configuration {
            pointer: u64,
            size: u32,
            signature: u32,
            flags: u32,
            pad: u32,
        }
        let mut configuration = Configuration::default();
        let size = size_of_val(&configuration);
        // SAFETY: Linux fills at most `size` bytes.
        let n = unsafe {
            libc::ptrace(PTRACE_GET_RSEQ_CONFIGURATION, self.tid as libc::pid_t, size, &raw mut configuration)
        };
        (n > 0 && configuration.pointer != 0).then_some(configuration.pointer)
    }

    /// Lets it go on at another place.
    pub(crate) fn send_to(mut self, entry: u64, stack_pointer: u64) -> Result<(), InjectRefusal> {
        let mut registers = self.registers;
        registers.rip = entry;
        registers.rsp = stack_pointer;
        // No system call is to be restarted there.
        registers.orig_rax = u64::MAX;
        set_registers(self.tid, &registers).map_err(|it| denied(self.pid, "set a thread's registers", &it))?;
        self.is_held = false;
        // If this fails, the thread has ended.
        let _ = request(libc::PTRACE_DETACH, self.tid, 0, 0);
        Ok(())
    }

    /// Waits until it has stopped. Signals that arrive meanwhile are passed on.
    fn interrupt(&self) -> bool {
        /// `PTRACE_EVENT_STOP` in a status of waitpid(2).
        const EVENT_STOP: i32 = 128;
        if request(libc::PTRACE_INTERRUPT, self.tid, 0, 0).is_err() {
            return false;
        }
        let until = Instant::now() + STOP_WITHIN;
        loop {
            let mut status = 0;
            // SAFETY: a live integer.
            match unsafe { libc::waitpid(self.tid as libc::pid_t, &mut status, libc::__WALL | libc::WNOHANG) } {
                0 if Instant::now() < until => std::thread::sleep(Duration::from_micros(50)),
                // A thread that doesn't stop, as in an uninterruptible wait, can't be detached either; ptrace
                // lets it go when we end.
                0 => return false,
                n if n < 0 || !libc::WIFSTOPPED(status) => return false,
                _ if status >> 16 == EVENT_STOP => return true,
                _ => {
                    let signal = libc::WSTOPSIG(status);
                    let _ = request(libc::PTRACE_CONT, self.tid, 0, signal as u64);
                }
            }
        }
    }

    fn read_registers(&mut self) -> Result<(), InjectRefusal> {
        // SAFETY: a live structure of the size that Linux fills.
        let answer = unsafe {
            libc::ptrace(libc::PTRACE_GETREGS, self.tid as libc::pid_t, null_mut::<u8>(), &raw mut self.original)
        };
        if answer < 0 {
            return Err(denied(self.pid, "read a thread's registers", &io::Error::last_os_error()));
        }
        self.registers = resumed(&self.original);
        Ok(())
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if self.is_held {
            if self.registers.rip != self.original.rip && !is_restarted_by_linux(&self.original) {
                let _ = set_registers(self.tid, &self.registers);
            }
            let _ = request(libc::PTRACE_DETACH, self.tid, 0, 0);
        }
    }
}

/// Error codes by which a system call asks to be restarted (`include/linux/errno.h`).
const ERESTARTSYS: i64 = 512;
const ERESTARTNOHAND: i64 = 514;
const ERESTART_RESTARTBLOCK: i64 = 516;
/// The length of the instruction `syscall`.
const SYSCALL_LEN: u64 = 2;

/// Returns the registers with which a stopped thread goes on. If it was in a system call, that is
/// restarted, as Linux does it (`arch_do_signal_or_restart` in `arch/x86/kernel/signal.c`).
fn resumed(at_stop: &libc::user_regs_struct) -> libc::user_regs_struct {
    let mut registers = *at_stop;
    if let Some(number) = restarted(at_stop) {
        registers.rip -= SYSCALL_LEN;
        registers.rax = number;
    }
    registers.orig_rax = u64::MAX;
    registers
}

/// Returns the number of the system call that a stopped thread makes next, instead of the one in
/// which it was stopped.
fn restarted(at_stop: &libc::user_regs_struct) -> Option<u64> {
    if (at_stop.orig_rax as i64) < 0 {
        return None;
    }
    match -(at_stop.rax as i64) {
        ERESTARTSYS..=ERESTARTNOHAND => Some(at_stop.orig_rax),
        ERESTART_RESTARTBLOCK => Some(libc::SYS_restart_syscall as u64),
        it if it == i64::from(libc::EINTR) && fails_on_stops(at_stop.orig_rax) => Some(at_stop.orig_rax),
        _ => None,
    }
}

fn is_restarted_by_linux(at_stop: &libc::user_regs_struct) -> bool {
    -(at_stop.rax as i64) != i64::from(libc::EINTR)
}

/// A thread that is blocked in a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocked {
    call: u64,
    pub(crate) rsp: u64,
    pub(crate) rip: u64,
}

impl Blocked {
    /// Reads `/proc/PID/task/TID/syscall` (proc_pid_syscall(5)); `None` if the thread runs.
    pub(crate) fn of(pid: u32, tid: u32) -> Option<Self> {
        Blocked::parse(&std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?)
    }

    pub(crate) fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [call, .., rsp, rip] = words[..] else { return None };
        let address = |it: &str| u64::from_str_radix(it.strip_prefix("0x")?, 16).ok();
        Some(Blocked { call: call.parse::<i64>().ok()? as u64, rsp: address(rsp)?, rip: address(rip)? })
    }

    /// Whether the call fails if we are killed while we hold the thread.
    pub(crate) fn fails_on_stops(&self) -> bool {
        fails_on_stops(self.call)
    }
}

/// Whether a system call fails with EINTR if its thread is stopped, having done nothing: signal(7),
/// "Interruption of system calls and library functions by stop signals". Calls that read, write and
/// connect fail so only on sockets with `SO_RCVTIMEO` or `SO_SNDTIMEO`; which file it is isn't looked at.
fn fails_on_stops(number: u64) -> bool {
    let all = [
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_semop,
        libc::SYS_semtimedop,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_io_getevents,
        libc::SYS_io_uring_enter,
        libc::SYS_ppoll,
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_recvmmsg,
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_connect,
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_sendto,
        libc::SYS_sendmsg,
        libc::SYS_sendmmsg,
    ];
    all.contains(&(number as i64))
}

/// Begins to hold a thread; returns whether it is held now, and not about to be gone.
fn seize(pid: u32, tid: u32) -> io::Result<bool> {
    match request(libc::PTRACE_SEIZE, tid, 0, 0) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
        // To Linux, a thread that has ended and is not gone yet may not be stopped (`ptrace_attach` in
        // `kernel/ptrace.c`).
        Err(_) if thread_has_ended(pid, tid) => Ok(false),
        Err(error) => match tracer_of(pid, tid) {
            // It did not stop in time when it was tried before, as on a busy machine.
            Some(tracer) if tracer == own_tid() => Ok(true),
            // Another tracer, or our attempt before this one: Linux lets go of its threads only after its end is seen.
            Some(_) => Ok(false),
            None => Err(error),
        },
    }
}

fn own_tid() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::gettid() as u32 }
}

fn request(what: libc::c_uint, tid: u32, address: u64, data: u64) -> io::Result<()> {
    // SAFETY: these requests take numbers only.
    match unsafe { libc::ptrace(what, tid as libc::pid_t, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn set_registers(tid: u32, registers: &libc::user_regs_struct) -> io::Result<()> {
    // SAFETY: a live structure of the size that Linux reads.
    match unsafe { libc::ptrace(libc::PTRACE_SETREGS, tid as libc::pid_t, null_mut::<u8>(), &raw const *registers) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Blocked, Stopped};

    /// A thread that did not stop in time is tried again.
    #[test]
    fn a_thread_that_is_held_already_can_be_stopped() {
        let mut program = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = program.id();
        super::request(libc::PTRACE_SEIZE, pid, 0, 0).unwrap();
        assert!(matches!(Stopped::stop(pid, pid), Ok(Some(_))));
        // By another thread it is passed over.
        super::request(libc::PTRACE_SEIZE, pid, 0, 0).unwrap();
        let by_another = || assert!(matches!(Stopped::stop(pid, pid), Ok(None)));
        std::thread::scope(|scope| scope.spawn(by_another).join().unwrap());
        program.kill().unwrap();
        program.wait().unwrap();
    }

    #[test]
    fn a_thread_that_has_ended_is_passed_over() {
        let mut program = std::process::Command::new("true").spawn().unwrap();
        let status = || std::fs::read_to_string(format!("/proc/{}/status", program.id())).unwrap();
        while !status().contains("State:\tZ") {
            std::thread::yield_now();
        }
        assert!(matches!(Stopped::stop(program.id(), program.id()), Ok(None)));
        program.wait().unwrap();
        assert!(matches!(Stopped::stop(program.id(), program.id()), Ok(None)));
    }

    #[test]
    fn a_blocked_thread_says_in_which_call() {
        let line = "232 0x5 0x7f01 0x1 0x32 0x0 0x0 0x7ffe10 0x7f42\n";
        assert_eq!(Blocked::parse(line), Some(Blocked { call: 232, rsp: 0x7ffe10, rip: 0x7f42 }));
        assert!(Blocked::parse(line).unwrap().fails_on_stops());
        assert_eq!(Blocked::parse("running\n"), None);
        assert_eq!(Blocked::parse("-1 0x7ffe10 0x7f42\n").map(|it| it.rip), Some(0x7f42));
    }
}
