//! What a run holds until its memory is given back.

use std::cell::UnsafeCell;
use std::ops::Deref;

/// Used only inside of the run, or by our own threads before.
#[derive(Debug)]
pub struct Held<T>(UnsafeCell<Option<T>>);

// SAFETY: shared like a `T`, and emptied only when nobody uses it.
unsafe impl<T: Send + Sync> Sync for Held<T> {}

impl<T> Held<T> {
    pub fn new(held: T) -> Self {
        Held(UnsafeCell::new(Some(held)))
    }

    /// Drops what is held.
    ///
    /// # Safety
    /// Nobody uses it, now or later.
    pub unsafe fn empty(&self) {
        // SAFETY: the caller promises that nobody uses what is held, now or later.
        drop(unsafe { (*self.0.get()).take() });
    }
}

impl<T> Deref for Held<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: it is emptied only when nobody uses it.
        match unsafe { &*self.0.get() } {
            Some(held) => held,
            None => given_back(),
        }
    }
}

#[cold]
fn given_back() -> ! {
    panic!("this was given back");
}
