//! Ctrl-C and other signals that ask a run to end.
//!
//! | signal | the command handles it itself | otherwise |
//! |---|---|---|
//! | SIGINT from the terminal | tracing goes on; two within a second end the tracing, and the command is waited for | the run ends |
//! | SIGINT by `kill` | the run ends, the command keeps running | the same |
//! | SIGTERM, SIGHUP, SIGQUIT by `kill` | the command receives it too, the run ends | the same |
//! | those from the terminal | the command has received it, the run ends | the same |

use super::source::{EventSource, Progress};
use crate::interrupts::{self, Interrupt};
use crate::run::running::Running;
use anyhow::Result;
use std::time::Instant;
use xputrace_linux::StoppedChild;
use xputrace_wire::status::field;

/// Printed at the first Ctrl-C that a command handles itself.
const GOES_ON: &str = "the command handles Ctrl-C itself, so tracing goes on; press it twice within a second to end the \
                       tracing";

/// The source of requests to end the run.
#[derive(Debug, Default)]
pub struct Keyboard {
    /// The command's process, until its end is known.
    command: Option<u32>,
    last: Option<Instant>,
    /// What ended the run.
    ended_by: Option<EndedBy>,
}

/// How a run was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    /// Ctrl-C, or a signal with this number.
    Signal(libc::c_int),
    /// Ctrl-C twice; the command keeps running in the terminal.
    TracingAlone,
}

impl Keyboard {
    /// Creates the source. Without a command, every signal ends the run.
    pub fn new(command: Option<&StoppedChild>) -> Self {
        Keyboard { command: command.map(StoppedChild::pid), ..Keyboard::default() }
    }

    /// Forgets the command after its end: its id may be reused.
    pub fn forget_command(&mut self) {
        self.command = None;
    }

    /// Returns the signal that ended the run, if one did.
    pub fn ended_by(&self) -> Option<EndedBy> {
        self.ended_by
    }

    fn hear(&mut self, interrupt: Interrupt, running: &mut Running) -> Progress {
        let is_commands = interrupt == Interrupt { signal: libc::SIGINT, is_from_terminal: true }
            && self.command.is_some_and(|it| catches(it, libc::SIGINT));
        let ended_by = match is_commands {
            false => EndedBy::Signal(interrupt.signal),
            true if self.last.replace(Instant::now()).is_some_and(|it| it.elapsed() < interrupts::TWICE) => {
                EndedBy::TracingAlone
            }
            true => {
                running.report().note(GOES_ON);
                return Progress::Idle;
            }
        };
        if !interrupt.is_from_terminal && interrupt.signal != libc::SIGINT {
            self.pass_on(interrupt.signal);
        }
        self.ended_by = Some(ended_by);
        interrupts::begin_to_end();
        Progress::Stop
    }

    fn pass_on(&self, signal: libc::c_int) {
        if let Some(pid) = self.command {
            // SAFETY: takes no pointers; the command was not waited for, so the number is still its own.
            unsafe { libc::kill(pid as libc::pid_t, signal) };
        }
    }
}

impl EventSource for Keyboard {
    fn step(&mut self, running: &mut Running) -> Result<Progress> {
        let heard = interrupts::take().into_iter().map(|it| self.hear(it, running));
        Ok(heard.max().unwrap_or(Progress::Idle))
    }
}

/// Whether a process handles a signal itself: `SigCgt` in proc_pid_status(5), where signal 1 is bit
/// 0.
fn catches(pid: u32, signal: libc::c_int) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = field(&status, "SigCgt");
    caught.and_then(|it| u64::from_str_radix(it, 16).ok()).is_some_and(|it| it & 1 << (signal - 1) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_handles_is_read_from_its_status() {
        let mut shell = std::process::Command::new("sh");
        let script = "trap : INT; echo ready; read line";
        shell.args(["-c", script]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        assert!(catches(child.id(), libc::SIGINT) && !catches(child.id(), libc::SIGTERM));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!catches(u32::MAX, libc::SIGINT));
    }
}
