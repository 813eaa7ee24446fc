//! Parts of a file, copied when they are first needed.
//!
//! A mapping of a file is not safe to read: who truncates the file meanwhile, such as a build that rewrites a library,
//! ends its readers by SIGBUS. Whole copies are too large: a library may have gigabytes, of which a reader needs its
//! tables. So a [`FileCopy`] reserves addresses for the whole file, and fills in blocks as they are asked for. It is a
//! [`ReadRef`], by which the crate `object` reads ELF files.

use crate::read;
use object::ReadRef;
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes that are read at a time: of a symbol table, few are needed alone.
const BLOCK_BYTES: u64 = 1 << 16;
/// Ranges of so many bytes get their memory at once.
const MANY_BYTES: u64 = 1 << 20;
/// Larger files are refused: nobody has such a library, and one bit is kept for each block.
const MOST_FILE_BYTES: u64 = 1 << 40;

/// A copy of a file's parts that were read so far, at the same offsets.
#[derive(Debug)]
pub struct FileCopy {
    file: File,
    /// The file's size when it was opened.
    len: u64,
    base: *mut u8,
    filled: RefCell<Filled>,
}

#[derive(Debug)]
struct Filled {
    /// A bit for each block.
    blocks: Vec<u64>,
    /// How many bytes may still be copied.
    budget_bytes: u64,
    is_over_budget: bool,
}

impl FileCopy {
    /// Opens a regular file, of which at most `budget_bytes` will be copied.
    ///
    /// # Errors
    /// It is none, or larger than 1 TiB, or the system's.
    pub fn open(path: &Path, budget_bytes: u64) -> io::Result<Self> {
        FileCopy::of(read::open(path)?, budget_bytes)
    }

    /// Begins the copy of an open file.
    ///
    /// # Errors
    /// It is larger than 1 TiB, or the system's.
    pub fn of(file: File, budget_bytes: u64) -> io::Result<Self> {
        let len = file.metadata()?.len();
        if len > MOST_FILE_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 1 TiB"));
        }
        let blocks = vec![0; usize::try_from(len.div_ceil(BLOCK_BYTES).div_ceil(64)).unwrap_or(0)];
        let base = reserve(len)?;
        Ok(FileCopy { file, len, base, filled: RefCell::new(Filled { blocks, budget_bytes, is_over_budget: false }) })
    }

    /// Returns the file's size when it was opened.
    pub fn size(&self) -> u64 {
        self.len
    }

    /// Returns the file itself.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether something was asked for that exceeded the budget.
    pub fn is_over_budget(&self) -> bool {
        self.filled.borrow().is_over_budget
    }

    /// Returns a part of the file; `None` if it doesn't have it, or no longer, or the budget is exceeded.
    pub fn get(&self, range: Range<u64>) -> Option<&[u8]> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        self.fill(range.clone())?;
        let len = usize::try_from(range.end - range.start).ok()?;
        // SAFETY: the range lies within the reserved memory, which lives as long as `self`; its blocks were filled, and
        // filled blocks are never written again.
        Some(unsafe { std::slice::from_raw_parts(self.base.add(range.start as usize), len) })
    }

    /// Returns at most `len` bytes at an offset, fewer at the end of the file.
    pub fn up_to(&self, offset: u64, len: u64) -> &[u8] {
        let end = offset.saturating_add(len).min(self.len);
        self.get(offset..end).unwrap_or(&[])
    }

    /// Has Linux take the memory of a range at once, which it would else do page by page, at a higher cost.
    fn take_memory(&self, range: &Range<u64>) {
        let start = range.start / BLOCK_BYTES * BLOCK_BYTES;
        // SAFETY: a part of the reserved memory, from the beginning of a page on. What was written there stays.
        unsafe {
            let start_at = self.base.add(start as usize).cast();
            libc::madvise(start_at, (range.end - start) as usize, libc::MADV_POPULATE_WRITE);
        }
    }

    fn fill(&self, range: Range<u64>) -> Option<()> {
        if range.is_empty() {
            return Some(());
        }
        let mut filled = self.filled.borrow_mut();
        if (MANY_BYTES..=filled.budget_bytes).contains(&(range.end - range.start)) {
            self.take_memory(&range);
        }
        for block in range.start / BLOCK_BYTES..=(range.end - 1) / BLOCK_BYTES {
            if !filled.has(block) {
                let start = block * BLOCK_BYTES;
                let bytes = (self.len - start).min(BLOCK_BYTES);
                filled.spend(bytes)?;
                // SAFETY: the block lies within the reserved memory. It is not filled, so no reference to it exists.
                let block = unsafe { std::slice::from_raw_parts_mut(self.base.add(start as usize), bytes as usize) };
                // A file that has become shorter is not the one that was opened.
                self.file.read_exact_at(block, start).ok()?;
            }
            filled.mark(block);
        }
        Some(())
    }
}

