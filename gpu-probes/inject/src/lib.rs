//! Makes a running process load a library and call a function of it.
//!
//! ```text
//! inspect ─▶ stop a thread ─▶ is its stack safe? ─▶ write the stub ─▶ set its registers ─▶ let it go
//!                 ▲                 │ no                                                     │
//!                 └─────────────────┘                             stub: pthread_create, back to where it was
//!                                                                 new thread: dlopen, call the function
//! ```
//!
//! ptrace holds one thread for as long as it takes to look at its stack and to set its registers
//! once. From then on the stub does everything, restoring the registers included: a tracer that is
//! killed at any moment leaves a program that goes on. The thread is only used to start another,
//! which alone waits for the dynamic linker. See [`stub`].
//!
//! Starting a thread takes locks of libc's allocator, threads and dynamic linker. A thread that may
//! hold one of them is let go, and another is tried. See [`safety`].

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod functions;
#[doc(hidden)]
pub mod fuzzing;
mod image;
mod process;
mod request;
mod safety;
mod seccomp;
mod stub;
mod thread;

use process::Process;
use safety::UnsafeCode;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::{Duration, Instant};
use stub::{Outcome, Stub};
use thread::{Blocked, Stopped};

pub use request::{InjectRefusal, Request};

/// How long to look for a thread that can be used.
const LOOK_WITHIN: Duration = Duration::from_millis(1500);
/// Pause after all threads were tried without success.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(1);
/// How long the library may take to load and its function to return.
const DONE_WITHIN: Duration = Duration::from_secs(20);

/// Looks whether a library could be loaded into a process, without touching it.
///
/// # Errors
/// What prevents it.
pub fn examine(pid: u32) -> Result<(), InjectRefusal> {
    Process::inspect(pid).map(drop)
}

/// Makes the process load a library and call its function; returns the function's answer.
///
/// # Errors
/// The process can't be made to, and why.
pub fn inject(pid: u32, request: &Request) -> Result<i32, InjectRefusal> {
    // ptrace holds threads for one thread of ours, and lets go of all of them when that ends.
    let attempt = || {
        let _alone = alone(pid)?;
        let process = Process::inspect(pid)?;
        let stub = Stub::new(&process, request)?;
        let thread = start(&process, &stub)?;
        wait_for(&process, &stub, thread)
    };
    std::thread::scope(|scope| scope.spawn(attempt).join())
        .unwrap_or_else(|_| Err(InjectRefusal::new("xputrace failed; this is a bug in it")))
}

/// Waits until no other tracer is loading something into the process; ends with what is returned, or with us.
fn alone(pid: u32) -> Result<UnixListener, InjectRefusal> {
    let name = SocketAddr::from_abstract_name(format!("xputrace-loads-into-{pid}"))
        .map_err(|it| InjectRefusal::new(it.to_string()))?;
    let until = Instant::now() + LOOK_WITHIN;
    loop {
        match UnixListener::bind_addr(&name) {
            Ok(held) => return Ok(held),
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                return Err(InjectRefusal::new(format!("cannot keep other tracers from attaching meanwhile: {error}")));
            }
            Err(_) if Instant::now() >= until => return Err(InjectRefusal::new("another xputrace is attaching to it")),
            Err(_) => std::thread::sleep(LOOK_AGAIN_AFTER),
        }
    }
}

/// Sends a thread through the stub; returns its id.
fn start(process: &Process, stub: &Stub) -> Result<u32, InjectRefusal> {
    let began = Instant::now();
    let unsafe_code = UnsafeCode::of(process);
    let mut hindrance = String::from("none of them stops");
    loop {
        for tid in process.threads()? {
            // If we are killed while we hold a thread, some calls fail. Threads in such a call are the last resort.
            let spares_calls = began.elapsed() < LOOK_WITHIN / 2;
            if spares_calls && Blocked::of(process.pid, tid).is_some_and(|it| it.fails_on_stops()) {
                continue;
            }
            match send_through(stub, process, &unsafe_code, tid)? {
                Sending::Sent => return Ok(tid),
                Sending::Hindered(why) => hindrance = format!("thread {tid} {why}"),
                Sending::Gone => {}
            }
        }
        if began.elapsed() >= LOOK_WITHIN {
            let millis = LOOK_WITHIN.as_millis();
            return Err(InjectRefusal::new(format!(
                "none of its threads could be used within {millis} ms: {hindrance}"
            )));
        }
        std::thread::sleep(LOOK_AGAIN_AFTER);
    }
}

/// The result of an attempt to send a thread through the stub.
enum Sending {
    Sent,
    /// Why it can't be used now. It goes on as it was.
    Hindered(String),
    /// It has ended, or doesn't stop.
    Gone,
}

fn send_through(
    stub: &Stub,
    process: &Process,
    unsafe_code: &UnsafeCode<'_>,
    tid: u32,
) -> Result<Sending, InjectRefusal> {
    let Some(stopped) = Stopped::stop(process.pid, tid)? else { return Ok(Sending::Gone) };
    if let Some(why) = unsafe_code.hindrance(&stopped) {
        return Ok(Sending::Hindered(why));
    }
    refuse_deadly_filters(process, tid)?;
    stub.write(process, &stopped)?;
    let stack_pointer = stub::safe_stack_pointer(stopped.registers());
    stopped.send_to(stub.entry(), stack_pointer)?;
    Ok(Sending::Sent)
}

/// Refuses a thread that a seccomp filter of its own would kill.
fn refuse_deadly_filters(process: &Process, tid: u32) -> Result<(), InjectRefusal> {
    if !process.has_filters(tid) {
        return Ok(());
    }
    match seccomp::deadly_call(tid) {
        Ok(None) => Ok(()),
        Ok(Some(call)) => {
            Err(InjectRefusal::new(format!("its seccomp filter would kill it for calling {call}, which loading takes")))
        }
        Err(error) => Err(InjectRefusal::new(format!("its seccomp filter cannot be examined: {error}"))),
    }
}

fn wait_for(process: &Process, stub: &Stub, thread: u32) -> Result<i32, InjectRefusal> {
    let until = Instant::now() + DONE_WITHIN;
    loop {
        match stub.outcome(process) {
            Outcome::Pending if !process.exists() => return Err(InjectRefusal::new("it ended meanwhile")),
            Outcome::Pending if Instant::now() >= until => {
                let seconds = DONE_WITHIN.as_secs();
                return Err(InjectRefusal::new(format!("thread {thread} did not load the library within {seconds} s")));
            }
            Outcome::Pending => std::thread::sleep(Duration::from_micros(500)),
            Outcome::Failed(why) => return stub.clear(process).and(Err(InjectRefusal::new(why))),
            Outcome::Answered(answer) => return stub.clear(process).map(|()| answer),
        }
    }
}
