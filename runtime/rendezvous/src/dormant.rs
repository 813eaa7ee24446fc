//! Calls a collector that waits in a dormant process.

use super::network::Network;
use super::socket::{Received, connect_abstract, peer, readable, receive, send, seqpacket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};
use xputrace_boundary::read::of_linux;
use xputrace_wire::Answer;
use xputrace_wire::message::{ANSWER, CALL, COMING, Message, dormant_name};
use xputrace_wire::status::innermost_id;

/// How long a dormant collector may take to answer at all; a process that is stopped does not.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);
/// How long it may take to connect to us and to be armed.
const ARMED_WITHIN: Duration = Duration::from_secs(20);

/// Asks the dormant collector in a process to connect to the tracer at `address`; returns `None` if none answers. To be
/// called on a thread of its own, which may stay in the process's network namespace.
pub fn call_dormant(pid: u32, address: &str) -> Option<Answer> {
    let socket = connect(pid)?;
    hear(&socket, ANSWERS_WITHIN).filter(|it| it.kind == COMING)?;
    send(&socket, &Message::new(CALL, &[], address), &[]).ok()?;
    let answer = hear(&socket, ARMED_WITHIN).filter(|it| it.kind == ANSWER)?;
    Some(Answer::from_code(answer.words[0] as u32 as i32))
}

fn connect(pid: u32) -> Option<OwnedFd> {
    let process = format!("/proc/{pid}");
    let namespace = std::fs::metadata(format!("{process}/ns/pid")).ok()?.ino();
    let own_pid = innermost_id(&of_linux(format!("{process}/status")).ok()?)?;
    enter_network(pid)?;
    let socket = seqpacket().ok()?;
    connect_abstract(&socket, &dormant_name(namespace, own_pid)).ok()?;
    // Anybody can take a name.
    (peer(&socket)?.pid == pid).then_some(socket)
}

/// Moves the calling thread to the network namespace of a process, if it has another one.
fn enter_network(pid: u32) -> Option<()> {
    let theirs = Network::of_process(pid).ok()?;
    if theirs.id != Network::of_this_thread().ok()?.id {
        theirs.enter().ok()?;
    }
    Some(())
}

fn hear(socket: &OwnedFd, within: Duration) -> Option<Message> {
    let until = Instant::now() + within;
    loop {
        match receive(socket) {
            Received::Message(message, _) => return Some(message),
            Received::Closed => return None,
            Received::Nothing if Instant::now() >= until => return None,
            Received::Nothing => {
                _ = readable(&[socket.as_raw_fd()], Some(until.saturating_duration_since(Instant::now())))
            }
        }
    }
}
