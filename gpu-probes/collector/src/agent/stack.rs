//! The caller's stack at a launch.
//!
//! Kept: the called API function (the outermost frame in the runtime for a runtime call, in the
//! driver for a driver call) and everything outside it. Dropped: the collector, the tracing
//! library, and the inner functions of the other two. If the runtime is linked statically, its
//! inner functions cannot be told from the program's and stay.

use super::backend::Layer;
use super::zeroed::{ZeroIsValid, Zeroed};
use std::cell::UnsafeCell;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use xputrace_unwind::{Bounds, End, Pushed, Tables, Walker, for_each_loaded};
use xputrace_wire::record::{MAX_FRAMES, stack_end};

/// State for unwinding, if the demand includes stacks.
#[derive(Debug)]
pub(crate) struct Stacks {
    tables: Tables,
    /// By ring; used only by the ring's current owner. What an earlier owner left there is never
    /// taken for the owner's own.
    walkers: Zeroed<RingWalker>,
}

#[derive(Debug)]
#[repr(transparent)]
struct RingWalker(UnsafeCell<Walker>);

// SAFETY: a walker whose bytes are 0 is empty, and needs no drop.
unsafe impl ZeroIsValid for RingWalker {}
// SAFETY: only the ring's owner uses it (`Stacks::take`).
unsafe impl Sync for RingWalker {}

const _: () = assert!(xputrace_unwind::MOST_FRAMES == MAX_FRAMES);

impl Stacks {
    pub(crate) fn new(rings: u32) -> io::Result<Self> {
        Ok(Stacks { tables: Tables::new(), walkers: Zeroed::new(rings as usize)? })
    }

    /// Returns the calling thread's stack outside us, and why it ends: a number of [`stack_end`].
    /// Returns `None` if the thread is not running on its own stack.
    ///
    /// # Safety
    /// The calling thread owns `ring`, and `registers` and `bounds` are its own. The result is only
    /// used until the next call.
    #[inline]
    pub(crate) unsafe fn take(&self, ring: u32, registers: &Pushed, bounds: Bounds) -> Option<(&[u64], u16)> {
        let walker = self.walkers.get(ring as usize)?.0.get();
        // SAFETY: the caller's promises.
        let (frames, end) = unsafe { (*walker).walk(&self.tables, registers.registers(bounds)?, bounds) };
        Some((frames, number(end)))
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
        if called != Layer::Runtime {
            return &frames[driver.saturating_sub(1)..];
        }
        // The driver only passes on the runtime's callbacks.
        let frames = &frames[driver..];
        &frames[run(frames, &self.runtime).saturating_sub(1)..]
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
        assert_eq!(driver(&[0x1001, 0x3001, 0x3002, 0x5001, 0x9000]), [0x3002, 0x5001, 0x9000]);
        assert_eq!(driver(&[0x1001, 0x9000, 0x3000]), [0x9000, 0x3000]);
        assert_eq!(runtime(&[0x9000]), [0x9000]);
        assert_eq!(runtime(&[]), [0; 0]);
        assert_eq!(runtime(&[0x1001]), [0; 0]);
    }
}
