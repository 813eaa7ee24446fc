//! Which file is mapped at an address of code, and where its tables of unwinding are.
//!
//! glibc 2.35 and later answer without a lock (`_dl_find_object`, dlfcn.h). Before, the loader's
//! list is gone through, which takes the loader's lock for as long as that lasts.

use crate::loaded::find_loaded;
use libc::{Elf64_Ehdr, Elf64_Phdr, PT_DYNAMIC, PT_LOAD, PT_NOTE};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A file that is mapped, by the addresses of its segments.
#[derive(Clone, Copy, Debug)]
pub struct MappedObject {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// `.eh_frame_hdr` (Linux Standard Base, "Exception Frames"), and where its segment ends; 0 if it has none.
    pub(crate) header: u64,
    pub(crate) header_end: u64,
    /// Tells this file from all others, wherever it is mapped: its build id or what stands in for it.
    pub(crate) identity: u64,
    /// What is read of it to see whether it is still there.
    sample: Sample,
    sample_digest: u64,
}

/// Parts of a file by which it is told from another one in its place. The first page of whatever is there is mapped,
/// and so is the header's where the loader says that one is there. So nothing else is read.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Address and length. Of the build id alone, where the first page has one. Else of what differs most between files.
    parts: [(u64, u32); MOST_PARTS],
    /// Whether the path belongs to it: of a file without a build id.
    with_path: bool,
}

const MOST_PARTS: usize = 3;
const NO_PART: (u64, u32) = (0, 0);
const NO_SAMPLE: Sample = Sample { parts: [NO_PART; MOST_PARTS], with_path: false };

/// A place where no file is.
pub(crate) const NO_OBJECT: MappedObject =
    MappedObject { start: 0, end: 0, header: 0, header_end: 0, identity: 0, sample: NO_SAMPLE, sample_digest: 0 };

/// Bytes from a file's start that are mapped whenever any of it is.
pub const FIRST_PAGE: u64 = 4096;
/// Bytes of a part of a file that are read to tell files apart: of the header, its sizes and first entries.
const PART: u64 = 64;
/// Bytes of a path that are looked at.
const MOST_PATH: usize = 4096;

/// What tells a mapped file from others, for one who has files to compare it with.
#[derive(Clone, Copy, Debug)]
pub struct Description<'a> {
    /// What is added to the addresses in its program headers.
    pub base: u64,
    /// Empty if it has none.
    pub build_id: &'a [u8],
    /// Its first bytes, as they are in the file: [`FIRST_PAGE`], or all of its first segment.
    pub first_bytes: &'a [u8],
    /// As the program named it to the loader; empty for the program itself.
    pub path: &'a [u8],
}

impl MappedObject {
    /// The file at an address; `None` where there is none.
    #[inline]
    pub fn at(address: u64) -> Option<MappedObject> {
        // SAFETY: the loader says that a file is mapped there, and one that the stack returns into stays.
        let object = |found: &LoaderAnswer| unsafe { MappedObject::mapped(found) };
        // Of a program with holes between its segments, `_dl_find_object` knows the segment alone (glibc 2.39).
        find(address).and_then(|it| object(&it).or_else(|| object(&find_in_list(address)?)))
    }

    /// Its addresses.
    #[inline]
    pub fn range(&self) -> std::ops::Range<u64> {
        self.start..self.end
    }

    /// Tells it from other files, and from the same one elsewhere. Never 0.
    #[inline]
    pub fn key(&self) -> u64 {
        mix(self.identity ^ mix(self.start)) | 1
    }

    /// Returns what tells it from others, if it is still there.
    ///
    /// # Safety
    /// The file stays mapped while the result is used: the calling thread's stack returns into it.
    pub unsafe fn description<'a>(&self) -> Option<Description<'a>> {
        let found = find(self.start).filter(|it| it.start == self.start)?;
        // SAFETY: the caller promises that the file, which was just found, stays mapped while the result is used.
        unsafe {
            let headers = program_headers(found.start)?;
            let first = headers.iter().find(|it| it.p_type == PT_LOAD)?;
            let base = base(found.start, headers)?;
            let build_id = notes(headers, base).find_map(|it| build_id(it)).unwrap_or_default();
            let first_bytes = bytes(found.start, first.p_filesz.min(FIRST_PAGE) as usize);
            Some(Description { base, build_id, first_bytes, path: found.path() })
        }
    }

