//! Runs every case of `tests/live/cases`; `BLESS=1` accepts the output.
//!
//! Cases run beside each other. One that fails runs again, alone: if it passes then, the test passes, and a line that
//! begins with `unsteady: ` says what failed. `tests/run.sh` shows these lines: each is a fault, of the case or of xputrace.

use libtest_mimic::{Arguments, Failed, Trial};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, RwLock};
use xputrace_tests::case::{self, Failure, Outcome};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("live/cases");
    let cases = case::find(&directory).expect("the directory of the cases");
    let bless = xputrace_golden::blesses();
    // Held for reading by cases that run beside others, and for writing by one that runs alone.
    let machine = Arc::new(RwLock::new(()));
    let trials = cases.into_iter().map(|(name, path)| {
        let machine = Arc::clone(&machine);
        Trial::test(name.clone(), move || run(&name, path, bless, &machine))
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

#[expect(clippy::print_stdout, reason = "tests/run.sh counts what was skipped by these lines")]
fn run(name: &str, path: PathBuf, bless: bool, machine: &RwLock<()>) -> Result<(), Failed> {
    match run_steadily(name, &path, bless, machine)? {
        Outcome::Passed => {}
        Outcome::Skipped(reason) => println!("skipped: {reason}"),
        Outcome::FailedAsExpected(reason) => println!("{name} fails as expected: {reason}"),
    }
    Ok(())
}

/// Runs a case beside others, and again alone if it fails.
#[expect(clippy::print_stdout, reason = "tests/run.sh counts what failed once by these lines")]
fn run_steadily(name: &str, path: &Path, bless: bool, machine: &RwLock<()>) -> Result<Outcome, Failure> {
    let first = {
        let _beside_others = machine.read();
        case::run(path, bless)
    };
    let Err(failure) = first else { return first };
    let _alone = machine.write();
    let second = case::run(path, bless);
    if second.is_ok() {
        println!("unsteady: {name} failed once, and passed alone: {}", failure.to_string().replace('\n', "\n    "));
    }
    second
}
