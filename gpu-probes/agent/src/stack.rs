//! The caller's stack at a launch.
//!
//! Kept: the API function that the program called (the outermost frame in the runtime or, where the
//! runtime was not called, in the driver) and everything outside it. Dropped: the collector, the
//! tracing library, and the inner functions of the other two. If the runtime is linked statically,
//! its inner functions cannot be told from the program's and stay.

use super::library::{Layer, Library};
use super::python::{Python, Runs, Words};
use super::state::output::Output;
use super::zeroed::{ZeroIsValid, Zeroed};
use std::cell::UnsafeCell;
use std::io;
use xputrace_python::Code;
use xputrace_unwind::{
    Bounds, End, MappedObject, Pushed, Registers, StackMemory, StackMemoryKey, UnwindTables, Walker,
};
use xputrace_wire::message::demand;
use xputrace_wire::record::{MAX_FRAMES, stack_end};

/// What taking stacks needs in a process that was asked for them.
#[derive(Debug)]
pub(crate) struct Stacks {
    native: Option<UnwindTables>,
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
    ids: StackMemory,
    python: Runs,
    words: Words,
    layers: Layers,
}

// SAFETY: a walker and a memory whose bytes are 0 remember nothing; a layer of 0 is a layer, which without a key is of no
// file; the others are integers. None needs a drop.
unsafe impl ZeroIsValid for OfRing {}
// SAFETY: only the thread that has the ring uses it (`Stacks::take`).
unsafe impl Sync for OfRing {}

const _: () = assert!(xputrace_unwind::MOST_FRAMES == MAX_FRAMES);

/// Where the calling thread is.
#[derive(Clone, Copy)]
pub(crate) struct Here<'a> {
    pub(crate) registers: &'a Pushed,
    pub(crate) bounds: Option<Bounds>,
    pub(crate) backend: &'a dyn Library,
    /// That of the call.
    pub(crate) layer: Layer,
    /// What is called: anything that differs from call to call.
    pub(crate) called: u64,
}

/// Where a walk begins.
#[derive(Clone, Copy, Debug)]
struct Start<'a> {
    tables: &'a UnwindTables,
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

impl StackTaken {
    /// Returns the stack's id, if it has one.
    pub(crate) fn id(self) -> Option<u32> {
        match self {
            StackTaken::Id(id) => Some(id),
            StackTaken::Empty | StackTaken::Lost => None,
        }
    }
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
            native: native.then(UnwindTables::new),
            python: python.then(Python::new).transpose()?,
            taken: Zeroed::new(rings as usize)?,
        }))
    }

    /// Returns the id of the calling thread's stack outside us. `code_id` returns the id of a Python function, 0 if
    /// it has none; `None` if the tracer could not be told of it. `stack_id` returns the id of a stack by its native
    /// frames, its words and why it ends, a number of [`stack_end`]; `None` if it has none, or the tracer could not be
    /// told. It isn't called for a stack that the thread had before.
    ///
    /// # Safety
    /// The calling thread has the ring of `out`. `here` has its registers, at a call that has not returned, and the
    /// bounds of its stack, which is readable from there to its end.
    #[inline]
    pub(crate) unsafe fn take(
        &self,
        out: &mut Output,
        here: &Here<'_>,
        mut code_id: impl FnMut(&Python, &mut Output, &Code<'_>) -> Option<u32>,
        stack_id: impl FnOnce(&mut Output, &Native<'_>, &[u64], u16) -> Option<u32>,
    ) -> StackTaken {
        let Some(taken) = self.taken.get(out.ring() as usize) else { return StackTaken::Lost };
        // SAFETY: the caller promises that the thread has the ring of `out`: no other thread has what was taken for it.
        let taken = unsafe { &mut *taken.0.get() };
        if let Some(python) = &self.python {
            // SAFETY: the thread stays in its call meanwhile.
            let all =
                unsafe { python.take(&mut taken.python, |code| code.map_or(Some(0), |it| code_id(python, out, it))) };
            if all.is_none() {
                return StackTaken::Lost;
            }
        }
        // SAFETY: the caller promises the calling thread's registers and bounds; its stack is readable within them.
        let start = unsafe { self.start(here) };
        let key = StackMemoryKey { about: here.about(&taken.python), hint: here.called };
        // SAFETY: the caller promises the calling thread's registers and bounds; its stack is readable within them.
        let known = start.and_then(|it| unsafe { taken.ids.recall(&mut taken.walker, &key, &it.registers, it.bounds) });
        if let Some(id) = known {
            return StackTaken::Id(id);
        }
        // SAFETY: the caller promises the calling thread's registers and bounds; its stack is readable within them.
        let end = self.native.as_ref().map(|_| unsafe { taken.walk(start.as_ref()) });
        let native = match &start {
            Some(_) => Native::of(&taken.walker, &mut taken.layers, here),
            None => Native::NONE,
        };
        let (words, end) = match end {
            Some(end) if taken.python.is_empty() => (native.frames(), end),
            end => {
                let end = end.unwrap_or(stack_end::ROOT);
                taken.words.merge(native.frames(), native.places(), end, &taken.python)
            }
        };
        if (words, end) == (&[], stack_end::ROOT) {
            return StackTaken::Empty;
        }
        let Some(id) = stack_id(out, &native, words, end) else { return StackTaken::Lost };
        if let Some(start) = start {
            taken.ids.keep(&taken.walker, &key, start.bounds, id);
        }
        StackTaken::Id(id)
    }

    /// Where the native stack is walked from: `None` if it isn't asked for, or not on the thread's own stack.
    ///
    /// # Safety
    /// `here` has the calling thread's registers and the bounds of its stack, which is readable from there to its end.
    #[inline]
    unsafe fn start(&self, here: &Here<'_>) -> Option<Start<'_>> {
        let (tables, bounds) = (self.native.as_ref()?, here.bounds?);
        // SAFETY: the caller promises the calling thread's registers and bounds; its stack is readable within them.
        let registers = unsafe { here.registers.registers(bounds)? };
        Some(Start { tables, registers, bounds })
    }

    /// Looks at libraries that were added.
    pub(crate) fn refresh(&self) {
        self.python.iter().for_each(Python::look);
    }
}

impl Taken {
    /// Walks the native stack; returns why it ends.
    ///
    /// # Safety
    /// As for [`Walker::walk`].
    unsafe fn walk(&mut self, start: Option<&Start<'_>>) -> u16 {
        // SAFETY: the caller promises the calling thread's registers and bounds; its stack is readable within them.
        let end = start.map(|it| unsafe { self.walker.walk(it.tables, it.registers, it.bounds).1 });
        end.map_or(stack_end::OFF_STACK, number)
    }
}

/// The native frames of a thread's last stack, from the API function outward.
#[derive(Clone, Copy)]
pub(crate) struct Native<'a> {
    /// `None` if no stack was walked.
    walker: Option<&'a Walker>,
    /// Frames inside the API function.
    n_inside: usize,
}

impl<'a> Native<'a> {
    const NONE: Native<'static> = Native { walker: None, n_inside: 0 };

    #[inline]
    fn of(walker: &'a Walker, layers: &mut Layers, here: &Here<'_>) -> Self {
        let mut last: Option<(MappedObject, Option<Layer>)> = None;
        let layer_of = |address: u64| match &last {
            Some((file, layer)) if file.range().contains(&address) => *layer,
            _ => {
                let file = walker.file_at(address)?;
                let layer = layers.of(&file, here.backend);
                last = Some((file, layer));
                layer
            }
        };
        Native { walker: Some(walker), n_inside: n_inside(walker.last(), here.layer, layer_of) }
    }

    #[inline]
    fn frames(&self) -> &'a [u64] {
        self.walker.map_or(&[], |it| &it.last()[self.n_inside..])
    }

    #[inline]
    fn places(&self) -> &'a [u64] {
        self.walker.map_or(&[], |it| &it.places()[self.n_inside..])
    }

    /// Calls `each` for the files that the frames are in; it may be for one several times.
    #[inline]
    pub(crate) fn for_each_file(&self, each: impl FnMut(&MappedObject)) {
        if let Some(walker) = self.walker {
            walker.for_each_file(self.n_inside, each);
        }
    }

    /// Tells the files that the frames are in from others at their addresses.
    #[inline]
    pub(crate) fn files_key(&self) -> u64 {
        let mut sum = 0u64;
        self.for_each_file(|it| sum = sum.wrapping_add(it.key()));
        sum
    }
}

