//! Threads that do what takes long, so that rings are read meanwhile.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Compilers of one run that work at a time.
const MOST_THREADS: usize = 4;

/// Does jobs on a few threads. Results come in the order in which they are done. The threads end with the process: a job
/// may take longer than the rest of the run.
pub struct Workshop<Job, Done> {
    jobs: Sender<Job>,
    /// Those that may take very long, and have a thread of their own.
    long: Sender<Job>,
    done: Receiver<Done>,
    /// Has a byte for each result, which is written before it.
    signal: PipeReader,
}

/// What a thread needs.
struct Bench<Job, Done> {
    jobs: Arc<Mutex<Receiver<Job>>>,
    done: Sender<Done>,
    signal: PipeWriter,
}

impl<Job: Send + 'static, Done: Send + 'static> Workshop<Job, Done> {
    /// Starts the threads. `work` does not panic.
    ///
    /// # Errors
    /// The system can't create a thread.
    pub fn new(work: impl Fn(Job) -> Done + Clone + Send + 'static) -> io::Result<Self> {
        let (jobs, waiting) = channel();
        let (long, long_waiting) = channel();
        let (finished, done) = channel();
        let (signal, writer) = io::pipe()?;
        let [waiting, long_waiting] = [waiting, long_waiting].map(|it| Arc::new(Mutex::new(it)));
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
        for jobs in std::iter::repeat_n(waiting, n_threads).chain([long_waiting]) {
            let bench = Bench { jobs, done: finished.clone(), signal: writer.try_clone()? };
            let work = work.clone();
            std::thread::Builder::new().name("xputrace-twins".into()).spawn(move || bench.run(work))?;
        }
        Ok(Workshop { jobs, long, done, signal })
    }

    /// Has a job done.
    pub fn begin(&self, job: Job) {
        // The threads end only when `jobs` is gone.
        let _ = self.jobs.send(job);
    }

    /// Has a job done that may take so long that no other can wait for it.
    pub fn begin_long(&self, job: Job) {
        let _ = self.long.send(job);
    }

    /// Returns the next result, if there is one.
    pub fn finished(&mut self) -> Option<Done> {
        let done = self.done.try_recv().ok()?;
        let _ = self.signal.read_exact(&mut [0]);
        Some(done)
    }

    /// Returns a descriptor that is readable when there is a result.
    pub fn fd(&self) -> RawFd {
        self.signal.as_raw_fd()
    }
}

impl<Job, Done> Bench<Job, Done> {
    fn run(mut self, work: impl Fn(Job) -> Done) {
        let next = |jobs: &Mutex<Receiver<Job>>| jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        while let Ok(job) = next(&self.jobs) {
            let done = work(job);
            if self.signal.write_all(&[0]).is_err() || self.done.send(done).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn wait<T>(mut next: impl FnMut() -> Option<T>) -> T {
        let until = Instant::now() + Duration::from_secs(60);
        std::iter::repeat_with(|| {
            std::thread::yield_now();
            assert!(Instant::now() < until, "nothing is done");
            next()
        })
        .find_map(|it| it)
        .unwrap()
    }

    #[test]
    fn results_come_as_they_are_done_and_are_signalled() {
        let mut workshop = Workshop::new(|job: u32| job + 1).unwrap();
        assert_eq!(workshop.finished(), None);
        (0..10).for_each(|it| workshop.begin(it));
        let mut all: Vec<u32> = (0..10).map(|_| wait(|| workshop.finished())).collect();
        all.sort_unstable();
        assert_eq!(all, (1..11).collect::<Vec<_>>());
        let mut poll = libc::pollfd { fd: workshop.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live structure.
        assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 0) }, 0, "no signal is left");
        workshop.begin(1);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 60_000) }, 1);
        assert_eq!(wait(|| workshop.finished()), 2);
    }

    #[test]
    fn jobs_that_take_for_ever_keep_no_other_waiting() {
        let never = Arc::new(Mutex::new(()));
        let held = never.lock().unwrap();
        let of_work = never.clone();
        let mut workshop = Workshop::new(move |job: u32| {
            if job >= 100 {
                drop(of_work.lock());
            }
            job
        })
        .unwrap();
        (100..110).for_each(|it| workshop.begin_long(it));
        workshop.begin(1);
        assert_eq!(wait(|| workshop.finished()), 1);
        drop(held);
        assert_eq!(wait(|| workshop.finished()), 100);
    }
}
