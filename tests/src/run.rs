//! A run of the binary: its command line ([`Trace`]), the run in progress ([`Started`]), its
//! results ([`Done`]).

use crate::build::{softgpu, workload, xputrace};
use serde_json::{Map, Value as Json};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A run that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(120);
const GLANCE: Duration = Duration::from_millis(5);

/// A command line of xputrace, in a separate directory. Unless [`Trace::text`] is used, results go
/// to a file as JSON, separate from the traced program's output.
pub struct Trace {
    directory: TempDir,
    command: Command,
    traced: Vec<OsString>,
    json: bool,
}

impl Trace {
    /// With a one-line script on the command line.
    pub fn one_liner(script: &str) -> Self {
        Self::new(["-e", script])
    }

    /// With a script in a file, `script.rhai`.
    pub fn script(text: &str) -> Self {
        let trace = Self::new(["run", "script.rhai"]);
        fs::write(trace.path("script.rhai"), text).expect("writing a script");
        trace
    }

    /// With these arguments.
    pub fn new<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> Self {
        let directory = tempfile::tempdir().expect("a directory for a run");
        let mut command = Command::new(xputrace());
        command.current_dir(directory.path()).args(words).stdin(Stdio::null());
        command.env_remove("CUDA_INJECTION64_PATH").env_remove("SUDO_UID").env_remove("SUDO_GID").env("NO_COLOR", "1");
        Trace { directory, command, traced: Vec::new(), json: true }
    }

    /// Adds arguments before `--`.
    pub fn args<W: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        self.command.args(words);
        self
    }

    /// Starts xputrace through another program, which gets the arguments after its own. Must be
    /// called first.
    pub fn within<W: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        let mut words = words.into_iter();
        let mut outer = Command::new(words.next().expect("a program"));
        outer.args(words).arg(self.command.get_program()).args(self.command.get_args());
        outer.current_dir(self.directory.path()).stdin(Stdio::null());
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => outer.env(name, value),
                None => outer.env_remove(name),
            };
        }
        self.command = outer;
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Prints results as text on standard output.
    pub fn text(mut self) -> Self {
        self.json = false;
        self
    }

    /// Provides standard input to write to.
    pub fn with_input(mut self) -> Self {
        self.command.stdin(Stdio::piped());
        self
    }

    /// Sets the program to trace.
    pub fn on<W: AsRef<OsStr>>(mut self, command: impl IntoIterator<Item = W>) -> Self {
        self.traced = command.into_iter().map(|it| it.as_ref().to_owned()).collect();
        self
    }

    /// Sets a workload to trace, on the software GPU.
    pub fn on_workload(self, name: &str, arguments: &[&str]) -> Self {
        let path = workload(name);
        let words = std::iter::once(path.as_os_str()).chain(arguments.iter().map(OsStr::new)).collect::<Vec<_>>();
        self.on(words).on_softgpu()
    }

    /// Makes the traced program use the software GPU.
    pub fn on_softgpu(self) -> Self {
        self.env("LD_LIBRARY_PATH", softgpu())
    }

    /// Returns the path of a file in the run's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn run(self) -> Done {
        self.start().finish()
    }

    pub fn start(mut self) -> Started {
        if self.json {
            self.command.args(["-f", "json", "-o", "results"]);
        }
        if !self.traced.is_empty() {
            self.command.arg("--").args(&self.traced);
        }
        let file = |name| File::create(self.directory.path().join(name)).expect("a file for a run's output");
        let child = self.command.stdout(file("stdout")).stderr(file("stderr")).spawn().expect("starting xputrace");
        Started { child, directory: self.directory, json: self.json }
    }
}

/// A run in progress; killed on drop.
pub struct Started {
    child: Child,
    directory: TempDir,
    json: bool,
}