    /// Whether the same file is mapped at the same place.
    #[inline]
    pub(crate) fn is_still_there(&self) -> bool {
        find(self.start).is_some_and(|it| {
            (it.start, it.header) == (self.start, self.header)
                // SAFETY: in the first page, or that of the header, of the file that the loader says is mapped there.
                && unsafe { self.sample.digest(&it) } == self.sample_digest
        })
    }

    #[inline]
    pub(crate) fn holds(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    /// # Safety
    /// An ELF file is mapped at `found`.
    unsafe fn mapped(found: &LoaderAnswer) -> Option<MappedObject> {
        let LoaderAnswer { start, header, .. } = *found;
        // SAFETY: the caller promises that an ELF file is mapped at `found`, with the program headers in its first
        // page.
        let headers = unsafe { program_headers(start)? };
        let base = base(start, headers)?;
        let loads = || headers.iter().filter(|it| it.p_type == PT_LOAD);
        let segment = loads().find(|it| in_segment(it, base, header)).filter(|_| header != 0);
        let header_end = segment.map_or(0, |it| base + it.p_vaddr + it.p_filesz);
        let end = loads().map(|it| base + it.p_vaddr + it.p_memsz).max()?;
        // SAFETY: notes and the header lie in segments that are mapped.
        unsafe {
            let sample = Sample::of(found, headers, base, header_end);
            let sample_digest = sample.digest(found);
            let rest = match sample.with_path {
                true => digest(0, start, loads().next()?.p_filesz.min(FIRST_PAGE) as usize),
                false => digest(0, header, PART.min(header_end.saturating_sub(header)) as usize),
            };
            let identity = mix(sample_digest ^ mix(rest) ^ mix(header.wrapping_sub(start)) ^ mix(end - start)) | 1;
            let header = if header_end == 0 { 0 } else { header };
            Some(MappedObject { start, end, header, header_end, identity, sample, sample_digest })
        }
    }
}

impl Sample {
    /// # Safety
    /// The file with these headers is mapped there.
    unsafe fn of(found: &LoaderAnswer, headers: &[Elf64_Phdr], base: u64, header_end: u64) -> Self {
        let page = found.start..found.start + FIRST_PAGE;
        // SAFETY: the caller promises that the file with these headers is mapped there.
        let build_id = unsafe { notes(headers, base) }.find_map(|it| {
            let id = build_id(it)?;
            let at = id.as_ptr() as u64;
            (page.contains(&at) && at + id.len() as u64 <= page.end).then_some((at, id.len() as u32))
        });
        if let Some(build_id) = build_id {
            return Sample { parts: [build_id, NO_PART, NO_PART], with_path: false };
        }
        // The sizes at the file's beginning, and the hashes of its functions' names.
        // SAFETY: the caller promises that the file with these headers is mapped there.
        let hashes = unsafe { hashes(headers, base) }.filter(|it| page.contains(it) && it + PART <= page.end);
        let to_page_end = FIRST_PAGE - found.header % FIRST_PAGE;
        let header_len = PART.min(to_page_end).min(header_end.saturating_sub(found.header)) as u32;
        let part = |at: u64| (at, PART as u32);
        let parts = [part(found.start), hashes.map_or(NO_PART, part), (found.header, header_len)];
        Sample { parts, with_path: true }
    }

    /// # Safety
    /// A file is mapped at `found`, whose header is where it was.
    #[inline]
    unsafe fn digest(&self, found: &LoaderAnswer) -> u64 {
        let first = self.parts[0];
        // SAFETY: the caller promises that a file is mapped at `found` whose header is where it was; the first part is
        // in its first page.
        let sum = unsafe { digest(0, first.0, first.1 as usize) };
        // SAFETY: as above.
        if self.with_path { unsafe { self.digest_of_all(sum, found) } } else { sum }
    }

