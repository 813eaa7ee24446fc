//! Runs every case of `tests/live/cases`; `BLESS=1` accepts the output.
//!
//! Cases run beside each other. Those with a line `alone:` run at the end, each with nothing beside it.

use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;
use std::sync::Arc;
use xputrace_tests::case::{self, HOST, Machine, Outcome};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut cases = case::find(&case::directory()).expect("the directory of the cases");
    cases.retain(|(name, path)| case::kernels(name, path).iter().any(|it| it == HOST));
    // Trials begin in this order.
    cases.sort_by_key(|(_, path)| case::runs_alone(path));
    let (machine, bless) = (Arc::new(Machine::default()), xputrace_golden::blesses());
    let trials = cases.into_iter().map(|(name, path)| {
        let machine = Arc::clone(&machine);
        Trial::test(name.clone(), move || said(&name, machine.run(&path, bless)?))
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
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
