//! Images and kernels that wait for their twins.

use super::memory::CodeAt;
use super::waits::count_timeout;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xputrace_wire::device::{DeviceCode, ImageOutcome};

/// How often a waiting thread checks that waiting still makes sense.
pub const LOOKS_EVERY: Duration = Duration::from_millis(20);

/// What was made, or why nothing.
pub(super) type ImageAnswer = Result<DeviceCode, ImageOutcome>;

#[derive(Default)]
pub(super) struct Exchange {
    state: Mutex<ExchangeState>,
    changed: Condvar,
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").finish_non_exhaustive()
    }
}

/// How long threads wait for twins, all together, once the tracer did not make one in time: a program that loads much code
/// would hardly get on.
const MOST_PATIENCE: Duration = Duration::from_secs(8);
/// How long, after that, threads wait for their images to be copied: the tracer makes the twins for the next run.
const MOST_COPYING: Duration = Duration::from_secs(2);

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The twins of an image.
    Image(CodeAt),
    /// The twin of a kernel that was loaded before we came, by its symbol.
    Kernel(String),
    /// Programs for a context that they can run in.
    Programs,
}

/// What is done with an answer that nobody waits for.
type Then = Box<dyn FnOnce(ImageAnswer) + Send>;

/// Whoever wants an answer.
enum Open {
    /// A thread that waits for it.
    Thread(Waiting),
    /// A thread that has left without it.
    Left,
    Nobody(Then),
}

/// What is known of an image whose thread waits.
#[derive(Default)]
struct Waiting {
    /// Whether the tracer can be sent it without the thread.
    is_copied: bool,
    answer: Option<ImageAnswer>,
}

/// Until when a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    answered: Instant,
    /// For its image to be copied: no earlier.
    copied: Instant,
}

#[derive(Default)]
struct ExchangeState {
    /// The number of the last image.
    last: u64,
    /// Numbers of images that are not sent yet, and where they are.
    asked: VecDeque<(u64, CodeAt)>,
    /// What is not asked for yet and nobody waits for. One is at a time: images, which threads wait for, come first.
    later: VecDeque<(Asked, Then)>,
    /// What has no answer yet, or one that is not taken yet.
    open: Vec<(u64, Open)>,
    /// How long threads still wait, all together, if the tracer was late once.
    patience: Option<Duration>,
    /// How long they have waited for copies alone.
    copying: Duration,
    is_closed: bool,
}

