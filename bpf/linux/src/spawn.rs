//! A command that waits before its `exec` until its probes are in place.
//!
//! ```text
//! spawn ── fork ──▶ child: sends its pid, waits ──resume──▶ exec CMD
//!                      ▲ its pid can be watched and probed while it waits
//! ```
//! A thread does the spawning, because `Command::spawn` returns only after the `exec`.

use crate::error::Error;
use crate::resolve::glob;
use crate::scope::{CommandScope, Scope};
use std::ffi::{OsStr, OsString};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread::JoinHandle;

/// The user that the command runs as, when it is not ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// A process that becomes the command when it is resumed. Dropped before that, it ends without
/// having run anything; dropped later, it is left alone.
#[derive(Debug)]
pub struct StoppedChild {
    pid: u32,
    name: String,
    scope: CommandScope,
    gate: Option<PipeWriter>,
    spawning: Option<JoinHandle<io::Result<Child>>>,
    child: Option<Child>,
}

impl StoppedChild {
    /// Forks. `command` is the program, found as a shell finds it, and its arguments; `env` is
    /// added to our environment (`None` takes a name out).
    ///
    /// # Errors
    /// There is no such program, it cannot be executed, or the system has no room for a process.
    pub fn spawn(
        command: &[OsString],
        env: &[(OsString, Option<OsString>)],
        identity: Option<&Identity>,
    ) -> Result<Self, Error> {
        let (program, arguments) = command.split_first().ok_or_else(|| Error::System {
            what: "start the command".into(),
            answer: io::Error::new(io::ErrorKind::InvalidInput, "it is empty"),
        })?;
        let name = program.to_string_lossy().into_owned();
        let failed = |answer| Error::System { what: format!("start {name}"), answer };
        check_program(program, env).map_err(|answer| Error::System { what: format!("run {name}"), answer })?;
        let scope = foretell(program, env);
        let (mut pid_reader, pid_writer) = io::pipe().map_err(failed)?;
        let (gate_reader, gate) = io::pipe().map_err(failed)?;
        let mut to_run = Command::new(program);
        to_run.args(arguments);
        for (key, value) in env {
            match value {
                Some(value) => to_run.env(key, value),
                None => to_run.env_remove(key),
            };
        }
        wait_before_exec(&mut to_run, pid_writer, gate_reader, gate.as_raw_fd(), identity.cloned());
        // The command, and with it our ends of the child's pipes, goes when the spawn is over.
        let spawning = std::thread::spawn(move || to_run.spawn());
        let mut pid = [0; 4];
        if let Err(error) = pid_reader.read_exact(&mut pid) {
            drop(gate);
            let answer = spawning.join().ok().and_then(Result::err).unwrap_or(error);
            return Err(failed(answer));
        }
        let pid = u32::from_ne_bytes(pid);
        let scope = CommandScope { pid, ..scope };
        Ok(StoppedChild { pid, name, scope, gate: Some(gate), spawning: Some(spawning), child: None })
    }

    /// Its process id, before and after the `exec`.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The scope of this command, with the executable that it will become: of a script, the
    /// interpreter that its first line names.
    pub fn scope(&self) -> Scope {
        Scope::Command(self.scope.clone())
    }

    /// Lets it run. The error says why it could not: no such program, no right to run it.
    pub fn resume(&mut self) -> Result<(), Error> {
        let failed = |answer| Error::System { what: format!("run {}", self.name), answer };
        if let Some(mut gate) = self.gate.take() {
            gate.write_all(&[1]).map_err(failed)?;
        }
        if let Some(spawning) = self.spawning.take() {
            let gone = |_| io::Error::other("the thread that starts it has ended");
            self.child = Some(spawning.join().map_err(gone).flatten().map_err(failed)?);
        }
        Ok(())
    }

    /// Waits for its end; resumes it first where that was not done.
    pub fn wait(&mut self) -> Result<ExitStatus, Error> {
        self.resume()?;
        let name = self.name.clone();
        self.running()?.wait().map_err(|answer| Error::System { what: format!("wait for {name}"), answer })
    }

    /// Its status when it has ended, `None` while it runs or waits.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, Error> {
        if self.child.is_none() && self.spawning.is_some() {
            return Ok(None);
        }
        let name = self.name.clone();
        self.running()?.try_wait().map_err(|answer| Error::System { what: format!("wait for {name}"), answer })
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) -> Result<(), Error> {
        // SAFETY: takes no pointers. The child is ours and not yet waited for, or the call fails.
        match unsafe { libc::kill(self.pid as libc::pid_t, signal) } {
            0 => Ok(()),
            _ => Err(Error::last(format!("send signal {signal} to {}", self.name))),
        }
    }

    fn running(&mut self) -> Result<&mut Child, Error> {
        let answer = || io::Error::other("it could not be started");
        let what = || format!("wait for {}", self.name);
        match &mut self.child {
            Some(child) => Ok(child),
            None => Err(Error::System { what: what(), answer: answer() }),
        }
    }
}

impl Drop for StoppedChild {
    fn drop(&mut self) {
        // Without a word through the gate the child gives up, and the spawn ends with an error.
        self.gate = None;
        if let Some(spawning) = self.spawning.take() {
            let _ = spawning.join();
        }
    }
}

/// Makes the child tell its pid, wait at the gate and take on the identity, all before `exec`.
fn wait_before_exec(
    command: &mut Command,
    pid_writer: PipeWriter,
    gate_reader: PipeReader,
    gate_fd: i32,
    identity: Option<Identity>,
) {
    let before_exec = move || {
        // The child's own copy of the writing end would keep the gate open for ever.
        // SAFETY: closes a descriptor that the child has by inheritance and never uses.
        unsafe { libc::close(gate_fd) };
        (&pid_writer).write_all(&std::process::id().to_ne_bytes())?;
        let mut word = [0];
        (&gate_reader).read_exact(&mut word)?;
        identity.as_ref().map_or(Ok(()), become_user)
    };
    // SAFETY: between fork and exec it makes system calls only; it allocates nothing and takes
    // no lock (an error is a bare number).
    unsafe { command.pre_exec(before_exec) };
}