impl Started {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends the tracer a signal.
    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: the child has not been reaped, so its pid is its own.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }

    /// Writes to the standard input that the tracer and the program share.
    pub fn type_in(&mut self, text: &str) {
        self.child.stdin.as_mut().expect("a run with input").write_all(text.as_bytes()).expect("typing");
    }

    /// Returns what the traced program and the tracer have printed so far.
    pub fn stdout(&self) -> String {
        self.read("stdout")
    }

    /// Returns the JSON results written so far.
    pub fn results(&self) -> String {
        self.read("results")
    }

    /// Waits until a condition holds.
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&Started) -> bool) {
        let give_up = Instant::now() + PATIENCE;
        while !holds(self) {
            let over = self.child.try_wait().expect("asking for a child").is_some();
            assert!(
                Instant::now() < give_up && !over,
                "never {what} (over: {over}):\n{}\n{}",
                self.stdout(),
                self.read("stderr")
            );
            std::thread::sleep(GLANCE);
        }
    }

    /// Kills the tracer, and waits for it alone.
    pub fn kill_tracer(&mut self) {
        self.child.kill().expect("killing the tracer");
        self.child.wait().expect("waiting for the tracer");
    }

    /// Waits until the traced program has printed its account, with or without its tracer.
    pub fn account_without_tracer(&mut self) -> Json {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let text = self.stdout();
            let whole = text.lines().find(|it| it.contains("\"workload\"") && it.ends_with('}'));
            if let Some(account) = whole.and_then(|it| serde_json::from_str(it).ok()) {
                return account;
            }
            assert!(Instant::now() < give_up, "the program never finished:\n{text}\n{}", self.read("stderr"));
            std::thread::sleep(GLANCE);
        }
    }

    /// Returns the pid in the `ready PID` line of a held program.
    pub fn ready_pid(&mut self) -> u32 {
        let mut found = None;
        self.until("ready", |it| {
            let text = it.stdout();
            let words = text.lines().find_map(|line| line.strip_prefix("ready "));
            found = words.and_then(|it| it.trim().parse().ok());
            found.is_some()
        });
        found.expect("a number behind ready")
    }

    /// Waits for the run to end.
    pub fn finish(mut self) -> Done {
        drop(self.child.stdin.take());
        let give_up = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().expect("waiting for xputrace") {
                Some(status) => break status,
                None if Instant::now() > give_up => {
                    panic!("still running:\n{}\n{}", self.stdout(), self.read("stderr"))
                }
                None => std::thread::sleep(GLANCE),
            }
        };
        let (stdout, stderr) = (self.stdout(), self.read("stderr"));
        let results = if self.json { parse(&self.results()) } else { Vec::new() };
        let directory = std::mem::replace(&mut self.directory, tempfile::tempdir().expect("a directory"));
        Done { status, stdout, stderr, results, directory }
    }

    fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.directory.path().join(name)).unwrap_or_default()).into_owned()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn parse(lines: &str) -> Vec<Json> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in {line}"));
    lines.lines().map(parse).collect()
}

/// The results of a run.
pub struct Done {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    /// Every line of `-f json`.
    pub results: Vec<Json>,
    directory: TempDir,
}

