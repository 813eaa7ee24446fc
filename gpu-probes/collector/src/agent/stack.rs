//! The caller's stack at a launch, by frame pointers.
//!
//! CUDA's libraries keep frame pointers, so the chain from the callback reaches the application.
//! The walk only reads aligned, increasing addresses within the thread's own stack. In code without
//! frame pointers rbp has any value, and the walk ends there or reaches an address outside any
//! code, which [`super::code`] detects.
//!
//! Kept: the called API function (the outermost frame in the runtime for a runtime call, in the
//! driver for a driver call) and everything outside it. Dropped: the collector, the tracing
//! library, and the inner functions of the other two. If the runtime is linked statically, its
//! inner functions cannot be told from the program's and stay.

use super::backend::Layer;
use super::code::may_be_code;
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use xputrace_wire::record::MAX_FRAMES;

/// The address range of a thread's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub low: usize,
    pub high: usize,
}

/// The registers that a caller can rely on, at the moment when the backend called us: everything
/// needed to unwind by any method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Registers {
    /// Address of the return address.
    pub rsp: usize,
    pub rbx: usize,
    /// The caller's frame pointer, in code that keeps one.
    pub rbp: usize,
    pub r12: usize,
    pub r13: usize,
    pub r14: usize,
    pub r15: usize,
}

/// A method to find the callers of a function.
pub trait Unwind {
    /// Writes return addresses, innermost first, to `out`; returns their number. They may include
    /// addresses that code without frame pointers led to.
    ///
    /// # Safety
    /// The addresses from `registers.rsp` to `bounds.high` are readable if `registers.rsp` is
    /// within `bounds`.
    unsafe fn unwind(&mut self, registers: &Registers, bounds: Bounds, out: &mut [u64]) -> usize;
}

/// Follows the chain of frame pointers.
#[derive(Clone, Copy, Debug)]
pub struct FramePointers;

impl Unwind for FramePointers {
    #[inline]
    unsafe fn unwind(&mut self, registers: &Registers, bounds: Bounds, out: &mut [u64]) -> usize {
        // SAFETY: the caller's promise.
        unsafe { walk(registers, bounds, out) }
    }
}

/// # Safety
/// That of [`Unwind::unwind`].
#[inline]
unsafe fn walk(frame: &Registers, bounds: Bounds, out: &mut [u64]) -> usize {
    let word = size_of::<usize>();
    let readable = |at: usize, len: usize| at.is_multiple_of(word) && at <= bounds.high - len;
    if frame.rsp < bounds.low || bounds.high < 2 * word || !readable(frame.rsp, word) || out.is_empty() {
        return 0;
    }
    // SAFETY: within the stack, at or above the stack pointer.
    out[0] = unsafe { *(frame.rsp as *const usize) } as u64;
    let (mut n, mut last, mut rbp) = (1, frame.rsp, frame.rbp);
    while n < out.len() && rbp > last && readable(rbp, 2 * word) {
        // SAFETY: above an address that was within the stack, and below its end.
        let (next, back) = unsafe { (*(rbp as *const usize), *((rbp + word) as *const usize)) };
        // Nothing to return to at the start of a thread.
        if back == 0 {
            break;
        }
        out[n] = back as u64;
        n += 1;
        if !may_be_code(back as u64) {
            break;
        }
        last = rbp;
        rbp = next;
    }
    n
}

/// Returns the stack of the calling thread. May allocate: called once per thread.
pub fn bounds() -> Option<Bounds> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut low, mut size) = (std::ptr::null_mut::<c_void>(), 0);
    // SAFETY: the attributes are initialised by the first call, read by the second, and
    // destroyed by the third.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let answer = libc::pthread_attr_getstack(attributes.as_ptr(), &mut low, &mut size);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        if answer != 0 {
            return None;
        }
    }
    let low = low as usize;
    Some(Bounds { low, high: low.checked_add(size)? })
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
    ends: [[AtomicUsize; 2]; MODULES],
    len: AtomicUsize,
}

impl Ranges {
    const fn new() -> Self {
        Ranges { ends: [const { [const { AtomicUsize::new(0) }; 2] }; MODULES], len: AtomicUsize::new(0) }
    }

