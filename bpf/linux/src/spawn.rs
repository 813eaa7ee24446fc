//! A command that is stopped before its `exec`, until its probes are attached.
//!
//! ```text
//! spawn ── fork ──▶ child: prepares itself, waits ──resume──▶ exec CMD
//!                      ▲ its pid can be watched and probed while it waits
//! ```
//! The child prepares everything before it waits; afterwards it only calls `execve`. The wait and
//! the `execve` bypass the C library, so that a probe on `libc:read` sees only the command.

use crate::error::Error;
use crate::inherited;
use crate::resolve::glob;
use crate::scope::{CommandScope, Scope};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// Exit status of a child that was never resumed: its tracer gave up or was killed.
const GIVEN_UP: i32 = 125;
/// Exit status of a child that could not execute the command; its parent is told why.
const NOT_RUN: i32 = 127;
/// Runs files that Linux does not recognize, as `execvp` does.
const SHELL: &std::ffi::CStr = c"/bin/sh";

/// The user to run the command as, if it is not ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandUser {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// A process that becomes the command when it is resumed. If dropped before, it exits without
/// running anything; if dropped later, it keeps running.
#[derive(Debug)]
pub struct StoppedChild {
    pid: u32,
    name: String,
    scope: CommandScope,
    gate: Option<Gate>,
    status: Option<ExitStatus>,
}

/// Our ends of the pipes to a waiting child.
#[derive(Debug)]
struct Gate {
    /// A byte resumes the child; closing the pipe ends it.
    go: PipeWriter,
    /// Receives the errno of a failed `exec`; closed by a successful one.
    failure: PipeReader,
}

impl StoppedChild {
    /// Forks a child that waits. `command` is the program, looked up as a shell does, and its
    /// arguments. `env` changes our environment: `None` removes a variable.
    ///
    /// The command gets the signals, descriptors and limits that this process was started with,
    /// even if they were changed since. Resets an ignored SIGCHLD in this process, because
    /// otherwise it could not wait for the child.
    ///
    /// # Errors
    /// The program does not exist or is not executable, or the system cannot create a process.
    pub fn spawn(
        command: &[OsString],
        env: &[(OsString, Option<OsString>)],
        identity: Option<&CommandUser>,
    ) -> Result<Self, Error> {
        let program = command.first().ok_or_else(|| Error::System {
            what: "start the command".into(),
            answer: io::Error::new(io::ErrorKind::InvalidInput, "it is empty"),
        })?;
        let name = program.to_string_lossy().into_owned();
        let failed = |answer| Error::System { what: format!("start {name}"), answer };
        let found = Executable::find(program, env);
        found.check().map_err(|answer| Error::System { what: format!("run {name}"), answer })?;
        let image = ExecImage::new(&found, command, env).map_err(failed)?;
        let scope = foretell(found, env);
        let (wait, go) = io::pipe().map_err(failed)?;
        let (failure, report) = io::pipe().map_err(failed)?;
        inherited::hear_of_children();
        let waiting = WaitingChild { image: &image, wait, report, go: go.as_raw_fd(), identity };
        let pid = waiting.fork().map_err(failed)?;
        let gate = Some(Gate { go, failure });
        Ok(StoppedChild { pid, name, scope: CommandScope { pid, ..scope }, gate, status: None })
    }

    /// Returns the process id, which `exec` does not change.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the scope of this command. The executable of a script is the interpreter that its
    /// first line names.
    pub fn scope(&self) -> Scope {
        Scope::Command(self.scope.clone())
    }

