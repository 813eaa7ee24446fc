//! The device region from the tracer, mapped here.

use crate::region::{check, map};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{Ordering, fence};
use xputrace_wire::device::{ArrayPlace, CLOCK_OFFSET, Control, DeviceRegionShape};
use xputrace_wire::region::PAGE;

/// A mapped device region. Unmapped on drop.
#[derive(Debug)]
pub struct DeviceRegion {
    base: *mut u8,
    shape: DeviceRegionShape,
    arrays: Vec<OuterArray>,
}

/// An array of Linux in this process's memory. It stays mapped: the GPU may use it as long as the process lives.
#[derive(Clone, Copy, Debug)]
pub struct OuterArray {
    /// Where its address goes in a block.
    pub at: u64,
    pub address: *mut u8,
    pub bytes: usize,
}

// SAFETY: shared memory; the control page is used through atomics, and each copy is written by one thread at a time: the worker,
// or the one that ends the context while the worker does not use it.
unsafe impl Send for DeviceRegion {}
// SAFETY: as above.
unsafe impl Sync for DeviceRegion {}

impl DeviceRegion {
    /// Maps the region in `memory`, and the arrays; nothing is inherited over fork.
    ///
    /// # Errors
    /// A text that says what is wrong with the memory.
    pub fn map(
        memory: BorrowedFd<'_>,
        shape: DeviceRegionShape,
        arrays: &[(ArrayPlace, BorrowedFd<'_>)],
    ) -> Result<Self, String> {
        if !shape.is_sound() {
            return Err(format!("cannot use a device region with a block of {} bytes", shape.block_bytes));
        }
        check(memory, shape.size() as u64)?;
        let base = map(memory, shape.size())
            .map_err(|error| format!("mapping {} bytes of the tracer's device region: {error}", shape.size()))?;
        let mut region = DeviceRegion { base, shape, arrays: Vec::new() };
        for (place, array) in arrays {
            region.arrays.push(OuterArray::map(*place, *array, shape)?);
        }
        Ok(region)
    }

    /// Returns the size of a block.
    pub fn block_bytes(&self) -> usize {
        self.shape.block_bytes as usize
    }

    /// Returns the arrays of Linux that device code uses.
    pub fn arrays(&self) -> &[OuterArray] {
        &self.arrays
    }

    /// Returns what a block is like.
    pub fn shape(&self) -> DeviceRegionShape {
        self.shape
    }

    #[inline]
    pub fn control(&self) -> &Control {
        // SAFETY: the first page, of atomics only, mapped as long as `self` lives.
        unsafe { &*self.base.cast() }
    }

    /// Returns the address of what a block has at first, [`DeviceRegion::block_bytes`] long.
    pub fn initial(&self) -> *const u8 {
        // SAFETY: within the region.
        unsafe { self.base.add(self.shape.initial_offset()) }
    }

    /// Returns the address of the copy for a slot below `MOST_CONTEXTS`, likewise.
    fn copy(&self, slot: usize) -> *mut u8 {
        assert!(slot < xputrace_wire::device::MOST_CONTEXTS, "a slot of this region");
        // SAFETY: within the region.
        unsafe { self.base.add(self.shape.copy_offset(slot)) }
    }

    /// Returns how much of a slot's ring the tracer has read, and where in the block the word is that twins read; `None` without
    /// a ring.
    pub fn read_of_ring(&self, slot: usize) -> Option<(u64, [u8; 8])> {
        let read = &self.control().slots[slot].read;
        self.shape.ring.map(|it| (it.tail, read.load(Ordering::Acquire).to_le_bytes()))
    }

    /// Returns where in the block the word is that handlers add to the GPU's timer; `None` if they don't read it.
    pub fn place_of_clock_offset(&self) -> Option<u64> {
        let is_read = self.control().reads_clock.load(Ordering::Relaxed) != 0;
        (is_read && self.block_bytes() >= CLOCK_OFFSET + size_of::<u64>()).then_some(CLOCK_OFFSET as u64)
    }

    /// Returns what was told last: what handlers add to the GPU's timer, and how wrong that was at most, in nanoseconds.
    pub fn clock(&self, slot: usize) -> (i64, u64) {
        let told = &self.control().slots[slot];
        (told.clock_offset.load(Ordering::Relaxed) as i64, told.clock_error.load(Ordering::Acquire))
    }

    /// Tells the tracer what a slot's handlers add to the GPU's timer, and how wrong that was at most.
    pub fn tell_clock(&self, slot: usize, offset_nanos: i64, error_nanos: u64) {
        let told = &self.control().slots[slot];
        told.clock_offset.store(offset_nanos as u64, Ordering::Relaxed);
        told.clock_error.store(error_nanos, Ordering::Release);
    }

    /// Whether a slot's block was copied for the last time.
    pub fn has_last_copy(&self, slot: usize) -> bool {
        self.control().slots[slot].is_last.load(Ordering::Acquire) != 0
    }

    /// Has the copy for a slot written; readers see nothing of it meanwhile. If that fails midway, they see what there is: pieces of
    /// it and of the one before. Called by one thread for a slot at a time.
    pub fn write_copy<T>(&self, slot: usize, write: impl FnOnce(*mut u8) -> T) -> T {
        let generation = &self.control().slots[slot].generation;
        let before = generation.load(Ordering::Relaxed);
        generation.store(before + 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let written = write(self.copy(slot));
        generation.store(before + 2, Ordering::Release);
        written
    }
}

impl OuterArray {
    fn map(place: ArrayPlace, array: BorrowedFd<'_>, shape: DeviceRegionShape) -> Result<Self, String> {
        if !place.is_sound(shape.block_bytes) {
            return Err(format!("cannot use an array of {} bytes at {} of a block", place.bytes, place.at));
        }
        let bytes = (place.bytes as usize).next_multiple_of(PAGE);
        let address =
            map(array, bytes).map_err(|error| format!("mapping {bytes} bytes of an array of Linux: {error}"))?;
        Ok(OuterArray { at: place.at, address, bytes })
    }
}

impl Drop for DeviceRegion {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, with its size.
        unsafe { libc::munmap(self.base.cast(), self.shape.size()) };
    }
}

/// Returns the contents of a memory of this size.
///
/// # Errors
/// A text that says what is wrong with the memory.
pub(super) fn contents(memory: BorrowedFd<'_>, bytes: usize) -> Result<Vec<u8>, String> {
    check(memory, bytes as u64)?;
    let mut out = vec![0; bytes];
    let mut done = 0;
    while done < bytes {
        let room = &mut out[done..];
        // SAFETY: room for as many bytes.
        let n = unsafe { libc::pread64(memory.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), done as i64) };
        if n <= 0 {
            return Err(format!("reading {bytes} bytes of the tracer's memory: {}", std::io::Error::last_os_error()));
        }
        done += n as usize;
    }
    Ok(out)
}
