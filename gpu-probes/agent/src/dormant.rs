//! Waiting for a tracer while this process is dormant.
//!
//! One thread is blocked on a listening socket whose name follows from the process id. A tracer that attaches tells it
//! its address, and the collector connects there as if the address had been in the environment. So this takes no
//! ptrace. The thread ends once the process is armed, and is back when the run is over.
//!
//! The socket is in the program's descriptor table, because the driver needs that table when the thread arms: with a
//! high number, closed by `exec`, and never used before it was compared with what was opened.

use crate::rendezvous::{DescriptorIdentity, Listener, Received, Socket};
use crate::seccomp;
use crate::threads::{name_thread, spawn};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Duration;
use xputrace_wire::Answer;
use xputrace_wire::message::{ANSWER, CALL, COMING, Message, dormant_name};

/// Name of the thread while it waits.
const THREAD_NAME: &str = "xputrace-idle";
/// How long a tracer may take to say its address.
const CALL_WITHIN: Duration = Duration::from_secs(1);
/// How often the socket is looked at though nobody comes.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Connects to the tracer at an address, and arms what it asks for.
pub(crate) type AnswerTracer = fn(&str) -> Answer;

/// Whether a thread waits.
static WAITS: AtomicBool = AtomicBool::new(false);
/// The listening socket, for a forked child: its number plus one, or 0; then its device and inode.
static NUMBER: AtomicI32 = AtomicI32::new(0);
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);

/// Starts a thread that waits, unless one does.
pub(crate) fn begin(answer_tracer: AnswerTracer) {
    if seccomp::is_filtered() {
        return;
    }
    let _ = spawn(move || wait(answer_tracer));
}

/// Waits on the calling thread, until this process is armed or cannot be waited in. The caller has registered
/// [`in_forked_child`].
pub(crate) fn wait(answer_tracer: AnswerTracer) {
    name_thread(THREAD_NAME);
    // Waiting needs system calls that nothing else here does.
    if seccomp::is_filtered() {
        return;
    }
    if WAITS.swap(true, Ordering::AcqRel) {
        return;
    }
    while let Some(listener) = listen() {
        let outcome = answer_callers(&listener, answer_tracer);
        NUMBER.store(0, Ordering::Release);
        listener.close();
        if outcome == Outcome::Armed {
            break;
        }
    }
    WAITS.store(false, Ordering::Release);
}

/// Runs first in a forked child, which has no such thread: the parent's socket must not outlive the parent.
pub(crate) fn in_forked_child() {
    let number = NUMBER.swap(0, Ordering::AcqRel) - 1;
    let identity = DescriptorIdentity::from_parts(DEVICE.load(Ordering::Relaxed), INODE.load(Ordering::Relaxed));
    if number >= 0 {
        identity.close_number(number);
    }
    WAITS.store(false, Ordering::Release);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Armed,
    /// The program has closed the socket.
    Lost,
}

fn listen() -> Option<Listener> {
    // "pid:[4026531836]"
    let link = std::fs::read_link("/proc/self/ns/pid").ok()?;
    let namespace = link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()?;
    let listener = Listener::bind(&dormant_name(namespace, std::process::id())).ok()?;
    let (device, inode) = listener.identity().parts();
    DEVICE.store(device, Ordering::Relaxed);
    INODE.store(inode, Ordering::Relaxed);
    NUMBER.store(listener.raw() + 1, Ordering::Release);
    listener.listen();
    Some(listener)
}

fn answer_callers(listener: &Listener, answer_tracer: AnswerTracer) -> Outcome {
    loop {
        match listener.accept(LONGEST_WAIT) {
            Ok(Some(caller)) => {
                let answer = answer(&caller, answer_tracer);
                caller.close();
                if answer == Some(Answer::Armed) {
                    return Outcome::Armed;
                }
            }
            Ok(None) => {}
            Err(_) => return Outcome::Lost,
        }
    }
}

/// Connects to the tracer that a caller names; returns `None` if the caller may not ask for it.
fn answer(caller: &Socket, answer_tracer: AnswerTracer) -> Option<Answer> {
    if !caller.is_of_root_or_this_user() {
        return None;
    }
    caller.send(&Message::new(COMING, &[], ""));
    let Received::Message(call, _) = caller.receive(CALL_WITHIN) else { return None };
    if call.kind != CALL {
        return None;
    }
    let answer = answer_tracer(&call.text);
    caller.send(&Message::new(ANSWER, &[answer.code() as u32 as u64], ""));
    Some(answer)
}
