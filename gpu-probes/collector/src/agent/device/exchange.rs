//! Images that wait for their twins.

use super::memory::CodeAt;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xputrace_wire::device::{ImageOutcome, Patches, Twin};

/// How often a thread that waits looks whether that makes sense any more.
pub const LOOKS_EVERY: Duration = Duration::from_millis(20);

/// What the tracer has made of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// One at least.
    Twins(Vec<Twin>),
    Patches(Patches),
}

/// What was made, or why nothing.
pub(super) type Answer = Result<Made, ImageOutcome>;

#[derive(Debug, Default)]
pub(super) struct Exchange {
    state: Mutex<State>,
    changed: Condvar,
}

/// Some code takes long to compile, while other twins are made.
const MOST_LATE: usize = 4;

#[derive(Debug, Default)]
struct State {
    /// The number of the last image.
    last: u64,
    /// Numbers of images that are not sent yet, and where they are.
    asked: VecDeque<(u64, CodeAt)>,
    /// Those that a thread waits for.
    open: Vec<(u64, Option<Answer>)>,
    /// How many the tracer did not answer in time, without an answer to any since. With [`MOST_LATE`], nobody waits for it
    /// meanwhile.
    n_late: usize,
    is_closed: bool,
}

impl Exchange {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the twin of an image, and waits for it.
    pub(super) fn ask(&self, image: CodeAt, until: Instant, may_wait: impl Fn() -> bool) -> Answer {
        let mut state = self.state();
        if state.n_late >= MOST_LATE {
            return Err(ImageOutcome::NoAnswer);
        }
        state.last += 1;
        let number = state.last;
        state.asked.push_back((number, image));
        state.open.push((number, None));
        self.changed.notify_all();
        loop {
            let is_late = Instant::now() >= until;
            let is_over = is_late || state.is_closed || !may_wait();
            let at = state.open.iter().position(|it| it.0 == number);
            if let Some(at) = at.filter(|at| is_over || state.open[*at].1.is_some()) {
                // The address means nothing once the thread goes on.
                state.asked.retain(|it| it.0 != number);
                let answer = state.open.swap_remove(at).1;
                state.n_late += usize::from(is_late && answer.is_none());
                return answer.unwrap_or(Err(ImageOutcome::NoAnswer));
            }
            state = self.changed.wait_timeout(state, LOOKS_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns the next image's number, and where it is; waits for it. `None` once the exchange is closed.
    pub(super) fn next(&self) -> Option<(u64, CodeAt)> {
        let mut state = self.state();
        while !state.is_closed {
            if let Some(next) = state.asked.pop_front() {
                return Some(next);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// Hands an answer to the thread that waits for it, if one does.
    pub(super) fn answer(&self, number: u64, answer: Answer) {
        let mut state = self.state();
        state.n_late = 0;
        if let Some(open) = state.open.iter_mut().find(|it| it.0 == number) {
            open.1 = Some(answer);
            self.changed.notify_all();
        }
    }

    /// Ends all waiting, for good.
    pub(super) fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: u64) -> CodeAt {
        CodeAt::Memory(address)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn each_thread_gets_the_answer_to_its_own_image() {
        let exchange = Exchange::default();
        std::thread::scope(|scope| {
            let ask = |image: u64| {
                scope.spawn({
                    let exchange = &exchange;
                    move || exchange.ask(at(image), soon(), || true)
                })
            };
            let threads = [1, 2, 3].map(|it| (it, ask(it)));
            let mut asked: Vec<_> = (0..3).map(|_| exchange.next().unwrap()).collect();
            asked.reverse();
            for (number, image) in asked {
                let CodeAt::Memory(image) = image else { panic!("a path") };
                let kernels = vec![image.to_string()];
                exchange.answer(number, Ok(Made::Twins(vec![Twin { kernels, ..Twin::default() }])));
                exchange.answer(number + 10, Err(ImageOutcome::NotWoven));
            }
            for (image, thread) in threads {
                let Ok(Made::Twins(twins)) = thread.join().unwrap() else { panic!("no twins") };
                assert_eq!(twins[0].kernels, [image.to_string()]);
            }
        });
    }

    #[test]
    fn waiting_ends_in_time_and_with_the_run() {
        let exchange = Exchange::default();
        assert_eq!(exchange.ask(at(2), soon(), || false), Err(ImageOutcome::NoAnswer));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| exchange.ask(at(3), soon(), || true));
            assert_eq!(exchange.next().map(|it| it.1), Some(at(3)), "those before it are not sent any more");
            exchange.close();
            assert_eq!(waiting.join().unwrap(), Err(ImageOutcome::NoAnswer));
        });
        assert_eq!(exchange.next(), None);
    }

    #[test]
    fn nobody_waits_for_a_tracer_that_is_late_until_it_answers() {
        let exchange = Exchange::default();
        for n in 1..=MOST_LATE as u64 {
            assert_eq!(exchange.ask(at(n), Instant::now(), || true), Err(ImageOutcome::NoAnswer));
        }
        assert_eq!(exchange.ask(at(9), soon(), || true), Err(ImageOutcome::NoAnswer), "at once");
        exchange.answer(1, Ok(Made::Twins(vec![])));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| exchange.ask(at(3), soon(), || true));
            let (number, image) = exchange.next().unwrap();
            assert_eq!((number, image), (MOST_LATE as u64 + 1, at(3)), "those before it are not sent any more");
            exchange.answer(number, Ok(Made::Twins(vec![])));
            assert_eq!(waiting.join().unwrap(), Ok(Made::Twins(vec![])));
        });
    }
}
