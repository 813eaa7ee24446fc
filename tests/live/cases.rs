//! Runs every case of `tests/live/cases`; `BLESS=1` accepts the output.
//!
//! Cases run beside each other. Those with a line `alone:` run at the end, each with nothing beside it.

use libtest_mimic::{Arguments, Failed, Trial};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, PoisonError, RwLock};
use xputrace_tests::case::{self, Failure, Outcome};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("live/cases");
    let cases = case::find(&directory).expect("the directory of the cases");
    let bless = xputrace_golden::blesses();
    // Held for reading by cases that run beside others, and for writing by one that runs alone.
    let machine = Arc::new(RwLock::new(()));
    let (alone, beside_others): (Vec<_>, Vec<_>) = cases.into_iter().partition(|(_, path)| case::runs_alone(path));
    let of = |(name, path): (String, PathBuf), alone: bool| {
        let machine = Arc::clone(&machine);
        Trial::test(name.clone(), move || said(&name, run(&path, alone, bless, &machine)?))
    };
    // Trials begin in this order.
    let trials = beside_others.into_iter().map(|it| of(it, false)).chain(alone.into_iter().map(|it| of(it, true)));
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn run(path: &Path, alone: bool, bless: bool, machine: &RwLock<()>) -> Result<Outcome, Failure> {
    // The lock guards the machine, which no panic leaves in another state than a failure does.
    let _beside_others = (!alone).then(|| machine.read().unwrap_or_else(PoisonError::into_inner));
    let _alone = alone.then(|| machine.write().unwrap_or_else(PoisonError::into_inner));
    case::run(path, bless)
}

#[expect(clippy::print_stdout, reason = "tests/run.sh counts what was skipped by these lines")]
fn said(name: &str, outcome: Outcome) -> Result<(), Failed> {
    match outcome {
        Outcome::Passed => {}
        Outcome::Skipped(reason) => println!("skipped: {reason}"),
        Outcome::FailedAsExpected(reason) => println!("{name} fails as expected: {reason}"),
    }
    Ok(())
}
