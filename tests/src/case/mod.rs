//! Test cases as text files: what to run, and what to expect.
//!
//! `tests/live/README.md` describes the format for those who write cases.

mod bless;
mod check;
mod file;
mod pattern;
mod python;
mod shell;

use crate::build;
use crate::guest::VERSIONS;
use file::{Case, Expected, Run};
use pattern::Bindings;
pub use shell::finds;
use shell::{Finished, Shell};
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

/// What failed in a case, for people.
pub type Failure = Box<dyn Error + Send + Sync>;

/// The outcome of a case that did not fail.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    /// This machine lacks something that the case needs, named in the text.
    Skipped(String),
    /// The case failed, as its `fails:` line expects.
    FailedAsExpected(String),
}

/// The folders whose cases are of CPU probes: they run in every version of Linux, here and in QEMU.
const OF_CPU_PROBES: [&str; 3] = ["cpu/", "returns/", "usdt/"];
/// The first Linux that links an uprobe to many places at once.
const UPROBES_SINCE: (u32, u32) = (6, 6);
/// This machine's Linux, in a case's line `kernel:`.
pub const HOST: &str = "host";

/// Where the cases are.
pub fn directory() -> PathBuf {
    build::root().join("tests/live/cases")
}

/// Returns every `.test` file below `directory` with its relative name, sorted.
///
/// # Errors
/// The directory cannot be read.
pub fn find(directory: &Path) -> Result<Vec<(String, PathBuf)>, Failure> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            found.extend(find(&path)?.into_iter().map(|(inner, it)| (format!("{name}/{inner}"), it)));
        } else if path.extension().is_some_and(|it| it == "test") {
            found.push((name, path));
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> Result<Case, Failure> {
    Case::parse(&fs::read_to_string(path)?)
}

/// Whether nothing may run beside a case. Of a file that is no case, [`Machine::run`] says so.
pub fn runs_alone(path: &Path) -> bool {
    read(path).is_ok_and(|it| it.alone.is_some())
}

/// Returns where a case runs: here ([`HOST`]), and in which other versions of Linux.
pub fn kernels(name: &str, path: &Path) -> Vec<String> {
    read(path).ok().and_then(|it| it.kernels).unwrap_or_else(|| {
        let others = OF_CPU_PROBES.iter().any(|it| name.starts_with(it)).then_some(VERSIONS);
        std::iter::once(HOST).chain(others.into_iter().flatten()).map(str::to_string).collect()
    })
}

/// Builds the programs of a case, if they are not built yet.
///
/// # Errors
/// The file is not a case, or a program does not build.
pub fn build_programs(path: &Path) -> Result<(), Failure> {
    let scratch = tempfile::tempdir()?;
    place_programs(&read(path)?, scratch.path())
}

/// What cases share. They run beside each other, or alone.
#[derive(Debug, Default)]
pub struct Machine(RwLock<()>);

impl Machine {
    /// Runs a case; one that runs alone waits until no other does. With `bless`, writes unexpected output back to the file.
    ///
    /// # Errors
    /// The file is not a case, a program does not build, or the output differs.
    pub fn run(&self, path: &Path, bless: bool) -> Result<Outcome, Failure> {
        let alone = runs_alone(path);
        // A case that panics leaves the machine as one that fails does.
        let _beside_others = (!alone).then(|| self.0.read().unwrap_or_else(PoisonError::into_inner));
        let _alone = alone.then(|| self.0.write().unwrap_or_else(PoisonError::into_inner));
        run(path, bless)
    }
}

fn run(path: &Path, bless: bool) -> Result<Outcome, Failure> {
    let mut case = read(path)?;
    if let Some(missing) = case.needs.iter().find_map(|it| missing_need(it)) {
        return Ok(Outcome::Skipped(missing));
    }
    let result = run_all(&mut case, bless);
    if bless {
        fs::write(path, case.to_string())?;
        return result.map(|()| Outcome::Passed);
    }
    match (result, case.fails) {
        (Ok(()), None) => Ok(Outcome::Passed),
        (Ok(()), Some(reason)) => Err(format!("it passes; remove its line `fails: {reason}`").into()),
        (Err(_), Some(reason)) => Ok(Outcome::FailedAsExpected(reason)),
        (Err(failure), None) => Err(failure),
    }
}

/// Returns what this machine lacks for a `needs:` word, if anything.
fn missing_need(need: &str) -> Option<String> {
    let (there, reason) = match need {
        "root" => (crate::is_root(), "not root".to_string()),
        "gpu" => (Path::new("/dev/nvidiactl").exists(), "no GPU".to_string()),
        "softgpu" => (true, String::new()),
        "kprobe" => (Path::new("/sys/bus/event_source/devices/kprobe").exists(), "no kprobes".to_string()),
        "uprobe" => (linux() >= UPROBES_SINCE, format!("uprobes need Linux {}.{}", UPROBES_SINCE.0, UPROBES_SINCE.1)),
        python if python.starts_with("python3.") => (python::find(python).is_some(), format!("no {python}")),
        probed if probed.starts_with("usdt:") => (has_usdt(&probed["usdt:".len()..]), format!("no {probed}")),
        command => (shell::finds(command), format!("no {command}")),
    };
    (!there).then_some(reason)
}

/// The version of Linux that this runs in.
fn linux() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(|it| it.trim().parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Whether a file has USDT probes.
fn has_usdt(path: &str) -> bool {
    const NOTES: &[u8] = b".note.stapsdt";
    fs::read(path).is_ok_and(|it| it.windows(NOTES.len()).any(|it| it == NOTES))
}

fn run_all(case: &mut Case, bless: bool) -> Result<(), Failure> {
    let directory = tempfile::tempdir()?;
    let shell = Shell::new(directory.path(), case.needs.iter().any(|it| it == "softgpu"))?;
    for it in &case.needs {
        python::find(it).map_or(Ok(()), |program| shell.provide(it, &program))?;
    }
    place_programs(case, directory.path())?;
    for (name, text) in &case.inputs {
        fs::write(directory.path().join(name), text)?;
    }
    let mut bindings = Bindings::new();
    for (number, run) in case.runs.iter_mut().enumerate() {
        let finished = shell.run(&run.script)?;
        let complaints = judge(run, &finished, directory.path(), &mut bindings, bless);
        if !complaints.is_empty() {
            return Err(report(number, run, &finished, &complaints).into());
        }
    }
    Ok(())
}

/// Copies a case's programs to its directory, so that no other case shares their files.
fn place_programs(case: &Case, directory: &Path) -> Result<(), Failure> {
    for name in &case.programs {
        fs::copy(build::program(name), directory.join(name))?;
    }
    for it in &case.sources {
        fs::copy(build::compiled(&it.name, &it.language, &it.text, &it.flags)?, directory.join(&it.name))?;
    }
    Ok(())
}

/// Compares a finished run with what was expected; returns the differences.
fn judge(run: &mut Run, finished: &Finished, directory: &Path, bindings: &mut Bindings, bless: bool) -> Vec<String> {
    let mut complaints = Vec::new();
    if finished.status != run.status {
        match bless {
            true => run.status = finished.status,
            false => complaints.push(format!("status {}, expected {}", finished.status, run.status)),
        }
    }
    run.add_missing_streams();
    for expected in &mut run.expected {
        let actual = finished.text(&expected.of, directory);
        match pattern::compare(&expected.text, &actual, bindings) {
            Ok(more) => *bindings = more,
            Err(_) if bless => expected.text = bless::accept(&expected.text, &actual, bindings),
            Err(why) => complaints.push(format!("{}: {why}", expected.of)),
        }
    }
    if complaints.is_empty() && !bless {
        complaints.extend(check::failures(&run.checks, directory, bindings));
    }
    complaints
}

fn report(number: usize, run: &Run, finished: &Finished, complaints: &[String]) -> String {
    let mut text = format!("in run {}:\n", number + 1);
    for complaint in complaints {
        let _ = writeln!(text, "{complaint}");
    }
    let _ = writeln!(text, "---- it was\n{}", run.script.trim_end());
    let _ = write!(
        text,
        "---- status {}\n---- stdout\n{}---- stderr\n{}",
        finished.status, finished.stdout, finished.stderr
    );
    text
}

impl Run {
    /// An unmentioned stream must be empty.
    fn add_missing_streams(&mut self) {
        for stream in ["stdout", "stderr"] {
            if !self.expected.iter().any(|it| it.of == stream) {
                self.expected.push(Expected { of: stream.into(), text: String::new() });
            }
        }
    }
}
