//! What goes on behind the end of a run, for the next one.

use crate::choosing::Chooser;
use crate::run::report::{Report, counted};
use crate::twins::Twins;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long it may go on.
const ENDS_WITHIN: Duration = Duration::from_secs(30);
/// How often to look whether it has ended.
const LOOKS_EVERY: Duration = Duration::from_millis(20);

/// What a run leaves that takes longer than programs wait for it: threads that end with xputrace, and keep on disk what the next
/// run needs.
pub struct Unfinished {
    pub twins: Option<Twins>,
    pub chooser: Option<Arc<Chooser>>,
}

impl Unfinished {
    /// Waits until it has ended, if it goes on: a program that ended sooner would have all of it done anew in each run.
    /// `is_given_up` says when nobody wants that any more.
    pub fn let_end(&self, is_given_up: impl Fn() -> bool, report: &mut Report) {
        if is_given_up() {
            return;
        }
        let until = Instant::now() + ENDS_WITHIN;
        let goes_on = self.goes_on();
        if !goes_on.is_empty() {
            report.note(&format!(
                "{}: xputrace waits for that, {} s at most (Ctrl-C ends it)",
                goes_on.join(", and "),
                ENDS_WITHIN.as_secs()
            ));
        }
        while self.n_under_way() > 0 && Instant::now() < until && !is_given_up() {
            sleep(LOOKS_EVERY);
        }
        self.chooser.iter().filter_map(|it| it.outcome()).for_each(|it| report.note(it));
    }

    fn n_under_way(&self) -> usize {
        self.n_compiling() + self.n_searching()
    }

    fn n_compiling(&self) -> usize {
        self.twins.as_ref().map_or(0, Twins::n_compiling)
    }

    fn n_searching(&self) -> usize {
        self.chooser.as_ref().map_or(0, |it| it.n_searching())
    }

    /// Says what goes on.
    fn goes_on(&self) -> Vec<String> {
        let of = |n: usize, text: &dyn Fn(u64) -> String| (n > 0).then(|| text(n as u64));
        let compiles = of(self.n_compiling(), &|n| {
            format!("ptxas still compiles {} of kernels, which the next run will find", counted(n, "twin", "twins"))
        });
        let searches = of(self.n_searching(), &|n| {
            format!("the files of {} are still searched for kernels", counted(n, "process", "processes"))
        });
        compiles.into_iter().chain(searches).collect()
    }
}

/// Counts something while it lives.
#[derive(Debug)]
pub struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    pub fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        UnderWay(count.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn what_is_under_way_is_counted_until_it_ends_or_panics() {
        let count = Arc::default();
        let of_panic: Result<(), _> = catch_unwind(AssertUnwindSafe(|| {
            let _one = UnderWay::new(&count);
            let _two = UnderWay::new(&count);
            assert_eq!(count.load(Ordering::Acquire), 2);
            panic!("as a compiler might");
        }));
        assert!(of_panic.is_err());
        assert_eq!(count.load(Ordering::Acquire), 0);
    }
}
