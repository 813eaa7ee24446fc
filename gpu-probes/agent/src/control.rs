//! Our threads in the program.
//!
//! ```text
//! control:  flushes the backend's buffers; leaves when the run ends
//! listener: waits for DISARM or the tracer's end ─▶ wakes control ─▶ (last flush) ─▶ BYE
//! courier and worker: where kernels have twins (agent::device)
//! ```
//! The program may close any descriptor and reuse its number, so the listener moves the connection
//! to a descriptor table of its own.

use super::rendezvous::Received;
use super::threads::spawn;
use super::{Agent, Flushing, Order};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::thread::Thread;
use std::time::{Duration, Instant};
use xputrace_wire::api::Functions;
use xputrace_wire::device::CopyExtent;
use xputrace_wire::message::{DISARM, READ_DEVICE, RECORD, SWITCH, TWIN};

/// How often the listener checks whether there is still anything to listen for.
const LONGEST_LISTEN: Duration = Duration::from_secs(1);

/// Starts the two threads of an armed agent. The control thread does `after` when the run is over. Returns whether the
/// listener has its own descriptor table for the connection.
///
/// # Errors
/// The system cannot create a thread.
pub(crate) fn start(agent: &'static Agent, after: fn()) -> io::Result<bool> {
    let (says, hears) = sync_channel(1);
    spawn_guarded(agent, move || {
        let _ = says.send(agent.socket.keep_to_this_thread());
        agent.start_courier();
        listen(agent);
    })?;
    let keeps_socket = hears.recv().unwrap_or(false);
    agent.start_worker()?;
    let control = spawn_guarded(agent, move || run(agent, after))?;
    let _ = agent.life.control.set(control);
    Ok(keeps_socket)
}

fn spawn_guarded(agent: &'static Agent, run: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    spawn(move || agent.caught(run))
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
                agent.read_device(number, CopyExtent::of_word(extent));
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

fn run(agent: &'static Agent, after: fn()) {
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
        // The program goes on, and so does this thread.
        after();
    }
}
