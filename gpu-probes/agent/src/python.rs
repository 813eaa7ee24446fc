//! Python's frames at a launch, as words of a stack.

use super::intern::{Codes, fingerprint};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use xputrace_python::{Code, Frames, Interpreter, Item, Unsupported};
use xputrace_wire::record::{MAX_FRAMES, python_frame, stack_end};

/// What reading Python's frames needs in a process that was asked for them.
#[derive(Debug)]
pub(crate) struct Python {
    found: OnceLock<Result<Interpreter, Unsupported>>,
    /// Whether the tracer knows of an interpreter whose frames can't be read.
    is_told: AtomicBool,
    pub(crate) codes: Codes,
}

impl Python {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Python { found: OnceLock::new(), is_told: AtomicBool::new(false), codes: Codes::new()? })
    }

    /// Looks for the interpreter until there is one. Called by one thread at a time, which may
    /// allocate.
    pub(crate) fn look(&self) {
        if self.found.get().is_some() {
            return;
        }
        match Interpreter::find() {
            Ok(Some(it)) => drop(self.found.set(Ok(it))),
            Ok(None) => {}
            Err(it) => drop(self.found.set(Err(it))),
        }
    }

    /// An interpreter whose frames can't be read; once.
    pub(crate) fn newly_unsupported(&self) -> Option<&Unsupported> {
        let found = self.found.get()?.as_ref().err()?;
        (!self.is_told.swap(true, Ordering::AcqRel)).then_some(found)
    }

    /// Takes the calling thread's frames. `id` returns a code's id, or `None` to give up, which this then
    /// returns.
    ///
    /// # Safety
    /// As for [`Interpreter::frames`].
    #[inline]
    pub(crate) unsafe fn take(&self, into: &mut Runs, id: impl FnMut(Option<&Code<'_>>) -> Option<u32>) -> Option<()> {
        into.clear();
        let Some(Ok(interpreter)) = self.found.get() else { return Some(()) };
        // SAFETY: the caller promises that the thread does not return from the function that it is in while this runs.
        unsafe { interpreter.frames() }.map_or(Some(()), |it| into.fill(it, id))
    }
}

/// A thread's Python frames, by the calls of the interpreter's function that run them; innermost
/// first. All zero is empty.
#[derive(Debug)]
pub(crate) struct Runs {
    words: [u64; MAX_FRAMES],
    /// An address in the frame of each call on the thread's stack, [`UNKNOWN_PLACE`] if unknown.
    places: [u64; MAX_FRAMES],
    /// Where the words of each call end.
    ends: [u64; MAX_FRAMES],
    n_words: usize,
    n_runs: usize,
    is_cut: bool,
}

const UNKNOWN_PLACE: u64 = u64::MAX;

impl Runs {
    #[inline]
    fn clear(&mut self) {
        (self.n_words, self.n_runs, self.is_cut) = (0, 0, false);
    }

    /// Takes frames to their end, or until there is no room: those of that call are said to be cut, and
    /// its place is all that is still asked for. Returns `None` if `id` does.
    #[inline]
    fn fill<'a>(
        &mut self,
        mut items: impl Items<'a>,
        mut id: impl FnMut(Option<&Code<'a>>) -> Option<u32>,
    ) -> Option<()> {
        while let Some(item) = items.next() {
            match item {
                Item::Frame { .. } if self.n_words == MAX_FRAMES => {
                    self.is_cut = true;
                    self.end_run(items.next_call().unwrap_or(UNKNOWN_PLACE));
                    return Some(());
                }
                Item::Frame { code, offset } => {
                    self.words[self.n_words] = python_frame::word(id(code.as_ref())?, offset);
                    self.n_words += 1;
                }
                Item::Call { at } => self.end_run(at),
            }
        }
        self.end_run(UNKNOWN_PLACE);
        Some(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.n_words == 0
    }

    /// The fingerprint of the frames and of the places of their calls, and of `with`, which is below 2^32.
    #[inline]
    pub(crate) fn fingerprint(&self, with: u64) -> (u64, u64) {
        let lens = (self.n_words as u64) << 1 | (self.n_runs as u64) << 16 | u64::from(self.is_cut);
        let parts = [&self.words[..self.n_words], &self.places[..self.n_runs], &self.ends[..self.n_runs]];
        fingerprint(parts, lens | with << 32)
    }

    fn begin_of_run(&self) -> usize {
        self.n_runs.checked_sub(1).map_or(0, |last| self.ends[last] as usize)
    }

    /// A call may run nothing that is shown.
    #[inline]
    fn end_run(&mut self, at: u64) {
        if self.begin_of_run() < self.n_words && self.n_runs < MAX_FRAMES {
            (self.places[self.n_runs], self.ends[self.n_runs]) = (at, self.n_words as u64);
            self.n_runs += 1;
        }
    }

    fn each(&self) -> impl Iterator<Item = Each<'_>> {
        let begins = std::iter::once(0).chain(self.ends.iter().map(|it| *it as usize));
        let runs = self.places.iter().zip(&self.ends).zip(begins).take(self.n_runs).enumerate();
        runs.map(|(n, ((at, end), begin))| Each {
            at: *at,
            words: &self.words[begin..*end as usize],
            is_cut: self.is_cut && n + 1 == self.n_runs,
        })
    }
}

