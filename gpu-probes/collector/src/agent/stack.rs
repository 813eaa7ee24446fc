//! The caller's stack at a launch.
//!
//! Kept: the API function that the program called (the outermost frame in the runtime or, where the
//! runtime was not called, in the driver) and everything outside it. Dropped: the collector, the
//! tracing library, and the inner functions of the other two. If the runtime is linked statically,
//! its inner functions cannot be told from the program's and stay.

use super::backend::Layer;
use super::output::Output;
use super::python::{Python, Runs, Words};
use super::zeroed::{ZeroIsValid, Zeroed};
use std::cell::UnsafeCell;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use xputrace_python::Code;
use xputrace_unwind::{Bounds, End, Key, Memory, Pushed, Registers, Tables, Walker, for_each_loaded};
use xputrace_wire::message::demand;
use xputrace_wire::record::{MAX_FRAMES, stack_end};

/// What taking stacks needs in a process that was asked for them.
#[derive(Debug)]
pub(crate) struct Stacks {
    native: Option<Tables>,
    pub(crate) python: Option<Python>,
    /// By ring: used by the thread that has it. One that takes it over finds nothing of its own there.
    taken: Zeroed<OfRing>,
}

#[derive(Debug)]
#[repr(transparent)]
struct OfRing(UnsafeCell<Taken>);

/// A thread's last stack, and the ids of those before: about 440 KiB, touched where used.
#[derive(Debug)]
struct Taken {
    walker: Walker,
    /// Ids that the tracer was told.
    ids: Memory,
    python: Runs,
    words: Words,
}

// SAFETY: a walker and a memory whose bytes are 0 remember nothing; the others are integers. None needs a drop.
unsafe impl ZeroIsValid for OfRing {}
// SAFETY: only the thread that has the ring uses it (`Stacks::take`).
unsafe impl Sync for OfRing {}

const _: () = assert!(xputrace_unwind::MOST_FRAMES == MAX_FRAMES);

/// Where the calling thread is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Here<'a> {
    pub(crate) registers: &'a Pushed,
    pub(crate) bounds: Option<Bounds>,
    pub(crate) modules: &'a Modules,
    /// That of the call.
    pub(crate) layer: Layer,
    /// What is called: anything that differs from call to call.
    pub(crate) called: u64,
}

/// Where a walk begins.
#[derive(Clone, Copy, Debug)]
struct Start<'a> {
    tables: &'a Tables,
    registers: Registers,
    bounds: Bounds,
}

/// What came of a call's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StackTaken {
    Id(u32),
    /// Only Python's frames were asked for, and there are none.
    Empty,
    Lost,
}

impl Stacks {
    /// What these bits of the demand need; `None` if they ask for no stacks.
    pub(crate) fn of(demand: u64, rings: u32) -> io::Result<Option<Self>> {
        let native = demand & (demand::STACKS | demand::HOST_STACKS | demand::CAPTURES) != 0;
        let python = demand & (demand::PYTHON | demand::HOST_PYTHON | demand::CAPTURES_PYTHON) != 0;
        if !native && !python {
            return Ok(None);
        }
        Ok(Some(Stacks {
            native: native.then(Tables::new),
            python: python.then(Python::new).transpose()?,
            taken: Zeroed::new(rings as usize)?,
        }))
    }

