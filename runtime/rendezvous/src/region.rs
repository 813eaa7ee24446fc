//! The memory shared with one target. The target writes it, so its content is untrusted: sizes come
//! from our own shape, and bytes are copied before they are read.

use super::socket::checked;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use xputrace_wire::region::{Control, PAGE, RegionShape};
use xputrace_wire::ring::{Reader, RingHeader};
use xputrace_wire::totals::CollectorTotals;

/// Rings and bytes a ring of a target: 512 threads that launch at the same time, 1 MiB each, touched as they fill.
pub const DEFAULT_SHAPE: RegionShape = RegionShape { rings: 512, ring_bytes: 1 << 20 };

/// The memory shared with one target.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    shape: RegionShape,
    readers: Vec<Reader>,
    broken_rings: u64,
}

// SAFETY: on our side only this value owns the mapping, which is not tied to a thread.
unsafe impl Send for Region {}

/// How often to read the rings' positions until no flush was made meanwhile. Flushes are milliseconds apart.
const MOST_LOOKS: usize = 64;

/// How far each ring was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks(Vec<u64>);

impl Region {
    pub(super) fn map(memory: &OwnedFd, shape: RegionShape) -> io::Result<Region> {
        if !shape.is_sound() {
            return Err(io::Error::other(format!("unsound sizes: {shape:?}")));
        }
        // SAFETY: a new mapping of a descriptor that is at least this long and sealed against
        // shrinking.
        let at = unsafe {
            let flags = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), shape.size(), flags, libc::MAP_SHARED, memory.as_raw_fd(), 0)
        };
        let base = NonNull::new(at.cast::<u8>()).filter(|_| at != libc::MAP_FAILED);
        let base = base.ok_or_else(io::Error::last_os_error)?;
        let readers = (0..shape.rings).map(|ring| reader(base, shape, ring)).collect();
        let region = Region { base, shape, readers, broken_rings: 0 };
        region.control().armed.store(1, Ordering::Release);
        Ok(region)
    }

    /// Returns how far the rings in use have been written. Up to there, no record of a flush lacks what had been written
    /// before it by any thread: all that it delivered, and the launches that had returned.
    pub fn marks(&self) -> Marks {
        // A flush is counted before its record is written. So one that is not counted meanwhile precedes the whole look,
        // or is not seen.
        let flushes = || self.control().totals.flushes.load(Ordering::SeqCst);
        let look = || Marks(self.readers[..self.rings_used()].iter().map(Reader::mark).collect());
        let mut before = flushes();
        for _ in 1..MOST_LOOKS {
            let marks = look();
            let after = flushes();
            if before == after {
                return marks;
            }
            before = after;
        }
        look()
    }

    /// Returns the bytes up to the marks, by ring, as a drain for the pipeline.
    /// Kernels may still precede their launch, whose call returns later; the pipeline waits for
    /// that.
    pub fn drain(&mut self, marks: &Marks) -> Vec<Vec<u8>> {
        let mut rings = vec![Vec::new(); marks.0.len()];
        self.drain_into(marks, &mut rings);
        rings
    }

    /// Like [`Region::drain`], but reuses buffers, whose contents it replaces.
    pub fn drain_into(&mut self, marks: &Marks, rings: &mut Vec<Vec<u8>>) {
        rings.resize_with(marks.0.len(), Vec::new);
        for ((reader, mark), out) in self.readers.iter_mut().zip(&marks.0).zip(rings) {
            out.clear();
            self.broken_rings += u64::from(!reader.take(*mark, out));
        }
    }

    /// Returns the collector's current totals.
    pub fn totals(&self) -> CollectorTotals {
        CollectorTotals::of(self.control(), self.broken_rings)
    }

    fn rings_used(&self) -> usize {
        (self.control().rings_claimed.load(Ordering::Acquire) as usize).min(self.readers.len())
    }

    /// Frees the memory of the rings' data. The target keeps its mapping, because a late callback may still write.
    fn give_back(&self) {
        for ring in 0..self.rings_used() as u32 {
            let data = self.shape.ring_offset(ring) + PAGE;
            // SAFETY: inside the mapping. What is freed reads as zeroes from now on, for the target too.
            unsafe {
                libc::madvise(self.base.as_ptr().add(data).cast(), self.shape.ring_bytes as usize, libc::MADV_REMOVE)
            };
        }
    }

    fn control(&self) -> &Control {
        // SAFETY: the first page of the mapping, page-aligned; all fields are atomics, so the
        // target may write them at any time.
        unsafe { self.base.cast::<Control>().as_ref() }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.control().armed.store(0, Ordering::Release);
        self.give_back();
        self.readers.clear();
        // SAFETY: the mapping made by `map`, with its size; its readers are gone.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.shape.size()) };
    }
}

fn reader(base: NonNull<u8>, shape: RegionShape, ring: u32) -> Reader {
    // SAFETY: ring headers and data are inside the mapping by `RegionShape::size`; the readers are
    // dropped with the mapping, and nothing else reads.
    unsafe {
        let header = base.as_ptr().add(shape.ring_offset(ring));
        Reader::new(header.cast::<RingHeader>(), header.add(PAGE), shape.ring_bytes)
    }
}
/// Creates shared memory that neither side can shrink or grow.
pub(super) fn sealed_memory(size: usize) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a NUL-terminated name; the descriptor is owned from here on.
    let fd = unsafe { checked(libc::memfd_create(c"xputrace".as_ptr(), flags)).map(|fd| OwnedFd::from_raw_fd(fd)) }?;
    let file = File::from(fd);
    file.set_len(size as u64)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: plain system call.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicU64;

    const SMALL: RegionShape = RegionShape { rings: 2, ring_bytes: 4096 };

    proptest! {
        /// A target may leave any values in the control page and in the rings' positions and bytes.
        #[test]
        fn any_words_in_shared_memory_are_survived(
            writes in proptest::collection::vec((0usize..PAGE / 8 * 5, prop_oneof![any::<u64>(), 0u64..10_000]), 1..40),
        ) {
            let mut region = Region::map(&sealed_memory(SMALL.size()).unwrap(), SMALL).unwrap();
            let word = |region: &Region, at: usize| {
                // SAFETY: an aligned word of the mapping, which is `SMALL.size()` bytes: five pages.
                unsafe { AtomicU64::from_ptr(region.base.as_ptr().cast::<u64>().add(at)) }.as_ptr()
            };
            let mut broken = 0;
            for (at, value) in writes {
                // SAFETY: as above; nothing else uses the mapping.
                unsafe { word(&region, at).write_volatile(value) };
                let marks = region.marks();
                prop_assert!(marks.0.len() <= SMALL.rings as usize);
                let rings = region.drain(&marks);
                prop_assert!(rings.iter().all(|it| it.len() <= SMALL.ring_bytes as usize));
                prop_assert!(region.totals().broken_rings >= broken);
                broken = region.totals().broken_rings;
            }
        }
    }

    #[test]
    fn memory_is_sealed() {
        let memory = sealed_memory(8192).unwrap();
        let file = File::from(memory);
        assert!(file.set_len(4096).is_err() && file.set_len(16384).is_err());
    }
}