impl Filled {
    fn spend(&mut self, bytes: u64) -> Option<()> {
        let rest = self.budget_bytes.checked_sub(bytes);
        self.is_over_budget |= rest.is_none();
        self.budget_bytes = rest?;
        Some(())
    }

    fn has(&self, block: u64) -> bool {
        self.blocks[(block / 64) as usize] & (1 << (block % 64)) != 0
    }

    fn mark(&mut self, block: u64) {
        self.blocks[(block / 64) as usize] |= 1 << (block % 64);
    }
}

/// Reserves addresses; memory is taken when it is written.
fn reserve(len: u64) -> io::Result<*mut u8> {
    let len = usize::try_from(len.max(1)).map_err(io::Error::other)?;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new memory, wherever the system likes.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, kind, -1, 0) };
    if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(base.cast()) }
}

impl Drop for FileCopy {
    fn drop(&mut self) {
        // SAFETY: reserved by `reserve` with this length; no reference outlives `self`.
        unsafe { libc::munmap(self.base.cast(), self.len.max(1) as usize) };
    }
}

// SAFETY: it owns its memory, and has no tie to a thread.
unsafe impl Send for FileCopy {}

impl<'a> ReadRef<'a> for &'a FileCopy {
    fn len(self) -> Result<u64, ()> {
        Ok(self.len)
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.get(offset..offset.checked_add(size).ok_or(())?).ok_or(())
    }

    /// Reads block by block: the range of a name ends where the whole table does.
    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        if range.end > self.len {
            return Err(());
        }
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / BLOCK_BYTES + 1) * BLOCK_BYTES);
            let block = self.get(at..end).ok_or(())?;
            if let Some(found) = block.iter().position(|it| *it == delimiter) {
                return self.get(range.start..at + found as u64).ok_or(());
            }
            at = end;
        }
        Err(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    const PLENTY: u64 = 1 << 30;

    fn file_with(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn pattern(n: usize) -> Vec<u8> {
        (0..n).map(|it| ((it * 31) >> 3) as u8).collect()
    }

    proptest! {
        #[test]
        fn parts_are_those_of_the_file(
            n in 0usize..300_000,
            ranges in prop::collection::vec((0u64..310_000, 0u64..200_000), 1..20),
        ) {
            let bytes = pattern(n);
            let copy = FileCopy::of(file_with(&bytes), PLENTY).unwrap();
            for (start, len) in ranges {
                let expected = bytes.get(start as usize..(start + len) as usize);
                prop_assert_eq!(copy.get(start..start + len), expected);
            }
        }

        #[test]
        fn a_delimiter_is_found_where_it_is_in_the_file(n in 1usize..200_000, start in 0usize..200_000, end in 0usize..200_000) {
            let bytes = pattern(n);
            let copy = FileCopy::of(file_with(&bytes), PLENTY).unwrap();
            let range = start as u64..end as u64;
            let expected = bytes.as_slice().read_bytes_at_until(range.clone(), 200);
            prop_assert_eq!((&copy).read_bytes_at_until(range, 200), expected);
        }
    }

    #[test]
    fn a_file_that_becomes_shorter_is_an_error_and_no_signal() {
        let file = file_with(&pattern(300_000));
        let copy = FileCopy::of(file.try_clone().unwrap(), PLENTY).unwrap();
        let first = copy.get(0..10).unwrap().to_vec();
        file.set_len(0).unwrap();
        assert_eq!(copy.get(0..10), Some(&*first));
        assert_eq!(copy.get(290_000..290_010), None);
    }

    #[test]
    fn no_more_is_copied_than_allowed() {
        let copy = FileCopy::of(file_with(&pattern(300_000)), 2 * BLOCK_BYTES).unwrap();
        assert!(copy.get(0..2 * BLOCK_BYTES).is_some() && copy.get(10..20).is_some());
        assert!(!copy.is_over_budget());
        assert_eq!(copy.get(2 * BLOCK_BYTES..2 * BLOCK_BYTES + 1), None);
        assert!(copy.is_over_budget());
        let sparse = tempfile::tempfile().unwrap();
        sparse.set_len(1 << 39).unwrap();
        let copy = FileCopy::of(sparse, PLENTY).unwrap();
        assert!(copy.get(1 << 38..(1 << 38) + 8).is_some());
    }
}
