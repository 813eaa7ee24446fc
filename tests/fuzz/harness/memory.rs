//! The allocator: refuses what is above a limit, so that a reader which asks for too much dies of it.
//!
//! Memory that C code allocates (zstd's) isn't counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST_HELD: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Allows so many bytes more than are held now.
pub(crate) fn allow(bytes: usize) {
    let held = HELD.load(Relaxed);
    MOST_HELD.store(held, Relaxed);
    LIMIT.store(held.saturating_add(bytes), Relaxed);
}

/// Ends the limit; returns how many bytes were held at most beyond those of its beginning.
pub(crate) fn allow_all(bytes: usize) -> usize {
    let limit = LIMIT.swap(usize::MAX, Relaxed);
    MOST_HELD.load(Relaxed).saturating_sub(limit.saturating_sub(bytes))
}

/// The system's allocator, with a limit.
pub(crate) struct Limited;

impl Limited {
    fn take(bytes: usize) -> bool {
        let held = HELD.fetch_add(bytes, Relaxed) + bytes;
        MOST_HELD.fetch_max(held, Relaxed);
        let fits = held <= LIMIT.load(Relaxed);
        if !fits {
            HELD.fetch_sub(bytes, Relaxed);
        }
        fits
    }
}

// SAFETY: everything is the system allocator's, or refused.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        if Limited::take(layout.size()) { unsafe { System.alloc(layout) } } else { std::ptr::null_mut() }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        if Limited::take(layout.size()) { unsafe { System.alloc_zeroed(layout) } } else { std::ptr::null_mut() }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // While it is moved, both are there.
        if !Limited::take(bytes) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        let moved = unsafe { System.realloc(at, layout, bytes) };
        HELD.fetch_sub(if moved.is_null() { bytes } else { layout.size() }, Relaxed);
        moved
    }
}
