//! xputrace as a CUDA program of its own: it makes a context, in which programs of a compiled object run that have no command.
//!
//! ```text
//! xputrace run x.bpf.o ── starts itself, as a command ──▶ opens the driver, makes a context, waits for the programs
//! ```
//! The collector comes into it as into any command, and does the rest.

use crate::programs::Turn;
use anyhow::{Context, Result};
use std::ffi::{OsStr, OsString, c_int, c_void};
use std::io;
use std::process::ExitCode;
use std::ptr::null_mut;
use xputrace_model::plan::Plan;
use xputrace_model::schema::Event;
use xputrace_wire::{INJECTION_VARIABLE, WAIT_FOR_PROGRAMS};

/// The first argument by which xputrace knows that it is such a process.
const ARGUMENT: &str = "--own-cuda-process";
/// The driver's library.
const DRIVER: &str = "libcuda.so.1";

/// Why it made no context, as its exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContextFailure {
    NoDriver = 11,
    NotStarted,
    NoDevice,
    NoContext,
    NoCollector,
}

impl ContextFailure {
    const ALL: [ContextFailure; 5] = [
        ContextFailure::NoDriver,
        ContextFailure::NotStarted,
        ContextFailure::NoDevice,
        ContextFailure::NoContext,
        ContextFailure::NoCollector,
    ];

    fn text(self) -> &'static str {
        match self {
            ContextFailure::NoDriver => "no GPU was found: libcuda.so.1 cannot be loaded",
            ContextFailure::NotStarted => "no GPU was found: cuInit failed",
            ContextFailure::NoDevice => "no GPU was found: CUDA has no device 0",
            ContextFailure::NoContext => "CUDA made no context on device 0",
            ContextFailure::NoCollector => "CUDA did not load xputrace's collector",
        }
    }
}

/// Returns the command that a run without a target gets, if it takes one: its programs are to run on a GPU, and all that it does
/// is to run them.
///
/// # Errors
/// The system does not say where xputrace is.
pub fn command(plan: &Plan) -> Result<Option<Vec<OsString>>> {
    let is_all = plan.probes.iter().all(|it| it.event == Event::Begin);
    if !is_all || Turn::with_a_command(plan) != Turn::Awaited {
        return Ok(None);
    }
    let own = own().context("finding xputrace's own file, to start it as a CUDA program")?;
    Ok(Some(own.into()))
}

fn own() -> io::Result<[OsString; 2]> {
    Ok([std::env::current_exe()?.into_os_string(), ARGUMENT.into()])
}

/// Whether a command is such a process, and not another program that has such an argument.
pub fn is_own(command: &[OsString]) -> bool {
    own().is_ok_and(|own| own == command)
}

/// Says why such a process has made no context, by its exit status; `None` if it has.
pub fn failure(status: i32) -> Option<&'static str> {
    ContextFailure::ALL.into_iter().find(|it| *it as i32 == status).map(ContextFailure::text)
}

/// Whether xputrace was started as such a process.
pub fn is_asked(arguments: &[OsString]) -> bool {
    matches!(arguments, [_, argument] if argument == ARGUMENT)
}

/// Makes a context, and waits until the programs have ended that the tracer has for it.
pub fn run() -> ExitCode {
    match make_context().and_then(|()| wait_for_programs()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(failure as u8),
    }
}

/// Makes the first GPU's context current.
fn make_context() -> Result<(), ContextFailure> {
    // SAFETY: loading the driver's library runs its initializers, as in every CUDA program.
    let library = unsafe { libloading::Library::new(DRIVER) }.map_err(|_| ContextFailure::NoDriver)?;
    // It has threads.
    let library = std::mem::ManuallyDrop::new(library);
    let (mut device, mut context): (c_int, *mut c_void) = (0, null_mut());
    // SAFETY: the types are those of cuda.h; pointers to what lives here.
    unsafe {
        let init =
            library.get::<unsafe extern "C" fn(u32) -> c_int>(b"cuInit").map_err(|_| ContextFailure::NoDriver)?;
        let get = library.get::<unsafe extern "C" fn(*mut c_int, c_int) -> c_int>(b"cuDeviceGet");
        let retain = library.get::<unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int>(b"cuDevicePrimaryCtxRetain");
        let enter = library.get::<unsafe extern "C" fn(*mut c_void) -> c_int>(b"cuCtxSetCurrent");
        let (Ok(get), Ok(retain), Ok(enter)) = (get, retain, enter) else { return Err(ContextFailure::NoDriver) };
        let done = |answer: c_int, failure| if answer == 0 { Ok(()) } else { Err(failure) };
        done(init(0), ContextFailure::NotStarted)?;
        done(get(&mut device, 0), ContextFailure::NoDevice)?;
        done(retain(&mut context, device), ContextFailure::NoContext)?;
        done(enter(context), ContextFailure::NoContext)
    }
}

/// Calls the collector, which CUDA has loaded.
fn wait_for_programs() -> Result<(), ContextFailure> {
    use libloading::os::unix::{Library, RTLD_NOW};
    let path = std::env::var_os(INJECTION_VARIABLE).unwrap_or_default();
    // SAFETY: only finds what is loaded.
    let collector = unsafe { Library::open(Some(OsStr::new(&path)), RTLD_NOW | libc::RTLD_NOLOAD) };
    let collector = std::mem::ManuallyDrop::new(collector.map_err(|_| ContextFailure::NoCollector)?);
    // SAFETY: the collector's own function, of this version: the tracer has laid it down.
    let wait = unsafe { collector.get::<unsafe extern "C" fn()>(WAIT_FOR_PROGRAMS.as_bytes()) };
    let wait = wait.map_err(|_| ContextFailure::NoCollector)?;
    // SAFETY: it takes nothing.
    unsafe { wait() };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_a_status_that_says_it() {
        for failure in ContextFailure::ALL {
            assert_eq!(super::failure(failure as i32), Some(failure.text()));
        }
        assert_eq!((super::failure(0), super::failure(1), super::failure(125)), (None, None, None));
    }

    #[test]
    fn it_is_known_by_its_only_argument() {
        let of = |all: &[&str]| all.iter().map(OsString::from).collect::<Vec<_>>();
        assert!(is_asked(&of(&["xputrace", ARGUMENT])));
        for other in [&["xputrace"][..], &["xputrace", "run", ARGUMENT], &["xputrace", ARGUMENT, "x"]] {
            assert!(!is_asked(&of(other)), "{other:?}");
        }
    }
}