    /// Resumes the command. A child killed while it waited is not an error; its exit status shows
    /// it.
    ///
    /// # Errors
    /// The program cannot be executed.
    pub fn resume(&mut self) -> Result<(), Error> {
        let Some(Gate { mut go, mut failure }) = self.gate.take() else { return Ok(()) };
        let failed = |answer| Error::System { what: format!("run {}", self.name), answer };
        match go.write_all(&[1]) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(failed)?,
        }
        let mut errno = [0; 4];
        match failure.read_exact(&mut errno) {
            Ok(()) => Err(failed(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    /// Waits for the command to end; resumes it first if necessary.
    ///
    /// # Errors
    /// The command cannot be executed or waited for.
    pub fn wait(&mut self) -> Result<ExitStatus, Error> {
        self.resume()?;
        loop {
            if let Some(status) = self.reap(0)? {
                return Ok(status);
            }
        }
    }

    /// Returns the exit status, or `None` if the command has not ended.
    ///
    /// # Errors
    /// The command cannot be waited for.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.reap(libc::WNOHANG)
    }

    /// Sends the command a signal; does nothing if it has ended.
    ///
    /// # Errors
    /// The command runs as another user and must not be sent signals.
    pub fn signal(&self, signal: i32) -> Result<(), Error> {
        if self.status.is_some() {
            return Ok(());
        }
        // SAFETY: takes no pointers. The child has not been reaped, so the pid is still its own.
        match unsafe { libc::kill(self.pid as libc::pid_t, signal) } {
            0 => Ok(()),
            _ => Err(Error::last(format!("send signal {signal} to {}", self.name))),
        }
    }

    fn reap(&mut self, options: i32) -> Result<Option<ExitStatus>, Error> {
        if self.status.is_some() {
            return Ok(self.status);
        }
        let mut status = 0;
        // SAFETY: the status outlives the call.
        match unsafe { libc::waitpid(self.pid as libc::pid_t, &mut status, options) } {
            0 => Ok(None),
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => Ok(None),
            -1 => Err(Error::last(format!("wait for {}", self.name))),
            _ => {
                self.status = Some(ExitStatus::from_raw(status));
                Ok(self.status)
            }
        }
    }
}

impl Drop for StoppedChild {
    fn drop(&mut self) {
        // Closing the gate ends the child; reap it, so that no zombie remains.
        if self.gate.take().is_some() {
            while matches!(self.reap(0), Ok(None)) {}
        }
    }
}

/// The arguments of `execve`, created before the fork: the child of a multithreaded process must
/// not allocate.
struct ExecImage {
    path: CString,
    argv: CStrings,
    /// For files that Linux does not recognize: the shell runs them.
    shell_argv: CStrings,
    envp: CStrings,
}

impl ExecImage {
    fn new(program: &Executable, command: &[OsString], env: &[(OsString, Option<OsString>)]) -> io::Result<Self> {
        let path = CString::new(program.path.as_os_str().as_bytes())?;
        let argv = CStrings::new(command.iter().map(|it| it.as_bytes().to_vec()))?;
        let script = [b"sh".to_vec(), path.as_bytes().to_vec()].into_iter();
        let shell_argv = CStrings::new(script.chain(command.iter().skip(1).map(|it| it.as_bytes().to_vec())))?;
        let kept = std::env::vars_os().filter(|(name, _)| !env.iter().any(|(it, _)| it == name));
        let mut last: Vec<(&OsString, &OsString)> = Vec::new();
        for (name, value) in env {
            last.retain(|(it, _)| *it != name);
            last.extend(value.as_ref().map(|it| (name, it)));
        }
        let pair = |name: &OsStr, value: &OsStr| [name.as_bytes(), b"=", value.as_bytes()].concat();
        let all = kept.map(|(name, value)| pair(&name, &value)).chain(last.iter().map(|(name, it)| pair(name, it)));
        Ok(ExecImage { path, argv, shell_argv, envp: CStrings::new(all)? })
    }

    /// Returns the name that Linux gives the process at its `exec`.
    fn name(&self) -> Option<&CStr> {
        let start = self.path.as_bytes().iter().rposition(|it| *it == b'/').map_or(0, |it| it + 1);
        self.path.as_c_str().to_bytes_with_nul().get(start..).and_then(|it| CStr::from_bytes_with_nul(it).ok())
    }

    /// Executes the command; returns the errno if that fails.
    fn exec(&self) -> i32 {
        let errno = raw::execve(&self.path, &self.argv.pointers, &self.envp.pointers);
        match errno {
            libc::ENOEXEC => raw::execve(SHELL, &self.shell_argv.pointers, &self.envp.pointers),
            errno => errno,
        }
    }
}

/// Strings, and the null-terminated array of pointers to them.
struct CStrings {
    _texts: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl CStrings {
    fn new(texts: impl Iterator<Item = Vec<u8>>) -> io::Result<Self> {
        let texts = texts.map(CString::new).collect::<Result<Vec<_>, _>>()?;
        let pointers = texts.iter().map(|it| it.as_ptr()).chain([std::ptr::null()]).collect();
        Ok(CStrings { _texts: texts, pointers })
    }
}

/// What the child needs after the fork until it executes the command.
struct WaitingChild<'a> {
    image: &'a ExecImage,
    wait: PipeReader,
    report: PipeWriter,
    /// The child's copy of our end of the gate. It must be closed, or the gate would never close.
    go: i32,
    identity: Option<&'a CommandUser>,
}

impl WaitingChild<'_> {
    /// Returns the child's pid. Blocks signals in the child, which still has our handlers.
    fn fork(self) -> io::Result<u32> {
        let blocked = inherited::BlockedSignals::all();
        let _name = self.image.name().map(ThreadName::lend);
        // SAFETY: the child makes system calls only: it allocates nothing and takes no lock.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => self.become_command(),
            pid => {
                drop(blocked);
                Ok(pid as u32)
            }
        }
    }

