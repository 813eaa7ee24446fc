//! Runs every case of `tests/live/cases`; `BLESS=1` accepts the output.

use libtest_mimic::{Arguments, Failed, Trial};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use xputrace_tests::case::{self, Outcome};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("live/cases");
    let cases = case::find(&directory).expect("the directory of the cases");
    let bless = xputrace_golden::blesses();
    let trials = cases.into_iter().map(|(name, path)| Trial::test(name.clone(), move || run(&name, path, bless)));
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

#[allow(clippy::print_stdout, reason = "tests/run.sh counts what was skipped by these lines")]
fn run(name: &str, path: PathBuf, bless: bool) -> Result<(), Failed> {
    match case::run(&path, bless)? {
        Outcome::Passed => {}
        Outcome::Skipped(reason) => println!("skipped: {reason}"),
        Outcome::FailedAsExpected(reason) => println!("{name} fails as expected: {reason}"),
    }
    Ok(())
}
