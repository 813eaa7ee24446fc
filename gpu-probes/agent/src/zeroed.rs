//! Memory for the fixed tables: zeroed by Linux and touched only where used, so a large table costs
//! only what is in it.

use std::io;
use std::ops::Deref;

/// Types for which all-zero bytes are a value.
///
/// # Safety
/// All-zero bytes must be a valid value that needs no drop.
pub unsafe trait ZeroIsValid: Sync {}

// SAFETY: integers and atomics may be 0.
unsafe impl ZeroIsValid for std::sync::atomic::AtomicU64 {}
// SAFETY: as above.
unsafe impl ZeroIsValid for std::sync::atomic::AtomicU8 {}

/// A slice of zeroed values that keeps its address.
#[derive(Debug)]
pub struct Zeroed<T: ZeroIsValid> {
    base: *mut T,
    len: usize,
}

// SAFETY: it owns its values, which are Sync (and without drop).
unsafe impl<T: ZeroIsValid> Send for Zeroed<T> {}
// SAFETY: as above.
unsafe impl<T: ZeroIsValid> Sync for Zeroed<T> {}

impl<T: ZeroIsValid> Zeroed<T> {
    /// Creates `len` values without touching their pages.
    pub fn new(len: usize) -> io::Result<Self> {
        // SAFETY: a fresh anonymous mapping.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                (len * size_of::<T>()).max(1),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Zeroed { base: base.cast(), len })
    }
}

impl<T: ZeroIsValid> Deref for Zeroed<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the mapping of `new`, page-aligned, zeroed, and T may be zero.
        unsafe { std::slice::from_raw_parts(self.base, self.len) }
    }
}

impl<T: ZeroIsValid> Drop for Zeroed<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`.
        unsafe { libc::munmap(self.base.cast(), (self.len * size_of::<T>()).max(1)) };
    }
}