    /// # Safety
    /// As for [`Sample::digest`].
    unsafe fn digest_of_all(&self, sum: u64, found: &LoaderAnswer) -> u64 {
        // SAFETY: the caller promises that a file is mapped at `found` whose header is where it was: each part is in
        // its first page or that of the header.
        unsafe {
            let sum = self.parts[1..].iter().fold(sum, |sum, it| digest(sum, it.0, it.1 as usize));
            let path = found.path();
            digest(sum, path.as_ptr() as u64, path.len())
        }
    }
}

/// What is added to the addresses in the program headers of the file at `start`.
fn base(start: u64, headers: &[Elf64_Phdr]) -> Option<u64> {
    let first = headers.iter().find(|it| it.p_type == PT_LOAD)?;
    Some(start.wrapping_sub(first.p_vaddr & !(FIRST_PAGE - 1)))
}

/// The notes of a file.
///
/// # Safety
/// The file with these headers is mapped there.
unsafe fn notes<'a>(headers: &[Elf64_Phdr], base: u64) -> impl Iterator<Item = Note<'a>> {
    let parts = headers.iter().filter(|it| it.p_type == PT_NOTE && it.p_filesz <= FIRST_PAGE);
    // SAFETY: notes lie in segments that are mapped.
    parts.flat_map(move |it| Notes(unsafe { bytes(base.wrapping_add(it.p_vaddr), it.p_filesz as usize) }))
}

/// A note: its type, owner and contents (System V ABI, "Note Section").
struct Note<'a> {
    kind: u32,
    owner: &'a [u8],
    contents: &'a [u8],
}

/// The notes in these bytes, as far as they are well-formed.
struct Notes<'a>(&'a [u8]);

impl<'a> Iterator for Notes<'a> {
    type Item = Note<'a>;

    fn next(&mut self) -> Option<Note<'a>> {
        let word = |at: usize| Some(u32::from_ne_bytes(*self.0.get(at..)?.first_chunk()?));
        let (owner_len, len, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
        let owner_end = 12usize.checked_add(owner_len)?;
        let begin = owner_end.checked_next_multiple_of(4)?;
        let owner = self.0.get(12..owner_end)?;
        let contents = self.0.get(begin..begin.checked_add(len)?)?;
        let next = (begin + len).next_multiple_of(4).min(self.0.len());
        self.0 = &self.0[next..];
        Some(Note { kind, owner, contents })
    }
}

fn build_id(note: Note<'_>) -> Option<&[u8]> {
    (note.kind == NT_GNU_BUILD_ID && note.owner == b"GNU\0" && !note.contents.is_empty()).then_some(note.contents)
}

/// Where the hashes of a file's names are (`DT_GNU_HASH`).
///
/// # Safety
/// The file with these headers is mapped there.
unsafe fn hashes(headers: &[Elf64_Phdr], base: u64) -> Option<u64> {
    let dynamic = headers.iter().find(|it| it.p_type == PT_DYNAMIC)?;
    let (at, len) = (base.wrapping_add(dynamic.p_vaddr), dynamic.p_filesz as usize / size_of::<[u64; 2]>());
    if !at.is_multiple_of(align_of::<[u64; 2]>() as u64) {
        return None;
    }
    // SAFETY: the dynamic section is mapped, and aligned.
    let entries = unsafe { std::slice::from_raw_parts(at as *const [u64; 2], len) };
    let value = entries.iter().take_while(|it| it[0] != 0).find(|it| it[0] == DT_GNU_HASH)?[1];
    // Some loaders relocate it in place.
    Some(if value < base { base + value } else { value })
}

/// # Safety
/// `len` bytes are readable at `at`, and stay so while the result is used.
unsafe fn bytes<'a>(at: u64, len: usize) -> &'a [u8] {
    // SAFETY: the caller promises that the bytes are readable, and stay so while the result is used.
    if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(at as *const u8, len) } }
}

fn in_segment(segment: &Elf64_Phdr, base: u64, address: u64) -> bool {
    let start = base.wrapping_add(segment.p_vaddr);
    start <= address && address < start.wrapping_add(segment.p_filesz)
}

