//! A command that waits before its `exec` until its probes are in place.
//!
//! ```text
//! spawn ── fork ──▶ child: takes on what the command is to find, waits ──resume──▶ exec CMD
//!                      ▲ its pid can be watched and probed while it waits
//! ```
//! The child does everything it can before it waits, so that what it does afterwards is one `execve`.
//! That, and the end of the wait, go past the C library: a probe on `libc:read` sees the command alone.

use crate::error::Error;
use crate::inherited;
use crate::resolve::glob;
use crate::scope::{CommandScope, Scope};
use std::ffi::{CString, OsStr, OsString};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// The status of a child that was never resumed: its tracer gave up or was killed.
const GIVEN_UP: i32 = 125;
/// The status of a child that could not become the command; its parent is told why.
const NOT_RUN: i32 = 127;
/// What runs a file that Linux does not know how to run, as `execvp` has it.
const SHELL: &std::ffi::CStr = c"/bin/sh";

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
    gate: Option<Gate>,
    status: Option<ExitStatus>,
}

/// Our ends of what a waiting child hangs on.
#[derive(Debug)]
struct Gate {
    /// One byte lets the child go on; closing it ends the child.
    go: PipeWriter,
    /// Why the `exec` failed; closed by an `exec` that did not.
    failure: PipeReader,
}

impl StoppedChild {
    /// Forks. `command` is the program, found as a shell finds it, and its arguments; `env` is
    /// added to our environment (`None` takes a name out).
    ///
    /// The command gets signals, descriptors and limits as this process was given them, whatever
    /// became of them here since. A caller's ignored SIGCHLD is set back to the default in this
    /// process: with it no child could be waited for.
    ///
    /// # Errors
    /// There is no such program, it cannot be executed, or the system has no room for a process.
    pub fn spawn(
        command: &[OsString],
        env: &[(OsString, Option<OsString>)],
        identity: Option<&Identity>,
    ) -> Result<Self, Error> {
        let program = command.first().ok_or_else(|| Error::System {
            what: "start the command".into(),
            answer: io::Error::new(io::ErrorKind::InvalidInput, "it is empty"),
        })?;
        let name = program.to_string_lossy().into_owned();
        let failed = |answer| Error::System { what: format!("start {name}"), answer };
        let found = Program::find(program, env);
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

    /// Its process id, before and after the `exec`.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The scope of this command, with the executable that it will become: of a script, the
    /// interpreter that its first line names.
    pub fn scope(&self) -> Scope {
        Scope::Command(self.scope.clone())
    }

    /// Lets it run. A child that was killed while it waited is no error: its status says so.
    ///
    /// # Errors
    /// Why it cannot run: no such program, no right to run it.
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

    /// Waits for its end; resumes it first where that was not done.
    ///
    /// # Errors
    /// It cannot be run or waited for.
    pub fn wait(&mut self) -> Result<ExitStatus, Error> {
        self.resume()?;
        loop {
            if let Some(status) = self.reap(0)? {
                return Ok(status);
            }
        }
    }

    /// Its status when it has ended, `None` while it runs or waits.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.reap(libc::WNOHANG)
    }

    /// Sends it a signal; nothing where it has ended.
    ///
    /// # Errors
    /// It may not be sent one: it runs as another user.
    pub fn signal(&self, signal: i32) -> Result<(), Error> {
        if self.status.is_some() {
            return Ok(());
        }
        // SAFETY: takes no pointers. The child was not waited for, so the number is still its own.
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
        // Without a word through the gate the child gives up; it is not left behind as a zombie.
        if self.gate.take().is_some() {
            while matches!(self.reap(0), Ok(None)) {}
        }
    }
}

/// What `execve` takes, made before the fork: a child of a process with threads may not allocate.
struct ExecImage {
    path: CString,
    argv: CStrings,
    /// For a file that only a shell can run.
    shell_argv: CStrings,
    envp: CStrings,
}

impl ExecImage {
    fn new(program: &Program, command: &[OsString], env: &[(OsString, Option<OsString>)]) -> io::Result<Self> {
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

    /// Becomes the command; returns the system's answer where that fails.
    fn exec(&self) -> i32 {
        let errno = raw::execve(&self.path, &self.argv.pointers, &self.envp.pointers);
        match errno {
            libc::ENOEXEC => raw::execve(SHELL, &self.shell_argv.pointers, &self.envp.pointers),
            errno => errno,
        }
    }
}

/// Texts, and the null-terminated array of pointers to them.
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

/// What the child of a fork needs until it becomes the command.
struct WaitingChild<'a> {
    image: &'a ExecImage,
    wait: PipeReader,
    report: PipeWriter,
    /// The child's copy of our end of the gate, which would keep it open for ever.
    go: i32,
    identity: Option<&'a Identity>,
}