impl Here<'_> {
    /// What a stack's words follow from, beside its native frames.
    #[inline]
    fn about(&self, python: &Runs) -> [u64; 2] {
        let of_native = self.layer as u64;
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

/// The layers that files belong to, as far as the thread met them: a newer file takes an older one's place. All zero is
/// empty.
#[derive(Debug)]
struct Layers([OfFile; FILES]);

#[derive(Clone, Copy, Debug)]
struct OfFile {
    /// [`MappedObject::key`].
    key: u64,
    layer: Option<Layer>,
}

const FILES: usize = 64;

impl Layers {
    /// Returns the layer of a file that the thread's stack returns into.
    #[inline]
    fn of(&mut self, file: &MappedObject, backend: &dyn Library) -> Option<Layer> {
        let key = file.key();
        let slot = &mut self.0[key as usize / 2 % FILES];
        if slot.key != key {
            *slot = OfFile { key, layer: layer_of(file, backend) };
        }
        slot.layer
    }
}

#[cold]
fn layer_of(file: &MappedObject, backend: &dyn Library) -> Option<Layer> {
    // SAFETY: the stack returns into the file.
    let path = unsafe { file.description() }?.path;
    backend.layer_of(path.rsplit(|&it| it == b'/').next().unwrap_or_default())
}

/// Returns how many frames are inside the API function, of a call to this layer. `layer_of` is asked for frames from
/// the innermost outward.
#[inline]
fn n_inside(frames: &[u64], called: Layer, mut layer_of: impl FnMut(u64) -> Option<Layer>) -> usize {
    let mut run = |begin: usize, of: Layer| frames[begin..].iter().take_while(|it| layer_of(**it) == Some(of)).count();
    let tracing = run(0, Layer::Tracing);
    let driver = run(tracing, Layer::Driver);
    let runtime = run(tracing + driver, Layer::Runtime);
    tracing
        + match (called, runtime) {
            // The driver only passes on the runtime's callbacks.
            (Layer::Runtime, 0) => driver,
            (_, 0) => driver.saturating_sub(1),
            (_, _) => driver + runtime - 1,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_api(frames: &[u64], called: Layer) -> Vec<u64> {
        let layer_of = |it: u64| match it >> 12 {
            1 => Some(Layer::Tracing),
            3 => Some(Layer::Driver),
            5 => Some(Layer::Runtime),
            _ => None,
        };
        frames[n_inside(frames, called, layer_of)..].to_vec()
    }

    #[test]
    fn frames_inside_cupti_and_cuda_are_dropped_but_the_outermost() {
        let runtime = |frames: &[u64]| from_api(frames, Layer::Runtime);
        let driver = |frames: &[u64]| from_api(frames, Layer::Driver);
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
