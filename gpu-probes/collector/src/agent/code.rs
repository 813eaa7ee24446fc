//! Which addresses of the process contain code, to validate stack frames.
//!
//! The list of executable memory is read from `/proc/self/maps` into a fixed table. Launches read
//! the table without a lock: the list is written to the half that is not in use, and a reader that
//! was overtaken reads again.

use super::clock::now;
use super::zeroed::Zeroed;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use xputrace_wire::maps::MapsLine;

/// Maximum number of executable ranges; with more, every address counts as code.
const RANGES: usize = 8192;
/// Bytes read of a line: enough for everything before the path.
const LINE_BYTES: usize = 128;
/// After an unknown address, the list is read again only when this many times the duration of the
/// last read has passed: a program with invalid stacks loses at most 2 % of its time.
const REST: u64 = 50;

/// The executable memory of the process at the last read.
#[derive(Debug)]
pub(crate) struct ExecutableMemory {
    halves: [Half; 2],
    /// Number of reads; the latest list is in the half with its parity. 0 before the first.
    generation: AtomicU64,
    reading: AtomicBool,
    /// Don't read again for an unknown address before this time (CLOCK_MONOTONIC).
    rests_until: AtomicU64,
}

/// Ranges by address, `[start, end]`.
#[derive(Debug)]
struct Half {
    words: Zeroed<AtomicU64>,
    len: AtomicU64,
    is_complete: AtomicBool,
}

impl ExecutableMemory {
    pub(crate) fn new() -> io::Result<Self> {
        let half = || {
            let words = Zeroed::new(2 * RANGES)?;
            io::Result::Ok(Half { words, len: AtomicU64::new(0), is_complete: AtomicBool::new(false) })
        };
        Ok(ExecutableMemory {
            halves: [half()?, half()?],
            generation: AtomicU64::new(0),
            reading: AtomicBool::new(false),
            rests_until: AtomicU64::new(0),
        })
    }

    /// Returns how many of these return addresses, from the first on, are in code. Reads the list
    /// again for an unknown address, because code may have been mapped or created meanwhile.
    pub(crate) fn n_in_code(&self, frames: &[u64]) -> usize {
        let n = self.known(frames);
        if n == frames.len() || !may_be_code(frames[n]) || now() < self.rests_until.load(Ordering::Relaxed) {
            return n;
        }
        self.refresh();
        n + self.known(&frames[n..])
    }

    fn known(&self, frames: &[u64]) -> usize {
        frames.iter().take_while(|&&it| may_be_code(it) && self.holds(it)).count()
    }

    /// Whether a return address is in the list: the call before it must be.
    fn holds(&self, address: u64) -> bool {
        loop {
            let generation = self.generation.load(Ordering::Acquire);
            let found = generation == 0 || self.half(generation).holds(address - 1);
            fence(Ordering::Acquire);
            if self.generation.load(Ordering::Relaxed) == generation {
                return found;
            }
        }
    }

    fn half(&self, generation: u64) -> &Half {
        &self.halves[(generation % 2) as usize]
    }

    /// Reads the list, unless another thread is doing so. Allocates nothing and preserves `errno`.
    #[cold]
    pub(crate) fn refresh(&self) {
        if self.reading.swap(true, Ordering::Acquire) {
            return;
        }
        let began = now();
        let generation = self.generation.load(Ordering::Relaxed);
        // Readers still using this half must notice: the generation becomes visible before what
        // follows.
        fence(Ordering::Release);
        if self.half(generation + 1).read() {
            self.generation.store(generation + 1, Ordering::Release);
        }
        let ended = now();
        self.rests_until.store(ended + REST * ended.saturating_sub(began), Ordering::Relaxed);
        self.reading.store(false, Ordering::Release);
    }
}

/// Whether an address can contain a program's code at all: not in the first page, nor in Linux's
/// half.
#[inline]
pub(crate) fn may_be_code(address: u64) -> bool {
    (4096..1 << 47).contains(&address)
}

impl Half {
    fn holds(&self, address: u64) -> bool {
        if !self.is_complete.load(Ordering::Relaxed) {
            return true;
        }
        let len = (self.len.load(Ordering::Relaxed) as usize).min(RANGES);
        let (mut low, mut high) = (0, len);
        while low < high {
            let middle = low.midpoint(high);
            if self.word(2 * middle + 1) <= address { low = middle + 1 } else { high = middle }
        }
        low < len && (self.word(2 * low)..self.word(2 * low + 1)).contains(&address)
    }

    fn word(&self, at: usize) -> u64 {
        self.words[at].load(Ordering::Relaxed)
    }

    /// Returns false if the system does not show the list.
    fn read(&self) -> bool {
        self.len.store(0, Ordering::Relaxed);
        self.is_complete.store(true, Ordering::Relaxed);
        let read = for_each_line(|line| {
            if let Some(line) = MapsLine::parse(line).filter(|it| it.is_executable) {
                self.push(line.start, line.end);
            }
        });
        read && self.len.load(Ordering::Relaxed) > 0
    }