fn become_user(identity: &Identity) -> io::Result<()> {
    // SAFETY: pointer and length are of one vector; the others take no pointers. The raw calls
    // change this thread alone, which is the only one after the fork.
    unsafe {
        if libc::setgroups(identity.groups.len() as _, identity.groups.as_ptr()) != 0
            || libc::setgid(identity.gid) != 0
            || libc::setuid(identity.uid) != 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Where programs are looked for without a `PATH`, as the C library does.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// A variable as the command will see it.
fn variable(env: &[(OsString, Option<OsString>)], name: &str) -> Option<OsString> {
    match env.iter().rev().find(|(key, _)| key == name) {
        Some((_, value)) => value.clone(),
        None => std::env::var_os(name),
    }
}

fn search_path(env: &[(OsString, Option<OsString>)]) -> OsString {
    variable(env, "PATH").unwrap_or_else(|| DEFAULT_PATH.into())
}

/// What `exec` would answer, asked before anything is done for the command.
fn check_program(program: &OsStr, env: &[(OsString, Option<OsString>)]) -> io::Result<()> {
    let path = search_path(env);
    let found = find_program(program, &path).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
    let is_directory = found.metadata()?.is_dir();
    if is_directory || !is_executable(&found) {
        return Err(io::Error::from_raw_os_error(libc::EACCES));
    }
    match interpreter(&found, &path) {
        Some(it) if !it.exists() => Err(io::Error::other(format!("its interpreter {} is not there", it.display()))),
        _ => Ok(()),
    }
}

impl Scope {
    /// The scope of a command that has no process yet: what it will load can be told all the same.
    pub fn foretold(program: &OsStr) -> Scope {
        Scope::Command(CommandScope { pid: std::process::id(), ..foretell(program, &[]) })
    }
}

/// What the command will be, as far as that can be told before it runs.
fn foretell(program: &OsStr, env: &[(OsString, Option<OsString>)]) -> CommandScope {
    let path = search_path(env);
    let found = find_program(program, &path).unwrap_or_else(|| PathBuf::from(program));
    let executable = interpreter(&found, &path).unwrap_or(found);
    let library_path = variable(env, "LD_LIBRARY_PATH").unwrap_or_default();
    let library_path = std::env::split_paths(&library_path).filter(|it| it.is_dir()).collect();
    CommandScope { pid: 0, executable, library_path }
}

fn find_program(program: &OsStr, path: &OsStr) -> Option<PathBuf> {
    if program.to_string_lossy().contains('/') {
        return Some(PathBuf::from(program));
    }
    std::env::split_paths(path).map(|it| it.join(program)).find(|it| is_executable(it))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

/// The interpreter that a script's first line names, `/usr/bin/env NAME` looked up.
fn interpreter(script: &Path, path: &OsStr) -> Option<PathBuf> {
    const LONGEST: u64 = 256;
    let mut start = Vec::new();
    std::fs::File::open(script).ok()?.take(LONGEST).read_to_end(&mut start).ok()?;
    let line = String::from_utf8_lossy(start.strip_prefix(b"#!")?.split(|it| *it == b'\n').next()?).into_owned();
    let mut words = line.split_whitespace();
    let first = words.next()?;
    if glob("*/env", first) {
        let name = words.find(|it| !it.starts_with('-') && !it.contains('='))?;
        return find_program(OsStr::new(name), path);
    }
    Some(PathBuf::from(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_command_waits_until_resumed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("made");
        let mut child = StoppedChild::spawn(&words(&format!("touch {}", file.display())), &[], None).unwrap();
        assert!(!file.exists() && child.pid() != std::process::id());
        assert_eq!(child.try_wait().unwrap(), None);
        assert!(child.wait().unwrap().success());
        assert!(file.exists());
    }

    #[test]
    fn a_child_that_is_never_resumed_ends() {
        let child = StoppedChild::spawn(&words("sleep 100"), &[], None).unwrap();
        let pid = child.pid();
        drop(child);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn what_cannot_be_run_is_refused_before_anything_is_started() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str, mode: u32| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path.into_os_string()
        };
        for (program, reason) in [
            ("/no/such/program".into(), "run /no/such/program: No such file"),
            ("no-such-program".into(), "run no-such-program: No such file"),
            ("".into(), "No such file"),
            (directory.path().into(), "Permission denied"),
            (file("plain", "", 0o644), "Permission denied"),
            (file("odd", "#!/no/such/interpreter\n", 0o755), "its interpreter /no/such/interpreter is not there"),
        ] {
            let error = StoppedChild::spawn(&[program], &[], None).unwrap_err().to_string();
            assert!(error.contains(reason), "no {reason:?} in {error}");
        }
    }

    #[test]
    fn status_and_environment_get_through() {
        let command = ["sh", "-c", "exit $CODE"].map(OsString::from);
        let mut child = StoppedChild::spawn(&command, &[("CODE".into(), Some("7".into()))], None).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(7));
    }

    #[test]
    fn a_script_is_its_interpreter() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("s");
        std::fs::write(&script, "#!/usr/bin/env -S sh -e\n").unwrap();
        let scope = foretell(script.as_os_str(), &[]);
        assert!(scope.executable.ends_with("sh") && scope.executable.is_absolute(), "{scope:?}");
    }
}
