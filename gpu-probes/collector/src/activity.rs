//! CUPTI's activity records: reading kernel records at fixed offsets, and the buffers that
//! CUPTI fills.
//!
//! The offsets are the same in every kernel record from CUPTI 11.7 to 13.5 (structures only grow
//! at the end), so no record type is needed; stepping is left to CUPTI, which knows the sizes.

use crate::cupti::{KIND_CONCURRENT_KERNEL, KIND_KERNEL};
use std::ffi::c_char;
use std::sync::atomic::{AtomicBool, Ordering};
use xputrace_wire::events::Realtime;
use xputrace_wire::record::Kernel;

/// Byte offsets within a kernel record.
pub mod offset {
    pub const KIND: usize = 0;
    pub const REGISTERS: usize = 6;
    pub const START: usize = 16;
    pub const END: usize = 24;
    pub const DEVICE: usize = 40;
    pub const CONTEXT: usize = 44;
    pub const STREAM: usize = 48;
    pub const GRID: usize = 52;
    pub const BLOCK: usize = 64;
    pub const STATIC_SHARED: usize = 76;
    pub const DYNAMIC_SHARED: usize = 80;
    pub const LOCAL_MEMORY: usize = 84;
    pub const CORRELATION: usize = 92;
    pub const NAME: usize = 104;
    pub const GRAPH_NODE: usize = 144;
    pub const GRAPH: usize = 156;
}

/// Kind of the record at `record`.
///
/// # Safety
/// `record` points at an activity record of CUPTI's.
pub unsafe fn kind(record: *const u8) -> u32 {
    // SAFETY: every record begins with its kind.
    unsafe { read(record, offset::KIND) }
}

/// Whether [`kernel`] reads records of this kind.
pub fn is_kernel(kind: u32) -> bool {
    kind == KIND_CONCURRENT_KERNEL || kind == KIND_KERNEL
}

/// A kernel record and the address of its name; `symbol` in it is 0.
///
/// Where either time is missing, both are 0: "not collected".
///
/// # Safety
/// `record` points at a record of a kind that [`is_kernel`].
pub unsafe fn kernel(record: *const u8) -> (Kernel, *const c_char) {
    // SAFETY: the caller's promise, and offsets that hold in every version.
    unsafe {
        let (start, end): (u64, u64) = (read(record, offset::START), read(record, offset::END));
        let collected = start != 0 && end != 0;
        let kernel = Kernel {
            start: Realtime(if collected { start } else { 0 }),
            end: Realtime(if collected { end } else { 0 }),
            graph_node: read(record, offset::GRAPH_NODE),
            graph: read(record, offset::GRAPH),
            correlation: read(record, offset::CORRELATION),
            device: read(record, offset::DEVICE),
            context: read(record, offset::CONTEXT),
            stream: read(record, offset::STREAM),
            symbol: 0,
            grid: read(record, offset::GRID),
            block: read(record, offset::BLOCK),
            registers: u32::from(read::<u16>(record, offset::REGISTERS)),
            static_shared: read(record, offset::STATIC_SHARED),
            dynamic_shared: read(record, offset::DYNAMIC_SHARED),
            local_memory: read(record, offset::LOCAL_MEMORY),
        };
        (kernel, read(record, offset::NAME))
    }
}

/// # Safety
/// `size_of::<T>()` bytes at `base + offset` are readable and any bytes are a `T`.
unsafe fn read<T: Copy>(base: *const u8, offset: usize) -> T {
    // SAFETY: the caller's promise.
    unsafe { base.add(offset).cast::<T>().read_unaligned() }
}

/// Smallest kernel record that any supported CUPTI writes, for counting what is thrown away
/// before any was seen.
pub const KERNEL_RECORD_BYTES: usize = 176;

/// Bytes of a buffer: room for about 4,800 kernels.
pub const BUFFER_BYTES: usize = 1 << 20;
/// Buffers of the pool. CUPTI is asked to use one a process, not one a thread.
pub const BUFFERS: usize = 8;
const DISCARD_BYTES: usize = 64 << 10;

/// The buffers that CUPTI fills. Bounded: when all are out, one buffer whose contents are thrown
/// away is handed out instead (a null buffer crashes CUPTI before 12.9).
#[derive(Debug)]
pub struct Pool {
    base: *mut u8,
    taken: [AtomicBool; BUFFERS],
}

// SAFETY: each buffer is used by who set its `taken`; the discard buffer is never read.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

/// Where a completed buffer came from.
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

    /// A zeroed buffer and its size.
    pub fn request(&self) -> (*mut u8, usize) {
        for (n, taken) in self.taken.iter().enumerate() {
            if !taken.load(Ordering::Relaxed) && !taken.swap(true, Ordering::Acquire) {
                return (self.buffer(n), BUFFER_BYTES);
            }
        }
        (self.buffer(BUFFERS), DISCARD_BYTES)
    }

    /// Which buffer this is.
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

    /// Takes back what CUPTI kept when it was torn down.
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
