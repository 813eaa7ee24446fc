//! What a forked child must not wait for: a thread of its parent, which it does not have.
//!
//! Until a process begins to initialize CUDA, its child may use CUDA itself, whatever other threads were doing.
//! Nothing before that holds a lock. From then on every call fails in the child, before it takes one.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

static IS_WATCHED: AtomicBool = AtomicBool::new(false);
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// Notes that this process begins to initialize CUDA: children that are forked from here on cannot use it.
pub(crate) fn begin() {
    // Threads that come here at once each register the handler. It may run twice.
    if !IS_WATCHED.load(Ordering::Acquire) {
        // SAFETY: the handler only reads and writes atomics.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        IS_WATCHED.store(true, Ordering::Release);
    }
    HAS_BEGUN.store(true, Ordering::SeqCst);
}

/// Whether this process has begun to initialize CUDA.
pub(crate) fn has_begun() -> bool {
    HAS_BEGUN.load(Ordering::SeqCst)
}

/// Whether this is a child of a process that used CUDA: every call fails there.
pub(crate) fn is_forked_child() -> bool {
    IS_FORKED.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    if has_begun() {
        IS_FORKED.store(true, Ordering::Relaxed);
    }
}

/// A value that is made on first use. Threads that need it at once each make one, and one of these stays.
pub(crate) struct Lazy<T>(AtomicPtr<T>);

impl<T: Send + Sync + 'static> Lazy<T> {
    pub(crate) const fn new() -> Self {
        Lazy(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Returns the value; it stays as long as the process.
    pub(crate) fn get_or_make(&self, make: impl FnOnce() -> T) -> &'static T {
        let known = self.0.load(Ordering::Acquire);
        if !known.is_null() {
            // SAFETY: only the code below stores it, and what it points to is never freed.
            return unsafe { &*known };
        }
        let made = Box::into_raw(Box::new(make()));
        match self.0.compare_exchange(std::ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: it came from a box, and is never freed from here on.
            Ok(_) => unsafe { &*made },
            Err(first) => {
                // SAFETY: it came from the box above, and nobody else has seen it.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: as for `known`.
                unsafe { &*first }
            }
        }
    }
}

/// Writes a line to standard error, without the lock that Rust's own has.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    let line = format!("softgpu: {text}\n");
    // SAFETY: the pointer and length are those of `line`. A line that cannot be written is lost.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}
