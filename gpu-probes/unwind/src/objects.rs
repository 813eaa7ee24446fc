//! Which file is mapped at an address of code, and where its tables of unwinding are.
//!
//! glibc 2.35 and later answer without a lock (`_dl_find_object`, dlfcn.h). Before, the loader's
//! list is gone through, which takes the loader's lock for as long as that lasts.

use crate::loaded::find_loaded;
use libc::{Elf64_Ehdr, Elf64_Phdr, PT_LOAD, PT_NOTE};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A file that is mapped, by the addresses of its segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// `.eh_frame_hdr` (Linux Standard Base, "Exception Frames"), and where its segment ends.
    pub(crate) header: u64,
    pub(crate) header_end: u64,
    /// Tells this file from all others, wherever it is mapped: its build id or what stands in for it.
    pub(crate) identity: u64,
    /// What is read of it to see whether it is still there: the notes in its first page, which hold
    /// the build id; without any, the beginning of its header.
    sample: u64,
    sample_len: usize,
    sample_digest: u64,
}

/// A place where no file is.
pub(crate) const NO_OBJECT: Object =
    Object { start: 0, end: 0, header: 0, header_end: 0, identity: 0, sample: 0, sample_len: 0, sample_digest: 0 };

/// Bytes from a file's start that are mapped whenever its header is.
const FIRST_PAGE: u64 = 4096;
/// Bytes of a header that are read to tell files apart: its sizes and first entries.
const HEADER_SAMPLE: u64 = 64;

impl Object {
    /// The file at an address; `None` where there is none, or it has no tables.
    #[inline]
    pub(crate) fn at(address: u64) -> Option<Object> {
        let found = find(address)?;
        // SAFETY: the loader says that a file is mapped there, and one that the stack returns into stays.
        unsafe { Object::mapped(found) }
    }

    /// Whether the same file is mapped at the same place.
    #[inline]
    pub(crate) fn is_still_there(&self) -> bool {
        find(self.start).is_some_and(|it| (it.start, it.header) == (self.start, self.header))
            // SAFETY: in the first page, or that of the header, of the file that the loader says is mapped there.
            && unsafe { digest(0, self.sample, self.sample_len) == self.sample_digest }
    }

    #[inline]
    pub(crate) fn holds(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    /// # Safety
    /// An ELF file is mapped at `found`.
    unsafe fn mapped(found: Found) -> Option<Object> {
        // SAFETY: the caller's promise; the program headers are in the first segment.
        let headers = unsafe { program_headers(found.start)? };
        let base = found.start - headers.iter().find(|it| it.p_type == PT_LOAD)?.p_vaddr;
        let loads = || headers.iter().filter(|it| it.p_type == PT_LOAD);
        let segment = loads().find(|it| in_segment(it, base, found.header))?;
        let end = loads().map(|it| base + it.p_vaddr + it.p_memsz).max()?;
        let notes = || headers.iter().filter(|it| it.p_type == PT_NOTE && it.p_filesz <= FIRST_PAGE);
        let is_early = |it: &&Elf64_Phdr| base + it.p_vaddr + it.p_filesz <= found.start + FIRST_PAGE;
        let early = notes().filter(is_early).max_by_key(|it| it.p_filesz);
        let header_end = base + segment.p_vaddr + segment.p_filesz;
        let (sample, sample_len) = match early {
            Some(it) => (base + it.p_vaddr, it.p_filesz as usize),
            None => {
                let to_page_end = FIRST_PAGE - found.header % FIRST_PAGE;
                (found.header, HEADER_SAMPLE.min(to_page_end).min(header_end - found.header) as usize)
            }
        };
        // SAFETY: notes and the header lie in segments that are mapped.
        let sample_digest = unsafe { digest(0, sample, sample_len) };
        // SAFETY: as above.
        let identity = unsafe {
            let notes = notes().fold(0, |sum, it| digest(sum, base + it.p_vaddr, it.p_filesz as usize));
            digest(notes, found.header, HEADER_SAMPLE.min(header_end - found.header) as usize)
        };
        let identity = mix(identity ^ mix(found.header - found.start) ^ mix(end - found.start)) | 1;
        let (start, header) = (found.start, found.header);
        Some(Object { start, end, header, header_end, identity, sample, sample_len, sample_digest })
    }
}

fn in_segment(segment: &Elf64_Phdr, base: u64, address: u64) -> bool {
    let start = base.wrapping_add(segment.p_vaddr);
    start <= address && address < start.wrapping_add(segment.p_filesz)
}

/// # Safety
/// An ELF file's first page is mapped at `start`.
unsafe fn program_headers<'a>(start: u64) -> Option<&'a [Elf64_Phdr]> {
    // SAFETY: the caller's promise.
    let header = unsafe { &*(start as *const Elf64_Ehdr) };
    let size = usize::from(header.e_phnum) * size_of::<Elf64_Phdr>();
    let is_usual = header.e_ident.starts_with(b"\x7fELF\x02")
        && usize::from(header.e_phentsize) == size_of::<Elf64_Phdr>()
        && header.e_phoff.is_multiple_of(8)
        && (header.e_phoff as usize).checked_add(size).is_some_and(|it| it <= FIRST_PAGE as usize);
    // SAFETY: within the first page.
    is_usual.then(|| unsafe {
        std::slice::from_raw_parts((start + header.e_phoff) as *const Elf64_Phdr, usize::from(header.e_phnum))
    })
}

/// # Safety
/// `len` bytes are readable at `address`.
unsafe fn digest(seed: u64, address: u64, len: usize) -> u64 {
    if len == 0 {
        return seed;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, len) };
    // One multiplication a word: at a launch, this is done for each file of its stack.
    let add = |sum: u64, word: u64| sum.wrapping_mul(0xd6e8_feb8_6659_fd93).wrapping_add(word);
    let sum = bytes.as_chunks().0.iter().fold(seed ^ len as u64, |sum, it| add(sum, u64::from_ne_bytes(*it)));
    let last = match bytes.last_chunk() {
        Some(it) => u64::from_ne_bytes(*it),
        None => bytes.iter().fold(0, |word, it| word << 8 | u64::from(*it)),
    };
    mix(add(sum, last))
}

