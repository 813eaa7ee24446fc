//! Memory of the program that may not be as its headers say: Linux reads it, and fails where we would crash.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use xputrace_wire::device::{ImageOutcome, MOST_IMAGE_BYTES, PortableCode, PortableHead, padding_of};
use xputrace_wire::stored::{ReadableMemory, StoredAt};
use zerocopy::IntoBytes;

/// Where the driver was told to find code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeAt {
    /// At this address.
    Memory(u64),
    /// In a file, whose path is at this address.
    Path(u64),
}

/// The code in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageCode {
    Portable(Vec<StoredAt>),
    /// Machine code alone.
    Cubin {
        address: u64,
        bytes: u64,
    },
}

/// Longest path or variable that is read.
const MOST_TEXT_BYTES: usize = 4096;
/// How much of a text is read at once; it divides a page, and so does what is read up to the end of one.
const PIECE_BYTES: u64 = 256;

/// Reads a C string; `None` if it is not readable, too long, or not UTF-8.
pub(super) fn text_at(address: u64, memory: &mut dyn ReadableMemory) -> Option<String> {
    let mut text = Vec::new();
    let mut piece = [0; PIECE_BYTES as usize];
    while text.len() <= MOST_TEXT_BYTES {
        let at = address.wrapping_add(text.len() as u64);
        let piece = &mut piece[..(PIECE_BYTES - at % PIECE_BYTES) as usize];
        if !memory.read(at, piece) {
            return None;
        }
        let end = piece.iter().position(|it| *it == 0);
        text.extend(&piece[..end.unwrap_or(piece.len())]);
        if end.is_some() {
            return String::from_utf8(text).ok();
        }
    }
    None
}

/// The memory of this process. What is read goes through a file, since writing there from an address that is not mapped
/// is an error.
pub(super) struct ProgramMemory(OwnedFd);

impl ProgramMemory {
    pub(super) fn new() -> io::Result<Self> {
        Ok(ProgramMemory(new_file()?))
    }
}

impl ReadableMemory for ProgramMemory {
    fn read(&mut self, address: u64, into: &mut [u8]) -> bool {
        if write_from(&self.0, address, into.len() as u64, 0).is_err() {
            return false;
        }
        // SAFETY: room for as many bytes.
        let n = unsafe { libc::pread64(self.0.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), 0) };
        n == into.len() as isize
    }
}

/// The memory that an IMAGE comes with.
pub(super) struct ImageFile {
    file: OwnedFd,
    bytes: u64,
}

impl ImageFile {
    pub(super) fn new() -> io::Result<Self> {
        Ok(ImageFile { file: new_file()?, bytes: 0 })
    }

    /// Copies PTX from the program's memory.
    pub(super) fn add(&mut self, code: &StoredAt) -> Result<(), ImageOutcome> {
        let StoredAt { codec, portability, sm, bytes: text_bytes, address, stored_bytes } = *code;
        if stored_bytes > MOST_IMAGE_BYTES.saturating_sub(self.bytes + size_of::<PortableHead>() as u64 + 8) {
            return Err(ImageOutcome::TooLarge);
        }
        let head =
            PortableHead::of(&PortableCode { codec, portability, sm, text_bytes, stored: [][..].into() }, stored_bytes);
        self.append(head.as_bytes().as_ptr() as u64, size_of_val(&head) as u64)?;
        self.append(address, stored_bytes)?;
        self.append([0u8; 8].as_ptr() as u64, padding_of(stored_bytes) as u64)
    }

    /// Copies a cubin from the program's memory, as it is.
    pub(super) fn add_cubin(&mut self, address: u64, bytes: u64) -> Result<(), ImageOutcome> {
        self.append(address, bytes)
    }

    /// Adds text of ours.
    pub(super) fn add_text(&mut self, text: &str) -> Result<(), ImageOutcome> {
        self.append(text.as_ptr() as u64, text.len() as u64)
    }

    fn append(&mut self, address: u64, bytes: u64) -> Result<(), ImageOutcome> {
        write_from(&self.file, address, bytes, self.bytes).map_err(|_| ImageOutcome::Unreadable)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Returns the memory, which nobody changes now, and its size.
    pub(super) fn seal(self) -> io::Result<(OwnedFd, u64)> {
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE | libc::F_SEAL_SEAL;
        // SAFETY: a descriptor of ours.
        match unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
            0 => Ok((self.file, self.bytes)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn new_file() -> io::Result<OwnedFd> {
    // SAFETY: a C string; the descriptor is ours.
    unsafe {
        match libc::memfd_create(c"xputrace".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Writes bytes from any address, which Linux checks.
fn write_from(file: &OwnedFd, address: u64, bytes: u64, offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes {
        let (from, to) = (address.wrapping_add(done) as *const libc::c_void, (offset + done) as i64);
        // SAFETY: only Linux reads there, and answers EFAULT where nothing is mapped.
        match unsafe { libc::pwrite64(file.as_raw_fd(), from, (bytes - done) as usize, to) } {
            n if n > 0 => done += n as u64,
            0 => return Err(io::ErrorKind::WriteZero.into()),
            _ => match io::Error::last_os_error() {
                it if it.kind() == io::ErrorKind::Interrupted => {}
                it => return Err(it),
            },
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_wire::device::{Codec, Portability, decode_image};

    /// Two pages, of which the second one cannot be read.
    fn half_mapped() -> *mut u8 {
        // SAFETY: a fresh mapping, which stays.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let base = libc::mmap(std::ptr::null_mut(), 8192, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(base.byte_add(4096), 4096, libc::PROT_NONE), 0);
            base.cast()
        }
    }

    fn ptx(address: u64, stored_bytes: u64) -> StoredAt {
        StoredAt { codec: Codec::Plain, portability: Portability::Later, sm: 90, bytes: 0, address, stored_bytes }
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let end = half_mapped() as u64 + 4096;
        let mut memory = ProgramMemory::new().unwrap();
        let mut into = [1u8; 16];
        assert!(memory.read(end - 16, &mut into) && into == [0; 16]);
        for address in [end - 15, end, 0, 16, u64::MAX - 4] {
            assert!(!memory.read(address, &mut into), "{address:#x}");
        }
        let mut file = ImageFile::new().unwrap();
        assert_eq!(file.add(&ptx(end - 8, 9)), Err(ImageOutcome::Unreadable));
        assert_eq!(file.add(&ptx(end - 8, MOST_IMAGE_BYTES)), Err(ImageOutcome::TooLarge));
        assert_eq!(file.add(&ptx(end - 8, u64::MAX)), Err(ImageOutcome::TooLarge));
    }

    #[test]
    fn what_is_sent_is_what_was_there() {
        let mut file = ImageFile::new().unwrap();
        for text in [&b".version 8.0"[..], b"12345678"] {
            file.add(&ptx(text.as_ptr() as u64, text.len() as u64)).unwrap();
        }
        let (memory, bytes) = file.seal().unwrap();
        let contents = super::super::region::contents(std::os::fd::AsFd::as_fd(&memory), bytes as usize).unwrap();
        let stored: Vec<_> = decode_image(&contents).unwrap().into_iter().map(|it| it.stored.into_owned()).collect();
        assert_eq!(stored, [&b".version 8.0"[..], b"12345678"]);
    }
}
