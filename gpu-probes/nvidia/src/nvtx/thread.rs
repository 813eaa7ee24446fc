//! The ranges that a thread has pushed and not popped, in all domains.

use super::handles::NvtxHandle;
use super::texts::{self, RangePath};
use super::window;
use std::cell::RefCell;
use std::ffi::CStr;
use xputrace_agent::clock::now;
use xputrace_agent::ranges::RangeDetails;
use xputrace_agent::ranges::{self, Range};
use xputrace_agent::this_thread;
use xputrace_wire::events::RangeKind;

/// Depth of nesting down to which ranges are known.
const MOST_DEPTH: usize = 64;

/// A pushed range.
#[derive(Clone, Copy)]
struct Level {
    domain: NvtxHandle,
    /// Its name behind those of the ranges around it.
    path: RangePath,
    /// Whether `--range` names it.
    is_window: bool,
    start: u64,
    details: RangeDetails,
}

const NO_LEVEL: Level = Level {
    domain: 0,
    path: RangePath::NONE,
    is_window: false,
    start: 0,
    details: RangeDetails { category: 0, color: None, payload: None },
};

/// What a pop ends.
enum Popped {
    Known(Level),
    /// A range of which nothing is known.
    TooDeep,
    /// No range was pushed.
    None,
}

/// The pushed ranges of a thread, outermost first.
struct Pushed {
    levels: [Level; MOST_DEPTH],
    n: usize,
    /// Ranges inside these, of which nothing is known.
    n_deeper: usize,
}

const NONE_PUSHED: Pushed = Pushed { levels: [NO_LEVEL; MOST_DEPTH], n: 0, n_deeper: 0 };

thread_local! {
    /// Has no destructor, so that it is always usable; `GUARD` closes what a thread leaves open.
    static THREAD: RefCell<Pushed> = const { RefCell::new(NONE_PUSHED) };
    static GUARD: RangesGuard = const { RangesGuard };
}

/// Returns the names of the calling thread's ranges, outermost first, with `RANGE_SEPARATOR` before each; `None` outside
/// ranges.
pub(super) fn path() -> Option<&'static CStr> {
    let path = THREAD.with(|it| it.try_borrow().map_or(RangePath::NONE, |it| it.path()));
    (path != RangePath::NONE).then(|| path.c_str())
}

pub(super) fn push(domain: NvtxHandle, name: &[u8], details: RangeDetails) {
    let is_window = window::names(domain, name);
    let level = Level { domain, is_window, start: now(), details, ..NO_LEVEL };
    let is_kept = THREAD.with(|it| it.try_borrow_mut().is_ok_and(|mut it| it.push(level, name)));
    if is_kept && is_window {
        let _ = GUARD.try_with(|_| ());
        window::enter();
    }
}

pub(super) fn pop(domain: NvtxHandle) {
    match THREAD.with(|it| it.try_borrow_mut().map_or(Popped::None, |mut it| it.pop(domain))) {
        Popped::Known(level) => level.record(),
        Popped::TooDeep => ranges::count_unrecorded(),
        Popped::None => {}
    }
}

impl Level {
    fn record(&self) {
        ranges::record(&Range {
            kind: RangeKind::Push,
            path: self.path.c_str(),
            domain: texts::path_of(self.domain).c_str(),
            start: Some(self.start),
            details: self.details,
            tid: this_thread().id(),
        });
        if self.is_window {
            window::leave(1);
        }
    }
}

impl Pushed {
    fn path(&self) -> RangePath {
        self.n.checked_sub(1).map_or(RangePath::NONE, |at| self.levels[at].path)
    }

    /// Adds a range whose path is not known yet; returns whether there was room.
    fn push(&mut self, pushed: Level, name: &[u8]) -> bool {
        let path = self.path();
        let Some(level) = self.levels.get_mut(self.n) else {
            self.n_deeper += 1;
            return false;
        };
        *level = Level { path: path.with(name), ..pushed };
        self.n += 1;
        true
    }