impl Done {
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }

    /// Fails the test, showing all output, unless the run succeeded.
    #[track_caller]
    pub fn well(self) -> Self {
        assert!(self.status.success(), "{:?}\n{}\n{}\n{:?}", self.status, self.stdout, self.stderr, self.results);
        self
    }

    /// Returns the contents of a file that the run wrote.
    pub fn file(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}\n{}{}", self.stdout, self.stderr))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns everything that was printed of a map, in order.
    pub fn maps(&self, name: &str) -> Vec<&Json> {
        let tables = self
            .results
            .iter()
            .filter(|it| !matches!(it["type"].as_str(), Some("print" | "note" | "losses" | "attached_probes")));
        tables.filter_map(|it| it["data"].get(name)).collect()
    }

    /// Returns what was last printed of a map.
    #[track_caller]
    pub fn map(&self, name: &str) -> &Json {
        self.maps(name)
            .pop()
            .unwrap_or_else(|| panic!("no {name} in {:?}\n{}\n{}", self.results, self.stdout, self.stderr))
    }

    /// Returns the keys and values of a map with keys.
    #[track_caller]
    pub fn rows(&self, name: &str) -> &Map<String, Json> {
        let map = self.map(name);
        map.as_object().unwrap_or_else(|| panic!("{name} has no keys: {map}"))
    }

    /// Returns the sum of a map's values.
    #[track_caller]
    pub fn sum(&self, name: &str) -> i64 {
        self.rows(name).values().map(|it| it.as_i64().unwrap_or_else(|| panic!("{it} is no number"))).sum()
    }

    /// Returns the number of values in a histogram without keys.
    #[track_caller]
    pub fn hist_count(&self, name: &str) -> i64 {
        hist_count(self.map(name))
    }

    /// Returns what the script printed, in order.
    pub fn prints(&self) -> Vec<&str> {
        let prints = self.results.iter().filter(|it| it["type"] == "print");
        prints.filter_map(|it| it["data"].as_str()).collect()
    }

    /// Returns the last line: every kind of loss, by name.
    #[track_caller]
    pub fn losses(&self) -> &Json {
        let last = self.results.last().unwrap_or_else(|| panic!("no results\n{}\n{}", self.stdout, self.stderr));
        assert_eq!(last["type"], "losses", "losses come last");
        &last["data"]
    }

    #[track_caller]
    pub fn loss(&self, name: &str) -> i64 {
        let losses = self.losses();
        losses[name].as_i64().unwrap_or_else(|| panic!("there is no loss {name} in {losses}"))
    }

    /// Returns losses by line of the script: `(name, place, count)`.
    #[track_caller]
    pub fn line_losses(&self) -> Vec<(String, String, i64)> {
        let text = |it: &Json| it.as_str().unwrap_or_default().to_string();
        let lines = self.losses()["lines"].as_array().cloned().unwrap_or_default();
        lines.iter().map(|it| (text(&it["loss"]), text(&it["at"]), it["count"].as_i64().unwrap_or(-1))).collect()
    }

    /// Returns a count of the launch account.
    #[track_caller]
    pub fn account(&self, name: &str) -> i64 {
        let account = &self.losses()["account"];
        account[name].as_i64().unwrap_or_else(|| panic!("the account has no {name}: {account}"))
    }

    /// Fails unless nothing was lost and, with GPU probes, the account adds up.
    #[track_caller]
    pub fn nothing_lost(&self) {
        let losses = self.losses().as_object().expect("losses are an object");
        let lost: Vec<_> = losses.iter().filter(|(_, it)| it.as_i64().is_some_and(|n| n != 0)).collect();
        assert!(lost.is_empty(), "{lost:?} {:?}", self.line_losses());
        if !self.losses()["account"].is_null() {
            self.adds_up();
            assert_eq!(self.account("lost"), 0);
            assert_eq!(self.account("kernels"), self.account("collector_kernels"));
            assert_eq!(self.account("kernel_nanos"), self.account("collector_kernel_nanos"));
        }
    }

    /// Fails unless launches = joined + failed + lost.
    #[track_caller]
    pub fn adds_up(&self) {
        let parts = ["joined", "failed", "lost"].map(|it| self.account(it));
        assert_eq!(self.account("launches"), parts.iter().sum::<i64>(), "{}", self.losses()["account"]);
    }

    /// Returns the account that the traced workload printed.
    #[track_caller]
    pub fn workload(&self) -> Json {
        let line = self.stdout.lines().rev().find(|it| it.starts_with('{') && it.contains("\"workload\""));
        let line = line.unwrap_or_else(|| panic!("the program gave no account:\n{}\n{}", self.stdout, self.stderr));
        serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in {line}"))
    }
}

/// Returns the number of values in a histogram's buckets.
#[track_caller]
pub fn hist_count(buckets: &Json) -> i64 {
    let buckets = buckets.as_array().unwrap_or_else(|| panic!("{buckets} is no histogram"));
    buckets.iter().map(|it| it["count"].as_i64().unwrap_or(0)).sum()
}