    /// Returns the id of the calling thread's stack outside us. `code_id` returns the id of a Python function, 0 if
    /// it has none; `None` if the tracer could not be told of it. `stack_id` returns the id of a stack by its words
    /// and why it ends, a number of [`stack_end`]; `None` if it has none, or the tracer could not be told. It isn't
    /// called for a stack that the thread had before.
    ///
    /// # Safety
    /// The calling thread has the ring of `out`; its registers and bounds are given.
    #[inline]
    pub(crate) unsafe fn take(
        &self,
        out: &mut Output,
        here: &Here<'_>,
        mut code_id: impl FnMut(&Python, &mut Output, &Code<'_>) -> Option<u32>,
        stack_id: impl FnOnce(&mut Output, &[u64], u16) -> Option<u32>,
    ) -> StackTaken {
        let Some(taken) = self.taken.get(out.ring() as usize) else { return StackTaken::Lost };
        // SAFETY: the caller's promise: no other thread has it.
        let taken = unsafe { &mut *taken.0.get() };
        if let Some(python) = &self.python {
            // SAFETY: the thread stays in its call meanwhile.
            let all =
                unsafe { python.take(&mut taken.python, |code| code.map_or(Some(0), |it| code_id(python, out, it))) };
            if all.is_none() {
                return StackTaken::Lost;
            }
        }
        // SAFETY: the caller's promise.
        let start = unsafe { self.start(here) };
        let key = Key { about: here.about(&taken.python), hint: here.called };
        // SAFETY: the caller's promises.
        let known = start.and_then(|it| unsafe { taken.ids.recall(&mut taken.walker, &key, &it.registers, it.bounds) });
        if let Some(id) = known {
            return StackTaken::Id(id);
        }
        let (words, end) = match &self.native {
            // SAFETY: the caller's promises.
            Some(_) => unsafe { taken.walk(here, start.as_ref()) },
            None => taken.words.merge(&[], &[], stack_end::ROOT, &taken.python),
        };
        if (words, end) == (&[], stack_end::ROOT) {
            return StackTaken::Empty;
        }
        let Some(id) = stack_id(out, words, end) else { return StackTaken::Lost };
        if let Some(start) = start {
            taken.ids.keep(&taken.walker, &key, start.bounds, id);
        }
        StackTaken::Id(id)
    }

    /// Where the native stack is walked from: `None` if it isn't asked for, or not on the thread's own stack.
    ///
    /// # Safety
    /// The registers and bounds are those of the calling thread.
    #[inline]
    unsafe fn start(&self, here: &Here<'_>) -> Option<Start<'_>> {
        let (tables, bounds) = (self.native.as_ref()?, here.bounds?);
        // SAFETY: the caller's promise.
        let registers = unsafe { here.registers.registers(bounds)? };
        Some(Start { tables, registers, bounds })
    }

    /// Looks at libraries that were added.
    pub(crate) fn refresh(&self) {
        self.python.iter().for_each(Python::look);
    }
}

impl Taken {
    /// Walks the native stack; returns the words of the whole stack, and why it ends.
    ///
    /// # Safety
    /// As for [`Walker::walk`].
    unsafe fn walk(&mut self, here: &Here<'_>, start: Option<&Start<'_>>) -> (&[u64], u16) {
        // SAFETY: the caller's promise.
        let end = start.map(|it| unsafe { self.walker.walk(it.tables, it.registers, it.bounds).1 });
        let (native, places, end) = match end {
            Some(end) => {
                let native = here.modules.from_api(self.walker.last(), here.layer);
                let places = self.walker.places();
                (native, &places[places.len() - native.len()..], number(end))
            }
            None => (&[] as &[u64], &[] as &[u64], stack_end::OFF_STACK),
        };
        if self.python.is_empty() {
            return (native, end);
        }
        self.words.merge(native, places, end, &self.python)
    }
}

impl Here<'_> {
    /// What a stack's words follow from, beside its native frames.
    #[inline]
    fn about(&self, python: &Runs) -> [u64; 2] {
        let of_native = self.layer as u64 | self.modules.len() << 8;
        if python.is_empty() { [of_native, 0] } else { python.fingerprint(of_native).into() }
    }
}

fn number(end: End) -> u16 {
    match end {
        End::Root => stack_end::ROOT,
        End::NoTable => stack_end::NO_TABLE,
        End::Unsupported => stack_end::UNSUPPORTED_RULE,
        End::OffStack => stack_end::OFF_STACK,
        End::TooDeep => stack_end::TOO_DEEP,
    }
}

const MODULES: usize = 16;

/// The address ranges of the tracing library, the driver and the runtime. Written by the control
/// thread, read at launches.
#[derive(Debug)]
pub struct Modules {
    tracing: Ranges,
    driver: Ranges,
    runtime: Ranges,
}

#[derive(Debug)]
struct Ranges {
    ends: [[AtomicU64; 2]; MODULES],
    len: AtomicUsize,
}

impl Ranges {
    const fn new() -> Self {
        Ranges { ends: [const { [const { AtomicU64::new(0) }; 2] }; MODULES], len: AtomicUsize::new(0) }
    }

