//! The thread of ours in the program: flushes the backend's buffers, listens for the end.

use super::{Agent, Flushing};
use crate::rendezvous::Received;
use std::io;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use xputrace_wire::message::DISARM;
use xputrace_wire::region::Lost;

/// Name of the thread.
pub const THREAD_NAME: &str = "xputrace";

/// Starts the control thread of an armed agent.
///
/// # Errors
/// The system made no thread.
pub(crate) fn start(agent: &'static Agent) -> io::Result<()> {
    // The program's signals are for its own threads; a new thread inherits the mask.
    let before = block_signals();
    let thread = std::thread::Builder::new().name(THREAD_NAME.into()).stack_size(256 << 10).spawn(move || {
        let run = AssertUnwindSafe(|| run(agent));
        if catch_unwind(run).is_err() && agent.is_ours() {
            agent.memory.region.count_lost(Lost::Panics, 1);
        }
    });
    restore_signals(&before);
    thread.map(drop)
}

fn run(agent: &'static Agent) {
    let mut was_armed = false;
    let mut next = Instant::now() + agent.flush_period;
    while agent.is_recording() {
        let wait = next.saturating_duration_since(Instant::now());
        match agent.socket.receive(wait) {
            Received::Message(message, _) if message.kind == DISARM => break,
            Received::Message(..) => agent.count_unexpected(),
            Received::Closed => {
                agent.life.tracer_gone.store(true, Ordering::Relaxed);
                break;
            }
            Received::Nothing => {}
        }
        // The tracer may also just clear the flag in the control page.
        let armed = agent.memory.region.control().armed.load(Ordering::Relaxed) != 0;
        if was_armed && !armed {
            break;
        }
        was_armed = armed;
        if Instant::now() >= next && agent.is_recording() {
            agent.flush(Flushing::Regular);
            next = Instant::now() + agent.flush_period.max(Duration::from_millis(1));
        }
    }
    agent.leave();
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