/// The Python frames that one call of the interpreter's function runs.
#[derive(Clone, Copy, Debug)]
struct Each<'a> {
    /// As in [`Runs::places`].
    at: u64,
    words: &'a [u64],
    /// Whether there are more than are kept.
    is_cut: bool,
}

/// A thread's Python frames, as [`Frames`] has them.
trait Items<'a>: Iterator<Item = Item<'a>> {
    /// Skips what is before the next call's end; returns its place.
    fn next_call(&mut self) -> Option<u64>;
}

impl<'a> Items<'a> for Frames<'a> {
    fn next_call(&mut self) -> Option<u64> {
        Frames::next_call(self)
    }
}

/// Native and Python frames as the words of one stack.
#[derive(Debug)]
pub(crate) struct Words {
    words: [u64; xputrace_wire::record::MAX_STACK_WORDS],
    len: usize,
}

impl Words {
    /// Puts each run of Python frames before the native frame that runs it. `native` and `places` are the
    /// addresses of its frames and where they begin on the stack (rsp), and `end` says why there are no
    /// more: a number of [`stack_end`]. Returns the words, and why they end.
    pub(crate) fn merge(&mut self, native: &[u64], places: &[u64], end: u16, python: &Runs) -> (&[u64], u16) {
        self.len = 0;
        let (mut done, mut runs) = (0, python.each());
        let left = runs.by_ref().find(|run| match runner(places, done, end, run.at) {
            Some(frame) => {
                self.extend(&native[done..frame]);
                done = frame;
                self.push_run(run);
                false
            }
            None => true,
        });
        self.extend(&native[done..]);
        let Some(left) = left else { return (&self.words[..self.len], end) };
        if end != stack_end::ROOT {
            self.extend(&[end.into()]);
        }
        std::iter::once(left).chain(runs).for_each(|it| self.push_run(&it));
        (&self.words[..self.len], stack_end::ROOT)
    }

    fn push_run(&mut self, run: &Each<'_>) {
        self.extend(run.words);
        if run.is_cut {
            self.extend(&[stack_end::PYTHON_TOO_DEEP.into()]);
        }
    }

    #[inline]
    fn extend(&mut self, words: &[u64]) {
        let room = &mut self.words[self.len..];
        let n = words.len().min(room.len());
        room[..n].copy_from_slice(&words[..n]);
        self.len += n;
    }
}