    #[inline]
    fn contain(&self, address: u64) -> bool {
        let len = self.len.load(Ordering::Acquire).min(MODULES);
        self.ends[..len]
            .iter()
            .any(|[start, end]| (start.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)).contains(&address))
    }

    /// Adds a new range. One writer at a time.
    fn add(&self, Range { start, end }: Range<u64>) {
        let len = self.len.load(Ordering::Relaxed);
        if len == MODULES || self.contain(start) {
            return;
        }
        self.ends[len][0].store(start, Ordering::Relaxed);
        self.ends[len][1].store(end, Ordering::Relaxed);
        self.len.store(len + 1, Ordering::Release);
    }
}

impl Default for Modules {
    fn default() -> Self {
        Modules { tracing: Ranges::new(), driver: Ranges::new(), runtime: Ranges::new() }
    }
}

impl Modules {
    /// How many ranges there are. None is removed or changed.
    #[inline]
    fn len(&self) -> u64 {
        [&self.tracing, &self.driver, &self.runtime].iter().map(|it| it.len.load(Ordering::Acquire) as u64).sum()
    }

    /// Adds the relevant libraries that are mapped now. `layer_of` returns a library's layer by its
    /// file name.
    pub fn refresh(&self, layer_of: impl Fn(&[u8]) -> Option<Layer>) {
        for_each_loaded(|library| {
            let name = library.path.rsplit(|&it| it == b'/').next().unwrap_or_default();
            let ranges = match layer_of(name) {
                Some(Layer::Tracing) => &self.tracing,
                Some(Layer::Driver) => &self.driver,
                Some(Layer::Runtime) => &self.runtime,
                None => return,
            };
            library.range().into_iter().for_each(|it| ranges.add(it));
        });
    }

    /// Returns the frames from the API function outward, for a call to this layer.
    #[inline]
    pub fn from_api<'a>(&self, frames: &'a [u64], called: Layer) -> &'a [u64] {
        let run = |frames: &[u64], of: &Ranges| frames.iter().take_while(|&&it| of.contain(it)).count();
        let frames = &frames[run(frames, &self.tracing)..];
        let driver = run(frames, &self.driver);
        let runtime = run(&frames[driver..], &self.runtime);
        let kept = match (called, runtime) {
            // The driver only passes on the runtime's callbacks.
            (Layer::Runtime, 0) => driver,
            (_, 0) => driver.saturating_sub(1),
            (_, _) => driver + runtime - 1,
        };
        &frames[kept..]
    }

    #[cfg(test)]
    fn with(tracing: Range<u64>, driver: Range<u64>, runtime: Range<u64>) -> Self {
        let modules = Modules::default();
        modules.tracing.add(tracing);
        modules.driver.add(driver);
        modules.runtime.add(runtime);
        modules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_inside_cupti_and_cuda_are_dropped_but_the_outermost() {
        let modules = Modules::with(0x1000..0x2000, 0x3000..0x4000, 0x5000..0x6000);
        let runtime = |frames: &[u64]| modules.from_api(frames, Layer::Runtime).to_vec();
        let driver = |frames: &[u64]| modules.from_api(frames, Layer::Driver).to_vec();
        assert_eq!(runtime(&[0x1001, 0x1002, 0x3001, 0x5001, 0x5002, 0x9000]), [0x5002, 0x9000]);
        assert_eq!(runtime(&[0x1001, 0x3001, 0x9000, 0x9001]), [0x9000, 0x9001], "static cudart");
        assert_eq!(driver(&[0x1001, 0x3001, 0x3002, 0x9000]), [0x3002, 0x9000]);
        assert_eq!(
            driver(&[0x1001, 0x3001, 0x3002, 0x5001, 0x5002, 0x9000]),
            [0x5002, 0x9000],
            "called by the runtime"
        );
        assert_eq!(driver(&[0x1001, 0x9000, 0x3000]), [0x9000, 0x3000]);
        assert_eq!(runtime(&[0x9000]), [0x9000]);
        assert_eq!(runtime(&[]), [0; 0]);
        assert_eq!(runtime(&[0x1001]), [0; 0]);
    }
}