    fn become_command(&self) -> ! {
        // SAFETY: closes a descriptor that the child inherited and never uses.
        unsafe { libc::close(self.go) };
        if let Some(errno) = self.identity.and_then(become_user) {
            // The parent reads the error only after it has resumed the child.
            self.wait_for_word();
            self.fail(errno);
        }
        inherited::restore();
        self.wait_for_word();
        self.fail(self.image.exec())
    }

    /// Exits if the gate closes: the tracer gave up or was killed.
    fn wait_for_word(&self) {
        let mut word = [0];
        loop {
            match raw::read(self.wait.as_raw_fd(), &mut word) {
                1 => return,
                n if n == -(libc::EINTR as isize) => {}
                _ => raw::exit(GIVEN_UP),
            }
        }
    }

    fn fail(&self, errno: i32) -> ! {
        raw::write(self.report.as_raw_fd(), &errno.to_ne_bytes());
        raw::exit(NOT_RUN)
    }
}

/// The calling thread's name while another is lent to it. A child inherits it: the command becomes a
/// target in the middle of its `exec`, an instant before Linux names it, and a sample may fall in between.
struct ThreadName([u8; 16]);

impl ThreadName {
    /// Linux cuts the name.
    fn lend(name: &CStr) -> Self {
        let mut own = [0u8; 16];
        // SAFETY: Linux writes at most 16 bytes, and reads a C string.
        unsafe {
            libc::prctl(libc::PR_GET_NAME, own.as_mut_ptr());
            libc::prctl(libc::PR_SET_NAME, name.as_ptr());
        }
        ThreadName(own)
    }
}

impl Drop for ThreadName {
    fn drop(&mut self) {
        // SAFETY: a C string: Linux ended it with a NUL.
        unsafe { libc::prctl(libc::PR_SET_NAME, self.0.as_ptr()) };
    }
}

/// Changes the user; returns the errno if that fails.
fn become_user(identity: &CommandUser) -> Option<i32> {
    // SAFETY: pointer and length are of one vector; the other calls take no pointers. Raw system
    // calls change only the calling thread, and the child has only one.
    let is_done = unsafe {
        libc::syscall(libc::SYS_setgroups, identity.groups.len(), identity.groups.as_ptr()) == 0
            && libc::syscall(libc::SYS_setgid, identity.gid) == 0
            && libc::syscall(libc::SYS_setuid, identity.uid) == 0
    };
    (!is_done).then(|| io::Error::last_os_error().raw_os_error().unwrap_or(libc::EPERM))
}

/// System calls without the C library, whose functions may already be probed.
mod raw {
    use std::ffi::CStr;

    /// Returns the number of bytes read, or the negative errno.
    pub fn read(fd: i32, into: &mut [u8]) -> isize {
        // SAFETY: pointer and length are of one slice.
        unsafe { call(libc::SYS_read, [fd as usize, into.as_mut_ptr() as usize, into.len()]) }
    }

    pub fn write(fd: i32, bytes: &[u8]) -> isize {
        // SAFETY: pointer and length are of one slice.
        unsafe { call(libc::SYS_write, [fd as usize, bytes.as_ptr() as usize, bytes.len()]) }
    }

    /// Returns the errno; on success it doesn't return. Both arrays must end with a null pointer.
    pub fn execve(path: &CStr, argv: &[*const libc::c_char], envp: &[*const libc::c_char]) -> i32 {
        debug_assert!([argv, envp].iter().all(|it| it.last().is_some_and(|it| it.is_null())));
        // SAFETY: the path is NUL-terminated, the arrays are null-terminated and live, as do their texts.
        let answer =
            unsafe { call(libc::SYS_execve, [path.as_ptr() as usize, argv.as_ptr() as usize, envp.as_ptr() as usize]) };
        -answer as i32
    }

    pub fn exit(status: i32) -> ! {
        loop {
            // SAFETY: takes no pointers, and does not return.
            unsafe { call(libc::SYS_exit_group, [status as usize, 0, 0]) };
        }
    }

    /// # Safety
    /// The arguments must be valid for the call; pointers among them must be live.
    #[cfg(target_arch = "x86_64")]
    unsafe fn call(number: libc::c_long, [a, b, c]: [usize; 3]) -> isize {
        let answer: isize;
        // SAFETY: the system call convention of x86-64: rcx and r11 are lost.
        unsafe {
            std::arch::asm!("syscall", inlateout("rax") number as isize => answer, in("rdi") a, in("rsi") b, in("rdx") c,
                lateout("rcx") _, lateout("r11") _, options(nostack));
        }
        answer
    }