/// The first native frame from `from` on in which this address is: a frame reaches to the next one's
/// place, the last to the stack's end if it is the root.
fn runner(places: &[u64], from: usize, end: u16, at: u64) -> Option<usize> {
    let last = places.len().checked_sub(1).filter(|last| from <= *last)?;
    let inner = places[from + 1..].iter().position(|next| at < *next).map(|it| from + it);
    inner.or_else(|| (end == stack_end::ROOT && at < UNKNOWN_PLACE).then_some(last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_python::PyString;

    const CODE: Code<'static> = Code {
        address: 8,
        first_line: 1,
        file: PyString { width: 1, bytes: b"f" },
        name: PyString { width: 1, bytes: b"n" },
        lines: &[],
    };

    struct Made<I>(I);

    impl<I: Iterator<Item = Item<'static>>> Iterator for Made<I> {
        type Item = Item<'static>;

        fn next(&mut self) -> Option<Item<'static>> {
            self.0.next()
        }
    }

    impl<I: Iterator<Item = Item<'static>>> Items<'static> for Made<I> {
        fn next_call(&mut self) -> Option<u64> {
            self.0.find_map(|it| if let Item::Call { at } = it { Some(at) } else { None })
        }
    }

    fn runs(items: impl IntoIterator<Item = Item<'static>>) -> Box<Runs> {
        let none = [0; MAX_FRAMES];
        let mut runs = Box::new(Runs { words: none, places: none, ends: none, n_words: 0, n_runs: 0, is_cut: false });
        runs.fill(Made(items.into_iter()), |_| Some(1)).unwrap();
        runs
    }

    fn frame(offset: u32) -> Item<'static> {
        Item::Frame { code: Some(CODE), offset }
    }

    fn merged(native: &[(u64, u64)], end: u16, python: &Runs) -> (Vec<u64>, u16) {
        let mut words = Box::new(Words { words: [0; xputrace_wire::record::MAX_STACK_WORDS], len: 0 });
        let (native, places): (Vec<u64>, Vec<u64>) = native.iter().copied().unzip();
        let (words, end) = words.merge(&native, &places, end, python);
        (words.to_vec(), end)
    }

    const NATIVE: [(u64, u64); 4] = [(0x11, 1000), (0x22, 1100), (0x33, 1200), (0x44, 1300)];

    #[test]
    fn python_frames_stand_where_the_interpreter_runs_them() {
        let call = |at| Item::Call { at };
        let python = runs([frame(2), frame(4), call(1150), call(1160), frame(6), call(1350)]);
        let p = |offset| python_frame::word(1, offset);
        let root = (vec![0x11, p(2), p(4), 0x22, 0x33, p(6), 0x44], stack_end::ROOT);
        assert_eq!(merged(&NATIVE, stack_end::ROOT, &python), root);
        // The native walk ends before the second run: what lies between is not known.
        let cut = (vec![0x11, p(2), p(4), 0x22, 0x33, 0x44, stack_end::NO_TABLE.into(), p(6)], stack_end::ROOT);
        assert_eq!(merged(&NATIVE, stack_end::NO_TABLE, &python), cut);
        let alone = (vec![stack_end::OFF_STACK.into(), p(2), p(4), p(6)], stack_end::ROOT);
        assert_eq!(merged(&[], stack_end::OFF_STACK, &python), alone);
        let without = (vec![0x11, 0x22, 0x33, 0x44], stack_end::NO_TABLE);
        assert_eq!(merged(&NATIVE, stack_end::NO_TABLE, &runs([])), without);
    }

    #[test]
    fn frames_without_a_call_stand_at_the_end() {
        let python = runs([frame(2)]);
        let expected = (vec![0x11, 0x22, 0x33, 0x44, python_frame::word(1, 2)], stack_end::ROOT);
        assert_eq!(merged(&NATIVE, stack_end::ROOT, &python), expected);
    }

    #[test]
    fn too_many_frames_are_cut_and_say_so() {
        let deep =
            (0..1000).map(|it| frame(it * 2)).chain([Item::Call { at: 1150 }, frame(0), Item::Call { at: 1350 }]);
        let (words, end) = merged(&NATIVE, stack_end::ROOT, &runs(deep));
        assert_eq!((words.len(), end), (MAX_FRAMES + 1 + NATIVE.len(), stack_end::ROOT));
        assert_eq!(words[1 + MAX_FRAMES], u64::from(stack_end::PYTHON_TOO_DEEP));
        assert_eq!(words[MAX_FRAMES + 2], 0x22);
    }

    #[test]
    fn frames_calls_and_places_tell_runs_apart() {
        let call = |at| Item::Call { at };
        let cut = (0..1000).map(|_| frame(2)).collect();
        let whole = (0..MAX_FRAMES).map(|_| frame(2)).collect();
        let all: [Vec<Item<'static>>; 8] = [
            vec![frame(2), frame(4), call(1150)],
            vec![frame(2), frame(6), call(1150)],
            vec![frame(2), frame(4), call(1160)],
            vec![frame(2), call(1150), frame(4), call(1150)],
            vec![frame(2), frame(4)],
            vec![frame(4), frame(2), call(1150)],
            whole,
            cut,
        ];
        let of = |items: &Vec<Item<'static>>, with| runs(items.iter().copied()).fingerprint(with);
        let mut prints: Vec<_> = all.iter().flat_map(|it| [of(it, 1), of(it, 2)]).collect();
        assert_eq!(of(&all[0], 1), prints[0]);
        prints.sort_unstable();
        prints.dedup();
        assert_eq!(prints.len(), 2 * all.len());
    }
}