impl WaitingChild<'_> {
    /// The child's pid. No signal is handled in the child, whose handlers are ours.
    fn fork(self) -> io::Result<u32> {
        let blocked = inherited::BlockedSignals::all();
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
        // SAFETY: closes a descriptor that the child has by inheritance and never uses.
        unsafe { libc::close(self.go) };
        if let Some(errno) = self.identity.and_then(become_user) {
            // Said when the parent asks: it resumes first.
            self.wait_for_word();
            self.fail(errno);
        }
        inherited::restore();
        self.wait_for_word();
        self.fail(self.image.exec())
    }

    /// Ends the child where no word comes: the tracer gave up, or was killed.
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

/// The system's answer where it refuses.
fn become_user(identity: &Identity) -> Option<i32> {
    // SAFETY: pointer and length are of one vector; the others take no pointers. The child has one
    // thread, which is all that the raw calls change.
    let is_done = unsafe {
        libc::syscall(libc::SYS_setgroups, identity.groups.len(), identity.groups.as_ptr()) == 0
            && libc::syscall(libc::SYS_setgid, identity.gid) == 0
            && libc::syscall(libc::SYS_setuid, identity.uid) == 0
    };
    (!is_done).then(|| io::Error::last_os_error().raw_os_error().unwrap_or(libc::EPERM))
}

/// System calls without the C library, whose functions may be probed by now.
mod raw {
    use std::ffi::CStr;

    /// Bytes read, or the negative errno.
    pub fn read(fd: i32, into: &mut [u8]) -> isize {
        // SAFETY: pointer and length are of one slice.
        unsafe { call(libc::SYS_read, [fd as usize, into.as_mut_ptr() as usize, into.len()]) }
    }

    pub fn write(fd: i32, bytes: &[u8]) -> isize {
        // SAFETY: pointer and length are of one slice.
        unsafe { call(libc::SYS_write, [fd as usize, bytes.as_ptr() as usize, bytes.len()]) }
    }

    /// The errno: it returns only where it fails. Both arrays end in a null pointer.
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
    /// The arguments are what the call takes; pointers among them are live.
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
    /// The arguments are what the call takes; pointers among them are live.
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

/// Where programs are looked for without a `PATH`, as the C library does.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// A variable as the command will see it.
fn variable(env: &[(OsString, Option<OsString>)], name: &str) -> Option<OsString> {
    match env.iter().rev().find(|(key, _)| key == name) {
        Some((_, value)) => value.clone(),
        None => std::env::var_os(name),
    }
}

/// The file of a command, looked for once.
struct Program {
    /// As it was typed where no file was found.
    path: PathBuf,
    is_found: bool,
    /// Of a script.
    interpreter: Option<PathBuf>,
}

impl Program {
    fn find(program: &OsStr, env: &[(OsString, Option<OsString>)]) -> Self {
        let search = variable(env, "PATH").unwrap_or_else(|| DEFAULT_PATH.into());
        let found = find_program(program, &search);
        let is_found = found.is_some();
        let path = found.unwrap_or_else(|| PathBuf::from(program));
        let interpreter = interpreter(&path, &search);
        Program { path, is_found, interpreter }
    }

    /// What `exec` would answer, asked before anything is done for the command.
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
    /// The scope of a command that has no process yet: what it will load can be told all the same.
    pub fn foretold(program: &OsStr) -> Scope {
        Scope::Command(CommandScope { pid: std::process::id(), ..foretell(Program::find(program, &[]), &[]) })
    }
}

/// What the command will be, as far as that can be told before it runs.
fn foretell(program: Program, env: &[(OsString, Option<OsString>)]) -> CommandScope {
    let executable = program.interpreter.unwrap_or(program.path);
    let library_path = variable(env, "LD_LIBRARY_PATH").unwrap_or_default();
    let library_path = std::env::split_paths(&library_path).filter(|it| it.is_dir()).collect();
    // Separated by spaces or colons, as `ld.so` reads it.
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
        let scope = foretell(Program::find(script.as_os_str(), &[]), &[]);
        assert!(scope.executable.ends_with("sh") && scope.executable.is_absolute(), "{scope:?}");
    }
}
