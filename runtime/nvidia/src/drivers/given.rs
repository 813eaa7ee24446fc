//! What CUDA needs to load our collector, and what may prevent that in a process.

use super::INJECTION_VARIABLE;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use xputrace_linux::seen_from_here;
use xputrace_model::process_name::ProcessName;
use xputrace_wire::SOCKET_VARIABLE;

/// What the command's environment was given.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// The process that was given it; its children inherit it. `None` if running processes are attached to.
    pub command: Option<u32>,
    /// The collector's file.
    pub collector: PathBuf,
    /// The address of our socket.
    pub socket: String,
    /// The processes to attach to, if not all.
    pub name: Option<ProcessName>,
}

/// The result of examining a process.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// CUDA finds our collector there.
    Finds,
    /// It does not; the text says why.
    Hindered(String),
    /// CUDA is not asked to load it: we do, once CUDA runs.
    Attached,
    /// The process has ended.
    Ended,
}

impl Given {
    /// Whether the collector is brought into processes in which CUDA runs already.
    pub(super) fn attaches(&self) -> bool {
        self.command.is_none()
    }

    /// Examines whether anything prevents CUDA from loading our collector in a process.
    pub(super) fn look(&self, pid: u32) -> Look {
        if self.attaches() {
            return Look::Attached;
        }
        match self.hindrance(pid) {
            Ok(None) => Look::Finds,
            Ok(Some(why)) => Look::Hindered(why),
            Err(error) if has_ended(&error) => Look::Ended,
            Err(error) => Look::Hindered(format!("its environment cannot be read ({error})")),
        }
    }

    fn hindrance(&self, pid: u32) -> io::Result<Option<String>> {
        let environment = std::fs::read(format!("/proc/{pid}/environ"))?;
        let has_file = match std::fs::metadata(seen_from_here(pid, &self.collector)) {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        // An ended process appears to have an empty environment and no root directory, but its
        // program cannot be read either.
        std::fs::read_link(format!("/proc/{pid}/exe"))?;
        Ok(self.hindrance_in(&environment, has_file))
    }

    /// `environment` has the format of proc_pid_environ(5).
    fn hindrance_in(&self, environment: &[u8], has_file: bool) -> Option<String> {
        let variable = |name: &str| {
            let of_name = |it: &[u8]| it.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec);
            environment.split(|it| *it == 0).find_map(of_name).map(OsString::from_vec)
        };
        match variable(INJECTION_VARIABLE) {
            None => return Some(format!("its environment has no {INJECTION_VARIABLE}")),
            Some(other) if other != *self.collector.as_os_str() => {
                return Some(format!("its {INJECTION_VARIABLE} is {}", other.display()));
            }
            Some(_) => {}
        }
        match variable(SOCKET_VARIABLE) {
            Some(ours) if ours.as_bytes() == self.socket.as_bytes() => {}
            Some(_) => return Some("another xputrace, started inside, traces it".into()),
            None => return Some(format!("its environment has no {SOCKET_VARIABLE}")),
        }
        (!has_file).then(|| format!("{} does not exist in its root directory", self.collector.display()))
    }
}

/// Whether a file of `/proc/PID` could not be read because the process has ended
/// (proc_pid_environ(5)).
fn has_ended(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::tests::{COLLECTOR, given};
    use std::process::{Command, Stdio};

    #[test]
    fn what_keeps_cuda_from_loading_the_collector_is_named() {
        let injected = format!("A=b\0{INJECTION_VARIABLE}={COLLECTOR}\0{SOCKET_VARIABLE}=@xputrace-1:1000\0");
        let of = |environment: &str, has_file| given(1).hindrance_in(environment.as_bytes(), has_file);
        assert_eq!(of(&injected, true), None);
        for (environment, has_file, expected) in [
            ("A=b\0", true, "no CUDA_INJECTION64_PATH"),
            (injected.replace(COLLECTOR, "/opt/tool.so").as_str(), true, "is /opt/tool.so"),
            (injected.replace("trace-1:", "trace-2:").as_str(), true, "another xputrace"),
            (injected.split(SOCKET_VARIABLE).next().unwrap(), true, "no XPUTRACE_SOCKET"),
            (&injected, false, "does not exist in its root directory"),
        ] {
            let said = of(environment, has_file).unwrap_or_default();
            assert!(said.contains(expected), "{said}");
        }
    }

    #[test]
    fn a_process_that_has_ended_is_not_taken_for_one_without_an_environment() {
        let mut child = Command::new("cat").env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // The answer shows that it runs.
        let mut echo = [0];
        io::Write::write_all(child.stdin.as_mut().unwrap(), b"x").unwrap();
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut echo).unwrap();
        let expected = Look::Hindered(format!("its environment has no {INJECTION_VARIABLE}"));
        assert_eq!(given(1).look(child.id()), expected);
        drop(child.stdin.take());
        // Its output closes shortly before it ends; it remains until it is reaped.
        io::Read::read_to_end(child.stdout.as_mut().unwrap(), &mut Vec::new()).unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        while !state().contains(") Z ") {}
        assert_eq!(given(1).look(child.id()), Look::Ended);
        child.wait().unwrap();
        assert_eq!(given(1).look(child.id()), Look::Ended);
    }
}