    /// # Safety
    /// The arguments must be valid for the call; pointers among them must be live.
    #[cfg(target_arch = "aarch64")]
    unsafe fn call(number: libc::c_long, [a, b, c]: [usize; 3]) -> isize {
        let answer: isize;
        // SAFETY: the system call convention of AArch64.
        unsafe {
            std::arch::asm!("svc 0", in("x8") number, inlateout("x0") a as isize => answer, in("x1") b, in("x2") c,
                options(nostack));
        }
        answer
    }
}

/// Where the C library searches for programs if `PATH` is unset.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Returns a variable as the command will see it.
fn variable(env: &[(OsString, Option<OsString>)], name: &str) -> Option<OsString> {
    match env.iter().rev().find(|(key, _)| key == name) {
        Some((_, value)) => value.clone(),
        None => std::env::var_os(name),
    }
}

/// A command's executable file.
struct Executable {
    /// As typed if no file was found.
    path: PathBuf,
    is_found: bool,
    /// If the file is a script.
    interpreter: Option<PathBuf>,
}

impl Executable {
    fn find(program: &OsStr, env: &[(OsString, Option<OsString>)]) -> Self {
        let search = variable(env, "PATH").unwrap_or_else(|| DEFAULT_PATH.into());
        let found = find_program(program, &search);
        let is_found = found.is_some();
        let path = found.unwrap_or_else(|| PathBuf::from(program));
        let interpreter = interpreter(&path, &search);
        Executable { path, is_found, interpreter }
    }

    /// Fails as `exec` would, before the run prepares anything.
    fn check(&self) -> io::Result<()> {
        if !self.is_found {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        let is_directory = self.path.metadata()?.is_dir();
        if is_directory || !is_executable(&self.path) {
            return Err(io::Error::from_raw_os_error(libc::EACCES));
        }
        match &self.interpreter {
            Some(it) if !it.exists() => Err(io::Error::other(format!("its interpreter {} is not there", it.display()))),
            _ => Ok(()),
        }
    }
}

impl Scope {
    /// Predicts the scope of a command that has no process yet.
    pub fn foretold(program: &OsStr) -> Scope {
        Scope::Command(CommandScope { pid: std::process::id(), ..foretell(Executable::find(program, &[]), &[]) })
    }
}

/// Predicts which executable and libraries the command will have.
fn foretell(program: Executable, env: &[(OsString, Option<OsString>)]) -> CommandScope {
    let executable = program.interpreter.unwrap_or(program.path);
    let library_path = variable(env, "LD_LIBRARY_PATH").unwrap_or_default();
    let library_path = std::env::split_paths(&library_path).filter(|it| it.is_dir()).collect();
    // `ld.so` accepts spaces and colons as separators.
    let preload = variable(env, "LD_PRELOAD").unwrap_or_default();
    let preload = preload.to_string_lossy();
    let preloaded = preload.split([' ', ':']).filter(|it| !it.is_empty()).map(str::to_owned).collect();
    CommandScope { pid: 0, executable, library_path, preloaded }
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

/// Returns the interpreter that a script's first line names; resolves `/usr/bin/env NAME`.
fn interpreter(script: &Path, path: &OsStr) -> Option<PathBuf> {
    const LONGEST: u64 = 256;
    let mut start = Vec::new();
    xputrace_boundary::read::open(script).ok()?.take(LONGEST).read_to_end(&mut start).ok()?;
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
    fn a_file_that_only_a_shell_can_run_is_run_by_one() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("plain");
        std::fs::write(&file, "exit $1\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut child = StoppedChild::spawn(&[file.into(), "7".into()], &[], None).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(7));
    }

    #[test]
    fn a_child_that_is_killed_while_it_waits_has_a_status() {
        let mut child = StoppedChild::spawn(&words("sleep 100"), &[], None).unwrap();
        child.signal(libc::SIGKILL).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn status_and_environment_get_through() {
        let command = ["sh", "-c", "test -n \"$PATH\" && test -z \"$HOME\" && exit $CODE"].map(OsString::from);
        let env = [("CODE", Some("6")), ("CODE", Some("7")), ("HOME", None)];
        let env = env.map(|(name, value)| (name.into(), value.map(OsString::from)));
        let mut child = StoppedChild::spawn(&command, &env, None).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(7));
    }

    #[test]
    fn a_script_is_its_interpreter() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("s");
        std::fs::write(&script, "#!/usr/bin/env -S sh -e\n").unwrap();
        let scope = foretell(Executable::find(script.as_os_str(), &[]), &[]);
        assert!(scope.executable.ends_with("sh") && scope.executable.is_absolute(), "{scope:?}");
    }
}