    /// Adds a range above all others; merges it with the last one if they touch.
    fn push(&self, start: u64, end: u64) {
        let len = self.len.load(Ordering::Relaxed) as usize;
        if len > 0 && self.word(2 * len - 1) >= start {
            self.words[2 * len - 1].store(end, Ordering::Relaxed);
        } else if len < RANGES {
            self.words[2 * len].store(start, Ordering::Relaxed);
            self.words[2 * len + 1].store(end, Ordering::Relaxed);
            self.len.store(len as u64 + 1, Ordering::Relaxed);
        } else {
            self.is_complete.store(false, Ordering::Relaxed);
        }
    }
}

/// Calls `each` with the start of every line of `/proc/self/maps`. Returns false if it cannot be
/// read to its end.
fn for_each_line(mut each: impl FnMut(&[u8])) -> bool {
    let errno = Errno::keep();
    // SAFETY: a C string.
    let file = unsafe { libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return false;
    }
    let (mut buffer, mut line, mut len) = ([0u8; 4096], [0u8; LINE_BYTES], 0);
    let is_whole = loop {
        // SAFETY: the buffer is as long as it says.
        let read = unsafe { libc::read(file, buffer.as_mut_ptr().cast(), buffer.len()) };
        let Ok(n @ 1..) = usize::try_from(read) else { break read == 0 };
        for &byte in &buffer[..n] {
            if byte == b'\n' {
                each(&line[..len]);
                len = 0;
            } else if len < LINE_BYTES {
                line[len] = byte;
                len += 1;
            }
        }
    };
    // SAFETY: opened above.
    unsafe { libc::close(file) };
    drop(errno);
    is_whole
}

/// The program's `errno` before our system calls.
struct Errno(i32);

impl Errno {
    fn keep() -> Self {
        // SAFETY: the calling thread's own.
        Errno(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: the calling thread's own.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maps a page with these access rights.
    fn page(rights: i32) -> u64 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, rights, flags, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        page as u64
    }

    const HERE: fn() = frames_end_where_there_is_no_code;

    #[test]
    fn frames_end_where_there_is_no_code() {
        let memory = ExecutableMemory::new().unwrap();
        let (data, code) = (page(libc::PROT_READ | libc::PROT_WRITE), page(libc::PROT_READ | libc::PROT_EXEC));
        let here = HERE as usize as u64 + 1;
        assert_eq!(memory.known(&[here, data + 8]), 2, "nothing was looked at yet");
        memory.refresh();
        assert_eq!(memory.n_in_code(&[here, code + 8, here]), 3, "code without a file is code");
        assert_eq!(memory.n_in_code(&[here, data + 8, here]), 1);
        assert_eq!(memory.n_in_code(&[here, 7]), 1);
        assert_eq!(memory.n_in_code(&[here, u64::MAX]), 1);
        assert_eq!(memory.n_in_code(&[code + 4096, code]), 1, "a call that ends its mapping, then the byte before");
        assert_eq!(memory.n_in_code(&[]), 0);
    }

    #[test]
    fn code_that_is_made_later_is_found() {
        let memory = ExecutableMemory::new().unwrap();
        memory.refresh();
        let code = page(libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(memory.known(&[code + 8]), 0);
        // SAFETY: the page just mapped.
        assert_eq!(unsafe { libc::mprotect(code as *mut _, 4096, libc::PROT_READ | libc::PROT_EXEC) }, 0);
        memory.rests_until.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(memory.n_in_code(&[code + 8]), 0, "not looked at again yet");
        memory.rests_until.store(0, Ordering::Relaxed);
        assert_eq!(memory.n_in_code(&[code + 8]), 1);
    }

    #[test]
    fn looking_leaves_errno_alone() {
        let memory = ExecutableMemory::new().unwrap();
        // SAFETY: the thread's own.
        unsafe { *libc::__errno_location() = 77 };
        memory.refresh();
        // SAFETY: as above.
        assert_eq!(unsafe { *libc::__errno_location() }, 77);
    }

    #[test]
    fn more_ranges_than_there_is_room_for_make_everything_code() {
        let memory = ExecutableMemory::new().unwrap();
        let half = memory.half(1);
        half.is_complete.store(true, Ordering::Relaxed);
        (0..RANGES as u64).for_each(|n| half.push(0x10000 * (n + 1), 0x10000 * (n + 1) + 4096));
        assert!(half.holds(0x10000) && half.holds(0x10000 * RANGES as u64 + 4095));
        assert!(!half.holds(0x10000 + 4096) && !half.holds(0x10000 * RANGES as u64 + 4096) && !half.holds(0));
        half.push(1 << 46, (1 << 46) + 4096);
        assert!(half.holds(1));
    }

    #[test]
    fn launches_look_while_the_list_is_read() {
        let memory = ExecutableMemory::new().unwrap();
        memory.refresh();
        let frames = [HERE as usize as u64 + 1; 8];
        std::thread::scope(|scope| {
            scope.spawn(|| (0..200).for_each(|_| memory.refresh()));
            for _ in 0..2 {
                scope.spawn(|| (0..20_000).for_each(|_| assert_eq!(memory.n_in_code(&frames), 8)));
            }
        });
    }
}
