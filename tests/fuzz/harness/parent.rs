//! The test program: starts itself once for each target, and says what came of it.

use super::child::{corpus_of, name_of, variable};
use super::shared::{Shared, Word};
use super::{Target, minimise};
use libtest_mimic::{Arguments, Failed, Trial};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

/// Seconds that all targets take together, unless `FUZZ_SECONDS` says it.
const SECONDS: u64 = 30;

/// Only where it is read: to make it takes longer than to read most inputs.
const BACKTRACE: (&str, &str) = ("RUST_BACKTRACE", "1");

/// Runs a test for each target.
pub(crate) fn run(targets: Vec<Target>) -> ExitCode {
    // One at a time: each has its share of the time.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let is_chosen = |it: &&Target| arguments.filter.as_ref().is_none_or(|filter| it.name.contains(filter.as_str()));
    let n_chosen = targets.iter().filter(is_chosen).count().max(1) as u64;
    let seconds = std::env::var("FUZZ_SECONDS").ok().and_then(|it| it.parse().ok()).unwrap_or(SECONDS);
    let millis = seconds * 1000 / n_chosen;
    let trials = targets.into_iter().map(|it| Trial::test(it.name, move || fuzz(it, millis))).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn fuzz(target: Target, millis: u64) -> Result<(), Failed> {
    let run = Run::new(target)?;
    let ended = run.start(&[(variable::MILLIS, &millis.to_string()), BACKTRACE])?;
    let shared = &run.shared()?;
    if ended.status.success() {
        said(target, shared, millis);
        return Ok(());
    }
    let failure = Failure::of(&ended);
    let input = minimise::minimised(shared.input(), &mut |it| Ok(run.fails_of(it)?.as_ref() == Some(&failure)))?;
    let file = corpus_of(target.name).join(name_of(&input));
    std::fs::create_dir_all(corpus_of(target.name))?;
    std::fs::write(&file, &input)?;
    Err(format!("{}\nan input of {} bytes, kept in {}\n{}", failure.0, input.len(), file.display(), text(&ended))
        .into())
}

#[expect(clippy::print_stdout, reason = "what a test says")]
fn said(target: Target, shared: &Shared, millis: u64) {
    let of = |word| shared.get(word);
    let (inputs, slowest) = (of(Word::Inputs), of(Word::Slowest) as f64 / 1e6);
    let each_second = inputs as f64 * 1e3 / millis.max(1) as f64;
    let held = of(Word::MostHeld) as f64 / f64::from(1 << 20);
    print!("{}: {inputs} inputs, {each_second:.0}/s; slowest {slowest:.1} ms, most memory {held:.2} MiB", target.name);
    match of(Word::Reached) {
        0 => println!(),
        reached => println!("; {reached} places reached, {} inputs kept", of(Word::Kept)),
    }
}

/// Programs that are started with one target.
struct Run {
    target: Target,
    directory: tempfile::TempDir,
}

impl Run {
    fn new(target: Target) -> io::Result<Self> {
        let run = Run { target, directory: tempfile::tempdir()? };
        Shared::create(&run.path("shared"))?;
        Ok(run)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn shared(&self) -> io::Result<Shared> {
        Shared::open(&self.path("shared"))
    }

    fn start(&self, variables: &[(&str, &str)]) -> io::Result<Output> {
        let mut program = Command::new(std::env::current_exe()?);
        program.env(variable::TARGET, self.target.name).env(variable::SHARED, self.path("shared"));
        program.envs(variables.iter().copied()).output()
    }

    fn fails_of(&self, input: &[u8]) -> io::Result<Option<Failure>> {
        let file: &Path = &self.path("input");
        std::fs::write(file, input)?;
        let ended = self.start(&[(variable::INPUT, &file.to_string_lossy())])?;
        Ok((!ended.status.success()).then(|| Failure::of(&ended)))
    }
}

/// What an input did, in a line. The same mistake has the same line.
#[derive(PartialEq, Eq)]
struct Failure(String);

impl Failure {
    fn of(ended: &Output) -> Self {
        let text = text(ended);
        let place = || text.lines().find_map(|it| it.split_once("panicked at ").map(|it| it.1.to_owned()));
        Failure(match ended.status.signal() {
            Some(libc::SIGPROF) => "it took too much CPU time".to_owned(),
            Some(_) if text.contains("memory allocation of") => "it took too much memory".to_owned(),
            Some(_) if text.contains("overflowed its stack") => "it overflowed the stack".to_owned(),
            Some(signal) => format!("signal {signal}"),
            None => place().unwrap_or_else(|| ended.status.to_string()),
        })
    }
}

fn text(ended: &Output) -> String {
    String::from_utf8_lossy(&ended.stderr).into_owned()
}
