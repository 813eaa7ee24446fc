//! The thread that works with the GPU's driver, one job after another: a call there may wait for a kernel that waits for
//! the program.

use super::exchange::LOOKS_EVERY;
use super::waits::count_timeout;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(super) type Work = Box<dyn FnOnce() + Send>;

/// The number of a job; jobs are done in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Job(u64);

#[derive(Default)]
pub(super) struct Worker {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    queue: VecDeque<Work>,
    /// Number of jobs that were added, and that are done.
    added: u64,
    done: u64,
    /// How long somebody has waited without success for the job that is being done, at most: who would wait no longer does not wait then.
    waited_in_vain: Option<Duration>,
    is_closed: bool,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}

impl Worker {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, work: Work) -> Job {
        let mut jobs = self.jobs();
        jobs.queue.push_back(work);
        jobs.added += 1;
        self.changed.notify_all();
        Job(jobs.added)
    }

    /// Waits until a job is done, so long at most; returns whether it is.
    pub(super) fn wait_for(&self, job: Job, within: Duration, may_wait: impl Fn() -> bool) -> bool {
        let until = Instant::now() + within;
        let mut jobs = self.jobs();
        while jobs.done < job.0 {
            if jobs.waited_in_vain >= Some(within) || jobs.is_closed || !may_wait() {
                return false;
            }
            if Instant::now() >= until {
                count_timeout(within);
                jobs.waited_in_vain = Some(within);
                return false;
            }
            jobs = self.changed.wait_timeout(jobs, LOOKS_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Waits until a job behind this one is done, so long at most.
    pub(super) fn wait_for_another(&self, job: Job, within: Duration) {
        let is_last = |jobs: &mut Jobs| jobs.done <= job.0 && !jobs.is_closed;
        drop(self.changed.wait_timeout_while(self.jobs(), within, is_last));
    }

    /// Does the jobs by `with`, until it is closed.
    pub(super) fn run(&self, with: impl Fn(Work)) {
        while let Some(work) = self.next() {
            with(work);
            let mut jobs = self.jobs();
            jobs.done += 1;
            jobs.waited_in_vain = None;
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<Work> {
        let mut jobs = self.jobs();
        while !jobs.is_closed {
            if let Some(work) = jobs.queue.pop_front() {
                return Some(work);
            }
            jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// Ends all waiting, and the thread after its job.
    pub(super) fn close(&self) {
        self.jobs().is_closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    const LONG: Duration = Duration::from_secs(60);

    /// Ends the worker's thread also where a test fails.
    struct ClosesAtEnd<'a>(&'a Worker);

    impl Drop for ClosesAtEnd<'_> {
        fn drop(&mut self) {
            self.0.close();
        }
    }

    /// A worker with a job that is stuck until something is sent.
    fn with_stuck_job(test: impl FnOnce(&Worker, Job, Sender<()>)) {
        let worker = Worker::default();
        std::thread::scope(|scope| {
            scope.spawn(|| worker.run(|work| work()));
            let (frees, waits) = channel::<()>();
            let stuck = worker.add(Box::new(move || waits.recv().unwrap()));
            let _closes = ClosesAtEnd(&worker);
            test(&worker, stuck, frees);
        });
    }

    #[test]
    fn nobody_else_waits_as_long_for_a_job_that_is_stuck() {
        with_stuck_job(|worker, stuck, frees| {
            let short = Duration::from_millis(1);
            assert!(!worker.wait_for(stuck, short, || true));
            let behind = worker.add(Box::new(|| ()));
            let at_once = || panic!("it waits");
            assert!(!worker.wait_for(behind, short, at_once) && !worker.wait_for(behind, Duration::ZERO, at_once));
            // Who would wait for longer does so.
            frees.send(()).unwrap();
            assert!(worker.wait_for(behind, LONG, || true));
            assert!(worker.wait_for(stuck, Duration::ZERO, || false), "it is done");
            worker.close();
            assert!(!worker.wait_for(worker.add(Box::new(|| ())), LONG, || true));
        });
    }

    #[test]
    fn a_short_wait_in_vain_makes_a_long_one_no_shorter() {
        with_stuck_job(|worker, stuck, frees| {
            assert!(!worker.wait_for(stuck, Duration::ZERO, || true));
            // It is freed by whoever waits.
            let free = || {
                let _ = frees.send(());
                true
            };
            assert!(worker.wait_for(stuck, LONG, free));
        });
    }

    #[test]
    fn a_job_that_is_done_tells_who_waits_for_another() {
        with_stuck_job(|worker, stuck, frees| {
            worker.wait_for_another(stuck, Duration::ZERO);
            let next = worker.add(Box::new(|| ()));
            frees.send(()).unwrap();
            worker.wait_for_another(stuck, LONG);
            assert!(worker.wait_for(next, Duration::ZERO, || false), "it was waited for");
        });
    }
}