/// # Safety
/// An ELF file's first page is mapped at `start`.
unsafe fn program_headers<'a>(start: u64) -> Option<&'a [Elf64_Phdr]> {
    // SAFETY: the caller promises that an ELF file's first page is mapped at `start`.
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
    // SAFETY: the caller promises that `len` bytes are readable at `address`.
    let bytes = unsafe { bytes(address, len) };
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

/// The type of the note that is a build id, and the tag of the hashes of names (elf.h).
const NT_GNU_BUILD_ID: u32 = 3;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// The loader's answer.
#[derive(Clone, Copy, Debug)]
struct LoaderAnswer {
    start: u64,
    /// 0 if there is none.
    header: u64,
    /// A C string, or null.
    path: *const c_char,
}

impl LoaderAnswer {
    /// # Safety
    /// The file stays mapped while the result is used.
    unsafe fn path<'a>(&self) -> &'a [u8] {
        if self.path.is_null() {
            return &[];
        }
        // SAFETY: the loader's string, which lives as long as the file is mapped.
        let path = unsafe { CStr::from_ptr(self.path) }.to_bytes();
        &path[..path.len().min(MOST_PATH)]
    }
}

/// The beginning of `struct link_map` of link.h.
#[repr(C)]
struct LinkMap {
    base: u64,
    path: *const c_char,
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
fn find(address: u64) -> Option<LoaderAnswer> {
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
            // SAFETY: an answer of 0 says that these members are written, and that the entry of the list stays.
            let (start, header, entry) = unsafe {
                ((*result).map_start as u64, (*result).eh_frame as u64, (*result).link_map.cast::<LinkMap>().as_ref())
            };
            Some(LoaderAnswer { start, header, path: entry.map_or(std::ptr::null(), |it| it.path) })
        }
    }
}

fn find_in_list(address: u64) -> Option<LoaderAnswer> {
    let found = find_loaded(|file| {
        let start = || file.segments().next().map(|it| it.start & !(FIRST_PAGE - 1));
        let header = file.address_of(libc::PT_GNU_EH_FRAME).unwrap_or(0);
        // A path that is a part of the loader's C string.
        let found = || Some(LoaderAnswer { start: start()?, header, path: file.path.as_ptr().cast() });
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
            let object = MappedObject::at(address).unwrap();
            assert!(object.holds(address) && object.holds(object.header), "{object:x?}");
        }
        let (own, libc) = (
            MappedObject::at(mix as *const () as u64).unwrap(),
            MappedObject::at(libc::getpid as *const () as u64).unwrap(),
        );
        assert_ne!(own.identity, libc.identity);
        let local = 0;
        assert!(MappedObject::at(&raw const local as u64).is_none() && find_in_list(8).is_none());
    }

    #[test]
    fn a_file_is_described_as_it_is_on_disk() {
        prepare();
        for (address, path) in [(mix as *const () as u64, None), (libc::getpid as *const () as u64, Some("libc.so.6"))]
        {
            let object = MappedObject::at(address).unwrap();
            assert_eq!(MappedObject::at(object.end - 1).map(|it| it.key()), Some(object.key()), "anywhere in it");
            // SAFETY: neither is unloaded.
            let Description { base, build_id, first_bytes, path: theirs } = unsafe { object.description() }.unwrap();
            let theirs = std::str::from_utf8(theirs).unwrap();
            let file = match path {
                None => std::fs::read("/proc/self/exe").unwrap(),
                Some(_) => std::fs::read(theirs).unwrap(),
            };
            assert_eq!(theirs.rsplit('/').next().filter(|it| !it.is_empty()), path);
            assert!(first_bytes.starts_with(b"\x7fELF") && file.starts_with(first_bytes));
            assert!(build_id.is_empty() || file.windows(build_id.len()).any(|it| it == build_id));
            assert_eq!(base % FIRST_PAGE, 0);
        }
    }

    #[test]
    fn a_build_id_is_found_among_notes_and_damage_ends_them() {
        let note = |kind: u32, owner: &[u8], contents: &[u8]| {
            let numbers = [owner.len() as u32, contents.len() as u32, kind].map(u32::to_ne_bytes).concat();
            let padded = |it: &[u8]| [it, &vec![0; it.len().next_multiple_of(4) - it.len()]].concat();
            [numbers, padded(owner), padded(contents)].concat()
        };
        let found = |bytes: &[u8]| Notes(bytes).find_map(build_id).map(<[u8]>::to_vec);
        let others = [note(5, b"GNU\0", &[1; 16]), note(NT_GNU_BUILD_ID, b"Other\0", &[2; 3])].concat();
        let all = [others.clone(), note(NT_GNU_BUILD_ID, b"GNU\0", &[7; 5])].concat();
        assert_eq!(found(&all), Some(vec![7; 5]));
        assert_eq!(found(&others), None);
        for len in 0..all.len() - 3 {
            assert_eq!(found(&all[..len]), None, "{len}");
        }
        assert_eq!(found(&[255; 64]), None);
    }
}
