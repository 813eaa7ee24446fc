//! Runs a case's lines in bash, in a separate directory.

use super::Failure;
use crate::build;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A run that takes longer hangs; none takes nearly as long even on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);
const GLANCE: Duration = Duration::from_millis(5);
/// Variables that would affect a run.
const REMOVED: [&str; 7] =
    ["CUDA_INJECTION64_PATH", "SUDO_UID", "SUDO_GID", "SUDO_USER", "XPUTRACE", "COLUMNS", "LD_LIBRARY_PATH"];

/// Functions for every run.
const PRELUDE: &str = include_str!("prelude.sh");

/// A directory with `xputrace` on the path.
pub struct Shell {
    directory: PathBuf,
    software_gpu: bool,
    /// Private to the tests: the link to the binary, and the streams.
    private: tempfile::TempDir,
}

/// The results of a run.
pub struct Finished {
    /// As in a shell: 128 + the signal, if a signal ended it.
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// Returns the text of `stdout`, `stderr` or `file NAME`; for a missing file, a line saying so.
    pub fn text(&self, of: &str, directory: &Path) -> String {
        match of.strip_prefix("file ") {
            Some(name) => read(&directory.join(name)).unwrap_or_else(|| format!("(no file {name})\n")),
            None if of == "stdout" => self.stdout.clone(),
            None => self.stderr.clone(),
        }
    }
}

impl Shell {
    /// # Errors
    /// A directory cannot be created.
    pub fn new(directory: &Path, software_gpu: bool) -> Result<Self, Failure> {
        let private = tempfile::tempdir()?;
        fs::create_dir(private.path().join("bin"))?;
        symlink(fs::canonicalize(build::xputrace())?, private.path().join("bin/xputrace"))?;
        Ok(Shell { directory: directory.into(), software_gpu, private })
    }

    /// Puts a program on the path.
    ///
    /// # Errors
    /// The link cannot be made.
    pub fn provide(&self, name: &str, program: &Path) -> Result<(), Failure> {
        Ok(symlink(program, self.private.path().join("bin").join(name))?)
    }

    /// Runs the lines to their end, and kills whatever they left running.
    ///
    /// # Errors
    /// They cannot be started, or don't end in time.
    pub fn run(&self, lines: &str) -> Result<Finished, Failure> {
        let stream = |name: &str| self.private.path().join(name);
        let mut bash = self.command(lines);
        bash.stdout(File::create(stream("stdout"))?).stderr(File::create(stream("stderr"))?);
        let status = finish(bash.spawn()?);
        let text = |name: &str| read(&stream(name)).unwrap_or_default();
        let (stdout, stderr) = (text("stdout"), text("stderr"));
        match status {
            Some(status) => {
                let status = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
                Ok(Finished { status, stdout, stderr })
            }
            None => Err(format!("it never ends:\n{lines}---- stdout\n{stdout}---- stderr\n{stderr}").into()),
        }
    }

    fn command(&self, lines: &str) -> Command {
        let mut bash = Command::new("bash");
        bash.args(["-eu", "-o", "pipefail", "-c", &format!("{PRELUDE}{lines}")]).current_dir(&self.directory);
        for name in REMOVED {
            bash.env_remove(name);
        }
        bash.env("PATH", self.path())
            .env("NO_COLOR", "1")
            .env("ROOT", build::root())
            .stdin(Stdio::null())
            .process_group(0);
        if self.software_gpu {
            bash.env("LD_LIBRARY_PATH", build::softgpu()).env("SOFTGPU", build::softgpu());
        }
        bash
    }

    fn path(&self) -> String {
        format!("{}:{}", self.private.path().join("bin").display(), std::env::var("PATH").unwrap_or_default())
    }
}

/// Returns the status unless the child hangs. Kills the rest of its group.
fn finish(mut child: Child) -> Option<ExitStatus> {
    let give_up = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < give_up => std::thread::sleep(GLANCE),
            Ok(None) | Err(_) => break None,
        }
    };
    // SAFETY: a group that this process created; if the number is free again, no group has it.
    unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
    let _ = child.wait();
    status
}

fn read(path: &Path) -> Option<String> {
    fs::read(path).ok().map(|it| String::from_utf8_lossy(&it).into_owned())
}

/// Whether a command is on the path.
pub fn finds(command: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).any(|it| it.join(command).is_file())
}
