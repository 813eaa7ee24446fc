//! The region from the tracer, mapped here, and its tag array.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use xputrace_wire::limits::advice;
use xputrace_wire::marker::SLOT_BYTES;
use xputrace_wire::region::{Control, Lost, PAGE, RegionShape};
use xputrace_wire::ring::{RingHeader, Writer};

/// A mapped region. Unmapped on drop.
#[derive(Debug)]
pub struct Region {
    base: *mut u8,
    shape: RegionShape,
}

// SAFETY: shared memory that both processes use through atomics and single-writer rings.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps the region in `memory`; it is not inherited over fork.
    ///
    /// # Errors
    /// A text that says what is wrong with the memory: not sealed against shrinking, of another
    /// size, or not mappable.
    pub fn map(memory: BorrowedFd<'_>, shape: RegionShape) -> Result<Self, String> {
        if !shape.is_sound() {
            return Err(format!("cannot use a region of {} rings of {} bytes", shape.rings, shape.ring_bytes));
        }
        check(memory, shape.size() as u64)?;
        let base = map(memory, shape.size()).map_err(|error| cannot_map("shared memory", shape.size(), &error))?;
        Ok(Region { base, shape })
    }

    pub fn shape(&self) -> RegionShape {
        self.shape
    }

    #[inline]
    pub fn control(&self) -> &Control {
        // SAFETY: the first page, of atomics only, mapped as long as `self` lives.
        unsafe { &*self.base.cast() }
    }

    /// Counts a loss.
    pub fn count_lost(&self, what: Lost, n: u64) {
        self.control().lost[what as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// Returns the header of a ring below `shape().rings`.
    pub fn ring(&self, index: u32) -> &RingHeader {
        assert!(index < self.shape.rings, "a ring of this region");
        // SAFETY: within the region, of atomics only.
        unsafe { &*self.base.add(self.shape.ring_offset(index)).cast() }
    }

    /// Returns the writing end of a ring.
    ///
    /// # Safety
    /// The caller owns the ring: it set `owner`, and no other writer of the ring is in use.
    pub unsafe fn writer(&self, index: u32) -> Writer {
        let header = self.ring(index);
        // SAFETY: the data follow the header's page; the owner is the caller.
        unsafe {
            let data = self.base.add(self.shape.ring_offset(index) + PAGE);
            Writer::new(header, data, self.shape.ring_bytes)
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, with its size.
        unsafe { libc::munmap(self.base.cast(), self.shape.size()) };
    }
}

/// The tag array: one slot per ring, written by handlers at the marker.
#[derive(Debug)]
pub struct Tags {
    base: *mut u8,
    size: usize,
}

impl Drop for Tags {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, with its size.
        unsafe { libc::munmap(self.base.cast(), self.size) };
    }
}

// SAFETY: a slot is used by the owner of its ring only.
unsafe impl Send for Tags {}
// SAFETY: as above.
unsafe impl Sync for Tags {}

impl Tags {
    /// Maps the slots of `rings` rings.
    pub fn map(array: BorrowedFd<'_>, rings: u32) -> Result<Self, String> {
        let size = (rings as usize * SLOT_BYTES).next_multiple_of(PAGE);
        let base = map(array, size).map_err(|error| cannot_map("the tag array", size, &error))?;
        Ok(Tags { base, size })
    }

    /// Clears what an earlier launch left in the slot.
    pub fn clear(&self, slot: u32) {
        self.word(slot).store(0, Ordering::Relaxed);
    }

    /// Returns the tag, if one was set.
    pub fn tag(&self, slot: u32) -> Option<i64> {
        // SAFETY: the second word of the slot.
        let tag = unsafe { &*self.base.add(slot as usize * SLOT_BYTES + 8).cast::<AtomicI64>() };
        (self.word(slot).load(Ordering::Relaxed) != 0).then(|| tag.load(Ordering::Relaxed))
    }

    fn word(&self, slot: u32) -> &AtomicU64 {
        // SAFETY: slots are below the number of rings that was mapped; the mapping stays.
        unsafe { &*self.base.add(slot as usize * SLOT_BYTES).cast() }
    }
}

/// Says that the program cannot map what the tracer has made; the limits are the program's.
fn cannot_map(what: &str, size: usize, answer: &io::Error) -> String {
    format!("the program cannot map {what} of {} KiB: {answer}{}", size >> 10, advice(answer))
}

/// Refuses memory that could shrink under us (accessing it would kill the program).
pub(crate) fn check(memory: BorrowedFd<'_>, size: u64) -> Result<(), String> {
    // SAFETY: a descriptor of ours and plain out-parameters.
    let (seals, real_size) = unsafe {
        let seals = libc::fcntl(memory.as_raw_fd(), libc::F_GET_SEALS);
        // Use lseek instead of fstat, whose symbol is newer than the oldest glibc that we support.
        (seals, libc::lseek(memory.as_raw_fd(), 0, libc::SEEK_END))
    };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        return Err("the tracer's region is not a memfd that is sealed against shrinking".into());
    }
    if real_size < 0 || real_size as u64 != size {
        return Err(format!("the tracer's region has {real_size} bytes, {size} were announced"));
    }
    Ok(())
}

pub(crate) fn map(memory: BorrowedFd<'_>, size: usize) -> io::Result<*mut u8> {
    // SAFETY: a fresh mapping.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            memory.as_raw_fd(),
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping just made.
    if unsafe { libc::madvise(base, size, libc::MADV_DONTFORK) } != 0 {
        let error = io::Error::last_os_error();
        // SAFETY: as above, and nothing points into it.
        unsafe { libc::munmap(base, size) };
        return Err(error);
    }
    Ok(base.cast())
}