#[inline]
pub(crate) fn mix(it: u64) -> u64 {
    let it = (it ^ it >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    it ^ it >> 32
}

/// The loader's answer.
#[derive(Clone, Copy, Debug)]
struct Found {
    start: u64,
    header: u64,
}

/// `struct dl_find_object` of dlfcn.h, as long as any version's.
#[repr(C)]
struct DlFindObject {
    flags: u64,
    map_start: *mut c_void,
    map_end: *mut c_void,
    link_map: *mut c_void,
    eh_frame: *mut c_void,
    reserved: [u64; 16],
}

type FindObject = unsafe extern "C" fn(*mut c_void, *mut DlFindObject) -> c_int;

/// `_dl_find_object`; null before it was looked for, and where there is none.
static FIND_OBJECT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Looks for what the C library offers: once, off the paths that run often.
pub(crate) fn prepare() {
    // SAFETY: a C string, looked for among all libraries.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
    FIND_OBJECT.store(found, Ordering::Release);
}

#[inline]
fn find(address: u64) -> Option<Found> {
    match FIND_OBJECT.load(Ordering::Acquire) {
        it if it.is_null() => find_in_list(address),
        function => {
            // SAFETY: the function of this name has this type since it exists.
            let function: FindObject = unsafe { std::mem::transmute(function) };
            let mut result = MaybeUninit::<DlFindObject>::uninit();
            // SAFETY: it takes any address, and the result has room for any version's answer.
            let answer = unsafe { function(address as *mut c_void, result.as_mut_ptr()) };
            if answer != 0 {
                return None;
            }
            let result = result.as_ptr();
            // SAFETY: an answer of 0 says that these members are written.
            let (start, header) = unsafe { ((*result).map_start as u64, (*result).eh_frame as u64) };
            (header != 0).then_some(Found { start, header })
        }
    }
}

fn find_in_list(address: u64) -> Option<Found> {
    let found = find_loaded(|file| {
        let start = || file.segments().next().map(|it| it.start & !(FIRST_PAGE - 1));
        let found = || Some(Found { start: start()?, header: file.address_of(libc::PT_GNU_EH_FRAME)? });
        file.holds(address).then(found)
    });
    found.flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_in_its_file_whichever_way_it_is_asked() {
        prepare();
        for address in [mix as *const () as u64, libc::getpid as *const () as u64] {
            let (found, listed) = (find(address).unwrap(), find_in_list(address).unwrap());
            assert_eq!((found.start, found.header), (listed.start, listed.header));
            let object = Object::at(address).unwrap();
            assert!(object.holds(address) && object.holds(object.header), "{object:x?}");
        }
        let (own, libc) =
            (Object::at(mix as *const () as u64).unwrap(), Object::at(libc::getpid as *const () as u64).unwrap());
        assert_ne!(own.identity, libc.identity);
        let local = 0;
        assert!(Object::at(&raw const local as u64).is_none() && find_in_list(8).is_none());
    }
}
