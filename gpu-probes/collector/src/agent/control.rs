//! Our threads in the program.
//!
//! ```text
//! control:  flushes the backend's buffers; leaves when the run ends
//! listener: waits for DISARM or the tracer's end ─▶ wakes control ─▶ (last flush) ─▶ BYE
//! courier and worker: where kernels have twins (agent::device)
//! ```
//! The program may close any descriptor and reuse its number, so the listener moves the connection
//! to a descriptor table of its own.

use super::{Agent, Flushing, Order};
use crate::dormant;
use crate::rendezvous::Received;
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::thread::Thread;
use std::time::{Duration, Instant};
use xputrace_wire::COLLECTORS_THREAD;
use xputrace_wire::cuda_calls::Functions;
use xputrace_wire::device::Extent;
use xputrace_wire::message::{DISARM, READ_DEVICE, RECORD, SWITCH, TWIN};

/// How often the listener checks whether there is still anything to listen for.
const LONGEST_LISTEN: Duration = Duration::from_secs(1);

/// Starts the two threads of an armed agent. Returns whether the listener has its own descriptor
/// table for the connection.
///
/// # Errors
/// The system cannot create a thread.
pub(crate) fn start(agent: &'static Agent) -> io::Result<bool> {
    let (says, hears) = sync_channel(1);
    spawn_guarded(agent, move || {
        let _ = says.send(agent.socket.keep_to_this_thread());
        agent.start_courier();
        listen(agent);
    })?;
    let keeps_socket = hears.recv().unwrap_or(false);
    agent.start_worker()?;
    let control = spawn_guarded(agent, move || run(agent))?;
    let _ = agent.life.control.set(control);
    Ok(keeps_socket)
}

fn spawn_guarded(agent: &'static Agent, run: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    spawn(move || agent.caught(run))
}

/// Starts a thread of ours. A panic ends it, and nothing else.
///
/// # Errors
/// The system cannot create a thread.
pub(crate) fn spawn(run: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    spawn_with(256 << 10, run)
}

/// Likewise, with a stack of this size.
///
/// # Errors
/// The system cannot create a thread.
pub(super) fn spawn_with(stack_bytes: usize, run: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    // The program's signals are for its own threads; a new thread inherits the mask.
    let before = block_signals();
    let thread = std::thread::Builder::new().name(COLLECTORS_THREAD.into()).stack_size(stack_bytes);
    let thread = thread.spawn(run);
    restore_signals(&before);
    thread.map(|it| it.thread().clone())
}

/// Listens to the tracer, and sends the final message. Never calls the backend: a driver needs the
/// program's descriptors, which this thread may no longer have.
fn listen(agent: &'static Agent) {
    while !agent.is_gone() {
        match agent.socket.receive(LONGEST_LISTEN) {
            Received::Message(message, _) if message.kind == DISARM => break,
            Received::Message(message, _) if message.kind == RECORD => {
                agent.record();
                agent.wake();
            }
            Received::Message(message, _) if message.kind == SWITCH => match Functions::of_text(&message.text) {
                Some(api) => {
                    agent.ask_for(Order { demand: message.words[0], api });
                    agent.wake();
                }
                None => _ = agent.guarded(|| agent.count_unexpected()),
            },
            Received::Message(message, memory) if message.kind == TWIN => agent.take_twin(&message, &memory),
            Received::Message(message, _) if message.kind == READ_DEVICE => {
                let [number, extent, ..] = message.words;
                agent.read_device(number, Extent::of_word(extent));
            }
            Received::Message(..) => _ = agent.guarded(|| agent.count_unexpected()),
            Received::Closed => {
                agent.life.tracer_gone.store(true, Ordering::Relaxed);
                break;
            }
            Received::Nothing => {}
        }
    }
    agent.disarm();
    // The connection ends with this thread, but not before the last flush.
    while !agent.is_gone() {
        std::thread::sleep(Duration::from_micros(500));
    }
    agent.end_connection();
}

fn run(agent: &'static Agent) {
    let mut was_armed = false;
    let mut next = Instant::now() + agent.flush_period;
    agent.tell_gpus();
    while agent.is_recording() && !agent.life.disarmed.load(Ordering::Acquire) {
        std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
        // The tracer may also just clear the flag in the control page.
        let armed = agent.memory.region.control().armed.load(Ordering::Relaxed) != 0;
        if was_armed && !armed {
            break;
        }
        was_armed = armed;
        agent.settle_or_leave();
        agent.switch_or_leave();
        agent.backend.tend(agent);
        if Instant::now() >= next && agent.is_recording() {
            agent.flush(Flushing::Regular);
            agent.pause_if_idle();
            agent.narrow_if_idle();
            next = Instant::now() + agent.flush_period.max(Duration::from_millis(1));
        }
    }
    agent.leave();
    // Until then the listener uses what the agent holds.
    while !agent.has_said_bye() {
        std::thread::sleep(Duration::from_micros(500));
    }
    if !agent.is_exiting() {
        agent.give_back();
        // The program goes on, and so does this thread: until another tracer comes.
        name_thread(dormant::THREAD_NAME);
        dormant::wait();
    }
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
