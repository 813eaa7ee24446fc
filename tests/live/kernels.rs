//! Runs cases in other versions of Linux, in QEMU: those of CPU probes, and those that say so (`kernel:`).
//!
//! A version is booted once for all its cases, or twice at a time where these are many: a guest takes one CPU of the host.
//! The same program runs there, with the words `guest DIRECTORY`: it takes the names of cases from there, and puts down there
//! what became of each.

use libtest_mimic::{Arguments, Failed, Trial};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use xputrace_tests::case::{self, Failure, Machine, Outcome};
use xputrace_tests::guest;

/// How many guests share many cases, and how many those are.
const GUESTS: usize = 2;
const MANY: usize = 20;

fn main() -> ExitCode {
    if let Some(directory) = std::env::args().skip_while(|it| it != "guest").nth(1) {
        run_here(Path::new(&directory)).expect("a list of cases");
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::from_args();
    let cases = case::find(&case::directory()).expect("the directory of the cases");
    let trials = guest::VERSIONS.into_iter().flat_map(|version| {
        let named = |(name, path): &(String, PathBuf)| (format!("linux_{version}/{name}"), path.clone());
        let is_wanted = |name: &str| arguments.filter.as_ref().is_none_or(|it| name.contains(it.as_str()));
        let of_version =
            cases.iter().filter(|it| case::kernels(&it.0, &it.1).iter().any(|it| it == version)).map(named);
        trials_of(version, of_version.filter(|it| is_wanted(&it.0)).collect())
    });
    let trials = trials.collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trials_of(version: &'static str, cases: Vec<(String, PathBuf)>) -> Vec<Trial> {
    let guests = if cases.len() < MANY { 1 } else { GUESTS };
    let cases_of = |guest| cases.iter().skip(guest).step_by(guests).map(|it| it.1.clone()).collect();
    let suites: Vec<Arc<Suite>> = (0..guests).map(|it| Arc::new(Suite::new(version, cases_of(it)))).collect();
    let trial = |(n, (name, _)): (usize, (String, PathBuf))| {
        let suite = Arc::clone(&suites[n % guests]);
        Trial::test(name, move || suite.said(n / guests))
    };
    cases.into_iter().enumerate().map(trial).collect()
}

/// The cases that one guest runs.
struct Suite {
    version: &'static str,
    cases: Vec<PathBuf>,
    /// Of each case, once all have run.
    outcomes: OnceLock<Result<Vec<Told>, String>>,
}

/// What became of a case, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Told {
    Passed,
    Skipped(String),
    Failed(String),
}

impl Suite {
    fn new(version: &'static str, cases: Vec<PathBuf>) -> Self {
        Suite { version, cases, outcomes: OnceLock::new() }
    }

    /// Ends the trial of a case. The first one that does so runs all.
    #[expect(clippy::print_stdout, reason = "tests/run.sh counts what was skipped by these lines")]
    fn said(&self, case: usize) -> Result<(), Failed> {
        if let Some(why) = guest::missing(self.version) {
            println!("skipped: no Linux {}: {why}", self.version);
            return Ok(());
        }
        match self.outcomes.get_or_init(|| self.run().map_err(|e| e.to_string())).as_ref()?.get(case) {
            Some(Told::Passed) => Ok(()),
            Some(Told::Skipped(why)) => {
                println!("skipped: in Linux {}: {why}", self.version);
                Ok(())
            }
            Some(Told::Failed(why)) => Err(why.into()),
            None => Err("it was never run".into()),
        }
    }

    fn run(&self) -> Result<Vec<Told>, Failure> {
        let shared = tempfile::tempdir()?;
        for it in &self.cases {
            case::build_programs(it)?;
        }
        let names = self.cases.iter().map(|it| format!("{}\n", it.display())).collect::<String>();
        fs::write(shared.path().join("cases"), names)?;
        let (itself, binary, at) =
            (std::env::current_exe()?, fs::canonicalize(xputrace_tests::xputrace())?, shared.path());
        let lines = format!(
            "XPUTRACE='{}' '{}' guest '{at}' >'{at}/log' 2>&1",
            binary.display(),
            itself.display(),
            at = at.display()
        );
        guest::run(self.version, &lines, at)?;
        let told = |n: usize| match fs::read_to_string(at.join(n.to_string())) {
            Ok(text) => Told::parse(&text),
            Err(_) => {
                let said = ["log", "console"].map(|it| fs::read_to_string(at.join(it)).unwrap_or_default()).concat();
                Told::Failed(format!("nothing is known of it:\n{said}"))
            }
        };
        Ok((0..self.cases.len()).map(told).collect())
    }
}

impl Told {
    fn of(outcome: Result<Outcome, Failure>) -> Self {
        match outcome {
            Ok(Outcome::Passed | Outcome::FailedAsExpected(_)) => Told::Passed,
            Ok(Outcome::Skipped(why)) => Told::Skipped(why),
            Err(failure) => Told::Failed(failure.to_string()),
        }
    }

    fn text(&self) -> String {
        match self {
            Told::Passed => "passed".into(),
            Told::Skipped(why) => format!("skipped\n{why}"),
            Told::Failed(why) => format!("failed\n{why}"),
        }
    }

    fn parse(text: &str) -> Self {
        match text.split_once('\n') {
            Some(("skipped", why)) => Told::Skipped(why.into()),
            Some((_, why)) => Told::Failed(why.into()),
            None if text == "passed" => Told::Passed,
            None => Told::Failed("it ended in the middle".into()),
        }
    }
}

/// In the guest: runs the listed cases beside each other, those that run alone at the end.
fn run_here(directory: &Path) -> Result<(), Failure> {
    let names = fs::read_to_string(directory.join("cases"))?;
    let mut cases: Vec<(usize, &Path)> = names.lines().map(Path::new).enumerate().collect();
    cases.sort_by_key(|it| case::runs_alone(it.1));
    let (machine, next) = (Machine::default(), AtomicUsize::new(0));
    let work = || {
        while let Some((number, path)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let told = Told::of(machine.run(path, false)).text();
            fs::write(directory.join(number.to_string()), told).expect("room for what became of a case");
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, Into::into);
    std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(work)));
    Ok(())
}
