//! Waits for what goes on behind the end of a run, for the next one.

use crate::run::report::Report;
use std::thread::sleep;
use std::time::{Duration, Instant};
use xputrace_nvidia_tracer::unfinished::Unfinished;

/// How long it may go on.
const ENDS_WITHIN: Duration = Duration::from_secs(30);
/// How often to look whether it has ended.
const LOOKS_EVERY: Duration = Duration::from_millis(20);

/// Waits until it has ended, if it goes on: a program that ended sooner would have all of it done anew in each run.
/// `is_given_up` says when nobody wants that.
pub fn let_end(unfinished: &Unfinished, is_given_up: impl Fn() -> bool, report: &mut Report) {
    if is_given_up() {
        return;
    }
    let until = Instant::now() + ENDS_WITHIN;
    let what = unfinished.text();
    if !what.is_empty() {
        let seconds = ENDS_WITHIN.as_secs();
        report.note(&format!("{what}: xputrace waits for that, {seconds} s at most (Ctrl-C ends it)"));
    }
    while unfinished.goes_on() && Instant::now() < until && !is_given_up() {
        sleep(LOOKS_EVERY);
    }
    unfinished.outcome().into_iter().for_each(|it| report.note(it));
}
