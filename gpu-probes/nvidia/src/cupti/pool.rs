//! The buffers that CUPTI fills.

use std::sync::atomic::{AtomicBool, Ordering};

/// Size of a buffer: room for about 4,800 kernels.
pub const BUFFER_BYTES: usize = 1 << 20;
/// Number of buffers. CUPTI is asked to use one buffer per process, not one per thread.
pub const BUFFERS: usize = 8;
const DISCARD_BYTES: usize = 64 << 10;

/// The buffers that CUPTI fills. Their number is bounded: when all are in use, CUPTI gets a buffer
/// whose contents are discarded (a null buffer crashes CUPTI before 12.9).
#[derive(Debug)]
pub struct Pool {
    base: *mut u8,
    taken: [AtomicBool; BUFFERS],
}

// SAFETY: each buffer is used by who set its `taken`; the discard buffer is never read.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

/// The origin of a completed buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Pool(usize),
    Discard,
    /// Not one of ours.
    Foreign,
}

impl Pool {
    /// Reserves address space; pages are used as CUPTI fills them.
    pub fn new() -> std::io::Result<Self> {
        let size = BUFFERS * BUFFER_BYTES + DISCARD_BYTES;
        // SAFETY: a fresh anonymous mapping.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Pool { base: base.cast(), taken: [const { AtomicBool::new(false) }; BUFFERS] })
    }

    /// Returns a zeroed buffer and its size.
    pub fn request(&self) -> (*mut u8, usize) {
        for (n, taken) in self.taken.iter().enumerate() {
            if !taken.load(Ordering::Relaxed) && !taken.swap(true, Ordering::Acquire) {
                return (self.buffer(n), BUFFER_BYTES);
            }
        }
        (self.buffer(BUFFERS), DISCARD_BYTES)
    }

    /// Whether CUPTI has a buffer of ours.
    pub fn has_lent(&self) -> bool {
        self.taken.iter().any(|it| it.load(Ordering::Acquire))
    }

    /// Returns which buffer this is.
    pub fn origin(&self, buffer: *const u8) -> Origin {
        let distance = (buffer as usize).wrapping_sub(self.base as usize);
        match distance / BUFFER_BYTES {
            n if n < BUFFERS && distance.is_multiple_of(BUFFER_BYTES) => Origin::Pool(n),
            BUFFERS if distance == BUFFERS * BUFFER_BYTES => Origin::Discard,
            _ => Origin::Foreign,
        }
    }

    /// Zeroes buffer `n` (CUPTI would do it on the application's thread) and takes it back.
    pub fn give_back(&self, n: usize) {
        let Some(taken) = self.taken.get(n) else { return };
        // SAFETY: CUPTI gave the buffer back, and nobody gets it before the store below.
        unsafe { self.buffer(n).write_bytes(0, BUFFER_BYTES) };
        taken.store(false, Ordering::Release);
    }

    /// Takes back the buffers that CUPTI kept when it was unloaded.
    pub fn take_all_back(&self) {
        for n in (0..BUFFERS).filter(|&n| self.taken[n].load(Ordering::Acquire)) {
            self.give_back(n);
        }
    }

    fn buffer(&self, n: usize) -> *mut u8 {
        // SAFETY: `n <= BUFFERS`, so the address is within the mapping.
        unsafe { self.base.add(n * BUFFER_BYTES) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`; a pool that CUPTI saw is never dropped.
        unsafe { libc::munmap(self.base.cast(), BUFFERS * BUFFER_BYTES + DISCARD_BYTES) };
    }
}
