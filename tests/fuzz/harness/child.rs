//! The program with one target: it reads input after input until its time is up, and dies of the one that shows a mistake.

use super::coverage::Coverage;
use super::shared::{Shared, Word};
use super::{MOST_INPUT_BYTES, Target, memory, mutate};
use fastrand::Rng;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// CPU time that an input may take. It is the process's own, so that a busy machine fails nothing.
const MOST_SECONDS: i64 = 20;
/// The stack of the tracer's threads.
const STACK_BYTES: usize = 2 << 20;
/// Inputs that are kept because they reached something new, at most.
const MOST_KEPT: usize = 20_000;

/// Names of the environment variables that say what to do.
pub(crate) mod variable {
    pub(crate) const TARGET: &str = "FUZZ_TARGET";
    pub(crate) const SHARED: &str = "FUZZ_SHARED";
    pub(crate) const MILLIS: &str = "FUZZ_MILLIS";
    pub(crate) const SEED: &str = "FUZZ_SEED";
    /// A directory for the inputs that reached something new; those that are there are seeds, too.
    pub(crate) const KEEP: &str = "FUZZ_KEEP";
    /// A file: the only input.
    pub(crate) const INPUT: &str = "FUZZ_INPUT";
}

/// What this program was started to do.
pub(crate) struct Task {
    target: String,
    shared: PathBuf,
    time: Duration,
    seed: u64,
    kept: Option<PathBuf>,
    input: Option<PathBuf>,
}

impl Task {
    /// `None` if it was not started by itself.
    pub(crate) fn of_environment() -> Option<Task> {
        let target = std::env::var(variable::TARGET).ok()?;
        let number = |name| std::env::var(name).ok().and_then(|it| it.parse().ok()).unwrap_or(0);
        let path = |name| std::env::var_os(name).map(PathBuf::from);
        Some(Task {
            shared: path(variable::SHARED)?,
            time: Duration::from_millis(number(variable::MILLIS)),
            seed: number(variable::SEED),
            kept: path(variable::KEEP).map(|it| it.join(&target)),
            input: path(variable::INPUT),
            target,
        })
    }

    /// Reads inputs. A panic ends it with the input in the shared memory.
    pub(crate) fn run(self, targets: &[Target]) -> ExitCode {
        let Some(target) = targets.iter().find(|it| it.name == self.target).copied() else { return ExitCode::FAILURE };
        say_panics();
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let done = thread.spawn(move || Reading::new(target, &self).run(&self));
        match done.map(std::thread::JoinHandle::join) {
            Ok(Ok(())) => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }
    }
}

/// Lets a panic be said, which takes memory.
fn say_panics() {
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |about| {
        memory::allow_all(0);
        say(about);
    }));
}

/// Returns the inputs in a directory, by name; none if it isn't there.
pub(crate) fn inputs_in(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|it| it.path());
    let mut all: Vec<_> = entries.filter_map(|it| Some((it.clone(), std::fs::read(it).ok()?))).collect();
    all.sort();
    all
}

/// Where the inputs of a target are that once showed a mistake.
pub(crate) fn corpus_of(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

/// Returns the name of an input's file.
pub(crate) fn name_of(input: &[u8]) -> String {
    let hash =
        input.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, it| (hash ^ u64::from(*it)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

struct Reading {
    target: Target,
    shared: Shared,
    coverage: Coverage,
    pool: Vec<Vec<u8>>,
}

impl Reading {
    fn new(target: Target, task: &Task) -> Self {
        let shared = Shared::open(&task.shared).expect("the memory of both is there");
        Reading { target, shared, coverage: Coverage::new(), pool: Vec::new() }
    }

    fn run(mut self, task: &Task) {
        if let Some(path) = &task.input {
            let input = std::fs::read(path).expect("the input is there");
            self.read(&input);
            return;
        }
        let end = Instant::now() + task.time;
        inputs_in(&corpus_of(self.target.name)).iter().for_each(|(_, input)| _ = self.read(input));
        let kept = task.kept.as_deref().map(inputs_in).unwrap_or_default();
        for mut seed in (self.target.seeds)().into_iter().chain(kept.into_iter().map(|it| it.1)) {
            seed.truncate(MOST_INPUT_BYTES);
            self.read(&seed);
            self.pool.push(seed);
        }
        let mut rng = Rng::with_seed(task.seed);
        while Instant::now() < end {
            let input = mutate::mutated(&mut rng, &self.pool, self.target.words);
            if self.read(&input) && self.pool.len() < MOST_KEPT {
                task.kept.iter().for_each(|it| keep(it, &input));
                self.pool.push(input);
                self.add(Word::Kept, 1);
            }
        }
    }

    /// Reads an input; returns whether it has reached something new.
    fn read(&mut self, input: &[u8]) -> bool {
        self.shared.set_input(input);
        let bound = self.target.bound.of(input);
        limit_time(MOST_SECONDS);
        let before = cpu_nanos();
        memory::allow(bound);
        (self.target.read)(input);
        let held = memory::allow_all(bound);
        let nanos = cpu_nanos().saturating_sub(before);
        limit_time(0);
        self.add(Word::Inputs, 1);
        self.raise(Word::Slowest, nanos);
        self.raise(Word::MostHeld, held as u64);
        let is_new = self.coverage.is_new();
        self.shared.set(Word::Reached, self.coverage.n_reached as u64);
        is_new
    }

    fn add(&mut self, word: Word, n: u64) {
        self.shared.set(word, self.shared.get(word) + n);
    }

    fn raise(&mut self, word: Word, value: u64) {
        self.shared.set(word, self.shared.get(word).max(value));
    }
}

/// Keeps an input for later runs; without it they begin with less.
fn keep(directory: &Path, input: &[u8]) {
    let _ = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(directory.join(name_of(input)), input));
}

/// Ends this program by SIGPROF once it has used so much more CPU time; 0 ends the limit.
fn limit_time(seconds: i64) {
    let never = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let limit = libc::itimerval { it_interval: never, it_value: libc::timeval { tv_sec: seconds, tv_usec: 0 } };
    // SAFETY: a plain call with a valid value.
    unsafe { libc::setitimer(libc::ITIMER_PROF, &limit, std::ptr::null_mut()) };
}

/// Returns the CPU time of this thread.
fn cpu_nanos() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a plain call with room for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