    /// Removes the domain's innermost range.
    fn pop(&mut self, domain: NvtxHandle) -> Popped {
        if self.n_deeper > 0 {
            self.n_deeper -= 1;
            return Popped::TooDeep;
        }
        let Some(at) = self.levels[..self.n].iter().rposition(|it| it.domain == domain) else { return Popped::None };
        let popped = self.levels[at];
        self.levels.copy_within(at + 1..self.n, at);
        self.n -= 1;
        (at..self.n).for_each(|it| self.join_path(it));
        Popped::Known(popped)
    }

    /// Makes a level's path follow that of the level around it.
    fn join_path(&mut self, at: usize) {
        let around = at.checked_sub(1).map_or(RangePath::NONE, |it| self.levels[it].path);
        let level = &mut self.levels[at];
        level.path = around.with(level.path.last_name());
    }

    /// Forgets all of them; returns how many `--range` names.
    fn clear(&mut self) -> u64 {
        let n = self.levels[..self.n].iter().filter(|it| it.is_window).count() as u64;
        (self.n, self.n_deeper) = (0, 0);
        n
    }
}

/// Closes the ranges that a thread leaves open when it ends.
struct RangesGuard;

impl Drop for RangesGuard {
    fn drop(&mut self) {
        super::catching::caught((), || match THREAD.with(|it| it.try_borrow_mut().map_or(0, |mut it| it.clear())) {
            0 => {}
            n => window::leave(n),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::texts;
    use super::*;

    fn path(pushed: &Pushed) -> String {
        pushed.path().c_str().to_str().unwrap().replace('\x1f', "/").trim_start_matches('/').to_owned()
    }

    fn push(pushed: &mut Pushed, domain: NvtxHandle, name: &str, is_window: bool) -> bool {
        pushed.push(Level { domain, is_window, ..NO_LEVEL }, name.as_bytes())
    }

    /// Returns whether `--range` names what was popped.
    fn pop(pushed: &mut Pushed, domain: NvtxHandle) -> bool {
        matches!(pushed.pop(domain), Popped::Known(it) if it.is_window)
    }

    #[test]
    fn ranges_nest_in_each_domain_by_itself() {
        assert!(texts::prepare());
        let mut pushed = NONE_PUSHED;
        assert!(
            push(&mut pushed, 0, "a", true) && push(&mut pushed, 8, "b", false) && push(&mut pushed, 0, "c", false)
        );
        assert!(push(&mut pushed, 8, "d", true));
        assert_eq!(path(&pushed), "a/b/c/d");
        assert_eq!((pop(&mut pushed, 0), path(&pushed)), (false, "a/b/d".into()));
        assert_eq!((pop(&mut pushed, 0), path(&pushed)), (true, "b/d".into()));
        assert_eq!((pop(&mut pushed, 0), path(&pushed)), (false, "b/d".into()));
        assert_eq!([pop(&mut pushed, 8), pop(&mut pushed, 8)], [true, false]);
        assert!(!pop(&mut pushed, 9), "what was pushed before us is not there");
        assert_eq!(path(&pushed), "");
    }

    #[test]
    fn what_is_too_deep_does_not_count() {
        assert!(texts::prepare());
        let mut pushed = NONE_PUSHED;
        assert!((0..MOST_DEPTH).all(|_| push(&mut pushed, 0, "x", false)) && !push(&mut pushed, 0, "y", true));
        assert!(!pop(&mut pushed, 0) && (0..MOST_DEPTH).all(|_| !pop(&mut pushed, 0)));
        assert!((0..MOST_DEPTH as u64).all(|it| push(&mut pushed, it, "z", true)) && !push(&mut pushed, 99, "z", true));
        assert_eq!((pushed.clear(), pushed.clear()), (MOST_DEPTH as u64, 0));
    }

    #[test]
    fn a_path_that_grows_too_long_keeps_its_end() {
        assert!(texts::prepare());
        let mut pushed = NONE_PUSHED;
        for at in 0..20_u8 {
            assert!(push(&mut pushed, 0, &char::from(b'a' + at).to_string().repeat(500), false));
        }
        assert!(path(&pushed).starts_with("…/") && path(&pushed).ends_with(&"t".repeat(500)));
    }
}