    #[inline]
    fn contain(&self, address: u64) -> bool {
        let address = address as usize;
        let len = self.len.load(Ordering::Acquire).min(MODULES);
        self.ends[..len]
            .iter()
            .any(|[start, end]| (start.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)).contains(&address))
    }

    /// Adds a new range. One writer at a time.
    fn add(&self, start: usize, end: usize) {
        let len = self.len.load(Ordering::Relaxed);
        if len == MODULES || self.contain(start as u64) {
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
        for_each_library(|library| {
            let name = library.path.rsplit(|&it| it == b'/').next().unwrap_or_default();
            let ranges = match layer_of(name) {
                Some(Layer::Tracing) => &self.tracing,
                Some(Layer::Driver) => &self.driver,
                Some(Layer::Runtime) => &self.runtime,
                None => return,
            };
            ranges.add(library.start, library.end);
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
    fn with(tracing: (usize, usize), driver: (usize, usize), runtime: (usize, usize)) -> Self {
        let modules = Modules::default();
        modules.tracing.add(tracing.0, tracing.1);
        modules.driver.add(driver.0, driver.1);
        modules.runtime.add(runtime.0, runtime.1);
        modules
    }
}

/// A mapped library.
#[derive(Debug)]
pub struct Library<'a> {
    pub path: &'a [u8],
    /// Address range of its segments.
    pub start: usize,
    pub end: usize,
}

/// Calls `each` for every library mapped by the dynamic loader, the program first (with an empty
/// path). Returns how often libraries were added and removed so far.
pub fn for_each_library(mut each: impl FnMut(Library<'_>)) -> (u64, u64) {
    struct State<'a> {
        each: &'a mut dyn FnMut(Library<'_>),
        changes: (u64, u64),
    }

    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, state: *mut c_void) -> c_int {
        // SAFETY: the loader's entry, and the state below.
        let (info, state) = unsafe { (&*info, &mut *state.cast::<State<'_>>()) };
        state.changes = (info.dlpi_adds, info.dlpi_subs);
        let path = if info.dlpi_name.is_null() {
            b"".as_slice()
        } else {
            // SAFETY: the loader's C string.
            unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes()
        };
        let headers = if info.dlpi_phdr.is_null() {
            &[]
        } else {
            // SAFETY: the library's own program headers.
            unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) }
        };
        let base = info.dlpi_addr as usize;
        let segments = headers.iter().filter(|it| it.p_type == libc::PT_LOAD);
        let (mut start, mut end) = (usize::MAX, 0);
        for segment in segments {
            start = start.min(base.wrapping_add(segment.p_vaddr as usize));
            end = end.max(base.wrapping_add(segment.p_vaddr.wrapping_add(segment.p_memsz) as usize));
        }
        let library = Library { path, start, end };
        if start < end {
            let each = std::panic::AssertUnwindSafe(|| (state.each)(library));
            if std::panic::catch_unwind(each).is_err() {
                return 1;
            }
        }
        0
    }

    let mut state = State { each: &mut each, changes: (0, 0) };
    // SAFETY: `visit` and its state live through the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut state).cast()) };
    state.changes
}

/// Maximum frames of a walk; more than are kept, so that inner ones can be dropped.
pub const WALK_FRAMES: usize = MAX_FRAMES;

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks a made-up stack: 64 words, with frames at the given word numbers.
    fn walked(words: &[usize; 64], rsp: usize, rbp: usize) -> Vec<u64> {
        let base = words.as_ptr() as usize;
        let bounds = Bounds { low: base, high: base + size_of_val(words) };
        let mut out = [0; 16];
        let frame =
            Registers { rbp: base.wrapping_add(rbp * 8), rsp: base.wrapping_add(rsp * 8), ..Registers::default() };
        // SAFETY: the bounds are those of `words`.
        let n = unsafe { FramePointers.unwind(&frame, bounds, &mut out) };
        out[..n].to_vec()
    }

    fn stack(frames: &[(usize, usize, usize)]) -> Box<[usize; 64]> {
        let mut words = Box::new([0; 64]);
        let base = words.as_ptr() as usize;
        for &(at, next, back) in frames {
            words[at] = base + next * 8;
            words[at + 1] = back;
        }
        words
    }

    #[test]
    fn frames_come_innermost_first() {
        let mut words = stack(&[(4, 10, 0x5000), (10, 20, 0x6000), (20, 0, 0x7000)]);
        words[2] = 0x4000;
        assert_eq!(walked(&words, 2, 4), [0x4000, 0x5000, 0x6000, 0x7000]);
    }

    #[test]
    fn the_walk_ends_where_rbp_is_not_a_frame() {
        let mut words = stack(&[(4, 10, 0x5000), (10, 4, 0x6000)]);
        words[2] = 0x4000;
        assert_eq!(walked(&words, 2, 4), [0x4000, 0x5000, 0x6000], "backwards");
        words[10] += 1;
        assert_eq!(walked(&words, 2, 4), [0x4000, 0x5000, 0x6000], "unaligned");
        assert_eq!(walked(&words, 2, 63), [0x4000], "past the end");
        assert_eq!(walked(&words, 2, 64), [0x4000], "past the end");
        assert_eq!(walked(&words, 2, usize::MAX / 8), [0x4000], "any number");
        words[5] = 7;
        assert_eq!(walked(&words, 2, 4), [0x4000, 7], "no code there");
        words[5] = 0;
        assert_eq!(walked(&words, 2, 4), [0x4000], "the end");
        assert_eq!(walked(&words, 64, 4), [0; 0], "on another stack");
    }

    #[test]
    fn frames_inside_cupti_and_cuda_are_dropped_but_the_outermost() {
        let modules = Modules::with((0x1000, 0x2000), (0x3000, 0x4000), (0x5000, 0x6000));
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

    #[test]
    fn a_thread_knows_its_own_stack() {
        let local = 0u8;
        let check = |at: usize| bounds().is_some_and(|it| it.low <= at && at < it.high);
        assert!(check(&raw const local as usize));
        std::thread::spawn(move || {
            let local = 0u8;
            assert!(check(&raw const local as usize));
        })
        .join()
        .unwrap();
    }
}