impl Exchange {
    fn state(&self) -> MutexGuard<'_, ExchangeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the twin of an image, and waits for it.
    pub(super) fn ask(&self, image: CodeAt, until: Instant, may_wait: impl Fn() -> bool) -> ImageAnswer {
        let began = Instant::now();
        let mut state = self.state();
        if state.has_waited_enough() {
            return Err(ImageOutcome::NoAnswer);
        }
        let limits = state.limits(until, began);
        let number = state.next_number();
        state.asked.push_back((number, image));
        state.open.push((number, Open::Thread(Waiting::default())));
        self.changed.notify_all();
        loop {
            let now = Instant::now();
            if state.is_over(number, limits, now) || !may_wait() {
                return state.leave(number, limits, began, now);
            }
            state = self.changed.wait_timeout(state, LOOKS_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns when a thread that waits for a twin from now on gives up, if it would do so at `until`.
    pub(super) fn limited(&self, until: Instant) -> Instant {
        self.state().limited(until, Instant::now())
    }

    /// Notes that a thread has waited for so long for a twin that was made already, and whether it timed out.
    pub(super) fn has_waited(&self, time: Duration, in_vain: bool) {
        self.state().has_waited(time, in_vain);
    }

    /// Asks for what nobody waits for, such as the twin of a kernel that was loaded before we came. Whoever hands in the answer
    /// does `then`; nobody does if the exchange is closed before.
    pub(super) fn ask_later(&self, asked: Asked, then: Then) {
        self.state().later.push_back((asked, then));
        self.changed.notify_all();
    }

    /// Returns what to ask for next, with its number; waits for it. `None` once the exchange is closed.
    pub(super) fn next(&self) -> Option<(u64, Asked)> {
        let mut state = self.state();
        while !state.is_closed {
            if let Some((number, image)) = state.asked.pop_front() {
                return Some((number, Asked::Image(image)));
            }
            if let Some((asked, then)) = state.next_later() {
                let number = state.next_number();
                state.open.push((number, Open::Nobody(then)));
                return Some((number, asked));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// Notes that an image has been copied: its thread need not stay for that.
    pub(super) fn has_copied(&self, number: u64) {
        if let Some(waiting) = self.state().waiting(number) {
            waiting.is_copied = true;
        }
        self.changed.notify_all();
    }

    /// Hands an answer to the thread that waits for it, if one does, or does what is to be done with it. Returns it if that
    /// thread has left.
    pub(super) fn answer(&self, number: u64, answer: ImageAnswer) -> Option<ImageAnswer> {
        let mut state = self.state();
        if let Some(waiting) = state.waiting(number) {
            waiting.answer = Some(answer);
            self.changed.notify_all();
            return None;
        }
        let open = state.take(number)?;
        self.changed.notify_all();
        drop(state);
        match open {
            Open::Nobody(then) => then(answer),
            Open::Left => return Some(answer),
            Open::Thread(_) => {}
        }
        None
    }

    /// Ends all waiting, for good.
    pub(super) fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_all();
    }
}

impl ExchangeState {
    /// Returns what is known of an image, if its thread waits.
    fn waiting(&mut self, number: u64) -> Option<&mut Waiting> {
        self.open.iter_mut().find(|it| it.0 == number).and_then(|it| match &mut it.1 {
            Open::Thread(waiting) => Some(waiting),
            Open::Left | Open::Nobody(_) => None,
        })
    }

    fn take(&mut self, number: u64) -> Option<Open> {
        let at = self.open.iter().position(|it| it.0 == number)?;
        Some(self.open.swap_remove(at).1)
    }

    /// Whether a thread has nothing more to wait for.
    fn is_over(&mut self, number: u64, limits: Limits, now: Instant) -> bool {
        let is_closed = self.is_closed;
        self.waiting(number).is_none_or(|it| {
            let until = if it.is_copied { limits.answered } else { limits.copied };
            is_closed || it.answer.is_some() || now >= until
        })
    }

    /// Ends a thread's waiting; returns its answer.
    fn leave(&mut self, number: u64, limits: Limits, began: Instant, now: Instant) -> ImageAnswer {
        // The address means nothing once the thread goes on.
        self.asked.retain(|it| it.0 != number);
        let Some(Open::Thread(Waiting { is_copied, answer })) = self.take(number) else {
            return Err(ImageOutcome::NoAnswer);
        };
        let (waited, in_vain) = (now.min(limits.answered) - began, answer.is_none() && now >= limits.answered);
        if in_vain {
            count_timeout(waited);
        }
        self.has_waited(waited, in_vain);
        self.copying += now.saturating_duration_since(limits.answered);
        if answer.is_none() && is_copied {
            self.open.push((number, Open::Left));
        }
        answer.unwrap_or(Err(ImageOutcome::NoAnswer))
    }

    /// Whether threads no longer wait for anything, not even for copies.
    fn has_waited_enough(&self) -> bool {
        self.patience == Some(Duration::ZERO) && self.copying >= MOST_COPYING
    }

    /// Returns until when a thread waits that would do so until then.
    fn limits(&self, until: Instant, now: Instant) -> Limits {
        let answered = self.limited(until, now);
        Limits { answered, copied: until.min(answered + MOST_COPYING.saturating_sub(self.copying)) }
    }

    fn limited(&self, until: Instant, now: Instant) -> Instant {
        self.patience.map_or(until, |it| until.min(now + it))
    }

    /// Notes that a thread has waited for so long, and whether it timed out.
    fn has_waited(&mut self, time: Duration, in_vain: bool) {
        self.patience = match self.patience {
            None => in_vain.then_some(MOST_PATIENCE),
            Some(left) => Some(left.saturating_sub(time)),
        };
    }

    fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn next_later(&mut self) -> Option<(Asked, Then)> {
        let is_open = self.open.iter().any(|it| matches!(it.1, Open::Nobody(_)));
        if is_open { None } else { self.later.pop_front() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_wire::device::Twin;

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
                let Asked::Image(CodeAt::Memory(image)) = image else { panic!("{image:?}") };
                let kernels = vec![image.to_string()];
                exchange.answer(number, Ok(DeviceCode::Twins(vec![Twin { kernels, ..Twin::default() }])));
                exchange.answer(number + 10, Err(ImageOutcome::NotWoven));
            }
            for (image, thread) in threads {
                let Ok(DeviceCode::Twins(twins)) = thread.join().unwrap() else { panic!("no twins") };
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
            assert_eq!(
                exchange.next().map(|it| it.1),
                Some(Asked::Image(at(3))),
                "those before it are not sent any more"
            );
            exchange.close();
            assert_eq!(waiting.join().unwrap(), Err(ImageOutcome::NoAnswer));
        });
        assert_eq!(exchange.next(), None);
    }

    #[test]
    fn threads_wait_for_a_tracer_that_was_late_for_a_limited_time_all_together() {
        let seconds = Duration::from_secs;
        let mut state = ExchangeState::default();
        state.has_waited(seconds(60), false);
        assert_eq!(state.patience, None, "it was in time");
        state.has_waited(seconds(10), true);
        assert_eq!(state.patience, Some(MOST_PATIENCE));
        state.has_waited(seconds(3), false);
        state.has_waited(seconds(1), true);
        assert_eq!(state.patience, Some(MOST_PATIENCE - seconds(4)));
        state.has_waited(seconds(60), true);
        assert_eq!(state.patience, Some(Duration::ZERO));
        let now = Instant::now();
        assert_eq!(state.limited(now + seconds(10), now), now);
        assert_eq!(ExchangeState::default().limited(now + seconds(10), now), now + seconds(10));
    }

    #[test]
    fn nobody_waits_any_more_when_all_have_waited_enough() {
        let exchange = Exchange::default();
        assert_eq!(exchange.ask(at(1), Instant::now(), || true), Err(ImageOutcome::NoAnswer));
        assert_eq!(exchange.state().patience, Some(MOST_PATIENCE));
        // As if that were over but for a moment.
        exchange.state().patience = Some(Duration::from_nanos(1));
        exchange.state().copying = MOST_COPYING;
        assert_eq!(exchange.ask(at(2), soon(), || true), Err(ImageOutcome::NoAnswer), "late at once");
        assert_eq!(exchange.ask(at(3), soon(), || true), Err(ImageOutcome::NoAnswer));
        assert_eq!(exchange.answer(1, Ok(DeviceCode::Twins(vec![]))), None, "it was not copied");
        assert_eq!(exchange.ask(at(4), soon(), || true), Err(ImageOutcome::NoAnswer), "an answer changes nothing");
        assert_eq!(exchange.state().last, 2, "nothing is asked any more");
    }

    #[test]
    fn what_nobody_waits_for_any_more_is_sent_all_the_same() {
        let exchange = Exchange::default();
        exchange.state().patience = Some(Duration::ZERO);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| exchange.ask(at(5), soon(), || true));
            assert_eq!(exchange.next(), Some((1, Asked::Image(at(5)))));
            exchange.has_copied(1);
            assert_eq!(waiting.join().unwrap(), Err(ImageOutcome::NoAnswer), "no answer is waited for");
            let loads = || exchange.ask(at(6), soon(), || true);
            let waiting = scope.spawn(loads);
            assert_eq!(exchange.next(), Some((2, Asked::Image(at(6)))));
            exchange.answer(2, Err(ImageOutcome::NoPortableCode));
            assert_eq!(waiting.join().unwrap(), Err(ImageOutcome::NoPortableCode), "there is nothing to send");
        });
        let answer = Err(ImageOutcome::NothingToProbe);
        assert_eq!(exchange.answer(1, answer.clone()), Some(answer.clone()));
        assert_eq!(exchange.answer(1, answer), None, "once");
    }

    #[test]
    fn a_thread_stays_for_its_image_to_be_copied() {
        let (now, seconds) = (Instant::now(), Duration::from_secs);
        let limits = |patience, copying| {
            ExchangeState { patience, copying, ..ExchangeState::default() }.limits(now + seconds(9), now)
        };
        let of = |answered, copied| Limits { answered: now + seconds(answered), copied: now + seconds(copied) };
        assert_eq!(limits(None, seconds(0)), of(9, 9));
        assert_eq!(limits(Some(seconds(3)), seconds(0)), of(3, 5));
        assert_eq!(limits(Some(seconds(8)), seconds(0)), of(8, 9));
        assert_eq!(limits(Some(seconds(0)), seconds(1)), of(0, 1));
        assert_eq!(limits(Some(seconds(0)), seconds(7)), of(0, 0));
    }

    #[test]
    fn kernels_are_asked_for_one_after_another_behind_images() {
        let (exchange, answers) = (Exchange::default(), std::sync::Arc::new(Mutex::new(Vec::new())));
        for symbol in ["a", "b"] {
            let answers = answers.clone();
            let then = Box::new(move |it| answers.lock().unwrap().push((symbol, it)));
            exchange.ask_later(Asked::Kernel(symbol.into()), then);
        }
        let kernel = |symbol: &str| Asked::Kernel(symbol.into());
        assert_eq!(exchange.next(), Some((1, kernel("a"))));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| exchange.ask(at(3), soon(), || true));
            assert_eq!(exchange.next(), Some((2, Asked::Image(at(3)))), "the other kernel has to wait");
            exchange.answer(1, Err(ImageOutcome::NoPortableCode));
            assert_eq!(exchange.next(), Some((3, kernel("b"))));
            exchange.answer(2, Ok(DeviceCode::Twins(vec![])));
            assert_eq!(waiting.join().unwrap(), Ok(DeviceCode::Twins(vec![])));
        });
        exchange.answer(1, Ok(DeviceCode::Twins(vec![])));
        exchange.answer(3, Err(ImageOutcome::NothingToProbe));
        let expected = [("a", Err(ImageOutcome::NoPortableCode)), ("b", Err(ImageOutcome::NothingToProbe))];
        assert_eq!(*answers.lock().unwrap(), expected);
    }
}
